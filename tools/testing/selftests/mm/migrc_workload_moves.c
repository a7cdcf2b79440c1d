// SPDX-License-Identifier: GPL-2.0
/* Who moves the pages: the mover, NUMA balancing, DAMON. */
#include "migrc_damon.h"
#include "migrc_workload.h"

/*
 * The pages from @at to @end, in as many calls as it takes: one ends with the first block of
 * which something cannot be moved.
 */
static void move(size_t at, size_t end)
{
	size_t i;

	while (at < end) {
		for (i = at; i < end; i++)
			set.status[i] = NOT_TRIED;
		if (syscall(SYS_move_pages, 0, end - at, set.addrs + at, set.nodes + at,
			    set.status + at, MPOL_MF_MOVE_ALL) <= 0)
			return;
		while (at < end && set.status[at] != NOT_TRIED)
			at++;
		at = (at / block_pages + 1) * block_pages;
	}
}

/*
 * A call is for @call_pages; of these, blocks change places: the kernel migrates
 * @block_pages to one node, and then as many to the other one.
 */
static void move_pass(int odd, __u64 *next)
{
	size_t i, at;

	for (i = 0; i < set.nr; i++)
		set.nodes[i] = (i / block_pages + odd) & 1;
	for (at = 0; at < set.nr; at += call_pages) {
		size_t left = set.nr - at;

		while (tlb_rs_now_ns() < *next)
			;
		*next += interval_ns;
		move(at, at + (call_pages < left ? call_pages : left));
	}
}

/* The kernel looks ten times a second which node uses a page. */
void balance(void)
{
	migrc_setting("/proc/sys/kernel/numa_balancing", 1);
	migrc_setting(BALANCING "scan_delay_ms", 100);
	migrc_setting(BALANCING "scan_period_min_ms", 100);
	migrc_setting(BALANCING "scan_period_max_ms", 100);
}

/* All pages of the set, every 100 ms, to the target node of the scheme. */
void damon_start(void)
{
	const struct migrc_damon_scheme scheme = {
		.action = "migrate_hot", .most = MIGRC_DAMON_ALWAYS,
	};

	migrc_damon_start(base, set.nr * psize, &scheme, 1);
}

/* Until nine of ten pages have followed, or the kernel has given up. */
static void follow_pass(int odd)
{
	long long before = tlb_rs_vmstat_read("pgmigrate_success");
	__u64 end = tlb_rs_now_ns() + FOLLOW_NS;

	if (by == BY_BALANCE)
		STORE(shared->node, odd);
	else
		migrc_damon_retarget(odd);
	while (tlb_rs_vmstat_read("pgmigrate_success") - before < (long long)set.nr * 9 / 10 &&
	       tlb_rs_now_ns() < end)
		tlb_rs_sleep_us(10000);
}

/* Moves every page @times. Returns the most that were held. */
long long move_all(int times)
{
	static int odd;
	__u64 next = tlb_rs_now_ns();
	long long most = 0;

	while (times--) {
		long long held;

		odd = !odd;
		if (by == BY_MOVE)
			move_pass(odd, &next);
		else
			follow_pass(odd);
		held = migrc_held(-1);
		most = held > most ? held : most;
	}
	return most;
}
