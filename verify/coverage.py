#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Report which lines of the kernel's pure logic the tests of this directory run, and which they do not.

usage: coverage.py

The tools are rustup's (component llvm-tools), else LLVM's own, as new as the compiler's LLVM or newer, or any that
can read what it writes.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

VERIFY = Path(__file__).resolve().parent
ROOT = VERIFY.parent
TARGET = VERIFY / "target/coverage"
# Those that call it, but for one that takes long and calls it as the others do.
TESTS = ("tlb_batch", "migrc_eligibility", "migrc_gen", "migrc_ledger", "migrc_readmostly", "migrc_registered",
         "hvo_af", "hvo_batch", "hvo_layout", "hvo_plan")
SKIP = ("--skip", "what_is_written_to_again")


def output(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def tool(name):
    """Candidates, the likeliest first."""
    sysroot = Path(output("rustc", "--print", "sysroot").strip())
    newest = int(re.search(r"^LLVM version: (\d+)", output("rustc", "-vV"), re.M)[1])
    names = [str(p) for p in sysroot.glob(f"lib/rustlib/*/bin/{name}")]
    names += [f"{name}-{major}" for major in (newest, *range(newest + 4, 17, -1))] + [name]
    return [path for n in names if (path := shutil.which(n))]


def first(name, *args):
    """What the first tool says that does not complain."""
    said = f"no {name}: rustup component add llvm-tools, or install llvm"
    for path in tool(name):
        p = subprocess.run([path, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        if p.returncode == 0:
            return p.stdout
        said = f"{path}: {p.stderr.strip()}"
    sys.exit(f"coverage.py: {said}")


def build():
    """The instrumented test programs. What they depend on is that of other tests: only this crate is compiled by
    the wrapper, which is this file."""
    which = [word for test in TESTS for word in ("--test", test)]
    p = subprocess.run(["cargo", "test", "--release", "--no-run", "--message-format=json", *which],
                       cwd=VERIFY, env={**os.environ, "RUSTC_WORKSPACE_WRAPPER": str(Path(__file__).resolve())},
                       stdout=subprocess.PIPE, text=True, check=False)
    if p.returncode:
        sys.exit(p.returncode)
    messages = map(json.loads, p.stdout.splitlines())
    return [m["executable"] for m in messages if m.get("executable") and m["target"]["kind"] == ["test"]]


def main():
    programs = build()
    TARGET.mkdir(parents=True, exist_ok=True)
    for old in TARGET.glob("*.profraw"):
        old.unlink()
    for program in programs:
        env = {**os.environ, "LLVM_PROFILE_FILE": str(TARGET / "%p-%m.profraw")}
        p = subprocess.run([program, "--quiet", *SKIP], cwd=VERIFY, env=env, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, check=False)
        if p.returncode:
            sys.exit(f"{p.stdout}\n{program} failed")
    data = str(TARGET / "all.profdata")
    first("llvm-profdata", "merge", "--sparse", "-o", data, *map(str, TARGET.glob("*.profraw")))

    # One program after the other: of a function that several have, llvm-cov would take the first.
    lines, regions = {}, {}
    for program in programs:
        args = ("export", f"--instr-profile={data}", program)
        for name, at, count in lcov(first("llvm-cov", *args, "--format=lcov")):
            lines.setdefault(name, {}).setdefault(at, []).append(count)
        for function in json.loads(first("llvm-cov", *args))["data"][0]["functions"]:
            for *at, count, of, _, kind in function["regions"]:
                if kind == 0 and (name := kernel_file(function["filenames"][of])):
                    regions.setdefault(name, {}).setdefault(tuple(at), []).append(count)
    if not lines:
        sys.exit("coverage.py: nothing was counted")
    print(f"{'':36}{'lines':>18}{'regions':>20}  not run: lines")
    for name in sorted(lines):
        missed = [str(at) for at, counts in sorted(lines[name].items()) if not any(counts)]
        print(f"{name:36}{share(lines[name])}  {share(regions[name])}  {' '.join(missed)}")


def kernel_file(path):
    """Its name in the kernel tree; None for those of this directory and of crates."""
    name = os.path.relpath(os.path.normpath(path), ROOT)
    return name if name.startswith(("mm/", "rust/")) else None


def lcov(text):
    """(file, line, how often) of the kernel's files."""
    name = None
    for word, _, rest in (line.partition(":") for line in text.splitlines()):
        if word == "SF":
            name = kernel_file(rest)
        elif word == "DA" and name:
            at, count = rest.split(",")[:2]
            yield name, int(at), int(count)


def share(parts):
    run = sum(any(counts) for counts in parts.values())
    return f"{run:>5} of {len(parts):>3} {100 * run / len(parts):>5.1f}%"


if __name__ == "__main__":
    if sys.argv[1:]:
        os.execvp(sys.argv[1], [*sys.argv[1:], "-Cinstrument-coverage"])
    main()
