// SPDX-License-Identifier: GPL-2.0
/*
 * Break-before-make of live vmemmap entries, while all other CPUs are paused.
 *
 * Between break and make there are no struct pages behind these entries. So nothing here
 * is instrumented, traced or able to warn, and page tables and pages are reached by their
 * linear addresses, which were looked up before.
 */

#include <linux/hvo.h>

#include <asm/barrier.h>
#include <asm/page.h>
#include <asm/pause.h>
#include <asm/tlbflush.h>

static __always_inline void invalidate(const struct hvo_window *w)
{
	unsigned long pages = (w->end - w->start) >> PAGE_SHIFT;

	/* The same for a block: it is a last-level entry, too. */
	if (__flush_tlb_range_limit_excess(pages, PAGE_SIZE))
		__tlbi(vmalle1is);
	else
		__flush_s1_tlb_range_op(vaale1is, w->start, pages, PAGE_SIZE, 0,
					TLBI_TTL_UNKNOWN);
	__tlbi_sync_s1ish_kernel();
}

/* Between break and make, for tests. */
static __always_inline void stall(void)
{
	u64 begin = __arch_counter_get_cntvct();
	u64 ticks = (u64)hvo_stall_us * arch_timer_get_cntfrq() / 1000000;

	while (__arch_counter_get_cntvct() - begin < ticks)
		cpu_relax();
}

/* Somebody else has written to an entry, or can be using it. */
static __always_inline void check(bool ok)
{
#ifdef CONFIG_HVO_DEBUG
	if (!ok)
		hvo_violations++;
#endif
}

/**
 * arch_hvo_apply - change the entries of a window
 * @w: prepared, so that nothing can fail.
 *
 * Context: all other CPUs are paused, or stopped in threads, and DAIF is masked.
 */
void noinstr arch_hvo_apply(const struct hvo_window *w)
{
	const struct hvo_run *run, *end = w->runs + w->nr_runs;
	u32 i;

	check(arm64_cpus_are_stopped());
	if (!hvo_skip(HVO_HOOK_BREAK)) {
		for (run = w->runs; run < end; run++) {
			for (i = 0; i < run->nr; i++)
				WRITE_ONCE(run->entries[i], 0);
		}
	}
	dsb(ishst);
	if (!hvo_skip(HVO_HOOK_TLBI))
		invalidate(w);
	isb();

	/* Now nobody can write to these any more, which makes the copies exact. */
	for (run = w->runs; run < end; run++) {
		if (run->copy_to)
			copy_page(run->copy_to, run->copy_from);
	}
	if (IS_ENABLED(CONFIG_HVO_FAULT_INJECTION))
		stall();
	/* Contents before the entries that lead there. */
	dsb(ishst);

	for (run = w->runs; run < end; run++) {
		for (i = 0; i < run->nr; i++) {
			check(!READ_ONCE(run->entries[i]));
			WRITE_ONCE(run->entries[i], run->values ? run->values[i] : run->value);
		}
	}
	dsb(ishst);
	isb();
}
