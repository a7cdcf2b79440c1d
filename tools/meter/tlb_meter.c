// SPDX-License-Identifier: GPL-2.0
/*
 * TLB meter and stale-translation oracle: a QEMU TCG plugin.
 *
 * The meter counts executed TLB maintenance instructions and instructions per
 * vCPU between two marker instructions. The oracle looks at the physical page
 * that each access through a user address really used, and reports those that
 * went to a frame the guest has declared gone. See README.md.
 */
#include <dlfcn.h>
#include <endian.h>
#include <errno.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decode.h"
#include "qemu_plugin.h"

typedef __u8 u8;
typedef __u32 u32;
typedef __u64 u64;

#define __export	__attribute__((visibility("default")))

#define PAGE_SHIFT	12
#define PAGE_OFFSET_MASK	((1UL << PAGE_SHIFT) - 1)
#define XAPIC_ICR	0xfee00300UL
#define MAX_INSN	16	/* bytes */
#define MAX_NESTING	16
#define MAX_ERRORS	100
#define MAX_SITES	1024
#define MAX_ORDER	28
#define MAX_BLOCKS	64

/* 1 TiB of physical addresses in leaves of 1 GiB, one byte a frame. */
#define LEAF_SHIFT	18
#define LEAF_FRAMES	0x40000UL
#define NR_LEAVES	1024UL

/* One writer each, its vCPU's thread; read by whoever meets a marker. */
struct vcpu {
	alignas(128) u64 event[NR_COUNTERS];
	u64 insns[2];		/* by PC: user half, kernel half */
	u64 accesses;
	u64 skipped;
};

struct region {
	unsigned int number;
	struct vcpu *base;	/* the counters when it started */
};

/*
 * The load after an OWNED, FREE or LIVE marker. @armed counts markers executed
 * whose load has not been: it makes the pair hold when the two are in different
 * translation blocks, whatever runs between them and wherever the thread
 * continues.
 */
struct site {
	u64 pc;
	enum insn_class mark;
	long armed;
};

/*
 * QEMU's "physical" address of RAM is an offset into its own memory blocks, so
 * reports give the linear address too. A block is known by its distance from
 * the linear map, and by the lowest and highest address declared in it.
 */
struct block {
	u64 delta, first, last;
};

struct error {
	u64 pc, page, frame;
};

enum { LIVE, OWNED, FREE };

static bool arm64;
static bool oracle;
static unsigned int frame_shift = PAGE_SHIFT;
static FILE *out;

static struct vcpu *vcpus;
static unsigned int nr_vcpus;

/* Protects what follows up to the blank line, and the output's order. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct region open_regions[MAX_NESTING];
static unsigned int depth;
static unsigned int nr_regions;
static struct error errors[MAX_ERRORS];
static unsigned int nr_distinct;
static unsigned int nr_sites;
static unsigned int nr_blocks;
static bool overlap;

static struct site sites[MAX_SITES];
static struct block blocks[MAX_BLOCKS];
static u8 *leaves[NR_LEAVES];
static bool declared;		/* a frame as anything but LIVE, ever */
static u64 nr_declares;
static u64 nr_marks;
static u64 nr_errors;

#define get(p)		__atomic_load_n(p, __ATOMIC_RELAXED)
#define set(p, v)	__atomic_store_n(p, v, __ATOMIC_RELAXED)

/* For counters with one writer: no locked instruction needed. */
static inline void add(u64 *p, u64 n)
{
	set(p, get(p) + n);
}

/* At the end of each line: nothing is lost if QEMU is killed. */
static void flush(void)
{
	if (fflush(out)) {
		perror("tlb_meter: write");
		exit(1);
	}
}

/*
 * Meter
 */

static void snapshot(struct vcpu *to)
{
	unsigned int i, j;

	for (i = 0; i < nr_vcpus; i++) {
		for (j = 0; j < NR_COUNTERS; j++)
			to[i].event[j] = get(&vcpus[i].event[j]);
		for (j = 0; j < 2; j++)
			to[i].insns[j] = get(&vcpus[i].insns[j]);
	}
}

static void emit_region(const struct region *r, const struct vcpu *now)
{
	static const char * const names[NR_COUNTERS] = {
		[TLBI_VA] = "tlbi_va", [TLBI_RANGE] = "tlbi_range",
		[TLBI_ASID] = "tlbi_asid", [TLBI_ALL] = "tlbi_all",
		[DSB_ISHST] = "dsb_ishst", [DSB_ISH] = "dsb_ish",
		[DSB_OTHER] = "dsb_other", [SGI] = "sgi",
		[TASK_SWITCH] = "task_switch",
		[INVLPG] = "invlpg", [INVPCID] = "invpcid",
		[MOV_CR3] = "mov_cr3", [ICR_WRITE] = "icr_write",
	};
	unsigned int first = arm64 ? TLBI_VA : INVLPG;
	unsigned int last = arm64 ? TASK_SWITCH : ICR_WRITE;
	u64 event[NR_COUNTERS] = { 0 }, user = 0, kernel = 0;
	unsigned int i, j;

	for (i = 0; i < nr_vcpus; i++) {
		for (j = 0; j < NR_COUNTERS; j++)
			event[j] += now[i].event[j] - r->base[i].event[j];
		user += now[i].insns[0] - r->base[i].insns[0];
		kernel += now[i].insns[1] - r->base[i].insns[1];
	}

	fprintf(out, "{\"region\":%u", r->number);
	if (arm64)
		fprintf(out, ",\"tlbi\":%llu", event[TLBI_VA] + event[TLBI_RANGE] +
			event[TLBI_ASID] + event[TLBI_ALL]);
	for (i = first; i <= last; i++)
		fprintf(out, ",\"%s\":%llu", names[i], event[i]);
	fprintf(out, ",\"insns_kernel\":%llu,\"insns_user\":%llu,\"insns\":[", kernel, user);
	for (i = 0; i < nr_vcpus; i++)
		fprintf(out, "%s%llu", i ? "," : "",
			now[i].insns[0] - r->base[i].insns[0] +
			now[i].insns[1] - r->base[i].insns[1]);
	fprintf(out, "]}\n");
	flush();
}

/*
 * A TB's instructions are all counted when it is entered. Its own vCPU takes
 * back those that lie outside the region: after the start marker they count,
 * before the stop marker too.
 */
#define MARK_UDATA(in, rest, kernel)	((void *)((u64)(kernel) << 32 | (rest) << 1 | (in)))

static void region_mark(unsigned int vcpu, void *udata)
{
	u64 info = (u64)udata;
	unsigned int rest = (u32)info >> 1, kernel = info >> 32;
	struct vcpu *snap = aligned_alloc(128, nr_vcpus * sizeof(*snap));
	struct region *r;

	pthread_mutex_lock(&lock);
	snapshot(snap);
	snap[vcpu].insns[kernel] -= rest;

	if (info & 1) {
		if (depth < MAX_NESTING) {
			r = &open_regions[depth++];
			r->number = nr_regions++;
			r->base = snap;
			snap = NULL;
		} else {
			fprintf(out, "{\"meter_error\":\"more than %u regions open\"}\n",
				MAX_NESTING);
			flush();
		}
	} else if (depth) {
		r = &open_regions[--depth];
		emit_region(r, snap);
		free(r->base);
	} else {
		fprintf(out, "{\"meter_error\":\"stop marker without a region\"}\n");
		flush();
	}
	pthread_mutex_unlock(&lock);
	free(snap);
}

static void count_tb(unsigned int vcpu, void *udata)
{
	u64 info = (u64)udata;

	add(&vcpus[vcpu].insns[info & 1], info >> 1);
}

static void count_event(unsigned int vcpu, void *udata)
{
	add(&vcpus[vcpu].event[(u64)udata], 1);
}

static void store32(unsigned int vcpu, u32 info, u64 vaddr, void *udata)
{
	struct qemu_plugin_hwaddr *hw;

	if ((vaddr & PAGE_OFFSET_MASK) != (XAPIC_ICR & PAGE_OFFSET_MASK) ||
	    !qemu_plugin_mem_is_store(info))
		return;
	hw = qemu_plugin_get_hwaddr(info, vaddr);
	if (hw && qemu_plugin_hwaddr_is_io(hw) &&
	    qemu_plugin_hwaddr_phys_addr(hw) == XAPIC_ICR)
		count_event(vcpu, (void *)ICR_WRITE);
}

/*
 * Oracle
 */

static u8 frame_state(u64 frame)
{
	u8 *leaf;

	if (frame >= NR_LEAVES * LEAF_FRAMES)
		return LIVE;
	leaf = __atomic_load_n(&leaves[frame >> LEAF_SHIFT], __ATOMIC_ACQUIRE);
	return leaf ? get(&leaf[frame & (LEAF_FRAMES - 1)]) : LIVE;
}

static void set_frame_state(u64 frame, u8 state)
{
	u8 **slot = &leaves[frame >> LEAF_SHIFT], *expected = NULL, *leaf;

	leaf = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
	if (!leaf) {
		if (state == LIVE)
			return;
		leaf = calloc(1, LEAF_FRAMES);
		if (!leaf)
			abort();
		if (!__atomic_compare_exchange_n(slot, &expected, leaf, false,
						 __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
			free(leaf);
			leaf = expected;
		}
	}
	set(&leaf[frame & (LEAF_FRAMES - 1)], state);
	if (state != LIVE && !get(&declared))
		set(&declared, true);
}

/* The block that covers an address, if any declaration did. No lock needed. */
static const struct block *find_block(u64 pa)
{
	unsigned int i, n = __atomic_load_n(&nr_blocks, __ATOMIC_ACQUIRE);

	for (i = 0; i < n; i++)
		if (pa >= get(&blocks[i].first) && pa <= get(&blocks[i].last))
			return &blocks[i];
	return NULL;
}

static void note_block(u64 va, u64 first, u64 last)
{
	const struct block *known = find_block(first);
	struct block *b;
	unsigned int i;

	if (known && known->delta == va - first && last <= get(&known->last))
		return;

	pthread_mutex_lock(&lock);
	for (i = 0; i < nr_blocks && blocks[i].delta != va - first; i++)
		;
	b = &blocks[i];
	if (i == nr_blocks) {
		if (i == MAX_BLOCKS)
			goto unlock;
		*b = (struct block){ va - first, first, last };
		__atomic_store_n(&nr_blocks, i + 1, __ATOMIC_RELEASE);
	}
	if (first < b->first)
		set(&b->first, first);
	if (last > b->last)
		set(&b->last, last);

	/* Then the state table is worthless: see README.md. */
	for (i = 0; i < nr_blocks && !overlap; i++) {
		if (&blocks[i] == b || blocks[i].last < b->first || b->last < blocks[i].first)
			continue;
		overlap = true;
		fprintf(out, "{\"meter_error\":\"memory blocks overlap: %s\"}\n",
			"create them in node order");
		flush();
	}
unlock:
	pthread_mutex_unlock(&lock);
}

static void report(unsigned int vcpu, u64 pc, u64 va, u64 pa, bool store, u8 state)
{
	struct error e = { pc, va >> PAGE_SHIFT, pa >> PAGE_SHIFT };
	const struct block *b = find_block(pa);
	unsigned int i;

	__atomic_fetch_add(&nr_errors, 1, __ATOMIC_RELAXED);
	if (get(&nr_distinct) == MAX_ERRORS)
		return;
	pthread_mutex_lock(&lock);
	for (i = 0; i < nr_distinct; i++)
		if (errors[i].pc == e.pc && errors[i].page == e.page &&
		    errors[i].frame == e.frame)
			break;
	if (i == nr_distinct && i < MAX_ERRORS) {
		errors[i] = e;
		set(&nr_distinct, i + 1);
		fprintf(out, "{\"oracle\":\"stale\",\"vcpu\":%u,\"pc\":\"0x%llx\",", vcpu, pc);
		fprintf(out, "\"va\":\"0x%llx\",\"pa\":\"0x%llx\",", va, pa);
		fprintf(out, "\"linear\":\"0x%llx\",", b ? pa + b->delta : 0);
		fprintf(out, "\"store\":%s,\"state\":\"%s\"}\n",
			store ? "true" : "false", state == FREE ? "FREE" : "OWNED");
		flush();
	}
	pthread_mutex_unlock(&lock);
}

/* False if there is no page of RAM behind the address. */
static bool ram_addr(u32 info, u64 va, u64 *pa)
{
	struct qemu_plugin_hwaddr *hw = qemu_plugin_get_hwaddr(info, va);

	if (!hw || qemu_plugin_hwaddr_is_io(hw))
		return false;
	*pa = qemu_plugin_hwaddr_phys_addr(hw);
	return true;
}

static void check(unsigned int vcpu, u32 info, u64 va, u64 pc)
{
	bool store = qemu_plugin_mem_is_store(info);
	u64 pa;
	u8 state;

	if (!ram_addr(info, va, &pa)) {
		add(&vcpus[vcpu].skipped, 1);
		return;
	}
	state = frame_state(pa >> PAGE_SHIFT);
	if (state == FREE || (state == OWNED && store))
		report(vcpu, pc, va, pa, store, state);
}

static void access_cb(unsigned int vcpu, u32 info, u64 va, void *udata)
{
	u64 last = va + (1U << qemu_plugin_mem_size_shift(info)) - 1;

	if (va >> 48)
		return;
	add(&vcpus[vcpu].accesses, 1);
	if (!get(&declared))
		return;
	check(vcpu, info, va, (u64)udata);
	if ((va ^ last) >> PAGE_SHIFT && !(last >> 48))
		check(vcpu, info, last & ~PAGE_OFFSET_MASK, (u64)udata);
}

static void arm_cb(unsigned int vcpu, void *udata)
{
	struct site *s = udata;

	__atomic_fetch_add(&s->armed, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&nr_marks, 1, __ATOMIC_RELAXED);
}

static void declare_cb(unsigned int vcpu, u32 info, u64 va, void *udata)
{
	static const u8 states[] = {
		[MARK_OWNED - MARK_OWNED] = OWNED,
		[MARK_FREE - MARK_OWNED] = FREE,
		[MARK_LIVE - MARK_OWNED] = LIVE,
	};
	unsigned int order = va & PAGE_OFFSET_MASK;
	struct site *s = udata;
	u64 page = va & ~PAGE_OFFSET_MASK, pa, frame, end;
	u8 state;

	if (qemu_plugin_mem_is_store(info))
		return;
	if (__atomic_fetch_sub(&s->armed, 1, __ATOMIC_RELAXED) <= 0) {
		/* Not reached through its marker: an ordinary load. */
		__atomic_fetch_add(&s->armed, 1, __ATOMIC_RELAXED);
		return;
	}
	/* The linear map may begin anywhere in the kernel half (52-bit addresses). */
	if (!(va >> 63) || order > MAX_ORDER || !ram_addr(info, page, &pa))
		return;
	frame = pa >> PAGE_SHIFT;
	end = frame + (1UL << (order + frame_shift - PAGE_SHIFT));
	if (end > NR_LEAVES * LEAF_FRAMES)
		return;
	note_block(page, pa, (end << PAGE_SHIFT) - 1);
	state = states[s->mark - MARK_OWNED];
	for (; frame < end; frame++)
		set_frame_state(frame, state);
	__atomic_fetch_add(&nr_declares, 1, __ATOMIC_RELAXED);
}

/* Sites are never removed; readers need no lock. */
static struct site *find_site(u64 pc)
{
	unsigned int i, n = __atomic_load_n(&nr_sites, __ATOMIC_ACQUIRE);

	for (i = 0; i < n; i++)
		if (sites[i].pc == pc)
			return &sites[i];
	return NULL;
}

static struct site *add_site(u64 pc, enum insn_class mark)
{
	struct site *s;

	pthread_mutex_lock(&lock);
	s = find_site(pc);
	if (s) {
		s->mark = mark;
	} else if (nr_sites < MAX_SITES) {
		s = &sites[nr_sites];
		s->pc = pc;
		s->mark = mark;
		__atomic_store_n(&nr_sites, nr_sites + 1, __ATOMIC_RELEASE);
	} else {
		fprintf(stderr, "tlb_meter: more than %u declaring instructions\n", MAX_SITES);
		exit(1);
	}
	pthread_mutex_unlock(&lock);
	return s;
}

/*
 * Translation
 */

static void translate_insn(struct qemu_plugin_insn *insn, enum insn_class c,
			   unsigned int rest, bool kernel)
{
	switch (c) {
	case INSN_OTHER:
		return;
	case MARK_START:
		qemu_plugin_register_vcpu_insn_exec_cb(insn, region_mark,
						       QEMU_PLUGIN_CB_NO_REGS,
						       MARK_UDATA(1UL, rest, kernel));
		return;
	case MARK_STOP:
		/* The marker itself is outside the region too. */
		qemu_plugin_register_vcpu_insn_exec_cb(insn, region_mark,
						       QEMU_PLUGIN_CB_NO_REGS,
						       MARK_UDATA(0UL, rest + 1, kernel));
		return;
	case MARK_OWNED:
	case MARK_FREE:
	case MARK_LIVE:
		return;
	case STORE32:
		qemu_plugin_register_vcpu_mem_cb(insn, store32, QEMU_PLUGIN_CB_NO_REGS,
						 QEMU_PLUGIN_MEM_RW, NULL);
		return;
	default:
		qemu_plugin_register_vcpu_insn_exec_cb(insn, count_event,
						       QEMU_PLUGIN_CB_NO_REGS,
						       (void *)(u64)c);
		return;
	}
}

__export int qemu_plugin_version;

/* QEMU reads the version after this: each has an oldest and a newest that it takes. */
static __attribute__((constructor)) void choose_version(void)
{
	qemu_plugin_version = dlsym(RTLD_DEFAULT, "qemu_plugin_n_vcpus") ? 1 : 4;
}

static void insn_bytes(const struct qemu_plugin_insn *insn, u8 *to, size_t size)
{
	if (qemu_plugin_version == 1) {
		const void *(*where)(const struct qemu_plugin_insn *insn) =
			(void *)qemu_plugin_insn_data;

		memcpy(to, where(insn), size);
	} else {
		qemu_plugin_insn_data(insn, to, size);
	}
}

static void translate(u64 id, struct qemu_plugin_tb *tb)
{
	size_t i, n = qemu_plugin_tb_n_insns(tb);
	u64 pc = qemu_plugin_tb_vaddr(tb);
	bool kernel = pc >> 63;
	/* Only a site that starts a TB was not announced by this very loop. */
	struct site *site = oracle ? find_site(pc) : NULL;

	qemu_plugin_register_vcpu_tb_exec_cb(tb, count_tb, QEMU_PLUGIN_CB_NO_REGS,
					     (void *)(n << 1 | kernel));

	for (i = 0; i < n; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
		size_t size = qemu_plugin_insn_size(insn);
		u8 data[MAX_INSN] = { };
		enum insn_class c;
		u32 word;

		if (size > sizeof(data))
			size = sizeof(data);
		insn_bytes(insn, data, size);
		if (arm64) {
			memcpy(&word, data, sizeof(word));
			c = size == sizeof(word) ? decode_arm64(le32toh(word)) : INSN_OTHER;
		} else {
			c = decode_x86(data, size);
		}
		translate_insn(insn, c, n - i - 1, kernel);

		if (!oracle)
			continue;
		pc = qemu_plugin_insn_vaddr(insn);
		qemu_plugin_register_vcpu_mem_cb(insn, access_cb, QEMU_PLUGIN_CB_NO_REGS,
						 QEMU_PLUGIN_MEM_RW, (void *)pc);
		if (site)
			qemu_plugin_register_vcpu_mem_cb(insn, declare_cb,
							 QEMU_PLUGIN_CB_NO_REGS,
							 QEMU_PLUGIN_MEM_RW, site);
		site = NULL;
		if (c >= MARK_OWNED && c <= MARK_LIVE) {
			site = add_site(pc + size, c);
			qemu_plugin_register_vcpu_insn_exec_cb(insn, arm_cb,
							       QEMU_PLUGIN_CB_NO_REGS, site);
		}
	}
}

static void finish(u64 id, void *udata)
{
	u64 accesses = 0, skipped = 0;
	unsigned int i;

	pthread_mutex_lock(&lock);
	for (i = 0; i < depth; i++)
		fprintf(out, "{\"meter_error\":\"region %u was not stopped\"}\n",
			open_regions[i].number);
	if (oracle) {
		for (i = 0; i < nr_vcpus; i++) {
			accesses += get(&vcpus[i].accesses);
			skipped += get(&vcpus[i].skipped);
		}
		fprintf(out, "{\"oracle_summary\":{\"accesses\":%llu,\"declares\":%llu,",
			accesses, nr_declares);
		fprintf(out, "\"errors\":%llu,\"distinct\":%u,", nr_errors, nr_distinct);
		fprintf(out, "\"skipped\":%llu,\"lost_declares\":%llu}}\n",
			skipped, nr_marks - nr_declares);
	}
	flush();
	pthread_mutex_unlock(&lock);
}

static int bad_argument(const char *arg)
{
	fprintf(stderr, "tlb_meter: bad argument '%s'\n"
		"usage: -plugin tlb_meter.so,out=FILE[,oracle=on|off][,page_shift=12|14|16]\n",
		arg);
	return -1;
}

__export int qemu_plugin_install(u64 id, const struct qemu_plugin_info *info,
				 int argc, char **argv)
{
	const char *file = NULL;
	int i;

	for (i = 0; i < argc; i++) {
		if (!strncmp(argv[i], "out=", 4))
			file = argv[i] + 4;
		else if (!strcmp(argv[i], "oracle=on"))
			oracle = true;
		else if (!strcmp(argv[i], "oracle=off"))
			oracle = false;
		else if (!strncmp(argv[i], "page_shift=", 11))
			frame_shift = atoi(argv[i] + 11);
		else
			return bad_argument(argv[i]);
	}
	if (!file || !*file)
		return bad_argument("out= missing");
	if (frame_shift != 12 && frame_shift != 14 && frame_shift != 16)
		return bad_argument("page_shift");

	arm64 = !strcmp(info->target_name, "aarch64");
	if (!info->system_emulation || (!arm64 && strcmp(info->target_name, "x86_64"))) {
		fprintf(stderr, "tlb_meter: no support for %s\n", info->target_name);
		return -1;
	}

	out = fopen(file, "ae");
	if (!out) {
		fprintf(stderr, "tlb_meter: %s: %s\n", file, strerror(errno));
		return -1;
	}

	/* CPUs that could be plugged later would only add zeroes to the report. */
	nr_vcpus = info->smp_vcpus;
	vcpus = aligned_alloc(128, nr_vcpus * sizeof(*vcpus));
	if (!vcpus)
		return -1;
	memset(vcpus, 0, nr_vcpus * sizeof(*vcpus));

	qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
	qemu_plugin_register_atexit_cb(id, finish, NULL);
	return 0;
}
