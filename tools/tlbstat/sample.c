// SPDX-License-Identifier: GPL-2.0
/* tlbstat: samples, and where their counters come from */
#include "tlbstat.h"
#include <stdint.h>

const char *root = "";
unsigned long long page_size;

/* --- samples ------------------------------------------------------------------------- */

/* Samples of one kernel have their keys in the same order, of which @hint is a part. */
const struct entry *find(const struct sample *s, const char *key, int hint)
{
	int i;

	if (hint < s->nr && !strcmp(s->e[hint].key, key))
		return &s->e[hint];
	for (i = 0; i < s->nr; i++)
		if (!strcmp(s->e[i].key, key))
			return &s->e[i];
	return NULL;
}

bool has(const struct sample *s, const char *key)
{
	return find(s, key, 0);
}

long long get(const struct sample *s, const char *key)
{
	const struct entry *e = find(s, key, 0);

	return e ? e->val : 0;
}

/* What goes to terminals, JSON and SVG has only harmless letters, whoever wrote it. */
void set_text(char *to, size_t size, const char *from)
{
	snprintf(to, size, "%.*s", (int)strcspn(from, "\n"), from);
	for (; *to; to++)
		if (!isalnum((unsigned char)*to) && !strchr("._+~-", *to))
			*to = '_';
}

bool add(struct sample *s, long long val, const char *fmt, ...)
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

bool starts(const char *text, const char *prefix)
{
	return !strncmp(text, prefix, strlen(prefix));
}

bool starts_any(const char *text, const char * const *prefixes)
{
	while (*prefixes && !starts(text, *prefixes))
		prefixes++;
	return *prefixes;
}

/* What is now, not what has happened until now. */
bool is_gauge(const char *key)
{
	static const char * const prefixes[] = {
		"migrc_held", "nr_memmap", "vmemmap_", "hugetlb.", "sysctl.", "stats.",
		"hvo.max_ns", "hvo.access_flag", "estimate.vmemmap", NULL
	};

	return starts_any(key, prefixes);
}

bool same_boot(const struct sample *a, const struct sample *b)
{
	return !strcmp(a->boot_id, b->boot_id) && a->uptime <= b->uptime;
}

/*
 * Add to @sum what happened between @was and @now; without @was, since the boot. A counter
 * that one of them lacks, or that went backwards, is left out.
 */
void accumulate(struct sample *sum, const struct sample *was, const struct sample *now)
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

const char *path(const char *fmt, ...)
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
char *next(FILE *f)
{
	static char *line;
	static size_t size;

	if (f && getline(&line, &size, f) > 0)
		return line;
	if (f)
		fclose(f);
	return NULL;
}

char *first_line(const char *name)
{
	static char line[4096];
	FILE *f = fopen(name, "re");
	bool ok = f && fgets(line, sizeof(line), f);

	if (f)
		fclose(f);
	return ok ? line : NULL;
}

bool number(const char *word, long long *val)
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
		"thp_migration_", "thp_split_", "numa_pages_migrated", "pgdemote_",
		"compact_stall", "compact_migrate_scanned", "thp_fault_", NULL
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
}

/*
 * x86: how many CPUs were interrupted for a TLB shootdown. There are columns for CPUs that are
 * online, of 32 bits each; the sum of this program never falls.
 */
static void read_interrupts(struct sample *s)
{
	static struct { bool known; uint32_t last; } cpus[4096];
	static unsigned long long sum;
	static bool begun;
	FILE *f = fopen(path("/proc/interrupts"), "re");
	int which[4096], nr = 0, i;
	char *line, *key;
	long long v;

	while ((line = next(f))) {
		key = strtok(line, "\n ");
		for (; key && starts(key, "CPU") && nr < ARRAY_SIZE(which);
		     key = strtok(NULL, "\n "))
			which[nr++] = atoi(key + 3) & (ARRAY_SIZE(cpus) - 1);
		if (!key || strcmp(key, "TLB:"))
			continue;
		for (i = 0; number(strtok(NULL, " "), &v) && i < ARRAY_SIZE(cpus); i++) {
			int cpu = i < nr ? which[i] : i;

			/* What one had before this program saw it says nothing. */
			if (cpus[cpu].known || !begun)
				sum += (uint32_t)(v - cpus[cpu].last);
			cpus[cpu].known = true;
			cpus[cpu].last = v;
		}
		begun = true;
		add(s, sum, "tlb_interrupts");
	}
}

/* The time for which some task waited for memory, or all did: its last word is total=US. */
static void read_pressure(struct sample *s)
{
	FILE *f = fopen(path("/proc/pressure/memory"), "re");
	char *line, *at;
	long long v;

	while ((line = next(f))) {
		at = strstr(line, " total=");
		if (!at || !number(at + strlen(" total="), &v) || v < 0)
			continue;
		if (starts(line, "some "))
			add(s, v / 1000, "psi_some_ms");
		else if (starts(line, "full "))
			add(s, v / 1000, "psi_full_ms");
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
 * them; and those that have not done so, as hvo counts them (-1: this kernel does not). Returns
 * whether there are pools of any size, empty ones, too.
 */
bool read_pools(struct sample *s, unsigned long long *spare, long long *left)
{
	DIR *dir = opendir(path("/sys/kernel/mm/hugepages"));
	long long pages, others, kb;
	unsigned long long structs;
	struct dirent *d;
	const char *file;

	*spare = *left = 0;
	while (dir && (d = readdir(dir))) {
		if (sscanf(d->d_name, "hugepages-%lldkB", &kb) != 1 || kb <= 0 || kb > 1 << 30 ||
		    !number(first_line(path("/sys/kernel/mm/hugepages/%s/nr_hugepages", d->d_name)),
			    &pages) || pages < 0 || pages > 1LL << 32)
			continue;
		add(s, pages, "hugetlb.%lldkB", kb);
		structs = 1024ULL * kb / page_size * STRUCT_PAGE;
		if (structs <= page_size)
			continue;
		*spare += pages * (structs - page_size);
		file = path("/sys/kernel/mm/hugepages/%s/unoptimized_hugepages", d->d_name);
		if (*left < 0 || !number(first_line(file), &others) || others < 0 || others > pages)
			*left = -1;
		else
			*left += others * (structs - page_size);
	}
	if (dir)
		closedir(dir);
	return dir;
}

/*
 * What was given back is what all memory blocks need, less what is there, but blocks may have
 * holes, for which nothing is there either: no more than the pools can have given.
 */
static void read_vmemmap(struct sample *s)
{
	bool pools, on = get(s, "sysctl.hugetlb_optimize_vmemmap") == 1;
	unsigned long long spare, blocks = 0, size;
	long long saved, left;
	struct dirent *d;
	char *line;
	DIR *dir;

	pools = read_pools(s, &spare, &left);
	/* What remains is counted, or all, or the difference to what was given back. */
	if (pools && (left >= 0 || !on))
		add(s, left >= 0 ? left : (long long)spare, "estimate.vmemmap_bytes");

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
	saved = saved < (long long)spare ? saved : (long long)spare;
	add(s, saved, "vmemmap_saved_bytes");
	if (pools && left < 0 && on)
		add(s, spare - (saved > 0 ? saved : 0), "estimate.vmemmap_bytes");
}

/*
 * Migrations by reason, from a tracepoint of all kernels. The first four may be deferred, but for
 * the demotions of direct reclaim: NUMA balancing, too, but what it moves has been flushed before,
 * for the hinting fault.
 */
#define MAY_DEFER		4

static const char * const reasons[] = {
	"syscall_or_cpuset", "mempolicy_mbind", "damon", "demotion", "numa_misplaced", "compaction",
	"memory_failure", "memory_hotplug", "contig_range", "longterm_pin", "other",
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
void trace_begin(void)
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

/* Returns whether there is one. */
bool drain_trace(void)
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
	return trace_pipe;
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

double seconds_of(clockid_t id)
{
	struct timespec t;

	clock_gettime(id, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

void take(struct sample *s)
{
	static const char * const sysctls[] = {
		"tlb_batch", "tlb_batch_writeback",
		"migrc_enable", "migrc_readmostly", "migrc_max_pages",
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
	read_interrupts(s);
	if (has(s, "tlb_batch_pages"))
		add(s, (unsigned long long)get(s, "tlb_batch_pages") - get(s, "tlb_batch_ranges"),
		    "tlb_batch_avoided");
	for (i = 0; i < ARRAY_SIZE(sysctls); i++)
		if (number(first_line(path("/proc/sys/vm/%s", sysctls[i])), &v))
			add(s, v, "sysctl.%s", sysctls[i]);
	read_pressure(s);
	read_stats(s);
	read_vmemmap(s);
	read_trace(s);
	estimate(s);
}
