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
 * journal    the same where the journal has the data, too: data=journal. (For that --dir has
 *            to be where ext4 is mounted, and not in use.)
 * race       another thread opens and writes as soon as P is locked for a move, which takes
 *            long because other processes have it mapped, too, and fault injection delays the
 *            walk of each: some open() comes in the middle of the walk
 *
 * idle       no R: how long open() for writing takes while others move memory, with two CPUs
 *            that spin: first tasks as important as they are, then tasks that only get what
 *            nobody else wants (SCHED_IDLE). Who of these is in the middle of a drain must
 *            not keep it from others until it gets a CPU again. By --case only: a plugin of
 *            QEMU makes everything slower.
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
 * btrfs      another, if that is what --dir is on
 * mappings   a page with more mappings than a drain should have to look at
 */
#define _GNU_SOURCE
#include <ftw.h>
#include <mntent.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <linux/fs.h>
#include <linux/fsverity.h>
#include <linux/loop.h>
#include <linux/magic.h>

#include "migrc.h"

#define NR_PAGES	64
#define NR_CHILDREN	2	/* more make each drain slower, which has to end meanwhile */
#define NR_OTHERS	1024
#define MAX_MAPPINGS	1024	/* mm/migrc/eligibility.rs has the same */
#define AGE_MS		60000	/* nothing is flushed for its age */
#define MAX_PAGES	8192
#define WALK_US		10000	/* a host that is busy runs no other CPU for some milliseconds */

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ	22
#endif

static __u64 *word;		/* of P, near its end */
static struct migrc_reader sh;

static struct {
	/* By main. */
	__u64 pfn;		/* of P */
	__u64 go;		/* the round in which the racer should write */
	__u64 moved;		/* the round in which P has been moved */
	/* By who reads meanwhile. */
	__u64 stale_round;
	/* By the racer. */
	__u64 opened_ns;
	__u64 written;		/* what its last write that has returned wrote */
} race;

struct test {
	const char *name;
	long (*run)(long rounds, const struct migrc_options *o);	/* or run_litmus() */
	bool (*setup)(void);
	bool (*renew)(__u64 round);	/* or renew() */
	bool (*act)(__u64 round);
	void (*cleanup)(void);
	void (*done)(void);
	bool zero;		/* the act leaves zeros */
	bool dirty;		/* it comes before the move, and is not written back */
	bool denied;
	bool private;
	bool image;		/* a file that was there; the act does not change what R reads */
	bool alone;		/* only if it is asked for */
	long times;		/* as many rounds as others have */
};

static const struct test *test;
static const char *dir = "/mnt";
static char path[256];		/* by which it is written */
static char map_path[256];	/* by which it is mapped */
static size_t psize, len;
static char *base;
static off_t word_at;
static int held_fd = -1;
static void *buffer;		/* a page, aligned for O_DIRECT */
static struct migrc_set set;

static __u64 old_value(__u64 round)
{
	return test->image ? word_at / sizeof(__u64) : 2 * round;
}

static __u64 new_value(__u64 round)
{
	if (test->image)
		return old_value(round);
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
	/* What is read ahead may be large folios, mapped as contiguous blocks on arm64. */
	madvise(base, len, MADV_RANDOM);
	word = (__u64 *)(base + word_at);
	if (madvise(base, len, MADV_POPULATE_READ))
		ksft_exit_fail_msg("MADV_POPULATE_READ: %s\n", strerror(errno));
}

/* All pages of it in the page cache, and clean. */
static void fill_file(off_t size)
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
static bool prepare(__u64 round)
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
	tlb_rs_at_exit(detach);
	config.fd = must_open(path, O_RDWR);
	config.block_size = 512;
	if (ioctl(loop_fd, LOOP_CONFIGURE, &config))
		ksft_exit_fail_msg("LOOP_CONFIGURE: %s\n", strerror(errno));
	close(config.fd);
	return true;
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

static char overlay[300];	/* what is here is of this program, and goes with it */
static bool mounted;

static char *in_overlay(char *buf, size_t size, const char *name)
{
	snprintf(buf, size, "%.200s/%s", overlay, name);
	return buf;
}

static int remove_entry(const char *name, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	remove(name);
	return 0;
}

static void done_overlay(void)
{
	char merged[300];

	if (mounted)
		umount2(in_overlay(merged, sizeof(merged), "merged"), MNT_DETACH);
	mounted = false;
	/* Not what is mounted there, if it still is. */
	if (overlay[0])
		nftw(overlay, remove_entry, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
	overlay[0] = '\0';
}

static void make_dir(const char *name)
{
	if (mkdir(name, 0700))
		ksft_exit_fail_msg("%s: %s\n", name, strerror(errno));
}

/* Another one for each round. */
static void make_overlay(const char *in, __u64 round)
{
	static const char * const names[] = { "lower", "upper", "work", "merged" };
	char name[300];
	size_t i;

	snprintf(name, sizeof(name), "%.200s/migrc_overlay.%d.%llu", in, getpid(), round);
	make_dir(name);
	snprintf(overlay, sizeof(overlay), "%s", name);
	tlb_rs_at_exit(done_overlay);
	for (i = 0; i < ARRAY_SIZE(names); i++)
		make_dir(in_overlay(name, sizeof(name), names[i]));
}

static bool mount_overlay(const char *lower)
{
	char options[1024], merged[300];

	snprintf(options, sizeof(options), "lowerdir=%s,upperdir=%.200s/upper,workdir=%.200s/work",
		 lower, overlay, overlay);
	mounted = !mount("overlay", in_overlay(merged, sizeof(merged), "merged"), "overlay", 0,
			 options);
	return mounted;
}

static bool setup_overlay(bool upper)
{
	char lower[300];

	unlink(path);
	make_overlay(dir, 0);
	in_overlay(path, sizeof(path), "lower/migrc_file");
	in_overlay(map_path, sizeof(map_path), "merged/migrc_file");
	if (!upper)
		close(must_open(path, O_RDWR | O_CREAT));
	else
		snprintf(path, sizeof(path), "%s", map_path);
	return mount_overlay(in_overlay(lower, sizeof(lower), "lower"));
}

static bool setup_upper(void)
{
	return setup_overlay(true);
}

static bool setup_lower(void)
{
	return setup_overlay(false);
}

/* --- a file that was there --------------------------------------------------------- */

static bool setup_image(void)
{
	snprintf(map_path, sizeof(map_path), "%.200s/migrc_image", dir);
	return !access(map_path, R_OK);
}

static bool renew_image(__u64 round)
{
	(void)round;
	return true;
}

static char *others;

/* New pages from where the file was, with something else in them. */
static bool act_image(__u64 round)
{
	(void)round;
	others = migrc_mmap(NR_OTHERS, !migrc_node_of(word), 1);
	memset(others, 0xff, NR_OTHERS * psize);
	return true;
}

static void unmap_others(void)
{
	munmap(others, NR_OTHERS * psize);
}

/* An upper directory that is empty, so another one in each round. */
static bool renew_copyup(__u64 round)
{
	done_overlay();
	make_overlay("/dev/shm", round);
	if (!mount_overlay(dir))
		return false;
	in_overlay(map_path, sizeof(map_path), "merged/migrc_image");
	map_file();
	return true;
}

static bool setup_copyup(void)
{
	return setup_image() && renew_copyup(0);
}

static bool act_copyup(__u64 round)
{
	int fd = must_open(map_path, O_WRONLY);
	bool ok = write_word(fd, ~round);
	char *p;

	close(fd);
	fd = must_open(map_path, O_RDONLY);
	p = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (p == MAP_FAILED)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	ok &= *(__u64 *)(p + word_at) == ~round;
	munmap(p, len);
	return ok;
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
	unlink(path);
	snprintf(path, sizeof(path), "/dev/shm/migrc_file");
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

static void done_fd(void)
{
	close(held_fd);
	held_fd = -1;
}

/* --- verity ------------------------------------------------------------------------ */

static int block_size;

/* Of the disk. What precedes the end of the file says whether it is the right one. */
static bool write_block(off_t at, __u64 val)
{
	char *block = aligned_alloc(psize, psize);
	bool ok = block && pread(held_fd, block, block_size, at) == block_size &&
		  !memcmp(block, buffer, block_size / 2);

	if (ok) {
		((__u64 *)block)[word_at % block_size / sizeof(val)] = val;
		ok = pwrite(held_fd, block, block_size, at) == block_size;
	}
	free(block);
	return ok;
}

/*
 * Nobody may write to a file that has verity, so it is another one in each round. ext4
 * zeroes what follows a file's end when that is written back, and not when it is read.
 */
static bool renew_verity(__u64 round)
{
	int block = (len - 1) / block_size, fd;
	bool ok;

	unlink(path);
	fill_file(len - block_size / 2);
	fd = must_open(path, O_RDONLY);
	/* Of what was written through the journal, buffers would stay, and not be moved. */
	ok = !ioctl(fd, FIBMAP, &block) && block &&
	     write_block((off_t)block * block_size, old_value(round)) &&
	     !posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	close(fd);
	map_file();
	return ok && *word == old_value(round);
}

static bool act_verity(__u64 round)
{
	struct fsverity_enable_arg arg = {
		.version = 1,
		.hash_algorithm = FS_VERITY_HASH_ALG_SHA256,
		.block_size = block_size,
	};
	int fd = must_open(path, O_RDONLY), ret;

	(void)round;
	ret = ioctl(fd, FS_IOC_ENABLE_VERITY, &arg);
	close(fd);
	return !ret;
}

/* Tried once: the disk must be one that can be written to behind the filesystem's back. */
static bool setup_verity(void)
{
	char node[300];
	struct stat st;
	int fd, ret;

	fd = must_open(path, O_RDONLY);
	ret = fstat(fd, &st) ?: ioctl(fd, FIGETBSZ, &block_size);
	close(fd);
	if (ret || block_size > (int)psize)
		return false;
	snprintf(node, sizeof(node), "%s.disk", path);
	if (mknod(node, S_IFBLK | 0600, st.st_dev))
		return false;
	held_fd = open(node, O_RDWR | O_DIRECT | O_CLOEXEC);
	unlink(node);
	return held_fd >= 0 && renew_verity(1) && act_verity(1) && !unlink(path);
}

static struct mntent *fs_of_dir;

static bool mount_again(const char *options)
{
	if (umount(dir) && errno != EINVAL)
		return false;
	return !mount(fs_of_dir->mnt_fsname, dir, "ext4", 0, options);
}

/* Of what has no options of its own, none get lost. */
static bool setup_journal(void)
{
	FILE *file = setmntent("/proc/mounts", "r");
	struct mntent *fs = NULL;

	while (file && (fs = getmntent(file)) && strcmp(fs->mnt_dir, dir))
		;
	if (file)
		endmntent(file);
	if (!fs || strcmp(fs->mnt_type, "ext4") || strcmp(fs->mnt_opts, "rw,relatime"))
		return false;
	fs_of_dir = fs;
	return mount_again("data=journal") && setup_verity();
}

static void done_journal(void)
{
	if (held_fd >= 0)
		done_fd();
	if (fs_of_dir && !mount_again(NULL) && errno != EBUSY)
		ksft_exit_fail_msg("%s: %s\n", dir, strerror(errno));
	fs_of_dir = NULL;
}

/* --- open() in the middle of a walk ------------------------------------------------ */

static pid_t children[NR_CHILDREN];

static bool setup_race(void)
{
	return !access(MIGRC_WALK_DELAY, W_OK);
}

/* Opens while P is moved: once P is locked for that, and a bit later in some rounds. */
static void *racer(void *arg)
{
	__u64 round = 0, end;

	(void)arg;
	tlb_rs_pin_cpu(3);
	while (!LOAD(sh.stop)) {
		int fd;

		if (LOAD(race.go) == round)
			continue;
		round = LOAD(race.go);
		while (!(tlb_rs_kpageflags(LOAD(race.pfn)) >> KPF_LOCKED & 1) &&
		       LOAD(race.moved) != round)
			;
		end = tlb_rs_now_ns() + WALK_US * 50ULL * (round % 4);
		while (tlb_rs_now_ns() < end)
			;
		fd = must_open(path, O_WRONLY);
		race.opened_ns = tlb_rs_now_ns();
		if (!write_word(fd, new_value(round)))
			ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
		STORE(race.written, new_value(round));
		close(fd);
	}
	return NULL;
}

static void *race_reader(void *arg)
{
	(void)arg;
	tlb_rs_pin_cpu(1);
	while (!LOAD(sh.stop)) {
		__u64 written = LOAD(race.written);

		if (__atomic_load_n(word, __ATOMIC_RELAXED) < written)
			STORE(race.stale_round, LOAD(race.go));
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

static long run_race(long rounds, const struct migrc_options *o)
{
	__u64 round, want = o->want;
	struct migrc_set only_p;
	long armed = 0;
	pthread_t r, w;

	migrc_set_init(&only_p, base + len - psize, 1);
	start_children();
	/* Without it, a few us of what a move takes are the ones to hit. */
	if (!tlb_rs_delay(MIGRC_WALK_DELAY, WALK_US))
		ksft_exit_fail_msg("cannot write %s\n", MIGRC_WALK_DELAY);
	/* The walk visits the youngest mapping last. */
	map_file();
	if (pthread_create(&r, NULL, race_reader, NULL) || pthread_create(&w, NULL, racer, NULL))
		ksft_exit_fail_msg("cannot start a thread\n");
	for (round = 1; round <= (__u64)rounds && (!want || sh.stale < want); round++) {
		__u64 end;
		int node;

		prepare(round);
		node = !migrc_node_of(word);
		race.pfn = tlb_rs_pfn(word);
		STORE(race.go, round);
		migrc_move(&only_p, 0, node, MPOL_MF_MOVE_ALL);
		end = tlb_rs_now_ns();
		STORE(race.moved, round);
		WAIT_FOR(LOAD(race.written) == new_value(round));
		armed += race.opened_ns < end;
		/* For R to look. */
		tlb_rs_sleep_us(1000);
		sh.stale += LOAD(race.stale_round) == round;
		migrc_expire();
	}
	STORE(sh.stop, true);
	pthread_join(r, NULL);
	pthread_join(w, NULL);
	tlb_rs_delay_none();
	end_children();
	migrc_set_free(&only_p);
	return armed;
}

/* --- reclaim ----------------------------------------------------------------------- */

/* The file's pages are charged to who reads them first. */
static bool setup_reclaim(void)
{
	if (!tlb_rs_cgroup())
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
			tlb_rs_cgroup_reclaim(len, "");
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

/* --- open() beside who has no CPU --------------------------------------------------- */

#define NR_MOVERS	4
#define NR_MOVED	256	/* by each of them */
#define NR_OPENS	100
#define OPEN_PAUSE_US	40000	/* who is idle needs time to be in the middle of something */
#define MAX_OPEN_NS	20000000ULL	/* of 99 % of them */
#define MOVERS_LIMIT	1	/* who adds more than these drains */
#define PHASE_NS	10000000000ULL

static struct {
	char *base;
	int policy;
} movers;

static void *spinner(void *cpu)
{
	tlb_rs_pin_cpu((long)cpu);
	for (;;)
		__atomic_load_n(movers.base, __ATOMIC_RELAXED);
	return NULL;
}

/* On the CPUs that spin. Nothing of it is deferred, unless others use it, too. */
static void *idle_mover(void *arg)
{
	struct sched_param param = { };
	struct migrc_set pages;
	cpu_set_t cpus;
	int node = 0;

	migrc_set_init(&pages, movers.base + (long)arg * NR_MOVED * psize, NR_MOVED);
	CPU_ZERO(&cpus);
	CPU_SET(1, &cpus);
	CPU_SET(2, &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus) ||
	    sched_setscheduler(0, movers.policy, &param))
		_exit(1);
	for (;; node = !node)
		migrc_move(&pages, 0, !node, MPOL_MF_MOVE);
	return NULL;
}

static pid_t start_movers(int policy)
{
	struct migrc_set unused;
	pthread_t thread;
	int ready[2];
	pid_t pid;
	char byte;
	long i;

	if (pipe(ready))
		ksft_exit_fail_msg("pipe: %s\n", strerror(errno));
	fflush(stdout);
	pid = fork();
	if (pid < 0)
		ksft_exit_fail_msg("fork: %s\n", strerror(errno));
	if (pid) {
		close(ready[1]);
		if (read(ready[0], &byte, 1) != 1)
			ksft_exit_fail_msg("nobody moves\n");
		close(ready[0]);
		return pid;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	munmap(base, len);
	movers.policy = policy;
	movers.base = migrc_map_readonly(&unused, NR_MOVERS * NR_MOVED, 1);
	for (i = 0; i < NR_MOVERS; i++) {
		if (pthread_create(&thread, NULL, idle_mover, (void *)i))
			_exit(1);
	}
	/* When all of them have begun. */
	tlb_rs_sleep_us(100000);
	for (i = 1; i <= 2; i++) {
		if (pthread_create(&thread, NULL, spinner, (void *)i))
			_exit(1);
	}
	if (write(ready[1], "", 1) != 1)
		_exit(1);
	for (;;)
		pause();
}

static int compare_ns(const void *a, const void *b)
{
	const __u64 *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

static const char *idle_name(char *buf, size_t size, long i)
{
	snprintf(buf, size, "%.200s.%ld", path, i);
	return buf;
}

/*
 * Files of a page each, which are all deferred. Who moves has to drain now and then, and should
 * not be the one who waits here.
 */
static bool defer_files(char *pages)
{
	struct migrc_counters before, d;
	struct migrc_set all;
	char name[300];
	int fd = -1;
	long i;

	migrc_write(MIGRC_PAGES, MAX_PAGES);
	for (i = 0; i < NR_OPENS; i++) {
		fd = must_open(idle_name(name, sizeof(name), i), O_RDWR | O_CREAT);
		if (pwrite(fd, buffer, psize, 0) != (ssize_t)psize)
			ksft_exit_fail_msg("%s: %s\n", name, strerror(errno));
		close(fd);
	}
	fd = must_open(name, O_RDONLY);
	syncfs(fd);
	close(fd);
	for (i = 0; i < NR_OPENS; i++) {
		fd = must_open(idle_name(name, sizeof(name), i), O_RDONLY);
		if (mmap(pages + i * psize, psize, PROT_READ, MAP_SHARED | MAP_FIXED | MAP_POPULATE,
			 fd, 0) == MAP_FAILED)
			ksft_exit_fail_msg("%s: %s\n", name, strerror(errno));
		close(fd);
	}
	migrc_set_init(&all, pages, NR_OPENS);
	migrc_read(&before);
	migrc_move(&all, 0, !migrc_node_of(pages), MPOL_MF_MOVE_ALL);
	migrc_diff(&before, &d);
	migrc_set_free(&all);
	return d.val[MIGRC_DEFERRED] >= NR_OPENS / 2;
}

/* What 99 % of all open() take at most; 0 if too few had something deferred of their file. */
static __u64 time_opens(int policy, char *pages)
{
	__u64 ns[NR_OPENS], end, begin;
	bool ok = defer_files(pages);
	long nr = 0, i;
	char name[300];
	pid_t pid;
	int fd;

	migrc_write(MIGRC_PAGES, MOVERS_LIMIT);
	pid = start_movers(policy);
	end = tlb_rs_now_ns() + PHASE_NS;
	for (i = 0; i < NR_OPENS && tlb_rs_now_ns() < end; i++) {
		long long drains = migrc_stat("drain", "write");

		idle_name(name, sizeof(name), i);
		begin = tlb_rs_now_ns();
		fd = must_open(name, O_RDWR);
		ns[nr] = tlb_rs_now_ns() - begin;
		close(fd);
		nr += migrc_stat("drain", "write") > drains;
		tlb_rs_sleep_us(OPEN_PAUSE_US);
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	for (i = 0; i < NR_OPENS; i++)
		unlink(idle_name(name, sizeof(name), i));
	if (!ok || nr < NR_MOVERS)
		return 0;
	qsort(ns, nr, sizeof(*ns), compare_ns);
	ksft_print_msg("idle: %ld opens, %s: median %llu us, 99 %%: %llu, worst %llu\n",
		       nr, policy == SCHED_IDLE ? "SCHED_IDLE" : "SCHED_OTHER",
		       ns[nr / 2] / 1000, ns[(nr - 1) * 99 / 100] / 1000, ns[nr - 1] / 1000);
	return ns[(nr - 1) * 99 / 100];
}

static bool setup_idle(void)
{
	/* One thread that emulates all CPUs lets each run for 100 ms. */
	return migrc_has_stats() && tlb_rs_patching_is_safe();
}

/* The host may be elsewhere for a while, and nobody preempted in a drain: once is enough. */
static long run_idle(long rounds, const struct migrc_options *o)
{
	size_t all = NR_OPENS * psize;
	struct tlb_rs_readers readers;
	long armed = 0;
	char *pages;
	int tries = 3;

	pages = mmap(NULL, all, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	/* Nothing is deferred, unless another CPU uses the files: one of those that spin. */
	tlb_rs_readers_start(&readers, 1, true, pages, all);
	do {
		__u64 other = time_opens(SCHED_OTHER, pages);
		__u64 idle = time_opens(SCHED_IDLE, pages);

		if (other && idle)
			armed = rounds;
		sh.stale = !idle || idle > MAX_OPEN_NS || idle > other + other / 2;
	} while (!!sh.stale != !!o->want && --tries);
	tlb_rs_readers_end(&readers);
	munmap(pages, all);
	migrc_write(MIGRC_PAGES, MAX_PAGES);
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
			ksft_print_msg("%s: deferred\n", test->name);
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
		ksft_print_msg("%s: a writer had to drain\n", test->name);
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

static int run(const struct migrc_options *o)
{
	long rounds = (o->rounds ?: 20) * (test->times ?: 1), armed;
	struct migrc_counters before;
	int ret = KSFT_SKIP;

	if (test->alone && !o->only) {
		ksft_print_msg("%s: only by --case\n", test->name);
		return KSFT_SKIP;
	}
	sh = (struct migrc_reader){ .word_at = &word };
	memset(&race, 0, sizeof(race));
	base = NULL;
	snprintf(path, sizeof(path), "%.200s/migrc_file", dir);
	snprintf(map_path, sizeof(map_path), "%s", path);
	if (!test->image)
		close(must_open(path, O_RDWR | O_CREAT));
	if (test->setup && !test->setup()) {
		ksft_print_msg("%s: not available here\n", test->name);
		goto out;
	}
	if (!test->image)
		fill_file(len);
	map_file();
	if (!test->denied && !migrc_defers_files_of(map_path)) {
		ksft_print_msg("%s: nothing is deferred on this filesystem\n", test->name);
		goto out;
	}
	migrc_set_init(&set, base, NR_PAGES);

	migrc_read(&before);
	armed = (test->run ?: run_litmus)(rounds, o);
	migrc_record("migrc_file", o, rounds, armed, sh.stale, &before);
	ret = migrc_judge(o, rounds, armed, sh.stale, false);
	migrc_set_free(&set);
out:
	if (base)
		munmap(base, len);
	if (!test->image)
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
	{ .name = "verity", .setup = setup_verity, .renew = renew_verity, .act = act_verity,
	  .zero = true, .done = done_fd },
	{ .name = "journal", .setup = setup_journal, .renew = renew_verity, .act = act_verity,
	  .zero = true, .done = done_journal },
	{ .name = "idle", .setup = setup_idle, .run = run_idle, .alone = true },
	{ .name = "reclaim", .setup = setup_reclaim, .run = run_reclaim,
	  .done = tlb_rs_cgroup_leave, .private = true },
	{ .name = "race", .setup = setup_race, .run = run_race, .times = 10 },
	{ .name = "image", .setup = setup_image, .renew = renew_image, .act = act_image,
	  .cleanup = unmap_others, .image = true },
	{ .name = "copyup", .setup = setup_copyup, .renew = renew_copyup, .act = act_copyup,
	  .done = done_overlay, .image = true },
	{ .name = "open", .setup = setup_open, .act = act_write, .done = done_fd, .denied = true },
	{ .name = "dirty", .act = act_write, .dirty = true, .denied = true },
	{ .name = "tmpfs", .setup = setup_tmpfs, .act = act_write, .denied = true },
	{ .name = "btrfs", .setup = setup_btrfs, .act = act_write, .denied = true },
	{ .name = "mappings", .setup = setup_mappings, .run = run_mappings },
};

static const char *choose(size_t i)
{
	test = &tests[i];
	return test->name;
}

int main(int argc, char **argv)
{
	struct migrc_options o = { .dir = dir };
	int status = KSFT_PASS;

	ksft_print_header();
	if (!migrc_options(argc, argv, &o, &status))
		return status;
	dir = o.dir;
	migrc_init(4, MAX_PAGES, AGE_MS);
	psize = getpagesize();
	len = NR_PAGES * psize;
	/* In P's last block, however small that is, and in the second half of it. */
	word_at = len - 8 * sizeof(__u64);
	buffer = aligned_alloc(psize, psize);
	if (!buffer)
		ksft_exit_fail_msg("no memory\n");
	memset(buffer, 0x55, psize);
	tlb_rs_pin_cpu(0);
	migrc_run("file", &o, ARRAY_SIZE(tests), choose, run);
}
