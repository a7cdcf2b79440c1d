# SPDX-License-Identifier: GPL-2.0
"""The suite hvo: HugeTLB pools without struct pages."""

import re
import statistics

from tlbrs.bench.machine import boot, bound, quartiles, ratios
from tlbrs.bench.outcome import TIME

# Row: what it does, and the most time that it may take, of that without break-before-make: median, and bound.
HVO_ROWS = {
    "hvo_alloc_gigantic": ("allocate pages of 1 GiB", 1.05, 1.3),
    "hvo_free_gigantic": ("free them", 1.05, 1.3),
    "hvo_demote": ("demote them to 2 MiB", 0.45, 0.7),
    "hvo_free_small": ("free those", 1.10, 1.3),
    "hvo_alloc_small": ("allocate pages of 2 MiB", 1.10, 1.3),
}
# Invalidations of 100 GiB, and of the blocks of it that are split before, 512 together.
FLUSHES, SPLITS = 25, 2
# How long another CPU does not run, of that without break-before-make.
GAPS = 1.2
HVO_STRATEGIES = {"unsafe": "no break-before-make", "perfolio": "a pause for each page table of a folio",
                  "each": "by access flag, entry by entry", "auto": "tlb-rs", "pause": "tlb-rs with pauses",
                  "stop_machine": "tlb-rs with stop_machine()"}
# Emulated, a pause takes milliseconds, and so do invalidations.
SLOW = ("perfolio", "each")
# A pool that grows and shrinks beside readers of all struct pages and compaction: rounds without break-before-make, over
# ours, and how many of its 512 pages may keep their struct pages.
BESIDE, KEPT = 1.3, 6
GIB = 1 << 30
# 4 KiB of struct pages are left of 16 MiB for 1 GiB, and of 32 KiB for 2 MiB.
STRUCT_PAGES = 4096
SAVED = {"hvo_alloc_gigantic": STRUCT_PAGES - 1, "hvo_demote": 512 * 7 - (STRUCT_PAGES - 1),
         "hvo_alloc_small": 512 * 7}


def hvo_pages():
    """(pages of 1 GiB, memory of the guest): what the host has room for the struct pages of."""
    with open("/proc/meminfo", encoding="ascii") as f:
        available = int(re.search(r"MemAvailable: *(\d+)", f.read())[1]) << 10
    return (600, "640G") if available >= 14 * GIB else (100, "128G")


def pages_of(record):
    """Of 1 GiB; where it counts those of 2 MiB, there are 512 times as many."""
    return record["pages"] // (512 if record["region"].endswith("_small") else 1)


def hvo_beside(result):
    """A pool that grows and shrinks all the time, beside others."""
    command = "hvo_bench --beside 20 --pairs 3 --strategy auto --strategy unsafe"
    records, command, _ = boot(result.context, "arm64", command, mem="6G", nodes=1)
    found = {}
    for r in records:
        if r.get("region") == "hvo_beside":
            found.setdefault(r["strategy"], []).append(r)
    rows = [[text, statistics.median(r["rounds"] / r["seconds"] for r in found[s]), min(r["least"] for r in found[s]),
             sum(r["pauses"] for r in found[s])]
            for s, text in {"off": "struct pages are kept", **HVO_STRATEGIES}.items() if s in found]
    result.gate("arm64: a pool of 2 MiB pages beside readers: rounds without break-before-make, over tlb-rs",
                statistics.median(ratios(found["auto"], found["unsafe"], lambda r: r["rounds"])), BESIDE, hard=False)
    result.gate("arm64: a pool of 2 MiB pages beside readers: most of 512 that kept their struct pages",
                max(r["pages"] - r["least"] for r in found["auto"]), KEPT)
    result.gate("arm64: a pool of 2 MiB pages beside readers: pauses", sum(r["pauses"] for r in found["auto"]), 0)
    result.table("arm64: a pool of 512 pages of 2 MiB grows and shrinks, beside 4 readers of all struct pages, and "
                 "compaction every second", ["strategy", "rounds in a second", "least that were optimised", "pauses"],
                 rows, command)


def hvo_compare(result, region, found, commands):
    def compare(unit, key, halves, *which):
        runs = {m: [r[key] / pages_of(r) for r in found[where, region][s]] for m, (where, s) in halves.items()}
        result.compare("hvo", "arm64", HVO_ROWS[region][0], unit, runs, *map(commands.get, which))

    compare(TIME, "ns", {0: ("time", "unsafe"), 1: ("time", "auto")}, "time")
    compare("pauses", "pauses", {-1: ("slow", "perfolio"), 1: ("counts", "auto")}, "slow", "counts")
    if region == "hvo_alloc_gigantic":
        left = [STRUCT_PAGES - r["saved"] / pages_of(r) for r in found["time", region]["auto"]]
        # Stock keeps them all.
        result.compare("hvo", "arm64", HVO_ROWS[region][0], "pages of struct pages",
                       {0: [STRUCT_PAGES] * len(left), 1: left}, commands["time"])


def hvo(result):
    """arm64 only: other architectures change these entries without a pause."""
    if "arm64" not in result.context.arches:
        return
    pages, mem = hvo_pages()
    machine = {"mem": mem, "nodes": 1}
    pairs = 7
    # Ours is first: what splits blocks leaves them split for the next.
    each = sorted((s for s in HVO_STRATEGIES if s not in SLOW), key=lambda s: s != "auto")
    few = "hvo_bench --pages 10 " + " ".join(f"--strategy {s}" for s in SLOW)
    jobs = {"time": f"hvo_bench --pages 100 --pairs {pairs} --strategy auto --strategy unsafe",
            "counts": f"hvo_bench --pages {pages} " + " ".join(f"--strategy {s}" for s in each),
            "slow": few,
            "gaps": "hvo_bench --pages 20 --pairs 9 --spin --strategy auto --strategy unsafe",
            "stalls": "hvo_bench --pages 100 --spin " + " ".join(f"--strategy {s}" for s in each) + f" && {few} --spin"}
    found, commands = {}, {}
    for name, job in jobs.items():
        records, commands[name], _ = boot(result.context, "arm64", job, timeout=3600, **machine)
        for r in records:
            if r.get("region") in HVO_ROWS:
                found.setdefault((name, r["region"]), {}).setdefault(r["strategy"], []).append(r)

    rows, counts_, stalls = [], [], []
    for region, (about, usual, slowest) in HVO_ROWS.items():
        hvo_compare(result, region, found, commands)
        ours, unsafe = (found["time", region][s] for s in ("auto", "unsafe"))
        times = ratios(unsafe, ours, lambda r: r["ns"])
        low, middle, high = quartiles(times)
        flushes = statistics.median(r["flushes"] / pages_of(r) * 100 for r in ours)
        rows.append([about, statistics.median(r["ns"] for r in unsafe) / 1e9, f"{middle:.3f} ({low:.3f} to {high:.3f})",
                     bound(times)[1], flushes, statistics.median(r["young"] / pages_of(r) for r in ours)])
        result.gate(f"arm64: {about}, time over no break-before-make, median", middle, usual, hard=False)
        result.gate(f"arm64: {about}, time over no break-before-make, 95 % bound", bound(times)[1], slowest, hard=False)
        result.gate(f"arm64: {about}, invalidations of 100 GiB", flushes, FLUSHES + SPLITS * ("alloc" in region), hard=False)
        ours = [r for name in ("time", "counts") for r in found[name, region]["auto"]]
        result.gate(f"arm64: {about}, pauses and stop_machine() calls", max(r["pauses"] + r["cancelled"] for r in ours), 0)
        gaps = ratios(found["gaps", region]["unsafe"], found["gaps", region]["auto"], lambda r: r["p99_stall_ns"])
        result.gate(f"arm64: {about}, 99 % of the gaps of another CPU, over no break-before-make",
                    statistics.median(gaps) if gaps else None, GAPS, hard=False)
        if region in SAVED:
            result.gate(f"arm64: {about}, pages of struct pages that are missing of what can be saved",
                        max(pages_of(r) * SAVED[region] - r["saved"] for r in ours), 0)
        for strategy, text in HVO_STRATEGIES.items():
            last = [r for name in ("counts", "slow") for r in found.get((name, region), {}).get(strategy, [])]
            if last:
                counts_.append([about, text, pages_of(last[0]), *(statistics.median(r[k] for r in last) for k in
                                               ("pauses", "cancelled", "stop_machine", "entries", "saved")),
                                statistics.median(r["ns"] for r in last) / 1e9])
            spun = found.get(("stalls", region), {}).get(strategy, [])
            if spun:
                stalls.append([about, text, spun[0]["worst_stall_ns"] / 1e6, spun[0]["p99_stall_ns"] / 1e6])
    result.table(f"arm64: 100 pages of 1 GiB, {pairs} pairs in one boot, median (quartiles)",
                 ["work", "no break-before-make, s", "tlb-rs over it", "95 % bound", "invalidations of 100 GiB",
                  "young entries of 1 GiB"], rows, commands["time"])
    result.table("arm64: by strategy",
                 ["work", "strategy", "pages of 1 GiB", "pauses", "cancelled", "stop_machine()", "entries changed", "pages saved", "s"],
                 counts_, commands["counts"], commands["slow"])
    result.table("arm64: for how long a thread on another CPU does not run (with what the host does meanwhile)",
                 ["work", "strategy", "worst, ms", "99 % are shorter, ms"], stalls, commands["stalls"])
    hvo_beside(result)
    if pages != 600:
        result.notes.append("100 pages of 1 GiB instead of 600: this host has less than 14 GiB available.")
    hvo_broadcast(result)


# A guest with many more CPUs than its host is late for everything: stock warns of the timer of its deadline servers.
LATE = (r"WARNING: kernel/time/hrtimer.c.*hrtimer_forward",)


def hvo_broadcast(result):
    """How many times an interrupt is sent for a pause: once for each 16 CPUs, or once for all."""
    rows = []
    for cpus in (4, 16, 32):
        found = []
        for on in (0, 1):
            records, text, _ = boot(result.context, "arm64", "hvo_bench --pages 16 --strategy pause", mem="32G", nodes=1,
                                    smp=cpus, meter=True, append=f"irqchip.gicv3_broadcast={on}",
                                    allow=LATE)
            # What else wakes CPUs up only adds to it.
            found.append(min(r["meter"]["sgi"] / (r["pauses"] + r["cancelled"]) for r in records
                             if r.get("region") in HVO_ROWS))
            result.gate(f"arm64: writes that send an interrupt, for one pause of {cpus} CPUs, broadcast {'on' if on else 'off'}",
                        found[-1], 1.15 if on else 1.15 * -(-cpus // 16))
        rows.append([cpus, *found])
    result.table("arm64: writes of ICC_SGI1R_EL1 for one pause or attempt", ["CPUs", "irqchip.gicv3_broadcast=0", "=1"], rows,
                 text)
