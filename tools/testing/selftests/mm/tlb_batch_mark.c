// SPDX-License-Identifier: GPL-2.0
/*
 * The mark of an mm that is owed a flush, in rounds:
 *
 *   M (CPU 0)                     Z (CPU 2)                  R (CPU 1)
 *   moves 256 pages, P the last:                             read P all the time,
 *   clears P's PTE, marks the                                has it in its TLB
 *   mm, unlocks the page table    P is a migration entry:
 *   (delay)                       MADV_DONTNEED P
 *                                 store new to P, through
 *                                 the kernel: a new page
 *                                 flag = round, release      (acquire) v = P
 *   issues what it owes
 *
 * When MADV_DONTNEED returns, nobody may see the old page any more. It finds no
 * present PTE, so it has no flush of its own: only the mark tells it that
 * another task owes one (flush_tlb_batched_pending()), and R must read the new
 * value. Without the mark (skip_hook "mark") R reads the old page.
 *
 * The window is as wide as fault injection makes it (debugfs delay_us, slept
 * after the page table was unlocked and before anything is issued).
 *
 * P must be in R's TLB when its PTE is cleared. The beginning of the move
 * disturbs R's CPU, and invalidating a page may cost its neighbours their
 * entries, so the pages before P only take time: they are PROT_NONE, no TLB
 * can hold them, and nothing is issued (or delayed) for them.
 */
#define _GNU_SOURCE
#include "tlb_rs_harness.h"

#define NR_PAGES	256

/* What R and Z exchange is in pages of their own, which are not moved. */
static struct shared {
	__u64 flag;
	char pad0[4096 - sizeof(__u64)];
	__u64 ack;
	__u64 stale;
	char pad1[4096 - 2 * sizeof(__u64)];
	bool stop;
} *sh;

static const __u64 *page_p;
static char *base;
static size_t psize;
static int mem;

static __u64 old_value(__u64 round)
{
	return 2 * round;
}

static __u64 new_value(__u64 round)
{
	return 2 * round + 1;
}

static void *reader(void *arg)
{
	__u64 round, v;

	(void)arg;
	tlb_rs_pin_cpu(1);
	__atomic_store_n(&sh->ack, 0, __ATOMIC_RELEASE);
	for (round = 1;; round++) {
		while (__atomic_load_n(&sh->flag, __ATOMIC_ACQUIRE) != round) {
			__atomic_load_n(page_p, __ATOMIC_RELAXED);
			if (__atomic_load_n(&sh->stop, __ATOMIC_RELAXED))
				return NULL;
		}
		v = __atomic_load_n(page_p, __ATOMIC_RELAXED);
		sh->stale += v != new_value(round);
		__atomic_store_n(&sh->ack, round, __ATOMIC_RELEASE);
	}
}

static long move_to(int node)
{
	static void *addrs[NR_PAGES];
	static int status[NR_PAGES];
	static int nodes[NR_PAGES];
	size_t i;

	for (i = 0; i < NR_PAGES; i++) {
		addrs[i] = base + i * psize;
		nodes[i] = node;
	}
	return tlb_rs_move_pages(0, NR_PAGES, addrs, nodes, status);
}

static bool move_done;

static void *mover(void *arg)
{
	(void)arg;
	tlb_rs_pin_cpu(0);
	move_to(1);
	__atomic_store_n(&move_done, true, __ATOMIC_RELEASE);
	return NULL;
}

static void store(__u64 val)
{
	if (pwrite(mem, &val, sizeof(val), (unsigned long)page_p) != sizeof(val))
		ksft_exit_fail_msg("/proc/self/mem: %s\n", strerror(errno));
}

/* False if Z came too late for the window. */
static bool one_round(__u64 round, long delay_us)
{
	bool in_time;
	pthread_t id;

	/* All on node 0 again: P was allocated anew in the last round. */
	tlb_rs_delay_none();
	move_to(0);
	store(old_value(round));
	if (!tlb_rs_delay(TLB_BATCH_DELAY, delay_us))
		ksft_exit_fail_msg("cannot write %s\n", TLB_BATCH_DELAY);

	move_done = false;
	if (pthread_create(&id, NULL, mover, NULL))
		ksft_exit_fail_msg("cannot start the mover\n");
	while (!(tlb_rs_pagemap(page_p) & PM_SWAP)) {
		if (__atomic_load_n(&move_done, __ATOMIC_ACQUIRE))
			break;
	}
	if (madvise(base + (NR_PAGES - 1) * psize, psize, MADV_DONTNEED))
		ksft_exit_fail_msg("MADV_DONTNEED: %s\n", strerror(errno));
	store(new_value(round));
	in_time = !__atomic_load_n(&move_done, __ATOMIC_ACQUIRE);
	__atomic_store_n(&sh->flag, round, __ATOMIC_RELEASE);

	while (__atomic_load_n(&sh->ack, __ATOMIC_ACQUIRE) != round)
		;
	pthread_join(id, NULL);
	return in_time;
}

FIXTURE(tlb_batch_mark) {
	const char *skip;
	long rounds;
	long delay_us;
	__u64 least_stale;
	__u64 most_stale;
};

FIXTURE_SETUP(tlb_batch_mark)
{
	tlb_rs_undo();
	self->skip = tlb_rs_skip();
	self->rounds = tlb_rs_env_number("TLB_ROUNDS", 50, 1, 1000000);
	self->delay_us = tlb_rs_env_number("TLB_DELAY", 100000, 1, 1000000);
	self->least_stale = tlb_rs_env_number("TLB_EXPECT", 0, 0, 1000000);
	self->most_stale = self->least_stale ? self->rounds : 0;
	if (tlb_rs_hook_removed(self->skip) && !tlb_rs_skip_hooks(self->skip))
		SKIP(return, "hook '%s' cannot be removed on this kernel", self->skip);
	tlb_rs_quiet();
}

FIXTURE_TEARDOWN_PARENT(tlb_batch_mark)
{
	tlb_rs_tear_down();
}

TEST_F_TIMEOUT(tlb_batch_mark, dontneed, TLB_RS_TIMEOUT_S)
{
	long late = 0, round;
	pthread_t id;

	base = tlb_rs_mmap(NR_PAGES * psize, SZ_2M);
	madvise(base, NR_PAGES * psize, MADV_NOHUGEPAGE);
	memset(base, 0, NR_PAGES * psize);
	/* Not where a write to /proc/self/mem has its data in its own buffer. */
	page_p = (__u64 *)(base + (NR_PAGES - 1) * psize + psize / 2);
	ASSERT_EQ(0, mprotect(base, (NR_PAGES - 1) * psize, PROT_NONE));
	mem = tlb_rs_open("/proc/self/mem", O_RDWR);
	sh = (struct shared *)tlb_rs_mmap(sizeof(*sh), psize);
	sh->ack = ~0ULL;
	tlb_rs_pin_cpu(2);
	ASSERT_EQ(0, pthread_create(&id, NULL, reader, NULL));
	while (__atomic_load_n(&sh->ack, __ATOMIC_ACQUIRE))
		;

	for (round = 1; round <= self->rounds; round++)
		late += !one_round(round, self->delay_us);
	__atomic_store_n(&sh->stop, true, __ATOMIC_RELAXED);
	pthread_join(id, NULL);

	printf("{\"test\":\"mark\",\"tlb_batch\":%s,\"skip\":\"%s\",\"rounds\":%ld,",
	       tlb_batch_json(), self->skip, self->rounds);
	printf("\"late\":%ld,\"stale\":%llu}\n", late, sh->stale);
	/* Rounds outside the window prove nothing. */
	EXPECT_GE(self->rounds / 2, late);
	EXPECT_LE(self->least_stale, sh->stale);
	EXPECT_GE(self->most_stale, sh->stale);
}

static const char *missing(void)
{
	int on = 0;

	if (tlb_rs_nr_cpus() < 3)
		return "needs three CPUs";
	if ((tlb_rs_memory_nodes() & 3) != 3)
		return "needs memory on nodes 0 and 1";
	if (access(TLB_BATCH_DELAY, R_OK))
		return "no fault injection: " TLB_BATCH_DELAY " is absent";
	if (!tlb_batch_get(&on) || on <= 0)
		return "the window is only as wide with vm.tlb_batch = 1";
	return NULL;
}

int main(int argc, char **argv)
{
	psize = getpagesize();
	tlb_rs_skip_all(missing());
	return test_harness_run(argc, argv);
}
