// SPDX-License-Identifier: GPL-2.0

//! The word that says whether a deferred flush is still to come: its arithmetic, and who may
//! change it while somebody else is in the middle of a flush.
//!
//! The latter is run with loom, which tries every interleaving, and every value that a load may
//! return under the C11 memory model.

use loom::{
    sync::{
        atomic::{
            fence, AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
        Arc, Mutex,
    },
    thread,
};
use proptest::prelude::*;
use std::mem::take;
use verify::{
    migrc::{
        generation::Generation,
        ledger::{Chain, Ledger, Mms, Unflushed},
    },
    model::generation::{word, Op, Run, FLUSHES},
};

// ---- The word.

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        3 => Just(Op::Defer),
        2 => (0..FLUSHES).prop_map(Op::Begin),
        2 => (0..FLUSHES).prop_map(Op::End),
    ];
    prop::collection::vec(op, 0..60)
}

/// Anywhere, but often where one of the halves is about to wrap.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u32>().prop_map(u64::from),
        (0..4u64).prop_map(|n| u64::from(u32::MAX) - n),
        0..4u64,
    ]
}

proptest! {
    // Nothing is written next to the sources: a failing case is printed.
    #![proptest_config(ProptestConfig {
        cases: 8000,
        failure_persistence: None,
        ..Default::default()
    })]

    /// Against numbers that do not wrap: it is pending if and only if more was deferred than is
    /// covered, and a flush covers all that was deferred before it began.
    #[test]
    fn halves_count(start in number(), ops in ops()) {
        let mut run = Run::new(start);

        ops.iter().for_each(|op| run.step(op));
    }

    /// A flush leaves the number of deferrals alone, and what came in between pending, for any
    /// number that the halves can hold.
    #[test]
    fn a_deferral_in_between_stays(
        first: u32,
        (pending, more) in (1..1u64 << 32).prop_flat_map(|n| (Just(n), 0..(1u64 << 32) - n)),
    ) {
        let seen = word(u64::from(first) + pending, u64::from(first));
        let now = seen.into_raw().wrapping_add(Generation::DEFERRAL.wrapping_mul(more));
        let after = seen.cover(Generation::from_raw(now)).unwrap();

        prop_assert_eq!(after.into_raw() >> 32, now >> 32);
        prop_assert_eq!(after.is_pending(), more != 0);
        prop_assert_eq!(seen.cover(after), None);
    }
}

#[test]
fn nothing_is_pending_at_first() {
    assert!(!Generation::default().is_pending());
    assert_eq!(Generation::default().into_raw(), 0);
}

/// What the limit is for.
#[test]
fn a_full_turn_is_not_seen() {
    let word = Generation::default().into_raw();
    let turn = Generation::DEFERRAL.wrapping_mul(1 << 32);

    assert_eq!(word.wrapping_add(turn), word);
    assert!(Generation::from_raw(word.wrapping_sub(Generation::DEFERRAL)).is_pending());
}

// ---- The word, shared.

/// What keeps a deferral from being lost.
#[derive(Clone, Copy)]
struct Rules {
    /// The clear is visible before the deferral is.
    barrier: bool,
    /// A flush does not take away what was added to the word since it looked.
    exchange: bool,
    /// A drain takes the folios before it flushes.
    splice: bool,
    /// Who finds the word covered sees what the flush has done.
    ordered: bool,
}

const ALL: Rules = Rules {
    barrier: true,
    exchange: true,
    splice: true,
    ordered: true,
};

/// Pages of one address space, each in a page table of its own, so that nothing but the word is
/// shared by those who migrate them and those who flush.
struct Mm {
    rules: Rules,
    generation: AtomicU64,
    /// Whether the entry of a page still leads to its source.
    ptes: Vec<AtomicBool>,
    /// Whether a TLB does.
    tlb: Vec<AtomicBool>,
    /// Invalidations take effect one after the other.
    tlbi: Mutex<()>,
    /// How many page table locks were released by whoever migrates.
    unlocked: AtomicUsize,
    ledger: Mutex<Ledger<Sources>>,
    released: Mutex<usize>,
}

struct Sources(Vec<usize>);

impl Chain for Sources {
    const EMPTY: Self = Self(Vec::new());

    type Folio = usize;

    fn push(&mut self, source: usize) {
        self.0.push(source);
    }

    fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Mms for &Mm {
    fn flush_all(&mut self) -> usize {
        self.flush() as usize
    }
}

impl Mm {
    fn new(rules: Rules, pages: usize) -> Self {
        let all = || (0..pages).map(|_| AtomicBool::new(true)).collect();
        let mut ledger = Ledger::new();

        ledger.open();
        Self {
            rules,
            generation: AtomicU64::new(Generation::default().into_raw()),
            ptes: all(),
            tlb: all(),
            tlbi: Mutex::new(()),
            unlocked: AtomicUsize::new(0),
            ledger: Mutex::new(ledger),
            released: Mutex::new(0),
        }
    }

    /// Migrates all pages, one after the other.
    fn defer(&self) {
        for (page, pte) in self.ptes.iter().enumerate() {
            pte.store(false, Relaxed);
            if self.rules.barrier {
                fence(Release);
            }
            self.generation.fetch_add(Generation::DEFERRAL, Relaxed);
            self.unlocked.store(page + 1, Release);

            let added = self.ledger.lock().unwrap().add(page, 1, 0);
            assert!(added.is_ok());
        }
    }

    /// Of a hook or of a drain: returns whether there was something to do.
    fn flush(&self) -> bool {
        let order = if self.rules.ordered { Acquire } else { Relaxed };
        let seen = Generation::from_raw(self.generation.load(order));

        if !seen.is_pending() {
            return false;
        }
        self.invalidate();
        if !self.rules.exchange {
            if let Some(covered) = seen.cover(seen) {
                self.generation.store(covered.into_raw(), Release);
            }
            return true;
        }
        let order = if self.rules.ordered { Release } else { Relaxed };
        let mut now = self.generation.load(Relaxed);

        while let Some(covered) = seen.cover(Generation::from_raw(now)) {
            let result = self
                .generation
                .compare_exchange(now, covered.into_raw(), order, Relaxed);

            match result {
                Ok(_) => break,
                Err(changed) => now = changed,
            }
        }
        true
    }

    /// A CPU walks the page table as soon as it may, and finds what can be found at this time.
    fn invalidate(&self) {
        let _one = self.tlbi.lock().unwrap();

        for (pte, tlb) in self.ptes.iter().zip(&self.tlb) {
            tlb.store(pte.load(Relaxed), Relaxed);
        }
    }

    /// No TLB leads to the sources of these pages.
    fn is_clean(&self, pages: impl IntoIterator<Item = usize>) -> bool {
        pages.into_iter().all(|page| !self.tlb[page].load(Relaxed))
    }

    /// Whoever takes a page table lock after a deferral flushes, before it maps something else.
    fn hook(&self) {
        let deferred = self.unlocked.load(Acquire);

        self.flush();
        assert!(self.is_clean(0..deferred), "a hook misses a deferral");
    }

    fn drain(&self) {
        let mut unflushed = Unflushed::new();
        let splice = |unflushed: &mut _| self.ledger.lock().unwrap().splice_into(unflushed);

        if self.rules.splice {
            splice(&mut unflushed);
        } else {
            self.flush();
            splice(&mut unflushed);
            // What it flushed already.
            let sources = unflushed.flush(&mut Nothing).into_chain();
            return self.release(sources);
        }
        if let Some(unflushed) = unflushed.some() {
            let mut mms = self;

            self.release(unflushed.flush(&mut mms).into_chain());
        }
    }

    fn release(&self, sources: Sources) {
        *self.released.lock().unwrap() += sources.0.len();
        assert!(self.is_clean(sources.0), "a TLB leads to what is released");
    }

    /// Nobody else is left: what is not pending any more was flushed.
    fn end(&self) {
        self.hook();
        self.drain();
        assert_eq!(take(&mut *self.released.lock().unwrap()), self.ptes.len());
    }
}

struct Nothing;

impl Mms for Nothing {
    fn flush_all(&mut self) -> usize {
        0
    }
}

/// In every interleaving of whoever defers with all of `others`.
fn run(rules: Rules, pages: usize, others: &'static [fn(&Mm)]) {
    run_bounded(rules, pages, others, None);
}

/// The same, but no more often than this does one of them interrupt another.
fn run_bounded(rules: Rules, pages: usize, others: &'static [fn(&Mm)], preemptions: Option<usize>) {
    let mut model = loom::model::Builder::new();

    model.preemption_bound = preemptions;
    model.check(move || {
        let mm = Arc::new(Mm::new(rules, pages));
        let others: Vec<_> = others
            .iter()
            .map(|other| {
                let mm = Arc::clone(&mm);
                thread::spawn(move || other(&mm))
            })
            .collect();

        mm.defer();
        for other in others {
            other.join().unwrap();
        }
        mm.end();
    });
}

#[test]
fn a_hook_loses_nothing() {
    run(ALL, 2, &[Mm::hook]);
}

#[test]
fn a_drain_loses_nothing() {
    run(ALL, 2, &[Mm::drain]);
}

#[test]
fn a_hook_and_a_drain_lose_nothing() {
    run(ALL, 1, &[Mm::hook, Mm::drain]);
}

/// All interleavings would take hours.
#[test]
fn a_hook_and_a_drain_lose_nothing_twice() {
    run_bounded(ALL, 2, &[Mm::hook, Mm::drain], Some(4));
}

/// Who invalidates after having seen the deferral need not invalidate what the clear was to.
#[test]
#[should_panic(expected = "a hook misses a deferral")]
fn without_a_barrier_the_clear_comes_too_late() {
    let rules = Rules {
        barrier: false,
        ..ALL
    };

    run(rules, 1, &[Mm::hook]);
}

#[test]
#[should_panic(expected = "a hook misses a deferral")]
fn a_plain_store_takes_a_deferral_away() {
    let rules = Rules {
        exchange: false,
        ..ALL
    };

    run(rules, 2, &[Mm::hook]);
}

#[test]
#[should_panic(expected = "a TLB leads to what is released")]
fn a_drain_that_flushes_first_releases_too_much() {
    let rules = Rules {
        splice: false,
        ..ALL
    };

    run(rules, 1, &[Mm::drain]);
}

/// The word is covered, but what it stands for cannot be seen yet.
#[test]
#[should_panic(expected = "a TLB leads to what is released")]
fn without_an_order_a_flush_is_believed_too_early() {
    let rules = Rules {
        ordered: false,
        ..ALL
    };

    run(rules, 1, &[Mm::hook, Mm::drain]);
}
