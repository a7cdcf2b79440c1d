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
 * irqs     /proc/interrupts counts pauses, and none of them as a backtrace; by access flags there
 *          are none.
 * hotplug  a CPU goes and comes while pools are resized: no pause meanwhile.
 * offline  a page frame of a free page of a pool is soft-offlined.
 * poison   several page frames of a page in use are bad: once it is freed, these are marked, and no
 *          others.
 * marks    page frames of a large page are bad while it is demoted: of the smaller ones, those
 *          that have them are marked.
 * race     a reference is taken late to a page that became a tail meanwhile.
 * fail     allocations fail at random: each page is changed completely or not at all.
 * young    exchanges of entries fail, as if other CPUs had used them: the same.
 * worker   no page could be optimised for seconds: the worker does it, each of them is counted.
 * late_cpu a CPU that seems not to set access flags comes up; if HVO is on since boot, it does not.
 * writes   a CPU counts in the struct pages of a page that is optimised: no value is lost.
 * heads    a page is demoted in several tries: between them, all tails have their heads.
 * off      the switch is turned off while the worker has something to do.
 *
 * Only if -t names them:
 *
 * panic    a CPU panics in a window.
 * oops     a task dies in a window, which has to be a panic.
 * churn    pools of random sizes, by strategies at random, whatever else there is in the memory,
 *          for TLB_SECONDS.
 * storm    everything at once for TLB_SECONDS: after each step the pages of struct pages are
 *          counted.
 *
 * The kernel itself fails these, by a warning, where it sees a translation fault or a stale
 * translation. With TLB_SKIP=HOOK it has to.
 */
#include "hvo_pool.h"
#include "tlb_rs_harness.h"

#define CHURN_MOST_S	1000000

int rounds;
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

/* With pages of 64 KiB it takes one of 16 GiB. */
static const char *cannot_demote(void)
{
	for (int i = 0; i < nr_sizes; i++) {
		if (sizes[i] > hvo_small_size() && some(sizes[i]))
			return NULL;
	}
	return "needs two sizes of pages, and memory for the larger one";
}

const char *needs_memory(void)
{
	return some(hvo_small_size()) ? NULL : "needs memory for one page";
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

static void set_up(void)
{
	char path[64];

	tlb_rs_undo();
	hvo_set_up();
	tlb_rs_keep(HVO_DEBUG "stall_us");
	tlb_rs_keep(HVO_DEBUG "fail_swap");
	tlb_rs_keep(HVO_DEBUG "deaf_cpu");
	tlb_rs_keep(HVO_DEBUG "flagless_cpu");
	snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%ld/online", nr_cpus - 1);
	tlb_rs_keep(path);
	/* They read 0 now. */
	tlb_rs_keep(HVO_DEBUG "count_pfn");
	tlb_rs_keep(HVO_DEBUG "heads_pfn");
	rounds = tlb_rs_env_number("TLB_ROUNDS", 2, 1, 1000);
	skip = tlb_rs_env("TLB_SKIP");
	if (skip && !tlb_rs_setting(HVO_DEBUG "skip_hook", skip))
		ksft_exit_fail_msg("no hook %s\n", skip);
}

/* The case turns it on by itself. */
FIXTURE(hvo_pool_off) {
};

FIXTURE_SETUP(hvo_pool_off)
{
	set_up();
	tlb_rs_at_exit(hvo_empty_pools);
}

FIXTURE_TEARDOWN_PARENT(hvo_pool_off)
{
	tlb_rs_tear_down();
}

TEST_F_TIMEOUT(hvo_pool_off, switch, TLB_RS_TIMEOUT_S)
{
	const char *why = cannot_switch();

	if (why)
		SKIP(return, "%s", why);
	EXPECT_TRUE(test_switch());
}

FIXTURE(hvo_pool) {
};

FIXTURE_SETUP(hvo_pool)
{
	set_up();
	tlb_rs_at_exit(hvo_empty_pools);
	hvo_turn_on();
}

FIXTURE_TEARDOWN_PARENT(hvo_pool)
{
	tlb_rs_tear_down();
}

TEST_F_TIMEOUT(hvo_pool, pool, TLB_RS_TIMEOUT_S)
{
	const char *why = needs_memory();

	if (why)
		SKIP(return, "%s", why);
	EXPECT_TRUE(test_pool());
}

TEST_F_TIMEOUT(hvo_pool, demote, TLB_RS_TIMEOUT_S)
{
	const char *why = cannot_demote();

	if (why)
		SKIP(return, "%s", why);
	EXPECT_TRUE(test_demote());
}

TEST_F_TIMEOUT(hvo_pool, use, TLB_RS_TIMEOUT_S)
{
	const char *why = needs_memory();

	if (why)
		SKIP(return, "%s", why);
	EXPECT_TRUE(test_use());
}

TEST_F_TIMEOUT(hvo_pool, defaults, TLB_RS_TIMEOUT_S)
{
	const char *why = needs_memory();

	if (why)
		SKIP(return, "%s", why);
	EXPECT_TRUE(test_defaults());
}

TEST_F_TIMEOUT(hvo_pool, surplus, TLB_RS_TIMEOUT_S)
{
	const char *why = needs_memory();

	if (why)
		SKIP(return, "%s", why);
	EXPECT_TRUE(test_surplus());
}

TEST_F_TIMEOUT(hvo_pool, contig, TLB_RS_TIMEOUT_S)
{
	const char *why = cannot_demote();

	if (why)
		SKIP(return, "%s", why);
	EXPECT_TRUE(test_contig());
}

TEST_F_TIMEOUT(hvo_pool, duty, TLB_RS_TIMEOUT_S)
{
	const char *why = cannot_crowd();

	if (why)
		SKIP(return, "%s", why);
	set(HVO_PARAM "strategy", "pause");
	EXPECT_TRUE(test_duty());
}

TEST_F_TIMEOUT(hvo_pool, readers, TLB_RS_TIMEOUT_S)
{
	const char *why = needs_injection() ?: needs_memory();

	if (why)
		SKIP(return, "%s", why);
	EXPECT_TRUE(test_readers());
}

TEST_F_TIMEOUT(hvo_pool, deaf, TLB_RS_TIMEOUT_S)
{
	const char *why = needs_two_cpus();

	if (why)
		SKIP(return, "%s", why);
	set(HVO_PARAM "strategy", "pause");
	EXPECT_TRUE(test_deaf());
}

TEST_F_TIMEOUT(hvo_pool, lock, TLB_RS_TIMEOUT_S)
{
	const char *why = needs_three_cpus();

	if (why)
		SKIP(return, "%s", why);
	set(HVO_PARAM "strategy", "pause");
	EXPECT_TRUE(test_lock());
}

TEST_F_TIMEOUT(hvo_pool, stop, TLB_RS_TIMEOUT_S)
{
	EXPECT_TRUE(test_stop());
}

TEST_F_TIMEOUT(hvo_pool, irqs, TLB_RS_TIMEOUT_S)
{
	const char *why = cannot_interrupt();

	if (why)
		SKIP(return, "%s", why);
	EXPECT_TRUE(test_irqs());
}

TEST_F_TIMEOUT(hvo_pool, hotplug, TLB_RS_TIMEOUT_S)
{
	const char *why = cannot_hotplug();

	if (why)
		SKIP(return, "%s", why);
	set(HVO_PARAM "strategy", "pause");
	EXPECT_TRUE(test_hotplug());
}

TEST_F_TIMEOUT(hvo_pool, race, TLB_RS_TIMEOUT_S)
{
	const char *why = needs_two_cpus();

	if (why)
		SKIP(return, "%s", why);
	EXPECT_TRUE(test_race());
}

TEST_F_TIMEOUT(hvo_pool, fail, TLB_RS_TIMEOUT_S)
{
	const char *why = cannot_fail();

	if (why)
		SKIP(return, "%s", why);
	EXPECT_TRUE(test_fail());
}

TEST_F_TIMEOUT(hvo_pool, young, TLB_RS_TIMEOUT_S)
{
	const char *why = needs_injection();

	if (why || !hvo_by_flags())
		SKIP(return, "%s", why ?: "CPUs do not set the access flag");
	EXPECT_EQ(!skip, test_young());
}

TEST_F_TIMEOUT(hvo_pool, worker, TLB_RS_TIMEOUT_S)
{
	const char *why = needs_injection();

	if (why || !hvo_by_flags())
		SKIP(return, "%s", why ?: "CPUs do not set the access flag");
	EXPECT_TRUE(test_late_worker());
}

TEST_F_TIMEOUT(hvo_pool, off, TLB_RS_TIMEOUT_S)
{
	const char *why = needs_memory();

	if (why)
		SKIP(return, "%s", why);
	EXPECT_TRUE(test_off());
}

TEST_F_TIMEOUT(hvo_pool, writes, TLB_RS_TIMEOUT_S)
{
	const char *why = needs_injection() ?: needs_two_cpus();

	if (why || !hvo_by_flags())
		SKIP(return, "%s", why ?: "CPUs do not set the access flag");
	EXPECT_TRUE(test_writes());
}

TEST_F_TIMEOUT(hvo_pool, heads, TLB_RS_TIMEOUT_S)
{
	const char *why = needs_injection() ?: cannot_demote() ?: needs_two_cpus();

	if (why || !hvo_by_flags())
		SKIP(return, "%s", why ?: "CPUs do not set the access flag");
	EXPECT_TRUE(test_heads());
}

TEST_F_TIMEOUT(hvo_pool, late_cpu, TLB_RS_TIMEOUT_S)
{
	const char *why = cannot_be_late();

	if (why)
		SKIP(return, "%s", why);
	EXPECT_TRUE(test_late());
}

TEST_F_TIMEOUT(hvo_pool, offline, TLB_RS_TIMEOUT_S)
{
	const char *why = cannot_offline();

	if (why)
		SKIP(return, "%s", why);
	EXPECT_TRUE(test_offline());
}

TEST_F_TIMEOUT(hvo_pool, poison, TLB_RS_TIMEOUT_S)
{
	const char *why = cannot_poison();

	if (why)
		SKIP(return, "%s", why);
	EXPECT_TRUE(test_poison());
}

TEST_F_TIMEOUT(hvo_pool, marks, TLB_RS_TIMEOUT_S)
{
	const char *why = cannot_poison() ?: cannot_demote() ?: needs_two_cpus();

	if (why)
		SKIP(return, "%s", why);
	EXPECT_TRUE(test_marks());
}

/* Those of this fixture have to be named. */
FIXTURE(hvo_pool_on_demand) {
};

FIXTURE_SETUP(hvo_pool_on_demand)
{
	set_up();
	hvo_turn_on();
}

FIXTURE_TEARDOWN_PARENT(hvo_pool_on_demand)
{
	tlb_rs_tear_down();
}

TEST_F_TIMEOUT(hvo_pool_on_demand, panic, TLB_RS_TIMEOUT_S)
{
	const char *why = needs_injection();

	if (why)
		SKIP(return, "%s", why);
	EXPECT_TRUE(test_panic());
}

TEST_F_TIMEOUT(hvo_pool_on_demand, oops, TLB_RS_TIMEOUT_S)
{
	const char *why = needs_two_cpus();

	if (why)
		SKIP(return, "%s", why);
	EXPECT_TRUE(test_oops());
}

TEST_F_TIMEOUT(hvo_pool_on_demand, churn, CHURN_MOST_S + TLB_RS_TIMEOUT_S)
{
	long seconds = tlb_rs_env_number("TLB_SECONDS", 0, 1, CHURN_MOST_S);

	if (!seconds)
		SKIP(return, "for how many TLB_SECONDS?");
	EXPECT_TRUE(test_churn(seconds));
}

TEST_F_TIMEOUT(hvo_pool_on_demand, storm, CHURN_MOST_S + TLB_RS_TIMEOUT_S)
{
	const char *why = hvo_pools_in_use() ?: needs_injection();

	if (why)
		SKIP(return, "%s", why);
	EXPECT_TRUE(test_storm(tlb_rs_env_number("TLB_SECONDS", 60, 1, CHURN_MOST_S)));
}

int main(int argc, char **argv)
{
	const char *why = hvo_missing(true);

	/* Only churn does without. */
	if (!why && !tlb_rs_env("TLB_SECONDS"))
		why = hvo_pools_in_use();
	tlb_rs_skip_all(why);
	return tlb_rs_run_without("hvo_pool_on_demand", argc, argv);
}
