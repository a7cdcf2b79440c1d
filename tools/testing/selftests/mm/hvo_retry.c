// SPDX-License-Identifier: GPL-2.0
/*
 * Pages of HugeTLB pools that could not give their struct pages back when they came into the
 * pool do so later, once they are free.
 *
 * free     all pages of a pool are free.
 * used     some are in use: they are optimised after they were freed, and not before.
 * off      hvo.retry_s is 0, and then a short time again, while it waits for a long one.
 * needed   processes need the pages while the worker has taken them out of the pool: each
 *          waits for it, and gets what it has reserved.
 * surplus  pages beyond the pool are given back while the worker has all free pages, and
 *          another process reserves some meanwhile: no more are left than are needed, and the
 *          other gets what it reserved.
 * vanished a surplus page stays in the place of one of the pool, of which it is from then on.
 * isolated the block of a free page is isolated for a while.
 * failed   memory of a page goes offline or fails while the worker has it.
 *
 * The pool grows while vm.hugetlb_optimize_vmemmap is off, as where pages could not be
 * optimised for want of memory. TLB_SKIP=HOOK removes a rule, and then each case has to fail.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/wait.h>

#include "hvo.h"
#include "tlb_rs_harness.h"

/* Every page that is free is optimised after a minute. */
#define SOON_NS		(60 * 1000000000ULL)
/* The worker has come twice in that time. */
#define TWICE_NS	(4 * 1000000000ULL)
/* A page that is held takes longer, one that is not does not. */
#define WAITED_NS	(50 * 1000000ULL)

#define PAGES		64L
#define ROUNDS		10

static unsigned long kb;

static long count(const char *file)
{
	char path[128];

	snprintf(path, sizeof(path), HUGEPAGES, kb, file);
	return get(path);
}

static bool counts_are(long optimized, long unoptimized)
{
	return count("optimized_hugepages") == optimized &&
	       count("unoptimized_hugepages") == unoptimized;
}

static bool verified(long before, long optimized)
{
	long want = optimized * spare_pages(kb), saved = before - memmap();

	if (saved == want && !get_field(HVO_DEBUG "verify", "violations"))
		return true;
	ksft_print_msg("%ld pages of struct pages saved, not %ld\n", saved, want);
	return false;
}

/* Waits for these numbers, for up to a minute. */
static bool soon(const char *what, long optimized, long unoptimized)
{
	__u64 begin = tlb_rs_now_ns(), ns;

	do {
		ns = tlb_rs_now_ns() - begin;
		if (counts_are(optimized, unoptimized)) {
			ksft_print_msg("%s: after %llu ms\n", what, ns / 1000000);
			return true;
		}
		usleep(50000);
	} while (ns < SOON_NS);
	ksft_print_msg("%s: %ld optimised and %ld others, not %ld and %ld\n", what,
		       count("optimized_hugepages"), count("unoptimized_hugepages"),
		       optimized, unoptimized);
	return false;
}

/* A pool of which no page is optimised. */
static bool plain_pool(long nr)
{
	bool ok;

	set(HVO_SWITCH, "0");
	ok = resize(kb, nr) == nr && counts_are(0, nr);
	if (!ok)
		ksft_print_msg("no pool of %ld pages of %lu kB\n", nr, kb);
	return ok;
}

static void *map(long nr)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | __builtin_ctzl(kb * 1024) << 26;
	void *p = mmap(NULL, nr * kb * 1024, PROT_READ | PROT_WRITE, flags, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

static bool test_free(void)
{
	long before = memmap(), retried = stat_of("retried");
	bool ok = plain_pool(PAGES);

	set(HVO_SWITCH, "1");
	ok = ok && soon("free", PAGES, 0) && verified(before, PAGES);
	ok = ok && stat_of("retried") - retried == PAGES;
	return !resize(kb, 0) && memmap() == before && ok;
}

static bool test_used(void)
{
	long before = memmap(), used = PAGES / 2;
	bool ok = plain_pool(PAGES);
	char *p = ok ? map(used) : NULL;

	for (long i = 0; p && i < used; i++)
		p[i * kb * 1024] = 1;
	set(HVO_SWITCH, "1");
	ok = p && soon("the others", PAGES - used, used);
	if (ok)
		usleep(TWICE_NS / 1000);
	ok = ok && counts_are(PAGES - used, used) && verified(before, PAGES - used);
	for (long i = 0; p && i < used; i++)
		ok &= p[i * kb * 1024] == 1;
	if (p)
		munmap(p, used * kb * 1024);
	ok = ok && soon("freed", PAGES, 0) && verified(before, PAGES);
	return !resize(kb, 0) && memmap() == before && ok;
}

static bool test_off(void)
{
	long before = memmap();
	bool ok;

	set(HVO_PARAM "retry_s", "0");
	ok = plain_pool(PAGES);
	set(HVO_SWITCH, "1");
	usleep(TWICE_NS / 1000);
	ok = ok && counts_are(0, PAGES);
	if (!ok)
		ksft_print_msg("something was optimised\n");
	/* Seconds: nobody waits for that. */
	set(HVO_PARAM "retry_s", "4000000000");
	set(HVO_PARAM "retry_s", "1");
	ok = ok && soon("on again", PAGES, 0) && verified(before, PAGES);
	return !resize(kb, 0) && memmap() == before && ok;
}

/* Uses the whole pool; dies if it does not get what it has reserved. */
static void use_pool(__u64 *slowest)
{
	char *p = map(PAGES);

	if (!p)
		_exit(KSFT_FAIL);
	for (long i = 0; i < PAGES; i++) {
		__u64 ns = tlb_rs_now_ns();

		p[i * kb * 1024] = 1;
		ns = tlb_rs_now_ns() - ns;
		if (ns > *slowest)
			*slowest = ns;
	}
	_exit(KSFT_PASS);
}

static bool pool_is_usable(__u64 *slowest)
{
	pid_t pid = fork();
	int status;

	if (!pid)
		use_pool(slowest);
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return false;
	if (WIFSIGNALED(status))
		ksft_print_msg("signal %d where a page was reserved\n", WTERMSIG(status));
	else if (WEXITSTATUS(status))
		ksft_print_msg("pages cannot be reserved\n");
	return WIFEXITED(status) && !WEXITSTATUS(status);
}

static bool test_needed(void)
{
	__u64 *slowest = mmap(NULL, psize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			      -1, 0);
	long before = memmap();
	bool ok = true;

	/* The worker waits for this CPU, for a second, with all pages in its hands. */
	set(HVO_PARAM "strategy", "pause");
	set_num(HVO_DEBUG "deaf_cpu", 1);
	set_num(HVO_PARAM "ack_timeout_us", 1000000);
	/* Unless it runs on this CPU itself, which it does in one of some rounds. */
	for (int r = 0; ok && r < ROUNDS && *slowest < WAITED_NS; r++) {
		__u64 begin = tlb_rs_now_ns();

		ok = !resize(kb, 0) && plain_pool(PAGES);
		set(HVO_SWITCH, "1");
		while (ok && !counts_are(PAGES, 0) && tlb_rs_now_ns() - begin < SOON_NS) {
			ok = pool_is_usable(slowest);
			/* It takes only what is free. */
			usleep(100000);
		}
	}
	set_num(HVO_DEBUG "deaf_cpu", 0xffffffff);
	ksft_print_msg("the longest fault took %llu ms\n", *slowest / 1000000);
	if (ok && *slowest < WAITED_NS)
		ksft_exit_fail_msg("nobody had to wait\n");
	ok = ok && soon("needed", PAGES, 0) && verified(before, PAGES);
	munmap(slowest, psize);
	return !resize(kb, 0) && memmap() == before && ok;
}

/* Pages in use, of a task that is about to give back a reservation, and of another task. */
#define USED		32L
#define OTHERS		48L
/* As many are free then as the worker may take. */
#define RESERVED	PAGES
#define SURPLUS		(USED + RESERVED - PAGES)

static bool allow_surplus(long nr)
{
	char path[128];

	snprintf(path, sizeof(path), HUGEPAGES, kb, "nr_overcommit_hugepages");
	tlb_rs_keep(path);
	return set_num(path, nr);
}

struct turns {
	__u64 gives_back;	/* which time */
	__u64 waited;		/* ns */
};

/* Reserves pages while the other task gives its own back, and uses them after that. */
static void reserve_meanwhile(struct turns *t, __u64 turn)
{
	char *p;

	tlb_rs_reaches(&t->gives_back, turn, "who gives back");
	usleep(20000);
	p = map(OTHERS);
	/* What is reserved is there: no other page takes its place. */
	if (!p || !allow_surplus(0))
		_exit(KSFT_FAIL);
	while (!__atomic_load_n(&t->waited, __ATOMIC_ACQUIRE))
		usleep(1000);
	/* Not before the rest has been given back. */
	for (long i = 0; i < OTHERS; i++)
		p[i * kb * 1024] = 1;
	_exit(count("surplus_hugepages") == USED + OTHERS - PAGES ? KSFT_PASS : KSFT_SKIP);
}

/* Returns for how long munmap() has waited, or 0 if something was wrong. */
static __u64 give_back(struct turns *t, __u64 turn)
{
	size_t len = RESERVED * kb * 1024;
	long surplus;
	int status;
	void *p;
	pid_t pid;

	allow_surplus(PAGES);
	__atomic_store_n(&t->waited, 0, __ATOMIC_RELEASE);
	pid = fork();
	if (!pid)
		reserve_meanwhile(t, turn);
	p = map(RESERVED);
	surplus = count("surplus_hugepages");
	/* The worker comes. */
	usleep(100000);
	if (p) {
		__u64 ns = tlb_rs_now_ns();

		__atomic_store_n(&t->gives_back, turn, __ATOMIC_RELEASE);
		munmap(p, len);
		__atomic_store_n(&t->waited, tlb_rs_now_ns() - ns, __ATOMIC_RELEASE);
	} else {
		kill(pid, SIGKILL);
	}
	if (waitpid(pid, &status, 0) != pid)
		return 0;
	if (p && surplus == SURPLUS && WIFEXITED(status) && !WEXITSTATUS(status))
		return t->waited;
	if (!p || surplus != SURPLUS)
		ksft_print_msg("%ld surplus pages, not %ld\n", surplus, SURPLUS);
	else if (WIFSIGNALED(status))
		ksft_print_msg("signal %d where a page was reserved\n", WTERMSIG(status));
	else
		ksft_print_msg("%s\n", WEXITSTATUS(status) == KSFT_SKIP ?
			       "not as many surplus pages are left as are needed" :
			       "pages cannot be reserved");
	return 0;
}

static bool test_surplus(void)
{
	struct turns *t = mmap(NULL, psize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			       -1, 0);
	__u64 longest = 0, turn = 0;
	bool ok = true;

	/* The worker waits for this CPU, for a second, with all free pages in its hands. */
	set(HVO_PARAM "strategy", "pause");
	set_num(HVO_DEBUG "deaf_cpu", 1);
	set_num(HVO_PARAM "ack_timeout_us", 1000000);
	for (int r = 0; ok && r < ROUNDS && longest < WAITED_NS; r++) {
		__u64 begin = tlb_rs_now_ns();
		char *used;

		ok = !resize(kb, 0) && plain_pool(PAGES);
		used = ok ? map(USED) : NULL;
		for (long i = 0; used && i < USED; i++)
			used[i * kb * 1024] = 1;
		set(HVO_SWITCH, "1");
		while (ok && longest < WAITED_NS && count("optimized_hugepages") < PAGES - USED &&
		       tlb_rs_now_ns() - begin < SOON_NS) {
			__u64 ns = give_back(t, ++turn);

			ok = ns;
			if (ns > longest)
				longest = ns;
		}
		if (used)
			munmap(used, USED * kb * 1024);
	}
	set_num(HVO_DEBUG "deaf_cpu", 0xffffffff);
	ksft_print_msg("giving back took up to %llu ms\n", longest / 1000000);
	if (ok && longest < WAITED_NS)
		ksft_exit_fail_msg("nobody had to wait\n");
	ok = ok && !count("surplus_hugepages");
	munmap(t, psize);
	return !resize(kb, 0) && ok;
}

/* A page of a pool is in use, and is freed while a surplus one is reserved: the latter stays. */
static bool test_vanished(void)
{
	long before = memmap();
	char *used;
	bool ok;
	void *p;

	/* All on one node: surplus pages are counted for each. */
	tlb_rs_pin_cpu(0);
	allow_surplus(1);
	set(HVO_SWITCH, "1");
	ok = resize(kb, 2) == 2 && soon("both", 2, 0);
	used = ok ? map(1) : NULL;
	if (used)
		*used = 1;
	p = used ? map(2) : NULL;
	ok = p && count("surplus_hugepages") == 1 && counts_are(2, 1);
	/* The worker has nothing to do. */
	usleep(TWICE_NS / 1000);
	ok = ok && counts_are(2, 1);
	if (used)
		munmap(used, kb * 1024);
	ok = ok && !count("surplus_hugepages") && soon("the one that stays", 2, 0) &&
	     verified(before, 2);
	if (p)
		munmap(p, 2 * kb * 1024);
	return !resize(kb, 0) && memmap() == before && ok;
}

/* The page frame of a page of the pool that is free then, or 0. */
static __u64 frame_of_free(void)
{
	char *p = map(1);
	__u64 pfn;

	if (!p)
		return 0;
	*p = 1;
	pfn = tlb_rs_pfn(p);
	munmap(p, kb * 1024);
	return pfn;
}

static bool test_isolated(void)
{
	long before = memmap();
	bool ok = plain_pool(PAGES);
	__u64 pfn = ok ? frame_of_free() : 0;

	ok = pfn && set_num(HVO_DEBUG "isolate_pfn", pfn);
	set(HVO_SWITCH, "1");
	ok = ok && soon("the others", PAGES - 1, 1);
	usleep(TWICE_NS / 1000);
	ok = ok && counts_are(PAGES - 1, 1);
	ok &= set_num(HVO_DEBUG "isolate_pfn", 0) && soon("the last", PAGES, 0) &&
	      verified(before, PAGES);
	return !resize(kb, 0) && memmap() == before && ok;
}

/* Takes a page frame of a free page away, in rounds, until the worker has had that page. */
static bool fails_while_held(const char *file)
{
	__u64 longest = 0, ns, pfn;
	bool ok = true;
	int r;

	for (r = 0; ok && r < ROUNDS && longest < WAITED_NS; r++) {
		ok = !resize(kb, 0) && plain_pool(PAGES);
		pfn = ok ? frame_of_free() : 0;
		set(HVO_SWITCH, "1");
		/* The worker comes after a second. */
		usleep(1200000);
		ns = tlb_rs_now_ns();
		ok = pfn && set_num(file, pfn * psize);
		ns = tlb_rs_now_ns() - ns;
		if (ns > longest)
			longest = ns;
		ok = ok && count("nr_hugepages") == PAGES - 1;
		if (pfn)
			set_num(UNPOISON, pfn);
	}
	ksft_print_msg("%s took up to %llu ms\n", strrchr(file, '/') + 1, longest / 1000000);
	if (ok && longest < WAITED_NS)
		ksft_exit_fail_msg("nobody had to wait\n");
	return ok;
}

static bool test_failed(void)
{
	bool ok;

	/* The worker waits for this CPU, for a second, with all pages in its hands. */
	set(HVO_PARAM "strategy", "pause");
	set_num(HVO_DEBUG "deaf_cpu", 1);
	set_num(HVO_PARAM "ack_timeout_us", 1000000);
	ok = fails_while_held(HARD_OFFLINE) && fails_while_held(SOFT_OFFLINE);
	set_num(HVO_DEBUG "deaf_cpu", 0xffffffff);
	return !resize(kb, 0) && ok;
}

FIXTURE(hvo_retry) {
	bool works;	/* with its rule */
};

FIXTURE_SETUP(hvo_retry)
{
	const char *skip = tlb_rs_env("TLB_SKIP");

	tlb_rs_undo();
	hvo_set_up();
	tlb_rs_restore(HVO_PARAM "retry_s");
	tlb_rs_keep(HVO_SWITCH);
	tlb_rs_keep(HVO_DEBUG "deaf_cpu");
	tlb_rs_at_exit(hvo_empty_pools);
	self->works = !skip;
	if (skip)
		ASSERT_TRUE(tlb_rs_setting(HVO_DEBUG "skip_hook", skip));
}

FIXTURE_TEARDOWN_PARENT(hvo_retry)
{
	tlb_rs_tear_down();
}

TEST_F_TIMEOUT(hvo_retry, free, TLB_RS_TIMEOUT_S)
{
	EXPECT_EQ(self->works, test_free());
}

TEST_F_TIMEOUT(hvo_retry, used, TLB_RS_TIMEOUT_S)
{
	EXPECT_EQ(self->works, test_used());
}

TEST_F_TIMEOUT(hvo_retry, off, TLB_RS_TIMEOUT_S)
{
	EXPECT_EQ(self->works, test_off());
}

TEST_F_TIMEOUT(hvo_retry, needed, TLB_RS_TIMEOUT_S)
{
	if (nr_cpus < 2 || access(HVO_DEBUG "deaf_cpu", W_OK))
		SKIP(return, "needs 2 CPUs and CONFIG_TLB_RS_FAULT_INJECTION");
	EXPECT_EQ(self->works, test_needed());
}

TEST_F_TIMEOUT(hvo_retry, surplus, TLB_RS_TIMEOUT_S)
{
	if (nr_cpus < 2 || access(HVO_DEBUG "deaf_cpu", W_OK))
		SKIP(return, "needs 2 CPUs and CONFIG_TLB_RS_FAULT_INJECTION");
	EXPECT_EQ(self->works, test_surplus());
}

TEST_F_TIMEOUT(hvo_retry, vanished, TLB_RS_TIMEOUT_S)
{
	EXPECT_EQ(self->works, test_vanished());
}

TEST_F_TIMEOUT(hvo_retry, isolated, TLB_RS_TIMEOUT_S)
{
	if (access(HVO_DEBUG "isolate_pfn", W_OK))
		SKIP(return, "needs CONFIG_HVO_FAULT_INJECTION");
	EXPECT_EQ(self->works, test_isolated());
}

TEST_F_TIMEOUT(hvo_retry, failed, TLB_RS_TIMEOUT_S)
{
	if (nr_cpus < 2 || access(HVO_DEBUG "deaf_cpu", W_OK) || access(UNPOISON, W_OK))
		SKIP(return, "needs 2 CPUs, fault injection and CONFIG_HWPOISON_INJECT");
	EXPECT_EQ(self->works, test_failed());
}

static const char *missing(void)
{
	const char *why = hvo_missing(true) ?: hvo_pools_in_use();

	if (why)
		return why;
	if (!get(HVO_PARAM "retry_s"))
		return "hvo.retry_s is 0";
	kb = hvo_small_size();
	return tlb_rs_meminfo_kb(MEMINFO, "MemFree") < 2 * PAGES * (long)kb ?
	       "needs more free memory" : NULL;
}

int main(int argc, char **argv)
{
	tlb_rs_skip_all(missing());
	return test_harness_run(argc, argv);
}
