// SPDX-License-Identifier: GPL-2.0

//! The pools of HugeTLB folios, as the worker sees them.

use super::{
    c::{
        Folios,
        Size, //
    },
    plan::Found, //
};
use core::ptr::NonNull;
use kernel::{
    bindings,
    prelude::*,
    safe_c,
    types::NotThreadSafe, //
};

/// The right to change how many folios there are of a size.
///
/// # Invariants
///
/// This task holds the `resize_lock` of the size.
pub(crate) struct Resize(Size, NotThreadSafe);

impl Resize {
    /// Takes it, unless another task has it.
    pub(crate) fn try_lock(size: Size) -> Option<Self> {
        // INVARIANT: It does now. Not then_some(), which would make one that is dropped, and so
        // unlocks, where another task has it.
        try_resize(size).then(|| Self(size, NotThreadSafe))
    }
}

impl Drop for Resize {
    fn drop(&mut self) {
        // SAFETY: By the invariant.
        unsafe { bindings::hvo_end_resize(self.0.as_ptr()) };
    }
}

/// Free folios that were taken out of their pool, and are put back when this is dropped.
///
/// # Invariants
///
/// `folios` is the list of `hvo_hold_begin()`.
pub(crate) struct Held<'r> {
    folios: Folios<'r>,
    all: bool,
    _resize: &'r Resize,
}

impl<'r> Held<'r> {
    /// Takes up to `most` folios that should be optimised; if there are none, says whether there
    /// may be some later. May sleep.
    pub(crate) fn take(resize: &'r Resize, most: usize) -> Result<Self, Found> {
        // SAFETY: C keeps one list, and its mutex keeps other tasks off it until `hvo_hold_end()`.
        let folios = unsafe { Folios::from_raw(hold_begin()) };
        // INVARIANT: Just above.
        let mut held = Self {
            folios,
            all: true,
            _resize: resize,
        };
        let size = resize.0.as_ptr();
        let mut none = Found::Nothing;
        let mut taken = 0;

        'nodes: for node in 0..nodes() {
            // SAFETY: There are so many nodes.
            for _ in 0..unsafe { bindings::hvo_free_folios(size, node) } {
                if taken == most {
                    held.all = false;
                    break 'nodes;
                }
                // SAFETY: As above, and `held` is what C holds them with.
                match unsafe { bindings::hvo_hold_next(size, node) } {
                    bindings::hvo_hold_HVO_HOLD_TAKEN => taken += 1,
                    bindings::hvo_hold_HVO_HOLD_LATER => {
                        held.all = false;
                        none = Found::Later;
                    }
                    _ => {}
                }
            }
        }
        if taken > 0 {
            Ok(held)
        } else {
            Err(none)
        }
    }

    /// Whether no other free ones should be optimised.
    pub(crate) fn has_all(&self) -> bool {
        self.all
    }

    /// The folios.
    pub(crate) fn folios(&self) -> Folios<'_> {
        self.folios
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // SAFETY: By the invariants: `hvo_hold_begin()` was called.
        unsafe { bindings::hvo_hold_end() };
    }
}

/// All sizes of HugeTLB folios.
pub(crate) fn sizes() -> impl Iterator<Item = Size> {
    let raw = (0..).map_while(|index| NonNull::new(size_at(index)));

    // SAFETY: It is one of the system's.
    raw.map(|size| unsafe { Size::from_raw(size.as_ptr()) })
}

safe_c! {
    // SAFETY: Sizes are valid by the invariant of their type, and there is no other pointer.
    unsafe extern "C" {
        fn size_at(index: c_uint) -> *mut bindings::hstate = hvo_size_at(index);
        fn nodes() -> c_uint = hvo_nodes();
        fn try_resize(size: Size) -> bool = hvo_try_resize(size.as_ptr());
        fn hold_begin() -> *mut bindings::list_head = hvo_hold_begin();
        /// How many folios of a size should be optimised and are not, but for surplus ones.
        pub(crate) fn missing(size: Size) -> isize = hvo_missing_folios(size.as_ptr());
    }
}
