# SPDX-License-Identifier: GPL-2.0
"""Run test suites, print what failed, a summary of each suite and at the end `N passed, N failed`.

usage: tlb-rs test [SUITE...]     (make test SUITE="style kunit"; default: all but debug, pages, fs, fsx, hvo, abuse,
                                              stock, recipes, docs, commits, chroot, dkms,
                                              fastpath, reports, loop, sabotage_all)

What passed is in build/test/SUITE.txt; V=1 prints it, too. ARCH= chooses one architecture.
"""

import os
import subprocess
import sys
import traceback

from tlbrs.guest import guest
from tlbrs.kernel import common
from tlbrs.kernel.common import ROOT, Fail
from tlbrs.suites import fresh
from tlbrs.suites.boards import fastpath
from tlbrs.suites.costs import counts
from tlbrs.suites.dkms import dkms
from tlbrs.suites.harness import DONE, LOGS, Suite, make
from tlbrs.suites.in_guests import kunit, programs, runner
from tlbrs.suites.loop import loop
from tlbrs.suites.on_demand import abuse, commits, debug, fs, hvo, pages, recipes, stock
from tlbrs.suites.on_host import docs, off, size, style, tools, verify
from tlbrs.suites.reports import reports
from tlbrs.suites.without_rules import sabotage, sabotage_all
from tlbrs.suites.written import fsx

# release: (what it is called, suites of make test, or all of it; boot: a kernel is built and booted). Counts are gates only with
# the QEMU of Debian 12.
CHROOTS = {"bookworm": ("Debian 12", ()), "trixie": ("Debian 13", ("style", "tools", "verify", "boot"))}


def chroot(suite):
    """make test in a fresh clone on a minimal Debian: what it needs and does not install is not there."""
    if output := common.output(["git", "status", "--porcelain"], cwd=ROOT):
        suite.say(f"what is not committed is not tested:\n{output.rstrip()}", show=True)
    for release in os.environ.get("CHROOT", "").split() or CHROOTS:
        common.one_of("CHROOT", release, CHROOTS)
        name, inner = CHROOTS[release]
        inner = os.environ.get("INNER", "").split() or inner
        fresh.try_release(suite, name, fresh.System(release, ROOT / "build/chroot" / release, LOGS), inner, SUITES)


SUITES = {f.__name__: f for f in (style, tools, verify, size, off, runner, counts, kunit, programs, sabotage)}
# For the time that they take.
ON_DEMAND = {f.__name__: f for f in (debug, pages, fs, fsx, hvo, abuse, stock, recipes, docs, commits, chroot,
                                     dkms, fastpath, reports, loop, sabotage_all)}


def run(name, function):
    """One suite, whatever happens in it; whether the next one may follow."""
    suite = Suite(name)
    DONE.append(suite)
    try:
        function(suite)
    except KeyboardInterrupt:
        suite.check(f"{name} ended early", False, "interrupted")
        return False
    except (subprocess.CalledProcessError, SystemExit, guest.GuestError, Fail) as error:
        suite.check(f"{name} ended early", False, str(error))
    except Exception as error:  # pylint: disable=broad-exception-caught
        # The other suites still have something to say.
        suite.say(traceback.format_exc())
        suite.check(f"{name} ended early", False, repr(error))
    finally:
        suite.done()
    return True


def main():
    names = sys.argv[1:] or os.environ.get("SUITE", "").split() or list(SUITES)
    known = SUITES | ON_DEMAND
    unknown = [n for n in names if n not in known]
    if unknown:
        sys.exit(f"tlb-rs test: no suite {', '.join(unknown)}; there are {', '.join(known)}")
    subprocess.run(make("meter"), cwd=ROOT, check=True)
    LOGS.mkdir(parents=True, exist_ok=True)
    for name in names:
        # Two of one suite would write the same logs.
        with common.lock(LOGS / f"{name}.lock", f"make test SUITE={name}"):
            if not run(name, known[name]):
                break

    print("\nsummary")
    for suite in DONE:
        print(f"  {suite.name:12}{suite.passed:5} passed{len(suite.failed):5} failed{len(suite.skipped):5} skipped")
        for name in suite.failed:
            print(f"    failed: {name}")
    passed, failed = sum(s.passed for s in DONE), sum(len(s.failed) for s in DONE)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0
