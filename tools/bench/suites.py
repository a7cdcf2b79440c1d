# SPDX-License-Identifier: GPL-2.0
"""The suites: what is booted, which figures come of it, which targets they must meet."""

import dataclasses
import functools
import re
import statistics
import subprocess

import measure
import toolchain
from flushcode import Text, shares
from machine import MODES, bound, boot, each_mode, each_unit, per_unit, quartiles, ratios, samples, value
from measure import COUNTS, ROOT, WORK

LPA2_OFF = "max,lpa2=off,pauth-impdef=on"
CPUS = {"arm64": ["max", LPA2_OFF, "neoverse-n1", "cortex-a72"], "x86_64": ["max"]}
RANGE_TLBI = ("max", LPA2_OFF)
# What the overview calls a machine: the newest CPU, and one without range TLBI. It has no others.
MACHINES = {("arm64", "max"): "arm64", ("arm64", "neoverse-n1"): "arm64 neoverse-n1", ("x86_64", "max"): "x86_64"}
# What one flush of all CPUs is counted by, and units of the overview.
FLUSH = {"arm64": "tlbi", "x86_64": "nr_tlb_remote_flush"}
FLUSHES, TIME, INSNS = "flushes", "time, us", "kernel instructions"
OPERATIONS = ("tlbi", "dsb_ishst", "dsb_ish", "dsb_other")
THREADS = (1, 3, 5, 7, 12, 18, 24, 30, 32)


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
            found = ratios(runs.get(m, []), runs.get(1, []), float)
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


# ---- split and move

SPLIT = "tlb_batch_thp_split --readers {0} --dir /mnt"
MOVE = "tlb_batch_move_bench --readers {0}"
WORK_NAMES = {name: text for name, (text, _) in WORK.items()}


def work_unit(name):
    return WORK[name][1] or "-"


def counts(result):
    for arch in result.context.arches:
        readers = 0 if arch == "arm64" else 3
        job = each_mode(f"{SPLIT} && {MOVE}".format(readers), 3)
        for cpu in CPUS[arch]:
            records, text, _ = boot(result.context, arch, job, cpu=cpu, disk="256M", meter=arch == "arm64")
            found = samples(records)
            head, rows = counts_table(arch, found, WORK_NAMES, work_unit)
            result.table(f"{arch} -cpu {cpu}: split and move", head, rows, text)
            if machine := MACHINES.get((arch, cpu)):
                result.compare_modes(machine, FLUSHES, found, FLUSH[arch], text, names=WORK_NAMES, per=work_unit)
            counts_gates(result, arch, cpu, found)
            if cpu == "neoverse-n1" or arch == "x86_64" or not found.get("split_anon"):
                continue
            result.plot(f"TLBI per unit of work, -cpu {cpu}", [WORK_NAMES[n] for n in found], "",
                        {MODES[m]: [per_unit(by[m], "tlbi", work_unit(n)) for n, by in found.items()]
                         for m in modes_of(found)}, "TLBI", "bars", True)
        rounds = 9
        job = each_mode(f"{SPLIT} --variant anon --variant mixed --variant shared4 && {MOVE}".format(readers), rounds)
        records, text, _ = boot(result.context, arch, job)
        of_stock = time_table(result, arch, samples(records), rounds, text, WORK_NAMES, work_unit)
        if arch == "arm64":
            result.gate("arm64: split a THP, time over stock, upper quartile", of_stock.get("split_anon", [None] * 3)[2],
                        measure.TIME_LIMIT[arch]["split_anon"], hard=False)


def counts_gates(result, arch, cpu, found):
    where = f"{arch} {cpu}"
    for name, by_mode in complete(result, where, WORK_NAMES, found):
        unit = work_unit(name)
        units = by_mode[1][0].get(unit) or 1
        for key, label in COUNTS[arch].items():
            ours, stock = (per_unit(by_mode[m], key, unit) for m in (1, 0))
            if ours is not None and key != "tlb_irqs":
                result.not_above(f"{where}: {WORK_NAMES[name]}, {label} not above stock", key, stock, ours, units)
    # What was not measured is a missed target already.
    if arch != "arm64" or not all(found.get(name, {}).get(mode) for name in measure.LIMITS for mode in (0, 1)):
        return

    def count(name, key):
        return per_unit(found[name][1], key, work_unit(name))

    if cpu in RANGE_TLBI:
        for key, most in measure.LIMITS["split_anon"].items():
            result.gate(f"{where}: split a THP, {COUNTS[arch][key]}", count("split_anon", key), most)
    else:
        result.gate(f"{where}: split a THP, TLBI", count("split_anon", "tlbi"), 1.1)
    result.gate(f"{where}: split a THP of 4 processes, TLBI per process", count("split_shared4", "tlbi") / 4, 1.1)
    result.gate(f"{where}: move 4096 writable pages, TLBI", count("move_rw", "tlbi"),
                measure.LIMITS["move_rw"]["tlbi"])
    # The comparison must be one.
    result.gate(f"{where}: the same with the switch at 0, 4096 less its TLBI",
                4096 - per_unit(found["move_rw"][0], "tlbi", "-"), 0)


# ---- pageout

PAGEOUT = {"pageout_file": "page out clean pages of a file", "pageout_anon_clean": "page out clean anonymous pages",
           "pageout_anon_dirty": "page out dirty anonymous pages", "pageout_mthp": "page out folios of 64 KiB",
           "pageout_thp": "page out THPs"}


def pageout(result):
    for arch in result.context.arches:
        readers = 0 if arch == "arm64" else 3
        job = f"tlb_batch_pageout --pairs 3 --readers {readers} --dir /mnt"
        for cpu in ("max", "neoverse-n1") if arch == "arm64" else ("max",):
            options = {"cpu": cpu, "disk": "256M", "swap": "disk:512M"}
            records, text, _ = boot(result.context, arch, job, meter=arch == "arm64", **options)
            found = samples(records)
            head, rows = counts_table(arch, found, PAGEOUT)
            result.table(f"{arch} -cpu {cpu}: MADV_PAGEOUT of 4096 pages, per page", head, rows, text)
            key = FLUSH[arch]
            result.compare_modes(MACHINES[arch, cpu], FLUSHES, found, key, text, names=PAGEOUT)
            for name, by_mode in complete(result, f"{arch} {cpu}", PAGEOUT, found):
                stock, ours = (per_unit(by_mode[m], key) for m in (0, 1))
                what = f"{arch} {cpu}: {PAGEOUT[name]}, {COUNTS[arch][key]} per page"
                # Without range TLBI a batch of 32 pages is 32 TLBI: far less than what an ASID invalidation costs.
                if cpu in RANGE_TLBI and arch == "arm64" and name in ("pageout_file", "pageout_anon_clean"):
                    result.gate(f"{what}, 1/20 of stock", ours, stock / 20)
                else:
                    result.not_above(what, key, stock, ours, by_mode[0][0]["units"], show=True)
            if cpu == "max":
                result.plot(f"{arch}: MADV_PAGEOUT, {COUNTS[arch][key]} per page", [PAGEOUT[n] for n in found], "",
                            {MODES[m]: [per_unit(by.get(m, []), key) for by in found.values()] for m in modes_of(found)},
                            "per page", "bars", True)
        job = f"tlb_batch_pageout --pairs 9 --readers {readers} --dir /mnt"
        records, text, _ = boot(result.context, arch, job, disk="256M", swap="disk:512M")
        time_table(result, arch, samples(records), 9, text, PAGEOUT)


# ---- worst cases

WORST = {"worst_children": "page out every third page of 64 children",
         "worst_reclaim": "reclaim a third of the pages of 64 children",
         "worst_scattered": "move pages that are not neighbours", "worst_single": "move one page a call",
         "worst_huge": "move 64 MiB in one call", "worst_exit_whole": "move 2048 pages of a child",
         "worst_exit": "move pages of a child that is killed", "worst_compact_whole": "compact 8192 pages of a child",
         "worst_compact": "compact pages of a child that is killed", "worst_tasks": "4 tasks move pages of their own",
         "worst_swapin": "page in, in any order", "worst_shared": "reclaim pages that 4 processes share"}
# Nothing holds the mm there, and how far the kernel gets before the kill depends on the emulator's speed.
UNREPEATABLE = ("worst_exit", "worst_exit_whole", "worst_compact", "worst_compact_whole")
# How many CPUs must be told there depends on which of them happened to be idle.
IDLE_CPUS = (*UNREPEATABLE, "worst_reclaim", "worst_tasks")


def worst_repeats(arch, name):
    """Whether its flushes do: then their target is a hard one."""
    return arch == "arm64" or name not in IDLE_CPUS


def worst(result):
    for arch in result.context.arches:
        job = "tlb_batch_worst --pairs 9"
        records, text, _ = boot(result.context, arch, job, swap="zram:512M", meter=arch == "arm64")
        found = samples(records)
        head, rows = counts_table(arch, found, WORST)
        result.table(f"{arch}, 4 vCPUs: counts per page", head, rows, text)
        key = FLUSH[arch]
        result.compare_modes(arch, FLUSHES, found, key, text, names=WORST)
        for name, by_mode in complete(result, f"{arch}, 4 vCPUs", WORST, found, functools.partial(worst_repeats, arch)):
            units = statistics.median(r["units"] for r in by_mode[0])
            stock, ours = (per_unit(by_mode[m], key) for m in (0, 1))
            result.not_above(f"{arch}: {WORST[name]}, {COUNTS[arch][key]} per page, not above stock", key, stock, ours,
                             max(units, 1), show=True, hard=worst_repeats(arch, name))

        records, text, _ = boot(result.context, arch, job, smp=1, nodes=1, cpuless=1, swap="zram:512M", meter=True)
        found = samples(records)
        rows = []
        for name, by_mode in complete(result, f"{arch}, 1 vCPU", WORST, found, lambda name: name not in UNREPEATABLE):
            stock, ours = (per_unit(by_mode[m], "insns_kernel") for m in (0, 1))
            rows.append([WORST[name], stock, ours, ours / stock if ours and stock else None])
            result.gate(f"{arch}, 1 vCPU: {WORST[name]}, kernel instructions per page over stock", rows[-1][-1], 1.02,
                        hard=name not in UNREPEATABLE)
        result.table(f"{arch}, 1 vCPU: kernel instructions per page, median of 9",
                     ["case", "stock", "tlb-rs", "tlb-rs / stock"], rows, text)
        result.compare_modes(arch, INSNS, found, "insns_kernel", text, names=WORST)
    result.notes.append("Cases in which a child is killed do not do the same work twice: their instructions are "
                        "reported, and no target.")


# ---- thpscale

THPSCALE = f"huge page faults, a run for each of {min(THREADS)} to {max(THREADS)} threads"


def thpscale(result):
    if "arm64" not in result.context.arches:
        return
    rounds = 7
    machine = {"mem": "1G", "nodes": 1}
    counted, count_text, _ = boot(result.context, "arm64", "tlb_batch_thpscale --rounds 2", meter=True, **machine)
    timed, time_text, _ = boot(result.context, "arm64", f"tlb_batch_thpscale --rounds {rounds}", **machine)

    def by_threads(r):
        return r["threads"]

    def per(unit, records, *names):
        """All rounds together."""
        return sum(value(r, n) for r in records for n in names) / max(sum(r[unit] for r in records), 1)

    # Where compaction gave up in a row, most of its faults have nothing to do with huge pages.
    found, latency = (samples([r for r in records if r.get("complete")], by_threads) for records in (counted, timed))
    modes = modes_of(found)
    rows, series = [], {MODES[m]: [] for m in modes}
    for threads, by_mode in found.items():
        ops = {m: per("huge", by_mode[m], *OPERATIONS) for m in modes}
        rows.append([threads, *(ops[m] for m in modes), *(per("huge", by_mode[m], "tlbi") for m in modes),
                     *(per("huge", by_mode[m], "splits") for m in modes)])
        for m in modes:
            series[MODES[m]].append(ops[m])
        result.gate(f"thpscale, {threads} threads: TLBI+DSB per huge fault over stock", ops[1] / ops[0], 0.999)
        if -1 in ops:
            # Per split, as a row's faults happen to need more or fewer of them: this compares two modes that differ less.
            result.gate(f"thpscale, {threads} threads: TLBI+DSB per split, stock over unbatched",
                        per("splits", by_mode[0], *OPERATIONS) / per("splits", by_mode[-1], *OPERATIONS), 1)
    result.table("TLBI, DSB and splits per huge fault (arm64 -cpu max, 4 vCPUs)",
                 ["threads"] + [f"{what} {MODES[m]}" for what in ("TLBI+DSB", "TLBI", "splits") for m in modes], rows,
                 count_text)
    result.plot("thpscale: TLBI+DSB per huge fault", list(found), "threads", series, "per fault", log=True)
    result.compare("tlb_batch", "arm64", THPSCALE, FLUSHES, {m: series[MODES[m]] for m in modes}, count_text)

    rows, series, first, below = [], {MODES[m]: [] for m in modes}, min(modes), 0
    for threads, by_mode in latency.items():
        mean = {m: statistics.fmean(r["both_ns"] for r in by_mode[m]) / 1000 for m in modes}
        huge = {m: sum(r["huge"] for r in by_mode[m]) / sum(r["units"] for r in by_mode[m]) for m in modes}
        middle, most = bound(ratios(by_mode[first], by_mode[1], lambda r: r["both_ns"]))
        against, _ = bound(ratios(by_mode[0], by_mode[1], lambda r: r["both_ns"]))
        below += most < 1
        for m in modes:
            series[MODES[m]].append(mean[m])
        rows.append([f"fault-both-{threads}", *(mean[m] for m in modes), middle, most, against,
                     *(f"{100 * huge[m]:.0f} %" for m in modes)])
    result.table(f"Amean fault latency, us of the guest, {rounds} rounds",
                 ["row", *(MODES[m] for m in modes), f"tlb-rs / {MODES[first]}", "95 % bound", "tlb-rs / stock",
                  *(f"huge {MODES[m]}" for m in modes)], rows, time_text)
    result.plot("thpscale: Amean fault latency (emulated)", list(latency), "threads", series, "us")
    result.compare("tlb_batch", "arm64", THPSCALE, TIME, {m: [1000 * us for us in series[MODES[m]]] for m in modes},
                   time_text)
    if first == -1:
        result.gate("thpscale: rows of 9 whose latency is not below unbatched (95 % bound)", len(latency) - below, 2,
                    hard=False)
    else:
        result.notes.append(f"{result.context.variant} has no unbatched mode: ratios are over stock.")
    flush_share(result)


def flush_share(result):
    """How much of a split is flush code; the original's profile had 7.2 of 16.9 % of all samples there."""
    context = result.context
    text = Text(ROOT / "build" / context.kver / f"arm64-{context.variant}" / "vmlinux")
    split = each_mode("tlb_batch_profile tlb_batch_thp_split --variant anon", 5)
    fault = each_mode("tlb_batch_profile tlb_batch_thpscale --same --threads 5 --rounds 1", 2)
    rows, commands = [], []
    for what, job, machine in (("split_huge_pages", split, {}), ("thpscale, 5 threads", fault, {"mem": "1G", "nodes": 1})):
        records, command, _ = boot(context, "arm64", job, **machine)
        commands.append(command)
        profiles = [r for r in records if "profile" in r]
        for mode, name in MODES.items():
            if found := [r for r in profiles if r["tlb_batch"] == mode]:
                samples_, below, flush = shares(found, text)
                rows.append([what, name, samples_, below, flush, None if None in (below, flush) else below * flush])
    result.table("Share of __folio_split() and of the TLBI and DSB in it (clock samples of the kernel's time, emulated)",
                 ["work", "mode", "samples", "split, of all", "flush, of the split", "flush, of all"], rows, *commands)
    result.notes.append("On hardware: `perf record -ag -e cycles -- LOAD; perf report --no-children -p __folio_split`, and "
                        "`perf annotate` for the instructions that follow a TLBI or DSB.")


# ---- one ASID invalidation or many

def sweep(result):
    if "arm64" not in result.context.arches:
        return
    for cpu in ("neoverse-n1", "max"):
        counted, count_text, _ = boot(result.context, "arm64", "tlb_batch_sweep", cpu=cpu, meter=True)
        timed, time_text, _ = boot(result.context, "arm64", "tlb_batch_sweep --calls 200", cpu=cpu)
        tlbi = {r["pages"]: value(r, "tlbi") / r["units"] for r in counted if "region" in r}
        asid = {r["pages"]: value(r, "tlbi_asid") / r["units"] for r in counted if "region" in r}
        ns = {r["pages"]: (r["change_ns"], r["refill_ns"], r["set_pages"]) for r in timed if "region" in r}
        rows = [[n, tlbi[n], asid[n], ns[n][0] / 1000, ns[n][1] / 1000] for n in tlbi]
        result.table(f"-cpu {cpu}: mprotect() of N pages, then reading {ns[0][2]} others",
                     ["N", "TLBI", "of an ASID", "change, us", "read, us"], rows, count_text, time_text)
        result.plot(f"-cpu {cpu}: invalidating N pages", list(ns)[1:], "N pages",
                    {"change": [c / 1000 for c, _, _ in list(ns.values())[1:]],
                     "read the working set": [r / 1000 for _, r, _ in list(ns.values())[1:]]}, "us (emulated)")
        if tlbi[511] < 511:
            continue
        # From 512 pages on there is one TLBI, whatever N: the rest of the time is that of the page table entries.
        pte = (ns[2048][0] - ns[512][0]) / (2048 - 512)
        one = ((ns[511][0] - ns[64][0]) / (511 - 64) - pte) / 1000
        after = statistics.median(ns[n][1] for n in ns if n >= 512) / ns[0][1]
        result.notes.append(
            f"`-cpu {cpu}`, emulated: each TLBI more costs {one:.2f} us, and reading {ns[0][2]} pages after the address space was "
            f"invalidated {after:.2f} of the time without. The emulator stops all vCPUs for a TLBI and walks in software, so "
            "this says that the limit exists, not where it lies. On hardware the refill costs at most one walk for each entry "
            "of the TLB, and a TLBI is a broadcast to all CPUs. The limit of 512 pages is that of the kernel's own "
            "flush_tlb_range() (MAX_DVM_OPS), visible in the table.")
    job = " && ".join(f"tlb_batch_move_bench --variant rw --pairs 2 --pages {n}" for n in (32, 128, 256, 511, 512, 1024, 4096))
    for cpu in ("neoverse-n1", "cortex-a72", "max"):
        records, text, _ = boot(result.context, "arm64", job, cpu=cpu, meter=True)
        rows = []
        for pages, by_mode in samples(records, lambda r: r["pages"]).items():
            figures = [per_unit(by_mode[m], k, "-") for k in ("tlbi", "tlbi_asid") for m in (0, 1)]
            rows.append([pages, *figures])
            result.not_above(f"move {pages} pages, {cpu}: TLBI not above stock", "tlbi", figures[0], figures[1], 1)
        result.table(f"-cpu {cpu}: move_pages() of N pages", ["N", "TLBI stock", "TLBI tlb-rs", "of an ASID, stock",
                                                             "of an ASID, tlb-rs"], rows, text)


# ---- code size

def llvm(name, *args):
    """What a tool of the LLVM that the kernel was built with prints."""
    return subprocess.run([toolchain.llvm_tool(name), *args], capture_output=True, text=True, check=True).stdout


def text_size(path):
    """(text, data, bss) of an object or an image; zeros where there is none."""
    if not path.exists():
        return 0, 0, 0
    lines = llvm("llvm-size", path).splitlines()
    return tuple(map(int, lines[1].split()[:3]))


def symbol_size(path, name):
    return int(re.search(rf"^\S+ (\S+) \w {name}$", llvm("llvm-nm", "--print-size", path), re.M)[1], 16)


def size(result):
    patches = [p.read_text() for p in sorted((ROOT / "patches").glob("*/*.patch"))]
    touched = sorted({m[:-2] + ".o" for text in patches for m in re.findall(r"^\+\+\+ b/((?!tools/|samples/)\S+\.c)$", text, re.M)})
    for arch in result.context.arches:
        build = ROOT / "build" / result.context.kver
        trees = {v: build / f"{arch}-{v}" for v in ("stock", "release")}
        new = sorted(str(p.relative_to(trees["release"])) for mechanism in ("tlb_batch", "migrc", "hvo")
                     for p in trees["release"].glob(f"mm/{mechanism}/*.o"))
        rows = []
        for name in [*touched, *new, "rust/kernel.o", "vmlinux"]:
            stock, ours = (text_size(tree / name) for tree in trees.values())
            if stock != ours or name == "vmlinux":
                rows.append([name, *stock, *ours, sum(ours) - sum(stock)])
        sizes = [symbol_size(tree / "vmlinux", "init_task") for tree in trees.values()]
        rows.append(["struct task_struct", None, sizes[0], None, None, sizes[1], None, sizes[1] - sizes[0]])
        images = f"build/{result.context.kver}/{arch}-{{stock,release}}"
        commands = f"llvm-size {images}/OBJECT", f"llvm-nm --print-size {images}/vmlinux | grep -w init_task"
        result.table(f"{arch}: bytes, stock and release", ["object", "text stock", "data", "bss", "text tlb-rs", "data", "bss",
                                                          "growth"], rows, *commands)
        # vmlinux was the last of the loop.
        for work, both, command in zip(("vmlinux", "struct task_struct"), ((sum(stock), sum(ours)), sizes), commands):
            result.compare("cost", arch, work, "bytes", {m: [n] for m, n in enumerate(both)}, command)


# ---- migrc

MIGRC = {"migrc_once": "4096 read-only pages in one call", "migrc_rounds": "1000 moves of one page of 250",
         "migrc_ro": "4096 read-only pages", "migrc_rw": "4096 writable pages"}


def switched(records, names=None):
    """{region: {vm.migrc_enable: [records]}}"""
    found = {}
    for r in records:
        if r.get("region") in (names or MIGRC):
            found.setdefault(r["region"], {}).setdefault(r["migrc"], []).append(r)
    return found


def migrc(result):
    for arch in result.context.arches:
        flush, pairs = FLUSH[arch], 3
        job = f"migrc_move_bench --case once --pairs {pairs} && migrc_move_bench --case rounds --pairs {pairs}"
        records, text, _ = boot(result.context, arch, job, mem="4G", meter=arch == "arm64")
        found, rows = switched(records), []
        for name, by in found.items():
            off, on = (per_unit(by[m], flush, "-") for m in (0, 1))
            worst = max(value(r, flush) - r["ns"] // 10**9 for r in by[1])
            rows.append([MIGRC[name], off, on, per_unit(by[1], "deferred", "-"), per_unit(by[1], "migrc_flush", "-")])
            result.compare("migrc", arch, MIGRC[name], FLUSHES, {m: each_unit(by[m], flush, "-") for m in by}, text)
            result.gate(f"{arch}: {MIGRC[name]}, flushes, less the whole seconds that it took", worst, 2)
        result.table(f"{arch}: flushes until vm.migrc_enable=0 has returned, 3 readers, age cap 1000 ms",
                     ["work", f"{flush} off", f"{flush} on", "pages deferred", "address spaces flushed"], rows, text)

        pairs = 15
        job = f"migrc_move_bench --case ro --pairs {pairs} && migrc_move_bench --case rw --pairs {pairs}"
        records, text, _ = boot(result.context, arch, job, mem="4G")
        rows = []
        for name, by in switched(records).items():
            low, middle, high = quartiles(ratios(by[0], by[1], lambda r: r["ns"]))
            rows.append([MIGRC[name], f"{middle:.3f} ({low:.3f} to {high:.3f})"])
            result.compare("migrc", arch, MIGRC[name], TIME, {m: each_unit(by[m], "ns", "-") for m in by}, text)
            result.gate(f"{arch}: {MIGRC[name]}, time with migrc over without, median", middle,
                        1.0 if name == "migrc_ro" else 1.03, hard=False)
        result.table(f"{arch}: time of migration, {pairs} pairs in one boot, median (quartiles)", ["work", "on / off"], rows,
                     text)
        migrc_off(result, arch)


def migrc_off(result, arch):
    """With the switches off, against stock: what the kernel executes. Times of two boots differ by more than that.

    The least of many: a tick comes when the host's time has come, and is no work of a migration."""
    insns, rows, commands, pairs = {}, [], [], 15
    for variant in ("stock", result.context.variant):
        records, text, _ = boot(result.context, arch, f"tlb_batch_move_bench --pairs {pairs}", variant=variant, mem="4G",
                                meter=True, append="numa_balancing=disable")
        for region, by in samples(records).items():
            # As many of both: stock has no switch, and all of its halves are alike.
            insns.setdefault(region, []).append([r["meter"]["insns_kernel"] / r["pages"]
                                                 for r in (by.get(None) or by[0])[:pairs]])
        commands.append(text)
    for region, (stock, ours) in insns.items():
        ratio = min(ours) / min(stock)
        rows.append([MIGRC[region.replace("move", "migrc")],
                     *(f"{min(found):.0f} ({statistics.median(found):.0f})" for found in (stock, ours)), f"{ratio:.4f}"])
        result.gate(f"{arch}: {rows[-1][0]}, instructions with migrc and tlb_batch off over stock", ratio, 1.01)
        result.compare("cost", arch, f"{rows[-1][0]}, both switches 0", INSNS, {0: stock, 1: ours}, *commands)
    result.table(f"{arch}: instructions of the kernel for each page that is moved, least of {pairs} (median)",
                 ["work", "stock", "tlb-rs, both switches 0", "ratio"], rows, *commands)


# ---- workloads whose memory moves

# Name: what it does, the most that migrc may leave of the flushes of a migrated page, and the most time that an operation
# may take with it. They are what was asked for: 95 % fewer flushes where threads read, and 80 % where processes come and
# go; lookups as fast as without. Of what writes, nothing can be deferred: 2 % for more flushes and for less throughput.
WORKLOADS = {
    "lookup": ("look up in tables that were written once", 0.05, 1.0),
    "file": ("read a mapped file, hot and cold parts", 0.05, 1.0),
    "procs": ("processes that live for 200 ms share text and a library", 0.20, None),
    "store": ("write", 1.02, 1 / 0.98),
}
# Counters of debugfs/migrc/stats, by how their names begin in a record.
REASONS = {"denied_": "pages denied", "drain_": "drains", "hook_": "flushes by hooks"}
TOTALS = {"nr_tlb_remote_flush": "remote flush", "nr_tlb_remote_flush_received": "received",
          "nr_tlb_local_flush_all": "local all", "tlbi": "TLBI", "dsb_ish": "DSB ISH"}


def flushes(record):
    """Of migration and of drains, for each page that was migrated."""
    return (record["tlb_batch_flush"] + record["migrc_flush"]) / max(record["moved"], 1)


def op_ns(record):
    return record["ops_ns"] / max(record["ops"], 1)


def middle_ratio(by, what):
    """Median over the pairs of on / off; None if there is nothing to compare."""
    found = ratios(by.get(0, []), by.get(1, []), what)
    return statistics.median(found) if found else None


def by_reason(record):
    """What a record counted by reason, in words."""
    words = []
    for prefix, text in REASONS.items():
        found = [f"{key.removeprefix(prefix)} {count}" for key, count in record.items()
                 if key.startswith(prefix) and not key.endswith("_pages") and key != "drain_mms"]
        words += [f"{text}: {', '.join(found)}"] if found else []
    return "; ".join(words)


def workload_gates(result, arch, found):
    for name, (about, most, slowest) in WORKLOADS.items():
        by = found.get(name, {})
        result.gate(f"{arch}: {about}, flushes of a migrated page with migrc over without, median",
                    middle_ratio(by, flushes), most)
        if slowest:
            result.gate(f"{arch}: {about}, time of an operation with migrc over without, median",
                        middle_ratio(by, op_ns), slowest, hard=False)


def workload_tables(result, arch, title, found, *commands):
    rows, counts_, totals = [], [], {}
    for name, by in found.items():
        times = ratios(by[0], by[1], op_ns)
        low, middle, high = quartiles(times)
        rows.append([WORKLOADS[name][0], *(1000 * statistics.median(map(flushes, by[m])) for m in (0, 1)),
                     middle_ratio(by, flushes), f"{middle:.3f} ({low:.3f} to {high:.3f})", bound(times)[1],
                     *(statistics.median(1e9 / op_ns(r) for r in by[m]) for m in (0, 1)),
                     *(per_unit(by[1], key, "moved", 100) for key in ("deferred", "denied")),
                     max(r["worst_held"] for r in by[1]), max(r.get("worst_drain_ns", 0) for r in by[1]) / 1e6])
        totals = {key: text for key, text in TOTALS.items() if value(by[1][-1], key) is not None}
        for m in (0, 1):
            last = by[m][-1]
            counts_.append([name, "on" if m else "off", last["moved"], last["tlb_batch_flush"], last["migrc_flush"],
                            *(value(last, key) for key in totals), by_reason(last)])
    result.table(f"{arch}: {title}",
                 ["work", "flushes of 1000 migrated pages, off", "on", "on / off",
                  "time of an operation, on / off (quartiles)", "95 % bound", "operations a second, off", "on",
                  "% deferred", "% denied", "most pages held", "worst drain, ms"], rows, *commands)
    result.table(f"{arch}: {title}, counts of the last pair",
                 ["work", "migrc", "pages migrated", "flushes of migration", "of drains and hooks", *totals.values(),
                  "by reason"], counts_)


# What has no targets: title, jobs, machine.
MORE_WORKLOADS = [
    ("15 threads on 16 vCPUs", ["--case lookup --pairs 5"], {"smp": 16}),
    ("moved by NUMA balancing", ["--case lookup --by balance --moves 4 --pairs 2"], {}),
    ("moved by DAMON", ["--case lookup --by damon --pairs 3", "--case file --by damon --pairs 3"], {}),
    ("files in large folios", ["--case file --large --pairs 3", "--case procs --large --pairs 3"], {}),
]


def workloads(result):
    for arch in result.context.arches:
        pairs, machine = 7, {"mem": "4G", "disk": "256M"}
        found, commands = {}, []
        for name in WORKLOADS:
            records, text, _ = boot(result.context, arch, f"migrc_workload --case {name} --pairs {pairs}", **machine)
            found |= switched(records, WORKLOADS)
            commands.append(text)
            for unit, what in ((FLUSHES, flushes), (TIME, op_ns)):
                result.compare("migrc", arch, WORKLOADS[name][0], unit,
                               {m: [*map(what, half)] for m, half in found.get(name, {}).items()}, text)
        workload_gates(result, arch, found)
        workload_tables(result, arch, f"move_pages(), {pairs} pairs in one boot, age cap 1000 ms", found, *commands)
        # Only the meter counts all TLBI; x86 has counters for that.
        meter = [("under the TLB meter", ["--pairs 1"], {"meter": True})] if arch == "arm64" else []
        for title, jobs, more in meter + MORE_WORKLOADS:
            job = " && ".join(f"migrc_workload {options}" for options in jobs)
            records, text, _ = boot(result.context, arch, job, **machine, **more)
            workload_tables(result, arch, title, switched(records, WORKLOADS), text)
    result.notes.append("A flush of migration is one of a batch: here up to 32 pages, and all address spaces that map "
                        "them. Of a drain each address space counts as one. The mover moves as many pages each second "
                        "with migrc as without.")
    result.notes.append("Not measured: demotion and promotion between tiers. The kernel takes nodes for tiers only with "
                        "ACPI HMAT or a driver; without them a node without CPUs is as fast as the others, and no "
                        "target of demotion.")


# ---- HugeTLB pools without struct pages

# Row: what it does, the most pauses of a page (asked for: 104, 102, 102 and 90 for 100 pages), the most time that it may
# take, of that without any pause.
HVO_ROWS = {
    "hvo_alloc_gigantic": ("allocate pages of 1 GiB", 1.04, 1.05),
    "hvo_free_gigantic": ("free them", 1.02, 1.05),
    "hvo_demote": ("demote them to 2 MiB", 1.02, 1.0),
    "hvo_free_small": ("free those", 0.90, 1.10),
}
HVO_STRATEGIES = {"unsafe": "no break-before-make", "perfolio": "a pause for each page table of a folio",
                  "auto": "tlb-rs", "stop_machine": "tlb-rs with stop_machine()"}
GIB = 1 << 30
# 4 KiB of struct pages are left of 16 MiB for 1 GiB, and of 32 KiB for 2 MiB.
STRUCT_PAGES = 4096
SAVED = {"hvo_alloc_gigantic": STRUCT_PAGES - 1, "hvo_demote": 512 * 7 - (STRUCT_PAGES - 1)}


def hvo_pages():
    """(pages of 1 GiB, memory of the guest): what the host has room for the struct pages of."""
    with open("/proc/meminfo", encoding="ascii") as f:
        available = int(re.search(r"MemAvailable: *(\d+)", f.read())[1]) << 10
    return (600, "640G") if available >= 14 * GIB else (100, "128G")


def pages_of(record):
    """Of 1 GiB; where it counts those of 2 MiB, there are 512 times as many."""
    return record["pages"] // (512 if record["region"] == "hvo_free_small" else 1)


def hvo_compare(result, region, found, commands):
    def compare(unit, key, halves, *which):
        runs = {m: [r[key] / pages_of(r) for r in found[where, region][s]] for m, (where, s) in halves.items()}
        result.compare("hvo", "arm64", HVO_ROWS[region][0], unit, runs, *map(commands.get, which))

    compare(TIME, "ns", {0: ("time", "unsafe"), 1: ("time", "auto")}, "time")
    compare("pauses", "pauses", {-1: ("perfolio", "perfolio"), 1: ("counts", "auto")}, "perfolio", "counts")
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
    each = sorted((s for s in HVO_STRATEGIES if s != "perfolio"), key=lambda s: s != "auto")
    # Emulated, a pause takes milliseconds, and perfolio has one for each page of 2 MiB.
    jobs = {"time": f"hvo_bench --pages 100 --pairs {pairs} --strategy auto --strategy unsafe",
            "counts": f"hvo_bench --pages {pages} " + " ".join(f"--strategy {s}" for s in each),
            "perfolio": "hvo_bench --pages 10 --strategy perfolio",
            "stalls": "hvo_bench --pages 100 --spin " + " ".join(f"--strategy {s}" for s in each)
                      + " && hvo_bench --pages 10 --spin --strategy perfolio"}
    found, commands = {}, {}
    for name, job in jobs.items():
        records, commands[name], _ = boot(result.context, "arm64", job, timeout=3600, **machine)
        for r in records:
            if r.get("region") in HVO_ROWS:
                found.setdefault((name, r["region"]), {}).setdefault(r["strategy"], []).append(r)

    rows, counts_, stalls = [], [], []
    for region, (about, most, slowest) in HVO_ROWS.items():
        hvo_compare(result, region, found, commands)
        ours, unsafe = (found["time", region][s] for s in ("auto", "unsafe"))
        times = ratios(unsafe, ours, lambda r: r["ns"])
        low, middle, high = quartiles(times)
        rest = ratios(unsafe, ours, lambda r: r["ns"] - r["in_pauses_ns"])
        rows.append([about, statistics.median(r["ns"] for r in unsafe) / 1e9, f"{middle:.3f} ({low:.3f} to {high:.3f})",
                     bound(times)[1], f"{statistics.median(rest):.3f}", bound(rest)[1],
                     statistics.median(r["in_pauses_ns"] / r["pauses"] for r in ours) / 1e6])
        result.gate(f"arm64: {about}, time over no break-before-make, 95 % bound", bound(times)[1], slowest, hard=False)
        ours = [r for name in ("time", "counts") for r in found[name, region]["auto"]]
        result.gate(f"arm64: {about}, pauses of one page of 1 GiB", max(r["pauses"] / pages_of(r) for r in ours), most)
        if region in SAVED:
            result.gate(f"arm64: {about}, pages of struct pages that are missing of what can be saved",
                        max(pages_of(r) * SAVED[region] - r["saved"] for r in ours), 0)
        for strategy, text in HVO_STRATEGIES.items():
            last = [r for name in ("counts", "perfolio") for r in found.get((name, region), {}).get(strategy, [])]
            if last:
                counts_.append([about, text, pages_of(last[0]), *(statistics.median(r[k] for r in last) for k in
                                               ("pauses", "cancelled", "stop_machine", "entries", "saved")),
                                statistics.median(r["ns"] for r in last) / 1e9])
            spun = found.get(("stalls", region), {}).get(strategy, [])
            if spun:
                stalls.append([about, text, spun[0]["worst_stall_ns"] / 1e6, spun[0]["p99_stall_ns"] / 1e6])
    result.table(f"arm64: 100 pages of 1 GiB, {pairs} pairs in one boot, median (quartiles)",
                 ["work", "no break-before-make, s", "tlb-rs over it", "95 % bound", "without the time in pauses",
                  "95 % bound", "a pause, ms"], rows, commands["time"])
    result.table("arm64: by strategy",
                 ["work", "strategy", "pages of 1 GiB", "pauses", "cancelled", "stop_machine()", "entries changed", "pages saved", "s"],
                 counts_, commands["counts"], commands["perfolio"])
    result.table("arm64: for how long a thread on another CPU does not run (with what the host does meanwhile)",
                 ["work", "strategy", "worst, ms", "99 % are shorter, ms"], stalls, commands["stalls"])
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
            records, text, _ = boot(result.context, "arm64", "hvo_bench --pages 16 --strategy auto", mem="32G", nodes=1,
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


SUITES = {
    "counts": Suite("split and move on each CPU model", counts),
    "pageout": Suite("MADV_PAGEOUT of clean, dirty and large folios", pageout),
    "worst": Suite("work from which a batch gains little or nothing", worst),
    "thpscale": Suite("huge page faults in fragmented memory", thpscale),
    "sweep": Suite("one ASID invalidation or many by address", sweep),
    "migrc": Suite("flushes that are deferred at migration", migrc, ("stock",)),
    "workloads": Suite("programs whose memory moves while they use it", workloads),
    "hvo": Suite("HugeTLB pools that give their struct pages back, arm64", hvo),
    "size": Suite("code size and struct task_struct", size, ("stock", "release")),
}
