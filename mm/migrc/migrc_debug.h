/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _MM_MIGRC_DEBUG_H
#define _MM_MIGRC_DEBUG_H

struct folio;
struct vm_area_struct;

#ifdef CONFIG_MIGRC_DEBUG
void migrc_debug_deferred(struct vm_area_struct *vma, unsigned long addr, pte_t pte,
			  unsigned int nr);
bool migrc_debug_release(struct folio *folio);
void migrc_debug_drain(enum migrc_drain_reason reason);
#else
static inline void migrc_debug_deferred(struct vm_area_struct *vma, unsigned long addr,
					pte_t pte, unsigned int nr)
{
}

static inline bool migrc_debug_release(struct folio *folio)
{
	return false;
}

static inline void migrc_debug_drain(enum migrc_drain_reason reason)
{
}
#endif /* CONFIG_MIGRC_DEBUG */

#endif /* _MM_MIGRC_DEBUG_H */
