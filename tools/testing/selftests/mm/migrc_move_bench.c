// SPDX-License-Identifier: GPL-2.0
/*
 * What deferred flushes save, in pairs within one boot: vm.migrc_enable is 0, 1, 0,
 * 1 ... Each region is one JSON record; the TLB meter adds what was executed in it.
 *
 * once    N neighbouring read-only pages move to the other node in one call
 * rounds  250 read-only pages, or N if that is less, move to and fro one at a time, in
 *         4 rounds (--rounds)
 *         Both regions end with a write of 0 to vm.migrc_enable, so they contain
 *         every flush that was deferred. This patches code, which on arm64 takes
 *         TLBIs of kernel addresses. Readers on other CPUs have the pages in their
 *         TLBs.
 * ro, rw  the time of such a move of read-only and of writable memory, without the
 *         drain. A summary gives the median and the quartiles of the ratio on/off.
 *
 * The age cap is that of --age, 1000 ms unless told. A flush for age in the region is
 * allowed: at most one for each cap that has passed.
 */
#define _GNU_SOURCE
#include "migrc.h"

#define SINGLE_PAGES	250
#define MAX_PAIRS	1000
#define SEED		3

static size_t nr_pages = 4096;
static int pairs = 7;
static int single_rounds = 4;
static int nr_readers = 3;
static long age_ms = 1000;
static size_t psize;
static struct tlb_rs_readers readers;

struct sample {
	struct tlb_rs_counters c;
	struct migrc_counters d;
	size_t moved;
	__u64 drain_ns;
};

static void json(const char *region, int on, size_t pages, const struct sample *s)
{
	char extra[320], *p = extra, *last = extra + sizeof(extra);

	p += snprintf(p, last - p, ",\"migrc\":%d,\"pages\":%zu,\"moved\":%zu,\"readers\":%d", on,
		      pages, s->moved, nr_readers);
	p += snprintf(p, last - p, ",\"drain_ns\":%llu,\"deferred\":%lld,\"denied\":%lld",
		      s->drain_ns, s->d.val[MIGRC_DEFERRED], s->d.val[MIGRC_DENIED]);
	snprintf(p, last - p, ",\"migrc_flush\":%lld,\"drain_age\":%lld", s->d.val[MIGRC_FLUSH],
		 s->d.val[MIGRC_DRAIN_AGE]);
	tlb_rs_json_region(region, extra, &s->c);
}

static char *make(struct migrc_set *set, size_t nr, bool readonly)
{
	char *base = migrc_mmap(nr, 0, SEED);

	if (readonly && mprotect(base, nr * psize, PROT_READ))
		ksft_exit_fail_msg("mprotect: %s\n", strerror(errno));
	migrc_set_init(set, base, nr);
	/* Touched here, so that nothing faults within the region. */
	migrc_move(set, 0, 0, MPOL_MF_MOVE);
	tlb_rs_readers_start(&readers, nr_readers, false, base, nr * psize);
	return base;
}

static bool end(struct migrc_set *set, char *base)
{
	bool ok;

	tlb_rs_readers_end(&readers);
	ok = !tlb_rs_check(base, set->nr * psize, SEED);
	if (!ok)
		ksft_print_msg("wrong contents\n");
	munmap(base, set->nr * psize);
	migrc_set_free(set);
	return ok;
}

static size_t move_once(struct migrc_set *set)
{
	return migrc_move(set, 0, 1, MPOL_MF_MOVE);
}

static size_t move_rounds(struct migrc_set *set)
{
	struct migrc_set one = *set;
	size_t i, n = 0;
	int round;

	one.nr = 1;
	for (round = 0; round < single_rounds; round++) {
		for (i = 0; i < set->nr; i++) {
			one.addrs = set->addrs + i;
			n += migrc_move(&one, 0, !(round & 1), MPOL_MF_MOVE);
		}
	}
	return n;
}

/* All that was deferred is flushed at the end of the region. */
static bool closed(const char *name, size_t pages, size_t moves,
		   size_t (*move)(struct migrc_set *set))
{
	bool ok = true;
	int i;

	for (i = 0; i < tlb_rs_repeats(pairs) && ok; i++) {
		int on = pairs ? i & 1 : 1;
		struct migrc_counters before;
		struct sample s = { };
		struct migrc_set set;
		long long allowed;
		__u64 start;
		char *base;

		base = make(&set, pages, true);
		migrc_write(MIGRC_ENABLE, on);
		migrc_read(&before);
		tlb_rs_begin(&s.c);
		s.moved = move(&set);
		start = tlb_rs_now_ns();
		migrc_write(MIGRC_ENABLE, 0);
		s.drain_ns = tlb_rs_now_ns() - start;
		tlb_rs_end(&s.c);
		migrc_diff(&before, &s.d);
		json(name, on, pages, &s);

		ok = end(&set, base) && s.moved == moves && !migrc_held(-1);
		if (!on)
			continue;
		allowed = 2 + s.c.ns / (age_ms * 1000000ULL);
		if (s.d.val[MIGRC_DEFERRED] < (long long)moves * 9 / 10 ||
		    s.d.val[MIGRC_FLUSH] > allowed) {
			ksft_print_msg("%s: %lld of %zu pages deferred, %lld flushes, limit %lld\n",
				       name, s.d.val[MIGRC_DEFERRED], moves,
				       s.d.val[MIGRC_FLUSH], allowed);
			ok = false;
		}
	}
	return ok;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* Between the two nearest samples. */
static double quantile(const double *sorted, int nr, double q)
{
	double at = q * (nr - 1);
	int i = (int)at;

	return i + 1 < nr ? sorted[i] + (at - i) * (sorted[i + 1] - sorted[i]) : sorted[i];
}

static bool timed(const char *name, bool readonly)
{
	static double ratios[MAX_PAIRS];
	__u64 off_ns = 0;
	bool ok = true;
	int i;

	for (i = 0; i < tlb_rs_repeats(pairs) && ok; i++) {
		int on = pairs ? i & 1 : 1;
		struct migrc_counters before;
		struct sample s = { };
		struct migrc_set set;
		__u64 start;
		char *base;

		base = make(&set, nr_pages, readonly);
		migrc_write(MIGRC_ENABLE, on);
		migrc_read(&before);
		tlb_rs_begin(&s.c);
		s.moved = move_once(&set);
		tlb_rs_end(&s.c);
		migrc_diff(&before, &s.d);
		start = tlb_rs_now_ns();
		migrc_write(MIGRC_ENABLE, 0);
		s.drain_ns = tlb_rs_now_ns() - start;
		json(name, on, nr_pages, &s);

		ok = end(&set, base) && s.moved == nr_pages;
		if (on && readonly)
			ok &= s.d.val[MIGRC_DEFERRED] > 0;
		if (!on)
			off_ns = s.c.ns;
		else if (pairs)
			ratios[i / 2] = (double)s.c.ns / off_ns;
	}
	if (!ok || !pairs)
		return ok;
	qsort(ratios, pairs, sizeof(*ratios), compare);
	printf("{\"summary\":\"%s\",\"pairs\":%d,\"ratio_q1\":%.4f", name, pairs,
	       quantile(ratios, pairs, 0.25));
	printf(",\"ratio_median\":%.4f,\"ratio_q3\":%.4f}\n", quantile(ratios, pairs, 0.5),
	       quantile(ratios, pairs, 0.75));
	return true;
}

static void help(const char *prog)
{
	printf("usage: %s [option]...\n"
	       "  [--case once|rounds|ro|rw] [--pages N] [--pairs P] [--readers K] [--age MS]\n"
	       "  [--rounds N]\n"
	       "--pairs 0: once, with migrc\n",
	       prog);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "case", required_argument, NULL, 'c' },
		{ "pages", required_argument, NULL, 'n' },
		{ "pairs", required_argument, NULL, 'p' },
		{ "readers", required_argument, NULL, 'r' },
		{ "age", required_argument, NULL, 'a' },
		{ "rounds", required_argument, NULL, 'R' },
		{ "help", no_argument, NULL, 'h' },
		{ }
	};
	static const char * const names[] = { "once", "rounds", "ro", "rw" };
	const char *only = NULL;
	size_t i, singles, nr = 0;
	int opt;

	ksft_print_header();
	while ((opt = getopt_long(argc, argv, "c:n:p:r:a:R:h", options, NULL)) != -1) {
		switch (opt) {
		case 'c':
			only = optarg;
			break;
		case 'n':
			nr_pages = tlb_rs_number(optarg, 1, 1 << 16);
			break;
		case 'p':
			pairs = tlb_rs_number(optarg, 0, MAX_PAIRS);
			break;
		case 'r':
			nr_readers = tlb_rs_number(optarg, 0, TLB_RS_MAX_READERS);
			break;
		case 'a':
			age_ms = tlb_rs_number(optarg, 1, 60000);
			break;
		case 'R':
			single_rounds = tlb_rs_number(optarg, 1, 1000);
			break;
		case 'h':
			help(argv[0]);
			return 0;
		default:
			help(argv[0]);
			return KSFT_FAIL;
		}
	}

	for (i = 0; i < ARRAY_SIZE(names); i++)
		nr += !only || !strcmp(only, names[i]);
	if (!nr)
		ksft_exit_fail_msg("no case '%s'\n", only);
	/* The default of vm.migrc_max_pages: it is a part of what is measured. */
	migrc_init(2, 0, age_ms);
	psize = getpagesize();
	singles = nr_pages < SINGLE_PAGES ? nr_pages : SINGLE_PAGES;
	tlb_rs_pin_cpu(0);

	ksft_set_plan(nr);
	for (i = 0; i < ARRAY_SIZE(names); i++) {
		bool ok;

		if (only && strcmp(only, names[i]))
			continue;
		if (i == 0)
			ok = closed("migrc_once", nr_pages, nr_pages, move_once);
		else if (i == 1)
			ok = closed("migrc_rounds", singles, singles * single_rounds, move_rounds);
		else
			ok = timed(i == 2 ? "migrc_ro" : "migrc_rw", i == 2);
		ksft_test_result(ok, "migrc_move_bench %s\n", names[i]);
	}
	ksft_finished();
}
