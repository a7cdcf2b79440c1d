/* SPDX-License-Identifier: GPL-2.0 */
/* The kernel's model of a device that has memory of its own (CONFIG_TEST_HMM). */
#ifndef _TLB_BATCH_DEVICE_H
#define _TLB_BATCH_DEVICE_H

#include <sys/ioctl.h>
#include <sys/sysmacros.h>

#include "tlb_rs.h"

/* As lib/test_hmm_uapi.h has them, which is no header of user space. */
struct device_cmd {
	__u64 addr, ptr, npages, cpages, faults;
};

#define DEVICE_TO_DEV		_IOWR('H', 0x02, struct device_cmd)
#define DEVICE_SNAPSHOT		_IOWR('H', 0x04, struct device_cmd)
#define DEVICE_LOCAL		0x20	/* in a snapshot: the page is in the device's memory */

/* For the memory of the caller, who may be no other process later; -1: there is none. */
static inline int device_open(void)
{
	const char *name = "/dev/tlb_rs_dmirror0";
	char line[128];
	int fd = open("/dev/hmm_dmirror0", O_RDWR | O_CLOEXEC);
	FILE *f;

	if (fd >= 0)
		return fd;
	f = fopen("/proc/devices", "r");
	while (f && fgets(line, sizeof(line), f)) {
		if (!strstr(line, " HMM_DMIRROR\n"))
			continue;
		mknod(name, S_IFCHR | 0600, makedev(strtoul(line, NULL, 10), 0));
		fd = open(name, O_RDWR | O_CLOEXEC);
		unlink(name);
		break;
	}
	if (f)
		fclose(f);
	return fd;
}

static inline int device_request(int fd, unsigned long request, const char *base, size_t pages,
				 void *ptr)
{
	struct device_cmd cmd = {
		.addr = (unsigned long)base,
		.npages = pages,
		.ptr = (unsigned long)ptr,
	};

	return ioctl(fd, request, &cmd);
}

/*
 * Migrates pages to the device, as far as possible. It reads them then, into @content, and says
 * ENOENT if some have stayed.
 */
static inline bool device_migrate(int fd, const char *base, size_t pages, void *content)
{
	return !device_request(fd, DEVICE_TO_DEV, base, pages, content) || errno == ENOENT;
}

/* How many of @pages pages are in the device's memory; @where says it of each, if not NULL. */
static inline size_t device_has(int fd, const char *base, size_t pages, unsigned char *where)
{
	unsigned char page;
	size_t i, found = 0;

	for (i = 0; i < pages; i++) {
		page = 0;
		device_request(fd, DEVICE_SNAPSHOT, base + i * getpagesize(), 1, &page);
		page = (page & ~3) == DEVICE_LOCAL;
		found += page;
		if (where)
			where[i] = page;
	}
	return found;
}

#endif /* _TLB_BATCH_DEVICE_H */
