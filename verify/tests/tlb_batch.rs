// SPDX-License-Identifier: GPL-2.0

//! Properties of the TLB batch over any sequence of operations.
//!
//! The reference is a TLB that really holds translations: a page that was cleared stays cached
//! until an issued range covers it.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use verify::tlb_batch::ranges::{Ranges, Tlb, CAPACITY};

const PAGE: usize = 4096;
const MMS: usize = 3;
const PAGES: usize = 96;

/// Every page of every address space is cached at first; only cleared ones may be invalidated.
struct Model {
    cleared: BTreeMap<usize, BTreeSet<usize>>,
    stale: BTreeSet<(usize, usize)>,
    unsynced: bool,
    issued: usize,
    synced: usize,
    foreign: Vec<(usize, usize)>,
}

impl Model {
    fn new() -> Self {
        Self {
            cleared: BTreeMap::new(),
            stale: BTreeSet::new(),
            unsynced: false,
            issued: 0,
            synced: 0,
            foreign: Vec::new(),
        }
    }

    fn clear(&mut self, mm: usize, page: usize) {
        self.cleared.entry(mm).or_default().insert(page);
        self.stale.insert((mm, page));
    }
}

impl Tlb<usize> for Model {
    fn issue(&mut self, mm: usize, start: usize, end: usize) {
        assert!(start < end && start % PAGE == 0 && end % PAGE == 0);
        for page in start / PAGE..end / PAGE {
            if !self.cleared.get(&mm).is_some_and(|c| c.contains(&page)) {
                self.foreign.push((mm, page));
            }
            self.stale.remove(&(mm, page));
        }
        self.issued += 1;
        self.unsynced = true;
    }

    fn sync(&mut self) {
        self.synced += 1;
        self.unsynced = false;
    }
}

#[derive(Clone, Debug)]
enum Op {
    Add {
        mm: usize,
        page: usize,
        pages: usize,
    },
    Take,
    Issue,
    Flush,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (0..MMS, 0..PAGES, 1..9usize)
            .prop_map(|(mm, page, pages)| Op::Add { mm, page, pages }),
        1 => Just(Op::Take),
        1 => Just(Op::Issue),
        1 => Just(Op::Flush),
    ]
}

struct Run {
    batch: Ranges<usize>,
    tlb: Model,
    adds: usize,
}

impl Run {
    fn new() -> Self {
        Self {
            batch: Ranges::new(usize::MAX),
            tlb: Model::new(),
            adds: 0,
        }
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Add { mm, page, pages } => {
                (page..page + pages).for_each(|p| self.tlb.clear(mm, p));
                self.adds += 1;
                if let Some(owed) = self.batch.add(mm, page * PAGE, (page + pages) * PAGE) {
                    owed.issue(&mut self.tlb);
                }
            }
            Op::Take => {
                if let Some(owed) = self.batch.take() {
                    owed.issue(&mut self.tlb);
                }
            }
            Op::Issue => self.batch.issue(&mut self.tlb),
            Op::Flush => self.batch.flush(&mut self.tlb),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// After a flush no cleared page is cached anywhere, and nothing is left to wait for.
    #[test]
    fn flush_covers_everything(ops in prop::collection::vec(op(), 0..80)) {
        let mut run = Run::new();
        ops.iter().for_each(|op| run.step(op));
        run.batch.flush(&mut run.tlb);
        prop_assert!(run.tlb.stale.is_empty(), "still cached: {:?}", run.tlb.stale);
        prop_assert!(!run.tlb.unsynced && !run.batch.is_unsynced() && run.batch.is_empty());
    }

    /// At any time what is cached is owed: issue alone removes it.
    #[test]
    fn nothing_is_lost_in_between(ops in prop::collection::vec(op(), 1..80), stop in 0..80usize) {
        let mut run = Run::new();
        ops.iter().take(stop).for_each(|op| run.step(op));
        prop_assert!(run.tlb.stale.is_empty() || run.batch.is_unsynced());
        run.batch.issue(&mut run.tlb);
        prop_assert!(run.tlb.stale.is_empty());
        prop_assert_eq!(run.tlb.unsynced, run.batch.is_unsynced());
    }

    /// No gap is filled and no other address space is touched.
    #[test]
    fn only_cleared_pages_are_invalidated(ops in prop::collection::vec(op(), 0..80)) {
        let mut run = Run::new();
        ops.iter().for_each(|op| run.step(op));
        run.batch.flush(&mut run.tlb);
        prop_assert!(run.tlb.foreign.is_empty(), "not cleared: {:?}", run.tlb.foreign);
    }

    /// However badly it coalesces, a batch issues no more operations than there were adds, never
    /// holds more than its capacity, and waits at most once per flush.
    #[test]
    fn never_worse_than_no_batch(ops in prop::collection::vec(op(), 0..80)) {
        let mut run = Run::new();
        for op in &ops {
            run.step(op);
            prop_assert!(run.batch.len() <= CAPACITY);
        }
        run.batch.flush(&mut run.tlb);
        let flushes = 1 + ops.iter().filter(|op| matches!(op, Op::Flush)).count();
        prop_assert!(run.tlb.issued <= run.adds);
        prop_assert!(run.tlb.synced <= flushes);
    }

    /// The runs of one folio, in whatever order they were found, become one range.
    #[test]
    fn pieces_of_one_range_coalesce(
        cuts in prop::collection::btree_set(1..512usize, 0..CAPACITY - 1),
        seed in any::<u64>(),
    ) {
        let mut bounds: Vec<usize> = cuts.into_iter().collect();
        bounds.insert(0, 0);
        bounds.push(512);
        let mut pieces: Vec<_> = bounds.windows(2).map(|w| (w[0], w[1])).collect();
        let mut state = seed;
        for i in (1..pieces.len()).rev() {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            pieces.swap(i, (state >> 33) as usize % (i + 1));
        }

        let mut run = Run::new();
        for (start, end) in pieces {
            run.step(&Op::Add { mm: 0, page: start, pages: end - start });
        }
        prop_assert_eq!(run.batch.len(), 1);
        run.batch.flush(&mut run.tlb);
        prop_assert_eq!(run.tlb.issued, 1);
        prop_assert!(run.tlb.stale.is_empty());
    }
}

/// The type refuses to lose an invalidation.
#[test]
#[should_panic(expected = "dropped without being issued")]
fn an_owed_range_cannot_be_dropped() {
    let mut batch = Ranges::new(0);

    assert!(batch.add(1, 0, PAGE).is_none());
    drop(batch.take());
}
