// SPDX-License-Identifier: GPL-2.0
/*
 * A model of a secondary TLB: that of a device which walks the page tables of a
 * process (SVA).  Only arch_invalidate_secondary_tlbs() tells such a device that a
 * translation is gone, so the kernel must call it before the frame is freed.
 *
 * A write of "START END" (hexadecimal addresses) to tlb_batch/secondary in debugfs
 * fills the model with the translations of that range in the writer's address
 * space, as the device's accesses would.  An invalidation empties what it covers.
 * A frame that is freed while one of its translations is left is a violation.  The
 * model ends when the file is closed.  secondary_delay_us makes the device slow: a
 * task that unmaps pages there waits that long.
 */
#include <linux/atomic.h>
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/init.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/pagewalk.h>
#include <linux/seq_file.h>
#include <linux/spinlock.h>
#include <linux/uaccess.h>

#include "tlb_secondary.h"

#define NR_TRANSLATIONS	1024

/* The frame of each page from tlb_start on, or 0. */
static unsigned long tlb_pfn[NR_TRANSLATIONS];
static unsigned long tlb_start;
static unsigned int tlb_nr;
/*
 * Orders the fill, invalidations (under the PTL) and the replacement of the range.
 * A frame may be freed in any context, so that path reads without the lock.
 */
static DEFINE_RAW_SPINLOCK(tlb_lock);

/* Not a static key: some emulators cannot have running code patched. */
static bool tlb_in_use;
static atomic_long_t nr_invalidations;
static atomic_long_t nr_violations;
static u32 delay_us;

/* The open file that fills the model. */
static DEFINE_MUTEX(owner_lock);
static struct file *owner;

void tlb_secondary_free(unsigned long pfn, unsigned int order)
{
	unsigned int i, nr;

	if (likely(!READ_ONCE(tlb_in_use)))
		return;

	nr = READ_ONCE(tlb_nr);
	for (i = 0; i < nr; i++) {
		unsigned long cached = READ_ONCE(tlb_pfn[i]);

		if (cached >= pfn && cached < pfn + (1UL << order))
			atomic_long_inc(&nr_violations);
	}
}

static void tlb_invalidate(unsigned long start, unsigned long end)
{
	unsigned int i;

	guard(raw_spinlock_irqsave)(&tlb_lock);
	for (i = 0; i < tlb_nr; i++) {
		unsigned long addr = tlb_start + i * PAGE_SIZE;

		if (addr < end && addr + PAGE_SIZE > start)
			WRITE_ONCE(tlb_pfn[i], 0);
	}
}

/* Often called under the PTL. */
static void secondary_invalidate(struct mmu_notifier *subscription,
				 struct mm_struct *mm,
				 unsigned long start, unsigned long end)
{
	atomic_long_inc(&nr_invalidations);
	tlb_invalidate(start, end);
}

/* The address space ends; arm64 has no invalidation for that. */
static void secondary_release(struct mmu_notifier *subscription,
			      struct mm_struct *mm)
{
	tlb_invalidate(0, ULONG_MAX);
}

static const struct mmu_notifier_ops secondary_ops = {
	.arch_invalidate_secondary_tlbs	= secondary_invalidate,
	.release			= secondary_release,
};

static struct mmu_notifier secondary_notifier = {
	.ops = &secondary_ops,
};

static int slow_invalidate_start(struct mmu_notifier *subscription,
				 const struct mmu_notifier_range *range)
{
	u32 us = READ_ONCE(delay_us);

	if (us && mmu_notifier_range_blockable(range))
		fsleep(us);
	return 0;
}

/* Apart from the other notifier: no notifier may have both callbacks. */
static const struct mmu_notifier_ops slow_ops = {
	.invalidate_range_start		= slow_invalidate_start,
};

static struct mmu_notifier slow_notifier = {
	.ops = &slow_ops,
};

/*
 * The PTL is held from the look at a PTE until its translation is in the model, so
 * a task that clears the PTE invalidates after that.
 */
static int secondary_fill(unsigned long start, unsigned long end)
{
	struct mm_struct *mm = current->mm;
	unsigned long addr;
	unsigned int i;

	scoped_guard(raw_spinlock_irqsave, &tlb_lock) {
		memset(tlb_pfn, 0, sizeof(tlb_pfn));
		tlb_start = start;
		WRITE_ONCE(tlb_nr, (end - start) >> PAGE_SHIFT);
	}

	if (mmap_read_lock_killable(mm))
		return -EINTR;
	for (addr = start, i = 0; addr < end; addr += PAGE_SIZE, i++) {
		struct vm_area_struct *vma = vma_lookup(mm, addr);
		struct folio_walk fw;

		if (!vma || !folio_walk_start(&fw, vma, addr, 0))
			continue;
		if (fw.page) {
			guard(raw_spinlock_irqsave)(&tlb_lock);
			WRITE_ONCE(tlb_pfn[i], page_to_pfn(fw.page));
		}
		folio_walk_end(&fw, vma);
	}
	mmap_read_unlock(mm);
	return 0;
}

static ssize_t secondary_write(struct file *file, const char __user *ubuf,
			       size_t count, loff_t *ppos)
{
	unsigned long start, end;
	char buf[64];
	int ret;

	if (!count || count >= sizeof(buf))
		return -EINVAL;
	if (copy_from_user(buf, ubuf, count))
		return -EFAULT;
	buf[count] = '\0';
	if (sscanf(buf, "%lx %lx", &start, &end) != 2)
		return -EINVAL;
	if (!PAGE_ALIGNED(start | end) || start >= end || end > TASK_SIZE ||
	    (end - start) >> PAGE_SHIFT > NR_TRANSLATIONS)
		return -EINVAL;
	if (!current->mm)
		return -EINVAL;

	guard(mutex)(&owner_lock);
	if (!owner) {
		ret = mmu_notifier_register(&secondary_notifier, current->mm);
		if (ret)
			return ret;
		ret = mmu_notifier_register(&slow_notifier, current->mm);
		if (ret) {
			mmu_notifier_unregister(&secondary_notifier, current->mm);
			return ret;
		}
		atomic_long_set(&nr_invalidations, 0);
		atomic_long_set(&nr_violations, 0);
		owner = file;
		WRITE_ONCE(tlb_in_use, true);
	} else if (owner != file || secondary_notifier.mm != current->mm) {
		return -EBUSY;
	}
	ret = secondary_fill(start, end);
	return ret ?: count;
}

static int secondary_show(struct seq_file *m, void *unused)
{
	unsigned int i, nr = 0;

	for (i = 0; i < READ_ONCE(tlb_nr); i++)
		nr += !!READ_ONCE(tlb_pfn[i]);
	seq_printf(m, "translations %u\ninvalidations %ld\nviolations %ld\n",
		   nr, atomic_long_read(&nr_invalidations),
		   atomic_long_read(&nr_violations));
	return 0;
}

static int secondary_open(struct inode *inode, struct file *file)
{
	return single_open(file, secondary_show, NULL);
}

static int secondary_release_file(struct inode *inode, struct file *file)
{
	scoped_guard(mutex, &owner_lock) {
		if (owner == file) {
			mmu_notifier_unregister(&slow_notifier, slow_notifier.mm);
			mmu_notifier_unregister(&secondary_notifier,
						secondary_notifier.mm);
			WRITE_ONCE(tlb_in_use, false);
			WRITE_ONCE(tlb_nr, 0);
			owner = NULL;
		}
	}
	return single_release(inode, file);
}

static const struct file_operations secondary_fops = {
	.owner		= THIS_MODULE,
	.open		= secondary_open,
	.read		= seq_read,
	.write		= secondary_write,
	.llseek		= seq_lseek,
	.release	= secondary_release_file,
};

/* After the late_initcall() that makes the directory. */
static int __init tlb_secondary_init(void)
{
	struct dentry *dir = debugfs_lookup("tlb_batch", NULL);

	debugfs_create_file("secondary", 0600, dir, NULL, &secondary_fops);
	debugfs_create_u32("secondary_delay_us", 0600, dir, &delay_us);
	dput(dir);
	return 0;
}
late_initcall_sync(tlb_secondary_init);
