// SPDX-License-Identifier: GPL-2.0
/* Folios that are mapped again as a whole, or in parts that are known: exact counts. */
#include "tlb_batch_restore.h"

#define SPLIT_FILE	DEBUGFS "split_huge_pages"
#define SPLIT_ORDER	4
#define PROCESSES	4
/* In all folios of a case. */
#define CASE_SIZE	(16UL << 20)
#define MAX_FOLIOS	256

static size_t nr_folios(void)
{
	size_t nr = CASE_SIZE / folio_size;

	return nr < MAX_FOLIOS ? nr : MAX_FOLIOS;
}

static size_t nr_thps(void)
{
	return CASE_SIZE / pmd_size;
}

/*
 * How often a folio moves and stays whole. With vm.tlb_batch=0, it is unmapped page by page, and
 * the next move splits what it takes for partially mapped.
 */
static int nr_moves(int most)
{
	int on = 0;

	return tlb_batch_get(&on) && on ? most : 1;
}

/*
 * To and fro, and a second time: what was mapped again is mapped as it was. Another CPU runs the
 * process: else x86_64 unmaps page by page, too.
 */
int test_counts64k(void)
{
	const int rounds = nr_moves(4);
	const size_t nr = nr_folios(), len = nr * folio_size;
	struct restored before;
	struct tlb_rs_readers r;
	bool ok = true;
	char *base;
	int round;

	base = make_folios(nr);
	tlb_rs_readers_start(&r, 1, false, base, len);
	for (round = 0; ok && round < rounds; round++) {
		restored_begin(&before);
		ok = all_move(base, nr, !(round & 1)) &&
		     restored_is(&before, nr * folio_pages, nr) && all_whole(base, nr) &&
		     content_is("moved", base, len, SEED);
	}
	tlb_rs_readers_end(&r);
	/* Writable as before. */
	tlb_rs_fill(base, len, SEED + 1);
	ok = ok && content_is("rewritten", base, len, SEED + 1);
	munmap(base, len);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

static bool thps_are_whole(const char *base, size_t nr)
{
	size_t i, n = 0;

	for (i = 0; i < nr; i++)
		n += tlb_rs_is_folio(base + i * pmd_size, pmd_size / psize);
	if (n != nr)
		ksft_print_msg("only %zu of %zu THPs are whole\n", n, nr);
	return n == nr;
}

/* A run ends with the page table. */
int test_counts2m(void)
{
	const int rounds = nr_moves(2);
	const size_t nr = nr_thps(), len = nr * pmd_size;
	struct restored before;
	struct tlb_rs_readers r;
	bool ok = true;
	size_t moved;
	char *base;
	int round;

	if (!nr || !tlb_rs_thp_available())
		return skipped("no THPs, or too large ones");
	base = make_thps(nr);
	tlb_rs_readers_start(&r, 1, false, base, len);
	for (round = 0; ok && round < rounds; round++) {
		restored_begin(&before);
		moved = move_folios(base, nr, pmd_size, !(round & 1));
		if (moved != nr)
			ksft_print_msg("only %zu of %zu THPs have moved\n", moved, nr);
		ok = moved == nr && restored_is(&before, len / psize, nr) &&
		     thps_are_whole(base, nr) && content_is("moved", base, len, SEED);
	}
	tlb_rs_readers_end(&r);
	munmap(base, len);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

/* A file that is mapped read-only. Its pages are not anonymous, and not dirty. */
int test_file(void)
{
	const size_t nr = nr_folios(), len = nr * folio_size;
	struct restored before;
	bool ok = true;
	int fd, round;
	char *base;

	base = map_file(nr, PROT_READ, &fd);
	if (!base)
		return KSFT_SKIP;
	for (round = 0; ok && round < 2; round++) {
		restored_begin(&before);
		ok = all_move(base, nr, !(round & 1)) &&
		     restored_is(&before, nr * folio_pages, nr) && all_whole(base, nr) &&
		     content_is("moved", base, len, SEED);
	}
	munmap(base, len);
	close(fd);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

/* vm.tlb_batch=0: page by page. */
int test_off(void)
{
	const size_t nr = nr_folios(), len = nr * folio_size;
	struct restored before;
	int on = 0;
	char *base;
	bool ok;

	if (!tlb_batch_get(&on) || (on && (!tlb_rs_patching_is_safe() || !tlb_batch_set(0))))
		return skipped("vm.tlb_batch cannot be changed here");
	base = make_folios(nr);
	restored_begin(&before);
	ok = all_move(base, nr, 1) && restored_is(&before, 0, 0) && all_whole(base, nr) &&
	     content_is("moved", base, len, SEED);
	munmap(base, len);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

/* What is mapped again after a split are large folios, too, if they are not of order 0. */
int test_order4(void)
{
	const size_t nr = nr_thps(), len = nr * pmd_size, pages = 1 << SPLIT_ORDER;
	struct restored before;
	size_t i, n = 0;
	char cmd[80];
	char *base;
	bool ok;
	int fd;

	fd = open(SPLIT_FILE, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || !nr || !tlb_rs_thp_available())
		return skipped("no split_huge_pages, no THPs, or too large ones");
	base = make_thps(nr);
	tlb_rs_drain_pages();
	restored_begin(&before);
	for (i = 0; i < nr; i++) {
		unsigned long addr = (unsigned long)base + i * pmd_size;
		int size = snprintf(cmd, sizeof(cmd), "%d,0x%lx,0x%lx,%d", getpid(), addr,
				    addr + psize, SPLIT_ORDER);

		if (write(fd, cmd, size) != size)
			ksft_exit_fail_msg("%s: %s\n", SPLIT_FILE, strerror(errno));
	}
	ok = restored_is(&before, len / psize, len / psize / pages);
	for (i = 0; i < len; i += pages * psize)
		n += tlb_rs_is_folio(base + i, pages);
	if (n != len / psize / pages)
		ksft_print_msg("only %zu folios of order %d\n", n, SPLIT_ORDER);
	ok = ok && n == len / psize / pages && content_is("split", base, len, SEED);
	tlb_rs_fill(base, len, SEED + 1);
	ok = ok && content_is("rewritten", base, len, SEED + 1);
	munmap(base, len);
	close(fd);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

static bool moves_as(const char *what, char *base, size_t pages, size_t runs)
{
	struct restored before;

	restored_begin(&before);
	if (all_move(base, 1, 1) && restored_is(&before, pages, runs))
		return true;
	ksft_print_msg("that was the folio %s\n", what);
	return false;
}

/* The VMA ends within the folio. */
static bool edge_of_vma(void)
{
	const size_t part = 5 * psize;
	char *base = make_folios(1);
	bool ok;

	if (mprotect(base, part, PROT_READ))
		ksft_exit_fail_msg("mprotect: %s\n", strerror(errno));
	ok = moves_as("of two VMAs", base, folio_pages, 2) && all_whole(base, 1) &&
	     content_is("two VMAs", base, folio_size, SEED);
	/* Each part is as writable as it was. */
	tlb_rs_fill(base + part, folio_size - part, SEED + 1);
	ok = ok && content_is("two VMAs, rewritten", base + part, folio_size - part, SEED + 1);
	munmap(base, folio_size);
	return ok;
}

/* The halves of the folio are far from each other. */
static bool edge_of_halves(void)
{
	const size_t half = folio_size / 2;
	char *base = make_folios(1), *away = tlb_rs_mmap(folio_size, pmd_size);
	bool ok;

	if (mremap(base + half, half, half, MREMAP_MAYMOVE | MREMAP_FIXED, away) != away)
		ksft_exit_fail_msg("mremap: %s\n", strerror(errno));
	ok = moves_as("in two halves", base, folio_pages, 2);
	if (mremap(away, half, half, MREMAP_MAYMOVE | MREMAP_FIXED, base + half) != base + half)
		ksft_exit_fail_msg("mremap: %s\n", strerror(errno));
	ok = ok && all_whole(base, 1) && content_is("two halves", base, folio_size, SEED);
	munmap(base, folio_size);
	munmap(away + half, half);
	return ok;
}

/* The folio lies across the boundary of two page tables. */
static bool edge_of_table(void)
{
	const size_t half = folio_size / 2;
	char *base = make_folios(1), *area = tlb_rs_mmap(2 * pmd_size, pmd_size);
	char *across = area + pmd_size - half;
	bool ok;

	if (mremap(base, folio_size, folio_size, MREMAP_MAYMOVE | MREMAP_FIXED, across) != across)
		ksft_exit_fail_msg("mremap: %s\n", strerror(errno));
	ok = moves_as("in two page tables", across, folio_pages, 2) && all_whole(across, 1) &&
	     content_is("two page tables", across, folio_size, SEED);
	tlb_rs_fill(across, folio_size, SEED + 1);
	ok = ok && content_is("two page tables, rewritten", across, folio_size, SEED + 1);
	munmap(area, 2 * pmd_size);
	return ok;
}

static char *in_all;

/* A question is the number of the process: it writes what no other does. */
static bool answer_in_all(char what)
{
	bool ok = !tlb_rs_check(in_all, folio_size, SEED);

	tlb_rs_fill(in_all, folio_size, SEED + what);
	return ok && !tlb_rs_check(in_all, folio_size, SEED + what);
}

/* Each of some processes maps the folio. */
static bool edge_of_mm(void)
{
	struct sharer child[PROCESSES - 1];
	bool ok;
	int i;

	in_all = make_folios(1);
	for (i = 0; i < PROCESSES - 1; i++)
		sharer_start(&child[i], answer_in_all);
	ok = moves_as("of all processes", in_all, PROCESSES * folio_pages, PROCESSES) &&
	     all_whole(in_all, 1);
	for (i = 0; i < PROCESSES - 1; i++) {
		if (!sharer_ask(&child[i], i + 1)) {
			ksft_print_msg("process %d reads something else\n", i);
			ok = false;
		}
		ok &= content_is("the parent", in_all, folio_size, SEED);
	}
	for (i = 0; i < PROCESSES - 1; i++)
		sharer_end(&child[i]);
	munmap(in_all, folio_size);
	return ok;
}

int test_edges(void)
{
	bool ok = edge_of_vma();

	ok &= edge_of_halves();
	ok &= edge_of_table();
	ok &= edge_of_mm();
	return ok ? KSFT_PASS : KSFT_FAIL;
}
