// SPDX-License-Identifier: GPL-2.0

//! The numbers that say whether a deferred flush is still to come: their arithmetic. Who may change
//! them while somebody else is in the middle of a flush is in `migrc_registered.rs`.

use proptest::prelude::*;
use verify::{
    migrc::generation::Generation,
    model::generation::{Op, Run, FLUSHES},
};

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        3 => Just(Op::Defer),
        1 => Just(Op::Turn),
        2 => (0..FLUSHES).prop_map(Op::Begin),
        2 => (0..FLUSHES).prop_map(Op::End),
    ];
    prop::collection::vec(op, 0..60)
}

/// Anywhere, but often where half of a word is nearly full.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..u64::MAX >> 1,
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

    /// It is pending if and only if more was deferred than is covered, and a flush covers all that
    /// was deferred before it began, and no more, however long it takes.
    #[test]
    fn deferrals_count(start in number(), ops in ops()) {
        let mut run = Run::new(start);

        ops.iter().for_each(|op| run.step(op));
    }

    /// What came in between stays pending.
    #[test]
    fn a_deferral_in_between_stays(flushed in number(), pending in 1..1u64 << 40, more in 0..1u64 << 40) {
        let seen = Generation::from_raw(flushed + pending);
        let now = Generation::from_raw(flushed + pending + more);
        let after = seen.cover(flushed).unwrap();

        prop_assert_eq!(now.is_pending(after), more != 0);
        prop_assert_eq!(seen.cover(after), None);
    }
}

#[test]
fn nothing_is_pending_at_first() {
    assert!(!Generation::default().is_pending(0));
    assert_eq!(Generation::default().into_raw(), 0);
}

/// 2^32 deferrals and flushes of others later, all but two are covered. If both numbers were halves
/// of a word, these two would look covered as soon as the flush is over.
#[test]
fn a_flush_that_stalls_covers_what_it_has_seen() {
    let seen = Generation::from_raw(1);
    let (now, flushed) = (Generation::from_raw(1 + (1 << 32)), (1 << 32) - 1);

    assert!(now.is_pending(flushed));
    assert_eq!(seen.cover(flushed), None);
}

#[test]
fn a_full_turn_is_seen() {
    assert!(Generation::from_raw(1 << 32).is_pending(0));
}
