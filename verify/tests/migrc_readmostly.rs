// SPDX-License-Identifier: GPL-2.0

//! When pages that are not written to lose write permission, and when that ends.

use proptest::prelude::*;
use verify::{
    migrc::readmostly::Credit,
    model::readmostly::{Mm, Page},
};

#[test]
fn what_nobody_writes_to_is_deferred_from_the_third_move_on() {
    let mut pages = vec![Page::Dirty; Credit::START as usize];
    let mut mm = Mm::default();

    mm.pass(&mut pages, |_| false);
    mm.pass(&mut pages, |_| false);
    assert_eq!((mm.protected, mm.hits), (Credit::START, 0));
    mm.pass(&mut pages, |_| false);
    assert_eq!((mm.protected, mm.hits), (Credit::START, Credit::START));
}

/// What is larger than the credit: twice as much in each pass.
#[test]
fn a_large_table_takes_a_few_more_moves() {
    let mut pages = vec![Page::Dirty; 64 * Credit::START as usize];
    let mut mm = Mm::default();

    for _ in 0..9 {
        mm.pass(&mut pages, |_| false);
    }
    assert_eq!(mm.protected as usize, pages.len());
}

/// Of any size: a page that is written to after every third move is left alone, nearly always.
#[test]
fn what_is_written_to_again_is_left_alone() {
    for size in [64, 1024, 16 * 1024, 256 * 1024] {
        let mut pages = vec![Page::Dirty; size];
        let mut mm = Mm::default();
        let cycles = 30 * 256 * 1024 / size.max(1024);

        for _ in 0..cycles {
            mm.pass(&mut pages, |_| true);
            mm.pass(&mut pages, |_| false);
            mm.pass(&mut pages, |_| false);
        }
        let moves = 3 * (cycles * size) as i64;

        // Half of those that are moved the third time are hits.
        assert!(
            mm.misses <= Credit::START + moves / 64,
            "{size}: {} misses",
            mm.misses
        );
    }
}

/// The region that is read pays for the one that is written to.
#[test]
fn a_table_is_not_disturbed_by_its_neighbour() {
    let mut pages = vec![Page::Dirty; 4096];
    let mut mm = Mm::default();

    for n in 0..300 {
        mm.pass(&mut pages, |page| page < 512 && n % 3 == 0);
    }
    assert!(pages[512..].iter().all(|p| *p == Page::Protected));
    assert!(mm.misses <= mm.hits);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        ..Default::default()
    })]

    /// Any order, also of faults that are none of its pages: what it costs is bounded, the word
    /// stays in its range, and it is tried again in the end.
    #[test]
    fn bounded(ops in prop::collection::vec((0..3, 1..6000u32), 0..20)) {
        let mut mm = Mm::default();

        for (what, times) in ops {
            for _ in 0..times {
                match what {
                    0 => drop(mm.offer()),
                    1 => mm.hit(),
                    _ => mm.miss(),
                }
            }
            mm.check();
        }
        prop_assert!((0..=Credit::DEBT * Credit::PAGE + 1).any(|_| mm.offer()));
    }
}

proptest! {
    // Each takes a million steps.
    #![proptest_config(ProptestConfig {
        cases: 16,
        failure_persistence: None,
        ..Default::default()
    })]

    /// What has been saved is not more than it says, whatever was deferred.
    #[test]
    fn savings_are_limited(more in 0..1000i64) {
        let mut mm = Mm::default();

        for _ in 0..Credit::MOST + more {
            mm.hit();
        }
        let mut protected = 0;
        while mm.offer() {
            protected += 1;
        }
        prop_assert_eq!(protected, Credit::MOST);
    }
}
