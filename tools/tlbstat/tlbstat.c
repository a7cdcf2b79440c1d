// SPDX-License-Identifier: GPL-2.0
/*
 * tlbstat - what TLB maintenance costs, and what tlb-rs saves of it
 *
 * A sample is a list of named integers, read from /proc, sysfs and debugfs, or from a line
 * of JSON that an earlier tlbstat wrote. All views are of differences of samples. Needs
 * nothing but libc; what a kernel does not have is left out, or "-".
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>

#define ARRAY_SIZE(a)		((int)(sizeof(a) / sizeof((a)[0])))
#define KEYS			256
#define STRUCT_PAGE		64	/* bytes, on arm64 and x86_64 */
#define MIB			(1024.0 * 1024.0)
#define FAILURE			1
#define USAGE			2

struct entry {
	char key[48];
	long long val;
};

struct sample {
	struct entry e[KEYS];
	int nr;
	double time;		/* since 1970 */
	double uptime;
	char boot_id[40], kernel[64], arch[16];
};

static const char *root = "";

/* Unsigned, as what is computed from counters that may be anything: it may wrap. */
static unsigned long long page_size;

/* --- samples ------------------------------------------------------------------------- */

/* Samples of one kernel have their keys in the same order, of which @hint is a part. */
static const struct entry *find(const struct sample *s, const char *key, int hint)
{
	int i;

	if (hint < s->nr && !strcmp(s->e[hint].key, key))
		return &s->e[hint];
	for (i = 0; i < s->nr; i++)
		if (!strcmp(s->e[i].key, key))
			return &s->e[i];
	return NULL;
}

static bool has(const struct sample *s, const char *key)
{
	return find(s, key, 0);
}

static long long get(const struct sample *s, const char *key)
{
	const struct entry *e = find(s, key, 0);

	return e ? e->val : 0;
}

/* What goes to terminals, JSON and SVG has only harmless letters, whoever wrote it. */
static void set_text(char *to, size_t size, const char *from)
{
	snprintf(to, size, "%.*s", (int)strcspn(from, "\n"), from);
	for (; *to; to++)
		if (!isalnum((unsigned char)*to) && !strchr("._+~-", *to))
			*to = '_';
}

static bool add(struct sample *s, long long val, const char *fmt, ...)
{
	struct entry *e = &s->e[s->nr];
	const char *p;
	va_list ap;
	int n;

	if (s->nr == KEYS)
		return false;
	va_start(ap, fmt);
	n = vsnprintf(e->key, sizeof(e->key), fmt, ap);
	va_end(ap);
	for (p = e->key; isalnum((unsigned char)*p) || *p == '_' || *p == '.'; p++)
		;
	if (*p || n <= 0 || n >= (int)sizeof(e->key))
		return false;
	e->val = val;
	s->nr++;
	return true;
}

static bool starts(const char *text, const char *prefix)
{
	return !strncmp(text, prefix, strlen(prefix));
}

static bool starts_any(const char *text, const char * const *prefixes)
{
	while (*prefixes && !starts(text, *prefixes))
		prefixes++;
	return *prefixes;
}

/* What is now, not what has happened until now. */
static bool is_gauge(const char *key)
{
	static const char * const prefixes[] = {
		"migrc_held", "nr_memmap", "vmemmap_", "hugetlb.", "sysctl.", "stats.",
		"hvo.max_ns", "hvo.access_flag", "estimate.vmemmap", NULL
	};

	return starts_any(key, prefixes);
}

static bool same_boot(const struct sample *a, const struct sample *b)
{
	return !strcmp(a->boot_id, b->boot_id) && a->uptime <= b->uptime;
}

/*
 * Add to @sum what happened between @was and @now; without @was, since the boot. A counter
 * that one of them lacks, or that went backwards, is left out.
 */
static void accumulate(struct sample *sum, const struct sample *was, const struct sample *now)
{
	const struct entry *e, *before;
	struct entry *to;
	long long val;
	int i;

	memcpy(sum->kernel, now->kernel, sizeof(sum->kernel));
	memcpy(sum->arch, now->arch, sizeof(sum->arch));
	for (i = 0; i < now->nr; i++) {
		e = &now->e[i];
		val = e->val;
		before = was ? find(was, e->key, i) : NULL;
		if (was && !is_gauge(e->key) && (!before || before->val > val ||
						 __builtin_sub_overflow(val, before->val, &val)))
			continue;
		to = (struct entry *)find(sum, e->key, i);
		if (!to)
			add(sum, val, "%s", e->key);
		else if (is_gauge(e->key) || __builtin_add_overflow(to->val, val, &to->val))
			to->val = val;
	}
}

/* --- sources ------------------------------------------------------------------------- */

static const char *path(const char *fmt, ...)
{
	static char name[512];
	va_list ap;
	int n;

	n = snprintf(name, sizeof(name), "%s", root);
	va_start(ap, fmt);
	vsnprintf(name + n, sizeof(name) - n, fmt, ap);
	va_end(ap);
	return name;
}

/* The lines of a file, which may be NULL, and is closed behind the last one. */
static char *next(FILE *f)
{
	static char *line;
	static size_t size;

	if (f && getline(&line, &size, f) > 0)
		return line;
	if (f)
		fclose(f);
	return NULL;
}

static char *first_line(const char *name)
{
	static char line[128];
	FILE *f = fopen(name, "re");
	bool ok = f && fgets(line, sizeof(line), f);

	if (f)
		fclose(f);
	return ok ? line : NULL;
}

static bool number(const char *word, long long *val)
{
	char *end;

	if (!word || !isdigit((unsigned char)word[*word == '-']))
		return false;
	errno = 0;
	/* What went below zero may have been printed as unsigned. */
	*val = *word == '-' ? strtoll(word, &end, 10) : (long long)strtoull(word, &end, 10);
	return !errno && (!*end || isspace((unsigned char)*end));
}

static void read_vmstat(struct sample *s)
{
	static const char * const prefixes[] = {
		"tlb_batch_", "migrc_", "cpu_pause", "hvo_", "nr_tlb_", "nr_memmap", "pgmigrate_",
		"thp_migration_", "thp_split_", "numa_pages_migrated", "pgdemote_", NULL
	};
	FILE *f = fopen(path("/proc/vmstat"), "re");
	char *line, *key;
	long long v;

	if (!f)
		err(FAILURE, "%s", path("/proc/vmstat"));
	while ((line = next(f))) {
		key = strtok(line, " ");
		if (key && starts_any(key, prefixes) && number(strtok(NULL, "\n "), &v))
			add(s, v, "%s", key);
	}
	/* x86: how many CPUs were interrupted for a TLB shootdown. */
	f = fopen(path("/proc/interrupts"), "re");
	while ((line = next(f))) {
		unsigned long long sum = 0;

		key = strtok(line, " ");
		if (!key || strcmp(key, "TLB:"))
			continue;
		while (number(strtok(NULL, " "), &v))
			sum += v;
		add(s, sum, "tlb_interrupts");
	}
}

/* A line in debugfs: one or two names, then one or two numbers. */
static void stats_line(struct sample *s, const char *dir, char *line)
{
	char *word[4] = { strtok(line, "\n ") };
	long long a, b;
	int n;

	for (n = 1; n < 4 && word[n - 1]; n++)
		word[n] = strtok(NULL, "\n ");
	n -= !word[n - 1];
	if (n < 2 || !number(word[n - 1], &b))
		return;
	if (n == 4 && number(word[2], &a)) {		/* migrc: drain REASON drains pages */
		add(s, a, "%s.%s.%s", dir, word[0], word[1]);
		add(s, b, "%s.%s_pages.%s", dir, word[0], word[1]);
	} else if (n == 3 && *dir == 't' && !strcmp(word[0], "restore")) {
		/* No flushes: that line has runs and their pages, which /proc/vmstat has, too. */
		if (number(word[1], &a))
			add(s, a, "tlb_batch.restored_runs");
	} else if (n == 3 && *dir == 't' && number(word[1], &a)) {
		add(s, a, "tlb_batch.ranges.%s", word[0]);
		add(s, b, "tlb_batch.pages.%s", word[0]);
	} else if (n == 3 && *dir == 'h' && strcmp(word[0], "below_us") && number(word[1], &a)) {
		add(s, a, "hvo.pauses.%s", word[0]);
		add(s, b, "hvo.entries.%s", word[0]);
	} else if (n == 3) {
		add(s, b, "%s.%s.%s", dir, word[0], word[1]);
	} else if (n == 2) {
		add(s, b, "%s.%s", dir, word[0]);
	}
}

static void read_stats(struct sample *s)
{
	static const struct { const char *dir, *counter, *what; } files[] = {
		{ "tlb_batch", "tlb_batch_pages", "flushes by reason" },
		{ "migrc", "migrc_deferred", "denials and drains by reason, and ages" },
		{ "hvo", "cpu_pause", "pauses by reason and length" },
	};
	static bool said[ARRAY_SIZE(files)];
	const char *name;
	char *line;
	FILE *f;
	int i;

	for (i = 0; i < ARRAY_SIZE(files); i++) {
		name = path("/sys/kernel/debug/%s/stats", files[i].dir);
		f = fopen(name, "re");
		if (f) {
			add(s, 1, "stats.%s", files[i].dir);
		} else if (has(s, files[i].counter) && !said[i]) {
			said[i] = true;
			warn("%s: without %s; that needs root, and debugfs mounted", name,
			     files[i].what);
		}
		while ((line = next(f)))
			stats_line(s, files[i].dir, line);
	}
}

/*
 * HugeTLB pools, and what their struct pages would give back: all but the first page of
 * them. What was given back is what all memory blocks need, less what is there, but blocks
 * may have holes, for which nothing is there either: no more than the pools can have given.
 */
static void read_vmemmap(struct sample *s)
{
	unsigned long long structs, spare = 0, blocks = 0, size;
	long long pages, kb;
	DIR *dir = opendir(path("/sys/kernel/mm/hugepages"));
	bool pools = dir;
	struct dirent *d;
	long long saved;
	char *line;

	while (dir && (d = readdir(dir))) {
		if (sscanf(d->d_name, "hugepages-%lldkB", &kb) != 1 || kb <= 0 || kb > 1 << 30)
			continue;
		line = first_line(path("/sys/kernel/mm/hugepages/%s/nr_hugepages", d->d_name));
		if (!number(line, &pages) || pages < 0 || pages > 1LL << 32)
			continue;
		add(s, pages, "hugetlb.%lldkB", kb);
		structs = 1024ULL * kb / page_size * STRUCT_PAGE;
		if (structs > page_size)
			spare += pages * (structs - page_size);
	}
	if (dir)
		closedir(dir);
	if (pools && get(s, "sysctl.hugetlb_optimize_vmemmap") != 1)
		add(s, spare, "estimate.vmemmap_bytes");

	dir = opendir(path("/sys/devices/system/memory"));
	while (dir && (d = readdir(dir)))
		blocks += starts(d->d_name, "memory") && isdigit((unsigned char)d->d_name[6]);
	if (dir)
		closedir(dir);
	line = first_line(path("/sys/devices/system/memory/block_size_bytes"));
	size = line ? strtoull(line, NULL, 16) : 0;
	if (!has(s, "nr_memmap_pages") || !blocks || !size || size > 1ULL << 40)
		return;
	saved = blocks * (size / page_size * STRUCT_PAGE) - page_size * get(s, "nr_memmap_pages") -
		page_size * get(s, "nr_memmap_boot_pages");
	add(s, saved < (long long)spare ? saved : (long long)spare, "vmemmap_saved_bytes");
}

/*
 * Migrations by reason, from a tracepoint of all kernels. The first three may be deferred: NUMA
 * balancing, too, but what it moves has been flushed before, for the hinting fault.
 */
#define MAY_DEFER		3

static const char * const reasons[] = {
	"syscall_or_cpuset", "mempolicy_mbind", "damon", "numa_misplaced", "compaction",
	"memory_failure", "memory_hotplug", "contig_range", "longterm_pin", "demotion", "other",
};

static unsigned long long traced[ARRAY_SIZE(reasons)], trace_lost;
static char trace_dir[300];
static FILE *trace_pipe;

static bool trace_enable(const char *text)
{
	char name[400];
	bool ok;
	int fd;

	snprintf(name, sizeof(name), "%s/events/migrate/mm_migrate_pages/enable", trace_dir);
	fd = open(name, O_WRONLY | O_CLOEXEC);
	ok = fd >= 0 && write(fd, text, 1) == 1;
	if (fd >= 0)
		close(fd);
	return ok;
}

static void trace_end(void)
{
	if (trace_pipe)
		fclose(trace_pipe);
	trace_pipe = NULL;
	trace_enable("0");
	rmdir(trace_dir);
}

/*
 * Instances of those that were killed: they count for ever. One of another PID namespace that is
 * in use is busy.
 */
static void trace_tidy(void)
{
	DIR *dir = opendir(path("/sys/kernel/tracing/instances"));
	struct dirent *e;
	char more;
	int pid;

	if (!dir)
		return;
	while ((e = readdir(dir)))
		if (sscanf(e->d_name, "tlbstat.%d%c", &pid, &more) == 1 && pid > 0 &&
		    kill(pid, 0) && errno == ESRCH)
			unlinkat(dirfd(dir), e->d_name, AT_REMOVEDIR);
	closedir(dir);
}

/* In an instance of its own: nothing else that is traced is disturbed. */
static void trace_begin(void)
{
	char name[400];
	int fd = -1;

	trace_tidy();
	snprintf(trace_dir, sizeof(trace_dir), "%s",
		 path("/sys/kernel/tracing/instances/tlbstat.%d", getpid()));
	if (mkdir(trace_dir, 0700)) {
		warn("%s: without --trace; that needs root, and tracefs mounted", trace_dir);
		return;
	}
	atexit(trace_end);
	snprintf(name, sizeof(name), "%s/trace_pipe", trace_dir);
	if (trace_enable("1"))
		fd = open(name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	trace_pipe = fd < 0 ? NULL : fdopen(fd, "r");
	if (!trace_pipe)
		warn("%s: no migrate:mm_migrate_pages: without --trace", trace_dir);
}

static void drain_trace(void)
{
	static char *line;
	static size_t size;
	char *at, *why;
	int i;

	/* What is there ends with a whole line, and then with EAGAIN. */
	while (trace_pipe && getline(&line, &size, trace_pipe) > 0) {
		at = starts(line, "CPU:") ? strstr(line, "[LOST ") : NULL;
		if (at) {
			if (!trace_lost)
				warnx("trace events were lost: pages by reason are too few");
			/* The kernel does not always know how many. */
			trace_lost += strtoull(at + 6, NULL, 10) ?: 1;
			continue;
		}
		at = strstr(line, "nr_succeeded=");
		why = strstr(line, " reason=");
		if (!at || !why)
			continue;
		why[strcspn(why, "\n")] = 0;
		for (i = 0; i < ARRAY_SIZE(reasons) - 1 && strcmp(why + 8, reasons[i]); i++)
			;
		traced[i] += strtoull(at + 13, NULL, 10);
	}
	if (trace_pipe)
		clearerr(trace_pipe);
}

static void read_trace(struct sample *s)
{
	unsigned long long may = 0;
	int i;

	if (!trace_pipe)
		return;
	drain_trace();
	add(s, trace_lost, "trace_lost");
	for (i = 0; i < ARRAY_SIZE(reasons); i++) {
		add(s, traced[i], "trace.%s", reasons[i]);
		may += i < MAY_DEFER ? traced[i] : 0;
	}
	if (!has(s, "migrc_deferred"))
		add(s, may, "estimate.deferrable");
}

/* What tlb-rs could change at most, of what a kernel without it counts. */
static void estimate(struct sample *s)
{
	char *line = first_line(path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"));
	unsigned long long thp = 512;
	long long v;

	if (number(line, &v) && v > 0)
		thp = v / page_size;
	if (!strcmp(s->arch, "aarch64") && !has(s, "tlb_batch_pages") &&
	    has(s, "pgmigrate_success"))
		add(s, get(s, "pgmigrate_success") - (thp - 1) * get(s, "thp_migration_success") +
		    thp * get(s, "thp_split_page"), "estimate.flushes");
}

static double seconds_of(clockid_t id)
{
	struct timespec t;

	clock_gettime(id, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void take(struct sample *s)
{
	static const char * const sysctls[] = {
		"tlb_batch", "migrc_enable", "migrc_readmostly", "migrc_max_pages",
		"migrc_max_age_ms", "hugetlb_optimize_vmemmap",
	};
	struct utsname uts;
	char *line;
	long long v;
	int i;

	memset(s, 0, sizeof(*s));
	uname(&uts);
	s->time = seconds_of(CLOCK_REALTIME);
	s->uptime = seconds_of(CLOCK_BOOTTIME);
	line = *root ? first_line(path("/proc/uptime")) : NULL;
	if (line && isdigit((unsigned char)*line) && strtod(line, NULL) < 1e10)
		s->uptime = strtod(line, NULL);
	line = first_line(path("/proc/sys/kernel/arch"));
	set_text(s->arch, sizeof(s->arch), line ?: uts.machine);
	line = first_line(path("/proc/sys/kernel/osrelease"));
	set_text(s->kernel, sizeof(s->kernel), line ?: uts.release);
	line = first_line(path("/proc/sys/kernel/random/boot_id"));
	set_text(s->boot_id, sizeof(s->boot_id), line ?: "");
	read_vmstat(s);
	if (has(s, "tlb_batch_pages"))
		add(s, (unsigned long long)get(s, "tlb_batch_pages") - get(s, "tlb_batch_ranges"),
		    "tlb_batch_avoided");
	for (i = 0; i < ARRAY_SIZE(sysctls); i++)
		if (number(first_line(path("/proc/sys/vm/%s", sysctls[i])), &v))
			add(s, v, "sysctl.%s", sysctls[i]);
	read_stats(s);
	read_vmemmap(s);
	read_trace(s);
	estimate(s);
}

/* --- columns ------------------------------------------------------------------------- */

enum kind { RATE, GAUGE, MIBS, WORST, WHY };

/* Of the table, of rate.GROUP.NAME in JSON, of report and its plots. */
static const struct column {
	const char *group, *name, *key;
	enum kind kind;
	const char *help;
} columns[] = {
	{ "pages", "moved", "pgmigrate_success", RATE, "pages migrated" },
	{ "pages", "splits", "thp_split_page", RATE, "huge pages split" },
	{ "x86", "ipis", "tlb_interrupts", RATE, "CPUs interrupted for a TLB shootdown" },
	{ "flushes", "pages", "tlb_batch_pages", RATE, "pages whose flushes were batched" },
	{ "flushes", "issued", "tlb_batch_ranges", RATE, "ranges flushed for them" },
	{ "flushes", "avoid", "tlb_batch_avoided", RATE, "the difference: flushes avoided" },
	{ "flushes", "waits", "tlb_batch_flush", RATE, "waits for their completion" },
	{ "deferred", "defer", "migrc_deferred", RATE, "pages migrated without a flush" },
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
	{ "vmemmap", "could", "estimate.vmemmap_bytes", MIBS, "could be, in all (MiB)" },
	{ "estimate", "flush", "estimate.flushes", RATE, "flushes that could be fewer" },
	{ "estimate", "defer", "estimate.deferrable", RATE, "flushes that could be deferred" },
};

#define NCOLS			ARRAY_SIZE(columns)

static const struct { const char *key, *help; } counters[] = {
	{ "numa_pages_migrated", "pages migrated by NUMA balancing" },
	{ "trace_lost", "trace events lost: pages by reason are too few" },
	{ "thp_migration_success", "huge pages migrated in one piece" },
	{ "nr_tlb_remote_flush", "flushes on other CPUs (x86, CONFIG_DEBUG_TLBFLUSH)" },
	{ "nr_tlb_remote_flush_received", "the same, times CPUs" },
	{ "nr_tlb_local_flush_all", "flushes of all of the local TLB" },
	{ "nr_tlb_local_flush_one", "flushes of a page in it" },
	{ "tlb_batch_overflow", "ranges issued early for want of room" },
	{ "tlb_batch_restored", "pages of large folios mapped again in runs" },
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

static const struct { const char *prefix, *head; } families[] = {
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
static double column(int c, const struct sample *was, const struct sample *now, double seconds)
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

static void write_json(FILE *out, const struct sample *was, const struct sample *s)
{
	double seconds = was ? s->uptime - was->uptime : 0, v;
	int i;

	fprintf(out, "{\"tlbstat\":1,\"time\":%.3f,\"uptime\":%.3f", s->time, s->uptime);
	fprintf(out, ",\"boot_id\":\"%s\",\"kernel\":\"%s\",\"arch\":\"%s\"", s->boot_id, s->kernel,
		s->arch);
	for (i = 0; i < s->nr; i++)
		fprintf(out, ",\"%s\":%lld", s->e[i].key, s->e[i].val);
	for (i = 0; i < ARRAY_SIZE(counters); i++)
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
static bool next_sample(FILE *f, const char *name, int *nr, struct sample *s)
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

static FILE *open_recording(const char *name)
{
	FILE *f = strcmp(name, "-") ? fopen(name, "re") : stdin;

	if (!f)
		err(FAILURE, "%s", name);
	return f;
}

/* --- text ------------------------------------------------------------------------------ */

/* At most six letters. */
static const char *brief(double v)
{
	static char text[4][32];
	static int turn;
	char *to = text[turn++ % 4];
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
static bool shown[NCOLS];

static void choose_columns(const struct sample *s)
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

static void print_heading(void)
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

static void print_row(const struct sample *was, const struct sample *now)
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
static void print_block(const struct sample *sum, double seconds, const char *what)
{
	int i;

	printf("Linux %s %s, %.1f s %s\n", sum->kernel, sum->arch, seconds, what);
	printf("%-54s %14s %7s\n", "", "total", "/s");
	for (i = 0; i < NCOLS + ARRAY_SIZE(counters); i++) {
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
	for (i = 0; i < ARRAY_SIZE(families); i++)
		print_family(sum, families[i].prefix, families[i].head);
	puts("settings, and HugeTLB pages");
	for (i = 0; i < sum->nr; i++)
		if (starts(sum->e[i].key, "sysctl.") || starts(sum->e[i].key, "hugetlb."))
			printf("  %-52s %14lld\n", sum->e[i].key, sum->e[i].val);
}

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
	double sum = 0, found = 0;

	*low = *high = NAN;
	for (; k < end; k++) {
		if (isnan(points[k].v[c]))
			continue;
		*low = fmin(*low, points[k].v[c]);
		*high = fmax(*high, points[k].v[c]);
		sum += points[k].v[c];
		found++;
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

static void svg_axis(FILE *out, int *panel, const char *group, const char *title, double high)
{
	int i;

	fprintf(out, "<g transform=\"translate(70,%d)\">\n", 60 + PANEL * (*panel)++);
	fprintf(out, "<text y=\"-10\">%s %s</text>\n", group, title);
	for (i = 0; i <= 4; i++) {
		fprintf(out, AXIS, HIGH - HIGH * i / 4, WIDE);
		fprintf(out, LABEL, -8, HIGH - HIGH * i / 4 + 4, "end", brief(high * i / 4), "");
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
	for (i = 0; i <= 4; i++)
		fprintf(out, LABEL, WIDE * i / 4, HIGH + 16, "middle", brief(end * i / 4), " s");
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
static void failed_output(const char *name)
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
	for (i = 0; i < ARRAY_SIZE(families); i++)
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

static int report(const char *name, const char *svg)
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

/* --- watching ---------------------------------------------------------------------------- */

static struct {
	bool once, json, detail, trace;
	const char *since, *out, *svg;
	double interval;
	long count;		/* 0: for ever */
	char **command;
} o = { .interval = 1 };

static sigset_t signals;

/* Wait until @deadline, of CLOCK_MONOTONIC; returns a signal that came before, or 0. */
static int wait_until(double deadline, siginfo_t *info)
{
	double left, nap;
	int sig;

	do {
		/* What does not fit into the kernel's buffers is lost. */
		drain_trace();
		left = fmax(0, deadline - seconds_of(CLOCK_MONOTONIC));
		nap = trace_pipe ? fmin(left, 0.1) : left;
		sig = sigtimedwait(&signals, info, &(struct timespec) {
			.tv_sec = nap,
			.tv_nsec = (nap - floor(nap)) * 1e9,
		});
	} while (sig < 0 && (errno == EINTR || nap < left));
	return sig < 0 ? 0 : sig;
}

static pid_t start(char **command)
{
	pid_t pid = fork();

	if (pid < 0)
		err(FAILURE, "fork");
	if (pid)
		return pid;
	sigprocmask(SIG_UNBLOCK, &signals, NULL);
	signal(SIGPIPE, SIG_DFL);
	execvp(*command, command);
	warn("%s", *command);
	_exit(127);
}

static void put(FILE *out, const struct sample *was, const struct sample *now, long i)
{
	static struct sample sum;

	if (o.json) {
		write_json(out, was, now);
	} else if (was && o.detail) {
		sum.nr = 0;
		accumulate(&sum, was, now);
		print_block(&sum, now->uptime - was->uptime, "watched");
	} else if (was) {
		if (i % 20 == 0)
			print_heading();
		print_row(was, now);
	}
	if (fflush(out) || ferror(out))
		failed_output(o.out);
}

/*
 * Whether a command has a signal from the terminal, too: the kernel sends it to all of the
 * group in the foreground, but a hangup only to the leader of the session.
 */
static bool had(int sig, const siginfo_t *info, pid_t pid)
{
	return info->si_code == SI_KERNEL && getpgid(pid) == getpgrp() &&
	       !(sig == SIGHUP && getsid(0) == getpid());
}

/* Whether that signal ends it. A command decides itself what to make of one. */
static bool ends(int sig, const siginfo_t *info, pid_t pid, int *status)
{
	if (sig == SIGCHLD)
		return pid && waitpid(pid, status, WNOHANG) == pid;
	if (sig > 0 && pid && !had(sig, info, pid))
		kill(pid, sig);
	return sig && !pid;
}

static int watch(FILE *out)
{
	static struct sample two[2];
	struct sample *was = &two[0], *now = &two[1], *spare;
	double deadline = seconds_of(CLOCK_MONOTONIC), woken;
	int sig, status = 0;
	siginfo_t info;
	bool ended = false;
	pid_t pid = 0;
	long i;

	take(was);
	choose_columns(was);
	put(out, NULL, was, 0);
	if (o.command)
		pid = start(o.command);
	for (i = 0; !ended && (!o.count || i < o.count); i++) {
		deadline += o.interval;
		do {
			sig = wait_until(deadline, &info);
			ended = ends(sig, &info, pid, &status);
		} while (sig && !ended);
		/* If it was stopped, it does not make up for what it missed. */
		woken = seconds_of(CLOCK_MONOTONIC);
		if (woken > deadline + o.interval / 2)
			deadline = woken;
		take(now);
		/* Part of an interval is only good for a recording, which has milliseconds. */
		if (ended && (!o.out || llround(now->uptime * 1000) <= llround(was->uptime * 1000)))
			break;
		put(out, was, now, i);
		spare = was;
		was = now;
		now = spare;
	}
	if (!pid)
		return 0;
	while (!ended)
		ended = ends(sigwaitinfo(&signals, &info), &info, pid, &status);
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Once, or since the last sample of a file. */
static int look_once(void)
{
	static struct sample two[2], now, sum;
	const struct sample *was = NULL;
	int nr = 0;
	FILE *f;

	if (o.since) {
		f = open_recording(o.since);
		while (next_sample(f, o.since, &nr, &two[was == &two[0]]))
			was = &two[was == &two[0]];
		if (!was)
			errx(FAILURE, "%s: there is no sample in it", o.since);
	}
	take(&now);
	if (was && !same_boot(was, &now)) {
		warnx("%s: the machine was booted after that; counted from the boot", o.since);
		was = NULL;
	}
	choose_columns(&now);
	if (o.json) {
		put(stdout, was, &now, 0);
		return 0;
	}
	accumulate(&sum, was, &now);
	print_block(&sum, now.uptime - (was ? was->uptime : 0),
		    was ? "since then" : "since the boot");
	return 0;
}

/* --- options --------------------------------------------------------------------------- */

static const char usage[] =
"usage: tlbstat [OPTION]... [INTERVAL [COUNT]]\n"
"       tlbstat record [-t] [-o FILE] [INTERVAL [COUNT]] [-- COMMAND...]\n"
"       tlbstat report [--svg OUT.svg] [FILE]\n"
"\n"
"TLB flushes that were issued, avoided and deferred, pauses of all CPUs, and what struct pages\n"
"take: a row every INTERVAL seconds (1), COUNT times or until it is interrupted.\n"
"\n"
"  -1, --once         all counters since the boot\n"
"  -s, --since FILE   all counters since the last sample in FILE\n"
"  -d, --detail       all counters of each interval, with reasons and histograms\n"
"  -j, --json         a line of JSON for each sample, and one before the first interval\n"
"  -t, --trace        count migrations by reason, with a tracepoint (root; not with -1, -s)\n"
"  -r, --root DIR     read DIR/proc and DIR/sys: of the host in a container; for tests\n"
"  -o, --output FILE  of record (tlbstat.jsonl; -: standard output)\n"
"      --svg FILE     of report: plots (-: instead of the text)\n"
"\n"
"record writes samples until COUNT, a signal, or the end of COMMAND, whose status it returns. A FILE\n"
"that is there is kept as FILE.old. report reads FILE (tlbstat.jsonl; -: standard input). Status 1:\n"
"failed; 2: usage.\n"
"\n"
"Columns. Groups of which the kernel has nothing are left out, a value that is missing is \"-\".\n"
"All are per second but why, held, age_ms, max_us, saved and could:\n";

static const char notes[] =
"estimate is for kernels without tlb-rs: what could be saved at most.\n"
"  flush  arm64: one flush for each page that is migrated, one for a huge page in one piece, P for\n"
"         a huge page that is split: P is 512 for 2 MiB with pages of 4 KiB, and was measured as\n"
"         543 where PTEs map it, 18 for shmem and files. With the batch it is 1 or 2 for a split and\n"
"         8 for 4096 neighbouring pages. Too many where NUMA balancing moves pages, which has flushed\n"
"         them before. Not on x86_64: stock waits once for a batch there, too.\n"
"  defer  with --trace: pages that move_pages(), migrate_pages(), cpusets, mbind() and DAMON moved.\n"
"         Only what nobody can write to is deferred, which is not known beforehand.\n"
"could: of all HugeTLB pages their struct pages (64 bytes each) but for the first page of them: 7 of\n"
"8 pages for 2 MiB, 4095 of 4096 for 1 GiB. Not if vm.hugetlb_optimize_vmemmap=1.\n"
"saved is what the memory blocks in sysfs need for struct pages, less nr_memmap_pages and\n"
"nr_memmap_boot_pages, and no more than all HugeTLB pages could give back. Up to that, holes in\n"
"memory blocks (2 GiB each on large x86_64 machines) count as given back, which is too much if\n"
"only some HugeTLB pages gave theirs back, or none did. Debug options that extend struct page\n"
"(page_owner, page_table_check) count as struct pages and make it too small; differences are right\n"
"then, unless there are holes, too.\n"
"\n"
"Reasons, ages and lengths of pauses come from debugfs, which only root may read. The last number of\n"
"a histogram (65536 ms, 2097152 us) stands for whatever is longer, too.\n"
"\n"
"JSON: tlbstat (1: the version), time since 1970, uptime, boot_id, kernel, arch; then counters\n"
"since the boot by the names above, or those of /proc/vmstat and debugfs (null: missing),\n"
"sysctl.NAME, hugetlb.SIZE (pages in a pool), stats.DIR (1: debugfs was read); interval and\n"
"rate.GROUP.COLUMN since the sample before, and\n";

static double positive(const char *text, double least, const char *what)
{
	const double most = 1e6;
	char *end;
	double v = strtod(text, &end);

	if (!isdigit((unsigned char)*text) || *end || !(v >= least && v <= most))
		errx(USAGE, "%s is no %s (%.7g to %.7g)", text, what, least, most);
	return v;
}

static void help(void)
{
	int i;

	fputs(usage, stdout);
	for (i = 0; i < NCOLS; i++)
		printf("  %-8s %-6s  %-43s %s%s\n", columns[i].group, columns[i].name,
		       columns[i].help, columns[i].key, columns[i].kind >= WORST ? "*" : "");
	fputs(notes, stdout);
	for (i = 0; i < ARRAY_SIZE(families); i++)
		printf("  %-18s %s\n", families[i].prefix, families[i].head);
	for (i = 0; i < ARRAY_SIZE(counters); i++)
		printf("  %-28s  %s\n", counters[i].key, counters[i].help);
}

/* One that is there is kept as FILE.old, as by perf record. */
static FILE *new_recording(const char *name)
{
	struct stat st;
	char *old;
	FILE *f;

	/* Of /dev/stdout and the like the name is not ours to change. */
	if (!lstat(name, &st) && S_ISREG(st.st_mode) && st.st_size) {
		if (asprintf(&old, "%s.old", name) < 0 || rename(name, old))
			err(FAILURE, "%s.old", name);
		free(old);
	}
	f = fopen(name, "we");
	if (!f)
		err(FAILURE, "%s", name);
	return f;
}

static int run(int argc, char **argv)
{
	static const struct option names[] = {
		{ "once", no_argument, NULL, '1' },
		{ "since", required_argument, NULL, 's' },
		{ "detail", no_argument, NULL, 'd' },
		{ "json", no_argument, NULL, 'j' },
		{ "trace", no_argument, NULL, 't' },
		{ "output", required_argument, NULL, 'o' },
		{ "svg", required_argument, NULL, 'S' },
		{ "root", required_argument, NULL, 'r' },
		{ "help", no_argument, NULL, 'h' },
		{ }
	};
	static const int ending[] = { SIGINT, SIGTERM, SIGHUP };
	struct sigaction old;
	bool recording = argc > 1 && !strcmp(argv[1], "record");
	bool reporting = argc > 1 && !strcmp(argv[1], "report"), looking;
	FILE *out = stdout;
	int i, c;

	page_size = sysconf(_SC_PAGESIZE);
	argc -= recording || reporting;
	argv += recording || reporting;
	/* getopt_long() would not say where the command begins. */
	for (i = 1; i < argc && recording; i++) {
		if (strcmp(argv[i], "--"))
			continue;
		if (i + 1 == argc)
			errx(USAGE, "no command behind --");
		o.command = argv + i + 1;
		argc = i;
	}
	while ((c = getopt_long(argc, argv, "1s:djto:r:h", names, NULL)) != -1) {
		o.once |= c == '1';
		o.json |= c == 'j';
		o.detail |= c == 'd';
		o.trace |= c == 't';
		o.since = c == 's' ? optarg : o.since;
		o.out = c == 'o' ? optarg : o.out;
		o.svg = c == 'S' ? optarg : o.svg;
		root = c == 'r' ? optarg : root;
		if (c == 'h') {
			help();
			return 0;
		}
		if (c == '?')
			errx(USAGE, "see tlbstat --help");
	}
	argc -= optind;
	argv += optind;
	if (strlen(root) > 200)
		errx(USAGE, "the name of that directory is too long");
	looking = o.once || o.since;
	if (reporting ? looking || o.detail || o.json || o.trace || o.out || *root || argc > 1 :
	    o.svg || argc > 2 || (recording ? looking || o.detail : !!o.out) ||
	    (o.detail && o.json) || (looking && (o.detail || o.trace || argc)))
		errx(USAGE, "these do not go together, see tlbstat --help");
	if (reporting)
		return report(argc ? *argv : "tlbstat.jsonl", o.svg);
	if (argc)
		o.interval = positive(argv[0], 0.01, "interval in seconds");
	if (argc > 1)
		o.count = positive(argv[1], 1, "number of samples");
	if (looking)
		return look_once();

	/* Whoever ignores one, as nohup does, means it. */
	sigemptyset(&signals);
	for (i = 0; i < ARRAY_SIZE(ending); i++)
		if (!sigaction(ending[i], NULL, &old) && old.sa_handler != SIG_IGN)
			sigaddset(&signals, ending[i]);
	sigaddset(&signals, SIGCHLD);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	signal(SIGCHLD, SIG_DFL);
	signal(SIGPIPE, SIG_IGN);
	if (recording) {
		o.json = true;
		o.out = o.out ?: "tlbstat.jsonl";
		if (strcmp(o.out, "-"))
			out = new_recording(o.out);
	}
	if (o.trace)
		trace_begin();
	return watch(out);
}

int main(int argc, char **argv)
{
	int status = run(argc, argv);

	if (fflush(stdout) || ferror(stdout))
		failed_output(NULL);
	return status;
}
