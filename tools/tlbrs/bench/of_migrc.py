# SPDX-License-Identifier: GPL-2.0
"""Suites of migrc: migrc, workloads."""

import statistics

from tlbrs.bench.machine import boot, bound, each_unit, per_unit, quartiles, ratios, samples, value
from tlbrs.bench.outcome import FLUSH, FLUSHES, INSNS, TIME

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
