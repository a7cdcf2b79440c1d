// SPDX-License-Identifier: GPL-2.0
/*
 * Dirty folios of a file that are written to disk while they are mapped.
 *
 * msync() makes the PTEs of a large folio clean and read-only in runs, and those of several folios
 * with one flush if vm.tlb_batch_writeback is 1, so that the next store to each page faults and
 * makes the folio dirty again. What memory has after all stores is what must be on
 * the disk. It is read by O_DIRECT, which writes dirty folios back first, and no others.
 *
 * lost       a thread stores to all pages while they are written: no store is lost
 * numa       the same while NUMA balancing takes away the access to pages
 * fsync2     the same with two who write to disk at once
 * edges      a folio is in several VMAs, in two page tables, only half of it is mapped, some of
 *            it is read-only: a store to each page takes one fault, or is refused
 * prot_none  some pages have no access meanwhile
 * holes      some pages are not mapped: they stay so
 * tracked    some pages have uffd-wp: who copies the pages without it has copied all stores
 * softdirty  the same with soft-dirty bits
 * lazy       x86_64: no CPU is interrupted that is idle in the address space of a writer, and no
 *            store is lost when it wakes up
 * punch      some pages are punched out of the file
 * truncate   the file ends within a folio, and grows again
 * reflink    another file shares the blocks: it keeps what it had
 *
 * Several folios that are cleaned together:
 * small      as lost
 * extents    as lost, in a file with holes
 * journal    as lost, and the data goes through the journal of ext4
 * switch     as lost, while vm.tlb_batch_writeback changes
 * crowd      more processes store to the pages than one batch reaches
 * cleaners   one who writes to disk is late to flush, another one must not rely on its PTEs
 * protect    the same, and mprotect() must not
 * device     a device that uses the page tables has to be told of each folio
 *
 * TLB_SKIP=HOOK removes a rule, and then each case has to fail. TLB_DIR=DIR is a directory on
 * a disk. TLB_WRITEBACK=1 sets vm.tlb_batch_writeback for the other cases, too.
 */
#include "tlb_batch_mkclean.h"
#include "tlb_rs_harness.h"

#define ROUNDS		8
#define NUMA_SCAN	DEBUGFS "sched/numa_balancing/"

const char *dir;
size_t psize;
size_t folio_pages;

static const char *skip_reason;

/* For a case that cannot run here. */
int skipped(const char *why)
{
	skip_reason = why;
	return KSFT_SKIP;
}

/* Whether all stores are on the disk, however often they meet @sync(). */
bool none_is_lost(struct file *f, size_t every, bool (*sync)(const struct file *f))
{
	bool ok = true;
	int i;

	writer_start(f, every);
	for (i = 0; ok && i < ROUNDS; i++) {
		writer_passes();
		ok = sync(f);
		writer_pause();
		ok = ok && is_on_disk("stores", f);
		writer_resume();
	}
	writer_end();
	return ok;
}

/* In folios of 64 KiB, and in parts of one of 2 MiB that PTEs map. */
static int lost_by(bool (*sync)(const struct file *f))
{
	struct file f;
	bool ok;

	if (!map_dirty(&f, FOLIO_SIZE, 4))
		return skipped("no folios of 64 KiB");
	ok = none_is_lost(&f, folio_pages, sync);
	unmap(&f);
	if (!map_dirty(&f, SZ_2M, 1))
		return ok ? skipped("no folios of 2 MiB") : KSFT_FAIL;
	ok &= none_is_lost(&f, 8 * folio_pages, sync);
	unmap(&f);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

static int test_lost(void)
{
	return lost_by(sync_all);
}

/* Until NUMA balancing has changed some more PTEs. */
static bool sync_scanned(const struct file *f)
{
	long long before = tlb_rs_vmstat_read("numa_pte_updates");
	__u64 end = tlb_rs_now_ns() + TLB_RS_PATIENCE_NS / ROUNDS;
	bool ok;

	do {
		ok = sync_all(f);
	} while (ok && tlb_rs_vmstat_read("numa_pte_updates") == before && tlb_rs_now_ns() < end);
	return ok;
}

static int test_numa(void)
{
	long long before = tlb_rs_vmstat_read("numa_pte_updates");
	int ret;

	if (!tlb_rs_setting(NUMA_SCAN "scan_delay_ms", "1") ||
	    !tlb_rs_setting(NUMA_SCAN "scan_period_min_ms", "10") ||
	    !tlb_rs_setting(NUMA_SCAN "scan_period_max_ms", "20") ||
	    !tlb_rs_setting("/proc/sys/kernel/numa_balancing", "1"))
		return skipped("no NUMA balancing");
	ret = lost_by(sync_scanned);
	tlb_rs_setting("/proc/sys/kernel/numa_balancing", "0");
	if (ret == KSFT_PASS && tlb_rs_vmstat_read("numa_pte_updates") == before)
		return skipped("NUMA balancing has changed no PTE");
	return ret;
}

static void *other_sync(void *arg)
{
	const struct file *f = arg;

	tlb_rs_pin_cpu(tlb_rs_nr_cpus() - 1);
	return (void *)(long)fsync(f->fd);
}

static bool sync_twice(const struct file *f)
{
	pthread_t other;
	void *ret;
	bool ok;

	if (pthread_create(&other, NULL, other_sync, (void *)f))
		ksft_exit_fail_msg("cannot start a thread\n");
	ok = sync_all(f);
	pthread_join(other, &ret);
	return ok && !ret;
}

static int test_fsync2(void)
{
	return lost_by(sync_twice);
}

FIXTURE(tlb_batch_mkclean) {
	bool works;	/* with its rule */
};

FIXTURE_SETUP(tlb_batch_mkclean)
{
	const char *skip = tlb_rs_env("TLB_SKIP");

	tlb_rs_undo();
	tlb_rs_pin_cpu(0);
	tlb_rs_quiet();
	self->works = !skip;
	if (tlb_rs_env("TLB_WRITEBACK") && !batch_folios(true))
		SKIP(return, "no vm.tlb_batch_writeback");
	if (skip && !tlb_rs_skip_hooks(skip))
		SKIP(return, "'%s' cannot be removed on this kernel", skip);
}

FIXTURE_TEARDOWN_PARENT(tlb_batch_mkclean)
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

TEST_F_TIMEOUT(tlb_batch_mkclean, lost, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_lost());
}

TEST_F_TIMEOUT(tlb_batch_mkclean, numa, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_numa());
}

TEST_F_TIMEOUT(tlb_batch_mkclean, fsync2, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_fsync2());
}

TEST_F_TIMEOUT(tlb_batch_mkclean, edges, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_edges());
}

TEST_F_TIMEOUT(tlb_batch_mkclean, prot_none, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_prot_none());
}

TEST_F_TIMEOUT(tlb_batch_mkclean, holes, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_holes());
}

TEST_F_TIMEOUT(tlb_batch_mkclean, tracked, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_tracked());
}

TEST_F_TIMEOUT(tlb_batch_mkclean, softdirty, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_softdirty());
}

TEST_F_TIMEOUT(tlb_batch_mkclean, lazy, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_lazy());
}

TEST_F_TIMEOUT(tlb_batch_mkclean, punch, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_punch());
}

TEST_F_TIMEOUT(tlb_batch_mkclean, truncate, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_truncate());
}

TEST_F_TIMEOUT(tlb_batch_mkclean, reflink, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_reflink());
}

TEST_F_TIMEOUT(tlb_batch_mkclean, small, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_small());
}

TEST_F_TIMEOUT(tlb_batch_mkclean, extents, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_extents());
}

TEST_F_TIMEOUT(tlb_batch_mkclean, journal, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_journal());
}

TEST_F_TIMEOUT(tlb_batch_mkclean, switch, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_switch());
}

TEST_F_TIMEOUT(tlb_batch_mkclean, crowd, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_crowd());
}

TEST_F_TIMEOUT(tlb_batch_mkclean, cleaners, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_cleaners());
}

TEST_F_TIMEOUT(tlb_batch_mkclean, protect, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_protect());
}

TEST_F_TIMEOUT(tlb_batch_mkclean, device, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, self->works, test_device());
}

int main(int argc, char **argv)
{
	dir = tlb_rs_env("TLB_DIR") ?: "/mnt";
	psize = getpagesize();
	folio_pages = FOLIO_SIZE / psize;
	tlb_rs_skip_all(psize != 4096 ? "needs pages of 4 KiB" :
			tlb_rs_nr_cpus() < 2 ? "needs two CPUs" :
			access(dir, W_OK) ? "needs a directory on a disk" : NULL);
	return test_harness_run(argc, argv);
}
