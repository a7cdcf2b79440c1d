// SPDX-License-Identifier: GPL-2.0
/*
 * Reclaimed pages that a fault replaces before reclaim has flushed, in rounds:
 *
 *   M (CPU 0)                   W (CPU 2)                   R (CPU 1)
 *   MADV_PAGEOUT, P the last:                               read P all the time,
 *   clears P's PTE              P's PTE is no longer there: has it in its TLB
 *   (window)                    store new to P, through
 *                               the kernel: another page
 *                               flag = round, release       (acquire) v = P
 *   flushes and frees
 *
 * R must read the new value. What has to prevent a stale one depends on what a
 * fault finds, so there are seven acts:
 *
 * lazyfree  MADV_FREE: the PTE is empty and nothing stands in the way of a fault.
 *           The invalidation is issued before the PTL is released. The window is
 *           open before the flush (flush_delay_us), and without the rule
 *           (skip_hook "open") already before the issue (delay_us).
 * file      a clean page of a private file mapping. Several are flushed together;
 *           they stay locked and in the page cache until then, and W waits for
 *           that. Without the rule (skip_hook "lock") they are released first, and
 *           W gets its copy-on-write page while R has the one of the page cache.
 * swap      the same for clean pages in the swap cache: they were swapped in to be
 *           read. Swap has to be on a disk, because the kernel drops what it has
 *           read from a fast device like zram from the swap cache.
 * guard     a page as in "file", but W makes it a guard page, which waits for
 *           nobody, and flushes: R must not read at all. Without the rule
 *           (skip_hook "open") R goes on reading.
 * guard_enomem  the same, but MADV_GUARD_INSTALL fails behind P, where it has no memory for
 *           a page table. P is a guard page nevertheless.
 * poison    as "guard", by UFFDIO_POISON for a page of a memfd. W registers in the window
 *           only: before, reclaim would see it. MADV_PAGEOUT would make it wait, so it
 *           is a cgroup that is reclaimed.
 * table     a page as in "file", in a page table that is freed in the window, because
 *           MADV_DONTNEED (Z, CPU 3) found it empty, having let go of its lock. It has
 *           to flush: W maps anonymous memory there, and munmap() sees no table to look
 *           for a mark in. Without the rule (skip_hook "open") R goes on reading the
 *           file. Z lets go of the lock because an allocation fails, and waits for
 *           flush_delay_us before it looks, in which R finds P again.
 *
 * lazyfree is about arm64: x86_64 tells the CPUs only with the flush, whether this
 * is batched or not, and a stock kernel has the same window.
 *
 * W stores with pwrite() to /proc/self/mem, so not through a stale entry of its
 * own CPU. In the window the old page is not free, so P cannot get it again.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/vfs.h>
#include <linux/magic.h>
#include <linux/userfaultfd.h>

#include "tlb_rs_harness.h"

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL	102
#define MADV_GUARD_REMOVE	103
#endif
#ifndef UFFDIO_POISON
#define UFFD_FEATURE_POISON	0x4000
#define UFFDIO_POISON		_IOWR(UFFDIO, 8, struct uffdio_poison)

struct uffdio_poison {
	struct uffdio_range range;
	__u64 mode;
	__s64 updated;
};
#endif

/* What R and W exchange is in pages of their own. */
static struct shared {
	__u64 flag;
	char pad0[4096 - sizeof(__u64)];
	__u64 ack;
	__u64 stale;
	char pad1[4096 - 2 * sizeof(__u64)];
	__u64 reading;		/* the round in which R may read P */
	char pad2[4096 - sizeof(__u64)];
	__u64 reads;
	char pad3[4096 - sizeof(__u64)];
	bool stop;
} *sh;

struct act {
	const char *name;
	size_t nr_pages;
	size_t p;		/* which of them is P: of what is reclaimed, the last */
	const char *(*map)(const char *dir);	/* returns why there cannot be one, or NULL */
	void (*prepare)(__u64 round);
	int advice;		/* before MADV_PAGEOUT, or 0 */
	bool cgroup;		/* is reclaimed; MADV_PAGEOUT holds mmap_lock */
	bool (*install)(void);	/* W does this, not a store; false if too late */
	bool (*before)(void);	/* W does this before its store; false if too late */
};

static const struct act *act;

static const __u64 *page_p;
static char *base;
static size_t psize, len;
static long delay_us;
static int mem, memfd, uffd, table_fd, fail_fd;

static __u64 old_value(__u64 round)
{
	return 2 * round;
}

static __u64 new_value(__u64 round)
{
	return 2 * round + 1;
}

/*
 * What QEMU emulates for arm64 as a TLB of few entries it flushes whole for one page, and
 * makes it larger if many are used. So R uses more pages, whose entries are not P's.
 */
#define CROWD_FIRST	128
#define CROWD_LAST	511

static const char *crowd;

static void read_crowd(void)
{
	size_t i;

	for (i = CROWD_FIRST; crowd && i <= CROWD_LAST; i++)
		__atomic_load_n(crowd + i * psize, __ATOMIC_RELAXED);
}

static sigjmp_buf fault;

static void on_fault(int sig)
{
	(void)sig;
	siglongjmp(fault, 1);
}

/* Whether P can be read, and what is in it. Without a system call. */
static bool read_p(__u64 *v)
{
	if (sigsetjmp(fault, 0))
		return false;
	*v = __atomic_load_n(page_p, __ATOMIC_RELAXED);
	return true;
}

static void *reader(void *arg)
{
	__u64 round, v;

	(void)arg;
	tlb_rs_pin_cpu(1);
	__atomic_store_n(&sh->ack, 0, __ATOMIC_RELEASE);
	for (round = 1;; round++) {
		while (__atomic_load_n(&sh->reading, __ATOMIC_ACQUIRE) != round) {
			if (__atomic_load_n(&sh->stop, __ATOMIC_RELAXED))
				return NULL;
		}
		while (__atomic_load_n(&sh->flag, __ATOMIC_ACQUIRE) != round) {
			read_crowd();
			read_p(&v);
			__atomic_fetch_add(&sh->reads, 1, __ATOMIC_RELAXED);
		}
		sh->stale += read_p(&v) ? v != new_value(round) : !act->install;
		__atomic_store_n(&sh->ack, round, __ATOMIC_RELEASE);
	}
}

static void store(const void *addr, __u64 val)
{
	if (pwrite(mem, &val, sizeof(val), (unsigned long)addr) != sizeof(val))
		ksft_exit_fail_msg("/proc/self/mem: %s\n", strerror(errno));
}

static void advise(int advice)
{
	if (madvise(base, len, advice))
		ksft_exit_fail_msg("madvise %d: %s\n", advice, strerror(errno));
}

static const char *map_anon(const char *dir)
{
	(void)dir;
	base = tlb_rs_mmap(len, SZ_2M);
	madvise(base, len, MADV_NOHUGEPAGE);
	memset(base, 0, len);
	return NULL;
}

/* Pages without buffers: read from disk, not written. -1: not in this directory. */
static int open_file(const char *dir)
{
	struct statfs fs;
	char path[256];
	char *buf;
	int fd;

	if (!dir)
		return -1;
	snprintf(path, sizeof(path), "%s/tlb_batch_refault.XXXXXX", dir);
	fd = mkstemp(path);
	if (fd < 0)
		return -1;
	unlink(path);
	if (!fstatfs(fd, &fs) && fs.f_type == TMPFS_MAGIC) {
		close(fd);
		return -1;
	}
	buf = calloc(1, len);
	if (!buf || write(fd, buf, len) != (ssize_t)len || fsync(fd))
		ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	free(buf);
	if (posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
		ksft_exit_fail_msg("cannot drop the page cache\n");
	return fd;
}

static void mmap_file(int fd, int flags)
{
	base = mmap(base, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | flags, fd, 0);
	if (base == MAP_FAILED)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	/* One page at a time, so no large folios. */
	advise(MADV_RANDOM);
}

#define NO_FILE	"needs TLB_DIR, on a disk"

static const char *map_file(const char *dir)
{
	int fd = open_file(dir);

	if (fd < 0)
		return NO_FILE;
	mmap_file(fd, 0);
	close(fd);
	return NULL;
}

#define FAIL_PAGE_ALLOC	DEBUGFS "fail_page_alloc/"

#define NO_FAILURES	"needs CONFIG_FAIL_PAGE_ALLOC"

static bool has_failures(void)
{
	return !access("/proc/thread-self/fail-nth", W_OK) &&
	       tlb_rs_setting(FAIL_PAGE_ALLOC "min-order", "0");
}

/* A page table of its own, between others that stay. */
static const char *map_table(const char *dir)
{
	if (len != SZ_2M || tlb_rs_nr_cpus() < 4)
		return "needs pages of 4 KiB and four CPUs";
	if (!has_failures())
		return NO_FAILURES;
	table_fd = open_file(dir);
	if (table_fd < 0)
		return NO_FILE;
	/* Nothing is read ahead, and then mapped beside P. */
	posix_fadvise(table_fd, 0, 0, POSIX_FADV_RANDOM);
	base = tlb_rs_mmap(3 * len, SZ_2M) + len;
	madvise(base - len, 3 * len, MADV_NOHUGEPAGE);
#ifdef __aarch64__
	/* Nor for a page beside large ones, which stacks may be. */
	prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	crowd = base + len;
#endif
	return NULL;
}

/* P is the last page of its page table. The next table is not there, and cannot be had. */
static const char *map_enomem(const char *dir)
{
	size_t table = psize / sizeof(__u64) * psize;
	int fd;

	if (!has_failures() || !tlb_rs_setting(FAIL_PAGE_ALLOC "ignore-gfp-wait", "N") ||
	    !tlb_rs_setting(FAIL_PAGE_ALLOC "verbose", "0"))
		return NO_FAILURES;
	fd = open_file(dir);
	if (fd < 0)
		return NO_FILE;
	fail_fd = tlb_rs_open("/proc/thread-self/fail-nth", O_WRONLY);
	base = tlb_rs_mmap(2 * table, table) + table - len;
	/* One mapping: what comes before the next would have been installed, and flushed. */
	len += psize;
	mmap_file(fd, MAP_FIXED);
	len -= psize;
	close(fd);
	return NULL;
}

/* A hole that is only read is clean. */
static const char *map_memfd(const char *dir)
{
	struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_POISON };

	(void)dir;
	if (!tlb_rs_has_swap())
		return "needs swap: shmem is not looked at without";
	uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api))
		return "no UFFDIO_POISON";
	memfd = memfd_create("tlb_batch_refault", MFD_CLOEXEC);
	if (memfd < 0 || ftruncate(memfd, len))
		ksft_exit_fail_msg("memfd: %s\n", strerror(errno));
	base = tlb_rs_mmap(len, psize);
	return NULL;
}

static void read_all(void)
{
	size_t i;

	for (i = 0; i < act->nr_pages; i++)
		__atomic_load_n(base + i * psize, __ATOMIC_RELAXED);
}

static void store_all(__u64 val)
{
	size_t i;

	for (i = 0; i < act->nr_pages; i++)
		store((char *)page_p - i * psize, val);
}

static void prepare_lazyfree(__u64 round)
{
	store_all(old_value(round));
	tlb_rs_drain_pages();
}

/* The copies of the last round go, the page cache is read. */
static void prepare_file(__u64 round)
{
	(void)round;
	advise(MADV_DONTNEED);
	read_all();
	tlb_rs_drain_pages();
}

static void prepare_guard(__u64 round)
{
	advise(MADV_GUARD_REMOVE);
	prepare_file(round);
}

/* Mapped anew, so not registered. P is charged to the cgroup in which it is touched first. */
static void prepare_poison(__u64 round)
{
	(void)round;
	if (mmap(base, len, PROT_READ, MAP_SHARED | MAP_FIXED, memfd, 0) != base)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	tlb_rs_cgroup_enter();
	read_all();
	tlb_rs_cgroup_leave();
	tlb_rs_drain_pages();
}

/* Written to swap and read again, so clean. */
static void prepare_swap(__u64 round)
{
	size_t i;

	store_all(old_value(round));
	tlb_rs_drain_pages();
	advise(MADV_PAGEOUT);
	read_all();
	tlb_rs_drain_pages();
	for (i = 0; i < act->nr_pages; i++) {
		while (tlb_rs_kpageflags(tlb_rs_pfn(base + i * psize)) & (1 << KPF_WRITEBACK))
			tlb_rs_sleep_us(1000);
	}
}

static pthread_t zapper_id;
static bool zap_done;

static void *zapper(void *arg)
{
	__u64 round = *(__u64 *)arg;
	int fd;

	tlb_rs_pin_cpu(3);
	fd = tlb_rs_open("/proc/thread-self/fail-nth", O_WRONLY);
	/* Without memory for more, the pages gathered so far are flushed and freed. */
	if (write(fd, "1", 1) != 1)
		ksft_exit_fail_msg("fail-nth: %s\n", strerror(errno));
	advise(MADV_DONTNEED);
	__atomic_store_n(&zap_done, true, __ATOMIC_RELEASE);
	/* The end of a thread zaps its stack, which would flush. */
	while (__atomic_load_n(&sh->ack, __ATOMIC_ACQUIRE) != round)
		tlb_rs_sleep_us(1000);
	close(fd);
	return NULL;
}

/* As many as a struct mmu_gather has room for: Z's flush, before the window, is of these. */
#define GATHERED	7

static void prepare_table(__u64 round)
{
	const char *last = base + len - psize;
	static __u64 arg;
	char byte;
	size_t i;

	if (round > 1)
		pthread_join(zapper_id, NULL);
	arg = round;
	mmap_file(table_fd, MAP_FIXED);
	for (i = 0; i < GATHERED; i++)
		__atomic_store_n(base + len - (i + 1) * psize, 1, __ATOMIC_RELAXED);
	/*
	 * In the page cache, of the cgroup and inactive, but not in the page table. It may
	 * still be there from when it was written, in a large folio.
	 */
	tlb_rs_drain_pages();
	posix_fadvise(table_fd, 0, 0, POSIX_FADV_DONTNEED);
	tlb_rs_cgroup_enter();
	if (pread(table_fd, &byte, 1, act->p * psize) != 1)
		ksft_exit_fail_msg("pread: %s\n", strerror(errno));
	tlb_rs_cgroup_leave();
	tlb_rs_drain_pages();
	if (!tlb_rs_delay(TLB_BATCH_FLUSH_DELAY, delay_us))
		ksft_exit_fail_msg("cannot write %s\n", TLB_BATCH_FLUSH_DELAY);
	zap_done = false;
	if (pthread_create(&zapper_id, NULL, zapper, &arg))
		ksft_exit_fail_msg("cannot start the thread that zaps\n");
	while (tlb_rs_pfn(last))
		;
	__atomic_load_n(page_p, __ATOMIC_RELAXED);
}

/* False if Z did not find the table empty. */
static bool before_table(void)
{
	bool in_time = !__atomic_load_n(&zap_done, __ATOMIC_ACQUIRE);

	while (!__atomic_load_n(&zap_done, __ATOMIC_ACQUIRE))
		;
	if (mmap(base, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
		 -1, 0) != base)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	return in_time;
}

static bool install_guard(void)
{
	if (madvise(base + len - psize, psize, MADV_GUARD_INSTALL))
		ksft_exit_fail_msg("MADV_GUARD_INSTALL: %s\n", strerror(errno));
	return true;
}

static bool install_enomem(void)
{
	if (write(fail_fd, "1", 1) != 1)
		ksft_exit_fail_msg("fail-nth: %s\n", strerror(errno));
	if (!madvise(base + len - psize, 2 * psize, MADV_GUARD_INSTALL) || errno != ENOMEM)
		ksft_exit_fail_msg("MADV_GUARD_INSTALL did not run out of memory\n");
	return true;
}

static bool install_poison(void)
{
	struct uffdio_poison poison = { .range = { .start = (unsigned long)base, .len = len } };
	struct uffdio_register reg = {
		.range = poison.range,
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};

	if (ioctl(uffd, UFFDIO_REGISTER, &reg))
		ksft_exit_fail_msg("UFFDIO_REGISTER: %s\n", strerror(errno));
	if (!ioctl(uffd, UFFDIO_POISON, &poison))
		return true;
	if (errno != EEXIST)
		ksft_exit_fail_msg("UFFDIO_POISON: %s\n", strerror(errno));
	/* R has P back, but must not read it. */
	install_guard();
	return false;
}

static bool reclaiming;
static bool reclaim_done;
static long clean;		/* rounds in which P was clean before */

/* Until R has P in its TLB. */
static void wait_for_reads(void)
{
	__u64 reads = __atomic_load_n(&sh->reads, __ATOMIC_RELAXED);

	while (__atomic_load_n(&sh->reads, __ATOMIC_RELAXED) < reads + 100)
		;
}

static void *reclaimer(void *arg)
{
	(void)arg;
	tlb_rs_pin_cpu(0);
	/*
	 * On the same CPU, or MADV_PAGEOUT does not see what MADV_FREE did. Both
	 * also flush if the mm is marked, which MADV_PAGEOUT would, too, and so
	 * take P from R's TLB.
	 */
	advise(act->advice ? act->advice : MADV_COLD);
	wait_for_reads();
	__atomic_store_n(&reclaiming, true, __ATOMIC_RELEASE);
	if (!act->cgroup) {
		advise(MADV_PAGEOUT);
	} else {
		/* That waits for Z's lock of the VMA; and MADV_RANDOM hides use from reclaim. */
		if (!act->before)
			tlb_rs_forget_use();
		tlb_rs_cgroup_reclaim(psize, "");
	}
	__atomic_store_n(&reclaim_done, true, __ATOMIC_RELEASE);
	return NULL;
}

/* False if W came too late for the window. */
static bool one_round(__u64 round)
{
	bool in_time;
	pthread_t id;
	__u64 pfn;

	act->prepare(round);
	pfn = tlb_rs_pfn(page_p);
	if (!act->advice)
		clean += !(tlb_rs_kpageflags(pfn) & (1 << KPF_DIRTY));
	__atomic_store_n(&sh->reading, round, __ATOMIC_RELEASE);
	/* Z, which waits already, has to be done before. */
	if ((act->advice && !tlb_rs_delay(TLB_BATCH_DELAY, delay_us)) ||
	    !tlb_rs_delay(TLB_BATCH_FLUSH_DELAY, act->before ? 3 * delay_us : delay_us))
		ksft_exit_fail_msg("cannot write %s\n", TLB_BATCH_DELAY);

	reclaiming = false;
	reclaim_done = false;
	if (pthread_create(&id, NULL, reclaimer, NULL))
		ksft_exit_fail_msg("cannot start the thread that reclaims\n");
	/* MADV_COLD may split a large folio, whose PTEs are not there meanwhile. */
	while (!__atomic_load_n(&reclaiming, __ATOMIC_ACQUIRE))
		;
	/* Nothing there, or already a page that R found: the zero page. */
	while (tlb_rs_pfn(page_p) == pfn && !__atomic_load_n(&reclaim_done, __ATOMIC_ACQUIRE))
		;
	in_time = !act->before || act->before();
	in_time &= !__atomic_load_n(&reclaim_done, __ATOMIC_ACQUIRE);
	if (!act->install)
		store(page_p, new_value(round));
	else	/* waits for nobody */
		in_time = act->install() && !__atomic_load_n(&reclaim_done, __ATOMIC_ACQUIRE);
	__atomic_store_n(&sh->flag, round, __ATOMIC_RELEASE);

	while (__atomic_load_n(&sh->ack, __ATOMIC_ACQUIRE) != round)
		;
	pthread_join(id, NULL);
	tlb_rs_delay_none();
	return in_time;
}

FIXTURE(tlb_batch_refault) {
	const char *skip;
	long rounds;
	__u64 least_stale, most_stale;
};

FIXTURE_VARIANT(tlb_batch_refault) {
	struct act act;
	bool disk_swap;
	/* By default; 0: 50 and 50000. */
	long rounds, delay_us;
};

FIXTURE_VARIANT_ADD(tlb_batch_refault, lazyfree) {
	.act = { "lazyfree", 1, 0, map_anon, prepare_lazyfree, .advice = MADV_FREE },
};

FIXTURE_VARIANT_ADD(tlb_batch_refault, file) {
	.act = { "file", 16, 15, map_file, prepare_file },
};

FIXTURE_VARIANT_ADD(tlb_batch_refault, swap) {
	.act = { "swap", 16, 15, map_anon, prepare_swap },
	.disk_swap = true,
};

FIXTURE_VARIANT_ADD(tlb_batch_refault, guard) {
	.act = { "guard", 16, 15, map_file, prepare_guard, .install = install_guard },
};

FIXTURE_VARIANT_ADD(tlb_batch_refault, guard_enomem) {
	.act = { "guard_enomem", 16, 15, map_enomem, prepare_guard, .install = install_enomem },
};

FIXTURE_VARIANT_ADD(tlb_batch_refault, poison) {
	.act = { "poison", 1, 0, map_memfd, prepare_poison, .cgroup = true,
		 .install = install_poison },
};

FIXTURE_VARIANT_ADD(tlb_batch_refault, table) {
	.act = { "table", 512, 99, map_table, prepare_table, .cgroup = true,
		 .before = before_table },
	.rounds = 8,
	.delay_us = 200000,
};

FIXTURE_SETUP(tlb_batch_refault)
{
	const char *why;

	tlb_rs_undo();
	self->skip = tlb_rs_skip();
	self->rounds = tlb_rs_env_number("TLB_ROUNDS", variant->rounds ?: 50, 1, 1000000);
	self->least_stale = tlb_rs_env_number("TLB_EXPECT", 0, 0, 1000000);
	self->most_stale = self->least_stale ? self->rounds : 0;
	delay_us = tlb_rs_env_number("TLB_DELAY", variant->delay_us ?: 50000, 1, 1000000);
	act = &variant->act;
	len = act->nr_pages * psize;
#ifdef __x86_64__
	if (act->advice)
		SKIP(return, "x86_64 has this window, batch or not");
#endif
	if (variant->disk_swap && !tlb_rs_has_disk_swap())
		SKIP(return, "needs swap on a disk");
	if (act->cgroup && !tlb_rs_cgroup())
		SKIP(return, "no cgroup that can be reclaimed");
	if (tlb_rs_hook_removed(self->skip) && !tlb_rs_skip_hooks(self->skip))
		SKIP(return, "hook '%s' cannot be removed on this kernel", self->skip);
	tlb_rs_quiet();
	tlb_rs_no_zswap();
	why = act->map(tlb_rs_env("TLB_DIR"));
	if (why)
		SKIP(return, "%s", why);
}

FIXTURE_TEARDOWN_PARENT(tlb_batch_refault)
{
	tlb_rs_tear_down();
}

TEST_F_TIMEOUT(tlb_batch_refault, before_flush, TLB_RS_TIMEOUT_S)
{
	struct sigaction action = { .sa_handler = on_fault, .sa_flags = SA_NODEFER };
	long late = 0, round;
	pthread_t id;

	/* Not where a write to /proc/self/mem has its data in its own buffer. */
	page_p = (__u64 *)(base + act->p * psize + psize / 2);
	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGBUS, &action, NULL);
	mem = tlb_rs_open("/proc/self/mem", O_RDWR);
	tlb_rs_pin_cpu(2);
	sh = (struct shared *)tlb_rs_mmap(sizeof(*sh), psize);
	sh->ack = ~0ULL;
	ASSERT_EQ(0, pthread_create(&id, NULL, reader, NULL));
	while (__atomic_load_n(&sh->ack, __ATOMIC_ACQUIRE))
		;

	for (round = 1; round <= self->rounds; round++)
		late += !one_round(round);
	__atomic_store_n(&sh->stop, true, __ATOMIC_RELAXED);
	pthread_join(id, NULL);

	printf("{\"test\":\"refault\",\"act\":\"%s\",\"tlb_batch\":%s,\"skip\":\"%s\",",
	       act->name, tlb_batch_json(), self->skip);
	printf("\"rounds\":%ld,\"clean\":%ld,\"late\":%ld,\"stale\":%llu}\n", self->rounds, clean,
	       late, sh->stale);
	/* Rounds in which P was dirty, or outside the window, prove nothing. */
	if (!act->advice)
		EXPECT_LE(self->rounds / 2, clean);
	EXPECT_GE(self->rounds / 2, late);
	EXPECT_LE(self->least_stale, sh->stale);
	EXPECT_GE(self->most_stale, sh->stale);
}

static const char *missing(void)
{
	int on = 0;

	if (tlb_rs_nr_cpus() < 3)
		return "needs three CPUs";
	if (!tlb_batch_get(&on) || on <= 0)
		return "the windows are those of vm.tlb_batch = 1";
	return access(TLB_BATCH_FLUSH_DELAY, R_OK) ?
	       "no fault injection: " TLB_BATCH_FLUSH_DELAY " is absent" : NULL;
}

int main(int argc, char **argv)
{
	psize = getpagesize();
	tlb_rs_skip_all(missing());
	return test_harness_run(argc, argv);
}
