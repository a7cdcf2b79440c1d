// SPDX-License-Identifier: GPL-2.0
/* Node 0 has two zones, and their watermarks may be boosted: no more drains than with one. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>

#include "migrc_tier.h"

#define BOOST		"/proc/sys/vm/watermark_boost_factor"
#define COMPACT_LOCKED	"/proc/sys/vm/compact_unevictable_allowed"

#define FILE_PAGES	(3 * nr_pages)
#define BLOCK		512	/* pages that the buddy allocator keeps together */
#define CHUNK		64
#define PIPE_PAGES	256
#define NR_PIPES	128

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED	24
#endif

static bool has_zones(void)
{
	if (tlb_rs_read_zone(0, "DMA32").managed >= 8 * nr_pages &&
	    tlb_rs_read_zone(0, "Normal").managed >= 8 * nr_pages)
		return true;
	tier_skipped = "node 0 has one zone";
	return false;
}

static const char *verdict(const struct result *r, long least)
{
	if (migrc_held(-1) > 0)
		return "kswapd sleeps, and pages are held";
	if (!defers)
		return NULL;
	ksft_print_msg("%lld wakes, %lld drains, %lld of %lld deferred, a step has %ld\n",
		       r->wakes, r->drains, r->deferred, r->demoted, step());
	if (r->deferred < least)
		return "too few were deferred";
	return r->drains > r->wakes + r->demoted / step() ? "too many drains" : NULL;
}

const char *tier_zones(void)
{
	struct tlb_rs_zones low, high;
	struct tlb_rs_area rest;
	struct result r;

	if (!has_zones())
		return NULL;
	/* What the higher zone has left is half as much as what is demoted. */
	high = tlb_rs_read_zone(0, "Normal");
	rest = tlb_rs_make_area(0, high.managed * psize, true);
	while (tlb_rs_read_zone(0, "Normal").free > high.low + 2 * nr_pages) {
		if (!tlb_rs_touch_more(&rest, 64))
			return "node 0 is too large";
	}
	low = tlb_rs_read_zone(0, "DMA32");
	high = tlb_rs_read_zone(0, "Normal");
	make_readonly_pages(4 * nr_pages);
	if (low.free - tlb_rs_read_zone(0, "DMA32").free < nr_pages ||
	    high.free - tlb_rs_read_zone(0, "Normal").free < nr_pages)
		return "the pages are not in both zones";
	tlb_rs_fill_node(&fill, 0, nr_pages);
	tlb_rs_forget_use();
	if (!tlb_rs_wait_for_rest(60))
		return "kswapd does not rest";
	if (!measure("zones", wake_until_moved, &r))
		return "kswapd did not demote enough";
	return tlb_rs_wrong_words(&pages) ? "contents are wrong" : verdict(&r, nr_pages * 95 / 100);
}

/* --- boost ------------------------------------------------------------------------------- */

static int pipes[NR_PIPES][2];
static size_t in_pipes;

/* Pages that cannot be moved. */
static bool take_unmovable(size_t nr)
{
	static char page[65536];

	for (; nr && in_pipes < NR_PIPES * PIPE_PAGES; nr--, in_pipes++) {
		int *fds = pipes[in_pipes / PIPE_PAGES];

		if (in_pipes % PIPE_PAGES == 0 &&
		    (pipe(fds) || fcntl(fds[1], F_SETPIPE_SZ, PIPE_PAGES * psize) < 0))
			return false;
		if (write(fds[1], page, psize) != (ssize_t)psize)
			return false;
	}
	return !nr;
}

static bool boosted(void)
{
	return tlb_rs_read_zones(0).boost > 0;
}

/* Three chunks of eight are free, which are no whole block, and too little for one to be taken. */
static bool punch(const struct tlb_rs_area *a, size_t first)
{
	const size_t chunk = CHUNK * psize;
	char *p;

	for (p = a->base + first * psize; p + BLOCK * psize <= a->base + a->used;
	     p += BLOCK * psize) {
		if (madvise(p, chunk, MADV_DONTNEED_LOCKED) ||
		    madvise(p + 3 * chunk, chunk, MADV_DONTNEED_LOCKED) ||
		    madvise(p + 6 * chunk, chunk, MADV_DONTNEED_LOCKED))
			return false;
	}
	return true;
}

static int make_file(const char *dir)
{
	const size_t len = FILE_PAGES * psize;
	char path[128];
	void *words;
	bool ok;
	int fd;

	snprintf(path, sizeof(path), "%s/migrc_tier", dir);
	words = malloc(len);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (!words || fd < 0)
		return -1;
	tlb_rs_fill(words, len, TLB_RS_TIERS_SEED);
	ok = write(fd, words, len) == (ssize_t)len && !fsync(fd) &&
	     !posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	free(words);
	close(fd);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	unlink(path);
	return ok ? fd : -1;
}

/* Into the holes: what is demoted leaves no whole block. */
static bool map_file(int fd)
{
	size_t at;

	pages = (struct tlb_rs_area) { .len = FILE_PAGES * psize, .used = FILE_PAGES * psize };
	pages.base = mmap(NULL, pages.len, PROT_READ, MAP_PRIVATE, fd, 0);
	close(fd);
	if (pages.base == MAP_FAILED)
		return false;
	/* MADV_POPULATE_READ would make them active: it marks each page of a folio as accessed. */
	for (at = 0; at < pages.len; at += psize)
		__atomic_load_n(pages.base + at, __ATOMIC_RELAXED);
	return true;
}

static long nr_boosted;

static bool demote_for_boost(void)
{
	long long before = tlb_rs_vmstat_read("pgdemote_kswapd");

	while (tlb_rs_vmstat_read("pgdemote_kswapd") - before < nr_pages / 2) {
		if (!take_unmovable(32))
			return false;
		nr_boosted += boosted();
		if (!tlb_rs_wait_for_rest(60))
			return false;
	}
	return true;
}

const char *tier_boost(void)
{
	const char *dir = tlb_rs_env("TLB_DIR");
	struct tlb_rs_zones z;
	struct result r;
	size_t first;
	int fd;

	if (!has_zones())
		return NULL;
	if (!dir) {
		tier_skipped = "no TLB_DIR";
		return NULL;
	}
	/* So that next to nothing is free in the end, and kswapd takes next to no pages. */
	set_number(SCALE, 10);
	set_number(MIN_FREE, 1024);
	set_number(BOOST, 15000);
	/* Else kcompactd makes whole blocks out of the holes. */
	set_number(COMPACT_LOCKED, 0);
	fd = make_file(dir);
	if (fd < 0)
		return "no file";
	/* The higher zone is filled first, and stays full. Then a wake is about the lower one. */
	first = tlb_rs_read_zone(0, "Normal").free;
	tlb_rs_fill_node(&fill, 0, BATCH + nr_pages);
	if (!tlb_rs_wake_kswapd(&fill) || !tlb_rs_wait_for_rest(60))
		return "kswapd does not wake or rest";
	if (!punch(&fill, first))
		return "what is locked cannot be freed";
	if (!map_file(fd))
		return "the file cannot be mapped";
	/* First what is free of their kind, and whole blocks. */
	while (!boosted()) {
		if (!take_unmovable(16))
			return "no watermark was boosted";
	}
	set_number(SCALE, 100);
	tlb_rs_drain_pages();
	tlb_rs_forget_use();
	if (!tlb_rs_wait_for_rest(60))
		return "kswapd does not rest";
	z = tlb_rs_read_zones(0);
	ksft_print_msg("%ld pages are free, high is at %ld, %zu in pipes\n", z.free, z.high,
		       in_pipes);
	if (!measure("boost", demote_for_boost, &r))
		return "kswapd did not demote enough";
	ksft_print_msg("boosted %ld times, %zu in pipes\n", nr_boosted, in_pipes);
	if (!nr_boosted && r.wakes < 2)
		return "no watermark was boosted";
	return tlb_rs_wrong_words(&pages) ? "contents are wrong" :
					   verdict(&r, nr_pages / 2 * 95 / 100);
}
