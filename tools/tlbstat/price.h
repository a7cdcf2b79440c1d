/* SPDX-License-Identifier: GPL-2.0 */
/* tlbstat price: what its files share */
#ifndef TLBSTAT_PRICE_H
#define TLBSTAT_PRICE_H

#include "cpus.h"
#include <stddef.h>
#include <stdint.h>

#define DEPTH			48	/* frames of a chain */
#define NCAUSES			31	/* the last one: unmatched */
#define RING			524288	/* bytes for samples of a CPU */
#define TURN			0.1	/* seconds after which rings are read again */
#define LINE			4096
#define WORD			64

/* symbols.c: addresses of the kernel */

struct symbol {
	uint64_t start;
	const char *name;	/* without what compilers put behind a dot */
};

const char *read_symbols(void);
const struct symbol *symbol_of(uint64_t address);
bool open_kcore(void);

/* What a sample of a CPU in the kernel is. */
enum flush {
	NO_FLUSH,
	WAITS = 'w',		/* waits for a flush, or does it itself */
	ISSUES = 'i',		/* arm64: queues one, and does not wait */
	VICTIM = 'v',		/* x86: interrupted by a flush of another CPU */
	INTERRUPT = 'x',	/* no flush is outside of it */
	EVENT = 'e',		/* no sample, but a tracepoint's event, of which some are seen */
	COUNTED = 'c',		/* as many flushes as these events stand for */
};

void touch_caches(void);
enum flush flush_of(const uint64_t *chain, int nr, bool arm64);
bool choose_flush_functions(bool arm64);

/* causes.c: why it flushes, and who can save it */

struct cause {
	const char *name;
	const char *frames;	/* patterns, of which one is enough */
	/* How many flushes tlb_batch makes one; 0: none. */
	int merged;
	bool migrc;		/* can defer it */
	const char *why;	/* it is not saved, or not by all */
};

#define THP			-1	/* as many as a huge page has pages */
#define LARGE			-2	/* not tlb_batch, but mkclean, of large folios */
#define DEVICE			-3	/* not tlb_batch, but migrate_device, of 512 pages */

extern const struct cause causes[NCAUSES];

int cause_of(enum flush kind, char **names, int nr);
int cause_named(const char *name);

/* recording.c: a recording in memory and in a file */

struct stack {
	char *text;		/* kind, then names from the leaf outwards, with ; between them */
	int cause;
	long long nr;		/* samples */
	struct { int second; long long nr; } *when;
	int seconds;
};

struct prices {
	char kernel[WORD], arch[WORD], event[WORD], leaves[WORD];
	char counts[WORD];	/* "tracepoint", or why flushes are not counted */
	double seconds, period_us;
	long long cpus, samples, lost, throttled, chainless, hotplugged, shared, thp_pages;
	long long tlb_batch, migrc;	/* -1: not in that kernel */
	long long migrated, split, interrupts;
	long long remote;	/* flushes of other CPUs; -1: this kernel does not count them */
	struct stack *stacks;
	int nr_stacks;
	double watched;		/* the part of all events that was seen */
	double spread;		/* half of the 95 % interval of their number, as a part of it */
};

void touch_stacks(void);
int add_stack(struct prices *p, const char *text, int second, long long nr);
void write_prices(const struct prices *p, FILE *out, const char *name);
void read_prices(struct prices *p, const char *name);

/* table.c: what is printed of it */

void print_prices(struct prices *p, bool json);
void write_html(struct prices *p, const char *name);

/* sampler.c: samples of all CPUs in the kernel */

int online_cpus(int *list, int room);
bool open_sampler(struct prices *p, int pages, double period_us, char *wrong, size_t size);
void drain_sampler(struct prices *p, int second);
void close_sampler(struct prices *p);

/* counts.c: flushes that are counted, by cause */

void open_counts(struct prices *p);
void count_flushes(struct prices *p, int second);
void close_counts(struct prices *p);

/* price.c */

const char *start_sampling(struct prices *p, int pages, double period_us);
int default_ring(void);

/* calibrate.c: without samples */

int price_by_counters(double seconds, bool json, const char *why, char **command);

#endif
