/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tells an emulator which page frames no user translation may reach.
 *
 * A frame that is freed must have been flushed from every TLB. A user access to it
 * before its next allocation went through a stale entry. tools/meter/ of tlb-rs has
 * the plugin that listens.
 */
#ifndef _LINUX_TLB_ORACLE_H
#define _LINUX_TLB_ORACLE_H

struct page;

#ifdef CONFIG_TLB_ORACLE

#define HAVE_ARCH_FREE_PAGE
void arch_free_page(struct page *page, int order);

#define HAVE_ARCH_ALLOC_PAGE
void arch_alloc_page(struct page *page, int order);

/* Until it is free, read-only translations may lead to it. */
void tlb_oracle_owned(struct page *page, int order);
/* It was flushed, and is not in the allocator yet. */
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
