/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _ASM_X86_TLB_BATCH_H
#define _ASM_X86_TLB_BATCH_H

#include <asm/tlbbatch.h>
#include <asm/tlbflush.h>

/* Entries of several sizes may coexist as long as their attributes agree. */
#define ARCH_TLB_BATCH_BBM	0

static inline pte_t arch_tlb_batch_pte(pte_t pte)
{
	return pte;
}

#ifndef MODULE
/*
 * rule: tlb_batch/gen: the generation must be advanced before the cpumask is read: a CPU that
 * loads the mm later flushes by itself.  The flush is of whole address spaces, so one
 * generation serves all ranges of one.  With INVLPGB it is of every ASID on every CPU,
 * and needs neither.
 */
static inline void arch_tlb_batch_issue_mm(struct arch_tlbflush_unmap_batch *batch,
					   struct mm_struct *mm)
{
	if (tlb_batch_skip(TLB_BATCH_HOOK_GEN)) {
		cpumask_or(&batch->cpumask, &batch->cpumask, mm_cpumask(mm));
		return;
	}
	/* rule: tlb_batch/secondary: this also tells devices that share the mm */
	arch_tlbbatch_add_pending(batch, mm, 0, TLB_FLUSH_ALL);
}

static inline void arch_tlb_batch_issue(struct arch_tlbflush_unmap_batch *batch,
					struct mm_struct *mm,
					unsigned long start, unsigned long end)
{
	arch_tlb_batch_issue_mm(batch, mm);
}

static inline bool arch_tlb_batch_prefers_mm(unsigned long pages)
{
	return true;
}

/*
 * For pages of one mm, flush_tlb_mm_range() takes one generation and one round of
 * interrupts, too. But the CPUs invalidate single pages if there are few, and
 * INVLPGB does it for a global ASID. Without a global ASID, INVLPGB can only do the
 * full round, which needs no interrupts.
 */
static inline bool arch_tlb_batch_flush(struct arch_tlbflush_unmap_batch *batch,
					struct mm_struct *mm,
					unsigned long start, unsigned long end)
{
	/* rule: tlb_batch/gen: the mask has CPUs of pages that were added with vm.tlb_batch=0 */
	if (!cpumask_empty(&batch->cpumask) ||
	    (cpu_feature_enabled(X86_FEATURE_INVLPGB) &&
	     (batch->unmapped_pages || !mm_global_asid(mm))))
		return false;
	flush_tlb_mm_range(mm, start, end, PAGE_SHIFT, false);
	return true;
}
#endif /* !MODULE: <asm/tlbflush.h> hides the batch from modules */

#endif /* _ASM_X86_TLB_BATCH_H */
