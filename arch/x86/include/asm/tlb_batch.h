/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _ASM_X86_TLB_BATCH_H
#define _ASM_X86_TLB_BATCH_H

#include <linux/compiler.h>
#include <asm/tlbbatch.h>
#include <asm/tlbflush.h>

/* Entries of several sizes may coexist as long as their attributes agree. */
#define ARCH_TLB_BATCH_BBM	0

/* Clearing a PTE is a locked operation and stores are not reordered. */
static __always_inline void arch_tlb_batch_order(void)
{
	barrier();
}

static inline pte_t arch_tlb_batch_pte(pte_t pte)
{
	return pte;
}

#ifndef MODULE
/*
 * The generation must be advanced before the cpumask is read, so that a CPU that
 * loads the mm later flushes by itself.  The flush is of whole address spaces:
 * the range is not needed.
 */
static inline void arch_tlb_batch_issue(struct arch_tlbflush_unmap_batch *batch,
					struct mm_struct *mm,
					unsigned long start, unsigned long end)
{
	arch_tlbbatch_add_pending(batch, mm, start, end);
}
#endif /* !MODULE: <asm/tlbflush.h> keeps the batch from modules */

#endif /* _ASM_X86_TLB_BATCH_H */
