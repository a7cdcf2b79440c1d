// SPDX-License-Identifier: GPL-2.0

//! How much of what was deferred in an address space a flush has covered.
//!
//! Two numbers per address space, which only grow, so that they can be read and changed without a
//! lock: of deferrals, and how many of them are covered. With a deferral each nanosecond they wrap
//! after 584 years. So a flush may take as long as it wants: it covers what was deferred before it
//! began, and never takes a number for another one that looks the same.

/// How many deferrals there were at one time; `migrc_mm.deferred` in C.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Generation(u64);

impl Generation {
    /// The meaning of a number.
    #[inline]
    pub const fn from_raw(deferred: u64) -> Self {
        Self(deferred)
    }

    /// The number.
    #[inline]
    pub const fn into_raw(self) -> u64 {
        self.0
    }

    /// Whether some of these deferrals are not covered, if the first `flushed` are.
    #[inline]
    pub const fn is_pending(self, flushed: u64) -> bool {
        self.0 > flushed
    }

    /// What replaces the number `flushed` of deferrals that are covered, after a flush that began
    /// when there were `self`; none if another flush has covered as much.
    ///
    #[inline]
    pub const fn cover(self, flushed: u64) -> Option<u64> {
        // rule: migrc/cover: what was deferred in the meantime stays pending: the flush need not
        // have covered it
        match self.is_pending(flushed) {
            true => Some(self.0),
            false => None,
        }
    }
}
