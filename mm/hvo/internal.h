/* SPDX-License-Identifier: GPL-2.0 */
/* What C and Rust of mm/hvo/ tell each other. bindgen reads it. */
#ifndef _MM_HVO_INTERNAL_H
#define _MM_HVO_INTERNAL_H

#include <linux/hvo_types.h>
#include <linux/pgtable.h>
#include <linux/pm_qos.h>

struct dentry;
struct folio;
struct hstate;
struct list_head;
struct page;

/* --- hvo_param.c --- */

enum hvo_strategy {
	HVO_AUTO,		/* by the access flag; HVO_PAUSE where CPUs do not set it */
	HVO_PAUSE,		/* and stop_machine() if CPUs do not stop in time */
	HVO_STOP_MACHINE,
	HVO_EACH,		/* as HVO_AUTO, but each entry by itself */
	HVO_PERFOLIO,		/* as HVO_PAUSE, but each page table of a folio by itself */
	HVO_UNSAFE,		/* no break-before-make at all, as on other architectures */
};

struct hvo_params {
	enum hvo_strategy strategy;
	unsigned int max_entries;
	unsigned int budget_us;
	unsigned int ack_timeout_us;
	unsigned int duty_pct;
	unsigned int retries;
	bool pseudo_nmi;	/* stops a CPU that has interrupts masked */
	bool guest;
};

void hvo_get_params(struct hvo_params *params);
bool hvo_flags_begin(void);
void hvo_flags_end(void);

/* --- hvo_stats.c --- */

void hvo_account(const struct hvo_event *event, bool success);
void hvo_account_flags(enum hvo_reason reason, unsigned long entries, unsigned long clears,
		       unsigned long flushes, u64 ns);
void hvo_account_retried(unsigned long nr);

/* --- hvo_walk.c --- */

/**
 * struct hvo_span - entries of one table that map a part of vmemmap
 * @addr: the virtual address that the first one maps.
 * @entries: the first one, by its linear address.
 * @nr: how many.
 * @shift: log2 of what one of them maps, in bytes.
 * @block: the pages that are mapped, if it is one entry that maps a block; or NULL.
 * @self_hosted: the walk begins here, with a page that describes itself.
 */
struct hvo_span {
	unsigned long addr;
	u64 *entries;
	u32 nr;
	u32 shift;
	struct page *block;
	bool self_hosted;
};

typedef int (*hvo_span_fn)(void *arg, const struct hvo_span *span);

unsigned long hvo_entries(const struct hstate *h);
bool hvo_demotes_to(const struct hstate *h);
bool hvo_folio_optimized(struct folio *folio);
void hvo_folio_set_optimized(struct folio *folio, bool optimized);
void hvo_wait_for_readers(unsigned long since);
struct folio *hvo_next_folio(struct list_head *folios, struct folio *folio);
void hvo_folio_add(struct folio *folio, struct list_head *folios);
void hvo_folio_del(struct folio *folio);
struct page *hvo_new_page(struct folio *folio);
void hvo_free_pages(struct page **pages, unsigned long nr);
struct page *hvo_shared_tail(const struct hstate *h, struct folio *folio);
struct page *hvo_entry_page(u64 *entry);
u64 hvo_entry_value(struct page *page, bool read_only);
void *hvo_page_address(struct page *page);
void hvo_fill_head(struct page *to, const struct hstate *h, struct folio *folio);
void hvo_finish_demotion(struct folio *folio, struct page *old, const struct hstate *src,
			 const struct hstate *dst, struct list_head *demoted);
int hvo_walk(unsigned long start, unsigned long end, hvo_span_fn fn, void *arg);
pte_t *hvo_new_table(struct page *block, u64 *entry);
void hvo_free_table(pte_t *table);
bool hvo_splits_live(void);
void hvo_split_live(u64 *entry, u64 value);
void hvo_flush(unsigned long start, unsigned long end);
void hvo_no_deep_idle(struct pm_qos_request *request);
void hvo_deep_idle(struct pm_qos_request *request);
void hvo_block_split(struct page *block);
void hvo_touch(const struct hstate *h, struct folio *folio);
void hvo_probe(const struct hstate *h, struct folio *folio, struct page *const *old,
	       unsigned long nr_old);

/* --- hvo_pool.c --- */

enum hvo_hold {
	HVO_HOLD_NOTHING,	/* of the first free folio, if any */
	HVO_HOLD_LATER,		/* its page block is isolated, which may end */
	HVO_HOLD_TAKEN,
};

struct hstate *hvo_size_at(unsigned int index);
unsigned int hvo_nodes(void);
long hvo_missing_folios(struct hstate *h);
unsigned long hvo_free_folios(struct hstate *h, unsigned int nid);
bool hvo_try_resize(struct hstate *h);
void hvo_end_resize(struct hstate *h);
struct list_head *hvo_hold_begin(void);
enum hvo_hold hvo_hold_next(struct hstate *h, unsigned int nid);
void hvo_hold_end(void);

/* --- hvo_main.rs, retry.rs --- */

int hvo_rust_init(void);
unsigned int hvo_retry(unsigned int first_s);

/* --- hvo_debug.c --- */

#ifdef CONFIG_HVO_DEBUG
void hvo_debug_create(struct dentry *dir);
void hvo_debug_report(void);
void hvo_debug_touch(unsigned long start, unsigned long end);
void hvo_debug_count(void);
void hvo_debug_look(void);
void hvo_debug_probe(unsigned long start, unsigned long end, struct page *const *old,
		     unsigned long nr_old);
#else
static inline void hvo_debug_create(struct dentry *dir) { }
static inline void hvo_debug_report(void) { }
#endif

#endif /* _MM_HVO_INTERNAL_H */
