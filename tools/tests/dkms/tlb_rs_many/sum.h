/* SPDX-License-Identifier: GPL-2.0 */
unsigned int many_sum(const unsigned int *numbers, unsigned int count);
