/* SPDX-License-Identifier: GPL-2.0 */
/* What the stress tests share: threads, each of which does its job over and over for a time. */
#ifndef _TLB_RS_STRESS_H
#define _TLB_RS_STRESS_H

#include "tlb_rs.h"

struct job {
	const char *name;
	void (*fn)(struct job *job);
	int cpu;
	int nr;
	pthread_t thread;
	long ops;		/* what was done, must not be 0 */
	long failed;		/* refused by the kernel: allowed */
	long bad;		/* wrong contents */
	const char *skip;	/* why nothing was done */
};

static struct {
	struct job *jobs;
	size_t nr;
	__u64 deadline, last_deadline;
} stress;

static inline bool all_have_done(void)
{
	for (size_t i = 0; i < stress.nr; i++) {
		if (!stress.jobs[i].skip && !__atomic_load_n(&stress.jobs[i].ops, __ATOMIC_RELAXED))
			return false;
	}
	return true;
}

/* On a slow host it goes on until each thread has done something, four times as long at most. */
static inline bool expired(void)
{
	__u64 now = tlb_rs_now_ns();

	return now >= stress.deadline && (now >= stress.last_deadline || all_have_done());
}

static inline void *stress_thread(void *arg)
{
	struct job *job = arg;

	tlb_rs_pin_cpu(job->cpu % tlb_rs_nr_cpus());
	job->fn(job);
	return NULL;
}

static inline void stress_run(struct job *jobs, size_t nr, long seconds)
{
	size_t i;

	stress.jobs = jobs;
	stress.nr = nr;
	stress.deadline = tlb_rs_now_ns() + seconds * 1000000000ULL;
	stress.last_deadline = stress.deadline + 3 * seconds * 1000000000ULL;
	for (i = 0; i < nr; i++) {
		if (pthread_create(&jobs[i].thread, NULL, stress_thread, &jobs[i]))
			ksft_exit_fail_msg("cannot start a thread\n");
	}
	for (i = 0; i < nr; i++)
		pthread_join(jobs[i].thread, NULL);
}

/* Members of a JSON object, each with its leading comma. */
static inline void stress_json(void)
{
	for (size_t i = 0; i < stress.nr; i++)
		printf(",\"%s\":%ld", stress.jobs[i].name, stress.jobs[i].ops);
}

static inline void stress_results(void)
{
	for (size_t i = 0; i < stress.nr; i++) {
		const struct job *job = &stress.jobs[i];

		if (job->skip)
			ksft_test_result_skip("stress %s: %s\n", job->name, job->skip);
		else
			ksft_test_result(job->ops && !job->bad,
					 "stress %s: %ld done, %ld refused, %ld wrong\n",
					 job->name, job->ops, job->failed, job->bad);
	}
}

#endif /* _TLB_RS_STRESS_H */
