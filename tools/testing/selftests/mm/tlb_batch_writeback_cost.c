// SPDX-License-Identifier: GPL-2.0
/*
 * What vm.tlb_batch_writeback=1 costs others while small pages of a file are written to disk.
 *
 * writer   a thread stores to the pages all the while. It may fault twice for each page that is
 *          written, and waits until 31 of them are clean: faults, and the longest store.
 * madvise  a thread drops pages of its own. It flushes all of the TLB instead of what it dropped
 *          if another flush of the process is pending: turns of it in a second, and on x86_64 how
 *          many of 1000 flushed all.
 * migrc    a thread moves pages that are only read to the other node and back: calls in a second,
 *          and the share of the moved pages whose flush was deferred.
 *
 * Each pair is a measurement with 0 and one with 1, by turns. The line of a case has the medians,
 * and what they are divided by each other.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <sys/resource.h>

#include "tlb_rs.h"

#define SWITCH		"/proc/sys/vm/tlb_batch_writeback"
#define MIGRC_ENABLE	"/proc/sys/vm/migrc_enable"
#define PAGES		496	/* 16 times what is cleaned together */
#define ROUNDS		16
#define OWN_PAGES	8
#define MOVED_PAGES	64
#define MAX_PAIRS	64
#define SEED		47

static const char *dir = "/mnt";
static size_t psize;
static int pairs = 9;
static char *base;
static int fd;

static struct {
	pthread_t thread;
	bool stop;
	__u64 turns;
	long faults;
	__u64 longest_ns;
} other;

static bool stopped(void)
{
	return __atomic_load_n(&other.stop, __ATOMIC_ACQUIRE);
}

static void *stores(void *arg)
{
	struct rusage usage;
	size_t i;

	(void)arg;
	tlb_rs_pin_cpu(1);
	getrusage(RUSAGE_THREAD, &usage);
	other.faults = -usage.ru_minflt;
	while (!stopped()) {
		for (i = 0; i < PAGES; i++) {
			__u64 *word = (__u64 *)(base + i * psize);
			__u64 start = tlb_rs_now_ns(), ns;

			__atomic_store_n(word, *word + 1, __ATOMIC_RELAXED);
			ns = tlb_rs_now_ns() - start;
			if (ns > other.longest_ns)
				other.longest_ns = ns;
		}
		__atomic_store_n(&other.turns, other.turns + 1, __ATOMIC_RELEASE);
	}
	getrusage(RUSAGE_THREAD, &usage);
	other.faults += usage.ru_minflt;
	return NULL;
}

static void *drops(void *arg)
{
	char *own = tlb_rs_mmap(OWN_PAGES * psize, psize);
	size_t i;

	(void)arg;
	tlb_rs_pin_cpu(1);
	while (!stopped()) {
		for (i = 0; i < OWN_PAGES; i++)
			own[i * psize] = 1;
		madvise(own, OWN_PAGES * psize, MADV_DONTNEED);
		__atomic_store_n(&other.turns, other.turns + 1, __ATOMIC_RELEASE);
	}
	munmap(own, OWN_PAGES * psize);
	return NULL;
}

static void *moves(void *arg)
{
	char *own = tlb_rs_mmap(MOVED_PAGES * psize, psize);
	int nodes[MOVED_PAGES], status[MOVED_PAGES];
	void *addrs[MOVED_PAGES];
	int i, to = 0;

	(void)arg;
	tlb_rs_pin_cpu(1);
	madvise(own, MOVED_PAGES * psize, MADV_NOHUGEPAGE);
	tlb_rs_fill(own, MOVED_PAGES * psize, SEED);
	mprotect(own, MOVED_PAGES * psize, PROT_READ);
	for (i = 0; i < MOVED_PAGES; i++)
		addrs[i] = own + i * psize;
	while (!stopped()) {
		to = !to;
		for (i = 0; i < MOVED_PAGES; i++)
			nodes[i] = to;
		if (tlb_rs_move_pages(0, MOVED_PAGES, addrs, nodes, status) < 0)
			break;
		__atomic_store_n(&other.turns, other.turns + 1, __ATOMIC_RELEASE);
	}
	munmap(own, MOVED_PAGES * psize);
	return NULL;
}

struct figures {
	double of[2];
};

/* Of @work beside @ROUNDS times msync(). */
static bool measured(void *(*work)(void *arg), struct figures *f)
{
	long long written = tlb_rs_vmstat_read("nr_written");
	long long all = tlb_rs_vmstat_read("nr_tlb_local_flush_all");
	long long deferred = tlb_rs_vmstat_read("migrc_deferred");
	long long moved = tlb_rs_vmstat_read("pgmigrate_success");
	__u64 start, ns, turns;
	bool ok = true;
	int i;

	memset(&other, 0, sizeof(other));
	if (pthread_create(&other.thread, NULL, work, NULL))
		ksft_exit_fail_msg("cannot start a thread\n");
	while (!__atomic_load_n(&other.turns, __ATOMIC_ACQUIRE))
		tlb_rs_sleep_us(100);
	turns = __atomic_load_n(&other.turns, __ATOMIC_ACQUIRE);
	start = tlb_rs_now_ns();
	for (i = 0; ok && i < ROUNDS; i++) {
		if (work != stores)
			tlb_rs_fill(base, PAGES * psize, SEED + i);
		ok = !msync(base, PAGES * psize, MS_SYNC);
	}
	ns = tlb_rs_now_ns() - start;
	turns = __atomic_load_n(&other.turns, __ATOMIC_ACQUIRE) - turns;
	__atomic_store_n(&other.stop, true, __ATOMIC_RELEASE);
	pthread_join(other.thread, NULL);
	written = tlb_rs_vmstat_read("nr_written") - written;
	all = tlb_rs_vmstat_read("nr_tlb_local_flush_all") - all;
	deferred = tlb_rs_vmstat_read("migrc_deferred") - deferred;
	moved = tlb_rs_vmstat_read("pgmigrate_success") - moved;
	if (!turns || !written || (work == moves && !moved))
		return false;
	if (work == stores)
		*f = (struct figures){ { other.faults / (double)written, other.longest_ns } };
	else if (work == moves)
		*f = (struct figures){ { turns * 1e9 / ns, deferred / (double)moved } };
	else
		*f = (struct figures){ { turns * 1e9 / ns, all * 1000.0 / turns } };
	return ok;
}

static int larger(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *of, int nr)
{
	qsort(of, nr, sizeof(*of), larger);
	return nr % 2 ? of[nr / 2] : (of[nr / 2 - 1] + of[nr / 2]) / 2;
}

static bool compare(const char *name, void *(*work)(void *arg), const char * const what[2])
{
	static double figures[2][2][MAX_PAIRS];
	struct figures f;
	int i, on, k;

	for (i = 0; i < 2 * pairs; i++) {
		/* 0 1 1 0, so that what changes with time is in both. */
		on = (i + i / 2) % 2;
		if (!tlb_rs_setting(SWITCH, on ? "1" : "0") || !measured(work, &f))
			return false;
		for (k = 0; k < 2; k++)
			figures[k][on][i / 2] = f.of[k];
	}
	for (k = 0; k < 2; k++) {
		double off = median(figures[k][0], pairs), with = median(figures[k][1], pairs);

		printf("{\"cost\":\"%s %s\",\"off\":%.3f,\"on\":%.3f,\"ratio\":%.3f}\n",
		       name, what[k], off, with, off ? with / off : 0);
	}
	return true;
}

int main(int argc, char **argv)
{
	static const char * const of_writer[] = { "faults a page", "longest store ns" };
	static const char * const of_madvise[] = { "turns a second", "full flushes of 1000" };
	static const char * const of_migrc[] = { "calls a second", "share deferred" };
	static const struct option options[] = {
		{ "pairs", required_argument, NULL, 'p' },
		{ "dir", required_argument, NULL, 'd' },
		{ }
	};
	char path[256];
	int opt;

	ksft_print_header();
	while ((opt = getopt_long(argc, argv, "p:d:", options, NULL)) != -1) {
		if (opt == 'p') {
			pairs = tlb_rs_number(optarg, 1, MAX_PAIRS);
		} else if (opt == 'd') {
			dir = optarg;
		} else {
			printf("usage: %s [--pairs P] [--dir DIR]\n", argv[0]);
			return KSFT_FAIL;
		}
	}
	psize = getpagesize();
	if (access(SWITCH, W_OK) || access(dir, W_OK) || tlb_rs_nr_cpus() < 2)
		ksft_exit_skip("needs vm.tlb_batch_writeback, two CPUs, a directory on a disk\n");
	snprintf(path, sizeof(path), "%s/tlb_batch_writeback_cost", dir);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	unlink(path);
	/* Stores, and not write(), so that the folios are small. */
	if (ftruncate(fd, PAGES * psize))
		ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	base = tlb_rs_mmap(PAGES * psize, SZ_2M);
	if (mmap(base, PAGES * psize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
		 0) != base)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	madvise(base, PAGES * psize, MADV_NOHUGEPAGE);
	tlb_rs_fill(base, PAGES * psize, SEED);
	tlb_rs_pin_cpu(0);
	tlb_rs_quiet();

	ksft_set_plan(3);
	ksft_test_result(compare("writer", stores, of_writer), "writer\n");
	ksft_test_result(compare("madvise", drops, of_madvise), "madvise\n");
	if (!tlb_rs_setting(MIGRC_ENABLE, "1") || tlb_rs_memory_nodes() != 3)
		ksft_test_result_skip("migrc: no vm.migrc_enable, or one node\n");
	else
		ksft_test_result(compare("migrc", moves, of_migrc), "migrc\n");
	ksft_finished();
}
