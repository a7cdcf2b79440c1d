// SPDX-License-Identifier: GPL-2.0
/* Cases in which reclaim keeps folios, which may then be mapped again: dirty, kept, long. */
#include "tlb_batch_putback.h"

/* A file of @size on ext4, written by @step and dirty, or -1. */
static int write_file(size_t size, size_t step)
{
	char path[PATH_MAX];
	struct statfs st;
	char *buf;
	size_t i;
	int fd;

	if (statfs(ext4_dir, &st) || st.f_type != EXT4_SUPER_MAGIC) {
		ksft_print_msg("no ext4 on %s\n", ext4_dir);
		return -1;
	}
	snprintf(path, sizeof(path), "%s/tlb_batch_putback", ext4_dir);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	unlink(path);
	buf = tlb_rs_mmap(size, SZ_2M);
	tlb_rs_fill(buf, size, SEED);
	for (i = 0; i < size; i += step) {
		if (pwrite(fd, buf + i, step, i) != (ssize_t)step)
			ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	}
	munmap(buf, size);
	return fd;
}

static char *map_dirty_file(void)
{
	int fd = write_file(len, folio_size);
	size_t i, n = 0;
	char *base;

	if (fd < 0)
		return NULL;
	base = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (base == MAP_FAILED || madvise(base, len, MADV_POPULATE_READ))
		ksft_exit_fail_msg("cannot map the file: %s\n", strerror(errno));
	for (i = 0; i < NR_FOLIOS; i++)
		n += tlb_rs_is_folio(base + i * folio_size, FOLIO_PAGES);
	if (n == NR_FOLIOS)
		return base;
	ksft_print_msg("only %zu of %d folios of the file have 64 KiB\n", n, NR_FOLIOS);
	munmap(base, len);
	return NULL;
}

int run_dirty(const char *skip, bool expect_missing)
{
	struct tlb_rs_counters c;
	size_t i, mapped = 0, bad;
	bool ok = true, missing;
	long long syncs;
	char extra[100];
	int on = 0;
	char *base = map_dirty_file();

	if (!base)
		return KSFT_SKIP;
	tlb_rs_begin(&c);
	madvise(base, len, MADV_PAGEOUT);
	tlb_rs_end(&c);

	for (i = 0; i < len; i += psize)
		mapped += !!tlb_rs_pfn(base + i);
	bad = tlb_rs_check(base, len, SEED);
	munmap(base, len);
	syncs = c.vmstat[TLB_RS_VMSTAT_FLUSH];
	missing = syncs < NR_FOLIOS;
	snprintf(extra, sizeof(extra), ",\"skip\":\"%s\",\"folios\":%d,\"mapped\":%zu,\"bad\":%zu",
		 skip, NR_FOLIOS, mapped, bad);
	tlb_rs_json_region("putback_dirty", extra, &c);

	if (mapped || bad) {
		ksft_print_msg("%zu pages still mapped, %zu wrong words\n", mapped, bad);
		ok = false;
	}
	if (HAS_RULE && tlb_batch_get(&on) && on >= 0 && missing != expect_missing) {
		ksft_print_msg("%lld flushes for %d folios that are kept\n", syncs, NR_FOLIOS);
		ok = false;
	}
	return ok ? KSFT_PASS : KSFT_FAIL;
}

/* Every other folio is pinned, the others are lazily freed. */
int run_kept(const char *skip)
{
	struct pin pins[NR_FOLIOS / 2] = { };
	struct tlb_rs_counters c;
	size_t i, freed = 0, bad = 0;
	long long syncs;
	int ret, on = 0;
	bool ok = true;
	char extra[100];
	char *base;

	base = make_folios(FOLIO_PAGES);
	if (!base)
		return KSFT_FAIL;
	for (i = 0; i < NR_FOLIOS; i += 2) {
		tlb_rs_fill(base + (i + 1) * folio_size, folio_size, SEED);
		if (madvise(base + i * folio_size, folio_size, MADV_FREE)) {
			ksft_print_msg("MADV_FREE: %s\n", strerror(errno));
			return KSFT_FAIL;
		}
		ret = pin_pages(&pins[i / 2], base + (i + 1) * folio_size, folio_size);
		if (ret != KSFT_PASS)
			return ret;
	}

	tlb_rs_begin(&c);
	madvise(base, len, MADV_PAGEOUT);
	tlb_rs_end(&c);

	for (i = 0; i < NR_FOLIOS; i += 2) {
		freed += !tlb_rs_pfn(base + i * folio_size);
		ok &= unpin_pages(&pins[i / 2]);
		bad += tlb_rs_check(base + (i + 1) * folio_size, folio_size, SEED);
	}
	syncs = c.vmstat[TLB_RS_VMSTAT_FLUSH];
	snprintf(extra, sizeof(extra), ",\"skip\":\"%s\",\"freed\":%zu,\"kept\":%zu,\"bad\":%zu",
		 skip, freed, NR_FOLIOS - freed, bad);
	tlb_rs_json_region("putback_kept", extra, &c);
	munmap(base, len);

	if (freed != NR_FOLIOS / 2 || bad || !ok) {
		ksft_print_msg("%zu folios freed, %zu wrong words, copies %s\n", freed, bad,
			       ok ? "right" : "wrong");
		return KSFT_FAIL;
	}
	/* One for each batch of folios that are freed is enough. */
	if (tlb_batch_get(&on) && on > 0 && syncs > NR_FOLIOS / 4) {
		ksft_print_msg("%lld flushes for no put-back\n", syncs);
		return KSFT_FAIL;
	}
	return KSFT_PASS;
}

#define LIST_PAGES	512	/* of a page table, which MADV_PAGEOUT reclaims at a time */
#define CLEAN_EVERY	160	/* more than reclaim looks at with one of them locked */

int run_long(const char *skip)
{
	const size_t size = LIST_PAGES * psize;
	size_t i, large = 0, mapped = 0, clean = 0, bad;
	struct tlb_rs_counters c;
	struct tlb_rs_readers r;
	int fd = write_file(size, psize);
	char extra[120];
	long long syncs;
	int on = 0;
	char *base;

	if (fd < 0)
		return KSFT_SKIP;
	base = tlb_rs_mmap(size, SZ_2M);
	tlb_rs_drain_pages();
	/* Read again page by page, so that none is part of a large folio. */
	if (fsync(fd) || posix_fadvise(fd, 0, size, POSIX_FADV_DONTNEED) ||
	    mmap(base, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != base ||
	    madvise(base, size, MADV_RANDOM))
		ksft_exit_fail_msg("cannot map the file: %s\n", strerror(errno));
	close(fd);
	for (i = 0; i < LIST_PAGES; i++) {
		__atomic_load_n(base + i * psize, __ATOMIC_RELAXED);
		large += tlb_rs_is_large(base + i * psize);
		if (i % CLEAN_EVERY)
			__atomic_fetch_or(base + i * psize, 0, __ATOMIC_RELAXED);
		else
			clean++;
	}
	if (large) {
		ksft_print_msg("the file has large folios\n");
		return KSFT_SKIP;
	}
	tlb_rs_readers_start(&r, 1, false, base, size);
	tlb_rs_drain_pages();

	tlb_rs_begin(&c);
	madvise(base, size, MADV_PAGEOUT);
	tlb_rs_end(&c);

	tlb_rs_readers_end(&r);
	for (i = 0; i < size; i += psize)
		mapped += !!tlb_rs_pfn(base + i);
	bad = tlb_rs_check(base, size, SEED);
	munmap(base, size);
	syncs = c.vmstat[TLB_RS_VMSTAT_FLUSH];
	snprintf(extra, sizeof(extra), ",\"skip\":\"%s\",\"clean\":%zu,\"mapped\":%zu,\"bad\":%zu",
		 skip, clean, mapped, bad);
	tlb_rs_json_region("putback_long", extra, &c);
	if (mapped || bad) {
		ksft_print_msg("%zu pages still mapped, %zu wrong words\n", mapped, bad);
		return KSFT_FAIL;
	}
	if (tlb_batch_get(&on) && on > 0 && syncs < (long long)clean) {
		ksft_print_msg("%lld flushes for %zu pages far from each other\n", syncs, clean);
		return KSFT_FAIL;
	}
	return KSFT_PASS;
}
