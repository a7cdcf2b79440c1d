// SPDX-License-Identifier: GPL-2.0

//! The sizes of what TLBs hold of a deferred folio, and of what becomes valid in its place.
//!
//! A folio of two blocks is mapped by one address space. The entries of a block are valid one by
//! one, or all of them as a block. The folio is migrated over and over; the walk that decides is that
//! of the kernel, [`Walk`]. Meanwhile the area is cut, pages are changed, unmapped and mapped, the
//! batch flushes, migrations are undone, and drains run. TLBs hold whatever they have walked to, until
//! it is flushed: those of one of the blocks are looked at. At any time, all entries for an address,
//! those in TLBs and the valid one, have the same size (rule `size`). If so, they may lead to source
//! and destination: the content is the same, and `migrc.rs` is about that.
//!
//! Each rule is then left out, and the checker must find out what that breaks.

mod explore;

use stateright::{Model, Property};
use verify::migrc::{
    eligibility::{Geometry, MappingFacts},
    walk::{Permit, Walk},
};

/// Of a block.
const PAGES: usize = 2;
const BLOCKS: usize = 2;
const ALL_PAGES: usize = BLOCKS * PAGES;

#[derive(Clone, Copy)]
struct Rules {
    /// The restore flushes first if the size is another one.
    size: bool,
    /// It is told of what was deferred.
    geometry: bool,
    /// Of a run that is of both sizes nothing is deferred.
    odd: bool,
    /// What takes a block apart, or makes one, flushes it; upstream's rule.
    convert: bool,
    /// A migration that is undone flushes what it owes before it maps anything; the batch's rule.
    putback: bool,
    /// What takes entries away flushes what was deferred: hook `range`.
    range: bool,
    /// `vm.migrc_blocks`
    blocks: bool,
}

const ALL: Rules = Rules {
    size: true,
    geometry: true,
    odd: true,
    convert: true,
    putback: true,
    range: true,
    blocks: true,
};

/// A valid entry of a page, by itself or as a part of a block.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Size {
    Page,
    Block,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Pte {
    None,
    Present(Size),
    Migration,
}

/// What the migration that is under way knows of its folio.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct Migration {
    /// Of what was deferred: C's flags for the restore.
    pages: bool,
    blocks: bool,
    /// A flush is owed, which comes before the copy.
    owes: bool,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct State {
    ptes: [Pte; ALL_PAGES],
    /// The block that is looked at.
    watched: usize,
    /// For each address of it, whether a TLB has an entry of this size: page, block.
    tlb: [[bool; 2]; PAGES],
    /// Something was deferred that no flush of the address space has covered.
    pending: bool,
    migration: Option<Migration>,
    /// The area ends within the block that is looked at.
    cut: bool,
    /// The first page of a block differs from the others: it cannot be a block.
    unlike: [bool; BLOCKS],
    /// There was an address with entries of two sizes.
    clash: bool,
    /// A flush came for the size, and there was something to flush.
    resized: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Action {
    /// A CPU walks to an address of the block that is looked at.
    Fill(usize),
    /// The first page of a block gets other attributes, or its own again.
    Change(usize),
    /// The last page of a block is written once more: upstream folds here.
    Fold(usize),
    /// A page is unmapped, or its migration entry is,
    Zap(usize),
    /// and an address gets a page.
    Map(usize),
    /// `madvise()` of one of the pages: no page table is touched.
    Cut,
    Join,
    /// All mappings become migration entries, by runs; nothing is deferred if something else denies
    /// it.
    Begin(bool),
    /// What is owed is flushed,
    Flush,
    /// and they become valid again: by runs, or one by one.
    Restore(bool),
    Drain,
}

use Action::*;

const ONE_SIZE: &str = "size: all entries of an address have one size";
const DEFERS: &str = "a block is valid again, while a TLB holds what was deferred";
const RESIZES: &str = "what was deferred is flushed for its size";

impl State {
    fn block(&self, block: usize) -> [Pte; PAGES] {
        std::array::from_fn(|page| self.ptes[block * PAGES + page])
    }

    /// The address by its place in the block that is looked at.
    fn in_watched(&self, page: usize) -> Option<usize> {
        (page / PAGES == self.watched).then_some(page % PAGES)
    }

    fn flush(&mut self, page: usize) {
        if let Some(page) = self.in_watched(page) {
            self.tlb[page] = [false; 2];
        }
    }

    fn flush_block(&mut self, block: usize) {
        if block == self.watched {
            self.tlb = Default::default();
        }
    }

    fn flush_all(&mut self) {
        self.tlb = Default::default();
        self.pending = false;
    }

    /// All changes of what is valid.
    fn set(&mut self, page: usize, size: Size) {
        self.ptes[page] = Pte::Present(size);
        let Some(page) = self.in_watched(page) else {
            return;
        };

        self.clash |= self.tlb[page][1 - size as usize];
    }

    /// `contpte_convert()`: all entries become invalid, are flushed, and valid in another size.
    fn convert(&mut self, rules: &Rules, block: usize, size: Size) {
        if rules.convert {
            self.flush_block(block);
        }
        (0..PAGES).for_each(|page| self.set(block * PAGES + page, size));
    }

    fn unfold(&mut self, rules: &Rules, block: usize) {
        if self.block(block) == [Pte::Present(Size::Block); PAGES] {
            self.convert(rules, block, Size::Page);
        }
    }

    /// If it can be a block. That the area ends within it does not matter.
    fn fold(&mut self, rules: &Rules, block: usize) {
        if self.block(block) == [Pte::Present(Size::Page); PAGES] && !self.unlike[block] {
            self.convert(rules, block, Size::Block);
        }
    }

    /// Whether `page` and the one behind it are in one area, and alike.
    fn joined(&self, page: usize) -> bool {
        let (block, first) = (page / PAGES, page.is_multiple_of(PAGES));

        if first {
            !self.unlike[block] && !(self.cut && block == self.watched)
        } else {
            block + 1 < BLOCKS && !self.unlike[block + 1]
        }
    }

    /// The runs that a walk finds.
    fn runs(&self, wanted: fn(Pte) -> bool) -> Vec<Vec<usize>> {
        let mut runs: Vec<Vec<usize>> = Vec::new();

        for page in (0..ALL_PAGES).filter(|&page| wanted(self.ptes[page])) {
            match runs.last_mut() {
                Some(run)
                    if run.last() == Some(&(page.wrapping_sub(1))) && self.joined(page - 1) =>
                {
                    run.push(page);
                }
                _ => runs.push(vec![page]),
            }
        }
        runs
    }

    /// Whether a run covers this block, of which it has a page.
    fn covers(run: &[usize], block: usize) -> bool {
        (0..PAGES).all(|page| run.contains(&(block * PAGES + page)))
    }

    /// `try_to_migrate_one()`
    fn unmap(&mut self, rules: &Rules, denied: bool) {
        let mut walk = Walk::default();
        let mut owes = false;

        for run in self.runs(|pte| matches!(pte, Pte::Present(_))) {
            let blocks = run
                .iter()
                .filter(|page| self.ptes[**page] == Pte::Present(Size::Block))
                .count();
            let whole = run.iter().all(|page| Self::covers(&run, page / PAGES));
            // A single page is what it is after it was taken out of its block.
            let geometry = match blocks {
                _ if run.len() == 1 => Geometry::Pages,
                0 => Geometry::Pages,
                _ if !rules.geometry => Geometry::Pages,
                nr if nr == run.len() && whole => Geometry::Blocks,
                _ if rules.odd => Geometry::Odd,
                _ => Geometry::Blocks,
            };
            // A block of which the run has only a part is taken apart first.
            for &page in &run {
                if !Self::covers(&run, page / PAGES) {
                    self.unfold(rules, page / PAGES);
                }
            }
            let facts = MappingFacts {
                writable: false,
                pending: denied,
                shared: false,
                notifier: false,
                geometry,
                blocks: rules.blocks,
                merges: false,
                accessible: true,
            };

            // SAFETY: There is no TLB here.
            let counted = |permit: Permit| unsafe { permit.counted() };

            match walk.meet(&facts, false).map(counted) {
                Some(()) => self.pending = true,
                None => owes = true,
            }
            for page in run {
                self.ptes[page] = Pte::Migration;
            }
        }
        self.migration = Some(Migration {
            pages: walk.deferred && !walk.blocks,
            blocks: walk.deferred && walk.blocks,
            owes,
        });
    }

    /// `remove_migration_pte()`
    fn remap(&mut self, rules: &Rules, in_runs: bool) {
        let Some(migration) = self.migration.take() else {
            return;
        };
        let in_runs = in_runs && !migration.owes;

        // It is undone before its flush.
        if migration.owes && rules.putback {
            (0..BLOCKS).for_each(|block| self.flush_block(block));
        }
        for run in self.runs(|pte| pte == Pte::Migration) {
            let parts: Vec<_> = if in_runs {
                vec![run]
            } else {
                run.into_iter().map(|page| vec![page]).collect()
            };

            for part in parts {
                self.restore(rules, migration, &part);
            }
        }
    }

    /// `migrc_before_restore()`, and `set_ptes()`
    fn restore(&mut self, rules: &Rules, migration: Migration, run: &[usize]) {
        let whole = |page: &usize| Self::covers(run, page / PAGES);
        let resizes =
            migration.pages && run.iter().any(whole) || migration.blocks && !run.iter().all(whole);

        if rules.size && resizes && self.pending {
            self.flush_all();
            self.resized = true;
        }
        for page in run {
            let size = if whole(page) { Size::Block } else { Size::Page };

            self.set(*page, size);
        }
        if let [page] = run {
            if page % PAGES == PAGES - 1 {
                self.fold(rules, page / PAGES);
            }
        }
    }

    /// Hook `range`.
    fn range(&mut self, rules: &Rules) {
        if rules.range && self.pending {
            self.flush_all();
        }
    }
}

impl Model for Rules {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        (0..BLOCKS)
            .map(|watched| State {
                ptes: [Pte::Present(Size::Block); ALL_PAGES],
                watched,
                tlb: Default::default(),
                pending: false,
                migration: None,
                cut: false,
                unlike: [false; BLOCKS],
                clash: false,
                resized: false,
            })
            .collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let present = |pte: &Pte| matches!(pte, Pte::Present(_));

        for place in 0..PAGES {
            let page = state.watched * PAGES + place;

            match state.ptes[page] {
                Pte::Present(_) => actions.extend([Fill(place), Zap(page)]),
                Pte::Migration => actions.push(Zap(page)),
                // A fault has to wait for the lock of the folio.
                Pte::None if state.migration.is_none() => actions.push(Map(page)),
                Pte::None => {}
            }
        }
        for block in 0..BLOCKS {
            if state.block(block).iter().all(present) {
                actions.extend([Change(block), Fold(block)]);
            }
        }
        actions.push(if state.cut { Join } else { Cut });
        match state.migration {
            None if state.ptes.iter().any(|pte| present(pte)) => {
                actions.extend([Begin(false), Begin(true)]);
            }
            None => {}
            Some(migration) => {
                actions.extend([Restore(true), Restore(false)]);
                if migration.owes {
                    actions.push(Flush);
                }
            }
        }
        if state.pending {
            actions.push(Drain);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;

        match action {
            Fill(place) => match state.ptes[state.watched * PAGES + place] {
                Pte::Present(size) => state.tlb[place][size as usize] = true,
                _ => return None,
            },
            Change(block) => {
                state.range(self);
                state.unfold(self, block);
                state.unlike[block] = !state.unlike[block];
                state.flush(block * PAGES);
            }
            Fold(block) => state.fold(self, block),
            Zap(page) => {
                state.range(self);
                state.unfold(self, page / PAGES);
                state.ptes[page] = Pte::None;
                // Whoever zaps flushes what was valid.
                if last.ptes[page] != Pte::Migration {
                    state.flush(page);
                }
            }
            Map(page) => state.set(page, Size::Page),
            Cut => state.cut = true,
            Join => state.cut = false,
            Begin(denied) => state.unmap(self, denied),
            Flush => {
                (0..BLOCKS).for_each(|block| state.flush_block(block));
                state.migration.as_mut()?.owes = false;
            }
            Restore(in_runs) => state.remap(self, in_runs),
            Drain => state.flush_all(),
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_SIZE, |_, state: &State| !state.clash),
            Property::sometimes(DEFERS, |rules: &Rules, state: &State| {
                !rules.blocks
                    || state.block(state.watched) == [Pte::Present(Size::Block); PAGES]
                        && state.migration.is_none()
                        && state.pending
                        && state.tlb[0][Size::Block as usize]
            }),
            Property::sometimes(RESIZES, |_, state: &State| state.resized),
        ]
    }
}

/// The checker finds a way to entries of two sizes.
#[track_caller]
fn breaks(rules: Rules) {
    assert!(explore::breaks(rules, ONE_SIZE), "still so: {ONE_SIZE}");
}

#[test]
fn all_entries_have_one_size() {
    explore::holds(ALL);
}

/// vm.migrc_blocks=0: only pages are deferred, and they may become a block.
#[test]
fn pages_have_one_size() {
    explore::holds(Rules {
        blocks: false,
        ..ALL
    });
}

#[test]
fn the_restore_flushes_for_another_size() {
    breaks(Rules { size: false, ..ALL });
    breaks(Rules {
        size: false,
        blocks: false,
        ..ALL
    });
}

#[test]
fn the_restore_knows_the_size() {
    breaks(Rules {
        geometry: false,
        ..ALL
    });
}

/// Blocks and pages that were cleared together are neither.
#[test]
fn what_is_of_both_sizes_is_flushed() {
    breaks(Rules { odd: false, ..ALL });
}

#[test]
fn a_conversion_flushes() {
    breaks(Rules {
        convert: false,
        ..ALL
    });
}

#[test]
fn an_undo_flushes_first() {
    breaks(Rules {
        putback: false,
        ..ALL
    });
}

#[test]
fn what_takes_entries_away_flushes() {
    breaks(Rules {
        range: false,
        ..ALL
    });
}
