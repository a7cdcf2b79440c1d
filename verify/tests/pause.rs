// SPDX-License-Identifier: GPL-2.0

//! The words by which CPUs are stopped, `pause_state` and `pause_ack`, and those of `struct stop`.
//!
//! Models of the functions of the same names in `arch/arm64/kernel/pause.c`, line by line, run with
//! loom: every interleaving, and every value that a load may return. What the others must not use
//! meanwhile is a cell that loom watches: it panics if two use it without an order between them.
//!
//! A wait is one load. Those that find what they wait for missing have no effect, so the last one
//! stands for all; where even that finds it missing, the CPU waits on and does nothing any more.

use loom::{
    cell::UnsafeCell,
    sync::atomic::{
        fence, AtomicBool, AtomicU32,
        Ordering::{self, AcqRel, Acquire, Relaxed, Release},
    },
    thread,
};
// Its threads are all in one of the system. Its own Arc may not be dropped by a model that panics.
use std::rc::Rc;

/// What may be left out.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Without {
    Nothing,
    /// The pauser does not wait for the others,
    Wait,
    /// or takes what a CPU acknowledged once for all pauses.
    Number,
    /// Orders: what a CPU did before it stopped,
    AckRelease,
    AckAcquire,
    /// and what the pauser did before the others go on.
    ResumeRelease,
    ResumeAcquire,
    /// The mutex: a pause comes after the one before it.
    Mutex,
    /// Who panics looks whether there still is the pause that it has seen.
    Exchange,
    /// Those of `struct stop`.
    ArrivedOrder,
    DoneRelease,
    DoneAcquire,
}

struct Machine {
    without: Without,
    state: AtomicU32,
    ack: Vec<AtomicU32>,
    /// The IPI is pending.
    ipi: Vec<AtomicBool>,
    /// Page table entries that are broken and made, and what they lead to.
    entries: UnsafeCell<u32>,
    stop: Stop,
}

struct Stop {
    arrived: AtomicU32,
    done: AtomicBool,
}

/// The number of a pause that was cancelled.
const FIRST: u32 = 1;

impl Machine {
    fn new(without: Without, cpus: usize) -> Self {
        Self {
            without,
            state: AtomicU32::new(FIRST + 1),
            ack: (0..cpus).map(|_| AtomicU32::new(0)).collect(),
            ipi: (0..cpus).map(|_| AtomicBool::new(false)).collect(),
            entries: UnsafeCell::new(0),
            stop: Stop {
                arrived: AtomicU32::new(0),
                done: AtomicBool::new(false),
            },
        }
    }

    fn order(&self, order: Ordering, without: Without) -> Ordering {
        if self.without == without {
            Relaxed
        } else {
            order
        }
    }

    fn use_entries(&self) {
        // SAFETY: loom panics if somebody changes it.
        self.entries.with(|e| unsafe { e.read_volatile() });
    }

    fn change_entries(&self) {
        // SAFETY: loom panics if somebody uses it.
        self.entries.with_mut(|e| unsafe { *e += 1 });
    }

    // ---- The others.

    fn arm64_pause_local_cpu(&self, cpu: usize) -> Wait {
        let state = self.state.load(Acquire);

        if state & 1 == 0 {
            return GOES_ON;
        }
        self.ack[cpu].store(state, self.order(Release, Without::AckRelease));
        let now = self.state.load(self.order(Acquire, Without::ResumeAcquire));
        (now != state).then_some(())
    }

    fn take_interrupts(&self, cpu: usize) -> Wait {
        if self.ipi[cpu].swap(false, Acquire) {
            self.arm64_pause_local_cpu(cpu)?;
        }
        GOES_ON
    }

    fn run(&self, cpu: usize, interrupts: usize) -> Wait {
        for _ in 0..interrupts {
            self.use_entries();
            self.take_interrupts(cpu)?;
        }
        self.use_entries();
        GOES_ON
    }

    /// From where `pause_state` was read: pseudo-NMIs come wherever `panic()` is.
    fn arm64_pause_abandon(&self, cpu: usize, state: u32) -> Wait {
        self.take_interrupts(cpu)?;
        if state & 1 == 0 {
            return GOES_ON;
        }
        if self.without == Without::Exchange {
            self.state.store(state + 1, Release);
        } else {
            let _ = self
                .state
                .compare_exchange(state, state + 1, Release, Relaxed);
        }
        GOES_ON
    }

    // ---- The pauser.

    fn first_running(&self, state: u32) -> Option<usize> {
        self.ack.iter().position(|ack| {
            let ack = ack.load(self.order(Acquire, Without::AckAcquire));

            match self.without {
                Without::Wait => false,
                Without::Number => ack == 0,
                _ => ack != state,
            }
        })
    }

    /// Looks once: the timeout may be over at any time, so that this is as soon as it can be.
    fn arm64_pause_cpus(&self) -> Result<u32, ()> {
        // Of the mutex, which keeps others away: what was stored before mutex_unlock() comes before
        // what is stored after mutex_lock().
        if self.without != Without::Mutex {
            fence(AcqRel);
        }
        let state = self.state.load(Relaxed) + 1;

        self.state.store(state, Relaxed);
        for ipi in &self.ipi {
            ipi.store(true, Release);
        }
        if self.first_running(state).is_none() {
            return Ok(state);
        }
        self.arm64_resume_cpus(state);
        Err(())
    }

    fn arm64_resume_cpus(&self, state: u32) {
        let order = self.order(Release, Without::ResumeRelease);

        self.state.store(state + 1, order);
    }

    /// Returns whether the others could be paused.
    fn pause_and_change(&self) -> bool {
        let Ok(state) = self.arm64_pause_cpus() else {
            return false;
        };

        self.change_entries();
        self.arm64_resume_cpus(state);
        true
    }

    // ---- Or in threads.

    fn stop_fn(&self, cpus: u32) -> Wait {
        let order = self.order(AcqRel, Without::ArrivedOrder);

        self.use_entries();
        if self.stop.arrived.fetch_add(1, order) + 1 == cpus {
            self.change_entries();
            let order = self.order(Release, Without::DoneRelease);
            self.stop.done.store(true, order);
        } else {
            let order = self.order(Acquire, Without::DoneAcquire);
            self.stop.done.load(order).then_some(())?;
        }
        self.use_entries();
        GOES_ON
    }
}

/// None if a CPU waits on.
type Wait = Option<()>;

const GOES_ON: Wait = Some(());

type Cpu = fn(&Machine, usize) -> Wait;

/// Runs `pauser` beside these, on CPUs of their own.
fn check(without: Without, preemptions: Option<usize>, pauser: fn(&Machine), others: &[Cpu]) {
    let mut model = loom::model::Builder::new();
    let others = others.to_vec();

    model.preemption_bound = preemptions;
    model.check(move || {
        let machine = Rc::new(Machine::new(without, others.len()));
        let others: Vec<_> = (0..)
            .zip(others.clone())
            .map(|(cpu, other)| {
                let machine = machine.clone();

                thread::spawn(move || other(&machine, cpu))
            })
            .collect();

        pauser(&machine);
        for other in others {
            other.join().unwrap();
        }
    });
}

fn one_pause(machine: &Machine) {
    machine.pause_and_change();
}

/// What is late for the first may come in the second.
fn two_pauses(machine: &Machine) {
    machine.pause_and_change();
    machine.pause_and_change();
}

/// The same, but the others get further in between: loom by itself leaves that out where they read
/// and write the same word.
fn two_pauses_far_apart(machine: &Machine) {
    machine.pause_and_change();
    thread::yield_now();
    machine.pause_and_change();
}

const RUN: Cpu = |machine, cpu| machine.run(cpu, 1);
const RUN_LONGER: Cpu = |machine, cpu| machine.run(cpu, 2);
const PANIC: Cpu = |machine, cpu| {
    machine.arm64_pause_abandon(cpu, machine.state.load(Relaxed))?;
    machine.run(cpu, 1)
};
const PANIC_LATE: Cpu = |machine, cpu| {
    machine.arm64_pause_abandon(cpu, FIRST)?;
    machine.run(cpu, 1)
};
const STOP: Cpu = |machine, _| machine.stop_fn(3);

#[test]
fn nobody_uses_what_is_changed_in_a_pause() {
    check(Without::Nothing, None, two_pauses, &[RUN_LONGER]);
}

#[test]
fn nobody_of_two_uses_what_is_changed_in_a_pause() {
    check(Without::Nothing, Some(3), two_pauses, &[RUN, RUN]);
}

/// A model in which no pause comes about would show nothing.
#[test]
#[should_panic(expected = "paused")]
fn pauses_come_about() {
    let pauser: fn(&Machine) = |machine| assert!(!machine.pause_and_change(), "paused");

    check(Without::Nothing, None, pauser, &[RUN]);
}

#[test]
#[should_panic(expected = "cancelled")]
fn pauses_are_cancelled() {
    let pauser: fn(&Machine) = |machine| assert!(machine.pause_and_change(), "cancelled");

    check(Without::Nothing, None, pauser, &[RUN]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn the_pauser_waits() {
    check(Without::Wait, None, one_pause, &[RUN]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_late_cpu_is_not_counted_for_the_next_pause() {
    check(Without::Number, None, two_pauses, &[RUN]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn what_was_done_before_the_stop_is_released() {
    check(Without::AckRelease, None, one_pause, &[RUN]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn what_was_done_before_the_stop_is_acquired() {
    check(Without::AckAcquire, None, one_pause, &[RUN]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn what_was_changed_is_released() {
    check(Without::ResumeRelease, None, one_pause, &[RUN]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn what_was_changed_is_acquired() {
    check(Without::ResumeAcquire, None, one_pause, &[RUN]);
}

/// Who waits may miss the end of its pause, and see the beginning of the next.
#[test]
#[should_panic(expected = "Causality violation")]
fn a_pause_comes_after_the_one_before() {
    check(Without::Mutex, None, two_pauses, &[RUN]);
}

#[test]
fn who_panics_ends_no_later_pause() {
    for pauser in [two_pauses, two_pauses_far_apart] {
        check(Without::Nothing, Some(3), pauser, &[PANIC]);
        check(Without::Nothing, Some(3), pauser, &[PANIC_LATE]);
    }
    check(Without::Nothing, Some(2), one_pause, &[PANIC, RUN]);
}

/// The numbers go back, and a CPU that stopped long ago is counted again.
#[test]
#[should_panic(expected = "Causality violation")]
fn who_panics_looks_for_the_pause_that_it_has_seen() {
    check(
        Without::Exchange,
        Some(3),
        two_pauses_far_apart,
        &[PANIC_LATE],
    );
}

fn arrives_too(machine: &Machine) {
    machine.stop_fn(3);
}

#[test]
fn nobody_uses_what_is_changed_by_the_last_to_stop() {
    check(Without::Nothing, None, arrives_too, &[STOP, STOP]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn arrivals_are_ordered() {
    check(Without::ArrivedOrder, None, arrives_too, &[STOP, STOP]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn the_end_is_released() {
    check(Without::DoneRelease, None, arrives_too, &[STOP, STOP]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn the_end_is_acquired() {
    check(Without::DoneAcquire, None, arrives_too, &[STOP, STOP]);
}
