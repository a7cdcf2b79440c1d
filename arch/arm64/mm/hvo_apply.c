// SPDX-License-Identifier: GPL-2.0
/*
 * Break-before-make of live vmemmap entries, while all other CPUs are paused.
 *
 * Between break and make there are no struct pages behind these entries. So nothing here
 * is instrumented, traced, probed (hence __flatten, see pause.c) or able to warn, and page
 * tables and pages are reached by their linear addresses, which were looked up before.
 */

#include <linux/hvo.h>
#include <linux/kprobes.h>

#include <asm/barrier.h>
#include <asm/brk-imm.h>
#include <asm/page.h>
#include <asm/pause.h>
#include <asm/tlbflush.h>

/* Called between break and make, and not noinstr. */
NOKPROBE_SYMBOL(copy_page);
NOKPROBE_SYMBOL(system_supports_tlb_range);
NOKPROBE_SYMBOL(read_tcr);

static __always_inline u64 new_value(const struct hvo_run *run, u32 i)
{
	return run->values ? run->values[i] : run->value;
}

static __always_inline __flatten void invalidate(const struct hvo_window *w)
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
static __always_inline __flatten void stall(void)
{
	u64 begin = read_sysreg(cntvct_el0);
	u64 ticks = (u64)hvo_stall_us * read_sysreg(cntfrq_el0) / 1000000;

	if (hvo_stall_us == HVO_STALL_DIES)
		asm volatile("brk %0" : : "I" (FAULT_BRK_IMM));
	while (read_sysreg(cntvct_el0) - begin < ticks)
		isb();
}

/* Another CPU has written to an entry, or can be using it. Only looked at for tests. */
#define check(ok)							\
	do {								\
		if (IS_ENABLED(CONFIG_HVO_DEBUG) && !(ok))		\
			hvo_violations++;				\
	} while (0)

/**
 * arch_hvo_apply - change the entries of a window
 * @w: prepared, so that nothing can fail.
 *
 * Context: all other CPUs are paused, or stopped in threads, and DAIF is masked.
 */
void noinstr __flatten arch_hvo_apply(const struct hvo_window *w)
{
	const struct hvo_run *run, *end = w->runs + w->nr_runs;
	u32 i;

	check(arm64_cpus_are_stopped());
	/* rule: hvo/break: TLBs must not hold two entries for one address */
	if (!hvo_skip(HVO_HOOK_BREAK)) {
		for (run = w->runs; run < end; run++) {
			for (i = 0; i < run->nr; i++)
				WRITE_ONCE(run->entries[i], 0);
		}
	}
	/* rule: hvo/visible: or the invalidation is executed before the break */
	dsb(ishst);
	/* rule: hvo/tlbi: CPUs have the old pages in their TLBs */
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
			WRITE_ONCE(run->entries[i], new_value(run, i));
		}
	}
	dsb(ishst);
	isb();
	check(arm64_cpus_are_stopped());
}
