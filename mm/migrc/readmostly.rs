// SPDX-License-Identifier: GPL-2.0

//! Whether an address space may take write permission away from one more page.
//!
//! It pays if the page is migrated again before it is written to, because that is deferred; else it
//! costs a fault. So a page that loses permission is paid for with credit, and each deferral earns
//! as much. There is some credit to begin with; what is left as it is because there is none left
//! earns a little, so that it is tried again. Hence, at any time,
//!
//! > pages that lost permission <= [`Credit::START`] + deferrals + pages left alone / 64 + 1.
//!
//! A fault costs, too, so that it ends earlier where many pages are written to.

/// What has been spent, as a word; `migrc_mm.readmostly` in C.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Credit(i64);

impl Credit {
    /// In pages, as the other two.
    pub const START: i64 = 4096;
    /// What can be saved: a process that writes no more for hours may begin again.
    pub const MOST: i64 = 1 << 20;
    /// What can be owed, by faults.
    pub const DEBT: i64 = 4096;
    /// In the word a page is so much, and one that is left alone is 1.
    pub const PAGE: i64 = 64;

    /// The meaning of a word.
    #[inline]
    pub const fn from_raw(word: i64) -> Self {
        Self(word)
    }

    /// The word.
    #[inline]
    pub const fn into_raw(self) -> i64 {
        self.0
    }

    /// Whether there is none left.
    #[inline]
    pub const fn is_spent(self) -> bool {
        self.0 >= Self::START * Self::PAGE
    }

    /// A page could lose write permission: whether it should, and what replaces the word.
    #[inline]
    pub const fn offer(self) -> (bool, Self) {
        if self.is_spent() {
            (false, Self(self.0 - 1))
        } else {
            (true, Self(self.0 + Self::PAGE))
        }
    }

    /// One that has lost it was deferred: what replaces the word.
    #[inline]
    pub const fn hit(self) -> Self {
        let least = (Self::START - Self::MOST) * Self::PAGE;

        if self.0 - Self::PAGE < least {
            return Self(least);
        }
        Self(self.0 - Self::PAGE)
    }

    /// One that has lost it was written to: what replaces the word.
    #[inline]
    pub const fn miss(self) -> Self {
        let most = (Self::START + Self::DEBT) * Self::PAGE;

        if self.0 + Self::PAGE > most {
            return Self(most);
        }
        Self(self.0 + Self::PAGE)
    }
}
