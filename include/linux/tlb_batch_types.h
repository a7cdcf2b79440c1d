/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _LINUX_TLB_BATCH_TYPES_H
#define _LINUX_TLB_BATCH_TYPES_H

#include <linux/types.h>

struct mm_struct;

/* Why ranges are issued, or why their completion is waited for, and its name. */
#define TLB_BATCH_REASONS(EM) \
	EM(RMAP_END, "rmap_end")	/* an rmap_one() callback ends: the mm may go away */ \
	EM(MMS_FULL, "mms_full")	/* the same, and no more mms can be held */ \
	EM(VA_OPEN, "va_open")		/* after the PTL, a fault may fill the address */ \
	EM(OVERFLOW, "overflow")	/* the array is full */ \
	EM(UNLOCK, "unlock")		/* reclaim is about to unlock the folio */ \
	EM(PUT_BACK, "put_back")	/* a cleared PTE is about to become valid again */ \
	EM(FLUSH, "flush")		/* try_to_unmap_flush() */

enum tlb_batch_reason {
#define TLB_BATCH_EM(reason, name)	TLB_BATCH_##reason,
	TLB_BATCH_REASONS(TLB_BATCH_EM)
#undef TLB_BATCH_EM
	NR_TLB_BATCH_REASONS
};

/* Hooks that fault injection can remove: one bit each, see debugfs skip_hook. */
#define TLB_BATCH_HOOKS(EM) \
	EM(FLUSH, "flush") \
	EM(MARK, "mark") \
	EM(PUTBACK, "putback") \
	EM(SYNC, "sync") \
	EM(GEN, "gen") \
	EM(HOLD, "hold") \
	EM(OPEN, "open") \
	EM(LOCK, "lock") \
	EM(WAIT, "wait") \
	EM(DIRTY, "dirty") \
	EM(ENOMEM, "enomem") \
	EM(FORK, "fork") \
	EM(EXIT, "exit") \
	EM(RUNEND, "runend") \
	EM(ATTRS, "attrs") \
	EM(EXCLUSIVE, "exclusive") \
	EM(OWED, "owed") \
	EM(PENDING, "pending") \
	EM(UPGRADE, "upgrade") \
	EM(STORES, "stores") \
	EM(ALIKE, "alike") \
	EM(GATHER, "gather") \
	EM(COLLECT, "collect") \
	EM(OTHERS, "others") \
	EM(LOCKED, "locked") \
	EM(NESTED, "nested") \
	EM(DEVICES, "devices")

enum tlb_batch_hook {
#define TLB_BATCH_EM(hook, name)	TLB_BATCH_HOOK_##hook,
	TLB_BATCH_HOOKS(TLB_BATCH_EM)
#undef TLB_BATCH_EM
	NR_TLB_BATCH_HOOKS
};

/*
 * The array lives in task_struct, because the page table lock forbids to allocate.
 * Neighbours become one range.  Only pages without neighbours fill more than a few
 * entries, and they cost as much as without the batch.
 */
#define TLB_BATCH_RANGES	8

/*
 * Address spaces that a task keeps from being freed because it owes ranges in them.
 * Fewer than TLB_BATCH_RANGES: neighbours in one mm are one range, so there is room
 * left for the ranges of the next folio.
 */
#define TLB_BATCH_MMS		4

/* User addresses [start, end) of @mm whose PTEs have been cleared. */
struct tlb_batch_range {
	unsigned long start;
	unsigned long end;
	struct mm_struct *mm;
};

/*
 * Owned by one task.  range[0..nr) are the invalidations that the task owes and has
 * not issued yet.  range[last] was filled last; @last is 0 if @nr is.  @unsynced: an
 * invalidation is in range[], or was issued and not waited for yet.  @issued:
 * there is one of the second kind.  @evicted ranges of @evicted_bytes were issued
 * for lack of room and are not accounted yet.  @held are the mms that the batch has
 * a reference to (mmgrab()); unused entries come last and are NULL.
 *
 * rust/kernel/mm/tlb_batch/ranges.rs has the same layout.
 */
struct tlb_batch {
	u8 nr;
	u8 last;
	bool unsynced;
	bool issued;
	u32 evicted;
	unsigned long evicted_bytes;
	struct tlb_batch_range range[TLB_BATCH_RANGES];
	struct mm_struct *held[TLB_BATCH_MMS];
};

#endif /* _LINUX_TLB_BATCH_TYPES_H */
