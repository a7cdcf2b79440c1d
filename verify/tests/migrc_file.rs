// SPDX-License-Identifier: GPL-2.0

//! Who gets write access to a file flushes what was deferred of it, or the migration does.
//!
//! A model of `freeze()`, `migrc_still_frozen()` and `migrc_write_access()` in
//! `mm/migrc/migrc_shim.c`, run with loom: every interleaving, and every value that a load may
//! return. One folio is migrated while others open the file for writing.

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
    /// The look at `i_writecount` when the walk is over,
    Recheck,
    /// or only the one at the flag.
    RecheckOfFlag,
    /// The barrier between the deferral and that look.
    Barrier,
    /// The writer does not drain.
    Drain,
    /// The writer clears the flag before it drains, instead of after it.
    Order,
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

    fn still_frozen(&self) -> bool {
        if self.without == Without::Recheck {
            return true;
        }
        if self.without != Without::Barrier {
            fence(SeqCst);
        }
        if self.writers.load(Relaxed) > 0 {
            return false;
        }
        fence(Acquire);
        self.without == Without::RecheckOfFlag || self.flag.load(Relaxed)
    }

    fn migrate(&self) {
        let mut folio = self.folio.lock().unwrap();

        if !self.flag.load(Relaxed) {
            self.flag.swap(true, Relaxed);
        }
        fence(SeqCst);
        if self.writers.load(Relaxed) > 0 {
            return;
        }
        *folio = self.deferred.fetch_add(1, Release) + 1;
        if !self.still_frozen() {
            self.flush();
        }
    }

    /// Opens, does what `f` does, and closes.
    fn write(&self, f: impl FnOnce(&Self)) {
        self.writers.fetch_add(1, AcqRel);
        fence(SeqCst);
        if self.flag.load(Acquire) {
            if self.without == Without::Order {
                self.flag.store(false, Relaxed);
                fence(SeqCst);
            }
            if self.without != Without::Drain {
                self.flush();
            }
            if self.without != Without::Order {
                self.flag.store(false, Release);
                fence(SeqCst);
            }
        }
        f(self);
        self.writers.fetch_sub(1, Relaxed);
    }

    /// No TLB may lead to where the folio was.
    fn store(&self) {
        let deferral = *self.folio.lock().unwrap();

        assert!(self.flushed.load(Acquire) >= deferral, "stale");
    }
}

/// One writes to another folio first, so that it can be over before the walk is.
fn run(without: Without) {
    let mut model = loom::model::Builder::new();

    model.preemption_bound = Some(3);
    model.check(move || {
        let file = Arc::new(File::new(without));
        let writers: Vec<_> = [1, 2]
            .into_iter()
            .map(|opens| {
                let file = file.clone();

                thread::spawn(move || {
                    if opens == 2 {
                        file.write(|_| {});
                    }
                    file.write(File::store);
                })
            })
            .collect();

        file.migrate();
        for writer in writers {
            writer.join().unwrap();
        }
    });
}

#[test]
fn no_writer_meets_a_stale_translation() {
    run(Without::Nothing);
}

#[test]
#[should_panic(expected = "stale")]
fn recheck_is_needed() {
    run(Without::Recheck);
}

#[test]
#[should_panic(expected = "stale")]
fn recheck_of_the_flag_is_needed() {
    run(Without::RecheckOfFlag);
}

#[test]
#[should_panic(expected = "stale")]
fn barrier_is_needed() {
    run(Without::Barrier);
}

#[test]
#[should_panic(expected = "stale")]
fn drain_is_needed() {
    run(Without::Drain);
}

#[test]
#[should_panic(expected = "stale")]
fn flag_is_cleared_after_the_drain() {
    run(Without::Order);
}
