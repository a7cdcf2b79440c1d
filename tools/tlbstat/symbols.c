// SPDX-License-Identifier: GPL-2.0
/*
 * tlbstat price: addresses of the kernel, and which of them flush TLBs
 *
 * x86 flushes in functions that are never inlined away, so any frame tells. arm64 inlines its
 * flushes nearly everywhere. What it waits at is DSB ISH, or is TLBI: the leaf is one of them,
 * or the instruction behind. The text of the running kernel, which /proc/kcore has, shows that:
 * alternatives are patched at boot, and a vmlinux file has others. Without it, a list of
 * functions that have a flush has to do, all of their time counts, and that is said.
 */
#include "price.h"

static struct symbol *symbols;
static int nr_symbols;

static int by_start(const void *a, const void *b)
{
	const struct symbol *x = a, *y = b;

	return x->start < y->start ? -1 : x->start > y->start;
}

/* Returns what is wrong, or NULL. */
const char *read_symbols(void)
{
	FILE *f = fopen(path("/proc/kallsyms"), "re");
	unsigned long long start;
	char *line, name[256];
	bool hidden = false;
	int room = 0;
	char type;

	if (!f)
		return "/proc/kallsyms cannot be read";
	nr_symbols = 0;
	while ((line = next(f))) {
		/* Names of compilers: symbol.isra.0, symbol.llvm.123, symbol.cold */
		if (sscanf(line, "%llx %c %255[^. \t\n]", &start, &type, name) != 3 ||
		    !strchr("tTwW", type))
			continue;
		if (!start) {
			hidden = true;
			continue;
		}
		if (nr_symbols == room) {
			room = room ? 2 * room : 1 << 14;
			symbols = realloc(symbols, room * sizeof(*symbols));
		}
		symbols[nr_symbols].name = strdup(name);
		if (!symbols || !symbols[nr_symbols].name)
			err(FAILURE, "symbols");
		symbols[nr_symbols++].start = start;
	}
	if (!nr_symbols)
		return hidden ? "kptr_restrict hides addresses, or CAP_SYSLOG is missing" :
				"/proc/kallsyms has no functions";
	qsort(symbols, nr_symbols, sizeof(*symbols), by_start);
	return NULL;
}

/* The same addresses come again and again. */
static struct {
	uint64_t address;
	const struct symbol *symbol;
} named[1 << 13];

static struct {
	uint64_t address;
	enum flush flush;
} decoded[1 << 12];

/* A page that is read before it is written is copied then, with a flush of our own. */
void touch_caches(void)
{
	memset(named, 0, sizeof(named));
	memset(decoded, 0, sizeof(decoded));
}

const struct symbol *symbol_of(uint64_t address)
{
	int slot = (address ^ address >> 13) & (ARRAY_SIZE(named) - 1), low = 0, high = nr_symbols;

	if (named[slot].address == address && address)
		return named[slot].symbol;
	while (low < high) {
		int middle = low + (high - low) / 2;

		if (symbols[middle].start <= address)
			low = middle + 1;
		else
			high = middle;
	}
	named[slot].address = address;
	named[slot].symbol = low ? &symbols[low - 1] : NULL;
	return named[slot].symbol;
}

/* --- text of the running kernel ------------------------------------------------------------ */

/* An ELF file of 64 bits, of which only this is needed. */
struct elf_head {
	unsigned char magic[16];
	uint16_t type, machine;
	uint32_t version;
	uint64_t entry, segments_at, sections_at;
	uint32_t flags;
	uint16_t size, segment_size, nr_segments;
};

struct elf_segment {
	uint32_t type, flags;
	uint64_t offset, address, physical, file_size, size, align;
};

#define LOADED			1

static int kcore = -1;
static struct elf_segment *segments;
static int nr_segments;

bool open_kcore(void)
{
	struct elf_head head;
	size_t size;

	kcore = open(path("/proc/kcore"), O_RDONLY | O_CLOEXEC);
	if (kcore < 0)
		return false;
	if (pread(kcore, &head, sizeof(head), 0) == sizeof(head) &&
	    !memcmp(head.magic, "\177ELF", 4) && head.segment_size == sizeof(*segments)) {
		size = head.nr_segments * sizeof(*segments);
		segments = malloc(size ?: 1);
		if (segments && pread(kcore, segments, size, head.segments_at) == (ssize_t)size)
			nr_segments = head.nr_segments;
	}
	if (nr_segments)
		return true;
	close(kcore);
	kcore = -1;
	return false;
}

/* 0, which is no instruction of a kernel, if it cannot be read. */
static uint32_t instruction(uint64_t address)
{
	uint32_t code = 0;
	int i;

	for (i = 0; i < nr_segments; i++)
		if (segments[i].type == LOADED && address >= segments[i].address &&
		    address - segments[i].address + sizeof(code) <= segments[i].file_size)
			break;
	if (i == nr_segments || pread(kcore, &code, sizeof(code), segments[i].offset + address -
				      segments[i].address) != sizeof(code))
		return 0;
	return code;
}

#define DSB_ISH			0xd5033b9f
#define TLBI_MASK		0xfff8f000
#define TLBI			0xd5088000

static enum flush by_instruction(uint64_t address)
{
	int slot = (address >> 2 ^ address >> 14) & (ARRAY_SIZE(decoded) - 1);
	uint32_t here, behind;

	if (decoded[slot].address == address && address)
		return decoded[slot].flush;
	here = instruction(address);
	behind = instruction(address - 4);
	decoded[slot].address = address;
	decoded[slot].flush = here == DSB_ISH || behind == DSB_ISH ? WAITS :
			   (here & TLBI_MASK) == TLBI || (behind & TLBI_MASK) == TLBI ? ISSUES :
			   NO_FLUSH;
	return decoded[slot].flush;
}

/* --- functions that flush ------------------------------------------------------------------ */

static const char * const x86_waits[] = {
	"flush_tlb_mm_range", "arch_tlbbatch_flush", "flush_tlb_kernel_range", "flush_tlb_all",
	"cpa_flush", NULL
};

static const char * const x86_victims[] = {
	"flush_tlb_func", "do_flush_tlb_all", "do_kernel_range_flush", "__cpa_flush_tlb",
	"__cpa_flush_all", NULL
};

/* By looking for TLBI and DSB ISH in arm64 images of 7.3, stock and tlb-rs. */
static const char * const arm64_waits[] = {
	"__flush_tlb_range", "__flush_tlb_range_nosync", "__flush_tlb_kernel_pgtable",
	"tlb_flush_mmu_tlbonly", "tlb_end_vma", "change_protection", "flush_tlb_mm",
	"flush_tlb_page", "flush_tlb_range", "flush_tlb_all", "flush_tlb_kernel_range", "dup_mmap",
	"ptep_clear_flush", "pmdp_huge_clear_flush", "pmdp_invalidate", "pmdp_collapse_flush",
	"pudp_invalidate", "flush_tlb_batched_pending", "move_pages_ptes", "move_huge_pmd",
	"set_huge_pte_at", "huge_ptep_clear_flush", "try_to_unmap_flush",
	"try_to_unmap_flush_dirty", "arch_tlbbatch_flush", "contpte_convert",
	"__purge_vmap_area_lazy", "_vm_unmap_aliases", "vunmap_range", "vunmap_range_noflush",
	"pcpu_post_unmap_tlb_flush", "__change_memory_common", "vmemmap_remap_range",
	"vmemmap_remap_pte", "tlb_batch_arch_issue_mm", "tlb_batch_arch_sync", "arch_hvo_apply",
	NULL
};

static struct range {
	uint64_t start, end;
	enum flush flush;
} *ranges;		/* by start */

static int nr_ranges;

static bool listed(const char *name, const char * const *list)
{
	while (*list && strcmp(name, *list))
		list++;
	return *list;
}

/* Returns whether there are any. A function may have several symbols, such as a cold part. */
bool choose_flush_functions(bool arm64)
{
	enum flush flush;
	bool found = false;
	int i, j;

	ranges = calloc(nr_symbols + 1, sizeof(*ranges));
	if (!ranges)
		err(FAILURE, "symbols");
	for (i = 0; i < nr_symbols; i++) {
		const char *name = symbols[i].name;

		flush = NO_FLUSH;
		if (arm64)
			flush = listed(name, arm64_waits) || starts(name, "migrc_arch_") ? WAITS :
				NO_FLUSH;
		else if (listed(name, x86_waits))
			flush = WAITS;
		else if (listed(name, x86_victims))
			flush = VICTIM;
		else if (starts(name, "asm_sysvec_") || !strcmp(name, "asm_common_interrupt"))
			flush = INTERRUPT;
		if (flush == NO_FLUSH)
			continue;
		for (j = i + 1; j < nr_symbols && symbols[j].start == symbols[i].start; j++)
			;
		ranges[nr_ranges].start = symbols[i].start;
		ranges[nr_ranges].end = j < nr_symbols ? symbols[j].start : ~0ULL;
		ranges[nr_ranges++].flush = flush;
		found |= flush != INTERRUPT;
	}
	return found;
}

static enum flush by_function(uint64_t address)
{
	int low = 0, high = nr_ranges;

	while (low < high) {
		int middle = low + (high - low) / 2;

		if (ranges[middle].start <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low && address < ranges[low - 1].end ? ranges[low - 1].flush : NO_FLUSH;
}

/*
 * A DSB ISH there waits for no flush. With pseudo-NMIs, samples come in task switches, too.
 */
static bool waits_for_others(uint64_t address)
{
	static const char * const prefixes[] = {
		"__switch_to", "caches_", "dcache_", "icache_", "mte_", NULL
	};
	const struct symbol *s = symbol_of(address);

	return s && starts_any(s->name, prefixes);
}

/* @chain goes from the leaf outwards. */
enum flush flush_of(const uint64_t *chain, int nr, bool arm64)
{
	enum flush flush = NO_FLUSH, f;
	int i;

	if (arm64)
		return !nr || waits_for_others(chain[0]) ? NO_FLUSH :
		       nr_segments ? by_instruction(chain[0]) : by_function(chain[0]);
	/*
	 * Who flushes also does so on its own CPU, as a victim does. An interrupt that comes
	 * while it waits, and its softirqs, are no part of the flush.
	 */
	for (i = 0; i < nr && flush != WAITS; i++) {
		f = by_function(chain[i]);
		if (f == INTERRUPT)
			break;
		flush = f == NO_FLUSH ? flush : f;
	}
	return flush;
}
