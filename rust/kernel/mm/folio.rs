// SPDX-License-Identifier: GPL-2.0

//! Ownership of folios that were migrated away.
//!
//! The source of a migration is a [`MigratedSource`]: nothing maps it any more, and the value is
//! the reference that keeps it from being freed. It goes into a [`FolioChain`], and C releases a
//! chain once no TLB leads to its folios. Safe code cannot free one earlier; a chain that is
//! dropped leaks.

use crate::{
    bindings,
    prelude::*, //
};
use core::{
    mem::{
        replace,
        ManuallyDrop, //
    },
    ptr::{
        self,
        NonNull, //
    }, //
};

/// The source of a completed migration.
///
/// Dropping it is a build error, unless the optimiser can show that it does not happen.
///
/// # Examples
///
/// ```
/// use core::{mem::forget, ptr::NonNull};
/// use kernel::{bindings, mm::folio::MigratedSource, page::Page};
///
/// let page = Page::alloc_page(GFP_KERNEL)?;
/// let folio = NonNull::new(page.as_ptr()).ok_or(ENOMEM)?.cast();
///
/// forget(page);
/// // SAFETY: A page of order 0 is a folio, it is on no list and nobody maps it. The reference was
/// // the page's.
/// let source = unsafe { MigratedSource::from_raw(folio) };
/// // SAFETY: Nothing was ever mapped.
/// let raw = unsafe { source.into_raw() };
///
/// assert_eq!(raw, folio);
/// // SAFETY: The reference is ours again.
/// unsafe { bindings::__free_pages(raw.cast().as_ptr(), 0) };
/// # Ok::<(), Error>(())
/// ```
///
/// # Invariants
///
/// The folio is off every list, not mapped, and this is the reference that its isolation took.
#[must_use = "the folio needs an owner"]
pub struct MigratedSource(NonNull<bindings::folio>);

impl MigratedSource {
    /// Takes over the reference to a source.
    ///
    /// # Safety
    ///
    /// `folio` must be valid, off every list and unmapped, and the caller gives away a reference.
    #[inline(always)]
    pub unsafe fn from_raw(folio: NonNull<bindings::folio>) -> Self {
        // INVARIANT: By the safety requirements.
        Self(folio)
    }

    /// Gives the reference to the caller.
    ///
    /// # Safety
    ///
    /// It must not be released before no TLB leads to the folio.
    #[inline(always)]
    pub unsafe fn into_raw(self) -> NonNull<bindings::folio> {
        ManuallyDrop::new(self).0
    }
}

impl Drop for MigratedSource {
    #[inline(always)]
    fn drop(&mut self) {
        build_error!("the source of a migration is dropped");
    }
}

/// Sources, linked through the `next` of their `lru`, which nothing else uses.
///
/// # Examples
///
/// ```
/// # use core::{mem::forget, ptr::NonNull};
/// # use kernel::{bindings, page::Page};
/// use kernel::mm::folio::{FolioChain, MigratedSource};
///
/// # let page = Page::alloc_page(GFP_KERNEL)?;
/// # let folio = NonNull::new(page.as_ptr()).ok_or(ENOMEM)?.cast();
/// # forget(page);
/// # // SAFETY: A page of order 0 is a folio, it is on no list and nobody maps it. The reference
/// # // was the page's.
/// # let source = unsafe { MigratedSource::from_raw(folio) };
/// let mut ledger = FolioChain::new();
/// let mut drained = FolioChain::new();
///
/// ledger.push(source);
/// assert!(!ledger.is_empty());
/// drained.append(ledger);
///
/// // SAFETY: Nothing was ever mapped.
/// let first = unsafe { drained.into_raw() };
/// assert_eq!(first, folio.as_ptr());
/// # // SAFETY: The reference is ours again.
/// # unsafe { bindings::__free_pages(first.cast(), 0) };
/// # Ok::<(), Error>(())
/// ```
///
/// # Invariants
///
/// `first` leads to `last` by way of sources that are the chain's own, and `last` to nothing; or
/// both are null.
pub struct FolioChain {
    first: *mut bindings::folio,
    last: *mut bindings::folio,
}

// SAFETY: The folios are the chain's own, and belong to no CPU and no task.
unsafe impl Send for FolioChain {}

impl FolioChain {
    /// An empty chain.
    #[inline(always)]
    pub const fn new() -> Self {
        // INVARIANT: Empty.
        Self {
            first: ptr::null_mut(),
            last: ptr::null_mut(),
        }
    }

    /// The link of a folio.
    ///
    /// # Safety
    ///
    /// `folio` must be valid and owned by the caller.
    #[inline(always)]
    unsafe fn next(folio: *mut bindings::folio) -> *mut *mut bindings::folio {
        // SAFETY: By the safety requirements; no reference is made, and of the union's members
        // `lru` is the one in use.
        let lru = unsafe {
            &raw mut (*folio)
                .__bindgen_anon_1
                .__bindgen_anon_1
                .__bindgen_anon_1
                .lru
        };

        // SAFETY: As above.
        unsafe { &raw mut (*lru).next }.cast()
    }

    /// Adds a source.
    #[inline(always)]
    pub fn push(&mut self, source: MigratedSource) {
        let folio = ManuallyDrop::new(source).0.as_ptr();

        // Those that walk over page frames look at this word at any time.
        // SAFETY: It was a source, which is ours now.
        unsafe { Self::next(folio).write_volatile(self.first) };
        if self.first.is_null() {
            self.last = folio;
        }
        // INVARIANT: It leads to what was the first.
        self.first = folio;
    }

    /// Adds all of another chain.
    #[inline(always)]
    pub fn append(&mut self, other: Self) {
        let (first, last) = (other.first, other.last);

        if first.is_null() {
            return;
        }
        // SAFETY: By the type invariants, it is the chain's own.
        unsafe { Self::next(last).write_volatile(self.first) };
        if self.first.is_null() {
            self.last = last;
        }
        // INVARIANT: `last` leads to what was the first.
        self.first = first;
    }

    /// Whether there is none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.first.is_null()
    }

    /// Gives all of them to the caller; null if there are none.
    ///
    /// # Safety
    ///
    /// They must not be released before no TLB leads to them.
    #[inline(always)]
    pub unsafe fn into_raw(mut self) -> *mut bindings::folio {
        self.last = ptr::null_mut();
        replace(&mut self.first, ptr::null_mut())
    }
}

impl Default for FolioChain {
    fn default() -> Self {
        Self::new()
    }
}
