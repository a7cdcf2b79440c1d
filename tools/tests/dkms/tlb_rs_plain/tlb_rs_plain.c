// SPDX-License-Identifier: GPL-2.0
/* The least that is a module. */
#include <linux/module.h>

static int __init plain_init(void)
{
	pr_info("tlb_rs_plain: loaded\n");
	return 0;
}
module_init(plain_init);

static void __exit plain_exit(void)
{
	pr_info("tlb_rs_plain: gone\n");
}
module_exit(plain_exit);

MODULE_DESCRIPTION("Test of the headers package: a module of one source");
MODULE_LICENSE("GPL");
