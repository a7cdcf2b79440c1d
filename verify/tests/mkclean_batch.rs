// SPDX-License-Identifier: GPL-2.0

//! Writeback cleans the PTEs of several folios with one flush, `folio_batch_mkclean()`.
//!
//! A process maps two pages of a file, and stores to them through the TLB of one CPU. Two tasks
//! write the file to disk over and over. One of them, or both, first clean the PTEs of both folios
//! with one flush. Then each cleans what is left, as stock does. Meanwhile the process takes
//! faults, drops a page or unmaps it, and calls `mprotect(PROT_READ)`.
//!
//! What is done under the page table lock is one step. Only the CPU sees what is in between, and
//! the bit that it sets there could have been set before. Content is not counted: a page differs
//! from the disk, or does not. So the number of stores is not limited.
//!
//! Each rule is then left out, or comes too late, and the checker must find out what that breaks.
//!
//! Not modelled: secondary MMUs; a second process, whose PTEs have a flush of their own; the I/O,
//! for which a folio is under writeback instead of locked.

mod explore;
mod mkclean_batch_model;

use mkclean_batch_model::{
    Action::{self, *},
    Fault, Holder,
    Op::{self, *},
    Page, Protect, Pte, Rules, State, Step, Task, Tlb, Zap, ALL, CLEAN, DROPPED, OPS, PAGES, SYNC,
    TASKS,
};
use stateright::{Model, Property};

const LOST: &str = "of a store to a folio that nobody has locked, disk, folio or PTE know";
const SYNCED: &str = "what was stored before fsync() is on the disk when it returns";
const PROTECTED: &str = "after mprotect(PROT_READ) there is no store";
const FREED: &str = "there is no store to a page that is free";
const WRITABLE: &str = "the folio of a writable PTE is dirty";

const OWED: &str = "both pages were stored to after their PTEs were cleaned";
const DROPS: &str = "a page that was cleaned, stored to, and not flushed is dropped";
const NESTED: &str = "mprotect() has to flush for another one only";
const LEFT_OUT: &str = "a folio is left out";
const BLIND: &str = "a PTE becomes dirty that is not writable";

impl Model for Rules {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        // As fork() leaves it that copies the PTEs of a file, with the folio dirty for the parent's
        // sake: it is not dirty, and writable.
        let forked = Pte {
            writable: true,
            ..CLEAN
        };
        let page = |forked_too| Page {
            pte: Some(if forked_too { forked } else { CLEAN }),
            tlb: Tlb::Nothing,
            dirty: forked_too,
            lock: None,
            unsaved: false,
            wanted: false,
        };
        let task = Task {
            step: Step::Begin,
            taken: [false; PAGES],
            cleaned: [false; PAGES],
        };

        [[false; 2], [true, false], [false, true], [true; 2]]
            .map(|forked| State {
                pages: forked.map(page),
                tasks: [task; TASKS],
                fault: Fault::Nothing,
                protect: Protect::Writable,
                zap: Zap::Mapped,
                pending: 0,
                late: false,
                freed: false,
            })
            .into()
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        for nr in 0..PAGES {
            let page = &s.pages[nr];

            actions.extend([Fill(nr), Evict(nr), Store(nr)]);
            if s.fault == Fault::Nothing
                && s.protect == Protect::Writable
                && s.is_mapped(nr)
                && page.pte.is_some_and(|pte| !pte.writable)
            {
                actions.push(Faults(nr));
            }
        }
        actions.push(FaultGoes(s.fault));
        actions.extend((0..TASKS).map(|who| Goes(who, s.tasks[who].step)));
        if s.readable() && s.is_mapped(DROPPED) {
            actions.push(Reads);
            if s.zap == Zap::Mapped && self.others {
                actions.push(Drops);
            }
        }
        if s.lockable() {
            if s.protect == Protect::Writable && self.others {
                actions.push(Protects);
            }
            if s.zap == Zap::Mapped {
                actions.push(Unmaps);
            }
        }
        actions.extend([ProtectGoes(s.protect), Gathers]);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut s = *last;

        match action {
            Fill(nr) => {
                let page = &mut s.pages[nr];

                page.tlb = match page.pte? {
                    Pte {
                        writable: false, ..
                    } => Tlb::ReadOnly,
                    Pte { dirty: false, .. } => Tlb::Writable,
                    Pte { .. } => Tlb::Dirty,
                };
            }
            Evict(nr) => s.pages[nr].tlb = Tlb::Nothing,
            Store(nr) => {
                s.pages[nr].store(self.blind)?;
                s.late |= s.protect == Protect::Returned;
                s.freed |= nr == DROPPED && s.zap == Zap::Freed;
            }
            Faults(nr) => {
                // Those that lead to the fault are gone from the TLB.
                if last.pages[nr].tlb == Tlb::Dirty {
                    return None;
                }
                s.pages[nr].tlb = Tlb::Nothing;
                s.fault = Fault::Mkwrite(nr);
            }
            FaultGoes(_) => s.fault_goes(self)?,
            Reads => {
                s.pages[DROPPED].pte.get_or_insert(CLEAN);
            }
            Goes(who, _) => s.goes(self, who)?,
            Protects => s.protect = Protect::Change(0, false),
            ProtectGoes(_) => s.protect_goes()?,
            Drops => s.zap(self, Zap::Dropped)?,
            Unmaps => s.zap(self, Zap::Unmapped)?,
            Gathers => s.gathers(self)?,
        }
        (s != *last).then_some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(LOST, |_, s: &State| {
                s.pages.iter().all(|page| {
                    let known = page.dirty || page.pte.is_some_and(|pte| pte.dirty);

                    !page.unsaved || known || page.lock.is_some()
                })
            }),
            Property::always(SYNCED, |_, s: &State| {
                s.tasks[SYNC].step != Step::Begin || s.pages.iter().all(|page| !page.wanted)
            }),
            Property::always(PROTECTED, |_, s: &State| !s.late),
            Property::always(FREED, |_, s: &State| !s.freed),
            Property::always(WRITABLE, |_, s: &State| {
                let writable = |page: &Page| page.pte.is_some_and(|pte| pte.writable);

                s.pages.iter().all(|page| page.dirty || !writable(page))
            }),
            Property::sometimes(OWED, |_, s: &State| {
                let stored = |page: &Page| page.owes() && page.unsaved && page.pte == Some(CLEAN);

                s.pages.iter().all(stored)
            }),
            Property::sometimes(DROPS, |_, s: &State| {
                let page = &s.pages[DROPPED];

                page.owes() && page.unsaved && page.pte.is_none()
            }),
            Property::sometimes(NESTED, |rules: &Rules, s: &State| {
                !rules.others || s.protect == Protect::Change(PAGES, false) && s.pending > 0
            }),
            Property::sometimes(LEFT_OUT, |_, s: &State| {
                let taken = |task: &Task| task.taken != [false; PAGES];

                s.tasks.iter().any(taken)
                    && s.pages.iter().any(|page| page.lock == Some(Holder::Fault))
            }),
            Property::sometimes(BLIND, |rules: &Rules, s: &State| {
                let set = |page: &Page| page.pte.is_some_and(|pte| pte.dirty && !pte.writable);

                !rules.blind || s.pages.iter().any(set)
            }),
        ]
    }
}

/// Writeback and faults by themselves.
const BLIND_CPU: Rules = Rules {
    blind: true,
    others: false,
    ..ALL
};

#[track_caller]
fn breaks(rules: Rules, property: &'static str) {
    assert!(explore::breaks(rules, property), "still so: {property}");
}

#[track_caller]
fn batch_breaks(batch: [Op; OPS], property: &'static str) {
    breaks(Rules { batch, ..ALL }, property);
}

#[test]
fn no_store_is_lost() {
    for batches in [[true, false], [false, true], [true, true]] {
        explore::holds(Rules { batches, ..ALL });
    }
}

/// A PTE is clean when its folio is unlocked, or its dirty bit is seen by `folio_mkclean()`.
#[test]
fn no_store_is_lost_that_makes_a_read_only_pte_dirty() {
    for batches in [[true, false], [false, true], [true, true]] {
        explore::holds(Rules {
            batches,
            ..BLIND_CPU
        });
    }
}

/// Stock's `folio_mkclean()` does not flush for `mprotect()`, which has yet to: no batch is needed.
#[test]
fn mprotect_has_not_flushed_what_a_blind_cpu_stores_to() {
    let stock = Rules {
        batches: [false; TASKS],
        blind: true,
        ..ALL
    };

    breaks(stock, SYNCED);
}

/// Whoever writes a folio locks it, and so does a fault.
#[test]
fn the_flush_comes_before_the_unlock() {
    batch_breaks([TryLock, Raise, Clean, Unlock, Flush, Lower], LOST);
    batch_breaks([TryLock, Raise, Clean, Unlock, Flush, Lower], SYNCED);
    batch_breaks([TryLock, Unlock, Raise, Clean, Flush, Lower], LOST);
}

#[test]
fn there_is_a_flush() {
    let without = [TryLock, Raise, Clean, Nothing, Lower, Unlock];

    batch_breaks(without, LOST);
    batch_breaks(without, SYNCED);
    batch_breaks(without, PROTECTED);
}

/// `mprotect()` does not lock the folio.
#[test]
fn mprotect_knows_of_the_flush() {
    batch_breaks([TryLock, Nothing, Clean, Flush, Nothing, Unlock], PROTECTED);
    batch_breaks([TryLock, Clean, Raise, Flush, Lower, Unlock], PROTECTED);
    batch_breaks([TryLock, Raise, Clean, Lower, Flush, Unlock], PROTECTED);
}

/// What comes after the flush may come in any order.
#[test]
fn mprotect_may_know_for_longer() {
    explore::holds(Rules {
        batch: [TryLock, Raise, Clean, Flush, Unlock, Lower],
        ..ALL
    });
}

#[test]
fn folio_mkclean_flushes_what_is_left() {
    breaks(
        Rules {
            mkclean: false,
            ..ALL
        },
        LOST,
    );
}

#[test]
fn a_write_fault_locks_the_folio() {
    breaks(
        Rules {
            mkwrite: false,
            ..ALL
        },
        SYNCED,
    );
}

/// A PTE that a batch has cleaned is no reason to flush then: the lock of the folio is enough.
#[test]
fn a_dirty_pte_is_flushed_before_it_is_forgotten() {
    breaks(
        Rules {
            force: false,
            ..ALL
        },
        LOST,
    );
}

#[test]
fn a_page_is_flushed_before_it_is_free() {
    breaks(
        Rules {
            gather: false,
            ..ALL
        },
        FREED,
    );
}

/// Nothing here depends on either: the folio of a writable PTE is dirty, and remains so while it is
/// locked. The mark is for what a file system knows of the parts of a folio.
#[test]
fn folios_are_dirty_anyway() {
    for (dirty, marked) in [(true, false), (false, false)] {
        explore::holds(Rules {
            dirty,
            marked,
            ..ALL
        });
    }
}
