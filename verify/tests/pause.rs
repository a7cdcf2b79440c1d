// SPDX-License-Identifier: GPL-2.0

//! The words by which CPUs are stopped, `pause_state` and `pause_ack`, those of `struct stop`, and
//! `abandoned`, by which one that panics ends a stop.
//!
//! Models of the functions of the same names in `arch/arm64/kernel/pause.c`, with their words,
//! their orders and the mutex, run with loom: every interleaving, and every value that a load may
//! return. Not of masks, hotplug, measured times and what only debugging reads. What the others
//! must not use meanwhile is a cell that loom watches: it panics if two use it without an order
//! between them.
//!
//! A wait is one look. Those that find what they wait for missing have no effect, so the last one
//! stands for all; where even that finds it missing, the CPU waits on and does nothing any more.
//! When all have ended, what it waits for must be there, so that it can go on.

use loom::{
    cell::UnsafeCell,
    sync::{
        atomic::{
            AtomicBool, AtomicU32,
            Ordering::{self, AcqRel, Acquire, Relaxed, Release},
        },
        Mutex, MutexGuard,
    },
    thread,
};
// Its threads are all in one of the system. Its own Arc may not be dropped by a model that panics.
use std::{mem, rc::Rc};

/// What may be left out.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Without {
    Nothing,
    /// The pauser does not wait for the others,
    Wait,
    /// or takes what a CPU acknowledged once for all pauses,
    Number,
    /// or cancels without letting those go on that have stopped.
    Resume,
    /// The mutex: one pauser after the other.
    Mutex,
    /// Orders: what another pauser did, for who misses the end of its pause and sees the next,
    AskRelease,
    /// the request, before the IPI,
    IpiRelease,
    IpiAcquire,
    /// what a CPU did before it stopped,
    AckRelease,
    AckAcquire,
    /// and what the pauser did before the others go on.
    ResumeRelease,
    ResumeAcquire,
    /// Who panics lets the others go on,
    Abandon,
    /// with what it did itself if it is the pauser,
    AbandonRelease,
    /// but only if there is a pause,
    Parity,
    /// and still the one that it has seen.
    Exchange,
    /// Those of `struct stop`.
    ArrivedOrder,
    Done,
    DoneRelease,
    DoneAcquire,
    /// Who panics says so to those that wait for it there, with what it did itself.
    Abandoned,
    AbandonedRelease,
    AbandonedAcquire,
}

struct Machine {
    without: Without,
    mutex: Mutex<()>,
    state: AtomicU32,
    ack: Vec<AtomicU32>,
    /// The pause for which an IPI is pending, or 0.
    ipi: Vec<AtomicU32>,
    /// Page table entries that are broken and made, and what they lead to.
    entries: UnsafeCell<u32>,
    stop: Stop,
    abandoned: AtomicBool,
}

struct Stop {
    arrived: AtomicU32,
    done: AtomicBool,
}

/// `struct arm64_pause`, and the mutex that it holds.
struct Pause<'a> {
    state: u32,
    _mutex: Option<MutexGuard<'a, ()>>,
}

/// The number of a pause that was cancelled.
const FIRST: u32 = 1;

impl Machine {
    fn new(without: Without, cpus: usize) -> Self {
        Self {
            without,
            mutex: Mutex::new(()),
            state: AtomicU32::new(FIRST + 1),
            ack: (0..cpus).map(|_| AtomicU32::new(0)).collect(),
            ipi: (0..cpus).map(|_| AtomicU32::new(0)).collect(),
            entries: UnsafeCell::new(0),
            stop: Stop {
                arrived: AtomicU32::new(0),
                done: AtomicBool::new(false),
            },
            abandoned: AtomicBool::new(false),
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
        // What is used next follows the second load.
        let state = self.state.load(Relaxed);

        if state & 1 == 0 {
            return GOES_ON;
        }
        self.ack[cpu].store(state, self.order(Release, Without::AckRelease));
        let now = self.state.load(self.order(Acquire, Without::ResumeAcquire));
        if now == state {
            return Err(Waits::PauseState(state));
        }
        GOES_ON
    }

    /// The pause for which there is an IPI, or 0. The irqchip orders who sends it and who takes it.
    fn take_ipi(&self, cpu: usize) -> u32 {
        self.ipi[cpu].swap(0, self.order(Acquire, Without::IpiAcquire))
    }

    fn take_interrupts(&self, cpu: usize) -> Wait {
        if self.take_ipi(cpu) != 0 {
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

    // ---- Who panics.

    /// From where `pause_state` was read.
    fn arm64_pause_abandon(&self, state: u32) {
        if self.without == Without::Abandon {
            return;
        }
        if self.without != Without::Abandoned {
            let order = self.order(Release, Without::AbandonedRelease);
            self.abandoned.store(true, order);
        }
        if self.without != Without::Parity && state & 1 == 0 {
            return;
        }
        let order = self.order(Release, Without::AbandonRelease);

        if self.without == Without::Exchange {
            self.state.store(state + 1, order);
        } else {
            let _ = self
                .state
                .compare_exchange(state, state + 1, order, Relaxed);
        }
    }

    // ---- The pauser. Its own CPU is not among the others.

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
    fn arm64_pause_cpus(&self) -> Result<Pause<'_>, ()> {
        let locked = self.without != Without::Mutex;
        let _mutex = locked.then(|| self.mutex.lock().unwrap());
        let state = self.state.load(Relaxed) + 1;
        let pause = Pause { state, _mutex };

        self.state
            .store(state, self.order(Release, Without::AskRelease));
        for ipi in &self.ipi {
            ipi.store(state, self.order(Release, Without::IpiRelease));
        }
        if self.first_running(state).is_none() {
            return Ok(pause);
        }
        if self.without != Without::Resume {
            self.arm64_resume_cpus(pause);
        }
        Err(())
    }

    fn arm64_resume_cpus(&self, pause: Pause<'_>) {
        let order = self.order(Release, Without::ResumeRelease);

        self.state.store(pause.state + 1, order);
    }

    /// Returns whether the others could be paused.
    fn pause_and_change(&self) -> bool {
        let Ok(pause) = self.arm64_pause_cpus() else {
            return false;
        };

        self.change_entries();
        self.arm64_resume_cpus(pause);
        true
    }

    // ---- Or in threads.

    fn stop_fn(&self, cpus: u32, f: StopFn) -> Wait {
        let order = self.order(AcqRel, Without::ArrivedOrder);

        if self.stop.arrived.fetch_add(1, order) + 1 == cpus {
            let returns = f(self);
            let order = self.order(Release, Without::DoneRelease);
            if returns && self.without != Without::Done {
                self.stop.done.store(true, order);
            }
        } else {
            let order = self.order(Acquire, Without::DoneAcquire);
            if !self.stop.done.load(order) {
                let order = self.order(Acquire, Without::AbandonedAcquire);
                if !self.abandoned.load(order) {
                    return Err(Waits::Done);
                }
            }
        }
        GOES_ON
    }

    fn run_and_stop(&self, f: StopFn) -> Wait {
        self.use_entries();
        self.stop_fn(3, f)
    }

    /// When all have ended: who waits can go on, and so can who looks only now.
    fn all_can_go_on(&self, waits: impl Iterator<Item = Wait>) {
        // SAFETY: nobody stores any more. A load may return an older value where several have
        // stored: loom does not know that a compare-and-swap comes right after what it has read.
        let state = unsafe { self.state.unsync_load() };

        assert!(state & 1 == 0, "waits for good: a pause has no end");
        for wait in waits {
            match wait {
                Ok(()) => (),
                Err(Waits::PauseState(seen)) => assert!(state != seen, "waits for good"),
                Err(Waits::Done) => assert!(
                    self.stop.done.load(Relaxed) || self.abandoned.load(Relaxed),
                    "waits for good"
                ),
            }
        }
    }
}

/// What a CPU still waits for: another `pause_state`, or `done` or `abandoned`.
enum Waits {
    PauseState(u32),
    Done,
}

type Wait = Result<(), Waits>;

const GOES_ON: Wait = Ok(());

/// That of `struct stop`, and whether it returns.
type StopFn = fn(&Machine) -> bool;

const CHANGE: StopFn = |machine| {
    machine.change_entries();
    true
};
const CHANGE_AND_PANIC: StopFn = |machine| {
    machine.change_entries();
    machine.arm64_pause_abandon(machine.state.load(Relaxed));
    false
};

type Pauser = fn(&Machine) -> Wait;

type Cpu = fn(&Machine, usize) -> Wait;

/// Runs all of these at once, on CPUs of their own.
fn check(without: Without, preemptions: Option<usize>, pausers: &[Pauser], others: &[Cpu]) {
    let mut model = loom::model::Builder::new();
    let (pausers, others) = (pausers.to_vec(), others.to_vec());

    model.preemption_bound = preemptions;
    model.check(move || {
        let machine = Rc::new(Machine::new(without, others.len()));
        let spawn = |run: Box<dyn FnOnce(&Machine) -> Wait>| {
            let machine = machine.clone();

            thread::spawn(move || run(&machine))
        };
        let others = (0..).zip(others.clone());
        let threads: Vec<_> = others
            .map(|(cpu, other)| spawn(Box::new(move |machine| other(machine, cpu))))
            .chain(pausers[1..].iter().map(|&pauser| spawn(Box::new(pauser))))
            .collect();
        let first = pausers[0](&machine);
        let waits: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();

        machine.all_can_go_on(waits.into_iter().chain([first]));
    });
}

const ONE_PAUSE: Pauser = |machine| {
    machine.pause_and_change();
    GOES_ON
};
/// What is late for the first may come in the second.
const TWO_PAUSES: Pauser = |machine| {
    machine.pause_and_change();
    machine.pause_and_change();
    GOES_ON
};
/// The same, but the others get further in between: loom by itself leaves that out where they read
/// and write the same word.
const TWO_PAUSES_FAR_APART: Pauser = |machine| {
    machine.pause_and_change();
    thread::yield_now();
    machine.pause_and_change();
    GOES_ON
};
/// It keeps the mutex.
const PANIC_IN_PAUSE: Pauser = |machine| {
    if let Ok(pause) = machine.arm64_pause_cpus() {
        machine.change_entries();
        machine.arm64_pause_abandon(machine.state.load(Relaxed));
        mem::forget(pause);
    }
    GOES_ON
};
const STOP_TOO: Pauser = |machine| STOP(machine, 0);
const STOP_TOO_AND_PANIC: Pauser = |machine| STOP_AND_PANIC(machine, 0);

const RUN: Cpu = |machine, cpu| machine.run(cpu, 1);
const RUN_LONGER: Cpu = |machine, cpu| machine.run(cpu, 2);
/// Looks because somebody wants a backtrace, too.
const RUN_AND_LOOK: Cpu = |machine, cpu| {
    machine.use_entries();
    machine.arm64_pause_local_cpu(cpu)?;
    machine.run(cpu, 1)
};
/// Nobody would ask again.
const LOOK_IF_ASKED: Cpu = |machine, cpu| {
    let asked = machine.take_ipi(cpu);

    assert!(machine.state.load(Relaxed) >= asked, "not seen");
    GOES_ON
};
/// Waits for a lock with interrupts masked.
const DEAF: Cpu = |machine, _| {
    machine.use_entries();
    GOES_ON
};
/// A pseudo-NMI comes wherever `panic()` is.
const PANIC: Cpu = |machine, cpu| {
    let state = machine.state.load(Relaxed);

    machine.take_interrupts(cpu)?;
    machine.arm64_pause_abandon(state);
    machine.run(cpu, 1)
};
const PANIC_LATE: Cpu = |machine, cpu| {
    machine.take_interrupts(cpu)?;
    machine.arm64_pause_abandon(FIRST);
    machine.run(cpu, 1)
};
const STOP: Cpu = |machine, _| {
    machine.run_and_stop(CHANGE)?;
    machine.use_entries();
    GOES_ON
};
/// Whoever comes last. The others go on with the entries as they were when it panicked.
const STOP_AND_PANIC: Cpu = |machine, _| {
    machine.run_and_stop(CHANGE_AND_PANIC)?;
    machine.use_entries();
    GOES_ON
};
/// Never gets to where the others wait for it.
const PANIC_BEFORE_STOP: Cpu = |machine, _| {
    machine.arm64_pause_abandon(machine.state.load(Relaxed));
    machine.use_entries();
    GOES_ON
};

#[test]
fn nobody_uses_what_is_changed_in_a_pause() {
    check(Without::Nothing, None, &[TWO_PAUSES], &[RUN_LONGER]);
    check(Without::Nothing, None, &[TWO_PAUSES], &[RUN_AND_LOOK]);
}

#[test]
fn nobody_of_two_uses_what_is_changed_in_a_pause() {
    check(Without::Nothing, Some(3), &[TWO_PAUSES], &[RUN, RUN]);
}

#[test]
fn nobody_uses_what_two_pausers_change() {
    let pausers = [ONE_PAUSE, ONE_PAUSE];

    check(Without::Nothing, Some(4), &pausers, &[RUN]);
    check(Without::Nothing, Some(4), &pausers, &[RUN_AND_LOOK]);
}

/// A model in which no pause comes about would show nothing.
#[test]
#[should_panic(expected = "paused")]
fn pauses_come_about() {
    let pauser: Pauser = |machine| {
        assert!(!machine.pause_and_change(), "paused");
        GOES_ON
    };

    check(Without::Nothing, None, &[pauser], &[RUN]);
}

#[test]
#[should_panic(expected = "cancelled")]
fn pauses_are_cancelled() {
    let pauser: Pauser = |machine| {
        assert!(machine.pause_and_change(), "cancelled");
        GOES_ON
    };

    check(Without::Nothing, None, &[pauser], &[RUN]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn the_pauser_waits() {
    check(Without::Wait, None, &[ONE_PAUSE], &[RUN]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_late_cpu_is_not_counted_for_the_next_pause() {
    check(Without::Number, None, &[TWO_PAUSES], &[RUN]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_pauser_comes_after_the_one_before() {
    check(Without::Mutex, None, &[ONE_PAUSE, ONE_PAUSE], &[]);
}

/// Who waits may miss the end of its pause, and see the beginning of the next.
#[test]
#[should_panic(expected = "Causality violation")]
fn a_pause_releases_what_was_changed_in_the_one_before() {
    check(Without::AskRelease, None, &[TWO_PAUSES], &[RUN]);
}

#[test]
fn a_cpu_that_gets_the_ipi_sees_the_request() {
    check(Without::Nothing, None, &[TWO_PAUSES], &[LOOK_IF_ASKED]);
}

#[test]
#[should_panic(expected = "not seen")]
fn the_request_is_released_to_the_ipi() {
    check(Without::IpiRelease, None, &[ONE_PAUSE], &[LOOK_IF_ASKED]);
}

#[test]
#[should_panic(expected = "not seen")]
fn the_request_is_acquired_by_the_ipi() {
    check(Without::IpiAcquire, None, &[ONE_PAUSE], &[LOOK_IF_ASKED]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn what_was_done_before_the_stop_is_released() {
    check(Without::AckRelease, None, &[ONE_PAUSE], &[RUN]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn what_was_done_before_the_stop_is_acquired() {
    check(Without::AckAcquire, None, &[ONE_PAUSE], &[RUN]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn what_was_changed_is_released() {
    check(Without::ResumeRelease, None, &[ONE_PAUSE], &[RUN]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn what_was_changed_is_acquired() {
    check(Without::ResumeAcquire, None, &[ONE_PAUSE], &[RUN]);
}

/// The one that holds the lock has stopped, the one that waits for it never does.
#[test]
fn a_stopped_cpu_goes_on_if_another_one_never_stops() {
    check(Without::Nothing, None, &[ONE_PAUSE], &[RUN, DEAF]);
}

#[test]
#[should_panic(expected = "waits for good")]
fn a_stopped_cpu_waits_for_good_if_nobody_cancels() {
    check(Without::Resume, None, &[ONE_PAUSE], &[RUN, DEAF]);
}

#[test]
fn a_panic_ends_no_later_pause() {
    for pauser in [TWO_PAUSES, TWO_PAUSES_FAR_APART] {
        check(Without::Nothing, Some(3), &[pauser], &[PANIC]);
        check(Without::Nothing, Some(3), &[pauser], &[PANIC_LATE]);
    }
    check(Without::Nothing, Some(3), &[ONE_PAUSE], &[PANIC, RUN]);
    check(Without::Nothing, Some(3), &[ONE_PAUSE, ONE_PAUSE], &[PANIC]);
}

/// The numbers go back, and a CPU that stopped long ago is counted again.
#[test]
#[should_panic(expected = "Causality violation")]
fn a_panic_looks_for_the_pause_that_it_has_seen() {
    check(
        Without::Exchange,
        None,
        &[TWO_PAUSES_FAR_APART],
        &[PANIC_LATE],
    );
}

#[test]
#[should_panic(expected = "waits for good")]
fn a_panic_without_a_pause_starts_none() {
    check(Without::Parity, None, &[ONE_PAUSE], &[PANIC]);
}

#[test]
fn all_go_on_if_the_pauser_panics() {
    check(Without::Nothing, None, &[PANIC_IN_PAUSE], &[RUN]);
    check(Without::Nothing, None, &[PANIC_IN_PAUSE], &[RUN, RUN]);
}

#[test]
#[should_panic(expected = "waits for good")]
fn all_wait_for_good_if_the_pauser_panics_and_abandons_nothing() {
    check(Without::Abandon, None, &[PANIC_IN_PAUSE], &[RUN]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn what_was_changed_before_the_panic_is_released() {
    check(Without::AbandonRelease, None, &[PANIC_IN_PAUSE], &[RUN]);
}

#[test]
fn nobody_uses_what_is_changed_by_the_last_to_stop() {
    check(Without::Nothing, None, &[STOP_TOO], &[STOP, STOP]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn arrivals_are_ordered() {
    check(Without::ArrivedOrder, None, &[STOP_TOO], &[STOP, STOP]);
}

#[test]
#[should_panic(expected = "waits for good")]
fn the_last_to_stop_lets_the_other_cpus_go_on() {
    check(Without::Done, None, &[STOP_TOO], &[STOP, STOP]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn the_end_is_released() {
    check(Without::DoneRelease, None, &[STOP_TOO], &[STOP, STOP]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn the_end_is_acquired() {
    check(Without::DoneAcquire, None, &[STOP_TOO], &[STOP, STOP]);
}

#[test]
fn all_go_on_if_the_last_to_stop_panics() {
    let others = [STOP_AND_PANIC, STOP_AND_PANIC];

    check(Without::Nothing, None, &[STOP_TOO_AND_PANIC], &others);
}

#[test]
#[should_panic(expected = "waits for good")]
fn all_wait_for_good_if_the_last_to_stop_panics_and_does_not_say_so() {
    let others = [STOP_AND_PANIC, STOP_AND_PANIC];

    check(Without::Abandoned, None, &[STOP_TOO_AND_PANIC], &others);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn what_the_last_to_stop_changed_before_its_panic_is_released() {
    let others = [STOP_AND_PANIC, STOP_AND_PANIC];

    check(
        Without::AbandonedRelease,
        None,
        &[STOP_TOO_AND_PANIC],
        &others,
    );
}

#[test]
#[should_panic(expected = "Causality violation")]
fn what_the_last_to_stop_changed_before_its_panic_is_acquired() {
    let others = [STOP_AND_PANIC, STOP_AND_PANIC];

    check(
        Without::AbandonedAcquire,
        None,
        &[STOP_TOO_AND_PANIC],
        &others,
    );
}

/// Nothing is changed then, and all may use the entries.
#[test]
fn all_go_on_if_one_panics_before_it_stops() {
    let others = [STOP, PANIC_BEFORE_STOP];

    check(Without::Nothing, None, &[STOP_TOO], &others);
}

#[test]
#[should_panic(expected = "waits for good")]
fn all_wait_for_good_if_one_panics_before_it_stops_and_does_not_say_so() {
    let others = [STOP, PANIC_BEFORE_STOP];

    check(Without::Abandoned, None, &[STOP_TOO], &others);
}
