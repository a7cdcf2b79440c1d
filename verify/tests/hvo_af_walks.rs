// SPDX-License-Identifier: GPL-2.0

//! One entry changes by its access flag, in all interleavings with the walks of two CPUs.
//!
//! `hvo_af.rs` has the kernel's own file and many entries, this has all states. A walk reads the
//! entry, and some time later its TLB has the translation: if the flag was clear, by an update that
//! sets it and fails if the entry is not what was read. An invalidation ends walks that have read
//! an entry whose flag was set. CPUs write to the page that they have a translation of, evict it, or
//! walk for no reason.

mod explore;

use stateright::{Model, Property};

/// What may be left out.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Without {
    Nothing,
    /// The flag is cleared,
    Clear,
    /// and the translation invalidated,
    Flush,
    /// before the page is copied.
    Copy,
    /// The new entry replaces no other one than that.
    Exchange,
}

const CPUS: usize = 2;
const WRITES: u8 = 2;
const TRIES: u8 = 3;

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Page {
    Old,
    New,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct Entry {
    page: Page,
    young: bool,
}

#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
struct Cpu {
    tlb: Option<Page>,
    /// What a walk has read.
    walk: Option<Entry>,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Step {
    Clear,
    Flush,
    Copy,
    Exchange,
    /// The old page is used for something else.
    Done,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct State {
    entry: Entry,
    cpus: [Cpu; CPUS],
    step: Step,
    tries: u8,
    /// How often each page was written to; the new one has what was copied.
    old: u8,
    new: u8,
    lost: bool,
    stale: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    Walk(usize),
    Fill(usize),
    Write(usize),
    Evict(usize),
    Update,
}

#[derive(Clone)]
struct Change(Without);

const LOST: &str = "no write is lost";
const STALE: &str = "nobody writes to the old page afterwards";

impl Change {
    fn update(&self, s: &mut State) -> Option<()> {
        match s.step {
            Step::Clear => {
                s.entry.young &= self.0 == Without::Clear;
                if self.0 == Without::Copy {
                    s.new = s.old;
                }
                s.step = Step::Flush;
            }
            Step::Flush => {
                for cpu in s.cpus.iter_mut().filter(|_| self.0 != Without::Flush) {
                    cpu.tlb = None;
                    cpu.walk = cpu.walk.filter(|entry| !entry.young);
                }
                s.step = Step::Copy;
            }
            Step::Copy => {
                if self.0 != Without::Copy {
                    s.new = s.old;
                }
                s.step = Step::Exchange;
            }
            Step::Exchange => {
                // Without a flag there is nothing to look at.
                let looks = !matches!(self.0, Without::Clear | Without::Exchange);

                if s.entry.young && looks {
                    s.tries += 1;
                    s.step = Step::Clear;
                    return (s.tries < TRIES).then_some(());
                }
                s.entry = Entry {
                    page: Page::New,
                    young: true,
                };
                s.lost = s.new != s.old;
                s.step = Step::Done;
            }
            Step::Done => return None,
        }
        Some(())
    }
}

impl Model for Change {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            entry: Entry {
                page: Page::Old,
                young: true,
            },
            cpus: Default::default(),
            step: Step::Clear,
            tries: 0,
            old: 0,
            new: 0,
            lost: false,
            stale: false,
        }]
    }

    fn actions(&self, _: &State, actions: &mut Vec<Action>) {
        for cpu in 0..CPUS {
            actions.extend([
                Action::Walk(cpu),
                Action::Fill(cpu),
                Action::Write(cpu),
                Action::Evict(cpu),
            ]);
        }
        actions.push(Action::Update);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut s = *last;

        match action {
            Action::Walk(i) => {
                if s.cpus[i].tlb.is_some() || s.cpus[i].walk.is_some() {
                    return None;
                }
                s.cpus[i].walk = Some(s.entry);
            }
            Action::Fill(i) => {
                let read = s.cpus[i].walk.take()?;

                if !read.young {
                    // It walks again.
                    if s.entry != read {
                        return Some(s);
                    }
                    s.entry.young = true;
                }
                s.cpus[i].tlb = Some(read.page);
            }
            Action::Write(i) => match s.cpus[i].tlb? {
                Page::Old if s.step == Step::Done => s.stale = true,
                Page::Old if s.old < WRITES => s.old += 1,
                Page::New if s.new < 2 * WRITES => s.new += 1,
                _ => return None,
            },
            Action::Evict(i) => drop(s.cpus[i].tlb.take()?),
            Action::Update => self.update(&mut s)?,
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(LOST, |_, s: &State| !s.lost),
            Property::always(STALE, |_, s: &State| !s.stale),
            Property::sometimes("the entry changes", |_, s: &State| s.step == Step::Done),
            Property::sometimes("the entry changes after a write", |_, s: &State| {
                s.step == Step::Done && s.old > 0
            }),
            Property::sometimes("the entry changes in the last try", |_, s: &State| {
                s.step == Step::Done && s.tries + 1 == TRIES
            }),
        ]
    }
}

#[test]
fn no_write_is_lost_and_none_late() {
    explore::holds(Change(Without::Nothing));
}

#[test]
fn the_flag_is_needed() {
    assert!(explore::breaks(Change(Without::Clear), LOST));
    assert!(explore::breaks(Change(Without::Clear), STALE));
}

#[test]
fn the_invalidation_is_needed() {
    assert!(explore::breaks(Change(Without::Flush), LOST));
    assert!(explore::breaks(Change(Without::Flush), STALE));
}

#[test]
fn the_copy_is_late() {
    assert!(explore::breaks(Change(Without::Copy), LOST));
    assert!(!explore::breaks(Change(Without::Copy), STALE));
}

#[test]
fn a_store_is_not_enough() {
    assert!(explore::breaks(Change(Without::Exchange), LOST));
    assert!(explore::breaks(Change(Without::Exchange), STALE));
}
