// SPDX-License-Identifier: GPL-2.0

//! What the compiler has to refuse: an owed invalidation that is duplicated, made up or forgotten.
//!
//! Each case is compiled twice against the kernel's own file: without its last line, where it has
//! to be accepted, so that it is not refused for something else, and with it, where it has to be
//! refused for the expected reason.

use std::process::{Command, Stdio};

const RANGES: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../rust/kernel/mm/tlb_batch/ranges.rs"
);

/// The diagnostics of rustc for the body of a function that has a batch and something that is owed.
fn compile(body: &str) -> Result<(), String> {
    let source = format!(
        r#"
            #![allow(unused)]
            #![deny(unused_must_use)]
            fn owed_dropped() {{}}
            #[path = {RANGES:?}]
            mod ranges;
            use ranges::{{Holds, Owed, Ranges, Tlb}};

            fn case<H: Holds<usize>>(
                mut batch: Ranges<usize, H>,
                mut tlb: impl Tlb<usize>,
                owed: Owed<usize>,
            ) {{
                {body}
            }}
        "#
    );
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()))
        .args(["--edition=2021", "--crate-type=lib", "--emit=metadata"])
        .args(["--error-format=short", "-o", "-", "-"])
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

#[track_caller]
fn refused(start: &str, last: &str, reason: &str) {
    assert_eq!(compile(start), Ok(()), "without `{last}`");
    let errors = compile(&format!("{start}\n{last}")).expect_err(last);
    let count = errors.lines().filter(|line| line.contains("error")).count();

    assert!(errors.contains(reason), "`{last}`: {errors}");
    // The second line with "error" in it is the summary.
    assert_eq!(count, 2, "`{last}`: {errors}");
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
    refused("", "let _ = ranges::What::Mm { bytes: 1 };", "error[E0603]");
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
