// SPDX-License-Identifier: GPL-2.0
/* Who uses the pages: threads, or processes that come and go. */
#include "migrc_workload.h"

/* On all CPUs of a node. */
static void pin_node(int node)
{
	char path[64], buf[256], *p = buf;
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/cpulist", node);
	if (tlb_rs_read_file(path, buf, sizeof(buf)))
		return;
	while (*p >= '0' && *p <= '9') {
		long cpu = strtol(p, &p, 10), last = cpu;

		if (*p == '-')
			last = strtol(p + 1, &p, 10);
		for (; cpu <= last; cpu++)
			CPU_SET(cpu, &cpus);
		p += *p == ',';
	}
	sched_setaffinity(0, sizeof(cpus), &cpus);
}

void *user(void *arg)
{
	long id = (long)arg;
	__u64 x = 88172645463325252ULL + id, n = 0, sum = 0;
	int node = -1;

	tlb_rs_pin_cpu(1 + id % (tlb_rs_nr_cpus() - 1));
	while (!LOAD(shared->stop)) {
		size_t page;
		__u64 *word;

		if (by == BY_BALANCE && node != LOAD(shared->node)) {
			node = LOAD(shared->node);
			pin_node(node);
		}

		/* Marsaglia's xorshift64 */
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		page = x % nr_pages;
		if (load_now->hot && x % 10)
			page /= 10;
		word = (__u64 *)(base + page * psize) + (x >> 40) % (psize / sizeof(*word));
		if (load_now->write && x % 10)
			__atomic_store_n(word, x, __ATOMIC_RELAXED);
		else
			sum += __atomic_load_n(word, __ATOMIC_RELAXED);
		if (!(++n % 64))
			__atomic_store_n(&shared->ops[id][0], n, __ATOMIC_RELAXED);
	}
	return (void *)sum;
}

/* A function at the begin of each page of the library, which does nothing. */
void put_function(char *page)
{
#if defined(__aarch64__)
	*(__u32 *)page = 0xd65f03c0;	/* ret */
#elif defined(__x86_64__)
	*(__u8 *)page = 0xc3;		/* ret */
#endif
}

/* The life of one of the processes; clock() is its CPU time. */
int process(const char *library)
{
	int fd = open(library, O_RDONLY | O_CLOEXEC);
	off_t len = lseek(fd, 0, SEEK_END), at;
	char *text;

	text = mmap(NULL, len, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
	if (text == MAP_FAILED)
		return 1;
	while (clock() < LIFE) {
		for (at = 0; at < len; at += getpagesize())
			((void (*)(void))(text + at))();
	}
	return 0;
}

void path_of(char *path, size_t size, const char *what)
{
	snprintf(path, size, "%.200s/migrc_workload_%s", dir, what);
}

/* Keeps @nr_procs of them alive; an operation is one that has ended. */
void spawn(void)
{
	char program[256], library[256];
	int alive = 0, status, cpu;
	cpu_set_t cpus;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	CPU_ZERO(&cpus);
	for (cpu = 1; cpu < tlb_rs_nr_cpus(); cpu++)
		CPU_SET(cpu, &cpus);
	sched_setaffinity(0, sizeof(cpus), &cpus);
	path_of(program, sizeof(program), "program");
	path_of(library, sizeof(library), "library");
	for (;;) {
		if (alive < nr_procs && !LOAD(shared->stop)) {
			pid_t pid = fork();

			if (!pid) {
				execl(program, program, "--process", library, NULL);
				_exit(1);
			}
			if (pid < 0)
				_exit(1);
			alive++;
			continue;
		}
		if (!alive)
			_exit(LOAD(shared->failed));
		if (wait(&status) < 0)
			_exit(1);
		alive--;
		if (status)
			STORE(shared->failed, true);
		__atomic_fetch_add(&shared->ops[0][0], 1, __ATOMIC_RELAXED);
	}
}

__u64 all_ops(void)
{
	__u64 n = 0;
	int i;

	for (i = 0; i < MAX_THREADS; i++)
		n += __atomic_load_n(&shared->ops[i][0], __ATOMIC_RELAXED);
	return n;
}
