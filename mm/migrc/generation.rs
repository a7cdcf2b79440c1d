// SPDX-License-Identifier: GPL-2.0

//! How much of what was deferred in an address space a flush has covered.
//!
//! One word per address space, so that it can be read and changed without a lock: the number of
//! deferrals in the upper half, and how many of them are covered in the lower. A deferral adds to
//! the upper half alone, whose carry is lost, so the halves do not disturb each other. They are
//! equal again after 2^32 deferrals without a flush; the limit on deferred pages flushes long
//! before that.

/// The word as it was at one time; `mm_struct.migrc_gen` in C.
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

    /// The word after a flush that began when the word was `self`.
    ///
    /// It may only replace `self`: if the word has changed, something was deferred in the meantime
    /// that the flush need not have covered, and it is left as it is.
    #[inline]
    pub const fn covered(self) -> Self {
        Self((self.0 & !(u32::MAX as u64)) | self.deferred() as u64)
    }
}
