// SPDX-License-Identifier: GPL-2.0
/*
 * Uses each symbol that the series exports, most of them as other modules do: by the inline
 * function that calls them. "make test SUITE=dkms" fails if one is exported and not used here.
 *
 * migrc_write_access		get_write_access()
 * migrc_zero_range		called
 * folio_batch_mkclean_key	folio_batch_mkclean()
 * __folio_batch_mkclean	the same
 * page_ref_waits		folio_try_get(), where hvo is
 * page_ref_inc_unless_zero_waits	the same
 * page_ref_add_unless_zero_waits	folio_ref_try_add()
 */
#include <linux/folio_batch.h>
#include <linux/fs.h>
#include <linux/highmem.h>
#include <linux/migrc.h>
#include <linux/module.h>
#include <linux/pagemap.h>
#include <linux/rmap.h>
#include <linux/shmem_fs.h>
#include <linux/string.h>

/* A folio of a file that nobody else has, half of it zeroed. */
static int __init use_folio(struct address_space *mapping, struct folio *folio)
{
	struct folio_batch batch;
	void *bytes = folio_address(folio);

	folio_lock(folio);
	memset(bytes, 0xa5, PAGE_SIZE);
	migrc_zero_range(folio, 0, PAGE_SIZE / 2);
	folio_unlock(folio);
	if (memchr_inv(bytes, 0, PAGE_SIZE / 2) ||
	    memchr_inv(bytes + PAGE_SIZE / 2, 0xa5, PAGE_SIZE / 2))
		return -EIO;
	if (!folio_try_get(folio))
		return -EBUSY;
	folio_put(folio);
	if (!folio_ref_try_add(folio, 2))
		return -EBUSY;
	folio_put_refs(folio, 2);
	folio_batch_init(&batch);
	return folio_batch_mkclean(mapping, &batch, 0, false) ? -EIO : 0;
}

static int __init exports_init(void)
{
	struct file *file = shmem_file_setup("tlb_rs_exports", PAGE_SIZE, EMPTY_VMA_FLAGS);
	struct folio *folio;
	int err;

	if (IS_ERR(file))
		return PTR_ERR(file);
	err = get_write_access(file_inode(file));
	if (err)
		goto out;
	put_write_access(file_inode(file));
	folio = shmem_read_folio(file->f_mapping, 0);
	if (IS_ERR(folio)) {
		err = PTR_ERR(folio);
		goto out;
	}
	err = use_folio(file->f_mapping, folio);
	folio_put(folio);
out:
	fput(file);
	if (!err)
		pr_info("tlb_rs_exports: each symbol was used\n");
	return err;
}
module_init(exports_init);

static void __exit exports_exit(void)
{
	pr_info("tlb_rs_exports: gone\n");
}
module_exit(exports_exit);

MODULE_DESCRIPTION("Test of the headers package: a module that uses the symbols of tlb-rs");
MODULE_LICENSE("GPL");
