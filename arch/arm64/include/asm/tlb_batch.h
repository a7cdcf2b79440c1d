/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _ASM_ARM64_TLB_BATCH_H
#define _ASM_ARM64_TLB_BATCH_H

#include <asm/tlbbatch.h>
#include <asm/tlbflush.h>

/* A VA that a TLB holds needs break-before-make for an entry of another size. */
#define ARCH_TLB_BATCH_BBM	1

/*
 * Without range operations each page is a TLBI. From this many on one TLBI of the
 * ASID is cheaper, as __flush_tlb_range() assumes for a contiguous range of a page
 * table's worth of pages: each TLBI by VA is a broadcast, and the mm refills at most
 * the entries that its TLBs hold. With range operations the few ranges of a batch
 * always cost less than the loss of all entries.
 */
#define TLB_BATCH_ASID_PAGES	PTRS_PER_PTE

/*
 * The contiguous bit is no attribute of the mapping: a run goes on across blocks,
 * and clears all of them whole except the first and the last.
 */
static inline pte_t arch_tlb_batch_pte(pte_t pte)
{
	return pte_mknoncont(pte);
}

/*
 * A range of this many pages or more is rounded, see __flush_tlb_range_round(): that costs
 * less than to broadcast an operation for each page before and after.
 */
#define TLB_BATCH_ROUND_PAGES	4

/* Not flush_tlb_mm(), which waits, as the batch does at its end. */
static inline void arch_tlb_batch_issue_mm(struct arch_tlbflush_unmap_batch *batch,
					   struct mm_struct *mm)
{
	/* rule: tlb_batch/asid: as for a range */
	dsb(ishst);
	__flush_tlb_asid(mm);
	/* rule: tlb_batch/secondary: devices that share the mm use it, too */
	mmu_notifier_arch_invalidate_secondary_tlbs(mm, 0, -1UL);
}

/*
 * The batch has page-level entries only, so the leaf level is known.
 *
 * rule: tlb_batch/asid: a CPU that rolls the ASID over must not refill its TLB from
 * the old PTE under the new number: the DSB ISHST here comes before the ASID is read.
 */
static __always_inline void
arch_tlb_batch_issue(struct arch_tlbflush_unmap_batch *batch, struct mm_struct *mm,
		     unsigned long start, unsigned long end)
{
	struct vm_area_struct vma = { .vm_mm = mm, .vm_flags = 0 };

	/* __flush_tlb_range() would flush the ASID, too, and wait for that. */
	if (__flush_tlb_range_limit_excess((end - start) >> PAGE_SHIFT, PAGE_SIZE)) {
		arch_tlb_batch_issue_mm(batch, mm);
		return;
	}
	/* rule: tlb_batch/merge: a TLB may lose more than was cleared, never less */
	if (end - start >= TLB_BATCH_ROUND_PAGES * PAGE_SIZE)
		__flush_tlb_range_round(&start, &end);
	/* rule: tlb_batch/secondary: this also tells devices that share the mm */
	__flush_tlb_range(&vma, start, end, PAGE_SIZE, 3,
			  TLBF_NOWALKCACHE | TLBF_NOSYNC);
}

static inline bool arch_tlb_batch_prefers_mm(unsigned long pages)
{
	return !system_supports_tlb_range() && pages >= TLB_BATCH_ASID_PAGES;
}

/* Issue and wait are two instructions anyway. */
static inline bool arch_tlb_batch_flush(struct arch_tlbflush_unmap_batch *batch,
					struct mm_struct *mm,
					unsigned long start, unsigned long end)
{
	return false;
}

#endif /* _ASM_ARM64_TLB_BATCH_H */
