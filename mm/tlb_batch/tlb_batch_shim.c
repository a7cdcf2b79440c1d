// SPDX-License-Identifier: GPL-2.0
/*
 * What the TLB batch needs from C: the static key and its sysctl, the
 * architecture's operations, counters and tracepoints.
 * No decision is taken here.
 */
#include <linux/debugfs.h>
#include <linux/init.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/seq_file.h>
#include <linux/sysctl.h>
#include <linux/tlb_batch.h>
#include <linux/uaccess.h>

#include "../internal.h"
#include "internal.h"

#define CREATE_TRACE_POINTS
#include <trace/events/tlb_batch.h>

DEFINE_STATIC_KEY_TRUE(tlb_batch_key);
DEFINE_STATIC_KEY_FALSE(tlb_batch_unbatched_key);

struct tlb_batch_stats {
	unsigned long ranges[NR_TLB_BATCH_REASONS];
	unsigned long pages[NR_TLB_BATCH_REASONS];
	unsigned long restored_runs;
	unsigned long restored_pages;
};

static DEFINE_PER_CPU(struct tlb_batch_stats, tlb_batch_stats);

static noinline void trace_issued(struct mm_struct *mm, unsigned long start,
				  unsigned long pages, enum tlb_batch_reason reason)
{
	trace_tlb_batch_flush(mm, start, pages, reason);
}

/* Process context only, so disabled preemption protects all counters. */
static __always_inline void account(unsigned long ranges, unsigned long pages,
				    enum tlb_batch_reason reason)
{
	struct tlb_batch_stats *stats = get_cpu_ptr(&tlb_batch_stats);

	stats->ranges[reason] += ranges;
	stats->pages[reason] += pages;
	__count_vm_events(TLB_BATCH_ISSUED_PAGES, pages);
	__count_vm_events(TLB_BATCH_ISSUED_RANGES, ranges);
	put_cpu_ptr(&tlb_batch_stats);
}

static __always_inline void issued(struct mm_struct *mm, unsigned long start,
				   unsigned long pages, enum tlb_batch_reason reason)
{
	account(1, pages, reason);
	if (trace_tlb_batch_flush_enabled())
		trace_issued(mm, start, pages, reason);
}

void tlb_batch_arch_issue(struct mm_struct *mm, unsigned long start,
			  unsigned long end, enum tlb_batch_reason reason)
{
	/* rule: tlb_batch/flush: TLBs lead to pages that were unmapped */
	if (!tlb_batch_skip(TLB_BATCH_HOOK_FLUSH))
		arch_tlb_batch_issue(&current->tlb_ubc.arch, mm, start, end);
	issued(mm, start, (end - start) >> PAGE_SHIFT, reason);
}

void tlb_batch_arch_issue_mm(struct mm_struct *mm, unsigned long pages,
			     enum tlb_batch_reason reason)
{
	/* rule: tlb_batch/flush: TLBs lead to pages of this mm that were unmapped */
	if (!tlb_batch_skip(TLB_BATCH_HOOK_FLUSH))
		arch_tlb_batch_issue_mm(&current->tlb_ubc.arch, mm);
	issued(mm, 0, pages, reason);
}

/* There may be one for each page, so they are counted later, and all at once. */
void tlb_batch_arch_evict(struct mm_struct *mm, unsigned long start, unsigned long end)
{
	/* rule: tlb_batch/flush: the batch has no room for this range, so it is due now */
	if (!tlb_batch_skip(TLB_BATCH_HOOK_FLUSH))
		arch_tlb_batch_issue(&current->tlb_ubc.arch, mm, start, end);
	if (trace_tlb_batch_flush_enabled())
		trace_issued(mm, start, (end - start) >> PAGE_SHIFT,
			     TLB_BATCH_OVERFLOW);
}

void tlb_batch_account_evicted(unsigned long ranges, unsigned long pages)
{
	account(ranges, pages, TLB_BATCH_OVERFLOW);
	count_vm_events(TLB_BATCH_OVERFLOWS, ranges);
}

bool tlb_batch_arch_prefers_mm(unsigned long pages)
{
	return arch_tlb_batch_prefers_mm(pages);
}

/* INVPCID of x86 faults for some other addresses. A tagged address is refused, too. */
bool tlb_batch_is_user(unsigned long start, unsigned long end)
{
	return __access_ok((void __user *)start, end - start);
}

bool tlb_batch_arch_flush(struct mm_struct *mm, unsigned long start, unsigned long end,
			  unsigned long pages, enum tlb_batch_reason reason)
{
	WARN_ON_ONCE(irqs_disabled());
	/* A test that removes one of the steps needs both of them apart. */
	if (tlb_batch_skip(TLB_BATCH_HOOK_FLUSH) ||
	    tlb_batch_skip(TLB_BATCH_HOOK_SYNC) ||
	    tlb_batch_skip(TLB_BATCH_HOOK_GEN) ||
	    !arch_tlb_batch_flush(&current->tlb_ubc.arch, mm, start, end))
		return false;
	issued(mm, start, pages, reason);
	count_vm_event(TLB_BATCH_SYNCS);
	return true;
}

void tlb_batch_arch_sync(void)
{
	/* x86 interrupts other CPUs, and enables interrupts after its own share. */
	WARN_ON_ONCE(irqs_disabled());
	count_vm_event(TLB_BATCH_SYNCS);
	if (tlb_batch_skip(TLB_BATCH_HOOK_FLUSH) ||
	    tlb_batch_skip(TLB_BATCH_HOOK_SYNC))
		return;
	/* rule: tlb_batch/sync: CPUs were told, but may not have invalidated yet */
	arch_tlbbatch_flush(&current->tlb_ubc.arch);
}

void tlb_batch_do_trace_add(struct mm_struct *mm, unsigned long start, unsigned long end)
{
	trace_tlb_batch_add(mm, start, end);
}

void tlb_batch_exit_slow(void)
{
	if (tlb_batch_skip(TLB_BATCH_HOOK_EXIT))
		return;
	WARN_ONCE(1, "task exits with an owed TLB flush\n");
	try_to_unmap_flush();
}

static int tlb_batch_mode = 1;

/* Tasks still flush what they owe when the switch changes. */
static int tlb_batch_sysctl(const struct ctl_table *table, int write,
			    void *buffer, size_t *lenp, loff_t *ppos)
{
	static DEFINE_MUTEX(lock);
	int ret;

	guard(mutex)(&lock);
	ret = proc_dointvec_minmax(table, write, buffer, lenp, ppos);
	if (ret || !write)
		return ret;

	if (tlb_batch_mode > 0)
		static_branch_enable(&tlb_batch_key);
	else
		static_branch_disable(&tlb_batch_key);
	if (tlb_batch_mode < 0)
		static_branch_enable(&tlb_batch_unbatched_key);
	else
		static_branch_disable(&tlb_batch_unbatched_key);
	return 0;
}

static const struct ctl_table tlb_batch_sysctl_table[] = {
	{
		.procname	= "tlb_batch",
		.data		= &tlb_batch_mode,
		.maxlen		= sizeof(tlb_batch_mode),
		.mode		= 0644,
		.proc_handler	= tlb_batch_sysctl,
		.extra1		= IS_ENABLED(CONFIG_TLB_RS_BENCH) ?
				  SYSCTL_NEG_ONE : SYSCTL_ZERO,
		.extra2		= SYSCTL_ONE,
	},
};

static const char * const tlb_batch_reason_names[] = {
#define EM(reason, name)	name,
	TLB_BATCH_REASONS(EM)
#undef EM
};

/* Under the PTL, with which PREEMPT_RT lets the task be preempted. */
void tlb_batch_restored(unsigned int pages)
{
	this_cpu_inc(tlb_batch_stats.restored_runs);
	this_cpu_add(tlb_batch_stats.restored_pages, pages);
	count_vm_events(TLB_BATCH_RESTORED, pages);
}

static int stats_show(struct seq_file *m, void *unused)
{
	unsigned long restored_runs = 0, restored_pages = 0;
	int reason, cpu;

	seq_puts(m, "reason ranges pages\n");
	for (reason = 0; reason < NR_TLB_BATCH_REASONS; reason++) {
		unsigned long ranges = 0, pages = 0;

		for_each_possible_cpu(cpu) {
			struct tlb_batch_stats *s = per_cpu_ptr(&tlb_batch_stats, cpu);

			ranges += READ_ONCE(s->ranges[reason]);
			pages += READ_ONCE(s->pages[reason]);
		}
		seq_printf(m, "%s %lu %lu\n", tlb_batch_reason_names[reason],
			   ranges, pages);
	}
	for_each_possible_cpu(cpu) {
		struct tlb_batch_stats *s = per_cpu_ptr(&tlb_batch_stats, cpu);

		restored_runs += READ_ONCE(s->restored_runs);
		restored_pages += READ_ONCE(s->restored_pages);
	}
	seq_printf(m, "restore %lu %lu\n", restored_runs, restored_pages);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(stats);

static int __init tlb_batch_init(void)
{
	struct dentry *dir = debugfs_create_dir("tlb_batch", NULL);

	register_sysctl_init("vm", tlb_batch_sysctl_table);
	debugfs_create_file("stats", 0400, dir, NULL, &stats_fops);
	tlb_batch_faults_init(dir);
	return 0;
}
late_initcall(tlb_batch_init);
