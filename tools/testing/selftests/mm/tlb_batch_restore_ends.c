// SPDX-License-Identifier: GPL-2.0
/* Where runs end, or are not allowed at all. */
#include "tlb_batch_restore.h"

#include <signal.h>

#ifndef MADV_HWPOISON
#define MADV_HWPOISON	100
#endif
#ifndef UFFDIO_RWPROTECT
#define UFFDIO_RWPROTECT	_IOWR(UFFDIO, 9, struct uffdio_rwprotect)
#define UFFDIO_REGISTER_MODE_RWP	8
#define UFFD_FEATURE_RWP	0x20000
#define UFFD_FEATURE_RWP_ASYNC	0x40000
#define UFFDIO_RWPROTECT_MODE_RWP	1

struct uffdio_rwprotect {
	struct uffdio_range range;
	__u64 mode;
};
#endif

#define MIGRC_ENABLE	"/proc/sys/vm/migrc_enable"
#define NR_FOLIOS	2
#define NR_PINNED	4
/* migrate_pages_sync(): NR_MAX_MIGRATE_ASYNC_RETRY and NR_MAX_MIGRATE_SYNC_RETRY. */
#define ASYNC_PASSES	3
#define SYNC_PASSES	7

static size_t nr_pages(void)
{
	return NR_FOLIOS * folio_pages;
}

/*
 * The parent drops some pages of folios that a child maps as a whole: else they would be taken
 * for partially mapped, and split. Old and clean, as what is not there: the young and dirty bits
 * of the others end no run.
 */
static char *dropped;

static bool is_dropped(size_t page)
{
	return page % folio_pages % 5 == 3;
}

static bool answer_dropped(char what)
{
	(void)what;
	return !tlb_rs_check(dropped, nr_pages() * psize, SEED);
}

static bool drop_pages(struct sharer *child)
{
	size_t i;

	dropped = make_folios(NR_FOLIOS);
	if (madvise(dropped, nr_pages() * psize, MADV_FREE))
		ksft_exit_fail_msg("MADV_FREE: %s\n", strerror(errno));
	sharer_start(child, answer_dropped);
	for (i = 0; i < nr_pages(); i++) {
		if (is_dropped(i) && madvise(dropped + i * psize, psize, MADV_DONTNEED))
			ksft_exit_fail_msg("MADV_DONTNEED: %s\n", strerror(errno));
	}
	return true;
}

/* The parent's runs end at a dropped page, those of the child do not. */
static bool move_dropped(void)
{
	struct restored before, want = { .pages = folio_pages, .runs = 1 };
	unsigned char kind[folio_pages];
	size_t i;

	for (i = 0; i < folio_pages; i++)
		kind[i] = !is_dropped(i);
	expect_runs(kind, &want);
	restored_begin(&before);
	return all_move(dropped, NR_FOLIOS, 1) &&
	       restored_is(&before, NR_FOLIOS * want.pages, NR_FOLIOS * want.runs);
}

static bool child_has_all(struct sharer *child)
{
	if (sharer_ask(child, 'r'))
		return true;
	ksft_print_msg("the child reads something else\n");
	return false;
}

static bool is_zero(const char *page)
{
	size_t i;

	for (i = 0; i < psize && !page[i]; i++)
		;
	return i == psize;
}

int test_zapped(void)
{
	size_t i, back = 0, there = 0;
	struct sharer child;
	bool ok;

	if (!drop_pages(&child))
		return KSFT_FAIL;
	ok = move_dropped();
	for (i = 0; i < nr_pages(); i++) {
		if (!is_dropped(i)) {
			ok &= page_is(dropped, i, SEED);
			continue;
		}
		there += !!tlb_rs_pfn(dropped + i * psize);
		back += !is_zero(dropped + i * psize);
	}
	if (there || back) {
		ksft_print_msg("%zu dropped pages are mapped again, %zu have their content\n",
			       there, back);
		ok = false;
	}
	ok &= child_has_all(&child);
	sharer_end(&child);
	munmap(dropped, nr_pages() * psize);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

static bool make_inaccessible(int fd, char *page)
{
	struct uffdio_rwprotect arg = {
		.range = { .start = (unsigned long)page, .len = psize },
		.mode = UFFDIO_RWPROTECT_MODE_RWP,
	};

	return !ioctl(fd, UFFDIO_RWPROTECT, &arg);
}

/* New pages in place of those that were dropped. Every other one of them is PROT_NONE. */
int test_prot_none(void)
{
	const size_t len = nr_pages() * psize;
	size_t i, n = 0, moved = 0, noticed = 0, wrong = 0;
	struct sharer child;
	__u64 *pfn;
	bool ok;
	int fd;

	fd = uffd_open(UFFD_FEATURE_RWP | UFFD_FEATURE_RWP_ASYNC);
	if (fd < 0)
		return skipped("userfaultfd cannot protect from reads");
	if (!drop_pages(&child))
		return KSFT_FAIL;
	pfn = calloc(nr_pages(), sizeof(*pfn));
	if (!pfn || !uffd_register(fd, dropped, len, UFFDIO_REGISTER_MODE_RWP))
		ksft_exit_fail_msg("UFFDIO_REGISTER: %s\n", strerror(errno));
	for (i = 0; i < nr_pages(); i++) {
		if (!is_dropped(i))
			continue;
		write_page(dropped, i, SEED + 1);
		pfn[i] = tlb_rs_pfn(dropped + i * psize);
		if (n++ & 1 && !make_inaccessible(fd, dropped + i * psize))
			ksft_exit_fail_msg("UFFDIO_RWPROTECT: %s\n", strerror(errno));
	}
	ok = move_dropped();
	for (i = 0, n = 0; i < nr_pages(); i++) {
		const char *page = dropped + i * psize;

		if (!is_dropped(i)) {
			wrong += !page_is(dropped, i, SEED);
			continue;
		}
		moved += tlb_rs_pfn(page) != pfn[i];
		/* The access takes the mark away, if the kernel notices it. */
		noticed += !!(tlb_rs_pagemap(page) & PM_UFFD);
		wrong += !page_is(dropped, i, SEED + 1);
		wrong += !!(tlb_rs_pagemap(page) & PM_UFFD);
		n++;
	}
	if (moved || noticed != n / 2 || wrong) {
		ksft_print_msg("%zu new pages are elsewhere, %zu of %zu PROT_NONE, %zu wrong\n",
			       moved, noticed, n / 2, wrong);
		ok = false;
	}
	ok &= child_has_all(&child);
	sharer_end(&child);
	close(fd);
	free(pfn);
	munmap(dropped, len);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

/*
 * One half of each folio is shared with a child, the other one is the parent's alone. Nobody may
 * write to the memory, so that all entries are alike.
 */
static char *halves;
static bool second_is_shared;

static bool is_shared(size_t page)
{
	return (page % folio_pages >= folio_pages / 2) == second_is_shared;
}

static bool answer_halves(char what)
{
	size_t i;

	(void)what;
	for (i = 0; i < nr_pages(); i++) {
		if (is_shared(i) && !page_is(halves, i, SEED))
			return false;
	}
	return true;
}

/* As a debugger does: the entry stays read-only, and the page is copied if it is shared. */
static void force_write(int mem, size_t page, __u64 seed)
{
	const size_t words = psize / sizeof(__u64);
	__u64 buf[words];
	size_t i;

	for (i = 0; i < words; i++)
		buf[i] = tlb_rs_word(seed, page * words + i);
	if (pwrite(mem, buf, psize, (unsigned long)halves + page * psize) != (ssize_t)psize)
		ksft_exit_fail_msg("/proc/self/mem: %s\n", strerror(errno));
}

static bool keeps_exclusive(bool second)
{
	const size_t half = folio_size / 2, len = nr_pages() * psize;
	size_t i, copied = 0, kept = 0;
	struct restored before;
	struct sharer child;
	bool ok;
	int mem;

	second_is_shared = second;
	halves = make_folios(NR_FOLIOS);
	for (i = 0; i < NR_FOLIOS; i++) {
		if (madvise(halves + i * folio_size + !second * half, half, MADV_DONTFORK))
			ksft_exit_fail_msg("MADV_DONTFORK: %s\n", strerror(errno));
	}
	sharer_start(&child, answer_halves);
	if (madvise(halves, len, MADV_DOFORK) || mprotect(halves, len, PROT_READ))
		ksft_exit_fail_msg("MADV_DOFORK, mprotect: %s\n", strerror(errno));
	restored_begin(&before);
	/* All of it is one run in the parent, and half of it in the child. */
	ok = all_move(halves, NR_FOLIOS, 1) &&
	     restored_is(&before, nr_pages() * 3 / 2, NR_FOLIOS * 2) &&
	     all_whole(halves, NR_FOLIOS) && content_is("moved", halves, len, SEED);

	mem = tlb_rs_open("/proc/self/mem", O_RDWR);
	for (i = 0; i < nr_pages(); i++) {
		__u64 pfn = tlb_rs_pfn(halves + i * psize);

		force_write(mem, i, SEED + 1);
		if (is_shared(i))
			kept += tlb_rs_pfn(halves + i * psize) == pfn;
		else
			copied += tlb_rs_pfn(halves + i * psize) != pfn;
	}
	close(mem);
	if (kept || copied) {
		ksft_print_msg("%zu shared pages were not copied, %zu others were\n", kept, copied);
		ok = false;
	}
	ok &= content_is("written", halves, len, SEED + 1);
	if (!sharer_ask(&child, 'r')) {
		ksft_print_msg("the child reads what the parent has written\n");
		ok = false;
	}
	sharer_end(&child);
	munmap(halves, len);
	return ok;
}

int test_exclusive(void)
{
	bool ok = keeps_exclusive(false);

	ok &= keeps_exclusive(true);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

/*
 * A pin that is met in the middle of each folio: its first half is not exclusive, and nothing is
 * asked of those pages. They are unmapped, and mapped again, in each attempt to move the folio.
 */
static char *make_half_exclusive(size_t nr)
{
	const size_t len = nr * folio_size;
	char *base = make_folios(nr);
	int status;
	size_t off;
	pid_t pid;

	if (!base)
		return NULL;
	pid = fork();
	if (!pid)
		_exit(0);
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		ksft_exit_fail_msg("fork: %s\n", strerror(errno));
	for (off = 0; off < len; off += psize) {
		if (off % folio_size >= folio_size / 2)
			__atomic_fetch_or(base + off, 0, __ATOMIC_RELAXED);
	}
	if (mprotect(base, len, PROT_READ))
		ksft_exit_fail_msg("mprotect: %s\n", strerror(errno));
	if (all_whole(base, nr))
		return base;
	munmap(base, len);
	return NULL;
}

/*
 * An undo before the flush is page by page where there are blocks. What is left is that of the
 * synchronous attempts, which flush each page at once.
 */
int test_undo(void)
{
	const size_t passes = SYNC_PASSES + (HAS_BLOCKS ? 0 : ASYNC_PASSES);
	const size_t len = NR_PINNED * folio_size;
	struct pin pins[NR_PINNED];
	struct restored before;
	size_t i, moved;
	char *base;
	bool ok;

	base = make_half_exclusive(NR_PINNED);
	if (!base)
		return KSFT_FAIL;
	for (i = 0; i < NR_PINNED; i++) {
		if (!pin_pages(&pins[i], base + i * folio_size + folio_size / 2, psize))
			return skipped("no userfaultfd");
	}
	tlb_rs_drain_pages();
	restored_begin(&before);
	moved = move_folios(base, NR_PINNED, folio_size, 1);
	ok = restored_is(&before, passes * NR_PINNED * folio_pages / 2, passes * NR_PINNED);
	if (moved) {
		ksft_print_msg("%zu folios have moved although they are pinned\n", moved);
		ok = false;
	}
	ok &= all_whole(base, NR_PINNED) && content_is("pinned", base, len, SEED);
	for (i = 0; i < NR_PINNED; i++)
		ok &= unpin_pages(&pins[i]);
	if (mprotect(base, len, PROT_READ | PROT_WRITE))
		ksft_exit_fail_msg("mprotect: %s\n", strerror(errno));
	tlb_rs_fill(base, len, SEED + 1);
	ok &= content_is("rewritten", base, len, SEED + 1);
	munmap(base, len);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

static void ignore(int nr)
{
	(void)nr;
}

static bool kills(const char *page)
{
	pid_t pid = fork();
	int status;

	if (!pid) {
		signal(SIGBUS, SIG_DFL);
		__atomic_load_n(page, __ATOMIC_RELAXED);
		_exit(0);
	}
	return pid > 0 && waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) &&
	       WTERMSIG(status) == SIGBUS;
}

/* A pin keeps the folio from being split when one of its pages is poisoned. */
int test_poison(void)
{
	const size_t bad = 5;
	struct restored before;
	struct pin pin;
	size_t i, n = 0;
	char *base;
	bool ok;

	base = make_folios(1);
	if (!pin_pages(&pin, base, psize))
		return skipped("no userfaultfd");
	/* The kernel sends it when the split fails, and does not let it be ignored. */
	signal(SIGBUS, ignore);
	if (madvise(base + bad * psize, psize, MADV_HWPOISON) && errno == EINVAL)
		return skipped("no MADV_HWPOISON");
	ok = unpin_pages(&pin) && all_whole(base, 1);
	restored_begin(&before);
	/* Its entry then says that it is poisoned. */
	ok = ok && all_move(base, 1, 1) && restored_is(&before, folio_pages - 1, 2);
	for (i = 0; i < folio_pages; i++)
		n += i != bad && page_is(base, i, SEED);
	if (n != folio_pages - 1 || !kills(base + bad * psize)) {
		ksft_print_msg("%zu of %zu pages are right, or the poisoned one can be read\n", n,
			       folio_pages - 1);
		ok = false;
	}
	munmap(base, folio_size);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

/* What was deferred is mapped again in runs, too. The addresses are no block, on any machine. */
int test_deferred(void)
{
	const size_t len = nr_pages() * psize;
	struct restored before;
	struct tlb_rs_readers r;
	char *base, *area, *odd;
	long long deferred;
	bool ok;

	if (access(MIGRC_ENABLE, W_OK) || !tlb_rs_setting(MIGRC_ENABLE, "1"))
		return skipped("no migrc");
	base = make_folios(NR_FOLIOS);
	area = tlb_rs_mmap(len + psize, pmd_size);
	odd = area + psize;
	if (mremap(base, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, odd) != odd ||
	    mprotect(odd, len, PROT_READ))
		ksft_exit_fail_msg("mremap, mprotect: %s\n", strerror(errno));
	/* Nothing has to be deferred if no other CPU runs the process. */
	tlb_rs_readers_start(&r, 1, false, odd, len);
	deferred = tlb_rs_vmstat_read("migrc_deferred");
	restored_begin(&before);
	ok = all_move(odd, NR_FOLIOS, 1);
	deferred = tlb_rs_vmstat_read("migrc_deferred") - deferred;
	ok &= restored_is(&before, len / psize, NR_FOLIOS);
	if (deferred != (long long)nr_pages()) {
		ksft_print_msg("%lld of %zu pages were deferred\n", deferred, nr_pages());
		ok = false;
	}
	tlb_rs_readers_end(&r);
	ok &= content_is("moved", odd, len, SEED);
	tlb_rs_restore(MIGRC_ENABLE);
	munmap(area, len + psize);
	return ok ? KSFT_PASS : KSFT_FAIL;
}
