/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _LINUX_MIGRC_TYPES_H
#define _LINUX_MIGRC_TYPES_H

#include <linux/types.h>
#ifdef CONFIG_MIGRC	/* 64-bit only: 32-bit kernels have no atomic64_t here yet */
struct xarray;

/*
 * State of an mm for TLB flushes that were deferred at migration.
 *
 * @deferred: number of deferrals.
 * @flushed: how many of them a flush has covered. Both only grow;
 *       mm/migrc/generation.rs gives them their meaning.
 * @seen: @deferred before the invalidation of the drain that is running, or 0 if nothing
 *       was pending. Only the drain uses it.
 * @next, @prev: links in the list of mms that a drain flushes, from the first deferral to
 *       the exit. They change under the lock of that list; a drain reads @next without it.
 * @readmostly: whether it pays to take write permission away. Atomic;
 *       mm/migrc/readmostly.rs gives it its meaning.
 * @forking: dup_mmap() takes write permission away, and has not flushed yet. Changes under the
 *       mmap_lock, held for writing; a deferral reads it under a PTL of the page tables.
 * @registered: whether the mm is in that list. Changes under its lock; deferrals and exit
 *       read it without.
 * @addrs: with CONFIG_MIGRC_DEBUG, the number of the last deferral of each page; NULL
 *       before the first one, or if there was no memory for it.
 */
struct migrc_mm {
	atomic64_t deferred;
	atomic64_t flushed;
	u64 seen;
	struct migrc_mm *next;
	struct migrc_mm *prev;
	atomic64_t readmostly;
	bool forking;
	bool registered;
#ifdef CONFIG_MIGRC_DEBUG
	struct xarray *addrs;
#endif
};

/*
 * What one rmap walk has met.
 *
 * @deferred: the flush of some mapping was deferred.
 * @mixed: a walk since migrc_flush_mixed() has met both kinds of mapping.
 * @flushed: why mappings are flushed that leave the others alone (bits of enum migrc_fact).
 * @denied: why mappings forbid to defer any (the same).
 */
struct migrc_walk {
	bool deferred;
	bool mixed;
	u32 flushed;
	u32 denied;
#ifdef CONFIG_MIGRC_DEBUG
	unsigned long addr;
	int pid;
#endif
};
#endif /* CONFIG_MIGRC */
#endif /* _LINUX_MIGRC_TYPES_H */
