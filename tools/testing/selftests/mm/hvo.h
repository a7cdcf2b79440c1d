/* SPDX-License-Identifier: GPL-2.0 */
/* What the tests and the measurement of HugeTLB pools without struct pages share. */
#ifndef _SELFTESTS_MM_HVO_H
#define _SELFTESTS_MM_HVO_H

#include "tlb_rs.h"

#define HVO_DEBUG	DEBUGFS "hvo/"
#define HVO_PARAM	"/sys/module/hvo/parameters/"
#define HVO_SWITCH	"/proc/sys/vm/hugetlb_optimize_vmemmap"
#define HUGEPAGES	HUGETLB_SYSFS "hugepages-%lukB/%s"
#define SOFT_OFFLINE	"/sys/devices/system/memory/soft_offline_page"
#define HARD_OFFLINE	"/sys/devices/system/memory/hard_offline_page"
#define UNPOISON	DEBUGFS "hwpoison/unpoison-pfn"
#define STRUCT_PAGE	64
#define MAX_SIZES	8

/* hvo_setup.c */
extern unsigned long psize;
extern long nr_cpus;
extern unsigned long sizes[MAX_SIZES];
extern int nr_sizes;
void read_sizes(void);
const char *hvo_missing(bool debug);
void hvo_set_up(void);
void hvo_empty_pools(void);
void hvo_others_begin(void);
void hvo_others_end(void);

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

/* Whether entries change by their access flags, so that nobody is stopped. */
static inline bool hvo_by_flags(void)
{
	char strategy[32];

	return stat_of("access_flag") > 0 &&
	       !tlb_rs_read_file(HVO_PARAM "strategy", strategy, sizeof(strategy)) &&
	       !strncmp(strategy, "auto", 4);
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

/* The smallest size that gives something back, or 0. */
static inline unsigned long hvo_small_size(void)
{
	for (int i = 0; i < nr_sizes; i++) {
		if (optimizable(sizes[i]))
			return sizes[i];
	}
	return 0;
}

/* For a caller of hvo_empty_pools(). */
static inline const char *hvo_pools_in_use(void)
{
	return tlb_rs_pools_in_use() ? "HugeTLB pools are in use" : NULL;
}

/* Until tlb_rs_undo(). Where it is on since the boot, nothing else may have to turn it on. */
static inline void hvo_turn_on(void)
{
	if (!get(HVO_SWITCH) && !tlb_rs_setting(HVO_SWITCH, "1"))
		ksft_exit_fail_msg("HVO cannot be turned on\n");
}

#endif
