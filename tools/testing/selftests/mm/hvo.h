/* SPDX-License-Identifier: GPL-2.0 */
/* What the tests and the measurement of HugeTLB pools without struct pages share. */
#ifndef _SELFTESTS_MM_HVO_H
#define _SELFTESTS_MM_HVO_H

#include "tlb_rs.h"

#define HVO_DEBUG	DEBUGFS "hvo/"
#define HVO_PARAM	"/sys/module/hvo/parameters/"
#define HVO_SWITCH	"/proc/sys/vm/hugetlb_optimize_vmemmap"
#define HUGEPAGES	HUGETLB_SYSFS "hugepages-%lukB/%s"
#define STRUCT_PAGE	64
#define MAX_SIZES	8

static unsigned long psize;
static long nr_cpus;
static unsigned long sizes[MAX_SIZES];	/* kB, ascending */
static int nr_sizes;

static inline long get(const char *path)
{
	char buf[32];
	int err = tlb_rs_read_file(path, buf, sizeof(buf));

	if (err)
		ksft_exit_fail_msg("%s: %s\n", path, strerror(-err));
	return atol(buf);
}

static inline bool set(const char *path, const char *val)
{
	int err = tlb_rs_write_file(path, val);

	if (err)
		ksft_print_msg("%s <- %s: %s\n", path, val, strerror(-err));
	return !err;
}

static inline bool set_num(const char *path, long val)
{
	char buf[32];

	snprintf(buf, sizeof(buf), "%ld", val);
	return set(path, buf);
}

/* The number behind a name, in a file of such lines; -1 if it is not there. */
static inline long get_field(const char *path, const char *name)
{
	size_t len = strlen(name);
	char line[256];
	long ret = -1;
	FILE *f;

	f = fopen(path, "r");
	if (!f)
		return -1;
	/* To the end: each read() of a seq_file returns a page of it at most. */
	while (ret < 0 && fgets(line, sizeof(line), f)) {
		if (!strncmp(line, name, len) && line[len] == ' ')
			ret = atol(line + len);
	}
	fclose(f);
	return ret;
}

static inline long stat_of(const char *name)
{
	return get_field(HVO_DEBUG "stats", name);
}

/* In pages, of all struct pages. */
static inline long memmap(void)
{
	return tlb_rs_vmstat_read("nr_memmap_pages") +
	       tlb_rs_vmstat_read("nr_memmap_boot_pages");
}

static inline long pool(unsigned long kb)
{
	char path[128];

	snprintf(path, sizeof(path), HUGEPAGES, kb, "nr_hugepages");
	return get(path);
}

static inline long resize(unsigned long kb, long nr)
{
	char path[128];

	snprintf(path, sizeof(path), HUGEPAGES, kb, "nr_hugepages");
	set_num(path, nr);
	return get(path);
}

/* Of one folio. */
static inline long vmemmap_pages(unsigned long kb)
{
	return kb * 1024 / psize * STRUCT_PAGE / psize;
}

static inline bool optimizable(unsigned long kb)
{
	return vmemmap_pages(kb) > 1;
}

/* Pages of its struct pages that a HugeTLB page gives back. */
static inline long spare_pages(unsigned long kb)
{
	return optimizable(kb) ? vmemmap_pages(kb) - 1 : 0;
}

static inline void read_sizes(void)
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

/* For who resizes all pools, and leaves them empty. */
static inline void hvo_need_empty_pools(void)
{
	if (tlb_rs_pools_in_use())
		ksft_exit_skip("HugeTLB pools are in use\n");
}

/* Skips, or sets parameters until exit. @debug: needs what is in HVO_DEBUG beside the counters. */
static inline void hvo_set_up(bool debug)
{
	psize = sysconf(_SC_PAGESIZE);
	nr_cpus = sysconf(_SC_NPROCESSORS_ONLN);
	read_sizes();
	/* Not where a CPU is deaf, or comes and goes. */
	tlb_rs_pin_cpu(0);
	ksft_print_header();
	if (access(HVO_DEBUG "stats", R_OK))
		ksft_exit_skip("needs CONFIG_HUGETLB_VMEMMAP_PAUSE\n");
	if (debug && access(HVO_DEBUG "verify", R_OK))
		ksft_exit_skip("needs CONFIG_HVO_DEBUG\n");
	/* An emulated CPU may not run for many milliseconds. */
	if (!tlb_rs_setting(HVO_PARAM "strategy", "auto") ||
	    !tlb_rs_setting(HVO_PARAM "ack_timeout_us", "200000") ||
	    !tlb_rs_setting(HVO_PARAM "pause_budget_us", "1000000") ||
	    !tlb_rs_setting(HVO_PARAM "max_ptes", "4096") ||
	    !tlb_rs_setting(HVO_PARAM "duty_pct", "100") ||
	    !tlb_rs_setting(HVO_PARAM "retry_s", "0") ||
	    !tlb_rs_keep(HVO_PARAM "retries"))
		ksft_exit_fail_msg("HVO cannot be set up\n");
}

/* Until exit. Where it is on since the boot, nothing else may have to turn it on. */
static inline void hvo_turn_on(void)
{
	if (!get(HVO_SWITCH) && !tlb_rs_setting(HVO_SWITCH, "1"))
		ksft_exit_fail_msg("HVO cannot be turned on\n");
}

#endif
