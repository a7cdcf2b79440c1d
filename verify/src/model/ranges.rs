// SPDX-License-Identifier: GPL-2.0

//! A TLB that really holds translations: a page that was cleared stays cached until something that
//! was issued covers it. References to address spaces are tokens that check at their end that
//! nothing needs them any more. Beside the array of ranges there is a queue of them, as they came.

use crate::tlb_batch::ranges::{Holds, Ranges, Tlb, CAPACITY, HELD};
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, VecDeque},
    rc::Rc,
};

pub const PAGE: usize = 4096;
/// More than can be held, and enough for an evicted range to be of any of them.
pub const MMS: usize = HELD + 3;
pub const PAGES: usize = 96;

/// What the hardware offers; nothing may depend on it but the number of operations.
#[derive(Clone, Copy, Debug)]
pub struct Hardware {
    /// Fewest bytes for which all of an address space is cheaper than several ranges.
    pub mm_bytes: Option<usize>,
    /// Whether one operation can invalidate and wait, and the longest range for which it does.
    pub one_operation: Option<usize>,
}

#[derive(Default)]
pub struct State {
    /// Pages that were cleared at any time: those that an exact invalidation may cover.
    pub cleared: BTreeSet<(usize, usize)>,
    /// Pages that were cleared and may still be cached.
    pub stale: BTreeSet<(usize, usize)>,
    /// Something was issued and nobody has waited for it yet.
    pub unsynced: bool,
    pub issued: usize,
    pub synced: usize,
    /// Invalidated although not cleared.
    pub foreign: Vec<(usize, usize)>,
    /// Number of ranges by address space.
    pub ranges: [usize; MMS],
    /// The first page of each range, in the order in which they were filled; unknown from when some
    /// are joined or taken until the batch is empty.
    pub filled: Option<VecDeque<(usize, usize)>>,
    /// References by address space.
    pub refs: BTreeMap<usize, usize>,
    pub taken: usize,
    pub dropped: usize,
    /// Whether dropping a reference is wrong at this moment.
    pub locked: bool,
    /// What was wrong about the drop of a reference.
    pub misdropped: Option<&'static str>,
}

impl State {
    pub fn owes(&self, mm: usize) -> bool {
        self.stale.range((mm, 0)..(mm + 1, 0)).next().is_some()
    }
}

/// The hardware and the references, shared with the tokens.
#[derive(Clone)]
pub struct Model {
    pub hardware: Hardware,
    pub state: Rc<RefCell<State>>,
}

impl Model {
    pub fn new(hardware: Hardware) -> Self {
        Self {
            hardware,
            state: Default::default(),
        }
    }

    pub fn invalidate(&self, mm: usize, start: usize, end: usize) {
        let mut state = self.state.borrow_mut();

        assert!(start < end && (start | end) & (PAGE - 1) == 0);
        for page in start / PAGE..end / PAGE {
            if !state.cleared.contains(&(mm, page)) {
                state.foreign.push((mm, page));
            }
            state.stale.remove(&(mm, page));
        }
        state.issued += 1;
    }
}

impl Tlb<usize> for Model {
    fn issue(&mut self, mm: usize, start: usize, end: usize) {
        self.invalidate(mm, start, end);
        self.state.borrow_mut().unsynced = true;
    }

    fn evict(&mut self, mm: usize, start: usize, end: usize) {
        if let Some(filled) = &mut self.state.borrow_mut().filled {
            let first = filled.pop_front();

            assert!(
                first.is_some_and(|(m, page)| m == mm && (start..end).contains(&(page * PAGE))),
                "{first:?} was filled first"
            );
        }
        self.issue(mm, start, end);
    }

    fn issue_mm(&mut self, mm: usize, bytes: usize) {
        let mut state = self.state.borrow_mut();

        assert!(
            self.hardware.mm_bytes.is_some_and(|limit| bytes >= limit),
            "all of an address space, although that is not preferred for {bytes} bytes"
        );
        assert!(state.owes(mm), "all of an address space that owes nothing");
        assert!(
            state.ranges[mm] > 1,
            "all of an address space for one range"
        );
        state.stale.retain(|&(m, _)| m != mm);
        state.issued += 1;
        state.unsynced = true;
    }

    fn prefers_mm(&self, bytes: usize) -> bool {
        self.hardware.mm_bytes.is_some_and(|limit| bytes >= limit)
    }

    fn flush(&mut self, mm: usize, start: usize, end: usize, bytes: usize) -> bool {
        assert!(
            !self.state.borrow().unsynced,
            "one operation does not wait for what was issued before it"
        );
        assert!(0 < bytes && start < end);
        if self
            .hardware
            .one_operation
            .is_none_or(|longest| end - start > longest)
        {
            return false;
        }
        // The hull may have gaps, so that foreign pages are no surprise here.
        let foreign = self.state.borrow().foreign.len();
        self.invalidate(mm, start, end);
        let mut state = self.state.borrow_mut();
        state.foreign.truncate(foreign);
        state.synced += 1;
        true
    }

    fn sync(&mut self) {
        let mut state = self.state.borrow_mut();

        state.synced += 1;
        state.unsynced = false;
    }
}

/// A reference to an address space.
pub struct Hold {
    pub mm: usize,
    pub state: Rc<RefCell<State>>,
}

impl Hold {
    pub fn new(mm: usize, state: &Rc<RefCell<State>>) -> Self {
        let mut s = state.borrow_mut();

        *s.refs.entry(mm).or_default() += 1;
        s.taken += 1;
        drop(s);
        Self {
            mm,
            state: Rc::clone(state),
        }
    }
}

impl Holds<usize> for Hold {
    fn mm(&self) -> usize {
        self.mm
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.state.borrow_mut();

        if state.locked {
            state.misdropped = Some("where a spinlock may be held");
        } else if state.owes(self.mm) {
            state.misdropped = Some("with something owed");
        }
        *state.refs.get_mut(&self.mm).expect("was taken") -= 1;
        state.dropped += 1;
    }
}

/// `struct tlb_batch` as C sees it.
#[repr(C)]
pub struct Raw {
    pub nr: u8,
    pub last: u8,
    pub unsynced: bool,
    pub issued: bool,
    pub evicted: u32,
    pub evicted_bytes: usize,
    pub range: [RawRange; CAPACITY],
    pub held: [Option<Hold>; HELD],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawRange {
    pub start: usize,
    pub end: usize,
    pub mm: usize,
}

impl RawRange {
    fn has(&self, (mm, page): (usize, usize)) -> bool {
        self.mm == mm && (self.start..self.end).contains(&(page * PAGE))
    }
}

impl Raw {
    pub fn of(batch: &mut Ranges<usize, Hold>) -> &mut Self {
        assert_eq!(size_of::<Raw>(), size_of::<Ranges<usize, Hold>>());
        // SAFETY: Both are `repr(C)` and have the same fields.
        unsafe { &mut *std::ptr::from_mut(batch).cast::<Raw>() }
    }

    fn owed(&self) -> &[RawRange] {
        &self.range[..usize::from(self.nr)]
    }
}

/// The inline part of C's `tlb_batch_add()`. Returns whether that was all.
pub fn add_in_c(batch: &mut Ranges<usize, Hold>, mm: usize, start: usize, end: usize) -> bool {
    let raw = Raw::of(batch);

    if raw.nr == 0 {
        raw.range[0] = RawRange { start, end, mm };
        raw.nr = 1;
        raw.unsynced = true;
        return true;
    }
    let last = &mut raw.range[raw.last as usize];
    if last.end == start && last.mm == mm {
        last.end = end;
        return true;
    }
    false
}

#[derive(Clone, Debug)]
pub enum Op {
    /// One `rmap_one()` callback: runs are cleared, then the address space may go away.
    Callback {
        mm: usize,
        runs: Vec<(usize, usize)>,
        hold: bool,
        /// Whether C adds the run if it can, which notices fewer neighbours.
        c: bool,
    },
    IssueMm(usize),
    Issue,
    /// A flush before a put-back, under a spinlock.
    PutBack,
    /// A flush and the end of what needed the address spaces.
    Flush,
    /// Also in the middle, when something is owed.
    Release,
}

pub struct Run {
    pub batch: Ranges<usize, Hold>,
    pub tlb: Model,
    pub adds: usize,
    pub evicted: u32,
    pub flushes: usize,
    /// How many ranges there were at the last look.
    len: usize,
    /// A page of the range that was filled last, unless that has been joined with others.
    newest: Option<(usize, usize)>,
}

impl Run {
    pub fn new(hardware: Hardware) -> Self {
        let tlb = Model::new(hardware);

        tlb.state.borrow_mut().filled = Some(VecDeque::new());
        Self {
            batch: Ranges::new(usize::MAX),
            tlb,
            adds: 0,
            evicted: 0,
            flushes: 0,
            len: 0,
            newest: None,
        }
    }

    pub fn state(&self) -> std::cell::Ref<'_, State> {
        self.tlb.state.borrow()
    }

    pub fn add(&mut self, mm: usize, page: usize, pages: usize, c: bool) {
        let (start, end) = (page * PAGE, (page + pages) * PAGE);
        {
            let mut state = self.tlb.state.borrow_mut();
            for p in page..page + pages {
                state.cleared.insert((mm, p));
                state.stale.insert((mm, p));
            }
        }
        self.adds += 1;
        let evicted = self.evicted;

        if !(c && add_in_c(&mut self.batch, mm, start, end)) {
            if let Some(owed) = self.batch.add(mm, start, end) {
                owed.issue(&mut self.tlb);
                self.evicted += 1;
            }
        }
        if self.batch.len() > self.len || self.evicted > evicted {
            if let Some(filled) = &mut self.tlb.state.borrow_mut().filled {
                filled.push_back((mm, page));
            }
            self.newest = Some((mm, page));
        } else if self.batch.len() < self.len {
            let mut owed = Raw::of(&mut self.batch).owed().iter();

            self.newest = self
                .newest
                .filter(|newest| !owed.any(|r| r.has(*newest) && r.has((mm, page))));
        }
        self.follow();
    }

    /// Looks at what became of the ranges. C sees the last one only, so that it should be the
    /// newest, which is more often a neighbour than any other.
    fn follow(&mut self) {
        let raw = Raw::of(&mut self.batch);
        let mut state = self.tlb.state.borrow_mut();

        if raw.nr == 0 {
            state.filled = Some(VecDeque::new());
        } else if raw.owed().len() < self.len {
            state.filled = None;
        }
        self.len = raw.owed().len();
        state.ranges = [0; MMS];
        raw.owed().iter().for_each(|r| state.ranges[r.mm] += 1);

        // Where two overlap, either could be meant.
        self.newest = self
            .newest
            .filter(|newest| raw.owed().iter().filter(|r| r.has(*newest)).count() == 1);
        if let Some(newest) = self.newest {
            assert!(raw.range[usize::from(raw.last)].has(newest), "{newest:?}");
        }
    }

    pub fn hold(&mut self, mm: usize) {
        let (nothing, taken) = (self.batch.is_empty(), self.state().taken);
        let state = Rc::clone(&self.tlb.state);

        self.batch.hold(mm, || Hold::new(mm, &state), &mut self.tlb);
        assert!(!nothing || self.state().taken == taken, "held for nothing");
    }

    /// What the kernel does under a spinlock drops no reference.
    pub fn locked<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        self.tlb.state.borrow_mut().locked = true;
        let result = f(self);
        self.tlb.state.borrow_mut().locked = false;
        result
    }

    pub fn flush(&mut self) {
        self.flushes += 1;
        self.locked(|run| run.batch.flush(&mut run.tlb));
        self.follow();
    }

    pub fn step(&mut self, op: &Op) {
        match *op {
            Op::Callback {
                mm,
                ref runs,
                hold,
                c,
            } => {
                self.locked(|run| runs.iter().for_each(|&(page, n)| run.add(mm, page, n, c)));
                if hold {
                    self.hold(mm);
                } else {
                    self.batch.issue(&mut self.tlb);
                }
            }
            Op::IssueMm(mm) => self.locked(|run| run.batch.issue_mm(mm, &mut run.tlb)),
            Op::Issue => self.locked(|run| run.batch.issue(&mut run.tlb)),
            Op::PutBack => self.flush(),
            Op::Flush => {
                self.flush();
                self.batch.release();
            }
            Op::Release => self.batch.release(),
        }
        self.follow();
        assert_eq!(self.state().misdropped, None);
    }

    pub fn after(hardware: Hardware, ops: &[Op]) -> Self {
        let mut run = Self::new(hardware);
        ops.iter().for_each(|op| run.step(op));
        run
    }

    /// What is cached is owed, and what was not waited for is known.
    pub fn check_owed(&self) {
        let owes = !self.state().stale.is_empty();
        let empty = self.batch.is_empty();

        assert!(empty <= !owes, "owed by nobody");
        // Not "owes": two ranges may overlap when C has added one of them.
        assert_eq!(!empty || self.state().unsynced, self.batch.is_unsynced());
        assert!(self.batch.len() <= CAPACITY);
    }

    /// What is owed is of an address space that cannot go away, and each of those is held once.
    pub fn check_held(&self) {
        let held: BTreeSet<_> = self.batch.held().collect();

        for mm in 0..MMS {
            let state = self.state();
            assert!(!state.owes(mm) || held.contains(&mm), "{mm} is not held");
            let refs = state.refs.get(&mm).copied().unwrap_or(0);
            assert_eq!(refs, held.contains(&mm) as usize, "references to {mm}");
        }
        assert!(held.len() <= HELD);
    }

    /// After the last flush: nothing is cached that was cleared, nothing was invalidated that was
    /// not, and there were no more operations than without a batch.
    pub fn check_paid(&mut self) {
        assert!(
            self.state().stale.is_empty(),
            "still cached: {:?}",
            self.state().stale
        );
        assert!(!self.state().unsynced && !self.batch.is_unsynced() && self.batch.is_empty());
        assert!(
            self.state().foreign.is_empty(),
            "not cleared: {:?}",
            self.state().foreign
        );
        assert_eq!(self.batch.take_evicted().0, self.evicted);
        assert!(self.state().issued <= self.adds);
        assert!(self.state().synced <= self.flushes);
    }
}
