# SPDX-License-Identifier: GPL-2.0
"""What all suites have: their results and tables, and words of the overview."""

import dataclasses
import statistics

from tlbrs.bench.machine import MODES, each_unit, per_unit, quartiles, ratios
from tlbrs.report import measure
from tlbrs.report.measure import COUNTS

# What the overview calls a machine: the newest CPU, and one without range TLBI. It has no others.
MACHINES = {("arm64", "max"): "arm64", ("arm64", "neoverse-n1"): "arm64 neoverse-n1", ("x86_64", "max"): "x86_64"}
# What one flush of all CPUs is counted by, and units of the overview.
FLUSH = {"arm64": "tlbi", "x86_64": "nr_tlb_remote_flush"}
FLUSHES, TIME, INSNS = "flushes", "time, us", "kernel instructions"


@dataclasses.dataclass
class Context:
    arches: list
    variant: str
    kver: str
    out: object
    suite: str = ""
    boots: int = 0
    key: str = ""


class Result:
    """Tables with their plots, targets and rows of the overview of one suite, as they go into its file."""

    def __init__(self, context):
        self.context = context
        self.tables, self.gates, self.rows, self.notes = [], [], [], []
        self.compared = self.above = 0

    def table(self, title, head, rows, *commands):
        self.tables.append({"title": title, "head": head, "rows": rows, "commands": commands, "plots": []})

    def compare(self, mechanism, arch, work, unit, runs, *commands):
        """A row of the overview; runs: {mode: a figure of each run}, times in ns. Neighbours have the same index."""
        row = {"mechanism": mechanism, "arch": arch, "work": work, "unit": unit, "runs": len(runs.get(1, []))}
        for m, name in MODES.items():
            row[name] = statistics.median(runs[m]) / (1000 if unit == TIME else 1) if runs.get(m) else None
        for m in (-1, 0):
            old, new = runs.get(m, []), runs.get(1, [])
            # Over nothing there is no ratio: the medians decide.
            found = [] if any(b and not a for a, b in zip(old, new)) else ratios(old, new, float)
            row[f"over {MODES[m]}"] = quartiles(found) if found else None
        self.rows.append({**row, "commands": commands})

    def compare_modes(self, arch, unit, found, key, *commands, names, per=lambda name: "units"):
        """A row for each region of tlb_batch."""
        for name, by_mode in found.items():
            self.compare("tlb_batch", arch, names[name], unit,
                         {m: each_unit(records, key, per(name)) for m, records in by_mode.items()}, *commands)

    def gate(self, text, figure, limit, hard=True):
        """A target; figures and limits of None are a measurement that is missing."""
        ok = figure is not None and limit is not None and figure <= limit
        self.gates.append({"text": text, "value": figure, "limit": limit, "ok": ok, "hard": hard})

    def not_above(self, text, key, stock, ours, units, show=False, hard=True):
        """No more than stock, within what timers and kernel threads add. Only what is above is shown by itself."""
        limit = None if stock is None else measure.same(key, stock, units)
        above = None in (ours, limit) or ours > limit
        self.compared += hard
        self.above += hard and above
        if show or above:
            self.gate(text, ours, limit, hard)

    def plot(self, title, x, xlabel, series, ylabel, kind="lines", log=False):
        """Of the last table, and of its commands."""
        self.tables[-1]["plots"].append({"title": title, "x": x, "xlabel": xlabel, "series": series, "ylabel": ylabel,
                                         "kind": kind, "log": log})

    def json(self):
        if self.compared:
            self.gate(f"of {self.compared} counts, above those of stock", self.above, 0)
        return {"tables": self.tables, "gates": self.gates, "rows": self.rows, "notes": self.notes}


@dataclasses.dataclass
class Suite:
    about: str
    run: object
    needs: tuple = ()

    def variants(self, context):
        return [context.variant, *self.needs]


def complete(result, where, names, found, hard=lambda name: True):
    """(region, {mode: records}) of what was measured on stock and on tlb-rs; of all else a target is missed."""
    for name, text in names.items():
        if all(found.get(name, {}).get(m) for m in (0, 1)):
            yield name, found[name]
        else:
            result.gate(f"{where}: {text}: was measured", None, None, hard(name))


def modes_of(found):
    return [m for m in MODES if any(m in by_mode for by_mode in found.values())]


def counts_table(arch, found, names, unit=lambda name: "units"):
    """(head, rows) of all counts of all regions, each mode beside the others."""
    modes = modes_of(found)
    keys = [k for k in COUNTS[arch] if any(per_unit(r, k) is not None for m in found.values() for r in m.values())]
    head = ["per unit"] + [f"{COUNTS[arch][k]} {MODES[m]}" for k in keys for m in modes]
    rows = [[names[name]] + [per_unit(by_mode.get(m, []), k, unit(name)) for k in keys for m in modes]
            for name, by_mode in found.items()]
    return head, rows


def time_table(result, arch, found, pairs, command, names, per=lambda name: "units"):
    """Ratios of neighbours in one boot; returns {region: (lower quartile, median, upper)} of ours over stock."""
    rows, of_stock = [], {}
    for name, by_mode in found.items():
        row = [names[name]]
        for other in (-1, 0):
            if other in by_mode and 1 in by_mode:
                low, middle, high = quartiles(ratios(by_mode[other], by_mode[1], lambda r: r["ns"]))
                row.append(f"{middle:.2f} ({low:.2f} to {high:.2f})")
                if other == 0:
                    of_stock[name] = (low, middle, high)
            else:
                row.append(None)
        rows.append(row)
    result.table(f"{arch} -cpu max: time, {pairs} rounds, median (quartiles)",
                 ["work", "tlb-rs / unbatched", "tlb-rs / stock"], rows, command)
    result.compare_modes(arch, TIME, found, "ns", command, names=names, per=per)
    return of_stock
