// SPDX-License-Identifier: GPL-2.0
/*
 * Nobody reads what a file was before it was changed.
 *
 * Pages of a file that nobody can write to are migrated without a flush. R, on CPU 1,
 * reads P, the last page of a file, through mmap() all the time; the file is moved to
 * another node, and then changed. When that has returned, R must read the new content.
 *
 * write      open(), pwrite() (R's mapping is private here, else it is shared)
 * direct     the same with O_DIRECT
 * truncate   truncate() to the middle of P: its second half becomes zero
 * punch      fallocate(PUNCH_HOLE) of the second half of P
 * store      through a shared mapping
 * clone      FICLONERANGE over P, where the filesystem has it
 * loop       through a loop device that has been attached after the move
 * upper      a file of overlayfs, which has it in its upper directory
 * lower      a file that overlayfs has in its lower directory, written to there
 * unlinked   a file without a name, through /proc/self/fd
 * verity     FS_IOC_ENABLE_VERITY, by who has it open for reading only: ext4 zeroes what
 *            follows the end of the file in P, which is what the disk had there. (The
 *            filesystem needs the feature: mke2fs -O verity.)
 * journal    the same where the journal has the data, too: data=journal. (For that TLB_DIR has
 *            to be where ext4 is mounted, and not in use.)
 * race       another thread opens and writes as soon as P is locked for a move, which takes
 *            long because other processes have it mapped, too, and fault injection delays the
 *            walk of each: some open() comes in the middle of the walk
 *
 * idle       no R: how long open() for writing takes while others move memory, with two CPUs
 *            that spin: first tasks as important as they are, then tasks that only get what
 *            nobody else wants (SCHED_IDLE). Who of these is in the middle of a drain must
 *            not keep it from others until it gets a CPU again. Only if -v names it: a plugin
 *            of QEMU makes everything slower.
 *
 * reclaim    no R: a page of a private mapping is deferred, reclaimed, and then written to.
 *            Reclaim flushes it, so CONFIG_MIGRC_DEBUG must not warn.
 *
 * Of a filesystem that was made with a file migrc_image in it, whose words count up:
 *
 * image      nobody writes; the old frames must not be used for something else while R
 *            reads them
 * copyup     that file as the lower one of overlayfs, with the upper directory on tmpfs:
 *            who writes to it gets a copy. R keeps what it has mapped, who opens it anew
 *            reads what was written.
 *
 * These are denied:
 *
 * open       a file that somebody has open for writing
 * dirty      what has not been written back
 * tmpfs      a file of a filesystem that has not opted in
 * btrfs      another, if that is what TLB_DIR is on
 * mappings   a page with more mappings than a drain should have to look at
 */
#include "migrc_file.h"
#include "migrc_harness.h"

__u64 *word;		/* of P, near its end */
struct migrc_reader sh;

struct race race;

const struct test *test;
const char *dir;
struct made *made;
char *path;
char map_path[256];	/* by which it is mapped */
size_t psize, len;
char *base;
off_t word_at;
int held_fd = -1;
void *buffer;		/* a page, aligned for O_DIRECT */
static struct migrc_set set;
static struct migrc_options asked;

__u64 old_value(__u64 round)
{
	return test->image ? word_at / sizeof(__u64) : 2 * round;
}

__u64 new_value(__u64 round)
{
	if (test->image)
		return old_value(round);
	return test->zero ? 0 : 2 * round + 1;
}

int must_open(const char *name, int flags)
{
	int fd = open(name, flags | O_CLOEXEC, 0600);

	if (fd < 0)
		ksft_exit_fail_msg("%s: %s\n", name, strerror(errno));
	return fd;
}

bool write_word(int fd, __u64 val)
{
	return pwrite(fd, &val, sizeof(val), word_at) == sizeof(val);
}

/* Anew if it was mapped before. */
void map_file(void)
{
	int flags = (test->private ? MAP_PRIVATE : MAP_SHARED) | (base ? MAP_FIXED : 0);
	int fd = must_open(map_path, O_RDONLY);

	base = mmap(base, len, PROT_READ, flags, fd, 0);
	if (base == MAP_FAILED)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	close(fd);
	madvise(base, len, MADV_NOHUGEPAGE);
	/* What is read ahead may be large folios, mapped as contiguous blocks on arm64. */
	madvise(base, len, MADV_RANDOM);
	word = (__u64 *)(base + word_at);
	if (madvise(base, len, MADV_POPULATE_READ))
		ksft_exit_fail_msg("MADV_POPULATE_READ: %s\n", strerror(errno));
}

/* All pages of it in the page cache, and clean. */
void fill_file(off_t size)
{
	int fd = must_open(path, O_RDWR | O_CREAT);
	off_t at;

	if (ftruncate(fd, 0))
		ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	for (at = 0; at < size; at += psize) {
		ssize_t n = size - at < (off_t)psize ? size - at : (off_t)psize;

		if (pwrite(fd, buffer, n, at) != n)
			ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	}
	if (fsync(fd))
		ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	close(fd);
}

static bool renew(__u64 round)
{
	int fd = must_open(path, O_RDWR);
	bool ok = !ftruncate(fd, len) && write_word(fd, old_value(round)) && !fsync(fd);

	close(fd);
	return ok;
}

/* The content of before, clean; and nobody has it open for writing. */
bool prepare(__u64 round)
{
	int node, i;

	if (!(test->renew ?: renew)(round))
		ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	if (madvise(base, len, MADV_POPULATE_READ))
		ksft_exit_fail_msg("MADV_POPULATE_READ: %s\n", strerror(errno));
	node = migrc_node_of(word);
	/* The file's last reference for writing is dropped by a work item. */
	for (i = 0; i < 100; i++) {
		if (migrc_move(&set, 0, node, MPOL_MF_MOVE_ALL) == NR_PAGES)
			return true;
		tlb_rs_sleep_us(1000);
	}
	return false;
}

/* --- who changes it ---------------------------------------------------------------- */

static bool act_write(__u64 round)
{
	int fd = must_open(path, O_WRONLY);
	bool ok = write_word(fd, new_value(round));

	close(fd);
	return ok;
}

static bool act_direct(__u64 round)
{
	int fd = open(path, O_WRONLY | O_DIRECT | O_CLOEXEC);
	off_t page = word_at / psize * psize;
	bool ok;

	((__u64 *)buffer)[(word_at - page) / sizeof(__u64)] = new_value(round);
	ok = fd >= 0 && pwrite(fd, buffer, psize, page) == (ssize_t)psize;
	close(fd);
	return ok;
}

static bool act_truncate(__u64 round)
{
	(void)round;
	return !truncate(path, len - psize / 2);
}

static bool act_punch(__u64 round)
{
	int fd = must_open(path, O_RDWR);
	int ret = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, len - psize / 2,
			    psize / 2);

	(void)round;
	close(fd);
	return !ret;
}

static char *writable;

static bool act_store(__u64 round)
{
	int fd = must_open(path, O_RDWR);
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	close(fd);
	__atomic_store_n((__u64 *)(p + word_at), new_value(round), __ATOMIC_RELAXED);
	writable = p;
	return true;
}

/* Not before R has looked: munmap() flushes. */
static void unmap_writable(void)
{
	munmap(writable, len);
}

/* --- others ------------------------------------------------------------------------ */

static bool setup_unlinked(void)
{
	held_fd = must_open(path, O_RDONLY | O_CREAT);
	unlink(path);
	snprintf(path, sizeof(made->path), "/proc/self/fd/%d", held_fd);
	snprintf(map_path, sizeof(map_path), "%s", path);
	return true;
}

static bool setup_tmpfs(void)
{
	unlink(path);
	snprintf(path, sizeof(made->path), "/dev/shm/migrc_file");
	snprintf(map_path, sizeof(map_path), "%s", path);
	return true;
}

static bool setup_btrfs(void)
{
	struct statfs fs;

	return !statfs(dir, &fs) && fs.f_type == BTRFS_SUPER_MAGIC;
}

static bool setup_open(void)
{
	held_fd = must_open(path, O_RDWR | O_CREAT);
	return true;
}

/* --- reclaim ----------------------------------------------------------------------- */

#define CGROUP_HIGH	TLB_RS_CGROUP "memory.high"

/* The file's pages are charged to who reads them first. */
static bool setup_reclaim(void)
{
	/* What is swapped in is flushed: memory of this process must not be. */
	if (!tlb_rs_cgroup() || !tlb_rs_setting("/proc/sys/vm/swappiness", "0"))
		return false;
	tlb_rs_cgroup_enter();
	return true;
}

static long run_reclaim(long rounds, const struct migrc_options *o)
{
	__u64 *first = (__u64 *)base;
	struct tlb_rs_readers readers;
	struct migrc_set page;
	long round, armed = 0;

	(void)o;
	if (mprotect(base, len, PROT_READ | PROT_WRITE))
		ksft_exit_fail_msg("mprotect: %s\n", strerror(errno));
	migrc_set_init(&page, base, 1);
	tlb_rs_readers_start(&readers, 1, false, base + psize, len - psize);
	for (round = 1; round <= rounds; round++) {
		struct migrc_counters before, d;
		bool ok = prepare(round);
		int i;

		migrc_read(&before);
		ok &= migrc_move(&page, 0, !migrc_node_of(base), MPOL_MF_MOVE_ALL) == 1;
		for (i = 0; i < 20 && tlb_rs_pfn(base); i++) {
			tlb_rs_drain_pages();
			tlb_rs_forget_use();
			/* memory.reclaim would drain before it returns. */
			tlb_rs_write_file(CGROUP_HIGH, "4096");
			tlb_rs_write_file(CGROUP_HIGH, "max");
		}
		migrc_diff(&before, &d);
		ok &= d.val[MIGRC_DEFERRED] == 1 && !d.val[MIGRC_FLUSH] && !tlb_rs_pfn(base);
		STORE(*first, (__u64)round);
		madvise(base, psize, MADV_DONTNEED);
		armed += ok;
	}
	tlb_rs_readers_end(&readers);
	migrc_set_free(&page);
	return armed;
}

/* --- how often P is mapped --------------------------------------------------------- */

static bool setup_mappings(void)
{
	return migrc_has_stats();
}

static void map_p(char *at)
{
	int fd = must_open(map_path, O_RDONLY), flags = MAP_SHARED | MAP_FIXED | MAP_POPULATE;

	if (mmap(at, psize, PROT_READ, flags, fd, len - psize) != at)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	close(fd);
}

/*
 * No hook removes this rule: a round looks at both of its sides. P must be deferred with
 * as many mappings as it may have, and be denied for their number with one more. A limit
 * that is missing or higher fails the second, a lower one the first.
 */
static long run_mappings(long rounds, const struct migrc_options *o)
{
	size_t others_len = MAX_MAPPINGS * psize, i;
	struct tlb_rs_readers readers;
	char *others, *last;
	struct migrc_set only_p;
	long round, armed = 0;

	(void)o;
	others = mmap(NULL, others_len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (others == MAP_FAILED)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	last = others + others_len - psize;
	for (i = 0; i < MAX_MAPPINGS - 1; i++)
		map_p(others + i * psize);
	migrc_set_init(&only_p, base + len - psize, 1);
	tlb_rs_readers_start(&readers, 1, false, base, len);
	for (round = 1; round <= rounds; round++) {
		struct migrc_counters before, d;
		long long denied;
		bool ok = true;
		int more;

		for (more = 0; more < 2; more++) {
			ok &= prepare(round);
			if (more)
				map_p(last);
			denied = migrc_stat("denied", "mappings");
			migrc_read(&before);
			ok &= migrc_move(&only_p, 0, !migrc_node_of(word), MPOL_MF_MOVE_ALL) == 1;
			migrc_diff(&before, &d);
			denied = migrc_stat("denied", "mappings") - denied;
			ok &= more ? denied == 1 : d.val[MIGRC_DEFERRED] == 1;
			sh.stale += more ? !!d.val[MIGRC_DEFERRED] : !!denied;
		}
		munmap(last, psize);
		armed += ok;
	}
	tlb_rs_readers_end(&readers);
	munmap(others, others_len);
	migrc_set_free(&only_p);
	return armed;
}

/* --- rounds ------------------------------------------------------------------------ */

/* True if the round was armed. */
static bool litmus_round(__u64 round, bool skipped)
{
	struct migrc_counters before, d;
	long long before_faults, drains;
	bool ok = prepare(round);
	__u64 pfn;

	if (test->dirty)
		ok &= test->act(round);
	STORE(sh.want, new_value(round));
	STORE(sh.last, ~0ULL);
	STORE(sh.reading, round);
	WAIT_FOR(LOAD(sh.last) == (test->dirty ? new_value : old_value)(round));
	pfn = tlb_rs_pfn(word);
	before_faults = migrc_faults(sh.tid);
	migrc_read(&before);
	migrc_move(&set, 0, !migrc_node_of(word), MPOL_MF_MOVE_ALL);
	migrc_diff(&before, &d);
	ok &= tlb_rs_pfn(word) != pfn;
	if (test->denied && !skipped) {
		/* One page is dirty, none may be deferred in the other cases. */
		long most = test->dirty ? NR_PAGES - 1 : 0;

		ok &= d.val[MIGRC_DENIED] >= NR_PAGES - most;
		if (d.val[MIGRC_DEFERRED] > most) {
			ksft_print_msg("deferred\n");
			sh.stale++;
		}
	} else {
		ok &= d.val[MIGRC_DEFERRED] >= NR_PAGES - NR_PAGES / 16 && !d.val[MIGRC_FLUSH] &&
		      migrc_faults(sh.tid) == before_faults;
	}
	drains = migrc_stat("drain", "write");
	ok &= test->dirty || test->act(round);
	/* Nothing of it was deferred, and nobody may have to wait for what was of others. */
	if (test->denied && !test->dirty && !skipped && migrc_stat("drain", "write") != drains) {
		ksft_print_msg("a writer had to drain\n");
		sh.stale++;
	}
	STORE(sh.flag, round);
	WAIT_FOR(LOAD(sh.ack) == round);
	if (test->cleanup)
		test->cleanup();
	/* Without its hook R would stay where it is. */
	migrc_expire();
	return ok;
}

static long run_litmus(long rounds, const struct migrc_options *o)
{
	long round, armed = 0;
	pthread_t r;

	if (pthread_create(&r, NULL, migrc_reader, &sh))
		ksft_exit_fail_msg("cannot start a thread\n");
	WAIT_FOR(LOAD(sh.tid));
	for (round = 1; migrc_more(o, rounds, round - 1, armed, sh.stale); round++)
		armed += litmus_round(round, o->skip);
	STORE(sh.stop, true);
	pthread_join(r, NULL);
	return armed;
}

static void remove_file(void)
{
	unlink(path);
}

static void begin(struct __test_metadata *_metadata, const struct test *t)
{
	if (!migrc_begin(_metadata, &asked))
		return;
	test = t;
	buffer = aligned_alloc(psize, psize);
	if (!buffer)
		ksft_exit_fail_msg("no memory\n");
	memset(buffer, 0x55, psize);
	sh = (struct migrc_reader){ .word_at = &word };
	snprintf(path, sizeof(made->path), "%.200s/migrc_file", dir);
	snprintf(map_path, sizeof(map_path), "%s", path);
	if (!t->image) {
		tlb_rs_at_exit(remove_file);
		close(must_open(path, O_RDWR | O_CREAT));
	}
	if (t->setup && !t->setup())
		SKIP(return, "not available here");
	if (!t->image)
		fill_file(len);
	map_file();
	if (!t->denied && !migrc_defers_files_of(map_path))
		SKIP(return, "nothing is deferred on this filesystem");
	migrc_set_init(&set, base, NR_PAGES);
}

static int run(void)
{
	long rounds = (asked.rounds ?: 20) * (test->times ?: 1), armed;
	struct migrc_counters before;

	migrc_read(&before);
	armed = (test->run ?: run_litmus)(rounds, &asked);
	migrc_record("migrc_file", &asked, rounds, armed, sh.stale, &before);
	return migrc_judge(&asked, rounds, armed, sh.stale, test->optional);
}

FIXTURE(migrc_file) {
};

FIXTURE_VARIANT(migrc_file) {
	struct test test;
};

FIXTURE_VARIANT_ADD(migrc_file, write) {
	.test = { .act = act_write, .private = true },
};

FIXTURE_VARIANT_ADD(migrc_file, direct) {
	.test = { .act = act_direct },
};

FIXTURE_VARIANT_ADD(migrc_file, truncate) {
	.test = { .act = act_truncate, .zero = true },
};

FIXTURE_VARIANT_ADD(migrc_file, punch) {
	.test = { .act = act_punch, .zero = true },
};

FIXTURE_VARIANT_ADD(migrc_file, store) {
	.test = { .act = act_store, .cleanup = unmap_writable },
};

FIXTURE_VARIANT_ADD(migrc_file, clone) {
	.test = { .setup = setup_clone, .act = act_clone },
};

FIXTURE_VARIANT_ADD(migrc_file, loop) {
	.test = { .setup = setup_loop, .act = act_loop, .cleanup = detach },
};

FIXTURE_VARIANT_ADD(migrc_file, upper) {
	.test = { .setup = setup_upper, .act = act_write },
};

FIXTURE_VARIANT_ADD(migrc_file, lower) {
	.test = { .setup = setup_lower, .act = act_write },
};

FIXTURE_VARIANT_ADD(migrc_file, unlinked) {
	.test = { .setup = setup_unlinked, .act = act_write },
};

FIXTURE_VARIANT_ADD(migrc_file, verity) {
	.test = { .setup = setup_verity, .renew = renew_verity, .act = act_verity, .zero = true },
};

FIXTURE_VARIANT_ADD(migrc_file, journal) {
	.test = { .setup = setup_journal, .renew = renew_verity, .act = act_verity, .zero = true },
};

FIXTURE_VARIANT_ADD(migrc_file, reclaim) {
	.test = { .setup = setup_reclaim, .run = run_reclaim, .private = true },
};

FIXTURE_VARIANT_ADD(migrc_file, race) {
	.test = { .setup = setup_race, .run = run_race, .times = RARELY_MET ? 1 : 10,
		  .optional = RARELY_MET },
};

FIXTURE_VARIANT_ADD(migrc_file, image) {
	.test = { .setup = setup_image, .renew = renew_image, .act = act_image,
		  .cleanup = unmap_others, .image = true },
};

FIXTURE_VARIANT_ADD(migrc_file, copyup) {
	.test = { .setup = setup_copyup, .renew = renew_copyup, .act = act_copyup, .image = true },
};

FIXTURE_VARIANT_ADD(migrc_file, open) {
	.test = { .setup = setup_open, .act = act_write, .denied = true },
};

FIXTURE_VARIANT_ADD(migrc_file, dirty) {
	.test = { .act = act_write, .dirty = true, .denied = true },
};

FIXTURE_VARIANT_ADD(migrc_file, tmpfs) {
	.test = { .setup = setup_tmpfs, .act = act_write, .denied = true },
};

FIXTURE_VARIANT_ADD(migrc_file, btrfs) {
	.test = { .setup = setup_btrfs, .act = act_write, .denied = true },
};

FIXTURE_VARIANT_ADD(migrc_file, mappings) {
	.test = { .setup = setup_mappings, .run = run_mappings },
};

FIXTURE_SETUP(migrc_file)
{
	begin(_metadata, &variant->test);
}

FIXTURE_TEARDOWN_PARENT(migrc_file)
{
	tlb_rs_tear_down();
}

TEST_F_TIMEOUT(migrc_file, stale, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run());
}

/* Those of this fixture have to be named. */
FIXTURE(migrc_file_on_demand) {
};

FIXTURE_VARIANT(migrc_file_on_demand) {
	struct test test;
};

FIXTURE_VARIANT_ADD(migrc_file_on_demand, idle) {
	.test = { .setup = setup_idle, .run = run_idle },
};

FIXTURE_SETUP(migrc_file_on_demand)
{
	begin(_metadata, &variant->test);
}

FIXTURE_TEARDOWN_PARENT(migrc_file_on_demand)
{
	tlb_rs_tear_down();
}

TEST_F_TIMEOUT(migrc_file_on_demand, waits, TLB_RS_TIMEOUT_S)
{
	migrc_end(_metadata, run());
}

int main(int argc, char **argv)
{
	migrc_ask(&asked);
	dir = tlb_rs_env("TLB_DIR") ?: "/mnt";
	tlb_rs_skip_all(migrc_missing(4));
	migrc_init(4, MAX_PAGES, AGE_MS);
	psize = getpagesize();
	len = NR_PAGES * psize;
	/* In P's last block, however small that is, and in the second half of it. */
	word_at = len - 8 * sizeof(__u64);
	made = mmap(NULL, sizeof(*made), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		    0);
	if (made == MAP_FAILED)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	path = made->path;
	tlb_rs_pin_cpu(0);
	return tlb_rs_run_without("migrc_file_on_demand", argc, argv);
}
