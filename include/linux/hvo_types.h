/* SPDX-License-Identifier: GPL-2.0 */
/* Changes of live vmemmap page table entries, as the plan and who applies it share them. */
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

#endif /* _LINUX_HVO_TYPES_H */
