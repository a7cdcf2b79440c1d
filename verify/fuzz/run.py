#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Build the fuzz targets and run each for some seconds; prints TAP.

usage: run.py [--seconds N] [--broken] [TARGET...]

--broken: puts one error into a copy of each kernel file, and wants each target to find its own.

libFuzzer comes with the crate libfuzzer-sys. A stable compiler can insert what it needs: the flags are those of
cargo-fuzz, whose layout this is, so that `cargo +nightly fuzz run TARGET` does the same with sanitizers.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ("--cfg=fuzzing", "-Cpasses=sancov-module", *(f"-Cllvm-args={flag}" for flag in (
    "-sanitizer-coverage-level=4", "-sanitizer-coverage-inline-8bit-counters", "-sanitizer-coverage-pc-table",
    "-sanitizer-coverage-trace-compares", "-simplifycfg-branch-fold-threshold=0")))
# target: (file, what is there, what is wrong instead)
ERRORS = {
    "ranges": ("rust/kernel/mm/tlb_batch/ranges.rs", "self.start <= other.end &&", "self.start <= other.end + 4096 &&"),
    "ledger": ("mm/migrc/ledger.rs", "false => self.since.min(unflushed.since)", "false => self.since"),
    "generation": ("mm/migrc/generation.rs", "self.0 > flushed", "self.0 as u32 > flushed as u32"),
    "plan": ("mm/hvo/plan.rs", "if whole.runs > 0", "if whole.runs > 1"),
    "readmostly": ("mm/migrc/readmostly.rs", "(false, Self(self.0 - 1))", "(false, Self(self.0 - 2))"),
    "eligibility": ("mm/migrc/eligibility.rs", "self.writable || self.shared || self.notifier;", "self.writable || self.shared;"),
}


def build(root, target_dir):
    """Where the programs are, or None."""
    version = subprocess.run(["rustc", "-vV"], stdout=subprocess.PIPE, text=True, check=True).stdout
    host = re.search(r"^host: (\S+)", version, re.M)[1]
    # With a --target, the flags are not for build scripts.
    done = subprocess.run(["cargo", "build", "--release", "--quiet", "--target", host,
                           "--target-dir", target_dir], cwd=root / "verify/fuzz", check=False,
                          env={**os.environ, "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(FLAGS)})
    return target_dir / host / "release" if done.returncode == 0 else None


def copy_with_errors(root):
    shutil.rmtree(root, ignore_errors=True)
    for part in ("verify/src", "verify/fuzz"):
        shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("target", "corpus", "artifacts"))
    shutil.copy(ROOT / "verify/Cargo.toml", root / "verify")
    for name in re.findall(r'path = "\.\./\.\./(\S+\.rs)"', (ROOT / "verify/src/lib.rs").read_text(encoding="utf-8")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    for name, right, wrong in ERRORS.values():
        text = (ROOT / name).read_text(encoding="utf-8")
        if text.count(right) != 1:
            sys.exit(f"run.py: {name} has no single '{right}' to break")
        (root / name).write_text(text.replace(right, wrong), encoding="utf-8")


def run(program, seconds, artifacts):
    """(whether it found nothing, what it said)"""
    artifacts.mkdir(parents=True, exist_ok=True)
    p = subprocess.run([program, f"-max_total_time={seconds}", "-timeout=20", "-print_final_stats=1",
                        f"-artifact_prefix={artifacts}/"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                       text=True, errors="replace", check=False)
    return p.returncode == 0, p.stdout


def verdict(broken, found_nothing, said):
    """(whether that is as it should be, in a few words)"""
    runs = re.search(r"number_of_executed_units: (\d+)", said)
    panicked = re.search(r"panicked at (\S+):\n(.*)", said)
    what = f"panicked at {panicked[1]} {panicked[2]}" if panicked else "did not panic"
    if broken:
        return not found_nothing and bool(panicked), f"found: {what}"
    # Without runs it has not started.
    return found_nothing and bool(runs), f"{runs[1]} runs" if runs else what


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int)
    parser.add_argument("--broken", action="store_true")
    parser.add_argument("targets", nargs="*", choices=[[], *ERRORS], metavar="TARGET")
    args = parser.parse_args()
    targets = args.targets or list(ERRORS)
    # An error is found in a few, and that ends the run.
    seconds = args.seconds or (60 if args.broken else 8)

    target_dir = ROOT / "verify/fuzz/target"
    root = target_dir / "broken" if args.broken else ROOT
    if args.broken:
        copy_with_errors(root)
    programs = build(root, target_dir)
    print(f"TAP version 13\n1..{len(targets)}", flush=True)
    if not programs:
        print("Bail out! the targets do not build")
        return 1
    failed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = pool.map(lambda t: run(programs / t, seconds, root / "verify/fuzz/artifacts" / t), targets)
        for i, (target, result) in enumerate(zip(targets, runs), 1):
            ok, what = verdict(args.broken, *result)
            failed += not ok
            case = f"{target} with an error" if args.broken else target
            print(f"{'ok' if ok else 'not ok'} {i} {case} # {what}", flush=True)
            if not ok:
                print("\n".join(f"# {line}" for line in result[1].splitlines()[-40:]), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
