// SPDX-License-Identifier: GPL-2.0
/* What a test changes for its own time, and what the environment asks of it. */
#include <signal.h>

#include "tlb_rs.h"

/*
 * What a test has changed. Its processes share it: the harness runs each case in a child, and
 * the parent undoes what a child that was killed has left.
 */
static struct tlb_rs_changes {
	void (*undo[16])(void);	/* each once; NULL: the settings */
	size_t nr_undo;
	struct tlb_rs_setting {
		char path[128];
		char old[64];
	} setting[32];
	size_t nr_settings;
} *changes;	/* of the program itself, and of all others: its cases, one after another */

static pid_t program;

static struct tlb_rs_changes *tlb_rs_changes(void)
{
	return &changes[getpid() != program];
}

static void tlb_rs_settings_restore(struct tlb_rs_changes *c)
{
	/* The last first: one may have had to be made before another could be. */
	while (c->nr_settings) {
		struct tlb_rs_setting *s = &c->setting[--c->nr_settings];

		tlb_rs_write_file(s->path, s->old);
	}
}

/* The last change first. */
static void tlb_rs_undo_all(struct tlb_rs_changes *c)
{
	while (c->nr_undo) {
		void (*undo)(void) = c->undo[--c->nr_undo];

		if (undo)
			undo();
		else
			tlb_rs_settings_restore(c);
	}
}

/* Undoes what a case has changed, but not what the program has changed for all of them. */
void tlb_rs_undo(void)
{
	tlb_rs_undo_all(&changes[1]);
}

/* A forked child that calls exit() must not undo what its parent still needs. */
static void tlb_rs_undo_at_exit(void)
{
	if (getpid() != program)
		return;
	tlb_rs_undo();
	tlb_rs_undo_all(&changes[0]);
}

static void __attribute__((constructor)) tlb_rs_share_changes(void)
{
	changes = mmap(NULL, 2 * sizeof(*changes), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (changes == MAP_FAILED)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	program = getpid();
	atexit(tlb_rs_undo_at_exit);
}

/* @undo is called when the case ends, or the program if it has called this itself. */
void tlb_rs_at_exit(void (*undo)(void))
{
	struct tlb_rs_changes *c = tlb_rs_changes();
	size_t i;

	for (i = 0; i < c->nr_undo; i++) {
		if (c->undo[i] == undo)
			return;
	}
	if (i == ARRAY_SIZE(c->undo))
		ksft_exit_fail_msg("too much to undo\n");
	c->undo[c->nr_undo++] = undo;
}

/*
 * FIXTURE_TEARDOWN_PARENT: a failed assertion ends the child that runs the case, but not the
 * processes that it has forked. They are in the caller's process group.
 */
void tlb_rs_tear_down(void)
{
	signal(SIGTERM, SIG_IGN);
	if (getpgrp() == getpid())
		kill(0, SIGTERM);
	tlb_rs_undo();
}

/*
 * Settings that a test changes for its own time. If the old value was one of several choices, it
 * is the one in brackets.
 */
static struct tlb_rs_setting *tlb_rs_find_setting(const char *path)
{
	struct tlb_rs_changes *c = tlb_rs_changes();
	size_t i;

	for (i = 0; i < c->nr_settings; i++) {
		if (!strcmp(c->setting[i].path, path))
			return &c->setting[i];
	}
	return NULL;
}

/* For what is written to by other means; false if it cannot be read. */
bool tlb_rs_keep(const char *path)
{
	struct tlb_rs_changes *c = tlb_rs_changes();
	struct tlb_rs_setting *s = &c->setting[c->nr_settings];
	char buf[1024];
	char *p;

	if (tlb_rs_find_setting(path))
		return true;
	if (tlb_rs_read_file(path, buf, sizeof(buf)))
		return false;
	if (c->nr_settings == ARRAY_SIZE(c->setting) || strlen(path) >= sizeof(s->path))
		ksft_exit_fail_msg("%s: too many settings\n", path);
	p = strchr(buf, '[');
	if (sscanf(p ? p + 1 : buf, "%63[^]\n]", s->old) != 1)
		return false;
	snprintf(s->path, sizeof(s->path), "%s", path);
	c->nr_settings++;
	tlb_rs_at_exit(NULL);
	return true;
}

bool tlb_rs_setting(const char *path, const char *val)
{
	struct tlb_rs_changes *c = tlb_rs_changes();
	size_t nr = c->nr_settings;

	if (!tlb_rs_keep(path))
		return false;
	if (!tlb_rs_write_file(path, val))
		return true;
	/* What cannot be written needs no restoring. */
	c->nr_settings = nr;
	return false;
}

/* Earlier than at the end. */
bool tlb_rs_restore(const char *path)
{
	struct tlb_rs_setting *s = tlb_rs_find_setting(path);

	return s && !tlb_rs_write_file(path, s->old);
}

/*
 * The environment chooses what the harness has no option for: TLB_ROUNDS=4 migrc_stale. NULL if
 * there is no such variable, or it is empty.
 */
const char *tlb_rs_env(const char *name)
{
	const char *val = getenv(name);

	return val && *val ? val : NULL;
}

long tlb_rs_env_number(const char *name, long otherwise, long min, long max)
{
	const char *val = tlb_rs_env(name);

	return val ? tlb_rs_number(val, min, max) : otherwise;
}

static void tlb_rs_cgroup_remove(void)
{
	rmdir(TLB_RS_CGROUP);
}

/* Makes a memory cgroup that can be reclaimed, until exit. False if there is none. */
bool tlb_rs_cgroup(void)
{
	tlb_rs_write_file(TLB_RS_CGROUP_ROOT "cgroup.subtree_control", "+memory");
	if (mkdir(TLB_RS_CGROUP, 0755) && errno != EEXIST)
		return false;
	tlb_rs_at_exit(tlb_rs_cgroup_remove);
	return !access(TLB_RS_CGROUP "memory.reclaim", W_OK);
}

/* What this process touches first from now on is charged to it. */
void tlb_rs_cgroup_enter(void)
{
	if (tlb_rs_write_file(TLB_RS_CGROUP "cgroup.procs", "0"))
		ksft_exit_fail_msg("cannot enter %s\n", TLB_RS_CGROUP);
}

void tlb_rs_cgroup_leave(void)
{
	tlb_rs_write_file(TLB_RS_CGROUP_ROOT "cgroup.procs", "0");
}

/* What this process uses does not look used, so that a cgroup's reclaim takes it. */
void tlb_rs_forget_use(void)
{
	tlb_rs_write_file("/proc/self/clear_refs", "1");
}

/* @how: the rest of what is written, as " swappiness=max". False if it was refused. */
bool tlb_rs_cgroup_reclaim(size_t bytes, const char *how)
{
	char buf[64];
	int ret;

	snprintf(buf, sizeof(buf), "%zu%s", bytes, how);
	ret = tlb_rs_write_file(TLB_RS_CGROUP "memory.reclaim", buf);
	/* Less than that was reclaimed. */
	return !ret || ret == -EAGAIN;
}

/* vm.tlb_batch: false if the kernel has no such switch (a stock kernel). */
bool tlb_batch_get(int *val)
{
	char buf[32];

	if (tlb_rs_read_file(TLB_BATCH_SYSCTL, buf, sizeof(buf)))
		return false;
	*val = atoi(buf);
	return true;
}

/* Until exit. */
bool tlb_batch_set(int val)
{
	char buf[32];

	snprintf(buf, sizeof(buf), "%d\n", val);
	return tlb_rs_setting(TLB_BATCH_SYSCTL, buf);
}

/* As a JSON value: null on a kernel that has no such switch. */
const char *tlb_batch_json(void)
{
	static char buf[16];
	int val;

	if (!tlb_batch_get(&val))
		return "null";
	snprintf(buf, sizeof(buf), "%d", val);
	return buf;
}

void tlb_rs_repeat_begin(int pairs, int i)
{
	int val;

	if (pairs && tlb_batch_get(&val) && !tlb_batch_set(i & 1))
		ksft_exit_fail_msg("cannot write %s\n", TLB_BATCH_SYSCTL);
}

/* Fault injection: removes hooks, their names separated by commas, until @none or exit. */
bool tlb_rs_remove_hooks(const char *path, const char *hooks, void (*none)(void))
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

void tlb_rs_skip_none(void)
{
	tlb_rs_write_file(TLB_BATCH_SKIP, "none");
}

bool tlb_rs_skip_hooks(const char *hooks)
{
	return tlb_rs_remove_hooks(TLB_BATCH_SKIP, hooks, tlb_rs_skip_none);
}

/* Until exit: zswap frees pages before a disk would have been written. */
void tlb_rs_no_zswap(void)
{
	tlb_rs_setting("/sys/module/zswap/parameters/enabled", "0");
}

/* Pages that move by themselves do not belong into a measurement. */
void tlb_rs_quiet(void)
{
	char buf[32];

	if (!tlb_rs_read_file("/proc/sys/kernel/numa_balancing", buf, sizeof(buf)) && atoi(buf))
		tlb_rs_setting("/proc/sys/kernel/numa_balancing", "0");
	/* A THP that was PTE-mapped on purpose must stay so. */
	tlb_rs_setting(THP_SYSFS "khugepaged/scan_sleep_millisecs", "600000");
}

#define NUMA_BALANCING		"/proc/sys/kernel/numa_balancing"
#define NUMA_SCAN(what)		DEBUGFS "sched/numa_balancing/scan_" what "_ms"
#define NUMA_SCAN_NS		10000000000ULL

/* Prepares tlb_rs_numa_scan(), until exit; false without NUMA balancing or debugfs. */
bool tlb_rs_numa_scans(void)
{
	return tlb_rs_keep(NUMA_BALANCING) && tlb_rs_setting(NUMA_SCAN("period_min"), "20") &&
	       tlb_rs_setting(NUMA_SCAN("period_max"), "20") &&
	       tlb_rs_setting(NUMA_SCAN("delay"), "0");
}

/*
 * Makes @pages of this process inaccessible; the next access is a NUMA hint fault. They must not
 * be bound to a node. Pages of the node of this CPU are left alone if there is one thread only.
 * False if it took too long. The kernel counts pages that the process has got back meanwhile, too.
 */
bool tlb_rs_numa_scan(size_t pages)
{
	const __u64 end = tlb_rs_now_ns() + NUMA_SCAN_NS;
	const long long before = tlb_rs_vmstat_read("numa_pte_updates");
	long long lost;

	tlb_rs_write_file(NUMA_BALANCING, "1");
	/* Only a task that runs is scanned. */
	do {
		lost = tlb_rs_vmstat_read("numa_pte_updates") - before;
	} while (lost < (long long)pages && tlb_rs_now_ns() < end);
	tlb_rs_write_file(NUMA_BALANCING, "0");
	return lost >= (long long)pages;
}

/* Selects "madvise" unless transparent huge pages are already available. */
bool tlb_rs_thp_available(void)
{
	char buf[128];

	if (tlb_rs_read_file(THP_SYSFS "enabled", buf, sizeof(buf)))
		return false;
	return !strstr(buf, "[never]") || tlb_rs_setting(THP_SYSFS "enabled", "madvise");
}

void tlb_rs_delay_none(void)
{
	tlb_rs_write_file(TLB_BATCH_DELAY, "0");
	tlb_rs_write_file(TLB_BATCH_FLUSH_DELAY, "0");
	tlb_rs_write_file(TLB_SECONDARY_DELAY, "0");
	tlb_rs_write_file(MIGRC_WALK_DELAY, "0");
	tlb_rs_write_file(MIGRC_RESTORE_DELAY, "0");
}

bool tlb_rs_delay(const char *path, long us)
{
	char buf[32];

	snprintf(buf, sizeof(buf), "%ld", us);
	if (tlb_rs_write_file(path, buf))
		return false;
	tlb_rs_at_exit(tlb_rs_delay_none);
	return true;
}
