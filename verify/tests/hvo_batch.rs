// SPDX-License-Identifier: GPL-2.0

//! Batches of changes under any sequence of operations, with any room.

mod hvo_world;

use hvo_world::*;
use proptest::prelude::*;
use std::mem::take;
use verify::hvo::batch::{Batch, Collecting, Full, Grace, Open, Outcome, Room, Tally, Why};

/// What is done with a unit. What does not fit into it, or into the world, is left out.
#[derive(Clone, Debug)]
enum Op {
    Bring,
    /// The page of an entry that is changed later: so many after the next one.
    Displace(usize),
    /// The next entry gets a page that was brought, or the shared one.
    Value {
        own: bool,
    },
    /// So many entries get their values, if there are any, else all of them the same.
    Change {
        entries: usize,
        own: bool,
    },
}

#[derive(Clone, Debug)]
enum End {
    /// A bit for each unit that is changed.
    Release {
        units: usize,
        why: Why,
    },
    DropCollecting,
    DropPrepared,
}

#[derive(Clone, Debug)]
struct Round {
    /// The first entry that is changed.
    start: usize,
    /// For each unit, whether it is closed.
    units: Vec<(Vec<Op>, bool)>,
    end: End,
}

/// What should be in a batch.
#[derive(Clone, Default)]
struct Content {
    used: Room,
    runs: Vec<(Run, bool)>,
    units: Vec<usize>,
    /// Pages that the units brought.
    brought: Vec<u64>,
    /// The first entry that no unit has.
    entry: usize,
}

/// A unit that is open.
struct Draft<'b> {
    open: Open<'b, Model>,
    unit: usize,
    room: Room,
    /// With what the unit has so far. Its entries are those before the first that no unit has.
    content: Content,
    brought: Vec<u64>,
    /// Those that no value leads to yet.
    spare: Vec<u64>,
    /// The values of this unit, where they are, and how many of them are in runs.
    values: Vec<u64>,
    places: Vec<*const u64>,
    in_runs: usize,
    displaced: Vec<usize>,
}

/// There is no room if and only if the store is full.
#[track_caller]
fn count(used: &mut usize, room: usize, result: Result<(), Full>) -> Result<(), Full> {
    assert_eq!(result.is_err(), *used == room);
    *used += usize::from(result.is_ok());
    result
}

impl<'b> Draft<'b> {
    fn new(batch: &'b mut Batch<Model, Collecting>, room: Room, content: Content) -> Self {
        let owner = Unit::new();

        Self {
            unit: owner.0,
            open: batch.open(owner),
            room,
            content,
            brought: Vec::new(),
            spare: Vec::new(),
            values: Vec::new(),
            places: Vec::new(),
            in_runs: 0,
            displaced: Vec::new(),
        }
    }

    fn op(&mut self, op: &Op) -> Result<(), Full> {
        match *op {
            Op::Bring => self.bring(),
            Op::Displace(after) => self.displace(self.content.entry + after),
            Op::Value { own } => self.value(own),
            Op::Change { entries, own } => self.change(entries, own),
        }
    }

    fn bring(&mut self) -> Result<(), Full> {
        let page = Page::new();
        let id = page.0;
        let result = self.open.bring(page);

        if result.is_ok() {
            self.brought.push(id);
            self.spare.push(id);
        }
        for index in 0..=self.brought.len() {
            let page = self.open.brought(index).map(|page| &page.0);

            assert_eq!(page, self.brought.get(index));
        }
        count(&mut self.content.used.new, self.room.new, result)
    }

    fn displace(&mut self, entry: usize) -> Result<(), Full> {
        if entry >= ENTRIES || self.displaced.contains(&entry) {
            return Ok(());
        }
        let page = world(|w| w.page(entry));
        if page == SHARED {
            return Ok(());
        }

        // SAFETY: Each entry leads to a page of its own, and `complete()` changes this one.
        let result = unsafe { self.open.displace(Page(page)) };
        if result.is_ok() {
            world(|w| w.units[self.unit].displaced.push(page));
            self.displaced.push(entry);
        }
        count(&mut self.content.used.old, self.room.old, result)
    }

    /// A value that leads to a page of the unit, if there is one left.
    fn next_value(&self, own: bool) -> u64 {
        let page = self.spare.last().filter(|_| own).unwrap_or(&SHARED);

        world(|w| w.value_of(*page))
    }

    /// Something leads to its page now.
    fn used(&mut self, value: u64) {
        self.spare.retain(|&page| page != value & PAGE);
    }

    fn value(&mut self, own: bool) -> Result<(), Full> {
        if self.content.entry + self.values.len() - self.in_runs >= ENTRIES {
            return Ok(());
        }
        let value = self.next_value(own);
        let result = self.open.value(value).map(|place| {
            self.used(value);
            self.values.push(value);
            self.places.push(place);
        });

        for (i, (place, value)) in self.places.iter().zip(&self.values).enumerate() {
            // One after the other.
            assert_eq!(*place, self.places[0].wrapping_add(i));
            // SAFETY: The batch has the value.
            assert_eq!(unsafe { **place }, *value);
        }
        count(&mut self.content.used.values, self.room.values, result)
    }

    fn change(&mut self, entries: usize, own: bool) -> Result<(), Full> {
        let entry = self.content.entry;
        let pending = &self.values[self.in_runs..];
        let (values, to) = if pending.is_empty() {
            let entries = entries.min(ENTRIES - entry);
            let value = self.next_value(own && entries == 1);

            (vec![value; entries], To::One(value))
        } else {
            let values = pending[..entries.min(pending.len())].to_vec();

            (values, To::Each(self.places[self.in_runs]))
        };
        let run = Run {
            entry,
            entries: values.len(),
            to,
        };
        if run.entries == 0 {
            return Ok(());
        }

        // SAFETY: The entries belong to no other unit. What they get is the shared page, or was
        // brought.
        let result = unsafe { self.open.change(run) };
        if result.is_ok() {
            for (i, &value) in values.iter().enumerate() {
                world(|w| {
                    let before = w.entries[entry + i];
                    let unit = &mut w.units[self.unit];

                    unit.before.push((entry + i, before));
                    unit.after.push((entry + i, value));
                });
                self.used(value);
            }
            if let To::Each(_) = to {
                self.in_runs += run.entries;
            }
            self.content.runs.push((run, false));
            self.content.entry += run.entries;
        }
        count(&mut self.content.used.runs, self.room.runs, result)
    }

    /// What a unit promises: an entry leads to each page that it brings, and none to one that it
    /// gives up.
    fn complete(&mut self) -> Result<(), Full> {
        while self.in_runs < self.values.len() {
            self.change(ENTRIES, true)?;
        }
        // A unit ends with the last one of its runs.
        while !self.spare.is_empty() || world(|w| w.units[self.unit].after.is_empty()) {
            if self.content.entry == ENTRIES {
                return Err(Full);
            }
            self.change(1, true)?;
        }
        if let Some(&last) = self.displaced.iter().max() {
            self.change((last + 1).saturating_sub(self.content.entry), false)?;
        }
        for (entry, _) in world(|w| w.units[self.unit].before.clone()) {
            self.displace(entry)?;
        }
        Ok(())
    }

    /// The batch has the unit, and this in all.
    fn close(self) -> Result<Content, Full> {
        let Self {
            open,
            unit,
            room,
            mut content,
            brought,
            ..
        } = self;

        count(&mut content.used.units, room.units, open.close())?;
        world(|w| w.units[unit].closed = true);
        content.brought.extend(brought);
        content.units.push(unit);
        if let Some(last) = content.runs.last_mut() {
            last.1 = true;
        }
        Ok(content)
    }
}

/// A batch, and what should be in it.
struct Trial {
    batch: Option<Batch<Model, Collecting>>,
    room: Room,
    content: Content,
}

impl Trial {
    fn new(room: Room) -> Self {
        world(|w| *w = World::new());
        Self {
            batch: None,
            room,
            content: Content::default(),
        }
    }

    /// The unit is added, or it has never been. If there is no room for something, it is tried
    /// without that.
    fn unit(&mut self, batch: &mut Batch<Model, Collecting>, ops: &[Op], close: bool) {
        let mut draft = Draft::new(batch, self.room, self.content.clone());
        let unit = draft.unit;

        for op in ops {
            let _ = draft.op(op);
        }
        let closed = if close && draft.complete().is_ok() {
            draft.close().ok()
        } else {
            drop(draft);
            None
        };
        match closed {
            Some(content) => {
                self.content = content;
                assert_eq!(outcome(unit), None);
            }
            None => assert_eq!(outcome(unit), Some(Outcome::Untouched(Why::NoMemory))),
        }
        check_world(&self.content.brought);
        assert!(batch
            .runs()
            .iter()
            .eq(self.content.runs.iter().map(|(run, _)| run)));
        assert_eq!(batch.is_empty(), self.content.units.is_empty());
        assert_eq!(batch.is_full(), self.content.units.len() == self.room.units);
    }

    fn round(&mut self, round: &Round) {
        let mut batch = self
            .batch
            .take()
            .unwrap_or_else(|| Batch::new(self.room).unwrap());

        self.content.entry = round.start;
        for (ops, close) in &round.units {
            self.unit(&mut batch, ops, *close);
        }
        // SAFETY: Nobody reads reference counts.
        let grace = unsafe { Grace::is_over() };
        let Content { units, runs, .. } = take(&mut self.content);
        let (changed, why) = match round.end {
            End::Release { units, why } => (units, why),
            End::DropCollecting => {
                drop(batch);
                return self.dropped(&units);
            }
            End::DropPrepared => {
                drop(batch.prepare(grace));
                return self.dropped(&units);
            }
        };

        let prepared = batch.prepare(grace);
        assert!(prepared.owners().map(|owner| &owner.0).eq(&units));
        let mut pausing = Pausing {
            units: changed,
            why,
            runs: Vec::new(),
            last: Vec::new(),
        };
        let (batch, tally) = prepared.apply(&mut pausing).release();
        self.released(&units, changed, why, tally);
        let (added, last): (Vec<_>, Vec<_>) = runs.into_iter().unzip();
        assert_eq!(pausing.runs, added);
        assert_eq!(pausing.last, last);
        assert!(batch.is_empty() && batch.runs().is_empty());
        self.batch = Some(batch);
    }

    fn dropped(&self, units: &[usize]) {
        check_world(&[]);
        for &unit in units {
            assert_eq!(outcome(unit), Some(Outcome::Untouched(Why::NoMemory)));
        }
    }

    fn released(&self, units: &[usize], changed: usize, why: Why, tally: Tally) {
        let all = units.iter().enumerate();
        let (done, left): (Vec<_>, Vec<_>) = all.partition(|(i, _)| changed & 1 << i != 0);
        let expected = Tally {
            changed: done.len(),
            untouched: left.len(),
            why: (!left.is_empty()).then_some(why),
        };

        check_world(&[]);
        assert_eq!(tally, expected);
        assert!(done
            .iter()
            .all(|&(_, &unit)| outcome(unit) == Some(Outcome::Changed)));
        assert!(left
            .iter()
            .all(|&(_, &unit)| outcome(unit) == Some(Outcome::Untouched(why))));
    }
}

fn op() -> impl Strategy<Value = Op> {
    let entries = || prop_oneof![2 => Just(1), 1 => 1..5usize];

    prop_oneof![
        2 => Just(Op::Bring),
        2 => (0..4usize).prop_map(Op::Displace),
        2 => any::<bool>().prop_map(|own| Op::Value { own }),
        2 => (entries(), any::<bool>()).prop_map(|(entries, own)| Op::Change { entries, own }),
    ]
}

fn why() -> impl Strategy<Value = Why> {
    prop_oneof![
        Just(Why::NoMemory),
        Just(Why::SelfHosted),
        Just(Why::Hotplug),
        Just(Why::Young)
    ]
}

fn round() -> impl Strategy<Value = Round> {
    let unit = || (prop::collection::vec(op(), 0..8), prop::bool::weighted(0.8));
    let end = prop_oneof![
        6 => (0..64usize, why()).prop_map(|(units, why)| End::Release { units, why }),
        1 => Just(End::DropCollecting),
        1 => Just(End::DropPrepared),
    ];

    (0..20usize, prop::collection::vec(unit(), 0..6), end).prop_map(|(start, units, end)| Round {
        start,
        units,
        end,
    })
}

/// Too little, or enough.
fn room() -> impl Strategy<Value = Room> {
    let few = || prop_oneof![1 => 0..12usize, 2 => Just(ENTRIES)];

    (0..6usize, few(), few(), few(), few()).prop_map(|(units, runs, values, old, new)| Room {
        units,
        runs,
        values,
        old,
        new,
    })
}

proptest! {
    // Nothing is written next to the sources: a failing case is printed.
    #![proptest_config(ProptestConfig {
        cases: 4000,
        failure_persistence: None,
        ..Default::default()
    })]

    /// After each round, an entry leads to each page, or it was freed once; each unit has ended
    /// once, as what has become of its entries.
    #[test]
    fn pages_are_led_to_or_freed(
        room in room(),
        rounds in prop::collection::vec(round(), 1..5),
    ) {
        let mut trial = Trial::new(room);

        rounds.iter().for_each(|round| trial.round(round));
    }
}

/// Of all kinds, two entries and as many pages.
const OPS: [Op; 6] = [
    Op::Bring,
    Op::Bring,
    Op::Displace(1),
    Op::Value { own: true },
    Op::Change {
        entries: 1,
        own: true,
    },
    Op::Change {
        entries: 1,
        own: true,
    },
];

/// What two of these need.
const NEEDED: Room = Room {
    units: 2,
    runs: 4,
    values: 2,
    old: 4,
    new: 4,
};

fn two_units(end: End) -> Round {
    Round {
        start: 0,
        units: vec![(OPS.to_vec(), true); 2],
        end,
    }
}

/// In any number of rounds: nothing is left of the one before. Any of the units are changed.
#[test]
fn room_is_there_again() {
    let mut trial = Trial::new(NEEDED);

    for units in [2, 0, 1, 3, 2] {
        let why = Why::SelfHosted;
        let before = world(|w| w.entries.clone());

        trial.round(&two_units(End::Release { units, why }));
        let changed = world(|w| (0..ENTRIES).filter(|&i| w.entries[i] != before[i]).count());
        assert_eq!(changed, 2 * units.count_ones() as usize);
    }
}

/// Wherever there is no room for the second unit, the first one can be changed, and what the second
/// had before is gone.
/// What changes nothing is no unit: it would end as changed, or not, in the place of the next one.
#[test]
fn a_unit_has_entries() {
    let _trial = Trial::new(NEEDED);
    let mut batch = Batch::<Model, _>::new(NEEDED).unwrap();
    let mut empty = batch.open(Unit::new());

    empty.bring(Page::new()).unwrap();
    assert!(empty.close().is_err());
    assert!(batch.is_empty());
    check_world(&[]);
}

/// Forgetting a value is safe, so nothing may rely on its drop.
#[test]
fn a_unit_may_be_forgotten() {
    let _trial = Trial::new(NEEDED);
    let mut batch = Batch::<Model, _>::new(NEEDED).unwrap();
    let mut forgotten = batch.open(Unit::new());
    let page = world(|w| w.page(0));

    // SAFETY: It belongs to nobody else.
    unsafe { forgotten.displace(Page(page)) }.unwrap();
    std::mem::forget(forgotten);
    drop(batch);
    check_world(&[]);
}

#[test]
fn each_store_may_be_too_small() {
    for store in 0..5 {
        let mut room = NEEDED;
        *[
            &mut room.units,
            &mut room.runs,
            &mut room.values,
            &mut room.old,
            &mut room.new,
        ][store] -= 1;
        let mut trial = Trial::new(room);

        for _ in 0..2 {
            let mut batch = trial
                .batch
                .take()
                .unwrap_or_else(|| Batch::new(room).unwrap());
            let mut draft = Draft::new(&mut batch, room, Content::default());

            assert!(OPS.iter().all(|op| draft.op(op).is_ok()));
            draft.complete().unwrap();
            let content = draft.close().unwrap();
            // Until the first step that is too much.
            let mut draft = Draft::new(&mut batch, room, content.clone());
            let unit = draft.unit;
            let full = OPS.iter().any(|op| draft.op(op).is_err()) || draft.complete().is_err();

            assert_eq!(full, store != 0);
            if full {
                drop(draft);
            } else {
                assert!(draft.close().is_err());
            }
            assert_eq!(outcome(unit), Some(Outcome::Untouched(Why::NoMemory)));
            check_world(&content.brought);
            // SAFETY: Nobody reads reference counts.
            let prepared = batch.prepare(unsafe { Grace::is_not_needed() });
            let mut pausing = Pausing {
                units: 3,
                why: Why::Hotplug,
                runs: Vec::new(),
                last: Vec::new(),
            };
            let (batch, tally) = prepared.apply(&mut pausing).release();

            trial.released(&content.units, 3, Why::Hotplug, tally);
            assert_eq!(pausing.last, [false, true]);
            trial.batch = Some(batch);
        }
    }
}

/// Who changes entries has to find out what became of them.
#[test]
#[should_panic(expected = "their pages are forgotten")]
fn applied_cannot_be_dropped() {
    let batch = Batch::<Model, _>::new(NEEDED).unwrap();
    // SAFETY: There are no pages.
    let prepared = batch.prepare(unsafe { Grace::is_not_needed() });

    drop(prepared.apply(&mut Pausing {
        units: 0,
        why: Why::Hotplug,
        runs: Vec::new(),
        last: Vec::new(),
    }));
}
