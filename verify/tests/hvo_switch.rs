// SPDX-License-Identifier: GPL-2.0

//! `vm.hugetlb_optimize_vmemmap` is turned on while references are taken.
//!
//! Models of `page_ref_add_unless_zero()`, `hvo_proc_switch()` and what a batch waits for. A page
//! becomes a tail, which is read-only. Who has read its count before, when it was not zero, must
//! not try to change it any more. What grace periods wait for is assumed: one of RCU, for whom has
//! preemption disabled or is an interrupt; one of RCU tasks, for every task that has not slept
//! since either, wherever it was preempted.

mod explore;

use stateright::{Model, Property};

/// What may be left out.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Without {
    Nothing,
    /// The switch turns on the key, by which references disable preemption,
    Key,
    /// waits for those without that,
    Wait,
    /// and for tasks: not only as RCU does.
    Tasks,
    /// Who finds the key turned on waits for who has turned it on.
    Mutex,
    /// A batch waits for those with preemption disabled.
    Batch,
}

/// Two tasks and an interrupt that take a reference, again and again.
const TAKERS: usize = 3;
const INTERRUPT: usize = 2;
/// Two tasks that write 1 to the sysctl.
const WRITERS: usize = 2;
/// Who can wait for takers: both of these, and the batch.
const BATCH: usize = WRITERS;

/// Between the read of a count that was not zero and its update.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct Inside {
    /// The key was on.
    preemption_disabled: bool,
    /// Who waits for the end of this.
    waited_for: [bool; WRITERS + 1],
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Writer {
    Begins,
    /// Has found the key turned off, and turned it on.
    HasKey,
    Waits,
    /// The switch is on.
    Done,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Page {
    /// Its count is not zero, at times.
    InUse,
    /// Taken out of the allocator: zero.
    Frozen,
    /// In a batch that waits.
    Waits,
    ReadOnly,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct State {
    takers: [Option<Inside>; TAKERS],
    writers: [Writer; WRITERS],
    page: Page,
    key: bool,
    on: bool,
    fault: bool,
}

impl State {
    fn begin_wait(&mut self, who: usize, tasks: bool) {
        for (i, taker) in self.takers.iter_mut().enumerate() {
            if let Some(inside) = taker {
                inside.waited_for[who] = tasks || inside.preemption_disabled || i == INTERRUPT;
            }
        }
    }

    fn is_over(&self, who: usize) -> bool {
        !self.takers.iter().flatten().any(|i| i.waited_for[who])
    }

    /// Some writer is between `key_mutex` and its release.
    fn is_locked(&self) -> bool {
        let inside = |w: &Writer| matches!(w, Writer::HasKey | Writer::Waits);

        self.writers.iter().any(inside)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    /// Reads a count, and goes on to update it.
    Read(usize),
    Update(usize),
    Write(usize),
    Freeze,
    Batch,
    Protect,
}

#[derive(Clone)]
struct Switch(Without);

const FAULT: &str = "no page is updated that is read-only";

impl Model for Switch {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            takers: [None; TAKERS],
            writers: [Writer::Begins; WRITERS],
            page: Page::InUse,
            key: false,
            on: false,
            fault: false,
        }]
    }

    fn actions(&self, _: &State, actions: &mut Vec<Action>) {
        actions.extend((0..TAKERS).flat_map(|i| [Action::Read(i), Action::Update(i)]));
        actions.extend((0..WRITERS).map(Action::Write));
        actions.extend([Action::Freeze, Action::Batch, Action::Protect]);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut s = *last;

        match action {
            Action::Read(i) => {
                if s.page != Page::InUse || s.takers[i].is_some() {
                    return None;
                }
                s.takers[i] = Some(Inside {
                    preemption_disabled: s.key,
                    waited_for: [false; WRITERS + 1],
                });
            }
            Action::Update(i) => {
                s.takers[i].take()?;
                s.fault |= s.page == Page::ReadOnly;
            }
            Action::Write(i) => match s.writers[i] {
                Writer::Begins => {
                    if s.is_locked() && self.0 != Without::Mutex {
                        return None;
                    }
                    if s.key || self.0 == Without::Key {
                        s.writers[i] = Writer::Done;
                        s.on = true;
                    } else {
                        s.writers[i] = Writer::HasKey;
                        s.key = true;
                    }
                }
                Writer::HasKey => {
                    s.writers[i] = Writer::Waits;
                    if self.0 != Without::Wait {
                        s.begin_wait(i, self.0 != Without::Tasks);
                    }
                }
                Writer::Waits => {
                    if !s.is_over(i) {
                        return None;
                    }
                    s.writers[i] = Writer::Done;
                    s.on = true;
                }
                Writer::Done => return None,
            },
            Action::Freeze => {
                if s.page != Page::InUse {
                    return None;
                }
                s.page = Page::Frozen;
            }
            Action::Batch => {
                if s.page != Page::Frozen || !s.on {
                    return None;
                }
                s.page = Page::Waits;
                if self.0 != Without::Batch {
                    s.begin_wait(BATCH, false);
                }
            }
            Action::Protect => {
                if s.page != Page::Waits || !s.is_over(BATCH) {
                    return None;
                }
                s.page = Page::ReadOnly;
            }
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(FAULT, |_, s: &State| !s.fault),
            Property::sometimes("tails are read-only", |_, s: &State| {
                s.page == Page::ReadOnly
            }),
            Property::sometimes("both writers are done", |_, s: &State| {
                s.writers == [Writer::Done; WRITERS]
            }),
        ]
    }
}

#[test]
fn no_late_update() {
    explore::holds(Switch(Without::Nothing));
}

#[test]
fn the_key_is_needed() {
    assert!(explore::breaks(Switch(Without::Key), FAULT));
}

#[test]
fn the_wait_is_needed() {
    assert!(explore::breaks(Switch(Without::Wait), FAULT));
}

#[test]
fn rcu_does_not_wait_for_tasks() {
    assert!(explore::breaks(Switch(Without::Tasks), FAULT));
}

#[test]
fn the_second_writer_waits() {
    assert!(explore::breaks(Switch(Without::Mutex), FAULT));
}

#[test]
fn a_batch_waits() {
    assert!(explore::breaks(Switch(Without::Batch), FAULT));
}
