// SPDX-License-Identifier: GPL-2.0

//! What may be deferred: facts about a folio or a mapping go in, a [`Verdict`] comes out. And which
//! page loses write permission, so that its next migration may be deferred: a [`Protection`].
//!
//! C looks, and does as it is told. Nothing here has an effect, and nothing is known of the kernel,
//! so that the same file is compiled on the host: `verify/tests/migrc_eligibility.rs` compares it
//! with another form of the rule, for all facts.

/// Declares the reasons to deny a deferral, each by its number.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $bit:literal),* $(,)?) => {
        /// Why a flush is not deferred. The values are those of C's `enum migrc_fact`.
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        #[repr(u32)]
        pub enum Deny { $($(#[$doc])* $name = $bit),* }

        impl Deny {
            /// All of them: of several the first is counted.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];
        }
    };
}

reasons! {
    /// Migrated for a reason that needs the source at once.
    Reason = 0,
    /// The task is reclaiming, or the source's zone is short of memory.
    Memory = 1,
    /// Larger than all that may be deferred.
    Limit = 2,
    /// Mapped by more page tables than a drain should have to flush.
    Mappings = 3,
    /// A file's that a task can write to: its content may change without a page table entry.
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
    /// A TLB may hold the entries as blocks, and what replaces them may be of another size.
    Block = 12,
    /// The entries join a range that is flushed now in any case: there is nothing to save.
    Merged = 13,
    /// Only this CPU had to be flushed: there was nothing to save.
    Local = 14,
    /// Some mappings of the folio could be deferred, other mappings made a drain necessary.
    Mixed = 15,
}

/// A set of reasons.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(transparent)]
pub struct Reasons(u32);

impl Reasons {
    /// None.
    pub const NONE: Self = Self(0);

    /// With one more.
    #[inline]
    pub const fn with(self, deny: Deny) -> Self {
        Self(self.0 | 1 << deny as u32)
    }

    /// All that are in one of them.
    #[inline]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether there is none.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether it is one of them.
    #[inline]
    pub const fn has(self, deny: Deny) -> bool {
        self.0 & 1 << deny as u32 != 0
    }

    /// The one that is counted.
    #[inline]
    pub fn first(self) -> Option<Deny> {
        Deny::ALL.get(self.0.trailing_zeros() as usize).copied()
    }
}

/// What becomes of a flush.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum Verdict {
    /// It may be deferred.
    Defer,
    /// This one comes before the copy. It says nothing of the other mappings of the folio.
    Flush(Deny),
    /// It comes before the copy, and so do those of all other mappings.
    Forbid(Deny),
}

/// The kind of migration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Caller {
    /// `move_pages()`, `migrate_pages()`, or a cpuset.
    Syscall,
    /// `mbind()`.
    Mbind,
    /// NUMA balancing.
    NumaHint,
    /// DAMON.
    Damon,
    /// kswapd demotes single pages.
    Kswapd,
    /// Somebody has asked for reclaim, which demotes.
    Proactive,
    /// Compaction, offlining, other demotion and the like: they want the source, or lack memory.
    Other,
}

impl Caller {
    /// Whether it can do without the source for a while.
    pub const fn may_defer(self) -> bool {
        !matches!(self, Self::Other)
    }

    /// Whether it demotes, and drains before it relies on what that gives back.
    pub const fn demotes(self) -> bool {
        matches!(self, Self::Kswapd | Self::Proactive)
    }
}

/// What C sees of the node of a source. All are pages.
#[derive(Clone, Copy, Debug)]
pub struct NodeFacts {
    /// Pages that it has.
    pub present: usize,
    /// How many the administrator wants to be held at most; 0: the default.
    pub asked: usize,
    /// From the low watermark to the high one.
    pub step: usize,
}

impl NodeFacts {
    /// How many pages of the node may be held: what the administrator asks for, or of all
    /// present ones a hundredth, and 64 MiB at most.
    ///
    /// rule: migrc/step: of what is demoted, not more than one step of the watermarks. That is what
    /// kswapd is there to keep free.
    pub fn limit(&self, caller: Caller, page_size: usize) -> usize {
        let most = match self.asked {
            0 => (self.present / 100).min((64 << 20) / page_size),
            asked => asked,
        };

        if caller.demotes() {
            most.min(self.step)
        } else {
            most
        }
    }
}

/// What C sees of a folio that is to be migrated.
#[derive(Clone, Copy, Debug)]
pub struct FolioFacts {
    /// Why it is migrated.
    pub caller: Caller,
    /// The task is reclaiming. DAMON says so, too, but only to keep allocations from doing it.
    pub reclaims: bool,
    /// Free pages of the zone. A rough number is enough: an allocation that finds less drains.
    pub free: usize,
    /// The min watermark of the zone.
    pub min: usize,
    /// The low watermark of the zone.
    pub low: usize,
    /// Pages of the folio.
    pub pages: usize,
    /// What [`NodeFacts::limit`] says.
    pub limit: usize,
    /// Page table entries that map the folio.
    pub mappings: usize,
    /// Hugetlb, device memory, or mapped by a PMD.
    pub unusual: bool,
    /// A page of it is poisoned.
    pub poisoned: bool,
    /// Page blocks of its zone are being emptied.
    pub isolates: bool,
    /// Its content is a file's.
    pub file: Option<FileFacts>,
}

/// What C sees of a file, and of a folio of it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct FileFacts {
    /// The folio was written to.
    pub dirty: bool,
    /// The folio is being written to the disk.
    pub writeback: bool,
    /// The folio has what the disk has.
    pub uptodate: bool,
    /// It is a regular file.
    pub regular: bool,
    /// It is for swap, its memory is the disk, or it is the filesystem's own.
    pub special: bool,
    /// The filesystem reports all that changes a file without write access.
    pub supported: bool,
}

impl FileFacts {
    /// Whether the content stays what it is as long as nobody has write access to the file.
    pub const fn may_freeze(&self) -> bool {
        !self.dirty
            && !self.writeback
            && self.uptodate
            && self.regular
            && !self.special
            && self.supported
    }
}

impl FolioFacts {
    /// Of a page. This bounds what a drain has to look at. The number of processes that map a
    /// library does not.
    const MAX_MAPPINGS: usize = 1024;

    /// With so many free pages or fewer, the zone is short of memory. kswapd runs because there are
    /// fewer than the low watermark.
    fn short(&self) -> usize {
        match self.caller {
            // rule: migrc/gate: an allocation that may not drain can use the rest
            Caller::Kswapd => self.min + self.low.saturating_sub(self.min) / 2,
            _ => self.low,
        }
    }

    /// Whether its flushes may be deferred, as far as its mappings allow it.
    ///
    /// `freeze` is asked if nothing else denies, and only of a file: whether nobody has write
    /// access to it. It comes last, so that a task seldom gets access before the end of the walk,
    /// where it is asked again.
    pub fn verdict(&self, freeze: impl FnOnce() -> bool) -> Verdict {
        let reclaims = self.reclaims && self.caller != Caller::Damon && !self.caller.demotes();
        // rule: migrc/mappings: a drain looks at each address space that maps the folio
        let most_mappings = Self::MAX_MAPPINGS.saturating_mul(self.pages);

        if !self.caller.may_defer() {
            return Verdict::Forbid(Deny::Reason);
        }
        if reclaims || self.free <= self.short() {
            return Verdict::Forbid(Deny::Memory);
        }
        if self.pages > 1 && self.pages > self.limit {
            return Verdict::Forbid(Deny::Limit);
        }
        if self.mappings > most_mappings {
            return Verdict::Forbid(Deny::Mappings);
        }
        if self.unusual {
            return Verdict::Forbid(Deny::Kind);
        }
        if self.poisoned {
            return Verdict::Forbid(Deny::Poisoned);
        }
        if self.isolates {
            return Verdict::Forbid(Deny::Isolated);
        }
        match self.file {
            Some(file) if !file.may_freeze() || !freeze() => Verdict::Forbid(Deny::NotFrozen),
            _ => Verdict::Defer,
        }
    }
}

/// As what a TLB may hold the entries of a mapping. The values are those of C's `enum
/// migrc_geometry`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum Geometry {
    /// One by one.
    Pages = 0,
    /// As blocks, each of which is whole.
    Blocks = 1,
    /// As both, or as a part of a block.
    Odd = 2,
}

/// What C sees of a mapping whose entries have just been cleared, under the page table lock.
#[derive(Clone, Copy, Debug)]
pub struct MappingFacts {
    /// The entries allowed to write, and a TLB may hold them.
    pub writable: bool,
    /// A task takes permissions away in this address space, and has not flushed yet.
    pub pending: bool,
    /// The area is a shared one.
    pub shared: bool,
    /// A device or a guest walks the page table.
    pub notifier: bool,
    /// As what a TLB may hold the entries.
    pub geometry: Geometry,
    /// Whether the administrator lets blocks be deferred.
    pub blocks: bool,
    /// A range that the task has to flush ends where the entries begin, or the reverse. One
    /// operation invalidates both.
    pub merges: bool,
    /// A TLB may hold the entries at all.
    pub accessible: bool,
}

impl MappingFacts {
    /// Whether a block forbids it, after mappings that were deferred as `first`.
    ///
    /// What becomes valid again has the size that was cleared, or a flush comes first: see hook
    /// `size`. Of one size for each folio the restore is told.
    fn blocked(&self, first: Option<Geometry>) -> bool {
        match self.geometry {
            Geometry::Pages => first == Some(Geometry::Blocks),
            Geometry::Blocks => !self.blocks || first == Some(Geometry::Pages),
            Geometry::Odd => true,
        }
    }

    /// Whether the flush may be deferred. If the walk has deferred before, it was as `first`.
    ///
    /// A pending flush and a block are over with the flush, which comes before the copy. Then no
    /// task can write without a fault, and other mappings may be deferred. With the other facts a
    /// task could write to the new page while a TLB still leads to the old one.
    ///
    /// A range with a hole is two. So what is deferred between neighbours that are not would cost
    /// one more operation now, and its share of a drain later.
    pub fn verdict(&self, first: Option<Geometry>) -> Verdict {
        let forbids = self.writable || self.shared || self.notifier;
        let deny = if self.writable {
            Deny::Writable
        } else if self.pending {
            Deny::FlushPending
        } else if self.shared {
            Deny::Shared
        } else if self.notifier {
            Deny::Notifier
        } else if self.blocked(first) {
            Deny::Block
        } else if self.merges {
            Deny::Merged
        } else {
            return Verdict::Defer;
        };

        if forbids {
            Verdict::Forbid(deny)
        } else {
            Verdict::Flush(deny)
        }
    }
}

/// What C sees of an area whose pages may lose write permission.
#[derive(Clone, Copy, Debug)]
pub struct AreaFacts {
    /// It has anonymous memory.
    pub anonymous: bool,
    /// It is locked, in order to have no faults.
    pub locked: bool,
    /// It is a shadow stack.
    pub shadow_stack: bool,
    /// A monitor handles its faults.
    pub userfaultfd: bool,
    /// Write faults tell which of its pages have changed.
    pub soft_dirty: bool,
    /// A device or a guest would have to fault its pages in again.
    pub notifier: bool,
}

impl AreaFacts {
    /// Whether a write fault makes a page writable again, without a copy and without anybody
    /// noticing.
    pub const fn may_lose_permission(&self) -> bool {
        self.anonymous
            && !self.locked
            && !self.shadow_stack
            && !self.userfaultfd
            && !self.soft_dirty
            && !self.notifier
    }
}

/// What C sees of a page that was writable, and has been migrated.
#[derive(Clone, Copy, Debug)]
pub struct PageFacts {
    /// Its area.
    pub area: AreaFacts,
    /// It belongs to a large folio.
    pub large: bool,
    /// It is device memory.
    pub device: bool,
    /// It was written to since the last migration that left it clean.
    pub dirty: bool,
}

/// How such a page is mapped. The values are those of C's `enum migrc_protection`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
#[repr(u32)]
pub enum Protection {
    /// As before.
    AsBefore = 0,
    /// As before, and clean: the dirty bit tells the next migration of a write.
    Clean = 1,
    /// Without write permission.
    ReadOnly = 2,
}

impl PageFacts {
    /// What the page loses. `pays` is asked if it could lose write permission: whether that should
    /// save more than it costs.
    ///
    /// A large folio is seldom clean.
    pub fn verdict(&self, pays: impl FnOnce() -> bool) -> Protection {
        if self.large || self.device || !self.area.may_lose_permission() {
            Protection::AsBefore
        } else if self.dirty {
            Protection::Clean
        } else if pays() {
            Protection::ReadOnly
        } else {
            Protection::AsBefore
        }
    }
}
