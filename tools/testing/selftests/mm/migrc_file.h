/* SPDX-License-Identifier: GPL-2.0 */
/* What the sources of migrc_file share; migrc_file.c says what it tests. */
#ifndef _MIGRC_FILE_H
#define _MIGRC_FILE_H

#define _GNU_SOURCE
#include <ftw.h>
#include <mntent.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <linux/fs.h>
#include <linux/fsverity.h>
#include <linux/loop.h>
#include <linux/magic.h>

#include "migrc.h"

#define NR_PAGES	64
#define NR_CHILDREN	2	/* more make each drain slower, which has to end meanwhile */
#define NR_OTHERS	1024
#define MAX_MAPPINGS	1024	/* mm/migrc/eligibility.rs has the same */
#define AGE_MS		60000	/* nothing is flushed for its age */
#define MAX_PAGES	8192
#define WALK_US		10000	/* a host that is busy runs no other CPU for some milliseconds */

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ	22
#endif

struct race {
	/* By main. */
	__u64 pfn;		/* of P */
	__u64 go;		/* the round in which the racer should write */
	__u64 moved;		/* the round in which P has been moved */
	/* By who reads meanwhile. */
	__u64 stale_round;
	/* By the racer. */
	__u64 opened_ns;
	__u64 written;		/* what its last write that has returned wrote */
};

struct test {
	long (*run)(long rounds, const struct migrc_options *o);	/* or run_litmus() */
	bool (*setup)(void);
	bool (*renew)(__u64 round);	/* or renew() */
	bool (*act)(__u64 round);
	void (*cleanup)(void);
	bool zero;		/* the act leaves zeros */
	bool dirty;		/* it comes before the move, and is not written back */
	bool denied;
	bool private;
	bool image;		/* a file that was there; the act does not change what R reads */
	bool optional;		/* no move may meet it */
	long times;		/* as many rounds as others have */
};

/* Of all processes: what a case has made, for the one that removes it. */
struct made {
	char path[256];		/* by which the file is written */
	char other[300];	/* of which it is a clone */
	char loop[32];
	char overlay[300];	/* what is here is of this program */
	bool mounted;
	char disk[256];		/* that is mounted with another journal */
};

/* migrc_file.c */
extern __u64 *word;
extern struct migrc_reader sh;
extern struct race race;
extern const struct test *test;
extern const char *dir;
extern struct made *made;
extern char *path;
extern char map_path[256];
extern size_t psize, len;
extern char *base;
extern off_t word_at;
extern int held_fd;
extern void *buffer;
__u64 old_value(__u64 round);
__u64 new_value(__u64 round);
int must_open(const char *name, int flags);
bool write_word(int fd, __u64 val);
void map_file(void);
void fill_file(off_t size);
bool prepare(__u64 round);

/* migrc_file_layers.c */
bool setup_clone(void);
bool act_clone(__u64 round);
void detach(void);
bool setup_loop(void);
bool act_loop(__u64 round);
bool setup_upper(void);
bool setup_lower(void);
bool setup_image(void);
bool renew_image(__u64 round);
bool act_image(__u64 round);
void unmap_others(void);
bool renew_copyup(__u64 round);
bool setup_copyup(void);
bool act_copyup(__u64 round);

/* migrc_file_verity.c */
bool renew_verity(__u64 round);
bool act_verity(__u64 round);
bool setup_verity(void);
bool setup_journal(void);

/* migrc_file_open.c */
bool setup_race(void);
long run_race(long rounds, const struct migrc_options *o);
bool setup_idle(void);
long run_idle(long rounds, const struct migrc_options *o);

#endif /* _MIGRC_FILE_H */
