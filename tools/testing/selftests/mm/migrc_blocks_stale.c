// SPDX-License-Identifier: GPL-2.0
/* What a CPU reads that has a large folio in its TLB, when the folio has moved. */
#include "migrc_blocks.h"

#define TAIL		(64UL << 20)	/* what a slow mprotect() is of */

enum way {
	FORCE,		/* a debugger */
	PROTECT_ALL,	/* mprotect() of the folio and much more, and a store meanwhile */
	PROTECT_PAGE,	/* of one page of it, and a store */
	FORK,		/* a fork, and a write fault when the child is gone */
	ZAP,		/* the folio is dropped while it moves, and a new page written to */
	REUSE,		/* the old folio is used for something else, as far as it is free */
	DRAIN,		/* the same after a drain */
	NR_WAYS
};

static struct migrc_reader r;
static __u64 *word;

static void poke(__u64 val)
{
	int fd = tlb_rs_open("/proc/self/mem", O_RDWR);

	if (pwrite(fd, &val, sizeof(val), (unsigned long)word) != sizeof(val))
		ksft_exit_fail_msg("/proc/self/mem: %s\n", strerror(errno));
	close(fd);
}

/* Another thread, which has not touched the folio since it was flushed. */
static struct {
	pthread_t id;
	__u64 val;
	__u64 round;
	__u64 delay_ns;
	bool go;
} st;

/* A store that comes before mprotect() is repeated. */
static void on_fault(int sig)
{
	(void)sig;
	tlb_rs_sleep_us(50);
}

static void *storer(void *unused)
{
	__u64 start;

	(void)unused;
	tlb_rs_pin_cpu(3);
	while (!LOAD(st.go))
		;
	start = tlb_rs_now_ns();
	while (tlb_rs_now_ns() - start < st.delay_ns)
		;
	__atomic_store_n(word, st.val, __ATOMIC_RELAXED);
	STORE(r.flag, st.round);
	return NULL;
}

static void start_storer(__u64 round, __u64 val, __u64 delay_ns)
{
	st.val = val;
	st.round = round;
	st.delay_ns = delay_ns;
	STORE(st.go, false);
	if (pthread_create(&st.id, NULL, storer, NULL))
		ksft_exit_fail_msg("cannot start a thread\n");
}

/* Entries of the folio are writable long before mprotect() flushes, which it does at its end. */
static void store_meanwhile(char *folio)
{
	static __u64 duration_ns = 1000000;
	const __u64 start = tlb_rs_now_ns();

	st.delay_ns = duration_ns / 8 * (1 + st.round / NR_WAYS % 4);
	STORE(st.go, true);
	if (mprotect(folio, TAIL, PROT_READ | PROT_WRITE))
		ksft_exit_fail_msg("mprotect: %s\n", strerror(errno));
	duration_ns = tlb_rs_now_ns() - start;
	pthread_join(st.id, NULL);
}

static void store_after(char *addr, size_t len)
{
	if (mprotect(addr, len, PROT_READ | PROT_WRITE))
		ksft_exit_fail_msg("mprotect: %s\n", strerror(errno));
	STORE(st.go, true);
	pthread_join(st.id, NULL);
}

static void come_and_go(void)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid < 0)
		ksft_exit_fail_msg("fork: %s\n", strerror(errno));
	if (!pid)
		_exit(0);
	migrc_own_variables();
	waitpid(pid, NULL, 0);
}

static char *others;
static size_t others_len;

/* New pages from where the folio was. They stay for the round: munmap() would flush. */
static void scribble(void)
{
	size_t i;

	others_len = 4096 * psize;
	others = migrc_mmap(others_len / psize, 0, SEED + 1);
	for (i = 0; i < others_len / sizeof(__u64); i++)
		((__u64 *)others)[i] = ~0ULL;
}

/* True if the round was armed. @folio is read-only, and the reader reads a word of it. */
static bool stale_round(enum way way, char *folio, __u64 val)
{
	long long faults, flushes;
	struct seen before, d;
	bool moved;

	if (way == FORK) {
		if (mprotect(folio, folio_size, PROT_READ | PROT_WRITE))
			ksft_exit_fail_msg("mprotect: %s\n", strerror(errno));
		come_and_go();
	}
	if (way == PROTECT_ALL || way == PROTECT_PAGE)
		start_storer(val, val, 0);
	WAIT_FOR(LOAD(r.last) == *word);
	faults = migrc_faults(r.tid);
	see(&before);
	if (way == ZAP)
		moved = advise_while_moving(folio, 0, folio_size, MADV_DONTNEED);
	else
		moved = move(folio, 1, folio_size, 1);
	see_since(&before, &d);
	flushes = way == ZAP && !asked.skip;
	moved &= d.c.val[MIGRC_DEFERRED] == (long long)folio_pages &&
		 d.c.val[MIGRC_FLUSH] == flushes;
	/* What is dropped makes a reader fault, unless its translation is stale. */
	if (way != ZAP)
		moved &= migrc_faults(r.tid) == faults;

	switch (way) {
	case PROTECT_ALL:
		store_meanwhile(folio);
		break;
	case PROTECT_PAGE:
		store_after((char *)((uintptr_t)word & -psize), psize);
		break;
	case DRAIN:
		migrc_expire();
		scribble();
		break;
	case REUSE:
		scribble();
		break;
	default:
		poke(val);
	}
	return moved;
}

int run_stale(void)
{
	const long rounds = asked.rounds ?: 24;
	long round, armed = 0;
	pthread_t id;

	if (!tlb_rs_delay(MIGRC_RESTORE_DELAY, 5000))
		return migrc_skipped("no fault injection");
	signal(SIGSEGV, on_fault);
	memset(&r, 0, sizeof(r));
	r.word_at = &word;
	if (pthread_create(&id, NULL, migrc_reader, &r))
		ksft_exit_fail_msg("cannot start a thread\n");
	WAIT_FOR(LOAD(r.tid));
	for (round = 1; migrc_more(&asked, rounds, round - 1, armed, r.stale); round++) {
		enum way way = round % NR_WAYS;
		const size_t len = way == PROTECT_ALL ? TAIL : 2 * folio_size;
		/* A neighbour keeps the page table. */
		char *base = make_folios_and_more(2, folio_size, len);

		if (!base)
			break;
		word = (__u64 *)(base + (round % folio_pages) * psize + 64);
		STORE(r.want, way == REUSE || way == DRAIN ? *word : (__u64)round);
		STORE(r.reading, round);
		armed += stale_round(way, base, round);
		STORE(r.flag, round);
		WAIT_FOR(LOAD(r.ack) == (__u64)round);
		end_mover();
		munmap(base, len);
		if (others)
			munmap(others, others_len);
		others = NULL;
		migrc_drain();
	}
	STORE(r.stop, true);
	pthread_join(id, NULL);
	tlb_rs_delay_none();
	return migrc_judge(&asked, rounds, armed, r.stale, false);
}
