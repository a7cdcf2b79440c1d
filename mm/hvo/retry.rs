// SPDX-License-Identifier: GPL-2.0

//! A worker for folios that could not be optimised when they came into their pool.
//!
//! It takes those that are free out of the pool, as many as one batch has room for, and puts them
//! back. An allocation that needs one of them meanwhile waits. Folios in use are found once freed.

use super::{
    batch::Why,
    c::{
        self,
        Size, //
    },
    layout::Change,
    optimize,
    plan::{
        Backoff,
        Found, //
    },
    pool::{
        self,
        Held,
        Resize, //
    },
    Effort,
    ENTRIES, //
};
use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

/// See [`Backoff::into_raw`]. Only the worker uses it.
static BACKOFF: Atomic<u32> = Atomic::new(0);

/// Tries it for all folios of a size that are free.
fn retry(size: Size, effort: Effort) -> Found {
    if pool::missing(size) <= 0 {
        return Found::Nothing;
    }
    // A task that resizes the pool, or demotes folios, may hold it for long.
    let Some(resize) = Resize::try_lock(size) else {
        return Found::Later;
    };
    let room = Change::Optimize.room(c::entries(size), usize::MAX, ENTRIES);

    loop {
        // Surplus folios may be gone soon. As many stay as they are, whichever these are.
        let most = room.units.min(pool::missing(size).max(0) as usize);
        let held = match Held::take(&resize, most) {
            Ok(held) => held,
            Err(found) => return found,
        };
        let (changed, why) = optimize(size, held.folios().iter(), effort, room.units);

        match why {
            None => {}
            // That does not change. Those that come back are not the first to be taken again.
            Some(Why::SelfHosted) if changed == 0 && held.has_all() => return Found::Nothing,
            Some(_) if changed == 0 => return Found::Later,
            Some(_) => {}
        }
    }
}

/// Tries it for all sizes. Returns after how many seconds to do so again, or 0 if there is nothing
/// left to do; `first_s` is for after the first time. May sleep.
///
/// # Safety
///
/// Must be called by one task at a time.
#[export]
unsafe extern "C" fn hvo_retry(first_s: c_uint) -> c_uint {
    let backoff = Backoff::from_raw(BACKOFF.load(Relaxed));
    let effort = if backoff.insists() {
        Effort::Insistent
    } else {
        Effort::Optional
    };
    let found = pool::sizes()
        .map(|size| retry(size, effort))
        .fold(Found::Nothing, Found::or);
    let (backoff, seconds) = backoff.after(found, first_s);

    BACKOFF.store(backoff.into_raw(), Relaxed);
    seconds
}
