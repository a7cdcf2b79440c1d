/* SPDX-License-Identifier: GPL-2.0 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM tlb_batch

#if !defined(_TRACE_TLB_BATCH_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_TLB_BATCH_H

#include <linux/mm_types.h>
#include <linux/tlb_batch.h>
#include <linux/tracepoint.h>

#undef EM
#define EM(reason, name)	TRACE_DEFINE_ENUM(TLB_BATCH_##reason);
TLB_BATCH_REASONS(EM)
#undef EM

/* A list without the comma in front: what reads the format expects none at its end, either. */
#define tlb_batch_symbols_of(first, ...)	__VA_ARGS__
#define tlb_batch_symbols(list)		tlb_batch_symbols_of(list)
#define tlb_batch_symbol(reason, name), { TLB_BATCH_##reason, name }
#define show_tlb_batch_reason(reason)					\
	__print_symbolic(reason, tlb_batch_symbols(TLB_BATCH_REASONS(tlb_batch_symbol)))

/* A run of PTEs was cleared; its invalidation is owed. */
TRACE_EVENT(tlb_batch_add,
	TP_PROTO(struct mm_struct *mm, unsigned long start, unsigned long end),
	TP_ARGS(mm, start, end),
	TP_STRUCT__entry(
		__field(void *, mm)
		__field(unsigned long, start)
		__field(unsigned long, end)
	),
	TP_fast_assign(
		__entry->mm = mm;
		__entry->start = start;
		__entry->end = end;
	),
	TP_printk("mm=%p start=0x%lx pages=%lu", __entry->mm, __entry->start,
		  (__entry->end - __entry->start) >> PAGE_SHIFT)
);

/*
 * A range was issued to the hardware, or several ranges of one mm in one operation.
 * @start is 0 if the operation invalidates all of the mm.
 */
TRACE_EVENT(tlb_batch_flush,
	TP_PROTO(struct mm_struct *mm, unsigned long start, unsigned long pages,
		 int reason),
	TP_ARGS(mm, start, pages, reason),
	TP_STRUCT__entry(
		__field(void *, mm)
		__field(unsigned long, start)
		__field(unsigned long, pages)
		__field(int, reason)
	),
	TP_fast_assign(
		__entry->mm = mm;
		__entry->start = start;
		__entry->pages = pages;
		__entry->reason = reason;
	),
	TP_printk("mm=%p start=0x%lx pages=%lu reason=%s", __entry->mm,
		  __entry->start, __entry->pages, show_tlb_batch_reason(__entry->reason))
);

#endif /* _TRACE_TLB_BATCH_H */

/* This part must be outside protection */
#include <trace/define_trace.h>
