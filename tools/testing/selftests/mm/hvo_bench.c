// SPDX-License-Identifier: GPL-2.0
/*
 * What it costs to give the struct pages of HugeTLB pools back: the time of
 *
 *   alloc_gigantic  the pool of the largest pages grows from nothing,
 *   free_gigantic   and shrinks to nothing,
 *   demote          all of them become pages of the smallest size that saves anything,
 *   free_small      and that pool shrinks to nothing,
 *   alloc_small     the pool of the smallest pages grows to as many,
 *
 * by each strategy in turn, in one boot. One line of JSON for each, with the pauses that
 * it took and what was saved. With --spin a thread looks for how long it does not run.
 *
 * With --beside SECONDS, instead: how often a pool of 512 of the small pages grows and
 * shrinks, beside four readers of all struct pages, and compaction every second. First
 * without giving anything back, then by each strategy.
 */
#define _GNU_SOURCE
#include <getopt.h>

#include "hvo.h"

#define MAX_STRATEGIES	8

static unsigned long large, small;

/* --- how long another CPU does not run --------------------------------------------- */

#define STALL_BUCKETS	64	/* of __u64 ns */

static struct {
	pthread_t thread;
	bool stop;
	__u64 most;
	__u64 longer[STALL_BUCKETS];	/* than 2^i ns, but not than twice that */
} spin;

static void *spinner(void *arg)
{
	__u64 last, now;

	tlb_rs_pin_cpu((long)arg);
	last = tlb_rs_now_ns();
	while (!__atomic_load_n(&spin.stop, __ATOMIC_RELAXED)) {
		now = tlb_rs_now_ns();
		if (now - last > spin.most)
			spin.most = now - last;
		/* Shorter is not a stall, but what it takes to look. */
		if (now - last > 8192)
			spin.longer[63 - __builtin_clzll(now - last)]++;
		last = now;
	}
	return NULL;
}

static void spin_begin(void)
{
	memset(&spin, 0, sizeof(spin));
	if (pthread_create(&spin.thread, NULL, spinner, (void *)(nr_cpus - 1)))
		ksft_exit_fail_msg("cannot start a thread\n");
}

/* Returns what 99 % of the stalls are shorter than, in ns. */
static __u64 spin_end(void)
{
	__u64 sum = 0, left = 0, end;
	int i;

	__atomic_store_n(&spin.stop, true, __ATOMIC_RELAXED);
	pthread_join(spin.thread, NULL);
	for (i = 0; i < STALL_BUCKETS; i++)
		sum += spin.longer[i];
	for (i = STALL_BUCKETS - 1; i >= 0 && left + spin.longer[i] <= sum / 100; i--)
		left += spin.longer[i];
	end = sum ? 2ULL << i : 0;
	/* The end of a bucket may be later than the longest of all. */
	return end < spin.most ? end : spin.most;
}

/* --- a pool that grows and shrinks beside others ------------------------------------ */

#define BESIDE_PAGES	512

static long pauses(void)
{
	static const char * const reasons[] = { "split", "optimize", "restore", "demote" };
	long sum = 0;

	for (unsigned int i = 0; i < ARRAY_SIZE(reasons); i++)
		sum += stat_of(reasons[i]);
	return sum;
}

/* @strategy: or NULL, for pages that keep their struct pages. */
static bool beside(const char *strategy, long seconds)
{
	long rounds = 0, least = BESIDE_PAGES, before = memmap(), paused = pauses();
	bool ok = true;
	char path[128];
	__u64 end;

	if (!set(HVO_SWITCH, strategy ? "1" : "0") ||
	    (strategy && !set(HVO_PARAM "strategy", strategy)))
		return false;
	hvo_others_begin();
	end = tlb_rs_now_ns() + seconds * 1000000000ULL;
	while (ok && tlb_rs_now_ns() < end) {
		long optimized;

		ok &= resize(small, BESIDE_PAGES) == BESIDE_PAGES;
		snprintf(path, sizeof(path), HUGEPAGES, small, "optimized_hugepages");
		optimized = get(path);
		ok &= before - memmap() == optimized * spare_pages(small);
		if (optimized < least)
			least = optimized;
		ok &= !resize(small, 0);
		rounds++;
	}
	hvo_others_end();
	printf("{\"region\":\"hvo_beside\",\"strategy\":\"%s\",\"seconds\":%ld,\"rounds\":%ld,",
	       strategy ?: "off", seconds, rounds);
	printf("\"pages\":%d,\"least\":%ld,\"pauses\":%ld}\n", BESIDE_PAGES, least,
	       pauses() - paused);
	fflush(stdout);
	return ok && memmap() == before;
}

/* --- the rows ---------------------------------------------------------------------- */

static bool with_spin;

struct sample {
	long pauses, cancelled, stopped, entries, memmap, flushes, young;
	long in_pauses_ns;
	__u64 ns;
};

static void sample(struct sample *s)
{
	*s = (struct sample) {
		.pauses = pauses(),
		.cancelled = stat_of("cancelled"),
		.stopped = stat_of("stop_machine"),
		.entries = tlb_rs_vmstat_read("hvo_pte_updates"),
		.memmap = memmap(),
		.flushes = tlb_rs_vmstat_read("hvo_flush"),
		.young = tlb_rs_vmstat_read("hvo_young"),
		.in_pauses_ns = stat_of("ack_ns") + stat_of("paused_ns"),
	};
	s->ns = tlb_rs_now_ns();
}

static void row(const char *region, const char *strategy, long pages,
		long (*run)(long pages))
{
	struct sample a, b;
	__u64 p99 = 0;
	long nr;

	if (with_spin)
		spin_begin();
	sample(&a);
	tlb_rs_region_start();
	nr = run(pages);
	tlb_rs_region_stop();
	b.ns = tlb_rs_now_ns();
	a.ns = b.ns - a.ns;
	sample(&b);
	if (with_spin)
		p99 = spin_end();
	printf("{\"region\":\"hvo_%s\",\"strategy\":\"%s\",\"pages\":%ld,\"ns\":%llu,", region,
	       strategy, nr, a.ns);
	printf("\"pauses\":%ld,\"cancelled\":%ld,\"stop_machine\":%ld,\"entries\":%ld,",
	       b.pauses - a.pauses, b.cancelled - a.cancelled, b.stopped - a.stopped,
	       b.entries - a.entries);
	printf("\"in_pauses_ns\":%ld,\"flushes\":%ld,\"young\":%ld,",
	       b.in_pauses_ns - a.in_pauses_ns, b.flushes - a.flushes, b.young - a.young);
	printf("\"saved\":%ld,\"worst_stall_ns\":%llu,\"p99_stall_ns\":%llu}\n",
	       a.memmap - b.memmap, spin.most, p99);
	fflush(stdout);
}

static long alloc_gigantic(long pages)
{
	return resize(large, pages);
}

static long free_gigantic(long pages)
{
	return pages - resize(large, 0);
}

static long demote(long pages)
{
	char path[128];

	snprintf(path, sizeof(path), HUGEPAGES, large, "demote");
	set_num(path, pages);
	return pages - pool(large);
}

static long free_small(long pages)
{
	long nr = pool(small);

	(void)pages;
	return nr - resize(small, 0);
}

static long alloc_small(long pages)
{
	return resize(small, pages);
}

static bool cycle(const char *strategy, long pages)
{
	if (!set(HVO_PARAM "strategy", strategy))
		return false;
	row("alloc_gigantic", strategy, pages, alloc_gigantic);
	if (pool(large) != pages) {
		ksft_print_msg("%ld of %ld pages of %lu kB\n", pool(large), pages, large);
		resize(large, 0);
		return false;
	}
	row("free_gigantic", strategy, pages, free_gigantic);
	if (resize(large, pages) != pages)
		return false;
	row("demote", strategy, pages, demote);
	row("free_small", strategy, pages, free_small);
	row("alloc_small", strategy, pages * (large / small), alloc_small);
	return !resize(small, 0) && !pool(large);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "pages", required_argument, NULL, 'n' },
		{ "pairs", required_argument, NULL, 'p' },
		{ "strategy", required_argument, NULL, 's' },
		{ "spin", no_argument, NULL, 'i' },
		{ "beside", required_argument, NULL, 'b' },
		{ "help", no_argument, NULL, 'h' },
		{ },
	};
	const char *strategies[MAX_STRATEGIES], *why;
	long pages = 4, pairs = 1, seconds = 0, before;
	int c, nr = 0, i, p;
	char path[128];
	bool ok = true;

	while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		switch (c) {
		case 'n':
			pages = tlb_rs_number(optarg, 1, 1000000);
			break;
		case 'p':
			pairs = tlb_rs_number(optarg, 1, 1000);
			break;
		case 's':
			if (nr == MAX_STRATEGIES)
				ksft_exit_fail_msg("more than %d strategies\n", nr);
			strategies[nr++] = optarg;
			break;
		case 'i':
			with_spin = true;
			break;
		case 'b':
			seconds = tlb_rs_number(optarg, 1, 3600);
			break;
		default:
			printf("usage: %s [--pages N] [--pairs N] [--strategy S]... [--spin]\n",
			       argv[0]);
			printf("       %s --beside SECONDS [--pairs N] [--strategy S]...\n",
			       argv[0]);
			return c == 'h' ? 0 : KSFT_FAIL;
		}
	}
	if (!nr)
		strategies[nr++] = "auto";
	ksft_print_header();
	why = hvo_missing(false) ?: hvo_pools_in_use();
	if (why)
		ksft_exit_skip("%s\n", why);
	hvo_set_up();
	hvo_turn_on();
	for (i = 0; i < nr_sizes; i++) {
		if (optimizable(sizes[i])) {
			small = small ?: sizes[i];
			large = sizes[i];
		}
	}
	if (!large || large == small)
		ksft_exit_skip("needs two sizes of HugeTLB pages with two pages of struct pages\n");
	snprintf(path, sizeof(path), HUGEPAGES, large, "demote_size");
	snprintf(path + 64, sizeof(path) - 64, "%lukB", small);
	if (!tlb_rs_setting(path, path + 64))
		ksft_exit_fail_msg("no demotion to %lu kB\n", small);

	ksft_set_plan(1);
	before = memmap();
	for (p = 0; p < pairs; p++) {
		if (seconds)
			ok &= beside(NULL, seconds);
		for (i = 0; i < nr; i++)
			ok &= seconds ? beside(strategies[(p + i) % nr], seconds) :
					cycle(strategies[(p + i) % nr], pages);
	}
	ksft_test_result(ok && memmap() == before, "hvo_bench: %ld pages of %lu kB\n", pages,
			 large);
	ksft_finished();
}
