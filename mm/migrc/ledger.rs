// SPDX-License-Identifier: GPL-2.0

//! The owner of the source of a migration whose flush was deferred.
//!
//! This is the bookkeeping and nothing else: it sees folios as opaque values in a chain, calls
//! nothing but what its caller gives it, and can neither sleep, allocate nor panic. The same file
//! is compiled on the host, where property tests reach it (`verify/` of tlb-rs).

use super::unflushed_dropped;
use core::mem::{replace, ManuallyDrop};

/// Owned folios, in any order.
pub trait Chain {
    /// No folio.
    const EMPTY: Self;

    /// An owned folio.
    type Folio;

    /// Adds a folio, without allocating.
    fn push(&mut self, folio: Self::Folio);

    /// Adds all of another chain, in a time that does not depend on how many there are.
    fn append(&mut self, other: Self);

    /// Whether there is none.
    fn is_empty(&self) -> bool;
}

/// The address spaces in which something was deferred, and the means to flush them.
///
/// # Safety
///
/// When [`Self::flush_all`] returns, no TLB may hold a translation whose deferral was counted in
/// one of them before the call.
pub unsafe trait Mms {
    /// Flushes all that was deferred before the call, in every address space and on every CPU, and
    /// waits for it. Returns in how many address spaces there was something to flush.
    fn flush_all(&mut self) -> usize;
}

/// Sources of migrations to which a TLB may still lead.
///
/// # Invariants
///
/// - `pages` is the number of pages in `chain`, and 0 if it is empty.
/// - `since` is when the first of them was added, if there is any.
pub struct Ledger<C> {
    chain: C,
    pages: usize,
    since: u64,
    closed: bool,
}

impl<C: Chain> Default for Ledger<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Chain> Ledger<C> {
    /// An empty ledger that takes nothing until [`Ledger::open`].
    pub const fn new() -> Self {
        // INVARIANT: Empty.
        Self {
            chain: C::EMPTY,
            pages: 0,
            since: 0,
            closed: true,
        }
    }

    /// Takes folios from now on.
    pub fn open(&mut self) {
        self.closed = false;
    }

    /// Takes no more folios. Those that it has stay until they are drained.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Takes a folio of `pages` pages, or gives it back if the ledger is closed. Returns whether it
    /// is the first; then `now` is asked for the time.
    ///
    /// Every address space in which its flush was deferred must be known to the [`Mms`] that the
    /// next drain flushes.
    pub fn add(
        &mut self,
        folio: C::Folio,
        pages: usize,
        now: impl FnOnce() -> u64,
    ) -> Result<bool, C::Folio> {
        if self.closed {
            return Err(folio);
        }
        let first = self.chain.is_empty();
        if first {
            // INVARIANT: This is the first.
            self.since = now();
        }
        self.chain.push(folio);
        // INVARIANT: As many more; there are not so many in the machine that this could wrap.
        self.pages = self.pages.wrapping_add(pages);
        Ok(first)
    }

    /// Takes everything out of the ledger, to be flushed and released with what is in `unflushed`.
    pub fn splice_into(&mut self, unflushed: &mut Unflushed<C>) {
        if self.chain.is_empty() {
            return;
        }
        unflushed.since = match unflushed.chain.is_empty() {
            true => self.since,
            false => self.since.min(unflushed.since),
        };
        // INVARIANT: Empty.
        unflushed.chain.append(replace(&mut self.chain, C::EMPTY));
        unflushed.pages = unflushed.pages.wrapping_add(replace(&mut self.pages, 0));
    }
}

/// Folios that left the ledger, to which a TLB may still lead.
///
/// There is one way on, [`Unflushed::flush`]. Dropping it is a build error where the optimiser can
/// see it, so that no folio is lost, and none is released unflushed, on an early return.
#[must_use = "must be flushed"]
pub struct Unflushed<C> {
    chain: C,
    pages: usize,
    since: u64,
}

impl<C> Drop for Unflushed<C> {
    #[inline(always)]
    fn drop(&mut self) {
        unflushed_dropped();
    }
}

impl<C: Chain> Default for Unflushed<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Chain> Unflushed<C> {
    /// Nothing yet.
    #[inline(always)]
    pub const fn new() -> Self {
        Self {
            chain: C::EMPTY,
            pages: 0,
            since: 0,
        }
    }

    /// Adds a folio that was deferred, but that no ledger takes.
    #[inline(always)]
    pub fn push(&mut self, folio: C::Folio, pages: usize, now: u64) {
        self.since = match self.chain.is_empty() {
            true => now,
            false => now.min(self.since),
        };
        self.chain.push(folio);
        self.pages = self.pages.wrapping_add(pages);
    }

    /// Itself, unless there is nothing in it.
    #[must_use = "must be flushed"]
    #[inline(always)]
    pub fn some(self) -> Option<Self> {
        if self.chain.is_empty() {
            let _ = ManuallyDrop::new(self);
            return None;
        }
        Some(self)
    }

    /// Flushes what was deferred in every address space. No TLB leads to one of the folios any
    /// more: each had been deferred before the flush, and so its address spaces were in `mms`.
    #[inline(always)]
    pub fn flush(self, mms: &mut impl Mms) -> Flushed<C> {
        let mut unflushed = ManuallyDrop::new(self);
        let flushed = mms.flush_all();

        Flushed {
            chain: replace(&mut unflushed.chain, C::EMPTY),
            pages: unflushed.pages,
            since: unflushed.since,
            mms: flushed,
        }
    }
}

/// The witness that no TLB leads to these folios any more: they may be released.
#[must_use = "the folios must be released"]
pub struct Flushed<C> {
    chain: C,
    /// Number of pages.
    pub pages: usize,
    /// When the oldest of them was added, if there is any.
    pub since: u64,
    /// In how many address spaces there was something to flush.
    pub mms: usize,
}

impl<C> Flushed<C> {
    /// The folios, to be released.
    pub fn into_chain(self) -> C {
        self.chain
    }
}
