// SPDX-License-Identifier: GPL-2.0
/*
 * Large folios that are mapped again in runs after they have moved.
 *
 * Migration entries that follow each other become valid at once, by one set_ptes(), if they
 * become alike. vmstat's tlb_batch_restored counts the pages of runs of two or more, debugfs
 * the runs. Where it is known which entries are alike, both have to be exact.
 *
 * counts64k  folios of 64 KiB, or of one block of arm64, to and fro: each is one run
 * counts2m   the same with THPs that are mapped by PTEs
 * file       the same with folios of an ext4 file, mapped read-only
 * off        vm.tlb_batch is 0
 * order4     a THP is split to folios of order 4
 * edges      the folio is in two VMAs, in halves, in two page tables, in four processes
 *
 * attrs      some pages have uffd-wp: it is kept, and writes to them are noticed
 * shared     some pages are shared with a child
 * softdirty  some pages were written since a 4 was written to clear_refs
 * readonly   some pages are read-only: as many writes fault as before
 * lazyfree   some pages are young, or dirty: no young bit and no write is lost
 * dirty      some pages of an ext4 file are dirty: what was written reaches the disk
 * mlock      as much is mlocked as before
 *
 * zapped     a dropped page is not mapped again by a run of its neighbours
 * prot_none  neither is a new page in its place, which may be PROT_NONE
 * exclusive  half of the folio is shared with a child: only the other half is exclusive
 * undo       the migration of a pinned folio is undone before its flush
 * poison     a page is poisoned
 * deferred   migrc has deferred the flush of the folio: in runs, too
 *
 * hint       a NUMA hint fault makes a folio accessible, block by block
 * hint_shared   every other page is shared with a child: the others alone become writable
 * hint_pending  another thread has a flush to come: page by page
 *
 * TLB_SKIP=HOOK removes a rule, and then each case has to fail. TLB_DIR=DIR is a directory on
 * ext4.
 */
#include "tlb_batch_restore.h"
#include "tlb_rs_harness.h"

#define MIGRC_SKIP	DEBUGFS "migrc/skip_hook"
/* A block of entries: 16 of 4 KiB, 128 of 16 KiB, 32 of 64 KiB. */
#define BLOCK_4K	(64UL << 10)
#define BLOCK_LARGE	(2UL << 20)

const char *ext4_dir;
size_t psize;
size_t folio_pages;
size_t folio_size;
size_t pmd_size;

static const char *skip_reason;

/* For a case that cannot run here. */
int skipped(const char *why)
{
	skip_reason = why;
	return KSFT_SKIP;
}

/* Whether new anonymous folios have this size. */
bool choose_size(size_t size, const char *how)
{
	char path[128];

	snprintf(path, sizeof(path), THP_SYSFS "hugepages-%zukB/enabled", size / 1024);
	return tlb_rs_setting(path, how);
}

static void migrc_skip_none(void)
{
	tlb_rs_write_file(MIGRC_SKIP, "none");
}

/* A rule of this mechanism, or of migrc. */
static bool remove_rule(const char *name)
{
	return tlb_rs_skip_hooks(name) || tlb_rs_remove_hooks(MIGRC_SKIP, name, migrc_skip_none);
}

FIXTURE(tlb_batch_restore) {
	bool works;	/* with its rule */
};

FIXTURE_SETUP(tlb_batch_restore)
{
	const char *skip = tlb_rs_env("TLB_SKIP");

	tlb_rs_undo();
	tlb_rs_pin_cpu(0);
	tlb_rs_quiet();
	ASSERT_TRUE(choose_size(folio_size, "always"));
	/* Else khugepaged would look for some to collapse. */
	if (pmd_size != folio_size)
		choose_size(pmd_size, "never");
	self->works = !skip;
	if (skip)
		ASSERT_TRUE(remove_rule(skip));
}

FIXTURE_TEARDOWN_PARENT(tlb_batch_restore)
{
	tlb_rs_tear_down();
}

/* With a rule removed, a case has to fail. */
static void judge(struct __test_metadata *_metadata, bool works, int ret)
{
	if (ret == KSFT_SKIP)
		SKIP(return, "%s", skip_reason);
	EXPECT_EQ(works, ret == KSFT_PASS);
}

TEST_F_TIMEOUT(tlb_batch_restore, counts64k, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_counts64k());
}

TEST_F_TIMEOUT(tlb_batch_restore, counts2m, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_counts2m());
}

TEST_F_TIMEOUT(tlb_batch_restore, file, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_file());
}

TEST_F_TIMEOUT(tlb_batch_restore, off, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_off());
}

TEST_F_TIMEOUT(tlb_batch_restore, order4, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_order4());
}

TEST_F_TIMEOUT(tlb_batch_restore, edges, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_edges());
}

TEST_F_TIMEOUT(tlb_batch_restore, attrs, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_attrs());
}

TEST_F_TIMEOUT(tlb_batch_restore, shared, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_shared());
}

TEST_F_TIMEOUT(tlb_batch_restore, softdirty, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_softdirty());
}

TEST_F_TIMEOUT(tlb_batch_restore, readonly, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_readonly());
}

TEST_F_TIMEOUT(tlb_batch_restore, lazyfree, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_lazyfree());
}

TEST_F_TIMEOUT(tlb_batch_restore, dirty, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_dirty());
}

TEST_F_TIMEOUT(tlb_batch_restore, mlock, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_mlock());
}

TEST_F_TIMEOUT(tlb_batch_restore, zapped, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_zapped());
}

TEST_F_TIMEOUT(tlb_batch_restore, prot_none, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_prot_none());
}

TEST_F_TIMEOUT(tlb_batch_restore, exclusive, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_exclusive());
}

TEST_F_TIMEOUT(tlb_batch_restore, undo, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_undo());
}

TEST_F_TIMEOUT(tlb_batch_restore, poison, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_poison());
}

TEST_F_TIMEOUT(tlb_batch_restore, deferred, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_deferred());
}

TEST_F_TIMEOUT(tlb_batch_restore, hint, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_hint());
}

TEST_F_TIMEOUT(tlb_batch_restore, hint_shared, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_hint_shared());
}

TEST_F_TIMEOUT(tlb_batch_restore, hint_pending, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_hint_pending());
}

static const char *missing(void)
{
	char path[128], size[32];

	if (tlb_rs_vmstat_read("tlb_batch_restored") < 0)
		return "this kernel does not count what is mapped again";
	if (tlb_rs_nr_cpus() < 2)
		return "needs two CPUs";
	if ((tlb_rs_memory_nodes() & 3) != 3)
		return "needs memory on nodes 0 and 1";
	if (tlb_rs_read_file(THP_SYSFS "hpage_pmd_size", size, sizeof(size)))
		return "no transparent huge pages";
	pmd_size = strtoul(size, NULL, 10);
	snprintf(path, sizeof(path), THP_SYSFS "hugepages-%zukB/enabled", folio_size / 1024);
	return access(path, W_OK) ? "no anonymous folios of this size" : NULL;
}

int main(int argc, char **argv)
{
	ext4_dir = tlb_rs_env("TLB_DIR") ?: "/mnt";
	psize = getpagesize();
	folio_size = psize == 4096 ? BLOCK_4K : BLOCK_LARGE;
	folio_pages = folio_size / psize;
	tlb_rs_skip_all(missing());
	return test_harness_run(argc, argv);
}
