// SPDX-License-Identifier: GPL-2.0

//! Changes of live kernel page table entries while no other CPU runs.
//!
//! Such a change is break-before-make, and a CPU that uses an entry in between faults. A [`Window`]
//! is applied only with a [`PausedCpus`], which exists only inside of the call that stops the other
//! CPUs. So they cannot be left stopped, and nothing is broken while they run.
//!
//! C headers: [`include/linux/hvo.h`](srctree/include/linux/hvo.h),
//! [`arch/arm64/include/asm/pause.h`](srctree/arch/arm64/include/asm/pause.h)

use crate::{
    bindings,
    error::to_result,
    prelude::*, //
};
use core::{
    marker::PhantomData,
    ops::Range, //
};

/// Proof that all other CPUs are stopped, and that this one has all exceptions masked.
///
/// Valid for as long as the call that gave it; it cannot leave that call, nor this CPU.
///
/// # Invariants
///
/// No other CPU accesses memory as long as it exists, until a panic. All exceptions are masked on
/// this one, because what it is given to must not sleep.
pub struct PausedCpus<'w> {
    _call: PhantomData<&'w mut &'w ()>,
    _cpu: PhantomData<*mut ()>,
}

/// Changes that can be made at once.
///
/// # Examples
///
/// ```
/// use kernel::{
///     bindings,
///     mm::pause::{with_paused, Window}, //
/// };
///
/// let two_pages = bindings::hvo_run {
///     addr: 0x5000,
///     nr: 2,
///     shift: 12,
///     ..Default::default()
/// };
///
/// // SAFETY: It is not applied.
/// let window = unsafe { Window::new(core::slice::from_ref(&two_pages)) };
/// assert_eq!(window.range(), 0x5000..0x7000);
///
/// // SAFETY: There is nothing to change.
/// let nothing = unsafe { Window::new(&[]) };
/// let (result, _) = with_paused(1_000_000_000, |cpus| nothing.apply(cpus));
/// # assert!(matches!(result, Ok(()) | Err(EAGAIN | EBUSY)));
/// ```
///
/// # Invariants
///
/// What its C counterpart points to is valid for `'a`. Each run is of entries of live kernel page
/// tables that map vmemmap, reached by linear addresses, which nothing else changes meanwhile. The
/// new values map valid struct pages. Nothing has references to struct pages that change. Or it is
/// never applied.
pub struct Window<'a> {
    inner: bindings::hvo_window,
    _runs: PhantomData<&'a [bindings::hvo_run]>,
}

// SAFETY: It is a description of memory that belongs to no thread.
unsafe impl Send for Window<'_> {}

impl<'a> Window<'a> {
    /// Changes to make.
    ///
    /// # Safety
    ///
    /// `runs` must be as the invariants say, or the window must not be applied.
    pub unsafe fn new(runs: &'a [bindings::hvo_run]) -> Self {
        let start = runs.iter().map(|run| run.addr).min().unwrap_or(0);
        let end = runs
            .iter()
            .map(|run| run.addr + ((run.nr as usize) << run.shift))
            .max()
            .unwrap_or(0);

        // INVARIANT: By the safety requirements.
        Self {
            inner: bindings::hvo_window {
                runs: runs.as_ptr(),
                nr_runs: runs.len(),
                start,
                end,
            },
            _runs: PhantomData,
        }
    }

    /// The addresses from the first entry to the last one, which are invalidated.
    pub fn range(&self) -> Range<usize> {
        self.inner.start..self.inner.end
    }

    /// Makes the changes.
    #[inline(always)]
    pub fn apply(self, _cpus: &mut PausedCpus<'_>) {
        // SAFETY: By the invariants, and by the proof that no other CPU runs, nor an exception
        // here.
        unsafe { bindings::arch_hvo_apply(&self.inner) };
    }
}

/// How a pause went.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pause {
    /// Nanoseconds until the last CPU had stopped.
    pub ack_ns: u64,
    /// Nanoseconds from then on.
    pub paused_ns: u64,
    /// How many CPUs were asked to stop.
    pub cpus: u32,
    /// One that did not stop in time.
    pub missing: Option<u32>,
}

/// Calls `f` while all other CPUs wait in an interrupt.
///
/// Fails with `EAGAIN` if a CPU does not stop within `timeout_ns`, or with `EBUSY` if a CPU is
/// coming up or going down; `f` is dropped then. May sleep, so the caller must not hold a spinlock.
/// `f` must be short, and must not sleep, allocate, print, or take a lock.
///
/// # Examples
///
/// ```
/// use kernel::mm::pause::with_paused;
///
/// let (result, pause) = with_paused(1_000_000_000, |_cpus| 42);
///
/// match result {
///     Ok(answer) => assert_eq!((answer, pause.missing), (42, None)),
///     // That CPU has not stopped within a second.
///     Err(EAGAIN) => assert!(pause.missing.is_some()),
///     Err(e) => assert_eq!(e, EBUSY),
/// }
/// ```
pub fn with_paused<R>(
    timeout_ns: u64,
    f: impl FnOnce(&mut PausedCpus<'_>) -> R,
) -> (Result<R>, Pause) {
    let mut pause = bindings::arm64_pause {
        timeout_ns,
        ..Default::default()
    };

    // SAFETY: `pause` lives until the other CPUs go on.
    let result = to_result(unsafe { bindings::arm64_pause_cpus(&mut pause) }).map(|()| {
        // INVARIANT: They are paused, since the call above has succeeded.
        let result = f(&mut PausedCpus {
            _call: PhantomData,
            _cpu: PhantomData,
        });

        // SAFETY: As above.
        unsafe { bindings::arm64_resume_cpus(&mut pause) };
        result
    });

    (
        result,
        Pause {
            ack_ns: pause.ack_ns,
            paused_ns: pause.paused_ns,
            cpus: pause.nr_cpus,
            missing: u32::try_from(pause.missing).ok(),
        },
    )
}

/// Calls `f` while all other CPUs wait in a thread of highest priority, as in `stop_machine()`.
///
/// Fails with `EBUSY` if the CPU hotplug lock cannot be had. Otherwise as [`with_paused`], but it
/// has no timeout and takes longer: until each CPU has scheduled that thread. A lock of a stopped
/// CPU cannot block it.
///
/// # Examples
///
/// ```
/// use kernel::mm::pause::with_stopped;
///
/// match with_stopped(|_cpus| 42) {
///     Ok(answer) => assert_eq!(answer, 42),
///     Err(e) => assert_eq!(e, EBUSY),
/// }
/// ```
pub fn with_stopped<R: Send>(f: impl FnOnce(&mut PausedCpus<'_>) -> R + Send) -> Result<R> {
    struct Call<F, R> {
        f: Option<F>,
        result: Option<R>,
    }

    /// # Safety
    ///
    /// Must be called by `arm64_stop_cpus()`. `arg` must be a `Call<F, R>` that nothing else uses.
    unsafe extern "C" fn call<F: FnOnce(&mut PausedCpus<'_>) -> R, R>(arg: *mut c_void) {
        // SAFETY: By the safety requirements.
        let call = unsafe { &mut *arg.cast::<Call<F, R>>() };

        if let Some(f) = call.f.take() {
            // INVARIANT: By the safety requirements: the other CPUs are stopped.
            call.result = Some(f(&mut PausedCpus {
                _call: PhantomData,
                _cpu: PhantomData,
            }));
        }
    }

    fn go<F: FnOnce(&mut PausedCpus<'_>) -> R, R>(mut state: Call<F, R>) -> Result<R> {
        // SAFETY: `call()` gets what it needs, and is not called any more when this returns.
        to_result(unsafe {
            bindings::arm64_stop_cpus(Some(call::<F, R>), (&raw mut state).cast::<c_void>())
        })?;
        state.result.ok_or(EBUSY)
    }

    go(Call {
        f: Some(f),
        result: None,
    })
}
