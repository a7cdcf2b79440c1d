/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _IRQ_GIC_V3_BROADCAST_H
#define _IRQ_GIC_V3_BROADCAST_H

#include <linux/types.h>

struct cpumask;
struct redist_region;

#ifdef CONFIG_ARM_GIC_V3_BROADCAST
int gic_broadcast_count_pe(struct redist_region *region, void __iomem *ptr);
bool gic_broadcast_sgi(const struct cpumask *mask, unsigned int sgi);
#else
static inline int gic_broadcast_count_pe(struct redist_region *region, void __iomem *ptr)
{
	return 0;
}

static inline bool gic_broadcast_sgi(const struct cpumask *mask, unsigned int sgi)
{
	return false;
}
#endif

#endif /* _IRQ_GIC_V3_BROADCAST_H */
