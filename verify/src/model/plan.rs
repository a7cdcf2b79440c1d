// SPDX-License-Identifier: GPL-2.0

//! What is to be true of windows, attempts and rests, whatever they are asked.

use crate::hvo::plan::{next_window, rest_us, Attempts, Budget, Cost, Miss, Step, Work};

pub fn sum(runs: &[(Work, bool)]) -> Work {
    runs.iter()
        .fold(Work::default(), |sum, run| sum.plus(run.0))
}

pub fn allows(budget: Budget, cost: Cost, work: Work) -> bool {
    work.entries <= budget.entries && cost.of(work) <= budget.ns
}

/// All runs are in exactly one window, in their order, and each window keeps the budget unless it is
/// a single run. There is no room for one more unit.
pub fn check_windows(runs: &[(Work, bool)], budget: Budget, cost: Cost) {
    let mut at = 0;

    while at < runs.len() {
        let window = next_window(runs[at..].iter().copied(), cost, budget);
        let taken = &runs[at..at + window.runs];

        assert!(window.runs > 0);
        assert_eq!(window.work, sum(taken));
        assert_eq!(window.whole, taken[window.runs - 1].1);
        assert!(window.runs == 1 || allows(budget, cost, window.work));
        // A unit is cut only if nothing else is in the window.
        if !window.whole {
            assert!(taken.iter().all(|run| !run.1));
        }
        at += window.runs;
        // And only where it has to be.
        if !window.whole && at < runs.len() {
            assert!(
                !allows(budget, cost, window.work.plus(runs[at].0)),
                "room for a run more"
            );
        }

        let next = runs[at..].iter().position(|run| run.1);
        if let (true, Some(next)) = (window.whole, next) {
            let more = window.work.plus(sum(&runs[at..=at + next]));
            assert!(!allows(budget, cost, more), "room for {next} runs more");
        }
    }
}

/// In microseconds, and then always the last one.
const BACKOFF: [u64; 7] = [100, 200, 400, 800, 1_600, 3_200, 6_400];

/// What follows on the `nth` miss of its kind, of which hotplug and a lock are one.
pub fn step(miss: Miss, nth: u32, retries: u32, mandatory: bool) -> Step {
    // Stopping threads is tried, however many retries were asked for.
    let retries = match miss {
        Miss::Cancelled => retries,
        Miss::Hotplug | Miss::Locked => retries.min(500),
    };

    match (miss, nth > retries, mandatory) {
        // Nobody waits for longer than a second.
        (Miss::Hotplug | Miss::Locked, ..) if nth >= 1_000 => Step::GiveUp,
        (Miss::Locked, true, false) => Step::GiveUp,
        (Miss::Cancelled | Miss::Hotplug, true, _) => Step::StopMachine,
        (Miss::Cancelled, false, _) => Step::Again(BACKOFF[(nth as usize - 1).min(6)]),
        (Miss::Hotplug, false, _) | (Miss::Locked, ..) => Step::Again(1_000),
    }
}

/// Each miss leads to what it should. Returns whether the last one that was looked at ended it.
pub fn check_attempts(misses: impl Iterator<Item = Miss>, retries: u32, mandatory: bool) -> bool {
    let mut attempts = Attempts::default();
    let (mut cancelled, mut others) = (0, 0);

    for miss in misses {
        let nth = if miss == Miss::Cancelled {
            &mut cancelled
        } else {
            &mut others
        };
        *nth += 1;
        let expected = step(miss, *nth, retries, mandatory);

        assert_eq!(
            attempts.after(miss, retries, mandatory),
            expected,
            "{miss:?}, the {nth}th, {retries} retries, mandatory: {mandatory}"
        );
        if expected == Step::GiveUp {
            return true;
        }
    }
    false
}

/// Stopped for no more than the percentage.
pub fn check_rest(paused: u64, since: u64, percent: u32) {
    let us = rest_us(paused, since, percent);
    let ran = since + us * 1_000 + 1_000;
    let percent = u64::from(percent);

    assert!(paused * (100 - percent) <= ran * percent);
    if paused * (100 - percent) <= since * percent {
        assert_eq!(us, 0);
    }
}
