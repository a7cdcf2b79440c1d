// SPDX-License-Identifier: GPL-2.0

//! Numbers that do not wrap: what is pending is what was deferred less what is covered, and a flush
//! covers all that was deferred before it began.

use crate::migrc::generation::Generation;

#[derive(Clone, Debug)]
pub enum Op {
    Defer,
    /// One of several flushes reads the word,
    Begin(usize),
    /// or has invalidated, and tries to replace it.
    End(usize),
}

pub const FLUSHES: usize = 3;

/// A word of which so much was deferred, and covered, since the machine was started.
pub fn word(deferred: u64, covered: u64) -> Generation {
    Generation::from_raw(deferred << 32 | (covered & u64::from(u32::MAX)))
}

pub struct Run {
    deferred: u64,
    covered: u64,
    raw: u64,
    seen: [Option<(Generation, u64)>; FLUSHES],
}

impl Run {
    pub fn new(start: u64) -> Self {
        Self {
            deferred: start,
            covered: start,
            raw: word(start, start).into_raw(),
            seen: [None; FLUSHES],
        }
    }

    pub fn step(&mut self, op: &Op) {
        match *op {
            Op::Defer => {
                self.deferred += 1;
                self.raw = self.raw.wrapping_add(Generation::DEFERRAL);
            }
            Op::Begin(flush) => {
                self.seen[flush] = Some((Generation::from_raw(self.raw), self.deferred));
            }
            Op::End(flush) => {
                if let Some((word, began)) = self.seen[flush].take() {
                    let after = word.cover(Generation::from_raw(self.raw));

                    assert_eq!(after.is_some(), began > self.covered);
                    self.raw = after.map_or(self.raw, Generation::into_raw);
                    self.covered = began.max(self.covered);
                }
            }
        }
        assert_eq!(self.raw, word(self.deferred, self.covered).into_raw());
        let pending = Generation::from_raw(self.raw).is_pending();
        assert_eq!(pending, self.deferred != self.covered);
    }
}
