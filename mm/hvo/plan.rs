// SPDX-License-Identifier: GPL-2.0

//! How many changes one pause makes, and what happens when a pause does not come about.
//!
//! Plain numbers: the same file is compiled on the host, where `verify/tests/hvo_plan.rs` checks
//! it.

/// What is changed together: the vmemmap of one folio, or a block that is split.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Work {
    /// Entries of page tables.
    pub entries: u32,
    /// What is copied while nobody can write to it, in units of 4 KiB.
    pub copies: u32,
}

impl Work {
    /// Both.
    #[inline]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            entries: self.entries.saturating_add(other.entries),
            copies: self.copies.saturating_add(other.copies),
        }
    }
}

/// What a pause takes, in nanoseconds, as far as known from those that were.
///
/// The proportions are fixed, only their scale is learned: a machine of twice the speed is faster
/// in all of them, and one number cannot be misled by the one kind of work that was seen.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Cost {
    /// In 1/256.
    scale: u64,
}

impl Cost {
    /// Ordering, invalidation and waiting.
    const FIXED_NS: u64 = 2_000;
    /// To break and make one entry.
    const ENTRY_NS: u64 = 3;
    /// To copy 4 KiB.
    const COPY_NS: u64 = 250;
    const ONE: u64 = 256;
    /// Far enough for an emulator.
    const MAX: u64 = Self::ONE * 1024;

    /// What is expected before the first pause.
    pub const INITIAL: Self = Self { scale: Self::ONE };

    /// As a number, to be stored.
    #[inline]
    pub const fn into_raw(self) -> u64 {
        self.scale
    }

    /// What [`Self::into_raw`] gave.
    #[inline]
    pub const fn from_raw(scale: u64) -> Self {
        Self { scale }
    }

    const fn unscaled(work: Work) -> u64 {
        Self::FIXED_NS + Self::ENTRY_NS * work.entries as u64 + Self::COPY_NS * work.copies as u64
    }

    /// The time for which `work` is expected to keep the other CPUs waiting.
    #[inline]
    pub const fn of(self, work: Work) -> u64 {
        Self::unscaled(work) * self.scale / Self::ONE
    }

    /// Learns from a pause that took `ns` for `work`.
    #[must_use]
    pub const fn learn(self, work: Work, ns: u64) -> Self {
        let ns = if ns > 1_000_000_000 {
            1_000_000_000
        } else {
            ns
        };
        let seen = ns * Self::ONE / Self::unscaled(work);
        let scale = (self.scale * 7 + seen) / 8;

        Self {
            scale: if scale < 1 {
                1
            } else if scale > Self::MAX {
                Self::MAX
            } else {
                scale
            },
        }
    }
}

/// What one pause may take.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Budget {
    /// Entries, whatever they are expected to take.
    pub entries: u32,
    /// Nanoseconds.
    pub ns: u64,
}

impl Budget {
    #[inline]
    const fn allows(self, cost: Cost, work: Work) -> bool {
        work.entries <= self.entries && cost.of(work) <= self.ns
    }
}

/// The part of a plan that is for one pause.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Window {
    /// How many runs of entries, from where the last window ended.
    pub runs: usize,
    /// Whether they end with the end of a unit.
    pub whole: bool,
    /// What that is.
    pub work: Work,
}

/// Cuts the next window off `runs`, each with whether it is the last one of its unit.
///
/// As many units as the budget has room for. A unit is cut only if it is too large by itself, and
/// a run never: however small the budget is, there is progress.
pub fn next_window(runs: impl Iterator<Item = (Work, bool)>, cost: Cost, budget: Budget) -> Window {
    let mut window = Window::default();
    let mut whole = Window::default();

    for (work, last) in runs {
        let more = window.work.plus(work);

        if window.runs > 0 && !budget.allows(cost, more) {
            break;
        }
        window = Window {
            runs: window.runs + 1,
            whole: last,
            work: more,
        };
        if last {
            whole = window;
        }
    }
    if whole.runs > 0 {
        whole
    } else {
        window
    }
}

/// How an attempt to pause ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Miss {
    /// Some CPU did not stop in time.
    Cancelled,
    /// A CPU is coming up or going down.
    Hotplug,
    /// Stopping in threads was not possible either.
    Locked,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Step {
    /// Pause, after so many microseconds.
    Again(u64),
    /// Stop the other CPUs in threads.
    StopMachine,
    /// Leave everything as it is.
    GiveUp,
}

/// The attempts to stop the other CPUs, of all windows of one operation together.
///
/// A CPU that was late for some windows is late for others. If each window had its attempts, the
/// CPUs would be frozen for all of these in vain, and an operation has hundreds of windows.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Attempts {
    cancelled: u32,
    /// Of this window.
    other: u32,
    /// The next attempt is to stop threads,
    stops: bool,
    /// and the first one for each window that follows.
    used_up: bool,
}

impl Attempts {
    /// CPU hotplug takes milliseconds, and may go on and on.
    const OTHER_US: u64 = 1_000;
    const OTHER_MAX: u32 = 1_000;
    const BACKOFF_US: u64 = 100;

    /// Whether the next attempt is to stop threads.
    #[inline]
    pub const fn stops(&self) -> bool {
        self.stops
    }

    /// Whether no pause is the first attempt for a window any more.
    #[inline]
    pub const fn are_used_up(&self) -> bool {
        self.used_up
    }

    /// It is: a user has asked for that.
    pub fn prefer_threads(&mut self) {
        self.stops = true;
    }

    /// A window has been open, or was given up. What CPU hotplug did to it says nothing about the
    /// next one.
    pub fn end_window(&mut self) {
        self.other = 0;
        self.stops |= self.used_up;
    }

    /// What follows on `miss`.
    ///
    /// After `retries` misses threads are stopped, and for the windows that follow, too. Only CPU
    /// hotplug can prevent that: what is optional is given up then, and what is `mandatory` after
    /// [`Self::OTHER_MAX`] misses.
    pub fn after(&mut self, miss: Miss, retries: u32, mandatory: bool) -> Step {
        let step = self.step(miss, retries, mandatory);

        match step {
            // Not with threads a second time: the owner of the lock may wait for this.
            Step::Again(_) => self.stops = false,
            Step::StopMachine => self.stops = true,
            Step::GiveUp => {}
        }
        step
    }

    fn step(&mut self, miss: Miss, retries: u32, mandatory: bool) -> Step {
        match miss {
            Miss::Cancelled => {
                // rule: hvo/final: a CPU may be late each time, and the pool would save nothing
                self.cancelled = self.cancelled.saturating_add(1);
                self.used_up |= self.cancelled > retries;
                if self.used_up {
                    Step::StopMachine
                } else {
                    Step::Again(Self::BACKOFF_US << (self.cancelled - 1).min(6))
                }
            }
            Miss::Hotplug | Miss::Locked => {
                // Threads are stopped before that is given up, too.
                let retries = retries.min(Self::OTHER_MAX / 2);

                self.other += 1;
                if self.other >= Self::OTHER_MAX
                    || (miss == Miss::Locked && !mandatory && self.other > retries)
                {
                    Step::GiveUp
                } else if miss == Miss::Hotplug && self.other > retries {
                    // A CPU that stays half-way prevents pauses for good, but not this.
                    Step::StopMachine
                } else {
                    Step::Again(Self::OTHER_US)
                }
            }
        }
    }
}

/// How many operations in a row ended in threads, because their pauses were missed.
///
/// A CPU that was late for all of them is probably late again: each such operation halves the
/// retries of the next one, and a pause that comes about gives them all back. So a machine on which
/// pauses do not work spends one timeout on each operation, and not all of them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Streak(u32);

impl Streak {
    /// As a number, to be stored.
    #[inline]
    pub const fn into_raw(self) -> u32 {
        self.0
    }

    /// What [`Self::into_raw`] gave.
    #[inline]
    pub const fn from_raw(operations: u32) -> Self {
        Self(operations)
    }

    /// The retries after `miss`, of those that a user has asked for.
    ///
    /// CPU hotplug is over at some time, whatever was missed before: it gets all of them.
    pub fn retries(self, miss: Miss, asked: u32) -> u32 {
        match miss {
            // rule: hvo/final: a CPU that was late for all pauses is probably late again
            Miss::Cancelled => asked.checked_shr(self.0).unwrap_or(0),
            Miss::Hotplug | Miss::Locked => asked,
        }
    }

    /// After an operation that ended in threads.
    pub const fn missed(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// How many microseconds the other CPUs get to stop: what a user has asked for, or, for 0, what the
/// machine needs.
///
/// With pseudo-NMIs only another pseudo-NMI, firmware and hypervisors make a CPU late. Without them
/// code that has interrupts masked does, and it may wait for a lock of a CPU that has stopped. The
/// hypervisor of a `guest` may not run the CPU at the moment.
pub const fn timeout_us(asked: u32, pseudo_nmi: bool, guest: bool) -> u32 {
    match (asked, pseudo_nmi, guest) {
        (0, false, false) => 200,
        (0, false, true) => 2_000,
        (0, true, false) => 1_000,
        (0, true, true) => 10_000,
        (asked, ..) => asked,
    }
}

/// For how many microseconds to let the other CPUs run before the next pause. They may be stopped
/// for `percent` of the time, were stopped for `paused_ns`, and have run for `since_ns` since.
pub const fn rest_us(paused_ns: u64, since_ns: u64, percent: u32) -> u64 {
    let percent = if percent == 0 { 1 } else { percent as u64 };

    if percent >= 100 {
        return 0;
    }
    (paused_ns.saturating_mul(100 - percent) / percent).saturating_sub(since_ns) / 1_000
}

/// What the worker leaves behind that tries again later.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Found {
    /// No free folio that could still be optimised.
    Nothing,
    /// Some, for the next time.
    Later,
}

impl Found {
    /// In both of two pools.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        match self {
            Self::Nothing => other,
            Self::Later => self,
        }
    }
}

/// How often in a row the worker has left something behind.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Backoff(u32);

impl Backoff {
    /// Several tries fit into a minute.
    const LONGEST_S: u32 = 15;
    /// That many were not enough: other CPUs use something all the time.
    const PATIENT: u32 = 3;

    /// As a number, to be stored.
    #[inline]
    pub const fn into_raw(self) -> u32 {
        self.0
    }

    /// What [`Self::into_raw`] gave.
    #[inline]
    pub const fn from_raw(tries: u32) -> Self {
        Self(tries)
    }

    /// Whether the next time is one at which the other CPUs are stopped if that helps.
    pub const fn insists(self) -> bool {
        self.0 >= Self::PATIENT
    }

    /// After how many seconds the worker tries again, or 0 if it does not. The first time that is
    /// `first_s`, and then twice as long each time, up to [`Self::LONGEST_S`].
    pub fn after(self, found: Found, first_s: u32) -> (Self, u32) {
        if found == Found::Nothing || first_s == 0 {
            return (Self(0), 0);
        }
        let longest_s = Self::LONGEST_S.max(first_s);
        let seconds = first_s.saturating_mul(1 << self.0.min(16)).min(longest_s);

        (Self(self.0.saturating_add(1)), seconds)
    }
}
