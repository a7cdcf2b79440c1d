// SPDX-License-Identifier: GPL-2.0

//! C entry points of the TLB batch.
//!
//! `mm/rmap.c`, `mm/migrate.c` and `mm/vmscan.c` call these when an inline test says that there is
//! something to do. The batch itself is [`kernel::mm::tlb_batch`]. All of them run in the task that
//! owns the batch, under the page table lock or not, and take no lock. [`tlb_batch_flush_slow`] may
//! drop the last reference to an address space, and it interrupts other CPUs.
//!
//! C header: [`include/linux/tlb_batch.h`](srctree/include/linux/tlb_batch.h)

#![crate_name = "tlb_batch"]

use kernel::{
    bindings,
    mm::{
        tlb_batch::{
            Reason,
            TlbBatch, //
        },
        Mm, //
    },
    prelude::*, //
};

/// Owes `[start, end)` of `mm` when it cannot simply extend the last range.
///
/// # Safety
///
/// - `batch` must be `current`'s, and the addresses of user space.
/// - `mm` and the address spaces in `batch` must stay alive until the batch is issued, or until
///   it holds them.
#[export]
unsafe extern "C" fn tlb_batch_add_slow(
    batch: *mut bindings::tlb_batch,
    mm: *mut bindings::mm_struct,
    start: c_ulong,
    end: c_ulong,
) {
    // SAFETY: By this function's safety requirements: only its own task uses a batch, and every
    // address space in it is alive.
    let batch = unsafe { TlbBatch::from_raw_mut(batch) };

    // SAFETY: By this function's safety requirements.
    unsafe { batch.add_raw(mm, start, end) };
}

/// Keeps `mm` from being freed as long as `batch` owes ranges in it.
///
/// # Safety
///
/// - `batch` must be `current`'s, and the address spaces in it must be alive.
/// - `mm` must be alive during the call.
#[export]
unsafe extern "C" fn tlb_batch_hold_slow(
    batch: *mut bindings::tlb_batch,
    mm: *mut bindings::mm_struct,
) {
    // SAFETY: By this function's safety requirements: a task's batch is only used by that task.
    let batch = unsafe { TlbBatch::from_raw_mut(batch) };

    // SAFETY: By this function's safety requirements; `Mm` is transparent over `mm_struct`.
    batch.hold(unsafe { &*mm.cast::<Mm>() });
}

/// Issues what `batch` owes, without waiting for it.
///
/// # Safety
///
/// `batch` must be `current`'s, and the address spaces in it must be alive.
#[export]
unsafe extern "C" fn tlb_batch_issue_slow(
    batch: *mut bindings::tlb_batch,
    reason: bindings::tlb_batch_reason,
) {
    // SAFETY: By this function's safety requirements: a task's batch is only used by that task.
    unsafe { TlbBatch::from_raw_mut(batch) }.issue(Reason::from_raw(reason));
}

/// Issues what `batch` owes and waits until no TLB holds any of it.
///
/// # Safety
///
/// - `batch` must be `current`'s, and the address spaces in it must be alive.
/// - Interrupts must be on.
/// - The caller must not hold a spinlock, unless `reason` is `TLB_BATCH_PUT_BACK`: every other
///   reason releases the address spaces.
#[export]
unsafe extern "C" fn tlb_batch_flush_slow(
    batch: *mut bindings::tlb_batch,
    reason: bindings::tlb_batch_reason,
) {
    // SAFETY: By this function's safety requirements: a task's batch is only used by that task.
    let batch = unsafe { TlbBatch::from_raw_mut(batch) };
    let reason = Reason::from_raw(reason);

    batch.flush(reason);
    if reason != Reason::PutBack {
        batch.release();
    }
}

#[cfg(CONFIG_RUST_TLB_BATCH_KUNIT_TEST)]
#[kunit_tests(tlb_batch_main)]
mod tests {
    use super::*;
    use core::ptr::NonNull;
    use kernel::{
        mm::MmWithUser,
        page::PAGE_SIZE,
        sync::aref::ARef, //
    };

    /// Only a put-back flushes under a page table lock, where no reference may be dropped.
    #[test]
    fn a_put_back_keeps_references() -> Result {
        // SAFETY: It is always fine to ask for a new, empty address space.
        let mm = NonNull::new(unsafe { bindings::mm_alloc() }).ok_or(ENOMEM)?;
        // SAFETY: `mm_alloc()` returns it with one `mm_users` reference, which is ours.
        let mm = unsafe { ARef::<MmWithUser>::from_raw(mm.cast()) };

        for (reason, held) in [
            (bindings::tlb_batch_reason_TLB_BATCH_PUT_BACK, 1),
            (bindings::tlb_batch_reason_TLB_BATCH_FLUSH, 0),
        ] {
            let mut batch = TlbBatch::new();

            batch.add(&mm, 0..PAGE_SIZE)?;
            batch.hold(&mm);
            // SAFETY: Only this task uses it, no lock is held, and the mm is alive.
            unsafe { tlb_batch_flush_slow((&raw mut batch).cast(), reason) };
            assert_eq!((batch.ranges(), batch.held()), (0, held));
            batch.release();
        }
        Ok(())
    }
}
