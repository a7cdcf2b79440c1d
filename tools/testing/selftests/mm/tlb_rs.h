/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Shared parts of the TLB batch tests: markers of the measured regions,
 * counters, page inspection and the switches of the kernel under test.
 * Header only, so that each test stays a single static program without libnuma.
 */
#ifndef _TLB_RS_H
#define _TLB_RS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
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
#define TLB_BATCH_SKIP		DEBUGFS "tlb_batch/skip_hook"
#define TLB_BATCH_DELAY		DEBUGFS "tlb_batch/delay_us"

/*
 * Markers: instructions without any effect, which a TCG plugin of QEMU
 * recognises as the start and the stop of a measured region. They are also
 * compiler barriers, so that nothing measured moves out of the region.
 */
static inline void tlb_rs_region_start(void)
{
#if defined(__aarch64__)
	asm volatile("hint #100" ::: "memory");
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
	asm volatile("hint #101" ::: "memory");
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

static inline void tlb_rs_sleep_us(unsigned int us)
{
	struct timespec ts = {
		.tv_sec = us / 1000000,
		.tv_nsec = (long)(us % 1000000) * 1000,
	};

	nanosleep(&ts, NULL);
}

/* Each thread has its own sequence, the same in every run. */
static inline unsigned int tlb_rs_rnd(unsigned int *state)
{
	*state = *state * 1664525u + 1013904223u;
	return *state >> 8;
}

/* Small files of /proc and /sys: 0 or a negative errno. */
static inline int tlb_rs_read_file(const char *path, char *buf, size_t size)
{
	ssize_t n;
	int fd;

	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	n = read(fd, buf, size - 1);
	if (n < 0)
		n = -errno;
	close(fd);
	if (n < 0)
		return (int)n;
	buf[n] = '\0';
	return 0;
}

static inline int tlb_rs_write_file(const char *path, const char *val)
{
	ssize_t n;
	int fd;

	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	n = write(fd, val, strlen(val));
	if (n < 0)
		n = -errno;
	close(fd);
	return n < 0 ? (int)n : 0;
}

/*
 * What is undone at exit, the last first; each once. Not by a forked child, where exit(), which
 * is what ksft_exit_fail_msg() ends with, would undo what its parent still needs.
 */
static struct {
	void (*undo[16])(void);
	size_t nr;
	pid_t owner;
} tlb_rs_exit;

static inline void tlb_rs_undo_all(void)
{
	if (getpid() != tlb_rs_exit.owner)
		return;
	while (tlb_rs_exit.nr)
		tlb_rs_exit.undo[--tlb_rs_exit.nr]();
}

static inline void tlb_rs_at_exit(void (*undo)(void))
{
	size_t i;

	for (i = 0; i < tlb_rs_exit.nr; i++) {
		if (tlb_rs_exit.undo[i] == undo)
			return;
	}
	if (!tlb_rs_exit.owner) {
		tlb_rs_exit.owner = getpid();
		atexit(tlb_rs_undo_all);
	}
	if (i == ARRAY_SIZE(tlb_rs_exit.undo))
		ksft_exit_fail_msg("too much to undo\n");
	tlb_rs_exit.undo[tlb_rs_exit.nr++] = undo;
}

/*
 * Settings that a test changes for its own time: the old value is restored at
 * exit. If it was one of several choices, it is the one in brackets.
 */
struct tlb_rs_setting {
	char path[128];
	char old[64];
};

static struct {
	struct tlb_rs_setting setting[32];
	size_t nr;
} tlb_rs_settings;

static inline struct tlb_rs_setting *tlb_rs_find_setting(const char *path)
{
	size_t i;

	for (i = 0; i < tlb_rs_settings.nr; i++) {
		if (!strcmp(tlb_rs_settings.setting[i].path, path))
			return &tlb_rs_settings.setting[i];
	}
	return NULL;
}

static inline void tlb_rs_settings_restore(void)
{
	/* The last first: one may have had to be made before another could be. */
	for (size_t i = tlb_rs_settings.nr; i--;)
		tlb_rs_write_file(tlb_rs_settings.setting[i].path, tlb_rs_settings.setting[i].old);
}

/* For what is written to by other means; false if it cannot be read. */
static inline bool tlb_rs_keep(const char *path)
{
	struct tlb_rs_setting *s = &tlb_rs_settings.setting[tlb_rs_settings.nr];
	char buf[256];
	char *p;

	if (tlb_rs_find_setting(path))
		return true;
	if (tlb_rs_read_file(path, buf, sizeof(buf)))
		return false;
	if (tlb_rs_settings.nr == ARRAY_SIZE(tlb_rs_settings.setting) ||
	    strlen(path) >= sizeof(s->path))
		ksft_exit_fail_msg("%s: too many settings\n", path);
	p = strchr(buf, '[');
	if (sscanf(p ? p + 1 : buf, "%63[^]\n]", s->old) != 1)
		return false;
	snprintf(s->path, sizeof(s->path), "%s", path);
	tlb_rs_settings.nr++;
	tlb_rs_at_exit(tlb_rs_settings_restore);
	return true;
}

#define TLB_RS_CGROUP_ROOT	"/sys/fs/cgroup/"
#define TLB_RS_CGROUP		TLB_RS_CGROUP_ROOT "tlb_rs/"

static inline void tlb_rs_cgroup_remove(void)
{
	rmdir(TLB_RS_CGROUP);
}

/* Makes a memory cgroup that can be reclaimed, until exit. False if there is none. */
static inline bool tlb_rs_cgroup(void)
{
	tlb_rs_write_file(TLB_RS_CGROUP_ROOT "cgroup.subtree_control", "+memory");
	if (mkdir(TLB_RS_CGROUP, 0755) && errno != EEXIST)
		return false;
	tlb_rs_at_exit(tlb_rs_cgroup_remove);
	return !access(TLB_RS_CGROUP "memory.reclaim", W_OK);
}

/* What this process touches first from now on is charged to it. */
static inline void tlb_rs_cgroup_enter(void)
{
	if (tlb_rs_write_file(TLB_RS_CGROUP "cgroup.procs", "0"))
		ksft_exit_fail_msg("cannot enter %s\n", TLB_RS_CGROUP);
}

static inline void tlb_rs_cgroup_leave(void)
{
	tlb_rs_write_file(TLB_RS_CGROUP_ROOT "cgroup.procs", "0");
}

/* What this process uses does not look used, so that a cgroup's reclaim takes it. */
static inline void tlb_rs_forget_use(void)
{
	tlb_rs_write_file("/proc/self/clear_refs", "1");
}

/* @how: the rest of what is written, as " swappiness=max". False if it was refused. */
static inline bool tlb_rs_cgroup_reclaim(size_t bytes, const char *how)
{
	char buf[64];
	int ret;

	snprintf(buf, sizeof(buf), "%zu%s", bytes, how);
	ret = tlb_rs_write_file(TLB_RS_CGROUP "memory.reclaim", buf);
	/* Less than that was reclaimed. */
	return !ret || ret == -EAGAIN;
}

static inline bool tlb_rs_setting(const char *path, const char *val)
{
	size_t nr = tlb_rs_settings.nr;

	if (!tlb_rs_keep(path))
		return false;
	if (!tlb_rs_write_file(path, val))
		return true;
	/* What cannot be written needs no restoring. */
	tlb_rs_settings.nr = nr;
	return false;
}

/* Earlier than at exit. */
static inline bool tlb_rs_restore(const char *path)
{
	struct tlb_rs_setting *s = tlb_rs_find_setting(path);

	return s && !tlb_rs_write_file(path, s->old);
}

/* vm.tlb_batch: false if the kernel has no such switch (a stock kernel). */
static inline bool tlb_batch_get(int *val)
{
	char buf[32];

	if (tlb_rs_read_file(TLB_BATCH_SYSCTL, buf, sizeof(buf)))
		return false;
	*val = atoi(buf);
	return true;
}

/* Until exit. */
static inline bool tlb_batch_set(int val)
{
	char buf[32];

	snprintf(buf, sizeof(buf), "%d\n", val);
	return tlb_rs_setting(TLB_BATCH_SYSCTL, buf);
}

/* As a JSON value: null on a kernel that has no such switch. */
static inline const char *tlb_batch_json(void)
{
	static char buf[16];
	int val;

	if (!tlb_batch_get(&val))
		return "null";
	snprintf(buf, sizeof(buf), "%d", val);
	return buf;
}

/*
 * Repetitions of a measurement: with pairs, the switch goes 0, 1, 0, 1 ... so
 * that both sides of a comparison come from the same boot. Without pairs, one
 * repetition with the switch as it is.
 */
static inline int tlb_rs_repeats(int pairs)
{
	return pairs ? 2 * pairs : 1;
}

static inline void tlb_rs_repeat_begin(int pairs, int i)
{
	int val;

	if (pairs && tlb_batch_get(&val) && !tlb_batch_set(i & 1))
		ksft_exit_fail_msg("cannot write %s\n", TLB_BATCH_SYSCTL);
}

/* Fault injection: removes hooks, their names separated by commas, until @none or exit. */
static inline bool tlb_rs_remove_hooks(const char *path, const char *hooks, void (*none)(void))
{
	char list[128];
	char *hook, *rest;

	snprintf(list, sizeof(list), "%s", hooks);
	for (hook = strtok_r(list, ",", &rest); hook; hook = strtok_r(NULL, ",", &rest)) {
		if (tlb_rs_write_file(path, hook))
			return false;
		tlb_rs_at_exit(none);
	}
	return true;
}

static inline void tlb_rs_skip_none(void)
{
	tlb_rs_write_file(TLB_BATCH_SKIP, "none");
}

static inline bool tlb_rs_skip_hooks(const char *hooks)
{
	return tlb_rs_remove_hooks(TLB_BATCH_SKIP, hooks, tlb_rs_skip_none);
}

static inline bool tlb_rs_hook_removed(const char *hook)
{
	return strcmp(hook, "none") != 0;
}

static const char * const tlb_rs_vmstat[] = {
	"tlb_batch_pages", "tlb_batch_ranges", "tlb_batch_flush",
	"tlb_batch_overflow", "pgmigrate_success", "pgmigrate_fail",
	"nr_tlb_remote_flush", "nr_tlb_remote_flush_received",
	"nr_tlb_local_flush_all", "nr_tlb_local_flush_one",
};

#define TLB_RS_NR_VMSTAT	ARRAY_SIZE(tlb_rs_vmstat)
#define TLB_RS_VMSTAT_PAGES	0	/* index of tlb_batch_pages */
#define TLB_RS_VMSTAT_FLUSH	2	/* of tlb_batch_flush */
#define TLB_RS_VMSTAT_FLUSH_ALL	8	/* of nr_tlb_local_flush_all */

struct tlb_rs_counters {
	__u64 ns;
	long long vmstat[TLB_RS_NR_VMSTAT];	/* -1: not on this kernel */
	long long tlb_irqs;			/* x86_64: sum over the CPUs */
};

/* The TLB line of /proc/interrupts, or -1 where there is none. */
static inline long long tlb_rs_tlb_irqs(void)
{
	long long sum = -1;
	char *line = NULL;	/* has a column for each CPU */
	size_t size = 0;
	FILE *f;

	f = fopen("/proc/interrupts", "r");
	if (!f)
		return -1;
	while (getline(&line, &size, f) > 0) {
		char *p = strstr(line, "TLB:");
		char *end;

		if (!p)
			continue;
		sum = 0;
		for (p += 4;; p = end) {
			long long v = strtoll(p, &end, 10);

			if (end == p)
				break;
			sum += v;
		}
		break;
	}
	free(line);
	fclose(f);
	return sum;
}

static inline void tlb_rs_counters_read(struct tlb_rs_counters *c)
{
	char name[64];
	long long val;
	size_t i;
	FILE *f;

	for (i = 0; i < TLB_RS_NR_VMSTAT; i++)
		c->vmstat[i] = -1;
	f = fopen("/proc/vmstat", "r");
	if (f) {
		while (fscanf(f, "%63s %lld", name, &val) == 2) {
			for (i = 0; i < TLB_RS_NR_VMSTAT; i++) {
				if (!strcmp(name, tlb_rs_vmstat[i]))
					c->vmstat[i] = val;
			}
		}
		fclose(f);
	}
	c->tlb_irqs = tlb_rs_tlb_irqs();
}

/* The counters are read outside the region, the clock inside. */
static inline void tlb_rs_begin(struct tlb_rs_counters *c)
{
	tlb_rs_counters_read(c);
	c->ns = tlb_rs_now_ns();
	tlb_rs_region_start();
}

/* Replaces @c, read earlier, by the differences since then. */
static inline void tlb_rs_counters_diff(struct tlb_rs_counters *c)
{
	struct tlb_rs_counters now;
	size_t i;

	tlb_rs_counters_read(&now);
	for (i = 0; i < TLB_RS_NR_VMSTAT; i++) {
		if (c->vmstat[i] >= 0)
			c->vmstat[i] = now.vmstat[i] - c->vmstat[i];
	}
	if (c->tlb_irqs >= 0)
		c->tlb_irqs = now.tlb_irqs - c->tlb_irqs;
}

/* Leaves the differences since tlb_rs_begin() in @c. */
static inline void tlb_rs_end(struct tlb_rs_counters *c)
{
	tlb_rs_region_stop();
	c->ns = tlb_rs_now_ns() - c->ns;
	tlb_rs_counters_diff(c);
}

/* Members of a JSON object, each with its leading comma. */
static inline void tlb_rs_json_counters(const struct tlb_rs_counters *c)
{
	size_t i;

	for (i = 0; i < TLB_RS_NR_VMSTAT; i++) {
		if (c->vmstat[i] >= 0)
			printf(",\"%s\":%lld", tlb_rs_vmstat[i], c->vmstat[i]);
	}
	if (c->tlb_irqs >= 0)
		printf(",\"tlb_irqs\":%lld", c->tlb_irqs);
}

/*
 * The record of a region, one JSON object on a line of its own. @extra holds
 * further members, each with its leading comma, or is empty.
 */
static inline void tlb_rs_json_region(const char *region, const char *extra,
				      const struct tlb_rs_counters *c)
{
	printf("{\"region\":\"%s\",\"tlb_batch\":%s%s,\"ns\":%llu", region,
	       tlb_batch_json(), extra, c->ns);
	tlb_rs_json_counters(c);
	printf("}\n");
	fflush(stdout);
}

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

static inline int tlb_rs_open(const char *path, int flags)
{
	int fd = open(path, flags | O_CLOEXEC);

	if (fd < 0)
		ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	return fd;
}

static inline __u64 tlb_rs_pagemap(const void *addr)
{
	static int fd = -1;
	static pid_t owner;
	__u64 ent = 0;

	/* A forked child must not look at its parent's pages. */
	if (fd < 0 || owner != getpid()) {
		if (fd >= 0)
			close(fd);
		fd = tlb_rs_open("/proc/self/pagemap", O_RDONLY);
		owner = getpid();
	}
	if (pread(fd, &ent, sizeof(ent), (unsigned long)addr / getpagesize() * sizeof(ent)) !=
	    sizeof(ent))
		return 0;
	return ent;
}

static inline __u64 tlb_rs_pfn(const void *addr)
{
	__u64 ent = tlb_rs_pagemap(addr);

	return ent & PM_PRESENT ? ent & PM_PFN_MASK : 0;
}

static inline __u64 tlb_rs_kpageflags(__u64 pfn)
{
	static int fd = -1;
	__u64 flags = 0;

	if (fd < 0)
		fd = tlb_rs_open("/proc/kpageflags", O_RDONLY);
	if (!pfn || pread(fd, &flags, sizeof(flags), pfn * sizeof(flags)) != sizeof(flags))
		return 0;
	return flags;
}

/* Is the page at @addr part of a large folio? */
static inline bool tlb_rs_is_large(const void *addr)
{
	return tlb_rs_kpageflags(tlb_rs_pfn(addr)) & KPF_LARGE;
}

/*
 * Does one folio of exactly @nr pages start at @addr? Its frames follow each
 * other, the first is a head page and all others, up to the next, are tails.
 */
static inline bool tlb_rs_is_folio(const char *addr, size_t nr)
{
	size_t psize = getpagesize();
	__u64 pfn = tlb_rs_pfn(addr);
	size_t i;

	if (!(tlb_rs_kpageflags(pfn) & (1ULL << KPF_COMPOUND_HEAD)))
		return false;
	for (i = 1; i < nr; i++) {
		if (tlb_rs_pfn(addr + i * psize) != pfn + i)
			return false;
		if (!(tlb_rs_kpageflags(pfn + i) & (1ULL << KPF_COMPOUND_TAIL)))
			return false;
	}
	return !(tlb_rs_kpageflags(pfn + nr) & (1ULL << KPF_COMPOUND_TAIL));
}

/* A field in kB of the mapping that holds @addr, or -1. */
static inline long tlb_rs_smaps_kb(const void *addr, const char *field)
{
	unsigned long start, end, want = (unsigned long)addr;
	size_t len = strlen(field);
	bool inside = false;
	char line[512];
	long kb = -1;
	FILE *f;

	f = fopen("/proc/self/smaps", "r");
	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2) {
			if (inside)
				break;
			inside = want >= start && want < end;
		} else if (inside && !strncmp(line, field, len) && line[len] == ':') {
			kb = atol(line + len + 1);
			break;
		}
	}
	fclose(f);
	return kb;
}

/* Anonymous memory whose address is a multiple of @align, a power of two. */
static inline char *tlb_rs_mmap(size_t len, size_t align)
{
	char *raw, *base;

	raw = mmap(NULL, len + align, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (raw == MAP_FAILED)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	base = (char *)(((unsigned long)raw + align - 1) & ~(align - 1));
	if (base > raw)
		munmap(raw, base - raw);
	if (base + len < raw + len + align)
		munmap(base + len, raw + align - base);
	return base;
}

/*
 * Contents: each word depends on its position and on a seed, so that neither
 * a lost nor a swapped nor a reused page can look right.
 */
static inline __u64 tlb_rs_word(__u64 seed, __u64 pos)
{
	return (pos + 1) * 0x9e3779b97f4a7c15ULL ^ (seed << 32 | seed);
}

static inline void tlb_rs_fill(void *buf, size_t len, __u64 seed)
{
	__u64 *w = buf;
	size_t i;

	for (i = 0; i < len / sizeof(*w); i++)
		w[i] = tlb_rs_word(seed, i);
}

/* The number of wrong words. */
static inline size_t tlb_rs_check(const void *buf, size_t len, __u64 seed)
{
	const __u64 *w = buf;
	size_t bad = 0;
	size_t i;

	for (i = 0; i < len / sizeof(*w); i++)
		bad += w[i] != tlb_rs_word(seed, i);
	return bad;
}

static inline bool tlb_rs_pin_cpu(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	return !sched_setaffinity(0, sizeof(set), &set);
}

static inline int tlb_rs_nr_cpus(void)
{
	return (int)sysconf(_SC_NPROCESSORS_ONLN);
}

static inline long tlb_rs_move_pages(pid_t pid, unsigned long nr, void **pages,
				     const int *nodes, int *status)
{
	return syscall(SYS_move_pages, pid, nr, pages, nodes, status, MPOL_MF_MOVE);
}

/* The nodes that have memory among 0..63, as a mask. */
static inline unsigned long tlb_rs_memory_nodes(void)
{
	unsigned long mask = 0;
	char buf[256];
	char *p = buf;

	if (tlb_rs_read_file("/sys/devices/system/node/has_memory", buf, sizeof(buf)))
		return 1;
	while (*p >= '0' && *p <= '9') {
		unsigned long lo = strtoul(p, &p, 10), hi = lo;

		if (*p == '-')
			hi = strtoul(p + 1, &p, 10);
		for (; lo <= hi && lo < 64; lo++)
			mask |= 1UL << lo;
		if (*p == ',')
			p++;
	}
	return mask;
}

static inline bool tlb_rs_bind_node(void *addr, size_t len, int node)
{
	unsigned long mask = 1UL << node;

	return !syscall(SYS_mbind, addr, len, MPOL_BIND, &mask, 8 * sizeof(mask) + 1, 0);
}

static inline bool tlb_rs_has_swap(void)
{
	char buf[512];

	if (tlb_rs_read_file("/proc/swaps", buf, sizeof(buf)))
		return false;
	/* The first line is a heading. */
	return strchr(buf, '\n') && strchr(buf, '\n')[1];
}

/* What is read back from zram leaves the swap cache at once. */
static inline bool tlb_rs_has_disk_swap(void)
{
	char buf[512];

	return !tlb_rs_read_file("/proc/swaps", buf, sizeof(buf)) && strstr(buf, "/dev/") &&
	       !strstr(buf, "zram");
}

/* Until exit: zswap frees pages before a disk would have been written. */
static inline void tlb_rs_no_zswap(void)
{
	tlb_rs_setting("/sys/module/zswap/parameters/enabled", "0");
}

/* Pages that move by themselves do not belong into a measurement. */
static inline void tlb_rs_quiet(void)
{
	char buf[32];

	if (!tlb_rs_read_file("/proc/sys/kernel/numa_balancing", buf, sizeof(buf)) && atoi(buf))
		tlb_rs_setting("/proc/sys/kernel/numa_balancing", "0");
	/* A THP that was PTE-mapped on purpose must stay so. */
	tlb_rs_setting(THP_SYSFS "khugepaged/scan_sleep_millisecs", "600000");
}

/*
 * The TCG accelerator of QEMU does not always survive an x86_64 kernel that
 * patches code which other CPUs execute ("Oops: int3", on a stock kernel too),
 * so no static key should be switched under load there.
 */
static inline bool tlb_rs_patching_is_safe(void)
{
#if defined(__x86_64__)
	unsigned int eax, sig[4] = { 0 };

	__cpuid_count(0x40000000, 0, eax, sig[0], sig[1], sig[2]);
	(void)eax;
	return memcmp(sig, "TCGTCGTCGTCG", 12);
#else
	return true;
#endif
}

/*
 * Readers: threads on other CPUs than 0 that read each page of a range and then
 * stay in user mode, so that those CPUs have the range in their TLBs and must
 * be told about each flush. With @touch they go on reading, which makes more
 * races and less repeatable counts: a reader that waits for a page leaves its
 * CPU idle.
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

static inline void *tlb_rs_reader(void *arg)
{
	struct tlb_rs_readers *r = arg;
	int nr = __atomic_fetch_add(&r->started, 1, __ATOMIC_RELAXED);
	size_t off;

	tlb_rs_pin_cpu((nr + 1) % tlb_rs_nr_cpus());
	do {
		for (off = 0; off < r->len; off += getpagesize())
			__atomic_load_n(r->base + off, __ATOMIC_RELAXED);
		__atomic_fetch_add(&r->ready, 1, __ATOMIC_RELEASE);
	} while (r->touch && !__atomic_load_n(&r->stop, __ATOMIC_RELAXED));
	while (!__atomic_load_n(&r->stop, __ATOMIC_RELAXED))
		;
	return NULL;
}

static inline void tlb_rs_readers_start(struct tlb_rs_readers *r, int nr, bool touch,
					const char *base, size_t len)
{
	memset(r, 0, sizeof(*r));
	r->touch = touch;
	r->base = base;
	r->len = len;
	for (r->nr = 0; r->nr < nr; r->nr++) {
		if (pthread_create(&r->id[r->nr], NULL, tlb_rs_reader, r))
			ksft_exit_fail_msg("cannot start a reader\n");
	}
	while (__atomic_load_n(&r->ready, __ATOMIC_ACQUIRE) < nr)
		tlb_rs_sleep_us(1000);
}

static inline void tlb_rs_readers_end(struct tlb_rs_readers *r)
{
	int i;

	__atomic_store_n(&r->stop, true, __ATOMIC_RELAXED);
	for (i = 0; i < r->nr; i++)
		pthread_join(r->id[i], NULL);
}

/* Selects "madvise" unless transparent huge pages are already available. */
static inline bool tlb_rs_thp_available(void)
{
	char buf[128];

	if (tlb_rs_read_file(THP_SYSFS "enabled", buf, sizeof(buf)))
		return false;
	return !strstr(buf, "[never]") || tlb_rs_setting(THP_SYSFS "enabled", "madvise");
}

/* HugeTLB pages that somebody has set aside: who resizes a pool would take them away. */
static inline bool tlb_rs_pools_in_use(void)
{
	DIR *dir = opendir(HUGETLB_SYSFS);
	struct dirent *ent;
	char path[320], buf[32];
	bool used = false;

	while (dir && !used && (ent = readdir(dir))) {
		snprintf(path, sizeof(path), HUGETLB_SYSFS "%s/nr_hugepages", ent->d_name);
		used = !tlb_rs_read_file(path, buf, sizeof(buf)) && atol(buf);
	}
	if (dir)
		closedir(dir);
	return used;
}

/* Command line: a decimal number within bounds, or the test ends. */
static inline long tlb_rs_number(const char *arg, long min, long max)
{
	char *end;
	long val;

	errno = 0;
	val = strtol(arg, &end, 10);
	if (errno || end == arg || *end || val < min || val > max)
		ksft_exit_fail_msg("'%s' is not a number from %ld to %ld\n", arg, min, max);
	return val;
}

/* How many of @nr pages from @base on have @bit (PM_...) in their pagemap entry. */
static inline size_t tlb_rs_count_pagemap(const char *base, size_t nr, __u64 bit)
{
	size_t i, n = 0;

	for (i = 0; i < nr; i++)
		n += !!(tlb_rs_pagemap(base + i * getpagesize()) & bit);
	return n;
}

#define MEMINFO			"/proc/meminfo"

/* Of that file, or of a node's, in kB; 0 where there is no such field. */
static inline long long tlb_rs_meminfo_kb(const char *path, const char *field)
{
	size_t len = strlen(field);
	char line[256], *p;
	long long kb = 0;
	FILE *f;

	f = fopen(path, "r");
	if (!f)
		return 0;
	while (fgets(line, sizeof(line), f)) {
		p = strstr(line, field);
		if (p && (p == line || p[-1] == ' ') && p[len] == ':')
			kb = atoll(p + len + 1);
	}
	fclose(f);
	return kb;
}

/* One line of /proc/vmstat, or -1 where there is none. */
static inline long long tlb_rs_vmstat_read(const char *want)
{
	long long val, ret = -1;
	char name[64];
	FILE *f;

	f = fopen("/proc/vmstat", "r");
	if (!f)
		return -1;
	while (ret < 0 && fscanf(f, "%63s %lld", name, &val) == 2) {
		if (!strcmp(name, want))
			ret = val;
	}
	fclose(f);
	return ret;
}

/*
 * Puts the pages that still wait in a per-CPU batch onto their LRU list:
 * reclaim and migration find no others. Drops the clean page cache, too.
 */
static inline void tlb_rs_drain_lru(void)
{
	tlb_rs_write_file("/proc/sys/vm/drop_caches", "1");
}

/* Fault injection: windows (TLB_BATCH_DELAY and these) open until exit. */
#define TLB_BATCH_FLUSH_DELAY	DEBUGFS "tlb_batch/flush_delay_us"
#define TLB_SECONDARY_DELAY	DEBUGFS "tlb_batch/secondary_delay_us"
#define MIGRC_WALK_DELAY	DEBUGFS "migrc/walk_delay_us"

static inline void tlb_rs_delay_none(void)
{
	tlb_rs_write_file(TLB_BATCH_DELAY, "0");
	tlb_rs_write_file(TLB_BATCH_FLUSH_DELAY, "0");
	tlb_rs_write_file(TLB_SECONDARY_DELAY, "0");
	tlb_rs_write_file(MIGRC_WALK_DELAY, "0");
}

static inline bool tlb_rs_delay(const char *path, long us)
{
	char buf[32];

	snprintf(buf, sizeof(buf), "%ld", us);
	if (tlb_rs_write_file(path, buf))
		return false;
	tlb_rs_at_exit(tlb_rs_delay_none);
	return true;
}

/* What the calling task owes; all zero when no flush is outstanding. */
#define TLB_BATCH_CURRENT	DEBUGFS "tlb_batch/current"

struct tlb_rs_owed {
	int ranges;
	int held;
	int unsynced;
};

static inline bool tlb_rs_owed(struct tlb_rs_owed *owed)
{
	char buf[128];

	return !tlb_rs_read_file(TLB_BATCH_CURRENT, buf, sizeof(buf)) &&
	       sscanf(buf, "ranges %d held %d unsynced %d", &owed->ranges, &owed->held,
		      &owed->unsynced) == 3;
}

static inline bool tlb_rs_owes(const struct tlb_rs_owed *owed)
{
	return owed->ranges || owed->held || owed->unsynced;
}

/*
 * Puts the pages that still wait in a per-CPU batch onto their LRU list, and
 * moves nothing. Without NUMA, page cache that nobody maps is lost.
 */
static inline void tlb_rs_drain_pages(void)
{
	void *page = NULL;
	int node = 0, status;

	if (tlb_rs_move_pages(0, 0, &page, &node, &status)) {
		/* Without a message. */
		tlb_rs_write_file("/proc/sys/vm/drop_caches", "4");
		tlb_rs_write_file("/proc/sys/vm/drop_caches", "1");
	}
}

#endif /* _TLB_RS_H */
