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
 * With --skip the damage is counted: see --expect-stale.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "migrc.h"

#define NR_PAGES	4096
#define EXIT_PAGES	256
#define SEED		9
#define LONG_MS		60000

#define COMPACT_MEMORY	"/proc/sys/vm/compact_memory"
#define WATERMARKS	"/proc/sys/vm/watermark_scale_factor"
#define MIN_FREE	"/proc/sys/vm/min_free_kbytes"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE	23
#endif

static size_t psize;
static char *scratch;

/* Another CPU that uses this mm: a flush of this CPU only is never deferred. */
static struct tlb_rs_readers readers;

struct result {
	long armed;		/* rounds in which there was something to see */
	long stale;		/* violations */
	const char *why;	/* skipped */
};

static void unmap(struct migrc_set *set, char *base)
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

static struct shared {
	bool ready;
	long bad;
} *sh;

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

/* --- memory ------------------------------------------------------------------------ */

/* In a child, which the OOM killer would choose. False if it did, or would have. */
static bool populate(size_t len)
{
	long long kills = tlb_rs_vmstat_read("oom_kill");
	int status = 0;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid < 0)
		ksft_exit_fail_msg("fork: %s\n", strerror(errno));
	if (!pid) {
		char *base;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		tlb_rs_write_file("/proc/self/oom_score_adj", "1000");
		base = mmap(NULL, len, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (base == MAP_FAILED)
			_exit(1);
		madvise(base, len, MADV_NOHUGEPAGE);
		_exit(madvise(base, len, MADV_POPULATE_WRITE) ? 1 : 0);
	}
	waitpid(pid, &status, 0);
	return WIFEXITED(status) && !WEXITSTATUS(status) &&
	       tlb_rs_vmstat_read("oom_kill") == kills;
}

static void case_pressure(long rounds, struct result *r)
{
	long long avail, brim, margin, limit, step = 16 << 10;
	struct migrc_set set;
	long round;
	char *base;

	if (tlb_rs_has_swap()) {
		r->why = "has swap";
		return;
	}
	if (tlb_rs_meminfo_kb(MEMINFO, "MemTotal") >> 20 >= 4) {
		r->why = "fills all memory, which here is 4 GiB or more";
		return;
	}
	base = migrc_map_readonly(&set, NR_PAGES, SEED);
	migrc_write(MIGRC_AGE, LONG_MS);
	migrc_drain();
	/* As much as there is with an empty ledger: the first try should succeed. */
	avail = tlb_rs_meminfo_kb(MEMINFO, "MemAvailable");
	for (brim = avail - step / 2; brim > step && !populate(brim << 10); brim -= step)
		;
	if (brim <= step) {
		r->why = "too little memory";
		unmap(&set, base);
		return;
	}
	margin = avail - brim + step;
	/* An eighth of the memory, or 64 MiB. */
	limit = (avail / 8 < 64 << 10 ? avail / 8 : 64 << 10) * 1024 / psize;
	migrc_write(MIGRC_PAGES, limit);
	for (round = 0; round < rounds; round++) {
		struct migrc_counters before, d;
		long long held, left;
		bool ok;
		int i;

		for (i = 0; i < 16 && migrc_held(-1) + NR_PAGES <= limit; i++)
			migrc_move(&set, 0, !(i & 1), MPOL_MF_MOVE);
		held = migrc_held(-1);
		/* Other memory comes and goes, but what is said to be available has to be. */
		avail = tlb_rs_meminfo_kb(MEMINFO, "MemAvailable");
		brim = avail - margin;
		migrc_read(&before);
		ok = populate(brim << 10);
		left = migrc_held(-1);
		migrc_diff(&before, &d);
		r->armed += held * (long long)psize >= (margin + step / 2) << 10;
		r->stale += !ok;
		ksft_print_msg("pressure: %lld kB of %lld, %lld held, then %lld, %lld drains, %s\n",
			       brim, avail, held, left, d.val[MIGRC_DRAIN_PRESSURE],
			       ok ? "no OOM" : "OOM");
	}
	r->stale += !!tlb_rs_check(base, NR_PAGES * psize, SEED);
	unmap(&set, base);
}

/* In bytes. */
static size_t node_free(int node)
{
	char path[64];

	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/meminfo", node);
	return tlb_rs_meminfo_kb(path, "MemFree") << 10;
}

/*
 * Base pages of @node, one of each @stride frames between @lo and @hi, in read-only
 * mappings of their own. All that is free there but @spare bytes is filled first, and the
 * others of these pages are free again.
 */
static size_t scatter(struct migrc_set *set, int node, size_t spare, __u64 lo, __u64 hi,
		      size_t stride)
{
	size_t len, nr, i, n = 0, most = 8192;
	char *base, *from;
	__u64 pfn;

	len = (node_free(node) - spare) / SZ_2M * SZ_2M;
	base = tlb_rs_mmap(len, SZ_2M);
	madvise(base, len, MADV_NOHUGEPAGE);
	if (!tlb_rs_bind_node(base, len, node) || madvise(base, len, MADV_POPULATE_WRITE))
		ksft_exit_fail_msg("cannot fill node %d: %s\n", node, strerror(errno));
	nr = len / psize;
	migrc_set_init(set, base, most);
	from = base;
	for (i = 0; i < nr && n < most; i++) {
		char *page = base + i * psize;

		pfn = tlb_rs_pfn(page);
		if (pfn < lo || pfn >= hi || pfn % stride != stride / 2)
			continue;
		if (page > from)
			munmap(from, page - from);
		from = page + psize;
		tlb_rs_fill(page, psize, SEED);
		mprotect(page, psize, PROT_READ);
		set->addrs[n++] = page;
	}
	if (base + len > from)
		munmap(from, base + len - from);
	set->nr = n;
	return n;
}

static size_t end_scatter(struct migrc_set *set)
{
	size_t i, bad = 0;

	for (i = 0; i < set->nr; i++) {
		bad += tlb_rs_check(set->addrs[i], psize, SEED);
		munmap(set->addrs[i], psize);
	}
	migrc_set_free(set);
	return bad;
}

/* Off the node, so that their frames are in the ledger. */
static bool hold_scattered(struct migrc_set *set, int node)
{
	size_t moved = migrc_move(set, 0, !node, MPOL_MF_MOVE);
	long long held = migrc_held(node);

	ksft_print_msg("%zu of %zu pages moved, %lld held\n", moved, set->nr, held);
	return set->nr && held >= (long long)set->nr / 2;
}

static void on_alarm(int sig)
{
	(void)sig;
}

/* Gives up after a while: an offline that cannot succeed goes on until a signal. */
static int write_in_time(const char *path, const char *val)
{
	int err;

	sigaction(SIGALRM, &(struct sigaction){ .sa_handler = on_alarm }, NULL);
	alarm(60);
	err = tlb_rs_write_file(path, val);
	alarm(0);
	return err;
}

/* The last block of node 1 that goes offline with an empty ledger, and has; or -1. */
static int offline_block(char *state, size_t size)
{
	int block, candidate, tried = 1 << 30;
	struct dirent *ent;
	DIR *dir;

	for (;;) {
		dir = opendir("/sys/devices/system/node/node1");
		if (!dir)
			return -1;
		candidate = -1;
		while ((ent = readdir(dir))) {
			if (sscanf(ent->d_name, "memory%d", &block) == 1 && block > candidate &&
			    block < tried)
				candidate = block;
		}
		closedir(dir);
		snprintf(state, size, "/sys/devices/system/memory/memory%d/state", candidate);
		if (candidate < 0 || !write_in_time(state, "offline"))
			return candidate;
		tried = candidate;
	}
}

static void case_offline(long rounds, struct result *r)
{
	char path[128], buf[64];
	struct migrc_set set;
	unsigned long size;
	long round;
	int block;
	__u64 lo;

	if (tlb_rs_read_file("/sys/devices/system/memory/block_size_bytes", buf, sizeof(buf))) {
		r->why = "no memory hotplug";
		return;
	}
	size = strtoul(buf, NULL, 16);
	migrc_write(MIGRC_AGE, LONG_MS);
	migrc_write(MIGRC_PAGES, 16384);
	migrc_drain();

	block = offline_block(path, sizeof(path));
	if (block < 0) {
		r->why = "no memory block goes offline (on arm64 none does that was there at boot)";
		return;
	}
	lo = (__u64)block * size / psize;
	for (round = 0; round < rounds; round++) {
		int err;

		if (write_in_time(path, "online_movable"))
			ksft_exit_fail_msg("memory block %d does not come back\n", block);
		scatter(&set, 1, node_free(1) / 4, lo, lo + size / psize, 16);
		r->armed += hold_scattered(&set, 1);
		err = write_in_time(path, "offline");
		if (err)
			ksft_print_msg("offline: memory%d: %s\n", block, strerror(-err));
		r->stale += !!err;
		r->stale += !!end_scatter(&set);
		migrc_drain();
		/* It may be left in between. */
		if (err)
			break;
	}
	write_in_time(path, "online");
}

/* Less than the smallest gigantic page. */
#define SPARE		(24UL << 20)

static const char *gigantic;

static bool allocate_gigantic(int nr)
{
	char path[128], val[16], buf[32];

	snprintf(path, sizeof(path),
		 "/sys/devices/system/node/node1/hugepages/hugepages-%skB/nr_hugepages", gigantic);
	snprintf(val, sizeof(val), "%d", nr);
	return !write_in_time(path, val) && !tlb_rs_read_file(path, buf, sizeof(buf)) &&
	       atoi(buf) == nr;
}

static void case_hugetlb(long rounds, struct result *r)
{
	static const char * const sizes[] = { "32768", "1048576" };
	struct migrc_set set;
	size_t i;
	long round;

	if (tlb_rs_pools_in_use()) {
		r->why = "HugeTLB pools are in use";
		return;
	}
	migrc_write(MIGRC_AGE, LONG_MS);
	migrc_write(MIGRC_PAGES, 16384);
	migrc_drain();
	for (i = 0; i < ARRAY_SIZE(sizes); i++) {
		gigantic = sizes[i];
		if (allocate_gigantic(1))
			break;
	}
	allocate_gigantic(0);
	if (i == ARRAY_SIZE(sizes)) {
		r->why = "no gigantic page to be had, not even with an empty ledger";
		return;
	}
	/* By default nobody gets the last ones of a node. */
	if (!tlb_rs_setting(MIN_FREE, "4096"))
		ksft_exit_fail_msg("no other " MIN_FREE "\n");
	for (round = 0; round < rounds; round++) {
		bool ok;

		/* In each 4 MiB that has free memory, and no range was all free. */
		scatter(&set, 1, SPARE, 0, ~0ULL, (4UL << 20) / psize);
		r->armed += hold_scattered(&set, 1);
		ok = allocate_gigantic(1);
		r->stale += !ok;
		if (!ok)
			ksft_print_msg("hugetlb: no page of %s kB\n", gigantic);
		allocate_gigantic(0);
		r->stale += !!end_scatter(&set);
		migrc_drain();
	}
	tlb_rs_restore(MIN_FREE);
}

/* --- denied, thp, compaction, poison, nested ---------------------------------------- */

static bool denied_since(const char *reason, long long count, const struct migrc_counters *before)
{
	struct migrc_counters d;

	migrc_diff(before, &d);
	count = migrc_stat("denied", reason) - count;
	ksft_print_msg("denied as %s: %lld, %lld deferred\n", reason, count,
		       d.val[MIGRC_DEFERRED]);
	return count > 0 && !d.val[MIGRC_DEFERRED];
}

static bool denied_move(const char *reason, struct migrc_set *set)
{
	long long count = migrc_stat("denied", reason);
	struct migrc_counters before;

	migrc_read(&before);
	migrc_move(set, 0, 1, MPOL_MF_MOVE);
	return denied_since(reason, count, &before);
}

static bool denied_thp(void)
{
	struct migrc_set set;
	char *base;
	bool ok;

	base = tlb_rs_mmap(SZ_2M, SZ_2M);
	madvise(base, SZ_2M, MADV_HUGEPAGE);
	tlb_rs_bind_node(base, SZ_2M, 0);
	tlb_rs_fill(base, SZ_2M, SEED);
	mprotect(base, SZ_2M, PROT_READ);
	migrc_set_init(&set, base, 1);
	ok = denied_move("kind", &set);
	munmap(base, SZ_2M);
	migrc_set_free(&set);
	return ok;
}

static bool denied_compaction(void)
{
	long long count = migrc_stat("denied", "reason");
	struct migrc_counters before;
	struct migrc_set set;
	bool ok;

	scatter(&set, 1, node_free(1) / 4, 0, ~0ULL, 64);
	migrc_read(&before);
	ok = !write_in_time(COMPACT_MEMORY, "1") &&
	     denied_since("reason", count, &before);
	return !end_scatter(&set) && ok;
}

static bool denied_memory(void)
{
	struct migrc_set set;
	char *base = migrc_map_readonly(&set, EXIT_PAGES, SEED), *filler;
	size_t len;
	bool ok;

	/* A watermark of 30 % of the zone. */
	len = node_free(0) / 8 * 7 / SZ_2M * SZ_2M;
	filler = tlb_rs_mmap(len, SZ_2M);
	if (!tlb_rs_bind_node(filler, len, 0) || madvise(filler, len, MADV_POPULATE_WRITE))
		ksft_exit_fail_msg("cannot fill node 0: %s\n", strerror(errno));
	if (!tlb_rs_setting(WATERMARKS, "3000"))
		ksft_exit_fail_msg("no other watermarks\n");
	ok = denied_move("memory", &set);
	tlb_rs_restore(WATERMARKS);
	munmap(filler, len);
	unmap(&set, base);
	return ok;
}

#ifdef __x86_64__
/* The readers are in the parent's mm. */
static bool denied_local(void)
{
	int status = 0;
	pid_t pid = fork();

	if (pid < 0)
		ksft_exit_fail_msg("fork: %s\n", strerror(errno));
	if (!pid) {
		struct migrc_set set;

		migrc_map_readonly(&set, EXIT_PAGES, SEED);
		_exit(!denied_move("local", &set));
	}
	return waitpid(pid, &status, 0) == pid && !status;
}
#endif

/* The reasons are what these are about. */
static void denied_rounds(long rounds, struct result *r, bool (*denied)(void))
{
	if (!migrc_has_stats()) {
		r->why = "no " MIGRC_STATS;
		return;
	}
	migrc_write(MIGRC_AGE, LONG_MS);
	migrc_write(MIGRC_PAGES, 16384);
	for (long round = 0; round < rounds; round++) {
		migrc_drain();
		r->stale += !denied();
		r->armed++;
	}
}

static void case_denied(long rounds, struct result *r)
{
	denied_rounds(rounds, r, denied_memory);
#ifdef __x86_64__
	denied_rounds(rounds, r, denied_local);
#endif
}

static void case_thp(long rounds, struct result *r)
{
	if (psize != 4096 || !tlb_rs_thp_available() ||
	    !tlb_rs_setting(THP_SYSFS "hugepages-2048kB/enabled", "madvise")) {
		r->why = "no THPs of 2 MiB";
		return;
	}
	denied_rounds(rounds, r, denied_thp);
}

static void case_compaction(long rounds, struct result *r)
{
	if (access(COMPACT_MEMORY, W_OK)) {
		r->why = "no compaction";
		return;
	}
	denied_rounds(rounds, r, denied_compaction);
}

static void case_poison(long rounds, struct result *r)
{
	struct migrc_set set;
	long round;
	char *base;

	if (access(DEBUGFS "hwpoison/corrupt-pfn", W_OK)) {
		r->why = "no hwpoison-inject";
		return;
	}
	base = migrc_map_readonly(&set, EXIT_PAGES, SEED);
	migrc_write(MIGRC_AGE, LONG_MS);
	migrc_write(MIGRC_PAGES, NR_PAGES);
	for (round = 0; round < rounds; round++) {
		__u64 pfn = tlb_rs_pfn(base + (EXIT_PAGES - 1) * psize);
		char buf[32];
		int err;

		migrc_move(&set, 0, !(round & 1), MPOL_MF_MOVE);
		r->armed += migrc_held(-1) > 0 &&
			    tlb_rs_pfn(base + (EXIT_PAGES - 1) * psize) != pfn;
		snprintf(buf, sizeof(buf), "%llu", pfn);
		err = tlb_rs_write_file(DEBUGFS "hwpoison/corrupt-pfn", buf);
		if (err)
			ksft_print_msg("poison: frame %llx: %s\n", pfn, strerror(-err));
		r->stale += err || migrc_held(-1);
		r->stale += !!tlb_rs_check(base, EXIT_PAGES * psize, SEED);
		tlb_rs_write_file(DEBUGFS "hwpoison/unpoison-pfn", buf);
	}
	unmap(&set, base);
}

static struct {
	pid_t pid;
	cpu_set_t cpus;
} kcompactd;

static void kcompactd_restore(void)
{
	const struct sched_param param = { };

	sched_setscheduler(kcompactd.pid, SCHED_OTHER, &param);
	sched_setaffinity(kcompactd.pid, sizeof(kcompactd.cpus), &kcompactd.cpus);
}

/*
 * The thread that compacts @node has to leave that to who allocates: until exit it gets the CPU of
 * this test, and only when that is idle.
 */
static bool tame_kcompactd(int node)
{
	const struct sched_param param = { };
	char name[32], path[320], comm[32];
	struct dirent *ent;
	cpu_set_t cpus;
	DIR *proc;

	snprintf(name, sizeof(name), "kcompactd%d\n", node);
	proc = opendir("/proc");
	while (proc && !kcompactd.pid && (ent = readdir(proc))) {
		snprintf(path, sizeof(path), "/proc/%s/comm", ent->d_name);
		if (isdigit(ent->d_name[0]) && !tlb_rs_read_file(path, comm, sizeof(comm)) &&
		    !strcmp(comm, name))
			kcompactd.pid = atoi(ent->d_name);
	}
	if (proc)
		closedir(proc);
	if (!kcompactd.pid ||
	    sched_getaffinity(kcompactd.pid, sizeof(kcompactd.cpus), &kcompactd.cpus))
		return false;
	tlb_rs_at_exit(kcompactd_restore);
	CPU_ZERO(&cpus);
	CPU_SET(0, &cpus);
	return !sched_setscheduler(kcompactd.pid, SCHED_IDLE, &param) &&
	       !sched_setaffinity(kcompactd.pid, sizeof(cpus), &cpus);
}

static void case_nested(long rounds, struct result *r)
{
	size_t folio = 8 * psize, nr = 1024, i, n, len;
	struct migrc_set set;
	char *filler, *base;
	long round;

	/* Of 8 pages: less than a contiguous block of arm64. */
	if (psize != 4096 || !tlb_rs_setting(THP_SYSFS "hugepages-32kB/enabled", "always") ||
	    !tlb_rs_setting(THP_SYSFS "hugepages-2048kB/enabled", "never")) {
		r->why = "no 32 KiB anonymous folios";
		return;
	}
	if (!tame_kcompactd(1)) {
		r->why = "no kcompactd";
		return;
	}
	if (node_free(1) > 256UL << 20) {
		r->why = "fills node 1, where more than 256 MiB are free";
		return;
	}
	migrc_write(MIGRC_AGE, LONG_MS);
	migrc_write(MIGRC_PAGES, 16384);
	base = tlb_rs_mmap(nr * folio, SZ_2M);
	tlb_rs_bind_node(base, nr * folio, 0);
	tlb_rs_fill(base, nr * folio, SEED);
	for (i = n = 0; i < nr; i++)
		n += tlb_rs_is_folio(base + i * folio, 8);
	mprotect(base, nr * folio, PROT_READ);
	migrc_set_init(&set, base, nr);
	for (i = 0; i < nr; i++)
		set.addrs[i] = base + i * folio;

	for (round = 0; round < rounds; round++) {
		long long stalls = tlb_rs_vmstat_read("compact_stall"), held;
		struct migrc_counters before, d;
		size_t moved;

		/* Node 1 has half of its pages, but few of them together. */
		len = node_free(1) / 8 * 7 / SZ_2M * SZ_2M;
		filler = tlb_rs_mmap(len, SZ_2M);
		madvise(filler, len, MADV_NOHUGEPAGE);
		tlb_rs_bind_node(filler, len, 1);
		if (madvise(filler, len, MADV_POPULATE_WRITE))
			ksft_exit_fail_msg("cannot fill node 1: %s\n", strerror(errno));
		for (i = 0; i < len; i += 2 * psize) {
			madvise(filler + i, psize, MADV_DONTNEED);
			*(__u64 *)(filler + i + psize) = i;
		}
		mprotect(filler, len, PROT_READ);

		migrc_read(&before);
		moved = migrc_move(&set, 0, 1, MPOL_MF_MOVE);
		migrc_diff(&before, &d);
		held = migrc_held(-1);
		stalls = tlb_rs_vmstat_read("compact_stall") - stalls;
		ksft_print_msg("nested: %zu folios moved, %lld deferred, %lld held, %lld stalls\n",
			       moved, d.val[MIGRC_DEFERRED], held, stalls);
		r->armed += stalls && d.val[MIGRC_DEFERRED] && n > nr / 2;
		/* What was freed too early is used for something else by now. */
		r->stale += !!tlb_rs_check(base, nr * folio, SEED);
		for (i = 0; i < len; i += 2 * psize)
			r->stale += *(__u64 *)(filler + i + psize) != i;
		munmap(filler, len);
		migrc_move(&set, 0, 0, MPOL_MF_MOVE);
		r->stale += !!tlb_rs_check(base, nr * folio, SEED);
		migrc_drain();
		r->stale += migrc_held(-1) != 0;
	}
	munmap(base, nr * folio);
	migrc_set_free(&set);
}

static const struct test {
	const char *name;
	void (*run)(long rounds, struct result *r);
	long rounds;
} tests[] = {
	{ "limit", case_limit, 20 },
	{ "age", case_age, 9 },
	{ "exit", case_exit, 48 },
	{ "off", case_off, 400 },
	{ "pressure", case_pressure, 2 },
	{ "offline", case_offline, 2 },
	{ "hugetlb", case_hugetlb, 2 },
	{ "denied", case_denied, 1 },
	{ "thp", case_thp, 1 },
	{ "compaction", case_compaction, 1 },
	{ "poison", case_poison, 4 },
	{ "nested", case_nested, 2 },
};

static const struct test *test;

static const char *choose(size_t i)
{
	test = &tests[i];
	return test->name;
}

static int run(const struct migrc_options *o)
{
	long rounds = o->rounds ?: test->rounds;
	struct migrc_counters before;
	struct result r = { };

	tlb_rs_readers_start(&readers, 1, false, scratch, psize);
	migrc_read(&before);
	test->run(rounds, &r);
	tlb_rs_readers_end(&readers);
	if (r.why) {
		ksft_print_msg("%s: %s\n", test->name, r.why);
		return KSFT_SKIP;
	}
	migrc_record("migrc_bounds", o, rounds, r.armed, r.stale, &before);
	/* Rounds that could not show anything prove nothing. */
	if (!o->want && r.armed < (rounds + 1) / 2) {
		ksft_print_msg("%s: %ld of %ld rounds armed only\n", test->name, r.armed, rounds);
		return KSFT_FAIL;
	}
	if (o->want ? r.stale >= o->want : !r.stale)
		return KSFT_PASS;
	ksft_print_msg("%s: %ld violations, expected: %s%ld\n", test->name, r.stale,
		       o->want ? "at least " : "", o->want);
	return KSFT_FAIL;
}

int main(int argc, char **argv)
{
	struct migrc_options o = { };
	int status = KSFT_PASS;

	ksft_print_header();
	if (!migrc_options(argc, argv, &o, &status))
		return status;
	migrc_init(3, NR_PAGES, LONG_MS);
	psize = getpagesize();
	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (sh == MAP_FAILED)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	scratch = migrc_mmap(1, 0, SEED);
	tlb_rs_pin_cpu(0);
	migrc_run("bounds", &o, ARRAY_SIZE(tests), choose, run);
}
