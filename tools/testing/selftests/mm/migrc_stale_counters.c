// SPDX-License-Identifier: GPL-2.0
/* Cases that compare counters: mixed, halves, block, type, exec, undo, split, notifier. */
#include "migrc_stale.h"

/* Another CPU that uses the memory: a flush of this CPU only is never deferred. */
static struct tlb_rs_readers readers;

int run_mixed(const struct migrc_options *o)
{
	long rounds = o->rounds ?: 10, round, folios = 0, stale = 0, moved = 0;
	size_t len = FOLIO_PAGES * psize;
	struct migrc_counters all;
	long long mixed;

	if (psize != 4096 || !tlb_rs_setting(THP_SYSFS "hugepages-64kB/enabled", "always") ||
	    !tlb_rs_setting(THP_SYSFS "hugepages-2048kB/enabled", "never"))
		return migrc_skipped("no 64 KiB anonymous folios");
	migrc_write(MIGRC_AGE, AGE_MS);
	migrc_read(&all);
	mixed = migrc_stat("denied", "mixed");
	for (round = 0; round < rounds; round++) {
		char *base = tlb_rs_mmap(len, SZ_2M);
		struct migrc_counters before, d;
		struct migrc_set folio;
		long long held;

		tlb_rs_bind_node(base, len, 0);
		tlb_rs_fill(base, len, SEED);
		folios += tlb_rs_is_folio(base, FOLIO_PAGES);
		/* The first half, or the second: what comes last must not decide. */
		mprotect(base + (round & 1) * len / 2, len / 2, PROT_READ);
		migrc_set_init(&folio, base, 1);
		tlb_rs_readers_start(&readers, 1, false, base, len);
		held = migrc_held(-1);
		migrc_read(&before);
		moved += migrc_move(&folio, 0, 1, MPOL_MF_MOVE);
		migrc_diff(&before, &d);
		/* All or nothing: nothing. */
		stale += d.val[MIGRC_DEFERRED] || migrc_held(-1) > held;
		stale += !!tlb_rs_check(base, len, SEED);
		tlb_rs_readers_end(&readers);
		munmap(base, len);
		migrc_set_free(&folio);
	}
	mixed = migrc_stat("denied", "mixed") - mixed;
	migrc_record("migrc_stale", o, rounds, folios < moved ? folios : moved, stale, &all);
	if (!o->skip && migrc_has_stats() && !mixed) {
		ksft_print_msg("no folio was denied for this\n");
		return KSFT_FAIL;
	}
	return migrc_judge(o, rounds, folios < moved ? folios : moved, stale, false);
}

/* Whether page @i of a folio is read-only: of the first half, the last, or every other one. */
static bool is_readonly(long round, size_t i)
{
	switch (round % 3) {
	case 0:
		return i < FOLIO_PAGES / 2;
	case 1:
		return i >= FOLIO_PAGES / 2;
	}
	return !(i % 2);
}

/* One drain for each batch, which is half of them or all. */
int run_halves(const struct migrc_options *o)
{
	long rounds = o->rounds ?: 6, round, armed = 0, stale = 0;
	size_t len = FOLIO_PAGES * psize, i;
	struct migrc_counters all;

	if (!migrc_has_stats() || psize != 4096 ||
	    !tlb_rs_setting(THP_SYSFS "hugepages-64kB/enabled", "always") ||
	    !tlb_rs_setting(THP_SYSFS "hugepages-2048kB/enabled", "never"))
		return migrc_skipped("no 64 KiB anonymous folios, or no " MIGRC_STATS);
	migrc_write(MIGRC_AGE, AGE_MS);
	migrc_read(&all);
	for (round = 0; round < rounds; round++) {
		char *base = tlb_rs_mmap(NR_FOLIOS * len, SZ_2M);
		size_t whole = 0, moved;
		struct migrc_counters before, d;
		struct migrc_set folios;
		long long drains;

		tlb_rs_bind_node(base, NR_FOLIOS * len, 0);
		tlb_rs_fill(base, NR_FOLIOS * len, SEED);
		migrc_set_init(&folios, base, NR_FOLIOS);
		for (i = 0; i < NR_FOLIOS; i++) {
			folios.addrs[i] = base + i * len;
			whole += tlb_rs_is_folio(base + i * len, FOLIO_PAGES);
		}
		for (i = 0; i < NR_FOLIOS * FOLIO_PAGES; i++) {
			if (is_readonly(round, i % FOLIO_PAGES))
				mprotect(base + i * psize, psize, PROT_READ);
		}
		tlb_rs_readers_start(&readers, 1, false, base, NR_FOLIOS * len);
		drains = migrc_stat("drain", "mixed");
		migrc_read(&before);
		moved = migrc_move(&folios, 0, 1, MPOL_MF_MOVE);
		migrc_diff(&before, &d);
		drains = migrc_stat("drain", "mixed") - drains;
		ksft_print_msg("%zu folios, %zu moved, %lld pages denied, %lld drains\n", whole,
			       moved, d.val[MIGRC_DENIED], drains);
		armed += whole == NR_FOLIOS && moved == NR_FOLIOS &&
			 d.val[MIGRC_DENIED] >= NR_FOLIOS * FOLIO_PAGES;
		stale += drains > 2 || d.val[MIGRC_DEFERRED];
		stale += !!tlb_rs_check(base, NR_FOLIOS * len, SEED);
		tlb_rs_readers_end(&readers);
		munmap(base, NR_FOLIOS * len);
		migrc_set_free(&folios);
	}
	migrc_record("migrc_stale", o, rounds, armed, stale, &all);
	return migrc_judge(o, rounds, armed, stale, false);
}

#ifdef __aarch64__
/*
 * Two contiguous blocks. The first page gets other permissions, which unfolds the first
 * block; the others are cleared in one go, and what comes first of them is no block.
 */
int run_block(const struct migrc_options *o)
{
	long rounds = o->rounds ?: 10, round, folios = 0, stale = 0, moved = 0;
	size_t nr = 2 * FOLIO_PAGES, len = nr * psize;
	struct migrc_counters all;

	if (psize != 4096 || !tlb_rs_setting(THP_SYSFS "hugepages-128kB/enabled", "always") ||
	    !tlb_rs_setting(THP_SYSFS "hugepages-2048kB/enabled", "never"))
		return migrc_skipped("no 128 KiB anonymous folios");
	migrc_write(MIGRC_AGE, AGE_MS);
	migrc_read(&all);
	for (round = 0; round < rounds; round++) {
		char *base = tlb_rs_mmap(len, SZ_2M);
		struct tlb_rs_counters c;
		struct migrc_set folio;

		tlb_rs_bind_node(base, len, 0);
		tlb_rs_fill(base, len, SEED);
		folios += tlb_rs_is_folio(base, nr);
		mprotect(base, len, PROT_READ);
		mprotect(base, psize, PROT_READ | PROT_EXEC);
		migrc_set_init(&folio, base, 1);
		tlb_rs_counters_read(&c);
		moved += migrc_move(&folio, 0, 1, MPOL_MF_MOVE);
		tlb_rs_counters_diff(&c);
		/* Not deferred, but flushed as a part of the batch. */
		stale += c.vmstat[TLB_RS_VMSTAT_PAGES] < (long long)nr - 1;
		stale += !!tlb_rs_check(base, len, SEED);
		munmap(base, len);
		migrc_set_free(&folio);
	}
	migrc_record("migrc_stale", o, rounds, folios < moved ? folios : moved, stale, &all);
	return migrc_judge(o, rounds, folios < moved ? folios : moved, stale, false);
}
#endif

#ifdef __aarch64__
/*
 * P is the last page of an area of huge pages, which have no page table in which hook
 * "range" would flush. One more page is moved after it, whose unmapping takes long. Then
 * mprotect() changes @from to @to.
 *
 * True if P was deferred before mprotect() began, and mapped again before that came to it.
 */
static bool type_round(__u64 round, int from, int to, bool *flushed)
{
	size_t len = NR_HUGE * SZ_2M;
	long long flushes = migrc_stat("hook", "type");
	struct migrc_counters before, d;
	__u64 begin, took, us, was;
	bool met;

	area_len = len + psize;
	area = tlb_rs_mmap(area_len, SZ_2M);
	page_p = (__u64 *)(area + len);
	if (madvise(area, area_len, MADV_HUGEPAGE) || madvise(area, len, MADV_POPULATE_READ))
		ksft_exit_fail_msg("no huge zero pages: %s\n", strerror(errno));
	*page_p = round;
	list = migrc_mmap(1, migrc_node_of(page_p), SEED);
	migrc_set_init(&set, list, 2);
	set.addrs[0] = page_p;
	set.addrs[1] = list;
	mprotect(list, psize, PROT_READ);
	begin = tlb_rs_now_ns();
	protect(from);
	took = tlb_rs_now_ns() - begin;
	settle();
	tlb_rs_readers_start(&readers, 1, true, area + len, psize);

	/* Before each of the two; a third of what mprotect() takes, if that can be. */
	us = took / 3000 < 1000 ? 1000 : took / 3000 > 20000 ? 20000 : took / 3000;
	if (!tlb_rs_delay(MIGRC_WALK_DELAY, us))
		ksft_exit_fail_msg("cannot write %s\n", MIGRC_WALK_DELAY);
	was = tlb_rs_pfn(page_p);
	migrc_read(&before);
	start_move(round);
	while (tlb_rs_pfn(page_p) == was && moving(round))
		;
	begin = tlb_rs_now_ns();
	protect(to);
	took = tlb_rs_now_ns() - begin;
	end_move(round);
	migrc_diff(&before, &d);
	met = d.val[MIGRC_DEFERRED] && tlb_rs_pfn(page_p) != was &&
	      sh->moved_ns > begin + us * 250 && sh->moved_ns < begin + took - took / 8;
	*flushed = migrc_stat("hook", "type") > flushes;

	tlb_rs_readers_end(&readers);
	if (*page_p != round)
		ksft_exit_fail_msg("type: wrong content\n");
	munmap(area, area_len);
	munmap(list, psize);
	migrc_set_free(&set);
	tlb_rs_delay_none();
	return met;
}

static int type_rounds(const struct migrc_options *o, int from, int to)
{
	long rounds = o->rounds ?: 20, round, armed = 0, stale = 0;
	struct migrc_counters all;
	char buf[32];

	if (psize * THP_PAGES != SZ_2M ||
	    !tlb_rs_thp_available() || access(MIGRC_WALK_DELAY, W_OK) ||
	    !tlb_rs_setting("/proc/sys/vm/overcommit_memory", "1") ||
	    tlb_rs_read_file(THP_SYSFS "use_zero_page", buf, sizeof(buf)) || !atoi(buf))
		return migrc_skipped("no huge zero pages or fault injection");
	memset(sh, 0, sizeof(*sh));
	area_prot = 0;
	migrc_write(MIGRC_AGE, AGE_MS);
	migrc_read(&all);
	start_thread(mover);
	for (round = 1; migrc_more(o, rounds, round - 1, armed, stale); round++) {
		bool flushed, met = type_round(round, from, to, &flushed);

		armed += met;
		stale += met && !flushed;
	}
	end_threads();
	migrc_record("migrc_stale", o, round - 1, armed, stale, &all);
	return migrc_judge(o, rounds, armed, stale, false);
}

int run_type(const struct migrc_options *o)
{
	if (!(getauxval(AT_HWCAP2) & 1 << 18 /* HWCAP2_MTE */))
		return migrc_skipped("no memory tags");
	return type_rounds(o, PROT_READ, PROT_READ | MTE);
}

/* CPUs with erratum 2645198. */
int run_exec(const struct migrc_options *o)
{
	const unsigned long long cortex_a715 = 0x410fd4d0, model = 0xff0ffff0;
	char buf[32];

	if (tlb_rs_read_file("/sys/devices/system/cpu/cpu0/regs/identification/midr_el1", buf,
			     sizeof(buf)) || (strtoull(buf, NULL, 16) & model) != cortex_a715)
		return migrc_skipped("no Cortex-A715");
	return type_rounds(o, PROT_READ | PROT_EXEC, PROT_READ);
}
#endif

/* 16 pages: a pipe has no more room. */
int run_undo(const struct migrc_options *o)
{
	long rounds = o->rounds ?: 10, round, armed = 0, stale = 0;
	size_t len = FOLIO_PAGES * psize, i;
	struct migrc_counters all;

	migrc_write(MIGRC_AGE, AGE_MS);
	migrc_read(&all);
	for (round = 0; round < rounds; round++) {
		char *base = migrc_mmap(FOLIO_PAGES, 0, SEED);
		struct iovec iov = { .iov_base = base, .iov_len = len };
		__u64 pfns[FOLIO_PAGES];
		struct migrc_set pages;
		long long held;
		size_t moved;
		int fds[2];

		mprotect(base, len, PROT_READ);
		migrc_set_init(&pages, base, FOLIO_PAGES);
		if (pipe(fds) || vmsplice(fds[1], &iov, 1, SPLICE_F_NONBLOCK) != (ssize_t)len)
			ksft_exit_fail_msg("vmsplice: %s\n", strerror(errno));
		tlb_rs_readers_start(&readers, 1, true, base, len);
		for (i = 0; i < FOLIO_PAGES; i++)
			pfns[i] = tlb_rs_pfn(base + i * psize);
		held = migrc_held(-1);
		moved = migrc_move(&pages, 0, 1, MPOL_MF_MOVE);
		armed += !moved;
		stale += migrc_held(-1) > held;
		for (i = 0; i < FOLIO_PAGES; i++)
			stale += tlb_rs_pfn(base + i * psize) != pfns[i];
		/* Writable again, and the writes are seen by everybody. */
		stale += tlb_rs_check(base, len, SEED);
		mprotect(base, len, PROT_READ | PROT_WRITE);
		tlb_rs_fill(base, len, SEED + 1);
		stale += tlb_rs_check(base, len, SEED + 1);
		close(fds[0]);
		close(fds[1]);
		/* Nothing is left behind: now the move succeeds. */
		mprotect(base, len, PROT_READ);
		armed -= migrc_move(&pages, 0, 1, MPOL_MF_MOVE) != FOLIO_PAGES;
		stale += tlb_rs_check(base, len, SEED + 1);
		tlb_rs_readers_end(&readers);
		munmap(base, len);
		migrc_set_free(&pages);
	}
	migrc_record("migrc_stale", o, rounds, armed, stale, &all);
	return migrc_judge(o, rounds, armed, stale, false);
}

int run_split(const struct migrc_options *o)
{
	long rounds = o->rounds ?: 5, round, armed = 0, stale = 0;
	struct migrc_counters all;
	size_t off;

	if (access(DEBUGFS "split_huge_pages", W_OK) || !tlb_rs_thp_available() ||
	    psize * THP_PAGES != SZ_2M)
		return migrc_skipped("no split_huge_pages or no THPs");
	migrc_write(MIGRC_AGE, AGE_MS);
	migrc_read(&all);
	for (round = 0; round < rounds; round++) {
		char *base = tlb_rs_mmap(SZ_2M, SZ_2M);
		struct migrc_counters before, d;
		long long held;
		char cmd[80];
		bool whole;

		madvise(base, SZ_2M, MADV_HUGEPAGE);
		tlb_rs_fill(base, SZ_2M, SEED);
		/* Zero, so a page that a split might replace. */
		for (off = 0; off < SZ_2M; off += 4 * psize)
			memset(base + off, 0, psize);
		mprotect(base + psize, psize, PROT_NONE);
		mprotect(base, SZ_2M, PROT_READ);
		whole = tlb_rs_is_large(base);
		tlb_rs_readers_start(&readers, 1, true, base, SZ_2M);
		held = migrc_held(-1);
		migrc_read(&before);
		snprintf(cmd, sizeof(cmd), "%d,0x%lx,0x%lx", getpid(), (unsigned long)base,
			 (unsigned long)base + SZ_2M);
		tlb_rs_write_file(DEBUGFS "split_huge_pages", cmd);
		armed += whole && !tlb_rs_is_large(base);
		if (tlb_rs_has_swap())
			madvise(base, SZ_2M / 2, MADV_PAGEOUT);
		migrc_diff(&before, &d);
		stale += d.val[MIGRC_DEFERRED] || migrc_held(-1) > held;
		for (off = 0; off < SZ_2M; off += psize) {
			__u64 *w = (__u64 *)(base + off), nr = psize / sizeof(*w), i;

			for (i = 0; i < nr; i += nr / 4)
				stale += w[i] != (off % (4 * psize) ?
						  tlb_rs_word(SEED, off / sizeof(*w) + i) : 0);
		}
		tlb_rs_readers_end(&readers);
		munmap(base, SZ_2M);
	}
	migrc_record("migrc_stale", o, rounds, armed, stale, &all);
	return migrc_judge(o, rounds, armed, stale, false);
}

/* A model of a device in the kernel, see tlb_batch_secondary.c. */
int run_notifier(const struct migrc_options *o)
{
	static const struct test plain;
	int fd = open(DEBUGFS "tlb_batch/secondary", O_RDWR | O_CLOEXEC);
	long rounds = o->rounds ?: 5, round, armed = 0, stale = 0;
	struct migrc_counters all;
	int n, filled, left;
	char cmd[64];

	if (fd < 0)
		return migrc_skipped("no model of a secondary TLB");
	map_pages(&plain);
	migrc_write(MIGRC_AGE, AGE_MS);
	migrc_read(&all);
	tlb_rs_readers_start(&readers, 1, false, list, (nr_pages - 1) * psize);
	for (round = 0; round < rounds; round++) {
		struct migrc_counters before, d;
		char buf[128] = { };

		n = snprintf(cmd, sizeof(cmd), "%lx %lx", (unsigned long)list,
			     (unsigned long)list + (nr_pages - 1) * psize);
		if (write(fd, cmd, n) != n || pread(fd, buf, sizeof(buf) - 1, 0) <= 0 ||
		    sscanf(buf, "translations %d", &filled) != 1)
			ksft_exit_fail_msg("the model of a secondary TLB does not work\n");
		migrc_read(&before);
		armed += migrc_move(&set, 0, !migrc_node_of(list), MPOL_MF_MOVE) &&
			 filled > nr_pages / 2;
		migrc_diff(&before, &d);
		memset(buf, 0, sizeof(buf));
		if (pread(fd, buf, sizeof(buf) - 1, 0) <= 0 ||
		    sscanf(buf, "translations %d", &left) != 1)
			ksft_exit_fail_msg("the model of a secondary TLB does not work\n");
		stale += left || d.val[MIGRC_DEFERRED];
		/* Flushes whatever is left. */
		mprotect(list, (nr_pages - 1) * psize, PROT_READ | PROT_WRITE);
		mprotect(list, (nr_pages - 1) * psize, PROT_READ);
	}
	tlb_rs_readers_end(&readers);
	close(fd);
	migrc_record("migrc_stale", o, rounds, armed, stale, &all);
	unmap_pages();
	return migrc_judge(o, rounds, armed, stale, false);
}
