// SPDX-License-Identifier: GPL-2.0
/*
 * tlbstat ab: the difference that a switch of tlb-rs makes, under the load of the user
 *
 * Slices with the switch off and on follow each other as ABBA: what drifts, drifts in both. The
 * difference of each pair is one figure, and their median and quartiles are printed.
 */
#include "price.h"
#include <getopt.h>
#include <sys/file.h>
#include <sys/mman.h>

#define MAX_PAIRS		1000
#define METRIC			(NCOLS + NCOUNTERS)
#define FIGURES			(METRIC + 1 + NCAUSES)

static const struct {
	const char *name, *sysctl, *option;
} switches[] = {
	{ "tlb_batch", "tlb_batch", "CONFIG_RUST_TLB_BATCH" },
	{ "migrc", "migrc_enable", "CONFIG_MIGRC" },
	{ "hvo", "hugetlb_optimize_vmemmap", "CONFIG_HUGETLB_VMEMMAP_PAUSE" },
	{ "writeback", "tlb_batch_writeback", "CONFIG_FOLIO_BATCH_MKCLEAN" },
};

static struct {
	int which, pairs;
	double seconds;
	const char *metric;
	bool json;
	char **command;
} o = { .pairs = 15, .seconds = 2 };

static char sysctl[512];
static long long before;
static pid_t command, metric, guardian;
static int leash = -1;

/* Of each pair the figures without and with it: columns, counters, --metric, ms/s by cause. */
static double figures[MAX_PAIRS][2][FIGURES];

/* --- the switch -------------------------------------------------------------------------- */

static bool set_switch(long long value)
{
	char text[24];
	int fd = open(sysctl, O_WRONLY | O_TRUNC | O_CLOEXEC);
	int n = snprintf(text, sizeof(text), "%lld\n", value);
	bool ok = fd >= 0 && write(fd, text, n) == n;

	if (fd >= 0)
		close(fd);
	return ok;
}

static bool is_restored(void)
{
	long long now;

	return number(first_line(sysctl), &now) && now == before;
}

/* On every exit but that by SIGKILL: then the guardian does it alone. */
static void restore(void)
{
	if (leash < 0)
		return;
	end_group(metric);
	end_group(command);
	close(leash);
	leash = -1;
	waitpid(guardian, NULL, 0);
	/* It may have been killed. */
	if (!is_restored() && !(set_switch(before) && is_restored())) {
		warnx("%s could not be set to %lld again", sysctl, before);
		_exit(FAILURE);
	}
}

/*
 * A process that sets the switch as it was when this one has ended, however it did. It is in a
 * session of its own, and no signal but SIGKILL ends it.
 */
static void guard(void)
{
	int ends[2], ready[2];
	sigset_t all;
	char c;

	if (pipe2(ends, O_CLOEXEC) || pipe2(ready, O_CLOEXEC))
		err(FAILURE, "pipe");
	guardian = fork();
	if (guardian < 0)
		err(FAILURE, "fork");
	if (guardian) {
		close(ends[0]);
		close(ready[1]);
		/* Until it is there, a signal to the group would end it, too. */
		if (read(ready[0], &c, 1) != 1)
			errx(FAILURE, "the process that restores the switch has ended");
		close(ready[0]);
		leash = ends[1];
		atexit(restore);
		return;
	}
	close(ends[1]);
	setsid();
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	if (write(ready[1], "", 1) != 1)
		_exit(FAILURE);
	close(ready[0]);
	close(ready[1]);
	while (read(ends[0], &c, 1) < 0 && errno == EINTR)
		;
	_exit(set_switch(before) ? 0 : FAILURE);
}

static void find_switch(void)
{
	int lock;

	snprintf(sysctl, sizeof(sysctl), "%s", path("/proc/sys/vm/%s", switches[o.which].sysctl));
	if (access(sysctl, F_OK))
		errx(FAILURE, "this kernel has no vm.%s: it is without tlb-rs, or without %s%s",
		     switches[o.which].sysctl, switches[o.which].option,
		     "; tlbstat doctor says what can matter here");
	/* As long as this process, or its guardian, is there. */
	lock = open(sysctl, O_RDONLY | O_CLOEXEC);
	if (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
		errx(FAILURE, "another tlbstat ab changes vm.%s", switches[o.which].sysctl);
	if (!number(first_line(sysctl), &before))
		errx(FAILURE, "%s: there is no number in it", sysctl);
	if (!set_switch(before))
		err(FAILURE, "%s: to change it needs root", sysctl);
}

/* --- slices -------------------------------------------------------------------------------- */

static int start_metric(void)
{
	char shell[] = "/bin/sh", option[] = "-c";
	char *words[4] = { shell, option, (char *)o.metric };
	/* No pipe: nobody reads while it writes. */
	int fd = memfd_create("metric", MFD_CLOEXEC);

	if (fd < 0)
		err(FAILURE, "memfd_create");
	metric = start_group(words, fd);
	return fd;
}

static double read_metric(int fd, int status)
{
	char text[128], *end;
	ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
	double v;

	close(fd);
	text[n > 0 ? n : 0] = 0;
	if (status)
		errx(FAILURE, "%s: status %d", o.metric, WIFSIGNALED(status) ?
		     128 + WTERMSIG(status) : WEXITSTATUS(status));
	v = strtod(text, &end);
	if (end == text || !isfinite(v) || end[strspn(end, " \t\r\n")]) {
		text[strcspn(text, "\n")] = 0;
		errx(FAILURE, "%s: printed \"%.40s\", which is no number", o.metric, text);
	}
	return v;
}

static struct prices prices;
/* NULL: there are samples. */
static const char *no_samples;

static void count_causes(long long *count)
{
	int i;

	if (!no_samples)
		drain_sampler(&prices, 0);
	memset(count, 0, NCAUSES * sizeof(*count));
	for (i = 0; i < prices.nr_stacks; i++)
		count[prices.stacks[i].cause] += prices.stacks[i].nr;
}

/* Samples do not wait for longer than their rings have room. */
static int wait_and_drain(double deadline, siginfo_t *info)
{
	double at;
	int sig;

	do {
		at = fmin(deadline, seconds_of(CLOCK_MONOTONIC) + TURN);
		sig = wait_until(at, info);
		if (!no_samples)
			drain_sampler(&prices, 0);
	} while (!sig && at < deadline);
	return sig;
}

/* Returns the number of a signal that ends it all, -1 if the command has ended, or 0. */
static int wait_for(double deadline, int *metric_status)
{
	int sig, status = 0;
	siginfo_t info;

	do {
		sig = wait_and_drain(deadline, &info);
		if (sig == SIGCHLD) {
			if (metric > 0 && waitpid(metric, metric_status, WNOHANG) == metric)
				metric = 0;
			if (command > 0 && waitpid(command, &status, WNOHANG) == command) {
				command = 0;
				if (status)
					warnx("%s: status %d", *o.command, WIFSIGNALED(status) ?
					      128 + WTERMSIG(status) : WEXITSTATUS(status));
				return -1;
			}
			/* Of a metric only the end is waited for. */
			if (deadline > 1e15 && !metric)
				return 0;
		} else if (sig) {
			return sig;
		}
	} while (sig);
	return 0;
}

static double change(const struct sample *was, const struct sample *now, const char *key)
{
	const struct entry *a = find(was, key, 0), *b = find(now, key, 0);

	return !a || !b || a->val > b->val ? NAN : (double)b->val - a->val;
}

static int slice(long long value, double *v)
{
	static struct sample was, now;
	long long before[NCAUSES], after[NCAUSES];
	double begin, seconds;
	int i, sig, fd = -1, status = 0;

	if (!set_switch(value))
		err(FAILURE, "%s", sysctl);
	begin = seconds_of(CLOCK_MONOTONIC);
	/* What was under way goes on as it began. */
	sig = wait_for(begin + fmin(0.2, o.seconds / 4), &status);
	if (sig)
		return sig;
	take(&was);
	count_causes(before);
	begin = seconds_of(CLOCK_MONOTONIC);
	if (o.metric)
		fd = start_metric();
	sig = wait_for(begin + o.seconds, &status);
	if (!sig && metric)
		sig = wait_for(1e16, &status);
	if (sig)
		return sig;
	take(&now);
	seconds = seconds_of(CLOCK_MONOTONIC) - begin;
	count_causes(after);
	for (i = 0; i < NCAUSES; i++)
		v[METRIC + 1 + i] = (after[i] - before[i]) * prices.period_us / 1000 / seconds;
	v[METRIC] = o.metric ? read_metric(fd, status) : NAN;
	for (i = 0; i < NCOLS; i++)
		v[i] = columns[i].kind == RATE ? change(&was, &now, columns[i].key) / seconds : NAN;
	for (i = 0; i < NCOUNTERS; i++)
		v[NCOLS + i] = is_gauge(counters[i].key) ? NAN :
			       change(&was, &now, counters[i].key) / seconds;
	return 0;
}

/* --- what is printed ---------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* Of @nr sorted numbers, between those next to it. */
static double quantile(const double *v, int nr, double q)
{
	double at = q * (nr - 1), part = at - floor(at);
	int i = at;

	return i + 1 < nr ? v[i] * (1 - part) + v[i + 1] * part : v[i];
}

/* Name, off, on, their difference and its quartiles. */
#define FORM			"%-50.50s %8s %8s %8s %9s %8s\n"

struct row {
	double off, on, low, middle, high;
};

/* Only pairs that have both; false: there is none, or nothing but zeros. */
static bool summarize(int figure, int pairs, struct row *r)
{
	static double off[MAX_PAIRS], on[MAX_PAIRS], diff[MAX_PAIRS];
	bool any = false;
	int i, nr = 0;

	for (i = 0; i < pairs; i++) {
		off[nr] = figures[i][0][figure];
		on[nr] = figures[i][1][figure];
		diff[nr] = on[nr] - off[nr];
		any |= off[nr] || on[nr];
		nr += !isnan(diff[nr]);
	}
	if (!nr || !any)
		return false;
	qsort(off, nr, sizeof(*off), by_size);
	qsort(on, nr, sizeof(*on), by_size);
	qsort(diff, nr, sizeof(*diff), by_size);
	*r = (struct row) { quantile(off, nr, 0.5), quantile(on, nr, 0.5), quantile(diff, nr, 0.25),
			    quantile(diff, nr, 0.5), quantile(diff, nr, 0.75) };
	return true;
}

/* How many of 100 figures seem to differ if nothing does: at least as many signs are the same. */
static double by_chance(int pairs)
{
	double at = 0.25 * (pairs - 1), part = at - floor(at);
	double term = pow(0.5, pairs), sum = 0, p[2];
	int i;

	for (i = 0; i <= floor(at) + 1; i++) {
		sum += term;
		term *= (double)(pairs - i) / (i + 1);
		p[i > floor(at)] = fmin(1, 2 * sum);
	}
	/* A quartile is between two pairs. */
	return 100 * pow(p[0], 1 - part) * pow(p[1], part);
}

static void print_figures(int pairs)
{
	const char *what;
	char key[64];
	struct row r;
	int headed = 0, i;

	if (o.json)
		printf("{\"tlbstat_ab\":1,\"switch\":\"vm.%s\",\"pairs\":%d,\"seconds\":%.3f",
		       switches[o.which].sysctl, pairs, o.seconds);
	else
		printf("vm.%s: %d pairs of 2 slices of %g s, off and on, ABBA; set to %lld again\n"
		       FORM, switches[o.which].sysctl, pairs, o.seconds, before,
		       "medians, per second", "off", "on", "on-off", "quartiles", "");
	for (i = 0; i < FIGURES; i++) {
		if (!summarize(i, pairs, &r))
			continue;
		what = i < NCOLS ? columns[i].help : i < METRIC ? counters[i - NCOLS].help :
		       i == METRIC ? "the metric (not per second)" : causes[i - METRIC - 1].name;
		snprintf(key, sizeof(key), "%s%s", i > METRIC ? "ms_per_s." : "",
			 i < NCOLS ? columns[i].key : i < METRIC ? counters[i - NCOLS].key :
			 i == METRIC ? "metric" : what);
		if (!o.json && i > METRIC && !headed++)
			puts("flushes by cause, ms per second (samples)");
		if (o.json)
			printf(",\"%s\":{\"off\":%.6g,\"on\":%.6g,\"diff\":[%.6g,%.6g,%.6g]}", key,
			       r.off, r.on, r.low, r.middle, r.high);
		else
			printf(FORM, what, brief(r.off), brief(r.on), brief(r.middle), brief(r.low),
			       brief(r.high));
	}
	if (o.json)
		printf(no_samples ? ",\"no_samples\":\"%s\"}\n" : "}\n", no_samples);
	else
		printf("A difference is one if both quartiles are on one side of zero;\n"
		       "with %d pairs, %.2g %% of those without any seem to have one%s%s.\n", pairs,
		       by_chance(pairs), no_samples ? "; no times by cause: " : "",
		       no_samples ?: "");
}

static void parse(int argc, char **argv)
{
	static const struct option names[] = {
		{ "switch", required_argument, NULL, 'S' },
		{ "pairs", required_argument, NULL, 'n' },
		{ "seconds", required_argument, NULL, 'w' },
		{ "metric", required_argument, NULL, 'm' },
		{ "json", no_argument, NULL, 'j' },
		{ "root", required_argument, NULL, 'r' },
		{ "help", no_argument, NULL, 'h' },
		{ }
	};
	int c;

	o.command = split_command(&argc, argv);
	while ((c = getopt_long(argc, argv, "S:n:w:m:jr:h", names, NULL)) != -1) {
		if (c == 'S') {
			for (o.which = 0; o.which < ARRAY_SIZE(switches) &&
			     strcmp(optarg, switches[o.which].name); o.which++)
				;
			if (o.which == ARRAY_SIZE(switches))
				errx(USAGE, "%s is no switch: tlb_batch, migrc, hvo, writeback",
				     optarg);
		}
		if (c == 'n')
			o.pairs = positive(optarg, 1, "number of pairs");
		if (c == 'w')
			o.seconds = positive(optarg, 0.05, "number of seconds");
		o.metric = c == 'm' ? optarg : o.metric;
		o.json |= c == 'j';
		root = c == 'r' ? optarg : root;
		if (c == 'h')
			help();
		if (c == '?')
			errx(USAGE, "see tlbstat --help");
	}
	if (optind < argc)
		errx(USAGE, "%s: a command comes behind --, see tlbstat --help", argv[optind]);
	if (o.pairs > MAX_PAIRS)
		errx(USAGE, "%d is more than %d pairs", o.pairs, MAX_PAIRS);
	check_root();
}

int ab(int argc, char **argv)
{
	int i, k, on, sig = 0;
	char text[32];

	parse(argc, argv);
	find_switch();
	more_files();
	block_signals();
	guard();
	no_samples = start_sampling(&prices, default_ring(), 0);
	snprintf(text, sizeof(text), "%g", o.seconds);
	setenv("TLBSTAT_SECONDS", text, 1);
	if (o.command)
		command = start_group(o.command, -1);
	for (i = 0; i < o.pairs && !sig; i += !sig) {
		for (k = 0; k < 2 && !sig; k++) {
			on = k ^ (i & 1);
			sig = slice(on, figures[i][on]);
		}
	}
	restore();
	if (!no_samples)
		close_sampler(&prices);
	if (prices.lost)
		warnx("samples were lost: times by cause are too low");
	if (sig && i)
		warnx("%s after %d of %d pairs", sig < 0 ? "the command ended" : "interrupted", i,
		      o.pairs);
	else if (sig)
		errx(sig < 0 ? FAILURE : 128 + sig, "%s before there was a pair",
		     sig < 0 ? "the command ended" : "interrupted");
	print_figures(i);
	return 0;
}
