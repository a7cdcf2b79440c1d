/* SPDX-License-Identifier: GPL-2.0 */
/* What the sources of tlb_rs_abuse share; tlb_rs_abuse.c says what it tests. */
#ifndef _TLB_RS_ABUSE_H
#define _TLB_RS_ABUSE_H

#define _GNU_SOURCE
#include <dirent.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "hvo.h"
#include "migrc.h"

#define SEED		17
#define LAST_USER	1999999999
#define MAX_STALL_NS	1000000000ULL
#define TICK_US		10000
#define PATIENCE_NS	60000000000ULL
/* mm/migrc/eligibility.rs has the same */
#define MAX_MAPPINGS	1024
#define ALL_PENDING	0x100000000ULL	/* look like none in 32 bits */

#define LEAK_KB		8192		/* what may look lost; other tasks come and go */
#define LEAK_MMS	512		/* the slab allocator counts what it keeps, too */
#define LONG_MS		60000
#define NR_PIDS		256

#define MIGRC_GENERATION	DEBUGFS "migrc/generation"
#define HVO_SYSCTL		"/proc/sys/vm/hugetlb_optimize_vmemmap"

/* What a violation is about. */
enum sign {
	BOUND = 1, CONTENTS = 2, HELD = 4, LEAK = 8, STALL = 16,
};

/* Of all processes of this program. */
struct shared {
	/* Of the watchdog. */
	bool stop;
	__u64 worst_ns;
	long ticks;
	/* Of a case. */
	bool end;
	bool ready;
	long bad;
	unsigned int shown;	/* signs of what TLB_BREAK and TLB_SKIP should show */
	long ops;
	long refused;
	__u64 pending;
	pid_t pids[NR_PIDS];
	unsigned int nr_pids;
};

/* One that TLB_BREAK or TLB_SKIP leads to. */
#define shown(sign, ...) do {							\
	__atomic_fetch_or(&sh->shown, sign, __ATOMIC_RELAXED);			\
	violation(__VA_ARGS__);							\
} while (0)

struct balance {
	long long lost_kb;	/* neither free nor in use for anything that is known */
	long long memmap;	/* pages of struct pages */
	long mms;		/* -1: not known */
};

/* tlb_rs_abuse.c */
extern long seconds;
extern long processes;
extern bool broken;
extern const char *skip_hooks;
extern struct shared *sh;
extern __u64 deadline;
extern pid_t watchdog_pid;
bool expired(void);
bool enough(bool done);
void count(long *counter);
__printf(1, 2) void violation(const char *fmt, ...);
bool is_want(int err);
void leave_last_cpu(void);
void become_user(void);
pid_t start(void (*fn)(void));
bool end(pid_t pid);

/* tlb_rs_abuse_bounds.c */
void case_generation(bool on);
void case_ledger(bool on);
void case_sharers(bool on);

/* tlb_rs_abuse_memory.c */
extern unsigned long pool_kb;
extern long pool_max;
void read_balance(struct balance *b);
void check_balance(const struct balance *before);
void leak_no_more(void);
void case_forkbomb(bool on);
const char *cannot_hugetlb(void);
void case_hugetlb(bool on);

/* tlb_rs_abuse_files.c */
void case_toggle(bool on);
void case_garbage(bool on);

#endif /* _TLB_RS_ABUSE_H */
