/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _ASM_ARM64_TLB_BATCH_H
#define _ASM_ARM64_TLB_BATCH_H

#include <asm/tlbbatch.h>
#include <asm/tlbflush.h>

/* Another entry size for a cached VA needs break-before-make. */
#define ARCH_TLB_BATCH_BBM	1

/*
 * Cleared PTEs must be visible to all walkers before the mm is marked, and
 * before the ASID is read for the invalidation: a CPU that rolls the ASID over
 * in between must not refill its TLB from the old PTE under the new number.
 */
static __always_inline void arch_tlb_batch_order(void)
{
	dsb(ishst);
}

/*
 * Whether an entry is part of a contiguous block is no attribute of the mapping.
 * All blocks but the first and the last of a run are cleared whole.
 */
static inline pte_t arch_tlb_batch_pte(pte_t pte)
{
	return pte_mknoncont(pte);
}

/* Everything batched is a page-level entry, so the leaf level is known. */
static inline void arch_tlb_batch_issue(struct arch_tlbflush_unmap_batch *batch,
					struct mm_struct *mm,
					unsigned long start, unsigned long end)
{
	struct vm_area_struct vma = { .vm_mm = mm, .vm_flags = 0 };

	__flush_tlb_range(&vma, start, end, PAGE_SIZE, 3,
			  TLBF_NOWALKCACHE | TLBF_NOSYNC | TLBF_PTES_VISIBLE);
}

#endif /* _ASM_ARM64_TLB_BATCH_H */
