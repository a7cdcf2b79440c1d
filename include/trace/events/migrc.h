/* SPDX-License-Identifier: GPL-2.0 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM migrc

#if !defined(_TRACE_MIGRC_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_MIGRC_H

#include <linux/migrc.h>
#include <linux/tracepoint.h>

#undef EM
#define EM(fact, name)	TRACE_DEFINE_ENUM(MIGRC_##fact);
MIGRC_FACTS(EM)

#undef EM
#define EM(reason, name)	TRACE_DEFINE_ENUM(MIGRC_DRAIN_##reason);
MIGRC_DRAIN_REASONS(EM)
#undef EM

/* A list without the comma in front: what reads the format expects none at its end, either. */
#define migrc_symbols_of(first, ...)	__VA_ARGS__
#define migrc_symbols(list)		migrc_symbols_of(list)
#define migrc_fact_symbol(fact, name), { MIGRC_##fact, name }
#define migrc_drain_symbol(reason, name), { MIGRC_DRAIN_##reason, name }
#define show_migrc_fact(fact)						\
	__print_symbolic(fact, migrc_symbols(MIGRC_FACTS(migrc_fact_symbol)))
#define show_migrc_drain(reason)					\
	__print_symbolic(reason, migrc_symbols(MIGRC_DRAIN_REASONS(migrc_drain_symbol)))

/* A source came into the ledger. */
TRACE_EVENT(migrc_defer,
	TP_PROTO(unsigned long pfn, unsigned long pages, int nid),
	TP_ARGS(pfn, pages, nid),
	TP_STRUCT__entry(
		__field(unsigned long, pfn)
		__field(unsigned long, pages)
		__field(int, nid)
	),
	TP_fast_assign(
		__entry->pfn = pfn;
		__entry->pages = pages;
		__entry->nid = nid;
	),
	TP_printk("pfn=0x%lx pages=%lu nid=%d", __entry->pfn, __entry->pages,
		  __entry->nid)
);

/* The flushes of a folio were not deferred, or not all of them. */
TRACE_EVENT(migrc_deny,
	TP_PROTO(unsigned long pages, int reason),
	TP_ARGS(pages, reason),
	TP_STRUCT__entry(
		__field(unsigned long, pages)
		__field(int, reason)
	),
	TP_fast_assign(
		__entry->pages = pages;
		__entry->reason = reason;
	),
	TP_printk("pages=%lu reason=%s", __entry->pages, show_migrc_fact(__entry->reason))
);

/*
 * A drain flushed @mms address spaces and released @pages source pages, the oldest after
 * @age_us microseconds. It took @ns nanoseconds.
 */
TRACE_EVENT(migrc_drain,
	TP_PROTO(unsigned long pages, unsigned long mms, u64 age_us, int reason, u64 ns),
	TP_ARGS(pages, mms, age_us, reason, ns),
	TP_STRUCT__entry(
		__field(unsigned long, pages)
		__field(unsigned long, mms)
		__field(u64, age_us)
		__field(int, reason)
		__field(u64, ns)
	),
	TP_fast_assign(
		__entry->pages = pages;
		__entry->mms = mms;
		__entry->age_us = age_us;
		__entry->reason = reason;
		__entry->ns = ns;
	),
	TP_printk("pages=%lu mms=%lu age_us=%llu reason=%s ns=%llu", __entry->pages,
		  __entry->mms, __entry->age_us, show_migrc_drain(__entry->reason),
		  __entry->ns)
);

#endif /* _TRACE_MIGRC_H */

/* This part must be outside protection */
#include <trace/define_trace.h>
