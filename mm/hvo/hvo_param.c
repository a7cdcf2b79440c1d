// SPDX-License-Identifier: GPL-2.0
/*
 * Switch and parameters of HVO. The parameters are hvo.NAME on the command line, and files in
 * /sys/module/hvo/parameters/.
 */
#include <linux/cpufeature.h>
#include <linux/export.h>
#include <linux/hvo.h>
#include <linux/jump_label.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/page_ref.h>
#include <linux/preempt.h>
#include <linux/rcupdate.h>
#include <linux/string.h>
#include <linux/sysctl.h>
#include <linux/sysfs.h>

#include <asm/virt.h>

#include "internal.h"

/* --- the switch ---------------------------------------------------------------------- */

/*
 * Whether a grace period waits for a task that is taking a reference, see page_ref.h. It is
 * on before a folio is optimised for the first time, and stays on. A kernel that never
 * optimises one has a NOP there.
 */
#ifdef CONFIG_HUGETLB_PAGE_OPTIMIZE_VMEMMAP_DEFAULT_ON
struct static_key_true page_ref_waits = STATIC_KEY_TRUE_INIT;
#else
struct static_key_false page_ref_waits = STATIC_KEY_FALSE_INIT;
#endif
EXPORT_SYMBOL(page_ref_waits);

/* Out of line, because it is everywhere. */
bool page_ref_add_unless_zero_waits(struct page *page, int nr)
{
	bool ret;

	preempt_disable();
	ret = atomic_add_unless(&page->_refcount, nr, 0);
	preempt_enable();
	return ret;
}
EXPORT_SYMBOL(page_ref_add_unless_zero_waits);

bool page_ref_inc_unless_zero_waits(struct page *page)
{
	return page_ref_add_unless_zero_waits(page, 1);
}
EXPORT_SYMBOL(page_ref_inc_unless_zero_waits);

/* The boot value, as the command line has it. There is one task, and no struct page yet. */
void __init hvo_boot_switch(bool on)
{
	/* rule: hvo/key: without it nothing waits for a task that is taking a reference */
	if (on)
		static_branch_enable(&page_ref_waits);
	else
		static_branch_disable(&page_ref_waits);
}

/*
 * A task may have read a count before the key was on, and then have been preempted. A grace
 * period of RCU does not wait for it. One of RCU tasks ends when each task has slept, or
 * run in user space. It begins and ends with one of RCU, which is for what interrupts do,
 * in the idle loop, too. Without preemption both are the same.
 */
static void wait_for_references(void)
{
	static DEFINE_MUTEX(key_mutex);

	/* A caller that finds the key on waits, too: another one may not be done. */
	guard(mutex)(&key_mutex);
	if (static_key_enabled(&page_ref_waits) || hvo_skip(HVO_HOOK_KEY))
		return;
	/* rule: hvo/key: before the first tail is read-only */
	static_branch_enable(&page_ref_waits);
	/* rule: hvo/tasks: RCU does not wait for a task that was preempted without the key */
	if (hvo_skip(HVO_HOOK_TASKS))
		synchronize_rcu();
	else
		synchronize_rcu_tasks();
}

/* Of vm.hugetlb_optimize_vmemmap. It is on only once no task can be in the middle. */
int hvo_proc_switch(const struct ctl_table *table, int write, void *buffer, size_t *lenp,
		    loff_t *ppos)
{
	bool on = READ_ONCE(vmemmap_optimize_enabled);
	const struct ctl_table value = { .data = &on, .maxlen = sizeof(on), .mode = table->mode };
	int ret;

	ret = proc_dobool(&value, write, buffer, lenp, ppos);
	if (ret || !write)
		return ret;
	if (on)
		wait_for_references();
	WRITE_ONCE(vmemmap_optimize_enabled, on);
	hvo_pools_changed();
	return 0;
}

/* --- parameters ---------------------------------------------------------------------- */

static const char * const strategies[] = {
	[HVO_AUTO] = "auto",
	[HVO_PAUSE] = "pause",
	[HVO_STOP_MACHINE] = "stop_machine",
#ifdef CONFIG_TLB_RS_BENCH
	[HVO_EACH] = "each",
	[HVO_PERFOLIO] = "perfolio",
	[HVO_UNSAFE] = "unsafe",
#endif
};

static int strategy = HVO_AUTO;

static int strategy_set(const char *val, const struct kernel_param *kp)
{
	int i = sysfs_match_string(strategies, val);

	if (i < 0)
		return i;
	WRITE_ONCE(strategy, i);
	return 0;
}

static int strategy_get(char *buffer, const struct kernel_param *kp)
{
	return sysfs_emit(buffer, "%s\n", strategies[READ_ONCE(strategy)]);
}

static const struct kernel_param_ops strategy_ops = {
	.set = strategy_set,
	.get = strategy_get,
};
module_param_cb(strategy, &strategy_ops, NULL, 0644);
MODULE_PARM_DESC(strategy, "how live entries change: auto, pause or stop_machine");

static unsigned int max_ptes = 16384;
module_param(max_ptes, uint, 0644);
MODULE_PARM_DESC(max_ptes, "most page table entries that change together, up to 16384");
static unsigned int pause_budget_us = 40;
module_param(pause_budget_us, uint, 0644);
MODULE_PARM_DESC(pause_budget_us, "how long a pause should take at most, in us");

/* The pauser waits with interrupts masked, and may be the only CPU that runs. */
#define MAX_ACK_TIMEOUT_US	USEC_PER_SEC
#define MAX_RETRIES		1000

static unsigned int ack_timeout_us;
static unsigned int retries = 8;

static int bounded_set(const char *val, const struct kernel_param *kp)
{
	unsigned int most = kp->arg == &retries ? MAX_RETRIES : MAX_ACK_TIMEOUT_US;

	return param_set_uint_minmax(val, kp, 0, most);
}

static const struct kernel_param_ops bounded_ops = {
	.set = bounded_set,
	.get = param_get_uint,
};
module_param_cb(ack_timeout_us, &bounded_ops, &ack_timeout_us, 0644);
MODULE_PARM_DESC(ack_timeout_us, "how long other CPUs may take to stop, in us (0: it depends)");
module_param_cb(retries, &bounded_ops, &retries, 0644);
MODULE_PARM_DESC(retries, "how often a pause that a CPU was late for is tried again");
static unsigned int duty_pct = 10;
module_param(duty_pct, uint, 0644);
MODULE_PARM_DESC(duty_pct, "share of the time that the other CPUs may be stopped for, in percent");

void hvo_get_params(struct hvo_params *params)
{
	*params = (struct hvo_params) {
		.strategy = READ_ONCE(strategy),
		.max_entries = READ_ONCE(max_ptes),
		.budget_us = READ_ONCE(pause_budget_us),
		.ack_timeout_us = READ_ONCE(ack_timeout_us),
		.retries = READ_ONCE(retries),
		.duty_pct = hvo_skip(HVO_HOOK_DUTY) ? 100 : READ_ONCE(duty_pct),
		.pseudo_nmi = system_uses_irq_prio_masking(),
		.guest = !is_hyp_mode_available(),
	};
}

/*
 * Whether all CPUs set the access flag, until hvo_flags_end(). If HVO is on at boot, none that
 * does not ever comes up. Otherwise such a CPU may come up at any time, but not meanwhile.
 */
bool hvo_flags_begin(void)
{
	if (cpus_have_final_cap(ARM64_HW_AF))
		return true;
	if (!arm64_pause_hold_cpus())
		return false;
	/* rule: hvo/late_cpu: an access of a CPU that does not is a fault in the kernel */
	if (cpu_has_hw_af())
		return true;
	arm64_pause_release_cpus();
	return false;
}

void hvo_flags_end(void)
{
	if (!cpus_have_final_cap(ARM64_HW_AF))
		arm64_pause_release_cpus();
}

bool hvo_pauses(void)
{
	return READ_ONCE(strategy) != HVO_UNSAFE;
}

/* Gigantic pages of the command line come into their pools before core_initcall(). */
early_initcall(hvo_rust_init);
