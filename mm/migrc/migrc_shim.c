// SPDX-License-Identifier: GPL-2.0
/*
 * What migrc needs from C: facts about folios and mappings, the architecture's
 * flushes, the static keys and sysctls, counters, tracepoints and fault injection.
 * What follows from the facts is in eligibility.rs and walk.rs, the ledger and the drain
 * are in migrc_main.rs.
 */
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/export.h>
#include <linux/folio_batch.h>
#include <linux/fs.h>
#include <linux/init.h>
#include <linux/migrc.h>
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/pagemap.h>
#include <linux/percpu.h>
#include <linux/seq_file.h>
#include <linux/sizes.h>
#include <linux/swapops.h>
#include <linux/sysctl.h>
#include <linux/timer.h>
#include <linux/tlb_oracle.h>
#include <linux/userfaultfd_k.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <asm/migrc.h>

#include "../internal.h"
#include "../tlb_batch/skip_hook.h"
#include "migrc_debug.h"

#define CREATE_TRACE_POINTS
#include <trace/events/migrc.h>

DEFINE_STATIC_KEY_FALSE(migrc_key);
DEFINE_STATIC_KEY_FALSE(migrc_used_key);
DEFINE_STATIC_KEY_FALSE(migrc_readmostly_key);

/* The last one is of 2^15 ms and more: vm.migrc_max_age_ms is at most 60000. */
#define AGE_BUCKETS	17

static DEFINE_PER_CPU(unsigned long[NR_MIGRC_FACTS], migrc_denied);
static DEFINE_PER_CPU(unsigned long, migrc_protected);
static atomic_long_t migrc_hook_flushes[NR_MIGRC_FLUSH_HOOKS];
static atomic_long_t migrc_drains[NR_MIGRC_DRAIN_REASONS];
static atomic_long_t migrc_drained[NR_MIGRC_DRAIN_REASONS];
/* Pages by the age of the oldest that they were drained with: below 1, 2, 4 ... ms. */
static atomic_long_t migrc_ages[AGE_BUCKETS];

static int migrc_enabled;
static int migrc_readmostly;
static unsigned long migrc_max_pages;
static unsigned int migrc_max_age_ms = 100;

/* The invalidation of the drain that is running. */
static struct arch_tlbflush_unmap_batch migrc_batch;

static struct mm_struct *to_mm(struct migrc_mm *mm)
{
	return container_of(mm, struct mm_struct, migrc);
}

/* Whether page blocks of @zone are being emptied. */
static bool zone_isolates(struct zone *zone)
{
#ifdef CONFIG_MEMORY_ISOLATION
	return READ_ONCE(zone->nr_isolate_pageblock);
#else
	return false;
#endif
}

#ifdef CONFIG_MIGRC_FILE
static bool nobody_writes(const struct address_space *mapping)
{
	return atomic_read(&mapping->host->i_writecount) <= 0 &&
	       !mapping_writably_mapped(mapping);
}

/*
 * A file's content stays what it is as long as nobody has write access to it. Whoever
 * gets that increments i_writecount, and then looks at the flag, migrc_write_access();
 * here it is the other way round, the last time in migrc_still_frozen(), so that one of
 * the two sees the other.
 *
 * The folio is locked: ext4 changes a mapping's flags, not atomically, when it has none.
 */
bool migrc_freeze(struct folio *src)
{
	struct address_space *mapping = src->mapping;
	struct inode *inode;

	if (!mapping || folio_test_dirty(src) || folio_test_writeback(src) ||
	    !folio_test_uptodate(src))
		return false;
	inode = mapping->host;
	if (!inode || !S_ISREG(inode->i_mode) || IS_SWAPFILE(inode) || IS_DAX(inode) ||
	    IS_NOQUOTA(inode) || !(inode->i_sb->s_type->fs_flags & FS_FROZEN_PAGES))
		return false;

	/* A hint, since the flag costs the next writer a drain: see migrc_still_frozen() */
	if (!nobody_writes(mapping))
		return false;
	if (!test_bit(AS_MIGRC, &mapping->flags))
		set_bit(AS_MIGRC, &mapping->flags);
	return true;
}

/*
 * The entries are gone and the deferrals counted. Whoever gets write access from now on
 * sees the flag, and flushes them.
 *
 * rule: migrc/recheck: if somebody has got it since freeze(), and may have drained too
 * early, it is flushed here.
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
		/* Pairs with migrc_write_access(): who is gone has cleared the flag */
		smp_rmb();
		if (test_bit(AS_MIGRC, &mapping->flags)) {
			/*
			 * Another migration may have set it again, too late for the next
			 * writer, who found it cleared and did not drain. As above.
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
 * The lock keeps this folio from being migrated. Others may be, so the flag stays.
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
#else
bool migrc_freeze(struct folio *src)
{
	return false;
}

bool migrc_still_frozen(struct folio *src)
{
	return true;
}
#endif /* CONFIG_MIGRC_FILE */

#ifdef CONFIG_TLB_RS_FAULT_INJECTION
static u32 migrc_walk_delay_us;

/* For tests of what happens between the look at a file and the end of the walk. */
static void migrc_walk_delay(void)
{
	u32 us = min_t(u32, READ_ONCE(migrc_walk_delay_us), 20 * USEC_PER_MSEC);

	mdelay(us / USEC_PER_MSEC);
	udelay(us % USEC_PER_MSEC);
}
#else
static inline void migrc_walk_delay(void)
{
}
#endif

bool migrc_may_defer_slow(struct folio *src, enum migrate_reason reason)
{
	struct zone *zone = folio_zone(src);
	struct migrc_folio_facts facts = {
		.reason = reason,
		.pages = folio_nr_pages(src),
		.mappings = folio_mapcount(src),
		.present = node_present_pages(folio_nid(src)),
		.asked = READ_ONCE(migrc_max_pages),
		.free = zone_page_state(zone, NR_FREE_PAGES),
		.low = low_wmark_pages(zone),
		.reclaims = current->flags & PF_MEMALLOC,
		.unusual = folio_test_hugetlb(src) || folio_is_zone_device(src) ||
			   (folio_test_large(src) && folio_entire_mapcount(src)),
		.poisoned = folio_contain_hwpoisoned_page(src),
		.isolates = zone_isolates(zone) && !migrc_skip(MIGRC_HOOK_ISOLATE),
		/* rule: migrc/file: the content may change without a PTE */
		.file = !folio_test_anon(src) && !migrc_skip(MIGRC_HOOK_FILE),
	};

	if (!migrc_begin(&current->tlb_ubc.migrc, src, &facts))
		return false;
	migrc_walk_delay();
	return true;
}

/*
 * Counts a deferral: from now on a drain flushes @mm, and so does who has to. Called by
 * migrc_main.rs, under the PTL.
 */
void migrc_mark(struct migrc_mm *mm)
{
	/* rule: migrc/order: who sees the deferral must not flush before it can see the clear */
	arch_migrc_order();
	atomic64_inc(&mm->deferred);
	if (unlikely(!READ_ONCE(mm->registered)))
		migrc_register(mm);
}

bool migrc_defer_slow(struct vm_area_struct *vma, unsigned long addr,
		      unsigned int nr, pte_t pte, bool block)
{
	struct mm_struct *mm = vma->vm_mm;
	struct migrc_mapping_facts facts = {
		/* rule: migrc/writable: a CPU may write to the old page */
		.writable = pte_write(pte) && !migrc_skip(MIGRC_HOOK_WRITABLE),
		/* rule: migrc/pending: it may still, with a permission that is being taken away */
		.pending = (mm_tlb_flush_pending(mm) || READ_ONCE(mm->migrc.forking)) &&
			   !migrc_skip(MIGRC_HOOK_PENDING),
		/* rule: migrc/file: a shared PTE becomes writable without a fault */
		.shared = (vma->vm_flags & VM_SHARED) && !migrc_skip(MIGRC_HOOK_FILE),
		/* rule: migrc/notifier: devices and guests have translations of their own */
		.notifier = mm_has_notifiers(mm) && !migrc_skip(MIGRC_HOOK_NOTIFIER),
		/* rule: migrc/block: entries of two sizes must not overlap */
		.block = block,
		.mixes = migrc_skip(MIGRC_HOOK_MIXED),
	};

	/*
	 * Then no TLB has it, or who made it inaccessible flushes before the page is free,
	 * see hook "protnone". And set_tlb_ubc_flush_pending() will do nothing.
	 */
	if (!pte_accessible(mm, pte))
		return false;
	if (!migrc_meet(&current->tlb_ubc.migrc, &mm->migrc, &facts))
		return false;

	if (static_branch_unlikely(&migrc_readmostly_key) && nr == 1 && !pte_dirty(pte) &&
	    (vma->vm_flags & VM_WRITE) && vma_is_anonymous(vma))
		migrc_count_hit(&mm->migrc);
	migrc_debug_deferred(vma, addr, pte, nr);
	return true;
}

/* See migrc_before_restore(). */
void migrc_before_restore_slow(struct vm_area_struct *vma, unsigned long addr, pte_t pte,
			       unsigned int nr)
{
	if (!arch_migrc_may_retype(pte))
		return;
	/* Pairs with migrc_before_protect(): @pte has what vma->vm_page_prot was. */
	smp_rmb();
	/* Not any more? Then mprotect() has been here, under this PTL, and has flushed. */
	if (mm_tlb_flush_pending(vma->vm_mm))
		migrc_flush_mm(vma->vm_mm, MIGRC_HOOK_TYPE);
}

bool migrc_walk_end_slow(struct folio *src)
{
	if (!migrc_end(&current->tlb_ubc.migrc, src, folio_nr_pages(src),
		       migrc_skip(MIGRC_HOOK_MIXED)))
		return false;
	migrc_debug_walked(src);
	return true;
}

/*
 * Of some folios of the batch: one drain serves all. Until then nobody can change what is
 * read through a TLB: the folios are locked, and those who write map the source, too.
 */
void migrc_flush_mixed_slow(void)
{
	current->tlb_ubc.migrc.mixed = false;
	migrc_drain(MIGRC_DRAIN_MIXED);
}

void migrc_add_source(struct folio *src)
{
	struct zone *zone = folio_zone(src);
	int nid = folio_nid(src);

	if (migrc_skip(MIGRC_HOOK_RECORD)) {
		folio_put(src);
		return;
	}
	migrc_add(src, nid, folio_nr_pages(src), READ_ONCE(migrc_max_pages),
		  node_present_pages(nid));
	/*
	 * rule: migrc/isolate: who isolates page blocks drains after that. If it was
	 * too early for @src, the isolation is visible here. Pairs with the one in
	 * migrc_reclaim(); proved by verify/litmus/migrc-isolate-* of tlb-rs.
	 */
	smp_mb();
	if (zone_isolates(zone) && !migrc_skip(MIGRC_HOOK_ISOLATE))
		migrc_drain_soon(MIGRC_DRAIN_ISOLATE);
}

bool migrc_is_for_readers(enum migrate_reason reason)
{
	return static_key_enabled(&migrc_key) && migrc_reason_may_defer(reason);
}

/*
 * Only what a write fault makes writable again without a copy, and without anybody
 * noticing: not what is locked in order to have no faults, nor what is tracked by
 * faults, nor what devices and guests would have to fault in again.
 */
static bool may_lose_permission(struct vm_area_struct *vma)
{
	return vma_is_anonymous(vma) && !(vma->vm_flags & (VM_LOCKED | VM_SHADOW_STACK)) &&
	       !userfaultfd_armed(vma) && !vma_soft_dirty_enabled(vma) &&
	       !mm_has_notifiers(vma->vm_mm);
}

pte_t migrc_protect_slow(struct folio *folio, struct vm_area_struct *vma, pte_t pte)
{
	/* A large folio is seldom clean. */
	if (folio_test_large(folio) || folio_is_zone_device(folio) || !may_lose_permission(vma))
		return pte;

	/* rule: migrc/clean: it was written to since its last migration, and will be again */
	if (pte_dirty(pte) && !migrc_skip(MIGRC_HOOK_CLEAN))
		return pte_mkclean(pte);
	/* rule: migrc/pause: write faults have cost more than deferrals have saved */
	if (!migrc_may_protect(&vma->vm_mm->migrc) && !migrc_skip(MIGRC_HOOK_PAUSE))
		return pte;
	this_cpu_inc(migrc_protected);
	return pte_wrprotect(pte);
}

bool migrc_stays_protected_slow(struct vm_area_struct *vma)
{
	return static_key_enabled(&migrc_key) && may_lose_permission(vma) &&
	       migrc_keeps_protected(&vma->vm_mm->migrc) && !migrc_skip(MIGRC_HOOK_HINT);
}

/*
 * A note of its own: if a fork counted in tlb_flush_pending, all who zap meanwhile would take
 * it for one of them, and flush the whole address space, migrc or not.
 *
 * As there, who sees under the PTL what the fork has made of an entry sees the note, too; and
 * it is over only when all CPUs have flushed. The mmap_lock keeps other forks of @mm out.
 *
 * Not under the static key: a fork that began before it was enabled takes write
 * permission away, too.
 */
void migrc_fork_begin(struct mm_struct *mm)
{
	if (!migrc_skip(MIGRC_HOOK_FORK))
		WRITE_ONCE(mm->migrc.forking, true);
}

void migrc_fork_end(struct mm_struct *mm)
{
	WRITE_ONCE(mm->migrc.forking, false);
}

void migrc_arch_flush_mm(struct migrc_mm *mm, enum migrc_hook hook)
{
	flush_tlb_mm(to_mm(mm));
	count_vm_event(MIGRC_FLUSHES);
	atomic_long_inc(&migrc_hook_flushes[hook]);
}

/* Returns whether each mm is to be issued; otherwise, all are. */
bool migrc_arch_begin(unsigned long mms)
{
	/* A drain takes as long as its mms need: nobody may spin for a lock meanwhile. */
	might_sleep();
	arch_migrc_begin();
	if (migrc_skip(MIGRC_HOOK_FLUSH))
		return false;
	if (mms <= ARCH_MIGRC_MAX_ASIDS)
		return true;
	arch_migrc_issue_all();
	return false;
}

void migrc_arch_issue(struct migrc_mm *mm)
{
	arch_migrc_issue(&migrc_batch, to_mm(mm));
}

void migrc_arch_sync(unsigned long mms)
{
	count_vm_events(MIGRC_FLUSHES, mms);
	if (!migrc_skip(MIGRC_HOOK_FLUSH))
		arch_migrc_sync(&migrc_batch);
}

static void release_batch(struct folio_batch *fbatch, int nid, unsigned long *pages,
			  bool held)
{
	if (!*pages)
		return;
	folios_put(fbatch);
	/* Exact, unlike mod_node_page_state(): 0 means that there are none. */
	if (held)
		node_page_state_add(-(long)*pages, NODE_DATA(nid), NR_MIGRC_HELD);
	*pages = 0;
}

/* @held: they were in a ledger. */
void migrc_release(struct folio *first, bool held)
{
	struct folio_batch fbatch;
	unsigned long pages = 0;
	int nid = 0;

	folio_batch_init(&fbatch);
	while (first) {
		struct folio *folio = first;

		first = (struct folio *)folio->lru.next;
		if (folio_nid(folio) != nid)
			release_batch(&fbatch, nid, &pages, held);
		nid = folio_nid(folio);
		pages += folio_nr_pages(folio);
		if (migrc_debug_release(folio))
			continue;
		if (!folio_batch_add(&fbatch, folio)) {
			release_batch(&fbatch, nid, &pages, held);
			cond_resched();
		}
	}
	release_batch(&fbatch, nid, &pages, held);
}

/* For ages, which are milliseconds: once for each source, so it has to be cheap. */
u64 migrc_now(void)
{
	return ktime_get_coarse_ns();
}

/* Of a drain. Returns when that was. */
u64 migrc_drain_begin(enum migrc_drain_reason reason)
{
	migrc_debug_drain(reason);
	return ktime_get_ns();
}

/*
 * A worker of high priority drains. If each task that wants a drain made its own, one that
 * has to leave the CPU to others would keep all waiting who want the next: however
 * important they are, and however idle it is.
 */
static struct workqueue_struct *migrc_wq;
/* What the next drain is wanted for: bits of enum migrc_drain_reason. */
static atomic_t migrc_wanted;
/* Drains that have begun, and how many of them are over. */
static atomic64_t migrc_begun;
static atomic64_t migrc_over;
static DECLARE_WAIT_QUEUE_HEAD(migrc_waiters);
/* Without fault injection, only the worker takes it. */
static DEFINE_MUTEX(migrc_drain_lock);

static void migrc_begin_drain(void)
{
	u32 reasons;
	s64 nr;

	guard(mutex)(&migrc_drain_lock);
	/*
	 * rule: migrc/request: full barriers, so that this sees what was done by who has
	 * not seen that it begins.
	 */
	nr = atomic64_inc_return(&migrc_begun);
	reasons = atomic_xchg(&migrc_wanted, 0);
	/* None, if the last drain began after all who want one had said so. */
	if (reasons)
		migrc_run_drain(reasons);
	atomic64_set_release(&migrc_over, nr);
	wake_up_all(&migrc_waiters);
}

static void migrc_drain_fn(struct work_struct *work)
{
	migrc_begin_drain();
}

static DECLARE_WORK(migrc_drain_work, migrc_drain_fn);

/* Until so many drains are over. */
static void migrc_wait(s64 nr)
{
	might_sleep();
	/* Who waits holds nothing that a drain takes. */
	might_lock(&migrc_drain_lock);
	wait_event(migrc_waiters, atomic64_read_acquire(&migrc_over) >= nr);
}

/* Has a drain begin after this, and does not wait for it. Any context. */
void migrc_drain_soon(enum migrc_drain_reason reason)
{
	/* A full barrier, as in migrc_drain() */
	atomic_fetch_or(BIT(reason), &migrc_wanted);
	queue_work(migrc_wq, &migrc_drain_work);
}

/**
 * migrc_drain - flush what was deferred and release all sources
 * @reason: for the statistics
 *
 * What was deferred or added before the call is flushed or released when it returns.
 *
 * Context: may sleep; reclaim may wait for it.
 */
void migrc_drain(enum migrc_drain_reason reason)
{
	s64 begun;

	/*
	 * rule: migrc/request: a full barrier, so that who takes the bit sees what was done
	 * before, and so does a drain that has not been seen to begin. Proved by
	 * verify/tests/migrc_worker.rs of tlb-rs.
	 */
	atomic_fetch_or(BIT(reason), &migrc_wanted);
	begun = atomic64_read(&migrc_begun);
	/* rule: migrc/worker: this task may be preempted, and others wait for its turn */
	if (migrc_skip(MIGRC_HOOK_WORKER))
		migrc_begin_drain();
	else
		queue_work(migrc_wq, &migrc_drain_work);
	migrc_wait(begun + 1);
}

/* The same for who can do with what a drain releases that is running. */
void migrc_drain_join(enum migrc_drain_reason reason)
{
	s64 begun = atomic64_read(&migrc_begun);

	if (begun == atomic64_read(&migrc_over))
		migrc_drain(reason);
	else
		migrc_wait(begun);
}

/* For a drain that is running. One that begins later does not meet what is gone by now. */
void migrc_wait_for_drain(void)
{
	migrc_wait(atomic64_read(&migrc_begun));
}

void migrc_relax(void)
{
	cond_resched();
}

static void migrc_age_fn(struct timer_list *unused)
{
	migrc_drain_soon(MIGRC_DRAIN_AGE);
}

static DEFINE_TIMER(migrc_age_timer, migrc_age_fn);

static unsigned long age_jiffies(void)
{
	return jiffies + msecs_to_jiffies(READ_ONCE(migrc_max_age_ms));
}

/* rule: migrc/age: the first source came into a node's ledger, and may not stay for longer */
void migrc_arm(void)
{
	timer_reduce(&migrc_age_timer, age_jiffies());
}

/*
 * All ledgers are about to be emptied, of everything that the timer was started for:
 * what comes later starts it anew, and is not drained before its time.
 */
void migrc_disarm(void)
{
	if (!migrc_skip(MIGRC_HOOK_DISARM))
		timer_delete(&migrc_age_timer);
}

/* Returns how many pages of @node are held now. */
unsigned long migrc_account_added(struct folio *folio, unsigned int node,
				  unsigned long pages)
{
	node_page_state_add(pages, NODE_DATA(node), NR_MIGRC_HELD);
	count_vm_events(MIGRC_DEFERRED, pages);
	tlb_oracle_owned(&folio->page, folio_order(folio));
	trace_migrc_defer(folio_pfn(folio), pages, node);
	return node_page_state_pages(NODE_DATA(node), NR_MIGRC_HELD);
}

void migrc_account_denied(enum migrc_fact reason, unsigned long pages)
{
	this_cpu_add(migrc_denied[reason], pages);
	count_vm_events(MIGRC_DENIED, pages);
	trace_migrc_deny(pages, reason);
}

void migrc_account_drain(enum migrc_drain_reason reason, unsigned long pages,
			 unsigned long mms, u64 since, u64 begin)
{
	u64 age_us = div_u64(migrc_now() - since, NSEC_PER_USEC);
	unsigned int bucket = min_t(unsigned int, fls64(div_u64(age_us, 1000)), AGE_BUCKETS - 1);

	atomic_long_inc(&migrc_drains[reason]);
	atomic_long_add(pages, &migrc_drained[reason]);
	atomic_long_add(pages, &migrc_ages[bucket]);
	if (reason == MIGRC_DRAIN_AGE)
		count_vm_event(MIGRC_DRAIN_AGES);
	else if (reason == MIGRC_DRAIN_PRESSURE || reason == MIGRC_DRAIN_KSWAPD)
		count_vm_event(MIGRC_DRAIN_PRESSURES);
	if (trace_migrc_drain_enabled())
		trace_migrc_drain(pages, mms, age_us, reason, ktime_get_ns() - begin);
}

static DEFINE_MUTEX(migrc_sysctl_lock);

/*
 * When a write of 0 returns, nothing is held any more, nor will be: a migration that is
 * under way flushes for itself, see drain_late().
 */
static int migrc_enable_sysctl(const struct ctl_table *table, int write,
			       void *buffer, size_t *lenp, loff_t *ppos)
{
	int ret;

	guard(mutex)(&migrc_sysctl_lock);
	ret = proc_dointvec_minmax(table, write, buffer, lenp, ppos);
	if (ret || !write)
		return ret;

	if (migrc_enabled) {
		static_branch_enable(&migrc_used_key);
		migrc_open(true);
		static_branch_enable(&migrc_key);
	} else {
		static_branch_disable(&migrc_key);
		/* rule: migrc/off: a migration that is under way may have looked before that */
		if (!migrc_skip(MIGRC_HOOK_OFF))
			migrc_open(false);
		migrc_drain(MIGRC_DRAIN_OFF);
	}
	return 0;
}

static int migrc_readmostly_sysctl(const struct ctl_table *table, int write,
				   void *buffer, size_t *lenp, loff_t *ppos)
{
	int ret;

	guard(mutex)(&migrc_sysctl_lock);
	ret = proc_dointvec_minmax(table, write, buffer, lenp, ppos);
	if (ret || !write)
		return ret;

	/* Without the dirty bit each page would seem not to be written to. */
	if (migrc_readmostly && !(arch_migrc_hw_dirty() && migration_entry_supports_ad())) {
		migrc_readmostly = 0;
		ret = -EOPNOTSUPP;
	}
	/* It may have been on: a CPU that has no dirty bit can come up late. */
	if (migrc_readmostly)
		static_branch_enable(&migrc_readmostly_key);
	else
		static_branch_disable(&migrc_readmostly_key);
	return ret;
}

/* A shorter age counts from now on. */
static int migrc_age_sysctl(const struct ctl_table *table, int write,
			    void *buffer, size_t *lenp, loff_t *ppos)
{
	int ret;

	guard(mutex)(&migrc_sysctl_lock);
	ret = proc_douintvec_minmax(table, write, buffer, lenp, ppos);
	if (!ret && write)
		mod_timer_pending(&migrc_age_timer, age_jiffies());
	return ret;
}

static const unsigned int migrc_age_least = 1;
static const unsigned int migrc_age_most = 60 * MSEC_PER_SEC;

static const struct ctl_table migrc_sysctl_table[] = {
	{
		.procname	= "migrc_enable",
		.data		= &migrc_enabled,
		.maxlen		= sizeof(migrc_enabled),
		.mode		= 0644,
		.proc_handler	= migrc_enable_sysctl,
		.extra1		= SYSCTL_ZERO,
		.extra2		= SYSCTL_ONE,
	},
	{
		.procname	= "migrc_readmostly",
		.data		= &migrc_readmostly,
		.maxlen		= sizeof(migrc_readmostly),
		.mode		= 0644,
		.proc_handler	= migrc_readmostly_sysctl,
		.extra1		= SYSCTL_ZERO,
		.extra2		= SYSCTL_ONE,
	},
	{
		.procname	= "migrc_max_pages",
		.data		= &migrc_max_pages,
		.maxlen		= sizeof(migrc_max_pages),
		.mode		= 0644,
		.proc_handler	= proc_doulongvec_minmax,
	},
	{
		.procname	= "migrc_max_age_ms",
		.data		= &migrc_max_age_ms,
		.maxlen		= sizeof(migrc_max_age_ms),
		.mode		= 0644,
		.proc_handler	= migrc_age_sysctl,
		.extra1		= (void *)&migrc_age_least,
		.extra2		= (void *)&migrc_age_most,
	},
};

static const char * const migrc_fact_names[] = {
	[MIGRC_REASON]			= "reason",
	[MIGRC_MEMORY]			= "memory",
	[MIGRC_LIMIT]			= "limit",
	[MIGRC_MAPPINGS]		= "mappings",
	[MIGRC_NOT_FROZEN]		= "not_frozen",
	[MIGRC_KIND]			= "kind",
	[MIGRC_POISONED]		= "poisoned",
	[MIGRC_ISOLATED]		= "isolated",
	[MIGRC_WRITABLE]		= "writable",
	[MIGRC_FLUSH_PENDING]		= "flush_pending",
	[MIGRC_SHARED]			= "shared",
	[MIGRC_NOTIFIER]		= "notifier",
	[MIGRC_BLOCK]			= "block",
	[MIGRC_LOCAL]			= "local",
	[MIGRC_MIXED]			= "mixed",
};

static const char * const migrc_drain_names[] = {
	[MIGRC_DRAIN_AGE]		= "age",
	[MIGRC_DRAIN_LIMIT]		= "limit",
	[MIGRC_DRAIN_PRESSURE]		= "pressure",
	[MIGRC_DRAIN_KSWAPD]		= "kswapd",
	[MIGRC_DRAIN_ISOLATE]		= "isolate",
	[MIGRC_DRAIN_POISON]		= "poison",
	[MIGRC_DRAIN_MIXED]		= "mixed",
	[MIGRC_DRAIN_WRITE]		= "write",
	[MIGRC_DRAIN_OFF]		= "off",
};

static_assert(ARRAY_SIZE(migrc_fact_names) == NR_MIGRC_FACTS);
static_assert(ARRAY_SIZE(migrc_drain_names) == NR_MIGRC_DRAIN_REASONS);

static const char * const migrc_hook_names[NR_MIGRC_HOOKS] = {
	[MIGRC_HOOK_RANGE]	= "range",
	[MIGRC_HOOK_REUSE]	= "reuse",
	[MIGRC_HOOK_SWAPIN]	= "swapin",
	[MIGRC_HOOK_FORCE]	= "force",
	[MIGRC_HOOK_PROTNONE]	= "protnone",
	[MIGRC_HOOK_TYPE]	= "type",
	[MIGRC_HOOK_WRITABLE]	= "writable",
	[MIGRC_HOOK_PENDING]	= "pending",
	[MIGRC_HOOK_FORK]	= "fork",
	[MIGRC_HOOK_FILE]	= "file",
	[MIGRC_HOOK_RECHECK]	= "recheck",
	[MIGRC_HOOK_WRITE]	= "write",
	[MIGRC_HOOK_CHANGE]	= "change",
	[MIGRC_HOOK_NOTIFIER]	= "notifier",
	[MIGRC_HOOK_CLEAN]	= "clean",
	[MIGRC_HOOK_PAUSE]	= "pause",
	[MIGRC_HOOK_HINT]	= "hint",
	[MIGRC_HOOK_MIXED]	= "mixed",
	[MIGRC_HOOK_RECORD]	= "record",
	[MIGRC_HOOK_EXIT]	= "exit",
	[MIGRC_HOOK_FLUSH]	= "flush",
	[MIGRC_HOOK_OFF]	= "off",
	[MIGRC_HOOK_PRESSURE]	= "pressure",
	[MIGRC_HOOK_KSWAPD]	= "kswapd",
	[MIGRC_HOOK_ISOLATE]	= "isolate",
	[MIGRC_HOOK_POISON]	= "poison",
	[MIGRC_HOOK_DISARM]	= "disarm",
	[MIGRC_HOOK_WORKER]	= "worker",
};

static int stats_show(struct seq_file *m, void *unused)
{
	unsigned long protected = 0;
	int i, cpu;

	for (i = 0; i < NR_MIGRC_FACTS; i++) {
		unsigned long pages = 0;

		for_each_possible_cpu(cpu)
			pages += READ_ONCE(per_cpu(migrc_denied[i], cpu));
		seq_printf(m, "denied %s %lu\n", migrc_fact_names[i], pages);
	}
	for (i = 0; i < NR_MIGRC_DRAIN_REASONS; i++)
		seq_printf(m, "drain %s %ld %ld\n", migrc_drain_names[i],
			   atomic_long_read(&migrc_drains[i]),
			   atomic_long_read(&migrc_drained[i]));
	for (i = 0; i < NR_MIGRC_FLUSH_HOOKS; i++)
		seq_printf(m, "hook %s %ld\n", migrc_hook_names[i],
			   atomic_long_read(&migrc_hook_flushes[i]));
	for (i = 0; i < AGE_BUCKETS; i++)
		seq_printf(m, "age %d %ld\n", 1 << i, atomic_long_read(&migrc_ages[i]));
	for_each_possible_cpu(cpu)
		protected += READ_ONCE(per_cpu(migrc_protected, cpu));
	seq_printf(m, "readmostly protected %lu\n", protected);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(stats);

#ifdef CONFIG_TLB_RS_FAULT_INJECTION
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

/* Deferrals in the address space of who reads, and how many of them a flush has covered. */
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

static void __init fault_injection_init(struct dentry *dir)
{
	skip_hook_create(dir, &migrc_hooks);
	debugfs_create_file("generation", 0600, dir, NULL, &generation_fops);
	debugfs_create_u32("walk_delay_us", 0600, dir, &migrc_walk_delay_us);
}
#else
static inline void fault_injection_init(struct dentry *dir)
{
}
#endif /* CONFIG_TLB_RS_FAULT_INJECTION */

static int __init migrc_init(void)
{
	struct dentry *dir;
	int ret;

	/* FOLIO_DEFERRED is kept beside the pointer to it. */
	BUILD_BUG_ON(__alignof__(struct anon_vma) < 8);

	/* On the CPU of who asks: there it looks for the pages, and need not be interrupted. */
	migrc_wq = alloc_workqueue("migrc", WQ_PERCPU | WQ_HIGHPRI | WQ_MEM_RECLAIM |
				   WQ_CPU_INTENSIVE, 0);
	if (!migrc_wq)
		return -ENOMEM;
	ret = migrc_rust_init(nr_node_ids);
	if (ret) {
		destroy_workqueue(migrc_wq);
		return ret;
	}
	register_sysctl_init("vm", migrc_sysctl_table);
	dir = debugfs_create_dir("migrc", NULL);
	debugfs_create_file("stats", 0400, dir, NULL, &stats_fops);
	fault_injection_init(dir);
	return 0;
}
late_initcall(migrc_init);
