// SPDX-License-Identifier: GPL-2.0
/* Cases in which somebody needs memory that the ledger holds: pressure, offline, hugetlb. */
#include "migrc_bounds.h"

/* In a child, which the OOM killer would choose. False if it did, or would have. */
static bool populate(size_t len)
{
	long long kills = tlb_rs_vmstat_read("oom_kill");
	int status = 0;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid < 0)
		ksft_exit_fail_msg("fork: %s\n", strerror(errno));
	if (!pid) {
		char *base;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		tlb_rs_write_file("/proc/self/oom_score_adj", "1000");
		base = mmap(NULL, len, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (base == MAP_FAILED)
			_exit(1);
		madvise(base, len, MADV_NOHUGEPAGE);
		_exit(madvise(base, len, MADV_POPULATE_WRITE) ? 1 : 0);
	}
	waitpid(pid, &status, 0);
	return WIFEXITED(status) && !WEXITSTATUS(status) &&
	       tlb_rs_vmstat_read("oom_kill") == kills;
}

void case_pressure(long rounds, struct result *r)
{
	long long avail, brim, margin, limit, step = 16 << 10;
	struct migrc_set set;
	long round;
	char *base;

	if (tlb_rs_has_swap()) {
		r->why = "has swap";
		return;
	}
	if (tlb_rs_meminfo_kb(MEMINFO, "MemTotal") >> 20 >= 4) {
		r->why = "fills all memory, which here is 4 GiB or more";
		return;
	}
	base = migrc_map_readonly(&set, NR_PAGES, SEED);
	migrc_write(MIGRC_AGE, LONG_MS);
	migrc_drain();
	/* As much as there is with an empty ledger: the first try should succeed. */
	avail = tlb_rs_meminfo_kb(MEMINFO, "MemAvailable");
	for (brim = avail - step / 2; brim > step && !populate(brim << 10); brim -= step)
		;
	if (brim <= step) {
		r->why = "too little memory";
		unmap(&set, base);
		return;
	}
	margin = avail - brim + step;
	/* An eighth of the memory, or 64 MiB. */
	limit = (avail / 8 < 64 << 10 ? avail / 8 : 64 << 10) * 1024 / psize;
	migrc_write(MIGRC_PAGES, limit);
	for (round = 0; round < rounds; round++) {
		struct migrc_counters before, d;
		long long held, left;
		bool ok;
		int i;

		for (i = 0; i < 16 && migrc_held(-1) + NR_PAGES <= limit; i++)
			migrc_move(&set, 0, !(i & 1), MPOL_MF_MOVE);
		held = migrc_held(-1);
		/* Other memory comes and goes, but what is said to be available has to be. */
		avail = tlb_rs_meminfo_kb(MEMINFO, "MemAvailable");
		brim = avail - margin;
		migrc_read(&before);
		ok = populate(brim << 10);
		left = migrc_held(-1);
		migrc_diff(&before, &d);
		r->armed += held * (long long)psize >= (margin + step / 2) << 10;
		r->stale += !ok;
		ksft_print_msg("pressure: %lld kB of %lld, %lld held, then %lld, %lld drains, %s\n",
			       brim, avail, held, left, d.val[MIGRC_DRAIN_PRESSURE],
			       ok ? "no OOM" : "OOM");
	}
	r->stale += !!tlb_rs_check(base, NR_PAGES * psize, SEED);
	unmap(&set, base);
}

/* In bytes. */
size_t node_free(int node)
{
	char path[64];

	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/meminfo", node);
	return tlb_rs_meminfo_kb(path, "MemFree") << 10;
}

/*
 * Base pages of @node, one of each @stride frames between @lo and @hi, in read-only
 * mappings of their own. All that is free there but @spare bytes is filled first, and the
 * others of these pages are free again.
 */
size_t scatter(struct migrc_set *set, int node, size_t spare, __u64 lo, __u64 hi, size_t stride)
{
	size_t len, nr, i, n = 0, most = 8192;
	char *base, *from;
	__u64 pfn;

	len = (node_free(node) - spare) / SZ_2M * SZ_2M;
	base = tlb_rs_mmap(len, SZ_2M);
	madvise(base, len, MADV_NOHUGEPAGE);
	if (!tlb_rs_bind_node(base, len, node) || madvise(base, len, MADV_POPULATE_WRITE))
		ksft_exit_fail_msg("cannot fill node %d: %s\n", node, strerror(errno));
	nr = len / psize;
	migrc_set_init(set, base, most);
	from = base;
	for (i = 0; i < nr && n < most; i++) {
		char *page = base + i * psize;

		pfn = tlb_rs_pfn(page);
		if (pfn < lo || pfn >= hi || pfn % stride != stride / 2)
			continue;
		if (page > from)
			munmap(from, page - from);
		from = page + psize;
		tlb_rs_fill(page, psize, SEED);
		mprotect(page, psize, PROT_READ);
		set->addrs[n++] = page;
	}
	if (base + len > from)
		munmap(from, base + len - from);
	set->nr = n;
	return n;
}

size_t end_scatter(struct migrc_set *set)
{
	size_t i, bad = 0;

	for (i = 0; i < set->nr; i++) {
		bad += tlb_rs_check(set->addrs[i], psize, SEED);
		munmap(set->addrs[i], psize);
	}
	migrc_set_free(set);
	return bad;
}

/* Off the node, so that their frames are in the ledger. */
static bool hold_scattered(struct migrc_set *set, int node)
{
	size_t moved = migrc_move(set, 0, !node, MPOL_MF_MOVE);
	long long held = migrc_held(node);

	ksft_print_msg("%zu of %zu pages moved, %lld held\n", moved, set->nr, held);
	return set->nr && held >= (long long)set->nr / 2;
}

static void on_alarm(int sig)
{
	(void)sig;
}

/* Gives up after a while: an offline that cannot succeed goes on until a signal. */
int write_in_time(const char *path, const char *val)
{
	int err;

	sigaction(SIGALRM, &(struct sigaction){ .sa_handler = on_alarm }, NULL);
	alarm(60);
	err = tlb_rs_write_file(path, val);
	alarm(0);
	return err;
}

/* The last block of node 1 that goes offline with an empty ledger, and has; or -1. */
static int offline_block(char *state, size_t size)
{
	int block, candidate, tried = 1 << 30;
	struct dirent *ent;
	DIR *dir;

	for (;;) {
		dir = opendir("/sys/devices/system/node/node1");
		if (!dir)
			return -1;
		candidate = -1;
		while ((ent = readdir(dir))) {
			if (sscanf(ent->d_name, "memory%d", &block) == 1 && block > candidate &&
			    block < tried)
				candidate = block;
		}
		closedir(dir);
		snprintf(state, size, "/sys/devices/system/memory/memory%d/state", candidate);
		if (candidate < 0 || !write_in_time(state, "offline"))
			return candidate;
		tried = candidate;
	}
}

void case_offline(long rounds, struct result *r)
{
	char path[128], buf[64];
	struct migrc_set set;
	unsigned long size;
	long round;
	int block;
	__u64 lo;

	if (tlb_rs_read_file("/sys/devices/system/memory/block_size_bytes", buf, sizeof(buf))) {
		r->why = "no memory hotplug";
		return;
	}
	size = strtoul(buf, NULL, 16);
	migrc_write(MIGRC_AGE, LONG_MS);
	migrc_write(MIGRC_PAGES, 16384);
	migrc_drain();

	block = offline_block(path, sizeof(path));
	if (block < 0) {
		r->why = "no memory block goes offline (on arm64 none does that was there at boot)";
		return;
	}
	lo = (__u64)block * size / psize;
	for (round = 0; round < rounds; round++) {
		int err;

		if (write_in_time(path, "online_movable"))
			ksft_exit_fail_msg("memory block %d does not come back\n", block);
		/* It is online at the end, too. */
		tlb_rs_keep(path);
		scatter(&set, 1, node_free(1) / 4, lo, lo + size / psize, 16);
		r->armed += hold_scattered(&set, 1);
		err = write_in_time(path, "offline");
		if (err)
			ksft_print_msg("offline: memory%d: %s\n", block, strerror(-err));
		r->stale += !!err;
		r->stale += !!end_scatter(&set);
		migrc_drain();
		/* It may be left in between. */
		if (err)
			break;
	}
}

/* Less than the smallest gigantic page. */
#define SPARE		(24UL << 20)

static const char *gigantic;

static bool allocate_gigantic(int nr)
{
	char path[128], val[16], buf[32];

	snprintf(path, sizeof(path),
		 "/sys/devices/system/node/node1/hugepages/hugepages-%skB/nr_hugepages", gigantic);
	snprintf(val, sizeof(val), "%d", nr);
	tlb_rs_keep(path);
	return !write_in_time(path, val) && !tlb_rs_read_file(path, buf, sizeof(buf)) &&
	       atoi(buf) == nr;
}

void case_hugetlb(long rounds, struct result *r)
{
	static const char * const sizes[] = { "32768", "1048576" };
	struct migrc_set set;
	size_t i;
	long round;

	if (tlb_rs_pools_in_use()) {
		r->why = "HugeTLB pools are in use";
		return;
	}
	migrc_write(MIGRC_AGE, LONG_MS);
	migrc_write(MIGRC_PAGES, 16384);
	migrc_drain();
	for (i = 0; i < ARRAY_SIZE(sizes); i++) {
		gigantic = sizes[i];
		if (allocate_gigantic(1))
			break;
	}
	allocate_gigantic(0);
	if (i == ARRAY_SIZE(sizes)) {
		r->why = "no gigantic page to be had, not even with an empty ledger";
		return;
	}
	/* By default nobody gets the last ones of a node. */
	if (!tlb_rs_setting(MIN_FREE, "4096"))
		ksft_exit_fail_msg("no other " MIN_FREE "\n");
	for (round = 0; round < rounds; round++) {
		bool ok;

		/* In each 4 MiB that has free memory, and no range was all free. */
		scatter(&set, 1, SPARE, 0, ~0ULL, (4UL << 20) / psize);
		r->armed += hold_scattered(&set, 1);
		ok = allocate_gigantic(1);
		r->stale += !ok;
		if (!ok)
			ksft_print_msg("hugetlb: no page of %s kB\n", gigantic);
		allocate_gigantic(0);
		r->stale += !!end_scatter(&set);
		migrc_drain();
	}
	tlb_rs_restore(MIN_FREE);
}
