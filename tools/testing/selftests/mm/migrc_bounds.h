/* SPDX-License-Identifier: GPL-2.0 */
/* What the sources of migrc_bounds share; migrc_bounds.c says what it tests. */
#ifndef _MIGRC_BOUNDS_H
#define _MIGRC_BOUNDS_H

#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "migrc.h"

#define NR_PAGES	4096
#define EXIT_PAGES	256
#define SEED		9
#define LONG_MS		60000

#define COMPACT_MEMORY	"/proc/sys/vm/compact_memory"
#define WATERMARKS	"/proc/sys/vm/watermark_scale_factor"
#define MIN_FREE	"/proc/sys/vm/min_free_kbytes"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE	23
#endif

struct result {
	long armed;		/* rounds in which there was something to see */
	long stale;		/* violations */
	const char *why;	/* skipped */
};

/* Of all processes. */
struct shared {
	bool ready;
	long bad;
	pid_t kcompactd;	/* which has to be as it was */
	cpu_set_t cpus;		/* where it may run */
};

/* migrc_bounds.c */
extern size_t psize;
extern struct shared *sh;
void unmap(struct migrc_set *set, char *base);

/* migrc_bounds_memory.c */
void case_pressure(long rounds, struct result *r);
size_t node_free(int node);
size_t scatter(struct migrc_set *set, int node, size_t spare, __u64 lo, __u64 hi, size_t stride);
size_t end_scatter(struct migrc_set *set);
int write_in_time(const char *path, const char *val);
void case_offline(long rounds, struct result *r);
void case_hugetlb(long rounds, struct result *r);

/* migrc_bounds_denied.c */
void case_denied(long rounds, struct result *r);
void case_thp(long rounds, struct result *r);
void case_compaction(long rounds, struct result *r);
void case_poison(long rounds, struct result *r);
void case_nested(long rounds, struct result *r);

#endif /* _MIGRC_BOUNDS_H */
