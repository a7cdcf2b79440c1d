// SPDX-License-Identifier: GPL-2.0

//! What C does for migrc, and the numbers that both have.

use crate::{
    eligibility::{
        AreaFacts,
        Deny,
        FileFacts,
        Geometry,
        NodeFacts,
        Protection, //
    },
    registered::{
        Drainer,
        RegisteredMm, //
    }, //
};
use kernel::{
    bindings,
    safe_c, //
};

/// Asserts that an enum of Rust has the numbers of one of C: each of them, and as many as C.
macro_rules! same_as_c {
    ($type:ident: $count:ident { $($name:ident = $c:ident),* $(,)? }) => {
        const _: () = {
            // One that is not listed is missing here.
            const fn listed(value: $type) -> $type {
                match value {
                    $($type::$name => value),*
                }
            }

            $(assert!(listed($type::$name) as u32 == bindings::$c);)*
            assert!([$($type::$name),*].len() == bindings::$count as usize);
        };
    };
}

same_as_c! {
    Deny: migrc_fact_NR_MIGRC_FACTS {
        Reason = migrc_fact_MIGRC_REASON,
        Memory = migrc_fact_MIGRC_MEMORY,
        Limit = migrc_fact_MIGRC_LIMIT,
        Mappings = migrc_fact_MIGRC_MAPPINGS,
        NotFrozen = migrc_fact_MIGRC_NOT_FROZEN,
        Kind = migrc_fact_MIGRC_KIND,
        Poisoned = migrc_fact_MIGRC_POISONED,
        Isolated = migrc_fact_MIGRC_ISOLATED,
        Writable = migrc_fact_MIGRC_WRITABLE,
        FlushPending = migrc_fact_MIGRC_FLUSH_PENDING,
        Shared = migrc_fact_MIGRC_SHARED,
        Notifier = migrc_fact_MIGRC_NOTIFIER,
        Block = migrc_fact_MIGRC_BLOCK,
        Merged = migrc_fact_MIGRC_MERGED,
        Local = migrc_fact_MIGRC_LOCAL,
        Mixed = migrc_fact_MIGRC_MIXED,
    }
}

same_as_c! {
    Geometry: migrc_geometry_NR_MIGRC_GEOMETRIES {
        Pages = migrc_geometry_MIGRC_PAGES,
        Blocks = migrc_geometry_MIGRC_BLOCKS,
        Odd = migrc_geometry_MIGRC_ODD,
    }
}

same_as_c! {
    Protection: migrc_protection_NR_MIGRC_PROTECTIONS {
        AsBefore = migrc_protection_MIGRC_AS_BEFORE,
        Clean = migrc_protection_MIGRC_CLEAN,
        ReadOnly = migrc_protection_MIGRC_READ_ONLY,
    }
}

impl From<&bindings::migrc_area_facts> for AreaFacts {
    #[inline]
    fn from(facts: &bindings::migrc_area_facts) -> Self {
        Self {
            anonymous: facts.anonymous,
            locked: facts.locked,
            shadow_stack: facts.shadow_stack,
            userfaultfd: facts.userfaultfd,
            soft_dirty: facts.soft_dirty,
            notifier: facts.notifier,
        }
    }
}

impl From<&bindings::migrc_node_facts> for NodeFacts {
    #[inline]
    fn from(facts: &bindings::migrc_node_facts) -> Self {
        Self {
            present: facts.present,
            asked: facts.asked,
            // They change one after the other, and are not read at once.
            step: facts.high.saturating_sub(facts.low),
        }
    }
}

impl From<&bindings::migrc_file_facts> for FileFacts {
    #[inline]
    fn from(facts: &bindings::migrc_file_facts) -> Self {
        Self {
            dirty: facts.dirty,
            writeback: facts.writeback,
            uptodate: facts.uptodate,
            regular: facts.regular,
            special: facts.special,
            supported: facts.supported,
        }
    }
}

/// Why a drain runs.
///
/// # Invariants
///
/// One of `enum migrc_drain_reason` of C.
#[derive(Clone, Copy)]
pub(crate) struct DrainReason(bindings::migrc_drain_reason);

impl DrainReason {
    /// A node has as many pages as it may have.
    pub(crate) const LIMIT: Self = Self(bindings::migrc_drain_reason_MIGRC_DRAIN_LIMIT);
    /// Of a folio not all could be deferred.
    pub(crate) const MIXED: Self = Self(bindings::migrc_drain_reason_MIGRC_DRAIN_MIXED);
    /// A file changes.
    pub(crate) const WRITE: Self = Self(bindings::migrc_drain_reason_MIGRC_DRAIN_WRITE);
    /// Nothing is deferred any more.
    pub(crate) const OFF: Self = Self(bindings::migrc_drain_reason_MIGRC_DRAIN_OFF);

    /// Of several, a bit each, the last in the list of C.
    pub(crate) fn last_of(reasons: u32) -> Self {
        // INVARIANT: `OFF` is the last of them.
        Self(
            reasons
                .checked_ilog2()
                .map_or(Self::OFF.0, |last| last.min(Self::OFF.0)),
        )
    }

    /// Its bit.
    pub(crate) const fn bit(self) -> u32 {
        1 << self.0
    }
}

const _: () =
    assert!(DrainReason::OFF.0 + 1 == bindings::migrc_drain_reason_NR_MIGRC_DRAIN_REASONS);

safe_c! {
    // SAFETY: They have numbers only. Reasons are those that C has.
    unsafe extern "C" {
        /// A clock for ages.
        pub(crate) fn now() -> u64 = migrc_now();
        /// Starts the timer of the first source in a ledger.
        pub(crate) fn arm() = migrc_arm();
        /// Stops it.
        pub(crate) fn disarm() = migrc_disarm();
        /// Flushes what was deferred and releases all sources. May sleep.
        pub(crate) fn drain(reason: DrainReason) = migrc_drain(reason.0);
        /// Waits for a drain that is running. May sleep.
        pub(crate) fn wait_for_drain() = migrc_wait_for_drain();
        /// Lets other tasks run. May sleep.
        pub(crate) fn relax() = migrc_relax();
        /// Counts pages that had to be flushed.
        pub(crate) fn account_denied(deny: Deny, pages: usize)
            = migrc_account_denied(deny as u32, pages);
        /// Counts a drain that took `ns`, the oldest source of which came at `since`.
        pub(crate) fn account_drain(
            reason: DrainReason, pages: usize, mms: usize, since: u64, ns: u64,
        ) = migrc_account_drain(reason.0, pages, mms, since, ns);
    }
}

/// Begins to flush. Returns of how many address spaces at most each is to be issued. May sleep.
pub(crate) fn arch_begin(_drainer: &Drainer) -> usize {
    // SAFETY: Only the drain uses what C keeps for this.
    unsafe { bindings::migrc_arch_begin() }
}

/// Issues an address space.
pub(crate) fn arch_issue(_drainer: &Drainer, mm: RegisteredMm<'_>) {
    // SAFETY: As above, and `mm` is valid.
    unsafe { bindings::migrc_arch_issue(mm.as_raw()) };
}

/// Issues all address spaces.
pub(crate) fn arch_issue_all(_drainer: &Drainer) {
    // SAFETY: As above.
    unsafe { bindings::migrc_arch_issue_all() };
}

/// Waits for what was issued, for `mms` address spaces. In process context, with interrupts on.
pub(crate) fn arch_sync(_drainer: &Drainer, mms: usize) {
    // SAFETY: As above.
    unsafe { bindings::migrc_arch_sync(mms) };
}

/// A drain begins. For checks.
///
/// # Safety
///
/// No other one may be running.
pub(crate) unsafe fn debug_drain(_reason: DrainReason) {
    #[cfg(CONFIG_MIGRC_DEBUG)]
    // SAFETY: By this function's safety requirements.
    unsafe {
        bindings::migrc_debug_drain(_reason.0)
    };
}

/// Whether nobody has write access to the file of `src`. A task that gets it from now on drains.
///
/// # Safety
///
/// `src` must be locked.
pub(crate) unsafe fn freeze(_src: *mut bindings::folio) -> bool {
    #[cfg(CONFIG_MIGRC_FILE)]
    // SAFETY: By this function's safety requirements.
    unsafe {
        bindings::migrc_freeze(_src)
    }
    #[cfg(not(CONFIG_MIGRC_FILE))]
    false
}

/// Whether that is still true; it is of a folio that is not of a file.
///
/// # Safety
///
/// `src` must be locked, and not mapped any more.
pub(crate) unsafe fn still_frozen(_src: *mut bindings::folio) -> bool {
    #[cfg(CONFIG_MIGRC_FILE)]
    // SAFETY: By this function's safety requirements.
    unsafe {
        bindings::migrc_still_frozen(_src)
    }
    #[cfg(not(CONFIG_MIGRC_FILE))]
    true
}
