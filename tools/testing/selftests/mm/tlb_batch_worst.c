// SPDX-License-Identifier: GPL-2.0
/*
 * Work from which a TLB batch gains little or nothing. Each case is a measured
 * region, to compare the switch on and off, and checks all contents.
 *
 * children   64 forked children that wrote their own pages first: MADV_PAGEOUT
 *            of every third page of each
 * reclaim    the same children in a memory cgroup: reclaim of a third of their
 *            pages, so that one batch holds pages of many address spaces
 * scattered  pages that are not neighbours, moved in one call, in any order
 * single     one page a call
 * huge       64 MiB in one call
 * exit       a child is killed while its pages are moved
 * compact    a child is killed while compaction moves its pages. Nothing holds
 *            the address space then, and no two runs do the same work.
 * tasks      4 tasks move pages of their own at the same time
 * swapin     paged out, then each page read back in, in any order
 * shared     MADV_PAGEOUT of pages that 4 processes share, which the kernel
 *            leaves alone, and then reclaim of them by the memory cgroup
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "tlb_rs.h"

#define SEED		31
#define NR_CHILDREN	64
#define CHILD_PAGES	96
#define NR_MOVED	1024
#define STRIDE		3
#define SPACER		(128UL << 20)

static int pairs;
static size_t psize;

static void die(const char *what)
{
	ksft_exit_fail_msg("%s: %s\n", what, strerror(errno));
}

/* Small pages on @node (-1: any), not yet touched. */
static char *area(size_t pages, int node)
{
	char *base = tlb_rs_mmap(pages * psize, SZ_2M);

	madvise(base, pages * psize, MADV_NOHUGEPAGE);
	if (node >= 0 && !tlb_rs_bind_node(base, pages * psize, node))
		die("mbind");
	return base;
}

static bool right(const char *who, const char *base, size_t pages, __u64 seed)
{
	size_t bad = tlb_rs_check(base, pages * psize, seed);

	if (bad)
		ksft_print_msg("%s: %zu wrong words\n", who, bad);
	return !bad;
}

static void record(const char *name, size_t units, const struct tlb_rs_counters *c)
{
	char region[48], extra[40];

	snprintf(region, sizeof(region), "worst_%s", name);
	snprintf(extra, sizeof(extra), ",\"units\":%zu", units);
	tlb_rs_json_region(region, extra, c);
}

/* Always the same order, but not that of the addresses. */
static void shuffle(void **p, size_t n)
{
	__u64 x = 88172645463325252ULL;
	size_t i;

	for (i = n - 1; i; i--) {
		size_t j;
		void *t = p[i];

		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		j = x % (i + 1);
		p[i] = p[j];
		p[j] = t;
	}
}

static int memory_node(int nr)
{
	unsigned long mask = tlb_rs_memory_nodes();

	while (nr--)
		mask &= mask - 1;
	return mask ? __builtin_ctzl(mask) : -1;
}

/* Addresses of @nr pages, @stride pages apart. */
static void **pages_of(char *base, size_t nr, size_t stride)
{
	void **p = calloc(nr, sizeof(*p));
	size_t i;

	if (!p)
		die("calloc");
	for (i = 0; i < nr; i++)
		p[i] = base + i * stride * psize;
	return p;
}

static int *filled(size_t nr, int val)
{
	int *p = calloc(nr, sizeof(*p));
	size_t i;

	if (!p)
		die("calloc");
	for (i = 0; i < nr; i++)
		p[i] = val;
	return p;
}

/* Children that own their pages and wait: for "check" and for their end. */
static pid_t child[NR_CHILDREN];
static int nr_children;
static int ready[2], go[2];

static void children_start(char *base, size_t pages, int nr, bool own)
{
	char c;
	int i;

	if (pipe(ready) || pipe(go))
		die("pipe");
	fflush(stdout);
	for (i = 0; i < nr; i++) {
		child[i] = fork();
		if (child[i] < 0)
			die("fork");
		if (!child[i]) {
			close(go[1]);
			close(ready[0]);
			tlb_rs_pin_cpu(i % tlb_rs_nr_cpus());
			if (own)
				tlb_rs_fill(base, pages * psize, SEED + i);
			if (write(ready[1], "", 1) != 1 || read(go[0], &c, 1) != 1)
				_exit(1);
			_exit(tlb_rs_check(base, pages * psize, own ? SEED + i : SEED) ? 2 : 0);
		}
	}
	nr_children = nr;
	close(ready[1]);
	close(go[0]);
	for (i = 0; i < nr; i++) {
		if (read(ready[0], &c, 1) != 1)
			die("a child");
	}
	tlb_rs_drain_lru();
}

/* Each child checks what it has. */
static bool children_end(void)
{
	int i, status;
	bool ok = true;

	for (i = 0; i < nr_children; i++)
		ok &= write(go[1], "", 1) == 1;
	close(go[1]);
	close(ready[0]);
	for (i = 0; i < nr_children; i++) {
		if (waitpid(child[i], &status, 0) != child[i] || status) {
			ksft_print_msg("child %d: status 0x%x\n", i, status);
			ok = false;
		}
	}
	return ok;
}

static int run_children(void)
{
	char *base = area(CHILD_PAGES, -1);
	struct iovec iov[CHILD_PAGES / STRIDE];
	struct tlb_rs_counters c;
	int pidfd[NR_CHILDREN];
	long long out;
	bool ok = true;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(iov); i++) {
		iov[i].iov_base = base + i * STRIDE * psize;
		iov[i].iov_len = psize;
	}
	tlb_rs_fill(base, CHILD_PAGES * psize, SEED);
	children_start(base, CHILD_PAGES, NR_CHILDREN, true);
	for (i = 0; i < NR_CHILDREN; i++) {
		pidfd[i] = syscall(SYS_pidfd_open, child[i], 0);
		if (pidfd[i] < 0)
			die("pidfd_open");
	}

	out = tlb_rs_vmstat_read("pswpout");
	tlb_rs_begin(&c);
	for (i = 0; i < NR_CHILDREN; i++)
		ok &= syscall(SYS_process_madvise, pidfd[i], iov, ARRAY_SIZE(iov),
			      MADV_PAGEOUT, 0) == (long)(sizeof(iov) / sizeof(*iov) * psize);
	tlb_rs_end(&c);
	out = tlb_rs_vmstat_read("pswpout") - out;
	record("children", out, &c);

	if (!ok || out < (long long)(NR_CHILDREN * ARRAY_SIZE(iov) * 15 / 16)) {
		ksft_print_msg("%lld pages swapped out: %s\n", out, strerror(errno));
		ok = false;
	}
	for (i = 0; i < NR_CHILDREN; i++)
		close(pidfd[i]);
	ok &= children_end();
	ok &= right("parent", base, CHILD_PAGES, SEED);
	munmap(base, CHILD_PAGES * psize);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

static int reclaim(const char *name, size_t pages, int nr, bool own)
{
	char *base = area(pages, -1);
	struct tlb_rs_counters c;
	long long out;
	bool ok;

	if (!tlb_rs_cgroup()) {
		ksft_print_msg("no memory cgroup: %s\n", strerror(errno));
		munmap(base, pages * psize);
		return KSFT_SKIP;
	}
	/* The children are in it, too. */
	tlb_rs_cgroup_enter();
	tlb_rs_fill(base, pages * psize, SEED);
	children_start(base, pages, nr, own);

	out = tlb_rs_vmstat_read("pswpout");
	tlb_rs_begin(&c);
	/* It is up to the kernel that it does not touch pages which others map, too. */
	ok = own || !madvise(base, pages * psize, MADV_PAGEOUT);
	ok &= tlb_rs_cgroup_reclaim((own ? nr * pages / 3 : pages) * psize, " swappiness=max");
	tlb_rs_end(&c);
	out = tlb_rs_vmstat_read("pswpout") - out;
	record(name, out, &c);

	if (!ok || out < (long long)pages / 4) {
		ksft_print_msg("%lld pages swapped out\n", out);
		ok = false;
	}
	ok &= children_end();
	ok &= right("parent", base, pages, SEED);
	munmap(base, pages * psize);
	tlb_rs_cgroup_leave();
	return ok ? KSFT_PASS : KSFT_FAIL;
}

static int run_reclaim(void)
{
	return reclaim("reclaim", CHILD_PAGES, NR_CHILDREN, true);
}

static int run_shared(void)
{
	return reclaim("shared", 2048, 3, false);
}

/* @nr pages, @stride apart, to the second node, @chunk of them a call. */
static int move(const char *name, size_t nr, size_t stride, size_t chunk)
{
	int from = memory_node(0), to = memory_node(1);
	struct tlb_rs_counters c;
	size_t i, calls = 0;
	int *nodes, *status;
	void **pages;
	long n = 0;
	char *base;
	bool ok;

	if (to < 0) {
		ksft_print_msg("needs memory on 2 nodes\n");
		return KSFT_SKIP;
	}
	base = area(nr * stride, from);
	tlb_rs_fill(base, nr * stride * psize, SEED);
	pages = pages_of(base, nr, stride);
	if (stride > 1)
		shuffle(pages, nr);
	nodes = filled(nr, to);
	status = filled(nr, -1);
	tlb_rs_drain_lru();

	tlb_rs_begin(&c);
	for (i = 0; i < nr; i += chunk)
		calls += !tlb_rs_move_pages(0, chunk, pages + i, nodes + i, status + i);
	tlb_rs_end(&c);
	for (i = 0; i < nr; i++)
		n += status[i] == to;
	record(name, n, &c);

	ok = calls == nr / chunk && n == (long)nr;
	if (!ok)
		ksft_print_msg("%zu calls, %ld of %zu pages moved\n", calls, n, nr);
	ok &= right("moved", base, nr * stride, SEED);
	tlb_rs_fill(base, nr * stride * psize, SEED + 1);
	ok &= right("rewritten", base, nr * stride, SEED + 1);
	munmap(base, nr * stride * psize);
	free(pages);
	free(nodes);
	free(status);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

static int run_scattered(void)
{
	return move("scattered", NR_MOVED, STRIDE, NR_MOVED);
}

static int run_single(void)
{
	return move("single", NR_MOVED, 1, 1);
}

static int run_huge(void)
{
	size_t pages = (64UL << 20) / psize;

	return move("huge", pages, 1, pages);
}

/* Kills the first child, so many microseconds after it was told to. */
static struct {
	pthread_t id;
	int start[2];
	unsigned int delay;
} killer;

static void *kill_later(void *arg)
{
	char c;

	(void)arg;
	tlb_rs_pin_cpu(tlb_rs_nr_cpus() - 1);
	if (read(killer.start[0], &c, 1) == 1) {
		tlb_rs_sleep_us(killer.delay);
		kill(child[0], SIGKILL);
	}
	return NULL;
}

/*
 * Compaction moves pages towards the end of a zone, into blocks that are neither
 * full nor free: there shall be some on both sides of the child's memory.
 */
static char *spacer(int node)
{
	char *base = area(SPACER / psize, node);
	size_t off;

	for (off = 0; off < SPACER; off += psize)
		base[off] = 1;
	return base;
}

static void make_holes(char *base)
{
	size_t off;

	for (off = 0; off < SPACER; off += SZ_2M)
		madvise(base + off + psize, SZ_2M - psize, MADV_DONTNEED);
}

/* A child is killed in the middle of the time that moving its pages takes. */
static int run_killed(const char *name, bool compact)
{
	int from = memory_node(0), to = memory_node(1), status = 0, round;
	size_t nr = compact ? 8192 : 2048;
	struct tlb_rs_counters c;
	char file[64], region[40], *below, *above;
	int *nodes, *where;
	int ret = KSFT_PASS;
	void **pages;
	long long n;
	char *base;

	if (to < 0) {
		ksft_print_msg("needs memory on 2 nodes\n");
		return KSFT_SKIP;
	}
	snprintf(file, sizeof(file), "/sys/devices/system/node/node%d/compact", from);
	base = area(nr, from);
	pages = pages_of(base, nr, 1);
	nodes = filled(nr, to);
	where = filled(nr, -1);

	/* First without a kill: that is how long it takes with this setting of the switch. */
	for (round = 0; round < 2 && ret == KSFT_PASS; round++) {
		below = compact ? spacer(from) : NULL;
		children_start(base, nr, 1, true);
		above = compact ? spacer(from) : NULL;
		if (compact) {
			make_holes(below);
			make_holes(above);
		}
		if (pipe(killer.start))
			die("pipe");
		killer.delay = round ? c.ns / 2000 : 0;
		if (pthread_create(&killer.id, NULL, kill_later, NULL))
			die("killer");
		n = tlb_rs_vmstat_read("pgmigrate_success");

		tlb_rs_begin(&c);
		if (round && write(killer.start[1], "", 1) != 1)
			die("killer");
		if (compact)
			tlb_rs_write_file(file, "1");
		else
			tlb_rs_move_pages(child[0], nr, pages, nodes, where);
		if (round)
			pthread_join(killer.id, NULL);
		if (round && waitpid(child[0], &status, 0) == child[0])
			nr_children = 0;
		tlb_rs_end(&c);

		close(killer.start[1]);
		if (!round)
			pthread_join(killer.id, NULL);
		close(killer.start[0]);
		n = tlb_rs_vmstat_read("pgmigrate_success") - n;
		snprintf(region, sizeof(region), "%s%s", name, round ? "" : "_whole");
		record(region, n, &c);
		if (compact) {
			munmap(below, SPACER);
			munmap(above, SPACER);
		}
		if (!children_end()) {
			ret = KSFT_FAIL;
		} else if (!round && n < (long long)nr / 32) {
			ksft_print_msg("only %lld of %zu pages moved\n", n, nr);
			ret = compact ? KSFT_SKIP : KSFT_FAIL;
		} else if (round && (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)) {
			ksft_print_msg("the child was not killed: status 0x%x\n", status);
			ret = KSFT_FAIL;
		}
	}
	munmap(base, nr * psize);
	free(pages);
	free(nodes);
	free(where);
	return ret;
}

static int run_exit(void)
{
	return run_killed("exit", false);
}

static int run_compact(void)
{
	return run_killed("compact", true);
}

/* A task: says that it is ready, waits, moves every third page of its own, says so. */
static int task(int nr, int from, int to, int up, int down)
{
	int *nodes = filled(NR_MOVED, to), *status = filled(NR_MOVED, -1);
	char *base = area(NR_MOVED * STRIDE, from);
	void **pages = pages_of(base, NR_MOVED, STRIDE);
	long n = 0;
	size_t i;
	char c;

	tlb_rs_pin_cpu(nr % tlb_rs_nr_cpus());
	tlb_rs_fill(base, NR_MOVED * STRIDE * psize, SEED + nr);
	if (write(up, "", 1) != 1 || read(down, &c, 1) != 1)
		return 1;
	if (tlb_rs_move_pages(0, NR_MOVED, pages, nodes, status))
		return 2;
	if (write(up, "", 1) != 1 || read(down, &c, 1) != 1)
		return 3;
	for (i = 0; i < NR_MOVED; i++)
		n += status[i] == to;
	if (n < NR_MOVED - NR_MOVED / 64)
		return 4;
	return tlb_rs_check(base, NR_MOVED * STRIDE * psize, SEED + nr) ? 5 : 0;
}

static int run_tasks(void)
{
	int from = memory_node(0), to = memory_node(1), up[2], down[2], status, i;
	struct tlb_rs_counters c;
	bool ok = true;
	pid_t pid[4];
	char b[4];

	if (to < 0) {
		ksft_print_msg("needs memory on 2 nodes\n");
		return KSFT_SKIP;
	}
	if (pipe(up) || pipe(down))
		die("pipe");
	fflush(stdout);
	for (i = 0; i < 4; i++) {
		pid[i] = fork();
		if (pid[i] < 0)
			die("fork");
		if (!pid[i]) {
			close(down[1]);
			close(up[0]);
			_exit(task(i, from, to, up[1], down[0]));
		}
	}
	close(up[1]);
	for (i = 0; i < 4; i++)
		ok &= read(up[0], b, 1) == 1;
	tlb_rs_drain_lru();

	tlb_rs_begin(&c);
	ok &= write(down[1], "....", 4) == 4;
	for (i = 0; i < 4; i++)
		ok &= read(up[0], b, 1) == 1;
	tlb_rs_end(&c);
	record("tasks", 4 * NR_MOVED, &c);

	ok &= write(down[1], "....", 4) == 4;
	for (i = 0; i < 4; i++) {
		if (waitpid(pid[i], &status, 0) != pid[i] || status) {
			ksft_print_msg("task %d: status 0x%x\n", i, status);
			ok = false;
		}
	}
	close(up[0]);
	close(down[0]);
	close(down[1]);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

static int run_swapin(void)
{
	const size_t nr = 2048;
	char *base = area(nr, -1);
	void **pages = pages_of(base, nr, 1);
	struct tlb_rs_counters c;
	size_t i, left;
	bool ok;

	shuffle(pages, nr);
	tlb_rs_fill(base, nr * psize, SEED);
	tlb_rs_drain_lru();
	ok = !madvise(base, nr * psize, MADV_PAGEOUT);
	left = tlb_rs_count_pagemap(base, nr, PM_PRESENT);
	if (!ok || left > nr / 64) {
		ksft_print_msg("%zu of %zu pages are still mapped\n", left, nr);
		ok = false;
	}

	tlb_rs_begin(&c);
	for (i = 0; i < nr; i++)
		__atomic_load_n((char *)pages[i], __ATOMIC_RELAXED);
	tlb_rs_end(&c);
	record("swapin", nr - left, &c);

	ok &= right("read back", base, nr, SEED);
	tlb_rs_fill(base, nr * psize, SEED + 1);
	ok &= right("rewritten", base, nr, SEED + 1);
	munmap(base, nr * psize);
	free(pages);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

static const struct {
	const char *name;
	int (*run)(void);
	bool swap;
} cases[] = {
	{ "children", run_children, true },
	{ "reclaim", run_reclaim, true },
	{ "scattered", run_scattered, false },
	{ "single", run_single, false },
	{ "huge", run_huge, false },
	{ "exit", run_exit, false },
	{ "compact", run_compact, false },
	{ "tasks", run_tasks, false },
	{ "swapin", run_swapin, true },
	{ "shared", run_shared, true },
};

/* All repetitions of a case are one test: the first that fails decides. */
static int run_case(size_t nr)
{
	int i, ret = KSFT_PASS;

	if (cases[nr].swap && !tlb_rs_has_swap()) {
		ksft_print_msg("no swap\n");
		return KSFT_SKIP;
	}
	for (i = 0; i < tlb_rs_repeats(pairs) && ret == KSFT_PASS; i++) {
		tlb_rs_repeat_begin(pairs, i);
		ret = cases[nr].run();
	}
	return ret;
}

static void help(const char *prog)
{
	printf("usage: %s [--case NAME]... [--pairs P]\n", prog);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "case", required_argument, NULL, 'c' },
		{ "pairs", required_argument, NULL, 'p' },
		{ "help", no_argument, NULL, 'h' },
		{ }
	};
	unsigned int wanted = 0;
	size_t i;
	int opt;

	ksft_print_header();
	while ((opt = getopt_long(argc, argv, "c:p:h", options, NULL)) != -1) {
		switch (opt) {
		case 'c':
			for (i = 0; i < ARRAY_SIZE(cases); i++) {
				if (!strcmp(optarg, cases[i].name))
					break;
			}
			if (i == ARRAY_SIZE(cases))
				ksft_exit_fail_msg("no case '%s'\n", optarg);
			wanted |= 1U << i;
			break;
		case 'p':
			pairs = tlb_rs_number(optarg, 0, 1000);
			break;
		case 'h':
			help(argv[0]);
			return 0;
		default:
			help(argv[0]);
			return KSFT_FAIL;
		}
	}
	if (!wanted)
		wanted = (1U << ARRAY_SIZE(cases)) - 1;

	psize = getpagesize();
	tlb_rs_pin_cpu(0);
	tlb_rs_quiet();

	ksft_set_plan(__builtin_popcount(wanted));
	for (i = 0; i < ARRAY_SIZE(cases); i++) {
		if (wanted & (1U << i))
			ksft_test_result_report(run_case(i), "worst %s\n", cases[i].name);
	}
	ksft_finished();
}
