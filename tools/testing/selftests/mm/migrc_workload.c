// SPDX-License-Identifier: GPL-2.0
/*
 * What deferred flushes save where memory moves while it is used, in pairs within one
 * boot: a half without migrc and one with it, in turn the other way round. In each half
 * every page moves to and fro between two nodes, after a warm-up in which it moved twice.
 * Each half is one JSON record.
 *
 * lookup  threads read at random in tables that were written once, in anonymous memory
 *         (the shape of a cross-section kernel of Monte Carlo transport)
 * file    threads read a file on disk through mmap(), nine of ten times in a tenth of it
 *         (the shape of inference on mapped weights)
 * procs   one process for each CPU but the first, and another one after 200 ms of CPU time:
 *         about 50 in a half. Each is executed from the same file, runs through the same
 *         library, and exits. Both files move. --procs: so many at any time
 * store   threads write at random, nine of ten times: nothing can be deferred
 *
 * Who moves the pages, --by:
 *
 * move     the mover, on CPU 0, calls move_pages() all the time. From one call to the next
 *          it waits, busily, for a quarter longer than a call takes (with migrc or without,
 *          whatever is more): the others see as many moves each second with migrc as
 *          without, and CPU 0 is as busy
 * balance  NUMA balancing, after the threads have gone to the other node (not of files)
 * damon    DAMON, to one node and then to the other one
 *
 * The pages of files are read one by one (MADV_RANDOM, as where a program knows that it
 * will read at random): arm64 maps the large folios of readahead, and those of 64 KiB that
 * it has for what is executed, as contiguous blocks, whose flushes are not deferred.
 * --large has them.
 *
 * What is held at the end of a half is drained in it. Of a drain each address space counts
 * as one flush (migrc_flush), of a batch all of them together (tlb_batch_flush).
 */
#define _GNU_SOURCE
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "migrc.h"

#define TRACING		"/sys/kernel/tracing/"
#define DRAIN		"migrc_drain: pages=%lld mms=%lld age_us=%*d reason=%*s ns=%lld"
#define BALANCING	DEBUGFS "sched/numa_balancing/"
#define DAMON		"/sys/kernel/mm/damon/admin/kdamonds/"
#define CONTEXT		"0/contexts/0/"
#define SCHEME		CONTEXT "schemes/0/"
#define MAX_THREADS	32
#define MAX_PAIRS	1000
#define MAX_STATS	64
#define MAX_ROUNDS	10000
#define FOLLOW_NS	10000000000ULL
#define LIFE		(CLOCKS_PER_SEC / 5)	/* of a process */
#define NOT_TRIED	INT_MAX	/* no node, no error */
#define SEED		1

#ifndef MPOL_DEFAULT
#define MPOL_DEFAULT	0
#endif

struct workload {
	const char *name;
	bool file;
	bool procs;
	bool write;
	bool hot;		/* nine of ten accesses go to a tenth of the pages */
};

/* Who moves the pages. */
static enum {
	BY_MOVE,
	BY_BALANCE,
	BY_DAMON,
} by;

static const char * const movers[] = { "move", "balance", "damon" };

static const char *dir = "/mnt";
static size_t nr_pages = 512;
static size_t call_pages = 512;
static size_t block_pages = 32;
static int nr_threads;
static int nr_procs;
static int pairs = 7;
static int moves = 20;
static int pace = 125;
static long age_ms = 1000;
static bool large;
static bool protect;
static bool readmostly;
static size_t psize;
static char *base;
static struct migrc_set set;
static const struct workload *load_now;
static __u64 interval_ns;

/* Of processes, too. */
static struct shared {
	bool stop;
	bool failed;
	int node;		/* where the threads are, for NUMA balancing */
	__u64 ops[MAX_THREADS][16];	/* a cache line each */
} *shared;

/* debugfs/migrc/stats */
struct stats {
	int nr;
	struct {
		char name[48];
		long long val[2];
	} line[MAX_STATS];
};

/* The tracepoint of drains, since the last look. */
struct drains {
	long long most_pages;
	long long worst_ns;
	long long mms;
};

/* On all CPUs of a node. */
static void pin_node(int node)
{
	char path[64], buf[256], *p = buf;
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/cpulist", node);
	if (tlb_rs_read_file(path, buf, sizeof(buf)))
		return;
	while (*p >= '0' && *p <= '9') {
		long cpu = strtol(p, &p, 10), last = cpu;

		if (*p == '-')
			last = strtol(p + 1, &p, 10);
		for (; cpu <= last; cpu++)
			CPU_SET(cpu, &cpus);
		p += *p == ',';
	}
	sched_setaffinity(0, sizeof(cpus), &cpus);
}

static void *user(void *arg)
{
	long id = (long)arg;
	__u64 x = 88172645463325252ULL + id, n = 0, sum = 0;
	int node = -1;

	tlb_rs_pin_cpu(1 + id % (tlb_rs_nr_cpus() - 1));
	while (!LOAD(shared->stop)) {
		size_t page;
		__u64 *word;

		if (by == BY_BALANCE && node != LOAD(shared->node)) {
			node = LOAD(shared->node);
			pin_node(node);
		}

		/* Marsaglia's xorshift64 */
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		page = x % nr_pages;
		if (load_now->hot && x % 10)
			page /= 10;
		word = (__u64 *)(base + page * psize) + (x >> 40) % (psize / sizeof(*word));
		if (load_now->write && x % 10)
			__atomic_store_n(word, x, __ATOMIC_RELAXED);
		else
			sum += __atomic_load_n(word, __ATOMIC_RELAXED);
		if (!(++n % 64))
			__atomic_store_n(&shared->ops[id][0], n, __ATOMIC_RELAXED);
	}
	return (void *)sum;
}

/* A function at the begin of each page of the library, which does nothing. */
static void put_function(char *page)
{
#if defined(__aarch64__)
	*(__u32 *)page = 0xd65f03c0;	/* ret */
#elif defined(__x86_64__)
	*(__u8 *)page = 0xc3;		/* ret */
#endif
}

/* The life of one of the processes; clock() is its CPU time. */
static int process(const char *library)
{
	int fd = open(library, O_RDONLY | O_CLOEXEC);
	off_t len = lseek(fd, 0, SEEK_END), at;
	char *text;

	text = mmap(NULL, len, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
	if (text == MAP_FAILED)
		return 1;
	while (clock() < LIFE) {
		for (at = 0; at < len; at += getpagesize())
			((void (*)(void))(text + at))();
	}
	return 0;
}

static void path_of(char *path, size_t size, const char *what)
{
	snprintf(path, size, "%.200s/migrc_workload_%s", dir, what);
}

/* Keeps @nr_procs of them alive; an operation is one that has ended. */
static void spawn(void)
{
	char program[256], library[256];
	int alive = 0, status, cpu;
	cpu_set_t cpus;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	CPU_ZERO(&cpus);
	for (cpu = 1; cpu < tlb_rs_nr_cpus(); cpu++)
		CPU_SET(cpu, &cpus);
	sched_setaffinity(0, sizeof(cpus), &cpus);
	path_of(program, sizeof(program), "program");
	path_of(library, sizeof(library), "library");
	for (;;) {
		if (alive < nr_procs && !LOAD(shared->stop)) {
			pid_t pid = fork();

			if (!pid) {
				execl(program, program, "--process", library, NULL);
				_exit(1);
			}
			if (pid < 0)
				_exit(1);
			alive++;
			continue;
		}
		if (!alive)
			_exit(LOAD(shared->failed));
		if (wait(&status) < 0)
			_exit(1);
		alive--;
		if (status)
			STORE(shared->failed, true);
		__atomic_fetch_add(&shared->ops[0][0], 1, __ATOMIC_RELAXED);
	}
}

static __u64 all_ops(void)
{
	__u64 n = 0;
	int i;

	for (i = 0; i < MAX_THREADS; i++)
		n += __atomic_load_n(&shared->ops[i][0], __ATOMIC_RELAXED);
	return n;
}

/*
 * The pages from @at to @end, in as many calls as it takes: one ends with the first block of
 * which something cannot be moved.
 */
static void move(size_t at, size_t end)
{
	size_t i;

	while (at < end) {
		for (i = at; i < end; i++)
			set.status[i] = NOT_TRIED;
		if (syscall(SYS_move_pages, 0, end - at, set.addrs + at, set.nodes + at,
			    set.status + at, MPOL_MF_MOVE_ALL) <= 0)
			return;
		while (at < end && set.status[at] != NOT_TRIED)
			at++;
		at = (at / block_pages + 1) * block_pages;
	}
}

/*
 * A call is for @call_pages; of these, blocks change places: the kernel migrates
 * @block_pages to one node, and then as many to the other one.
 */
static void move_pass(int odd, __u64 *next)
{
	size_t i, at;

	for (i = 0; i < set.nr; i++)
		set.nodes[i] = (i / block_pages + odd) & 1;
	for (at = 0; at < set.nr; at += call_pages) {
		size_t left = set.nr - at;

		while (tlb_rs_now_ns() < *next)
			;
		*next += interval_ns;
		move(at, at + (call_pages < left ? call_pages : left));
	}
}

/* The kernel looks ten times a second which node uses a page. */
static void balance(void)
{
	migrc_setting("/proc/sys/kernel/numa_balancing", 1);
	migrc_setting(BALANCING "scan_delay_ms", 100);
	migrc_setting(BALANCING "scan_period_min_ms", 100);
	migrc_setting(BALANCING "scan_period_max_ms", 100);
}

static void must_write(const char *dir, const char *name, const char *val)
{
	char path[256];
	int err;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	err = tlb_rs_write_file(path, val);
	if (err)
		ksft_exit_fail_msg("%s: %s\n", path, strerror(-err));
}

static void damon_stop(void)
{
	tlb_rs_write_file(DAMON "0/state", "off");
	tlb_rs_write_file(DAMON "nr_kdamonds", "0");
}

/* All pages of the set, every 100 ms, to the target node of the scheme. */
static void damon_start(void)
{
	char pid[24], begin[24], end[24];
	const char *const todo[][2] = {
		{ "nr_kdamonds", "1" },
		{ "0/contexts/nr_contexts", "1" },
		{ CONTEXT "operations", "fvaddr" },
		{ CONTEXT "targets/nr_targets", "1" },
		{ CONTEXT "targets/0/pid_target", pid },
		{ CONTEXT "targets/0/regions/nr_regions", "1" },
		{ CONTEXT "targets/0/regions/0/start", begin },
		{ CONTEXT "targets/0/regions/0/end", end },
		{ CONTEXT "schemes/nr_schemes", "1" },
		{ SCHEME "action", "migrate_hot" },
		{ SCHEME "access_pattern/sz/max", "18446744073709551615" },
		{ SCHEME "access_pattern/nr_accesses/max", "4294967295" },
		{ SCHEME "access_pattern/age/max", "4294967295" },
		{ SCHEME "target_nid", "0" },
		{ "0/state", "on" },
	};
	size_t i;

	snprintf(pid, sizeof(pid), "%d", getpid());
	snprintf(begin, sizeof(begin), "%lu", (unsigned long)base);
	snprintf(end, sizeof(end), "%lu", (unsigned long)base + set.nr * psize);
	for (i = 0; i < ARRAY_SIZE(todo); i++)
		must_write(DAMON, todo[i][0], todo[i][1]);
}

/* Until nine of ten pages have followed, or the kernel has given up. */
static void follow_pass(int odd)
{
	long long before = tlb_rs_vmstat_read("pgmigrate_success");
	__u64 end = tlb_rs_now_ns() + FOLLOW_NS;

	if (by == BY_BALANCE) {
		STORE(shared->node, odd);
	} else {
		must_write(DAMON, SCHEME "target_nid", odd ? "1" : "0");
		must_write(DAMON, "0/state", "commit");
	}
	while (tlb_rs_vmstat_read("pgmigrate_success") - before < (long long)set.nr * 9 / 10 &&
	       tlb_rs_now_ns() < end)
		tlb_rs_sleep_us(10000);
}

/* Moves every page @times. Returns the most that were held. */
static long long move_all(int times)
{
	static int odd;
	__u64 next = tlb_rs_now_ns();
	long long most = 0;

	while (times--) {
		long long held;

		odd = !odd;
		if (by == BY_MOVE)
			move_pass(odd, &next);
		else
			follow_pass(odd);
		held = migrc_held(-1);
		most = held > most ? held : most;
	}
	return most;
}

static void *map_file(void *at, const char *path, size_t len)
{
	int prot = PROT_READ | (at && large ? PROT_EXEC : 0);
	int fd = tlb_rs_open(path, O_RDONLY);
	char *map;
	size_t i;

	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	map = mmap(at, len, prot, MAP_SHARED | (at ? MAP_FIXED : 0), fd, 0);
	if (map == MAP_FAILED)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	close(fd);
	if (!large)
		madvise(map, len, MADV_RANDOM);
	for (i = 0; i < len; i += psize)
		__atomic_load_n(map + i, __ATOMIC_RELAXED);
	return map;
}

static int create(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0700);

	if (fd < 0)
		ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	return fd;
}

static void finish(int fd, const char *path)
{
	if (fsync(fd))
		ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	/* Nobody has write access any more. */
	close(fd);
}

static void put(int fd, const char *buf, size_t len)
{
	if (write(fd, buf, len) != (ssize_t)len)
		ksft_exit_fail_msg("write: %s\n", strerror(errno));
}

static void make_file(const char *path, bool functions)
{
	char *buf = malloc(nr_pages * psize);
	int fd = create(path);
	size_t i;

	if (!buf)
		ksft_exit_fail_msg("no memory\n");
	tlb_rs_fill(buf, nr_pages * psize, SEED);
	for (i = 0; functions && i < nr_pages; i++)
		put_function(buf + i * psize);
	put(fd, buf, nr_pages * psize);
	finish(fd, path);
	free(buf);
}

/* This program, on a filesystem whose pages may be deferred. */
static void copy_program(const char *path)
{
	int from = tlb_rs_open("/proc/self/exe", O_RDONLY), to = create(path);
	char buf[4096];
	ssize_t n;

	while ((n = read(from, buf, sizeof(buf))) > 0)
		put(to, buf, n);
	close(from);
	finish(to, path);
}

/* From the begin of this program's file to the end of what is executable. */
static size_t text_size(void)
{
	unsigned long begin, end, offset;
	char line[512], perms[8];
	size_t size = 0;
	FILE *f;

	f = fopen("/proc/self/maps", "r");
	/* The program comes first. */
	while (f && !size && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx %7s %lx", &begin, &end, perms, &offset) == 4 &&
		    perms[2] == 'x')
			size = offset + end - begin;
	}
	if (!size)
		ksft_exit_fail_msg("no text\n");
	fclose(f);
	return size;
}

/* A library and the text of the program, as one range. */
static size_t map_procs(void)
{
	size_t len = nr_pages * psize, text = text_size();
	char path[256];

	/* As a loader aligns them: with --large, as blocks. */
	base = tlb_rs_mmap(len + text, SZ_2M);
	path_of(path, sizeof(path), "library");
	make_file(path, true);
	map_file(base, path, len);
	path_of(path, sizeof(path), "program");
	copy_program(path);
	map_file(base + len, path, text);
	return (len + text) / psize;
}

static void map_pages(const struct workload *w)
{
	size_t nr = nr_pages, len = nr * psize;
	char path[256];

	if (w->procs) {
		nr = map_procs();
	} else if (w->file) {
		path_of(path, sizeof(path), "file");
		make_file(path, false);
		base = map_file(NULL, path, len);
		unlink(path);
	} else {
		base = migrc_mmap(nr, 0, SEED);
		syscall(SYS_mbind, base, len, MPOL_DEFAULT, NULL, 0, 0);
		if (protect && !w->write && mprotect(base, len, PROT_READ))
			ksft_exit_fail_msg("mprotect: %s\n", strerror(errno));
	}
	migrc_set_init(&set, base, nr);
}

static bool unmap_pages(const struct workload *w)
{
	bool ok = w->write || w->procs || !tlb_rs_check(base, nr_pages * psize, SEED);
	char path[256];

	if (!ok)
		ksft_print_msg("%s: wrong contents\n", w->name);
	munmap(base, set.nr * psize);
	migrc_set_free(&set);
	if (w->procs) {
		path_of(path, sizeof(path), "program");
		unlink(path);
		path_of(path, sizeof(path), "library");
		unlink(path);
	}
	return ok;
}

static void stats_read(struct stats *s)
{
	char kind[24], name[24], line[128];
	FILE *f = fopen(MIGRC_STATS, "r");

	memset(s, 0, sizeof(*s));
	if (!f)
		return;
	while (s->nr < MAX_STATS && fgets(line, sizeof(line), f)) {
		long long *val = s->line[s->nr].val;

		if (sscanf(line, "%23s %23s %lld %lld", kind, name, &val[0], &val[1]) < 3 ||
		    !strcmp(kind, "age"))
			continue;
		snprintf(s->line[s->nr++].name, sizeof(s->line[0].name), "%s_%s", kind, name);
	}
	fclose(f);
}

static void drains_begin(void)
{
	int fd = open(TRACING "trace", O_WRONLY | O_TRUNC | O_CLOEXEC);

	if (fd >= 0)
		close(fd);
}

static bool drains_read(struct drains *d)
{
	FILE *f = fopen(TRACING "trace", "r");
	long long pages, mms, ns;
	char line[512];

	memset(d, 0, sizeof(*d));
	if (!f)
		return false;
	while (fgets(line, sizeof(line), f)) {
		char *p = strstr(line, "migrc_drain: ");

		if (!p || sscanf(p, DRAIN, &pages, &mms, &ns) != 3)
			continue;
		d->mms += mms;
		d->most_pages = pages > d->most_pages ? pages : d->most_pages;
		d->worst_ns = ns > d->worst_ns ? ns : d->worst_ns;
	}
	fclose(f);
	return true;
}

/* Further members of the record. */
static char extra[4096];
static size_t extra_len;

static __printf(1, 2) void add(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	extra_len += vsnprintf(extra + extra_len, sizeof(extra) - extra_len, format, args);
	va_end(args);
	if (extra_len >= sizeof(extra))
		ksft_exit_fail_msg("too long a record\n");
}

/* What was denied, drained and flushed by hooks, by reason; not what is 0. */
static void add_stats(const struct stats *before)
{
	struct stats now;
	int i;

	stats_read(&now);
	for (i = 0; i < now.nr && i < before->nr; i++) {
		long long n = now.line[i].val[0] - before->line[i].val[0];
		long long pages = now.line[i].val[1] - before->line[i].val[1];

		if (n)
			add(",\"%s\":%lld", now.line[i].name, n);
		if (pages)
			add(",\"%s_pages\":%lld", now.line[i].name, pages);
	}
}

static struct {
	long long moved, deferred;	/* while migrc was on */
} total;

static size_t half(const struct workload *w, int pair, int on)
{
	static struct stats stats;
	struct migrc_counters before, d;
	struct tlb_rs_counters c;
	struct drains drains;
	long long held, moved;
	__u64 n, ns;

	migrc_write(MIGRC_ENABLE, on);
	move_all(2);
	migrc_expire();
	stats_read(&stats);
	migrc_read(&before);
	moved = tlb_rs_vmstat_read("pgmigrate_success");
	drains_begin();
	tlb_rs_begin(&c);
	ns = tlb_rs_now_ns();
	n = all_ops();
	held = move_all(moves);
	n = all_ops() - n;
	ns = tlb_rs_now_ns() - ns;
	migrc_expire();
	tlb_rs_end(&c);
	moved = tlb_rs_vmstat_read("pgmigrate_success") - moved;
	migrc_diff(&before, &d);
	if (on) {
		total.moved += moved;
		total.deferred += d.val[MIGRC_DEFERRED];
	}

	extra_len = 0;
	add(",\"by\":\"%s\"", movers[by]);
	add(",\"migrc\":%d,\"pair\":%d,\"threads\":%d,\"pages\":%zu,\"block\":%zu", on, pair,
	    w->procs ? nr_procs : nr_threads, set.nr, block_pages);
	add(",\"readmostly\":%d,\"protect\":%d", readmostly, protect);
	add(",\"moved\":%lld,\"ops\":%llu,\"ops_ns\":%llu", moved, n, ns);
	add(",\"deferred\":%lld,\"denied\":%lld,\"migrc_flush\":%lld", d.val[MIGRC_DEFERRED],
	    d.val[MIGRC_DENIED], d.val[MIGRC_FLUSH]);
	add_stats(&stats);
	if (drains_read(&drains)) {
		held = drains.most_pages > held ? drains.most_pages : held;
		add(",\"worst_drain_ns\":%lld,\"drain_mms\":%lld", drains.worst_ns, drains.mms);
	}
	add(",\"worst_held\":%lld", held);
	migrc_write(MIGRC_ENABLE, 0);
	tlb_rs_json_region(w->name, extra, &c);
	return moved;
}

static bool start(const struct workload *w, pthread_t *threads, pid_t *spawner)
{
	long id;

	if (w->procs) {
		*spawner = fork();
		if (!*spawner)
			spawn();
		return *spawner > 0;
	}
	for (id = 0; id < nr_threads; id++) {
		if (pthread_create(&threads[id], NULL, user, (void *)id))
			return false;
	}
	return true;
}

static bool end(const struct workload *w, pthread_t *threads, pid_t spawner)
{
	int id, status;

	STORE(shared->stop, true);
	if (w->procs)
		return waitpid(spawner, &status, 0) == spawner && !status;
	for (id = 0; id < nr_threads; id++)
		pthread_join(threads[id], NULL);
	return true;
}

/* How often a call is made: @least, or if it takes longer. */
static __u64 pace_of(int on, __u64 least)
{
	size_t calls = (set.nr + call_pages - 1) / call_pages;
	__u64 ns;

	migrc_write(MIGRC_ENABLE, on);
	move_all(2);
	ns = tlb_rs_now_ns();
	move_all(4);
	ns = (tlb_rs_now_ns() - ns) / (4 * calls) * pace / 100;
	migrc_write(MIGRC_ENABLE, 0);
	return ns > least ? ns : least;
}

static bool run(const struct workload *w)
{
	pthread_t threads[MAX_THREADS];
	pid_t spawner = 0;
	bool ok = true;
	int i;

	load_now = w;
	memset(shared, 0, sizeof(*shared));
	memset(&total, 0, sizeof(total));
	map_pages(w);
	migrc_write(MIGRC_ENABLE, 0);
	if (!start(w, threads, &spawner))
		ksft_exit_fail_msg("cannot start the users\n");
	if (by == BY_DAMON)
		damon_start();
	interval_ns = 0;
	for (i = 0; by == BY_MOVE && pace && i < 2; i++)
		interval_ns = pace_of(i, interval_ns);
	for (i = 0; i < 2 * pairs && ok; i++) {
		size_t moved = half(w, i / 2, (i ^ i / 2) & 1);

		/* Some are busy, where processes come and go. */
		ok = moved >= set.nr * moves / 2 || by != BY_MOVE;
		if (!ok)
			ksft_print_msg("%s: %zu pages moved of %zu\n", w->name, moved,
				       set.nr * moves);
	}
	if (by == BY_DAMON) {
		damon_stop();
		if (!total.moved) {
			ksft_print_msg("%s: DAMON moved nothing\n", w->name);
			ok = false;
		}
	}
	/* Pages that are only read, if they are not mapped as contiguous blocks. */
	if (by != BY_BALANCE && !large && (w->file ? w->hot : !w->write && readmostly) &&
	    total.deferred < total.moved / 2) {
		ksft_print_msg("%s: %lld pages deferred of %lld that %s moved\n", w->name,
			       total.deferred, total.moved, movers[by]);
		ok = false;
	}
	ok &= end(w, threads, spawner);
	ok &= unmap_pages(w);
	return ok && !migrc_held(-1);
}

static void help(const char *prog)
{
	printf("usage: %s [option]...\n"
	       "  [--case lookup|file|procs|store] [--by move|balance|damon] [--pairs P] [--pages N]\n"
	       "  [--call N] [--block N] [--pace PERCENT] [--moves N] [--age MS] [--threads K]\n"
	       "  [--procs K] [--dir DIRECTORY] [--protect] [--large]\n"
	       "--call: pages in one call; --block: that move to the same node, one after the other\n"
	       "--pace: time from one call to the next, of that which one takes; 0: none\n"
	       "--moves: of each page in each half of a pair\n"
	       "--protect: the tables are made read-only with mprotect()\n",
	       prog);
}

static const struct workload workloads[] = {
	{ .name = "lookup" },
	{ .name = "file", .file = true, .hot = true },
	{ .name = "procs", .file = true, .procs = true },
	{ .name = "store", .write = true },
};

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "case", required_argument, NULL, 'c' },
		{ "by", required_argument, NULL, 'B' },
		{ "pages", required_argument, NULL, 'n' },
		{ "call", required_argument, NULL, 'C' },
		{ "block", required_argument, NULL, 'b' },
		{ "moves", required_argument, NULL, 'm' },
		{ "pairs", required_argument, NULL, 'p' },
		{ "threads", required_argument, NULL, 't' },
		{ "procs", required_argument, NULL, 'P' },
		{ "age", required_argument, NULL, 'a' },
		{ "pace", required_argument, NULL, 'x' },
		{ "dir", required_argument, NULL, 'd' },
		{ "protect", no_argument, NULL, 'r' },
		{ "large", no_argument, NULL, 'l' },
		{ "process", required_argument, NULL, 'X' },
		{ "help", no_argument, NULL, 'h' },
		{ }
	};
	const char *only = NULL;
	size_t i, nr = 0;
	int opt;

	while ((opt = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		switch (opt) {
		case 'c':
			only = optarg;
			break;
		case 'B':
			for (by = BY_MOVE; strcmp(optarg, movers[by]); by++) {
				if (by == BY_DAMON)
					ksft_exit_fail_msg("no mover '%s'\n", optarg);
			}
			break;
		case 'n':
			nr_pages = tlb_rs_number(optarg, 10, 1 << 20);
			break;
		case 'C':
			call_pages = tlb_rs_number(optarg, 1, 1 << 16);
			break;
		case 'b':
			block_pages = tlb_rs_number(optarg, 1, 1 << 16);
			break;
		case 'm':
			moves = tlb_rs_number(optarg, 1, MAX_ROUNDS);
			break;
		case 'p':
			pairs = tlb_rs_number(optarg, 1, MAX_PAIRS);
			break;
		case 't':
			nr_threads = tlb_rs_number(optarg, 1, MAX_THREADS);
			break;
		case 'P':
			nr_procs = tlb_rs_number(optarg, 1, 1000);
			break;
		case 'a':
			age_ms = tlb_rs_number(optarg, 1, 60000);
			break;
		case 'x':
			pace = tlb_rs_number(optarg, 0, 1000);
			break;
		case 'd':
			dir = optarg;
			break;
		case 'r':
			protect = true;
			break;
		case 'l':
			large = true;
			break;
		case 'X':
			return process(optarg);
		default:
			help(argv[0]);
			return opt == 'h' ? 0 : KSFT_FAIL;
		}
	}
	ksft_print_header();
	for (i = 0; i < ARRAY_SIZE(workloads); i++)
		nr += !only || !strcmp(only, workloads[i].name);
	if (!nr)
		ksft_exit_fail_msg("no case '%s'\n", only);
	/* The default of vm.migrc_max_pages: it is a part of what is measured. */
	migrc_init(2, 0, age_ms);
	/* Refused where the CPUs do not set dirty bits. */
	readmostly = tlb_rs_setting(MIGRC_READMOSTLY, "1");
	/* Without it, the worst drain is not known. */
	tlb_rs_setting(TRACING "events/migrc/migrc_drain/enable", "1");
	if (by == BY_BALANCE)
		balance();
	if (by == BY_DAMON && access(DAMON, F_OK))
		ksft_exit_skip("no DAMON\n");
	nr_threads = nr_threads ?: tlb_rs_nr_cpus() - 1;
	nr_procs = nr_procs ?: tlb_rs_nr_cpus() - 1;
	psize = getpagesize();
	tlb_rs_pin_cpu(0);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		      -1, 0);
	if (shared == MAP_FAILED)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));

	ksft_set_plan(nr);
	for (i = 0; i < ARRAY_SIZE(workloads); i++) {
		if (only && strcmp(only, workloads[i].name))
			continue;
		if (workloads[i].file && !migrc_defers_files_of(dir))
			ksft_test_result_skip("migrc_workload %s: nothing is deferred in %s\n",
					      workloads[i].name, dir);
		else
			ksft_test_result(run(&workloads[i]), "migrc_workload %s\n",
					 workloads[i].name);
	}
	ksft_finished();
}
