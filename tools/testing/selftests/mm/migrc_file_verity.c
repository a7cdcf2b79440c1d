// SPDX-License-Identifier: GPL-2.0
/* ext4 gives a file verity: verity, journal. */
#include "migrc_file.h"

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
bool renew_verity(__u64 round)
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

bool act_verity(__u64 round)
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
bool setup_verity(void)
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

static bool mount_again(const char *options)
{
	if (umount(dir) && errno != EINVAL)
		return false;
	return !mount(made->disk, dir, "ext4", 0, options);
}

static void mount_as_before(void)
{
	if (!mount_again(NULL) && errno != EBUSY)
		ksft_exit_fail_msg("%s: %s\n", dir, strerror(errno));
}

/* Of what has no options of its own, none get lost. */
bool setup_journal(void)
{
	FILE *file = setmntent("/proc/mounts", "r");
	struct mntent *fs = NULL;

	while (file && (fs = getmntent(file)) && strcmp(fs->mnt_dir, dir))
		;
	if (file)
		endmntent(file);
	if (!fs || strcmp(fs->mnt_type, "ext4") || strcmp(fs->mnt_opts, "rw,relatime"))
		return false;
	snprintf(made->disk, sizeof(made->disk), "%s", fs->mnt_fsname);
	tlb_rs_at_exit(mount_as_before);
	return mount_again("data=journal") && setup_verity();
}
