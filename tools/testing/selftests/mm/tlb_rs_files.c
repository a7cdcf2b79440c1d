// SPDX-License-Identifier: GPL-2.0
/* Files of /proc and /sys, and numbers. */
#include "tlb_rs.h"

/* Small files of /proc and /sys: 0 or a negative errno. */
int tlb_rs_read_file(const char *path, char *buf, size_t size)
{
	ssize_t n;
	int fd;

	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	n = read(fd, buf, size - 1);
	if (n < 0)
		n = -errno;
	close(fd);
	if (n < 0)
		return (int)n;
	buf[n] = '\0';
	return 0;
}

int tlb_rs_write_file(const char *path, const char *val)
{
	ssize_t n;
	int fd;

	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	n = write(fd, val, strlen(val));
	if (n < 0)
		n = -errno;
	close(fd);
	return n < 0 ? (int)n : 0;
}

int tlb_rs_open(const char *path, int flags)
{
	int fd = open(path, flags | O_CLOEXEC);

	if (fd < 0)
		ksft_exit_fail_msg("%s: %s\n", path, strerror(errno));
	return fd;
}

/* Command line: a decimal number within bounds, or the test ends. */
long tlb_rs_number(const char *arg, long min, long max)
{
	char *end;
	long val;

	errno = 0;
	val = strtol(arg, &end, 10);
	if (errno || end == arg || *end || val < min || val > max)
		ksft_exit_fail_msg("'%s' is not a number from %ld to %ld\n", arg, min, max);
	return val;
}

/* Of that file, or of a node's, in kB; 0 where there is no such field. */
long long tlb_rs_meminfo_kb(const char *path, const char *field)
{
	size_t len = strlen(field);
	char line[256], *p;
	long long kb = 0;
	FILE *f;

	f = fopen(path, "r");
	if (!f)
		return 0;
	while (fgets(line, sizeof(line), f)) {
		p = strstr(line, field);
		if (p && (p == line || p[-1] == ' ') && p[len] == ':')
			kb = atoll(p + len + 1);
	}
	fclose(f);
	return kb;
}

/* One line of /proc/vmstat, or -1 where there is none. */
long long tlb_rs_vmstat_read(const char *want)
{
	long long val, ret = -1;
	char name[64];
	FILE *f;

	f = fopen("/proc/vmstat", "r");
	if (!f)
		return -1;
	while (ret < 0 && fscanf(f, "%63s %lld", name, &val) == 2) {
		if (!strcmp(name, want))
			ret = val;
	}
	fclose(f);
	return ret;
}

bool tlb_rs_has_swap(void)
{
	char buf[512];

	if (tlb_rs_read_file("/proc/swaps", buf, sizeof(buf)))
		return false;
	/* The first line is a heading. */
	return strchr(buf, '\n') && strchr(buf, '\n')[1];
}

/* What is read back from zram leaves the swap cache at once. */
bool tlb_rs_has_disk_swap(void)
{
	char buf[512];

	return !tlb_rs_read_file("/proc/swaps", buf, sizeof(buf)) && strstr(buf, "/dev/") &&
	       !strstr(buf, "zram");
}

/* The nodes that have memory among 0..63, as a mask. */
unsigned long tlb_rs_memory_nodes(void)
{
	unsigned long mask = 0;
	char buf[256];
	char *p = buf;

	if (tlb_rs_read_file("/sys/devices/system/node/has_memory", buf, sizeof(buf)))
		return 1;
	while (*p >= '0' && *p <= '9') {
		unsigned long lo = strtoul(p, &p, 10), hi = lo;

		if (*p == '-')
			hi = strtoul(p + 1, &p, 10);
		for (; lo <= hi && lo < 64; lo++)
			mask |= 1UL << lo;
		if (*p == ',')
			p++;
	}
	return mask;
}

/* HugeTLB pages that somebody has set aside: who resizes a pool would take them away. */
bool tlb_rs_pools_in_use(void)
{
	DIR *dir = opendir(HUGETLB_SYSFS);
	struct dirent *ent;
	char path[320], buf[32];
	bool used = false;

	while (dir && !used && (ent = readdir(dir))) {
		snprintf(path, sizeof(path), HUGETLB_SYSFS "%s/nr_hugepages", ent->d_name);
		used = !tlb_rs_read_file(path, buf, sizeof(buf)) && atol(buf);
	}
	if (dir)
		closedir(dir);
	return used;
}
