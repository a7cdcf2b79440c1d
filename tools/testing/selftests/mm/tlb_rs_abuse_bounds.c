// SPDX-License-Identifier: GPL-2.0
/* What is deferred and held has bounds: generation, ledger, sharers. */
#include "tlb_rs_abuse.h"

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

void case_generation(bool on)
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

void case_ledger(bool on)
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

void case_sharers(bool on)
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
