// SPDX-License-Identifier: GPL-2.0
/* What a test can remove or delay, and what it can see, in debugfs/tlb_batch. */
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/mm.h>
#include <linux/seq_file.h>
#include <linux/tlb_batch.h>

#include "../tlb_check/skip_hook.h"
#include "internal.h"

static const char * const tlb_batch_hook_names[] = {
#define EM(hook, name)	name,
	TLB_BATCH_HOOKS(EM)
#undef EM
};

static unsigned long tlb_batch_skipped;
static u32 tlb_batch_delay_us;
static u32 tlb_batch_flush_delay_us;

/* True if a test asked for the kernel to be wrong in this place. */
bool tlb_batch_skip(enum tlb_batch_hook hook)
{
	return unlikely(READ_ONCE(tlb_batch_skipped) & BIT(hook));
}

/*
 * Widens the windows between the end of a page table walk and the issue, between
 * the last walk and the flush, and before an empty page table is looked for.
 */
void tlb_batch_delay(enum tlb_batch_reason reason)
{
	u32 us = 0;

	if (reason == TLB_BATCH_RMAP_END)
		us = READ_ONCE(tlb_batch_delay_us);
	else if (reason == TLB_BATCH_FLUSH)
		us = READ_ONCE(tlb_batch_flush_delay_us);
	if (us)
		fsleep(us);
}

/* What the reading task owes itself. */
static int current_show(struct seq_file *m, void *unused)
{
	struct tlb_batch *batch = current_tlb_batch();
	int held = 0;

	while (held < TLB_BATCH_MMS && batch->held[held])
		held++;
	seq_printf(m, "ranges %u\nheld %d\nunsynced %d\n", batch->nr, held,
		   batch->unsynced);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(current);

static const struct skip_hooks tlb_batch_hooks = {
	.names		= tlb_batch_hook_names,
	.nr		= NR_TLB_BATCH_HOOKS,
	.skipped	= &tlb_batch_skipped,
};

void __init tlb_batch_faults_init(struct dentry *dir)
{
	skip_hook_create(dir, &tlb_batch_hooks);
	debugfs_create_file("current", 0400, dir, NULL, &current_fops);
	debugfs_create_u32("delay_us", 0600, dir, &tlb_batch_delay_us);
	debugfs_create_u32("flush_delay_us", 0600, dir, &tlb_batch_flush_delay_us);
}
