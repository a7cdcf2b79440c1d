// SPDX-License-Identifier: GPL-2.0
/* userfaultfd: uffd_wp, uffd_move, uffd_rwp, uffd_undo, uffd_swapin. */
#include "migrc_stale.h"

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

void prepare_uffd(__u64 round)
{
	store(old_value(round));
	migrc_gather(&set);
	settle();
	uffd_protect(area, true);
}

bool act_uffd(__u64 round)
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
bool act_move(__u64 round)
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
char *origin;

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

void prepare_rwp(__u64 round)
{
	mark(round);
	register_rwp();
	migrc_gather(&set);
	settle();
}

void prepare_rwp_swapin(__u64 round)
{
	mark(round);
	while (tlb_rs_kpageflags(tlb_rs_pfn(page_p)) & (1 << KPF_WRITEBACK))
		tlb_rs_sleep_us(1000);
	migrc_gather(&set);
	deactivate();
	touch_stack();
}

bool act_rwp(__u64 round)
{
	return act_store(round) && clean;
}

static int pipe_p[2];

void prepare_undo(__u64 round)
{
	struct iovec iov = { .iov_base = area, .iov_len = psize };

	prepare_rwp(round);
	if (pipe(pipe_p) || vmsplice(pipe_p[1], &iov, 1, SPLICE_F_NONBLOCK) != (ssize_t)psize)
		ksft_exit_fail_msg("vmsplice: %s\n", strerror(errno));
}

bool act_rwp_swapin(__u64 round)
{
	register_rwp();
	return act_swapin(round);
}

bool act_undo(__u64 round)
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

static bool open_uffd(__u64 features)
{
	struct uffdio_api api = {
		.api = UFFD_API,
		.features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_MOVE | features,
	};

	uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
	return uffd >= 0 && !ioctl(uffd, UFFDIO_API, &api);
}

bool setup_uffd(void)
{
	return open_uffd(0) && uffd_register(area, area_len, UFFDIO_REGISTER_MODE_WP |
					     UFFDIO_REGISTER_MODE_MISSING);
}

bool setup_rwp(void)
{
	if (!tlb_rs_has_disk_swap() || !open_uffd(UFFD_FEATURE_RWP | UFFD_FEATURE_RWP_ASYNC))
		return false;
	origin = tlb_rs_mmap(psize, psize);
	return uffd_register(origin, psize, UFFDIO_REGISTER_MODE_WP);
}

bool setup_rwp_swapin(void)
{
	return setup_swapin() && setup_rwp();
}

/* A page table full of pages, which are moved in one go, and one of none. */
bool setup_move(void)
{
	size_t half = area_len / 2;

	memset(area + psize, SEED, half - psize);
	look = look_and_store;
	return !madvise(area + half, half, MADV_DONTNEED) && setup_uffd();
}
