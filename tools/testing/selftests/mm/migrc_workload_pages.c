// SPDX-License-Identifier: GPL-2.0
/* What is used: tables, files, a program and its library. */
#include "migrc_workload.h"

static void *map_file(void *at, const char *path, size_t len)
{
	int prot = PROT_READ | (at && large ? PROT_EXEC : 0);
	int fd = tlb_rs_open(path, O_RDONLY);
	char *map;
	size_t i;

	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	map = mmap(at, len, prot, MAP_SHARED | (at ? MAP_FIXED : 0), fd, 0);
	if (map == MAP_FAILED)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	close(fd);
	if (!large)
		madvise(map, len, MADV_RANDOM);
	for (i = 0; i < len; i += psize)
		__atomic_load_n(map + i, __ATOMIC_RELAXED);
	return map;
}

static int create(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0700);

	if (fd < 0)
		ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	return fd;
}

static void finish(int fd, const char *path)
{
	if (fsync(fd))
		ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	/* Nobody has write access any more. */
	close(fd);
}

static void put(int fd, const char *buf, size_t len)
{
	if (write(fd, buf, len) != (ssize_t)len)
		ksft_exit_fail_msg("write: %s\n", strerror(errno));
}

static void make_file(const char *path, bool functions)
{
	char *buf = malloc(nr_pages * psize);
	int fd = create(path);
	size_t i;

	if (!buf)
		ksft_exit_fail_msg("no memory\n");
	tlb_rs_fill(buf, nr_pages * psize, SEED);
	for (i = 0; functions && i < nr_pages; i++)
		put_function(buf + i * psize);
	put(fd, buf, nr_pages * psize);
	finish(fd, path);
	free(buf);
}

/* This program, on a filesystem whose pages may be deferred. */
static void copy_program(const char *path)
{
	int from = tlb_rs_open("/proc/self/exe", O_RDONLY), to = create(path);
	char buf[4096];
	ssize_t n;

	while ((n = read(from, buf, sizeof(buf))) > 0)
		put(to, buf, n);
	close(from);
	finish(to, path);
}

/* From the begin of this program's file to the end of what is executable. */
static size_t text_size(void)
{
	unsigned long begin, end, offset;
	char line[512], perms[8];
	size_t size = 0;
	FILE *f;

	f = fopen("/proc/self/maps", "r");
	/* The program comes first. */
	while (f && !size && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx %7s %lx", &begin, &end, perms, &offset) == 4 &&
		    perms[2] == 'x')
			size = offset + end - begin;
	}
	if (!size)
		ksft_exit_fail_msg("no text\n");
	fclose(f);
	return size;
}

/* A library and the text of the program, as one range. */
static size_t map_procs(void)
{
	size_t len = nr_pages * psize, text = text_size();
	char path[256];

	/* As a loader aligns them: with --large, as blocks. */
	base = tlb_rs_mmap(len + text, SZ_2M);
	path_of(path, sizeof(path), "library");
	make_file(path, true);
	map_file(base, path, len);
	path_of(path, sizeof(path), "program");
	copy_program(path);
	map_file(base + len, path, text);
	return (len + text) / psize;
}

void map_pages(const struct workload *w)
{
	size_t nr = nr_pages, len = nr * psize;
	char path[256];

	if (w->procs) {
		nr = map_procs();
	} else if (w->file) {
		path_of(path, sizeof(path), "file");
		make_file(path, false);
		base = map_file(NULL, path, len);
		unlink(path);
	} else {
		base = migrc_mmap(nr, 0, SEED);
		syscall(SYS_mbind, base, len, MPOL_DEFAULT, NULL, 0, 0);
		if (protect && !w->write && mprotect(base, len, PROT_READ))
			ksft_exit_fail_msg("mprotect: %s\n", strerror(errno));
	}
	migrc_set_init(&set, base, nr);
}

bool unmap_pages(const struct workload *w)
{
	bool ok = w->write || w->procs || !tlb_rs_check(base, nr_pages * psize, SEED);
	char path[256];

	if (!ok)
		ksft_print_msg("%s: wrong contents\n", w->name);
	munmap(base, set.nr * psize);
	migrc_set_free(&set);
	if (w->procs) {
		path_of(path, sizeof(path), "program");
		unlink(path);
		path_of(path, sizeof(path), "library");
		unlink(path);
	}
	return ok;
}
