// SPDX-License-Identifier: GPL-2.0

//! What the entries that map a folio's struct pages become.
//!
//! Plain numbers, without the kernel: `verify/tests/hvo_layout.rs` checks the same file on the
//! host.

use super::batch::Room;

/// Entries that one batch changes at most: those of four folios of 1 GiB, or of 2048 of 2 MiB.
const BATCH_ENTRIES: usize = 16384;

/// A change of one folio. All its sizes are in entries of page tables, which map a page of struct
/// pages each.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Change {
    /// Only the first page of struct pages stays; all others give way to a shared one.
    Optimize,
    /// The folio has pages of its own again.
    Restore,
    /// One optimised folio becomes several, which are optimised, too.
    Demote {
        /// Of each of them.
        entries: usize,
    },
}

/// What an entry leads to after the change.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum To {
    /// A new page. The present content is copied while nobody can write to it.
    CopiedLate,
    /// A new page. The present content, which nobody changes, is copied before.
    CopiedBefore,
    /// A new page that was filled in before.
    Filled,
    /// The page that all tails of a zone share, read-only: a write to it is a bug.
    SharedTail,
}

/// The change of one entry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Entry {
    /// What it leads to.
    pub to: To,
    /// Whether the folio owns the page that it led to before. That page is free then.
    pub frees: bool,
}

impl Change {
    /// What becomes of the entry at `index` of a folio.
    pub const fn entry(self, index: usize) -> Entry {
        match self {
            Self::Optimize => Entry {
                to: if index == 0 {
                    To::CopiedLate
                } else {
                    To::SharedTail
                },
                frees: true,
            },
            Self::Restore => Entry {
                to: To::CopiedBefore,
                frees: false,
            },
            Self::Demote { entries } => Entry {
                to: if index % entries == 0 {
                    To::Filled
                } else {
                    To::SharedTail
                },
                frees: index == 0,
            },
        }
    }

    /// Whether the entry at `index` changes only after all others that do not.
    ///
    /// The head of an optimised folio comes first: it is the one that is most in use. The first one
    /// of a demoted folio comes last, because it is what all other struct pages belong to that have
    /// not changed yet.
    pub const fn waits(self, index: usize) -> bool {
        match self {
            Self::Optimize => index > 0,
            Self::Restore => false,
            Self::Demote { .. } => index == 0,
        }
    }

    /// The first of each so many entries changes before the others of them, which belong to it
    /// then. 0: they change in any order.
    pub const fn group(self) -> usize {
        match self {
            Self::Demote { entries } => entries,
            Self::Optimize | Self::Restore => 0,
        }
    }

    /// Whether all entries that are not copied late get the same value.
    pub const fn has_one_value(self) -> bool {
        matches!(self, Self::Optimize)
    }

    /// The index of the first entry that changes.
    pub const fn first(self) -> usize {
        match self {
            // It has a page of its own already.
            Self::Restore => 1,
            Self::Optimize | Self::Demote { .. } => 0,
        }
    }

    /// How many new pages a folio of `entries` needs.
    pub const fn brings(self, entries: usize) -> usize {
        match self {
            Self::Optimize => 1,
            Self::Restore => entries - 1,
            Self::Demote { entries: smaller } => entries / smaller,
        }
    }

    /// How many pages it gives up.
    pub const fn frees(self, entries: usize) -> usize {
        match self {
            Self::Optimize => entries,
            Self::Restore => 0,
            Self::Demote { .. } => 1,
        }
    }

    /// The room for a batch of up to `folios`, of `entries` each, which are more than one;
    /// `per_table`: those of a table.
    pub fn room(self, entries: usize, folios: usize, per_table: usize) -> Room {
        let units = (BATCH_ENTRIES / (entries - self.first())).clamp(1, folios.max(1));
        // What is in one table changes together, but for the first entry, unless it stays. A folio
        // is aligned, and so are the entries that map its struct pages.
        let runs = entries / per_table + 2;
        let values = if self.has_one_value() { 0 } else { entries };

        Room {
            units,
            runs: units * runs,
            values: units * values,
            old: units * self.frees(entries),
            new: units * self.brings(entries),
        }
    }
}
