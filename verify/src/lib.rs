// SPDX-License-Identifier: GPL-2.0

//! The kernel's pure logic, compiled on the host from the kernel's own files.
//!
//! `tests/tlb_batch.rs`, `migrc_gen.rs`, `migrc_ledger.rs` and `migrc_eligibility.rs` check it
//! under any sequence of operations, `tests/owed.rs` what the compiler has to refuse. The other
//! tests check the rules by which the kernel uses it, in models: `ordering.rs` and `generation.rs`
//! what other CPUs see, `lifetime.rs` who holds what, `migrc.rs` what a process may find in memory
//! whose flushes were deferred. The barriers are checked against Arm's memory model by
//! `litmus/run.py`.

/// Stands where the kernel crate has `kernel::mm::tlb_batch`.
#[path = "."]
pub mod tlb_batch {
    #[path = "../../rust/kernel/mm/tlb_batch/ranges.rs"]
    pub mod ranges;

    /// The kernel refuses to build a path that ends here; on the host a test sees it run.
    fn owed_dropped() {
        panic!("an owed TLB invalidation is dropped without being issued");
    }
}

/// Stands where the kernel has the crate `migrc`.
#[path = "."]
pub mod migrc {
    #[path = "../../mm/migrc/eligibility.rs"]
    pub mod eligibility;
    #[path = "../../mm/migrc/generation.rs"]
    pub mod generation;
    #[path = "../../mm/migrc/ledger.rs"]
    pub mod ledger;
    #[path = "../../mm/migrc/readmostly.rs"]
    pub mod readmostly;

    /// As above.
    fn unflushed_dropped() {
        panic!("sources of migrations are dropped without a flush");
    }
}

/// Stands where the kernel has the crate `hvo`.
#[path = "."]
pub mod hvo {
    #[path = "../../mm/hvo/plan.rs"]
    pub mod plan;
}
