// SPDX-License-Identifier: GPL-2.0
/* Folios whose PTEs differ, or do not follow each other. */
#include "tlb_batch_mkclean.h"

#include <semaphore.h>
#include <sys/resource.h>
#include <linux/userfaultfd.h>

#ifndef UFFD_FEATURE_WP_UNPOPULATED
#define UFFD_FEATURE_WP_UNPOPULATED	0x2000ULL
#endif
#ifndef UFFD_FEATURE_WP_ASYNC
#define UFFD_FEATURE_WP_ASYNC		0x8000ULL
#endif

#define LAZY_ROUNDS	8
#define RECEIVED	"nr_tlb_remote_flush_received"

static long minor_faults(void)
{
	struct rusage usage;

	getrusage(RUSAGE_THREAD, &usage);
	return usage.ru_minflt;
}

/* Pages that are clean and mapped take one fault each; then they are dirty. */
static bool faults_once(const char *what, const struct file *f, size_t from, size_t to)
{
	size_t i, want = 0;
	long before = minor_faults();

	for (i = 0; i < f->len / psize; i++) {
		if (i >= from && i < to)
			continue;
		f->base[i * psize] ^= 1;
		want++;
	}
	before = minor_faults() - before;
	if (before == (long)want)
		return true;
	ksft_print_msg("%s: stores to %zu pages took %ld faults\n", what, want, before);
	return false;
}

static bool edge_is_kept(const char *what, const struct file *f, off_t offset)
{
	bool ok = true;
	int i;

	for (i = 0; ok && i < 2; i++) {
		ok = sync_all(f) && faults_once(what, f, 0, 0) && sync_all(f) &&
		     !differ_on_disk(f->fd, f->base, f->len, offset);
	}
	if (!ok)
		ksft_print_msg("that was a folio %s\n", what);
	return ok;
}

static bool edge_of_vma(struct file *f)
{
	/* Three VMAs. */
	if (madvise(f->base + PART * psize, (PART_END - PART) * psize, MADV_RANDOM))
		ksft_exit_fail_msg("madvise: %s\n", strerror(errno));
	return edge_is_kept("in three VMAs", f, 0);
}

static bool edge_of_table(const struct file *f)
{
	struct file across = { .fd = f->fd, .len = f->len };
	char *area = tlb_rs_mmap(2 * SZ_2M, SZ_2M);
	bool ok;

	across.base = area + SZ_2M - f->len / 2;
	map_file_at(&across, across.base, across.len, 0);
	tlb_rs_fill(across.base, across.len, SEED + 2);
	ok = edge_is_kept("in two page tables", &across, 0);
	munmap(area, 2 * SZ_2M);
	return ok;
}

static bool edge_of_half(const struct file *f)
{
	struct file half = { .fd = f->fd, .len = f->len / 2 };
	bool ok;

	half.base = tlb_rs_mmap(half.len, SZ_2M);
	map_file_at(&half, half.base, half.len, half.len);
	tlb_rs_fill(half.base, half.len, SEED + 3);
	ok = edge_is_kept("of which half is mapped", &half, half.len);
	munmap(half.base, half.len);
	return ok;
}

static bool edge_of_protection(struct file *f)
{
	char *part = f->base + PART * psize;
	const size_t len = (PART_END - PART) * psize;
	int zero = tlb_rs_open("/dev/zero", O_RDONLY);
	bool ok;
	size_t i;

	if (mprotect(part, len, PROT_READ))
		ksft_exit_fail_msg("mprotect: %s\n", strerror(errno));
	ok = sync_all(f) && faults_once("read-only", f, PART, PART_END) && sync_all(f);
	for (i = 0; i < len; i += psize) {
		if (read(zero, part + i, 1) >= 0 || errno != EFAULT) {
			ksft_print_msg("a read-only page has become writable\n");
			ok = false;
		}
	}
	close(zero);
	return ok && is_on_disk("read-only", f);
}

int test_edges(void)
{
	struct file f;
	bool ok;

	if (!map_dirty(&f, FOLIO_SIZE, 1))
		return skipped("no folios of 64 KiB");
	ok = edge_of_vma(&f);
	unmap(&f);
	/* Nobody else maps it meanwhile, whose entries would make it dirty, too. */
	make_file(&f, FOLIO_SIZE, 1);
	ok &= edge_of_table(&f);
	ok &= edge_of_half(&f);
	close(f.fd);
	if (!map_dirty(&f, FOLIO_SIZE, 1))
		return KSFT_FAIL;
	ok &= edge_of_protection(&f);
	unmap(&f);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

int test_prot_none(void)
{
	const size_t len = (PART_END - PART) * psize;
	struct file f;
	char *part;
	bool ok;

	if (!map_dirty(&f, FOLIO_SIZE, 1))
		return skipped("no folios of 64 KiB");
	part = f.base + PART * psize;
	if (mprotect(part, len, PROT_NONE))
		ksft_exit_fail_msg("mprotect: %s\n", strerror(errno));
	ok = sync_all(&f);
	if (mprotect(part, len, PROT_READ | PROT_WRITE))
		ksft_exit_fail_msg("mprotect: %s\n", strerror(errno));
	ok = ok && is_on_disk("before the stores", &f) &&
	     content_is("before the stores", f.base, f.len, SEED + 1);
	tlb_rs_fill(f.base, f.len, SEED + 2);
	ok = ok && is_on_disk("after the stores", &f);
	unmap(&f);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

int test_holes(void)
{
	size_t i, n = 0;
	struct file f;
	bool ok;

	if (!map_dirty(&f, FOLIO_SIZE, 1))
		return skipped("no folios of 64 KiB");
	for (i = 2; i < folio_pages; i += 4) {
		if (madvise(f.base + i * psize, psize, MADV_DONTNEED))
			ksft_exit_fail_msg("madvise: %s\n", strerror(errno));
	}
	ok = sync_all(&f);
	for (i = 2; i < folio_pages; i += 4)
		n += !!(tlb_rs_pagemap(f.base + i * psize) & PM_PRESENT);
	if (n)
		ksft_print_msg("%zu pages are mapped again\n", n);
	ok = ok && !n && content_is("with holes", f.base, f.len, SEED + 1) &&
	     is_on_disk("with holes", &f);
	unmap(&f);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

/* Copies the pages that were written since @copy was made, by their bit in pagemap. */
static bool copy_is_complete(const struct file *f, char *copy, __u64 bit, bool written)
{
	size_t i, n = 0;
	bool ok;

	for (i = 0; i < f->len / psize; i++) {
		if (!(tlb_rs_pagemap(f->base + i * psize) & bit) == written)
			continue;
		memcpy(copy + i * psize, f->base + i * psize, psize);
		n++;
	}
	ok = !memcmp(copy, f->base, f->len) && n == PART_END - PART;
	if (!ok)
		ksft_print_msg("%zu of %d pages count as written\n", n, PART_END - PART);
	return ok;
}

static bool writes_are_tracked(const struct file *f, __u64 bit, bool written,
			       bool (*track)(const struct file *f))
{
	char *copy = tlb_rs_mmap(f->len, psize);
	bool ok = true;
	int round;

	for (round = 0; ok && round < 2; round++) {
		memcpy(copy, f->base, f->len);
		if (!track(f)) {
			munmap(copy, f->len);
			return false;
		}
		tlb_rs_fill(f->base + PART * psize, (PART_END - PART) * psize, SEED + 2 + round);
		ok = sync_all(f) && copy_is_complete(f, copy, bit, written) &&
		     is_on_disk("tracked", f);
		/* All of it is dirty again. */
		tlb_rs_fill(f->base, f->len, SEED + 10 + round);
	}
	munmap(copy, f->len);
	return ok;
}

static int uffd;

static bool track_by_uffd(const struct file *f)
{
	struct uffdio_writeprotect wp = {
		.range = { .start = (unsigned long)f->base, .len = f->len },
		.mode = UFFDIO_WRITEPROTECT_MODE_WP,
	};

	if (!ioctl(uffd, UFFDIO_WRITEPROTECT, &wp))
		return true;
	ksft_print_msg("UFFDIO_WRITEPROTECT: %s\n", strerror(errno));
	return false;
}

int test_tracked(void)
{
	struct uffdio_api api = {
		.api = UFFD_API,
		.features = UFFD_FEATURE_WP_ASYNC | UFFD_FEATURE_WP_UNPOPULATED,
	};
	struct uffdio_register reg = { .mode = UFFDIO_REGISTER_MODE_WP };
	struct file f;
	bool ok;

	uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
	if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api))
		return skipped("no userfaultfd that write-protects files");
	if (!map_dirty(&f, FOLIO_SIZE, 1))
		return skipped("no folios of 64 KiB");
	reg.range.start = (unsigned long)f.base;
	reg.range.len = f.len;
	if (ioctl(uffd, UFFDIO_REGISTER, &reg))
		ksft_exit_fail_msg("UFFDIO_REGISTER: %s\n", strerror(errno));
	ok = writes_are_tracked(&f, PM_UFFD, false, track_by_uffd);
	close(uffd);
	unmap(&f);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

static bool track_by_soft_dirty(const struct file *f)
{
	(void)f;
	return !tlb_rs_write_file("/proc/self/clear_refs", "4");
}

int test_softdirty(void)
{
	struct file f;
	bool ok;

	if (!map_dirty(&f, FOLIO_SIZE, 1))
		return skipped("no folios of 64 KiB");
	track_by_soft_dirty(&f);
	f.base[0] ^= 1;
	if (!(tlb_rs_pagemap(f.base) & PM_SOFT_DIRTY)) {
		unmap(&f);
		return skipped("no soft-dirty bits");
	}
	tlb_rs_fill(f.base, f.len, SEED + 1);
	ok = writes_are_tracked(&f, PM_SOFT_DIRTY, true, track_by_soft_dirty);
	unmap(&f);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

/* A thread that stores to some pages of each folio, and sleeps: its CPU has nothing else to do. */
static struct sleeper {
	const struct file *file;
	sem_t go, stored;
	bool stop;
} sleeper;

static void *sleeper_thread(void *arg)
{
	struct sleeper *s = arg;
	size_t i;

	tlb_rs_pin_cpu(1);
	while (!sem_wait(&s->go) && !s->stop) {
		for (i = 0; i < s->file->len / psize; i++) {
			if (i % folio_pages < WRITTEN)
				s->file->base[i * psize]++;
		}
		sem_post(&s->stored);
	}
	return NULL;
}

static void sleeper_stores(void)
{
	sem_post(&sleeper.go);
	sem_wait(&sleeper.stored);
	/* Until it sleeps, and its CPU is idle. */
	usleep(20000);
}

/* Whether all its stores are on the disk; adds the interrupts of msync(). */
static bool sleeper_loses_none(const struct file *f, long long *interrupts)
{
	pthread_t thread;
	bool ok = true;
	int i;

	sleeper = (struct sleeper){ .file = f };
	sem_init(&sleeper.go, 0, 0);
	sem_init(&sleeper.stored, 0, 0);
	if (pthread_create(&thread, NULL, sleeper_thread, &sleeper))
		ksft_exit_fail_msg("cannot start a thread\n");
	for (i = 0; ok && i < LAZY_ROUNDS; i++) {
		sleeper_stores();
		*interrupts -= tlb_rs_vmstat_read(RECEIVED);
		ok = sync_all(f);
		*interrupts += tlb_rs_vmstat_read(RECEIVED);
		sleeper_stores();
		ok = ok && is_on_disk("stores of a CPU that was idle", f);
	}
	sleeper.stop = true;
	sem_post(&sleeper.go);
	pthread_join(thread, NULL);
	return ok;
}

int test_lazy(void)
{
	long long interrupts = 0;
	struct file f;
	bool ok;

#ifndef __x86_64__
	return skipped("no lazy mode of TLBs");
#endif
	if (tlb_rs_vmstat_read(RECEIVED) < 0)
		return skipped("interrupts of TLBs are not counted");
	if (!map_dirty(&f, FOLIO_SIZE, 4))
		return skipped("no folios of 64 KiB");
	ok = sleeper_loses_none(&f, &interrupts);
	if (ok && batch_folios(true))
		ok = sleeper_loses_none(&f, &interrupts);
	unmap(&f);
	/* A few are of others. */
	if (interrupts >= LAZY_ROUNDS) {
		ksft_print_msg("%lld interrupts by msync() while no other CPU runs\n", interrupts);
		ok = false;
	}
	return ok ? KSFT_PASS : KSFT_FAIL;
}
