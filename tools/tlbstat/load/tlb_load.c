// SPDX-License-Identifier: GPL-2.0
/*
 * tlb_load LOAD SECONDS [DIR]: flushes of one cause, for tests of tlbstat price
 *
 * Prints a line of JSON: rounds, and where the load can time itself, known_ms_per_s, the time that
 * its flushes took. A second thread runs on another CPU, so that it has to flush, too. Status 4:
 * this machine cannot do that. DIR is of msync, on a file system that writes back.
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SKIP			4
#define HUGE			(2UL << 20)
#define MOST_CHILDREN		4000
#define MOST_FILES		1048576

#ifndef MADV_FREE
#define MADV_FREE		8
#endif

static size_t page;
static double deadline;
static const char *dir = "/tmp";
static double known_seconds;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static char *map(size_t size, int more)
{
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | more,
		       -1, 0);

	if (p == MAP_FAILED)
		err(1, "mmap");
	return p;
}

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

static void *spin(void *unused)
{
	(void)unused;
	pin(1);
	for (;;)
		__asm__ volatile("" ::: "memory");
	return NULL;
}

static void start_other(void)
{
	pthread_t other;

	pin(0);
	if (sysconf(_SC_NPROCESSORS_ONLN) > 1 && pthread_create(&other, NULL, spin, NULL))
		errx(1, "no thread");
}

/* Of this thread: others may want its CPU. */
static double cpu_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* Seconds of some rounds on a page that was touched, or on one that was not. */
static double change_protection(char *p)
{
	double begin = cpu_seconds();
	int i;

	for (i = 0; i < 50; i++) {
		mprotect(p, page, PROT_READ);
		mprotect(p, page, PROT_READ | PROT_WRITE);
	}
	return cpu_seconds() - begin;
}

/* What the page that was not touched takes is not for flushes. */
static long load_mprotect(void)
{
	char *p = map(4 * page, 0), *idle = p + 2 * page;
	double with, without;
	long rounds = 0;

	start_other();
	*p = 1;
	for (; now() < deadline; rounds += 50) {
		with = change_protection(p);
		without = change_protection(idle);
		known_seconds += with - without;
		__atomic_store_n(p, 1, __ATOMIC_RELAXED);
	}
	return rounds;
}

/* Part of a huge page is given up: it is split, and nothing else is flushed. */
static long load_split(void)
{
	size_t size = 64 * HUGE, at;
	long rounds = 0;
	char *p, *q;

	start_other();
	while (now() < deadline) {
		p = map(size + HUGE, MAP_NORESERVE);
		q = (char *)(((unsigned long)p + HUGE - 1) & ~(HUGE - 1));
		if (madvise(q, size, MADV_HUGEPAGE))
			return -1;
		for (at = 0; at < size && now() < deadline; at += HUGE) {
			q[at] = 1;
			madvise(q + at + 16 * page, page, MADV_FREE);
			rounds++;
		}
		munmap(p, size + HUGE);
	}
	return rounds;
}

static long load_move_pages(void)
{
	enum { PAGES = 1024 };
	static void *at[PAGES];
	static int nodes[PAGES], status[PAGES];
	char *p = map(PAGES * page, 0);
	long rounds = 0;
	int i;

	madvise(p, PAGES * page, MADV_NOHUGEPAGE);
	start_other();
	for (i = 0; i < PAGES; i++) {
		at[i] = p + i * page;
		p[i * page] = 1;
	}
	for (; now() < deadline; rounds++) {
		for (i = 0; i < PAGES; i++)
			nodes[i] = !(rounds & 1);
		if (syscall(SYS_move_pages, 0, PAGES, at, nodes, status, 2))
			return -1;
	}
	return rounds;
}

static long load_compact(void)
{
	size_t size = 512UL << 20, at;
	long rounds = 0;
	char *p;
	int fd = open("/proc/sys/vm/compact_memory", O_WRONLY);

	if (fd < 0)
		return -1;
	start_other();
	for (; now() < deadline; rounds++) {
		p = map(size, 0);
		for (at = 0; at < size; at += page)
			p[at] = 1;
		for (at = 0; at < size; at += 4 * page)
			madvise(p + at, 2 * page, MADV_DONTNEED);
		if (write(fd, "1", 1) != 1)
			return -1;
		munmap(p, size);
	}
	return rounds;
}

static long load_msync(void)
{
	size_t size = 256 * page, at;
	long rounds = 0;
	char name[300], *p;
	int fd;

	snprintf(name, sizeof(name), "%s/tlb_load.%d", dir, getpid());
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0)
		err(1, "%s", name);
	unlink(name);
	if (ftruncate(fd, size))
		err(1, "%s", name);
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		err(1, "mmap");
	start_other();
	for (; now() < deadline; rounds++) {
		for (at = 0; at < size; at += page)
			p[at]++;
		if (msync(p, size, MS_SYNC))
			err(1, "msync");
	}
	return rounds;
}

/* What is written here belongs to all processes: nothing is copied when it is. */
static char *shared(size_t size)
{
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		err(1, "mmap");
	return p;
}

#define STACK			(256UL << 10)

/* It ends with the load: its exit would flush, too. */
static int stay(void *unused)
{
	(void)unused;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (true)
		pause();
	return 0;
}

/*
 * When there are many, those that come then exit, and are waited for. This thread stays: with it
 * all children would end.
 */
static void *fork_all(void *arg)
{
	char *stack = shared(STACK);
	long *rounds = arg;
	pid_t pid;

	for (; now() < deadline; ++*rounds) {
		if (*rounds < MOST_CHILDREN) {
			pid = clone(stay, stack + STACK, SIGCHLD, NULL);
		} else {
			pid = syscall(SYS_clone, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0);
			if (!pid)
				syscall(SYS_exit, 0);
			waitpid(pid, NULL, 0);
		}
		if (pid < 0)
			err(1, "clone");
	}
	for (;;)
		pause();
}

/* By a thread whose stack is shared, as it would be copied after each fork(). */
static long load_fork(void)
{
	long *rounds = (long *)shared(page);
	pthread_attr_t attr;
	pthread_t thread;

	start_other();
	pthread_attr_init(&attr);
	pthread_attr_setstack(&attr, shared(STACK), STACK);
	if (pthread_create(&thread, &attr, fork_all, rounds))
		errx(1, "no thread");
	/* Each time that this thread runs, its stack is copied. */
	usleep((deadline - now() + 0.1) * 1e6);
	return *rounds;
}

/* A map of 16 MiB is in vmalloc memory. */
static bool add_map(void)
{
	union bpf_attr attr = { .map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4,
				.value_size = 4096, .max_entries = 4096 };
	int fd = syscall(SYS_bpf, BPF_MAP_CREATE, &attr, sizeof(attr));

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

static int open_last(void *null)
{
	/* A table of a million files is in vmalloc memory, too, until this task ends. */
	_exit(dup2(*(int *)null, MOST_FILES - 1) < 0);
}

static bool add_files(void)
{
	struct rlimit most = { MOST_FILES, MOST_FILES };
	static int null = -1;
	static char *stack;
	int status;
	pid_t pid;

	if (null < 0) {
		stack = shared(STACK);
		null = open("/dev/null", O_RDONLY);
	}
	if (null < 0 || setrlimit(RLIMIT_NOFILE, &most))
		return false;
	pid = clone(open_last, stack + STACK, CLONE_VM | SIGCHLD, &null);
	return pid > 0 && waitpid(pid, &status, 0) == pid && !status;
}

static long load_vfree(void)
{
	long rounds = 0;

	for (; now() < deadline; rounds++)
		if (!add_map() && !add_files())
			return -1;
	return rounds;
}

static void work_for(long n)
{
	while (n-- > 0)
		__asm__ volatile("" ::: "memory");
}

#define ROUND_US		10	/* 100,000 flushes in a second of a CPU */

/*
 * Work with a flush each ten microseconds, for what measuring costs: a line each half second has
 * rounds, and the CPU time of this thread, in which interrupts are, too.
 */
static long load_rate(void)
{
	char *p = map(page, 0);
	double next = now() + 0.5, with, spent;
	long rounds = 0, work;
	int i;

	/* Alone: with another thread the price of a flush would depend on whether that runs. */
	pin(0);
	*p = 1;
	with = change_protection(p) / 100;
	spent = cpu_seconds();
	work_for(10000000);
	work = (ROUND_US / 1e6 - with) * 1e7 / (cpu_seconds() - spent);
	while (now() < deadline) {
		for (i = 0; i < 100; i++) {
			mprotect(p, page, i & 1 ? PROT_READ | PROT_WRITE : PROT_READ);
			work_for(work);
		}
		rounds += 100;
		if (now() < next)
			continue;
		spent = cpu_seconds();
		printf("{\"rounds\":%ld,\"cpu_s\":%.6f}\n", rounds, spent);
		fflush(stdout);
		next += 0.5;
	}
	return rounds;
}

static const struct {
	const char *name;
	long (*run)(void);
} loads[] = {
	{ "mprotect", load_mprotect }, { "split", load_split }, { "move_pages", load_move_pages },
	{ "compact", load_compact }, { "msync", load_msync }, { "fork", load_fork },
	{ "vfree", load_vfree }, { "rate", load_rate },
};

int main(int argc, char **argv)
{
	double seconds = argc > 2 ? atof(argv[2]) : 0, begin = now();
	unsigned int i;
	long rounds;

	page = sysconf(_SC_PAGESIZE);
	deadline = begin + seconds;
	if (argc > 3)
		dir = argv[3];
	for (i = 0; i < sizeof(loads) / sizeof(*loads) && argc > 2 && seconds > 0; i++) {
		if (strcmp(loads[i].name, argv[1]))
			continue;
		rounds = loads[i].run();
		if (rounds < 0)
			return SKIP;
		printf("{\"load\":\"%s\",\"rounds\":%ld,\"seconds\":%.3f", argv[1], rounds,
		       now() - begin);
		if (known_seconds)
			printf(",\"known_ms_per_s\":%.3f", known_seconds * 1000 / (now() - begin));
		puts("}");
		return 0;
	}
	fputs("usage: tlb_load LOAD SECONDS [DIR]; loads:", stderr);
	for (i = 0; i < sizeof(loads) / sizeof(*loads); i++)
		fprintf(stderr, " %s", loads[i].name);
	fputs("\n", stderr);
	return 2;
}
