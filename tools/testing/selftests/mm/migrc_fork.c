// SPDX-License-Identifier: GPL-2.0
/*
 * What it costs to zap a page while another thread forks. Each region is one JSON
 * record; the TLB meter adds what was executed in it.
 *
 *   Z (main, CPU 0)                     F (CPU 1)
 *   stores to P                         fork(), over and over: copies
 *   zaps P: flushes one page            mappings before that of P, and
 *   ... as often as it takes            flushes all at its end
 *
 * dontneed  P is anonymous and zapped by MADV_DONTNEED, under the lock of its VMA alone,
 *           so that it goes on until the fork has come to P
 * truncate  P is a page of a mapped file, zapped by ftruncate(), which needs no lock of
 *           the mm
 *
 * Two who zap at the same time flush the whole address space each, since neither knows
 * what the other has done. A fork is none of them. Where it is taken for one, there are
 * as many such flushes as zaps beside a fork. x86_64 counts them by itself.
 */
#define _GNU_SOURCE
#include <sys/wait.h>

#include "migrc.h"
#include "tlb_rs_harness.h"

#define NR_VMAS		4096	/* before P: what takes a fork long */
#define FLUSHES_OF_FORK	4	/* at most, of whole address spaces: of parent and child */
#define LIMIT_NS	30000000000ULL

static struct {
	/* By F; of one fork, an odd number. */
	__u64 forks;
	char pad[4096 - sizeof(__u64)];
	bool stop;
} *sh;

static long want;
static size_t psize;
static char *page_p;
static int file = -1;

static void *forker(void *arg)
{
	(void)arg;
	tlb_rs_pin_cpu(1);
	while (!LOAD(sh->stop)) {
		pid_t pid;

		STORE(sh->forks, sh->forks + 1);
		pid = fork();
		if (!pid)
			_exit(0);
		STORE(sh->forks, sh->forks + 1);
		if (pid < 0)
			ksft_exit_fail_msg("fork: %s\n", strerror(errno));
		waitpid(pid, NULL, 0);
	}
	return NULL;
}

static void zap_dontneed(void)
{
	if (madvise(page_p, psize, MADV_DONTNEED))
		ksft_exit_fail_msg("MADV_DONTNEED: %s\n", strerror(errno));
}

static void zap_truncate(void)
{
	if (ftruncate(file, 0) || ftruncate(file, psize))
		ksft_exit_fail_msg("ftruncate: %s\n", strerror(errno));
}

static void map_anon(void)
{
}

static void map_file(void)
{
	file = memfd_create("migrc_fork", MFD_CLOEXEC);
	if (file < 0 || ftruncate(file, psize) ||
	    mmap(page_p, psize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != page_p)
		ksft_exit_fail_msg("cannot map a file: %s\n", strerror(errno));
}

struct zaps {
	long nr;
	long beside;	/* a fork, all the time */
	long forks;
	long flushes;	/* of a whole address space; x86_64 */
};

static void run(struct zaps *z, const char *region, void (*map)(void), void (*zap)(void))
{
	size_t len = (NR_VMAS + 1) * psize, i;
	struct tlb_rs_counters c;
	char buf[32], extra[128];
	__u64 begin, was;
	pthread_t id;
	char *area;
	long forks;
	int on = 0;

	area = tlb_rs_mmap(len, psize);
	/* Neighbours that differ stay mappings of their own. */
	for (i = 0; i < NR_VMAS; i += 2) {
		if (madvise(area + i * psize, psize, MADV_DONTDUMP))
			ksft_exit_fail_msg("MADV_DONTDUMP: %s\n", strerror(errno));
	}
	page_p = area + NR_VMAS * psize;
	map();
	/* Of its own, and not shared with the child, whose end would flush for it. */
	if (madvise(page_p, psize, MADV_DONTFORK))
		ksft_exit_fail_msg("MADV_DONTFORK: %s\n", strerror(errno));

	sh = (void *)tlb_rs_mmap(2 * 4096, psize);
	if (pthread_create(&id, NULL, forker, NULL))
		ksft_exit_fail_msg("cannot start a thread\n");
	while (LOAD(sh->forks) < 4)
		;
	tlb_rs_begin(&c);
	begin = tlb_rs_now_ns();
	forks = LOAD(sh->forks);
	while (z->beside < want && tlb_rs_now_ns() - begin < LIMIT_NS) {
		__u64 now;

		__atomic_store_n(page_p, 1, __ATOMIC_RELAXED);
		was = LOAD(sh->forks);
		zap();
		now = LOAD(sh->forks);
		z->nr++;
		z->beside += now == was && was & 1;
	}
	/* Those that have begun before or end after count, too. */
	z->forks = (LOAD(sh->forks) - forks) / 2 + 1;
	tlb_rs_end(&c);
	STORE(sh->stop, true);
	pthread_join(id, NULL);
	z->flushes = c.vmstat[TLB_RS_VMSTAT_FLUSH_ALL];
	if (!tlb_rs_read_file(MIGRC_ENABLE, buf, sizeof(buf)))
		on = atoi(buf);
	snprintf(extra, sizeof(extra), ",\"migrc\":%d,\"zaps\":%ld,\"beside\":%ld,\"forks\":%ld",
		 on, z->nr, z->beside, z->forks);
	tlb_rs_json_region(region, extra, &c);
}

FIXTURE(migrc_fork) {
};

FIXTURE_VARIANT(migrc_fork) {
	const char *region;
	void (*map)(void);
	void (*zap)(void);
};

FIXTURE_VARIANT_ADD(migrc_fork, dontneed) {
	.region = "zap_dontneed",
	.map = map_anon,
	.zap = zap_dontneed,
};

FIXTURE_VARIANT_ADD(migrc_fork, truncate) {
	.region = "zap_truncate",
	.map = map_file,
	.zap = zap_truncate,
};

FIXTURE_SETUP(migrc_fork)
{
	tlb_rs_undo();
}

FIXTURE_TEARDOWN_PARENT(migrc_fork)
{
	tlb_rs_tear_down();
}

TEST_F_TIMEOUT(migrc_fork, flushes, TLB_RS_TIMEOUT_S)
{
	struct zaps z = { };

	run(&z, variant->region, variant->map, variant->zap);
	/* Too few show nothing. */
	EXPECT_GE(z.beside, want);
	EXPECT_GE(z.beside, 2 * FLUSHES_OF_FORK * z.forks);
	EXPECT_LE(z.flushes, FLUSHES_OF_FORK * z.forks + z.beside / 10);
}

int main(int argc, char **argv)
{
	tlb_rs_skip_all(tlb_rs_nr_cpus() < 2 ? "needs two CPUs" : NULL);
	/* Zaps beside a fork, of each. */
	want = tlb_rs_env_number("TLB_ROUNDS", 2000, 1, 1000000);
	psize = getpagesize();
	tlb_rs_quiet();
	tlb_rs_pin_cpu(0);
	return test_harness_run(argc, argv);
}
