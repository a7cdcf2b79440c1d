// SPDX-License-Identifier: GPL-2.0
/*
 * tlbstat price without samples: counters, times what a flush costs this process
 *
 * A mean is worth nothing on a machine that works. So mprotect() of a page that was touched, less
 * that of one that was not, is timed in batches, and the tenth percentile counts. Where the upper
 * quartile is three times as much, nothing is printed of a price.
 */
#include "price.h"
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#define BATCHES			60
#define ROUNDS			50
#define LEAST_BATCHES		10
#define LONGEST			0.6	/* seconds */

static bool ends_now;

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

static void *spin(void *cpu)
{
	double end = seconds_of(CLOCK_MONOTONIC) + 2 * LONGEST;

	pin((intptr_t)cpu);
	/* A hypervisor that loses a flush would let it spin for ever. */
	while (!__atomic_load_n(&ends_now, __ATOMIC_RELAXED) &&
	       seconds_of(CLOCK_MONOTONIC) < end)
		;
	return NULL;
}

static double batch(char *page)
{
	double begin = seconds_of(CLOCK_MONOTONIC);
	int i;

	for (i = 0; i < ROUNDS; i++) {
		if (mprotect(page, page_size, PROT_READ) ||
		    mprotect(page, page_size, PROT_READ | PROT_WRITE))
			err(FAILURE, "mprotect");
		/* It is used again, so that it has to be flushed. */
		if (page[page_size])
			__atomic_store_n(page, 1, __ATOMIC_RELAXED);
	}
	return (seconds_of(CLOCK_MONOTONIC) - begin) / ROUNDS * 1e6;
}

/* Microseconds of a flush; NAN: the machine is too busy to tell. */
static double cost(void)
{
	static double with[BATCHES], without[BATCHES];
	char *pages = mmap(NULL, 4 * page_size, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	double end = seconds_of(CLOCK_MONOTONIC) + LONGEST;
	int i;

	if (pages == MAP_FAILED)
		err(FAILURE, "mmap");
	/* The second one of each pair says whether the first one is touched. */
	pages[page_size] = 1;
	pages[0] = 1;
	for (i = 0; i < BATCHES && seconds_of(CLOCK_MONOTONIC) < end; i++) {
		with[i] = batch(pages);
		without[i] = batch(pages + 2 * page_size);
	}
	munmap(pages, 4 * page_size);
	qsort(with, i, sizeof(*with), by_size);
	qsort(without, i, sizeof(*without), by_size);
	if (i < LEAST_BATCHES || with[i * 3 / 4] > 3 * with[i / 10] ||
	    with[i / 10] <= without[i / 10])
		return NAN;
	return with[i / 10] - without[i / 10];
}

/* Of a flush on this CPU alone, and with another one that runs the same process. */
static void calibrate(double *alone, double *two)
{
	int cpus[2], nr = 0, cpu;
	cpu_set_t set;
	pthread_t other;

	*alone = *two = NAN;
	if (sched_getaffinity(0, sizeof(set), &set))
		return;
	for (cpu = 0; cpu < CPU_SETSIZE && nr < 2; cpu++)
		if (CPU_ISSET(cpu, &set))
			cpus[nr++] = cpu;
	/* Written before the other one reads it, so that its page is not copied while it does. */
	ends_now = false;
	pin(cpus[0]);
	*alone = cost();
	if (nr > 1 && !pthread_create(&other, NULL, spin, (void *)(intptr_t)cpus[1])) {
		usleep(10000);
		*two = cost();
		__atomic_store_n(&ends_now, true, __ATOMIC_RELAXED);
		pthread_join(other, NULL);
		/* The other one had no CPU. */
		if (*two <= *alone)
			*two = NAN;
	}
	sched_setaffinity(0, sizeof(set), &set);
}

static void say(bool json, const char *name, double rate, double us)
{
	if (json)
		printf(isnan(us) ? ",\"%s\":{\"per_s\":%.6g,\"ms_per_s\":null}" :
		       ",\"%s\":{\"per_s\":%.6g,\"ms_per_s\":%.6g}", name, rate, rate * us / 1000);
	else
		printf("%-40s %10s %10s\n", name, brief(rate), brief(rate * us / 1000));
}

/* @seconds: 0, until the command ends, or 10 without one. */
int price_by_counters(double seconds, bool json, const char *why, char **command)
{
	static struct sample was, now;
	double alone, two, thp, moved, split;
	const char *busy = "";
	int failed = 0, sig;
	pid_t pid = 0;
	siginfo_t info;
	char *line;
	long long v;
	bool x86;

	block_signals();
	calibrate(&alone, &two);
	seconds = seconds ?: command ? INFINITY : 10;
	take(&was);
	if (command)
		pid = start_group(command, -1);
	seconds += seconds_of(CLOCK_MONOTONIC);
	do
		sig = wait_until(fmin(seconds, seconds_of(CLOCK_MONOTONIC) + 1e6), &info);
	while (sig == SIGCHLD && !command_ended(command, &pid, &failed));
	take(&now);
	end_group(pid);
	seconds = fmax(now.uptime - was.uptime, 0.001);
	x86 = !strcmp(now.arch, "x86_64");
	if (isnan(alone) || (x86 && isnan(two)))
		busy = "; the machine is too busy to calibrate it";
	line = first_line(path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"));
	thp = number(line, &v) && v > 0 ? v / page_size : 512;
	if (json)
		printf("{\"tlbstat_price_by_counters\":1,\"kernel\":\"%s\",\"arch\":\"%s\",%s%s\"",
		       now.kernel, now.arch, "\"why\":\"", why);
	else
		printf("Linux %s %s, NO SAMPLES: %s.\n"
		       "Counters of %.1f s, times the cost of a flush of this process:\n"
		       "%s us alone, %s us with one more CPU%s\n"
		       "%-40s %10s %10s\n", now.kernel, now.arch, why, seconds, brief(alone),
		       brief(two), busy, "", "per second", "ms/s");
	if (x86) {
		say(json, "CPUs interrupted by flushes",
		    (get(&now, "tlb_interrupts") - get(&was, "tlb_interrupts")) / seconds,
		    isnan(two - alone) ? NAN : fmax(two - alone, 0));
	} else {
		moved = get(&now, "pgmigrate_success") - get(&was, "pgmigrate_success") -
			(thp - 1) * (get(&now, "thp_migration_success") -
				     get(&was, "thp_migration_success"));
		split = get(&now, "thp_split_page") - get(&was, "thp_split_page");
		say(json, "pages migrated, a flush each", moved / seconds, alone);
		say(json, "huge pages split, a flush for each page", thp * split / seconds, alone);
	}
	puts(json ? "}" : "Other causes, such as munmap() and mprotect(), have no counter.");
	return failed ? FAILURE : 0;
}
