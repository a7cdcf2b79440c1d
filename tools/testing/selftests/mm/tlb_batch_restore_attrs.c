// SPDX-License-Identifier: GPL-2.0
/* Folios whose pages differ in what their entries say: it is the same after a move. */
#include "tlb_batch_restore.h"

#define NR_FOLIOS	8
#define MARKS		(PM_PRESENT | PM_SOFT_DIRTY | PM_UFFD)

static size_t nr_pages(void)
{
	return NR_FOLIOS * folio_pages;
}

static __u64 *marks_of(const char *base)
{
	__u64 *marks = calloc(nr_pages(), sizeof(*marks));
	size_t i;

	if (!marks)
		ksft_exit_fail_msg("no memory\n");
	for (i = 0; i < nr_pages(); i++)
		marks[i] = tlb_rs_pagemap(base + i * psize) & MARKS;
	return marks;
}

static bool marks_are(const char *base, const __u64 *marks)
{
	size_t i, n = 0;

	for (i = 0; i < nr_pages(); i++)
		n += (tlb_rs_pagemap(base + i * psize) & MARKS) != marks[i];
	if (n)
		ksft_print_msg("the marks of %zu pages have changed\n", n);
	return !n;
}

/*
 * Moves folios. @kind says which pages of a folio are alike; the marks of all pages stay as they
 * were. Once only: a folio that was unmapped in more than one run is taken for partially mapped,
 * and the next move splits it.
 */
static bool moves_and_keeps(char *base, const unsigned char *kind)
{
	__u64 *marks = marks_of(base);
	struct restored before, want = { };
	bool ok;

	expect_runs(kind, &want);
	restored_begin(&before);
	ok = all_move(base, NR_FOLIOS, 1) &&
	     restored_is(&before, NR_FOLIOS * want.pages, NR_FOLIOS * want.runs) &&
	     all_whole(base, NR_FOLIOS);
	ok = marks_are(base, marks) && ok;
	free(marks);
	return ok;
}

/* Minor faults of a write to each page that leaves it as it is. */
static long faults_of_writes(char *base)
{
	struct rusage before, after;
	size_t i;

	getrusage(RUSAGE_THREAD, &before);
	for (i = 0; i < nr_pages(); i++)
		__atomic_fetch_or(base + i * psize, 0, __ATOMIC_RELAXED);
	getrusage(RUSAGE_THREAD, &after);
	return after.ru_minflt - before.ru_minflt;
}

/* uffd-wp on some pages, which nothing else keeps from being written. */
static struct {
	int fd;
	char *base;
	size_t faults;
	size_t wrong;
} wp;

static bool is_wp(size_t page)
{
	return page % folio_pages % 5 >= 3;
}

static bool set_wp(void *addr, bool on)
{
	struct uffdio_writeprotect arg = {
		.range = { .start = (unsigned long)addr, .len = psize },
		.mode = on ? UFFDIO_WRITEPROTECT_MODE_WP : 0,
	};

	return !ioctl(wp.fd, UFFDIO_WRITEPROTECT, &arg);
}

/* Lets each write go on, until one to the page behind the folios. */
static void *wp_thread(void *arg)
{
	struct uffd_msg msg;
	size_t page;

	while (read(wp.fd, &msg, sizeof(msg)) == sizeof(msg)) {
		page = (msg.arg.pagefault.address - (unsigned long)wp.base) / psize;
		if (!set_wp(wp.base + page * psize, false))
			break;
		if (page == nr_pages())
			return arg;
		wp.faults++;
		wp.wrong += msg.event != UFFD_EVENT_PAGEFAULT || !is_wp(page) ||
			    !(msg.arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WP);
	}
	ksft_exit_fail_msg("no fault can be resolved: %s\n", strerror(errno));
}

static bool writes_are_noticed(size_t want)
{
	pthread_t thread;

	wp.faults = 0;
	wp.wrong = 0;
	if (pthread_create(&thread, NULL, wp_thread, NULL))
		ksft_exit_fail_msg("cannot start a thread\n");
	faults_of_writes(wp.base);
	__atomic_fetch_or(wp.base + nr_pages() * psize, 0, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	if (wp.faults == want && !wp.wrong)
		return true;
	ksft_print_msg("%zu writes were noticed, not %zu, %zu of them to other pages\n",
		       wp.faults, want, wp.wrong);
	return false;
}

int test_attrs(void)
{
	const size_t len = nr_pages() * psize;
	unsigned char kind[folio_pages];
	size_t i, n = 0;
	bool ok;

	wp.fd = uffd_open(UFFD_FEATURE_PAGEFAULT_FLAG_WP);
	if (wp.fd < 0)
		return skipped("no uffd-wp");
	/* The last of these is not moved. */
	wp.base = make_folios(NR_FOLIOS + 1);
	if (!uffd_register(wp.fd, wp.base, len + folio_size, UFFDIO_REGISTER_MODE_WP))
		ksft_exit_fail_msg("UFFDIO_REGISTER: %s\n", strerror(errno));
	for (i = 0; i <= nr_pages(); i++) {
		if (!is_wp(i) && i != nr_pages())
			continue;
		n += i != nr_pages();
		if (!set_wp(wp.base + i * psize, true))
			ksft_exit_fail_msg("UFFDIO_WRITEPROTECT: %s\n", strerror(errno));
	}
	for (i = 0; i < folio_pages; i++)
		kind[i] = 1 + is_wp(i);
	ok = moves_and_keeps(wp.base, kind);
	ok = writes_are_noticed(n) && ok;
	ok &= content_is("moved", wp.base, len, SEED);
	close(wp.fd);
	munmap(wp.base, len + folio_size);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

static char *shared_base;

static bool is_shared(size_t page)
{
	return page % folio_pages % 4 >= 2;
}

/* The child has only the shared pages. */
static bool answer_shared(char what)
{
	bool ok = true;
	size_t i;

	for (i = 0; i < nr_pages(); i++) {
		if (!is_shared(i))
			continue;
		if (what == 'w')
			write_page(shared_base, i, SEED + 2);
		ok &= page_is(shared_base, i, what == 'w' ? SEED + 2 : SEED);
	}
	return ok;
}

/* Pairs of pages are shared with a child, in turn with pairs that are not. */
int test_shared(void)
{
	unsigned char kind[folio_pages];
	struct restored before, want = { };
	const size_t len = nr_pages() * psize;
	struct sharer child;
	bool ok = true;
	size_t i;

	shared_base = make_folios(NR_FOLIOS);
	for (i = 0; i < nr_pages(); i++) {
		if (!is_shared(i) && madvise(shared_base + i * psize, psize, MADV_DONTFORK))
			ksft_exit_fail_msg("MADV_DONTFORK: %s\n", strerror(errno));
	}
	sharer_start(&child, answer_shared);
	/* One VMA again. */
	if (madvise(shared_base, len, MADV_DOFORK))
		ksft_exit_fail_msg("MADV_DOFORK: %s\n", strerror(errno));
	for (i = 0; i < folio_pages; i++)
		kind[i] = 1 + is_shared(i);
	expect_runs(kind, &want);
	/* In the child each pair has a VMA of its own. */
	want.pages += folio_pages / 2;
	want.runs += folio_pages / 4;
	restored_begin(&before);
	ok = all_move(shared_base, NR_FOLIOS, 1) &&
	     restored_is(&before, NR_FOLIOS * want.pages, NR_FOLIOS * want.runs) &&
	     all_whole(shared_base, NR_FOLIOS) && content_is("the parent", shared_base, len, SEED);
	/* In turn each of both writes what the other one must not see. */
	tlb_rs_fill(shared_base, len, SEED + 1);
	if (!sharer_ask(&child, 'r')) {
		ksft_print_msg("the child reads what the parent has written\n");
		ok = false;
	}
	ok &= sharer_ask(&child, 'w');
	ok &= content_is("the parent, after the child's writes", shared_base, len, SEED + 1);
	sharer_end(&child);
	munmap(shared_base, len);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

int test_softdirty(void)
{
	const size_t len = nr_pages() * psize;
	unsigned char kind[folio_pages];
	size_t i, n = 0;
	char *base;
	bool ok;

	base = make_folios(NR_FOLIOS);
	if (tlb_rs_write_file("/proc/self/clear_refs", "4"))
		ksft_exit_fail_msg("/proc/self/clear_refs: %s\n", strerror(errno));
	for (i = 0; i < folio_pages; i++)
		kind[i] = 1 + (i % 4 >= 2);
	for (i = 0; i < nr_pages(); i++) {
		if (kind[i % folio_pages] == 2)
			__atomic_fetch_or(base + i * psize, 0, __ATOMIC_RELAXED);
	}
	for (i = 0; i < nr_pages(); i++) {
		n += !(tlb_rs_pagemap(base + i * psize) & PM_SOFT_DIRTY) !=
		     (kind[i % folio_pages] == 1);
	}
	if (n) {
		munmap(base, len);
		return skipped("no soft-dirty bits");
	}
	ok = moves_and_keeps(base, kind) && content_is("moved", base, len, SEED);
	munmap(base, len);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

/* Pages that were shared with a child, which is gone. Some of them were written since. */
int test_readonly(void)
{
	const size_t len = nr_pages() * psize;
	unsigned char kind[folio_pages];
	long faults, want = 0;
	int status;
	size_t i;
	char *base;
	pid_t pid;
	bool ok;

	base = make_folios(NR_FOLIOS);
	pid = fork();
	if (!pid)
		_exit(0);
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		ksft_exit_fail_msg("fork: %s\n", strerror(errno));
	for (i = 0; i < folio_pages; i++)
		kind[i] = 1 + (i % 7 < 3);
	for (i = 0; i < nr_pages(); i++) {
		if (kind[i % folio_pages] == 1)
			__atomic_fetch_or(base + i * psize, 0, __ATOMIC_RELAXED);
		else
			want++;
	}
	ok = all_whole(base, NR_FOLIOS) && moves_and_keeps(base, kind);
	faults = faults_of_writes(base);
	if (faults != want) {
		ksft_print_msg("%ld faults of writes to %ld read-only pages\n", faults, want);
		ok = false;
	}
	ok &= content_is("moved", base, len, SEED);
	munmap(base, len);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

/*
 * Whether a page that moves stays young. On arm64, with 4 KiB pages and physical addresses of 52
 * bits, set_ptes() takes the young bit of a migration entry for PTE_CONT, and clears it.
 */
static bool stays_young(void)
{
	char *page = tlb_rs_mmap(psize, psize);
	bool young;

	tlb_rs_bind_node(page, psize, 0);
	*page = 1;
	young = move_folios(page, 1, psize, 1) == 1 &&
		tlb_rs_smaps_kb(page, "Referenced") == (long)psize / 1024;
	munmap(page, psize);
	return young;
}

/*
 * Pages that are neither young nor dirty, but for some, which reclaim may not throw away. Only a
 * block has one young bit, and one dirty bit: elsewhere as many pages are young as before.
 */
int test_lazyfree(void)
{
	const bool has_young = stays_young();
	const size_t len = nr_pages() * psize;
	long young, later;
	bool ok, same;
	char *base;
	size_t i;

	base = make_folios(NR_FOLIOS);
	if (madvise(base, len, MADV_FREE))
		ksft_exit_fail_msg("MADV_FREE: %s\n", strerror(errno));
	tlb_rs_drain_pages();
	for (i = 0; i < nr_pages(); i++) {
		if (i % 6 == 1)
			write_page(base, i, SEED + 1);
		else if (i % 5 == 2)
			__atomic_load_n(base + i * psize, __ATOMIC_RELAXED);
	}
	young = tlb_rs_smaps_kb(base, "Referenced");
	ok = all_move(base, NR_FOLIOS, 1) && all_whole(base, NR_FOLIOS);
	later = tlb_rs_smaps_kb(base, "Referenced");
	same = HAS_BLOCKS ? later >= young : later == young;
	if (!has_young) {
		ksft_print_msg("no page stays young here when it moves\n");
	} else if (!same || young <= 0) {
		ksft_print_msg("%ld KiB were young, then %ld KiB\n", young, later);
		ok = false;
	}
	if (madvise(base, len, MADV_PAGEOUT))
		ksft_exit_fail_msg("MADV_PAGEOUT: %s\n", strerror(errno));
	for (i = 1; i < nr_pages(); i += 6) {
		if (!page_is(base, i, SEED + 1)) {
			ksft_print_msg("page %zu was written, and is lost\n", i);
			ok = false;
			break;
		}
	}
	munmap(base, len);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

/* What was written to pages of a file between two writebacks reaches the disk. */
int test_dirty(void)
{
	const size_t len = nr_pages() * psize;
	struct restored before, want = { };
	unsigned char kind[folio_pages];
	char path[64], *base, *buf;
	int fd, direct;
	size_t i;
	bool ok;

	base = map_file(NR_FOLIOS, PROT_READ | PROT_WRITE, &fd);
	if (!base)
		return KSFT_SKIP;
	for (i = 0; i < folio_pages; i++)
		kind[i] = 1 + (i % 6 >= 3);
	for (i = 0; i < nr_pages(); i++) {
		if (kind[i % folio_pages] == 2)
			write_page(base, i, SEED + 1);
	}
	expect_runs(kind, &want);
	restored_begin(&before);
	ok = all_move(base, NR_FOLIOS, 1) &&
	     restored_is(&before, NR_FOLIOS * want.pages, NR_FOLIOS * want.runs) &&
	     all_whole(base, NR_FOLIOS);
	if (fsync(fd))
		ksft_exit_fail_msg("fsync: %s\n", strerror(errno));
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	direct = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
	if (direct < 0)
		ksft_exit_fail_msg("O_DIRECT: %s\n", strerror(errno));
	buf = tlb_rs_mmap(len, pmd_size);
	if (pread(direct, buf, len, 0) != (ssize_t)len)
		ksft_exit_fail_msg("a direct read: %s\n", strerror(errno));
	for (i = 0; ok && i < nr_pages(); i++) {
		ok = page_is(buf, i, SEED + (kind[i % folio_pages] == 2)) &&
		     !memcmp(buf + i * psize, base + i * psize, psize);
		if (!ok)
			ksft_print_msg("page %zu is not on the disk\n", i);
	}
	close(direct);
	munmap(buf, len);
	munmap(base, len);
	close(fd);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

static long long mlocked_kb(void)
{
	tlb_rs_drain_pages();
	tlb_rs_write_file("/proc/sys/vm/stat_refresh", "1");
	return tlb_rs_meminfo_kb(MEMINFO, "Mlocked");
}

static bool mlocked_is(const char *when, long long kb, long long want)
{
	if (kb != want)
		ksft_print_msg("%s, %lld KiB are mlocked, not %lld\n", when, kb, want);
	return kb == want;
}

/* A folio that is mapped as a whole is counted as mlocked at once. */
int test_mlock(void)
{
	const long long before = mlocked_kb();
	const size_t len = nr_pages() * psize;
	unsigned char kind[folio_pages];
	bool ok;
	char *base;
	int on = 0;

	/* Page by page, the next reclaim counts it. */
	if (tlb_batch_get(&on) && !on)
		return skipped("vm.tlb_batch is 0");
	base = make_folios(NR_FOLIOS);
	if (mlock(base, len))
		ksft_exit_fail_msg("mlock: %s\n", strerror(errno));
	memset(kind, 1, sizeof(kind));
	ok = mlocked_is("at first", mlocked_kb() - before, len / 1024);
	ok = moves_and_keeps(base, kind) && ok;
	ok &= mlocked_is("moved", mlocked_kb() - before, len / 1024);
	ok &= mlocked_is("by smaps", tlb_rs_smaps_kb(base, "Locked"), len / 1024);
	if (munlock(base, len))
		ksft_exit_fail_msg("munlock: %s\n", strerror(errno));
	ok &= mlocked_is("unlocked", mlocked_kb() - before, 0);
	ok &= content_is("moved", base, len, SEED);
	munmap(base, len);
	return ok ? KSFT_PASS : KSFT_FAIL;
}
