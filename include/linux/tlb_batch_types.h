/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _LINUX_TLB_BATCH_TYPES_H
#define _LINUX_TLB_BATCH_TYPES_H

#include <linux/types.h>

struct mm_struct;

/*
 * The array lives in task_struct and is filled under the page table lock, where
 * nothing can be allocated.  Neighbours become one range, so that more than a few
 * entries are used only by pages that have none; these cost what they always did.
 */
#define TLB_BATCH_RANGES	8

/*
 * Address spaces that a task keeps from being freed because it owes something
 * of them.  Less than TLB_BATCH_RANGES: if what is owed of each is one range, as
 * for neighbours it is, this leaves room for those of the next folio.
 */
#define TLB_BATCH_MMS		4

/* User addresses [start, end) of @mm whose PTEs have been cleared. */
struct tlb_batch_range {
	unsigned long start;
	unsigned long end;
	struct mm_struct *mm;
};

/*
 * Owned by one task.  range[0..nr) is the TLB invalidation that the task owes
 * and has not issued yet; range[last] was filled last, and @last is 0 if @nr is.
 * @unsynced says that an invalidation is either in range[] or was issued without
 * waiting for its completion; @issued that there is one of the latter.  @evicted
 * ranges of @evicted_bytes were issued for lack of room and are not accounted
 * yet.  @held are the mms with a reference (mmgrab()) of the batch, the unused
 * entries last and NULL.
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
