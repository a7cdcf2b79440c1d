/* SPDX-License-Identifier: GPL-2.0 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM migrc

#if !defined(_TRACE_MIGRC_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_MIGRC_H

#include <linux/migrc.h>
#include <linux/tracepoint.h>

#define MIGRC_FACTS						\
	EM(MIGRC_REASON,	"reason")			\
	EM(MIGRC_MEMORY,	"memory")			\
	EM(MIGRC_LIMIT,		"limit")			\
	EM(MIGRC_NOT_ANONYMOUS,	"not_anonymous")		\
	EM(MIGRC_KIND,		"kind")				\
	EM(MIGRC_POISONED,	"poisoned")			\
	EM(MIGRC_ISOLATED,	"isolated")			\
	EM(MIGRC_WRITABLE,	"writable")			\
	EM(MIGRC_FLUSH_PENDING,	"flush_pending")		\
	EM(MIGRC_SHARED,	"shared")			\
	EM(MIGRC_NOTIFIER,	"notifier")			\
	EM(MIGRC_BLOCK,		"block")			\
	EM(MIGRC_LOCAL,		"local")			\
	EMe(MIGRC_MIXED,	"mixed")

#define MIGRC_DRAINS						\
	EM(MIGRC_DRAIN_AGE,	"age")				\
	EM(MIGRC_DRAIN_LIMIT,	"limit")			\
	EM(MIGRC_DRAIN_PRESSURE, "pressure")			\
	EM(MIGRC_DRAIN_KSWAPD,	"kswapd")			\
	EM(MIGRC_DRAIN_ISOLATE,	"isolate")			\
	EM(MIGRC_DRAIN_POISON,	"poison")			\
	EM(MIGRC_DRAIN_MIXED,	"mixed")			\
	EMe(MIGRC_DRAIN_OFF,	"off")

#undef EM
#undef EMe
#define EM(a, b)	TRACE_DEFINE_ENUM(a);
#define EMe(a, b)	TRACE_DEFINE_ENUM(a);

MIGRC_FACTS
MIGRC_DRAINS

#undef EM
#undef EMe
#define EM(a, b)	{ a, b },
#define EMe(a, b)	{ a, b }

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

/* The flushes of a folio were not deferred. */
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
	TP_printk("pages=%lu reason=%s", __entry->pages,
		  __print_symbolic(__entry->reason, MIGRC_FACTS))
);

/*
 * All sources were flushed and released: @pages of them, in @mms address spaces, the
 * oldest after @age_us microseconds; it took @ns nanoseconds.
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
		  __entry->mms, __entry->age_us,
		  __print_symbolic(__entry->reason, MIGRC_DRAINS), __entry->ns)
);

#endif /* _TRACE_MIGRC_H */

/* This part must be outside protection */
#include <trace/define_trace.h>
