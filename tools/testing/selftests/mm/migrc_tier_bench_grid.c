// SPDX-License-Identifier: GPL-2.0
/*
 * Look-ups as of Monte Carlo transport with a unionized energy grid: the grid points of all
 * nuclides in one sorted array, for each of them where its neighbours are in the table of each
 * nuclide, and these tables. A look-up searches the sorted array, and interpolates in the table of
 * each nuclide of a material.
 *
 * Nine of ten energies are in a quarter of the range, which becomes another one every ten seconds:
 * else the kernel would find all pages equally hot, and move none.
 *
 * Points come in groups, with one of each nuclide. Numbers are integers: a result is right or it
 * is not.
 */
#include "migrc_tier_bench.h"

#define NUCLIDES	32
#define MATERIALS	12
#define CHANNELS	5	/* of a reaction */
#define STRIDE		65536	/* of energies */
#define QUARTER_S	10
#define FULL		7	/* one look-up of so many is in a material of all nuclides */

struct point {
	__u64 energy;
	__u64 xs[CHANNELS];
};

/* Bytes of a group in the three arrays. */
#define GROUP	(NUCLIDES * (sizeof(__u64) + NUCLIDES * sizeof(__u32) + sizeof(struct point)))

static size_t groups;
static __u64 *energies;				/* of groups * NUCLIDES points */
static __u32 (*index_of)[NUCLIDES];		/* of each of them */
static struct point *tables[NUCLIDES];		/* of @groups points */

static __u64 energy_of(size_t point)
{
	return point * STRIDE + point * 2654435761U % STRIDE;
}

/* Where the point of a nuclide is within its group; not always in the same order. */
static size_t position(size_t nuclide, size_t group)
{
	return (nuclide + 7 * group) % NUCLIDES;
}

static void fill_group(size_t group)
{
	size_t i, n, k;

	for (i = 0; i < NUCLIDES; i++) {
		size_t point = group * NUCLIDES + i;

		energies[point] = energy_of(point);
		for (n = 0; n < NUCLIDES; n++)
			index_of[point][n] = group && position(n, group) > i ? group - 1 : group;
	}
	for (n = 0; n < NUCLIDES; n++) {
		struct point *p = &tables[n][group];

		p->energy = energy_of(group * NUCLIDES + position(n, group));
		for (k = 0; k < CHANNELS; k++)
			p->xs[k] = tlb_rs_word(n, group * CHANNELS + k) >> 16;
	}
}

static char *map_grid(size_t most, size_t *len)
{
	char *grid, *p;
	size_t i;

	groups = most / GROUP;
	*len = groups * GROUP;
	grid = tlb_rs_mmap(*len, SZ_2M);
	madvise(grid, *len, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	p = grid;
	energies = (__u64 *)p;
	p += groups * NUCLIDES * sizeof(*energies);
	index_of = (__u32 (*)[NUCLIDES])p;
	p += groups * NUCLIDES * sizeof(*index_of);
	for (i = 0; i < NUCLIDES; i++)
		tables[i] = (struct point *)p + i * groups;
	for (i = 0; i < groups; i++)
		fill_group(i);
	return grid;
}

/* The last point whose energy is not above @energy. */
static size_t search(__u64 energy)
{
	size_t low = 0, high = groups * NUCLIDES;

	while (high - low > 1) {
		size_t mid = low + (high - low) / 2;

		if (energies[mid] <= energy)
			low = mid;
		else
			high = mid;
	}
	return low;
}

/* The first group has no neighbours below it, the last none above. */
static __u64 random_energy(__u64 *state)
{
	const __u64 range = (groups - 3) * NUCLIDES * STRIDE;
	__u64 random = next_random(state), at = (random >> 8) % range;
	size_t quarter = tlb_rs_now_ns() / 1000000000 / QUARTER_S % 4;

	if (random % 10)
		at = at / 4 + quarter * (range / 4);
	return STRIDE * NUCLIDES + at;
}

static size_t look_up(__u64 *state)
{
	__u64 random = next_random(state), energy = random_energy(state), sum[CHANNELS] = { };
	size_t point, i, k, bad = 0, material = random % FULL ? 1 + random % (MATERIALS - 1) : 0;
	size_t nuclides = material ? 3 + material % 6 : NUCLIDES;
	const __u32 *row;

	point = search(energy);
	row = index_of[point];
	for (i = 0; i < nuclides; i++) {
		size_t n = (material * 5 + i) % NUCLIDES;
		const struct point *low = &tables[n][row[n]], *high = low + 1;
		__u64 part;

		if (low->energy > energy || energy >= high->energy) {
			bad++;
			continue;
		}
		part = (energy - low->energy) * 256 / (high->energy - low->energy);
		for (k = 0; k < CHANNELS; k++)
			sum[k] += (low->xs[k] * (256 - part) + high->xs[k] * part) / 256;
	}
	/* The last of them, word by word; and the sum is used. */
	i = (material * 5 + nuclides - 1) % NUCLIDES;
	for (k = 0; k < CHANNELS; k++) {
		bad += tables[i][row[i]].xs[k] != tlb_rs_word(i, row[i] * CHANNELS + k) >> 16;
		bad += !bad && !sum[k];
	}
	return bad;
}

const struct load load_grid = {
	.name = "grid", .map = map_grid, .look_up = look_up,
};
