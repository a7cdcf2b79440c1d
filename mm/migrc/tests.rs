// SPDX-License-Identifier: GPL-2.0

//! Tests that need a kernel; `verify/` of tlb-rs has the others.

use super::*;

#[kunit_tests(migrc)]
mod suite {
    use super::{eligibility::Reasons, *};
    use core::{
        mem::forget,
        ptr, //
    };
    use kernel::page::Page;

    /// Counts folios instead of having them.
    #[derive(Default)]
    struct Count(usize);

    impl Chain for Count {
        const EMPTY: Self = Self(0);

        type Folio = ();

        fn push(&mut self, (): ()) {
            self.0 += 1;
        }

        fn append(&mut self, other: Self) {
            self.0 += other.0;
        }

        fn is_empty(&self) -> bool {
            self.0 == 0
        }
    }

    /// Counts flushes.
    struct Flushes(usize);

    // SAFETY: There are no translations.
    unsafe impl Mms for Flushes {
        fn flush_all(&mut self) -> usize {
            self.0 += 1;
            self.0
        }
    }

    #[test]
    fn a_closed_ledger_takes_nothing() {
        let mut ledger = Ledger::<Count>::new();

        assert!(ledger.add((), 1, || 0).is_err());
        ledger.open();
        assert_eq!(ledger.add((), 1, || 0), Ok(true));
        assert_eq!(ledger.add((), 2, || 0), Ok(false));
        ledger.close();
        assert!(ledger.add((), 1, || 0).is_err());
        assert_eq!(ledger.pages(), 3);
    }

    #[test]
    fn what_comes_after_the_splice_waits() {
        let (mut a, mut b) = (Ledger::<Count>::new(), Ledger::<Count>::new());
        let mut unflushed = Unflushed::new();

        a.open();
        b.open();
        assert_eq!(a.add((), 512, || 7), Ok(true));
        assert_eq!(b.add((), 1, || 5), Ok(true));
        a.splice_into(&mut unflushed);
        b.splice_into(&mut unflushed);
        assert_eq!(a.add((), 1, || 9), Ok(true));

        let mut mms = Flushes(0);
        let flushed = unflushed.flush(&mut mms);
        assert_eq!((flushed.pages, flushed.since, flushed.mms), (513, 5, 1));
        assert_eq!(flushed.into_chain().0, 2);
        assert_eq!((a.pages(), b.pages(), mms.0), (1, 0, 1));

        let mut rest = Unflushed::new();
        a.splice_into(&mut rest);
        assert_eq!(rest.flush(&mut mms).into_chain().0, 1);
    }

    #[test]
    fn nothing_to_flush() {
        let mut ledger = Ledger::<Count>::new();
        let mut unflushed = Unflushed::new();

        ledger.splice_into(&mut unflushed);
        assert!(match unflushed.some() {
            Some(unflushed) => {
                unflushed.flush(&mut Flushes(0)).into_chain();
                false
            }
            None => true,
        });
    }

    /// Other tasks flush, and defer 2^32 times, while one flush does not come to its end.
    #[test]
    fn a_flush_that_stalls_covers_what_it_has_seen() {
        let seen = Generation::from_raw(1);
        let now = Generation::from_raw(1 + (1 << 32));
        let flushed = now.into_raw() - 2;

        assert!(seen.is_pending(0));
        assert_eq!(seen.cover(0), Some(1));
        assert!(now.is_pending(flushed));
        assert_eq!(seen.cover(flushed), None);
        assert_eq!(now.cover(flushed), Some(now.into_raw()));
        assert!(!now.is_pending(now.into_raw()));
    }

    #[test]
    fn a_flush_covers_what_it_has_seen() {
        let mut mm = bindings::migrc_mm::default();
        // SAFETY: `mm` outlives this, and nobody else knows it.
        let registered = unsafe { RegisteredMm::from_raw(&raw mut mm) };
        // SAFETY: As above.
        let drainer = unsafe { Drainer::new() };
        let defer = |nr: i64| {
            // SAFETY: As above.
            unsafe { (*registered.as_raw()).deferred.counter += nr }
        };

        assert!(!registered.see(&drainer));
        assert_eq!(registered.seen(&drainer), None);
        defer(1);
        assert!(registered.see(&drainer));
        let first = Generation::from_raw(1);
        assert_eq!(registered.seen(&drainer), Some(first));
        // Too late for the flush that has seen the first. They must not look like none.
        defer(1 << 32);
        registered.cover(first);
        assert!(registered.see(&drainer));
        let last = Generation::from_raw((1 << 32) + 1);
        assert_eq!(registered.seen(&drainer), Some(last));
        registered.cover(last);
        assert!(!registered.see(&drainer));
        defer(1);
        // What was seen long ago.
        registered.cover(first);
        registered.cover(last);
        assert!(registered.see(&drainer));
        assert_eq!(mm.flushed.counter, (1 << 32) + 1);
    }

    /// As the mms of a list of three exit, in any order.
    #[test]
    fn address_spaces_exit() {
        for order in [
            [0, 1, 2],
            [0, 2, 1],
            [1, 0, 2],
            [1, 2, 0],
            [2, 0, 1],
            [2, 1, 0],
        ] {
            let mut mms = [bindings::migrc_mm::default(); 3];
            let first = mms.as_mut_ptr();
            let mut list = Registered::new();
            // SAFETY: Nobody else has the list, and the array outlives it.
            let drainer = unsafe { Drainer::new() };

            for i in 0..3 {
                // SAFETY: In the array, which outlives the list.
                unsafe { list.add(first.add(i)) };
                // SAFETY: As above. It is there already.
                unsafe { list.add(first.add(i)) };
            }
            for (gone, i) in order.into_iter().enumerate() {
                assert_eq!(list.iter(&drainer).count(), 3 - gone);
                // SAFETY: It is in the list, and nobody walks through it.
                unsafe { list.remove(first.add(i)).wait(|| ()) };
                let mut rest = list.iter(&drainer);
                // SAFETY: In the array.
                assert!(rest.all(|mm| mm.as_raw() != unsafe { first.add(i) }));
            }
        }
    }

    #[test]
    fn the_first_reason_counts() {
        let mut reasons = Reasons::NONE;

        assert_eq!(reasons.first(), None);
        for (i, &deny) in Deny::ALL.iter().enumerate().rev() {
            assert_eq!(deny as usize, i);
            reasons = reasons.with(deny);
            assert_eq!(reasons.first(), Some(deny));
        }
    }

    /// A page that nobody else has, as if it were a source.
    fn source() -> Result<MigratedSource> {
        let page = Page::alloc_page(GFP_KERNEL)?;
        let folio = page.as_ptr().cast();

        forget(page);
        // SAFETY: A page of order 0 is a folio, it is on no list and nobody maps it; the reference
        // was the page's.
        Ok(unsafe { MigratedSource::from_raw(NonNull::new_unchecked(folio)) })
    }

    /// Puts a source back.
    fn release(source: MigratedSource) {
        // SAFETY: Nothing was ever mapped.
        let page = unsafe { source.into_raw() }.as_ptr().cast();

        // SAFETY: The reference is ours.
        unsafe { bindings::__free_pages(page, 0) };
    }

    #[test]
    fn chains_keep_what_they_get() -> Result {
        let mut chain = FolioChain::new();
        let mut other = FolioChain::new();
        let mut all = [ptr::null_mut(); 4];

        assert!(chain.is_empty());
        chain.append(FolioChain::new());
        assert!(chain.is_empty());
        for (i, folio) in all.iter_mut().enumerate() {
            // SAFETY: It is not released.
            let source = unsafe { source()?.into_raw() };

            *folio = source.as_ptr();
            // SAFETY: As in `source()`.
            let source = unsafe { MigratedSource::from_raw(source) };
            match i % 2 {
                0 => chain.push(source),
                _ => other.push(source),
            }
        }
        chain.append(other);
        assert!(!chain.is_empty());

        // SAFETY: As in `release()`.
        let mut next = unsafe { chain.into_raw() };
        let mut found = 0;
        while !next.is_null() {
            let folio = next;

            assert!(all.contains(&folio));
            found += 1;
            // SAFETY: A folio that was in a chain, whose next is the first word of its `lru`.
            next = unsafe {
                (*folio)
                    .__bindgen_anon_1
                    .__bindgen_anon_1
                    .__bindgen_anon_1
                    .lru
                    .next
                    .cast()
            };
            // SAFETY: As in `source()`.
            release(unsafe { MigratedSource::from_raw(NonNull::new_unchecked(folio)) });
        }
        assert_eq!(found, all.len());
        Ok(())
    }
}
