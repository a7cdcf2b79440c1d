// SPDX-License-Identifier: GPL-2.0
#include "migrc_damon.h"
#include "tlb_rs.h"

#define DAMON	"/sys/kernel/mm/damon/admin/kdamonds/"
#define CONTEXT	"0/contexts/0/"
#define SCHEME	CONTEXT "schemes/%zu/"

static void must_write(const char *name, const char *val)
{
	char path[256];
	int err;

	snprintf(path, sizeof(path), DAMON "%s", name);
	err = tlb_rs_write_file(path, val);
	if (err)
		ksft_exit_fail_msg("%s: %s\n", path, strerror(-err));
}

static void must_write_number(const char *name, unsigned long val)
{
	char buf[24];

	snprintf(buf, sizeof(buf), "%lu", val);
	must_write(name, buf);
}

static void must_write_of(size_t scheme, const char *name, const char *val)
{
	char path[128];

	snprintf(path, sizeof(path), SCHEME "%s", scheme, name);
	must_write(path, val);
}

static void must_write_number_of(size_t scheme, const char *name, unsigned long val)
{
	char buf[24];

	snprintf(buf, sizeof(buf), "%lu", val);
	must_write_of(scheme, name, buf);
}

bool migrc_has_damon(void)
{
	return !access(DAMON, F_OK);
}

/* Each scheme takes regions of any size and age, every 100 ms. */
void migrc_damon_start(const void *base, size_t len, const struct migrc_damon_scheme *schemes,
		       size_t nr)
{
	size_t i;

	must_write("nr_kdamonds", "1");
	must_write("0/contexts/nr_contexts", "1");
	must_write(CONTEXT "operations", "fvaddr");
	must_write(CONTEXT "targets/nr_targets", "1");
	must_write_number(CONTEXT "targets/0/pid_target", getpid());
	must_write(CONTEXT "targets/0/regions/nr_regions", "1");
	must_write_number(CONTEXT "targets/0/regions/0/start", (unsigned long)base);
	must_write_number(CONTEXT "targets/0/regions/0/end", (unsigned long)base + len);
	must_write_number(CONTEXT "schemes/nr_schemes", nr);
	for (i = 0; i < nr; i++) {
		must_write_of(i, "action", schemes[i].action);
		must_write_of(i, "access_pattern/sz/max", "18446744073709551615");
		must_write_number_of(i, "access_pattern/nr_accesses/min", schemes[i].least);
		must_write_number_of(i, "access_pattern/nr_accesses/max", schemes[i].most);
		must_write_number_of(i, "access_pattern/age/min", schemes[i].least_age);
		must_write_of(i, "access_pattern/age/max", "4294967295");
		must_write_number_of(i, "target_nid", schemes[i].node);
	}
	must_write("0/state", "on");
}

/* Of the first scheme. */
void migrc_damon_retarget(int node)
{
	must_write_number_of(0, "target_nid", node);
	must_write("0/state", "commit");
}

void migrc_damon_stop(void)
{
	tlb_rs_write_file(DAMON "0/state", "off");
	tlb_rs_write_file(DAMON "nr_kdamonds", "0");
}
