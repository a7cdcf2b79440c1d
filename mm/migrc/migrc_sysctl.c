// SPDX-License-Identifier: GPL-2.0
/* The static keys of migrc and its sysctls. */
#include <linux/init.h>
#include <linux/migrc.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/swapops.h>
#include <linux/sysctl.h>
#include <asm/migrc.h>

#include "internal.h"

DEFINE_STATIC_KEY_FALSE(migrc_key);
DEFINE_STATIC_KEY_FALSE(migrc_used_key);
DEFINE_STATIC_KEY_FALSE(migrc_readmostly_key);

static int migrc_enabled;
static int migrc_readmostly;
unsigned long migrc_max_pages;
unsigned int migrc_max_age_ms = 100;

/* Only where there is a sysctl for it. */
static int migrc_blocks;

bool migrc_defers_blocks(void)
{
	return READ_ONCE(migrc_blocks);
}

static DEFINE_MUTEX(migrc_sysctl_lock);

/*
 * When a write of 0 returns, nothing is held any more, nor will be: a migration that is
 * under way flushes for itself, see drain_late().
 */
static int migrc_enable_sysctl(const struct ctl_table *table, int write,
			       void *buffer, size_t *lenp, loff_t *ppos)
{
	int ret;

	guard(mutex)(&migrc_sysctl_lock);
	ret = proc_dointvec_minmax(table, write, buffer, lenp, ppos);
	if (ret || !write)
		return ret;

	if (migrc_enabled) {
		static_branch_enable(&migrc_used_key);
		migrc_open(true);
		static_branch_enable(&migrc_key);
	} else {
		static_branch_disable(&migrc_key);
		/* rule: migrc/off: a migration that is under way may have looked before that */
		if (!migrc_skip(MIGRC_HOOK_OFF))
			migrc_open(false);
		migrc_drain(MIGRC_DRAIN_OFF);
	}
	return 0;
}

static int migrc_readmostly_sysctl(const struct ctl_table *table, int write,
				   void *buffer, size_t *lenp, loff_t *ppos)
{
	int ret;

	guard(mutex)(&migrc_sysctl_lock);
	ret = proc_dointvec_minmax(table, write, buffer, lenp, ppos);
	if (ret || !write)
		return ret;

	/* Without the dirty bit each page would seem not to be written to. */
	if (migrc_readmostly && !(arch_migrc_hw_dirty() && migration_entry_supports_ad())) {
		migrc_readmostly = 0;
		ret = -EOPNOTSUPP;
	}
	/* It may have been on: a CPU that has no dirty bit can come up late. */
	if (migrc_readmostly)
		static_branch_enable(&migrc_readmostly_key);
	else
		static_branch_disable(&migrc_readmostly_key);
	return ret;
}

/* A shorter age counts from now on, a longer one for the sources that come later. */
static int migrc_age_sysctl(const struct ctl_table *table, int write,
			    void *buffer, size_t *lenp, loff_t *ppos)
{
	int ret;

	guard(mutex)(&migrc_sysctl_lock);
	ret = proc_douintvec_minmax(table, write, buffer, lenp, ppos);
	if (!ret && write)
		migrc_rearm();
	return ret;
}

static const unsigned int migrc_age_least = 1;
static const unsigned int migrc_age_most = 60 * MSEC_PER_SEC;

static const struct ctl_table migrc_sysctl_table[] = {
	{
		.procname	= "migrc_enable",
		.data		= &migrc_enabled,
		.maxlen		= sizeof(migrc_enabled),
		.mode		= 0644,
		.proc_handler	= migrc_enable_sysctl,
		.extra1		= SYSCTL_ZERO,
		.extra2		= SYSCTL_ONE,
	},
	{
		.procname	= "migrc_readmostly",
		.data		= &migrc_readmostly,
		.maxlen		= sizeof(migrc_readmostly),
		.mode		= 0644,
		.proc_handler	= migrc_readmostly_sysctl,
		.extra1		= SYSCTL_ZERO,
		.extra2		= SYSCTL_ONE,
	},
	{
		.procname	= "migrc_max_pages",
		.data		= &migrc_max_pages,
		.maxlen		= sizeof(migrc_max_pages),
		.mode		= 0644,
		.proc_handler	= proc_doulongvec_minmax,
	},
	{
		.procname	= "migrc_max_age_ms",
		.data		= &migrc_max_age_ms,
		.maxlen		= sizeof(migrc_max_age_ms),
		.mode		= 0644,
		.proc_handler	= migrc_age_sysctl,
		.extra1		= (void *)&migrc_age_least,
		.extra2		= (void *)&migrc_age_most,
	},
#ifdef ARCH_MIGRC_HAS_BLOCKS
	{
		.procname	= "migrc_blocks",
		.data		= &migrc_blocks,
		.maxlen		= sizeof(migrc_blocks),
		.mode		= 0644,
		.proc_handler	= proc_dointvec_minmax,
		.extra1		= SYSCTL_ZERO,
		.extra2		= SYSCTL_ONE,
	},
#endif
};

static int __init migrc_init(void)
{
	int ret;

	/* FOLIO_DEFERRED is kept beside the pointer to it. */
	BUILD_BUG_ON(__alignof__(struct anon_vma) < 8);

	ret = migrc_worker_init();
	if (ret)
		return ret;
	migrc_blocks = arch_migrc_blocks();
	register_sysctl_init("vm", migrc_sysctl_table);
	migrc_faults_init(migrc_stats_init());
	return 0;
}
late_initcall(migrc_init);
