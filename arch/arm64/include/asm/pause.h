/* SPDX-License-Identifier: GPL-2.0 */
/* Pausing all other CPUs, see arch/arm64/kernel/pause.c. */
#ifndef __ASM_PAUSE_H
#define __ASM_PAUSE_H

#include <linux/types.h>

struct cpumask;
struct seq_file;

/**
 * struct arm64_pause - one pause, on the stack of the pauser
 * @timeout_ns: for how long to wait for the other CPUs.
 * @ack_ns: from the request until the last CPU had stopped.
 * @paused_ns: from then until they were told to go on.
 * @nr_cpus: how many stopped.
 * @missing: a CPU that did not in time, or -1.
 */
struct arm64_pause {
	u64 timeout_ns;
	u64 ack_ns;
	u64 paused_ns;
	unsigned int nr_cpus;
	int missing;
	/* private: */
	u64 begin;
	unsigned long daif;
	u32 state;
};

#ifdef CONFIG_ARM64_PAUSE_REMOTE_CPUS
int arm64_pause_cpus(struct arm64_pause *pause);
void arm64_resume_cpus(struct arm64_pause *pause);
int arm64_stop_cpus(void (*fn)(void *arg), void *arg);
bool arm64_cpus_are_stopped(void);
bool arm64_pause_hold_cpus(void);
void arm64_pause_release_cpus(void);

/* Called by smp.c. */
void arm64_pause_local_cpu(void);
void arm64_pause_abandon(void);
void arm64_pause_count_ipi(void);
unsigned int arm64_pause_ipis(unsigned int cpu);
void arm64_pause_show_interrupts(struct seq_file *p, int prec);

/* Called by traps.c. */
bool arm64_pause_is_mine(void);

/* arch/arm64/kernel/smp.c */
void arm64_send_pause_ipi(const struct cpumask *mask);

#ifdef CONFIG_HVO_FAULT_INJECTION
/* A CPU that does not answer. */
extern u32 arm64_pause_deaf_cpu;
#endif
#else
static inline void arm64_pause_local_cpu(void) { }
static inline void arm64_pause_abandon(void) { }
static inline void arm64_pause_count_ipi(void) { }
static inline unsigned int arm64_pause_ipis(unsigned int cpu) { return 0; }
static inline void arm64_pause_show_interrupts(struct seq_file *p, int prec) { }
static inline bool arm64_pause_is_mine(void) { return false; }
#endif

#endif /* __ASM_PAUSE_H */
