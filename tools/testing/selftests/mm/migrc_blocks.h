/* SPDX-License-Identifier: GPL-2.0 */
/* Shared parts of migrc_blocks: large folios that move, and what the kernel has counted. */
#ifndef _MIGRC_BLOCKS_H
#define _MIGRC_BLOCKS_H

#include <signal.h>
#include <sys/wait.h>

#include "migrc.h"

#define SEED		29

/* What the kernel has counted. */
struct seen {
	struct migrc_counters c;
	long long restored;
	long long block;	/* pages that were denied for it */
	long long size;		/* address spaces that were flushed for it */
};

/* migrc_blocks.c */
extern struct migrc_options asked;
extern size_t psize, pmd_size, folio_size, folio_pages;

void see(struct seen *s);
void see_since(const struct seen *before, struct seen *d);
char *make_folios(size_t nr, size_t size);
char *make_folios_and_more(size_t nr, size_t size, size_t end);
bool move(char *base, size_t nr, size_t size, int node);
bool advise_while_moving(char *base, size_t start, size_t len, int advice);
void end_mover(void);

/* migrc_blocks_stale.c */
int run_stale(void);

#endif /* _MIGRC_BLOCKS_H */
