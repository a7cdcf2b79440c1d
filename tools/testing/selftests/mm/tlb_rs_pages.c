// SPDX-License-Identifier: GPL-2.0
/* Pages: where they are, what they are, what is in them. */
#include "tlb_rs.h"

__u64 tlb_rs_pagemap(const void *addr)
{
	static int fd = -1;
	static pid_t owner;
	__u64 ent = 0;

	/* A forked child must not look at its parent's pages. */
	if (fd < 0 || owner != getpid()) {
		if (fd >= 0)
			close(fd);
		fd = tlb_rs_open("/proc/self/pagemap", O_RDONLY);
		owner = getpid();
	}
	if (pread(fd, &ent, sizeof(ent), (unsigned long)addr / getpagesize() * sizeof(ent)) !=
	    sizeof(ent))
		return 0;
	return ent;
}

__u64 tlb_rs_kpageflags(__u64 pfn)
{
	static int fd = -1;
	__u64 flags = 0;

	if (fd < 0)
		fd = tlb_rs_open("/proc/kpageflags", O_RDONLY);
	if (!pfn || pread(fd, &flags, sizeof(flags), pfn * sizeof(flags)) != sizeof(flags))
		return 0;
	return flags;
}

/* Is the page at @addr part of a large folio? */
bool tlb_rs_is_large(const void *addr)
{
	return tlb_rs_kpageflags(tlb_rs_pfn(addr)) & KPF_LARGE;
}

/*
 * Does one folio of exactly @nr pages start at @addr? Its frames follow each
 * other, the first is a head page and all others, up to the next, are tails.
 */
bool tlb_rs_is_folio(const char *addr, size_t nr)
{
	size_t psize = getpagesize();
	__u64 pfn = tlb_rs_pfn(addr);
	size_t i;

	if (!(tlb_rs_kpageflags(pfn) & (1ULL << KPF_COMPOUND_HEAD)))
		return false;
	for (i = 1; i < nr; i++) {
		if (tlb_rs_pfn(addr + i * psize) != pfn + i)
			return false;
		if (!(tlb_rs_kpageflags(pfn + i) & (1ULL << KPF_COMPOUND_TAIL)))
			return false;
	}
	return !(tlb_rs_kpageflags(pfn + nr) & (1ULL << KPF_COMPOUND_TAIL));
}

/* How many of @nr pages from @base on have @bit (PM_...) in their pagemap entry. */
size_t tlb_rs_count_pagemap(const char *base, size_t nr, __u64 bit)
{
	size_t i, n = 0;

	for (i = 0; i < nr; i++)
		n += !!(tlb_rs_pagemap(base + i * getpagesize()) & bit);
	return n;
}

/* A field in kB of the mapping that holds @addr, or -1. */
long tlb_rs_smaps_kb(const void *addr, const char *field)
{
	unsigned long start, end, want = (unsigned long)addr;
	size_t len = strlen(field);
	bool inside = false;
	char line[512];
	long kb = -1;
	FILE *f;

	f = fopen("/proc/self/smaps", "r");
	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2) {
			if (inside)
				break;
			inside = want >= start && want < end;
		} else if (inside && !strncmp(line, field, len) && line[len] == ':') {
			kb = atol(line + len + 1);
			break;
		}
	}
	fclose(f);
	return kb;
}

/* Anonymous memory whose address is a multiple of @align, a power of two. */
char *tlb_rs_mmap(size_t len, size_t align)
{
	char *raw, *base;

	raw = mmap(NULL, len + align, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (raw == MAP_FAILED)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	base = (char *)(((unsigned long)raw + align - 1) & ~(align - 1));
	if (base > raw)
		munmap(raw, base - raw);
	if (base + len < raw + len + align)
		munmap(base + len, raw + align - base);
	return base;
}

void tlb_rs_fill(void *buf, size_t len, __u64 seed)
{
	__u64 *w = buf;
	size_t i;

	for (i = 0; i < len / sizeof(*w); i++)
		w[i] = tlb_rs_word(seed, i);
}

/* The number of wrong words. */
size_t tlb_rs_check(const void *buf, size_t len, __u64 seed)
{
	const __u64 *w = buf;
	size_t bad = 0;
	size_t i;

	for (i = 0; i < len / sizeof(*w); i++)
		bad += w[i] != tlb_rs_word(seed, i);
	return bad;
}

long tlb_rs_move_pages(pid_t pid, unsigned long nr, void **pages, const int *nodes, int *status)
{
	return syscall(SYS_move_pages, pid, nr, pages, nodes, status, MPOL_MF_MOVE);
}

bool tlb_rs_bind_node(void *addr, size_t len, int node)
{
	unsigned long mask = 1UL << node;

	return !syscall(SYS_mbind, addr, len, MPOL_BIND, &mask, 8 * sizeof(mask) + 1, 0);
}

/*
 * Puts the pages that still wait in a per-CPU batch onto their LRU list:
 * reclaim and migration find no others. Drops the clean page cache, too.
 */
void tlb_rs_drain_lru(void)
{
	tlb_rs_write_file("/proc/sys/vm/drop_caches", "1");
}

/*
 * Puts the pages that still wait in a per-CPU batch onto their LRU list, and
 * moves nothing. Without NUMA, page cache that nobody maps is lost.
 */
void tlb_rs_drain_pages(void)
{
	void *page = NULL;
	int node = 0, status;

	if (tlb_rs_move_pages(0, 0, &page, &node, &status)) {
		/* Without a message. */
		tlb_rs_write_file("/proc/sys/vm/drop_caches", "4");
		tlb_rs_write_file("/proc/sys/vm/drop_caches", "1");
	}
}

bool tlb_rs_owed(struct tlb_rs_owed *owed)
{
	char buf[128];

	return !tlb_rs_read_file(TLB_BATCH_CURRENT, buf, sizeof(buf)) &&
	       sscanf(buf, "ranges %d held %d unsynced %d", &owed->ranges, &owed->held,
		      &owed->unsynced) == 3;
}
