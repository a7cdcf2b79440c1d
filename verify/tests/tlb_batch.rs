// SPDX-License-Identifier: GPL-2.0

//! Properties of the TLB batch over any sequence of operations.
//!
//! The reference is `verify::model::ranges`.

use proptest::prelude::*;
use std::{collections::BTreeSet, rc::Rc};
use verify::{
    model::ranges::{Hardware, Hold, Op, Run, MMS, PAGE, PAGES},
    tlb_batch::ranges::{Ranges, CAPACITY, HELD},
};

fn op() -> impl Strategy<Value = Op> {
    // Anywhere, or side by side as a walk finds them.
    let runs = || {
        prop_oneof![
            prop::collection::vec((0..PAGES, 1..9usize), 0..6),
            (0..PAGES - 40, prop::collection::vec(1..9usize, 1..6)).prop_map(|(first, lens)| {
                lens.into_iter()
                    .scan(first, |next, n| {
                        *next += n;
                        Some((*next - n, n))
                    })
                    .collect()
            }),
        ]
    };
    let callback = |hold| {
        (0..MMS, runs(), any::<bool>()).prop_map(move |(mm, runs, c)| Op::Callback {
            mm,
            runs,
            hold,
            c,
        })
    };
    prop_oneof![
        14 => callback(true),
        2 => callback(false),
        1 => (0..MMS).prop_map(Op::IssueMm),
        1 => Just(Op::Issue),
        1 => Just(Op::PutBack),
        1 => Just(Op::Flush),
        2 => Just(Op::Release),
    ]
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(), 0..40)
}

fn hardware() -> impl Strategy<Value = Hardware> {
    let limit = || prop::option::of((0..PAGES).prop_map(|pages| pages * PAGE));
    (limit(), limit()).prop_map(|(mm_bytes, one_operation)| Hardware {
        mm_bytes,
        one_operation,
    })
}

const PLAIN: Hardware = Hardware {
    mm_bytes: None,
    one_operation: None,
};

proptest! {
    // Nothing is written next to the sources: a failing case is printed.
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..Default::default() })]

    /// After a flush no cleared page is cached anywhere, and nothing is left to wait for. No gap was
    /// filled and no other address space touched, unless the hardware prefers all of the same one;
    /// `Tlb::issue_mm()` of the model checks when. However badly it coalesces, a batch issues no
    /// more operations than there were adds, and waits at most once per flush.
    #[test]
    fn flush_covers_everything_and_nothing_else(hw in hardware(), ops in ops()) {
        let mut run = Run::after(hw, &ops);
        run.flush();
        run.check_paid();
    }

    /// At any time what is cached is owed, and what was not waited for is known: issuing and
    /// waiting is all that is missing.
    #[test]
    fn nothing_is_lost_in_between(hw in hardware(), ops in ops()) {
        let mut run = Run::new(hw);
        for op in &ops {
            run.step(op);
            run.check_owed();
        }
        run.batch.issue(&mut run.tlb);
        prop_assert!(run.state().stale.is_empty());
    }

    /// At the end of a callback everything that is owed is of an address space that cannot go
    /// away, however many there are, and each of those is held once.
    #[test]
    fn owed_means_held(hw in hardware(), ops in ops()) {
        let mut run = Run::new(hw);
        for op in &ops {
            run.step(op);
            run.check_held();
        }
    }

    /// Every reference is dropped exactly once, when nothing needs it, and by no operation that may
    /// run under a spinlock ([`Hold`] notes it, and [`Run::step`] looks).
    #[test]
    fn references_are_dropped_once(hw in hardware(), ops in ops()) {
        let mut run = Run::after(hw, &ops);
        run.flush();
        let held = run.batch.held().count();
        prop_assert_eq!(run.state().taken, run.state().dropped + held);
        run.batch.release();
        run.batch.release();
        prop_assert_eq!(run.batch.held().count(), 0);
        let state = run.state();
        prop_assert_eq!((state.taken, state.misdropped), (state.dropped, None));
        prop_assert!(state.refs.values().all(|&refs| refs == 0));
    }

    /// A batch that goes out of scope drops each reference that it still has.
    #[test]
    fn references_do_not_leak(hw in hardware(), ops in ops()) {
        let mut run = Run::after(hw, &ops);
        let state = Rc::clone(&run.tlb.state);
        run.batch.issue(&mut run.tlb);
        drop(run);
        prop_assert_eq!(state.borrow().taken, state.borrow().dropped);
    }

    /// A flush takes one operation if it is all of one address space, nothing was issued since the
    /// last one and the hardware can; what it does not do is checked by the model.
    #[test]
    fn one_operation_where_possible(
        ops in ops(),
        runs in prop::collection::vec((0..PAGES, 1..9usize), 1..CAPACITY),
    ) {
        let mut run = Run::after(Hardware { mm_bytes: None, one_operation: Some(usize::MAX) }, &ops);
        run.flush();
        let issued = run.state().issued;
        runs.iter().for_each(|&(page, n)| run.add(0, page, n, false));
        run.flush();
        prop_assert_eq!(run.state().issued, issued + 1);
        prop_assert!(run.state().stale.is_empty());
    }

    /// Ranges of many folios and many processes: with no more address spaces than can be held and
    /// whole runs side by side, each process costs one operation.
    #[test]
    fn neighbours_cost_one_operation(mms in 1..=HELD, folios in 1..40usize, c in any::<bool>()) {
        let mut run = Run::new(PLAIN);
        for folio in 0..folios {
            for mm in 0..mms {
                run.step(&Op::Callback { mm, runs: vec![(folio * 8, 8)], hold: true, c });
            }
        }
        prop_assert_eq!(run.state().issued, 0);
        run.flush();
        prop_assert_eq!((run.state().issued, run.state().synced), (mms, 1));
    }

    /// Ranges that are apart leave in the order in which they came.
    #[test]
    fn the_one_that_was_filled_first_is_evicted(
        pages in Just((0..PAGES).step_by(2).collect::<Vec<_>>()).prop_shuffle(),
        nr in 0..PAGES / 2,
        c: bool,
    ) {
        let mut run = Run::new(PLAIN);
        pages[..nr].iter().for_each(|&page| run.add(page % MMS, page, 1, c));
        let left = pages[..nr].iter().rev().take(CAPACITY);
        prop_assert_eq!(
            run.state().stale.clone(),
            left.map(|&page| (page % MMS, page)).collect::<BTreeSet<_>>()
        );
    }

    /// All of an address space takes the place of several of its ranges where the hardware prefers
    /// that, and never of one.
    #[test]
    fn all_of_an_address_space_where_preferred(
        pages in prop::collection::vec(1..4usize, 1..CAPACITY),
        limit in 0..32usize,
    ) {
        let hw = Hardware { mm_bytes: Some(limit * PAGE), one_operation: None };
        let mut run = Run::new(hw);
        pages.iter().enumerate().for_each(|(i, &n)| run.add(0, 8 * i, n, false));
        let whole = pages.len() > 1 && pages.iter().sum::<usize>() >= limit;
        run.flush();
        prop_assert_eq!(run.state().issued, if whole { 1 } else { pages.len() });
    }

    /// The runs of one folio, in whatever order they were found, become one range.
    #[test]
    fn pieces_of_one_range_coalesce(
        pieces in prop::collection::btree_set(1..512usize, 0..CAPACITY - 1)
            .prop_map(|cuts| {
                let bounds: Vec<_> = [0].into_iter().chain(cuts).chain([512]).collect();
                bounds.windows(2).map(|w| (w[0], w[1] - w[0])).collect::<Vec<_>>()
            })
            .prop_shuffle(),
    ) {
        let mut run = Run::new(PLAIN);
        pieces.iter().for_each(|&(page, n)| run.add(0, page, n, false));
        prop_assert_eq!(run.batch.len(), 1);
        run.flush();
        prop_assert_eq!(run.state().issued, 1);
        prop_assert!(run.state().stale.is_empty());
    }
}

/// The type refuses to lose an invalidation.
#[test]
#[should_panic(expected = "dropped without being issued")]
fn an_owed_range_cannot_be_dropped() {
    let mut batch = Ranges::<usize, Hold>::new(0);

    for i in 0..CAPACITY {
        assert!(batch.add(1, 2 * i * PAGE, (2 * i + 1) * PAGE).is_none());
    }
    drop(batch.add(1, 2 * CAPACITY * PAGE, (2 * CAPACITY + 1) * PAGE));
}
