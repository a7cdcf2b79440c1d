# SPDX-License-Identifier: GPL-2.0
"""What all suites of make test have: their results, kernels that are built, and guests that are booted."""

import contextlib
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from tlbrs.guest import guest
from tlbrs.kernel import common
from tlbrs.kernel.common import ROOT
from tlbrs.report import measure

BEGIN = time.monotonic()
ARCHES = ("arm64", "x86_64")
KVER = common.kver()
# What is tested: the image with all checkers but lockdep and KASAN, which make builds and boots several times slower:
# SUITE=debug and make soak have them.
IMAGE = "checked"
# A guest of two tiers: node 1 is the slower one, and has no CPU.
TIERS = {"mem": "1G", "nodes": 1, "cpuless": 1, "append": "kunit.enable=0 tlb_slow_nodes=1"}
# The same by tables of the machine, x86_64.
HMAT = {"mem": "1G", "nodes": 1, "cpuless": 1, "tiers": True}
# x86_64: node 0 has a zone below 4 GiB, most of which is left out, and one of 160 MiB above.
ZONES = {"mem": "4608M", "nodes": 1, "cpuless": 1, "append": "kunit.enable=0 tlb_slow_nodes=1 memmap=1792M$192M memmap=96M$4G"}
# arm64 with erratum 2645198, of which the emulator knows no more than the name of this CPU.
CORTEX_A715 = "max,midr=0x410fd4d0,pauth-impdef=on"
LOGS = ROOT / "build" / "test"
VERBOSE = os.environ.get("V", "0") != "0"
# Suites of this run, the last of which is not done yet.
DONE = []


class Suite:
    """Results of one suite; a suite without a result has failed."""

    def __init__(self, name):
        self.name, self.passed, self.failed, self.skipped = name, 0, [], []
        self.names = set()  # of what passed
        self.left_out = False   # whether ARCH=, or what cannot be had, has left something out
        self.start = time.monotonic()
        self.log = (LOGS / f"{name}.txt").open("w", encoding="utf-8")
        print(f"\n== {name}, after {(self.start - BEGIN) / 60:.0f} minutes", flush=True)

    def check(self, name, ok, detail=""):
        if ok:
            self.passed += 1
            self.names.add(name)
        else:
            self.failed.append(name)
        self.say(f"{'ok' if ok else 'not ok'} - {name}" + (f": {detail}" if detail else ""), show=not ok)
        return ok

    def say(self, text, show=True):
        """A line of the log; what went wrong is shown, too."""
        # In one piece, of several that boot at once.
        self.log.write(text + "\n")
        self.log.flush()
        if show or VERBOSE:
            print(text + "\n", end="", flush=True)

    def skip(self, name, why):
        self.skipped.append(name)
        self.say(f"skip - {name}: {why}")

    def command(self, name, *words, **kw):
        """A command that passes with status 0; its output is shown if it does not."""
        kw = {"cwd": ROOT, "stdin": subprocess.DEVNULL} | kw
        p = subprocess.run([str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           check=False, **kw)
        if not self.check(name, p.returncode == 0, "" if p.returncode == 0 else f"status {p.returncode}"):
            self.say("\n".join(p.stdout.splitlines()[-60:]))
        return p

    def unittest(self, name, *words, must=False, **env):
        """Unit tests of Python: they pass with those that are skipped, unless none must be, but these are named."""
        p = self.command(name, sys.executable, "-m", "unittest", "-v", *words, cwd=ROOT / "tools", env=os.environ | env)
        for what, why in re.findall(r"^(.*?) \.\.\. skipped (.*)$", p.stdout, re.M):
            if must:
                self.check(f"{name}: {what}", False, f"skipped: {why}")
            else:
                self.skip(f"{name}: {what}", why)
        return p

    def ktap(self, name, *words, cwd=ROOT):
        """A program that prints (K)TAP: each of its cases counts."""
        p = subprocess.run([str(w) for w in words], cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, check=False)
        cases = re.findall(r"^(not )?ok \d+ (.*)$", p.stdout, re.M)
        for bad, case in cases:
            if "# SKIP" in case:
                self.skip(f"{name}: {case}", "see there")
            else:
                self.check(f"{name}: {case}", not bad)
        if p.returncode or not cases:
            self.check(name, False, f"status {p.returncode}, {len(cases)} cases")
            self.say("\n".join(p.stdout.splitlines()[-40:]))

    def at_once(self, steps):
        """(function, argument...) of each step; the function has its results from a suite, and here it is a Step.

        As many steps as there are CPUs run at once, in this order: those that take longest come first. So do their results.
        """
        steps = list(steps)
        with pool_of(os.cpu_count()) as pool:
            parts = [Step() for _ in steps]
            calls = [pool.submit(function, part, *words) for part, (function, *words) in zip(parts, steps)]
            for part, call in zip(parts, calls):
                wait([call])
                for result, *words in part.results:
                    result(self, *words)
                call.result()

    def done(self):
        if not self.passed and not self.failed and not self.left_out:
            self.check(f"{self.name} ran", False, "no test was run")
        print(f"{self.name}: {self.passed} passed, {len(self.failed)} failed, {len(self.skipped)} skipped, "
              f"{time.monotonic() - self.start:.0f} s", flush=True)


class Step(Suite):
    """A step that runs beside others: its results wait for their turn, so that they stay together."""

    def __init__(self):  # pylint: disable=super-init-not-called
        self.results = []

    def check(self, name, ok, detail=""):
        self.results.append((Suite.check, name, ok, detail))
        return ok

    def say(self, text, show=True):
        self.results.append((Suite.say, text, show))

    def skip(self, name, why):
        self.results.append((Suite.skip, name, why))


@contextlib.contextmanager
def pool_of(workers):
    """Threads. When this ends early, what has not begun does not begin."""
    pool = ThreadPoolExecutor(workers)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def chosen(suite, *arches):
    """Of these architectures, or of all: those of this run. ARCH= chooses one; the others are skipped."""
    only = os.environ.get("ARCH")
    if only:
        common.one_of("ARCH", only, ARCHES)
    arches = arches or ARCHES
    for arch in arches:
        if only and arch != only:
            suite.left_out = True
            if arch not in suite.skipped:
                suite.skip(arch, f"ARCH={only}")
    return [arch for arch in arches if not only or arch == only]


def make(*words):
    return ("make", "--no-print-directory", *words)


def tree():
    """The patched kernel tree; made on first use."""
    p = subprocess.run([sys.executable, "tools/tlb-rs", "kernel", "tree", "--kver", KVER], cwd=ROOT, text=True,
                       stdout=subprocess.PIPE, check=True)
    return Path(p.stdout.strip().splitlines()[-1])


def kernel(suite, arch, variant):
    """Build a kernel; progress goes to the console, because it takes minutes."""
    start = time.monotonic()
    ok = common.status(make("kernel", f"ARCH={arch}", f"VARIANT={variant}", f"KVER={KVER}"), cwd=ROOT) == 0
    return suite.check(f"build {arch} {variant}", ok, f"{time.monotonic() - start:.0f} s")


def boot(suite, name, arch, variant, job, want=guest.OK, cases=True, append="kunit.enable=0", image=None, **options):
    """Boot and judge: every KTAP case of the job counts, and so does the end of the boot. image: instead of the variant's."""
    title = f"{arch} {name}"
    options |= {"job": job, "append": f"{append} {measure.APPEND[arch]}", "log": LOGS / f"{arch}-{name.replace(' ', '-')}.log"}
    result = measure.again(lambda: guest.boot(image or guest.kernel_path(arch, variant, KVER), arch, **options),
                           lambda what: suite.say(f"{title}: {what}"))
    for case in result.ktap if cases else ():
        line = re.match(r"(not )?ok \d+ *-? *(.*)", case)
        if line and "# SKIP" in line.group(2):
            suite.skip(f"{title}: {line.group(2)}", "see the console")
        elif line:
            suite.check(f"{title}: {line.group(2)}", not line.group(1))
        elif whole := re.match(r"1\.\.0 # SKIP *(.*)", case):
            suite.skip(f"{title}: a whole program", whole.group(1))
        elif re.fullmatch(r"1\.\.0\s*", case):
            suite.check(f"{title}: a program has the case that it is asked for", False)
    ok = result.exit_status == want
    suite.check(f"{title}: console clean, ended as it should" if want == guest.OK else f"{title}: status {want}",
                ok, f"{result.seconds:.0f} s")
    if not ok:
        suite.say(result.report())
    return result


@contextlib.contextmanager
def side_by_side(arch):
    """Calls that are given to what this yields run in turn; several at once where QEMU needs one core for each."""
    single = guest.threads_of(guest.QEMU[arch][0], arch) == "single"
    calls = []
    with pool_of(os.cpu_count() if single else 1) as pool:
        yield lambda *call, **options: calls.append(pool.submit(*call, **options))
        wait(calls)
    for call in calls:
        call.result()


def reported(suite, name, arch, job, says, *words, **options):
    """Boot an image that must complain, in these words."""
    result = boot(suite, name, arch, IMAGE, job, want=guest.SPLAT, timeout=900, **options)
    suite.check(f"{arch} {name}: {says}", any(all(word in splat for word in words) for splat in result.splats))


def skipped_cases(lines, absent=()):
    """Names of the cases that were skipped, or first words of the reason why a program was, but those that are absent.

    "ok 1 migrc_file.verity.stale # SKIP why" of the harness, where the variant or the test may be absent;
    "ok 1 # SKIP file: verity" of others.
    """
    found = re.findall(r"^(?:ok \d+(?: \w+\.([\w.]+))?|1\.\.0) # SKIP (?:\w+: )?(\S+)", "\n".join(lines), re.M)
    names = [case or first for case, first in found]
    return [name for name in names if not set(name.split(".")) & set(absent)]


def asked(suite, name, arch, variant, job, absent=(), **options):
    """A boot; a case that is skipped has failed, unless it is known to be absent."""
    result = boot(suite, name, arch, variant, job, **options)
    skipped = skipped_cases(result.ktap, absent)
    suite.check(f"{arch} {name}: nothing else was skipped", result.ktap and not skipped, " ".join(skipped))
