// SPDX-License-Identifier: GPL-2.0
/* What becomes of the old frame, and where P goes: swapin, twice, record, drain. */
#include "migrc_stale.h"

bool clean;

/* To where reclaim looks: statistics of one page come too late for it to age the page. */
void deactivate(void)
{
	madvise(area, psize, MADV_COLD);
	tlb_rs_drain_pages();
}

/*
 * As above, so that the page from swap will be mapped writable. And the entry is
 * clean, as that of a page that was read from swap, or reclaim would flush before
 * it writes the page out. P is charged to the cgroup in which it is touched first.
 */
void prepare_swapin(__u64 round)
{
	madvise(area, psize, MADV_DONTNEED);
	tlb_rs_cgroup_enter();
	store(old_value(round));
	tlb_rs_cgroup_leave();
	deactivate();
	tlb_rs_forget_use();
	tlb_rs_cgroup_reclaim(65536, "");
	clean = !tlb_rs_pfn(page_p);
	load();
	/* Until then it cannot be made exclusive, but would be copied. */
	while (tlb_rs_kpageflags(tlb_rs_pfn(page_p)) & (1 << KPF_WRITEBACK))
		tlb_rs_sleep_us(1000);
	deactivate();
	make_exclusive();
	touch_stack();
}

bool act_swapin(__u64 round)
{
	long long flushes = tlb_rs_vmstat_read("migrc_flush");
	__u64 start, dst = tlb_rs_pfn(page_p);
	bool armed;

	if (!tlb_rs_delay(TLB_BATCH_FLUSH_DELAY, DELAY_US))
		return false;
#ifdef __aarch64__
	if (!tlb_rs_skip_hooks("flush"))
		return false;
#endif
	start = tlb_rs_now_ns();
	STORE(sh->reclaim, round);
	/* Until P is a swap entry. */
	while (tlb_rs_pfn(page_p) && LOAD(sh->reclaimed) != round)
		;
	armed = clean && !tlb_rs_pfn(page_p) && tlb_rs_vmstat_read("migrc_flush") == flushes;
	store(new_value(round));
	return armed && tlb_rs_pfn(page_p) == dst && tlb_rs_now_ns() - start < DELAY_US * 1000ULL;
}

void cleanup_swapin(void)
{
	tlb_rs_delay_none();
	WAIT_FOR(LOAD(sh->reclaimed) == sh->reclaim);
	tlb_rs_skip_none();
}

/* New pages from where P was, with something else in them. */
void scribble(void)
{
	size_t i;

	others = migrc_mmap(NR_OTHERS, !migrc_node_of(page_p), SEED);
	for (i = 0; i < NR_OTHERS * psize / sizeof(__u64); i++)
		((__u64 *)others)[i] = ~0ULL;
}

void cleanup_others(void)
{
	munmap(others, NR_OTHERS * psize);
}

bool act_record(__u64 round)
{
	(void)round;
	scribble();
	return true;
}

bool act_drain(__u64 round)
{
	int i;

	(void)round;
	for (i = 0; i < 200 && migrc_held(-1); i++)
		tlb_rs_sleep_us(10000);
	scribble();
	return i < 200;
}

bool act_twice(__u64 round)
{
	size_t i, n = 0;

	(void)round;
	for (i = 0; i < 5; i++)
		n += migrc_move(&set, 0, !migrc_node_of(page_p), MPOL_MF_MOVE_ALL);
	if (tlb_rs_check(list, (nr_pages - 1) * psize, SEED))
		sh->stale++;
	return n > 4 * (size_t)nr_pages;
}

bool setup_swapin(void)
{
	int on = 0;

	if (!tlb_rs_has_disk_swap() || !tlb_batch_get(&on) || on <= 0 ||
	    access(TLB_BATCH_FLUSH_DELAY, W_OK))
		return false;
	tlb_rs_no_zswap();
	return tlb_rs_cgroup();
}
