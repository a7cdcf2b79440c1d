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
#include <ctype.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/swap.h>
#include <sys/wait.h>

#include "tlb_rs_harness.h"

#define DEMOTION	"/sys/kernel/mm/numa/demotion_enabled"
#define LRU_GEN		"/sys/kernel/mm/lru_gen/enabled"
#define TIERS		"/sys/devices/virtual/memory_tiering"
#define NODE_VMSTAT	"/sys/devices/system/node/node%d/vmstat"
#define SCALE		"/proc/sys/vm/watermark_scale_factor"
#define MIN_FREE	"/proc/sys/vm/min_free_kbytes"
#define PCP_FRACTION	"/proc/sys/vm/percpu_pagelist_high_fraction"

#define SEED		17
#define ONE_FLUSH	512	/* pages */
#define STOCK_BATCH	32	/* pages that stock takes at once, or twice as many */
#define MORE_WAITS	8	/* of a wake: its first rounds look at few pages */
#define STEP		32	/* pages that are touched until kswapd wakes */
#define IDLE_MS		400
#define NR_TASKS	3	/* that reclaim directly */

static size_t psize;
static long goal;
static long scale;
static pid_t kswapd;
static char swap_path[128];	/* empty: none */

/* --- what the kernel says --------------------------------------------------------------- */

/* Pages of a node: free ones, and its watermarks, of all zones. */
struct zones {
	long free;
	long min;
	long low;
	long managed;
};

static struct zones read_zones(int node)
{
	struct zones z = { };
	char line[256];
	bool inside = false;
	long n;
	int nid;
	FILE *f;

	f = fopen("/proc/zoneinfo", "r");
	if (!f)
		ksft_exit_fail_msg("/proc/zoneinfo: %s\n", strerror(errno));
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "Node %d, zone", &nid) == 1)
			inside = nid == node;
		else if (!inside)
			continue;
		else if (sscanf(line, " pages free %ld", &n) == 1)
			z.free += n;
		else if (sscanf(line, " min %ld", &n) == 1)
			z.min += n;
		else if (sscanf(line, " low %ld", &n) == 1)
			z.low += n;
		else if (sscanf(line, " managed %ld", &n) == 1)
			z.managed += n;
	}
	fclose(f);
	return z;
}

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

static pid_t find_kswapd(void)
{
	DIR *dir = opendir("/proc");
	struct dirent *d;
	pid_t found = 0;

	while (dir && (d = readdir(dir)) && !found) {
		char path[300], comm[32];

		snprintf(path, sizeof(path), "/proc/%s/comm", d->d_name);
		if (isdigit((unsigned char)*d->d_name) &&
		    !tlb_rs_read_file(path, comm, sizeof(comm)) && !strcmp(comm, "kswapd0\n"))
			found = atoi(d->d_name);
	}
	if (dir)
		closedir(dir);
	return found;
}

static bool kswapd_sleeps(void)
{
	char path[64], stat[512];
	char *p;

	snprintf(path, sizeof(path), "/proc/%d/stat", kswapd);
	if (tlb_rs_read_file(path, stat, sizeof(stat)))
		return false;
	p = strrchr(stat, ')');
	return p && p[1] == ' ' && p[2] == 'S';
}

/* Whether kswapd has come to rest. It naps first, and may go on. */
static bool wait_for_rest(int seconds)
{
	long long before = -1, now;
	int ms, idle = 0;

	for (ms = 0; ms < seconds * 1000 && idle < IDLE_MS; ms += 50) {
		now = tlb_rs_vmstat_read("pageoutrun") + tlb_rs_vmstat_read("pgscan_kswapd");
		idle = kswapd_sleeps() && now == before ? idle + 50 : 0;
		before = now;
		tlb_rs_sleep_us(50000);
	}
	return idle >= IDLE_MS;
}

/* The nodes of a tier, as of memory_tier4/nodelist; false: the two are in the same one. */
static bool different_tiers(void)
{
	char path[512], nodes[2][64] = { };
	DIR *dir = opendir(TIERS);
	struct dirent *d;
	int tiers = 0;

	while (dir && (d = readdir(dir)) && tiers < 2) {
		snprintf(path, sizeof(path), TIERS "/%s/nodelist", d->d_name);
		if (!strncmp(d->d_name, "memory_tier", 11) && isdigit((unsigned char)d->d_name[11]))
			tiers += !tlb_rs_read_file(path, nodes[tiers], sizeof(nodes[0]));
	}
	if (dir)
		closedir(dir);
	return tiers == 2 && atoi(nodes[0]) != atoi(nodes[1]);
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

/* --- memory ------------------------------------------------------------------------------ */

struct area {
	char *base;
	size_t len;
	size_t used;		/* touched */
};

static struct area make_area(int node, size_t len, bool locked)
{
	struct area a = { .len = len };

	a.base = tlb_rs_mmap(len, SZ_2M);
	madvise(a.base, len, MADV_NOHUGEPAGE);
	if (!tlb_rs_bind_node(a.base, len, node))
		ksft_exit_fail_msg("mbind: %s\n", strerror(errno));
	if (locked && mlock2(a.base, len, MLOCK_ONFAULT))
		ksft_exit_fail_msg("mlock2: %s\n", strerror(errno));
	return a;
}

static bool touch_more(struct area *a, size_t pages)
{
	for (; pages && a->used < a->len; pages--, a->used += psize)
		a->base[a->used] = 1;
	return !pages;
}

/* Until so few pages of the node are free; not far beyond it. */
static void fill_until(struct area *a, int node, long free)
{
	long left;

	while ((left = read_zones(node).free - free) > 0) {
		if (!touch_more(a, left > 512 ? left / 2 : STEP))
			ksft_exit_fail_msg("node %d is too large\n", node);
	}
}

/* Locked memory is not on the lists of reclaim once it has left the batches of the CPUs. */
static void fill_node(struct area *a, int node, long above_low)
{
	*a = make_area(node, read_zones(node).managed * psize, true);
	fill_until(a, node, read_zones(node).low + above_low);
	tlb_rs_drain_pages();
	fill_until(a, node, read_zones(node).low + above_low);
}

/* Pages are touched until kswapd is woken. */
static bool wake_kswapd(struct area *fill)
{
	long long runs = tlb_rs_vmstat_read("pageoutrun");
	long least = read_zones(0).min;

	while (tlb_rs_vmstat_read("pageoutrun") == runs) {
		if (read_zones(0).free < least || !touch_more(fill, STEP)) {
			ksft_print_msg("kswapd does not wake\n");
			return false;
		}
		tlb_rs_sleep_us(1000);
	}
	return true;
}

static size_t wrong_words(const struct area *a)
{
	size_t bad = tlb_rs_check(a->base, a->used, SEED);

	if (bad)
		ksft_print_msg("%zu wrong words\n", bad);
	return bad;
}

/* Pages that kswapd may demote, in the order of their addresses. */
static struct area make_pages(size_t nr)
{
	struct area a = make_area(0, nr * psize, false);

	tlb_rs_fill(a.base, a.len, SEED);
	a.used = a.len;
	return a;
}

static size_t count_on_node(const struct area *a, int node)
{
	size_t nr = a->used / psize, i, n = 0;
	void **addrs = calloc(nr, sizeof(*addrs));
	int *status = calloc(nr, sizeof(*status));

	if (!addrs || !status)
		ksft_exit_fail_msg("no memory\n");
	for (i = 0; i < nr; i++)
		addrs[i] = a->base + i * psize;
	if (!tlb_rs_move_pages(0, nr, addrs, NULL, status)) {
		for (i = 0; i < nr; i++)
			n += status[i] == node;
	}
	free(addrs);
	free(status);
	return n;
}

/* --- cases ------------------------------------------------------------------------------- */

struct result {
	long long demoted;
	long long wakes;
	long long waits;	/* -1: not counted */
};

static struct area pages;	/* of the case */

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
	return count_on_node(&pages, 1);
}

/* kswapd is woken until @count() has grown by @least. */
static bool demote(const char *name, struct area *fill, long (*count)(void), long least,
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
		ok = wake_kswapd(fill) && wait_for_rest(120);
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

static bool choose_lru(bool generations)
{
	return tlb_rs_setting(LRU_GEN, generations ? "y" : "n") || !generations;
}

FIXTURE(tlb_batch_demote) {
	struct area fill;
};

FIXTURE_SETUP(tlb_batch_demote)
{
	tlb_rs_undo();
	tlb_rs_pin_cpu(0);
	if (!tlb_rs_setting(DEMOTION, "1"))
		SKIP(return, "no demotion");
	if (!choose_lru(false))
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
static const char *demote_all(const char *name, struct area *fill)
{
	struct result r = { };

	pages = make_pages(4 * ONE_FLUSH * 16);
	fill_node(fill, 0, 1024);
	tlb_rs_forget_use();
	if (!wait_for_rest(60))
		return "kswapd does not rest";
	if (!demote(name, fill, moved_pages, goal, &r))
		return "kswapd did not demote enough";
	if (wrong_words(&pages))
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

	if (!choose_lru(true))
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

	pages = make_pages(4 * ONE_FLUSH);
	/* Small steps, until the list has few pages: there an eighth is less than one flush. */
	set_number(SCALE, 200);
	fill_node(&self->fill, 0, 1024);
	tlb_rs_forget_use();
	ASSERT_TRUE(wait_for_rest(60));
	watch_begin();
	ok = demote("isolated", &self->fill, demoted_pages,
		    read_lists(0).inactive - 3 * ONE_FLUSH, &r);
	watch_end();
	ASSERT_TRUE(ok);
	EXPECT_EQ(0, wrong_words(&pages));
	EXPECT_EQ(0, watcher.above);
	if (batch_is_on())
		EXPECT_GT(watcher.most, 2 * STOCK_BATCH);
}

/* Tasks of which each touches more than is free: they reclaim directly. */
static void start_task(int nr, size_t pages)
{
	struct area a;
	pid_t pid = fork();

	if (pid < 0)
		ksft_exit_fail_msg("fork: %s\n", strerror(errno));
	if (pid)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	tlb_rs_pin_cpu(nr % tlb_rs_nr_cpus());
	a = make_area(0, pages * psize, false);
	touch_more(&a, pages);
	_exit(0);
}

/* How often tasks that reclaim beside kswapd were throttled; negative: failed. */
static long crowd(const char *name, struct area *fill, int on)
{
	struct result r = { };
	long before;
	int i, status;
	bool ok;

	if (!tlb_batch_set(on))
		return -1;
	pages = make_pages(8 * ONE_FLUSH);
	fill_node(fill, 0, 1024);
	tlb_rs_forget_use();
	ok = wait_for_rest(60);
	before = throttled();
	fflush(stdout);
	for (i = 0; i < NR_TASKS; i++)
		start_task(i + 1, 8 * ONE_FLUSH);
	ok &= demote(name, fill, demoted_pages, 0, &r);
	for (i = 0; i < NR_TASKS; i++)
		ok &= wait(&status) > 0 && !status;
	ok &= !wrong_words(&pages);
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
static const char *demote_to_full(const char *name, struct area *fill, bool swap)
{
	long long failed, killed;
	struct result r = { };
	struct area other;

	pages = make_pages(4 * ONE_FLUSH * 16);
	fill_node(&other, 1, 0);
	fill_until(&other, 1, read_zones(1).min + ONE_FLUSH / 2);
	fill_node(fill, 0, 1024);
	tlb_rs_forget_use();
	if (!wait_for_rest(60))
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
	if (wrong_words(&pages))
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

static const char *missing(void)
{
	if ((tlb_rs_memory_nodes() & 3) != 3)
		return "needs memory on nodes 0 and 1";
	if (access(DEMOTION, W_OK) || !different_tiers())
		return "needs nodes of two tiers: tlb_slow_nodes=1 on the command line";
	if (tlb_rs_vmstat_read("pgdemote_kswapd") < 0)
		return "the kernel does not count demotions";
	return kswapd ? NULL : "no kswapd0";
}

int main(int argc, char **argv)
{
	char swaps[512];

	psize = getpagesize();
	goal = tlb_rs_env_number("TLB_PAGES", 4096, 1, 1 << 20);
	scale = tlb_rs_env_number("TLB_SCALE", 1000, 1, 3000);
	kswapd = find_kswapd();
	/* The second line has the first device. */
	if (!tlb_rs_read_file("/proc/swaps", swaps, sizeof(swaps)))
		sscanf(swaps, "%*[^\n]\n%127s", swap_path);
	tlb_rs_quiet();
	tlb_rs_skip_all(missing());
	return test_harness_run(argc, argv);
}
