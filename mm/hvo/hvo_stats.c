// SPDX-License-Identifier: GPL-2.0
/* What HVO counts, and its tracepoints. */

#include <linux/cpufeature.h>
#include <linux/debugfs.h>
#include <linux/hvo.h>
#include <linux/math64.h>
#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/seq_file.h>
#include <linux/vmstat.h>

#include "internal.h"

#define CREATE_TRACE_POINTS
#include <trace/events/hvo.h>

/* The last one is of 2^20 us and more: a pauser may wait a second for the other CPUs. */
#define TIME_BUCKETS	22

static struct {
	atomic_long_t pauses[NR_HVO_REASONS];
	atomic_long_t entries[NR_HVO_REASONS];
	atomic_long_t cancelled;
	atomic_long_t busy;
	atomic_long_t stopped;
	atomic_long_t copies;
	atomic_long_t retried;
	atomic_long_t ack_ns;
	atomic_long_t paused_ns;
	/* Below 1, 2, 4 ... us: for how long the other CPUs did not run. */
	atomic_long_t hist[TIME_BUCKETS];
	unsigned long max_ns;
} stats;

void hvo_account(const struct hvo_event *e, bool success)
{
	u64 ns = e->ack_ns + e->paused_ns;
	unsigned int bucket = min_t(unsigned int, fls64(div_u64(ns, NSEC_PER_USEC)),
				    TIME_BUCKETS - 1);

	atomic_long_add(e->ack_ns, &stats.ack_ns);
	hvo_debug_report();
	if (!success) {
		trace_hvo_cancel(e);
		if (e->missing >= 0) {
			count_vm_event(CPU_PAUSE_CANCELLED);
			atomic_long_inc(&stats.cancelled);
		} else {
			atomic_long_inc(&stats.busy);
		}
		return;
	}
	count_vm_events(HVO_PTE_UPDATES, e->entries);
	atomic_long_add(e->entries, &stats.entries[e->reason]);
	trace_hvo_pause(e);
	if (e->stopped) {
		count_vm_event(CPU_PAUSE_FALLBACK);
		atomic_long_inc(&stats.stopped);
	} else {
		count_vm_event(CPU_PAUSE);
		atomic_long_inc(&stats.hist[bucket]);
		/* Two at a time are rare enough. */
		if (ns > READ_ONCE(stats.max_ns))
			WRITE_ONCE(stats.max_ns, ns);
	}
	atomic_long_inc(&stats.pauses[e->reason]);
	atomic_long_add(e->copies, &stats.copies);
	atomic_long_add(e->paused_ns, &stats.paused_ns);
}

/*
 * A window without a pause: the flags of its entries were cleared @clears times, because
 * CPUs set some of them again, and @entries changed, @ns after the first flags were cleared.
 */
void hvo_account_flags(enum hvo_reason reason, unsigned long entries, unsigned long clears,
		       unsigned long flushes, u64 ns)
{
	unsigned long young = clears - entries;

	trace_hvo_window(reason, entries, young, flushes, ns);
	count_vm_events(HVO_PTE_UPDATES, entries);
	count_vm_events(HVO_FLUSH, flushes);
	count_vm_events(HVO_YOUNG, young);
	atomic_long_add(entries, &stats.entries[reason]);
}

/* Folios that the worker has optimised. */
void hvo_account_retried(unsigned long nr)
{
	atomic_long_add(nr, &stats.retried);
}

static int stats_show(struct seq_file *m, void *unused)
{
	static const char * const reasons[] = {
#define EM(reason, name)					\
		[HVO_##reason] = name,
		HVO_REASONS(EM)
#undef EM
	};
	int i;

	for (i = 0; i < NR_HVO_REASONS; i++)
		seq_printf(m, "%s %ld %ld\n", reasons[i],
			   atomic_long_read(&stats.pauses[i]),
			   atomic_long_read(&stats.entries[i]));
	seq_printf(m, "cancelled %ld\n", atomic_long_read(&stats.cancelled));
	seq_printf(m, "busy %ld\n", atomic_long_read(&stats.busy));
	seq_printf(m, "stop_machine %ld\n", atomic_long_read(&stats.stopped));
	seq_printf(m, "copies %ld\n", atomic_long_read(&stats.copies));
	seq_printf(m, "retried %ld\n", atomic_long_read(&stats.retried));
	/* 2: and no CPU comes up that does not set it. */
	seq_printf(m, "access_flag %d\n",
		   cpu_has_hw_af() + cpus_have_final_cap(ARM64_HW_AF));
	seq_printf(m, "ack_ns %ld\n", atomic_long_read(&stats.ack_ns));
	seq_printf(m, "paused_ns %ld\n", atomic_long_read(&stats.paused_ns));
	seq_printf(m, "max_ns %lu\n", READ_ONCE(stats.max_ns));
	for (i = 0; i < TIME_BUCKETS; i++)
		seq_printf(m, "below_us %lu %ld\n", 1UL << i, atomic_long_read(&stats.hist[i]));
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(stats);

static int __init hvo_debugfs_init(void)
{
	struct dentry *dir = debugfs_create_dir("hvo", NULL);

	debugfs_create_file("stats", 0400, dir, NULL, &stats_fops);
	hvo_debug_create(dir);
	return 0;
}
late_initcall(hvo_debugfs_init);
