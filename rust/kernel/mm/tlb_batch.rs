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
    sync::{
        aref::ARef,
        barrier::{
            smp_mb,
            Write, //
        }, //
    },
    task::might_sleep,
    types::NotThreadSafe, //
};
use core::{
    marker::PhantomData,
    mem::{
        align_of,
        offset_of,
        size_of, //
    },
    ops, ptr,
};

pub mod ranges;
#[cfg(CONFIG_RUST_TLB_BATCH_KUNIT_TEST)]
mod tests;

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
const _: () = {
    let of_rust = MmRanges::OFFSETS;
    let of_c = [
        offset_of!(bindings::tlb_batch, nr),
        offset_of!(bindings::tlb_batch, last),
        offset_of!(bindings::tlb_batch, unsynced),
        offset_of!(bindings::tlb_batch, issued),
        offset_of!(bindings::tlb_batch, evicted),
        offset_of!(bindings::tlb_batch, evicted_bytes),
        offset_of!(bindings::tlb_batch, range),
        offset_of!(bindings::tlb_batch, held),
        offset_of!(bindings::tlb_batch_range, start),
        offset_of!(bindings::tlb_batch_range, end),
        offset_of!(bindings::tlb_batch_range, mm),
    ];
    let mut i = 0;

    assert!(of_rust.len() == of_c.len());
    while i < of_c.len() {
        assert!(of_rust[i] == of_c[i]);
        i += 1;
    }
};
// C's null pointer is `None`.
// SAFETY: The sizes agree, and any bits are an address.
static_assert!(unsafe { core::mem::transmute::<Option<ARef<Mm>>, usize>(None) } == 0);

/// Why ranges are issued or waited for.
///
/// # Examples
///
/// ```
/// use kernel::{bindings, mm::tlb_batch::Reason};
///
/// let raw = bindings::tlb_batch_reason_TLB_BATCH_PUT_BACK;
///
/// assert_eq!(Reason::from_raw(raw), Reason::PutBack);
/// assert_eq!(Reason::from_raw(u32::MAX), Reason::Flush);
/// ```
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
    // SAFETY: They have numbers only, and are defined for all of them.
    unsafe extern "C" {
        /// Whether an invalidation of the address space is cheaper than one of so many pages.
        fn prefers_mm(pages: usize) -> bool = tlb_batch_arch_prefers_mm(pages);
        /// Whether these are addresses of user space.
        fn is_user(start: usize, end: usize) -> bool = tlb_batch_is_user(start, end);
        /// Counts what was issued for lack of room. In process context.
        fn account_evicted(ranges: usize, pages: usize) = tlb_batch_account_evicted(ranges, pages);
    }
}

/// Issues invalidations to the hardware, which accounts them to a reason.
struct Hardware(Reason);

impl Tlb<MmPtr> for Hardware {
    #[inline]
    fn issue(&mut self, mm: MmPtr, start: usize, end: usize) {
        // SAFETY: They came out of a `TlbBatch`, whose invariants say that `mm` is alive, and that
        // these are addresses of user space.
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
        // SAFETY: Only the task that made a batch uses it: it is not `Send`. `TlbBatch::flush()`
        // and its drop say that interrupts must be on. No type says so; C warns if they are not.
        unsafe { bindings::tlb_batch_arch_sync() };
    }
}

/// TLB invalidations that the current task owes.
///
/// # Invariants
///
/// Every address space in the batch is alive at least for `'mm`, or is held by it. All ranges are
/// of user space.
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
/// A range must be made of whole pages of user space:
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
/// assert_eq!(batch.add(&mm, 1 << 63..(1 << 63) + 0x10_0000), Err(EINVAL));
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
    /// - `batch` must be part of `current`, or the caller's own, and no other reference may use it
    ///   during `'a`.
    /// - It must be as the invariants say.
    ///
    /// # Examples
    ///
    /// ```
    /// use kernel::{bindings, mm::tlb_batch::TlbBatch};
    ///
    /// let mut raw = bindings::tlb_batch::default();
    /// // SAFETY: Nobody else has it, and there is no address space in it.
    /// let batch = unsafe { TlbBatch::from_raw_mut(&mut raw) };
    ///
    /// assert_eq!((batch.ranges(), batch.held()), (0, 0));
    /// ```
    #[inline]
    pub unsafe fn from_raw_mut<'a>(batch: *mut bindings::tlb_batch) -> &'a mut Self {
        // SAFETY: The layouts agree, see the assertions above and `ranges`; the caller promises
        // validity and exclusive use. INVARIANT: The caller promises that, too.
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
    /// `EINVAL` if `range` is empty, not made of whole pages, or not of user space.
    #[inline]
    pub fn add(&mut self, mm: &'mm Mm, range: ops::Range<usize>) -> Result {
        if range.start >= range.end
            || (range.start | range.end) % PAGE_SIZE != 0
            || !is_user(range.start, range.end)
        {
            return Err(EINVAL);
        }
        // rule: tlb_batch/order: what was cleared is seen before what the caller writes next
        smp_mb(Write);
        // INVARIANT: `mm` is borrowed for `'mm`.
        // SAFETY: As above, so it is alive for as long as the batch; `is_user()` has said the rest.
        unsafe { self.add_raw(mm.as_raw(), range.start, range.end) };
        Ok(())
    }

    /// Owes the invalidation of `[start, end)` of `mm`; C's side of [`TlbBatch::add`].
    ///
    /// # Safety
    ///
    /// `mm` must be alive for `'mm`, and the addresses be of user space.
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
    /// other CPUs, and enables interrupts. Never sleeps.
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
    /// Pays what is still owed, with interrupts on. May sleep if it holds an address space.
    #[inline]
    fn drop(&mut self) {
        self.flush(Reason::Flush);
        if self.held() != 0 {
            self.release();
        }
    }
}
