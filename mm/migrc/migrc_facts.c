// SPDX-License-Identifier: GPL-2.0
/*
 * What migrc sees of folios, mappings and areas. What follows from the facts is in
 * eligibility.rs and walk.rs.
 */
#include <linux/migrc.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/percpu.h>
#include <linux/swap.h>
#include <linux/tlb_batch.h>
#include <linux/userfaultfd_k.h>
#include <asm/migrc.h>

#include "../internal.h"
#include "internal.h"

/* Whether page blocks of @zone are being emptied. */
#ifdef CONFIG_MEMORY_ISOLATION
static bool zone_isolates(struct zone *zone)
{
	return READ_ONCE(zone->nr_isolate_pageblock);
}
#else
static bool zone_isolates(struct zone *zone)
{
	return false;
}
#endif

static struct migrc_caller_facts caller_facts(enum migrate_reason reason)
{
	return (struct migrc_caller_facts) {
		.reason = reason,
		.may_demote = current->reclaim_state && current->reclaim_state->may_defer,
		.kswapd = current_is_kswapd(),
	};
}

static struct migrc_node_facts node_facts(pg_data_t *node, const struct migrc_caller_facts *caller)
{
	struct zone *zones = node->node_zones;
	struct migrc_node_facts facts = {
		.present = node->node_present_pages,
		.asked = READ_ONCE(migrc_max_pages),
		.high = migrc_skip(MIGRC_HOOK_STEP) ? ULONG_MAX : 0,
	};

	/* A step bounds nothing else. It is the same with the boost, which may change here. */
	if (caller->reason == MR_DEMOTION && !facts.high) {
		for (int i = 0; i < MAX_NR_ZONES; i++) {
			const unsigned long *mark = zones[i]._watermark;

			facts.low += READ_ONCE(mark[WMARK_LOW]);
			facts.high += READ_ONCE(mark[WMARK_HIGH]);
		}
	}
	return facts;
}

/*
 * Between here and migrc_walk_end() nothing may be allocated in a way that reclaims: a nested
 * demotion would begin a walk of its own.
 */
bool migrc_may_defer_slow(struct folio *src, enum migrate_reason reason)
{
	const struct migrc_caller_facts caller = caller_facts(reason);
	struct zone *zone = folio_zone(src);
	struct migrc_folio_facts facts = {
		.caller = caller,
		.pages = folio_nr_pages(src),
		.mappings = folio_mapcount(src),
		.node = node_facts(zone->zone_pgdat, &caller),
		/* rule: migrc/gate: while free memory is short, demotion frees at once */
		.free = migrc_skip(MIGRC_HOOK_GATE) ? ULONG_MAX :
						      zone_page_state(zone, NR_FREE_PAGES),
		.min = min_wmark_pages(zone),
		.low = low_wmark_pages(zone),
		.reclaims = current->flags & PF_MEMALLOC,
		.unusual = folio_test_hugetlb(src) || folio_is_zone_device(src) ||
			   (folio_test_large(src) && folio_entire_mapcount(src)),
		.poisoned = folio_contain_hwpoisoned_page(src),
		.isolates = zone_isolates(zone) && !migrc_skip(MIGRC_HOOK_ISOLATE),
		/* rule: migrc/file: the content may change without a PTE */
		.file = !folio_test_anon(src) && !migrc_skip(MIGRC_HOOK_FILE),
	};

	if (facts.file)
		facts.content = migrc_file_facts(src);
	if (!migrc_begin(&current->tlb_ubc.migrc, src, &facts))
		return false;
	migrc_walk_delay();
	return true;
}

/* Whether one operation invalidates [@start, @end) with a range that the task owes. */
static bool merges(const struct mm_struct *mm, unsigned long start, unsigned long end)
{
	const struct tlb_batch *batch = current_tlb_batch();

	if (!batch || !arch_migrc_has_ranges())
		return false;
	for (int i = 0; i < batch->nr; i++) {
		const struct tlb_batch_range *range = &batch->range[i];

		if (range->mm == mm && (range->end == start || range->start == end))
			return true;
	}
	return false;
}

bool migrc_defer_slow(struct vm_area_struct *vma, unsigned long addr,
		      unsigned int nr, pte_t pte, enum migrc_geometry geometry)
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
		.geometry = geometry,
		.blocks = migrc_defers_blocks(),
		.merges = merges(mm, addr, addr + nr * PAGE_SIZE),
		.accessible = pte_accessible(mm, pte),
		.lost_permission = static_branch_unlikely(&migrc_readmostly_key) && nr == 1 &&
				   !pte_dirty(pte) && (vma->vm_flags & VM_WRITE) &&
				   vma_is_anonymous(vma),
		.mixes = migrc_skip(MIGRC_HOOK_MIXED),
	};

	/* Anything is as what the walk has deferred before. */
	if (migrc_skip(MIGRC_HOOK_BLOCK)) {
		const struct migrc_walk *walk = &current->tlb_ubc.migrc;

		facts.blocks = true;
		if (walk->deferred)
			facts.geometry = walk->blocks ? MIGRC_BLOCKS : MIGRC_PAGES;
		else if (geometry == MIGRC_ODD)
			facts.geometry = MIGRC_PAGES;
	}
	/* rule: migrc/geometry: what was a block becomes valid as a block, or is flushed first */
	if (geometry == MIGRC_BLOCKS && migrc_skip(MIGRC_HOOK_GEOMETRY))
		facts.geometry = MIGRC_PAGES;
	if (!migrc_meet(&current->tlb_ubc.migrc, &mm->migrc, &facts))
		return false;
	migrc_debug_deferred(vma, addr, pte, nr, geometry);
	return true;
}

/* Whether TLBs may hold what @flags says, of a size that the new entries do not have. */
static bool resizes(enum ttu_flags flags, unsigned long addr, pte_t pte, unsigned int nr)
{
	return ((flags & TTU_DEFERRED_PAGES) && arch_migrc_resizes(false, addr, pte, nr)) ||
	       ((flags & TTU_DEFERRED_BLOCKS) && arch_migrc_resizes(true, addr, pte, nr));
}

/* See migrc_before_restore(). */
void migrc_before_restore_slow(enum ttu_flags flags, struct vm_area_struct *vma,
			       unsigned long addr, pte_t pte, unsigned int nr)
{
	/* rule: migrc/size: entries of two sizes must not overlap */
	if (resizes(flags, addr, pte, nr))
		migrc_flush_mm(vma->vm_mm, MIGRC_HOOK_SIZE);
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

void migrc_add_source(struct folio *src, enum migrate_reason reason)
{
	const struct migrc_caller_facts caller = caller_facts(reason);
	struct zone *zone = folio_zone(src);
	const struct migrc_node_facts node = node_facts(zone->zone_pgdat, &caller);

	if (migrc_skip(MIGRC_HOOK_RECORD)) {
		folio_put(src);
		return;
	}
	migrc_add(src, zone_to_nid(zone), folio_nr_pages(src), &caller, &node);
	/*
	 * rule: migrc/isolate: a task that isolates page blocks drains after that. If it
	 * was too early for @src, the isolation is visible here. Pairs with the one in
	 * migrc_reclaim(); proved by verify/litmus/migrc-isolate-* of tlb-rs.
	 */
	smp_mb();
	if (zone_isolates(zone) && !migrc_skip(MIGRC_HOOK_ISOLATE))
		migrc_drain_soon(MIGRC_DRAIN_ISOLATE);
}

static struct migrc_area_facts area_facts(struct vm_area_struct *vma)
{
	return (struct migrc_area_facts) {
		.anonymous = vma_is_anonymous(vma),
		.locked = vma->vm_flags & VM_LOCKED,
		.shadow_stack = vma->vm_flags & VM_SHADOW_STACK,
		.userfaultfd = userfaultfd_armed(vma),
		.soft_dirty = vma_soft_dirty_enabled(vma),
		.notifier = mm_has_notifiers(vma->vm_mm),
	};
}

pte_t migrc_protect_slow(struct folio *folio, struct vm_area_struct *vma, pte_t pte)
{
	const struct migrc_page_facts facts = {
		.area = area_facts(vma),
		.large = folio_test_large(folio),
		.device = folio_is_zone_device(folio),
		/* rule: migrc/clean: what was written to since its last migration will be again */
		.dirty = pte_dirty(pte) && !migrc_skip(MIGRC_HOOK_CLEAN),
		/* rule: migrc/pause: write faults have cost more than deferrals have saved */
		.pays = migrc_skip(MIGRC_HOOK_PAUSE),
	};

	switch (migrc_protection(&vma->vm_mm->migrc, &facts)) {
	case MIGRC_CLEAN:
		return pte_mkclean(pte);
	case MIGRC_READ_ONLY:
		this_cpu_inc(migrc_protected);
		return pte_wrprotect(pte);
	default:
		return pte;
	}
}

bool migrc_reads_protected_slow(struct folio *folio, struct vm_area_struct *vma)
{
	const struct migrc_page_facts facts = {
		.area = area_facts(vma),
		.large = folio_test_large(folio),
		.device = folio_is_zone_device(folio),
		/* It was not written out, and reclaim may not have flushed what can write to it. */
		.dirty = folio_test_dirty(folio),
		.pays = migrc_skip(MIGRC_HOOK_PAUSE),
	};

	if (!static_key_enabled(&migrc_key) || migrc_skip(MIGRC_HOOK_SWAPREAD) ||
	    migrc_protection(&vma->vm_mm->migrc, &facts) != MIGRC_READ_ONLY)
		return false;
	this_cpu_inc(migrc_protected);
	return true;
}

bool migrc_reason_may_defer(enum migrate_reason reason)
{
	const struct migrc_caller_facts caller = caller_facts(reason);

	return migrc_caller_may_defer(&caller);
}

bool migrc_stays_protected_slow(struct vm_area_struct *vma)
{
	const struct migrc_area_facts facts = area_facts(vma);

	return static_key_enabled(&migrc_key) && !migrc_skip(MIGRC_HOOK_HINT) &&
	       migrc_keeps_protected(&vma->vm_mm->migrc, &facts);
}

/*
 * A note of its own: if a fork counted in tlb_flush_pending, each task that zaps meanwhile
 * would take it for another zap, and flush the whole address space, migrc or not.
 *
 * As there, a CPU that sees under the PTL what the fork has made of an entry sees the note,
 * too; and it is over only when all CPUs have flushed. The mmap_lock keeps other forks of @mm
 * out.
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
