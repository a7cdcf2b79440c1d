// SPDX-License-Identifier: GPL-2.0

//! What C does for HVO, behind types that have an owner.

use super::batch::{
    Full,
    Grace,
    Why, //
};
use core::{
    marker::PhantomData,
    ops::Deref,
    ptr::{
        null_mut,
        NonNull, //
    }, //
};
#[cfg(CONFIG_HVO_FAULT_INJECTION)]
use kernel::time::{
    delay::udelay,
    Delta, //
};
use kernel::{
    bindings,
    page::PAGE_SIZE,
    prelude::*,
    safe_c,
    types::NotThreadSafe, //
};

pub(crate) type Run = bindings::hvo_run;
pub(crate) type Params = bindings::hvo_params;

/// Entries of one table that map a part of vmemmap.
///
/// # Invariants
///
/// `hvo_walk()` has found them. They are live, and of what it says.
#[repr(transparent)]
pub(crate) struct Span(bindings::hvo_span);

/// What changes.
///
/// # Invariants
///
/// One of `enum hvo_reason` of C.
#[derive(Clone, Copy)]
pub(crate) struct Reason(bindings::hvo_reason);

/// A size of HugeTLB folios.
///
/// # Invariants
///
/// It exists for as long as the system runs.
#[derive(Clone, Copy)]
pub(crate) struct Size(NonNull<bindings::hstate>);

/// A folio that is being changed.
///
/// # Invariants
///
/// Nobody has a reference to it, and until the change is over only its owner uses it.
#[derive(Clone, Copy)]
pub(crate) struct Folio(NonNull<bindings::folio>);

/// A list of such folios, which lives for `'l`.
///
/// # Invariants
///
/// Only the task that has this, or a copy of it, uses the list.
#[derive(Clone, Copy)]
pub(crate) struct Folios<'l>(NonNull<bindings::list_head>, PhantomData<&'l ()>);

/// When the folios of a batch were frozen.
#[derive(Clone, Copy)]
pub(crate) struct Frozen(c_ulong);

/// A page of struct pages.
///
/// # Invariants
///
/// It is owned, unless it was given to [`Open::displace`](super::batch::Open::displace).
#[repr(transparent)]
pub(crate) struct Page(NonNull<bindings::page>);

/// Such a page that live entries lead to, or will lead to.
///
/// # Invariants
///
/// It stays for as long as `'p`: until these entries change, or its owner drops it.
#[derive(Clone, Copy)]
pub(crate) struct Mapped<'p>(NonNull<bindings::page>, PhantomData<&'p ()>);

/// A page table that no entry leads to.
///
/// # Invariants
///
/// It is owned, and `entry` is the value of an entry that leads to it.
pub(crate) struct Table {
    table: NonNull<bindings::pte_t>,
    entry: u64,
}

/// An entry that maps a block of vmemmap, and the pages behind it.
///
/// # Invariants
///
/// The entry is live. The pages are as those of [`Mapped`].
pub(crate) struct Block {
    entry: *mut u64,
    pages: NonNull<bindings::page>,
}

impl Reason {
    /// Blocks that map vmemmap become page tables.
    pub(crate) const SPLIT: Self = Self(bindings::hvo_reason_HVO_SPLIT);
    /// Folios give their vmemmap back.
    pub(crate) const OPTIMIZE: Self = Self(bindings::hvo_reason_HVO_OPTIMIZE);
    /// Folios get it again.
    pub(crate) const RESTORE: Self = Self(bindings::hvo_reason_HVO_RESTORE);
    /// An optimised folio becomes several smaller ones.
    pub(crate) const DEMOTE: Self = Self(bindings::hvo_reason_HVO_DEMOTE);
}

impl Deref for Span {
    type Target = bindings::hvo_span;

    fn deref(&self) -> &bindings::hvo_span {
        &self.0
    }
}

impl Span {
    /// The pages that the entries lead to.
    pub(crate) fn pages(&self) -> impl Iterator<Item = Mapped<'_>> {
        (0..self.nr as usize).map(|i| {
            // SAFETY: By the invariants, there are so many entries.
            let page = unsafe { bindings::hvo_entry_page(self.entries.add(i)) };

            // INVARIANT: The entries do not change while the span is looked at.
            // SAFETY: Each entry of vmemmap leads to a page.
            Mapped(unsafe { NonNull::new_unchecked(page) }, PhantomData)
        })
    }
}

impl Size {
    /// # Safety
    ///
    /// `h` must be one of the system's.
    pub(crate) unsafe fn from_raw(h: *const bindings::hstate) -> Self {
        // SAFETY: By the safety requirements.
        Self(unsafe { NonNull::new_unchecked(h.cast_mut()) })
    }

    /// For C.
    pub(crate) fn as_ptr(self) -> *mut bindings::hstate {
        self.0.as_ptr()
    }
}

impl Folio {
    /// # Safety
    ///
    /// As the invariants say.
    pub(crate) unsafe fn from_raw(folio: *mut bindings::folio) -> Self {
        // SAFETY: By the safety requirements.
        Self(unsafe { NonNull::new_unchecked(folio) })
    }

    fn as_ptr(self) -> *mut bindings::folio {
        self.0.as_ptr()
    }

    /// Takes it off its list.
    ///
    /// # Safety
    ///
    /// It must be on one.
    pub(crate) unsafe fn del(self) {
        // SAFETY: By the safety requirements.
        unsafe { bindings::hvo_folio_del(self.as_ptr()) };
    }

    /// Marks it as one that gave its vmemmap back, or as one that did not.
    ///
    /// # Safety
    ///
    /// Its entries must be that, or become it before anybody else uses the folio.
    pub(crate) unsafe fn set_optimized(self, optimized: bool) {
        // SAFETY: By the invariants, only its owner uses it.
        unsafe { bindings::hvo_folio_set_optimized(self.as_ptr(), optimized) };
    }

    /// The address of its first struct page.
    pub(crate) fn vmemmap(self) -> usize {
        self.0.as_ptr() as usize
    }
}

impl<'l> Folios<'l> {
    /// # Safety
    ///
    /// `list` must be initialised, and for `'l` only the caller may use it. It must be a list of
    /// folios as [`Folio`] says.
    pub(crate) unsafe fn from_raw(list: *mut bindings::list_head) -> Self {
        // SAFETY: By the safety requirements.
        Self(unsafe { NonNull::new_unchecked(list) }, PhantomData)
    }

    fn as_ptr(self) -> *mut bindings::list_head {
        self.0.as_ptr()
    }

    /// Adds a folio.
    ///
    /// # Safety
    ///
    /// It must be on no list.
    pub(crate) unsafe fn add(self, folio: Folio) {
        // SAFETY: The list is ours, and so is the folio; the rest is by the safety requirements.
        unsafe { bindings::hvo_folio_add(folio.as_ptr(), self.as_ptr()) };
    }

    /// Adds the parts, of size `to`, that a folio of `size` has become. Its head was in `old`.
    ///
    /// # Safety
    ///
    /// The folio must be on no list, and its vmemmap be that of the parts.
    pub(crate) unsafe fn add_parts(self, folio: Folio, old: Option<&Page>, size: Size, to: Size) {
        let old = old.map_or(null_mut(), |page| page.0.as_ptr());

        // SAFETY: As above; nothing leads to the page any more, but it is not freed yet.
        unsafe {
            bindings::hvo_finish_demotion(
                folio.as_ptr(),
                old,
                size.as_ptr(),
                to.as_ptr(),
                self.as_ptr(),
            )
        };
    }

    /// All folios. The one that was given last may have been moved to another list, or deleted.
    pub(crate) fn iter(self) -> impl Iterator<Item = Folio> + Clone + 'l {
        let after = move |folio| {
            // SAFETY: The list is ours.
            let next = unsafe { bindings::hvo_next_folio(self.as_ptr(), folio) };

            NonNull::new(next).map(Folio)
        };
        let mut next = after(null_mut());

        core::iter::from_fn(move || {
            let folio = next?;

            next = after(folio.as_ptr());
            Some(folio)
        })
    }
}

impl Frozen {
    /// They are.
    ///
    /// # Safety
    ///
    /// All folios of the batch must be frozen, and `page_ref_waits` be on.
    pub(crate) unsafe fn now() -> Self {
        Self(grace_period())
    }

    /// Waits until nobody has read a reference count before, and still tries to raise it. May
    /// sleep.
    pub(crate) fn wait(self) -> Grace {
        wait_for_readers(self.0);
        // SAFETY: The folios were frozen before, page_ref.h reads a count and raises it in one RCU
        // read-side section, and a grace period has passed.
        unsafe { Grace::is_over() }
    }
}

impl Page {
    /// A new one, on the node of `folio`. May sleep.
    pub(crate) fn new(folio: Folio) -> Result<Self, Full> {
        // INVARIANT: It was allocated.
        NonNull::new(new_page(folio)).map(Self).ok_or(Full)
    }

    /// The value of an entry that leads there.
    pub(crate) fn entry(&self) -> u64 {
        entry_value(self.mapped(), false)
    }

    /// As what it will be.
    pub(crate) fn mapped(&self) -> Mapped<'_> {
        // INVARIANT: It is borrowed.
        Mapped(self.0, PhantomData)
    }

    /// Copies the content of another page.
    pub(crate) fn copy(&self, from: Mapped<'_>) {
        // SAFETY: This one is owned, and the other one is there.
        unsafe { bindings::copy_page(self.mapped().address(), from.address()) };
    }

    /// Frees pages together, and leaves none.
    pub(crate) fn free(pages: &mut [Option<Self>]) {
        // SAFETY: `Option<Page>` is a pointer, and none is NULL. By the invariant the pages are
        // owned, and nothing leads there.
        unsafe { bindings::hvo_free_pages(pages.as_mut_ptr().cast(), pages.len()) };
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: By the invariant, and nothing leads there.
        unsafe { bindings::hvo_free_pages(&mut self.0.as_ptr(), 1) };
    }
}

impl Mapped<'static> {
    /// The page that all tails of folios of a size share.
    pub(crate) fn shared_tail(size: Size, folio: Folio) -> Result<Self, Why> {
        // INVARIANT: It is never freed.
        NonNull::new(shared_tail(size, folio))
            .map(|page| Self(page, PhantomData))
            .ok_or(Why::NoMemory)
    }
}

impl Mapped<'_> {
    /// The value of a read-only entry that leads there.
    pub(crate) fn read_only_entry(self) -> u64 {
        entry_value(self, true)
    }

    /// Its linear address.
    pub(crate) fn address(self) -> *mut c_void {
        page_address(self)
    }

    /// The same page, for when nothing leads there any more.
    ///
    /// # Safety
    ///
    /// It must be given to [`Open::displace`](super::batch::Open::displace), or forgotten.
    pub(crate) unsafe fn displaced(self) -> Page {
        // INVARIANT: By the safety requirements.
        Page(self.0)
    }
}

impl Table {
    /// A new one that maps the same pages as the block. May sleep.
    pub(crate) fn new(block: &Block) -> Result<Self, Full> {
        let mut entry = 0;

        // SAFETY: A block has as many pages as a table has entries.
        let table = unsafe { bindings::hvo_new_table(block.pages.as_ptr(), &mut entry) };
        let table = NonNull::new(table).ok_or(Full)?;

        // INVARIANT: It was allocated.
        Ok(Self { table, entry })
    }

    /// The value of an entry that leads there.
    pub(crate) fn entry(&self) -> u64 {
        self.entry
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: By the invariant.
        unsafe { bindings::hvo_free_table(self.table.as_ptr()) };
    }
}

impl Block {
    /// The one that `span` is the entry of, if it is that.
    pub(crate) fn of(span: &Span) -> Option<Self> {
        // INVARIANT: `hvo_walk()` says so.
        Some(Self {
            entry: span.entries,
            pages: NonNull::new(span.block)?,
        })
    }

    /// Lets the live entry lead to `table`. The caller flushes.
    ///
    /// # Safety
    ///
    /// The table must map the same, nobody else change the entry, and [`splits_live`] be true.
    pub(crate) unsafe fn split_live(self, table: Table) {
        // SAFETY: CPUs let it change while they use it; the rest is by the safety requirements.
        unsafe { bindings::hvo_split_live(self.entry, table.entry) };
        core::mem::forget(table);
        // SAFETY: Just above.
        unsafe { self.was_split() };
    }

    /// Its pages are mapped one by one now.
    ///
    /// # Safety
    ///
    /// The entry must have been made to lead to a table, and this be called once for it.
    pub(crate) unsafe fn was_split(self) {
        // SAFETY: By the safety requirements.
        unsafe { bindings::hvo_block_split(self.pages.as_ptr()) };
    }
}

/// Addresses whose translations are to be invalidated.
pub(crate) struct Stale {
    start: usize,
    end: usize,
}

impl Stale {
    /// None so far.
    pub(crate) const NONE: Self = Self {
        start: usize::MAX,
        end: 0,
    };

    /// Adds those from `start` up to `end`.
    pub(crate) fn add(&mut self, start: usize, end: usize) {
        self.start = self.start.min(start);
        self.end = self.end.max(end);
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.start >= self.end
    }

    /// Invalidates them in the TLBs of all CPUs.
    pub(crate) fn flush(self) {
        if !self.is_empty() {
            flush(self.start, self.end);
        }
    }
}

/// Each CPU sets the access flag of an entry before it uses it, and none comes up that does not.
///
/// # Invariants
///
/// `hvo_flags_begin()` has said so.
pub(crate) struct Flags(NotThreadSafe);

impl Flags {
    /// Unless there is a CPU that does not, or one is coming up that may not. May sleep.
    pub(crate) fn begin() -> Option<Self> {
        // INVARIANT: It does. Not then_some(), as above.
        flags_begin().then(|| Self(NotThreadSafe))
    }
}

impl Drop for Flags {
    fn drop(&mut self) {
        // SAFETY: By the invariant.
        unsafe { bindings::hvo_flags_end() };
    }
}

safe_c! {
    // SAFETY: Sizes, folios and pages are valid by the invariants of their types, and parameters
    // are a reference. All else are numbers, and the functions are defined for all of them.
    unsafe extern "C" {
        /// How many entries map the struct pages of a folio.
        pub(crate) fn entries(size: Size) -> usize = hvo_entries(size.as_ptr());
        /// Whether folios can be demoted to `size` without their own vmemmap in between.
        pub(crate) fn demotes_to(size: Size) -> bool = hvo_demotes_to(size.as_ptr());
        /// Whether the folio should give its vmemmap back, and did not.
        pub(crate) fn should_optimize(size: Size, folio: Folio) -> bool
            = vmemmap_should_optimize_folio(size.as_ptr(), folio.as_ptr());
        /// Whether it did.
        pub(crate) fn is_optimized(folio: Folio) -> bool = hvo_folio_optimized(folio.as_ptr());
        fn new_page(folio: Folio) -> *mut bindings::page = hvo_new_page(folio.as_ptr());
        fn shared_tail(size: Size, folio: Folio) -> *mut bindings::page
            = hvo_shared_tail(size.as_ptr(), folio.as_ptr());
        fn entry_value(page: Mapped<'_>, read_only: bool) -> u64
            = hvo_entry_value(page.0.as_ptr(), read_only);
        fn page_address(page: Mapped<'_>) -> *mut c_void = hvo_page_address(page.0.as_ptr());
        /// Makes `to` the first page of the struct pages of a folio of `size`, a part of `folio`.
        pub(crate) fn fill_head(to: &Page, size: Size, folio: Folio)
            = hvo_fill_head(to.0.as_ptr(), size.as_ptr(), folio.as_ptr());
        /// Whether a block may become a page table while it is in use.
        pub(crate) fn splits_live() -> bool = hvo_splits_live();
        fn grace_period() -> c_ulong = get_state_synchronize_rcu();
        fn wait_for_readers(since: c_ulong) = hvo_wait_for_readers(since);
        fn flush(start: usize, end: usize) = hvo_flush(start, end);
        fn flags_begin() -> bool = hvo_flags_begin();
        /// Counts a window of entries that changed without a pause, and what it took.
        pub(crate) fn account_flags(
            reason: Reason, entries: usize, clears: usize, flushes: usize, ns: u64
        ) = hvo_account_flags(reason.0, entries, clears, flushes, ns);
        fn get_params(params: &mut Params) = hvo_get_params(params);
    }
}

/// Counts a pause, or an attempt. `event` need not have the reason.
pub(crate) fn account(reason: Reason, event: bindings::hvo_event, success: bool) {
    let event = bindings::hvo_event {
        reason: reason.0,
        ..event
    };

    // SAFETY: The reason is one that C has, and all other values are numbers.
    unsafe { bindings::hvo_account(&event, success) };
}

/// Whether a test has removed a rule.
pub(crate) fn skips(_hook: bindings::hvo_hook) -> bool {
    #[cfg(CONFIG_HVO_FAULT_INJECTION)]
    // SAFETY: Only a file in debugfs writes to it, a word at once.
    return unsafe { (&raw const bindings::hvo_skipped).read_volatile() } & 1 << _hook != 0;
    #[cfg(not(CONFIG_HVO_FAULT_INJECTION))]
    false
}

/// Whether a test wants the next exchange of an entry to fail. Counts them in `_nr`.
pub(crate) fn fails(_nr: &mut u32) -> bool {
    #[cfg(CONFIG_HVO_FAULT_INJECTION)]
    {
        // SAFETY: As above.
        let every = unsafe { (&raw const bindings::hvo_fail_swap).read_volatile() };

        *_nr = _nr.wrapping_add(1);
        every != 0 && *_nr % every == 0
    }
    #[cfg(not(CONFIG_HVO_FAULT_INJECTION))]
    false
}

/// Lets other CPUs use entries that have just been invalidated, for tests.
pub(crate) fn stall() {
    #[cfg(CONFIG_HVO_FAULT_INJECTION)]
    {
        // SAFETY: As above.
        let us = unsafe { (&raw const bindings::hvo_stall_us).read_volatile() };

        // The largest value is for pauses.
        if us != 0 && us != u32::MAX {
            udelay(Delta::from_micros(us.into()));
        }
    }
}

/// Before entries are invalidated. For tests.
pub(crate) fn count() {
    #[cfg(CONFIG_HVO_FAULT_INJECTION)]
    // SAFETY: It interrupts a CPU, which writes to a word of vmemmap that nobody else uses.
    unsafe {
        bindings::hvo_debug_count()
    };
}

/// Between two tries. For tests.
pub(crate) fn look() {
    #[cfg(CONFIG_HVO_FAULT_INJECTION)]
    // SAFETY: It reads struct pages of a HugeTLB page, which are mapped at all times.
    unsafe {
        bindings::hvo_debug_look()
    };
}

/// Makes each CPU have translations of the vmemmap of a folio. For checks.
pub(crate) fn touch(_size: Size, _folio: Folio) {
    #[cfg(CONFIG_HVO_DEBUG)]
    // SAFETY: The folio has struct pages, before and after the change.
    unsafe {
        bindings::hvo_touch(_size.as_ptr(), _folio.as_ptr())
    };
}

/// Checks that no CPU sees what the vmemmap of a folio was before. `old`: the pages that it was, if
/// they are free next.
pub(crate) fn probe(_size: Size, _folio: Folio, _old: Option<&[Option<Page>]>) {
    #[cfg(CONFIG_HVO_DEBUG)]
    // SAFETY: `Option<Page>` is a pointer. Nothing leads to these pages, or nobody else uses them.
    unsafe {
        let (old, nr) = _old.map_or((core::ptr::null(), 0), |old| (old.as_ptr(), old.len()));

        bindings::hvo_probe(_size.as_ptr(), _folio.as_ptr(), old.cast(), nr)
    };
}

/// The error of C.
pub(crate) fn errno(why: Why) -> c_int {
    match why {
        Why::NoMemory => ENOMEM,
        Why::SelfHosted => EOPNOTSUPP,
        Why::Hotplug | Why::Young => EBUSY,
    }
    .to_errno()
}

/// The parameters as they are now.
pub(crate) fn params() -> Params {
    let mut params = Params::default();

    get_params(&mut params);
    params
}

/// Calls `f` for each block and each page table that maps `entries` pages from `start` on, until it
/// fails. May sleep; `f` may allocate.
pub(crate) fn walk<E, F: FnMut(&Span) -> Result<(), E>>(
    start: usize,
    entries: usize,
    f: F,
) -> Result<(), E> {
    struct Call<E, F> {
        f: F,
        error: Option<E>,
    }

    /// # Safety
    ///
    /// `arg` must be a `Call<E, F>` that nobody else uses, `span` a valid one.
    unsafe extern "C" fn call<E, F: FnMut(&Span) -> Result<(), E>>(
        arg: *mut c_void,
        span: *const bindings::hvo_span,
    ) -> c_int {
        // INVARIANT: `hvo_walk()` calls this.
        // SAFETY: By the safety requirements; `Span` is transparent.
        let (call, span) = unsafe { (&mut *arg.cast::<Call<E, F>>(), &*span.cast::<Span>()) };

        call.error = (call.f)(span).err();
        call.error.is_some().into()
    }

    let mut state = Call { f, error: None };
    // SAFETY: `call()` gets what it needs, and is not called any more when this returns.
    let ret = unsafe {
        bindings::hvo_walk(
            start,
            start + entries * PAGE_SIZE,
            Some(call::<E, F>),
            (&raw mut state).cast(),
        )
    };

    debug_assert!(ret >= 0);
    state.error.map_or(Ok(()), Err)
}

/// Calls `f` while no CPU is in a deep idle state. One that first has to wake up would keep the
/// other CPUs waiting, or not stop in time.
pub(crate) fn with_light_sleepers<R>(f: impl FnOnce() -> R) -> R {
    let mut request = bindings::pm_qos_request::default();

    // SAFETY: It stays where it is until it is removed.
    unsafe { bindings::hvo_no_deep_idle(&raw mut request) };
    let result = f();
    // SAFETY: It was added.
    unsafe { bindings::hvo_deep_idle(&raw mut request) };
    result
}
