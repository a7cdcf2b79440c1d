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

static void migrc_help(const char *prog, const struct migrc_options *o)
{
	printf("usage: %s [option]...\n"
	       "  [--case NAME] [--rounds N] [--skip HOOKS] [--expect-none | --expect-stale MIN]\n"
	       "%s", prog, o->dir ? "  [--dir DIRECTORY]\n" : "");
}

/* False if the program should end with @status. */
bool migrc_options(int argc, char **argv, struct migrc_options *o, int *status)
{
	static const struct option options[] = {
		{ "case", required_argument, NULL, 'c' },
		{ "dir", required_argument, NULL, 'd' },
		{ "rounds", required_argument, NULL, 'n' },
		{ "skip", required_argument, NULL, 's' },
		{ "expect-stale", required_argument, NULL, 'e' },
		{ "expect-none", no_argument, NULL, '0' },
		{ "help", no_argument, NULL, 'h' },
		{ }
	};
	int opt;

	while ((opt = getopt_long(argc, argv, "c:d:n:s:e:0h", options, NULL)) != -1) {
		switch (opt) {
		case 'c':
			o->only = optarg;
			break;
		case 'd':
			o->dir = optarg;
			break;
		case 'n':
			o->rounds = tlb_rs_number(optarg, 1, 1000000);
			break;
		case 's':
			o->skip = strcmp(optarg, "none") ? optarg : NULL;
			break;
		case 'e':
			o->want = tlb_rs_number(optarg, 1, 1000000);
			break;
		case '0':
			o->want = 0;
			break;
		default:
			migrc_help(argv[0], o);
			*status = opt == 'h' ? 0 : KSFT_FAIL;
			return false;
		}
	}
	return true;
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

/*
 * Runs the cases that --case asks for, each without the hooks of --skip, and ends the
 * program. @choose returns the name of one of @nr; it is the one for @run from then on.
 */
__noreturn void migrc_run(const char *what, const struct migrc_options *o, size_t nr,
			  const char *(*choose)(size_t i),
			  int (*run)(const struct migrc_options *o))
{
	size_t i, plan = 0;

	for (i = 0; i < nr; i++)
		plan += !o->only || !strcmp(o->only, choose(i));
	if (!plan)
		ksft_exit_fail_msg("no case '%s'\n", o->only);
	ksft_set_plan(plan);
	for (i = 0; i < nr; i++) {
		int ret;

		migrc_case = choose(i);
		if (o->only && strcmp(o->only, migrc_case))
			continue;
		if (o->skip && !migrc_skip_hooks(o->skip)) {
			ksft_test_result_skip("%s: %s: cannot remove '%s'\n", what, migrc_case,
					      o->skip);
			continue;
		}
		ret = run(o);
		migrc_skip_none();
		ksft_test_result_report(ret, "%s: %s%s%s\n", what, migrc_case,
					o->skip ? ", without " : "", o->skip ?: "");
		/* The next case begins with an empty ledger. */
		migrc_drain();
	}
	ksft_finished();
}
