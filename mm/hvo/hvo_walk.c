// SPDX-License-Identifier: GPL-2.0
/*
 * What HVO looks up in page tables, and what it does to pages and folios. Nothing is decided
 * here, see hvo_main.rs.
 */
#include <linux/hugetlb.h>
#include <linux/hvo.h>
#include <linux/page_owner.h>
#include <linux/pagewalk.h>
#include <linux/pgalloc.h>
#include <linux/pgalloc_tag.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>

#include <asm/tlbflush.h>

#include "../hugetlb_internal.h"
#include "../hugetlb_vmemmap.h"
#include "../internal.h"
#include "internal.h"

/* --- folios -------------------------------------------------------------------------- */

/* How many entries map the struct pages of a folio. */
unsigned long hvo_entries(const struct hstate *h)
{
	return hugetlb_vmemmap_size(h) >> PAGE_SHIFT;
}

/* Whether folios can be demoted to this size without their struct pages in between. */
bool hvo_demotes_to(const struct hstate *h)
{
	return READ_ONCE(vmemmap_optimize_enabled) && hugetlb_vmemmap_optimizable(h) &&
	       !mem_alloc_profiling_enabled();
}

bool hvo_folio_optimized(struct folio *folio)
{
	return folio_test_hugetlb_vmemmap_optimized(folio);
}

void hvo_folio_set_optimized(struct folio *folio, bool optimized)
{
	if (optimized)
		folio_set_hugetlb_vmemmap_optimized(folio);
	else
		folio_clear_hugetlb_vmemmap_optimized(folio);
}

/* The folio after @folio, or the first one; NULL at the end. */
struct folio *hvo_next_folio(struct list_head *folios, struct folio *folio)
{
	struct list_head *next = folio ? folio->lru.next : folios->next;

	return next == folios ? NULL : list_entry(next, struct folio, lru);
}

void hvo_folio_add(struct folio *folio, struct list_head *folios)
{
	list_add(&folio->lru, folios);
}

void hvo_folio_del(struct folio *folio)
{
	list_del(&folio->lru);
}

/*
 * rule: hvo/rcu: a task that has read the reference count of a page before it became a tail,
 * and will try to raise it, writes to that page even if the attempt fails.
 */
void hvo_wait_for_readers(unsigned long since)
{
	if (!hvo_skip(HVO_HOOK_RCU))
		cond_synchronize_rcu_expedited(since);
}

/* --- pages of struct pages ----------------------------------------------------------- */

struct page *hvo_new_page(struct folio *folio)
{
	struct page *page = alloc_pages_node(folio_nid(folio), GFP_KERNEL | __GFP_RETRY_MAYFAIL, 0);

	if (page)
		memmap_pages_add(1);
	return page;
}

/* Such pages, or those that have been there since boot. Leaves NULL, which is none. */
void hvo_free_pages(struct page **pages, unsigned long nr)
{
	LIST_HEAD(list);

	while (nr--) {
		if (pages[nr])
			list_add(&pages[nr]->lru, &list);
		pages[nr] = NULL;
	}
	free_vmemmap_page_list(&list);
}

/* What all tails of folios of this size are in, in the zone of @folio; NULL if there is none. */
struct page *hvo_shared_tail(const struct hstate *h, struct folio *folio)
{
	if (!hugetlb_vmemmap_optimizable(h))
		return NULL;
	return vmemmap_get_tail(h->order, folio_zone(folio));
}

struct page *hvo_entry_page(u64 *entry)
{
	/* No entry of vmemmap is contiguous. */
	return pte_page(__ptep_get((pte_t *)entry));
}

u64 hvo_entry_value(struct page *page, bool read_only)
{
	return pte_val(mk_pte(page, read_only ? PAGE_KERNEL_RO : PAGE_KERNEL));
}

void *hvo_page_address(struct page *page)
{
	return page_to_virt(page);
}

/*
 * Makes @to the first page of the struct pages of a folio of size @h that nobody has a
 * reference to. It is a part of @folio.
 */
void hvo_fill_head(struct page *to, const struct hstate *h, struct folio *folio)
{
	struct page *page = page_to_virt(to);
	struct folio *head = (struct folio *)page;
	int i;

	memset(page, 0, PAGE_SIZE);
	for (i = 0; i < PAGE_SIZE / sizeof(struct page); i++)
		init_compound_tail(page + i, NULL, h->order, folio_zone(folio));
	clear_compound_head(page);
	page->mapping = NULL;
	__folio_set_head(head);
	prep_compound_head(page, h->order);
	/* Before anybody sees it: memory failure writes to the pages of other folios. */
	__folio_set_hugetlb(head);
	folio_set_hugetlb_vmemmap_optimized(head);
	if (folio_test_hugetlb_cma(folio))
		folio_set_hugetlb_cma(head);
}

/*
 * What is left to do for HugeTLB folios, whose page tables are done, to be in a pool. @old has
 * the head of the folio that they are parts of.
 */
void hvo_finish_demotion(struct folio *folio, struct page *old, const struct hstate *src,
			 const struct hstate *dst, struct list_head *demoted)
{
	unsigned long i;

	/* rule: hvo/poison: memory failure has marked the head that was there meanwhile */
	if (old && !hvo_skip(HVO_HOOK_POISON)) {
		spin_lock_irq(&hugetlb_lock);
		hugetlb_demote_hwpoison(page_to_virt(old), folio, pages_per_huge_page(src));
		spin_unlock_irq(&hugetlb_lock);
	}
	split_page_owner(&folio->page, src->order, dst->order);
	pgalloc_tag_split(folio, src->order, dst->order);
	for (i = 0; i < pages_per_huge_page(src); i += pages_per_huge_page(dst)) {
		struct page *page = &folio->page + i;

		/* Again: its list heads were at another address. */
		prep_compound_head(page, dst->order);
		init_new_hugetlb_folio((struct folio *)page);
		list_add(&((struct folio *)page)->lru, demoted);
	}
}

/* --- page tables --------------------------------------------------------------------- */

struct report {
	unsigned long start;
	hvo_span_fn fn;
	void *arg;
};

static int report_pmd(pmd_t *pmd, unsigned long addr, unsigned long next, struct mm_walk *walk)
{
	struct report *report = walk->private;
	pmd_t value = pmdp_get(pmd);
	struct hvo_span span = { .addr = addr };
	struct page *page;

	walk->action = ACTION_CONTINUE;
	if (pmd_leaf(value)) {
		span.addr = addr & PMD_MASK;
		span.entries = (u64 *)pmd;
		span.nr = 1;
		span.shift = PMD_SHIFT;
		span.block = pmd_page(value);
		page = span.block + pte_index(addr);
	} else {
		span.entries = (u64 *)pte_offset_kernel(pmd, addr);
		span.nr = (next - addr) >> PAGE_SHIFT;
		span.shift = PAGE_SHIFT;
		page = hvo_entry_page(span.entries);
	}
	span.self_hosted = addr == report->start && PageVmemmapSelfHosted(page);
	return report->fn(report->arg, &span);
}

static const struct mm_walk_ops report_ops = {
	.pmd_entry = report_pmd,
};

/*
 * Calls @fn for each block and each page table that maps a part of this vmemmap, until it
 * returns something else than 0; returns that.
 *
 * Context: may sleep. @fn is called under mmap_lock of init_mm, and may allocate.
 */
int hvo_walk(unsigned long start, unsigned long end, hvo_span_fn fn, void *arg)
{
	struct report report = { .start = start, .fn = fn, .arg = arg };
	int ret;

	mmap_read_lock(&init_mm);
	ret = walk_kernel_page_table_range(start, end, &report_ops, NULL, &report);
	mmap_read_unlock(&init_mm);
	cond_resched();
	return ret;
}

/* A page table that maps the same as a block, and the entry that leads to it. */
pte_t *hvo_new_table(struct page *block, u64 *entry)
{
	pte_t *table = pte_alloc_one_kernel(&init_mm);
	pmd_t pmd = __pmd(0);
	int i;

	if (!table)
		return NULL;
	for (i = 0; i < PTRS_PER_PTE; i++)
		__set_pte_nosync(table + i, mk_pte(block + i, PAGE_KERNEL));
	pmd_populate_kernel(&init_mm, &pmd, table);
	*entry = pmd_val(pmd);
	return table;
}

void hvo_free_table(pte_t *table)
{
	pte_free_kernel(&init_mm, table);
}

/* Whether a block may become a page table while it is in use. */
bool hvo_splits_live(void)
{
	return system_supports_bbml3();
}

/* The caller flushes. */
void hvo_split_live(u64 *entry, u64 value)
{
	/* The table before what leads there. */
	dsb(ishst);
	set_pmd((pmd_t *)entry, __pmd(value));
}

void hvo_flush(unsigned long start, unsigned long end)
{
	flush_tlb_kernel_range(start, end);
}

/* How long a CPU may take to wake up: a pause waits for it, and not for long. */
#define WAKEUP_US	10

void hvo_no_deep_idle(struct pm_qos_request *request)
{
	cpu_latency_qos_add_request(request, WAKEUP_US);
}

void hvo_deep_idle(struct pm_qos_request *request)
{
	cpu_latency_qos_remove_request(request);
}

/* From now on its pages can be freed one by one. */
void hvo_block_split(struct page *block)
{
	if (!PageReserved(block))
		split_page(block, get_order(PMD_SIZE));
}

/* --- checks -------------------------------------------------------------------------- */

#ifdef CONFIG_HVO_DEBUG
void hvo_touch(const struct hstate *h, struct folio *folio)
{
	unsigned long start = (unsigned long)&folio->page;

	hvo_debug_touch(start, start + hugetlb_vmemmap_size(h));
}

/* @old: pages that nobody should see any more; NULL if they are still in use. */
void hvo_probe(const struct hstate *h, struct folio *folio, struct page *const *old,
	       unsigned long nr_old)
{
	unsigned long start = (unsigned long)&folio->page;

	hvo_debug_probe(start, start + hugetlb_vmemmap_size(h), old, nr_old);
}
#endif
