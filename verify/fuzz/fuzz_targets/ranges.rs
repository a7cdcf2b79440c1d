// SPDX-License-Identifier: GPL-2.0

//! The batch, beside TLBs that hold what was not invalidated.

#![no_main]

use libfuzzer_sys::{
    arbitrary::{self, Arbitrary},
    fuzz_target,
};
use verify::model::ranges::{Hardware, Op, Run, MMS, PAGE, PAGES};

#[derive(Arbitrary, Debug)]
enum Call {
    Callback {
        mm: u8,
        runs: Vec<(u8, u8)>,
        hold: bool,
        c: bool,
    },
    IssueMm(u8),
    Issue,
    PutBack,
    Flush,
    Release,
}

impl Call {
    fn op(self) -> Op {
        let mm = |mm| usize::from(mm) % MMS;

        match self {
            Self::Callback {
                mm: of,
                runs,
                hold,
                c,
            } => Op::Callback {
                mm: mm(of),
                runs: runs
                    .into_iter()
                    .map(|(page, n)| (usize::from(page) % PAGES, usize::from(n) % 8 + 1))
                    .collect(),
                hold,
                c,
            },
            Self::IssueMm(of) => Op::IssueMm(mm(of)),
            Self::Issue => Op::Issue,
            Self::PutBack => Op::PutBack,
            Self::Flush => Op::Flush,
            Self::Release => Op::Release,
        }
    }
}

fuzz_target!(|input: (Option<u8>, Option<u8>, Vec<Call>)| {
    let (mm, one, calls) = input;
    let bytes = |pages| usize::from(pages) % PAGES * PAGE;
    let mut run = Run::new(Hardware {
        mm_bytes: mm.map(bytes),
        one_operation: one.map(bytes),
    });

    for call in calls {
        run.step(&call.op());
        run.check_owed();
        run.check_held();
    }
    run.flush();
    run.check_paid();
    run.batch.release();
    assert_eq!(run.state().taken, run.state().dropped);
    assert_eq!(run.state().misdropped, None);
});
