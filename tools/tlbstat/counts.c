// SPDX-License-Identifier: GPL-2.0
/*
 * tlbstat price: how many flushes there are, by cause
 *
 * x86 has a tracepoint of each, tlb:tlb_flush, whose chain tells the cause as that of a sample
 * does. An event costs a part of a flush, and a chain costs more. So where there are many, they
 * are on only in a window of each second, and few of them have a chain. Shorter windows would do
 * worse: each begins where this program has interrupted what ran. arm64 has no such tracepoint.
 */
#include "ring.h"
#include <sys/ioctl.h>
#include <sys/syscall.h>

#define WANTED			200	/* chains of each CPU, each time that samples are read */
#define TURNS			10	/* of which events are on in this many, if there are more */
#define FEWEST			1
#define EVENT_NS		400	/* measured in a virtual machine */
#define MOST_COST		0.002	/* of the machine */
#define SLOWER			0.8	/* a rate that falls may rise again */
#define PENDING			16384
#define PAGES			64
#define FSCONFIG_CREATE		6
#define TRACEPOINT		"events/tlb/tlb_flush/id"
/* Neither task switches, nor the CPUs that are interrupted. */
#define FILTER			"reason > 1 && reason < 5"

static struct ring *rings;
static int nr_rings;

/* Of each ring until its last window: events, and for how long they were on. */
static uint64_t (*before)[2];

/* Stacks of chains that have not been weighed yet, and what each flush counts for. */
static int pending[PENDING], nr_pending, seen;
static double *flushes;
static int room;

static double rate, begin, settled, owed, all_owed;
static long long all_seen;
/* Of windows: their time, and the sums of their rates and of the squares of these. */
static double on_for, rates, squares;
static int windows;
static uint64_t period = 1;
static bool on;
static int turn;

static int read_id(int fd)
{
	char text[24] = "";
	long long id;

	if (fd < 0)
		return -1;
	if (read(fd, text, sizeof(text) - 1) <= 0 || !number(text, &id) || id < 1)
		id = -1;
	close(fd);
	return id;
}

/* Number of the tracepoint, or -1. Where tracefs is not mounted, of one that nobody else sees. */
static int tracepoint(void)
{
	int id = read_id(open(path("/sys/kernel/tracing/%s", TRACEPOINT), O_RDONLY | O_CLOEXEC));
	int fs, dir = -1;

	if (id >= 0 || *root)
		return id;
	fs = syscall(SYS_fsopen, "tracefs", 1);
	if (fs < 0)
		return -1;
	if (!syscall(SYS_fsconfig, fs, FSCONFIG_CREATE, NULL, NULL, 0))
		dir = syscall(SYS_fsmount, fs, 1, 0);
	close(fs);
	if (dir < 0)
		return -1;
	id = read_id(openat(dir, TRACEPOINT, O_RDONLY | O_CLOEXEC));
	close(dir);
	return id;
}

/* Flushes by INVLPGB leave no trace. */
static bool broadcasts(void)
{
	FILE *f = fopen(path("/proc/cpuinfo"), "re");
	bool found = false;
	char *line;

	while ((line = next(f)))
		found |= starts(line, "flags") && strstr(line, " invlpgb");
	return found;
}

static void forget_rings(void)
{
	while (nr_rings)
		close_ring(&rings[--nr_rings]);
}

/* Turns in which events are on, the first ones of TURNS. */
static int turns_on(void)
{
	double part = MOST_COST * nr_rings / (rate * EVENT_NS / 1e9);

	if (rate * TURN <= WANTED * nr_rings || part >= 1)
		return TURNS;
	return fmax(FEWEST, TURNS * part);
}

/* Of events that are on, or off, until the next turn. */
static void take_turn(bool next)
{
	double chains = WANTED * nr_rings;
	uint64_t now = 1;
	int i;

	/* Odd: a flush of other CPUs has two events, and one of them would never be seen. */
	for (; now < rate * TURN / chains; now = 2 * now + 1)
		;
	for (i = 0; i < nr_rings; i++) {
		if (next && now != period)
			ioctl(rings[i].fd, PERF_EVENT_IOC_PERIOD, &now);
		if (next && !on)
			ioctl(rings[i].fd, PERF_EVENT_IOC_ENABLE, 0);
		else if (on && !next)
			ioctl(rings[i].fd, PERF_EVENT_IOC_DISABLE, 0);
	}
	period = next ? now : period;
	on = next;
}

/* p->counts says whether there are any, or why not. */
void open_counts(struct prices *p)
{
	struct perf_event_attr attr = {
		.size = sizeof(attr), .type = PERF_TYPE_TRACEPOINT, .disabled = 1,
		.exclude_callchain_user = 1, .sample_max_stack = DEPTH, .sample_period = 1,
		.sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_CALLCHAIN,
		.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED,
	};
	static int cpus[4096];
	int nr = online_cpus(cpus, ARRAY_SIZE(cpus)), id, i, pages = PAGES;

	snprintf(p->counts, sizeof(p->counts), "none");
	if (strcmp(p->arch, "x86_64"))
		return;
	snprintf(p->counts, sizeof(p->counts), "invlpgb");
	if (broadcasts())
		return;
	errno = 0;
	id = tracepoint();
	snprintf(p->counts, sizeof(p->counts), errno == EACCES || errno == EPERM ?
		 "untraced" : "unopened");
	nr = nr < ARRAY_SIZE(cpus) ? nr : ARRAY_SIZE(cpus);
	rings = calloc(nr + 1, sizeof(*rings));
	before = calloc(nr + 1, sizeof(*before));
	if (id < 0 || !rings || !before)
		return;
	attr.config = id;
	for (i = 0; i < nr; i++) {
		struct ring *r = &rings[nr_rings];

		r->page = NULL;
		r->fd = open_event(&attr, -1, cpus[i], -1);
		if (r->fd < 0 && errno == ENODEV && nr_rings)
			continue;
		if (r->fd < 0)
			break;
		nr_rings++;
		if (!map_ring(r, &pages))
			break;
		ioctl(r->fd, PERF_EVENT_IOC_SET_FILTER, FILTER);
	}
	if (i < nr) {
		if (errno == EACCES || errno == EPERM)
			snprintf(p->counts, sizeof(p->counts), "untraced");
		forget_rings();
	}
	if (nr_rings)
		snprintf(p->counts, sizeof(p->counts), "tracepoint");
	begin = seconds_of(CLOCK_MONOTONIC);
	settled = begin;
	take_turn(true);
}

/* The innermost is where the event was, and may be of the tracepoint itself. */
static void add_flush(struct prices *p, const uint64_t *body, size_t words, int second)
{
	uint64_t room[DEPTH + 1], *chain = room;
	const struct symbol *s;
	char text[LINE];
	int nr = chain_of(body, words, chain), i;

	seen++;
	for (; nr > 0; nr--, chain++) {
		s = symbol_of(chain[0]);
		if (!s || !(starts(s->name, "__traceiter_") || starts(s->name, "perf_trace_")))
			break;
	}
	if (nr < 1 || flush_of(chain, nr, false) != WAITS)
		return;
	/* What is also sent to others runs here by the same call: it was counted then. */
	for (i = 1; i < nr && starts(s->name, "flush_tlb_func"); i++) {
		const struct symbol *outer = symbol_of(chain[i] - 1);

		if (outer && (starts(outer->name, "smp_call_function_many") ||
			      starts(outer->name, "on_each_cpu_cond_mask")))
			return;
	}
	chain_text(text, EVENT, chain, nr);
	if (!*text)
		return;
	if (nr_pending < PENDING)
		pending[nr_pending++] = add_stack(p, text, second, 1);
	else
		seen--;
}

/* Each chain stands for as many events as there were for each that was seen. */
static void weigh(const struct prices *p)
{
	if (p->nr_stacks > room) {
		flushes = realloc(flushes, 2 * p->nr_stacks * sizeof(*flushes));
		if (!flushes)
			err(FAILURE, "flushes");
		memset(flushes + room, 0, (2 * p->nr_stacks - room) * sizeof(*flushes));
		room = 2 * p->nr_stacks;
	}
	while (nr_pending)
		flushes[pending[--nr_pending]] += owed / seen;
	all_seen += seen;
	all_owed += owed;
	seen = 0;
	owed = 0;
}

/* What happened since the last window is taken to be as in this one. */
static void settle(const struct prices *p)
{
	double now = seconds_of(CLOCK_MONOTONIC), seconds = 0, events = 0;
	uint64_t value[2];
	int i;

	for (i = 0; i < nr_rings; i++) {
		if (read(rings[i].fd, value, sizeof(value)) != sizeof(value))
			continue;
		events += value[0] - before[i][0];
		seconds += (value[1] - before[i][1]) / 1e9 / nr_rings;
		memcpy(before[i], value, sizeof(value));
	}
	if (seconds <= 0)
		return;
	on_for += seconds;
	rates += events / seconds;
	squares += events / seconds * events / seconds;
	windows++;
	rate = fmax(events / seconds, rate * SLOWER);
	owed += events * fmax(1, (now - settled) / seconds);
	settled = now;
	if (seen)
		weigh(p);
}

/* Each TURN seconds. */
void count_flushes(struct prices *p, int second)
{
	int i;

	if (!nr_rings)
		return;
	for (i = 0; i < nr_rings && on; i++)
		drain_ring(p, &rings[i], second, add_flush);
	turn = (turn + 1) % TURNS;
	if (on && (turns_on() == TURNS || turn >= turns_on()))
		settle(p);
	take_turn(turn < turns_on());
}

/* Stacks of flushes are made of those of events. */
void close_counts(struct prices *p)
{
	double end = seconds_of(CLOCK_MONOTONIC), all, variance;
	int i, nr;
	char text[LINE];

	if (on) {
		for (i = 0; i < nr_rings; i++)
			drain_ring(p, &rings[i], end - begin, add_flush);
		settle(p);
	}
	/* Behind the last window there is none. */
	all = settled > begin ? (end - begin) / (settled - begin) : 0;
	nr = p->nr_stacks < room ? p->nr_stacks : room;
	for (i = 0; i < nr; i++) {
		if (flushes[i] * all < 0.5)
			continue;
		snprintf(text, sizeof(text), "%c%s", COUNTED, p->stacks[i].text + 1);
		add_stack(p, text, 0, llround(flushes[i] * all));
	}
	variance = windows > 1 ? (squares - rates * rates / windows) / (windows - 1) : 0;
	/* Half of the 95 % interval of their mean: what was between them is not known. */
	p->spread = 1.96 * sqrt(fmax(0, 1 - on_for / (end - begin)) * fmax(0, variance) * windows) /
		    fmax(rates, 1);
	if (windows < 2 && on_for < 0.9 * (end - begin))
		p->spread = 1;
	p->watched = all_owed ? fmin(all_seen / all_owed, 1) : 1;
	forget_rings();
}
