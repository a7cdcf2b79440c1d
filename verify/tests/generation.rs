// SPDX-License-Identifier: GPL-2.0

//! The rule of the TLB batch on x86: the generation of the address space is advanced after the last
//! clear and before it is decided which CPUs to interrupt.
//!
//! A model of `switch_mm_irqs_off()`, `flush_tlb_func()` and `should_flush_tlb()` in
//! `arch/x86/mm/tlb.c`, and of what the batch calls: `flush_tlb_mm_range()`, if it is all of one
//! address space, else `arch_tlbbatch_add_pending()` and `arch_tlbbatch_flush()`. A CPU stays in
//! `mm_cpumask()` when it switches away, until an interrupt finds that it has; in lazy TLB mode it
//! is not interrupted. It looks at the generation when it comes back from either.
//!
//! Locked operations and the load of CR3 are full barriers, and a CPU's stores become visible in
//! their order, but later than its next loads: `loaded_mm` and `is_lazy` are in a store buffer. The
//! flushing CPU has a locked operation, `inc_mm_tlb_gen()`, between its stores and its loads. Which
//! entries are invalidated is left out: the question is whether a CPU invalidates at all. INVLPGB,
//! which interrupts nobody, is left out, too.

mod explore;

use stateright::{Model, Property};

/// What the flushing CPU does, in this order.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Step {
    /// Clears one of two entries.
    Clear(usize),
    /// `inc_mm_tlb_gen()`
    Advance,
    /// Reads `mm_cpumask()`.
    Mask,
    /// `should_flush_tlb()` reads `loaded_mm`,
    Loaded,
    /// and `is_lazy`: interrupts the other CPU if that has to flush.
    Interrupt,
    /// Waits for the interrupt to be handled.
    Wait,
}

use Step::*;

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum At {
    /// Another address space is loaded, or that of the kernel.
    Away,
    Running,
    /// A kernel thread runs; the address space is still loaded.
    Lazy,
    /// `switch_mm_irqs_off()`: in the set, the generation not read yet.
    SwitchingTo,
    /// The same, read: what is out of date will be invalidated with the load of CR3.
    Loading,
    SwitchingAway,
    /// The same, from lazy mode to where it came from.
    Returning,
}

/// `cpu_tlbstate.loaded_mm`
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum LoadedMm {
    This,
    Other,
    /// `LOADED_MM_SWITCHING`
    Switching,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Store {
    LoadedMm(LoadedMm),
    IsLazy(bool),
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct State {
    steps: usize,
    /// What the flushing CPU has read.
    found_in_mask: bool,
    found_loaded: LoadedMm,
    valid: [bool; 2],
    generation: u8,
    interrupt: bool,
    /// The other CPU, which has run the process before.
    at: At,
    in_mask: bool,
    seen: u8,
    cached: [bool; 2],
    /// As others see it, and what they do not see yet.
    loaded: LoadedMm,
    lazy: bool,
    buffer: Vec<Store>,
}

impl State {
    fn write(&mut self, store: Store) {
        match store {
            Store::LoadedMm(loaded) => self.loaded = loaded,
            Store::IsLazy(lazy) => self.lazy = lazy,
        }
    }

    fn barrier(&mut self) {
        for store in std::mem::take(&mut self.buffer) {
            self.write(store);
        }
    }

    /// Catches up with the generation, and invalidates if there is anything to catch up with.
    fn catch_up(&mut self) {
        if self.seen != self.generation {
            self.seen = self.generation;
            self.cached = [false; 2];
        }
    }

    /// The first half of a switch, to `at`.
    fn begin_switch(&mut self, at: At) {
        if self.at == At::Lazy {
            self.buffer.push(Store::IsLazy(false));
        }
        self.buffer.push(Store::LoadedMm(LoadedMm::Switching));
        self.at = at;
    }

    fn end_switch(&mut self, at: At) {
        let loaded = match at {
            At::Away => LoadedMm::Other,
            _ => LoadedMm::This,
        };

        // CR3
        self.barrier();
        self.buffer.push(Store::LoadedMm(loaded));
        self.at = at;
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Action {
    Flusher(Step),
    /// Also speculatively.
    Walk(usize),
    HandleInterrupt,
    Drain,
    BeginSwitch(At),
    EnterLazy,
    ReadGeneration,
    Load(At),
}

/// What may be left out of the rules of the other CPU.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Without {
    Nothing,
    /// The CPU is in the mask before it reads the generation.
    Mask,
    /// `smp_mb()`, if it is there already.
    Barrier,
    /// It reads the generation when lazy mode ends.
    LazyGeneration,
    /// `smp_mb()` before that.
    LazyBarrier,
    /// An interrupt takes the CPU out of the mask only if another address space is loaded.
    TrimOther,
}

#[derive(Clone)]
struct Flush {
    steps: Vec<Step>,
    /// `flush_tlb_mm_range()`, which knows the address space, unlike `arch_tlbbatch_flush()`.
    range: bool,
    /// `flush_tlb_info.trim_cpumask`
    trim: bool,
    without: Without,
}

const SAFE: &str = "after the flush no CPU that runs the process has the old entries";
const RACES: &str = "the process can be switched to during the flush";
const LAZY: &str = "a lazy CPU can keep the old entries";
const STAYS: &str = "a CPU can be in the mask that has switched away";

impl Model for Flush {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let running = State {
            steps: 0,
            found_in_mask: false,
            found_loaded: LoadedMm::This,
            valid: [true; 2],
            generation: 1,
            interrupt: false,
            at: At::Running,
            in_mask: true,
            seen: 1,
            cached: [true; 2],
            loaded: LoadedMm::This,
            lazy: false,
            buffer: Vec::new(),
        };
        // A flush of another time has found it away. The entries of its ASID are still there.
        let trimmed = State {
            at: At::Away,
            in_mask: false,
            loaded: LoadedMm::Other,
            ..running.clone()
        };

        vec![running, trimmed]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        match self.steps.get(state.steps) {
            Some(Wait) if state.interrupt => {}
            Some(step) => actions.push(Action::Flusher(*step)),
            None => {}
        }
        if !state.buffer.is_empty() {
            actions.push(Action::Drain);
        }
        let loaded = matches!(state.at, At::Running | At::Lazy | At::Returning);
        actions.extend(
            (0..2)
                .filter(|&i| loaded && state.valid[i])
                .map(Action::Walk),
        );

        match state.at {
            At::Away => actions.push(Action::BeginSwitch(At::SwitchingTo)),
            At::Running => {
                actions.extend([Action::BeginSwitch(At::SwitchingAway), Action::EnterLazy]);
            }
            At::Lazy => actions.extend([At::SwitchingAway, At::Returning].map(Action::BeginSwitch)),
            // Interrupts are off.
            At::SwitchingTo | At::Returning => return actions.push(Action::ReadGeneration),
            At::Loading => return actions.push(Action::Load(At::Running)),
            At::SwitchingAway => return actions.push(Action::Load(At::Away)),
        }
        if state.interrupt {
            actions.push(Action::HandleInterrupt);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();

        match action {
            Action::Flusher(step) => {
                state.steps += 1;
                match step {
                    Clear(i) => state.valid[i] = false,
                    Advance => state.generation += 1,
                    Mask => state.found_in_mask = state.in_mask,
                    Loaded => state.found_loaded = state.loaded,
                    Interrupt => {
                        let other = state.found_loaded == LoadedMm::Other;

                        state.interrupt = state.found_in_mask
                            && !state.lazy
                            && (!self.range || !other || self.trim);
                    }
                    Wait => {}
                }
            }
            Action::Walk(i) => state.cached[i] = true,
            Action::Drain => {
                let store = state.buffer.remove(0);

                state.write(store);
            }
            Action::HandleInterrupt => {
                state.interrupt = false;
                state.barrier();
                if self.range && (state.at == At::Away || self.without == Without::TrimOther) {
                    state.in_mask = false;
                }
                match state.at {
                    At::Running => state.catch_up(),
                    At::Lazy => {
                        // To `init_mm`.
                        state.begin_switch(At::SwitchingAway);
                        state.end_switch(At::Away);
                    }
                    // What is not loaded catches up when it is.
                    _ => {}
                }
            }
            Action::BeginSwitch(At::Returning) => {
                state.buffer.push(Store::IsLazy(false));
                if self.without != Without::LazyBarrier {
                    state.barrier();
                }
                state.at = At::Returning;
            }
            Action::BeginSwitch(at) => {
                state.begin_switch(at);
                // For another address space there is a barrier as well, in either way.
                if at == At::SwitchingAway || state.in_mask {
                    if self.without != Without::Barrier {
                        state.barrier();
                    }
                } else if self.without != Without::Mask {
                    state.barrier();
                    state.in_mask = true;
                }
            }
            Action::EnterLazy => {
                state.buffer.push(Store::IsLazy(true));
                state.at = At::Lazy;
            }
            Action::ReadGeneration if state.at == At::Returning => {
                if self.without != Without::LazyGeneration {
                    state.catch_up();
                }
                state.at = At::Running;
            }
            Action::ReadGeneration => {
                state.catch_up();
                state.at = At::Loading;
            }
            Action::Load(at) => {
                state.end_switch(at);
                state.in_mask |= at == At::Running;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn is_over(flush: &Flush, state: &State) -> bool {
            state.steps == flush.steps.len()
        }

        vec![
            Property::always(SAFE, |flush: &Flush, state: &State| {
                !is_over(flush, state) || state.at != At::Running || state.cached == [false; 2]
            }),
            Property::sometimes(RACES, |flush: &Flush, state: &State| {
                flush.steps.get(state.steps) == Some(&Mask)
                    && state.at == At::Running
                    && state.seen < state.generation
            }),
            Property::sometimes(LAZY, |flush: &Flush, state: &State| {
                is_over(flush, state) && state.at == At::Lazy && state.cached == [true; 2]
            }),
            Property::sometimes(STAYS, |_, state: &State| {
                state.at == At::Away && state.in_mask
            }),
        ]
    }
}

/// One generation for both entries.
const RIGHT: [Step; 7] = [Clear(0), Clear(1), Advance, Mask, Loaded, Interrupt, Wait];

/// One flush after the other.
const TWICE: [Step; 12] = [
    Clear(0),
    Advance,
    Mask,
    Loaded,
    Interrupt,
    Wait, //
    Clear(1),
    Advance,
    Mask,
    Loaded,
    Interrupt,
    Wait,
];

/// Both ways in which the batch flushes, one of them with a trim and without.
fn flushes(steps: &[Step], without: Without) -> [Flush; 3] {
    [(false, false), (true, false), (true, true)].map(|(range, trim)| Flush {
        steps: steps.to_vec(),
        range,
        trim,
        without,
    })
}

/// In which of these ways an old entry stays.
fn breaks(steps: &[Step], without: Without) -> [bool; 3] {
    flushes(steps, without).map(|flush| explore::breaks(flush, SAFE))
}

#[test]
fn generation_is_advanced_between_the_clears_and_the_mask() {
    flushes(&RIGHT, Without::Nothing)
        .into_iter()
        .for_each(explore::holds);
}

/// The second one finds a mask that the first one has trimmed.
#[test]
fn a_mask_that_was_trimmed_is_joined_again() {
    flushes(&TWICE, Without::Nothing)
        .into_iter()
        .for_each(explore::holds);
}

#[test]
fn a_flush_without_a_new_generation_does_nothing() {
    let steps = [Clear(0), Clear(1), Mask, Loaded, Interrupt, Wait];

    assert_eq!(breaks(&steps, Without::Nothing), [true; 3]);
}

/// A CPU that joins in between is neither interrupted nor told.
#[test]
fn generation_advanced_after_the_mask_was_read_is_too_late() {
    let steps = [Clear(0), Clear(1), Mask, Advance, Loaded, Interrupt, Wait];

    assert_eq!(breaks(&steps, Without::Nothing), [true; 3]);
}

/// A CPU that catches up in between refills from the entry that is left, and ignores the interrupt.
#[test]
fn generation_advanced_before_the_last_clear_is_too_early() {
    let steps = [Clear(0), Advance, Clear(1), Mask, Loaded, Interrupt, Wait];

    assert_eq!(breaks(&steps, Without::Nothing), [true; 3]);
}

#[test]
fn a_cpu_is_in_the_mask_before_it_reads_the_generation() {
    assert_eq!(breaks(&RIGHT, Without::Mask), [true; 3]);
}

/// Who knows the address space asks which one is loaded, and is told of one that no longer is.
#[test]
fn a_cpu_that_was_in_the_mask_needs_a_barrier() {
    assert_eq!(breaks(&RIGHT, Without::Barrier), [false, true, false]);
}

#[test]
fn a_cpu_that_was_lazy_reads_the_generation() {
    assert_eq!(breaks(&RIGHT, Without::LazyGeneration), [true; 3]);
}

#[test]
fn a_cpu_that_was_lazy_needs_a_barrier() {
    assert_eq!(breaks(&RIGHT, Without::LazyBarrier), [true; 3]);
}

#[test]
fn a_cpu_that_runs_the_process_is_not_trimmed() {
    assert_eq!(breaks(&TWICE, Without::TrimOther), [false, true, true]);
}
