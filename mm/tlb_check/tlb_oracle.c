// SPDX-License-Identifier: GPL-2.0
/*
 * Declares page frames to the stale translation oracle of an emulator, by a marker
 * instruction and a load from the frame.  The offset of the load in the page is the
 * order.  Hardware ignores both.
 */
#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/tlb_oracle.h>

#include "tlb_secondary.h"

#ifdef CONFIG_ARM64
#define ORACLE_OWNED	"hint #102"
#define ORACLE_FREE	"hint #103"
#define ORACLE_LIVE	"hint #104"
#define ORACLE_LOAD	"ldrb %w0, [%1]"
#else
#define ORACLE_OWNED	".byte 0x0f, 0x1f, 0x80; .long 0x746c6203"
#define ORACLE_FREE	".byte 0x0f, 0x1f, 0x80; .long 0x746c6204"
#define ORACLE_LIVE	".byte 0x0f, 0x1f, 0x80; .long 0x746c6205"
#define ORACLE_LOAD	"movzbl (%1), %0"
#endif

/* Aligned, so that the pair does not straddle a page. */
#define oracle_declare(marker, page, order) do {			\
	unsigned int val;						\
									\
	asm volatile(".balign 16\n\t" marker "\n\t" ORACLE_LOAD		\
		     : "=r" (val)					\
		     : "r" ((char *)page_address(page) + (order))	\
		     : "memory");					\
} while (0)

void arch_free_page(struct page *page, int order)
{
	tlb_secondary_free(page_to_pfn(page), order);
	oracle_declare(ORACLE_FREE, page, order);
}

void arch_alloc_page(struct page *page, int order)
{
	oracle_declare(ORACLE_LIVE, page, order);
}

void tlb_oracle_owned(struct page *page, int order)
{
	oracle_declare(ORACLE_OWNED, page, order);
}

void tlb_oracle_free(struct page *page, int order)
{
	oracle_declare(ORACLE_FREE, page, order);
}
