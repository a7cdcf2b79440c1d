// SPDX-License-Identifier: GPL-2.0

//! What migrc takes care of, and how much may happen; the pages, the processes, the TLBs and the
//! drains. `steps.rs` has what each of them may do, and what must hold.

use crate::explore;

mod steps;

const PAGES: usize = 4;
const CPUS: usize = 2;
/// A parent and its child, or two that share memory.
const MMS: usize = 2;
/// Whoever finds a reason to drain.
const DRAINS: usize = 2;

/// What the kernel takes care of.
#[derive(Clone, Copy)]
pub struct Rules {
    /// Only what is read-only may be deferred.
    pub read_only: bool,
    /// Nothing is deferred in an address space whose permissions are being taken away.
    pub flush_pending: bool,
    /// A fork counts as that.
    pub fork: bool,
    /// If one of the mappings can be written to without a fault, all of them are flushed before the
    /// copy.
    pub mixed: bool,
    /// Only a source that was migrated away may enter the ledger.
    pub undo: bool,
    /// A write fault that makes an entry writable flushes first.
    pub wp_reuse: bool,
    /// One that maps a copy does, too; upstream's rule.
    pub wp_copy: bool,
    /// `mprotect()` flushes before it makes an entry writable.
    pub mprotect: bool,
    /// Whoever takes a page table entry away flushes, also if it is a migration entry.
    pub zap: bool,
    /// A fault that maps what reclaim has unmapped flushes before it makes the entry writable.
    pub swap_in: bool,
    /// What reclaim has unmapped is not migrated before reclaim has flushed; upstream's rule.
    pub isolated: bool,
    /// A debugger's write to read-only memory flushes first.
    pub force: bool,
    /// It has a reference by then, and what is referenced does not move; upstream's rule.
    pub reference: bool,
    /// An address space is registered with its first deferral, before the source has moved.
    pub register: bool,
    /// A drain takes the pages first and flushes then.
    pub splice: bool,
    /// A flush retires what was deferred before it began, and nothing else.
    pub snapshot: bool,
    /// One drain at a time.
    pub mutex: bool,
    /// An address space takes itself out of the list before it is freed.
    pub exit: bool,
    /// It waits for a drain that may be at it.
    pub exit_waits: bool,
    /// It does so after its page table was torn down: until then it may come to be registered.
    pub exit_last: bool,
    pub limits: Limits,
    /// CPUs are alike: states that differ in nothing but which is which are one.
    pub alike: bool,
}

/// How much may happen.
#[derive(Clone, Copy)]
pub struct Limits {
    /// How many writes there are, each of a different content; what was never written is 0.
    writes: u8,
    migrations: u8,
    reclaims: u8,
    /// Whether there is a debugger.
    debugger: bool,
    /// Whether there may be a child.
    forks: bool,
    /// Instead of anonymous memory: two processes share it, the second may write.
    shared: bool,
    /// Whether a migration may take write permission away.
    readmostly: bool,
}

pub const ALL: Rules = Rules {
    read_only: true,
    flush_pending: true,
    fork: true,
    mixed: true,
    undo: true,
    wp_reuse: true,
    wp_copy: true,
    mprotect: true,
    zap: true,
    swap_in: true,
    isolated: true,
    force: true,
    reference: true,
    register: true,
    splice: true,
    snapshot: true,
    mutex: true,
    exit: true,
    exit_waits: true,
    exit_last: true,
    limits: Limits {
        writes: 1,
        migrations: 1,
        reclaims: 0,
        debugger: false,
        forks: true,
        shared: false,
        readmostly: false,
    },
    alike: false,
};

/// More of what a single process can do.
pub const ALONE: Rules = Rules {
    limits: Limits {
        writes: 2,
        migrations: 2,
        reclaims: 1,
        debugger: true,
        forks: false,
        shared: false,
        readmostly: false,
    },
    ..ALL
};

/// Nobody writes: who owns the sources.
pub const QUIET: Rules = Rules {
    limits: Limits {
        writes: 0,
        migrations: 2,
        reclaims: 0,
        debugger: false,
        forks: false,
        shared: false,
        readmostly: false,
    },
    ..ALL
};

/// A single process, from whose memory permissions go away by themselves.
pub const READMOSTLY: Rules = Rules {
    limits: Limits {
        writes: 2,
        migrations: 3,
        reclaims: 0,
        debugger: false,
        forks: false,
        shared: false,
        readmostly: true,
    },
    ..ALL
};

/// Memory that must not be deferred at all.
pub const SHARED: Rules = Rules {
    limits: Limits {
        writes: 1,
        migrations: 1,
        reclaims: 0,
        debugger: false,
        forks: false,
        shared: true,
        readmostly: false,
    },
    ..ALL
};

#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
enum Owner {
    #[default]
    Free,
    /// Mapped, or about to be.
    Live,
    Ledger,
    /// Taken from the ledger by this drain.
    Spliced(usize),
}

#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
struct Page {
    owner: Owner,
    content: u8,
}

#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
enum Pte {
    #[default]
    None,
    Present {
        page: usize,
        write: bool,
    },
    Migration {
        page: usize,
        write: bool,
    },
    /// Of a page that is still in the swap cache.
    Swap {
        page: usize,
    },
}

impl Pte {
    fn page(self) -> Option<usize> {
        match self {
            Self::None => None,
            Self::Present { page, .. } | Self::Migration { page, .. } | Self::Swap { page } => {
                Some(page)
            }
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
enum Life {
    #[default]
    Unborn,
    /// Fork is copying its page table: rmap finds it, nobody runs it.
    Embryo,
    Alive,
    /// Its last user is gone. rmap still finds it.
    Leaving,
    /// `exit_mmap()` is done.
    Unmapped,
    Freed,
}

#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
struct Mm {
    life: Life,
    pte: Pte,
    /// Permissions were taken away, and the flush is still to come.
    flush_pending: bool,
    /// The same of a fork, which has a flush of its own at its end.
    forking: bool,
    /// The TLB batch of a migration, and of reclaim, owes a flush.
    batched: [bool; 2],
    /// Number of deferrals, and how many of them a flush has covered.
    deferred: u8,
    flushed: u8,
    /// The former, as the drain that is running has read it, if there was anything pending.
    seen: Option<u8>,
    registered: bool,
}

impl Mm {
    fn pending(&self) -> bool {
        self.deferred != self.flushed
    }

    fn alive(&self) -> bool {
        self.life == Life::Alive
    }
}

/// Who has a TLB batch.
const MIGRATION: usize = 0;
const RECLAIM: usize = 1;

/// `migrate_pages_batch()` with one folio.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
struct Migration {
    src: usize,
    dst: usize,
    /// All of its entries were walked, and what is owed was flushed.
    flushed: bool,
    deferred: bool,
    /// Some mapping comes back writable, or may become so without a flush.
    denied: bool,
}

/// A drain is about to do this to one of the address spaces.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
enum Drain {
    #[default]
    Idle,
    Read(usize),
    Invalidate(usize),
    Retire(usize),
    Release,
}

#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct State {
    pages: [Page; PAGES],
    mms: [Mm; MMS],
    /// One entry for each address space: page and permission.
    tlbs: [[Option<(usize, bool)>; MMS]; CPUS],
    migration: Option<Migration>,
    /// The page that reclaim has isolated.
    reclaim: Option<usize>,
    /// The page of which a debugger has a reference.
    debugger: Option<usize>,
    drains: [Drain; DRAINS],
    writes: u8,
    migrations: u8,
    reclaims: u8,
    forked: bool,
    remapped: bool,
    used_after_free: bool,
}

impl State {
    fn alloc(&self) -> Option<usize> {
        self.pages.iter().position(|p| p.owner == Owner::Free)
    }

    fn mapped(&self, page: usize) -> usize {
        let mms = self.mms.iter();

        mms.filter(|mm| mm.pte.page() == Some(page)).count()
    }

    /// The last mapping of a page went away, and nobody else has a reference.
    fn put(&mut self, page: usize) {
        let busy = self.migration.is_some_and(|m| m.src == page)
            || [self.reclaim, self.debugger].contains(&Some(page));

        if self.mapped(page) == 0 && !busy && self.pages[page].owner == Owner::Live {
            self.pages[page] = Page::default();
        }
    }

    fn invalidate(&mut self, mm: usize) {
        for tlb in &mut self.tlbs {
            tlb[mm] = None;
        }
    }

    /// `migrc_flush_mm()`: all of what was deferred, under the page table lock.
    fn flush_deferred(&mut self, rule: bool, mm: usize) {
        if rule && self.mms[mm].pending() {
            self.invalidate(mm);
            self.mms[mm].flushed = self.mms[mm].deferred;
        }
    }

    /// What a TLB batch owes. The kernel may do more: it does not always know that it has paid.
    fn flush_batch(&mut self, batch: usize, mm: usize) {
        if std::mem::take(&mut self.mms[mm].batched[batch]) {
            self.invalidate(mm);
        }
    }

    /// `flush_tlb_batched_pending()`, without what is ours.
    fn flush_batched(&mut self, mm: usize) {
        self.flush_batch(MIGRATION, mm);
        self.flush_batch(RECLAIM, mm);
    }

    fn write(&mut self, page: usize) {
        self.writes += 1;
        self.pages[page].content = self.writes;
    }

    /// Whether `mm` has a present entry, and where it leads.
    fn present(&self, mm: usize) -> Option<(usize, bool)> {
        match self.mms[mm].pte {
            Pte::Present { page, write } => Some((page, write)),
            _ => None,
        }
    }

    /// Restores what the migration has taken away.
    fn remap(&mut self, src: usize, to: usize) {
        for mm in &mut self.mms {
            mm.pte = match mm.pte {
                Pte::Migration { page, write } if page == src => Pte::Present { page: to, write },
                // The swap cache has another page.
                Pte::Swap { page } if page == src => Pte::Swap { page: to },
                pte => pte,
            };
        }
    }

    fn protect(&mut self, to: usize) {
        for mm in &mut self.mms {
            if mm.pte
                == (Pte::Present {
                    page: to,
                    write: true,
                })
            {
                mm.pte = Pte::Present {
                    page: to,
                    write: false,
                };
            }
        }
    }

    fn splice(&mut self, drain: usize) {
        for page in &mut self.pages {
            if page.owner == Owner::Ledger {
                page.owner = Owner::Spliced(drain);
            }
        }
    }

    /// The next step of a drain after that it did with `mm`; it skips those with nothing to do.
    fn go_on(&mut self, drain: usize, step: fn(usize) -> Drain, mm: usize) {
        let work = |mm: &usize| self.mms[*mm].seen.is_some();

        self.drains[drain] = match (mm..MMS).find(work) {
            Some(mm) => step(mm),
            None => match step(0) {
                Drain::Invalidate(_) => match (0..MMS).find(work) {
                    Some(mm) => Drain::Retire(mm),
                    None => Drain::Release,
                },
                _ => Drain::Release,
            },
        };
    }

    fn register(&mut self, mm: usize) {
        self.mms[mm].registered = true;
    }

    fn unregister(&mut self, mm: usize) {
        self.mms[mm].registered = false;
    }

    /// Everything that some CPU of a living process may use, and whose it is.
    fn reachable(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.tlbs.iter().flat_map(|tlb| {
            let entries = tlb.iter().enumerate();

            entries.filter_map(|(mm, entry)| {
                let (page, _) = entry.filter(|_| self.mms[mm].alive())?;
                Some((mm, page))
            })
        })
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Action {
    /// A CPU forgets what it had, if anything, and walks the page table.
    Fill(usize, usize),
    /// A CPU stores through what its TLB holds.
    Store(usize, usize),
    WriteFault(usize),
    /// `FAULT_FLAG_UNSHARE`: a copy without a write.
    Unshare(usize),
    MprotectRead(usize),
    MprotectWrite(usize),
    /// The end of what takes permissions away.
    FinishFlush(usize),
    Fork,
    FinishFork,
    Zap(usize),
    /// A new page where there is none.
    Map(usize),
    /// A debugger looks up the page and keeps a reference,
    ForceGet(usize),
    /// and writes.
    ForceWrite,
    /// Reclaim isolates a page, unmaps it,
    SwapOut(usize),
    /// and flushes, much later.
    FinishReclaim,
    /// A fault on what it has unmapped.
    SwapIn(usize, bool),
    Leave(usize),
    ExitMmap(usize),
    Free(usize),
    Begin(usize),
    /// `try_to_migrate_one()`
    Unmap(usize),
    /// The end of the walk, and the flush of what was not deferred.
    EndWalk,
    Move,
    /// The same, and nobody may write any more without a fault.
    MoveProtected,
    Undo,
    /// Only where this does not come with the deferral.
    Register(usize),
    Splice(usize),
    Drain(usize),
}

use Action::*;

pub const KEPT: &str = "kept: no TLB leads to a page that was released";
pub const CURRENT: &str = "current: a TLB and a walk lead to the same content";
const ALONE_WRITES: &str = "what may be written is mapped nowhere else, not even stale";
pub const UAF: &str = "no address space is used after it was freed";

const RETIRES: &str = "a deferred source is released in the end";
const STALE: &str = "a process reads through a deferred translation";
const MIXES: &str = "of one folio a mapping is deferred, and another is flushed";
const WAITS: &str = "an address space that exits waits for the drain that is at it";
const REFILLS: &str = "an address gets a new page before the old one has moved";
const CHAINS: &str = "a destination is a source, and both can be read";
const PROTECTS: &str = "what was written to is deferred";
const SWAPS: &str = "a page is mapped writable again that reclaim has not flushed yet";

impl Rules {
    #[track_caller]
    pub fn holds(self) {
        explore::holds(Rules {
            alike: true,
            ..self
        });
    }

    /// The property does not hold any more.
    #[track_caller]
    pub fn breaks(self, property: &'static str) {
        assert!(explore::breaks(self, property), "still so: {property}");
    }
}
