// SPDX-License-Identifier: GPL-2.0
/*
 * An address space that goes away while another task owes a flush of it, in
 * rounds:
 *
 *   M (CPU 0)                            the children (other CPUs)
 *   moves 64 pages that it shares        have read the pages, so that their
 *   with its children since fork():      CPUs must be told
 *   clears the PTEs of all of them
 *   (flush_delay_us)                     are killed and reaped, and their mms
 *                                        freed
 *   issues what it owes of all of them
 *
 * Nothing but the batch may keep the mms of the children: move_pages() holds the
 * caller's own only, and rmap no more than it takes to clear the PTEs. So the
 * batch has to hold a reference of each mm that it still owes something of.
 * Without it (skip_hook "hold") KASAN reports the use of a freed mm, that is, the
 * kernel fails this test and not the program. The program says how many rounds
 * were in the window.
 *
 * With one child, and with many: by default (TLB_CHILDREN) more than a batch can
 * hold. What is owed of the others is issued in time instead.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "tlb_rs_harness.h"

#define NR_PAGES	64
#define MAX_CHILDREN	32
#define SEED		5

static char *base;
static size_t len;

/* Written by the children. */
static int *ready;

static void child(int nr)
{
	size_t off;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	tlb_rs_pin_cpu(1 + nr % (tlb_rs_nr_cpus() - 1));
	for (off = 0; off < len; off += getpagesize())
		__atomic_load_n(base + off, __ATOMIC_RELAXED);
	__atomic_fetch_add(ready, 1, __ATOMIC_RELEASE);
	/* A fault on a migration entry would outlast SIGKILL. */
	for (;;)
		;
}

static struct mover {
	pthread_t thread;
	int node;
	size_t moved;
	bool done;
} mover;

static void *mover_thread(void *arg)
{
	static void *addrs[NR_PAGES];
	static int status[NR_PAGES];
	static int nodes[NR_PAGES];
	size_t i;

	(void)arg;
	tlb_rs_pin_cpu(0);
	for (i = 0; i < NR_PAGES; i++) {
		addrs[i] = base + i * getpagesize();
		nodes[i] = mover.node;
		status[i] = -1;
	}
	syscall(SYS_move_pages, 0, NR_PAGES, addrs, nodes, status, MPOL_MF_MOVE_ALL);
	mover.moved = 0;
	for (i = 0; i < NR_PAGES; i++)
		mover.moved += status[i] == mover.node;
	__atomic_store_n(&mover.done, true, __ATOMIC_RELEASE);
	return NULL;
}

/*
 * Is the last page a migration entry in @pid? The file is closed at once: an
 * open one is a reference to the mm.
 */
static bool unmapped(pid_t pid)
{
	char path[64];
	__u64 ent = 0;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/pagemap", pid);
	fd = tlb_rs_open(path, O_RDONLY);
	if (pread(fd, &ent, sizeof(ent),
		  (unsigned long)(base + len) / getpagesize() * sizeof(ent) - sizeof(ent)) !=
	    sizeof(ent))
		ent = 0;
	close(fd);
	return ent & PM_SWAP;
}

/* A CPU that went idle after a child still borrows the page tables of it. */
static void leave_lazy_tlbs(void)
{
	int cpu;

	for (cpu = 1; cpu < tlb_rs_nr_cpus(); cpu++)
		tlb_rs_pin_cpu(cpu);
}

/* True if the children were gone before the flush. */
static bool one_round(int nr_children, int node, size_t *moved)
{
	pid_t pids[MAX_CHILDREN];
	bool in_time;
	int i;

	*ready = 0;
	for (i = 0; i < nr_children; i++) {
		pids[i] = fork();
		if (pids[i] < 0)
			ksft_exit_fail_msg("fork: %s\n", strerror(errno));
		if (!pids[i])
			child(i);
	}
	while (__atomic_load_n(ready, __ATOMIC_ACQUIRE) < nr_children)
		tlb_rs_sleep_us(1000);

	mover.node = node;
	mover.done = false;
	if (pthread_create(&mover.thread, NULL, mover_thread, NULL))
		ksft_exit_fail_msg("cannot start the mover\n");
	for (i = 0; i < nr_children; i++) {
		while (!unmapped(pids[i]) && !__atomic_load_n(&mover.done, __ATOMIC_ACQUIRE))
			;
	}
	for (i = 0; i < nr_children; i++)
		kill(pids[i], SIGKILL);
	for (i = 0; i < nr_children; i++)
		waitpid(pids[i], NULL, 0);
	leave_lazy_tlbs();
	in_time = !__atomic_load_n(&mover.done, __ATOMIC_ACQUIRE);
	pthread_join(mover.thread, NULL);
	*moved += mover.moved;
	return in_time;
}

FIXTURE(tlb_batch_exit) {
	const char *skip;
	long rounds;
	long children;
};

FIXTURE_VARIANT(tlb_batch_exit) {
	bool many;
};

FIXTURE_VARIANT_ADD(tlb_batch_exit, one) {
	.many = false,
};

FIXTURE_VARIANT_ADD(tlb_batch_exit, many) {
	.many = true,
};

FIXTURE_SETUP(tlb_batch_exit)
{
	long delay_us = tlb_rs_env_number("TLB_DELAY", 1000000, 1, 10000000);

	tlb_rs_undo();
	self->skip = tlb_rs_skip();
	self->rounds = tlb_rs_env_number("TLB_ROUNDS", 5, 1, 100000);
	self->children = variant->many ? tlb_rs_env_number("TLB_CHILDREN", 6, 1, MAX_CHILDREN) : 1;
	if (tlb_rs_hook_removed(self->skip) && !tlb_rs_skip_hooks(self->skip))
		SKIP(return, "hook '%s' cannot be removed on this kernel", self->skip);
	if (!tlb_rs_delay(TLB_BATCH_FLUSH_DELAY, delay_us))
		SKIP(return, "no fault injection: %s is absent", TLB_BATCH_FLUSH_DELAY);
	tlb_rs_quiet();
}

FIXTURE_TEARDOWN_PARENT(tlb_batch_exit)
{
	tlb_rs_tear_down();
}

TEST_F_TIMEOUT(tlb_batch_exit, before_flush, TLB_RS_TIMEOUT_S)
{
	long i, in_time = 0;
	size_t moved = 0, bad;

	len = NR_PAGES * getpagesize();
	base = tlb_rs_mmap(len, SZ_2M);
	madvise(base, len, MADV_NOHUGEPAGE);
	tlb_rs_bind_node(base, len, 0);
	tlb_rs_fill(base, len, SEED);
	ready = mmap(NULL, getpagesize(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		     -1, 0);
	ASSERT_NE(MAP_FAILED, ready);

	for (i = 0; i < self->rounds; i++)
		in_time += one_round(self->children, !(i & 1), &moved);
	bad = tlb_rs_check(base, len, SEED);

	printf("{\"test\":\"exit\",\"tlb_batch\":%s,\"skip\":\"%s\",\"rounds\":%ld,",
	       tlb_batch_json(), self->skip, self->rounds);
	printf("\"children\":%ld,\"in_time\":%ld,\"pages_moved\":%zu,\"bad\":%zu}\n",
	       self->children, in_time, moved, bad);
	EXPECT_LE(NR_PAGES * (size_t)self->rounds / 2, moved);
	EXPECT_EQ(0, bad);
	/* Rounds outside the window prove nothing. */
	EXPECT_LE(self->rounds / 2 ?: 1, in_time);
}

static const char *missing(void)
{
	int on = 0;

	if (tlb_rs_nr_cpus() < 2)
		return "needs two CPUs";
	if ((tlb_rs_memory_nodes() & 3) != 3)
		return "needs memory on nodes 0 and 1";
	if (!tlb_batch_get(&on) || on <= 0)
		return "nothing is owed unless vm.tlb_batch is 1";
	return access(TLB_BATCH_FLUSH_DELAY, W_OK) ?
	       "no fault injection: " TLB_BATCH_FLUSH_DELAY " is absent" : NULL;
}

int main(int argc, char **argv)
{
	tlb_rs_skip_all(missing());
	return test_harness_run(argc, argv);
}
