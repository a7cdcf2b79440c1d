// SPDX-License-Identifier: GPL-2.0
/* Of two sources; its dkms.conf wants another module to be built first. */
#include <linux/kernel.h>
#include <linux/module.h>
#include "sum.h"

static unsigned int numbers[8];
static unsigned int count;
module_param_array(numbers, uint, &count, 0444);
MODULE_PARM_DESC(numbers, "to be added up");

static int __init many_init(void)
{
	pr_info("tlb_rs_many: the sum is %u\n", many_sum(numbers, count));
	return 0;
}
module_init(many_init);

static void __exit many_exit(void)
{
	pr_info("tlb_rs_many: gone\n");
}
module_exit(many_exit);

MODULE_DESCRIPTION("Test of the headers package: a module of two sources");
MODULE_LICENSE("GPL");
