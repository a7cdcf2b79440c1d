/* SPDX-License-Identifier: GPL-2.0 */
/* What C and Rust of mm/migrc/ tell each other, and its files. bindgen reads it. */
#ifndef _MM_MIGRC_INTERNAL_H
#define _MM_MIGRC_INTERNAL_H

#include <linux/atomic.h>
#include <linux/migrate_mode.h>
#include <linux/migrc.h>
#include <linux/percpu-defs.h>

struct dentry;
struct folio;
struct migrc_mm;
struct migrc_walk;
struct vm_area_struct;

/* --- migrc_file.c --- */

/* What is seen of a file, and of a folio of it. */
struct migrc_file_facts {
	bool dirty, writeback, uptodate;
	bool regular, special;	/* special: swap, DAX, or the filesystem's own */
	bool supported;		/* by its filesystem */
};

#ifdef CONFIG_MIGRC_FILE
struct migrc_file_facts migrc_file_facts(struct folio *src);
#else
static inline struct migrc_file_facts migrc_file_facts(struct folio *src)
{
	return (struct migrc_file_facts) { };
}
#endif
bool migrc_freeze(struct folio *src);
bool migrc_still_frozen(struct folio *src);

/* --- migrc_facts.c --- */

/* What is seen of a task that migrates. */
struct migrc_caller_facts {
	enum migrate_reason reason;
	bool may_demote;	/* it drains before it relies on what it has demoted */
	bool kswapd;
};

/* And of the node of a source. */
struct migrc_node_facts {
	unsigned long present;	/* its pages */
	unsigned long asked;	/* vm.migrc_max_pages */
	unsigned long low, high;	/* watermarks, of all its zones together; for demotion */
};

/* And of a folio that is to be migrated; mm/migrc/eligibility.rs says what follows. */
struct migrc_folio_facts {
	struct migrc_caller_facts caller;
	unsigned long pages;
	unsigned long mappings;
	struct migrc_node_facts node;
	unsigned long free;	/* pages of the zone */
	unsigned long min, low;	/* its watermarks */
	bool reclaims;		/* the task does */
	bool unusual;		/* hugetlb, device memory, mapped by a PMD */
	bool poisoned;
	bool isolates;		/* the zone does */
	bool file;
	struct migrc_file_facts content;	/* if it is one */
};

/* And of a mapping whose entries have been cleared. */
struct migrc_mapping_facts {
	bool writable;
	bool pending;		/* a flush */
	bool shared;
	bool notifier;
	enum migrc_geometry geometry;
	bool blocks;		/* may be deferred */
	bool merges;		/* with a range that is flushed now */
	bool accessible;
	bool lost_permission;	/* as far as the entry tells, see migrc_protect() */
	bool mixes;		/* the rule "mixed" was removed */
};

/* And of an area, some pages of which may lose write permission. */
struct migrc_area_facts {
	bool anonymous, locked, shadow_stack;
	bool userfaultfd, soft_dirty, notifier;
};

/* And of a writable page in it that has been migrated. */
struct migrc_page_facts {
	struct migrc_area_facts area;
	bool large, device, dirty;
	bool pays;		/* the rule "pause" was removed */
};

/* How that page is mapped. */
enum migrc_protection {
	MIGRC_AS_BEFORE,
	MIGRC_CLEAN,
	MIGRC_READ_ONLY,
	NR_MIGRC_PROTECTIONS
};

/* --- migrc_main.rs --- */

int migrc_rust_init(unsigned int nodes);
bool migrc_begin(struct migrc_walk *walk, struct folio *src, const struct migrc_folio_facts *facts);
bool migrc_meet(struct migrc_walk *walk, struct migrc_mm *mm,
		const struct migrc_mapping_facts *facts);
bool migrc_end(struct migrc_walk *walk, struct folio *src, unsigned long pages, bool mixes);
void migrc_register(struct migrc_mm *mm);
void migrc_add(struct folio *folio, unsigned int node, unsigned long pages,
	       const struct migrc_caller_facts *caller, const struct migrc_node_facts *facts);
bool migrc_caller_may_defer(const struct migrc_caller_facts *caller);
void migrc_run_drain(u32 reasons);
void migrc_open(bool open);
enum migrc_protection migrc_protection(struct migrc_mm *mm, const struct migrc_page_facts *facts);
bool migrc_keeps_protected(struct migrc_mm *mm, const struct migrc_area_facts *facts);

/* --- migrc_act.c --- */

void migrc_mark(struct migrc_mm *mm);
void migrc_arch_flush_mm(struct migrc_mm *mm, enum migrc_hook hook);
unsigned long migrc_arch_begin(void);
void migrc_arch_issue_all(void);
void migrc_arch_issue(struct migrc_mm *mm);
void migrc_arch_sync(unsigned long mms);
void migrc_release(struct folio *first, bool held);
u64 migrc_now(void);
void migrc_drain_soon(enum migrc_drain_reason reason);
void migrc_wait_for_drain(void);
void migrc_relax(void);
void migrc_arm(void);
void migrc_disarm(void);
void migrc_rearm(void);
int migrc_worker_init(void);

/* --- migrc_sysctl.c --- */

extern unsigned long migrc_max_pages;
extern unsigned int migrc_max_age_ms;
bool migrc_defers_blocks(void);

/* --- migrc_stats.c --- */

DECLARE_PER_CPU(unsigned long, migrc_protected);
extern atomic_long_t migrc_hook_flushes[NR_MIGRC_FLUSH_HOOKS];
extern const char * const migrc_hook_names[NR_MIGRC_HOOKS];

unsigned long migrc_account_added(struct folio *folio, unsigned int node, unsigned long pages,
				  bool demoted);
void migrc_account_denied(enum migrc_fact reason, unsigned long pages);
void migrc_account_drain(enum migrc_drain_reason reason, unsigned long pages,
			 unsigned long mms, u64 since, u64 ns);
struct dentry *migrc_stats_init(void);

/* --- migrc_faults.c --- */

#ifdef CONFIG_TLB_RS_FAULT_INJECTION
void migrc_walk_delay(void);
void migrc_faults_init(struct dentry *dir);
#else
static inline void migrc_walk_delay(void) { }
static inline void migrc_faults_init(struct dentry *dir) { }
#endif

/* --- migrc_debug.c --- */

#ifdef CONFIG_MIGRC_DEBUG
void migrc_debug_deferred(struct vm_area_struct *vma, unsigned long addr, pte_t pte,
			  unsigned int nr, enum migrc_geometry geometry);
void migrc_debug_walked(struct folio *src);
bool migrc_debug_release(struct folio *folio);
void migrc_debug_drain(enum migrc_drain_reason reason);
#else
static inline void migrc_debug_deferred(struct vm_area_struct *vma, unsigned long addr,
					pte_t pte, unsigned int nr,
					enum migrc_geometry geometry) { }
static inline void migrc_debug_walked(struct folio *src) { }
static inline bool migrc_debug_release(struct folio *folio)
{
	return false;
}
#endif

#endif /* _MM_MIGRC_INTERNAL_H */
