/* SPDX-License-Identifier: GPL-2.0 */
/* The kselftest harness, for the one source of a program that has its cases. */
#ifndef _TLB_RS_HARNESS_H
#define _TLB_RS_HARNESS_H

#include "kselftest_harness.h"
#include "tlb_rs.h"

/* A case takes as long on an emulated machine with all debug options. */
#define TLB_RS_TIMEOUT_S	900

/*
 * For main(): the whole program is skipped if there is a reason @why. The status of a harness
 * that skipped all cases is 0, and run_vmtests.sh reports only a status of 4 as skipped.
 */
static inline void tlb_rs_skip_all(const char *why)
{
	if (!why)
		return;
	ksft_print_header();
	ksft_exit_skip("%s\n", why);
}

/*
 * test_harness_run(), but the cases of @fixture run only if the arguments name them: the first
 * argument that fits decides, and the last one excludes the fixture.
 */
static inline int tlb_rs_run_without(const char *fixture, int argc, char **argv)
{
	char *args[64];

	if (argc + 3 > (int)ARRAY_SIZE(args))
		ksft_exit_fail_msg("too many arguments\n");
	memcpy(args, argv, argc * sizeof(*args));
	args[argc] = "-F";
	args[argc + 1] = (char *)fixture;
	args[argc + 2] = NULL;
	return test_harness_run(argc + 2, args);
}

#endif /* _TLB_RS_HARNESS_H */
