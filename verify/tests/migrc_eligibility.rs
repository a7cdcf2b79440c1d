// SPDX-License-Identifier: GPL-2.0

//! What may be deferred: every combination of facts, beside the rule in bits that C had before.

use verify::migrc::{
    eligibility::{
        AreaFacts, Caller, Deny, FileFacts, FolioFacts, Geometry, MappingFacts, NodeFacts,
        PageFacts, Protection, Reasons, Verdict,
    },
    walk::{End, Permit, Walk},
};

/// C's list of facts, in its order: each with its name.
fn facts_of_c() -> Vec<(String, String)> {
    const HEADER: &str = include_str!("../../include/linux/migrc_types.h");
    let (_, rest) = HEADER.split_once("MIGRC_FACTS(EM)").expect("is there");
    let (body, _) = rest.split_once("\n\n").expect("ends");

    body.lines()
        .filter_map(|line| {
            line.trim()
                .strip_prefix("EM(")?
                .split_once(')')?
                .0
                .split_once(", ")
        })
        .map(|(fact, name)| (fact.to_string(), name.trim_matches('"').to_string()))
        .collect()
}

/// In the order of C, with the names that its `stats` have.
const REASONS: [(Deny, &str); 16] = [
    (Deny::Reason, "reason"),
    (Deny::Memory, "memory"),
    (Deny::Limit, "limit"),
    (Deny::Mappings, "mappings"),
    (Deny::NotFrozen, "not_frozen"),
    (Deny::Kind, "kind"),
    (Deny::Poisoned, "poisoned"),
    (Deny::Isolated, "isolated"),
    (Deny::Writable, "writable"),
    (Deny::FlushPending, "flush_pending"),
    (Deny::Shared, "shared"),
    (Deny::Notifier, "notifier"),
    (Deny::Block, "block"),
    (Deny::Merged, "merged"),
    (Deny::Local, "local"),
    (Deny::Mixed, "mixed"),
];

/// Alone, and with all that come after it.
#[test]
fn the_first_reason_counts() {
    let mut after = Reasons::NONE;

    assert_eq!(after.first(), None);
    assert!(after.is_empty());
    for (deny, name) in REASONS.into_iter().rev() {
        assert!(!after.has(deny), "{name}");
        after = after.with(deny);
        assert_eq!(Reasons::NONE.with(deny).first(), Some(deny), "{name}");
        assert_eq!(after.first(), Some(deny), "{name}");
        assert!(after.has(deny) && !after.is_empty());
        assert_eq!(after.or(Reasons::NONE.with(deny)), after);
    }
}

#[test]
fn each_reason_is_counted_by_its_name() {
    let names: Vec<_> = facts_of_c().into_iter().map(|(_, name)| name).collect();

    assert_eq!(names, REASONS.map(|(_, name)| name));
}

/// Each fact has one bit and one name, and there is no bit between them without a name.
#[test]
fn facts_are_the_bits_of_c() {
    let upper = |deny: &Deny| {
        let name = format!("{deny:?}");
        let words = name.split_inclusive(|c: char| c.is_lowercase());

        // `FlushPending` is `FLUSH_PENDING`.
        words.fold(String::new(), |mut all, part| {
            if !all.is_empty() && part.starts_with(|c: char| c.is_uppercase()) {
                all.push('_');
            }
            all + &part.to_uppercase()
        })
    };
    let names: Vec<_> = Deny::ALL.iter().map(upper).collect();
    let facts: Vec<_> = facts_of_c().into_iter().map(|(fact, _)| fact).collect();

    assert_eq!(names, facts);
    for (bit, deny) in Deny::ALL.iter().enumerate() {
        assert_eq!(*deny as usize, bit);
    }
}

/// What the facts of a folio are in C's table: all but who has access to a file.
fn bits_of_folio(f: &FolioFacts) -> u32 {
    // Those that demote reclaim, and are allowed to. kswapd runs below the low watermark.
    let may_reclaim = matches!(f.caller, Caller::Damon | Caller::Kswapd | Caller::Proactive);
    let enough = match f.caller {
        Caller::Kswapd => 2 * f.free > f.min + f.low,
        _ => f.free > f.low,
    };
    let bits = [
        (f.caller == Caller::Other, Deny::Reason),
        ((f.reclaims && !may_reclaim) || !enough, Deny::Memory),
        (f.pages > 1 && f.pages > f.limit, Deny::Limit),
        (f.mappings > 1024 * f.pages, Deny::Mappings),
        (f.unusual, Deny::Kind),
        (f.poisoned, Deny::Poisoned),
        (f.isolates, Deny::Isolated),
    ];

    bits.iter()
        .filter(|(is_true, _)| *is_true)
        .fold(0, |all, (_, deny)| all | 1 << *deny as u32)
}

const CALLERS: [Caller; 7] = [
    Caller::Syscall,
    Caller::Mbind,
    Caller::NumaHint,
    Caller::Damon,
    Caller::Kswapd,
    Caller::Proactive,
    Caller::Other,
];

/// A file that may be frozen.
const FROZEN: FileFacts = FileFacts {
    dirty: false,
    writeback: false,
    uptodate: true,
    regular: true,
    special: false,
    supported: true,
};

/// All folios on both sides of each bound.
fn folios() -> impl Iterator<Item = FolioFacts> {
    let bools = [false, true];

    CALLERS.into_iter().flat_map(move |caller| {
        (0..1u32 << 11).map(move |bits| {
            let bit = |n: u32| bools[(bits >> n & 1) as usize];
            let pages = if bit(0) { 512 } else { 1 };

            FolioFacts {
                caller,
                reclaims: bit(1),
                // On both sides of each watermark, and of the middle between them.
                free: match (bit(2), bit(10)) {
                    (false, false) => 70,
                    (false, true) => 71,
                    (true, false) => 100,
                    (true, true) => 101,
                },
                min: 40,
                low: 100,
                pages,
                limit: match (bit(3), bit(4)) {
                    (false, false) => 0,
                    (false, true) => 511,
                    _ => 512,
                },
                mappings: 1024 * pages + usize::from(bit(5)),
                unusual: bit(6),
                poisoned: bit(7),
                isolates: bit(8),
                file: bit(9).then_some(FROZEN),
            }
        })
    })
}

fn counted(permit: Permit) {
    // SAFETY: There is no TLB here.
    unsafe { permit.counted() };
}

/// The rule that was in C before: bits are collected, none defers, the lowest is counted. A file is
/// frozen only if there is none.
#[test]
fn folios_as_the_table_says() {
    for facts in folios() {
        for frozen in [false, true] {
            let mut asked = 0;
            let verdict = facts.verdict(|| {
                asked += 1;
                frozen
            });
            let mut bits = bits_of_folio(&facts);
            let asks = bits == 0 && facts.file.is_some();

            if asks && !frozen {
                bits |= 1 << Deny::NotFrozen as u32;
            }
            assert_eq!(asked, u32::from(asks), "{facts:?}");
            match Deny::ALL.get(bits.trailing_zeros() as usize) {
                Some(deny) => assert_eq!(verdict, Verdict::Forbid(*deny), "{facts:?}"),
                None => assert_eq!(verdict, Verdict::Defer, "{facts:?}"),
            }
        }
    }
}

/// The rule that was in C before, with a bit for each fact. `freeze` is not asked of a file that it
/// denies, and nothing else makes a difference.
#[test]
fn files_as_before() {
    const NEEDED: u32 = 0b101100;
    let folio = folios()
        .find(|f| f.file == Some(FROZEN) && f.verdict(|| true) == Verdict::Defer)
        .expect("is there");
    let mut deferred = 0;

    for bits in 0..1u32 << 6 {
        for frozen in [false, true] {
            let bit = |n: u32| bits >> n & 1 != 0;
            let file = FileFacts {
                dirty: bit(0),
                writeback: bit(1),
                uptodate: bit(2),
                regular: bit(3),
                special: bit(4),
                supported: bit(5),
            };
            let mut asked = false;
            let facts = FolioFacts {
                file: Some(file),
                ..folio
            };
            let verdict = facts.verdict(|| {
                asked = true;
                frozen
            });
            let expected = match bits == NEEDED && frozen {
                true => Verdict::Defer,
                false => Verdict::Forbid(Deny::NotFrozen),
            };

            assert_eq!(verdict, expected, "{file:?}");
            assert_eq!(asked, bits == NEEDED, "{file:?}");
            deferred += u32::from(verdict == Verdict::Defer);
        }
    }
    assert_eq!(deferred, 1);
}

#[test]
fn limits() {
    for page in [4096, 16384, 65536] {
        let most = (64 << 20) / page;
        let limit = |asked, present, page| {
            let facts = NodeFacts {
                asked,
                present,
                step: 5,
            };

            for caller in CALLERS {
                let all = facts.limit(caller, page);
                let demotes = matches!(caller, Caller::Kswapd | Caller::Proactive);

                assert_eq!(caller.demotes(), demotes);
                if demotes {
                    assert_eq!(all, 5.min(facts.limit(Caller::Syscall, page)));
                } else {
                    assert_eq!(all, facts.limit(Caller::Syscall, page));
                }
            }
            facts.limit(Caller::Syscall, page)
        };

        assert_eq!(limit(0, 0, page), 0);
        assert_eq!(limit(0, 99, page), 0);
        assert_eq!(limit(0, 12_345, page), 123.min(most));
        assert_eq!(limit(0, 100 * most, page), most);
        assert_eq!(limit(0, 100 * most - 1, page), most - 1);
        assert_eq!(limit(0, usize::MAX, page), most);
        assert_eq!(limit(7, usize::MAX, page), 7);
        assert_eq!(limit(usize::MAX, 0, page), usize::MAX);
    }
}

/// What a walk may meet.
#[derive(Clone, Copy, Debug)]
enum Event {
    Mapping(MappingFacts),
    Flushed { writable: bool, shared: bool },
    Poisoned,
}

/// Without blocks, the bit of [`Deny::Block`] is that the entries are of no single size.
fn mapping(bits: u32) -> MappingFacts {
    MappingFacts {
        writable: bits & 1 != 0,
        pending: bits & 2 != 0,
        shared: bits & 4 != 0,
        notifier: bits & 8 != 0,
        geometry: if bits & 16 != 0 {
            Geometry::Odd
        } else {
            Geometry::Pages
        },
        blocks: false,
        merges: bits & 32 != 0,
        accessible: bits & 64 == 0,
    }
}

fn events() -> impl Iterator<Item = Event> + Clone {
    // Of all facts of an entry that is not accessible, none counts: only some of them are tried.
    let mappings = (0..64).chain([64, 65, 68, 127]);
    let mappings = mappings.map(|bits| Event::Mapping(mapping(bits)));
    let flushed = [(false, false), (true, false), (false, true), (true, true)]
        .map(|(writable, shared)| Event::Flushed { writable, shared });

    mappings.chain(flushed).chain([Event::Poisoned])
}

/// The walk that was in C before: two sets of bits.
#[derive(Clone, Copy, Debug, Default)]
struct OldWalk {
    deferred: bool,
    mixed: bool,
    flushed: u32,
    denied: u32,
}

impl OldWalk {
    fn meet(&mut self, event: Event, mixes: bool) -> bool {
        let bit = |deny: Deny| 1u32 << deny as u32;

        match event {
            Event::Poisoned => self.denied |= bit(Deny::Poisoned),
            Event::Flushed { writable, shared } if writable | shared => {
                self.denied |= bit(Deny::Local);
            }
            Event::Flushed { .. } => self.flushed |= bit(Deny::Local),
            Event::Mapping(f) if !f.accessible => {}
            Event::Mapping(f) => {
                let facts = [
                    (f.writable, Deny::Writable),
                    (f.pending, Deny::FlushPending),
                    (f.shared, Deny::Shared),
                    (f.notifier, Deny::Notifier),
                    (f.geometry == Geometry::Odd, Deny::Block),
                    (f.merges, Deny::Merged),
                ]
                .into_iter()
                .filter(|(is_true, _)| *is_true)
                .fold(0, |all, (_, deny)| all | bit(deny));

                if facts & !(bit(Deny::FlushPending) | bit(Deny::Block) | bit(Deny::Merged)) != 0 {
                    self.denied |= facts;
                } else if facts != 0 {
                    self.flushed |= facts;
                } else if self.denied == 0 || mixes {
                    self.deferred = true;
                    return true;
                }
            }
        }
        false
    }

    /// (whether all was deferred, the reason that is counted)
    fn end(&mut self, frozen: bool, mixes: bool) -> (bool, Option<Deny>) {
        let first = |bits: u32| Deny::ALL.get(bits.trailing_zeros() as usize).copied();
        let of_the_folio = 1 << Deny::NotFrozen as u32 | 1 << Deny::Poisoned as u32;

        if self.deferred && self.denied == 0 {
            if frozen {
                return (true, None);
            }
            self.denied |= 1 << Deny::NotFrozen as u32;
        }
        if !self.deferred {
            return (false, first(self.denied | self.flushed));
        }
        if mixes {
            return (true, None);
        }
        self.mixed = true;
        let counted = first(self.denied & of_the_folio).unwrap_or(Deny::Mixed);

        (false, Some(counted))
    }
}

/// All walks of up to three mappings, with everything that may happen.
#[test]
fn walks_as_before() {
    let none = [None];
    let some = events().map(Some);
    let or_none = || none.into_iter().chain(some.clone());
    let mut walks = 0u32;

    for mixes in [false, true] {
        for first in or_none() {
            for second in or_none() {
                for third in or_none() {
                    let mut old = OldWalk::default();
                    let mut new = Walk::default();

                    for event in [first, second, third].into_iter().flatten() {
                        let defers = match event {
                            Event::Mapping(facts) => new.meet(&facts, mixes).map(counted).is_some(),
                            Event::Flushed { writable, shared } => {
                                new.meet_flushed(writable, shared);
                                false
                            }
                            Event::Poisoned => {
                                new.forbid(Deny::Poisoned);
                                false
                            }
                        };

                        assert_eq!(defers, old.meet(event, mixes), "{old:?} {event:?}");
                    }
                    for frozen in [false, true] {
                        let (mut old, mut new) = (old, new);
                        let asks = old.deferred && old.denied == 0;
                        let mut asked = false;
                        let end = new.end(
                            || {
                                asked = true;
                                frozen
                            },
                            mixes,
                        );
                        let now = match end {
                            End::Deferred => (true, None),
                            End::Flushed(deny) => (false, deny),
                            End::Mixed(deny) => (false, Some(deny)),
                        };

                        assert_eq!(now, old.end(frozen, mixes), "{old:?}");
                        assert_eq!(new.mixed, old.mixed);
                        assert_eq!(asked, asks);
                        walks += 1;
                    }
                }
            }
        }
    }
    assert_eq!(walks, 2 * 2 * 74 * 74 * 74);
}

/// All walks of three mappings, of any size: what is deferred is all of the size of the first, and
/// blocks only where they may be. The rest is flushed, and says nothing of the others.
#[test]
fn a_folio_is_deferred_in_one_size() {
    const SIZES: [Geometry; 3] = [Geometry::Pages, Geometry::Blocks, Geometry::Odd];
    let of = |geometry, blocks| MappingFacts {
        geometry,
        blocks,
        ..mapping(0)
    };

    for (first, second, third) in SIZES
        .into_iter()
        .flat_map(|a| SIZES.map(|b| (a, b)))
        .flat_map(|(a, b)| SIZES.map(|c| (a, b, c)))
    {
        for blocks in [false, true] {
            let mut walk = Walk::default();
            let mut deferred = Vec::new();

            for size in [first, second, third] {
                let may = match size {
                    Geometry::Pages => true,
                    Geometry::Blocks => blocks,
                    Geometry::Odd => false,
                };
                let fits = deferred.first().is_none_or(|first| *first == size);
                let permit = walk.meet(&of(size, blocks), false).map(counted);

                assert_eq!(permit.is_some(), may && fits, "{size:?} after {deferred:?}");
                if permit.is_some() {
                    deferred.push(size);
                }
            }
            if let Some(first) = deferred.first() {
                assert_eq!(walk.blocks, *first == Geometry::Blocks);
                assert_eq!(walk.end(|| true, false), End::Deferred);
            } else {
                assert_eq!(walk.end(|| true, false), End::Flushed(Some(Deny::Block)));
            }
        }
    }
}

/// Whatever else is true of it.
#[test]
fn an_inaccessible_entry_says_nothing() {
    for bits in 64..128 {
        for mixes in [false, true] {
            let mut walk = Walk::default();

            assert!(walk.meet(&mapping(bits), mixes).is_none(), "{bits:#b}");
            assert_eq!(walk, Walk::default(), "{bits:#b}");
        }
    }
}

/// Each folio has a walk of its own, but what was deferred of one before is still to be drained.
#[test]
fn a_walk_begins() {
    let mut walk = Walk::default();

    counted(walk.meet(&mapping(0), false).unwrap());
    assert!(walk.meet(&mapping(1), false).is_none());
    assert_eq!(walk.end(|| true, false), End::Mixed(Deny::Mixed));
    walk.begin();
    assert_eq!(
        walk,
        Walk {
            mixed: true,
            ..Walk::default()
        }
    );
}

/// Each bit is a fact.
fn page(bits: u32) -> PageFacts {
    let bit = |n: u32| bits >> n & 1 != 0;

    PageFacts {
        area: AreaFacts {
            anonymous: bit(0),
            locked: bit(1),
            shadow_stack: bit(2),
            userfaultfd: bit(3),
            soft_dirty: bit(4),
            notifier: bit(5),
        },
        large: bit(6),
        device: bit(7),
        dirty: bit(8),
    }
}

/// The rule that was in C before, with a bit for each fact: of an area only the first may be set.
/// Nothing is asked of a page that keeps its permission anyway.
#[test]
fn pages_lose_permission_as_before() {
    const AREA: u32 = (1 << 6) - 1;
    const ANONYMOUS: u32 = 1 << 0;
    const OF_FOLIO: u32 = 1 << 6 | 1 << 7;
    const DIRTY: u32 = 1 << 8;
    let mut found = [0; 3];

    for bits in 0..1 << 9 {
        for pays in [false, true] {
            let facts = page(bits);
            let may = bits & AREA == ANONYMOUS;
            let mut asked = 0;
            let verdict = facts.verdict(|| {
                asked += 1;
                pays
            });
            let asks = may && bits & (OF_FOLIO | DIRTY) == 0;
            let expected = if bits & OF_FOLIO != 0 || !may {
                Protection::AsBefore
            } else if bits & DIRTY != 0 {
                Protection::Clean
            } else if pays {
                Protection::ReadOnly
            } else {
                Protection::AsBefore
            };

            assert_eq!(facts.area.may_lose_permission(), may, "{facts:?}");
            assert_eq!(verdict, expected, "{facts:?}");
            assert_eq!(asked, u32::from(asks), "{facts:?}");
            found[verdict as usize] += 1;
        }
    }
    // One set of bits is clean, and one loses permission if it pays.
    assert_eq!(found, [2 * 512 - 3, 2, 1]);
}
