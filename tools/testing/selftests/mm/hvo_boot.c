// SPDX-License-Identifier: GPL-2.0
/*
 * Gigantic pages that the command line asks for have no struct pages of their own from the start,
 * if HVO is on: nothing is changed for that, and their tails are read-only.
 *
 * To be run first of all, with hugetlb_free_vmemmap=on hugepagesz=1G hugepages=2.
 * hvo_skip=wrprotect removes the rule, and then it has to fail.
 */
#define _GNU_SOURCE
#include "hvo.h"

static long count(unsigned long kb, const char *file)
{
	char path[128];

	snprintf(path, sizeof(path), HUGEPAGES, kb, file);
	return get(path);
}

/* How many entries were changed so far, and how often anybody was stopped or anything flushed. */
static long long changes(void)
{
	return tlb_rs_vmstat_read("hvo_pte_updates") + tlb_rs_vmstat_read("cpu_pause") +
	       tlb_rs_vmstat_read("cpu_pause_fallback") + tlb_rs_vmstat_read("hvo_flush");
}

static bool is_gone(unsigned long kb, long nr)
{
	long before = memmap();

	return !resize(kb, 0) && memmap() - before == nr * spare_pages(kb) &&
	       !get_field(HVO_DEBUG "verify", "shared");
}

int main(void)
{
	unsigned long kb;
	long nr, shared;
	bool ok;

	ksft_print_header();
	if (hvo_missing(true))
		ksft_exit_skip("%s\n", hvo_missing(true));
	kb = sizes[nr_sizes - 1];
	nr = pool(kb);
	if (!nr || !optimizable(kb) || !get(HVO_SWITCH))
		ksft_exit_skip("needs hugetlb_free_vmemmap=on and pages of the largest size\n");
	hvo_set_up();

	ksft_set_plan(3);
	shared = get_field(HVO_DEBUG "verify", "shared");
	ok = count(kb, "optimized_hugepages") == nr && !count(kb, "unoptimized_hugepages");
	ksft_print_msg("%lld changes, %ld shared pages of %ld\n", changes(), shared,
		       nr * spare_pages(kb));
	ksft_test_result(ok && !changes(), "hvo_boot: %ld pages of %lu kB are optimised\n", nr,
			 kb);
	ksft_test_result(shared == nr * spare_pages(kb) &&
			 !get_field(HVO_DEBUG "verify", "violations"),
			 "hvo_boot: their tails are read-only\n");
	ok = is_gone(kb, nr);
	nr = resize(kb, nr);
	ok &= nr && is_gone(kb, nr);
	ksft_test_result(ok, "hvo_boot: the pool shrinks, and grows again\n");
	ksft_finished();
}
