// SPDX-License-Identifier: GPL-2.0

//! What may happen in each state, what follows from it, and what must hold.

use super::*;
use stateright::{Model, Property};

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
