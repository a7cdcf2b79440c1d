// SPDX-License-Identifier: GPL-2.0

//! What has happened in an address space, counted.

use crate::migrc::readmostly::Credit;

/// An address space: its credit, and what has happened in it.
#[derive(Default)]
pub struct Mm {
    pub word: i64,
    pub protected: i64,
    pub spared: i64,
    pub hits: i64,
    pub misses: i64,
}

impl Mm {
    pub fn offer(&mut self) -> bool {
        let (protect, credit) = Credit::from_raw(self.word).offer();

        self.word = credit.into_raw();
        if protect {
            self.protected += 1;
        } else {
            self.spared += 1;
        }
        protect
    }

    pub fn hit(&mut self) {
        self.word = Credit::from_raw(self.word).hit().into_raw();
        self.hits += 1;
    }

    pub fn miss(&mut self) {
        self.word = Credit::from_raw(self.word).miss().into_raw();
        self.misses += 1;
    }

    /// Moves every page once, after those that `written` names were written to. A page is dirty,
    /// clean, or protected.
    pub fn pass(&mut self, pages: &mut [Page], mut written: impl FnMut(usize) -> bool) {
        for (n, page) in pages.iter_mut().enumerate() {
            if written(n) {
                if *page == Page::Protected {
                    self.miss();
                }
                *page = Page::Dirty;
            }
        }
        for page in pages {
            match page {
                Page::Dirty => *page = Page::Clean,
                Page::Clean if self.offer() => *page = Page::Protected,
                Page::Clean => {}
                Page::Protected => self.hit(),
            }
        }
    }

    /// As much was spent as there was, and what is saved and owed is limited.
    pub fn check(&self) {
        let most = Credit::START + self.hits + self.spared / Credit::PAGE + 1;

        assert!(self.protected <= most);
        assert!(self.word >= (Credit::START - Credit::MOST) * Credit::PAGE);
        assert!(self.word <= (Credit::START + Credit::DEBT) * Credit::PAGE);
    }
}

#[derive(Clone, Copy, Eq, PartialEq)]
pub enum Page {
    Dirty,
    Clean,
    Protected,
}
