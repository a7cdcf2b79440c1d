// SPDX-License-Identifier: GPL-2.0
/* What migrc does: it counts deferrals, flushes, releases, and runs drains. */
#include <linux/atomic.h>
#include <linux/folio_batch.h>
#include <linux/init.h>
#include <linux/migrc.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/timer.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <asm/migrc.h>

#include "internal.h"

/* The invalidation of the drain that is running. */
static struct arch_tlbflush_unmap_batch migrc_batch;

static struct mm_struct *to_mm(struct migrc_mm *mm)
{
	return container_of(mm, struct mm_struct, migrc);
}

/*
 * Counts a deferral: from now on a drain flushes @mm, and so does migrc_flush_mm(). Called
 * by migrc_main.rs, under the PTL.
 */
void migrc_mark(struct migrc_mm *mm)
{
	/* rule: migrc/order: a CPU that sees the deferral and flushes has to see the clear */
	arch_migrc_order();
	atomic64_inc(&mm->deferred);
	if (unlikely(!READ_ONCE(mm->registered)))
		migrc_register(mm);
}

void migrc_arch_flush_mm(struct migrc_mm *mm, enum migrc_hook hook)
{
	flush_tlb_mm(to_mm(mm));
	count_vm_event(MIGRC_FLUSHES);
	atomic_long_inc(&migrc_hook_flushes[hook]);
}

/* Returns of how many mms at most each is to be issued. Of more, all are. */
unsigned long migrc_arch_begin(void)
{
	/* A drain takes as long as its mms need: nobody may spin for a lock meanwhile. */
	might_sleep();
	arch_migrc_begin();
	return ARCH_MIGRC_MAX_ASIDS;
}

void migrc_arch_issue_all(void)
{
	if (!migrc_skip(MIGRC_HOOK_FLUSH))
		arch_migrc_issue_all();
}

void migrc_arch_issue(struct migrc_mm *mm)
{
	if (!migrc_skip(MIGRC_HOOK_FLUSH))
		arch_migrc_issue(&migrc_batch, to_mm(mm));
}

void migrc_arch_sync(unsigned long mms)
{
	count_vm_events(MIGRC_FLUSHES, mms);
	if (!migrc_skip(MIGRC_HOOK_FLUSH))
		arch_migrc_sync(&migrc_batch);
}

static void release_batch(struct folio_batch *fbatch, struct zone *zone, unsigned long *pages,
			  bool held)
{
	if (!*pages)
		return;
	folios_put(fbatch);
	/* Exact, unlike mod_zone_page_state(): 0 means that there are none. */
	if (held)
		zone_page_state_add(-(long)*pages, zone, NR_MIGRC_HELD);
	*pages = 0;
}

/* @held: they were in a ledger. */
void migrc_release(struct folio *first, bool held)
{
	struct folio_batch fbatch;
	struct zone *zone = NULL;
	unsigned long pages = 0;

	folio_batch_init(&fbatch);
	while (first) {
		struct folio *folio = first;

		first = (struct folio *)folio->lru.next;
		if (folio_zone(folio) != zone)
			release_batch(&fbatch, zone, &pages, held);
		zone = folio_zone(folio);
		pages += folio_nr_pages(folio);
		if (migrc_debug_release(folio))
			continue;
		if (!folio_batch_add(&fbatch, folio)) {
			release_batch(&fbatch, zone, &pages, held);
			cond_resched();
		}
	}
	release_batch(&fbatch, zone, &pages, held);
}

/* For ages, which are milliseconds. */
u64 migrc_now(void)
{
	return ktime_get_coarse_ns();
}

/*
 * A worker of high priority drains. If each task that wants a drain made its own, a task
 * that is preempted would keep all waiting that want the next drain: however important
 * they are, and however idle it is.
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

static void migrc_begin_drain(struct work_struct *unused)
{
	u32 reasons;
	s64 nr;

	guard(mutex)(&migrc_drain_lock);
	/*
	 * rule: migrc/request: full barriers. A task that has not seen this drain begin has
	 * its work seen here.
	 */
	nr = atomic64_inc_return(&migrc_begun);
	reasons = atomic_xchg(&migrc_wanted, 0);
	/* None, if the last drain began after all requests. */
	if (reasons)
		migrc_run_drain(reasons);
	atomic64_set_release(&migrc_over, nr);
	wake_up_all(&migrc_waiters);
}

static DECLARE_WORK(migrc_drain_work, migrc_begin_drain);

/* Until so many drains are over. */
static void migrc_wait(s64 nr)
{
	might_sleep();
	/* The caller holds nothing that a drain takes. */
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
	 * rule: migrc/request: a full barrier. A drain that takes the bit sees what was done
	 * before, and so does a drain that has not been seen to begin. Proved by
	 * verify/tests/migrc_worker.rs of tlb-rs.
	 */
	atomic_fetch_or(BIT(reason), &migrc_wanted);
	begun = atomic64_read(&migrc_begun);
	/* rule: migrc/worker: this task may be preempted, and other tasks wait for its drain */
	if (migrc_skip(MIGRC_HOOK_WORKER))
		migrc_begin_drain(&migrc_drain_work);
	else
		queue_work(migrc_wq, &migrc_drain_work);
	migrc_wait(begun + 1);
}

/* The same for a caller that can do with what a running drain releases. */
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

/* A shorter age counts from now on. A longer one is for the sources that come later. */
void migrc_rearm(void)
{
	if (timer_pending(&migrc_age_timer))
		timer_reduce(&migrc_age_timer, age_jiffies());
}

int __init migrc_worker_init(void)
{
	int ret;

	/* On any CPU: on that of the caller, a task of a realtime class may come first. */
	migrc_wq = alloc_workqueue("migrc", WQ_UNBOUND | WQ_HIGHPRI | WQ_MEM_RECLAIM, 0);
	if (!migrc_wq)
		return -ENOMEM;
	ret = migrc_rust_init(nr_node_ids);
	if (ret)
		destroy_workqueue(migrc_wq);
	return ret;
}
