// SPDX-License-Identifier: GPL-2.0
/*
 * Splits PTE-mapped THPs (2 MiB with 4 KiB pages) through debugfs and checks that nobody sees
 * anything but the old contents. The writes to split_huge_pages are a measured
 * region: what they cost in TLB maintenance is the point of the TLB batch.
 *
 * anon     one VMA, all PTEs alike: made PTE-mapped by mprotect(PROT_READ) and
 *          back of the second page of each THP
 * mixed    every 7th page not exclusive and write-protected, every 5th clean
 *          and old: runs of PTEs that can be cleared at once are short
 * shared   mapped by 4 processes, or --processes N
 * order4   as anon, but the folios that are left have 16 pages
 * shmem    a tmpfs file, mapped at an odd address, so that each THP is mapped
 *          by PTEs of two page tables
 * ext4     large folios of the page cache, mapped read-only, likewise
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <linux/magic.h>

#include "tlb_rs.h"

#define SPLIT_FILE		DEBUGFS "split_huge_pages"
#define SPLIT_TRIES		4
#define MAX_PROCESSES		64

static size_t nr_thps = 32;
static int nr_processes = 4;
static int pairs;
static int nr_readers;
static bool touch;
static const char *ext4_dir = "/mnt";
static size_t psize, thp_size, thp_pages;
static int split_fd = -1;
static struct tlb_rs_readers readers;

/*
 * Splits all THPs from base on. debugfs looks for a VMA and a folio at each page of a range,
 * also where it has just split one, which is no part of a split. So it is told the first
 * pages of each THP only. With each of them it tries again if a folio is busy.
 */
static bool split_thps(const char *base, int order)
{
	char cmd[80];
	size_t i;
	int n;

	for (i = 0; i < nr_thps; i++, base += thp_size) {
		n = snprintf(cmd, sizeof(cmd), "%d,0x%lx,0x%lx,%d", getpid(), (unsigned long)base,
			     (unsigned long)(base + SPLIT_TRIES * psize), order);
		if (write(split_fd, cmd, n) != n)
			return false;
	}
	return true;
}

static bool split_file(const char *path, size_t pages)
{
	char cmd[200];
	int n;

	n = snprintf(cmd, sizeof(cmd), "%s,0x0,0x%zx", path, pages);
	return write(split_fd, cmd, n) == n;
}

static size_t count_thps(const char *base)
{
	size_t i, n = 0;

	for (i = 0; i < nr_thps; i++)
		n += tlb_rs_is_folio(base + i * thp_size, thp_pages);
	return n;
}

static size_t count_large_pages(const char *base, size_t len)
{
	size_t off, n = 0;

	for (off = 0; off < len; off += psize)
		n += tlb_rs_is_large(base + off);
	return n;
}

static void free_range(char *base, size_t len)
{
	munmap(base, len);
}

/* PTE-mapped THPs with the given contents, or NULL with a message. */
static char *make_thps(__u64 seed)
{
	size_t len = nr_thps * thp_size;
	size_t i, n;
	char *base;

	base = tlb_rs_mmap(len, thp_size);
	if (madvise(base, len, MADV_HUGEPAGE)) {
		ksft_print_msg("MADV_HUGEPAGE: %s\n", strerror(errno));
		goto fail;
	}
	tlb_rs_fill(base, len, seed);

	n = count_thps(base);
	if (n != nr_thps) {
		ksft_print_msg("only %zu of %zu ranges are THPs\n", n, nr_thps);
		goto fail;
	}
	for (i = 0; i < nr_thps; i++) {
		char *second = base + i * thp_size + psize;

		if (mprotect(second, psize, PROT_READ) ||
		    mprotect(second, psize, PROT_READ | PROT_WRITE)) {
			ksft_print_msg("mprotect: %s\n", strerror(errno));
			goto fail;
		}
	}
	if (tlb_rs_smaps_kb(base, "AnonHugePages") || count_thps(base) != nr_thps) {
		ksft_print_msg("the THPs are not PTE-mapped\n");
		goto fail;
	}
	/* Else khugepaged could collapse them again before they are checked. */
	madvise(base, len, MADV_NOHUGEPAGE);
	return base;
fail:
	free_range(base, len);
	return NULL;
}

/* After a split: folios of that order only, each page in the frame it had before. */
static bool check_split(const char *base, const __u64 *pfn, int order)
{
	size_t len = nr_thps * thp_size, size = psize << order;
	size_t i, off, moved = 0, left = 0;

	for (i = 0; i < nr_thps; i++)
		moved += tlb_rs_pfn(base + i * thp_size + 5 * psize) != pfn[i] + 5;
	for (off = 0; order && off < len; off += size)
		left += !tlb_rs_is_folio(base + off, 1 << order);
	if (!order)
		left = count_large_pages(base, len);
	if (left || moved)
		ksft_print_msg("%zu folios of another size, %zu THPs elsewhere\n", left, moved);
	return !left && !moved;
}

static void note_frames(const char *base, __u64 *pfn)
{
	size_t i;

	for (i = 0; i < nr_thps; i++)
		pfn[i] = tlb_rs_pfn(base + i * thp_size);
}

static bool check_contents(const char *who, const char *base, size_t len, __u64 seed)
{
	size_t bad = tlb_rs_check(base, len, seed);

	if (bad)
		ksft_print_msg("%s: %zu wrong words\n", who, bad);
	return !bad;
}

/*
 * Attributes that differ within one folio and one VMA. mprotect() would make
 * VMAs of its own, and arm64 has no soft-dirty, so:
 *
 * - fork() a child that exits at once: it leaves all PTEs write-protected and
 *   all pages not exclusive. A write by the then only owner makes a page
 *   exclusive and its PTE writable again, in place (the folio has no other
 *   mapping left). Every 7th page is not written.
 * - MADV_FREE of the whole range cleans and ages all PTEs of a folio without
 *   splitting it. Pages other than each 7th and each 5th are then written.
 *
 * Gives three classes: not exclusive (7th), exclusive but clean (5th), and
 * exclusive, dirty and young. The clean ones keep their contents as long as
 * there is no memory pressure.
 */
static int page_class(size_t i)
{
	if (i % 7 == 0)
		return 0;
	return i % 5 == 0 ? 1 : 2;
}

static bool mix_attributes(char *base)
{
	size_t len = nr_thps * thp_size;
	size_t off, dirty = 0;
	long clean_kb;
	int status;
	pid_t pid;

	pid = fork();
	if (!pid)
		_exit(0);
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return false;

	for (off = 0; off < len; off += psize) {
		if (page_class(off % thp_size / psize) > 0)
			__atomic_fetch_or(base + off, 0, __ATOMIC_RELAXED);
	}
	if (madvise(base, len, MADV_FREE)) {
		ksft_print_msg("MADV_FREE: %s\n", strerror(errno));
		return false;
	}
	for (off = 0; off < len; off += psize) {
		if (page_class(off % thp_size / psize) > 1) {
			__atomic_fetch_or(base + off, 0, __ATOMIC_RELAXED);
			dirty += psize;
		}
	}
	clean_kb = tlb_rs_smaps_kb(base, "Private_Clean");
	if (clean_kb != (long)(len - dirty) / 1024 ||
	    tlb_rs_smaps_kb(base, "Private_Dirty") != (long)dirty / 1024) {
		ksft_print_msg("%ld kB are clean, expected %zu\n", clean_kb,
			       (len - dirty) / 1024);
		return false;
	}
	return count_thps(base) == nr_thps;
}

/* Runs of equal attributes in one THP. */
static size_t count_runs(void)
{
	size_t i, runs = 1;

	for (i = 1; i < thp_pages; i++)
		runs += page_class(i) != page_class(i - 1);
	return runs;
}

static bool split_anon_once(const char *name, bool mixed, int order)
{
	size_t len = nr_thps * thp_size;
	struct tlb_rs_counters c;
	__u64 *pfn;
	char extra[80];
	char *base;
	bool ok;

	base = make_thps(7);
	if (!base)
		return false;
	pfn = calloc(nr_thps, sizeof(*pfn));
	if (!pfn || (mixed && !mix_attributes(base))) {
		ksft_print_msg("cannot prepare the THPs\n");
		free(pfn);
		free_range(base, len);
		return false;
	}
	note_frames(base, pfn);
	snprintf(extra, sizeof(extra), ",\"thps\":%zu,\"runs\":%zu", nr_thps,
		 mixed ? count_runs() : 1);

	tlb_rs_readers_start(&readers, nr_readers, touch, base, len);
	tlb_rs_begin(&c);
	ok = split_thps(base, order);
	tlb_rs_end(&c);
	tlb_rs_readers_end(&readers);
	tlb_rs_json_region(name, extra, &c);

	ok &= check_contents("parent", base, len, 7);
	ok &= check_split(base, pfn, order);
	/* The pages must be as writable as before. */
	tlb_rs_fill(base, len, 8);
	ok &= check_contents("rewritten", base, len, 8);
	free(pfn);
	free_range(base, len);
	return ok;
}

static bool split_anon(void)
{
	return split_anon_once("split_anon", false, 0);
}

static bool split_mixed(void)
{
	return split_anon_once("split_mixed", true, 0);
}

/* A child: has the pages in its TLB, waits for the split, checks, writes. */
static int shared_child(int nr, char *base, size_t len, int ready, int go)
{
	char c = 0;

	tlb_rs_pin_cpu((nr + 1) % tlb_rs_nr_cpus());
	if (tlb_rs_check(base, len, 7))
		return 1;
	if (write(ready, &c, 1) != 1 || read(go, &c, 1) != 1)
		return 2;
	if (tlb_rs_check(base, len, 7))
		return 3;
	/* A private copy: the other processes must not see it. */
	tlb_rs_fill(base, len / 8, 20 + nr);
	if (tlb_rs_check(base, len / 8, 20 + nr))
		return 4;
	return 0;
}

static bool share_and_split(void)
{
	size_t len = nr_thps * thp_size;
	int ready[2], go[2], i, status;
	struct tlb_rs_counters c;
	int children = nr_processes - 1;
	pid_t pid[MAX_PROCESSES];
	__u64 *pfn;
	char extra[80], name[32];
	bool ok = true;
	char *base;
	char b;

	base = make_thps(7);
	if (!base)
		return false;
	pfn = calloc(nr_thps, sizeof(*pfn));
	if (!pfn || pipe(ready) || pipe(go))
		ksft_exit_fail_msg("no memory or no pipe\n");
	note_frames(base, pfn);

	fflush(stdout);
	for (i = 0; i < children; i++) {
		pid[i] = fork();
		if (pid[i] < 0)
			ksft_exit_fail_msg("fork: %s\n", strerror(errno));
		if (!pid[i]) {
			/* A child must not wait for a dead parent. */
			close(go[1]);
			close(ready[0]);
			_exit(shared_child(i, base, len, ready[1], go[0]));
		}
	}
	close(ready[1]);
	for (i = 0; i < children; i++) {
		if (read(ready[0], &b, 1) != 1) {
			ksft_print_msg("a child failed before the split\n");
			ok = false;
		}
	}
	snprintf(extra, sizeof(extra), ",\"thps\":%zu,\"runs\":1,\"procs\":%d",
		 nr_thps, nr_processes);
	snprintf(name, sizeof(name), "split_shared%d", nr_processes);

	tlb_rs_begin(&c);
	ok &= split_thps(base, 0);
	tlb_rs_end(&c);
	tlb_rs_json_region(name, extra, &c);

	for (i = 0; i < children; i++)
		ok &= write(go[1], "", 1) == 1;
	for (i = 0; i < children; i++) {
		if (waitpid(pid[i], &status, 0) != pid[i] || status) {
			ksft_print_msg("child %d: status 0x%x\n", i, status);
			ok = false;
		}
	}
	ok &= check_split(base, pfn, 0);
	ok &= check_contents("parent", base, len, 7);
	close(ready[0]);
	close(go[0]);
	close(go[1]);
	free(pfn);
	free_range(base, len);
	return ok;
}

/* Fills a file with write(2), in pieces that fit large folios. */
static bool fill_file(int fd, size_t len, __u64 seed)
{
	char *buf = tlb_rs_mmap(len, thp_size);
	size_t off;

	tlb_rs_fill(buf, len, seed);
	for (off = 0; off < len; off += thp_size) {
		ssize_t written = write(fd, buf + off, thp_size);

		if (written != (ssize_t)thp_size) {
			ksft_print_msg("write: %s\n",
				       written < 0 ? strerror(errno) : "disk full");
			break;
		}
	}
	munmap(buf, len);
	return off == len;
}

/*
 * Maps a file one page beyond a 2 MiB boundary, so that no PMD can map it, and
 * touches all of it. A 2 MiB folio then has PTEs in two page tables.
 */
static char *map_odd(int fd, size_t len, int prot, char **res, size_t *res_len)
{
	size_t off;
	char *base;

	*res_len = len + thp_size;
	*res = tlb_rs_mmap(*res_len, thp_size);
	base = mmap(*res + psize, len, prot, MAP_SHARED | MAP_FIXED, fd, 0);
	if (base == MAP_FAILED)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	for (off = 0; off < len; off += psize) {
		if (prot & PROT_WRITE)
			__atomic_fetch_or(base + off, 0, __ATOMIC_RELAXED);
		else
			__atomic_load_n(base + off, __ATOMIC_RELAXED);
	}
	return base;
}

static int split_file_common(const char *name, const char *path, bool writable)
{
	size_t len = nr_thps * thp_size, res_len, large, left;
	int prot = PROT_READ | (writable ? PROT_WRITE : 0);
	struct tlb_rs_counters c;
	int ret = KSFT_FAIL;
	char *base, *res;
	char extra[120];
	bool ok;
	int fd;

	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0) {
		ksft_print_msg("%s: %s\n", path, strerror(errno));
		return KSFT_FAIL;
	}
	unlink(path);
	snprintf(extra, sizeof(extra), "/proc/%d/fd/%d", getpid(), fd);
	path = extra;
	if (!fill_file(fd, len, 9) || fsync(fd))
		goto close;

	base = map_odd(fd, len, prot, &res, &res_len);
	large = count_large_pages(base, len);
	if (large < thp_pages) {
		ksft_print_msg("%zu pages of large folios\n", large);
		ret = KSFT_SKIP;
		goto unmap;
	}

	/* A fault on a page of the cache takes a reference and so prevents its split. */
	tlb_rs_readers_start(&readers, nr_readers, false, base, len);
	tlb_rs_begin(&c);
	ok = split_file(path, len / psize);
	tlb_rs_end(&c);
	tlb_rs_readers_end(&readers);

	ok &= check_contents("mapping", base, len, 9);
	left = count_large_pages(base, len);
	snprintf(extra, sizeof(extra),
		 ",\"thps\":%zu,\"large_pages\":%zu,\"large_pages_after\":%zu",
		 nr_thps, large, left);
	tlb_rs_json_region(name, extra, &c);

	/* The interface skips busy folios silently: most must be split. */
	if (left > large / 8) {
		ksft_print_msg("%zu of %zu pages still in large folios\n", left, large);
		ok = false;
	}
	if (writable) {
		tlb_rs_fill(base, len, 10);
		ok &= check_contents("rewritten", base, len, 10);
	}
	ret = ok ? KSFT_PASS : KSFT_FAIL;
unmap:
	munmap(res, res_len);
close:
	close(fd);
	return ret;
}

static int split_shmem(void)
{
	char dir[] = "/tmp/tlb_batch.XXXXXX";
	char path[64];
	int ret;

	mkdir("/tmp", 0777);
	if (!mkdtemp(dir))
		return KSFT_FAIL;
	if (mount("tmpfs", dir, "tmpfs", 0, "huge=always")) {
		ksft_print_msg("tmpfs with huge=always: %s\n", strerror(errno));
		rmdir(dir);
		return KSFT_SKIP;
	}
	snprintf(path, sizeof(path), "%s/file", dir);
	ret = split_file_common("split_shmem", path, true);
	umount2(dir, MNT_DETACH);
	rmdir(dir);
	return ret;
}

static int split_ext4(void)
{
	struct statfs st;
	char path[256];

	if (statfs(ext4_dir, &st) || st.f_type != EXT4_SUPER_MAGIC) {
		ksft_print_msg("no ext4 on %s\n", ext4_dir);
		return KSFT_SKIP;
	}
	snprintf(path, sizeof(path), "%s/tlb_batch_thp_split", ext4_dir);
	return split_file_common("split_ext4", path, false);
}

static int run_anon(void)
{
	return split_anon() ? KSFT_PASS : KSFT_FAIL;
}

static int run_mixed(void)
{
	return split_mixed() ? KSFT_PASS : KSFT_FAIL;
}

static int run_shared(void)
{
	return share_and_split() ? KSFT_PASS : KSFT_FAIL;
}

static int run_order4(void)
{
	return split_anon_once("split_order4", false, 4) ? KSFT_PASS : KSFT_FAIL;
}

static const struct {
	const char *name;
	int (*run)(void);
} variants[] = {
	{ "anon", run_anon },
	{ "mixed", run_mixed },
	{ "shared", run_shared },
	{ "order4", run_order4 },
	{ "shmem", split_shmem },
	{ "ext4", split_ext4 },
};

/* All repetitions of a variant are one test: the first that fails decides. */
static int run_variant(int (*run)(void))
{
	int i, ret = KSFT_PASS;

	for (i = 0; i < tlb_rs_repeats(pairs) && ret == KSFT_PASS; i++) {
		tlb_rs_repeat_begin(pairs, i);
		ret = run();
	}
	return ret;
}

static void help(const char *prog)
{
	printf("usage: %s [option]...\n"
	       "  [--variant NAME]... [--thps N] [--processes N] [--pairs P]\n"
	       "  [--readers K [--touch]] [--dir EXT4_DIR]\n",
	       prog);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "variant", required_argument, NULL, 'v' },
		{ "thps", required_argument, NULL, 't' },
		{ "processes", required_argument, NULL, 'n' },
		{ "pairs", required_argument, NULL, 'p' },
		{ "readers", required_argument, NULL, 'r' },
		{ "touch", no_argument, NULL, 'T' },
		{ "dir", required_argument, NULL, 'd' },
		{ "help", no_argument, NULL, 'h' },
		{ }
	};
	unsigned int wanted = 0;
	int opt, ret;
	size_t i;
	char size[32];

	ksft_print_header();
	while ((opt = getopt_long(argc, argv, "v:t:n:p:r:Td:h", options, NULL)) != -1) {
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
		case 't':
			nr_thps = tlb_rs_number(optarg, 1, 512);
			break;
		case 'n':
			nr_processes = tlb_rs_number(optarg, 1, MAX_PROCESSES);
			break;
		case 'p':
			pairs = tlb_rs_number(optarg, 0, 1000);
			break;
		case 'r':
			nr_readers = tlb_rs_number(optarg, 0, TLB_RS_MAX_READERS);
			break;
		case 'T':
			touch = true;
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
	if (!tlb_rs_read_file(THP_SYSFS "hpage_pmd_size", size, sizeof(size)))
		thp_size = strtoul(size, NULL, 10);
	thp_pages = thp_size / psize;
	if (!thp_size || !tlb_rs_thp_available())
		ksft_exit_skip("no transparent huge pages\n");
	split_fd = open(SPLIT_FILE, O_WRONLY | O_CLOEXEC);
	if (split_fd < 0)
		ksft_exit_skip("%s: %s\n", SPLIT_FILE, strerror(errno));
	tlb_rs_pin_cpu(0);
	tlb_rs_quiet();

	ksft_set_plan(__builtin_popcount(wanted));
	for (i = 0; i < ARRAY_SIZE(variants); i++) {
		char name[64];

		if (!(wanted & (1U << i)))
			continue;
		ret = run_variant(variants[i].run);
		snprintf(name, sizeof(name), "thp_split %s", variants[i].name);
		ksft_test_result_report(ret, "%s\n", name);
	}
	ksft_finished();
}
