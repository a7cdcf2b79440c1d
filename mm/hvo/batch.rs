// SPDX-License-Identifier: GPL-2.0

//! A batch of changes, and the owner of each page until it is over.
//!
//! A batch is collected while everything runs, prepared, applied, and released:
//!
//! ```text
//! Collecting --prepare()--> Prepared --apply()--> Applied --release()--> Collecting
//! ```
//!
//! Each unit of it, a folio or a block, ends as [`Outcome::Changed`] or [`Outcome::Untouched`], and
//! its pages with it: after a change the old ones are freed, otherwise the new ones. A batch that
//! is dropped before it was applied leaves everything untouched; one that was applied has to be
//! released, or the kernel does not build.
//!
//! Without the kernel: `verify/tests/hvo_batch.rs` checks the same file on the host.

use super::{
    applied_dropped,
    Store, //
};
use core::mem::forget;

/// What a batch is made of.
pub trait Memory {
    /// What changes as a whole or not at all.
    type Owner: Owner<Self::Page>;
    /// A page. Dropping it frees it.
    type Page;
    /// Adjacent entries of one table.
    type Run;

    /// Frees pages together, and leaves none.
    fn free(pages: &mut [Option<Self::Page>]) {
        pages.iter_mut().for_each(|page| drop(page.take()));
    }
}

/// How the change of a unit ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// All its entries have their new values, and no CPU uses the old ones.
    Changed,
    /// All its entries are as they were.
    Untouched(Why),
}

/// Why a unit was not changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Why {
    /// There is no memory for what replaces it.
    NoMemory,
    /// It is in the memory that it describes.
    SelfHosted,
    /// CPU hotplug prevents that the other CPUs stop.
    Hotplug,
    /// Other CPUs use it all the time.
    Young,
}

/// How far the change of a unit is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Progress {
    /// All its entries are as they were.
    Waiting,
    /// Some of them have their new values.
    Begun,
    /// It is over.
    Ended(Outcome),
}

/// The runs of each unit, of which the last one is where `last` is true.
pub fn units_of<'r, R>(runs: &'r [R], last: &'r [bool]) -> impl Iterator<Item = &'r [R]> {
    let mut rest = runs;

    last.split_inclusive(|last| *last).map(move |unit| {
        let (runs, others) = rest.split_at_checked(unit.len()).unwrap_or((rest, &[]));

        rest = others;
        runs
    })
}

/// What a unit belongs to.
pub trait Owner<P> {
    /// The only end of a unit. `old`: what its entries led to, if they were complete; after a
    /// change these pages are freed next.
    ///
    /// # Safety
    ///
    /// The entries of the unit must be what `outcome` says.
    unsafe fn end(self, outcome: Outcome, old: &[Option<P>]);
}

/// How much a batch can hold.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Room {
    /// Folios or blocks,
    pub units: usize,
    /// the runs of all of them,
    pub runs: usize,
    /// their new values, for runs of entries with different ones,
    pub values: usize,
    /// the pages that they give up,
    pub old: usize,
    /// and those that they need.
    pub new: usize,
}

/// There is no memory, or no room left.
#[derive(Debug)]
pub struct Full;

/// How much there is in the stores of a batch.
#[derive(Clone, Copy, Default)]
struct Ends {
    runs: usize,
    values: usize,
    old: usize,
    new: usize,
}

/// A unit, and where its parts end.
struct Unit<O> {
    owner: O,
    ends: Ends,
}

/// # Invariants
///
/// The units have the pages up to where their parts end. Those in `new` are owned. Those in `old`
/// are what live entries lead to, until the unit has changed.
struct Parts<M: Memory> {
    units: Store<Unit<M::Owner>>,
    runs: Store<M::Run>,
    /// For each run, whether it is the last one of its unit.
    last: Store<bool>,
    /// For each unit, while they change.
    progress: Store<Progress>,
    values: Store<u64>,
    old: Store<Option<M::Page>>,
    new: Store<Option<M::Page>>,
}

/// How many units of a batch ended how.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Tally {
    /// Of one outcome,
    pub changed: usize,
    /// and of the other,
    pub untouched: usize,
    /// which is because of this.
    pub why: Option<Why>,
}

impl<M: Memory> Parts<M> {
    /// Where the parts of the last unit end.
    fn ends(&self) -> Ends {
        self.units.last().map_or(Ends::default(), |unit| unit.ends)
    }

    /// Takes back what belongs to no unit.
    fn roll_back(&mut self) {
        let ends = self.ends();
        let old = self.old.get_mut(ends.old..).unwrap_or_default();

        // Live entries lead to these.
        old.iter_mut().for_each(|page| forget(page.take()));
        self.old.truncate(ends.old);
        self.new.truncate(ends.new);
        self.values.truncate(ends.values);
        self.runs.truncate(ends.runs);
        self.last.truncate(ends.runs);
    }

    /// Ends all units. Those that nobody tried to change are as they were.
    fn end(&mut self) -> Tally {
        let mut tally = Tally::default();
        let mut begin = Ends::default();

        self.roll_back();
        for (index, unit) in self.units.drain_all().enumerate() {
            let (old, new) = (begin.old..unit.ends.old, begin.new..unit.ends.new);
            let old = self.old.get_mut(old).unwrap_or_default();
            let new = self.new.get_mut(new).unwrap_or_default();

            begin = unit.ends;
            let outcome = match self.progress.get(index) {
                Some(Progress::Ended(outcome)) => *outcome,
                _ => Outcome::Untouched(Why::NoMemory),
            };
            // rule: hvo/released: a page that is in use would be freed, or one that is not be lost
            // SAFETY: `Ways::change()` says so, or nobody has tried.
            unsafe { unit.owner.end(outcome, old) };
            match outcome {
                Outcome::Changed => {
                    tally.changed += 1;
                    // Live entries lead to these now.
                    new.iter_mut().for_each(|page| forget(page.take()));
                    M::free(old);
                }
                Outcome::Untouched(why) => {
                    tally.untouched += 1;
                    tally.why = Some(why);
                    old.iter_mut().for_each(|page| forget(page.take()));
                    M::free(new);
                }
            }
        }
        self.runs.clear();
        self.last.clear();
        self.progress.clear();
        self.values.clear();
        self.old.clear();
        self.new.clear();
        tally
    }
}

impl<M: Memory> Drop for Parts<M> {
    fn drop(&mut self) {
        self.end();
    }
}

/// Units can be added.
pub struct Collecting;

/// No task still acts on the reference count that it read of a page that becomes a tail.
pub struct Prepared;

/// The units have ended.
pub struct Applied(());

impl Drop for Applied {
    #[inline(always)]
    fn drop(&mut self) {
        applied_dropped();
    }
}

/// Witness that an RCU grace period has passed since the folios of a batch were frozen.
pub struct Grace(());

impl Grace {
    /// It has.
    ///
    /// # Safety
    ///
    /// A task that read the reference count of a page that becomes a tail, before it was frozen,
    /// must not try to raise it any more.
    pub unsafe fn is_over() -> Self {
        Self(())
    }

    /// It does not matter.
    ///
    /// # Safety
    ///
    /// No page that has a struct page of its own may become a tail.
    pub unsafe fn is_not_needed() -> Self {
        Self(())
    }
}

/// A way to change entries.
///
/// # Safety
///
/// [`Self::change`] must end each unit, as what its entries are then.
pub unsafe trait Ways<R> {
    /// Changes the entries of units, of which none has ended. A unit ends where `last` is true.
    ///
    /// # Safety
    ///
    /// Of each run, what [`Open::change`] says.
    unsafe fn change(&mut self, runs: &[R], last: &[bool], progress: &mut [Progress]);
}

/// Units that are changed together.
#[must_use]
pub struct Batch<M: Memory, S> {
    parts: Parts<M>,
    state: S,
}

impl<M: Memory> Batch<M, Collecting> {
    /// An empty one, with all the memory that it will need for itself.
    pub fn new(room: Room) -> Result<Self, Full> {
        Ok(Self {
            parts: Parts {
                units: Store::new(room.units)?,
                runs: Store::new(room.runs)?,
                last: Store::new(room.runs)?,
                progress: Store::new(room.units)?,
                values: Store::new(room.values)?,
                old: Store::new(room.old)?,
                new: Store::new(room.new)?,
            },
            state: Collecting,
        })
    }

    /// Whether there is no unit.
    pub fn is_empty(&self) -> bool {
        self.parts.units.is_empty()
    }

    /// Whether there is no room for another one.
    pub fn is_full(&self) -> bool {
        self.parts.units.len() == self.parts.units.room()
    }

    /// The runs that were added so far.
    pub fn runs(&self) -> &[M::Run] {
        &self.parts.runs
    }

    /// Begins the next unit.
    pub fn open(&mut self, owner: M::Owner) -> Open<'_, M> {
        // There is something to take back only if the caller has forgotten an `Open`.
        self.parts.roll_back();
        Open {
            owner: Some(owner),
            parts: &mut self.parts,
        }
    }

    /// Nothing is added any more.
    pub fn prepare(mut self, _grace: Grace) -> Batch<M, Prepared> {
        self.parts.roll_back();
        Batch {
            parts: self.parts,
            state: Prepared,
        }
    }
}

impl<M: Memory> Batch<M, Prepared> {
    /// What the units belong to.
    pub fn owners(&self) -> impl Iterator<Item = &M::Owner> {
        self.parts.units.iter().map(|unit| &unit.owner)
    }

    /// Changes the units.
    pub fn apply(mut self, ways: &mut impl Ways<M::Run>) -> Batch<M, Applied> {
        let parts = &mut self.parts;

        // There is room for as many.
        while parts.progress.len() < parts.units.len()
            && parts.progress.push(Progress::Waiting).is_ok()
        {}
        // SAFETY: The callers of `Open::change()` have promised it, and a unit that was not closed
        // has no run here.
        unsafe { ways.change(&parts.runs, &parts.last, &mut parts.progress) };

        Batch {
            parts: self.parts,
            state: Applied(()),
        }
    }
}

impl<M: Memory> Batch<M, Applied> {
    /// Ends all units, and frees the pages that are not needed. The batch can be used again.
    pub fn release(self) -> (Batch<M, Collecting>, Tally) {
        let Self { mut parts, state } = self;

        forget(state);
        let tally = parts.end();

        (
            Batch {
                parts,
                state: Collecting,
            },
            tally,
        )
    }
}

/// A unit that is being collected. If it is dropped instead of closed, it is as if it had never
/// been: its owner is told that it is untouched, and the pages that it brought are freed.
pub struct Open<'b, M: Memory> {
    parts: &'b mut Parts<M>,
    owner: Option<M::Owner>,
}

impl<M: Memory> Open<'_, M> {
    /// Adds a page that entries lead to after the change.
    pub fn bring(&mut self, page: M::Page) -> Result<(), Full> {
        self.parts.new.push(Some(page)).map_err(|_| Full)
    }

    /// The page that was brought to this unit as the `index`th.
    pub fn brought(&self, index: usize) -> Option<&M::Page> {
        self.parts.new.get(self.parts.ends().new + index)?.as_ref()
    }

    /// Adds a page that entries lead to now, and that is freed after the change.
    ///
    /// # Safety
    ///
    /// Nothing but these entries may lead to it. It belongs to the unit only from the change on.
    pub unsafe fn displace(&mut self, page: M::Page) -> Result<(), Full> {
        self.parts.old.push(Some(page)).map_err(|page| {
            forget(page);
            Full
        })
    }

    /// Adds a new value of an entry, and returns where it stays until the unit has ended. Those of
    /// a unit follow each other there.
    pub fn value(&mut self, value: u64) -> Result<*const u64, Full> {
        let at = self.parts.values.len();

        self.parts.values.push(value).map_err(|_| Full)?;
        Ok(self.parts.values.as_ptr().wrapping_add(at))
    }

    /// Adds entries to change.
    ///
    /// # Safety
    ///
    /// They must be live, and until the batch is released nobody else may change them. What they
    /// get must lead to pages that were brought, or are shared for good.
    pub unsafe fn change(&mut self, run: M::Run) -> Result<(), Full> {
        self.parts.runs.push(run).map_err(|_| Full)?;
        self.parts.last.push(false).map_err(|_| {
            self.parts.runs.truncate(self.parts.last.len());
            Full
        })
    }

    /// The unit is complete. Without any entry that changes it is not, and is taken back, too.
    pub fn close(mut self) -> Result<(), Full> {
        let ends = Ends {
            runs: self.parts.runs.len(),
            values: self.parts.values.len(),
            old: self.parts.old.len(),
            new: self.parts.new.len(),
        };
        let begin = self.parts.ends().runs;
        let last = self.parts.last.get_mut(begin..).and_then(|l| l.last_mut());

        *last.ok_or(Full)? = true;
        if let Some(owner) = self.owner.take() {
            // INVARIANT: The pages that were added are those of the unit.
            self.parts
                .units
                .push(Unit { owner, ends })
                .map_err(|unit| {
                    self.owner = Some(unit.owner);
                    Full
                })?;
        }
        Ok(())
    }
}

impl<M: Memory> Drop for Open<'_, M> {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take() {
            // rule: hvo/released: pages that were brought would be lost
            // SAFETY: Nobody has tried to change it.
            unsafe { owner.end(Outcome::Untouched(Why::NoMemory), &[]) };
            self.parts.roll_back();
        }
    }
}
