// SPDX-License-Identifier: GPL-2.0
/*
 * Secondary TLBs: those of devices that use the page tables of a process (SVA).
 * A device learns of an invalidation by arch_invalidate_secondary_tlbs(), which
 * the batch calls when it issues a range. That must have happened before the page
 * is freed.
 *
 * The device is a model in the kernel (debugfs tlb_batch/secondary). It is filled
 * with the translations of a range, the pages are then
 *
 * move     moved to the other node
 * pageout  swapped out
 * lazyfree freed by reclaim
 *
 * and no translation may be left in the model, nor may one have been there when
 * its page was freed. Without the flush (skip_hook "flush") both are the case.
 */
#define _GNU_SOURCE
#include <getopt.h>

#include "tlb_rs.h"

#define NR_PAGES	128
#define SECONDARY	DEBUGFS "tlb_batch/secondary"

struct secondary {
	int translations;
	long invalidations;
	long violations;
};

static char *base;
static size_t psize, len;
static int fd;

/* A fault by the device on each page that the process has. */
static void secondary_fill(void)
{
	char buf[64];
	int n = snprintf(buf, sizeof(buf), "%lx %lx", (unsigned long)base,
			 (unsigned long)base + len);

	if (write(fd, buf, n) != n)
		ksft_exit_fail_msg("%s: %s\n", SECONDARY, strerror(errno));
}

static void secondary_read(struct secondary *s)
{
	char buf[128] = { };

	if (pread(fd, buf, sizeof(buf) - 1, 0) <= 0 ||
	    sscanf(buf, "translations %d invalidations %ld violations %ld", &s->translations,
		   &s->invalidations, &s->violations) != 3)
		ksft_exit_fail_msg("cannot read %s\n", SECONDARY);
}

static void act_move(long round)
{
	static void *addrs[NR_PAGES];
	static int status[NR_PAGES];
	static int nodes[NR_PAGES];
	size_t i;

	for (i = 0; i < NR_PAGES; i++) {
		addrs[i] = base + i * psize;
		nodes[i] = !(round & 1);
	}
	tlb_rs_move_pages(0, NR_PAGES, addrs, nodes, status);
}

static void act_pageout(long round)
{
	(void)round;
	madvise(base, len, MADV_PAGEOUT);
}

static const struct act {
	const char *name;
	void (*act)(long round);
	int advice;
	bool swap;
} acts[] = {
	{ "move", act_move, 0, false },
	{ "pageout", act_pageout, 0, true },
	{ "lazyfree", act_pageout, MADV_FREE, false },
};

static int run(const struct act *act, long rounds, const char *skip, long want_violations)
{
	long round, filled = 0, left = 0, replaced = 0, violations, invalidations;
	struct secondary s, before;
	__u64 pfns[NR_PAGES];
	size_t i;

	if (act->act == act_move && (tlb_rs_memory_nodes() & 3) != 3) {
		ksft_print_msg("needs memory on nodes 0 and 1\n");
		return KSFT_SKIP;
	}
	if (act->swap && !tlb_rs_has_swap()) {
		ksft_print_msg("needs swap\n");
		return KSFT_SKIP;
	}

	secondary_read(&before);
	for (round = 0; round < rounds; round++) {
		struct tlb_rs_readers readers;

		if (act->act != act_move || !round)
			memset(base, round + 1, len);
		tlb_rs_drain_pages();
		if (act->advice)
			madvise(base, len, act->advice);
		/* x86_64: only an mm that is used on other CPUs has its flushes batched. */
		tlb_rs_readers_start(&readers, 1, false, base, len);
		for (i = 0; i < NR_PAGES; i++)
			pfns[i] = tlb_rs_pfn(base + i * psize);
		secondary_fill();
		secondary_read(&s);
		filled += s.translations;

		if (tlb_rs_hook_removed(skip))
			tlb_rs_skip_hooks(skip);
		act->act(round);
		secondary_read(&s);
		left += s.translations;
		if (tlb_rs_hook_removed(skip))
			tlb_rs_skip_none();

		for (i = 0; i < NR_PAGES; i++)
			replaced += tlb_rs_pfn(base + i * psize) != pfns[i];
		tlb_rs_readers_end(&readers);
		/* Finds the mm marked and flushes it: nobody keeps a stale entry. */
		madvise(base, len, MADV_COLD);
	}
	secondary_read(&s);
	violations = s.violations - before.violations;
	invalidations = s.invalidations - before.invalidations;

	printf("{\"test\":\"secondary\",\"act\":\"%s\",\"tlb_batch\":%s,\"skip\":\"%s\",",
	       act->name, tlb_batch_json(), skip);
	printf("\"rounds\":%ld,\"filled\":%ld,\"replaced\":%ld,\"left\":%ld,", rounds, filled,
	       replaced, left);
	printf("\"invalidations\":%ld,\"violations\":%ld}\n", invalidations, violations);
	if (filled < rounds * NR_PAGES * 9 / 10 || replaced < rounds * NR_PAGES / 2) {
		ksft_print_msg("%ld translations, %ld pages replaced\n", filled, replaced);
		return KSFT_FAIL;
	}
	if (want_violations)
		return violations >= want_violations ? KSFT_PASS : KSFT_FAIL;
	return violations || left ? KSFT_FAIL : KSFT_PASS;
}

static void help(const char *prog)
{
	printf("usage: %s [option]...\n"
	       "  [--rounds N] [--skip HOOK] [--expect-none | --expect-violations MIN]\n",
	       prog);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "rounds", required_argument, NULL, 'n' },
		{ "skip", required_argument, NULL, 's' },
		{ "expect-violations", required_argument, NULL, 'e' },
		{ "expect-none", no_argument, NULL, '0' },
		{ "help", no_argument, NULL, 'h' },
		{ }
	};
	long rounds = 10, want = 0;
	const char *skip = "none";
	size_t i;
	int opt;

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
			want = tlb_rs_number(optarg, 1, 1000000);
			break;
		case '0':
			want = 0;
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
	fd = open(SECONDARY, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		ksft_exit_skip("no model of a secondary TLB: %s is absent\n", SECONDARY);
	if (tlb_rs_hook_removed(skip) && !tlb_rs_skip_hooks(skip))
		ksft_exit_skip("hook '%s' cannot be removed on this kernel\n", skip);
	tlb_rs_skip_none();
	tlb_rs_quiet();
	tlb_rs_pin_cpu(0);
	psize = getpagesize();
	len = NR_PAGES * psize;
	base = tlb_rs_mmap(len, SZ_2M);
	madvise(base, len, MADV_NOHUGEPAGE);
	if ((tlb_rs_memory_nodes() & 3) == 3)
		tlb_rs_bind_node(base, len, 0);
	/* The first one begins to count, after what another program has left. */
	secondary_fill();

	ksft_set_plan(ARRAY_SIZE(acts));
	for (i = 0; i < ARRAY_SIZE(acts); i++)
		ksft_test_result_report(run(&acts[i], rounds, skip, want), "secondary: %s\n",
					acts[i].name);
	close(fd);
	ksft_finished();
}
