// SPDX-License-Identifier: GPL-2.0

//! Address ranges whose TLB invalidation is owed, coalesced per address space.
//!
//! This is the arithmetic of the batch and nothing else: it takes plain integers and an opaque
//! name of the address space, calls nothing, and can neither sleep, allocate nor panic. The same
//! file is compiled on the host, where property tests reach it (`verify/`).

use super::owed_dropped;
use core::mem::ManuallyDrop;

/// Number of ranges that can be owed at a time; `TLB_BATCH_RANGES` in C.
pub const CAPACITY: usize = 8;

/// Number of address spaces that can be held at a time; `TLB_BATCH_MMS` in C.
///
/// Fewer than [`CAPACITY`], so that what is owed of held ones leaves room for the ranges of one
/// folio: each of those that is evicted for lack of room could have grown with the next folio.
pub const HELD: usize = 4;

/// The operations that pay an owed invalidation.
pub trait Tlb<M> {
    /// Starts the invalidation of `[start, end)` of `mm` on every CPU.
    fn issue(&mut self, mm: M, start: usize, end: usize);

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
pub trait Holds<M> {
    /// The name of the address space.
    fn mm(&self) -> M;
}

/// User addresses `[start, end)` of the address space `mm`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Range<M> {
    mm: M,
    start: usize,
    end: usize,
}

impl<M: Copy + PartialEq> Range<M> {
    /// Overlapping ranges and adjacent ones can be one range without covering anything else.
    #[inline]
    fn touches(&self, other: &Self) -> bool {
        self.mm == other.mm && self.start <= other.end && other.start <= self.end
    }

    #[inline]
    fn absorb(&mut self, other: &Self) {
        self.start = self.start.min(other.start);
        self.end = self.end.max(other.end);
    }
}

/// One range, or all of one address space, that is owed and is no longer in the batch.
///
/// It can neither be copied nor made outside this module, and the only way to get rid of it is to
/// issue it: dropping it is a build error where the optimiser can see it, so that no invalidation
/// is lost on an early return.
#[must_use = "the invalidation must be issued"]
pub struct Owed<M> {
    mm: M,
    what: What,
}

/// What of an address space is owed.
#[derive(Clone, Copy)]
enum What {
    Range { start: usize, end: usize },
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
    /// Its completion is still to be waited for; the batch that it came from remembers that.
    #[inline(always)]
    pub fn issue(self, tlb: &mut impl Tlb<M>) {
        let owed = ManuallyDrop::new(self);

        match owed.what {
            What::Range { start, end } => tlb.issue(owed.mm, start, end),
            What::Mm { bytes } => tlb.issue_mm(owed.mm, bytes),
        }
    }
}

/// The ranges that one task owes; `struct tlb_batch` in C.
///
/// # Invariants
///
/// - The first `nr` entries of `range` are owed, the oldest first. `nr` is at most [`CAPACITY`].
/// - No two of them touch each other, unless C put them side by side in an order that only
///   [`Ranges::add`] would have noticed: this costs an operation, never coverage.
/// - `unsynced` is set if any of them is owed, or if one was issued since the last sync; `issued`
///   is set only if one was issued since then.
/// - The entries of `held` that are not `None` come first and name different address spaces.
#[repr(C)]
pub struct Ranges<M, H> {
    nr: u32,
    unsynced: bool,
    issued: bool,
    range: [Range<M>; CAPACITY],
    held: [Option<H>; HELD],
}

impl<M: Copy + PartialEq, H: Holds<M>> Ranges<M, H> {
    /// An empty batch. `filler` names no address space and is never issued.
    #[inline]
    pub const fn new(filler: M) -> Self {
        // INVARIANT: Nothing is owed or held.
        Self {
            nr: 0,
            unsynced: false,
            issued: false,
            range: [Range {
                mm: filler,
                start: 0,
                end: 0,
            }; CAPACITY],
            held: [const { None }; HELD],
        }
    }

    /// Number of ranges that are owed.
    #[inline]
    pub fn len(&self) -> usize {
        // The bound is an invariant; `min` lets the compiler rely on it.
        (self.nr as usize).min(CAPACITY)
    }

    /// Whether no range is owed. The completion of an issued one may be.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.nr == 0
    }

    /// Whether the hardware may still be using an entry that this batch is to remove.
    #[inline]
    pub fn is_unsynced(&self) -> bool {
        self.unsynced
    }

    /// The address spaces that are kept from being freed.
    #[inline]
    pub fn held(&self) -> impl Iterator<Item = M> + '_ {
        self.held.iter().flatten().map(Holds::mm)
    }

    /// The ranges that are owed, oldest first.
    #[inline]
    fn owed(&self) -> impl Iterator<Item = &Range<M>> {
        self.range.iter().take(self.len())
    }

    /// Number of ranges of `mm`, and their length in bytes.
    #[inline]
    fn sum(&self, mm: M) -> (usize, usize) {
        self.owed()
            .filter(|r| r.mm == mm)
            .fold((0, 0), |(nr, bytes), r| {
                (nr + 1, bytes.saturating_add(r.end.saturating_sub(r.start)))
            })
    }

    /// Removes the `index`th range, keeping the others in order of age.
    #[inline]
    fn remove(&mut self, index: usize) {
        let len = self.len();

        for i in index..len.saturating_sub(1) {
            if let [to, from] = &mut self.range[i..=i + 1] {
                *to = *from;
            }
        }
        // INVARIANT: One entry fewer, the rest moved up.
        self.nr = len.saturating_sub(1) as u32;
    }

    /// Removes the `index`th range, for which its caller becomes liable.
    #[inline]
    fn take_at(&mut self, index: usize) -> Owed<M> {
        let Range { mm, start, end } = self.range[index];

        // INVARIANT: `unsynced` stays set: somebody is about to issue what was taken.
        self.issued = true;
        self.remove(index);
        Owed {
            mm,
            what: What::Range { start, end },
        }
    }

    /// Owes the invalidation of `[start, end)` of `mm`.
    ///
    /// The new range swallows those that it touches. If the batch is full of others, the oldest
    /// leaves it and is returned: the caller issues it, so that a batch that never coalesces
    /// costs as many operations as no batch.
    #[inline]
    #[must_use = "an evicted range must be issued"]
    pub fn add(&mut self, mm: M, start: usize, end: usize) -> Option<Owed<M>> {
        let mut new = Range { mm, start, end };
        let mut i = 0;

        // A range that grew may touch one that was passed over before, if C put them side by
        // side: start again. Each round removes an entry, so there are at most `CAPACITY`.
        while i < self.len() {
            let old = self.range[i];

            if old.touches(&new) {
                new.absorb(&old);
                self.remove(i);
                i = 0;
            } else {
                i += 1;
            }
        }

        let evicted = (self.len() == CAPACITY).then(|| self.take_at(0));

        let len = self.len();
        if let Some(slot) = self.range.get_mut(len) {
            *slot = new;
            // INVARIANT: The new entry is the youngest and touches no other: the loop above
            // swallowed those. There was room, because `len` is an index.
            self.nr = (len + 1) as u32;
            self.unsynced = true;
        }
        evicted
    }

    /// Takes the oldest range out of the batch.
    ///
    /// To be issued before the next [`Ranges::flush`], which is to wait for it.
    #[inline]
    #[must_use = "what was taken must be issued"]
    pub fn take(&mut self) -> Option<Owed<M>> {
        (!self.is_empty()).then(|| self.take_at(0))
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
            } else if whole {
                self.remove(i);
            } else {
                self.take_at(i).issue(tlb);
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

    /// Issues everything that is owed, the address space of the oldest range first, without
    /// waiting.
    #[inline]
    pub fn issue(&mut self, tlb: &mut impl Tlb<M>) {
        while !self.is_empty() {
            self.issue_mm(self.range[0].mm, tlb);
        }
    }

    /// Lets what is owed of `mm` stay owed after the caller ceases to know that `mm` is alive.
    ///
    /// `grab` takes the reference for that. If there is no room for one more, all that is owed of
    /// `mm` is issued instead.
    #[inline]
    pub fn hold(&mut self, mm: M, grab: impl FnOnce() -> H, tlb: &mut impl Tlb<M>) {
        if self.owed().all(|r| r.mm != mm) || self.held().any(|held| held == mm) {
            return;
        }
        match self.held.iter_mut().find(|held| held.is_none()) {
            // INVARIANT: The first that is free, and no other names `mm`.
            Some(free) => *free = Some(grab()),
            None => self.issue_mm(mm, tlb),
        }
    }

    /// Issues everything that is owed and waits for it, and for what was issued before.
    ///
    /// Does nothing if nothing has been owed since the last time. The address spaces stay held:
    /// this may be called under a spinlock.
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
        let Some(mut hull) = self.owed().next().copied() else {
            return false;
        };
        if self.issued || self.owed().any(|r| r.mm != hull.mm) {
            return false;
        }
        self.owed().for_each(|r| hull.absorb(r));

        let (_, bytes) = self.sum(hull.mm);
        let done = tlb.flush(hull.mm, hull.start, hull.end, bytes);
        if done {
            // INVARIANT: The hull covered all of them.
            self.nr = 0;
        }
        done
    }

    /// Drops the references to the address spaces.
    ///
    /// Only when nothing is owed: the ranges that are need them. Does nothing otherwise.
    #[inline]
    pub fn release(&mut self) {
        if self.is_empty() {
            self.held.iter_mut().for_each(|held| *held = None);
        }
    }
}
