// SPDX-License-Identifier: GPL-2.0
/*
 * Moves the memory of other processes to and fro between the nodes 0 and 1, with
 * migrate_pages(), for a bounded time, and watches the ledger meanwhile. It is meant to
 * run beside programs that know nothing of it, such as stress-ng. SIGTERM ends it early.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <signal.h>

#include "migrc.h"

static struct mover {
	long calls;
	long left;		/* pages that could not be moved */
	long gone;		/* processes that had exited */
	long refused;
	__u64 slowest;		/* call, in ns */
	long long worst;	/* most pages in the ledger */
	bool stop;
} mover;

static __u64 deadline;

static void end_early(int sig)
{
	(void)sig;
	__atomic_store_n(&deadline, 0, __ATOMIC_RELAXED);
}

static bool is_over(void)
{
	return tlb_rs_now_ns() >= __atomic_load_n(&deadline, __ATOMIC_RELAXED);
}

static bool is_named(pid_t pid, const char *name)
{
	char path[64], comm[64];

	snprintf(path, sizeof(path), "/proc/%d/comm", pid);
	return !tlb_rs_read_file(path, comm, sizeof(comm)) && !strncmp(comm, name, strlen(name));
}

/* A thread of its own: a call may take long. */
static void *watch_ledger(void *arg)
{
	(void)arg;
	while (!__atomic_load_n(&mover.stop, __ATOMIC_RELAXED)) {
		long long held = migrc_held(-1);

		mover.worst = held > mover.worst ? held : mover.worst;
		tlb_rs_sleep_us(20000);
	}
	return NULL;
}

static void move(pid_t pid, int node)
{
	unsigned long from = 1UL << !node, to = 1UL << node;
	__u64 ns = tlb_rs_now_ns();
	long ret;

	/* One bit more than is used: see get_nodes(). */
	ret = syscall(SYS_migrate_pages, pid, 8 * sizeof(from) + 1, &from, &to);
	if (ret >= 0)
		mover.left += ret;
	else if (errno == ESRCH || errno == EINVAL)
		mover.gone++;	/* EINVAL: a process without an mm, which is about to exit */
	else
		mover.refused++;
	mover.calls++;
	ns = tlb_rs_now_ns() - ns;
	mover.slowest = ns > mover.slowest ? ns : mover.slowest;
}

/*
 * Each process has a node of its own in each sweep: what they share goes both ways. Where
 * allocations fail at random a sweep may see nothing.
 */
static void sweep(const char *name, long round)
{
	DIR *proc = opendir("/proc");
	struct dirent *ent;
	long nr = 0;

	if (!proc)
		return;
	while ((ent = readdir(proc)) && !is_over()) {
		pid_t pid = atoi(ent->d_name);

		if (!isdigit(ent->d_name[0]) || pid == getpid() || !is_named(pid, name))
			continue;
		move(pid, (round + nr++) & 1);
	}
	closedir(proc);
}

static void help(const char *prog)
{
	printf("usage: %s [option]...\n"
	       "  [--seconds N] [--name PREFIX] [--pause-ms N]\n",
	       prog);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "seconds", required_argument, NULL, 's' },
		{ "name", required_argument, NULL, 'n' },
		{ "pause-ms", required_argument, NULL, 'p' },
		{ "help", no_argument, NULL, 'h' },
		{ }
	};
	long seconds = 10, pause_ms = 50, round = 0;
	const char *name = "stress-ng";
	pthread_t watcher;
	int opt;

	ksft_print_header();
	while ((opt = getopt_long(argc, argv, "s:n:p:h", options, NULL)) != -1) {
		switch (opt) {
		case 's':
			seconds = tlb_rs_number(optarg, 1, 1000000);
			break;
		case 'n':
			name = optarg;
			break;
		case 'p':
			pause_ms = tlb_rs_number(optarg, 0, 1000000);
			break;
		case 'h':
			help(argv[0]);
			return 0;
		default:
			help(argv[0]);
			return KSFT_FAIL;
		}
	}
	if ((tlb_rs_memory_nodes() & 3) != 3)
		ksft_exit_skip("needs memory on nodes 0 and 1\n");
	ksft_set_plan(1);
	deadline = tlb_rs_now_ns() + seconds * 1000000000ULL;
	signal(SIGTERM, end_early);
	if (pthread_create(&watcher, NULL, watch_ledger, NULL))
		ksft_exit_fail_msg("cannot start a thread\n");
	do {
		sweep(name, round++);
		tlb_rs_sleep_us(pause_ms * 1000);
	} while (!is_over());
	__atomic_store_n(&mover.stop, true, __ATOMIC_RELAXED);
	pthread_join(watcher, NULL);

	printf("{\"test\":\"migrc_mover\",\"seconds\":%ld,\"sweeps\":%ld,\"calls\":%ld", seconds,
	       round, mover.calls);
	printf(",\"slowest_ms\":%llu,\"left\":%ld,\"gone\":%ld,\"worst\":%lld}\n",
	       mover.slowest / 1000000, mover.left, mover.gone, mover.worst);
	ksft_test_result(mover.calls > mover.gone && !mover.refused,
			 "stress mover: %ld done, %ld refused, 0 wrong\n", mover.calls,
			 mover.refused);
	ksft_finished();
}
