// SPDX-License-Identifier: GPL-2.0

//! The model of `mkclean_batch.rs`: the steps of each who changes a page, its PTE, or a TLB.

use Op::{Clean, Flush, Lower, Nothing, Raise, TryLock, Unlock};

pub const PAGES: usize = 2;

/// The task that calls fsync(): what was stored before is noted for it. The other one is a flusher.
pub const SYNC: usize = 0;
pub const TASKS: usize = 2;

/// The page that is dropped, and unmapped.
pub const DROPPED: usize = 0;

/// What `__folio_batch_mkclean()` does, one after the other, each for all folios.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Op {
    /// Only those that are dirty and that nobody else has.
    TryLock,
    /// `inc_tlb_flush_pending()`
    Raise,
    Clean,
    Flush,
    /// `dec_tlb_flush_pending()`
    Lower,
    /// Marks those dirty that had a PTE to clean.
    Unlock,
    Nothing,
}

pub const OPS: usize = 6;

/// In this order.
pub const BATCH: [Op; OPS] = [TryLock, Raise, Clean, Flush, Lower, Unlock];

#[derive(Clone, Copy)]
pub struct Rules {
    pub batch: [Op; OPS],
    /// Who cleans several folios at once.
    pub batches: [bool; TASKS],
    /// The batch leaves alone what is not dirty,
    pub dirty: bool,
    /// and marks dirty what it has cleaned.
    pub marked: bool,
    /// Those of stock: `folio_mkclean()` flushes,
    pub mkclean: bool,
    /// a write fault takes the folio lock,
    pub mkwrite: bool,
    /// a zap flushes a dirty PTE before it drops the page table lock,
    pub force: bool,
    /// and all others before it frees the page.
    pub gather: bool,
    /// The CPU sets the dirty bit of a PTE that is not writable any more, as those of x86 may that
    /// have no shadow stacks.
    pub blind: bool,
    /// There are mprotect() and `MADV_DONTNEED`.
    pub others: bool,
}

pub const ALL: Rules = Rules {
    batch: BATCH,
    batches: [true, false],
    dirty: true,
    marked: true,
    mkclean: true,
    mkwrite: true,
    force: true,
    gather: true,
    blind: false,
    others: true,
};

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Pte {
    pub writable: bool,
    pub dirty: bool,
}

pub const CLEAN: Pte = Pte {
    writable: false,
    dirty: false,
};
pub const WRITTEN: Pte = Pte {
    writable: true,
    dirty: true,
};

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Tlb {
    Nothing,
    ReadOnly,
    /// Before a store, the CPU has to set the dirty bit of the PTE.
    Writable,
    /// It does not look at the PTE.
    Dirty,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Holder {
    Task(usize),
    Fault,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Page {
    pub pte: Option<Pte>,
    pub tlb: Tlb,
    /// The folio is.
    pub dirty: bool,
    pub lock: Option<Holder>,
    /// There is a store that is not on the disk,
    pub unsaved: bool,
    /// and there was one when fsync() began.
    pub wanted: bool,
}

/// What a task that writes to disk does next, to which page.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Step {
    Begin,
    /// The place in the order, what that is, and the page.
    Batch(usize, Op, usize),
    /// Stock's writeback of each folio: `folio_clear_dirty_for_io()` from the second to the third.
    Lock(usize),
    Mkclean(usize),
    ClearDirty(usize),
    Write(usize),
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Task {
    pub step: Step,
    /// By the batch, to be cleaned,
    pub taken: [bool; PAGES],
    /// and what had a PTE to clean.
    pub cleaned: [bool; PAGES],
}

/// A write fault. The mmap lock is held for reading all the while.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Fault {
    Nothing,
    /// `page_mkwrite()`
    Mkwrite(usize),
    /// `finish_mkwrite_fault()`
    Finish(usize),
    /// `fault_dirty_shared_page()`
    Dirty(usize),
}

/// `mprotect(PROT_READ)`, with the mmap lock for writing.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Protect {
    Writable,
    /// The next page, and whether a PTE was changed that needs a flush.
    Change(usize, bool),
    Returned,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Zap {
    Mapped,
    /// The PTE is gone, and the flush may be yet to come: of `MADV_DONTNEED`,
    Dropped,
    /// and of `munmap()`.
    Unmapped,
    Freed,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct State {
    pub pages: [Page; PAGES],
    pub tasks: [Task; TASKS],
    pub fault: Fault,
    pub protect: Protect,
    pub zap: Zap,
    /// `tlb_flush_pending`, without that of those who hold the mmap lock.
    pub pending: u8,
    /// There was a store after `mprotect()` had returned,
    pub late: bool,
    /// and one to a page that was free.
    pub freed: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Action {
    /// The CPU walks to a page,
    Fill(usize),
    /// forgets that it did,
    Evict(usize),
    /// or stores.
    Store(usize),
    /// It takes a write fault,
    Faults(usize),
    FaultGoes(Fault),
    /// or one for reading: the page was dropped.
    Reads,
    Goes(usize, Step),
    Protects,
    ProtectGoes(Protect),
    Drops,
    Unmaps,
    Gathers,
}

impl Op {
    const fn is_once(self) -> bool {
        matches!(self, Raise | Lower | Nothing)
    }
}

impl Page {
    /// Whether there is anything to clean.
    fn clean(&mut self) -> bool {
        match self.pte {
            Some(pte) if pte != CLEAN => {
                self.pte = Some(CLEAN);
                true
            }
            _ => false,
        }
    }

    /// A store, which may have to set the dirty bit first. `None`: a fault.
    pub fn store(&mut self, blind: bool) -> Option<()> {
        match (self.tlb, self.pte) {
            (Tlb::Dirty, _) => {}
            (Tlb::Writable, Some(pte)) if pte.writable || blind => {
                self.pte = Some(Pte { dirty: true, ..pte });
                self.tlb = Tlb::Dirty;
            }
            _ => return None,
        }
        self.unsaved = true;
        Some(())
    }

    /// The CPU can store, and nothing but the lock of the folio says so.
    pub fn owes(&self) -> bool {
        self.tlb == Tlb::Dirty && matches!(self.lock, Some(Holder::Task(_)))
    }
}

impl State {
    /// One step of a task. `None`: it has to wait.
    pub fn goes(&mut self, rules: &Rules, who: usize) -> Option<()> {
        let task = &mut self.tasks[who];
        let pages = &mut self.pages;
        let next_folio = |nr| match nr + 1 {
            PAGES => Step::Begin,
            other => Step::Lock(other),
        };

        task.step = match task.step {
            Step::Begin => {
                if who == SYNC {
                    pages.iter_mut().for_each(|page| page.wanted = page.unsaved);
                }
                match rules.batches[who] {
                    true => Step::Batch(0, rules.batch[0], 0),
                    false => Step::Lock(0),
                }
            }
            Step::Batch(place, op, nr) => {
                let page = &mut pages[nr];
                let has_lock = page.lock == Some(Holder::Task(who));

                match op {
                    TryLock => {
                        let takes = page.lock.is_none() && (page.dirty || !rules.dirty);

                        if takes && page.pte.is_some() {
                            page.lock = Some(Holder::Task(who));
                            task.taken[nr] = true;
                        }
                    }
                    Raise => self.pending += 1,
                    Clean => {
                        task.cleaned[nr] = std::mem::take(&mut task.taken[nr]) && page.clean();
                    }
                    Flush if task.cleaned[nr] => page.tlb = Tlb::Nothing,
                    Lower => self.pending -= 1,
                    Unlock if has_lock => {
                        page.dirty |= rules.marked && task.cleaned[nr];
                        page.lock = None;
                    }
                    Flush | Unlock | Nothing => {}
                }
                match (nr + 1 == PAGES || op.is_once(), place + 1 == OPS) {
                    (false, _) => Step::Batch(place, op, nr + 1),
                    (_, false) => Step::Batch(place + 1, rules.batch[place + 1], 0),
                    _ => {
                        task.cleaned = [false; PAGES];
                        Step::Lock(0)
                    }
                }
            }
            Step::Lock(nr) => {
                let page = &mut pages[nr];

                if page.lock.is_some() {
                    return None;
                }
                if page.dirty {
                    page.lock = Some(Holder::Task(who));
                    Step::Mkclean(nr)
                } else {
                    next_folio(nr)
                }
            }
            Step::Mkclean(nr) => {
                let page = &mut pages[nr];

                if page.clean() {
                    page.dirty = true;
                    if rules.mkclean {
                        page.tlb = Tlb::Nothing;
                    }
                }
                Step::ClearDirty(nr)
            }
            Step::ClearDirty(nr) => {
                pages[nr].dirty = false;
                Step::Write(nr)
            }
            Step::Write(nr) => {
                let page = &mut pages[nr];

                page.unsaved = false;
                page.wanted = false;
                page.lock = None;
                next_folio(nr)
            }
        };
        Some(())
    }

    /// One step of a write fault. `None`: it has to wait.
    pub fn fault_goes(&mut self, rules: &Rules) -> Option<()> {
        self.fault = match self.fault {
            Fault::Nothing => return None,
            Fault::Mkwrite(nr) => {
                let page = &mut self.pages[nr];

                if rules.mkwrite {
                    if page.lock.is_some() {
                        return None;
                    }
                    page.lock = Some(Holder::Fault);
                }
                page.dirty = true;
                Fault::Finish(nr)
            }
            Fault::Finish(nr) => {
                let page = &mut self.pages[nr];

                // Else the fault is taken again.
                if page.pte.is_some() {
                    page.pte = Some(WRITTEN);
                }
                Fault::Dirty(nr)
            }
            Fault::Dirty(nr) => {
                let page = &mut self.pages[nr];

                page.dirty = true;
                if rules.mkwrite {
                    page.lock = None;
                }
                Fault::Nothing
            }
        };
        Some(())
    }

    pub fn protect_goes(&mut self) -> Option<()> {
        self.protect = match self.protect {
            Protect::Change(PAGES, changed) => {
                if changed || self.pending > 0 {
                    self.pages
                        .iter_mut()
                        .for_each(|page| page.tlb = Tlb::Nothing);
                }
                Protect::Returned
            }
            Protect::Change(nr, changed) => {
                let was_writable = match &mut self.pages[nr].pte {
                    Some(pte) => std::mem::take(&mut pte.writable),
                    None => false,
                };

                Protect::Change(nr + 1, changed || was_writable)
            }
            Protect::Writable | Protect::Returned => return None,
        };
        Some(())
    }

    /// `zap_pte_range()` of a page.
    pub fn zap(&mut self, rules: &Rules, next: Zap) -> Option<()> {
        let page = &mut self.pages[DROPPED];

        if page.pte.take().is_some_and(|pte| pte.dirty) {
            page.dirty = true;
            if rules.force {
                page.tlb = Tlb::Nothing;
            }
        }
        self.zap = next;
        Some(())
    }

    /// `tlb_finish_mmu()`
    pub fn gathers(&mut self, rules: &Rules) -> Option<()> {
        if rules.gather {
            self.pages[DROPPED].tlb = Tlb::Nothing;
        }
        self.zap = match self.zap {
            Zap::Dropped => Zap::Mapped,
            Zap::Unmapped => Zap::Freed,
            Zap::Mapped | Zap::Freed => return None,
        };
        Some(())
    }

    /// Whether the mmap lock can be had for reading.
    pub fn readable(&self) -> bool {
        matches!(self.protect, Protect::Writable | Protect::Returned)
    }

    /// And for writing. munmap() lets others read while it unmaps.
    pub fn lockable(&self) -> bool {
        self.readable()
            && self.fault == Fault::Nothing
            && matches!(self.zap, Zap::Mapped | Zap::Freed)
    }

    pub fn is_mapped(&self, nr: usize) -> bool {
        nr != DROPPED || matches!(self.zap, Zap::Mapped | Zap::Dropped)
    }
}
