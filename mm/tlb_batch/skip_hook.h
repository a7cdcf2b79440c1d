/* SPDX-License-Identifier: GPL-2.0 */
/* For mm/hvo/hvo_debug.c, which includes this one. */
#include "../tlb_check/skip_hook.h"
