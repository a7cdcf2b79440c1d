// SPDX-License-Identifier: GPL-2.0
/*
 * Programs whose memory is twice as large as what the fast tier has for it, in pairs within one
 * boot: a half with vm.migrc_enable=0 and one with 1, in turn the other way round. Without migrc
 * all halves are alike, which is for a stock kernel. Node 1 is the slower one (HMAT, or
 * tlb_slow_nodes=1 on the command line). Each half is one JSON record.
 *
 * grid     Three threads look up cross sections in anonymous memory that was written once. kswapd
 *          demotes, NUMA hint faults promote. --thp: in huge pages.
 * weights  They read a file that they have mapped. DAMON demotes what is cold and promotes what
 *          is hot.
 *
 * With --rounds nothing moves by itself: in each half migrate_pages() moves all memory of the
 * program to one node and back so many times.
 *
 * All values that are read are checked. Another process, on CPU 0, looks what that costs others:
 * page faults in new memory (p99), and allocations that may not sleep (of queued signals).
 * numa_foreign counts pages of any size that were wanted of a node that had none.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "migrc_damon.h"
#include "migrc_tier_bench.h"
#include "tlb_rs_tiers.h"

#define NUMA_BALANCING		"/proc/sys/kernel/numa_balancing"
#define SCHED_DEBUG(what)	DEBUGFS "sched/numa_balancing/" what
#define SCALE			"/proc/sys/vm/watermark_scale_factor"

#define FAULTS			64	/* in a row */
#define SIGNALS			20000
#define MAX_FAULTS		400000	/* of a half */

const char *dir = "/mnt";
bool huge;

static int rounds;
static const struct load *const loads[] = { &load_grid, &load_weights };
static const struct load *load;
static struct tlb_rs_area data;
static size_t psize;

static struct reader {
	pthread_t thread;
	__u64 state;
	__u64 ops;
	size_t bad;
	bool waits;
} readers[READERS];

static bool stop, hold;

static void *reader(void *arg)
{
	struct reader *r = arg;
	int i;

	tlb_rs_pin_cpu(1 + (r - readers) % (tlb_rs_nr_cpus() - 1));
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		if (__atomic_load_n(&hold, __ATOMIC_ACQUIRE)) {
			__atomic_store_n(&r->waits, true, __ATOMIC_RELEASE);
			tlb_rs_sleep_us(1000);
			continue;
		}
		__atomic_store_n(&r->waits, false, __ATOMIC_RELEASE);
		for (i = 0; i < 16; i++)
			r->bad += load->look_up(&r->state);
		__atomic_fetch_add(&r->ops, 16, __ATOMIC_RELAXED);
	}
	return NULL;
}

static __u64 look_ups(void)
{
	__u64 n = 0;
	int i;

	for (i = 0; i < READERS; i++)
		n += __atomic_load_n(&readers[i].ops, __ATOMIC_RELAXED);
	return n;
}

/*
 * The readers sleep while static keys change: an emulator may not survive code that changes while
 * it runs.
 */
static void hold_readers(bool yes)
{
	int i;

	__atomic_store_n(&hold, yes, __ATOMIC_RELEASE);
	for (i = 0; i < READERS; i++) {
		while (__atomic_load_n(&readers[i].waits, __ATOMIC_ACQUIRE) != yes)
			tlb_rs_sleep_us(1000);
	}
}

static void switch_migrc(int on)
{
	if (access(MIGRC_ENABLE, W_OK))
		return;
	hold_readers(true);
	migrc_write(MIGRC_ENABLE, on);
	hold_readers(false);
}

/* --- what it costs others ---------------------------------------------------------------- */

static struct {
	__u32 ns[MAX_FAULTS];
	size_t nr;
	long atomic, refused;	/* allocations */
	__u64 until;		/* it is busy, in ns of the monotonic clock */
	__u64 done;		/* until then it was */
} *others;			/* shared with the process that fills it */

static void fault(void)
{
	char *p = mmap(NULL, FAULTS * psize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		       -1, 0);
	__u64 before, now;
	size_t i;

	if (p == MAP_FAILED)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	madvise(p, FAULTS * psize, MADV_NOHUGEPAGE);
	before = tlb_rs_now_ns();
	for (i = 0; i < FAULTS; i++) {
		p[i * psize] = 1;
		now = tlb_rs_now_ns();
		if (others->nr < MAX_FAULTS)
			others->ns[others->nr++] = now - before < ~0U ? now - before : ~0U;
		before = now;
	}
	munmap(p, FAULTS * psize);
}

/* The kernel allocates each with GFP_ATOMIC, and says EAGAIN if it cannot. */
static void queue_signals(void)
{
	const struct timespec none = { };
	const union sigval val = { };
	sigset_t set;
	int i;

	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN);
	for (i = 0; i < SIGNALS; i++)
		others->refused += sigqueue(getpid(), SIGRTMIN, val) != 0;
	others->atomic += SIGNALS;
	while (sigtimedwait(&set, NULL, &none) == SIGRTMIN)
		;
}

static int compare(const void *a, const void *b)
{
	__u32 x = *(const __u32 *)a, y = *(const __u32 *)b;

	return x < y ? -1 : x > y;
}

/*
 * A process of its own, because munmap() would flush what is deferred of the readers. It is forked
 * before there is anything to be read, because fork() takes write permission away.
 */
static void start_another_user(void)
{
	unsigned int i = 0;
	pid_t pid;

	others = mmap(NULL, sizeof(*others), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	if (others == MAP_FAILED)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	memset(others, 0, sizeof(*others));
	pid = fork();
	if (pid < 0)
		ksft_exit_fail_msg("fork: %s\n", strerror(errno));
	if (pid)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;) {
		__u64 until = __atomic_load_n(&others->until, __ATOMIC_ACQUIRE);

		for (; tlb_rs_now_ns() < until; i++) {
			fault();
			if (i % 50 == 0)
				queue_signals();
			tlb_rs_sleep_us(2000);
		}
		if (until)
			__atomic_store_n(&others->done, until, __ATOMIC_RELEASE);
		tlb_rs_sleep_us(1000);
	}
}

static void watch_another_user(int seconds)
{
	const __u64 until = tlb_rs_now_ns() + seconds * 1000000000ULL;

	others->nr = 0;
	others->atomic = 0;
	others->refused = 0;
	__atomic_store_n(&others->until, until, __ATOMIC_RELEASE);
	tlb_rs_sleep_us(seconds * 1000000);
	tlb_rs_reaches(&others->done, until, "the other user");
}

/* All memory of this process, to node 1 and back. */
static void move_all(void)
{
	const unsigned long node[] = { 1, 2 };
	int i;

	for (i = 0; i < 2 * rounds; i++) {
		if (syscall(SYS_migrate_pages, 0, 8 * sizeof(node[0]), &node[i % 2],
			    &node[(i + 1) % 2]) < 0)
			ksft_exit_fail_msg("migrate_pages: %s\n", strerror(errno));
	}
}

/* --- a half ------------------------------------------------------------------------------ */

static const char * const counted[] = {
	"pgdemote_kswapd", "pgdemote_direct", "pgdemote_proactive", "pgpromote_success",
	"numa_hint_faults", "numa_pte_updates", "numa_foreign", "allocstall_normal",
	"allocstall_movable", "allocstall_dma32", "migrc_deferred", "migrc_deferred_demote",
	"migrc_denied", "migrc_flush", "thp_migration_success",
	"thp_migration_split", "pageoutrun",
};

static void half(int pair, int on, int warm, int seconds)
{
	static struct migrc_stats stats;
	long long before[ARRAY_SIZE(counted)];
	struct tlb_rs_counters c;
	__u64 n;
	size_t i;

	switch_migrc(on);
	tlb_rs_sleep_us(warm * 1000000);
	migrc_stats_read(&stats);
	for (i = 0; i < ARRAY_SIZE(counted); i++)
		before[i] = tlb_rs_vmstat_read(counted[i]);
	n = look_ups();
	tlb_rs_begin(&c);
	if (rounds)
		move_all();
	else
		watch_another_user(seconds);
	if (rounds && on > 0)
		migrc_expire();
	tlb_rs_end(&c);
	n = look_ups() - n;

	record_begin();
	record_add(",\"migrc\":%d,\"pair\":%d,\"thp\":%d,\"ops\":%llu", on, pair, huge, n);
	record_add(",\"pages\":%zu,\"fast\":%zu", data.len / psize, tlb_rs_count_on_node(&data, 0));
	for (i = 0; i < ARRAY_SIZE(counted); i++) {
		if (before[i] >= 0)
			record_add(",\"%s\":%lld", counted[i],
				   tlb_rs_vmstat_read(counted[i]) - before[i]);
	}
	record_add_stats(&stats);
	qsort(others->ns, others->nr, sizeof(others->ns[0]), compare);
	record_add(",\"faults\":%zu,\"fault_p99_ns\":%u,\"atomic\":%ld,\"atomic_refused\":%ld",
		   others->nr, others->nr ? others->ns[others->nr * 99 / 100] : 0,
		   others->atomic, others->refused);
	tlb_rs_json_region(load->name, record_text, &c);
}

static bool run(size_t len, int pairs, int warm, int seconds)
{
	/* What was not read for a second, and what was. */
	const struct migrc_damon_scheme schemes[] = {
		{ .action = "migrate_cold", .node = 1, .least_age = 10 },
		{ .action = "migrate_hot", .node = 0, .least = 1, .most = MIGRC_DAMON_ALWAYS },
	};
	bool has_migrc = !access(MIGRC_ENABLE, W_OK);
	size_t bad = 0;
	int i;

	if (!rounds && (!tlb_rs_keep(TLB_RS_POOL) || !tlb_rs_leave_room(len / 2 / psize)))
		ksft_exit_skip("no HugeTLB pages, or node 0 is too small\n");
	data.base = load->map(len, &data.len);
	data.used = data.len;
	for (i = 0; i < READERS; i++) {
		readers[i] = (struct reader){ .state = 88172645463325252ULL + i };
		if (pthread_create(&readers[i].thread, NULL, reader, &readers[i]))
			ksft_exit_fail_msg("cannot start readers\n");
	}
	hold_readers(true);
	tlb_rs_setting(NUMA_BALANCING, load->damon || rounds ? "0" : "2");
	hold_readers(false);
	if (load->damon && !rounds)
		migrc_damon_start(data.base, data.len, schemes, ARRAY_SIZE(schemes));
	for (i = 0; i < 2 * pairs; i++)
		half(i / 2, has_migrc ? (i ^ i / 2) & 1 : -1, warm, seconds);
	if (load->damon && !rounds)
		migrc_damon_stop();
	stop = true;
	for (i = 0; i < READERS; i++) {
		pthread_join(readers[i].thread, NULL);
		bad += readers[i].bad;
	}
	munmap(data.base, data.len);
	if (bad)
		ksft_print_msg("%zu wrong values\n", bad);
	return !bad;
}

static void must_set(const char *path, const char *val)
{
	if (!tlb_rs_setting(path, val))
		ksft_exit_skip("cannot set %s to %s\n", path, val);
}

static void help(const char *prog)
{
	printf("usage: %s [option]...\n"
	       "  [--case grid|weights] [--thp] [--mb SIZE] [--pairs P] [--seconds N]\n"
	       "  [--warm SECONDS] [--lru classic|mglru] [--rounds R] [--dir DIRECTORY]\n"
	       "--mb: of all that is read; the fast tier has room for a half of it\n"
	       "--seconds: of each half; --warm: before it\n",
	       prog);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "case", required_argument, NULL, 'c' },
		{ "thp", no_argument, NULL, 't' },
		{ "mb", required_argument, NULL, 'm' },
		{ "pairs", required_argument, NULL, 'p' },
		{ "seconds", required_argument, NULL, 's' },
		{ "warm", required_argument, NULL, 'w' },
		{ "lru", required_argument, NULL, 'l' },
		{ "rounds", required_argument, NULL, 'r' },
		{ "dir", required_argument, NULL, 'd' },
		{ "help", no_argument, NULL, 'h' },
		{ }
	};
	long mb = 256, pairs = 3, seconds = 10, warm = 5;
	const char *only = NULL, *lru = "mglru", *why;
	struct rlimit pending = { RLIM_INFINITY, RLIM_INFINITY };
	size_t i, nr = 0;
	sigset_t set;
	int opt;

	while ((opt = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		switch (opt) {
		case 'c':
			only = optarg;
			break;
		case 't':
			huge = true;
			break;
		case 'm':
			mb = tlb_rs_number(optarg, 16, 1 << 20);
			break;
		case 'p':
			pairs = tlb_rs_number(optarg, 1, 1000);
			break;
		case 's':
			seconds = tlb_rs_number(optarg, 1, 100000);
			break;
		case 'w':
			warm = tlb_rs_number(optarg, 0, 1000);
			break;
		case 'l':
			lru = optarg;
			break;
		case 'r':
			rounds = tlb_rs_number(optarg, 1, 1000);
			break;
		case 'd':
			dir = optarg;
			break;
		default:
			help(argv[0]);
			return opt == 'h' ? 0 : KSFT_FAIL;
		}
	}
	ksft_print_header();
	for (i = 0; i < ARRAY_SIZE(loads); i++)
		nr += !only || !strcmp(only, loads[i]->name);
	if (!nr)
		ksft_exit_fail_msg("no case '%s'\n", only);
	why = tlb_rs_no_demotion();
	if (why)
		ksft_exit_skip("%s\n", why);
	if (tlb_rs_nr_cpus() <= READERS)
		ksft_exit_skip("needs %d CPUs\n", READERS + 1);
	psize = getpagesize();
	/* Default parameters of migrc; what runs beside is quiet, and scans often. */
	tlb_rs_quiet();
	must_set(TLB_RS_DEMOTION, "1");
	must_set(SCALE, "200");
	if (!access(MIGRC_ENABLE, F_OK) && !tlb_rs_keep(MIGRC_ENABLE))
		ksft_exit_skip("cannot keep %s\n", MIGRC_ENABLE);
	if (!tlb_rs_choose_lru(!strcmp(lru, "mglru")))
		ksft_exit_skip("no such LRU\n");
	tlb_rs_setting(SCHED_DEBUG("scan_delay_ms"), "0");
	tlb_rs_setting(SCHED_DEBUG("scan_period_min_ms"), "500");
	tlb_rs_setting(SCHED_DEBUG("scan_period_max_ms"), "1000");
	setrlimit(RLIMIT_SIGPENDING, &pending);
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN);
	sigprocmask(SIG_BLOCK, &set, NULL);
	tlb_rs_pin_cpu(0);
	start_another_user();

	ksft_set_plan(nr);
	for (i = 0; i < ARRAY_SIZE(loads); i++) {
		load = loads[i];
		if (only && strcmp(only, load->name))
			continue;
		if (load->damon && (!migrc_has_damon() || access(dir, W_OK)))
			ksft_test_result_skip("migrc_tier_bench %s: no DAMON, or no %s\n",
					      load->name, dir);
		else
			ksft_test_result(run(mb << 20, pairs, warm, seconds),
					 "migrc_tier_bench %s\n", load->name);
		stop = false;
	}
	ksft_finished();
}
