// SPDX-License-Identifier: GPL-2.0
/*
 * MADV_PAGEOUT of neighbouring pages. The call is a measured region: what it
 * costs in TLB maintenance to unmap the pages is the point of the TLB batch.
 * Afterwards the contents are read back and checked.
 *
 * file        clean order-0 pages of an ext4 file, mapped read-only
 * anon_clean  clean order-0 anonymous pages in the swap cache: written, paged
 *             out and read back in. The kernel keeps them in the swap cache
 *             only if the swap device is a disk, not zram.
 * anon_dirty  dirty order-0 anonymous pages
 * mthp        dirty anonymous folios of 64 KiB
 * thp         dirty anonymous folios of 2 MiB
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <sys/vfs.h>
#include <linux/magic.h>

#include "tlb_rs.h"

#define SEED			11

static size_t nr_pages = 4096;
static int pairs;
static int nr_readers;
static struct tlb_rs_readers readers;
static const char *ext4_dir = "/mnt";
static size_t psize;

/* Switches anonymous folios of @size on, of all other sizes off; 0: all off. */
static bool folio_size(size_t size)
{
	static const size_t kb[] = { 64, 2048 };
	char path[128];
	bool ok = !size;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(kb); i++) {
		bool on = size == kb[i] << 10;

		snprintf(path, sizeof(path), THP_SYSFS "hugepages-%zukB/enabled", kb[i]);
		if (!tlb_rs_write_file(path, on ? "madvise" : "never") && on)
			ok = true;
	}
	return ok;
}

static size_t count_flag(const char *base, int flag)
{
	size_t i, n = 0;

	for (i = 0; i < nr_pages; i++)
		n += tlb_rs_kpageflags(tlb_rs_pfn(base + i * psize)) >> flag & 1;
	return n;
}

static size_t count_large(const char *base)
{
	size_t i, n = 0;

	for (i = 0; i < nr_pages; i++)
		n += tlb_rs_is_large(base + i * psize);
	return n;
}

static void touch_all(const char *base)
{
	size_t i;

	for (i = 0; i < nr_pages; i++)
		__atomic_load_n(base + i * psize, __ATOMIC_RELAXED);
}

/* The pages in the state that the variant wants, or a reason to skip or fail. */
static int prepare_file(char *base, size_t len, size_t size)
{
	struct statfs st;
	int fd, ret = KSFT_FAIL;
	char path[256];
	size_t off;

	(void)size;
	if (statfs(ext4_dir, &st) || st.f_type != EXT4_SUPER_MAGIC) {
		ksft_print_msg("no ext4 on %s\n", ext4_dir);
		return KSFT_SKIP;
	}
	snprintf(path, sizeof(path), "%s/tlb_batch_pageout", ext4_dir);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0) {
		ksft_print_msg("%s: %s\n", path, strerror(errno));
		return KSFT_FAIL;
	}
	unlink(path);
	tlb_rs_fill(base, len, SEED);
	for (off = 0; off < len; off += psize) {
		if (write(fd, base + off, psize) != (ssize_t)psize)
			goto close;
	}
	/* Out of the page cache, and back by faults without any readahead. */
	if (fsync(fd) || posix_fadvise(fd, 0, len, POSIX_FADV_DONTNEED) ||
	    mmap(base, len, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED ||
	    madvise(base, len, MADV_RANDOM))
		goto close;
	touch_all(base);
	ret = KSFT_PASS;
	if (count_large(base)) {
		ksft_print_msg("the file system uses large folios\n");
		ret = KSFT_SKIP;
	} else if (count_flag(base, KPF_DIRTY)) {
		ksft_print_msg("pages of the file are dirty\n");
		ret = KSFT_FAIL;
	}
close:
	if (ret == KSFT_FAIL)
		ksft_print_msg("cannot prepare the file: %s\n", strerror(errno));
	close(fd);
	return ret;
}

static int prepare_anon(char *base, size_t len, size_t size)
{
	size_t off;

	if (!folio_size(size)) {
		ksft_print_msg("no anonymous folios of %zu kB\n", size >> 10);
		return KSFT_SKIP;
	}
	madvise(base, len, size ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	tlb_rs_fill(base, len, SEED);
	/* Another size would be split or not, whatever the TLB batch does. */
	for (off = 0; size && off < len; off += size) {
		if (!tlb_rs_is_folio(base + off, size / psize)) {
			ksft_print_msg("no folio of %zu kB at %zu kB\n", size >> 10, off >> 10);
			return KSFT_SKIP;
		}
	}
	if (!size && count_large(base)) {
		ksft_print_msg("unwanted large folios\n");
		return KSFT_FAIL;
	}
	return KSFT_PASS;
}

static int prepare_anon_clean(char *base, size_t len, size_t size)
{
	int ret = prepare_anon(base, len, size);
	size_t kept;

	if (ret != KSFT_PASS)
		return ret;
	if (madvise(base, len, MADV_PAGEOUT)) {
		ksft_print_msg("MADV_PAGEOUT: %s\n", strerror(errno));
		return KSFT_FAIL;
	}
	touch_all(base);
	kept = count_flag(base, KPF_SWAPCACHE);
	if (kept < nr_pages - nr_pages / 64) {
		ksft_print_msg("%zu pages are in the swap cache (swap on zram?)\n", kept);
		return KSFT_SKIP;
	}
	if (count_flag(base, KPF_DIRTY) > nr_pages / 64 || count_large(base)) {
		ksft_print_msg("the pages are dirty or in large folios\n");
		return KSFT_FAIL;
	}
	return KSFT_PASS;
}

static const struct variant {
	const char *name;
	int (*prepare)(char *base, size_t len, size_t size);
	size_t size;			/* of the folios, 0: one page */
	bool swap;
} variants[] = {
	{ "file", prepare_file, 0, false },
	{ "anon_clean", prepare_anon_clean, 0, true },
	{ "anon_dirty", prepare_anon, 0, true },
	{ "mthp", prepare_anon, 64 << 10, true },
	{ "thp", prepare_anon, SZ_2M, true },
};

static int run_once(const struct variant *v)
{
	size_t len = nr_pages * psize, left, bad;
	long long out, splits;
	struct tlb_rs_counters c;
	char extra[160];
	char name[32];
	char *base;
	int ret;

	base = tlb_rs_mmap(len, SZ_2M);
	ret = v->prepare(base, len, v->size);
	if (ret != KSFT_PASS)
		goto out;
	tlb_rs_drain_lru();
	out = tlb_rs_vmstat_read("pswpout");
	splits = tlb_rs_vmstat_read("thp_split_page");

	tlb_rs_readers_start(&readers, nr_readers, false, base, len);
	tlb_rs_begin(&c);
	ret = madvise(base, len, MADV_PAGEOUT);
	tlb_rs_end(&c);
	tlb_rs_readers_end(&readers);

	left = tlb_rs_count_pagemap(base, nr_pages, PM_PRESENT);
	snprintf(name, sizeof(name), "pageout_%s", v->name);
	snprintf(extra, sizeof(extra),
		 ",\"units\":%zu,\"pages\":%zu,\"pswpout\":%lld,\"splits\":%lld",
		 nr_pages - left, nr_pages, tlb_rs_vmstat_read("pswpout") - out,
		 tlb_rs_vmstat_read("thp_split_page") - splits);
	tlb_rs_json_region(name, extra, &c);

	if (ret) {
		ksft_print_msg("MADV_PAGEOUT: %s\n", strerror(errno));
		ret = KSFT_FAIL;
		goto out;
	}
	/* A page may be busy, but what is left must not decide the figures. */
	if (left > nr_pages / 64) {
		ksft_print_msg("%zu of %zu pages are still mapped\n", left, nr_pages);
		ret = KSFT_FAIL;
	}
	bad = tlb_rs_check(base, len, SEED);
	if (v->swap) {
		tlb_rs_fill(base, len, SEED + 1);
		bad += tlb_rs_check(base, len, SEED + 1);
	}
	if (bad) {
		ksft_print_msg("%zu wrong words\n", bad);
		ret = KSFT_FAIL;
	}
out:
	munmap(base, len);
	return ret;
}

/* All repetitions of a variant are one test: the first that fails decides. */
static int run_variant(const struct variant *v)
{
	int i, ret = KSFT_PASS;

	if (v->swap && !tlb_rs_has_swap()) {
		ksft_print_msg("no swap\n");
		return KSFT_SKIP;
	}
	for (i = 0; i < tlb_rs_repeats(pairs) && ret == KSFT_PASS; i++) {
		tlb_rs_repeat_begin(pairs, i);
		ret = run_once(v);
	}
	return ret;
}

static void help(const char *prog)
{
	printf("usage: %s [option]...\n"
	       "  [--variant NAME]... [--pages N] [--pairs P] [--readers K] [--dir EXT4_DIR]\n",
	       prog);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "variant", required_argument, NULL, 'v' },
		{ "pages", required_argument, NULL, 'n' },
		{ "pairs", required_argument, NULL, 'p' },
		{ "readers", required_argument, NULL, 'r' },
		{ "dir", required_argument, NULL, 'd' },
		{ "help", no_argument, NULL, 'h' },
		{ }
	};
	unsigned int wanted = 0;
	size_t i;
	int opt;

	ksft_print_header();
	while ((opt = getopt_long(argc, argv, "v:n:p:r:d:h", options, NULL)) != -1) {
		switch (opt) {
		case 'v':
			for (i = 0; i < ARRAY_SIZE(variants); i++) {
				if (!strcmp(optarg, variants[i].name))
					break;
			}
			if (i == ARRAY_SIZE(variants))
				ksft_exit_fail_msg("no variant '%s'\n", optarg);
			wanted |= 1U << i;
			break;
		case 'n':
			nr_pages = tlb_rs_number(optarg, 1, 1 << 16);
			break;
		case 'p':
			pairs = tlb_rs_number(optarg, 0, 1000);
			break;
		case 'r':
			nr_readers = tlb_rs_number(optarg, 0, TLB_RS_MAX_READERS);
			break;
		case 'd':
			ext4_dir = optarg;
			break;
		case 'h':
			help(argv[0]);
			return 0;
		default:
			help(argv[0]);
			return KSFT_FAIL;
		}
	}
	if (!wanted)
		wanted = (1U << ARRAY_SIZE(variants)) - 1;

	psize = getpagesize();
	/* Large folios must fill the range. */
	if (psize == 4096)
		nr_pages = (nr_pages + THP_PAGES - 1) / THP_PAGES * THP_PAGES;
	tlb_rs_pin_cpu(0);
	tlb_rs_quiet();
	if (tlb_rs_thp_available()) {
		/* Restored at exit, whatever folio_size() wrote. */
		tlb_rs_setting(THP_SYSFS "hugepages-64kB/enabled", "never");
		tlb_rs_setting(THP_SYSFS "hugepages-2048kB/enabled", "never");
	}

	ksft_set_plan(__builtin_popcount(wanted));
	for (i = 0; i < ARRAY_SIZE(variants); i++) {
		if (!(wanted & (1U << i)))
			continue;
		ksft_test_result_report(run_variant(&variants[i]), "pageout %s\n",
					variants[i].name);
	}
	ksft_finished();
}
