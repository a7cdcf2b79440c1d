// SPDX-License-Identifier: GPL-2.0

//! Who gets write access to a file flushes what was deferred of it, or the migration does.
//!
//! A model of `freeze()`, `migrc_still_frozen()`, `migrc_write_access()` and `migrc_zero_range()`
//! in `mm/migrc/migrc_file.c`, run with loom: every interleaving, and every value that a load may
//! return. One folio is migrated while others open the file for writing, or zero a part of it, and
//! the migration of another folio begins.
//!
//! What makes it right are the second and the third look at `i_writecount`, with the barriers
//! before them. The first one, in `freeze()`, spares a drain if there is a writer already, and
//! needs no barrier.
//!
//! `nobody_writes()` looks at `i_mmap_writable`, too, which is left out here: `i_writecount` alone
//! is enough. A shared mapping that may be written to has a file that is open for writing. It is
//! counted after the file is, and not any more when the file is put, which comes after the flush
//! of its entries. To find it counted, at any time, makes `freeze()` refuse, or
//! `migrc_still_frozen()` flush: neither can be wrong.

use loom::{
    sync::{
        atomic::{
            fence, AtomicBool, AtomicIsize, AtomicUsize,
            Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
        },
        Arc, Mutex,
    },
    thread,
};

/// What may be left out of the rules.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Without {
    Nothing,
    /// The look at `i_writecount` before the walk,
    Look,
    /// that when the walk is over, together with the one at the flag,
    Recheck,
    /// or only the one at `i_writecount`,
    RecheckOfWriters,
    /// or only the one at the flag,
    RecheckOfFlag,
    /// or only the last one at `i_writecount`.
    LastLook,
    /// `smp_mb()` before that.
    LastBarrier,
    /// `smp_mb()` between the deferral and that look.
    Barrier,
    /// `smp_rmb()` between the look at `i_writecount` and the one at the flag.
    ReadBarrier,
    /// The writer does not drain, nor does who zeroes.
    Drain,
    /// The writer clears the flag before it drains, instead of after it.
    Order,
    /// `atomic_inc_unless_negative()` is no full barrier.
    FullIncrement,
    /// `test_bit_acquire()`
    Acquire,
    /// The unlock of `clear_bit_unlock()`.
    Unlock,
    /// `smp_mb__after_atomic()` between that and the decrement.
    BarrierBeforeDecrement,
}

struct File {
    writers: AtomicIsize,
    flag: AtomicBool,
    deferred: AtomicUsize,
    flushed: AtomicUsize,
    drain: Mutex<()>,
    /// The folio's lock, and up to which deferral its mappings must be flushed.
    folio: Mutex<usize>,
    without: Without,
}

impl File {
    fn new(without: Without) -> Self {
        Self {
            writers: AtomicIsize::new(0),
            flag: AtomicBool::new(false),
            deferred: AtomicUsize::new(0),
            flushed: AtomicUsize::new(0),
            drain: Mutex::new(()),
            folio: Mutex::new(0),
            without,
        }
    }

    /// All that was deferred before.
    fn flush(&self) {
        let _guard = self.drain.lock().unwrap();

        self.flushed.store(self.deferred.load(Acquire), Release);
    }

    fn freeze(&self) -> bool {
        if self.without != Without::Look && self.writers.load(Relaxed) > 0 {
            return false;
        }
        if !self.flag.load(Relaxed) {
            self.flag.swap(true, Relaxed);
        }
        true
    }

    fn still_frozen(&self) -> bool {
        if self.without == Without::Recheck {
            return true;
        }
        if self.without != Without::Barrier {
            fence(SeqCst);
        }
        if self.without != Without::RecheckOfWriters && self.writers.load(Relaxed) > 0 {
            return false;
        }
        if self.without != Without::ReadBarrier {
            fence(Acquire);
        }
        if self.without != Without::RecheckOfFlag && !self.flag.load(Relaxed) {
            return false;
        }
        if self.without != Without::LastBarrier {
            fence(SeqCst);
        }
        matches!(self.without, Without::LastLook | Without::RecheckOfWriters)
            || self.writers.load(Relaxed) <= 0
    }

    fn migrate(&self) {
        let mut folio = self.folio.lock().unwrap();

        if !self.freeze() {
            return;
        }
        *folio = self.deferred.fetch_add(1, Release) + 1;
        if !self.still_frozen() {
            self.flush();
        }
    }

    /// `migrc_write_access()`
    fn write_access(&self) {
        let order = match self.without {
            Without::Acquire => Relaxed,
            _ => Acquire,
        };

        if !self.flag.load(order) {
            return;
        }
        if self.without == Without::Order {
            self.flag.store(false, Relaxed);
            fence(SeqCst);
        }
        if self.without != Without::Drain {
            self.flush();
        }
        let order = match self.without {
            Without::Order => return,
            Without::Unlock => Relaxed,
            _ => Release,
        };
        self.flag.store(false, order);
        if self.without != Without::BarrierBeforeDecrement {
            fence(SeqCst);
        }
    }

    /// Opens, does what `f` does, and closes.
    fn write(&self, f: impl FnOnce(&Self)) {
        if self.without == Without::FullIncrement {
            self.writers.fetch_add(1, Relaxed);
        } else {
            self.writers.fetch_add(1, AcqRel);
            fence(SeqCst);
        }
        self.write_access();
        f(self);
        self.writers.fetch_sub(1, Relaxed);
    }

    /// `migrc_zero_range()`. A branch and a store follow the look at the flag, of which C11 knows
    /// nothing; Acquire stands for that.
    fn zero(&self) {
        let folio = self.folio.lock().unwrap();

        if self.flag.load(Acquire) && self.without != Without::Drain {
            self.flush();
        }
        self.check(*folio);
    }

    fn store(&self) {
        let deferral = *self.folio.lock().unwrap();

        self.check(deferral);
    }

    /// No TLB may lead to where the folio was.
    fn check(&self, deferral: usize) {
        assert!(self.flushed.load(Acquire) >= deferral, "stale");
    }
}

type Thread = fn(&File);

/// One writes to another folio first, so that it can be over before the walk is.
const WRITERS: [Thread; 2] = [
    |file| file.write(File::store),
    |file| {
        file.write(|_| {});
        file.write(File::store);
    },
];

/// The other sets the flag, for a folio that nobody writes to.
const FREEZING: [Thread; 2] = [WRITERS[1], |file| {
    file.freeze();
}];

/// One clears the flag, the other looks at it without being a writer.
const ZEROING: [Thread; 2] = [File::zero, |file| file.write(|_| {})];

/// What some need to go wrong, or might.
const MORE_PREEMPTIONS: usize = 4;

fn run(without: Without, others: [Thread; 2]) {
    run_with(3, without, others);
}

fn run_with(preemptions: usize, without: Without, others: [Thread; 2]) {
    let mut model = loom::model::Builder::new();

    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let file = Arc::new(File::new(without));
        let others = others.map(|other| {
            let file = file.clone();

            thread::spawn(move || other(&file))
        });

        file.migrate();
        for other in others {
            other.join().unwrap();
        }
    });
}

#[test]
fn no_writer_meets_a_stale_translation() {
    run(Without::Nothing, WRITERS);
}

#[test]
fn the_first_look_is_a_filter() {
    run(Without::Look, WRITERS);
    run(Without::Look, ZEROING);
}

#[test]
fn no_zeroing_meets_a_stale_translation() {
    run(Without::Nothing, ZEROING);
}

#[test]
#[should_panic(expected = "stale")]
fn drain_is_needed_before_zeroing() {
    run(Without::Drain, ZEROING);
}

#[test]
#[should_panic(expected = "stale")]
fn recheck_is_needed() {
    run(Without::Recheck, WRITERS);
}

#[test]
#[should_panic(expected = "stale")]
fn recheck_of_writers_is_needed() {
    run(Without::RecheckOfWriters, WRITERS);
}

#[test]
#[should_panic(expected = "stale")]
fn recheck_of_the_flag_is_needed() {
    run(Without::RecheckOfFlag, WRITERS);
}

/// Another migration may set the flag again, when the next writer has looked at it.
#[test]
fn no_writer_meets_a_stale_translation_while_another_folio_migrates() {
    run_with(MORE_PREEMPTIONS, Without::Nothing, FREEZING);
}

#[test]
#[should_panic(expected = "stale")]
fn last_look_is_needed() {
    run_with(MORE_PREEMPTIONS, Without::LastLook, FREEZING);
}

#[test]
#[should_panic(expected = "stale")]
fn barrier_before_the_last_look_is_needed() {
    run_with(MORE_PREEMPTIONS, Without::LastBarrier, FREEZING);
}

#[test]
#[should_panic(expected = "stale")]
fn barrier_is_needed() {
    run(Without::Barrier, WRITERS);
}

#[test]
#[should_panic(expected = "stale")]
fn read_barrier_is_needed() {
    run_with(MORE_PREEMPTIONS, Without::ReadBarrier, WRITERS);
}

#[test]
#[should_panic(expected = "stale")]
fn drain_is_needed() {
    run(Without::Drain, WRITERS);
}

#[test]
#[should_panic(expected = "stale")]
fn flag_is_cleared_after_the_drain() {
    run(Without::Order, WRITERS);
}

#[test]
#[should_panic(expected = "stale")]
fn full_increment_is_needed() {
    run(Without::FullIncrement, WRITERS);
}

#[test]
#[should_panic(expected = "stale")]
fn acquire_is_needed() {
    run(Without::Acquire, WRITERS);
}

#[test]
#[should_panic(expected = "stale")]
fn unlock_is_needed() {
    run(Without::Unlock, WRITERS);
}

#[test]
#[should_panic(expected = "stale")]
fn barrier_before_the_decrement_is_needed() {
    run(Without::BarrierBeforeDecrement, WRITERS);
}
