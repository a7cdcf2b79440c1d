// SPDX-License-Identifier: GPL-2.0
/* tlbstat: what was recorded, as text and plots */
#include "tlbstat.h"

/* --- report ------------------------------------------------------------------------------ */

static struct point {
	double end;		/* of the interval, since the first sample */
	double v[NCOLS];
} *points;

static int nr_points;

static void add_point(double end, const struct sample *was, const struct sample *now)
{
	static int room;
	int i;

	if (nr_points == room) {
		room = room ? 2 * room : 64;
		points = realloc(points, room * sizeof(*points));
		if (!points)
			err(FAILURE, "%d samples", room);
	}
	points[nr_points].end = end;
	for (i = 0; i < NCOLS; i++)
		points[nr_points].v[i] = column(i, was, now, now->uptime - was->uptime);
	nr_points++;
}

/* Of column @c in the @i-th of @n parts of the recording; returns the mean. */
static double part(int c, int i, int n, double *low, double *high)
{
	long k = (long)nr_points * i / n, end = (long)nr_points * (i + 1) / n;
	double sum = 0, found = 0, seconds;

	*low = *high = NAN;
	for (; k < end; k++) {
		if (isnan(points[k].v[c]))
			continue;
		*low = fmin(*low, points[k].v[c]);
		*high = fmax(*high, points[k].v[c]);
		seconds = points[k].end - (k ? points[k - 1].end : 0);
		sum += points[k].v[c] * seconds;
		found += seconds;
	}
	return sum / found;
}

static void print_sparklines(void)
{
	static const char * const utf8[] = {
		" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"
	};
	static const char * const ascii[] = { " ", ".", ",", "-", "=", "+", "*", "%", "#" };
	static const char * const locale[] = { "LC_ALL", "LC_CTYPE", "LANG" };
	int c, i, n = nr_points < 48 ? nr_points : 48;
	double low, high, mean, v, a, b;
	const char * const *mark;
	const char *lang = "";

	/* An empty one counts as none. */
	for (i = 0; i < ARRAY_SIZE(locale) && !*lang; i++)
		lang = getenv(locale[i]) ?: "";
	mark = strcasestr(lang, "utf") ? utf8 : ascii;
	printf("%-17s %6s %6s %6s  over time\n", "", "least", "mean", "most");
	for (c = 0; c < NCOLS; c++) {
		mean = part(c, 0, 1, &low, &high);
		if (!shown[c] || isnan(high))
			continue;
		printf("%-8s %-8s %6s %6s %6s  ", columns[c].group, columns[c].name, brief(low),
		       brief(mean), brief(high));
		for (i = 0; i < n; i++) {
			v = part(c, i, n, &a, &b);
			fputs(mark[v > 0 ? 1 + (int)(7 * v / high) : 0], stdout);
		}
		putchar('\n');
	}
}

/* A plot is WIDE x HIGH, with room for its title and axes around it. */
#define WIDE			640
#define HIGH			110
#define PANEL			180
#define AXIS			"<path d=\"M0 %dh%d\" stroke=\"#ddd\"/>"
#define LABEL			"<text x=\"%d\" y=\"%d\" text-anchor=\"%s\">%s%s</text>\n"

/* Between two lines of a scale, of which there are about four: 1, 2 or 5 times a power of ten. */
double scale_step(double high)
{
	double power = pow(10, floor(log10(high / 4))), of = high / 4 / power;

	return power * (of > 5 ? 10 : of > 2 ? 5 : of > 1 ? 2 : 1);
}

static void svg_axis(FILE *out, int *panel, const char *group, const char *title, double high)
{
	int i, at;

	fprintf(out, "<g transform=\"translate(70,%d)\">\n", 60 + PANEL * (*panel)++);
	fprintf(out, "<text y=\"-10\">%s %s</text>\n", group, title);
	for (i = 0; i * scale_step(high) <= high; i++) {
		at = HIGH - HIGH * i * scale_step(high) / high;
		fprintf(out, AXIS, at, WIDE);
		fprintf(out, LABEL, -8, at + 4, "end", brief(i * scale_step(high)), "");
	}
}

static void svg_line(FILE *out, int *panel, int c)
{
	double low, high, a, b, v, end = points[nr_points - 1].end;
	int i, n = nr_points < WIDE ? nr_points : WIDE;
	bool pen = false;
	char title[80];

	part(c, 0, 1, &low, &high);
	if (!(high > 0))
		return;
	snprintf(title, sizeof(title), "%s: %s%s", columns[c].name, columns[c].help,
		 columns[c].kind == RATE ? ", per second" : "");
	svg_axis(out, panel, columns[c].group, title, high);
	for (i = 0; i * scale_step(end) <= end; i++)
		fprintf(out, LABEL, (int)(WIDE * i * scale_step(end) / end), HIGH + 16, "middle",
			brief(i * scale_step(end)), " s");
	fputs("<path fill=\"none\" stroke=\"#0072b2\" stroke-width=\"2\" ", out);
	fputs("stroke-linecap=\"round\" d=\"", out);
	for (i = 0; i < n; i++) {
		v = part(c, i, n, &a, &b);
		/* h0.1: a point that stands alone is seen, too. */
		if (!isnan(v))
			fprintf(out, "%c%.1f %.1fh0.1", pen ? 'L' : 'M',
				points[(long)nr_points * (i + 1) / n - 1].end / end * WIDE,
				HIGH - fmax(v, 0) / high * HIGH);
		pen = !isnan(v);
	}
	fputs("\"/></g>\n", out);
}

static void svg_bars(FILE *out, int *panel, const struct sample *s, const char *prefix,
		     const char *head)
{
	double high = 0;
	int i, n = 0, at = 0, wide;

	for (i = 0; i < s->nr; i++) {
		high = starts(s->e[i].key, prefix) ? fmax(high, s->e[i].val) : high;
		n += starts(s->e[i].key, prefix);
	}
	if (!(high > 0))
		return;
	svg_axis(out, panel, "", head, high);
	wide = WIDE / n;
	for (i = 0; i < s->nr; i++) {
		if (!starts(s->e[i].key, prefix))
			continue;
		fprintf(out, "<path fill=\"#0072b2\" d=\"M%d %dv-%.1fh%dV%dz\"/>",
			at * wide + 2, HIGH, fmax(s->e[i].val, 0) / high * HIGH, wide - 4, HIGH);
		fprintf(out, LABEL, at * wide + wide / 2, HIGH + 16 + 12 * (at % 2), "middle",
			s->e[i].key + strlen(prefix), "");
		at++;
	}
	fputs("</g>\n", out);
}

/* Who reads no more, as head does, wants no message. */
void failed_output(const char *name)
{
	if (errno == EPIPE)
		exit(FAILURE);
	err(FAILURE, "%s", name ?: "standard output");
}

static void write_svg(const char *name, const struct sample *sum)
{
	FILE *out = strcmp(name, "-") ? fopen(name, "we") : stdout, *body;
	int i, panel = 0;
	size_t size;
	char *text;

	if (!out)
		err(FAILURE, "%s", name);
	/* The height follows from the number of panels. */
	body = open_memstream(&text, &size);
	if (!body)
		err(FAILURE, "%s", name);
	for (i = 0; i < NCOLS; i++)
		svg_line(body, &panel, i);
	for (i = 0; i < NFAMILIES; i++)
		svg_bars(body, &panel, sum, families[i].prefix, families[i].head);
	fclose(body);
	fputs("<svg xmlns=\"http://www.w3.org/2000/svg\" font-family=\"sans-serif\" ", out);
	fprintf(out, "font-size=\"11\" width=\"%d\" height=\"%d\">", WIDE + 110,
		40 + PANEL * panel);
	fputs("<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n", out);
	fprintf(out, "<text x=\"10\" y=\"20\">tlbstat: Linux %s %s</text>\n%s</svg>\n", sum->kernel,
		sum->arch, text);
	if (fflush(out) || ferror(out) || (out != stdout && fclose(out)))
		failed_output(out == stdout ? NULL : name);
	free(text);
}

int report(const char *name, const char *svg)
{
	static struct sample two[2], sum;
	struct sample *was = &two[0], *now = &two[1], *spare;
	FILE *f = open_recording(name);
	int line = 0, skipped = 0;
	double seconds = 0;
	struct stat in, out;

	if (svg && !fstat(fileno(f), &in) && !stat(svg, &out) && S_ISREG(in.st_mode) &&
	    in.st_dev == out.st_dev && in.st_ino == out.st_ino)
		errx(USAGE, "%s is the recording: --svg needs a file of its own", svg);
	if (!next_sample(f, name, &line, was))
		errx(FAILURE, "%s: there is no sample in it", name);
	choose_columns(was);
	while (next_sample(f, name, &line, now)) {
		if (!same_boot(was, now)) {
			warnx("%s:%d: booted before that; counted from the boot", name, line);
			choose_columns(now);
			accumulate(&sum, NULL, now);
			seconds += now->uptime;
		} else if (now->uptime > was->uptime) {
			accumulate(&sum, was, now);
			seconds += now->uptime - was->uptime;
			add_point(seconds, was, now);
		} else {
			/* There are no rates of no time. The next one has what it counted. */
			skipped++;
			continue;
		}
		spare = was;
		was = now;
		now = spare;
	}
	if (skipped)
		warnx("%s: samples no later than the one before, left out: %d", name, skipped);
	if (!nr_points)
		errx(FAILURE, "%s: there are no two samples of one boot in it", name);
	/* Plots on standard output are alone there. */
	if (!svg || strcmp(svg, "-")) {
		print_block(&sum, seconds, "recorded");
		print_sparklines();
	}
	if (svg)
		write_svg(svg, &sum);
	return 0;
}
