// SPDX-License-Identifier: GPL-2.0

//! The word that says whether a deferred flush is still to come: its arithmetic. Who may change it
//! while somebody else is in the middle of a flush is in `migrc_registered.rs`.

use proptest::prelude::*;
use verify::{
    migrc::generation::Generation,
    model::generation::{word, Op, Run, FLUSHES},
};

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
