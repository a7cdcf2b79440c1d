// SPDX-License-Identifier: GPL-2.0
/* Files that are mapped and dirty, what is on the disk, and a thread that stores to them. */
#include "tlb_batch_mkclean.h"

void make_file(struct file *f, size_t folio, size_t nr)
{
	char path[256], *buf;
	size_t i;

	snprintf(path, sizeof(path), "%s/tlb_batch_mkclean", dir);
	f->fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (f->fd < 0)
		ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	unlink(path);
	f->len = folio * nr;
	buf = tlb_rs_mmap(f->len, psize);
	tlb_rs_fill(buf, f->len, SEED);
	/* In pieces that fit a folio. */
	for (i = 0; i < nr; i++) {
		if (write(f->fd, buf + i * folio, folio) != (ssize_t)folio)
			ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	}
	munmap(buf, f->len);
	if (fsync(f->fd))
		ksft_exit_fail_msg("fsync: %s\n", strerror(errno));
}

void map_file_at(const struct file *f, char *base, size_t len, off_t offset)
{
	if (mmap(base, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, f->fd, offset) != base)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	/* Never by one large entry. */
	madvise(base, len, MADV_NOHUGEPAGE);
}

/* @nr folios of @folio bytes, all mapped writable and dirty. False if they have another size. */
bool map_dirty(struct file *f, size_t folio, size_t nr)
{
	size_t i, n = 0;

	make_file(f, folio, nr);
	f->base = tlb_rs_mmap(f->len, SZ_2M);
	map_file_at(f, f->base, f->len, 0);
	tlb_rs_fill(f->base, f->len, SEED + 1);
	for (i = 0; i < nr; i++)
		n += tlb_rs_is_folio(f->base + i * folio, folio / psize);
	if (n == nr)
		return true;
	ksft_print_msg("only %zu of %zu folios have %zu KiB\n", n, nr, folio / 1024);
	munmap(f->base, f->len);
	close(f->fd);
	return false;
}

void unmap(struct file *f)
{
	munmap(f->base, f->len);
	close(f->fd);
}

bool sync_all(const struct file *f)
{
	if (!msync(f->base, f->len, MS_SYNC))
		return true;
	ksft_print_msg("msync: %s\n", strerror(errno));
	return false;
}

/* How many pages of the disk, from @offset of the file on, are not those at @base. */
size_t differ_on_disk(int file, const char *base, size_t len, off_t offset)
{
	char path[64], *buf;
	size_t i, bad = 0;
	int fd;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
	fd = tlb_rs_open(path, O_RDONLY | O_DIRECT);
	buf = tlb_rs_mmap(len, psize);
	if (pread(fd, buf, len, offset) != (ssize_t)len)
		ksft_exit_fail_msg("pread of the disk: %s\n", strerror(errno));
	for (i = 0; i < len; i += psize)
		bad += !!memcmp(buf + i, base + i, psize);
	munmap(buf, len);
	close(fd);
	return bad;
}

bool is_on_disk(const char *what, const struct file *f)
{
	size_t bad = differ_on_disk(f->fd, f->base, f->len, 0);

	if (bad)
		ksft_print_msg("%s: %zu of %zu pages are not on the disk\n", what, bad,
			       f->len / psize);
	return !bad;
}

bool content_is(const char *what, const char *base, size_t len, __u64 seed)
{
	size_t bad = tlb_rs_check(base, len, seed);

	if (bad)
		ksft_print_msg("%s: %zu wrong words\n", what, bad);
	return !bad;
}

/*
 * A thread that adds 1 to a counter in the first WRITTEN of each @every pages, again and again. An
 * emulated TLB has room for few pages, and one fault would make all of a folio dirty.
 */
static struct writer {
	pthread_t thread;
	const struct file *file;
	size_t every;
	__u64 passes;
	__u64 paused;
	bool pause, stop;
} writer;

static void *writer_thread(void *arg)
{
	struct writer *w = arg;
	size_t i;

	tlb_rs_pin_cpu(1);
	while (!__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE)) {
		if (__atomic_load_n(&w->pause, __ATOMIC_ACQUIRE)) {
			__atomic_store_n(&w->paused, 1, __ATOMIC_RELEASE);
			sched_yield();
			continue;
		}
		__atomic_store_n(&w->paused, 0, __ATOMIC_RELEASE);
		for (i = 0; i < w->file->len / psize; i++) {
			__u64 *p = (__u64 *)(w->file->base + i * psize);

			if (i % w->every < WRITTEN)
				__atomic_store_n(p, *p + 1, __ATOMIC_RELAXED);
		}
		__atomic_store_n(&w->passes, w->passes + 1, __ATOMIC_RELEASE);
	}
	return NULL;
}

void writer_start(const struct file *f, size_t every)
{
	writer = (struct writer){ .file = f, .every = every };
	if (pthread_create(&writer.thread, NULL, writer_thread, &writer))
		ksft_exit_fail_msg("cannot start a thread\n");
}

/* Each page is stored to once more. */
void writer_passes(void)
{
	tlb_rs_reaches(&writer.passes, __atomic_load_n(&writer.passes, __ATOMIC_ACQUIRE) + 2,
		       "the writer");
}

/* The same, and then none. */
void writer_pause(void)
{
	writer_passes();
	__atomic_store_n(&writer.pause, true, __ATOMIC_RELEASE);
	tlb_rs_reaches(&writer.paused, 1, "the writer");
}

void writer_resume(void)
{
	__atomic_store_n(&writer.pause, false, __ATOMIC_RELEASE);
}

void writer_end(void)
{
	__atomic_store_n(&writer.stop, true, __ATOMIC_RELEASE);
	pthread_join(writer.thread, NULL);
}
