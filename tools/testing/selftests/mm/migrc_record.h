/* SPDX-License-Identifier: GPL-2.0 */
/* The record of a measurement: its members, and what migrc's debugfs has counted by reason. */
#ifndef _MIGRC_RECORD_H
#define _MIGRC_RECORD_H

#include <stdarg.h>

#include "migrc.h"

#define MIGRC_MAX_STATS	64

/* debugfs/migrc/stats */
struct migrc_stats {
	int nr;
	struct {
		char name[48];
		long long val[2];
	} line[MIGRC_MAX_STATS];
};

/* Further members of the record that tlb_rs_json_region() prints. */
extern char record_text[4096];

void record_begin(void);
__printf(1, 2) void record_add(const char *format, ...);
void migrc_stats_read(struct migrc_stats *s);
void record_add_stats(const struct migrc_stats *before);

#endif /* _MIGRC_RECORD_H */
