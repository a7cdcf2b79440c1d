/* SPDX-License-Identifier: GPL-2.0 */
/* What the files of mm/tlb_batch/ tell each other. */
#ifndef _MM_TLB_BATCH_INTERNAL_H
#define _MM_TLB_BATCH_INTERNAL_H

struct dentry;

/* --- tlb_batch_faults.c --- */

#ifdef CONFIG_TLB_RS_FAULT_INJECTION
void tlb_batch_faults_init(struct dentry *dir);
#else
static inline void tlb_batch_faults_init(struct dentry *dir) { }
#endif

#endif /* _MM_TLB_BATCH_INTERNAL_H */
