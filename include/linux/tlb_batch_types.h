/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _LINUX_TLB_BATCH_TYPES_H
#define _LINUX_TLB_BATCH_TYPES_H

#include <linux/types.h>

struct mm_struct;

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
