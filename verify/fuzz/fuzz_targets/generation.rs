// SPDX-License-Identifier: GPL-2.0

//! The numbers of deferrals and of those that are covered, with flushes that take long.

#![no_main]

use libfuzzer_sys::{
    arbitrary::{self, Arbitrary},
    fuzz_target,
};
use verify::model::generation::{Op, Run, FLUSHES};

#[derive(Arbitrary, Debug)]
enum Call {
    Defer,
    Turn,
    Begin(u8),
    End(u8),
}

// Begins a little before half of a word is full, or anywhere.
fuzz_target!(|input: (Result<u8, u32>, Vec<Call>)| {
    let start = input.0.map_or_else(u64::from, |n| (1 << 32) - u64::from(n));
    let mut run = Run::new(start);

    for call in input.1 {
        run.step(&match call {
            Call::Defer => Op::Defer,
            Call::Turn => Op::Turn,
            Call::Begin(n) => Op::Begin(usize::from(n) % FLUSHES),
            Call::End(n) => Op::End(usize::from(n) % FLUSHES),
        });
    }
});
