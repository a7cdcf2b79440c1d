// SPDX-License-Identifier: GPL-2.0
/*
 * Break-before-make of live vmemmap entries, while all other CPUs are paused.
 *
 * Between break and make there are no struct pages behind these entries. So nothing here
 * is instrumented, traced, probed (hence __flatten, see pause.c) or able to warn, and page
 * tables and pages are reached by their linear addresses, which were looked up before.
 *
 * And changes without a pause: only of what nobody may write to, to a page with the same
 * contents.
 */

#include <linux/hvo.h>
#include <linux/kprobes.h>

#include <asm/barrier.h>
#include <asm/brk-imm.h>
#include <asm/page.h>
#include <asm/pause.h>
#include <asm/tlbflush.h>

/* Called between break and make, and not noinstr. */
NOKPROBE_SYMBOL(copy_page);
NOKPROBE_SYMBOL(system_supports_tlb_range);
NOKPROBE_SYMBOL(read_tcr);

static __always_inline u64 new_value(const struct hvo_run *run, u32 i)
{
	return run->values ? run->values[i] : run->value;
}

static __always_inline __flatten void invalidate(const struct hvo_window *w)
{
	unsigned long pages = (w->end - w->start) >> PAGE_SHIFT;

	/* The same for a block: it is a last-level entry, too. */
	if (__flush_tlb_range_limit_excess(pages, PAGE_SIZE))
		__tlbi(vmalle1is);
	else
		__flush_s1_tlb_range_op(vaale1is, w->start, pages, PAGE_SIZE, 0,
					TLBI_TTL_UNKNOWN);
	__tlbi_sync_s1ish_kernel();
}

/* Between break and make, for tests. */
static __always_inline __flatten void stall(void)
{
	u64 begin = read_sysreg(cntvct_el0);
	u64 ticks = (u64)hvo_stall_us * read_sysreg(cntfrq_el0) / 1000000;

	if (hvo_stall_us == HVO_STALL_DIES)
		asm volatile("brk %0" : : "I" (FAULT_BRK_IMM));
	while (read_sysreg(cntvct_el0) - begin < ticks)
		isb();
}

/* Somebody else has written to an entry, or can be using it. Only looked at for tests. */
#define check(ok)							\
	do {								\
		if (IS_ENABLED(CONFIG_HVO_DEBUG) && !(ok))		\
			hvo_violations++;				\
	} while (0)

/**
 * arch_hvo_apply - change the entries of a window
 * @w: prepared, so that nothing can fail.
 *
 * Context: all other CPUs are paused, or stopped in threads, and DAIF is masked.
 */
void noinstr __flatten arch_hvo_apply(const struct hvo_window *w)
{
	const struct hvo_run *run, *end = w->runs + w->nr_runs;
	u32 i;

	check(arm64_cpus_are_stopped());
	if (!hvo_skip(HVO_HOOK_BREAK)) {
		for (run = w->runs; run < end; run++) {
			for (i = 0; i < run->nr; i++)
				WRITE_ONCE(run->entries[i], 0);
		}
	}
	dsb(ishst);
	if (!hvo_skip(HVO_HOOK_TLBI))
		invalidate(w);
	isb();

	/* Now nobody can write to these any more, which makes the copies exact. */
	for (run = w->runs; run < end; run++) {
		if (run->copy_to)
			copy_page(run->copy_to, run->copy_from);
	}
	if (IS_ENABLED(CONFIG_HVO_FAULT_INJECTION))
		stall();
	/* Contents before the entries that lead there. */
	dsb(ishst);

	for (run = w->runs; run < end; run++) {
		for (i = 0; i < run->nr; i++) {
			check(!READ_ONCE(run->entries[i]));
			WRITE_ONCE(run->entries[i], new_value(run, i));
		}
	}
	dsb(ishst);
	isb();
	check(arm64_cpus_are_stopped());
}

static void *page_of(u64 entry)
{
	return __va(__pte_to_phys(__pte(entry)));
}

static bool is_same(u64 a, u64 b)
{
	return page_of(a) == page_of(b) || !memcmp(page_of(a), page_of(b), PAGE_SIZE);
}

static void publish(const struct hvo_window *w)
{
	dsb(ishst);
	if (!hvo_skip(HVO_HOOK_TLBI))
		invalidate(w);
	isb();
}

/*
 * To a tail that can be written to: gets the contents that it will have, and nobody can
 * write to it any more. To a shared one: gets its own page, which is a copy.
 */
static void freeze_entry(u64 *entry, u64 new)
{
	u64 old = READ_ONCE(*entry);

	if (!pte_write(__pte(old))) {
		check(is_same(old, new));
		WRITE_ONCE(*entry, pte_val(pte_wrprotect(__pte(new))));
		return;
	}
	if (!hvo_skip(HVO_HOOK_SAME) && !is_same(old, new))
		copy_page(page_of(old), page_of(new));
	WRITE_ONCE(*entry, pte_val(pte_wrprotect(__pte(old))));
}

/**
 * arch_hvo_apply_live - change the entries of a window while all CPUs run
 * @w: of tails that become shared ones, or the reverse; no page of it is copied.
 *
 * Break-before-make is for another output address if either page can be written to, or if
 * their contents differ (Arm ARM, D8.16.1). So each entry is read-only in between, and what
 * it leads to is compared then. Both steps are invalidated before anything else is done.
 *
 * Context: may sleep; nobody else changes these entries, nor has references to the tails.
 * Return: 0, or -EAGAIN if somebody has written to a page; then no entry has changed, but
 * tails that differed may have got the contents of a shared one.
 */
int arch_hvo_apply_live(const struct hvo_window *w)
{
	const struct hvo_run *run, *end = w->runs + w->nr_runs;
	bool same = true;
	u32 i;

	/* Contents before the entries that lead there. */
	dsb(ishst);
	for (run = w->runs; run < end; run++) {
		for (i = 0; i < run->nr; i++)
			freeze_entry(run->entries + i, new_value(run, i));
	}
	publish(w);

	for (run = w->runs; run < end; run++) {
		for (i = 0; i < run->nr && same; i++)
			same = is_same(READ_ONCE(run->entries[i]), new_value(run, i));
	}
	if (!same && !hvo_skip(HVO_HOOK_SAME)) {
		/* Only tails that are not shared can have been written to. */
		for (run = w->runs; run < end; run++) {
			for (i = 0; i < run->nr; i++)
				WRITE_ONCE(run->entries[i],
					   pte_val(pte_mkwrite_novma(__pte(run->entries[i]))));
		}
		publish(w);
		return -EAGAIN;
	}
	check(same);

	for (run = w->runs; run < end; run++) {
		for (i = 0; i < run->nr; i++)
			WRITE_ONCE(run->entries[i], new_value(run, i));
	}
	publish(w);
	return 0;
}
