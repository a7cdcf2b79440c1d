/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _LINUX_MIGRC_TYPES_H
#define _LINUX_MIGRC_TYPES_H

#include <linux/types.h>

/*
 * What speaks against a deferral, and its name; mm/migrc/eligibility.rs has the same
 * numbers. Those of a folio come first, those of a mapping follow.
 */
#define MIGRC_FACTS(EM) \
	EM(REASON, "reason")		/* the caller needs the source at once */ \
	EM(MEMORY, "memory")		/* the task reclaims, or its zone lacks memory */ \
	EM(LIMIT, "limit")		/* larger than all that may be deferred */ \
	EM(MAPPINGS, "mappings")	/* in more page tables than a drain should flush */ \
	EM(NOT_FROZEN, "not_frozen")	/* the content can change without a PTE */ \
	EM(KIND, "kind")		/* hugetlb, device memory, mapped by a PMD */ \
	EM(POISONED, "poisoned")	/* a page of the folio is poisoned */ \
	EM(ISOLATED, "isolated")	/* page blocks of its zone are being emptied */ \
	EM(WRITABLE, "writable")	/* the entry was writable */ \
	EM(FLUSH_PENDING, "flush_pending") /* permissions are being taken away */ \
	EM(SHARED, "shared")		/* the PTE may become writable without a fault */ \
	EM(NOTIFIER, "notifier")	/* a device or a guest walks this page table */ \
	EM(BLOCK, "block")		/* a TLB may hold blocks that may not be deferred */ \
	EM(MERGED, "merged")		/* a range that is flushed now includes it at no cost */ \
	EM(LOCAL, "local")		/* no other CPU needed a flush */ \
	EM(MIXED, "mixed")		/* some were deferred, then another mapping forbade it */

/* Why a drain runs. Of several reasons, the last is counted. */
#define MIGRC_DRAIN_REASONS(EM) \
	EM(AGE, "age")			/* the oldest source has waited for long enough */ \
	EM(LIMIT, "limit")		/* a node holds as many pages as it may */ \
	EM(PRESSURE, "pressure")	/* an allocation would have to reclaim */ \
	EM(KSWAPD, "kswapd")		/* kswapd is about to look at the watermarks */ \
	EM(ROUND, "round")		/* a task has demoted pages, and relies on them */ \
	EM(ISOLATE, "isolate")		/* page blocks or per-CPU lists are to be emptied */ \
	EM(POISON, "poison")		/* memory failure looks at a page */ \
	EM(MIXED, "mixed")		/* not all mappings of a folio could be deferred */ \
	EM(WRITE, "write")		/* a file may be written to, or is zeroed */ \
	EM(OFF, "off")			/* vm.migrc_enable=0, or a source that came later */

/*
 * Rules and hooks. Fault injection can remove them: one bit each, see debugfs
 * skip_hook. The first ones flush one mm, and are counted.
 */
#define MIGRC_HOOKS(EM) \
	EM(RANGE, "range")		/* entries of a range change or go away */ \
	EM(REUSE, "reuse")		/* a fault makes the page writable */ \
	EM(SWAPIN, "swapin")		/* a page from swap is mapped writable */ \
	EM(FORCE, "force")		/* a caller writes to read-only memory */ \
	EM(PROTNONE, "protnone")	/* migration makes an entry inaccessible */ \
	EM(TYPE, "type")		/* migration maps an entry of another memory type */ \
	EM(SIZE, "size")		/* migration maps entries of another size */ \
	EM(WRITABLE, "writable")	/* deny what was writable */ \
	EM(PENDING, "pending")		/* deny while permissions are taken away */ \
	EM(FORK, "fork")		/* a fork takes write permission away */ \
	EM(FILE, "file")		/* deny shmem, and files that a task may write to */ \
	EM(RECHECK, "recheck")		/* look for writers again after the walk */ \
	EM(WRITE, "write")		/* write access to a file drains */ \
	EM(CHANGE, "change")		/* a change without write access drains */ \
	EM(NOTIFIER, "notifier")	/* deny memory that devices or guests walk to */ \
	EM(CLEAN, "clean")		/* a page that was written to keeps write permission */ \
	EM(PAUSE, "pause")		/* so does one in an mm where faults cost too much */ \
	EM(HINT, "hint")		/* a reader's NUMA hinting fault does not give it back */ \
	EM(SWAPREAD, "swapread")	/* what is read from swap stays read-only */ \
	EM(MIXED, "mixed")		/* deny a folio that some mapping may write to */ \
	EM(GEOMETRY, "geometry")	/* the restore is told of blocks */ \
	EM(BLOCK, "block")		/* deny blocks, and what is not as the first mapping */ \
	EM(RECORD, "record")		/* the ledger gets the source */ \
	EM(EXIT, "exit")		/* an mm that exits leaves the list */ \
	EM(FLUSH, "flush")		/* a drain flushes */ \
	EM(OFF, "off")			/* nothing is added once vm.migrc_enable is 0 */ \
	EM(PRESSURE, "pressure")	/* an allocation drains */ \
	EM(KSWAPD, "kswapd")		/* kswapd drains */ \
	EM(ROUND, "round")		/* a task that has demoted drains */ \
	EM(ISOLATE, "isolate")		/* a task that empties page blocks drains */ \
	EM(POISON, "poison")		/* memory failure drains */ \
	EM(DISARM, "disarm")		/* a drain stops the timer of its sources */ \
	EM(WORKER, "worker")		/* a worker drains, not the caller */ \
	EM(CREDIT, "credit")		/* kswapd stops for what it holds */ \
	EM(GATE, "gate")		/* kswapd defers nothing close to the min watermark */ \
	EM(STEP, "step")		/* demotion holds no more than a watermark step */

enum migrc_fact {
#define MIGRC_EM(fact, name)		MIGRC_##fact,
	MIGRC_FACTS(MIGRC_EM)
#undef MIGRC_EM
	NR_MIGRC_FACTS
};

enum migrc_drain_reason {
#define MIGRC_EM(reason, name)		MIGRC_DRAIN_##reason,
	MIGRC_DRAIN_REASONS(MIGRC_EM)
#undef MIGRC_EM
	NR_MIGRC_DRAIN_REASONS
};

enum migrc_hook {
#define MIGRC_EM(hook, name)		MIGRC_HOOK_##hook,
	MIGRC_HOOKS(MIGRC_EM)
#undef MIGRC_EM
	NR_MIGRC_HOOKS,
	NR_MIGRC_FLUSH_HOOKS = MIGRC_HOOK_SIZE + 1
};

/* As what a TLB may hold entries; mm/migrc/eligibility.rs has the same numbers. */
enum migrc_geometry {
	MIGRC_PAGES,	/* one by one */
	MIGRC_BLOCKS,	/* as blocks of ARCH_PTE_BLOCK, each of which is whole */
	MIGRC_ODD,	/* as both, or as a part of a block */
	NR_MIGRC_GEOMETRIES
};

#ifdef CONFIG_MIGRC	/* on 64 bits: others have no atomic64_t here */
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
 * @blocks: what was deferred are MIGRC_BLOCKS, else MIGRC_PAGES.
 * @flushed: why mappings are flushed that leave the other ones alone (bits of enum migrc_fact).
 * @denied: why mappings forbid to defer any (the same).
 */
struct migrc_walk {
	bool deferred;
	bool mixed;
	bool blocks;
	u32 flushed;
	u32 denied;
#ifdef CONFIG_MIGRC_DEBUG
	unsigned long addr;
	int pid;
#endif
};
#endif /* CONFIG_MIGRC */
#endif /* _LINUX_MIGRC_TYPES_H */
