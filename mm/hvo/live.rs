// SPDX-License-Identifier: GPL-2.0

//! The entries that [`af`](super::af) changes, and the TLBs of all CPUs.

use super::{
    af::{
        Entries,
        YOUNG, //
    },
    c::{
        self,
        Reason,
        Run,
        Stale, //
    }, //
};
use core::{
    mem::{
        replace,
        take, //
    },
    ops::Range, //
};
use kernel::{
    bindings,
    interrupt::local_interrupt_disable,
    page::PAGE_SIZE,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        barrier::{
            smp_mb,
            Write, //
        }, //
    },
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    }, //
};

/// What was done in a window.
#[derive(Default)]
struct Counts {
    /// When the first flags were cleared.
    begin: Option<Instant<Monotonic>>,
    /// How often something was invalidated,
    flushes: usize,
    /// how many flags were cleared,
    clears: usize,
    /// and how many entries got their new values.
    changed: usize,
}

/// All entries, and what was done to them.
pub(super) struct Live {
    /// What changes.
    reason: Reason,
    /// The addresses of what was cleared since the last invalidation.
    cleared: Stale,
    /// For tests that look at no flag: it seems to be clear from now on.
    ignores_flags: bool,
    /// In this window.
    counts: Counts,
    /// Exchanges, for tests that let some fail.
    exchanges: u32,
}

impl Live {
    /// # Safety
    ///
    /// All runs that it is used with must be as [`Open::change`](super::batch::Open::change) says,
    /// and each index less than the number of entries of its run.
    pub(super) unsafe fn new(reason: Reason) -> Self {
        Self {
            reason,
            cleared: Stale::NONE,
            ignores_flags: false,
            counts: Counts::default(),
            exchanges: 0,
        }
    }

    #[inline(always)]
    fn entry<'r>(&self, run: &'r Run, index: usize) -> &'r Atomic<u64> {
        // SAFETY: By the safety requirements of `new()`. Hardware and other CPUs read and write the
        // entry as a whole.
        unsafe { Atomic::from_ptr(run.entries.add(index)) }
    }

    #[inline(always)]
    fn address(run: &Run, index: usize) -> usize {
        run.addr + (index << run.shift)
    }

    fn copy_now(run: &Run) {
        if run.copy_to.is_null() {
            return;
        }
        // SAFETY: Both are pages of struct pages, by their linear addresses, and nothing leads to
        // the new one yet.
        unsafe { bindings::copy_page(run.copy_to, run.copy_from) };
        // Before the entry that leads there.
        smp_mb(Write);
    }
}

// SAFETY: `cleared` has all that `cleared()` was told of.
unsafe impl Entries<Run> for Live {
    fn len(&self, run: &Run) -> usize {
        run.nr as usize
    }

    #[inline(always)]
    fn wanted(&self, run: &Run, index: usize) -> u64 {
        if run.values.is_null() {
            return run.value;
        }
        // SAFETY: There is one for each entry.
        unsafe { *run.values.add(index) }
    }

    #[inline(always)]
    fn read(&self, run: &Run, index: usize) -> u64 {
        let value = self.entry(run, index).load(Relaxed);

        if self.ignores_flags {
            value & !YOUNG
        } else {
            value
        }
    }

    fn waits(&self, run: &Run) -> bool {
        run.waits && !c::skips(bindings::hvo_hook_HVO_HOOK_WAVES)
    }

    #[inline(always)]
    fn leads(&self, run: &Run, index: usize) -> bool {
        run.group == 0
            || (Self::address(run, index) / PAGE_SIZE) % run.group as usize == 0
            || c::skips(bindings::hvo_hook_HVO_HOOK_WAVES)
    }

    #[inline(always)]
    fn clear(&mut self, run: &Run, index: usize, value: u64) {
        if !c::skips(bindings::hvo_hook_HVO_HOOK_CLEAR) {
            self.entry(run, index).store(value, Relaxed);
        }
        if c::skips(bindings::hvo_hook_HVO_HOOK_COPY) {
            Self::copy_now(run);
        }
    }

    fn cleared(&mut self, run: &Run, among: Range<usize>, nr: usize) {
        self.cleared.add(
            Self::address(run, among.start),
            Self::address(run, among.end),
        );
        self.counts.begin.get_or_insert_with(Instant::now);
        self.counts.clears += nr;
    }

    fn leave(&mut self, run: &Run, index: usize, value: u64) {
        if !c::skips(bindings::hvo_hook_HVO_HOOK_LEAVE) {
            self.entry(run, index).store(value, Relaxed);
        }
    }

    fn flush(&mut self) {
        let cleared = replace(&mut self.cleared, Stale::NONE);

        if cleared.is_empty() {
            return;
        }
        self.counts.flushes += 1;
        c::count();
        // rule: hvo/tlbi: CPUs have the old pages in their TLBs
        if !c::skips(bindings::hvo_hook_HVO_HOOK_TLBI) {
            cleared.flush();
        }
        c::stall();
        self.ignores_flags = c::skips(bindings::hvo_hook_HVO_HOOK_CLEAR);
    }

    #[inline(always)]
    fn copy(&mut self, run: &Run) {
        if !c::skips(bindings::hvo_hook_HVO_HOOK_COPY) {
            Self::copy_now(run);
        }
    }

    #[inline(always)]
    fn exchange(&mut self, run: &Run, index: usize, old: u64, new: u64) -> bool {
        if c::fails(&mut self.exchanges) {
            return false;
        }
        let old = if self.ignores_flags { old | YOUNG } else { old };
        let done = self.entry(run, index).cmpxchg(old, new, Relaxed).is_ok();

        self.counts.changed += usize::from(done);
        done
    }

    fn briefly<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        let _guard = local_interrupt_disable();

        f(self)
    }

    fn rest(&mut self, us: u64) {
        c::look();
        fsleep(Delta::from_micros(us as i64));
    }

    fn end_window(&mut self) {
        let counts = take(&mut self.counts);
        let Some(begin) = counts.begin else {
            return;
        };

        c::account_flags(
            self.reason,
            counts.changed,
            counts.clears,
            counts.flushes,
            begin.elapsed().as_nanos() as u64,
        );
    }
}
