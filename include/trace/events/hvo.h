/* SPDX-License-Identifier: GPL-2.0 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM hvo

#if !defined(_TRACE_HVO_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_HVO_H

#include <linux/hvo.h>
#include <linux/tracepoint.h>

#undef EM
#define EM(reason, name)	TRACE_DEFINE_ENUM(HVO_##reason);
HVO_REASONS(EM)

#undef EM

/* A list without the comma in front: what reads the format expects none at its end. */
#define hvo_symbols_of(first, ...)	__VA_ARGS__
#define hvo_symbols(list)		hvo_symbols_of(list)
#define hvo_reason_symbol(reason, name), { HVO_##reason, name }
#define show_hvo_reason(reason)						\
	__print_symbolic(reason, hvo_symbols(HVO_REASONS(hvo_reason_symbol)))

/* The other CPUs were stopped, and go on again. */
TRACE_EVENT(hvo_pause,
	TP_PROTO(const struct hvo_event *event),
	TP_ARGS(event),
	TP_STRUCT__entry(
		__field(int, reason)
		__field(bool, stopped)
		__field(unsigned int, cpus)
		__field(unsigned int, entries)
		__field(unsigned int, copies)
		__field(u64, ack_ns)
		__field(u64, paused_ns)
	),
	TP_fast_assign(
		__entry->reason = event->reason;
		__entry->stopped = event->stopped;
		__entry->cpus = event->cpus;
		__entry->entries = event->entries;
		__entry->copies = event->copies;
		__entry->ack_ns = event->ack_ns;
		__entry->paused_ns = event->paused_ns;
	),
	TP_printk("reason=%s stop_machine=%d cpus=%u entries=%u copies=%u ack_ns=%llu paused_ns=%llu",
		  show_hvo_reason(__entry->reason), __entry->stopped, __entry->cpus,
		  __entry->entries, __entry->copies, __entry->ack_ns, __entry->paused_ns)
);

/*
 * Entries changed by their access flags, while all CPUs ran. @young is how often a flag was
 * cleared in vain: a CPU used the entry, or the entry stays what it was.
 */
TRACE_EVENT(hvo_window,
	TP_PROTO(enum hvo_reason reason, unsigned long entries, unsigned long young,
		 unsigned long flushes, u64 ns),
	TP_ARGS(reason, entries, young, flushes, ns),
	TP_STRUCT__entry(
		__field(int, reason)
		__field(unsigned long, entries)
		__field(unsigned long, young)
		__field(unsigned long, flushes)
		__field(u64, ns)
	),
	TP_fast_assign(
		__entry->reason = reason;
		__entry->entries = entries;
		__entry->young = young;
		__entry->flushes = flushes;
		__entry->ns = ns;
	),
	TP_printk("reason=%s entries=%lu young=%lu flushes=%lu ns=%llu",
		  show_hvo_reason(__entry->reason), __entry->entries, __entry->young,
		  __entry->flushes, __entry->ns)
);

/* A CPU did not stop in time; or (-1) one was coming up or going down. */
TRACE_EVENT(hvo_cancel,
	TP_PROTO(const struct hvo_event *event),
	TP_ARGS(event),
	TP_STRUCT__entry(
		__field(int, reason)
		__field(int, missing)
		__field(u64, ack_ns)
	),
	TP_fast_assign(
		__entry->reason = event->reason;
		__entry->missing = event->missing;
		__entry->ack_ns = event->ack_ns;
	),
	TP_printk("reason=%s missing=%d ack_ns=%llu", show_hvo_reason(__entry->reason),
		  __entry->missing, __entry->ack_ns)
);

#endif /* _TRACE_HVO_H */

#include <trace/define_trace.h>
