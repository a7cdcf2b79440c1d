/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tells an emulator which page frames no user translation may reach.
 *
 * A frame that is freed must have been flushed from every TLB, so that from then
 * on until it is allocated again a user access to it went through a stale entry.
 * tools/meter/ of tlb-rs has the plugin that listens.
 */
#ifndef _LINUX_TLB_ORACLE_H
#define _LINUX_TLB_ORACLE_H

struct page;

#ifdef CONFIG_TLB_ORACLE

#define HAVE_ARCH_FREE_PAGE
void arch_free_page(struct page *page, int order);

#define HAVE_ARCH_ALLOC_PAGE
void arch_alloc_page(struct page *page, int order);

/* Translations may lead to it that nobody may write through, until it is free. */
void tlb_oracle_owned(struct page *page, int order);
/* Flushed, and not given back yet. */
void tlb_oracle_free(struct page *page, int order);

#else

static inline void tlb_oracle_owned(struct page *page, int order)
{
}

static inline void tlb_oracle_free(struct page *page, int order)
{
}

#endif /* CONFIG_TLB_ORACLE */

#endif /* _LINUX_TLB_ORACLE_H */
