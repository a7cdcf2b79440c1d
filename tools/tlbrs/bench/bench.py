# SPDX-License-Identifier: GPL-2.0
"""Measurements beyond the main job: build the bench kernels, run the suites, evaluate the targets.

usage: tlb-rs bench [SUITE...]     or the variable SUITE="pageout worst"; default: all but model, which needs gem5

Each suite leaves build/bench/SUITE.json, and is not run again as long as the kernels, the guest programs
and the suite itself are the same (--again runs it); one that was interrupted goes on with the boots that are
missing. A suite that is not asked for keeps its figures; if they are of another kernel, the report says so. From
all of them come bench.json, bench.html (one file with everything in it) and bench.md with plots.
Exit status 0 only if every hard target, those on counts, is met.
"""

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path

from tlbrs.bench import outcome, output, suites
from tlbrs.guest import guest
from tlbrs.kernel import common
from tlbrs.kernel.common import ROOT
from tlbrs.report import measure

HERE = Path(__file__).resolve().parent
OUT = ROOT / "build" / "bench"


def inputs(suite, context):
    """The files on which the figures of a suite depend."""
    return [*(HERE / f"{name}.py" for name in ("suites", "outcome", "machine", "flushcode")), *sorted(HERE.glob("of_*.py")),
            *(sorted(HERE.parent.glob("model/*.py")) if suite == "model" else ()),
            Path(measure.__file__), *sorted(Path(guest.__file__).parent.glob("*.py")), Path(guest.__file__).parent / "init",
            *sorted((ROOT / "tools/meter").glob("*.[ch]")), *sorted((ROOT / "tools/testing/selftests/mm").glob("*.[ch]")),
            *(guest.kernel_path(arch, variant, context.kver) for arch in context.arches
              for variant in suites.SUITES[suite].variants(context))]


def identity(suite, context):
    """Changes with anything that the figures of a suite depend on; None if a kernel is not there."""
    qemu = [guest.qemu_version(guest.QEMU[arch][0]) for arch in context.arches]
    digest = hashlib.sha256(repr((suite, context.arches, context.variant, qemu)).encode())
    for path in inputs(suite, context):
        if not path.exists():
            return None
        digest.update(path.read_bytes())
    return digest.hexdigest()


def measured(suite, context, again):
    """The result of a suite: an earlier one if nothing has changed since."""
    place = OUT / f"{suite}.json"
    key = identity(suite, context)
    if key is None:
        path = next(path for path in inputs(suite, context) if not path.exists())
        sys.exit(f"no {path.relative_to(ROOT)}: make kernel ARCH={path.parent.name.replace('-', ' VARIANT=')}")
    if place.exists() and not again:
        old = json.loads(place.read_text())
        if old["key"] == key:
            print(f"{suite}: build/bench/{suite}.json is up to date")
            return old
    print(f"{suite}: {suites.SUITES[suite].about}", flush=True)
    begin = time.monotonic()
    context.suite, context.boots = suite, 0
    # Boots of a run that was interrupted are not repeated, either.
    context.key = f"{key} {time.time()}" if again else key
    result = outcome.Result(context)
    suites.SUITES[suite].run(result)
    new = {"suite": suite, "about": suites.SUITES[suite].about, "key": key, "kver": context.kver,
           "arches": context.arches, "variant": context.variant, "measured": time.strftime("%Y-%m-%d"),
           "seconds": round(time.monotonic() - begin), **result.json()}
    common.store(place, new)
    return new


def earlier(names, kver):
    """Results of these suites, if they are of this version of Linux; those of an older tool have no rows.

    "stale": something has changed since on which the figures depend.
    """
    found = [json.loads(place.read_text()) for suite in names if (place := OUT / f"{suite}.json").exists()]
    for old in found:
        context = outcome.Context(old.get("arches"), old.get("variant"), kver, OUT)
        old["stale"] = not context.arches or old["key"] != identity(old["suite"], context)
    return [old for old in found if "rows" in old and old.get("kver") == kver]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", nargs="*", default=os.environ.get("SUITE", "").split(),
                        help=", ".join(suites.SUITES))
    parser.add_argument("--arch", default=os.environ.get("ARCH"), choices=("arm64", "x86_64"), help="default: both")
    parser.add_argument("--kver", default=common.kver())
    parser.add_argument("--variant", default="bench", help="the kernel that is measured")
    parser.add_argument("--again", action="store_true", help="do not use earlier results")
    parser.add_argument("--no-build", action="store_true", help="measure the kernels that are there")
    args = parser.parse_args()
    wanted = args.suite or [suite for suite in suites.SUITES if suite not in suites.ON_REQUEST]
    if unknown := set(wanted) - set(suites.SUITES):
        parser.error(f"no suite {', '.join(sorted(unknown))}; there are {', '.join(suites.SUITES)}")

    OUT.mkdir(parents=True, exist_ok=True)
    context = outcome.Context([args.arch] if args.arch else ["arm64", "x86_64"], args.variant, args.kver, OUT)
    if not args.no_build:
        measure.make("meter")
        for arch in context.arches:
            for variant in sorted({v for s in wanted for v in suites.SUITES[s].variants(context)}):
                measure.kernel(arch, variant, args.kver)

    results = [measured(suite, context, args.again) for suite in wanted]
    # The report has all suites that were ever measured, in their order.
    results += earlier([suite for suite in suites.SUITES if suite not in wanted], args.kver)
    results.sort(key=lambda r: list(suites.SUITES).index(r["suite"]))
    output.write(OUT, results)

    print("\n".join(output.gate_lines([r for r in results if r["suite"] in wanted])))
    print("\nreport: build/bench/bench.html, build/bench/bench.md")
    missed = [g for r in results if r["suite"] in wanted for g in r["gates"] if g["hard"] and not g["ok"]]
    return 1 if missed else 0
