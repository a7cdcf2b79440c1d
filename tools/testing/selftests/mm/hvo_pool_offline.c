// SPDX-License-Identifier: GPL-2.0
/* Page frames go offline, or are bad. */
#include "hvo_pool.h"

/* A page frame of a HugeTLB page that nobody uses, in the middle of it, or -1. */
long free_frame(unsigned long kb)
{
	int fd = open("/proc/kpageflags", O_RDONLY), counts = open("/proc/kpagecount", O_RDONLY);
	uint64_t flags[512], count;
	long pfn = 0, found = -1;
	ssize_t n;

	while (found < 0 && (n = read(fd, flags, sizeof(flags))) > 0) {
		for (int i = 0; i < n / 8 && found < 0; i++, pfn++) {
			if ((flags[i] >> KPF_HUGE & 1) && (flags[i] >> KPF_COMPOUND_HEAD & 1) &&
			    pread(counts, &count, 8, pfn * 8) == 8 && !count)
				found = pfn + kb * 1024 / psize / 2;
		}
	}
	close(counts);
	close(fd);
	return found;
}

const char *cannot_offline(void)
{
	return access(SOFT_OFFLINE, W_OK) ? "needs CONFIG_MEMORY_FAILURE" : NULL;
}

bool test_offline(void)
{
	unsigned long kb = hvo_small_size();
	long before = memmap(), nr = resize(kb, few(kb, 8)), restored = stat_of("restore"), pfn;
	long long entries = tlb_rs_vmstat_read("hvo_pte_updates");
	bool ok = nr > 0 && before - memmap() == nr * spare_pages(kb);

	pfn = free_frame(kb);
	if (pfn < 0)
		return false;
	ok &= set_num(SOFT_OFFLINE, pfn * psize);
	ok &= pool(kb) == nr - 1 && before - memmap() == (nr - 1) * (vmemmap_pages(kb) - 1);
	ok &= tlb_rs_vmstat_read("hvo_pte_updates") == entries + spare_pages(kb);
	/* All of them at once, even if the others stop for that. */
	ok &= hvo_by_flags() || stat_of("restore") == restored + 1;
	ok &= verify((nr - 1) * (vmemmap_pages(kb) - 1));
	if (!ok)
		ksft_print_msg("%ld of %ld pages left, %ld pages of struct pages saved\n", pool(kb),
			       nr, before - memmap());
	return ok && !resize(kb, 0) && memmap() == before && verify(0);
}

static long corrupted(void)
{
	return tlb_rs_meminfo_kb(MEMINFO, "HardwareCorrupted") * 1024 / (long)psize;
}

/* How many page frames of a range are marked as bad. */
static long marked(uint64_t pfn, long nr)
{
	int fd = open("/proc/kpageflags", O_RDONLY);
	static uint64_t flags[4096];
	long found = 0, i;
	ssize_t n;

	for (; nr > 0; nr -= n / 8, pfn += n / 8) {
		n = pread(fd, flags, (nr < 4096 ? nr : 4096) * 8, pfn * 8);
		if (n < 8)
			break;
		for (i = 0; i < n / 8; i++)
			found += flags[i] >> KPF_HWPOISON & 1;
	}
	close(fd);
	return found;
}

#define NR_BAD		3

/* Not freed when its first page frame is bad, for a pipe refers to it. Then others are, too. */
static bool poison(unsigned long kb)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | __builtin_ctzl(kb * 1024) << 26;
	long before = memmap(), was = corrupted(), last = kb * 1024 / psize - 1;
	long bad[NR_BAD] = { 1, last / 2, last };
	bool ok = true;
	uint64_t pfn;
	int fds[2];
	char *p;

	if (resize(kb, 1) != 1) {
		ksft_print_msg("no page of %lu kB to be had\n", kb);
		resize(kb, 0);
		return gigantic(kb);
	}
	p = mmap(NULL, kb * 1024, PROT_READ | PROT_WRITE, flags, -1, 0);
	if (p == MAP_FAILED || pipe(fds))
		return false;
	*p = 1;
	pfn = tlb_rs_pfn(p);
	ok &= vmsplice(fds[1], &(struct iovec){ p, psize }, 1, 0) == (ssize_t)psize;
	for (int i = 0; i < NR_BAD; i++) {
		char text[32];
		int err;

		snprintf(text, sizeof(text), "%llu", (unsigned long long)(pfn + bad[i]) * psize);
		err = tlb_rs_write_file(HARD_OFFLINE, text);
		/* The first is isolated as far as that goes, the others are of a page that is. */
		ok &= err == (i ? -EHWPOISON : -EBUSY);
		ok &= corrupted() == was + i + 1;
	}
	ok &= counts_are(kb, 1, 0) && before - memmap() == spare_pages(kb);
	ok &= verify(spare_pages(kb));
	close(fds[0]);
	close(fds[1]);
	munmap(p, kb * 1024);
	ok &= pool(kb) == 1 && counts_are(kb, 1, 0);
	ok &= !resize(kb, 0) && memmap() == before && verify(0);
	ok &= marked(pfn, last + 1) == NR_BAD && corrupted() == was + NR_BAD;
	for (int i = 0; i < NR_BAD; i++)
		ok &= marked(pfn + bad[i], 1) == 1 && set_num(UNPOISON, pfn + bad[i]);
	ok &= !marked(pfn, last + 1) && corrupted() == was;
	if (!ok)
		ksft_print_msg("%lu kB: %ld page frames are marked, %ld counted\n", kb,
			       marked(pfn, last + 1), corrupted() - was);
	return ok;
}

static bool poison_all(void)
{
	bool ok = true;

	for (int i = 0; i < nr_sizes; i++)
		ok &= !optimizable(sizes[i]) || poison(sizes[i]);
	return ok;
}

const char *cannot_poison(void)
{
	return access(HARD_OFFLINE, W_OK) || access(UNPOISON, W_OK) ?
	       "needs CONFIG_HWPOISON_INJECT" : needs_memory();
}

bool test_poison(void)
{
	return poison_all() & as_users_have_it(poison_all);
}

struct demotion {
	char path[128];
	bool over;
};

static void *demote_one(void *arg)
{
	struct demotion *d = arg;

	tlb_rs_pin_cpu(0);
	set_num(d->path, 1);
	__atomic_store_n(&d->over, true, __ATOMIC_RELEASE);
	return NULL;
}

#define MOST_MARKS	16

/*
 * From when the page has left its pool until its parts are in theirs, one page frame after the
 * other is bad. Returns how many.
 */
static int fail_meanwhile(unsigned long kb, struct demotion *d, const uint64_t *bad, int most)
{
	char path[128];
	int nr = 0;

	snprintf(path, sizeof(path), HUGEPAGES, kb, "free_hugepages");
	while (get(path) && !__atomic_load_n(&d->over, __ATOMIC_ACQUIRE))
		;
	while (nr < most && !__atomic_load_n(&d->over, __ATOMIC_ACQUIRE)) {
		char text[32];
		int err;

		snprintf(text, sizeof(text), "%llu", (unsigned long long)bad[nr++] * psize);
		err = tlb_rs_write_file(HARD_OFFLINE, text);
		/* A part that was in its pool already is taken out of it. */
		if (!err)
			break;
		/* Some before its head changes, some after that. */
		if (nr > MOST_MARKS / 4)
			tlb_rs_sleep_us(200);
	}
	return nr;
}

static bool marks_of(unsigned long from, unsigned long to)
{
	long before = memmap(), was = corrupted(), each = to * 1024 / psize, parts = from / to;
	struct demotion d = { .over = false };
	uint64_t pfn, bad[MOST_MARKS];
	long found = 0, right = 0;
	pthread_t thread;
	bool ok = true;
	int nr;

	pfn = free_frame(from) - from * 1024 / psize / 2;
	/* None is the first one of a part, and no two are of the same part. */
	for (int i = 0; i < MOST_MARKS; i++)
		bad[i] = pfn + (i ? (i - 1) * (parts / MOST_MARKS) : parts - 1) * each + i + 1;
	snprintf(d.path, sizeof(d.path), HUGEPAGES, from, "demote");
	tlb_rs_pin_cpu(1);
	if (pthread_create(&thread, NULL, demote_one, &d))
		return false;
	nr = fail_meanwhile(from, &d, bad, MOST_MARKS);
	pthread_join(thread, NULL);

	ok &= nr && !pool(from) && corrupted() == was + nr;
	ok &= before - memmap() == pool(to) * spare_pages(to) - spare_pages(from);
	/* All page frames of a part show its mark, unless it was taken out of its pool. */
	for (int i = 0; i < parts; i++)
		found += marked(pfn + i * each, 1);
	for (int i = 0; i < nr; i++)
		right += marked(bad[i], 1);
	ksft_print_msg("%d page frames were bad meanwhile: %ld parts are marked, %ld right\n", nr,
		       found, right);
	ok &= right == nr && found >= nr - 1 && found <= nr;
	resize(to, 0);
	/* Now those show it that are bad. */
	ok &= marked(pfn, from * 1024 / psize) == nr;
	for (int i = 0; i < nr; i++)
		ok &= marked(bad[i], 1) == 1 && set_num(UNPOISON, bad[i]);
	return ok && !marked(pfn, from * 1024 / psize) && corrupted() == was;
}

static bool marks_by(const char *strategy)
{
	unsigned long to = hvo_small_size(), from;
	long before = memmap();
	bool ok;

	set(HVO_PARAM "strategy", strategy);
	set_num(HVO_DEBUG "stall_us", 1000);
	from = one_to_demote(to, MOST_MARKS);
	ok = from && marks_of(from, to);
	set_num(HVO_DEBUG "stall_us", 0);
	return ok && memmap() == before && verify(0);
}

bool test_marks(void)
{
	return marks_by("auto") & marks_by("pause");
}
