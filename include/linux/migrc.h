/* SPDX-License-Identifier: GPL-2.0 */
/*
 * TLB flushes that are deferred at migration, because no program can observe it.
 * See Documentation/mm/migrc.rst for the invariants, Documentation/mm/tlb_rules.rst for
 * the hooks, and Documentation/mm/migrc_eligibility.rst for why they are enough.
 */
#ifndef _LINUX_MIGRC_H
#define _LINUX_MIGRC_H

#include <linux/cleanup.h>
#include <linux/migrate_mode.h>
#include <linux/migrc_types.h>
#include <linux/mm_types.h>
#include <linux/pgtable.h>
#include <linux/rmap.h>

struct migrc_mm;
struct reclaim_state;

/* mm/migrc/migrc_debug.c */
#ifdef CONFIG_MIGRC_DEBUG
void migrc_debug_moved(struct folio *dst, struct folio *src);
bool migrc_debug_holds(void);
void migrc_debug_write(struct mm_struct *mm, unsigned long addr, enum migrc_hook hook);
void migrc_debug_set(struct mm_struct *mm, unsigned long addr, pte_t pte, unsigned int nr);
void migrc_debug_flushed(struct mm_struct *mm, unsigned long addr, unsigned long end);
void migrc_debug_owed(struct mm_struct *mm, pte_t pte, unsigned long addr, unsigned long end);
void migrc_debug_exit(struct migrc_mm *mm);
#else
static inline void migrc_debug_moved(struct folio *dst, struct folio *src) { }
static inline void migrc_debug_write(struct mm_struct *mm, unsigned long addr,
				     enum migrc_hook hook) { }
static inline void migrc_debug_set(struct mm_struct *mm, unsigned long addr,
				   pte_t pte, unsigned int nr) { }
static inline void migrc_debug_flushed(struct mm_struct *mm, unsigned long addr,
				       unsigned long end) { }
static inline void migrc_debug_owed(struct mm_struct *mm, pte_t pte, unsigned long addr,
				    unsigned long end) { }
static inline void migrc_debug_exit(struct migrc_mm *mm) { }

static inline bool migrc_debug_holds(void)
{
	return false;
}
#endif /* CONFIG_MIGRC_DEBUG */

#ifdef CONFIG_MIGRC_FILE
void migrc_zero_range(struct folio *folio, size_t start, size_t length);
#else
#define migrc_zero_range folio_zero_range
#endif /* CONFIG_MIGRC_FILE */

#ifdef CONFIG_MMU
/*
 * As what a TLB may hold @nr entries from @addr on. Some are single ones if @pages, some
 * belong to blocks if @blocks.
 */
static inline enum migrc_geometry migrc_geometry(unsigned long addr, unsigned int nr,
						 bool pages, bool blocks)
{
	if (!blocks)
		return MIGRC_PAGES;
	if (pages || !IS_ALIGNED(addr >> PAGE_SHIFT | nr, ARCH_PTE_BLOCK))
		return MIGRC_ODD;
	return MIGRC_BLOCKS;
}
#endif

#ifdef CONFIG_MIGRC

#include <linux/atomic.h>
#include <linux/jump_label.h>
#include <linux/sched.h>
#include <linux/swap.h>
#include <linux/vmstat.h>

/* vm.migrc_enable */
DECLARE_STATIC_KEY_FALSE(migrc_key);
/* Something may have been deferred since the boot; never becomes false again. */
DECLARE_STATIC_KEY_FALSE(migrc_used_key);

/* vm.migrc_readmostly */
DECLARE_STATIC_KEY_FALSE(migrc_readmostly_key);

/* mm/migrc/migrc_main.rs */
void migrc_meet_flushed(struct migrc_walk *walk, bool writable, bool shared);
void migrc_meet_poisoned(struct migrc_walk *walk);
void migrc_unregister(struct migrc_mm *mm);
void migrc_flush_mm_slow(struct migrc_mm *mm, u64 deferred, enum migrc_hook hook);
void migrc_count_miss(struct migrc_mm *mm);

/* mm/migrc/migrc_facts.c */
bool migrc_may_defer_slow(struct folio *src, enum migrate_reason reason);
bool migrc_defer_slow(struct vm_area_struct *vma, unsigned long addr,
		      unsigned int nr, pte_t pte, enum migrc_geometry geometry);
void migrc_before_restore_slow(enum ttu_flags flags, struct vm_area_struct *vma,
			       unsigned long addr, pte_t pte, unsigned int nr);
bool migrc_walk_end_slow(struct folio *src);
void migrc_add_source(struct folio *src, enum migrate_reason reason);
bool migrc_reason_may_defer(enum migrate_reason reason);
pte_t migrc_protect_slow(struct folio *folio, struct vm_area_struct *vma, pte_t pte);
bool migrc_stays_protected_slow(struct vm_area_struct *vma);
bool migrc_reads_protected_slow(struct folio *folio, struct vm_area_struct *vma);
void migrc_fork_begin(struct mm_struct *mm);
void migrc_fork_end(struct mm_struct *mm);

/* mm/migrc/migrc_act.c */
void migrc_drain(enum migrc_drain_reason reason);
void migrc_drain_join(enum migrc_drain_reason reason);

#ifdef CONFIG_TLB_RS_FAULT_INJECTION
bool migrc_skip(enum migrc_hook hook);
void migrc_restore_delay(void);
#else
static inline bool migrc_skip(enum migrc_hook hook)
{
	return false;
}

static inline void migrc_restore_delay(void) { }
#endif /* CONFIG_TLB_RS_FAULT_INJECTION */

/**
 * migrc_may_defer - whether the flushes of a migration may be deferred
 * @src: folio to be migrated, locked
 * @reason: why it is migrated
 *
 * Each mapping may still forbid it, see migrc_defer().
 *
 * Context: may sleep.
 */
static inline bool migrc_may_defer(struct folio *src, enum migrate_reason reason)
{
	return static_branch_unlikely(&migrc_key) && migrc_may_defer_slow(src, reason);
}

/**
 * migrc_defer - defer the flush of entries that have just been cleared
 * @flags: of the walk; nothing is deferred without TTU_DEFER_RO
 * @vma: area of the entries
 * @addr: address of the first
 * @nr: how many there are
 * @pte: the first, as the clear returned it: the hardware may have made it
 *	dirty until then
 * @geometry: as what a TLB may hold them. Entries of two sizes must not overlap. (With
 *	BBML3 they may; the caller then does not report the block of a single PTE.)
 *
 * Context: the PTL that the entries were cleared under is held.
 * Return: false if the caller has to flush them.
 */
static inline bool migrc_defer(enum ttu_flags flags, struct vm_area_struct *vma,
			       unsigned long addr, unsigned int nr, pte_t pte,
			       enum migrc_geometry geometry)
{
	return (flags & TTU_DEFER_RO) && migrc_defer_slow(vma, addr, nr, pte, geometry);
}

/*
 * An entry was flushed when it was cleared, so it owes nothing.
 *
 * rule: migrc/local: it may become writable again without a fault. Then a TLB must not
 * lead to the old page through another mapping.
 */
static inline void migrc_flushed(enum ttu_flags flags, struct vm_area_struct *vma,
				 pte_t pte)
{
	if (flags & TTU_DEFER_RO)
		migrc_meet_flushed(&current->tlb_ubc.migrc, pte_write(pte),
				   vma->vm_flags & VM_SHARED);
}

/* rule: migrc/poisoned: a page was poisoned since migrc_may_defer(), and may not be read */
static inline void migrc_poisoned(enum ttu_flags flags)
{
	if (flags & TTU_DEFER_RO)
		migrc_meet_poisoned(&current->tlb_ubc.migrc);
}

/**
 * migrc_walk_end - whether all flushes of a folio have been deferred
 * @flags: of the walk
 * @src: the folio, which is not mapped any more
 *
 * If only some have, migrc_flush_mixed() flushes them before the content is copied.
 */
static inline bool migrc_walk_end(enum ttu_flags flags, struct folio *src)
{
	return (flags & TTU_DEFER_RO) && migrc_walk_end_slow(src);
}

/* Whether what this walk has deferred were blocks. */
static inline bool migrc_walk_blocks(void)
{
	return current->tlb_ubc.migrc.blocks;
}

/**
 * migrc_deferred_flags - flags for remove_migration_ptes() of a folio
 * @deferred: its flush has been deferred
 * @blocks: what migrc_walk_blocks() was
 */
static inline enum ttu_flags migrc_deferred_flags(bool deferred, bool blocks)
{
	if (deferred)
		migrc_restore_delay();
	/* Of a folio that is undone, some mappings may have been deferred, as this or that. */
	if (current->tlb_ubc.migrc.mixed)
		return TTU_DEFERRED_PAGES | TTU_DEFERRED_BLOCKS;
	if (!deferred)
		return 0;
	return blocks ? TTU_DEFERRED_BLOCKS : TTU_DEFERRED_PAGES;
}

/*
 * The walks of a batch are over, and nothing has been copied yet. May sleep.
 *
 * rule: migrc/mixed: some mappings of a folio were deferred before another forbade it. A
 * task may write through that one while CPUs read the old page through the first ones.
 *
 * One drain serves all folios of the batch. Until then nobody can change what is read through
 * a TLB: the folios are locked, and a task that writes maps the source, too.
 */
static inline void migrc_flush_mixed(void)
{
	if (likely(!current->tlb_ubc.migrc.mixed))
		return;
	current->tlb_ubc.migrc.mixed = false;
	migrc_drain(MIGRC_DRAIN_MIXED);
}

/**
 * migrc_flush_mm - flush what was deferred in an mm
 * @mm: the address space
 * @hook: what is about to happen in it
 *
 * Context: any in which flush_tlb_mm() may be called; a PTL may be held. It need not
 * cover what is deferred under another PTL meanwhile.
 * Return: whether there was something to flush.
 */
static inline bool migrc_flush_mm(struct mm_struct *mm, enum migrc_hook hook)
{
	u64 deferred;

	if (!static_branch_unlikely(&migrc_used_key))
		return false;
	/*
	 * rule: migrc/order: the flush may also serve a mark that the caller has read before,
	 * and DSB ISHST waits for no load.
	 */
	smp_rmb();
	deferred = atomic64_read(&mm->migrc.deferred);
	if (likely(deferred <= (u64)atomic64_read(&mm->migrc.flushed)) || migrc_skip(hook))
		return false;
	/* No task is left that could read the old page, and exit_mmap() flushes all at its end. */
	if (!atomic_read(&mm->mm_users))
		return false;
	migrc_flush_mm_slow(&mm->migrc, deferred, hook);
	return true;
}

/**
 * migrc_before_restore - migration is about to map pages again
 * @flags: of the walk, see migrc_deferred_flags()
 * @vma: area of the entries
 * @addr: address of the first
 * @pte: the new entry
 * @nr: how many there are
 *
 * Flushes first if the pages were deferred and the new entries have another size or memory
 * type: a TLB must not hold both. Blocks become pages if the area has been cut. Its memory
 * type is another one if mprotect() has changed that, but has not reached the page table
 * yet, where it would flush (hook "range").
 *
 * Context: under the PTL.
 */
static inline void migrc_before_restore(enum ttu_flags flags, struct vm_area_struct *vma,
					unsigned long addr, pte_t pte, unsigned int nr)
{
	if (static_branch_unlikely(&migrc_used_key))
		migrc_before_restore_slow(flags, vma, addr, pte, nr);
}

/* vma->vm_page_prot is about to change, and a flush is pending. */
static inline void migrc_before_protect(void)
{
	/*
	 * A CPU that sees the new vm_page_prot sees the pending flush. Pairs with
	 * migrc_before_restore_slow(); verify/litmus/migrc-type-* of tlb-rs proves it.
	 */
	smp_wmb();
}

/* The caller is about to write to a page whose @pte may not allow it. Under the PTL. */
static inline void migrc_write_forced(struct mm_struct *mm, unsigned long addr, pte_t pte)
{
	if (pte_write(pte))
		return;
	migrc_flush_mm(mm, MIGRC_HOOK_FORCE);
	migrc_debug_write(mm, addr, MIGRC_HOOK_FORCE);
}

/* Flags for remove_migration_ptes() after a folio has moved for @reason. */
static inline enum ttu_flags migrc_restore_flags(enum migrate_reason reason)
{
	if (static_branch_unlikely(&migrc_readmostly_key) && static_key_enabled(&migrc_key) &&
	    migrc_reason_may_defer(reason))
		return TTU_PROTECT;
	return 0;
}

/**
 * migrc_protect - make a page that is not written to fit for deferrals
 * @folio: the folio, which has been migrated
 * @vma: area of the entry
 * @pte: the entry before the migration, which was writable
 *
 * An anonymous page stays writable as long as the program lives, although most are
 * written only once. The dirty bit tells whether it was written to since its last
 * migration. If so, the bit is cleared. If not, the page loses write permission. The
 * folio stays dirty and its mapping exclusive, so a write fault makes it writable again.
 *
 * Context: under the PTL; what was writable before the migration has been flushed.
 * Return: the entry to map it with.
 */
static inline pte_t migrc_protect(struct folio *folio, struct vm_area_struct *vma, pte_t pte)
{
	if (!static_branch_unlikely(&migrc_readmostly_key))
		return pte;
	return migrc_protect_slow(folio, vma, pte);
}

/* Whether a NUMA hinting fault should leave write permission to a write fault. */
static inline bool migrc_stays_protected(struct vm_area_struct *vma, unsigned int fault_flags,
					 pte_t pte)
{
	return static_branch_unlikely(&migrc_readmostly_key) && !pte_dirty(pte) &&
	       !(fault_flags & FAULT_FLAG_WRITE) && migrc_stays_protected_slow(vma);
}

/*
 * Whether a page that a fault gets back from swap, as a clean one, should leave write permission to
 * a write fault. If so, that is counted. Under the PTL.
 */
static inline bool migrc_reads_protected(struct folio *folio, struct vm_area_struct *vma,
					 unsigned int fault_flags)
{
	return static_branch_unlikely(&migrc_readmostly_key) &&
	       !(fault_flags & FAULT_FLAG_WRITE) && migrc_reads_protected_slow(folio, vma);
}

/* A write fault is about to make the page of @pte writable where it is. Under the PTL. */
static inline void migrc_reuse(struct vm_area_struct *vma, pte_t pte)
{
	migrc_flush_mm(vma->vm_mm, MIGRC_HOOK_REUSE);
	/* Most pages that lost permission for another reason are dirty. */
	if (static_branch_unlikely(&migrc_readmostly_key) && !pte_dirty(pte) &&
	    vma_is_anonymous(vma)) {
		count_vm_event(MIGRC_READMOSTLY_MISSES);
		migrc_count_miss(&vma->vm_mm->migrc);
	}
}

/* Whether there are sources that a drain would release now or soon. */
static inline bool migrc_holds(void)
{
	return static_branch_unlikely(&migrc_used_key) &&
	       (global_zone_page_state(NR_MIGRC_HELD) || migrc_debug_holds());
}

/* Whether a drain for @reason would release anything. */
static inline bool migrc_may_reclaim(enum migrc_drain_reason reason)
{
	enum migrc_hook hook = MIGRC_HOOK_PRESSURE + (reason - MIGRC_DRAIN_PRESSURE);

	if (reason == MIGRC_DRAIN_ISOLATE)
		smp_mb(); /* read what is held after the isolation: see migrc_add_source() */
	return unlikely(migrc_holds()) && !migrc_skip(hook);
}

/**
 * migrc_reclaim - release all sources
 * @reason: for the statistics
 *
 * Flushes first. When it returns, all sources that were there before are released.
 *
 * Context: may sleep; interrupts on.
 * Return: false if there was nothing to release.
 */
static inline bool migrc_reclaim(enum migrc_drain_reason reason)
{
	if (!migrc_may_reclaim(reason))
		return false;
	migrc_drain(reason);
	return true;
}

/**
 * migrc_reclaim_some - release sources for a caller that does not need all of them
 * @reason: for the statistics
 *
 * As migrc_reclaim(), but if a drain is running, its end is enough.
 */
static inline bool migrc_reclaim_some(enum migrc_drain_reason reason)
{
	if (!migrc_may_reclaim(reason))
		return false;
	migrc_drain_join(reason);
	return true;
}

/*
 * Entries that have just been cleared become valid again, one by one, because the walk fails. The
 * flush of some may have been deferred; that of the others is up to the TLB batch.
 *
 * rule: migrc/size: entries of two sizes must not overlap
 *
 * Context: the PTL that the entries were cleared under is held.
 */
static inline void migrc_put_back(enum ttu_flags flags, struct mm_struct *mm,
				  enum migrc_geometry geometry)
{
	if ((flags & TTU_DEFER_RO) && geometry == MIGRC_BLOCKS)
		migrc_flush_mm(mm, MIGRC_HOOK_SIZE);
}

/**
 * migrc_begin_round - pages that a task is going to demote may be deferred
 * @state: of the task, which sets its reclaim_state to it; it has nested none
 * @defers: whether it calls migrc_end_round() before it relies on the memory
 */
static inline void migrc_begin_round(struct reclaim_state *state, bool defers)
{
	state->may_defer = defers;
}

/*
 * Whether this is kswapd, and it may hold pages. Any context. Not whether it does: that may change
 * between two looks.
 */
static inline bool migrc_in_round(void)
{
	return static_branch_unlikely(&migrc_used_key) && current_is_kswapd() &&
	       current->reclaim_state && current->reclaim_state->may_defer;
}

/**
 * migrc_credit - pages that are as good as free for kswapd
 * @zone: a zone of its node
 *
 * rule: migrc/credit: free memory does not grow while kswapd holds what it has demoted.
 *
 * Context: any.
 * Return: pages of @zone that are free as soon as kswapd calls migrc_end_round(); 0 for others.
 */
static inline unsigned long migrc_credit(struct zone *zone)
{
	return migrc_in_round() && !migrc_skip(MIGRC_HOOK_CREDIT) ?
	       zone_page_state(zone, NR_MIGRC_HELD) : 0;
}

/**
 * migrc_end_round - release what a task has demoted
 *
 * Context: may sleep; reclaim may wait for it.
 * Return: false if there was nothing to release.
 */
static inline bool migrc_end_round(void)
{
	return migrc_reclaim(MIGRC_DRAIN_ROUND);
}

static inline void migrc_mm_init(struct mm_struct *mm)
{
	mm->migrc = (struct migrc_mm){ };
}

/* No CPU can use the translations of @mm any more: exit_mmap() is done. */
static inline void migrc_mm_exit(struct mm_struct *mm)
{
	if (unlikely(mm->migrc.registered) && !migrc_skip(MIGRC_HOOK_EXIT))
		migrc_unregister(&mm->migrc);
	migrc_debug_exit(&mm->migrc);
}

#else /* !CONFIG_MIGRC */

static inline bool migrc_may_defer(struct folio *src,
				   enum migrate_reason reason)
{
	return false;
}

static inline bool migrc_defer(enum ttu_flags flags, struct vm_area_struct *vma,
			       unsigned long addr, unsigned int nr, pte_t pte,
			       enum migrc_geometry geometry)
{
	return false;
}

static inline void migrc_flushed(enum ttu_flags flags,
				 struct vm_area_struct *vma, pte_t pte) { }

static inline void migrc_poisoned(enum ttu_flags flags) { }

static inline bool migrc_walk_end(enum ttu_flags flags, struct folio *src)
{
	return false;
}

static inline bool migrc_walk_blocks(void)
{
	return false;
}

static inline enum ttu_flags migrc_deferred_flags(bool deferred, bool blocks)
{
	return 0;
}

static inline void migrc_flush_mixed(void) { }

static inline void migrc_add_source(struct folio *src, enum migrate_reason reason) { }

static inline bool migrc_flush_mm(struct mm_struct *mm, enum migrc_hook hook)
{
	return false;
}

static inline void migrc_before_restore(enum ttu_flags flags, struct vm_area_struct *vma,
					unsigned long addr, pte_t pte, unsigned int nr) { }

static inline void migrc_before_protect(void) { }

static inline void migrc_write_forced(struct mm_struct *mm, unsigned long addr, pte_t pte) { }

static inline enum ttu_flags migrc_restore_flags(enum migrate_reason reason)
{
	return 0;
}

static inline pte_t migrc_protect(struct folio *folio, struct vm_area_struct *vma, pte_t pte)
{
	return pte;
}

static inline bool migrc_stays_protected(struct vm_area_struct *vma, unsigned int fault_flags,
					 pte_t pte)
{
	return false;
}

static inline bool migrc_reads_protected(struct folio *folio, struct vm_area_struct *vma,
					 unsigned int fault_flags)
{
	return false;
}

static inline void migrc_reuse(struct vm_area_struct *vma, pte_t pte) { }

static inline bool migrc_reclaim(enum migrc_drain_reason reason)
{
	return false;
}

static inline bool migrc_reclaim_some(enum migrc_drain_reason reason)
{
	return false;
}

static inline void migrc_put_back(enum ttu_flags flags, struct mm_struct *mm,
				  enum migrc_geometry geometry) { }
static inline void migrc_begin_round(struct reclaim_state *state, bool defers) { }

static inline bool migrc_in_round(void)
{
	return false;
}

static inline unsigned long migrc_credit(struct zone *zone)
{
	return 0;
}

static inline bool migrc_end_round(void)
{
	return false;
}

static inline void migrc_fork_begin(struct mm_struct *mm) { }

static inline void migrc_fork_end(struct mm_struct *mm) { }

static inline void migrc_mm_init(struct mm_struct *mm) { }

static inline void migrc_mm_exit(struct mm_struct *mm) { }
#endif /* CONFIG_MIGRC */

/* guard(migrc_round)(): migrc_end_round() on each return */
DEFINE_LOCK_GUARD_0(migrc_round, (void)0, migrc_end_round())

#endif /* _LINUX_MIGRC_H */
