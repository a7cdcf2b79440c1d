// SPDX-License-Identifier: GPL-2.0
/*
 * tlbstat price: why the kernel flushes, by the functions of a call chain
 *
 * The chain is walked from the leaf outwards, and the first frame that a row has decides. Only
 * functions that survive inlining are in it, with the names of Linux 6.1 to 7.3. A migration goes
 * on outwards for its reason, as does a write to a page that is protected.
 */
#include "price.h"
#include <fnmatch.h>

/* Rows that are reasons of a migration come first. */
const struct cause causes[NCAUSES] = {
	{ "split", "__folio_split split_huge_page_to_list* split_folio_to_*",
	  THP, false, "" },
	{ "migration: compaction", "compact_zone* kcompactd* compact_node* kcompactd_do_work",
	  512, false, "migrc never defers it: the page is wanted at once" },
	{ "migration: demotion", "demote_folio_list shrink_folio_list shrink_page_list",
	  512, true, "by kswapd and memory.reclaim" },
	{ "migration: NUMA", "migrate_misplaced_folio* migrate_misplaced_page*",
	  512, false, "the hinting fault has flushed before" },
	{ "migration: syscall", "*sys_move_pages *sys_migrate_pages *sys_mbind do_migrate_pages\n"
	  "cpuset_migrate_mm_workfn queue_pages_range migrate_to_node do_move_pages_to_node",
	  512, true, "" },
	{ "migration: DAMON", "damon_migrate_pages damon_pa_migrate kdamond_fn",
	  512, true, "" },
	{ "migration: device", "migrate_vma_* migrate_device_*",
	  DEVICE, false, "" },
	{ "migration: other", "alloc_contig_* soft_offline_page __gup_longterm_locked\n"
	  "offline_pages do_migrate_range migrate_longterm_unpinnable_folios\n"
	  "memory_failure* check_and_migrate_movable_*",
	  512, false, "migrc never defers it" },
	/* These have no reason of a migration outside of them. */
	{ "writeback", "page_vma_mkclean_one folio_mkclean page_mkclean_one mkclean_batch_one\n"
	  "folio_clear_dirty_for_io clear_page_dirty_for_io wrprotect_file_folio*\n"
	  "mapping_wrprotect_range",
	  LARGE, false, "" },
	{ "NUMA hint scan", "change_prot_numa task_numa_work",
	  0, false, "one flush already" },
	{ "khugepaged, collapse", "khugepaged madvise_collapse collapse_huge_page\n"
	  "hpage_collapse_scan* collapse_file collapse_pte_mapped_thp collapse_scan*\n"
	  "retract_page_tables collapse_single_pmd",
	  0, false, "one flush already" },
	{ "KSM", "ksm_scan_thread try_to_merge_one_page write_protect_page ksm_do_scan",
	  0, false, "each page is protected by itself" },
	{ "uprobes", "uprobe_write* uprobe_register* install_breakpoint set_swbp",
	  0, false, "a single page" },
	{ "userfaultfd", "userfaultfd_ioctl mwriteprotect_range userfaultfd_move move_pages\n"
	  "mfill_atomic*",
	  0, false, "each call flushes once" },
	{ "clear_refs", "clear_refs_write clear_refs_pte_range",
	  0, false, "one flush already" },
	{ "mremap", "move_page_tables *sys_mremap",
	  0, false, "each page table flushes once" },
	{ "hugetlb", "hugetlb_change_protection __unmap_hugepage_range* unmap_hugepage_range\n"
	  "hugetlb_wp hugetlb_fault hugetlbfs_punch_hole copy_hugetlb_page_range",
	  0, false, "one flush already" },
	{ "mprotect", "*sys_mprotect *sys_pkey_mprotect do_mprotect_pkey",
	  0, false, "one flush already" },
	{ "exec", "setup_arg_pages shift_arg_pages *sys_execve* bprm_execve begin_new_exec",
	  0, false, "one flush already" },
	{ "exit", "exit_mmap",
	  0, false, "one flush already" },
	{ "fork", "dup_mmap copy_page_range dup_mm *sys_clone *sys_clone3 *sys_fork *sys_vfork\n"
	  "kernel_clone",
	  0, false, "one flush already" },
	{ "kernel: vmemmap", "*hugetlb_vmemmap* arch_hvo_apply hvo_* vmemmap_remap*",
	  0, false, "hvo flushes once for many HugeTLB pages" },
	{ "kernel: vmalloc, modules", "*purge_vmap_area* vfree vfree_* __vunmap vunmap*\n"
	  "_vm_unmap_aliases vm_unmap_aliases drain_vmap_area_work set_memory_*\n"
	  "__change_memory_common change_page_attr_set_clr execmem_*\n"
	  "pcpu_post_unmap_tlb_flush pcpu_* iounmap\n"
	  "free_vmap_area_noflush remove_vm_area set_direct_map_* __text_poke text_poke*\n"
	  "kernel_map_pages __kernel_map_pages",
	  0, false, "the kernel's own memory" },
	{ "munmap, madvise", "*sys_munmap __vm_munmap do_vmi_align_munmap do_vmi_munmap\n"
	  "do_mas_align_munmap unmap_region vms_* mmap_region __mmap_region *sys_mmap *sys_brk\n"
	  "do_brk_flags do_madvise *sys_madvise *sys_process_madvise unmap_mapping_*\n"
	  "zap_page_range* zap_vma_* truncate_* shmem_undo_range *sys_shmdt\n"
	  "*sys_remap_file_pages ksys_shmdt",
	  0, false, "one flush already" },
	{ "reclaim", "shrink_folio_list* shrink_page_list shrink_active_list shrink_inactive_list\n"
	  "shrink_lruvec shrink_node* evict_folios reclaim_folio_list reclaim_pages\n"
	  "folio_referenced* try_to_free_pages try_to_free_mem_cgroup_pages\n"
	  "kswapd lru_gen_* try_to_inc_max_seq",
	  32, false, "" },
	{ "COW, faults", "do_wp_page do_anonymous_page do_swap_page handle_mm_fault\n"
	  "__handle_mm_fault do_numa_page do_huge_pmd_*",
	  0, false, "a single page, which only the local CPU flushes since 6.19" },
	{ "other calls", "*sys_swapoff try_to_unuse *sys_bpf *sys_finit_module\n"
	  "*sys_init_module *sys_membarrier",
	  0, false, "not known" },
	{ "gup, ptrace", "__access_remote_vm access_process_vm *sys_process_vm_* __get_user_pages",
	  0, false, "a single page" },
	{ "context switches", "switch_mm_irqs_off check_and_switch_context new_context",
	  0, false, "address space numbers ran out" },
	{ "interrupted by others", "",
	  0, false, "of whoever flushes: see the other rows" },
	{ "unmatched", "",
	  0, false, "no row has a function of the chain" },
};

#define MIGRATIONS		8	/* rows from the first one on */
#define DEMOTION		2	/* without a migration it is reclaim */
#define INTERRUPTED		(NCAUSES - 2)
#define UNMATCHED		(NCAUSES - 1)

/* A migration, or a split, has one of them nearer to the leaf than its reason. */
static const char moves[] = "migrate_pages_batch migrate_pages migrate_pages_sync\n"
	"try_to_migrate* remove_migration_pte* migrate_folio_* unmap_and_move move_to_new_folio";

/* What is outside of them was only interrupted. */
static const char interrupts[] = "asm_sysvec_* asm_common_interrupt el1h_64_irq* el1_interrupt\n"
	"__do_softirq handle_softirqs call_on_irq_stack";

#define SPACES			"\n "

static bool matches(const char *name, const char *patterns)
{
	const char *p = patterns;
	char one[64];
	size_t n;

	while (*(p += strspn(p, SPACES))) {
		n = strcspn(p, SPACES);
		if (n < sizeof(one)) {
			memcpy(one, p, n);
			one[n] = 0;
			if (strpbrk(one, "*") ? !fnmatch(one, name, 0) : !strcmp(one, name))
				return true;
		}
		p += n;
	}
	return false;
}

/* @names goes from the leaf outwards. */
int cause_of(enum flush kind, char **names, int nr)
{
	bool moving = false;
	int i, row;

	if (kind == VICTIM)
		return INTERRUPTED;
	for (i = 0; i < nr && !matches(names[i], interrupts); i++) {
		moving |= matches(names[i], moves);
		for (row = 0; row < (moving ? MIGRATIONS : INTERRUPTED); row++)
			if ((moving || row != DEMOTION) && matches(names[i], causes[row].frames))
				return row;
	}
	return moving ? MIGRATIONS - 1 : UNMATCHED;
}

int cause_named(const char *name)
{
	int i;

	for (i = 0; i < NCAUSES && strcmp(causes[i].name, name); i++)
		;
	return i;
}
