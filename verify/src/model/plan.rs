// SPDX-License-Identifier: GPL-2.0

//! What is to be true of windows, attempts and rests, whatever they are asked.

use crate::hvo::plan::{next_window, rest_us, Attempts, Budget, Cost, Miss, Step, Work};

pub fn sum(runs: &[(Work, bool)]) -> Work {
    runs.iter().fold(Work::NONE, |sum, run| sum.plus(run.0))
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

        let next = runs[at..].iter().position(|run| run.1);
        if let (true, Some(next)) = (window.whole, next) {
            let more = window.work.plus(sum(&runs[at..=at + next]));
            assert!(!allows(budget, cost, more), "room for {next} runs more");
        }
    }
}

/// What is mandatory is given up only for hotplug, and nobody waits for long. Returns whether the
/// sequence of misses came to an end.
pub fn check_attempts(misses: impl Iterator<Item = Miss>, retries: u32, mandatory: bool) -> bool {
    let mut attempts = Attempts::default();
    let (mut waited, mut cancelled, mut others) = (0, 0, 0);

    for miss in misses {
        cancelled += u32::from(miss == Miss::Cancelled);
        others += u32::from(miss != Miss::Cancelled);
        match attempts.after(miss, retries, mandatory) {
            Step::Again(us) => waited += us,
            Step::StopMachine => assert!(mandatory && cancelled.max(others) > retries),
            Step::GiveUp => {
                assert!(!mandatory || miss != Miss::Cancelled);
                return true;
            }
        }
        assert!(waited <= 1_200_000, "{waited} us");
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
