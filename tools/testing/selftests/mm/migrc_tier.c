// SPDX-License-Identifier: GPL-2.0
/*
 * Pages are demoted from node 0 to node 1, a slower tier (HMAT, or tlb_slow_nodes=1 on the command
 * line).
 * A task that drains before it relies on them may defer their flushes; other tasks may not.
 *
 * The pages are read-only and were touched in a random order, so that neither the batch of a
 * flush nor the fold of a block serves several of them. Three threads on other CPUs run in this
 * process. Nothing is drained for its age. A step is high - low, the watermarks of node 0.
 *
 * proactive	memory.reclaim. One flush for each step, and one when the write returns: then
 *		nothing is held.
 * again	The same where the cgroup has not so much: the write fails, and nothing is held.
 * classic	kswapd and the two LRU lists. One flush for each step, and one for each time that
 *		it wakes. It sleeps with nothing held.
 * mglru	The same for the multi-generational LRU.
 * overshoot	kswapd stops demoting when it has reached its watermark, with what it holds.
 * short	Free memory is close to the min watermark: kswapd defers nothing.
 * step		Never more than a step is held.
 * cycle	Pages that were written are demoted, promoted by NUMA hint faults of a reader, and
 *		demoted again. The second time they are not writable: 95 of 100 are deferred.
 * direct	The limit of a cgroup demotes: nothing is deferred.
 * throttled	A task waits until half of the min watermark is free, or kswapd gives up. kswapd
 *		holds all that it demotes, and drains for it. (Hook "gate" is removed, or kswapd
 *		would hold nothing there, and those of other drains.)
 * oom		All that a task can get is held: it drains, and nobody is killed. (Hook "gate" is
 *		removed, and those of other drains.)
 * zones	As "classic" where node 0 has two zones, each with a half of what is demoted.
 * boost	The same two zones, and there is enough free memory. But the watermarks are boosted,
 *		because pages that cannot move take what is left of movable blocks. For that kswapd
 *		demotes pages of files only, in many small passes, and drains once for a wake.
 *		TLB_DIR is on a disk.
 *
 * TLB_SKIP removes a rule, for the case that is to fail then. With TLB_MIGRC=0 nothing is
 * deferred: proactive, classic and mglru only print what the same costs then, also on a kernel
 * without migrc. TLB_SCALE is vm.watermark_scale_factor of these cases.
 */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "migrc_harness.h"
#include "migrc_tier.h"

#define PCP_FRACTION	"/proc/sys/vm/percpu_pagelist_high_fraction"
#define NUMA_BALANCING	"/proc/sys/kernel/numa_balancing"
#define HOT_THRESHOLD	"/sys/kernel/debug/sched/numa_balancing/hot_threshold_ms"

#define NR_PAGES	4096
#define NR_READERS	3
#define AGE_MS		60000	/* nothing is drained for its age */
#define MAX_PAGES	1000000	/* a step is less */

struct migrc_options asked;
size_t psize;
long nr_pages;
bool defers;		/* vm.migrc_enable */
static bool has_migrc;
static long scale;
static struct tlb_rs_readers readers;
struct tlb_rs_area pages;

long step(void)
{
	struct tlb_rs_zones z = tlb_rs_read_zones(0);

	return z.high - z.low;
}

static void read_result(struct result *r)
{
	r->demoted = tlb_rs_vmstat_read("pgdemote_kswapd") +
		     tlb_rs_vmstat_read("pgdemote_direct") +
		     tlb_rs_vmstat_read("pgdemote_proactive");
	r->deferred = tlb_rs_vmstat_read("migrc_deferred_demote");
	r->wakes = tlb_rs_vmstat_read("pageoutrun");
	r->drains = migrc_stat("drain", "round") + migrc_stat("drain", "limit");
}

/* @demote() in a region. False if it has failed. */
bool measure(const char *name, bool (*demote)(void), struct result *r)
{
	struct tlb_rs_counters c;
	struct result before;
	char region[48], extra[256];
	size_t len;
	bool ok;

	read_result(&before);
	tlb_rs_begin(&c);
	ok = demote();
	tlb_rs_end(&c);
	read_result(r);
	r->demoted -= before.demoted;
	r->deferred -= before.deferred;
	r->wakes -= before.wakes;
	r->drains -= before.drains;
	r->flushes = c.vmstat[TLB_RS_VMSTAT_FLUSH];

	snprintf(region, sizeof(region), "tier_%s", name);
	len = snprintf(extra, sizeof(extra), ",\"migrc\":%d,\"units\":%lld,\"deferred\":%lld",
		       defers, r->demoted, r->deferred);
	snprintf(extra + len, sizeof(extra) - len, ",\"wakes\":%lld,\"drains\":%lld,\"step\":%ld",
		 r->wakes, r->drains, step());
	tlb_rs_json_region(region, extra, &c);
	return ok;
}

/* Memory that does not look used, each page of it by its own words. */
static void make_pages(size_t nr, bool bound)
{
	size_t *order = calloc(nr, sizeof(*order)), i, j, old;
	unsigned int seed = 1;

	if (!order)
		ksft_exit_fail_msg("no memory\n");
	if (bound) {
		pages = tlb_rs_make_area(0, nr * psize, false);
	} else {
		pages = (struct tlb_rs_area) { .len = nr * psize };
		pages.base = tlb_rs_mmap(pages.len, SZ_2M);
		madvise(pages.base, pages.len, MADV_NOHUGEPAGE);
	}
	for (i = 0; i < nr; i++)
		order[i] = i;
	for (i = nr; i > 1; i--) {
		j = tlb_rs_rnd(&seed) % i;
		old = order[j];
		order[j] = order[i - 1];
		order[i - 1] = old;
	}
	for (i = 0; i < nr; i++)
		pages.base[order[i] * psize] = 1;
	free(order);
	tlb_rs_fill(pages.base, pages.len, TLB_RS_TIERS_SEED);
	pages.used = pages.len;
	tlb_rs_drain_lru();
}

void make_readonly_pages(size_t nr)
{
	make_pages(nr, true);
	mprotect(pages.base, pages.len, PROT_READ);
	tlb_rs_forget_use();
}

void set_number(const char *path, long val)
{
	char buf[32];

	snprintf(buf, sizeof(buf), "%ld", val);
	if (!tlb_rs_setting(path, buf))
		ksft_exit_fail_msg("cannot write %s\n", path);
}

FIXTURE(migrc_tier) {
	char *other;		/* the page that the readers read */
};

FIXTURE_SETUP(migrc_tier)
{
	if (!has_migrc)
		tlb_rs_undo();
	else if (!migrc_begin(_metadata, &asked))
		return;
	if (has_migrc)
		migrc_write(MIGRC_ENABLE, defers);
	tlb_rs_pin_cpu(0);
	if (!tlb_rs_setting(TLB_RS_DEMOTION, "1"))
		SKIP(return, "no demotion");
	if (!tlb_rs_choose_lru(false))
		SKIP(return, "no LRU lists");
	set_number(SCALE, scale);
	/* Else each CPU would hold a thousand free pages. */
	set_number(PCP_FRACTION, 1 << 20);
	self->other = tlb_rs_mmap(psize, psize);
	self->other[0] = 1;
	tlb_rs_readers_start(&readers, NR_READERS, true, self->other, psize);
	/* Only what a case maps is demoted. */
	mlockall(MCL_CURRENT);
}

FIXTURE_TEARDOWN_PARENT(migrc_tier)
{
	tlb_rs_tear_down();
}

/* --- memory.reclaim --------------------------------------------------------------------- */

static size_t reclaim_bytes;

static bool reclaim(void)
{
	return tlb_rs_cgroup_reclaim(reclaim_bytes, " swappiness=max");
}

static bool in_cgroup(void)
{
	if (!tlb_rs_cgroup())
		return false;
	tlb_rs_cgroup_enter();
	return true;
}

TEST_F_TIMEOUT(migrc_tier, proactive, TLB_RS_TIMEOUT_S)
{
	struct result r;

	if (!in_cgroup())
		SKIP(return, "no memory.reclaim");
	make_readonly_pages(nr_pages);
	reclaim_bytes = pages.len;
	ASSERT_TRUE(measure("proactive", reclaim, &r));
	EXPECT_LE(migrc_held(-1), 0);
	EXPECT_GE(r.demoted, nr_pages * 9 / 10);
	EXPECT_EQ(0UL, tlb_rs_wrong_words(&pages));
	if (!defers)
		return;
	EXPECT_GE(r.deferred, r.demoted * 95 / 100);
	EXPECT_LE(r.drains, 1 + r.demoted / step());
	EXPECT_LE(r.flushes, 1);
}

TEST_F_TIMEOUT(migrc_tier, again, TLB_RS_TIMEOUT_S)
{
	struct result r;

	if (!in_cgroup())
		SKIP(return, "no memory.reclaim");
	make_readonly_pages(nr_pages / 4);
	reclaim_bytes = 64 * pages.len;
	ASSERT_TRUE(measure("again", reclaim, &r));
	EXPECT_GT(r.deferred, 0);
	EXPECT_EQ(0, migrc_held(-1));
	EXPECT_EQ(0UL, tlb_rs_wrong_words(&pages));
}

static struct migrc_watch watch;

TEST_F_TIMEOUT(migrc_tier, step, TLB_RS_TIMEOUT_S)
{
	struct result r;

	if (!in_cgroup())
		SKIP(return, "no memory.reclaim");
	set_number(SCALE, 10);
	set_number(MIN_FREE, 2048);
	make_readonly_pages(nr_pages);
	ASSERT_LT(4 * step(), nr_pages);
	reclaim_bytes = pages.len;
	migrc_watch_begin(&watch);
	ASSERT_TRUE(measure("step", reclaim, &r));
	migrc_watch_end(&watch);
	ksft_print_msg("at most %lld held, a step has %ld pages\n", watch.most, step());
	EXPECT_GE(r.deferred, r.demoted * 95 / 100);
	EXPECT_GT(watch.most, 0);
	/* A page is counted, and then there is found to be more than a step. */
	EXPECT_LE(watch.most, step() + 1);
	EXPECT_LE(r.drains, 1 + r.demoted / step());
}

/* --- promotion -------------------------------------------------------------------------- */

/* A reader of all pages gets them back to node 0. */
static bool promote(void)
{
	const __u64 end = tlb_rs_now_ns() + 60000000000ULL;
	size_t i, back;

	tlb_rs_write_file(NUMA_BALANCING, "2");
	do {
		for (i = 0; i < pages.len; i += psize)
			__atomic_load_n(pages.base + i, __ATOMIC_RELAXED);
		back = tlb_rs_count_on_node(&pages, 0);
	} while (back < pages.len / psize * 98 / 100 && tlb_rs_now_ns() < end);
	tlb_rs_write_file(NUMA_BALANCING, "0");
	ksft_print_msg("%zu of %zu pages were promoted\n", back, pages.len / psize);
	return back >= pages.len / psize * 9 / 10;
}

TEST_F_TIMEOUT(migrc_tier, cycle, TLB_RS_TIMEOUT_S)
{
	long long writable = migrc_stat("denied", "writable");
	struct result first, second;

	if (!in_cgroup())
		SKIP(return, "no memory.reclaim");
	if (!tlb_rs_numa_scans() || !tlb_rs_setting(HOT_THRESHOLD, "60000"))
		SKIP(return, "no NUMA balancing, or no debugfs");
	/* The scan leaves memory alone that is bound to a node. */
	make_pages(nr_pages, false);
	tlb_rs_forget_use();
	reclaim_bytes = pages.len;
	ASSERT_TRUE(measure("written", reclaim, &first));
	writable = migrc_stat("denied", "writable") - writable;
	EXPECT_GE(first.demoted, nr_pages * 9 / 10);
	EXPECT_GE(writable, first.demoted * 9 / 10);

	ASSERT_TRUE(promote());
	tlb_rs_forget_use();
	ASSERT_TRUE(measure("promoted", reclaim, &second));
	EXPECT_GE(second.demoted, nr_pages * 9 / 10);
	EXPECT_GE(second.deferred, second.demoted * 95 / 100);
	EXPECT_EQ(0, migrc_held(-1));
	EXPECT_EQ(0UL, tlb_rs_wrong_words(&pages));
}

/* --- kswapd ------------------------------------------------------------------------------ */

struct tlb_rs_area fill;

bool wake(void)
{
	return tlb_rs_wake_kswapd(&fill) && tlb_rs_wait_for_rest(120);
}

/* The same where less is free than the min watermark, and nothing can be done about it. */
bool wake_short(void)
{
	long long runs = tlb_rs_vmstat_read("pageoutrun");

	while (tlb_rs_vmstat_read("pageoutrun") == runs) {
		if (!tlb_rs_touch_more(&fill, 1))
			return false;
	}
	return tlb_rs_wait_for_rest(120);
}

bool wake_until_moved(void)
{
	while (tlb_rs_count_on_node(&pages, 1) < (size_t)nr_pages) {
		if (!wake())
			return false;
	}
	return true;
}

/* The rest of node 0 is filled, until little is missing for kswapd to wake. */
bool prepare(size_t nr)
{
	make_readonly_pages(nr);
	tlb_rs_fill_node(&fill, 0, 1024);
	tlb_rs_forget_use();
	return tlb_rs_wait_for_rest(60);
}

static const char *kswapd_demotes(const char *name)
{
	struct result r;

	if (!prepare(4 * nr_pages))
		return "kswapd does not rest";
	if (!measure(name, wake_until_moved, &r))
		return "kswapd did not demote enough";
	if (migrc_held(-1) > 0)
		return "kswapd sleeps, and pages are held";
	if (tlb_rs_wrong_words(&pages))
		return "contents are wrong";
	if (!defers)
		return NULL;
	/* Files in memory are demoted, too, and are not deferred. */
	if (r.deferred < (long long)tlb_rs_count_on_node(&pages, 1) * 95 / 100)
		return "too few were deferred";
	return r.drains > r.wakes + r.demoted / step() ? "too many drains" : NULL;
}

TEST_F_TIMEOUT(migrc_tier, classic, TLB_RS_TIMEOUT_S)
{
	const char *bad = kswapd_demotes("classic");

	ASSERT_EQ(NULL, bad) TH_LOG("%s", bad);
}

TEST_F_TIMEOUT(migrc_tier, mglru, TLB_RS_TIMEOUT_S)
{
	const char *bad;

	if (!tlb_rs_choose_lru(true))
		SKIP(return, "no multi-generational LRU");
	bad = kswapd_demotes("mglru");
	ASSERT_EQ(NULL, bad) TH_LOG("%s", bad);
}

TEST_F_TIMEOUT(migrc_tier, overshoot, TLB_RS_TIMEOUT_S)
{
	struct tlb_rs_zones z;
	struct result r;

	if (!tlb_rs_choose_lru(true))
		SKIP(return, "no multi-generational LRU");
	ASSERT_TRUE(prepare(16 * nr_pages));
	ASSERT_TRUE(measure("overshoot", wake, &r));
	z = tlb_rs_read_zones(0);
	ksft_print_msg("%ld pages are free, the high watermark is at %ld\n", z.free, z.high);
	EXPECT_GT(r.deferred, BATCH);
	EXPECT_GE(z.free, z.high);
	/* It takes several batches before it looks, and others free memory, too. */
	EXPECT_LE(z.free, z.high + 4 * BATCH);
}

TEST_F_TIMEOUT(migrc_tier, short, TLB_RS_TIMEOUT_S)
{
	long long denied = migrc_stat("denied", "memory");
	struct tlb_rs_zones z;
	struct result r;

	/* From min to low there is more than all that can be demoted, files in memory included. */
	set_number(SCALE, 3000);
	ASSERT_TRUE(prepare(2 * BATCH));
	z = tlb_rs_read_zones(0);
	/* It is for all nodes, by their size. */
	set_number(MIN_FREE, 2 * (z.free + BATCH) * psize / 1024);
	ASSERT_TRUE(measure("short", wake_short, &r));
	z = tlb_rs_read_zones(0);
	ksft_print_msg("%ld pages are free, min is at %ld, low at %ld\n", z.free, z.min, z.low);
	ASSERT_LT(2 * z.free, z.min + z.low);
	EXPECT_GE(migrc_stat("denied", "memory") - denied, BATCH);
	EXPECT_EQ(0, r.deferred);
}

/* --- who may not ------------------------------------------------------------------------- */

static bool lower_limit(void)
{
	return !tlb_rs_write_file(TLB_RS_CGROUP "memory.high", "1M");
}

static void no_limit(void)
{
	tlb_rs_write_file(TLB_RS_CGROUP "memory.high", "max");
}

TEST_F_TIMEOUT(migrc_tier, direct, TLB_RS_TIMEOUT_S)
{
	long long denied = migrc_stat("denied", "reason");
	struct result r;

	if (!in_cgroup())
		SKIP(return, "no memory.reclaim");
	make_readonly_pages(nr_pages);
	tlb_rs_cgroup_leave();
	tlb_rs_at_exit(no_limit);
	ASSERT_TRUE(measure("direct", lower_limit, &r));
	EXPECT_GT(r.demoted, BATCH);
	EXPECT_EQ(0, r.deferred);
	EXPECT_GE(migrc_stat("denied", "reason") - denied, r.demoted * 9 / 10);
}

/* --- who needs what kswapd holds --------------------------------------------------------- */

static void judge(struct __test_metadata *_metadata, const char *bad)
{
	if (tier_skipped)
		SKIP(return, "%s", tier_skipped);
	EXPECT_EQ(NULL, bad) TH_LOG("%s", bad);
}

TEST_F_TIMEOUT(migrc_tier, throttled, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, tier_throttled());
}

TEST_F_TIMEOUT(migrc_tier, oom, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, tier_oom());
}

/* --- zones ------------------------------------------------------------------------------- */

TEST_F_TIMEOUT(migrc_tier, zones, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, tier_zones());
}

TEST_F_TIMEOUT(migrc_tier, boost, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, tier_boost());
}

int main(int argc, char **argv)
{
	psize = getpagesize();
	nr_pages = tlb_rs_env_number("TLB_PAGES", NR_PAGES, BATCH, 1 << 20);
	defers = tlb_rs_env_number("TLB_MIGRC", 1, 0, 1);
	scale = tlb_rs_env_number("TLB_SCALE", 1000, 1, 3000);
	migrc_ask(&asked);
	tlb_rs_skip_all(tlb_rs_no_demotion());
	has_migrc = defers || !access(MIGRC_ENABLE, F_OK);
	if (has_migrc) {
		tlb_rs_skip_all(migrc_missing(NR_READERS + 1));
		migrc_init(NR_READERS + 1, MAX_PAGES, AGE_MS);
		tlb_rs_skip_all(migrc_has_stats() ? NULL : "no " MIGRC_STATS);
	}
	return test_harness_run(argc, argv);
}
