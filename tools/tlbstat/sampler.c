// SPDX-License-Identifier: GPL-2.0
/*
 * tlbstat price: samples of all CPUs in the kernel, by perf_event_open()
 *
 * Cycles where a CPU has a counter for them, else the timer of cpu-clock. A sample has the call
 * chain of the kernel. Each CPU has a ring, which is read ten times a second; of samples that
 * do not flush, only the number stays.
 */
#include "ring.h"
#include <sys/ioctl.h>

#define CYCLES			300000
#define CLOCK_NS		2000000

/*
 * Of a period of cpu-clock, which runs on in programs: with a multiple of a tick it would keep
 * step with all that timers start, and samples would not be independent.
 */
#define OFF_BEAT		0.9567385

static struct ring *rings;
static int nr_rings, ring_pages;
static bool arm64;

/* How long a cycle takes, of this CPU while it works; 0: it cannot be told. */
static double ns_per_cycle(void)
{
	struct perf_event_attr attr = {
		.size = sizeof(attr), .type = PERF_TYPE_HARDWARE,
		.config = PERF_COUNT_HW_CPU_CYCLES,
		.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING,
	};
	/* Cycles; for how long the event was on, and for how long it had a counter. */
	uint64_t value[3];
	double begin, end;
	int fd = open_event(&attr, 0, -1, -1);

	if (fd < 0)
		return 0;
	ioctl(fd, PERF_EVENT_IOC_RESET, 0);
	begin = seconds_of(CLOCK_THREAD_CPUTIME_ID);
	do
		end = seconds_of(CLOCK_THREAD_CPUTIME_ID);
	while (end - begin < 0.02);
	if (read(fd, value, sizeof(value)) != sizeof(value) || value[1] != value[2])
		value[0] = 0;
	close(fd);
	return value[0] ? (end - begin) * 1e9 / value[0] : 0;
}

static void forget_rings(void)
{
	while (nr_rings)
		close_ring(&rings[--nr_rings]);
}

static bool open_rings(struct perf_event_attr *attr, const int *cpus, int nr)
{
	int i;

	for (i = 0; i < nr; i++) {
		struct ring *r = &rings[nr_rings];

		r->page = NULL;
		r->fd = open_event(attr, -1, cpus[i], -1);
		/* One that went offline since. */
		if (r->fd < 0 && errno == ENODEV && nr_rings)
			continue;
		if (r->fd < 0)
			break;
		nr_rings++;
		if (!map_ring(r, &ring_pages))
			break;
	}
	if (i == nr && nr_rings)
		return true;
	i = errno;
	forget_rings();
	errno = i;
	return false;
}

int online_cpus(int *list, int room)
{
	static char text[4096];
	int fd = open("/sys/devices/system/cpu/online", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);

	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = 0;
	return list_of(text, list, room);
}

static int cpus[4096], nr_cpus;

/* Returns whether it samples; if not, @wrong says why. */
bool open_sampler(struct prices *p, int pages, double period_us, char *wrong, size_t size)
{
	struct perf_event_attr attr = {
		.size = sizeof(attr), .type = PERF_TYPE_HARDWARE,
		.config = PERF_COUNT_HW_CPU_CYCLES, .disabled = 1, .exclude_user = 1,
		.exclude_guest = 1, .exclude_callchain_user = 1, .sample_max_stack = DEPTH,
		.sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_CALLCHAIN,
		.sample_period = CYCLES,
		.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING,
	};
	double ns = ns_per_cycle();
	int i;

	arm64 = !strcmp(p->arch, "aarch64");
	ring_pages = pages;
	nr_cpus = online_cpus(cpus, ARRAY_SIZE(cpus));
	rings = calloc(nr_cpus + 1, sizeof(*rings));
	if (!nr_cpus || !rings) {
		snprintf(wrong, size, "the list of CPUs cannot be read");
		return false;
	}
	nr_cpus = nr_cpus < ARRAY_SIZE(cpus) ? nr_cpus : ARRAY_SIZE(cpus);
	if (ns && period_us)
		attr.sample_period = period_us * 1000 / ns ?: 1;
	p->period_us = attr.sample_period * ns / 1000;
	snprintf(p->event, sizeof(p->event), "cycles:k");
	if (!ns || !open_rings(&attr, cpus, nr_cpus)) {
		attr.type = PERF_TYPE_SOFTWARE;
		attr.config = PERF_COUNT_SW_CPU_CLOCK;
		attr.sample_period = (period_us ? period_us * 1000 : CLOCK_NS) * OFF_BEAT;
		p->period_us = attr.sample_period / 1000.0;
		snprintf(p->event, sizeof(p->event), "cpu-clock");
		ring_pages = pages;
		if (!open_rings(&attr, cpus, nr_cpus)) {
			snprintf(wrong, size, "%s",
				 errno == EACCES || errno == EPERM ?
				 "samples need root or CAP_PERFMON (perf_event_paranoid)" :
				 strerror(errno));
			return false;
		}
	}
	p->cpus = nr_rings;
	for (i = 0; i < nr_rings; i++)
		ioctl(rings[i].fd, PERF_EVENT_IOC_ENABLE, 0);
	return true;
}

/* --- records ------------------------------------------------------------------------------- */

static void add_sample(struct prices *p, const uint64_t *body, size_t words, int second)
{
	uint64_t chain[DEPTH + 1];
	int nr = chain_of(body, words, chain);
	char text[LINE];
	enum flush kind;

	p->samples++;
	/* It interrupted the kernel, but comes when a program runs again: nothing was lost. */
	if (nr < 0 || (!nr && !(body[0] >> 63)))
		return;
	if (!nr) {
		p->chainless++;
		chain[nr++] = body[0];
	}
	kind = flush_of(chain, nr, arm64);
	if (kind == NO_FLUSH)
		return;
	chain_text(text, kind, chain, nr);
	if (*text)
		add_stack(p, text, second, 1);
}

static bool are_others(void)
{
	static int now[4096];
	int nr = online_cpus(now, ARRAY_SIZE(now));

	nr = nr < ARRAY_SIZE(now) ? nr : ARRAY_SIZE(now);
	return nr && (nr != nr_cpus || memcmp(now, cpus, nr * sizeof(*now)));
}

void drain_sampler(struct prices *p, int second)
{
	int i;

	p->hotplugged |= are_others();
	for (i = 0; i < nr_rings; i++)
		p->lost += drain_ring(p, &rings[i], second, add_sample);
}

/*
 * An event does not come back with a CPU that was off for a while; and it shares counters with
 * what others have opened.
 */
static void look_at_times(struct prices *p, const struct ring *r)
{
	uint64_t value[3];

	if (read(r->fd, value, sizeof(value)) != sizeof(value)) {
		p->hotplugged = 1;
		return;
	}
	p->hotplugged |= value[1] / 1e9 < 0.95 * p->seconds - 0.1;
	p->shared |= value[2] < 0.95 * value[1];
}

void close_sampler(struct prices *p)
{
	int i;

	for (i = 0; i < nr_rings; i++)
		ioctl(rings[i].fd, PERF_EVENT_IOC_DISABLE, 0);
	drain_sampler(p, p->seconds);
	for (i = 0; i < nr_rings; i++)
		look_at_times(p, &rings[i]);
	forget_rings();
}
