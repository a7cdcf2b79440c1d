/* SPDX-License-Identifier: GPL-2.0 */
/* What the plan of a change of live vmemmap entries and the code that applies it share. */
#ifndef _LINUX_HVO_TYPES_H
#define _LINUX_HVO_TYPES_H

#include <linux/pgtable.h>
#include <linux/types.h>

/**
 * struct hvo_run - adjacent entries of one page table that change together
 * @addr: the virtual address that the first one maps.
 * @entries: the first one, by its linear address.
 * @values: a new value for each of them; NULL: all get @value.
 * @value: see @values.
 * @copy_to: a page that is made a copy of @copy_from while nobody can write to that; or
 *	NULL. By linear addresses.
 * @copy_from: see @copy_to.
 * @nr: how many.
 * @shift: log2 of what one of them maps, in bytes.
 * @group: the first one of so many changes before the others; 0: in any order.
 * @waits: they change after all runs before, which belong to the same folio or block.
 */
struct hvo_run {
	unsigned long addr;
	u64 *entries;
	const u64 *values;
	u64 value;
	void *copy_to;
	const void *copy_from;
	u32 nr;
	u32 shift;
	u32 group;
	bool waits;
};

/**
 * struct hvo_window - all that is changed in one pause
 * @runs: in no particular order.
 * @nr_runs: how many.
 * @start: no run is below this address,
 * @end: or from here on.
 */
struct hvo_window {
	const struct hvo_run *runs;
	unsigned long nr_runs;
	unsigned long start;
	unsigned long end;
};

/* What changes, and its name. */
#define HVO_REASONS(EM) \
	EM(SPLIT, "split")		/* blocks that map vmemmap become page tables */ \
	EM(OPTIMIZE, "optimize") \
	EM(RESTORE, "restore") \
	EM(DEMOTE, "demote")		/* one optimised folio becomes several smaller ones */

enum hvo_reason {
#define EM(reason, name)	HVO_##reason,
	HVO_REASONS(EM)
#undef EM
	NR_HVO_REASONS
};

/**
 * struct hvo_event - a pause, or an attempt
 * @reason: what changes.
 * @cpus: how many other CPUs stopped, or were to; 0 if @stopped.
 * @entries: how many changed.
 * @copies: how many pages were copied.
 * @missing: a CPU that did not stop in time; -1 if there is none.
 * @stopped: they were stopped in threads.
 * @ack_ns: nanoseconds until the last one had stopped,
 * @paused_ns: and from then on.
 */
struct hvo_event {
	enum hvo_reason reason;
	unsigned int cpus;
	unsigned int entries;
	unsigned int copies;
	int missing;
	bool stopped;
	u64 ack_ns;
	u64 paused_ns;
};

/* Rules that a test can remove, by their name in debugfs/hvo/skip_hook. */
#define HVO_HOOKS(EM) \
	EM(ACK, "ack")			/* wait until the other CPUs have stopped */ \
	EM(BREAK, "break")		/* no entry changes from valid to valid */ \
	EM(TLBI, "tlbi")		/* invalidate in between */ \
	EM(CLEAR, "clear")		/* clear the access flag */ \
	EM(WRPROTECT, "wrprotect")	/* tails that were there at boot become read-only */ \
	EM(COPY, "copy")		/* copy what another CPU cannot write to any more */ \
	EM(WAVES, "waves")		/* heads before tails, the old head last */ \
	EM(LEAVE, "leave")		/* an entry that stays gets its flag again */ \
	EM(RCU, "rcu")			/* wait for a task that has read a refcount */ \
	EM(TRANSIT, "transit")		/* no pause while a CPU comes up or goes down */ \
	EM(ABANDON, "abandon")		/* a pauser that panics lets the other CPUs go on */ \
	EM(DUTY, "duty")		/* the other CPUs run in between */ \
	EM(DIE, "die")			/* a task that dies while the CPUs wait panics */ \
	EM(KEY, "key")			/* a grace period waits for a reference */ \
	EM(TASKS, "tasks")		/* and for one that a preempted task took before that */ \
	EM(HELD, "held")		/* an allocation waits for the worker with its folio */ \
	EM(POISON, "poison")		/* a demotion keeps the marks of bad pages */

enum hvo_hook {
#define EM(hook, name)		HVO_HOOK_##hook,
	HVO_HOOKS(EM)
#undef EM
	NR_HVO_HOOKS
};

#endif /* _LINUX_HVO_TYPES_H */
