// SPDX-License-Identifier: GPL-2.0
/*
 * A deferral is bounded, and nobody has to wait for memory that it holds:
 *
 * limit    no node ever has more pages in the ledger than vm.migrc_max_pages.
 * age      without anybody's doing, the ledger is empty again after
 *          vm.migrc_max_age_ms, and not before, although there was a drain meanwhile.
 * exit     processes are killed while and after their pages are moved; the kernel
 *          (KASAN) fails this one, not the program, when the hook is removed.
 * off      a write of 0 to vm.migrc_enable returns with an empty ledger, while
 *          another thread moves pages all the time.
 * pressure an allocation of all memory that there was before the ledger was filled
 *          succeeds, without an OOM kill.
 * offline  a memory block with pages of the ledger goes offline.
 * hugetlb  a gigantic page is allocated where pages of the ledger are.
 * poison   a page of the ledger is found by memory failure, and released.
 * denied, thp, compaction
 *          what may not be deferred is not, and counted by the reason: a node with little
 *          free memory, on x86 a mm that only one CPU uses; a THP that is mapped as one;
 *          compaction. (Other tests have the other reasons.)
 * nested   a migration whose allocation makes the same task migrate others
 *          (compaction) does not mix up the two.
 *
 * With TLB_SKIP=HOOK the damage is counted, and TLB_EXPECT=N is how much there has to be.
 */
#include "migrc_bounds.h"
#include "migrc_harness.h"

size_t psize;
struct shared *sh;
static char *scratch;
static struct migrc_options asked;

/* Another CPU that uses this mm: a flush of this CPU only is never deferred. */
static struct tlb_rs_readers readers;

void unmap(struct migrc_set *set, char *base)
{
	munmap(base, set->nr * psize);
	migrc_set_free(set);
}

/* --- limit, age, off -------------------------------------------------------------- */

static struct migrc_watch watch;

static void case_limit(long rounds, struct result *r)
{
	/* A page is counted, and then the ledger is found to be full. */
	long limit = 512, slack = tlb_rs_nr_cpus();
	struct migrc_set set;
	char *base = migrc_map_readonly(&set, NR_PAGES, SEED);
	long round;
	int node;

	migrc_write(MIGRC_PAGES, limit);
	migrc_write(MIGRC_AGE, LONG_MS);
	migrc_watch_begin(&watch);
	for (round = 0; round < rounds; round++) {
		struct migrc_counters before, d;

		migrc_read(&before);
		migrc_move(&set, 0, !(round & 1), MPOL_MF_MOVE);
		migrc_diff(&before, &d);
		r->armed += d.val[MIGRC_DEFERRED] >= limit;
		for (node = 0; node < 2; node++)
			r->stale += migrc_held(node) > limit;
	}
	migrc_watch_end(&watch);
	r->stale += watch.most > limit + slack;
	ksft_print_msg("limit: at most %lld of %ld pages, looked at %ld times\n", watch.most, limit,
		       watch.polls);
	r->stale += !!tlb_rs_check(base, NR_PAGES * psize, SEED);
	unmap(&set, base);
}

static void case_age(long rounds, struct result *r)
{
	/* The timer rounds to ticks of up to 10 ms, at both ends. */
	long age_ms = 100, tick_ms = 20, round, late = 0, early = 0;
	struct migrc_set set;
	/* Few: the timer must not be faster than the move. */
	char *base = migrc_map_readonly(&set, 16, SEED);
	__u64 begin, start, ns, most = 0;

	if (!tlb_rs_patching_is_safe()) {
		r->why = "no live patching under x86_64 TCG";
		return;
	}
	migrc_write(MIGRC_PAGES, NR_PAGES);
	migrc_write(MIGRC_AGE, age_ms);
	for (round = 0; round < rounds; round++) {
		struct migrc_counters before, d;

		/* A drain before the age is reached: that of migrc_drain() would be the timer's. */
		migrc_move(&set, 0, 1, MPOL_MF_MOVE);
		migrc_write(MIGRC_ENABLE, 0);
		migrc_write(MIGRC_ENABLE, 1);
		tlb_rs_sleep_us(age_ms * 700);
		migrc_read(&before);
		begin = tlb_rs_now_ns();
		migrc_move(&set, 0, 0, MPOL_MF_MOVE);
		start = tlb_rs_now_ns();
		migrc_diff(&before, &d);
		r->armed += d.val[MIGRC_DEFERRED] > 0;
		while (migrc_held(-1) && tlb_rs_now_ns() - start < 5000000000ULL)
			tlb_rs_sleep_us(2000);
		ns = tlb_rs_now_ns() - start;
		most = ns > most ? ns : most;
		late += ns > (age_ms + 50) * 1000000ULL;
		early += tlb_rs_now_ns() - begin < (age_ms - tick_ms) * 1000000ULL;
		r->stale += ns >= 5000000000ULL;
	}
	ksft_print_msg("age: %ld of %ld times later than %ld ms, at most %llu us, %ld too early\n",
		       late, rounds, age_ms + 50, most / 1000, early);
	/* The host may have been elsewhere now and then. */
	r->stale += early + (late > rounds / 2);
	unmap(&set, base);
}

static struct {
	struct migrc_set set;
	bool stop;
	long moves;
} moving;

static void *move_thread(void *arg)
{
	(void)arg;
	tlb_rs_pin_cpu(2);
	while (!__atomic_load_n(&moving.stop, __ATOMIC_RELAXED))
		migrc_move(&moving.set, 0, moving.moves++ & 1, MPOL_MF_MOVE);
	return NULL;
}

static void case_off(long rounds, struct result *r)
{
	struct migrc_counters before, d;
	pthread_t thread;
	char *base;
	long round;

	if (!tlb_rs_patching_is_safe()) {
		r->why = "no live patching under x86_64 TCG";
		return;
	}
	migrc_write(MIGRC_PAGES, NR_PAGES);
	migrc_write(MIGRC_AGE, LONG_MS);
	base = migrc_map_readonly(&moving.set, EXIT_PAGES, SEED);
	moving.stop = false;
	migrc_read(&before);
	if (pthread_create(&thread, NULL, move_thread, NULL))
		ksft_exit_fail_msg("cannot start a thread\n");
	for (round = 0; round < rounds; round++) {
		migrc_write(MIGRC_ENABLE, 1);
		/* Now and then long enough for something to be deferred. */
		tlb_rs_sleep_us(round % 8 ? 500 : 50000);
		r->armed += !(round % 8) && tlb_rs_vmstat_read("migrc_held") > 0;
		migrc_write(MIGRC_ENABLE, 0);
		/* Not in each round: this takes long. */
		if (!(round % 8))
			r->stale += migrc_held(-1) != 0;
	}
	moving.stop = true;
	pthread_join(thread, NULL);
	r->stale += migrc_held(-1) != 0;
	migrc_diff(&before, &d);
	ksft_print_msg("off: %ld moves, %lld pages deferred\n", moving.moves,
		       d.val[MIGRC_DEFERRED]);
	/* Each eighth is enough, and half of them. */
	r->armed *= 8;
	migrc_write(MIGRC_ENABLE, 1);
	r->stale += !!tlb_rs_check(base, EXIT_PAGES * psize, SEED);
	unmap(&moving.set, base);
}

/* --- exit -------------------------------------------------------------------------- */

static void exit_child(char *base, size_t len)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	tlb_rs_pin_cpu(2);
	tlb_rs_fill(base, len, SEED);
	mprotect(base, len, PROT_READ);
	__atomic_store_n(&sh->ready, true, __ATOMIC_RELEASE);
	for (;;) {
		if (tlb_rs_check(base, len, SEED))
			__atomic_fetch_add(&sh->bad, 1, __ATOMIC_RELAXED);
	}
}

static struct {
	pid_t pid;
	unsigned int us;
} victim;

static void *kill_thread(void *arg)
{
	(void)arg;
	tlb_rs_sleep_us(victim.us);
	kill(victim.pid, SIGKILL);
	return NULL;
}

static void case_exit(long rounds, struct result *r)
{
	size_t len = EXIT_PAGES * psize;
	char *base = tlb_rs_mmap(len, SZ_2M);
	unsigned int us = 10000;
	struct migrc_set set;
	pthread_t thread;
	long round;

	/* Without pages: those of the children are their own. */
	madvise(base, len, MADV_NOHUGEPAGE);
	tlb_rs_bind_node(base, len, 0);
	migrc_set_init(&set, base, EXIT_PAGES);
	migrc_write(MIGRC_PAGES, NR_PAGES);
	sh->bad = 0;
	for (round = 0; round < rounds; round++) {
		struct migrc_counters before, d;
		bool during = round % 4 == 3;
		__u64 start;

		/* Drains follow each other all the time, or do not come. */
		migrc_write(MIGRC_AGE, round & 1 ? 1 : LONG_MS);
		sh->ready = false;
		victim.pid = fork();
		if (victim.pid < 0)
			ksft_exit_fail_msg("fork: %s\n", strerror(errno));
		if (!victim.pid)
			exit_child(base, len);
		while (!__atomic_load_n(&sh->ready, __ATOMIC_ACQUIRE))
			tlb_rs_sleep_us(1000);
		victim.us = us * (round % 16) / 16;
		if (during && pthread_create(&thread, NULL, kill_thread, NULL))
			ksft_exit_fail_msg("cannot start a thread\n");
		migrc_read(&before);
		start = tlb_rs_now_ns();
		migrc_move(&set, victim.pid, 1, MPOL_MF_MOVE);
		migrc_diff(&before, &d);
		r->armed += d.val[MIGRC_DEFERRED] > 0;
		if (during)
			pthread_join(thread, NULL);
		else
			us = (tlb_rs_now_ns() - start) / 1000;
		kill(victim.pid, SIGKILL);
		waitpid(victim.pid, NULL, 0);
	}
	migrc_drain();
	r->stale += sh->bad + (migrc_held(-1) != 0);
	unmap(&set, base);
}

static int run(void (*fn)(long rounds, struct result *r), long planned)
{
	long rounds = asked.rounds ?: planned;
	struct migrc_counters before;
	struct result r = { };

	tlb_rs_readers_start(&readers, 1, false, scratch, psize);
	migrc_read(&before);
	fn(rounds, &r);
	tlb_rs_readers_end(&readers);
	if (r.why)
		return migrc_skipped(r.why);
	migrc_record("migrc_bounds", &asked, rounds, r.armed, r.stale, &before);
	/* Rounds that could not show anything prove nothing. */
	if (r.armed < (rounds + 1) / 2) {
		ksft_print_msg("%ld of %ld rounds armed only\n", r.armed, rounds);
		return KSFT_FAIL;
	}
	if (asked.want ? r.stale >= asked.want : !r.stale)
		return KSFT_PASS;
	ksft_print_msg("%ld violations, expected: %s%ld\n", r.stale,
		       asked.want ? "at least " : "", asked.want);
	return KSFT_FAIL;
}

FIXTURE(migrc_bounds) {
};

FIXTURE_SETUP(migrc_bounds)
{
	if (migrc_begin(_metadata, &asked))
		scratch = migrc_mmap(1, 0, SEED);
}

FIXTURE_TEARDOWN_PARENT(migrc_bounds)
{
	tlb_rs_tear_down();
}

TEST_F_TIMEOUT(migrc_bounds, limit, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run(case_limit, 20));
}

TEST_F_TIMEOUT(migrc_bounds, age, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run(case_age, 9));
}

TEST_F_TIMEOUT(migrc_bounds, exit, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run(case_exit, 48));
}

TEST_F_TIMEOUT(migrc_bounds, off, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run(case_off, 400));
}

TEST_F_TIMEOUT(migrc_bounds, pressure, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run(case_pressure, 2));
}

TEST_F_TIMEOUT(migrc_bounds, offline, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run(case_offline, 2));
}

TEST_F_TIMEOUT(migrc_bounds, hugetlb, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run(case_hugetlb, 2));
}

TEST_F_TIMEOUT(migrc_bounds, denied, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run(case_denied, 1));
}

TEST_F_TIMEOUT(migrc_bounds, thp, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run(case_thp, 1));
}

TEST_F_TIMEOUT(migrc_bounds, compaction, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run(case_compaction, 1));
}

TEST_F_TIMEOUT(migrc_bounds, poison, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run(case_poison, 4));
}

TEST_F_TIMEOUT(migrc_bounds, nested, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run(case_nested, 2));
}

int main(int argc, char **argv)
{
	migrc_ask(&asked);
	tlb_rs_skip_all(migrc_missing(3));
	migrc_init(3, NR_PAGES, LONG_MS);
	psize = getpagesize();
	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (sh == MAP_FAILED)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	tlb_rs_pin_cpu(0);
	return test_harness_run(argc, argv);
}
