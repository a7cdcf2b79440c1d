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
#include "tlb_rs_harness.h"

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

FIXTURE(tlb_batch_secondary) {
	const char *skip;
	long rounds;
	long want_violations;	/* 0: none */
};

FIXTURE_VARIANT(tlb_batch_secondary) {
	const char *name;
	void (*act)(long round);
	int advice;
	bool nodes;
	bool swap;
};

FIXTURE_VARIANT_ADD(tlb_batch_secondary, move) {
	.name = "move", .act = act_move, .nodes = true,
};

FIXTURE_VARIANT_ADD(tlb_batch_secondary, pageout) {
	.name = "pageout", .act = act_pageout, .swap = true,
};

FIXTURE_VARIANT_ADD(tlb_batch_secondary, lazyfree) {
	.name = "lazyfree", .act = act_pageout, .advice = MADV_FREE,
};

FIXTURE_SETUP(tlb_batch_secondary)
{
	tlb_rs_undo();
	self->skip = tlb_rs_skip();
	self->rounds = tlb_rs_env_number("TLB_ROUNDS", 10, 1, 1000000);
	self->want_violations = tlb_rs_env_number("TLB_EXPECT", 0, 0, 1000000);
	if (tlb_rs_hook_removed(self->skip) && !tlb_rs_skip_hooks(self->skip))
		SKIP(return, "hook '%s' cannot be removed on this kernel", self->skip);
	tlb_rs_skip_none();
	if (variant->nodes && (tlb_rs_memory_nodes() & 3) != 3)
		SKIP(return, "needs memory on nodes 0 and 1");
	if (variant->swap && !tlb_rs_has_swap())
		SKIP(return, "needs swap");
	tlb_rs_quiet();
	tlb_rs_pin_cpu(0);
	fd = tlb_rs_open(SECONDARY, O_RDWR);
	base = tlb_rs_mmap(len, SZ_2M);
	madvise(base, len, MADV_NOHUGEPAGE);
	if ((tlb_rs_memory_nodes() & 3) == 3)
		tlb_rs_bind_node(base, len, 0);
	/* Begins to count, after what another process has left. */
	secondary_fill();
}

FIXTURE_TEARDOWN_PARENT(tlb_batch_secondary)
{
	tlb_rs_tear_down();
}

TEST_F_TIMEOUT(tlb_batch_secondary, flushed, TLB_RS_TIMEOUT_S)
{
	long round, filled = 0, left = 0, replaced = 0, violations, invalidations;
	struct secondary s, before;
	__u64 pfns[NR_PAGES];
	size_t i;

	secondary_read(&before);
	for (round = 0; round < self->rounds; round++) {
		struct tlb_rs_readers readers;

		if (!variant->nodes || !round)
			memset(base, round + 1, len);
		tlb_rs_drain_pages();
		if (variant->advice)
			madvise(base, len, variant->advice);
		/* x86_64: only an mm that is used on other CPUs has its flushes batched. */
		tlb_rs_readers_start(&readers, 1, false, base, len);
		for (i = 0; i < NR_PAGES; i++)
			pfns[i] = tlb_rs_pfn(base + i * psize);
		secondary_fill();
		secondary_read(&s);
		filled += s.translations;

		if (tlb_rs_hook_removed(self->skip))
			tlb_rs_skip_hooks(self->skip);
		variant->act(round);
		secondary_read(&s);
		left += s.translations;
		if (tlb_rs_hook_removed(self->skip))
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
	       variant->name, tlb_batch_json(), self->skip);
	printf("\"rounds\":%ld,\"filled\":%ld,\"replaced\":%ld,\"left\":%ld,", self->rounds,
	       filled, replaced, left);
	printf("\"invalidations\":%ld,\"violations\":%ld}\n", invalidations, violations);
	EXPECT_LE(self->rounds * NR_PAGES * 9 / 10, filled);
	EXPECT_LE(self->rounds * NR_PAGES / 2, replaced);
	if (self->want_violations) {
		EXPECT_LE(self->want_violations, violations);
	} else {
		EXPECT_EQ(0, violations);
		EXPECT_EQ(0, left);
	}
}

int main(int argc, char **argv)
{
	const char *why = NULL;

	psize = getpagesize();
	len = NR_PAGES * psize;
	if (tlb_rs_nr_cpus() < 2)
		why = "needs two CPUs";
	else if (access(SECONDARY, R_OK | W_OK))
		why = "no model of a secondary TLB: " SECONDARY " is absent";
	tlb_rs_skip_all(why);
	return test_harness_run(argc, argv);
}
