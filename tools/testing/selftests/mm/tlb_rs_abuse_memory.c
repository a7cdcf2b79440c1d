// SPDX-License-Identifier: GPL-2.0
/* No memory is lost: what leaked, forkbomb, hugetlb. */
#include "tlb_rs_abuse.h"

/* --- nothing leaked ---------------------------------------------------------------- */

static long long meminfo(const char *buf, const char *field)
{
	const char *p = strstr(buf, field);

	return p ? atoll(p + strlen(field)) : 0;
}

static long slab_objects(const char *name)
{
	char line[512], found[64];
	long objects, ret = -1;
	FILE *f = fopen("/proc/slabinfo", "r");

	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%63s %ld", found, &objects) == 2 && !strcmp(found, name))
			ret = objects;
	}
	fclose(f);
	return ret;
}

/* Pages that are free, but kept for one CPU. */
static long long pageset_pages(void)
{
	FILE *f = fopen("/proc/zoneinfo", "r");
	long long pages = 0;
	char line[256];
	long val;

	if (!f)
		return 0;
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, " count: %ld", &val) == 1)
			pages += val;
	}
	fclose(f);
	return pages;
}

void read_balance(struct balance *b)
{
	static const char * const known[] = {
		"MemFree:", "Buffers:", "\nCached:", "SwapCached:", "AnonPages:", "Slab:",
		"KernelStack:", "PageTables:", "Percpu:", "Hugetlb:",
	};
	char buf[8192] = "";
	size_t i;

	tlb_rs_read_file("/proc/meminfo", buf, sizeof(buf));
	b->lost_kb = meminfo(buf, "MemTotal:") - pageset_pages() * (getpagesize() / 1024);
	for (i = 0; i < ARRAY_SIZE(known); i++)
		b->lost_kb -= meminfo(buf, known[i]);
	/* Those from the boot were not in MemTotal before they were given back. */
	b->lost_kb -= tlb_rs_vmstat_read("nr_memmap_pages") * (getpagesize() / 1024);
	b->memmap = memmap();
	b->mms = slab_objects("mm_struct");
}

static bool balanced(const struct balance *before, struct balance *now)
{
	read_balance(now);
	return now->lost_kb <= before->lost_kb + LEAK_KB && now->memmap == before->memmap &&
	       now->mms <= before->mms + LEAK_MMS;
}

void check_balance(const struct balance *before)
{
	struct balance now;
	int i;

	/* What is freed by RCU and by workers takes a while. */
	for (i = 0; i < 50 && !balanced(before, &now); i++)
		tlb_rs_sleep_us(100000);
	if (i == 50)
		shown(LEAK, "%lld kB lost (%lld), %lld pages of struct pages (%lld), %ld mms (%ld)",
		      now.lost_kb, before->lost_kb, now.memmap, before->memmap, now.mms,
		      before->mms);
	else
		ksft_print_msg("%s: memory that nothing accounts for: %+lld kB; mms: %+ld\n",
			       migrc_case, now.lost_kb - before->lost_kb, now.mms - before->mms);
}

static int leak_fds[64][2];

/* Memory that the kernel says nothing about: pages in pipes. */
static void leak(void)
{
	static char page[65536];
	size_t i;

	for (i = 0; i < ARRAY_SIZE(leak_fds); i++) {
		if (pipe2(leak_fds[i], O_NONBLOCK | O_CLOEXEC))
			break;
		fcntl(leak_fds[i][1], F_SETPIPE_SZ, 1 << 20);
		while (write(leak_fds[i][1], page, sizeof(page)) > 0)
			;
	}
}

void leak_no_more(void)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(leak_fds) && leak_fds[i][0]; i++) {
		close(leak_fds[i][0]);
		close(leak_fds[i][1]);
	}
}

/* --- forkbomb ---------------------------------------------------------------------- */

#define BOMB_PAGES	32
#define BOMB_PROCESSES	64

static char *bomb_base;

static void __noreturn bomb(unsigned int state)
{
	static char scratch[65536];

	while (!LOAD(sh->end)) {
		pid_t pid = fork();

		if (pid < 0) {
			if (!is_want(errno))
				violation("fork: %s", strerror(errno));
			count(&sh->refused);
			if (tlb_rs_rnd(&state) & 1)
				break;
			tlb_rs_sleep_us(2000);
		} else if (!pid) {
			state ^= getpid() * 2654435761u;
			STORE(sh->pids[__atomic_fetch_add(&sh->nr_pids, 1, __ATOMIC_RELAXED) %
				       NR_PIDS], getpid());
			count(&sh->ops);
			memset(scratch, state, sizeof(scratch));
			if (tlb_rs_check(bomb_base, BOMB_PAGES * getpagesize(), SEED))
				violation("wrong contents");
		} else if (tlb_rs_rnd(&state) % 4 == 0) {
			mprotect(bomb_base, getpagesize(), PROT_READ | PROT_WRITE);
			tlb_rs_fill(bomb_base, getpagesize(), SEED);
			if (scratch[0] != scratch[sizeof(scratch) - 1])
				violation("wrong contents");
		} else if (tlb_rs_rnd(&state) % 4 == 0 && state % BOMB_PROCESSES) {
			break;
		}
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
	_exit(0);
}

static void first_bomb(void)
{
	struct rlimit limit = { .rlim_cur = BOMB_PROCESSES, .rlim_max = BOMB_PROCESSES };

	setrlimit(RLIMIT_NPROC, &limit);
	/* Who moves their pages should come to it, where four CPUs are two. */
	setpriority(PRIO_PROCESS, 0, 10);
	become_user();
	bomb(getpid());
}

/* All that are this user's, but for this one; a fork does not come between. */
static void kill_all(void)
{
	become_user();
	kill(-1, SIGKILL);
}

/* Orphans, too; there is no other way to know when all of them are gone. */
static void reap_all(void)
{
	int idle = 0;

	while (idle < 200) {
		if (waitpid(-1, NULL, WNOHANG) > 0) {
			idle = 0;
		} else {
			tlb_rs_sleep_us(1000);
			idle++;
		}
	}
}

void case_forkbomb(bool on)
{
	unsigned long both = 3, nodes[2] = { 1, 2 };
	long long before = tlb_rs_vmstat_read("migrc_deferred");
	long moves = 0, gone = 0, moved = 0, restarted = 0;
	unsigned int state = 3;
	struct migrc_set set;
	pid_t pid;

	prctl(PR_SET_CHILD_SUBREAPER, 1);
	bomb_base = migrc_map_readonly(&set, BOMB_PAGES, SEED);
	start(first_bomb);
	while (!enough(!on || (sh->ops && sh->refused && moved &&
			       tlb_rs_vmstat_read("migrc_deferred") > before))) {
		long ret;

		pid = LOAD(sh->pids[tlb_rs_rnd(&state) % NR_PIDS]);
		errno = 0;
		if (tlb_rs_rnd(&state) % 4)
			moved += migrc_move(&set, pid, moves & 1, MPOL_MF_MOVE_ALL);
		else if (pid)
			syscall(SYS_migrate_pages, pid, 8 * sizeof(both), &both, &nodes[moves & 1]);
		ret = errno;
		if (ret == ESRCH)
			gone++;
		/* Who is on its way out has no address space. */
		else if (ret && ret != EINVAL && !is_want(ret))
			violation("moving pages: %s", strerror(ret));
		moves++;
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
		/* It may have died out. */
		if (!(moves % 64) && kill(LOAD(sh->pids[(sh->nr_pids - 1) % NR_PIDS]), 0)) {
			start(first_bomb);
			restarted++;
		}
	}
	STORE(sh->end, true);
	start(kill_all);
	reap_all();
	prctl(PR_SET_CHILD_SUBREAPER, 0);
	if (tlb_rs_check(bomb_base, BOMB_PAGES * getpagesize(), SEED))
		violation("wrong contents");
	munmap(bomb_base, BOMB_PAGES * getpagesize());
	migrc_set_free(&set);
	if (!on)
		return;
	if (broken)
		leak();
	ksft_print_msg("forkbomb: %ld forks, %ld refused; %ld begun; %ld moves, %ld too late\n",
		       sh->ops, sh->refused, restarted + 1, moves, gone);
	if (!sh->ops || !sh->refused || !moved ||
	    tlb_rs_vmstat_read("migrc_deferred") == before)
		violation("nothing to see");
}

/* --- hugetlb ----------------------------------------------------------------------- */

#define RESIZERS	3
#define NODE_HUGEPAGES	"/sys/devices/system/node/node%u/hugepages/hugepages-%lukB/nr_hugepages"

unsigned long pool_kb;
long pool_max;

static void *resize_thread(void *arg)
{
	static const char * const garbage[] = {
		"-1", "x", "1.5", "99999999999999999999999", "0x", "--", "1 2",
	};
	unsigned int state = (unsigned long)arg;
	char path[128], val[32];

	leave_last_cpu();
	while (!enough(LOAD(sh->ops) >= RESIZERS)) {
		bool number = tlb_rs_rnd(&state) % 4;
		int err;

		if (tlb_rs_rnd(&state) % 4)
			snprintf(path, sizeof(path), HUGEPAGES, pool_kb, "nr_hugepages");
		else
			snprintf(path, sizeof(path),
				 NODE_HUGEPAGES, tlb_rs_rnd(&state) & 1, pool_kb);
		snprintf(val, sizeof(val), "%ld", tlb_rs_rnd(&state) % (pool_max + 1));
		err = tlb_rs_write_file(path, number ? val :
					garbage[tlb_rs_rnd(&state) % ARRAY_SIZE(garbage)]);
		if (number ? err && !is_want(-err) : err != -EINVAL && err != -ERANGE)
			violation("%s <- %s: %s", path, number ? val : "garbage", strerror(-err));
		count(number ? &sh->ops : &sh->refused);
	}
	return NULL;
}

static void *optimize_thread(void *arg)
{
	static const char * const strategies[] = { "auto", "pause", "stop_machine", "none" };
	unsigned int state = 5;

	leave_last_cpu();
	while (!enough(LOAD(sh->ops) >= RESIZERS)) {
		const char *strategy = strategies[tlb_rs_rnd(&state) % ARRAY_SIZE(strategies)];
		int err = tlb_rs_write_file(HVO_SYSCTL, tlb_rs_rnd(&state) & 1 ? "1" : "0");

		if (err)
			violation("%s: %s", HVO_SYSCTL, strerror(-err));
		err = tlb_rs_write_file(HVO_PARAM "strategy", strategy);
		if (err && err != -ENOENT && (strcmp(strategy, "none") || err != -EINVAL))
			violation("strategy <- %s: %s", strategy, strerror(-err));
		(*(long *)arg)++;
		tlb_rs_sleep_us(1000);
	}
	return NULL;
}

const char *cannot_hugetlb(void)
{
	if (!pool_kb)
		return "needs HugeTLB pages of at most 64 MiB with two pages of struct pages";
	return tlb_rs_pools_in_use() ? "HugeTLB pools are in use" : NULL;
}

void case_hugetlb(bool on)
{
	long toggled = 0, before = memmap(), updates = tlb_rs_vmstat_read("hvo_pte_updates");
	pthread_t threads[RESIZERS], toggler;
	char strategy[64] = "", path[128];
	long violations, shared;
	unsigned long i;

	tlb_rs_read_file(HVO_PARAM "strategy", strategy, sizeof(strategy));
	for (i = 0; i < RESIZERS; i++)
		pthread_create(&threads[i], NULL, resize_thread, (void *)(i + 11));
	if (on)
		pthread_create(&toggler, NULL, optimize_thread, &toggled);
	for (i = 0; i < RESIZERS; i++)
		pthread_join(threads[i], NULL);
	if (on)
		pthread_join(toggler, NULL);
	if (strategy[0])
		tlb_rs_write_file(HVO_PARAM "strategy", strategy);

	if (resize(pool_kb, on && broken ? 1 : 0))
		shown(LEAK, "%ld pages left in the pool", pool(pool_kb));
	snprintf(path, sizeof(path), HUGEPAGES, pool_kb, "free_hugepages");
	if (get(path))
		violation("%ld free pages left in the pool", get(path));
	if (memmap() != before)
		violation("%ld pages of struct pages are missing", before - memmap());
	tlb_rs_write_file(HVO_SYSCTL, "0");
	violations = get_field(HVO_DEBUG "verify", "violations");
	shared = get_field(HVO_DEBUG "verify", "shared");
	/* -1 where there is no such file. */
	if (violations > 0 || (shared > 0 && !broken))
		violation("%ld violations, %ld shared pages", violations, shared);
	resize(pool_kb, 0);
	tlb_rs_restore(HVO_SYSCTL);
	if (!on)
		return;
	updates = tlb_rs_vmstat_read("hvo_pte_updates") - updates;
	ksft_print_msg("hugetlb: %ld sizes, %ld garbage, switched %ld times, %ld entries changed\n",
		       sh->ops, sh->refused, toggled, updates);
	if (!sh->ops || !toggled || (!access(HVO_DEBUG "stats", R_OK) && !updates))
		violation("nothing to see");
}
