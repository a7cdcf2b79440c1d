/* SPDX-License-Identifier: GPL-2.0 */
/* tlbstat price: events of the kernel, and the rings that have their records */
#ifndef TLBSTAT_RING_H
#define TLBSTAT_RING_H

#include "price.h"
#include <linux/perf_event.h>

struct ring {
	int fd, pages;
	struct perf_event_mmap_page *page;
};

typedef void on_sample(struct prices *p, const uint64_t *body, size_t words, int second);

int open_event(struct perf_event_attr *attr, int pid, int cpu, int group);
bool map_ring(struct ring *r, int *pages);
void close_ring(struct ring *r);
long long drain_ring(struct prices *p, struct ring *r, int second, on_sample *sample);
int chain_of(const uint64_t *body, size_t words, uint64_t *chain);
void chain_text(char *text, enum flush kind, const uint64_t *chain, int nr);

#endif
