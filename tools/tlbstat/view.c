// SPDX-License-Identifier: GPL-2.0
/* tlbstat: columns, JSON and text */
#include "tlbstat.h"

/* --- columns ------------------------------------------------------------------------- */

const struct column columns[NCOLS] = {
	{ "pages", "moved", "pgmigrate_success", RATE, "pages migrated" },
	{ "pages", "splits", "thp_split_page", RATE, "huge pages split" },
	{ "stalls", "comp", "compact_stall", RATE, "allocations that had to compact first" },
	{ "stalls", "nothp", "thp_fault_fallback", RATE, "faults that found no huge page" },
	{ "stalls", "psi_ms", "psi_some_ms", RATE, "time that a task waited for memory (ms)" },
	{ "x86", "ipis", "tlb_interrupts", RATE, "CPUs interrupted for a TLB shootdown" },
	{ "flushes", "pages", "tlb_batch_pages", RATE, "pages whose flushes were batched" },
	{ "flushes", "issued", "tlb_batch_ranges", RATE, "ranges flushed for them" },
	{ "flushes", "avoid", "tlb_batch_avoided", RATE, "the difference: flushes avoided" },
	{ "flushes", "waits", "tlb_batch_flush", RATE, "waits for their completion" },
	{ "deferred", "defer", "migrc_deferred", RATE, "pages migrated without a flush" },
	{ "deferred", "demote", "migrc_deferred_demote", RATE, "pages of them, demoted" },
	{ "deferred", "deny", "migrc_denied", RATE, "pages that had to be flushed" },
	{ "deferred", "why", "migrc.denied.", WHY, "for what most of them were denied" },
	{ "deferred", "flush", "migrc_flush", RATE, "address spaces flushed for deferred pages" },
	{ "deferred", "held", "migrc_held", GAUGE, "depth of the ledger: pages kept for a flush" },
	{ "deferred", "age_ms", "migrc.age.", WORST, "oldest page that was drained, below (ms)" },
	{ "pauses", "pause", "cpu_pause", RATE, "times that all other CPUs were paused" },
	{ "pauses", "cancel", "cpu_pause_cancelled", RATE, "attempts that a CPU did not answer" },
	{ "pauses", "stopm", "cpu_pause_fallback", RATE, "pauses by stop_machine() instead" },
	{ "pauses", "max_us", "hvo.below_us.", WORST, "the longest pause was below (us)" },
	{ "vmemmap", "saved", "vmemmap_saved_bytes", MIBS,
	  "struct pages given back (MiB), less page_ext" },
	{ "vmemmap", "could", "estimate.vmemmap_bytes", MIBS, "could be, besides (MiB)" },
	{ "estimate", "flush", "estimate.flushes", RATE, "flushes that could be fewer" },
	{ "estimate", "defer", "estimate.deferrable", RATE, "flushes that could be deferred" },
};

const struct counter counters[NCOUNTERS] = {
	{ "numa_pages_migrated", "pages migrated by NUMA balancing" },
	{ "psi_full_ms", "time that all tasks waited for memory (ms)" },
	{ "compact_migrate_scanned", "pages that compaction looked at, to move them" },
	{ "thp_fault_alloc", "faults that got a huge page" },
	{ "trace_lost", "trace events lost: pages by reason are too few" },
	{ "thp_migration_success", "huge pages migrated in one piece" },
	{ "nr_tlb_remote_flush", "flushes on other CPUs (x86, CONFIG_DEBUG_TLBFLUSH)" },
	{ "nr_tlb_remote_flush_received", "the same, times CPUs" },
	{ "nr_tlb_local_flush_all", "flushes of all of the local TLB" },
	{ "nr_tlb_local_flush_one", "flushes of a page in it" },
	{ "tlb_batch_overflow", "ranges issued early for want of room" },
	{ "tlb_batch_restored", "pages of large folios mapped again in runs" },
	{ "tlb_batch_mkclean", "folios cleaned together for writeback" },
	{ "tlb_batch.restored_runs", "runs of them" },
	{ "migrc_drain_age", "drains because of age" },
	{ "migrc_drain_pressure", "drains because memory was short" },
	{ "migrc_readmostly_miss", "write faults because of vm.migrc_readmostly" },
	{ "migrc.readmostly.protected", "pages that lost write permission for it" },
	{ "hvo_pte_updates", "page table entries of struct pages changed" },
	{ "hvo_flush", "invalidations for those that changed without a pause" },
	{ "hvo_young", "entries that a CPU used at that moment, and that were tried again" },
	{ "hvo.busy", "attempts in which CPU hotplug was in the way" },
	{ "hvo.copies", "pages copied in pauses" },
	{ "hvo.access_flag", "whether all CPUs set the access flag, so that nobody pauses" },
	{ "hvo.ack_ns", "time until all CPUs had stopped, or it was cancelled (ns)" },
	{ "hvo.paused_ns", "time from then until they went on, or all of stop_machine() (ns)" },
};

const struct family families[NFAMILIES] = {
	{ "trace.", "pages migrated, by reason (--trace)" },
	{ "tlb_batch.ranges.", "ranges flushed, by reason" },
	{ "tlb_batch.pages.", "pages in them, by reason" },
	{ "migrc.denied.", "pages denied, by reason" },
	{ "migrc.drain.", "drains, by reason" },
	{ "migrc.drain_pages.", "pages drained, by reason" },
	{ "migrc.hook.", "flushes by hooks, before entries change" },
	{ "migrc.age.", "pages drained, the oldest below N ms" },
	{ "hvo.pauses.", "pauses, by reason" },
	{ "hvo.entries.", "entries changed, by reason" },
	{ "hvo.below_us.", "pauses, below N us" },
};

/* The suffix of the entry of a family that is last, or grew most; NULL: none grew. */
static const char *grown(const struct sample *was, const struct sample *now, const char *prefix,
			 bool most)
{
	const struct entry *e, *before;
	const char *found = NULL;
	double n, best = 0;
	int i;

	for (i = 0; i < now->nr; i++) {
		e = &now->e[i];
		if (!starts(e->key, prefix))
			continue;
		before = was ? find(was, e->key, i) : NULL;
		n = (double)e->val - (before ? before->val : 0);
		if (n > best) {
			best = most ? n : 0;
			found = e->key + strlen(prefix);
		}
	}
	return found;
}

/* Without @was, rates are since the boot. */
double column(int c, const struct sample *was, const struct sample *now, double seconds)
{
	const struct column *col = &columns[c];
	const struct entry *e = find(now, col->key, 0), *before;
	const char *last;

	if (col->kind == WORST) {
		last = grown(was, now, col->key, false);
		return last ? atof(last) : NAN;
	}
	before = was ? find(was, col->key, 0) : NULL;
	if (!e || (col->kind == RATE && (seconds <= 0 || (was && !before))))
		return NAN;
	if (col->kind != RATE)
		return col->kind == MIBS ? e->val / MIB : e->val;
	if (before && before->val > e->val)
		return NAN;
	return ((double)e->val - (before ? before->val : 0)) / seconds;
}

/* --- JSON: a flat object in a line ----------------------------------------------------- */

void write_json(FILE *out, const struct sample *was, const struct sample *s)
{
	double seconds = was ? s->uptime - was->uptime : 0, v;
	int i;

	fprintf(out, "{\"tlbstat\":1,\"time\":%.3f,\"uptime\":%.3f", s->time, s->uptime);
	fprintf(out, ",\"boot_id\":\"%s\",\"kernel\":\"%s\",\"arch\":\"%s\"", s->boot_id, s->kernel,
		s->arch);
	for (i = 0; i < s->nr; i++)
		fprintf(out, ",\"%s\":%lld", s->e[i].key, s->e[i].val);
	for (i = 0; i < NCOUNTERS; i++)
		if (!has(s, counters[i].key))
			fprintf(out, ",\"%s\":null", counters[i].key);
	for (i = 0; i < NCOLS; i++)
		if (columns[i].kind < WORST && !has(s, columns[i].key))
			fprintf(out, ",\"%s\":null", columns[i].key);
	if (was)
		fprintf(out, ",\"interval\":%.3f", seconds);
	for (i = 0; i < NCOLS && was; i++) {
		v = column(i, was, s, seconds);
		if (columns[i].kind != WHY)
			fprintf(out, isnan(v) ? ",\"rate.%s.%s\":null" : ",\"rate.%s.%s\":%.3f",
				columns[i].group, columns[i].name, v);
	}
	fputs("}\n", out);
}

/* Returns what is wrong with the line, or NULL. Strings have no escapes: none is written. */
static const char *parse_json(const char *p, struct sample *s)
{
	char key[64], text[64], *end;
	bool version = false;
	double v;
	int n;

	memset(s, 0, sizeof(*s));
	p += strspn(p, " \t");
	if (*p != '{')
		return "no JSON object";
	do {
		n = 0;
		if (sscanf(++p, " \"%63[^\"\\]\" : %n", key, &n) != 1 || !n)
			return "no \"key\": in it";
		p += n;
		n = 0;
		end = NULL;
		if (sscanf(p, "\"%63[^\"\\]\" %n", text, &n) == 1 && n) {
			if (!strcmp(key, "boot_id"))
				set_text(s->boot_id, sizeof(s->boot_id), text);
			else if (!strcmp(key, "kernel"))
				set_text(s->kernel, sizeof(s->kernel), text);
			else if (!strcmp(key, "arch"))
				set_text(s->arch, sizeof(s->arch), text);
		} else if (starts(p, "null") || starts(p, "\"\"")) {
			n = *p == 'n' ? 4 : 2;
		} else if (isdigit((unsigned char)p[*p == '-'])) {
			v = strtod(p, &end);
			n = end - p;
			if (!(fabs(v) < 9e18))
				return "a number is too large";
			if (!strcmp(key, "tlbstat"))
				version = v == 1;
			else if (!strcmp(key, "time"))
				s->time = v;
			else if (!strcmp(key, "uptime"))
				s->uptime = v;
			else if (strcmp(key, "interval") && !starts(key, "rate.") &&
				 !add(s, strcspn(p, ".eE") < (size_t)n ? (long long)v : atoll(p),
				      "%s", key))
				return "a key is too long, or of strange letters, or one too many";
		} else {
			return "a value is no number, short string or null";
		}
		p += n;
		p += strspn(p, " \t\r\n");
	} while (*p == ',');
	if (*p != '}' || p[1 + strspn(p + 1, " \t\r\n")])
		return "the object does not end with }";
	return version ? NULL : "no \"tlbstat\":1 in it: not of tlbstat, or of another version";
}

/* The next sample of a recording, or false. */
bool next_sample(FILE *f, const char *name, int *nr, struct sample *s)
{
	static char line[1 << 16];
	const char *wrong;
	bool whole;

	while (fgets(line, sizeof(line), f)) {
		++*nr;
		whole = strchr(line, '\n');
		if (!whole && !feof(f))
			errx(FAILURE, "%s:%d: too long, or with a zero byte", name, *nr);
		if (!line[strspn(line, " \t\r\n")])
			continue;
		wrong = parse_json(line, s);
		if (!wrong)
			return true;
		if (whole || *nr == 1)
			errx(FAILURE, "%s:%d: %s", name, *nr, wrong);
		/* Who recorded it was killed. */
		warnx("%s:%d: the last line is torn, and left out", name, *nr);
	}
	if (ferror(f))
		err(FAILURE, "%s", name);
	return false;
}

FILE *open_recording(const char *name)
{
	FILE *f = strcmp(name, "-") ? fopen(name, "re") : stdin;

	if (!f)
		err(FAILURE, "%s", name);
	return f;
}

/* --- text ------------------------------------------------------------------------------ */

/* At most six letters. */
const char *brief(double v)
{
	static char text[8][32];
	static int turn;
	char *to = text[turn++ % 8];
	const char *unit = "kMGTPE";

	if (isnan(v))
		return "-";
	if (fabs(v) < 99999.5) {
		snprintf(to, sizeof(text[0]), "%.*f",
			 v == rint(v) || fabs(v) >= 1000 ? 0 : fabs(v) < 1 ? 2 : 1, v);
		return to;
	}
	for (v /= 1000; fabs(v) >= 999.5 && unit[1]; v /= 1000)
		unit++;
	snprintf(to, sizeof(text[0]), fabs(v) < 99.95 ? "%.1f%c" : "%.0f%c", v, *unit);
	return to;
}

/* Groups of which the kernel has nothing are left out. */
bool shown[NCOLS];

void choose_columns(const struct sample *s)
{
	int i, j;

	for (i = 0; i < NCOLS; i++)
		for (j = 0; j < NCOLS; j++)
			if (!strcmp(columns[i].group, columns[j].group) && has(s, columns[j].key))
				shown[i] = true;
}

static int width(int c)
{
	return columns[c].kind == WHY ? 13 : 6;
}

void print_heading(void)
{
	static const char dashes[] = "---------------------------";
	int i, j, left;

	for (i = 0; i < NCOLS; i = j) {
		left = -1 - (int)strlen(columns[i].group);
		for (j = i; j < NCOLS && !strcmp(columns[i].group, columns[j].group); j++)
			left += 1 + width(j);
		if (shown[i])
			printf(" %.*s%s%.*s", left / 2, dashes, columns[i].group, left - left / 2,
			       dashes);
	}
	putchar('\n');
	for (i = 0; i < NCOLS; i++)
		if (shown[i])
			printf(" %*s", width(i), columns[i].name);
	putchar('\n');
}

void print_row(const struct sample *was, const struct sample *now)
{
	const char *text;
	int i;

	for (i = 0; i < NCOLS; i++) {
		if (columns[i].kind == WHY)
			text = grown(was, now, columns[i].key, true) ?: "-";
		else
			text = brief(column(i, was, now, now->uptime - was->uptime));
		if (shown[i])
			printf(" %*.13s", width(i), text);
	}
	putchar('\n');
}

static void print_family(const struct sample *s, const char *prefix, const char *head)
{
	double sum = 0;
	int i;

	for (i = 0; i < s->nr; i++)
		if (starts(s->e[i].key, prefix) && s->e[i].val > 0)
			sum += s->e[i].val;
	if (sum)
		printf("%s\n", head);
	for (i = 0; i < s->nr; i++)
		if (starts(s->e[i].key, prefix) && s->e[i].val > 0)
			printf("  %-20s %12lld %3.0f%% %.*s\n", s->e[i].key + strlen(prefix),
			       s->e[i].val, 100.0 * s->e[i].val / sum,
			       1 + (int)(29.0 * s->e[i].val / sum),
			       "##############################");
}

/* All that is known of some time, of which @sum has the differences. */
void print_block(const struct sample *sum, double seconds, const char *what)
{
	int i;

	printf("Linux %s %s, %.1f s %s\n", sum->kernel, sum->arch, seconds, what);
	printf("%-54s %14s %7s\n", "", "total", "/s");
	for (i = 0; i < NCOLS + NCOUNTERS; i++) {
		bool col = i < NCOLS, rate = !col || columns[i].kind == RATE;
		const char *key = col ? columns[i].key : counters[i - NCOLS].key;
		char total[32];

		if (col ? !shown[i] || columns[i].kind == WHY : !has(sum, key))
			continue;
		if (!i || i == NCOLS || (col && strcmp(columns[i].group, columns[i - 1].group)))
			printf("%s\n", col ? columns[i].group : "more");
		snprintf(total, sizeof(total), "%lld", get(sum, key));
		printf("  %-52s %14s %7s\n", col ? columns[i].help : counters[i - NCOLS].help,
		       !rate ? brief(column(i, NULL, sum, 0)) : has(sum, key) ? total : "-",
		       rate && has(sum, key) && seconds > 0 ? brief(get(sum, key) / seconds) : "");
	}
	for (i = 0; i < NFAMILIES; i++)
		print_family(sum, families[i].prefix, families[i].head);
	puts("settings, and HugeTLB pages");
	for (i = 0; i < sum->nr; i++)
		if (starts(sum->e[i].key, "sysctl.") || starts(sum->e[i].key, "hugetlb."))
			printf("  %-52s %14lld\n", sum->e[i].key, sum->e[i].val);
}
