// SPDX-License-Identifier: GPL-2.0

//! Properties of the ledger of sources under any sequence of operations.
//!
//! The reference is a list of what was added to each ledger and what was taken out, and TLBs that
//! lead to each folio from when its flush was deferred until everything was flushed.

use proptest::prelude::*;
use std::collections::BTreeSet;
use verify::migrc::ledger::{Chain, Ledger, Mms, Unflushed};

/// A ledger for each node.
const LEDGERS: usize = 3;
/// Few enough for several folios to be of the same.
const MMS: usize = 4;

/// Owned: neither cloned nor copied, like the reference of a folio.
#[derive(Debug, Eq, PartialEq)]
struct Folio(usize);

struct Folios(Vec<Folio>);

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
struct Tlbs {
    stale: BTreeSet<(usize, usize)>,
    flushes: usize,
}

impl Mms for Tlbs {
    fn flush_all(&mut self) -> usize {
        let mms: BTreeSet<_> = self.stale.iter().map(|&(mm, _)| mm).collect();

        self.flushes += 1;
        self.stale.clear();
        mms.len()
    }
}

#[derive(Clone, Debug)]
enum Op {
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

fn op() -> impl Strategy<Value = Op> {
    let mms = || prop::collection::btree_set(0..MMS, 0..=MMS);
    let pages = || prop_oneof![3 => Just(1), 1 => 1..=512usize];

    prop_oneof![
        2 => (0..LEDGERS).prop_map(Op::Open),
        1 => (0..LEDGERS).prop_map(Op::Close),
        8 => (0..LEDGERS, mms(), pages(), 0..100u64)
            .prop_map(|(ledger, mms, pages, now)| Op::Add { ledger, mms, pages, now }),
        4 => (0..LEDGERS).prop_map(Op::Splice),
        1 => (mms(), pages(), 0..100u64).prop_map(|(mms, pages, now)| Op::Push { mms, pages, now }),
        1 => Just(Op::Some),
        2 => Just(Op::Flush),
    ]
}

/// What is known of a folio: number, pages, and when it was added.
type Entry = (usize, usize, u64);

fn pages(entries: &[Entry]) -> usize {
    entries.iter().map(|&(_, pages, _)| pages).sum()
}

struct Run {
    ledgers: [Ledger<Folios>; LEDGERS],
    unflushed: Option<Unflushed<Folios>>,
    tlbs: Tlbs,
    open: [bool; LEDGERS],
    /// What should be in each ledger, and what has left.
    added: [Vec<Entry>; LEDGERS],
    taken: Vec<Entry>,
    /// When the oldest that has left was the first in a ledger.
    since: Option<u64>,
    folios: usize,
    released: Vec<usize>,
}

impl Run {
    fn new() -> Self {
        Self {
            ledgers: [const { Ledger::new() }; LEDGERS],
            unflushed: None,
            tlbs: Tlbs::default(),
            open: [false; LEDGERS],
            added: Default::default(),
            taken: Vec::new(),
            since: None,
            folios: 0,
            released: Vec::new(),
        }
    }

    /// Another folio, to which TLBs of these address spaces lead.
    fn defer(&mut self, mms: &BTreeSet<usize>) -> Folio {
        let id = self.folios;

        self.folios += 1;
        self.tlbs.stale.extend(mms.iter().map(|&mm| (mm, id)));
        Folio(id)
    }

    fn took(&mut self, since: u64) {
        self.since = Some(self.since.map_or(since, |old| old.min(since)));
    }

    fn unflushed(&mut self) -> &mut Unflushed<Folios> {
        self.unflushed.get_or_insert_with(Unflushed::new)
    }

    fn splice(&mut self, ledger: usize) {
        let unflushed = self.unflushed.get_or_insert_with(Unflushed::new);

        self.ledgers[ledger].splice_into(unflushed);
        if let Some(&(_, _, since)) = self.added[ledger].first() {
            self.took(since);
        }
        self.taken.append(&mut self.added[ledger]);
    }

    /// What leaves the ledgers goes to whoever releases it, once, and after a flush.
    fn flush(&mut self) {
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

    fn step(&mut self, op: &Op) {
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

                match self.ledgers[ledger].add(folio, pages, now) {
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

    fn taken_late(&mut self, id: usize, pages: usize, now: u64) {
        self.took(now);
        self.taken.push((id, pages, now));
    }
}

impl Drop for Run {
    /// A run that fails must not panic a second time, or its operations are not printed.
    fn drop(&mut self) {
        std::mem::forget(self.unflushed.take());
    }
}

proptest! {
    // Nothing is written next to the sources: a failing case is printed.
    #![proptest_config(ProptestConfig {
        cases: 8000,
        failure_persistence: None,
        ..Default::default()
    })]

    /// Every folio is in one ledger, on its way, or released once, whatever happens; [`Run`] looks
    /// at each step. In the end all of them are released.
    #[test]
    fn every_folio_is_released_once_after_a_flush(ops in prop::collection::vec(op(), 0..60)) {
        let mut run = Run::new();

        ops.iter().for_each(|op| run.step(op));
        (0..LEDGERS).for_each(|ledger| run.splice(ledger));
        run.flush();
        run.released.sort_unstable();
        prop_assert_eq!(&run.released, &(0..run.folios).collect::<Vec<_>>());
        prop_assert!(run.ledgers.iter().all(|ledger| ledger.pages() == 0));
    }
}

fn ledger_of_one() -> Ledger<Folios> {
    let mut ledger = Ledger::new();

    ledger.open();
    assert_eq!(ledger.add(Folio(0), 1, 0), Ok(true));
    ledger
}

/// A drain that forgets to flush.
#[test]
#[should_panic(expected = "dropped without a flush")]
fn unflushed_cannot_be_dropped() {
    let mut unflushed = Unflushed::new();

    ledger_of_one().splice_into(&mut unflushed);
    drop(unflushed);
}

/// Not even where it is empty, unless one has asked: whether it is, is not known when it is built.
#[test]
#[should_panic(expected = "dropped without a flush")]
fn unflushed_cannot_be_dropped_unseen() {
    drop(Unflushed::<Folios>::new());
}

/// Nor where it is not.
#[test]
#[should_panic(expected = "dropped without a flush")]
fn unflushed_cannot_be_dropped_after_a_look() {
    let mut unflushed = Unflushed::new();

    ledger_of_one().splice_into(&mut unflushed);
    drop(unflushed.some());
}

#[test]
fn nothing_to_flush_may_be_forgotten() {
    let mut unflushed = Unflushed::<Folios>::new();

    Ledger::new().splice_into(&mut unflushed);
    assert!(unflushed.some().is_none());
}
