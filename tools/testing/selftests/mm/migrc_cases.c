// SPDX-License-Identifier: GPL-2.0
/* Programs that have cases: their options, their verdicts, their records. */
#include "migrc.h"

/* The case that is running. */
const char *migrc_case;

/* Why it is skipped. */
const char *migrc_why;

/* What the environment asks of all cases. */
void migrc_ask(struct migrc_options *o)
{
	const char *skip = tlb_rs_env("TLB_SKIP");

	o->skip = skip && strcmp(skip, "none") ? skip : NULL;
	o->rounds = tlb_rs_env_number("TLB_ROUNDS", 0, 1, 1000000);
	o->want = tlb_rs_env_number("TLB_EXPECT", 0, 0, 1000000);
}

/* A kselftest exit code. */
int migrc_skipped(const char *why)
{
	migrc_why = why;
	return KSFT_SKIP;
}

#define MIGRC_MOST_ROUNDS	40	/* or four times as many as planned */

/*
 * Whether there is another round after @done ones. More than the @rounds that were
 * planned if too few were armed, or if less is stale than should be: a machine with
 * other work to do misses many.
 */
bool migrc_more(const struct migrc_options *o, long rounds, long done, long armed, __u64 stale)
{
	bool enough = o->want ? stale >= (__u64)o->want : armed >= (rounds + 3) / 4;
	long most = 4 * rounds > MIGRC_MOST_ROUNDS ? 4 * rounds : MIGRC_MOST_ROUNDS;

	return done < (enough ? rounds : most);
}

/*
 * A kselftest exit code. Rounds that were not armed could not show anything: too many of
 * them prove nothing. @optional: the kernel need not defer this.
 */
int migrc_judge(const struct migrc_options *o, long rounds, long armed, __u64 stale, bool optional)
{
	if (!o->want && armed < (rounds + 3) / 4) {
		ksft_print_msg("%s: %ld rounds armed only, too few for the %ld planned\n",
			       migrc_case, armed, rounds);
		if (optional && !armed && !stale)
			return migrc_skipped("no round was armed");
		return KSFT_FAIL;
	}
	if (o->want ? stale >= (__u64)o->want : !stale)
		return KSFT_PASS;
	ksft_print_msg("%s: %llu rounds stale, expected: %s%ld\n", migrc_case, stale,
		       o->want ? "at least " : "", o->want);
	return KSFT_FAIL;
}

/* One JSON object: what a case did, and what the kernel counted since @before. */
void migrc_record(const char *program, const struct migrc_options *o, long rounds, long armed,
		  __u64 stale, const struct migrc_counters *before)
{
	struct migrc_counters d;

	migrc_diff(before, &d);
	printf("{\"test\":\"%s\",\"case\":\"%s\",\"skip\":\"%s\",\"rounds\":%ld,", program,
	       migrc_case, o->skip ?: "none", rounds);
	printf("\"armed\":%ld,\"stale\":%llu", armed, stale);
	migrc_json(&d);
	printf("}\n");
	fflush(stdout);
}
