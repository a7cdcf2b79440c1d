// SPDX-License-Identifier: GPL-2.0

//! kswapd and `memory.reclaim` defer the flushes of what they demote, and do not rely on it.
//!
//! A model of `balance_pgdat()` at order 0, as far as it holds pages: a drain, a look at the
//! watermarks, some batches, a look at throttled tasks, and again, until the node is balanced or
//! it gives up. What may be deferred says `eligibility.rs` itself. Meanwhile, other tasks allocate,
//! a drain may run for somebody else, and `memory.reclaim` demotes. Such a drain frees pages before
//! it takes them off what is held: for a moment they are counted twice.
//!
//! Not modelled: a node's reclaim file, which drains where `memory.reclaim` does; what a kswapd
//! holds that the freezer stops, which it releases when it is thawed, or the timer of the ledger
//! before that.

mod explore;
mod migrc_tier_model;

use migrc_tier_model::{
    Action, Fault, Marks, Proactive, State, Step, Tier, Without, KSWAPD, RECLAIM, ZONES,
};
use proptest::prelude::*;
use stateright::{Model, Property};
use verify::migrc::eligibility::Caller;

const ASLEEP: &str = "kswapd sleeps without pages that it holds";
const RETURNED: &str = "memory.reclaim returns without pages that it holds";
const SUCCESS: &str = "kswapd stops when its node is balanced without what is held";
const CLEAR: &str = "failures are forgotten when the node is balanced without what is held";
const THROTTLED: &str = "no task is left asleep for what kswapd holds";
const ZONE: &str = "what one zone holds does not balance another";
const MIN: &str = "what kswapd holds does not bring free memory to min";
const LIMIT: &str = "no more is held than a step, and a folio of each who adds";
const BEYOND: &str = "kswapd demotes no batch for what it holds";
const VAIN: &str = "a look is in vain only if pages were allocated, or counted twice";
const DRAINS: &str = "a wake has one drain, and those for a look in vain, a limit or a waiter";

fn never(s: &State, fault: Fault) -> bool {
    s.faults & 1 << fault as u8 == 0
}

impl Model for Tier {
    type State = State;
    type Action = Action;

    /// All around low, where kswapd is woken, and above high for a boost.
    fn init_states(&self) -> Vec<State> {
        let mut states = Vec::new();

        // Fewer, if there are more tasks.
        let (firsts, seconds) = match self.proactive {
            0 => (2..=7, 0..=3),
            _ => (4..=7, 1..=2),
        };

        for first in firsts {
            let states_of = |second| self.initial([first, second], first == 7);

            states.extend(seconds.clone().map(states_of));
        }
        states
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        let bools = [false, true];

        match s.step {
            Step::Isolate => {
                actions.push(Action::Demotes);
                actions.extend((0..ZONES).flat_map(|z| bools.map(|b| Action::Isolates(z, b))));
            }
            Step::Abort => actions.extend(bools.map(Action::Scans)),
            Step::Throttled => actions.extend(bools.map(Action::Meets)),
            Step::Next => actions.extend(bools.map(Action::Repeats)),
            Step::Asleep => actions.push(Action::Wakes),
            Step::Sleep => actions.extend([Action::Goes, Action::Wakes]),
            _ => actions.push(Action::Goes),
        }
        actions.extend((0..ZONES).map(Action::Takes));
        actions.extend([Action::Releases, Action::Subtracts]);
        if s.proactive != Proactive::Returned {
            actions.extend((0..ZONES).map(Action::Reclaims));
            actions.extend([Action::ReclaimDrains, Action::Returns]);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut s = *last;

        self.acts(&mut s, action)?;
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(ASLEEP, |_, s: &State| {
                s.step != Step::Asleep || !s.holds(KSWAPD)
            }),
            Property::always(RETURNED, |_, s: &State| {
                s.proactive != Proactive::Returned || !s.holds(RECLAIM)
            }),
            Property::always(SUCCESS, |_, s: &State| never(s, Fault::FalseSuccess)),
            Property::always(CLEAR, |_, s: &State| never(s, Fault::FalseClear)),
            Property::always(THROTTLED, |_, s: &State| never(s, Fault::LeftAsleep)),
            Property::always(ZONE, |_, s: &State| never(s, Fault::OtherZone)),
            Property::always(MIN, |tier: &Tier, s: &State| {
                // Allocations have taken more than the gate, or there is some left.
                (0..ZONES).all(|z| {
                    let marks = &tier.marks[z];

                    s.held[KSWAPD][z] == 0 || s.free[z] > marks.min || s.taken[z] > marks.gate()
                })
            }),
            Property::always(LIMIT, |tier: &Tier, s: &State| {
                let held: u8 = (0..ZONES).map(|z| s.held(z)).sum();

                held <= tier.step() + 1 + u8::from(tier.proactive > 0)
            }),
            Property::always(BEYOND, |_, s: &State| never(s, Fault::Beyond)),
            Property::always(VAIN, |_, s: &State| never(s, Fault::VainLook)),
            Property::always(DRAINS, |_, s: &State| never(s, Fault::Drain)),
            Property::sometimes(
                "kswapd holds pages that balance its node",
                |t: &Tier, s: &State| {
                    matches!(s.step, Step::LookDrain(_)) && !t.is_balanced(s, |_| 0)
                },
            ),
            Property::sometimes("a look is in vain", |t: &Tier, s: &State| {
                matches!(s.step, Step::LookAgain(_)) && !t.is_balanced(s, |_| 0)
            }),
            Property::sometimes("kswapd gives up with pages", |t: &Tier, s: &State| {
                s.step == Step::Out && s.holds(KSWAPD) && !t.is_balanced(s, |_| 0)
            }),
            Property::sometimes("a boost holds pages", |_, s: &State| {
                s.boosted && s.holds(KSWAPD)
            }),
            Property::sometimes("it sleeps again", |t: &Tier, s: &State| {
                s.step == Step::Asleep && t.is_balanced(s, |_| 0)
            }),
        ];

        if self.proactive > 0 {
            properties.push(Property::sometimes("both hold pages", |_, s: &State| {
                s.holds(KSWAPD) && s.holds(RECLAIM)
            }));
        } else {
            properties.extend([
                Property::sometimes("the limit drains", |_, s: &State| s.step == Step::AddDrain),
                Property::sometimes(
                    "a throttled task needs what is held",
                    |t: &Tier, s: &State| {
                        s.step == Step::Throttled
                            && !t.may_go_on(s, |_| 0)
                            && t.may_go_on(s, |z| s.held[KSWAPD][z])
                    },
                ),
            ]);
        }
        properties
    }
}

#[test]
fn what_is_held_is_not_relied_on() {
    explore::holds(Tier::new(Without::Nothing));
}

#[test]
fn memory_reclaim_may_hold_pages_too() {
    explore::holds(Tier::with_reclaim(Without::Nothing));
}

#[test]
fn kswapd_drains_before_it_stops() {
    let broken = Tier::new(Without::LookDrain);

    assert!(explore::breaks(broken, SUCCESS));
}

/// A drain for somebody else frees a page before it takes it off what is held. The page may be
/// counted twice in the first look, and be gone from there before kswapd wants to drain.
#[test]
fn kswapd_looks_again_also_if_it_has_released_nothing() {
    let broken = Tier::new(Without::Again);

    assert!(explore::breaks(broken, SUCCESS));
}

#[test]
fn the_second_look_is_plain() {
    let broken = Tier::with_reclaim(Without::Plain);

    assert!(explore::breaks(broken, SUCCESS));
}

#[test]
fn kswapd_drains_for_throttled_tasks() {
    let broken = Tier::new(Without::ThrottledDrain);

    assert!(explore::breaks(broken, THROTTLED));
}

#[test]
fn kswapd_drains_when_it_gives_up() {
    let broken = Tier::new(Without::OutDrain);

    assert!(explore::breaks(broken, ASLEEP));
}

#[test]
fn memory_reclaim_drains_when_it_returns() {
    let broken = Tier::with_reclaim(Without::ReturnDrain);

    assert!(explore::breaks(broken, RETURNED));
}

#[test]
fn failures_are_not_forgotten_for_pages_that_are_held() {
    let broken = Tier::new(Without::Failures);

    assert!(explore::breaks(broken, CLEAR));
}

/// Nothing is held, and the look counts what others have added since.
#[test]
fn failures_are_not_forgotten_before_the_second_look() {
    let broken = Tier::with_reclaim(Without::FailuresOnce);

    assert!(explore::breaks(broken, CLEAR));
}

#[test]
fn kswapd_counts_what_it_holds() {
    let broken = Tier::new(Without::Credit);

    assert!(explore::breaks(broken, BEYOND));
}

#[test]
fn kswapd_counts_it_in_its_zone() {
    let broken = Tier::new(Without::Zone);

    assert!(explore::breaks(broken, ZONE));
    assert!(explore::breaks(broken, VAIN));
}

#[test]
fn kswapd_defers_nothing_close_to_min() {
    let broken = Tier::new(Without::Gate);

    assert!(explore::breaks(broken, MIN));
}

#[test]
fn kswapd_holds_a_step() {
    let broken = Tier {
        list: 6,
        ..Tier::new(Without::Step)
    };

    assert!(explore::breaks(broken, LIMIT));
}

#[test]
fn kswapd_does_not_drain_after_each_batch() {
    let broken = Tier::new(Without::Patience);

    assert!(explore::breaks(broken, DRAINS));
}

/// Larger numbers than all states can be explored of.
fn large(without: Without, batch: u8) -> Tier {
    let marks = Marks {
        min: 20,
        low: 30,
        high: 40,
        above: 4,
    };

    Tier {
        without,
        marks: [marks; ZONES],
        batch,
        list: 120,
        wanted: 0,
        proactive: 0,
    }
}

/// How many pages kswapd demotes if nobody disturbs it. Every `other`th is one of the second zone.
/// Stock is a kswapd that may not defer.
fn demotes(tier: &Tier, free: [u8; ZONES], other: u8, may_defer: bool) -> u8 {
    let mut s = tier.initial(free, false);

    while s.step != Step::Sleep {
        let zone = usize::from(s.list % other == 0);
        let tries = match s.step {
            Step::Isolate => [Action::Isolates(zone, may_defer), Action::Demotes],
            Step::Abort => [Action::Scans(true), Action::Scans(false)],
            Step::Throttled => [Action::Meets(false), Action::Meets(false)],
            Step::Next => [Action::Repeats(s.progress), Action::Repeats(false)],
            _ => [Action::Goes, Action::Goes],
        };
        let next = |action| tier.next_state(&s, action);

        s = tries.into_iter().find_map(next).expect("kswapd goes on");
    }
    tier.list - s.list
}

#[test]
fn kswapd_demotes_what_stock_does() {
    let mut most = 0;

    for batch in [1, 3, 8] {
        let [tier, without] = [Without::Nothing, Without::Credit].map(|w| large(w, batch));
        let step = tier.step();

        for (first, second, other) in (20..=40).flat_map(|f| {
            [20, 30, 40]
                .into_iter()
                .flat_map(move |s| (2..=5).map(move |o| (f, s, o)))
        }) {
            let free = [first, second];
            let stock = demotes(&tier, free, other, false);
            let with = demotes(&tier, free, other, true);
            let more = demotes(&without, free, other, true);

            assert!(stock <= with && with <= stock + batch, "{free:?}");
            assert!(with <= more && more <= with + step + batch, "{free:?}");
            most = most.max(more - with);
        }
    }
    println!("without credit, up to {most} pages more");
    assert!(most >= large(Without::Nothing, 1).step());
}

/// Drains of a wake, and what they were for.
#[derive(Default)]
struct Wake {
    drains: usize,
    deferred: usize,
    in_vain: usize,
    met: usize,
}

fn disturbs(action: &Action) -> bool {
    matches!(
        action,
        Action::Isolates(_, false)
            | Action::Demotes
            | Action::Scans(false)
            | Action::Repeats(false)
            | Action::Takes(_)
            | Action::Releases
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4000,
        failure_persistence: None,
        ..Default::default()
    })]

    /// What kswapd does not know of happens at any time.
    #[test]
    fn drains_are_few(
        free in [24..=40u8, 24..=40u8],
        batch in 1..=12u8,
        choices in prop::collection::vec(any::<u16>(), 2000),
    ) {
        let tier = Tier { wanted: 60, ..large(Without::Nothing, batch) };
        let limit = tier.limit(Caller::Kswapd);
        let mut s = tier.initial(free, false);
        let mut wake = Wake::default();

        for choice in choices {
            let mut actions = Vec::new();

            tier.actions(&s, &mut actions);
            let next = |action| Some((action, tier.next_state(&s, action)?));
            let mut all: Vec<_> = actions.into_iter().filter_map(next).collect();

            // Most of the time kswapd demotes all that it can.
            if choice % 6 != 0 && all.iter().any(|(action, _)| !disturbs(action)) {
                all.retain(|(action, _)| !disturbs(action));
            }
            let Some((action, new)) = all.get(choice as usize / 6 % all.len().max(1)) else {
                break;
            };
            let deferred = |s: &State| s.batch.iter().map(|of| of[0] as usize).sum::<usize>();
            let drains = match (s.step, *action) {
                (Step::LookDrain(_) | Step::AddDrain | Step::Out, Action::Goes) => true,
                (Step::Throttled, Action::Meets(tasks)) => tasks,
                _ => false,
            };

            wake.drains += usize::from(drains && s.holds(KSWAPD));
            wake.met += usize::from(*action == Action::Meets(true) && s.holds(KSWAPD));
            if let Action::Isolates(..) = action {
                wake.deferred += deferred(new) - deferred(&s);
            }
            if matches!((s.step, new.step), (Step::LookAgain(_), Step::Isolate)) {
                wake.in_vain += 1;
            }
            prop_assert!(
                wake.drains <= 1 + wake.deferred / limit + wake.in_vain + wake.met
            );
            if new.step == Step::Begin {
                wake = Wake::default();
            }
            prop_assert_eq!(new.faults, 0);
            s = *new;
        }
    }
}
