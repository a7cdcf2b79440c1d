// SPDX-License-Identifier: GPL-2.0
/*
 * Everything that meets a deferred flush, at the same time and for a bounded time,
 * while all contents are checked:
 *
 * move     two threads move pages of all areas, and of children, to and fro
 * write    a thread increments numbered pages that are writable now and then
 * read     a thread checks pages that are read-only all the time
 * force    a thread writes to read-only pages through /proc/self/mem
 * churn    a thread maps, protects, unmaps, replaces and moves mappings
 * fork     children check a copy of the parent's memory, and write; some are killed
 * settings a thread changes the bounds; with --toggle also vm.migrc_enable
 *
 * It is meant for kernels with KASAN, lockdep and debug checks and for the stale
 * translation oracle, which see more than the contents show. In the end the ledger
 * must become empty.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "migrc.h"
#include "tlb_rs_stress.h"

#define AREA_PAGES	512
#define SEED		13

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP	4
#endif

static size_t psize, area_len;
static bool toggle;

/* Fixed places, so that the movers always know where to look. */
enum area_nr { AREA_WRITE, AREA_READ, AREA_FORCE, AREA_CHURN, AREA_FORK, NR_AREAS };

static char *areas[NR_AREAS];
static pid_t victim;		/* a child that has a copy of AREA_FORK, or 0 */

static void fn_move(struct job *job)
{
	unsigned int state = 23 + job->nr;
	struct migrc_set all, part;

	migrc_set_init(&all, areas[0], AREA_PAGES);
	do {
		char *base = areas[tlb_rs_rnd(&state) % NR_AREAS];
		pid_t pid = __atomic_load_n(&victim, __ATOMIC_RELAXED);
		size_t i, first = tlb_rs_rnd(&state) % AREA_PAGES, moved;

		part = all;
		part.nr = 1 + tlb_rs_rnd(&state) % (AREA_PAGES - first);
		for (i = 0; i < part.nr; i++)
			part.addrs[i] = base + (first + i) * psize;
		if (base != areas[AREA_FORK] || tlb_rs_rnd(&state) & 1)
			pid = 0;
		moved = migrc_move(&part, pid, tlb_rs_rnd(&state) & 1, MPOL_MF_MOVE_ALL);
		job->ops += moved;
		job->failed += part.nr - moved;
	} while (!expired());
	migrc_set_free(&all);
}

/* A page is numbered, at its beginning and at its end. */
static void fn_write(struct job *job)
{
	unsigned int state = 17;
	char *base = areas[AREA_WRITE];
	__u64 *counts;

	counts = calloc(AREA_PAGES, sizeof(*counts));
	if (!counts)
		return;
	do {
		size_t nr = 1 + tlb_rs_rnd(&state) % 64, n;
		size_t i = tlb_rs_rnd(&state) % (AREA_PAGES - nr);

		for (n = i; n < i + nr; n++) {
			__u64 *head = (__u64 *)(base + n * psize);
			__u64 *tail = (__u64 *)(base + (n + 1) * psize) - 1;

			job->bad += __atomic_load_n(head, __ATOMIC_RELAXED) != counts[n] ||
				    __atomic_load_n(tail, __ATOMIC_RELAXED) != counts[n];
		}
		mprotect(base + i * psize, nr * psize, PROT_READ | PROT_WRITE);
		for (n = i; n < i + nr; n++) {
			/* Nobody else writes: after an error, go on from what was meant. */
			counts[n]++;
			__atomic_store_n((__u64 *)(base + n * psize), counts[n], __ATOMIC_RELAXED);
			__atomic_store_n((__u64 *)(base + (n + 1) * psize) - 1, counts[n],
					 __ATOMIC_RELAXED);
		}
		/* Some stay writable for a while. */
		if (tlb_rs_rnd(&state) % 4)
			mprotect(base + i * psize, nr * psize, PROT_READ);
		job->ops++;
	} while (!expired());
	free(counts);
}

static void fn_read(struct job *job)
{
	do {
		job->bad += tlb_rs_check(areas[AREA_READ], area_len, SEED + AREA_READ);
		job->ops++;
	} while (!expired());
}

/* What was written past the protection must be there when it is read. */
static void fn_force(struct job *job)
{
	int mem = tlb_rs_open("/proc/self/mem", O_RDWR);
	unsigned int state = 29;
	__u64 val = 0;

	do {
		size_t i = tlb_rs_rnd(&state) % (area_len / sizeof(__u64));
		__u64 *w = (__u64 *)areas[AREA_FORCE] + i;

		val++;

		__atomic_load_n(w, __ATOMIC_RELAXED);
		if (pwrite(mem, &val, sizeof(val), (unsigned long)w) != sizeof(val)) {
			job->failed++;
			continue;
		}
		job->bad += __atomic_load_n(w, __ATOMIC_RELAXED) != val;
		job->ops++;
	} while (!expired());
	close(mem);
}

/* Gone, but nobody else's. */
static void reserve(char *base, size_t len)
{
	if (mmap(base, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != base)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
}

static void fn_churn(struct job *job)
{
	size_t third = area_len / 3 / psize * psize;
	char *base = areas[AREA_CHURN], *away;
	__u64 seed = SEED;

	do {
		size_t off;

		if (mmap(base, area_len, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != base) {
			job->failed++;
			continue;
		}
		madvise(base, area_len, MADV_NOHUGEPAGE);
		tlb_rs_fill(base, area_len, ++seed);
		mprotect(base, area_len, PROT_READ);
		tlb_rs_sleep_us(5000);
		job->bad += tlb_rs_check(base, area_len, seed);
		mprotect(base, third, PROT_READ | PROT_WRITE);
		madvise(base, third, MADV_DONTNEED);
		/* New memory is zero, whatever a TLB may remember. */
		for (off = 0; off < third; off += sizeof(__u64))
			job->bad += !!*(__u64 *)(base + off);
		away = mremap(base + third, third, third,
			      MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP,
			      base + 2 * area_len);
		if (away == MAP_FAILED) {
			job->failed++;
		} else {
			size_t pos = third / sizeof(__u64), i;

			for (i = 0; i < pos; i++)
				job->bad += ((__u64 *)away)[i] != tlb_rs_word(seed, pos + i);
			reserve(away, third);
		}
		reserve(base, third);
		job->ops++;
	} while (!expired());
}

/* A child checks what it inherited, twice, with its own writes in between. */
static int fork_child(char *base, __u64 seed)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (tlb_rs_check(base, area_len, seed))
		return 1;
	mprotect(base, area_len, PROT_READ | PROT_WRITE);
	tlb_rs_fill(base, area_len / 2, seed + 1);
	if (tlb_rs_check(base, area_len / 2, seed + 1))
		return 2;
	return 0;
}

static void fn_fork(struct job *job)
{
	char *base = areas[AREA_FORK];
	unsigned int state = 31;
	__u64 seed = SEED + AREA_FORK;
	int status;

	do {
		bool killed = tlb_rs_rnd(&state) % 3 == 0;
		pid_t pid;

		pid = fork();
		if (!pid)
			_exit(fork_child(base, seed));
		if (pid < 0) {
			job->failed++;
			continue;
		}
		__atomic_store_n(&victim, pid, __ATOMIC_RELAXED);
		/* The parent's writes are not the child's business. */
		if (tlb_rs_rnd(&state) & 1) {
			mprotect(base, area_len, PROT_READ | PROT_WRITE);
			seed += 2;
			tlb_rs_fill(base, area_len, seed);
			mprotect(base, area_len, PROT_READ);
		}
		/* In the middle of whatever it does. */
		if (killed) {
			tlb_rs_sleep_us(tlb_rs_rnd(&state) % 10000);
			kill(pid, SIGKILL);
		}
		if (waitpid(pid, &status, 0) != pid) {
			job->failed++;
			continue;
		}
		__atomic_store_n(&victim, 0, __ATOMIC_RELAXED);
		if (WIFEXITED(status) ? WEXITSTATUS(status) != 0 : !killed)
			job->bad++;
		/* Reused pages, for which there is nobody else any more. */
		if (tlb_rs_rnd(&state) & 1) {
			mprotect(base, area_len, PROT_READ | PROT_WRITE);
			tlb_rs_fill(base, area_len, ++seed);
		}
		job->bad += tlb_rs_check(base, area_len, seed);
		job->ops++;
	} while (!expired());
}

static void fn_settings(struct job *job)
{
	static const long ages[] = { 1, 10, 100, 1000 };
	static const long pages[] = { 0, 16, 256, 4096 };
	unsigned int state = 37;

	do {
		migrc_write(MIGRC_AGE, ages[tlb_rs_rnd(&state) % ARRAY_SIZE(ages)]);
		migrc_write(MIGRC_PAGES, pages[tlb_rs_rnd(&state) % ARRAY_SIZE(pages)]);
		if (toggle) {
			migrc_write(MIGRC_ENABLE, 0);
			migrc_write(MIGRC_ENABLE, 1);
		}
		tlb_rs_sleep_us(20000);
		job->ops++;
	} while (!expired());
}

static struct job jobs[] = {
	{ .name = "move0", .fn = fn_move, .cpu = 0, .nr = 0 },
	{ .name = "move1", .fn = fn_move, .cpu = 1, .nr = 1 },
	{ .name = "write", .fn = fn_write, .cpu = 2 },
	{ .name = "read", .fn = fn_read, .cpu = 3 },
	{ .name = "force", .fn = fn_force, .cpu = 2 },
	{ .name = "churn", .fn = fn_churn, .cpu = 3 },
	{ .name = "fork", .fn = fn_fork, .cpu = 1 },
	{ .name = "settings", .fn = fn_settings, .cpu = 0 },
};

/* With room for what fn_churn() moves away. */
static void map_areas(void)
{
	size_t i;

	area_len = AREA_PAGES * psize;
	for (i = 0; i < NR_AREAS; i++) {
		areas[i] = tlb_rs_mmap(3 * area_len, SZ_2M);
		if (i == AREA_CHURN) {
			reserve(areas[i], 3 * area_len);
			continue;
		}
		munmap(areas[i] + area_len, 2 * area_len);
		madvise(areas[i], area_len, MADV_NOHUGEPAGE);
		tlb_rs_fill(areas[i], area_len, SEED + i);
		if (i == AREA_WRITE)
			memset(areas[i], 0, area_len);
		mprotect(areas[i], area_len, PROT_READ);
	}
}

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
	struct migrc_counters before, d;
	long seconds = 10;
	long long held;
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

	migrc_init(2, 0, 100);
	if (toggle && !tlb_rs_patching_is_safe()) {
		ksft_print_msg("no --toggle: no live patching under x86_64 TCG\n");
		toggle = false;
	}
	psize = getpagesize();
	map_areas();
	ksft_set_plan(ARRAY_SIZE(jobs) + 1);

	migrc_read(&before);
	stress_run(jobs, ARRAY_SIZE(jobs), seconds);
	migrc_write(MIGRC_ENABLE, 0);
	held = migrc_held(-1);
	migrc_diff(&before, &d);

	printf("{\"test\":\"migrc_stress\",\"seconds\":%ld", seconds);
	stress_json();
	migrc_json(&d);
	printf("}\n");
	stress_results();
	ksft_test_result(d.val[MIGRC_DEFERRED] && !held,
			 "stress ledger: %lld pages deferred, %lld held at the end\n",
			 d.val[MIGRC_DEFERRED], held);
	ksft_finished();
}
