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
#include <getopt.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "tlb_rs.h"

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
static int nr_rounds = 5;

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
	while (!LOAD(reader.go) || tlb_rs_pfn(reader.page)) {
		if (LOAD(reader.stop))
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

static const struct wait_case {
	const char *name;
	bool (*prepare)(void);	/* false: the kernel cannot do that */
	void (*between)(void);
	bool locked;
	__u64 limit_ns;		/* of a wait; 0: a quarter of all that reclaim takes */
	bool compare;
} cases[] = {
	{ "mappings", prepare_mappings, mappings_between, .compare = true },
	{ "vmas", prepare_vmas, vmas_between, .limit_ns = 0 },
	{ "notifier", prepare_notifier, notifier_between, .limit_ns = SLOW_US * 500ULL },
	{ "rest", prepare_rest, NULL, .limit_ns = 5 * PAGE_US * 1000ULL },
	{ "lock", prepare_lock, NULL, .locked = true },
};

/* The worst of all rounds. */
static struct round run(const struct wait_case *c, const char *skip)
{
	struct round worst = { };
	int i;

	for (i = 0; i < nr_rounds; i++) {
		struct round r = c->locked ? reclaim_locked() : reclaim_cgroup(c->between);

		printf("{\"test\":\"wait\",\"case\":\"%s\",\"tlb_batch\":%s,\"skip\":\"%s\",",
		       c->name, tlb_batch_json(), skip);
		printf("\"wait_us\":%llu,\"reclaim_us\":%llu}\n", r.wait_ns / 1000,
		       r.reclaim_ns / 1000);
		if (r.wait_ns > worst.wait_ns)
			worst = r;
	}
	return worst;
}

static bool is_long(const struct wait_case *c, const struct round *r)
{
	return r->wait_ns > (c->limit_ns ?: r->reclaim_ns / 4);
}

static void run_case(const struct wait_case *c, const char *skip, bool expect_long)
{
	struct round on, off;
	bool too_long;

	if (!c->prepare()) {
		ksft_test_result_skip("wait: %s: no fault injection\n", c->name);
		return;
	}
	on = run(c, skip);
	too_long = is_long(c, &on);
	if (c->compare) {
		if (!tlb_batch_set(0))
			ksft_exit_fail_msg("%s cannot be written\n", TLB_BATCH_SYSCTL);
		off = run(c, skip);
		tlb_batch_set(1);
		too_long |= on.wait_ns > 2 * off.wait_ns && on.wait_ns > 2 * NOISE_NS;
		ksft_print_msg("%s: worst wait %llu us, with vm.tlb_batch=0 %llu us\n", c->name,
			       on.wait_ns / 1000, off.wait_ns / 1000);
	}
	if (child) {
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		child = 0;
	}
	if (pages_fd)
		close(pages_fd);
	munmap(pages, NR_PAGES * psize);
	if (vmas)
		munmap(vmas, nr_vmas * psize);
	vmas = NULL;
	tlb_rs_delay_none();
	ksft_test_result(too_long == expect_long, "wait: %s\n", c->name);
}

static void help(const char *prog)
{
	printf("usage: %s [option]...\n"
	       "  [--case NAME] [--rounds N] [--skip HOOK] [--expect-long]\n",
	       prog);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "case", required_argument, NULL, 'c' },
		{ "rounds", required_argument, NULL, 'n' },
		{ "skip", required_argument, NULL, 's' },
		{ "expect-long", no_argument, NULL, 'l' },
		{ "help", no_argument, NULL, 'h' },
		{ }
	};
	const char *skip = "none", *only = NULL;
	bool expect_long = false;
	int opt, on = 0;
	size_t i, nr = 0;

	ksft_print_header();
	while ((opt = getopt_long(argc, argv, "c:n:s:lh", options, NULL)) != -1) {
		switch (opt) {
		case 'c':
			only = optarg;
			break;
		case 'n':
			nr_rounds = tlb_rs_number(optarg, 1, 1000);
			break;
		case 's':
			skip = optarg;
			break;
		case 'l':
			expect_long = true;
			break;
		case 'h':
			help(argv[0]);
			return 0;
		default:
			help(argv[0]);
			return KSFT_FAIL;
		}
	}

	psize = getpagesize();
	for (i = 0; i < ARRAY_SIZE(cases); i++)
		nr += !only || !strcmp(only, cases[i].name);
	if (!nr)
		ksft_exit_fail_msg("no case '%s'\n", only);
	if (tlb_rs_nr_cpus() < 4)
		ksft_exit_skip("needs four CPUs\n");
	if (!tlb_rs_patching_is_safe())
		ksft_exit_skip("one thread emulates all CPUs: what waits says nothing\n");
	if (!tlb_batch_get(&on) || on <= 0)
		ksft_exit_skip("the locks are those of vm.tlb_batch = 1\n");
	if (!tlb_rs_cgroup())
		ksft_exit_skip("no cgroup that can be reclaimed\n");
	if (!tlb_rs_has_swap())
		ksft_exit_skip("needs swap: shmem is not looked at without\n");
	if (tlb_rs_hook_removed(skip) && !tlb_rs_skip_hooks(skip))
		ksft_exit_skip("hook '%s' cannot be removed on this kernel\n", skip);
	tlb_rs_quiet();
	tlb_rs_pin_cpu(0);
	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	ksft_set_plan(nr);
	for (i = 0; i < ARRAY_SIZE(cases); i++) {
		if (!only || !strcmp(only, cases[i].name))
			run_case(&cases[i], skip, expect_long);
	}
	ksft_finished();
}
