// SPDX-License-Identifier: GPL-2.0
/*
 * tlbstat - what TLB maintenance costs, and what tlb-rs saves of it
 *
 * A sample is a list of named integers, read from /proc, sysfs and debugfs, or from a line
 * of JSON that an earlier tlbstat wrote. All views are of differences of samples. Needs
 * nothing but libc; what a kernel does not have is left out, or "-".
 */
#include "tlbstat.h"
#include <getopt.h>

/* --- watching ---------------------------------------------------------------------------- */

static struct {
	bool once, json, detail, trace;
	const char *since, *out, *svg;
	double interval;
	long count;		/* 0: for ever */
	char **command;
} o = { .interval = 1 };

static void put(FILE *out, const struct sample *was, const struct sample *now, long i)
{
	static struct sample sum;

	if (o.json) {
		write_json(out, was, now);
	} else if (was && o.detail) {
		sum.nr = 0;
		accumulate(&sum, was, now);
		print_block(&sum, now->uptime - was->uptime, "watched");
	} else if (was) {
		if (i % 20 == 0)
			print_heading();
		print_row(was, now);
	}
	if (fflush(out) || ferror(out))
		failed_output(o.out);
}

static int watch(FILE *out)
{
	static struct sample two[2];
	struct sample *was = &two[0], *now = &two[1], *spare;
	double deadline = seconds_of(CLOCK_MONOTONIC), woken;
	int sig, status = 0;
	siginfo_t info;
	bool ended = false;
	pid_t pid = 0;
	long i;

	take(was);
	choose_columns(was);
	put(out, NULL, was, 0);
	if (o.command)
		pid = start(o.command);
	for (i = 0; !ended && (!o.count || i < o.count); i++) {
		deadline += o.interval;
		do {
			sig = wait_until(deadline, &info);
			ended = ends(sig, &info, pid, &status);
		} while (sig && !ended);
		/* If it was stopped, it does not make up for what it missed. */
		woken = seconds_of(CLOCK_MONOTONIC);
		if (woken > deadline + o.interval / 2)
			deadline = woken;
		take(now);
		/* Part of an interval is only good for a recording, which has milliseconds. */
		if (ended && (!o.out || llround(now->uptime * 1000) <= llround(was->uptime * 1000)))
			break;
		put(out, was, now, i);
		spare = was;
		was = now;
		now = spare;
	}
	if (!pid)
		return 0;
	while (!ended)
		ended = ends(sigwaitinfo(&signals, &info), &info, pid, &status);
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Once, or since the last sample of a file. */
static int look_once(void)
{
	static struct sample two[2], now, sum;
	const struct sample *was = NULL;
	int nr = 0;
	FILE *f;

	if (o.since) {
		f = open_recording(o.since);
		while (next_sample(f, o.since, &nr, &two[was == &two[0]]))
			was = &two[was == &two[0]];
		if (!was)
			errx(FAILURE, "%s: there is no sample in it", o.since);
	}
	take(&now);
	if (was && !same_boot(was, &now)) {
		warnx("%s: the machine was booted after that; counted from the boot", o.since);
		was = NULL;
	}
	choose_columns(&now);
	if (o.json) {
		put(stdout, was, &now, 0);
		return 0;
	}
	accumulate(&sum, was, &now);
	print_block(&sum, now.uptime - (was ? was->uptime : 0),
		    was ? "since then" : "since the boot");
	return 0;
}

/* --- options --------------------------------------------------------------------------- */

static const char usage[] =
"usage: tlbstat [OPTION]... [INTERVAL [COUNT]]\n"
"       tlbstat record [-t] [-o FILE] [INTERVAL [COUNT]] [-- COMMAND...]\n"
"       tlbstat report [--svg OUT.svg] [FILE]\n"
"       tlbstat doctor [--json]\n"
"       tlbstat price [-j] [-p US] [--ring PAGES] [SECONDS] [-- COMMAND...]\n"
"       tlbstat price record [-o FILE] [-p US] [--ring PAGES] [SECONDS] [-- COMMAND...]\n"
"       tlbstat price report [-j] [--html OUT.html] [FILE]\n"
"       tlbstat ab [-S SWITCH] [-n PAIRS] [-w SECONDS] [-m CMD] [--json] [-- COMMAND...]\n"
"\n"
"TLB flushes that were issued, avoided and deferred, pauses of all CPUs, and what struct pages\n"
"take: a row every INTERVAL seconds (1), COUNT times or until it is interrupted.\n"
"\n"
"  -1, --once         all counters since the boot\n"
"  -s, --since FILE   all counters since the last sample in FILE\n"
"  -d, --detail       all counters of each interval, with reasons and histograms\n"
"  -j, --json         a line of JSON for each sample, and one before the first interval\n"
"  -t, --trace        count migrations by reason, with a tracepoint (root; not with -1, -s)\n"
"  -r, --root DIR     read DIR/proc and DIR/sys: of the host in a container; for tests\n"
"  -o, --output FILE  of record (tlbstat.jsonl; -: standard output)\n"
"      --svg FILE     of report: plots (-: instead of the text)\n"
"\n"
"doctor says what this machine is, what may be measured on it, and what can matter; without root.\n"
"price samples where the kernel waits for flushes (root), and prints ms per second by cause:\n"
"  -p, --period US    between two samples of a CPU (1913, or 300000 cycles)\n"
"      --ring PAGES   for samples of a CPU (as many as have 512 KiB)\n"
"  -o, --output FILE  of price record (tlbstat.price; -: standard output)\n"
"      --html FILE    of price report: one page with plots (-: instead of the text)\n"
"ab changes a switch of tlb-rs in PAIRS (15) of slices of SECONDS (2), and prints the difference:\n"
"  -S, --switch NAME  tlb_batch (default), migrc, hvo or writeback\n"
"  -n, --pairs PAIRS  -w, --seconds SECONDS\n"
"  -m, --metric CMD   the shell runs it in each slice, and it prints a number\n"
"record writes samples until COUNT, a signal, or the end of COMMAND, whose status it returns.\n"
"A FILE that is there is kept as FILE.old. report reads FILE (tlbstat.jsonl; -: standard input).\n"
"Status 1: failed; 2: usage.\n"
"\n"
"Columns. Groups of which the kernel has nothing are left out, a value that is missing is \"-\".\n"
"All are per second but why, held, age_ms, max_us, saved and could:\n";

static const char notes[] =
"estimate is for kernels without tlb-rs: what could be saved at most.\n"
"  flush  arm64: one flush for each page that is migrated, one for a huge page in one piece, P\n"
"         for a huge page that is split: P is 512 for 2 MiB with pages of 4 KiB, and was measured\n"
"         as 543 where PTEs map it, 18 for shmem and files. With the batch it is 1 or 2 for a\n"
"         split and 8 for 4096 neighbouring pages. Too many where NUMA balancing moves pages,\n"
"         which has flushed them before. Not on x86_64: stock waits once for a batch there, too.\n"
"  defer  with --trace: pages that move_pages(), migrate_pages(), cpusets, mbind() and DAMON\n"
"         moved, or that were demoted, of which those of direct reclaim are not deferred.\n"
"         Only what nobody can write to is deferred, which is not known beforehand.\n"
"could: of HugeTLB pages their struct pages (64 bytes each) but for the first page of them: 7 of\n"
"8 pages for 2 MiB, 4095 of 4096 for 1 GiB. Of all HugeTLB pages, or of those in\n"
"unoptimized_hugepages. A kernel without that file, where vm.hugetlb_optimize_vmemmap=1: all,\n"
"less saved.\n"
"saved is what the memory blocks in sysfs need for struct pages, less nr_memmap_pages and\n"
"nr_memmap_boot_pages, and no more than all HugeTLB pages could give back. Up to that, holes in\n"
"memory blocks (2 GiB each on large x86_64 machines) count as given back, which is too much if\n"
"only some HugeTLB pages gave theirs back, or none did. Debug options that extend struct page\n"
"(page_owner, page_table_check) count as struct pages and make it too small; differences are\n"
"right then, unless there are holes, too.\n"
"\n"
"Reasons, ages and lengths of pauses come from debugfs, which only root may read. The last number\n"
"of a histogram (65536 ms, 2097152 us) stands for whatever is longer, too.\n"
"\n"
"JSON: tlbstat (1: the version), time since 1970, uptime, boot_id, kernel, arch; then counters\n"
"since the boot by the names above, or those of /proc/vmstat and debugfs (null: missing),\n"
"sysctl.NAME, hugetlb.SIZE (pages in a pool), stats.DIR (1: debugfs was read); interval and\n"
"rate.GROUP.COLUMN since the sample before, and\n";

/* Ends the program. */
void help(void)
{
	int i;

	fputs(usage, stdout);
	for (i = 0; i < NCOLS; i++)
		printf("  %-8s %-6s  %-43s %s%s\n", columns[i].group, columns[i].name,
		       columns[i].help, columns[i].key, columns[i].kind >= WORST ? "*" : "");
	fputs(notes, stdout);
	for (i = 0; i < NFAMILIES; i++)
		printf("  %-18s %s\n", families[i].prefix, families[i].head);
	for (i = 0; i < NCOUNTERS; i++)
		printf("  %-28s  %s\n", counters[i].key, counters[i].help);
	if (fflush(stdout) || ferror(stdout))
		failed_output(NULL);
	exit(0);
}

/* One that is there is kept as FILE.old, as by perf record. */
FILE *new_recording(const char *name)
{
	struct stat st;
	char *old;
	FILE *f;

	/* Of /dev/stdout and the like the name is not ours to change. */
	if (!lstat(name, &st) && S_ISREG(st.st_mode) && st.st_size) {
		if (asprintf(&old, "%s.old", name) < 0 || rename(name, old))
			err(FAILURE, "%s.old", name);
		free(old);
	}
	f = fopen(name, "we");
	if (!f)
		err(FAILURE, "%s", name);
	return f;
}

/* Each has options of its own. */
static const struct {
	const char *name;
	int (*run)(int argc, char **argv);
} commands[] = {
	{ "ab", ab },
	{ "doctor", doctor },
	{ "price", price },
};

static int run(int argc, char **argv)
{
	static const struct option names[] = {
		{ "once", no_argument, NULL, '1' },
		{ "since", required_argument, NULL, 's' },
		{ "detail", no_argument, NULL, 'd' },
		{ "json", no_argument, NULL, 'j' },
		{ "trace", no_argument, NULL, 't' },
		{ "output", required_argument, NULL, 'o' },
		{ "svg", required_argument, NULL, 'S' },
		{ "root", required_argument, NULL, 'r' },
		{ "help", no_argument, NULL, 'h' },
		{ }
	};
	bool recording = argc > 1 && !strcmp(argv[1], "record");
	bool reporting = argc > 1 && !strcmp(argv[1], "report"), looking;
	FILE *out = stdout;
	int i, c;

	page_size = sysconf(_SC_PAGESIZE);
	for (i = 0; i < ARRAY_SIZE(commands) && argc > 1; i++)
		if (!strcmp(argv[1], commands[i].name))
			return commands[i].run(argc - 1, argv + 1);
	argc -= recording || reporting;
	argv += recording || reporting;
	if (recording)
		o.command = split_command(&argc, argv);
	while ((c = getopt_long(argc, argv, "1s:djto:r:h", names, NULL)) != -1) {
		o.once |= c == '1';
		o.json |= c == 'j';
		o.detail |= c == 'd';
		o.trace |= c == 't';
		o.since = c == 's' ? optarg : o.since;
		o.out = c == 'o' ? optarg : o.out;
		o.svg = c == 'S' ? optarg : o.svg;
		root = c == 'r' ? optarg : root;
		if (c == 'h')
			help();
		if (c == '?')
			errx(USAGE, "see tlbstat --help");
	}
	argc -= optind;
	argv += optind;
	check_root();
	looking = o.once || o.since;
	if (reporting ? looking || o.detail || o.json || o.trace || o.out || *root || argc > 1 :
	    o.svg || argc > 2 || (recording ? looking || o.detail : !!o.out) ||
	    (o.detail && o.json) || (looking && (o.detail || o.trace || argc)))
		errx(USAGE, "these do not go together, see tlbstat --help");
	if (reporting)
		return report(argc ? *argv : "tlbstat.jsonl", o.svg);
	if (argc)
		o.interval = positive(argv[0], 0.01, "interval in seconds");
	if (argc > 1)
		o.count = positive(argv[1], 1, "number of samples");
	if (looking)
		return look_once();

	block_signals();
	if (recording) {
		o.json = true;
		o.out = o.out ?: "tlbstat.jsonl";
		if (strcmp(o.out, "-"))
			out = new_recording(o.out);
	}
	if (o.trace)
		trace_begin();
	return watch(out);
}

int main(int argc, char **argv)
{
	int status = run(argc, argv);

	if (fflush(stdout) || ferror(stdout))
		failed_output(NULL);
	return status;
}
