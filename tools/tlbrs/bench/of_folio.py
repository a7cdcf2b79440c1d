# SPDX-License-Identifier: GPL-2.0
"""Suites of large folios that are mapped again in runs, of files that are written, and of pages that kswapd demotes."""

from tlbrs.bench.machine import MODES, boot, each_mode, per_unit, samples
from tlbrs.bench.outcome import FLUSH, FLUSHES, INSNS, complete, counts_table, time_table
from tlbrs.report import measure
from tlbrs.report.measure import COUNTS, WORK

MOVES = {name: WORK[name][0] for name in ("move_mthp", "move_thp8", "move_thp1", "move_file")}
LOAD = {"migrate_load": "move 64 MiB of THPs to and fro by migrate_pages()"}


def folios(result):
    variants = "--variant mthp --variant thp8 --variant thp1 --variant file --dir /mnt"
    for arch in result.context.arches:
        # Others would add instructions of their own.
        cpus = measure.FEW_CPUS[arch]
        where = f"{arch}, {cpus} vCPU{'s' * (cpus > 1)}"
        job = f"tlb_batch_folio_bench {variants} --readers {cpus - 1} --idle --pairs 9"
        records, text, _ = boot(result.context, arch, job, smp=cpus, nodes=1, cpuless=1, disk="64M", meter=True)
        found, rows = samples(records), []
        for name, by_mode in complete(result, where, MOVES, found):
            stock, ours = (per_unit(by_mode[m], "insns_kernel") for m in (0, 1))
            rows.append([MOVES[name], stock, ours, ours / stock if ours and stock else None])
            if name in measure.INSNS_LIMIT:
                result.gate(f"{where}: {MOVES[name]}, kernel instructions per page over stock", rows[-1][-1],
                            measure.INSNS_LIMIT[name])
        result.table(f"{where}: kernel instructions per page, median of 9",
                     ["the third move", "stock", "tlb-rs", "tlb-rs / stock"], rows, text)
        result.compare_modes(arch, INSNS, found, "insns_kernel", text, names=MOVES)
        # Not counted, which would slow it down.
        records, text, _ = boot(result.context, arch, job, smp=cpus, nodes=1, cpuless=1, disk="64M")
        of_stock = time_table(result, arch, samples(records), 9, text, MOVES)
        for name, work in MOVES.items():
            result.gate(f"{where}: {work}, time over stock, median", of_stock.get(name, [None] * 2)[1],
                        measure.MOVE_TIME[arch], hard=False)

        readers = 0 if arch == "arm64" else 3
        job = f"tlb_batch_folio_bench --variant load --pairs 1 --readers {readers} --idle"
        records, text, _ = boot(result.context, arch, job, meter=arch == "arm64")
        found = samples(records)
        head, rows = counts_table(arch, found, LOAD)
        result.table(f"{arch}: migrate_pages() of 64 MiB, 24 times, per page", head, rows, text)
        result.compare_modes(arch, FLUSHES, found, FLUSH[arch], text, names=LOAD)
        for name, by_mode in complete(result, arch, LOAD, found):
            if arch == "arm64":
                result.gate(f"arm64: {LOAD[name]}, TLBI per page", per_unit(by_mode[1], "tlbi"), measure.LOAD_LIMIT)


# ---- who writes through a mapping

FILES = {"small": "small folios", "sparse": "every 64th small folio", "64k": "folios of 64 KiB", "2m": "folios of 2 MiB"}
# {option: names}: several folios are cleaned at once with --writeback. tlb_batch=0 is as stock with it, too.
WRITTEN = {option: {f"{prefix}_{name}{again}": f"msync() of 4096 dirty pages{', again' if again else ''}, {text}{together}"
                    for name, text in FILES.items() for again in ("", "_again")}
           for option, prefix, together in (("", "msync", ""), (" --writeback", "writeback", ", tlb_batch_writeback"))}
PAIRS = 9


def written(result, arch, option, names):
    # CPUs that are idle are told for next to nothing. But where one thread emulates all CPUs, each that spins takes
    # a tenth of a second to answer: SUITE=counts of make test has the rounds of x86_64. khugepaged would collapse
    # the files.
    job = ("echo never > /sys/kernel/mm/transparent_hugepage/enabled && "
           f"tlb_batch_msync_bench{option} --readers {2 if arch == 'arm64' else 0} --pairs {{}}")

    def found_in(records):
        # Not what has no PTE to clean.
        return {name: by_mode for name, by_mode in samples(records).items() if name in names}

    records, text, _ = boot(result.context, arch, job.format(3), disk="128M", meter=arch == "arm64")
    found = found_in(records)
    head, rows = counts_table(arch, found, names)
    result.table(f"{arch}: msync() of 4096 dirty pages{option}, per page", head, rows, text)
    result.compare_modes(arch, FLUSHES, found, FLUSH[arch], text, names=names)
    for name, by_mode in complete(result, arch, names, found):
        stock, ours = (per_unit(by_mode[m], FLUSH[arch]) for m in (0, 1))
        result.not_above(f"{arch}: {names[name]}, {COUNTS[arch][FLUSH[arch]]} per page", FLUSH[arch], stock, ours, 4096)
    records, text, _ = boot(result.context, arch, job.format(PAIRS), disk="128M")
    of_stock = time_table(result, arch, found_in(records), PAIRS, text, names)
    for name, work in names.items():
        kind = name.removesuffix("_again").partition("_")[2]
        result.gate(f"{arch}: {work}, time over stock, median", of_stock.get(name, [None] * 2)[1],
                    measure.MSYNC_TIME.get((arch, kind), 1.02), hard=False)


def msync(result):
    for arch in result.context.arches:
        for option, names in WRITTEN.items():
            written(result, arch, option, names)


# ---- kswapd

DEMOTIONS = {"demote_classic": "demote pages, two LRU lists", "demote_mglru": "demote pages, multi-generational LRU"}
SCALES = (1000, 10)     # vm.watermark_scale_factor


def demotion(result):
    """Of the checked image: only that has tiers of equal memory."""
    for arch in result.context.arches:
        for scale in SCALES:
            job = each_mode(f"TLB_SCALE={scale} tlb_batch_demote -t classic -t mglru", 3)
            records, text, _ = boot(result.context, arch, job, variant="checked", mem="1G", nodes=1, cpuless=1,
                                    append="kunit.enable=0 tlb_slow_nodes=1", meter=arch == "arm64")
            found = samples(records)
            head, rows = counts_table(arch, found, DEMOTIONS)
            result.table(f"{arch}: kswapd, vm.watermark_scale_factor={scale}, per demoted page", head, rows, text)
            if scale == SCALES[0]:
                result.compare_modes(arch, FLUSHES, found, FLUSH[arch], text, names=DEMOTIONS)
            # Stock has no counter of its waits.
            rows, waits = [], "dsb_ish" if arch == "arm64" else FLUSH[arch]
            for name, by_mode in complete(result, f"{arch}, scale {scale}", DEMOTIONS, found):
                rows += [[DEMOTIONS[name], MODES[mode], *(per_unit(by_mode[mode], key, "wakes") for key in ("units", waits))]
                         for mode in (0, 1)]
                rows[-1].append(per_unit(by_mode[1], "waits", "wakes"))
                if scale == SCALES[0]:
                    result.gate(f"{arch}: {DEMOTIONS[name]}, waits over pages / 512 + 8 a wake",
                                max(r["waits"] / measure.most_waits(r) for r in by_mode[1]), 1)
            result.table(f"{arch}: kswapd, vm.watermark_scale_factor={scale}, each time that it wakes",
                         ["work", "kernel", "pages", COUNTS[arch].get(waits), "waits"],
                         [row + [None] * (5 - len(row)) for row in rows], text)
