// SPDX-License-Identifier: GPL-2.0
/* The sizes of HugeTLB pages, and the parameters that these tests need. */
#include "hvo.h"

unsigned long psize;
long nr_cpus;
unsigned long sizes[MAX_SIZES];	/* kB, ascending */
int nr_sizes;

void read_sizes(void)
{
	DIR *dir = opendir(HUGETLB_SYSFS);
	struct dirent *e;

	while (dir && (e = readdir(dir)) && nr_sizes < MAX_SIZES) {
		unsigned long kb;
		int i;

		if (sscanf(e->d_name, "hugepages-%lukB", &kb) != 1)
			continue;
		for (i = nr_sizes++; i && sizes[i - 1] > kb; i--)
			sizes[i] = sizes[i - 1];
		sizes[i] = kb;
	}
	if (dir)
		closedir(dir);
}

/* Why HVO cannot be tested, or NULL. @debug: with what is in HVO_DEBUG beside the counters. */
const char *hvo_missing(bool debug)
{
	psize = sysconf(_SC_PAGESIZE);
	nr_cpus = sysconf(_SC_NPROCESSORS_ONLN);
	read_sizes();
	if (access(HVO_DEBUG "stats", R_OK))
		return "needs CONFIG_HUGETLB_VMEMMAP_PAUSE";
	if (debug && access(HVO_DEBUG "verify", R_OK))
		return "needs CONFIG_HVO_DEBUG";
	if (!hvo_small_size())
		return "no size of HugeTLB pages with two pages of struct pages";
	return NULL;
}

/* Sets parameters until tlb_rs_undo(). */
void hvo_set_up(void)
{
	/* Not where a CPU is deaf, or comes and goes. */
	tlb_rs_pin_cpu(0);
	/* An emulated CPU may not run for many milliseconds. */
	if (!tlb_rs_setting(HVO_PARAM "strategy", "auto") ||
	    !tlb_rs_setting(HVO_PARAM "ack_timeout_us", "200000") ||
	    !tlb_rs_setting(HVO_PARAM "pause_budget_us", "1000000") ||
	    !tlb_rs_setting(HVO_PARAM "max_ptes", "16384") ||
	    !tlb_rs_setting(HVO_PARAM "duty_pct", "100") ||
	    !tlb_rs_setting(HVO_PARAM "retry_s", "0") ||
	    !tlb_rs_keep(HVO_PARAM "retries"))
		ksft_exit_fail_msg("HVO cannot be set up\n");
}

/* For tlb_rs_at_exit(): a case that failed may have left pages in pools that were empty. */
void hvo_empty_pools(void)
{
	for (int i = 0; i < nr_sizes; i++)
		resize(sizes[i], 0);
}
