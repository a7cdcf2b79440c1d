// SPDX-License-Identifier: GPL-2.0

//! The credit of an address space, beside what has happened in it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use verify::model::readmostly::Mm;

fuzz_target!(|events: Vec<(u8, u16)>| {
    let mut mm = Mm::default();

    // One of them many times: the limits are far away.
    for (event, times) in events {
        for _ in 0..times {
            match event % 3 {
                0 => drop(mm.offer()),
                1 => mm.hit(),
                _ => mm.miss(),
            }
        }
        mm.check();
    }
});
