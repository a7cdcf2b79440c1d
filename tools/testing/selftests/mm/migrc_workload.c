// SPDX-License-Identifier: GPL-2.0
/*
 * What deferred flushes save where memory moves while it is used, in pairs within one
 * boot: a half without migrc and one with it, in turn the other way round. In each half
 * every page moves to and fro between two nodes, after a warm-up in which it moved twice.
 * Each half is one JSON record.
 *
 * lookup  threads read at random in tables that were written once, in anonymous memory
 *         (the shape of a cross-section kernel of Monte Carlo transport)
 * file    threads read a file on disk through mmap(), nine of ten times in a tenth of it
 *         (the shape of inference on mapped weights)
 * procs   one process for each CPU but the first, and another one after 200 ms of CPU time:
 *         about 50 in a half. Each is executed from the same file, runs through the same
 *         library, and exits. Both files move. --procs: so many at any time
 * store   threads write at random, nine of ten times: nothing can be deferred
 *
 * Who moves the pages, --by:
 *
 * move     the mover, on CPU 0, calls move_pages() all the time. From one call to the next
 *          it waits, busily, for a quarter longer than a call takes (with migrc or without,
 *          whatever is more): the others see as many moves each second with migrc as
 *          without, and CPU 0 is as busy
 * balance  NUMA balancing, after the threads have gone to the other node (not of files)
 * damon    DAMON, to one node and then to the other one
 *
 * The pages of files are read one by one (MADV_RANDOM, as where a program knows that it
 * will read at random): arm64 maps the large folios of readahead, and those of 64 KiB that
 * it has for what is executed, as contiguous blocks, whose flushes are not deferred.
 * --large has them.
 *
 * What is held at the end of a half is drained in it. Of a drain each address space counts
 * as one flush (migrc_flush), of a batch all of them together (tlb_batch_flush).
 */
#include "migrc_damon.h"
#include "migrc_workload.h"

enum mover by;

static const char * const movers[] = { "move", "balance", "damon" };

const char *dir = "/mnt";
size_t nr_pages = 512;
size_t call_pages = 512;
size_t block_pages = 32;
static int nr_threads;
int nr_procs;
static int pairs = 7;
static int moves = 20;
static int pace = 125;
static long age_ms = 1000;
bool large;
bool protect;
static bool readmostly;
size_t psize;
char *base;
struct migrc_set set;
const struct workload *load_now;
__u64 interval_ns;

struct shared *shared;

/* The tracepoint of drains, since the last look. */
struct drains {
	long long most_pages;
	long long worst_ns;
	long long mms;
};

static void drains_begin(void)
{
	int fd = open(TRACING "trace", O_WRONLY | O_TRUNC | O_CLOEXEC);

	if (fd >= 0)
		close(fd);
}

static bool drains_read(struct drains *d)
{
	FILE *f = fopen(TRACING "trace", "r");
	long long pages, mms, ns;
	char line[512];

	memset(d, 0, sizeof(*d));
	if (!f)
		return false;
	while (fgets(line, sizeof(line), f)) {
		char *p = strstr(line, "migrc_drain: ");

		if (!p || sscanf(p, DRAIN, &pages, &mms, &ns) != 3)
			continue;
		d->mms += mms;
		d->most_pages = pages > d->most_pages ? pages : d->most_pages;
		d->worst_ns = ns > d->worst_ns ? ns : d->worst_ns;
	}
	fclose(f);
	return true;
}

static struct {
	long long moved, deferred;	/* while migrc was on */
} total;

static size_t half(const struct workload *w, int pair, int on)
{
	static struct migrc_stats stats;
	struct migrc_counters before, d;
	struct tlb_rs_counters c;
	struct drains drains;
	long long held, moved;
	__u64 n, ns;

	migrc_write(MIGRC_ENABLE, on);
	move_all(2);
	migrc_expire();
	migrc_stats_read(&stats);
	migrc_read(&before);
	moved = tlb_rs_vmstat_read("pgmigrate_success");
	drains_begin();
	tlb_rs_begin(&c);
	ns = tlb_rs_now_ns();
	n = all_ops();
	held = move_all(moves);
	n = all_ops() - n;
	ns = tlb_rs_now_ns() - ns;
	migrc_expire();
	tlb_rs_end(&c);
	moved = tlb_rs_vmstat_read("pgmigrate_success") - moved;
	migrc_diff(&before, &d);
	if (on) {
		total.moved += moved;
		total.deferred += d.val[MIGRC_DEFERRED];
	}

	record_begin();
	record_add(",\"by\":\"%s\"", movers[by]);
	record_add(",\"migrc\":%d,\"pair\":%d,\"threads\":%d,\"pages\":%zu,\"block\":%zu", on,
		   pair, w->procs ? nr_procs : nr_threads, set.nr, block_pages);
	record_add(",\"readmostly\":%d,\"protect\":%d", readmostly, protect);
	record_add(",\"moved\":%lld,\"ops\":%llu,\"ops_ns\":%llu", moved, n, ns);
	record_add(",\"deferred\":%lld,\"denied\":%lld,\"migrc_flush\":%lld",
		   d.val[MIGRC_DEFERRED], d.val[MIGRC_DENIED], d.val[MIGRC_FLUSH]);
	record_add_stats(&stats);
	if (drains_read(&drains)) {
		held = drains.most_pages > held ? drains.most_pages : held;
		record_add(",\"worst_drain_ns\":%lld,\"drain_mms\":%lld", drains.worst_ns,
			   drains.mms);
	}
	record_add(",\"worst_held\":%lld", held);
	migrc_write(MIGRC_ENABLE, 0);
	tlb_rs_json_region(w->name, record_text, &c);
	return moved;
}

static bool start(const struct workload *w, pthread_t *threads, pid_t *spawner)
{
	long id;

	if (w->procs) {
		*spawner = fork();
		if (!*spawner)
			spawn();
		return *spawner > 0;
	}
	for (id = 0; id < nr_threads; id++) {
		if (pthread_create(&threads[id], NULL, user, (void *)id))
			return false;
	}
	return true;
}

static bool end(const struct workload *w, pthread_t *threads, pid_t spawner)
{
	int id, status;

	STORE(shared->stop, true);
	if (w->procs)
		return waitpid(spawner, &status, 0) == spawner && !status;
	for (id = 0; id < nr_threads; id++)
		pthread_join(threads[id], NULL);
	return true;
}

/* How often a call is made: @least, or if it takes longer. */
static __u64 pace_of(int on, __u64 least)
{
	size_t calls = (set.nr + call_pages - 1) / call_pages;
	__u64 ns;

	migrc_write(MIGRC_ENABLE, on);
	move_all(2);
	ns = tlb_rs_now_ns();
	move_all(4);
	ns = (tlb_rs_now_ns() - ns) / (4 * calls) * pace / 100;
	migrc_write(MIGRC_ENABLE, 0);
	return ns > least ? ns : least;
}

static bool run(const struct workload *w)
{
	pthread_t threads[MAX_THREADS];
	pid_t spawner = 0;
	bool ok = true;
	int i;

	load_now = w;
	memset(shared, 0, sizeof(*shared));
	memset(&total, 0, sizeof(total));
	map_pages(w);
	migrc_write(MIGRC_ENABLE, 0);
	if (!start(w, threads, &spawner))
		ksft_exit_fail_msg("cannot start the users\n");
	if (by == BY_DAMON)
		damon_start();
	interval_ns = 0;
	for (i = 0; by == BY_MOVE && pace && i < 2; i++)
		interval_ns = pace_of(i, interval_ns);
	for (i = 0; i < 2 * pairs && ok; i++) {
		size_t moved = half(w, i / 2, (i ^ i / 2) & 1);

		/* Some are busy, where processes come and go. */
		ok = moved >= set.nr * moves / 2 || by != BY_MOVE;
		if (!ok)
			ksft_print_msg("%s: %zu pages moved of %zu\n", w->name, moved,
				       set.nr * moves);
	}
	if (by == BY_DAMON) {
		migrc_damon_stop();
		if (!total.moved) {
			ksft_print_msg("%s: DAMON moved nothing\n", w->name);
			ok = false;
		}
	}
	/* Pages that are only read, if they are not mapped as contiguous blocks. */
	if (by != BY_BALANCE && !large && (w->file ? w->hot : !w->write && readmostly) &&
	    total.deferred < total.moved / 2) {
		ksft_print_msg("%s: %lld pages deferred of %lld that %s moved\n", w->name,
			       total.deferred, total.moved, movers[by]);
		ok = false;
	}
	ok &= end(w, threads, spawner);
	ok &= unmap_pages(w);
	return ok && !migrc_held(-1);
}

static void help(const char *prog)
{
	printf("usage: %s [option]...\n"
	       "  [--case lookup|file|procs|store] [--by move|balance|damon] [--pairs P]\n"
	       "  [--pages N] [--call N] [--block N] [--pace PERCENT] [--moves N] [--age MS]\n"
	       "  [--threads K] [--procs K] [--dir DIRECTORY] [--protect] [--large]\n"
	       "--call: pages in one call; "
	       "--block: that move to the same node, one after the other\n"
	       "--pace: time from one call to the next, of that which one takes; 0: none\n"
	       "--moves: of each page in each half of a pair\n"
	       "--protect: the tables are made read-only with mprotect()\n",
	       prog);
}

static const struct workload workloads[] = {
	{ .name = "lookup" },
	{ .name = "file", .file = true, .hot = true },
	{ .name = "procs", .file = true, .procs = true },
	{ .name = "store", .write = true },
};

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "case", required_argument, NULL, 'c' },
		{ "by", required_argument, NULL, 'B' },
		{ "pages", required_argument, NULL, 'n' },
		{ "call", required_argument, NULL, 'C' },
		{ "block", required_argument, NULL, 'b' },
		{ "moves", required_argument, NULL, 'm' },
		{ "pairs", required_argument, NULL, 'p' },
		{ "threads", required_argument, NULL, 't' },
		{ "procs", required_argument, NULL, 'P' },
		{ "age", required_argument, NULL, 'a' },
		{ "pace", required_argument, NULL, 'x' },
		{ "dir", required_argument, NULL, 'd' },
		{ "protect", no_argument, NULL, 'r' },
		{ "large", no_argument, NULL, 'l' },
		{ "process", required_argument, NULL, 'X' },
		{ "help", no_argument, NULL, 'h' },
		{ }
	};
	const char *only = NULL;
	size_t i, nr = 0;
	int opt;

	while ((opt = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		switch (opt) {
		case 'c':
			only = optarg;
			break;
		case 'B':
			for (by = BY_MOVE; strcmp(optarg, movers[by]); by++) {
				if (by == BY_DAMON)
					ksft_exit_fail_msg("no mover '%s'\n", optarg);
			}
			break;
		case 'n':
			nr_pages = tlb_rs_number(optarg, 10, 1 << 20);
			break;
		case 'C':
			call_pages = tlb_rs_number(optarg, 1, 1 << 16);
			break;
		case 'b':
			block_pages = tlb_rs_number(optarg, 1, 1 << 16);
			break;
		case 'm':
			moves = tlb_rs_number(optarg, 1, MAX_ROUNDS);
			break;
		case 'p':
			pairs = tlb_rs_number(optarg, 1, MAX_PAIRS);
			break;
		case 't':
			nr_threads = tlb_rs_number(optarg, 1, MAX_THREADS);
			break;
		case 'P':
			nr_procs = tlb_rs_number(optarg, 1, 1000);
			break;
		case 'a':
			age_ms = tlb_rs_number(optarg, 1, 60000);
			break;
		case 'x':
			pace = tlb_rs_number(optarg, 0, 1000);
			break;
		case 'd':
			dir = optarg;
			break;
		case 'r':
			protect = true;
			break;
		case 'l':
			large = true;
			break;
		case 'X':
			return process(optarg);
		default:
			help(argv[0]);
			return opt == 'h' ? 0 : KSFT_FAIL;
		}
	}
	ksft_print_header();
	for (i = 0; i < ARRAY_SIZE(workloads); i++)
		nr += !only || !strcmp(only, workloads[i].name);
	if (!nr)
		ksft_exit_fail_msg("no case '%s'\n", only);
	/* The default of vm.migrc_max_pages: it is a part of what is measured. */
	migrc_init(2, 0, age_ms);
	/* Refused where the CPUs do not set dirty bits. */
	readmostly = tlb_rs_setting(MIGRC_READMOSTLY, "1");
	/* Without it, the worst drain is not known. */
	tlb_rs_setting(TRACING "events/migrc/migrc_drain/enable", "1");
	if (by == BY_BALANCE)
		balance();
	if (by == BY_DAMON && !migrc_has_damon())
		ksft_exit_skip("no DAMON\n");
	nr_threads = nr_threads ?: tlb_rs_nr_cpus() - 1;
	nr_procs = nr_procs ?: tlb_rs_nr_cpus() - 1;
	psize = getpagesize();
	tlb_rs_pin_cpu(0);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		      -1, 0);
	if (shared == MAP_FAILED)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));

	ksft_set_plan(nr);
	for (i = 0; i < ARRAY_SIZE(workloads); i++) {
		if (only && strcmp(only, workloads[i].name))
			continue;
		if (workloads[i].file && !migrc_defers_files_of(dir))
			ksft_test_result_skip("migrc_workload %s: nothing is deferred in %s\n",
					      workloads[i].name, dir);
		else
			ksft_test_result(run(&workloads[i]), "migrc_workload %s\n",
					 workloads[i].name);
	}
	ksft_finished();
}
