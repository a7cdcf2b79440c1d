// SPDX-License-Identifier: GPL-2.0

//! The rule of the TLB batch on x86: the generation of the address space is advanced after the last
//! clear and before the set of CPUs to interrupt is read.
//!
//! Everything involved is a locked operation or happens with interrupts off, so that an
//! interleaving of whole steps is all that there is. Which entries are invalidated is left out:
//! the question is whether a CPU invalidates at all.

mod explore;

use stateright::{Model, Property};

/// What the flushing CPU does, in this order.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Step {
    /// Clears one of two entries.
    Clear(usize),
    /// `inc_mm_tlb_gen()`
    Advance,
    /// Reads `mm_cpumask()`, and interrupts the other CPU if it is in there.
    Interrupt,
    /// Waits for the interrupt to be handled.
    Wait,
}

use Step::*;

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum At {
    /// Another address space is loaded.
    Away,
    /// `switch_mm_irqs_off()`: in the set, the generation not read yet.
    Switching,
    Running,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct State {
    steps: usize,
    valid: [bool; 2],
    generation: u8,
    interrupt: bool,
    /// The other CPU, which has run the process before.
    at: At,
    in_mask: bool,
    seen: u8,
    cached: [bool; 2],
}

impl State {
    /// Catches up with the generation, and invalidates if there is anything to catch up with.
    fn catch_up(&mut self) {
        if self.seen != self.generation {
            self.seen = self.generation;
            self.cached = [false; 2];
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Action {
    Flusher(Step),
    Walk(usize),
    HandleInterrupt,
    SwitchAway,
    JoinMask,
    ReadGeneration,
}

#[derive(Clone)]
struct Flush(Vec<Step>);

const SAFE: &str = "after the flush no CPU that runs the process has the old entries";
const RACES: &str = "the process can be switched to during the flush";

impl Model for Flush {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            steps: 0,
            valid: [true; 2],
            generation: 1,
            interrupt: false,
            at: At::Running,
            in_mask: true,
            seen: 1,
            cached: [true; 2],
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        match self.0.get(state.steps) {
            Some(Wait) if state.interrupt => {}
            Some(step) => actions.push(Action::Flusher(*step)),
            None => {}
        }
        match state.at {
            At::Away => actions.push(Action::JoinMask),
            // Interrupts are off.
            At::Switching => return actions.push(Action::ReadGeneration),
            At::Running => {
                actions.push(Action::SwitchAway);
                actions.extend((0..2).filter(|&i| state.valid[i]).map(Action::Walk));
            }
        }
        if state.interrupt {
            actions.push(Action::HandleInterrupt);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;

        match action {
            Action::Flusher(step) => {
                state.steps += 1;
                match step {
                    Clear(i) => state.valid[i] = false,
                    Advance => state.generation += 1,
                    Interrupt => state.interrupt = state.in_mask,
                    Wait => {}
                }
            }
            Action::Walk(i) => state.cached[i] = true,
            Action::HandleInterrupt => {
                state.interrupt = false;
                // What is not loaded catches up when it is.
                if state.at == At::Running {
                    state.catch_up();
                }
            }
            Action::SwitchAway => (state.at, state.in_mask) = (At::Away, false),
            Action::JoinMask => (state.at, state.in_mask) = (At::Switching, true),
            Action::ReadGeneration => {
                state.at = At::Running;
                state.catch_up();
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(SAFE, |flush: &Flush, state: &State| {
                state.steps < flush.0.len() || state.at != At::Running || state.cached == [false; 2]
            }),
            Property::sometimes(RACES, |_, state: &State| {
                state.steps == 3 && state.at == At::Running && state.seen == 1
            }),
        ]
    }
}

/// One generation for both entries.
#[test]
fn generation_is_advanced_between_the_clears_and_the_mask() {
    explore::holds(Flush(vec![Clear(0), Clear(1), Advance, Interrupt, Wait]));
}

#[test]
fn a_flush_without_a_new_generation_does_nothing() {
    let steps = vec![Clear(0), Clear(1), Interrupt, Wait];

    assert!(explore::breaks(Flush(steps), SAFE));
}

/// A CPU that joins in between is neither interrupted nor told.
#[test]
fn generation_advanced_after_the_mask_was_read_is_too_late() {
    let steps = vec![Clear(0), Clear(1), Interrupt, Advance, Wait];

    assert!(explore::breaks(Flush(steps), SAFE));
}

/// A CPU that catches up in between refills from the entry that is left, and ignores the interrupt.
#[test]
fn generation_advanced_before_the_last_clear_is_too_early() {
    let steps = vec![Clear(0), Advance, Clear(1), Interrupt, Wait];

    assert!(explore::breaks(Flush(steps), SAFE));
}
