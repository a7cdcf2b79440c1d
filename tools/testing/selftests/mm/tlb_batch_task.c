// SPDX-License-Identifier: GPL-2.0
/*
 * What a task owes must not outlive the function that owes it: nothing would
 * flush it any more, and the mms that the batch holds would stay for ever.
 *
 * enomem  migrate_pages_batch() unmaps a part of a folio, fails on the rest of it,
 *         and then has no memory for the next folio, before it has a folio to
 *         flush for. The task must owe nothing when move_pages() returns.
 *         Without the rule (skip_hook "enomem") it does.
 * fork    A task that owes something (as in enomem without the rule) forks: the
 *         child must owe nothing, or the mm would be dropped twice. Without the
 *         rule (skip_hook "fork") the child has a copy.
 * exit    A task that owes something exits: the kernel must notice, flush, and say
 *         so. So this case ends with a kernel warning, and runs only if -t names it.
 *         Without the rule (skip_hook "exit") it says nothing.
 *
 * TLB_SKIP=NAME removes the rule of the case with that name, which then has to see it.
 *
 * The folio that is unmapped in part has 64 KiB, two VMAs, and a pin. The pages of
 * the first VMA are not exclusive, because of a child, and are unmapped; those of
 * the second are, and cannot be. What is owed of the first is the task's then. On
 * arm64 its ranges are flushed before the second is mapped again, but the mm is
 * still held.
 *
 * Memory runs out by fault injection: the n-th page allocation of move_pages(),
 * for each n until none fails.
 */
#define _GNU_SOURCE
#include <sys/ioctl.h>
#include <sys/klog.h>
#include <sys/wait.h>

#include "tlb_rs_harness.h"

#define FOLIO_PAGES	16
#define MAX_NTH		64
#define SEED		21
#define WARNING		"task exits with an owed TLB flush"

#define FAIL_PAGE_ALLOC	DEBUGFS "fail_page_alloc/"

static size_t psize;
static size_t len;
static char *folio;	/* 64 KiB, half of it in a VMA of its own */
static char *page;	/* the next to be moved */
static int gup_test;
static struct tlb_rs_readers readers;

/* False if a folio of that size was not to be had. */
static bool make_folio(void)
{
	pid_t pid;

	folio = tlb_rs_mmap(len, SZ_2M);
	if (!tlb_rs_bind_node(folio, len, 0))
		ksft_exit_fail_msg("mbind: %s\n", strerror(errno));
	tlb_rs_fill(folio, len, SEED);
	if (!tlb_rs_is_folio(folio, FOLIO_PAGES)) {
		ksft_print_msg("no 64 KiB folio\n");
		return false;
	}
	if (madvise(folio + len / 2, len / 2, MADV_DONTFORK))
		ksft_exit_fail_msg("MADV_DONTFORK: %s\n", strerror(errno));
	pid = fork();
	if (pid < 0)
		ksft_exit_fail_msg("fork: %s\n", strerror(errno));
	if (!pid)
		_exit(0);
	waitpid(pid, NULL, 0);

	page = tlb_rs_mmap(psize, SZ_2M);
	if (!tlb_rs_bind_node(page, psize, 0))
		ksft_exit_fail_msg("mbind: %s\n", strerror(errno));
	tlb_rs_fill(page, psize, SEED + 1);
	/* x86_64: only an mm that is used on other CPUs has its flushes batched. */
	tlb_rs_readers_start(&readers, 1, false, folio, len);
	return true;
}

/* As long as the file is open. */
static void pin_page(void)
{
	struct pin_longterm_test pin = {
		.addr = (unsigned long)folio + len - 2 * psize,
		.size = psize,
	};

	if (ioctl(gup_test, PIN_LONGTERM_TEST_START, &pin))
		ksft_exit_fail_msg("cannot pin a page: %s\n", strerror(errno));
}

static void unpin_page(void)
{
	ioctl(gup_test, PIN_LONGTERM_TEST_STOP);
}

/* Kept open: opening the file allocates, too. */
static int fail_nth_fd(void)
{
	static pid_t owner;
	static int fd;

	if (owner != getpid()) {
		fd = tlb_rs_open("/proc/self/fail-nth", O_RDWR);
		owner = getpid();
	}
	return fd;
}

static void fail_nth(int nth)
{
	char buf[16];
	int n = snprintf(buf, sizeof(buf), "%d", nth);

	if (pwrite(fail_nth_fd(), buf, n, 0) != n)
		ksft_exit_fail_msg("cannot write fail-nth: %s\n", strerror(errno));
}

/* True if an allocation has failed. */
static bool failed_nth(void)
{
	char buf[16] = { };

	if (pread(fail_nth_fd(), buf, sizeof(buf) - 1, 0) <= 0)
		ksft_exit_fail_msg("cannot read fail-nth: %s\n", strerror(errno));
	return !atoi(buf);
}

static long move_both(int node, int nth, bool *failed)
{
	void *addrs[2] = { folio, page };
	int nodes[2] = { node, node };
	int status[2];
	long ret;

	if (nth)
		fail_nth(nth);
	ret = tlb_rs_move_pages(0, 2, addrs, nodes, status);
	if (ret < 0)
		ret = -errno;
	if (nth) {
		*failed = failed_nth();
		fail_nth(0);
	}
	return ret;
}

static void read_owed(struct tlb_rs_owed *owed)
{
	if (!tlb_rs_owed(owed))
		ksft_exit_fail_msg("cannot read %s\n", TLB_BATCH_CURRENT);
}

static void print_owed(const char *who, const struct tlb_rs_owed *owed)
{
	ksft_print_msg("%s owes %d ranges, holds %d mms, unsynced %d\n", who, owed->ranges,
		       owed->held, owed->unsynced);
}

struct enomem {
	int tried;
	int enomem;		/* no memory */
	int unmapped;		/* no memory, after something was unmapped */
	struct tlb_rs_owed owed;
};

/* Runs out of memory at every place, unless something is owed after that. */
static void run_out_of_memory(struct enomem *e)
{
	bool failed = true;
	int nth;

	memset(e, 0, sizeof(*e));
	read_owed(&e->owed);
	if (tlb_rs_owes(&e->owed))
		ksft_exit_fail_msg("something was owed before the move\n");
	for (nth = 1; failed && nth <= MAX_NTH; nth++) {
		long long pages = tlb_rs_vmstat_read("tlb_batch_pages");
		long ret = move_both(1, nth, &failed);

		read_owed(&e->owed);
		e->tried++;
		e->enomem += ret == -ENOMEM;
		if (tlb_rs_owes(&e->owed)) {
			e->unmapped++;
			return;
		}
		/* What is no longer owed has been issued. */
		if (ret == -ENOMEM && tlb_rs_vmstat_read("tlb_batch_pages") > pages)
			e->unmapped++;
		move_both(0, 0, NULL);
	}
}

/* A flush of the task's own empties its batch. */
static bool pay(void)
{
	struct tlb_rs_owed owed;

	tlb_rs_skip_none();
	unpin_page();
	move_both(1, 0, NULL);
	move_both(0, 0, NULL);
	tlb_rs_readers_end(&readers);
	read_owed(&owed);
	if (tlb_rs_owes(&owed))
		print_owed("after a whole flush, the task", &owed);
	return !tlb_rs_owes(&owed);
}

static int test_enomem(bool broken)
{
	struct enomem e;
	bool ok;

	if (broken && !tlb_rs_skip_hooks("enomem"))
		return KSFT_SKIP;
	if (!make_folio())
		return KSFT_FAIL;
	pin_page();
	run_out_of_memory(&e);
	print_owed("the task", &e.owed);
	ksft_print_msg("%d of %d moves out of memory, %d of them after an unmap\n", e.enomem,
		       e.tried, e.unmapped);
	ok = e.unmapped && tlb_rs_owes(&e.owed) == broken;
	return pay() && ok ? KSFT_PASS : KSFT_FAIL;
}

static int test_fork(bool broken)
{
	struct tlb_rs_owed owed = { };
	struct enomem e;
	int fds[2];
	pid_t pid;
	bool ok;

	/* With a copy of what its parent owes, the child must not pay. */
	if (!tlb_rs_skip_hooks(broken ? "enomem,fork,exit" : "enomem"))
		return KSFT_SKIP;
	if (!make_folio())
		return KSFT_FAIL;
	pin_page();
	run_out_of_memory(&e);
	print_owed("the parent", &e.owed);
	if (pipe(fds))
		ksft_exit_fail_msg("pipe: %s\n", strerror(errno));
	pid = fork();
	if (pid < 0)
		ksft_exit_fail_msg("fork: %s\n", strerror(errno));
	if (!pid) {
		if (!tlb_rs_owed(&owed) || write(fds[1], &owed, sizeof(owed)) != sizeof(owed))
			_exit(1);
		_exit(0);
	}
	close(fds[1]);
	ok = read(fds[0], &owed, sizeof(owed)) == sizeof(owed);
	close(fds[0]);
	waitpid(pid, NULL, 0);
	print_owed("the child", &owed);
	ok = ok && tlb_rs_owes(&e.owed) && tlb_rs_owes(&owed) == broken;
	return pay() && ok ? KSFT_PASS : KSFT_FAIL;
}

static bool warned(void)
{
	int size = klogctl(10 /* SYSLOG_ACTION_SIZE_BUFFER */, NULL, 0);
	char *buf = calloc(1, size + 1);
	bool found;

	if (!buf || klogctl(3 /* SYSLOG_ACTION_READ_ALL */, buf, size) < 0)
		ksft_exit_fail_msg("cannot read the kernel log: %s\n", strerror(errno));
	found = strstr(buf, WARNING);
	free(buf);
	return found;
}

/* Broken or not, the rest of the test must not depend on the child's leftovers. */
static int test_exit(bool broken)
{
	int status;
	pid_t pid;

	if (warned()) {
		ksft_print_msg("the kernel warns only once, and has\n");
		return KSFT_FAIL;
	}
	if (!tlb_rs_skip_hooks(broken ? "enomem,exit" : "enomem"))
		return KSFT_SKIP;
	fflush(stdout);
	pid = fork();
	if (pid < 0)
		ksft_exit_fail_msg("fork: %s\n", strerror(errno));
	if (!pid) {
		struct enomem e;

		if (!make_folio()) {
			fflush(stdout);
			_exit(KSFT_FAIL);
		}
		pin_page();
		run_out_of_memory(&e);
		print_owed("the task that exits", &e.owed);
		unpin_page();
		fflush(stdout);
		_exit(tlb_rs_owes(&e.owed) ? KSFT_PASS : KSFT_FAIL);
	}
	waitpid(pid, &status, 0);
	tlb_rs_skip_none();
	if (!WIFEXITED(status) || WEXITSTATUS(status) != KSFT_PASS)
		return KSFT_FAIL;
	return warned() != broken ? KSFT_PASS : KSFT_FAIL;
}

/* Returns why the case has to be skipped, or NULL. */
static const char *set_up(void)
{
	tlb_rs_undo();
	if (!tlb_rs_setting(FAIL_PAGE_ALLOC "ignore-gfp-highmem", "N") ||
	    !tlb_rs_setting(FAIL_PAGE_ALLOC "ignore-gfp-wait", "N") ||
	    !tlb_rs_setting(FAIL_PAGE_ALLOC "min-order", "0") ||
	    !tlb_rs_setting(FAIL_PAGE_ALLOC "verbose", "0"))
		return "page allocations cannot be made to fail";
	if (!tlb_rs_setting(THP_SYSFS "hugepages-64kB/enabled", "always") ||
	    !tlb_rs_setting(THP_SYSFS "hugepages-2048kB/enabled", "never"))
		return "no 64 KiB anonymous folios";
	gup_test = tlb_rs_open(DEBUGFS "gup_test", O_RDWR);
	tlb_rs_pin_cpu(0);
	tlb_rs_quiet();
	return NULL;
}

FIXTURE(tlb_batch_task) {
};

FIXTURE_SETUP(tlb_batch_task)
{
	const char *why = set_up();

	if (why)
		SKIP(return, "%s", why);
}

FIXTURE_TEARDOWN_PARENT(tlb_batch_task)
{
	tlb_rs_tear_down();
}

/* The case with its rule, or, if the environment says so, without. */
static void with_rule(struct __test_metadata *_metadata, const char *rule,
		      int (*test)(bool broken))
{
	const char *skip = tlb_rs_env("TLB_SKIP");
	int ret;

	if (skip)
		ASSERT_STREQ(rule, skip);
	ret = test(skip);
	if (ret == KSFT_SKIP)
		SKIP(return, "hooks cannot be removed on this kernel");
	EXPECT_EQ(KSFT_PASS, ret);
}

TEST_F_TIMEOUT(tlb_batch_task, enomem, TLB_RS_TIMEOUT_S)
{
	with_rule(_metadata, "enomem", test_enomem);
}

TEST_F_TIMEOUT(tlb_batch_task, fork, TLB_RS_TIMEOUT_S)
{
	with_rule(_metadata, "fork", test_fork);
}

FIXTURE(tlb_batch_task_on_demand) {
};

FIXTURE_SETUP(tlb_batch_task_on_demand)
{
	const char *why = set_up();

	if (why)
		SKIP(return, "%s", why);
}

FIXTURE_TEARDOWN_PARENT(tlb_batch_task_on_demand)
{
	tlb_rs_tear_down();
}

TEST_F_TIMEOUT(tlb_batch_task_on_demand, exit, TLB_RS_TIMEOUT_S)
{
	with_rule(_metadata, "exit", test_exit);
}

static const char *missing(void)
{
	int on = 0;

	psize = getpagesize();
	len = FOLIO_PAGES * psize;
	if (psize != 4096)
		return "needs 4 KiB pages";
	if (tlb_rs_nr_cpus() < 2)
		return "needs two CPUs";
	if ((tlb_rs_memory_nodes() & 3) != 3)
		return "needs memory on nodes 0 and 1";
	if (!tlb_batch_get(&on) || on <= 0)
		return "nothing is owed unless vm.tlb_batch is 1";
	if (access(DEBUGFS "gup_test", R_OK | W_OK))
		return "no gup_test in debugfs to pin pages with";
	if (access(FAIL_PAGE_ALLOC "min-order", W_OK))
		return "page allocations cannot be made to fail";
	return access(THP_SYSFS "hugepages-64kB/enabled", W_OK) ?
	       "no 64 KiB anonymous folios" : NULL;
}

int main(int argc, char **argv)
{
	tlb_rs_skip_all(missing());
	return tlb_rs_run_without("tlb_batch_task_on_demand", argc, argv);
}
