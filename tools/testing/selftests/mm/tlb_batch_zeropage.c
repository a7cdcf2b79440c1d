// SPDX-License-Identifier: GPL-2.0
/*
 * Zero-filled pages of a THP that is split: what is mapped there afterwards.
 *
 * A split maps the shared zero page instead, unless something stands against it. That is
 * decided page by page, when the migration entries are replaced, so clearing and flushing
 * them together must not change it: each case is done with vm.tlb_batch at 1, at 0 and, where
 * that can be written (CONFIG_TLB_RS_BENCH), at -1. What each page becomes has to be what the
 * stock kernel makes of it, which the table says, and contents have to stay.
 *
 * whole     a THP that is mapped by a PMD
 * pieces    one that is mapped by PTEs
 * locked    in an area that is locked: no zero page
 * tags      in PROT_MTE memory: no zero page, and tags stay, those of zero-filled pages, too
 * ksm       KSM splits it to merge other pages of it, with use_zero_pages off
 * ksm_zero  the same with use_zero_pages on
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/prctl.h>

#include "tlb_rs_harness.h"

#define NO_THP		"no THPs of 2 MiB"
#define SPLIT_FILE	DEBUGFS "split_huge_pages"
#define KSM_SYSFS	"/sys/kernel/mm/ksm/"
#define SEED		5

#define KPF_KSM		21
#define KPF_ZERO_PAGE	24

#define MTE		0x20	/* PROT_MTE of arm64 */
#define TAG_SHIFT	56
#define TAG		5UL
#define GRANULE		16

#ifndef MADV_MERGEABLE
#define MADV_MERGEABLE	12
#endif

static size_t psize;
static char *base;

/* What pages hold: */
enum content {
	UNIQUE,
	ZERO,
	NEARLY,		/* zero but for the last byte */
	ALIKE,		/* as others of this kind */
};

static enum content content(size_t i)
{
	if (!i || i == THP_PAGES - 1 || i % 8 == 3 || (i >= 64 && i < 128))
		return ZERO;
	return i % 8 == 5 ? NEARLY : i % 8 == 1 ? ALIKE : UNIQUE;
}

static void fill_page(char *page, size_t i)
{
	memset(page, 0, psize);
	if (content(i) == NEARLY)
		page[psize - 1] = i / 8 + 1;
	else if (content(i) != ZERO)
		tlb_rs_fill(page, psize, content(i) == ALIKE ? SEED : SEED + 1 + i);
}

static size_t wrong_pages(void)
{
	char *want = malloc(psize);
	size_t i, n = 0;

	for (i = 0; i < THP_PAGES; i++) {
		fill_page(want, i);
		n += !!memcmp(want, base + i * psize, psize);
	}
	free(want);
	return n;
}

/* What became of them: the same frame, the zero page, one of KSM's, or something else. */
static char outcome(size_t i, __u64 first)
{
	__u64 pfn = tlb_rs_pfn(base + i * psize), flags = tlb_rs_kpageflags(pfn);

	if (flags & (1ULL << KPF_ZERO_PAGE))
		return 'Z';
	if (flags & (1ULL << KPF_KSM))
		return 'K';
	return pfn == first + i ? 'S' : '?';
}

/* --- tags --------------------------------------------------------------------------- */

static sigjmp_buf fault;

static void jump(int sig)
{
	(void)sig;
	siglongjmp(fault, 1);
}

#ifdef __aarch64__
/* Whether a wrong tag faults, at once. */
static bool check_tags(bool check)
{
	return !prctl(55 /* PR_SET_TAGGED_ADDR_CTRL */, 1 | check << 1 | 0xfffe << 3, 0, 0, 0);
}

static bool may_tag(void)
{
	return getauxval(AT_HWCAP2) & 1 << 18 /* HWCAP2_MTE */ && check_tags(false);
}

static bool has_tag(size_t i)
{
	return i % 2;
}

static void set_tags(void)
{
	size_t off;

	for (off = 0; off < SZ_2M; off += GRANULE) {
		register unsigned long addr asm("x1") =
			(unsigned long)(base + off) | TAG << TAG_SHIFT;

		/* stg x1, [x1] */
		if (has_tag(off / psize))
			asm volatile(".inst 0xd9200821" : : "r"(addr) : "memory");
	}
}

/* Reads parts of each page by the tag that it was given. */
static size_t wrong_tags(void)
{
	/* Neither is lost with a register. */
	static size_t n, off;

	n = 0;
	check_tags(true);
	for (off = 0; off < SZ_2M; off += psize / 4) {
		unsigned long tag = has_tag(off / psize) ? TAG : 0;

		if (sigsetjmp(fault, 0))
			n++;
		else
			__atomic_load_n((char *)((unsigned long)(base + off) | tag << TAG_SHIFT),
					__ATOMIC_RELAXED);
	}
	check_tags(false);
	return n;
}
#else
static bool may_tag(void)
{
	return false;
}

static void set_tags(void)
{
}

static size_t wrong_tags(void)
{
	return 0;
}
#endif

/* --- splits ------------------------------------------------------------------------- */

static bool split(void)
{
	char cmd[80];
	int i;

	snprintf(cmd, sizeof(cmd), "%d,0x%lx,0x%lx", getpid(), (unsigned long)base,
		 (unsigned long)base + psize);
	for (i = 0; i < 20 && tlb_rs_is_large(base + 5 * psize); i++) {
		if (tlb_rs_write_file(SPLIT_FILE, cmd))
			return false;
		/* Somebody else may have had it. */
		tlb_rs_sleep_us(1000);
	}
	return true;
}

static bool pieces(void)
{
	return !mprotect(base + psize, psize, PROT_READ) &&
	       !mprotect(base + psize, psize, PROT_READ | PROT_WRITE) && split();
}

static bool locked(void)
{
	return !mlock(base, SZ_2M) && split();
}

static bool tags(void)
{
	set_tags();
	return split();
}

static long ksm_read(const char *name)
{
	char path[96], buf[32];

	snprintf(path, sizeof(path), KSM_SYSFS "%s", name);
	return tlb_rs_read_file(path, buf, sizeof(buf)) ? -1 : atol(buf);
}

/* Pages have to be alike in two scans before they are merged in a third. */
static bool merge(const char *use_zero_pages)
{
	__u64 end = tlb_rs_now_ns() + 60000000000ULL;
	long scans = ksm_read("full_scans");

	if (scans < 0 || !tlb_rs_setting(KSM_SYSFS "use_zero_pages", use_zero_pages) ||
	    !tlb_rs_setting(KSM_SYSFS "pages_to_scan", "2048") ||
	    !tlb_rs_setting(KSM_SYSFS "sleep_millisecs", "1") ||
	    madvise(base, SZ_2M, MADV_MERGEABLE) || !tlb_rs_setting(KSM_SYSFS "run", "1"))
		return false;
	while (ksm_read("full_scans") < scans + 5 && tlb_rs_now_ns() < end)
		tlb_rs_sleep_us(1000);
	tlb_rs_write_file(KSM_SYSFS "run", "0");
	return true;
}

static bool ksm(void)
{
	return merge("0");
}

static bool ksm_zero(void)
{
	return merge("1");
}

/* --- cases -------------------------------------------------------------------------- */

struct zero_case {
	const char *name;
	bool (*split)(void);
	const char *becomes;	/* on a stock kernel: UNIQUE, ZERO, NEARLY, ALIKE pages */
	const char *file;	/* has to be there */
	int prot;
};

static int run_once(const struct zero_case *c)
{
	size_t i, wrong, tags_wrong, bad = 0, zero = 0, merged = 0, same = 0;
	int ret = KSFT_PASS;
	__u64 first;

	base = tlb_rs_mmap(SZ_2M, SZ_2M);
	if (mprotect(base, SZ_2M, PROT_READ | PROT_WRITE | c->prot) ||
	    madvise(base, SZ_2M, MADV_HUGEPAGE))
		ksft_exit_fail_msg("cannot prepare memory: %s\n", strerror(errno));
	for (i = 0; i < THP_PAGES; i++)
		fill_page(base + i * psize, i);
	if (!tlb_rs_is_folio(base, THP_PAGES)) {
		ksft_print_msg("no THP\n");
		munmap(base, SZ_2M);
		return KSFT_SKIP;
	}
	first = tlb_rs_pfn(base);
	if (!c->split()) {
		ksft_print_msg("cannot split: %s\n", strerror(errno));
		ret = KSFT_FAIL;
	}

	for (i = 0; i < THP_PAGES; i++) {
		char is = outcome(i, first), want = c->becomes[content(i)];

		zero += is == 'Z';
		merged += is == 'K';
		same += is == 'S';
		if (is != want && bad++ < 5)
			ksft_print_msg("%s: page %zu is '%c', not '%c'\n", c->name, i, is, want);
	}
	tags_wrong = c->prot ? wrong_tags() : 0;
	wrong = wrong_pages();
	printf("{\"test\":\"zeropage\",\"case\":\"%s\",\"tlb_batch\":%s,\"large\":%d,", c->name,
	       tlb_batch_json(), tlb_rs_is_large(base + 5 * psize));
	printf("\"zero\":%zu,\"merged\":%zu,\"same\":%zu,\"other\":%zu,\"bad\":%zu,", zero, merged,
	       same, THP_PAGES - zero - merged - same, bad);
	printf("\"wrong\":%zu,\"wrong_tags\":%zu}\n", wrong, tags_wrong);
	if (bad || wrong || tags_wrong || tlb_rs_is_large(base + 5 * psize))
		ret = KSFT_FAIL;

	/* All can be written to, whatever was there. */
	tlb_rs_fill(base, SZ_2M, SEED);
	if (tlb_rs_check(base, SZ_2M, SEED))
		ret = KSFT_FAIL;
	munmap(base, SZ_2M);
	return ret;
}

static int run_modes(const struct zero_case *c)
{
	static const int modes[] = { 1, 0, -1 };
	int on, ret = KSFT_PASS;
	size_t i;

	if (!tlb_batch_get(&on))
		return run_once(c);
	for (i = 0; i < ARRAY_SIZE(modes) && ret == KSFT_PASS; i++) {
		tlb_batch_get(&on);
		/* Some have no -1. */
		if (modes[i] == on || (tlb_rs_patching_is_safe() && tlb_batch_set(modes[i])))
			ret = run_once(c);
	}
	return ret;
}

FIXTURE(tlb_batch_zeropage) {
};

FIXTURE_VARIANT(tlb_batch_zeropage) {
	struct zero_case c;
};

FIXTURE_VARIANT_ADD(tlb_batch_zeropage, whole) {
	.c = { "whole", split, "SZSS", SPLIT_FILE, 0 },
};

FIXTURE_VARIANT_ADD(tlb_batch_zeropage, pieces) {
	.c = { "pieces", pieces, "SZSS", SPLIT_FILE, 0 },
};

FIXTURE_VARIANT_ADD(tlb_batch_zeropage, locked) {
	.c = { "locked", locked, "SSSS", SPLIT_FILE, 0 },
};

FIXTURE_VARIANT_ADD(tlb_batch_zeropage, tags) {
	.c = { "tags", tags, "SSSS", SPLIT_FILE, MTE },
};

FIXTURE_VARIANT_ADD(tlb_batch_zeropage, ksm) {
	.c = { "ksm", ksm, "SZSK", KSM_SYSFS "run", 0 },
};

FIXTURE_VARIANT_ADD(tlb_batch_zeropage, ksm_zero) {
	.c = { "ksm_zero", ksm_zero, "SZSK", KSM_SYSFS "use_zero_pages", 0 },
};

FIXTURE_SETUP(tlb_batch_zeropage)
{
	struct sigaction action = { .sa_handler = jump, .sa_flags = SA_NODEFER };

	tlb_rs_undo();
	if (access(variant->c.file, W_OK))
		SKIP(return, "%s is absent", variant->c.file);
	if (variant->c.prot && !may_tag())
		SKIP(return, "no memory tags");
	if (!tlb_rs_thp_available())
		SKIP(return, NO_THP);
	tlb_rs_setting(THP_SYSFS "hugepages-2048kB/enabled", "inherit");
	sigaction(SIGSEGV, &action, NULL);
	tlb_rs_quiet();
	tlb_rs_pin_cpu(0);
}

FIXTURE_TEARDOWN_PARENT(tlb_batch_zeropage)
{
	tlb_rs_tear_down();
}

TEST_F_TIMEOUT(tlb_batch_zeropage, split, TLB_RS_TIMEOUT_S)
{
	int ret = run_modes(&variant->c);

	if (ret == KSFT_SKIP)
		SKIP(return, "no THP");
	EXPECT_EQ(KSFT_PASS, ret);
}

int main(int argc, char **argv)
{
	psize = getpagesize();
	tlb_rs_skip_all(psize != 4096 || access(THP_SYSFS "enabled", R_OK) ? NO_THP : NULL);
	return test_harness_run(argc, argv);
}
