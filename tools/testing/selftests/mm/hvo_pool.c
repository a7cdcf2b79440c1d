// SPDX-License-Identifier: GPL-2.0
/*
 * HugeTLB pools whose struct pages are given back: what they save, and that every struct
 * page is what it should be, while other CPUs read all of them.
 *
 * switch   it is turned on while a reference is taken late and all CPUs take others: that is
 *          waited for.
 * pool     each size grows and shrinks, by exactly the memory that it should.
 * demote   large pages become small ones without getting their struct pages back.
 * use      pages of a pool are written, read, and copied on write.
 * defaults with the parameters that users have, every page of a pool is optimised.
 * surplus  pages beyond the pool stop nobody: they are counted, and keep their struct pages.
 * contig   ranges are allocated where pages of a pool are being freed: nobody waits for long.
 * duty     several tasks pause, and the other CPUs run for their share of the time.
 * readers  each CPU reads all struct pages while windows stay open for long.
 * deaf     a CPU that does not answer: pools grow and shrink all the same, by stop_machine().
 * lock     one CPU holds a lock for reading whenever a pause stops it, another waits for that
 *          lock with interrupts masked: the pause is cancelled, both go on.
 * stop     everything with stop_machine(); and what one strategy has changed is undone with the
 *          other.
 * irqs     /proc/interrupts counts pauses, and none of them as a backtrace.
 * hotplug  a CPU goes and comes while pools are resized: no pause meanwhile.
 * offline  a page frame of a free page of a pool is soft-offlined.
 * poison   several page frames of a page in use are bad: once it is freed, these are marked, and no
 *          others.
 * race     a reference is taken late to a page that became a tail meanwhile.
 * fail     allocations fail at random: each page is changed completely or not at all.
 *
 * Only if asked for:
 *
 * panic    a CPU panics in a window.
 * oops     a task dies in a window, which has to be a panic.
 *
 * With --seconds, instead: pools of random sizes, by strategies at random, whatever else there is
 * in the memory.
 *
 * The kernel itself fails these, by a warning, where it sees a translation fault or a stale
 * translation; with --skip it has to.
 */
#include "hvo_pool.h"

int rounds = 2;
const char *skip;

/* At most this many, or how many fit of what there is to spare. */
long few(unsigned long kb, long most)
{
	long nr = tlb_rs_meminfo_kb(MEMINFO, "MemFree") / 2 / (long)kb;

	return nr > most ? most : nr;
}

long some(unsigned long kb)
{
	return few(kb, 64);
}

bool verify(long shared)
{
	long violations = get_field(HVO_DEBUG "verify", "violations");
	long found = get_field(HVO_DEBUG "verify", "shared");
	char buf[4096];

	if (!violations && found == shared)
		return true;
	if (!tlb_rs_read_file(HVO_DEBUG "verify", buf, sizeof(buf)))
		ksft_print_msg("%ld shared pages expected:\n%s", shared, buf);
	return false;
}

/* --- who reads struct pages -------------------------------------------------------- */

static bool readers_stop;
long nr_reads;

static void *reader(void *arg)
{
	tlb_rs_pin_cpu((long)arg);
	while (!__atomic_load_n(&readers_stop, __ATOMIC_RELAXED)) {
		long nr = get_field(HVO_DEBUG "read", "pages");

		if (nr > 0)
			__atomic_fetch_add(&nr_reads, nr, __ATOMIC_RELAXED);
	}
	return NULL;
}

static pthread_t readers[64];

void readers_begin(void)
{
	readers_stop = false;
	nr_reads = 0;
	for (long i = 0; i < nr_cpus && i < 64; i++)
		pthread_create(&readers[i], NULL, reader, (void *)i);
}

void readers_end(void)
{
	__atomic_store_n(&readers_stop, true, __ATOMIC_RELAXED);
	for (long i = 0; i < nr_cpus && i < 64; i++)
		pthread_join(readers[i], NULL);
}

/* The smallest that gives something back. */
unsigned long small_size(void)
{
	for (int i = 0; i < nr_sizes; i++) {
		if (optimizable(sizes[i]))
			return sizes[i];
	}
	ksft_exit_skip("no size of HugeTLB pages with two pages of struct pages\n");
}

/* With pages of 64 KiB it takes one of 16 GiB. */
static const char *cannot_demote(void)
{
	for (int i = 0; i < nr_sizes; i++) {
		if (sizes[i] > small_size() && some(sizes[i]))
			return NULL;
	}
	return "needs two sizes of pages, and memory for the larger one";
}

const char *needs_memory(void)
{
	return some(small_size()) ? NULL : "needs memory for one page";
}

const char *needs_injection(void)
{
	return access(HVO_DEBUG "stall_us", W_OK) ? "needs CONFIG_TLB_RS_FAULT_INJECTION" : NULL;
}

const char *needs_two_cpus(void)
{
	return nr_cpus < 2 ? "needs 2 CPUs" : needs_injection();
}

static const char *needs_three_cpus(void)
{
	return nr_cpus < 3 ? "needs 3 CPUs" : needs_injection();
}

static const char *cannot_crowd(void)
{
	return nr_cpus < 2 ? "needs 2 CPUs" : needs_memory();
}

/* How often the other CPUs were stopped, or were to be. */
long long stops(void)
{
	return tlb_rs_vmstat_read("cpu_pause") + tlb_rs_vmstat_read("cpu_pause_cancelled") +
	       tlb_rs_vmstat_read("cpu_pause_fallback");
}

static const struct {
	const char *name;
	bool (*test)(void);
	const char *(*cannot)(void);	/* why it is skipped, or NULL */
	bool on_demand;
	bool is_off;			/* turns it on by itself */
} cases[] = {
	{ .name = "switch", .test = test_switch, .cannot = cannot_switch, .is_off = true },
	{ .name = "pool", .test = test_pool },
	{ .name = "demote", .test = test_demote, .cannot = cannot_demote },
	{ .name = "use", .test = test_use, .cannot = needs_memory },
	{ .name = "defaults", .test = test_defaults },
	{ .name = "surplus", .test = test_surplus, .cannot = needs_memory },
	{ .name = "contig", .test = test_contig, .cannot = cannot_demote },
	{ .name = "duty", .test = test_duty, .cannot = cannot_crowd },
	{ .name = "readers", .test = test_readers, .cannot = needs_injection },
	{ .name = "deaf", .test = test_deaf, .cannot = needs_two_cpus },
	{ .name = "lock", .test = test_lock, .cannot = needs_three_cpus },
	{ .name = "stop", .test = test_stop },
	{ .name = "irqs", .test = test_irqs, .cannot = cannot_interrupt },
	{ .name = "hotplug", .test = test_hotplug, .cannot = cannot_hotplug },
	{ .name = "race", .test = test_race, .cannot = needs_two_cpus },
	{ .name = "fail", .test = test_fail, .cannot = cannot_fail },
	{ .name = "offline", .test = test_offline, .cannot = cannot_offline },
	{ .name = "poison", .test = test_poison, .cannot = cannot_poison },
	{ .name = "panic", .test = test_panic, .cannot = needs_injection, .on_demand = true },
	{ .name = "oops", .test = test_oops, .cannot = needs_two_cpus, .on_demand = true },
};

static bool is_chosen(unsigned int i, const char *only)
{
	if (only)
		return !strcmp(only, cases[i].name);
	return !cases[i].on_demand;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "case", required_argument, NULL, 'c' },
		{ "rounds", required_argument, NULL, 'r' },
		{ "seconds", required_argument, NULL, 't' },
		{ "skip", required_argument, NULL, 's' },
		{ "help", no_argument, NULL, 'h' },
		{ },
	};
	const char *only = NULL;
	unsigned int i, planned = 0;
	int c, seconds = 0;

	while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		switch (c) {
		case 'c':
			only = optarg;
			break;
		case 'r':
			rounds = tlb_rs_number(optarg, 1, 1000);
			break;
		case 't':
			seconds = tlb_rs_number(optarg, 1, 1000000);
			break;
		case 's':
			skip = optarg;
			break;
		default:
			printf("usage: %s [--case NAME] [--rounds N] [--seconds N] [--skip HOOK]\n",
			       argv[0]);
			return c == 'h' ? 0 : KSFT_FAIL;
		}
	}
	hvo_set_up(true);
	tlb_rs_keep(HVO_DEBUG "stall_us");
	tlb_rs_keep(HVO_DEBUG "deaf_cpu");
	if (skip && !tlb_rs_setting(HVO_DEBUG "skip_hook", skip))
		ksft_exit_fail_msg("no hook %s\n", skip);

	if (seconds) {
		hvo_turn_on();
		ksft_set_plan(1);
		ksft_test_result(test_churn(seconds), "hvo: churn\n");
		ksft_finished();
	}
	hvo_need_empty_pools();
	for (i = 0; i < ARRAY_SIZE(cases); i++)
		planned += is_chosen(i, only);
	if (!planned)
		ksft_exit_fail_msg("no case '%s'\n", only);
	ksft_set_plan(planned);
	for (i = 0; i < ARRAY_SIZE(cases); i++) {
		const char *why = NULL;

		if (!is_chosen(i, only))
			continue;
		if (!cases[i].is_off)
			hvo_turn_on();
		if (cases[i].cannot)
			why = cases[i].cannot();
		if (why) {
			ksft_print_msg("%s: %s\n", cases[i].name, why);
			ksft_test_result_skip("hvo: %s\n", cases[i].name);
		} else {
			ksft_test_result(cases[i].test(), "hvo: %s\n", cases[i].name);
		}
	}
	ksft_finished();
}
