// SPDX-License-Identifier: GPL-2.0
/*
 * tlbstat price: a recording in memory and in a file
 *
 * A file begins with a line "tlbstat-price 1", then has a line "name value" for each figure, an
 * empty line, and a line for each second of each stack: second, samples, kind and functions.
 */
#include "price.h"

#define BUCKETS			4096

/* Chains of stacks with the same hash, by number from 1. */
static int *chained, first[BUCKETS];

void touch_stacks(void)
{
	memset(first, 0, sizeof(first));
}

static struct stack *stack_of(struct prices *p, const char *text)
{
	static int room;
	unsigned int hash = 5381;
	struct stack *s;
	const char *at;
	int i;

	for (at = text; *at; at++)
		hash = hash * 33 + (unsigned char)*at;
	hash %= BUCKETS;
	for (i = first[hash]; i; i = chained[i - 1])
		if (!strcmp(p->stacks[i - 1].text, text))
			return &p->stacks[i - 1];
	if (p->nr_stacks == room) {
		room = room ? 2 * room : 256;
		p->stacks = realloc(p->stacks, room * sizeof(*p->stacks));
		chained = realloc(chained, room * sizeof(*chained));
		if (!p->stacks || !chained)
			err(FAILURE, "%d stacks", room);
	}
	s = &p->stacks[p->nr_stacks];
	memset(s, 0, sizeof(*s));
	s->text = strdup(text);
	if (!s->text)
		err(FAILURE, "stacks");
	chained[p->nr_stacks] = first[hash];
	first[hash] = ++p->nr_stacks;
	return s;
}

static int classify(const char *text)
{
	static char copy[LINE];
	char *names[DEPTH + 1], *at;
	int nr = 0;

	snprintf(copy, sizeof(copy), "%s", text + 2);
	for (at = strtok(copy, ";"); at && nr <= DEPTH; at = strtok(NULL, ";"))
		names[nr++] = at;
	return cause_of(*text, names, nr);
}

/* Returns its number. */
int add_stack(struct prices *p, const char *text, int second, long long nr)
{
	struct stack *s = stack_of(p, text);

	if (!s->nr)
		s->cause = classify(text);
	s->nr += nr;
	if (!s->seconds || s->when[s->seconds - 1].second != second) {
		/* As many as powers of two. */
		if (!(s->seconds & (s->seconds - 1))) {
			s->when = realloc(s->when, (2 * s->seconds + 1) * sizeof(*s->when));
			if (!s->when)
				err(FAILURE, "seconds");
		}
		s->when[s->seconds].second = second;
		s->when[s->seconds++].nr = 0;
	}
	s->when[s->seconds - 1].nr += nr;
	return s - p->stacks;
}

/* --- files --------------------------------------------------------------------------------- */

/* What a file has, by name. A text has only harmless letters. */
static const struct {
	const char *name;
	enum { TEXT, REAL, WHOLE } kind;
	size_t at;
} fields[] = {
#define AT(what)		offsetof(struct prices, what)
	{ "kernel", TEXT, AT(kernel) },
	{ "arch", TEXT, AT(arch) },
	{ "event", TEXT, AT(event) },
	{ "leaves", TEXT, AT(leaves) },
	{ "counts", TEXT, AT(counts) },
	{ "seconds", REAL, AT(seconds) },
	{ "period_us", REAL, AT(period_us) },
	{ "cpus", WHOLE, AT(cpus) },
	{ "samples", WHOLE, AT(samples) },
	{ "lost", WHOLE, AT(lost) },
	{ "throttled", WHOLE, AT(throttled) },
	{ "chainless", WHOLE, AT(chainless) },
	{ "hotplugged", WHOLE, AT(hotplugged) },
	{ "shared", WHOLE, AT(shared) },
	{ "thp_pages", WHOLE, AT(thp_pages) },
	{ "tlb_batch", WHOLE, AT(tlb_batch) },
	{ "migrc", WHOLE, AT(migrc) },
	{ "migrated", WHOLE, AT(migrated) },
	{ "split", WHOLE, AT(split) },
	{ "interrupts", WHOLE, AT(interrupts) },
	{ "remote", WHOLE, AT(remote) },
	{ "watched", REAL, AT(watched) },
	{ "spread", REAL, AT(spread) },
};

void write_prices(const struct prices *p, FILE *out, const char *name)
{
	const struct stack *s;
	const void *at;
	int i, k;

	fputs("tlbstat-price 1\n", out);
	for (i = 0; i < ARRAY_SIZE(fields); i++) {
		at = (const char *)p + fields[i].at;
		if (fields[i].kind == TEXT)
			fprintf(out, "%s %s\n", fields[i].name, (const char *)at);
		else if (fields[i].kind == REAL)
			fprintf(out, "%s %.6f\n", fields[i].name, *(const double *)at);
		else
			fprintf(out, "%s %lld\n", fields[i].name, *(const long long *)at);
	}
	putc('\n', out);
	for (i = 0; i < p->nr_stacks; i++) {
		s = &p->stacks[i];
		for (k = 0; k < s->seconds; k++)
			fprintf(out, "%d %lld %s\n", s->when[k].second, s->when[k].nr, s->text);
	}
	if (fflush(out) || ferror(out))
		failed_output(name);
}

static const char *set_field(struct prices *p, char *line)
{
	char *value = strchr(line, ' ');
	double real;
	void *at;
	int i;

	if (!value)
		return "no value";
	*value++ = 0;
	for (i = 0; i < ARRAY_SIZE(fields) && strcmp(fields[i].name, line); i++)
		;
	if (i == ARRAY_SIZE(fields))
		return "a name that is not known";
	at = (char *)p + fields[i].at;
	if (fields[i].kind == TEXT) {
		set_text(at, WORD, value);
		/* Of the event. */
		if (strchr(value, ':') && strchr(at, '_'))
			*strchr(at, '_') = ':';
	} else if (fields[i].kind == REAL) {
		real = strtod(value, NULL);
		if (!isfinite(real) || real < 0 || real > 1e9)
			return "a number that cannot be";
		*(double *)at = real;
	} else if (!number(value, at)) {
		return "no number";
	}
	return NULL;
}

static const char *set_stack(struct prices *p, char *line)
{
	int second, n = 0;
	long long nr;
	char *at;

	if (sscanf(line, "%d %lld %n", &second, &nr, &n) != 2 || !n || second < 0 ||
	    second > 10000000 || nr < 1 || nr > 1000000000000 || !strchr("wivec", line[n]) ||
	    !line[n] || line[n + 1] != ' ' || !line[n + 2])
		return "no stack";
	for (at = line + n + 2; *at; at++)
		if (!isalnum((unsigned char)*at) && !strchr("_;.$", *at))
			return "a name of strange letters";
	if (strlen(line + n) >= LINE)
		return "a stack that is too long";
	add_stack(p, line + n, second, nr);
	return NULL;
}

void read_prices(struct prices *p, const char *name)
{
	FILE *f = open_recording(name);
	const char *wrong = NULL;
	bool stacks = false;
	int nr = 0;
	char *line;

	p->tlb_batch = -1;
	p->migrc = -1;
	p->remote = -1;
	while ((line = next(f))) {
		line[strcspn(line, "\n")] = 0;
		if (!nr++)
			wrong = strcmp(line, "tlbstat-price 1") ?
				"not of tlbstat price record, or of another version" : NULL;
		else if (!*line)
			stacks = true;
		else
			wrong = stacks ? set_stack(p, line) : set_field(p, line);
		if (wrong)
			errx(FAILURE, "%s:%d: %s", name, nr, wrong);
	}
	if (!nr || !(p->seconds > 0) || !(p->period_us > 0) || p->cpus < 1)
		errx(FAILURE, "%s: there are no samples in it", name);
}
