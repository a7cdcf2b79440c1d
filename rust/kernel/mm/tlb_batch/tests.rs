// SPDX-License-Identifier: GPL-2.0

//! KUnit tests of batches, of the layout that C has, and of the reasons.

use super::*;

#[kunit_tests(rust_tlb_batch)]
mod suite {
    use super::*;
    use core::{
        cell::Cell,
        mem::offset_of, //
    };

    const PAGE: usize = PAGE_SIZE;

    /// A reference to an address space; counts how many there are.
    struct Hold<'a>(usize, &'a Cell<usize>);

    impl<'a> Hold<'a> {
        fn new(mm: usize, count: &'a Cell<usize>) -> Self {
            count.set(count.get() + 1);
            Self(mm, count)
        }
    }

    impl Holds<usize> for Hold<'_> {
        fn mm(&self) -> usize {
            self.0
        }
    }

    impl Drop for Hold<'_> {
        fn drop(&mut self) {
            self.1.set(self.1.get() - 1);
        }
    }

    type Batch<'a> = Ranges<usize, Hold<'a>>;

    /// A TLB of 64 pages per address space, as a bitmap of the pages that are still cached.
    #[derive(Default)]
    struct Model {
        cached: [u64; 8],
        /// Fewest bytes for which all of an address space is cheaper.
        mm_bytes: Option<usize>,
        /// Whether one operation can invalidate and wait.
        one_operation: bool,
        issued: usize,
        issued_mm: usize,
        evicted: usize,
        synced: usize,
    }

    impl Tlb<usize> for Model {
        fn issue(&mut self, mm: usize, start: usize, end: usize) {
            for page in start / PAGE..end / PAGE {
                self.cached[mm] &= !(1 << page);
            }
            self.issued += 1;
        }

        fn evict(&mut self, mm: usize, start: usize, end: usize) {
            self.issue(mm, start, end);
            self.evicted += 1;
        }

        fn issue_mm(&mut self, mm: usize, _: usize) {
            self.cached[mm] = 0;
            self.issued_mm += 1;
        }

        fn prefers_mm(&self, bytes: usize) -> bool {
            self.mm_bytes.is_some_and(|limit| bytes >= limit)
        }

        fn flush(&mut self, mm: usize, start: usize, end: usize, _: usize) -> bool {
            if self.one_operation {
                self.issue(mm, start, end);
                self.sync();
            }
            self.one_operation
        }

        fn sync(&mut self) {
            self.synced += 1;
        }
    }

    fn add(batch: &mut Batch<'_>, tlb: &mut Model, mm: usize, page: usize, pages: usize) {
        for p in page..page + pages {
            tlb.cached[mm] |= 1 << p;
        }
        if let Some(owed) = batch.add(mm, page * PAGE, (page + pages) * PAGE) {
            owed.issue(tlb);
        }
    }

    /// C and Rust must agree on where the fields are, not only on the size.
    #[test]
    fn layout_matches_c() {
        let mut raw = bindings::tlb_batch {
            nr: 1,
            unsynced: true,
            issued: false,
            evicted: 2,
            evicted_bytes: 3 * PAGE,
            ..Default::default()
        };

        raw.range[0].mm = ptr::without_provenance_mut(0x1000);
        raw.range[0].start = 2 * PAGE;
        raw.range[0].end = 5 * PAGE;

        // SAFETY: Both are plain data of the same size, and a null pointer is `None`.
        let mut ranges: MmRanges = unsafe { core::mem::transmute(raw) };

        struct Expect(usize, (usize, usize, usize));
        impl Tlb<MmPtr> for Expect {
            fn issue(&mut self, mm: MmPtr, start: usize, end: usize) {
                assert_eq!((mm.addr(), start, end), self.1);
                self.0 += 1;
            }
            fn evict(&mut self, _: MmPtr, _: usize, _: usize) {
                self.0 += 10000;
            }
            fn issue_mm(&mut self, _: MmPtr, _: usize) {
                self.0 += 1000;
            }
            fn prefers_mm(&self, _: usize) -> bool {
                false
            }
            fn flush(&mut self, _: MmPtr, _: usize, _: usize, _: usize) -> bool {
                // Asked, because nothing was issued yet: the two flags are told apart.
                self.0 += 100;
                false
            }
            fn sync(&mut self) {
                self.0 += 10;
            }
        }
        let mut expect = Expect(0, (0x1000, 2 * PAGE, 5 * PAGE));

        assert_eq!(ranges.len(), 1);
        assert_eq!(ranges.held().count(), 0);
        assert_eq!(ranges.take_evicted(), (2, 3 * PAGE));
        ranges.flush(&mut expect);
        assert_eq!(expect.0, 111);

        // What was filled last is the one that C extends, and evicted last.
        for i in 0..=ranges::CAPACITY {
            let evicted = ranges.add(ptr::null_mut(), 4 * i * PAGE, (4 * i + 1) * PAGE);
            assert_eq!(evicted.is_some(), i == ranges::CAPACITY);
            if let Some(owed) = evicted {
                owed.issue(&mut Expect(0, (0, 0, PAGE)));
            }
        }
        // SAFETY: As above.
        let raw: bindings::tlb_batch = unsafe { core::mem::transmute(ranges) };
        assert_eq!((raw.nr, raw.last), (ranges::CAPACITY as u8, 0));
        assert_eq!(raw.range[0].start, 4 * ranges::CAPACITY * PAGE);
        assert_eq!(
            offset_of!(bindings::tlb_batch, held) + ranges::HELD * size_of::<usize>(),
            size_of::<MmRanges>()
        );
    }

    #[test]
    fn adjacent_pages_are_one_range() {
        let mut batch = Batch::new(0);
        let mut tlb = Model::default();

        for page in 0..64 {
            add(&mut batch, &mut tlb, 0, page, 1);
        }
        assert_eq!(batch.len(), 1);
        batch.flush(&mut tlb);
        assert_eq!((tlb.cached, tlb.issued, tlb.synced), ([0; 8], 1, 1));
    }

    #[test]
    fn a_gap_that_closes_joins_both_sides() {
        let mut batch = Batch::new(0);
        let mut tlb = Model::default();

        add(&mut batch, &mut tlb, 0, 0, 4);
        add(&mut batch, &mut tlb, 0, 8, 4);
        assert_eq!(batch.len(), 2);
        add(&mut batch, &mut tlb, 0, 4, 4);
        assert_eq!(batch.len(), 1);
        batch.flush(&mut tlb);
        assert_eq!((tlb.cached, tlb.issued), ([0; 8], 1));
    }

    /// The same addresses of two address spaces have nothing to do with each other.
    #[test]
    fn address_spaces_stay_apart() {
        let mut batch = Batch::new(0);
        let mut tlb = Model::default();

        add(&mut batch, &mut tlb, 0, 3, 2);
        add(&mut batch, &mut tlb, 1, 5, 2);
        assert_eq!(batch.len(), 2);

        batch.issue_mm(0, &mut tlb);
        assert_eq!(tlb.cached[..2], [0, 0b110_0000]);
        batch.flush(&mut tlb);
        assert_eq!(tlb.cached, [0; 8]);
    }

    /// A batch that coalesces nothing issues one operation per page, as without it.
    #[test]
    fn overflow_issues_the_first() {
        let mut batch = Batch::new(0);
        let mut tlb = Model::default();

        for i in 0..ranges::CAPACITY + 3 {
            add(&mut batch, &mut tlb, 0, 2 * i, 1);
        }
        assert_eq!(batch.len(), ranges::CAPACITY);
        assert_eq!((tlb.issued, tlb.evicted), (3, 3));
        assert_eq!(tlb.cached[0] & 0b11_1111, 0);
        assert_eq!(batch.take_evicted(), (3, 3 * PAGE));
        assert_eq!(batch.take_evicted(), (0, 0));
        batch.flush(&mut tlb);
        assert_eq!((tlb.cached, tlb.issued), ([0; 8], ranges::CAPACITY + 3));
    }

    #[test]
    fn a_second_flush_does_nothing() {
        let mut batch = Batch::new(0);
        let mut tlb = Model::default();

        batch.flush(&mut tlb);
        assert_eq!(tlb.synced, 0);
        add(&mut batch, &mut tlb, 0, 0, 1);
        batch.issue(&mut tlb);
        assert!(batch.is_unsynced());
        batch.flush(&mut tlb);
        batch.flush(&mut tlb);
        assert_eq!((tlb.issued, tlb.synced), (1, 1));
        assert!(!batch.is_unsynced());
    }

    /// Many ranges of one address space become one operation where that is cheaper, and only
    /// those of that address space.
    #[test]
    fn many_ranges_become_one_operation() {
        let mut batch = Batch::new(0);
        let mut tlb = Model {
            mm_bytes: Some(4 * PAGE),
            ..Default::default()
        };

        for i in 0..4 {
            add(&mut batch, &mut tlb, 0, 2 * i, 1);
        }
        add(&mut batch, &mut tlb, 1, 0, 2);
        add(&mut batch, &mut tlb, 1, 8, 1);
        batch.flush(&mut tlb);
        assert_eq!((tlb.issued_mm, tlb.issued, tlb.synced), (1, 2, 1));
        assert_eq!(tlb.cached, [0; 8]);
    }

    /// One operation may stand for all of them only if they are of one address space and none was
    /// issued before: it does not wait for those.
    #[test]
    fn one_operation_only_for_all_of_it() {
        let mut batch = Batch::new(0);
        let mut tlb = Model {
            one_operation: true,
            ..Default::default()
        };

        add(&mut batch, &mut tlb, 0, 1, 1);
        add(&mut batch, &mut tlb, 0, 5, 1);
        batch.flush(&mut tlb);
        assert_eq!((tlb.cached, tlb.issued, tlb.synced), ([0; 8], 1, 1));

        add(&mut batch, &mut tlb, 0, 1, 1);
        add(&mut batch, &mut tlb, 1, 1, 1);
        batch.flush(&mut tlb);
        assert_eq!((tlb.cached, tlb.issued, tlb.synced), ([0; 8], 3, 2));

        add(&mut batch, &mut tlb, 0, 1, 1);
        batch.issue(&mut tlb);
        add(&mut batch, &mut tlb, 0, 3, 1);
        add(&mut batch, &mut tlb, 0, 5, 1);
        batch.flush(&mut tlb);
        assert_eq!((tlb.cached, tlb.issued, tlb.synced), ([0; 8], 6, 3));
    }

    /// An address space is held once, and until its ranges are issued.
    #[test]
    fn held_once_and_released_once() {
        let count = Cell::new(0);
        let mut batch = Batch::new(0);
        let mut tlb = Model::default();

        batch.hold(1, || Hold::new(1, &count), &mut tlb);
        assert_eq!(count.get(), 0);
        for page in 0..3 {
            add(&mut batch, &mut tlb, 1, 2 * page, 1);
            batch.hold(1, || Hold::new(1, &count), &mut tlb);
        }
        assert_eq!((count.get(), batch.len()), (1, 3));
        batch.release();
        assert_eq!(count.get(), 1);
        batch.flush(&mut tlb);
        assert_eq!(count.get(), 1);
        batch.release();
        batch.release();
        assert_eq!((count.get(), batch.held().count()), (0, 0));
    }

    /// One address space more than can be held is issued at once; the others stay.
    #[test]
    fn too_many_to_hold() {
        let count = Cell::new(0);
        let mut batch = Batch::new(0);
        let mut tlb = Model::default();

        for mm in 0..ranges::HELD + 1 {
            add(&mut batch, &mut tlb, mm, 0, 1);
            batch.hold(mm, || Hold::new(mm, &count), &mut tlb);
        }
        assert_eq!((count.get(), batch.len()), (ranges::HELD, ranges::HELD));
        assert_eq!((tlb.issued, tlb.cached[ranges::HELD]), (1, 0));
        batch.flush(&mut tlb);
        batch.release();
        assert_eq!((count.get(), tlb.cached), (0, [0; 8]));
    }

    /// Any sequence of adds leaves nothing cached that was cleared, and whatever is owed at the end
    /// of a callback is of an address space that is held (a small generator, so that the property
    /// is checked on the target's word size and layout as well as on the host).
    #[test]
    fn any_sequence_is_covered() {
        let mut seed: u32 = 0x746c_6273;
        let mut rand = |below: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((seed >> 16) % below) as usize
        };
        let count = Cell::new(0);
        let (mut lost, mut dangling) = (0, 0);

        for round in 0..500 {
            let mut batch = Batch::new(0);
            let mut tlb = Model {
                mm_bytes: (round % 2 == 0).then_some(20 * PAGE),
                one_operation: round % 3 == 0,
                ..Default::default()
            };

            for _ in 0..rand(40) {
                let (mm, page, pages) = (rand(8), rand(56), rand(8) + 1);
                add(&mut batch, &mut tlb, mm, page, pages);
                batch.hold(mm, || Hold::new(mm, &count), &mut tlb);
            }
            for (mm, cached) in tlb.cached.iter().enumerate() {
                if *cached != 0 && batch.held().all(|held| held != mm) {
                    dangling += 1;
                }
            }
            batch.flush(&mut tlb);
            batch.release();
            if tlb.cached != [0; 8] || count.get() != 0 {
                lost += 1;
            }
        }
        assert_eq!((lost, dangling), (0, 0));
    }

    #[test]
    fn reasons_match_c() {
        for reason in [
            Reason::RmapEnd,
            Reason::MmsFull,
            Reason::VaOpen,
            Reason::Overflow,
            Reason::Unlock,
            Reason::PutBack,
            Reason::Flush,
        ] {
            assert!(Reason::from_raw(reason as u32) == reason);
        }
    }
}
