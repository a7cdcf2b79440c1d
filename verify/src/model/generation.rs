// SPDX-License-Identifier: GPL-2.0

//! What is pending is what was deferred less what is covered, and a flush covers all that was
//! deferred before it began.

use crate::migrc::generation::Generation;

#[derive(Clone, Debug)]
pub enum Op {
    Defer,
    /// So often that half of a word would be what it was, while flushes of others covered as much.
    Turn,
    /// One of several flushes reads the number,
    Begin(usize),
    /// or has invalidated, and tries to replace the other one.
    End(usize),
}

pub const FLUSHES: usize = 3;

pub struct Run {
    deferred: u64,
    covered: u64,
    flushed: u64,
    seen: [Option<Generation>; FLUSHES],
}

impl Run {
    pub fn new(start: u64) -> Self {
        Self {
            deferred: start,
            covered: start,
            flushed: start,
            seen: [None; FLUSHES],
        }
    }

    pub fn step(&mut self, op: &Op) {
        match *op {
            Op::Defer => self.deferred += 1,
            Op::Turn => {
                let others = self.covered + (1 << 32);

                self.deferred += 1 << 32;
                self.flushed = Generation::from_raw(others).cover(self.flushed).unwrap();
                self.covered = others;
            }
            Op::Begin(flush) => self.seen[flush] = Some(Generation::from_raw(self.deferred)),
            Op::End(flush) => {
                if let Some(seen) = self.seen[flush].take() {
                    let after = seen.cover(self.flushed);

                    assert_eq!(after.is_some(), seen.into_raw() > self.covered);
                    self.flushed = after.unwrap_or(self.flushed);
                    self.covered = seen.into_raw().max(self.covered);
                }
            }
        }
        assert_eq!(self.flushed, self.covered);
        let pending = Generation::from_raw(self.deferred).is_pending(self.flushed);
        assert_eq!(pending, self.deferred != self.covered);
    }
}
