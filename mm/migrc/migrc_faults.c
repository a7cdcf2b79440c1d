// SPDX-License-Identifier: GPL-2.0
/* What a test can remove, delay or change, in debugfs/migrc. */
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/migrc.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/uaccess.h>

#include "../tlb_check/skip_hook.h"
#include "internal.h"

static u32 migrc_walk_delay_us;
static u32 migrc_restore_delay_us;

static void delay(u32 us)
{
	us = min_t(u32, us, 20 * USEC_PER_MSEC);
	mdelay(us / USEC_PER_MSEC);
	udelay(us % USEC_PER_MSEC);
}

/* For tests of what happens between the look at a file and the end of the walk. */
void migrc_walk_delay(void)
{
	delay(READ_ONCE(migrc_walk_delay_us));
}

/* And of what happens before a deferred folio is mapped again. */
void migrc_restore_delay(void)
{
	delay(READ_ONCE(migrc_restore_delay_us));
}

static unsigned long migrc_skipped;

/* True if a test asked for the kernel to be wrong in this place. */
bool migrc_skip(enum migrc_hook hook)
{
	return unlikely(READ_ONCE(migrc_skipped) & BIT(hook));
}

static const struct skip_hooks migrc_hooks = {
	.names		= migrc_hook_names,
	.nr		= NR_MIGRC_HOOKS,
	.skipped	= &migrc_skipped,
};

/* Deferrals in the reader's address space, and how many of them a flush has covered. */
static int generation_show(struct seq_file *m, void *unused)
{
	struct migrc_mm *mm = current->mm ? &current->mm->migrc : NULL;

	if (mm)
		seq_printf(m, "%llu %llu\n", (u64)atomic64_read(&mm->deferred),
			   (u64)atomic64_read(&mm->flushed));
	return 0;
}

static int generation_open(struct inode *inode, struct file *file)
{
	return single_open(file, generation_show, NULL);
}

/* As many more, as if of migrations that were undone. */
static ssize_t generation_write(struct file *file, const char __user *ubuf, size_t count,
				loff_t *ppos)
{
	struct migrc_mm *mm = current->mm ? &current->mm->migrc : NULL;
	u32 more;
	int ret;

	if (!mm)
		return -EINVAL;
	ret = kstrtou32_from_user(ubuf, count, 0, &more);
	if (ret)
		return ret;
	if (!READ_ONCE(mm->registered))
		migrc_register(mm);
	atomic64_add(more, &mm->deferred);
	return count;
}

static const struct file_operations generation_fops = {
	.open		= generation_open,
	.read		= seq_read,
	.write		= generation_write,
	.llseek		= seq_lseek,
	.release	= single_release,
};

void __init migrc_faults_init(struct dentry *dir)
{
	skip_hook_create(dir, &migrc_hooks);
	debugfs_create_file("generation", 0600, dir, NULL, &generation_fops);
	debugfs_create_u32("walk_delay_us", 0600, dir, &migrc_walk_delay_us);
	debugfs_create_u32("restore_delay_us", 0600, dir, &migrc_restore_delay_us);
}
