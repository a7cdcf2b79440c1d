// SPDX-License-Identifier: GPL-2.0

//! Blocks that map vmemmap become page tables, so that their entries can change one by one.

use super::{
    batch::{
        Batch,
        Collecting,
        Full,
        Grace,
        Memory,
        Outcome,
        Owner,
        Room,
        Tally,
        Why, //
    },
    batches,
    c::{
        self,
        Block,
        Folio,
        Reason,
        Run,
        Size,
        Stale,
        Table, //
    },
    commit,
    plan::Attempts,
    Effort,
    ENTRIES,
    SPLIT, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};

/// Blocks that are split together.
const BLOCKS: usize = 512;

/// What one of them maps.
const BLOCK: usize = ENTRIES * PAGE_SIZE;

/// A pool grows by turns on all nodes. On so many, a block is not looked at for each folio.
const NODES: usize = 8;

/// What such a batch is made of.
struct Blocks;

impl Memory for Blocks {
    type Owner = Block;
    type Page = Table;
    type Run = Run;
}

impl Owner<Table> for Block {
    unsafe fn end(self, outcome: Outcome, _old: &[Option<Table>]) {
        if outcome == Outcome::Changed {
            // SAFETY: By the safety requirements, and this is the only end of a unit.
            unsafe { self.was_split() };
        }
    }
}

/// Why a walk ends early.
enum Stop {
    /// What was collected has to be changed first.
    Full,
    /// This folio is left alone.
    Skip(Why),
}

impl From<Full> for Stop {
    fn from(_: Full) -> Self {
        Self::Skip(Why::NoMemory)
    }
}

/// Collects the blocks that map the vmemmap of a folio; `live` has the addresses of those that
/// changed at once.
fn collect_blocks(
    batch: &mut Batch<Blocks, Collecting>,
    size: Size,
    folio: Folio,
    live: &mut Stale,
) -> Result<(), Stop> {
    c::walk(folio.vmemmap(), c::entries(size), |span| {
        let Some(block) = Block::of(span) else {
            return Ok(());
        };

        // Where pools grow on several nodes by turns, or the walk was ended and begun again.
        if batch
            .runs()
            .iter()
            .rev()
            .any(|run| run.entries == span.entries)
        {
            return Ok(());
        }
        if span.self_hosted {
            return Err(Stop::Skip(Why::SelfHosted));
        }
        // The lock that a walk holds is not held while entries change.
        if batch.is_full() {
            return Err(Stop::Full);
        }
        let table = Table::new(&block)?;

        if c::splits_live() {
            // SAFETY: The table is of this block, and `SPLIT` keeps other tasks from changing it.
            unsafe { block.split_live(table) };
            live.add(span.addr, span.addr + BLOCK);
            return Ok(());
        }
        let entry = table.entry();
        let mut unit = batch.open(block);

        unit.bring(table)?;
        // SAFETY: `SPLIT` keeps other tasks from changing it. The table maps what the block does.
        unsafe {
            unit.change(Run {
                addr: span.addr,
                entries: span.entries,
                value: entry,
                nr: 1,
                shift: span.shift,
                ..Default::default()
            })
        }?;
        Ok(unit.close()?)
    })
}

/// Splits the blocks that map the vmemmap of these folios, as far as that is possible: what is left
/// is found again, folio by folio. Returns why something may be left.
pub(super) fn split(
    size: Size,
    folios: impl Iterator<Item = Folio>,
    effort: Effort,
    attempts: &mut Attempts,
) -> Result<(), Why> {
    let room = if batches(&c::params()) { BLOCKS } else { 1 };
    let mut batch = Batch::<Blocks, _>::new(Room {
        units: room,
        runs: room,
        new: room,
        ..Default::default()
    })?;
    let mut live = Stale::NONE;
    let mut result = Ok(());
    // Those that became tables, or are in the batch.
    let (mut seen, mut next) = ([0; NODES], 0);
    let bytes = c::entries(size) * PAGE_SIZE;
    let guard = SPLIT.lock();

    'folios: for folio in folios {
        let block = folio.vmemmap() / BLOCK;

        // The struct pages of small folios share a block.
        if bytes <= BLOCK && seen.contains(&block) {
            continue;
        }
        loop {
            match collect_blocks(&mut batch, size, folio, &mut live) {
                Ok(()) => {
                    seen[next % NODES] = block;
                    next += 1;
                    break;
                }
                Err(Stop::Skip(Why::SelfHosted)) => break,
                Err(Stop::Skip(why)) => {
                    result = Err(why);
                    // There will be memory when other folios have given it back.
                    if why == Why::NoMemory {
                        break 'folios;
                    }
                    break;
                }
                Err(Stop::Full) => {
                    let tally;

                    (batch, tally) = commit_blocks(batch, effort, attempts);
                    if let Some(why) = tally.why {
                        result = Err(why);
                        seen = [0; NODES];
                        break;
                    }
                }
            }
        }
    }
    let (_, tally) = commit_blocks(batch, effort, attempts);

    drop(guard);
    live.flush();
    tally.why.map_or(result, Err)
}

fn commit_blocks(
    batch: Batch<Blocks, Collecting>,
    effort: Effort,
    attempts: &mut Attempts,
) -> (Batch<Blocks, Collecting>, Tally) {
    // SAFETY: The struct pages stay what they are.
    let grace = || unsafe { Grace::is_not_needed() };

    commit(batch, grace, Reason::SPLIT, effort, attempts, |_| {})
}
