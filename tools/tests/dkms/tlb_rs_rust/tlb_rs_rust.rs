// SPDX-License-Identifier: GPL-2.0

//! Test of the headers package: a Rust module that allocates, calls back and is dropped.

use kernel::prelude::*;

module! {
    type: Squares,
    name: "tlb_rs_rust",
    authors: ["The tlb-rs developers"],
    description: "Test of the headers package: a Rust module",
    license: "GPL",
}

struct Squares {
    of: KVec<u32>,
}

impl kernel::Module for Squares {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let mut of = KVec::new();
        for number in 1..=4u32 {
            of.push(number.checked_mul(number).ok_or(EOVERFLOW)?, GFP_KERNEL)?;
        }
        pr_info!("the squares are {:?}\n", &of[..]);
        Ok(Squares { of })
    }
}

impl Drop for Squares {
    fn drop(&mut self) {
        pr_info!(
            "gone, the squares added up to {}\n",
            self.of.iter().sum::<u32>()
        );
    }
}
