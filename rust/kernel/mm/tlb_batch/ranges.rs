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

/// The operations that pay an owed invalidation.
pub trait Tlb<M> {
    /// Starts the invalidation of `[start, end)` of `mm` on every CPU.
    fn issue(&mut self, mm: M, start: usize, end: usize);

    /// Waits until every CPU has completed all that was issued.
    fn sync(&mut self);
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

/// One range that is owed and is no longer in the batch.
///
/// It can neither be copied nor made outside this module, and the only way to get rid of it is to
/// issue it: dropping it is a build error where the optimiser can see it, so that no invalidation
/// is lost on an early return.
#[must_use = "the invalidation must be issued"]
pub struct Owed<M>(Range<M>);

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

        tlb.issue(owed.0.mm, owed.0.start, owed.0.end);
    }
}

/// The ranges that one task owes; `struct tlb_batch` in C.
///
/// # Invariants
///
/// - The first `nr` entries of `range` are owed, the oldest first. `nr` is at most [`CAPACITY`].
/// - No two of them touch each other, unless C put them side by side in an order that only
///   [`Ranges::add`] would have noticed: this costs an operation, never coverage.
/// - `unsynced` is set if any of them is owed, or if one was issued since the last sync.
#[repr(C)]
pub struct Ranges<M> {
    nr: u32,
    unsynced: bool,
    range: [Range<M>; CAPACITY],
}

impl<M: Copy + PartialEq> Ranges<M> {
    /// An empty batch. `filler` names no address space and is never issued.
    #[inline]
    pub const fn new(filler: M) -> Self {
        // INVARIANT: Nothing is owed.
        Self {
            nr: 0,
            unsynced: false,
            range: [Range {
                mm: filler,
                start: 0,
                end: 0,
            }; CAPACITY],
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

    /// Owes the invalidation of `[start, end)` of `mm`.
    ///
    /// The new range swallows those that it touches. If the batch is full of others, the oldest
    /// leaves it and is returned: the caller issues it, so that a batch that never coalesces
    /// costs as many operations as no batch.
    #[inline]
    #[must_use = "an evicted range must be issued"]
    pub fn add(&mut self, mm: M, start: usize, end: usize) -> Option<Owed<M>> {
        let mut new = Range { mm, start, end };
        let mut evicted = None;
        let mut i = 0;

        // A range that grew may touch one that was passed over before: start again. Each round
        // removes an entry, so there are at most `CAPACITY` of them.
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

        if self.len() == CAPACITY {
            evicted = Some(Owed(self.range[0]));
            self.remove(0);
        }

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
    #[inline]
    pub fn take(&mut self) -> Option<Owed<M>> {
        if self.is_empty() {
            return None;
        }
        let owed = Owed(self.range[0]);

        // INVARIANT: `unsynced` stays set: somebody is about to issue what was taken.
        self.remove(0);
        Some(owed)
    }

    /// Issues everything that is owed, oldest first, without waiting.
    #[inline]
    pub fn issue(&mut self, tlb: &mut impl Tlb<M>) {
        while let Some(owed) = self.take() {
            owed.issue(tlb);
        }
    }

    /// Issues everything that is owed and waits for it, and for what was issued before.
    ///
    /// Does nothing if nothing has been owed since the last time.
    #[inline]
    pub fn flush(&mut self, tlb: &mut impl Tlb<M>) {
        if !self.unsynced {
            return;
        }
        self.issue(tlb);
        tlb.sync();
        // INVARIANT: Nothing is owed and all that was issued is complete.
        self.unsynced = false;
    }
}
