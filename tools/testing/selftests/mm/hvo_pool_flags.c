// SPDX-License-Identifier: GPL-2.0
/* Entries that change by their access flags, while other CPUs use them. */
#include "hvo_pool.h"

/* How many pages of a pool are optimised, and how many are not. */
bool counted(unsigned long kb, long *optimized, long *others)
{
	char path[128];

	snprintf(path, sizeof(path), HUGEPAGES, kb, "optimized_hugepages");
	*optimized = get(path);
	snprintf(path, sizeof(path), HUGEPAGES, kb, "unoptimized_hugepages");
	*others = get(path);
	return *optimized + *others == pool(kb);
}

/* Of all pools: exactly what the files say was saved, since @before. */
static bool all_is_right(long before, bool walk)
{
	long want = 0, optimized, others;
	bool ok = true;

	for (int i = 0; i < nr_sizes; i++) {
		ok &= counted(sizes[i], &optimized, &others);
		want += optimized * spare_pages(sizes[i]);
	}
	if (!ok || before - memmap() != want)
		ksft_print_msg("%ld pages of struct pages saved, not %ld\n", before - memmap(),
			       want);
	return ok && before - memmap() == want && (!walk || verify(want));
}

/*
 * One in so many exchanges fails: at each place of a page in turn, because its entries are
 * exchanged in order. All of them: what is optional is left as it was.
 */
bool test_young(void)
{
	static const long every[] = { 1, 2, 3, 5, 7, 8, 9, 11, 4095, 4097 };
	long before = memmap(), left = 0, optimized, others;
	long long young = tlb_rs_vmstat_read("hvo_young");
	long long flushes = tlb_rs_vmstat_read("hvo_flush");
	long long stopped = stops();
	bool ok = true;

	for (size_t n = 0; n < ARRAY_SIZE(every); n++) {
		for (int i = 0; i < nr_sizes; i++) {
			long nr = optimizable(sizes[i]) ? few(sizes[i], 8) : 0;

			if (!nr)
				continue;
			set_num(HVO_DEBUG "fail_swap", every[n]);
			nr = resize(sizes[i], nr);
			ok &= counted(sizes[i], &optimized, &others) && all_is_right(before, true);
			if (every[n] == 1) {
				ok &= !optimized;
				set_num(HVO_DEBUG "fail_swap", 0);
			}
			left += others;
			ok &= !resize(sizes[i], 0) && all_is_right(before, true);
		}
	}
	set_num(HVO_DEBUG "fail_swap", 0);
	young = tlb_rs_vmstat_read("hvo_young") - young;
	flushes = tlb_rs_vmstat_read("hvo_flush") - flushes;
	ksft_print_msg("%ld pages were left as they were, the others stopped %lld times\n", left,
		       stops() - stopped);
	ksft_print_msg("%lld invalidations, %lld entries in vain\n", flushes, young);
	return ok && left && young > 0 && flushes > 0 && memmap() == before;
}

#define WORKER_S	60

/* Whether all pages of a pool are optimised within a minute. */
static bool optimized_soon(unsigned long kb)
{
	__u64 end = tlb_rs_now_ns() + WORKER_S * 1000000000ULL;
	long optimized, others;

	do {
		if (counted(kb, &optimized, &others) && !others)
			return true;
		tlb_rs_sleep_us(50000);
	} while (tlb_rs_now_ns() < end);
	ksft_print_msg("%ld optimised and %ld others after a minute\n", optimized, others);
	return false;
}

/* A pool that grew while other CPUs used everything. */
bool test_late_worker(void)
{
	unsigned long kb = hvo_small_size();
	long before = memmap(), nr = some(kb);
	bool ok;

	set_num(HVO_DEBUG "fail_swap", 1);
	nr = resize(kb, nr);
	ok = nr && counts_are(kb, 0, nr) && all_is_right(before, true);
	set_num(HVO_PARAM "retry_s", 1);
	tlb_rs_sleep_us(2000000);
	ok &= all_is_right(before, false);
	set_num(HVO_DEBUG "fail_swap", 0);
	ok &= optimized_soon(kb);
	set_num(HVO_PARAM "retry_s", 0);
	return ok && all_is_right(before, true) && !resize(kb, 0) && memmap() == before;
}

/* Off: pages that are free stay what they are. On again: the worker finds them. */
bool test_off(void)
{
	unsigned long kb = hvo_small_size();
	long before = memmap(), nr = some(kb), optimized, others;
	bool ok;

	nr = resize(kb, nr);
	ok = nr && counts_are(kb, nr, 0);
	set(HVO_SWITCH, "0");
	/* They keep what they have given back, and new ones give nothing. */
	ok &= resize(kb, nr + 1) == nr + 1 && counts_are(kb, nr, 1);
	set_num(HVO_PARAM "retry_s", 1);
	for (int i = 0; ok && i < 20; i++) {
		set(HVO_SWITCH, i & 1 ? "0" : "1");
		ok &= counted(kb, &optimized, &others) && optimized >= nr;
		tlb_rs_sleep_us(100000);
	}
	tlb_rs_sleep_us(2000000);
	ok &= all_is_right(before, true);
	set(HVO_SWITCH, "1");
	ok &= optimized_soon(kb);
	set_num(HVO_PARAM "retry_s", 0);
	return ok && all_is_right(before, true) && !resize(kb, 0) && memmap() == before;
}

const char *cannot_be_late(void)
{
	if (nr_cpus < 2 || access(HVO_DEBUG "flagless_cpu", W_OK))
		return "needs 2 CPUs and CONFIG_TLB_RS_FAULT_INJECTION";
	return hvo_by_flags() ? NULL : "CPUs do not set the access flag";
}

/*
 * If HVO is on since boot, a CPU that does not set access flags does not come up. arm64 takes it
 * for broken then: it never does.
 */
bool test_late(void)
{
	bool final = stat_of("access_flag") == 2, came;
	unsigned long kb = hvo_small_size();
	char path[64];

	snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%ld/online", nr_cpus - 1);
	if (!set(path, "0"))
		return false;
	set_num(HVO_DEBUG "flagless_cpu", nr_cpus - 1);
	set(path, "1");
	came = get(path);
	set_num(HVO_DEBUG "flagless_cpu", UINT32_MAX);
	ksft_print_msg("it %s, HVO was %s at boot\n", came ? "came up" : "did not come up",
		       final ? "on" : "off");
	return came != final && cycle(kb, few(kb, 16));
}

/* --- what other CPUs write and see -------------------------------------------------- */

/* The worker optimises a page. Before each invalidation another CPU counts in its struct pages. */
bool test_writes(void)
{
	unsigned long kb = hvo_small_size();
	long before = memmap(), lost, nr;
	bool ok;

	set(HVO_SWITCH, "0");
	ok = resize(kb, 1) == 1 && counts_are(kb, 0, 1);
	ok &= set_num(HVO_DEBUG "count_pfn", free_frame(kb) - kb * 1024 / psize / 2);
	set(HVO_SWITCH, "1");
	set_num(HVO_PARAM "retry_s", 1);
	ok &= optimized_soon(kb);
	set_num(HVO_PARAM "retry_s", 0);
	nr = get(HVO_DEBUG "counted");
	lost = get(HVO_DEBUG "count_pfn");
	set_num(HVO_DEBUG "count_pfn", 0);
	ksft_print_msg("%ld of %ld values were lost\n", lost, nr);
	return all_is_right(before, true) && !resize(kb, 0) && ok && nr && !lost;
}

/* A page is demoted. One in three exchanges fails, and heads are looked for before each try. */
bool test_heads(void)
{
	unsigned long to = hvo_small_size(), from;
	long before = memmap(), strays;
	char path[128];
	bool ok;

	from = one_to_demote(to, 2);
	if (!from)
		return false;
	ok = set_num(HVO_DEBUG "heads_pfn", free_frame(from) - from * 1024 / psize / 2);
	set_num(HVO_DEBUG "fail_swap", 3);
	snprintf(path, sizeof(path), HUGEPAGES, from, "demote");
	ok &= set_num(path, 1);
	set_num(HVO_DEBUG "fail_swap", 0);
	strays = get(HVO_DEBUG "heads_pfn");
	set_num(HVO_DEBUG "heads_pfn", 0);
	ok &= pool(to) == (long)(from / to) && before - memmap() == pool(to) * spare_pages(to);
	ksft_print_msg("one of %lu kB: %ld times a tail had no head\n", from, strays);
	return !resize(to, 0) && ok && !strays && memmap() == before && verify(0);
}

/* --- everything at once ------------------------------------------------------------ */

static void storm_demote(unsigned long kb)
{
	char path[128];

	snprintf(path, sizeof(path), HUGEPAGES, kb, "demote");
	if (pool(kb) && !access(path, W_OK))
		set_num(path, 1);
}

static void storm_surplus(unsigned long kb)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | __builtin_ctzl(kb * 1024) << 26;
	char path[128];
	char *p;

	/* Gigantic pages come from the pool only. */
	if (gigantic(kb))
		return;
	snprintf(path, sizeof(path), HUGEPAGES, kb, "nr_overcommit_hugepages");
	set_num(path, 2);
	p = mmap(NULL, 2 * kb * 1024, PROT_READ | PROT_WRITE, flags, -1, 0);
	if (p != MAP_FAILED) {
		p[0] = 1;
		munmap(p, 2 * kb * 1024);
	}
	set_num(path, 0);
}

static void storm_cpu(unsigned int random)
{
	char path[64];

	snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%ld/online", nr_cpus - 1);
	if (nr_cpus > 2 && !access(path, W_OK))
		set_num(path, random & 1);
}

static void storm_step(unsigned int random)
{
	unsigned long kb = sizes[random / 64 % nr_sizes];
	unsigned int much = random / 4096;

	if (!optimizable(kb))
		return;
	switch (random % 16) {
	case 0:
		storm_demote(kb);
		break;
	case 1:
		storm_surplus(kb);
		break;
	case 2:
		set_num(HVO_SWITCH, much % 4 > 0);
		break;
	case 3:
		set_num(HVO_DEBUG "fail_swap", much % 4 ? 0 : 2 + much % 61);
		break;
	case 4:
		set_num(HVO_DEBUG "stall_us", much % 4 ? 0 : 500);
		break;
	case 5:
		storm_cpu(much);
		break;
	case 6:
		set_num(HVO_PARAM "retry_s", 1);
		tlb_rs_sleep_us(1500000);
		set_num(HVO_PARAM "retry_s", 0);
		/* It may have been at work. */
		tlb_rs_sleep_us(200000);
		break;
	default:
		resize(kb, much % (few(kb, kb >= 1UL << 20 ? 2 : 128) + pool(kb) + 1));
	}
}

bool test_storm(int seconds)
{
	__u64 end = tlb_rs_now_ns() + seconds * 1000000000ULL;
	unsigned int seed = tlb_rs_env_number("TLB_SEED", 1, 1, INT32_MAX), state = seed;
	long before = memmap(), steps = 0;
	long long stopped = stops();
	bool ok = true;

	hvo_others_begin();
	while (ok && tlb_rs_now_ns() < end) {
		storm_step(tlb_rs_rnd(&state));
		/* Surplus pages are freed by a worker. */
		for (int i = 0; !(ok = all_is_right(before, !(steps % 16))) && i < 200; i++)
			tlb_rs_sleep_us(50000);
		steps++;
	}
	hvo_others_end();
	storm_cpu(1);
	set_num(HVO_DEBUG "fail_swap", 0);
	set_num(HVO_DEBUG "stall_us", 0);
	set_num(HVO_SWITCH, 1);
	for (int i = nr_sizes - 1; i >= 0; i--)
		resize(sizes[i], 0);
	stopped = stops() - stopped;
	ksft_print_msg("%ld steps of seed %u, the others stopped %lld times, %lld young entries\n",
		       steps, seed, stopped, tlb_rs_vmstat_read("hvo_young"));
	return ok && steps && memmap() == before && verify(0);
}
