// SPDX-License-Identifier: GPL-2.0

//! Windows, attempts and rests of HVO under any input.

use proptest::prelude::*;
use verify::hvo::plan::{next_window, rest_us, Attempts, Budget, Cost, Miss, Step, Window, Work};

fn works() -> impl Strategy<Value = Vec<(Work, bool)>> {
    prop::collection::vec(
        (1..=512u32, 0..=1u32, prop::bool::weighted(0.3))
            .prop_map(|(entries, copies, last)| (Work { entries, copies }, last)),
        1..200,
    )
    .prop_map(|mut runs| {
        runs.last_mut().unwrap().1 = true;
        runs
    })
}

fn budgets() -> impl Strategy<Value = Budget> {
    (0..5000u32, 0..100_000u64).prop_map(|(entries, ns)| Budget { entries, ns })
}

fn sum(runs: &[(Work, bool)]) -> Work {
    runs.iter().fold(Work::NONE, |sum, run| sum.plus(run.0))
}

fn allows(budget: Budget, cost: Cost, work: Work) -> bool {
    work.entries <= budget.entries && cost.of(work) <= budget.ns
}

proptest! {
    /// All runs are in exactly one window, in their order, and each window keeps the budget
    /// unless it is a single run.
    #[test]
    fn windows_cover_the_plan(runs in works(), budget in budgets(), ns in 1..10_000_000u64) {
        let cost = Cost::INITIAL.learn(Work { entries: 512, copies: 1 }, ns);
        let mut at = 0;

        while at < runs.len() {
            let window = next_window(runs[at..].iter().copied(), cost, budget);
            let taken = &runs[at..at + window.runs];

            prop_assert!(window.runs > 0);
            prop_assert_eq!(window.work, sum(taken));
            prop_assert_eq!(window.whole, taken.last().unwrap().1);
            prop_assert!(window.runs == 1 || allows(budget, cost, window.work));
            // A unit is cut only if nothing else is in the window.
            if !window.whole {
                prop_assert!(taken.iter().all(|run| !run.1));
            }
            at += window.runs;
        }
    }

    /// There is no room for one more unit.
    #[test]
    fn windows_are_full(runs in works(), budget in budgets()) {
        let window = next_window(runs.iter().copied(), Cost::INITIAL, budget);

        if window.whole && window.runs < runs.len() {
            let rest = &runs[window.runs..];
            let next = rest.iter().position(|run| run.1).unwrap() + 1;
            prop_assert!(!allows(budget, Cost::INITIAL, window.work.plus(sum(&rest[..next]))));
        }
    }

    /// Whatever was measured, an estimate is positive and grows with the work.
    #[test]
    fn cost_is_sane(ns in prop::collection::vec(any::<u64>(), 0..50), entries in 0..1_000_000u32) {
        let cost = ns.iter().fold(Cost::INITIAL, |cost, ns| {
            cost.learn(Work { entries: 512, copies: 8 }, *ns)
        });
        let less = cost.of(Work { entries, copies: 1 });
        let more = cost.of(Work { entries: entries + 1000, copies: 1 });

        prop_assert!(less > 0 && more > less);
    }

    /// Work that always takes the same time is soon expected to.
    #[test]
    fn cost_converges(ns in 10_000..1_000_000u64) {
        let work = Work { entries: 4096, copies: 1 };
        let cost = (0..60).fold(Cost::INITIAL, |cost, _| cost.learn(work, ns));
        let expected = cost.of(work);

        prop_assert!(expected.abs_diff(ns) * 10 < ns, "{expected} for {ns}");
    }

    /// Every sequence of misses ends; what is mandatory is given up only for hotplug.
    #[test]
    fn attempts_end(misses in prop::collection::vec(0..3u8, 3000), retries in 0..20u32,
                    mandatory: bool) {
        let mut attempts = Attempts::default();
        let mut waited = 0;
        let mut cancelled = 0;
        let mut other = 0;
        let mut end = None;

        for miss in misses {
            let miss = [Miss::Cancelled, Miss::Hotplug, Miss::Locked][miss as usize];
            cancelled += u32::from(miss == Miss::Cancelled);
            match attempts.after(miss, retries, mandatory) {
                Step::Again(us) => waited += us,
                Step::StopMachine => {
                    other += u32::from(miss == Miss::Hotplug);
                    prop_assert!(mandatory && (cancelled > retries || other > 0));
                }
                Step::GiveUp => {
                    prop_assert!(!mandatory || miss != Miss::Cancelled);
                    end = Some(());
                    break;
                }
            }
        }
        prop_assert!(end.is_some());
        prop_assert!(waited <= 1_200_000, "{waited} us");
    }

    /// Stopped for no more than the percentage.
    #[test]
    fn rests(paused in 0..10_000_000u64, since in 0..100_000_000u64, percent in 1..=100u32) {
        let us = rest_us(paused, since, percent);
        let ran = since + us * 1_000 + 1_000;

        prop_assert!(paused * (100 - u64::from(percent)) <= ran * u64::from(percent));
        if paused * (100 - u64::from(percent)) <= since * u64::from(percent) {
            prop_assert_eq!(us, 0);
        }
    }
}

#[test]
fn a_gigantic_folio_is_one_window() {
    // 4 KiB pages: 8 page tables of 512 entries, the first one of which is its head.
    let mut runs = vec![
        (
            Work {
                entries: 1,
                copies: 1,
            },
            false,
        ),
        (
            Work {
                entries: 511,
                copies: 0,
            },
            false,
        ),
    ];
    runs.extend(
        [(
            Work {
                entries: 512,
                copies: 0,
            },
            false,
        ); 6],
    );
    runs.push((
        Work {
            entries: 512,
            copies: 0,
        },
        true,
    ));
    let two: Vec<_> = runs.iter().chain(&runs).copied().collect();
    let budget = Budget {
        entries: 4096,
        ns: 40_000,
    };

    assert_eq!(
        next_window(two.into_iter(), Cost::INITIAL, budget),
        Window {
            runs: 9,
            whole: true,
            work: Work {
                entries: 4096,
                copies: 1
            }
        }
    );
}
