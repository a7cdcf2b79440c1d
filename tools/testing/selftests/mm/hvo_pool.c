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
#define _GNU_SOURCE
#include <getopt.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdint.h>
#include <sys/klog.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "hvo.h"

#define KPF_HUGE		17
#define KPF_HWPOISON		19
#define FAIL_PAGE_ALLOC		DEBUGFS "fail_page_alloc/"
#define MAKE_IT_FAIL		"/proc/self/make-it-fail"
#define SOFT_OFFLINE		"/sys/devices/system/memory/soft_offline_page"
#define HARD_OFFLINE		"/sys/devices/system/memory/hard_offline_page"
#define UNPOISON		DEBUGFS "hwpoison/unpoison-pfn"

#define DUTY_PCT	10
#define DUTY_MS		2000
#define DUTY_TASKS	8

static int rounds = 2;
static const char *skip;

/* At most this many, or how many fit of what there is to spare. */
static long few(unsigned long kb, long most)
{
	long nr = tlb_rs_meminfo_kb(MEMINFO, "MemFree") / 2 / (long)kb;

	return nr > most ? most : nr;
}

static long some(unsigned long kb)
{
	return few(kb, 64);
}

static bool verify(long shared)
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
static long nr_reads;

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

static void readers_begin(void)
{
	readers_stop = false;
	nr_reads = 0;
	for (long i = 0; i < nr_cpus && i < 64; i++)
		pthread_create(&readers[i], NULL, reader, (void *)i);
}

static void readers_end(void)
{
	__atomic_store_n(&readers_stop, true, __ATOMIC_RELAXED);
	for (long i = 0; i < nr_cpus && i < 64; i++)
		pthread_join(readers[i], NULL);
}

/* --- cases ------------------------------------------------------------------------- */

/* There may be no free range of that length. */
static bool gigantic(unsigned long kb)
{
	return kb >= 1UL << 20;
}

/* What the files of a pool say. */
static bool counts_are(unsigned long kb, long optimized, long unoptimized)
{
	char path[128];
	long have, not;

	snprintf(path, sizeof(path), HUGEPAGES, kb, "optimized_hugepages");
	have = get(path);
	snprintf(path, sizeof(path), HUGEPAGES, kb, "unoptimized_hugepages");
	not = get(path);
	if (have == optimized && not == unoptimized)
		return true;
	ksft_print_msg("%lu kB: files say %ld optimised and %ld others, not %ld and %ld\n",
		       kb, have, not, optimized, unoptimized);
	return false;
}

/* Grows and shrinks a pool; checks what that saves. */
static bool cycle(unsigned long kb, long nr)
{
	long before = memmap(), saved, want;
	bool ok;

	nr = resize(kb, nr);
	saved = before - memmap();
	want = nr * spare_pages(kb);
	ok = (nr > 0 || gigantic(kb)) && saved == want && verify(want);
	ok &= optimizable(kb) ? counts_are(kb, nr, 0) : counts_are(kb, 0, nr);
	if (!ok)
		ksft_print_msg("%lu kB: %ld pages, %ld pages of struct pages saved, %ld expected\n",
			       kb, nr, saved, want);
	if (resize(kb, 0) || memmap() != before || !verify(0)) {
		ksft_print_msg("%lu kB: %ld left, %ld pages of struct pages lost\n", kb,
			       pool(kb), before - memmap());
		ok = false;
	}
	return ok;
}

static bool test_pool(void)
{
	bool ok = true;

	for (int r = 0; r < rounds; r++) {
		for (int i = 0; i < nr_sizes; i++) {
			long nr = some(sizes[i]);

			if (nr)
				ok &= cycle(sizes[i], nr);
		}
	}
	return ok;
}

/* The smallest that gives something back. */
static unsigned long small_size(void)
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

static const char *needs_memory(void)
{
	return some(small_size()) ? NULL : "needs memory for one page";
}

static const char *needs_injection(void)
{
	return access(HVO_DEBUG "stall_us", W_OK) ? "needs CONFIG_TLB_RS_FAULT_INJECTION" : NULL;
}

static const char *needs_two_cpus(void)
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

static bool test_demote(void)
{
	long nr = 0, before, small, each, pauses, demoted = stat_of("demote");
	unsigned long from = 0, to = small_size();
	char path[128];
	bool ok;

	before = memmap();
	for (int i = nr_sizes - 1; i >= 0 && !nr && sizes[i] > to; i--) {
		from = sizes[i];
		snprintf(path, sizeof(path), HUGEPAGES, from, "demote_size");
		snprintf(path + 64, sizeof(path) - 64, "%lukB", to);
		if (some(from) && set(path, path + 64))
			nr = resize(from, some(from));
	}
	if (!nr)
		return false;
	snprintf(path, sizeof(path), HUGEPAGES, from, "demote");
	ok = set_num(path, nr) && !pool(from);
	small = pool(to);
	ok &= small == nr * (long)(from / to);
	ok &= before - memmap() == small * spare_pages(to);
	ok &= verify(small * spare_pages(to));
	/* As many together as one pause may change entries of, of each node by itself. */
	each = get(HVO_PARAM "max_ptes") / vmemmap_pages(from);
	demoted = stat_of("demote") - demoted;
	pauses = (nr + each - 1) / each;
	ok &= demoted >= pauses &&
	      demoted < pauses + __builtin_popcountl(tlb_rs_memory_nodes());
	if (!ok)
		ksft_print_msg("%ld of %lu kB: %ld of %lu kB, saved %ld, %ld pauses\n", nr, from,
			       small, to, before - memmap(), demoted);
	resize(to, 0);
	resize(from, 0);
	return ok && memmap() == before && verify(0);
}

static bool flags_are_right(const char *addr, unsigned long bytes)
{
	int pagemap = open("/proc/self/pagemap", O_RDONLY);
	int kpageflags = open("/proc/kpageflags", O_RDONLY);
	unsigned long i, pages = bytes / psize, bad = 0;

	for (i = 0; i < pages; i++) {
		uint64_t entry = 0, flags = 0;
		int want = i ? KPF_COMPOUND_TAIL : KPF_COMPOUND_HEAD;

		if (pread(pagemap, &entry, 8, ((uintptr_t)addr / psize + i) * 8) != 8 ||
		    pread(kpageflags, &flags, 8, (entry & ((1ULL << 55) - 1)) * 8) != 8)
			bad++;
		else if (!(flags >> want & 1) || !(flags >> KPF_HUGE & 1))
			bad++;
	}
	close(pagemap);
	close(kpageflags);
	if (bad)
		ksft_print_msg("%lu of %lu pages with wrong flags\n", bad, pages);
	return !bad;
}

/* The kernel writes to all pages of the copy: of the child, which has to be as @addr. */
static bool copy_is_right(char *addr, unsigned long bytes)
{
	pid_t pid = fork();
	int status;

	if (!pid) {
		bool ok = true;

		*(unsigned long *)addr = 0;
		for (unsigned long j = psize; j < bytes; j += psize)
			ok &= *(unsigned long *)(addr + j) == j + 1;
		_exit(!ok);
	}
	return pid > 0 && waitpid(pid, &status, 0) == pid && !status;
}

static bool test_use(void)
{
	bool ok = true;
	int used = 0;

	for (int i = 0; i < nr_sizes; i++) {
		unsigned long bytes = sizes[i] * 1024, j;
		long nr = optimizable(sizes[i]) ? resize(sizes[i], few(sizes[i], 2)) : 0;
		int shift = __builtin_ctzl(bytes);
		char *p;

		if (!nr)
			continue;
		p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | shift << 26, -1, 0);
		if (p == MAP_FAILED) {
			ksft_perror("mmap");
			resize(sizes[i], 0);
			return false;
		}
		for (j = 0; j < bytes; j += psize)
			*(unsigned long *)(p + j) = j + 1;
		ok &= flags_are_right(p, bytes);
		ok &= nr < 2 || copy_is_right(p, bytes);
		for (j = 0; j < bytes; j += psize)
			ok &= *(unsigned long *)(p + j) == j + 1;
		munmap(p, bytes);
		resize(sizes[i], 0);
		used++;
	}
	if (!used)
		ksft_print_msg("no page to be had\n");
	return ok && used && verify(0);
}

static const char * const user_parameters[] = {
	"ack_timeout_us", "pause_budget_us", "max_ptes", "duty_pct", "retries", "retry_s",
};

/* The parameters as the kernel has them, or its command line. Returns to those of the tests. */
static bool as_users_have_it(bool (*test)(void))
{
	char path[128], was[ARRAY_SIZE(user_parameters)][32];
	bool ok;

	for (size_t i = 0; i < ARRAY_SIZE(user_parameters); i++) {
		snprintf(path, sizeof(path), HVO_PARAM "%s", user_parameters[i]);
		tlb_rs_read_file(path, was[i], sizeof(was[i]));
		tlb_rs_restore(path);
	}
	ok = test();
	for (size_t i = 0; i < ARRAY_SIZE(user_parameters); i++) {
		snprintf(path, sizeof(path), HVO_PARAM "%s", user_parameters[i]);
		set(path, was[i]);
	}
	return ok;
}

static bool pools_by_default(void)
{
	bool ok = true;

	for (int i = 0; i < nr_sizes; i++) {
		long pauses = tlb_rs_vmstat_read("cpu_pause"), stopped = stat_of("stop_machine");
		long cancelled = stat_of("cancelled"), nr = some(sizes[i]);
		__u64 begin = tlb_rs_now_ns();

		if (!optimizable(sizes[i]) || !nr)
			continue;
		ok &= cycle(sizes[i], nr);
		pauses = tlb_rs_vmstat_read("cpu_pause") - pauses;
		cancelled = stat_of("cancelled") - cancelled;
		stopped = stat_of("stop_machine") - stopped;
		ksft_print_msg("%ld of %lu kB: %ld pauses, %ld cancelled, %ld stops, %llu ms\n",
			       nr, sizes[i], pauses, cancelled, stopped,
			       (tlb_rs_now_ns() - begin) / 1000000);
	}
	return ok;
}

static bool test_defaults(void)
{
	return as_users_have_it(pools_by_default);
}

/* How often the other CPUs were stopped, or were to be. */
static long long stops(void)
{
	return tlb_rs_vmstat_read("cpu_pause") + tlb_rs_vmstat_read("cpu_pause_cancelled") +
	       tlb_rs_vmstat_read("cpu_pause_fallback");
}

#define SURPLUS		4

static bool test_surplus(void)
{
	unsigned long kb = small_size();
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | __builtin_ctzl(kb * 1024) << 26;
	long before = memmap(), nr = few(kb, SURPLUS);
	long long stopped = stops();
	char path[128];
	bool ok;
	char *p;

	snprintf(path, sizeof(path), HUGEPAGES, kb, "nr_overcommit_hugepages");
	tlb_rs_keep(path);
	set_num(path, nr);
	p = mmap(NULL, nr * kb * 1024, PROT_READ | PROT_WRITE, flags, -1, 0);
	ok = p != MAP_FAILED;
	for (long i = 0; ok && i < nr; i++)
		p[i * kb * 1024] = 1;
	ok = ok && counts_are(kb, 0, nr) && memmap() == before;
	if (p != MAP_FAILED)
		munmap(p, nr * kb * 1024);
	ok &= !pool(kb) && counts_are(kb, 0, 0) && memmap() == before && verify(0);
	stopped = stops() - stopped;
	if (stopped)
		ksft_print_msg("%ld surplus pages stopped the others %lld times\n", nr, stopped);
	tlb_rs_restore(path);
	return ok && !stopped;
}

/* A process that makes the pool of a size grow and shrink; others may do the same. */
static pid_t duty_task(int cpu, unsigned long kb)
{
	pid_t pid = fork();

	/* Not -1: that would be killed, which is everybody. */
	if (pid < 0)
		ksft_exit_fail_msg("fork: %s\n", strerror(errno));
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	tlb_rs_pin_cpu(cpu);
	for (;;) {
		resize(kb, 1);
		resize(kb, 0);
	}
}

/* All of them together stop the others for no more than their share. */
static bool test_duty(void)
{
	long long stopped = stat_of("ack_ns") + stat_of("paused_ns");
	long long pauses = tlb_rs_vmstat_read("cpu_pause");
	bool over, removed = skip && !strcmp(skip, "duty");
	__u64 begin = tlb_rs_now_ns();
	pid_t tasks[DUTY_TASKS];
	double percent;

	set_num(HVO_PARAM "duty_pct", DUTY_PCT);
	for (int i = 0; i < DUTY_TASKS; i++)
		tasks[i] = duty_task(i % nr_cpus, small_size());
	/* No rest will have come after the last one: let it be one of many. */
	for (int i = 0; i < 10 && tlb_rs_vmstat_read("cpu_pause") - pauses < 3 * DUTY_TASKS; i++)
		tlb_rs_sleep_us(DUTY_MS * 1000);
	for (int i = 0; i < DUTY_TASKS; i++)
		kill(tasks[i], SIGKILL);
	for (int i = 0; i < DUTY_TASKS; i++)
		waitpid(tasks[i], NULL, 0);
	stopped = stat_of("ack_ns") + stat_of("paused_ns") - stopped;
	percent = 100.0 * stopped / (tlb_rs_now_ns() - begin);
	pauses = tlb_rs_vmstat_read("cpu_pause") - pauses;
	set_num(HVO_PARAM "duty_pct", 100);
	resize(small_size(), 0);

	ksft_print_msg("%lld pauses of %d tasks, %.1f %% of the time\n", pauses, DUTY_TASKS,
		       percent);
	over = percent > 1.5 * DUTY_PCT;
	return pauses > DUTY_TASKS && over == removed && verify(0);
}

static bool test_readers(void)
{
	bool ok = true;

	set_num(HVO_DEBUG "stall_us", 2000);
	readers_begin();
	for (int i = 0; i < nr_sizes; i++) {
		if (optimizable(sizes[i]) && some(sizes[i])) {
			long before = memmap();

			for (int r = 0; r < rounds; r++) {
				ok &= resize(sizes[i], some(sizes[i])) > 0 || gigantic(sizes[i]);
				ok &= !resize(sizes[i], 0);
			}
			ok &= memmap() == before;
		}
	}
	readers_end();
	set_num(HVO_DEBUG "stall_us", 0);
	ksft_print_msg("%ld struct pages read meanwhile\n", nr_reads);
	return ok && nr_reads && verify(0);
}

static bool test_deaf(void)
{
	unsigned long kb = small_size();
	long cancelled = stat_of("cancelled"), stopped = stat_of("stop_machine");
	long timeout = get(HVO_PARAM "ack_timeout_us");
	bool ok;

	set_num(HVO_PARAM "ack_timeout_us", 50000);
	set_num(HVO_DEBUG "deaf_cpu", 1);
	ok = cycle(kb, few(kb, 16));
	set_num(HVO_DEBUG "deaf_cpu", 0xffffffff);
	set_num(HVO_PARAM "ack_timeout_us", timeout);
	cancelled = stat_of("cancelled") - cancelled;
	stopped = stat_of("stop_machine") - stopped;
	ksft_print_msg("%ld cancelled, %ld times stop_machine()\n", cancelled, stopped);
	/*
	 * Pages are optimised and restored in one stop each. Two more are for blocks of the memory
	 * map that no case before has split.
	 */
	return ok && stopped >= 2 && stopped <= 4 && cancelled >= stopped;
}

#define LOCK_MS		2000
#define LOCK_ROUNDS	10

static void *take_lock(void *arg)
{
	const char *name = arg;
	char path[64];

	tlb_rs_pin_cpu(strcmp(name, "read_lock") ? 2 : 1);
	snprintf(path, sizeof(path), HVO_DEBUG "%s", name);
	return set_num(path, LOCK_MS) ? arg : NULL;
}

/* Pools while one CPU holds the lock for reading again and again, and another waits for it. */
static bool pools_beside_lock(unsigned long kb, __u64 *slowest)
{
	__u64 end = tlb_rs_now_ns() + LOCK_MS * 1000000ULL;
	/* So few that it happens several times in that time. */
	long before = memmap(), want = few(kb, kb > 2048 ? 2 : 16);
	pthread_t threads[2];
	void *held, *waited;
	bool ok = true;

	pthread_create(&threads[0], NULL, take_lock, "read_lock");
	pthread_create(&threads[1], NULL, take_lock, "write_lock");
	do {
		__u64 ns = tlb_rs_now_ns();
		long saved;

		ok &= resize(kb, want) == want;
		saved = before - memmap();
		ok &= saved == want * spare_pages(kb) && verify(saved);
		ok &= !resize(kb, 0) && memmap() == before;
		ns = tlb_rs_now_ns() - ns;
		*slowest = ns > *slowest ? ns : *slowest;
	} while (ok && tlb_rs_now_ns() < end);
	pthread_join(threads[0], &held);
	pthread_join(threads[1], &waited);
	return ok && held && waited;
}

static bool test_lock(void)
{
	unsigned long kb = small_size();
	long cancelled = stat_of("cancelled"), pauses = stat_of("optimize");
	char cmdline[4096];
	__u64 slowest = 0;
	bool ok, masks;

	masks = !tlb_rs_read_file("/proc/cmdline", cmdline, sizeof(cmdline)) &&
		!strstr(cmdline, "gicv3_pseudo_nmi=1");
	/* The two meet by chance. */
	for (int round = 0; round < LOCK_ROUNDS; round++) {
		ok = pools_beside_lock(kb, &slowest);
		if (!ok || !masks || stat_of("cancelled") > cancelled)
			break;
	}
	cancelled = stat_of("cancelled") - cancelled;
	ksft_print_msg("%ld pauses, %ld cancelled, the slowest pool took %llu ms%s\n",
		       stat_of("optimize") - pauses, cancelled, slowest / 1000000,
		       ok ? "" : ", a pool was wrong");
	return ok && (cancelled || !masks) && verify(0);
}

static bool test_stop(void)
{
	unsigned long kb = small_size();
	long stopped = stat_of("stop_machine"), before = memmap(), want = few(kb, 16);
	bool ok;

	set(HVO_PARAM "strategy", "stop_machine");
	ok = cycle(kb, few(kb, 32)) && resize(kb, want) == want;
	set(HVO_PARAM "strategy", "auto");
	ok &= !resize(kb, 0) && memmap() == before && verify(0);
	ok &= resize(kb, want) == want;
	set(HVO_PARAM "strategy", "stop_machine");
	ok &= !resize(kb, 0) && memmap() == before && verify(0);
	set(HVO_PARAM "strategy", "auto");
	return ok && stat_of("stop_machine") > stopped;
}

static bool hotplug_stop;
static long nr_hotplugs;

static const char *online_file(void)
{
	static char path[64];

	snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%ld/online", nr_cpus - 1);
	return path;
}

static const char *cannot_hotplug(void)
{
	if (nr_cpus < 2 || access(online_file(), W_OK))
		return "needs 2 CPUs and CPU hotplug";
	return needs_injection();
}

static void *hotplug(void *arg)
{
	const char *path = online_file();

	(void)arg;
	while (!__atomic_load_n(&hotplug_stop, __ATOMIC_RELAXED)) {
		if (!set(path, "0") || !set(path, "1"))
			break;
		nr_hotplugs++;
	}
	return NULL;
}

static bool test_hotplug(void)
{
	unsigned long kb = small_size();
	long before = memmap(), busy = stat_of("busy"), want = few(kb, 2);
	long warned = get("/sys/kernel/warn_count");
	pthread_t thread;
	bool ok = true;

	/* Many pauses, and so long ones that a CPU comes meanwhile, if it can. */
	set_num(HVO_DEBUG "stall_us", 3000);
	pthread_create(&thread, NULL, hotplug, NULL);
	for (int r = 0; r < 2000 * rounds; r++) {
		/* What should be seen. */
		if (r >= 100 * rounds && (skip ? get("/sys/kernel/warn_count") > warned :
						 stat_of("busy") > busy))
			break;
		ok &= resize(kb, want) == want;
		ok &= !resize(kb, 0);
	}
	set_num(HVO_DEBUG "stall_us", 0);
	__atomic_store_n(&hotplug_stop, true, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	busy = stat_of("busy") - busy;
	ksft_print_msg("%ld times offline and online, %ld pauses had to wait for that\n",
		       nr_hotplugs, busy);
	return ok && nr_hotplugs && busy && memmap() == before && verify(0);
}

static const char *cannot_fail(void)
{
	return access(FAIL_PAGE_ALLOC "probability", W_OK) || access(MAKE_IT_FAIL, W_OK) ?
	       "needs CONFIG_FAIL_PAGE_ALLOC" : NULL;
}

/* Whether the kernel's last words about a pool are how many pages kept their struct pages. */
static bool said(unsigned long kb, long kept, long nr)
{
	static char log[1 << 18];
	int len = klogctl(3 /* SYSLOG_ACTION_READ_ALL */, log, sizeof(log) - 1);
	char want[128], *line, *last = NULL;

	log[len > 0 ? len : 0] = 0;
	for (line = log; (line = strstr(line, "HugeTLB: ")); line++) {
		if (strstr(line, " keep their struct pages: "))
			last = line;
	}
	snprintf(want, sizeof(want), "HugeTLB: %ld of %ld pages of %lukB keep", kept, nr, kb);
	if (!kept || (last && !strncmp(last, want, strlen(want))))
		return true;
	ksft_print_msg("'%s' is missing\n", want);
	return false;
}

static bool test_fail(void)
{
	static const char * const on[][2] = {
		{ "ignore-gfp-wait", "N" }, { "min-order", "0" }, { "times", "-1" },
		{ "interval", "1" }, { "verbose", "0" }, { "task-filter", "Y" },
		{ "probability", "10" },
	};
	unsigned long kb = small_size();
	long before = memmap(), want = few(kb, 64), nr, failed = 0;
	char path[128];
	bool ok = true;

	for (unsigned int i = 0; i < ARRAY_SIZE(on); i++) {
		snprintf(path, sizeof(path), FAIL_PAGE_ALLOC "%s", on[i][0]);
		if (!tlb_rs_setting(path, on[i][1]))
			return false;
	}
	for (int r = 0; r < 4 * rounds; r++) {
		long saved;

		set(MAKE_IT_FAIL, "1");
		nr = resize(kb, want);
		set(MAKE_IT_FAIL, "0");
		saved = before - memmap();
		ok &= saved % spare_pages(kb) == 0 && verify(saved);
		ok &= counts_are(kb, saved / spare_pages(kb), nr - saved / spare_pages(kb));
		ok &= said(kb, nr - saved / spare_pages(kb), nr);
		failed += want - nr + (nr * spare_pages(kb) != saved);
		set(MAKE_IT_FAIL, "1");
		resize(kb, 0);
		set(MAKE_IT_FAIL, "0");
		ok &= verify(before - memmap());
		/* Those without memory for their struct pages are surplus pages now. */
		resize(kb, pool(kb));
		ok &= !resize(kb, 0) && memmap() == before && verify(0);
		if (!ok) {
			ksft_print_msg("round %d: %ld pages, %ld saved, %ld left, %ld lost\n", r,
				       nr, saved, pool(kb), before - memmap());
			break;
		}
	}
	tlb_rs_restore(FAIL_PAGE_ALLOC "probability");
	if (!failed)
		ksft_print_msg("no allocation failed\n");
	return ok && failed;
}

/* A page frame of a HugeTLB page that nobody uses, or -1. */
static long free_frame(unsigned long kb)
{
	int fd = open("/proc/kpageflags", O_RDONLY), counts = open("/proc/kpagecount", O_RDONLY);
	uint64_t flags[512], count;
	long pfn = 0, found = -1;
	ssize_t n;

	while (found < 0 && (n = read(fd, flags, sizeof(flags))) > 0) {
		for (int i = 0; i < n / 8 && found < 0; i++, pfn++) {
			if ((flags[i] >> KPF_HUGE & 1) && (flags[i] >> KPF_COMPOUND_HEAD & 1) &&
			    pread(counts, &count, 8, pfn * 8) == 8 && !count)
				found = pfn + kb * 1024 / psize / 2;
		}
	}
	close(counts);
	close(fd);
	return found;
}

static const char *cannot_offline(void)
{
	return access(SOFT_OFFLINE, W_OK) ? "needs CONFIG_MEMORY_FAILURE" : NULL;
}

static bool test_offline(void)
{
	unsigned long kb = small_size();
	long before = memmap(), nr = resize(kb, few(kb, 8)), restored = stat_of("restore"), pfn;
	bool ok = nr > 0 && before - memmap() == nr * spare_pages(kb);

	pfn = free_frame(kb);
	if (pfn < 0)
		return false;
	ok &= set_num(SOFT_OFFLINE, pfn * psize);
	ok &= pool(kb) == nr - 1 && before - memmap() == (nr - 1) * (vmemmap_pages(kb) - 1);
	ok &= stat_of("restore") == restored + 1;
	ok &= verify((nr - 1) * (vmemmap_pages(kb) - 1));
	if (!ok)
		ksft_print_msg("%ld of %ld pages left, %ld pages of struct pages saved\n", pool(kb),
			       nr, before - memmap());
	return ok && !resize(kb, 0) && memmap() == before && verify(0);
}

static long corrupted(void)
{
	return tlb_rs_meminfo_kb(MEMINFO, "HardwareCorrupted") * 1024 / (long)psize;
}

/* How many page frames of a range are marked as bad. */
static long marked(uint64_t pfn, long nr)
{
	int fd = open("/proc/kpageflags", O_RDONLY);
	static uint64_t flags[4096];
	long found = 0, i;
	ssize_t n;

	for (; nr > 0; nr -= n / 8, pfn += n / 8) {
		n = pread(fd, flags, (nr < 4096 ? nr : 4096) * 8, pfn * 8);
		if (n < 8)
			break;
		for (i = 0; i < n / 8; i++)
			found += flags[i] >> KPF_HWPOISON & 1;
	}
	close(fd);
	return found;
}

#define NR_BAD		3

/* Not freed when its first page frame is bad, for a pipe refers to it. Then others are, too. */
static bool poison(unsigned long kb)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | __builtin_ctzl(kb * 1024) << 26;
	long before = memmap(), was = corrupted(), last = kb * 1024 / psize - 1;
	long bad[NR_BAD] = { 1, last / 2, last };
	bool ok = true;
	uint64_t pfn;
	int fds[2];
	char *p;

	if (resize(kb, 1) != 1) {
		ksft_print_msg("no page of %lu kB to be had\n", kb);
		resize(kb, 0);
		return gigantic(kb);
	}
	p = mmap(NULL, kb * 1024, PROT_READ | PROT_WRITE, flags, -1, 0);
	if (p == MAP_FAILED || pipe(fds))
		return false;
	*p = 1;
	pfn = tlb_rs_pfn(p);
	ok &= vmsplice(fds[1], &(struct iovec){ p, psize }, 1, 0) == (ssize_t)psize;
	for (int i = 0; i < NR_BAD; i++) {
		char text[32];
		int err;

		snprintf(text, sizeof(text), "%llu", (unsigned long long)(pfn + bad[i]) * psize);
		err = tlb_rs_write_file(HARD_OFFLINE, text);
		/* The first is isolated as far as that goes, the others are of a page that is. */
		ok &= err == (i ? -EHWPOISON : -EBUSY);
		ok &= corrupted() == was + i + 1;
	}
	ok &= counts_are(kb, 1, 0) && before - memmap() == spare_pages(kb);
	ok &= verify(spare_pages(kb));
	close(fds[0]);
	close(fds[1]);
	munmap(p, kb * 1024);
	ok &= pool(kb) == 1 && counts_are(kb, 1, 0);
	ok &= !resize(kb, 0) && memmap() == before && verify(0);
	ok &= marked(pfn, last + 1) == NR_BAD && corrupted() == was + NR_BAD;
	for (int i = 0; i < NR_BAD; i++)
		ok &= marked(pfn + bad[i], 1) == 1 && set_num(UNPOISON, pfn + bad[i]);
	ok &= !marked(pfn, last + 1) && corrupted() == was;
	if (!ok)
		ksft_print_msg("%lu kB: %ld page frames are marked, %ld counted\n", kb,
			       marked(pfn, last + 1), corrupted() - was);
	return ok;
}

static bool poison_all(void)
{
	bool ok = true;

	for (int i = 0; i < nr_sizes; i++)
		ok &= !optimizable(sizes[i]) || poison(sizes[i]);
	return ok;
}

static const char *cannot_poison(void)
{
	return access(HARD_OFFLINE, W_OK) || access(UNPOISON, W_OK) ?
	       "needs CONFIG_HWPOISON_INJECT" : needs_memory();
}

static bool test_poison(void)
{
	return poison_all() & as_users_have_it(poison_all);
}

#define CONTIG_MS	4000
#define CONTIG_MOST_MS	10000

static void *free_small(void *arg)
{
	tlb_rs_pin_cpu(nr_cpus - 1);
	return resize(small_size(), 0) ? NULL : arg;
}

/*
 * The largest pages come out of ranges that are made free, across those of the pool that is being
 * freed. They keep their struct pages: only how long it takes to get them is of interest.
 */
static bool contig_by_default(void)
{
	__u64 end = tlb_rs_now_ns() + CONTIG_MS * 1000000ULL, slowest = 0;
	long before = memmap(), got = 0, freed = 0;
	unsigned long kb = small_size();
	bool ok = true;

	do {
		pthread_t thread;
		void *ret;

		set_num(HVO_SWITCH, 1);
		freed += resize(kb, some(kb));
		ok &= verify(pool(kb) * spare_pages(kb));
		set_num(HVO_SWITCH, 0);
		pthread_create(&thread, NULL, free_small, &ok);
		for (int i = 0; i < nr_sizes; i++) {
			__u64 ns = tlb_rs_now_ns();

			if (sizes[i] == kb || !some(sizes[i]))
				continue;
			got += resize(sizes[i], 1);
			set_num("/proc/sys/vm/compact_memory", 1);
			ns = tlb_rs_now_ns() - ns;
			slowest = ns > slowest ? ns : slowest;
			resize(sizes[i], 0);
		}
		pthread_join(thread, &ret);
		ok &= !!ret;
	} while (tlb_rs_now_ns() < end);
	set_num(HVO_SWITCH, 1);
	ksft_print_msg("%ld pages allocated while %ld were freed, the slowest took %llu ms\n", got,
		       freed, slowest / 1000000);
	ok &= freed && got && slowest < CONTIG_MOST_MS * 1000000ULL;
	return ok && memmap() == before && verify(0);
}

static bool test_contig(void)
{
	return as_users_have_it(contig_by_default);
}

#define RACE_MS		800

static void *late_reference(void *arg)
{
	tlb_rs_pin_cpu(nr_cpus - 1);
	*(bool *)arg = set_num(HVO_DEBUG "race", RACE_MS);
	return NULL;
}

static bool test_race(void)
{
	unsigned long kb = small_size();
	long before = memmap(), nr, pfn;
	bool done = false, ok = true;
	int armed = 0;

	for (int r = 0; r < rounds; r++) {
		int fd = open("/proc/kpageflags", O_RDONLY);
		uint64_t flags = 0;
		pthread_t thread;

		pthread_create(&thread, NULL, late_reference, &done);
		tlb_rs_sleep_us(RACE_MS * 1000 / 4);
		/* What was freed last is taken first. */
		nr = resize(kb, few(kb, 128));
		pfn = get(HVO_DEBUG "race_pfn");
		if (pread(fd, &flags, 8, pfn * 8) == 8)
			armed += flags >> KPF_HUGE & 1;
		close(fd);
		pthread_join(thread, NULL);
		ok &= done && before - memmap() == nr * spare_pages(kb);
		ok &= !resize(kb, 0) && memmap() == before && verify(0);
	}
	if (!ok || !armed)
		ksft_print_msg("%d of %d times the page became a tail\n", armed, rounds);
	return ok && armed;
}

static const char *cannot_switch(void)
{
	if (!needs_two_cpus() && get(HVO_DEBUG "waits"))
		return "it has been on in this boot";
	return needs_two_cpus();
}

static bool load_stop;

/* Looks up pages of the page cache, and takes references by GUP-fast. */
static void *load(void *arg)
{
	int fd = memfd_create("load", 0);
	char *at = MAP_FAILED, buf[64];

	tlb_rs_pin_cpu((long)arg);
	if (fd >= 0 && !ftruncate(fd, psize))
		at = mmap(NULL, psize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		ksft_exit_fail_msg("a page to be looked up: %s\n", strerror(errno));
	*(int *)at = 1;
	while (!__atomic_load_n(&load_stop, __ATOMIC_RELAXED)) {
		if (pread(fd, buf, sizeof(buf), 0) != sizeof(buf) ||
		    syscall(SYS_futex, at, FUTEX_WAKE, 1, NULL, NULL, 0))
			ksft_exit_fail_msg("a page was not found: %s\n", strerror(errno));
	}
	munmap(at, psize);
	close(fd);
	return NULL;
}

static bool test_switch(void)
{
	pthread_t thread, threads[64];
	unsigned long kb = small_size();
	long before = memmap(), nr, began = 0, ended;
	bool done = false, ok;
	__u64 ns;

	for (long i = 0; i < nr_cpus && i < 64; i++)
		pthread_create(&threads[i], NULL, load, (void *)i);
	pthread_create(&thread, NULL, late_reference, &done);
	for (int i = 0; i < 100 && !began; i++) {
		tlb_rs_sleep_us(5000);
		began = get(HVO_DEBUG "race");
	}
	ns = tlb_rs_now_ns();
	hvo_turn_on();
	ended = !get(HVO_DEBUG "race");
	ns = tlb_rs_now_ns() - ns;
	/* What was freed last is taken first. */
	nr = resize(kb, few(kb, 128));
	ok = began && ended && get(HVO_DEBUG "waits");
	ksft_print_msg("%d: a reference was being taken, %d: it was waited for, for %llu ms\n",
		       !!began, !!ended, ns / 1000000);
	pthread_join(thread, NULL);
	__atomic_store_n(&load_stop, true, __ATOMIC_RELAXED);
	for (long i = 0; i < nr_cpus && i < 64; i++)
		pthread_join(threads[i], NULL);
	ok &= done && nr && before - memmap() == nr * spare_pages(kb);
	return ok && !resize(kb, 0) && memmap() == before && verify(0);
}

/* Of all CPUs, in a row of /proc/interrupts. */
static long irqs_of(const char *what)
{
	FILE *f = fopen("/proc/interrupts", "r");
	char line[4096], *at;
	long sum = -1;

	while (f && sum < 0 && fgets(line, sizeof(line), f)) {
		if (!strstr(line, what))
			continue;
		sum = 0;
		at = strchr(line, ':') + 1;
		for (long i = 0; i < nr_cpus; i++)
			sum += strtol(at, &at, 10);
	}
	if (f)
		fclose(f);
	return sum;
}

static const char *cannot_interrupt(void)
{
	return nr_cpus < 2 ? "needs 2 CPUs" : needs_memory();
}

static bool test_irqs(void)
{
	long backtraces = irqs_of("CPU backtrace interrupts"), shown = 0;
	long irqs = irqs_of("CPU pause interrupts");
	long pauses = tlb_rs_vmstat_read("cpu_pause");
	unsigned long kb = small_size();
	bool ok = irqs >= 0 && backtraces >= 0;

	resize(kb, few(kb, 16));
	resize(kb, 0);
	/* The last ones count after they were told to go on. */
	tlb_rs_sleep_us(100000);
	pauses = tlb_rs_vmstat_read("cpu_pause") - pauses;
	irqs = irqs_of("CPU pause interrupts") - irqs;
	ok &= pauses > 0 && irqs >= pauses * (nr_cpus - 1);
	ok &= irqs_of("CPU backtrace interrupts") == backtraces;
	/* And each of all other CPUs shows its stack. */
	if (!access("/proc/sysrq-trigger", W_OK)) {
		set("/proc/sysrq-trigger", "l");
		tlb_rs_sleep_us(100000);
		shown = irqs_of("CPU backtrace interrupts") - backtraces;
		ok &= shown == nr_cpus - 1;
	}
	ksft_print_msg("%ld pauses of %ld CPUs: %ld interrupts; then %ld backtraces\n", pauses,
		       nr_cpus - 1, irqs, shown);
	return ok;
}

#define CHURN_KB		(64 << 10)

static bool test_churn(int seconds)
{
	static const char * const strategies[] = { "auto", "auto", "stop_machine" };
	__u64 end = tlb_rs_now_ns() + seconds * 1000000000ULL;
	long long paused = tlb_rs_vmstat_read("cpu_pause");
	long pools[MAX_SIZES], resized = 0, violations;
	unsigned int seed = getpid();
	char path[128];

	for (int i = 0; i < nr_sizes; i++)
		pools[i] = pool(sizes[i]);
	while (tlb_rs_now_ns() < end) {
		unsigned long kb = sizes[rand_r(&seed) % nr_sizes];
		long most = CHURN_KB / (long)kb;

		if (!optimizable(kb) || !most)
			continue;
		resize(kb, rand_r(&seed) % (most + 1));
		resized++;
		if (!(rand_r(&seed) % 4))
			set(HVO_PARAM "strategy",
			    strategies[rand_r(&seed) % ARRAY_SIZE(strategies)]);
		if (!(rand_r(&seed) % 4)) {
			snprintf(path, sizeof(path), HUGEPAGES, kb, "demote");
			set(path, "1");
		}
		if (!(rand_r(&seed) % 16))
			set_num("/proc/sys/vm/compact_memory", 1);
		get_field(HVO_DEBUG "read", "pages");
	}
	set(HVO_PARAM "strategy", "auto");
	for (int i = nr_sizes - 1; i >= 0; i--)
		resize(sizes[i], 0);
	for (int i = 0; i < nr_sizes; i++)
		resize(sizes[i], pools[i]);
	violations = get_field(HVO_DEBUG "verify", "violations");
	ksft_print_msg("%ld times resized, %lld pauses, %ld violations\n", resized,
		       tlb_rs_vmstat_read("cpu_pause") - paused, violations);
	return resized && !violations;
}

/* Nothing returns from this. With panic_force_cpu=1, CPU 1 has to panic, which waits. */
static bool test_panic(void)
{
	/* As the command line has it. */
	tlb_rs_restore(HVO_PARAM "strategy");
	set("/proc/sys/kernel/panic_on_oops", "1");
	set_num(HVO_DEBUG "stall_us", UINT32_MAX);
	resize(small_size(), 1);
	return false;
}

/* Nor from this: the task that dies is all that can let the other CPUs go on. */
static bool test_oops(void)
{
	pid_t pid;

	tlb_rs_restore(HVO_PARAM "strategy");
	set("/proc/sys/kernel/panic_on_oops", "0");
	set_num(HVO_DEBUG "stall_us", UINT32_MAX);
	pid = fork();
	if (!pid) {
		resize(small_size(), 1);
		_exit(0);
	}
	waitpid(pid, NULL, 0);
	ksft_print_msg("the kernel goes on, and the other CPUs wait\n");
	return false;
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
