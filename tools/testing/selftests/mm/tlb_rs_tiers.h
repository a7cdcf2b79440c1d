/* SPDX-License-Identifier: GPL-2.0 */
/* Two tiers of memory: node 1 is slower than node 0 (HMAT, or tlb_slow_nodes=1). */
#ifndef _TLB_RS_TIERS_H
#define _TLB_RS_TIERS_H

#include "tlb_rs.h"

#define TLB_RS_DEMOTION		"/sys/kernel/mm/numa/demotion_enabled"
#define TLB_RS_POOL	"/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"
#define TLB_RS_TIERS_SEED	17	/* of tlb_rs_make_pages() */

/* Pages of a node: free ones, and its watermarks with their boost, of all zones or of one. */
struct tlb_rs_zones {
	long free;
	long boost;
	long min;
	long low;
	long high;
	long managed;
};

struct tlb_rs_area {
	char *base;
	size_t len;
	size_t used;		/* touched */
};

const char *tlb_rs_no_demotion(void);
struct tlb_rs_zones tlb_rs_read_zone(int node, const char *zone);
struct tlb_rs_zones tlb_rs_read_zones(int node);
bool tlb_rs_choose_lru(bool generations);
bool tlb_rs_wait_for_rest(int seconds);
bool tlb_rs_leave_room(long pages);
bool tlb_rs_wake_kswapd(struct tlb_rs_area *fill);

struct tlb_rs_area tlb_rs_make_area(int node, size_t len, bool locked);
struct tlb_rs_area tlb_rs_make_pages(size_t nr);
bool tlb_rs_touch_more(struct tlb_rs_area *a, size_t pages);
void tlb_rs_fill_until(struct tlb_rs_area *a, int node, long free);
void tlb_rs_fill_node(struct tlb_rs_area *a, int node, long above_low);
size_t tlb_rs_wrong_words(const struct tlb_rs_area *a);
size_t tlb_rs_count_on_node(const struct tlb_rs_area *a, int node);

#endif /* _TLB_RS_TIERS_H */
