// SPDX-License-Identifier: GPL-2.0
/*
 * tlbstat: what CPUs can do, by MIDR of arm64 and CPUID of x86_64
 *
 * Range TLBI (FEAT_TLBIRANGE) has no hwcap, and the field of the register that has it is not
 * shown to programs. It is mandatory from Armv8.4 on. Erratum 4118414 is of the CPUs in
 * arch/arm64/kernel/cpu_errata.c of Linux 7.3.
 */
#include "cpus.h"
#ifdef __x86_64__
#include <cpuid.h>
#endif

static const struct part {
	int implementer, part;
	const char *name;
	enum answer range, erratum;
} parts[] = {
	{ 0x00, 0x051, "QEMU max", YES, NO },
	{ 0x41, 0xd03, "Cortex-A53", NO, NO },
	{ 0x41, 0xd04, "Cortex-A35", NO, NO },
	{ 0x41, 0xd05, "Cortex-A55", NO, NO },
	{ 0x41, 0xd07, "Cortex-A57", NO, NO },
	{ 0x41, 0xd08, "Cortex-A72", NO, NO },
	{ 0x41, 0xd09, "Cortex-A73", NO, NO },
	{ 0x41, 0xd0a, "Cortex-A75", NO, NO },
	{ 0x41, 0xd0b, "Cortex-A76", NO, YES },
	{ 0x41, 0xd0c, "Neoverse-N1", NO, YES },
	{ 0x41, 0xd0d, "Cortex-A77", NO, YES },
	{ 0x41, 0xd0e, "Cortex-A76AE", NO, YES },
	{ 0x41, 0xd40, "Neoverse-V1", YES, YES },
	{ 0x41, 0xd41, "Cortex-A78", NO, YES },
	{ 0x41, 0xd42, "Cortex-A78AE", NO, YES },
	{ 0x41, 0xd44, "Cortex-X1", NO, YES },
	{ 0x41, 0xd46, "Cortex-A510", YES, NO },
	{ 0x41, 0xd47, "Cortex-A710", YES, YES },
	{ 0x41, 0xd48, "Cortex-X2", YES, YES },
	{ 0x41, 0xd49, "Neoverse-N2", YES, YES },
	{ 0x41, 0xd4b, "Cortex-A78C", UNKNOWN, YES },
	{ 0x41, 0xd4c, "Cortex-X1C", UNKNOWN, YES },
	{ 0x41, 0xd4d, "Cortex-A715", YES, NO },
	{ 0x41, 0xd4e, "Cortex-X3", YES, YES },
	{ 0x41, 0xd4f, "Neoverse-V2", YES, YES },
	{ 0x41, 0xd80, "Cortex-A520", YES, NO },
	{ 0x41, 0xd81, "Cortex-A720", YES, NO },
	{ 0x41, 0xd82, "Cortex-X4", YES, YES },
	{ 0x41, 0xd83, "Neoverse-V3AE", YES, YES },
	{ 0x41, 0xd84, "Neoverse-V3", YES, YES },
	{ 0x41, 0xd85, "Cortex-X925", YES, YES },
	{ 0x41, 0xd87, "Cortex-A725", YES, NO },
	{ 0x41, 0xd88, "Cortex-A520AE", YES, NO },
	{ 0x41, 0xd89, "Cortex-A720AE", YES, NO },
	{ 0x41, 0xd8a, "C1-Nano", YES, NO },
	{ 0x41, 0xd8b, "C1-Pro", YES, NO },
	{ 0x41, 0xd8c, "C1-Ultra", YES, YES },
	{ 0x41, 0xd8e, "Neoverse-N3", YES, NO },
	{ 0x41, 0xd90, "C1-Premium", YES, YES },
	{ 0x42, 0x516, "Vulcan", NO, NO },
	{ 0x43, 0x0a1, "ThunderX", NO, NO },
	{ 0x43, 0x0af, "ThunderX2", NO, NO },
	{ 0x46, 0x001, "A64FX", NO, NO },
	{ 0x48, 0xd01, "TSV110", NO, NO },
	{ 0x48, 0xd02, "HIP09", UNKNOWN, NO },
	{ 0x48, 0xd06, "HIP12", UNKNOWN, NO },
	{ 0x4e, 0x003, "Denver", NO, NO },
	{ 0x4e, 0x004, "Carmel", NO, NO },
	{ 0x4e, 0x010, "Olympus", YES, YES },
	{ 0x50, 0x000, "X-Gene", NO, NO },
	{ 0x51, 0x800, "Falkor-V1", NO, NO },
	{ 0x51, 0xc00, "Falkor", NO, NO },
	{ 0x51, 0x001, "Oryon-X1", YES, NO },
	{ 0x61, 0x022, "M1-Icestorm", YES, NO },
	{ 0x61, 0x023, "M1-Firestorm", YES, NO },
	{ 0x61, 0x024, "M1-Icestorm-Pro", YES, NO },
	{ 0x61, 0x025, "M1-Firestorm-Pro", YES, NO },
	{ 0x61, 0x028, "M1-Icestorm-Max", YES, NO },
	{ 0x61, 0x029, "M1-Firestorm-Max", YES, NO },
	{ 0x61, 0x032, "M2-Blizzard", YES, NO },
	{ 0x61, 0x033, "M2-Avalanche", YES, NO },
	{ 0x6d, 0xd49, "Azure-Cobalt-100", YES, YES },
	{ 0xc0, 0xac3, "AmpereOne", YES, NO },
	{ 0xc0, 0xac4, "AmpereOne-A", YES, NO },
};

/* How many numbers a list such as 0-3,8 has, and the first @room of them; 0: it is none. */
int list_of(const char *text, int *list, int room)
{
	int nr = 0, first, last, n;

	while (text && isdigit((unsigned char)*text)) {
		if (sscanf(text, "%d-%d%n", &first, &last, &n) < 2) {
			if (sscanf(text, "%d%n", &first, &n) < 1)
				return 0;
			last = first;
		}
		if (first < 0 || last < first || last > 1 << 16)
			return 0;
		for (; first <= last; first++, nr++)
			if (nr < room)
				list[nr] = first;
		text += n;
		text += *text == ',';
	}
	return nr;
}

static const struct part *part_of(const char *text)
{
	unsigned long long midr;
	char *end;
	int i;

	if (!text || !isxdigit((unsigned char)*text))
		return NULL;
	midr = strtoull(text, &end, 16);
	if (end == text || (*end && !isspace((unsigned char)*end)))
		return NULL;
	for (i = 0; i < ARRAY_SIZE(parts); i++)
		if (parts[i].implementer == (int)(midr >> 24 & 0xff) &&
		    parts[i].part == (int)(midr >> 4 & 0xfff))
			return &parts[i];
	return NULL;
}

/* Range TLBI is used if all CPUs have it; the erratum is worked around if one CPU has it. */
static void ask_arm64(struct cpus *c, const int *cpu, int nr)
{
	int count[ARRAY_SIZE(parts)] = {}, unknown = 0, i;
	const struct part *part;
	size_t n = 0;

	c->range = YES;
	c->erratum = NO;
	for (i = 0; i < nr; i++) {
		part = part_of(first_line(path("/sys/devices/system/cpu/cpu%d/regs/%s", cpu[i],
					       "identification/midr_el1")));
		if (!part) {
			unknown++;
			continue;
		}
		count[part - parts]++;
		if (part->range == NO || (part->range == UNKNOWN && c->range == YES))
			c->range = part->range;
		if (part->erratum == YES)
			c->erratum = YES;
	}
	if ((unknown || !nr) && c->range == YES)
		c->range = UNKNOWN;
	if ((unknown || !nr) && c->erratum == NO)
		c->erratum = UNKNOWN;
	for (i = 0; i < ARRAY_SIZE(parts) && n < sizeof(c->model); i++)
		if (count[i])
			n += snprintf(c->model + n, sizeof(c->model) - n, "%s%d %s",
				      n ? ", " : "", count[i], parts[i].name);
	if (unknown && n < sizeof(c->model))
		snprintf(c->model + n, sizeof(c->model) - n, "%s%d unknown", n ? ", " : "",
			 unknown);
}

/* With --root the file of the cpuid driver, which only root may read. */
static bool ask_cpuid(unsigned int leaf, unsigned int reg[4])
{
	int fd;
	bool ok;

#ifdef __x86_64__
	if (!*root)
		return __get_cpuid(leaf, &reg[0], &reg[1], &reg[2], &reg[3]);
#endif
	fd = open(path("/dev/cpu/0/cpuid"), O_RDONLY | O_CLOEXEC);
	ok = fd >= 0 && pread(fd, reg, 16, leaf) == 16;
	if (fd >= 0)
		close(fd);
	return ok;
}

static void ask_x86(struct cpus *c)
{
	FILE *f = fopen(path("/proc/cpuinfo"), "re");
	unsigned int reg[4];
	char *line, *name;

	while ((line = next(f))) {
		name = strchr(line, ':');
		if (!*c->model && name && starts(line, "model name"))
			snprintf(c->model, sizeof(c->model), "%.*s",
				 (int)strcspn(name + 2, "\n"), name[1] ? name + 2 : "");
	}
	if (!ask_cpuid(0x80000000, reg))
		return;
	c->invlpgb = reg[0] < 0x80000008 ? NO :
		     !ask_cpuid(0x80000008, reg) ? UNKNOWN : reg[1] & 8 ? YES : NO;
}

/*
 * Whether the kernel repeats TLBI and DSB: its log says so while CPUs come up. That it does not
 * is only known if the log still has its first line.
 */
static enum answer repeats(void)
{
	int fd = open(path("/dev/kmsg"), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
	enum answer said = UNKNOWN;
	bool whole = false, more = f;
	char *line = NULL;
	size_t size = 0;

	while (more) {
		errno = 0;
		if (getline(&line, &size, f) > 0) {
			if (strstr(line, "Broken broadcast TLBI completion"))
				said = YES;
			/* Level, number and time. */
			whole |= strchr(line, ',') && starts(strchr(line, ','), ",0,");
		} else {
			/* Lines were overwritten while they were read. */
			more = errno == EPIPE;
			clearerr(f);
		}
	}
	free(line);
	if (f)
		fclose(f);
	return said == UNKNOWN && whole ? NO : said;
}

void ask_cpus(struct cpus *c, const char *arch)
{
	static int cpu[4096];

	memset(c, 0, sizeof(*c));
	c->nr = list_of(first_line(path("/sys/devices/system/cpu/online")), cpu, ARRAY_SIZE(cpu));
	if (!strcmp(arch, "aarch64")) {
		ask_arm64(c, cpu, c->nr < ARRAY_SIZE(cpu) ? c->nr : ARRAY_SIZE(cpu));
		c->repeat = repeats();
	} else if (!strcmp(arch, "x86_64")) {
		ask_x86(c);
	}
}
