/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _LINUX_MIGRC_TYPES_H
#define _LINUX_MIGRC_TYPES_H

#include <linux/types.h>
#ifdef CONFIG_MIGRC	/* on 64 bits: here others have no atomic64_t yet */
struct xarray;

/*
 * What an mm has for TLB flushes that were deferred at migration.
 *
 * @deferred: deferrals.
 * @flushed: how many of them a flush has covered. Both only grow;
 *       mm/migrc/generation.rs gives them their meaning.
 * @seen: @deferred before the invalidation of the drain that is running, or 0 if nothing
 *       was pending. Of the drain.
 * @next, @prev: among the mms that a drain flushes, from the first deferral to the
 *       exit. They change under the lock of that list; a drain reads @next without.
 * @readmostly: whether it pays to take write permission away. Atomic;
 *       mm/migrc/readmostly.rs gives it its meaning.
 * @forking: dup_mmap() takes write permission away, and has not flushed yet. Changes under the
 *       mmap_lock, held for writing; who defers reads it under a PTL of the page tables.
 * @registered: is in that list. Changes under its lock; deferrals and exit read it without.
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
 * What one rmap walk has met: whether the flush of some mapping was deferred, why others
 * are flushed that nobody can write through then, and why others have to be flushed that
 * forbid to defer any (bits of enum migrc_fact). And whether there was both in a walk since
 * migrc_flush_mixed().
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
