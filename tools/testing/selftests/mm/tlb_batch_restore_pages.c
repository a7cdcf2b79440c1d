// SPDX-License-Identifier: GPL-2.0
/* Folios that move, what the kernel counts, a child that shares them, pins, files. */
#include "tlb_batch_restore.h"

#include <sys/uio.h>
#include <sys/vfs.h>
#include <linux/magic.h>

#define STATS	DEBUGFS "tlb_batch/stats"

void restored_begin(struct restored *r)
{
	char line[128];
	FILE *f;

	r->pages = tlb_rs_vmstat_read("tlb_batch_restored");
	r->runs = -1;
	f = fopen(STATS, "r");
	while (f && fgets(line, sizeof(line), f))
		sscanf(line, "restore %lld", &r->runs);
	if (f)
		fclose(f);
}

/* With vm.tlb_batch=0, the kernel maps page by page whatever is asked here. */
bool restored_is(const struct restored *before, long long pages, long long runs)
{
	struct restored now;
	int on = 0;

	restored_begin(&now);
	now.pages -= before->pages;
	now.runs = now.runs < 0 ? -1 : now.runs - before->runs;
	if (!tlb_batch_get(&on) || !on)
		pages = 0;
	if (!pages)
		runs = 0;
	if (now.pages == pages && (now.runs < 0 || now.runs == runs))
		return true;
	ksft_print_msg("%lld pages in %lld runs were mapped again, not %lld in %lld\n",
		       now.pages, now.runs, pages, runs);
	return false;
}

/*
 * Adds what one folio is mapped again by, if only neighbours of the same @kind are alike.
 * A page of kind 0 is not mapped. A page that differs from the next one is not counted, and
 * ends the search until the next of RUN_LOOK pages: MIGRATION_RUN_LOOK of mm/migrate.c.
 */
void expect_runs(const unsigned char *kind, struct restored *want)
{
	size_t i, end, look = 0;

	for (i = 0; i < folio_pages; i = end) {
		end = i + 1;
		if (!kind[i] || i < look)
			continue;
		for (; end < folio_pages && kind[end] == kind[i]; end++)
			;
		if (end == i + 1) {
			look = (i / RUN_LOOK + 1) * RUN_LOOK;
			continue;
		}
		want->pages += end - i;
		want->runs++;
	}
}

/* Written folios on node 0, or NULL. */
char *make_folios(size_t nr)
{
	size_t i, n = 0, len = nr * folio_size;
	char *base = tlb_rs_mmap(len, pmd_size);

	tlb_rs_bind_node(base, len, 0);
	tlb_rs_fill(base, len, SEED);
	for (i = 0; i < nr; i++)
		n += tlb_rs_is_folio(base + i * folio_size, folio_pages);
	if (n != nr)
		ksft_exit_fail_msg("only %zu of %zu folios have %zu KiB\n", n, nr,
				   folio_size / 1024);
	return base;
}

/* As above, but of the size of a PMD, and mapped by PTEs. */
char *make_thps(size_t nr)
{
	size_t i, n = 0, len = nr * pmd_size;
	char *base = tlb_rs_mmap(len, pmd_size);

	tlb_rs_bind_node(base, len, 0);
	choose_size(pmd_size, "always");
	tlb_rs_fill(base, len, SEED);
	choose_size(pmd_size, "never");
	for (i = 0; i < nr; i++) {
		char *second = base + i * pmd_size + psize;

		if (mprotect(second, psize, PROT_READ) ||
		    mprotect(second, psize, PROT_READ | PROT_WRITE))
			ksft_exit_fail_msg("mprotect: %s\n", strerror(errno));
		/* mprotect() takes away what it does not give back at once. */
		__atomic_fetch_or(second, 0, __ATOMIC_RELAXED);
		n += tlb_rs_is_folio(base + i * pmd_size, pmd_size / psize);
	}
	if (n != nr || tlb_rs_smaps_kb(base, "AnonHugePages"))
		ksft_exit_fail_msg("only %zu of %zu THPs, or not mapped by PTEs\n", n, nr);
	return base;
}

/* One page of each folio is named: the others are isolated with it. How many have moved. */
size_t move_folios(char *base, size_t nr, size_t stride, int node)
{
	void *addrs[nr];
	int nodes[nr], status[nr];
	size_t i, n = 0;

	for (i = 0; i < nr; i++) {
		addrs[i] = base + i * stride;
		nodes[i] = node;
		status[i] = -1;
	}
	if (syscall(SYS_move_pages, 0, nr, addrs, nodes, status, MPOL_MF_MOVE_ALL) < 0)
		ksft_print_msg("move_pages: %s\n", strerror(errno));
	for (i = 0; i < nr; i++)
		n += status[i] == node;
	return n;
}

bool all_move(char *base, size_t nr, int node)
{
	size_t n = move_folios(base, nr, folio_size, node);

	if (n != nr)
		ksft_print_msg("only %zu of %zu folios have moved\n", n, nr);
	return n == nr;
}

bool all_whole(const char *base, size_t nr)
{
	size_t i, n = 0;

	for (i = 0; i < nr; i++)
		n += tlb_rs_is_folio(base + i * folio_size, folio_pages);
	if (n != nr)
		ksft_print_msg("only %zu of %zu folios are whole\n", n, nr);
	return n == nr;
}

bool content_is(const char *what, const char *base, size_t len, __u64 seed)
{
	size_t bad = tlb_rs_check(base, len, seed);

	if (bad)
		ksft_print_msg("%s: %zu wrong words\n", what, bad);
	return !bad;
}

/* Of a range that was filled as a whole: the words of page @page. */
bool page_is(const char *base, size_t page, __u64 seed)
{
	const size_t words = psize / sizeof(__u64);
	const __u64 *w = (const __u64 *)base;
	size_t i;

	for (i = page * words; i < (page + 1) * words; i++) {
		if (w[i] != tlb_rs_word(seed, i))
			return false;
	}
	return true;
}

void write_page(char *base, size_t page, __u64 seed)
{
	const size_t words = psize / sizeof(__u64);
	__u64 *w = (__u64 *)base;
	size_t i;

	for (i = page * words; i < (page + 1) * words; i++)
		w[i] = tlb_rs_word(seed, i);
}

/*
 * Forks a child that answers each question with @answer(). It ends with its parent: then it
 * reads the end of a file, or is killed.
 */
void sharer_start(struct sharer *s, bool (*answer)(char what))
{
	int ask[2], says[2];
	char what;

	fflush(stdout);
	if (pipe2(ask, O_CLOEXEC) || pipe2(says, O_CLOEXEC))
		ksft_exit_fail_msg("pipe: %s\n", strerror(errno));
	s->pid = fork();
	if (s->pid < 0)
		ksft_exit_fail_msg("fork: %s\n", strerror(errno));
	if (!s->pid) {
		close(ask[1]);
		while (read(ask[0], &what, 1) == 1 && what != SHARER_END) {
			char ok = answer(what);

			if (write(says[1], &ok, 1) != 1)
				break;
		}
		_exit(0);
	}
	close(ask[0]);
	close(says[1]);
	s->ask = ask[1];
	s->says = says[0];
}

/* Its answer. */
bool sharer_ask(struct sharer *s, char what)
{
	char ok = 0;

	if (write(s->ask, &what, 1) != 1 || read(s->says, &ok, 1) != 1)
		ksft_exit_fail_msg("a child is dead\n");
	return ok;
}

void sharer_end(struct sharer *s)
{
	const char end = SHARER_END;

	if (write(s->ask, &end, 1) != 1)
		ksft_exit_fail_msg("a child is dead\n");
	close(s->ask);
	close(s->says);
	waitpid(s->pid, NULL, 0);
}

int uffd_open(__u64 features)
{
	struct uffdio_api api = { .api = UFFD_API, .features = features };
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC);

	if (fd < 0)
		return -1;
	if (!ioctl(fd, UFFDIO_API, &api) && (api.features & features) == features)
		return fd;
	close(fd);
	return -1;
}

bool uffd_register(int fd, void *addr, size_t len, __u64 mode)
{
	struct uffdio_register reg = {
		.range = { .start = (unsigned long)addr, .len = len },
		.mode = mode,
	};

	return !ioctl(fd, UFFDIO_REGISTER, &reg);
}

static void *pin_thread(void *arg)
{
	struct pin *pin = arg;
	struct iovec local = { .iov_base = pin->dst, .iov_len = pin->len };
	struct iovec remote = { .iov_base = pin->src, .iov_len = pin->len };

	pin->copied = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
	return NULL;
}

/* process_vm_readv() pins its source, and then waits for a page that userfaultfd leaves missing. */
bool pin_pages(struct pin *pin, char *src, size_t size)
{
	struct uffd_msg msg;

	pin->src = src;
	pin->len = size;
	pin->uffd = uffd_open(0);
	if (pin->uffd < 0)
		return false;
	pin->dst = tlb_rs_mmap(size, psize);
	if (!uffd_register(pin->uffd, pin->dst, size, UFFDIO_REGISTER_MODE_MISSING) ||
	    pthread_create(&pin->thread, NULL, pin_thread, pin))
		ksft_exit_fail_msg("cannot pin pages: %s\n", strerror(errno));
	if (read(pin->uffd, &msg, sizeof(msg)) != sizeof(msg) ||
	    msg.event != UFFD_EVENT_PAGEFAULT)
		ksft_exit_fail_msg("no fault of the copy\n");
	return true;
}

/* Lets the copy go on. Whether it has read what is at the source. */
bool unpin_pages(struct pin *pin)
{
	struct uffdio_zeropage zero = {
		.range = { .start = (unsigned long)pin->dst, .len = pin->len },
	};
	bool ok;

	if (ioctl(pin->uffd, UFFDIO_ZEROPAGE, &zero))
		ksft_exit_fail_msg("UFFDIO_ZEROPAGE: %s\n", strerror(errno));
	pthread_join(pin->thread, NULL);
	close(pin->uffd);
	ok = pin->copied == (ssize_t)pin->len && !memcmp(pin->dst, pin->src, pin->len);
	munmap(pin->dst, pin->len);
	return ok;
}

/*
 * A file of ext4, all of it on the disk, read through the mapping. NULL if there is no ext4, or
 * if its folios have another size; skipped() then says which.
 */
char *map_file(size_t nr, int prot, int *fd)
{
	size_t i, n = 0, len = nr * folio_size;
	char path[256], *base, *buf;
	struct statfs st;

	if (statfs(ext4_dir, &st) || st.f_type != EXT4_SUPER_MAGIC) {
		skipped("no ext4 on TLB_DIR, or /mnt");
		return NULL;
	}
	snprintf(path, sizeof(path), "%s/tlb_batch_restore", ext4_dir);
	*fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (*fd < 0)
		ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	unlink(path);
	buf = tlb_rs_mmap(len, psize);
	tlb_rs_fill(buf, len, SEED);
	/* In pieces that fit a folio. */
	for (i = 0; i < nr; i++) {
		if (write(*fd, buf + i * folio_size, folio_size) != (ssize_t)folio_size)
			ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	}
	munmap(buf, len);
	if (fsync(*fd))
		ksft_exit_fail_msg("fsync: %s\n", strerror(errno));
	base = tlb_rs_mmap(len, pmd_size);
	if (mmap(base, len, prot, MAP_SHARED | MAP_FIXED, *fd, 0) == MAP_FAILED)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	/* Else khugepaged could collapse it. */
	if (madvise(base, len, MADV_NOHUGEPAGE))
		ksft_exit_fail_msg("MADV_NOHUGEPAGE: %s\n", strerror(errno));
	for (i = 0; i < len; i += psize)
		__atomic_load_n(base + i, __ATOMIC_RELAXED);
	for (i = 0; i < nr; i++)
		n += tlb_rs_is_folio(base + i * folio_size, folio_pages);
	if (n == nr)
		return base;
	ksft_print_msg("only %zu of %zu folios of the file have %zu KiB\n", n, nr,
		       folio_size / 1024);
	skipped("no folios of this size in a file");
	munmap(base, len);
	close(*fd);
	return NULL;
}
