# SPDX-License-Identifier: GPL-2.0
"""Suites of tiered memory: pages that are demoted, and programs that use more than the fast tier has."""

import statistics

from tlbrs.bench.machine import boot, each_unit, per_unit, quartiles, ratios, value
from tlbrs.bench.of_migrc import by_reason, switched
from tlbrs.bench.outcome import FLUSH, FLUSHES

# Node 1 is the slower tier.
MACHINE = {"mem": "1G", "nodes": 1, "cpuless": 1, "append": "kunit.enable=0 tlb_slow_nodes=1"}

DEMOTED = {"tier_proactive": "memory.reclaim demotes 4096 pages", "tier_classic": "kswapd, two LRU lists",
           "tier_mglru": "kswapd, multi-generational LRU"}
SCALES = (1000, 200, 10)    # vm.watermark_scale_factor


def tiers(result):
    """Read-only pages at random addresses. The checked image says why a drain ran."""
    for arch in result.context.arches:
        flush = FLUSH[arch]
        for scale in SCALES:
            job = (f"for on in 0 1 0 1 0 1; do TLB_SCALE={scale} TLB_MIGRC=$on migrc_tier -t proactive -t classic "
                   "-t mglru || exit 1; done")
            records, text, _ = boot(result.context, arch, job, variant="checked", meter=arch == "arm64", **MACHINE)
            found, rows = switched(records, DEMOTED), []
            for name, by in found.items():
                rows += [[DEMOTED[name], on, per_unit(by[on], "units", "-"), per_unit(by[on], "wakes", "-"),
                          per_unit(by[on], "deferred", "-"), per_unit(by[on], "drains", "-"), per_unit(by[on], flush, "-")]
                         for on in (0, 1)]
                if scale == SCALES[0]:
                    result.compare("migrc", arch, DEMOTED[name], FLUSHES,
                                   {m: each_unit(by[m], flush) for m in by}, text)
            step = found["tier_proactive"][1][0]["step"]
            result.table(f"{arch}: demoted, vm.watermark_scale_factor={scale}, a step has {step} pages",
                         ["work", "vm.migrc_enable", "pages", "wakes", "deferred", "drains", flush], rows, text)


# ---- programs

LOADS = {"look-ups, small pages": "--case grid", "look-ups, THP": "--case grid --thp",
         "weights of a file, DAMON": "--case weights"}
PAIRS, SECONDS = 3, 20
# What nobody else may pay for: as without, and 5 %.
HARM = {"fault_p99_ns": "p99 of a page fault, ns", "numa_foreign": "pages that node 0 had not",
        "allocstall": "direct reclaims", "atomic_refused": "atomic allocations that failed"}
STALLS = ("allocstall_normal", "allocstall_movable", "allocstall_dma32")
# Reasons that migrc cannot do anything about: most of them that a page can be written to, or could be until a flush.
UNAVOIDABLE = ("denied_writable", "denied_flush_pending", "denied_reason", "denied_merged")
# Memory that moves to and fro while its pages lose write permission: what was deferred may leave holes in ranges.
ROUNDS = "migrate_pages() of look-ups, to and fro"
# With fewer pages that moved, flushes by what else runs would count.
FEW = 1000


def moved(record):
    return record["pgmigrate_success"]


def for_1000(record, count):
    """Of what was counted, for 1000 pages that were migrated; None if few were."""
    return 1000 * count / moved(record) if moved(record) >= FEW else None


def waits(record):
    """Of migration, and of drains and hooks, each of which also issues one operation."""
    return for_1000(record, record["tlb_batch_flush"] + record["migrc_flush"])


def operations(record, arch):
    """What migration issued before it waited. Of x86_64 one round of interrupts for each wait: ranges cost nothing."""
    if arch == "x86_64":
        return waits(record)
    return for_1000(record, record["tlb_batch_ranges"] + record["migrc_flush"])


def deferred(record):
    """% of the pages that moved and that no rule denies."""
    could = record["migrc_deferred"] + sum(count for key, count in record.items()
                                           if key.startswith("denied_") and not key.endswith("_pages") and
                                           key not in UNAVOIDABLE)
    return 100 * record["migrc_deferred"] / could if could else None


def middle(records, what):
    found = [what(r) for r in records]
    return None if None in found or not found else statistics.median(found)


def harm(record, key):
    return sum(record.get(stall, 0) for stall in STALLS) if key == "allocstall" else record[key]


def all_flushes(record, arch):
    """Whatever flushed: the scans of kswapd and of NUMA balancing, too, and what else runs."""
    return for_1000(record, value(record, FLUSH[arch]))


def halves(records):
    """{vm.migrc_enable: [records]}"""
    return {m: [r for r in records if r.get("migrc") == m] for m in (0, 1)}


def rounds(result, arch):
    job = ("echo 1 > /proc/sys/vm/migrc_readmostly && "
           f"migrc_tier_bench --case grid --mb 96 --rounds 6 --pairs {PAIRS} --warm 1")
    records, text, _ = boot(result.context, arch, job, meter=arch == "arm64", **MACHINE)
    by = halves(records)
    rows = [[pair + 1, *(all_flushes(by[m][pair], arch) for m in (0, 1)), 100 * on["migrc_deferred"] / moved(on),
             by_reason(on)] for pair, on in enumerate(by[1])]
    result.compare("migrc", arch, ROUNDS, FLUSHES, {m: [all_flushes(r, arch) / 1000 for r in by[m]] for m in by}, text)
    result.gate(f"{arch}: {ROUNDS}, flushes with migrc over without, worst pair", max(on / off for _, off, on, *_ in rows), 1.0)
    result.table(f"{arch}: {ROUNDS}, vm.migrc_readmostly=1, one boot",
                 ["pair", f"{FLUSH[arch]} of 1000 moved pages, off", "on", "% deferred", "by reason"], rows, text)


def programs(result):
    """Half of their memory fits into the fast tier."""
    for arch in result.context.arches:
        rounds(result, arch)
        rows, others, reasons, commands = [], [], [], []
        for about, options in LOADS.items():
            job = f"migrc_tier_bench {options} --pairs {PAIRS} --seconds {SECONDS}"
            records, text, _ = boot(result.context, arch, job, disk="512M", meter=arch == "arm64", **MACHINE)
            commands.append(text)
            by = halves(records)
            low, half, high = quartiles(ratios(by[0], by[1], lambda r: r["ns"] / max(r["ops"], 1)))
            rows.append([about, *(middle(by[m], lambda r: r["ops"] * 1e9 / r["ns"]) for m in (0, 1)),
                         f"{half:.3f} ({low:.3f} to {high:.3f})",
                         *(middle(by[m], moved) for m in (0, 1)),
                         *(middle(by[m], lambda r: operations(r, arch)) for m in (0, 1)),
                         *(middle(by[m], waits) for m in (0, 1)),
                         *(middle(by[m], lambda r: all_flushes(r, arch)) for m in (0, 1)),
                         middle(by[1], deferred)])
            others += [[about, text_, *(middle(by[m], lambda r, key=key: harm(r, key)) for m in (0, 1))]
                       for key, text_ in HARM.items()]
            off, on = rows[-1][6:8]
            gate = f"{arch}: {about}, operations of a moved page with migrc over without, medians"
            # THPs are flushed one by one, and not in batches: there is nothing to compare.
            if off is None or on is None:
                result.gate(gate, None, 1.0)
            elif off >= 1:
                result.gate(gate, on / off, 1.0)
                result.compare("migrc", arch, about, FLUSHES, {m: [operations(r, arch) / 1000 for r in by[m]] for m in by}, text)
            last = by[1][-1]
            reasons.append([about, last["pgdemote_kswapd"], last["pgpromote_success"], last["thp_migration_success"],
                            last["migrc_deferred"], by_reason(last)])
        pairs = f"{PAIRS} pairs of {SECONDS} s"
        result.table(f"{arch}: programs twice as large as the fast tier, {pairs}, medians",
                     ["work", "a second, off", "on", "time of one, on / off (quartiles)", "pages moved, off", "on",
                      "operations of 1000 moved pages, off", "on", "waits, off", "on", f"all {FLUSH[arch]}, off", "on",
                      "% deferred of what no rule denies"], rows, *commands)
        result.table(f"{arch}: what others pay, {pairs}, medians", ["work", "figure", "off", "on"], others)
        result.table(f"{arch}: counts of the last half with migrc",
                     ["work", "pages that kswapd demoted", "promoted", "THPs moved", "pages deferred", "by reason"], reasons)
