// SPDX-License-Identifier: GPL-2.0

//! A list of what was added to each ledger and what was taken out, and TLBs that lead to each folio
//! from when its flush was deferred until everything was flushed.

use crate::migrc::ledger::{Chain, Ledger, Mms, Unflushed};
use std::collections::BTreeSet;

/// A ledger for each node.
pub const LEDGERS: usize = 3;
/// Few enough for several folios to be of the same.
pub const MMS: usize = 4;

/// Owned: neither cloned nor copied, like the reference of a folio.
#[derive(Debug, Eq, PartialEq)]
pub struct Folio(pub usize);

pub struct Folios(pub Vec<Folio>);

impl Chain for Folios {
    const EMPTY: Self = Self(Vec::new());

    type Folio = Folio;

    fn push(&mut self, folio: Folio) {
        self.0.push(folio);
    }

    fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Which folios a TLB may lead to, and in which address space.
#[derive(Default)]
pub struct Tlbs {
    pub stale: BTreeSet<(usize, usize)>,
    pub flushes: usize,
}

// SAFETY: It forgets all translations.
unsafe impl Mms for Tlbs {
    fn flush_all(&mut self) -> usize {
        let mms: BTreeSet<_> = self.stale.iter().map(|&(mm, _)| mm).collect();

        self.flushes += 1;
        self.stale.clear();
        mms.len()
    }
}

#[derive(Clone, Debug)]
pub enum Op {
    Open(usize),
    Close(usize),
    /// The flush in some address space is deferred, and then the folio added. Time passes, or
    /// not: those who add to a ledger have read the clock before they had its lock.
    Add {
        ledger: usize,
        mms: BTreeSet<usize>,
        pages: usize,
        now: u64,
    },
    /// A drain takes out what there is,
    Splice(usize),
    /// or adds what no ledger takes,
    Push {
        mms: BTreeSet<usize>,
        pages: usize,
        now: u64,
    },
    /// finds out that there is nothing to do,
    Some,
    /// or flushes and releases.
    Flush,
}

/// What is known of a folio: number, pages, and when it was added.
pub type Entry = (usize, usize, u64);

pub fn pages(entries: &[Entry]) -> usize {
    entries.iter().map(|&(_, pages, _)| pages).sum()
}

#[derive(Default)]
pub struct Run {
    pub ledgers: [Ledger<Folios>; LEDGERS],
    pub unflushed: Option<Unflushed<Folios>>,
    pub tlbs: Tlbs,
    pub open: [bool; LEDGERS],
    /// What should be in each ledger, and what has left.
    pub added: [Vec<Entry>; LEDGERS],
    pub taken: Vec<Entry>,
    /// When the oldest that has left was the first in a ledger.
    pub since: Option<u64>,
    pub folios: usize,
    pub released: Vec<usize>,
}

impl Run {
    /// Another folio, to which TLBs of these address spaces lead.
    pub fn defer(&mut self, mms: &BTreeSet<usize>) -> Folio {
        let id = self.folios;

        self.folios += 1;
        self.tlbs.stale.extend(mms.iter().map(|&mm| (mm, id)));
        Folio(id)
    }

    pub fn took(&mut self, since: u64) {
        self.since = Some(self.since.map_or(since, |old| old.min(since)));
    }

    pub fn unflushed(&mut self) -> &mut Unflushed<Folios> {
        self.unflushed.get_or_insert_with(Unflushed::new)
    }

    pub fn splice(&mut self, ledger: usize) {
        let unflushed = self.unflushed.get_or_insert_with(Unflushed::new);

        self.ledgers[ledger].splice_into(unflushed);
        if let Some(&(_, _, since)) = self.added[ledger].first() {
            self.took(since);
        }
        self.taken.append(&mut self.added[ledger]);
    }

    /// What leaves the ledgers goes to whoever releases it, once, and after a flush.
    pub fn flush(&mut self) {
        let Some(unflushed) = self.unflushed.take() else {
            return;
        };
        let flushes = self.tlbs.flushes;
        let mms: BTreeSet<_> = self.tlbs.stale.iter().map(|&(mm, _)| mm).collect();

        let flushed = unflushed.flush(&mut self.tlbs);
        assert_eq!(self.tlbs.flushes, flushes + 1);
        assert_eq!(flushed.mms, mms.len());
        assert_eq!(flushed.pages, pages(&self.taken));
        if let Some(since) = self.since.take() {
            assert_eq!(flushed.since, since);
        }

        let mut ids: Vec<_> = flushed.into_chain().0.into_iter().map(|f| f.0).collect();
        let mut expected: Vec<_> = self.taken.drain(..).map(|(id, _, _)| id).collect();
        ids.sort_unstable();
        expected.sort_unstable();
        assert_eq!(ids, expected);
        for id in &ids {
            assert!(self.tlbs.stale.iter().all(|(_, stale)| stale != id));
        }
        self.released.append(&mut ids);
    }

    pub fn step(&mut self, op: &Op) {
        match *op {
            Op::Open(ledger) => {
                self.ledgers[ledger].open();
                self.open[ledger] = true;
            }
            Op::Close(ledger) => {
                self.ledgers[ledger].close();
                self.open[ledger] = false;
            }
            Op::Add {
                ledger,
                ref mms,
                pages,
                now,
            } => {
                let folio = self.defer(mms);
                let id = folio.0;

                match self.ledgers[ledger].add(folio, pages, || now) {
                    Ok(first) => {
                        assert!(self.open[ledger], "added to a closed ledger");
                        assert_eq!(first, self.added[ledger].is_empty());
                        self.added[ledger].push((id, pages, now));
                    }
                    Err(folio) => {
                        assert!(!self.open[ledger], "refused by an open ledger");
                        assert_eq!(folio.0, id);
                        // As the kernel does: it must not get lost.
                        self.unflushed().push(folio, pages, now);
                        self.taken_late(id, pages, now);
                    }
                }
            }
            Op::Splice(ledger) => self.splice(ledger),
            Op::Push {
                ref mms,
                pages,
                now,
            } => {
                let folio = self.defer(mms);
                let id = folio.0;

                self.unflushed().push(folio, pages, now);
                self.taken_late(id, pages, now);
            }
            Op::Some => {
                if let Some(unflushed) = self.unflushed.take() {
                    self.unflushed = unflushed.some();
                    assert_eq!(self.unflushed.is_none(), self.taken.is_empty());
                }
            }
            Op::Flush => self.flush(),
        }
        for (ledger, added) in self.ledgers.iter().zip(&self.added) {
            assert_eq!(ledger.pages(), pages(added));
        }
    }

    pub fn taken_late(&mut self, id: usize, pages: usize, now: u64) {
        self.took(now);
        self.taken.push((id, pages, now));
    }

    /// A last drain: every folio has been released, once.
    pub fn end(mut self) {
        (0..LEDGERS).for_each(|ledger| self.splice(ledger));
        self.flush();
        self.released.sort_unstable();
        assert_eq!(self.released, (0..self.folios).collect::<Vec<_>>());
        assert!(self.ledgers.iter().all(|ledger| ledger.pages() == 0));
    }
}

impl Drop for Run {
    /// A run that fails must not panic a second time, or its operations are not printed.
    fn drop(&mut self) {
        std::mem::forget(self.unflushed.take());
    }
}
