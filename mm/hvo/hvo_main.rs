// SPDX-License-Identifier: GPL-2.0

//! Bulk changes of vmemmap page tables: what one pause changes, and what follows a missed one.
//!
//! A plan is collected while everything runs, then committed. Nothing can fail inside of a pause:
//! memory is allocated, values are computed and pages are filled before it.
//!
//! C header: [`include/linux/hvo.h`](srctree/include/linux/hvo.h)

#![crate_name = "hvo"]

pub mod plan;

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
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    },
    types::NotThreadSafe, //
};
use plan::{
    next_window,
    rest_us,
    Attempts,
    Budget,
    Cost,
    Miss,
    Step,
    Streak,
    Work, //
};

type Run = bindings::hvo_run;
type Params = bindings::hvo_params;
type Reason = bindings::hvo_reason;

/// Changes that are being collected.
///
/// A unit, which is a folio or a block, is changed as a whole or not at all.
struct Plan {
    runs: KVVec<Run>,
    /// For each run, whether it is the last one of its unit.
    last: KVVec<bool>,
}

impl Plan {
    fn new(runs: usize) -> Result<Self> {
        Ok(Self {
            runs: KVVec::with_capacity(runs, GFP_KERNEL)?,
            last: KVVec::with_capacity(runs, GFP_KERNEL)?,
        })
    }

    fn add(&mut self, run: Run, last: bool) -> Result {
        if self.runs.len() == self.runs.capacity() || self.last.len() == self.last.capacity() {
            return Err(ENOSPC);
        }
        self.runs.push(run, GFP_KERNEL)?;
        self.last.push(last, GFP_KERNEL)?;
        Ok(())
    }

    /// Forgets the unit that is not complete.
    fn abort(&mut self) {
        while let Some(false) = self.last.last().copied() {
            self.last.pop();
            self.runs.pop();
        }
    }

    fn clear(&mut self) {
        self.runs.clear();
        self.last.clear();
    }
}

/// What pauses took so far, see [`Cost::into_raw`].
static COST: Atomic<u64> = Atomic::new(Cost::INITIAL.into_raw());
/// Of plans without a pause, see [`Streak::into_raw`].
static STREAK: Atomic<u32> = Atomic::new(0);
/// When the last one ended, and for how long the others did not run. See [`Turn`].
static ENDED_NS: Atomic<u64> = Atomic::new(0);
static STOPPED_NS: Atomic<u64> = Atomic::new(0);

fn now_ns() -> u64 {
    // SAFETY: Reads a clock.
    unsafe { bindings::ktime_get() as u64 }
}

fn work_of(run: &Run) -> Work {
    Work {
        entries: run.nr,
        copies: u32::from(!run.copy_to.is_null()) * (PAGE_SIZE / 4096) as u32,
    }
}

/// The right to pause, which one task at a time has.
///
/// # Invariants
///
/// This task holds the mutex of `hvo_turn_begin()`.
struct Turn {
    _task: NotThreadSafe,
}

impl Turn {
    /// Waits until all others who want to pause have done so, and until the other CPUs have run for
    /// long enough since: `duty_pct` is the share of the time that they may be stopped for.
    fn begin(duty_pct: u32) -> Self {
        // SAFETY: May sleep, and `drop()` gives it back. The task does not have it yet: no `Turn`
        // outlives a window.
        unsafe { bindings::hvo_turn_begin() };
        // INVARIANT: Just above.
        let turn = Self {
            _task: NotThreadSafe,
        };
        let since_ns = now_ns().saturating_sub(ENDED_NS.load(Relaxed));
        let us = rest_us(STOPPED_NS.load(Relaxed), since_ns, duty_pct);

        if us > 0 {
            fsleep(Delta::from_micros(us as i64));
        }
        turn
    }

    /// Ends it with a pause, or an attempt.
    fn end(self, pause: &Pause) {
        STOPPED_NS.store(pause.ack_ns.saturating_add(pause.paused_ns), Relaxed);
        ENDED_NS.store(now_ns(), Relaxed);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // SAFETY: By the invariant.
        unsafe { bindings::hvo_turn_end() };
    }
}

/// Where the other CPUs are while entries change.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// Paused.
    Interrupt,
    /// Stopped by `stop_machine()`.
    Threads,
}

/// A plan that nothing is added to any more.
struct Prepared<'a> {
    runs: &'a [Run],
    last: &'a [bool],
    reason: Reason,
    params: Params,
}

impl<'a> Prepared<'a> {
    fn new(plan: &'a Plan, reason: Reason) -> Self {
        let mut params = Params::default();

        // SAFETY: Fills them in.
        unsafe { bindings::hvo_get_params(&mut params) };
        Self {
            runs: &plan.runs,
            last: &plan.last,
            reason,
            params,
        }
    }

    /// Makes the changes, in their order; returns how many units were changed.
    ///
    /// Once CPUs did not stop in time, threads are stopped for the rest of the plan, in windows
    /// that only `max_ptes` limits: stopping threads takes longer than what is done then.
    ///
    /// # Safety
    ///
    /// What [`Window::new`] says, of all runs.
    unsafe fn commit(self, mandatory: bool) -> usize {
        let mut stop = self.params.strategy == bindings::hvo_strategy_HVO_STOP_MACHINE;
        let streak = Streak::from_raw(STREAK.load(Relaxed));
        let mut attempts = Attempts::default();
        let mut inside = false;
        let mut units = 0;
        let mut at = 0;

        while at < self.runs.len() {
            let rest = self.runs[at..].iter().zip(&self.last[at..]);
            let window = next_window(
                rest.map(|(run, last)| (work_of(run), *last)),
                Cost::from_raw(COST.load(Relaxed)),
                Budget {
                    entries: self.params.max_entries,
                    ns: if stop {
                        u64::MAX
                    } else {
                        u64::from(self.params.budget_us) * 1_000
                    },
                },
            );
            let next = at + window.runs;

            // SAFETY: By the safety requirements.
            if let Err(miss) = unsafe { self.change(&self.runs[at..next], window.work, stop) } {
                let retries = streak.retries(miss, self.params.retries);

                // A unit that was begun has to be finished.
                match attempts.after(miss, retries, mandatory || inside) {
                    // Not with threads a second time: who keeps the lock may wait for this.
                    Step::Again(us) => {
                        stop = false;
                        fsleep(Delta::from_micros(us as i64));
                    }
                    Step::StopMachine => {
                        stop = true;
                        if miss == Miss::Cancelled {
                            STREAK.store(streak.missed().into_raw(), Relaxed);
                        }
                    }
                    Step::GiveUp if inside => attempts = Attempts::default(),
                    Step::GiveUp => return units,
                }
                continue;
            }
            units += self.last[at..next].iter().filter(|last| **last).count();
            attempts = Attempts::default();
            inside = !window.whole;
            at = next;
        }
        units
    }

    /// Tries to make the changes of one window, by stopping threads if `stop`.
    ///
    /// # Safety
    ///
    /// As for [`Self::commit`].
    unsafe fn change(&self, runs: &[Run], work: Work, stop: bool) -> Result<(), Miss> {
        // SAFETY: By the safety requirements.
        let window = unsafe { Window::new(runs) };

        let turn = Turn::begin(self.params.duty_pct);

        if stop {
            let begin = Instant::<Monotonic>::now();

            with_stopped(|cpus| window.apply(cpus)).map_err(|_| Miss::Locked)?;
            // From when the first thread may have been stopped.
            let pause = Pause {
                paused_ns: begin.elapsed().as_nanos() as u64,
                ..Default::default()
            };

            self.account(work, pause, Way::Threads, true);
            turn.end(&pause);
            return Ok(());
        }

        let timeout = u64::from(self.params.ack_timeout_us) * 1_000;
        let (result, pause) = with_paused(timeout, |cpus| window.apply(cpus));

        self.account(work, pause, Way::Interrupt, result.is_ok());
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

    fn account(&self, work: Work, pause: Pause, way: Way, success: bool) {
        let event = bindings::hvo_event {
            reason: self.reason,
            cpus: pause.cpus,
            entries: work.entries,
            copies: work.copies / (PAGE_SIZE / 4096) as u32,
            missing: pause.missing.map_or(-1, |cpu| cpu as i32),
            stopped: way == Way::Threads,
            ack_ns: pause.ack_ns,
            paused_ns: pause.paused_ns,
        };

        // SAFETY: Reads it.
        unsafe { bindings::hvo_account(&event, success) };
    }
}

/// Makes an empty plan with room for `runs`; null if there is no memory. May sleep.
///
/// # Safety
///
/// Always safe to call, but `#[export]` wants what bindgen declares.
#[export]
unsafe extern "C" fn hvo_plan_new(runs: c_ulong) -> *mut bindings::hvo_plan {
    Plan::new(runs)
        .and_then(|plan| Ok(KBox::new(plan, GFP_KERNEL)?))
        .map_or(core::ptr::null_mut(), |plan| KBox::into_raw(plan).cast())
}

/// Adds changes to a plan; `last` if they are the last of what has to change together.
///
/// Returns 0, or `-ENOSPC` without room: then the plan is as it was.
///
/// # Safety
///
/// `plan` must be from [`hvo_plan_new`] and nobody else use it; what `run` points to must live
/// until the plan is committed or freed.
#[export]
unsafe extern "C" fn hvo_plan_add(
    plan: *mut bindings::hvo_plan,
    run: *const bindings::hvo_run,
    last: bool,
) -> c_int {
    // SAFETY: By the safety requirements.
    let (plan, run) = unsafe { (&mut *plan.cast::<Plan>(), *run) };

    plan.add(run, last).map_or_else(|e| e.to_errno(), |()| 0)
}

/// Takes back what was added since the last unit was complete.
///
/// # Safety
///
/// As for [`hvo_plan_add`].
#[export]
unsafe extern "C" fn hvo_plan_abort(plan: *mut bindings::hvo_plan) {
    // SAFETY: By the safety requirements.
    unsafe { &mut *plan.cast::<Plan>() }.abort();
}

/// Makes the changes of a plan, and empties it. May sleep.
///
/// Returns how many units were changed: the first ones, completely. Others were not touched, which
/// happens only if CPU hotplug is in the way; if `mandatory`, only if it does not end.
///
/// # Safety
///
/// As for [`hvo_plan_add`]; the runs must be as [`Window::new`] says.
#[export]
unsafe extern "C" fn hvo_plan_commit(
    plan: *mut bindings::hvo_plan,
    reason: bindings::hvo_reason,
    mandatory: bool,
) -> c_ulong {
    // SAFETY: By the safety requirements.
    let plan = unsafe { &mut *plan.cast::<Plan>() };
    // SAFETY: By the safety requirements.
    let units = unsafe { Prepared::new(plan, reason).commit(mandatory) };

    plan.clear();
    units
}

/// Frees a plan, and forgets what is in it.
///
/// # Safety
///
/// `plan` must be null or from [`hvo_plan_new`], and not be used any more.
#[export]
unsafe extern "C" fn hvo_plan_free(plan: *mut bindings::hvo_plan) {
    if !plan.is_null() {
        // SAFETY: By the safety requirements.
        drop(unsafe { KBox::from_raw(plan.cast::<Plan>()) });
    }
}
