// SPDX-License-Identifier: GPL-2.0

//! Deferring the flushes of a migration, and owning the source until nobody can observe it.
//!
//! See `Documentation/mm/migrc.rst` for the invariants. Hooks in `mm/` come here when their inline
//! tests (`include/linux/migrc.h`) say that there is something to do.
//!
//! Lock order: page table lock, then [`MMS`]; a drain, then the lock of a ledger, or [`MMS`]. A
//! drain sleeps. It allocates nothing, so that reclaim may wait for it.
//!
//! C headers: [`include/linux/migrc.h`](srctree/include/linux/migrc.h), `mm/migrc/internal.h`

#![crate_name = "migrc"]

mod c;
pub mod eligibility;
pub mod generation;
pub mod ledger;
pub mod readmostly;
mod registered;
#[cfg(CONFIG_MIGRC_KUNIT_TEST)]
mod tests;
pub mod walk;

use c::DrainReason;
use core::{
    mem::{
        offset_of,
        take, //
    },
    ptr::NonNull, //
};
use eligibility::{
    AreaFacts,
    Caller,
    Deny,
    FileFacts,
    FolioFacts,
    Geometry,
    MappingFacts,
    NodeFacts,
    PageFacts,
    Verdict, //
};
use generation::Generation;
use kernel::{
    bindings,
    mm::folio::{
        FolioChain,
        MigratedSource, //
    },
    new_spinlock,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        global_lock,
        SetOnce,
        SpinLock, //
    },
    time::{
        Instant,
        Monotonic, //
    }, //
};
use ledger::{
    Chain,
    Ledger,
    Mms,
    Unflushed, //
};
use readmostly::Credit;
use registered::{
    flush_all,
    Drainer,
    Registered,
    RegisteredMm, //
};
use walk::{
    End,
    Permit,
    Walk, //
};

#[inline(always)]
fn unflushed_dropped() {
    build_error!("sources of migrations are dropped without a flush");
}

#[inline(always)]
fn permit_dropped() {
    build_error!("a deferral is allowed, and not counted");
}

#[inline(always)]
fn removed_dropped() {
    build_error!("an address space is removed, and a drain is not waited for");
}

impl Chain for FolioChain {
    const EMPTY: Self = FolioChain::new();

    type Folio = MigratedSource;

    #[inline(always)]
    fn push(&mut self, folio: MigratedSource) {
        FolioChain::push(self, folio);
    }

    #[inline(always)]
    fn append(&mut self, other: Self) {
        FolioChain::append(self, other);
    }

    #[inline(always)]
    fn is_empty(&self) -> bool {
        FolioChain::is_empty(self)
    }
}

type NodeLedger = SpinLock<Ledger<FolioChain>>;

/// A ledger for each node, so that migrations from different nodes do not share a lock.
static NODES: SetOnce<KVec<Pin<KBox<NodeLedger>>>> = SetOnce::new();

global_lock! {
    // SAFETY: Initialised in `migrc_rust_init()`, before anything is deferred.
    unsafe(uninit) static MMS: SpinLock<Registered> = Registered::new();
}

global_lock! {
    // SAFETY: As above.
    unsafe(uninit) static LATE: SpinLock<Unflushed<FolioChain>> = Unflushed::new();
}

/// For these a drain flushes even if there is no source in the ledgers: it is in none yet.
const WITHOUT_SOURCES: u32 = DrainReason::MIXED.bit() | DrainReason::WRITE.bit();

/// The address spaces that are in the list when a drain flushes.
struct Drained<'d>(&'d Drainer);

// SAFETY: An address space comes into the list with its first deferral, before the source comes
// into a ledger. It leaves the list when no CPU uses its translations any more.
unsafe impl Mms for Drained<'_> {
    #[inline]
    fn flush_all(&mut self) -> usize {
        let mms = MMS.lock().iter(self.0);

        flush_all(mms)
    }
}

/// All of the ledgers; none before they are made.
fn ledgers() -> impl Iterator<Item = &'static NodeLedger> {
    NODES
        .as_ref()
        .into_iter()
        .flat_map(|nodes| nodes.iter().map(|node| &**node))
}

/// Flushes what was deferred, and then releases all sources, for `reasons`, a bit each: a drain.
///
/// In this order: first the sources leave the ledgers, then all address spaces are flushed that
/// something was deferred in. Whatever is in the ledger was deferred before it came there, so that
/// this flush covers it; what comes into the ledgers meanwhile waits for the next drain.
///
/// # Safety
///
/// There must be a reason, and nobody else be here. A task that has removed an address space from
/// the list must not free it before this has returned.
#[export]
unsafe extern "C" fn migrc_run_drain(reasons: u32) {
    let mut unflushed = Unflushed::new();
    let reason = DrainReason::last_of(reasons);
    // SAFETY: Nobody else is here. An address space is not freed before `migrc_unregister()` has
    // waited for this.
    let drainer = unsafe { Drainer::new() };

    let begin = Instant::now();

    // SAFETY: Nobody else is here.
    unsafe { c::debug_drain(reason) };
    // rule: migrc/disarm: a timer of what leaves the ledgers here would drain younger sources.
    // The task that adds the first source starts it after that: it is either not yet started, or
    // for sources that leave the ledgers here.
    c::disarm();
    for ledger in ledgers() {
        ledger.lock().splice_into(&mut unflushed);
    }
    let late = take(&mut *LATE.lock());
    // rule: migrc/flush: CPUs may read these sources until they are flushed
    match unflushed.some() {
        Some(unflushed) => release(unflushed, &drainer, reason, begin, true),
        None if reasons & WITHOUT_SOURCES != 0 => {
            let mms = Drained(&drainer).flush_all();
            c::account_drain(reason, 0, mms, c::now(), ns_since(begin));
        }
        None => {}
    }
    if let Some(late) = late.some() {
        release(late, &drainer, DrainReason::OFF, begin, false);
    }
}

fn ns_since(begin: Instant<Monotonic>) -> u64 {
    begin.elapsed().as_nanos().max(0) as u64
}

/// Flushes for a source that came too late for the ledger, and releases it. It is never held.
fn drain_late(source: MigratedSource, pages: usize) {
    LATE.lock().push(source, pages, c::now());
    c::drain(DrainReason::OFF);
}

/// The end of a drain.
#[inline(always)]
fn release(
    unflushed: Unflushed<FolioChain>,
    drainer: &Drainer,
    reason: DrainReason,
    begin: Instant<Monotonic>,
    held: bool,
) {
    let flushed = unflushed.flush(&mut Drained(drainer));

    let (pages, mms, since) = (flushed.pages, flushed.mms, flushed.since);
    // SAFETY: The witness says that no TLB leads to them.
    let first = unsafe { flushed.into_chain().into_raw() };
    // SAFETY: As above, and the references are ours to drop.
    unsafe { bindings::migrc_release(first, held) };
    c::account_drain(reason, pages, mms, since, ns_since(begin));
}

/// Makes the ledgers and the locks. Returns 0 or `-ENOMEM`.
///
/// # Safety
///
/// Must be called once, before the hooks may be used.
#[export]
unsafe extern "C" fn migrc_rust_init(nodes: c_uint) -> c_int {
    fn init(nodes: c_uint) -> Result {
        let mut ledgers = KVec::with_capacity(nodes as usize, GFP_KERNEL)?;

        for _ in 0..nodes {
            let ledger = KBox::pin_init(new_spinlock!(Ledger::new()), GFP_KERNEL)?;
            ledgers.push(ledger, GFP_KERNEL)?;
        }
        NODES.populate(ledgers);
        Ok(())
    }

    // SAFETY: By this function's safety requirements.
    unsafe { MMS.init() };
    // SAFETY: As above.
    unsafe { LATE.init() };
    init(nodes).map_or_else(|e| e.to_errno(), |()| 0)
}

// `Walk` is the beginning of C's structure.
const _: () = {
    assert!(offset_of!(Walk, deferred) == offset_of!(bindings::migrc_walk, deferred));
    assert!(offset_of!(Walk, mixed) == offset_of!(bindings::migrc_walk, mixed));
    assert!(offset_of!(Walk, blocks) == offset_of!(bindings::migrc_walk, blocks));
    assert!(offset_of!(Walk, flushed) == offset_of!(bindings::migrc_walk, flushed));
    assert!(offset_of!(Walk, denied) == offset_of!(bindings::migrc_walk, denied));
    assert!(size_of::<Walk>() <= size_of::<bindings::migrc_walk>());
};

/// The walk of the current task.
///
/// # Safety
///
/// `walk` must be that of the current task, and nobody else have a reference to it.
unsafe fn walk_of<'a>(walk: *mut bindings::migrc_walk) -> &'a mut Walk {
    // SAFETY: The fields are those of `Walk`, as asserted above. By the safety requirements, only
    // the current task uses them: C clears `mixed` between two walks, and nothing that is called
    // while the reference exists looks at them.
    unsafe { &mut *walk.cast::<Walk>() }
}

/// Uses the permit: counts the deferral, so that drains flush `mm` from now on.
///
/// # Safety
///
/// `mm` must be alive, and the page table lock be held under which its entries were cleared.
#[inline(always)]
unsafe fn mark(mm: *mut bindings::migrc_mm, permit: Permit) {
    // SAFETY: By the safety requirements.
    unsafe { bindings::migrc_mark(mm) };
    // SAFETY: Just above.
    unsafe { permit.counted() };
}

fn caller(facts: &bindings::migrc_caller_facts) -> Caller {
    match facts.reason {
        bindings::migrate_reason_MR_SYSCALL => Caller::Syscall,
        bindings::migrate_reason_MR_MEMPOLICY_MBIND => Caller::Mbind,
        bindings::migrate_reason_MR_NUMA_MISPLACED => Caller::NumaHint,
        bindings::migrate_reason_MR_DAMON => Caller::Damon,
        bindings::migrate_reason_MR_DEMOTION if facts.may_demote && facts.kswapd => Caller::Kswapd,
        bindings::migrate_reason_MR_DEMOTION if facts.may_demote => Caller::Proactive,
        _ => Caller::Other,
    }
}

fn geometry(geometry: bindings::migrc_geometry) -> Geometry {
    match geometry {
        bindings::migrc_geometry_MIGRC_PAGES => Geometry::Pages,
        bindings::migrc_geometry_MIGRC_BLOCKS => Geometry::Blocks,
        _ => Geometry::Odd,
    }
}

/// Whether a migration may defer.
///
/// # Safety
///
/// `facts` must be valid for reads.
#[export]
unsafe extern "C" fn migrc_caller_may_defer(facts: *const bindings::migrc_caller_facts) -> bool {
    // SAFETY: By this function's safety requirements.
    caller(unsafe { &*facts }).may_defer()
}

/// Begins the walk of a folio; returns whether its flushes may be deferred, and counts why not.
///
/// # Safety
///
/// As for [`walk_of`]; `src` must be the locked folio of which these are the facts.
#[export]
unsafe extern "C" fn migrc_begin(
    walk: *mut bindings::migrc_walk,
    src: *mut bindings::folio,
    facts: *const bindings::migrc_folio_facts,
) -> bool {
    // SAFETY: By this function's safety requirements.
    let (walk, facts) = unsafe { (walk_of(walk), &*facts) };
    let caller = caller(&facts.caller);
    let seen = FolioFacts {
        caller,
        reclaims: facts.reclaims,
        free: facts.free,
        min: facts.min,
        low: facts.low,
        pages: facts.pages,
        limit: NodeFacts::from(&facts.node).limit(caller, PAGE_SIZE),
        mappings: facts.mappings,
        unusual: facts.unusual,
        poisoned: facts.poisoned,
        isolates: facts.isolates,
        file: facts.file.then(|| FileFacts::from(&facts.content)),
    };

    walk.begin();
    // SAFETY: The folio is locked, by this function's safety requirements.
    match seen.verdict(|| unsafe { c::freeze(src) }) {
        Verdict::Defer => true,
        Verdict::Flush(deny) | Verdict::Forbid(deny) => {
            c::account_denied(deny, facts.pages);
            false
        }
    }
}

/// The walk has met a mapping; returns whether its flush is deferred. Then that is counted in `mm`.
///
/// # Safety
///
/// As for [`walk_of`]; `mm` must be alive, the entries of which these are the facts be cleared, and
/// their page table lock be held.
#[export]
unsafe extern "C" fn migrc_meet(
    walk: *mut bindings::migrc_walk,
    mm: *mut bindings::migrc_mm,
    facts: *const bindings::migrc_mapping_facts,
) -> bool {
    // SAFETY: By this function's safety requirements.
    let (walk, facts) = unsafe { (walk_of(walk), &*facts) };
    let seen = MappingFacts {
        writable: facts.writable,
        pending: facts.pending,
        shared: facts.shared,
        notifier: facts.notifier,
        geometry: geometry(facts.geometry),
        blocks: facts.blocks,
        merges: facts.merges,
        accessible: facts.accessible,
    };
    let Some(permit) = walk.meet(&seen, facts.mixes) else {
        return false;
    };

    // SAFETY: By this function's safety requirements.
    unsafe { mark(mm, permit) };
    if facts.lost_permission {
        // SAFETY: By this function's safety requirements.
        unsafe { RegisteredMm::from_raw(mm) }.update_credit(|credit| ((), credit.hit()));
    }
    true
}

/// The walk has met a mapping that was flushed when it was cleared.
///
/// # Safety
///
/// As for [`walk_of`].
#[export]
unsafe extern "C" fn migrc_meet_flushed(
    walk: *mut bindings::migrc_walk,
    writable: bool,
    shared: bool,
) {
    // SAFETY: By this function's safety requirements.
    unsafe { walk_of(walk) }.meet_flushed(writable, shared);
}

/// A page of the folio was poisoned since the walk began.
///
/// # Safety
///
/// As for [`walk_of`].
#[export]
unsafe extern "C" fn migrc_meet_poisoned(walk: *mut bindings::migrc_walk) {
    // SAFETY: By this function's safety requirements.
    unsafe { walk_of(walk) }.forbid(Deny::Poisoned);
}

/// Ends the walk; returns whether all flushes were deferred, and counts why not.
///
/// # Safety
///
/// As for [`walk_of`]; `src` must be its folio, which is locked and not mapped any more.
#[export]
unsafe extern "C" fn migrc_end(
    walk: *mut bindings::migrc_walk,
    src: *mut bindings::folio,
    pages: c_ulong,
    mixes: bool,
) -> bool {
    // SAFETY: By this function's safety requirements.
    let walk = unsafe { walk_of(walk) };

    // SAFETY: By this function's safety requirements.
    match walk.end(|| unsafe { c::still_frozen(src) }, mixes) {
        End::Deferred => return true,
        End::Flushed(None) => {}
        End::Flushed(Some(deny)) | End::Mixed(deny) => c::account_denied(deny, pages),
    }
    false
}

/// Adds `mm` to those that a drain flushes.
///
/// # Safety
///
/// `mm` must be alive, and [`migrc_unregister`] be called before it is freed.
#[export]
unsafe extern "C" fn migrc_register(mm: *mut bindings::migrc_mm) {
    // SAFETY: By this function's safety requirements.
    unsafe { MMS.lock().add(mm) };
}

/// Removes `mm` from those that a drain flushes, and waits for a drain that is running. May sleep.
///
/// # Safety
///
/// `mm` must be registered, and no CPU may use its translations any more.
#[export]
unsafe extern "C" fn migrc_unregister(mm: *mut bindings::migrc_mm) {
    // SAFETY: By this function's safety requirements; only drains walk the list, and `mm` is not
    // freed before the one is over that may have met it.
    let removed = unsafe { MMS.lock().remove(mm) };

    // SAFETY: That is what it waits for.
    unsafe { removed.wait(c::wait_for_drain) };
}

/// Flushes what had been deferred in `mm` when there were `deferred` deferrals.
///
/// # Safety
///
/// `mm` must be alive.
#[export]
unsafe extern "C" fn migrc_flush_mm_slow(
    mm: *mut bindings::migrc_mm,
    deferred: u64,
    hook: bindings::migrc_hook,
) {
    // SAFETY: By this function's safety requirements; returns when no TLB holds an entry of `mm`
    // that was there before.
    unsafe { bindings::migrc_arch_flush_mm(mm, hook) };
    // SAFETY: By this function's safety requirements.
    unsafe { RegisteredMm::from_raw(mm) }.cover(Generation::from_raw(deferred));
}

/// How a page that was writable is mapped after its migration; `enum migrc_protection` of C.
///
/// # Safety
///
/// `mm` must be alive, and the facts be of a page in it.
#[export]
unsafe extern "C" fn migrc_protection(
    mm: *mut bindings::migrc_mm,
    facts: *const bindings::migrc_page_facts,
) -> bindings::migrc_protection {
    // SAFETY: By this function's safety requirements.
    let (mm, facts) = unsafe { (RegisteredMm::from_raw(mm), &*facts) };
    let seen = PageFacts {
        area: AreaFacts::from(&facts.area),
        large: facts.large,
        device: facts.device,
        dirty: facts.dirty,
    };

    seen.verdict(|| mm.update_credit(Credit::offer) || facts.pays) as u32
}

/// Counts a page that was written to after it had lost write permission.
///
/// # Safety
///
/// `mm` must be alive.
#[export]
unsafe extern "C" fn migrc_count_miss(mm: *mut bindings::migrc_mm) {
    // SAFETY: By this function's safety requirements.
    unsafe { RegisteredMm::from_raw(mm) }.update_credit(|credit| ((), credit.miss()))
}

/// Whether a page should not get write permission back before it is written to.
///
/// # Safety
///
/// `mm` must be alive, and the facts be of an area in it.
#[export]
unsafe extern "C" fn migrc_keeps_protected(
    mm: *mut bindings::migrc_mm,
    facts: *const bindings::migrc_area_facts,
) -> bool {
    // SAFETY: By this function's safety requirements.
    let (mm, facts) = unsafe { (RegisteredMm::from_raw(mm), &*facts) };

    AreaFacts::from(facts).may_lose_permission()
        && mm.update_credit(|credit| (!credit.is_spent(), credit))
}

/// Takes over the source of a migration whose flushes were deferred.
///
/// If its node then has more pages than [`NodeFacts::limit`] says, all are flushed and released at
/// once. May sleep.
///
/// # Safety
///
/// `folio` must be a completed migration's source, and the caller gives away the reference of its
/// isolation. `task` and `facts` must be valid for reads.
#[export]
unsafe extern "C" fn migrc_add(
    folio: *mut bindings::folio,
    node: c_uint,
    pages: c_ulong,
    task: *const bindings::migrc_caller_facts,
    facts: *const bindings::migrc_node_facts,
) {
    // SAFETY: By this function's safety requirements.
    let (caller, facts) = unsafe { (caller(&*task), NodeFacts::from(&*facts)) };
    // SAFETY: By this function's safety requirements, it is not null.
    let folio = unsafe { NonNull::new_unchecked(folio) };
    // SAFETY: By this function's safety requirements.
    let source = unsafe { MigratedSource::from_raw(folio) };
    let Some(ledger) = NODES.as_ref().and_then(|nodes| nodes.get(node as usize)) else {
        return drain_late(source, pages);
    };

    let mut guard = ledger.lock();
    let added = guard.add(source, pages, c::now);
    let held = match added {
        // SAFETY: Nobody releases it under the lock, as a drain would, which subtracts.
        Ok(_) => unsafe {
            bindings::migrc_account_added(folio.as_ptr(), node, pages, caller.demotes())
        },
        Err(_) => 0,
    };
    // Under the lock: a task that adds the next source counts on it.
    if let Ok(true) = added {
        c::arm();
    }
    drop(guard);

    if let Err(source) = added {
        return drain_late(source, pages);
    }
    // rule: migrc/limit: a node may lack this memory
    // With those that a drain is about to release: it is waited for.
    if held > facts.limit(caller, PAGE_SIZE) {
        c::drain(DrainReason::LIMIT);
    }
}

/// Lets sources into the ledgers from now on, or no longer.
///
/// # Safety
///
/// Always safe to call, but `#[export]` wants what bindgen declares.
#[export]
unsafe extern "C" fn migrc_open(open: bool) {
    for ledger in ledgers() {
        let mut ledger = ledger.lock();

        if open {
            ledger.open();
        } else {
            ledger.close();
        }
    }
}
