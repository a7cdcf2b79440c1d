// SPDX-License-Identifier: GPL-2.0
/*
 * A litmus test for lost TLB flushes, in rounds:
 *
 *   W (CPU 0)                            R (CPU 1)
 *   move 256 pages, P the last           read P all the time
 *   store X to P, through the kernel     while (flag != X) read P
 *   flag = X, release                    (acquire) v = P
 *
 * R must read X. With a stale translation it reads the old page, which did not
 * get the store. For the test to be able to fail:
 *
 * - R is pinned and makes no system call, so nothing but the flush under test
 *   and the occasional interrupt empties its TLB;
 * - P comes last, so that R has time to get P into its TLB again after the
 *   move disturbed its CPU (lru_add_drain_all() runs work there);
 * - W stores with pwrite() to /proc/self/mem, so through the new page's linear
 *   address. A plain store of W could go to the old page by a stale entry of
 *   W's own CPU, and both would agree on the wrong page.
 *
 * A stale entry that points to a frame which P gets again later is not stale
 * any more, so some rounds cannot show anything.
 */
#define _GNU_SOURCE
#include <getopt.h>

#include "tlb_rs.h"

#define NR_PAGES	256

/* What both write is in pages of their own, none of which is moved. */
static struct shared {
	__u64 flag;
	char pad0[4096 - sizeof(__u64)];
	__u64 ack;
	__u64 stale;
	__u64 reads;
	char pad1[4096 - 3 * sizeof(__u64)];
	bool stop;
} *sh;

static const __u64 *page_p;
static int reader_cpu = 1;

static void *reader(void *arg)
{
	__u64 round, v;

	(void)arg;
	tlb_rs_pin_cpu(reader_cpu);
	__atomic_store_n(&sh->ack, 0, __ATOMIC_RELEASE);
	for (round = 1;; round++) {
		while (__atomic_load_n(&sh->flag, __ATOMIC_ACQUIRE) != round) {
			__atomic_load_n(page_p, __ATOMIC_RELAXED);
			sh->reads++;
			if (__atomic_load_n(&sh->stop, __ATOMIC_RELAXED))
				return NULL;
		}
		v = __atomic_load_n(page_p, __ATOMIC_RELAXED);
		sh->stale += v != round;
		__atomic_store_n(&sh->ack, round, __ATOMIC_RELEASE);
	}
}

/* W itself may have stale entries, so none of its stores goes through its TLB. */
static void store(int mem, const void *addr, __u64 val)
{
	if (pwrite(mem, &val, sizeof(val), (unsigned long)addr) != sizeof(val))
		ksft_exit_fail_msg("/proc/self/mem: %s\n", strerror(errno));
}

static void help(const char *prog)
{
	printf("usage: %s [option]...\n"
	       "  [--rounds N] [--skip HOOK] [--expect-none | --expect-stale MIN]\n",
	       prog);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "rounds", required_argument, NULL, 'n' },
		{ "skip", required_argument, NULL, 's' },
		{ "expect-stale", required_argument, NULL, 'e' },
		{ "expect-none", no_argument, NULL, '0' },
		{ "help", no_argument, NULL, 'h' },
		{ }
	};
	size_t psize = getpagesize(), len = NR_PAGES * psize, i;
	long rounds = 200, want_stale = 0, failed = 0;
	const char *skip = "none";
	void *addrs[NR_PAGES];
	int nodes[NR_PAGES];
	int status[NR_PAGES];
	__u64 round;
	pthread_t id;
	char *base;
	int opt;
	int mem;

	ksft_print_header();
	while ((opt = getopt_long(argc, argv, "n:s:e:0h", options, NULL)) != -1) {
		switch (opt) {
		case 'n':
			rounds = tlb_rs_number(optarg, 1, 1000000);
			break;
		case 's':
			skip = optarg;
			break;
		case 'e':
			want_stale = tlb_rs_number(optarg, 1, 1000000);
			break;
		case '0':
			want_stale = 0;
			break;
		case 'h':
			help(argv[0]);
			return 0;
		default:
			help(argv[0]);
			return KSFT_FAIL;
		}
	}

	if (tlb_rs_nr_cpus() < 2)
		ksft_exit_skip("needs two CPUs\n");
	if ((tlb_rs_memory_nodes() & 3) != 3)
		ksft_exit_skip("needs memory on nodes 0 and 1\n");
	if (tlb_rs_hook_removed(skip) && !tlb_rs_skip_hooks(skip))
		ksft_exit_skip("hook '%s' cannot be removed on this kernel\n", skip);

	tlb_rs_quiet();
	base = tlb_rs_mmap(len, SZ_2M);
	madvise(base, len, MADV_NOHUGEPAGE);
	if (!tlb_rs_bind_node(base, len, 0))
		ksft_exit_fail_msg("mbind: %s\n", strerror(errno));
	memset(base, 0, len);
	/* Not where a write to /proc/self/mem has its data in its own buffer. */
	page_p = (__u64 *)(base + (NR_PAGES - 1) * psize + psize / 2);
	for (i = 0; i < NR_PAGES; i++)
		addrs[i] = base + i * psize;
	mem = tlb_rs_open("/proc/self/mem", O_RDWR);

	tlb_rs_pin_cpu(0);
	sh = (struct shared *)tlb_rs_mmap(sizeof(*sh), psize);
	sh->ack = ~0ULL;
	if (pthread_create(&id, NULL, reader, NULL))
		ksft_exit_fail_msg("cannot start the reader\n");
	while (__atomic_load_n(&sh->ack, __ATOMIC_ACQUIRE))
		;

	ksft_set_plan(1);
	for (round = 1; round <= (__u64)rounds; round++) {
		for (i = 0; i < NR_PAGES; i++)
			nodes[i] = round & 1;
		if (tlb_rs_move_pages(0, NR_PAGES, addrs, nodes, status) ||
		    status[NR_PAGES - 1] != (int)(round & 1))
			failed++;
		store(mem, page_p, round);
		__atomic_store_n(&sh->flag, round, __ATOMIC_RELEASE);

		while (__atomic_load_n(&sh->ack, __ATOMIC_ACQUIRE) != round)
			;
	}
	__atomic_store_n(&sh->stop, true, __ATOMIC_RELAXED);
	pthread_join(id, NULL);
	if (tlb_rs_hook_removed(skip))
		tlb_rs_skip_none();

	printf("{\"test\":\"stale_litmus\",\"tlb_batch\":%s,\"skip\":\"%s\",", tlb_batch_json(),
	       skip);
	printf("\"rounds\":%ld,\"stale\":%llu,\"failed\":%ld,\"reads\":%llu}\n",
	       rounds, sh->stale, failed, sh->reads);
	if (failed > rounds / 10) {
		ksft_test_result_fail("stale_litmus: %ld of %ld rounds moved nothing\n",
				      failed, rounds);
	} else if (want_stale) {
		ksft_test_result(sh->stale >= (__u64)want_stale,
				 "stale_litmus: %llu of %ld rounds stale, at least %ld expected\n",
				 sh->stale, rounds, want_stale);
	} else {
		ksft_test_result(!sh->stale,
				 "stale_litmus: %llu of %ld rounds stale, none expected\n",
				 sh->stale, rounds);
	}
	ksft_finished();
}
