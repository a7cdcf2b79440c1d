/* SPDX-License-Identifier: GPL-2.0 */
/* What the sources of migrc_tier_bench share; migrc_tier_bench.c says what it measures. */
#ifndef _MIGRC_TIER_BENCH_H
#define _MIGRC_TIER_BENCH_H

#include "migrc_record.h"

#define READERS		3
#define SEED		23

struct load {
	const char *name;
	/* Maps @most bytes at most; @len: how many. */
	char *(*map)(size_t most, size_t *len);
	/* Once; @state: of this reader. Returns how many wrong values it has found. */
	size_t (*look_up)(__u64 *state);
	bool damon;		/* decides what moves, and not the kernel */
};

extern const struct load load_grid, load_weights;

extern const char *dir;		/* of files */
extern bool huge;		/* THP */

/* Marsaglia's xorshift64 */
static inline __u64 next_random(__u64 *x)
{
	*x ^= *x << 13;
	*x ^= *x >> 7;
	*x ^= *x << 17;
	return *x;
}

#endif /* _MIGRC_TIER_BENCH_H */
