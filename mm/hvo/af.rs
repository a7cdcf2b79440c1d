// SPDX-License-Identifier: GPL-2.0

//! Changes of entries while all CPUs run and use them.
//!
//! A CPU sets the access flag of an entry before its TLB may have the translation. So a translation
//! whose flag was cleared, and then invalidated, is in no TLB for as long as the flag is clear. An
//! exchange that finds it clear replaces an entry that no CPU uses: nobody writes to the old page
//! between the invalidation and the exchange, and nobody reads it afterwards. If the exchange finds
//! the flag set, the entry and its page are as they were, and it is tried again.
//!
//! ```text
//! clear the flags of a window    what follows is for entries that no TLB has
//! invalidate, once for all
//! copy, exchange                 for each entry; those that became young are done again
//! ```
//!
//! A unit is begun by the first exchange. What was not begun can be left without a trace, and what
//! was begun is finished: nothing has to be taken back, so that nothing can be half done.
//!
//! Without the kernel: `verify/tests/hvo_af.rs` checks the same file on the host.

use super::batch::{
    units_of,
    Outcome,
    Progress,
    Why, //
};
use core::ops::Range;

/// The access flag of an entry.
pub const YOUNG: u64 = 1 << 10;

/// Entries of live page tables, which nobody else changes but for their flags.
///
/// # Safety
///
/// [`Self::flush`] returns only when no TLB has a translation of an entry that [`Self::cleared`]
/// was told of, and whose flag is still clear.
pub unsafe trait Entries<R> {
    /// How many there are in a run.
    fn len(&self, run: &R) -> usize;
    /// What becomes of one.
    fn wanted(&self, run: &R, index: usize) -> u64;
    /// What it is now.
    fn read(&self, run: &R, index: usize) -> u64;
    /// Whether the entries of the run change only after those of all runs before.
    fn waits(&self, run: &R) -> bool;
    /// Whether an entry changes before those that follow it, up to the next such one.
    fn leads(&self, run: &R, index: usize) -> bool;
    /// Makes it `value`, without its flag.
    fn clear(&mut self, run: &R, index: usize, value: u64);
    /// So many entries of a run were cleared, all among these, and will be flushed.
    fn cleared(&mut self, run: &R, among: Range<usize>, nr: usize);
    /// Gives it its flag again.
    fn leave(&mut self, run: &R, index: usize, value: u64);
    /// See above.
    fn flush(&mut self);
    /// Copies the content of the old page, if the new one gets it.
    fn copy(&mut self, run: &R);
    /// Replaces `old`, if it still is that. What was copied is visible before.
    fn exchange(&mut self, run: &R, index: usize, old: u64, new: u64) -> bool;
    /// Calls `f` so that it is not interrupted.
    fn briefly<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T;
    /// Waits, for so many microseconds, until other CPUs use other entries.
    fn rest(&mut self, us: u64);
    /// A window is over: each of its units has ended, or is left to another way.
    fn end_window(&mut self) {}
}

/// How far that goes.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Entries that are invalidated together, if not a single unit has more.
    pub entries: usize,
    /// Each entry is invalidated by itself.
    pub each: bool,
    /// A unit that other CPUs use all the time is left as it is. Otherwise it is left to another
    /// way.
    pub optional: bool,
}

/// How often it is tried,
const TRIES: u32 = 16;
/// as long as a unit that is optional was not begun,
const OPTIONAL_TRIES: u32 = 8;
/// and from when on each unit by itself: it is exposed to other CPUs for a shorter time.
const ALONE: u32 = 4;
/// From when on other CPUs get time in between.
const RESTS: u32 = 2;
const FIRST_REST_US: u64 = 20;
const LONGEST_REST: u32 = 7;

/// How far the entries of a unit are.
struct Turn {
    /// How many have their new values,
    done: usize,
    /// and how many have not.
    left: usize,
    /// Whether what leads the next entry has.
    led: bool,
}

/// Whether an entry has its new value. Tables have no flag, or another meaning of it.
#[inline(always)]
fn is_done(value: u64, wanted: u64) -> bool {
    (value ^ wanted) & !YOUNG == 0
}

/// Whether all entries of a run have their new values.
pub fn is_complete<R>(entries: &impl Entries<R>, run: &R) -> bool {
    (0..entries.len(run)).all(|i| is_done(entries.read(run, i), entries.wanted(run, i)))
}

/// Changes as many units as it can, and leaves the others as they are. Those that it leaves to
/// another way have not ended.
pub fn change<R>(
    entries: &mut impl Entries<R>,
    bounds: Bounds,
    mut runs: &[R],
    mut last: &[bool],
    mut progress: &mut [Progress],
) {
    while !runs.is_empty() {
        let (nr_runs, nr_units) = next_window(entries, bounds, runs, last);
        let (units, others) = progress.split_at_mut(nr_units);

        window(entries, bounds, &runs[..nr_runs], &last[..nr_runs], units);
        entries.end_window();
        runs = &runs[nr_runs..];
        last = &last[nr_runs..];
        progress = others;
    }
}

/// How many runs and units are invalidated together.
fn next_window<R>(
    entries: &impl Entries<R>,
    bounds: Bounds,
    runs: &[R],
    last: &[bool],
) -> (usize, usize) {
    let (mut window, mut all) = ((0, 0), 0);

    for (nr, unit) in units_of(runs, last).enumerate() {
        all += unit.iter().map(|run| entries.len(run)).sum::<usize>();
        if nr > 0 && all > bounds.entries {
            break;
        }
        window = (window.0 + unit.len(), nr + 1);
    }
    window
}

fn window<R>(
    entries: &mut impl Entries<R>,
    bounds: Bounds,
    runs: &[R],
    last: &[bool],
    progress: &mut [Progress],
) {
    let is_left = |progress: &Progress| !matches!(progress, Progress::Ended(_));

    for round in 0..TRIES {
        if round >= RESTS {
            entries.rest(FIRST_REST_US << (round - RESTS).min(LONGEST_REST));
        }
        let alone = round >= ALONE;

        if !alone && !bounds.each {
            let units = units_of(runs, last).zip(&*progress);

            for (unit, _) in units.filter(|(_, progress)| is_left(progress)) {
                unit.iter().for_each(|run| clear(entries, run, round == 0));
            }
            entries.flush();
        }
        for (unit, progress) in units_of(runs, last).zip(&mut *progress) {
            if !is_left(progress) {
                continue;
            }
            let turn = swap(entries, unit, alone, bounds.each);

            if turn.left == 0 {
                *progress = Progress::Ended(Outcome::Changed);
            } else if turn.done > 0 {
                *progress = Progress::Begun;
            } else if bounds.optional && round + 1 >= OPTIONAL_TRIES {
                unit.iter().for_each(|run| leave(entries, run));
                *progress = Progress::Ended(Outcome::Untouched(Why::Young));
            }
        }
        if !progress.iter().any(is_left) {
            return;
        }
    }
    for (unit, progress) in units_of(runs, last).zip(&*progress) {
        if is_left(progress) {
            unit.iter().for_each(|run| leave(entries, run));
        }
    }
}

/// Clears the flags of the entries that do not have their new values yet. `all`: what is clear may
/// not have been invalidated, if a task died that has cleared it.
#[inline(always)]
fn clear<R>(entries: &mut impl Entries<R>, run: &R, all: bool) {
    let (mut first, mut end, mut nr) = (0, 0, 0);

    for i in 0..entries.len(run) {
        let value = entries.read(run, i);

        if (all || value & YOUNG != 0) && !is_done(value, entries.wanted(run, i)) {
            // rule: hvo/clear: a TLB may get the translation again without a trace
            entries.clear(run, i, value & !YOUNG);
            if nr == 0 {
                first = i;
            }
            end = i + 1;
            nr += 1;
        }
    }
    if nr > 0 {
        entries.cleared(run, first..end, nr);
    }
}

/// Exchanges those whose flags are still clear, in the order in which they may change. Before, each
/// run is cleared and invalidated by itself if `alone`, and each entry if `each`.
fn swap<R>(entries: &mut impl Entries<R>, unit: &[R], alone: bool, each: bool) -> Turn {
    let mut turn = Turn {
        done: 0,
        left: 0,
        led: true,
    };

    for run in unit {
        // rule: hvo/waves: a struct page would belong to a folio that is not there yet, or no more
        if entries.waits(run) && turn.left > 0 {
            turn.left += entries.len(run);
        } else if alone && !each {
            entries.briefly(|entries| {
                clear(entries, run, false);
                entries.flush();
                swap_run(entries, run, false, &mut turn);
            });
        } else {
            swap_run(entries, run, each, &mut turn);
        }
    }
    turn
}

fn swap_run<R>(entries: &mut impl Entries<R>, run: &R, each: bool, turn: &mut Turn) {
    for i in 0..entries.len(run) {
        let leads = entries.leads(run, i);
        let done = (leads || turn.led) && swap_one(entries, run, i, each);

        if leads {
            turn.led = done;
        }
        if done {
            turn.done += 1;
        } else {
            turn.left += 1;
        }
    }
}

#[inline(always)]
fn swap_one<R>(entries: &mut impl Entries<R>, run: &R, index: usize, each: bool) -> bool {
    let wanted = entries.wanted(run, index);
    let mut old = entries.read(run, index);

    if is_done(old, wanted) {
        return true;
    }
    if each {
        entries.clear(run, index, old & !YOUNG);
        entries.cleared(run, index..index + 1, 1);
        entries.flush();
        old = entries.read(run, index);
    }
    if old & YOUNG != 0 {
        return false;
    }
    // rule: hvo/copy: after the invalidation, or another CPU still writes to the old page
    entries.copy(run);
    entries.exchange(run, index, old, wanted)
}

/// Gives those their flags again that do not have their new values.
fn leave<R>(entries: &mut impl Entries<R>, run: &R) {
    for i in 0..entries.len(run) {
        let value = entries.read(run, i);

        if value & YOUNG == 0 && !is_done(value, entries.wanted(run, i)) {
            // rule: hvo/leave: each CPU that uses it later would have to do that
            entries.leave(run, i, value | YOUNG);
        }
    }
}
