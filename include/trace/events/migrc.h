/* SPDX-License-Identifier: GPL-2.0 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM migrc

#if !defined(_TRACE_MIGRC_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_MIGRC_H

#include <linux/migrc.h>
#include <linux/tracepoint.h>

TRACE_DEFINE_ENUM(MIGRC_REASON);
TRACE_DEFINE_ENUM(MIGRC_MEMORY);
TRACE_DEFINE_ENUM(MIGRC_LIMIT);
TRACE_DEFINE_ENUM(MIGRC_MAPPINGS);
TRACE_DEFINE_ENUM(MIGRC_NOT_FROZEN);
TRACE_DEFINE_ENUM(MIGRC_KIND);
TRACE_DEFINE_ENUM(MIGRC_POISONED);
TRACE_DEFINE_ENUM(MIGRC_ISOLATED);
TRACE_DEFINE_ENUM(MIGRC_WRITABLE);
TRACE_DEFINE_ENUM(MIGRC_FLUSH_PENDING);
TRACE_DEFINE_ENUM(MIGRC_SHARED);
TRACE_DEFINE_ENUM(MIGRC_NOTIFIER);
TRACE_DEFINE_ENUM(MIGRC_BLOCK);
TRACE_DEFINE_ENUM(MIGRC_LOCAL);
TRACE_DEFINE_ENUM(MIGRC_MIXED);
TRACE_DEFINE_ENUM(MIGRC_DRAIN_AGE);
TRACE_DEFINE_ENUM(MIGRC_DRAIN_LIMIT);
TRACE_DEFINE_ENUM(MIGRC_DRAIN_PRESSURE);
TRACE_DEFINE_ENUM(MIGRC_DRAIN_KSWAPD);
TRACE_DEFINE_ENUM(MIGRC_DRAIN_ISOLATE);
TRACE_DEFINE_ENUM(MIGRC_DRAIN_POISON);
TRACE_DEFINE_ENUM(MIGRC_DRAIN_MIXED);
TRACE_DEFINE_ENUM(MIGRC_DRAIN_WRITE);
TRACE_DEFINE_ENUM(MIGRC_DRAIN_OFF);

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
	TP_printk("pages=%lu reason=%s", __entry->pages,
		  __print_symbolic(__entry->reason,
				   { MIGRC_REASON, "reason" },
				   { MIGRC_MEMORY, "memory" },
				   { MIGRC_LIMIT, "limit" },
				   { MIGRC_MAPPINGS, "mappings" },
				   { MIGRC_NOT_FROZEN, "not_frozen" },
				   { MIGRC_KIND, "kind" },
				   { MIGRC_POISONED, "poisoned" },
				   { MIGRC_ISOLATED, "isolated" },
				   { MIGRC_WRITABLE, "writable" },
				   { MIGRC_FLUSH_PENDING, "flush_pending" },
				   { MIGRC_SHARED, "shared" },
				   { MIGRC_NOTIFIER, "notifier" },
				   { MIGRC_BLOCK, "block" },
				   { MIGRC_LOCAL, "local" },
				   { MIGRC_MIXED, "mixed" }))
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
		  __entry->mms, __entry->age_us,
		  __print_symbolic(__entry->reason,
				   { MIGRC_DRAIN_AGE, "age" },
				   { MIGRC_DRAIN_LIMIT, "limit" },
				   { MIGRC_DRAIN_PRESSURE, "pressure" },
				   { MIGRC_DRAIN_KSWAPD, "kswapd" },
				   { MIGRC_DRAIN_ISOLATE, "isolate" },
				   { MIGRC_DRAIN_POISON, "poison" },
				   { MIGRC_DRAIN_MIXED, "mixed" },
				   { MIGRC_DRAIN_WRITE, "write" },
				   { MIGRC_DRAIN_OFF, "off" }),
		  __entry->ns)
);

#endif /* _TRACE_MIGRC_H */

/* This part must be outside protection */
#include <trace/define_trace.h>
