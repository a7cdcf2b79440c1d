/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Bare-metal test images for the meter: QEMU's "virt" board, EL1, 4 KiB pages.
 * One TEST_* macro selects the image. RAM starts at 1 GiB, and is mapped at
 * its physical address (user half) and at LINEAR + address (kernel half).
 * The page under test is at TEST_VA.
 */
#define LINEAR		0xffff000000000000
#define TEST_VA		0x80000000
#define FRAME_A		0x44000000
#define FRAME_B		0x44001000

#define NORMAL_BLOCK	0x701	/* AF, inner shareable, attribute 0, block */
#define NORMAL_PAGE	0x743	/* the same, page; EL0 too */

	.macro	map pa
	mov_q	x0, \pa | NORMAL_PAGE
	adrp	x1, ptes
	str	x0, [x1]
	dsb	ishst
	isb
	.endm

	.macro	mov_q reg, val
	movz	\reg, #((\val) & 0xffff)
	movk	\reg, #((\val) >> 16 & 0xffff), lsl #16
	movk	\reg, #((\val) >> 32 & 0xffff), lsl #32
	movk	\reg, #((\val) >> 48 & 0xffff), lsl #48
	.endm

	/* mark: 102 OWNED, 103 FREE, 104 LIVE */
	.macro	declare mark, pa, order
	mov_q	x0, LINEAR + \pa + \order
	.balign	8
	hint	#\mark
	ldrb	w1, [x0]
	.endm

	/* An access that is to be reported has a label, badN. */
	.macro	touch, va, label
	mov_q	x2, \va
\label	ldr	x3, [x2]
	.endm

	.macro	store, va, label
	mov_q	x2, \va
\label	str	x3, [x2]
	.endm

	.macro	flush
	mov_q	x0, TEST_VA >> 12
	dsb	ishst
	tlbi	vaae1is, x0
	dsb	ish
	isb
	.endm

	.text
	.globl	_start
_start:
	/* level 0 of both halves: entry 0 */
	adrp	x0, pgd0
	adrp	x1, pud0
	orr	x1, x1, #3
	str	x1, [x0]
	adrp	x0, pgd1
	adrp	x1, pud1
	orr	x1, x1, #3
	str	x1, [x0]
	/* level 1: RAM by a block; TEST_VA by tables */
	mov_q	x2, 0x40000000 | NORMAL_BLOCK
	adrp	x0, pud0
	str	x2, [x0, #8]
	adrp	x1, pud1
	str	x2, [x1, #8]
	adrp	x1, pmd0
	orr	x1, x1, #3
	str	x1, [x0, #16]
	adrp	x0, pmd0
	adrp	x1, ptes
	orr	x1, x1, #3
	str	x1, [x0]
	bl	mmu_on
	b	test

	/* An unexpected exception ends the run, short of what it was to do. */
	.balign	2048
vectors:
	.rept	16
	b	poweroff
	.balign	128
	.endr

mmu_on:
	adr	x0, vectors
	msr	vbar_el1, x0
	mov	x0, #0xff
	msr	mair_el1, x0
	/* 48 bits, 4 KiB, inner shareable write-back walks, both halves; 40-bit PA */
	mov_q	x0, (2 << 32) | (2 << 30) | (0x35 << 24) | (16 << 16) | (0x35 << 8) | 16
	msr	tcr_el1, x0
	adrp	x0, pgd0
	msr	ttbr0_el1, x0
	adrp	x0, pgd1
	msr	ttbr1_el1, x0
	dsb	sy
	isb
	mrs	x0, sctlr_el1
	mov	x1, #0x1005	/* M, C, I */
	orr	x0, x0, x1
	msr	sctlr_el1, x0
	isb
	ret

poweroff:
	mov_q	x0, 0x84000008
	hvc	#0
	b	.

test:

#ifdef TEST_COUNTS
	mov	x5, #0

	/* Outside of any region: must not count. */
	tlbi	vmalle1is
	dsb	ish
	msr	icc_sgi1r_el1, x5

	/* Region 0: the kinds of TLBI. va 7, range 3, asid 3, all 5 */
	hint	#100
	tlbi	vae1is, x5
	tlbi	vae1, x5
	tlbi	vaae1is, x5
	tlbi	vaae1, x5
	tlbi	vale1is, x5
	tlbi	vaale1is, x5
	tlbi	vae1os, x5
	tlbi	rvae1is, x5
	tlbi	rvale1is, x5
	tlbi	rvaale1, x5
	tlbi	aside1is, x5
	tlbi	aside1, x5
	tlbi	aside1os, x5
	tlbi	vmalle1is
	tlbi	vmalle1is
	tlbi	vmalle1
	tlbi	vmalle1
	tlbi	vmalle1os
	hint	#101

	dsb	sy

	/* Region 1: barriers and SGIs, in a loop and with branches. */
	hint	#100
	mov	x6, #100
1:	dsb	ishst
	cbz	x6, 2f
	dsb	ish
	sub	x6, x6, #1
	b	1b
2:	dsb	sy
	dsb	nsh
	dsb	ishld
	dsb	osh
	dmb	ish
	dmb	ishst
	isb
	msr	icc_sgi1r_el1, x5
	msr	icc_sgi1r_el1, x5
	msr	icc_asgi1r_el1, x5
	msr	sp_el0, x1
	msr	sp_el0, x28
	msr	sp_el0, x1
	hint	#101

	/* Region 2: instructions, here. 3 + 1000 * 2 */
	hint	#100
	nop
	mov	x6, #1000
1:	subs	x6, x6, #1
	b.ne	1b
	nop
	hint	#101

	/* Region 3: instructions, in the kernel half: 1 here, 1 + 20 * 2 + 1 there, 1 here */
	mov_q	x7, LINEAR
	adr	x8, 3f
	add	x7, x7, x8
	adr	x9, 4f
	hint	#100
	br	x7
3:	mov	x6, #20
1:	subs	x6, x6, #1
	b.ne	1b
	br	x9
4:	nop
	hint	#101

	/* Region 4, with region 5 inside: 1 + 2 and 2 */
	hint	#100
	tlbi	vae1is, x5
	hint	#100
	tlbi	vae1is, x5
	tlbi	vae1is, x5
	hint	#101
	hint	#101
	/* A stop too many, then region 6, empty and left open. */
	hint	#101
	hint	#100
	b	poweroff
#endif

#ifdef TEST_SMP
	/* Both CPUs execute their share of each round inside one region. */
#define ROUNDS	200
	mov_q	x0, 0xc4000003		/* PSCI CPU_ON */
	mov	x1, #1
	adr	x2, second
	mov	x3, #0
	hvc	#0
	adrp	x10, turn
	mov	x5, #0
	mov	x6, #ROUNDS
	/* CPU 1 is up before the region starts. */
1:	ldar	x7, [x10]
	cbz	x7, 1b
	hint	#100
	add	x11, x10, #8
	mov	x7, #1
	stlr	x7, [x11]
1:	tlbi	vae1is, x5
	dsb	ishst
	subs	x6, x6, #1
	b.ne	1b
	/* Wait for the other's last. */
1:	ldar	x7, [x10]
	cmp	x7, #2
	b.ne	1b
	hint	#101
	b	poweroff

second:
	bl	mmu_on
	adrp	x10, turn
	add	x11, x10, #8
	mov	x7, #1
	stlr	x7, [x10]
1:	ldar	x7, [x11]
	cbz	x7, 1b
	mov	x5, #0
	mov	x6, #ROUNDS
1:	tlbi	aside1is, x5
	tlbi	vae1, x5
	dsb	ish
	msr	icc_sgi1r_el1, x5
	subs	x6, x6, #1
	b.ne	1b
	mov	x7, #2
	stlr	x7, [x10]
1:	wfi
	b	1b
#endif

#ifdef TEST_STALE		/* no invalidation: an error */
	map	FRAME_A
	touch	TEST_VA
	map	FRAME_B
	declare	103, FRAME_A, 0
	touch	TEST_VA + 0x128, bad1:
	b	poweroff
#endif

#ifdef TEST_FLUSHED		/* the control */
	map	FRAME_A
	touch	TEST_VA
	map	FRAME_B
	flush
	declare	103, FRAME_A, 0
	touch	TEST_VA + 0x128
	b	poweroff
#endif

#ifdef TEST_OWNED		/* loads are allowed, stores are not */
	map	FRAME_A
	touch	TEST_VA
	declare	102, FRAME_A, 0
	touch	TEST_VA + 8
	store	TEST_VA + 16, bad1:
bad2:	ldadd	x3, x4, [x2]
	b	poweroff
#endif

#ifdef TEST_LIVE		/* FREE of 4 frames, then LIVE again of 2 of them */
	declare	103, FRAME_A, 2
	declare	104, FRAME_A, 1
	map	FRAME_A
	touch	TEST_VA
	store	TEST_VA
	/* the last byte of the frame before the freed one: allowed */
	map	FRAME_B
	flush
	touch	TEST_VA + 0xff8
	/* through the linear address: allowed, whatever the state */
	touch	LINEAR + FRAME_A + 0x2000
	map	FRAME_A + 0x3000
	flush
	touch	TEST_VA + 0x40, bad1:
	/* one frame past what was declared */
	map	FRAME_A + 0x4000
	flush
	touch	TEST_VA
	b	poweroff
#endif

#ifdef TEST_FORMS		/* every form of access reports: pair, atomic, straddling */
	map	FRAME_A
	touch	TEST_VA
	declare	103, FRAME_A, 0
	mov_q	x2, TEST_VA
bad1:	ldp	x3, x4, [x2, #0x20]
	mov	x3, #1
bad2:	ldadd	x3, x4, [x2]
bad3:	ldtrb	w3, [x2, #0x30]
	/* from the frame before, over the page's end */
	mov_q	x2, TEST_VA + 0x1000
	mov_q	x0, FRAME_A | NORMAL_PAGE
	adrp	x1, ptes
	str	x0, [x1, #8]
	mov_q	x0, FRAME_B | NORMAL_PAGE
	str	x0, [x1]
	flush
	dsb	ishst
	isb
bad4:	ldur	x3, [x2, #-4]
	b	poweroff
#endif

#ifdef TEST_NODES		/* a frame in each of two memory nodes of 128 MiB */
	declare	103, FRAME_A, 0
	declare	102, FRAME_A + 0x8000000, 0
	declare	104, FRAME_A + 0x10000, 3
	b	poweroff
#endif

#ifdef TEST_SPLIT		/* the marker ends its translation block: a page end */
	map	FRAME_A
	touch	TEST_VA
	mov_q	x0, LINEAR + FRAME_A
	adr	x30, 1f
	b	mark
1:	touch	TEST_VA, bad1:
	/* Reached without its marker, the load declares nothing. */
	map	FRAME_B
	flush
	mov_q	x0, LINEAR + FRAME_B
	adr	x30, 1f
	b	load
1:	touch	TEST_VA
	b	poweroff
	.balign	4096
	.skip	4092
mark:	hint	#103
load:	ldrb	w1, [x0]
	ret
#endif

	.bss
	.balign	4096
pgd0:	.skip	4096
pgd1:	.skip	4096
pud0:	.skip	4096
pud1:	.skip	4096
pmd0:	.skip	4096
ptes:	.skip	4096
turn:	.skip	4096
