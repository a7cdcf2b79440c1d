// SPDX-License-Identifier: GPL-2.0
/* What migrc counts, and its tracepoints. */
#include <linux/debugfs.h>
#include <linux/migrc.h>
#include <linux/mm.h>
#include <linux/percpu.h>
#include <linux/seq_file.h>
#include <linux/tlb_oracle.h>

#include "internal.h"

#define CREATE_TRACE_POINTS
#include <trace/events/migrc.h>

/* The last one is of 2^15 ms and more: vm.migrc_max_age_ms is at most 60000. */
#define AGE_BUCKETS	17

static DEFINE_PER_CPU(unsigned long[NR_MIGRC_FACTS], migrc_denied);
DEFINE_PER_CPU(unsigned long, migrc_protected);
atomic_long_t migrc_hook_flushes[NR_MIGRC_FLUSH_HOOKS];
static atomic_long_t migrc_drains[NR_MIGRC_DRAIN_REASONS];
static atomic_long_t migrc_drained[NR_MIGRC_DRAIN_REASONS];
/* Pages by the age of the oldest that they were drained with: below 1, 2, 4 ... ms. */
static atomic_long_t migrc_ages[AGE_BUCKETS];

/* Returns how many pages of @node are held now. */
unsigned long migrc_account_added(struct folio *folio, unsigned int node,
				  unsigned long pages, bool demoted)
{
	zone_page_state_add(pages, folio_zone(folio), NR_MIGRC_HELD);
	count_vm_events(MIGRC_DEFERRED, pages);
	if (demoted)
		count_vm_events(MIGRC_DEFERRED_DEMOTE, pages);
	tlb_oracle_owned(&folio->page, folio_order(folio));
	trace_migrc_defer(folio_pfn(folio), pages, node);
	return sum_zone_node_page_state(node, NR_MIGRC_HELD);
}

void migrc_account_denied(enum migrc_fact reason, unsigned long pages)
{
	this_cpu_add(migrc_denied[reason], pages);
	count_vm_events(MIGRC_DENIED, pages);
	trace_migrc_deny(pages, reason);
}

void migrc_account_drain(enum migrc_drain_reason reason, unsigned long pages,
			 unsigned long mms, u64 since, u64 ns)
{
	u64 age_us = div_u64(migrc_now() - since, NSEC_PER_USEC);
	unsigned int bucket = min_t(unsigned int, fls64(div_u64(age_us, 1000)), AGE_BUCKETS - 1);

	atomic_long_inc(&migrc_drains[reason]);
	atomic_long_add(pages, &migrc_drained[reason]);
	atomic_long_add(pages, &migrc_ages[bucket]);
	if (reason == MIGRC_DRAIN_AGE)
		count_vm_event(MIGRC_DRAIN_AGES);
	else if (reason == MIGRC_DRAIN_PRESSURE || reason == MIGRC_DRAIN_KSWAPD)
		count_vm_event(MIGRC_DRAIN_PRESSURES);
	trace_migrc_drain(pages, mms, age_us, reason, ns);
}

#define EM(id, name)	name,
static const char * const migrc_fact_names[] = { MIGRC_FACTS(EM) };
static const char * const migrc_drain_names[] = { MIGRC_DRAIN_REASONS(EM) };
const char * const migrc_hook_names[] = { MIGRC_HOOKS(EM) };
#undef EM

static int stats_show(struct seq_file *m, void *unused)
{
	unsigned long protected = 0;
	int i, cpu;

	for (i = 0; i < NR_MIGRC_FACTS; i++) {
		unsigned long pages = 0;

		for_each_possible_cpu(cpu)
			pages += READ_ONCE(per_cpu(migrc_denied[i], cpu));
		seq_printf(m, "denied %s %lu\n", migrc_fact_names[i], pages);
	}
	for (i = 0; i < NR_MIGRC_DRAIN_REASONS; i++)
		seq_printf(m, "drain %s %ld %ld\n", migrc_drain_names[i],
			   atomic_long_read(&migrc_drains[i]),
			   atomic_long_read(&migrc_drained[i]));
	for (i = 0; i < NR_MIGRC_FLUSH_HOOKS; i++)
		seq_printf(m, "hook %s %ld\n", migrc_hook_names[i],
			   atomic_long_read(&migrc_hook_flushes[i]));
	for (i = 0; i < AGE_BUCKETS; i++)
		seq_printf(m, "age %d %ld\n", 1 << i, atomic_long_read(&migrc_ages[i]));
	for_each_possible_cpu(cpu)
		protected += READ_ONCE(per_cpu(migrc_protected, cpu));
	seq_printf(m, "readmostly protected %lu\n", protected);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(stats);

/* Returns the directory, which has the file stats. */
struct dentry * __init migrc_stats_init(void)
{
	struct dentry *dir = debugfs_create_dir("migrc", NULL);

	debugfs_create_file("stats", 0400, dir, NULL, &stats_fops);
	return dir;
}
