// SPDX-License-Identifier: GPL-2.0
/* Folios that NUMA balancing has made inaccessible, and that are not moved by the next access. */
#include "tlb_batch_restore.h"

#define ATTEMPTS	10
#define NR_FOLIOS	64
#define ZAP_SIZE	(128UL << 20)

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

struct zap {
	pthread_t thread;
	char *base;
	bool go;
};

static void *zapper(void *arg)
{
	struct zap *z = arg;

	tlb_rs_pin_cpu(1);
	while (!__atomic_load_n(&z->go, __ATOMIC_ACQUIRE))
		;
	/* Its flush is at the end. */
	if (madvise(z->base, ZAP_SIZE, MADV_DONTNEED))
		ksft_exit_fail_msg("MADV_DONTNEED: %s\n", strerror(errno));
	return NULL;
}

static void zap_start(struct zap *z)
{
	z->go = false;
	z->base = tlb_rs_mmap(ZAP_SIZE, pmd_size);
	madvise(z->base, ZAP_SIZE, MADV_NOHUGEPAGE);
	if (madvise(z->base, ZAP_SIZE, MADV_POPULATE_WRITE))
		ksft_exit_fail_msg("MADV_POPULATE_WRITE: %s\n", strerror(errno));
	if (pthread_create(&z->thread, NULL, zapper, z))
		ksft_exit_fail_msg("cannot start a thread\n");
}

static void zap_end(struct zap *z)
{
	pthread_join(z->thread, NULL);
	munmap(z->base, ZAP_SIZE);
}

/* How many folios of @base are touched while the zap goes on; @now is what was restored by then. */
static size_t touch_in_zap(struct zap *z, const char *base, struct restored *now)
{
	struct restored seen;
	size_t n = 0;

	__atomic_store_n(&z->go, true, __ATOMIC_RELEASE);
	while (tlb_rs_pfn(z->base))
		;
	while (n < NR_FOLIOS && tlb_rs_pfn(z->base + ZAP_SIZE - psize)) {
		touch(base + n * folio_size);
		restored_begin(&seen);
		/* What is touched after the flush may be restored as a block. */
		if (!tlb_rs_pfn(z->base + ZAP_SIZE - psize))
			break;
		*now = seen;
		n++;
	}
	return n;
}

/* Other accesses, as by the kernel, may have made some folios accessible before. */
static bool in_time(size_t touched, long long faults)
{
	return touched && faults > (long long)touched / 2;
}

/* The scan that made them inaccessible may be the one who has not flushed yet. */
int test_hint_pending(void)
{
	const char *why = cannot_scan();
	const size_t len = nr_pages() * psize;
	long long faults = 0, blocks = 0;
	size_t touched = 0;
	char *base;
	int i;

	if (why)
		return skipped(why);
	base = make_local_folios();
	for (i = 0; i < ATTEMPTS && !in_time(touched, faults); i++) {
		struct restored before, now;
		struct zap z;
		bool scanned;

		zap_start(&z);
		scanned = tlb_rs_numa_scan(nr_pages());
		faults = tlb_rs_vmstat_read("numa_hint_faults");
		restored_begin(&before);
		now = before;
		touched = scanned ? touch_in_zap(&z, base, &now) : 0;
		faults = tlb_rs_vmstat_read("numa_hint_faults") - faults;
		blocks += touched ? now.pages - before.pages : 0;
		__atomic_store_n(&z.go, true, __ATOMIC_RELEASE);
		zap_end(&z);
		/* What is still inaccessible would not be counted by the next scan. */
		for (size_t f = 0; f < NR_FOLIOS; f++)
			touch(base + f * folio_size);
	}
	if (blocks)
		ksft_print_msg("%lld pages became accessible in blocks before a flush\n", blocks);
	if (!content_is("read", base, len, SEED))
		blocks++;
	munmap(base, len);
	if (!in_time(touched, faults))
		return skipped("no fault came in time");
	return blocks ? KSFT_FAIL : KSFT_PASS;
}
