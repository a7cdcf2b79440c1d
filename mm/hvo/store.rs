// SPDX-License-Identifier: GPL-2.0

//! A vector of fixed room.

use super::batch::Full;
use core::ops::{
    Deref,
    DerefMut, //
};
use kernel::{
    alloc::kvec::DrainAll,
    prelude::*, //
};

/// Pushing neither allocates nor moves what is in it.
pub(crate) struct Store<T> {
    items: KVVec<T>,
    room: usize,
}

impl<T> Store<T> {
    /// With room for so many items. May sleep.
    pub(crate) fn new(room: usize) -> Result<Self, Full> {
        Ok(Self {
            items: KVVec::with_capacity(room, GFP_KERNEL).map_err(|_| Full)?,
            room,
        })
    }

    /// How many items there can be.
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// Adds an item, or gives it back.
    pub(crate) fn push(&mut self, item: T) -> Result<(), T> {
        if self.items.len() == self.room {
            return Err(item);
        }
        self.items.push_within_capacity(item).map_err(|e| e.0)
    }

    /// Where the first item is, or will be. The others follow it.
    pub(crate) fn as_ptr(&self) -> *const T {
        self.items.as_ptr()
    }

    /// Drops all items from the one at `len` on.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.items.truncate(len);
    }

    /// Drops all items.
    pub(crate) fn clear(&mut self) {
        self.items.clear();
    }

    /// Takes all items.
    pub(crate) fn drain_all(&mut self) -> DrainAll<'_, T> {
        self.items.drain_all()
    }
}

impl<T> Deref for Store<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items
    }
}

impl<T> DerefMut for Store<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.items
    }
}
