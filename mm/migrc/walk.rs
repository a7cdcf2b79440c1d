// SPDX-License-Identifier: GPL-2.0

//! One walk of a folio's mappings: which flushes are deferred, and what that makes of the folio.
//!
//! Pure, as [`super::eligibility`] is, which has the rule for each mapping by itself.

use super::{
    eligibility::{
        Deny,
        Geometry,
        MappingFacts,
        Reasons,
        Verdict, //
    },
    permit_dropped, //
};
use core::mem::forget;

/// What the walk has met so far: C's `struct migrc_walk` of the task, but for what debugging adds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(C)]
pub struct Walk {
    /// The flush of some mapping was deferred.
    pub deferred: bool,
    /// A walk before this one, of the same batch, has met both what is deferred and what forbids
    /// it, and what it deferred has not been drained yet.
    pub mixed: bool,
    /// What was deferred are [`Geometry::Blocks`], else [`Geometry::Pages`].
    pub blocks: bool,
    /// Why some mappings are flushed now that say nothing of the rest.
    pub flushed: Reasons,
    /// Why none may be deferred.
    pub denied: Reasons,
}

/// The right to defer one flush. Only a drain flushes these entries, so it has to be used: dropping
/// it is a build error.
#[derive(Debug)]
#[must_use = "nobody flushes these entries now"]
pub struct Permit(());

impl Permit {
    /// Uses it.
    ///
    /// # Safety
    ///
    /// The deferral must have been counted in the address space, so that drains flush it.
    #[inline(always)]
    pub unsafe fn counted(self) {
        forget(self);
    }
}

impl Drop for Permit {
    #[inline(always)]
    fn drop(&mut self) {
        permit_dropped();
    }
}

/// What a walk makes of its folio.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum End {
    /// All flushes were deferred.
    Deferred,
    /// None was; why the first was not, unless no TLB had any of it.
    Flushed(Option<Deny>),
    /// Some were, and have to be drained before the content is copied.
    Mixed(Deny),
}

impl Walk {
    /// The walk of another folio of the batch, or of a migration that is nested in one.
    pub fn begin(&mut self) {
        *self = Self {
            mixed: self.mixed,
            ..Self::default()
        };
    }

    /// As what TLBs may hold the mappings that were deferred.
    fn geometry(&self) -> Option<Geometry> {
        self.deferred.then_some(if self.blocks {
            Geometry::Blocks
        } else {
            Geometry::Pages
        })
    }

    /// The next mapping. Without a permit its entries are flushed as ever.
    ///
    /// Nothing is owed of an entry that is not accessible. No TLB has it, or the task that made it
    /// so flushes before the page is free, see hook `protnone`.
    ///
    /// With `mixes` something is deferred although another mapping forbids it, for tests.
    #[inline(always)]
    pub fn meet(&mut self, facts: &MappingFacts, mixes: bool) -> Option<Permit> {
        if !facts.accessible {
            return None;
        }
        // rule: migrc/mixed: once something forbids to defer, only a drain would flush more
        match facts.verdict(self.geometry()) {
            Verdict::Forbid(deny) => self.denied = self.denied.with(deny),
            Verdict::Flush(deny) => self.flushed = self.flushed.with(deny),
            Verdict::Defer if self.denied.is_empty() || mixes => {
                self.deferred = true;
                self.blocks = facts.geometry == Geometry::Blocks;
                return Some(Permit(()));
            }
            Verdict::Defer => {}
        }
        None
    }

    /// The next mapping was flushed when it was cleared. Nothing is owed of it. If it was
    /// `writable`, or is of a `shared` area, it will be writable again without a fault: then no
    /// other mapping may be deferred.
    pub fn meet_flushed(&mut self, writable: bool, shared: bool) {
        if writable || shared {
            self.forbid(Deny::Local);
        } else {
            self.flushed = self.flushed.with(Deny::Local);
        }
    }

    /// Something that is no mapping forbids it.
    pub fn forbid(&mut self, deny: Deny) {
        self.denied = self.denied.with(deny);
    }

    /// The folio is not mapped any more. `still_frozen` is asked if all flushes were deferred.
    pub fn end(&mut self, still_frozen: impl FnOnce() -> bool, mixes: bool) -> End {
        if !self.deferred {
            return End::Flushed(self.denied.or(self.flushed).first());
        }
        if self.denied.is_empty() {
            if still_frozen() {
                return End::Deferred;
            }
            self.forbid(Deny::NotFrozen);
        }
        // rule: migrc/mixed: a task can write to the new page, and other CPUs read the old one
        if mixes {
            return End::Deferred;
        }
        self.mixed = true;
        let of_the_folio = [Deny::NotFrozen, Deny::Poisoned];

        End::Mixed(
            of_the_folio
                .into_iter()
                .find(|deny| self.denied.has(*deny))
                .unwrap_or(Deny::Mixed),
        )
    }
}
