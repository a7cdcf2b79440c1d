/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Bare-metal test images for the meter: multiboot, then long mode, 4 KiB pages.
 * One TEST_* macro selects the image. The first GiB of RAM is mapped at its
 * physical address (user half) and at LINEAR + address (kernel half), the local
 * APIC at its own. The page under test is at TEST_VA.
 */
#define LINEAR		0xffff800000000000
#define TEST_VA		0x40000000
#define FRAME_A		0x2000000
#define FRAME_B		0x2001000
#define APIC		0xfee00000
#define TRAMPOLINE	0x8000

	/* 1 start, 2 stop, 3 OWNED, 4 FREE, 5 LIVE */
	.macro	mark n
	nopl	0x746c6200+\n(%rax)
	.endm

	.macro	declare n, pa, order
	movabsq	$LINEAR + \pa + \order, %rdi
	.balign	16
	mark	\n
	movb	(%rdi), %al
	.endm

	.macro	map pa
	movq	$(\pa) + 3, pt
	.endm

	/* An access that is to be reported has a label, badN. */
	.macro	touch va, label
	movabsq	$\va, %rsi
\label	movq	(%rsi), %rdx
	.endm

	.macro	store va, label
	movabsq	$\va, %rsi
\label	movq	%rdx, (%rsi)
	.endm

	.macro	flush
	invlpg	TEST_VA
	.endm

	.text
	.balign	4
	.long	0x1badb002, 0, -0x1badb002

	.code32
	.globl	_start
_start:
	movl	$pdpt0 + 3, pml4
	movl	$pdpt1 + 3, pml4 + 0x800
	movl	$0x83, pdpt0
	movl	$0x83, pdpt1
	movl	$pd + 3, pdpt0 + 8
	movl	$0xc0000083, pdpt0 + 24
	movl	$pt + 3, pd
	movl	$test, %edi

	/* Continues in long mode at %edi. */
long_mode:
	lgdt	gdtr
	movl	%cr4, %eax
	orl	$0x20, %eax		/* PAE */
	movl	%eax, %cr4
	movl	$pml4, %eax
	movl	%eax, %cr3
	movl	$0xc0000080, %ecx	/* EFER.LME */
	rdmsr
	orl	$0x100, %eax
	wrmsr
	movl	%cr0, %eax
	orl	$0x80000001, %eax	/* PG, PE */
	movl	%eax, %cr0
	ljmp	$8, $1f
	.code64
1:	movl	$16, %eax
	movw	%ax, %ds
	movw	%ax, %es
	movw	%ax, %ss
	jmp	*%rdi

poweroff:
	movl	$0x10, %eax
	outl	%eax, $0xf4
1:	hlt
	jmp	1b

	.balign	8
gdt:	.quad	0, 0x00af9a000000ffff, 0x00cf92000000ffff, 0x00cf9a000000ffff
gdtr:	.word	. - gdt - 1
	.long	gdt

test:
	movl	$APIC, %ebx

#ifdef TEST_COUNTS
	/* Outside of any region: must not count. */
	invlpg	TEST_VA
	movq	%cr3, %rax
	movq	%rax, %cr3

	/* Region 0: invlpg 5, mov_cr3 3 */
	mark	1
	invlpg	TEST_VA
	movl	$TEST_VA, %r9d
	invlpg	(%r9)
	invlpg	0x10(%r9,%rax,2)
	invlpg	%gs:(%r9)
	movl	$1, %ecx
1:	movq	%cr3, %rax
	movq	%rax, %cr3
	loop	1b
	movq	%rax, %r15
	movq	%r15, %cr3
	movq	%rax, %cr3
	movq	%cr4, %rax
	movq	%rax, %cr4
	sgdt	gdtr
	invlpg	(%rsp)
	mark	2

	/* Region 1: icr_write 4 */
	mark	1
	movl	$0xc4030, %eax
	movl	%eax, 0x300(%rbx)
	movl	$0xc4030, 0x300(%rbx)
	movl	%ebx, %r8d
	movl	%eax, 0x300(%r8)
	movl	0x300(%rbx), %ecx
	movl	%eax, 0x310(%rbx)
	xchgl	%eax, 0x300(%rbx)
	movl	%eax, pt + 0x300
	mark	2

	/* Region 2: instructions, here. 3 + 1000 * 2 */
	mark	1
	nop
	movl	$1000, %ecx
1:	decl	%ecx
	jnz	1b
	nop
	mark	2

	/* Region 3: instructions, in the kernel half: 1 here, 1 + 20 * 2 + 1 there, 1 here */
	movabsq	$LINEAR, %rdi
	addq	$3f, %rdi
	movl	$4f, %esi
	mark	1
	jmp	*%rdi
3:	movl	$20, %ecx
1:	decl	%ecx
	jnz	1b
	jmp	*%rsi
4:	nop
	mark	2

	/* Region 4, with region 5 inside: 1 + 2 and 2 */
	mark	1
	invlpg	TEST_VA
	mark	1
	invlpg	TEST_VA
	invlpg	TEST_VA
	mark	2
	mark	2
	/* A stop too many, then region 6, empty and left open. */
	mark	2
	mark	1
	jmp	poweroff
#endif

#ifdef TEST_SMP
	/* Both CPUs execute their share inside one region. */
#define ROUNDS	200
	movl	$ap_start, %esi
	movl	$TRAMPOLINE, %edi
	movl	$ap_end - ap_start, %ecx
	rep movsb
	movl	$0xc4500, 0x300(%rbx)	/* INIT, then startup, to all others */
	movl	$0xc4600 + (TRAMPOLINE >> 12), 0x300(%rbx)
1:	pause
	cmpl	$1, turn
	jne	1b
	mark	1
	movl	$1, turn + 8
	movl	$ROUNDS, %ecx
1:	invlpg	TEST_VA
	movl	%eax, 0x310(%rbx)
	decl	%ecx
	jnz	1b
1:	pause
	cmpl	$2, turn
	jne	1b
	mark	2
	jmp	poweroff

second:
	movl	$APIC, %ebx
	movl	$1, turn
1:	pause
	cmpl	$1, turn + 8
	jne	1b
	movl	$ROUNDS, %ecx
1:	movq	%cr3, %rax
	movq	%rax, %cr3
	invlpg	TEST_VA
	movl	$0xc4030, 0x300(%rbx)
	decl	%ecx
	jnz	1b
	movl	$2, turn
1:	cli
	hlt
	jmp	1b

	.code16
ap_start:
	cli
	xorw	%ax, %ax
	movw	%ax, %ds
	lgdtl	TRAMPOLINE + 1f - ap_start
	movl	%cr0, %eax
	orl	$1, %eax
	movl	%eax, %cr0
	ljmpl	$24, $ap32
1:	.word	31
	.long	gdt
ap_end:
	.code32
ap32:	movl	$16, %eax
	movw	%ax, %ds
	movl	$second, %edi
	jmp	long_mode
	.code64
#endif

#ifdef TEST_STALE		/* no invalidation: an error */
	map	FRAME_A
	touch	TEST_VA
	map	FRAME_B
	declare	4, FRAME_A, 0
	touch	TEST_VA + 0x128, bad1:
	jmp	poweroff
#endif

#ifdef TEST_FLUSHED		/* the control */
	map	FRAME_A
	touch	TEST_VA
	map	FRAME_B
	flush
	declare	4, FRAME_A, 0
	touch	TEST_VA + 0x128
	jmp	poweroff
#endif

#ifdef TEST_OWNED		/* loads are allowed, stores are not */
	map	FRAME_A
	touch	TEST_VA
	declare	3, FRAME_A, 0
	touch	TEST_VA + 8
	store	TEST_VA + 16, bad1:
bad2:	lock addq $1, (%rsi)
	jmp	poweroff
#endif

#ifdef TEST_LIVE		/* FREE of 4 frames, then LIVE again of 2 of them */
	declare	4, FRAME_A, 2
	declare	5, FRAME_A, 1
	map	FRAME_A
	touch	TEST_VA
	store	TEST_VA
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
	jmp	poweroff
#endif

#ifdef TEST_FORMS		/* every form of access reports: string, atomic, straddling */
	map	FRAME_A
	touch	TEST_VA
	declare	4, FRAME_A, 0
	movl	$TEST_VA + 0x20, %esi
bad1:	lodsq
bad2:	lock addq $1, TEST_VA
bad3:	movb	TEST_VA + 0x30, %al
	/* from the frame before, over the page's end */
	movq	$FRAME_A + 3, pt + 8
	map	FRAME_B
	flush
	invlpg	TEST_VA + 0x1000
bad4:	movq	TEST_VA + 0xffc, %rax
	jmp	poweroff
#endif

#ifdef TEST_NODES		/* a frame in each of two memory nodes of 128 MiB */
	declare	4, FRAME_A, 0
	declare	3, FRAME_A + 0x8000000, 0
	declare	5, FRAME_A + 0x10000, 3
	jmp	poweroff
#endif

#ifdef TEST_SPLIT		/* the marker ends its translation block: a page end */
	map	FRAME_A
	touch	TEST_VA
	movabsq	$LINEAR + FRAME_A, %rdi
	movl	$1f, %ebp
	jmp	marker
1:	touch	TEST_VA, bad1:
	/* Reached without its marker, the load declares nothing. */
	map	FRAME_B
	flush
	movabsq	$LINEAR + FRAME_B, %rdi
	movl	$1f, %ebp
	jmp	load
1:	touch	TEST_VA
	jmp	poweroff
	.balign	4096
	.skip	4096 - 7
marker:	mark	4
load:	movb	(%rdi), %al
	jmp	*%rbp
#endif

	.bss
	.balign	4096
pml4:	.skip	4096
pdpt0:	.skip	4096
pdpt1:	.skip	4096
pd:	.skip	4096
pt:	.skip	4096
turn:	.skip	4096
