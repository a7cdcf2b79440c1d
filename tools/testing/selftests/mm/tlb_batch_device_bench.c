// SPDX-License-Identifier: GPL-2.0
/*
 * Migrates small pages to a device that has memory of its own, with one call, which is the
 * measured region.
 *
 * exclusive  pages of this process only
 * shared     pages that a child maps, too
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "tlb_batch_device.h"

static size_t pages = 512;
static int nr_readers;

/* A child that has the pages in the TLB of its CPU, and stays in user mode. */
static pid_t start_child(const char *base)
{
	const size_t psize = getpagesize();
	int ready[2];
	pid_t pid;
	char c = 0;

	if (pipe(ready))
		return -1;
	pid = fork();
	if (!pid) {
		size_t i;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		/* Beside the readers. */
		tlb_rs_pin_cpu(tlb_rs_nr_cpus() - 1);
		for (i = 0; i < pages; i++)
			__atomic_load_n(base + i * psize, __ATOMIC_RELAXED);
		if (write(ready[1], &c, 1) != 1)
			_exit(1);
		for (;;)
			asm volatile("" ::: "memory");
	}
	close(ready[1]);
	if (pid > 0 && read(ready[0], &c, 1) != 1)
		ksft_print_msg("the child is dead\n");
	close(ready[0]);
	return pid;
}

static int run_variant(const char *variant, bool shared)
{
	const size_t len = pages * getpagesize();
	struct tlb_rs_readers readers;
	struct tlb_rs_counters c;
	char name[32], extra[64];
	pid_t pid = -1;
	size_t there;
	char *base, *content;
	bool ok;
	int fd;

	fd = device_open();
	if (fd < 0)
		return KSFT_SKIP;
	base = tlb_rs_mmap(len, SZ_2M);
	madvise(base, len, MADV_NOHUGEPAGE);
	tlb_rs_fill(base, len, 1);
	if (shared)
		pid = start_child(base);
	/* Not shared: what the device reads is stored there without a fault. */
	content = tlb_rs_mmap(len, SZ_2M);
	tlb_rs_fill(content, len, 0);
	tlb_rs_drain_lru();
	tlb_rs_readers_start(&readers, nr_readers, false, base, len);
	tlb_rs_begin(&c);
	ok = device_migrate(fd, base, pages, content);
	tlb_rs_end(&c);
	there = device_has(fd, base, pages, NULL);
	tlb_rs_readers_end(&readers);
	if (pid > 0) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
	snprintf(name, sizeof(name), "device_%s", variant);
	snprintf(extra, sizeof(extra), ",\"pages\":%zu,\"there\":%zu,\"readers\":%d", pages,
		 there, nr_readers);
	tlb_rs_json_region(name, extra, &c);
	ok = ok && there == pages && !tlb_rs_check(base, len, 1) && !tlb_rs_check(content, len, 1);
	munmap(base, len);
	munmap(content, len);
	close(fd);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "pages", required_argument, NULL, 'p' },
		{ "readers", required_argument, NULL, 'r' },
		{ }
	};
	int opt;

	ksft_print_header();
	while ((opt = getopt_long(argc, argv, "p:r:", options, NULL)) != -1) {
		switch (opt) {
		case 'p':
			pages = tlb_rs_number(optarg, 1, 1 << 16);
			break;
		case 'r':
			nr_readers = tlb_rs_number(optarg, 0, TLB_RS_MAX_READERS);
			break;
		default:
			printf("usage: %s [--pages N] [--readers K]\n", argv[0]);
			return KSFT_FAIL;
		}
	}
	if (getpagesize() != 4096)
		ksft_exit_skip("needs pages of 4 KiB\n");
	tlb_rs_pin_cpu(0);
	tlb_rs_quiet();

	ksft_set_plan(2);
	ksft_test_result_report(run_variant("exclusive", false), "device_bench exclusive\n");
	ksft_test_result_report(run_variant("shared", true), "device_bench shared\n");
	ksft_finished();
}
