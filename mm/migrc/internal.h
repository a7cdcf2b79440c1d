/* SPDX-License-Identifier: GPL-2.0 */
/* What the files of mm/migrc/ tell each other. */
#ifndef _MM_MIGRC_INTERNAL_H
#define _MM_MIGRC_INTERNAL_H

#include <linux/atomic.h>
#include <linux/migrc.h>
#include <linux/percpu-defs.h>

struct dentry;

/* --- migrc_act.c --- */

void migrc_rearm(void);
int migrc_worker_init(void);

/* --- migrc_sysctl.c --- */

extern unsigned long migrc_max_pages;
extern unsigned int migrc_max_age_ms;

/* --- migrc_stats.c --- */

DECLARE_PER_CPU(unsigned long, migrc_protected);
extern atomic_long_t migrc_hook_flushes[NR_MIGRC_FLUSH_HOOKS];
extern const char * const migrc_hook_names[NR_MIGRC_HOOKS];

struct dentry *migrc_stats_init(void);

/* --- migrc_faults.c --- */

#ifdef CONFIG_TLB_RS_FAULT_INJECTION
void migrc_walk_delay(void);
void migrc_faults_init(struct dentry *dir);
#else
static inline void migrc_walk_delay(void) { }
static inline void migrc_faults_init(struct dentry *dir) { }
#endif

#endif /* _MM_MIGRC_INTERNAL_H */
