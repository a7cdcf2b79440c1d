/* SPDX-License-Identifier: GPL-2.0 */
/* Shared parts of migrc_tier: what is demoted, and what fills the rest of node 0. */
#ifndef _MIGRC_TIER_H
#define _MIGRC_TIER_H

#include "migrc.h"
#include "tlb_rs_tiers.h"

#define SCALE		"/proc/sys/vm/watermark_scale_factor"
#define MIN_FREE	"/proc/sys/vm/min_free_kbytes"

#define BATCH		512	/* pages that kswapd takes at once */

/* Of a region. */
struct result {
	long long demoted;	/* by all */
	long long deferred;	/* of these */
	long long wakes;	/* of kswapd */
	long long drains;	/* of a round, or at the limit */
	long long flushes;	/* of batches that were not deferred */
};

/* migrc_tier.c */
extern struct migrc_options asked;
extern bool defers;
extern size_t psize;
extern long nr_pages;
extern struct tlb_rs_area pages, fill;

void set_number(const char *path, long val);
long step(void);
bool measure(const char *name, bool (*demote)(void), struct result *r);
void make_readonly_pages(size_t nr);
bool prepare(size_t nr);
bool wake(void);
bool wake_short(void);
bool wake_until_moved(void);

/* What is wrong, or NULL; then it may have been skipped. */
extern const char *tier_skipped;

/* migrc_tier_tasks.c */
const char *tier_throttled(void);
const char *tier_oom(void);

/* migrc_tier_zones.c */
const char *tier_zones(void);
const char *tier_boost(void);

#endif /* _MIGRC_TIER_H */
