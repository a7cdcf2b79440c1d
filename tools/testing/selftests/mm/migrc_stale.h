/* SPDX-License-Identifier: GPL-2.0 */
/* What the sources of migrc_stale share; migrc_stale.c says what it tests. */
#ifndef _MIGRC_STALE_H
#define _MIGRC_STALE_H

#define _GNU_SOURCE
#include <signal.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <linux/userfaultfd.h>

#include "migrc.h"

#define NR_PAGES	32	/* moved within a CPU's turn where one thread emulates all */
#define NR_INFLIGHT	256	/* what takes a move long */
#define NR_OTHERS	1024
#define NR_VMAS		8192	/* after P: what takes fork() long */
#define NR_ZERO		65536	/* the same for mprotect() */
#define DELAY_US	200000	/* how much later reclaim flushes */
#define AGE_MS		60000	/* nothing is flushed for its age */
#define MAX_PAGES	8192
#define NR_HUGE		1024	/* the same for mprotect() of huge pages */
#define FOLIO_PAGES	16
#define NR_FOLIOS	32	/* as many as are migrated in one batch */
#define SEED		7

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP	4
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ	22
#endif
#ifndef UFFDIO_MOVE
#define UFFD_FEATURE_MOVE	0x10000
#define UFFDIO_MOVE		_IOWR(UFFDIO, 5, struct uffdio_move)

struct uffdio_move {
	__u64 dst;
	__u64 src;
	__u64 len;
	__u64 mode;
	__s64 move;
};
#endif
#ifndef UFFDIO_REGISTER_MODE_RWP
#define UFFD_FEATURE_RWP	0x20000
#define UFFD_FEATURE_RWP_ASYNC	0x40000
#define UFFDIO_REGISTER_MODE_RWP	8
#endif
#define POKEMTETAGS	34	/* PTRACE_POKEMTETAGS of arm64 */
#define MTE		0x20	/* PROT_MTE of arm64 */

/* Shared with children; never moved. */
struct shared {
	/* By main. */
	__u64 reading;		/* the round in which R may read P */
	__u64 want;		/* what R should read at last */
	__u64 move;		/* the round in which the mover should move */
	int node;		/* to where */
	__u64 reclaim;		/* the round in which the reclaimer should reclaim P */
	__u64 go;		/* the round in which W should store */
	__u64 delay_ns;
	__u64 finished;		/* the round whose mprotect() has returned */
	__u64 poke;		/* the round in which the tracer should poke */
	__u64 poke_val;
	bool pause;		/* the writer should wait */
	bool stop;
	__u64 unmap;		/* the round in which the child should unmap P */
	/* By main, W or R. */
	__u64 flag;
	/* By R, or the writer. */
	__u64 ack;
	__u64 last;		/* what R has read */
	__u64 stale;
	__u64 count;		/* of the writer, without TLB */
	__u64 lost;
	bool parked;
	pid_t tid;
	/* By others. */
	__u64 moved;
	__u64 moved_ns;
	__u64 reclaimed;
	bool in_time;
	pid_t victim;
	__u64 poked;
	bool ready;
	__u64 unmapped;
	bool child_faulted;
	__u64 child_reads;
	__u64 child_bad;
};

struct test {
	long rounds;
	long pages;		/* that are moved, if not NR_PAGES */
	size_t vmas;		/* filler behind P */
	size_t zero;
	bool (*setup)(void);
	void (*prepare)(__u64 round);
	bool (*act)(__u64 round);	/* false: missed its window */
	void (*cleanup)(void);
	bool inflight;		/* the act moves, and does so itself */
	bool reclaim;		/* the act needs the reclaimer */
	bool keep;		/* R must go on reading the old value */
	bool undone;		/* the move fails */
	bool flushes;		/* the move does, unless a hook is removed */
	bool denied;		/* nothing is deferred unless a hook is removed */
	bool optional;		/* the kernel need not defer this, or no move may meet it */
	long age_ms;
};

/* migrc_stale.c */
extern struct shared *sh;
extern const struct test *test;
extern size_t psize;
extern __u64 *page_p;
extern char *area;
extern size_t area_len;
extern int area_prot;
extern long nr_pages;
extern char *list;
extern struct migrc_set set;
extern int mem;
extern int file;
extern int uffd;
extern pid_t child;
extern char *others;
extern __u64 duration_ns;
extern __u64 pfn;
extern __u64 (*look)(void);
__u64 old_value(__u64 round);
__u64 new_value(__u64 round);
__u64 look_word(void);
__u64 look_and_store(void);
void *mover(void *arg);
void touch_stack(void);
void store(__u64 val);
__u64 load(void);
void protect(int prot);
void settle(void);
void start_move(__u64 round);
bool moving(__u64 round);
void end_move(__u64 round);
pid_t start_child(void (*fn)(void));
void end_child(void);
void map_pages(const struct test *t);
void unmap_pages(void);
void start_thread(void *(*fn)(void *));
void end_threads(void);

/* migrc_stale_writes.c */
extern pthread_t victim_id;
extern bool has_victim;
void prepare_protect(__u64 round);
void nothing(void);
void prepare_fork(__u64 round);
void come_and_go(void);
void prepare_fork_exit(__u64 round);
void pin_and_read(void);
void make_exclusive(void);
void prepare_exclusive(__u64 round);
void prepare_file(__u64 round);
bool act_store(__u64 round);
bool act_file(__u64 round);
bool setup_tracer(void);
bool act_poke(__u64 round);
bool setup_tags(void);
void prepare_tags(__u64 round);
bool act_tags(__u64 round);
void prepare_common(__u64 round);
bool act_common(__u64 round);
bool setup_file(void);
bool setup_shared(void);

/* migrc_stale_ranges.c */
void on_fault(int sig);
bool act_while(__u64 round, void (*allow)(void));
bool act_mprotect(__u64 round);
bool act_zap(__u64 round);
bool act_dontneed(__u64 round);
bool act_mremap(__u64 round);
void cleanup_mremap(void);
bool act_writable(__u64 round);
bool act_pending(__u64 round);
bool act_fork(__u64 round);
int run_lost(const struct test *t, const struct migrc_options *o);

/* migrc_stale_uffd.c */
extern char *origin;
void prepare_uffd(__u64 round);
bool act_uffd(__u64 round);
bool act_move(__u64 round);
void prepare_rwp(__u64 round);
void prepare_rwp_swapin(__u64 round);
bool act_rwp(__u64 round);
void prepare_undo(__u64 round);
bool act_rwp_swapin(__u64 round);
bool act_undo(__u64 round);
bool setup_uffd(void);
bool setup_rwp(void);
bool setup_rwp_swapin(void);
bool setup_move(void);

/* migrc_stale_source.c */
extern bool clean;
void deactivate(void);
void prepare_swapin(__u64 round);
bool act_swapin(__u64 round);
void cleanup_swapin(void);
void scribble(void);
void cleanup_others(void);
bool act_record(__u64 round);
bool act_drain(__u64 round);
bool act_twice(__u64 round);
bool setup_swapin(void);

/* migrc_stale_counters.c */
int run_mixed(const struct migrc_options *o);
int run_halves(const struct migrc_options *o);
int run_block(const struct migrc_options *o);
int run_type(const struct migrc_options *o);
int run_exec(const struct migrc_options *o);
int run_undo(const struct migrc_options *o);
int run_split(const struct migrc_options *o);
int run_notifier(const struct migrc_options *o);

#endif /* _MIGRC_STALE_H */
