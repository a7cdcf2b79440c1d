// SPDX-License-Identifier: GPL-2.0

//! Windows, attempts and rests of HVO under any input.

use proptest::prelude::*;
use verify::{
    hvo::plan::{
        next_window, rest_us, timeout_us, Attempts, Backoff, Budget, Cost, Found, Miss, Step,
        Streak, Window, Work,
    },
    model::plan::{check_attempts, check_rest, check_windows},
};

const MISSES: [Miss; 3] = [Miss::Cancelled, Miss::Hotplug, Miss::Locked];

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

/// As they may be set: a few, or about as many as misses are waited for.
fn retries() -> impl Strategy<Value = u32> {
    prop_oneof![0..20u32, 490..510u32, 990..=1000u32]
}

fn budgets() -> impl Strategy<Value = Budget> {
    (0..5000u32, 0..100_000u64).prop_map(|(entries, ns)| Budget { entries, ns })
}

proptest! {
    #[test]
    fn windows_cover_the_plan(runs in works(), budget in budgets(), ns in 1..10_000_000u64) {
        let cost = Cost::INITIAL.learn(Work { entries: 512, copies: 1 }, ns);

        check_windows(&runs, budget, Cost::INITIAL);
        check_windows(&runs, budget, cost);
    }

    /// Whatever was measured, an estimate is positive and grows with the work.
    #[test]
    fn cost_is_sane(ns in prop::collection::vec(any::<u64>(), 0..50), entries in 0..1_000_000u32) {
        let cost = ns.iter().fold(Cost::INITIAL, |cost, ns| {
            cost.learn(Work { entries: 512, copies: 8 }, *ns)
        });
        prop_assert_eq!(Cost::from_raw(cost.into_raw()), cost);
        let less = cost.of(Work { entries, copies: 1 });
        let more = cost.of(Work { entries: entries + 1000, copies: 1 });

        prop_assert!(less > 0 && more > less);
    }

    /// Even if time stands still.
    #[test]
    fn cost_is_never_nothing(pauses in 0..200usize, entries: u32) {
        let work = Work { entries, copies: 0 };
        let cost = (0..pauses).fold(Cost::INITIAL, |cost, _| cost.learn(work, 0));

        prop_assert!(cost.into_raw() > 0);
    }

    /// Work that always takes the same time is soon expected to.
    #[test]
    fn cost_converges(ns in 10_000..1_000_000u64) {
        let work = Work { entries: 4096, copies: 1 };
        let cost = (0..60).fold(Cost::INITIAL, |cost, _| cost.learn(work, ns));
        let expected = cost.of(work);

        prop_assert!(expected.abs_diff(ns) * 10 < ns, "{expected} for {ns}");
    }

    /// Every mixed sequence of misses ends.
    #[test]
    fn attempts_end(misses in prop::collection::vec(0..3usize, 9000), retries in retries(),
                    mandatory: bool) {
        let misses = misses.iter().map(|miss| MISSES[*miss]);

        prop_assert!(check_attempts(misses, retries, mandatory));
    }

    /// Each kind is counted by itself.
    #[test]
    fn misses_of_one_kind_in_a_row(runs in prop::collection::vec((0..3usize, 1..40usize), 1..20),
                                   retries in retries(), mandatory: bool) {
        let misses = runs.iter().flat_map(|&(miss, times)| [MISSES[miss]].repeat(times));

        check_attempts(misses, retries, mandatory);
    }

    /// Whenever CPUs are late, no more pauses are cancelled than one set of attempts has, and each
    /// window is opened.
    #[test]
    fn freezes_are_bounded(late in prop::collection::vec(any::<bool>(), 1..400),
                           windows in 1..600u32, retries in retries()) {
        let is_late = |nth: u32| late[nth as usize % late.len()];
        let [cancelled, paused, stopped] =
            operation(&mut Attempts::default(), windows, retries, is_late);

        prop_assert!(cancelled <= retries + 1);
        prop_assert_eq!(paused + stopped, windows);
        prop_assert!(stopped == 0 || cancelled == retries + 1);
    }

    /// Stopped for no more than the percentage.
    #[test]
    fn rests(paused in 0..10_000_000u64, since in 0..100_000_000u64, percent in 1..=100u32) {
        check_rest(paused, since, percent);
    }
}

/// No percentage would be no progress, and all of it no rest.
/// As C had it: 5 times as long with pseudo-NMIs, 10 times as long in a guest.
#[test]
fn timeouts_without_a_wish() {
    for pseudo_nmi in [false, true] {
        for guest in [false, true] {
            let us = if pseudo_nmi { 1000 } else { 200 };
            let us = if guest { 10 * us } else { us };

            assert_eq!(timeout_us(0, pseudo_nmi, guest), us);
            for asked in [1, us, 1_000_000] {
                assert_eq!(timeout_us(asked, pseudo_nmi, guest), asked);
            }
        }
    }
}

#[test]
fn percentages_have_limits() {
    assert_eq!(rest_us(1_000_000, 0, 0), rest_us(1_000_000, 0, 1));
    assert_eq!(rest_us(1_000_000, 0, 100), 0);
    assert_eq!(rest_us(1_000_000, 0, u32::MAX), 0);
}

/// What is cancelled is done by stopping threads, however often that has to be tried.
#[test]
fn attempts_of_one_kind_end() {
    for miss in MISSES {
        let retries = (0..20).chain(990..=1_000);

        for (retries, mandatory) in retries.flat_map(|n| [(n, false), (n, true)]) {
            let ended = check_attempts([miss].repeat(1_001).into_iter(), retries, mandatory);

            assert_eq!(ended, miss != Miss::Cancelled, "{miss:?}");
        }
    }
}

/// A CPU that stays half-way prevents nothing, even with the most retries.
#[test]
fn a_cpu_half_way_is_stopped_in_a_thread() {
    for retries in [0, 8, 499, 500, 998, 999, 1_000] {
        for mandatory in [false, true] {
            let mut attempts = Attempts::default();
            let first = (1..).find(
                |_| match attempts.after(Miss::Hotplug, retries, mandatory) {
                    Step::StopMachine => true,
                    step => {
                        assert_eq!(step, Step::Again(1_000), "{retries} retries");
                        false
                    }
                },
            );

            assert_eq!(first, Some(retries.min(500) + 1));
        }
    }
}

/// What an operation of so many windows costs: the pauses that are cancelled, those that are not,
/// and the windows for which threads are stopped. `is_late`: of each pause in turn.
fn operation(
    attempts: &mut Attempts,
    windows: u32,
    retries: u32,
    mut is_late: impl FnMut(u32) -> bool,
) -> [u32; 3] {
    let [mut cancelled, mut paused, mut stopped] = [0; 3];

    for _ in 0..windows {
        loop {
            if attempts.stops() {
                stopped += 1;
                break;
            }
            if !is_late(cancelled + paused) {
                paused += 1;
                break;
            }
            cancelled += 1;
            assert_ne!(attempts.after(Miss::Cancelled, retries, true), Step::GiveUp);
        }
        attempts.end_window();
    }
    [cancelled, paused, stopped]
}

/// A CPU that is late now and then freezes the others for one set of attempts, however many windows
/// there are. Then threads are stopped.
#[test]
fn an_operation_has_one_set_of_attempts() {
    let of = |retries, late: fn(u32) -> bool| {
        let mut attempts = Attempts::default();
        let costs = operation(&mut attempts, 600, retries, late);

        assert_eq!(attempts.are_used_up(), costs[2] > 0);
        costs
    };

    assert_eq!(of(8, |_| true), [9, 0, 600]);
    assert_eq!(of(8, |_| false), [0, 600, 0]);
    // For each window, once: one set for each would be 600 of these.
    assert_eq!(of(8, |nth| nth % 2 == 0), [9, 8, 592]);
    assert_eq!(of(8, |nth| nth % 100 == 0), [7, 600, 0]);
    assert_eq!(of(0, |nth| nth == 300), [1, 300, 300]);
}

/// An operation of several batches is one.
#[test]
fn the_next_batch_has_what_is_left() {
    let mut attempts = Attempts::default();

    assert_eq!(
        operation(&mut attempts, 4, 8, |nth| nth % 2 == 0),
        [4, 4, 0]
    );
    assert_eq!(
        operation(&mut attempts, 4, 8, |nth| nth % 2 == 0),
        [4, 4, 0]
    );
    assert_eq!(
        operation(&mut attempts, 4, 8, |nth| nth % 2 == 0),
        [1, 0, 4]
    );
    assert_eq!(operation(&mut attempts, 4, 8, |_| false), [0, 0, 4]);
}

/// Who holds the lock that stopping threads needs may wait for this window. The next one begins
/// with threads again.
#[test]
fn a_pause_follows_on_a_lock() {
    let mut attempts = Attempts::default();

    operation(&mut attempts, 1, 0, |_| true);
    for _ in 0..3 {
        assert!(attempts.stops());
        assert_eq!(attempts.after(Miss::Locked, 0, true), Step::Again(1_000));
        assert!(!attempts.stops());
        // In time, this time.
        attempts.end_window();
    }
    // Late again: that is no further set.
    attempts.after(Miss::Locked, 8, true);
    assert_eq!(attempts.after(Miss::Cancelled, 8, true), Step::StopMachine);
    assert!(attempts.stops());
}

/// What a user prefers is no miss: where the lock is not free, pauses have all their attempts.
#[test]
fn threads_can_be_preferred() {
    let mut attempts = Attempts::default();

    attempts.prefer_threads();
    assert!(attempts.stops() && !attempts.are_used_up());
    assert_eq!(attempts.after(Miss::Locked, 8, true), Step::Again(1_000));
    assert_eq!(operation(&mut attempts, 10, 8, |_| true), [9, 0, 10]);
}

/// CPU hotplug that goes on and on gets in the way of each window, and of none for too long.
#[test]
fn each_window_waits_for_hotplug() {
    let mut attempts = Attempts::default();

    for _ in 0..10 {
        for _ in 0..999 {
            assert_ne!(attempts.after(Miss::Locked, 8, true), Step::GiveUp);
        }
        attempts.end_window();
    }
    assert!(!attempts.are_used_up());
    // A CPU half-way is still there for the next window, and the lock is free.
    for _ in 0..9 {
        attempts.after(Miss::Hotplug, 8, true);
    }
    assert!(attempts.stops());
    attempts.end_window();
    assert!(attempts.stops());
}

/// The same in plain words, for two retries.
#[test]
fn attempts_step_by_step() {
    use Step::{Again, GiveUp, StopMachine};

    let first = |miss, mandatory| {
        let mut attempts = Attempts::default();

        [(); 3].map(|()| attempts.after(miss, 2, mandatory))
    };
    let cancelled = |last| [Again(100), Again(200), last];
    let other = |last| [Again(1_000), Again(1_000), last];

    for mandatory in [false, true] {
        assert_eq!(first(Miss::Cancelled, mandatory), cancelled(StopMachine));
        assert_eq!(first(Miss::Hotplug, mandatory), other(StopMachine));
    }
    assert_eq!(first(Miss::Locked, false), other(GiveUp));
    assert_eq!(first(Miss::Locked, true), other(Again(1_000)));

    for miss in [Miss::Hotplug, Miss::Locked] {
        let mut attempts = Attempts::default();

        assert!((1..1_000).all(|_| attempts.after(miss, 2, true) != GiveUp));
        assert_eq!(attempts.after(miss, 2, true), GiveUp);
    }
}

/// Where no pause comes about, plans soon try one each; the number that is stored does not wrap.
#[test]
fn retries_are_halved() {
    let plans = |n| (0..n).fold(Streak::default(), |streak, _| streak.missed());

    assert_eq!(
        [0, 1, 2, 3, 4].map(|n| plans(n).retries(Miss::Cancelled, 8)),
        [8, 4, 2, 1, 0]
    );
    for asked in [0, 1, 8, 1_000] {
        assert_eq!(plans(0).retries(Miss::Cancelled, asked), asked);
        assert_eq!(plans(10).retries(Miss::Cancelled, asked), 0);
        for last in [31, 32, u32::MAX - 1, u32::MAX] {
            let streak = Streak::from_raw(last);

            assert_eq!(streak.retries(Miss::Cancelled, asked), 0);
            // Else a pool would give up on the first look at a lock that hotplug has for a moment.
            for other in [Miss::Hotplug, Miss::Locked] {
                assert_eq!(streak.retries(other, asked), asked);
            }
            assert!(streak.missed().into_raw() >= last);
        }
    }
}

/// What is expected before anything was measured, and how far one pause changes that: an eighth.
#[test]
fn cost_is_an_average() {
    let pages = |entries, copies| Cost::INITIAL.of(Work { entries, copies });
    let none = Work::default();
    let after = |ns| Cost::INITIAL.learn(none, ns).of(none);

    assert_eq!(
        [pages(0, 0), pages(1, 0), pages(0, 1)],
        [2_000, 2_003, 2_250]
    );
    assert_eq!(after(2_000), 2_000);
    assert_eq!(after(4_000), 2_250);
    assert_eq!(after(18_000), 4_000);
    assert_eq!(after(0), 1_750);
    // However long it took: a second, and 1024 times as long as was thought first.
    assert_eq!(after(u64::MAX), after(1_000_000_000));
    assert_eq!(after(u64::MAX), 2_000 * 1_024);
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

/// The worker tries at least three times in the minute after a pool has changed, whatever it found
/// before, and less and less often.
#[test]
fn the_worker_comes_in_time() {
    for tries in 0..100 {
        let mut backoff = Backoff::from_raw(tries);
        let (mut at, mut last, mut times) = (0, 0, 0);

        loop {
            let (next, seconds) = backoff.after(Found::Later, 1);

            assert!(seconds >= last && seconds > 0);
            (backoff, last, at) = (next, seconds, at + seconds);
            if at > 60 {
                break;
            }
            times += 1;
        }
        assert!(times >= 3, "{times} tries after {tries}");
    }
}

/// What other CPUs use all the time is given several chances before these are stopped for it.
#[test]
fn the_worker_insists_in_the_end() {
    let mut backoff = Backoff::default();

    for _ in 0..3 {
        assert!(!backoff.insists());
        (backoff, _) = backoff.after(Found::Later, 1);
    }
    assert!(backoff.insists());
    (backoff, _) = backoff.after(Found::Nothing, 1);
    assert!(!backoff.insists());
}

/// It stops once there is nothing left to do, or if a user has turned it off, and begins anew.
#[test]
fn the_worker_stops() {
    for tries in [0, 1, 5, u32::MAX] {
        let backoff = Backoff::from_raw(tries);

        assert_eq!(backoff.after(Found::Nothing, 1), (Backoff::default(), 0));
        assert_eq!(backoff.after(Found::Later, 0), (Backoff::default(), 0));
        assert_eq!(Backoff::from_raw(backoff.into_raw()), backoff);
    }
    assert_eq!(Backoff::default().after(Found::Later, 1).1, 1);
    // What a user has asked for is not cut short.
    assert_eq!(Backoff::default().after(Found::Later, 3600).1, 3600);
    assert_eq!(
        Backoff::from_raw(3).after(Found::Later, u32::MAX).1,
        u32::MAX
    );
}

#[test]
fn one_pool_is_enough_to_come_again() {
    let both = [Found::Nothing, Found::Later];

    for one in both {
        for other in both {
            let later = one == Found::Later || other == Found::Later;

            assert_eq!(one.or(other) == Found::Later, later);
        }
    }
}
