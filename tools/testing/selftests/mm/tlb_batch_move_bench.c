// SPDX-License-Identifier: GPL-2.0
/*
 * Moves N neighbouring base pages from node 0 to node 1 with move_pages(2),
 * once mapped writable and once read-only, and checks the status of each page
 * and all contents, also after the way back. Only the way there is a measured
 * region.
 */
#define _GNU_SOURCE
#include <getopt.h>

#include "tlb_rs.h"

static size_t nr_pages = 4096;
static int pairs;
static int nr_readers;
static bool touch;
static size_t psize;

static void **addrs;
static int *nodes;
static int *status;

static struct tlb_rs_readers readers;

/* One call for all pages, outside of any region. */
static long move_to(char *base, int node)
{
	size_t i;

	for (i = 0; i < nr_pages; i++) {
		addrs[i] = base + i * psize;
		nodes[i] = node;
		status[i] = -1;
	}
	return tlb_rs_move_pages(0, nr_pages, addrs, nodes, status);
}

/* The pages that are not on @node according to move_pages() itself. */
static size_t not_on(char *base, int node)
{
	size_t i, n = 0;

	for (i = 0; i < nr_pages; i++)
		addrs[i] = base + i * psize;
	if (tlb_rs_move_pages(0, nr_pages, addrs, NULL, status))
		return nr_pages;
	for (i = 0; i < nr_pages; i++)
		n += status[i] != node;
	return n;
}

static bool check(const char *when, char *base, int node)
{
	size_t bad = tlb_rs_check(base, nr_pages * psize, 3);
	size_t away = not_on(base, node);

	if (bad || away)
		ksft_print_msg("%s: %zu wrong words, %zu pages not on node %d\n",
			       when, bad, away, node);
	return !bad && !away;
}

static bool move_once(bool readonly)
{
	const char *name = readonly ? "move_ro" : "move_rw";
	size_t len = nr_pages * psize;
	struct tlb_rs_counters c;
	size_t i, failed = 0;
	bool ok = false;
	char extra[80];
	char *base;
	long ret;

	base = tlb_rs_mmap(len, SZ_2M);
	madvise(base, len, MADV_NOHUGEPAGE);
	if (!tlb_rs_bind_node(base, len, 0)) {
		ksft_print_msg("mbind: %s\n", strerror(errno));
		goto out;
	}
	tlb_rs_fill(base, len, 3);
	if (readonly && mprotect(base, len, PROT_READ)) {
		ksft_print_msg("mprotect: %s\n", strerror(errno));
		goto out;
	}
	if (!check("before", base, 0))
		goto out;

	/* Touched here, so that they do not fault within the region. */
	for (i = 0; i < nr_pages; i++) {
		addrs[i] = base + i * psize;
		nodes[i] = 1;
		status[i] = -1;
	}
	snprintf(extra, sizeof(extra), ",\"pages\":%zu,\"readers\":%d", nr_pages, nr_readers);

	tlb_rs_readers_start(&readers, nr_readers, touch, base, len);
	tlb_rs_begin(&c);
	ret = tlb_rs_move_pages(0, nr_pages, addrs, nodes, status);
	tlb_rs_end(&c);
	tlb_rs_readers_end(&readers);
	tlb_rs_json_region(name, extra, &c);

	for (i = 0; i < nr_pages; i++)
		failed += status[i] != 1;
	if (ret || failed) {
		ksft_print_msg("move_pages: %ld (%s), %zu pages failed\n", ret,
			       ret < 0 ? strerror(errno) : "-", failed);
		goto out;
	}
	ok = check("moved", base, 1);
	if (move_to(base, 0)) {
		ksft_print_msg("cannot move the pages back\n");
		ok = false;
	}
	ok &= check("back", base, 0);
	if (!readonly) {
		tlb_rs_fill(base, len, 4);
		ok &= !tlb_rs_check(base, len, 4);
	}
out:
	munmap(base, len);
	return ok;
}

static void run_variant(bool readonly)
{
	bool ok = true;
	int i;

	for (i = 0; i < tlb_rs_repeats(pairs) && ok; i++) {
		tlb_rs_repeat_begin(pairs, i);
		ok = move_once(readonly);
	}
	ksft_test_result(ok, "move_bench %s\n", readonly ? "read-only" : "writable");
}

static void help(const char *prog)
{
	printf("usage: %s [option]...\n"
	       "  [--pages N] [--pairs P] [--readers K [--touch]] [--variant ro|rw]\n",
	       prog);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "pages", required_argument, NULL, 'n' },
		{ "pairs", required_argument, NULL, 'p' },
		{ "readers", required_argument, NULL, 'r' },
		{ "touch", no_argument, NULL, 'T' },
		{ "variant", required_argument, NULL, 'v' },
		{ "help", no_argument, NULL, 'h' },
		{ }
	};
	bool ro = true, rw = true;
	int opt;

	ksft_print_header();
	while ((opt = getopt_long(argc, argv, "n:p:r:Tv:h", options, NULL)) != -1) {
		switch (opt) {
		case 'n':
			nr_pages = tlb_rs_number(optarg, 1, 1 << 16);
			break;
		case 'p':
			pairs = tlb_rs_number(optarg, 0, 1000);
			break;
		case 'r':
			nr_readers = tlb_rs_number(optarg, 0, TLB_RS_MAX_READERS);
			break;
		case 'T':
			touch = true;
			break;
		case 'v':
			ro = !strcmp(optarg, "ro");
			rw = !strcmp(optarg, "rw");
			if (!ro && !rw)
				ksft_exit_fail_msg("no variant '%s'\n", optarg);
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
	if ((tlb_rs_memory_nodes() & 3) != 3)
		ksft_exit_skip("needs memory on nodes 0 and 1\n");
	addrs = calloc(nr_pages, sizeof(*addrs));
	nodes = calloc(nr_pages, sizeof(*nodes));
	status = calloc(nr_pages, sizeof(*status));
	if (!addrs || !nodes || !status)
		ksft_exit_fail_msg("no memory\n");
	tlb_rs_pin_cpu(0);
	tlb_rs_quiet();

	ksft_set_plan(ro + rw);
	if (ro)
		run_variant(true);
	if (rw)
		run_variant(false);
	ksft_finished();
}
