// SPDX-License-Identifier: GPL-2.0
/* P becomes read-only, and is stored to: by a write, by a tracer, by one of two who share it. */
#include "migrc_stale.h"

/* --- how P becomes read-only -------------------------------------------------- */

void prepare_protect(__u64 round)
{
	protect(PROT_READ | PROT_WRITE);
	store(old_value(round));
	migrc_gather(&set);
	settle();
	protect(PROT_READ);
}

/* In user mode: x86_64 would have nothing to defer for an mm that no CPU uses. */
static void spin(void)
{
	tlb_rs_pin_cpu(2);
	STORE(sh->ready, true);
	for (;;)
		;
}

void nothing(void)
{
}

/* Not exclusive any more, in a writable mapping. The child lives until the store. */
void prepare_fork(__u64 round)
{
	store(old_value(round));
	migrc_gather(&set);
	settle();
	sh->ready = false;
	child = start_child(spin);
	WAIT_FOR(LOAD(sh->ready));
}

void come_and_go(void)
{
	child = start_child(nothing);
	waitpid(child, NULL, 0);
	child = -1;
}

static void fork_exit(void)
{
	migrc_gather(&set);
	settle();
	come_and_go();
}

void prepare_fork_exit(__u64 round)
{
	store(old_value(round));
	fork_exit();
}

/*
 * A reader that pins the page gets it to itself, since there is nobody else any
 * more. The entry stays read-only.
 */
void pin_and_read(void)
{
	__u64 val;
	struct iovec local = { .iov_base = &val, .iov_len = sizeof(val) };
	struct iovec remote = { .iov_base = page_p, .iov_len = sizeof(val) };

	if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != sizeof(val))
		ksft_exit_fail_msg("process_vm_readv: %s\n", strerror(errno));
}

void make_exclusive(void)
{
	fork_exit();
	pin_and_read();
}

void prepare_exclusive(__u64 round)
{
	store(old_value(round));
	make_exclusive();
}

void prepare_file(__u64 round)
{
	__u64 val = old_value(round);

	if (madvise(area, area_len, MADV_DONTNEED) ||
	    pwrite(file, &val, sizeof(val), (char *)page_p - area) != sizeof(val) ||
	    madvise(area, area_len, MADV_POPULATE_READ))
		ksft_exit_fail_msg("cannot prepare the file: %s\n", strerror(errno));
	migrc_gather(&set);
	settle();
}

/* --- what stores --------------------------------------------------------------- */

bool act_store(__u64 round)
{
	end_child();
	store(new_value(round));
	return true;
}

bool act_file(__u64 round)
{
	__u64 val = new_value(round);

	return pwrite(file, &val, sizeof(val), (char *)page_p - area) == sizeof(val);
}

/* --- a tracer --------------------------------------------------------------- */

/* A thread to be stopped; any of this process would do, but not R. */
static void *victim(void *arg)
{
	(void)arg;
	STORE(sh->victim, (pid_t)syscall(SYS_gettid));
	while (!LOAD(sh->stop))
		tlb_rs_sleep_us(1000);
	return NULL;
}

static void tracer(void)
{
	__u64 round = 0;
	int status;

	/* Or P would not be the parent's own. */
	munmap(area, area_len);
	munmap(list, (nr_pages - 1) * psize);
	if (ptrace(PTRACE_SEIZE, sh->victim, NULL, NULL) ||
	    ptrace(PTRACE_INTERRUPT, sh->victim, NULL, NULL) ||
	    waitpid(sh->victim, &status, __WALL) != sh->victim)
		_exit(1);
	STORE(sh->ready, true);
	for (;;) {
		__u8 tag = (__u8)sh->poke_val;
		struct iovec iov = { .iov_base = &tag, .iov_len = 1 };
		long ret;

		if (LOAD(sh->poke) == round) {
			tlb_rs_sleep_us(50);
			continue;
		}
		round = LOAD(sh->poke);
		tag = (__u8)sh->poke_val;
		if (area_prot)
			ret = ptrace(POKEMTETAGS, sh->victim, page_p, &iov);
		else
			ret = ptrace(PTRACE_POKEDATA, sh->victim, page_p, sh->poke_val);
		STORE(sh->poked, ret ? ~0ULL : round);
	}
}

pthread_t victim_id;
bool has_victim;

bool setup_tracer(void)
{
	int i, status;

	if (pthread_create(&victim_id, NULL, victim, NULL))
		return false;
	has_victim = true;
	WAIT_FOR(LOAD(sh->victim));
	child = start_child(tracer);
	for (i = 0; i < 5000 && !LOAD(sh->ready); i++) {
		if (waitpid(child, &status, WNOHANG) == child) {
			child = -1;
			return false;
		}
		tlb_rs_sleep_us(1000);
	}
	return LOAD(sh->ready);
}

static bool poke(__u64 val)
{
	__u64 serial = sh->poke + 1;

	sh->poke_val = val;
	STORE(sh->poke, serial);
	while (LOAD(sh->poked) != serial) {
		if (LOAD(sh->poked) == ~0ULL)
			return false;
		tlb_rs_sleep_us(50);
	}
	return true;
}

bool act_poke(__u64 round)
{
	return poke(new_value(round));
}

#ifdef __aarch64__
/* The allocation tag of P, modulo 16. */
static __u64 look_tag(void)
{
	register __u64 tag asm("x0") = 0;
	register __u64 *addr asm("x1") = page_p;

	/* ldg x0, [x1] */
	asm volatile(".inst 0xd9600020" : "+r"(tag) : "r"(addr) : "memory");
	return tag >> 56 & 15;
}

bool setup_tags(void)
{
	if (!(getauxval(AT_HWCAP2) & 1 << 18 /* HWCAP2_MTE */))
		return false;
	look = look_tag;
	area_prot = MTE;
	protect(PROT_READ | PROT_WRITE);
	store(0);
	return setup_tracer();
}

void prepare_tags(__u64 round)
{
	protect(PROT_READ | PROT_WRITE);
	store(0);
	if (!poke(old_value(round) & 15))
		ksft_exit_fail_msg("PTRACE_POKEMTETAGS does not work\n");
	migrc_gather(&set);
	settle();
	protect(PROT_READ);
}

bool act_tags(__u64 round)
{
	return poke(new_value(round) & 15);
}
#endif

/* --- two processes that share P ------------------------------------------------ */

/* The child's access to P after munmap() must fault, for ever. */
static void on_child_fault(int sig)
{
	(void)sig;
	STORE(sh->child_faulted, true);
	for (;;)
		pause();
}

static __u64 child_old;

static void *child_reader(void *arg)
{
	__u64 v;

	(void)arg;
	tlb_rs_pin_cpu(3);
	/* Here it is this reader who must not fault on P. */
	STORE(sh->tid, (pid_t)syscall(SYS_gettid));
	for (;;) {
		bool gone = LOAD(sh->unmapped);

		v = look_word();
		if (gone || v != child_old)
			__atomic_fetch_add(&sh->child_bad, 1, __ATOMIC_RELEASE);
		__atomic_fetch_add(&sh->child_reads, 1, __ATOMIC_RELEASE);
	}
	return NULL;
}

static void common_child(void)
{
	pthread_t id;

	signal(SIGSEGV, on_child_fault);
	tlb_rs_pin_cpu(2);
	if (pthread_create(&id, NULL, child_reader, NULL))
		_exit(1);
	while (!LOAD(sh->unmap))
		tlb_rs_sleep_us(100);
	munmap(area, area_len);
	STORE(sh->unmapped, 1);
	for (;;)
		pause();
}

void prepare_common(__u64 round)
{
	__u64 reads = sh->child_reads;

	sh->unmap = 0;
	sh->unmapped = 0;
	sh->child_faulted = false;
	child_old = old_value(round);
	store(child_old);
	migrc_gather(&set);
	settle();
	child = start_child(common_child);
	WAIT_FOR(LOAD(sh->child_reads) > reads + 100);
}

bool act_common(__u64 round)
{
	__u64 bad = sh->child_bad;
	int i;

	STORE(sh->unmap, 1);
	WAIT_FOR(LOAD(sh->unmapped));
	store(new_value(round));
	for (i = 0; i < 10000 && !LOAD(sh->child_faulted) && LOAD(sh->child_bad) == bad; i++)
		tlb_rs_sleep_us(100);
	sh->stale += LOAD(sh->child_bad) != bad;
	end_child();
	return true;
}

static bool map_file(int flags)
{
	file = memfd_create("migrc_stale", MFD_CLOEXEC);
	if (file < 0 || ftruncate(file, area_len))
		return false;
	return mmap(area, area_len, PROT_READ, flags | MAP_FIXED, file, 0) == area;
}

bool setup_file(void)
{
	return map_file(MAP_PRIVATE);
}

bool setup_shared(void)
{
	return map_file(MAP_SHARED);
}
