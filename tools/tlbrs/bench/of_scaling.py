# SPDX-License-Identifier: GPL-2.0
"""How counts grow with the size of folios, with the processes that map a THP, and with the CPUs."""

from tlbrs.bench.machine import boot, each_mode, per_unit, samples
from tlbrs.report.measure import COUNTS, MOVED

KIB = (16, 32, 64, 128, 256, 512, 1024)
PROCESSES = (1, 2, 4, 8, 16)
THPS = 8
# One thread of the host emulates all CPUs of x86_64, so that many take long.
CPUS = {"arm64": (2, 4, 8, 16), "x86_64": (2, 4, 8)}
# move_pages() of 4096 pages is as many lists of migrate_pages(), each of which waits once.
LISTS = 8
MOVE = "move 4096 read-only pages"
SIZES_JOB = each_mode(" && ".join(f"tlb_batch_folio_bench --variant mthp --size {kib}" for kib in KIB), 3)
SHARED_JOB = each_mode(" && ".join(f"tlb_batch_thp_split --variant shared --thps {THPS} --processes {n}" for n in PROCESSES), 1)
CPUS_JOB = each_mode("tlb_batch_move_bench --variant ro --readers {0}", 1)


def shown(result, title, unit, found, key, limits, *commands):
    """A table and a plot of one count of all of the work.

    found: {x: {mode: records}}; limits: for each x the count with one flush for each list, or for each process.
    """
    label = COUNTS[title.partition(":")[0]].get(key, key)
    series = {name: [per_unit(by_mode.get(mode, []), key, "-") for by_mode in found.values()]
              for mode, name in enumerate(("stock", "tlb-rs"))} | {"limit": limits}
    result.table(title, [unit, *(f"{label} {name}" for name in series)],
                 [[x, *(values[i] for values in series.values())] for i, x in enumerate(found)], *commands)
    result.plot(title, list(map(str, found)), unit, series, label, log=True)
    return list(zip(found, series["stock"], series["tlb-rs"], limits))


def by_size(result):
    # One CPU: others execute instructions of their own.
    records, text, _ = boot(result.context, "arm64", SIZES_JOB, smp=1, nodes=1, cpuless=1, meter=True)
    found = samples(records, lambda r: r["folio_kib"])
    title = "arm64: move 16 MiB in folios"
    for kib, _, ours, _ in shown(result, title, "KiB of a folio", found, "tlbi", [LISTS] * len(KIB), text):
        result.gate(f"{title} of {kib} KiB, TLBI", ours, MOVED["tlbi"])
    rows = [[kib, *(per_unit(by_mode.get(mode, []), "insns_kernel") for mode in (0, 1))] for kib, by_mode in found.items()]
    result.table("arm64: kernel instructions for each page of these", ["KiB of a folio", "stock", "tlb-rs"], rows, text)
    result.plot("arm64: kernel instructions for each page that moves", list(map(str, found)), "KiB of a folio",
                {name: [row[1 + mode] for row in rows] for mode, name in enumerate(("stock", "tlb-rs"))}, "instructions")


def by_processes(result):
    records, text, _ = boot(result.context, "arm64", SHARED_JOB, meter=True)
    found = samples(records, lambda r: r["procs"])
    title = f"arm64: split {THPS} PTE-mapped THPs"
    for n, _, ours, limit in shown(result, title, "processes", found, "tlbi", [THPS * n for n in PROCESSES], text):
        result.gate(f"{title}, mapped by {n} processes, TLBI", ours, 1.1 * limit)


def by_cpus(result, arch):
    """Of arm64 instructions that reach all CPUs; of x86_64 interrupts, one for each other CPU and list."""
    found, commands = {}, []
    for cpus in CPUS[arch]:
        records, text, _ = boot(result.context, arch, CPUS_JOB.format(cpus - 1), smp=cpus, meter=arch == "arm64")
        found |= samples(records, lambda r, cpus=cpus: cpus)
        commands.append(text)
    key = "tlbi" if arch == "arm64" else "tlb_irqs"
    limits = [LISTS * (1 if arch == "arm64" else cpus - 1) for cpus in CPUS[arch]]
    for cpus, stock, ours, limit in shown(result, f"{arch}: {MOVE}", "CPUs", found, key, limits, *commands):
        what = f"{arch}: {MOVE}, {cpus} CPUs, {COUNTS[arch][key]}"
        if arch == "arm64":
            result.gate(what, ours, 1.1 * limit)
        else:
            result.not_above(f"{what} not above stock", key, stock, ours, 1, show=True)


def scaling(result):
    if "arm64" in result.context.arches:
        by_size(result)
        by_processes(result)
    for arch in result.context.arches:
        by_cpus(result, arch)
