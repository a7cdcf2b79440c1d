// SPDX-License-Identifier: GPL-2.0

//! What the compiler has to refuse: an owed invalidation that is duplicated, made up or forgotten,
//! the source of a migration that is released unflushed, and changes of page tables that are made
//! too early, or whose pages are freed twice or never.
//!
//! Each case is compiled twice against the kernel's own file: without its last line, where it has
//! to be accepted, so that it is not refused for something else, and with it, where it has to be
//! refused for the expected reason.
//!
//! What is dropped in between is refused as the kernel does it, by `build_error!()`: a function
//! that does not exist is called where the optimiser has left a drop.

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// A module of the kernel, and a function that has values of its types.
struct Subject {
    path: &'static str,
    /// What it takes from its parent, besides what is called for a drop.
    parent: &'static str,
    uses: &'static str,
    signature: &'static str,
    /// Types without any content for a program that calls it.
    types: &'static str,
    call: &'static str,
}

/// It has a batch and something that is owed.
const BATCH: Subject = Subject {
    path: "rust/kernel/mm/tlb_batch/ranges.rs",
    parent: "",
    uses: "Holds, Owed, Ranges, Tlb",
    signature: "case<H: Holds<usize>>(mut batch: Ranges<usize, H>, mut tlb: impl Tlb<usize>, \
                owed: Owed<usize>)",
    types: "
        struct Nothing;
        impl Tlb<usize> for Nothing {
            fn issue(&mut self, _: usize, start: usize, _: usize) { black_box(start); }
            fn evict(&mut self, _: usize, start: usize, _: usize) { black_box(start); }
            fn issue_mm(&mut self, _: usize, bytes: usize) { black_box(bytes); }
            fn prefers_mm(&self, bytes: usize) -> bool { black_box(bytes) > 1 }
            fn flush(&mut self, _: usize, _: usize, _: usize, _: usize) -> bool { false }
            fn sync(&mut self) {}
        }
        impl Holds<usize> for Nothing {
            fn mm(&self) -> usize { black_box(1) }
        }
    ",
    call: "case::<Nothing>(black_box(Ranges::new(0)), Nothing)",
};

/// It has a ledger and what was taken out of one.
const LEDGER: Subject = Subject {
    path: "mm/migrc/ledger.rs",
    parent: "",
    uses: "Chain, Flushed, Ledger, Mms, Unflushed",
    signature: "case<C: Chain>(mut ledger: Ledger<C>, mut unflushed: Unflushed<C>, \
                mut mms: impl Mms, folio: C::Folio)",
    types: "
        struct Nothing(u8);
        impl Chain for Nothing {
            const EMPTY: Self = Nothing(0);
            type Folio = ();
            fn push(&mut self, _: ()) { black_box(&mut self.0); }
            fn append(&mut self, other: Self) { self.0 = black_box(other.0); }
            fn is_empty(&self) -> bool { black_box(self.0) == 0 }
        }
        unsafe impl Mms for Nothing {
            fn flush_all(&mut self) -> usize { black_box(1) }
        }
    ",
    call: "case::<Nothing>(black_box(Ledger::new()), Nothing(0))",
};

/// It has a batch of changes, and what one is made of.
const CHANGES: Subject = Subject {
    path: "mm/hvo/batch.rs",
    parent: concat!(
        "#[path = \"",
        env!("CARGO_MANIFEST_DIR"),
        "/src/store.rs\"]
         mod store;
         use {store::Store, subject as batch};"
    ),
    uses:
        "Applied, Batch, Collecting, Grace, Memory, Outcome, Owner, Prepared, Progress, Room, Ways",
    signature: "case<M: Memory>(mut batch: Batch<M, Collecting>, owner: M::Owner, page: M::Page, \
                run: M::Run, mut ways: impl Ways<M::Run>, grace: Grace)",
    types: "
        struct Nothing(u8);
        impl Drop for Nothing {
            fn drop(&mut self) { black_box(&mut self.0); }
        }
        impl Owner<Nothing> for Nothing {
            unsafe fn end(self, outcome: Outcome, _: &[Option<Nothing>]) { black_box(outcome); }
        }
        impl Memory for Nothing {
            type Owner = Nothing;
            type Page = Nothing;
            type Run = usize;
        }
        unsafe impl Ways<usize> for Nothing {
            unsafe fn change(&mut self, runs: &[usize], _: &[bool], progress: &mut [Progress]) {
                black_box((runs.len(), progress.len()));
            }
        }
    ",
    call: "let room = Room { units: 1, runs: 1, values: 1, old: 1, new: 1 };
           let Ok(batch) = Batch::new(black_box(room)) else { return };
           let grace = unsafe { Grace::is_over() };
           case::<Nothing>(batch, Nothing(0), Nothing(0), black_box(1), Nothing(0), grace)",
};

/// It has the walk of a folio's mappings.
const WALK: Subject = Subject {
    path: "mm/migrc/walk.rs",
    parent: concat!(
        "#[path = \"",
        env!("CARGO_MANIFEST_DIR"),
        "/../mm/migrc/eligibility.rs\"]
         mod eligibility;"
    ),
    uses: "Permit, Walk",
    signature: "case(mut walk: Walk, facts: eligibility::MappingFacts)",
    types: "",
    call: "case(black_box(Walk::default()), black_box(eligibility::MappingFacts {
               writable: false, pending: false, shared: false, notifier: false,
               geometry: eligibility::Geometry::Pages, blocks: false, merges: false,
               accessible: true,
           }))",
};

/// The diagnostics of rustc for the body of the function.
fn compile(subject: &Subject, body: &str) -> Result<(), String> {
    let Subject {
        path,
        parent,
        uses,
        signature,
        ..
    } = subject;
    let path = format!("{ROOT}/{path}");
    let source = format!(
        r#"
            #![allow(unused)]
            #![deny(unused_must_use)]
            fn owed_dropped() {{}}
            fn unflushed_dropped() {{}}
            fn applied_dropped() {{}}
            fn permit_dropped() {{}}
            {parent}
            #[path = {path:?}]
            mod subject;
            use subject::{{{uses}}};

            fn {signature} {{
                {body}
            }}
        "#
    );
    let args = [
        "--crate-type=lib",
        "--emit=metadata",
        "--error-format=short",
        "-o",
        "-",
    ];

    rustc(&args, &source)
}

/// The diagnostics of rustc for this source.
fn rustc(args: &[&str], source: &str) -> Result<(), String> {
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()))
        .args(["--edition=2021", "-"])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("rustc starts");

    std::io::Write::write_all(&mut rustc.stdin.take().unwrap(), source.as_bytes()).unwrap();
    let out = rustc.wait_with_output().unwrap();
    if out.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&out.stderr).into_owned())
    }
}

/// The same for a program with this function, optimised and linked. Its arguments are those of the
/// other, but for what cannot be had without a batch or a ledger.
fn link(subject: &Subject, body: &str) -> Result<(), String> {
    static PROGRAMS: AtomicUsize = AtomicUsize::new(0);

    let Subject {
        path,
        parent,
        uses,
        signature,
        types,
        call,
    } = subject;
    let path = format!("{ROOT}/{path}");
    let signature = signature
        .replace(", owed: Owed<usize>", "")
        .replace("mut unflushed: Unflushed<C>, ", "")
        .replace(", folio: C::Folio", "");
    let source = format!(
        r#"
            #![allow(unused)]
            use std::hint::black_box;
            extern "C" {{ fn build_error(); }}
            #[inline(always)]
            fn owed_dropped() {{ unsafe {{ build_error() }} }}
            #[inline(always)]
            fn unflushed_dropped() {{ unsafe {{ build_error() }} }}
            #[inline(always)]
            fn applied_dropped() {{ unsafe {{ build_error() }} }}
            #[inline(always)]
            fn permit_dropped() {{ unsafe {{ build_error() }} }}
            {parent}
            #[path = {path:?}]
            mod subject;
            use subject::{{{uses}}};
            {types}
            fn {signature} {{
                {body}
            }}
            fn main() {{
                {call};
            }}
        "#
    );
    let dir = format!("owed-{}", PROGRAMS.fetch_add(1, Relaxed));
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(dir);
    let program = dir.join("program");
    // As the kernel is built.
    let flags = ["-Copt-level=2", "-Cpanic=abort", "-Ccodegen-units=1", "-o"];

    std::fs::create_dir_all(&dir).expect("can be made");
    let result = rustc(
        &[&flags[..], &[program.to_str().expect("is text")]].concat(),
        &source,
    );
    // There are objects in it if it was not linked.
    std::fs::remove_dir_all(dir).expect("was made");
    result
}

/// `start` is part of both, and then what it has is `used`, or there is a way out without that.
#[track_caller]
fn not_built(subject: &Subject, start: &str, used: &str, dropped: &str) {
    assert_eq!(link(subject, &format!("{start}\n{used}")), Ok(()));
    let body = format!("{start}\n{dropped}\n{used}");
    let errors = link(subject, &body).expect_err(dropped);

    // The linker's, whichever it is.
    assert!(errors.contains("build_error"), "`{dropped}`: {errors}");
    assert!(!errors.contains("error[E"), "`{dropped}`: {errors}");
}

#[track_caller]
fn refused_of(subject: &Subject, start: &str, last: &str, reason: &str) {
    assert_eq!(compile(subject, start), Ok(()), "without `{last}`");
    let errors = compile(subject, &format!("{start}\n{last}")).expect_err(last);
    let mut lines = errors.lines().filter(|line| line.contains("error"));

    assert!(errors.contains(reason), "`{last}`: {errors}");
    // For that alone: rustc 1.85 reports each private field. The last line is the summary.
    assert!(
        lines.all(|line| line.contains(reason) || line.contains("aborting due to")),
        "`{last}`: {errors}"
    );
}

#[track_caller]
fn refused(start: &str, last: &str, reason: &str) {
    refused_of(&BATCH, start, last, reason);
}

#[test]
fn owed_cannot_be_cloned() {
    refused("", "let _ = owed.clone();", "error[E0599]");
}

#[test]
fn owed_cannot_be_copied() {
    refused(
        "let copy = owed; copy.issue(&mut tlb);",
        "owed.issue(&mut tlb);",
        "error[E0382]",
    );
}

#[test]
fn owed_is_issued_once() {
    refused(
        "owed.issue(&mut tlb);",
        "owed.issue(&mut tlb);",
        "error[E0382]",
    );
}

/// Not from its fields, which are private, as is their type.
#[test]
fn owed_cannot_be_made() {
    refused(
        "",
        "let _ = Owed { mm: 1, what: owed.what };",
        "error[E0616]",
    );
    refused("", "let _ = Owed { mm: 1, ..owed };", "error[E0451]");
    refused(
        "",
        "let _ = subject::What::Mm { bytes: 1 };",
        "error[E0603]",
    );
}

/// Nor by any function that gives one without taking it from a batch.
#[test]
fn owed_has_no_default() {
    refused(
        "",
        "let _: Owed<usize> = Default::default();",
        "error[E0277]",
    );
    refused("", "let _: Owed<usize> = 1.into();", "error[E0277]");
}

#[test]
fn owed_cannot_be_ignored() {
    refused(
        "fn get() -> Owed<usize> { loop {} }",
        "get();",
        "error: unused `Owed`",
    );
    refused("", "batch.add(1, 0, 1);", "error: unused return value");
}

/// Nor can a reference be taken out of the batch, other than by what releases all of them.
#[test]
fn holds_are_private() {
    refused("", "batch.held = [const { None }; 4];", "error[E0616]");
}

#[test]
fn sources_leave_a_drain_once() {
    refused_of(
        &LEDGER,
        "let flushed = unflushed.flush(&mut mms);",
        "unflushed.flush(&mut mms);",
        "error[E0382]",
    );
    refused_of(
        &LEDGER,
        "let flushed = unflushed.flush(&mut mms); let sources = flushed.into_chain();",
        "flushed.into_chain();",
        "error[E0382]",
    );
    refused_of(&LEDGER, "", "let _ = unflushed.clone();", "error[E0599]");
}

/// Nor by a way around the flush.
#[test]
fn sources_cannot_be_taken_unflushed() {
    refused_of(&LEDGER, "", "let _ = unflushed.chain;", "error[E0616]");
    refused_of(&LEDGER, "", "let _ = ledger.chain;", "error[E0616]");
    refused_of(&LEDGER, "", "unflushed.into_chain();", "error[E0599]");
}

/// The witness of a flush comes from a flush.
#[test]
fn flushed_cannot_be_made() {
    refused_of(
        &LEDGER,
        "",
        "let _ = Flushed { chain: C::EMPTY, pages: 0, since: 0, mms: 0 };",
        "error[E0451]",
    );
    refused_of(
        &LEDGER,
        "",
        "let _: Flushed<C> = Default::default();",
        "error[E0277]",
    );
}

#[test]
fn sources_cannot_be_ignored() {
    refused_of(
        &LEDGER,
        "fn get<C>() -> Unflushed<C> { loop {} }",
        "get::<C>();",
        "error: unused `Unflushed`",
    );
    refused_of(
        &LEDGER,
        "",
        "ledger.add(folio, 1, || 0);",
        "error: unused `Result`",
    );
}

/// An early return where something is owed, and where a condition has to be looked at for that.
#[test]
fn owed_cannot_be_dropped() {
    not_built(
        &BATCH,
        "let owed = batch.add(black_box(1), black_box(0), black_box(4096));",
        "if let Some(owed) = owed { owed.issue(&mut tlb); }",
        "if black_box(false) { return; }",
    );
    not_built(
        &BATCH,
        "",
        "batch.flush(&mut tlb);",
        "let _ = batch.add(black_box(1), black_box(0), black_box(4096));",
    );
}

#[test]
fn sources_cannot_be_dropped() {
    not_built(
        &LEDGER,
        "let mut unflushed = Unflushed::new(); ledger.splice_into(&mut unflushed);",
        "if let Some(unflushed) = unflushed.some() {
             black_box(unflushed.flush(&mut mms).into_chain());
         }",
        "if black_box(false) { return; }",
    );
    not_built(
        &LEDGER,
        "let mut unflushed = Unflushed::new(); ledger.splice_into(&mut unflushed);
         let Some(unflushed) = unflushed.some() else { return };",
        "black_box(unflushed.flush(&mut mms).into_chain());",
        "if black_box(false) { return; }",
    );
}

const PREPARED: &str = "let prepared = batch.prepare(grace);";
const APPLIED: &str = "let applied = batch.prepare(grace).apply(&mut ways);";
const OPEN: &str = "let mut open = batch.open(owner);";

/// Each state leads to the next one, and nowhere else.
#[test]
fn changes_have_an_order() {
    for (start, early) in [
        ("", "batch.apply(&mut ways);"),
        ("", "batch.release();"),
        (PREPARED, "prepared.release();"),
    ] {
        refused_of(&CHANGES, start, early, "error[E0599]");
    }
    for (start, late) in [
        (PREPARED, "prepared.prepare(grace);"),
        (PREPARED, "prepared.open(owner);"),
        (APPLIED, "applied.apply(&mut ways);"),
        (APPLIED, "applied.open(owner);"),
    ] {
        refused_of(&CHANGES, start, late, "error[E0599]");
    }
}

#[test]
fn changes_are_made_and_released_once() {
    refused_of(
        &CHANGES,
        "let prepared = batch.prepare(grace); let applied = prepared.apply(&mut ways);",
        "let again = prepared.apply(&mut ways);",
        "error[E0382]",
    );
    let released = format!("{APPLIED} let (batch, tally) = applied.release();");

    refused_of(
        &CHANGES,
        &released,
        "let again = applied.release();",
        "error[E0382]",
    );
    refused_of(&CHANGES, APPLIED, "applied.clone();", "error[E0599]");
}

/// A unit is closed, or gone, before something is done with the batch, and it is closed once.
#[test]
fn changes_are_complete() {
    refused_of(
        &CHANGES,
        OPEN,
        "let prepared = batch.prepare(grace); drop(open);",
        "error[E0505]",
    );
    let closed = format!("{OPEN} let result = open.close();");

    refused_of(
        &CHANGES,
        &closed,
        "let result = open.close();",
        "error[E0382]",
    );
    refused_of(&CHANGES, OPEN, "open.close();", "error: unused `Result`");
    refused_of(
        &CHANGES,
        OPEN,
        "open.bring(page);",
        "error: unused `Result`",
    );
}

/// Nor are their parts taken out of a batch.
#[test]
fn changes_are_private() {
    refused_of(&CHANGES, APPLIED, "applied.parts;", "error[E0616]");
    refused_of(&CHANGES, APPLIED, "applied.state;", "error[E0616]");
    refused_of(
        &CHANGES,
        PREPARED,
        "let applied = Applied(());",
        "error[E0423]",
    );
}

/// The witness of a grace period, which is of one batch, comes from who has waited for it.
#[test]
fn grace_cannot_be_made() {
    refused_of(&CHANGES, "", "let _ = Grace(());", "error[E0423]");
    refused_of(&CHANGES, "", "let _ = Grace::is_over();", "error[E0133]");
    refused_of(
        &CHANGES,
        "",
        "let _ = Grace::is_not_needed();",
        "error[E0133]",
    );
    refused_of(
        &CHANGES,
        "",
        "let _: Grace = Default::default();",
        "error[E0277]",
    );
    refused_of(&CHANGES, "", "let _ = grace.clone();", "error[E0599]");
    refused_of(&CHANGES, PREPARED, "drop(grace);", "error[E0382]");
}

/// Somebody has to promise what the compiler cannot know of entries and pages.
#[test]
fn changes_are_promised() {
    for unpromised in [
        "let _ = open.change(run);",
        "let _ = open.displace(page);",
        "ways.change(&[], &[], &mut []);",
    ] {
        refused_of(&CHANGES, OPEN, unpromised, "error[E0133]");
    }
}

#[test]
fn changes_cannot_be_ignored() {
    refused_of(
        &CHANGES,
        "fn get<M: Memory>() -> Batch<M, Applied> { loop {} }",
        "get::<M>();",
        "error: unused `Batch`",
    );
    refused_of(
        &CHANGES,
        PREPARED,
        "prepared.apply(&mut ways);",
        "error: unused `Batch`",
    );
}

/// Once they were made. Before that, a batch may be dropped, and everything is as it was.
#[test]
fn changes_cannot_be_dropped() {
    let leave = "if black_box(false) { return; }";
    let released = "black_box(applied.release().1);";

    not_built(&CHANGES, APPLIED, released, leave);
    not_built(&CHANGES, PREPARED, "", "let _ = prepared.apply(&mut ways);");
    let late = format!(
        "let Ok(()) = batch.open(owner).close() else {{ return }};
         {leave} {PREPARED} {leave} let applied = prepared.apply(&mut ways); {released}"
    );

    assert_eq!(link(&CHANGES, &late), Ok(()));
}

/// Somebody has a permit, and returns without having counted the deferral.
#[test]
fn permits_cannot_be_dropped() {
    let permitted = "let Some(permit) = walk.meet(&facts, false) else { return };";

    not_built(
        &WALK,
        permitted,
        "unsafe { permit.counted() };",
        "if black_box(false) { return; }",
    );
}

#[test]
fn permits_cannot_be_made() {
    refused_of(&WALK, "", "let _ = Permit(());", "E0423");
}

#[test]
fn permits_are_counted_once() {
    refused_of(
        &WALK,
        "let Some(permit) = walk.meet(&facts, false) else { return }; unsafe { permit.counted() };",
        "unsafe { permit.counted() };",
        "E0382",
    );
}
