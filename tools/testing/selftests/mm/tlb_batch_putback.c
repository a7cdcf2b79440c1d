// SPDX-License-Identifier: GPL-2.0
/*
 * PTEs that are cleared and then put back before the flush.
 *
 * A run of PTEs is cleared without unfolding its contiguous (contpte) blocks,
 * so the TLBs may still hold entries of another size when a PTE becomes valid
 * again. arm64 demands that they are gone by then: what is owed must be issued
 * and completed first, not just by the end of the batch.
 *
 * Ways to a put-back, with 64 KiB anonymous folios that are pinned:
 *
 * migrate   try_to_migrate_one(): folio_try_share_anon_rmap_pte() fails. Three
 *           asynchronous, batched attempts for each folio, then synchronous
 *           ones that do not batch.
 * lazyfree  try_to_unmap_one(): MADV_FREE and MADV_PAGEOUT, the additional
 *           reference keeps the folio. One attempt for each folio.
 *
 * single    As migrate, but with pages that are no contiguous block: none has to wait.
 *
 * middle    As migrate, but the run fails in its middle: the pages before are not exclusive,
 *           so that nothing is asked of them that could fail. They go off the rmap and come
 *           back. Each folio, no longer pinned, is then split and migrated: one reference
 *           or mapping too many of those pages would keep it.
 *
 * And three in which reclaim keeps folios, which may then be mapped again:
 *
 * dirty     64 KiB folios of an ext4 file: they are unmapped, and kept because they are
 *           dirty. Each has to wait, sync_cleared_runs() of mm/vmscan.c.
 * kept      Every other folio is pinned, and not unmapped, the others are freed: none has
 *           to wait for those.
 * long      Pages of an ext4 file, of which one in 160 is clean. It stays locked until its
 *           flush, which must not be that at the end of the list.
 *
 * And one without a put-back:
 *
 * whole     Nothing is pinned, nothing fails: the pages of a folio go off the rmap at once,
 *           and it stays whole however often it moves. One by one it would be taken for
 *           partially mapped on the way, and be split by the next migration.
 *
 * The pin needs no kernel test module: process_vm_readv() pins its source, then
 * faults on a destination that userfaultfd leaves missing, and so holds the
 * pins until this test provides the destination.
 *
 * What shows the rule: each put-back has to complete a flush of its own, so
 * vmstat's tlb_batch_flush grows at least by one for each folio and attempt.
 * Without the rule (skip_hook "putback") there is one flush at the end of the
 * batch, whatever the number of folios. The TLB meter shows the same for the
 * executed instructions: DSB ISH less by the number of put-backs, while the
 * TLBIs are as many as before. Contents and accesses cannot show it, neither
 * here nor on most hardware: the entries point to the same pages.
 */
#include "tlb_batch_putback.h"
#include "tlb_rs_harness.h"

const char *ext4_dir;
size_t psize;
size_t folio_size;
size_t len;

/* Of a folio. */
static void set_size(int pages)
{
	folio_size = pages * psize;
	len = NR_FOLIOS * folio_size;
}

static void *pin_thread(void *arg)
{
	struct pin *pin = arg;
	struct iovec local = { .iov_base = pin->dst, .iov_len = pin->len };
	struct iovec remote = { .iov_base = pin->src, .iov_len = pin->len };

	pin->copied = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
	return NULL;
}

/* A kselftest exit code: userfaultfd may be missing. */
int pin_pages(struct pin *pin, char *src, size_t size)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { };
	struct uffd_msg msg;

	pin->src = src;
	pin->len = size;
	pin->uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
	if (pin->uffd < 0) {
		ksft_perror("userfaultfd");
		return KSFT_SKIP;
	}
	pin->dst = tlb_rs_mmap(size, SZ_2M);
	reg.range.start = (unsigned long)pin->dst;
	reg.range.len = size;
	reg.mode = UFFDIO_REGISTER_MODE_MISSING;
	if (ioctl(pin->uffd, UFFDIO_API, &api) || ioctl(pin->uffd, UFFDIO_REGISTER, &reg) ||
	    pthread_create(&pin->thread, NULL, pin_thread, pin)) {
		ksft_perror("cannot pin pages");
		return KSFT_FAIL;
	}
	/* The first fault comes after the pins. */
	if (read(pin->uffd, &msg, sizeof(msg)) != sizeof(msg) ||
	    msg.event != UFFD_EVENT_PAGEFAULT) {
		ksft_perror("no fault of the copy");
		return KSFT_FAIL;
	}
	return KSFT_PASS;
}

/* Lets the copy go on; it must have read what is at the source. */
bool unpin_pages(struct pin *pin)
{
	struct uffdio_zeropage zero = {
		.range = { .start = (unsigned long)pin->dst, .len = pin->len },
	};
	bool ok;

	if (ioctl(pin->uffd, UFFDIO_ZEROPAGE, &zero))
		ksft_exit_fail_msg("UFFDIO_ZEROPAGE: %s\n", strerror(errno));
	pthread_join(pin->thread, NULL);
	close(pin->uffd);
	ok = pin->copied == (ssize_t)pin->len && !memcmp(pin->dst, pin->src, pin->len);
	munmap(pin->dst, pin->len);
	return ok;
}

/* Another CPU that uses the range all the time and must never see a change. */
static struct {
	pthread_t thread;
	const char *base;
	bool stop;
	size_t bad;
	size_t rounds;
} watch;

static void *watch_thread(void *arg)
{
	(void)arg;
	tlb_rs_pin_cpu(1);
	do {
		watch.bad += tlb_rs_check(watch.base, len, SEED);
		__atomic_fetch_add(&watch.rounds, 1, __ATOMIC_RELEASE);
	} while (!__atomic_load_n(&watch.stop, __ATOMIC_ACQUIRE));
	return NULL;
}

static void watch_start(const char *base)
{
	memset(&watch, 0, sizeof(watch));
	watch.base = base;
	if (pthread_create(&watch.thread, NULL, watch_thread, NULL))
		ksft_exit_fail_msg("cannot start a thread\n");
	while (!__atomic_load_n(&watch.rounds, __ATOMIC_ACQUIRE))
		tlb_rs_sleep_us(1000);
}

static size_t watch_end(void)
{
	__atomic_store_n(&watch.stop, true, __ATOMIC_RELEASE);
	pthread_join(watch.thread, NULL);
	return watch.bad;
}

char *make_folios(int pages)
{
	char *base = tlb_rs_mmap(len, SZ_2M);
	size_t i, n = 0;

	if ((tlb_rs_memory_nodes() & 3) == 3)
		tlb_rs_bind_node(base, len, 0);
	if (pages == 1 && madvise(base, len, MADV_NOHUGEPAGE))
		ksft_exit_fail_msg("MADV_NOHUGEPAGE: %s\n", strerror(errno));
	tlb_rs_fill(base, len, SEED);
	for (i = 0; i < NR_FOLIOS; i++)
		n += pages == 1 || tlb_rs_is_folio(base + i * folio_size, pages);
	if (n == NR_FOLIOS)
		return base;
	ksft_print_msg("only %zu of %d folios have 64 KiB\n", n, NR_FOLIOS);
	munmap(base, len);
	return NULL;
}

static void *addrs[NR_FOLIOS];
static int nodes[NR_FOLIOS];
static int status[NR_FOLIOS];

static void act_migrate(char *base)
{
	(void)base;
	tlb_rs_move_pages(0, NR_FOLIOS, addrs, nodes, status);
}

static void act_lazyfree(char *base)
{
	madvise(base, len, MADV_PAGEOUT);
}

struct variant {
	const char *name;
	void (*act)(char *base);
	bool lazyfree;
	int pages;	/* of a folio */
	int attempts;
};

#define ATTEMPTS	3	/* asynchronous, to migrate */

static const struct variant migrate = {
	.name = "putback_migrate", .act = act_migrate, .pages = FOLIO_PAGES, .attempts = ATTEMPTS,
};

static const struct variant lazyfree = {
	.name = "putback_lazyfree", .act = act_lazyfree, .lazyfree = true, .pages = FOLIO_PAGES,
	.attempts = 1,
};

static const struct variant single = {
	.name = "putback_single", .act = act_migrate, .pages = 1,
};

static int run_variant(const struct variant *v, const char *skip, bool expect_missing)
{
	size_t i, away = 0, bad, want = NR_FOLIOS * v->attempts;
	__u64 pfn[NR_FOLIOS];
	struct tlb_rs_counters c;
	struct pin pin = { };
	bool ok = true, missing;
	char extra[200];
	long long syncs;
	int ret, on = 0;
	char *base;

	if (!v->lazyfree && (tlb_rs_memory_nodes() & 3) != 3) {
		ksft_print_msg("needs memory on nodes 0 and 1\n");
		return KSFT_SKIP;
	}
	set_size(v->pages);
	base = make_folios(v->pages);
	if (!base)
		return KSFT_FAIL;
	for (i = 0; i < NR_FOLIOS; i++) {
		addrs[i] = base + i * folio_size;
		nodes[i] = 1;
		status[i] = 0;
		pfn[i] = tlb_rs_pfn(addrs[i]);
	}
	if (v->lazyfree && madvise(base, len, MADV_FREE)) {
		ksft_print_msg("MADV_FREE: %s\n", strerror(errno));
		return KSFT_FAIL;
	}
	ret = pin_pages(&pin, base, len);
	if (ret != KSFT_PASS) {
		munmap(base, len);
		return ret;
	}
	watch_start(base);

	tlb_rs_begin(&c);
	v->act(base);
	tlb_rs_end(&c);

	bad = watch_end();
	for (i = 0; i < NR_FOLIOS; i++)
		away += tlb_rs_pfn(addrs[i]) != pfn[i];
	bad += tlb_rs_check(base, len, SEED);
	ok &= unpin_pages(&pin);

	syncs = c.vmstat[TLB_RS_VMSTAT_FLUSH];
	missing = syncs < (long long)want;
	snprintf(extra, sizeof(extra),
		 ",\"skip\":\"%s\",\"folios\":%d,\"migrated\":%zu,\"put_back\":%zu,\"put_back_syncs_min\":%zu,\"bad\":%zu",
		 skip, NR_FOLIOS, away, NR_FOLIOS - away, want, bad);
	tlb_rs_json_region(v->name, extra, &c);

	if (away || bad || !ok) {
		ksft_print_msg("%zu folios elsewhere, %zu wrong words, copy %s\n",
			       away, bad, ok ? "right" : "wrong");
		ok = false;
	}
	/*
	 * The rule is only about runs: not on stock, and with the switch at 0 only what stock
	 * clears together.
	 */
	if (HAS_RULE && v->attempts && tlb_batch_get(&on) &&
	    (on > 0 || (!on && v->lazyfree)) && missing != expect_missing) {
		ksft_print_msg("%lld flushes for at least %zu put-backs\n", syncs, want);
		ok = false;
	}
	if (!v->attempts && tlb_batch_get(&on) && on > 0 && syncs > NR_FOLIOS / 4) {
		ksft_print_msg("%lld flushes for put-backs that need none\n", syncs);
		ok = false;
	}
	/* Writable as before, and not shared with anything. */
	tlb_rs_fill(base, len, SEED + 1);
	ok &= !tlb_rs_check(base, len, SEED + 1);
	munmap(base, len);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

/* Alike in all that a run is made of, but the first half of each folio is not exclusive. */
static char *make_half_exclusive(void)
{
	char *base = make_folios(FOLIO_PAGES);
	size_t off, n = 0;
	int status;
	pid_t pid;

	if (!base)
		return NULL;
	pid = fork();
	if (!pid)
		_exit(0);
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		ksft_exit_fail_msg("fork: %s\n", strerror(errno));
	for (off = 0; off < len; off += psize) {
		if (off % folio_size >= folio_size / 2)
			__atomic_fetch_or(base + off, 0, __ATOMIC_RELAXED);
	}
	if (mprotect(base, len, PROT_READ))
		ksft_exit_fail_msg("mprotect: %s\n", strerror(errno));
	/* A write copies the page if somebody happens to hold a reference. */
	for (off = 0; off < len; off += folio_size)
		n += tlb_rs_is_folio(base + off, FOLIO_PAGES);
	if (n == NR_FOLIOS)
		return base;
	ksft_print_msg("%zu of %d folios are as they were\n", n, NR_FOLIOS);
	munmap(base, len);
	return NULL;
}

/* Writes to all pages. The minor faults of that: each page that is not exclusive has one. */
static long rewrite(char *base)
{
	struct rusage before, after;

	if (mprotect(base, len, PROT_READ | PROT_WRITE))
		ksft_exit_fail_msg("mprotect: %s\n", strerror(errno));
	getrusage(RUSAGE_THREAD, &before);
	tlb_rs_fill(base, len, SEED + 1);
	getrusage(RUSAGE_THREAD, &after);
	return after.ru_minflt - before.ru_minflt;
}

static int run_middle(const char *skip, bool expect_missing)
{
	size_t i, away = 0, moved = 0, bad, want = NR_FOLIOS * ATTEMPTS;
	struct pin pins[NR_FOLIOS] = { };
	struct tlb_rs_counters c;
	__u64 pfn[NR_FOLIOS];
	bool ok = true, missing;
	long long syncs;
	char extra[200];
	int ret, on = 0;
	long faults;
	char *base;

	if ((tlb_rs_memory_nodes() & 3) != 3) {
		ksft_print_msg("needs memory on nodes 0 and 1\n");
		return KSFT_SKIP;
	}
	base = make_half_exclusive();
	if (!base)
		return KSFT_FAIL;
	for (i = 0; i < NR_FOLIOS; i++) {
		addrs[i] = base + i * folio_size;
		pfn[i] = tlb_rs_pfn(addrs[i]);
		nodes[i] = 1;
		ret = pin_pages(&pins[i], base + i * folio_size + folio_size / 2, psize);
		if (ret != KSFT_PASS)
			return ret;
	}
	watch_start(base);

	tlb_rs_begin(&c);
	act_migrate(base);
	tlb_rs_end(&c);

	bad = watch_end();
	for (i = 0; i < NR_FOLIOS; i++) {
		away += tlb_rs_pfn(addrs[i]) != pfn[i];
		ok &= unpin_pages(&pins[i]);
	}
	bad += tlb_rs_check(base, len, SEED);
	act_migrate(base);
	for (i = 0; i < NR_FOLIOS; i++)
		moved += tlb_rs_pfn(addrs[i]) != pfn[i];
	bad += tlb_rs_check(base, len, SEED);
	faults = rewrite(base);
	bad += tlb_rs_check(base, len, SEED + 1);
	munmap(base, len);

	syncs = c.vmstat[TLB_RS_VMSTAT_FLUSH];
	missing = syncs < (long long)want;
	snprintf(extra, sizeof(extra),
		 ",\"skip\":\"%s\",\"migrated\":%zu,\"later\":%zu,\"syncs_min\":%zu,\"bad\":%zu",
		 skip, away, moved, want, bad);
	tlb_rs_json_region("putback_middle", extra, &c);
	if (away || moved != NR_FOLIOS || bad || !ok) {
		ksft_print_msg("%zu pinned folios moved, %zu of %d later, %zu bad, copy %s\n",
			       away, moved, NR_FOLIOS, bad, ok ? "right" : "wrong");
		return KSFT_FAIL;
	}
	if (faults < NR_FOLIOS * FOLIO_PAGES / 2) {
		ksft_print_msg("only %ld pages were not exclusive, of %d\n", faults,
			       NR_FOLIOS * FOLIO_PAGES);
		return KSFT_FAIL;
	}
	/* Of runs only. */
	if (HAS_RULE && tlb_batch_get(&on) && on > 0 && missing != expect_missing) {
		ksft_print_msg("%lld flushes for at least %zu put-backs\n", syncs, want);
		return KSFT_FAIL;
	}
	return KSFT_PASS;
}

/* Folios that are one run, to and fro. */
static int run_whole(const char *skip)
{
	size_t i, round, moved = 0, whole = 0, bad;
	struct tlb_rs_counters c;
	char extra[100];
	int on = 0;
	char *base;

	if ((tlb_rs_memory_nodes() & 3) != 3) {
		ksft_print_msg("needs memory on nodes 0 and 1\n");
		return KSFT_SKIP;
	}
	base = make_folios(FOLIO_PAGES);
	if (!base)
		return KSFT_FAIL;
	watch_start(base);
	tlb_rs_begin(&c);
	for (round = 0; round < 4; round++) {
		for (i = 0; i < NR_FOLIOS; i++) {
			addrs[i] = base + i * folio_size;
			nodes[i] = !(round & 1);
			status[i] = -1;
		}
		act_migrate(base);
		for (i = 0; i < NR_FOLIOS; i++)
			moved += status[i] == nodes[i];
	}
	tlb_rs_end(&c);
	bad = watch_end();
	for (i = 0; i < NR_FOLIOS; i++)
		whole += tlb_rs_is_folio(base + i * folio_size, FOLIO_PAGES);
	bad += tlb_rs_check(base, len, SEED);
	munmap(base, len);

	snprintf(extra, sizeof(extra),
		 ",\"skip\":\"%s\",\"migrated\":%zu,\"whole\":%zu,\"bad\":%zu",
		 skip, moved, whole, bad);
	tlb_rs_json_region("putback_whole", extra, &c);
	if (moved < round * NR_FOLIOS * 3 / 4 || bad) {
		ksft_print_msg("%zu of %zu moves, %zu wrong words\n", moved,
			       round * NR_FOLIOS, bad);
		return KSFT_FAIL;
	}
	/* Not all: one that is busy is tried again, page by page. */
	if (tlb_batch_get(&on) && on > 0 && whole < NR_FOLIOS * 3 / 4) {
		ksft_print_msg("only %zu of %d folios are whole\n", whole, NR_FOLIOS);
		return KSFT_FAIL;
	}
	return KSFT_PASS;
}

FIXTURE(tlb_batch_putback) {
	const char *skip;
	bool missing;	/* flushes: without the rule */
};

FIXTURE_SETUP(tlb_batch_putback)
{
	tlb_rs_undo();
	self->skip = tlb_rs_skip();
	self->missing = tlb_rs_env_number("TLB_EXPECT", 0, 0, 1);
	ext4_dir = tlb_rs_env("TLB_DIR") ?: "/mnt";
	set_size(FOLIO_PAGES);
	if (!tlb_rs_setting(THP_SYSFS "hugepages-64kB/enabled", "always") ||
	    !tlb_rs_setting(THP_SYSFS "hugepages-2048kB/enabled", "never"))
		SKIP(return, "no 64 KiB anonymous folios");
	if (tlb_rs_hook_removed(self->skip) && !tlb_rs_skip_hooks(self->skip))
		SKIP(return, "hook '%s' cannot be removed on this kernel", self->skip);
	tlb_rs_pin_cpu(0);
	tlb_rs_quiet();
}

FIXTURE_TEARDOWN_PARENT(tlb_batch_putback)
{
	tlb_rs_tear_down();
}

/* The verdict of a case, which has said why. */
static void judge(struct __test_metadata *_metadata, int ret)
{
	if (ret == KSFT_SKIP)
		SKIP(return, "needs two nodes, userfaultfd, or an ext4 in TLB_DIR");
	EXPECT_EQ(KSFT_PASS, ret);
}

TEST_F_TIMEOUT(tlb_batch_putback, migrate, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, run_variant(&migrate, self->skip, self->missing));
}

TEST_F_TIMEOUT(tlb_batch_putback, lazyfree, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, run_variant(&lazyfree, self->skip, self->missing));
}

TEST_F_TIMEOUT(tlb_batch_putback, single, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, run_variant(&single, self->skip, self->missing));
}

TEST_F_TIMEOUT(tlb_batch_putback, middle, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, run_middle(self->skip, self->missing));
}

TEST_F_TIMEOUT(tlb_batch_putback, whole, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, run_whole(self->skip));
}

TEST_F_TIMEOUT(tlb_batch_putback, dirty, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, run_dirty(self->skip, self->missing));
}

TEST_F_TIMEOUT(tlb_batch_putback, kept, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, run_kept(self->skip));
}

TEST_F_TIMEOUT(tlb_batch_putback, long, TLB_RS_TIMEOUT_S)
{
	judge(_metadata, run_long(self->skip));
}

static const char *missing(void)
{
	psize = getpagesize();
	if (psize != 4096)
		return "needs 4 KiB pages";
	if (tlb_rs_nr_cpus() < 2)
		return "needs two CPUs";
	if (!HAS_RULE && tlb_rs_env_number("TLB_EXPECT", 0, 0, 1))
		return "no rule to break on this architecture";
	return access(THP_SYSFS "hugepages-64kB/enabled", W_OK) ?
	       "no 64 KiB anonymous folios" : NULL;
}

int main(int argc, char **argv)
{
	tlb_rs_skip_all(missing());
	return test_harness_run(argc, argv);
}
