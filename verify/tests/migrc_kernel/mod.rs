// SPDX-License-Identifier: GPL-2.0

//! What stands around `mm/migrc/registered.rs`, for loom: the kernel's atomics and C, TLBs, and the
//! migrations, drains, hooks and exits. They follow `migrc_mark()` in `mm/migrc/migrc_act.c`, and
//! `migrc_run_drain()` and `migrc_unregister()` in `mm/migrc/migrc_main.rs`.

use crate::registered::{flush_all, Drainer, Iter, Registered, RegisteredMm};
use bindings::migrc_mm;
use loom::{
    sync::{
        atomic::{fence, AtomicBool, Ordering, Ordering::*},
        Mutex,
    },
    thread,
};
// All threads of a model are in one of the system. loom's Arc may not be dropped by one that panics.
use std::{
    cell::{Cell, RefCell},
    mem::take,
    rc::Rc,
};
use verify::migrc::{
    generation::Generation,
    ledger::{Chain, Ledger, Mms, Unflushed},
    readmostly::Credit,
};

/// What is broken.
#[derive(Clone, Copy, Eq, PartialEq)]
pub enum Broken {
    Nothing,
    /// `cmpxchg()` stores without a look.
    Exchange,
    /// `cmpxchg()` orders nothing.
    Order,
    /// The deferral can be seen before the clear.
    Clear,
    /// The source is added to the ledger before its address space to the list.
    Register,
    /// A drain takes the list before the sources.
    Walk,
    /// A drain flushes before it takes the sources.
    Splice,
    /// An exit does not wait for a drain.
    Exit,
    /// What has left the list leads nowhere.
    Back,
}

thread_local!(static BROKEN: Cell<Broken> = const { Cell::new(Broken::Nothing) });

pub fn broken(what: Broken) -> bool {
    BROKEN.get() == what
}

/// What the kernel has in the crate `kernel`.
pub mod sync {
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

pub mod types {
    pub type NotThreadSafe = std::marker::PhantomData<*mut ()>;
    #[allow(non_upper_case_globals)]
    pub const NotThreadSafe: NotThreadSafe = std::marker::PhantomData;
}

pub mod c {
    use crate::registered::{Drainer, RegisteredMm};

    /// loom lets others in anyway.
    pub fn relax() {}

    pub fn arch_begin(_: &Drainer) -> usize {
        super::HARDWARE.with_borrow(|hardware| hardware.most)
    }

    pub fn arch_issue(_: &Drainer, mm: RegisteredMm<'_>) {
        super::HARDWARE.with_borrow_mut(|hardware| hardware.issue(mm.as_raw()));
    }

    pub fn arch_issue_all(_: &Drainer) {
        super::HARDWARE.with_borrow_mut(|hardware| hardware.issue_all());
    }

    pub fn arch_sync(_: &Drainer, mms: usize) {
        super::HARDWARE.with_borrow_mut(|hardware| hardware.sync(mms));
    }
}

pub mod bindings {
    use loom::sync::atomic::{AtomicBool, AtomicI64};

    /// `struct migrc_mm`, and the address space.
    #[allow(non_camel_case_types)]
    pub struct migrc_mm {
        pub deferred: AtomicI64,
        pub flushed: AtomicI64,
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
}

/// An invalidation of an address space. A TLB is filled again as soon as it begins, with what can
/// be found at this time; the old entries are gone only when it is over.
struct Invalidation {
    mm: *mut migrc_mm,
    gone: Vec<usize>,
}

impl Invalidation {
    fn begin(mm: *mut migrc_mm) -> Self {
        // SAFETY: Nothing is freed before all threads have ended.
        let ptes = unsafe { &(*mm).ptes };
        let gone = (0..ptes.len()).filter(|&page| !ptes[page].load(Relaxed));

        Self {
            mm,
            gone: gone.collect(),
        }
    }

    fn end(self) {
        // SAFETY: As above.
        let tlb = unsafe { &(*self.mm).tlb };

        self.gone
            .iter()
            .for_each(|&page| tlb[page].store(false, Relaxed));
    }
}

// How many have left the list, perhaps after they were counted.
thread_local!(static GONE: Cell<usize> = const { Cell::new(0) });
thread_local!(static HARDWARE: RefCell<Hardware> = RefCell::default());

/// The invalidations of a drain, of which there is one at a time.
#[derive(Default)]
struct Hardware {
    /// All that there are.
    mms: Vec<*mut migrc_mm>,
    /// Of more than these, all are invalidated at once: `ARCH_MIGRC_MAX_ASIDS`.
    most: usize,
    running: Vec<Invalidation>,
}

impl Hardware {
    fn issue_all(&mut self) {
        let all = self.mms.iter().map(|&mm| Invalidation::begin(mm));

        self.running.extend(all);
    }

    fn issue(&mut self, mm: *mut migrc_mm) {
        // SAFETY: As above.
        let exited = unsafe { (*mm).exited.load(Relaxed) };

        assert!(!exited, "flushed after its exit");
        self.running.push(Invalidation::begin(mm));
    }

    fn sync(&mut self, mms: usize) {
        let expected = if mms <= self.most {
            mms
        } else {
            self.mms.len()
        };

        let all = expected.saturating_sub(GONE.get())..=expected;
        assert!(all.contains(&self.running.len()), "not each, or one twice");
        take(&mut self.running)
            .into_iter()
            .for_each(Invalidation::end);
    }
}

/// A page of an address space.
pub type Source = (usize, usize);

struct Sources(Vec<Source>);

impl Chain for Sources {
    const EMPTY: Self = Self(Vec::new());

    type Folio = Source;

    fn push(&mut self, source: Source) {
        self.0.push(source);
    }

    fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// As in the kernel: it was not waited for a drain.
pub fn removed_dropped() {
    panic!("an address space is removed, and a drain is not waited for");
}

/// None if it was flushed already.
struct Drained<'d>(Option<Iter<'d>>);

// SAFETY: The models check it, and are seen to fail where it does not.
unsafe impl Mms for Drained<'_> {
    fn flush_all(&mut self) -> usize {
        self.0.map_or(0, flush_all)
    }
}

/// What a model begins with.
#[derive(Clone, Copy)]
pub struct Start {
    pub mms: usize,
    /// Of each.
    pub pages: usize,
    /// Of each.
    pub credit: Credit,
    /// See [`Hardware`].
    pub most: usize,
    /// How often one thread may interrupt another; all interleavings of more than two would take
    /// minutes.
    pub preemptions: Option<usize>,
}

/// Address spaces, and the locks of migrc.
pub struct Migrc {
    pub mms: Vec<*mut migrc_mm>,
    list: Mutex<Registered>,
    drain: Mutex<()>,
    ledger: Mutex<Ledger<Sources>>,
    pub offers: Mutex<Vec<bool>>,
}

impl Migrc {
    pub fn new(start: Start) -> Self {
        let all = || (0..start.pages).map(|_| AtomicBool::new(true)).collect();
        let mm = || migrc_mm {
            deferred: Default::default(),
            flushed: Default::default(),
            seen: 0,
            next: std::ptr::null_mut(),
            prev: std::ptr::null_mut(),
            readmostly: loom::sync::atomic::AtomicI64::new(start.credit.into_raw()),
            registered: false,
            ptes: all(),
            tlb: all(),
            exited: AtomicBool::new(false),
        };
        let mms: Vec<_> = (0..start.mms)
            .map(|_| Box::into_raw(Box::new(mm())))
            .collect();
        let mut ledger = Ledger::new();

        ledger.open();
        GONE.set(0);
        HARDWARE.set(Hardware {
            mms: mms.clone(),
            most: start.most,
            running: Vec::new(),
        });
        Self {
            mms,
            list: Mutex::new(Registered::new()),
            drain: Mutex::new(()),
            ledger: Mutex::new(ledger),
            offers: Mutex::new(Vec::new()),
        }
    }

    pub fn mm(&self, mm: usize) -> &migrc_mm {
        // SAFETY: Until `self` is dropped.
        unsafe { &*self.mms[mm] }
    }

    pub fn registered(&self, mm: usize) -> RegisteredMm<'_> {
        // SAFETY: As above.
        unsafe { RegisteredMm::from_raw(self.mms[mm]) }
    }

    fn is_cached(&self, (mm, page): Source) -> bool {
        self.mm(mm).tlb[page].load(Relaxed)
    }

    /// `migrc_register()`, if the plain look says so.
    ///
    /// loom cannot switch between the stores to the mark and to the list, but they are under the
    /// lock of the list: it is no matter when the mark is seen, since who walks takes the lock.
    fn register(&self, mm: usize) {
        let mm = self.mms[mm];

        // SAFETY: A read of a bool that one thread of the system writes.
        if !unsafe { (&raw const (*mm).registered).read_volatile() } {
            // SAFETY: Alive until it is removed.
            unsafe { self.list.lock().unwrap().add(mm) };
        }
    }

    /// `migrc_defer_slow()`, and then `migrc_add()`.
    pub fn migrate(&self, (mm, page): Source) {
        self.mm(mm).ptes[page].store(false, Relaxed);
        if !broken(Broken::Clear) {
            fence(Release);
        }
        self.mm(mm).deferred.fetch_add(1, Relaxed);

        let add = || {
            let added = self.ledger.lock().unwrap().add((mm, page), 1, || 0);

            assert!(added.is_ok());
        };
        if broken(Broken::Register) {
            add();
            self.register(mm);
        } else {
            self.register(mm);
            add();
        }
    }

    /// `migrc_run_drain()`
    pub fn drain(&self) {
        let mut unflushed = Unflushed::new();

        let _guard = self.drain.lock().unwrap();
        // SAFETY: Nobody else has the lock, and what is removed stays as it is.
        let drainer = unsafe { Drainer::new() };
        let walk = || self.list.lock().unwrap().iter(&drainer);
        let early = broken(Broken::Walk).then(walk);
        if broken(Broken::Splice) {
            flush_all(walk());
        }
        self.ledger.lock().unwrap().splice_into(&mut unflushed);
        let Some(unflushed) = unflushed.some() else {
            return;
        };
        let mms = (!broken(Broken::Splice)).then(|| early.unwrap_or_else(walk));

        for source in unflushed.flush(&mut Drained(mms)).into_chain().0 {
            assert!(!self.is_cached(source), "released unflushed");
        }
    }

    /// What was deferred and what is covered, by `order`.
    fn numbers(&self, mm: usize, order: Ordering) -> (Generation, u64) {
        let deferred = self.mm(mm).deferred.load(order) as u64;
        let flushed = self.mm(mm).flushed.load(order) as u64;

        (Generation::from_raw(deferred), flushed)
    }

    /// `migrc_flush_mm()`. Its plain loads are followed by a branch and by stores only, of which C11
    /// knows nothing; Acquire stands for that.
    pub fn hook(&self, source: Source) {
        let (seen, flushed) = self.numbers(source.0, Acquire);

        if seen.is_pending(flushed) {
            Invalidation::begin(self.mms[source.0]).end();
            self.registered(source.0).cover(seen);
            let (_, flushed) = self.numbers(source.0, Relaxed);
            assert_eq!(seen.cover(flushed), None, "flushed, but uncovered");
        }
        if seen.into_raw() != 0 {
            assert!(!self.is_cached(source), "not flushed");
        }
    }

    /// `migrc_mm_exit()`: `exit_mmap()` is done, and the mm is about to be freed.
    pub fn exit(&self, mm: usize) {
        self.mm(mm)
            .tlb
            .iter()
            .for_each(|tlb| tlb.store(false, Relaxed));
        let gone = self.mms[mm];
        // SAFETY: In the list, and valid until all threads have ended.
        let removed = unsafe { self.list.lock().unwrap().remove(gone) };
        GONE.set(GONE.get() + 1);
        if broken(Broken::Back) {
            // SAFETY: As above.
            unsafe { (*gone).next = std::ptr::null_mut() };
        }
        // `migrc_wait_for_drain()`
        let wait = || {
            if !broken(Broken::Exit) {
                drop(self.drain.lock().unwrap());
            }
        };
        // SAFETY: Who takes this lock has waited for the drain that has it.
        unsafe { removed.wait(wait) };
        self.mm(mm).exited.store(true, Relaxed);
    }

    /// Nobody else is left.
    pub fn end(&self) {
        self.drain();
        for mm in 0..self.mms.len() {
            let (deferred, flushed) = self.numbers(mm, Relaxed);
            let pending = deferred.is_pending(flushed);

            assert!(!pending || self.mm(mm).exited.load(Relaxed), "uncovered");
        }
    }
}

impl Drop for Migrc {
    fn drop(&mut self) {
        for mm in &self.mms {
            // SAFETY: From a box, and all threads have ended.
            drop(unsafe { Box::from_raw(*mm) });
        }
    }
}

pub type Thread = fn(&Migrc);

pub const START: Start = Start {
    mms: 1,
    pages: 1,
    credit: Credit::from_raw(0),
    most: usize::MAX,
    preemptions: Some(4),
};

/// `first`, then every interleaving of all of `threads`, `last` after them.
pub fn run(what: Broken, start: Start, first: Thread, threads: &[Thread], last: Thread) {
    let threads = threads.to_vec();
    let mut model = loom::model::Builder::new();

    BROKEN.set(what);
    model.preemption_bound = start.preemptions;
    model.check(move || {
        let migrc = Rc::new(Migrc::new(start));

        first(&migrc);
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

pub const NOTHING: Thread = |_| {};
