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
    // States are visited in the order of their depth, but several at once, and the last is what
    // the checker remembers: ask for a shorter way until there is none.
    let search = |depth: Option<usize>| {
        let checker = model.clone().checker();
        let checker = match depth {
            Some(depth) => checker.target_max_depth(depth),
            None => checker,
        };

        checker
            .finish_when(HasDiscoveries::AnyOf([property].into()))
            .spawn_bfs()
            .join()
            .discovery(property)
            .map(|path| path.into_actions())
    };
    let Some(mut actions) = search(None) else {
        return false;
    };

    // The initial state has depth 1, and the checker looks at what is less deep than it is told.
    while let Some(shorter) = search(Some(actions.len() + 1)) {
        assert!(shorter.len() < actions.len());
        actions = shorter;
    }
    println!("not so: {property}");
    for action in actions {
        println!("    {action:?}");
    }
    true
}
