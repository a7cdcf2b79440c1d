// SPDX-License-Identifier: GPL-2.0
/*
 * Moves large folios that are mapped by PTEs to and fro between nodes 0 and 1. One call is a
 * measured region: what it costs to unmap them, and to map them again. All contents are checked.
 *
 * mthp     256 anonymous folios of 64 KiB; with --size, 16 MiB in folios of that size
 * thp8     8 THPs of 2 MiB
 * thp1     one
 * file     256 folios of 64 KiB of an ext4 file, mapped read-only
 * unlike   256 anonymous folios of 64 KiB, in which no two neighbouring PTEs are alike. Here it
 *          is the first call: a folio that is unmapped page by page is split by the second.
 * load     32 THPs, and all else of the process, by migrate_pages(2), 24 times
 * hint     256 anonymous folios of 64 KiB are not moved: NUMA balancing has made them inaccessible,
 *          and one access to each brings them back
 *
 * In all others it is the third move_pages() call, of one address for each folio. Without the
 * batch the second call splits anonymous folios. Then the third is given each of their pages.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <linux/magic.h>

#include "tlb_rs.h"

#define SEED		13
#define LOAD_ROUNDS	24
/* Sizes of anonymous folios with pages of 4 KiB: at least four pages, and less than a THP. */
#define SMALLEST_KIB	16
#define LARGEST_KIB	1024

static int pairs;
static int nr_readers;
static const char *ext4_dir = "/mnt";
static size_t psize;
static struct tlb_rs_readers readers;

struct variant {
	const char *name;
	size_t size;		/* of a folio */
	size_t nr;		/* folios */
	bool (*prepare)(const struct variant *v, char *base, size_t len);
	int call;		/* that is measured; 0: by migrate_pages() */
	bool file;
	bool hint;
};

/* For each call: what it is told. */
static void **addrs;
static int *nodes;
static int *status;

/* Whole folios of @v? */
static size_t count_folios(const struct variant *v, const char *base)
{
	size_t i, n = 0;

	for (i = 0; i < v->nr; i++)
		n += tlb_rs_is_folio(base + i * v->size, v->size / psize);
	return n;
}

/* No other size of anonymous folio is made. */
static void choose_size(size_t size)
{
	char path[64];
	size_t kib;

	for (kib = SMALLEST_KIB; kib <= SZ_2M >> 10; kib *= 2) {
		snprintf(path, sizeof(path), THP_SYSFS "hugepages-%zukB/enabled", kib);
		tlb_rs_setting(path, size == kib << 10 ? "always" : "never");
	}
}

static bool prepare_mthp(const struct variant *v, char *base, size_t len)
{
	choose_size(v->size);
	if (!tlb_rs_bind_node(base, len, 0))
		return false;
	tlb_rs_fill(base, len, SEED);
	return count_folios(v, base) == v->nr;
}

/* mprotect() of a page in each takes the PMD apart. */
static bool prepare_thp(const struct variant *v, char *base, size_t len)
{
	size_t i;

	if (!prepare_mthp(v, base, len))
		return false;
	for (i = 0; i < v->nr; i++) {
		char *second = base + i * v->size + psize;

		if (mprotect(second, psize, PROT_READ) ||
		    mprotect(second, psize, PROT_READ | PROT_WRITE))
			return false;
	}
	madvise(base, len, MADV_NOHUGEPAGE);
	return !tlb_rs_smaps_kb(base, "AnonHugePages") && count_folios(v, base) == v->nr;
}

/*
 * A child that exits at once leaves all PTEs write-protected. A write by the only owner that
 * is left makes a PTE writable again, in place.
 */
static bool prepare_unlike(const struct variant *v, char *base, size_t len)
{
	int wstatus;
	size_t off;
	pid_t pid;

	if (!prepare_mthp(v, base, len))
		return false;
	pid = fork();
	if (!pid)
		_exit(0);
	if (pid < 0 || waitpid(pid, &wstatus, 0) != pid)
		return false;
	for (off = 0; off < len; off += 2 * psize)
		__atomic_fetch_or(base + off, 0, __ATOMIC_RELAXED);
	return count_folios(v, base) == v->nr;
}

static bool prepare_file(const struct variant *v, char *base, size_t len)
{
	char path[256];
	size_t off;
	bool ok;
	int fd;

	snprintf(path, sizeof(path), "%s/tlb_batch_folio_bench", ext4_dir);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		return false;
	unlink(path);
	tlb_rs_fill(base, len, SEED);
	/* A write makes a folio of its length. */
	for (off = 0; off < len; off += v->size) {
		if (write(fd, base + off, v->size) != (ssize_t)v->size)
			break;
	}
	ok = off == len && !fsync(fd) &&
	     mmap(base, len, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == base;
	close(fd);
	for (off = 0; ok && off < len; off += psize)
		__atomic_load_n(base + off, __ATOMIC_RELAXED);
	return ok && count_folios(v, base) == v->nr;
}

/* Of variants[]. */
#define MTHP	0

static struct variant variants[] = {
	{ "mthp", 64 << 10, 256, prepare_mthp, 3, false, false },
	{ "thp8", SZ_2M, 8, prepare_thp, 3, false, false },
	{ "thp1", SZ_2M, 1, prepare_thp, 3, false, false },
	{ "file", 64 << 10, 256, prepare_file, 3, true, false },
	{ "unlike", 64 << 10, 256, prepare_unlike, 1, false, false },
	{ "load", SZ_2M, 32, prepare_thp, 0, false, false },
	{ "hint", 64 << 10, 256, prepare_mthp, 0, false, true },
};

/* What a call is told: one address for each folio or page, and its node. */
static size_t choose_pages(const char *base, size_t len, int node)
{
	size_t off, n = 0;

	for (off = 0; off < len; off += psize) {
		if (tlb_rs_kpageflags(tlb_rs_pfn(base + off)) & (1ULL << KPF_COMPOUND_TAIL))
			continue;
		addrs[n] = (void *)(base + off);
		nodes[n] = node;
		status[n++] = -1;
	}
	return n;
}

static bool move_to(size_t nr, int node)
{
	size_t i, failed = 0;
	long ret;

	ret = tlb_rs_move_pages(0, nr, addrs, nodes, status);
	for (i = 0; i < nr; i++)
		failed += status[i] != node;
	if (ret || failed)
		ksft_print_msg("move_pages: %ld, %zu of %zu failed\n", ret, failed, nr);
	return !ret && !failed;
}

/* All but the last of the calls are not measured. */
static bool move_by_pages(const struct variant *v, char *base, size_t len,
			  struct tlb_rs_counters *c)
{
	int call, node = 1;
	bool ok = true;
	size_t nr;

	tlb_rs_readers_start(&readers, nr_readers, false, base, len);
	for (call = 1; call < v->call && ok; call++, node = !node)
		ok = move_to(choose_pages(base, len, node), node);
	nr = choose_pages(base, len, node);

	tlb_rs_begin(c);
	ok &= move_to(nr, node);
	tlb_rs_end(c);
	tlb_rs_readers_end(&readers);
	return ok;
}

static bool move_process(const char *base, size_t len, struct tlb_rs_counters *c)
{
	unsigned long mask[2] = { 1, 2 };
	bool ok = true;
	size_t i, n;
	int round;

	tlb_rs_readers_start(&readers, nr_readers, false, base, len);
	tlb_rs_begin(c);
	for (round = 0; round < LOAD_ROUNDS; round++)
		ok &= syscall(SYS_migrate_pages, 0, 8 * sizeof(mask[0]) + 1, &mask[round & 1],
			      &mask[!(round & 1)]) >= 0;
	tlb_rs_end(c);
	tlb_rs_readers_end(&readers);

	/* An even number of rounds: they are back. */
	n = choose_pages(base, len, 0);
	if (tlb_rs_move_pages(0, n, addrs, NULL, status))
		return false;
	for (i = 0; i < n; i++)
		ok &= status[i] == 0;
	if (!ok)
		ksft_print_msg("migrate_pages() left pages behind\n");
	return ok;
}

static void *sleeper(void *arg)
{
	(void)arg;
	pause();
	return NULL;
}

static bool touch_folios(const struct variant *v, const char *base, size_t len,
			 struct tlb_rs_counters *c)
{
	/* Else pages that are near are not scanned. */
	static pthread_t other;
	bool ok;
	size_t i;

	if (!tlb_rs_numa_scans() || (!other && pthread_create(&other, NULL, sleeper, NULL)))
		return false;
	if (syscall(SYS_mbind, base, len, 0 /* MPOL_DEFAULT */, NULL, 0UL, 0U))
		return false;
	ok = tlb_rs_numa_scan(len / psize);
	tlb_rs_begin(c);
	for (i = 0; i < v->nr; i++)
		__atomic_load_n(base + i * v->size, __ATOMIC_RELAXED);
	tlb_rs_end(c);
	return ok;
}

static bool check(const char *when, const char *base, size_t len, __u64 seed)
{
	size_t bad = tlb_rs_check(base, len, seed);

	if (bad)
		ksft_print_msg("%s: %zu wrong words\n", when, bad);
	return !bad;
}

static int run_once(const struct variant *v)
{
	size_t len = v->nr * v->size, whole;
	struct tlb_rs_counters c;
	int ret = KSFT_FAIL;
	char extra[120];
	char name[32];
	char *base;
	bool ok;

	base = tlb_rs_mmap(len, SZ_2M);
	if (!v->prepare(v, base, len)) {
		ksft_print_msg("no folios of %zu KiB for %s\n", v->size >> 10, v->name);
		goto out;
	}
	tlb_rs_drain_pages();
	if (v->hint)
		ok = touch_folios(v, base, len, &c);
	else if (v->call)
		ok = move_by_pages(v, base, len, &c);
	else
		ok = move_process(base, len, &c);

	whole = count_folios(v, base);
	snprintf(name, sizeof(name), v->hint ? "%s" : v->call ? "move_%s" : "migrate_%s", v->name);
	snprintf(extra, sizeof(extra),
		 ",\"units\":%lld,\"folios\":%zu,\"folio_kib\":%zu,\"whole\":%zu,\"readers\":%d",
		 v->hint ? (long long)(len / psize) : c.vmstat[TLB_RS_VMSTAT_MIGRATED], v->nr,
		 v->size >> 10, whole, nr_readers);
	tlb_rs_json_region(name, extra, &c);

	/* With the batch, which x86 has for other CPUs only, and neighbours that are alike. */
	if (c.vmstat[TLB_RS_VMSTAT_PAGES] > 0 && v->prepare != prepare_unlike && whole != v->nr) {
		ksft_print_msg("%zu of %zu folios were split\n", v->nr - whole, v->nr);
		ok = false;
	}
	ok &= check("moved", base, len, SEED);
	if (!v->file) {
		tlb_rs_fill(base, len, SEED + 1);
		ok &= check("rewritten", base, len, SEED + 1);
	}
	if (ok)
		ret = KSFT_PASS;
out:
	munmap(base, len);
	return ret;
}

/* All repetitions of a variant are one test: the first that fails decides. */
static int run_variant(const struct variant *v)
{
	struct statfs st;
	int i, ret = KSFT_PASS;

	if (v->file && (statfs(ext4_dir, &st) || st.f_type != EXT4_SUPER_MAGIC)) {
		ksft_print_msg("no ext4 on %s\n", ext4_dir);
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
	       "  [--variant NAME]... [--folios N] [--size KIB] [--pairs P]\n"
	       "  [--readers K [--idle]] [--dir EXT4_DIR]\n",
	       prog);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "variant", required_argument, NULL, 'v' },
		{ "folios", required_argument, NULL, 'f' },
		{ "size", required_argument, NULL, 's' },
		{ "pairs", required_argument, NULL, 'p' },
		{ "readers", required_argument, NULL, 'r' },
		{ "idle", no_argument, NULL, 'i' },
		{ "dir", required_argument, NULL, 'd' },
		{ "help", no_argument, NULL, 'h' },
		{ }
	};
	unsigned int wanted = 0;
	size_t i, kib, most = 0, folios = 0;
	int opt;

	ksft_print_header();
	while ((opt = getopt_long(argc, argv, "v:f:s:p:r:id:h", options, NULL)) != -1) {
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
		case 'f':
			folios = tlb_rs_number(optarg, 1, 256);
			break;
		case 's':
			kib = tlb_rs_number(optarg, SMALLEST_KIB, LARGEST_KIB);
			if (kib & (kib - 1))
				ksft_exit_fail_msg("--size %zu: no power of two\n", kib);
			variants[MTHP].nr *= variants[MTHP].size / 1024;
			variants[MTHP].nr /= kib;
			variants[MTHP].size = kib << 10;
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
	if ((tlb_rs_memory_nodes() & 3) != 3)
		ksft_exit_skip("needs memory on nodes 0 and 1\n");
	if (psize != 4096 || !tlb_rs_thp_available())
		ksft_exit_skip("needs pages of 4 KiB and transparent huge pages\n");
	for (i = 0; i < ARRAY_SIZE(variants); i++) {
		if (folios)
			variants[i].nr = folios;
		if (variants[i].nr * variants[i].size / psize > most)
			most = variants[i].nr * variants[i].size / psize;
	}
	addrs = calloc(most, sizeof(*addrs));
	nodes = calloc(most, sizeof(*nodes));
	status = calloc(most, sizeof(*status));
	if (!addrs || !nodes || !status)
		ksft_exit_fail_msg("no memory\n");
	tlb_rs_pin_cpu(0);
	tlb_rs_quiet();

	ksft_set_plan(__builtin_popcount(wanted));
	for (i = 0; i < ARRAY_SIZE(variants); i++) {
		if (wanted & (1U << i))
			ksft_test_result_report(run_variant(&variants[i]), "folio_bench %s\n",
						variants[i].name);
	}
	ksft_finished();
}
