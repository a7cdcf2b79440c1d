// SPDX-License-Identifier: GPL-2.0

//! The model of `migrc_tier.rs`: what kswapd does with the pages that it holds, step by step.

use verify::migrc::eligibility::{Caller, FolioFacts, NodeFacts, Verdict};

/// What may be left out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Without {
    Nothing,
    /// kswapd drains when it finds its node balanced,
    LookDrain,
    /// and then looks again: also if there is nothing to release any more,
    Again,
    /// and without the pages that others have added meanwhile.
    Plain,
    /// It drains before it looks for throttled tasks,
    ThrottledDrain,
    /// and when it gives up.
    OutDrain,
    /// `memory.reclaim` drains when it returns.
    ReturnDrain,
    /// No failures are forgotten before the drain: not for pages that are held,
    Failures,
    /// nor for those that come between two looks at what is held.
    FailuresOnce,
    /// kswapd counts as free what it holds,
    Credit,
    /// in the same zone only.
    Zone,
    /// It defers nothing close to the min watermark,
    Gate,
    /// and no more than a step of the watermarks.
    Step,
    /// It does not drain after each batch.
    Patience,
}

pub const ZONES: usize = 2;
/// Who adds sources.
pub const KSWAPD: usize = 0;
pub const RECLAIM: usize = 1;
pub const ADDERS: usize = 2;

/// In pages; `above` is `MIN_LRU_BATCH`.
#[derive(Clone, Copy)]
pub struct Marks {
    pub min: u8,
    pub low: u8,
    pub high: u8,
    pub above: u8,
}

impl Marks {
    /// How far above min kswapd defers nothing.
    pub const fn gate(&self) -> u8 {
        (self.low - self.min) / 2
    }
}

/// How a look at the watermarks ended in success, which is to be acted on.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Success {
    /// Somebody has allocated since.
    pub allocated: bool,
    /// Some pages were counted twice.
    pub twice: bool,
    /// The drain has released what kswapd held.
    pub released: bool,
}

/// What kswapd does next.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Step {
    Begin,
    Look,
    LookDrain(Success),
    LookAgain(Success),
    Isolate,
    Add,
    AddDrain,
    /// `should_abort_scan()`
    Abort,
    /// `kswapd_try_clear_hopeless()` by `shrink_node()`
    Clear,
    ClearLook,
    Throttled,
    Next,
    Out,
    /// `prepare_kswapd_sleep()`
    Sleep,
    Asleep,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Proactive {
    /// May demote so many pages.
    Demotes(u8),
    Drains(u8),
    Returned,
}

/// What happens in one step, and must not. A bit each.
#[derive(Clone, Copy)]
pub enum Fault {
    FalseSuccess,
    FalseClear,
    LeftAsleep,
    OtherZone,
    Beyond,
    VainLook,
    Drain,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct State {
    pub free: [u8; ZONES],
    /// In the ledger.
    pub held: [[u8; ZONES]; ADDERS],
    /// Free, and still counted as held: a drain for somebody else is running.
    pub twice: [u8; ZONES],
    pub step: Step,
    /// Of each zone, demoted by this batch: deferred, and flushed.
    pub batch: [[u8; 2]; ZONES],
    pub boosted: bool,
    /// Something was demoted since the last look.
    pub progress: bool,
    pub proactive: Proactive,
    /// Pages that kswapd may still demote.
    pub list: u8,
    /// Pages that may still be allocated.
    pub wanted: u8,
    /// Allocated since kswapd has last decided to defer. Larger numbers do not matter.
    pub taken: [u8; ZONES],
    /// Drains of kswapd in this wake, of what it held, without a reason that may recur.
    pub drains: u8,
    pub faults: u8,
}

impl State {
    /// `NR_MIGRC_HELD`
    pub fn counted(&self, zone: usize) -> u8 {
        self.held(zone) + self.twice[zone]
    }

    pub fn held(&self, zone: usize) -> u8 {
        self.held.iter().map(|of| of[zone]).sum()
    }

    pub fn holds(&self, who: usize) -> bool {
        self.held[who] != [0; ZONES]
    }

    fn is_draining(&self) -> bool {
        self.twice != [0; ZONES]
    }

    /// What was held, of each zone.
    fn release(&mut self) -> [u8; ZONES] {
        let released = std::array::from_fn(|zone| self.held(zone));

        for (free, nr) in self.free.iter_mut().zip(released) {
            *free += nr;
        }
        self.held = [[0; ZONES]; ADDERS];
        released
    }

    /// A task waits for a drain that begins now. Returns `None` as long as another one runs.
    fn drain(&mut self) -> Option<()> {
        if self.is_draining() {
            return None;
        }
        self.release();
        Some(())
    }

    fn check(&mut self, is_right: bool, fault: Fault) {
        self.faults |= u8::from(!is_right) << fault as u8;
    }

    fn take(&mut self, zone: usize, most: u8) -> Option<()> {
        self.wanted = self.wanted.checked_sub(1)?;
        self.free[zone] = self.free[zone].checked_sub(1)?;
        self.taken[zone] = most.min(self.taken[zone] + 1);
        match &mut self.step {
            Step::LookDrain(success) | Step::LookAgain(success) => success.allocated = true,
            _ => {}
        }
        Some(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// kswapd goes on where it has no choice.
    Goes,
    /// It demotes a page of a zone, of which the mappings may be deferred, or not.
    Isolates(usize, bool),
    /// The batch is large enough, or the list is empty.
    Demotes,
    /// It demotes another batch, or not.
    Scans(bool),
    /// There are throttled tasks, or not.
    Meets(bool),
    /// It looks again, or gives up: the lowest priority, the freezer.
    Repeats(bool),
    Wakes,
    /// An allocation. One that may not drain takes the last page. One that finds less than min is
    /// to drain first: `Releases`.
    Takes(usize),
    /// A drain for somebody else: an allocation, the age of a source.
    Releases,
    /// It subtracts what it has released.
    Subtracts,
    /// `memory.reclaim` demotes a page.
    Reclaims(usize),
    ReclaimDrains,
    /// Its last page, a signal, an error.
    Returns,
}

#[derive(Clone, Copy)]
pub struct Tier {
    pub without: Without,
    pub marks: [Marks; ZONES],
    /// Pages that are demoted at once.
    pub batch: u8,
    /// That kswapd may demote.
    pub list: u8,
    /// That are allocated.
    pub wanted: u8,
    /// That `memory.reclaim` demotes.
    pub proactive: u8,
}

impl Tier {
    pub const fn new(without: Without) -> Self {
        Self {
            without,
            marks: [
                Marks {
                    min: 2,
                    low: 4,
                    high: 6,
                    above: 1,
                },
                Marks {
                    min: 1,
                    low: 2,
                    high: 3,
                    above: 1,
                },
            ],
            batch: 2,
            list: 4,
            wanted: 3,
            proactive: 0,
        }
    }

    pub const fn with_reclaim(without: Without) -> Self {
        Self {
            list: 3,
            wanted: 2,
            proactive: 2,
            ..Self::new(without)
        }
    }

    fn keeps(&self, rule: Without) -> bool {
        self.without != rule
    }

    pub fn step(&self) -> u8 {
        self.marks.iter().map(|m| m.high - m.low).sum()
    }

    pub fn limit(&self, caller: Caller) -> usize {
        let node = NodeFacts {
            present: 1 << 20,
            asked: 200,
            step: match self.without {
                Without::Step => usize::MAX,
                _ => self.step().into(),
            },
        };

        node.limit(caller, 4096)
    }

    fn is_over_limit(&self, s: &State, caller: Caller) -> bool {
        (0..ZONES).map(|z| s.counted(z) as usize).sum::<usize>() > self.limit(caller)
    }

    fn may_defer(&self, s: &State, zone: usize, caller: Caller) -> bool {
        let folio = FolioFacts {
            caller,
            reclaims: true,
            free: match self.without {
                Without::Gate => usize::MAX,
                _ => s.free[zone].into(),
            },
            min: self.marks[zone].min.into(),
            low: self.marks[zone].low.into(),
            pages: 1,
            limit: self.limit(caller),
            mappings: 1,
            unusual: false,
            poisoned: false,
            isolates: false,
            file: None,
        };

        folio.verdict(|| false) == Verdict::Defer
    }

    fn credit(&self, s: &State, zone: usize) -> u8 {
        match self.without {
            Without::Credit => 0,
            Without::Zone => (0..ZONES).map(|z| s.counted(z)).sum(),
            _ => s.counted(zone),
        }
    }

    /// `pgdat_balanced()`: one zone is enough. With more pages than are free.
    pub fn is_balanced(&self, s: &State, more: impl Fn(usize) -> u8) -> bool {
        (0..ZONES).any(|z| s.free[z] + more(z) > self.marks[z].high)
    }

    /// `should_abort_scan()`: all zones
    pub fn is_safe(&self, s: &State, more: impl Fn(usize) -> u8) -> bool {
        (0..ZONES).all(|z| s.free[z] + more(z) > self.marks[z].high + self.marks[z].above)
    }

    /// `allow_direct_reclaim()`
    pub fn may_go_on(&self, s: &State, more: impl Fn(usize) -> u8) -> bool {
        let free: u8 = (0..ZONES).map(|z| s.free[z] + more(z)).sum();
        let min: u8 = self.marks.iter().map(|m| m.min).sum();

        free > min / 2
    }

    /// kswapd has found its node balanced, and nothing that it acts on changes any more.
    fn succeeds(&self, s: &mut State, success: Success) {
        s.drains += u8::from(success.released);
        s.check(s.drains <= 1, Fault::Drain);
        s.step = Step::Out;
    }

    fn look(&self, s: &mut State) {
        let balanced = self.is_balanced(s, |z| self.credit(s, z));

        s.progress = false;
        s.check(
            !balanced || self.is_balanced(s, |z| s.counted(z)),
            Fault::OtherZone,
        );
        s.check(
            balanced || !self.is_balanced(s, |z| s.held(z)),
            Fault::Beyond,
        );
        s.boosted &= balanced;
        s.step = if balanced && !s.boosted {
            Step::LookDrain(Success {
                twice: s.is_draining(),
                ..Success::default()
            })
        } else {
            Step::Isolate
        };
    }

    /// The first half of `kswapd_unbalanced_by_drain()`
    fn look_drain(&self, s: &mut State, success: Success) -> Option<()> {
        let nothing = (0..ZONES).all(|z| s.counted(z) == 0);

        if !self.keeps(Without::LookDrain) || (nothing && !self.keeps(Without::Again)) {
            let is_true = self.is_balanced(s, |_| 0) || success.allocated;

            s.check(is_true, Fault::FalseSuccess);
            self.succeeds(s, success);
            return Some(());
        }
        let released = s.holds(KSWAPD);

        s.drain()?;
        s.step = Step::LookAgain(Success {
            released,
            ..success
        });
        Some(())
    }

    /// The second half. It also forgets failures, for the same success.
    fn look_again(&self, s: &mut State, success: Success) {
        let is_true = self.is_balanced(s, |_| 0);
        let balanced = match self.without {
            Without::Plain => self.is_balanced(s, |z| self.credit(s, z)),
            _ => is_true,
        };

        if balanced {
            s.check(is_true, Fault::FalseSuccess);
            self.succeeds(s, success);
        } else {
            s.check(success.allocated || success.twice, Fault::VainLook);
            s.step = Step::Isolate;
        }
    }

    /// Puts the next page of the batch where it belongs.
    fn add(&self, s: &mut State) {
        let Some(zone) = (0..ZONES).find(|z| s.batch[*z] != [0; 2]) else {
            s.step = Step::Abort;
            return;
        };
        let [deferred, flushed] = &mut s.batch[zone];

        if *deferred == 0 {
            s.free[zone] += std::mem::take(flushed);
            return;
        }
        *deferred -= 1;
        s.held[KSWAPD][zone] += 1;
        if self.is_over_limit(s, Caller::Kswapd) {
            s.step = Step::AddDrain;
        }
    }

    fn end_batch(&self, s: &mut State, more: bool) -> Option<()> {
        if self.without == Without::Patience {
            let own = s.holds(KSWAPD);

            s.drain()?;
            s.drains += u8::from(own);
            s.check(s.drains <= 1, Fault::Drain);
        }
        if !more {
            s.step = Step::Clear;
            return Some(());
        }
        if s.list == 0 || self.is_safe(s, |z| self.credit(s, z)) {
            return None;
        }
        s.check(!self.is_safe(s, |z| s.held(z)), Fault::Beyond);
        s.step = Step::Isolate;
        Some(())
    }

    /// Failures are forgotten with the success of the second look, and not here.
    fn clear(&self, s: &mut State) {
        let nothing = (0..ZONES).all(|z| s.counted(z) == 0);

        s.step = match self.without {
            Without::Failures if s.progress => Step::ClearLook,
            Without::FailuresOnce if s.progress && nothing => Step::ClearLook,
            _ => Step::Throttled,
        };
    }

    fn clear_look(&self, s: &mut State) {
        let clears = self.is_balanced(s, |z| self.credit(s, z));

        s.check(!clears || self.is_balanced(s, |_| 0), Fault::FalseClear);
        s.step = Step::Throttled;
    }

    fn meet(&self, s: &mut State, tasks: bool) -> Option<()> {
        if tasks {
            if self.keeps(Without::ThrottledDrain) {
                s.drain()?;
            }
            s.check(
                self.may_go_on(s, |_| 0) || !self.may_go_on(s, |z| s.held[KSWAPD][z]),
                Fault::LeftAsleep,
            );
        }
        s.step = Step::Next;
        Some(())
    }

    fn next(&self, s: &mut State, again: bool) -> Option<()> {
        // A boost without progress ends; with progress it is soon used up.
        if again && s.boosted && !s.progress {
            return None;
        }
        s.boosted = false;
        s.step = if again { Step::Look } else { Step::Out };
        Some(())
    }

    fn out(&self, s: &mut State) -> Option<()> {
        if self.keeps(Without::OutDrain) {
            s.drains += u8::from(s.holds(KSWAPD));
            s.check(s.drains <= 1, Fault::Drain);
            s.drain()?;
        }
        s.drains = 0;
        s.step = Step::Sleep;
        Some(())
    }

    fn goes(&self, s: &mut State) -> Option<()> {
        match s.step {
            // For this one, the end of a drain that runs is enough.
            Step::Begin => {
                s.drain()?;
                s.step = Step::Look;
            }
            Step::Look => self.look(s),
            Step::LookDrain(success) => self.look_drain(s, success)?,
            Step::LookAgain(success) => self.look_again(s, success),
            Step::Add => self.add(s),
            Step::AddDrain => {
                s.drain()?;
                s.step = Step::Add;
            }
            Step::Clear => self.clear(s),
            Step::ClearLook => self.clear_look(s),
            Step::Out => self.out(s)?,
            // It also sleeps if it has failed too often, balanced or not.
            Step::Sleep => s.step = Step::Asleep,
            _ => return None,
        }
        Some(())
    }

    fn isolate(&self, s: &mut State, zone: usize, may_defer: bool) -> Option<()> {
        let pages: u8 = s.batch.iter().flatten().sum();

        if pages == self.batch {
            return None;
        }
        s.list = s.list.checked_sub(1)?;
        s.progress = true;
        if may_defer && self.may_defer(s, zone, Caller::Kswapd) {
            s.batch[zone][0] += 1;
            s.taken[zone] = 0;
        } else {
            s.batch[zone][1] += 1;
        }
        Some(())
    }

    fn wake(&self, s: &mut State) -> Option<()> {
        let is_low = (0..ZONES).any(|z| s.free[z] <= self.marks[z].low);

        // Also before it sleeps, if it finds that its node is not balanced.
        match s.step {
            Step::Sleep if !self.is_balanced(s, |_| 0) => {}
            Step::Asleep if is_low => {}
            _ => return None,
        }
        s.step = Step::Begin;
        Some(())
    }

    fn reclaim(&self, s: &mut State, zone: usize) -> Option<()> {
        let Proactive::Demotes(left @ 1..) = s.proactive else {
            return None;
        };

        s.proactive = Proactive::Demotes(left - 1);
        if !self.may_defer(s, zone, Caller::Proactive) {
            s.free[zone] += 1;
            return Some(());
        }
        s.held[RECLAIM][zone] += 1;
        if self.is_over_limit(s, Caller::Proactive) {
            s.proactive = Proactive::Drains(left - 1);
        }
        Some(())
    }

    pub fn acts(&self, s: &mut State, action: Action) -> Option<()> {
        match action {
            Action::Goes => self.goes(s)?,
            Action::Isolates(zone, may_defer) => self.isolate(s, zone, may_defer)?,
            Action::Demotes => s.step = Step::Add,
            Action::Scans(more) => self.end_batch(s, more)?,
            Action::Meets(tasks) => self.meet(s, tasks)?,
            Action::Repeats(again) => self.next(s, again)?,
            Action::Wakes => self.wake(s)?,
            Action::Takes(zone) => s.take(zone, self.marks[zone].gate() + 1)?,
            Action::Releases => {
                if s.is_draining() || !(s.holds(KSWAPD) || s.holds(RECLAIM)) {
                    return None;
                }
                s.twice = s.release();
            }
            Action::Subtracts if s.is_draining() => s.twice = [0; ZONES],
            Action::Subtracts => return None,
            Action::Reclaims(zone) => self.reclaim(s, zone)?,
            Action::ReclaimDrains => {
                let Proactive::Drains(left) = s.proactive else {
                    return None;
                };
                s.drain()?;
                s.proactive = Proactive::Demotes(left);
            }
            Action::Returns => {
                let Proactive::Demotes(_) = s.proactive else {
                    return None;
                };
                if self.keeps(Without::ReturnDrain) {
                    s.drain()?;
                }
                s.proactive = Proactive::Returned;
            }
        }
        Some(())
    }

    pub fn initial(&self, free: [u8; ZONES], boosted: bool) -> State {
        State {
            free,
            held: [[0; ZONES]; ADDERS],
            twice: [0; ZONES],
            step: Step::Begin,
            batch: [[0; 2]; ZONES],
            boosted,
            progress: false,
            proactive: match self.proactive {
                0 => Proactive::Returned,
                pages => Proactive::Demotes(pages),
            },
            list: self.list,
            wanted: self.wanted,
            taken: [0; ZONES],
            drains: 0,
            faults: 0,
        }
    }
}
