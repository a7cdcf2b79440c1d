// SPDX-License-Identifier: GPL-2.0

//! Rules of the TLB batch about who owes, who holds, and until when.
//!
//! A task migrates pages of another process, whose address space may go away at any time; it may
//! run out of memory, fork and die in between. Each rule is explored kept and broken, and where it
//! is broken the checker must find out what that breaks.

mod explore;

use stateright::{Model, Property};

/// What the kernel takes care of.
#[derive(Clone, Copy)]
struct Rules {
    /// An address space whose ranges outlive an `rmap_one()` callback is held.
    hold: bool,
    /// A put-back leaves the references to a flush outside the callback.
    keep: bool,
    /// `migrate_pages_batch()` flushes when it leaves with `-ENOMEM`, too.
    enomem: bool,
    /// A child does not inherit the batch.
    fork: bool,
    /// `do_exit()` looks at the batch.
    exit: bool,
}

const ALL: Rules = Rules {
    hold: true,
    keep: true,
    enomem: true,
    fork: true,
    exit: true,
};

/// `task_struct.tlb_ubc.batch`, of one address space.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
struct Batch {
    owed: bool,
    held: bool,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum At {
    /// Nowhere near the batch: user space, or another system call.
    Elsewhere,
    /// Between two callbacks of one `migrate_pages_batch()`.
    Migrating,
    /// In an `rmap_one()` callback: its lock keeps the process from tearing the mapping down.
    Callback,
    Dead,
    /// Died in a callback, whose lock nobody releases. A task with mappings of its own under that
    /// lock may not get here: `exit_mm()`, which comes before it pays, waits for good then.
    DeadLocked,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct Task {
    at: At,
    batch: Batch,
}

impl Task {
    fn has_lock(self) -> bool {
        matches!(self.at, At::Callback | At::DeadLocked)
    }

    fn is_dead(self) -> bool {
        matches!(self.at, At::Dead | At::DeadLocked)
    }
}

/// The address space of the other process.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct Mm {
    /// `mm_users`: the process has not exited.
    users: bool,
    /// `mm_count`; the users have one of it.
    count: u8,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct State {
    mm: Mm,
    parent: Task,
    child: Option<Task>,
    used_after_free: bool,
    dropped_too_often: bool,
    dropped_locked: bool,
    lost: bool,
}

impl State {
    fn tasks(&self) -> impl Iterator<Item = Task> {
        [Some(self.parent), self.child].into_iter().flatten()
    }

    fn task(&mut self, who: Who) -> &mut Task {
        match who {
            Who::Parent => &mut self.parent,
            Who::Child => self.child.as_mut().expect("a task that acts exists"),
        }
    }

    fn mmdrop(&mut self) {
        match self.mm.count.checked_sub(1) {
            Some(count) => self.mm.count = count,
            None => self.dropped_too_often = true,
        }
        // Somebody's reference is gone that still counts on it.
        self.dropped_too_often |= self.mm.count == 0 && self.mm.users;
    }

    /// Issuing reads the ASID of the mm.
    fn issue(&mut self, who: Who) {
        if self.task(who).batch.owed {
            self.used_after_free |= self.mm.count == 0;
            self.task(who).batch.owed = false;
        }
    }

    fn flush(&mut self, who: Who) {
        self.issue(who);
        if self.task(who).batch.held {
            self.task(who).batch.held = false;
            self.dropped_locked |= self.task(who).at == At::Callback;
            self.mmdrop();
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Who {
    Parent,
    Child,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Action {
    BeginMigration(Who),
    BeginCallback(Who),
    Clear(Who),
    /// A put-back: flushes under the page table lock, where nothing may be freed.
    PutBack(Who),
    EndCallback(Who),
    /// Direct reclaim, for memory to migrate to, flushes what is not its own.
    NestedFlush(Who),
    EndMigration(Who),
    EndMigrationNoMemory(Who),
    Fork,
    /// Between any two of these: an oops in the middle kills the task, too.
    Die(Who),
    ProcessExits,
}

use Action::*;

const NO_UAF: &str = "no mm is used after it was freed";
const NO_DOUBLE_DROP: &str = "no reference is dropped twice";
const NO_LOCKED_DROP: &str = "no reference is dropped under a page table lock";
const NOTHING_LOST: &str = "whoever dies has paid";
const NOTHING_LEFT: &str = "whoever is done with the batch owes and holds nothing";
const FREED: &str = "at the end the mm is freed";
const OUTLIVES: &str = "the process can exit while something of it is owed";
const PUTS_BACK: &str = "a callback can put back while the batch holds";
const INHERITS: &str = "a task can fork";
const DIES_LOCKED: &str = "a task can die in a callback";

impl Model for Rules {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            mm: Mm {
                users: true,
                count: 1,
            },
            parent: Task {
                at: At::Elsewhere,
                batch: Batch::default(),
            },
            child: None,
            used_after_free: false,
            dropped_too_often: false,
            dropped_locked: false,
            lost: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for who in [Who::Parent, Who::Child] {
            if who == Who::Child && state.child.is_none() {
                continue;
            }
            match state.clone().task(who).at {
                At::Elsewhere => {
                    actions.extend([BeginMigration(who), Die(who)]);
                    if who == Who::Parent && state.child.is_none() {
                        actions.push(Fork);
                    }
                }
                At::Migrating => {
                    actions.extend([
                        NestedFlush(who),
                        EndMigration(who),
                        EndMigrationNoMemory(who),
                        Die(who),
                    ]);
                    if state.mm.users {
                        actions.push(BeginCallback(who));
                    }
                }
                At::Callback => {
                    actions.extend([Clear(who), PutBack(who), EndCallback(who), Die(who)]);
                }
                At::Dead | At::DeadLocked => {}
            }
        }
        if state.mm.users && !state.tasks().any(|task| task.has_lock()) {
            actions.push(ProcessExits);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;

        match action {
            BeginMigration(who) => state.task(who).at = At::Migrating,
            BeginCallback(who) => state.task(who).at = At::Callback,
            Clear(who) => state.task(who).batch.owed = true,
            PutBack(who) if self.keep => state.issue(who),
            PutBack(who) => state.flush(who),
            EndCallback(who) => {
                let task = state.task(who);

                task.at = At::Migrating;
                if self.hold && task.batch.owed && !task.batch.held {
                    task.batch.held = true;
                    state.mm.count += 1;
                }
            }
            NestedFlush(who) => state.flush(who),
            EndMigration(who) | EndMigrationNoMemory(who) => {
                state.task(who).at = At::Elsewhere;
                if self.enomem || action == EndMigration(who) {
                    state.flush(who);
                }
            }
            Fork => {
                let batch = if self.fork {
                    Batch::default()
                } else {
                    state.parent.batch
                };

                state.child = Some(Task {
                    at: At::Elsewhere,
                    batch,
                });
            }
            Die(who) => {
                let task = state.task(who);

                // Before `do_exit()`, which sleeps, `make_task_dead()` resets the preemption count:
                // a page table lock is not released, but does not count any more.
                task.at = match task.has_lock() {
                    true => At::DeadLocked,
                    false => At::Dead,
                };
                if self.exit {
                    state.flush(who);
                }
                state.lost |= state.task(who).batch.owed;
            }
            ProcessExits => {
                state.mm.users = false;
                state.mmdrop();
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NO_UAF, |_, s: &State| !s.used_after_free),
            Property::always(NO_DOUBLE_DROP, |_, s: &State| !s.dropped_too_often),
            Property::always(NO_LOCKED_DROP, |_, s: &State| !s.dropped_locked),
            Property::always(NOTHING_LOST, |_, s: &State| !s.lost),
            Property::always(NOTHING_LEFT, |_, s: &State| {
                s.tasks()
                    .all(|task| task.at != At::Elsewhere || task.batch == Batch::default())
            }),
            Property::always(FREED, |_, s: &State| {
                s.mm.users || s.mm.count == 0 || !s.tasks().all(Task::is_dead)
            }),
            Property::sometimes(OUTLIVES, |_, s: &State| {
                !s.mm.users && s.tasks().any(|task| task.batch.owed)
            }),
            Property::sometimes(PUTS_BACK, |_, s: &State| {
                s.tasks()
                    .any(|task| task.at == At::Callback && task.batch.held && task.batch.owed)
            }),
            Property::sometimes(INHERITS, |_, s: &State| s.child.is_some()),
            Property::sometimes(DIES_LOCKED, |_, s: &State| {
                s.tasks().any(|task| task.at == At::DeadLocked)
            }),
        ]
    }
}

impl Rules {
    #[track_caller]
    fn holds(self) {
        explore::holds(self);
    }

    /// Exactly these properties do not hold.
    #[track_caller]
    fn breaks(self, expected: &[&str]) {
        let properties = self.properties().into_iter();
        let broken: Vec<_> = properties
            .filter(|p| p.expectation.discovery_is_failure() && explore::breaks(self, p.name))
            .map(|p| p.name)
            .collect();

        assert_eq!(broken, expected);
    }
}

#[test]
fn each_debt_is_paid_and_each_hold_is_dropped_once() {
    ALL.holds();
}

#[test]
fn an_mm_that_is_not_held_is_used_after_free() {
    Rules { hold: false, ..ALL }.breaks(&[NO_UAF]);
}

/// `tlb_batch_flush_slow()` for any reason but `Reason::PutBack`.
#[test]
fn a_put_back_that_lets_go_drops_under_a_lock() {
    Rules { keep: false, ..ALL }.breaks(&[NO_LOCKED_DROP]);
}

#[test]
fn a_batch_left_behind_by_enomem_stays_owed() {
    Rules {
        enomem: false,
        ..ALL
    }
    .breaks(&[NOTHING_LEFT]);
}

/// As long as nothing is ever left behind there is nothing to inherit: both have to be broken.
#[test]
fn a_batch_that_a_child_inherits_is_dropped_twice() {
    Rules { fork: false, ..ALL }.holds();
    Rules {
        fork: false,
        enomem: false,
        ..ALL
    }
    .breaks(&[NO_UAF, NO_DOUBLE_DROP, NOTHING_LEFT]);
}

#[test]
fn a_task_that_dies_in_between_takes_what_it_owes_along() {
    Rules { exit: false, ..ALL }.breaks(&[NOTHING_LOST, FREED]);
}
