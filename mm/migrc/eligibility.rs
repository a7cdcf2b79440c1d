// SPDX-License-Identifier: GPL-2.0

//! What may be deferred.
//!
//! C collects facts as bits, and defers what has none; this gives the reason that is counted. The
//! same file is compiled on the host (`verify/` of tlb-rs).

/// Declares the reasons to deny a deferral, each by the fact that is one.
macro_rules! facts {
    ($($(#[$doc:meta])* $name:ident = $bit:literal),* $(,)?) => {
        /// Why a flush is not deferred, the first that applies. The values are the numbers of the
        /// bits in C's `enum migrc_fact`.
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        #[repr(u32)]
        pub enum Deny { $($(#[$doc])* $name = $bit),* }

        impl Deny {
            /// All of them: of several the first is counted.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];
        }
    };
}

facts! {
    /// Migrated for a reason that needs the source at once.
    Reason = 0,
    /// The task is reclaiming, or the source's zone is short of memory.
    Memory = 1,
    /// Larger than all that may be deferred.
    Limit = 2,
    /// Mapped by more page tables than a drain should have to flush.
    Mappings = 3,
    /// A file's that somebody can write to: its content may change without a page table entry.
    NotFrozen = 4,
    /// Hugetlb, device memory, or mapped by a PMD.
    Kind = 5,
    /// A page of it is poisoned.
    Poisoned = 6,
    /// Page blocks of its zone are being emptied.
    Isolated = 7,
    /// A TLB may hold a writable translation, or may come to.
    Writable = 8,
    /// Permissions are being taken away in this address space: TLBs may still have them.
    FlushPending = 9,
    /// A shared mapping: it becomes writable again without a fault.
    Shared = 10,
    /// A device or a guest walks the same page table.
    Notifier = 11,
    /// A TLB may hold the page as a part of a larger block.
    Block = 12,
    /// Only this CPU had to be flushed: there was nothing to save.
    Local = 13,
    /// Some mappings of the folio could be deferred, others made a drain necessary.
    Mixed = 14,
}

/// Whether a flush may be deferred of which these bits are true.
#[inline]
pub fn check(facts: u32) -> Result<(), Deny> {
    if facts == 0 {
        return Ok(());
    }
    let first = Deny::ALL.get(facts.trailing_zeros() as usize);

    // A bit without a name is a reason, too.
    Err(first.copied().unwrap_or(Deny::Reason))
}
