// SPDX-License-Identifier: GPL-2.0
/* Who opens a file meanwhile: race, and idle, beside who has no CPU. */
#include "migrc_file.h"

/* --- open() in the middle of a walk ------------------------------------------------ */

static pid_t children[NR_CHILDREN];

bool setup_race(void)
{
	return !access(MIGRC_WALK_DELAY, W_OK);
}

/* Opens while P is moved: once P is locked for that, and a bit later in some rounds. */
static void *racer(void *arg)
{
	__u64 round = 0, end;

	(void)arg;
	tlb_rs_pin_cpu(3);
	while (!LOAD(sh.stop)) {
		int fd;

		if (LOAD(race.go) == round)
			continue;
		round = LOAD(race.go);
		while (!(tlb_rs_kpageflags(LOAD(race.pfn)) >> KPF_LOCKED & 1) &&
		       LOAD(race.moved) != round)
			;
		end = tlb_rs_now_ns() + WALK_US * 50ULL * (round % 4);
		while (tlb_rs_now_ns() < end)
			;
		fd = must_open(path, O_WRONLY);
		race.opened_ns = tlb_rs_now_ns();
		if (!write_word(fd, new_value(round)))
			ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
		STORE(race.written, new_value(round));
		close(fd);
	}
	return NULL;
}

static void *race_reader(void *arg)
{
	(void)arg;
	tlb_rs_pin_cpu(1);
	while (!LOAD(sh.stop)) {
		__u64 written = LOAD(race.written);

		if (__atomic_load_n(word, __ATOMIC_RELAXED) < written)
			STORE(race.stale_round, LOAD(race.go));
	}
	return NULL;
}

static void start_children(void)
{
	size_t i;

	fflush(stdout);
	for (i = 0; i < NR_CHILDREN; i++) {
		children[i] = fork();
		if (children[i] < 0)
			ksft_exit_fail_msg("fork: %s\n", strerror(errno));
		if (!children[i]) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			madvise(base, len, MADV_POPULATE_READ);
			for (;;)
				pause();
		}
	}
}

static void end_children(void)
{
	size_t i;

	for (i = 0; i < NR_CHILDREN; i++) {
		kill(children[i], SIGKILL);
		waitpid(children[i], NULL, 0);
	}
}

long run_race(long rounds, const struct migrc_options *o)
{
	struct migrc_set only_p;
	long armed = 0;
	pthread_t r, w;
	__u64 round;

	migrc_set_init(&only_p, base + len - psize, 1);
	start_children();
	/* Without it, a few us of what a move takes are the ones to hit. */
	if (!tlb_rs_delay(MIGRC_WALK_DELAY, WALK_US))
		ksft_exit_fail_msg("cannot write %s\n", MIGRC_WALK_DELAY);
	/* The walk visits the youngest mapping last. */
	map_file();
	if (pthread_create(&r, NULL, race_reader, NULL) || pthread_create(&w, NULL, racer, NULL))
		ksft_exit_fail_msg("cannot start a thread\n");
	for (round = 1; migrc_more(o, rounds, round - 1, armed, sh.stale) &&
	     (!o->want || sh.stale < (__u64)o->want); round++) {
		__u64 end;
		int node;

		prepare(round);
		node = !migrc_node_of(word);
		race.pfn = tlb_rs_pfn(word);
		STORE(race.go, round);
		migrc_move(&only_p, 0, node, MPOL_MF_MOVE_ALL);
		end = tlb_rs_now_ns();
		STORE(race.moved, round);
		WAIT_FOR(LOAD(race.written) == new_value(round));
		armed += race.opened_ns < end && tlb_rs_pfn(word) != race.pfn;
		/* For R to look. */
		tlb_rs_sleep_us(1000);
		sh.stale += LOAD(race.stale_round) == round;
		migrc_expire();
	}
	STORE(sh.stop, true);
	pthread_join(r, NULL);
	pthread_join(w, NULL);
	tlb_rs_delay_none();
	end_children();
	migrc_set_free(&only_p);
	return armed;
}

/* --- open() beside who has no CPU --------------------------------------------------- */

#define NR_MOVERS	4
#define NR_MOVED	256	/* by each of them */
#define NR_OPENS	100
#define OPEN_PAUSE_US	40000	/* who is idle needs time to be in the middle of something */
#define MAX_OPEN_NS	20000000ULL	/* of 99 % of them */
/* Who is idle has 3 of 1027 parts of a CPU that spins: after a tick it waits for a second. */
#define STUCK_NS	500000000ULL
#define MOVERS_LIMIT	1	/* who adds more than these drains */
#define PHASE_NS	10000000000ULL

static struct {
	char *base;
	int policy;
} movers;

static void *spinner(void *cpu)
{
	tlb_rs_pin_cpu((long)cpu);
	for (;;)
		__atomic_load_n(movers.base, __ATOMIC_RELAXED);
	return NULL;
}

/* On the CPUs that spin. Nothing of it is deferred, unless others use it, too. */
static void *idle_mover(void *arg)
{
	struct sched_param param = { };
	struct migrc_set pages;
	cpu_set_t cpus;
	int node = 0;

	migrc_set_init(&pages, movers.base + (long)arg * NR_MOVED * psize, NR_MOVED);
	CPU_ZERO(&cpus);
	CPU_SET(1, &cpus);
	CPU_SET(2, &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus) ||
	    sched_setscheduler(0, movers.policy, &param))
		_exit(1);
	for (;; node = !node)
		migrc_move(&pages, 0, !node, MPOL_MF_MOVE);
	return NULL;
}

static pid_t start_movers(int policy)
{
	struct migrc_set unused;
	pthread_t thread;
	int ready[2];
	pid_t pid;
	char byte;
	long i;

	if (pipe(ready))
		ksft_exit_fail_msg("pipe: %s\n", strerror(errno));
	fflush(stdout);
	pid = fork();
	if (pid < 0)
		ksft_exit_fail_msg("fork: %s\n", strerror(errno));
	if (pid) {
		close(ready[1]);
		if (read(ready[0], &byte, 1) != 1)
			ksft_exit_fail_msg("nobody moves\n");
		close(ready[0]);
		return pid;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	munmap(base, len);
	movers.policy = policy;
	movers.base = migrc_map_readonly(&unused, NR_MOVERS * NR_MOVED, 1);
	for (i = 0; i < NR_MOVERS; i++) {
		if (pthread_create(&thread, NULL, idle_mover, (void *)i))
			_exit(1);
	}
	/* When all of them have begun. */
	tlb_rs_sleep_us(100000);
	for (i = 1; i <= 2; i++) {
		if (pthread_create(&thread, NULL, spinner, (void *)i))
			_exit(1);
	}
	if (write(ready[1], "", 1) != 1)
		_exit(1);
	for (;;)
		pause();
}

static int compare_ns(const void *a, const void *b)
{
	const __u64 *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

static const char *idle_name(char *buf, size_t size, long i)
{
	snprintf(buf, size, "%.200s.%ld", path, i);
	return buf;
}

static void remove_files(void)
{
	char name[300];
	long i;

	for (i = 0; i < NR_OPENS; i++)
		unlink(idle_name(name, sizeof(name), i));
}

/*
 * Files of a page each, which are all deferred. Who moves has to drain now and then, and should
 * not be the one who waits here.
 */
static bool defer_files(char *pages)
{
	struct migrc_counters before, d;
	struct migrc_set all;
	char name[300];
	int fd = -1;
	long i;

	migrc_write(MIGRC_PAGES, MAX_PAGES);
	tlb_rs_at_exit(remove_files);
	for (i = 0; i < NR_OPENS; i++) {
		fd = must_open(idle_name(name, sizeof(name), i), O_RDWR | O_CREAT);
		if (pwrite(fd, buffer, psize, 0) != (ssize_t)psize)
			ksft_exit_fail_msg("%s: %s\n", name, strerror(errno));
		close(fd);
	}
	fd = must_open(name, O_RDONLY);
	syncfs(fd);
	close(fd);
	for (i = 0; i < NR_OPENS; i++) {
		fd = must_open(idle_name(name, sizeof(name), i), O_RDONLY);
		if (mmap(pages + i * psize, psize, PROT_READ, MAP_SHARED | MAP_FIXED | MAP_POPULATE,
			 fd, 0) == MAP_FAILED)
			ksft_exit_fail_msg("%s: %s\n", name, strerror(errno));
		close(fd);
	}
	migrc_set_init(&all, pages, NR_OPENS);
	migrc_read(&before);
	migrc_move(&all, 0, !migrc_node_of(pages), MPOL_MF_MOVE_ALL);
	migrc_diff(&before, &d);
	migrc_set_free(&all);
	return d.val[MIGRC_DEFERRED] >= NR_OPENS / 2;
}

/* How long open() took; all 0 if too few had something deferred of their file. */
struct opens {
	__u64 most_ns;		/* 99 % of them at most */
	__u64 worst_ns;
};

static struct opens time_opens(int policy, char *pages)
{
	struct opens took = { };
	__u64 ns[NR_OPENS], end, begin;
	bool ok = defer_files(pages);
	long nr = 0, i;
	char name[300];
	pid_t pid;
	int fd;

	migrc_write(MIGRC_PAGES, MOVERS_LIMIT);
	pid = start_movers(policy);
	end = tlb_rs_now_ns() + PHASE_NS;
	for (i = 0; i < NR_OPENS && tlb_rs_now_ns() < end; i++) {
		long long drains = migrc_stat("drain", "write");

		idle_name(name, sizeof(name), i);
		begin = tlb_rs_now_ns();
		fd = must_open(name, O_RDWR);
		ns[nr] = tlb_rs_now_ns() - begin;
		close(fd);
		nr += migrc_stat("drain", "write") > drains;
		tlb_rs_sleep_us(OPEN_PAUSE_US);
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	remove_files();
	if (!ok || nr < NR_MOVERS)
		return took;
	qsort(ns, nr, sizeof(*ns), compare_ns);
	took.most_ns = ns[(nr - 1) * 99 / 100];
	took.worst_ns = ns[nr - 1];
	ksft_print_msg("idle: %ld opens, %s: median %llu us, 99 %%: %llu, worst %llu\n",
		       nr, policy == SCHED_IDLE ? "SCHED_IDLE" : "SCHED_OTHER",
		       ns[nr / 2] / 1000, took.most_ns / 1000, took.worst_ns / 1000);
	return took;
}

bool setup_idle(void)
{
	/* One thread that emulates all CPUs lets each run for 100 ms. */
	return migrc_has_stats() && tlb_rs_patching_is_safe();
}

/*
 * A drain that is stuck ends with the turn of who is in it, so one open() may be all that meets it:
 * the 99 % would leave just that one out.
 */
static bool waits_for_idle(const struct opens *idle, const struct opens *other)
{
	return !idle->most_ns || idle->most_ns > MAX_OPEN_NS || idle->worst_ns > STUCK_NS ||
	       idle->most_ns > other->most_ns + other->most_ns / 2;
}

/*
 * The host may be elsewhere for a while: once is enough. Without the rule, no turn ends in
 * a drain in 1 of 10 tries.
 */
long run_idle(long rounds, const struct migrc_options *o)
{
	size_t all = NR_OPENS * psize;
	struct tlb_rs_readers readers;
	long armed = 0;
	char *pages;
	int tries = o->want ? 6 : 3;

	pages = mmap(NULL, all, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	/* Nothing is deferred, unless another CPU uses the files: one of those that spin. */
	tlb_rs_readers_start(&readers, 1, true, pages, all);
	do {
		struct opens other = time_opens(SCHED_OTHER, pages);
		struct opens idle = time_opens(SCHED_IDLE, pages);

		armed = other.most_ns && idle.most_ns ? rounds : 0;
		sh.stale = other.most_ns && waits_for_idle(&idle, &other);
	} while ((o->want ? !sh.stale : sh.stale || !armed) && --tries);
	tlb_rs_readers_end(&readers);
	munmap(pages, all);
	migrc_write(MIGRC_PAGES, MAX_PAGES);
	return armed;
}
