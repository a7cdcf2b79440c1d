/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Shared parts of the TLB batch tests: markers of the measured regions,
 * counters, page inspection and the switches of the kernel under test.
 * The sources tlb_rs_*.c are linked into each test, which stays a single
 * static program without libnuma.
 */
#ifndef _TLB_RS_H
#define _TLB_RS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/ioctl.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <linux/types.h>

#include "kselftest.h"

#define SZ_2M			(2UL << 20)
#define THP_PAGES		512

#define MPOL_MF_MOVE		0x2
#define MPOL_MF_MOVE_ALL	0x4
#define MPOL_BIND		2

#ifndef MADV_COLD
#define MADV_COLD		20
#endif
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT		21
#endif

#define DEBUGFS			"/sys/kernel/debug/"
#define HUGETLB_SYSFS		"/sys/kernel/mm/hugepages/"
#define THP_SYSFS		"/sys/kernel/mm/transparent_hugepage/"
#define TLB_BATCH_SYSCTL	"/proc/sys/vm/tlb_batch"
/* mm/gup_test.h */
struct pin_longterm_test {
	__u64 addr, size;
	__u32 flags;
};

#define PIN_LONGTERM_TEST_START	_IOW('g', 7, struct pin_longterm_test)
#define PIN_LONGTERM_TEST_STOP	_IO('g', 8)
#define PIN_LONGTERM_TEST_READ	_IOW('g', 9, __u64)
#define PIN_LONGTERM_TEST_WRITE	1

#define TLB_BATCH_SKIP		DEBUGFS "tlb_batch/skip_hook"
#define TLB_BATCH_DELAY		DEBUGFS "tlb_batch/delay_us"

/*
 * Markers: instructions without any effect, which a TCG plugin of QEMU
 * recognises as the start and the stop of a measured region. They are also
 * compiler barriers, so that nothing measured moves out of the region. On
 * arm64 they may clobber x0: for gem5 they are replaced by its own
 * instructions, which write it.
 */
static inline void tlb_rs_region_start(void)
{
#if defined(__aarch64__)
	asm volatile("hint #100" ::: "x0", "memory");
#elif defined(__x86_64__)
	/* nopl 0x746c6201(%rax) */
	asm volatile(".byte 0x0f, 0x1f, 0x80, 0x01, 0x62, 0x6c, 0x74" ::: "memory");
#else
#error "no region marker for this architecture"
#endif
}

static inline void tlb_rs_region_stop(void)
{
#if defined(__aarch64__)
	asm volatile("hint #101" ::: "x0", "memory");
#elif defined(__x86_64__)
	/* nopl 0x746c6202(%rax) */
	asm volatile(".byte 0x0f, 0x1f, 0x80, 0x02, 0x62, 0x6c, 0x74" ::: "memory");
#endif
}

static inline __u64 tlb_rs_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (__u64)ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

/* Each thread has its own sequence, the same in every run. */
static inline unsigned int tlb_rs_rnd(unsigned int *state)
{
	*state = *state * 1664525u + 1013904223u;
	return *state >> 8;
}

/* tlb_rs_files.c */
int tlb_rs_read_file(const char *path, char *buf, size_t size);
int tlb_rs_write_file(const char *path, const char *val);
int tlb_rs_open(const char *path, int flags);
long tlb_rs_number(const char *arg, long min, long max);
long long tlb_rs_meminfo_kb(const char *path, const char *field);
long long tlb_rs_vmstat_read(const char *want);
bool tlb_rs_has_swap(void);
bool tlb_rs_has_disk_swap(void);
unsigned long tlb_rs_memory_nodes(void);
bool tlb_rs_pools_in_use(void);

#define MEMINFO			"/proc/meminfo"

#define TLB_RS_CGROUP_ROOT	"/sys/fs/cgroup/"
#define TLB_RS_CGROUP		TLB_RS_CGROUP_ROOT "tlb_rs/"

/*
 * Repetitions of a measurement: with pairs, the switch goes 0, 1, 0, 1 ... so
 * that both sides of a comparison come from the same boot. Without pairs, one
 * repetition with the switch as it is.
 */
static inline int tlb_rs_repeats(int pairs)
{
	return pairs ? 2 * pairs : 1;
}

/* The hooks that the environment wants removed. */
const char *tlb_rs_env(const char *name);

static inline const char *tlb_rs_skip(void)
{
	return tlb_rs_env("TLB_SKIP") ?: "none";
}

static inline bool tlb_rs_hook_removed(const char *hook)
{
	return strcmp(hook, "none") != 0;
}

/* Fault injection: windows (TLB_BATCH_DELAY and these) open until exit. */
#define TLB_BATCH_FLUSH_DELAY	DEBUGFS "tlb_batch/flush_delay_us"
#define TLB_SECONDARY_DELAY	DEBUGFS "tlb_batch/secondary_delay_us"
#define MIGRC_WALK_DELAY	DEBUGFS "migrc/walk_delay_us"
#define MIGRC_RESTORE_DELAY	DEBUGFS "migrc/restore_delay_us"

/* tlb_rs_settings.c */
void tlb_rs_at_exit(void (*undo)(void));
void tlb_rs_undo(void);
void tlb_rs_tear_down(void);
bool tlb_rs_keep(const char *path);
bool tlb_rs_setting(const char *path, const char *val);
bool tlb_rs_restore(const char *path);
long tlb_rs_env_number(const char *name, long otherwise, long min, long max);
bool tlb_rs_cgroup(void);
void tlb_rs_cgroup_enter(void);
void tlb_rs_cgroup_leave(void);
void tlb_rs_forget_use(void);
bool tlb_rs_cgroup_reclaim(size_t bytes, const char *how);
bool tlb_batch_get(int *val);
bool tlb_batch_set(int val);
const char *tlb_batch_json(void);
void tlb_rs_repeat_begin(int pairs, int i);
bool tlb_rs_remove_hooks(const char *path, const char *hooks, void (*none)(void));
void tlb_rs_skip_none(void);
bool tlb_rs_skip_hooks(const char *hooks);
void tlb_rs_no_zswap(void);
void tlb_rs_quiet(void);
bool tlb_rs_numa_scans(void);
bool tlb_rs_numa_scan(size_t pages);
bool tlb_rs_thp_available(void);
void tlb_rs_delay_none(void);
bool tlb_rs_delay(const char *path, long us);

#define TLB_RS_NR_VMSTAT	10
#define TLB_RS_VMSTAT_PAGES	0	/* index of tlb_batch_pages */
#define TLB_RS_VMSTAT_RANGES	1	/* of tlb_batch_ranges */
#define TLB_RS_VMSTAT_FLUSH	2	/* of tlb_batch_flush */
#define TLB_RS_VMSTAT_MIGRATED	4	/* of pgmigrate_success */
#define TLB_RS_VMSTAT_FLUSH_ALL	8	/* of nr_tlb_local_flush_all */

struct tlb_rs_counters {
	__u64 ns;
	long long vmstat[TLB_RS_NR_VMSTAT];	/* -1: not on this kernel */
	long long tlb_irqs;			/* x86_64: sum over the CPUs */
};

/*
 * Readers: threads on other CPUs than 0 that read each page of a range and then
 * stay in user mode, so that those CPUs have the range in their TLBs and must
 * be told about each flush. With @touch they go on reading, which makes more
 * races and less repeatable counts: a reader that waits for a page leaves its
 * CPU idle. With tlb_rs_idle_readers they sleep instead: x86 goes on telling
 * their CPUs, and they cost an emulator of one thread nothing.
 */
#define TLB_RS_MAX_READERS	16

struct tlb_rs_readers {
	pthread_t id[TLB_RS_MAX_READERS];
	int nr;
	int started;
	int ready;
	bool stop;
	bool touch;
	const char *base;
	size_t len;
};

/* A store that does not come is a failure, and not a test that hangs. */
#define TLB_RS_PATIENCE_NS	(60ULL * 1000000000)

/* tlb_rs_measure.c */
extern bool tlb_rs_idle_readers;
void tlb_rs_sleep_us(unsigned int us);
void tlb_rs_reaches(const __u64 *member, __u64 least, const char *who);
void tlb_rs_counters_read(struct tlb_rs_counters *c);
void tlb_rs_begin(struct tlb_rs_counters *c);
void tlb_rs_counters_diff(struct tlb_rs_counters *c);
void tlb_rs_end(struct tlb_rs_counters *c);
void tlb_rs_json_counters(const struct tlb_rs_counters *c);
void tlb_rs_json_region(const char *region, const char *extra, const struct tlb_rs_counters *c);
bool tlb_rs_pin_cpu(int cpu);
int tlb_rs_nr_cpus(void);
bool tlb_rs_patching_is_safe(void);
void tlb_rs_readers_start(struct tlb_rs_readers *r, int nr, bool touch, const char *base,
			  size_t len);
void tlb_rs_readers_end(struct tlb_rs_readers *r);

/* Pages: physical frame and flags, both zero if there is no page. */
#define PM_PRESENT		0x8000000000000000ULL
#define PM_SWAP			0x4000000000000000ULL
#define PM_UFFD			0x0200000000000000ULL
#define PM_SOFT_DIRTY		0x0080000000000000ULL
#define PM_PFN_MASK		0x007fffffffffffffULL

#define KPF_LOCKED		0
#define KPF_DIRTY		4
#define KPF_WRITEBACK		8
#define KPF_SWAPCACHE		13
#define KPF_COMPOUND_HEAD	15
#define KPF_COMPOUND_TAIL	16
#define KPF_LARGE		((1ULL << KPF_COMPOUND_HEAD) | (1ULL << KPF_COMPOUND_TAIL))

/*
 * Contents: each word depends on its position and on a seed, so that neither
 * a lost nor a swapped nor a reused page can look right.
 */
static inline __u64 tlb_rs_word(__u64 seed, __u64 pos)
{
	return (pos + 1) * 0x9e3779b97f4a7c15ULL ^ (seed << 32 | seed);
}

/* What the calling task owes; all zero when no flush is outstanding. */
#define TLB_BATCH_CURRENT	DEBUGFS "tlb_batch/current"

struct tlb_rs_owed {
	int ranges;
	int held;
	int unsynced;
};

static inline bool tlb_rs_owes(const struct tlb_rs_owed *owed)
{
	return owed->ranges || owed->held || owed->unsynced;
}

/* tlb_rs_pages.c */
__u64 tlb_rs_pagemap(const void *addr);
__u64 tlb_rs_kpageflags(__u64 pfn);
bool tlb_rs_is_large(const void *addr);
bool tlb_rs_is_folio(const char *addr, size_t nr);
size_t tlb_rs_count_pagemap(const char *base, size_t nr, __u64 bit);
long tlb_rs_smaps_kb(const void *addr, const char *field);
char *tlb_rs_mmap(size_t len, size_t align);
void tlb_rs_fill(void *buf, size_t len, __u64 seed);
size_t tlb_rs_check(const void *buf, size_t len, __u64 seed);
long tlb_rs_move_pages(pid_t pid, unsigned long nr, void **pages, const int *nodes, int *status);
bool tlb_rs_bind_node(void *addr, size_t len, int node);
void tlb_rs_drain_lru(void);
void tlb_rs_drain_pages(void);
bool tlb_rs_owed(struct tlb_rs_owed *owed);

static inline __u64 tlb_rs_pfn(const void *addr)
{
	__u64 ent = tlb_rs_pagemap(addr);

	return ent & PM_PRESENT ? ent & PM_PFN_MASK : 0;
}

#endif /* _TLB_RS_H */
