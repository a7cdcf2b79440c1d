// SPDX-License-Identifier: GPL-2.0
/* Memory tiers where all memory is alike: the command line says which nodes are slow. */
#include <linux/init.h>
#include <linux/mm.h>
#include <linux/memory-tiers.h>
#include <linux/nodemask.h>
#include <linux/notifier.h>

/* As far away as memory that device drivers add and nothing is known of. */
#define SLOW_ADISTANCE	(MEMTIER_ADISTANCE_DRAM * 5)

static nodemask_t slow_nodes;

static int __init slow_nodes_parse(char *list)
{
	return nodelist_parse(list, slow_nodes);
}
early_param("tlb_slow_nodes", slow_nodes_parse);

static int slow_nodes_adistance(struct notifier_block *nb, unsigned long nid, void *adistance)
{
	if (!node_isset(nid, slow_nodes))
		return NOTIFY_OK;
	*(int *)adistance = SLOW_ADISTANCE;
	return NOTIFY_STOP;
}

static struct notifier_block slow_nodes_block = {
	.notifier_call	= slow_nodes_adistance,
	.priority	= INT_MAX,
};

/* Before memory_tier_late_init() asks. */
static int __init slow_nodes_init(void)
{
	return nodes_empty(slow_nodes) ? 0 : register_mt_adistance_algorithm(&slow_nodes_block);
}
device_initcall(slow_nodes_init);
