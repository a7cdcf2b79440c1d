// SPDX-License-Identifier: GPL-2.0
/* Whether a file's content may change, and what flushes before it does. */
#include <linux/export.h>
#include <linux/fs.h>
#include <linux/migrc.h>
#include <linux/pagemap.h>

#include "internal.h"

static bool nobody_writes(const struct address_space *mapping)
{
	return atomic_read(&mapping->host->i_writecount) <= 0 &&
	       !mapping_writably_mapped(mapping);
}

/* @src is locked. */
struct migrc_file_facts migrc_file_facts(struct folio *src)
{
	const struct address_space *mapping = src->mapping;
	const struct inode *inode = mapping ? mapping->host : NULL;

	if (!inode)
		return (struct migrc_file_facts) { };
	return (struct migrc_file_facts) {
		.dirty = folio_test_dirty(src),
		.writeback = folio_test_writeback(src),
		.uptodate = folio_test_uptodate(src),
		.regular = S_ISREG(inode->i_mode),
		.special = IS_SWAPFILE(inode) || IS_DAX(inode) || IS_NOQUOTA(inode),
		.supported = inode->i_sb->s_type->fs_flags & FS_FROZEN_PAGES,
	};
}

/*
 * A file's content stays what it is as long as nobody has write access to it. A task that
 * gets write access increments i_writecount, and then looks at the flag,
 * migrc_write_access(); here it is the other way round, the last time in
 * migrc_still_frozen(), so that one of the two sees the other.
 *
 * The folio is locked: ext4 changes a mapping's flags, not atomically, when it has none.
 */
bool migrc_freeze(struct folio *src)
{
	struct address_space *mapping = src->mapping;

	/* A hint, since the flag costs the next writer a drain: see migrc_still_frozen() */
	if (!nobody_writes(mapping))
		return false;
	if (!test_bit(AS_MIGRC, &mapping->flags))
		set_bit(AS_MIGRC, &mapping->flags);
	return true;
}

/*
 * The entries are gone and the deferrals counted. A task that gets write access from now on
 * sees the flag, and flushes them.
 *
 * rule: migrc/recheck: if a task has got it since freeze(), and may have drained too early,
 * it is flushed here.
 */
bool migrc_still_frozen(struct folio *src)
{
	struct address_space *mapping;

	if (folio_test_anon(src) || migrc_skip(MIGRC_HOOK_FILE) ||
	    migrc_skip(MIGRC_HOOK_RECHECK))
		return true;
	mapping = src->mapping;
	/* Pairs with the full barrier of atomic_inc_unless_negative() */
	smp_mb();
	if (nobody_writes(mapping)) {
		/* Pairs with migrc_write_access(): a writer that is gone has cleared the flag */
		smp_rmb();
		if (test_bit(AS_MIGRC, &mapping->flags)) {
			/*
			 * Another migration may have set it again, too late for the next
			 * writer, which found it cleared and did not drain. As above.
			 */
			smp_mb();
			if (nobody_writes(mapping))
				return true;
		}
	}
	return false;
}

/**
 * migrc_write_access - flush what was deferred of a file that can be written to from now on
 * @inode: the file; its i_writecount has just been incremented
 *
 * Exported for get_write_access(), an inline function that every module may use.
 *
 * Context: may sleep, under any lock that sleeps.
 */
void migrc_write_access(struct inode *inode)
{
	struct address_space *mapping = inode->i_mapping;

	if (likely(!test_bit_acquire(AS_MIGRC, &mapping->flags)) ||
	    migrc_skip(MIGRC_HOOK_WRITE))
		return;
	migrc_drain(MIGRC_DRAIN_WRITE);
	/*
	 * Nothing is deferred while i_writecount is positive, so that the next one need
	 * not drain: it finds the flag cleared once this drain is over.
	 */
	clear_bit_unlock(AS_MIGRC, &mapping->flags);
	/* Before i_writecount is decremented, see migrc_still_frozen() */
	smp_mb__after_atomic();
}
EXPORT_SYMBOL(migrc_write_access);

/**
 * migrc_zero_range - zero a part of a folio of page cache, without write access to it
 * @folio: locked
 * @start: in bytes
 * @length: in bytes
 *
 * The lock keeps this folio from being migrated. Other folios may be, so the flag stays.
 *
 * Context: may sleep.
 */
void migrc_zero_range(struct folio *folio, size_t start, size_t length)
{
	/* rule: migrc/change: CPUs may read what the file was through old translations */
	if (unlikely(test_bit(AS_MIGRC, &folio->mapping->flags)) &&
	    !migrc_skip(MIGRC_HOOK_CHANGE))
		migrc_drain(MIGRC_DRAIN_WRITE);
	folio_zero_range(folio, start, length);
}
EXPORT_SYMBOL_GPL(migrc_zero_range);
