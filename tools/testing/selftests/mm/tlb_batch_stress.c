// SPDX-License-Identifier: GPL-2.0
/*
 * Everything that unmaps pages behind a program's back, at the same time and
 * for a bounded time, while all contents are checked:
 *
 * write    two threads increment numbered pages
 * move     a thread moves those pages from node to node and back
 * split    a thread makes PTE-mapped THPs and splits them through debugfs
 * pageout  a thread reclaims pages to swap and reads them back, and reclaims
 *          the pages of the writers
 * fork     children check a copy of the parent's memory; some are killed
 * churn    a thread maps, protects, unmaps and maps again
 *
 * It is meant for kernels with KASAN, lockdep and debug checks and for the
 * stale translation oracle, which see more than the contents show.
 * --toggle switches vm.tlb_batch all the time on top of it.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <signal.h>
#include <sys/wait.h>

#include "tlb_rs_stress.h"

#define NR_WRITERS	2
#define WRITE_PAGES	256
#define FORK_PAGES	512
#define PAGEOUT_PAGES	512
#define CHURN_PAGES	96

static size_t psize;
static bool toggle;

/* A page of the writers: what it should hold follows from two of its words. */
struct page_head {
	__u64 index;
	__u64 count;
	__u64 guard;
};

static char *write_base[NR_WRITERS];

static __u64 guard_of(__u64 index, __u64 count)
{
	return tlb_rs_word(index, count);
}

static void fn_write(struct job *job)
{
	char *base = write_base[job->nr];
	unsigned int state = 17 + job->nr;
	__u64 *counts;

	counts = calloc(WRITE_PAGES, sizeof(*counts));
	if (!counts)
		return;
	do {
		size_t i = tlb_rs_rnd(&state) % WRITE_PAGES;
		struct page_head *head = (struct page_head *)(base + i * psize);
		__u64 *tail = (__u64 *)(base + (i + 1) * psize) - 1;

		if (__atomic_load_n(&head->index, __ATOMIC_RELAXED) != i ||
		    __atomic_load_n(&head->count, __ATOMIC_RELAXED) != counts[i] ||
		    __atomic_load_n(&head->guard, __ATOMIC_RELAXED) !=
		    guard_of(i, counts[i]) ||
		    __atomic_load_n(tail, __ATOMIC_RELAXED) != counts[i])
			job->bad++;
		/* Nobody else writes: after an error, go on from what was meant. */
		counts[i]++;
		__atomic_store_n(&head->index, i, __ATOMIC_RELAXED);
		__atomic_store_n(&head->count, counts[i], __ATOMIC_RELAXED);
		__atomic_store_n(&head->guard, guard_of(i, counts[i]), __ATOMIC_RELAXED);
		__atomic_store_n(tail, counts[i], __ATOMIC_RELAXED);
		job->ops++;
	} while (!expired());
	free(counts);
}

static void writers_init(void)
{
	size_t i;
	int nr;

	for (nr = 0; nr < NR_WRITERS; nr++) {
		write_base[nr] = tlb_rs_mmap(WRITE_PAGES * psize, SZ_2M);
		madvise(write_base[nr], WRITE_PAGES * psize, MADV_NOHUGEPAGE);
		for (i = 0; i < WRITE_PAGES; i++) {
			struct page_head *head;

			head = (struct page_head *)(write_base[nr] + i * psize);
			head->index = i;
			head->guard = guard_of(i, 0);
		}
	}
}

static void fn_move(struct job *job)
{
	static void *addrs[WRITE_PAGES];
	static int nodes[WRITE_PAGES];
	static int status[WRITE_PAGES];
	unsigned int state = 23;
	int node = 1;

	if ((tlb_rs_memory_nodes() & 3) != 3) {
		job->skip = "one node";
		return;
	}
	do {
		char *base = write_base[tlb_rs_rnd(&state) % NR_WRITERS];
		size_t i, nr = 1 + tlb_rs_rnd(&state) % WRITE_PAGES;

		for (i = 0; i < nr; i++) {
			addrs[i] = base + i * psize;
			nodes[i] = node;
			status[i] = -1;
		}
		if (tlb_rs_move_pages(0, nr, addrs, nodes, status))
			job->failed++;
		for (i = 0; i < nr; i++)
			job->ops += status[i] == node;
		node ^= 1;
	} while (!expired());
}

static void fn_split(struct job *job)
{
	size_t len = 2 * SZ_2M, off;
	char cmd[80];
	int fd, n;

	fd = open(DEBUGFS "split_huge_pages", O_WRONLY | O_CLOEXEC);
	if (fd < 0 || !tlb_rs_thp_available() || psize * THP_PAGES != SZ_2M) {
		job->skip = "no split_huge_pages or no THPs";
		return;
	}
	do {
		char *base = tlb_rs_mmap(len, SZ_2M);
		bool whole;	/* until it is split */

		madvise(base, len, MADV_HUGEPAGE);
		tlb_rs_fill(base, len, job->ops);
		for (off = psize; off < len; off += SZ_2M) {
			mprotect(base + off, psize, PROT_READ);
			mprotect(base + off, psize, PROT_READ | PROT_WRITE);
		}
		whole = tlb_rs_is_large(base) && tlb_rs_is_large(base + SZ_2M);
		/* Now and then a part that is unmapped at the time of the split. */
		if (job->ops % 4 == 3)
			madvise(base + len / 2 - 8 * psize, 8 * psize, MADV_DONTNEED);
		n = snprintf(cmd, sizeof(cmd), "%d,0x%lx,0x%lx", getpid(),
			     (unsigned long)base, (unsigned long)(base + len));
		if (write(fd, cmd, n) != n)
			job->failed++;
		whole &= !tlb_rs_is_large(base);
		if (job->ops % 4 == 3) {
			size_t half = len / 2 - 8 * psize;

			job->bad += tlb_rs_check(base, half, job->ops);
		} else {
			job->bad += tlb_rs_check(base, len, job->ops);
		}
		munmap(base, len);
		if (whole)
			job->ops++;
		else
			job->failed++;
	} while (!expired());
	close(fd);
}

static void fn_pageout(struct job *job)
{
	size_t len = PAGEOUT_PAGES * psize, i;
	char *base = tlb_rs_mmap(len, SZ_2M);
	unsigned int state = 29;
	long seed = 0;

	if (!tlb_rs_has_swap()) {
		job->skip = "no swap";
		return;
	}
	madvise(base, len, MADV_NOHUGEPAGE);
	tlb_rs_fill(base, len, seed);
	do {
		if (madvise(base, len, MADV_PAGEOUT))
			job->failed++;
		for (i = 0; i < PAGEOUT_PAGES; i++)
			job->ops += !!(tlb_rs_pagemap(base + i * psize) & PM_SWAP);
		/* Pages that are being written: none of those writes may get lost. */
		if (tlb_rs_rnd(&state) % 4 == 0 &&
		    madvise(write_base[tlb_rs_rnd(&state) % NR_WRITERS], WRITE_PAGES * psize,
			    MADV_PAGEOUT))
			job->failed++;
		/* Dirty again, clean from swap, or not touched before the next time. */
		switch (tlb_rs_rnd(&state) % 3) {
		case 0:
			job->bad += tlb_rs_check(base, len, seed);
			tlb_rs_fill(base, len, ++seed);
			break;
		case 1:
			job->bad += tlb_rs_check(base, len, seed);
			break;
		default:
			break;
		}
	} while (!expired());
	job->bad += tlb_rs_check(base, len, seed);
	munmap(base, len);
}

/* A child checks what it inherited, twice, with its own writes in between. */
static int fork_child(char *base, size_t len, __u64 seed)
{
	if (tlb_rs_check(base, len, seed))
		return 1;
	tlb_rs_fill(base, len / 2, seed + 1);
	if (tlb_rs_check(base, len / 2, seed + 1))
		return 2;
	return 0;
}

static void fn_fork(struct job *job)
{
	size_t len = FORK_PAGES * psize;
	char *base = tlb_rs_mmap(len, SZ_2M);
	unsigned int state = 31;
	__u64 seed = 1;
	int status;

	tlb_rs_fill(base, len, seed);
	do {
		bool killed = tlb_rs_rnd(&state) % 3 == 0;
		pid_t pid;

		pid = fork();
		if (!pid)
			_exit(fork_child(base, len, seed));
		if (pid < 0) {
			job->failed++;
			continue;
		}
		/* The parent's writes are not the child's business. */
		if (tlb_rs_rnd(&state) & 1) {
			seed += 2;
			tlb_rs_fill(base, len, seed);
		}
		/* In the middle of whatever it does. */
		if (killed) {
			tlb_rs_sleep_us(tlb_rs_rnd(&state) % 3000);
			kill(pid, SIGKILL);
		}
		if (waitpid(pid, &status, 0) != pid) {
			job->failed++;
			continue;
		}
		if (WIFEXITED(status) ? WEXITSTATUS(status) != 0 : !killed)
			job->bad++;
		job->bad += tlb_rs_check(base, len, seed);
		job->ops++;
	} while (!expired());
	munmap(base, len);
}

static void fn_churn(struct job *job)
{
	size_t len = CHURN_PAGES * psize, third = len / 3;

	do {
		char *base = tlb_rs_mmap(len, SZ_2M);
		char *again;

		tlb_rs_fill(base, len, job->ops);
		mprotect(base + third, third, PROT_READ);
		job->bad += tlb_rs_check(base, len, job->ops);
		madvise(base, third, MADV_COLD);
		mprotect(base, len, PROT_READ | PROT_WRITE);
		again = mmap(base + third, third, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		if (again == MAP_FAILED) {
			job->failed++;
			munmap(base, len);
			continue;
		}
		/* New memory is zero, whatever a TLB may remember. */
		for (size_t off = 0; off < third; off += 8)
			job->bad += !!*(__u64 *)(again + off);
		job->bad += tlb_rs_check(base, third, job->ops);
		munmap(base, len);
		job->ops++;
	} while (!expired());
}

static void fn_toggle(struct job *job)
{
	int val, i = 0;

	if (!toggle)
		job->skip = "not asked for";
	else if (!tlb_batch_get(&val))
		job->skip = "no vm.tlb_batch";
	else if (!tlb_rs_patching_is_safe())
		job->skip = "no live patching under x86_64 TCG";
	if (job->skip)
		return;
	do {
		if (tlb_batch_set(i++ & 1))
			job->ops++;
		else
			job->failed++;
		tlb_rs_sleep_us(20000);
	} while (!expired());
	tlb_batch_set(val);
}

static struct job jobs[] = {
	{ .name = "write0", .fn = fn_write, .cpu = 0, .nr = 0 },
	{ .name = "write1", .fn = fn_write, .cpu = 1, .nr = 1 },
	{ .name = "move", .fn = fn_move, .cpu = 2 },
	{ .name = "split", .fn = fn_split, .cpu = 3 },
	{ .name = "pageout", .fn = fn_pageout, .cpu = 0 },
	{ .name = "fork", .fn = fn_fork, .cpu = 1 },
	{ .name = "churn", .fn = fn_churn, .cpu = 2 },
	{ .name = "toggle", .fn = fn_toggle, .cpu = 3 },
};

static void help(const char *prog)
{
	printf("usage: %s [option]...\n"
	       "  [--seconds N] [--toggle]\n",
	       prog);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "seconds", required_argument, NULL, 's' },
		{ "toggle", no_argument, NULL, 't' },
		{ "help", no_argument, NULL, 'h' },
		{ }
	};
	struct tlb_rs_counters c;
	long seconds = 10;
	int opt;

	ksft_print_header();
	while ((opt = getopt_long(argc, argv, "s:th", options, NULL)) != -1) {
		switch (opt) {
		case 's':
			seconds = tlb_rs_number(optarg, 1, 1000000);
			break;
		case 't':
			toggle = true;
			break;
		case 'h':
			help(argv[0]);
			return 0;
		default:
			help(argv[0]);
			return KSFT_FAIL;
		}
	}

	psize = getpagesize();
	writers_init();
	ksft_set_plan(ARRAY_SIZE(jobs));

	tlb_rs_counters_read(&c);
	stress_run(jobs, ARRAY_SIZE(jobs), seconds);
	tlb_rs_counters_diff(&c);

	printf("{\"test\":\"stress\",\"tlb_batch\":%s,\"seconds\":%ld", tlb_batch_json(), seconds);
	stress_json();
	tlb_rs_json_counters(&c);
	printf("}\n");
	stress_results();
	ksft_finished();
}
