# SPDX-License-Identifier: GPL-2.0
"""Suites of tlb_batch: counts, pageout, worst, thpscale, sweep."""

import functools
import statistics

from tlbrs.bench.flushcode import Text, shares
from tlbrs.bench.machine import MODES, boot, bound, each_mode, per_unit, ratios, samples, value
from tlbrs.bench.outcome import (FLUSH, FLUSHES, INSNS, MACHINES, TIME, complete, counts_table,
                                 modes_of, time_table)
from tlbrs.report import measure
from tlbrs.report.measure import COUNTS, ROOT, WORK

LPA2_OFF = "max,lpa2=off,pauth-impdef=on"
CPUS = {"arm64": ["max", LPA2_OFF, "neoverse-n1", "cortex-a72"], "x86_64": ["max"]}
RANGE_TLBI = ("max", LPA2_OFF)
OPERATIONS = ("tlbi", "dsb_ishst", "dsb_ish", "dsb_other")
THREADS = (1, 3, 5, 7, 12, 18, 24, 30, 32)


# ---- split and move

SPLIT = "tlb_batch_thp_split --readers {0} --dir /mnt"
MOVE = "tlb_batch_move_bench --readers {0}"
FOLIOS = measure.FOLIOS.format(readers="{0}")
WORK_NAMES = {name: text for name, (text, _) in WORK.items()}
FOLIO_MOVES = ("move_mthp", "move_thp8", "move_thp1", "move_file")


def work_unit(name):
    return WORK[name][1] or "-"


def counts(result):
    for arch in result.context.arches:
        readers = 0 if arch == "arm64" else 3
        job = each_mode(f"{SPLIT} && {MOVE} && {FOLIOS}".format(readers), 3)
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
        job = each_mode(f"{SPLIT} --variant anon --variant mixed --variant shared --variant order4 && {MOVE} && {FOLIOS}"
                        .format(readers), rounds)
        records, text, _ = boot(result.context, arch, job, disk="64M")
        of_stock = time_table(result, arch, samples(records), rounds, text, WORK_NAMES, work_unit)
        for name, most in measure.TIME_LIMIT[arch].items():
            result.gate(f"{arch}: {WORK_NAMES[name]}, time over stock, upper quartile", of_stock.get(name, [None] * 3)[2],
                        most, hard=False)


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

    for name in ("split_anon", "split_order4", *FOLIO_MOVES):
        limits = measure.LIMITS[name] if cpu in RANGE_TLBI else {"tlbi": max(1.1, measure.LIMITS[name]["tlbi"])}
        for key, most in limits.items():
            result.gate(f"{where}: {WORK_NAMES[name]}, {COUNTS[arch][key]}", count(name, key), most)
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
         "worst_swapin": "page in, in any order", "worst_shared": "reclaim pages that 4 processes share",
         "move_unlike": "move folios of 64 KiB of unlike pages"}
# Nothing holds the mm there, and how far the kernel gets before the kill depends on the emulator's speed.
UNREPEATABLE = ("worst_exit", "worst_exit_whole", "worst_compact", "worst_compact_whole")
# How many CPUs must be told there depends on which of them happened to be idle.
IDLE_CPUS = (*UNREPEATABLE, "worst_reclaim", "worst_tasks")


def worst_repeats(arch, name):
    """Whether its flushes do: then their target is a hard one."""
    return arch == "arm64" or name not in IDLE_CPUS


def worst(result):
    for arch in result.context.arches:
        job = "tlb_batch_worst --pairs 9 && tlb_batch_folio_bench --variant unlike --pairs 9"
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
