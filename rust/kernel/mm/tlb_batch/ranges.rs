// SPDX-License-Identifier: GPL-2.0

//! Address ranges whose TLB invalidation is owed, coalesced per address space.
//!
//! This is the arithmetic of the batch and nothing else: it takes plain integers and an opaque
//! name of the address space, calls nothing, and can neither sleep, allocate nor panic. The host
//! compiles the same file for property tests (`verify/`).

use super::owed_dropped;
use core::mem::{offset_of, ManuallyDrop};

/// Number of ranges that can be owed at a time; `TLB_BATCH_RANGES` in C.
pub const CAPACITY: usize = 8;

/// Number of address spaces that can be held at a time; `TLB_BATCH_MMS` in C.
///
/// Fewer than [`CAPACITY`]: neighbours in one address space are one range, so there is room for
/// the ranges of the next folio, and none is evicted that could have grown with it.
pub const HELD: usize = 4;

/// The operations that pay an owed invalidation.
///
/// # Examples
///
/// A TLB that only counts:
///
/// ```
/// use kernel::mm::tlb_batch::ranges::{Holds, Ranges, Tlb};
///
/// #[derive(Default)]
/// struct Log {
///     issued: usize,
///     syncs: usize,
/// }
///
/// impl Tlb<u32> for Log {
///     fn issue(&mut self, _mm: u32, _start: usize, _end: usize) {
///         self.issued += 1;
///     }
///
///     fn evict(&mut self, mm: u32, start: usize, end: usize) {
///         self.issue(mm, start, end);
///     }
///
///     fn issue_mm(&mut self, _mm: u32, _bytes: usize) {
///         self.issued += 1;
///     }
///
///     fn prefers_mm(&self, _bytes: usize) -> bool {
///         true
///     }
///
///     fn flush(&mut self, _mm: u32, _start: usize, _end: usize, _bytes: usize) -> bool {
///         false
///     }
///
///     fn sync(&mut self) {
///         self.syncs += 1;
///     }
/// }
/// # struct Hold(u32);
/// # impl Holds<u32> for Hold { fn mm(&self) -> u32 { self.0 } }
///
/// let mut tlb = Log::default();
/// let mut ranges = Ranges::<u32, Hold>::new(0);
///
/// for page in [0x1000, 0x3000, 0x5000] {
///     if let Some(owed) = ranges.add(7, page, page + 0x1000) {
///         owed.issue(&mut tlb);
///     }
/// }
/// assert_eq!((ranges.len(), tlb.issued), (3, 0));
///
/// // All of an address space is cheaper than its three ranges.
/// ranges.flush(&mut tlb);
/// assert_eq!((ranges.len(), tlb.issued, tlb.syncs), (0, 1, 1));
/// ```
pub trait Tlb<M> {
    /// Starts the invalidation of `[start, end)` of `mm` on every CPU.
    fn issue(&mut self, mm: M, start: usize, end: usize);

    /// Starts it for a range that leaves the batch for lack of room. The batch counts these itself,
    /// see [`Ranges::take_evicted`].
    fn evict(&mut self, mm: M, start: usize, end: usize);

    /// Starts the invalidation of all of `mm` on every CPU, in place of ranges of `bytes` in all.
    fn issue_mm(&mut self, mm: M, bytes: usize);

    /// Whether [`Tlb::issue_mm`] costs less than several ranges of `bytes` in all.
    fn prefers_mm(&self, bytes: usize) -> bool;

    /// Invalidates `[start, end)` of `mm` on every CPU and waits for it, in place of ranges of
    /// `bytes` in all, if one operation can do that. Returns whether it did.
    fn flush(&mut self, mm: M, start: usize, end: usize, bytes: usize) -> bool;

    /// Waits until every CPU has completed all that was issued.
    fn sync(&mut self);
}

/// A reference that keeps the address space `M` from being freed.
///
/// # Examples
///
/// ```
/// use kernel::mm::tlb_batch::ranges::{Holds, Ranges, Tlb};
///
/// struct Hold(u32);
///
/// impl Holds<u32> for Hold {
///     fn mm(&self) -> u32 {
///         self.0
///     }
/// }
///
/// # #[derive(Default)]
/// # struct Log { issued: usize, syncs: usize }
/// # impl Tlb<u32> for Log {
/// #     fn issue(&mut self, _: u32, _: usize, _: usize) { self.issued += 1; }
/// #     fn evict(&mut self, _: u32, _: usize, _: usize) { self.issued += 1; }
/// #     fn issue_mm(&mut self, _: u32, _: usize) { self.issued += 1; }
/// #     fn prefers_mm(&self, _: usize) -> bool { false }
/// #     fn flush(&mut self, _: u32, _: usize, _: usize, _: usize) -> bool { false }
/// #     fn sync(&mut self) { self.syncs += 1; }
/// # }
/// let mut tlb = Log::default();
/// let mut ranges = Ranges::<u32, Hold>::new(0);
///
/// // Nothing is owed of it, so it need not be held.
/// ranges.hold(7, || Hold(7), &mut tlb);
/// assert_eq!(ranges.held().count(), 0);
///
/// if let Some(owed) = ranges.add(7, 0x1000, 0x2000) {
///     owed.issue(&mut tlb);
/// }
/// ranges.hold(7, || Hold(7), &mut tlb);
/// ranges.release();
/// assert!(ranges.held().eq([7]));
///
/// ranges.flush(&mut tlb);
/// ranges.release();
/// assert_eq!(ranges.held().count(), 0);
/// ```
pub trait Holds<M> {
    /// The name of the address space.
    fn mm(&self) -> M;
}

/// User addresses `[start, end)` of the address space `mm`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Range<M> {
    start: usize,
    end: usize,
    mm: M,
}

impl<M: Copy + PartialEq> Range<M> {
    /// Overlapping ranges and adjacent ones can be one range without covering anything else.
    #[inline]
    fn touches(&self, other: &Self) -> bool {
        self.start <= other.end && other.start <= self.end && self.mm == other.mm
    }

    /// Length in bytes.
    #[inline]
    fn len(&self) -> usize {
        self.end.wrapping_sub(self.start)
    }

    #[inline]
    fn absorb(&mut self, other: &Self) {
        self.start = self.start.min(other.start);
        self.end = self.end.max(other.end);
    }
}

/// One range, or all of one address space, that is owed and is no longer in the batch.
///
/// It can neither be copied nor made outside this module, and it can only be issued. Dropping it
/// is a build error where the optimiser sees the path, so no invalidation is lost on an early
/// return.
///
/// # Examples
///
/// A full batch owes one range for each that is added:
///
/// ```
/// use kernel::mm::tlb_batch::ranges::{Holds, Ranges, Tlb, CAPACITY};
///
/// # #[derive(Default)]
/// # struct Log { issued: usize, syncs: usize }
/// # impl Tlb<u32> for Log {
/// #     fn issue(&mut self, _: u32, _: usize, _: usize) { self.issued += 1; }
/// #     fn evict(&mut self, _: u32, _: usize, _: usize) { self.issued += 1; }
/// #     fn issue_mm(&mut self, _: u32, _: usize) { self.issued += 1; }
/// #     fn prefers_mm(&self, _: usize) -> bool { false }
/// #     fn flush(&mut self, _: u32, _: usize, _: usize, _: usize) -> bool { false }
/// #     fn sync(&mut self) { self.syncs += 1; }
/// # }
/// # struct Hold(u32);
/// # impl Holds<u32> for Hold { fn mm(&self) -> u32 { self.0 } }
/// let mut tlb = Log::default();
/// let mut ranges = Ranges::<u32, Hold>::new(0);
///
/// for i in 0..CAPACITY + 2 {
///     let page = i * 0x2000;
///
///     if let Some(owed) = ranges.add(7, page, page + 0x1000) {
///         owed.issue(&mut tlb);
///     }
/// }
/// assert_eq!((ranges.len(), tlb.issued), (CAPACITY, 2));
/// assert_eq!(ranges.take_evicted(), (2, 0x2000));
/// # ranges.flush(&mut tlb);
/// ```
#[must_use = "the invalidation must be issued"]
pub struct Owed<M> {
    mm: M,
    what: What,
}

/// What of an address space is owed.
#[derive(Clone, Copy)]
enum What {
    Range { start: usize, end: usize },
    Evicted { start: usize, end: usize },
    Mm { bytes: usize },
}

impl<M> Drop for Owed<M> {
    #[inline(always)]
    fn drop(&mut self) {
        owed_dropped();
    }
}

impl<M: Copy> Owed<M> {
    /// Issues the invalidation.
    ///
    /// The caller must still wait for its completion; the batch that it came from remembers that.
    #[inline(always)]
    pub fn issue(self, tlb: &mut impl Tlb<M>) {
        let owed = ManuallyDrop::new(self);

        match owed.what {
            What::Range { start, end } => tlb.issue(owed.mm, start, end),
            What::Evicted { start, end } => tlb.evict(owed.mm, start, end),
            What::Mm { bytes } => tlb.issue_mm(owed.mm, bytes),
        }
    }
}

/// The ranges that one task owes; `struct tlb_batch` in C.
///
/// # Examples
///
/// Neighbours are one range, in any order:
///
/// ```
/// use kernel::mm::tlb_batch::ranges::{Holds, Ranges, Tlb};
///
/// # #[derive(Default)]
/// # struct Log { issued: usize, syncs: usize }
/// # impl Tlb<u32> for Log {
/// #     fn issue(&mut self, _: u32, _: usize, _: usize) { self.issued += 1; }
/// #     fn evict(&mut self, _: u32, _: usize, _: usize) { self.issued += 1; }
/// #     fn issue_mm(&mut self, _: u32, _: usize) { self.issued += 1; }
/// #     fn prefers_mm(&self, _: usize) -> bool { false }
/// #     fn flush(&mut self, _: u32, _: usize, _: usize, _: usize) -> bool { false }
/// #     fn sync(&mut self) { self.syncs += 1; }
/// # }
/// # struct Hold(u32);
/// # impl Holds<u32> for Hold { fn mm(&self) -> u32 { self.0 } }
/// let mut tlb = Log::default();
/// let mut ranges = Ranges::<u32, Hold>::new(0);
///
/// for page in [0x3000, 0x1000, 0x2000] {
///     if let Some(owed) = ranges.add(7, page, page + 0x1000) {
///         owed.issue(&mut tlb);
///     }
/// }
/// assert_eq!(ranges.len(), 1);
///
/// ranges.issue(&mut tlb);
/// assert!(ranges.is_empty() && ranges.is_unsynced());
///
/// ranges.flush(&mut tlb);
/// assert!(!ranges.is_unsynced());
/// assert_eq!((tlb.issued, tlb.syncs), (1, 1));
/// ```
///
/// # Invariants
///
/// - The first `nr` entries of `range` are owed. `nr` is at most [`CAPACITY`].
/// - `last` is one of these: the one that was filled last, unless it was joined. It is 0 if there
///   is none.
/// - No two of them touch each other, unless C extended one up to the next, which only
///   [`Ranges::add`] notices: this costs an operation, never coverage.
/// - `unsynced` is set if any of them is owed, or if one was issued since the last sync; `issued`
///   is set only if one was issued since then.
/// - The entries of `held` that are not `None` come first and name different address spaces.
#[repr(C)]
pub struct Ranges<M, H> {
    nr: u8,
    last: u8,
    unsynced: bool,
    issued: bool,
    evicted: u32,
    evicted_bytes: usize,
    range: [Range<M>; CAPACITY],
    held: [Option<H>; HELD],
}

impl<M: Copy + PartialEq, H: Holds<M>> Ranges<M, H> {
    /// Where its fields are, and those of a range, in the order of C.
    pub const OFFSETS: [usize; 11] = [
        offset_of!(Self, nr),
        offset_of!(Self, last),
        offset_of!(Self, unsynced),
        offset_of!(Self, issued),
        offset_of!(Self, evicted),
        offset_of!(Self, evicted_bytes),
        offset_of!(Self, range),
        offset_of!(Self, held),
        offset_of!(Range<M>, start),
        offset_of!(Range<M>, end),
        offset_of!(Range<M>, mm),
    ];

    /// An empty batch. `filler` names no address space and is never issued.
    #[inline]
    pub const fn new(filler: M) -> Self {
        // INVARIANT: Nothing is owed or held.
        Self {
            nr: 0,
            last: 0,
            unsynced: false,
            issued: false,
            evicted: 0,
            evicted_bytes: 0,
            range: [Range {
                start: 0,
                end: 0,
                mm: filler,
            }; CAPACITY],
            held: [const { None }; HELD],
        }
    }

    /// Number of ranges that are owed.
    #[inline]
    pub fn len(&self) -> usize {
        // The bound is an invariant; `min` lets the compiler rely on it.
        usize::from(self.nr).min(CAPACITY)
    }

    /// Whether no range is owed. The completion of an issued one may be.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.nr == 0
    }

    /// Whether a TLB may still hold an entry that this batch is to remove.
    #[inline]
    pub fn is_unsynced(&self) -> bool {
        self.unsynced
    }

    /// The address spaces that are kept from being freed.
    #[inline]
    pub fn held(&self) -> impl Iterator<Item = M> + '_ {
        self.held.iter().map_while(Option::as_ref).map(Holds::mm)
    }

    /// The ranges that are owed.
    #[inline]
    fn owed(&self) -> impl Iterator<Item = &Range<M>> {
        self.range.iter().take(self.len())
    }

    /// Number of ranges of `mm`, and their length in bytes.
    #[inline]
    fn sum(&self, mm: M) -> (usize, usize) {
        self.owed()
            .filter(|r| r.mm == mm)
            .fold((0usize, 0usize), |(nr, bytes), r| {
                // At most `CAPACITY`, and no address space is longer than `usize`.
                (nr.wrapping_add(1), bytes.wrapping_add(r.len()))
            })
    }

    /// Forgets all ranges. The caller must issue them.
    #[inline]
    fn clear(&mut self) {
        // INVARIANT: `unsynced` stays set: the caller is about to issue them.
        self.nr = 0;
        self.last = 0;
    }

    /// Removes the `index`th range, which the caller must issue. The last one in the array takes
    /// its place.
    #[inline]
    fn remove(&mut self, index: usize) -> Range<M> {
        let removed = self.range[index % CAPACITY];
        let end = self.len().saturating_sub(1);

        self.range[index % CAPACITY] = self.range[end % CAPACITY];
        // INVARIANT: One entry fewer, and `last` follows the one that moved or is any other.
        self.nr = end as u8;
        if usize::from(self.last) >= end {
            self.last = if index < end { index as u8 } else { 0 };
        }
        removed
    }

    /// What has to be issued of a range that was in the batch.
    #[inline]
    fn owe(&mut self, Range { start, end, mm }: Range<M>) -> Owed<M> {
        self.issued = true;
        Owed {
            mm,
            what: What::Range { start, end },
        }
    }

    /// Owes the invalidation of `[start, end)` of `mm`.
    ///
    /// The new range joins those that it touches. If there are none and the batch is full, one
    /// range leaves it, and the caller issues that one. It is the one that was filled first, unless
    /// some have been joined. So a batch that never coalesces costs as many operations as no batch.
    #[inline]
    #[must_use = "an evicted range must be issued"]
    pub fn add(&mut self, mm: M, start: usize, end: usize) -> Option<Owed<M>> {
        let new = Range { start, end, mm };
        let len = self.len();

        // rule: tlb_batch/merge: only neighbours of one address space, or one is not invalidated
        // All entries, so that the loop has no condition; entries that are not owed come last.
        match self.range.iter().position(|r| r.touches(&new)) {
            Some(index) if index < len => {
                self.join(index, new);
                None
            }
            _ if len < CAPACITY => {
                self.range[len] = new;
                // INVARIANT: The new entry is the last and touches no other.
                self.last = len as u8;
                self.nr = len as u8 + 1;
                self.unsynced = true;
                None
            }
            // rule: tlb_batch/room: the page table lock forbids to allocate, so one has to go
            // The array is a ring: the one after the last was filled first.
            _ => Some(self.replace((usize::from(self.last) + 1) % CAPACITY, new)),
        }
    }

    /// Extends the `index`th range by `new`, which touches none of those before.
    #[inline]
    fn join(&mut self, index: usize, mut new: Range<M>) {
        new.absorb(&self.range[index % CAPACITY]);
        self.range[index % CAPACITY] = new;

        let mut i = index + 1;
        while i < self.len() {
            if self.range[i].touches(&new) {
                let other = self.remove(i);

                new.absorb(&other);
                self.range[index % CAPACITY] = new;
            } else {
                i += 1;
            }
        }
    }

    /// Puts `new` in the place of a range that is issued for lack of room.
    #[inline]
    fn replace(&mut self, index: usize, new: Range<M>) -> Owed<M> {
        let old = core::mem::replace(&mut self.range[index % CAPACITY], new);

        // INVARIANT: As many as before, and the new one touches no other.
        self.last = index as u8;
        // Statistics, so wrapping is right.
        self.evicted = self.evicted.wrapping_add(1);
        self.evicted_bytes = self.evicted_bytes.wrapping_add(old.len());
        self.issued = true;
        Owed {
            mm: old.mm,
            what: What::Evicted {
                start: old.start,
                end: old.end,
            },
        }
    }

    /// Number of ranges that [`Ranges::add`] evicted since the last call, and their length in
    /// bytes.
    #[inline]
    pub fn take_evicted(&mut self) -> (u32, usize) {
        (
            core::mem::take(&mut self.evicted),
            core::mem::take(&mut self.evicted_bytes),
        )
    }

    /// Issues all that is owed of `mm`, without waiting.
    #[inline]
    pub fn issue_mm(&mut self, mm: M, tlb: &mut impl Tlb<M>) {
        let (nr, bytes) = self.sum(mm);
        let whole = nr > 1 && tlb.prefers_mm(bytes);
        let mut i = 0;

        while i < self.len() {
            if self.range[i].mm != mm {
                i += 1;
                continue;
            }
            let range = self.remove(i);

            if !whole {
                self.owe(range).issue(tlb);
            }
        }
        if whole {
            self.issued = true;
            // INVARIANT: This covers each of the ranges that were removed above.
            let owed = Owed {
                mm,
                what: What::Mm { bytes },
            };

            owed.issue(tlb);
        }
    }

    /// Issues everything that is owed, one address space after the other, without waiting.
    #[inline]
    pub fn issue(&mut self, tlb: &mut impl Tlb<M>) {
        // A single range must not pay for the loop over many.
        match self.nr {
            0 => {}
            1 => {
                let range = self.range[0];

                self.clear();
                self.owe(range).issue(tlb);
            }
            _ => self.issue_many(tlb),
        }
    }

    #[inline(never)]
    fn issue_many(&mut self, tlb: &mut impl Tlb<M>) {
        while !self.is_empty() {
            self.issue_mm(self.range[0].mm, tlb);
        }
    }

    /// Lets what is owed of `mm` stay owed after the caller ceases to know that `mm` is alive.
    ///
    /// `grab` takes the reference for that. Without room for one more, all that is owed of `mm` is
    /// issued instead.
    #[inline]
    pub fn hold(&mut self, mm: M, grab: impl FnOnce() -> H, tlb: &mut impl Tlb<M>) {
        if self.held().any(|held| held == mm) || self.owed().all(|r| r.mm != mm) {
            return;
        }
        match self.held.iter_mut().find(|held| held.is_none()) {
            // INVARIANT: The first that is free, and no other names `mm`.
            Some(free) => *free = Some(grab()),
            None => self.issue_mm(mm, tlb),
        }
    }

    /// Issues everything that is owed, and waits for it and for what was issued before.
    ///
    /// Does nothing if nothing has been owed since the last time. The address spaces stay held,
    /// because the caller may hold a spinlock.
    #[inline]
    pub fn flush(&mut self, tlb: &mut impl Tlb<M>) {
        if !self.unsynced {
            return;
        }
        if !self.flush_one_mm(tlb) {
            self.issue(tlb);
            tlb.sync();
        }
        // INVARIANT: Nothing is owed and all that was issued is complete.
        self.unsynced = false;
        self.issued = false;
    }

    /// Pays everything in one operation, if it is all of one address space and none of it was
    /// issued yet.
    #[inline]
    fn flush_one_mm(&mut self, tlb: &mut impl Tlb<M>) -> bool {
        let hull = match self.nr {
            _ if self.issued => None,
            0 => None,
            1 => Some((self.range[0], self.range[0].len())),
            _ => self.hull_of_one_mm(),
        };
        let Some((Range { start, end, mm }, bytes)) = hull else {
            return false;
        };

        let done = tlb.flush(mm, start, end, bytes);
        if done {
            // INVARIANT: The hull covered all of them.
            self.clear();
        }
        done
    }

    /// The hull of all ranges and the bytes in them, if they are of one address space.
    #[inline(never)]
    fn hull_of_one_mm(&self) -> Option<(Range<M>, usize)> {
        let mut hull = self.range[0];

        if self.owed().any(|r| r.mm != hull.mm) {
            return None;
        }
        self.owed().for_each(|r| hull.absorb(r));
        Some((hull, self.sum(hull.mm).1))
    }

    /// Drops the references to the address spaces.
    ///
    /// Does nothing if something is owed.
    #[inline]
    pub fn release(&mut self) {
        // rule: tlb_batch/hold: an owed range needs its address space
        if self.is_empty() {
            self.held.iter_mut().map_while(Option::take).for_each(drop);
        }
    }
}
