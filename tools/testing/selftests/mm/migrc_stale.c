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
 * Without the hook of the case (TLB_SKIP) R reads the old page.
 *
 * A round counts as armed if P has another frame, its flush was deferred, no hook or drain
 * flushed before the store, and R took no page fault: it went on with the stale entry. No store
 * goes through the TLB of a CPU that has touched P before, which might agree with R on the wrong
 * page: main stores through the kernel, W (CPU 3) has not touched P since the last flush.
 * Whatever else is moved is read-only, too: a flush of a neighbour's would hide that of P.
 *
 * reuse      P is shared with a child, which is gone before the store: the write fault makes the
 *            page writable as it is.
 * reuse_exclusive  the same for a page that is exclusive, but mapped read-only.
 * mprotect   main makes P and 65536 zero pages after it writable, W stores to P in
 *            the meantime: the entry is writable long before mprotect() flushes.
 * uffd_wp    the same by UFFDIO_WRITEPROTECT.
 * uffd_move  main moves P and 511 pages after it elsewhere by UFFDIO_MOVE. In the meantime R
 *            stores to P there, through an entry of the new address, and reads where P was: it
 *            is writable long before UFFDIO_MOVE flushes. Unless its entry is stale R waits
 *            there in a fault until P has come back.
 * uffd_rwp   P is as in "reuse_exclusive", and its entry marked for userfaultfd by registrations
 *            that are gone: UFFDIO_MOVE leaves the mark of write protection on an entry of swap.
 *            In a mapping for RWP the move then makes it inaccessible, and the fault of the
 *            store writable: without hook "protnone" of the one and "reuse" of the other none of
 *            them would flush.
 * uffd_undo  the same, but a pipe has P, so the move is undone. The next one, after the pipe has
 *            gone, finds an inaccessible entry, for which it does not flush, and frees the old
 *            page. main writes to new pages.
 * uffd_swapin  P is marked as in "uffd_rwp" and moved, which is not flushed as long as the
 *            mapping is not for RWP. Then it is, and P is swapped out and read back for the
 *            store as in "swapin": it is inaccessible then, and writable by the next fault.
 * zap        P is replaced by mmap(MAP_FIXED) while it is a migration entry.
 * dontneed   the same by MADV_DONTNEED.
 * mremap     P is moved elsewhere while it is a migration entry.
 * force      a write to /proc/self/mem in spite of PROT_READ.
 * poke       the same by PTRACE_POKEDATA.
 * tags       PTRACE_POKEMTETAGS; R reads the tag.
 * swapin     P is reclaimed to swap and read back for the store, before reclaim has flushed. Its
 *            entry is clean, so reclaim writes it out and unlocks it first: nothing stops the
 *            fault. It finds the same page again, since swap is on a disk: only the migration
 *            can make R's entry wrong. On x86_64 nobody is told before the flush. On arm64 the
 *            TLBI is issued before the unlock, but who faults does not wait for it. QEMU has it
 *            done at once, so there hook "flush" of the TLB batch is removed, which stands for a
 *            TLBI that takes its time. MADV_PAGEOUT calls hook "range", but reclaim of a cgroup
 *            does not.
 * common     a child that shares P unmaps it and must not read it any more, then P is reused by
 *            the parent.
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
 * pending    mprotect(PROT_READ) of P and 65536 zero pages is under way. (It calls hook "range"
 *            for each page table, so that has to be removed, too.)
 * fork       fork() of P and 8192 mappings after it is under way. (x86_64: no CPU uses the
 *            child's mm, its part of the folio is never deferred. So the parent's is only if
 *            hook "mixed" is removed, too.)
 *
 * Others compare counters: mixed (half of a folio is read-only), halves (the same of many
 * folios, which must not be flushed one by one), block (arm64: part of a folio is mapped by a
 * contiguous block), undo (the move fails since vmsplice() has the page), split (a THP is
 * split), notifier (a device uses the page table), type (arm64: a page moves while mprotect()
 * makes it tagged memory, but has not come to it yet), exec (Cortex-A715: the same while
 * mprotect() ends that it may be executed).
 */
#include "migrc_harness.h"
#include "migrc_stale.h"

struct shared *sh;

const struct test *test;
size_t psize;
__u64 *page_p;
char *area;		/* P and what follows it */
size_t area_len;
int area_prot;		/* bits beyond PROT_READ and PROT_WRITE */
long nr_pages;		/* that are moved, P among them */
char *list;		/* the others that are moved, always read-only */
struct migrc_set set;
static char *scratch;
static struct migrc_options asked;
int mem = -1;
int file = -1;
int uffd = -1;
pid_t child = -1;
char *others;
__u64 duration_ns;
__u64 pfn;

__u64 old_value(__u64 round)
{
	return 2 * round;
}

__u64 new_value(__u64 round)
{
	return 2 * round + 1;
}

__u64 look_word(void)
{
	return __atomic_load_n(page_p, __ATOMIC_RELAXED);
}

__u64 (*look)(void) = look_word;

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
__u64 look_and_store(void)
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

void *mover(void *arg)
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
void touch_stack(void)
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

/* Main has no entry of P in its TLB. */
void store(__u64 val)
{
	if (pwrite(mem, &val, sizeof(val), (unsigned long)page_p) != sizeof(val))
		ksft_exit_fail_msg("/proc/self/mem: %s\n", strerror(errno));
}

__u64 load(void)
{
	__u64 val;

	if (pread(mem, &val, sizeof(val), (unsigned long)page_p) != sizeof(val))
		ksft_exit_fail_msg("/proc/self/mem: %s\n", strerror(errno));
	return val;
}

void protect(int prot)
{
	if (mprotect(area, area_len, prot | area_prot))
		ksft_exit_fail_msg("mprotect: %s\n", strerror(errno));
}

/*
 * What is owed for other reasons is flushed here, and not when a hook is called
 * from which only the part of migrc was removed.
 */
void settle(void)
{
	madvise(scratch, psize, MADV_COLD);
}

void start_move(__u64 round)
{
	sh->node = !migrc_node_of(page_p);
	STORE(sh->move, round);
}

bool moving(__u64 round)
{
	return LOAD(sh->moved) != round;
}

void end_move(__u64 round)
{
	WAIT_FOR(!moving(round));
}

pid_t start_child(void (*fn)(void))
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

void end_child(void)
{
	if (child < 0)
		return;
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	child = -1;
}

/* P, and what follows it; and the others that are moved with it. */
void map_pages(const struct test *t)
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

void unmap_pages(void)
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

void start_thread(void *(*fn)(void *))
{
	if (pthread_create(&threads[nr_threads++], NULL, fn, NULL))
		ksft_exit_fail_msg("cannot start a thread\n");
}

void end_threads(void)
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
			ksft_print_msg("P was deferred\n");
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
	__u64 round;
	int ret;

	map_pages(t);
	if (t->setup && !t->setup()) {
		ret = migrc_skipped("not available here");
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

static void begin(struct __test_metadata *_metadata, const struct test *t)
{
	if (!migrc_begin(_metadata, &asked))
		return;
	test = t;
	mem = tlb_rs_open("/proc/self/mem", O_RDWR);
	scratch = migrc_mmap(1, 0, SEED);
	touch_stack();
	sigaction(SIGSEGV, &(struct sigaction){ .sa_handler = on_fault, .sa_flags = SA_NODEFER },
		  NULL);
}

FIXTURE(migrc_stale) {
};

FIXTURE_VARIANT(migrc_stale) {
	struct test test;
};

FIXTURE_VARIANT_ADD(migrc_stale, reuse) {
	.test = { .rounds = 50, .prepare = prepare_fork, .act = act_store },
};

FIXTURE_VARIANT_ADD(migrc_stale, reuse_exclusive) {
	.test = { .rounds = 50, .prepare = prepare_exclusive, .act = act_store },
};

FIXTURE_VARIANT_ADD(migrc_stale, mprotect) {
	.test = { .rounds = 30, .zero = NR_ZERO, .prepare = prepare_protect, .act = act_mprotect,
		  .optional = RARELY_MET },
};

FIXTURE_VARIANT_ADD(migrc_stale, uffd_wp) {
	.test = { .rounds = 30, .zero = NR_ZERO, .setup = setup_uffd, .prepare = prepare_uffd,
		  .act = act_uffd, .optional = RARELY_MET },
};

FIXTURE_VARIANT_ADD(migrc_stale, uffd_move) {
	.test = { .rounds = RARELY_MET ? 4 : 30, .zero = 2 * THP_PAGES - 1, .setup = setup_move,
		  .prepare = prepare_uffd, .act = act_move, .optional = RARELY_MET },
};

FIXTURE_VARIANT_ADD(migrc_stale, uffd_rwp) {
	.test = { .rounds = 30, .flushes = true, .setup = setup_rwp, .prepare = prepare_rwp,
		  .act = act_rwp },
};

FIXTURE_VARIANT_ADD(migrc_stale, uffd_undo) {
	.test = { .rounds = 30, .keep = true, .undone = true, .flushes = true, .setup = setup_rwp,
		  .prepare = prepare_undo, .act = act_undo, .cleanup = cleanup_others },
};

FIXTURE_VARIANT_ADD(migrc_stale, uffd_swapin) {
	.test = { .rounds = 20, .reclaim = true, .setup = setup_rwp_swapin,
		  .prepare = prepare_rwp_swapin, .act = act_rwp_swapin, .cleanup = cleanup_swapin },
};

FIXTURE_VARIANT_ADD(migrc_stale, zap) {
	.test = { .rounds = 50, .inflight = true, .pages = NR_INFLIGHT,
		  .prepare = prepare_fork_exit, .act = act_zap, .optional = RARELY_MET },
};

FIXTURE_VARIANT_ADD(migrc_stale, dontneed) {
	.test = { .rounds = 50, .inflight = true, .pages = NR_INFLIGHT,
		  .prepare = prepare_fork_exit, .act = act_dontneed, .optional = RARELY_MET },
};

FIXTURE_VARIANT_ADD(migrc_stale, mremap) {
	.test = { .rounds = 50, .inflight = true, .pages = NR_INFLIGHT,
		  .prepare = prepare_fork_exit, .act = act_mremap, .cleanup = cleanup_mremap,
		  .optional = RARELY_MET },
};

FIXTURE_VARIANT_ADD(migrc_stale, force) {
	.test = { .rounds = 50, .prepare = prepare_protect, .act = act_store },
};

FIXTURE_VARIANT_ADD(migrc_stale, poke) {
	.test = { .rounds = 50, .setup = setup_tracer, .prepare = prepare_protect,
		  .act = act_poke },
};

#ifdef __aarch64__
FIXTURE_VARIANT_ADD(migrc_stale, tags) {
	.test = { .rounds = 50, .setup = setup_tags, .prepare = prepare_tags, .act = act_tags },
};
#endif

FIXTURE_VARIANT_ADD(migrc_stale, swapin) {
	.test = { .rounds = 20, .reclaim = true, .setup = setup_swapin, .prepare = prepare_swapin,
		  .act = act_swapin, .cleanup = cleanup_swapin },
};

FIXTURE_VARIANT_ADD(migrc_stale, common) {
	.test = { .rounds = 30, .prepare = prepare_common, .act = act_common },
};

FIXTURE_VARIANT_ADD(migrc_stale, file) {
	.test = { .rounds = 30, .setup = setup_file, .prepare = prepare_file, .act = act_file,
		  .denied = true },
};

FIXTURE_VARIANT_ADD(migrc_stale, shared) {
	.test = { .rounds = 30, .setup = setup_shared, .prepare = prepare_file, .act = act_file,
		  .denied = true },
};

FIXTURE_VARIANT_ADD(migrc_stale, twice) {
	.test = { .rounds = 30, .keep = true, .prepare = prepare_protect, .act = act_twice },
};

FIXTURE_VARIANT_ADD(migrc_stale, record) {
	.test = { .rounds = 30, .keep = true, .prepare = prepare_protect, .act = act_record,
		  .cleanup = cleanup_others },
};

FIXTURE_VARIANT_ADD(migrc_stale, drain) {
	.test = { .rounds = 30, .keep = true, .age_ms = 300, .prepare = prepare_protect,
		  .act = act_drain, .cleanup = cleanup_others },
};

FIXTURE_SETUP(migrc_stale)
{
	begin(_metadata, &variant->test);
}

FIXTURE_TEARDOWN_PARENT(migrc_stale)
{
	tlb_rs_tear_down();
}

TEST_F_TIMEOUT(migrc_stale, stale, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run_litmus(&variant->test, &asked));
}

/* R increments P. */
FIXTURE(migrc_stale_writer) {
};

FIXTURE_VARIANT(migrc_stale_writer) {
	struct test test;
};

FIXTURE_VARIANT_ADD(migrc_stale_writer, writable) {
	.test = { .rounds = 50, .pages = NR_INFLIGHT, .act = act_writable },
};

FIXTURE_VARIANT_ADD(migrc_stale_writer, pending) {
	.test = { .rounds = 30, .zero = NR_ZERO, .pages = NR_INFLIGHT, .act = act_pending,
		  .optional = RARELY_MET },
};

FIXTURE_VARIANT_ADD(migrc_stale_writer, fork) {
	.test = { .rounds = 30, .vmas = NR_VMAS, .pages = NR_INFLIGHT, .act = act_fork,
		  .optional = RARELY_MET },
};

FIXTURE_SETUP(migrc_stale_writer)
{
	begin(_metadata, &variant->test);
}

FIXTURE_TEARDOWN_PARENT(migrc_stale_writer)
{
	tlb_rs_tear_down();
}

TEST_F_TIMEOUT(migrc_stale_writer, lost, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run_lost(&variant->test, &asked));
}

FIXTURE(migrc_stale_counts) {
};

FIXTURE_SETUP(migrc_stale_counts)
{
	begin(_metadata, NULL);
}

FIXTURE_TEARDOWN_PARENT(migrc_stale_counts)
{
	tlb_rs_tear_down();
}

TEST_F_TIMEOUT(migrc_stale_counts, undo, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run_undo(&asked));
}

TEST_F_TIMEOUT(migrc_stale_counts, split, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run_split(&asked));
}

#ifdef __aarch64__
TEST_F_TIMEOUT(migrc_stale_counts, type, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run_type(&asked));
}

TEST_F_TIMEOUT(migrc_stale_counts, exec, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run_exec(&asked));
}

TEST_F_TIMEOUT(migrc_stale_counts, block, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run_block(&asked));
}
#endif

TEST_F_TIMEOUT(migrc_stale_counts, halves, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run_halves(&asked));
}

TEST_F_TIMEOUT(migrc_stale_counts, mixed, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run_mixed(&asked));
}

TEST_F_TIMEOUT(migrc_stale_counts, notifier, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run_notifier(&asked));
}

int main(int argc, char **argv)
{
	migrc_ask(&asked);
	tlb_rs_skip_all(migrc_missing(4));
	migrc_init(4, MAX_PAGES, AGE_MS);
	psize = getpagesize();
	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (sh == MAP_FAILED)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	tlb_rs_pin_cpu(0);
	return test_harness_run(argc, argv);
}
