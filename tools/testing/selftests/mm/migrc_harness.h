/* SPDX-License-Identifier: GPL-2.0 */
/* The kselftest harness, for the one source of a program that has its cases. */
#ifndef _MIGRC_HARNESS_H
#define _MIGRC_HARNESS_H

#include "migrc.h"
#include "tlb_rs_harness.h"

/* A case is called like its variant, if it has one. */
static inline const char *migrc_name_of(const struct __test_metadata *_metadata)
{
	struct __fixture_variant_metadata *v;

	for (v = _metadata->fixture->variant; v; v = v->next) {
		if (v->data == _metadata->variant)
			return v->name;
	}
	return _metadata->name;
}

/* FIXTURE_SETUP; false if the case is skipped. */
static inline bool migrc_begin(struct __test_metadata *_metadata, const struct migrc_options *o)
{
	tlb_rs_undo();
	/* A case may write to them and be killed. */
	tlb_rs_keep(MIGRC_PAGES);
	tlb_rs_keep(MIGRC_AGE);
	tlb_rs_keep(MIGRC_ENABLE);
	migrc_case = migrc_name_of(_metadata);
	migrc_own_variables();
	/* The case begins with an empty ledger. */
	migrc_drain();
	if (o->skip && !migrc_skip_hooks(o->skip))
		SKIP(return false, "cannot remove '%s'", o->skip);
	return true;
}

/* The verdict on a case is a kselftest exit code. */
static inline void migrc_end(struct __test_metadata *_metadata, int ret)
{
	if (ret == KSFT_SKIP)
		SKIP(return, "%s", migrc_why);
	EXPECT_EQ(KSFT_PASS, ret);
}

#endif /* _MIGRC_HARNESS_H */
