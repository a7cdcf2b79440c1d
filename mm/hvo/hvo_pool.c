// SPDX-License-Identifier: GPL-2.0
/*
 * The HugeTLB pools as HVO sees them: how many folios are optimised, and which ones that
 * are not are free.
 */
#include <linux/hugetlb.h>
#include <linux/hvo.h>
#include <linux/list.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/page-isolation.h>
#include <linux/workqueue.h>

#include "../hugetlb_vmemmap.h"
#include "internal.h"

/* How many folios of each size gave their vmemmap back. Under hugetlb_lock. */
static unsigned long nr_optimized[HUGE_MAX_HSTATE];

/**
 * hvo_count_folio - count a folio that comes into a pool, or leaves it
 * @h: its size.
 * @folio: it; while it is in the pool, only the worker optimises it.
 * @nr: 1 or -1.
 *
 * Context: under hugetlb_lock.
 */
void hvo_count_folio(struct hstate *h, struct folio *folio, int nr)
{
	lockdep_assert_held(&hugetlb_lock);
	if (!folio_test_hugetlb_vmemmap_optimized(folio))
		return;
	/* rule: hvo/counted: nobody would know that it has kept its struct pages */
	nr_optimized[hstate_index(h)] += nr;
	/* rule: hvo/retried: it may go in the place of a surplus folio, which then is none */
	if (nr == -1)
		hvo_pools_changed();
}

/**
 * hvo_optimized_folios - how many folios of a size gave their vmemmap back
 * @h: that size.
 * @others: how many did not.
 *
 * Return: those that did; both at the same time.
 */
unsigned long hvo_optimized_folios(struct hstate *h, unsigned long *others)
{
	unsigned long nr;

	spin_lock_irq(&hugetlb_lock);
	nr = nr_optimized[hstate_index(h)];
	*others = h->nr_huge_pages - nr;
	spin_unlock_irq(&hugetlb_lock);
	return nr;
}

/* How many folios should be optimised and are not, less as many as may be gone soon. */
long hvo_missing_folios(struct hstate *h)
{
	if (!READ_ONCE(vmemmap_optimize_enabled) || !hugetlb_vmemmap_optimizable(h))
		return 0;
	guard(spinlock_irq)(&hugetlb_lock);
	return h->nr_huge_pages - nr_optimized[hstate_index(h)] - h->surplus_huge_pages;
}

/* --- the worker ---------------------------------------------------------------------- */

/* Seconds; 0: never. A day at most. */
#define MOST_RETRY_S	86400

static unsigned int retry_s = 1;

static void retry(struct work_struct *work);
static DECLARE_DELAYED_WORK(retry_work, retry);

static void retry_later(unsigned int seconds)
{
	if (seconds)
		queue_delayed_work(system_dfl_wq, &retry_work, secs_to_jiffies(seconds));
}

static void retry(struct work_struct *work)
{
	unsigned int first_s = READ_ONCE(retry_s);

	if (first_s)
		retry_later(hvo_retry(first_s));
}

static int retry_s_set(const char *val, const struct kernel_param *kp)
{
	int ret = param_set_uint_minmax(val, kp, 0, MOST_RETRY_S);
	unsigned int first_s = READ_ONCE(retry_s);

	/*
	 * The command line comes before there are workers, and pools come after it. The work may
	 * be pending for what the value was before.
	 */
	if (!ret && system_state >= SYSTEM_SCHEDULING && first_s)
		mod_delayed_work(system_dfl_wq, &retry_work, secs_to_jiffies(first_s));
	return ret;
}

static const struct kernel_param_ops retry_s_ops = {
	.set = retry_s_set,
	.get = param_get_uint,
};
module_param_cb(retry_s, &retry_s_ops, &retry_s, 0644);
MODULE_PARM_DESC(retry_s, "seconds until free pages are optimised that were not (0: never)");

/**
 * hvo_pools_changed - surplus folios have become ordinary ones, or all should be optimised now
 *
 * Those that are not will be, once they are free.
 */
void hvo_pools_changed(void)
{
	/* rule: hvo/retried: what was not optimised at once would never be */
	if (hvo_pauses() && READ_ONCE(vmemmap_optimize_enabled))
		retry_later(READ_ONCE(retry_s));
}

/**
 * hvo_folio_free - a folio in a pool becomes free
 * @h: its size.
 * @folio: it. If it was not optimised, it will be.
 *
 * Context: under hugetlb_lock.
 */
void hvo_folio_free(const struct hstate *h, struct folio *folio)
{
	/* rule: hvo/retried: as above */
	if (hvo_pauses() && vmemmap_should_optimize_folio(h, folio))
		retry_later(READ_ONCE(retry_s));
}

struct hstate *hvo_size_at(unsigned int index)
{
	return index < hugetlb_max_hstate ? &hstates[index] : NULL;
}

unsigned int hvo_nodes(void)
{
	return nr_node_ids;
}

bool hvo_try_resize(struct hstate *h)
{
	return mutex_trylock(&h->resize_lock);
}

void hvo_end_resize(struct hstate *h)
{
	mutex_unlock(&h->resize_lock);
}

/*
 * What the worker holds is still counted as free, so that it can be reserved. It is not on a
 * list of free folios, and not marked as free: code that meets it by its frame number tries
 * again, as with a folio that is being freed. An allocation waits for this mutex.
 */
static DEFINE_MUTEX(hold_mutex);
static LIST_HEAD(held);
/* Of which size they are, or NULL. Under hugetlb_lock. */
static struct hstate *held_of;

struct list_head *hvo_hold_begin(void)
{
	mutex_lock(&hold_mutex);
	return &held;
}

unsigned long hvo_free_folios(struct hstate *h, unsigned int nid)
{
	return READ_ONCE(h->free_huge_pages_node[nid]);
}

/* Holds the first free folio of a node if it should be optimised, and goes on to the next one. */
enum hvo_hold hvo_hold_next(struct hstate *h, unsigned int nid)
{
	struct list_head *list = &h->hugepage_freelists[nid];
	enum hvo_hold what = HVO_HOLD_NOTHING;
	struct folio *folio;

	guard(spinlock_irq)(&hugetlb_lock);
	folio = list_first_entry_or_null(list, struct folio, lru);
	if (!folio)
		return what;
	if (vmemmap_should_optimize_folio(h, folio) && !folio_test_hwpoison(folio))
		what = is_migrate_isolate_page(&folio->page) ? HVO_HOLD_LATER : HVO_HOLD_TAKEN;
	if (what != HVO_HOLD_TAKEN) {
		list_move_tail(&folio->lru, list);
		return what;
	}
	list_move(&folio->lru, &held);
	folio_clear_hugetlb_freed(folio);
	held_of = h;
	return what;
}

/* Puts back what was held, and counts how many of these folios are optimised now. */
void hvo_hold_end(void)
{
	struct folio *folio, *next;
	unsigned long nr = 0;

	spin_lock_irq(&hugetlb_lock);
	list_for_each_entry_safe(folio, next, &held, lru) {
		/* Not where hvo_hold_next() looks first. */
		list_move_tail(&folio->lru, &held_of->hugepage_freelists[folio_nid(folio)]);
		folio_set_hugetlb_freed(folio);
		hvo_count_folio(held_of, folio, 1);
		nr += folio_test_hugetlb_vmemmap_optimized(folio);
	}
	held_of = NULL;
	spin_unlock_irq(&hugetlb_lock);
	mutex_unlock(&hold_mutex);
	hvo_account_retried(nr);
}

/**
 * hvo_wait_for_folios - wait until the worker has put back what it holds
 * @h: what size is needed.
 *
 * Context: under hugetlb_lock, which is dropped meanwhile. May sleep.
 * Return: whether it has held any.
 */
bool hvo_wait_for_folios(const struct hstate *h)
{
	lockdep_assert_held(&hugetlb_lock);
	/* rule: hvo/held: a task would not get the folio that it has reserved */
	if (held_of != h || hvo_skip(HVO_HOOK_HELD))
		return false;
	spin_unlock_irq(&hugetlb_lock);
	mutex_lock(&hold_mutex);
	mutex_unlock(&hold_mutex);
	spin_lock_irq(&hugetlb_lock);
	return true;
}

/**
 * hvo_wait_for_page - wait until the worker does not have the folio of a page
 * @page: of a HugeTLB folio, or not.
 *
 * Context: under hugetlb_lock, which is dropped meanwhile. May sleep.
 */
void hvo_wait_for_page(struct page *page)
{
	struct folio *folio;

	do {
		folio = page_folio(page);
		if (!folio_test_hugetlb(folio) || folio_test_hugetlb_freed(folio) ||
		    folio_ref_count(folio))
			return;
	} while (hvo_wait_for_folios(folio_hstate(folio)));
}
