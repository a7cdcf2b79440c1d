// SPDX-License-Identifier: GPL-2.0

//! Long walks, beside a look at all that they have met.

#![no_main]

use libfuzzer_sys::fuzz_target;
use verify::migrc::{
    eligibility::{Deny, Geometry, MappingFacts, Verdict},
    walk::{End, Permit, Walk},
};

fuzz_target!(|mappings: Vec<u8>| {
    let mut walk = Walk::default();
    let (mut deferred, mut reasons, mut forbidden) = (0, Vec::new(), false);

    for bits in mappings {
        let facts = MappingFacts {
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
        };
        // SAFETY: There is no TLB here.
        let counted = |permit: Permit| unsafe { permit.counted() };
        let permit = walk.meet(&facts, false).map(counted).is_some();

        assert_eq!(permit, bits & 127 == 0 && !forbidden);
        if !facts.accessible {
            continue;
        }
        deferred += u32::from(permit);
        forbidden |= bits & 13 != 0;
        if let Verdict::Flush(deny) | Verdict::Forbid(deny) = facts.verdict(None) {
            assert_eq!(deny as u32, 8 + (bits & 63).trailing_zeros());
            reasons.push(deny as u32);
        }
    }
    let end = walk.end(|| true, false);

    match (deferred, forbidden) {
        (0, _) => {
            let first = reasons
                .into_iter()
                .min()
                .map(|deny| Deny::ALL[deny as usize]);

            assert_eq!(end, End::Flushed(first));
        }
        (_, true) => assert_eq!(end, End::Mixed(Deny::Mixed)),
        (_, false) => assert_eq!(end, End::Deferred),
    }
});
