# SPDX-License-Identifier: GPL-2.0
"""The main job: build stock and tlb-rs, boot both, print what the same work costs in each.

FAST=1 builds tlb-rs only, and compares it with itself, vm.tlb_batch=0. Exit status 0 only if tlb-rs meets the targets in
every line.
"""

import argparse
import os
import platform
from concurrent.futures import ThreadPoolExecutor

from tlbrs.kernel import common
from tlbrs.report import measure
from tlbrs.report.measure import COUNTS, ROOT, WORK

VERDICT = {"arm64": ("tlb-rs wins", "tlb-rs does not win"),
           "x86_64": ("tlb-rs flushes no more than {}", "tlb-rs flushes more than {}")}
# What tlb-rs is compared with: the switch of its figures, none on a kernel without one; FAST=1: the second.
STOCK, OFF = ("stock", None), ("vm.tlb_batch=0", 0)
PAIRS = 9
# What else is counted than -cpu max, and what is said of it.
OTHERS = {"arm64": {"neoverse-n1": "which has no range TLBI"}, "x86_64": {}}


def table(arch, stock, ours, cpu="max", other=STOCK):
    """Lines of the table, and what is over its limit or missing."""
    title, switch = other
    of_cpu = "" if cpu == "max" else f"{cpu}: "
    keys = COUNTS[arch]
    width = 11
    lines = [f"{'':34}{title:>{(width + 2) * len(keys)}}   {'tlb-rs':>{(width + 2) * len(keys)}}",
             f"{'one unit of work':34}" + "   ".join(2 * ["".join(name.rjust(width + 2) for name in keys.values())])]
    over = []
    for work, (name, _) in WORK.items():
        base, new = measure.found(stock, work, switch), measure.found(ours, work, 1)
        lines.append(f"{name:34}" + "   ".join(
            "".join(f"{f.counts[k]:{width + 2}.2f}" if k in f.counts else f"{'-':>{width + 2}}" for k in keys)
            for f in (base, new)))
        for k, count in keys.items():
            # What a program skips is no success.
            absent = [where for where, f in ((title, base), ("tlb-rs", new)) if k not in f.counts]
            if absent:
                over.append(f"{of_cpu}{name}: {count} was not measured on {' and '.join(absent)}")
            elif new.counts[k] > (most := measure.limit(arch, work, k, base.counts[k], new)):
                over.append(f"{of_cpu}{name}: {count} {new.counts[k]:.2f}, at most {most:.2f}")
    return lines, over


def times(arch, ours):
    lines, over = [], []
    for work, (name, _) in WORK.items():
        found = measure.ratio(*(measure.found(ours, work, switch) for switch in (0, 1)))
        if not found:
            lines.append(f"{name:34}{'-':>8}")
            over.append(f"{name}: its time was not measured")
            continue
        low, middle, high = found
        lines.append(f"{name:34}{middle:8.2f}   ({low:.2f} to {high:.2f})")
        most = measure.TIME_LIMIT[arch].get(work)
        if most and high > most:
            over.append(f"{name}: time ratio {middle:.2f}, upper quartile {high:.2f}, target {most}")
    return lines, over


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", choices=sorted(COUNTS), default=os.environ.get("ARCH", "arm64"))
    parser.add_argument("--kver", default=common.kver())
    parser.add_argument("--fast", action="store_true", default=os.environ.get("FAST", "0") != "0")
    args = parser.parse_args()
    other = OFF if args.fast else STOCK

    measure.make("meter")
    kernels = {variant: measure.kernel(args.arch, variant, args.kver)
               for variant in ("stock", "release") if variant == "release" or not args.fast}
    out = ROOT / "build" / "report"
    out.mkdir(parents=True, exist_ok=True)

    def boot(variant, pairs, meter, cpu="max"):
        what = f"{cpu}, counting" if meter else "timing"
        print(f"booting {args.arch} {variant}, {what} ...", flush=True)
        log = out / f"{args.arch}-{variant}-{what.replace(', ', '-')}.log"
        return measure.run(args.arch, kernels[variant], pairs, meter, cpu=cpu, log=log)

    # Counts do not depend on what else runs; times do.
    cpus = ("max", *OTHERS[args.arch])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        counted = {cpu: [pool.submit(boot, variant, pairs, True, cpu)
                         for variant, pairs in (("stock", 2), ("release", 3)) if variant in kernels] for cpu in cpus}
        counted = {cpu: [boot.result() for boot in boots] for cpu, boots in counted.items()}
    timed = boot("release", PAIRS, False)

    print(f"\nWhat the same work costs: {args.arch}, Linux {args.kver}, QEMU TCG -cpu max, 4 vCPUs, 2 nodes;")
    print("executed instructions of all vCPUs while one unit of work runs, without the DSBs\nof interrupts and task switches, median\n"
          if args.arch == "arm64" else "kernel counters of all CPUs while one unit of work runs, median\n")
    if args.fast:
        print("One kernel, tlb-rs, with vm.tlb_batch=0 and with 1. It is not stock: some rules wait with 0, too.\n")
    # The first is what tlb-rs is compared with, the last is tlb-rs.
    lines, over = table(args.arch, counted["max"][0], counted["max"][-1], other=other)
    print("\n".join(lines))
    for cpu, what in OTHERS[args.arch].items():
        lines, missed = table(args.arch, counted[cpu][0], counted[cpu][-1], cpu, other)
        over += missed
        print(f"\nThe same on -cpu {cpu}, {what}\n\n" + "\n".join(lines))

    print(f"\nTime, vm.tlb_batch=1 over vm.tlb_batch=0 in one boot, {PAIRS} pairs: median (quartiles)\n")
    lines, slow = times(args.arch, timed)
    print("\n".join(lines))
    print(f"\nhost: {os.cpu_count()} CPUs, {platform.machine()}; console logs in build/report/")

    for line in over + slow:
        print("target missed:", line)
    missed = bool(over + slow)
    print(VERDICT[args.arch][missed].format(other[0]))
    return int(missed)
