/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Shared parts of the tests of migrc, which defers TLB flushes at migration: its
 * switches, its counters, and sets of pages that are moved together.
 */
#ifndef _MIGRC_TEST_H
#define _MIGRC_TEST_H

#include <getopt.h>
#include <linux/magic.h>
#include <stdint.h>
#include <sys/vfs.h>

#include "tlb_rs.h"

#define MIGRC_ENABLE	"/proc/sys/vm/migrc_enable"
#define MIGRC_PAGES	"/proc/sys/vm/migrc_max_pages"
#define MIGRC_AGE	"/proc/sys/vm/migrc_max_age_ms"
#define MIGRC_READMOSTLY	"/proc/sys/vm/migrc_readmostly"
#define MIGRC_SKIP	DEBUGFS "migrc/skip_hook"
#define MIGRC_STATS	DEBUGFS "migrc/stats"

static inline void migrc_write(const char *path, long val)
{
	char buf[32];
	int err;

	snprintf(buf, sizeof(buf), "%ld\n", val);
	err = tlb_rs_write_file(path, buf);
	if (err)
		ksft_exit_fail_msg("%s: %s\n", path, strerror(-err));
}

/* A setting that is restored at exit; call it once for each. */
static inline void migrc_setting(const char *path, long val)
{
	char buf[32];

	snprintf(buf, sizeof(buf), "%ld\n", val);
	if (!tlb_rs_setting(path, buf))
		ksft_exit_fail_msg("cannot set %s to %ld\n", path, val);
}

/* Why nothing can be tested here, or NULL. */
static inline const char *migrc_missing(int cpus)
{
	static char need[32];

	if (access(MIGRC_ENABLE, R_OK))
		return "no migrc: " MIGRC_ENABLE " is absent";
	snprintf(need, sizeof(need), "needs %d CPUs", cpus);
	if (tlb_rs_nr_cpus() < cpus)
		return need;
	return (tlb_rs_memory_nodes() & 3) != 3 ? "needs memory on nodes 0 and 1" : NULL;
}

/*
 * Without a move in between, only a flush by the kernel for reasons of its own
 * should end a deferral: @age_ms long, @pages many.
 */
static inline void migrc_init(int cpus, long pages, long age_ms)
{
	const char *why = migrc_missing(cpus);

	if (why)
		ksft_exit_skip("%s\n", why);
	migrc_setting(MIGRC_PAGES, pages);
	migrc_setting(MIGRC_AGE, age_ms);
	migrc_setting(MIGRC_ENABLE, 1);
	tlb_rs_quiet();
}

static inline void migrc_skip_none(void)
{
	tlb_rs_write_file(MIGRC_SKIP, "none");
}

static inline bool migrc_skip_hooks(const char *hooks)
{
	return tlb_rs_remove_hooks(MIGRC_SKIP, hooks, migrc_skip_none);
}

enum migrc_counter {
	MIGRC_DEFERRED,
	MIGRC_DENIED,
	MIGRC_FLUSH,
	MIGRC_DRAIN_PRESSURE,
	MIGRC_DRAIN_AGE,
	MIGRC_HELD,		/* must be the last */
	MIGRC_NR,
};

static const char * const migrc_names[MIGRC_NR] = {
	"migrc_deferred", "migrc_denied", "migrc_flush", "migrc_drain_pressure",
	"migrc_drain_age", "migrc_held",
};

struct migrc_counters {
	long long val[MIGRC_NR];
};

static inline void migrc_read(struct migrc_counters *c)
{
	char name[64];
	long long val;
	size_t i;
	FILE *f;

	memset(c, 0, sizeof(*c));
	f = fopen("/proc/vmstat", "r");
	if (!f)
		return;
	while (fscanf(f, "%63s %lld", name, &val) == 2) {
		for (i = 0; i < MIGRC_NR; i++) {
			if (!strcmp(name, migrc_names[i]))
				c->val[i] = val;
		}
	}
	fclose(f);
}

/* What was counted since @before; what is held is no difference. */
static inline void migrc_diff(const struct migrc_counters *before, struct migrc_counters *d)
{
	size_t i;

	migrc_read(d);
	for (i = 0; i < MIGRC_HELD; i++)
		d->val[i] -= before->val[i];
}

/* Members of a JSON object, each with its leading comma. */
static inline void migrc_json(const struct migrc_counters *c)
{
	size_t i;

	for (i = 0; i < MIGRC_NR; i++)
		printf(",\"%s\":%lld", migrc_names[i], c->val[i]);
}

/* Pages in the ledger of @node, or of all if it is negative. */
static inline long long migrc_held(int node)
{
	long long val, ret = 0;
	char path[64], name[64];
	FILE *f;

	if (node < 0)
		return tlb_rs_vmstat_read("migrc_held");
	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/vmstat", node);
	f = fopen(path, "r");
	if (!f)
		ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	while (fscanf(f, "%63s %lld", name, &val) == 2) {
		if (!strcmp(name, "migrc_held"))
			ret = val;
	}
	fclose(f);
	return ret;
}

/*
 * Empties the ledger by a short age. A write to vm.migrc_enable would do, too, but it
 * patches code: see tlb_rs_patching_is_safe(), and on arm64 that costs TLBIs.
 */
static inline bool migrc_expire(void)
{
	char old[32];
	int i;

	if (tlb_rs_read_file(MIGRC_AGE, old, sizeof(old)))
		return false;
	migrc_write(MIGRC_AGE, 1);
	for (i = 0; i < 10000 && migrc_held(-1); i++)
		tlb_rs_sleep_us(500);
	tlb_rs_write_file(MIGRC_AGE, old);
	return i < 10000;
}

static inline void migrc_drain(void)
{
	if (migrc_expire())
		return;
	migrc_write(MIGRC_ENABLE, 0);
	migrc_write(MIGRC_ENABLE, 1);
}

/* The first number after "@what @name " in debugfs, 0 if it is not there. */
static inline long long migrc_stat(const char *what, const char *name)
{
	char line[256], want[64];
	long long val = 0;
	size_t len;
	FILE *f;

	f = fopen(MIGRC_STATS, "r");
	if (!f)
		return 0;
	len = snprintf(want, sizeof(want), "%s %s ", what, name);
	while (fgets(line, sizeof(line), f)) {
		if (!strncmp(line, want, len))
			val = atoll(line + len);
	}
	fclose(f);
	return val;
}

/* Whether there is something to be had of migrc_stat(). */
static inline bool migrc_has_stats(void)
{
	return !access(MIGRC_STATS, R_OK);
}

/* Pages that are moved in one call, in this order. */
struct migrc_set {
	size_t nr;
	void **addrs;
	int *nodes;
	int *status;
};

static inline void migrc_set_init(struct migrc_set *set, char *base, size_t nr)
{
	size_t i;

	set->nr = nr;
	set->addrs = calloc(nr, sizeof(*set->addrs));
	set->nodes = calloc(nr, sizeof(*set->nodes));
	set->status = calloc(nr, sizeof(*set->status));
	if (!set->addrs || !set->nodes || !set->status)
		ksft_exit_fail_msg("no memory\n");
	for (i = 0; i < nr; i++)
		set->addrs[i] = base + i * getpagesize();
}

static inline void migrc_set_free(struct migrc_set *set)
{
	free(set->addrs);
	free(set->nodes);
	free(set->status);
}

/*
 * Returns how many were moved to @node or are there already. Writes what the
 * kernel reads and writes first: after a fork() each would else be a write fault
 * in the middle of the move.
 */
static inline size_t migrc_move(struct migrc_set *set, pid_t pid, int node, int flags)
{
	size_t i, n = 0;

	for (i = 0; i < set->nr; i++) {
		set->nodes[i] = node;
		set->status[i] = -1;
	}
	syscall(SYS_move_pages, pid, set->nr, set->addrs, set->nodes, set->status, flags);
	for (i = 0; i < set->nr; i++)
		n += set->status[i] == node;
	return n;
}

/* The node of a page, or a negative errno. */
static inline int migrc_node_of(void *addr)
{
	int status = -ENOENT;

	if (syscall(SYS_move_pages, 0, 1UL, &addr, NULL, &status, 0))
		return -errno;
	return status;
}

/* Private memory of base pages on @node, filled from @seed. */
static inline char *migrc_mmap(size_t nr, int node, __u64 seed)
{
	size_t len = nr * getpagesize();
	char *base = tlb_rs_mmap(len, SZ_2M);

	madvise(base, len, MADV_NOHUGEPAGE);
	if (!tlb_rs_bind_node(base, len, node))
		ksft_exit_fail_msg("mbind: %s\n", strerror(errno));
	tlb_rs_fill(base, len, seed);
	return base;
}

/* As migrc_mmap(), in @set, and read-only from now on. */
static inline char *migrc_map_readonly(struct migrc_set *set, size_t nr, __u64 seed)
{
	char *base = migrc_mmap(nr, 0, seed);

	mprotect(base, nr * getpagesize(), PROT_READ);
	migrc_set_init(set, base, nr);
	return base;
}

/* Of these filesystems flushes are deferred; what is on overlayfs is on another one. */
static inline bool migrc_defers_files_of(const char *path)
{
	struct statfs fs;

	if (statfs(path, &fs))
		return false;
	switch ((unsigned int)fs.f_type) {
	case EXT4_SUPER_MAGIC:
	case XFS_SUPER_MAGIC:
	case EROFS_SUPER_MAGIC_V1:
	case SQUASHFS_MAGIC:
	case OVERLAYFS_SUPER_MAGIC:
		return true;
	}
	return false;
}

/* Moves the pages of a set that are not on the node of its last one to there. */
static inline int migrc_gather(struct migrc_set *set)
{
	int node = migrc_node_of(set->addrs[set->nr - 1]);
	size_t i, away = 0;

	if (node < 0)
		ksft_exit_fail_msg("a page is missing: %s\n", strerror(-node));
	if (syscall(SYS_move_pages, 0, set->nr, set->addrs, NULL, set->status, 0))
		return node;
	for (i = 0; i < set->nr; i++)
		away += set->status[i] != node;
	if (away)
		migrc_move(set, 0, node, MPOL_MF_MOVE);
	return node;
}

/* What threads tell each other. */
#define LOAD(x)		__atomic_load_n(&(x), __ATOMIC_ACQUIRE)
#define STORE(x, v)	__atomic_store_n(&(x), v, __ATOMIC_RELEASE)

/* By main. Nothing takes that long, unless something has gone wrong. */
#define WAIT_FOR(condition) do {						\
	__u64 __end = tlb_rs_now_ns() + 60000000000ULL;				\
										\
	while (!(condition)) {							\
		if (tlb_rs_now_ns() > __end)					\
			ksft_exit_fail_msg("%s: waited in vain for %s\n",	\
					   migrc_case, #condition);		\
	}									\
} while (0)

/* How full the ledger of a node is, by a thread of its own. */
struct migrc_watch {
	pthread_t thread;
	bool stop;
	long long most;
	long polls;
};

static inline void *migrc_watch_thread(void *arg)
{
	struct migrc_watch *watch = arg;
	int node;

	tlb_rs_pin_cpu(2 % tlb_rs_nr_cpus());
	while (!LOAD(watch->stop)) {
		for (node = 0; node < 2; node++) {
			long long held = migrc_held(node);

			watch->most = held > watch->most ? held : watch->most;
		}
		watch->polls++;
	}
	return NULL;
}

static inline void migrc_watch_begin(struct migrc_watch *watch)
{
	memset(watch, 0, sizeof(*watch));
	if (pthread_create(&watch->thread, NULL, migrc_watch_thread, watch))
		ksft_exit_fail_msg("cannot start a thread\n");
}

static inline void migrc_watch_end(struct migrc_watch *watch)
{
	STORE(watch->stop, true);
	pthread_join(watch->thread, NULL);
}

/*
 * R, on CPU 1, reads the word *@word_at over and over, without a system call, until it sees the
 * flag of the round; what it reads then has to be @want.
 */
struct migrc_reader {
	/* By main. */
	__u64 **word_at;
	__u64 reading;		/* the round in which R may read */
	__u64 want;		/* what R should read at last */
	__u64 flag;		/* the round in which it was written */
	bool stop;
	/* By R. */
	__u64 ack;
	__u64 last;
	__u64 stale;
	pid_t tid;
};

static inline void *migrc_reader(void *arg)
{
	struct migrc_reader *r = arg;
	__u64 round;

	tlb_rs_pin_cpu(1);
	STORE(r->tid, (pid_t)syscall(SYS_gettid));
	for (round = 1;; round++) {
		const __u64 *word;

		while (LOAD(r->reading) != round) {
			if (LOAD(r->stop))
				return NULL;
		}
		word = *r->word_at;
		while (LOAD(r->flag) != round)
			__atomic_store_n(&r->last, __atomic_load_n(word, __ATOMIC_RELAXED),
					 __ATOMIC_RELAXED);
		r->stale += __atomic_load_n(word, __ATOMIC_RELAXED) != LOAD(r->want);
		STORE(r->ack, round);
	}
}

/* Page faults of a thread so far, or -1. */
static inline long long migrc_faults(pid_t tid)
{
	unsigned long minflt = 0, cminflt, majflt = 0;
	char path[64], buf[1024], *p;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", tid, tid);
	if (tlb_rs_read_file(path, buf, sizeof(buf)))
		return -1;
	p = strrchr(buf, ')');
	if (!p || sscanf(p + 1, " %*c %*d %*d %*d %*d %*d %*u %lu %lu %lu", &minflt, &cminflt,
			 &majflt) != 3)
		return -1;
	return minflt + majflt;
}

extern char __data_start[], _end[];

/*
 * Ends the sharing of variables with a child at once: a reader reads some of them, and
 * while a write fault of another thread copies them it would fault, too.
 */
static inline void migrc_own_variables(void)
{
	size_t size = getpagesize();
	uintptr_t p = (uintptr_t)__data_start & -size;

	for (; p < (uintptr_t)_end; p += size)
		__atomic_fetch_or((char *)p, 0, __ATOMIC_RELAXED);
}

/* Of a program that has cases. */
struct migrc_options {
	const char *skip;	/* TLB_SKIP, or NULL */
	long rounds;		/* TLB_ROUNDS, or 0: the case's own number */
	long want;		/* TLB_EXPECT: at least so many are stale; or 0 */
};

/* migrc_cases.c */
extern const char *migrc_case;
extern const char *migrc_why;
void migrc_ask(struct migrc_options *o);
int migrc_skipped(const char *why);
bool migrc_more(const struct migrc_options *o, long rounds, long done, long armed, __u64 stale);
int migrc_judge(const struct migrc_options *o, long rounds, long armed, __u64 stale, bool optional);
void migrc_record(const char *program, const struct migrc_options *o, long rounds, long armed,
		  __u64 stale, const struct migrc_counters *before);

/* QEMU emulates x86_64 with one thread: a CPU hardly acts while another moves pages. */
#ifdef __x86_64__
#define RARELY_MET	true
#else
#define RARELY_MET	false
#endif

#endif /* _MIGRC_TEST_H */
