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

/* --- what happens beside a pool that changes ---------------------------------------- */

static pthread_t readers[4], compacting;
static bool over;

/*
 * Reads all of a file that looks at each struct page. With CONFIG_DEBUG_VM those of /proc may not
 * be read while a page is made or freed: snapshot_page() has an assertion that is wrong then.
 */
static void *read_all(void *arg)
{
	static __thread char buf[1 << 16];
	const char *other = HVO_DEBUG "read";
	int fd = open(access(other, R_OK) ? arg : other, O_RDONLY);

	while (fd >= 0 && !__atomic_load_n(&over, __ATOMIC_RELAXED)) {
		if (read(fd, buf, sizeof(buf)) <= 0)
			lseek(fd, 0, SEEK_SET);
	}
	if (fd >= 0)
		close(fd);
	return NULL;
}

static void *compact(void *unused)
{
	while (!__atomic_load_n(&over, __ATOMIC_RELAXED)) {
		set_num("/proc/sys/vm/compact_memory", 1);
		tlb_rs_sleep_us(1000000);
	}
	return unused;
}

/* Four threads read all struct pages, and memory is compacted every second, until the end. */
void hvo_others_begin(void)
{
	static char * const files[] = { "/proc/kpageflags", "/proc/kpagecount" };

	over = false;
	for (size_t i = 0; i < ARRAY_SIZE(readers); i++)
		pthread_create(&readers[i], NULL, read_all, files[i % ARRAY_SIZE(files)]);
	pthread_create(&compacting, NULL, compact, NULL);
}

void hvo_others_end(void)
{
	__atomic_store_n(&over, true, __ATOMIC_RELAXED);
	for (size_t i = 0; i < ARRAY_SIZE(readers); i++)
		pthread_join(readers[i], NULL);
	pthread_join(compacting, NULL);
}
