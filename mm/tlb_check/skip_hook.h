/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _MM_SKIP_HOOK_H
#define _MM_SKIP_HOOK_H

struct dentry;

/*
 * Hooks that a test can remove.
 *
 * @names: one for each
 * @nr: how many there are, BITS_PER_LONG at most
 * @skipped: a bit for each that is removed
 */
struct skip_hooks {
	const char * const *names;
	unsigned int nr;
	unsigned long *skipped;
};

void skip_hook_create(struct dentry *dir, const struct skip_hooks *hooks);

#endif /* _MM_SKIP_HOOK_H */
