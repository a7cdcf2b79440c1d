// SPDX-License-Identifier: GPL-2.0

//! Rust TLB batch sample.
//!
//! Each open of `/dev/rust-tlb-batch` invalidates the translations of 512 pages of the opening
//! process, once page by page and once as a batch, and logs the time of both. Nothing is unmapped:
//! an unneeded invalidation only makes the next access walk the page table.

use core::ops::Range;
use kernel::{
    fs::File,
    miscdevice::{
        MiscDevice,
        MiscDeviceOptions,
        MiscDeviceRegistration, //
    },
    mm::{
        tlb_batch::{
            Reason,
            TlbBatch, //
        },
        Mm, //
    },
    page::PAGE_SIZE,
    prelude::*,
    time::{
        Instant,
        Monotonic, //
    },
};

module! {
    type: RustTlbBatchModule,
    name: "rust_tlb_batch",
    authors: ["The tlb-rs developers"],
    description: "Rust TLB batch sample",
    license: "GPL",
}

const PAGES: usize = 512;

#[pin_data]
struct RustTlbBatchModule {
    #[pin]
    _miscdev: MiscDeviceRegistration<RustTlbBatch>,
}

impl kernel::InPlaceModule for RustTlbBatchModule {
    fn init(_module: &'static ThisModule) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            _miscdev <- MiscDeviceRegistration::register(MiscDeviceOptions {
                name: c"rust-tlb-batch",
            }),
        })
    }
}

struct RustTlbBatch;

/// Page `i` of the demonstration.
fn page(i: usize) -> Range<usize> {
    let start = (i + 1) * PAGE_SIZE;

    start..start + PAGE_SIZE
}

fn demonstrate(mm: &Mm) -> Result {
    let start = Instant::<Monotonic>::now();
    for i in 0..PAGES {
        let mut batch = TlbBatch::new();

        batch.add(mm, page(i))?;
        batch.flush(Reason::Flush);
    }
    let singly = start.elapsed();

    let start = Instant::<Monotonic>::now();
    let mut batch = TlbBatch::new();
    for i in 0..PAGES {
        batch.add(mm, page(i))?;
    }
    let ranges = batch.ranges();
    batch.flush(Reason::Flush);
    let batched = start.elapsed();

    pr_info!(
        "{PAGES} pages: {} ns one by one, {} ns in {ranges} range\n",
        singly.as_nanos(),
        batched.as_nanos()
    );
    Ok(())
}

#[vtable]
impl MiscDevice for RustTlbBatch {
    type Ptr = KBox<Self>;

    fn open(_file: &File, _misc: &MiscDeviceRegistration<Self>) -> Result<KBox<Self>> {
        let task = current!();

        demonstrate(task.mm().ok_or(EINVAL)?)?;
        Ok(KBox::new(RustTlbBatch, GFP_KERNEL)?)
    }
}
