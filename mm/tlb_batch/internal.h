/* SPDX-License-Identifier: GPL-2.0 */
/* What C and Rust of mm/tlb_batch/ tell each other, and its files. bindgen reads it. */
#ifndef _MM_TLB_BATCH_INTERNAL_H
#define _MM_TLB_BATCH_INTERNAL_H

#include <linux/tlb_batch_types.h>

struct dentry;

/* --- tlb_batch_shim.c --- */

void tlb_batch_arch_issue(struct mm_struct *mm, unsigned long start,
			  unsigned long end, enum tlb_batch_reason reason);
void tlb_batch_arch_issue_mm(struct mm_struct *mm, unsigned long pages,
			     enum tlb_batch_reason reason);
void tlb_batch_arch_evict(struct mm_struct *mm, unsigned long start, unsigned long end);
bool tlb_batch_arch_prefers_mm(unsigned long pages);
bool tlb_batch_is_user(unsigned long start, unsigned long end);
bool tlb_batch_arch_flush(struct mm_struct *mm, unsigned long start, unsigned long end,
			  unsigned long pages, enum tlb_batch_reason reason);
void tlb_batch_account_evicted(unsigned long ranges, unsigned long pages);

/* --- tlb_batch_faults.c --- */

#ifdef CONFIG_TLB_RS_FAULT_INJECTION
void tlb_batch_faults_init(struct dentry *dir);
#else
static inline void tlb_batch_faults_init(struct dentry *dir) { }
#endif

#endif /* _MM_TLB_BATCH_INTERNAL_H */
