// SPDX-License-Identifier: GPL-2.0
/*
 * Small pages that are migrated to a device that has memory of its own, while a thread stores to
 * them. The device is the kernel's model of one (CONFIG_TEST_HMM): an access by a CPU brings a
 * page back.
 *
 * Their PTEs are cleared without a flush for each. One flush follows before the page table lock
 * is dropped, one more for all that other processes map. No CPU may use the old pages then.
 *
 * exclusive  a thread has the pages in its TLB, and stores to them after the migration
 * running    it stores to them all the while
 * split      half of the pages belong to a large folio, which is split on the way
 * thp        a THP that is mapped by a PMD, of which one half is migrated, then the other
 * holes      pages that were never written to, zero pages, and pages that are swapped out
 * ranges     parts of two page tables, and no page beside them
 * pinned     some of the pages are pinned, and stay
 * shared     a child has the pages in its TLB, too, and reads them after the migration
 *
 * TLB_SKIP=HOOK removes a rule, and then each case has to fail. TLB_ROUNDS=N sets the rounds.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "tlb_batch_device.h"
#include "tlb_rs_harness.h"

#define PAGES		512UL
#define PSIZE		4096UL
#define LEN		(PAGES * PSIZE)
#define SEED		41

static int dev = -1;
static char content[2 * LEN];	/* what the device reads */
static const char *skip_reason;

static int skipped(const char *why)
{
	skip_reason = why;
	return KSFT_SKIP;
}

/* A thread that adds 1 to a counter in each page, again and again, and to a copy. */
static struct writer {
	pthread_t thread;
	char *base;
	__u64 copy[PAGES];
	__u64 passes, paused;
	bool pause, stop;
} writer;

static void *writer_thread(void *arg)
{
	struct writer *w = arg;
	size_t i;

	tlb_rs_pin_cpu(1);
	while (!__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE)) {
		/* In user mode: a system call might cost it its TLB. */
		if (__atomic_load_n(&w->pause, __ATOMIC_ACQUIRE)) {
			__atomic_store_n(&w->paused, 1, __ATOMIC_RELEASE);
			continue;
		}
		__atomic_store_n(&w->paused, 0, __ATOMIC_RELEASE);
		for (i = 0; i < PAGES; i++) {
			w->copy[i]++;
			__atomic_store_n((__u64 *)(w->base + i * PSIZE), w->copy[i],
					 __ATOMIC_RELAXED);
		}
		__atomic_store_n(&w->passes, w->passes + 1, __ATOMIC_RELEASE);
	}
	return NULL;
}

/* Each page is stored to once more. */
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

static void writer_resume(void)
{
	__atomic_store_n(&writer.paused, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&writer.pause, false, __ATOMIC_RELEASE);
}

static void writer_start(char *base)
{
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

	for (i = 0; i < PAGES; i++)
		bad += *(__u64 *)(writer.base + i * PSIZE) != writer.copy[i];
	if (bad)
		ksft_print_msg("%zu of %lu pages lack stores\n", bad, PAGES);
	return !bad;
}

/*
 * Memory that gets the pages that were freed last. If a rule is removed, nobody else then suffers
 * from stores to them.
 */
static char *catch_freed(void)
{
	char *base = tlb_rs_mmap(4 * LEN, SZ_2M);

	madvise(base, 4 * LEN, MADV_NOHUGEPAGE);
	tlb_rs_fill(base, 4 * LEN, SEED + 1);
	return base;
}

static bool caught_is_intact(char *base)
{
	size_t bad = tlb_rs_check(base, 4 * LEN, SEED + 1);

	if (bad)
		ksft_print_msg("%zu words were stored to pages that belong to others\n", bad);
	munmap(base, 4 * LEN);
	return !bad;
}

/* @least: so many pages have to be in the device's memory then. */
static void to_device(const char *base, size_t pages, size_t least)
{
	size_t there;

	tlb_rs_drain_lru();
	if (!device_migrate(dev, base, pages, content))
		ksft_exit_fail_msg("the device takes no pages: %s\n", strerror(errno));
	there = device_has(dev, base, pages, NULL);
	if (there < least)
		ksft_exit_fail_msg("%zu of %zu pages are in the device's memory, %zu should be\n",
				   there, pages, least);
}

static bool round_exclusive(char *base)
{
	char *caught;
	bool ok;

	writer_pause();
	to_device(base, PAGES, PAGES);
	caught = catch_freed();
	writer_resume();
	writer_pause();
	ok = counters_are_right();
	return caught_is_intact(caught) && ok;
}

static bool round_running(char *base)
{
	unsigned char where[PAGES] = { };
	size_t i, j, moved = 0;

	for (i = 0; i < 8; i++) {
		writer_passes();
		if (!device_migrate(dev, base, PAGES, content))
			return false;
		/* All at once: the writer takes them back one after the other. */
		device_request(dev, DEVICE_SNAPSHOT, base, PAGES, where);
		for (j = 0; j < PAGES; j++)
			moved += (where[j] & ~3) == DEVICE_LOCAL;
	}
	writer_pause();
	if (!moved)
		ksft_exit_fail_msg("no page came to the device\n");
	return counters_are_right();
}

/* The half of a page table at @to is of a THP whose other half is elsewhere. */
static bool map_half(char *to)
{
	char *thp = tlb_rs_mmap(SZ_2M, SZ_2M);
	bool ok;

	madvise(thp, SZ_2M, MADV_HUGEPAGE);
	*thp = 1;
	ok = tlb_rs_smaps_kb(thp, "AnonHugePages") == SZ_2M / 1024;
	memset(thp, 0, SZ_2M);
	return mremap(thp, LEN / 2, LEN / 2, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to && ok;
}

static bool round_split(char *base)
{
	writer_pause();
	if (!tlb_rs_is_large(base + LEN / 2))
		ksft_exit_fail_msg("no large folio\n");
	/* It may be in use elsewhere, and stay: the small pages before it are migrated. */
	to_device(base, PAGES, PAGES / 2);
	writer_resume();
	writer_pause();
	return counters_are_right();
}

static bool round_thp(char *base)
{
	bool ok;

	writer_pause();
	to_device(base + LEN / 2, PAGES / 2, PAGES / 2);
	ok = !device_has(dev, base, PAGES / 2, NULL);
	writer_resume();
	writer_pause();
	ok &= counters_are_right();
	to_device(base, PAGES / 2, PAGES / 2);
	writer_resume();
	writer_pause();
	return counters_are_right() && ok;
}

static char *map_pages(size_t pages)
{
	char *base = tlb_rs_mmap(pages * PSIZE, SZ_2M);

	madvise(base, pages * PSIZE, MADV_NOHUGEPAGE);
	return base;
}

static char *map_with_half(void)
{
	char *base = map_pages(PAGES);

	return map_half(base + LEN / 2) ? base : NULL;
}

static char *map_small(void)
{
	return map_pages(PAGES);
}

static char *map_thp(void)
{
	char *base = tlb_rs_mmap(LEN, SZ_2M);

	madvise(base, LEN, MADV_HUGEPAGE);
	*base = 0;
	return tlb_rs_smaps_kb(base, "AnonHugePages") == LEN / 1024 ? base : NULL;
}

/* Each round has new pages. */
static int rounds_of(char *(*map)(void), bool (*round)(char *base))
{
	long i, rounds = tlb_rs_env_number("TLB_ROUNDS", 4, 1, 1000000);
	bool ok = true;
	char *base;

	for (i = 0; ok && i < rounds; i++) {
		base = map();
		if (!base)
			return skipped("no THP");
		writer_start(base);
		ok = round(base);
		writer_end();
		munmap(base, LEN);
	}
	return ok ? KSFT_PASS : KSFT_FAIL;
}

static int holes(void)
{
	const bool swap = tlb_rs_has_swap();
	unsigned char where[PAGES];
	char *base = map_pages(PAGES);
	static const char zero[PSIZE];
	size_t i, out = 0, bad = 0;
	char *p;

	for (i = 0; i < PAGES; i++) {
		p = base + i * PSIZE;
		if (i % 4 == 0 || i % 4 == 3)
			tlb_rs_fill(p, PSIZE, i);
		if (i % 4 == 2)
			__atomic_load_n(p, __ATOMIC_RELAXED);
	}
	tlb_rs_drain_pages();
	for (i = 3; swap && i < PAGES; i += 4) {
		p = base + i * PSIZE;
		madvise(p, PSIZE, MADV_PAGEOUT);
		out += !!(tlb_rs_pagemap(p) & PM_SWAP);
	}
	if (swap && out < PAGES / 8) {
		ksft_print_msg("only %zu pages were swapped out\n", out);
		return KSFT_FAIL;
	}
	to_device(base, PAGES, PAGES - out);
	device_has(dev, base, PAGES, where);
	for (i = 0; i < PAGES; i++) {
		p = base + i * PSIZE;
		/* Of those that are swapped out there are none, as before. */
		if (swap && i % 4 == 3 && !where[i] != !!(tlb_rs_pagemap(p) & PM_SWAP))
			bad++;
		bad += i % 4 == 0 || i % 4 == 3 ? tlb_rs_check(p, PSIZE, i) :
						  !!memcmp(p, zero, PSIZE);
	}
	if (bad)
		ksft_print_msg("%zu errors\n", bad);
	munmap(base, LEN);
	return bad ? KSFT_FAIL : KSFT_PASS;
}

static int ranges(void)
{
	/* Pages from the first one on, and how many: within a table, at its edges, over both. */
	static const struct {
		size_t first, nr;
	} parts[] = { { 3, 1 }, { 0, 7 }, { 500, 12 }, { 505, 14 }, { 512, 1 }, { 1023, 1 },
		      { 1, 1022 } };
	char *base = map_pages(2 * PAGES);
	unsigned char where[2 * PAGES];
	size_t i, n, bad = 0;

	for (n = 0; n < ARRAY_SIZE(parts); n++) {
		const size_t first = parts[n].first, nr = parts[n].nr;

		/* This brings back what was there. */
		tlb_rs_fill(base, 2 * LEN, n);
		to_device(base + first * PSIZE, nr, nr);
		device_has(dev, base, 2 * PAGES, where);
		for (i = 0; i < 2 * PAGES; i++)
			bad += where[i] != (i >= first && i < first + nr);
		bad += tlb_rs_check(base, 2 * LEN, n);
	}
	if (bad)
		ksft_print_msg("%zu errors\n", bad);
	munmap(base, 2 * LEN);
	return bad ? KSFT_FAIL : KSFT_PASS;
}

#define PINNED		64UL

static int gup_test = -1;

static bool round_pinned(char *base)
{
	struct pin_longterm_test pin = {
		.addr = (unsigned long)base + LEN / 2,
		.size = PINNED * PSIZE,
		.flags = PIN_LONGTERM_TEST_WRITE,
	};
	char *seen = tlb_rs_mmap(PINNED * PSIZE, SZ_2M);
	__u64 to = (unsigned long)seen;
	size_t i, bad = 0;
	bool ok;

	writer_passes();
	if (ioctl(gup_test, PIN_LONGTERM_TEST_START, &pin))
		return false;
	writer_pause();
	to_device(base, PAGES, PAGES - PINNED);
	ok = !device_has(dev, base + LEN / 2, PINNED, NULL);
	writer_resume();
	/* Who pinned them has to see what is stored to them. */
	writer_pause();
	ok = ok && !ioctl(gup_test, PIN_LONGTERM_TEST_READ, &to);
	for (i = 0; i < PINNED; i++)
		bad += *(__u64 *)(seen + i * PSIZE) != writer.copy[PAGES / 2 + i];
	if (bad)
		ksft_print_msg("%zu pinned pages lack stores\n", bad);
	ioctl(gup_test, PIN_LONGTERM_TEST_STOP);
	munmap(seen, PINNED * PSIZE);
	return counters_are_right() && ok && !bad;
}

/*
 * What a child that shares the pages has seen: passes, and words that were not there. On arm64 the
 * flush for the parent may empty its TLB. So while the pages are migrated, it reads one in HOT
 * again and again, and all others are migrated for sure.
 */
#define HOT		8

static struct seen {
	__u64 passes, bad, step;
} *seen;

static void child_reads(const char *base)
{
	size_t i, step;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	tlb_rs_pin_cpu(1);
	for (;;) {
		step = __atomic_load_n(&seen->step, __ATOMIC_ACQUIRE);
		for (i = 0; i < PAGES; i += step)
			seen->bad += __atomic_load_n((__u64 *)(base + i * PSIZE),
						     __ATOMIC_RELAXED) != tlb_rs_word(SEED, i);
		__atomic_store_n(&seen->passes, seen->passes + 1, __ATOMIC_RELEASE);
	}
}

/* The child has read all pages, from now on every @step-th of them only. */
static void child_passes(size_t step)
{
	__u64 passes = __atomic_load_n(&seen->passes, __ATOMIC_ACQUIRE);

	tlb_rs_reaches(&seen->passes, passes + 2, "the reader");
	__atomic_store_n(&seen->step, step, __ATOMIC_RELEASE);
	tlb_rs_reaches(&seen->passes, seen->passes + 2, "the reader");
}

static bool round_shared(void)
{
	char *base = map_pages(PAGES), *caught;
	size_t i, bad = 0;
	pid_t pid;
	bool ok;

	for (i = 0; i < PAGES; i++)
		*(__u64 *)(base + i * PSIZE) = tlb_rs_word(SEED, i);
	*seen = (struct seen){ .step = 1 };
	pid = fork();
	if (pid < 0)
		ksft_exit_fail_msg("fork: %s\n", strerror(errno));
	if (!pid)
		child_reads(base);
	child_passes(HOT);
	to_device(base, PAGES, PAGES - PAGES / HOT);
	caught = catch_freed();
	/* Each side has a copy of its own now. */
	for (i = 0; i < PAGES; i += 2)
		*(__u64 *)(base + i * PSIZE) = 0;
	child_passes(1);
	child_passes(1);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	for (i = 0; i < PAGES; i++)
		bad += *(__u64 *)(base + i * PSIZE) != (i % 2 ? tlb_rs_word(SEED, i) : 0);
	if (bad || seen->bad)
		ksft_print_msg("%zu words are wrong here, %llu in the child\n", bad, seen->bad);
	ok = caught_is_intact(caught) && !bad && !seen->bad;
	munmap(base, LEN);
	return ok;
}

static int shared(void)
{
	long i, rounds = tlb_rs_env_number("TLB_ROUNDS", 4, 1, 1000000);
	bool ok = true;
	char *base;

	seen = mmap(NULL, PSIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (seen == MAP_FAILED)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	for (i = 0; ok && i < rounds; i++)
		ok = round_shared();
	/* Without its rule, a task owes a flush still. The next migration pays. */
	tlb_rs_skip_none();
	base = map_pages(1);
	*base = 1;
	device_migrate(dev, base, 1, content);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

FIXTURE(tlb_batch_device) {
	bool works;	/* with its rule */
};

FIXTURE_SETUP(tlb_batch_device)
{
	const char *skip = tlb_rs_env("TLB_SKIP");

	tlb_rs_undo();
	tlb_rs_pin_cpu(0);
	tlb_rs_quiet();
	dev = device_open();
	ASSERT_GE(dev, 0);
	self->works = !skip;
	if (skip && !tlb_rs_skip_hooks(skip))
		SKIP(return, "'%s' cannot be removed on this kernel", skip);
}

FIXTURE_TEARDOWN_PARENT(tlb_batch_device)
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

TEST_F_TIMEOUT(tlb_batch_device, exclusive, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, rounds_of(map_small, round_exclusive));
}

TEST_F_TIMEOUT(tlb_batch_device, running, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, rounds_of(map_small, round_running));
}

TEST_F_TIMEOUT(tlb_batch_device, split, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, rounds_of(map_with_half, round_split));
}

TEST_F_TIMEOUT(tlb_batch_device, thp, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, rounds_of(map_thp, round_thp));
}

TEST_F_TIMEOUT(tlb_batch_device, holes, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, holes());
}

TEST_F_TIMEOUT(tlb_batch_device, ranges, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, ranges());
}

TEST_F_TIMEOUT(tlb_batch_device, pinned, TLB_RS_TIMEOUT_S)
{
	gup_test = open(DEBUGFS "gup_test", O_RDWR | O_CLOEXEC);
	if (gup_test < 0)
		SKIP(return, "no gup_test in debugfs to pin pages with");
	judge(_metadata, self->works, rounds_of(map_small, round_pinned));
}

TEST_F_TIMEOUT(tlb_batch_device, shared, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, shared());
}

int main(int argc, char **argv)
{
	int fd = device_open();

	tlb_rs_skip_all(getpagesize() != 4096 ? "needs pages of 4 KiB" :
			tlb_rs_nr_cpus() < 2 ? "needs two CPUs" :
			fd < 0 ? "no model of a device (CONFIG_TEST_HMM)" : NULL);
	close(fd);
	return test_harness_run(argc, argv);
}
