// SPDX-License-Identifier: GPL-2.0

//! Deferring the flushes of a migration, in any order with everything that may follow it.
//!
//! Two processes, which may share a page after a fork, run on two CPUs with a TLB each. A page is
//! migrated without a flush, and its source kept until every TLB that may still translate to it
//! has been flushed. Meanwhile both processes read, write, fork, unmap, change permissions and
//! exit, a debugger writes, reclaim takes pages away, and drains run. At any time:
//!
//! - no TLB leads a living process to a page that was released (rule `kept`), and
//! - what a process reads through its TLBs is what a walk of its page table would find
//!   (rule `current`).
//!
//! Each rule is then left out, and the checker must find out what that breaks. Memory order is not
//! the subject here, see `migrc_registered.rs`, `ordering.rs` and `litmus/`: a step is atomic. Nor is a
//! second page table of the same process, see `migrc_registered.rs`.

mod explore;

use stateright::{Model, Property};

const PAGES: usize = 4;
const CPUS: usize = 2;
/// A parent and its child, or two that share memory.
const MMS: usize = 2;
/// Whoever finds a reason to drain.
const DRAINS: usize = 2;

/// What the kernel takes care of.
#[derive(Clone, Copy)]
struct Rules {
    /// Only what is read-only may be deferred.
    read_only: bool,
    /// Nothing is deferred in an address space whose permissions are being taken away.
    flush_pending: bool,
    /// A fork counts as that.
    fork: bool,
    /// If one of the mappings can be written to without a fault, all of them are flushed before the
    /// copy.
    mixed: bool,
    /// Only a source that was migrated away may enter the ledger.
    undo: bool,
    /// A write fault that makes an entry writable flushes first.
    wp_reuse: bool,
    /// One that maps a copy does, too; upstream's rule.
    wp_copy: bool,
    /// `mprotect()` flushes before it makes an entry writable.
    mprotect: bool,
    /// Whoever takes a page table entry away flushes, also if it is a migration entry.
    zap: bool,
    /// A fault that maps what reclaim has unmapped flushes before it makes the entry writable.
    swap_in: bool,
    /// What reclaim has unmapped is not migrated before reclaim has flushed; upstream's rule.
    isolated: bool,
    /// A debugger's write to read-only memory flushes first.
    force: bool,
    /// It has a reference by then, and what is referenced does not move; upstream's rule.
    reference: bool,
    /// An address space is registered with its first deferral, before the source has moved.
    register: bool,
    /// A drain takes the pages first and flushes then.
    splice: bool,
    /// A flush retires what was deferred before it began, and nothing else.
    snapshot: bool,
    /// One drain at a time.
    mutex: bool,
    /// An address space takes itself out of the list before it is freed.
    exit: bool,
    /// It waits for a drain that may be at it.
    exit_waits: bool,
    /// It does so after its page table was torn down: until then it may come to be registered.
    exit_last: bool,
    limits: Limits,
    /// CPUs are alike: states that differ in nothing but which is which are one.
    alike: bool,
}

/// How much may happen.
#[derive(Clone, Copy)]
struct Limits {
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

const ALL: Rules = Rules {
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
const ALONE: Rules = Rules {
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
const QUIET: Rules = Rules {
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
const READMOSTLY: Rules = Rules {
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
const SHARED: Rules = Rules {
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
struct State {
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
enum Action {
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

const KEPT: &str = "kept: no TLB leads to a page that was released";
const CURRENT: &str = "current: a TLB and a walk lead to the same content";
const ALONE_WRITES: &str = "what may be written is mapped nowhere else, not even stale";
const UAF: &str = "no address space is used after it was freed";

const RETIRES: &str = "a deferred source is released in the end";
const STALE: &str = "a process reads through a deferred translation";
const MIXES: &str = "of one folio a mapping is deferred, and another is flushed";
const WAITS: &str = "an address space that exits waits for the drain that is at it";
const REFILLS: &str = "an address gets a new page before the old one has moved";
const CHAINS: &str = "a destination is a source, and both can be read";
const PROTECTS: &str = "what was written to is deferred";
const SWAPS: &str = "a page is mapped writable again that reclaim has not flushed yet";

impl Model for Rules {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut state = State::default();
        let mm = |write| Mm {
            life: Life::Alive,
            pte: Pte::Present { page: 0, write },
            ..Mm::default()
        };

        state.pages[0].owner = Owner::Live;
        if self.limits.shared {
            state.mms = [mm(false), mm(true)];
        } else {
            state.mms[0] = mm(true);
        }
        vec![state]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        let writes = s.writes < self.limits.writes;

        for mm in 0..MMS {
            let m = s.mms[mm];

            match m.life {
                Life::Alive => {}
                Life::Leaving => actions.push(ExitMmap(mm)),
                Life::Unmapped => actions.push(Free(mm)),
                _ => {}
            }
            if !self.register && !m.registered && m.deferred != 0 && m.life != Life::Freed {
                actions.push(Register(mm));
            }
            if !m.alive() {
                continue;
            }
            // Each process may run anywhere.
            for cpu in 0..CPUS {
                if s.present(mm).is_some() && s.tlbs[cpu][mm] != s.present(mm) {
                    actions.push(Fill(cpu, mm));
                }
                if writes && s.tlbs[cpu][mm].is_some_and(|(_, write)| write) {
                    actions.push(Store(cpu, mm));
                }
            }
            if m.flush_pending {
                actions.push(FinishFlush(mm));
            }
            // The rest faults, or waits for the lock that a fork has.
            if m.forking {
                continue;
            }
            match m.pte {
                Pte::Present { page, write: false } => {
                    actions.extend([WriteFault(mm), MprotectWrite(mm)]);
                    if s.mapped(page) > 1 {
                        actions.push(Unshare(mm));
                    }
                    if self.limits.debugger && writes && s.debugger.is_none() {
                        actions.push(ForceGet(mm));
                    }
                }
                Pte::Present { write: true, .. } => actions.push(MprotectRead(mm)),
                Pte::Swap { .. } => actions.extend([SwapIn(mm, false), SwapIn(mm, true)]),
                Pte::None if !s.remapped && writes => actions.push(Map(mm)),
                _ => {}
            }
            if m.pte != Pte::None {
                actions.push(Zap(mm));
            }
            if s.reclaims < self.limits.reclaims && s.present(mm).is_some() {
                actions.push(SwapOut(mm));
            }
            actions.push(Leave(mm));
        }
        if s.mms[0].forking {
            actions.push(FinishFork);
        } else if self.limits.forks && !s.forked && s.mms[0].alive() {
            actions.push(Fork);
        }
        if s.debugger.is_some() {
            actions.push(ForceWrite);
        }
        if s.reclaim.is_some() {
            actions.push(FinishReclaim);
        }
        match s.migration {
            None if s.migrations < self.limits.migrations => {
                let isolated = |&p: &usize| self.isolated && s.reclaim == Some(p);
                let pages = (0..PAGES).filter(|&p| s.pages[p].owner == Owner::Live);

                actions.extend(pages.filter(|p| !isolated(p)).map(Begin));
            }
            None => {}
            Some(m) if !m.flushed => {
                let present = |mm: &usize| s.present(*mm).is_some_and(|(page, _)| page == m.src);
                let left: Vec<_> = (0..MMS).filter(present).collect();

                if left.is_empty() {
                    actions.push(EndWalk);
                    if self.limits.readmostly {
                        actions.push(Undo);
                    }
                }
                actions.extend(left.into_iter().map(Unmap));
            }
            Some(_) => {
                actions.extend([Move, Undo]);
                if self.limits.readmostly {
                    actions.push(MoveProtected);
                }
            }
        }
        // All drains are alike: the first that has nothing to do starts.
        let idle = s.drains.iter().position(|d| *d == Drain::Idle);

        if let Some(drain) = idle {
            if !self.mutex || s.drains == [Drain::Idle; DRAINS] {
                actions.push(Splice(drain));
            }
        }
        actions.extend(
            (0..DRAINS)
                .filter(|d| s.drains[*d] != Drain::Idle)
                .map(Drain),
        );
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut s = *last;
        let shared = self.limits.shared;

        match action {
            Fill(cpu, mm) => s.tlbs[cpu][mm] = s.present(mm),
            Store(cpu, mm) => {
                let (page, _) = s.tlbs[cpu][mm]?;
                s.write(page);
            }
            WriteFault(mm) if shared || s.mapped(s.mms[mm].pte.page()?) == 1 => {
                let (page, _) = s.present(mm)?;

                // Nothing is invalidated here: a CPU that faults because of what it still has
                // finds out, and fills.
                s.flush_deferred(self.wp_reuse, mm);
                s.mms[mm].pte = Pte::Present { page, write: true };
            }
            WriteFault(mm) | Unshare(mm) => {
                let (page, _) = s.present(mm)?;
                let new = s.alloc()?;

                if self.wp_copy {
                    // ptep_clear_flush()
                    s.invalidate(mm);
                }
                s.pages[new] = Page {
                    owner: Owner::Live,
                    content: s.pages[page].content,
                };
                s.mms[mm].pte = Pte::Present {
                    page: new,
                    write: action == WriteFault(mm),
                };
                s.put(page);
            }
            MprotectRead(mm) => {
                let (page, _) = s.present(mm)?;

                s.flush_batched(mm);
                s.flush_deferred(self.mprotect, mm);
                s.mms[mm].pte = Pte::Present { page, write: false };
                s.mms[mm].flush_pending = true;
            }
            MprotectWrite(mm) => {
                let (page, _) = s.present(mm)?;

                s.flush_batched(mm);
                s.flush_deferred(self.mprotect, mm);
                // can_change_pte_writable()
                if shared || s.mapped(page) == 1 {
                    s.mms[mm].pte = Pte::Present { page, write: true };
                }
                s.mms[mm].flush_pending = true;
            }
            FinishFlush(mm) => {
                s.invalidate(mm);
                s.mms[mm].flush_pending = false;
            }
            Fork => {
                // Whoever takes permissions away has mmap_lock, and reclaim is left out.
                if s.mms[0].flush_pending || s.reclaim.is_some() {
                    return None;
                }
                let pte = match s.mms[0].pte {
                    Pte::Present { page, .. } => Pte::Present { page, write: false },
                    // copy_nonpresent_pte() does not wait, and nobody has to be told: the child
                    // has nothing in a TLB.
                    Pte::Migration { page, .. } => Pte::Migration { page, write: false },
                    pte => pte,
                };

                s.forked = true;
                s.mms[0].pte = pte;
                s.mms[0].forking = true;
                s.mms[1] = Mm {
                    life: Life::Embryo,
                    pte,
                    ..Mm::default()
                };
            }
            FinishFork => {
                s.invalidate(0);
                s.mms[0].forking = false;
                s.mms[1].life = Life::Alive;
            }
            Zap(mm) => {
                s.flush_batched(mm);
                s.flush_deferred(self.zap, mm);
                let pte = std::mem::take(&mut s.mms[mm].pte);

                // mmu_gather flushes what was mapped before it releases it. Of the others nothing
                // was mapped.
                if let Pte::Present { .. } = pte {
                    s.invalidate(mm);
                }
                s.put(pte.page()?);
            }
            Map(mm) => {
                let page = s.alloc()?;

                s.remapped = true;
                s.pages[page].owner = Owner::Live;
                s.write(page);
                s.mms[mm].pte = Pte::Present { page, write: true };
            }
            ForceGet(mm) => {
                let (page, _) = s.present(mm)?;

                // Otherwise it has to fault a copy in first.
                if !shared && s.mapped(page) != 1 {
                    return None;
                }
                s.flush_deferred(self.force, mm);
                s.debugger = Some(page);
            }
            ForceWrite => {
                let page = s.debugger.take()?;

                if s.writes < self.limits.writes && s.pages[page].owner != Owner::Free {
                    s.write(page);
                }
                s.put(page);
            }
            SwapOut(mm) => {
                let (page, _) = s.present(mm)?;

                if s.migration.is_some_and(|m| m.src == page) {
                    return None;
                }
                s.reclaims += 1;
                s.reclaim = Some(page);
                s.mms[mm].pte = Pte::Swap { page };
                s.mms[mm].batched[RECLAIM] = true;
            }
            FinishReclaim => {
                let page = s.reclaim.take()?;

                for mm in 0..MMS {
                    s.flush_batch(RECLAIM, mm);
                }
                s.put(page);
            }
            SwapIn(mm, write) => {
                let page = s.mms[mm].pte.page()?;

                // A migration has the folio locked.
                if s.migration.is_some_and(|m| m.src == page) {
                    return None;
                }
                s.flush_deferred(write && self.swap_in, mm);
                s.mms[mm].pte = Pte::Present { page, write };
            }
            Leave(mm) => {
                s.mms[mm].life = Life::Leaving;
                s.mms[mm].flush_pending = false;
                // Its ASID is not used again before everything was flushed.
                s.invalidate(mm);
                if self.exit && !self.exit_last {
                    s.unregister(mm);
                }
            }
            ExitMmap(mm) => {
                s.mms[mm].life = Life::Unmapped;
                let pte = std::mem::take(&mut s.mms[mm].pte);

                if let Some(page) = pte.page() {
                    s.put(page);
                }
            }
            Free(mm) => {
                s.mms[mm].life = Life::Freed;
                if self.exit && self.exit_last {
                    if self.exit_waits && s.drains != [Drain::Idle; DRAINS] {
                        return None;
                    }
                    s.unregister(mm);
                }
            }
            Begin(src) => {
                let dst = s.alloc()?;

                s.migrations += 1;
                s.pages[dst].owner = Owner::Live;
                s.migration = Some(Migration {
                    src,
                    dst,
                    ..Migration::default()
                });
            }
            Unmap(mm) => {
                let (page, write) = s.present(mm)?;
                let m = &mut s.mms[mm];
                let busy = m.flush_pending && self.flush_pending || m.forking && self.fork;
                let migration = s.migration.as_mut()?;

                m.pte = Pte::Migration { page, write };
                if write && self.read_only || busy {
                    m.batched[MIGRATION] = true;
                    migration.denied |= write || shared;
                } else {
                    m.deferred += 1;
                    migration.deferred = true;
                    if self.register {
                        s.register(mm);
                    }
                }
            }
            EndWalk => {
                let mut migration = s.migration?;

                for mm in 0..MMS {
                    s.flush_batch(MIGRATION, mm);
                }
                if self.mixed && migration.deferred && migration.denied {
                    for mm in 0..MMS {
                        s.flush_deferred(true, mm);
                    }
                    migration.deferred = false;
                }
                migration.flushed = true;
                s.migration = Some(migration);
            }
            Move | MoveProtected => {
                let m = s.migration?;

                if self.reference && s.debugger == Some(m.src) {
                    return None;
                }
                s.migration = None;
                s.pages[m.dst].content = s.pages[m.src].content;
                s.remap(m.src, m.dst);
                if action == MoveProtected {
                    s.protect(m.dst);
                }
                if m.deferred {
                    s.pages[m.src].owner = Owner::Ledger;
                } else {
                    s.pages[m.src] = Page::default();
                }
                s.put(m.dst);
            }
            Undo => {
                let m = s.migration.take()?;

                s.pages[m.dst] = Page::default();
                s.remap(m.src, m.src);
                if m.deferred && !self.undo {
                    s.pages[m.src].owner = Owner::Ledger;
                }
                s.put(m.src);
            }
            Register(mm) => s.register(mm),
            Splice(drain) => {
                if self.splice {
                    s.splice(drain);
                }
                s.drains[drain] = Drain::Read(0);
            }
            Drain(drain) => match s.drains[drain] {
                Drain::Idle => return None,
                Drain::Read(mm) => {
                    let m = &mut s.mms[mm];

                    if m.registered {
                        s.used_after_free |= m.life == Life::Freed;
                        m.seen = m.pending().then_some(m.deferred);
                    }
                    if mm + 1 < MMS {
                        s.drains[drain] = Drain::Read(mm + 1);
                    } else {
                        s.go_on(drain, Drain::Invalidate, 0);
                    }
                }
                Drain::Invalidate(mm) => {
                    s.used_after_free |= s.mms[mm].life == Life::Freed;
                    s.invalidate(mm);
                    s.go_on(drain, Drain::Invalidate, mm + 1);
                }
                Drain::Retire(mm) => {
                    let m = &mut s.mms[mm];
                    let seen = m.seen.take();

                    s.used_after_free |= m.life == Life::Freed;
                    if !self.snapshot || Some(m.deferred) == seen {
                        m.flushed = m.deferred;
                    }
                    s.go_on(drain, Drain::Retire, mm + 1);
                }
                Drain::Release => {
                    if !self.splice {
                        s.splice(drain);
                    }
                    for page in &mut s.pages {
                        if page.owner == Owner::Spliced(drain) {
                            *page = Page::default();
                        }
                    }
                    s.drains[drain] = Drain::Idle;
                }
            },
        }
        if self.alike {
            s.tlbs.sort_unstable();
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(KEPT, |_, s: &State| {
                s.reachable()
                    .all(|(_, page)| s.pages[page].owner != Owner::Free)
            }),
            Property::always(CURRENT, |_, s: &State| {
                s.reachable().all(|(mm, page)| match s.present(mm) {
                    Some((walked, _)) => s.pages[walked].content == s.pages[page].content,
                    None => true,
                })
            }),
            Property::always(UAF, |_, s: &State| !s.used_after_free),
            Property::sometimes(RETIRES, |_, s: &State| {
                s.mms[0].alive()
                    && s.mms[0].deferred != 0
                    && !s.mms[0].pending()
                    && s.pages.iter().all(|p| p.owner != Owner::Ledger)
            }),
            Property::sometimes(STALE, |_, s: &State| {
                s.reachable()
                    .any(|(_, page)| s.pages[page].owner == Owner::Ledger)
            }),
            Property::sometimes(WAITS, |_, s: &State| {
                s.mms
                    .iter()
                    .any(|mm| mm.life == Life::Unmapped && mm.seen.is_some())
            }),
        ];

        if self.limits.forks || self.limits.shared {
            properties.push(Property::sometimes(MIXES, |_, s: &State| {
                s.migration.is_some_and(|m| m.deferred)
                    && s.mms.iter().any(|mm| mm.batched[MIGRATION])
            }));
        }
        if !self.limits.shared {
            // Why `mixed` is not needed.
            properties.push(Property::always(ALONE_WRITES, |_, s: &State| {
                (0..MMS).all(|mm| {
                    let page = match s.mms[mm].pte {
                        Pte::Present { page, write: true } => page,
                        Pte::Migration { page, write: true } => page,
                        _ => return true,
                    };

                    s.mapped(page) == 1 && s.reachable().all(|(m, p)| m == mm || p != page)
                })
            }));
            properties.push(Property::sometimes(REFILLS, |_, s: &State| {
                s.migration.is_some_and(|m| {
                    m.deferred && s.present(0).is_some_and(|(p, _)| p != m.src && p != m.dst)
                })
            }));
        }
        if self.limits.migrations > 1 {
            properties.push(Property::sometimes(CHAINS, |_, s: &State| {
                let read = |cpu: usize| s.tlbs[cpu][0].map(|(page, _)| page);
                let ledger = |page: usize| s.pages[page].owner == Owner::Ledger;

                read(0).is_some_and(ledger) && read(1).is_some_and(ledger) && read(0) != read(1)
            }));
        }
        if self.limits.readmostly {
            properties.push(Property::sometimes(PROTECTS, |_, s: &State| {
                s.writes != 0
                    && s.reachable().any(|(mm, page)| {
                        s.pages[page].owner == Owner::Ledger
                            && s.present(mm).is_some_and(|(_, w)| !w)
                    })
            }));
        }
        if self.limits.reclaims > 0 {
            properties.push(Property::sometimes(SWAPS, |_, s: &State| {
                s.mms[0].batched[RECLAIM] && s.present(0).is_some_and(|(_, write)| write)
            }));
        }
        properties
    }
}

impl Rules {
    #[track_caller]
    fn holds(self) {
        explore::holds(Rules {
            alike: true,
            ..self
        });
    }

    /// The property does not hold any more.
    #[track_caller]
    fn breaks(self, property: &'static str) {
        assert!(explore::breaks(self, property), "still so: {property}");
    }
}

#[test]
fn nobody_uses_what_was_deferred() {
    ALL.holds();
}

#[test]
fn nobody_uses_what_was_deferred_twice() {
    ALONE.holds();
}

#[test]
fn nobody_uses_what_was_deferred_because_it_is_not_written() {
    READMOSTLY.holds();
}

// ---- What may be deferred.

#[test]
fn a_writable_translation_may_not_be_deferred() {
    Rules {
        read_only: false,
        ..ALL
    }
    .breaks(CURRENT);
}

#[test]
fn permissions_that_are_being_taken_away_are_still_there() {
    Rules {
        flush_pending: false,
        ..ALL
    }
    .breaks(CURRENT);
}

#[test]
fn a_fork_takes_permissions_away() {
    Rules { fork: false, ..ALL }.breaks(CURRENT);
}

#[test]
fn what_reclaim_has_not_flushed_may_be_written() {
    Rules {
        isolated: false,
        ..ALONE
    }
    .breaks(CURRENT);
}

/// Of anonymous memory: what is writable in one address space is mapped in no other, and whoever
/// was flushed for another reason has nothing to do with whoever was not.
#[test]
fn a_folio_may_be_deferred_in_some_of_its_mappings() {
    Rules {
        mixed: false,
        ..ALL
    }
    .holds();
}

/// The model would find out: of shared memory it finds an entry that comes back writable.
#[test]
fn shared_memory_may_not_be_deferred_in_some_of_its_mappings() {
    Rules {
        mixed: false,
        ..SHARED
    }
    .breaks(CURRENT);
}

/// Nor in all of them: a write fault flushes the wrong address space.
#[test]
fn shared_memory_may_not_be_deferred() {
    SHARED.breaks(CURRENT);
}

// ---- Who has to flush first.

#[test]
fn a_write_fault_flushes_first() {
    Rules {
        wp_reuse: false,
        ..ALL
    }
    .breaks(CURRENT);
}

#[test]
fn a_write_fault_that_copies_flushes_first() {
    Rules {
        wp_copy: false,
        ..ALL
    }
    .breaks(CURRENT);
}

#[test]
fn mprotect_flushes_first() {
    Rules {
        mprotect: false,
        ..ALL
    }
    .breaks(CURRENT);
}

#[test]
fn munmap_of_a_migration_entry_flushes() {
    Rules { zap: false, ..ALL }.breaks(CURRENT);
}

#[test]
fn a_fault_during_reclaim_flushes_first() {
    Rules {
        swap_in: false,
        ..ALONE
    }
    .breaks(CURRENT);
}

#[test]
fn a_debugger_flushes_first() {
    Rules {
        force: false,
        ..ALONE
    }
    .breaks(CURRENT);
}

#[test]
fn what_a_debugger_refers_to_does_not_move() {
    Rules {
        reference: false,
        ..ALONE
    }
    .breaks(CURRENT);
}

// ---- Who owns the source.

#[test]
fn a_page_that_did_not_move_is_in_use() {
    Rules {
        undo: false,
        ..QUIET
    }
    .breaks(KEPT);
}

#[test]
fn a_drain_flushes_only_whom_it_knows() {
    Rules {
        register: false,
        ..QUIET
    }
    .breaks(KEPT);
}

#[test]
fn a_drain_releases_only_what_it_took_before_it_flushed() {
    Rules {
        splice: false,
        ..QUIET
    }
    .breaks(KEPT);
}

#[test]
fn a_flush_covers_only_what_was_deferred_before() {
    Rules {
        snapshot: false,
        ..QUIET
    }
    .breaks(KEPT);
}

#[test]
fn two_drains_mistake_each_others_notes() {
    Rules {
        mutex: false,
        ..QUIET
    }
    .breaks(KEPT);
}

#[test]
fn a_drain_meets_no_address_space_that_was_freed() {
    Rules {
        exit: false,
        ..QUIET
    }
    .breaks(UAF);
}

#[test]
fn an_exit_waits_for_the_drain() {
    Rules {
        exit_waits: false,
        ..QUIET
    }
    .breaks(UAF);
}

#[test]
fn an_exit_unmaps_first() {
    Rules {
        exit_last: false,
        ..QUIET
    }
    .breaks(UAF);
}
