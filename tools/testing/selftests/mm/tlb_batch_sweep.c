// SPDX-License-Identifier: GPL-2.0
/*
 * What a TLB invalidation by address, one of an address space and a refill
 * cost. mprotect() of N pages invalidates them one by one, or in ranges, up to
 * the limit above which the kernel invalidates the whole address space; after
 * that, a working set must be translated again. Each N is a measured region,
 * in which the calls and the reading of the working set are timed on their own.
 */
#define _GNU_SOURCE
#include <getopt.h>

#include "tlb_rs.h"

#define MAX_PAGES	2048

static size_t calls = 32;
static size_t set_pages = 2048;
static size_t psize;

static void read_set(const char *set)
{
	size_t i;

	for (i = 0; i < set_pages; i++)
		__atomic_load_n(set + i * psize, __ATOMIC_RELAXED);
}

/* @nr neighbouring pages change their protection, back and forth; 0: nothing does. */
static bool sweep(char *base, const char *set, size_t nr)
{
	__u64 change = 0, refill = 0, begin;
	struct tlb_rs_counters c;
	char extra[160];
	bool ok = true;
	size_t i;

	read_set(set);
	tlb_rs_begin(&c);
	for (i = 0; i < calls; i++) {
		int prot = PROT_READ | (i & 1 ? PROT_WRITE : 0);

		begin = tlb_rs_now_ns();
		ok &= !nr || !mprotect(base, nr * psize, prot);
		change += tlb_rs_now_ns() - begin;
		begin = tlb_rs_now_ns();
		read_set(set);
		refill += tlb_rs_now_ns() - begin;
	}
	tlb_rs_end(&c);
	snprintf(extra, sizeof(extra),
		 ",\"pages\":%zu,\"units\":%zu,\"set_pages\":%zu,\"change_ns\":%llu,\"refill_ns\":%llu",
		 nr, calls, set_pages, change / calls, refill / calls);
	tlb_rs_json_region("sweep", extra, &c);
	return ok;
}

static void help(const char *prog)
{
	printf("usage: %s [--calls N] [--set PAGES]\n", prog);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "calls", required_argument, NULL, 'c' },
		{ "set", required_argument, NULL, 's' },
		{ "help", no_argument, NULL, 'h' },
		{ }
	};
	static const size_t pages[] = {
		0, 1, 8, 32, 64, 128, 256, 384, 511, 512, 768, 1024, 2048
	};
	bool ok = true;
	char *base, *set;
	size_t i;
	int opt;

	ksft_print_header();
	while ((opt = getopt_long(argc, argv, "c:s:h", options, NULL)) != -1) {
		switch (opt) {
		case 'c':
			calls = tlb_rs_number(optarg, 2, 100000);
			break;
		case 's':
			set_pages = tlb_rs_number(optarg, 1, 1 << 16);
			break;
		case 'h':
			help(argv[0]);
			return 0;
		default:
			help(argv[0]);
			return KSFT_FAIL;
		}
	}

	psize = getpagesize();
	tlb_rs_pin_cpu(0);
	tlb_rs_quiet();
	base = tlb_rs_mmap(MAX_PAGES * psize, SZ_2M);
	set = tlb_rs_mmap(set_pages * psize, SZ_2M);
	madvise(base, MAX_PAGES * psize, MADV_NOHUGEPAGE);
	madvise(set, set_pages * psize, MADV_NOHUGEPAGE);
	tlb_rs_fill(base, MAX_PAGES * psize, 5);
	tlb_rs_fill(set, set_pages * psize, 6);

	ksft_set_plan(1);
	for (i = 0; i < ARRAY_SIZE(pages) && ok; i++)
		ok = sweep(base, set, pages[i]);
	ok &= !tlb_rs_check(base, MAX_PAGES * psize, 5);
	ok &= !tlb_rs_check(set, set_pages * psize, 6);
	ksft_test_result(ok, "sweep\n");
	ksft_finished();
}
