// SPDX-License-Identifier: GPL-2.0

//! The words of an address space that migrc changes without a lock, and the list that a drain walks
//! without one: `mm/migrc/registered.rs` itself, compiled for loom.
//!
//! What stands around it follows `migrc_defer_slow()` in `mm/migrc/migrc_shim.c`, and `drain()` and
//! `migrc_unregister()` in `mm/migrc/migrc_main.rs`.

extern crate self as kernel;

use loom::{
    sync::{
        atomic::{fence, AtomicBool, Ordering::*},
        Mutex,
    },
    thread,
};
// All threads of a model are in one of the system. loom's Arc may not be dropped by one that panics.
use std::{cell::Cell, rc::Rc};
use verify::migrc::{generation, readmostly};

use bindings::migrc_mm;
use generation::Generation;
use readmostly::Credit;
use registered::{flush_all, Registered, RegisteredMm};

#[path = "../../mm/migrc/registered.rs"]
mod registered;

/// What is broken.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Broken {
    Nothing,
    /// `cmpxchg()` stores without a look.
    Exchange,
    /// `cmpxchg()` orders nothing.
    Order,
    /// The source is added to the ledger before its address space to the list.
    Register,
    /// A drain takes the list before the sources.
    Walk,
    /// An exit does not wait for a drain.
    Exit,
}

thread_local!(static BROKEN: Cell<Broken> = const { Cell::new(Broken::Nothing) });

fn broken(what: Broken) -> bool {
    BROKEN.get() == what
}

/// What the kernel has in the crate `kernel`.
mod sync {
    pub mod atomic {
        use crate::{broken, Broken};
        use loom::sync::atomic::{AtomicI64, Ordering};

        pub mod ordering {
            pub struct Relaxed;
            pub struct Acquire;
            pub struct Full;
        }

        pub trait Order {
            const ORDER: Ordering;
        }

        impl Order for ordering::Relaxed {
            const ORDER: Ordering = Ordering::Relaxed;
        }

        impl Order for ordering::Acquire {
            const ORDER: Ordering = Ordering::Acquire;
        }

        impl Order for ordering::Full {
            const ORDER: Ordering = Ordering::AcqRel;
        }

        /// `Atomic<i64>` is loom's, which [`super::super::bindings`] has where C has an `atomic64_t`.
        #[repr(transparent)]
        pub struct Atomic<T>(AtomicI64, std::marker::PhantomData<T>);

        impl Atomic<i64> {
            /// # Safety
            ///
            /// `word` must lead to a word of [`crate::bindings::migrc_mm`].
            pub unsafe fn from_ptr<'a>(word: *mut i64) -> &'a Self {
                // SAFETY: Transparent, and by the safety requirements.
                unsafe { &*word.cast() }
            }

            pub fn load<O: Order>(&self, _: O) -> i64 {
                self.0.load(O::ORDER)
            }

            pub fn cmpxchg<O: Order>(&self, old: i64, new: i64, _: O) -> Result<i64, i64> {
                if broken(Broken::Exchange) {
                    self.0.store(new, Ordering::Release);
                    return Ok(old);
                }
                let order = match broken(Broken::Order) {
                    true => Ordering::Relaxed,
                    false => O::ORDER,
                };

                self.0.compare_exchange(old, new, order, Ordering::Relaxed)
            }
        }
    }
}

mod bindings {
    use loom::sync::atomic::{AtomicBool, AtomicI64, Ordering::*};

    /// `struct migrc_mm`, and the address space.
    #[allow(non_camel_case_types)]
    pub struct migrc_mm {
        pub generation: AtomicI64,
        pub seen: u64,
        pub next: *mut migrc_mm,
        pub prev: *mut migrc_mm,
        pub readmostly: AtomicI64,
        pub registered: bool,
        /// Whether entries of page tables, and those of a TLB, lead to the sources.
        pub ptes: Vec<AtomicBool>,
        pub tlb: Vec<AtomicBool>,
        pub exited: AtomicBool,
    }

    pub unsafe fn migrc_arch_begin(_mms: usize) -> bool {
        true
    }

    /// A TLB that is invalidated is filled at once, with what can be found at this time.
    pub unsafe fn migrc_arch_issue(mm: *mut migrc_mm) {
        // SAFETY: Nothing is freed before all threads have ended.
        let mm = unsafe { &*mm };

        assert!(!mm.exited.load(Relaxed), "flushed after its exit");
        for (pte, tlb) in mm.ptes.iter().zip(&mm.tlb) {
            if !pte.load(Relaxed) {
                tlb.store(false, Relaxed);
            }
        }
    }

    pub unsafe fn migrc_arch_sync(_mms: usize) {}
}

/// An address space, and the locks of migrc.
struct Migrc {
    mm: *mut migrc_mm,
    mms: Mutex<Registered>,
    drain: Mutex<()>,
    ledger: Mutex<Vec<usize>>,
}

impl Migrc {
    fn new(pages: usize, credit: Credit) -> Self {
        let all = || (0..pages).map(|_| AtomicBool::new(true)).collect();
        let mm = migrc_mm {
            generation: Default::default(),
            seen: 0,
            next: std::ptr::null_mut(),
            prev: std::ptr::null_mut(),
            readmostly: loom::sync::atomic::AtomicI64::new(credit.into_raw()),
            registered: false,
            ptes: all(),
            tlb: all(),
            exited: AtomicBool::new(false),
        };

        Self {
            mm: Box::into_raw(Box::new(mm)),
            mms: Mutex::new(Registered::new()),
            drain: Mutex::new(()),
            ledger: Mutex::new(Vec::new()),
        }
    }

    fn mm(&self) -> &migrc_mm {
        // SAFETY: Until `self` is dropped.
        unsafe { &*self.mm }
    }

    fn registered(&self) -> RegisteredMm {
        // SAFETY: As above.
        unsafe { RegisteredMm::from_raw(self.mm) }
    }

    /// `migrc_register()`, if the plain look says so.
    ///
    /// loom cannot switch between the stores to the mark and to the list, but they are under the
    /// lock of the list: it is no matter when the mark is seen, since who walks takes the lock.
    fn register(&self) {
        // SAFETY: A read of a bool that one thread of the system writes.
        if !unsafe { (&raw const (*self.mm).registered).read_volatile() } {
            // SAFETY: Alive until it is removed.
            unsafe { self.mms.lock().unwrap().add(self.mm) };
        }
    }

    /// `migrc_defer_slow()`, and then `migrc_add()`.
    fn migrate(&self, page: usize) {
        self.mm().ptes[page].store(false, Relaxed);
        fence(Release);
        let deferral = Generation::DEFERRAL as i64;
        self.mm().generation.fetch_add(deferral, Relaxed);

        let add = || self.ledger.lock().unwrap().push(page);
        if broken(Broken::Register) {
            add();
            self.register();
        } else {
            self.register();
            add();
        }
    }

    /// `drain()`
    fn drain(&self) {
        let _guard = self.drain.lock().unwrap();
        // SAFETY: What is removed is removed under the same lock.
        let walk = || unsafe { self.mms.lock().unwrap().iter() };
        let early = broken(Broken::Walk).then(walk);
        let sources = std::mem::take(&mut *self.ledger.lock().unwrap());

        if sources.is_empty() {
            return;
        }
        flush_all(early.unwrap_or_else(walk));
        for page in sources {
            assert!(!self.mm().tlb[page].load(Relaxed), "released unflushed");
        }
    }

    /// `migrc_flush_mm()`. Its plain load is followed by a branch and by stores only, of which C11
    /// knows nothing; Acquire stands for that.
    fn hook(&self, page: usize) {
        let word = self.mm().generation.load(Acquire);
        let seen = Generation::from_raw(word as u64);

        if seen.is_pending() {
            // SAFETY: Not freed.
            unsafe { bindings::migrc_arch_issue(self.mm) };
            self.registered().cover(seen);
        }
        if seen.into_raw() != 0 {
            assert!(!self.mm().tlb[page].load(Relaxed), "not flushed");
        }
    }

    /// `migrc_mm_exit()`: `exit_mmap()` is done, and the mm is about to be freed.
    fn exit(&self) {
        self.mm()
            .tlb
            .iter()
            .for_each(|tlb| tlb.store(false, Relaxed));
        let guard = (!broken(Broken::Exit)).then(|| self.drain.lock().unwrap());

        // SAFETY: In the list.
        unsafe { self.mms.lock().unwrap().remove(self.mm) };
        drop(guard);
        self.mm().exited.store(true, Relaxed);
    }
}

impl Drop for Migrc {
    fn drop(&mut self) {
        // SAFETY: From a box, and all threads have ended.
        drop(unsafe { Box::from_raw(self.mm) });
    }
}

type Thread = fn(&Migrc);

/// In every interleaving of all of `threads`, `last` after them.
fn run(what: Broken, pages: usize, credit: Credit, threads: &[Thread], last: Thread) {
    let threads = threads.to_vec();

    let mut model = loom::model::Builder::new();

    BROKEN.set(what);
    // All interleavings would take minutes.
    model.preemption_bound = Some(3);
    model.check(move || {
        let migrc = Rc::new(Migrc::new(pages, credit));
        let threads: Vec<_> = threads
            .iter()
            .map(|&f| {
                let migrc = migrc.clone();

                thread::spawn(move || f(&migrc))
            })
            .collect();

        for thread in threads {
            thread.join().unwrap();
        }
        last(&migrc);
    });
}

const MIGRATE_0: Thread = |migrc| migrc.migrate(0);
const MIGRATE_1: Thread = |migrc| migrc.migrate(1);

fn drain_races(what: Broken) {
    let last: Thread = |migrc| migrc.drain();

    run(
        what,
        2,
        Credit::default(),
        &[MIGRATE_0, MIGRATE_1, Migrc::drain],
        last,
    );
}

/// Both find the address space unknown, or the second finds it marked by the first.
#[test]
fn a_drain_meets_the_address_space_of_each_source() {
    drain_races(Broken::Nothing);
}

#[test]
#[should_panic(expected = "released unflushed")]
fn an_address_space_is_registered_before_its_source() {
    drain_races(Broken::Register);
}

#[test]
#[should_panic(expected = "released unflushed")]
fn the_list_is_walked_after_the_sources_were_taken() {
    drain_races(Broken::Walk);
}

/// The word, covered by a drain and by a hook, while one more page is deferred.
fn cover_races(what: Broken) {
    run(
        what,
        2,
        Credit::default(),
        &[
            |migrc| {
                migrc.migrate(0);
                migrc.migrate(1);
            },
            Migrc::drain,
            |migrc| migrc.hook(0),
        ],
        |migrc| {
            migrc.hook(1);
            migrc.drain();
        },
    );
}

#[test]
fn a_drain_and_a_hook_cover_what_they_flushed() {
    cover_races(Broken::Nothing);
}

#[test]
#[should_panic(expected = "flushed")]
fn a_store_covers_too_much() {
    cover_races(Broken::Exchange);
}

#[test]
#[should_panic(expected = "flushed")]
fn who_finds_it_covered_sees_the_flush() {
    cover_races(Broken::Order);
}

fn exit_races(what: Broken) {
    run(
        what,
        1,
        Credit::default(),
        &[
            |migrc| {
                migrc.migrate(0);
                migrc.exit();
            },
            Migrc::drain,
        ],
        |_| {},
    );
}

#[test]
fn an_exit_waits_for_a_drain() {
    exit_races(Broken::Nothing);
}

#[test]
#[should_panic(expected = "flushed after its exit")]
fn a_drain_keeps_address_spaces_from_their_exit() {
    exit_races(Broken::Exit);
}

/// There is credit for one page, and one more is earned: whoever asks, the sum is right.
fn credit_races(what: Broken) {
    let one = Credit::from_raw((Credit::START - 1) * Credit::PAGE);

    fn offer(migrc: &Migrc) {
        let protect = migrc.registered().update_credit(Credit::offer);

        // Counted where nobody else uses it.
        migrc.ledger.lock().unwrap().push(protect as usize);
    }
    run(
        what,
        0,
        one,
        &[offer, offer, |migrc| {
            migrc
                .registered()
                .update_credit(|credit| ((), credit.hit()))
        }],
        |migrc| {
            let offers = std::mem::take(&mut *migrc.ledger.lock().unwrap());
            let protected = offers.iter().sum::<usize>() as i64;
            let spared = offers.len() as i64 - protected;
            let spent = (Credit::START - 2 + protected) * Credit::PAGE - spared;

            assert!(protected >= 1, "credit that nobody had");
            let word = migrc.mm().readmostly.load(Relaxed);
            assert_eq!(word, spent, "credit is lost");
        },
    );
}

#[test]
fn credit_is_spent_once() {
    credit_races(Broken::Nothing);
}

#[test]
#[should_panic(expected = "credit is lost")]
fn credit_that_is_stored_is_lost() {
    credit_races(Broken::Exchange);
}
