// SPDX-License-Identifier: GPL-2.0

//! Any facts, beside a look at one bit after the other.

#![no_main]

use libfuzzer_sys::fuzz_target;
use verify::migrc::eligibility::{check, Deny};

fuzz_target!(|facts: u32| {
    let first = (0..u32::BITS).find(|bit| facts & 1 << bit != 0);
    let deny = first.map(|bit| {
        let named = Deny::ALL.iter().find(|deny| **deny as u32 == bit);

        named.copied().unwrap_or(Deny::Reason)
    });

    assert_eq!(check(facts).err(), deny);
});
