// SPDX-License-Identifier: GPL-2.0
/* Changed below or above where it is mapped: clone, loop, upper, lower, image, copyup. */
#include "migrc_file.h"

/* --- clone ------------------------------------------------------------------------- */

static bool clone_of(__u64 val)
{
	int from = must_open(made->other, O_RDWR | O_CREAT), to, ret;
	struct file_clone_range range = {
		.src_fd = from,
		.src_offset = len - psize,
		.src_length = psize,
		.dest_offset = len - psize,
	};

	if (ftruncate(from, len) || !write_word(from, val) || fsync(from))
		ksft_exit_fail_msg("%s: %s\n", made->other, strerror(errno));
	to = must_open(path, O_WRONLY);
	ret = ioctl(to, FICLONERANGE, &range);
	close(to);
	close(from);
	return !ret;
}

static void remove_other(void)
{
	unlink(made->other);
}

bool setup_clone(void)
{
	snprintf(made->other, sizeof(made->other), "%s.other", path);
	tlb_rs_at_exit(remove_other);
	return clone_of(0);
}

bool act_clone(__u64 round)
{
	return clone_of(new_value(round));
}

/* --- loop -------------------------------------------------------------------------- */

static int loop_fd = -1;

void detach(void)
{
	if (!made->loop[0])
		return;
	/* Not by the process that has attached it, if that was killed. */
	if (loop_fd < 0)
		loop_fd = open(made->loop, O_RDWR | O_CLOEXEC);
	ioctl(loop_fd, LOOP_CLR_FD);
	close(loop_fd);
	loop_fd = -1;
	made->loop[0] = '\0';
	/* The file is put by a work item. */
	tlb_rs_sleep_us(10000);
}

static bool attach(void)
{
	struct loop_config config = { };
	int ctl = open("/dev/loop-control", O_RDWR | O_CLOEXEC), nr;

	if (ctl < 0)
		return false;
	nr = ioctl(ctl, LOOP_CTL_GET_FREE);
	close(ctl);
	if (nr < 0)
		return false;
	snprintf(made->loop, sizeof(made->loop), "/dev/loop%d", nr);
	loop_fd = open(made->loop, O_RDWR | O_CLOEXEC);
	if (loop_fd < 0) {
		made->loop[0] = '\0';
		return false;
	}
	tlb_rs_at_exit(detach);
	config.fd = must_open(path, O_RDWR);
	config.block_size = 512;
	if (ioctl(loop_fd, LOOP_CONFIGURE, &config))
		ksft_exit_fail_msg("LOOP_CONFIGURE: %s\n", strerror(errno));
	close(config.fd);
	return true;
}

bool setup_loop(void)
{
	bool ok = attach();

	detach();
	return ok;
}

bool act_loop(__u64 round)
{
	return attach() && write_word(loop_fd, new_value(round)) && !fsync(loop_fd);
}

/* --- overlayfs --------------------------------------------------------------------- */

static char *in_overlay(char *buf, size_t size, const char *name)
{
	snprintf(buf, size, "%.200s/%s", made->overlay, name);
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

static void remove_overlay(void)
{
	char merged[300];

	if (made->mounted)
		umount2(in_overlay(merged, sizeof(merged), "merged"), MNT_DETACH);
	made->mounted = false;
	/* Not what is mounted there, if it still is. */
	if (made->overlay[0])
		nftw(made->overlay, remove_entry, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
	made->overlay[0] = '\0';
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
	snprintf(made->overlay, sizeof(made->overlay), "%s", name);
	tlb_rs_at_exit(remove_overlay);
	for (i = 0; i < ARRAY_SIZE(names); i++)
		make_dir(in_overlay(name, sizeof(name), names[i]));
}

static bool mount_overlay(const char *lower)
{
	char options[1024], merged[300];

	snprintf(options, sizeof(options), "lowerdir=%s,upperdir=%.200s/upper,workdir=%.200s/work",
		 lower, made->overlay, made->overlay);
	made->mounted = !mount("overlay", in_overlay(merged, sizeof(merged), "merged"), "overlay",
			       0, options);
	return made->mounted;
}

static bool setup_overlay(bool upper)
{
	char lower[300];

	unlink(path);
	make_overlay(dir, 0);
	in_overlay(path, sizeof(made->path), "lower/migrc_file");
	in_overlay(map_path, sizeof(map_path), "merged/migrc_file");
	if (!upper)
		close(must_open(path, O_RDWR | O_CREAT));
	else
		snprintf(path, sizeof(made->path), "%s", map_path);
	return mount_overlay(in_overlay(lower, sizeof(lower), "lower"));
}

bool setup_upper(void)
{
	return setup_overlay(true);
}

bool setup_lower(void)
{
	return setup_overlay(false);
}

/* --- a file that was there --------------------------------------------------------- */

bool setup_image(void)
{
	snprintf(map_path, sizeof(map_path), "%.200s/migrc_image", dir);
	return !access(map_path, R_OK);
}

bool renew_image(__u64 round)
{
	(void)round;
	return true;
}

static char *others;

/* New pages from where the file was, with something else in them. */
bool act_image(__u64 round)
{
	(void)round;
	others = migrc_mmap(NR_OTHERS, !migrc_node_of(word), 1);
	memset(others, 0xff, NR_OTHERS * psize);
	return true;
}

void unmap_others(void)
{
	munmap(others, NR_OTHERS * psize);
}

/* An upper directory that is empty, so another one in each round. */
bool renew_copyup(__u64 round)
{
	remove_overlay();
	make_overlay("/dev/shm", round);
	if (!mount_overlay(dir))
		return false;
	in_overlay(map_path, sizeof(map_path), "merged/migrc_image");
	map_file();
	return true;
}

bool setup_copyup(void)
{
	return setup_image() && renew_copyup(0);
}

bool act_copyup(__u64 round)
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
