// SPDX-License-Identifier: GPL-2.0
/*
 * HugeTLB vmemmap optimisation in bulk: as mm/hugetlb_vmemmap.c, but what it changes is
 * collected first, and then changed for many folios at once, while nobody uses it.
 *
 * What belongs to a folio is in a slot until the plan is committed. Afterwards the pages
 * that are not needed are freed: the old ones if the folio was changed, otherwise those
 * that were to replace them.
 */
#include <linux/hugetlb.h>
#include <linux/hvo.h>
#include <linux/mutex.h>
#include <linux/page_owner.h>
#include <linux/pagewalk.h>
#include <linux/pgalloc.h>
#include <linux/pgalloc_tag.h>
#include <linux/pm_qos.h>
#include <linux/rcupdate.h>

#include <asm/tlbflush.h>

#include "../hugetlb_internal.h"
#include "../hugetlb_vmemmap.h"
#include "../internal.h"

/* As many entries are collected before they are changed: those of 1 GiB, or 512 * 2 MiB. */
#define BATCH_ENTRIES	4096UL
/* Blocks that are split together. */
#define BATCH_BLOCKS	512

struct slot {
	struct folio *folio;
	/* What the folio has no use for if the change succeeds, */
	struct list_head old;
	/* and if it does not. */
	struct list_head new;
};

struct batch {
	const struct hstate *h;
	enum hvo_reason reason;
	bool mandatory;
	struct hvo_plan *plan;
	struct slot *slots;
	unsigned int nr_slots;
	unsigned int max_slots;
	/* New values of entries that differ from each other. */
	u64 *values;
	unsigned long nr_values;
	/* Why blocks are left that are not split. */
	int unsplit;
	/* Of HVO_DEMOTE: the size that the folios get. */
	const struct hstate *dst;
	/* Where folios go that were changed, or NULL, */
	struct list_head *done;
	/* and the others, if they could not stay where they were. */
	struct list_head *undone;
	/* How many of them were changed since batch_begin(). */
	long nr_done;
	/* Before this, somebody may have found a page in use that is a tail now. */
	unsigned long rcu;
};

/* An idle CPU that first has to wake up would keep the others waiting, or not come in time. */
#define WAKEUP_US	10

static unsigned long commit(struct hvo_plan *plan, enum hvo_reason reason, bool mandatory)
{
	struct pm_qos_request qos = { };
	unsigned long units;

	cpu_latency_qos_add_request(&qos, WAKEUP_US);
	units = hvo_plan_commit(plan, reason, mandatory);
	cpu_latency_qos_remove_request(&qos);
	return units;
}

static unsigned long nr_entries(const struct hstate *h)
{
	return hugetlb_vmemmap_size(h) >> PAGE_SHIFT;
}

static void batch_end(struct batch *b)
{
	hvo_plan_free(b->plan);
	kvfree(b->slots);
	kvfree(b->values);
}

static int batch_begin(struct batch *b, const struct hstate *h, enum hvo_reason reason,
		       unsigned int slots)
{
	/* Those of one page table change together, and the head by itself. */
	unsigned long runs = hugetlb_vmemmap_size(h) / PMD_SIZE + 2;
	bool values = reason != HVO_OPTIMIZE;

	*b = (struct batch) {
		.h = h,
		.reason = reason,
		.unsplit = -ENOMEM,
	};
	if (!hvo_batches())
		slots = 1;
	/* The head is not restored. */
	b->max_slots = clamp(BATCH_ENTRIES / (nr_entries(h) - (reason == HVO_RESTORE)), 1UL, slots);
	b->rcu = get_state_synchronize_rcu();
	b->plan = hvo_plan_new(runs * b->max_slots);
	b->slots = kvcalloc(b->max_slots, sizeof(*b->slots), GFP_KERNEL);
	if (values)
		b->values = kvmalloc_array(nr_entries(h) * b->max_slots,
					   sizeof(*b->values), GFP_KERNEL);
	if (b->plan && b->slots && (b->values || !values))
		return 0;
	batch_end(b);
	return -ENOMEM;
}

/* What is in the way of the heads being HugeTLB folios; their page tables are done. */
static void finish_demotion(struct batch *b, struct slot *slot)
{
	unsigned int order = b->dst->order;
	unsigned long i;

	split_page_owner(&slot->folio->page, b->h->order, order);
	pgalloc_tag_split(slot->folio, b->h->order, order);
	for (i = 0; i < pages_per_huge_page(b->h); i += pages_per_huge_page(b->dst)) {
		struct page *page = &slot->folio->page + i;
		struct folio *folio = (struct folio *)page;

		/* Again: its list heads were at another address. */
		prep_compound_head(page, order);
		init_new_hugetlb_folio(folio);
		list_add(&folio->lru, b->done);
	}
}

static void slot_changed(struct batch *b, struct slot *slot, struct list_head *unused)
{
	struct page *page, *next;
	unsigned long start = (unsigned long)&slot->folio->page;

	hvo_debug_probe(start, start + hugetlb_vmemmap_size(b->h),
			b->reason == HVO_OPTIMIZE ? &slot->old : NULL);
	list_for_each_entry_safe(page, next, &slot->new, lru)
		list_del(&page->lru);
	list_splice(&slot->old, unused);
	b->nr_done++;

	if (b->reason == HVO_DEMOTE) {
		finish_demotion(b, slot);
		return;
	}
	if (b->reason == HVO_RESTORE)
		folio_clear_hugetlb_vmemmap_optimized(slot->folio);
	if (b->done)
		list_move(&slot->folio->lru, b->done);
}

static void slot_unchanged(struct batch *b, struct slot *slot, struct list_head *unused)
{
	list_splice(&slot->new, unused);
	if (b->reason == HVO_OPTIMIZE)
		folio_clear_hugetlb_vmemmap_optimized(slot->folio);
	if (b->undone)
		list_add(&slot->folio->lru, b->undone);
}

/*
 * Changes the folios that were collected, the first ones first. Returns 0, or -EBUSY if
 * that was not possible for all of them: the others are as they were.
 */
static int batch_commit(struct batch *b)
{
	unsigned long changed, i;
	LIST_HEAD(unused);

	if (!b->nr_slots)
		return 0;

	/*
	 * Who has read the reference count of a page before it became a tail, and will try
	 * to raise it, needs a page that can be written to even if the attempt fails.
	 */
	if (b->reason == HVO_OPTIMIZE && !hvo_skip(HVO_HOOK_RCU))
		cond_synchronize_rcu_expedited(b->rcu);

	if (IS_ENABLED(CONFIG_HVO_DEBUG)) {
		for (i = 0; i < b->nr_slots; i++) {
			unsigned long start = (unsigned long)&b->slots[i].folio->page;

			hvo_debug_touch(start, start + hugetlb_vmemmap_size(b->h));
		}
	}

	changed = commit(b->plan, b->reason, b->mandatory);
	for (i = 0; i < b->nr_slots; i++) {
		if (i < changed)
			slot_changed(b, &b->slots[i], &unused);
		else
			slot_unchanged(b, &b->slots[i], &unused);
	}
	free_vmemmap_page_list(&unused);
	changed = changed < b->nr_slots;
	b->nr_slots = 0;
	b->nr_values = 0;
	return changed ? -EBUSY : 0;
}

/*
 * Two tasks must not each bring a page table for the same block, nor free pages of a block
 * that somebody else has split, but not yet into pages.
 */
static DEFINE_MUTEX(split_mutex);

struct collect {
	struct batch *b;
	struct slot *slot;
	unsigned long start;
	unsigned long end;
	struct page *head;
	struct page *tail;
	struct page *next;
};

static int optimize_pmd(struct collect *c, struct hvo_run *run)
{
	bool first = run->addr == c->start;
	pte_t *pte = (pte_t *)run->entries;
	u32 i;

	for (i = 0; i < run->nr; i++)
		list_add(&pte_page(ptep_get(pte + i))->lru, &c->slot->old);

	if (first) {
		struct hvo_run head = *run;
		int ret;

		head.nr = 1;
		head.value = pte_val(mk_pte(c->head, PAGE_KERNEL));
		head.copy_to = page_to_virt(c->head);
		head.copy_from = page_to_virt(pte_page(ptep_get(pte)));
		ret = hvo_plan_add(c->b->plan, &head, false);
		if (ret)
			return ret;
		run->addr += PAGE_SIZE;
		run->entries++;
		run->nr--;
	}
	/* Read-only, so that who writes to a tail is found out. */
	run->value = pte_val(mk_pte(c->tail, PAGE_KERNEL_RO));
	return 0;
}

static int restore_pmd(struct collect *c, struct hvo_run *run)
{
	pte_t *pte = (pte_t *)run->entries;
	u64 *values = c->b->values + c->b->nr_values;
	u32 i;

	for (i = 0; i < run->nr; i++) {
		/* Nobody can have written to the tails that they share. */
		copy_page(page_to_virt(c->next), page_to_virt(pte_page(ptep_get(pte + i))));
		values[i] = pte_val(mk_pte(c->next, PAGE_KERNEL));
		c->next = list_next_entry(c->next, lru);
	}
	c->b->nr_values += run->nr;
	run->values = values;
	return 0;
}

static int demote_pmd(struct collect *c, struct hvo_run *run)
{
	/* Of one folio of the new size. */
	unsigned long pages = nr_entries(c->b->dst);
	unsigned long at = (run->addr - c->start) >> PAGE_SHIFT;
	u64 *values = c->b->values + c->b->nr_values;
	u32 i;

	if (!at)
		list_add(&pte_page(ptep_get((pte_t *)run->entries))->lru, &c->slot->old);
	for (i = 0; i < run->nr; i++) {
		if ((at + i) % pages) {
			values[i] = pte_val(mk_pte(c->tail, PAGE_KERNEL_RO));
		} else {
			values[i] = pte_val(mk_pte(c->next, PAGE_KERNEL));
			c->next = list_next_entry(c->next, lru);
		}
	}
	c->b->nr_values += run->nr;
	run->values = values;
	return 0;
}

static int collect_pmd(pmd_t *pmd, unsigned long addr, unsigned long next,
		       struct mm_walk *walk)
{
	struct collect *c = walk->private;
	struct hvo_run run = {
		.addr = addr,
		.nr = (next - addr) >> PAGE_SHIFT,
		.shift = PAGE_SHIFT,
	};
	pte_t *pte;
	int ret;

	walk->action = ACTION_CONTINUE;
	if (pmd_leaf(pmdp_get(pmd)))
		return c->b->unsplit;

	pte = pte_offset_kernel(pmd, addr);
	if (addr == c->start && PageVmemmapSelfHosted(pte_page(ptep_get(pte))))
		return -EOPNOTSUPP;

	run.entries = (u64 *)pte;
	switch (c->b->reason) {
	case HVO_RESTORE:
		ret = restore_pmd(c, &run);
		break;
	case HVO_DEMOTE:
		ret = demote_pmd(c, &run);
		break;
	default:
		ret = optimize_pmd(c, &run);
	}
	if (!ret && run.nr)
		ret = hvo_plan_add(c->b->plan, &run, next == c->end);
	return ret;
}

static const struct mm_walk_ops collect_ops = {
	.pmd_entry = collect_pmd,
};

static int collect(struct collect *c)
{
	int ret;

	mutex_lock(&split_mutex);
	mmap_read_lock(&init_mm);
	ret = walk_kernel_page_table_range(c->start, c->end, &collect_ops, NULL, c);
	mmap_read_unlock(&init_mm);
	mutex_unlock(&split_mutex);
	if (ret)
		hvo_plan_abort(c->b->plan);
	else
		c->b->nr_slots++;
	return ret;
}

static struct slot *next_slot(struct batch *b, struct folio *folio)
{
	struct slot *slot = &b->slots[b->nr_slots];

	slot->folio = folio;
	INIT_LIST_HEAD(&slot->old);
	INIT_LIST_HEAD(&slot->new);
	return slot;
}

/* Returns 0 if the folio is changed by the next commit. */
static int batch_optimize(struct batch *b, struct folio *folio)
{
	struct slot *slot = next_slot(b, folio);
	struct collect c = {
		.b = b,
		.slot = slot,
		.start = (unsigned long)&folio->page,
		.end = (unsigned long)&folio->page + hugetlb_vmemmap_size(b->h),
		.tail = vmemmap_get_tail(b->h->order, folio_zone(folio)),
	};
	int ret;

	if (!c.tail)
		return -ENOMEM;
	c.head = alloc_pages_node(folio_nid(folio), GFP_KERNEL, 0);
	if (!c.head)
		return -ENOMEM;
	memmap_pages_add(1);
	list_add(&c.head->lru, &slot->new);

	/* The new head is copied from the old one when nobody can change that any more. */
	folio_set_hugetlb_vmemmap_optimized(folio);
	ret = collect(&c);
	if (ret) {
		folio_clear_hugetlb_vmemmap_optimized(folio);
		free_vmemmap_page_list(&slot->new);
	}
	return ret;
}

static int batch_restore(struct batch *b, struct folio *folio)
{
	struct slot *slot = next_slot(b, folio);
	struct collect c = {
		.b = b,
		.slot = slot,
		.start = (unsigned long)&folio->page + HUGETLB_VMEMMAP_RESERVE_SIZE,
		.end = (unsigned long)&folio->page + hugetlb_vmemmap_size(b->h),
	};
	unsigned long nr_values = b->nr_values;
	int ret;

	ret = alloc_vmemmap_page_list(c.start, c.end, &slot->new);
	if (ret)
		return ret;
	c.next = list_first_entry(&slot->new, struct page, lru);
	ret = collect(&c);
	if (ret) {
		b->nr_values = nr_values;
		free_vmemmap_page_list(&slot->new);
	}
	return ret;
}

/* The first page of the struct pages of a folio that nobody has a reference to. */
static void fill_head(struct page *to, unsigned int order, struct zone *zone, bool cma)
{
	struct page *page = page_to_virt(to);
	struct folio *folio = (struct folio *)page;
	int i;

	memset(page, 0, PAGE_SIZE);
	for (i = 0; i < PAGE_SIZE / sizeof(struct page); i++)
		init_compound_tail(page + i, NULL, order, zone);
	clear_compound_head(page);
	page->mapping = NULL;
	__folio_set_head(folio);
	prep_compound_head(page, order);
	/* Before anybody sees it: memory failure writes to the pages of other folios. */
	__folio_set_hugetlb(folio);
	folio_set_hugetlb_vmemmap_optimized(folio);
	if (cma)
		folio_set_hugetlb_cma(folio);
}

static int batch_demote(struct batch *b, struct folio *folio)
{
	struct slot *slot = next_slot(b, folio);
	struct collect c = {
		.b = b,
		.slot = slot,
		.start = (unsigned long)&folio->page,
		.end = (unsigned long)&folio->page + hugetlb_vmemmap_size(b->h),
		.tail = vmemmap_get_tail(b->dst->order, folio_zone(folio)),
	};
	unsigned long heads = pages_per_huge_page(b->h) / pages_per_huge_page(b->dst);
	unsigned long nr_values = b->nr_values;
	struct page *head;
	int ret;

	if (!c.tail)
		return -ENOMEM;
	ret = alloc_vmemmap_page_list(c.start, c.start + heads * PAGE_SIZE, &slot->new);
	if (ret)
		return ret;
	list_for_each_entry(head, &slot->new, lru)
		fill_head(head, b->dst->order, folio_zone(folio), folio_test_hugetlb_cma(folio));
	c.next = list_first_entry(&slot->new, struct page, lru);
	ret = collect(&c);
	if (ret) {
		b->nr_values = nr_values;
		free_vmemmap_page_list(&slot->new);
		return ret;
	}
	/* Nothing of the old head is in the new ones. */
	list_del(&folio->lru);
	return 0;
}

/* --- splitting the blocks that map vmemmap ----------------------------------------- */

struct split {
	const struct hstate *h;
	struct hvo_plan *plan;
	unsigned int nr;
	bool flush;
	unsigned long start;
	struct {
		pmd_t *pmd;
		pte_t *table;
		struct page *block;
	} *blocks;
};

static int split_commit(struct split *s)
{
	unsigned long changed, i;

	if (!s->nr)
		return 0;
	changed = commit(s->plan, HVO_SPLIT, false);
	for (i = 0; i < s->nr; i++) {
		/* Its pages are freed one by one. */
		if (i < changed && !PageReserved(s->blocks[i].block))
			split_page(s->blocks[i].block, get_order(PMD_SIZE));
		else if (i >= changed)
			pte_free_kernel(&init_mm, s->blocks[i].table);
	}
	changed = changed < s->nr;
	s->nr = 0;
	return changed ? -EBUSY : 0;
}

static bool split_known(struct split *s, pmd_t *pmd)
{
	unsigned int i = s->nr;

	/* Neighbours come one after the other, mostly. */
	while (i--) {
		if (s->blocks[i].pmd == pmd)
			return true;
	}
	return false;
}

static int split_pmd_entry(pmd_t *pmd, unsigned long addr, unsigned long next,
			   struct mm_walk *walk)
{
	struct split *s = walk->private;
	unsigned long start = addr & PMD_MASK;
	struct hvo_run run = {
		.addr = start,
		.entries = (u64 *)pmd,
		.nr = 1,
		.shift = PMD_SHIFT,
	};
	struct page *block;
	pmd_t new = __pmd(0);
	pte_t *table;
	int i;

	walk->action = ACTION_CONTINUE;
	if (!pmd_leaf(pmdp_get(pmd)) || split_known(s, pmd))
		return 0;
	block = pmd_page(pmdp_get(pmd));
	if (addr == s->start && PageVmemmapSelfHosted(block + pte_index(addr)))
		return -EOPNOTSUPP;
	/* Committed without the lock, which is held here. */
	if (s->nr == (hvo_batches() ? BATCH_BLOCKS : 1))
		return -ENOSPC;

	table = pte_alloc_one_kernel(&init_mm);
	if (!table)
		return -ENOMEM;
	for (i = 0; i < PTRS_PER_PTE; i++)
		__set_pte_nosync(table + i, mk_pte(block + i, PAGE_KERNEL));
	pmd_populate_kernel(&init_mm, &new, table);
	run.value = pmd_val(new);

	if (system_supports_bbml3()) {
		/* The size may change while it is in use. */
		dsb(ishst);
		set_pmd(pmd, new);
		s->flush = true;
		if (!PageReserved(block))
			split_page(block, get_order(PMD_SIZE));
		return 0;
	}
	if (hvo_plan_add(s->plan, &run, true)) {
		pte_free_kernel(&init_mm, table);
		return -ENOSPC;
	}
	s->blocks[s->nr].pmd = pmd;
	s->blocks[s->nr].table = table;
	s->blocks[s->nr].block = block;
	s->nr++;
	return 0;
}

static const struct mm_walk_ops split_ops = {
	.pmd_entry = split_pmd_entry,
};

static int split_folio_blocks(struct split *s, struct folio *folio)
{
	unsigned long end;
	int ret;

	s->start = (unsigned long)&folio->page;
	end = s->start + hugetlb_vmemmap_size(s->h);
	for (;;) {
		mmap_read_lock(&init_mm);
		ret = walk_kernel_page_table_range(s->start, end, &split_ops, NULL, s);
		mmap_read_unlock(&init_mm);
		if (ret != -ENOSPC)
			return ret;
		ret = split_commit(s);
		if (ret)
			return ret;
	}
}

/*
 * Folios whose blocks cannot be split are left alone later. Returns 0, or why there are
 * some: -EBUSY or -ENOMEM.
 */
static int split_all(const struct hstate *h, struct list_head *folios)
{
	struct split s = { .h = h };
	struct folio *folio;
	int why = -ENOMEM;

	s.plan = hvo_plan_new(BATCH_BLOCKS);
	s.blocks = kvcalloc(BATCH_BLOCKS, sizeof(*s.blocks), GFP_KERNEL);
	if (s.plan && s.blocks) {
		why = 0;
		mutex_lock(&split_mutex);
		list_for_each_entry(folio, folios, lru) {
			int ret;

			if (!vmemmap_should_optimize_folio(h, folio))
				continue;
			ret = split_folio_blocks(&s, folio);
			if (ret == -ENOMEM || ret == -EBUSY)
				why = ret;
			/* There will be memory when other folios have given it back. */
			if (ret == -ENOMEM)
				break;
		}
		why = split_commit(&s) ?: why;
		mutex_unlock(&split_mutex);
		if (s.flush)
			flush_tlb_all();
	}
	hvo_plan_free(s.plan);
	kvfree(s.blocks);
	return why;
}

/* --- as called by mm/hugetlb_vmemmap.c ----------------------------------------------- */

static const char *why_not(int error)
{
	switch (error) {
	case -EBUSY:
		return "the other CPUs cannot be stopped because of CPU hotplug";
	case -EOPNOTSUPP:
		return "they are in the memory that they describe";
	default:
		return "no memory for what replaces them";
	}
}

/* Those that were not changed, of all that should have been. */
static void report(const struct hstate *h, struct list_head *folios, int why)
{
	unsigned long kept = 0, nr = 0;
	struct folio *folio;

	list_for_each_entry(folio, folios, lru) {
		kept += vmemmap_should_optimize_folio(h, folio);
		nr++;
	}
	if (kept)
		pr_warn("HugeTLB: %lu of %lu pages of %lukB keep their struct pages: %s\n",
			kept, nr, huge_page_size(h) / SZ_1K, why_not(why));
}

/* Each folio for itself: what prevents the change of one need not prevent that of others. */
static int optimize_list(struct batch *b, struct list_head *folios)
{
	struct folio *folio;
	int why = 0;

	list_for_each_entry(folio, folios, lru) {
		int ret;

		if (!vmemmap_should_optimize_folio(b->h, folio))
			continue;
		ret = batch_optimize(b, folio);
		/* Without memory: with what the others give back. */
		if (ret == -ENOMEM && b->nr_slots)
			ret = batch_commit(b) ?: batch_optimize(b, folio);
		if (!ret && b->nr_slots == b->max_slots)
			ret = batch_commit(b);
		why = ret ?: why;
		cond_resched();
	}
	return batch_commit(b) ?: why;
}

/* Returns 0, or why there may be some that were not changed. */
static int optimize_folios(const struct hstate *h, struct list_head *folios,
			   unsigned int slots)
{
	int why, unsplit;
	struct batch b;

	if (!READ_ONCE(vmemmap_optimize_enabled) || !hugetlb_vmemmap_optimizable(h))
		return 0;
	unsplit = split_all(h, folios);
	why = batch_begin(&b, h, HVO_OPTIMIZE, slots);
	if (!why) {
		if (unsplit)
			b.unsplit = unsplit;
		why = optimize_list(&b, folios);
		batch_end(&b);
	}
	return why;
}

/**
 * hvo_optimize_folios - give back the vmemmap of folios but for one page each
 * @h: their size.
 * @folios: frozen, and on this list only.
 *
 * Those that it cannot be done for are left as they are, and a message says how many and
 * why. May sleep.
 */
void hvo_optimize_folios(const struct hstate *h, struct list_head *folios)
{
	int why = list_empty(folios) ? 0 : optimize_folios(h, folios, UINT_MAX);

	if (why)
		report(h, folios, why);
}

/**
 * hvo_optimize_folio - the same for one
 * @h: its size.
 * @folio: frozen, on no list.
 *
 * For one that replaces another: who migrates it, or wants its memory, is not told.
 */
void hvo_optimize_folio(const struct hstate *h, struct folio *folio)
{
	LIST_HEAD(folios);

	list_add(&folio->lru, &folios);
	optimize_folios(h, &folios, 1);
	list_del_init(&folio->lru);
}

/* How many folios of each size gave their vmemmap back. Under hugetlb_lock. */
static unsigned long nr_optimized[HUGE_MAX_HSTATE];

/**
 * hvo_count_folio - count a folio that comes into a pool, or leaves it
 * @h: its size.
 * @folio: it; while it is in the pool, it is optimised or not, and stays so.
 * @nr: 1 or -1.
 *
 * Context: under hugetlb_lock.
 */
void hvo_count_folio(struct hstate *h, struct folio *folio, int nr)
{
	lockdep_assert_held(&hugetlb_lock);
	if (folio_test_hugetlb_vmemmap_optimized(folio))
		nr_optimized[hstate_index(h)] += nr;
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

/**
 * hvo_restore_folios - give folios their own vmemmap again
 * @h: their size.
 * @folios: those that it cannot be done for stay on this list.
 * @restored: where the others go, and those that have it.
 *
 * May sleep.
 * Return: for how many it was done, -ENOMEM, or -EBUSY if the other CPUs cannot be stopped
 * because of CPU hotplug.
 */
long hvo_restore_folios(const struct hstate *h, struct list_head *folios,
			struct list_head *restored)
{
	struct folio *folio, *next;
	struct batch b;
	int ret;

	list_for_each_entry_safe(folio, next, folios, lru) {
		if (!folio_test_hugetlb_vmemmap_optimized(folio))
			list_move(&folio->lru, restored);
	}
	if (list_empty(folios))
		return 0;
	ret = batch_begin(&b, h, HVO_RESTORE, UINT_MAX);
	if (ret)
		return ret;
	b.mandatory = true;
	b.done = restored;
	list_for_each_entry_safe(folio, next, folios, lru) {
		ret = batch_restore(&b, folio);
		if (!ret && b.nr_slots == b.max_slots)
			ret = batch_commit(&b);
		if (ret)
			break;
		cond_resched();
	}
	/* Of an error in between, too: the pages are there. */
	if (batch_commit(&b))
		ret = -EBUSY;
	batch_end(&b);
	return ret ?: b.nr_done;
}

/**
 * hvo_restore_folio - the same for one
 * @h: its size.
 * @folio: frozen.
 *
 * Return: 0 or an error as of hvo_restore_folios().
 */
int hvo_restore_folio(const struct hstate *h, struct folio *folio)
{
	struct batch b;
	int ret;

	if (!folio_test_hugetlb_vmemmap_optimized(folio))
		return 0;
	ret = batch_begin(&b, h, HVO_RESTORE, 1);
	if (ret)
		return ret;
	b.mandatory = true;
	ret = batch_restore(&b, folio) ?: batch_commit(&b);
	batch_end(&b);
	return ret;
}

/**
 * hvo_demote_folios - make smaller folios of larger ones without their vmemmap in between
 * @src: what size they have.
 * @dst: what size they get.
 * @folios: frozen, and on this list only; those that it cannot be done for stay there.
 * @demoted: where the smaller ones go.
 *
 * Only the heads of the smaller folios need pages of struct pages: those of their tails
 * are shared before and after. May sleep.
 */
void hvo_demote_folios(const struct hstate *src, const struct hstate *dst,
		       struct list_head *folios, struct list_head *demoted)
{
	struct folio *folio, *next;
	LIST_HEAD(undone);
	struct batch b;

	if (!READ_ONCE(vmemmap_optimize_enabled) || !hugetlb_vmemmap_optimizable(dst) ||
	    !hvo_batches() || mem_alloc_profiling_enabled() ||
	    batch_begin(&b, src, HVO_DEMOTE, UINT_MAX))
		return;
	b.dst = dst;
	b.done = demoted;
	b.undone = &undone;
	list_for_each_entry_safe(folio, next, folios, lru) {
		if (!folio_test_hugetlb_vmemmap_optimized(folio) || folio_test_hwpoison(folio))
			continue;
		if (batch_demote(&b, folio))
			break;
		if (b.nr_slots == b.max_slots && batch_commit(&b))
			break;
		cond_resched();
	}
	batch_commit(&b);
	batch_end(&b);
	list_splice(&undone, folios);
}
