// SPDX-License-Identifier: GPL-2.0

//! The kernel's pure logic, compiled on the host from the kernel's own files.
//!
//! What checks it, and which lines that reaches, is in `README.md`.

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
    #[path = "../../mm/migrc/walk.rs"]
    pub mod walk;

    /// As above.
    fn unflushed_dropped() {
        panic!("sources of migrations are dropped without a flush");
    }

    /// As above.
    fn permit_dropped() {
        panic!("a deferral is allowed, and not counted");
    }
}

/// Stands where the kernel has the crate `hvo`.
#[path = "."]
pub mod hvo {
    #[path = "../../mm/hvo/af.rs"]
    pub mod af;
    #[path = "../../mm/hvo/batch.rs"]
    pub mod batch;
    #[path = "../../mm/hvo/layout.rs"]
    pub mod layout;
    #[path = "../../mm/hvo/plan.rs"]
    pub mod plan;
    #[path = "../../verify/src/store.rs"]
    mod store;

    pub use store::Store;

    /// As above.
    fn applied_dropped() {
        panic!("changes were made, and their pages are forgotten");
    }
}

/// Naive models of them, for tests and for the targets in `fuzz/`.
pub mod model {
    pub mod generation;
    pub mod ledger;
    pub mod plan;
    pub mod ranges;
    pub mod readmostly;
}
