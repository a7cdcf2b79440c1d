// SPDX-License-Identifier: GPL-2.0

//! HugeTLB vmemmap optimisation where live entries of the kernel's page tables may only change
//! while nobody uses them. See `Documentation/mm/hvo.rst`.
//!
//! As `mm/hugetlb_vmemmap.c`, which calls it, but what changes is collected first, and then changed
//! for many folios at once. Nothing can fail inside of a pause: memory is allocated, values are
//! computed and pages are filled before it.
//!
//! All entry points may sleep. Lock order: [`SPLIT`], then `mmap_lock` of `init_mm`, or the lock of
//! [`fallback`].
//!
//! C headers: [`include/linux/hvo.h`](srctree/include/linux/hvo.h), `mm/hvo/internal.h`

#![crate_name = "hvo"]

pub mod af;
mod auto;
pub mod batch;
mod c;
mod fallback;
pub mod layout;
mod live;
pub mod plan;
mod pool;
mod retry;
mod split;
mod store;
#[cfg(CONFIG_HVO_KUNIT_TEST)]
mod tests;

use auto::{
    Auto,
    Effort, //
};
use batch::{
    Batch,
    Collecting,
    Full,
    Grace,
    Memory,
    Open,
    Outcome,
    Owner,
    Tally,
    Why, //
};
use c::{
    Folio,
    Folios,
    Frozen,
    Mapped,
    Page,
    Params,
    Reason,
    Run,
    Size,
    Span, //
};
use core::ptr::{
    null,
    null_mut, //
};
use fallback::TURN;
use kernel::{
    bindings,
    page::PAGE_SIZE,
    prelude::*,
    sync::global_lock, //
};
use layout::{
    Change,
    To, //
};
use plan::Attempts;
use split::split;
use store::Store;

/// Of messages, as `mm/hugetlb_vmemmap.c` has it.
const __LOG_PREFIX: &[u8] = b"HugeTLB\0";

#[inline(always)]
fn applied_dropped() {
    build_error!("changes were made, and their pages are forgotten");
}

impl From<Full> for Why {
    fn from(_: Full) -> Self {
        Self::NoMemory
    }
}

global_lock! {
    // SAFETY: `hvo_rust_init()` initialises it, before there are HugeTLB pools.
    /// Two tasks must not each bring a page table for the same block, nor free pages of a block
    /// that another task has split, but not yet into pages.
    unsafe(uninit) static SPLIT: Mutex<()> = ();
}

/// Of each page table.
const ENTRIES: usize = PAGE_SIZE / size_of::<u64>();

/// Whether one pause may be for several folios or blocks.
fn batches(params: &Params) -> bool {
    params.strategy != bindings::hvo_strategy_HVO_PERFOLIO
}

/// Changes what was collected, and frees what is not needed any more.
fn commit<M: Memory<Run = Run>>(
    batch: Batch<M, Collecting>,
    grace: impl FnOnce() -> Grace,
    reason: Reason,
    effort: Effort,
    attempts: &mut Attempts,
    touch: impl Fn(&M::Owner),
) -> (Batch<M, Collecting>, Tally) {
    if batch.is_empty() {
        return (batch, Tally::default());
    }
    let batch = batch.prepare(grace());
    let mut ways = Auto {
        reason,
        params: c::params(),
        effort,
        attempts,
    };

    batch.owners().for_each(touch);
    batch.apply(&mut ways).release()
}

/// What is done with folios.
#[derive(Clone, Copy)]
enum Op<'l> {
    Optimize,
    /// Where they go, unless they stay where they are.
    Restore(Option<Folios<'l>>),
    Demote {
        to: Size,
        /// Where the smaller ones go,
        demoted: Folios<'l>,
        /// and folios that are not demoted back to.
        folios: Folios<'l>,
    },
}

impl Op<'_> {
    fn change(self) -> Change {
        match self {
            Self::Optimize => Change::Optimize,
            Self::Restore(_) => Change::Restore,
            Self::Demote { to, .. } => Change::Demote {
                entries: c::entries(to),
            },
        }
    }

    fn reason(self) -> Reason {
        match self {
            Self::Optimize => Reason::OPTIMIZE,
            Self::Restore(_) => Reason::RESTORE,
            Self::Demote { .. } => Reason::DEMOTE,
        }
    }

    /// The page that the tails of `folio` share afterwards, if there will be one.
    fn tail(self, size: Size, folio: Folio) -> Result<Option<Mapped<'static>>, Why> {
        match self {
            Self::Optimize => Mapped::shared_tail(size, folio).map(Some),
            Self::Demote { to, .. } => Mapped::shared_tail(to, folio).map(Some),
            Self::Restore(_) => Ok(None),
        }
    }
}

/// A folio of a batch.
struct Huge<'l> {
    folio: Folio,
    size: Size,
    op: Op<'l>,
}

impl<'l> Huge<'l> {
    /// # Safety
    ///
    /// A folio that goes to another list must be on the one that it came from. Of its vmemmap it
    /// must have what `op` expects.
    unsafe fn new(folio: Folio, size: Size, op: Op<'l>) -> Self {
        match op {
            // The new head is copied from the old one when nobody can change that any more.
            // SAFETY: `end()` takes it back if the entries stay what they are.
            Op::Optimize => unsafe { folio.set_optimized(true) },
            // Nothing of the old head is in the new ones.
            // SAFETY: By the safety requirements.
            Op::Demote { .. } => unsafe { folio.del() },
            Op::Restore(_) => {}
        }
        Self { folio, size, op }
    }
}

impl Owner<Page> for Huge<'_> {
    unsafe fn end(self, outcome: Outcome, old: &[Option<Page>]) {
        let Self { folio, size, op } = self;

        if outcome == Outcome::Changed {
            c::probe(size, folio, matches!(op, Op::Optimize).then_some(old));
        }
        match (outcome, op) {
            (Outcome::Changed, Op::Restore(restored)) => {
                // SAFETY: Its entries are that.
                unsafe { folio.set_optimized(false) };
                if let Some(list) = restored {
                    // SAFETY: It is on the list that it came from, and then on none.
                    unsafe {
                        folio.del();
                        list.add(folio);
                    }
                }
            }
            (Outcome::Changed, Op::Demote { to, demoted, .. }) => {
                // It gave up the page of its head, and no other.
                let head = old.iter().flatten().next();

                // SAFETY: `new()` has taken it off its list, and the change is over.
                unsafe { demoted.add_parts(folio, head, size, to) }
            }
            // SAFETY: Its entries are as they were.
            (Outcome::Untouched(_), Op::Optimize) => unsafe { folio.set_optimized(false) },
            // SAFETY: `new()` has taken it off its list.
            (Outcome::Untouched(_), Op::Demote { folios, .. }) => unsafe { folios.add(folio) },
            (Outcome::Changed, Op::Optimize) | (Outcome::Untouched(_), Op::Restore(_)) => {}
        }
    }
}

/// What a batch of folios is made of.
struct Hugepages<'l>(core::marker::PhantomData<&'l ()>);

impl<'l> Memory for Hugepages<'l> {
    type Owner = Huge<'l>;
    type Page = Page;
    type Run = Run;
    fn free(pages: &mut [Option<Page>]) {
        Page::free(pages);
    }
}

/// Folios that are changed together.
struct Changes<'l> {
    batch: Batch<Hugepages<'l>, Collecting>,
    size: Size,
    op: Op<'l>,
    effort: Effort,
    /// To stop the other CPUs, of all batches.
    attempts: Attempts,
    frozen: Frozen,
    /// Why blocks are left that are not split.
    unsplit: Why,
    /// How many folios were changed so far,
    changed: usize,
    /// and why the last one was not that should have been.
    why: Option<Why>,
}

impl<'l> Changes<'l> {
    /// None yet, at most so many together.
    fn new(size: Size, op: Op<'l>, effort: Effort, folios: usize) -> Result<Self, Why> {
        let folios = if batches(&c::params()) { folios } else { 1 };
        let room = op.change().room(c::entries(size), folios, ENTRIES);

        Ok(Self {
            batch: Batch::new(room)?,
            size,
            op,
            effort,
            attempts: Attempts::default(),
            // SAFETY: Those of a list or the worker's are frozen, with `page_ref_waits` on.
            frozen: unsafe { Frozen::now() },
            unsplit: Why::NoMemory,
            changed: 0,
            why: None,
        })
    }

    /// Adds a folio. If that is not possible, it is as it was.
    fn add(&mut self, folio: Folio) -> Result<(), Why> {
        let Self { size, op, .. } = *self;
        let change = op.change();
        let entries = c::entries(size);
        // SAFETY: All were asked whether they are optimised. Those of a list are on it.
        let mut unit = self.batch.open(unsafe { Huge::new(folio, size, op) });
        let tail = op.tail(size, folio)?.map(Mapped::read_only_entry);

        for _ in 0..change.brings(entries) {
            let page = Page::new(folio)?;

            if let Op::Demote { to, .. } = op {
                c::fill_head(&page, to, folio);
            }
            unit.bring(page)?;
        }

        let mut collect = Collect {
            change,
            index: change.first(),
            next: 0,
            tail: tail.unwrap_or(0),
            last: None,
        };
        let guard = SPLIT.lock();

        c::walk(
            folio.vmemmap() + collect.index * PAGE_SIZE,
            entries - collect.index,
            |span| {
                // It is not split, either.
                if span.self_hosted {
                    return Err(Why::SelfHosted);
                }
                if !span.block.is_null() {
                    return Err(self.unsplit);
                }
                collect.span(&mut unit, span)
            },
        )?;
        drop(guard);
        if let Some(run) = collect.last {
            // SAFETY: As those that `span()` has added.
            unsafe { unit.change(run) }?;
        }
        Ok(unit.close()?)
    }

    /// Changes folios, up to the first that is not possible.
    fn all(mut self, folios: impl Iterator<Item = Folio>) -> Self {
        for folio in folios {
            let added = self.add(folio);

            self.note(added);
            if self.batch.is_full() {
                self = self.commit();
            }
            if self.why.is_some() {
                break;
            }
        }
        // Of an error in between, too: the pages are there.
        self.commit()
    }

    /// Notes why a folio could not be added. What never will be says nothing of the others.
    fn note(&mut self, added: Result<(), Why>) {
        self.why = match (added, self.why) {
            (Ok(()), why) | (Err(Why::SelfHosted), why @ Some(_)) => why,
            (Err(why), _) => Some(why),
        };
    }

    /// Changes the folios that were added. All other folios are as they were.
    fn commit(self) -> Self {
        let optimizes = matches!(self.op, Op::Optimize);
        let grace = || {
            if optimizes {
                return self.frozen.wait();
            }
            // SAFETY: A restoration makes no tails. A demotion makes tails of tails, which have had
            // no struct page of their own since the folio was optimised.
            unsafe { Grace::is_not_needed() }
        };
        let mut attempts = self.attempts;
        let (batch, tally) = commit(
            self.batch,
            grace,
            self.op.reason(),
            self.effort,
            &mut attempts,
            |huge| c::touch(huge.size, huge.folio),
        );

        Self {
            batch,
            attempts,
            changed: self.changed + tally.changed,
            why: tally.why.or(self.why),
            ..self
        }
    }
}

/// Collects the entries of one folio.
struct Collect {
    change: Change,
    /// Of the next entry,
    index: usize,
    /// and of the next one of the new pages.
    next: usize,
    /// The value of an entry that leads to the shared tail.
    tail: u64,
    /// What changes after all others.
    last: Option<Run>,
}

impl Collect {
    /// Collects those of one page table.
    fn span(&mut self, unit: &mut Open<'_, Hugepages<'_>>, span: &Span) -> Result<(), Why> {
        let mut run = Run {
            addr: span.addr,
            entries: span.entries,
            nr: span.nr,
            shift: span.shift,
            group: self.change.group() as u32,
            waits: self.change.waits(self.index + 1),
            ..Default::default()
        };

        for before in span.pages() {
            let index = self.index;
            let entry = self.change.entry(index);

            self.index += 1;
            if entry.frees {
                // SAFETY: It is given away at once, and a page of an unoptimised folio, or a head.
                unsafe { unit.displace(before.displaced()) }?;
            }
            let value = if entry.to == To::SharedTail {
                self.tail
            } else {
                let page = unit.brought(self.next).ok_or(Why::NoMemory)?;

                self.next += 1;
                match entry.to {
                    To::CopiedBefore => page.copy(before),
                    To::CopiedLate => {
                        run.copy_to = page.mapped().address();
                        run.copy_from = before.address();
                    }
                    To::Filled | To::SharedTail => {}
                }
                page.entry()
            };

            if index == 0 {
                let first = Run {
                    nr: 1,
                    value,
                    waits: self.change.waits(0),
                    ..run
                };

                if first.waits {
                    self.last = Some(first);
                } else {
                    // SAFETY: As below; the page was brought.
                    unsafe { unit.change(first) }?;
                }
                run.addr += PAGE_SIZE;
                run.entries = run.entries.wrapping_add(1);
                run.nr -= 1;
                run.copy_to = null_mut();
                run.copy_from = null();
            } else if self.change.has_one_value() {
                run.value = value;
            } else {
                let at = unit.value(value)?;

                if run.values.is_null() {
                    run.values = at;
                }
            }
        }
        if run.nr > 0 {
            // SAFETY: They are live, nobody else changes those of a folio that nobody else has, and
            // they get pages that were brought, or the shared one.
            unsafe { unit.change(run) }?;
        }
        Ok(())
    }
}

/// Each folio for itself: what prevents the change of one need not prevent that of the next.
/// Returns how many were changed, and why there may be some that were not.
fn optimize(
    size: Size,
    folios: impl Iterator<Item = Folio> + Clone,
    effort: Effort,
    together: usize,
) -> (usize, Option<Why>) {
    let mut folios = folios
        .filter(|folio| c::should_optimize(size, *folio))
        .peekable();

    if folios.peek().is_none() {
        return (0, None);
    }
    let mut attempts = Attempts::default();
    let unsplit = split(size, folios.clone(), effort, &mut attempts);
    let mut changes = match Changes::new(size, Op::Optimize, effort, together) {
        Ok(changes) => changes,
        Err(why) => return (0, Some(why)),
    };

    changes.attempts = attempts;
    if let Err(why) = unsplit {
        changes.unsplit = why;
    }
    for folio in folios {
        let mut added = changes.add(folio);

        // The folios that were collected give back memory for this one.
        if added == Err(Why::NoMemory) && !changes.batch.is_empty() {
            changes = changes.commit();
            added = changes.add(folio);
        }
        changes.note(added);
        if changes.batch.is_full() {
            changes = changes.commit();
        }
    }
    let changes = changes.commit();

    (changes.changed, changes.why)
}

/// Returns how many were changed, or why there may be some that were not.
fn restore<'l>(
    size: Size,
    folios: impl Iterator<Item = Folio>,
    restored: Option<Folios<'l>>,
    together: usize,
) -> Result<usize, Why> {
    let mut folios = folios.filter(|folio| c::is_optimized(*folio)).peekable();

    if folios.peek().is_none() {
        return Ok(0);
    }
    let changes = Changes::new(size, Op::Restore(restored), Effort::Mandatory, together)?;
    let changes = changes.all(folios);

    changes.why.map_or(Ok(changes.changed), Err)
}

/// Says that `kept` of `all` folios were not optimised.
fn report(size: Size, kept: usize, all: usize, why: Why) {
    let pages = c::entries(size) * PAGE_SIZE / size_of::<bindings::page>();
    let kb = pages * (PAGE_SIZE / 1024);
    let why = match why {
        Why::NoMemory => "no memory for what replaces them",
        Why::SelfHosted => "they are in the memory that they describe",
        Why::Hotplug => "the other CPUs cannot be stopped because of CPU hotplug",
        Why::Young => "other CPUs use them all the time",
    };

    pr_warn!("{kept} of {all} pages of {kb}kB keep their struct pages: {why}\n");
}

// --- as mm/hugetlb_vmemmap.c calls it ---------------------------------------------------------

/// Prepares the locks. Returns 0.
///
/// # Safety
///
/// Must be called once, before there are HugeTLB pools.
#[export]
unsafe extern "C" fn hvo_rust_init() -> c_int {
    // SAFETY: By the safety requirements.
    unsafe {
        TURN.init();
        SPLIT.init();
    }
    0
}

/// Gives back the vmemmap of folios of size `h`, all of it except one page each. May sleep.
///
/// Those that it cannot be done for are left as they are, and a message says how many and why.
///
/// # Safety
///
/// The folios must be frozen, and on this list only. `page_ref_waits` must be on.
#[export]
unsafe extern "C" fn hvo_optimize_folios(
    h: *const bindings::hstate,
    folios: *mut bindings::list_head,
) {
    // SAFETY: By the safety requirements.
    let (size, folios) = unsafe { (Size::from_raw(h), Folios::from_raw(folios)) };

    if let (_, Some(why)) = optimize(size, folios.iter(), Effort::Optional, usize::MAX) {
        // rule: hvo/counted: nobody would know that some have kept their struct pages, and why
        let kept = folios.iter().filter(|f| c::should_optimize(size, *f));

        report(size, kept.count(), folios.iter().count(), why);
    }
}

/// The same for one that is on no list.
///
/// For one that replaces another. No message says that it failed: the caller migrates a page, or
/// wants its memory, and has no use for that.
///
/// # Safety
///
/// It must be frozen, and `page_ref_waits` be on.
#[export]
unsafe extern "C" fn hvo_optimize_folio(h: *const bindings::hstate, folio: *mut bindings::folio) {
    // SAFETY: By the safety requirements.
    let (size, folio) = unsafe { (Size::from_raw(h), Folio::from_raw(folio)) };

    optimize(size, core::iter::once(folio), Effort::Optional, 1);
}

/// Gives folios their own vmemmap again. May sleep.
///
/// Those that it cannot be done for stay on the list. All other folios go to `restored`, also those
/// that have it. Returns for how many it was done, `-ENOMEM`, or `-EBUSY` if the other CPUs cannot
/// be stopped because of CPU hotplug.
///
/// # Safety
///
/// As for [`hvo_optimize_folios`]; `restored` must be another list.
#[export]
unsafe extern "C" fn hvo_restore_folios(
    h: *const bindings::hstate,
    folios: *mut bindings::list_head,
    restored: *mut bindings::list_head,
) -> c_long {
    // SAFETY: By the safety requirements.
    let (size, folios, restored) = unsafe {
        (
            Size::from_raw(h),
            Folios::from_raw(folios),
            Folios::from_raw(restored),
        )
    };

    for folio in folios.iter().filter(|folio| !c::is_optimized(*folio)) {
        // SAFETY: It is on this list, and then on none.
        unsafe {
            folio.del();
            restored.add(folio);
        }
    }
    match restore(size, folios.iter(), Some(restored), usize::MAX) {
        Ok(changed) => changed as c_long,
        Err(why) => c::errno(why) as c_long,
    }
}

/// The same for one. Returns 0, or an error as of [`hvo_restore_folios`].
///
/// # Safety
///
/// It must be frozen, and `page_ref_waits` be on.
#[export]
unsafe extern "C" fn hvo_restore_folio(
    h: *const bindings::hstate,
    folio: *mut bindings::folio,
) -> c_int {
    // SAFETY: By the safety requirements.
    let (size, folio) = unsafe { (Size::from_raw(h), Folio::from_raw(folio)) };

    restore(size, core::iter::once(folio), None, 1).map_or_else(c::errno, |_| 0)
}

/// Makes smaller folios, of size `dst`, of larger ones without their vmemmap in between. May sleep.
///
/// Only the heads of the smaller folios need pages of struct pages: those of their tails are shared
/// before and after. Folios that it cannot be done for stay on the list.
///
/// # Safety
///
/// As for [`hvo_optimize_folios`]; `demoted` must be another list.
#[export]
unsafe extern "C" fn hvo_demote_folios(
    src: *const bindings::hstate,
    dst: *const bindings::hstate,
    folios: *mut bindings::list_head,
    demoted: *mut bindings::list_head,
) {
    // SAFETY: By the safety requirements.
    let (size, to) = unsafe { (Size::from_raw(src), Size::from_raw(dst)) };
    // SAFETY: By the safety requirements.
    let (folios, demoted) = unsafe { (Folios::from_raw(folios), Folios::from_raw(demoted)) };

    if !c::demotes_to(to) || !batches(&c::params()) {
        return;
    }
    let op = Op::Demote {
        to,
        demoted,
        folios,
    };
    // Without memory they are demoted by way of their own vmemmap.
    let Ok(changes) = Changes::new(size, op, Effort::Optional, usize::MAX) else {
        return;
    };

    changes.all(folios.iter().filter(|folio| c::is_optimized(*folio)));
}
