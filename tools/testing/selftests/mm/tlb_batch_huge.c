// SPDX-License-Identifier: GPL-2.0
/*
 * THPs whose PMDs change while a thread stores to them.
 *
 * The PMDs change without a flush for each of them. Before the call returns, there is one for
 * all. A store after that must not go through an entry that a TLB has from before.
 *
 * free       MADV_FREE: what is stored after it is not discarded
 * protect    mprotect(PROT_READ): nothing is stored after it
 * tracked    UFFDIO_WRITEPROTECT: each THP that is stored to after it says so
 * scanned    the same with PAGEMAP_SCAN, which protects what it reports
 * softdirty  a write of 4 to clear_refs: the same
 * type       mprotect(PROT_MTE): the contents stay
 *
 * TLB_SKIP=HOOK removes a rule, and then each case has to fail. TLB_ROUNDS=N sets the rounds.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <linux/userfaultfd.h>

#include "tlb_rs_harness.h"

#ifndef UFFD_FEATURE_WP_ASYNC
#define UFFD_FEATURE_WP_ASYNC		0x8000ULL
#endif
#ifndef UFFD_FEATURE_WP_UNPOPULATED
#define UFFD_FEATURE_WP_UNPOPULATED	0x2000ULL
#endif
/* As <linux/fs.h> has them, where it is not older. */
struct scan_region {
	__u64 start, end, categories;
};

struct scan_arg {
	__u64 size, flags, start, end, walk_end, vec, vec_len, max_pages;
	__u64 category_inverted, category_mask, category_anyof_mask, return_mask;
};

#define SCAN_IOCTL		_IOWR('f', 16, struct scan_arg)
#define SCAN_WP_MATCHING	1ULL
#define SCAN_WRITTEN		2ULL

#ifndef PROT_MTE
#define PROT_MTE			0x20
#endif

#define THPS		8
#define LEN		(THPS * SZ_2M)

static const char *skip_reason;

static int skipped(const char *why)
{
	skip_reason = why;
	return KSFT_SKIP;
}

/* A thread that adds 1 to a counter in each THP, again and again, and to a copy. */
static struct writer {
	pthread_t thread;
	char *base;
	__u64 copy[THPS];
	__u64 passes, paused, faulted;
	bool pause, stop;
} writer;

static sigjmp_buf writer_env;

static void on_fault(int sig)
{
	(void)sig;
	siglongjmp(writer_env, 1);
}

static void *writer_thread(void *arg)
{
	struct writer *w = arg;
	size_t i;

	tlb_rs_pin_cpu(1);
	while (!__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE)) {
		if (__atomic_load_n(&w->pause, __ATOMIC_ACQUIRE)) {
			__atomic_store_n(&w->paused, 1, __ATOMIC_RELEASE);
			sched_yield();
			continue;
		}
		__atomic_store_n(&w->paused, 0, __ATOMIC_RELEASE);
		if (sigsetjmp(writer_env, 1)) {
			__atomic_store_n(&w->faulted, 1, __ATOMIC_RELEASE);
			__atomic_store_n(&w->pause, true, __ATOMIC_RELEASE);
			continue;
		}
		for (i = 0; i < THPS; i++) {
			__u64 *p = (__u64 *)(w->base + i * SZ_2M);

			__atomic_store_n(p, w->copy[i] + 1, __ATOMIC_RELAXED);
			w->copy[i]++;
		}
		__atomic_store_n(&w->passes, w->passes + 1, __ATOMIC_RELEASE);
	}
	return NULL;
}

/* Each THP is stored to once more. */
static void writer_passes(void)
{
	tlb_rs_reaches(&writer.passes, __atomic_load_n(&writer.passes, __ATOMIC_ACQUIRE) + 2,
		       "the writer");
}

/* The same, and then none. */
static void writer_pause(void)
{
	writer_passes();
	__atomic_store_n(&writer.pause, true, __ATOMIC_RELEASE);
	tlb_rs_reaches(&writer.paused, 1, "the writer");
}

/* Whether the next store to each THP faults. */
static bool writer_faults(void)
{
	__u64 passes = __atomic_load_n(&writer.passes, __ATOMIC_ACQUIRE);
	__u64 end = tlb_rs_now_ns() + TLB_RS_PATIENCE_NS;

	while (!__atomic_load_n(&writer.faulted, __ATOMIC_ACQUIRE)) {
		if (__atomic_load_n(&writer.passes, __ATOMIC_ACQUIRE) > passes + 2 ||
		    tlb_rs_now_ns() > end)
			return false;
		tlb_rs_sleep_us(1000);
	}
	tlb_rs_reaches(&writer.paused, 1, "the writer");
	return true;
}

static void writer_resume(void)
{
	__atomic_store_n(&writer.pause, false, __ATOMIC_RELEASE);
}

/* Memory of @LEN bytes in THPs, or NULL. */
static char *make_thps(void)
{
	char *base = tlb_rs_mmap(LEN, SZ_2M);
	size_t off;

	madvise(base, LEN, MADV_HUGEPAGE);
	for (off = 0; off < LEN; off += SZ_2M)
		*(__u64 *)(base + off) = 0;
	if (tlb_rs_smaps_kb(base, "AnonHugePages") == LEN / 1024)
		return base;
	munmap(base, LEN);
	return NULL;
}

static void writer_start(char *base)
{
	struct sigaction act = { .sa_handler = on_fault };

	sigaction(SIGSEGV, &act, NULL);
	writer = (struct writer){ .base = base };
	if (pthread_create(&writer.thread, NULL, writer_thread, &writer))
		ksft_exit_fail_msg("cannot start a thread\n");
}

static void writer_end(void)
{
	__atomic_store_n(&writer.stop, true, __ATOMIC_RELEASE);
	pthread_join(writer.thread, NULL);
}

static bool counters_are_right(void)
{
	size_t i, bad = 0;

	for (i = 0; i < THPS; i++)
		bad += *(__u64 *)(writer.base + i * SZ_2M) != writer.copy[i];
	if (bad)
		ksft_print_msg("%zu of %d THPs lack stores\n", bad, THPS);
	return !bad;
}

/* Reclaim discards what is lazily freed and not dirty. */
static bool round_free(char *base)
{
	bool ok;

	/* The next round may find some that were taken apart. */
	writer_passes();
	ok = !madvise(base, LEN, MADV_FREE);
	writer_pause();
	tlb_rs_drain_pages();
	madvise(base, LEN, MADV_PAGEOUT);
	return ok && counters_are_right();
}

static bool round_protect(char *base)
{
	__u64 seen[THPS];
	size_t i, moved = 0;
	bool ok;

	writer_passes();
	if (mprotect(base, LEN, PROT_READ))
		ksft_exit_fail_msg("mprotect: %s\n", strerror(errno));
	for (i = 0; i < THPS; i++)
		seen[i] = __atomic_load_n((__u64 *)(base + i * SZ_2M), __ATOMIC_RELAXED);
	ok = writer_faults();
	for (i = 0; i < THPS; i++)
		moved += *(__u64 *)(base + i * SZ_2M) != seen[i];
	if (moved)
		ksft_print_msg("%zu read-only THPs have changed\n", moved);
	if (mprotect(base, LEN, PROT_READ | PROT_WRITE))
		ksft_exit_fail_msg("mprotect: %s\n", strerror(errno));
	__atomic_store_n(&writer.faulted, 0, __ATOMIC_RELEASE);
	return ok && !moved && counters_are_right();
}

static int uffd = -1;

static bool protect_by_uffd(char *base)
{
	struct uffdio_writeprotect wp = {
		.range = { .start = (unsigned long)base, .len = LEN },
		.mode = UFFDIO_WRITEPROTECT_MODE_WP,
	};

	return !ioctl(uffd, UFFDIO_WRITEPROTECT, &wp);
}

static bool protect_by_scan(char *base)
{
	static int pagemap = -1;
	struct scan_region regions[THPS];
	struct scan_arg arg = {
		.size = sizeof(arg),
		.flags = SCAN_WP_MATCHING,
		.start = (unsigned long)base,
		.end = (unsigned long)base + LEN,
		.vec = (unsigned long)regions,
		.vec_len = THPS,
		.category_mask = SCAN_WRITTEN,
		.return_mask = SCAN_WRITTEN,
	};

	if (pagemap < 0)
		pagemap = tlb_rs_open("/proc/self/pagemap", O_RDONLY);
	return ioctl(pagemap, SCAN_IOCTL, &arg) >= 0;
}

static bool protect_by_soft_dirty(char *base)
{
	(void)base;
	return !tlb_rs_write_file("/proc/self/clear_refs", "4");
}

/* Whether all THPs say that they are written to, by a bit that is set or not. */
static bool round_tracked(char *base, bool (*protect)(char *base), __u64 bit, bool written)
{
	size_t i, missed = 0;

	writer_passes();
	if (!protect(base))
		return false;
	writer_pause();
	for (i = 0; i < THPS; i++)
		missed += !(tlb_rs_pagemap(base + i * SZ_2M) & bit) == written;
	if (missed)
		ksft_print_msg("%zu of %d THPs do not say that they are written to\n", missed,
			       THPS);
	return !missed && counters_are_right();
}

static bool round_uffd(char *base)
{
	return round_tracked(base, protect_by_uffd, PM_UFFD, false);
}

static bool round_scan(char *base)
{
	return round_tracked(base, protect_by_scan, PM_UFFD, false);
}

static bool round_soft_dirty(char *base)
{
	return round_tracked(base, protect_by_soft_dirty, PM_SOFT_DIRTY, true);
}

static bool round_type(char *base)
{
	writer_passes();
	if (mprotect(base, LEN, PROT_READ | PROT_WRITE | PROT_MTE))
		return false;
	writer_pause();
	return counters_are_right();
}

/* @fresh: each round has new THPs. */
static int rounds_of(bool (*round)(char *base), bool (*prepare)(char *base), bool fresh)
{
	long i, rounds = tlb_rs_env_number("TLB_ROUNDS", 8, 1, 1000000);
	char *base = NULL;
	bool ok = true;

	for (i = 0; ok && i < rounds; i++) {
		if (!base) {
			base = make_thps();
			if (!base)
				return skipped("no THPs");
			if (prepare && !prepare(base))
				return skipped("this kernel cannot do that");
			writer_start(base);
		}
		ok = round(base);
		writer_resume();
		if (fresh || !ok || i == rounds - 1) {
			writer_end();
			munmap(base, LEN);
			base = NULL;
		}
	}
	return ok ? KSFT_PASS : KSFT_FAIL;
}

static bool prepare_uffd(char *base)
{
	struct uffdio_api api = {
		.api = UFFD_API,
		.features = UFFD_FEATURE_WP_ASYNC | UFFD_FEATURE_WP_UNPOPULATED,
	};
	struct uffdio_register reg = {
		.range = { .start = (unsigned long)base, .len = LEN },
		.mode = UFFDIO_REGISTER_MODE_WP,
	};

	uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
	return uffd >= 0 && !ioctl(uffd, UFFDIO_API, &api) && !ioctl(uffd, UFFDIO_REGISTER, &reg);
}

static bool prepare_soft_dirty(char *base)
{
	return tlb_rs_pagemap(base) & PM_SOFT_DIRTY;
}

static bool prepare_type(char *base)
{
	char *other = tlb_rs_mmap(SZ_2M, SZ_2M);
	bool ok = false;

	(void)base;
#ifdef __aarch64__
	ok = !mprotect(other, SZ_2M, PROT_READ | PROT_WRITE | PROT_MTE);
#endif
	munmap(other, SZ_2M);
	return ok;
}

FIXTURE(tlb_batch_huge) {
	bool works;	/* with its rule */
};

FIXTURE_SETUP(tlb_batch_huge)
{
	const char *skip = tlb_rs_env("TLB_SKIP");

	tlb_rs_undo();
	tlb_rs_pin_cpu(0);
	tlb_rs_quiet();
	/* A THP that is swapped out comes back in pieces. */
	tlb_rs_no_zswap();
	self->works = !skip;
	if (skip && !tlb_rs_skip_hooks(skip))
		SKIP(return, "'%s' cannot be removed on this kernel", skip);
}

FIXTURE_TEARDOWN_PARENT(tlb_batch_huge)
{
	tlb_rs_tear_down();
}

/* With a rule removed, a case has to fail. */
static void judge(struct __test_metadata *_metadata, bool works, int ret)
{
	if (ret == KSFT_SKIP)
		SKIP(return, "%s", skip_reason);
	EXPECT_EQ(works, ret == KSFT_PASS);
}

TEST_F_TIMEOUT(tlb_batch_huge, free, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, rounds_of(round_free, NULL, true));
}

TEST_F_TIMEOUT(tlb_batch_huge, protect, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, rounds_of(round_protect, NULL, false));
}

TEST_F_TIMEOUT(tlb_batch_huge, tracked, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, rounds_of(round_uffd, prepare_uffd, false));
}

TEST_F_TIMEOUT(tlb_batch_huge, scanned, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, rounds_of(round_scan, prepare_uffd, false));
}

TEST_F_TIMEOUT(tlb_batch_huge, softdirty, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, rounds_of(round_soft_dirty, prepare_soft_dirty, false));
}

TEST_F_TIMEOUT(tlb_batch_huge, type, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, rounds_of(round_type, prepare_type, true));
}

int main(int argc, char **argv)
{
	tlb_rs_skip_all(getpagesize() != 4096 ? "needs pages of 4 KiB" :
			tlb_rs_nr_cpus() < 2 ? "needs two CPUs" :
			!tlb_rs_thp_available() ? "no transparent huge pages" : NULL);
	return test_harness_run(argc, argv);
}
