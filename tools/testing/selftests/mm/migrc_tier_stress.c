// SPDX-License-Identifier: GPL-2.0
/*
 * Two tiers of memory, for a bounded time, while all contents are checked. Node 1 is the slower one
 * (HMAT, or tlb_slow_nodes=1 on the command line), node 0 is nearly full:
 *
 * read      two threads read pages that nobody writes to
 * write     a thread increments numbered pages that are writable all the time
 * follow    a thread reads them, and never finds a number that is older than what was announced
 * churn     a thread maps pages, writes them, waits until they move, reads and unmaps them
 * fork      children read what their parent has written, and write to it
 * demote    a thread demotes: memory.reclaim of a cgroup, and reclaim of node 0
 * kswapd    a thread fills node 0 until kswapd demotes, and frees some of it
 * back      a thread moves pages to node 0 with move_pages()
 * flip      a thread turns demotion_enabled off for a while, with --toggle vm.migrc_enable, too
 * hotplug   a thread takes memory blocks of node 0 offline, and back. Where the kernel refuses
 *           that for memory that was there at boot (arm64), they are only isolated.
 *
 * NUMA hint faults of all of these promote pages, so they are demoted again. With --lru mglru the
 * LRU has generations. It is meant for the oracle of stale translations beside stress-ng. In the
 * end the ledger must become empty. TLB_SKIP removes rules.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "migrc.h"
#include "tlb_rs_stress.h"
#include "tlb_rs_tiers.h"

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED	24
#endif

#define SEED			19
#define NUMA_BALANCING		"/proc/sys/kernel/numa_balancing"
#define SCHED_DEBUG(what)	DEBUGFS "sched/numa_balancing/" what
#define NODE0			"/sys/devices/system/node/node0/"
#define SCALE			"/proc/sys/vm/watermark_scale_factor"

#define READ_PAGES		8192
#define WRITE_PAGES		1024
#define WINDOWS			8	/* of these */
#define CHURN_PAGES		2048
#define FORK_PAGES		256
#define ROOM_PAGES		4096	/* of node 0, for all that is not locked */
#define FREED_PAGES		2048
#define PATIENCE_S		5	/* of a block that goes offline */

static size_t psize;
static bool toggle;
static char *readable, *writable, *forked;
static __u64 announced[WRITE_PAGES];
static bool may_demote = true;
static long offline, refused;	/* blocks */

static long long demotions(void)
{
	return tlb_rs_vmstat_read("pgdemote_kswapd") + tlb_rs_vmstat_read("pgdemote_direct") +
	       tlb_rs_vmstat_read("pgdemote_proactive");
}

/* --- contents ---------------------------------------------------------------------------- */

/* An eighth of the pages is in use for a second. The others cool, and are demoted. */
static size_t window(size_t pages)
{
	return tlb_rs_now_ns() / 1000000000 % WINDOWS * (pages / WINDOWS);
}

static bool is_wrong(size_t page, size_t word)
{
	const size_t pos = page * (psize / sizeof(__u64)) + word;

	return __atomic_load_n((__u64 *)readable + pos, __ATOMIC_RELAXED) != tlb_rs_word(SEED, pos);
}

static void fn_read(struct job *job)
{
	const size_t words = psize / sizeof(__u64), nr = READ_PAGES / WINDOWS;
	unsigned int state = 41 + job->nr;
	size_t i, first;

	do {
		first = window(READ_PAGES);
		for (i = 0; i < nr; i++)
			job->bad += is_wrong(first + i, 0);
		/* Some of them again, as a program that looks things up. */
		for (i = 0; i < nr; i++)
			job->bad += is_wrong(first + tlb_rs_rnd(&state) % nr,
					     tlb_rs_rnd(&state) % words);
		if (++job->ops % 16 == 0)
			tlb_rs_sleep_us(1000);
	} while (!expired());
	job->bad += tlb_rs_check(readable, READ_PAGES * psize, SEED) != 0;
}

static __u64 *number_of(size_t page)
{
	return (__u64 *)(writable + page * psize);
}

static void fn_write(struct job *job)
{
	unsigned int state = 43;

	do {
		/* Some of them for a while: the others rest, and are demoted. */
		size_t page = (job->ops / 256 * 32 + tlb_rs_rnd(&state) % 32) % WRITE_PAGES;
		__u64 val = announced[page];

		/* Nobody else writes: after an error, go on from what was meant. */
		job->bad += __atomic_load_n(number_of(page), __ATOMIC_RELAXED) != val;
		__atomic_store_n(number_of(page), val + 1, __ATOMIC_RELAXED);
		__atomic_store_n(&announced[page], val + 1, __ATOMIC_RELEASE);
		if (++job->ops % 8 == 0)
			tlb_rs_sleep_us(1000);
	} while (!expired());
}

static void fn_follow(struct job *job)
{
	do {
		size_t first = window(WRITE_PAGES), i;

		for (i = first; i < first + WRITE_PAGES / WINDOWS; i++) {
			__u64 least = __atomic_load_n(&announced[i], __ATOMIC_ACQUIRE);

			job->bad += __atomic_load_n(number_of(i), __ATOMIC_RELAXED) < least;
		}
		job->ops++;
		tlb_rs_sleep_us(1000);
	} while (!expired());
}

static void fn_churn(struct job *job)
{
	const size_t len = CHURN_PAGES * psize;
	__u64 seed = SEED;

	do {
		char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			       -1, 0);
		long long before = demotions();
		int ms;

		if (p == MAP_FAILED) {
			job->failed++;
			continue;
		}
		madvise(p, len, MADV_NOHUGEPAGE);
		tlb_rs_fill(p, len, ++seed);
		mprotect(p, len, PROT_READ);
		for (ms = 0; ms < 500 && demotions() - before < 2 * CHURN_PAGES; ms += 50)
			tlb_rs_sleep_us(50000);
		job->bad += tlb_rs_check(p, len, seed) != 0;
		/* Half of it before the rest, and once more with a write. */
		munmap(p, len / 2);
		mprotect(p + len / 2, len / 2, PROT_READ | PROT_WRITE);
		tlb_rs_fill(p + len / 2, len / 2, seed);
		job->bad += tlb_rs_check(p + len / 2, len / 2, seed) != 0;
		munmap(p + len / 2, len / 2);
		job->ops++;
	} while (!expired());
}

static int child(__u64 seed)
{
	const size_t len = FORK_PAGES * psize;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	tlb_rs_sleep_us(20000);
	if (tlb_rs_check(forked, len, seed))
		return 1;
	tlb_rs_fill(forked, len, seed + 1);
	return tlb_rs_check(forked, len, seed + 1) ? 2 : 0;
}

static void fn_fork(struct job *job)
{
	const size_t len = FORK_PAGES * psize;
	__u64 seed = SEED;
	int status;

	do {
		pid_t pid;

		seed += 2;
		tlb_rs_fill(forked, len, seed);
		pid = fork();
		if (!pid)
			_exit(child(seed));
		if (pid < 0 || waitpid(pid, &status, 0) != pid) {
			job->failed++;
			continue;
		}
		job->bad += !WIFEXITED(status) || WEXITSTATUS(status);
		job->bad += tlb_rs_check(forked, len, seed) != 0;
		tlb_rs_sleep_us(100000);
		job->ops++;
	} while (!expired());
}

/* --- moves ------------------------------------------------------------------------------- */

static void fn_demote(struct job *job)
{
	long long before = demotions();
	char how[64];

	snprintf(how, sizeof(how), "%zu swappiness=max", READ_PAGES / 4 * psize);
	do {
		/* What does not look used, but is: in TLBs, by which it is read meanwhile. */
		tlb_rs_forget_use();
		/* It may be that there is not so much: not what is counted. */
		if (job->nr++ % 4)
			tlb_rs_cgroup_reclaim(READ_PAGES / 2 * psize, " swappiness=max");
		else
			tlb_rs_write_file(NODE0 "reclaim", how);
		job->ops = demotions() - before;
		tlb_rs_sleep_us(20000);
	} while (!expired());
}

/* Until so little is free that kswapd wakes, but not what it takes for an OOM kill. */
static bool fill_until_it_wakes(struct tlb_rs_area *fine)
{
	long long runs = tlb_rs_vmstat_read("pageoutrun");

	while (tlb_rs_vmstat_read("pageoutrun") == runs) {
		struct tlb_rs_zones z = tlb_rs_read_zones(0);
		bool close = z.free < z.low + 512;

		if (z.free < (z.min + z.low) / 2 || expired())
			return false;
		if (close)
			tlb_rs_sleep_us(1000);
		/* Without demotion there is nothing that kswapd could do. */
		if (!close || __atomic_load_n(&may_demote, __ATOMIC_RELAXED)) {
			if (!tlb_rs_touch_more(fine, close ? 32 : 256))
				return false;
		}
	}
	return true;
}

/* What was touched last is free again. */
static void free_some(struct tlb_rs_area *a)
{
	size_t len = a->used < FREED_PAGES * psize ? a->used : FREED_PAGES * psize;

	a->used -= len;
	if (madvise(a->base + a->used, len, MADV_DONTNEED_LOCKED))
		ksft_exit_fail_msg("MADV_DONTNEED_LOCKED: %s\n", strerror(errno));
}

static void fn_kswapd(struct job *job)
{
	struct tlb_rs_area fine;

	fine = tlb_rs_make_area(0, 8 * ROOM_PAGES * psize, true);
	do {
		/* A block that was offline has taken HugeTLB pages with it. */
		tlb_rs_leave_room(ROOM_PAGES);
		if (fill_until_it_wakes(&fine))
			job->ops++;
		else
			job->failed++;
		tlb_rs_sleep_us(300000);
		free_some(&fine);
		tlb_rs_sleep_us(300000);
	} while (!expired());
}

static void fn_back(struct job *job)
{
	unsigned int state = 47;
	struct migrc_set set;

	migrc_set_init(&set, readable, 512);
	do {
		/* Of a quarter of them: hint faults promote the others. */
		size_t first = tlb_rs_rnd(&state) % (READ_PAGES / 4 - set.nr), i;

		for (i = 0; i < set.nr; i++)
			set.addrs[i] = readable + (first + i) * psize;
		job->ops += migrc_move(&set, 0, 0, MPOL_MF_MOVE_ALL);
		tlb_rs_sleep_us(200000);
	} while (!expired());
	migrc_set_free(&set);
}

/* --- what changes meanwhile -------------------------------------------------------------- */

static void fn_flip(struct job *job)
{
	do {
		tlb_rs_sleep_us(2000000);
		__atomic_store_n(&may_demote, false, __ATOMIC_RELAXED);
		tlb_rs_write_file(TLB_RS_DEMOTION, "0");
		tlb_rs_sleep_us(100000);
		tlb_rs_write_file(TLB_RS_DEMOTION, "1");
		__atomic_store_n(&may_demote, true, __ATOMIC_RELAXED);
		if (toggle) {
			tlb_rs_sleep_us(1000000);
			migrc_write(MIGRC_ENABLE, 0);
			tlb_rs_sleep_us(100000);
			migrc_write(MIGRC_ENABLE, 1);
		}
		job->ops++;
	} while (!expired());
}

static void too_long(int sig)
{
	(void)sig;
}

/* Only this thread takes the signal, which ends a write that takes too long. */
static int write_in_time(const char *path, const char *val)
{
	int ret;

	alarm(PATIENCE_S);
	ret = tlb_rs_write_file(path, val);
	alarm(0);
	return ret;
}

static size_t find_blocks(char names[][32], size_t most)
{
	DIR *dir = opendir(NODE0);
	struct dirent *d;
	size_t nr = 0;

	while (dir && (d = readdir(dir)) && nr < most) {
		if (!strncmp(d->d_name, "memory", 6) && d->d_name[6] >= '0' &&
		    d->d_name[6] <= '9')
			snprintf(names[nr++], sizeof(names[0]), "%.31s", d->d_name);
	}
	if (dir)
		closedir(dir);
	return nr;
}

static void fn_hotplug(struct job *job)
{
	struct sigaction act = { .sa_handler = too_long };
	unsigned int state = 53;
	char names[64][32], path[128];
	size_t nr = find_blocks(names, ARRAY_SIZE(names));
	sigset_t set;

	if (!nr) {
		job->skip = "no memory blocks";
		return;
	}
	sigaction(SIGALRM, &act, NULL);
	sigemptyset(&set);
	sigaddset(&set, SIGALRM);
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
	do {
		const char *name = names[tlb_rs_rnd(&state) % nr];

		snprintf(path, sizeof(path), "/sys/devices/system/memory/%s/state", name);
		if (write_in_time(path, "offline")) {
			refused++;
		} else {
			offline++;
			tlb_rs_sleep_us(200000);
			while (tlb_rs_write_file(path, "online"))
				tlb_rs_sleep_us(10000);
		}
		job->ops++;
		tlb_rs_sleep_us(1000000);
	} while (!expired());
}

static struct job jobs[] = {
	{ .name = "read0", .fn = fn_read, .cpu = 1, .nr = 0 },
	{ .name = "read1", .fn = fn_read, .cpu = 2, .nr = 1 },
	{ .name = "write", .fn = fn_write, .cpu = 1 },
	{ .name = "follow", .fn = fn_follow, .cpu = 2 },
	{ .name = "churn", .fn = fn_churn, .cpu = 3 },
	{ .name = "fork", .fn = fn_fork, .cpu = 3 },
	{ .name = "demote", .fn = fn_demote, .cpu = 0 },
	{ .name = "kswapd", .fn = fn_kswapd, .cpu = 1 },
	{ .name = "back", .fn = fn_back, .cpu = 0 },
	{ .name = "flip", .fn = fn_flip, .cpu = 3 },
	{ .name = "hotplug", .fn = fn_hotplug, .cpu = 2 },
};

static char *map(size_t pages)
{
	char *p = tlb_rs_mmap(pages * psize, SZ_2M);

	madvise(p, pages * psize, MADV_NOHUGEPAGE);
	return p;
}

static void prepare(void)
{
	sigset_t set;

	/* Only what follows is charged to it, and the text of this program is not reclaimed. */
	mlockall(MCL_CURRENT);
	tlb_rs_cgroup_enter();
	readable = map(READ_PAGES);
	tlb_rs_fill(readable, READ_PAGES * psize, SEED);
	mprotect(readable, READ_PAGES * psize, PROT_READ);
	writable = map(WRITE_PAGES);
	memset(writable, 0, WRITE_PAGES * psize);
	forked = map(FORK_PAGES);
	if (!tlb_rs_keep(TLB_RS_POOL))
		ksft_exit_skip("no HugeTLB pages\n");
	tlb_rs_leave_room(ROOM_PAGES);
	sigemptyset(&set);
	sigaddset(&set, SIGALRM);
	sigprocmask(SIG_BLOCK, &set, NULL);
}

static void must_set(const char *path, const char *val)
{
	if (!tlb_rs_setting(path, val))
		ksft_exit_fail_msg("cannot set %s to %s\n", path, val);
}

static void help(const char *prog)
{
	printf("usage: %s [option]...\n"
	       "  [--seconds N] [--lru classic|mglru] [--toggle]\n",
	       prog);
}

static const char * const counted[] = {
	"pgdemote_kswapd", "pgdemote_direct", "pgdemote_proactive", "pgpromote_success",
	"migrc_deferred", "migrc_deferred_demote", "migrc_flush", "numa_hint_faults",
	"pageoutrun",
};

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "seconds", required_argument, NULL, 's' },
		{ "lru", required_argument, NULL, 'l' },
		{ "toggle", no_argument, NULL, 't' },
		{ "help", no_argument, NULL, 'h' },
		{ }
	};
	long long before[ARRAY_SIZE(counted)], deferred, held;
	const char *lru = "classic", *why, *skip = tlb_rs_env("TLB_SKIP");
	long seconds = 10;
	size_t i;
	int opt;

	ksft_print_header();
	while ((opt = getopt_long(argc, argv, "s:l:th", options, NULL)) != -1) {
		switch (opt) {
		case 's':
			seconds = tlb_rs_number(optarg, 1, 1000000);
			break;
		case 'l':
			lru = optarg;
			break;
		case 't':
			toggle = true;
			break;
		case 'h':
			help(argv[0]);
			return 0;
		default:
			help(argv[0]);
			return KSFT_FAIL;
		}
	}

	why = tlb_rs_no_demotion() ?: migrc_missing(4);
	if (why)
		ksft_exit_skip("%s\n", why);
	psize = getpagesize();
	if (toggle && !tlb_rs_patching_is_safe()) {
		ksft_print_msg("no --toggle: no live patching under x86_64 TCG\n");
		toggle = false;
	}
	migrc_init(4, 0, 100);
	must_set(TLB_RS_DEMOTION, "1");
	must_set(SCALE, "50");
	if (!tlb_rs_choose_lru(!strcmp(lru, "mglru")) || !tlb_rs_cgroup())
		ksft_exit_skip("no such LRU, or no memory.reclaim\n");
	/* All pages of the slow node that are used are hot. */
	must_set(SCHED_DEBUG("hot_threshold_ms"), "60000");
	must_set(SCHED_DEBUG("scan_delay_ms"), "0");
	/* The smaller a scan is, the more often it may be. But each of them flushes. */
	must_set(SCHED_DEBUG("scan_size_mb"), "64");
	must_set(SCHED_DEBUG("scan_period_min_ms"), "100");
	must_set(SCHED_DEBUG("scan_period_max_ms"), "200");
	must_set(NUMA_BALANCING, "2");
	prepare();
	if (skip && !migrc_skip_hooks(skip))
		ksft_exit_fail_msg("cannot remove '%s'\n", skip);
	ksft_set_plan(ARRAY_SIZE(jobs) + 1);

	for (i = 0; i < ARRAY_SIZE(counted); i++)
		before[i] = tlb_rs_vmstat_read(counted[i]);
	deferred = tlb_rs_vmstat_read("migrc_deferred_demote");
	stress_run(jobs, ARRAY_SIZE(jobs), seconds);
	deferred = tlb_rs_vmstat_read("migrc_deferred_demote") - deferred;
	tlb_rs_cgroup_leave();
	migrc_write(MIGRC_ENABLE, 0);
	held = migrc_held(-1);

	printf("{\"test\":\"migrc_tier_stress\",\"seconds\":%ld,\"lru\":\"%s\"", seconds, lru);
	stress_json();
	printf(",\"offline\":%ld,\"refused\":%ld", offline, refused);
	for (i = 0; i < ARRAY_SIZE(counted); i++)
		printf(",\"%s\":%lld", counted[i], tlb_rs_vmstat_read(counted[i]) - before[i]);
	printf("}\n");
	stress_results();
	ksft_test_result(deferred > 0 && !held,
			 "stress ledger: %lld pages deferred, %lld held at the end\n", deferred,
			 held);
	ksft_finished();
}
