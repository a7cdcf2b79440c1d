# SPDX-License-Identifier: GPL-2.0
"""Tests of the build tools (KTAP): errors as a new user meets them, and the handling of trees.

usage: python3 -m tests.kernel.test_kernel [CLASS[.TEST]...]     default: all cases of the modules beside it
"""

import compileall
import multiprocessing
import os
import sys
import unittest
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.kernel.fixtures import TOOLS
from tlbrs.kernel import common

HERE = Path(__file__).resolve().parent
MODULES = sorted(f"tests.kernel.{f.stem}" for f in HERE.glob("test_*.py") if f != Path(__file__).resolve())


def names(suite):
    """MODULE.CLASS.TEST of all."""
    for test in suite:
        yield from names(test) if isinstance(test, unittest.TestSuite) else (test.id(),)


def run_case(name):
    """(tracebacks, reasons to skip) of one."""
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromName(name).run(result)
    return [text for _, text in result.failures + result.errors], [why for _, why in result.skipped]


def in_memory():
    """Whether /dev/shm has as much room as "make doctor" asks for, and runs programs."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return False
    return (found.f_bavail * found.f_frsize > 11 * common.GIB and not found.f_flag & os.ST_NOEXEC and
            os.access("/dev/shm", os.W_OK))


def main():
    # Thousands of small files come and go.
    if in_memory():
        os.environ.setdefault("TMPDIR", "/dev/shm")
    cases = {name: name.split(".", 3)[3] for name in names(unittest.defaultTestLoader.loadTestsFromNames(MODULES))}
    if sys.argv[1:]:
        cases = {name: case for name, case in cases.items() if f"{case}.".startswith(tuple(f"{w}." for w in sys.argv[1:]))}
    # Once here, and not again in each copy of the repository.
    compileall.compile_dir(TOOLS / "tlbrs/kernel", quiet=1)
    print(f"KTAP version 1\n1..{len(cases)}", flush=True)
    failed = 0
    # Not threads: a child that one has forked, and that is not yet another program, would hold open the script that
    # another thread has written and now runs (ETXTBSY).
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("fork")) as pool:
        for number, (case, (bad, skipped)) in enumerate(zip(cases.values(), pool.map(run_case, cases)), 1):
            failed += bool(bad)
            print("".join(f"# {line}\n" for text in bad for line in text.splitlines()) +
                  f"{'not ok' if bad else 'ok'} {number} {case}" + "".join(f" # SKIP {why}" for why in skipped), flush=True)
    return 1 if failed or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
