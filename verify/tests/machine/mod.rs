// SPDX-License-Identifier: GPL-2.0

//! A machine on which the order of TLB maintenance matters, to be explored by a model checker.
//!
//! It has what emulators leave out: stores wait in a buffer and become visible in any order, page
//! table walkers fill TLBs at any time from what memory holds then, and a TLBI reaches each CPU
//! whenever it likes, unless somebody waits for it. Loads are executed in program order; what
//! their reordering can do is the subject of the litmus tests (`litmus/`).

use crate::explore;
use stateright::{Model, Property};
use std::collections::{BTreeMap, BTreeSet};

/// The name of a word in memory, all of which are 0 at first. Page table entries start with `pte`.
pub type Loc = &'static str;

/// An invalid page table entry, a lock that is free.
pub const NONE: u8 = 0;

/// The word that counts as `mm->tlb_flush_batched`: pending in the lower half, flushed above.
pub const MARK: Loc = "tlb_flush_batched";

/// The only address space has this ASID, unless it is given another one.
pub const ASID: u8 = 1;

/// Everything that a program of this machine can do. There is one register.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Op {
    /// Enters the store buffer.
    Store(Loc, u8),
    /// Looks into the CPU's own store buffer, then into memory.
    Load(Loc),
    /// Waits until a lock is free and takes it.
    Lock(Loc),
    /// Releases a lock: visible no earlier than all stores before it.
    Unlock(Loc),
    /// `atomic_inc()` of what is pending: acts on memory at once and orders nothing.
    Mark,
    /// `atomic_cmpxchg()` to "all of it is flushed", if the word is still what the register holds.
    MarkFlushed,
    /// `DSB ISHST`: waits until the CPU's own stores are visible.
    DsbIshst,
    /// `DSB ISH`: waits for these, and for the TLBIs that this CPU has issued.
    DsbIsh,
    /// Invalidates all entries of an ASID on all CPUs, some time.
    Tlbi(u8),
    /// The same, of the ASID in the register.
    TlbiLoaded,
    /// Invalidates this CPU's TLB, now.
    FlushLocal,
    /// Walks and accesses use this ASID from now on; 0 is none.
    Switch(u8),
    /// Skips a number of operations if a condition holds.
    SkipIf(If, usize),
    /// Runs in which it does not hold are not of interest.
    Assume(If),
    Nop,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum If {
    /// The register holds this.
    Loaded(u8),
    /// The register holds a [`MARK`] whose halves are equal.
    NothingPending,
}

/// An operation that is there only if a rule is kept.
pub fn only(rule: bool, op: Op) -> Op {
    if rule {
        op
    } else {
        Op::Nop
    }
}

/// `flush_tlb_batched_pending()`
pub const FLUSH_PENDING: [Op; 6] = [
    Op::Load(MARK),
    Op::SkipIf(If::NothingPending, 4),
    Op::DsbIshst,
    Op::Tlbi(ASID),
    Op::DsbIsh,
    Op::MarkFlushed,
];

#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct Cpu {
    pc: usize,
    pub done: bool,
    register: u8,
    asid: u8,
    /// Oldest first; `true` if no older one may be left when it becomes visible.
    stores: Vec<(Loc, u8, bool)>,
    /// ASID, which entry was walked, and what it held.
    tlb: BTreeSet<(u8, Loc, u8)>,
}

impl Cpu {
    /// Whether an access of this CPU may use a translation that came from an entry of this value.
    pub fn translates(&self, pte: u8) -> bool {
        self.tlb.iter().any(|&(a, _, p)| a == self.asid && p == pte)
    }

    fn load(&self, memory: &BTreeMap<Loc, u8>, loc: Loc) -> u8 {
        let own = self.stores.iter().rev().find(|s| s.0 == loc);
        own.map(|s| s.1)
            .or_else(|| memory.get(loc).copied())
            .unwrap_or(NONE)
    }

    fn holds(&self, condition: If) -> bool {
        match condition {
            If::Loaded(value) => self.register == value,
            If::NothingPending => self.register & 15 == self.register >> 4,
        }
    }
}

#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct State {
    memory: BTreeMap<Loc, u8>,
    pub cpus: Vec<Cpu>,
    /// TLBIs on their way: by whom, to whom, which ASID.
    tlbis: BTreeSet<(usize, usize, u8)>,
}

impl State {
    pub fn memory(&self, loc: Loc) -> u8 {
        self.memory.get(loc).copied().unwrap_or(NONE)
    }

    /// Whether any access may use a translation that came from an entry of this value.
    pub fn translated(&self, pte: u8) -> bool {
        self.cpus.iter().any(|cpu| cpu.translates(pte))
    }

    /// The same, after the TLBIs that are on their way have arrived.
    pub fn translated_for_good(&self, pte: u8) -> bool {
        self.cpus.iter().enumerate().any(|(i, cpu)| {
            cpu.translates(pte) && !self.tlbis.iter().any(|t| (t.1, t.2) == (i, cpu.asid))
        })
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Action {
    Execute { cpu: usize, op: Op },
    BecomeVisible { cpu: usize, store: usize },
    Walk { cpu: usize, pte: Loc },
    Invalidate { by: usize, on: usize, asid: u8 },
}

/// The machine with its programs.
#[derive(Clone)]
pub struct Machine {
    memory: Vec<(Loc, u8)>,
    /// The ASID that a CPU starts with, and its program.
    cpus: Vec<(u8, Vec<Op>)>,
    /// What a CPU's TLB holds at first.
    cached: Vec<(usize, (u8, Loc, u8))>,
    wrong: fn(&State) -> bool,
}

impl Machine {
    /// `wrong` tells what must never be.
    pub fn new(memory: &[(Loc, u8)], wrong: fn(&State) -> bool) -> Self {
        Self {
            memory: memory.to_vec(),
            cpus: Vec::new(),
            cached: Vec::new(),
            wrong,
        }
    }

    /// A CPU that executes `program`, in the kernel.
    pub fn kernel(self, program: &[Op]) -> Self {
        self.user(0, program)
    }

    /// A CPU that does so while its page table walker works for the address space.
    pub fn user(mut self, asid: u8, program: &[Op]) -> Self {
        self.cpus.push((asid, program.to_vec()));
        self
    }

    /// The TLB of the last CPU holds a translation from before.
    pub fn cached(mut self, asid: u8, loc: Loc, pte: u8) -> Self {
        self.cached.push((self.cpus.len() - 1, (asid, loc, pte)));
        self
    }

    /// The rule is kept: nothing is wrong in any state, and all programs can end.
    #[track_caller]
    pub fn holds(self) {
        explore::holds(self);
    }

    /// The rule is broken, and the checker finds out.
    #[track_caller]
    pub fn breaks(self) {
        assert!(explore::breaks(self, SAFE), "no way to go wrong was found");
    }
}

const SAFE: &str = "nothing goes wrong";
const ENDS: &str = "all programs can end";

impl Model for Machine {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            memory: self.memory.iter().copied().collect(),
            cpus: self
                .cpus
                .iter()
                .enumerate()
                .map(|(i, (asid, program))| Cpu {
                    asid: *asid,
                    done: program.is_empty(),
                    tlb: self
                        .cached
                        .iter()
                        .filter(|c| c.0 == i)
                        .map(|c| c.1)
                        .collect(),
                    ..Default::default()
                })
                .collect(),
            tlbis: BTreeSet::new(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (i, cpu) in state.cpus.iter().enumerate() {
            if let Some(&op) = self.cpus[i].1.get(cpu.pc) {
                let ready = match op {
                    Op::Lock(lock) => state.memory(lock) == NONE,
                    Op::DsbIshst => cpu.stores.is_empty(),
                    Op::DsbIsh => {
                        cpu.stores.is_empty() && state.tlbis.iter().all(|&(by, ..)| by != i)
                    }
                    Op::Assume(condition) => cpu.holds(condition),
                    _ => true,
                };
                if ready {
                    actions.push(Action::Execute { cpu: i, op });
                }
            }
            for (store, &(loc, _, release)) in cpu.stores.iter().enumerate() {
                // Stores to one location stay in order.
                if !cpu.stores[..store].iter().any(|s| release || s.0 == loc) {
                    actions.push(Action::BecomeVisible { cpu: i, store });
                }
            }
            for (&pte, &value) in &state.memory {
                let cached = cpu.tlb.contains(&(cpu.asid, pte, value));
                if pte.starts_with("pte") && value != NONE && cpu.asid != 0 && !cached {
                    actions.push(Action::Walk { cpu: i, pte });
                }
            }
        }
        actions.extend(
            state
                .tlbis
                .iter()
                .map(|&(by, on, asid)| Action::Invalidate { by, on, asid }),
        );
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let State {
            memory,
            cpus,
            tlbis,
        } = &mut state;

        match action {
            Action::BecomeVisible { cpu, store } => {
                let (loc, value, _) = cpus[cpu].stores.remove(store);
                memory.insert(loc, value);
            }
            Action::Walk { cpu, pte } => {
                let entry = (cpus[cpu].asid, pte, memory[pte]);
                cpus[cpu].tlb.insert(entry);
            }
            Action::Invalidate { by, on, asid } => {
                tlbis.remove(&(by, on, asid));
                cpus[on].tlb.retain(|&(a, ..)| a != asid);
            }
            Action::Execute { cpu: i, op } => {
                let all = 0..cpus.len();
                let cpu = &mut cpus[i];

                cpu.pc += 1;
                match op {
                    Op::Store(loc, value) => cpu.stores.push((loc, value, false)),
                    Op::Unlock(lock) => cpu.stores.push((lock, NONE, true)),
                    Op::Load(loc) => cpu.register = cpu.load(memory, loc),
                    Op::Lock(lock) => {
                        memory.insert(lock, 1);
                    }
                    Op::Mark => *memory.entry(MARK).or_default() += 1,
                    Op::MarkFlushed => {
                        let word = memory.entry(MARK).or_default();
                        if *word == cpu.register {
                            *word = (*word & 15) * 0x11;
                        }
                    }
                    Op::Tlbi(asid) => tlbis.extend(all.map(|on| (i, on, asid))),
                    Op::TlbiLoaded => tlbis.extend(all.map(|on| (i, on, cpu.register))),
                    Op::FlushLocal => cpu.tlb.clear(),
                    Op::Switch(asid) => cpu.asid = asid,
                    Op::SkipIf(condition, ops) if cpu.holds(condition) => cpu.pc += ops,
                    Op::SkipIf(..) | Op::Assume(_) | Op::DsbIshst | Op::DsbIsh | Op::Nop => {}
                }
                cpu.done = cpu.pc == self.cpus[i].1.len();
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(SAFE, |machine, state| !(machine.wrong)(state)),
            Property::sometimes(ENDS, |_, state: &State| {
                state.cpus.iter().all(|cpu| cpu.done)
            }),
        ]
    }
}
