// SPDX-License-Identifier: GPL-2.0

//! Windows, attempts and rests.

#![no_main]

use libfuzzer_sys::{
    arbitrary::{self, Arbitrary},
    fuzz_target,
};
use verify::{
    hvo::plan::{Budget, Cost, Miss, Work},
    model::plan::{check_attempts, check_rest, check_windows},
};

#[derive(Arbitrary, Debug)]
struct Input {
    runs: Vec<(u32, u8, bool)>,
    pauses: Vec<(u32, u32, u64)>,
    budget: (u32, u64),
    misses: Vec<u8>,
    retries: u8,
    mandatory: bool,
    rest: (u32, u32, u8),
}

fuzz_target!(|input: Input| {
    let runs: Vec<_> = input
        .runs
        .iter()
        .map(|&(entries, copies, last)| {
            let copies = copies.into();

            (Work { entries, copies }, last)
        })
        .collect();
    let (entries, ns) = input.budget;
    let cost = input
        .pauses
        .iter()
        .fold(Cost::INITIAL, |cost, &(entries, copies, ns)| {
            let next = cost.learn(Work { entries, copies }, ns);

            assert!(next.of(Work::default()) <= next.of(Work { entries, copies }));
            next
        });

    check_windows(&runs, Budget { entries, ns }, cost);
    check_attempts(
        input.misses.iter().map(|miss| match miss % 3 {
            0 => Miss::Cancelled,
            1 => Miss::Hotplug,
            _ => Miss::Locked,
        }),
        u32::from(input.retries) % 20,
        input.mandatory,
    );
    let (paused, since, percent) = input.rest;
    check_rest(paused.into(), since.into(), u32::from(percent) % 100 + 1);
});
