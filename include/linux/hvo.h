/* SPDX-License-Identifier: GPL-2.0 */
/*
 * HugeTLB vmemmap optimisation where live entries of the kernel's page tables may only
 * change while nobody uses them. See Documentation/mm/hvo.rst.
 */
#ifndef _LINUX_HVO_H
#define _LINUX_HVO_H

#include <linux/bits.h>
#include <linux/hvo_types.h>
#include <linux/list.h>

struct ctl_table;
struct folio;
struct hstate;
struct page;
struct zone;

#ifdef CONFIG_HUGETLB_VMEMMAP_PAUSE

#include <asm/pause.h>

/* What mm/hvo/ shares with mm/hugetlb_vmemmap.c. */
#define hvo_visible

/* mm/hvo/hvo_param.c */
bool hvo_pauses(void);
void __init hvo_boot_switch(bool on);
int hvo_proc_switch(const struct ctl_table *table, int write, void *buffer, size_t *lenp,
		    loff_t *ppos);

/* mm/hvo/hvo_main.rs */
int hvo_restore_folio(const struct hstate *h, struct folio *folio);
long hvo_restore_folios(const struct hstate *h, struct list_head *folios,
			struct list_head *restored);
void hvo_optimize_folios(const struct hstate *h, struct list_head *folios);
void hvo_optimize_folio(const struct hstate *h, struct folio *folio);
void hvo_demote_folios(const struct hstate *src, const struct hstate *dst,
		       struct list_head *folios, struct list_head *demoted);

/* mm/hvo/hvo_pool.c */
void hvo_folio_free(const struct hstate *h, struct folio *folio);
void hvo_pools_changed(void);
bool hvo_wait_for_folios(const struct hstate *h);
void hvo_wait_for_page(struct page *page);
void hvo_count_folio(struct hstate *h, struct folio *folio, int nr);
unsigned long hvo_optimized_folios(struct hstate *h, unsigned long *others);

/* mm/hugetlb_vmemmap.c */
extern bool vmemmap_optimize_enabled;
bool vmemmap_should_optimize_folio(const struct hstate *h, struct folio *folio);
struct page *vmemmap_get_tail(unsigned int order, struct zone *zone);
void free_vmemmap_page_list(struct list_head *list);

/* mm/memory-failure.c */
#ifdef CONFIG_MEMORY_FAILURE
void hugetlb_demote_hwpoison(struct folio *old, struct folio *first, unsigned long nr);
#else
static inline void hugetlb_demote_hwpoison(struct folio *old, struct folio *first,
					   unsigned long nr) { }
#endif

/* Whether folios are optimised; before user space runs, whether they were to be at boot. */
static inline bool hvo_is_on(void)
{
	return READ_ONCE(vmemmap_optimize_enabled);
}

/* arch/arm64/mm/hvo_apply.c */
void arch_hvo_apply(const struct hvo_window *window);

/* Instead of a delay: an exception that nobody handles. */
#define HVO_STALL_DIES	U32_MAX

#ifdef CONFIG_HVO_FAULT_INJECTION
extern unsigned long hvo_skipped;
extern unsigned int hvo_stall_us;
extern unsigned int hvo_fail_swap;

/* A CPU that seems not to set access flags. */
extern unsigned int hvo_flagless_cpu;

static __always_inline bool hvo_skip(enum hvo_hook hook)
{
	return unlikely(READ_ONCE(hvo_skipped) & BIT(hook));
}
#else
#define hvo_stall_us	0
#define hvo_flagless_cpu	U32_MAX

static __always_inline bool hvo_skip(enum hvo_hook hook)
{
	return false;
}
#endif

/* What was wrong in the last window: nothing may be printed while it is open. */
extern unsigned int hvo_violations;

#else /* !CONFIG_HUGETLB_VMEMMAP_PAUSE */

#define hvo_flagless_cpu	U32_MAX

#define hvo_visible	static

/* What the sysctl is without it. */
#define hvo_proc_switch	proc_dobool

static inline void hvo_boot_switch(bool on) { }

static inline bool hvo_skip(enum hvo_hook hook)
{
	return false;
}

static inline bool hvo_is_on(void)
{
	return false;
}

static inline bool hvo_pauses(void)
{
	return false;
}

static inline int hvo_restore_folio(const struct hstate *h, struct folio *folio)
{
	return 0;
}

static inline long hvo_restore_folios(const struct hstate *h, struct list_head *folios,
				      struct list_head *restored)
{
	return 0;
}

static inline void hvo_optimize_folios(const struct hstate *h, struct list_head *folios) { }

static inline void hvo_optimize_folio(const struct hstate *h, struct folio *folio) { }

static inline void hvo_demote_folios(const struct hstate *src, const struct hstate *dst,
				     struct list_head *folios, struct list_head *demoted) { }

static inline void hvo_folio_free(const struct hstate *h, struct folio *folio) { }

static inline void hvo_pools_changed(void) { }

static inline void hvo_wait_for_page(struct page *page) { }

static inline bool hvo_wait_for_folios(const struct hstate *h)
{
	return false;
}

static inline void hvo_count_folio(struct hstate *h, struct folio *folio, int nr) { }

#endif /* !CONFIG_HUGETLB_VMEMMAP_PAUSE */

#endif /* _LINUX_HVO_H */
