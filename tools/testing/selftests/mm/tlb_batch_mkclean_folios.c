// SPDX-License-Identifier: GPL-2.0
/* Several folios that are cleaned together, with one flush: vm.tlb_batch_writeback=1. */
#include "tlb_batch_mkclean.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <linux/fs.h>

#define PAGES		24	/* at most what is cleaned together */
#define EVERY		6
#define CHILDREN	16	/* more page table walks than one batch may take */
#define CHILD_PASSES	20
/* For the flush to be late by, and for a task to reach it. */
#define LATE_US		2000000
#define REACH_US	300000
#define LATE_ROUNDS	3

bool batch_folios(bool on)
{
	return tlb_rs_setting("/proc/sys/vm/tlb_batch_writeback", on ? "1" : "0");
}

static void map_small(struct file *f, size_t nr)
{
	make_file(f, psize, nr);
	f->base = tlb_rs_mmap(f->len, SZ_2M);
	map_file_at(f, f->base, f->len, 0);
	tlb_rs_fill(f->base, f->len, SEED + 1);
}

/* How many folios were cleaned with others. */
static long long batched(void)
{
	return tlb_rs_vmstat_read("tlb_batch_mkclean");
}

/* Whether what was tested has happened since @before. */
static bool has_batched(const char *what, long long before)
{
	int on;

	if (batched() > before || (tlb_batch_get(&on) && !on))
		return true;
	ksft_print_msg("%s: no folios were cleaned together\n", what);
	return false;
}

static int lost_by(const char *what, size_t nr, size_t every, bool (*sync)(const struct file *f))
{
	long long before = batched();
	struct file f;
	bool ok;

	if (!batch_folios(true))
		return skipped("no vm.tlb_batch_writeback");
	map_small(&f, nr);
	ok = none_is_lost(&f, every, sync) && has_batched(what, before);
	unmap(&f);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

int test_small(void)
{
	return lost_by("small", 4 * PAGES, 2 * EVERY, sync_all);
}

static void *flip(void *arg)
{
	bool *stop = arg;
	int i;

	for (i = 0; !__atomic_load_n(stop, __ATOMIC_ACQUIRE); i++) {
		batch_folios(i % 2);
		tlb_rs_sleep_us(1000);
	}
	return NULL;
}

int test_switch(void)
{
	bool stop = false;
	pthread_t flipper;
	int ret;

	if (!batch_folios(true))
		return skipped("no vm.tlb_batch_writeback");
	if (pthread_create(&flipper, NULL, flip, &stop))
		ksft_exit_fail_msg("cannot start a thread\n");
	ret = lost_by("switch", 4 * PAGES, 2 * EVERY, sync_all);
	__atomic_store_n(&stop, true, __ATOMIC_RELEASE);
	pthread_join(flipper, NULL);
	return ret;
}

/* In extents of a few pages each: the file system looks at the same folios again and again. */
int test_extents(void)
{
	struct file f = { .len = 8 * PAGES * psize };
	long long before = batched();
	char path[256];
	bool ok;

	if (!batch_folios(true))
		return skipped("no vm.tlb_batch_writeback");
	snprintf(path, sizeof(path), "%s/tlb_batch_mkclean", dir);
	f.fd = tlb_rs_open(path, O_RDWR | O_CREAT | O_TRUNC);
	unlink(path);
	if (ftruncate(f.fd, f.len))
		ksft_exit_fail_msg("ftruncate: %s\n", strerror(errno));
	f.base = tlb_rs_mmap(f.len, SZ_2M);
	map_file_at(&f, f.base, f.len, 0);
	ok = none_is_lost(&f, 2 * WRITTEN, sync_all) && has_batched("extents", before);
	unmap(&f);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

/* A file whose data goes through the journal. */
int test_journal(void)
{
	long long before = batched();
	int flags = 0;
	struct file f;
	bool ok;

	if (!batch_folios(true))
		return skipped("no vm.tlb_batch_writeback");
	make_file(&f, psize, 4 * PAGES);
	if (!ioctl(f.fd, FS_IOC_GETFLAGS, &flags))
		flags |= FS_JOURNAL_DATA_FL;
	if (ioctl(f.fd, FS_IOC_SETFLAGS, &flags)) {
		close(f.fd);
		return skipped("no journal for data");
	}
	f.base = tlb_rs_mmap(f.len, SZ_2M);
	map_file_at(&f, f.base, f.len, 0);
	tlb_rs_fill(f.base, f.len, SEED + 1);
	ok = none_is_lost(&f, 2 * EVERY, sync_all) && has_batched("journal", before);
	unmap(&f);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

/* Each child counts in a word of its own. */
static void child_stores(const struct file *f, int child)
{
	int pass;
	size_t i;

	for (pass = 0; pass < CHILD_PASSES; pass++) {
		for (i = 0; i < f->len; i += psize)
			((__u64 *)(f->base + i))[child]++;
		sched_yield();
	}
	_exit(0);
}

/* In more processes than one batch reaches. */
int test_crowd(void)
{
	long long before = batched();
	struct file f;
	int i, status;
	bool ok = true;

	if (!batch_folios(true))
		return skipped("no vm.tlb_batch_writeback");
	map_small(&f, PAGES);
	for (i = 0; i < CHILDREN; i++) {
		pid_t pid = fork();

		if (pid < 0)
			ksft_exit_fail_msg("fork: %s\n", strerror(errno));
		if (!pid)
			child_stores(&f, i);
	}
	for (i = 0; i < CHILDREN; i++) {
		ok &= sync_all(&f);
		if (wait(&status) < 0 || status)
			ok = false;
	}
	ok = ok && is_on_disk("of many", &f) && has_batched("crowd", before);
	unmap(&f);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

static void *late_sync(void *arg)
{
	const struct file *f = arg;

	tlb_rs_pin_cpu(tlb_rs_nr_cpus() - 1);
	return (void *)(long)!sync_all(f);
}

/* A thread that has made the PTEs read-only and is late to flush. */
static void late_sync_start(pthread_t *late, const struct file *f)
{
	if (!tlb_rs_delay(TLB_BATCH_FLUSH_DELAY, LATE_US))
		ksft_exit_fail_msg("%s is not there\n", TLB_BATCH_FLUSH_DELAY);
	if (pthread_create(late, NULL, late_sync, (void *)f))
		ksft_exit_fail_msg("cannot start a thread\n");
	tlb_rs_sleep_us(REACH_US);
}

static bool late_sync_end(pthread_t late)
{
	void *ret;

	pthread_join(late, &ret);
	tlb_rs_delay_none();
	return !ret;
}

/* The second one finds PTEs that are read-only, but stores still go on. */
static bool second_cleaner_waits(void)
{
	pthread_t late;
	struct file f;
	bool ok;

	map_small(&f, PAGES);
	writer_start(&f, EVERY);
	writer_passes();
	late_sync_start(&late, &f);
	ok = !fsync(f.fd);
	writer_pause();
	ok &= late_sync_end(late);
	ok = ok && is_on_disk("stores", &f);
	writer_end();
	unmap(&f);
	return ok;
}

int test_cleaners(void)
{
	long long before = batched();
	bool ok = true;
	int i;

	if (!batch_folios(true) || access(TLB_BATCH_FLUSH_DELAY, W_OK))
		return skipped("no vm.tlb_batch_writeback, or no delays");
	for (i = 0; ok && i < LATE_ROUNDS; i++)
		ok = second_cleaner_waits();
	return ok && has_batched("cleaners", before) ? KSFT_PASS : KSFT_FAIL;
}

static struct {
	sigjmp_buf refused;
	const struct file *file;
	__u64 stores;
	bool read_only;
	bool stored;
} attempt;

static void on_segv(int sig)
{
	(void)sig;
	siglongjmp(attempt.refused, 1);
}

/* Stores until it is refused, or until one succeeds after mprotect() has returned. */
static void *store_until_refused(void *arg)
{
	bool read_only;
	size_t i;

	(void)arg;
	tlb_rs_pin_cpu(1);
	if (sigsetjmp(attempt.refused, 1))
		return NULL;
	do {
		read_only = __atomic_load_n(&attempt.read_only, __ATOMIC_ACQUIRE);
		for (i = 0; i < attempt.file->len; i += psize)
			__atomic_store_n((__u64 *)(attempt.file->base + i), attempt.stores,
					 __ATOMIC_RELAXED);
		__atomic_store_n(&attempt.stores, attempt.stores + 1, __ATOMIC_RELEASE);
	} while (!read_only);
	attempt.stored = true;
	return NULL;
}

static bool mprotect_is_final(void)
{
	pthread_t late, stores;
	struct file f;
	bool ok;

	map_small(&f, EVERY);
	memset(&attempt, 0, sizeof(attempt));
	attempt.file = &f;
	if (pthread_create(&stores, NULL, store_until_refused, NULL))
		ksft_exit_fail_msg("cannot start a thread\n");
	while (__atomic_load_n(&attempt.stores, __ATOMIC_ACQUIRE) < 2)
		tlb_rs_sleep_us(1000);
	late_sync_start(&late, &f);
	if (mprotect(f.base, f.len, PROT_READ))
		ksft_exit_fail_msg("mprotect: %s\n", strerror(errno));
	__atomic_store_n(&attempt.read_only, true, __ATOMIC_RELEASE);
	pthread_join(stores, NULL);
	ok = late_sync_end(late);
	if (attempt.stored) {
		ksft_print_msg("a thread stores to what mprotect() has made read-only\n");
		ok = false;
	}
	unmap(&f);
	return ok;
}

int test_protect(void)
{
	struct sigaction segv = { .sa_handler = on_segv }, old;
	long long before = batched();
	bool ok = true;
	int i;

	if (!batch_folios(true) || access(TLB_BATCH_FLUSH_DELAY, W_OK))
		return skipped("no vm.tlb_batch_writeback, or no delays");
	sigaction(SIGSEGV, &segv, &old);
	for (i = 0; ok && i < LATE_ROUNDS; i++)
		ok = mprotect_is_final();
	sigaction(SIGSEGV, &old, NULL);
	return ok && has_batched("protect", before) ? KSFT_PASS : KSFT_FAIL;
}

/* Whether folios are left to folio_mkclean() while the kernel's model of a device is there. */
int test_device(void)
{
	int fd = open(DEBUGFS "tlb_batch/secondary", O_RDWR | O_CLOEXEC);
	long long before = batched();
	struct file f;
	char buf[64];
	bool ok;
	int n;

	if (fd < 0 || !batch_folios(true))
		return skipped("no vm.tlb_batch_writeback, or no model of a device");
	map_small(&f, PAGES);
	ok = sync_all(&f) && has_batched("without a device", before);
	tlb_rs_fill(f.base, f.len, SEED + 2);
	/* From now on until this process ends. */
	n = snprintf(buf, sizeof(buf), "%lx %lx", (unsigned long)f.base,
		     (unsigned long)f.base + f.len);
	if (write(fd, buf, n) != n)
		ksft_exit_fail_msg("tlb_batch/secondary: %s\n", strerror(errno));
	before = batched();
	ok = ok && sync_all(&f) && is_on_disk("with a device", &f);
	if (batched() != before) {
		ksft_print_msg("%lld folios were cleaned together\n", batched() - before);
		ok = false;
	}
	close(fd);
	unmap(&f);
	return ok ? KSFT_PASS : KSFT_FAIL;
}
