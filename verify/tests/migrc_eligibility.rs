// SPDX-License-Identifier: GPL-2.0

//! What may be deferred: every combination of facts.

use verify::migrc::eligibility::{check, Deny};

/// C's `enum migrc_fact`, in its order.
fn facts_of_c() -> Vec<String> {
    const HEADER: &str = include_str!("../../include/linux/migrc.h");
    let (_, rest) = HEADER.split_once("enum migrc_fact {").expect("is there");
    let (body, _) = rest.split_once('}').expect("ends");

    body.lines()
        .filter_map(|line| line.trim().split_once(','))
        .map(|(name, _)| name.to_string())
        .filter(|name| name != "NR_MIGRC_FACTS")
        .collect()
}

/// In the order of C, with the names that its `stats` have.
const REASONS: [(Deny, &str); 15] = [
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
    (Deny::Local, "local"),
    (Deny::Mixed, "mixed"),
];

/// Alone, and with all that come after it.
#[test]
fn each_reason_denies() {
    for (bit, (deny, name)) in REASONS.into_iter().enumerate() {
        assert_eq!(check(1 << bit), Err(deny), "{name}");
        assert_eq!(check(u32::MAX << bit), Err(deny), "{name}");
    }
}

#[test]
fn each_reason_is_counted_by_its_name() {
    const SHIM: &str = include_str!("../../mm/migrc/migrc_shim.c");
    let (_, rest) = SHIM.split_once("migrc_fact_names[] = {").expect("is there");
    let (body, _) = rest.split_once('}').expect("ends");
    let names: Vec<_> = body
        .lines()
        .filter_map(|line| line.trim().strip_prefix('[')?.split_once(']'))
        .map(|(fact, name)| {
            (
                fact.to_string(),
                name.trim_matches(['\t', ' ', '=', ',', '"']),
            )
        })
        .collect();
    let expected = facts_of_c().into_iter().zip(REASONS.map(|(_, name)| name));

    assert_eq!(names, expected.collect::<Vec<_>>());
}

/// Each fact has one bit and one name, and there is no bit between them without a name.
#[test]
fn facts_are_the_bits_of_c() {
    let upper = |deny: &Deny| {
        let name = format!("{deny:?}");
        let words = name.split_inclusive(|c: char| c.is_lowercase());

        // `FlushPending` is `FLUSH_PENDING`.
        words.fold(String::from("MIGRC"), |mut all, part| {
            if part.starts_with(|c: char| c.is_uppercase()) {
                all.push('_');
            }
            all + &part.to_uppercase()
        })
    };
    let names: Vec<_> = Deny::ALL.iter().map(upper).collect();

    assert_eq!(names, facts_of_c());
    for (bit, deny) in Deny::ALL.iter().enumerate() {
        assert_eq!(*deny as usize, bit);
    }
}

#[test]
fn nothing_speaks_against_nothing() {
    assert_eq!(check(0), Ok(()));
}

/// The first reason is the one that is counted, whatever else is true.
#[test]
fn first_reason_counts() {
    for facts in 1u32..1 << Deny::ALL.len() {
        assert_eq!(
            check(facts),
            Err(Deny::ALL[facts.trailing_zeros() as usize]),
            "{facts:#x}"
        );
    }
}

/// A fact that only C knows denies, but hides none that has a name.
#[test]
fn unknown_facts_deny() {
    for bit in Deny::ALL.len()..u32::BITS as usize {
        assert_eq!(check(1 << bit), Err(Deny::Reason), "{bit}");
        for deny in Deny::ALL {
            assert_eq!(check(1 << bit | 1 << *deny as u32), Err(*deny), "{bit}");
        }
    }
    assert!(check(u32::MAX).is_err());
}
