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
 * With TLB_BREAK=1, or without a rule of the kernel (TLB_SKIP), what a case checks is broken on
 * purpose: it passes if it says so.
 */
#include "tlb_rs_abuse.h"
#include "tlb_rs_harness.h"

long seconds;
long processes;
bool broken;
const char *skip_hooks;

struct shared *sh;

__u64 deadline;

bool expired(void)
{
	return tlb_rs_now_ns() >= deadline;
}

/* On a machine with other work to do, less may have happened than there should be to see. */
bool enough(bool done)
{
	return expired() && (done || tlb_rs_now_ns() >= deadline + PATIENCE_NS);
}

void count(long *counter)
{
	__atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

__printf(1, 2) void violation(const char *fmt, ...)
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

/* What a system call may say that is refused for want of a resource. */
bool is_want(int err)
{
	return err == EAGAIN || err == ENOMEM || err == EBUSY || err == ENOSPC;
}

/* --- processes --------------------------------------------------------------------- */

/* Not on the CPU of the watchdog: it should wait for the kernel only. */
void leave_last_cpu(void)
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

void become_user(void)
{
	if (setresgid(user, user, user) || setresuid(user, user, user))
		_exit(1);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
}

pid_t start(void (*fn)(void))
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
bool end(pid_t pid)
{
	int status = -1;

	return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status);
}

pid_t watchdog_pid;

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

/* ----------------------------------------------------------------------------------- */

struct test {
	const char *name;
	void (*run)(bool on);
	enum sign broken;	/* what TLB_BREAK leads to, or 0 */
	enum sign without;	/* and TLB_SKIP */
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

FIXTURE(tlb_rs_abuse) {
};

FIXTURE_VARIANT(tlb_rs_abuse) {
	struct test test;
	const char *(*cannot)(void);	/* why it is skipped, or NULL */
};

FIXTURE_VARIANT_ADD(tlb_rs_abuse, generation) {
	.test = { "generation", case_generation },
};

FIXTURE_VARIANT_ADD(tlb_rs_abuse, ledger) {
	.test = { "ledger", case_ledger, .broken = HELD },
};

FIXTURE_VARIANT_ADD(tlb_rs_abuse, sharers) {
	.test = { "sharers", case_sharers, .broken = STALL },
};

FIXTURE_VARIANT_ADD(tlb_rs_abuse, forkbomb) {
	.test = { "forkbomb", case_forkbomb, .broken = LEAK },
};

FIXTURE_VARIANT_ADD(tlb_rs_abuse, hugetlb) {
	.test = { "hugetlb", case_hugetlb, .broken = LEAK },
	.cannot = cannot_hugetlb,
};

FIXTURE_VARIANT_ADD(tlb_rs_abuse, toggle) {
	.test = { "toggle", case_toggle, .broken = CONTENTS, .without = HELD },
};

FIXTURE_VARIANT_ADD(tlb_rs_abuse, garbage) {
	.test = { "garbage", case_garbage, .broken = BOUND },
};

FIXTURE_SETUP(tlb_rs_abuse)
{
	tlb_rs_undo();
	migrc_case = variant->test.name;
	if (broken && !variant->test.broken)
		SKIP(return, "has nothing to break");
	migrc_init(4, 0, 100);
	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, sh);
	/* An emulated CPU may not run for many milliseconds. */
	tlb_rs_setting(HVO_PARAM "ack_timeout_us", "200000");
	tlb_rs_setting(HVO_PARAM "pause_budget_us", "1000000");
	tlb_rs_setting(HVO_PARAM "duty_pct", "100");
	tlb_rs_keep(HVO_SYSCTL);
	choose_user();
	leave_last_cpu();
	if (variant->cannot) {
		const char *why = variant->cannot();

		if (why)
			SKIP(return, "%s", why);
	}
}

FIXTURE_TEARDOWN_PARENT(tlb_rs_abuse)
{
	tlb_rs_tear_down();
}

TEST_F_TIMEOUT(tlb_rs_abuse, bounded, 4 * TLB_RS_TIMEOUT_S)
{
	EXPECT_TRUE(run(&variant->test));
}

int main(int argc, char **argv)
{
	int n;

	tlb_rs_skip_all(geteuid() ? "needs root" : migrc_missing(4));
	seconds = tlb_rs_env_number("TLB_SECONDS", 2, 1, 1000000);
	processes = tlb_rs_env_number("TLB_PROCESSES", 1100, 1, 100000);
	broken = tlb_rs_env_number("TLB_BREAK", 0, 0, 1);
	skip_hooks = tlb_rs_env("TLB_SKIP");
	psize = getpagesize();
	read_sizes();
	for (n = nr_sizes - 1; n >= 0; n--) {
		if (sizes[n] <= 65536 && vmemmap_pages(sizes[n]) > 1)
			pool_kb = sizes[n];
	}
	pool_max = pool_kb ? (128L << 10) / (long)pool_kb : 0;
	return test_harness_run(argc, argv);
}
