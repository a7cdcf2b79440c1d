/* SPDX-License-Identifier: GPL-2.0 */
/* What the sources of tlb_batch_putback share; tlb_batch_putback.c says what it tests. */
#ifndef _TLB_BATCH_PUTBACK_H
#define _TLB_BATCH_PUTBACK_H

#define _GNU_SOURCE
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <linux/magic.h>
#include <linux/userfaultfd.h>

#include "tlb_rs.h"

#define NR_FOLIOS	64
#define FOLIO_PAGES	16
#define SEED		11

/* Break-before-make is a rule of arm64. */
#ifdef __aarch64__
#define HAS_RULE	true
#else
#define HAS_RULE	false
#endif

/* Pins: a blocked process_vm_readv() of a range. */
struct pin {
	pthread_t thread;
	char *src;
	char *dst;
	size_t len;
	int uffd;
	ssize_t copied;
};

/* tlb_batch_putback.c */
extern const char *ext4_dir;
extern size_t psize;
extern size_t folio_size;
extern size_t len;
int pin_pages(struct pin *pin, char *src, size_t size);
bool unpin_pages(struct pin *pin);
char *make_folios(int pages);

/* tlb_batch_putback_reclaim.c */
int run_dirty(const char *skip, bool expect_missing);
int run_kept(const char *skip);
int run_long(const char *skip);

#endif /* _TLB_BATCH_PUTBACK_H */
