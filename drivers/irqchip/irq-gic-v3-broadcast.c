// SPDX-License-Identifier: GPL-2.0
/*
 * One write for an SGI to all other CPUs (ICC_SGI1R_EL1.IRM), instead of one for each
 * group of 16.
 *
 * It goes to every PE of the system but this one. So all of them have to be online CPUs
 * of this kernel: any other CPU would have it pending when it starts, or be woken by it. In
 * a virtual machine, each write is a trap, and there are no foreign PEs. On bare metal it
 * is one write of some that cost little, hence off by default.
 */

#include <linux/cpumask.h>
#include <linux/init.h>
#include <linux/irqchip/arm-gic-v3.h>
#include <linux/jump_label.h>
#include <linux/kstrtox.h>
#include <linux/smp.h>

#include <asm/arch_gicv3.h>
#include <asm/virt.h>

#include "irq-gic-v3-broadcast.h"

static DEFINE_STATIC_KEY_FALSE(broadcast);
static unsigned int nr_pes __ro_after_init;
static int wanted __ro_after_init = -1;

static int __init broadcast_param(char *buf)
{
	bool on;
	int ret = kstrtobool(buf, &on);

	if (!ret)
		wanted = on;
	return ret;
}
early_param("irqchip.gicv3_broadcast", broadcast_param);

/* For each redistributor of the system. */
int __init gic_broadcast_count_pe(struct redist_region *region, void __iomem *ptr)
{
	nr_pes++;
	return 1;
}

static int __init broadcast_init(void)
{
	if (nr_pes && (wanted > 0 || (wanted < 0 && !is_hyp_mode_available())))
		static_branch_enable(&broadcast);
	return 0;
}
early_initcall(broadcast_init);

/**
 * gic_broadcast_sgi - send an SGI to all other CPUs, if that is what is wanted
 * @mask: the CPUs that are to have it.
 * @sgi: its number.
 *
 * Context: any, with preemption disabled. The caller has ordered its stores, and has to
 * execute an ISB.
 * Return: whether it was sent; if not, nothing was.
 */
bool gic_broadcast_sgi(const struct cpumask *mask, unsigned int sgi)
{
	unsigned int online = num_online_cpus();

	if (!static_branch_unlikely(&broadcast) || online != nr_pes)
		return false;
	if (cpumask_test_cpu(smp_processor_id(), mask) || cpumask_weight(mask) != online - 1)
		return false;

	gic_write_sgi1r(BIT_ULL(ICC_SGI1R_IRQ_ROUTING_MODE_BIT) |
			(u64)sgi << ICC_SGI1R_SGI_ID_SHIFT);
	return true;
}
