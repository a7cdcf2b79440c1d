// SPDX-License-Identifier: GPL-2.0
/*
 * Large folios whose flush was deferred, and that are mapped again: as what a TLB may hold
 * them, or after a flush.
 *
 * whole    256 folios of one block each move without a flush, and are mapped again in runs:
 *          until the drain no address space is flushed
 * thp      the same for THPs of 2 MiB that are mapped by PTEs
 * readers  the same over and over, while other CPUs read; under the oracle
 * stale    a CPU reads a word of a folio that has moved, and the word is written to: by a
 *          debugger, while mprotect() goes on, after mprotect() of a page, after a fork, after
 *          the folio was dropped while it moved. Or the old folio is used again, before or
 *          after a drain. See migrc_stale.c
 *
 * arm64, where a TLB may hold a block as one entry:
 *
 * off      vm.migrc_blocks=0: they are flushed, for "block"
 * cut      the area of a folio is cut in two before the folio is mapped again: it becomes
 *          pages, after a flush
 * folded   a folio was mapped page by page, and becomes a block, after a flush
 * unlike   of two mappings of one folio, one is a block and one is not: what the walk finds
 *          first is deferred, and a batch flushes the other
 *
 * pinned   a folio cannot move, because a device reads it: what was cleared becomes valid page
 *          by page, after a flush
 *
 * TLB_SKIP=HOOK removes a rule; then a case has to fail.
 */
#include <sys/ioctl.h>

#include "migrc_blocks.h"
#include "migrc_harness.h"

#define BLOCKS		"/proc/sys/vm/migrc_blocks"
#define NR_FOLIOS	256
#define MAX_PAGES	65536
#define AGE_MS		60000

#ifdef __aarch64__
#define HAS_BLOCKS	true
#else
#define HAS_BLOCKS	false
#endif

struct migrc_options asked;
size_t psize, pmd_size, folio_size, folio_pages;
static struct tlb_rs_readers readers;

void see(struct seen *s)
{
	migrc_read(&s->c);
	s->restored = tlb_rs_vmstat_read("tlb_batch_restored");
	s->block = migrc_stat("denied", "block");
	s->size = migrc_stat("hook", "size");
}

void see_since(const struct seen *before, struct seen *d)
{
	see(d);
	migrc_diff(&before->c, &d->c);
	d->restored -= before->restored;
	d->block -= before->block;
	d->size -= before->size;
}

static bool counted(const char *what, long long val, long long want)
{
	if (val != want)
		ksft_print_msg("%s: %s: %lld, not %lld\n", migrc_case, what, val, want);
	return val == want;
}

static bool choose_size(size_t size, const char *how)
{
	char path[128];

	snprintf(path, sizeof(path), THP_SYSFS "hugepages-%zukB/enabled", size / 1024);
	return tlb_rs_setting(path, how);
}

static bool content_is(const char *base, size_t len)
{
	size_t wrong = tlb_rs_check(base, len, SEED);

	if (wrong)
		ksft_print_msg("%s: %zu words are wrong\n", migrc_case, wrong);
	return !wrong;
}

/*
 * Folios on node 0, at aligned addresses, read-only. Behind them, zero pages, as far as @end. NULL:
 * not all are of that size.
 */
char *make_folios_and_more(size_t nr, size_t size, size_t end)
{
	size_t len = nr * size, i, whole = 0;
	char *base;

	if (!choose_size(size, "always"))
		return NULL;
	if (size != pmd_size)
		choose_size(pmd_size, "never");
	base = tlb_rs_mmap(end, pmd_size);
	madvise(base, end, MADV_HUGEPAGE);
	tlb_rs_bind_node(base, end, 0);
	tlb_rs_fill(base, len, SEED);
	for (i = 0; i < nr; i++)
		whole += tlb_rs_is_folio(base + i * size, size / psize);
	if (whole == nr && !mprotect(base, end, PROT_READ)) {
		for (i = len; i < end; i += psize)
			__atomic_load_n(base + i, __ATOMIC_RELAXED);
		return base;
	}
	ksft_print_msg("only %zu of %zu folios are of %zu bytes\n", whole, nr, size);
	munmap(base, end);
	return NULL;
}

char *make_folios(size_t nr, size_t size)
{
	return make_folios_and_more(nr, size, nr * size);
}

/* One address for each folio. */
bool move(char *base, size_t nr, size_t size, int node)
{
	struct migrc_set set;
	size_t i, moved;

	migrc_set_init(&set, base, nr);
	for (i = 0; i < nr; i++)
		set.addrs[i] = base + i * size;
	moved = migrc_move(&set, 0, node, MPOL_MF_MOVE_ALL);
	migrc_set_free(&set);
	return counted("folios moved", moved, nr);
}

/*
 * Nothing is flushed before the drain, and the drain flushes one address space. In a region,
 * for the meter.
 */
static bool moves_deferred(char *base, size_t nr, size_t size, int node)
{
	const long long pages = nr * size / psize;
	struct tlb_rs_counters c;
	struct seen before, d;
	bool ok;

	see(&before);
	tlb_rs_begin(&c);
	ok = move(base, nr, size, node);
	see_since(&before, &d);
	ok &= counted("deferred", d.c.val[MIGRC_DEFERRED], pages);
	ok &= counted("denied", d.c.val[MIGRC_DENIED], 0);
	ok &= counted("flushed", d.c.val[MIGRC_FLUSH], 0);
	ok &= counted("restored", d.restored, pages);
	ok &= counted("hook size", d.size, 0);
	if (!migrc_expire())
		ksft_exit_fail_msg("the ledger does not become empty\n");
	tlb_rs_end(&c);
	see_since(&before, &d);
	ok &= counted("flushed by the drain", d.c.val[MIGRC_FLUSH], 1);
	tlb_rs_json_region(migrc_case, "", &c);
	return ok && content_is(base, nr * size);
}

static int deferred(size_t nr, size_t size, int rounds, bool touch)
{
	char *base = make_folios(nr, size);
	bool ok = true;
	int round;

	if (!base)
		return migrc_skipped("no folios of this size");
	tlb_rs_readers_start(&readers, touch ? 3 : 1, touch, base, nr * size);
	for (round = 0; ok && round < rounds; round++)
		ok = moves_deferred(base, nr, size, !(round & 1));
	tlb_rs_readers_end(&readers);
	munmap(base, nr * size);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

static int run_whole(void)
{
	return deferred(NR_FOLIOS, folio_size, asked.rounds ?: 2, false);
}

static int run_thp(void)
{
	const size_t nr = 4;
	char *base = make_folios(nr, pmd_size);
	size_t i;
	bool ok;

	if (!base)
		return migrc_skipped("no THPs");
	/* One page of a block gets another permission, and its own one again. */
	for (i = 0; i < nr; i++) {
		if (mprotect(base + i * pmd_size, psize, PROT_READ | PROT_WRITE) ||
		    mprotect(base + i * pmd_size, psize, PROT_READ))
			ksft_exit_fail_msg("mprotect: %s\n", strerror(errno));
	}
	tlb_rs_readers_start(&readers, 1, false, base, nr * pmd_size);
	/* Where there are blocks, that one was none, and the others were. */
	ok = HAS_BLOCKS ? move(base, nr, pmd_size, 1) && migrc_expire() : true;
	ok = ok && moves_deferred(base, nr, pmd_size, HAS_BLOCKS ? 0 : 1);
	tlb_rs_readers_end(&readers);
	munmap(base, nr * pmd_size);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

static int run_readers(void)
{
	return deferred(64, folio_size, asked.rounds ?: 10, true);
}

/* Moves a folio on another CPU. It does not end before it may: its stack would be flushed. */
static struct {
	pthread_t id;
	char *base;
	bool has_moved;
	bool done;
	bool end;
} mover;

static void *move_elsewhere(void *unused)
{
	(void)unused;
	tlb_rs_pin_cpu(2);
	mover.has_moved = move(mover.base, 1, folio_size, 1);
	STORE(mover.done, true);
	while (!LOAD(mover.end))
		tlb_rs_sleep_us(100);
	return NULL;
}

/* Entries of migration are neither present nor of swap that has a slot. */
static bool is_moving(const void *addr)
{
	return !(tlb_rs_pagemap(addr) & PM_PRESENT);
}

/* Gives advice while @base is moving. False if that came too late, or the folio has not moved. */
bool advise_while_moving(char *base, size_t start, size_t len, int advice)
{
	bool met;

	mover.base = base;
	mover.done = false;
	mover.end = false;
	if (pthread_create(&mover.id, NULL, move_elsewhere, NULL))
		ksft_exit_fail_msg("cannot start a thread\n");
	WAIT_FOR(is_moving(base) || LOAD(mover.done));
	met = is_moving(base);
	if (madvise(base + start, len, advice))
		ksft_exit_fail_msg("madvise: %s\n", strerror(errno));
	met &= !LOAD(mover.done);
	WAIT_FOR(LOAD(mover.done));
	return met && mover.has_moved;
}

void end_mover(void)
{
	STORE(mover.end, true);
	if (mover.base)
		pthread_join(mover.id, NULL);
	mover.base = NULL;
}

#ifdef __aarch64__

static int run_off(void)
{
	char *base = make_folios(4, folio_size);
	struct seen before, d;
	bool ok;

	if (!base)
		return migrc_skipped("no folios of one block");
	migrc_write(BLOCKS, 0);
	tlb_rs_readers_start(&readers, 1, false, base, 4 * folio_size);
	see(&before);
	ok = move(base, 4, folio_size, 1);
	see_since(&before, &d);
	ok &= counted("deferred", d.c.val[MIGRC_DEFERRED], 0);
	ok &= counted("denied for block", d.block, 4 * folio_pages);
	ok &= content_is(base, 4 * folio_size);
	tlb_rs_readers_end(&readers);
	munmap(base, 4 * folio_size);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

/*
 * MADV_DONTDUMP cuts the area, and touches no page table: nothing but the restore knows of
 * it.
 */
static int run_cut(void)
{
	const long rounds = asked.rounds ?: 10;
	long round, armed = 0;
	bool ok = true, cut;

	if (!tlb_rs_delay(MIGRC_RESTORE_DELAY, 20000))
		return migrc_skipped("no fault injection");
	for (round = 0; round < rounds; round++) {
		char *base = make_folios(1, folio_size);
		struct seen before, d;

		if (!base)
			return migrc_skipped("no folios of one block");
		tlb_rs_readers_start(&readers, 1, false, base, folio_size);
		see(&before);
		cut = advise_while_moving(base, 4 * psize, 4 * psize, MADV_DONTDUMP);
		end_mover();
		see_since(&before, &d);
		if (cut) {
			armed++;
			ok &= counted("hook size", d.size, 1);
			ok &= counted("deferred", d.c.val[MIGRC_DEFERRED], folio_pages);
		}
		ok &= content_is(base, folio_size);
		tlb_rs_readers_end(&readers);
		munmap(base, folio_size);
		migrc_drain();
	}
	tlb_rs_delay_none();
	return ok ? migrc_judge(&asked, rounds, armed, 0, false) : KSFT_FAIL;
}

/* Pages that get their own permission again stay pages: only the last one of a block folds. */
static int run_folded(void)
{
	char *base = make_folios(4, folio_size);
	struct seen before, d;
	bool ok;
	int i;

	if (!base)
		return migrc_skipped("no folios of one block");
	for (i = 0; i < 4; i++) {
		if (mprotect(base + i * folio_size, psize, PROT_READ | PROT_EXEC) ||
		    mprotect(base + i * folio_size, psize, PROT_READ))
			ksft_exit_fail_msg("mprotect: %s\n", strerror(errno));
	}
	tlb_rs_readers_start(&readers, 1, false, base, 4 * folio_size);
	see(&before);
	ok = move(base, 4, folio_size, 1);
	see_since(&before, &d);
	/* What was deferred of all four is flushed for the first. */
	ok &= counted("deferred", d.c.val[MIGRC_DEFERRED], 4 * folio_pages);
	ok &= counted("hook size", d.size, 1);
	ok &= counted("restored", d.restored, 4 * folio_pages);
	ok &= content_is(base, 4 * folio_size);
	tlb_rs_readers_end(&readers);
	munmap(base, 4 * folio_size);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

static int run_pinned(void)
{
	int dev = open(DEBUGFS "gup_test", O_RDWR | O_CLOEXEC);
	struct pin_longterm_test pin = { .size = psize };
	struct seen before, d;
	struct migrc_set set;
	bool ok = true;
	char *base;

	if (dev < 0)
		return migrc_skipped("no gup_test in debugfs to pin pages with");
	base = make_folios(1, folio_size);
	if (!base) {
		close(dev);
		return migrc_skipped("no folios of one block");
	}
	pin.addr = (__u64)base;
	if (ioctl(dev, PIN_LONGTERM_TEST_START, &pin))
		ksft_exit_fail_msg("cannot pin a page: %s\n", strerror(errno));
	tlb_rs_readers_start(&readers, 1, false, base, folio_size);
	see(&before);
	migrc_set_init(&set, base, 1);
	ok &= counted("folios moved", migrc_move(&set, 0, 1, MPOL_MF_MOVE_ALL), 0);
	migrc_set_free(&set);
	see_since(&before, &d);
	if (d.size < 1)
		ok = counted("hook size", d.size, 1);
	ok &= counted("deferred", d.c.val[MIGRC_DEFERRED], 0);
	ok &= content_is(base, folio_size);
	tlb_rs_readers_end(&readers);
	ioctl(dev, PIN_LONGTERM_TEST_STOP);
	close(dev);
	munmap(base, folio_size);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

static int run_unlike(void)
{
	char *base = make_folios(1, folio_size);
	struct tlb_rs_counters c;
	struct seen before, d;
	int pipes[2], status;
	char done = 0;
	pid_t pid;
	bool ok;

	if (!base)
		return migrc_skipped("no folios of one block");
	if (pipe(pipes))
		ksft_exit_fail_msg("pipe: %s\n", strerror(errno));
	fflush(stdout);
	pid = fork();
	if (pid < 0)
		ksft_exit_fail_msg("fork: %s\n", strerror(errno));
	if (!pid) {
		/* Pages, as in "folded". */
		mprotect(base, psize, PROT_READ | PROT_EXEC);
		mprotect(base, psize, PROT_READ);
		tlb_rs_pin_cpu(2);
		done = !!tlb_rs_check(base, folio_size, SEED);
		if (write(pipes[1], &done, 1) != 1)
			_exit(1);
		for (;;)
			;
	}
	migrc_own_variables();
	if (read(pipes[0], &done, 1) != 1 || done)
		ksft_exit_fail_msg("the child fails\n");
	tlb_rs_readers_start(&readers, 1, false, base, folio_size);
	see(&before);
	tlb_rs_counters_read(&c);
	ok = move(base, 1, folio_size, 1);
	tlb_rs_counters_diff(&c);
	see_since(&before, &d);
	/* The other mapping was flushed, which is no reason to deny the folio. */
	ok &= counted("flushed in a batch", c.vmstat[TLB_RS_VMSTAT_PAGES], folio_pages);
	ok &= counted("deferred", d.c.val[MIGRC_DEFERRED], folio_pages);
	ok &= counted("denied", d.c.val[MIGRC_DENIED], 0);
	ok &= content_is(base, folio_size);
	tlb_rs_readers_end(&readers);
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	close(pipes[0]);
	close(pipes[1]);
	munmap(base, folio_size);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

#endif /* __aarch64__ */

FIXTURE(migrc_blocks) {
};

FIXTURE_SETUP(migrc_blocks)
{
	if (!migrc_begin(_metadata, &asked))
		return;
	if (HAS_BLOCKS)
		migrc_setting(BLOCKS, 1);
	migrc_write(MIGRC_AGE, AGE_MS);
}

FIXTURE_TEARDOWN_PARENT(migrc_blocks)
{
	tlb_rs_tear_down();
}

/* With a rule removed, a case has to fail. */
static void judge(struct __test_metadata *_metadata, int ret)
{
	if (ret == KSFT_SKIP)
		SKIP(return, "%s", migrc_why);
	EXPECT_EQ(!asked.skip || asked.want, ret == KSFT_PASS);
}

TEST_F_TIMEOUT(migrc_blocks, whole, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, run_whole());
}

TEST_F_TIMEOUT(migrc_blocks, thp, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, run_thp());
}

TEST_F_TIMEOUT(migrc_blocks, readers, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, run_readers());
}

TEST_F_TIMEOUT(migrc_blocks, stale, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, run_stale());
}

#ifdef __aarch64__
TEST_F_TIMEOUT(migrc_blocks, off, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, run_off());
}

TEST_F_TIMEOUT(migrc_blocks, cut, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, run_cut());
}

TEST_F_TIMEOUT(migrc_blocks, folded, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, run_folded());
}

TEST_F_TIMEOUT(migrc_blocks, unlike, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, run_unlike());
}

TEST_F_TIMEOUT(migrc_blocks, pinned, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, run_pinned());
}
#endif

static const char *missing(void)
{
	char path[128], size[32];

	if (tlb_rs_vmstat_read("tlb_batch_restored") < 0 || !migrc_has_stats())
		return "this kernel does not count what is mapped again";
	if (tlb_rs_read_file(THP_SYSFS "hpage_pmd_size", size, sizeof(size)))
		return "no transparent huge pages";
	pmd_size = strtoul(size, NULL, 10);
	snprintf(path, sizeof(path), THP_SYSFS "hugepages-%zukB/enabled", folio_size / 1024);
	return access(path, W_OK) ? "no anonymous folios of this size" : NULL;
}

int main(int argc, char **argv)
{
	migrc_ask(&asked);
	psize = getpagesize();
	/* A block of entries of arm64: 16 of 4 KiB, 128 of 16 KiB, 32 of 64 KiB. */
	folio_size = psize == 4096 ? 64UL << 10 : 2UL << 20;
	folio_pages = folio_size / psize;
	tlb_rs_skip_all(migrc_missing(4));
	tlb_rs_skip_all(missing());
	migrc_init(4, MAX_PAGES, AGE_MS);
	tlb_rs_pin_cpu(0);
	return test_harness_run(argc, argv);
}
