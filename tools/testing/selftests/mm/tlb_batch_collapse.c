// SPDX-License-Identifier: GPL-2.0
/*
 * A page of a file that MADV_COLLAPSE gives up, in rounds:
 *
 *   M (CPU 0)                     W (CPU 2)                       R (CPU 1)
 *   MADV_COLLAPSE unmaps the      sees that it has gone, takes a  reads P all the time,
 *   first page                    reference to P, by splice()     has it in its TLB
 *   unmaps P, the last: its
 *   references are too many
 *   (window)                      drops it, POSIX_FADV_DONTNEED
 *                                 of P, writes to new pages
 *   flushes                                                       must not see that
 *
 * The flush has to come before M unlocks P: P is mapped nowhere then, and whoever
 * releases it has nothing to flush. The window is flush_delay_us. In order that W is in
 * time, M waits for delay_us after each of the two, which needs rule "open" removed.
 *
 * On x86_64 nobody is told before the flush. On arm64 the TLBI is issued when P is
 * unmapped, but nobody waits for it. QEMU has it done at once, so there hook "flush" of
 * the TLB batch is removed, which stands for a TLBI that takes its time.
 */
#define _GNU_SOURCE
#include "tlb_rs_harness.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE	25
#endif

#ifdef __aarch64__
#define HOOKS		"open,flush"
#else
#define HOOKS		"open"
#endif
#define NR_OTHERS	256
#define FROM_FILE	1
#define FROM_OTHERS	2

#define LOAD(x)		__atomic_load_n(&(x), __ATOMIC_ACQUIRE)
#define STORE(x, v)	__atomic_store_n(&(x), v, __ATOMIC_RELEASE)

/* What the threads exchange is in pages of their own. */
static struct shared {
	__u64 go;		/* the round in which M collapses */
	bool stop;
	char pad0[4096 - sizeof(__u64) - sizeof(bool)];
	__u64 done;		/* the last round that M has done */
	int error;
	char pad1[4096 - sizeof(__u64) - sizeof(int)];
	__u64 reads;
	__u64 stale;
	char pad2[4096 - 2 * sizeof(__u64)];
} *sh;

static size_t psize;
static char *base, *others;
static const __u64 *page_p;
static int file;
static long delay_us;

static void *reader(void *arg)
{
	(void)arg;
	tlb_rs_pin_cpu(1);
	while (!LOAD(sh->stop)) {
		if (__atomic_load_n(page_p, __ATOMIC_RELAXED) != FROM_FILE)
			__atomic_fetch_add(&sh->stale, 1, __ATOMIC_RELAXED);
		__atomic_fetch_add(&sh->reads, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void *collapser(void *arg)
{
	__u64 round = 0;

	(void)arg;
	tlb_rs_pin_cpu(0);
	while (!LOAD(sh->stop)) {
		if (LOAD(sh->go) == round) {
			tlb_rs_sleep_us(100);
			continue;
		}
		round = LOAD(sh->go);
		sh->error = madvise(base, SZ_2M, MADV_COLLAPSE) ? errno : 0;
		STORE(sh->done, round);
	}
	return NULL;
}

/* False if there cannot be one. */
static bool open_file(const char *dir)
{
	__u64 *buf = malloc(SZ_2M);
	char path[256];
	size_t i;

	snprintf(path, sizeof(path), "%s/tlb_batch_collapse.XXXXXX", dir);
	file = mkstemp(path);
	if (file < 0)
		return false;
	unlink(path);
	for (i = 0; buf && i < SZ_2M / sizeof(*buf); i++)
		buf[i] = FROM_FILE;
	if (!buf || write(file, buf, SZ_2M) != SZ_2M || fsync(file))
		ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	free(buf);
	/* Small folios, and none beside what is asked for. */
	posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
	posix_fadvise(file, 0, 0, POSIX_FADV_RANDOM);
	return true;
}

static bool cached(const char *addr)
{
	unsigned char vec = 0;

	return !mincore((void *)addr, psize, &vec) && vec & 1;
}

/* All pages in the page cache, and clean; only two are mapped. */
static void prepare(void)
{
	size_t i;
	char c;

	if (madvise(base, SZ_2M, MADV_DONTNEED) ||
	    madvise(others, NR_OTHERS * psize, MADV_DONTNEED))
		ksft_exit_fail_msg("MADV_DONTNEED: %s\n", strerror(errno));
	posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
	for (i = 0; i < THP_PAGES; i++) {
		if (pread(file, &c, 1, i * psize) != 1)
			ksft_exit_fail_msg("pread: %s\n", strerror(errno));
	}
	__atomic_load_n(base, __ATOMIC_RELAXED);
	__atomic_load_n(page_p, __ATOMIC_RELAXED);
	tlb_rs_drain_pages();
}

/* False if the window was missed. */
static bool one_round(__u64 round, int pipe_rd, int pipe_wr)
{
	loff_t off = (THP_PAGES - 1) * psize;
	char *buf = others;
	__u64 reads;
	bool in_time;
	size_t i;

	prepare();
	reads = LOAD(sh->reads);
	while (LOAD(sh->reads) < reads + 100)
		;
	if (!tlb_rs_delay(TLB_BATCH_DELAY, delay_us) ||
	    !tlb_rs_delay(TLB_BATCH_FLUSH_DELAY, 8 * delay_us) || !tlb_rs_skip_hooks(HOOKS))
		ksft_exit_fail_msg("cannot write %s\n", TLB_BATCH_SKIP);
	STORE(sh->go, round);
	while (tlb_rs_pfn(base) && LOAD(sh->done) != round)
		;
	if (splice(file, &off, pipe_wr, NULL, psize, SPLICE_F_NONBLOCK) != (ssize_t)psize)
		ksft_exit_fail_msg("splice: %s\n", strerror(errno));
	while (tlb_rs_pfn(page_p) && LOAD(sh->done) != round)
		;
	/* Until M has counted the references. */
	tlb_rs_sleep_us(3 * delay_us);
	if (read(pipe_rd, buf, psize) != (ssize_t)psize)
		ksft_exit_fail_msg("read: %s\n", strerror(errno));
	posix_fadvise(file, (THP_PAGES - 1) * psize, psize, POSIX_FADV_DONTNEED);
	for (i = 0; !cached((char *)page_p) && i < NR_OTHERS; i++)
		*(__u64 *)(others + i * psize) = FROM_OTHERS;
	reads = LOAD(sh->reads);
	in_time = LOAD(sh->done) != round;
	/* Where R waits for the lock of P it reads nothing. */
	for (i = 0; i < 100 && LOAD(sh->reads) < reads + 100; i++)
		tlb_rs_sleep_us(1000);
	while (LOAD(sh->done) != round)
		tlb_rs_sleep_us(1000);
	tlb_rs_delay_none();
	tlb_rs_skip_none();
	return in_time && sh->error;
}

FIXTURE(tlb_batch_collapse) {
	long rounds;
};

FIXTURE_SETUP(tlb_batch_collapse)
{
	const char *dir = tlb_rs_env("TLB_DIR");

	tlb_rs_undo();
	self->rounds = tlb_rs_env_number("TLB_ROUNDS", 8, 1, 1000000);
	delay_us = tlb_rs_env_number("TLB_DELAY", 50000, 1, 10000000);
	if (!tlb_rs_setting(DEBUGFS "fault_around_bytes", "4096"))
		SKIP(return, "no debugfs");
	tlb_rs_quiet();
	if (!open_file(dir))
		SKIP(return, "no file in %s: %s", dir, strerror(errno));
}

FIXTURE_TEARDOWN_PARENT(tlb_batch_collapse)
{
	tlb_rs_tear_down();
}

TEST_F_TIMEOUT(tlb_batch_collapse, given_up, TLB_RS_TIMEOUT_S)
{
	long in_time = 0, round;
	pthread_t id[2];
	int fds[2];

	base = tlb_rs_mmap(SZ_2M, SZ_2M);
	ASSERT_EQ(base, mmap(base, SZ_2M, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0));
	ASSERT_EQ(0, madvise(base, SZ_2M, MADV_RANDOM));
	ASSERT_EQ(0, pipe(fds));
	others = tlb_rs_mmap(NR_OTHERS * psize, SZ_2M);
	madvise(others, NR_OTHERS * psize, MADV_NOHUGEPAGE);
	/* P is of either node. */
	tlb_rs_bind_node(others, NR_OTHERS / 2 * psize, 0);
	tlb_rs_bind_node(others + NR_OTHERS / 2 * psize, NR_OTHERS / 2 * psize, 1);
	page_p = (__u64 *)(base + SZ_2M - psize);
	sh = (struct shared *)tlb_rs_mmap(sizeof(*sh), psize);
	sh->stop = false;
	tlb_rs_pin_cpu(2);
	ASSERT_EQ(0, pthread_create(&id[0], NULL, reader, NULL));
	ASSERT_EQ(0, pthread_create(&id[1], NULL, collapser, NULL));

	for (round = 1; round <= self->rounds; round++)
		in_time += one_round(round, fds[0], fds[1]);
	STORE(sh->stop, true);
	pthread_join(id[0], NULL);
	pthread_join(id[1], NULL);
	printf("{\"test\":\"collapse\",\"tlb_batch\":%s,\"rounds\":%ld,", tlb_batch_json(),
	       self->rounds);
	printf("\"in_time\":%ld,\"stale\":%llu}\n", in_time, sh->stale);
	EXPECT_LE((self->rounds + 3) / 4, in_time);
	EXPECT_EQ(0, sh->stale);
}

static const char *missing(void)
{
	int on = 0;

	psize = getpagesize();
	if (psize * THP_PAGES != SZ_2M || tlb_rs_nr_cpus() < 3)
		return "needs pages of 4 KiB and three CPUs";
	if (!tlb_batch_get(&on) || on <= 0 || access(TLB_BATCH_FLUSH_DELAY, R_OK))
		return "no fault injection: " TLB_BATCH_FLUSH_DELAY " is absent";
	return tlb_rs_env("TLB_DIR") ? NULL :
	       "needs TLB_DIR, on a disk whose filesystem has huge pages";
}

int main(int argc, char **argv)
{
	tlb_rs_skip_all(missing());
	return test_harness_run(argc, argv);
}
