// SPDX-License-Identifier: GPL-2.0
/*
 * debugfs skip_hook: a write of a name removes that hook, too; "none" restores all
 * hooks.  A read lists the names, and the removed hooks in brackets.
 */
#include <linux/bits.h>
#include <linux/debugfs.h>
#include <linux/seq_file.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "skip_hook.h"

static int skip_hook_show(struct seq_file *m, void *unused)
{
	const struct skip_hooks *hooks = m->private;
	unsigned long skipped = READ_ONCE(*hooks->skipped);
	unsigned int hook;

	for (hook = 0; hook < hooks->nr; hook++)
		seq_printf(m, skipped & BIT(hook) ? "[%s]\n" : "%s\n", hooks->names[hook]);
	seq_puts(m, skipped ? "none\n" : "[none]\n");
	return 0;
}

static int skip_hook_open(struct inode *inode, struct file *file)
{
	return single_open(file, skip_hook_show, inode->i_private);
}

static ssize_t skip_hook_write(struct file *file, const char __user *ubuf,
			       size_t count, loff_t *ppos)
{
	const struct skip_hooks *hooks = file_inode(file)->i_private;
	char buf[16];
	int hook;

	if (count >= sizeof(buf))
		return -EINVAL;
	if (copy_from_user(buf, ubuf, count))
		return -EFAULT;
	buf[count] = '\0';

	if (sysfs_streq(buf, "none")) {
		WRITE_ONCE(*hooks->skipped, 0);
		return count;
	}
	hook = __sysfs_match_string(hooks->names, hooks->nr, buf);
	if (hook < 0)
		return hook;
	set_bit(hook, hooks->skipped);
	return count;
}

static const struct file_operations skip_hook_fops = {
	.open		= skip_hook_open,
	.read		= seq_read,
	.write		= skip_hook_write,
	.llseek		= seq_lseek,
	.release	= single_release,
};

void skip_hook_create(struct dentry *dir, const struct skip_hooks *hooks)
{
	debugfs_create_file("skip_hook", 0600, dir, (void *)hooks, &skip_hook_fops);
}
