// SPDX-License-Identifier: GPL-2.0
/*
 * Attempts to make it overflow, fill up, stall or leak, for a bounded time:
 *
 * generation  a user makes deferrals that are undone, so that nothing drains them, as fast as
 *             possible; and, with fault injection, as many as a counter of 32 bits could hold.
 * ledger      a user, in a memory cgroup if there is one, fills the ledger while others allocate.
 * sharers     a page with more sharers than may be deferred is moved to and fro, and so many
 *             processes are on the list that a drain walks.
 * forkbomb    a user forks as much as allowed while all of that is moved.
 * hugetlb     threads resize a HugeTLB pool, while struct pages are given back now and then.
 * toggle      all switches and bounds change, 1000 times a second, while memory is moved.
 * garbage     each of our files is fed what nobody should write to it, by root and by a user.
 *
 * In each: system calls fail with an errno that says why, and nothing else is wrong; another
 * process, which sleeps 10 ms and uses a new page over and over, is not held up for a second
 * longer than in the same without migrc (an emulator is slow); nothing is held in the end, and
 * no memory is missing.
 *
 * With --break, or without a rule of the kernel (--skip), what a case checks is broken on
 * purpose: it passes if it says so.
 */
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

static long seconds = 2;
static long processes = 1100;
static bool broken;
static const char *skip_hooks;

/* Of all processes of this program. */
static struct shared {
	/* Of the watchdog. */
	bool stop;
	__u64 worst_ns;
	long ticks;
	/* Of a case. */
	bool end;
	bool ready;
	long bad;
	unsigned int shown;	/* signs of what --break and --skip should show */
	long ops;
	long refused;
	__u64 pending;
	pid_t pids[NR_PIDS];
	unsigned int nr_pids;
} *sh;

static __u64 deadline;

static bool expired(void)
{
	return tlb_rs_now_ns() >= deadline;
}

/* On a machine with other work to do, less may have happened than there should be to see. */
static bool enough(bool done)
{
	return expired() && (done || tlb_rs_now_ns() >= deadline + PATIENCE_NS);
}

static void count(long *counter)
{
	__atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

static __printf(1, 2) void violation(const char *fmt, ...)
{
	char text[256];
	va_list ap;

	if (__atomic_add_fetch(&sh->bad, 1, __ATOMIC_RELAXED) > 10)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	ksft_print_msg("%s: %s\n", migrc_case, text);
	fflush(stdout);
}

/* One that --break or --skip leads to. */
#define shown(sign, ...) do {							\
	__atomic_fetch_or(&sh->shown, sign, __ATOMIC_RELAXED);			\
	violation(__VA_ARGS__);							\
} while (0)

/* What a system call may say that is refused for want of a resource. */
static bool is_want(int err)
{
	return err == EAGAIN || err == ENOMEM || err == EBUSY || err == ENOSPC;
}

/* --- processes --------------------------------------------------------------------- */

/* Not on the CPU of the watchdog: it should wait for the kernel only. */
static void leave_last_cpu(void)
{
	int cpu, last = tlb_rs_nr_cpus() - 1;
	cpu_set_t set;

	CPU_ZERO(&set);
	for (cpu = 0; cpu < last; cpu++)
		CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

static uid_t user;

static bool has_processes(uid_t uid)
{
	unsigned int real, effective, saved;
	char path[320], buf[4096], *ids;
	DIR *proc = opendir("/proc");
	struct dirent *ent;
	bool found = false;

	while (proc && !found && (ent = readdir(proc))) {
		snprintf(path, sizeof(path), "/proc/%s/status", ent->d_name);
		if (tlb_rs_read_file(path, buf, sizeof(buf)))
			continue;
		ids = strstr(buf, "\nUid:");
		found = ids && sscanf(ids, "\nUid: %u %u %u", &real, &effective, &saved) == 3 &&
			(real == uid || effective == uid || saved == uid);
	}
	if (proc)
		closedir(proc);
	return found;
}

/* Of nobody else: all that this user has is killed, see kill_all(), and limits count all of it. */
static void choose_user(void)
{
	for (user = LAST_USER; has_processes(user); user--)
		;
}

static void become_user(void)
{
	if (setresgid(user, user, user) || setresuid(user, user, user))
		_exit(1);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static pid_t start(void (*fn)(void))
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid < 0)
		ksft_exit_fail_msg("fork: %s\n", strerror(errno));
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		fn();
		fflush(stdout);
		_exit(0);
	}
	return pid;
}

/* False if it did not end by itself. */
static bool end(pid_t pid)
{
	int status = -1;

	return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status);
}

static pid_t watchdog_pid;

static void watchdog(void)
{
	char *page = mmap(NULL, getpagesize(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			  -1, 0);

	tlb_rs_pin_cpu(tlb_rs_nr_cpus() - 1);
	while (!LOAD(sh->stop)) {
		__u64 ns = tlb_rs_now_ns();

		tlb_rs_sleep_us(TICK_US);
		madvise(page, getpagesize(), MADV_DONTNEED);
		STORE(*page, 1);
		ns = tlb_rs_now_ns() - ns - TICK_US * 1000;
		if ((__s64)ns > (__s64)sh->worst_ns)
			sh->worst_ns = ns;
		STORE(sh->ticks, sh->ticks + 1);
	}
}

static void watchdog_begin(void)
{
	sh->stop = false;
	sh->worst_ns = 0;
	sh->ticks = 0;
	watchdog_pid = start(watchdog);
	WAIT_FOR(LOAD(sh->ticks) || (tlb_rs_sleep_us(1000), 0));
}

static void watchdog_end(void)
{
	STORE(sh->stop, true);
	if (!end(watchdog_pid))
		violation("the watchdog did not survive");
}

/* --- nothing leaked ---------------------------------------------------------------- */

struct balance {
	long long lost_kb;	/* neither free nor in use for anything that is known */
	long long memmap;	/* pages of struct pages */
	long mms;		/* -1: not known */
};

static long long meminfo(const char *buf, const char *field)
{
	const char *p = strstr(buf, field);

	return p ? atoll(p + strlen(field)) : 0;
}

static long slab_objects(const char *name)
{
	char line[512], found[64];
	long objects, ret = -1;
	FILE *f = fopen("/proc/slabinfo", "r");

	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%63s %ld", found, &objects) == 2 && !strcmp(found, name))
			ret = objects;
	}
	fclose(f);
	return ret;
}

/* Pages that are free, but kept for one CPU. */
static long long pageset_pages(void)
{
	FILE *f = fopen("/proc/zoneinfo", "r");
	long long pages = 0;
	char line[256];
	long val;

	if (!f)
		return 0;
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, " count: %ld", &val) == 1)
			pages += val;
	}
	fclose(f);
	return pages;
}

static void read_balance(struct balance *b)
{
	static const char * const known[] = {
		"MemFree:", "Buffers:", "\nCached:", "SwapCached:", "AnonPages:", "Slab:",
		"KernelStack:", "PageTables:", "Percpu:", "Hugetlb:",
	};
	char buf[8192] = "";
	size_t i;

	tlb_rs_read_file("/proc/meminfo", buf, sizeof(buf));
	b->lost_kb = meminfo(buf, "MemTotal:") - pageset_pages() * (getpagesize() / 1024);
	for (i = 0; i < ARRAY_SIZE(known); i++)
		b->lost_kb -= meminfo(buf, known[i]);
	/* Those from the boot were not in MemTotal before they were given back. */
	b->lost_kb -= tlb_rs_vmstat_read("nr_memmap_pages") * (getpagesize() / 1024);
	b->memmap = memmap();
	b->mms = slab_objects("mm_struct");
}

static bool balanced(const struct balance *before, struct balance *now)
{
	read_balance(now);
	return now->lost_kb <= before->lost_kb + LEAK_KB && now->memmap == before->memmap &&
	       now->mms <= before->mms + LEAK_MMS;
}

static void check_balance(const struct balance *before)
{
	struct balance now;
	int i;

	/* What is freed by RCU and by workers takes a while. */
	for (i = 0; i < 50 && !balanced(before, &now); i++)
		tlb_rs_sleep_us(100000);
	if (i == 50)
		shown(LEAK, "%lld kB lost (%lld), %lld pages of struct pages (%lld), %ld mms (%ld)",
		      now.lost_kb, before->lost_kb, now.memmap, before->memmap, now.mms,
		      before->mms);
	else
		ksft_print_msg("%s: memory that nothing accounts for: %+lld kB; mms: %+ld\n",
			       migrc_case, now.lost_kb - before->lost_kb, now.mms - before->mms);
}

static int leak_fds[64][2];

/* Memory that the kernel says nothing about: pages in pipes. */
static void leak(void)
{
	static char page[65536];
	size_t i;

	for (i = 0; i < ARRAY_SIZE(leak_fds); i++) {
		if (pipe2(leak_fds[i], O_NONBLOCK | O_CLOEXEC))
			break;
		fcntl(leak_fds[i][1], F_SETPIPE_SZ, 1 << 20);
		while (write(leak_fds[i][1], page, sizeof(page)) > 0)
			;
	}
}

static void leak_no_more(void)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(leak_fds) && leak_fds[i][0]; i++) {
		close(leak_fds[i][0]);
		close(leak_fds[i][1]);
	}
}

/* --- generation -------------------------------------------------------------------- */

#define PIPE_SIZE	1048576	/* what a user may have */

static bool defers;

static size_t undo_pages(void)
{
	return PIPE_SIZE / getpagesize();
}

/* What was deferred in this address space, and not flushed yet; false without fault injection. */
static bool read_pending(int fd, __u64 *pending)
{
	__u64 deferred, flushed;
	char buf[64] = "";

	if (fd < 0 || pread(fd, buf, sizeof(buf) - 1, 0) <= 0 ||
	    sscanf(buf, "%llu %llu", &deferred, &flushed) != 2)
		return false;
	*pending = deferred - flushed;
	return true;
}

/* One deferral less than 2^32 since the last flush; and then a page is moved for good. */
static void wrap(int fd)
{
	__u64 pending = 0, now = 0;
	struct migrc_set set;
	char buf[32];

	if (!read_pending(fd, &pending))
		return;
	snprintf(buf, sizeof(buf), "%llu", ALL_PENDING - 1 - pending);
	migrc_map_readonly(&set, 1, SEED);
	/* Not pwrite(), which what seq_file shows has not. */
	if (write(fd, buf, strlen(buf)) < 0)
		violation("%s: %s", MIGRC_GENERATION, strerror(errno));
	if (migrc_move(&set, 0, 1, MPOL_MF_MOVE) != 1 || !read_pending(fd, &now))
		violation("a page was not moved");
	if (now < ALL_PENDING)
		violation("all deferrals look like %llu", now);
	ksft_print_msg("generation: after 2^32 - 1 deferrals and one more, %llu pending\n", now);
}

/* A pipe has a reference to each page, so that no migration succeeds. */
static void undo(void)
{
	int fd = open(MIGRC_GENERATION, O_RDWR | O_CLOEXEC), fds[2];
	struct tlb_rs_readers readers;
	struct migrc_set set;
	struct iovec iov;
	char *base;

	become_user();
	tlb_rs_pin_cpu(0);
	base = migrc_map_readonly(&set, undo_pages(), SEED);
	iov = (struct iovec){ .iov_base = base, .iov_len = set.nr * getpagesize() };
	if (pipe2(fds, O_NONBLOCK) || fcntl(fds[1], F_SETPIPE_SZ, PIPE_SIZE) < 0 ||
	    vmsplice(fds[1], &iov, 1, 0) != (ssize_t)iov.iov_len)
		violation("vmsplice: %s", strerror(errno));
	if (!tlb_rs_write_file(MIGRC_PAGES, "1") || !tlb_rs_write_file(MIGRC_ENABLE, "0"))
		violation("a user can write to our sysctls");
	tlb_rs_readers_start(&readers, 1, false, base, iov.iov_len);
	do {
		if (migrc_move(&set, 0, 1, MPOL_MF_MOVE))
			count(&sh->refused);
		sh->ops += set.nr;
	} while (!expired());
	read_pending(fd, &sh->pending);
	STORE(sh->ready, true);
	while (!LOAD(sh->end))
		tlb_rs_sleep_us(1000);
	/* A flush, if anything is pending. */
	mprotect(base, getpagesize(), PROT_READ | PROT_WRITE);
	if (tlb_rs_check(base, iov.iov_len, SEED))
		violation("wrong contents");
	if (defers)
		wrap(fd);
	tlb_rs_readers_end(&readers);
}

static void case_generation(bool on)
{
	long long fails = tlb_rs_vmstat_read("pgmigrate_fail"), flushes;
	__u64 ns = tlb_rs_now_ns();
	struct migrc_counters before, d;
	double rate;
	pid_t pid;

	migrc_read(&before);
	defers = on;
	pid = start(undo);
	WAIT_FOR(LOAD(sh->ready) || (tlb_rs_sleep_us(1000), 0));
	ns = tlb_rs_now_ns() - ns;
	migrc_diff(&before, &d);
	if (migrc_held(-1) || d.val[MIGRC_DEFERRED])
		violation("%lld pages deferred", d.val[MIGRC_DEFERRED]);
	fails = tlb_rs_vmstat_read("pgmigrate_fail") - fails;
	/* Longer than anything may be deferred. */
	tlb_rs_sleep_us(300000);
	flushes = migrc_stat("hook", "range");
	/* What is pending is looked at. */
	migrc_write(MIGRC_AGE, LONG_MS);
	STORE(sh->end, true);
	if (!end(pid))
		violation("the user was killed");
	migrc_write(MIGRC_AGE, 100);
	flushes = migrc_stat("hook", "range") - flushes;
	if (!on)
		return;
	rate = fails * 1e9 / ns;
	ksft_print_msg("generation: %lld undone in %llu ms, %.0f a second: 2^32 in %.0f hours; "
		       "pending 300 ms later: %s; pending at most: %llu\n", fails, ns / 1000000,
		       rate, ALL_PENDING / rate / 3600, flushes ? "yes" : "no",
		       sh->pending ?: (__u64)fails);
	if (!fails || sh->refused || (!flushes && migrc_has_stats()))
		violation("nothing to see: %lld undone, %ld not undone, %lld flushes", fails,
			  sh->refused, flushes);
}

/* --- ledger ------------------------------------------------------------------------ */

#define LEDGER_CAP	256
#define LEDGER_PAGES	2048
#define OTHERS_LEN	(32UL << 20)

static bool cgroup;

static struct migrc_watch watch;

static void fill(void)
{
	struct tlb_rs_readers readers;
	struct migrc_set set;
	char *base, buf[32];
	int err;

	if (cgroup) {
		snprintf(buf, sizeof(buf), "%d", getpid());
		err = tlb_rs_write_file(TLB_RS_CGROUP_ROOT "tlb_rs_abuse/cgroup.procs", buf);
		if (err)
			violation("cgroup.procs: %s", strerror(-err));
	}
	become_user();
	tlb_rs_pin_cpu(0);
	base = migrc_map_readonly(&set, LEDGER_PAGES, SEED);
	tlb_rs_readers_start(&readers, 1, false, base, getpagesize());
	STORE(sh->ready, true);
	while (!LOAD(sh->end))
		sh->ops += migrc_move(&set, 0, !(sh->pids[0]++ & 1), MPOL_MF_MOVE);
	tlb_rs_readers_end(&readers);
	if (tlb_rs_check(base, set.nr * getpagesize(), SEED))
		violation("wrong contents");
}

static void cgroup_begin(void)
{
	char buf[256];

	cgroup = false;
	if (tlb_rs_read_file(TLB_RS_CGROUP_ROOT "cgroup.controllers", buf, sizeof(buf)) ||
	    !strstr(buf, "memory"))
		return;
	tlb_rs_write_file(TLB_RS_CGROUP_ROOT "cgroup.subtree_control", "+memory");
	mkdir(TLB_RS_CGROUP_ROOT "tlb_rs_abuse", 0755);
	cgroup = !tlb_rs_write_file(TLB_RS_CGROUP_ROOT "tlb_rs_abuse/memory.max", "16777216");
}

static void cgroup_end(void)
{
	char buf[32] = "";
	int i;

	if (!cgroup)
		return;
	tlb_rs_read_file(TLB_RS_CGROUP_ROOT "tlb_rs_abuse/memory.current", buf, sizeof(buf));
	/* CPUs keep some for those who come next. */
	if (atol(buf) > 4 << 20)
		violation("the cgroup still has %ld bytes", atol(buf));
	for (i = 0; i < 100 && rmdir(TLB_RS_CGROUP_ROOT "tlb_rs_abuse"); i++)
		tlb_rs_sleep_us(10000);
	if (i == 100)
		violation("rmdir: %s", strerror(errno));
}

static void case_ledger(bool on)
{
	long cap = LEDGER_CAP, slack = tlb_rs_nr_cpus(), allocated = 0;
	struct migrc_counters before, d;
	__u64 worst = 0;
	pid_t pid;

	cgroup_begin();
	migrc_write(MIGRC_PAGES, on && broken ? 4 * cap : cap);
	migrc_write(MIGRC_AGE, LONG_MS);
	migrc_read(&before);
	migrc_watch_begin(&watch);
	pid = start(fill);
	do {
		__u64 ns = tlb_rs_now_ns();
		void *p = mmap(NULL, OTHERS_LEN, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

		if (p == MAP_FAILED)
			violation("others cannot allocate: %s", strerror(errno));
		else
			munmap(p, OTHERS_LEN);
		ns = tlb_rs_now_ns() - ns;
		worst = ns > worst ? ns : worst;
		allocated++;
		migrc_diff(&before, &d);
	} while (!enough(!on || (d.val[MIGRC_DEFERRED] >= 2 * cap && watch.most >= cap / 2)));
	STORE(sh->end, true);
	if (!end(pid))
		violation("the user was killed");
	migrc_watch_end(&watch);
	migrc_diff(&before, &d);
	if (watch.most > cap + slack)
		shown(HELD, "%lld pages held of one node, the cap is %ld", watch.most, cap);
	if (!migrc_expire())
		violation("%lld pages held for ever", migrc_held(-1));
	cgroup_end();
	migrc_write(MIGRC_PAGES, 0);
	migrc_write(MIGRC_AGE, 100);
	if (!on)
		return;
	ksft_print_msg("ledger: %s, %lld deferred, at most %lld of %ld held (%ld looks)\n",
		       cgroup ? "cgroup of 16 MiB" : "no cgroup", d.val[MIGRC_DEFERRED], watch.most,
		       cap, watch.polls);
	ksft_print_msg("ledger: others allocated 32 MiB %ld times, slowest %llu ms\n", allocated,
		       worst / 1000000);
	if (d.val[MIGRC_DEFERRED] < 2 * cap || watch.most < cap / 2)
		violation("the ledger was not filled");
}

/* --- sharers ----------------------------------------------------------------------- */

static void case_sharers(bool on)
{
	long long denied, deferred, most_denied = 0, most_deferred = 0;
	struct migrc_set all, some;
	char *base, *group = NULL;
	/* Most of the time that this takes. */
	long i, started, moves = 0, nr = on ? processes : processes / 4;
	__u64 ns, worst = 0, drain;
	pid_t *pids;

	pids = calloc(nr, sizeof(*pids));
	if (!pids)
		ksft_exit_fail_msg("no memory\n");
	base = migrc_map_readonly(&all, 1, SEED);
	migrc_set_init(&some, base, 1);
	ns = tlb_rs_now_ns();
	for (started = 0; started < nr; started++) {
		/* Pages with so many sharers as may be deferred: each process has one of them. */
		if (!(started % (MAX_MAPPINGS / 2))) {
			if (group) {
				migrc_move(&some, 0, 1, MPOL_MF_MOVE_ALL);
				munmap(group, getpagesize());
			}
			group = migrc_mmap(1, 0, SEED);
			mprotect(group, getpagesize(), PROT_READ);
			some.addrs[0] = group;
		}
		pids[started] = fork();
		if (!pids[started]) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			for (;;)
				pause();
		}
		if (pids[started] < 0) {
			if (!is_want(errno))
				violation("fork: %s", strerror(errno));
			break;
		}
	}
	ns = tlb_rs_now_ns() - ns;
	ksft_print_msg("sharers: %ld processes started in %llu ms\n", started, ns / 1000000);

	deadline = tlb_rs_now_ns() + seconds * 1000000000ULL;
	do {
		denied = migrc_stat("denied", "mappings");
		ns = tlb_rs_now_ns();
		if (migrc_move(&all, 0, !(moves & 1), MPOL_MF_MOVE_ALL) != 1)
			count(&sh->refused);
		ns = tlb_rs_now_ns() - ns;
		worst = ns > worst ? ns : worst;
		denied = migrc_stat("denied", "mappings") - denied;
		most_denied = denied > most_denied ? denied : most_denied;

		deferred = tlb_rs_vmstat_read("migrc_deferred");
		migrc_move(&some, 0, !(moves & 1), MPOL_MF_MOVE_ALL);
		deferred = tlb_rs_vmstat_read("migrc_deferred") - deferred;
		most_deferred = deferred > most_deferred ? deferred : most_deferred;
		moves++;
	} while (moves < 2 || !expired());
	if (on && broken) {
		kill(watchdog_pid, SIGSTOP);
		tlb_rs_sleep_us(2 * MAX_STALL_NS / 1000);
		kill(watchdog_pid, SIGCONT);
	}
	drain = tlb_rs_now_ns();
	if (on)
		migrc_expire();
	drain = tlb_rs_now_ns() - drain;
	if (tlb_rs_check(base, getpagesize(), SEED) || tlb_rs_check(group, getpagesize(), SEED))
		violation("wrong contents");
	ns = tlb_rs_now_ns();
	for (i = 0; i < started; i++)
		kill(pids[i], SIGKILL);
	for (i = 0; i < started; i++)
		waitpid(pids[i], NULL, 0);
	ns = tlb_rs_now_ns() - ns;
	munmap(base, getpagesize());
	munmap(group, getpagesize());
	migrc_set_free(&all);
	migrc_set_free(&some);
	free(pids);
	ksft_print_msg("sharers: %ld moves (%ld refused), slowest %llu ms; drained in %llu ms\n",
		       moves, sh->refused, worst / 1000000, drain / 1000000);
	ksft_print_msg("sharers: all killed in %llu ms\n", ns / 1000000);
	if (!on)
		return;
	if (drain > 2 * MAX_STALL_NS)
		violation("a drain took %llu ms", drain / 1000000);
	if (processes > MAX_MAPPINGS && started <= MAX_MAPPINGS)
		violation("%ld processes are too few to share more than may be deferred", started);
	if ((started > MAX_MAPPINGS && !most_denied && migrc_has_stats()) || !most_deferred ||
	    sh->refused == moves)
		violation("%ld sharers, but %lld denied, %lld deferred", started, most_denied,
			  most_deferred);
}

/* --- forkbomb ---------------------------------------------------------------------- */

#define BOMB_PAGES	32
#define BOMB_PROCESSES	64

static char *bomb_base;

static void __noreturn bomb(unsigned int state)
{
	static char scratch[65536];

	while (!LOAD(sh->end)) {
		pid_t pid = fork();

		if (pid < 0) {
			if (!is_want(errno))
				violation("fork: %s", strerror(errno));
			count(&sh->refused);
			if (tlb_rs_rnd(&state) & 1)
				break;
			tlb_rs_sleep_us(2000);
		} else if (!pid) {
			state ^= getpid() * 2654435761u;
			STORE(sh->pids[__atomic_fetch_add(&sh->nr_pids, 1, __ATOMIC_RELAXED) %
				       NR_PIDS], getpid());
			count(&sh->ops);
			memset(scratch, state, sizeof(scratch));
			if (tlb_rs_check(bomb_base, BOMB_PAGES * getpagesize(), SEED))
				violation("wrong contents");
		} else if (tlb_rs_rnd(&state) % 4 == 0) {
			mprotect(bomb_base, getpagesize(), PROT_READ | PROT_WRITE);
			tlb_rs_fill(bomb_base, getpagesize(), SEED);
			if (scratch[0] != scratch[sizeof(scratch) - 1])
				violation("wrong contents");
		} else if (tlb_rs_rnd(&state) % 4 == 0 && state % BOMB_PROCESSES) {
			break;
		}
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
	_exit(0);
}

static void first_bomb(void)
{
	struct rlimit limit = { .rlim_cur = BOMB_PROCESSES, .rlim_max = BOMB_PROCESSES };

	setrlimit(RLIMIT_NPROC, &limit);
	/* Who moves their pages should come to it, where four CPUs are two. */
	setpriority(PRIO_PROCESS, 0, 10);
	become_user();
	bomb(getpid());
}

/* All that are this user's, but for this one; a fork does not come between. */
static void kill_all(void)
{
	become_user();
	kill(-1, SIGKILL);
}

/* Orphans, too; there is no other way to know when all of them are gone. */
static void reap_all(void)
{
	int idle = 0;

	while (idle < 200) {
		if (waitpid(-1, NULL, WNOHANG) > 0) {
			idle = 0;
		} else {
			tlb_rs_sleep_us(1000);
			idle++;
		}
	}
}

static void case_forkbomb(bool on)
{
	unsigned long both = 3, nodes[2] = { 1, 2 };
	long long before = tlb_rs_vmstat_read("migrc_deferred");
	long moves = 0, gone = 0, moved = 0, restarted = 0;
	unsigned int state = 3;
	struct migrc_set set;
	pid_t pid;

	prctl(PR_SET_CHILD_SUBREAPER, 1);
	bomb_base = migrc_map_readonly(&set, BOMB_PAGES, SEED);
	start(first_bomb);
	while (!enough(!on || (sh->ops && sh->refused && moved &&
			       tlb_rs_vmstat_read("migrc_deferred") > before))) {
		long ret;

		pid = LOAD(sh->pids[tlb_rs_rnd(&state) % NR_PIDS]);
		errno = 0;
		if (tlb_rs_rnd(&state) % 4)
			moved += migrc_move(&set, pid, moves & 1, MPOL_MF_MOVE_ALL);
		else if (pid)
			syscall(SYS_migrate_pages, pid, 8 * sizeof(both), &both, &nodes[moves & 1]);
		ret = errno;
		if (ret == ESRCH)
			gone++;
		/* Who is on its way out has no address space. */
		else if (ret && ret != EINVAL && !is_want(ret))
			violation("moving pages: %s", strerror(ret));
		moves++;
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
		/* It may have died out. */
		if (!(moves % 64) && kill(LOAD(sh->pids[(sh->nr_pids - 1) % NR_PIDS]), 0)) {
			start(first_bomb);
			restarted++;
		}
	}
	STORE(sh->end, true);
	start(kill_all);
	reap_all();
	prctl(PR_SET_CHILD_SUBREAPER, 0);
	if (tlb_rs_check(bomb_base, BOMB_PAGES * getpagesize(), SEED))
		violation("wrong contents");
	munmap(bomb_base, BOMB_PAGES * getpagesize());
	migrc_set_free(&set);
	if (!on)
		return;
	if (broken)
		leak();
	ksft_print_msg("forkbomb: %ld forks, %ld refused; %ld begun; %ld moves, %ld too late\n",
		       sh->ops, sh->refused, restarted + 1, moves, gone);
	if (!sh->ops || !sh->refused || !moved ||
	    tlb_rs_vmstat_read("migrc_deferred") == before)
		violation("nothing to see");
}

/* --- hugetlb ----------------------------------------------------------------------- */

#define RESIZERS	3
#define NODE_HUGEPAGES	"/sys/devices/system/node/node%u/hugepages/hugepages-%lukB/nr_hugepages"

static unsigned long pool_kb;
static long pool_max;

static void *resize_thread(void *arg)
{
	static const char * const garbage[] = {
		"-1", "x", "1.5", "99999999999999999999999", "0x", "--", "1 2",
	};
	unsigned int state = (unsigned long)arg;
	char path[128], val[32];

	leave_last_cpu();
	while (!enough(LOAD(sh->ops) >= RESIZERS)) {
		bool number = tlb_rs_rnd(&state) % 4;
		int err;

		if (tlb_rs_rnd(&state) % 4)
			snprintf(path, sizeof(path), HUGEPAGES, pool_kb, "nr_hugepages");
		else
			snprintf(path, sizeof(path),
				 NODE_HUGEPAGES, tlb_rs_rnd(&state) & 1, pool_kb);
		snprintf(val, sizeof(val), "%ld", tlb_rs_rnd(&state) % (pool_max + 1));
		err = tlb_rs_write_file(path, number ? val :
					garbage[tlb_rs_rnd(&state) % ARRAY_SIZE(garbage)]);
		if (number ? err && !is_want(-err) : err != -EINVAL && err != -ERANGE)
			violation("%s <- %s: %s", path, number ? val : "garbage", strerror(-err));
		count(number ? &sh->ops : &sh->refused);
	}
	return NULL;
}

static void *optimize_thread(void *arg)
{
	static const char * const strategies[] = { "auto", "stop_machine", "none" };
	unsigned int state = 5;

	leave_last_cpu();
	while (!enough(LOAD(sh->ops) >= RESIZERS)) {
		const char *strategy = strategies[tlb_rs_rnd(&state) % ARRAY_SIZE(strategies)];
		int err = tlb_rs_write_file(HVO_SYSCTL, tlb_rs_rnd(&state) & 1 ? "1" : "0");

		if (err)
			violation("%s: %s", HVO_SYSCTL, strerror(-err));
		err = tlb_rs_write_file(HVO_PARAM "strategy", strategy);
		if (err && err != -ENOENT && (strcmp(strategy, "none") || err != -EINVAL))
			violation("strategy <- %s: %s", strategy, strerror(-err));
		(*(long *)arg)++;
		tlb_rs_sleep_us(1000);
	}
	return NULL;
}

static const char *cannot_hugetlb(void)
{
	if (!pool_kb)
		return "needs HugeTLB pages of at most 64 MiB with two pages of struct pages";
	return tlb_rs_pools_in_use() ? "HugeTLB pools are in use" : NULL;
}

static void case_hugetlb(bool on)
{
	long toggled = 0, before = memmap(), updates = tlb_rs_vmstat_read("hvo_pte_updates");
	pthread_t threads[RESIZERS], toggler;
	char strategy[64] = "", path[128];
	long violations, shared;
	unsigned long i;

	tlb_rs_read_file(HVO_PARAM "strategy", strategy, sizeof(strategy));
	for (i = 0; i < RESIZERS; i++)
		pthread_create(&threads[i], NULL, resize_thread, (void *)(i + 11));
	if (on)
		pthread_create(&toggler, NULL, optimize_thread, &toggled);
	for (i = 0; i < RESIZERS; i++)
		pthread_join(threads[i], NULL);
	if (on)
		pthread_join(toggler, NULL);
	if (strategy[0])
		tlb_rs_write_file(HVO_PARAM "strategy", strategy);

	if (resize(pool_kb, on && broken ? 1 : 0))
		shown(LEAK, "%ld pages left in the pool", pool(pool_kb));
	snprintf(path, sizeof(path), HUGEPAGES, pool_kb, "free_hugepages");
	if (get(path))
		violation("%ld free pages left in the pool", get(path));
	if (memmap() != before)
		violation("%ld pages of struct pages are missing", before - memmap());
	tlb_rs_write_file(HVO_SYSCTL, "0");
	violations = get_field(HVO_DEBUG "verify", "violations");
	shared = get_field(HVO_DEBUG "verify", "shared");
	/* -1 where there is no such file. */
	if (violations > 0 || (shared > 0 && !broken))
		violation("%ld violations, %ld shared pages", violations, shared);
	resize(pool_kb, 0);
	tlb_rs_restore(HVO_SYSCTL);
	if (!on)
		return;
	updates = tlb_rs_vmstat_read("hvo_pte_updates") - updates;
	ksft_print_msg("hugetlb: %ld sizes, %ld garbage, switched %ld times, %ld entries changed\n",
		       sh->ops, sh->refused, toggled, updates);
	if (!sh->ops || !toggled || (!access(HVO_DEBUG "stats", R_OK) && !updates))
		violation("nothing to see");
}

/* --- toggle ------------------------------------------------------------------------ */

#define TOGGLE_PAGES	256
#define MAX_VALUES	5

static const struct knob {
	const char *path;
	bool patches;		/* code, see tlb_rs_patching_is_safe() */
	const char *values[MAX_VALUES];
} knobs[] = {
	{ TLB_BATCH_SYSCTL, true, { "0", "1" } },
	{ MIGRC_ENABLE, true, { "0", "1", "1" } },
	{ MIGRC_READMOSTLY, true, { "0", "1" } },
	{ MIGRC_PAGES, false, { "0", "1", "16", "4096", "18446744073709551615" } },
	{ MIGRC_AGE, false, { "1", "10", "100", "60000" } },
	{ HVO_SYSCTL, false, { "0", "1" } },
	{ HVO_PARAM "max_ptes", false, { "0", "1", "4096", "4294967295" } },
	{ HVO_PARAM "pause_budget_us", false, { "0", "40", "4294967295" } },
	{ HVO_PARAM "ack_timeout_us", false, { "0", "1", "200000" } },
	{ HVO_PARAM "retries", false, { "0", "8", "1000" } },
	{ HVO_PARAM "duty_pct", false, { "0", "10", "100", "4294967295" } },
	{ HVO_PARAM "strategy", false, { "auto", "stop_machine" } },
};

/* As they were; an empty string for what is not there. */
static char knob_values[ARRAY_SIZE(knobs)][64];

static void knobs_save(void)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(knobs); i++) {
		knob_values[i][0] = '\0';
		/* At exit, if this does not come to knobs_restore(). */
		tlb_rs_keep(knobs[i].path);
		tlb_rs_read_file(knobs[i].path, knob_values[i], sizeof(knob_values[i]));
	}
}

static void knobs_restore(void)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(knobs); i++) {
		if (knob_values[i][0] && tlb_rs_write_file(knobs[i].path, knob_values[i]))
			violation("cannot restore %s", knobs[i].path);
	}
}

static long nr_toggles;

static void toggle_one(unsigned int *state)
{
	const struct knob *knob;
	const char *val;
	size_t i;
	int err;

	do {
		i = tlb_rs_rnd(state) % ARRAY_SIZE(knobs);
		knob = &knobs[i];
		val = knob->values[tlb_rs_rnd(state) % MAX_VALUES];
	} while (!knob_values[i][0] || !val || (knob->patches && !tlb_rs_patching_is_safe()));
	err = tlb_rs_write_file(knob->path, val);
	if (err && !(err == -EOPNOTSUPP && !strcmp(knob->path, MIGRC_READMOSTLY)))
		violation("%s <- %s: %s", knob->path, val, strerror(-err));
	nr_toggles++;
	/* A write of 0 returns when nothing is held, nor will be. Not each time: this is slow. */
	if (!strcmp(knob->path, MIGRC_ENABLE) && val[0] == '0' &&
	    (skip_hooks || !(tlb_rs_rnd(state) % 4)) && migrc_held(-1))
		shown(HELD, "vm.migrc_enable is 0, and pages are held");
}

static bool toggle_stop;

static void *toggle_thread(void *arg)
{
	__u64 next = tlb_rs_now_ns();
	unsigned int state = 7;

	(void)arg;
	leave_last_cpu();
	while (!LOAD(toggle_stop)) {
		__u64 now = tlb_rs_now_ns();

		toggle_one(&state);
		next += 1000000;
		if (next > now)
			tlb_rs_sleep_us((next - now) / 1000);
	}
	return NULL;
}

/* Numbers its pages, at both ends. */
static void *write_thread(void *arg)
{
	size_t size = getpagesize(), i;
	char *base = arg;
	__u64 n = 0;

	leave_last_cpu();
	while (!LOAD(toggle_stop)) {
		for (i = 0; i < TOGGLE_PAGES; i++) {
			__u64 *head = (__u64 *)(base + i * size);
			__u64 *tail = (__u64 *)(base + (i + 1) * size) - 1;

			if (LOAD(*head) != n || LOAD(*tail) != n)
				violation("a write was lost");
			STORE(*head, n + 1);
			STORE(*tail, n + 1);
		}
		n++;
		tlb_rs_sleep_us(500);
	}
	return NULL;
}

static void case_toggle(bool on)
{
	size_t len = TOGGLE_PAGES * getpagesize();
	pthread_t toggler, writer;
	struct migrc_set set, written;
	struct migrc_counters before, d;
	char *base, *numbers;
	long moved = 0, moves = 0;
	__u64 ns = tlb_rs_now_ns();

	nr_toggles = 0;
	toggle_stop = false;
	migrc_read(&before);
	base = migrc_map_readonly(&set, TOGGLE_PAGES, SEED);
	numbers = migrc_mmap(TOGGLE_PAGES, 0, SEED);
	memset(numbers, 0, len);
	migrc_set_init(&written, numbers, TOGGLE_PAGES);
	knobs_save();
	pthread_create(&writer, NULL, write_thread, numbers);
	if (on)
		pthread_create(&toggler, NULL, toggle_thread, NULL);
	do {
		moved += migrc_move(&set, 0, !(moves & 1), MPOL_MF_MOVE);
		moved += migrc_move(&written, 0, !(moves & 1), MPOL_MF_MOVE);
		moves++;
		if (on && broken) {
			mprotect(base, getpagesize(), PROT_READ | PROT_WRITE);
			base[0]++;
			mprotect(base, getpagesize(), PROT_READ);
		}
		if (tlb_rs_check(base, len, SEED))
			shown(CONTENTS, "wrong contents");
		migrc_diff(&before, &d);
	} while (!enough(!on || (nr_toggles && moved && d.val[MIGRC_DEFERRED] &&
				 (!skip_hooks || LOAD(sh->shown) & HELD))));
	STORE(toggle_stop, true);
	if (on)
		pthread_join(toggler, NULL);
	pthread_join(writer, NULL);
	ns = tlb_rs_now_ns() - ns;
	knobs_restore();
	migrc_diff(&before, &d);
	munmap(base, len);
	munmap(numbers, len);
	migrc_set_free(&set);
	migrc_set_free(&written);
	if (!on)
		return;
	ksft_print_msg("toggle: %ld writes, %.0f a second; %ld pages moved, %lld deferred\n",
		       nr_toggles, nr_toggles * 1e9 / ns, moved, d.val[MIGRC_DEFERRED]);
	if (!nr_toggles || !moved || !d.val[MIGRC_DEFERRED])
		violation("nothing to see");
}

/* --- garbage ----------------------------------------------------------------------- */

/*
 * What a file may say after a write that succeeded. Numbers within bounds; of a list (skip_hook,
 * strategy) words, which the kernel compares; nothing, where reading it is for something else.
 */
enum kind { NUMBER, WORD, HOOKS, READ_ONLY, WRITE_ONLY };

struct file {
	const char *path;
	enum kind kind;
	__u64 min, max;
	const char *restore;	/* or what it was */
};

#define U32_LIMIT	4294967295ULL
#define U64_LIMIT	(~0ULL)

static const struct file files[] = {
	{ TLB_BATCH_SYSCTL, NUMBER, 0, 1, NULL },
	{ MIGRC_ENABLE, NUMBER, 0, 1, NULL },
	{ MIGRC_READMOSTLY, NUMBER, 0, 1, NULL },
	{ MIGRC_PAGES, NUMBER, 0, U64_LIMIT, NULL },
	{ MIGRC_AGE, NUMBER, 1, 60000, NULL },
	{ HVO_PARAM "max_ptes", NUMBER, 0, U32_LIMIT, NULL },
	{ HVO_PARAM "pause_budget_us", NUMBER, 0, U32_LIMIT, NULL },
	{ HVO_PARAM "ack_timeout_us", NUMBER, 0, 1000000, NULL },
	{ HVO_PARAM "retries", NUMBER, 0, 1000, NULL },
	{ HVO_PARAM "duty_pct", NUMBER, 0, U32_LIMIT, NULL },
	{ HVO_PARAM "strategy", WORD, 0, 0, NULL },
	{ DEBUGFS "tlb_batch/stats", READ_ONLY, 0, 0, NULL },
	{ DEBUGFS "tlb_batch/current", READ_ONLY, 0, 0, NULL },
	{ DEBUGFS "tlb_batch/skip_hook", HOOKS, 0, 0, "none" },
	{ DEBUGFS "tlb_batch/delay_us", NUMBER, 0, U32_LIMIT, NULL },
	{ DEBUGFS "tlb_batch/flush_delay_us", NUMBER, 0, U32_LIMIT, NULL },
	{ DEBUGFS "tlb_batch/secondary", WRITE_ONLY, 0, 0, "" },
	{ DEBUGFS "tlb_batch/secondary_delay_us", NUMBER, 0, U32_LIMIT, NULL },
	{ DEBUGFS "migrc/stats", READ_ONLY, 0, 0, NULL },
	{ DEBUGFS "migrc/skip_hook", HOOKS, 0, 0, "none" },
	{ DEBUGFS "migrc/walk_delay_us", NUMBER, 0, U32_LIMIT, NULL },
	{ DEBUGFS "migrc/generation", WRITE_ONLY, 0, 0, "0" },
	{ DEBUGFS "hvo/stats", READ_ONLY, 0, 0, NULL },
	{ DEBUGFS "hvo/verify", READ_ONLY, 0, 0, NULL },
	{ DEBUGFS "hvo/read", READ_ONLY, 0, 0, NULL },
	{ DEBUGFS "hvo/race_pfn", READ_ONLY, 0, 0, NULL },
	{ DEBUGFS "hvo/waits", READ_ONLY, 0, 0, NULL },
	{ DEBUGFS "hvo/skip_hook", HOOKS, 0, 0, "none" },
	{ DEBUGFS "hvo/stall_us", NUMBER, 0, U32_LIMIT, NULL },
	{ DEBUGFS "hvo/deaf_cpu", NUMBER, 0, U32_LIMIT, NULL },
	/* Milliseconds for which they go on: only what is refused. */
	{ DEBUGFS "hvo/race", WRITE_ONLY, 0, 0, "" },
	{ DEBUGFS "hvo/read_lock", WRITE_ONLY, 0, 0, "" },
	{ DEBUGFS "hvo/write_lock", WRITE_ONLY, 0, 0, "" },
};

static const char * const our_directories[] = {
	DEBUGFS "tlb_batch/", DEBUGFS "migrc/", DEBUGFS "hvo/", HVO_PARAM,
};

#define LONG_LEN	65536

static char long_letters[LONG_LEN], long_digits[LONG_LEN], long_spaces[LONG_LEN];

#define TEXT(s)		{ s, sizeof(s) - 1 }

static const struct text {
	const char *text;
	size_t len;
} texts[] = {
	TEXT(""), TEXT("\n"), TEXT(" "), TEXT("-1"), TEXT("-0"), TEXT("-9223372036854775808"),
	TEXT("0"), TEXT("1"), TEXT("2"), TEXT("60000"), TEXT("60001"), TEXT("4294967295"),
	TEXT("4294967296"), TEXT("4294967297"), TEXT("9223372036854775808"),
	TEXT("18446744073709551615"), TEXT("18446744073709551616"),
	TEXT("1000000000000000000000000000000000000000000"), TEXT("0x1"), TEXT("010"), TEXT("1.5"),
	TEXT("1e3"), TEXT("+1"), TEXT("abc"), TEXT("1abc"), TEXT("1 2 3"), TEXT("%s%n%p"),
	TEXT("1\0x"), TEXT("\0"), TEXT("\0x"), TEXT("auto\0x"), TEXT("none\0x"),
	TEXT("\xff\xfe"), TEXT("\n1"), TEXT("../../../etc"), TEXT("flush,range"), TEXT("FLUSH"),
	{ long_letters, LONG_LEN }, { long_digits, LONG_LEN }, { long_spaces, LONG_LEN },
};

/* Whether it could be taken for a number, by those which must not be fed one. */
static bool is_number(const struct text *t)
{
	return t->len && t->len < LONG_LEN && strpbrk(t->text, "0123456789") == t->text;
}

static bool is_refusal(int err)
{
	static const int refusals[] = {
		EINVAL, ERANGE, EPERM, EACCES, E2BIG, ENOSPC, EOPNOTSUPP, ENOENT, ESPIPE,
	};
	size_t i;

	for (i = 0; i < ARRAY_SIZE(refusals); i++) {
		if (err == refusals[i])
			return true;
	}
	return false;
}

static void check_value(const struct file *f, const char *what)
{
	__u64 max = broken && f->max > 1 ? f->max / 2 : f->max, val;
	char buf[4096], *stop;
	int err;

	err = tlb_rs_read_file(f->path, buf, sizeof(buf));
	if (err) {
		violation("%s: %s", f->path, strerror(-err));
		return;
	}
	if (f->kind != NUMBER) {
		if (!strpbrk(buf, "abcdefghijklmnopqrstuvwxyz") || strchr(buf, '%'))
			violation("%s says %.20s after %.20s", f->path, buf, what);
		return;
	}
	errno = 0;
	val = strtoull(buf, &stop, 10);
	if (errno || stop == buf || buf[0] == '-' || val < f->min || val > max)
		shown(BOUND, "%s says %.20s after %.20s", f->path, buf, what);
}

static void feed(const struct file *f, const struct text *t)
{
	int fd = open(f->path, O_WRONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0) {
		if (errno != EACCES && errno != EPERM)
			violation("%s: %s", f->path, strerror(errno));
		return;
	}
	/* A number would be done at once, and takes as long as it says. */
	if (f->kind == WRITE_ONLY && strstr(f->path, "hvo/") && is_number(t)) {
		close(fd);
		return;
	}
	n = write(fd, t->text, t->len);
	if (n < 0) {
		count(&sh->refused);
		if (!is_refusal(errno))
			violation("%s <- %.20s: %s", f->path, t->text, strerror(errno));
	} else if (f->kind == READ_ONLY) {
		if (t->len)
			violation("%s takes %.20s", f->path, t->text);
	} else {
		count(&sh->ops);
	}
	close(fd);
	if (f->kind == NUMBER || f->kind == WORD || f->kind == HOOKS)
		check_value(f, t->text);
	if (f->kind == HOOKS)
		tlb_rs_write_file(f->path, "none");
}

/* In parts, and not from the beginning. */
static void feed_parts(const struct file *f)
{
	int fd = open(f->path, O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		return;
	if ((write(fd, "a", 1) < 0 && !is_refusal(errno)) ||
	    (write(fd, "b", 1) < 0 && !is_refusal(errno)) ||
	    (pwrite(fd, "c", 1, 1) < 0 && !is_refusal(errno)) ||
	    (pwrite(fd, "d", 1, LONG_LEN) < 0 && !is_refusal(errno)))
		violation("%s, in parts: %s", f->path, strerror(errno));
	close(fd);
	if (f->kind == NUMBER || f->kind == WORD || f->kind == HOOKS)
		check_value(f, "parts");
	if (f->kind == HOOKS)
		tlb_rs_write_file(f->path, "none");
}

static int user_fds[ARRAY_SIZE(files)];

/* A user, who has got a file from root, too. */
static void nobody_writes(void)
{
	size_t i;

	become_user();
	for (i = 0; i < ARRAY_SIZE(files); i++) {
		int fd = open(files[i].path, O_WRONLY | O_CLOEXEC);

		if (fd >= 0)
			violation("a user can open %s", files[i].path);
		else if (errno != EACCES && errno != EPERM && errno != ENOENT)
			violation("a user: %s: %s", files[i].path, strerror(errno));
		else
			count(&sh->refused);
		/* A sysctl asks the writer, not who opened it. */
		if (user_fds[i] >= 0 && !strncmp(files[i].path, "/proc", 5) &&
		    (write(user_fds[i], "1", 1) >= 0 || errno != EPERM))
			violation("a user can write to %s", files[i].path);
	}
}

static bool is_known(const char *path)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(files); i++) {
		if (!strcmp(path, files[i].path))
			return true;
	}
	return false;
}

/* Who adds a file tells its bounds here. */
static void check_known(void)
{
	char path[512];
	struct dirent *e;
	size_t i;
	DIR *dir;

	for (i = 0; i < ARRAY_SIZE(our_directories); i++) {
		dir = opendir(our_directories[i]);
		while (dir && (e = readdir(dir))) {
			snprintf(path, sizeof(path), "%s%s", our_directories[i], e->d_name);
			if (e->d_name[0] != '.' && !is_known(path))
				violation("%s was not tried", path);
		}
		if (dir)
			closedir(dir);
	}
}

static void case_garbage(bool on)
{
	char old[64], now[64];
	size_t i, n = 0, t;

	/* Nothing is compared with it. */
	if (!on)
		return;
	memset(long_letters, 'A', LONG_LEN);
	memset(long_digits, '1', LONG_LEN);
	memset(long_spaces, ' ', LONG_LEN);
	for (i = 0; i < ARRAY_SIZE(files); i++)
		user_fds[i] = open(files[i].path, O_WRONLY);
	if (!end(start(nobody_writes)))
		violation("the user was killed");
	for (i = 0; i < ARRAY_SIZE(files); i++) {
		const struct file *f = &files[i];
		bool number = f->kind == NUMBER || f->kind == WORD;

		if (user_fds[i] < 0)
			continue;
		close(user_fds[i]);
		n++;
		/* At exit, if this does not come to its end. */
		if (number || f->kind == HOOKS)
			tlb_rs_keep(f->path);
		if (number)
			tlb_rs_read_file(f->path, old, sizeof(old));
		for (t = 0; t < ARRAY_SIZE(texts); t++)
			feed(f, &texts[t]);
		feed_parts(f);
		if (number && (tlb_rs_write_file(f->path, old) ||
			       tlb_rs_read_file(f->path, now, sizeof(now)) || strcmp(old, now)))
			violation("%s is %s, and was %s", f->path, now, old);
		else if (f->restore && f->restore[0])
			tlb_rs_write_file(f->path, f->restore);
	}
	check_known();
	ksft_print_msg("garbage: %zu files, %zu texts: %ld writes refused, %ld taken\n", n,
		       ARRAY_SIZE(texts), sh->refused, sh->ops);
	if (!n || !sh->refused || !sh->ops)
		violation("nothing to see");
}

/* ----------------------------------------------------------------------------------- */

static const struct test {
	const char *name;
	void (*run)(bool on);
	enum sign broken;	/* what --break leads to, or 0 */
	enum sign without;	/* and --skip */
	const char *(*cannot)(void);	/* why it is skipped, or NULL */
} tests[] = {
	{ "generation", case_generation, 0, 0, NULL },
	{ "ledger", case_ledger, HELD, 0, NULL },
	{ "sharers", case_sharers, STALL, 0, NULL },
	{ "forkbomb", case_forkbomb, LEAK, 0, NULL },
	{ "hugetlb", case_hugetlb, LEAK, 0, cannot_hugetlb },
	{ "toggle", case_toggle, CONTENTS, HELD, NULL },
	{ "garbage", case_garbage, BOUND, 0, NULL },
};

static __u64 phase(const struct test *test, bool on)
{
	struct shared old = *sh;

	memset(sh, 0, sizeof(*sh));
	sh->bad = old.bad;
	sh->shown = old.shown;
	migrc_write(MIGRC_ENABLE, on);
	watchdog_begin();
	deadline = tlb_rs_now_ns() + seconds * 1000000000ULL;
	test->run(on);
	watchdog_end();
	migrc_write(MIGRC_ENABLE, 0);
	if (migrc_held(-1))
		violation("%lld pages held in the end", migrc_held(-1));
	tlb_rs_drain_lru();
	return sh->worst_ns;
}

static bool run(const struct test *test)
{
	struct migrc_counters before, d;
	struct balance balance;
	__u64 off_ns, on_ns;
	int tries;

	memset(sh, 0, sizeof(*sh));
	/* The first one also brings what stays: caches, slabs. */
	off_ns = phase(test, false);
	read_balance(&balance);
	migrc_read(&before);
	if (skip_hooks && !migrc_skip_hooks(skip_hooks))
		ksft_exit_fail_msg("no hook %s\n", skip_hooks);
	on_ns = phase(test, true);
	/* What the machine does besides does not come each time. */
	for (tries = 1; tries < 3 && on_ns > off_ns + MAX_STALL_NS && !broken; tries++)
		on_ns = phase(test, true);
	migrc_skip_none();
	check_balance(&balance);
	leak_no_more();
	ksft_print_msg("%s: longest stall of another process %llu ms, %llu ms without migrc\n",
		       test->name, on_ns / 1000000, off_ns / 1000000);
	if (on_ns > off_ns + MAX_STALL_NS)
		shown(STALL, "another process was held up for %llu ms", on_ns / 1000000);
	migrc_diff(&before, &d);
	printf("{\"test\":\"tlb_rs_abuse\",\"case\":\"%s\",\"skip\":\"%s\",\"ticks\":%ld,",
	       test->name, skip_hooks ?: "none", sh->ticks);
	printf("\"stall_us\":%llu,\"stall_off_us\":%llu,\"violations\":%ld", on_ns / 1000,
	       off_ns / 1000, sh->bad);
	migrc_json(&d);
	printf("}\n");
	if (!broken && !skip_hooks)
		return !sh->bad;
	/* Not what happens to a busy machine, too. */
	return sh->shown & (broken ? test->broken : test->without);
}

static void help(const char *prog)
{
	printf("usage: %s [option]...\n"
	       "  [--case NAME] [--seconds N] [--processes N] [--break] [--skip HOOKS]\n",
	       prog);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "case", required_argument, NULL, 'c' },
		{ "seconds", required_argument, NULL, 't' },
		{ "processes", required_argument, NULL, 'p' },
		{ "break", no_argument, NULL, 'b' },
		{ "skip", required_argument, NULL, 's' },
		{ "help", no_argument, NULL, 'h' },
		{ }
	};
	const char *only = NULL;
	size_t i, plan = 0;
	int opt, n;

	ksft_print_header();
	while ((opt = getopt_long(argc, argv, "c:t:p:bs:h", options, NULL)) != -1) {
		switch (opt) {
		case 'c':
			only = optarg;
			break;
		case 't':
			seconds = tlb_rs_number(optarg, 1, 1000000);
			break;
		case 'p':
			processes = tlb_rs_number(optarg, 1, 100000);
			break;
		case 'b':
			broken = true;
			break;
		case 's':
			skip_hooks = optarg;
			break;
		default:
			help(argv[0]);
			return opt == 'h' ? 0 : KSFT_FAIL;
		}
	}
	if (geteuid())
		ksft_exit_skip("needs root\n");
	migrc_init(4, 0, 100);
	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (sh == MAP_FAILED)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	psize = getpagesize();
	read_sizes();
	for (n = nr_sizes - 1; n >= 0; n--) {
		if (sizes[n] <= 65536 && vmemmap_pages(sizes[n]) > 1)
			pool_kb = sizes[n];
	}
	pool_max = pool_kb ? (128L << 10) / (long)pool_kb : 0;
	/* An emulated CPU may not run for many milliseconds. */
	tlb_rs_setting(HVO_PARAM "ack_timeout_us", "200000");
	tlb_rs_setting(HVO_PARAM "pause_budget_us", "1000000");
	tlb_rs_setting(HVO_PARAM "duty_pct", "100");
	tlb_rs_keep(HVO_SYSCTL);
	choose_user();
	leave_last_cpu();

	for (i = 0; i < ARRAY_SIZE(tests); i++)
		plan += (!only || !strcmp(only, tests[i].name)) && (!broken || tests[i].broken);
	if (!plan)
		ksft_exit_fail_msg("no case '%s'\n", only);
	ksft_set_plan(plan);
	for (i = 0; i < ARRAY_SIZE(tests); i++) {
		const char *why = NULL;
		int ret = KSFT_SKIP;

		if ((only && strcmp(only, tests[i].name)) || (broken && !tests[i].broken))
			continue;
		migrc_case = tests[i].name;
		if (tests[i].cannot)
			why = tests[i].cannot();
		if (why)
			ksft_print_msg("%s: %s\n", migrc_case, why);
		else
			ret = run(&tests[i]) ? KSFT_PASS : KSFT_FAIL;
		ksft_test_result_report(ret, "abuse: %s%s%s%s\n", migrc_case,
					broken ? ", broken" : "", skip_hooks ? ", without " : "",
					skip_hooks ?: "");
	}
	ksft_finished();
}
