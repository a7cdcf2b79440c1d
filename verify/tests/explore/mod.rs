// SPDX-License-Identifier: GPL-2.0

//! What the models have in common: a rule that is kept, and one that is broken.

use stateright::{Checker, HasDiscoveries, Model};

/// Explores every state: all properties hold, and what must be possible is.
#[track_caller]
pub fn holds<M>(model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + PartialEq + std::fmt::Debug + std::hash::Hash + Send + Sync,
    M::Action: Clone + PartialEq + std::fmt::Debug,
{
    let checker = model.checker().spawn_bfs().join();

    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

/// Finds and prints a shortest way to a state in which `property` does not hold, if there is one.
pub fn breaks<M>(model: M, property: &'static str) -> bool
where
    M: Model + Clone + Send + Sync + 'static,
    M::State: Clone + PartialEq + std::fmt::Debug + std::hash::Hash + Send + Sync,
    M::Action: Clone + PartialEq + std::fmt::Debug,
{
    let found = || HasDiscoveries::AnyOf([property].into());
    let any = model
        .clone()
        .checker()
        .finish_when(found())
        .spawn_bfs()
        .join();

    if any.discovery(property).is_none() {
        return false;
    }
    // The checker remembers the last of those that it finds at once, so look no deeper than needed.
    let actions = (1..=any.max_depth() + 1).find_map(|depth| {
        let checker = model.clone().checker().target_max_depth(depth);

        checker
            .finish_when(found())
            .spawn_bfs()
            .join()
            .discovery(property)
            .map(|path| path.into_actions())
    });
    println!("not so: {property}");
    for action in actions.expect("was found before") {
        println!("    {action:?}");
    }
    true
}
