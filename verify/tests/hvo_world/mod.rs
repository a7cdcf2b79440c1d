// SPDX-License-Identifier: GPL-2.0

//! A world with entries that lead to pages, for batches of changes.
//!
//! A page that is freed tells the world, which finds out whether it was free already and whether an
//! entry leads to it.

use std::{
    cell::RefCell,
    mem::{replace, take},
};
use verify::hvo::batch::{units_of, Memory, Outcome, Owner, Progress, Ways, Why};

pub const ENTRIES: usize = 40;
/// The page that any number of entries may lead to. Nobody may free it.
pub const SHARED: u64 = 0;
/// Which page a value leads to. The rest differs in all values, so that each change can be seen.
pub const PAGE: u64 = 0xffff;

/// What is known of a unit.
#[derive(Debug, Default)]
pub struct Known {
    /// Its entries, and the values before
    pub before: Vec<(usize, u64)>,
    /// and after the change.
    pub after: Vec<(usize, u64)>,
    /// The pages that it gives up.
    pub displaced: Vec<u64>,
    pub closed: bool,
    pub ended: Option<Outcome>,
}

#[derive(Default)]
pub struct World {
    pub entries: Vec<u64>,
    pub values: u64,
    /// Whether each page was freed.
    pub freed: Vec<bool>,
    pub units: Vec<Known>,
    /// A fault is not a panic: where an applied batch is dropped by one, there would be a second.
    pub faults: Vec<String>,
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::default();
}

pub fn world<R>(f: impl FnOnce(&mut World) -> R) -> R {
    WORLD.with_borrow_mut(f)
}

impl World {
    /// Each entry leads to a page of its own.
    pub fn new() -> Self {
        Self {
            entries: (1..=ENTRIES as u64).collect(),
            freed: vec![false; ENTRIES + 1],
            ..Self::default()
        }
    }

    pub fn page(&self, entry: usize) -> u64 {
        self.entries[entry] & PAGE
    }

    pub fn leads_to(&self, page: u64) -> bool {
        (0..ENTRIES).any(|entry| self.page(entry) == page)
    }

    pub fn value_of(&mut self, page: u64) -> u64 {
        self.values += 1;
        self.values << 16 | page
    }

    pub fn have(&self, values: &[(usize, u64)]) -> bool {
        values.iter().all(|&(entry, v)| self.entries[entry] == v)
    }

    pub fn free(&mut self, page: u64) {
        if page == SHARED {
            self.faults.push("the shared page is freed".into());
        }
        if replace(&mut self.freed[page as usize], true) {
            self.faults.push(format!("page {page} is freed twice"));
        }
        if self.leads_to(page) {
            self.faults.push(format!("page {page} is freed in use"));
        }
    }

    pub fn end(&mut self, unit: usize, outcome: Outcome, old: &[u64]) {
        let known = &self.units[unit];
        let right = match outcome {
            Outcome::Changed => known.closed && self.have(&known.after),
            Outcome::Untouched(_) => self.have(&known.before),
        };
        // A unit that was not closed has none.
        let displaced: &[u64] = if known.closed { &known.displaced } else { &[] };

        if !right || known.ended.is_some() {
            self.faults
                .push(format!("unit {unit}, {known:?}: {outcome:?}"));
        }
        if old != displaced || old.iter().any(|&page| self.freed[page as usize]) {
            self.faults
                .push(format!("unit {unit}, {known:?} had {old:?}"));
        }
        self.units[unit].ended = Some(outcome);
    }
}

/// Nothing went wrong so far, and each page is in use or was freed. `brought`: those that no entry
/// leads to yet.
#[track_caller]
pub fn check_world(brought: &[u64]) {
    let mut faults = world(|w| take(&mut w.faults));

    world(|w| {
        for page in SHARED + 1..w.freed.len() as u64 {
            let freed = w.freed[page as usize];
            let right = match (w.leads_to(page), brought.contains(&page)) {
                (used, false) => used != freed,
                (used, true) => !used && !freed,
            };

            if !right {
                faults.push(format!("page {page}, freed: {freed}; {:?}", w.entries));
            }
        }
    });
    assert!(faults.is_empty(), "{faults:#?}");
}

/// How a unit ended, if it has.
pub fn outcome(unit: usize) -> Option<Outcome> {
    world(|w| w.units[unit].ended)
}

pub struct Page(pub u64);

impl Page {
    pub fn new() -> Self {
        world(|w| w.freed.push(false));
        Self(world(|w| w.freed.len() as u64 - 1))
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        world(|w| w.free(self.0));
    }
}

pub struct Unit(pub usize);

impl Unit {
    pub fn new() -> Self {
        world(|w| w.units.push(Known::default()));
        Self(world(|w| w.units.len() - 1))
    }
}

impl Owner<Page> for Unit {
    unsafe fn end(self, outcome: Outcome, old: &[Option<Page>]) {
        let old: Vec<_> = old.iter().map(|p| p.as_ref().map_or(0, |p| p.0)).collect();

        world(|w| w.end(self.0, outcome, &old));
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum To {
    /// All entries get this value,
    One(u64),
    /// or each one of its own. A pointer, as in the kernel.
    Each(*const u64),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    pub entry: usize,
    pub entries: usize,
    pub to: To,
}

pub struct Model;

impl Memory for Model {
    type Owner = Unit;
    type Page = Page;
    type Run = Run;
}

/// Changes the units that it is told to, and remembers what it saw.
pub struct Pausing {
    /// One bit for each.
    pub units: usize,
    pub why: Why,
    pub runs: Vec<Run>,
    pub last: Vec<bool>,
}

// SAFETY: It ends each unit as what has become of its entries.
unsafe impl Ways<Run> for Pausing {
    unsafe fn change(&mut self, runs: &[Run], last: &[bool], progress: &mut [Progress]) {
        self.runs = runs.into();
        self.last = last.into();
        for (unit, (runs, progress)) in units_of(runs, last).zip(progress).enumerate() {
            assert_eq!(*progress, Progress::Waiting);
            if self.units & 1 << unit == 0 {
                *progress = Progress::Ended(Outcome::Untouched(self.why));
                continue;
            }
            *progress = Progress::Ended(Outcome::Changed);
            for run in runs {
                for i in 0..run.entries {
                    let value = match run.to {
                        To::One(value) => value,
                        // SAFETY: The batch has as many values of this run, and has not moved them.
                        To::Each(values) => unsafe { *values.add(i) },
                    };
                    world(|w| w.entries[run.entry + i] = value);
                }
            }
        }
    }
}
