/* SPDX-License-Identifier: GPL-2.0 */
/* tlbstat: what CPUs can do */
#ifndef TLBSTAT_CPUS_H
#define TLBSTAT_CPUS_H

#include "tlbstat.h"

enum answer { UNKNOWN, NO, YES };

struct cpus {
	int nr;			/* online; 0: unknown */
	char model[160];
	enum answer range, erratum, repeat, invlpgb;
};

int list_of(const char *text, int *list, int room);
void ask_cpus(struct cpus *c, const char *arch);

#endif
