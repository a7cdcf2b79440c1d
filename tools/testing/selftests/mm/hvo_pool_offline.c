// SPDX-License-Identifier: GPL-2.0
/* Page frames go offline, or are bad. */
#include "hvo_pool.h"

/* A page frame of a HugeTLB page that nobody uses, or -1. */
static long free_frame(unsigned long kb)
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
