// SPDX-License-Identifier: GPL-2.0

//! Batched TLB invalidation.
//!
//! A task that clears page table entries owes an invalidation of the translations that TLBs may
//! have cached. A [`TlbBatch`] keeps what is owed as a few address ranges instead of one operation
//! per page. None can be lost: what leaves the batch must be issued, and a batch that goes out of
//! scope flushes itself.
//!
//! C headers: [`include/linux/tlb_batch.h`](srctree/include/linux/tlb_batch.h),
//! `mm/tlb_batch/internal.h`

use crate::{
    bindings,
    mm::Mm,
    page::PAGE_SIZE,
    prelude::*,
    safe_c,
    sync::aref::ARef,
    task::might_sleep,
    types::NotThreadSafe, //
};
use core::{
    marker::PhantomData,
    mem::{
        align_of,
        size_of, //
    },
    ops, ptr,
};

pub mod ranges;
use ranges::{
    Holds,
    Ranges,
    Tlb, //
};

/// The name of an address space in a batch.
type MmPtr = *mut bindings::mm_struct;

/// What a batch consists of; `struct tlb_batch` in C.
type MmRanges = Ranges<MmPtr, ARef<Mm>>;

impl Holds<MmPtr> for ARef<Mm> {
    #[inline]
    fn mm(&self) -> MmPtr {
        self.as_raw()
    }
}

#[inline(always)]
fn owed_dropped() {
    build_error!("an owed TLB invalidation is dropped without being issued");
}

static_assert!(ranges::CAPACITY == bindings::TLB_BATCH_RANGES as usize);
static_assert!(ranges::HELD == bindings::TLB_BATCH_MMS as usize);
static_assert!(size_of::<MmRanges>() == size_of::<bindings::tlb_batch>());
static_assert!(align_of::<MmRanges>() == align_of::<bindings::tlb_batch>());
// C's null pointer is `None`.
// SAFETY: The sizes agree, and any bits are an address.
static_assert!(unsafe { core::mem::transmute::<Option<ARef<Mm>>, usize>(None) } == 0);

/// Why ranges are issued or waited for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum Reason {
    /// An `rmap_one()` callback ends: the address space may go away.
    RmapEnd = bindings::tlb_batch_reason_TLB_BATCH_RMAP_END,
    /// An `rmap_one()` callback ends, and no more address spaces can be held.
    MmsFull = bindings::tlb_batch_reason_TLB_BATCH_MMS_FULL,
    /// A fault may fill the address as soon as the page table lock is dropped.
    VaOpen = bindings::tlb_batch_reason_TLB_BATCH_VA_OPEN,
    /// The batch is full.
    Overflow = bindings::tlb_batch_reason_TLB_BATCH_OVERFLOW,
    /// Reclaim is about to unlock the folio.
    Unlock = bindings::tlb_batch_reason_TLB_BATCH_UNLOCK,
    /// A cleared entry is about to become valid again.
    PutBack = bindings::tlb_batch_reason_TLB_BATCH_PUT_BACK,
    /// The caller relies on the old translations being gone.
    Flush = bindings::tlb_batch_reason_TLB_BATCH_FLUSH,
}

static_assert!(Reason::Flush as u32 + 1 == bindings::tlb_batch_reason_NR_TLB_BATCH_REASONS);

impl Reason {
    /// Converts from C; a value that is none of `enum tlb_batch_reason` counts as a flush.
    #[inline]
    pub fn from_raw(reason: bindings::tlb_batch_reason) -> Self {
        [
            Self::RmapEnd,
            Self::MmsFull,
            Self::VaOpen,
            Self::Overflow,
            Self::Unlock,
            Self::PutBack,
        ]
        .into_iter()
        .find(|r| *r as u32 == reason)
        .unwrap_or(Self::Flush)
    }
}

safe_c! {
    /// Orders what was cleared before what the caller writes next.
    fn order() = tlb_batch_arch_order();
    /// Whether an invalidation of the address space is cheaper than one of so many pages.
    fn prefers_mm(pages: usize) -> bool = tlb_batch_arch_prefers_mm(pages);
    /// Counts what was issued for lack of room. In process context.
    fn account_evicted(ranges: usize, pages: usize) = tlb_batch_account_evicted(ranges, pages);
}

/// Issues invalidations to the hardware, which accounts them to a reason.
struct Hardware(Reason);

impl Tlb<MmPtr> for Hardware {
    #[inline]
    fn issue(&mut self, mm: MmPtr, start: usize, end: usize) {
        // SAFETY: `mm` came out of a `TlbBatch`, whose invariants say that it is alive.
        unsafe { bindings::tlb_batch_arch_issue(mm, start, end, self.0 as u32) };
    }

    #[inline]
    fn issue_mm(&mut self, mm: MmPtr, bytes: usize) {
        // SAFETY: As above.
        unsafe { bindings::tlb_batch_arch_issue_mm(mm, bytes / PAGE_SIZE, self.0 as u32) };
    }

    #[inline]
    fn evict(&mut self, mm: MmPtr, start: usize, end: usize) {
        // SAFETY: As above.
        unsafe { bindings::tlb_batch_arch_evict(mm, start, end) };
    }

    #[inline]
    fn prefers_mm(&self, bytes: usize) -> bool {
        prefers_mm(bytes / PAGE_SIZE)
    }

    #[inline]
    fn flush(&mut self, mm: MmPtr, start: usize, end: usize, bytes: usize) -> bool {
        let pages = bytes / PAGE_SIZE;

        // SAFETY: As in `issue()` and `sync()`.
        unsafe { bindings::tlb_batch_arch_flush(mm, start, end, pages, self.0 as u32) }
    }

    #[inline]
    fn sync(&mut self) {
        // SAFETY: Only the task that made a batch uses it: it is not `Send`. The callers of
        // `TlbBatch::flush()` have interrupts on; lockdep checks that, as it checks sleeping in
        // atomic context.
        unsafe { bindings::tlb_batch_arch_sync() };
    }
}

/// TLB invalidations that the current task owes.
///
/// # Invariants
///
/// Every address space in the batch is alive at least for `'mm`, or is held by it.
///
/// # Examples
///
/// The pages of one megabyte, in any order, cost one range:
///
/// ```
/// # use core::ptr::NonNull;
/// # use kernel::{bindings, mm::MmWithUser, sync::aref::ARef};
/// use kernel::{
///     mm::tlb_batch::{Reason, TlbBatch},
///     page::PAGE_SIZE, //
/// };
///
/// # // SAFETY: It is always fine to ask for a new, empty address space.
/// # let mm = NonNull::new(unsafe { bindings::mm_alloc() }).ok_or(ENOMEM)?;
/// # // SAFETY: `mm_alloc()` returns it with one `mm_users` reference, which is ours.
/// # let mm = unsafe { ARef::<MmWithUser>::from_raw(mm.cast()) };
/// let mut batch = TlbBatch::new();
/// let base = 0x10_0000;
///
/// for i in (0..256).rev() {
///     let page = base + i * PAGE_SIZE;
///     batch.add(&mm, page..page + PAGE_SIZE)?;
/// }
/// assert_eq!(batch.ranges(), 1);
///
/// batch.issue(Reason::RmapEnd);
/// assert_eq!(batch.ranges(), 0);
/// assert!(batch.is_unsynced());
///
/// batch.flush(Reason::Flush);
/// assert!(!batch.is_unsynced());
/// # drop(batch);
/// # Ok::<(), Error>(())
/// ```
///
/// A range must be made of whole pages:
///
/// ```
/// # use core::ptr::NonNull;
/// # use kernel::{bindings, mm::{tlb_batch::TlbBatch, MmWithUser}, sync::aref::ARef};
/// # // SAFETY: It is always fine to ask for a new, empty address space.
/// # let mm = NonNull::new(unsafe { bindings::mm_alloc() }).ok_or(ENOMEM)?;
/// # // SAFETY: `mm_alloc()` returns it with one `mm_users` reference, which is ours.
/// # let mm = unsafe { ARef::<MmWithUser>::from_raw(mm.cast()) };
/// let mut batch = TlbBatch::new();
///
/// assert_eq!(batch.add(&mm, 1..2), Err(EINVAL));
/// assert_eq!(batch.add(&mm, 0..0), Err(EINVAL));
/// # drop(batch);
/// # Ok::<(), Error>(())
/// ```
#[repr(transparent)]
pub struct TlbBatch<'mm> {
    ranges: MmRanges,
    _mm: PhantomData<&'mm Mm>,
    // x86 collects the CPUs to interrupt in the task.
    _nts: PhantomData<NotThreadSafe>,
}

impl<'mm> TlbBatch<'mm> {
    /// Creates a batch in which nothing is owed.
    #[inline]
    pub const fn new() -> Self {
        // INVARIANT: There is no address space in an empty batch.
        Self {
            ranges: Ranges::new(ptr::null_mut()),
            _mm: PhantomData,
            _nts: PhantomData,
        }
    }

    /// Borrows the batch of the current task from C.
    ///
    /// # Safety
    ///
    /// - `batch` must be part of `current`, and no other reference may use it during `'a`.
    /// - Every address space in it must be alive for `'mm`, or held by it.
    #[inline]
    pub unsafe fn from_raw_mut<'a>(batch: *mut bindings::tlb_batch) -> &'a mut Self {
        // SAFETY: The layouts agree, see the assertions above and `ranges`; the caller promises
        // validity and exclusive use. INVARIANT: The caller promises that the `mm`s are alive.
        unsafe { &mut *batch.cast() }
    }

    /// Owes the invalidation of the pages in `range`, whose entries are already cleared.
    ///
    /// The clears are ordered before what the caller writes next. If the batch is full, one of its
    /// ranges is issued at once.
    ///
    /// May be called with the page table lock held; never sleeps or allocates.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `range` is empty or not made of whole pages.
    #[inline]
    pub fn add(&mut self, mm: &'mm Mm, range: ops::Range<usize>) -> Result {
        if range.start >= range.end || (range.start | range.end) % PAGE_SIZE != 0 {
            return Err(EINVAL);
        }
        order();
        // INVARIANT: `mm` is borrowed for `'mm`.
        // SAFETY: As above, so it is alive for as long as the batch.
        unsafe { self.add_raw(mm.as_raw(), range.start, range.end) };
        Ok(())
    }

    /// Owes the invalidation of `[start, end)` of `mm`; C's side of [`TlbBatch::add`].
    ///
    /// # Safety
    ///
    /// `mm` must be alive for `'mm`.
    #[inline]
    pub unsafe fn add_raw(&mut self, mm: *mut bindings::mm_struct, start: usize, end: usize) {
        // INVARIANT: The caller promises that `mm` is alive for `'mm`.
        if let Some(owed) = self.ranges.add(mm, start, end) {
            owed.issue(&mut Hardware(Reason::Overflow));
        }
    }

    /// Lets what is owed of `mm` stay owed when the caller ceases to know that `mm` is alive.
    ///
    /// The batch keeps `mm` from being freed until [`TlbBatch::release`]. If it holds as many as it
    /// can, it issues what is owed of `mm`. Must not be called under a spinlock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use core::ptr::NonNull;
    /// # use kernel::{bindings, mm::{tlb_batch::{Reason, TlbBatch}, MmWithUser}, page::PAGE_SIZE};
    /// # use kernel::sync::aref::ARef;
    /// # // SAFETY: It is always fine to ask for a new, empty address space.
    /// # let mm = NonNull::new(unsafe { bindings::mm_alloc() }).ok_or(ENOMEM)?;
    /// # // SAFETY: `mm_alloc()` returns it with one `mm_users` reference, which is ours.
    /// # let mm = unsafe { ARef::<MmWithUser>::from_raw(mm.cast()) };
    /// let mut batch = TlbBatch::new();
    ///
    /// batch.add(&mm, 0..PAGE_SIZE)?;
    /// batch.hold(&mm);
    /// batch.hold(&mm);
    /// assert_eq!((batch.ranges(), batch.held()), (1, 1));
    ///
    /// batch.flush(Reason::Flush);
    /// batch.release();
    /// assert_eq!(batch.held(), 0);
    /// # drop(batch);
    /// # Ok::<(), Error>(())
    /// ```
    #[inline]
    pub fn hold(&mut self, mm: &Mm) {
        let mut full = Hardware(Reason::MmsFull);

        // INVARIANT: A reference of its own keeps `mm` alive from here on.
        self.ranges.hold(mm.as_raw(), || ARef::from(mm), &mut full);
    }

    /// Drops the references that [`TlbBatch::hold`] took, unless something is still owed.
    ///
    /// Must not be called under a spinlock: the last reference frees page tables.
    #[inline]
    pub fn release(&mut self) {
        might_sleep();
        self.ranges.release();
    }

    /// Number of address spaces that the batch keeps from being freed.
    #[inline]
    pub fn held(&self) -> usize {
        self.ranges.held().count()
    }

    /// Number of ranges that are owed.
    #[inline]
    pub fn ranges(&self) -> usize {
        self.ranges.len()
    }

    /// Whether a TLB may still hold an entry that this batch is to remove.
    #[inline]
    pub fn is_unsynced(&self) -> bool {
        self.ranges.is_unsynced()
    }

    /// Issues all that is owed, without waiting for it.
    ///
    /// May be called with the page table lock held; never sleeps.
    #[inline]
    pub fn issue(&mut self, reason: Reason) {
        self.ranges.issue(&mut Hardware(reason));
    }

    /// Issues all that is owed and returns when no TLB holds any of it.
    ///
    /// May be called with the page table lock held, but with interrupts on: on x86 it interrupts
    /// other CPUs. Never sleeps.
    #[inline]
    pub fn flush(&mut self, reason: Reason) {
        self.ranges.flush(&mut Hardware(reason));

        let (evicted, bytes) = self.ranges.take_evicted();
        if evicted != 0 {
            account_evicted(evicted as usize, bytes / PAGE_SIZE);
        }
    }
}

impl Default for TlbBatch<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for TlbBatch<'_> {
    /// Pays what is still owed. May sleep if it holds an address space.
    #[inline]
    fn drop(&mut self) {
        self.flush(Reason::Flush);
        if self.held() != 0 {
            self.release();
        }
    }
}

#[cfg(CONFIG_RUST_TLB_BATCH_KUNIT_TEST)]
#[kunit_tests(rust_tlb_batch)]
mod tests {
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
