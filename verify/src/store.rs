// SPDX-License-Identifier: GPL-2.0

//! Stands where the kernel's crate `hvo` has its store: a vector of fixed room.

use super::batch::Full;
use std::{
    ops::{Deref, DerefMut},
    vec::Drain,
};

/// Pushing never moves what is in it.
pub struct Store<T> {
    items: Vec<T>,
    room: usize,
}

impl<T> Store<T> {
    pub fn new(room: usize) -> Result<Self, Full> {
        Ok(Self {
            items: Vec::with_capacity(room),
            room,
        })
    }

    pub fn room(&self) -> usize {
        self.room
    }

    pub fn push(&mut self, item: T) -> Result<(), T> {
        if self.items.len() == self.room {
            return Err(item);
        }
        self.items.push(item);
        Ok(())
    }

    pub fn as_ptr(&self) -> *const T {
        self.items.as_ptr()
    }

    pub fn truncate(&mut self, len: usize) {
        self.items.truncate(len);
    }

    pub fn clear(&mut self) {
        self.items.clear();
    }

    pub fn drain_all(&mut self) -> Drain<'_, T> {
        self.items.drain(..)
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
