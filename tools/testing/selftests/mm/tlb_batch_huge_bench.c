// SPDX-License-Identifier: GPL-2.0
/*
 * Changes THPs that are mapped by PMDs, many with one call, which is the measured region: what
 * it costs to change their PMDs.
 *
 * free       madvise(MADV_FREE)
 * protect    mprotect(PROT_READ)
 * uffd       UFFDIO_WRITEPROTECT
 * softdirty  4 is written to clear_refs, where there are soft-dirty bits
 * type       mprotect(PROT_MTE) of 1/8 of them, where there are memory tags: an emulator takes
 *            long to clear these
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <sys/ioctl.h>
#include <linux/userfaultfd.h>

#include "tlb_rs.h"

#ifndef PROT_MTE
#define PROT_MTE	0x20
#endif

static size_t thps = 512;
static int nr_readers;
static int uffd = -1;

static bool change_free(char *base, size_t len)
{
	return !madvise(base, len, MADV_FREE);
}

static bool change_protect(char *base, size_t len)
{
	return !mprotect(base, len, PROT_READ);
}

static bool prepare_uffd(char *base, size_t len)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = {
		.range = { .start = (unsigned long)base, .len = len },
		.mode = UFFDIO_REGISTER_MODE_WP,
	};

	uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
	return uffd >= 0 && !ioctl(uffd, UFFDIO_API, &api) && !ioctl(uffd, UFFDIO_REGISTER, &reg);
}

static bool change_uffd(char *base, size_t len)
{
	struct uffdio_writeprotect wp = {
		.range = { .start = (unsigned long)base, .len = len },
		.mode = UFFDIO_WRITEPROTECT_MODE_WP,
	};

	return !ioctl(uffd, UFFDIO_WRITEPROTECT, &wp);
}

static bool prepare_softdirty(char *base, size_t len)
{
	(void)len;
	return tlb_rs_pagemap(base) & PM_SOFT_DIRTY;
}

static bool change_softdirty(char *base, size_t len)
{
	(void)base;
	(void)len;
	return !tlb_rs_write_file("/proc/self/clear_refs", "4");
}

static bool prepare_type(char *base, size_t len)
{
	char *other = tlb_rs_mmap(SZ_2M, SZ_2M);
	bool ok = false;

	(void)base;
	(void)len;
#ifdef __aarch64__
	ok = !mprotect(other, SZ_2M, PROT_READ | PROT_WRITE | PROT_MTE);
#endif
	munmap(other, SZ_2M);
	return ok;
}

static bool change_type(char *base, size_t len)
{
	return !mprotect(base, len, PROT_READ | PROT_WRITE | PROT_MTE);
}

static const struct variant {
	const char *name;
	bool (*prepare)(char *base, size_t len);
	bool (*change)(char *base, size_t len);
	size_t share;
} variants[] = {
	{ "free", NULL, change_free, 1 },
	{ "protect", NULL, change_protect, 1 },
	{ "uffd", prepare_uffd, change_uffd, 1 },
	{ "softdirty", prepare_softdirty, change_softdirty, 1 },
	{ "type", prepare_type, change_type, 8 },
};

static int run_variant(const struct variant *v)
{
	const size_t nr = thps / v->share, len = nr * SZ_2M;
	struct tlb_rs_readers readers;
	struct tlb_rs_counters c;
	char name[32], extra[64];
	int ret = KSFT_FAIL;
	size_t off;
	char *base;
	long kb;

	base = tlb_rs_mmap(len, SZ_2M);
	madvise(base, len, MADV_HUGEPAGE);
	for (off = 0; off < len; off += SZ_2M)
		base[off] = 1;
	kb = tlb_rs_smaps_kb(base, "AnonHugePages");
	if (kb != (long)(len / 1024)) {
		ksft_print_msg("only %ld kB of THPs\n", kb);
		goto out;
	}
	if (v->prepare && !v->prepare(base, len)) {
		ret = KSFT_SKIP;
		goto out;
	}
	tlb_rs_readers_start(&readers, nr_readers, false, base, len);
	tlb_rs_begin(&c);
	if (v->change(base, len))
		ret = KSFT_PASS;
	tlb_rs_end(&c);
	tlb_rs_readers_end(&readers);
	snprintf(name, sizeof(name), "huge_%s", v->name);
	snprintf(extra, sizeof(extra), ",\"thps\":%zu,\"readers\":%d", nr, nr_readers);
	tlb_rs_json_region(name, extra, &c);
	/* Whole as before. */
	if (tlb_rs_smaps_kb(base, "AnonHugePages") != kb)
		ret = KSFT_FAIL;
out:
	if (uffd >= 0)
		close(uffd);
	uffd = -1;
	munmap(base, len);
	return ret;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "thps", required_argument, NULL, 't' },
		{ "readers", required_argument, NULL, 'r' },
		{ }
	};
	size_t i;
	int opt;

	ksft_print_header();
	while ((opt = getopt_long(argc, argv, "t:r:", options, NULL)) != -1) {
		switch (opt) {
		case 't':
			thps = tlb_rs_number(optarg, 8, 1 << 20);
			break;
		case 'r':
			nr_readers = tlb_rs_number(optarg, 0, TLB_RS_MAX_READERS);
			break;
		default:
			printf("usage: %s [--thps N] [--readers K]\n", argv[0]);
			return KSFT_FAIL;
		}
	}
	if (getpagesize() != 4096 || !tlb_rs_thp_available())
		ksft_exit_skip("needs pages of 4 KiB and transparent huge pages\n");
	tlb_rs_pin_cpu(0);
	tlb_rs_quiet();

	ksft_set_plan(ARRAY_SIZE(variants));
	for (i = 0; i < ARRAY_SIZE(variants); i++)
		ksft_test_result_report(run_variant(&variants[i]), "huge_bench %s\n",
					variants[i].name);
	ksft_finished();
}
