// SPDX-License-Identifier: GPL-2.0
/*
 * Whether the vmemmap is what it should be, on each CPU.
 *
 * A CPU that uses a broken entry takes a translation fault, and the kernel warns of it.
 * What no fault shows is looked for here: a translation that is older than the entry, an entry
 * that was not broken, and one that leads to the wrong page.
 *
 * debugfs/hvo/verify    walks all of the vmemmap when it is read. HugeTLB pools must not be
 *                       resized meanwhile.
 * debugfs/hvo/read      reads a word of each struct page when it is read, whatever happens to
 *                       that. (What /proc/kpagecount reads has to be consistent.)
 *
 * Fault injection, also in debugfs/hvo/:
 *
 * skip_hook             removes a rule.
 * stall_us              a window stays open for so long; by the largest value, the CPU dies in it.
 * fail_swap             one in so many exchanges fails.
 * flagless_cpu          a CPU that seems not to set access flags.
 * deaf_cpu              a CPU that does not answer.
 * race, race_pfn, waits a reference that is taken late, to which page, and whether the task that
 *                       takes it is waited for.
 * count_pfn, counted    another CPU counts in struct pages before each invalidation; how many of
 *                       these writes are lost, and how many there were.
 * heads_pfn             between two tries, the heads of tails are looked for; how many are wrong.
 * isolate_pfn           the block of a HugeTLB page is isolated, as while it is to be allocated
 *                       or offline; 0: no more.
 * read_lock, write_lock a lock that is held for reading where a pause stops a CPU, and is waited
 *                       for where none can.
 */
#define pr_fmt(fmt)	"hvo: " fmt

#include <linux/bitmap.h>
#include <linux/cpufeature.h>
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/hugetlb.h>
#include <linux/hvo.h>
#include <linux/memblock.h>
#include <linux/memory_hotplug.h>
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/page-isolation.h>
#include <linux/page_ref.h>
#include <linux/pageblock-flags.h>
#include <linux/pagewalk.h>
#include <linux/seq_file.h>
#include <linux/smp.h>
#include <linux/string.h>

#include "../hugetlb_vmemmap.h"
#include "../tlb_check/skip_hook.h"
#include "internal.h"

unsigned int hvo_violations;

/* After a window, when printing is possible again. */
void hvo_debug_report(void)
{
	unsigned int n = xchg(&hvo_violations, 0);

	WARN_ONCE(n, "%u changes of entries that other CPUs may use\n", n);
}

/*
 * Until the system runs, the linear map is split where this CPU can bear it: it is the
 * only one, or the other CPUs wait where they do not use it.
 */
static bool bears_live_split(void)
{
	return system_supports_bbml3() ||
	       (system_state < SYSTEM_RUNNING && cpu_supports_bbml3());
}

/*
 * Blocks and tables must not replace each other while they are in use, where the CPUs
 * cannot bear that. The other changes that need a break, the kernel's own check finds
 * (CONFIG_DEBUG_VM, __check_safe_pte_update()).
 */
void hvo_check_pmd(u64 old, u64 new)
{
	bool live = pmd_valid(__pmd(old)) && pmd_valid(__pmd(new));

	WARN_ONCE(live && pmd_leaf(__pmd(old)) != pmd_leaf(__pmd(new)) && !bears_live_split(),
		  "a live entry changed from %llx to %llx\n", old, new);
}

struct probe {
	unsigned long start;
	unsigned long end;
	/* Whether it is the old pages that are marked, or the new ones. */
	bool old;
	atomic_t stale;
};

/* What nothing in a struct page has at this place of a page of them. */
#define POISON		0x5a5a5a5a5a5a5a5aUL
#define POISON_AT	(PAGE_SIZE - sizeof(struct page) + offsetof(struct page, private))

static bool is_own(unsigned long addr)
{
	return pte_write(ptep_get(virt_to_kpte(addr)));
}

static void probe_cpu(void *arg)
{
	struct probe *probe = arg;
	unsigned long addr;

	for (addr = probe->start; addr < probe->end; addr += PAGE_SIZE) {
		bool marked = READ_ONCE(*(unsigned long *)(addr + POISON_AT)) == POISON;

		if (marked == probe->old && (marked || is_own(addr)))
			atomic_inc(&probe->stale);
	}
}

static void mark(struct page *page, unsigned long value)
{
	unsigned long *at = page_to_virt(page) + POISON_AT;

	*at = value;
}

/* The new pages that are not shared, by their linear addresses. */
static void mark_new(const struct probe *probe, unsigned long value)
{
	unsigned long addr;

	for (addr = probe->start; addr < probe->end; addr += PAGE_SIZE) {
		pte_t pte = ptep_get(virt_to_kpte(addr));

		if (pte_write(pte))
			mark(pte_page(pte), value);
	}
}

/* Makes each CPU have translations of these addresses. */
void hvo_debug_touch(unsigned long start, unsigned long end)
{
	struct probe probe = { .start = start, .end = end, .old = true };

	on_each_cpu(probe_cpu, &probe, 1);
}

/*
 * Whether each CPU sees the new pages. @old: pages that nobody should see any more; if
 * there is none, because what the entries led to is still in use, the new ones are marked.
 */
void hvo_debug_probe(unsigned long start, unsigned long end, struct page *const *old,
		     unsigned long nr_old)
{
	struct probe probe = { .start = start, .end = end, .old = old };
	unsigned long i;

	if (old) {
		for (i = 0; i < nr_old; i++)
			mark(old[i], POISON);
	} else {
		mark_new(&probe, POISON);
	}
	on_each_cpu(probe_cpu, &probe, 1);
	if (!old)
		mark_new(&probe, 0);
	WARN_ONCE(atomic_read(&probe.stale), "%d stale translations of vmemmap %lx-%lx\n",
		  atomic_read(&probe.stale), start, end);
}

/* --- verify -------------------------------------------------------------------------- */

struct verify {
	struct seq_file *m;
	/* Frames that some entry leads to and that can be written to there. */
	unsigned long *own;
	unsigned long pages;
	unsigned long shared;
	unsigned long blocks;
	unsigned long violations;
};

static void violation(struct verify *v, unsigned long addr, u64 entry, const char *what)
{
	if (++v->violations <= 10)
		seq_printf(v->m, "wrong: %s: address %lx, entry %llx\n", what, addr, entry);
}

static void verify_tail(struct verify *v, unsigned long addr, pte_t pte)
{
	struct page *page = (struct page *)addr;
	struct folio *folio;

	if (!PageTail(page)) {
		violation(v, addr, pte_val(pte), "read-only, but not of a tail");
		return;
	}
	folio = page_folio(page);
	if (!folio_test_hugetlb(folio) || !folio_test_hugetlb_vmemmap_optimized(folio))
		violation(v, addr, pte_val(pte), "of a folio that is not optimised");
	else if (folio_order(folio) < VMEMMAP_TAIL_MIN_ORDER ||
		 pte_page(pte) != folio_zone(folio)->vmemmap_tails[folio_order(folio) -
								   VMEMMAP_TAIL_MIN_ORDER])
		violation(v, addr, pte_val(pte), "not the page that these tails share");
	else if (page_ref_count(page))
		violation(v, addr, pte_val(pte), "a tail with references");
	v->shared++;
}

static int verify_pmd(pmd_t *pmd, unsigned long addr, unsigned long next,
		      struct mm_walk *walk)
{
	struct verify *v = walk->private;
	unsigned long i, pages = (next - addr) >> PAGE_SHIFT;
	pmd_t entry = pmdp_get(pmd);
	pte_t *ptep;

	walk->action = ACTION_CONTINUE;
	if (pmd_none(entry))
		return 0;
	if (pmd_leaf(entry)) {
		v->blocks++;
		if (!pmd_young(entry))
			violation(v, addr, pmd_val(entry), "without its access flag");
		bitmap_set(v->own, pmd_pfn(entry) + ((addr & ~PMD_MASK) >> PAGE_SHIFT), pages);
		return 0;
	}
	ptep = pte_offset_kernel(pmd, addr);
	for (i = 0; i < pages; i++, addr += PAGE_SIZE) {
		pte_t pte = ptep_get(ptep + i);

		if (pte_none(pte))
			continue;
		v->pages++;
		if (!pte_young(pte))
			violation(v, addr, pte_val(pte), "without its access flag");
		if (!pte_valid(pte))
			violation(v, addr, pte_val(pte), "neither none nor valid");
		else if (!pte_write(pte))
			verify_tail(v, addr, pte);
		else if (__test_and_set_bit(pte_pfn(pte), v->own))
			violation(v, addr, pte_val(pte), "a page twice");
	}
	return 0;
}

static const struct mm_walk_ops verify_ops = {
	.pmd_entry = verify_pmd,
};

static int verify_show(struct seq_file *m, void *unused)
{
	unsigned long start = (unsigned long)pfn_to_page(PHYS_PFN(memblock_start_of_DRAM()));
	unsigned long end = PAGE_ALIGN((unsigned long)pfn_to_page(max_pfn));
	struct verify v = { .m = m };
	int ret;

	v.own = kvcalloc(BITS_TO_LONGS(max_pfn), sizeof(long), GFP_KERNEL);
	if (!v.own)
		return -ENOMEM;
	mmap_write_lock(&init_mm);
	ret = walk_kernel_page_table_range(start, end, &verify_ops, NULL, &v);
	mmap_write_unlock(&init_mm);
	kvfree(v.own);
	seq_printf(m, "blocks %lu\npages %lu\nshared %lu\nviolations %lu\n",
		   v.blocks, v.pages, v.shared, v.violations);
	return ret;
}
DEFINE_SHOW_ATTRIBUTE(verify);

static int read_show(struct seq_file *m, void *unused)
{
	unsigned long pfn, nr = 0;

	for (pfn = PHYS_PFN(memblock_start_of_DRAM()); pfn < max_pfn; pfn++) {
		struct page *page = pfn_to_online_page(pfn);

		if (page) {
			(void)READ_ONCE(page->flags.f);
			nr++;
		}
		cond_resched();
	}
	seq_printf(m, "pages %lu\n", nr);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(read);

#ifdef CONFIG_HVO_FAULT_INJECTION

unsigned long hvo_skipped;
unsigned int hvo_stall_us;
/* One in so many exchanges of an entry fails, as if another CPU had used it. */
unsigned int hvo_fail_swap;
unsigned int hvo_flagless_cpu = U32_MAX;

static const char * const hook_names[] = {
#define EM(hook, name)	name,
	HVO_HOOKS(EM)
#undef EM
};

static const struct skip_hooks hooks = {
	.names = hook_names,
	.nr = NR_HVO_HOOKS,
	.skipped = &hvo_skipped,
};

/* hvo_skip= removes a rule before there is a debugfs. */
static int __init skip_at_boot(char *name)
{
	int hook = match_string(hook_names, NR_HVO_HOOKS, name);

	if (hook >= 0)
		set_bit(hook, &hvo_skipped);
	return 0;
}
early_param("hvo_skip", skip_at_boot);

static u64 race_pfn;
static atomic_t racing;

/* How many tasks have read a count and not done anything about it yet. */
static int race_get(void *data, u64 *tasks)
{
	*tasks = atomic_read(&racing);
	return 0;
}

/*
 * As page_ref_add_unless_zero(), but with @ms between what it reads and what it does about
 * that. Meanwhile the page is freed, and can become a tail.
 */
static int race_set(void *data, u64 ms)
{
	/* From where the folios of a pool come from. */
	struct page *block = alloc_pages(GFP_HIGHUSER_MOVABLE, MAX_PAGE_ORDER);
	const unsigned int order = MAX_PAGE_ORDER - 2;
	struct page *page;
	int count, i;
	bool waits;

	if (!block)
		return -ENOMEM;
	/* Neither the first of a folio, nor in the page with the first ones. */
	page = block + PTRS_PER_PTE / 2 + 1;
	race_pfn = page_to_pfn(page);
	set_page_count(page, 1);

	waits = page_ref_is_waited_for();
	if (waits)
		preempt_disable();
	count = page_ref_count(page);
	set_page_count(page, 0);
	/* In parts: a free block of the size of a huge page would stay with this CPU. */
	for (i = 0; i < 4; i++) {
		set_page_count(block + (i << order), 1);
		__free_pages(block + (i << order), order);
	}
	atomic_inc(&racing);
	mdelay(min(ms, MSEC_PER_SEC));
	if (atomic_cmpxchg(&page->_refcount, count, count + 1) == count)
		pr_err("a page that was freed got a reference\n");
	atomic_dec(&racing);
	if (waits)
		preempt_enable();
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(race_fops, race_get, race_set, "%llu\n");

/* Whether references are waited for. */
static int waits_get(void *data, u64 *waits)
{
	*waits = static_key_enabled(&page_ref_waits);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(waits_fops, waits_get, NULL, "%llu\n");

static u64 count_pfn;
static unsigned long counted;

/* In a struct page next to that of @count_pfn. Not where mark() writes. */
static unsigned long *count_word(void)
{
	unsigned long page = (unsigned long)pfn_to_page(count_pfn) & PAGE_MASK;

	return (void *)page + POISON_AT - sizeof(struct page);
}

static void count_cpu(void *unused)
{
	(*count_word())++;
}

/* Before an invalidation: a CPU that has the translation needs no access flag to write. */
void hvo_debug_count(void)
{
	int cpu;

	if (!count_pfn || irqs_disabled())
		return;
	cpu = cpumask_any_but(cpu_online_mask, get_cpu());
	if (cpu < nr_cpu_ids && !smp_call_function_single(cpu, count_cpu, NULL, 1))
		counted++;
	put_cpu();
}

/* How many are lost. */
static int count_get(void *data, u64 *lost)
{
	*lost = count_pfn ? counted - *count_word() : 0;
	return 0;
}

/* From now on in those of a free HugeTLB page; 0: no more. */
static int count_set(void *data, u64 pfn)
{
	if (pfn && (!pfn_valid(pfn) || !PageHuge(pfn_to_page(pfn))))
		return -EINVAL;
	if (count_pfn)
		*count_word() = 0;
	counted = 0;
	count_pfn = pfn;
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(count_fops, count_get, count_set, "%llu\n");

static u64 heads_pfn;
static unsigned long heads_nr, strays;

/* Between two tries: whether each tail has a head, and is in its folio. */
void hvo_debug_look(void)
{
	unsigned long i;

	for (i = 0; heads_pfn && i < heads_nr; i += PAGE_SIZE / sizeof(struct page)) {
		struct page *page = pfn_to_page(heads_pfn + i), *head = compound_head(page);

		strays += !PageHead(head) || page - head >= compound_nr(head);
	}
}

static int heads_get(void *data, u64 *nr)
{
	*nr = strays;
	return 0;
}

static int heads_set(void *data, u64 pfn)
{
	if (pfn && (!pfn_valid(pfn) || !PageHuge(pfn_to_page(pfn))))
		return -EINVAL;
	strays = 0;
	heads_nr = pfn ? compound_nr(pfn_to_page(pfn)) : 0;
	heads_pfn = pfn;
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(heads_fops, heads_get, heads_set, "%llu\n");

static u64 isolated_pfn;

static int isolate_set(void *data, u64 pfn)
{
	unsigned long start = pageblock_start_pfn(isolated_pfn);
	int err;

	if (!IS_ENABLED(CONFIG_MEMORY_ISOLATION) ||
	    (pfn && (!pfn_valid(pfn) || !PageHuge(pfn_to_page(pfn)))))
		return -EINVAL;
	if (isolated_pfn)
		undo_isolate_page_range(start, start + pageblock_nr_pages);
	isolated_pfn = 0;
	if (!pfn)
		return 0;
	start = pageblock_start_pfn(pfn);
	err = start_isolate_page_range(start, start + pageblock_nr_pages, PB_ISOLATE_MODE_OTHER);
	if (!err)
		isolated_pfn = pfn;
	return err;
}
DEFINE_DEBUGFS_ATTRIBUTE(isolate_fops, NULL, isolate_set, "%llu\n");

static DEFINE_RWLOCK(lock);

/* Nobody can interrupt it. */
#define LOCK_MAX_MS	(60 * MSEC_PER_SEC)

/* For @ms, with interrupts: a pause stops this CPU while it holds the lock. */
static int read_lock_set(void *data, u64 ms)
{
	unsigned long end = jiffies + msecs_to_jiffies(min(ms, LOCK_MAX_MS));

	while (time_before(jiffies, end)) {
		read_lock(&lock);
		mdelay(1);
		read_unlock(&lock);
		cond_resched();
	}
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(read_lock_fops, NULL, read_lock_set, "%llu\n");

/* Without interrupts: this CPU cannot answer before the other one goes on. */
static int write_lock_set(void *data, u64 ms)
{
	unsigned long end = jiffies + msecs_to_jiffies(min(ms, LOCK_MAX_MS));

	while (time_before(jiffies, end)) {
		write_lock_irq(&lock);
		write_unlock_irq(&lock);
		cond_resched();
	}
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(write_lock_fops, NULL, write_lock_set, "%llu\n");

static void faults_create(struct dentry *dir)
{
	skip_hook_create(dir, &hooks);
	debugfs_create_u32("stall_us", 0600, dir, &hvo_stall_us);
	debugfs_create_u32("fail_swap", 0600, dir, &hvo_fail_swap);
	debugfs_create_u32("flagless_cpu", 0600, dir, &hvo_flagless_cpu);
	debugfs_create_u32("deaf_cpu", 0600, dir, &arm64_pause_deaf_cpu);
	debugfs_create_u64("race_pfn", 0400, dir, &race_pfn);
	debugfs_create_file("race", 0600, dir, NULL, &race_fops);
	debugfs_create_file("waits", 0400, dir, NULL, &waits_fops);
	debugfs_create_file("count_pfn", 0600, dir, NULL, &count_fops);
	debugfs_create_ulong("counted", 0400, dir, &counted);
	debugfs_create_file("heads_pfn", 0600, dir, NULL, &heads_fops);
	debugfs_create_file("isolate_pfn", 0200, dir, NULL, &isolate_fops);
	debugfs_create_file("read_lock", 0200, dir, NULL, &read_lock_fops);
	debugfs_create_file("write_lock", 0200, dir, NULL, &write_lock_fops);
}
#else
static void faults_create(struct dentry *dir) { }
#endif /* CONFIG_HVO_FAULT_INJECTION */

/* Called by hvo_stats.c. */
void hvo_debug_create(struct dentry *dir)
{
	debugfs_create_file("verify", 0400, dir, NULL, &verify_fops);
	debugfs_create_file("read", 0400, dir, NULL, &read_fops);
	faults_create(dir);
}
