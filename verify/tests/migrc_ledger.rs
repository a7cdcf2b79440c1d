// SPDX-License-Identifier: GPL-2.0

//! Properties of the ledger of sources under any sequence of operations.
//!
//! The reference is `verify::model::ledger`.

use proptest::prelude::*;
use verify::{
    migrc::ledger::{Ledger, Unflushed},
    model::ledger::{Folio, Folios, Op, Run, LEDGERS, MMS},
};

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
        let mut run = Run::default();

        ops.iter().for_each(|op| run.step(op));
        run.end();
    }
}

fn ledger_of_one() -> Ledger<Folios> {
    let mut ledger = Ledger::new();

    ledger.open();
    assert_eq!(ledger.add(Folio(0), 1, || 0), Ok(true));
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
    let mut unflushed = Unflushed::<Folios>::default();
    let mut ledger = Ledger::default();

    assert_eq!(ledger.add(Folio(0), 1, || 0), Err(Folio(0)), "it is closed");
    ledger.splice_into(&mut unflushed);
    assert!(unflushed.some().is_none());
}
