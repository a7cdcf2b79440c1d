// SPDX-License-Identifier: GPL-2.0
#include <linux/compiler.h>
#include "sum.h"

noinline unsigned int many_sum(const unsigned int *numbers, unsigned int count)
{
	unsigned int sum = 0;

	while (count--)
		sum += numbers[count];
	return sum;
}
