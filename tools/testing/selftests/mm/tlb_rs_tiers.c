// SPDX-License-Identifier: GPL-2.0
/* Two tiers of memory, kswapd of the fast one, and memory for it to demote. */
#define _GNU_SOURCE
#include <ctype.h>
#include <sys/mman.h>

#include "tlb_rs_tiers.h"

#define LRU_GEN		"/sys/kernel/mm/lru_gen/enabled"
#define TIERS		"/sys/devices/virtual/memory_tiering"

#define STEP		32	/* pages that are touched until kswapd wakes */
#define IDLE_MS		400

static pid_t kswapd;

/* Of a zone of the node, or of all. */
struct tlb_rs_zones tlb_rs_read_zone(int node, const char *zone)
{
	struct tlb_rs_zones z = { };
	char line[256], name[32];
	bool inside = false;
	long n;
	int nid;
	FILE *f;

	f = fopen("/proc/zoneinfo", "r");
	if (!f)
		ksft_exit_fail_msg("/proc/zoneinfo: %s\n", strerror(errno));
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "Node %d, zone %31s", &nid, name) == 2)
			inside = nid == node && (!zone || !strcmp(name, zone));
		else if (!inside)
			continue;
		else if (sscanf(line, " pages free %ld", &n) == 1)
			z.free += n;
		else if (sscanf(line, " boost %ld", &n) == 1)
			z.boost += n;
		else if (sscanf(line, " min %ld", &n) == 1)
			z.min += n;
		else if (sscanf(line, " low %ld", &n) == 1)
			z.low += n;
		else if (sscanf(line, " high %ld", &n) == 1)
			z.high += n;
		else if (sscanf(line, " managed %ld", &n) == 1)
			z.managed += n;
	}
	fclose(f);
	return z;
}

struct tlb_rs_zones tlb_rs_read_zones(int node)
{
	return tlb_rs_read_zone(node, NULL);
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
bool tlb_rs_wait_for_rest(int seconds)
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

struct tlb_rs_area tlb_rs_make_area(int node, size_t len, bool locked)
{
	struct tlb_rs_area a = { .len = len };

	a.base = tlb_rs_mmap(len, SZ_2M);
	madvise(a.base, len, MADV_NOHUGEPAGE);
	if (!tlb_rs_bind_node(a.base, len, node))
		ksft_exit_fail_msg("mbind: %s\n", strerror(errno));
	if (locked && mlock2(a.base, len, MLOCK_ONFAULT))
		ksft_exit_fail_msg("mlock2: %s\n", strerror(errno));
	return a;
}

bool tlb_rs_touch_more(struct tlb_rs_area *a, size_t pages)
{
	for (; pages && a->used < a->len; pages--, a->used += getpagesize())
		a->base[a->used] = 1;
	return !pages;
}

/* Until so few pages of the node are free; not far beyond it. */
void tlb_rs_fill_until(struct tlb_rs_area *a, int node, long free)
{
	long left;

	while ((left = tlb_rs_read_zones(node).free - free) > 0) {
		if (!tlb_rs_touch_more(a, left > 512 ? left / 2 : STEP))
			ksft_exit_fail_msg("node %d is too large\n", node);
	}
}

/* Locked memory is not on the lists of reclaim once it has left the batches of the CPUs. */
void tlb_rs_fill_node(struct tlb_rs_area *a, int node, long above_low)
{
	*a = tlb_rs_make_area(node, tlb_rs_read_zones(node).managed * getpagesize(), true);
	tlb_rs_fill_until(a, node, tlb_rs_read_zones(node).low + above_low);
	tlb_rs_drain_pages();
	tlb_rs_fill_until(a, node, tlb_rs_read_zones(node).low + above_low);
}

/*
 * HugeTLB pages of node 0 leave so many pages free above the high watermark. That is fast, because
 * nobody touches them. False if fewer are free.
 */
bool tlb_rs_leave_room(long pages)
{
	struct tlb_rs_zones z = tlb_rs_read_zones(0);
	long more = z.free - z.high - pages;
	char buf[32];

	if (more < 0 || tlb_rs_read_file(TLB_RS_POOL, buf, sizeof(buf)))
		return false;
	snprintf(buf, sizeof(buf), "%ld", atol(buf) + more / THP_PAGES);
	return !tlb_rs_write_file(TLB_RS_POOL, buf);
}

/* Pages are touched until kswapd is woken. */
bool tlb_rs_wake_kswapd(struct tlb_rs_area *fill)
{
	long long runs = tlb_rs_vmstat_read("pageoutrun");
	long least = tlb_rs_read_zones(0).min;

	while (tlb_rs_vmstat_read("pageoutrun") == runs) {
		if (tlb_rs_read_zones(0).free < least || !tlb_rs_touch_more(fill, STEP)) {
			ksft_print_msg("kswapd does not wake\n");
			return false;
		}
		tlb_rs_sleep_us(1000);
	}
	return true;
}

size_t tlb_rs_wrong_words(const struct tlb_rs_area *a)
{
	size_t bad = tlb_rs_check(a->base, a->used, TLB_RS_TIERS_SEED);

	if (bad)
		ksft_print_msg("%zu wrong words\n", bad);
	return bad;
}

/* Pages that kswapd may demote, in the order of their addresses. */
struct tlb_rs_area tlb_rs_make_pages(size_t nr)
{
	struct tlb_rs_area a = tlb_rs_make_area(0, nr * getpagesize(), false);

	tlb_rs_fill(a.base, a.len, TLB_RS_TIERS_SEED);
	a.used = a.len;
	return a;
}

size_t tlb_rs_count_on_node(const struct tlb_rs_area *a, int node)
{
	size_t nr = a->used / getpagesize(), i, n = 0;
	void **addrs = calloc(nr, sizeof(*addrs));
	int *status = calloc(nr, sizeof(*status));

	if (!addrs || !status)
		ksft_exit_fail_msg("no memory\n");
	for (i = 0; i < nr; i++)
		addrs[i] = a->base + i * getpagesize();
	if (!tlb_rs_move_pages(0, nr, addrs, NULL, status)) {
		for (i = 0; i < nr; i++)
			n += status[i] == node;
	}
	free(addrs);
	free(status);
	return n;
}

bool tlb_rs_choose_lru(bool generations)
{
	return tlb_rs_setting(LRU_GEN, generations ? "y" : "n") || !generations;
}

/* Why kswapd of node 0 cannot demote to node 1, or NULL. */
const char *tlb_rs_no_demotion(void)
{
	if ((tlb_rs_memory_nodes() & 3) != 3)
		return "needs memory on nodes 0 and 1";
	if (access(TLB_RS_DEMOTION, W_OK) || !different_tiers())
		return "needs nodes of two tiers: HMAT, or tlb_slow_nodes=1 on the command line";
	if (tlb_rs_vmstat_read("pgdemote_kswapd") < 0)
		return "the kernel does not count demotions";
	if (!kswapd)
		kswapd = find_kswapd();
	return kswapd ? NULL : "no kswapd0";
}
