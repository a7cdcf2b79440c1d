// SPDX-License-Identifier: GPL-2.0
/* Reads instructions as hex bytes, one a line, and prints the class of each. */
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decode.h"

static const char * const names[] = {
	[INSN_OTHER] = "other",
	[TLBI_VA] = "tlbi_va", [TLBI_RANGE] = "tlbi_range",
	[TLBI_ASID] = "tlbi_asid", [TLBI_ALL] = "tlbi_all",
	[DSB_ISHST] = "dsb_ishst", [DSB_ISH] = "dsb_ish", [DSB_OTHER] = "dsb_other",
	[SGI] = "sgi", [TASK_SWITCH] = "task_switch",
	[INVLPG] = "invlpg", [INVPCID] = "invpcid", [MOV_CR3] = "mov_cr3",
	[ICR_WRITE] = "icr_write",
	[MARK_START] = "start", [MARK_STOP] = "stop",
	[MARK_OWNED] = "owned", [MARK_FREE] = "free", [MARK_LIVE] = "live",
	[STORE32] = "store32",
};

int main(int argc, char **argv)
{
	char line[80];

	if (argc != 2)
		return 2;

	while (fgets(line, sizeof(line), stdin)) {
		unsigned int byte;
		__u8 insn[16];
		size_t n = 0;
		__u32 word;
		int used;
		char *p;

		for (p = line; n < sizeof(insn) && sscanf(p, "%x%n", &byte, &used) == 1; p += used)
			insn[n++] = byte;
		if (!strcmp(argv[1], "arm64")) {
			memcpy(&word, insn, sizeof(word));
			puts(names[decode_arm64(le32toh(word))]);
		} else {
			puts(names[decode_x86(insn, n)]);
		}
	}
	return 0;
}
