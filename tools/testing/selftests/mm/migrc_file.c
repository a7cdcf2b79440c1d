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
 * race       another thread opens and writes while P is moved, which takes long because
 *            64 processes have it mapped: some open() comes in the middle of the walk
 *
 * These are denied:
 *
 * open       a file that somebody has open for writing
 * dirty      what has not been written back
 * tmpfs      a file of a filesystem that has not opted in
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <linux/fs.h>
#include <linux/loop.h>

#include "migrc.h"

#define NR_PAGES	64
#define NR_CHILDREN	64
#define AGE_MS		60000	/* nothing is flushed for its age */
#define MAX_PAGES	8192

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ	22
#endif

static struct {
	/* By main. */
	__u64 reading;		/* the round in which R may read P */
	__u64 want;		/* what R should read at last */
	__u64 flag;		/* the round in which it was written */
	bool stop;
	/* By R. */
	__u64 ack;
	__u64 last;
	__u64 stale;
	pid_t tid;
	__u64 stale_round;
	__u64 go;		/* the round in which the racer should write, by main */
	__u64 delay_ns;
	/* By the racer. */
	__u64 opened_ns;
	__u64 written;		/* what its last write that has returned wrote */
} sh;

struct test {
	const char *name;
	bool (*setup)(void);
	bool (*act)(__u64 round);
	void (*cleanup)(void);
	void (*done)(void);
	bool zero;		/* the act leaves zeros */
	bool denied;
	bool private;
	bool race;
};

static const struct test *test;
static const char *dir = "/mnt";
static char path[256];		/* by which it is written */
static char map_path[256];	/* by which it is mapped */
static size_t psize, len;
static char *base;
static __u64 *word;		/* of P, in its second half */
static off_t word_at;
static int held_fd = -1;
static void *buffer;		/* a page, aligned for O_DIRECT */
static struct migrc_set set;

static __u64 old_value(__u64 round)
{
	return 2 * round;
}

static __u64 new_value(__u64 round)
{
	return test->zero ? 0 : 2 * round + 1;
}

static int must_open(const char *name, int flags)
{
	int fd = open(name, flags | O_CLOEXEC, 0600);

	if (fd < 0)
		ksft_exit_fail_msg("%s: %s\n", name, strerror(errno));
	return fd;
}

static bool write_word(int fd, __u64 val)
{
	return pwrite(fd, &val, sizeof(val), word_at) == sizeof(val);
}

static void *reader(void *arg)
{
	__u64 round;

	(void)arg;
	tlb_rs_pin_cpu(1);
	STORE(sh.tid, (pid_t)syscall(SYS_gettid));
	for (round = 1;; round++) {
		while (LOAD(sh.reading) != round) {
			if (LOAD(sh.stop))
				return NULL;
		}
		while (LOAD(sh.flag) != round)
			__atomic_store_n(&sh.last, __atomic_load_n(word, __ATOMIC_RELAXED),
					 __ATOMIC_RELAXED);
		sh.stale += __atomic_load_n(word, __ATOMIC_RELAXED) != LOAD(sh.want);
		STORE(sh.ack, round);
	}
}

/* Anew if it was mapped before. */
static void map_file(void)
{
	int flags = (test->private ? MAP_PRIVATE : MAP_SHARED) | (base ? MAP_FIXED : 0);
	int fd = must_open(map_path, O_RDONLY);

	base = mmap(base, len, PROT_READ, flags, fd, 0);
	if (base == MAP_FAILED)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	close(fd);
	madvise(base, len, MADV_NOHUGEPAGE);
	word = (__u64 *)(base + word_at);
	if (madvise(base, len, MADV_POPULATE_READ))
		ksft_exit_fail_msg("MADV_POPULATE_READ: %s\n", strerror(errno));
}

/* The content of before, clean; and nobody has it open for writing. */
static bool prepare(__u64 round)
{
	int fd = must_open(path, O_RDWR), node, i;

	if (ftruncate(fd, len) || !write_word(fd, old_value(round)) || fsync(fd))
		ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	close(fd);
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

/* --- clone ------------------------------------------------------------------------- */

static char other[300];

static bool clone_of(__u64 val)
{
	int from = must_open(other, O_RDWR | O_CREAT), to, ret;
	struct file_clone_range range = {
		.src_fd = from,
		.src_offset = len - psize,
		.src_length = psize,
		.dest_offset = len - psize,
	};

	if (ftruncate(from, len) || !write_word(from, val) || fsync(from))
		ksft_exit_fail_msg("%s: %s\n", other, strerror(errno));
	to = must_open(path, O_WRONLY);
	ret = ioctl(to, FICLONERANGE, &range);
	close(to);
	close(from);
	return !ret;
}

static bool setup_clone(void)
{
	snprintf(other, sizeof(other), "%s.other", path);
	return clone_of(0);
}

static bool act_clone(__u64 round)
{
	return clone_of(new_value(round));
}

static void done_clone(void)
{
	unlink(other);
}

/* --- loop -------------------------------------------------------------------------- */

static int loop_fd = -1;

static bool attach(void)
{
	struct loop_config config = { };
	int ctl = open("/dev/loop-control", O_RDWR | O_CLOEXEC), nr;
	char name[32];

	if (ctl < 0)
		return false;
	nr = ioctl(ctl, LOOP_CTL_GET_FREE);
	close(ctl);
	snprintf(name, sizeof(name), "/dev/loop%d", nr);
	loop_fd = open(name, O_RDWR | O_CLOEXEC);
	if (nr < 0 || loop_fd < 0)
		return false;
	config.fd = must_open(path, O_RDWR);
	config.block_size = 512;
	if (ioctl(loop_fd, LOOP_CONFIGURE, &config))
		ksft_exit_fail_msg("LOOP_CONFIGURE: %s\n", strerror(errno));
	close(config.fd);
	return true;
}

static void detach(void)
{
	if (loop_fd < 0)
		return;
	ioctl(loop_fd, LOOP_CLR_FD);
	close(loop_fd);
	loop_fd = -1;
	/* The file is put by a work item. */
	tlb_rs_sleep_us(10000);
}

static bool setup_loop(void)
{
	bool ok = attach();

	detach();
	return ok;
}

static bool act_loop(__u64 round)
{
	return attach() && write_word(loop_fd, new_value(round)) && !fsync(loop_fd);
}

/* --- overlayfs --------------------------------------------------------------------- */

static char merged[300];

static bool setup_overlay(bool upper)
{
	static const char * const names[] = { "lower", "upper", "work", "merged" };
	char at[300], options[1024];
	size_t i;

	for (i = 0; i < ARRAY_SIZE(names); i++) {
		snprintf(at, sizeof(at), "%s/%s", dir, names[i]);
		if (mkdir(at, 0700) && errno != EEXIST)
			ksft_exit_fail_msg("%s: %s\n", at, strerror(errno));
	}
	snprintf(options, sizeof(options), "lowerdir=%s/lower,upperdir=%s/upper,workdir=%s/work",
		 dir, dir, dir);
	snprintf(path, sizeof(path), "%.200s/lower/migrc_file", dir);
	if (!upper)
		close(must_open(path, O_RDWR | O_CREAT));
	snprintf(merged, sizeof(merged), "%s/merged", dir);
	if (mount("overlay", merged, "overlay", 0, options)) {
		merged[0] = '\0';
		return false;
	}
	snprintf(map_path, sizeof(map_path), "%.200s/merged/migrc_file", dir);
	if (upper)
		snprintf(path, sizeof(path), "%s", map_path);
	return true;
}

static bool setup_upper(void)
{
	return setup_overlay(true);
}

static bool setup_lower(void)
{
	return setup_overlay(false);
}

static void done_overlay(void)
{
	if (merged[0])
		umount2(merged, MNT_DETACH);
}

/* --- others ------------------------------------------------------------------------ */

static bool setup_unlinked(void)
{
	held_fd = must_open(path, O_RDONLY | O_CREAT);
	unlink(path);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", held_fd);
	snprintf(map_path, sizeof(map_path), "%s", path);
	return true;
}

static bool setup_tmpfs(void)
{
	snprintf(path, sizeof(path), "/dev/shm/migrc_file");
	snprintf(map_path, sizeof(map_path), "%s", path);
	return true;
}

static bool setup_open(void)
{
	held_fd = must_open(path, O_RDWR | O_CREAT);
	return true;
}

static void done_fd(void)
{
	close(held_fd);
	held_fd = -1;
}

/* Dirty in the page cache, and closed. */
static bool act_dirty(__u64 round)
{
	return act_write(round);
}

/* --- open() in the middle of a walk ------------------------------------------------ */

static pid_t children[NR_CHILDREN];

/* Opens while P is moved, a bit later in each round. */
static void *racer(void *arg)
{
	__u64 round = 0, start;

	(void)arg;
	tlb_rs_pin_cpu(3);
	while (!LOAD(sh.stop)) {
		int fd;

		if (LOAD(sh.go) == round)
			continue;
		round = LOAD(sh.go);
		start = tlb_rs_now_ns();
		while (tlb_rs_now_ns() - start < sh.delay_ns)
			;
		fd = must_open(path, O_WRONLY);
		sh.opened_ns = tlb_rs_now_ns();
		if (!write_word(fd, new_value(round)))
			ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
		STORE(sh.written, new_value(round));
		close(fd);
	}
	return NULL;
}

static void *race_reader(void *arg)
{
	(void)arg;
	tlb_rs_pin_cpu(1);
	while (!LOAD(sh.stop)) {
		__u64 written = LOAD(sh.written);

		if (__atomic_load_n(word, __ATOMIC_RELAXED) < written)
			STORE(sh.stale_round, LOAD(sh.go));
	}
	return NULL;
}

static void start_children(void)
{
	size_t i;

	fflush(stdout);
	for (i = 0; i < NR_CHILDREN; i++) {
		children[i] = fork();
		if (children[i] < 0)
			ksft_exit_fail_msg("fork: %s\n", strerror(errno));
		if (!children[i]) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			madvise(base, len, MADV_POPULATE_READ);
			for (;;)
				pause();
		}
	}
}

static void end_children(void)
{
	size_t i;

	for (i = 0; i < NR_CHILDREN; i++) {
		kill(children[i], SIGKILL);
		waitpid(children[i], NULL, 0);
	}
}

static long run_race(long rounds, __u64 want)
{
	__u64 round, begin, duration_ns = 1000000;
	struct migrc_set only_p;
	long armed = 0;
	pthread_t r, w;

	migrc_set_init(&only_p, base + len - psize, 1);
	start_children();
	/* The walk visits the youngest mapping last. */
	map_file();
	if (pthread_create(&r, NULL, race_reader, NULL) || pthread_create(&w, NULL, racer, NULL))
		ksft_exit_fail_msg("cannot start a thread\n");
	for (round = 1; round <= (__u64)rounds && (!want || sh.stale < want); round++) {
		__u64 end;
		int node;

		prepare(round);
		node = !migrc_node_of(word);
		sh.delay_ns = duration_ns / 32 * (round % 32);
		begin = tlb_rs_now_ns();
		STORE(sh.go, round);
		migrc_move(&only_p, 0, node, MPOL_MF_MOVE_ALL);
		end = tlb_rs_now_ns();
		duration_ns = end - begin;
		WAIT_FOR(LOAD(sh.written) == new_value(round));
		armed += sh.opened_ns < end;
		/* For R to look. */
		tlb_rs_sleep_us(1000);
		sh.stale += LOAD(sh.stale_round) == round;
		migrc_expire();
	}
	STORE(sh.stop, true);
	pthread_join(r, NULL);
	pthread_join(w, NULL);
	end_children();
	migrc_set_free(&only_p);
	return armed;
}

/* --- rounds ------------------------------------------------------------------------ */

/* True if the round was armed. */
static bool litmus_round(__u64 round, bool skipped)
{
	struct migrc_counters before, d;
	long long before_faults;
	bool ok = prepare(round);
	__u64 pfn;

	STORE(sh.want, new_value(round));
	if (test->act == act_dirty) {
		ok &= act_dirty(round);
		STORE(sh.want, new_value(round));
	}
	STORE(sh.reading, round);
	WAIT_FOR(LOAD(sh.last) == (test->act == act_dirty ? new_value : old_value)(round));
	pfn = tlb_rs_pfn(word);
	before_faults = migrc_faults(sh.tid);
	migrc_read(&before);
	migrc_move(&set, 0, !migrc_node_of(word), MPOL_MF_MOVE_ALL);
	migrc_diff(&before, &d);
	ok &= tlb_rs_pfn(word) != pfn;
	if (test->denied && !skipped) {
		ok &= !!d.val[MIGRC_DENIED];
		if (d.val[MIGRC_DEFERRED] >= NR_PAGES) {
			ksft_print_msg("%s: deferred\n", test->name);
			sh.stale++;
		}
	} else {
		ok &= d.val[MIGRC_DEFERRED] >= NR_PAGES - NR_PAGES / 16 && !d.val[MIGRC_FLUSH] &&
		      migrc_faults(sh.tid) == before_faults;
	}
	ok &= test->act == act_dirty || test->act(round);
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

	if (pthread_create(&r, NULL, reader, NULL))
		ksft_exit_fail_msg("cannot start a thread\n");
	WAIT_FOR(LOAD(sh.tid));
	for (round = 1; migrc_more(o, rounds, round - 1, armed, sh.stale); round++)
		armed += litmus_round(round, o->skip);
	STORE(sh.stop, true);
	pthread_join(r, NULL);
	return armed;
}

static int run(const struct migrc_options *o)
{
	long rounds = (o->rounds ?: 20) * (test->race ? 10 : 1), armed = 0;
	struct migrc_counters before;
	int ret = KSFT_SKIP, fd;

	memset(&sh, 0, sizeof(sh));
	snprintf(path, sizeof(path), "%.200s/migrc_file", dir);
	snprintf(map_path, sizeof(map_path), "%s", path);
	close(must_open(path, O_RDWR | O_CREAT));
	if (test->setup && !test->setup()) {
		ksft_print_msg("%s: not available here\n", test->name);
		goto out;
	}
	fd = must_open(path, O_RDWR | O_CREAT);
	if (ftruncate(fd, 0) || ftruncate(fd, len))
		ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	for (off_t at = 0; at < (off_t)len; at += psize) {
		if (pwrite(fd, buffer, psize, at) != (ssize_t)psize)
			ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	}
	if (fsync(fd))
		ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	close(fd);
	base = NULL;
	map_file();
	migrc_set_init(&set, base, NR_PAGES);

	migrc_read(&before);
	armed = test->race ? run_race(rounds, o->want) : run_litmus(rounds, o);
	migrc_record("migrc_file", o, rounds, armed, sh.stale, &before);
	ret = migrc_judge(o, rounds, armed, sh.stale, false);
	munmap(base, len);
	migrc_set_free(&set);
out:
	unlink(path);
	if (test->done)
		test->done();
	return ret;
}

static const struct test tests[] = {
	{ .name = "write", .act = act_write, .private = true },
	{ .name = "direct", .act = act_direct },
	{ .name = "truncate", .act = act_truncate, .zero = true },
	{ .name = "punch", .act = act_punch, .zero = true },
	{ .name = "store", .act = act_store, .cleanup = unmap_writable },
	{ .name = "clone", .setup = setup_clone, .act = act_clone, .done = done_clone },
	{ .name = "loop", .setup = setup_loop, .act = act_loop, .cleanup = detach },
	{ .name = "upper", .setup = setup_upper, .act = act_write, .done = done_overlay },
	{ .name = "lower", .setup = setup_lower, .act = act_write, .done = done_overlay },
	{ .name = "unlinked", .setup = setup_unlinked, .act = act_write, .done = done_fd },
	{ .name = "race", .race = true },
	{ .name = "open", .setup = setup_open, .act = act_write, .done = done_fd, .denied = true },
	{ .name = "dirty", .act = act_dirty, .denied = true },
	{ .name = "tmpfs", .setup = setup_tmpfs, .act = act_write, .denied = true },
};

int main(int argc, char **argv)
{
	struct migrc_options o = { .dir = dir };
	int status = KSFT_PASS;
	size_t i, nr = 0;

	ksft_print_header();
	if (!migrc_options(argc, argv, &o, &status))
		return status;
	dir = o.dir;
	migrc_init(4, MAX_PAGES, AGE_MS);
	psize = getpagesize();
	len = NR_PAGES * psize;
	word_at = len - psize / 4;
	buffer = aligned_alloc(psize, psize);
	if (!buffer)
		ksft_exit_fail_msg("no memory\n");
	memset(buffer, 0x55, psize);
	for (i = 0; i < ARRAY_SIZE(tests); i++)
		nr += !o.only || !strcmp(o.only, tests[i].name);
	if (!nr)
		ksft_exit_fail_msg("no case '%s'\n", o.only);
	tlb_rs_pin_cpu(0);

	ksft_set_plan(nr);
	for (i = 0; i < ARRAY_SIZE(tests); i++) {
		int ret;

		test = &tests[i];
		migrc_case = test->name;
		if (o.only && strcmp(o.only, test->name))
			continue;
		if (o.skip && !migrc_skip_hooks(o.skip)) {
			ksft_test_result_skip("file: %s: cannot remove '%s'\n", test->name, o.skip);
			continue;
		}
		ret = run(&o);
		migrc_skip_none();
		ksft_test_result_report(ret, "file: %s%s%s\n", test->name,
					o.skip ? ", without " : "", o.skip ?: "");
		/* The next case begins with an empty ledger. */
		migrc_drain();
	}
	ksft_finished();
}
