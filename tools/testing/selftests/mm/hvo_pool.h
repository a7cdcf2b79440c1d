/* SPDX-License-Identifier: GPL-2.0 */
/* What the sources of hvo_pool share; hvo_pool.c says what it tests. */
#ifndef _HVO_POOL_H
#define _HVO_POOL_H

#define _GNU_SOURCE
#include <linux/futex.h>
#include <signal.h>
#include <stdint.h>
#include <sys/klog.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "hvo.h"

#define KPF_HUGE		17
#define KPF_HWPOISON		19
#define FAIL_PAGE_ALLOC		DEBUGFS "fail_page_alloc/"
#define MAKE_IT_FAIL		"/proc/self/make-it-fail"

/* hvo_pool.c */
extern int rounds;
extern const char *skip;
extern long nr_reads;
long few(unsigned long kb, long most);
long some(unsigned long kb);
bool verify(long shared);
void readers_begin(void);
void readers_end(void);
const char *needs_memory(void);
const char *needs_injection(void);
const char *needs_two_cpus(void);
long long stops(void);

/* hvo_pool_sizes.c */
bool gigantic(unsigned long kb);
bool counts_are(unsigned long kb, long optimized, long unoptimized);
bool cycle(unsigned long kb, long nr);
bool test_pool(void);
bool counted(unsigned long kb, long *optimized, long *others);
unsigned long one_to_demote(unsigned long to, unsigned long parts);
bool test_demote(void);
bool test_use(void);
bool as_users_have_it(bool (*test)(void));
bool test_defaults(void);
bool test_surplus(void);
bool test_contig(void);
const char *cannot_fail(void);
bool test_fail(void);
bool test_churn(int seconds);

/* hvo_pool_pauses.c */
bool test_duty(void);
bool test_readers(void);
bool test_deaf(void);
bool test_lock(void);
bool test_stop(void);
const char *cannot_hotplug(void);
bool test_hotplug(void);
bool test_race(void);
const char *cannot_switch(void);
bool test_switch(void);
const char *cannot_interrupt(void);
bool test_irqs(void);
bool test_panic(void);
bool test_oops(void);

/* hvo_pool_flags.c */
bool test_young(void);
bool test_late_worker(void);
bool test_off(void);
const char *cannot_be_late(void);
bool test_late(void);
bool test_writes(void);
bool test_heads(void);
bool test_storm(int seconds);

/* hvo_pool_offline.c */
long free_frame(unsigned long kb);
const char *cannot_offline(void);
bool test_offline(void);
const char *cannot_poison(void);
bool test_poison(void);
bool test_marks(void);

#endif /* _HVO_POOL_H */
