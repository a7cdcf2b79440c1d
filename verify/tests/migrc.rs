// SPDX-License-Identifier: GPL-2.0

//! Deferring the flushes of a migration, in any order with everything that may follow it.
//!
//! Two processes, which may share a page after a fork, run on two CPUs with a TLB each. A page is
//! migrated without a flush, and its source kept until every TLB that may still translate to it
//! has been flushed. Meanwhile both processes read, write, fork, unmap, change permissions and
//! exit, a debugger writes, reclaim takes pages away, and drains run. At any time:
//!
//! - no TLB leads a living process to a page that was released (rule `kept`), and
//! - what a process reads through its TLBs is what a walk of its page table would find
//!   (rule `current`).
//!
//! Each rule is then left out, and the checker must find out what that breaks. Memory order is not
//! the subject here, see `migrc_registered.rs`, `ordering.rs` and `litmus/`: a step is atomic. Nor is a
//! second page table of the same process, see `migrc_registered.rs`.

mod explore;
mod migrc_model;

use migrc_model::*;

#[test]
fn nobody_uses_what_was_deferred() {
    ALL.holds();
}

#[test]
fn nobody_uses_what_was_deferred_twice() {
    ALONE.holds();
}

#[test]
fn nobody_uses_what_was_deferred_because_it_is_not_written() {
    READMOSTLY.holds();
}

// ---- What may be deferred.

#[test]
fn a_writable_translation_may_not_be_deferred() {
    Rules {
        read_only: false,
        ..ALL
    }
    .breaks(CURRENT);
}

#[test]
fn permissions_that_are_being_taken_away_are_still_there() {
    Rules {
        flush_pending: false,
        ..ALL
    }
    .breaks(CURRENT);
}

#[test]
fn a_fork_takes_permissions_away() {
    Rules { fork: false, ..ALL }.breaks(CURRENT);
}

#[test]
fn what_reclaim_has_not_flushed_may_be_written() {
    Rules {
        isolated: false,
        ..ALONE
    }
    .breaks(CURRENT);
}

/// Of anonymous memory: what is writable in one address space is mapped in no other, and whoever
/// was flushed for another reason has nothing to do with whoever was not.
#[test]
fn a_folio_may_be_deferred_in_some_of_its_mappings() {
    Rules {
        mixed: false,
        ..ALL
    }
    .holds();
}

/// The model would find out: of shared memory it finds an entry that comes back writable.
#[test]
fn shared_memory_may_not_be_deferred_in_some_of_its_mappings() {
    Rules {
        mixed: false,
        ..SHARED
    }
    .breaks(CURRENT);
}

/// Nor in all of them: a write fault flushes the wrong address space.
#[test]
fn shared_memory_may_not_be_deferred() {
    SHARED.breaks(CURRENT);
}

// ---- Who has to flush first.

#[test]
fn a_write_fault_flushes_first() {
    Rules {
        wp_reuse: false,
        ..ALL
    }
    .breaks(CURRENT);
}

#[test]
fn a_write_fault_that_copies_flushes_first() {
    Rules {
        wp_copy: false,
        ..ALL
    }
    .breaks(CURRENT);
}

#[test]
fn mprotect_flushes_first() {
    Rules {
        mprotect: false,
        ..ALL
    }
    .breaks(CURRENT);
}

#[test]
fn munmap_of_a_migration_entry_flushes() {
    Rules { zap: false, ..ALL }.breaks(CURRENT);
}

#[test]
fn a_fault_during_reclaim_flushes_first() {
    Rules {
        swap_in: false,
        ..ALONE
    }
    .breaks(CURRENT);
}

#[test]
fn a_debugger_flushes_first() {
    Rules {
        force: false,
        ..ALONE
    }
    .breaks(CURRENT);
}

#[test]
fn what_a_debugger_refers_to_does_not_move() {
    Rules {
        reference: false,
        ..ALONE
    }
    .breaks(CURRENT);
}

// ---- Who owns the source.

#[test]
fn a_page_that_did_not_move_is_in_use() {
    Rules {
        undo: false,
        ..QUIET
    }
    .breaks(KEPT);
}

#[test]
fn a_drain_flushes_only_what_is_in_its_list() {
    Rules {
        register: false,
        ..QUIET
    }
    .breaks(KEPT);
}

#[test]
fn a_drain_releases_only_what_it_took_before_it_flushed() {
    Rules {
        splice: false,
        ..QUIET
    }
    .breaks(KEPT);
}

#[test]
fn a_flush_covers_only_what_was_deferred_before() {
    Rules {
        snapshot: false,
        ..QUIET
    }
    .breaks(KEPT);
}

#[test]
fn two_drains_mistake_each_others_notes() {
    Rules {
        mutex: false,
        ..QUIET
    }
    .breaks(KEPT);
}

#[test]
fn a_drain_meets_no_address_space_that_was_freed() {
    Rules {
        exit: false,
        ..QUIET
    }
    .breaks(UAF);
}

#[test]
fn an_exit_waits_for_the_drain() {
    Rules {
        exit_waits: false,
        ..QUIET
    }
    .breaks(UAF);
}

#[test]
fn an_exit_unmaps_first() {
    Rules {
        exit_last: false,
        ..QUIET
    }
    .breaks(UAF);
}
