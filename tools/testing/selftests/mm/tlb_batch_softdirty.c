// SPDX-License-Identifier: GPL-2.0
/*
 * Soft-dirty bits of large folios that are unmapped in runs and mapped again.
 *
 * A run of PTEs is one value, from which those of its pages are made: what is
 * mapped again must say exactly of which pages they were written since a 4 was
 * written to /proc/self/clear_refs. The pages stay dirty for the kernel: to
 * x86_64 making a PTE dirty means making it soft-dirty, too.
 *
 * Two acts, with 64 KiB anonymous folios: pages migrate, or are swapped out and
 * read again. Before, no page was written again, or one in each folio (three
 * runs), or all.
 */
#define _GNU_SOURCE
#include "tlb_rs_harness.h"

#define NR_FOLIOS	32
#define FOLIO_PAGES	16
#define NR_PAGES	(NR_FOLIOS * FOLIO_PAGES)
#define WRITTEN		5	/* the page of each folio */
#define SEED		17

static size_t psize;
static size_t len;

enum pattern { NONE, ONE, ALL };

static const char * const pattern_name[] = { "none", "one", "all" };

static bool is_written(enum pattern pattern, size_t page)
{
	return pattern == ALL || (pattern == ONE && page % FOLIO_PAGES == WRITTEN);
}

static void clear_soft_dirty(void)
{
	if (tlb_rs_write_file("/proc/self/clear_refs", "4"))
		ksft_exit_fail_msg("/proc/self/clear_refs: %s\n", strerror(errno));
}

/* A page is soft-dirty once it is written, and not before. */
static bool has_soft_dirty(void)
{
	char *page = tlb_rs_mmap(psize, psize);
	bool before, written;

	clear_soft_dirty();
	before = tlb_rs_pagemap(page) & PM_SOFT_DIRTY;
	*page = 1;
	written = tlb_rs_pagemap(page) & PM_SOFT_DIRTY;
	munmap(page, psize);
	return written && !before;
}

/* Pages that say they were written though they were not, or the reverse. */
static size_t wrong_bits(const char *base, enum pattern pattern)
{
	size_t i, n = 0;

	for (i = 0; i < NR_PAGES; i++)
		n += !!(tlb_rs_pagemap(base + i * psize) & PM_SOFT_DIRTY) !=
		     is_written(pattern, i);
	return n;
}

/* Both return how many pages it was done to. */
static size_t act_migrate(char *base)
{
	int nodes[NR_FOLIOS], status[NR_FOLIOS];
	void *addrs[NR_FOLIOS];
	size_t i, n = 0;

	for (i = 0; i < NR_FOLIOS; i++) {
		addrs[i] = base + i * FOLIO_PAGES * psize;
		nodes[i] = 1;
		status[i] = -1;
	}
	tlb_rs_move_pages(0, NR_FOLIOS, addrs, nodes, status);
	for (i = 0; i < NR_FOLIOS; i++)
		n += status[i] == 1 ? FOLIO_PAGES : 0;
	return n;
}

static size_t act_swap(char *base)
{
	if (madvise(base, len, MADV_PAGEOUT))
		ksft_exit_fail_msg("MADV_PAGEOUT: %s\n", strerror(errno));
	return tlb_rs_count_pagemap(base, NR_PAGES, PM_SWAP);
}

static int run(const char *name, size_t (*act)(char *base), enum pattern pattern)
{
	size_t i, done, folios = 0, wrong, later, bad;
	struct tlb_rs_counters c;
	struct tlb_rs_readers r;
	char region[40], extra[160];
	int on = 0;
	char *base;

	base = tlb_rs_mmap(len, SZ_2M);
	if ((tlb_rs_memory_nodes() & 3) == 3)
		tlb_rs_bind_node(base, len, 0);
	tlb_rs_fill(base, len, SEED);
	for (i = 0; i < NR_FOLIOS; i++)
		folios += tlb_rs_is_folio(base + i * FOLIO_PAGES * psize, FOLIO_PAGES);
	if (folios != NR_FOLIOS) {
		ksft_print_msg("only %zu of %d folios have 64 KiB\n", folios, NR_FOLIOS);
		return KSFT_FAIL;
	}
	/* x86_64 batches for an mm that other CPUs run. */
	tlb_rs_readers_start(&r, 1, false, base, len);
	clear_soft_dirty();
	for (i = 0; i < NR_PAGES; i++) {
		if (is_written(pattern, i))
			__atomic_fetch_or(base + i * psize, 0, __ATOMIC_RELAXED);
	}
	if (wrong_bits(base, pattern))
		ksft_exit_fail_msg("soft-dirty bits are wrong from the beginning\n");

	tlb_rs_begin(&c);
	done = act(base);
	tlb_rs_end(&c);
	tlb_rs_readers_end(&r);

	wrong = wrong_bits(base, pattern);
	bad = tlb_rs_check(base, len, SEED);
	later = wrong_bits(base, pattern);
	munmap(base, len);

	snprintf(region, sizeof(region), "softdirty_%s", name);
	snprintf(extra, sizeof(extra), ",\"written\":\"%s\",\"done\":%zu,\"wrong\":%zu,\"bad\":%zu",
		 pattern_name[pattern], done, wrong + later, bad);
	tlb_rs_json_region(region, extra, &c);
	if (done < NR_PAGES * 3 / 4) {
		ksft_print_msg("done to %zu of %d pages only\n", done, NR_PAGES);
		return KSFT_FAIL;
	}
	if (tlb_batch_get(&on) && on > 0 && c.vmstat[TLB_RS_VMSTAT_PAGES] < NR_PAGES / 2) {
		ksft_print_msg("%lld pages were batched\n", c.vmstat[TLB_RS_VMSTAT_PAGES]);
		return KSFT_FAIL;
	}
	if (wrong || later || bad) {
		ksft_print_msg("soft-dirty bits of %zu pages are wrong, %zu when read, %zu words\n",
			       wrong, later, bad);
		return KSFT_FAIL;
	}
	return KSFT_PASS;
}

FIXTURE(tlb_batch_softdirty) {
};

FIXTURE_VARIANT(tlb_batch_softdirty) {
	enum pattern written;
};

FIXTURE_VARIANT_ADD(tlb_batch_softdirty, none) {
	.written = NONE,
};

FIXTURE_VARIANT_ADD(tlb_batch_softdirty, one) {
	.written = ONE,
};

FIXTURE_VARIANT_ADD(tlb_batch_softdirty, all) {
	.written = ALL,
};

FIXTURE_SETUP(tlb_batch_softdirty)
{
	tlb_rs_undo();
	if (!tlb_rs_setting(THP_SYSFS "hugepages-64kB/enabled", "always") ||
	    !tlb_rs_setting(THP_SYSFS "hugepages-2048kB/enabled", "never"))
		SKIP(return, "no 64 KiB anonymous folios");
	tlb_rs_pin_cpu(0);
	tlb_rs_quiet();
}

FIXTURE_TEARDOWN_PARENT(tlb_batch_softdirty)
{
	tlb_rs_tear_down();
}

TEST_F_TIMEOUT(tlb_batch_softdirty, migrate, TLB_RS_TIMEOUT_S)
{
	if ((tlb_rs_memory_nodes() & 3) != 3)
		SKIP(return, "needs memory on nodes 0 and 1");
	EXPECT_EQ(KSFT_PASS, run("migrate", act_migrate, variant->written));
}

TEST_F_TIMEOUT(tlb_batch_softdirty, swap, TLB_RS_TIMEOUT_S)
{
	if (!tlb_rs_has_swap())
		SKIP(return, "needs swap");
	EXPECT_EQ(KSFT_PASS, run("swap", act_swap, variant->written));
}

static const char *missing(void)
{
	psize = getpagesize();
	len = NR_PAGES * psize;
	if (psize != 4096)
		return "needs 4 KiB pages";
	if (tlb_rs_nr_cpus() < 2)
		return "needs two CPUs";
	if (!has_soft_dirty())
		return "no soft-dirty bits (CONFIG_MEM_SOFT_DIRTY)";
	return access(THP_SYSFS "hugepages-64kB/enabled", W_OK) ?
	       "no 64 KiB anonymous folios" : NULL;
}

int main(int argc, char **argv)
{
	tlb_rs_skip_all(missing());
	return test_harness_run(argc, argv);
}
