// SPDX-License-Identifier: GPL-2.0

//! Rules of the TLB batch about who has to see what before what.
//!
//! Each rule is explored kept, where nothing may go wrong in any state, and broken, where the
//! checker must find a way to go wrong: a model in which it does not would prove nothing.
//! `cargo test -- --nocapture` prints the ways.

mod explore;
mod machine;

use machine::{
    only,
    If::Loaded,
    Machine,
    Op::{self, *},
    ASID, FLUSH_PENDING, NONE,
};

/// What page table entries hold: pages, one page as part of a contiguous block, and a page of
/// another process.
const OLD: u8 = 1;
const NEW: u8 = 2;
const BLOCK: u8 = 3;
const FOREIGN: u8 = 4;

// ---- The ASID is read when the clears are visible.

/// A batch: the range is owed when the page table lock is dropped, and issued much later.
const BATCH: [Op; 7] = [
    Store("pte", NONE),
    Mark,
    Unlock("ptl"),
    DsbIshst,
    Load("context"),
    TlbiLoaded,
    DsbIsh,
];

/// `ptep_clear_flush()`
const STOCK: [Op; 5] = [
    Store("pte", NONE),
    DsbIshst,
    Load("context"),
    TlbiLoaded,
    DsbIsh,
];

/// Somebody else's in the last generation.
const NEW_ASID: u8 = ASID + 1;

/// CPU 0 unmaps and invalidates; CPU 1 runs the address space, then something else, and then gives
/// it a new ASID in `check_and_switch_context()`, as after a roll-over.
fn new_asid(flush: &[Op], switch: &[Op]) -> Machine {
    let locked = ("ptl", 1);

    Machine::new(&[("pte", OLD), ("context", ASID), locked], |s| {
        s.cpus[0].done && s.translated(OLD) || s.translated(FOREIGN)
    })
    .kernel(flush)
    .user(
        ASID,
        &[&[Switch(0), Store("context", NEW_ASID)], switch].concat(),
    )
}

/// CPU 1 is in `tlb_flush_pending`: `local_flush_tlb_all()`.
fn roll_over(flush: &[Op], dsb: bool, tlbi: bool) -> Machine {
    let local_flush = [only(dsb, DsbIshst), only(tlbi, FlushLocal)];
    let switch = [&local_flush[..], &[Switch(NEW_ASID), DsbIsh]].concat();

    new_asid(flush, &switch).cached(NEW_ASID, "pte", FOREIGN)
}

/// It has already flushed in this generation, and the first barrier is that of `__switch_to()`.
/// Assumed: no walk of user addresses between the write of TTBR0 and this DSB.
fn flushed_before(flush: &[Op], assumed: bool) -> Machine {
    let switch = [only(!assumed, Switch(NEW_ASID)), DsbIsh, Switch(NEW_ASID)];

    new_asid(flush, &switch)
}

#[test]
fn asid_is_read_after_the_clears_are_visible() {
    roll_over(&BATCH, true, true).holds();
    flushed_before(&BATCH, true).holds();
}

#[test]
fn asid_read_before_the_clears_are_visible_is_too_old() {
    let mut batch = BATCH;

    batch.swap(3, 4);
    roll_over(&batch, true, true).breaks();
    flushed_before(&batch, true).breaks();
}

/// Not our rules, but what ours rest on: `local_flush_tlb_all()` has DSBs,
#[test]
fn a_roll_over_without_a_dsb_hides_the_new_asid() {
    roll_over(&BATCH, false, true).breaks();
    roll_over(&STOCK, false, true).breaks();
}

/// and invalidates what there is under numbers that are given away again;
#[test]
fn a_roll_over_without_a_flush_meets_the_last_generation() {
    roll_over(&BATCH, true, false).breaks();
    roll_over(&STOCK, true, false).breaks();
}

/// and nobody walks before the DSB of `__switch_to()`. The batch needs that as stock does.
#[test]
fn a_walk_before_the_dsb_of_the_switch_is_stocks_risk_too() {
    flushed_before(&STOCK, true).holds();
    flushed_before(&STOCK, false).breaks();
    flushed_before(&BATCH, false).breaks();
}

// ---- The mark becomes visible after the clears, and before the page table lock is dropped.

/// CPU 0 unmaps with `unmap`; CPU 1 holds the lock of another page table and flushes what it finds
/// marked; CPU 2 finds the hole, flushes likewise and relies on it, as munmap() does; CPU 3 runs
/// the process.
fn mark(unmap: &[Op]) -> Machine {
    let locked = |ptl, ops: &[Op]| [&[Lock(ptl)], ops, &[Unlock(ptl)]].concat();
    let hole = [Load("pte"), Assume(Loaded(NONE))];

    Machine::new(&[("pte", OLD)], |s| s.cpus[2].done && s.translated(OLD))
        .kernel(&locked("ptl", unmap))
        .kernel(&locked("other ptl", &FLUSH_PENDING))
        .kernel(&locked("ptl", &[&hole[..], &FLUSH_PENDING].concat()))
        .user(ASID, &[])
}

#[test]
fn mark_is_visible_after_the_clear() {
    mark(&[Store("pte", NONE), DsbIshst, Mark]).holds();
}

#[test]
fn mark_without_a_barrier_overtakes_the_clear() {
    mark(&[Store("pte", NONE), Mark]).breaks();
}

/// One barrier and one mark for a run, after its last clear.
#[test]
fn mark_follows_the_last_clear_of_a_run() {
    let first = Store("entry before", NONE);

    mark(&[first, Store("pte", NONE), DsbIshst, Mark]).holds();
}

#[test]
fn mark_before_the_last_clear_of_a_run_is_used_up() {
    let first = Store("entry before", NONE);

    mark(&[first, DsbIshst, Mark, Store("pte", NONE), DsbIshst]).breaks();
}

// ---- A DSB waits only for the TLBIs of its own CPU.

/// A task issues on CPU 0 and waits on CPU 1, which gets it when CPU 0 has switched away from it.
fn migrate(dsb_in_switch: bool) -> Machine {
    Machine::new(&[("pte", OLD), ("task is on CPU 0", 1)], |s| {
        s.cpus[1].done && s.translated(OLD)
    })
    .kernel(&[
        Store("pte", NONE),
        DsbIshst,
        Tlbi(ASID),
        only(dsb_in_switch, DsbIsh),
        Unlock("task is on CPU 0"),
    ])
    .kernel(&[Lock("task is on CPU 0"), DsbIsh])
    .user(ASID, &[])
}

#[test]
fn a_task_that_migrates_waits_for_what_it_issued() {
    migrate(true).holds();
}

#[test]
fn without_a_dsb_in_the_context_switch_nobody_waits() {
    migrate(false).breaks();
}

// ---- An address is filled only when what it translated to is gone.

/// Whether reclaim keeps the folio locked and in its cache until it has flushed.
#[derive(Clone, Copy, PartialEq)]
enum Folio {
    Kept,
    Released,
}

/// Whether a fault asks the cache for the folio and waits for its lock. It does not if nothing is
/// left at the address (lazily freed memory), nor does userfaultfd.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    Asks,
    AsksNobody,
}

/// Whether the invalidation is issued before the page table lock is dropped.
#[derive(Clone, Copy, PartialEq)]
enum Issue {
    AtFlush,
    UnderPtl,
}

/// CPU 0 reclaims, CPU 1 takes a fault at the address, CPU 2 runs the process.
fn reclaim(
    folio: Folio,
    fault: Fault,
    issue: Issue,
    wrong: fn(&machine::State) -> bool,
) -> Machine {
    let unmap = [
        Lock("folio"),
        Lock("ptl"),
        Store("pte", NONE),
        DsbIshst,
        only(issue == Issue::UnderPtl, Tlbi(ASID)),
        Unlock("ptl"),
    ];
    let flush = [only(issue == Issue::AtFlush, Tlbi(ASID)), DsbIsh];
    let release = [Store("cached", 0), Unlock("folio")];
    let (next, last) = match folio {
        Folio::Kept => (flush, release),
        Folio::Released => (release, flush),
    };
    // What is still cached when the lock is free is mapped again: no change of pages.
    let ask = [
        Load("cached"),
        SkipIf(Loaded(0), 4),
        Lock("folio"),
        Load("cached"),
        Unlock("folio"),
        Assume(Loaded(0)),
    ];
    let ask = &ask[..if fault == Fault::Asks { ask.len() } else { 0 }];
    let fill = [Lock("ptl"), Store("pte", NEW), Unlock("ptl")];

    Machine::new(&[("pte", OLD), ("cached", 1)], wrong)
        .kernel(&[&unmap[..], &next, &last].concat())
        .kernel(&[&[Load("pte"), Assume(Loaded(NONE))], ask, &fill].concat())
        .user(ASID, &[])
}

fn two_pages(state: &machine::State) -> bool {
    state.memory("pte") == NEW && state.translated(OLD)
}

/// Two pages, and the invalidation was not even issued. Between issue and completion Linux allows
/// it for addresses that are open to faults.
fn two_pages_for_long(state: &machine::State) -> bool {
    state.memory("pte") == NEW && state.translated_for_good(OLD)
}

#[test]
fn folio_stays_locked_until_the_flush() {
    reclaim(Folio::Kept, Fault::Asks, Issue::AtFlush, two_pages).holds();
}

#[test]
fn folio_unlocked_before_the_flush_is_replaced_too_early() {
    reclaim(
        Folio::Released,
        Fault::Asks,
        Issue::AtFlush,
        two_pages_for_long,
    )
    .breaks();
}

#[test]
fn a_lock_that_nobody_asks_for_is_no_protection() {
    reclaim(
        Folio::Kept,
        Fault::AsksNobody,
        Issue::AtFlush,
        two_pages_for_long,
    )
    .breaks();
}

#[test]
fn open_addresses_are_issued_under_the_page_table_lock() {
    for folio in [Folio::Kept, Folio::Released] {
        reclaim(
            folio,
            Fault::AsksNobody,
            Issue::UnderPtl,
            two_pages_for_long,
        )
        .holds();
    }
}

// ---- A cleared entry becomes valid again, with another size, only after a flush.

/// CPU 0 clears a contiguous block, fails, and puts single entries back; CPU 1 runs the process.
fn put_back(flush: &[Op]) -> Machine {
    let clear = [
        Lock("ptl"),
        Store("pte 0", NONE),
        Store("pte 1", NONE),
        DsbIshst,
    ];
    let put = [Store("pte 0", OLD), Store("pte 1", OLD), Unlock("ptl")];

    Machine::new(&[("pte 0", BLOCK), ("pte 1", BLOCK)], |s| {
        s.cpus
            .iter()
            .any(|cpu| cpu.translates(BLOCK) && cpu.translates(OLD))
    })
    .kernel(&[&clear[..], flush, &put].concat())
    .user(ASID, &[])
}

#[test]
fn a_put_back_flushes_first() {
    put_back(&[Tlbi(ASID), DsbIsh]).holds();
}

#[test]
fn a_put_back_that_does_not_wait_meets_the_old_size() {
    put_back(&[Tlbi(ASID)]).breaks();
}

#[test]
fn a_put_back_without_a_flush_meets_the_old_size() {
    put_back(&[]).breaks();
}
