// SPDX-License-Identifier: GPL-2.0
/* tlbstat price: what is printed of a recording, as text, JSON and HTML */
#include "price.h"

#define TOP			3
/* A part of the samples above which the first line says that chains were not recognized. */
#define MANY_UNMATCHED		0.05

static int order[NCAUSES];
static long long count[NCAUSES];

/* Flushes: events that were seen, how many a second that makes, and causes that leave no trace. */
static long long events[NCAUSES];
static double flushes[NCAUSES];
static bool untraced[NCAUSES];

static int by_count(const void *a, const void *b)
{
	const int *x = a, *y = b;

	return count[*x] < count[*y] ? 1 : count[*x] > count[*y] ? -1 : *x - *y;
}

static void sum_up_flushes(const struct prices *p)
{
	int i;

	memset(events, 0, sizeof(events));
	memset(flushes, 0, sizeof(flushes));
	memset(untraced, 0, sizeof(untraced));
	for (i = 0; i < p->nr_stacks; i++) {
		const struct stack *s = &p->stacks[i];

		if (*s->text == EVENT)
			events[s->cause] += s->nr;
		else if (*s->text == COUNTED)
			flushes[s->cause] += s->nr / p->seconds;
		else	/* These hypervisors flush instead of the kernel. */
			untraced[s->cause] |= strstr(s->text, "hyperv_flush_tlb_multi") ||
					      strstr(s->text, "xen_flush_tlb_multi");
	}
}

static bool is_sample(const struct stack *s)
{
	return *s->text != EVENT && *s->text != COUNTED;
}

/* Returns how many samples there are in all. */
static long long sum_up(const struct prices *p)
{
	long long all = 0;
	int i;

	sum_up_flushes(p);
	memset(count, 0, sizeof(count));
	for (i = 0; i < p->nr_stacks; i++) {
		if (!is_sample(&p->stacks[i]))
			continue;
		count[p->stacks[i].cause] += p->stacks[i].nr;
		all += p->stacks[i].nr;
	}
	for (i = 0; i < NCAUSES; i++)
		order[i] = i;
	qsort(order, NCAUSES, sizeof(*order), by_count);
	return all;
}

static double ms_per_second(const struct prices *p, double samples)
{
	return samples * p->period_us / 1000 / p->seconds;
}

/* Half of the 95 % interval of a number of independent samples; of none, the end of it. */
static double interval(const struct prices *p, long long samples)
{
	return ms_per_second(p, samples ? 1.96 * sqrt(samples) : 3.7);
}

/* --- flushes ------------------------------------------------------------------------------- */

/* The half of a 95 % interval beyond which a figure says nothing, as a part of it. */
#define WIDEST			0.5

/* Square of that part, for a number of samples. */
static double spread(long long samples)
{
	return 1.96 * 1.96 / samples;
}

/* The same of flushes, of whose events only some were seen. */
static double spread_of_flushes(const struct prices *p, long long seen)
{
	return p->spread * p->spread + spread(seen) * fmax(0, 1 - p->watched);
}

/* A second, or NAN: it is not known. */
static double flushes_of(const struct prices *p, int cause)
{
	if (cause == NCAUSES - 2)
		return p->interrupts > 0 ? p->interrupts / p->seconds : NAN;
	return !events[cause] || untraced[cause] ||
	       spread_of_flushes(p, events[cause]) > WIDEST * WIDEST ? NAN : flushes[cause];
}

static double us_each(const struct prices *p, int cause)
{
	double wide = spread(count[cause]);

	if (cause != NCAUSES - 2)
		wide += spread_of_flushes(p, events[cause]);
	return !count[cause] || wide > WIDEST * WIDEST ? NAN :
	       ms_per_second(p, count[cause]) * 1000 / flushes_of(p, cause);
}

/* Of all causes, unless many samples are of those that cannot be counted. */
static double all_flushes(const struct prices *p, long long all)
{
	long long unknown = 0, seen = 0;
	double sum = 0;
	int i;

	for (i = 0; i < NCAUSES - 2; i++) {
		unknown += isnan(flushes_of(p, i)) ? count[i] : 0;
		seen += events[i];
		sum += flushes[i];
	}
	return !seen || unknown > MANY_UNMATCHED * all ||
	       spread_of_flushes(p, seen) > WIDEST * WIDEST ? NAN : sum;
}

static double us_of_all(const struct prices *p, long long all)
{
	long long own = all - count[NCAUSES - 2];

	return !own || spread(own) > WIDEST * WIDEST ? NAN :
	       ms_per_second(p, own) * 1000 / all_flushes(p, own);
}

/* --- what tlb-rs could take ---------------------------------------------------------------- */

/* An upper bound in ms per second, or NAN: nothing, or what it takes is gone already. */
static double could(const struct prices *p, int cause)
{
	const struct cause *c = &causes[cause];
	double merged = c->merged == THP ? p->thp_pages : c->merged;

	if (strcmp(p->arch, "aarch64") || !(merged > 1) || p->tlb_batch > 0)
		return NAN;
	return ms_per_second(p, count[cause]) * (1 - 1 / merged);
}

static const char *saver(const struct prices *p, int cause)
{
	static char text[200];
	const struct cause *c = &causes[cause];
	double most = could(p, cause);
	size_t n;

	if (strcmp(p->arch, "aarch64") && strcmp(p->arch, "x86_64"))
		return "nothing: tlb-rs is for arm64 and x86_64";
	if (!c->merged && !c->migrc) {
		snprintf(text, sizeof(text), "nothing: %s", c->why);
		return text;
	}
	if (c->merged == LARGE)
		return p->tlb_batch > 0 ? "mkclean is on; small folios: vm.tlb_batch_writeback=1" :
		       "most of that of large folios (mkclean)";
	if (c->merged == DEVICE)
		return p->tlb_batch >= 0 ? "migrate_device is in this kernel" :
		       "most of it, unless pages go one by one (migrate_device)";
	if (!isnan(most))
		n = snprintf(text, sizeof(text), "up to %s (tlb_batch)", brief(most));
	else if (!strcmp(p->arch, "x86_64"))
		n = snprintf(text, sizeof(text), "nothing: x86_64 waits once for a batch, too");
	else if (p->tlb_batch > 0)
		n = snprintf(text, sizeof(text), "tlb_batch is on; tlbstat ab shows what it took");
	else
		n = snprintf(text, sizeof(text), "nothing");
	if (c->migrc)
		snprintf(text + n, sizeof(text) - n, "; migrc%s, of memory that is only read%s%s",
			 p->migrc > 0 ? " is on" : "", *c->why ? ", " : "", c->why);
	else if (*c->why)
		snprintf(text + n, sizeof(text) - n, "; %s", c->why);
	return text;
}

/* --- text ---------------------------------------------------------------------------------- */

static const char *missing(const struct prices *p)
{
	static char text[80];

	if (!p->lost)
		return "none lost";
	snprintf(text, sizeof(text), "%lld LOST: all figures are too low by %.1f %%", p->lost,
		 100.0 * p->lost / (p->lost + p->samples));
	return text;
}

/* What makes figures less than they seem; each behind "; ". */
static const char *limits(const struct prices *p, long long all)
{
	static char text[800];
	int major = 0, minor = 0;
	bool arm64 = !strcmp(p->arch, "aarch64");
	size_t n = 0;

#define ROOM		(n < sizeof(text) ? sizeof(text) - n : 0)
#define SAY(...)	(n += ROOM ? snprintf(text + n, ROOM, __VA_ARGS__) : 0)
	*text = 0;
	if (!strcmp(p->event, "cpu-clock"))
		SAY("; there is no counter of cycles%s", arm64 ? "" :
		    ", and CPUs that are interrupted by flushes are not seen");
	if (arm64 && !strcmp(p->leaves, "functions"))
		SAY("; without /proc/kcore all of a function that flushes counts: an upper bound");
	if (!strcmp(p->counts, "invlpgb"))
		SAY("; flushes are not counted, as those by INVLPGB leave no trace");
	else if (!strcmp(p->counts, "untraced"))
		SAY("; flushes are not counted: the tracepoint tlb:tlb_flush needs root");
	else if (!strcmp(p->counts, "unopened"))
		SAY("; flushes are not counted: the tracepoint tlb:tlb_flush cannot be opened");
	if (p->hotplugged)
		SAY("; CPUs went on- or offline: figures are too low");
	if (p->shared)
		SAY("; others use counters of these CPUs, too: figures are too low");
	if (p->throttled)
		SAY("; the kernel throttled %lld times: figures are too low", p->throttled);
	if (p->chainless)
		SAY("; %lld samples had no chain", p->chainless);
	if (all && count[NCAUSES - 1] > MANY_UNMATCHED * all)
		SAY("; %.1f %% UNMATCHED, see below", 100.0 * count[NCAUSES - 1] / all);
	if (sscanf(p->kernel, "%d.%d", &major, &minor) != 2 || major < 6 || major > 7 ||
	    (major == 6 && minor < 1) || (major == 7 && minor > 3))
		SAY("; functions are those of Linux 6.1 to 7.3, and this one may have others");
#undef SAY
#undef ROOM
	return text;
}

static void print_wrapped(const char *text)
{
	int room = 98, n;

	for (; (int)strlen(text) > room; text += n + 1) {
		for (n = room; n && text[n] != ' '; n--)
			;
		if (!n)
			break;
		printf("%.*s\n", n, text);
	}
	puts(text);
}

static void heading(const struct prices *p, long long all, char *text, size_t size)
{
	snprintf(text, size,
		 "Linux %s %s, %lld CPUs, %s every %.1f us: %.1f s, %lld samples, %s, %.1f %s%s",
		 p->kernel, p->arch, p->cpus, p->event, p->period_us, p->seconds, p->samples,
		 missing(p), all ? 100.0 * count[NCAUSES - 1] / all : 0, "% unmatched",
		 limits(p, all));
}

static void print_unmatched(const struct prices *p)
{
	int best[TOP], nr = 0, i, k, at;

	for (i = 0; i < p->nr_stacks; i++) {
		if (p->stacks[i].cause != NCAUSES - 1 || !is_sample(&p->stacks[i]))
			continue;
		for (at = nr; at && p->stacks[best[at - 1]].nr < p->stacks[i].nr; at--)
			;
		nr += nr < TOP;
		for (k = nr - 1; k > at; k--)
			best[k] = best[k - 1];
		if (at < nr)
			best[at] = i;
	}
	if (nr)
		puts("\nunmatched chains, from the leaf outwards");
	for (i = 0; i < nr; i++)
		printf("%8lld %s\n", p->stacks[best[i]].nr, p->stacks[best[i]].text + 2);
}

/* What else was counted. */
static void print_rates(const struct prices *p, long long all, FILE *out, const char *end)
{
	fprintf(out, "meanwhile, per second: %s pages migrated, %s huge pages split",
		brief(p->migrated / p->seconds), brief(p->split / p->seconds));
	if (!strcmp(p->arch, "x86_64"))
		fprintf(out, ", %s CPUs interrupted by flushes", brief(p->interrupts / p->seconds));
	if (p->remote >= 0)
		fprintf(out, ", %s flushes of other CPUs", brief(p->remote / p->seconds));
	fputs(end, out);
	if (p->spread >= 0.01 && !isnan(all_flushes(p, all)))
		fprintf(out, "flushes/s are from windows: +- %.0f %%%s", 100 * p->spread, end);
}

static void print_text(const struct prices *p, long long all)
{
	char text[1200];
	int i, c;

	heading(p, all, text, sizeof(text));
	print_wrapped(text);
	printf("%-24s %8s %7s %10s %9s %8s  %s\n", "cause", "ms/s", "+-", "of machine",
	       "flushes/s", "us each", "tlb-rs could take (a bound)");
	for (i = 0; i < NCAUSES; i++) {
		c = order[i];
		if (!count[c])
			continue;
		printf("%-24s %8s %7s %8.3f %% %9s %8s  %s\n", causes[c].name,
		       brief(ms_per_second(p, count[c])), brief(interval(p, count[c])),
		       ms_per_second(p, count[c]) / 10 / p->cpus, brief(flushes_of(p, c)),
		       brief(us_each(p, c)), saver(p, c));
	}
	printf("%-24s %8s %7s %8.3f %% %9s %8s\n", "all flushes",
	       brief(ms_per_second(p, all)), brief(interval(p, all)),
	       ms_per_second(p, all) / 10 / p->cpus, brief(all_flushes(p, all)),
	       brief(us_of_all(p, all)));
	print_rates(p, all, stdout, "\n");
	print_unmatched(p);
}

static void print_number(const char *key, double v)
{
	printf(!isfinite(v) ? ",\"%s\":null" : ",\"%s\":%.6g", key, v);
}

static void print_json(const struct prices *p, long long all)
{
	char text[1200];
	int i, c;

	heading(p, all, text, sizeof(text));
	printf("{\"tlbstat_price\":1,\"kernel\":\"%s\",\"arch\":\"%s\",\"event\":\"%s\"", p->kernel,
	       p->arch, p->event);
	print_number("cpus", p->cpus);
	print_number("seconds", p->seconds);
	print_number("period_us", p->period_us);
	printf(",\"samples\":%lld,\"lost\":%lld", p->samples, p->lost);
	printf(",\"throttled\":%lld,\"flush_samples\":%lld", p->throttled, all);
	print_number("unmatched", all ? (double)count[NCAUSES - 1] / all : 0);
	print_number("ms_per_s", ms_per_second(p, all));
	print_number("flushes_per_s", all_flushes(p, all));
	print_number("us_each", us_of_all(p, all));
	print_number("spread_of_flushes", isnan(all_flushes(p, all)) ? NAN : p->spread);
	printf(",\"heading\":\"%s\",\"causes\":[", text);
	for (i = 0; i < NCAUSES && count[order[i]]; i++) {
		c = order[i];
		printf("%s{\"cause\":\"%s\"", i ? "," : "", causes[c].name);
		printf(",\"samples\":%lld", count[c]);
		print_number("ms_per_s", ms_per_second(p, count[c]));
		print_number("interval", interval(p, count[c]));
		print_number("flushes_per_s", flushes_of(p, c));
		print_number("us_each", us_each(p, c));
		print_number("could", could(p, c));
		printf(",\"saver\":\"%s\"}", saver(p, c));
	}
	puts("]}");
}

void print_prices(struct prices *p, bool json)
{
	long long all = sum_up(p);

	if (json)
		print_json(p, all);
	else
		print_text(p, all);
}

/* --- HTML ---------------------------------------------------------------------------------- */

#define WIDE			800
#define HIGH			200
#define BINS			200
#define COLOURS			8
#define RECT			"<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" " \
				"fill=\"%s\"/>\n"

static const char * const colours[COLOURS] = {
	"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#999999"
};

/* The causes by size have a colour each; what is behind the last one shares it. */
static int colour_of(int cause)
{
	int i;

	for (i = 0; order[i] != cause; i++)
		;
	return i < COLOURS ? i : COLOURS - 1;
}

static void html_over_time(const struct prices *p, FILE *out)
{
	static double sum[BINS][COLOURS];
	/* What is behind the last whole second belongs to it. */
	int last = llround(p->seconds) - 1, bins, i, k, at;
	double high = 0, all, base, part, wide;
	const struct stack *s;

	last = last > 0 ? last : 0;
	bins = last + 1 < BINS ? last + 1 : BINS;
	memset(sum, 0, sizeof(sum));
	for (i = 0; i < p->nr_stacks; i++) {
		s = &p->stacks[i];
		for (k = 0; k < s->seconds && is_sample(s); k++) {
			at = s->when[k].second < last ? s->when[k].second : last;
			at = (long long)at * bins / (last + 1);
			wide = (last + 1.0) / bins;
			wide = at < bins - 1 ? wide : p->seconds - wide * (bins - 1);
			sum[at][colour_of(s->cause)] += s->when[k].nr * p->period_us / 1000 /
							wide;
		}
	}
	for (i = 0; i < bins; i++) {
		for (k = 0, all = 0; k < COLOURS; k++)
			all += sum[i][k];
		high = fmax(high, all);
	}
	fprintf(out, "<h2>ms per second, over %.1f s</h2>\n", p->seconds);
	fprintf(out, "<svg width=\"%d\" height=\"%d\">\n", WIDE + 100, HIGH + 40);
	for (at = 0; high > 0 && at * scale_step(high) <= high; at++) {
		base = 10 + HIGH - at * scale_step(high) / high * HIGH;
		fprintf(out, "<path d=\"M70 %.1fh%d\" stroke=\"#ddd\"/>", base, WIDE);
		fprintf(out, "<text x=\"62\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", base + 5,
			brief(at * scale_step(high)));
	}
	for (at = 0; at * scale_step(p->seconds) <= p->seconds; at++)
		fprintf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s s</text>\n",
			70 + WIDE * at * scale_step(p->seconds) / (last + 1), HIGH + 30,
			brief(at * scale_step(p->seconds)));
	for (i = 0; i < bins && high > 0; i++) {
		for (k = 0, base = 0; k < COLOURS; k++, base += part) {
			part = sum[i][k] / high * HIGH;
			if (part > 0)
				fprintf(out, RECT, 70 + (double)WIDE * i / bins,
					10 + HIGH - base - part, (double)WIDE / bins - 0.5, part,
					colours[k]);
		}
	}
	fputs("</svg>\n", out);
}

#define CELL			"<td class=\"n\">%s"

static void html_causes(const struct prices *p, long long all, FILE *out)
{
	double most = ms_per_second(p, count[order[0]]) + interval(p, count[order[0]]), ms, half;
	int i, c;

	fputs("<table><tr><th>cause<th><th class=\"n\">ms/s<th class=\"n\">95 % interval\n"
	      "<th class=\"n\">of machine<th class=\"n\">samples<th class=\"n\">flushes/s\n"
	      "<th class=\"n\">us each<th>tlb-rs could take (a bound)</tr>\n", out);
	for (i = 0; i < NCAUSES && count[order[i]]; i++) {
		c = order[i];
		ms = ms_per_second(p, count[c]);
		half = interval(p, count[c]);
		fprintf(out, "<tr><td>%s<td>", causes[c].name);
		fputs("<svg width=\"204\" height=\"14\">", out);
		fprintf(out, RECT, 0.0, 0.0, 200 * ms / most, 14.0,
			colours[i < COLOURS ? i : COLOURS - 1]);
		fprintf(out, "<path d=\"M%.1f 7H%.1f\" stroke=\"black\"/></svg>",
			200 * fmax(ms - half, 0) / most, 200 * (ms + half) / most);
		fprintf(out, CELL "<td class=\"n\">%s to %s", brief(ms), brief(fmax(ms - half, 0)),
			brief(ms + half));
		fprintf(out, "<td class=\"n\">%.3f %%<td class=\"n\">%lld", ms / 10 / p->cpus,
			count[c]);
		fprintf(out, CELL CELL "<td>%s</tr>\n", brief(flushes_of(p, c)),
			brief(us_each(p, c)), saver(p, c));
	}
	ms = ms_per_second(p, all);
	half = interval(p, all);
	fputs("<tr class=\"all\"><td>all flushes<td>", out);
	fprintf(out, CELL "<td class=\"n\">%s to %s", brief(ms), brief(fmax(ms - half, 0)),
		brief(ms + half));
	fprintf(out, "<td class=\"n\">%.3f %%<td class=\"n\">%lld", ms / 10 / p->cpus, all);
	fprintf(out, CELL CELL "<td></tr>\n</table>\n", brief(all_flushes(p, all)),
		brief(us_of_all(p, all)));
}

void write_html(struct prices *p, const char *name)
{
	FILE *out = strcmp(name, "-") ? fopen(name, "we") : stdout;
	long long all = sum_up(p);
	char text[1200];

	if (!out)
		err(FAILURE, "%s", name);
	heading(p, all, text, sizeof(text));
	fputs("<!DOCTYPE html>\n<html><head><meta charset=\"utf-8\"><title>tlbstat price</title>\n"
	      "<style>body{font:14px sans-serif;margin:2em;color:#222}p{max-width:60em}\n"
	      "table{border-collapse:collapse}td,th{text-align:left;padding:3px 10px}\n"
	      "td{border-top:1px solid #ddd}.n{text-align:right;white-space:nowrap}\n"
	      "td:first-child{white-space:nowrap}\n"
	      "tr.all td{border-top:2px solid #888;font-weight:bold}</style>\n"
	      "</head><body><h1>What TLB flushes cost</h1>\n", out);
	fprintf(out, "<p>%s</p>\n", text);
	if (all) {
		html_causes(p, all, out);
		fputs("<p>", out);
		print_rates(p, all, out, "<br>\n");
		fputs("</p>\n", out);
		html_over_time(p, out);
	} else {
		fputs("<p>No sample was in a flush.</p>\n", out);
	}
	fputs("</body></html>\n", out);
	if (fflush(out) || ferror(out) || (out != stdout && fclose(out)))
		failed_output(out == stdout ? NULL : name);
}
