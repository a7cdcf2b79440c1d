/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _ASM_ARM64_MIGRC_H
#define _ASM_ARM64_MIGRC_H

#include <linux/pgtable.h>
#include <linux/smp.h>
#include <asm/alternative.h>
#include <asm/pgtable-hwdef.h>
#include <asm/sysreg.h>
#include <asm/tlbbatch.h>
#include <asm/tlbflush.h>

/*
 * Above this many address spaces, one invalidation of everything is cheaper than one
 * of each. As for a range, __flush_tlb_range_limit_excess(), this bounds the number
 * of broadcasts, and CPUs walk other entries once more.
 */
#define ARCH_MIGRC_MAX_ASIDS	MAX_DVM_OPS

/*
 * A CPU that sees the deferral must see the cleared PTE, too. As for the batch, a DMB is
 * enough; the CPU that flushes executes the DSB for the TLBI.
 */
static __always_inline void arch_migrc_order(void)
{
	dmb(ishst);
}

/*
 * Whether mprotect() may have changed the memory type of what @pte maps, which only ever
 * becomes tagged; or whether user space may execute it, which must not end while a TLB has
 * the entry (erratum 2645198).
 */
static inline bool arch_migrc_may_retype(pte_t pte)
{
	return (system_supports_mte() && pte_tagged(pte)) ||
	       (alternative_has_cap_unlikely(ARM64_WORKAROUND_2645198) && !pte_user_exec(pte));
}

/* Whether one operation, or a few, invalidate a range of any length. */
static inline bool arch_migrc_has_ranges(void)
{
	return system_supports_tlb_range();
}

/* With BBML3, a TLB may have entries of two sizes for one address. */
static inline bool arch_migrc_minds_size(void)
{
	return ARCH_PTE_BLOCK > 1 && !system_supports_bbml3();
}

/* vm.migrc_blocks, and what it is after the boot. */
#define ARCH_MIGRC_HAS_BLOCKS

static inline bool arch_migrc_blocks(void)
{
	return system_supports_bbml3();
}

static inline bool arch_migrc_is_block(pte_t pte)
{
	return pte_valid(pte) && pte_cont(pte);
}

/*
 * Whether @nr entries, the first of which becomes @pte, have another size than what was
 * deferred there: @blocks or pages. set_ptes() makes blocks of what is whole and aligned,
 * unless it is one page. If that completes a block, the fold flushes.
 */
static inline bool arch_migrc_resizes(bool blocks, unsigned long addr, pte_t pte,
				      unsigned int nr)
{
	const unsigned long vpn = addr >> PAGE_SHIFT, pfn = pte_pfn(pte);
	const unsigned long first = ALIGN(vpn, ARCH_PTE_BLOCK);

	if (!arch_migrc_minds_size() || !pte_valid(pte))
		return false;
	if (blocks)
		return !IS_ALIGNED(vpn | pfn | nr, ARCH_PTE_BLOCK);
	return IS_ALIGNED(vpn ^ pfn, ARCH_PTE_BLOCK) && first + ARCH_PTE_BLOCK <= vpn + nr;
}

static inline void arch_migrc_check_dirty(void *all)
{
	if (!(read_sysreg(tcr_el1) & TCR_HD))
		WRITE_ONCE(*(bool *)all, false);
}

/*
 * Whether a store to a clean page makes its entry dirty without a fault on all online
 * CPUs. Asks each CPU, because some have errata, and no capability tells.
 */
static inline bool arch_migrc_hw_dirty(void)
{
	bool all = IS_ENABLED(CONFIG_ARM64_HW_AFDBM);

	on_each_cpu(arch_migrc_check_dirty, &all, 1);
	return all;
}

/* The stores to page tables come before the TLBIs, and before an ASID is read. */
static inline void arch_migrc_begin(void)
{
	dsb(ishst);
}

static inline void arch_migrc_issue(struct arch_tlbflush_unmap_batch *batch,
				    struct mm_struct *mm)
{
	__flush_tlb_asid(mm);
	mmu_notifier_arch_invalidate_secondary_tlbs(mm, 0, -1UL);
}

static inline void arch_migrc_issue_all(void)
{
	__tlbi(vmalle1is);
}

static inline void arch_migrc_sync(struct arch_tlbflush_unmap_batch *batch)
{
	__tlbi_sync_s1ish_batch();
}

#endif /* _ASM_ARM64_MIGRC_H */
