// SPDX-License-Identifier: GPL-2.0
/*
 * kswapd demotes anonymous pages from node 0 to node 1, a slower tier (tlb_slow_nodes=1 on the
 * command line). One flush serves as many pages as it takes from the list at once.
 *
 * The pages are touched in the order of their addresses, and do not look used. What is locked
 * fills the rest of node 0, until kswapd wakes. A measured region lasts from there until it
 * sleeps.
 *
 * classic   The two LRU lists. For each time that kswapd wakes it may wait 8 times, and once
 *           for 512 pages.
 * mglru     The same for the multi-generational LRU.
 * isolated  Few pages are on the lists. Tasks that reclaim directly wait if more than an eighth
 *           of the inactive list is isolated: that must not happen because of kswapd.
 * throttled Such tasks run beside kswapd. No more of them wait for that than with
 *           vm.tlb_batch=0.
 * full      Node 1 is full. Pages that find no room go back to reclaim, which swaps them out;
 *           so does kswapd of node 1.
 * full_noswap	The same without swap: the pages stay where they are.
 *
 * TLB_PAGES is how many pages have to be demoted at least, TLB_SCALE what
 * vm.watermark_scale_factor is meanwhile. With vm.tlb_batch=0, and with another scale than
 * 1000, waits are only printed: kswapd wakes more often then.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/prctl.h>
#include <sys/swap.h>
#include <sys/wait.h>

#include "tlb_rs_harness.h"
#include "tlb_rs_tiers.h"

#define NODE_VMSTAT	"/sys/devices/system/node/node%d/vmstat"
#define SCALE		"/proc/sys/vm/watermark_scale_factor"
#define MIN_FREE	"/proc/sys/vm/min_free_kbytes"
#define PCP_FRACTION	"/proc/sys/vm/percpu_pagelist_high_fraction"

#define ONE_FLUSH	512	/* pages */
#define STOCK_BATCH	32	/* pages that stock takes at once, or twice as many */
#define MORE_WAITS	8	/* of a wake: its first rounds look at few pages */
#define NR_TASKS	3	/* that reclaim directly */

static size_t psize;
static long goal;
static long scale;
static char swap_path[128];	/* empty: none */

/* Anonymous pages of a node that reclaim may take next, and those that it has taken. */
struct lists {
	long inactive;
	long isolated;
};

static struct lists read_lists(int node)
{
	struct lists l = { };
	char path[64], buf[8192];
	char *line, *rest;
	long n;

	snprintf(path, sizeof(path), NODE_VMSTAT, node);
	if (tlb_rs_read_file(path, buf, sizeof(buf)))
		ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	for (line = strtok_r(buf, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		if (sscanf(line, "nr_inactive_anon %ld", &n) == 1)
			l.inactive = n;
		else if (sscanf(line, "nr_isolated_anon %ld", &n) == 1)
			l.isolated = n;
	}
	return l;
}

/* How often tasks were throttled because too much was isolated, in an instance of our own. */
#define TRACE		"/sys/kernel/tracing/instances/tlb_batch_demote"
#define TRACE_EVENT	TRACE "/events/vmscan/mm_vmscan_throttled/enable"

static void trace_end(void)
{
	tlb_rs_write_file(TRACE_EVENT, "0");
	rmdir(TRACE);
}

static bool trace_begin(void)
{
	if (mkdir(TRACE, 0700) && errno != EEXIST)
		return false;
	tlb_rs_at_exit(trace_end);
	return !tlb_rs_write_file(TRACE "/trace", "") && !tlb_rs_write_file(TRACE_EVENT, "1");
}

static long throttled(void)
{
	char line[512];
	long n = 0;
	FILE *f;

	f = fopen(TRACE "/trace", "r");
	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f))
		n += strstr(line, "mm_vmscan_throttled: ") && strstr(line, "THROTTLE_ISOLATED");
	fclose(f);
	return n;
}

/* --- cases ------------------------------------------------------------------------------- */

struct result {
	long long demoted;
	long long wakes;
	long long waits;	/* -1: not counted */
};

static struct tlb_rs_area pages;	/* of the case */

static long demoted_pages(void)
{
	return tlb_rs_vmstat_read("pgdemote_kswapd");
}

static long scanned_pages(void)
{
	return tlb_rs_vmstat_read("pgscan_kswapd");
}

static long swapped_pages(void)
{
	return tlb_rs_count_pagemap(pages.base, pages.len / psize, PM_SWAP);
}

static long moved_pages(void)
{
	return tlb_rs_count_on_node(&pages, 1);
}

/* kswapd is woken until @count() has grown by @least. */
static bool demote(const char *name, struct tlb_rs_area *fill, long (*count)(void), long least,
		   struct result *r)
{
	struct tlb_rs_counters c;
	char region[48], extra[160];
	long before = count();
	bool ok;

	r->demoted = tlb_rs_vmstat_read("pgdemote_kswapd");
	r->wakes = tlb_rs_vmstat_read("pageoutrun");
	tlb_rs_begin(&c);
	do {
		ok = tlb_rs_wake_kswapd(fill) && tlb_rs_wait_for_rest(120);
	} while (ok && count() - before < least);
	tlb_rs_end(&c);
	r->demoted = tlb_rs_vmstat_read("pgdemote_kswapd") - r->demoted;
	r->wakes = tlb_rs_vmstat_read("pageoutrun") - r->wakes;
	r->waits = c.vmstat[TLB_RS_VMSTAT_FLUSH];

	snprintf(region, sizeof(region), "demote_%s", name);
	snprintf(extra, sizeof(extra),
		 ",\"units\":%lld,\"wakes\":%lld,\"waits\":%lld,\"scale\":%ld", r->demoted,
		 r->wakes, r->waits, scale);
	tlb_rs_json_region(region, extra, &c);
	return ok;
}

static bool batch_is_on(void)
{
	int on;

	return tlb_batch_get(&on) && on > 0;
}

static void set_number(const char *path, long val)
{
	char buf[32];

	snprintf(buf, sizeof(buf), "%ld", val);
	if (!tlb_rs_setting(path, buf))
		ksft_exit_fail_msg("cannot write %s\n", path);
}

FIXTURE(tlb_batch_demote) {
	struct tlb_rs_area fill;
};

FIXTURE_SETUP(tlb_batch_demote)
{
	tlb_rs_undo();
	tlb_rs_pin_cpu(0);
	if (!tlb_rs_setting(TLB_RS_DEMOTION, "1"))
		SKIP(return, "no demotion");
	if (!tlb_rs_choose_lru(false))
		SKIP(return, "no LRU lists");
	set_number(SCALE, scale);
	/* Else each CPU would hold a thousand free pages. */
	set_number(PCP_FRACTION, 1 << 20);
}

FIXTURE_TEARDOWN_PARENT(tlb_batch_demote)
{
	tlb_rs_tear_down();
}

/* Other pages of node 0 may be older, and go first. */
static const char *demote_all(const char *name, struct tlb_rs_area *fill)
{
	struct result r = { };

	pages = tlb_rs_make_pages(4 * ONE_FLUSH * 16);
	tlb_rs_fill_node(fill, 0, 1024);
	tlb_rs_forget_use();
	if (!tlb_rs_wait_for_rest(60))
		return "kswapd does not rest";
	if (!demote(name, fill, moved_pages, goal, &r))
		return "kswapd did not demote enough";
	if (tlb_rs_wrong_words(&pages))
		return "contents are wrong";
	if (batch_is_on() && scale == 1000 &&
	    r.waits > r.demoted / ONE_FLUSH + MORE_WAITS * r.wakes)
		return "kswapd waited too often";
	return NULL;
}

TEST_F_TIMEOUT(tlb_batch_demote, classic, TLB_RS_TIMEOUT_S)
{
	const char *bad = demote_all("classic", &self->fill);

	ASSERT_EQ(NULL, bad) TH_LOG("%s", bad);
}

TEST_F_TIMEOUT(tlb_batch_demote, mglru, TLB_RS_TIMEOUT_S)
{
	const char *bad;

	if (!tlb_rs_choose_lru(true))
		SKIP(return, "no multi-generational LRU");
	bad = demote_all("mglru", &self->fill);
	ASSERT_EQ(NULL, bad) TH_LOG("%s", bad);
}

/* What a thread sees of the lists while kswapd runs. */
static struct {
	pthread_t id;
	bool stop;
	long samples;
	long most;		/* isolated */
	long above;		/* how often that was more than an eighth */
} watcher;

static void *watch(void *arg)
{
	(void)arg;
	tlb_rs_pin_cpu(1);
	while (!__atomic_load_n(&watcher.stop, __ATOMIC_ACQUIRE)) {
		struct lists l = read_lists(0);

		watcher.samples++;
		if (l.isolated > watcher.most)
			watcher.most = l.isolated;
		/* Of fewer pages stock isolates more, too. */
		if (l.inactive >= ONE_FLUSH)
			watcher.above += l.isolated > l.inactive / 8;
	}
	return NULL;
}

static void watch_begin(void)
{
	memset(&watcher, 0, sizeof(watcher));
	if (pthread_create(&watcher.id, NULL, watch, NULL))
		ksft_exit_fail_msg("cannot start a thread\n");
}

static void watch_end(void)
{
	__atomic_store_n(&watcher.stop, true, __ATOMIC_RELEASE);
	pthread_join(watcher.id, NULL);
	ksft_print_msg("%ld of %ld samples above an eighth, %ld pages at most\n", watcher.above,
		       watcher.samples, watcher.most);
}

TEST_F_TIMEOUT(tlb_batch_demote, isolated, TLB_RS_TIMEOUT_S)
{
	struct result r = { };
	bool ok;

	pages = tlb_rs_make_pages(4 * ONE_FLUSH);
	/* Small steps, until the list has few pages: there an eighth is less than one flush. */
	set_number(SCALE, 200);
	tlb_rs_fill_node(&self->fill, 0, 1024);
	tlb_rs_forget_use();
	ASSERT_TRUE(tlb_rs_wait_for_rest(60));
	watch_begin();
	ok = demote("isolated", &self->fill, demoted_pages,
		    read_lists(0).inactive - 3 * ONE_FLUSH, &r);
	watch_end();
	ASSERT_TRUE(ok);
	EXPECT_EQ(0, tlb_rs_wrong_words(&pages));
	EXPECT_EQ(0, watcher.above);
	if (batch_is_on())
		EXPECT_GT(watcher.most, 2 * STOCK_BATCH);
}

/* Tasks of which each touches more than is free: they reclaim directly. */
static void start_task(int nr, size_t pages)
{
	struct tlb_rs_area a;
	pid_t pid = fork();

	if (pid < 0)
		ksft_exit_fail_msg("fork: %s\n", strerror(errno));
	if (pid)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	tlb_rs_pin_cpu(nr % tlb_rs_nr_cpus());
	a = tlb_rs_make_area(0, pages * psize, false);
	tlb_rs_touch_more(&a, pages);
	_exit(0);
}

/* How often tasks that reclaim beside kswapd were throttled; negative: failed. */
static long crowd(const char *name, struct tlb_rs_area *fill, int on)
{
	struct result r = { };
	long before;
	int i, status;
	bool ok;

	if (!tlb_batch_set(on))
		return -1;
	pages = tlb_rs_make_pages(8 * ONE_FLUSH);
	tlb_rs_fill_node(fill, 0, 1024);
	tlb_rs_forget_use();
	ok = tlb_rs_wait_for_rest(60);
	before = throttled();
	fflush(stdout);
	for (i = 0; i < NR_TASKS; i++)
		start_task(i + 1, 8 * ONE_FLUSH);
	ok &= demote(name, fill, demoted_pages, 0, &r);
	for (i = 0; i < NR_TASKS; i++)
		ok &= wait(&status) > 0 && !status;
	ok &= !tlb_rs_wrong_words(&pages);
	munmap(pages.base, pages.len);
	munmap(fill->base, fill->len);
	return ok ? throttled() - before : -1;
}

TEST_F_TIMEOUT(tlb_batch_demote, throttled, TLB_RS_TIMEOUT_S)
{
	long off, on;

	if (!batch_is_on())
		SKIP(return, "vm.tlb_batch is not 1");
	if (!trace_begin())
		SKIP(return, "no tracepoint mm_vmscan_throttled");
	off = crowd("crowd_off", &self->fill, 0);
	on = crowd("crowd", &self->fill, 1);
	ksft_print_msg("throttled %ld times, with vm.tlb_batch=0 %ld\n", on, off);
	ASSERT_GE(off, 0);
	ASSERT_GE(on, 0);
	EXPECT_LE(on, off);
}

/* kswapd finds no room on node 1; then swap, or nothing. */
static const char *demote_to_full(const char *name, struct tlb_rs_area *fill, bool swap)
{
	long long failed, killed;
	struct result r = { };
	struct tlb_rs_area other;

	pages = tlb_rs_make_pages(4 * ONE_FLUSH * 16);
	tlb_rs_fill_node(&other, 1, 0);
	tlb_rs_fill_until(&other, 1, tlb_rs_read_zones(1).min + ONE_FLUSH / 2);
	tlb_rs_fill_node(fill, 0, 1024);
	tlb_rs_forget_use();
	if (!tlb_rs_wait_for_rest(60))
		return "kswapd does not rest";

	failed = tlb_rs_vmstat_read("pgmigrate_fail");
	killed = tlb_rs_vmstat_read("oom_kill");
	if (!demote(name, fill, swap ? swapped_pages : scanned_pages, 2 * ONE_FLUSH, &r))
		return "kswapd did not wake or rest";
	failed = tlb_rs_vmstat_read("pgmigrate_fail") - failed;
	killed = tlb_rs_vmstat_read("oom_kill") - killed;
	ksft_print_msg("%lld demoted, %lld not, %ld on swap\n", r.demoted, failed,
		       swapped_pages());
	if (read_lists(0).isolated)
		return "pages are still isolated";
	/* With swap, kswapd of node 1 makes room there: fewer fail, or none. */
	if (!swap && !failed)
		return "node 1 was not full";
	if (!swap && swapped_pages())
		return "pages are on swap";
	if (tlb_rs_wrong_words(&pages))
		return "contents are wrong";
	return killed ? "the OOM killer came" : NULL;
}

static void swap_on_again(void)
{
	swapon(swap_path, 0);
}

/* Between min and low there is more than a CPU takes at once. */
static void far_watermarks(void)
{
	set_number(SCALE, 10);
	set_number(MIN_FREE, 16384);
}

TEST_F_TIMEOUT(tlb_batch_demote, full, TLB_RS_TIMEOUT_S)
{
	const char *bad;

	if (!*swap_path)
		SKIP(return, "no swap");
	far_watermarks();
	bad = demote_to_full("full", &self->fill, true);
	ASSERT_EQ(NULL, bad) TH_LOG("%s", bad);
}

/* The last one: kswapd gives up a node where it frees nothing. */
TEST_F_TIMEOUT(tlb_batch_demote, full_noswap, TLB_RS_TIMEOUT_S)
{
	const char *bad;

	if (*swap_path) {
		if (swapoff(swap_path))
			SKIP(return, "swapoff failed");
		tlb_rs_at_exit(swap_on_again);
	}
	far_watermarks();
	bad = demote_to_full("full_noswap", &self->fill, false);
	ASSERT_EQ(NULL, bad) TH_LOG("%s", bad);
}

int main(int argc, char **argv)
{
	char swaps[512];

	psize = getpagesize();
	goal = tlb_rs_env_number("TLB_PAGES", 4096, 1, 1 << 20);
	scale = tlb_rs_env_number("TLB_SCALE", 1000, 1, 3000);
	/* The second line has the first device. */
	if (!tlb_rs_read_file("/proc/swaps", swaps, sizeof(swaps)))
		sscanf(swaps, "%*[^\n]\n%127s", swap_path);
	tlb_rs_quiet();
	tlb_rs_skip_all(tlb_rs_no_demotion());
	return test_harness_run(argc, argv);
}
