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

#define NR_VMAS		4096	/* before P: what takes a fork long */
#define FLUSHES_OF_FORK	4	/* at most, of whole address spaces: of parent and child */
#define LIMIT_NS	30000000000ULL

static struct {
	/* By F; of one fork, an odd number. */
	__u64 forks;
	char pad[4096 - sizeof(__u64)];
	bool stop;
} *sh;

static long want = 2000;
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

static const struct test {
	const char *name;
	const char *region;
	void (*map)(void);
	void (*zap)(void);
} tests[] = {
	{ "dontneed", "zap_dontneed", map_anon, zap_dontneed },
	{ "truncate", "zap_truncate", map_file, zap_truncate },
};

static int run(const struct test *t)
{
	size_t len = (NR_VMAS + 1) * psize, i;
	long zaps = 0, beside = 0, forks, all;
	struct tlb_rs_counters c;
	char buf[32], extra[128];
	__u64 begin, was;
	pthread_t id;
	char *area;
	int on = 0;

	area = tlb_rs_mmap(len, psize);
	/* Neighbours that differ stay mappings of their own. */
	for (i = 0; i < NR_VMAS; i += 2) {
		if (madvise(area + i * psize, psize, MADV_DONTDUMP))
			ksft_exit_fail_msg("MADV_DONTDUMP: %s\n", strerror(errno));
	}
	page_p = area + NR_VMAS * psize;
	t->map();
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
	was = LOAD(sh->forks);
	forks = was;
	while (beside < want && tlb_rs_now_ns() - begin < LIMIT_NS) {
		__u64 now;

		__atomic_store_n(page_p, 1, __ATOMIC_RELAXED);
		was = LOAD(sh->forks);
		t->zap();
		now = LOAD(sh->forks);
		zaps++;
		beside += now == was && was & 1;
	}
	/* Those that have begun before or end after count, too. */
	forks = (LOAD(sh->forks) - forks) / 2 + 1;
	tlb_rs_end(&c);
	STORE(sh->stop, true);
	pthread_join(id, NULL);
	if (!tlb_rs_read_file(MIGRC_ENABLE, buf, sizeof(buf)))
		on = atoi(buf);
	snprintf(extra, sizeof(extra), ",\"migrc\":%d,\"zaps\":%ld,\"beside\":%ld,\"forks\":%ld",
		 on, zaps, beside, forks);
	tlb_rs_json_region(t->region, extra, &c);
	munmap(area, len);
	munmap(sh, 2 * 4096);
	if (file >= 0)
		close(file);
	file = -1;

	if (beside < want || beside < 2 * FLUSHES_OF_FORK * forks) {
		ksft_print_msg("%s: %ld zaps beside %ld forks, too few\n", t->name, beside, forks);
		return KSFT_FAIL;
	}
	all = c.vmstat[TLB_RS_VMSTAT_FLUSH_ALL];
	if (all > FLUSHES_OF_FORK * forks + beside / 10) {
		ksft_print_msg("%s: %ld flushes of a whole address space\n", t->name, all);
		return KSFT_FAIL;
	}
	return KSFT_PASS;
}

static void help(const char *prog)
{
	printf("usage: %s [--zaps N]\nN: beside a fork, in each region (default %ld)\n", prog,
	       want);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "zaps", required_argument, NULL, 'z' },
		{ "help", no_argument, NULL, 'h' },
		{ }
	};
	size_t i;
	int opt;

	ksft_print_header();
	while ((opt = getopt_long(argc, argv, "z:h", options, NULL)) != -1) {
		switch (opt) {
		case 'z':
			want = tlb_rs_number(optarg, 1, 1000000);
			break;
		default:
			help(argv[0]);
			return opt == 'h' ? 0 : KSFT_FAIL;
		}
	}
	if (tlb_rs_nr_cpus() < 2)
		ksft_exit_skip("needs two CPUs\n");
	psize = getpagesize();
	tlb_rs_quiet();
	tlb_rs_pin_cpu(0);
	ksft_set_plan(ARRAY_SIZE(tests));
	for (i = 0; i < ARRAY_SIZE(tests); i++)
		ksft_test_result_report(run(&tests[i]), "fork: %s\n", tests[i].name);
	ksft_finished();
}
