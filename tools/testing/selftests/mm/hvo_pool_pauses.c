// SPDX-License-Identifier: GPL-2.0
/* CPUs that are paused, or cannot be. */
#include "hvo_pool.h"

#define DUTY_PCT	10
#define DUTY_MS		2000
#define DUTY_TASKS	8

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
bool test_duty(void)
{
	long long stopped = stat_of("ack_ns") + stat_of("paused_ns");
	long long pauses = tlb_rs_vmstat_read("cpu_pause");
	bool over, removed = skip && !strcmp(skip, "duty");
	__u64 begin = tlb_rs_now_ns();
	pid_t tasks[DUTY_TASKS];
	double percent;

	set_num(HVO_PARAM "duty_pct", DUTY_PCT);
	for (int i = 0; i < DUTY_TASKS; i++)
		tasks[i] = duty_task(i % nr_cpus, hvo_small_size());
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
	resize(hvo_small_size(), 0);

	ksft_print_msg("%lld pauses of %d tasks, %.1f %% of the time\n", pauses, DUTY_TASKS,
		       percent);
	over = percent > 1.5 * DUTY_PCT;
	return pauses > DUTY_TASKS && over == removed && verify(0);
}

static bool pools_beside_readers(const char *strategy)
{
	bool ok = true;

	set(HVO_PARAM "strategy", strategy);
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

bool test_readers(void)
{
	return pools_beside_readers("auto") & pools_beside_readers("pause");
}

bool test_deaf(void)
{
	unsigned long kb = hvo_small_size();
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
	 * map that no case before has split. Each of both operations has one set of attempts.
	 */
	return ok && stopped >= 2 && stopped <= 4 && cancelled >= 2 &&
	       cancelled <= 2 * (get(HVO_PARAM "retries") + 1);
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

bool test_lock(void)
{
	unsigned long kb = hvo_small_size();
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

bool test_stop(void)
{
	unsigned long kb = hvo_small_size();
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

const char *cannot_hotplug(void)
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

bool test_hotplug(void)
{
	unsigned long kb = hvo_small_size();
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

#define RACE_MS		800

static void *late_reference(void *arg)
{
	tlb_rs_pin_cpu(nr_cpus - 1);
	*(bool *)arg = set_num(HVO_DEBUG "race", RACE_MS);
	return NULL;
}

bool test_race(void)
{
	unsigned long kb = hvo_small_size();
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

const char *cannot_switch(void)
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

bool test_switch(void)
{
	pthread_t thread, threads[64];
	unsigned long kb = hvo_small_size();
	long before = memmap(), nr, began = 0, ended, optimized, others;
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
	/* CPUs that are busy may use some of these pages all the time, which then keep theirs. */
	ok &= counted(kb, &optimized, &others);
	ksft_print_msg("%ld of %ld pages gave their struct pages back\n", optimized, nr);
	ok &= done && optimized > 0 && before - memmap() == optimized * spare_pages(kb);
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

const char *cannot_interrupt(void)
{
	return nr_cpus < 2 ? "needs 2 CPUs" : needs_memory();
}

bool test_irqs(void)
{
	long backtraces = irqs_of("CPU backtrace interrupts"), shown = 0;
	long irqs = irqs_of("CPU pause interrupts"), pauses;
	unsigned long kb = hvo_small_size();
	bool ok = irqs >= 0 && backtraces >= 0;

	if (hvo_by_flags()) {
		resize(kb, few(kb, 16));
		resize(kb, 0);
		ok &= irqs_of("CPU pause interrupts") == irqs;
	}
	set(HVO_PARAM "strategy", "pause");
	pauses = tlb_rs_vmstat_read("cpu_pause");
	resize(kb, few(kb, 16));
	resize(kb, 0);
	pauses = tlb_rs_vmstat_read("cpu_pause") - pauses;
	/* The last ones count after they were told to go on. */
	for (int i = 0; i < 600; i++) {
		if (irqs_of("CPU pause interrupts") - irqs >= pauses * (nr_cpus - 1))
			break;
		tlb_rs_sleep_us(100000);
	}
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

/* As the command line has it, or by pauses. */
static void stop_somehow(void)
{
	tlb_rs_restore(HVO_PARAM "strategy");
	if (hvo_by_flags())
		set(HVO_PARAM "strategy", "pause");
}

/* Nothing returns from this. With panic_force_cpu=1, CPU 1 has to panic, which waits. */
bool test_panic(void)
{
	stop_somehow();
	set("/proc/sys/kernel/panic_on_oops", "1");
	set_num(HVO_DEBUG "stall_us", UINT32_MAX);
	resize(hvo_small_size(), 1);
	return false;
}

/* Nor from this: the task that dies is all that can let the other CPUs go on. */
bool test_oops(void)
{
	pid_t pid;

	stop_somehow();
	set("/proc/sys/kernel/panic_on_oops", "0");
	set_num(HVO_DEBUG "stall_us", UINT32_MAX);
	pid = fork();
	if (!pid) {
		resize(hvo_small_size(), 1);
		_exit(0);
	}
	waitpid(pid, NULL, 0);
	ksft_print_msg("the kernel goes on, and the other CPUs wait\n");
	return false;
}
