// SPDX-License-Identifier: GPL-2.0

//! What becomes of the entries of folios, for all changes and all sizes that there are.

use std::ops::Range;
use verify::hvo::{
    batch::{Batch, Collecting, Full, Grace, Memory, Outcome, Owner, Progress, Room, Ways},
    layout::{Change, Entry, To},
};

/// The sizes of base pages, and of the folios that arm64 has with them, as shifts.
const SIZES: [(u32, &[u32]); 3] = [
    (12, &[16, 21, 25, 30]),
    (14, &[21, 25, 30]),
    (16, &[21, 29, 34]),
];

/// How many entries map the struct pages of a folio, none if these fill less than a page.
fn entries(page: u32, folio: u32) -> usize {
    const STRUCT_PAGE: usize = 64;

    ((1 << (folio - page)) * STRUCT_PAGE) >> page
}

/// Those that can be optimised with base pages of this size, and a few more that there could be.
/// In entries.
fn sizes(page: u32) -> impl Iterator<Item = usize> {
    let (_, folios) = SIZES.into_iter().find(|&(p, _)| p == page).unwrap();
    let there_are = folios.iter().map(move |&folio| entries(page, folio));
    let mut all: Vec<_> = there_are.chain((1..=13).map(|shift| 1 << shift)).collect();

    all.sort_unstable();
    all.dedup();
    all.into_iter().filter(|&entries| entries > 1)
}

/// All changes of folios of one size.
fn changes(entries: usize) -> Vec<Change> {
    let smaller = (1..).map(|shift| 1 << shift);
    let demotions = smaller
        .take_while(|&smaller| smaller < entries)
        .map(|entries| Change::Demote { entries });

    [Change::Optimize, Change::Restore]
        .into_iter()
        .chain(demotions)
        .collect()
}

/// Each change of each size, which is `entries` and those of a table.
fn all() -> impl Iterator<Item = (Change, usize, usize)> {
    SIZES.into_iter().flat_map(|(page, _)| {
        let per_table = (1 << page) / size_of::<u64>();

        sizes(page).flat_map(move |entries| {
            let changes = changes(entries).into_iter();

            changes.map(move |change| (change, entries, per_table))
        })
    })
}

/// The indices of what changes.
fn changed(change: Change, entries: usize) -> Range<usize> {
    change.first()..entries
}

fn entries_of(change: Change, entries: usize) -> impl Iterator<Item = Entry> {
    changed(change, entries).map(move |index| change.entry(index))
}

/// What an entry leads to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Page {
    /// One that it alone leads to,
    Own,
    /// or that all tails share.
    Shared,
}

/// Only the owned pages are given up, and all of those that nothing leads to any more.
fn apply(change: Change, folio: &mut [Page]) {
    for index in changed(change, folio.len()) {
        let Entry { to, frees } = change.entry(index);
        let before = folio[index];

        assert_eq!(frees, before == Page::Own, "{change:?}, {index}");
        match to {
            // Somebody may write to it until then.
            To::CopiedLate => assert_eq!(before, Page::Own),
            // Nobody can.
            To::CopiedBefore => assert_eq!(before, Page::Shared),
            To::Filled | To::SharedTail => {}
        }
        folio[index] = match to {
            To::SharedTail => Page::Shared,
            To::CopiedLate | To::CopiedBefore | To::Filled => Page::Own,
        };
    }
}

fn optimised(entries: usize) -> Vec<Page> {
    let mut folio = vec![Page::Own; entries];

    apply(Change::Optimize, &mut folio);
    folio
}

/// The numbers that comments speak of.
#[test]
fn sizes_have_so_many_entries() {
    let all = SIZES.map(|(page, folios)| {
        let entries = folios.iter().map(|&folio| entries(page, folio));

        entries.collect::<Vec<_>>()
    });

    assert_eq!(
        all,
        [vec![0, 8, 128, 4096], vec![0, 8, 256], vec![0, 8, 256]]
    );
}

#[test]
fn brings_and_frees_what_entries_say() {
    for (change, entries, _) in all() {
        let owned = |entry: &Entry| entry.to != To::SharedTail;
        let brings = entries_of(change, entries).filter(owned).count();
        let frees = entries_of(change, entries).filter(|e| e.frees).count();

        assert_eq!(change.brings(entries), brings, "{change:?} of {entries}");
        assert_eq!(change.frees(entries), frees, "{change:?} of {entries}");
    }
}

/// Only the head is left, and everything comes back.
#[test]
fn optimise_and_restore() {
    for entries in SIZES.into_iter().flat_map(|(page, _)| sizes(page)) {
        let mut folio = optimised(entries);

        assert_eq!(folio[0], Page::Own);
        assert!(folio[1..].iter().all(|page| *page == Page::Shared));
        apply(Change::Restore, &mut folio);
        assert_eq!(folio, vec![Page::Own; entries]);
    }
}

/// As if each of the smaller folios had been optimised, so that it can be restored.
#[test]
fn demoted_folios_are_optimised() {
    for (change, entries, _) in all() {
        let Change::Demote { entries: smaller } = change else {
            continue;
        };
        let mut folio = optimised(entries);

        apply(change, &mut folio);
        assert_eq!(folio.len() % smaller, 0);
        for part in folio.chunks_mut(smaller) {
            assert_eq!(part, optimised(smaller));
            apply(Change::Restore, part);
            assert_eq!(part, vec![Page::Own; smaller]);
        }
    }
}

/// In a pause, each copy takes longer than many entries.
#[test]
fn only_a_head_is_copied_in_the_pause() {
    for (change, entries, _) in all() {
        for index in changed(change, entries) {
            let copied = change.entry(index).to == To::CopiedLate;

            assert_eq!(copied, change == Change::Optimize && index == 0);
        }
    }
}

/// A head changes before its tails. In a demotion that is so in each group, and the old head, to
/// which everything belongs until then, is the last.
#[test]
fn heads_change_before_what_belongs_to_them() {
    for (change, entries, _) in all() {
        let group = match change {
            Change::Demote { entries } => entries,
            _ => 0,
        };

        assert_eq!(change.group(), group);
        for index in changed(change, entries) {
            let waits = match change {
                Change::Optimize => index > 0,
                Change::Restore => false,
                Change::Demote { .. } => index == 0,
            };

            assert_eq!(change.waits(index), waits, "{change:?} {index}");
        }
    }
}

/// A run has one value, or one for each entry.
#[test]
fn one_value_is_that_of_all_entries() {
    for (change, entries, _) in all() {
        let mut values: Vec<_> = entries_of(change, entries)
            .map(|entry| entry.to)
            .filter(|to| *to != To::CopiedLate)
            .collect();
        let shared = values.iter().all(|to| *to == To::SharedTail);

        assert_eq!(change.has_one_value(), shared, "{change:?} of {entries}");
        values.dedup();
        assert!(!shared || values.len() == 1);
    }
}

struct Folio;

impl Owner<()> for Folio {
    unsafe fn end(self, _: Outcome, _: &[Option<()>]) {}
}

struct Model;

impl Memory for Model {
    type Owner = Folio;
    type Page = ();
    type Run = usize;
}

/// Counts the entries that change.
struct Count(usize);

// SAFETY: It changes all units, which have no entries.
unsafe impl Ways<usize> for Count {
    unsafe fn change(&mut self, runs: &[usize], last: &[bool], progress: &mut [Progress]) {
        self.0 = runs.iter().sum();
        assert_eq!(progress.len(), last.iter().filter(|last| **last).count());
        progress.fill(Progress::Ended(Outcome::Changed));
    }
}

/// One folio more, as it is collected: a run for what changes of each table, and one for the first
/// entry, if that does not change with the others. The struct pages of a folio are aligned to their size.
fn add(
    batch: &mut Batch<Model, Collecting>,
    (change, entries, per_table): (Change, usize, usize),
) -> Result<(), Full> {
    let mut unit = batch.open(Folio);

    for _ in 0..change.brings(entries) {
        unit.bring(())?;
    }
    for table in (0..entries).step_by(per_table) {
        let end = entries.min(table + per_table);
        let mut run = 0;

        for index in table.max(change.first())..end {
            let Entry { to, frees } = change.entry(index);

            if frees {
                // SAFETY: Nothing leads to a page here, nor to those below.
                unsafe { unit.displace(()) }?;
            }
            if to != To::CopiedLate && !change.has_one_value() {
                unit.value(0)?;
            }
            if index == 0 {
                // SAFETY: As above.
                unsafe { unit.change(1) }?;
                continue;
            }
            run += 1;
        }
        if run > 0 {
            // SAFETY: As above.
            unsafe { unit.change(run) }?;
        }
    }
    unit.close()
}

/// The number of folios that a batch has room for, and that it gets.
#[test]
fn room_is_enough() {
    for (all @ (change, entries, per_table), folios) in
        all().flat_map(|all| [1, 2, 7, 512, usize::MAX].map(|folios| (all, folios)))
    {
        let what = format!("{change:?} of {entries}, {per_table} per table, {folios} folios");
        let room = change.room(entries, folios, per_table);
        let mut batch = Batch::new(room).unwrap();

        while !batch.is_full() {
            assert!(add(&mut batch, all).is_ok(), "{what}: {room:?}");
        }
        // No pages for more than that.
        let mut more = batch.open(Folio);
        assert!(more.bring(()).is_err(), "{what}: {room:?}");
        // SAFETY: Nothing leads to a page here.
        assert!(unsafe { more.displace(()) }.is_err(), "{what}: {room:?}");
        drop(more);

        let mut count = Count(0);
        // SAFETY: Nobody reads reference counts.
        let prepared = batch.prepare(unsafe { Grace::is_not_needed() });
        let (_, tally) = prepared.apply(&mut count).release();
        assert_eq!(tally.changed, room.units, "{what}");
        assert_eq!(count.0, room.units * changed(change, entries).len());
    }
}

/// A batch needs no more memory than for 16384 entries, if not a single folio has more. It has no
/// fewer, if there are more folios.
#[test]
fn room_is_limited() {
    for (change, entries, per_table) in all() {
        let each = changed(change, entries).len();

        for folios in (0..5_000).chain([usize::MAX]) {
            let units = change.room(entries, folios, per_table).units;

            assert!((1..=folios.max(1)).contains(&units));
            assert!(units == 1 || units * each <= 16384);
            assert!(units >= folios || (units + 1) * each > 16384);
        }
    }
}

/// The same in plain numbers.
#[test]
fn room_of_those_that_there_are() {
    let room = |units, runs, values, old, new| Room {
        units,
        runs,
        values,
        old,
        new,
    };
    let all = usize::MAX;
    let demote = Change::Demote { entries: 8 };

    // 2 MiB and 1 GiB of 4 KiB,
    assert_eq!(
        Change::Optimize.room(8, all, 512),
        room(2048, 4096, 0, 16384, 2048)
    );
    assert_eq!(Change::Optimize.room(8, 1, 512), room(1, 2, 0, 8, 1));
    assert_eq!(
        Change::Optimize.room(4096, all, 512),
        room(4, 40, 0, 16384, 4)
    );
    assert_eq!(
        Change::Restore.room(4096, all, 512),
        room(4, 40, 16384, 0, 16380)
    );
    assert_eq!(demote.room(4096, all, 512), room(4, 40, 16384, 4, 2048));
    // and 16 GiB of 64 KiB.
    assert_eq!(
        Change::Optimize.room(256, all, 8192),
        room(64, 128, 0, 16384, 64)
    );
    assert_eq!(demote.room(256, 3, 8192), room(3, 6, 768, 3, 96));
}
