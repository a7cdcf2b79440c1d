// SPDX-License-Identifier: GPL-2.0
/*
 * Runs a command and samples, by a clock, what the kernel does meanwhile on
 * all CPUs. Prints how many samples there were in all, how many of them below
 * one function in the call chain, and at which addresses the latter were: whoever
 * has the vmlinux can tell which of these instructions maintain the TLB.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <linux/perf_event.h>

#include "tlb_rs.h"

#define MAX_CPUS	64
#define DATA_PAGES	256	/* a power of two */
#define MAX_ADDRESSES	65536	/* a power of two */

static size_t psize;
static size_t nr_samples, nr_below, nr_lost;
static __u64 func_start, func_end;

static struct { __u64 ip; size_t n; } table[MAX_ADDRESSES];

static bool find_function(const char *name)
{
	char line[256], sym[200];
	__u64 addr, end = ~0ULL;
	FILE *f;
	int pass;

	/* Not sorted: the end is the next higher address of any other symbol. */
	for (pass = 0; pass < 2; pass++) {
		f = fopen("/proc/kallsyms", "r");
		if (!f)
			return false;
		while (fgets(line, sizeof(line), f)) {
			if (sscanf(line, "%llx %*c %199s", &addr, sym) != 2)
				continue;
			if (!pass && !strcmp(sym, name))
				func_start = addr;
			if (pass && addr > func_start && addr < end)
				end = addr;
		}
		fclose(f);
	}
	func_end = end;
	return func_start;
}

static void count(__u64 ip)
{
	size_t i = (ip >> 2) * 0x9e3779b97f4a7c15ULL >> 48;

	for (i %= MAX_ADDRESSES; table[i].n && table[i].ip != ip; i = (i + 1) % MAX_ADDRESSES)
		;
	table[i].ip = ip;
	table[i].n++;
	nr_below++;
}

static void sample(const __u64 *rec)
{
	__u64 ip = rec[1], nr = rec[2], i;

	nr_samples++;
	for (i = 0; i < nr; i++) {
		__u64 addr = rec[3 + i];

		if (addr > func_start && addr <= func_end) {
			count(ip);
			return;
		}
	}
}

struct ring {
	int fd;
	struct perf_event_mmap_page *page;
};

static void drain(struct ring *r)
{
	static __u64 rec[8192];
	size_t size = DATA_PAGES * psize;
	char *data = (char *)r->page + psize;
	__u64 head = __atomic_load_n(&r->page->data_head, __ATOMIC_ACQUIRE);
	__u64 tail = r->page->data_tail;

	while (tail < head) {
		struct perf_event_header *h = (void *)(data + tail % size);
		size_t len = h->size, first = size - tail % size;

		/* A record may wrap around. */
		if (first > len)
			first = len;
		memcpy(rec, h, first);
		memcpy((char *)rec + first, data, len - first);
		h = (void *)rec;
		if (h->type == PERF_RECORD_SAMPLE)
			sample(rec);
		else if (h->type == PERF_RECORD_LOST)
			nr_lost += rec[2];
		tail += len;
	}
	__atomic_store_n(&r->page->data_tail, tail, __ATOMIC_RELEASE);
}

static void help(const char *prog)
{
	printf("usage: %s [--below FUNCTION] [--period NS] COMMAND [ARGUMENT]...\n", prog);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "below", required_argument, NULL, 'b' },
		{ "period", required_argument, NULL, 'p' },
		{ "help", no_argument, NULL, 'h' },
		{ }
	};
	struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE,
		.config = PERF_COUNT_SW_CPU_CLOCK,
		.size = sizeof(attr),
		.sample_period = 250000,
		.sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_CALLCHAIN,
		.exclude_user = 1,
		.exclude_idle = 1,
		.exclude_callchain_user = 1,
	};
	const char *below = "__folio_split";
	struct ring ring[MAX_CPUS];
	int opt, cpu, cpus, status;
	size_t i, printed = 0;
	pid_t pid;

	while ((opt = getopt_long(argc, argv, "+b:p:h", options, NULL)) != -1) {
		switch (opt) {
		case 'b':
			below = optarg;
			break;
		case 'p':
			attr.sample_period = tlb_rs_number(optarg, 10000, 100000000);
			break;
		default:
			help(argv[0]);
			return opt == 'h' ? 0 : KSFT_FAIL;
		}
	}
	if (optind == argc) {
		help(argv[0]);
		return KSFT_FAIL;
	}
	psize = getpagesize();
	if (!find_function(below))
		ksft_exit_skip("no function %s in /proc/kallsyms\n", below);

	cpus = tlb_rs_nr_cpus();
	if (cpus > MAX_CPUS)
		ksft_exit_skip("more than %d CPUs\n", MAX_CPUS);
	for (cpu = 0; cpu < cpus; cpu++) {
		ring[cpu].fd = syscall(SYS_perf_event_open, &attr, -1, cpu, -1,
				       PERF_FLAG_FD_CLOEXEC);
		if (ring[cpu].fd < 0)
			ksft_exit_skip("perf_event_open: %s\n", strerror(errno));
		ring[cpu].page = mmap(NULL, (1 + DATA_PAGES) * psize, PROT_READ | PROT_WRITE,
				      MAP_SHARED, ring[cpu].fd, 0);
		if (ring[cpu].page == MAP_FAILED)
			ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	}

	fflush(stdout);
	pid = fork();
	if (pid < 0)
		ksft_exit_fail_msg("fork: %s\n", strerror(errno));
	if (!pid) {
		execvp(argv[optind], argv + optind);
		_exit(127);
	}
	while (!waitpid(pid, &status, WNOHANG)) {
		tlb_rs_sleep_us(50000);
		for (cpu = 0; cpu < cpus; cpu++)
			drain(&ring[cpu]);
	}
	for (cpu = 0; cpu < cpus; cpu++) {
		ioctl(ring[cpu].fd, PERF_EVENT_IOC_DISABLE, 0);
		drain(&ring[cpu]);
	}

	printf("{\"profile\":\"%s\",\"tlb_batch\":%s,\"samples\":%zu", below, tlb_batch_json(),
	       nr_samples);
	printf(",\"below\":%zu,\"lost\":%zu,\"at\":{", nr_below, nr_lost);
	for (i = 0; i < MAX_ADDRESSES; i++) {
		if (table[i].n)
			printf("%s\"%llx\":%zu", printed++ ? "," : "", table[i].ip, table[i].n);
	}
	printf("}}\n");
	fflush(stdout);
	return WIFEXITED(status) ? WEXITSTATUS(status) : KSFT_FAIL;
}
