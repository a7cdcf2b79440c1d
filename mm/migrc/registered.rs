// SPDX-License-Identifier: GPL-2.0

//! The address spaces that a drain flushes.

use crate::{
    c,
    generation::Generation,
    readmostly::Credit,
    removed_dropped, //
};
use core::{
    marker::PhantomData,
    mem::forget, //
};
use kernel::{
    bindings::migrc_mm,
    sync::atomic::{
        ordering::{
            Acquire,
            Full,
            Relaxed, //
        },
        Atomic, //
    },
    types::NotThreadSafe, //
};

/// The first of a list of address spaces.
///
/// An address space is in it from its first deferral to its exit, so that nothing has to be decided
/// when it is drained, and a deferral costs no lock but the first time.
///
/// # Invariants
///
/// All in the list are alive. What they lead to (`next`) changes only when the next one is removed,
/// and what was removed leads to where it led before: a drain that is there finds the way back.
pub(crate) struct Registered {
    first: *mut migrc_mm,
}

// SAFETY: Nothing in it belongs to one CPU.
unsafe impl Send for Registered {}

impl Registered {
    pub(crate) const fn new() -> Self {
        // INVARIANT: Empty.
        Self {
            first: core::ptr::null_mut(),
        }
    }

    /// Adds `mm` in front, if it is not there.
    ///
    /// # Safety
    ///
    /// `mm` must be valid, and stay so until it is removed.
    pub(crate) unsafe fn add(&mut self, mm: *mut migrc_mm) {
        // SAFETY: `mm` is valid by the safety requirements, the first one by the type invariants.
        // Only changed by this function and by `remove()`, under the lock that protects `self`;
        // read without it by C, which comes here then.
        unsafe {
            if (*mm).registered {
                return;
            }
            (*mm).next = self.first;
            (*mm).prev = core::ptr::null_mut();
            if !self.first.is_null() {
                (*self.first).prev = mm;
            }
            (&raw mut (*mm).registered).write_volatile(true);
        }
        // INVARIANT: Alive by the safety requirements.
        self.first = mm;
    }

    /// Removes `mm`.
    ///
    /// # Safety
    ///
    /// `mm` must be in the list, and nothing be deferred in it any more. A drain that is running
    /// may come to `mm`: until [`Removed::wait`] has returned, `mm` must stay as it is.
    #[inline(always)]
    pub(crate) unsafe fn remove(&mut self, mm: *mut migrc_mm) -> Removed {
        // SAFETY: By the type invariants, and as in `add()`. A drain reads `next` without the lock,
        // and comes to what was there before or is there now.
        unsafe {
            let (next, prev) = ((*mm).next, (*mm).prev);

            if !next.is_null() {
                (*next).prev = prev;
            }
            if prev.is_null() {
                self.first = next;
            } else {
                (&raw mut (*prev).next).write_volatile(next);
            }
            (*mm).registered = false;
        }
        Removed(())
    }

    /// All that are in the list now. More may be added meanwhile.
    pub(crate) fn iter<'d>(&self, drainer: &'d Drainer) -> Iter<'d> {
        // INVARIANT: The first, by the type invariants of `Registered` and of `Drainer`.
        Iter {
            mm: self.first,
            drainer,
        }
    }
}

/// The right to drain, which one task has at a time.
///
/// # Invariants
///
/// No other drain runs. An address space that is removed from the list stays as it is for as long
/// as this exists.
pub(crate) struct Drainer(NotThreadSafe);

impl Drainer {
    /// # Safety
    ///
    /// As the invariants say.
    pub(crate) unsafe fn new() -> Self {
        // INVARIANT: By the safety requirements.
        Self(NotThreadSafe)
    }
}

/// An address space has left the list, but a drain that is running may still meet it.
#[must_use = "a drain may use it"]
pub(crate) struct Removed(());

impl Removed {
    /// The address space is only its owner's after this.
    ///
    /// # Safety
    ///
    /// `wait` must return only when no drain runs that was running when it was called.
    #[inline(always)]
    pub(crate) unsafe fn wait(self, wait: impl FnOnce()) {
        wait();
        forget(self);
    }
}

impl Drop for Removed {
    #[inline(always)]
    fn drop(&mut self) {
        removed_dropped();
    }
}

/// # Invariants
///
/// Valid, and what it leads to is, too; or null.
#[derive(Clone, Copy)]
pub(crate) struct Iter<'d> {
    mm: *mut migrc_mm,
    drainer: &'d Drainer,
}

impl<'d> Iterator for Iter<'d> {
    type Item = RegisteredMm<'d>;

    fn next(&mut self) -> Option<RegisteredMm<'d>> {
        let mm = self.mm;

        if mm.is_null() {
            return None;
        }
        // INVARIANT: By the type invariants `mm` is valid, and what it leads to is, too: it was in
        // the list when `mm` was, and if it was removed, it stays valid as long as `self` is used.
        // SAFETY: As above. Removals write to it meanwhile.
        self.mm = unsafe { (&raw const (*mm).next).read_volatile() };
        Some(RegisteredMm(mm, PhantomData))
    }
}

/// An address space that is not freed for as long as `'d`, and may be in the list.
///
/// # Invariants
///
/// Valid for `'d`.
#[derive(Clone, Copy)]
pub(crate) struct RegisteredMm<'d>(*mut migrc_mm, PhantomData<&'d ()>);

impl RegisteredMm<'_> {
    /// # Safety
    ///
    /// `mm` must be valid as long as this is used.
    pub(crate) unsafe fn from_raw(mm: *mut migrc_mm) -> Self {
        // INVARIANT: By the safety requirements.
        Self(mm, PhantomData)
    }

    pub(crate) fn as_raw(self) -> *mut migrc_mm {
        self.0
    }

    /// Deferrals; `Self::flushed` says how many of them are covered.
    fn deferred(&self) -> &Atomic<i64> {
        // SAFETY: Valid by the type invariants; C's `atomic64_t` is what `Atomic` is made for.
        unsafe { Atomic::from_ptr((&raw mut (*self.0).deferred).cast::<i64>()) }
    }

    fn flushed(&self) -> &Atomic<i64> {
        // SAFETY: As above.
        unsafe { Atomic::from_ptr((&raw mut (*self.0).flushed).cast::<i64>()) }
    }

    /// Replaces the credit by what `f` makes of it, and returns what `f` does.
    ///
    /// Other CPUs only count in it: there is no order to keep.
    pub(crate) fn update_credit<T>(self, f: impl Fn(Credit) -> (T, Credit)) -> T {
        // SAFETY: Valid by the type invariants; C's `atomic64_t` is what `Atomic` is made for.
        let word = unsafe { Atomic::from_ptr((&raw mut (*self.0).readmostly).cast::<i64>()) };
        let mut now = word.load(Relaxed);

        loop {
            let (result, new) = f(Credit::from_raw(now));

            if new.into_raw() == now {
                return result;
            }
            match word.cmpxchg(now, new.into_raw(), Relaxed) {
                Ok(_) => return result,
                Err(changed) => now = changed,
            }
        }
    }

    /// Whether something is pending. If so it is remembered for [`Self::seen`]. Of the drain: two
    /// of them at once would declare as covered what the other has seen.
    pub(crate) fn see(self, _drainer: &Drainer) -> bool {
        // rule: migrc/order: what was deferred has been cleared before; the invalidation comes
        // after this
        let deferred = Generation::from_raw(self.deferred().load(Acquire) as u64);
        // A drain that finds all of it covered releases it: the flush was over before.
        let pending = deferred.is_pending(self.flushed().load(Acquire) as u64);
        let seen = if pending {
            deferred
        } else {
            Generation::default()
        };

        // Of most it is what it was: their cache lines, which readers share, are left alone.
        // SAFETY: Valid, and only the drainer uses this field.
        unsafe {
            if (*self.0).seen != seen.into_raw() {
                (*self.0).seen = seen.into_raw();
            }
        }
        pending
    }

    /// What [`Self::see`] has seen, if something was pending.
    pub(crate) fn seen(self, _drainer: &Drainer) -> Option<Generation> {
        // SAFETY: As in `see()`.
        let seen = unsafe { (*self.0).seen };

        (seen != 0).then_some(Generation::from_raw(seen))
    }

    /// All has been flushed that was deferred when there were `seen` deferrals.
    pub(crate) fn cover(self, seen: Generation) {
        let flushed = self.flushed();
        let mut now = flushed.load(Relaxed);

        while let Some(covered) = seen.cover(now as u64) {
            // A CPU that finds it covered may rely on the flush before this, hence `Full`.
            match flushed.cmpxchg(now, covered as i64, Full) {
                Ok(_) => break,
                // Another CPU has flushed.
                Err(changed) => now = changed,
            }
        }
    }
}

/// There may be thousands of them: other tasks may run after each.
fn patiently(mms: Iter<'_>) -> impl Iterator<Item = RegisteredMm<'_>> {
    // Called by drains only, in process context, without a spinlock.
    mms.inspect(|_| c::relax())
}

/// How a drain flushes: all at once, and waits for all of them.
///
/// A process that exits meanwhile is met or not: nobody uses its translations.
pub(crate) fn flush_all(mms: Iter<'_>) -> usize {
    let drainer = mms.drainer;
    let pending = patiently(mms).filter(|mm| mm.see(drainer)).count();

    if pending == 0 {
        return 0;
    }
    if pending <= c::arch_begin(drainer) {
        for mm in patiently(mms).filter(|mm| mm.seen(drainer).is_some()) {
            c::arch_issue(drainer, mm);
        }
    } else {
        // One flush of everything is cheaper.
        c::arch_issue_all(drainer);
    }
    c::arch_sync(drainer, pending);

    for mm in patiently(mms) {
        if let Some(seen) = mm.seen(drainer) {
            mm.cover(seen);
        }
    }
    pending
}
