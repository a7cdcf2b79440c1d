// SPDX-License-Identifier: GPL-2.0

//! Ledgers, beside lists of what should be in them.

#![no_main]

use libfuzzer_sys::{
    arbitrary::{self, Arbitrary},
    fuzz_target,
};
use verify::model::ledger::{Op, Run, LEDGERS, MMS};

#[derive(Arbitrary, Debug)]
enum Call {
    Open(u8),
    Close(u8),
    Add(u8, u8, u8, u8),
    Splice(u8),
    Push(u8, u8, u8),
    Some,
    Flush,
}

impl Call {
    fn op(self) -> Op {
        let ledger = |n| usize::from(n) % LEDGERS;
        let mms = |bits: u8| (0..MMS).filter(|mm| bits >> mm & 1 != 0).collect();
        let pages = |n| usize::from(n) + 1;

        match self {
            Self::Open(n) => Op::Open(ledger(n)),
            Self::Close(n) => Op::Close(ledger(n)),
            Self::Add(n, bits, len, now) => Op::Add {
                ledger: ledger(n),
                mms: mms(bits),
                pages: pages(len),
                now: now.into(),
            },
            Self::Splice(n) => Op::Splice(ledger(n)),
            Self::Push(bits, len, now) => Op::Push {
                mms: mms(bits),
                pages: pages(len),
                now: now.into(),
            },
            Self::Some => Op::Some,
            Self::Flush => Op::Flush,
        }
    }
}

fuzz_target!(|calls: Vec<Call>| {
    let mut run = Run::default();

    calls.into_iter().for_each(|call| run.step(&call.op()));
    run.end();
});
