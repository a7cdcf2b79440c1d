# SPDX-License-Identifier: GPL-2.0
"""The suite folios: large folios that are mapped again in runs."""

from tlbrs.bench.machine import boot, per_unit, samples
from tlbrs.bench.outcome import FLUSH, FLUSHES, INSNS, complete, counts_table
from tlbrs.report import measure
from tlbrs.report.measure import WORK

MOVES = {name: WORK[name][0] for name in ("move_mthp", "move_thp8", "move_thp1", "move_file")}
LOAD = {"migrate_load": "move 64 MiB of THPs to and fro by migrate_pages()"}


def folios(result):
    variants = "--variant mthp --variant thp8 --variant thp1 --variant file --dir /mnt"
    for arch in result.context.arches:
        # Of one CPU: all others add instructions of their own.
        records, text, _ = boot(result.context, arch, f"tlb_batch_folio_bench {variants} --pairs 9", smp=1, nodes=1,
                                cpuless=1, disk="64M", meter=True)
        found, rows = samples(records), []
        for name, by_mode in complete(result, f"{arch}, 1 vCPU", MOVES, found):
            stock, ours = (per_unit(by_mode[m], "insns_kernel") for m in (0, 1))
            rows.append([MOVES[name], stock, ours, ours / stock if ours and stock else None])
            if name in measure.INSNS_LIMIT:
                result.gate(f"{arch}, 1 vCPU: {MOVES[name]}, kernel instructions per page over stock", rows[-1][-1],
                            measure.INSNS_LIMIT[name])
        result.table(f"{arch}, 1 vCPU: kernel instructions per page, median of 9",
                     ["the third move", "stock", "tlb-rs", "tlb-rs / stock"], rows, text)
        result.compare_modes(arch, INSNS, found, "insns_kernel", text, names=MOVES)

        readers = 0 if arch == "arm64" else 3
        job = f"tlb_batch_folio_bench --variant load --pairs 1 --readers {readers}"
        records, text, _ = boot(result.context, arch, job, meter=arch == "arm64")
        found = samples(records)
        head, rows = counts_table(arch, found, LOAD)
        result.table(f"{arch}: migrate_pages() of 64 MiB, 24 times, per page", head, rows, text)
        result.compare_modes(arch, FLUSHES, found, FLUSH[arch], text, names=LOAD)
        for name, by_mode in complete(result, arch, LOAD, found):
            if arch == "arm64":
                result.gate(f"arm64: {LOAD[name]}, TLBI per page", per_unit(by_mode[1], "tlbi"), measure.LOAD_LIMIT)
