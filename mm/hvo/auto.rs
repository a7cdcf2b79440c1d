// SPDX-License-Identifier: GPL-2.0

//! The ways to change entries, one after the other.

use super::{
    af,
    batch::{
        Progress,
        Ways, //
    },
    c::{
        self,
        Flags,
        Params,
        Reason,
        Run, //
    },
    fallback::Fallback,
    live::Live,
    plan::Attempts, //
};
use kernel::{
    bindings,
    pr_info_once, //
};

/// How much a change is worth.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Effort {
    /// What other CPUs use all the time is left as it is. A worker tries it again.
    Optional,
    /// No more than before, but the other CPUs are stopped for that.
    Insistent,
    /// The caller has no use for an error.
    Mandatory,
}

/// Changes entries by their access flags. What that leaves, and what it is not there for, changes
/// while no other CPU runs.
pub(super) struct Auto<'a> {
    /// What changes.
    pub(super) reason: Reason,
    /// What a user has asked for.
    pub(super) params: Params,
    /// For what it is done.
    pub(super) effort: Effort,
    /// See [`Fallback`].
    pub(super) attempts: &'a mut Attempts,
}

impl Auto<'_> {
    /// Whether there is anything left to do.
    ///
    /// # Safety
    ///
    /// As for [`Ways::change`].
    unsafe fn by_flags(&self, runs: &[Run], last: &[bool], progress: &mut [Progress]) -> bool {
        let each = self.params.strategy == bindings::hvo_strategy_HVO_EACH;

        if !each && self.params.strategy != bindings::hvo_strategy_HVO_AUTO {
            return true;
        }
        let Some(flags) = Flags::begin() else {
            pr_info_once!("struct pages are given back while the other CPUs are stopped\n");
            return true;
        };

        pr_info_once!("struct pages are given back by access flag\n");
        let bounds = af::Bounds {
            entries: self.params.max_entries as usize,
            each,
            optional: self.effort == Effort::Optional,
        };
        // SAFETY: By the safety requirements; `af` uses no other index.
        let mut entries = unsafe { Live::new(self.reason) };

        af::change(&mut entries, bounds, runs, last, progress);
        drop(flags);
        progress.iter().any(|p| !matches!(p, Progress::Ended(_)))
    }
}

// SAFETY: What `by_flags()` leaves, `Fallback` ends.
unsafe impl Ways<Run> for Auto<'_> {
    unsafe fn change(&mut self, runs: &[Run], last: &[bool], progress: &mut [Progress]) {
        // SAFETY: By the safety requirements.
        if !unsafe { self.by_flags(runs, last, progress) } {
            return;
        }
        let mut fallback = Fallback {
            reason: self.reason,
            params: self.params,
            mandatory: self.effort == Effort::Mandatory,
            attempts: self.attempts,
        };

        // SAFETY: By the safety requirements.
        c::with_light_sleepers(|| unsafe { fallback.change(runs, last, progress) });
    }
}
