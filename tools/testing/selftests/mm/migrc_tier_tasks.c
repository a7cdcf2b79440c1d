// SPDX-License-Identifier: GPL-2.0
/* A task needs what kswapd holds: it is throttled until kswapd drains, or drains itself. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "migrc_tier.h"

#define PATIENCE_S	60

const char *tier_skipped;

/* As if more rules were removed than the environment wants. */
static bool without(const char *hooks)
{
	char all[128];

	snprintf(all, sizeof(all), "%s%s%s", hooks, asked.skip ? "," : "", asked.skip ?: "");
	return migrc_skip_hooks(all);
}

/* A task that touches pages of node 0 as soon as it is told to. */
struct task {
	pid_t pid;
	int pipe[2];
};

static void start_task(struct task *task)
{
	struct tlb_rs_area a;
	size_t nr;

	if (pipe(task->pipe))
		ksft_exit_fail_msg("pipe: %s\n", strerror(errno));
	fflush(stdout);
	task->pid = fork();
	if (task->pid < 0)
		ksft_exit_fail_msg("fork: %s\n", strerror(errno));
	if (task->pid)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	tlb_rs_write_file("/proc/self/oom_score_adj", "1000");
	tlb_rs_pin_cpu(1);
	if (read(task->pipe[0], &nr, sizeof(nr)) != sizeof(nr))
		_exit(1);
	/* What it has already is not demoted. */
	a = tlb_rs_make_area(0, nr * psize, true);
	_exit(!tlb_rs_touch_more(&a, nr));
}

static void go(struct task *task, size_t nr)
{
	if (write(task->pipe[1], &nr, sizeof(nr)) != sizeof(nr))
		ksft_exit_fail_msg("pipe: %s\n", strerror(errno));
}

/* Whether it succeeds, and in time. */
static bool succeeds(struct task *task)
{
	int ms, status = 1;
	pid_t done = 0;

	for (ms = 0; ms < PATIENCE_S * 1000 && !done; ms += 10) {
		done = waitpid(task->pid, &status, WNOHANG);
		tlb_rs_sleep_us(10000);
	}
	if (!done) {
		ksft_print_msg("the task still waits\n");
		kill(task->pid, SIGKILL);
		waitpid(task->pid, &status, 0);
		status = 1;
	}
	close(task->pipe[0]);
	close(task->pipe[1]);
	return done && !status;
}

/* Little is free on node 0. A step is more than all that can be demoted, files included. */
static bool prepare_squeeze(size_t nr)
{
	bool ok;

	set_number(SCALE, 10);
	set_number(MIN_FREE, 4096);
	ok = prepare(nr);
	set_number(SCALE, 3000);
	return ok;
}

/* What is counted when a task goes on that was throttled. */
static long long stalls(void)
{
	long long normal = tlb_rs_vmstat_read("allocstall_normal");

	return normal + tlb_rs_vmstat_read("allocstall_movable");
}

/* Then nothing was left to be drained for another reason. */
static bool too_slow(long long aged)
{
	if (migrc_stat("drain", "age") > aged)
		tier_skipped = "too slow: what was held was drained for its age";
	return tier_skipped;
}

const char *tier_throttled(void)
{
	const __u64 end = tlb_rs_now_ns() + PATIENCE_S * 1000000000ULL;
	const long long aged = migrc_stat("drain", "age");
	struct tlb_rs_zones z, last;
	struct task task;
	long long before;
	bool ok;

	if (!without("gate,kswapd,pressure,isolate")) {
		tier_skipped = "no fault injection";
		return NULL;
	}
	if (!prepare_squeeze(8 * nr_pages))
		return "kswapd does not rest";
	start_task(&task);
	z = tlb_rs_read_zones(0);
	/*
	 * It is for all nodes, by their size. Less than half of that, and a task is throttled. More
	 * is missing than files in memory have, which are demoted without being held.
	 */
	set_number(MIN_FREE, 2 * 2 * (z.free + 3 * nr_pages) * psize / 1024);
	z = tlb_rs_read_zones(0);
	before = stalls();
	go(&task, 64);
	while (stalls() == before && tlb_rs_now_ns() < end)
		tlb_rs_sleep_us(1000);
	last = tlb_rs_read_zones(0);
	/* It goes on, and needs more than the min watermark. */
	set_number(MIN_FREE, 4096);
	ok = succeeds(&task);
	ksft_print_msg("%ld pages were free, then %ld; min was %ld\n", z.free, last.free, z.min);
	if (too_slow(aged))
		return NULL;
	if (2 * z.free >= z.min)
		return "the task is not throttled";
	/* It goes on when kswapd gives up. */
	if (2 * last.free < last.min)
		return "kswapd has held what the task waits for";
	return ok && !tlb_rs_wrong_words(&pages) ? NULL : "the task fails, or contents are wrong";
}

const char *tier_oom(void)
{
	long long killed = tlb_rs_vmstat_read("oom_kill"), held;
	const long long aged = migrc_stat("drain", "age");
	struct tlb_rs_zones z;
	struct task task;
	bool ok;

	if (tlb_rs_has_swap() || !without("gate,round,kswapd,isolate")) {
		tier_skipped = "has swap, or no fault injection";
		return NULL;
	}
	if (!prepare_squeeze(4 * nr_pages))
		return "kswapd does not rest";
	start_task(&task);
	if (!wake_short())
		return "kswapd does not wake or rest";
	held = migrc_held(0);
	z = tlb_rs_read_zones(0);
	go(&task, held ? z.free - z.min + held / 2 : 0);
	ok = succeeds(&task);
	killed = tlb_rs_vmstat_read("oom_kill") - killed;
	ksft_print_msg("%ld pages were free, min is at %ld, %lld were held\n", z.free, z.min, held);
	if (too_slow(aged))
		return NULL;
	if (held < nr_pages)
		return "too little was held";
	if (!ok || killed)
		return "a task was killed, and there was enough";
	return tlb_rs_wrong_words(&pages) ? "contents are wrong" : NULL;
}
