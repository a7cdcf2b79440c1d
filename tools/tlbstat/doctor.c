// SPDX-License-Identifier: GPL-2.0
/*
 * tlbstat doctor: what this machine is, what may be measured on it, and which of the three
 * mechanisms can matter. What cannot be read is unknown, never no.
 */
#include "cpus.h"
#include <getopt.h>

/* Less than any value. */
#define MISSING			-100

#define CAP_SYS_ADMIN		21
#define CAP_SYSLOG		34
#define CAP_PERFMON		38

static struct facts {
	char arch[16], kernel[64], thp[16];
	struct cpus cpus;
	int nodes, tiers;		/* 0: unknown */
	bool pools, huge_pages;
	unsigned long long spare;	/* bytes of struct pages that pools could give back */
	/* MISSING: this kernel has no such switch */
	long long tlb_batch, writeback, migrc, hvo;
} f;

/* --- what is printed ----------------------------------------------------------------------- */

#define WIDTH			98
#define INDENT			18

static bool as_json;

/*
 * What others wrote goes to terminals and JSON: only harmless letters. Long texts have line ends
 * in the source, which are spaces here: say() breaks lines.
 */
static void harmless(char *text)
{
	for (; *text; text++) {
		if (*text == '\n')
			*text = ' ';
		else if (!isprint((unsigned char)*text) || strchr("\"\\", *text))
			*text = '_';
	}
}

static void say(const char *key, const char *fmt, ...)
{
	static int said;
	char text[1024], *at = text;
	int room = WIDTH - INDENT, n;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	harmless(text);
	if (as_json) {
		printf("%s\"%s\":\"%s\"", said++ ? "," : "{\"tlbstat_doctor\":1,", key, text);
		return;
	}
	printf("%-*s", INDENT, key);
	while ((int)strlen(at) > room) {
		for (n = room; n && at[n] != ' '; n--)
			;
		n = n ?: room;
		printf("%.*s\n%*s", n, at, INDENT, "");
		at += n + (at[n] == ' ');
	}
	puts(at);
}

static const char *word(enum answer a)
{
	return a == YES ? "yes" : a == NO ? "no" : "unknown";
}

/* The word in brackets of a file such as: always [madvise] never */
static const char *chosen(const char *name)
{
	static char text[32];
	char *line = first_line(name), *at = line ? strchr(line, '[') : NULL;

	if (!at || !strchr(at, ']'))
		return "unknown";
	snprintf(text, sizeof(text), "%.*s", (int)strcspn(at + 1, "]"), at + 1);
	return text;
}

static long long setting(const char *name)
{
	long long v;

	return number(first_line(path("/proc/sys/%s", name)), &v) ? v : MISSING;
}

static const char *shown_setting(const char *name)
{
	static char text[32];
	long long v;

	if (!number(first_line(path("/proc/sys/%s", name)), &v))
		return "unknown";
	snprintf(text, sizeof(text), "%lld", v);
	return text;
}

/* --- what is there ----------------------------------------------------------------------- */

static void ask_cpu_rows(void)
{
	char nr[16] = "unknown";

	if (f.cpus.nr)
		snprintf(nr, sizeof(nr), "%d", f.cpus.nr);
	say("machine", "Linux %s %s", f.kernel, f.arch);
	say("CPUs", "%s: %s", nr, *f.cpus.model ? f.cpus.model : "unknown");
	if (!strcmp(f.arch, "aarch64")) {
		say("range TLBI", "%s%s", word(f.cpus.range), f.cpus.range == UNKNOWN ? "" :
		    ", by a table of CPUs; a hypervisor may hide it");
		say("erratum 4118414", "%s; the kernel repeats each completed flush: %s",
		    word(f.cpus.erratum), word(f.cpus.repeat));
	} else if (!strcmp(f.arch, "x86_64")) {
		say("INVLPGB", "%s%s", word(f.cpus.invlpgb),
		    f.cpus.invlpgb == YES ? "; Linux 6.15 and later use it" : "");
	}
}

static void ask_thp(void)
{
	char *line, sizes[200] = "", *mode;
	struct dirent *d;
	size_t n = 0;
	DIR *dir;

	snprintf(f.thp, sizeof(f.thp), "%s",
		 chosen(path("/sys/kernel/mm/transparent_hugepage/enabled")));
	f.huge_pages = strcmp(f.thp, "never");
	dir = opendir(path("/sys/kernel/mm/transparent_hugepage"));
	while (dir && (d = readdir(dir))) {
		if (!starts(d->d_name, "hugepages-"))
			continue;
		line = first_line(path("/sys/kernel/mm/transparent_hugepage/%s/enabled",
				       d->d_name));
		mode = line ? strchr(line, '[') : NULL;
		if (!mode || starts(mode, "[never]"))
			continue;
		f.huge_pages |= !starts(mode, "[inherit]");
		if (n < sizeof(sizes))
			n += snprintf(sizes + n, sizeof(sizes) - n, "%s%s", n ? " " : "",
				      d->d_name + strlen("hugepages-"));
	}
	if (dir)
		closedir(dir);
	say("THP", "%s, defrag %s; sizes: %s", f.thp,
	    chosen(path("/sys/kernel/mm/transparent_hugepage/defrag")),
	    *sizes ? sizes : dir ? "none" : "unknown");
}

static void ask_tiers(void)
{
	char text[300] = "", nodes[16] = "unknown", *line;
	const char *demotion;
	int list[1], seen = 0;
	struct dirent *d;
	size_t n = 0;
	DIR *dir;

	f.nodes = list_of(first_line(path("/sys/devices/system/node/has_memory")), list, 1);
	if (f.nodes)
		snprintf(nodes, sizeof(nodes), "%d", f.nodes);
	dir = opendir(path("/sys/devices/virtual/memory_tiering"));
	while (dir && (d = readdir(dir))) {
		if (!starts(d->d_name, "memory_tier"))
			continue;
		line = first_line(path("/sys/devices/virtual/memory_tiering/%s/nodelist",
				       d->d_name));
		if (!list_of(line, list, 1))
			continue;
		seen++;
		if (n < sizeof(text))
			n += snprintf(text + n, sizeof(text) - n, "%s%s has %.*s", n ? ", " : "",
				      d->d_name, (int)strcspn(line, "\n"), line);
	}
	if (dir)
		closedir(dir);
	f.tiers = seen;
	line = first_line(path("/sys/kernel/mm/numa/demotion_enabled"));
	demotion = !line ? "unknown" : *line == '1' || starts(line, "true") ? "on" : "off";
	say("memory nodes", "%s; NUMA balancing: %s", nodes,
	    shown_setting("kernel/numa_balancing"));
	if (seen)
		say("tiers", "%d: %s; demotion: %s%s", seen, text,
		    demotion, seen == 1 ? ", of no effect with one tier" : "");
	else
		say("tiers", "unknown");
}

static void ask_pools(void)
{
	static struct sample s;
	char text[300] = "";
	long long left;
	size_t n = 0;
	int i;

	f.pools = read_pools(&s, &f.spare, &left);
	for (i = 0; i < s.nr && n < sizeof(text); i++)
		n += snprintf(text + n, sizeof(text) - n, "%s%lld of %s", n ? ", " : "",
			      s.e[i].val, s.e[i].key + strlen("hugetlb."));
	if (f.pools)
		say("HugeTLB pools", "%s; their struct pages could give back %.1f MiB in all",
		    s.nr ? text : "none", f.spare / MIB);
	else
		say("HugeTLB pools", "unknown");
}

static const char *switched(long long v)
{
	return v < 0 ? "not in this kernel" : v ? "on" : "off";
}

/* --- what may be measured ----------------------------------------------------------------- */

static bool capable(unsigned long long caps, int cap)
{
	return caps >> cap & 1;
}

static const char *pmu(void)
{
	/* Devices of these names count cycles of CPUs. */
	static const char * const names[] = { "cpu", "armv", "apple_", NULL };
	DIR *dir = opendir(path("/sys/bus/event_source/devices"));
	const char *event = "unknown events";
	struct dirent *d;

	while (dir && (d = readdir(dir))) {
		if (starts_any(d->d_name, names))
			event = "cycles";
		else if (!strcmp(d->d_name, "software") && *event == 'u')
			event = "cpu-clock";
	}
	if (dir)
		closedir(dir);
	return event;
}

static void ask_measures(void)
{
	long long paranoid = setting("kernel/perf_event_paranoid");
	long long hiding = setting("kernel/kptr_restrict");
	FILE *file = fopen(path("/proc/self/status"), "re");
	const char *without = "by counters and a calibrated cost only";
	unsigned long long caps = 0;
	bool known = false, perfmon, names;
	char *line;

	while ((line = next(file)))
		if (starts(line, "CapEff:"))
			known = sscanf(line + 7, "%llx", &caps) == 1;
	perfmon = capable(caps, CAP_PERFMON) || capable(caps, CAP_SYS_ADMIN);
	names = capable(caps, CAP_SYSLOG) || capable(caps, CAP_SYS_ADMIN);
	say("counters", "%s",
	    access(path("/proc/vmstat"), R_OK) ? "unknown: no /proc/vmstat" : "yes");
	say("reasons", "%s", !access(path("/sys/kernel/debug/tlb_batch/stats"), R_OK) ||
	    !access(path("/sys/kernel/debug/migrc/stats"), R_OK) ||
	    !access(path("/sys/kernel/debug/hvo/stats"), R_OK) ? "yes, from debugfs" :
	    f.tlb_batch < 0 && f.migrc < 0 ? "not in this kernel" :
	    "unknown: debugfs needs root, and to be mounted");
	if (!known && paranoid == MISSING)
		say("price", "unknown: neither capabilities nor perf_event_paranoid can be read");
	else if (!perfmon && paranoid == MISSING)
		say("price", "unknown: perf_event_paranoid cannot be read");
	else if (!perfmon && paranoid > 0)
		say("price", "%s: samples need root or CAP_PERFMON (perf_event_paranoid is %lld)",
		    without, paranoid);
	else if (hiding > 1 || (!names && (hiding || paranoid > 1)))
		say("price", "%s: %s hides addresses of the kernel (%s)", without,
		    hiding == MISSING ? "something" : "kptr_restrict",
		    hiding > 1 ? "it is 2" : "they need CAP_SYSLOG");
	else
		say("price", "by samples of %s%s", pmu(), strcmp(f.arch, "aarch64") ? "" :
		    access(path("/proc/kcore"), R_OK) ?
		    ", and by names of functions: /proc/kcore cannot be read" :
		    ", and by the instructions in /proc/kcore");
	say("ab", "%s%s%s%s%s", f.tlb_batch >= 0 ? "vm.tlb_batch " : "",
	    f.writeback >= 0 ? "vm.tlb_batch_writeback " : "",
	    f.migrc >= 0 ? "vm.migrc_enable " : "",
	    f.hvo >= 0 ? "vm.hugetlb_optimize_vmemmap " : "",
	    f.tlb_batch < 0 && f.writeback < 0 && f.migrc < 0 && f.hvo < 0 ?
	    "nothing to switch in this kernel" :
	    "can be switched, by root");
}

/* --- what can matter ----------------------------------------------------------------------- */

static bool arm64(void)
{
	return !strcmp(f.arch, "aarch64");
}

static bool x86(void)
{
	return !strcmp(f.arch, "x86_64");
}

static bool elsewhere(void)
{
	return !arm64() && !x86();
}

static bool always(void)
{
	return true;
}

static bool batch_off(void)
{
	return !f.tlb_batch;
}

static bool batch_on(void)
{
	return f.tlb_batch > 0;
}

static bool no_huge_pages(void)
{
	return !f.huge_pages;
}

static bool repeated(void)
{
	return f.cpus.repeat == YES || (f.cpus.erratum == YES && f.cpus.repeat == UNKNOWN);
}

static bool nodes_unknown(void)
{
	return !f.nodes;
}

static bool one_node(void)
{
	return f.nodes == 1;
}

static bool migrc_off(void)
{
	return !f.migrc;
}

static bool migrc_on(void)
{
	return f.migrc > 0;
}

static bool tiered(void)
{
	return f.tiers > 1;
}

static bool pools_unknown(void)
{
	return !f.pools;
}

static bool pools_empty(void)
{
	return !f.spare;
}

static bool hvo_off(void)
{
	return !f.hvo;
}

static bool hvo_on(void)
{
	return f.hvo > 0;
}

/*
 * The first row of a mechanism that holds is printed. What the running kernel has comes first;
 * of stock it is what tlb-rs for Linux 7.3 can do.
 */
static const struct verdict {
	const char *who;
	bool (*when)(void);
	const char *text;
} verdicts[] = {
	{ "tlb_batch", elsewhere,
	  "no: tlb-rs is for arm64 and x86_64" },
	{ "tlb_batch", x86,
	  "no: x86_64 already waits once for a whole batch of pages, on stock, too;\n"
	  "only msync() of large folios takes fewer flushes (tlbstat price: writeback)" },
	{ "tlb_batch", batch_off,
	  "yes, but it is off: tlbstat ab shows what vm.tlb_batch=1 saves" },
	{ "tlb_batch", batch_on,
	  "yes, it is on: splits of huge pages, compaction, migration and reclaim\n"
	  "flush runs of pages; tlbstat ab shows what it saves" },
	{ "tlb_batch", no_huge_pages,
	  "little: without transparent huge pages nothing is split; compaction,\n"
	  "migration and reclaim flush page by page in this kernel" },
	{ "tlb_batch", repeated,
	  "yes: splits of huge pages, compaction, migration and reclaim flush page\n"
	  "by page in this kernel, and each completion costs twice on these CPUs" },
	{ "tlb_batch", always,
	  "yes: splits of huge pages, compaction, migration and reclaim flush page\n"
	  "by page in this kernel" },
	{ "migrc", elsewhere,
	  "no: tlb-rs is for arm64 and x86_64" },
	{ "migrc", nodes_unknown,
	  "unknown: the nodes that have memory cannot be read" },
	{ "migrc", one_node,
	  "no: there is one memory node, and nothing moves to another one" },
	{ "migrc", migrc_off,
	  "yes, but it is off: for memory that is only read while move_pages(),\n"
	  "migrate_pages(), mbind(), cpusets or DAMON move it, or kswapd and\n"
	  "memory.reclaim demote it; vm.migrc_enable=1" },
	{ "migrc", migrc_on,
	  "yes, it is on: for memory that is only read while move_pages(),\n"
	  "migrate_pages(), mbind(), cpusets or DAMON move it, or kswapd and\n"
	  "memory.reclaim demote it" },
	{ "migrc", tiered,
	  "only if kswapd or memory.reclaim demote memory that is only read, or\n"
	  "move_pages(), migrate_pages(), mbind(), cpusets or DAMON move it: promotion\n"
	  "and the demotions of direct reclaim never defer" },
	{ "migrc", always,
	  "only if move_pages(), migrate_pages(), mbind(), cpusets or DAMON move\n"
	  "memory that is only read: compaction and NUMA balancing never defer" },
	{ "hvo", elsewhere,
	  "no: tlb-rs is for arm64 and x86_64" },
	{ "hvo", x86,
	  "no: x86_64 has it without tlb-rs (hugetlb_free_vmemmap=on)" },
	{ "hvo", pools_unknown,
	  "unknown: the HugeTLB pools cannot be read" },
	{ "hvo", pools_empty,
	  "no: the HugeTLB pools have no page that could give struct pages back" },
	{ "hvo", hvo_off,
	  "yes, but it is off: vm.hugetlb_optimize_vmemmap=1 gives struct pages\n"
	  "back" },
	{ "hvo", hvo_on,
	  "yes, it is on: tlbstat --once shows what was given back" },
	{ "hvo", always,
	  "yes: this kernel keeps all struct pages of HugeTLB pages; arm64 has no\n"
	  "hugetlb_free_vmemmap without tlb-rs" },
};

static void print_verdicts(void)
{
	const char *done = "";
	int i;

	for (i = 0; i < ARRAY_SIZE(verdicts); i++) {
		if (!strcmp(verdicts[i].who, done) || !verdicts[i].when())
			continue;
		done = verdicts[i].who;
		say(done, "%s", verdicts[i].text);
	}
}

int doctor(int argc, char **argv)
{
	static const struct option names[] = {
		{ "json", no_argument, NULL, 'j' },
		{ "root", required_argument, NULL, 'r' },
		{ "help", no_argument, NULL, 'h' },
		{ }
	};
	struct utsname uts;
	char *line;
	int c;

	while ((c = getopt_long(argc, argv, "jr:h", names, NULL)) != -1) {
		as_json |= c == 'j';
		root = c == 'r' ? optarg : root;
		if (c == 'h')
			help();
		if (c == '?')
			errx(USAGE, "see tlbstat --help");
	}
	if (optind < argc)
		errx(USAGE, "%s: there is nothing to name, see tlbstat --help", argv[optind]);
	check_root();
	uname(&uts);
	line = first_line(path("/proc/sys/kernel/arch"));
	set_text(f.arch, sizeof(f.arch), line ?: uts.machine);
	line = first_line(path("/proc/sys/kernel/osrelease"));
	set_text(f.kernel, sizeof(f.kernel), line ?: uts.release);
	f.tlb_batch = setting("vm/tlb_batch");
	f.writeback = setting("vm/tlb_batch_writeback");
	f.migrc = setting("vm/migrc_enable");
	f.hvo = setting("vm/hugetlb_optimize_vmemmap");
	ask_cpus(&f.cpus, f.arch);
	ask_cpu_rows();
	ask_thp();
	ask_tiers();
	ask_pools();
	say("switches", "tlb_batch %s, writeback %s, migrc %s, hvo %s", switched(f.tlb_batch),
	    switched(f.writeback), switched(f.migrc), switched(f.hvo));
	ask_measures();
	print_verdicts();
	puts(as_json ? "}" : "\nWhat can matter is by the tables of tlb-rs for Linux 7.3.");
	return 0;
}
