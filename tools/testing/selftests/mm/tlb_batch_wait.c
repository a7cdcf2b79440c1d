// SPDX-License-Identifier: GPL-2.0
/*
 * For how long a fault waits for a page that reclaim keeps locked until its flush, in rounds:
 *
 *   M (CPU 0)                                 R (CPU 1)
 *   reclaims clean pages: unmaps P,           waits until P is not mapped
 *   keeps it locked                           reads P: faults, and waits for its lock
 *   (goes on with what takes long)
 *   flushes and frees                         goes on, with a new page
 *
 * What comes behind P, and must not be waited for:
 *
 * mappings  A page that is mapped 10,000 times. The worst wait must be no more than twice
 *           that with vm.tlb_batch=0, where P is freed before (or 8 ms, see NOISE_NS).
 * vmas      A page that is mapped once, but in the last of so many VMAs that the walk of the
 *           rmap looks at.
 * notifier  A page of a process whose page tables a slow device uses (debugfs
 *           tlb_batch/secondary).
 * rest      Nothing but the rest of the list, each page of which takes a while (delay_us).
 * lock      A page whose rmap is locked: somebody waits to write to it, until the 10,000
 *           mappings of another page of the file are unmapped. R reads then.
 *
 * Without the rule (skip_hook "wait") R waits for all of it.
 *
 * All pages are holes of a memfd: read only, they are clean, and a new one costs no I/O. Those
 * of a cgroup come from its LRU list in the order in which they were touched first.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "tlb_rs_harness.h"

#define SECONDARY		DEBUGFS "tlb_batch/secondary"

/* Reclaim takes more and more of a list: 26 pages, and then 25 at once, with P and what follows. */
#define NR_PAGES		128
#define PAGE_P			39
#define NR_MAPPINGS		10000
#define NR_VMAS			50000

#define LOAD(x)			__atomic_load_n(&(x), __ATOMIC_ACQUIRE)
#define STORE(x, val)		__atomic_store_n(&(x), val, __ATOMIC_RELEASE)

static struct shared {
	bool touch;		/* the process of the device shall touch its page */
	bool touched;
	bool write;		/* the process that wants to write to the rmap shall begin */
} *sh;

static size_t psize;
static char *pages;		/* NR_PAGES, of a file */
static int pages_fd;
static char *vmas;		/* nr_vmas of the first page of another one */
static size_t nr_vmas;
static int vmas_fd;
static pid_t child;
static int nr_rounds;

/* --- R ------------------------------------------------------------------------------ */

static struct {
	pthread_t id;
	const char *page;
	bool ready;
	bool go;
	bool stop;
	__u64 wait_ns;
} reader;

/*
 * Of P it looks at the page table only, until it is gone. Had it read P before, it could go on
 * to do so, by its TLB, until the flush.
 */
static void *read_page(void *arg)
{
	__u64 ns;

	(void)arg;
	tlb_rs_pin_cpu(1);
	STORE(reader.ready, true);
	for (;;) {
		bool stop = LOAD(reader.stop);

		if (LOAD(reader.go) && !tlb_rs_pfn(reader.page))
			break;
		if (stop)
			return NULL;
	}
	ns = tlb_rs_now_ns();
	__atomic_load_n(reader.page, __ATOMIC_RELAXED);
	reader.wait_ns = tlb_rs_now_ns() - ns;
	return NULL;
}

static void reader_start(const char *page, bool go)
{
	memset(&reader, 0, sizeof(reader));
	reader.page = page;
	reader.go = go;
	if (pthread_create(&reader.id, NULL, read_page, NULL))
		ksft_exit_fail_msg("cannot start the reader\n");
	while (!LOAD(reader.ready))
		;
}

static __u64 reader_end(void)
{
	STORE(reader.stop, true);
	pthread_join(reader.id, NULL);
	return reader.wait_ns;
}

/* --- pages -------------------------------------------------------------------------- */

static int holes(size_t nr)
{
	int fd = memfd_create("tlb_batch_wait", MFD_CLOEXEC);

	if (fd < 0 || ftruncate(fd, nr * psize))
		ksft_exit_fail_msg("memfd: %s\n", strerror(errno));
	return fd;
}

static char *map_pages(int fd)
{
	char *base = tlb_rs_mmap(NR_PAGES * psize, SZ_2M);

	/* That a page is used does not count where it is read at random. */
	if (mmap(base, NR_PAGES * psize, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) != base ||
	    madvise(base, NR_PAGES * psize, MADV_RANDOM))
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	return base;
}

/* Each VMA by itself, because what follows an address is not what follows in the file. */
static char *map_vmas(int fd, size_t nr)
{
	char *base = tlb_rs_mmap(nr * psize, SZ_2M);
	size_t i;

	nr_vmas = nr;
	for (i = 0; i < nr; i++) {
		if (mmap(base + i * psize, psize, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) ==
		    MAP_FAILED)
			ksft_exit_fail_msg("mmap of VMA %zu: %s\n", i, strerror(errno));
	}
	if (madvise(base, nr * psize, MADV_RANDOM))
		ksft_exit_fail_msg("madvise: %s\n", strerror(errno));
	return base;
}

static void forget(int fd, size_t nr)
{
	if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, nr * psize))
		ksft_exit_fail_msg("fallocate: %s\n", strerror(errno));
}

static void touch(const char *base, size_t from, size_t to)
{
	size_t i;

	for (i = from; i < to; i++)
		__atomic_load_n(base + i * psize, __ATOMIC_RELAXED);
}

/* --- what takes long ---------------------------------------------------------------- */

static void mappings_between(void)
{
	touch(vmas, 0, nr_vmas);
}

static void vmas_between(void)
{
	touch(vmas, nr_vmas - 1, nr_vmas);
}

/* The process of the device: its page comes from a file of its own. */
static void device(void)
{
	int fd = tlb_rs_open(SECONDARY, O_RDWR), file = holes(1);
	char buf[64], *page;
	int n;

	page = mmap(NULL, psize, PROT_READ, MAP_SHARED, file, 0);
	madvise(page, psize, MADV_RANDOM);
	n = snprintf(buf, sizeof(buf), "%lx %lx", (unsigned long)page,
		     (unsigned long)page + psize);
	if (page == MAP_FAILED || write(fd, buf, n) != n)
		_exit(1);
	for (;;) {
		while (!LOAD(sh->touch))
			tlb_rs_sleep_us(1000);
		forget(file, 1);
		tlb_rs_cgroup_enter();
		touch(page, 0, 1);
		tlb_rs_cgroup_leave();
		STORE(sh->touch, false);
		STORE(sh->touched, true);
	}
}

/* The process that wants the rmap of a file for itself. */
static void writer(void)
{
	for (;;) {
		if (!LOAD(sh->write)) {
			tlb_rs_sleep_us(100);
			continue;
		}
		munmap(mmap(NULL, psize, PROT_READ, MAP_SHARED, pages_fd, 0), psize);
	}
}

static void start(void (*fn)(void), int cpu)
{
	child = fork();
	if (child < 0)
		ksft_exit_fail_msg("fork: %s\n", strerror(errno));
	if (child)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	tlb_rs_pin_cpu(cpu);
	fn();
}

static void notifier_between(void)
{
	STORE(sh->touched, false);
	STORE(sh->touch, true);
	while (!LOAD(sh->touched)) {
		if (waitpid(child, NULL, WNOHANG))
			ksft_exit_fail_msg("the process of the device has ended\n");
		tlb_rs_sleep_us(100);
	}
}

/* --- rounds ------------------------------------------------------------------------- */

struct round {
	__u64 wait_ns;		/* the worst of R's */
	__u64 reclaim_ns;	/* all of M's */
};

static struct round reclaim_cgroup(void (*between)(void))
{
	struct round r;

	forget(pages_fd, NR_PAGES);
	if (vmas)
		forget(vmas_fd, 1);
	tlb_rs_cgroup_enter();
	touch(pages, 0, PAGE_P + 1);
	tlb_rs_drain_pages();
	if (between)
		between();
	tlb_rs_drain_pages();
	touch(pages, PAGE_P + 1, NR_PAGES);
	tlb_rs_cgroup_leave();
	tlb_rs_drain_pages();

	reader_start(pages + PAGE_P * psize, true);
	r.reclaim_ns = tlb_rs_now_ns();
	if (!tlb_rs_cgroup_reclaim(psize, " swappiness=max"))
		ksft_exit_fail_msg("memory.reclaim: %s\n", strerror(errno));
	r.reclaim_ns = tlb_rs_now_ns() - r.reclaim_ns;
	r.wait_ns = reader_end();
	return r;
}

static void *pageout(void *arg)
{
	(void)arg;
	tlb_rs_pin_cpu(0);
	/* But for the first page, which others have. */
	if (madvise(pages + psize, (NR_PAGES - 1) * psize, MADV_PAGEOUT))
		ksft_exit_fail_msg("MADV_PAGEOUT: %s\n", strerror(errno));
	return NULL;
}

static void *punch(void *arg)
{
	(void)arg;
	tlb_rs_pin_cpu(3);
	forget(pages_fd, 1);
	return NULL;
}

/* MADV_PAGEOUT does not ask whether a page was used, and so waits for the lock. */
static struct round reclaim_locked(void)
{
	pthread_t puncher, pager;
	struct round r;

	touch(pages, 1, NR_PAGES);
	touch(vmas, 0, nr_vmas);
	tlb_rs_drain_pages();
	/* That long for each page: enough for the others to come in between. */
	tlb_rs_delay(TLB_BATCH_DELAY, 20000);
	reader_start(pages + psize, false);
	if (pthread_create(&pager, NULL, pageout, NULL))
		ksft_exit_fail_msg("cannot start a thread\n");
	while (tlb_rs_pfn(pages + psize))
		;
	if (pthread_create(&puncher, NULL, punch, NULL))
		ksft_exit_fail_msg("cannot start a thread\n");
	while (tlb_rs_pfn(vmas))
		;
	STORE(sh->write, true);
	tlb_rs_delay(TLB_BATCH_DELAY, 0);
	/* M has come to the lock. */
	tlb_rs_sleep_us(30000);
	r.reclaim_ns = tlb_rs_now_ns();
	STORE(reader.go, true);
	pthread_join(puncher, NULL);
	STORE(sh->write, false);
	r.reclaim_ns = tlb_rs_now_ns() - r.reclaim_ns;
	r.wait_ns = reader_end();
	pthread_join(pager, NULL);
	return r;
}

/* --- cases -------------------------------------------------------------------------- */

#define SLOW_US		200000	/* the device */
#define PAGE_US		10000	/* unmapping a page */
#define NOISE_NS	4000000	/* what others on the machine make of any wait */

static void prepare_files(void)
{
	pages_fd = holes(NR_PAGES);
	pages = map_pages(pages_fd);
}

static bool prepare_mappings(void)
{
	prepare_files();
	vmas_fd = holes(1);
	vmas = map_vmas(vmas_fd, NR_MAPPINGS);
	return true;
}

static bool prepare_vmas(void)
{
	prepare_files();
	vmas_fd = holes(1);
	vmas = map_vmas(vmas_fd, NR_VMAS);
	return true;
}

static bool prepare_notifier(void)
{
	prepare_files();
	if (!tlb_rs_delay(TLB_SECONDARY_DELAY, SLOW_US))
		return false;
	/* The page has to be of the same node. */
	start(device, 1);
	return true;
}

static bool prepare_rest(void)
{
	prepare_files();
	return tlb_rs_delay(TLB_BATCH_DELAY, PAGE_US);
}

static bool prepare_lock(void)
{
	prepare_files();
	vmas_fd = pages_fd;
	vmas = map_vmas(vmas_fd, NR_MAPPINGS);
	start(writer, 2);
	return tlb_rs_delay(TLB_BATCH_DELAY, 0);
}

/* The worst of all rounds. */
static struct round worst_of(const char *name, void (*between)(void), bool locked)
{
	struct round worst = { };
	int i;

	for (i = 0; i < nr_rounds; i++) {
		struct round r = locked ? reclaim_locked() : reclaim_cgroup(between);

		printf("{\"test\":\"wait\",\"case\":\"%s\",\"tlb_batch\":%s,\"skip\":\"%s\",",
		       name, tlb_batch_json(), tlb_rs_skip());
		printf("\"wait_us\":%llu,\"reclaim_us\":%llu}\n", r.wait_ns / 1000,
		       r.reclaim_ns / 1000);
		if (r.wait_ns > worst.wait_ns)
			worst = r;
	}
	return worst;
}

FIXTURE(tlb_batch_wait) {
	bool expect_long;
};

FIXTURE_VARIANT(tlb_batch_wait) {
	const char *name;
	bool (*prepare)(void);	/* false: the kernel cannot do that */
	void (*between)(void);
	bool locked;
	__u64 limit_ns;		/* of a wait; 0: a quarter of all that reclaim takes */
	bool compare;
};

FIXTURE_VARIANT_ADD(tlb_batch_wait, mappings) {
	.name = "mappings", .prepare = prepare_mappings, .between = mappings_between,
	.compare = true,
};

FIXTURE_VARIANT_ADD(tlb_batch_wait, vmas) {
	.name = "vmas", .prepare = prepare_vmas, .between = vmas_between,
};

FIXTURE_VARIANT_ADD(tlb_batch_wait, notifier) {
	.name = "notifier", .prepare = prepare_notifier, .between = notifier_between,
	.limit_ns = SLOW_US * 500ULL,
};

FIXTURE_VARIANT_ADD(tlb_batch_wait, rest) {
	.name = "rest", .prepare = prepare_rest, .limit_ns = 5 * PAGE_US * 1000ULL,
};

FIXTURE_VARIANT_ADD(tlb_batch_wait, lock) {
	.name = "lock", .prepare = prepare_lock, .locked = true,
};

FIXTURE_SETUP(tlb_batch_wait)
{
	const char *skip = tlb_rs_skip();

	tlb_rs_undo();
	self->expect_long = tlb_rs_env_number("TLB_EXPECT", 0, 0, 1);
	nr_rounds = tlb_rs_env_number("TLB_ROUNDS", 5, 1, 1000);
	if (!tlb_rs_cgroup())
		SKIP(return, "no cgroup that can be reclaimed");
	if (tlb_rs_hook_removed(skip) && !tlb_rs_skip_hooks(skip))
		SKIP(return, "hook '%s' cannot be removed on this kernel", skip);
	tlb_rs_quiet();
	tlb_rs_pin_cpu(0);
	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, sh);
	if (!variant->prepare())
		SKIP(return, "no fault injection");
}

FIXTURE_TEARDOWN_PARENT(tlb_batch_wait)
{
	tlb_rs_tear_down();
}

TEST_F_TIMEOUT(tlb_batch_wait, fault, TLB_RS_TIMEOUT_S)
{
	struct round on, off;
	bool too_long;

	on = worst_of(variant->name, variant->between, variant->locked);
	too_long = on.wait_ns > (variant->limit_ns ?: on.reclaim_ns / 4);

	if (variant->compare) {
		ASSERT_TRUE(tlb_batch_set(0));
		off = worst_of(variant->name, variant->between, variant->locked);
		too_long |= on.wait_ns > 2 * off.wait_ns && on.wait_ns > 2 * NOISE_NS;
		ksft_print_msg("%s: worst wait %llu us, with vm.tlb_batch=0 %llu us\n",
			       variant->name, on.wait_ns / 1000, off.wait_ns / 1000);
	}
	/* Else nobody read the page while reclaim had it. */
	EXPECT_NE(0, on.wait_ns);
	EXPECT_EQ(self->expect_long, too_long);
}

static const char *missing(void)
{
	int on = 0;

	psize = getpagesize();
	if (tlb_rs_nr_cpus() < 4)
		return "needs four CPUs";
	if (!tlb_rs_patching_is_safe())
		return "one thread emulates all CPUs: what waits says nothing";
	if (!tlb_batch_get(&on) || on <= 0)
		return "the locks are those of vm.tlb_batch = 1";
	if (access(TLB_RS_CGROUP_ROOT "cgroup.subtree_control", W_OK))
		return "no cgroup that can be reclaimed";
	if (!tlb_rs_has_swap())
		return "needs swap: shmem is not looked at without";
	return NULL;
}

int main(int argc, char **argv)
{
	tlb_rs_skip_all(missing());
	return test_harness_run(argc, argv);
}
