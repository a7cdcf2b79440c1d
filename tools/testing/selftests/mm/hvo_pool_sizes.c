// SPDX-License-Identifier: GPL-2.0
/* Pools grow, shrink and are used: what they save, and what their files say. */
#include "hvo_pool.h"

/* Entries of page tables. */
#define MOST_IN_PAUSE	4096

/* There may be no free range of that length. */
bool gigantic(unsigned long kb)
{
	return kb >= 1UL << 20;
}

/* What the files of a pool say. */
bool counts_are(unsigned long kb, long optimized, long unoptimized)
{
	char path[128];
	long have, not;

	snprintf(path, sizeof(path), HUGEPAGES, kb, "optimized_hugepages");
	have = get(path);
	snprintf(path, sizeof(path), HUGEPAGES, kb, "unoptimized_hugepages");
	not = get(path);
	if (have == optimized && not == unoptimized)
		return true;
	ksft_print_msg("%lu kB: files say %ld optimised and %ld others, not %ld and %ld\n",
		       kb, have, not, optimized, unoptimized);
	return false;
}

/* Grows and shrinks a pool; checks what that saves. */
bool cycle(unsigned long kb, long nr)
{
	long before = memmap(), saved, want;
	bool ok;

	nr = resize(kb, nr);
	saved = before - memmap();
	want = nr * spare_pages(kb);
	ok = (nr > 0 || gigantic(kb)) && saved == want && verify(want);
	ok &= optimizable(kb) ? counts_are(kb, nr, 0) : counts_are(kb, 0, nr);
	if (!ok)
		ksft_print_msg("%lu kB: %ld pages, %ld pages of struct pages saved, %ld expected\n",
			       kb, nr, saved, want);
	if (resize(kb, 0) || memmap() != before || !verify(0)) {
		ksft_print_msg("%lu kB: %ld left, %ld pages of struct pages lost\n", kb,
			       pool(kb), before - memmap());
		ok = false;
	}
	return ok;
}

static bool pools_by(const char *strategy)
{
	long long stopped = stops();
	bool ok = true;

	set(HVO_PARAM "strategy", strategy);
	for (int r = 0; r < rounds; r++) {
		for (int i = 0; i < nr_sizes; i++) {
			long nr = some(sizes[i]);

			if (nr)
				ok &= cycle(sizes[i], nr);
		}
	}
	stopped = stops() - stopped;
	if (!hvo_by_flags() || !stopped)
		return ok;
	ksft_print_msg("%lld times the others were stopped\n", stopped);
	return false;
}

bool test_pool(void)
{
	return pools_by("auto") & pools_by("pause");
}

/* Makes a pool of one page that is demoted to at least @parts of @to kB. Its size, or 0. */
unsigned long one_to_demote(unsigned long to, unsigned long parts)
{
	char path[128], text[32];

	snprintf(text, sizeof(text), "%lukB", to);
	for (int i = nr_sizes - 1; i >= 0 && sizes[i] / to >= parts; i--) {
		snprintf(path, sizeof(path), HUGEPAGES, sizes[i], "demote_size");
		if (few(sizes[i], 1) && tlb_rs_setting(path, text) && resize(sizes[i], 1) == 1)
			return sizes[i];
	}
	return 0;
}

static bool demote_by(const char *strategy)
{
	long nr = 0, before, small, each, pauses, demoted = stat_of("demote");
	long long stopped = stops();
	unsigned long from = 0, to = hvo_small_size();
	char path[128];
	bool ok;

	set(HVO_PARAM "strategy", strategy);
	before = memmap();
	for (int i = nr_sizes - 1; i >= 0 && !nr && sizes[i] > to; i--) {
		from = sizes[i];
		snprintf(path, sizeof(path), HUGEPAGES, from, "demote_size");
		snprintf(path + 64, sizeof(path) - 64, "%lukB", to);
		if (some(from) && tlb_rs_setting(path, path + 64))
			nr = resize(from, some(from));
	}
	if (!nr)
		return false;
	snprintf(path, sizeof(path), HUGEPAGES, from, "demote");
	ok = set_num(path, nr) && !pool(from);
	small = pool(to);
	ok &= small == nr * (long)(from / to);
	ok &= before - memmap() == small * spare_pages(to);
	ok &= verify(small * spare_pages(to));
	/* As many together as one pause may change entries of, of each node by itself. */
	each = MOST_IN_PAUSE / vmemmap_pages(from);
	demoted = stat_of("demote") - demoted;
	pauses = (nr + each - 1) / each;
	if (hvo_by_flags())
		ok &= stops() == stopped;
	else
		ok &= demoted >= pauses &&
		      demoted < pauses + __builtin_popcountl(tlb_rs_memory_nodes());
	if (!ok)
		ksft_print_msg("%ld of %lu kB: %ld of %lu kB, saved %ld, %ld pauses\n", nr, from,
			       small, to, before - memmap(), demoted);
	resize(to, 0);
	resize(from, 0);
	return ok && memmap() == before && verify(0);
}

bool test_demote(void)
{
	return demote_by("auto") & demote_by("pause");
}

static bool flags_are_right(const char *addr, unsigned long bytes)
{
	int pagemap = open("/proc/self/pagemap", O_RDONLY);
	int kpageflags = open("/proc/kpageflags", O_RDONLY);
	unsigned long i, pages = bytes / psize, bad = 0;

	for (i = 0; i < pages; i++) {
		uint64_t entry = 0, flags = 0;
		int want = i ? KPF_COMPOUND_TAIL : KPF_COMPOUND_HEAD;

		if (pread(pagemap, &entry, 8, ((uintptr_t)addr / psize + i) * 8) != 8 ||
		    pread(kpageflags, &flags, 8, (entry & ((1ULL << 55) - 1)) * 8) != 8)
			bad++;
		else if (!(flags >> want & 1) || !(flags >> KPF_HUGE & 1))
			bad++;
	}
	close(pagemap);
	close(kpageflags);
	if (bad)
		ksft_print_msg("%lu of %lu pages with wrong flags\n", bad, pages);
	return !bad;
}

/* The kernel writes to all pages of the copy: of the child, which has to be as @addr. */
static bool copy_is_right(char *addr, unsigned long bytes)
{
	pid_t pid = fork();
	int status;

	if (!pid) {
		bool ok = true;

		*(unsigned long *)addr = 0;
		for (unsigned long j = psize; j < bytes; j += psize)
			ok &= *(unsigned long *)(addr + j) == j + 1;
		_exit(!ok);
	}
	return pid > 0 && waitpid(pid, &status, 0) == pid && !status;
}

bool test_use(void)
{
	bool ok = true;
	int used = 0;

	for (int i = 0; i < nr_sizes; i++) {
		unsigned long bytes = sizes[i] * 1024, j;
		long nr = optimizable(sizes[i]) ? resize(sizes[i], few(sizes[i], 2)) : 0;
		int shift = __builtin_ctzl(bytes);
		char *p;

		if (!nr)
			continue;
		p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | shift << 26, -1, 0);
		if (p == MAP_FAILED) {
			ksft_perror("mmap");
			resize(sizes[i], 0);
			return false;
		}
		for (j = 0; j < bytes; j += psize)
			*(unsigned long *)(p + j) = j + 1;
		ok &= flags_are_right(p, bytes);
		ok &= nr < 2 || copy_is_right(p, bytes);
		for (j = 0; j < bytes; j += psize)
			ok &= *(unsigned long *)(p + j) == j + 1;
		munmap(p, bytes);
		resize(sizes[i], 0);
		used++;
	}
	if (!used)
		ksft_print_msg("no page to be had\n");
	return ok && used && verify(0);
}

static const char * const user_parameters[] = {
	"ack_timeout_us", "pause_budget_us", "max_ptes", "duty_pct", "retries", "retry_s",
};

/* The parameters as the kernel has them, or its command line. Returns to those of the tests. */
bool as_users_have_it(bool (*test)(void))
{
	char path[128], was[ARRAY_SIZE(user_parameters)][32];
	bool ok;

	for (size_t i = 0; i < ARRAY_SIZE(user_parameters); i++) {
		snprintf(path, sizeof(path), HVO_PARAM "%s", user_parameters[i]);
		tlb_rs_read_file(path, was[i], sizeof(was[i]));
		tlb_rs_restore(path);
	}
	ok = test();
	for (size_t i = 0; i < ARRAY_SIZE(user_parameters); i++) {
		snprintf(path, sizeof(path), HVO_PARAM "%s", user_parameters[i]);
		set(path, was[i]);
	}
	return ok;
}

static bool pools_by_default(void)
{
	bool ok = true;

	for (int i = 0; i < nr_sizes; i++) {
		long pauses = tlb_rs_vmstat_read("cpu_pause"), stopped = stat_of("stop_machine");
		long cancelled = stat_of("cancelled"), nr = some(sizes[i]);
		__u64 begin = tlb_rs_now_ns();

		if (!optimizable(sizes[i]) || !nr)
			continue;
		ok &= cycle(sizes[i], nr);
		pauses = tlb_rs_vmstat_read("cpu_pause") - pauses;
		cancelled = stat_of("cancelled") - cancelled;
		stopped = stat_of("stop_machine") - stopped;
		ksft_print_msg("%ld of %lu kB: %ld pauses, %ld cancelled, %ld stops, %llu ms\n",
			       nr, sizes[i], pauses, cancelled, stopped,
			       (tlb_rs_now_ns() - begin) / 1000000);
		ok &= !hvo_by_flags() || !(pauses + cancelled + stopped);
	}
	return ok;
}

bool test_defaults(void)
{
	return as_users_have_it(pools_by_default);
}

#define SURPLUS		4

bool test_surplus(void)
{
	unsigned long kb = hvo_small_size();
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | __builtin_ctzl(kb * 1024) << 26;
	long before = memmap(), nr = few(kb, SURPLUS);
	long long stopped = stops();
	char path[128];
	bool ok;
	char *p;

	snprintf(path, sizeof(path), HUGEPAGES, kb, "nr_overcommit_hugepages");
	tlb_rs_keep(path);
	set_num(path, nr);
	p = mmap(NULL, nr * kb * 1024, PROT_READ | PROT_WRITE, flags, -1, 0);
	ok = p != MAP_FAILED;
	for (long i = 0; ok && i < nr; i++)
		p[i * kb * 1024] = 1;
	ok = ok && counts_are(kb, 0, nr) && memmap() == before;
	if (p != MAP_FAILED)
		munmap(p, nr * kb * 1024);
	ok &= !pool(kb) && counts_are(kb, 0, 0) && memmap() == before && verify(0);
	stopped = stops() - stopped;
	if (stopped)
		ksft_print_msg("%ld surplus pages stopped the others %lld times\n", nr, stopped);
	tlb_rs_restore(path);
	return ok && !stopped;
}

#define CONTIG_MS	4000
#define CONTIG_MOST_MS	10000

static void *free_small(void *arg)
{
	tlb_rs_pin_cpu(nr_cpus - 1);
	return resize(hvo_small_size(), 0) ? NULL : arg;
}

/*
 * The largest pages come out of ranges that are made free, across those of the pool that is being
 * freed. They keep their struct pages: only how long it takes to get them is of interest.
 */
static bool contig_by_default(void)
{
	__u64 end = tlb_rs_now_ns() + CONTIG_MS * 1000000ULL, slowest = 0;
	long before = memmap(), got = 0, freed = 0;
	unsigned long kb = hvo_small_size();
	bool ok = true;

	do {
		pthread_t thread;
		void *ret;

		set_num(HVO_SWITCH, 1);
		freed += resize(kb, some(kb));
		ok &= verify(pool(kb) * spare_pages(kb));
		set_num(HVO_SWITCH, 0);
		pthread_create(&thread, NULL, free_small, &ok);
		for (int i = 0; i < nr_sizes; i++) {
			__u64 ns = tlb_rs_now_ns();

			if (sizes[i] == kb || !some(sizes[i]))
				continue;
			got += resize(sizes[i], 1);
			set_num("/proc/sys/vm/compact_memory", 1);
			ns = tlb_rs_now_ns() - ns;
			slowest = ns > slowest ? ns : slowest;
			resize(sizes[i], 0);
		}
		pthread_join(thread, &ret);
		ok &= !!ret;
	} while (tlb_rs_now_ns() < end);
	set_num(HVO_SWITCH, 1);
	ksft_print_msg("%ld pages allocated while %ld were freed, the slowest took %llu ms\n", got,
		       freed, slowest / 1000000);
	ok &= freed && got && slowest < CONTIG_MOST_MS * 1000000ULL;
	return ok && memmap() == before && verify(0);
}

bool test_contig(void)
{
	return as_users_have_it(contig_by_default);
}

const char *cannot_fail(void)
{
	return access(FAIL_PAGE_ALLOC "probability", W_OK) || access(MAKE_IT_FAIL, W_OK) ?
	       "needs CONFIG_FAIL_PAGE_ALLOC" : NULL;
}

/* Whether the kernel's last words about a pool are how many pages kept their struct pages. */
static bool said(unsigned long kb, long kept, long nr)
{
	static char log[1 << 18];
	int len = klogctl(3 /* SYSLOG_ACTION_READ_ALL */, log, sizeof(log) - 1);
	char want[128], *line, *last = NULL;

	log[len > 0 ? len : 0] = 0;
	for (line = log; (line = strstr(line, "HugeTLB: ")); line++) {
		if (strstr(line, " keep their struct pages: "))
			last = line;
	}
	snprintf(want, sizeof(want), "HugeTLB: %ld of %ld pages of %lukB keep", kept, nr, kb);
	if (!kept || (last && !strncmp(last, want, strlen(want))))
		return true;
	ksft_print_msg("'%s' is missing\n", want);
	return false;
}

bool test_fail(void)
{
	static const char * const on[][2] = {
		{ "ignore-gfp-wait", "N" }, { "min-order", "0" }, { "times", "-1" },
		{ "interval", "1" }, { "verbose", "0" }, { "task-filter", "Y" },
		{ "probability", "10" },
	};
	unsigned long kb = hvo_small_size();
	long before = memmap(), want = few(kb, 64), nr, failed = 0;
	char path[128];
	bool ok = true;

	for (unsigned int i = 0; i < ARRAY_SIZE(on); i++) {
		snprintf(path, sizeof(path), FAIL_PAGE_ALLOC "%s", on[i][0]);
		if (!tlb_rs_setting(path, on[i][1]))
			return false;
	}
	for (int r = 0; r < 4 * rounds; r++) {
		long saved;

		set(MAKE_IT_FAIL, "1");
		nr = resize(kb, want);
		set(MAKE_IT_FAIL, "0");
		saved = before - memmap();
		ok &= saved % spare_pages(kb) == 0 && verify(saved);
		ok &= counts_are(kb, saved / spare_pages(kb), nr - saved / spare_pages(kb));
		ok &= said(kb, nr - saved / spare_pages(kb), nr);
		failed += want - nr + (nr * spare_pages(kb) != saved);
		set(MAKE_IT_FAIL, "1");
		resize(kb, 0);
		set(MAKE_IT_FAIL, "0");
		ok &= verify(before - memmap());
		/* Those without memory for their struct pages are surplus pages now. */
		resize(kb, pool(kb));
		ok &= !resize(kb, 0) && memmap() == before && verify(0);
		if (!ok) {
			ksft_print_msg("round %d: %ld pages, %ld saved, %ld left, %ld lost\n", r,
				       nr, saved, pool(kb), before - memmap());
			break;
		}
	}
	tlb_rs_restore(FAIL_PAGE_ALLOC "probability");
	if (!failed)
		ksft_print_msg("no allocation failed\n");
	return ok && failed;
}

#define CHURN_KB		(64 << 10)

bool test_churn(int seconds)
{
	static const char * const strategies[] = { "auto", "auto", "pause", "stop_machine" };
	__u64 end = tlb_rs_now_ns() + seconds * 1000000000ULL;
	long long paused = tlb_rs_vmstat_read("cpu_pause");
	long pools[MAX_SIZES], resized = 0, violations;
	unsigned int seed = getpid();
	char path[128];

	for (int i = 0; i < nr_sizes; i++)
		pools[i] = pool(sizes[i]);
	while (tlb_rs_now_ns() < end) {
		unsigned long kb = sizes[rand_r(&seed) % nr_sizes];
		long most = CHURN_KB / (long)kb;

		if (!optimizable(kb) || !most)
			continue;
		resize(kb, rand_r(&seed) % (most + 1));
		resized++;
		if (!(rand_r(&seed) % 4))
			set(HVO_PARAM "strategy",
			    strategies[rand_r(&seed) % ARRAY_SIZE(strategies)]);
		if (!(rand_r(&seed) % 4)) {
			snprintf(path, sizeof(path), HUGEPAGES, kb, "demote");
			set(path, "1");
		}
		if (!(rand_r(&seed) % 16))
			set_num("/proc/sys/vm/compact_memory", 1);
		get_field(HVO_DEBUG "read", "pages");
	}
	set(HVO_PARAM "strategy", "auto");
	for (int i = nr_sizes - 1; i >= 0; i--)
		resize(sizes[i], 0);
	for (int i = 0; i < nr_sizes; i++)
		resize(sizes[i], pools[i]);
	violations = get_field(HVO_DEBUG "verify", "violations");
	ksft_print_msg("%ld times resized, %lld pauses, %ld violations\n", resized,
		       tlb_rs_vmstat_read("cpu_pause") - paused, violations);
	return resized && !violations;
}
