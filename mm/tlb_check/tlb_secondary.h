/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _MM_TLB_SECONDARY_H
#define _MM_TLB_SECONDARY_H

#ifdef CONFIG_TLB_SECONDARY
void tlb_secondary_free(unsigned long pfn, unsigned int order);
#else
static inline void tlb_secondary_free(unsigned long pfn, unsigned int order)
{
}
#endif

#endif /* _MM_TLB_SECONDARY_H */
