// SPDX-License-Identifier: GPL-2.0
/* Not deferred, or in the ledger at a bad moment: denied, thp, compaction, poison, nested. */
#include "migrc_bounds.h"

#include <sys/klog.h>

static bool denied_since(const char *reason, long long count, const struct migrc_counters *before)
{
	struct migrc_counters d;

	migrc_diff(before, &d);
	count = migrc_stat("denied", reason) - count;
	ksft_print_msg("denied as %s: %lld, %lld deferred\n", reason, count,
		       d.val[MIGRC_DEFERRED]);
	return count > 0 && !d.val[MIGRC_DEFERRED];
}

static bool denied_move(const char *reason, struct migrc_set *set)
{
	long long count = migrc_stat("denied", reason);
	struct migrc_counters before;

	migrc_read(&before);
	migrc_move(set, 0, 1, MPOL_MF_MOVE);
	return denied_since(reason, count, &before);
}

static bool denied_thp(void)
{
	struct migrc_set set;
	char *base;
	bool ok;

	base = tlb_rs_mmap(SZ_2M, SZ_2M);
	madvise(base, SZ_2M, MADV_HUGEPAGE);
	tlb_rs_bind_node(base, SZ_2M, 0);
	tlb_rs_fill(base, SZ_2M, SEED);
	mprotect(base, SZ_2M, PROT_READ);
	migrc_set_init(&set, base, 1);
	ok = denied_move("kind", &set);
	munmap(base, SZ_2M);
	migrc_set_free(&set);
	return ok;
}

static bool denied_compaction(void)
{
	long long count = migrc_stat("denied", "reason");
	struct migrc_counters before;
	struct migrc_set set;
	bool ok;

	scatter(&set, 1, node_free(1) / 4, 0, ~0ULL, 64);
	migrc_read(&before);
	ok = !write_in_time(COMPACT_MEMORY, "1") &&
	     denied_since("reason", count, &before);
	return !end_scatter(&set) && ok;
}

static bool denied_memory(void)
{
	struct migrc_set set;
	char *base = migrc_map_readonly(&set, EXIT_PAGES, SEED), *filler;
	size_t len;
	bool ok;

	/* A watermark of 30 % of the zone. */
	len = node_free(0) / 8 * 7 / SZ_2M * SZ_2M;
	filler = tlb_rs_mmap(len, SZ_2M);
	if (!tlb_rs_bind_node(filler, len, 0) || madvise(filler, len, MADV_POPULATE_WRITE))
		ksft_exit_fail_msg("cannot fill node 0: %s\n", strerror(errno));
	if (!tlb_rs_setting(WATERMARKS, "3000"))
		ksft_exit_fail_msg("no other watermarks\n");
	ok = denied_move("memory", &set);
	tlb_rs_restore(WATERMARKS);
	munmap(filler, len);
	unmap(&set, base);
	return ok;
}

#ifdef __x86_64__
/* The readers are in the parent's mm. */
static bool denied_local(void)
{
	int status = 0;
	pid_t pid = fork();

	if (pid < 0)
		ksft_exit_fail_msg("fork: %s\n", strerror(errno));
	if (!pid) {
		struct migrc_set set;

		migrc_map_readonly(&set, EXIT_PAGES, SEED);
		_exit(!denied_move("local", &set));
	}
	return waitpid(pid, &status, 0) == pid && !status;
}
#endif

#ifdef __aarch64__
/* There is no hwcap, but the kernel says so when it boots. */
static bool has_range_operations(void)
{
	static char log[1 << 20];
	int n = klogctl(3, log, sizeof(log) - 1);	/* SYSLOG_ACTION_READ_ALL */

	return n > 0 && strstr(log, "detected: TLB range maintenance instructions");
}

/* Every second page is writable: the others are holes in what has to be flushed, or are not. */
static bool denied_merged(void)
{
	struct tlb_rs_counters c;
	struct migrc_set set;
	char *base = migrc_map_readonly(&set, EXIT_PAGES, SEED);
	long long ranges;
	size_t i;
	bool ok;

	for (i = 0; i < set.nr; i += 2) {
		mprotect(base + i * psize, psize, PROT_READ | PROT_WRITE);
		base[i * psize] = base[i * psize];
	}
	tlb_rs_counters_read(&c);
	ok = denied_move("merged", &set);
	tlb_rs_counters_diff(&c);
	ranges = c.vmstat[TLB_RS_VMSTAT_RANGES];
	ksft_print_msg("%lld ranges for %zu pages, of which each second one is denied\n", ranges,
		       set.nr);
	unmap(&set, base);
	return ok && ranges <= (long long)set.nr / 16;
}
#endif

/* The reasons are what these are about. */
static void denied_rounds(long rounds, struct result *r, bool (*denied)(void))
{
	if (!migrc_has_stats()) {
		r->why = "no " MIGRC_STATS;
		return;
	}
	migrc_write(MIGRC_AGE, LONG_MS);
	migrc_write(MIGRC_PAGES, 16384);
	for (long round = 0; round < rounds; round++) {
		migrc_drain();
		r->stale += !denied();
		r->armed++;
	}
}

void case_denied(long rounds, struct result *r)
{
	denied_rounds(rounds, r, denied_memory);
#ifdef __x86_64__
	denied_rounds(rounds, r, denied_local);
#endif
#ifdef __aarch64__
	if (has_range_operations())
		denied_rounds(rounds, r, denied_merged);
#endif
}

void case_thp(long rounds, struct result *r)
{
	if (psize != 4096 || !tlb_rs_thp_available() ||
	    !tlb_rs_setting(THP_SYSFS "hugepages-2048kB/enabled", "madvise")) {
		r->why = "no THPs of 2 MiB";
		return;
	}
	denied_rounds(rounds, r, denied_thp);
}

void case_compaction(long rounds, struct result *r)
{
	if (access(COMPACT_MEMORY, W_OK)) {
		r->why = "no compaction";
		return;
	}
	denied_rounds(rounds, r, denied_compaction);
}

void case_poison(long rounds, struct result *r)
{
	struct migrc_set set;
	long round;
	char *base;

	if (access(DEBUGFS "hwpoison/corrupt-pfn", W_OK)) {
		r->why = "no hwpoison-inject";
		return;
	}
	base = migrc_map_readonly(&set, EXIT_PAGES, SEED);
	migrc_write(MIGRC_AGE, LONG_MS);
	migrc_write(MIGRC_PAGES, NR_PAGES);
	for (round = 0; round < rounds; round++) {
		__u64 pfn = tlb_rs_pfn(base + (EXIT_PAGES - 1) * psize);
		char buf[32];
		int err;

		migrc_move(&set, 0, !(round & 1), MPOL_MF_MOVE);
		r->armed += migrc_held(-1) > 0 &&
			    tlb_rs_pfn(base + (EXIT_PAGES - 1) * psize) != pfn;
		snprintf(buf, sizeof(buf), "%llu", pfn);
		err = tlb_rs_write_file(DEBUGFS "hwpoison/corrupt-pfn", buf);
		if (err)
			ksft_print_msg("poison: frame %llx: %s\n", pfn, strerror(-err));
		r->stale += err || migrc_held(-1);
		r->stale += !!tlb_rs_check(base, EXIT_PAGES * psize, SEED);
		tlb_rs_write_file(DEBUGFS "hwpoison/unpoison-pfn", buf);
	}
	unmap(&set, base);
}

static void kcompactd_restore(void)
{
	const struct sched_param param = { };

	sched_setscheduler(sh->kcompactd, SCHED_OTHER, &param);
	sched_setaffinity(sh->kcompactd, sizeof(sh->cpus), &sh->cpus);
}

/*
 * The thread that compacts @node has to leave that to who allocates: until the end of the case it
 * gets the CPU of this test, and only when that is idle.
 */
static bool tame_kcompactd(int node)
{
	const struct sched_param param = { };
	char name[32], path[320], comm[32];
	struct dirent *ent;
	cpu_set_t cpus;
	DIR *proc;

	snprintf(name, sizeof(name), "kcompactd%d\n", node);
	sh->kcompactd = 0;
	proc = opendir("/proc");
	while (proc && !sh->kcompactd && (ent = readdir(proc))) {
		snprintf(path, sizeof(path), "/proc/%s/comm", ent->d_name);
		if (isdigit(ent->d_name[0]) && !tlb_rs_read_file(path, comm, sizeof(comm)) &&
		    !strcmp(comm, name))
			sh->kcompactd = atoi(ent->d_name);
	}
	if (proc)
		closedir(proc);
	if (!sh->kcompactd || sched_getaffinity(sh->kcompactd, sizeof(sh->cpus), &sh->cpus))
		return false;
	tlb_rs_at_exit(kcompactd_restore);
	CPU_ZERO(&cpus);
	CPU_SET(0, &cpus);
	return !sched_setscheduler(sh->kcompactd, SCHED_IDLE, &param) &&
	       !sched_setaffinity(sh->kcompactd, sizeof(cpus), &cpus);
}

void case_nested(long rounds, struct result *r)
{
	size_t folio = 8 * psize, nr = 1024, i, n, len;
	struct migrc_set set;
	char *filler, *base;
	long round;

	/* Of 8 pages: less than a contiguous block of arm64. */
	if (psize != 4096 || !tlb_rs_setting(THP_SYSFS "hugepages-32kB/enabled", "always") ||
	    !tlb_rs_setting(THP_SYSFS "hugepages-2048kB/enabled", "never")) {
		r->why = "no 32 KiB anonymous folios";
		return;
	}
	if (!tame_kcompactd(1)) {
		r->why = "no kcompactd";
		return;
	}
	if (node_free(1) > 256UL << 20) {
		r->why = "fills node 1, where more than 256 MiB are free";
		return;
	}
	migrc_write(MIGRC_AGE, LONG_MS);
	migrc_write(MIGRC_PAGES, 16384);
	base = tlb_rs_mmap(nr * folio, SZ_2M);
	tlb_rs_bind_node(base, nr * folio, 0);
	tlb_rs_fill(base, nr * folio, SEED);
	for (i = n = 0; i < nr; i++)
		n += tlb_rs_is_folio(base + i * folio, 8);
	mprotect(base, nr * folio, PROT_READ);
	migrc_set_init(&set, base, nr);
	for (i = 0; i < nr; i++)
		set.addrs[i] = base + i * folio;

	for (round = 0; round < rounds; round++) {
		long long stalls = tlb_rs_vmstat_read("compact_stall"), held;
		struct migrc_counters before, d;
		size_t moved;

		/* Node 1 has half of its pages, but few of them together. */
		len = node_free(1) / 8 * 7 / SZ_2M * SZ_2M;
		filler = tlb_rs_mmap(len, SZ_2M);
		madvise(filler, len, MADV_NOHUGEPAGE);
		tlb_rs_bind_node(filler, len, 1);
		if (madvise(filler, len, MADV_POPULATE_WRITE))
			ksft_exit_fail_msg("cannot fill node 1: %s\n", strerror(errno));
		for (i = 0; i < len; i += 2 * psize) {
			madvise(filler + i, psize, MADV_DONTNEED);
			*(__u64 *)(filler + i + psize) = i;
		}
		mprotect(filler, len, PROT_READ);

		migrc_read(&before);
		moved = migrc_move(&set, 0, 1, MPOL_MF_MOVE);
		migrc_diff(&before, &d);
		held = migrc_held(-1);
		stalls = tlb_rs_vmstat_read("compact_stall") - stalls;
		ksft_print_msg("nested: %zu folios moved, %lld deferred, %lld held, %lld stalls\n",
			       moved, d.val[MIGRC_DEFERRED], held, stalls);
		r->armed += stalls && d.val[MIGRC_DEFERRED] && n > nr / 2;
		/* What was freed too early is used for something else by now. */
		r->stale += !!tlb_rs_check(base, nr * folio, SEED);
		for (i = 0; i < len; i += 2 * psize)
			r->stale += *(__u64 *)(filler + i + psize) != i;
		munmap(filler, len);
		migrc_move(&set, 0, 0, MPOL_MF_MOVE);
		r->stale += !!tlb_rs_check(base, nr * folio, SEED);
		migrc_drain();
		r->stale += migrc_held(-1) != 0;
	}
	munmap(base, nr * folio);
	migrc_set_free(&set);
}
