// SPDX-License-Identifier: GPL-2.0
/*
 * Weights that a model maps from a file: they are read, nine of ten times in the hot tenth, which
 * becomes another one every ten seconds.
 */
#include "migrc_tier_bench.h"

#define HOT_S	10

static char *weights;
static size_t pages;

static char *map_weights(size_t most, size_t *len)
{
	char path[256], *buf = malloc(SZ_2M);
	size_t at;
	int fd;

	snprintf(path, sizeof(path), "%.200s/migrc_weights", dir);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || !buf)
		ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	*len = most / SZ_2M * SZ_2M;
	for (at = 0; at < *len; at += SZ_2M) {
		tlb_rs_fill(buf, SZ_2M, SEED + at / SZ_2M);
		if (write(fd, buf, SZ_2M) != (ssize_t)SZ_2M)
			ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	}
	free(buf);
	/* What is dirty does not move before it is written back. */
	if (fsync(fd))
		ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	/* Pages of files are deferred while nobody may write. */
	close(fd);
	fd = tlb_rs_open(path, O_RDONLY);
	weights = mmap(NULL, *len, PROT_READ, MAP_SHARED, fd, 0);
	if (weights == MAP_FAILED)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	close(fd);
	unlink(path);
	madvise(weights, *len, MADV_RANDOM);
	pages = *len / getpagesize();
	return weights;
}

/* One page, 16 words of it. */
static size_t look_up(__u64 *state)
{
	const size_t words = getpagesize() / sizeof(__u64);
	__u64 random = next_random(state);
	size_t page = (random >> 8) % pages, i, bad = 0, first;
	size_t tenth = tlb_rs_now_ns() / 1000000000 / HOT_S % 10;

	if (random % 10)
		page = (page / 10 + tenth * (pages / 10)) % pages;
	first = (random >> 48) % (words - 16);
	for (i = first; i < first + 16; i++) {
		size_t word = page * words + i, in_2m = word % (SZ_2M / sizeof(__u64));

		bad += __atomic_load_n((__u64 *)weights + word, __ATOMIC_RELAXED) !=
		       tlb_rs_word(SEED + word / (SZ_2M / sizeof(__u64)), in_2m);
	}
	return bad;
}

const struct load load_weights = {
	.name = "weights", .map = map_weights, .look_up = look_up, .damon = true,
};
