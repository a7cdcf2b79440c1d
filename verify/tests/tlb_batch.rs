// SPDX-License-Identifier: GPL-2.0

//! Properties of the TLB batch over any sequence of operations.
//!
//! The reference is a TLB that really holds translations: a page that was cleared stays cached
//! until something that was issued covers it. References to address spaces are tokens that check
//! at their end that nothing needs them any more.

use proptest::prelude::*;
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};
use verify::tlb_batch::ranges::{Holds, Ranges, Tlb, CAPACITY, HELD};

const PAGE: usize = 4096;
/// More than can be held, and enough for an evicted range to be of any of them.
const MMS: usize = HELD + 3;
const PAGES: usize = 96;

/// What the hardware offers; nothing may depend on it but the number of operations.
#[derive(Clone, Copy, Debug)]
struct Hardware {
    /// Fewest bytes for which all of an address space is cheaper than several ranges.
    mm_bytes: Option<usize>,
    /// Whether one operation can invalidate and wait, and the longest range for which it does.
    one_operation: Option<usize>,
}

#[derive(Default)]
struct State {
    /// Pages that were cleared at any time: those that an exact invalidation may cover.
    cleared: BTreeSet<(usize, usize)>,
    /// Pages that were cleared and may still be cached.
    stale: BTreeSet<(usize, usize)>,
    /// Something was issued and nobody has waited for it yet.
    unsynced: bool,
    issued: usize,
    synced: usize,
    /// Invalidated although not cleared.
    foreign: Vec<(usize, usize)>,
    /// References by address space.
    refs: BTreeMap<usize, usize>,
    taken: usize,
    dropped: usize,
    /// Whether dropping a reference is wrong at this moment.
    locked: bool,
    /// What was wrong about the drop of a reference.
    misdropped: Option<&'static str>,
}

impl State {
    fn owes(&self, mm: usize) -> bool {
        self.stale.range((mm, 0)..(mm + 1, 0)).next().is_some()
    }
}

/// The hardware and the references, shared with the tokens.
#[derive(Clone)]
struct Model {
    hardware: Hardware,
    state: Rc<RefCell<State>>,
}

impl Model {
    fn new(hardware: Hardware) -> Self {
        Self {
            hardware,
            state: Default::default(),
        }
    }

    fn invalidate(&self, mm: usize, start: usize, end: usize) {
        let mut state = self.state.borrow_mut();

        assert!(start < end && start % PAGE == 0 && end % PAGE == 0);
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

    fn issue_mm(&mut self, mm: usize, bytes: usize) {
        let mut state = self.state.borrow_mut();

        assert!(
            self.hardware.mm_bytes.is_some_and(|limit| bytes >= limit),
            "all of an address space, although that is not preferred for {bytes} bytes"
        );
        assert!(state.owes(mm), "all of an address space that owes nothing");
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
struct Hold {
    mm: usize,
    state: Rc<RefCell<State>>,
}

impl Hold {
    fn new(mm: usize, state: &Rc<RefCell<State>>) -> Self {
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
struct Raw {
    nr: u8,
    last: u8,
    unsynced: bool,
    issued: bool,
    evicted: u32,
    evicted_bytes: usize,
    range: [RawRange; CAPACITY],
    held: [Option<Hold>; HELD],
}

#[repr(C)]
struct RawRange {
    start: usize,
    end: usize,
    mm: usize,
}

/// The inline part of C's `tlb_batch_add()`. Returns whether that was all.
fn add_in_c(batch: &mut Ranges<usize, Hold>, mm: usize, start: usize, end: usize) -> bool {
    assert_eq!(size_of::<Raw>(), size_of::<Ranges<usize, Hold>>());
    // SAFETY: Both are `repr(C)` and have the same fields.
    let raw = unsafe { &mut *std::ptr::from_mut(batch).cast::<Raw>() };

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
enum Op {
    /// One `rmap_one()` callback: runs are cleared, then the address space may go away.
    Callback {
        mm: usize,
        runs: Vec<(usize, usize)>,
        hold: bool,
        /// Whether C adds the run if it can, which notices fewer neighbours.
        c: bool,
    },
    Take,
    IssueMm(usize),
    Issue,
    /// A flush before a put-back, under a spinlock.
    PutBack,
    /// A flush and the end of what needed the address spaces.
    Flush,
    /// Also in the middle, when something is owed.
    Release,
}

fn op() -> impl Strategy<Value = Op> {
    // Anywhere, or side by side as a walk finds them.
    let runs = || {
        prop_oneof![
            prop::collection::vec((0..PAGES, 1..9usize), 0..6),
            (0..PAGES - 40, prop::collection::vec(1..9usize, 1..6)).prop_map(|(first, lens)| {
                lens.into_iter()
                    .scan(first, |next, n| {
                        *next += n;
                        Some((*next - n, n))
                    })
                    .collect()
            }),
        ]
    };
    let callback = |hold| {
        (0..MMS, runs(), any::<bool>()).prop_map(move |(mm, runs, c)| Op::Callback {
            mm,
            runs,
            hold,
            c,
        })
    };
    prop_oneof![
        14 => callback(true),
        2 => callback(false),
        1 => Just(Op::Take),
        1 => (0..MMS).prop_map(Op::IssueMm),
        1 => Just(Op::Issue),
        1 => Just(Op::PutBack),
        1 => Just(Op::Flush),
        2 => Just(Op::Release),
    ]
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(), 0..40)
}

fn hardware() -> impl Strategy<Value = Hardware> {
    let limit = || prop::option::of((0..PAGES).prop_map(|pages| pages * PAGE));
    (limit(), limit()).prop_map(|(mm_bytes, one_operation)| Hardware {
        mm_bytes,
        one_operation,
    })
}

const PLAIN: Hardware = Hardware {
    mm_bytes: None,
    one_operation: None,
};

struct Run {
    batch: Ranges<usize, Hold>,
    tlb: Model,
    adds: usize,
    evicted: u32,
    flushes: usize,
}

impl Run {
    fn new(hardware: Hardware) -> Self {
        Self {
            batch: Ranges::new(usize::MAX),
            tlb: Model::new(hardware),
            adds: 0,
            evicted: 0,
            flushes: 0,
        }
    }

    fn state(&self) -> std::cell::Ref<'_, State> {
        self.tlb.state.borrow()
    }

    fn add(&mut self, mm: usize, page: usize, pages: usize, c: bool) {
        let (start, end) = (page * PAGE, (page + pages) * PAGE);
        {
            let mut state = self.tlb.state.borrow_mut();
            for p in page..page + pages {
                state.cleared.insert((mm, p));
                state.stale.insert((mm, p));
            }
        }
        self.adds += 1;
        if c && add_in_c(&mut self.batch, mm, start, end) {
            return;
        }
        if let Some(owed) = self.batch.add(mm, start, end) {
            owed.issue(&mut self.tlb);
            self.evicted += 1;
        }
    }

    fn hold(&mut self, mm: usize) {
        let (nothing, taken) = (self.batch.is_empty(), self.state().taken);
        let state = Rc::clone(&self.tlb.state);

        self.batch.hold(mm, || Hold::new(mm, &state), &mut self.tlb);
        assert!(!nothing || self.state().taken == taken, "held for nothing");
    }

    /// What the kernel does under a spinlock drops no reference.
    fn locked<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        self.tlb.state.borrow_mut().locked = true;
        let result = f(self);
        self.tlb.state.borrow_mut().locked = false;
        result
    }

    fn flush(&mut self) {
        self.flushes += 1;
        self.locked(|run| run.batch.flush(&mut run.tlb));
    }

    fn step(&mut self, op: &Op) {
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
            Op::Take => {
                if let Some(owed) = self.batch.take() {
                    owed.issue(&mut self.tlb);
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
        assert_eq!(self.state().misdropped, None);
    }

    fn after(hardware: Hardware, ops: &[Op]) -> Self {
        let mut run = Self::new(hardware);
        ops.iter().for_each(|op| run.step(op));
        run
    }
}

proptest! {
    // Nothing is written next to the sources: a failing case is printed.
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..Default::default() })]

    /// After a flush no cleared page is cached anywhere, and nothing is left to wait for.
    #[test]
    fn flush_covers_everything(hw in hardware(), ops in ops()) {
        let mut run = Run::after(hw, &ops);
        run.flush();
        prop_assert!(run.state().stale.is_empty(), "still cached: {:?}", run.state().stale);
        prop_assert!(!run.state().unsynced && !run.batch.is_unsynced() && run.batch.is_empty());
    }

    /// At any time what is cached is owed, and what was not waited for is known: issuing and
    /// waiting is all that is missing.
    #[test]
    fn nothing_is_lost_in_between(hw in hardware(), ops in ops()) {
        let mut run = Run::new(hw);
        for op in &ops {
            run.step(op);
            let owes = !run.state().stale.is_empty();
            let empty = run.batch.is_empty();
            prop_assert!(empty <= !owes, "owed by nobody");
            // Not "owes": two ranges may overlap when C has added one of them.
            prop_assert_eq!(!empty || run.state().unsynced, run.batch.is_unsynced());
        }
        run.batch.issue(&mut run.tlb);
        prop_assert!(run.state().stale.is_empty());
    }

    /// At the end of a callback everything that is owed is of an address space that cannot go
    /// away, however many there are, and each of those is held once.
    #[test]
    fn owed_means_held(hw in hardware(), ops in ops()) {
        let mut run = Run::new(hw);
        for op in &ops {
            run.step(op);
            let held: BTreeSet<_> = run.batch.held().collect();
            for mm in 0..MMS {
                let state = run.state();
                prop_assert!(!state.owes(mm) || held.contains(&mm), "{mm} is not held");
                let refs = state.refs.get(&mm).copied().unwrap_or(0);
                prop_assert_eq!(refs, held.contains(&mm) as usize, "references to {}", mm);
            }
            prop_assert!(held.len() <= HELD);
        }
    }

    /// Every reference is dropped exactly once, when nothing needs it, and by no operation that may
    /// run under a spinlock ([`Hold`] notes it, and [`Run::step`] looks).
    #[test]
    fn references_are_dropped_once(hw in hardware(), ops in ops()) {
        let mut run = Run::after(hw, &ops);
        run.flush();
        let held = run.batch.held().count();
        prop_assert_eq!(run.state().taken, run.state().dropped + held);
        run.batch.release();
        run.batch.release();
        prop_assert_eq!(run.batch.held().count(), 0);
        let state = run.state();
        prop_assert_eq!((state.taken, state.misdropped), (state.dropped, None));
        prop_assert!(state.refs.values().all(|&refs| refs == 0));
    }

    /// A batch that goes out of scope drops each reference that it still has.
    #[test]
    fn references_do_not_leak(hw in hardware(), ops in ops()) {
        let mut run = Run::after(hw, &ops);
        let state = Rc::clone(&run.tlb.state);
        run.batch.issue(&mut run.tlb);
        drop(run);
        prop_assert_eq!(state.borrow().taken, state.borrow().dropped);
    }

    /// No gap is filled and no other address space is touched, unless the hardware prefers all of
    /// the same one; [`Tlb::issue_mm`] of the model checks when.
    #[test]
    fn only_cleared_pages_are_invalidated(hw in hardware(), ops in ops()) {
        let mut run = Run::after(hw, &ops);
        run.flush();
        prop_assert!(run.state().foreign.is_empty(), "not cleared: {:?}", run.state().foreign);
    }

    /// However badly it coalesces, a batch issues no more operations than there were adds, never
    /// owes more ranges than its capacity, and waits at most once per flush.
    #[test]
    fn never_worse_than_no_batch(hw in hardware(), ops in ops()) {
        let mut run = Run::new(hw);
        for op in &ops {
            run.step(op);
            prop_assert!(run.batch.len() <= CAPACITY);
        }
        run.flush();
        prop_assert_eq!(run.batch.take_evicted().0, run.evicted);
        prop_assert!(run.state().issued <= run.adds);
        prop_assert!(run.state().synced <= run.flushes);
    }

    /// A flush takes one operation if it is all of one address space, nothing was issued since the
    /// last one and the hardware can; what it does not do is checked by the model.
    #[test]
    fn one_operation_where_possible(
        ops in ops(),
        runs in prop::collection::vec((0..PAGES, 1..9usize), 1..CAPACITY),
    ) {
        let mut run = Run::after(Hardware { mm_bytes: None, one_operation: Some(usize::MAX) }, &ops);
        run.flush();
        let issued = run.state().issued;
        runs.iter().for_each(|&(page, n)| run.add(0, page, n, false));
        run.flush();
        prop_assert_eq!(run.state().issued, issued + 1);
        prop_assert!(run.state().stale.is_empty());
    }

    /// Ranges of many folios and many processes: with no more address spaces than can be held and
    /// whole runs side by side, each process costs one operation.
    #[test]
    fn neighbours_cost_one_operation(mms in 1..=HELD, folios in 1..40usize, c in any::<bool>()) {
        let mut run = Run::new(PLAIN);
        for folio in 0..folios {
            for mm in 0..mms {
                run.step(&Op::Callback { mm, runs: vec![(folio * 8, 8)], hold: true, c });
            }
        }
        prop_assert_eq!(run.state().issued, 0);
        run.flush();
        prop_assert_eq!((run.state().issued, run.state().synced), (mms, 1));
    }

    /// The runs of one folio, in whatever order they were found, become one range.
    #[test]
    fn pieces_of_one_range_coalesce(
        pieces in prop::collection::btree_set(1..512usize, 0..CAPACITY - 1)
            .prop_map(|cuts| {
                let bounds: Vec<_> = [0].into_iter().chain(cuts).chain([512]).collect();
                bounds.windows(2).map(|w| (w[0], w[1] - w[0])).collect::<Vec<_>>()
            })
            .prop_shuffle(),
    ) {
        let mut run = Run::new(PLAIN);
        pieces.iter().for_each(|&(page, n)| run.add(0, page, n, false));
        prop_assert_eq!(run.batch.len(), 1);
        run.flush();
        prop_assert_eq!(run.state().issued, 1);
        prop_assert!(run.state().stale.is_empty());
    }
}

/// The type refuses to lose an invalidation.
#[test]
#[should_panic(expected = "dropped without being issued")]
fn an_owed_range_cannot_be_dropped() {
    let mut batch = Ranges::<usize, Hold>::new(0);

    assert!(batch.add(1, 0, PAGE).is_none());
    drop(batch.take());
}
