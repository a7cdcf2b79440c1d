/* SPDX-License-Identifier: GPL-2.0 */
/* Shared parts of migrc_tier: what is demoted, and what fills the rest of node 0. */
#ifndef _MIGRC_TIER_H
#define _MIGRC_TIER_H

#include "migrc.h"
#include "tlb_rs_tiers.h"

#define SCALE		"/proc/sys/vm/watermark_scale_factor"
#define MIN_FREE	"/proc/sys/vm/min_free_kbytes"

/* migrc_tier.c */
extern struct migrc_options asked;
extern size_t psize;
extern long nr_pages;
extern struct tlb_rs_area pages, fill;

void set_number(const char *path, long val);
bool prepare(size_t nr);
bool wake_short(void);

/* migrc_tier_tasks.c: what is wrong, or NULL; then it may have been skipped. */
extern const char *tier_skipped;

const char *tier_throttled(void);
const char *tier_oom(void);

#endif /* _MIGRC_TIER_H */
