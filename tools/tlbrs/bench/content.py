# SPDX-License-Identifier: GPL-2.0
"""What bench.md and bench.html both say: the overview of all suites, and how figures and verdicts are written."""

import os
import platform

INTRO = (
    "Counts are of executed instructions (arm64) or of the kernel's own counters (x86_64), under QEMU TCG, and repeat. "
    "Times are only ratios of neighbours in one boot: an emulated TLBI or refill costs what the emulator makes of it.",
    f"Host: {os.cpu_count()} CPUs, {platform.machine()}.")
OVERVIEW = (
    "All figures are medians over the runs. A ratio is that of neighbours, median (quartiles over the runs); below 1 "
    "tlb-rs needs less; without quartiles all runs are alike. Better and worse: both quartiles are on that side of 1. "
    "Same: within 0.5 %. Unclear: 1 is between the quartiles. Where there is no stock, this is about unbatched.")
# What is compared, and with what. "cost" is no mechanism, but belongs into the same picture.
MECHANISMS = {
    "tlb_batch": (
        "Batched TLB invalidation",
        "Unbatched is `vm.tlb_batch=-1` (splits flush each PTE by itself), stock `0`, tlb-rs `1`, in the same boot. "
        "A flush is a TLBI on arm64 (for huge page faults, TLBI and DSB), a shootdown on x86_64; figures are for one "
        "page, split or call. neoverse-n1 has no TLBI of a range."),
    "migrc": (
        "Deferred flushes at migration",
        "Stock is here `vm.migrc_enable=0` with the batch on, in the same boot: what it saves comes on top of "
        "tlb_batch. Flushes of drains are included."),
    "hvo": (
        "HugeTLB pages without struct pages",
        "For one page of 1 GiB. Stock arm64 keeps all struct pages and has no pauses. Unbatched is a pause for each "
        "page table of a folio; in times, stock is the same work without break-before-make, which the architecture "
        "does not allow: it shows what the access flags cost."),
    "cost": (
        "What it costs where it does nothing",
        "Stock is another image, without tlb-rs. Instructions are for one page that is moved, with all switches off."),
}
VERDICTS = {"better": "▼ better", "same": "= same", "unclear": "? unclear", "worse": "▲ worse", "no figure": "-"}
# As measure.same() has it.
SAME = 0.005


def cell(value):
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 1000 else f"{value:.2f}" if value >= 10 else f"{value:.4g}"
    return str(value)


def digits(ratio):
    """Three of them, as both 0.00184 and 1.02 are of interest."""
    return f"{ratio:#.3g}".rstrip(".") if ratio else "0"


def spread(over):
    if over is None:
        return None
    low, middle, high = map(digits, over)
    return middle if low == high else f"{middle} ({low} to {high})"


def base(row):
    """What ours is compared with."""
    return "unbatched" if row["stock"] is None else "stock"


def verdict(row):
    ours, other, over = row["tlb-rs"], row[base(row)], row[f"over {base(row)}"]
    if None in (ours, other):
        return "no figure"
    if over is None:    # there is nothing that one could divide by
        return "worse" if ours > other else "same"
    low, middle, high = over
    if abs(middle - 1) <= SAME:
        return "same"
    return "better" if high <= 1 else "worse" if low >= 1 else "unclear"


def about(result):
    """What a suite is, and when it was measured."""
    when = f", {result['measured']}" if "measured" in result else ""
    old = ("" if not result.get("stale") else " **Old figures**: the kernel, the programs or QEMU have changed since; "
           f"`make bench SUITE={result['suite']}` measures again.")
    return f"{result['about']}; {result['seconds']} s{when}.{old}"


def stale(results):
    """A sentence for the overview, or nothing."""
    names = [result["suite"] for result in results if result.get("stale")]
    return [f"**Old figures**, of another kernel, other programs or another QEMU: {', '.join(names)}."] if names else []


def gate_word(gate):
    return "pass" if gate["ok"] else "FAIL" if gate["hard"] else "miss"


def gates(results):
    head = ["", "target", "measured", "at most", "counts?"]
    return head, [[gate_word(g), g["text"], g["value"], g["limit"], "hard" if g["hard"] else "report"]
                  for result in results for g in result["gates"]]


def met(results):
    """How many targets of both kinds, in a sentence."""
    found = [[g["ok"] for r in results for g in r["gates"] if g["hard"] == hard] for hard in (True, False)]
    return "Met: {} of {} hard ones, {} of {} others.".format(*(n for oks in found for n in (sum(oks), len(oks))))


def by_mechanism(results):
    """{mechanism: rows}, the same work and unit of all machines side by side."""
    rows = [row for result in results for row in result["rows"]]
    found = {m: [row for row in rows if row["mechanism"] == m] for m in MECHANISMS}
    for mine in found.values():
        units, works = (list(dict.fromkeys(row[key] for row in mine)) for key in ("unit", "work"))
        mine.sort(key=lambda row: (units.index(row["unit"]), works.index(row["work"])))
    return {m: mine for m, mine in found.items() if mine}


def overview(rows):
    """(head, rows, commands) of one mechanism; a list in a cell has numbers of commands, from 1."""
    commands = list(dict.fromkeys(c for row in rows for c in row["commands"]))
    head = ["work", "machine", "of", "unbatched", "stock", "tlb-rs", "tlb-rs / stock", "verdict", "runs", "command",
            "tlb-rs / unbatched"]
    cells = [[row["work"], row["arch"], row["unit"], row["unbatched"], row["stock"], row["tlb-rs"],
              spread(row["over stock"]), VERDICTS[verdict(row)], row["runs"],
              [commands.index(c) + 1 for c in row["commands"]], spread(row["over unbatched"])] for row in rows]
    return head, cells, commands


def summary(groups):
    """(head, rows): for each mechanism, machine and unit how many works are better or worse."""
    head = ["mechanism", "machine", "of", *list(VERDICTS)[:4], "least ratio", "greatest ratio", "what is worse"]
    rows = []
    for mechanism, mine in groups.items():
        for arch, unit in dict.fromkeys((row["arch"], row["unit"]) for row in mine):
            some = [row for row in mine if (row["arch"], row["unit"]) == (arch, unit)]
            found = [verdict(row) for row in some]
            middles = [over[1] for row in some if (over := row[f"over {base(row)}"])]
            rows.append([mechanism, arch, unit, *(found.count(v) for v in head[3:7]),
                         *(digits(most(middles)) if middles else None for most in (min, max)),
                         ", ".join(row["work"] for row, v in zip(some, found) if v == "worse")])
    return head, rows
