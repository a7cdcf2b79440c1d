/* SPDX-License-Identifier: GPL-2.0 */
/* Shared parts of tlb_batch_mkclean. See tlb_batch_mkclean.c. */
#ifndef _TLB_BATCH_MKCLEAN_H
#define _TLB_BATCH_MKCLEAN_H

#define _GNU_SOURCE
#include <sys/ioctl.h>

#include "tlb_rs.h"

#define FOLIO_SIZE	(64UL << 10)
#define SEED		41
/* Where a thread stores to, in pages from the start of a folio. */
#define WRITTEN		4
/* The part of a folio that differs. */
#define PART		5
#define PART_END	9

struct file {
	int fd;
	char *base;
	size_t len;
};

/* tlb_batch_mkclean.c */
extern const char *dir;
extern size_t psize;
extern size_t folio_pages;
int skipped(const char *why);
bool none_is_lost(struct file *f, size_t every, bool (*sync)(const struct file *f));

/* tlb_batch_mkclean_disk.c */
void make_file(struct file *f, size_t folio, size_t nr);
void map_file_at(const struct file *f, char *base, size_t len, off_t offset);
bool map_dirty(struct file *f, size_t folio, size_t nr);
void unmap(struct file *f);
bool sync_all(const struct file *f);
size_t differ_on_disk(int file, const char *base, size_t len, off_t offset);
bool is_on_disk(const char *what, const struct file *f);
bool content_is(const char *what, const char *base, size_t len, __u64 seed);
void writer_start(const struct file *f, size_t every);
void writer_passes(void);
void writer_pause(void);
void writer_resume(void);
void writer_end(void);

/* KSFT_PASS, KSFT_FAIL, or KSFT_SKIP. */
/* tlb_batch_mkclean_ptes.c */
int test_edges(void);
int test_prot_none(void);
int test_holes(void);
int test_tracked(void);
int test_softdirty(void);
int test_lazy(void);

/* tlb_batch_mkclean_blocks.c */
int test_punch(void);
int test_truncate(void);
int test_reflink(void);

/* tlb_batch_mkclean_folios.c */
bool batch_folios(bool on);
int test_small(void);
int test_cleaners(void);
int test_protect(void);
int test_device(void);
int test_crowd(void);
int test_extents(void);
int test_journal(void);
int test_switch(void);

#endif /* _TLB_BATCH_MKCLEAN_H */
