// SPDX-License-Identifier: GPL-2.0

//! Changes while all other CPUs are paused, or, if they are too late for that, stopped in threads.

use super::{
    af::is_complete,
    batch::{
        Outcome,
        Progress,
        Ways,
        Why, //
    },
    batches,
    c::{
        self,
        Params,
        Reason,
        Run, //
    },
    live::Live,
    plan::{
        next_window,
        rest_us,
        timeout_us,
        Attempts,
        Budget,
        Cost,
        Miss,
        Step,
        Streak,
        Work, //
    },
    ENTRIES, //
};
use kernel::{
    bindings,
    mm::pause::{
        with_paused,
        with_stopped,
        Pause,
        Window, //
    },
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        global_lock,
        lock::GlobalGuard, //
    },
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    }, //
};

/// What pauses took so far, see [`Cost::into_raw`].
static COST: Atomic<u64> = Atomic::new(Cost::INITIAL.into_raw());
/// Of batches without a pause, see [`Streak::into_raw`].
static STREAK: Atomic<u32> = Atomic::new(0);

/// The last time that the other CPUs did not run.
pub(super) struct Stop {
    ended: Option<Instant<Monotonic>>,
    ns: u64,
}

global_lock! {
    // SAFETY: `hvo_rust_init()` initialises it, before there are HugeTLB pools.
    pub(super) unsafe(uninit) static TURN: Mutex<Stop> = Stop { ended: None, ns: 0 };
}

/// The right to stop the other CPUs, which one task at a time has: of several, each would wait for
/// the end of the same rest. Not the mutex of `arm64_pause_cpus()`, which CPU hotplug takes.
struct Turn(GlobalGuard<TURN>);

impl Turn {
    /// Waits for all tasks that came earlier to stop the CPUs, and until the CPUs have run for
    /// long enough since: `duty_pct` is the share of the time that they may be stopped for.
    fn begin(duty_pct: u32) -> Self {
        let stop = TURN.lock();
        // rule: hvo/duty: the other CPUs run for their share of the time before the next pause
        let us = stop.ended.map_or(0, |ended| {
            rest_us(stop.ns, ended.elapsed().as_nanos().max(0) as u64, duty_pct)
        });

        if us > 0 {
            fsleep(Delta::from_micros(us as i64));
        }
        Self(stop)
    }

    /// Ends it with a pause, or an attempt.
    fn end(mut self, pause: &Pause) {
        self.0.ns = pause.ack_ns.saturating_add(pause.paused_ns);
        self.0.ended = Some(Instant::now());
    }
}

/// Entries that one pause changes at most, if not a single run has more.
const MOST_IN_PAUSE: u32 = 4096;

fn work_of(run: &Run) -> Work {
    Work {
        entries: run.nr,
        copies: u32::from(!run.copy_to.is_null()) * (PAGE_SIZE / 4096) as u32,
    }
}

/// Changes entries while no other CPU runs.
pub(super) struct Fallback<'a> {
    /// What changes.
    pub(super) reason: Reason,
    /// What a user has asked for.
    pub(super) params: Params,
    /// Whether the caller has no use for an error.
    pub(super) mandatory: bool,
    /// Of the operation that this is a part of.
    pub(super) attempts: &'a mut Attempts,
}

/// What is left of the first unit of some, and the units after it that were not begun.
fn rest_of<'r>(
    runs: &'r [Run],
    last: &'r [bool],
    progress: &'r [Progress],
) -> impl Iterator<Item = (Work, bool)> + 'r {
    let mut unit = 0;

    runs.iter().zip(last).map_while(move |(run, last)| {
        if unit > 0 && progress.get(unit) != Some(&Progress::Waiting) {
            return None;
        }
        unit += usize::from(*last);
        Some((work_of(run), *last))
    })
}

// SAFETY: A unit has changed once all its windows were applied, and one that was begun is finished.
unsafe impl Ways<Run> for Fallback<'_> {
    /// Once CPUs did not stop in time, threads are stopped for the rest of the operation, in
    /// windows that only `max_entries` limits: stopping threads takes longer than what is done
    /// then.
    ///
    /// Another way may have been tried before.
    unsafe fn change(&mut self, runs: &[Run], last: &[bool], progress: &mut [Progress]) {
        let never_pauses = cfg!(CONFIG_PREEMPT_RT);
        let streak = Streak::from_raw(STREAK.load(Relaxed));
        let mut unit = 0;
        let mut at = 0;
        // SAFETY: By the safety requirements; `af` uses no other index.
        let entries = unsafe { Live::new(self.reason) };

        if self.params.strategy == bindings::hvo_strategy_HVO_STOP_MACHINE {
            self.attempts.prefer_threads();
        }
        while at < runs.len() {
            let inside = progress[unit] == Progress::Begun;
            let ended = matches!(progress[unit], Progress::Ended(_));

            // The content of a page that is in use already must not be copied again.
            if ended || (inside && is_complete(&entries, &runs[at])) {
                if last[at] {
                    if inside {
                        progress[unit] = Progress::Ended(Outcome::Changed);
                    }
                    unit += 1;
                }
                at += 1;
                continue;
            }
            let stop = self.attempts.stops() || never_pauses;
            let window = next_window(
                rest_of(&runs[at..], &last[at..], &progress[unit..]),
                Cost::from_raw(COST.load(Relaxed)),
                Budget {
                    entries: if !batches(&self.params) {
                        ENTRIES as u32
                    } else if stop {
                        self.params.max_entries
                    } else {
                        self.params.max_entries.min(MOST_IN_PAUSE)
                    },
                    ns: if stop {
                        u64::MAX
                    } else {
                        u64::from(self.params.budget_us) * 1_000
                    },
                },
            );
            let next = at + window.runs;

            // SAFETY: By the safety requirements.
            if let Err(miss) = unsafe { self.try_window(&runs[at..next], window.work, stop) } {
                let retries = streak.retries(miss, self.params.retries);
                let had_some = !self.attempts.are_used_up();

                // rule: hvo/final: a unit that was begun has to be finished
                match self.attempts.after(miss, retries, self.mandatory || inside) {
                    Step::Again(us) => fsleep(Delta::from_micros(us as i64)),
                    Step::StopMachine => {}
                    Step::GiveUp => {
                        for progress in progress.iter_mut().filter(|p| **p == Progress::Waiting) {
                            *progress = Progress::Ended(Outcome::Untouched(Why::Hotplug));
                        }
                        self.attempts.end_window();
                    }
                }
                if had_some && self.attempts.are_used_up() {
                    STREAK.store(streak.missed().into_raw(), Relaxed);
                }
                continue;
            }
            for _ in last[at..next].iter().filter(|last| **last) {
                progress[unit] = Progress::Ended(Outcome::Changed);
                unit += 1;
            }
            if !window.whole {
                progress[unit] = Progress::Begun;
            }
            self.attempts.end_window();
            at = next;
        }
    }
}

impl Fallback<'_> {
    /// Tries to make the changes of one window, by stopping threads if `stop`.
    ///
    /// # Safety
    ///
    /// As for [`Ways::change`].
    unsafe fn try_window(&self, runs: &[Run], work: Work, stop: bool) -> Result<(), Miss> {
        // SAFETY: By the safety requirements: only new pages and shared ones follow, and nobody
        // has a reference to the folios.
        let window = unsafe { Window::new(runs) };
        let turn = Turn::begin(self.params.duty_pct);

        if stop {
            let begin = Instant::<Monotonic>::now();

            if with_stopped(|cpus| window.apply(cpus)).is_err() {
                self.account(work, &Pause::default(), true, false);
                return Err(Miss::Locked);
            }
            // From when the first thread may have been stopped.
            let pause = Pause {
                paused_ns: begin.elapsed().as_nanos() as u64,
                ..Default::default()
            };

            self.account(work, &pause, true, true);
            turn.end(&pause);
            return Ok(());
        }

        let params = &self.params;
        let timeout = timeout_us(params.ack_timeout_us, params.pseudo_nmi, params.guest);
        let (result, pause) = with_paused(u64::from(timeout) * 1_000, |cpus| window.apply(cpus));

        self.account(work, &pause, false, result.is_ok());
        turn.end(&pause);
        match result {
            Ok(()) => {
                STREAK.store(Streak::default().into_raw(), Relaxed);
                let cost = Cost::from_raw(COST.load(Relaxed));

                COST.store(cost.learn(work, pause.paused_ns).into_raw(), Relaxed);
                Ok(())
            }
            Err(e) if e == EAGAIN => Err(Miss::Cancelled),
            Err(_) => Err(Miss::Hotplug),
        }
    }

    fn account(&self, work: Work, pause: &Pause, stopped: bool, success: bool) {
        let event = bindings::hvo_event {
            cpus: pause.cpus,
            entries: work.entries,
            copies: work.copies / (PAGE_SIZE / 4096) as u32,
            missing: pause.missing.map_or(-1, |cpu| cpu as i32),
            stopped,
            ack_ns: pause.ack_ns,
            paused_ns: pause.paused_ns,
            ..Default::default()
        };

        c::account(self.reason, event, success);
    }
}
