// SPDX-License-Identifier: GPL-2.0
/*
 * tlbstat price: how long CPUs wait for TLB flushes, by cause
 *
 * A CPU that waits for a broadcast, or for other CPUs to answer, does so at a known place of the
 * kernel. Samples of all CPUs, times the time between two of them, is the time that is lost,
 * with all that contention adds, at a cost that does not depend on the rate of flushes.
 */
#include "price.h"
#include <getopt.h>

#define DEFAULT			"tlbstat.price"

static struct {
	double seconds, period_us;
	int pages;
	const char *out, *html;
	bool json;
	char **command;
	int failed;		/* its status */
} o;

static struct prices prices;

static void describe(struct prices *p)
{
	struct utsname uts;
	char *line;
	long long v;

	uname(&uts);
	line = first_line(path("/proc/sys/kernel/arch"));
	set_text(p->arch, sizeof(p->arch), line ?: uts.machine);
	line = first_line(path("/proc/sys/kernel/osrelease"));
	set_text(p->kernel, sizeof(p->kernel), line ?: uts.release);
	p->tlb_batch = number(first_line(path("/proc/sys/vm/tlb_batch")), &v) ? v : -1;
	p->migrc = number(first_line(path("/proc/sys/vm/migrc_enable")), &v) ? v : -1;
	p->thp_pages = 512;
	if (number(first_line(path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")), &v) &&
	    v > 0)
		p->thp_pages = v / page_size;
}

static long long grown(const struct sample *was, const struct sample *now, const char *key)
{
	return has(was, key) && has(now, key) ? get(now, key) - get(was, key) : 0;
}

int default_ring(void)
{
	return page_size < RING ? RING / page_size : 1;
}

/* Returns whether to go on. */
static bool goes_on(double deadline, pid_t *command)
{
	siginfo_t info;
	int sig = wait_until(deadline, &info);

	return sig == SIGCHLD ? !command_ended(o.command, command, &o.failed) : !sig;
}

/* Signals are blocked. Returns why there are no samples, or NULL. */
const char *start_sampling(struct prices *p, int pages, double period_us)
{
	static char wrong[200];
	const char *why;

	describe(p);
	why = read_symbols();
	if (why)
		return why;
	if (!choose_flush_functions(!strcmp(p->arch, "aarch64")))
		return "this kernel has none of the functions that are known to flush";
	snprintf(p->leaves, sizeof(p->leaves), strcmp(p->arch, "aarch64") ? "frames" :
		 open_kcore() ? "instructions" : "functions");
	touch_caches();
	touch_stacks();
	return open_sampler(p, pages, period_us, wrong, sizeof(wrong)) ? NULL : wrong;
}

/* @out: where it will be written to, if it is: a file that cannot be would be noticed too late. */
static const char *sample_flushes(struct prices *p, FILE **out)
{
	static struct sample was, now;
	double begin, end, at;
	pid_t command = 0;
	const char *why;

	block_signals();
	memset(&now, 0, sizeof(now));
	why = start_sampling(p, o.pages, o.period_us);
	if (why)
		return why;
	if (out)
		*out = strcmp(o.out, "-") ? new_recording(o.out) : stdout;
	take(&was);
	begin = seconds_of(CLOCK_MONOTONIC);
	if (o.command)
		command = start_group(o.command, -1);
	end = o.seconds ? begin + o.seconds : o.command ? INFINITY : begin + 10;
	open_counts(p);
	do {
		at = fmin(seconds_of(CLOCK_MONOTONIC) + TURN, end);
		if (!goes_on(at, &command))
			end = 0;
		count_flushes(p, seconds_of(CLOCK_MONOTONIC) - begin);
		drain_sampler(p, seconds_of(CLOCK_MONOTONIC) - begin);
	} while (seconds_of(CLOCK_MONOTONIC) < end);
	p->seconds = seconds_of(CLOCK_MONOTONIC) - begin;
	take(&now);
	close_sampler(p);
	close_counts(p);
	end_group(command);
	p->migrated = grown(&was, &now, "pgmigrate_success");
	p->split = grown(&was, &now, "thp_split_page");
	p->interrupts = grown(&was, &now, "tlb_interrupts");
	p->remote = -1;
	if (has(&now, "nr_tlb_remote_flush"))
		p->remote = grown(&was, &now, "nr_tlb_remote_flush");
	return NULL;
}

static void parse(int argc, char **argv, bool recording, bool reporting)
{
	static const struct option names[] = {
		{ "html", required_argument, NULL, 'H' },
		{ "json", no_argument, NULL, 'j' },
		{ "output", required_argument, NULL, 'o' },
		{ "period", required_argument, NULL, 'p' },
		{ "ring", required_argument, NULL, 'R' },
		{ "root", required_argument, NULL, 'r' },
		{ "help", no_argument, NULL, 'h' },
		{ }
	};
	int c;

	if (!reporting)
		o.command = split_command(&argc, argv);
	while ((c = getopt_long(argc, argv, "jo:p:r:h", names, NULL)) != -1) {
		o.html = c == 'H' ? optarg : o.html;
		o.json |= c == 'j';
		o.out = c == 'o' ? optarg : o.out;
		if (c == 'p')
			o.period_us = positive(optarg, 20, "number of microseconds");
		if (c == 'R')
			o.pages = positive(optarg, 1, "number of pages");
		root = c == 'r' ? optarg : root;
		if (c == 'h')
			help();
		if (c == '?')
			errx(USAGE, "see tlbstat --help");
	}
	o.pages = o.pages ?: default_ring();
	if (o.pages & (o.pages - 1) || o.pages > 1 << 14)
		errx(USAGE, "a ring has 1, 2, 4 ... 16384 pages, not %d", o.pages);
	if (argc - optind > 1 || (!recording && o.out) || (recording && o.json) ||
	    (!reporting && o.html) || (reporting && (o.period_us || *root)))
		errx(USAGE, "these do not go together, see tlbstat --help");
	if (!reporting && optind < argc)
		o.seconds = positive(argv[optind], 0.1, "number of seconds");
	check_root();
}

static int report_prices(const char *name)
{
	read_prices(&prices, name);
	if (!o.html || strcmp(o.html, "-"))
		print_prices(&prices, o.json);
	if (o.html)
		write_html(&prices, o.html);
	return 0;
}

int price(int argc, char **argv)
{
	bool recording = argc > 1 && !strcmp(argv[1], "record");
	bool reporting = argc > 1 && !strcmp(argv[1], "report");
	const char *why;
	FILE *out = NULL;

	argc -= recording || reporting;
	argv += recording || reporting;
	parse(argc, argv, recording, reporting);
	if (reporting)
		return report_prices(optind < argc ? argv[optind] : DEFAULT);
	o.out = o.out ?: DEFAULT;
	more_files();
	why = sample_flushes(&prices, recording ? &out : NULL);
	if (why && recording)
		errx(FAILURE, "no samples: %s", why);
	if (why)
		return price_by_counters(o.seconds, o.json, why, o.command);
	if (recording)
		write_prices(&prices, out, o.out);
	else
		print_prices(&prices, o.json);
	return o.failed ? FAILURE : 0;
}
