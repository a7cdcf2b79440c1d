// SPDX-License-Identifier: GPL-2.0
/*
 * Dirty pages that are reclaimed while they are written to, in rounds:
 *
 *   M (CPU 0)                            the writers (other CPUs)
 *   MADV_PAGEOUT of 31 pages: of each,   add 1 to their own counter in each page,
 *   clears the PTE,                      again and again, and to a copy
 *   flushes,
 *   writes the page to swap,
 *   frees it
 *
 * A dirty PTE means that CPUs may have a writable entry in their TLBs. It has to
 * be gone before the page is written to swap, or a counter is incremented where
 * nobody reads it any more: in the end it is less than its copy.
 *
 * Without the flush before I/O (skip_hook "dirty") this happens on x86_64. arm64
 * invalidates as soon as the PTE is cleared, and an emulated CPU obeys before
 * anybody waits for it, so only a missing invalidation (skip_hook "flush") shows
 * there. Then the pages are freed with writable entries left. So that nobody else
 * gets them, they are not more than reclaim frees at once, and M allocates as many
 * and drops them only when a flush of the whole mm has happened: that of
 * MADV_COLD, which finds the mm marked.
 */
#define _GNU_SOURCE
#include "tlb_rs_harness.h"

#define NR_PAGES	31
#define NR_OTHERS	(4 * NR_PAGES)
#define MAX_WRITERS	15
/* Counters are apart from each other, and from where a freed page has its links. */
#define COUNTER_OFFSET	2048
#define COUNTER_STRIDE	128

static char *base;
static size_t psize;
static int nr_writers;
static bool stop;

static struct writer {
	pthread_t thread;
	int nr;
	__u64 copy[NR_PAGES];
	__u64 sum;		/* so that M knows that something is written */
} writers[MAX_WRITERS];

static __u64 *counter(int page, int writer)
{
	return (__u64 *)(base + page * psize + COUNTER_OFFSET + writer * COUNTER_STRIDE);
}

static void *writer_thread(void *arg)
{
	struct writer *w = arg;
	__u64 *p;
	int i;

	tlb_rs_pin_cpu(1 + w->nr);
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		for (i = 0; i < NR_PAGES; i++) {
			p = counter(i, w->nr);
			__atomic_store_n(p, __atomic_load_n(p, __ATOMIC_RELAXED) + 1,
					 __ATOMIC_RELAXED);
			w->copy[i]++;
		}
		__atomic_store_n(&w->sum, w->sum + NR_PAGES, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* Until each writer has been through all pages. */
static void wait_for_writers(int nr)
{
	int i;

	for (i = 0; i < nr; i++) {
		__u64 sum = __atomic_load_n(&writers[i].sum, __ATOMIC_RELAXED);

		while (__atomic_load_n(&writers[i].sum, __ATOMIC_RELAXED) < sum + 2 * NR_PAGES)
			;
	}
}

FIXTURE(tlb_batch_dirty) {
	const char *skip;
	long rounds;
	long long least_lost;
	long long most_wrong;
};

FIXTURE_SETUP(tlb_batch_dirty)
{
	long delay_us = tlb_rs_env_number("TLB_DELAY", 0, 0, 1000000);

	tlb_rs_undo();
	self->skip = tlb_rs_skip();
	self->rounds = tlb_rs_env_number("TLB_ROUNDS", 50, 1, 1000000);
	self->least_lost = tlb_rs_env_number("TLB_EXPECT", 0, 0, 1000000);
	self->most_wrong = self->least_lost ? NR_PAGES * MAX_WRITERS : 0;
	if (tlb_rs_hook_removed(self->skip) && !tlb_rs_skip_hooks(self->skip))
		SKIP(return, "hook '%s' cannot be removed on this kernel", self->skip);
	if (delay_us && !tlb_rs_delay(TLB_BATCH_FLUSH_DELAY, delay_us))
		SKIP(return, "no fault injection: %s is absent", TLB_BATCH_FLUSH_DELAY);
	tlb_rs_quiet();
	tlb_rs_no_zswap();
	tlb_rs_pin_cpu(0);
}

FIXTURE_TEARDOWN_PARENT(tlb_batch_dirty)
{
	tlb_rs_tear_down();
}

TEST_F_TIMEOUT(tlb_batch_dirty, pageout, TLB_RS_TIMEOUT_S)
{
	long long swapped, wrong = 0, lost = 0, more = 0;
	char *others;
	long round;
	int i, j;

	base = tlb_rs_mmap(NR_PAGES * psize, SZ_2M);
	madvise(base, NR_PAGES * psize, MADV_NOHUGEPAGE);
	/* Nothing that zram compresses: what is written to meanwhile it could not decompress. */
	tlb_rs_fill(base, NR_PAGES * psize, 1);
	others = tlb_rs_mmap(NR_OTHERS * psize, SZ_2M);
	madvise(others, NR_OTHERS * psize, MADV_NOHUGEPAGE);
	for (i = 0; i < nr_writers; i++) {
		writers[i].nr = i;
		for (j = 0; j < NR_PAGES; j++)
			*counter(j, i) = 0;
		ASSERT_EQ(0, pthread_create(&writers[i].thread, NULL, writer_thread, &writers[i]));
	}

	swapped = tlb_rs_vmstat_read("pswpout");
	for (round = 0; round < self->rounds; round++) {
		wait_for_writers(nr_writers);
		tlb_rs_drain_pages();
		ASSERT_EQ(0, madvise(base, NR_PAGES * psize, MADV_PAGEOUT));
		for (i = 0; i < NR_OTHERS; i++)
			others[i * psize] = 1;
		wait_for_writers(nr_writers);
		ASSERT_EQ(0, madvise(base, NR_PAGES * psize, MADV_COLD));
		madvise(others, NR_OTHERS * psize, MADV_DONTNEED);
	}
	swapped = tlb_rs_vmstat_read("pswpout") - swapped;
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	for (i = 0; i < nr_writers; i++)
		pthread_join(writers[i].thread, NULL);

	for (i = 0; i < NR_PAGES; i++) {
		for (j = 0; j < nr_writers; j++) {
			__u64 want = writers[j].copy[i], is = *counter(i, j);

			wrong += is != want;
			if (is < want)
				lost += want - is;
			else
				more += is - want;
		}
	}

	printf("{\"test\":\"dirty\",\"tlb_batch\":%s,\"skip\":\"%s\",\"rounds\":%ld,",
	       tlb_batch_json(), self->skip, self->rounds);
	printf("\"pages_swapped\":%lld,\"counters\":%d,", swapped, NR_PAGES * nr_writers);
	printf("\"wrong\":%lld,\"lost\":%lld,\"more\":%lld}\n", wrong, lost, more);
	/* A page that a writer is just getting back cannot be reclaimed. */
	EXPECT_LE(self->rounds * NR_PAGES / 8, swapped);
	EXPECT_LE(self->least_lost, lost);
	EXPECT_GE(self->most_wrong, wrong);
}

int main(int argc, char **argv)
{
	const char *why = NULL;

	psize = getpagesize();
	nr_writers = tlb_rs_nr_cpus() - 1;
	if (nr_writers > MAX_WRITERS)
		nr_writers = MAX_WRITERS;
	if (nr_writers < 1)
		why = "needs two CPUs";
	else if (!tlb_rs_has_swap())
		why = "needs swap";
	tlb_rs_skip_all(why);
	return test_harness_run(argc, argv);
}
