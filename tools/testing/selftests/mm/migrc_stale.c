// SPDX-License-Identifier: GPL-2.0
/*
 * What a TLB may still say after a migration whose flush was deferred, in rounds:
 *
 *   main (CPU 0)                         R (CPU 1)
 *   P becomes read-only, has an old      reads P all the time, without a system
 *   value, and R reads it                call: P is in its TLB
 *   moves 32 pages, P the last: the
 *   flush is deferred
 *   stores a new value to P, in the
 *   way that the case is about
 *   flag = round, release                (acquire) v = P
 *
 * R must read the new value, so a flush must complete before the store is possible.
 * Without the hook of the case (--skip) R reads the old page.
 *
 * A round counts as armed if P has another frame, its flush was deferred, no hook
 * or drain flushed before the store, and R took no page fault: it went on with the
 * stale entry. No store goes through the TLB of a CPU that has touched P before,
 * which might agree with R on the wrong page: main stores through the kernel, W
 * (CPU 3) has not touched P since the last flush. Whatever else is moved is
 * read-only, too: a flush of a neighbour's would hide that of P.
 *
 * reuse      P is shared with a child, which is gone before the store: the write
 *            fault makes the page writable as it is.
 * reuse-exclusive  the same for a page that is exclusive, but mapped read-only.
 * mprotect   main makes P and 65536 zero pages after it writable, W stores to P in
 *            the meantime: the entry is writable long before mprotect() flushes.
 * uffd-wp    the same by UFFDIO_WRITEPROTECT.
 * uffd-move  main moves P and 511 pages after it elsewhere by UFFDIO_MOVE. In the meantime
 *            R stores to P there, through an entry of the new address, and reads where P
 *            was: it is writable long before UFFDIO_MOVE flushes. Unless its entry is stale
 *            R waits there in a fault until P has come back.
 * uffd-rwp   P is as in "reuse-exclusive", and its entry marked for userfaultfd by
 *            registrations that are gone: UFFDIO_MOVE leaves the mark of write protection
 *            on an entry of swap. In a mapping for RWP the move then makes it
 *            inaccessible, and the fault of the store writable: without hook "protnone"
 *            of the one and "reuse" of the other none of them would flush.
 * uffd-undo  the same, but a pipe has P, so the move is undone. The next one, after the
 *            pipe has gone, finds an inaccessible entry, for which it does not flush, and
 *            frees the old page. main writes to new pages.
 * uffd-swapin  P is marked as in "uffd-rwp" and moved, which is not flushed as long as the
 *            mapping is not for RWP. Then it is, and P is swapped out and read back for the
 *            store as in "swapin": it is inaccessible then, and writable by the next fault.
 * zap        P is replaced by mmap(MAP_FIXED) while it is a migration entry.
 * dontneed   the same by MADV_DONTNEED.
 * mremap     P is moved elsewhere while it is a migration entry.
 * force      a write to /proc/self/mem in spite of PROT_READ.
 * poke       the same by PTRACE_POKEDATA.
 * tags       PTRACE_POKEMTETAGS; R reads the tag.
 * swapin     P is reclaimed to swap and read back for the store, before reclaim has
 *            flushed. Its entry is clean, so reclaim writes it out and unlocks it
 *            first: nothing stops the fault. It finds the same page again, since
 *            swap is on a disk: only the migration can make R's entry wrong. On
 *            x86_64 nobody is told before the flush. On arm64 the TLBI is issued
 *            before the unlock, but who faults does not wait for it. QEMU has it done
 *            at once, so there hook "flush" of the TLB batch is removed, which stands
 *            for a TLBI that takes its time. MADV_PAGEOUT calls hook "range", but
 *            reclaim of a cgroup does not.
 * common     a child that shares P unmaps it and must not read it any more, then P
 *            is reused by the parent.
 * file, shared  a page of a private and of a shared file mapping, which must not be
 *            deferred: the store is a pwrite() to the file.
 * twice      P is moved to and fro, and keeps its value.
 * record, drain  the old frame must not be used for something else while R reads it:
 *            main writes to new pages, before and after a drain.
 *
 * A writable entry must not survive the copy. Here R is a thread that increments P
 * all the time and compares it with a count of its own, and the damage is a lost
 * increment; the page must be denied:
 *
 * writable   P is writable all the time.
 * pending    mprotect(PROT_READ) of P and 65536 zero pages is under way. (It calls
 *            hook "range" for each page table, so that has to be removed, too.)
 * fork       fork() of P and 8192 mappings after it is under way. (x86_64: no CPU
 *            uses the child's mm, its part of the folio is never deferred. So the
 *            parent's is only if hook "mixed" is removed, too.)
 *
 * Others compare counters: mixed (half of a folio is read-only), halves (the same of many
 * folios, which must not be flushed one by one), block (arm64: part of
 * a folio is mapped by a contiguous block), undo (the move fails since vmsplice() has the
 * page), split (a THP is split), notifier (a device uses the page table), type (arm64: a
 * page moves while mprotect() makes it tagged memory, but has not come to it yet).
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <linux/userfaultfd.h>

#include "migrc.h"

#define NR_PAGES	32	/* moved within a CPU's turn where one thread emulates all */
#define NR_INFLIGHT	256	/* what takes a move long */
#define NR_OTHERS	1024
#define NR_VMAS		8192	/* after P: what takes fork() long */
#define NR_ZERO		65536	/* the same for mprotect() */
#define DELAY_US	200000	/* how much later reclaim flushes */
#define AGE_MS		60000	/* nothing is flushed for its age */
#define MAX_PAGES	8192
#define NR_HUGE		1024	/* the same for mprotect() of huge pages */
#define FOLIO_PAGES	16
#define NR_FOLIOS	32	/* as many as are migrated in one batch */
#define SEED		7

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP	4
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ	22
#endif
#ifndef UFFDIO_MOVE
#define UFFD_FEATURE_MOVE	0x10000
#define UFFDIO_MOVE		_IOWR(UFFDIO, 5, struct uffdio_move)

struct uffdio_move {
	__u64 dst;
	__u64 src;
	__u64 len;
	__u64 mode;
	__s64 move;
};
#endif
#ifndef UFFDIO_REGISTER_MODE_RWP
#define UFFD_FEATURE_RWP	0x20000
#define UFFD_FEATURE_RWP_ASYNC	0x40000
#define UFFDIO_REGISTER_MODE_RWP	8
#endif
#define POKEMTETAGS	34	/* PTRACE_POKEMTETAGS of arm64 */
#define MTE		0x20	/* PROT_MTE of arm64 */

/* Shared with children; never moved. */
static struct shared {
	/* By main. */
	__u64 reading;		/* the round in which R may read P */
	__u64 want;		/* what R should read at last */
	__u64 move;		/* the round in which the mover should move */
	int node;		/* to where */
	__u64 reclaim;		/* the round in which the reclaimer should reclaim P */
	__u64 go;		/* the round in which W should store */
	__u64 delay_ns;
	__u64 finished;		/* the round whose mprotect() has returned */
	__u64 poke;		/* the round in which the tracer should poke */
	__u64 poke_val;
	bool pause;		/* the writer should wait */
	bool stop;
	__u64 unmap;		/* the round in which the child should unmap P */
	/* By main, W or R. */
	__u64 flag;
	/* By R, or the writer. */
	__u64 ack;
	__u64 last;		/* what R has read */
	__u64 stale;
	__u64 count;		/* of the writer, without TLB */
	__u64 lost;
	bool parked;
	pid_t tid;
	/* By others. */
	__u64 moved;
	__u64 moved_ns;
	__u64 reclaimed;
	bool in_time;
	pid_t victim;
	__u64 poked;
	bool ready;
	__u64 unmapped;
	bool child_faulted;
	__u64 child_reads;
	__u64 child_bad;
} *sh;

struct test {
	const char *name;
	int (*run)(const struct test *test, const struct migrc_options *o);
	long rounds;
	long pages;		/* that are moved, if not NR_PAGES */
	size_t vmas;		/* filler behind P */
	size_t zero;
	bool (*setup)(void);
	void (*prepare)(__u64 round);
	bool (*act)(__u64 round);	/* false: missed its window */
	void (*cleanup)(void);
	bool inflight;		/* the act moves, and does so itself */
	bool reclaim;		/* the act needs the reclaimer */
	bool keep;		/* R must go on reading the old value */
	bool undone;		/* the move fails */
	bool flushes;		/* the move does, unless a hook is removed */
	bool denied;		/* nothing is deferred unless a hook is removed */
	bool optional;		/* the kernel need not defer this, or no move may meet it */
	long age_ms;
};

/* QEMU emulates x86_64 with one thread: a CPU hardly acts while another moves pages. */
#ifdef __x86_64__
#define RARELY_MET	true
#else
#define RARELY_MET	false
#endif

static const struct test *test;
static size_t psize;
static __u64 *page_p;
static char *area;		/* P and what follows it */
static size_t area_len;
static int area_prot;		/* bits beyond PROT_READ and PROT_WRITE */
static long nr_pages;		/* that are moved, P among them */
static char *list;		/* the others that are moved, always read-only */
static struct migrc_set set;
static char *scratch;
static int mem = -1;
static int file = -1;
static int uffd = -1;
static pid_t child = -1;
static char *others;
static __u64 duration_ns;
static __u64 pfn;

static __u64 old_value(__u64 round)
{
	return 2 * round;
}

static __u64 new_value(__u64 round)
{
	return 2 * round + 1;
}

static __u64 look_word(void)
{
	return __atomic_load_n(page_p, __ATOMIC_RELAXED);
}

static __u64 (*look)(void) = look_word;

/* By W or R, while main makes P writable. */
static void store_after(__u64 delay_ns, __u64 round, __u64 *addr)
{
	__u64 start = tlb_rs_now_ns();

	while (tlb_rs_now_ns() - start < delay_ns)
		;
	__atomic_store_n(addr, new_value(round), __ATOMIC_RELAXED);
	sh->in_time = LOAD(sh->finished) != round;
	STORE(sh->flag, round);
}

/* By R: P moves by half of the area, and main waits until R is ready. */
static __u64 look_and_store(void)
{
	__u64 round = LOAD(sh->go);

	if (LOAD(sh->flag) != round) {
		__u64 delay_ns = sh->delay_ns;

		STORE(sh->ready, true);
		/* Where CPUs are scarce who sleeps gets one in time, elsewhere who does not. */
		if (round % 2) {
			tlb_rs_sleep_us(delay_ns / 1000);
			delay_ns = 0;
		}
		store_after(delay_ns, round, page_p + area_len / 2 / sizeof(*page_p));
	}
	return look_word();
}

#ifdef __aarch64__
/* The allocation tag of P, modulo 16. */
static __u64 look_tag(void)
{
	register __u64 tag asm("x0") = 0;
	register __u64 *addr asm("x1") = page_p;

	/* ldg x0, [x1] */
	asm volatile(".inst 0xd9600020" : "+r"(tag) : "r"(addr) : "memory");
	return tag >> 56 & 15;
}
#endif

/* In pages that it has to itself: a write fault of R's would flush. */
static void *reader(void *arg)
{
	__u64 round;

	(void)arg;
	tlb_rs_pin_cpu(1);
	STORE(sh->tid, (pid_t)syscall(SYS_gettid));
	for (round = 1;; round++) {
		while (LOAD(sh->reading) != round) {
			if (LOAD(sh->stop))
				return NULL;
		}
		while (LOAD(sh->flag) != round)
			__atomic_store_n(&sh->last, look(), __ATOMIC_RELAXED);
		sh->stale += look() != LOAD(sh->want);
		STORE(sh->ack, round);
	}
}

static void *mover(void *arg)
{
	__u64 round = 0;

	(void)arg;
	tlb_rs_pin_cpu(2);
	while (!LOAD(sh->stop)) {
		if (LOAD(sh->move) == round) {
			tlb_rs_sleep_us(50);
			continue;
		}
		round = LOAD(sh->move);
		migrc_move(&set, 0, sh->node, MPOL_MF_MOVE_ALL);
		sh->moved_ns = tlb_rs_now_ns();
		STORE(sh->moved, round);
	}
	return NULL;
}

/* The first write to a page since a fork() is a write fault, which would flush. */
static void touch_stack(void)
{
	char stack[16384];

	memset(stack, 0, sizeof(stack));
	asm volatile("" : : "r"(stack) : "memory");
}

static void *reclaimer(void *arg)
{
	__u64 round = 0;

	(void)arg;
	tlb_rs_pin_cpu(2);
	while (!LOAD(sh->stop)) {
		if (LOAD(sh->reclaim) == round) {
			touch_stack();
			tlb_rs_sleep_us(50);
			continue;
		}
		round = LOAD(sh->reclaim);
		tlb_rs_forget_use();
		tlb_rs_cgroup_reclaim(65536, "");
		STORE(sh->reclaimed, round);
	}
	return NULL;
}

/* W: its first access to P since P was made read-only is the store. */
static void *storer(void *arg)
{
	__u64 round = 0;

	(void)arg;
	tlb_rs_pin_cpu(3);
	while (!LOAD(sh->stop)) {
		if (LOAD(sh->go) == round) {
			tlb_rs_sleep_us(50);
			continue;
		}
		round = LOAD(sh->go);
		store_after(sh->delay_ns, round, page_p);
	}
	return NULL;
}

static __thread bool is_writer;

/*
 * The writer stays here until P is writable again. W may have come too early for
 * mprotect(). The store is repeated.
 */
static void on_fault(int sig)
{
	(void)sig;
	if (!is_writer) {
		tlb_rs_sleep_us(100);
		return;
	}
	STORE(sh->parked, true);
	while (LOAD(sh->parked))
		;
}

static void *writer(void *arg)
{
	(void)arg;
	is_writer = true;
	tlb_rs_pin_cpu(1);
	while (!LOAD(sh->stop)) {
		__u64 v = __atomic_load_n(page_p, __ATOMIC_RELAXED);

		/* Nobody else writes: after a loss, go on from what was meant. */
		sh->lost += v != sh->count;
		__atomic_store_n(page_p, sh->count + 1, __ATOMIC_RELAXED);
		STORE(sh->count, sh->count + 1);
		if (!LOAD(sh->pause))
			continue;
		STORE(sh->parked, true);
		while (LOAD(sh->parked))
			;
	}
	return NULL;
}

/* Main has no entry of P in its TLB. */
static void store(__u64 val)
{
	if (pwrite(mem, &val, sizeof(val), (unsigned long)page_p) != sizeof(val))
		ksft_exit_fail_msg("/proc/self/mem: %s\n", strerror(errno));
}

static __u64 load(void)
{
	__u64 val;

	if (pread(mem, &val, sizeof(val), (unsigned long)page_p) != sizeof(val))
		ksft_exit_fail_msg("/proc/self/mem: %s\n", strerror(errno));
	return val;
}

static void protect(int prot)
{
	if (mprotect(area, area_len, prot | area_prot))
		ksft_exit_fail_msg("mprotect: %s\n", strerror(errno));
}

/*
 * What is owed for other reasons is flushed here, and not when a hook is called
 * from which only the part of migrc was removed.
 */
static void settle(void)
{
	madvise(scratch, psize, MADV_COLD);
}

static void start_move(__u64 round)
{
	sh->node = !migrc_node_of(page_p);
	STORE(sh->move, round);
}

static bool moving(__u64 round)
{
	return LOAD(sh->moved) != round;
}

static void end_move(__u64 round)
{
	WAIT_FOR(!moving(round));
}

static pid_t start_child(void (*fn)(void))
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid < 0)
		ksft_exit_fail_msg("fork: %s\n", strerror(errno));
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		fn();
		_exit(0);
	}
	migrc_own_variables();
	return pid;
}

static void end_child(void)
{
	if (child < 0)
		return;
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	child = -1;
}

/* --- how P becomes read-only -------------------------------------------------- */

static void prepare_protect(__u64 round)
{
	protect(PROT_READ | PROT_WRITE);
	store(old_value(round));
	migrc_gather(&set);
	settle();
	protect(PROT_READ);
}

/* In user mode: x86_64 would have nothing to defer for an mm that no CPU uses. */
static void spin(void)
{
	tlb_rs_pin_cpu(2);
	STORE(sh->ready, true);
	for (;;)
		;
}

static void nothing(void)
{
}

/* Not exclusive any more, in a writable mapping. The child lives until the store. */
static void prepare_fork(__u64 round)
{
	store(old_value(round));
	migrc_gather(&set);
	settle();
	sh->ready = false;
	child = start_child(spin);
	WAIT_FOR(LOAD(sh->ready));
}

static void come_and_go(void)
{
	child = start_child(nothing);
	waitpid(child, NULL, 0);
	child = -1;
}

static void fork_exit(void)
{
	migrc_gather(&set);
	settle();
	come_and_go();
}

static void prepare_fork_exit(__u64 round)
{
	store(old_value(round));
	fork_exit();
}

/*
 * A reader that pins the page gets it to itself, since there is nobody else any
 * more. The entry stays read-only.
 */
static void pin_and_read(void)
{
	__u64 val;
	struct iovec local = { .iov_base = &val, .iov_len = sizeof(val) };
	struct iovec remote = { .iov_base = page_p, .iov_len = sizeof(val) };

	if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != sizeof(val))
		ksft_exit_fail_msg("process_vm_readv: %s\n", strerror(errno));
}

static void make_exclusive(void)
{
	fork_exit();
	pin_and_read();
}

static void prepare_exclusive(__u64 round)
{
	store(old_value(round));
	make_exclusive();
}

static bool clean;

/* To where reclaim looks: statistics of one page come too late for it to age the page. */
static void deactivate(void)
{
	madvise(area, psize, MADV_COLD);
	tlb_rs_drain_pages();
}

/*
 * As above, so that the page from swap will be mapped writable. And the entry is
 * clean, as that of a page that was read from swap, or reclaim would flush before
 * it writes the page out. P is charged to the cgroup in which it is touched first.
 */
static void prepare_swapin(__u64 round)
{
	madvise(area, psize, MADV_DONTNEED);
	tlb_rs_cgroup_enter();
	store(old_value(round));
	tlb_rs_cgroup_leave();
	deactivate();
	tlb_rs_forget_use();
	tlb_rs_cgroup_reclaim(65536, "");
	clean = !tlb_rs_pfn(page_p);
	load();
	/* Until then it cannot be made exclusive, but would be copied. */
	while (tlb_rs_kpageflags(tlb_rs_pfn(page_p)) & (1 << KPF_WRITEBACK))
		tlb_rs_sleep_us(1000);
	deactivate();
	make_exclusive();
	touch_stack();
}

static void prepare_file(__u64 round)
{
	__u64 val = old_value(round);

	if (madvise(area, area_len, MADV_DONTNEED) ||
	    pwrite(file, &val, sizeof(val), (char *)page_p - area) != sizeof(val) ||
	    madvise(area, area_len, MADV_POPULATE_READ))
		ksft_exit_fail_msg("cannot prepare the file: %s\n", strerror(errno));
	migrc_gather(&set);
	settle();
}

/* --- what stores --------------------------------------------------------------- */

static bool act_store(__u64 round)
{
	end_child();
	store(new_value(round));
	return true;
}

static bool act_file(__u64 round)
{
	__u64 val = new_value(round);

	return pwrite(file, &val, sizeof(val), (char *)page_p - area) == sizeof(val);
}

static void allow_mprotect(void)
{
	protect(PROT_READ | PROT_WRITE);
}

static void uffd_protect(char *addr, bool on)
{
	struct uffdio_writeprotect wp = {
		.range = { .start = (unsigned long)addr, .len = area_len },
		.mode = on ? UFFDIO_WRITEPROTECT_MODE_WP : 0,
	};

	if (ioctl(uffd, UFFDIO_WRITEPROTECT, &wp))
		ksft_exit_fail_msg("UFFDIO_WRITEPROTECT: %s\n", strerror(errno));
}

static void allow_uffd(void)
{
	uffd_protect(area, false);
}

static void prepare_uffd(__u64 round)
{
	store(old_value(round));
	migrc_gather(&set);
	settle();
	uffd_protect(area, true);
}

/* W stores between the change of P's entry and the end of the whole. */
static bool act_while(__u64 round, void (*allow)(void))
{
	__u64 start;

	sh->delay_ns = duration_ns / 8 + duration_ns / 16 * (round % 8);
	start = tlb_rs_now_ns();
	STORE(sh->go, round);
	allow();
	duration_ns = tlb_rs_now_ns() - start;
	STORE(sh->finished, round);
	WAIT_FOR(LOAD(sh->flag) == round);
	return sh->in_time;
}

static bool act_mprotect(__u64 round)
{
	return act_while(round, allow_mprotect);
}

static bool act_uffd(__u64 round)
{
	return act_while(round, allow_uffd);
}

static void uffd_move(char *dst, char *src, size_t len)
{
	struct uffdio_move move = {
		.dst = (unsigned long)dst, .src = (unsigned long)src, .len = len,
	};

	if (ioctl(uffd, UFFDIO_MOVE, &move))
		ksft_exit_fail_msg("UFFDIO_MOVE: %s\n", strerror(errno));
}

/* If R read P once more before it stores it would wait for ever. */
static void allow_move(void)
{
	WAIT_FOR(LOAD(sh->ready));
	uffd_move(area + area_len / 2, area, area_len / 2);
}

/* A store that is too early waits in a fault. That of R's read is not over, and does not count. */
static bool act_move(__u64 round)
{
	long long faults = migrc_faults(sh->tid);
	__u64 shortest = duration_ns;
	bool in_time;

	sh->ready = false;
	in_time = act_while(round, allow_move) && migrc_faults(sh->tid) == faults;
	/* What takes longer has waited for R, or for a CPU of the host. */
	if (duration_ns > shortest)
		duration_ns = shortest;
	uffd_move(area, area + area_len / 2, area_len / 2);
	return in_time;
}

static bool uffd_register(char *addr, size_t len, __u64 mode)
{
	struct uffdio_register reg = {
		.range = { .start = (unsigned long)addr, .len = len },
		.mode = mode,
	};

	return !ioctl(uffd, UFFDIO_REGISTER, &reg);
}

/* From where P comes, on the same place of its page. */
static char *origin;

/* Accessible, read-only, exclusive, and marked. */
static void mark(__u64 round)
{
	__u64 val = old_value(round);
	char *from = origin + ((char *)page_p - area);

	/* What follows P keeps its page table. */
	if (mmap(area, psize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		 0) != area || !tlb_rs_bind_node(area, psize, migrc_node_of(list)))
		ksft_exit_fail_msg("cannot map P: %s\n", strerror(errno));
	/* What is charged is reclaimed: nothing else may be. */
	if (test->reclaim)
		tlb_rs_cgroup_enter();
	if (pwrite(mem, &val, sizeof(val), (unsigned long)from) != sizeof(val))
		ksft_exit_fail_msg("/proc/self/mem: %s\n", strerror(errno));
	if (test->reclaim)
		tlb_rs_cgroup_leave();
	uffd_protect(origin, true);
	tlb_rs_drain_pages();
	if (madvise(origin, psize, MADV_PAGEOUT) ||
	    !uffd_register(area, psize, UFFDIO_REGISTER_MODE_MISSING))
		ksft_exit_fail_msg("cannot prepare P: %s\n", strerror(errno));
	clean = tlb_rs_pagemap(origin) & PM_SWAP;
	uffd_move(area, origin, psize);
	come_and_go();
	pin_and_read();
	clean &= (tlb_rs_pagemap(area) & (PM_PRESENT | PM_UFFD)) == (PM_PRESENT | PM_UFFD);
}

static void register_rwp(void)
{
	if (!uffd_register(area, psize, UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_RWP))
		ksft_exit_fail_msg("UFFDIO_REGISTER: %s\n", strerror(errno));
}

static void prepare_rwp(__u64 round)
{
	mark(round);
	register_rwp();
	migrc_gather(&set);
	settle();
}

static void prepare_rwp_swapin(__u64 round)
{
	mark(round);
	while (tlb_rs_kpageflags(tlb_rs_pfn(page_p)) & (1 << KPF_WRITEBACK))
		tlb_rs_sleep_us(1000);
	migrc_gather(&set);
	deactivate();
	touch_stack();
}

static bool act_rwp(__u64 round)
{
	return act_store(round) && clean;
}

static int pipe_p[2];

static void prepare_undo(__u64 round)
{
	struct iovec iov = { .iov_base = area, .iov_len = psize };

	prepare_rwp(round);
	if (pipe(pipe_p) || vmsplice(pipe_p[1], &iov, 1, SPLICE_F_NONBLOCK) != (ssize_t)psize)
		ksft_exit_fail_msg("vmsplice: %s\n", strerror(errno));
}

/* Until P is a migration entry. */
static void wait_for_entry(__u64 round)
{
	start_move(round);
	while (tlb_rs_pfn(page_p) == pfn && moving(round))
		;
}

static bool refill(__u64 round)
{
	bool in_time = moving(round);

	store(new_value(round));
	end_move(round);
	return in_time;
}

static bool act_zap(__u64 round)
{
	wait_for_entry(round);
	if (mmap(area, area_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
		 -1, 0) == MAP_FAILED)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	return refill(round);
}

static bool act_dontneed(__u64 round)
{
	wait_for_entry(round);
	madvise(area, area_len, MADV_DONTNEED);
	return refill(round);
}

static char *elsewhere;

static bool act_mremap(__u64 round)
{
	wait_for_entry(round);
	elsewhere = mremap(area, area_len, area_len, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
	if (elsewhere == MAP_FAILED)
		ksft_exit_fail_msg("mremap: %s\n", strerror(errno));
	return refill(round);
}

static void cleanup_mremap(void)
{
	munmap(elsewhere, area_len);
}

static bool act_swapin(__u64 round)
{
	long long flushes = tlb_rs_vmstat_read("migrc_flush");
	__u64 start, dst = tlb_rs_pfn(page_p);
	bool armed;

	if (!tlb_rs_delay(TLB_BATCH_FLUSH_DELAY, DELAY_US))
		return false;
#ifdef __aarch64__
	if (!tlb_rs_skip_hooks("flush"))
		return false;
#endif
	start = tlb_rs_now_ns();
	STORE(sh->reclaim, round);
	/* Until P is a swap entry. */
	while (tlb_rs_pfn(page_p) && LOAD(sh->reclaimed) != round)
		;
	armed = clean && !tlb_rs_pfn(page_p) && tlb_rs_vmstat_read("migrc_flush") == flushes;
	store(new_value(round));
	return armed && tlb_rs_pfn(page_p) == dst && tlb_rs_now_ns() - start < DELAY_US * 1000ULL;
}

static bool act_rwp_swapin(__u64 round)
{
	register_rwp();
	return act_swapin(round);
}

static void cleanup_swapin(void)
{
	tlb_rs_delay_none();
	WAIT_FOR(LOAD(sh->reclaimed) == sh->reclaim);
	tlb_rs_skip_none();
}

/* New pages from where P was, with something else in them. */
static void scribble(void)
{
	size_t i;

	others = migrc_mmap(NR_OTHERS, !migrc_node_of(page_p), SEED);
	for (i = 0; i < NR_OTHERS * psize / sizeof(__u64); i++)
		((__u64 *)others)[i] = ~0ULL;
}

static void cleanup_others(void)
{
	munmap(others, NR_OTHERS * psize);
}

static bool act_record(__u64 round)
{
	(void)round;
	scribble();
	return true;
}

static bool act_undo(__u64 round)
{
	bool moved;

	(void)round;
	close(pipe_p[0]);
	close(pipe_p[1]);
	moved = migrc_move(&set, 0, !migrc_node_of(page_p), MPOL_MF_MOVE_ALL) &&
		tlb_rs_pfn(page_p) != pfn;
	scribble();
	return moved && clean;
}

static bool act_drain(__u64 round)
{
	int i;

	(void)round;
	for (i = 0; i < 200 && migrc_held(-1); i++)
		tlb_rs_sleep_us(10000);
	scribble();
	return i < 200;
}

static bool act_twice(__u64 round)
{
	size_t i, n = 0;

	(void)round;
	for (i = 0; i < 5; i++)
		n += migrc_move(&set, 0, !migrc_node_of(page_p), MPOL_MF_MOVE_ALL);
	if (tlb_rs_check(list, (nr_pages - 1) * psize, SEED))
		sh->stale++;
	return n > 4 * (size_t)nr_pages;
}

/* --- a tracer --------------------------------------------------------------- */

/* A thread to be stopped; any of this process would do, but not R. */
static void *victim(void *arg)
{
	(void)arg;
	STORE(sh->victim, (pid_t)syscall(SYS_gettid));
	while (!LOAD(sh->stop))
		tlb_rs_sleep_us(1000);
	return NULL;
}

static void tracer(void)
{
	__u64 round = 0;
	int status;

	/* Or P would not be the parent's own. */
	munmap(area, area_len);
	munmap(list, (nr_pages - 1) * psize);
	if (ptrace(PTRACE_SEIZE, sh->victim, NULL, NULL) ||
	    ptrace(PTRACE_INTERRUPT, sh->victim, NULL, NULL) ||
	    waitpid(sh->victim, &status, __WALL) != sh->victim)
		_exit(1);
	STORE(sh->ready, true);
	for (;;) {
		__u8 tag = (__u8)sh->poke_val;
		struct iovec iov = { .iov_base = &tag, .iov_len = 1 };
		long ret;

		if (LOAD(sh->poke) == round) {
			tlb_rs_sleep_us(50);
			continue;
		}
		round = LOAD(sh->poke);
		tag = (__u8)sh->poke_val;
		if (area_prot)
			ret = ptrace(POKEMTETAGS, sh->victim, page_p, &iov);
		else
			ret = ptrace(PTRACE_POKEDATA, sh->victim, page_p, sh->poke_val);
		STORE(sh->poked, ret ? ~0ULL : round);
	}
}

static pthread_t victim_id;
static bool has_victim;

static bool setup_tracer(void)
{
	int i, status;

	if (pthread_create(&victim_id, NULL, victim, NULL))
		return false;
	has_victim = true;
	WAIT_FOR(LOAD(sh->victim));
	child = start_child(tracer);
	for (i = 0; i < 5000 && !LOAD(sh->ready); i++) {
		if (waitpid(child, &status, WNOHANG) == child) {
			child = -1;
			return false;
		}
		tlb_rs_sleep_us(1000);
	}
	return LOAD(sh->ready);
}

static bool poke(__u64 val)
{
	__u64 serial = sh->poke + 1;

	sh->poke_val = val;
	STORE(sh->poke, serial);
	while (LOAD(sh->poked) != serial) {
		if (LOAD(sh->poked) == ~0ULL)
			return false;
		tlb_rs_sleep_us(50);
	}
	return true;
}

static bool act_poke(__u64 round)
{
	return poke(new_value(round));
}

#ifdef __aarch64__
static bool setup_tags(void)
{
	if (!(getauxval(AT_HWCAP2) & 1 << 18 /* HWCAP2_MTE */))
		return false;
	look = look_tag;
	area_prot = MTE;
	protect(PROT_READ | PROT_WRITE);
	store(0);
	return setup_tracer();
}

static void prepare_tags(__u64 round)
{
	protect(PROT_READ | PROT_WRITE);
	store(0);
	if (!poke(old_value(round) & 15))
		ksft_exit_fail_msg("PTRACE_POKEMTETAGS does not work\n");
	migrc_gather(&set);
	settle();
	protect(PROT_READ);
}

static bool act_tags(__u64 round)
{
	return poke(new_value(round) & 15);
}
#endif

/* --- two processes that share P ------------------------------------------------ */

/* The child's access to P after munmap() must fault, for ever. */
static void on_child_fault(int sig)
{
	(void)sig;
	STORE(sh->child_faulted, true);
	for (;;)
		pause();
}

static __u64 child_old;

static void *child_reader(void *arg)
{
	__u64 v;

	(void)arg;
	tlb_rs_pin_cpu(3);
	/* Here it is this reader who must not fault on P. */
	STORE(sh->tid, (pid_t)syscall(SYS_gettid));
	for (;;) {
		bool gone = LOAD(sh->unmapped);

		v = look_word();
		if (gone || v != child_old)
			__atomic_fetch_add(&sh->child_bad, 1, __ATOMIC_RELEASE);
		__atomic_fetch_add(&sh->child_reads, 1, __ATOMIC_RELEASE);
	}
	return NULL;
}

static void common_child(void)
{
	pthread_t id;

	signal(SIGSEGV, on_child_fault);
	tlb_rs_pin_cpu(2);
	if (pthread_create(&id, NULL, child_reader, NULL))
		_exit(1);
	while (!LOAD(sh->unmap))
		tlb_rs_sleep_us(100);
	munmap(area, area_len);
	STORE(sh->unmapped, 1);
	for (;;)
		pause();
}

static void prepare_common(__u64 round)
{
	__u64 reads = sh->child_reads;

	sh->unmap = 0;
	sh->unmapped = 0;
	sh->child_faulted = false;
	child_old = old_value(round);
	store(child_old);
	migrc_gather(&set);
	settle();
	child = start_child(common_child);
	WAIT_FOR(LOAD(sh->child_reads) > reads + 100);
}

static bool act_common(__u64 round)
{
	__u64 bad = sh->child_bad;
	int i;

	STORE(sh->unmap, 1);
	WAIT_FOR(LOAD(sh->unmapped));
	store(new_value(round));
	for (i = 0; i < 10000 && !LOAD(sh->child_faulted) && LOAD(sh->child_bad) == bad; i++)
		tlb_rs_sleep_us(100);
	sh->stale += LOAD(sh->child_bad) != bad;
	end_child();
	return true;
}

/* --- setup and the rounds ----------------------------------------------------- */

static bool setup_swapin(void)
{
	int on = 0;

	if (!tlb_rs_has_disk_swap() || !tlb_batch_get(&on) || on <= 0 ||
	    access(TLB_BATCH_FLUSH_DELAY, W_OK))
		return false;
	tlb_rs_no_zswap();
	return tlb_rs_cgroup();
}

static bool open_uffd(__u64 features)
{
	struct uffdio_api api = {
		.api = UFFD_API,
		.features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_MOVE | features,
	};

	uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
	return uffd >= 0 && !ioctl(uffd, UFFDIO_API, &api);
}

static bool setup_uffd(void)
{
	return open_uffd(0) && uffd_register(area, area_len, UFFDIO_REGISTER_MODE_WP |
					     UFFDIO_REGISTER_MODE_MISSING);
}

static bool setup_rwp(void)
{
	if (!tlb_rs_has_disk_swap() || !open_uffd(UFFD_FEATURE_RWP | UFFD_FEATURE_RWP_ASYNC))
		return false;
	origin = tlb_rs_mmap(psize, psize);
	return uffd_register(origin, psize, UFFDIO_REGISTER_MODE_WP);
}

static bool setup_rwp_swapin(void)
{
	return setup_swapin() && setup_rwp();
}

/* A page table full of pages, which are moved in one go, and one of none. */
static bool setup_move(void)
{
	size_t half = area_len / 2;

	memset(area + psize, SEED, half - psize);
	look = look_and_store;
	return !madvise(area + half, half, MADV_DONTNEED) && setup_uffd();
}

static bool map_file(int flags)
{
	file = memfd_create("migrc_stale", MFD_CLOEXEC);
	if (file < 0 || ftruncate(file, area_len))
		return false;
	return mmap(area, area_len, PROT_READ, flags | MAP_FIXED, file, 0) == area;
}

static bool setup_file(void)
{
	return map_file(MAP_PRIVATE);
}

static bool setup_shared(void)
{
	return map_file(MAP_SHARED);
}

/* P, and what follows it; and the others that are moved with it. */
static void map_pages(const struct test *t)
{
	size_t i;

	memset(sh, 0, sizeof(*sh));
	nr_pages = t->pages ?: NR_PAGES;
	duration_ns = 1000000;
	look = look_word;
	area_prot = 0;
	area_len = (1 + t->vmas + t->zero) * psize;
	/* A neighbour that stays keeps the page table, whose removal would flush. */
	area = tlb_rs_mmap(area_len + psize, SZ_2M);
	madvise(area, area_len + psize, MADV_NOHUGEPAGE);
	area[area_len] = 1;
	tlb_rs_bind_node(area, area_len, 0);
	/* Neighbours that differ stay mappings of their own. They have no pages. */
	for (i = 1; i <= t->vmas; i += 2) {
		if (madvise(area + i * psize, psize, MADV_DONTDUMP))
			ksft_exit_fail_msg("MADV_DONTDUMP: %s\n", strerror(errno));
	}
	/* Not where a write to /proc/self/mem has its data in its own buffer. */
	page_p = (__u64 *)(area + psize / 2);
	store(0);
	if (t->zero && madvise(area + psize, t->zero * psize, MADV_POPULATE_READ))
		ksft_exit_fail_msg("MADV_POPULATE_READ: %s\n", strerror(errno));

	list = migrc_mmap(nr_pages - 1, 0, SEED);
	migrc_set_init(&set, list, nr_pages);
	set.addrs[nr_pages - 1] = area;
	mprotect(list, (nr_pages - 1) * psize, PROT_READ);
	settle();
}

static void unmap_pages(void)
{
	munmap(area, area_len + psize);
	munmap(list, (nr_pages - 1) * psize);
	migrc_set_free(&set);
	if (file >= 0)
		close(file);
	if (uffd >= 0)
		close(uffd);
	if (origin)
		munmap(origin, psize);
	file = -1;
	uffd = -1;
	origin = NULL;
}

static pthread_t threads[4];
static int nr_threads;

static void start_thread(void *(*fn)(void *))
{
	if (pthread_create(&threads[nr_threads++], NULL, fn, NULL))
		ksft_exit_fail_msg("cannot start a thread\n");
}

static void end_threads(void)
{
	end_child();
	STORE(sh->stop, true);
	while (nr_threads)
		pthread_join(threads[--nr_threads], NULL);
	if (has_victim)
		pthread_join(victim_id, NULL);
	has_victim = false;
}

/* True if the round was armed. */
static bool litmus_round(const struct test *t, __u64 round, bool skipped)
{
	struct migrc_counters before, d;
	long long before_faults;
	bool ok = true, armed;

	t->prepare(round);
	STORE(sh->want, (t->keep ? old_value(round) : new_value(round)) &
	      (area_prot ? 15 : ~0ULL));
	STORE(sh->reading, round);
	WAIT_FOR(LOAD(sh->last) == (old_value(round) & (area_prot ? 15 : ~0ULL)));

	pfn = tlb_rs_pfn(page_p);
	before_faults = migrc_faults(sh->tid);
	migrc_read(&before);
	if (!t->inflight) {
		/* Nothing is said of pages that have moved if another has not. */
		ok = (migrc_move(&set, 0, !migrc_node_of(page_p), MPOL_MF_MOVE_ALL) ||
		      t->undone) && (tlb_rs_pfn(page_p) == pfn) == t->undone;
		migrc_diff(&before, &d);
		if (!t->flushes || skipped)
			ok &= !d.val[MIGRC_FLUSH] && migrc_faults(sh->tid) == before_faults;
	}
	armed = t->act(round) && ok;
	if (t->inflight)
		migrc_diff(&before, &d);
	if (t->denied && !skipped) {
		armed = d.val[MIGRC_DENIED] && tlb_rs_pfn(page_p) != pfn;
		/* The rest of the list is; not P. */
		if (d.val[MIGRC_DEFERRED] >= nr_pages) {
			ksft_print_msg("%s: P was deferred\n", t->name);
			sh->stale++;
		}
	} else if (!skipped) {
		armed &= d.val[MIGRC_DEFERRED] >= nr_pages - nr_pages / 16;
	}
	STORE(sh->flag, round);
	WAIT_FOR(LOAD(sh->ack) == round);
	if (t->cleanup)
		t->cleanup();
	return armed;
}

static int run_litmus(const struct test *t, const struct migrc_options *o)
{
	long rounds = o->rounds ?: t->rounds, armed = 0;
	struct migrc_counters before;
	int ret = KSFT_SKIP;
	__u64 round;

	map_pages(t);
	if (t->setup && !t->setup()) {
		ksft_print_msg("%s: not available here\n", t->name);
		goto out;
	}
	migrc_write(MIGRC_AGE, t->age_ms ?: AGE_MS);
	migrc_read(&before);
	start_thread(reader);
	WAIT_FOR(LOAD(sh->tid));
	if (t->inflight)
		start_thread(mover);
	if ((t->vmas || t->zero) && look == look_word)
		start_thread(storer);
	if (t->reclaim)
		start_thread(reclaimer);
	for (round = 1; migrc_more(o, rounds, round - 1, armed, sh->stale); round++)
		armed += litmus_round(t, round, o->skip);
	migrc_record("migrc_stale", o, rounds, armed, sh->stale, &before);
	ret = migrc_judge(o, rounds, armed, sh->stale, t->optional);
out:
	end_threads();
	unmap_pages();
	return ret;
}

/* --- lost increments ------------------------------------------------------------- */

/* Until the first of the others is a migration entry: P will be soon. */
static void wait_for_canary(__u64 round)
{
	__u64 was = tlb_rs_pfn(list);

	start_move(round);
	while (tlb_rs_pfn(list) == was && moving(round))
		;
}

static bool act_writable(__u64 round)
{
	start_move(round);
	end_move(round);
	return true;
}

static bool act_pending(__u64 round)
{
	bool in_time;

	wait_for_canary(round);
	in_time = moving(round);
	/* The entry of P is the first to change, and the flush comes last. */
	protect(PROT_READ);
	end_move(round);
	return in_time;
}

static bool act_fork(__u64 round)
{
	bool in_time;
	pid_t pid;

	wait_for_canary(round);
	in_time = moving(round);
	pid = start_child(nothing);
	end_move(round);
	waitpid(pid, NULL, 0);
	return in_time;
}

static int run_lost(const struct test *t, const struct migrc_options *o)
{
	const char *reason = t->act == act_writable ? "writable" : "flush_pending";
	long rounds = o->rounds ?: t->rounds, round, armed = 0, denied = 0, stale = 0;
	/* A kernel without debugfs does not say why it denied. */
	bool known = !o->skip && migrc_has_stats();
	struct migrc_counters before;

	map_pages(t);
	migrc_write(MIGRC_AGE, AGE_MS);
	migrc_read(&before);
	start_thread(writer);
	start_thread(mover);
	for (round = 1; migrc_more(o, rounds, round - 1, known && !denied ? 0 : armed, stale);
	     round++) {
		long long was_denied = migrc_stat("denied", reason);
		__u64 count = LOAD(sh->count), lost = LOAD(sh->lost);
		bool in_time;

		WAIT_FOR(LOAD(sh->count) > count + 1000);
		migrc_gather(&set);
		settle();
		pfn = tlb_rs_pfn(page_p);
		in_time = t->act(round);
		STORE(sh->pause, true);
		WAIT_FOR(LOAD(sh->parked));
		armed += in_time && tlb_rs_pfn(page_p) != pfn;
		denied += migrc_stat("denied", reason) > was_denied;
		stale += load() != LOAD(sh->count) || LOAD(sh->lost) != lost;
		/* By its own flush: the writer sees what everybody sees. */
		protect(PROT_READ);
		protect(PROT_READ | PROT_WRITE);
		STORE(sh->pause, false);
		STORE(sh->parked, false);
	}
	migrc_record("migrc_stale", o, round - 1, armed, stale, &before);
	ksft_print_msg("%s: denied as %s in %ld of %ld rounds, %llu increments\n", t->name, reason,
		       denied, round - 1, sh->count);
	end_threads();
	unmap_pages();
	if (known && !denied) {
		ksft_print_msg("%s: no move met it\n", t->name);
		return t->optional && !stale ? KSFT_SKIP : KSFT_FAIL;
	}
	return migrc_judge(o, rounds, armed, stale, t->optional);
}

/* --- counters --------------------------------------------------------------------- */

/* Another CPU that uses the memory: a flush of this CPU only is never deferred. */
static struct tlb_rs_readers readers;

static int run_mixed(const struct test *t, const struct migrc_options *o)
{
	long rounds = o->rounds ?: t->rounds, round, folios = 0, stale = 0, moved = 0;
	size_t len = FOLIO_PAGES * psize;
	struct migrc_counters all;
	long long mixed;

	if (psize != 4096 || !tlb_rs_setting(THP_SYSFS "hugepages-64kB/enabled", "always") ||
	    !tlb_rs_setting(THP_SYSFS "hugepages-2048kB/enabled", "never")) {
		ksft_print_msg("%s: no 64 KiB anonymous folios\n", t->name);
		return KSFT_SKIP;
	}
	migrc_write(MIGRC_AGE, AGE_MS);
	migrc_read(&all);
	mixed = migrc_stat("denied", "mixed");
	for (round = 0; round < rounds; round++) {
		char *base = tlb_rs_mmap(len, SZ_2M);
		struct migrc_counters before, d;
		struct migrc_set folio;
		long long held;

		tlb_rs_bind_node(base, len, 0);
		tlb_rs_fill(base, len, SEED);
		folios += tlb_rs_is_folio(base, FOLIO_PAGES);
		/* The first half, or the second: what comes last must not decide. */
		mprotect(base + (round & 1) * len / 2, len / 2, PROT_READ);
		migrc_set_init(&folio, base, 1);
		tlb_rs_readers_start(&readers, 1, false, base, len);
		held = migrc_held(-1);
		migrc_read(&before);
		moved += migrc_move(&folio, 0, 1, MPOL_MF_MOVE);
		migrc_diff(&before, &d);
		/* All or nothing: nothing. */
		stale += d.val[MIGRC_DEFERRED] || migrc_held(-1) > held;
		stale += !!tlb_rs_check(base, len, SEED);
		tlb_rs_readers_end(&readers);
		munmap(base, len);
		migrc_set_free(&folio);
	}
	mixed = migrc_stat("denied", "mixed") - mixed;
	migrc_record("migrc_stale", o, rounds, folios < moved ? folios : moved, stale, &all);
	if (!o->skip && migrc_has_stats() && !mixed) {
		ksft_print_msg("%s: no folio was denied for this\n", t->name);
		return KSFT_FAIL;
	}
	return migrc_judge(o, rounds, folios < moved ? folios : moved, stale, t->optional);
}

/* Whether page @i of a folio is read-only: of the first half, the last, or every other one. */
static bool is_readonly(long round, size_t i)
{
	switch (round % 3) {
	case 0:
		return i < FOLIO_PAGES / 2;
	case 1:
		return i >= FOLIO_PAGES / 2;
	}
	return !(i % 2);
}

/* One drain for each batch, which is half of them or all. */
static int run_halves(const struct test *t, const struct migrc_options *o)
{
	long rounds = o->rounds ?: t->rounds, round, armed = 0, stale = 0;
	size_t len = FOLIO_PAGES * psize, i;
	struct migrc_counters all;

	if (!migrc_has_stats() || psize != 4096 ||
	    !tlb_rs_setting(THP_SYSFS "hugepages-64kB/enabled", "always") ||
	    !tlb_rs_setting(THP_SYSFS "hugepages-2048kB/enabled", "never")) {
		ksft_print_msg("%s: no 64 KiB anonymous folios, or no " MIGRC_STATS "\n", t->name);
		return KSFT_SKIP;
	}
	migrc_write(MIGRC_AGE, AGE_MS);
	migrc_read(&all);
	for (round = 0; round < rounds; round++) {
		char *base = tlb_rs_mmap(NR_FOLIOS * len, SZ_2M);
		size_t whole = 0, moved;
		struct migrc_counters before, d;
		struct migrc_set folios;
		long long drains;

		tlb_rs_bind_node(base, NR_FOLIOS * len, 0);
		tlb_rs_fill(base, NR_FOLIOS * len, SEED);
		migrc_set_init(&folios, base, NR_FOLIOS);
		for (i = 0; i < NR_FOLIOS; i++) {
			folios.addrs[i] = base + i * len;
			whole += tlb_rs_is_folio(base + i * len, FOLIO_PAGES);
		}
		for (i = 0; i < NR_FOLIOS * FOLIO_PAGES; i++) {
			if (is_readonly(round, i % FOLIO_PAGES))
				mprotect(base + i * psize, psize, PROT_READ);
		}
		tlb_rs_readers_start(&readers, 1, false, base, NR_FOLIOS * len);
		drains = migrc_stat("drain", "mixed");
		migrc_read(&before);
		moved = migrc_move(&folios, 0, 1, MPOL_MF_MOVE);
		migrc_diff(&before, &d);
		drains = migrc_stat("drain", "mixed") - drains;
		ksft_print_msg("%s: %zu folios, %zu moved, %lld pages denied, %lld drains\n",
			       t->name, whole, moved, d.val[MIGRC_DENIED], drains);
		armed += whole == NR_FOLIOS && moved == NR_FOLIOS &&
			 d.val[MIGRC_DENIED] >= NR_FOLIOS * FOLIO_PAGES;
		stale += drains > 2 || d.val[MIGRC_DEFERRED];
		stale += !!tlb_rs_check(base, NR_FOLIOS * len, SEED);
		tlb_rs_readers_end(&readers);
		munmap(base, NR_FOLIOS * len);
		migrc_set_free(&folios);
	}
	migrc_record("migrc_stale", o, rounds, armed, stale, &all);
	return migrc_judge(o, rounds, armed, stale, t->optional);
}

#ifdef __aarch64__
/*
 * Two contiguous blocks. The first page gets other permissions, which unfolds the first
 * block; the others are cleared in one go, and what comes first of them is no block.
 */
static int run_block(const struct test *t, const struct migrc_options *o)
{
	long rounds = o->rounds ?: t->rounds, round, folios = 0, stale = 0, moved = 0;
	size_t nr = 2 * FOLIO_PAGES, len = nr * psize;
	struct migrc_counters all;

	if (psize != 4096 || !tlb_rs_setting(THP_SYSFS "hugepages-128kB/enabled", "always") ||
	    !tlb_rs_setting(THP_SYSFS "hugepages-2048kB/enabled", "never")) {
		ksft_print_msg("%s: no 128 KiB anonymous folios\n", t->name);
		return KSFT_SKIP;
	}
	migrc_write(MIGRC_AGE, AGE_MS);
	migrc_read(&all);
	for (round = 0; round < rounds; round++) {
		char *base = tlb_rs_mmap(len, SZ_2M);
		struct tlb_rs_counters c;
		struct migrc_set folio;

		tlb_rs_bind_node(base, len, 0);
		tlb_rs_fill(base, len, SEED);
		folios += tlb_rs_is_folio(base, nr);
		mprotect(base, len, PROT_READ);
		mprotect(base, psize, PROT_READ | PROT_EXEC);
		migrc_set_init(&folio, base, 1);
		tlb_rs_counters_read(&c);
		moved += migrc_move(&folio, 0, 1, MPOL_MF_MOVE);
		tlb_rs_counters_diff(&c);
		/* Not deferred, but flushed as a part of the batch. */
		stale += c.vmstat[TLB_RS_VMSTAT_PAGES] < (long long)nr - 1;
		stale += !!tlb_rs_check(base, len, SEED);
		munmap(base, len);
		migrc_set_free(&folio);
	}
	migrc_record("migrc_stale", o, rounds, folios < moved ? folios : moved, stale, &all);
	return migrc_judge(o, rounds, folios < moved ? folios : moved, stale, t->optional);
}
#endif

#ifdef __aarch64__
/*
 * P is the last page of an area of huge pages, which have no page table in which hook
 * "range" would flush. One more page is moved after it, whose unmapping takes long.
 *
 * True if P was deferred before mprotect() began, and mapped again before that came to it.
 */
static bool type_round(__u64 round, bool *flushed)
{
	size_t len = NR_HUGE * SZ_2M;
	long long flushes = migrc_stat("hook", "type");
	struct migrc_counters before, d;
	__u64 begin, took, us, was;
	bool met;

	area_len = len + psize;
	area = tlb_rs_mmap(area_len, SZ_2M);
	page_p = (__u64 *)(area + len);
	if (madvise(area, area_len, MADV_HUGEPAGE) || madvise(area, len, MADV_POPULATE_READ))
		ksft_exit_fail_msg("no huge zero pages: %s\n", strerror(errno));
	*page_p = round;
	list = migrc_mmap(1, migrc_node_of(page_p), SEED);
	migrc_set_init(&set, list, 2);
	set.addrs[0] = page_p;
	set.addrs[1] = list;
	mprotect(list, psize, PROT_READ);
	begin = tlb_rs_now_ns();
	protect(PROT_READ);
	took = tlb_rs_now_ns() - begin;
	settle();
	tlb_rs_readers_start(&readers, 1, true, area + len, psize);

	/* Before each of the two; a third of what mprotect() takes, if that can be. */
	us = took / 3000 < 1000 ? 1000 : took / 3000 > 20000 ? 20000 : took / 3000;
	if (!tlb_rs_delay(MIGRC_WALK_DELAY, us))
		ksft_exit_fail_msg("cannot write %s\n", MIGRC_WALK_DELAY);
	was = tlb_rs_pfn(page_p);
	migrc_read(&before);
	start_move(round);
	while (tlb_rs_pfn(page_p) == was && moving(round))
		;
	begin = tlb_rs_now_ns();
	protect(PROT_READ | MTE);
	took = tlb_rs_now_ns() - begin;
	end_move(round);
	migrc_diff(&before, &d);
	met = d.val[MIGRC_DEFERRED] && tlb_rs_pfn(page_p) != was &&
	      sh->moved_ns > begin + us * 250 && sh->moved_ns < begin + took - took / 8;
	*flushed = migrc_stat("hook", "type") > flushes;

	tlb_rs_readers_end(&readers);
	if (*page_p != round)
		ksft_exit_fail_msg("type: wrong content\n");
	munmap(area, area_len);
	munmap(list, psize);
	migrc_set_free(&set);
	tlb_rs_delay_none();
	return met;
}

static int run_type(const struct test *t, const struct migrc_options *o)
{
	long rounds = o->rounds ?: t->rounds, round, armed = 0, stale = 0;
	struct migrc_counters all;
	char buf[32];

	if (!(getauxval(AT_HWCAP2) & 1 << 18 /* HWCAP2_MTE */) || psize * THP_PAGES != SZ_2M ||
	    !tlb_rs_thp_available() || access(MIGRC_WALK_DELAY, W_OK) ||
	    !tlb_rs_setting("/proc/sys/vm/overcommit_memory", "1") ||
	    tlb_rs_read_file(THP_SYSFS "use_zero_page", buf, sizeof(buf)) || !atoi(buf)) {
		ksft_print_msg("%s: no memory tags, huge zero pages or fault injection\n", t->name);
		return KSFT_SKIP;
	}
	memset(sh, 0, sizeof(*sh));
	area_prot = 0;
	migrc_write(MIGRC_AGE, AGE_MS);
	migrc_read(&all);
	start_thread(mover);
	for (round = 1; migrc_more(o, rounds, round - 1, armed, stale); round++) {
		bool flushed, met = type_round(round, &flushed);

		armed += met;
		stale += met && !flushed;
	}
	end_threads();
	migrc_record("migrc_stale", o, round - 1, armed, stale, &all);
	return migrc_judge(o, rounds, armed, stale, t->optional);
}
#endif

/* 16 pages: a pipe has no more room. */
static int run_undo(const struct test *t, const struct migrc_options *o)
{
	long rounds = o->rounds ?: t->rounds, round, armed = 0, stale = 0;
	size_t len = FOLIO_PAGES * psize, i;
	struct migrc_counters all;

	migrc_write(MIGRC_AGE, AGE_MS);
	migrc_read(&all);
	for (round = 0; round < rounds; round++) {
		char *base = migrc_mmap(FOLIO_PAGES, 0, SEED);
		struct iovec iov = { .iov_base = base, .iov_len = len };
		__u64 pfns[FOLIO_PAGES];
		struct migrc_set pages;
		long long held;
		size_t moved;
		int fds[2];

		mprotect(base, len, PROT_READ);
		migrc_set_init(&pages, base, FOLIO_PAGES);
		if (pipe(fds) || vmsplice(fds[1], &iov, 1, SPLICE_F_NONBLOCK) != (ssize_t)len)
			ksft_exit_fail_msg("vmsplice: %s\n", strerror(errno));
		tlb_rs_readers_start(&readers, 1, true, base, len);
		for (i = 0; i < FOLIO_PAGES; i++)
			pfns[i] = tlb_rs_pfn(base + i * psize);
		held = migrc_held(-1);
		moved = migrc_move(&pages, 0, 1, MPOL_MF_MOVE);
		armed += !moved;
		stale += migrc_held(-1) > held;
		for (i = 0; i < FOLIO_PAGES; i++)
			stale += tlb_rs_pfn(base + i * psize) != pfns[i];
		/* Writable again, and the writes are seen by everybody. */
		stale += tlb_rs_check(base, len, SEED);
		mprotect(base, len, PROT_READ | PROT_WRITE);
		tlb_rs_fill(base, len, SEED + 1);
		stale += tlb_rs_check(base, len, SEED + 1);
		close(fds[0]);
		close(fds[1]);
		/* Nothing is left behind: now the move succeeds. */
		mprotect(base, len, PROT_READ);
		armed -= migrc_move(&pages, 0, 1, MPOL_MF_MOVE) != FOLIO_PAGES;
		stale += tlb_rs_check(base, len, SEED + 1);
		tlb_rs_readers_end(&readers);
		munmap(base, len);
		migrc_set_free(&pages);
	}
	migrc_record("migrc_stale", o, rounds, armed, stale, &all);
	return migrc_judge(o, rounds, armed, stale, t->optional);
}

static int run_split(const struct test *t, const struct migrc_options *o)
{
	long rounds = o->rounds ?: t->rounds, round, armed = 0, stale = 0;
	struct migrc_counters all;
	size_t off;

	if (access(DEBUGFS "split_huge_pages", W_OK) || !tlb_rs_thp_available() ||
	    psize * THP_PAGES != SZ_2M) {
		ksft_print_msg("%s: no split_huge_pages or no THPs\n", t->name);
		return KSFT_SKIP;
	}
	migrc_write(MIGRC_AGE, AGE_MS);
	migrc_read(&all);
	for (round = 0; round < rounds; round++) {
		char *base = tlb_rs_mmap(SZ_2M, SZ_2M);
		struct migrc_counters before, d;
		long long held;
		char cmd[80];
		bool whole;

		madvise(base, SZ_2M, MADV_HUGEPAGE);
		tlb_rs_fill(base, SZ_2M, SEED);
		/* Zero, so a page that a split might replace. */
		for (off = 0; off < SZ_2M; off += 4 * psize)
			memset(base + off, 0, psize);
		mprotect(base + psize, psize, PROT_NONE);
		mprotect(base, SZ_2M, PROT_READ);
		whole = tlb_rs_is_large(base);
		tlb_rs_readers_start(&readers, 1, true, base, SZ_2M);
		held = migrc_held(-1);
		migrc_read(&before);
		snprintf(cmd, sizeof(cmd), "%d,0x%lx,0x%lx", getpid(), (unsigned long)base,
			 (unsigned long)base + SZ_2M);
		tlb_rs_write_file(DEBUGFS "split_huge_pages", cmd);
		armed += whole && !tlb_rs_is_large(base);
		if (tlb_rs_has_swap())
			madvise(base, SZ_2M / 2, MADV_PAGEOUT);
		migrc_diff(&before, &d);
		stale += d.val[MIGRC_DEFERRED] || migrc_held(-1) > held;
		for (off = 0; off < SZ_2M; off += psize) {
			__u64 *w = (__u64 *)(base + off), nr = psize / sizeof(*w), i;

			for (i = 0; i < nr; i += nr / 4)
				stale += w[i] != (off % (4 * psize) ?
						  tlb_rs_word(SEED, off / sizeof(*w) + i) : 0);
		}
		tlb_rs_readers_end(&readers);
		munmap(base, SZ_2M);
	}
	migrc_record("migrc_stale", o, rounds, armed, stale, &all);
	return migrc_judge(o, rounds, armed, stale, t->optional);
}

/* A model of a device in the kernel, see tlb_batch_secondary.c. */
static int run_notifier(const struct test *t, const struct migrc_options *o)
{
	int fd = open(DEBUGFS "tlb_batch/secondary", O_RDWR | O_CLOEXEC);
	long rounds = o->rounds ?: t->rounds, round, armed = 0, stale = 0;
	struct migrc_counters all;
	int n, filled, left;
	char cmd[64];

	if (fd < 0) {
		ksft_print_msg("%s: no model of a secondary TLB\n", t->name);
		return KSFT_SKIP;
	}
	map_pages(t);
	migrc_write(MIGRC_AGE, AGE_MS);
	migrc_read(&all);
	tlb_rs_readers_start(&readers, 1, false, list, (nr_pages - 1) * psize);
	for (round = 0; round < rounds; round++) {
		struct migrc_counters before, d;
		char buf[128] = { };

		n = snprintf(cmd, sizeof(cmd), "%lx %lx", (unsigned long)list,
			     (unsigned long)list + (nr_pages - 1) * psize);
		if (write(fd, cmd, n) != n || pread(fd, buf, sizeof(buf) - 1, 0) <= 0 ||
		    sscanf(buf, "translations %d", &filled) != 1)
			ksft_exit_fail_msg("the model of a secondary TLB does not work\n");
		migrc_read(&before);
		armed += migrc_move(&set, 0, !migrc_node_of(list), MPOL_MF_MOVE) &&
			 filled > nr_pages / 2;
		migrc_diff(&before, &d);
		memset(buf, 0, sizeof(buf));
		if (pread(fd, buf, sizeof(buf) - 1, 0) <= 0 ||
		    sscanf(buf, "translations %d", &left) != 1)
			ksft_exit_fail_msg("the model of a secondary TLB does not work\n");
		stale += left || d.val[MIGRC_DEFERRED];
		/* Flushes whatever is left. */
		mprotect(list, (nr_pages - 1) * psize, PROT_READ | PROT_WRITE);
		mprotect(list, (nr_pages - 1) * psize, PROT_READ);
	}
	tlb_rs_readers_end(&readers);
	close(fd);
	migrc_record("migrc_stale", o, rounds, armed, stale, &all);
	unmap_pages();
	return migrc_judge(o, rounds, armed, stale, t->optional);
}

static const struct test tests[] = {
	{ .name = "reuse", .run = run_litmus, .rounds = 50,
	  .prepare = prepare_fork, .act = act_store },
	{ .name = "reuse-exclusive", .run = run_litmus, .rounds = 50,
	  .prepare = prepare_exclusive, .act = act_store },
	{ .name = "mprotect", .run = run_litmus, .rounds = 30, .zero = NR_ZERO,
	  .prepare = prepare_protect, .act = act_mprotect, .optional = RARELY_MET },
	{ .name = "uffd-wp", .run = run_litmus, .rounds = 30, .zero = NR_ZERO,
	  .setup = setup_uffd, .prepare = prepare_uffd, .act = act_uffd, .optional = RARELY_MET },
	{ .name = "uffd-move", .run = run_litmus, .rounds = RARELY_MET ? 4 : 30,
	  .zero = 2 * THP_PAGES - 1, .setup = setup_move, .prepare = prepare_uffd,
	  .act = act_move, .optional = RARELY_MET },
	{ .name = "uffd-rwp", .run = run_litmus, .rounds = 30,
	  .flushes = true, .setup = setup_rwp, .prepare = prepare_rwp, .act = act_rwp },
	{ .name = "uffd-undo", .run = run_litmus, .rounds = 30, .keep = true, .undone = true,
	  .flushes = true, .setup = setup_rwp, .prepare = prepare_undo, .act = act_undo,
	  .cleanup = cleanup_others },
	{ .name = "uffd-swapin", .run = run_litmus, .rounds = 20, .reclaim = true,
	  .setup = setup_rwp_swapin, .prepare = prepare_rwp_swapin, .act = act_rwp_swapin,
	  .cleanup = cleanup_swapin },
	{ .name = "zap", .run = run_litmus, .rounds = 50, .inflight = true,
	  .pages = NR_INFLIGHT, .prepare = prepare_fork_exit, .act = act_zap,
	  .optional = RARELY_MET },
	{ .name = "dontneed", .run = run_litmus, .rounds = 50, .inflight = true,
	  .pages = NR_INFLIGHT, .prepare = prepare_fork_exit, .act = act_dontneed,
	  .optional = RARELY_MET },
	{ .name = "mremap", .run = run_litmus, .rounds = 50, .inflight = true,
	  .pages = NR_INFLIGHT, .prepare = prepare_fork_exit, .act = act_mremap,
	  .cleanup = cleanup_mremap, .optional = RARELY_MET },
	{ .name = "force", .run = run_litmus, .rounds = 50,
	  .prepare = prepare_protect, .act = act_store },
	{ .name = "poke", .run = run_litmus, .rounds = 50,
	  .setup = setup_tracer, .prepare = prepare_protect, .act = act_poke },
#ifdef __aarch64__
	{ .name = "tags", .run = run_litmus, .rounds = 50,
	  .setup = setup_tags, .prepare = prepare_tags, .act = act_tags },
#endif
	{ .name = "swapin", .run = run_litmus, .rounds = 20, .reclaim = true,
	  .setup = setup_swapin, .prepare = prepare_swapin, .act = act_swapin,
	  .cleanup = cleanup_swapin },
	{ .name = "common", .run = run_litmus, .rounds = 30,
	  .prepare = prepare_common, .act = act_common },
	{ .name = "file", .run = run_litmus, .rounds = 30, .setup = setup_file,
	  .prepare = prepare_file, .act = act_file, .denied = true },
	{ .name = "shared", .run = run_litmus, .rounds = 30, .setup = setup_shared,
	  .prepare = prepare_file, .act = act_file, .denied = true },
	{ .name = "twice", .run = run_litmus, .rounds = 30, .keep = true,
	  .prepare = prepare_protect, .act = act_twice },
	{ .name = "record", .run = run_litmus, .rounds = 30, .keep = true,
	  .prepare = prepare_protect, .act = act_record, .cleanup = cleanup_others },
	{ .name = "drain", .run = run_litmus, .rounds = 30, .keep = true, .age_ms = 300,
	  .prepare = prepare_protect, .act = act_drain, .cleanup = cleanup_others },
	{ .name = "writable", .run = run_lost, .rounds = 50, .pages = NR_INFLIGHT,
	  .act = act_writable },
	{ .name = "pending", .run = run_lost, .rounds = 30, .zero = NR_ZERO,
	  .pages = NR_INFLIGHT, .act = act_pending, .optional = RARELY_MET },
	{ .name = "fork", .run = run_lost, .rounds = 30, .vmas = NR_VMAS,
	  .pages = NR_INFLIGHT, .act = act_fork, .optional = RARELY_MET },
	{ .name = "undo", .run = run_undo, .rounds = 10 },
	{ .name = "split", .run = run_split, .rounds = 5 },
#ifdef __aarch64__
	{ .name = "type", .run = run_type, .rounds = 20 },
#endif
	/* They choose the size of folios until exit, the largest last. */
	{ .name = "halves", .run = run_halves, .rounds = 6 },
#ifdef __aarch64__
	{ .name = "block", .run = run_block, .rounds = 10 },
#endif
	{ .name = "mixed", .run = run_mixed, .rounds = 10 },
	/* The last: nothing of this process is deferred any more. */
	{ .name = "notifier", .run = run_notifier, .rounds = 5 },
};

static const char *choose(size_t i)
{
	test = &tests[i];
	return test->name;
}

static int run(const struct migrc_options *o)
{
	return test->run(test, o);
}

int main(int argc, char **argv)
{
	struct migrc_options o = { };
	int status = KSFT_PASS;

	ksft_print_header();
	if (!migrc_options(argc, argv, &o, &status))
		return status;
	migrc_init(4, MAX_PAGES, AGE_MS);
	psize = getpagesize();
	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (sh == MAP_FAILED)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	mem = tlb_rs_open("/proc/self/mem", O_RDWR);
	scratch = migrc_mmap(1, 0, SEED);
	sigaction(SIGSEGV, &(struct sigaction){ .sa_handler = on_fault, .sa_flags = SA_NODEFER },
		  NULL);
	tlb_rs_pin_cpu(0);
	migrc_run("stale", &o, ARRAY_SIZE(tests), choose, run);
}
