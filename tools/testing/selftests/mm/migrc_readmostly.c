// SPDX-License-Identifier: GPL-2.0
/*
 * vm.migrc_readmostly: anonymous memory that is written once can be deferred, and
 * nobody pays for that who writes.
 *
 * table    64 pages were written once. P, the last one, is written and then moved three
 *          times, with the others: the first move clears its dirty bit, the second takes
 *          write permission away, the third is deferred while R, on CPU 1, reads P. A
 *          store to P follows, and R must read it once it knows of it
 * writer   pages are written between every two moves: no store faults
 * rare     1024 pages are written after every third move: that costs faults, until what a
 *          process may spend is spent
 * swap     pages that were swapped out once are written, moved once to three times, and
 *          swapped out: what was written is still there
 * fork     a child has the pages, too: what it writes is its own, and so is the parent's
 * locked   memory that is locked does not fault
 * hint     a NUMA hinting fault of a reader leaves the pages fit for deferral
 * hint_large  the same for large folios that are clean
 * swapread what a reader gets back from swap is deferred by its first move; what a writer
 *          gets back does not lose permission
 *
 * What a process may spend is counted for each, and the harness has one for each case.
 */
#include <sys/wait.h>

#include "migrc_harness.h"

#define NUMA_BALANCING		"/proc/sys/kernel/numa_balancing"

#define NR_PAGES	64
#define MOST_PAGES	(NR_PAGES - NR_PAGES / 16)
#define AGE_MS		60000	/* nothing is flushed for its age */
#define MAX_PAGES	8192
#define RARE_PAGES	1024
#define NR_FOLIOS	4
#define FOLIO_PAGES	16
#define ATTEMPTS	10
#define START		4096	/* Credit::START and PAGE in mm/migrc/readmostly.rs */
#define SHARE		64

static __u64 *last_page;
static struct migrc_reader sh;

static size_t psize, nr_pages;
static char *base;
static struct migrc_set set;
static struct migrc_options asked;

/* With TLB_EXPECT what a rule is about should not be @kept, and nothing else may be wrong. */
static int judge(const struct migrc_options *o, bool kept, const char *why)
{
	if (!kept)
		ksft_print_msg("%s: %s\n", migrc_case, why);
	return kept == !o->want ? KSFT_PASS : KSFT_FAIL;
}

/* What no removed rule explains. */
static int fail(const char *why)
{
	ksft_print_msg("%s: %s\n", migrc_case, why);
	return KSFT_FAIL;
}

static void map_pages(size_t nr)
{
	nr_pages = nr;
	base = migrc_mmap(nr, 0, 1);
	last_page = (__u64 *)(base + (nr - 1) * psize);
	migrc_set_init(&set, base, nr);
}

static void unmap_pages(void)
{
	munmap(base, nr_pages * psize);
	migrc_set_free(&set);
}

static __u64 *word(size_t page)
{
	return (__u64 *)(base + page * psize);
}

/* Returns how many of the stores faulted. */
static long store(__u64 val)
{
	pid_t tid = syscall(SYS_gettid);
	long before = migrc_faults(tid);
	size_t i;

	for (i = 0; i < nr_pages; i++)
		__atomic_store_n(word(i), val + i, __ATOMIC_RELAXED);
	return migrc_faults(tid) - before;
}

static size_t wrong(__u64 val)
{
	size_t i, n = 0;

	for (i = 0; i < nr_pages; i++)
		n += __atomic_load_n(word(i), __ATOMIC_RELAXED) != val + i;
	return n;
}

/* To the other node, @times. Returns how many pages the last move has deferred. */
static long move(int times)
{
	struct migrc_counters before, d = { };

	while (times--) {
		size_t moved;

		migrc_read(&before);
		moved = migrc_move(&set, 0, !migrc_node_of(last_page), MPOL_MF_MOVE);
		migrc_diff(&before, &d);
		if (moved < nr_pages - nr_pages / 16)
			ksft_exit_fail_msg("%zu of %zu pages moved\n", moved, nr_pages);
	}
	return d.val[MIGRC_DEFERRED];
}

static long long protected(void)
{
	return migrc_stat("readmostly", "protected");
}

static long long missed(void)
{
	return tlb_rs_vmstat_read("migrc_readmostly_miss");
}

/* --- table ------------------------------------------------------------------------- */

/* True if the round was armed. */
static bool table_round(__u64 round)
{
	__u64 old = 2 * round, new = old + 1;
	long long faults, misses = missed();
	bool ok;

	__atomic_store_n(last_page, old, __ATOMIC_RELAXED);
	move(2);
	STORE(sh.want, new);
	STORE(sh.reading, round);
	WAIT_FOR(LOAD(sh.last) == old);
	faults = migrc_faults(sh.tid);
	ok = move(1) >= MOST_PAGES && migrc_faults(sh.tid) == faults;
	__atomic_store_n(last_page, new, __ATOMIC_RELAXED);
	STORE(sh.flag, round);
	WAIT_FOR(LOAD(sh.ack) == round);
	ok &= missed() > misses;
	migrc_expire();
	return ok;
}

static int run_table(const struct migrc_options *o)
{
	long rounds = o->rounds ?: 20, round, armed = 0;
	struct migrc_counters before;
	pthread_t r;
	int ret;

	sh = (struct migrc_reader){ .word_at = &last_page };
	map_pages(NR_PAGES);
	migrc_read(&before);
	if (pthread_create(&r, NULL, migrc_reader, &sh))
		ksft_exit_fail_msg("cannot start a thread\n");
	WAIT_FOR(LOAD(sh.tid));
	move(2);
	for (round = 1; migrc_more(o, rounds, round - 1, armed, sh.stale); round++)
		armed += table_round(round);
	STORE(sh.stop, true);
	pthread_join(r, NULL);
	migrc_record("migrc_readmostly", o, rounds, armed, sh.stale, &before);
	ret = migrc_judge(o, rounds, armed, sh.stale, false);
	unmap_pages();
	return ret;
}

/* --- who writes -------------------------------------------------------------------- */

static int run_writer(const struct migrc_options *o)
{
	long long misses = missed(), before = protected();
	long rounds = o->rounds ?: 20, i, faults = 0;
	size_t bad = 0;

	map_pages(NR_PAGES);
	/* The first faults are those of a child on its own stack. */
	store(0);
	for (i = 0; i < rounds; i++) {
		faults += store(i);
		move(1);
		bad += wrong(i);
	}
	unmap_pages();
	printf("{\"test\":\"migrc_readmostly\",\"case\":\"writer\",\"faults\":%ld,", faults);
	printf("\"missed\":%lld}\n", missed() - misses);
	if (bad)
		return fail("wrong contents");
	/* Nobody pays but for a page that has lost permission. */
	if (protected() == before && (faults || missed() != misses))
		return fail("a store has faulted");
	return judge(o, protected() == before, "who writes all the time has lost permission");
}

/* Of two nodes and three moves, the second one may take permission away. */
static int run_rare(const struct migrc_options *o)
{
	long rounds = o->rounds ?: 6, i, faults = 0;
	long long before = protected(), misses = missed(), got;
	size_t bad = 0;

	map_pages(RARE_PAGES);
	store(0);
	for (i = 0; i < rounds; i++) {
		faults += store(i);
		move(3);
		bad += wrong(i);
	}
	unmap_pages();
	got = protected() - before;
	misses = missed() - misses;
	printf("{\"test\":\"migrc_readmostly\",\"case\":\"rare\",\"faults\":%ld,", faults);
	printf("\"missed\":%lld,\"protected\":%lld,\"pages\":%ld}\n", misses, got,
	       rounds * RARE_PAGES);
	if (bad)
		return fail("wrong contents");
	if (misses < RARE_PAGES / 2)
		return fail("hardly anything has lost permission");
	if (faults > misses || misses > got)
		return fail("more faults than pages that have lost permission");
	/* The third move is a deferral, and the store after it a fault: they balance. */
	return judge(o, got <= START + rounds * RARE_PAGES * 2 / SHARE, "it does not end");
}

static int run_locked(const struct migrc_options *o)
{
	long long before = protected();
	long faults;

	map_pages(NR_PAGES);
	if (mlock(base, NR_PAGES * psize))
		ksft_exit_fail_msg("mlock: %s\n", strerror(errno));
	store(1);
	move(3);
	faults = store(2);
	if (protected() != before || faults)
		return judge(o, false, "locked memory has lost permission");
	/* The same, when it is not locked. */
	munlock(base, NR_PAGES * psize);
	move(3);
	faults = store(3);
	unmap_pages();
	if (faults < MOST_PAGES)
		return fail("nothing has lost permission");
	return judge(o, true, NULL);
}

/* --- what was written is not lost -------------------------------------------------- */

static size_t swap_out(void)
{
	if (madvise(base, NR_PAGES * psize, MADV_PAGEOUT))
		ksft_exit_fail_msg("MADV_PAGEOUT: %s\n", strerror(errno));
	return tlb_rs_count_pagemap(base, NR_PAGES, PM_SWAP);
}

static int run_swap(const struct migrc_options *o)
{
	size_t bad = 0, least = NR_PAGES;
	long long before;
	int times;

	if (!tlb_rs_has_swap())
		return migrc_skipped("no swap");
	for (times = 1; times <= 3; times++) {
		size_t out;

		map_pages(NR_PAGES);
		store(times);
		swap_out();
		bad += wrong(times);
		store(times + 100);
		before = protected();
		move(times);
		if (times > 1 && protected() - before < MOST_PAGES)
			return fail("nothing has lost permission");
		out = swap_out();
		least = out < least ? out : least;
		bad += wrong(times + 100);
		unmap_pages();
	}
	ksft_print_msg("swap: at least %zu of %d pages swapped out, %zu wrong\n", least,
		       NR_PAGES, bad);
	if (least < NR_PAGES / 2)
		return fail("hardly anything was swapped out");
	return judge(o, !bad, "content is lost");
}

static int run_fork(const struct migrc_options *o)
{
	int times, status;
	size_t bad = 0;
	pid_t pid;

	for (times = 1; times <= 3; times++) {
		long long before = protected();

		map_pages(NR_PAGES);
		store(1);
		move(times);
		if (times > 1 && protected() - before < MOST_PAGES)
			return fail("nothing has lost permission");
		fflush(stdout);
		pid = fork();
		if (!pid) {
			store(2);
			tlb_rs_sleep_us(10000);
			_exit(!!wrong(2));
		}
		bad += wrong(1);
		store(3);
		if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
			bad++;
		bad += wrong(3);
		unmap_pages();
	}
	return judge(o, !bad, "parent and child share what they wrote");
}

/* --- who reads --------------------------------------------------------------------- */

static void *spinner(void *arg)
{
	(void)arg;
	tlb_rs_pin_cpu(1);
	while (!LOAD(sh.stop))
		;
	return NULL;
}

/*
 * Pages that are near are not scanned if there is one thread only, and x86 defers nothing if
 * no other CPU needs a flush.
 */
static void spin(pthread_t *t)
{
	STORE(sh.stop, false);
	if (pthread_create(t, NULL, spinner, NULL))
		ksft_exit_fail_msg("cannot start a thread\n");
}

static void spin_no_more(pthread_t t)
{
	STORE(sh.stop, true);
	pthread_join(t, NULL);
}

/* Swapped out, and read or written back. Returns how many pages have lost permission. */
static long swap_in(bool writes, __u64 val, size_t *bad)
{
	long long before = protected();

	if (swap_out() < MOST_PAGES)
		return -1;
	*bad += writes ? 0 : wrong(val);
	if (writes)
		store(val);
	return protected() - before;
}

static int run_swapread(const struct migrc_options *o)
{
	long lost, kept, faults;
	size_t deferred, bad = 0;
	long long misses;
	pthread_t t;

	if (!tlb_rs_has_swap())
		return migrc_skipped("no swap");
	map_pages(NR_PAGES);
	store(1);
	spin(&t);
	lost = swap_in(false, 1, &bad);
	deferred = move(1);
	misses = missed();
	faults = store(2);
	misses = missed() - misses;
	bad += wrong(2);
	kept = swap_in(true, 3, &bad);
	bad += wrong(3);
	spin_no_more(t);
	unmap_pages();
	printf("{\"test\":\"migrc_readmostly\",\"case\":\"swapread\",\"protected\":%ld,", lost);
	printf("\"deferred\":%zu,\"faults\":%ld,\"missed\":%lld}\n", deferred, faults, misses);
	if (lost < 0 || kept < 0)
		return migrc_skipped("hardly anything was swapped out");
	if (bad)
		return fail("wrong contents");
	if (kept)
		return fail("a write fault has taken permission away");
	/* Each page that has lost permission is paid for, and a store to it is a fault. */
	if (faults < lost || misses < lost)
		return fail("a page that has lost permission is writable");
	return judge(o, lost >= MOST_PAGES && deferred >= MOST_PAGES,
		     "what a reader has got from swap is writable");
}

static int run_hint(const struct migrc_options *o)
{
	__u64 end = tlb_rs_now_ns() + 60000000000ULL;
	long long before, got = protected(), hints = 0;
	size_t bad = 0;
	long deferred, writable;
	pthread_t t;

	if (!tlb_rs_numa_scans())
		return migrc_skipped("no NUMA balancing, or no debugfs");
	map_pages(NR_PAGES);
	/* What is bound to a node is not scanned. */
	if (syscall(SYS_mbind, base, NR_PAGES * psize, 0 /* MPOL_DEFAULT */, NULL, 0UL, 0U))
		ksft_exit_fail_msg("mbind: %s\n", strerror(errno));
	store(1);
	move(2);
	spin(&t);
	if (protected() - got < MOST_PAGES)
		return fail("nothing has lost permission");
	before = tlb_rs_vmstat_read("numa_hint_faults");
	migrc_write(NUMA_BALANCING, 1);
	while (hints < 2 * NR_PAGES && tlb_rs_now_ns() < end) {
		bad += wrong(1);
		hints = tlb_rs_vmstat_read("numa_hint_faults") - before;
	}
	migrc_write(NUMA_BALANCING, 0);
	bad += wrong(1);
	writable = migrc_stat("denied", "writable");
	deferred = move(1);
	writable = migrc_stat("denied", "writable") - writable;
	spin_no_more(t);
	printf("{\"test\":\"migrc_readmostly\",\"case\":\"hint\",\"hints\":%lld,", hints);
	printf("\"deferred\":%ld}\n", deferred);
	unmap_pages();
	if (hints < 2 * NR_PAGES)
		return migrc_skipped("no hinting faults");
	if (bad)
		return fail("wrong contents");
	if (deferred + writable < MOST_PAGES)
		return fail("neither deferred nor denied");
	return judge(o, deferred >= MOST_PAGES, "a reader has got write permission");
}

/* Folios on the node of this CPU, whose entries are clean: MADV_FREE is the way to that. */
static char *make_clean_folios(size_t len)
{
	char *folios;
	size_t i;

	if (psize != 4096 || !tlb_rs_setting(THP_SYSFS "hugepages-64kB/enabled", "always") ||
	    !tlb_rs_setting(THP_SYSFS "hugepages-2048kB/enabled", "never"))
		return NULL;
	folios = tlb_rs_mmap(len, SZ_2M);
	tlb_rs_bind_node(folios, len, 0);
	tlb_rs_fill(folios, len, 1);
	for (i = 0; i < NR_FOLIOS; i++) {
		if (!tlb_rs_is_folio(folios + i * FOLIO_PAGES * psize, FOLIO_PAGES))
			return NULL;
	}
	/* What is bound to a node is not scanned. */
	if (syscall(SYS_mbind, folios, len, 0 /* MPOL_DEFAULT */, NULL, 0UL, 0U))
		ksft_exit_fail_msg("mbind: %s\n", strerror(errno));
	if (madvise(folios, len, MADV_FREE))
		ksft_exit_fail_msg("MADV_FREE: %s\n", strerror(errno));
	return folios;
}

/* Whether each folio met a hinting fault of a reader. */
static bool read_after_scan(char *folios)
{
	long long hints;
	size_t i;

	if (!tlb_rs_numa_scan(NR_FOLIOS * FOLIO_PAGES))
		return false;
	hints = tlb_rs_vmstat_read("numa_hint_faults");
	for (i = 0; i < NR_FOLIOS; i++)
		__atomic_load_n(folios + i * FOLIO_PAGES * psize + psize, __ATOMIC_RELAXED);
	return tlb_rs_vmstat_read("numa_hint_faults") - hints >= NR_FOLIOS;
}

static int run_hint_large(const struct migrc_options *o)
{
	const size_t len = NR_FOLIOS * FOLIO_PAGES * psize;
	struct migrc_set heads;
	long long writable;
	size_t moved, bad;
	pthread_t t;
	char *folios;
	int i;

	if (!tlb_rs_numa_scans())
		return migrc_skipped("no NUMA balancing, or no debugfs");
	folios = make_clean_folios(len);
	if (!folios)
		return migrc_skipped("no folios of 64 KiB");
	spin(&t);
	for (i = 0; i < ATTEMPTS && !read_after_scan(folios); i++)
		;
	migrc_set_init(&heads, folios, NR_FOLIOS);
	for (size_t f = 0; f < NR_FOLIOS; f++)
		heads.addrs[f] = folios + f * FOLIO_PAGES * psize;
	/* arm64 may flush them as blocks, which is not the question. */
	writable = migrc_stat("denied", "writable");
	moved = migrc_move(&heads, 0, 1, MPOL_MF_MOVE);
	writable = migrc_stat("denied", "writable") - writable;
	spin_no_more(t);
	migrc_set_free(&heads);
	bad = tlb_rs_check(folios, len, 1);
	tlb_rs_fill(folios, len, 2);
	bad += tlb_rs_check(folios, len, 2);
	munmap(folios, len);
	printf("{\"test\":\"migrc_readmostly\",\"case\":\"hint_large\",\"moved\":%zu,", moved);
	printf("\"writable\":%lld}\n", writable);
	if (i == ATTEMPTS)
		return migrc_skipped("no hinting faults");
	if (bad)
		return fail("wrong contents");
	if (moved < NR_FOLIOS)
		return fail("not all folios have moved");
	return judge(o, !writable, "a reader has got write permission");
}

FIXTURE(migrc_readmostly) {
};

FIXTURE_SETUP(migrc_readmostly)
{
	migrc_begin(_metadata, &asked);
}

FIXTURE_TEARDOWN_PARENT(migrc_readmostly)
{
	tlb_rs_tear_down();
}

TEST_F_TIMEOUT(migrc_readmostly, table, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run_table(&asked));
}

TEST_F_TIMEOUT(migrc_readmostly, writer, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run_writer(&asked));
}

TEST_F_TIMEOUT(migrc_readmostly, rare, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run_rare(&asked));
}

TEST_F_TIMEOUT(migrc_readmostly, swap, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run_swap(&asked));
}

TEST_F_TIMEOUT(migrc_readmostly, fork, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run_fork(&asked));
}

TEST_F_TIMEOUT(migrc_readmostly, locked, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run_locked(&asked));
}

TEST_F_TIMEOUT(migrc_readmostly, hint, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run_hint(&asked));
}

TEST_F_TIMEOUT(migrc_readmostly, hint_large, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run_hint_large(&asked));
}

TEST_F_TIMEOUT(migrc_readmostly, swapread, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run_swapread(&asked));
}

int main(int argc, char **argv)
{
	migrc_ask(&asked);
	tlb_rs_skip_all(migrc_missing(2));
	migrc_init(2, MAX_PAGES, AGE_MS);
	if (!tlb_rs_setting(MIGRC_READMOSTLY, "1"))
		tlb_rs_skip_all("no " MIGRC_READMOSTLY ", or the CPUs do not set dirty bits");
	tlb_rs_skip_all(migrc_has_stats() ? NULL : "no " MIGRC_STATS);
	psize = getpagesize();
	tlb_rs_pin_cpu(0);
	return test_harness_run(argc, argv);
}
