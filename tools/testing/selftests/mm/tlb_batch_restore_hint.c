// SPDX-License-Identifier: GPL-2.0
/* Folios that NUMA balancing has made inaccessible, and that are not moved by the next access. */
#include "tlb_batch_restore.h"

#define ATTEMPTS	10
#define NR_FOLIOS	64

static size_t nr_pages(void)
{
	return NR_FOLIOS * folio_pages;
}

static const char *cannot_scan(void)
{
	if (!HAS_BLOCKS)
		return "a TLB holds pages one by one here";
	return tlb_rs_numa_scans() ? NULL : "no NUMA balancing, or no debugfs";
}

/* Folios on the node of this CPU. What is bound to a node is not scanned. */
static char *make_local_folios(void)
{
	char *base = make_folios(NR_FOLIOS);

	if (syscall(SYS_mbind, base, nr_pages() * psize, 0 /* MPOL_DEFAULT */, NULL, 0UL, 0U))
		ksft_exit_fail_msg("mbind: %s\n", strerror(errno));
	return base;
}

static void touch(const char *base)
{
	__atomic_load_n(base + psize, __ATOMIC_RELAXED);
}

/* Whether one access to each folio makes all of it accessible, block by block. */
int test_hint(void)
{
	const char *why = cannot_scan();
	const size_t len = nr_pages() * psize;
	struct tlb_rs_readers other;
	struct restored before;
	bool ok = false;
	char *base;
	int i;

	if (why)
		return skipped(why);
	base = make_local_folios();
	/* Pages that are near are left alone if there is one thread only. */
	tlb_rs_readers_start(&other, 1, false, (char *)&before, 1);
	for (i = 0; i < ATTEMPTS && !ok && tlb_rs_numa_scan(nr_pages()); i++) {
		restored_begin(&before);
		for (size_t f = 0; f < NR_FOLIOS; f++)
			touch(base + f * folio_size);
		ok = restored_is(&before, nr_pages(), NR_FOLIOS);
	}
	tlb_rs_readers_end(&other);
	ok = ok && all_whole(base, NR_FOLIOS) && content_is("read", base, len, SEED);
	tlb_rs_fill(base, len, SEED + 1);
	ok = ok && content_is("rewritten", base, len, SEED + 1);
	munmap(base, len);
	return i ? (ok ? KSFT_PASS : KSFT_FAIL) : skipped("nothing was scanned");
}

/* --- every other page is shared with a child ---------------------------------------- */

static char *mixed;

static bool is_shared(size_t page)
{
	return page & 1;
}

static bool answer_mixed(char what)
{
	(void)what;
	for (size_t i = 0; i < nr_pages(); i++) {
		if (is_shared(i) && !page_is(mixed, i, SEED))
			return false;
	}
	return true;
}

/* One process alone has the first page of each folio, and may write to it after the fault. */
int test_hint_shared(void)
{
	const char *why = cannot_scan();
	const size_t len = nr_pages() * psize;
	struct tlb_rs_readers other;
	struct sharer child;
	bool scanned, ok;
	long long faults;
	size_t i;

	if (why)
		return skipped(why);
	mixed = make_local_folios();
	tlb_rs_readers_start(&other, 1, false, (char *)&other, 1);
	scanned = tlb_rs_numa_scan(nr_pages());
	tlb_rs_readers_end(&other);
	/* What is shared by then is not scanned. */
	for (i = 0; i < nr_pages(); i++) {
		if (!is_shared(i) && madvise(mixed + i * psize, psize, MADV_DONTFORK))
			ksft_exit_fail_msg("MADV_DONTFORK: %s\n", strerror(errno));
	}
	sharer_start(&child, answer_mixed);
	if (madvise(mixed, len, MADV_DOFORK))
		ksft_exit_fail_msg("MADV_DOFORK: %s\n", strerror(errno));
	faults = tlb_rs_vmstat_read("numa_hint_faults");
	for (i = 0; i < NR_FOLIOS; i++)
		touch(mixed + i * folio_size);
	scanned &= tlb_rs_vmstat_read("numa_hint_faults") - faults >= NR_FOLIOS / 2;
	tlb_rs_fill(mixed, len, SEED + 1);
	ok = content_is("written", mixed, len, SEED + 1);
	if (!sharer_ask(&child, 'r')) {
		ksft_print_msg("the child reads what the parent has written\n");
		ok = false;
	}
	sharer_end(&child);
	munmap(mixed, len);
	return scanned ? (ok ? KSFT_PASS : KSFT_FAIL) : skipped("nothing was scanned");
}

/* --- another thread has a flush to come --------------------------------------------- */

/*
 * Two pages that are zapped by one madvise(). Each is an area, and their flush is at the end. The
 * second has userfaultfd, which the zap has to tell before it goes on: until then the first is
 * gone, and not flushed.
 */
struct zap {
	pthread_t thread;
	char *base;
	int uffd;
};

static bool is_halfway(const struct zap *z)
{
	return !tlb_rs_pfn(z->base) && tlb_rs_pfn(z->base + psize);
}

static void *zapper(void *arg)
{
	struct zap *z = arg;

	if (madvise(z->base, 2 * psize, MADV_DONTNEED))
		ksft_exit_fail_msg("MADV_DONTNEED: %s\n", strerror(errno));
	return NULL;
}

/* Returns halfway; false without userfaultfd. */
static bool zap_start(struct zap *z)
{
	z->uffd = uffd_open(UFFD_FEATURE_EVENT_REMOVE);
	if (z->uffd < 0)
		return false;
	z->base = tlb_rs_mmap(2 * psize, psize);
	tlb_rs_fill(z->base, 2 * psize, SEED);
	if (!uffd_register(z->uffd, z->base + psize, psize, UFFDIO_REGISTER_MODE_MISSING) ||
	    pthread_create(&z->thread, NULL, zapper, z))
		ksft_exit_fail_msg("cannot start a zap: %s\n", strerror(errno));
	while (!is_halfway(z))
		tlb_rs_sleep_us(100);
	return true;
}

static void zap_end(struct zap *z)
{
	struct uffd_msg msg;

	if (!is_halfway(z))
		ksft_exit_fail_msg("a zap did not wait\n");
	if (read(z->uffd, &msg, sizeof(msg)) != sizeof(msg) || msg.event != UFFD_EVENT_REMOVE)
		ksft_exit_fail_msg("no event of a zap\n");
	pthread_join(z->thread, NULL);
	close(z->uffd);
	munmap(z->base, 2 * psize);
}

/* The scan that made them inaccessible may be the one who has not flushed yet. */
int test_hint_pending(void)
{
	const char *why = cannot_scan();
	const size_t len = nr_pages() * psize;
	long long faults = 0, blocks = 0;
	char *base;
	int i;

	if (why)
		return skipped(why);
	base = make_local_folios();
	/* Other accesses, as by the kernel, may have made some folios accessible before. */
	for (i = 0; i < ATTEMPTS && faults <= NR_FOLIOS / 2; i++) {
		struct restored before, now;
		struct zap z;
		bool scanned;

		/* Before the scan: pages that are near are left alone if there is one thread. */
		if (!zap_start(&z))
			break;
		scanned = tlb_rs_numa_scan(nr_pages());
		faults = tlb_rs_vmstat_read("numa_hint_faults");
		restored_begin(&before);
		for (size_t f = 0; f < NR_FOLIOS; f++)
			touch(base + f * folio_size);
		restored_begin(&now);
		faults = scanned ? tlb_rs_vmstat_read("numa_hint_faults") - faults : 0;
		blocks += now.pages - before.pages;
		zap_end(&z);
	}
	if (blocks)
		ksft_print_msg("%lld pages became accessible in blocks before a flush\n", blocks);
	if (!content_is("read", base, len, SEED))
		blocks++;
	munmap(base, len);
	if (faults <= NR_FOLIOS / 2)
		return skipped(i ? "nothing was scanned" : "no userfaultfd");
	return blocks ? KSFT_FAIL : KSFT_PASS;
}
