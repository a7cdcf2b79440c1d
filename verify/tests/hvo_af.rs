// SPDX-License-Identifier: GPL-2.0

//! Changes by the access flag, while two CPUs walk, read, write and evict whenever they like.
//!
//! Between any two steps of the code under test, the CPUs do what a random number says. A TLB gets a
//! translation only by a walk, which sets the flag before.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::ops::Range;
use verify::hvo::{
    af::{change, is_complete, Bounds, Entries, YOUNG},
    batch::{units_of, Outcome, Progress, Why},
};

const CPUS: usize = 2;
/// Values differ by what is above the flag.
const VALUE: u64 = 1 << 16;

/// What may be left out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Without {
    Nothing,
    /// The flag of an entry is cleared,
    Clear,
    /// which is invalidated,
    Flush,
    /// before its page is copied.
    Copy,
    /// A new value replaces no entry whose flag was set.
    Exchange,
    /// What others belong to changes before them, or after.
    Waves,
    /// An entry that stays gets its flag again.
    Leave,
}

/// Adjacent entries, whose new values are theirs with a bit more.
#[derive(Clone, Copy, Debug)]
struct Run {
    first: usize,
    len: usize,
    /// Of each so many the first one leads; 0: all do.
    group: usize,
    waits: bool,
    copied: bool,
}

/// How often the CPUs do something.
#[derive(Clone, Copy, Debug)]
enum Busy {
    Now(u64),
    /// They use this entry before each step.
    Always(usize),
    /// The same of all but this one.
    AllBut(usize),
}

struct World {
    without: Without,
    busy: Busy,
    random: u64,
    before: Vec<u64>,
    entries: Vec<u64>,
    /// The content of the page behind each value, without the flag.
    pages: BTreeMap<u64, u64>,
    /// What each CPU has translations of.
    tlbs: [BTreeMap<usize, u64>; CPUS],
    /// What was cleared, and nobody told of yet.
    untold: BTreeSet<usize>,
    /// What the next flush invalidates.
    cleared: BTreeSet<usize>,
    flushes: usize,
    windows: usize,
    /// Without a flag: it seems to be clear from then on.
    flushed: bool,
    rests: u64,
    faults: Vec<String>,
}

fn wanted(value: u64) -> u64 {
    value + VALUE / 2 | YOUNG
}

impl World {
    fn new(entries: usize, without: Without, busy: Busy, seed: u64) -> Self {
        let before: Vec<_> = (1..=entries as u64).map(|i| i * VALUE | YOUNG).collect();

        Self {
            without,
            busy,
            random: seed | 1,
            pages: before.iter().map(|value| (value & !YOUNG, 0)).collect(),
            entries: before.clone(),
            before,
            tlbs: Default::default(),
            untold: BTreeSet::new(),
            cleared: BTreeSet::new(),
            flushes: 0,
            windows: 0,
            flushed: false,
            rests: 0,
            faults: Vec::new(),
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 20) % below
    }

    /// By a walk, if the CPU has no translation yet.
    fn translate(&mut self, cpu: usize, entry: usize) -> u64 {
        if let Some(page) = self.tlbs[cpu].get(&entry) {
            return *page;
        }
        self.entries[entry] |= YOUNG;
        let page = self.entries[entry] & !YOUNG;

        self.tlbs[cpu].insert(entry, page);
        page
    }

    fn write(&mut self, cpu: usize, entry: usize) {
        let page = self.translate(cpu, entry);

        *self.pages.entry(page).or_default() += 1;
    }

    fn others(&mut self) {
        let one_in = match self.busy {
            Busy::Now(one_in) => one_in,
            Busy::Always(entry) => return self.write(0, entry),
            Busy::AllBut(idle) => {
                let entries = (0..self.entries.len()).filter(|&entry| entry != idle);

                return entries.for_each(|entry| self.write(0, entry));
            }
        };
        while self.random(one_in) == 0 {
            let cpu = self.random(CPUS as u64) as usize;
            let entry = self.random(self.entries.len() as u64) as usize;

            match self.random(3) {
                0 => drop(self.translate(cpu, entry)),
                1 => self.write(cpu, entry),
                _ => drop(self.tlbs[cpu].remove(&entry)),
            }
        }
    }

    fn fault(&mut self, what: &str, entry: usize) {
        self.faults.push(format!("{what}: entry {entry}"));
    }

    fn is_new(&self, entry: usize) -> bool {
        self.entries[entry] | YOUNG == wanted(self.before[entry])
    }

    /// The old page may be freed now, and used for something else.
    fn check_exchange(&mut self, run: &Run, entry: usize) {
        let old = self.before[entry] & !YOUNG;
        let new = wanted(old) & !YOUNG;

        if self.tlbs.iter().any(|tlb| tlb.get(&entry) == Some(&old)) {
            self.fault("a TLB has the old page", entry);
        }
        if run.copied && self.pages[&old] != self.pages.get(&new).copied().unwrap_or(0) {
            self.fault("a write is lost", entry);
        }
    }

    fn copy_page(&mut self, run: &Run) {
        let old = self.before[run.first] & !YOUNG;

        if run.copied {
            self.pages.insert(wanted(old) & !YOUNG, self.pages[&old]);
        }
    }
}

// SAFETY: Unless it is told not to, it removes all that is old.
unsafe impl Entries<Run> for World {
    fn len(&self, run: &Run) -> usize {
        run.len
    }

    fn wanted(&self, run: &Run, index: usize) -> u64 {
        wanted(self.before[run.first + index])
    }

    fn read(&self, run: &Run, index: usize) -> u64 {
        let value = self.entries[run.first + index];

        match self.without {
            Without::Clear if self.flushed => value & !YOUNG,
            _ => value,
        }
    }

    fn waits(&self, run: &Run) -> bool {
        run.waits && self.without != Without::Waves
    }

    fn leads(&self, run: &Run, index: usize) -> bool {
        run.group == 0 || (run.first + index) % run.group == 0 || self.without == Without::Waves
    }

    fn clear(&mut self, run: &Run, index: usize, value: u64) {
        self.others();
        self.untold.insert(run.first + index);
        if self.without != Without::Clear {
            self.entries[run.first + index] = value;
        }
        if self.without == Without::Copy {
            self.copy_page(run);
        }
    }

    fn cleared(&mut self, run: &Run, among: Range<usize>, nr: usize) {
        let told = take(&mut self.untold);
        let among = run.first + among.start..run.first + among.end;

        assert!(told.len() == nr && told.iter().all(|entry| among.contains(entry)));
        self.cleared.extend(among);
    }

    fn leave(&mut self, run: &Run, index: usize, value: u64) {
        self.others();
        if self.without != Without::Leave {
            self.entries[run.first + index] = value;
        }
    }

    fn flush(&mut self) {
        self.others();
        assert!(self.untold.is_empty());
        let cleared = take(&mut self.cleared);

        if cleared.is_empty() {
            return;
        }
        self.flushes += 1;
        self.flushed = true;
        if self.without != Without::Flush {
            for tlb in &mut self.tlbs {
                tlb.retain(|entry, _| !cleared.contains(entry));
            }
        }
    }

    fn copy(&mut self, run: &Run) {
        self.others();
        if self.without != Without::Copy {
            self.copy_page(run);
        }
    }

    fn exchange(&mut self, run: &Run, index: usize, old: u64, new: u64) -> bool {
        let entry = run.first + index;

        self.others();
        // A store does not look.
        let ok = match self.without {
            Without::Exchange => true,
            // Without the flag there is nothing to look at.
            Without::Clear => self.entries[entry] & !YOUNG == old & !YOUNG,
            _ => self.entries[entry] == old,
        };
        if ok {
            self.check_exchange(run, entry);
            self.entries[entry] = new;
        }
        ok
    }

    fn briefly<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        f(self)
    }

    fn rest(&mut self, us: u64) {
        self.others();
        self.rests += us;
    }

    fn end_window(&mut self) {
        self.windows += 1;
    }
}

/// A world that is changed, and what has become of each unit.
struct Trial {
    world: World,
    runs: Vec<Run>,
    last: Vec<bool>,
    progress: Vec<Progress>,
}

impl Trial {
    fn run(units: &[Vec<Run>], bounds: Bounds, without: Without, busy: Busy, seed: u64) -> Self {
        let entries = units.iter().flatten().map(|run| run.first + run.len).max();
        let mut world = World::new(entries.unwrap_or(0), without, busy, seed);
        let runs: Vec<_> = units.iter().flatten().copied().collect();
        let ends = units.iter().map(|unit| unit.len());
        let last: Vec<_> = ends.flat_map(|n| (1..=n).map(move |i| i == n)).collect();
        let mut progress = vec![Progress::Waiting; units.len()];

        change(&mut world, bounds, &runs, &last, &mut progress);
        Self {
            world,
            runs,
            last,
            progress,
        }
    }

    /// What is said of a unit is so.
    fn check(&mut self, optional: bool) {
        let world = &mut self.world;

        for (unit, progress) in units_of(&self.runs, &self.last).zip(&self.progress) {
            let entries = || unit.iter().flat_map(|run| run.first..run.first + run.len);
            let new = entries().filter(|&e| world.is_new(e)).count();
            let right = match progress {
                Progress::Waiting => new == 0 && !optional,
                Progress::Begun => new > 0 && new < entries().count(),
                Progress::Ended(Outcome::Changed) => new == entries().count(),
                Progress::Ended(Outcome::Untouched(why)) => {
                    new == 0 && optional && *why == Why::Young
                }
            };

            if !right {
                world.faults.push(format!("{new} entries: {progress:?}"));
            }
        }
        for run in &self.runs {
            let new = (run.first..run.first + run.len).all(|entry| world.is_new(entry));

            if is_complete(&*world, run) != new {
                world.fault("another way would go on wrongly", run.first);
            }
        }
        for entry in 0..world.entries.len() {
            if world.entries[entry] & YOUNG == 0 {
                world.fault("without its flag", entry);
            }
        }
    }

    fn faults(mut self, optional: bool) -> Vec<String> {
        self.check(optional);
        self.world.faults
    }
}

/// As layout.rs has them: a head that is copied and its tails, or all in any order, or one that is
/// last of all, and heads of groups.
fn unit(kind: u8, first: usize, groups: usize) -> Vec<Run> {
    let run = Run {
        first,
        len: groups * 4,
        group: 0,
        waits: false,
        copied: false,
    };
    let head = Run { len: 1, ..run };
    let others = Run {
        first: first + 1,
        len: run.len - 1,
        ..run
    };

    match kind {
        0 => vec![
            Run {
                copied: true,
                ..head
            },
            Run {
                waits: true,
                ..others
            },
        ],
        1 => vec![run],
        _ => vec![
            Run { group: 4, ..others },
            Run {
                group: 4,
                waits: true,
                ..head
            },
        ],
    }
}

fn units_with(kinds: &[(u8, usize)]) -> Vec<Vec<Run>> {
    let mut first = 0;

    kinds
        .iter()
        .map(|&(kind, groups)| {
            let unit = unit(kind, first, groups);

            first += groups * 4;
            unit
        })
        .collect()
}

fn bounds() -> impl Strategy<Value = Bounds> {
    (1..40usize, any::<bool>(), any::<bool>()).prop_map(|(entries, each, optional)| Bounds {
        entries,
        each,
        optional,
    })
}

fn kinds() -> impl Strategy<Value = Vec<(u8, usize)>> {
    prop::collection::vec((0..3u8, 1..4usize), 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4000,
        failure_persistence: None,
        ..Default::default()
    })]

    /// Nothing is lost, stale or half done, whatever the CPUs do.
    #[test]
    fn no_cpu_uses_what_was_replaced(
        kinds in kinds(),
        bounds in bounds(),
        one_in in 2..60u64,
        seed in any::<u64>(),
    ) {
        let busy = Busy::Now(one_in);
        let trial = Trial::run(&units_with(&kinds), bounds, Without::Nothing, busy, seed);

        prop_assert_eq!(trial.faults(bounds.optional), Vec::<String>::new());
    }
}

const ALL: [(u8, usize); 3] = [(0, 2), (1, 2), (2, 3)];

const BOUNDS: Bounds = Bounds {
    entries: 16384,
    each: false,
    optional: false,
};

/// The faults of many runs.
fn faults_without(without: Without, bounds: Bounds) -> Vec<String> {
    (1..2000u64)
        .flat_map(|seed| {
            let busy = Busy::Now(4);
            let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);

            Trial::run(&units_with(&ALL), bounds, without, busy, seed).faults(bounds.optional)
        })
        .collect()
}

#[track_caller]
fn shows(faults: &[String], what: &str) {
    assert!(faults.iter().any(|fault| fault.starts_with(what)), "{what}");
}

#[test]
fn each_step_is_needed() {
    assert!(faults_without(Without::Nothing, BOUNDS).is_empty());
    shows(&faults_without(Without::Clear, BOUNDS), "a TLB has the old");
    shows(&faults_without(Without::Flush, BOUNDS), "a TLB has the old");
    shows(&faults_without(Without::Copy, BOUNDS), "a write is lost");
    shows(
        &faults_without(Without::Exchange, BOUNDS),
        "a TLB has the old",
    );
}

/// One that other CPUs use all the time, wherever it is.
#[test]
fn what_is_in_use_is_left() {
    for entry in 0..28 {
        for optional in [false, true] {
            let bounds = Bounds { optional, ..BOUNDS };
            let busy = Busy::Always(entry);
            let mut trial = Trial::run(&units_with(&ALL), bounds, Without::Nothing, busy, 1);
            let ended = |p: &&Progress| matches!(p, Progress::Ended(Outcome::Changed));

            trial.check(optional);
            assert_eq!(trial.world.faults, Vec::<String>::new(), "entry {entry}");
            // The others are changed.
            assert_eq!(trial.progress.iter().filter(ended).count(), 2);
            // A head that is in use is not begun.
            if entry == 0 && optional {
                let young = Progress::Ended(Outcome::Untouched(Why::Young));
                assert_eq!(trial.progress[0], young);
            }
            // It does not take for ever.
            assert!(trial.world.rests < 50_000);
        }
    }
}

#[test]
fn an_entry_that_stays_gets_its_flag() {
    let busy = Busy::Always(0);
    let leave = |without| Trial::run(&units_with(&ALL), BOUNDS, without, busy, 1).faults(false);

    assert!(leave(Without::Nothing).is_empty());
    shows(&leave(Without::Leave), "without its flag");
}

/// A unit is begun as soon as one entry has changed: it must not be given up.
#[test]
fn one_entry_is_a_beginning() {
    for entry in 0..28 {
        for optional in [false, true] {
            let bounds = Bounds { optional, ..BOUNDS };
            let busy = Busy::AllBut(entry);
            let trial = Trial::run(&units_with(&ALL), bounds, Without::Nothing, busy, 1);

            assert_eq!(
                trial.faults(optional),
                Vec::<String>::new(),
                "entry {entry}"
            );
        }
    }
}

/// With the head in use, no tail changes; with the head of a group in use, nothing else of it, nor
/// the entry that everything belongs to until then.
#[test]
fn others_wait() {
    let units = units_with(&ALL);
    let new = |entry, without| -> Vec<usize> {
        let world = Trial::run(&units, BOUNDS, without, Busy::Always(entry), 1).world;

        (0..28).filter(|&entry| world.is_new(entry)).collect()
    };
    let all_but =
        |left: &[usize]| -> Vec<usize> { (0..28).filter(|entry| !left.contains(entry)).collect() };

    assert_eq!(new(0, Without::Nothing), all_but(&[0, 1, 2, 3, 4, 5, 6, 7]));
    assert_eq!(new(20, Without::Nothing), all_but(&[16, 20, 21, 22, 23]));
    assert_eq!(new(16, Without::Nothing), all_but(&[16]));
    assert_eq!(new(0, Without::Waves), all_but(&[0]));
    assert_eq!(new(20, Without::Waves), all_but(&[20]));
}

/// A task that died has cleared a flag, and invalidated nothing.
#[test]
fn a_clear_flag_is_not_trusted() {
    for kind in 0..3 {
        let mut world = World::new(8, Without::Nothing, Busy::Now(u64::MAX), 1);
        let runs = unit(kind, 0, 2);
        let last: Vec<_> = (1..=runs.len()).map(|i| i == runs.len()).collect();

        for entry in 0..8 {
            world.translate(1, entry);
            world.entries[entry] &= !YOUNG;
        }
        change(&mut world, BOUNDS, &runs, &last, &mut [Progress::Waiting]);
        assert_eq!(world.faults, Vec::<String>::new());
        assert!((0..8).all(|entry| world.is_new(entry)));
    }
}

/// One invalidation for as many entries as there may be, if nobody uses them. Each window says when
/// it is over, so that it can be counted.
#[test]
fn a_window_is_flushed_once() {
    let units = units_with(&[(0, 3); 8]);
    let windows_and_flushes = |entries, each| {
        let bounds = Bounds {
            entries,
            each,
            ..BOUNDS
        };
        let world = Trial::run(&units, bounds, Without::Nothing, Busy::Now(u64::MAX), 1).world;

        assert!(world.faults.is_empty() && world.rests == 0);
        (world.windows, world.flushes)
    };

    assert_eq!(windows_and_flushes(16384, false), (1, 1));
    assert_eq!(windows_and_flushes(24, false), (4, 4));
    assert_eq!(windows_and_flushes(1, false), (8, 8));
    assert_eq!(windows_and_flushes(16384, true), (1, 96));
}
