/* SPDX-License-Identifier: GPL-2.0 */
/* What the sources of migrc_workload share; migrc_workload.c says what it measures. */
#ifndef _MIGRC_WORKLOAD_H
#define _MIGRC_WORKLOAD_H

#define _GNU_SOURCE
#include <limits.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "migrc_record.h"

#define TRACING		"/sys/kernel/tracing/"
#define DRAIN		"migrc_drain: pages=%lld mms=%lld age_us=%*d reason=%*s ns=%lld"
#define BALANCING	DEBUGFS "sched/numa_balancing/"
#define MAX_THREADS	32
#define MAX_PAIRS	1000
#define MAX_ROUNDS	10000
#define FOLLOW_NS	10000000000ULL
#define LIFE		(CLOCKS_PER_SEC / 5)	/* of a process */
#define NOT_TRIED	INT_MAX	/* no node, no error */
#define SEED		1

#ifndef MPOL_DEFAULT
#define MPOL_DEFAULT	0
#endif

struct workload {
	const char *name;
	bool file;
	bool procs;
	bool write;
	bool hot;		/* nine of ten accesses go to a tenth of the pages */
};

/* Who moves the pages. */
enum mover {
	BY_MOVE,
	BY_BALANCE,
	BY_DAMON,
};

/* Of processes, too. */
struct shared {
	bool stop;
	bool failed;
	int node;		/* where the threads are, for NUMA balancing */
	__u64 ops[MAX_THREADS][16];	/* a cache line each */
};

/* migrc_workload.c */
extern enum mover by;
extern const char *dir;
extern size_t nr_pages;
extern size_t call_pages;
extern size_t block_pages;
extern int nr_procs;
extern bool large;
extern bool protect;
extern size_t psize;
extern char *base;
extern struct migrc_set set;
extern const struct workload *load_now;
extern __u64 interval_ns;
extern struct shared *shared;

/* migrc_workload_users.c */
void *user(void *arg);
void put_function(char *page);
int process(const char *library);
void path_of(char *path, size_t size, const char *what);
void spawn(void);
__u64 all_ops(void);

/* migrc_workload_moves.c */
void balance(void);
void damon_start(void);
long long move_all(int times);

/* migrc_workload_pages.c */
void map_pages(const struct workload *w);
bool unmap_pages(const struct workload *w);

#endif /* _MIGRC_WORKLOAD_H */
