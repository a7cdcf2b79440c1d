// SPDX-License-Identifier: GPL-2.0

//! C entry points of the TLB batch.
//!
//! `mm/rmap.c` calls these when its inline test says that there is something to do; the batch
//! itself is [`kernel::mm::tlb_batch`]. All of them run in the task that owns the batch, under the
//! page table lock or not, and take no lock; [`tlb_batch_flush_slow`] may drop the last reference
//! to an address space, and interrupts other CPUs.
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
/// - `batch` must be `current`'s.
/// - `mm` and the address spaces in `batch` must stay alive until the batch is issued, or until
///   it holds them.
#[export]
unsafe extern "C" fn tlb_batch_add_slow(
    batch: *mut bindings::tlb_batch,
    mm: *mut bindings::mm_struct,
    start: c_ulong,
    end: c_ulong,
) {
    // SAFETY: By this function's safety requirements: a task's batch is only used by that task,
    // which is here, and every address space in it is alive.
    let batch = unsafe { TlbBatch::from_raw_mut(batch) };

    // SAFETY: By this function's safety requirements.
    unsafe { batch.add_raw(mm, start, end) };
}

/// Keeps `mm` from being freed as long as `batch` owes something of it.
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
/// - The caller must not hold a spinlock, unless `reason` is `TLB_BATCH_PUT_BACK`: all others let
///   go of the address spaces.
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
