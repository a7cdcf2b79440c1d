/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Batched TLB invalidation of unmapped PTEs: one range for a run of PTEs instead
 * of one operation for each PTE.  See Documentation/mm/tlb_batch.rst, and
 * Documentation/mm/tlb_rules.rst for the rules.
 */
#ifndef _LINUX_TLB_BATCH_H
#define _LINUX_TLB_BATCH_H

#include <linux/tlb_batch_types.h>

struct task_struct;
struct unmapped_folios;

#ifdef CONFIG_TLB_RS_FAULT_INJECTION
bool tlb_batch_skip(enum tlb_batch_hook hook);
void tlb_batch_delay(enum tlb_batch_reason reason);
#else
static inline bool tlb_batch_skip(enum tlb_batch_hook hook)
{
	return false;
}

static inline void tlb_batch_delay(enum tlb_batch_reason reason) { }
#endif /* CONFIG_TLB_RS_FAULT_INJECTION */

#ifdef CONFIG_RUST_TLB_BATCH

#include <linux/jump_label.h>
#include <linux/mm_types.h>
#include <linux/mmdebug.h>
#include <linux/sched.h>
#include <linux/string.h>
#include <linux/tracepoint-defs.h>
#include <asm/barrier.h>
#include <asm/tlb_batch.h>

/*
 * The longest run of PTEs that is cleared at once.  It bounds the bitmap on the
 * stack, and the time under the PTL until the flush is owed.
 */
#define TLB_BATCH_RUN_MAX	512

DECLARE_STATIC_KEY_TRUE(tlb_batch_key);
DECLARE_STATIC_KEY_FALSE(tlb_batch_unbatched_key);
DECLARE_TRACEPOINT(tlb_batch_add);

/* mm/tlb_batch/tlb_batch_main.rs */
void tlb_batch_add_slow(struct tlb_batch *batch, struct mm_struct *mm,
			unsigned long start, unsigned long end);
void tlb_batch_hold_slow(struct tlb_batch *batch, struct mm_struct *mm);
void tlb_batch_issue_slow(struct tlb_batch *batch, enum tlb_batch_reason reason);
void tlb_batch_flush_slow(struct tlb_batch *batch, enum tlb_batch_reason reason);

/* mm/tlb_batch/tlb_batch_shim.c */
void tlb_batch_arch_sync(void);
void tlb_batch_do_trace_add(struct mm_struct *mm, unsigned long start, unsigned long end);
void tlb_batch_exit_slow(void);

static __always_inline bool tlb_batch_enabled(void)
{
	return static_branch_likely(&tlb_batch_key);
}

/*
 * Whether a split flushes each PTE by itself, as Linux did before splits were
 * batched.  For comparison only.
 */
static __always_inline bool tlb_batch_unbatched(void)
{
	return IS_ENABLED(CONFIG_TLB_RS_BENCH) &&
	       static_branch_unlikely(&tlb_batch_unbatched_key);
}

/**
 * tlb_batch_add - owe the invalidation of a run of PTEs
 * @batch: the current task's batch
 * @mm: address space of the run
 * @start: address of the first cleared PTE
 * @end: address behind the last cleared PTE
 *
 * Orders the clears before what follows, so that the caller may mark the mm.  A CPU
 * that sees the mark in flush_tlb_batched_pending() must not flush before it sees
 * the clears.
 *
 * Context: the PTL that the PTEs were cleared under is held.
 * Return: false if vm.tlb_batch is 0: the caller flushes without the batch.
 */
static inline bool tlb_batch_add(struct tlb_batch *batch, struct mm_struct *mm,
				 unsigned long start, unsigned long end)
{
	struct tlb_batch_range *last;

	/* The run may have been cleared while vm.tlb_batch was still 1. */
	if (ARCH_TLB_BATCH_BBM && end - start > PAGE_SIZE)
		current->tlb_ubc.unsynced_run = true;

	if (!tlb_batch_enabled())
		return false;

	/*
	 * rule: tlb_batch/order: a CPU that sees the mark of the mm must see the cleared PTEs,
	 * too.  On arm64 a DMB is enough for that; the DSB for the TLBI comes when the range
	 * is issued.  Litmus tests of tlb-rs prove both (verify/litmus: order-dmb-ishst,
	 * sync-issue-dsb-ishst).  On x86 clearing a PTE is a locked operation.
	 */
	smp_wmb();

	if (tracepoint_enabled(tlb_batch_add))
		tlb_batch_do_trace_add(mm, start, end);

	if (!batch->nr) {
		batch->range[0] = (struct tlb_batch_range){ start, end, mm };
		batch->nr = 1;
		batch->unsynced = true;
		return true;
	}

	last = &batch->range[batch->last];
	if (last->end == start && last->mm == mm)
		last->end = end;
	else
		tlb_batch_add_slow(batch, mm, start, end);
	return true;
}

/* Whether ranges are owed that are not issued yet. */
static inline bool tlb_batch_owed(const struct tlb_batch *batch)
{
	return batch->nr;
}

/**
 * tlb_batch_issue - issue what is owed, without waiting for it
 * @batch: the current task's batch
 * @reason: why it is due
 *
 * Context: any in which the mms of the batch are alive, PTL held or not.
 */
static inline void tlb_batch_issue(struct tlb_batch *batch, enum tlb_batch_reason reason)
{
	if (!tlb_batch_owed(batch))
		return;
	tlb_batch_delay(reason);
	tlb_batch_issue_slow(batch, reason);
}

/**
 * tlb_batch_hold - keep what is owed of @mm until try_to_unmap_flush()
 * @batch: the current task's batch
 * @mm: address space whose rmap_one() callback ends
 *
 * The mm may exit from here on; a reference keeps it from being freed. The caller
 * must keep faults from filling the addresses before the flush: by migration
 * entries, or by a folio that stays locked and in its cache.
 *
 * Context: no spinlock held, @mm alive.
 */
static inline void tlb_batch_hold(struct tlb_batch *batch, struct mm_struct *mm)
{
	if (!tlb_batch_owed(batch))
		return;
	tlb_batch_delay(TLB_BATCH_RMAP_END);
	/* rule: tlb_batch/hold: the mm may be freed, and another mm get its ASID */
	if (batch->held[0] != mm && !tlb_batch_skip(TLB_BATCH_HOOK_HOLD))
		tlb_batch_hold_slow(batch, mm);
}

/**
 * tlb_batch_flush - issue what is owed and wait until every CPU has done it
 * @batch: the current task's batch
 *
 * Also drops the references to the held mms.
 *
 * Context: process context, interrupts on, no spinlock held.
 * Return: false if this task has owed nothing since the last flush.
 */
static inline bool tlb_batch_flush(struct tlb_batch *batch)
{
	bool owed = batch->unsynced;

	current->tlb_ubc.unsynced_run = false;
	if (!owed && !batch->held[0])
		return false;
	tlb_batch_delay(TLB_BATCH_FLUSH);
	tlb_batch_flush_slow(batch, TLB_BATCH_FLUSH);
	return owed;
}

/**
 * tlb_batch_put_back - a cleared PTE is about to become valid again
 * @batch: the current task's batch
 *
 * Does not wait for a PTE that was cleared alone: it is in no block any more.
 *
 * Context: PTL held or not, interrupts on.
 */
static inline void tlb_batch_put_back(struct tlb_batch *batch)
{
	/*
	 * rule: tlb_batch/putback: a run is cleared without unfolding its contiguous
	 * blocks, so a TLB may still hold an entry of another size.  The architecture
	 * demands that it is gone before the new one becomes valid.
	 */
	if (!ARCH_TLB_BATCH_BBM || !current->tlb_ubc.unsynced_run ||
	    tlb_batch_skip(TLB_BATCH_HOOK_PUTBACK))
		return;
	if (batch->unsynced)
		tlb_batch_flush_slow(batch, TLB_BATCH_PUT_BACK);
	else
		tlb_batch_arch_sync();
	current->tlb_ubc.unsynced_run = false;
}

/*
 * As tlb_batch_put_back(), before a large folio that was unmapped is unlocked: a fault
 * may then map as a block what was mapped page by page.
 */
static inline void tlb_batch_unlock_large(struct tlb_batch *batch)
{
	if (ARCH_TLB_BATCH_BBM && batch->unsynced)
		current->tlb_ubc.unsynced_run = true;
	tlb_batch_put_back(batch);
}

/* A cleared PTE becomes valid: warns if the caller forgot tlb_batch_put_back(). */
static inline void tlb_batch_check_put_back(const struct tlb_batch *batch)
{
	VM_WARN_ON_ONCE(ARCH_TLB_BATCH_BBM && !tlb_batch_skip(TLB_BATCH_HOOK_PUTBACK) &&
			current->tlb_ubc.unsynced_run);
}

#define current_tlb_batch()	(&current->tlb_ubc.batch)

/* rule: tlb_batch/owner: the parent owes the flush and has the references, not the child */
static inline void tlb_batch_fork(struct task_struct *child)
{
	if (!tlb_batch_skip(TLB_BATCH_HOOK_FORK))
		memset(&child->tlb_ubc, 0, sizeof(child->tlb_ubc));
}

/* mm/vmscan.c */
void tlb_batch_let_go(struct unmapped_folios *unmapped, bool waits);

/* Folios that reclaim keeps locked until their flush; NULL if there are none. */
static inline void tlb_batch_keep(struct unmapped_folios *unmapped)
{
	current->tlb_ubc.kept = unmapped;
}

/**
 * tlb_batch_walk - an rmap walk reaches a VMA, or is about to wait
 * @waits: whether it is about to wait
 *
 * Context: no spinlock held; rmap locks may be held.
 */
static inline void tlb_batch_walk(bool waits)
{
	struct unmapped_folios *unmapped = current->tlb_ubc.kept;

	/* rule: tlb_batch/wait: a task may wait for a folio that reclaim keeps locked */
	if (unlikely(unmapped))
		tlb_batch_let_go(unmapped, waits);
}

/* mm/migrate.c: whether a large folio is mapped again in runs, and how large each was. */
#define tlb_batch_restores()	tlb_batch_enabled()
void tlb_batch_restored(unsigned int pages);

/* mm/rmap.c: whether PTEs of a large folio are cleaned in runs. */
#define tlb_batch_mkcleans()	tlb_batch_enabled()

/* rule: tlb_batch/owner: a task that owes pays before it returns; this is for an oops */
static inline void tlb_batch_exit(void)
{
	/* On a stack that may be gone. */
	current->tlb_ubc.kept = NULL;
	if (unlikely(current_tlb_batch()->unsynced || current_tlb_batch()->held[0]))
		tlb_batch_exit_slow();
}

#else /* !CONFIG_RUST_TLB_BATCH */

#define current_tlb_batch()	NULL
#define tlb_batch_enabled()	false
#define tlb_batch_unbatched()	false
#define tlb_batch_restores()	true
#define tlb_batch_mkcleans()	true
#define arch_tlb_batch_pte(pte)	(pte)
#define TLB_BATCH_RUN_MAX	1

static inline bool tlb_batch_add(struct tlb_batch *batch, struct mm_struct *mm,
				 unsigned long start, unsigned long end)
{
	return false;
}

static inline bool tlb_batch_owed(const struct tlb_batch *batch)
{
	return false;
}

static inline void tlb_batch_issue(struct tlb_batch *batch, enum tlb_batch_reason reason) { }

static inline void tlb_batch_hold(struct tlb_batch *batch, struct mm_struct *mm) { }

static inline bool tlb_batch_flush(struct tlb_batch *batch)
{
	return false;
}

static inline void tlb_batch_put_back(struct tlb_batch *batch) { }

static inline void tlb_batch_unlock_large(struct tlb_batch *batch) { }

static inline void tlb_batch_check_put_back(const struct tlb_batch *batch) { }

static inline void tlb_batch_keep(struct unmapped_folios *unmapped) { }

static inline void tlb_batch_restored(unsigned int pages) { }

static inline void tlb_batch_walk(bool waits) { }

static inline void tlb_batch_fork(struct task_struct *child) { }

static inline void tlb_batch_exit(void) { }
#endif /* CONFIG_RUST_TLB_BATCH */

#endif /* _LINUX_TLB_BATCH_H */
