/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _ASM_X86_MIGRC_H
#define _ASM_X86_MIGRC_H

#include <linux/compiler.h>
#include <linux/limits.h>
#include <linux/pgtable.h>
#include <asm/tlbbatch.h>
#include <asm/tlbflush.h>

/* One round of interrupts serves any number of address spaces. */
#define ARCH_MIGRC_MAX_ASIDS	ULONG_MAX

/* Clearing a PTE is a locked operation and stores are not reordered. */
static __always_inline void arch_migrc_order(void)
{
	barrier();
}

/* mprotect() changes no memory type. */
static inline bool arch_migrc_may_retype(pte_t pte)
{
	return false;
}

/* The batch has no ranges: all pages of it are one flush. */
static inline bool arch_migrc_has_ranges(void)
{
	return false;
}

/* A TLB holds page table entries one by one. */
static inline bool arch_migrc_minds_size(void)
{
	return false;
}

static inline bool arch_migrc_blocks(void)
{
	return false;
}

static inline bool arch_migrc_is_block(pte_t pte)
{
	return false;
}

static inline bool arch_migrc_resizes(bool blocks, unsigned long addr, pte_t pte,
				      unsigned int nr)
{
	return false;
}

static inline bool arch_migrc_hw_dirty(void)
{
	return true;
}

static inline void arch_migrc_begin(void)
{
}

/*
 * This advances the generation of the mm before it reads the cpumask: a CPU that
 * loads the mm later flushes by itself.
 */
static inline void arch_migrc_issue(struct arch_tlbflush_unmap_batch *batch,
				    struct mm_struct *mm)
{
	arch_tlbbatch_add_pending(batch, mm, 0, TLB_FLUSH_ALL);
}

static inline void arch_migrc_issue_all(void)
{
}

static inline void arch_migrc_sync(struct arch_tlbflush_unmap_batch *batch)
{
	arch_tlbbatch_flush(batch);
}

#endif /* _ASM_X86_MIGRC_H */
