// SPDX-License-Identifier: GPL-2.0

//! Who needs a drain waits for one that begins after it has asked, and none is asked for in vain.
//!
//! A model of `migrc_drain()`, `migrc_wait()` and `migrc_begin_drain()` of
//! `mm/migrc/migrc_act.c`, run with loom: every interleaving, and every value that a load may
//! return. Two tasks have deferred something, and ask. The queue is one bit, as `queue_work()` has
//! it: it is cleared before the worker runs, and whoever sets it makes it run once more.

use loom::{
    sync::{
        atomic::{
            fence, AtomicBool, AtomicUsize,
            Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
        },
        Mutex,
    },
    thread,
};
// All threads of a model are in one of the system. loom's Arc may not be dropped by who panics.
use std::rc::Rc;

const TASKS: usize = 2;

#[derive(Clone, Copy, Eq, PartialEq)]
enum Broken {
    Nothing,
    /// A task waits for the drain that is running.
    Next,
    /// It reads how many have begun before it has asked.
    Early,
    /// Who finds that it has asked need not see what it has done before.
    Bit,
    /// A drain counts itself when it has read what was deferred,
    Count,
    /// or neither that nor the look at the requests is a barrier.
    DrainBarrier,
    /// `migrc_over` is stored without release.
    Release,
}

#[derive(Default)]
struct Migrc {
    deferred: [AtomicBool; TASKS],
    flushed: [AtomicBool; TASKS],
    wanted: AtomicUsize,
    begun: AtomicUsize,
    over: AtomicUsize,
    pending: AtomicBool,
    worker: Mutex<()>,
}

impl Migrc {
    /// `migrc_begin_drain()`
    fn run(&self, broken: Broken) {
        let _one_at_a_time = self.worker.lock().unwrap();

        self.pending.store(false, Relaxed);
        fence(SeqCst);
        let count = || self.begun.fetch_add(1, Relaxed) + 1;
        let early = (broken != Broken::Count).then(count);
        if broken != Broken::DrainBarrier {
            fence(SeqCst);
        }
        let order = match broken {
            Broken::DrainBarrier => Relaxed,
            _ => AcqRel,
        };
        if self.wanted.swap(0, order) != 0 {
            for (deferred, flushed) in self.deferred.iter().zip(&self.flushed) {
                if deferred.load(Relaxed) {
                    flushed.store(true, Relaxed);
                }
            }
        }
        let nr = early.unwrap_or_else(count);
        self.over.store(
            nr,
            match broken {
                Broken::Release => Relaxed,
                _ => Release,
            },
        );
    }

    /// `queue_work()`; whether the worker is to run once more.
    fn queue(&self) -> bool {
        fence(SeqCst);
        !self.pending.swap(true, Relaxed)
    }
}

/// `migrc_drain()` of a task that has deferred something.
/// Returns which drain it waits for.
fn drain(migrc: Rc<Migrc>, task: usize, broken: Broken) -> usize {
    let early = (broken == Broken::Early).then(|| migrc.begun.load(Relaxed));

    migrc.deferred[task].store(true, Relaxed);
    // `atomic_fetch_or()`: a full barrier on both sides.
    if broken != Broken::Bit {
        fence(SeqCst);
    }
    migrc.wanted.fetch_or(1 << task, Relaxed);
    fence(SeqCst);
    let begun = early.unwrap_or_else(|| migrc.begun.load(Relaxed));
    let worker = migrc.queue().then(|| {
        let migrc = migrc.clone();

        thread::spawn(move || migrc.run(broken))
    });
    let next = begun + usize::from(broken != Broken::Next);

    // `migrc_wait()`, at any time
    if migrc.over.load(Acquire) >= next {
        assert!(migrc.flushed[task].load(Relaxed), "not flushed");
    }
    if let Some(worker) = worker {
        worker.join().unwrap();
    }
    next
}

fn run(broken: Broken) {
    let mut model = loom::model::Builder::new();

    model.preemption_bound = Some(3);
    model.check(move || {
        let migrc = Rc::new(Migrc::default());
        let other = migrc.clone();
        let thread = thread::spawn(move || drain(other, 1, broken));
        let nexts = [drain(migrc.clone(), 0, broken), thread.join().unwrap()];

        let over = migrc.over.load(Relaxed);
        assert!(nexts.iter().all(|&next| over >= next), "waits for ever");
    });
}

#[test]
fn a_task_that_has_waited_is_served() {
    run(Broken::Nothing);
}

#[test]
#[should_panic(expected = "not flushed")]
fn a_drain_that_is_running_may_be_too_early() {
    run(Broken::Next);
}

#[test]
#[should_panic(expected = "not flushed")]
fn a_task_that_has_not_asked_yet_may_be_too_early() {
    run(Broken::Early);
}

/// The drain that it waits for has nothing to do then.
#[test]
#[should_panic(expected = "not flushed")]
fn a_drain_that_sees_the_request_sees_what_came_before() {
    run(Broken::Bit);
}

#[test]
#[should_panic(expected = "not flushed")]
fn a_drain_counts_itself_first() {
    run(Broken::Count);
}

#[test]
#[should_panic(expected = "not flushed")]
fn a_drain_has_a_barrier() {
    run(Broken::DrainBarrier);
}

#[test]
#[should_panic(expected = "not flushed")]
fn the_end_of_a_drain_says_that_it_has_flushed() {
    run(Broken::Release);
}
