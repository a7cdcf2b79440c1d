# SPDX-License-Identifier: GPL-2.0
"""Check the litmus tests of verify/litmus against Arm's memory model, with herd7; prints TAP.

usage: tlb-rs litmus [TEST.litmus...]     (HERD7: the program; else herd7, else what tlb-rs herd7 fetched)

A test that ends in `~exists` shows that what it describes cannot happen, one that ends in `exists`
that it can: each rule is there both kept and broken. A branch to the next instruction and an ISB
stand for the kernel's own branch and for its return to user space; plain stores for its relaxed
atomics, whose verdicts are the same and take longer. Without herd7 every test is skipped.
"""

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tlbrs.check.herd7 import HERD7
from tlbrs.kernel.common import ROOT

# Translation table walks and TLBs are part of the model; an access that faults ends its thread.
WORDS = ("-variant", "vmsa,fatal", "-speedcheck", "fast")
TIMEOUT = 300  # seconds; the longest takes about 10


def check(herd, test):
    """(whether the verdict is the one that the file demands, what herd7 said)"""
    never = "\n~exists" in test.read_text(encoding="utf-8")
    try:
        p = subprocess.run([herd, *WORDS, str(test)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, check=False, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return False, f"no verdict within {TIMEOUT} s"
    m = re.search(r"^Observation \S+ (Never|Sometimes|Always) ", p.stdout, re.M)
    ok = p.returncode == 0 and m is not None and (m.group(1) == "Never") == never
    return ok, p.stdout.strip()


def main():
    tests = [Path(t) for t in sys.argv[1:]] or sorted((ROOT / "verify/litmus").glob("*.litmus"))
    places = (os.environ.get("HERD7"), "herd7", str(HERD7))
    herd = next((path for p in places if p and (path := shutil.which(p))), None)
    print(f"TAP version 13\n1..{len(tests)}")
    if not herd:
        for i, test in enumerate(tests, 1):
            print(f"ok {i} {test.stem} # SKIP no herd7 (apt install herdtools7, or tools/tlb-rs herd7)")
        return 0
    failed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for i, (test, (ok, said)) in enumerate(zip(tests, pool.map(lambda t: check(herd, t), tests)), 1):
            failed += not ok
            print(f"{'ok' if ok else 'not ok'} {i} {test.stem}", flush=True)
            if not ok:
                print("\n".join(f"# {line}" for line in said.splitlines()), flush=True)
    return 1 if failed else 0
