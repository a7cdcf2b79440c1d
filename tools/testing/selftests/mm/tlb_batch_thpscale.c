// SPDX-License-Identifier: GPL-2.0
/*
 * Latency of huge page faults in fragmented memory, in the shape of mmtests'
 * thpscale: N threads each map a part of a region and touch one byte of each
 * 2 MiB of it.
 *
 * All memory but a little is first filled with folios of 1 MiB. Every other one
 * is given back, and the last eighth of each that is left: memory is half free,
 * but hardly any 2 MiB of it are, and the folios that are in the way are PTE-mapped
 * and only in part. So a fault compacts, which splits these folios and then moves
 * their pages. A row in which none was split says nothing, and fails.
 *
 * A row is a measured region, from before the first fault until after the last.
 */
#define _GNU_SOURCE
#include <getopt.h>

#include "tlb_rs.h"

#define MAX_THREADS	64
#define MAX_TRIES	8
#define FOLIO		(SZ_2M / 2)
#define HOLE		(FOLIO / 8)
#define FOLIO_ENABLED	THP_SYSFS "hugepages-1024kB/enabled"
#define FOLIO_SPLITS	THP_SYSFS "hugepages-1024kB/stats/split"
#define THP_ENABLED	THP_SYSFS "hugepages-2048kB/enabled"

static size_t psize;
static size_t fill_percent = 96;	/* of the free memory */
static size_t fault_percent = 15;	/* of what was filled, in 2 MiB */
static int rounds = 1;

struct worker {
	pthread_t id;
	char *base;
	size_t thps;
	size_t huge, bad;
	__u64 huge_ns, base_ns;
};

static struct worker workers[MAX_THREADS];
static pthread_barrier_t barrier;

/* Is the second small page there, too? */
static bool is_huge(char *addr)
{
	unsigned char there = 0;

	return !mincore(addr + psize, psize, &there) && there & 1;
}

static void *work(void *arg)
{
	struct worker *w = arg;
	size_t i;

	tlb_rs_pin_cpu((w - workers) % tlb_rs_nr_cpus());
	pthread_barrier_wait(&barrier);
	for (i = 0; i < w->thps; i++) {
		char *addr = w->base + i * SZ_2M;
		__u64 ns = tlb_rs_now_ns();

		memset(addr, 1 + i % 100, 1);
		ns = tlb_rs_now_ns() - ns;
		if (is_huge(addr)) {
			w->huge++;
			w->huge_ns += ns;
		} else {
			w->base_ns += ns;
		}
	}
	pthread_barrier_wait(&barrier);
	for (i = 0; i < w->thps; i++)
		w->bad += w->base[i * SZ_2M] != (char)(1 + i % 100);
	return NULL;
}

/* Fills memory with @nr folios, and makes holes; a word in each page that stays. */
static char *fragment(size_t nr)
{
	char *base = tlb_rs_mmap(nr * FOLIO, SZ_2M);
	size_t i, off, large = 0;

	tlb_rs_write_file(THP_ENABLED, "never");
	tlb_rs_write_file(FOLIO_ENABLED, "madvise");
	madvise(base, nr * FOLIO, MADV_HUGEPAGE);
	for (i = 0; i < nr; i++) {
		base[i * FOLIO] = 1;
		large += tlb_rs_is_large(base + i * FOLIO);
	}
	if (large < nr - nr / 8)
		ksft_exit_skip("only %zu of %zu folios of 1 MiB\n", large, nr);
	for (i = 0; i < nr; i++) {
		char *folio = base + i * FOLIO;

		if (i & 1)
			madvise(folio, FOLIO, MADV_DONTNEED);
		else
			madvise(folio + FOLIO - HOLE, HOLE, MADV_DONTNEED);
		for (off = 0; !(i & 1) && off < FOLIO - HOLE; off += psize)
			*(__u64 *)(folio + off) = tlb_rs_word(i, off);
	}
	tlb_rs_write_file(FOLIO_ENABLED, "never");
	tlb_rs_write_file(THP_ENABLED, "madvise");
	return base;
}

static size_t check_fragments(const char *base, size_t nr)
{
	size_t i, off, bad = 0;

	for (i = 0; i < nr; i += 2) {
		for (off = 0; off < FOLIO - HOLE; off += psize)
			bad += *(__u64 *)(base + i * FOLIO + off) != tlb_rs_word(i, off);
	}
	return bad;
}

/* Uses up the free huge pages: from here on, each is made by compaction. */
static void compaction_begin(char *base, size_t max)
{
	long long before = tlb_rs_vmstat_read("compact_success");
	size_t i;

	for (i = 0; i < max && tlb_rs_vmstat_read("compact_success") == before; i++)
		base[i * SZ_2M] = 1;
}

/* Folios of the size that fills memory which were split since boot. */
static long splits(void)
{
	char buf[32];

	if (tlb_rs_read_file(FOLIO_SPLITS, buf, sizeof(buf)))
		ksft_exit_skip("no %s\n", FOLIO_SPLITS);
	return atol(buf);
}

/*
 * Compaction goes on where it was the last time; when it comes to the end of
 * memory it gives up for a while, and faults get small pages at once. A row
 * in which that happened is not complete, and is measured again.
 */
static enum row { FAILED, INCOMPLETE, COMPLETE } run_row(int threads, int round)
{
	static const char * const events[] = {
		"compact_stall", "compact_fail", "pgmigrate_success", "allocstall_normal",
	};
	size_t folios, spare, total, i, huge = 0, bad = 0, len = 0;
	long long event[ARRAY_SIZE(events)];
	__u64 huge_ns = 0, base_ns = 0;
	struct tlb_rs_counters c;
	char *frag, *base, *more;
	char extra[512];
	bool complete;
	long split;
	int t;

	tlb_rs_drain_lru();
	folios = (tlb_rs_meminfo_kb(MEMINFO, "MemFree") << 10) / 100 * fill_percent / FOLIO;
	spare = folios / 4;
	total = folios / 2 * fault_percent / 100 / threads * threads;
	if (total < (size_t)threads)
		ksft_exit_skip("not enough memory for %d threads\n", threads);
	frag = fragment(folios);
	base = tlb_rs_mmap(total * SZ_2M, SZ_2M);
	more = tlb_rs_mmap(spare * SZ_2M, SZ_2M);
	madvise(base, total * SZ_2M, MADV_HUGEPAGE);
	madvise(more, spare * SZ_2M, MADV_HUGEPAGE);
	compaction_begin(more, spare);

	pthread_barrier_init(&barrier, NULL, threads + 1);
	for (t = 0; t < threads; t++) {
		workers[t] = (struct worker) {
			.base = base + t * (total / threads) * SZ_2M,
			.thps = total / threads,
		};
		if (pthread_create(&workers[t].id, NULL, work, &workers[t]))
			ksft_exit_fail_msg("cannot start a thread\n");
	}
	for (i = 0; i < ARRAY_SIZE(events); i++)
		event[i] = tlb_rs_vmstat_read(events[i]);
	split = splits();
	tlb_rs_begin(&c);
	pthread_barrier_wait(&barrier);
	pthread_barrier_wait(&barrier);
	tlb_rs_end(&c);
	split = splits() - split;
	for (i = 0; i < ARRAY_SIZE(events); i++)
		event[i] = tlb_rs_vmstat_read(events[i]) - event[i];

	for (t = 0; t < threads; t++) {
		pthread_join(workers[t].id, NULL);
		huge += workers[t].huge;
		bad += workers[t].bad;
		huge_ns += workers[t].huge_ns;
		base_ns += workers[t].base_ns;
	}
	pthread_barrier_destroy(&barrier);
	complete = huge >= total - total / 10;
	len = snprintf(extra, sizeof(extra),
		       ",\"threads\":%d,\"round\":%d,\"complete\":%d,\"folios\":%zu,\"splits\":%ld,\"units\":%zu,\"huge\":%zu,\"both_ns\":%llu,\"huge_ns\":%llu,\"base_ns\":%llu",
		       threads, round, complete, folios, split, total, huge,
		       (huge_ns + base_ns) / total, huge ? huge_ns / huge : 0,
		       total > huge ? base_ns / (total - huge) : 0);
	for (i = 0; i < ARRAY_SIZE(events); i++)
		len += snprintf(extra + len, sizeof(extra) - len, ",\"%s\":%lld", events[i],
				event[i]);
	tlb_rs_json_region("thpscale", extra, &c);

	bad += check_fragments(frag, folios);
	munmap(base, total * SZ_2M);
	munmap(more, spare * SZ_2M);
	munmap(frag, folios * FOLIO);
	if (bad)
		ksft_print_msg("%zu wrong words\n", bad);
	if (split <= 0)
		ksft_print_msg("no folio was split\n");
	if (bad || split <= 0)
		return FAILED;
	return complete ? COMPLETE : INCOMPLETE;
}

static bool measure(int threads, int round)
{
	enum row ret = INCOMPLETE;
	int i;

	for (i = 0; i < MAX_TRIES && ret == INCOMPLETE; i++)
		ret = run_row(threads, round);
	if (ret == INCOMPLETE)
		ksft_print_msg("compaction gave up %d times\n", i);
	return ret == COMPLETE;
}

static void help(const char *prog)
{
	printf("usage: %s [option]...\n"
	       "  [--threads N]... [--rounds R] [--same] [--fill PERCENT] [--fault PERCENT]\n",
	       prog);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "threads", required_argument, NULL, 't' },
		{ "rounds", required_argument, NULL, 'r' },
		{ "same", no_argument, NULL, 's' },
		{ "fill", required_argument, NULL, 'f' },
		{ "fault", required_argument, NULL, 'F' },
		{ "help", no_argument, NULL, 'h' },
		{ }
	};
	int threads[16] = { 1, 3, 5, 7, 12, 18, 24, 30, 32 };
	int modes[3], nr_modes = 0, nr = 9, asked = 0;
	int opt, mode, row, round, i;
	bool same = false;

	ksft_print_header();
	while ((opt = getopt_long(argc, argv, "t:r:sf:F:h", options, NULL)) != -1) {
		switch (opt) {
		case 't':
			if (asked == ARRAY_SIZE(threads))
				ksft_exit_fail_msg("too many rows\n");
			threads[asked++] = tlb_rs_number(optarg, 1, MAX_THREADS);
			nr = asked;
			break;
		case 'r':
			rounds = tlb_rs_number(optarg, 1, 1000);
			break;
		case 's':
			same = true;
			break;
		case 'f':
			fill_percent = tlb_rs_number(optarg, 10, 99);
			break;
		case 'F':
			fault_percent = tlb_rs_number(optarg, 1, 60);
			break;
		case 'h':
			help(argv[0]);
			return 0;
		default:
			help(argv[0]);
			return KSFT_FAIL;
		}
	}

	psize = getpagesize();
	if (psize * THP_PAGES != SZ_2M)
		ksft_exit_skip("needs 4 KiB pages\n");
	if (!tlb_rs_thp_available())
		ksft_exit_skip("no transparent huge pages\n");
	/* A fault shall do the work itself rather than leave it to a kernel thread. */
	tlb_rs_setting(THP_SYSFS "defrag", "always");
	tlb_rs_setting(THP_SYSFS "shrink_underused", "0");
	if (!tlb_rs_setting(FOLIO_ENABLED, "never") || !tlb_rs_setting(THP_ENABLED, "madvise"))
		ksft_exit_skip("no anonymous folios of 1 MiB\n");
	tlb_rs_quiet();

	/*
	 * Unbatched only where the kernel has that mode; all in turn, none
	 * always first. Or the switch stays as it is.
	 */
	for (mode = -1; !same && mode <= 1; mode++) {
		if (tlb_batch_set(mode))
			modes[nr_modes++] = mode;
	}
	ksft_set_plan(nr);
	for (row = 0; row < nr; row++) {
		bool ok = true;

		for (round = 0; round < rounds; round++) {
			if (!nr_modes)
				ok &= measure(threads[row], round);
			for (i = 0; i < nr_modes; i++) {
				tlb_batch_set(modes[(round + i) % nr_modes]);
				ok &= measure(threads[row], round);
			}
		}
		ksft_test_result(ok, "thpscale %d threads\n", threads[row]);
	}
	ksft_finished();
}
