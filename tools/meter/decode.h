/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What an instruction is to the meter, from its bytes alone. Free of QEMU, so
 * that the self-test compares it with what an assembler says.
 */
#ifndef TLB_METER_DECODE_H
#define TLB_METER_DECODE_H

#include <stdbool.h>
#include <stddef.h>
#include <linux/types.h>

enum insn_class {
	INSN_OTHER,
	/* counted, arm64 */
	TLBI_VA, TLBI_RANGE, TLBI_ASID, TLBI_ALL,
	DSB_ISHST, DSB_ISH, DSB_OTHER, SGI, TASK_SWITCH,
	/* counted, x86_64; ICR_WRITE is recognised by address, not by decoding */
	INVLPG, INVPCID, MOV_CR3, ICR_WRITE,
	NR_COUNTERS,
	/* markers */
	MARK_START = NR_COUNTERS, MARK_STOP, MARK_OWNED, MARK_FREE, MARK_LIVE,
	/* x86_64: may store 32 bits to memory, so may write the local APIC */
	STORE32,
};

static inline enum insn_class decode_tlbi(unsigned int crm, unsigned int op2)
{
	switch (crm) {
	case 0:		/* stage 2, by IPA */
		return (op2 & 3) == 2 ? TLBI_RANGE : TLBI_VA;
	case 4:
		return op2 & 2 ? TLBI_RANGE : TLBI_VA;
	case 2:
	case 5:
	case 6:
		return TLBI_RANGE;
	}
	/* 1: outer shareable, 3: inner shareable, 7: this CPU */
	if (op2 & 1)
		return TLBI_VA;
	return op2 == 2 ? TLBI_ASID : TLBI_ALL;
}

static inline enum insn_class decode_arm64(__u32 insn)
{
	unsigned int crn = insn >> 12 & 15, crm = insn >> 8 & 15, op2 = insn >> 5 & 7;

	/* Everything of interest is in the system instruction space. */
	if (insn >> 22 != 0xd5000000 >> 22)
		return INSN_OTHER;

	/* HINT #imm7: imm7 is CRm:op2 */
	if ((insn & 0xfffff01f) == 0xd503201f) {
		switch (crm << 3 | op2) {
		case 100:
			return MARK_START;
		case 101:
			return MARK_STOP;
		case 102:
			return MARK_OWNED;
		case 103:
			return MARK_FREE;
		case 104:
			return MARK_LIVE;
		}
		return INSN_OTHER;
	}

	if ((insn & 0xfffff0ff) == 0xd503309f) {
		/* CRm 0 and 4 are SSBB and PSSBB, not DSB */
		if ((crm & 11) == 0)
			return INSN_OTHER;
		return crm == 10 ? DSB_ISHST : crm == 11 ? DSB_ISH : DSB_OTHER;
	}
	/* DSB <option>nXS */
	if ((insn & 0xfffff3ff) == 0xd503323f)
		return DSB_OTHER;

	/* SYS #op1, C8 (TLBI) or C9 (TLBI with nXS), any op1 */
	if ((insn & 0xfff80000) == 0xd5080000 && (crn == 8 || (crn == 9 && crm < 8)))
		return crm < 8 ? decode_tlbi(crm, op2) : INSN_OTHER;

	/* MSR ICC_SGI1R_EL1, ICC_ASGI1R_EL1, ICC_SGI0R_EL1 */
	if ((insn & 0xffffff00) == 0xd518cb00 && op2 >= 5)
		return SGI;

	/* MSR SP_EL0, X1: the new current task; the entry code sets it from other registers */
	if (insn == 0xd5184101)
		return TASK_SWITCH;

	return INSN_OTHER;
}

static inline bool x86_is_prefix(__u8 b)
{
	switch (b) {
	case 0x26: case 0x2e: case 0x36: case 0x3e: case 0x64: case 0x65:
	case 0x66: case 0x67: case 0xf0: case 0xf2: case 0xf3:
		return true;
	}
	return false;
}

static inline enum insn_class decode_x86_nopl(const __u8 *p)
{
	/* nopl 0x746c62NN(%rax) */
	if (p[2] != 0x80 || p[4] != 0x62 || p[5] != 0x6c || p[6] != 0x74)
		return INSN_OTHER;
	switch (p[3]) {
	case 1:
		return MARK_START;
	case 2:
		return MARK_STOP;
	case 3:
		return MARK_OWNED;
	case 4:
		return MARK_FREE;
	case 5:
		return MARK_LIVE;
	}
	return INSN_OTHER;
}

static inline enum insn_class decode_x86(const __u8 *p, size_t len)
{
	const __u8 *end = p + len;
	bool opsize = false;
	__u8 rex = 0;
	bool mem;

	if (len == 7 && p[0] == 0x0f && p[1] == 0x1f)
		return decode_x86_nopl(p);

	for (; p < end && x86_is_prefix(*p); p++)
		if (*p == 0x66)
			opsize = true;
	/*
	 * 0x40..0x4f are whole instructions outside 64-bit mode, so that
	 * nothing is left to decode after them there.
	 */
	if (p < end && (*p & 0xf0) == 0x40)
		rex = *p++;
	if (end - p < 2)
		return INSN_OTHER;
	mem = p[1] < 0xc0;

	switch (p[0]) {
	case 0x87: case 0x89: case 0xc7:	/* XCHG, MOV r32, MOV imm32 */
		return mem && !opsize && !(rex & 8) ? STORE32 : INSN_OTHER;
	case 0x0f:
		break;
	default:
		return INSN_OTHER;
	}

	if (end - p < 3)
		return INSN_OTHER;
	mem = p[2] < 0xc0;

	switch (p[1]) {
	case 0x01:	/* group 7 */
		return mem && (p[2] >> 3 & 7) == 7 ? INVLPG : INSN_OTHER;
	case 0x22:	/* MOV to CRn; REX.R selects CR8 and above */
		return (p[2] >> 3 & 7) == 3 && !(rex & 4) ? MOV_CR3 : INSN_OTHER;
	case 0x38:
		if (end - p < 4)
			return INSN_OTHER;
		return opsize && p[2] == 0x82 && p[3] < 0xc0 ? INVPCID : INSN_OTHER;
	}
	return INSN_OTHER;
}

#endif /* TLB_METER_DECODE_H */
