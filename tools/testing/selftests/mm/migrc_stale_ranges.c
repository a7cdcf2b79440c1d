// SPDX-License-Identifier: GPL-2.0
/* Ranges change while P moves: mprotect, zap, dontneed, mremap; and lost increments. */
#include "migrc_stale.h"

static void allow_mprotect(void)
{
	protect(PROT_READ | PROT_WRITE);
}

/* W stores between the change of P's entry and the end of the whole. */
bool act_while(__u64 round, void (*allow)(void))
{
	__u64 start;

	sh->delay_ns = duration_ns / 8 + duration_ns / 16 * (round % 8);
	start = tlb_rs_now_ns();
	STORE(sh->go, round);
	allow();
	duration_ns = tlb_rs_now_ns() - start;
	STORE(sh->finished, round);
	WAIT_FOR(LOAD(sh->flag) == round);
	return sh->in_time;
}

bool act_mprotect(__u64 round)
{
	return act_while(round, allow_mprotect);
}

/* Until P is a migration entry. */
static void wait_for_entry(__u64 round)
{
	start_move(round);
	while (tlb_rs_pfn(page_p) == pfn && moving(round))
		;
}

static bool refill(__u64 round)
{
	bool in_time = moving(round);

	store(new_value(round));
	end_move(round);
	return in_time;
}

bool act_zap(__u64 round)
{
	wait_for_entry(round);
	if (mmap(area, area_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
		 -1, 0) == MAP_FAILED)
		ksft_exit_fail_msg("mmap: %s\n", strerror(errno));
	return refill(round);
}

bool act_dontneed(__u64 round)
{
	wait_for_entry(round);
	madvise(area, area_len, MADV_DONTNEED);
	return refill(round);
}

static char *elsewhere;

bool act_mremap(__u64 round)
{
	wait_for_entry(round);
	elsewhere = mremap(area, area_len, area_len, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
	if (elsewhere == MAP_FAILED)
		ksft_exit_fail_msg("mremap: %s\n", strerror(errno));
	return refill(round);
}

void cleanup_mremap(void)
{
	munmap(elsewhere, area_len);
}

/* --- lost increments ------------------------------------------------------------- */

static __thread bool is_writer;

/*
 * The writer stays here until P is writable again. W may have come too early for
 * mprotect(). The store is repeated.
 */
void on_fault(int sig)
{
	(void)sig;
	if (!is_writer) {
		tlb_rs_sleep_us(100);
		return;
	}
	STORE(sh->parked, true);
	while (LOAD(sh->parked))
		;
}

static void *writer(void *arg)
{
	(void)arg;
	is_writer = true;
	tlb_rs_pin_cpu(1);
	while (!LOAD(sh->stop)) {
		__u64 v = __atomic_load_n(page_p, __ATOMIC_RELAXED);

		/* Nobody else writes: after a loss, go on from what was meant. */
		sh->lost += v != sh->count;
		__atomic_store_n(page_p, sh->count + 1, __ATOMIC_RELAXED);
		STORE(sh->count, sh->count + 1);
		if (!LOAD(sh->pause))
			continue;
		STORE(sh->parked, true);
		while (LOAD(sh->parked))
			;
	}
	return NULL;
}

/* Until the first of the others is a migration entry: P will be soon. */
static void wait_for_canary(__u64 round)
{
	__u64 was = tlb_rs_pfn(list);

	start_move(round);
	while (tlb_rs_pfn(list) == was && moving(round))
		;
}

bool act_writable(__u64 round)
{
	start_move(round);
	end_move(round);
	return true;
}

bool act_pending(__u64 round)
{
	bool in_time;

	wait_for_canary(round);
	in_time = moving(round);
	/* The entry of P is the first to change, and the flush comes last. */
	protect(PROT_READ);
	end_move(round);
	return in_time;
}

bool act_fork(__u64 round)
{
	bool in_time;
	pid_t pid;

	wait_for_canary(round);
	in_time = moving(round);
	pid = start_child(nothing);
	end_move(round);
	waitpid(pid, NULL, 0);
	return in_time;
}

int run_lost(const struct test *t, const struct migrc_options *o)
{
	const char *reason = t->act == act_writable ? "writable" : "flush_pending";
	long rounds = o->rounds ?: t->rounds, round, armed = 0, denied = 0, stale = 0;
	/* A kernel without debugfs does not say why it denied. */
	bool known = !o->skip && migrc_has_stats();
	struct migrc_counters before;

	map_pages(t);
	migrc_write(MIGRC_AGE, AGE_MS);
	migrc_read(&before);
	start_thread(writer);
	start_thread(mover);
	for (round = 1; migrc_more(o, rounds, round - 1, known && !denied ? 0 : armed, stale);
	     round++) {
		long long was_denied = migrc_stat("denied", reason);
		__u64 count = LOAD(sh->count), lost = LOAD(sh->lost);
		bool in_time;

		WAIT_FOR(LOAD(sh->count) > count + 1000);
		migrc_gather(&set);
		settle();
		pfn = tlb_rs_pfn(page_p);
		in_time = t->act(round);
		STORE(sh->pause, true);
		WAIT_FOR(LOAD(sh->parked));
		armed += in_time && tlb_rs_pfn(page_p) != pfn;
		denied += migrc_stat("denied", reason) > was_denied;
		stale += load() != LOAD(sh->count) || LOAD(sh->lost) != lost;
		/* By its own flush: the writer sees what everybody sees. */
		protect(PROT_READ);
		protect(PROT_READ | PROT_WRITE);
		STORE(sh->pause, false);
		STORE(sh->parked, false);
	}
	migrc_record("migrc_stale", o, round - 1, armed, stale, &before);
	ksft_print_msg("denied as %s in %ld of %ld rounds, %llu increments\n", reason, denied,
		       round - 1, sh->count);
	end_threads();
	unmap_pages();
	if (known && !denied) {
		ksft_print_msg("no move met it\n");
		return t->optional && !stale ? migrc_skipped("no move met it") : KSFT_FAIL;
	}
	return migrc_judge(o, rounds, armed, stale, t->optional);
}
