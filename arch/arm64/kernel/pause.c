// SPDX-License-Identifier: GPL-2.0
/*
 * Pausing all other CPUs for some microseconds.
 *
 * Some live kernel page table entries can only be changed by break-before-make, and
 * while they are broken nobody may use them. So all other CPUs wait here meanwhile, with
 * everything masked, in code that touches kernel text, their stack and percpu data.
 *
 *   pauser                                   each other CPU, in the IPI
 *   pause_state = release odd, IPI
 *                                            read pause_state: odd
 *                                            mask DAIF
 *                                            pause_ack = release pause_state
 *   acquire all pause_ack == pause_state     wait until pause_state changes
 *   break, TLBI, make, DSB
 *   pause_state = release next even
 *                                            acquire pause_state, ISB
 *
 * The wait for the other CPUs can deadlock where stop_machine() cannot: a CPU that holds a
 * lock for reading stops here, another one waits for this lock with interrupts masked and
 * never gets here. So the wait has a timeout. When it expires, the pauser lets all go
 * on, and has changed nothing. With pseudo-NMIs that happens only if a CPU is in another
 * pseudo-NMI, in firmware, or not scheduled by its hypervisor. A caller that must succeed
 * can use arm64_stop_cpus() then, which waits in threads, and takes as long as they need.
 *
 * What a late CPU acknowledges carries the number of the pause, so that it is never
 * counted for another one. All eight SGIs are taken, hence the request comes with the
 * IPI for backtraces, which looks for one by itself. /proc/interrupts tells them apart.
 */

#include <linux/cpu.h>
#include <linux/cpuhotplug.h>
#include <linux/cpumask.h>
#include <linux/hvo.h>
#include <linux/init.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/seq_file.h>
#include <linux/smp.h>
#include <linux/stop_machine.h>
#include <linux/timekeeping.h>

#include <asm/barrier.h>
#include <asm/daifflags.h>
#include <asm/pause.h>

/* Counts up. Odd: all CPUs but the pauser's are to stop. */
static u32 pause_state ____cacheline_aligned_in_smp;
/* The last value of pause_state that the CPU stopped for. */
static DEFINE_PER_CPU_ALIGNED(u32, pause_ack);

static DEFINE_MUTEX(pause_mutex);
/* Under the mutex: CPUs on their way up or down, see transit_begins(). */
static unsigned int cpus_in_transit;
static cpumask_t pause_mask;
static unsigned int nr_paused;

static bool abandoned;
/* The CPU that all other CPUs wait for, by interrupt or in threads, or -1. */
static int pause_owner = -1;
static bool hotplug_known __ro_after_init;

/*
 * noinstr functions are __flatten, because clang would not inline an inline function into
 * them, which is in .text then, where a kprobe can be. It does not reach what those call:
 * hence no smp_cond_load_acquire().
 */

/* The priority mask stays as it is. local_daif_save() would change it, and is traced. */
static __always_inline unsigned long mask_all(void)
{
	unsigned long flags = read_sysreg(daif);

	asm volatile("msr daifset, #0xf" : : : "memory");
	return flags;
}

#ifdef CONFIG_HVO_FAULT_INJECTION
u32 arm64_pause_deaf_cpu = U32_MAX;

static __always_inline bool is_deaf(void)
{
	return raw_smp_processor_id() == READ_ONCE(arm64_pause_deaf_cpu);
}
#else
static __always_inline bool is_deaf(void)
{
	return false;
}
#endif

/* Only in the IPI for backtraces. */
void noinstr __flatten arm64_pause_local_cpu(void)
{
	/* What is used later is ordered by the second load. */
	u32 state = READ_ONCE(pause_state);
	unsigned long flags;

	if (!(state & 1) || is_deaf())
		return;

	/* This may be a pseudo-NMI. */
	flags = mask_all();
	/* Whatever was read or written through the entries is done. */
	smp_store_release(raw_cpu_ptr(&pause_ack), state);
	/* The entries, as they are now. */
	while (smp_load_acquire(&pause_state) == state)
		cpu_relax();
	/* rule: hvo/visible: what was fetched ahead may have met the broken entries */
	isb();
	write_sysreg(flags, daif);
}

/**
 * arm64_pause_abandon - let all CPUs go on because this one will not
 *
 * For a CPU that panics, so that the other CPUs can be stopped and saved. Any context.
 */
void arm64_pause_abandon(void)
{
	u32 state = READ_ONCE(pause_state);

	/* rule: hvo/abandon: a CPU that waits here can neither be stopped nor saved */
	if (hvo_skip(HVO_HOOK_ABANDON))
		return;
	/* Those that wait in threads. */
	smp_store_release(&abandoned, true);
	/* Unless the pauser just did. */
	if (state & 1)
		cmpxchg_release(&pause_state, state, state + 1);
}

/**
 * arm64_pause_is_mine - whether the other CPUs wait for this one
 *
 * For die(): a task that dies here would never let them go on, and everything would hang
 * without a word. Any context.
 */
bool arm64_pause_is_mine(void)
{
	/* rule: hvo/die: the other CPUs would wait for ever */
	return READ_ONCE(pause_owner) == raw_smp_processor_id() && !hvo_skip(HVO_HOOK_DIE);
}

/* Interrupts that were for no backtrace, be it that they came too late for their pause. */
static DEFINE_PER_CPU(unsigned int, pause_ipis);

void arm64_pause_count_ipi(void)
{
	this_cpu_inc(pause_ipis);
}

unsigned int arm64_pause_ipis(unsigned int cpu)
{
	return READ_ONCE(per_cpu(pause_ipis, cpu));
}

void arm64_pause_show_interrupts(struct seq_file *p, int prec)
{
	unsigned int cpu;

	seq_printf(p, "%*s: ", prec, "PAU");
	for_each_online_cpu(cpu)
		seq_printf(p, "%10u ", arm64_pause_ipis(cpu));
	seq_puts(p, " CPU pause interrupts\n");
}

/*
 * Returns the first CPU that has not stopped, or nr_cpu_ids. for_each_cpu() would call
 * functions where a mask has more than one word.
 */
static __always_inline unsigned int first_running(u32 state)
{
	unsigned int cpu;

	for (cpu = 0; cpu < nr_cpu_ids; cpu++) {
		if (!arch_test_bit(cpu, cpumask_bits(&pause_mask)))
			continue;
		/* What that CPU did before it stopped. */
		if (smp_load_acquire(per_cpu_ptr(&pause_ack, cpu)) != state)
			break;
	}
	return cpu;
}

/**
 * arm64_pause_cpus - stop all other CPUs where they are
 * @pause: what is wanted, and what came of it.
 *
 * If it returns 0, no other CPU accesses memory or takes an interrupt until
 * arm64_resume_cpus(), and this one has all exceptions masked: until then it must be
 * short, and must not sleep, print, trace or touch what a stopped CPU may hold locked. What the
 * other CPUs did before is visible here.
 *
 * Context: may sleep. The caller holds no spinlock, since another CPU may be waiting for
 * it with interrupts masked; the CPU hotplug lock may be held for reading or not.
 * Return: 0; -EAGAIN if a CPU did not stop in time, and all go on; -EBUSY if a CPU is
 * coming up or going down.
 */
int arm64_pause_cpus(struct arm64_pause *pause)
{
	unsigned int cpu;
	u32 state;

	pause->missing = -1;
	pause->nr_cpus = 0;
	pause->ack_ns = 0;
	pause->paused_ns = 0;

	mutex_lock(&pause_mutex);
	/* rule: hvo/transit: a CPU may run that the online mask does not have */
	if ((cpus_in_transit && !hvo_skip(HVO_HOOK_TRANSIT)) || !hotplug_known) {
		mutex_unlock(&pause_mutex);
		return -EBUSY;
	}

	preempt_disable();
	cpumask_copy(&pause_mask, cpu_online_mask);
	cpumask_clear_cpu(smp_processor_id(), &pause_mask);
	nr_paused = cpumask_weight(&pause_mask);
	pause->nr_cpus = nr_paused;

	pause->daif = local_daif_save();
	/* The monotonic clock may step back when NTP slows it down. */
	pause->begin = ktime_get_raw_fast_ns();
	state = pause_state + 1;
	pause->state = state;
	WRITE_ONCE(pause_owner, smp_processor_id());
	/* A CPU may miss the end of the last pause, and go on because of this store. */
	smp_store_release(&pause_state, state);
	/* Before the IPI: that of GICv3 comes after such a barrier, that of GICv5 does not. */
	dsb(ishst);
	if (pause->nr_cpus)
		arm64_send_pause_ipi(&pause_mask);

	for (;;) {
		cpu = first_running(state);
		pause->ack_ns = ktime_get_raw_fast_ns() - pause->begin;
		/* rule: hvo/ack: a CPU that runs may use a broken entry */
		if (cpu >= nr_cpu_ids || hvo_skip(HVO_HOOK_ACK))
			return 0;
		/* rule: hvo/timeout: that CPU may wait for a lock that a stopped one has */
		if (pause->ack_ns > pause->timeout_ns)
			break;
		cpu_relax();
	}

	pause->missing = cpu;
	arm64_resume_cpus(pause);
	return -EAGAIN;
}

/**
 * arm64_resume_cpus - let the other CPUs go on
 * @pause: as given to arm64_pause_cpus(), which returned 0.
 *
 * They see what this CPU has written meanwhile.
 */
void arm64_resume_cpus(struct arm64_pause *pause)
{
	/* The entries, before the other CPUs go on to use them. */
	smp_store_release(&pause_state, pause->state + 1);
	pause->paused_ns = ktime_get_raw_fast_ns() - pause->begin - pause->ack_ns;
	WRITE_ONCE(pause_owner, -1);
	local_daif_restore(pause->daif);
	preempt_enable();
	mutex_unlock(&pause_mutex);
}

static bool stopped_in_threads;

/*
 * Whether all other CPUs have stopped, as seen by the one that wanted it; nor has one come
 * that was not asked to.
 */
bool noinstr __flatten arm64_cpus_are_stopped(void)
{
	u32 state = READ_ONCE(pause_state);

	return stopped_in_threads ||
	       ((state & 1) && first_running(state) >= nr_cpu_ids &&
		nr_paused + 1 == num_online_cpus());
}

struct stop {
	void (*fn)(void *arg);
	void *arg;
	atomic_t arrived;
	unsigned int cpus;
	bool done;
};

static int noinstr __flatten stop_fn(void *arg)
{
	struct stop *stop = arg;
	unsigned long flags;

	/* stop_machine() itself masks no pseudo-NMI. */
	flags = mask_all();
	if (raw_atomic_inc_return(&stop->arrived) == stop->cpus) {
		stopped_in_threads = true;
		WRITE_ONCE(pause_owner, raw_smp_processor_id());
		stop->fn(stop->arg);
		WRITE_ONCE(pause_owner, -1);
		stopped_in_threads = false;
		/* As in arm64_resume_cpus(). */
		smp_store_release(&stop->done, true);
	} else {
		/* As in arm64_pause_local_cpu(). */
		while (!smp_load_acquire(&stop->done) && !smp_load_acquire(&abandoned))
			cpu_relax();
		isb();
	}
	write_sysreg(flags, daif);
	return 0;
}

/**
 * arm64_stop_cpus - call a function while all other CPUs are stopped in a thread
 * @fn: what to do, under the rules of arm64_pause_cpus().
 * @arg: for it.
 *
 * Cannot be held up by locks, and cannot be cancelled. Takes as long as it takes until
 * each CPU has scheduled its stopper, from a hundred microseconds to some milliseconds.
 *
 * Context: may sleep. The CPU hotplug lock may be held for reading or not.
 * Return: 0; -EBUSY, without a call, if a task waits for the CPU hotplug lock: it must not
 * be taken twice then.
 */
int arm64_stop_cpus(void (*fn)(void *arg), void *arg)
{
	struct stop stop = { .fn = fn, .arg = arg };
	int ret;

	if (!cpus_read_trylock())
		return -EBUSY;
	stop.cpus = num_online_cpus();
	ret = stop_machine_cpuslocked(stop_fn, &stop, cpu_online_mask);
	cpus_read_unlock();
	return ret;
}

/*
 * A CPU on its way up or down runs kernel code, but is not always in the online mask.
 * Before it is, and until after it has gone, nobody pauses.
 */
static int transit_begins(unsigned int cpu)
{
	/* rule: hvo/transit: it may run before it is in the online mask */
	guard(mutex)(&pause_mutex);
	cpus_in_transit++;
	return 0;
}

static int transit_ends(unsigned int cpu)
{
	/* rule: hvo/transit: it is in the mask, or has gone */
	guard(mutex)(&pause_mutex);
	cpus_in_transit--;
	return 0;
}

/**
 * arm64_pause_hold_cpus - keep CPUs from coming up and going down
 *
 * Context: may sleep. The CPU hotplug lock may be held for reading or not.
 * Return: whether no CPU does, until arm64_pause_release_cpus(). Nobody can pause meanwhile.
 */
bool arm64_pause_hold_cpus(void)
{
	mutex_lock(&pause_mutex);
	if (!cpus_in_transit && hotplug_known)
		return true;
	mutex_unlock(&pause_mutex);
	return false;
}

void arm64_pause_release_cpus(void)
{
	mutex_unlock(&pause_mutex);
}

static int __init pause_init(void)
{
	int ret;

	ret = cpuhp_setup_state_nocalls(CPUHP_BP_PREPARE_DYN, "arm64/pause:prepare",
					transit_begins, transit_ends);
	if (ret < 0)
		return ret;
	ret = cpuhp_setup_state_nocalls(CPUHP_AP_ONLINE_DYN, "arm64/pause:online",
					transit_ends, transit_begins);
	if (ret < 0)
		return ret;
	hotplug_known = true;
	return 0;
}
early_initcall(pause_init);
