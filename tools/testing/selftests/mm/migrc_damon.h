/* SPDX-License-Identifier: GPL-2.0 */
/* DAMON watches a range of this process and migrates what its schemes say. */
#ifndef _MIGRC_DAMON_H
#define _MIGRC_DAMON_H

#include <stdbool.h>
#include <stddef.h>

#define MIGRC_DAMON_ALWAYS	4294967295U	/* accesses of a region, in a period of 100 ms */

struct migrc_damon_scheme {
	const char *action;		/* migrate_hot, migrate_cold */
	int node;			/* to which it migrates */
	unsigned int least, most;	/* accesses of what it takes */
	unsigned int least_age;		/* for so many periods */
};

bool migrc_has_damon(void);
void migrc_damon_start(const void *base, size_t len, const struct migrc_damon_scheme *schemes,
		       size_t nr);
void migrc_damon_retarget(int node);
void migrc_damon_stop(void);

#endif /* _MIGRC_DAMON_H */
