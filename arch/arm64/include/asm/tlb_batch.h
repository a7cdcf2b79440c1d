/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _ASM_ARM64_TLB_BATCH_H
#define _ASM_ARM64_TLB_BATCH_H

#include <asm/tlbbatch.h>
#include <asm/tlbflush.h>

/* Another entry size for a cached VA needs break-before-make. */
#define ARCH_TLB_BATCH_BBM	1

/*
 * Without range operations each page is a TLBI. From this many on one TLBI of the
 * ASID is cheaper, as __flush_tlb_range() assumes for one contiguous range (it
 * calls flush_tlb_mm() from a page table's worth of pages on): the mm refills at
 * most as many entries as its TLBs hold, and each TLBI by VA is a broadcast.
 * With range operations the few ranges of a batch are never worth all entries.
 */
#define TLB_BATCH_ASID_PAGES	PTRS_PER_PTE

/*
 * rule: tlb_batch/order: who sees the mark of the mm must see the cleared PTEs, too.
 * For that a DMB is enough; the DSB that a TLBI needs is executed when the range is issued. Both
 * are proved by litmus tests of tlb-rs (verify/litmus: order-dmb-ishst, sync-issue-dsb-ishst).
 */
static __always_inline void arch_tlb_batch_order(void)
{
	dmb(ishst);
}

/*
 * Whether an entry is part of a contiguous block is no attribute of the mapping.
 * All blocks but the first and the last of a run are cleared whole.
 */
static inline pte_t arch_tlb_batch_pte(pte_t pte)
{
	return pte_mknoncont(pte);
}

/*
 * A range operation covers an even number of pages and with LPA2 it starts at a
 * multiple of 64 KiB: __flush_tlb_range() takes one TLBI for each page in front
 * and behind. From this many pages on they are rounded up instead: up to 16
 * neighbours are walked once more, if they are in use at all, which costs less
 * than to broadcast as many operations. Fewer pages stay what they were.
 */
#define TLB_BATCH_ROUND_PAGES	4

/*
 * Everything batched is a page-level entry, so the leaf level is known.
 *
 * rule: tlb_batch/asid: a CPU that rolls the ASID over must not refill its TLB from
 * the old PTE under the new number: the DSB ISHST in here comes before the ASID is read.
 */
static __always_inline void
arch_tlb_batch_issue(struct arch_tlbflush_unmap_batch *batch, struct mm_struct *mm,
		     unsigned long start, unsigned long end)
{
	struct vm_area_struct vma = { .vm_mm = mm, .vm_flags = 0 };

	/* rule: tlb_batch/merge: more than was asked for, never less */
	if (system_supports_tlb_range() &&
	    end - start >= TLB_BATCH_ROUND_PAGES * PAGE_SIZE) {
		if (lpa2_is_enabled())
			start = ALIGN_DOWN(start, SZ_64K);
		end = start + ALIGN(end - start, 2 * PAGE_SIZE);
	}
	/* rule: tlb_batch/secondary: this tells devices that share the mm, too */
	__flush_tlb_range(&vma, start, end, PAGE_SIZE, 3,
			  TLBF_NOWALKCACHE | TLBF_NOSYNC);
}

static inline bool arch_tlb_batch_prefers_mm(unsigned long pages)
{
	return !system_supports_tlb_range() && pages >= TLB_BATCH_ASID_PAGES;
}

/* Waits, too, which is one DSB ISH more for each mm of so many pages. */
static inline void arch_tlb_batch_issue_mm(struct arch_tlbflush_unmap_batch *batch,
					   struct mm_struct *mm)
{
	flush_tlb_mm(mm);
}

/* Issue and wait are two instructions anyway. */
static inline bool arch_tlb_batch_flush(struct arch_tlbflush_unmap_batch *batch,
					struct mm_struct *mm,
					unsigned long start, unsigned long end)
{
	return false;
}

#endif /* _ASM_ARM64_TLB_BATCH_H */
