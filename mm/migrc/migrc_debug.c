// SPDX-License-Identifier: GPL-2.0
/*
 * Checks at run time that nobody observes a deferred flush: the content of source and
 * destination agrees, the source does not change, it is not touched after its flush, and
 * no entry becomes writable, or is of another memory type or size, whose old translation
 * may be in a TLB.
 */
#include <linux/jhash.h>
#include <linux/migrc.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/tlb_oracle.h>
#include <linux/xarray.h>
#include <asm/migrc.h>

#include "../internal.h"
#include "internal.h"

#define POISON		0xa5
/* How much is kept for a second look after it has been flushed. */
#define QUARANTINE	1024

/*
 * A source, by its frame number. What is not recorded for lack of memory is not
 * checked; what was recorded for a migration that failed is overwritten by the next.
 */
struct record {
	unsigned long addr;
	pid_t pid;
	u64 ns;
	u32 hash;
	bool hashed;
};

static DEFINE_XARRAY(records);

/* Of the drain that is running. */
static struct folio *quarantine;
static unsigned long quarantine_pages;
static bool quarantine_full;

static void report(struct folio *folio, const char *what)
{
	struct record *r = xa_load(&records, folio_pfn(folio));

	WARN(1, "migrc: %s: pfn 0x%lx, %ld pages, pid %d, address 0x%lx, age %llu us\n",
	     what, folio_pfn(folio), folio_nr_pages(folio), r ? r->pid : 0,
	     r ? r->addr : 0, r ? div_u64(ktime_get_ns() - r->ns, NSEC_PER_USEC) : 0);
}

static u32 hash_folio(struct folio *folio)
{
	u32 hash = 0;
	long i;

	for (i = 0; i < folio_nr_pages(folio); i++) {
		u32 *p = kmap_local_page(folio_page(folio, i));

		hash = jhash2(p, PAGE_SIZE / sizeof(u32), hash);
		kunmap_local(p);
		cond_resched();
	}
	return hash;
}

/* At its first deferral; PTLs of several tables may be held. NULL if there is no memory. */
static struct xarray *addrs_of(struct migrc_mm *mm)
{
	struct xarray *addrs = READ_ONCE(mm->addrs), *other;

	if (addrs)
		return addrs;
	addrs = kmalloc_obj(struct xarray, GFP_ATOMIC | __GFP_NOWARN);
	if (!addrs)
		return NULL;
	xa_init(addrs);
	other = cmpxchg(&mm->addrs, NULL, addrs);
	if (!other)
		return addrs;
	kfree(addrs);
	return other;
}

/*
 * What is kept of an address: the number of its last deferral, and what its entry was.
 * A TLB may still have it.
 */
#define WAS_RETYPED	BIT(0)
#define WAS_BLOCK	BIT(1)
#define NUMBER_SHIFT	2

/* Entries of @vma, the first of which was @pte, were cleared and deferred, under the PTL. */
void migrc_debug_deferred(struct vm_area_struct *vma, unsigned long addr, pte_t pte,
			  unsigned int nr, enum migrc_geometry geometry)
{
	struct migrc_mm *mm = &vma->vm_mm->migrc;
	u64 number = atomic64_read(&mm->deferred);
	struct migrc_walk *walk = &current->tlb_ubc.migrc;
	struct xarray *addrs = addrs_of(mm);
	unsigned int i;

	number <<= NUMBER_SHIFT;
	if (arch_migrc_may_retype(pte))
		number |= WAS_RETYPED;
	if (geometry == MIGRC_BLOCKS)
		number |= WAS_BLOCK;
	walk->addr = addr;
	scoped_guard(rcu) {
		struct task_struct *owner = rcu_dereference(vma->vm_mm->owner);

		walk->pid = owner ? task_tgid_nr(owner) : 0;
	}
	for (i = 0; addrs && i < nr; i++)
		xa_store(addrs, (addr >> PAGE_SHIFT) + i, xa_mk_value(number),
			 GFP_ATOMIC | __GFP_NOWARN);
}

/* All mappings of @src were deferred. */
void migrc_debug_walked(struct folio *src)
{
	struct migrc_walk *walk = &current->tlb_ubc.migrc;
	struct record *r;
	void *old;

	/* Not all of them, where the rule "mixed" was removed. */
	if (walk->denied)
		return;
	r = kzalloc_obj(*r, GFP_NOWAIT);
	if (!r)
		return;
	r->addr = walk->addr;
	r->pid = walk->pid;
	r->ns = ktime_get_ns();
	old = xa_store(&records, folio_pfn(src), r, GFP_NOWAIT | __GFP_NOWARN);
	kfree(xa_is_err(old) ? r : old);
}

/* The content has been copied, and nothing maps @dst yet. */
void migrc_debug_moved(struct folio *dst, struct folio *src)
{
	struct record *r = xa_load(&records, folio_pfn(src));
	u32 hash = hash_folio(src);

	/* rule: migrc/current: a stale translation leads to what a walk would find */
	if (hash != hash_folio(dst))
		report(src, "source changed while it was copied");
	if (r) {
		r->hash = hash;
		r->hashed = true;
	}
}

/*
 * @folio has been flushed from all TLBs: it is what it was when it was deferred, and
 * nobody can use it any more. Returns whether it stays here for a while.
 */
bool migrc_debug_release(struct folio *folio)
{
	struct record *r = xa_load(&records, folio_pfn(folio));
	long i;

	/* rule: migrc/kept: nobody has written to it */
	if (r && r->hashed && hash_folio(folio) != r->hash)
		report(folio, "source changed before its flush");
	if (quarantine_full || quarantine_pages + folio_nr_pages(folio) > QUARANTINE) {
		kfree(xa_erase(&records, folio_pfn(folio)));
		return false;
	}

	tlb_oracle_free(&folio->page, folio_order(folio));
	for (i = 0; i < folio_nr_pages(folio); i++)
		memset(page_address(folio_page(folio, i)), POISON, PAGE_SIZE);
	folio->lru.next = (struct list_head *)quarantine;
	quarantine = folio;
	quarantine_pages += folio_nr_pages(folio);
	return true;
}

/*
 * A drain begins: what the last one left has been out of use for long enough. Nothing
 * is kept where a task waits for the pages.
 */
void migrc_debug_drain(enum migrc_drain_reason reason)
{
	quarantine_full = reason != MIGRC_DRAIN_AGE && reason != MIGRC_DRAIN_LIMIT;

	while (quarantine) {
		struct folio *folio = quarantine;
		long i;

		quarantine = (struct folio *)folio->lru.next;
		for (i = 0; i < folio_nr_pages(folio); i++) {
			void *p = page_address(folio_page(folio, i));

			/* rule: migrc/kept: no translation leads to it any more */
			if (memchr_inv(p, POISON, PAGE_SIZE)) {
				report(folio, "source changed after its flush");
				break;
			}
		}
		kfree(xa_erase(&records, folio_pfn(folio)));
		folio_put(folio);
	}
	quarantine_pages = 0;
}

/* Frames that look as if nobody had them, for code that looks for frames. */
bool migrc_debug_holds(void)
{
	return READ_ONCE(quarantine_pages);
}

/* @was: what the entry was. */
static bool is_deferred(struct mm_struct *mm, unsigned long addr, u64 *was)
{
	struct xarray *addrs = READ_ONCE(mm->migrc.addrs);
	void *entry = addrs ? xa_load(addrs, addr >> PAGE_SHIFT) : NULL;

	if (!entry)
		return false;
	*was = xa_to_value(entry);
	return *was >> NUMBER_SHIFT > (u64)atomic64_read(&mm->migrc.flushed);
}

/* An entry becomes writable, or its page is written to. Under the PTL. */
void migrc_debug_write(struct mm_struct *mm, unsigned long addr, enum migrc_hook hook)
{
	u64 was;

	/* rule: migrc/current: a stale translation leads to what a walk would find */
	if (is_deferred(mm, addr, &was) && !migrc_skip(hook))
		WARN(1, "migrc: address 0x%lx becomes writable before its flush\n", addr);
}

/* Entries are set, the first of which is @pte, by any code. Under the PTL. */
void migrc_debug_set(struct mm_struct *mm, unsigned long addr, pte_t pte, unsigned int nr)
{
	unsigned int i;
	u64 was;

	for (i = 0; i < nr; i++) {
		if (!is_deferred(mm, addr + i * PAGE_SIZE, &was))
			continue;
		if (!(was & WAS_RETYPED) && arch_migrc_may_retype(pte))
			WARN(1, "migrc: address 0x%lx changes its memory type before its flush\n",
			     addr + i * PAGE_SIZE);
		if (arch_migrc_minds_size() && !!(was & WAS_BLOCK) != arch_migrc_is_block(pte)) {
			WARN(1, "migrc: address 0x%lx changes its size before its flush\n",
			     addr + i * PAGE_SIZE);
			break;
		}
	}
	if (!pte_write(pte) || migrc_skip(MIGRC_HOOK_RANGE) || migrc_skip(MIGRC_HOOK_REUSE) ||
	    migrc_skip(MIGRC_HOOK_SWAPIN) || migrc_skip(MIGRC_HOOK_PROTNONE) ||
	    migrc_skip(MIGRC_HOOK_WRITABLE))
		return;
	for (i = 0; i < nr; i++)
		migrc_debug_write(mm, addr + i * PAGE_SIZE, MIGRC_HOOK_RANGE);
}

/* Upstream code has flushed the addresses for reasons of its own. Under the PTL. */
void migrc_debug_flushed(struct mm_struct *mm, unsigned long addr, unsigned long end)
{
	struct xarray *addrs = READ_ONCE(mm->migrc.addrs);

	if (!addrs || xa_empty(addrs))
		return;
	for (; addr < end; addr += PAGE_SIZE)
		xa_erase(addrs, addr >> PAGE_SHIFT);
}

/* A batch flushes them, the first of which was @pte, before anything becomes valid there. */
void migrc_debug_owed(struct mm_struct *mm, pte_t pte, unsigned long addr, unsigned long end)
{
	if (pte_accessible(mm, pte))
		migrc_debug_flushed(mm, addr, end);
}

void migrc_debug_exit(struct migrc_mm *mm)
{
	if (mm->addrs)
		xa_destroy(mm->addrs);
	kfree(mm->addrs);
	mm->addrs = NULL;
}
