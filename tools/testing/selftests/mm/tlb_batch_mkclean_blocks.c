// SPDX-License-Identifier: GPL-2.0
/* Files whose blocks change or are shared. */
#include "tlb_batch_mkclean.h"

#include <linux/falloc.h>
#include <linux/fs.h>

/* The folio is split, so that each round has a new file. */
int test_punch(void)
{
	const size_t len = (PART_END - PART) * psize;
	bool ok = true;
	struct file f;
	size_t i, off;
	int round;

	for (round = 0; ok && round < 3; round++) {
		if (!map_dirty(&f, FOLIO_SIZE, 4))
			return skipped("no folios of 64 KiB");
		writer_start(&f, folio_pages);
		writer_passes();
		for (off = 0; ok && off < f.len; off += FOLIO_SIZE) {
			ok = !fallocate(f.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
					off + PART * psize, len) && sync_all(&f);
		}
		ok = ok && sync_all(&f);
		writer_pause();
		ok = ok && is_on_disk("punched", &f);
		writer_end();
		for (off = PART * psize; ok && off < f.len; off += FOLIO_SIZE) {
			for (i = 0; i < len; i++)
				ok &= !f.base[off + i];
		}
		if (!ok)
			ksft_print_msg("round %d: a hole is not empty, or data is lost\n", round);
		unmap(&f);
	}
	return ok ? KSFT_PASS : KSFT_FAIL;
}

int test_truncate(void)
{
	const size_t kept = PART * psize + psize / 2;
	struct file f;
	size_t i;
	bool ok;

	if (!map_dirty(&f, FOLIO_SIZE, 1))
		return skipped("no folios of 64 KiB");
	ok = sync_all(&f);
	tlb_rs_fill(f.base, f.len, SEED + 2);
	ok = ok && !ftruncate(f.fd, kept) && sync_all(&f) && !ftruncate(f.fd, f.len) &&
	     content_is("before its end", f.base, kept, SEED + 2);
	for (i = kept; ok && i < f.len; i++) {
		if (f.base[i]) {
			ksft_print_msg("what was cut off is there at %zu\n", i);
			ok = false;
		}
	}
	ok = ok && is_on_disk("cut off", &f);
	tlb_rs_fill(f.base, f.len, SEED + 3);
	ok = ok && sync_all(&f);
	tlb_rs_fill(f.base, f.len, SEED + 4);
	ok = ok && is_on_disk("grown", &f) && content_is("grown", f.base, f.len, SEED + 4);
	unmap(&f);
	return ok ? KSFT_PASS : KSFT_FAIL;
}

int test_reflink(void)
{
	struct file f, clone;
	char *copy;
	bool ok;

	make_file(&clone, psize, 1);
	if (!map_dirty(&f, FOLIO_SIZE, 4))
		return skipped("no folios of 64 KiB");
	if (ioctl(clone.fd, FICLONE, f.fd)) {
		unmap(&f);
		close(clone.fd);
		return skipped("no reflink");
	}
	copy = tlb_rs_mmap(f.len, psize);
	memcpy(copy, f.base, f.len);
	tlb_rs_fill(f.base, f.len, SEED + 2);
	ok = sync_all(&f) && is_on_disk("the original", &f) &&
	     !differ_on_disk(clone.fd, copy, f.len, 0);
	/* Its blocks are no longer shared, but written meanwhile. */
	ok = ok && none_is_lost(&f, folio_pages, sync_all) &&
	     !differ_on_disk(clone.fd, copy, f.len, 0);
	if (!ok)
		ksft_print_msg("the clone has changed, or the original has not\n");
	munmap(copy, f.len);
	unmap(&f);
	close(clone.fd);
	return ok ? KSFT_PASS : KSFT_FAIL;
}
