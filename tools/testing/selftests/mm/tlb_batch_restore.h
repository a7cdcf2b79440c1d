/* SPDX-License-Identifier: GPL-2.0 */
/* Shared parts of tlb_batch_restore. See tlb_batch_restore.c. */
#ifndef _TLB_BATCH_RESTORE_H
#define _TLB_BATCH_RESTORE_H

#define _GNU_SOURCE
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <linux/userfaultfd.h>

#include "tlb_rs.h"

#define RUN_LOOK	16
#define SEED		23

/* A TLB may hold some neighbouring entries as one. */
#ifdef __aarch64__
#define HAS_BLOCKS	true
#else
#define HAS_BLOCKS	false
#endif

/* What the kernel has counted: pages that were mapped again in runs of two or more. */
struct restored {
	long long pages;
	long long runs;		/* -1: this kernel does not say */
};

/* A child that maps the folios, too. */
struct sharer {
	pid_t pid;
	int ask;
	int says;
};

#define SHARER_END	'q'	/* no question */

/* A pin of a range: a process_vm_readv() of it that does not end. */
struct pin {
	pthread_t thread;
	char *src;
	char *dst;
	size_t len;
	int uffd;
	ssize_t copied;
};

/* tlb_batch_restore.c */
extern const char *ext4_dir;
extern size_t psize;
extern size_t folio_pages;	/* 64 KiB, or one block of entries of arm64 */
extern size_t folio_size;
extern size_t pmd_size;
int skipped(const char *why);
bool choose_size(size_t size, const char *how);

/* tlb_batch_restore_pages.c */
void restored_begin(struct restored *r);
bool restored_is(const struct restored *before, long long pages, long long runs);
void expect_runs(const unsigned char *kind, struct restored *want);
char *make_folios(size_t nr);
char *make_thps(size_t nr);
size_t move_folios(char *base, size_t nr, size_t stride, int node);
bool all_move(char *base, size_t nr, int node);
bool all_whole(const char *base, size_t nr);
bool content_is(const char *what, const char *base, size_t len, __u64 seed);
bool page_is(const char *base, size_t page, __u64 seed);
void write_page(char *base, size_t page, __u64 seed);
void sharer_start(struct sharer *s, bool (*answer)(char what));
bool sharer_ask(struct sharer *s, char what);
void sharer_end(struct sharer *s);
bool pin_pages(struct pin *pin, char *src, size_t size);
bool unpin_pages(struct pin *pin);
int uffd_open(__u64 features);
bool uffd_register(int fd, void *addr, size_t len, __u64 mode);
char *map_file(size_t nr, int prot, int *fd);

/* KSFT_PASS, KSFT_FAIL, or KSFT_SKIP. */
/* tlb_batch_restore_counts.c */
int test_counts64k(void);
int test_counts2m(void);
int test_file(void);
int test_off(void);
int test_order4(void);
int test_edges(void);

/* tlb_batch_restore_attrs.c */
int test_attrs(void);
int test_shared(void);
int test_softdirty(void);
int test_readonly(void);
int test_lazyfree(void);
int test_dirty(void);
int test_mlock(void);

/* tlb_batch_restore_ends.c */
int test_zapped(void);
int test_prot_none(void);
int test_exclusive(void);
int test_undo(void);
int test_poison(void);
int test_deferred(void);

/* tlb_batch_restore_hint.c */
int test_hint(void);
int test_hint_shared(void);
int test_hint_pending(void);

#endif /* _TLB_BATCH_RESTORE_H */
