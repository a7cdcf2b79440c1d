// SPDX-License-Identifier: GPL-2.0

//! The words of an address space that migrc changes without a lock, and the list that a drain walks
//! without one: `mm/migrc/registered.rs` itself, with the ledger, compiled for loom.

extern crate self as kernel;

mod migrc_kernel;
#[path = "../../mm/migrc/registered.rs"]
mod registered;

use loom::sync::atomic::Ordering::*;
use migrc_kernel::*;
use readmostly::Credit;
use registered::{Drainer, Registered, RegisteredMm};
use std::mem::take;
use verify::migrc::{generation, readmostly};

fn drain_races(what: Broken) {
    run(
        what,
        Start { pages: 2, ..START },
        NOTHING,
        &[
            |migrc| migrc.migrate((0, 0)),
            |migrc| migrc.migrate((0, 1)),
            Migrc::drain,
        ],
        Migrc::end,
    );
}

/// Both find the address space unknown, or the second finds it marked by the first.
#[test]
fn a_drain_meets_the_address_space_of_each_source() {
    drain_races(Broken::Nothing);
}

#[test]
#[should_panic(expected = "released unflushed")]
fn an_address_space_is_registered_before_its_source() {
    drain_races(Broken::Register);
}

#[test]
#[should_panic(expected = "released unflushed")]
fn the_list_is_walked_after_the_sources_were_taken() {
    drain_races(Broken::Walk);
}

#[test]
#[should_panic(expected = "released unflushed")]
fn what_is_taken_after_the_flush_is_not_flushed() {
    drain_races(Broken::Splice);
}

/// The wait is a debt: who takes an address space off the list must not forget it.
#[test]
#[should_panic(expected = "a drain is not waited for")]
fn who_leaves_the_list_waits_for_a_drain() {
    loom::model(|| {
        let migrc = Migrc::new(START);
        let mut list = Registered::new();

        // SAFETY: It is alive, and in the list when it is taken off.
        unsafe {
            list.add(migrc.mms[0]);
            drop(list.remove(migrc.mms[0]));
        }
    });
}

/// One of two comes into the list while a drain walks through it, or both are flushed.
fn two_address_spaces(most: usize) {
    run(
        Broken::Nothing,
        Start {
            mms: 2,
            most,
            ..START
        },
        NOTHING,
        &[
            |migrc| migrc.migrate((0, 0)),
            |migrc| migrc.migrate((1, 0)),
            Migrc::drain,
        ],
        Migrc::end,
    );
}

#[test]
fn a_drain_flushes_each_address_space() {
    two_address_spaces(2);
}

#[test]
fn a_drain_flushes_all_if_these_are_many() {
    two_address_spaces(1);
}

#[test]
fn a_drain_flushes_all_if_it_is_told_to() {
    two_address_spaces(0);
}

/// Any additions and removals, beside a list of what should be there.
#[test]
fn the_list_has_what_was_added_and_not_removed() {
    const MMS: usize = 3;

    loom::model(|| {
        let migrc = Migrc::new(Start { mms: MMS, ..START });

        for sequence in 0..(2 * MMS).pow(7) {
            let mut list = Registered::new();
            let mut expected = Vec::new();
            let ops = (0..7).map(|i| sequence / (2 * MMS).pow(i) % (2 * MMS));

            // At last, all are removed that are there.
            for op in ops.chain(MMS..2 * MMS) {
                let (mm, add) = (migrc.mms[op % MMS], op < MMS);
                let at = expected.iter().position(|&other| other == mm);

                match at {
                    // SAFETY: Alive.
                    _ if add => unsafe { list.add(mm) },
                    // SAFETY: It is there, and nobody walks through it.
                    Some(_) => unsafe { list.remove(mm).wait(|| ()) },
                    None => {}
                }
                match at {
                    None if add => expected.insert(0, mm),
                    Some(at) if !add => {
                        expected.remove(at);
                    }
                    _ => {}
                }
                // SAFETY: Nobody else has the list.
                let drainer = unsafe { Drainer::new() };
                let found = list.iter(&drainer).map(RegisteredMm::as_raw);
                assert!(found.eq(expected.iter().copied()), "{sequence}: {op}");
                // SAFETY: Alive.
                let marked = migrc.mms.iter().filter(|mm| unsafe { (***mm).registered });
                assert_eq!(marked.count(), expected.len());
            }
        }
    });
}

const MIGRATE_BOTH: Thread = |migrc| {
    migrc.migrate((0, 0));
    migrc.migrate((0, 1));
};

/// The word, covered by a drain and by a hook, while one more page is deferred.
fn cover_races(what: Broken) {
    run(
        what,
        Start {
            pages: 2,
            preemptions: Some(3),
            ..START
        },
        NOTHING,
        &[MIGRATE_BOTH, Migrc::drain, |migrc| migrc.hook((0, 0))],
        |migrc| {
            migrc.hook((0, 1));
            migrc.end();
        },
    );
}

#[test]
fn a_drain_and_a_hook_cover_what_they_flushed() {
    cover_races(Broken::Nothing);
}

/// All interleavings with one of them.
fn covers_alone(flush: Thread) {
    run(
        Broken::Nothing,
        Start {
            pages: 2,
            preemptions: None,
            ..START
        },
        NOTHING,
        &[MIGRATE_BOTH, flush],
        |migrc| {
            migrc.hook((0, 1));
            migrc.end();
        },
    );
}

#[test]
fn a_drain_covers_what_it_flushed() {
    covers_alone(Migrc::drain);
}

#[test]
fn a_hook_covers_what_it_flushed() {
    covers_alone(|migrc| migrc.hook((0, 0)));
}

#[test]
#[should_panic(expected = "flushed")]
fn a_store_covers_too_much() {
    cover_races(Broken::Exchange);
}

#[test]
#[should_panic(expected = "flushed")]
fn a_cpu_that_finds_it_covered_sees_the_flush() {
    cover_races(Broken::Order);
}

/// Who invalidates after having seen the deferral need not invalidate what the clear was to.
#[test]
#[should_panic(expected = "flushed")]
fn a_cpu_that_sees_the_deferral_sees_the_clear() {
    cover_races(Broken::Clear);
}

/// One exits, and the drain is for the other as well, which was there before.
fn exit_races(what: Broken) {
    run(
        what,
        Start {
            mms: 2,
            preemptions: None,
            ..START
        },
        |migrc| migrc.migrate((1, 0)),
        &[
            |migrc| {
                migrc.migrate((0, 0));
                migrc.exit(0);
            },
            Migrc::drain,
        ],
        Migrc::end,
    );
}

#[test]
fn an_exit_waits_for_a_drain() {
    exit_races(Broken::Nothing);
}

#[test]
#[should_panic(expected = "flushed after its exit")]
fn a_drain_keeps_address_spaces_from_their_exit() {
    exit_races(Broken::Exit);
}

/// Two that follow each other exit, and the drain is for the one behind them.
fn exits_race(what: Broken) {
    run(
        what,
        Start {
            mms: 3,
            preemptions: Some(3),
            ..START
        },
        |migrc| (0..3).rev().for_each(|mm| migrc.migrate((mm, 0))),
        &[|migrc| migrc.exit(0), |migrc| migrc.exit(1), Migrc::drain],
        Migrc::end,
    );
}

#[test]
fn a_drain_finds_the_way_back() {
    exits_race(Broken::Nothing);
}

#[test]
#[should_panic(expected = "uncovered")]
fn what_has_left_the_list_leads_back() {
    exits_race(Broken::Back);
}

/// There is credit for one page, and one more is earned: whoever asks, the sum is right.
fn credit_races(what: Broken) {
    let one = Credit::from_raw((Credit::START - 1) * Credit::PAGE);

    fn offer(migrc: &Migrc) {
        let protect = migrc.registered(0).update_credit(Credit::offer);

        migrc.offers.lock().unwrap().push(protect);
    }
    run(
        what,
        Start {
            credit: one,
            ..START
        },
        NOTHING,
        &[offer, offer, |migrc| {
            let mm = migrc.registered(0);

            // Who only asks leaves it as it is.
            mm.update_credit(|credit| (!credit.is_spent(), credit));
            mm.update_credit(|credit| ((), credit.hit()))
        }],
        |migrc| {
            let offers = take(&mut *migrc.offers.lock().unwrap());
            let protected = offers.iter().filter(|&&protect| protect).count() as i64;
            let spared = offers.len() as i64 - protected;
            let spent = (Credit::START - 2 + protected) * Credit::PAGE - spared;

            assert!(protected >= 1, "credit that nobody had");
            let word = migrc.mm(0).readmostly.load(Relaxed);
            assert_eq!(word, spent, "credit is lost");
        },
    );
}

#[test]
fn credit_is_spent_once() {
    credit_races(Broken::Nothing);
}

#[test]
#[should_panic(expected = "credit is lost")]
fn credit_that_is_stored_is_lost() {
    credit_races(Broken::Exchange);
}
