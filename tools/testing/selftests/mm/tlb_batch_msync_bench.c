// SPDX-License-Identifier: GPL-2.0
/*
 * Writes 16 MiB of a file (--pages) to disk that were written to through a shared mapping. msync()
 * is the measured region: what it costs to make the PTEs clean and read-only.
 *
 * small   pages of their own
 * sparse  the same, each 64th page of a file with holes
 * 64k     folios of 64 KiB
 * 2m      folios of 2 MiB that are mapped by PTEs
 *
 * Each is measured three times: msync_NAME, msync_NAME_again after all pages were written to once
 * more, and msync_NAME_plain after they were written to by pwrite(), which leaves PTEs clean. With
 * --first only the first of the three. With --writeback, that is vm.tlb_batch_writeback=1, the
 * names begin with writeback. What is on the disk in the end is compared.
 */
#define _GNU_SOURCE
#include <getopt.h>

#include "tlb_rs.h"

#define SEED	43

static const char *dir = "/mnt";
static size_t psize;
static size_t nr_pages = 4096;
static int nr_readers;
static int pairs;
static bool writeback;
static bool first;

static const struct variant {
	const char *name;
	size_t size;		/* of a folio */
	size_t stride;		/* one of so many has data */
} variants[] = {
	{ "small", 4096, 1 },
	{ "sparse", 4096, 64 },
	{ "64k", 64 << 10, 1 },
	{ "2m", SZ_2M, 1 },
};

static size_t length(const struct variant *v)
{
	return nr_pages * psize * v->stride;
}

/* A write makes a folio of its length. */
static bool write_folios(const struct variant *v, int fd, __u64 seed)
{
	char *buf = tlb_rs_mmap(v->size, psize);
	size_t off;

	for (off = 0; off < length(v); off += v->size * v->stride) {
		tlb_rs_fill(buf, v->size, seed + off);
		if (pwrite(fd, buf, v->size, off) != (ssize_t)v->size)
			break;
	}
	munmap(buf, v->size);
	return off == length(v);
}

static bool make_file(const struct variant *v, int fd)
{
	return !ftruncate(fd, length(v)) && write_folios(v, fd, SEED) && !fsync(fd);
}

static void store_folios(const struct variant *v, char *base, __u64 seed)
{
	size_t off;

	for (off = 0; off < length(v); off += v->size * v->stride)
		tlb_rs_fill(base + off, v->size, seed + off);
}

static size_t count_folios(const struct variant *v, const char *base)
{
	size_t off, n = 0;

	for (off = 0; off < length(v); off += v->size * v->stride) {
		n += v->size == psize ? !tlb_rs_is_large(base + off) :
					tlb_rs_is_folio(base + off, v->size / psize);
	}
	return n;
}

static bool measured(const struct variant *v, char *base, const char *again)
{
	struct tlb_rs_readers readers;
	struct tlb_rs_counters c;
	char name[32], extra[64];
	int ret;

	/* A reader would fill holes. */
	tlb_rs_readers_start(&readers, nr_readers, false, base, v->stride > 1 ? psize : length(v));
	tlb_rs_begin(&c);
	ret = msync(base, length(v), MS_SYNC);
	tlb_rs_end(&c);
	tlb_rs_readers_end(&readers);
	snprintf(name, sizeof(name), "%s_%s%s", writeback ? "writeback" : "msync", v->name, again);
	snprintf(extra, sizeof(extra), ",\"units\":%zu,\"readers\":%d", nr_pages, nr_readers);
	tlb_rs_json_region(name, extra, &c);
	return !ret;
}

static bool is_on_disk(const struct variant *v, int file, const char *base)
{
	char path[64], *buf = tlb_rs_mmap(v->size, psize);
	bool same = true;
	size_t off;
	int fd;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
	fd = tlb_rs_open(path, O_RDONLY | O_DIRECT);
	for (off = 0; same && off < length(v); off += v->size * v->stride)
		same = pread(fd, buf, v->size, off) == (ssize_t)v->size &&
		       !memcmp(buf, base + off, v->size);
	close(fd);
	munmap(buf, v->size);
	if (!same)
		ksft_print_msg("the disk has something else\n");
	return same;
}

static int run_once(const struct variant *v)
{
	char path[256], *base;
	int fd, ret = KSFT_FAIL;
	size_t n;

	snprintf(path, sizeof(path), "%s/tlb_batch_msync_bench", dir);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	unlink(path);
	if (!make_file(v, fd))
		ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	base = tlb_rs_mmap(length(v), SZ_2M);
	if (mmap(base, length(v), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != base)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	/* Never by one large entry, and not collapsed meanwhile. */
	madvise(base, length(v), MADV_NOHUGEPAGE);
	store_folios(v, base, SEED + 1);
	n = count_folios(v, base);
	if (n != nr_pages * psize / v->size) {
		ksft_print_msg("only %zu of %zu folios have %zu KiB\n", n,
			       nr_pages * psize / v->size, v->size / 1024);
		goto out;
	}
	if (!measured(v, base, ""))
		goto out;
	if (first) {
		ret = is_on_disk(v, fd, base) ? KSFT_PASS : KSFT_FAIL;
		goto out;
	}
	store_folios(v, base, SEED + 2);
	if (!measured(v, base, "_again") || !is_on_disk(v, fd, base) ||
	    !write_folios(v, fd, SEED + 3))
		goto out;
	if (measured(v, base, "_plain") && is_on_disk(v, fd, base))
		ret = KSFT_PASS;
out:
	munmap(base, length(v));
	close(fd);
	return ret;
}

static int run_variant(const struct variant *v)
{
	int i, ret = KSFT_PASS;

	for (i = 0; i < tlb_rs_repeats(pairs) && ret == KSFT_PASS; i++) {
		tlb_rs_repeat_begin(pairs, i);
		ret = run_once(v);
	}
	return ret;
}

static void help(const char *prog)
{
	printf("usage: %s [option]...\n"
	       "  [--variant NAME]... [--pages N] [--first] [--writeback] [--pairs P]\n"
	       "  [--readers K [--idle]] [--dir DIR]\n",
	       prog);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "variant", required_argument, NULL, 'v' },
		{ "pages", required_argument, NULL, 'n' },
		{ "first", no_argument, NULL, 'f' },
		{ "writeback", no_argument, NULL, 'w' },
		{ "pairs", required_argument, NULL, 'p' },
		{ "readers", required_argument, NULL, 'r' },
		{ "idle", no_argument, NULL, 'i' },
		{ "dir", required_argument, NULL, 'd' },
		{ "help", no_argument, NULL, 'h' },
		{ }
	};
	unsigned int wanted = 0;
	size_t i;
	int opt;

	ksft_print_header();
	while ((opt = getopt_long(argc, argv, "v:n:fwp:r:id:h", options, NULL)) != -1) {
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
		case 'f':
			first = true;
			break;
		case 'w':
			writeback = true;
			break;
		case 'p':
			pairs = tlb_rs_number(optarg, 0, 1000);
			break;
		case 'r':
			nr_readers = tlb_rs_number(optarg, 0, TLB_RS_MAX_READERS);
			break;
		case 'i':
			tlb_rs_idle_readers = true;
			break;
		case 'd':
			dir = optarg;
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
	if (psize != 4096 || access(dir, W_OK))
		ksft_exit_skip("needs pages of 4 KiB, and a directory on a disk\n");
	if (nr_pages % (SZ_2M / psize))
		ksft_exit_fail_msg("--pages: no multiple of %lu\n", SZ_2M / psize);
	tlb_rs_pin_cpu(0);
	tlb_rs_quiet();
	if (writeback && !tlb_rs_setting("/proc/sys/vm/tlb_batch_writeback", "1"))
		ksft_exit_skip("no vm.tlb_batch_writeback\n");

	ksft_set_plan(__builtin_popcount(wanted));
	for (i = 0; i < ARRAY_SIZE(variants); i++) {
		if (wanted & (1U << i))
			ksft_test_result_report(run_variant(&variants[i]), "msync_bench %s\n",
						variants[i].name);
	}
	ksft_finished();
}
