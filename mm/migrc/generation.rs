// SPDX-License-Identifier: GPL-2.0

//! How much of what was deferred in an address space a flush has covered.
//!
//! One word per address space, so that it can be read and changed without a lock: the number of
//! deferrals in the upper half, and how many of them are covered in the lower. A deferral adds to
//! the upper half alone, whose carry is lost, so the halves do not disturb each other. They are
//! equal again after 2^32 deferrals without a flush; C flushes long before that, and not only when
//! a ledger is full: migrations that are undone count, too.

/// The word as it was at one time; `migrc_mm.generation` in C.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Generation(u64);

impl Generation {
    /// What a deferral adds to the word, modulo 2^64; `MIGRC_DEFERRAL` in C.
    pub const DEFERRAL: u64 = 1 << 32;

    /// The meaning of a word.
    #[inline]
    pub const fn from_raw(word: u64) -> Self {
        Self(word)
    }

    /// The word.
    #[inline]
    pub const fn into_raw(self) -> u64 {
        self.0
    }

    #[inline]
    const fn deferred(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline]
    const fn flushed(self) -> u32 {
        self.0 as u32
    }

    /// Whether something was deferred that no flush has covered.
    #[inline]
    pub const fn is_pending(self) -> bool {
        self.deferred() != self.flushed()
    }

    /// What replaces the word `now` after a flush that began when the word was `self`; none if
    /// another flush has covered as much.
    ///
    /// What was deferred in the meantime stays pending: the flush need not have covered it.
    #[inline]
    pub const fn cover(self, now: Self) -> Option<Self> {
        // Both are counted back from the latest deferral, so that it is no matter which half has
        // wrapped.
        let uncovered = now.deferred().wrapping_sub(now.flushed());
        let unseen = now.deferred().wrapping_sub(self.deferred());

        if uncovered <= unseen {
            return None;
        }
        Some(Self((now.0 & !(u32::MAX as u64)) | self.deferred() as u64))
    }
}
