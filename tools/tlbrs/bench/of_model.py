# SPDX-License-Identifier: GPL-2.0
"""Time on a modelled mesh of cores: gem5, in which a TLBI and a DSB are messages to all cores and back."""

import concurrent.futures
import dataclasses
import hashlib
import itertools
import json
import os
import re

from tlbrs.bench.machine import boot
from tlbrs.guest import guest
from tlbrs.kernel.common import Fail, store
from tlbrs.model import gem5

CORES = "2 4 8 16"      # CORES=
FROM = 4                # growth is from there


@dataclasses.dataclass
class Work:
    title: str
    run: str                    # twice: as stock, and then as ours
    switch: str = "tlb_batch"   # what its records call that
    disk: str = ""              # its size


# By the name of the region.
WORKS = {
    "split_anon": Work("split a PTE-mapped 2 MiB THP", "tlb_batch_thp_split --variant anon --thps 1"),
    "move_ro": Work("move 512 pages", "tlb_batch_move_bench --pages 512 --variant ro"),
    "move_mthp": Work("move 32 folios of 64 KiB", "tlb_batch_folio_bench --variant mthp --folios 32"),
    "msync_64k": Work("msync() of 32 dirty folios of 64 KiB", "tlb_batch_msync_bench --variant 64k --pages 512 --first",
                      disk="64M"),
    "migrc_rounds": Work("move 32 read-only pages one at a time", "migrc_move_bench --case rounds --rounds 1 --pages 32", "migrc"),
}
# Two nodes on a machine that has one.
APPEND = "numa=fake=2"
# Cycles that each message of the node which tells the others takes, and what they stand for. The first is that of all
# figures but one table.
ANSWERS = {102: "0.35 us for a TLBI and its DSB on 2 cores, as published", 1: "as gem5 has it", 51: "half", 204: "twice"}
MEASURED = next(iter(ANSWERS))
# With the most cores: ours over stock, ours over the same without any message. Growth of ours and of stock.
OVER_STOCK = {"split_anon": 0.15, "move_mthp": 0.3}
OVER_LIMIT, GROWTH, STOCK_GROWTH = 1.2, 1.3, 2
READERS = 3     # of the guest in which the meter counts
COMMAND = "make bench SUITE=model GEM5=DIR"
STOCK, OURS = 0, 1
WHO = {STOCK: "stock", OURS: "tlb-rs"}


@dataclasses.dataclass
class Window:
    """A region in simulated time."""
    us: float
    insns: float        # of the core that works
    others: float       # instructions that all other cores retired, for each us
    tlbi: int           # that other cores were told of
    sync: int
    pair: float         # ns of a TLBI and a DSB, from the first message to the last answer


def window(stats):
    """Of gem5's statistics."""
    def told(kind, figure):
        return [value for name, value in stats.items()
                if re.fullmatch(rf"system\.cpu_cluster\.cpus\d*\.l1d\.outTransLatHist\.{kind}_Initiate::{figure}", name)]

    def mean(kind):
        samples = told(kind, "samples")
        return sum(n * m for n, m in zip(samples, told(kind, "mean")) if n) / sum(samples) if sum(samples) else 0

    us = stats["simTicks"] / 1e6
    retired = {int(m[1]): value for name, value in stats.items()
               if (m := re.fullmatch(r"system\.cpu_cluster\.cpus(\d+)\.commitStats0\.numInsts", name))}
    ns = 1e9 / (stats["simFreq"] / stats["system.ruby.clk_domain.clock"])
    return Window(us, retired[0], sum(value for core, value in retired.items() if core) / us, int(sum(told("DvmTlbi", "samples"))),
                  int(sum(told("DvmSync", "samples"))), (mean("DvmTlbi") + mean("DvmSync")) * ns)


def job(work, readers):
    return f"{WORKS[work].run} --pairs 1 --readers {readers}"


class Runs:
    """Boots and measurements; what is unchanged since an earlier run is not run again."""

    def __init__(self, context, program):
        self.gem5, self.out = program, context.out / "model"
        self.kernel = guest.kernel_path("arm64", context.variant, context.kver).parent / "vmlinux"
        self.out.mkdir(exist_ok=True)
        self.same = b"".join(path.read_bytes() for path in [self.kernel, *sorted(gem5.HERE.glob("m*.py"))])

    def kept(self, name, make, *what):
        place = self.out / f"{name}.json"
        key = hashlib.sha256(b"".join([self.same, *what])).hexdigest()
        if place.exists() and (old := json.loads(place.read_text()))["key"] == key:
            return old["figures"]
        print(f"  gem5: {name}", flush=True)
        figures = make()
        store(place, {"key": key, "figures": figures})
        return figures

    def job(self, cores, work):
        # Init mounts a disk by its serial number, which that of gem5 does not have.
        return ("mount -t ext4 /dev/vda /mnt && " if WORKS[work].disk else "") + job(work, cores - 1)

    def boot(self, cores, work):
        name, text = f"boot-{cores}-{work}", self.job(cores, work)
        return self.kept(name, lambda: gem5.boot(self.gem5, self.kernel, text, cores, self.out / name, 2, append=APPEND,
                                                 disk=WORKS[work].disk), gem5.initrd(text))

    def measure(self, cores, work, mode, *options):
        name = "-".join([str(cores), work, str(mode), *(option.lstrip("-") for option in options)])

        def make():
            return dataclasses.asdict(window(gem5.measure(
                self.gem5, self.kernel, cores, self.out / f"boot-{cores}-{work}", mode, self.out / name, *options,
                disk=WORKS[work].disk)))

        return Window(**self.kept(name, make, gem5.initrd(self.job(cores, work))))


def wanted(cores):
    """(cores, work, mode, options) of all measurements."""
    for each in cores:
        for work in WORKS:
            for mode in (STOCK, OURS):
                yield each, work, mode, (f"--answer={MEASURED}",)
            yield each, work, OURS, ("--without-dvm",)
    for answer in list(ANSWERS)[1:]:
        for mode in (STOCK, OURS):
            yield cores[-1], "split_anon", mode, (f"--answer={answer}",)


def measured(runs, cores):
    """{(cores, work, mode, option): Window}; gem5 uses one CPU of the host for each."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        # The longest first.
        list(pool.map(lambda each: runs.boot(*each), itertools.product(reversed(cores), WORKS)))
        todo = sorted(wanted(cores), key=lambda each: -each[0])
        windows = pool.map(lambda each: runs.measure(*each[:3], *each[3]), todo)
        return {(cores, work, mode, *options): found for (cores, work, mode, options), found in zip(todo, windows)}


def check_counts(result, found, cores):
    """gem5's cores are told of as many TLBIs as QEMU's meter counts."""
    rows, commands = [], []
    for name, work in WORKS.items():
        records, command, _ = boot(result.context, "arm64", job(name, READERS), mem="1G", nodes=1, append=APPEND, meter=True,
                                   disk=work.disk)
        commands.append(command)
        for record in (record for record in records if record.get("region") == name and record[work.switch] in (STOCK, OURS)):
            mode, metered = record[work.switch], record["meter"]["tlbi"]
            counts = {found[each, name, mode, f"--answer={MEASURED}"].tlbi for each in cores}
            rows.append([work.title, WHO[mode], metered, min(counts), max(counts)])
            result.gate(f"{work.title}, {WHO[mode]}: difference between the TLBIs of gem5 and of the meter",
                        max(abs(n - metered) for n in counts), 2)
    result.table("TLBI in a region: QEMU's meter, and gem5", ["work", "", "meter", "gem5, least", "gem5, most"], rows, *commands)


def of_cores(result, found, cores, work):
    """A table and a plot of time against cores."""
    title = WORKS[work].title
    answer = f"--answer={MEASURED}"
    stock, ours, limit = ([found[each, work, mode, option] for each in cores]
                          for mode, option in ((STOCK, answer), (OURS, answer), (OURS, "--without-dvm")))
    # Undisturbed are those of which nobody asks anything.
    lost = [[1 - w.others / alone.others for w, alone in zip(windows, limit)] for windows in (stock, ours)]
    rows = [[each, s.us, o.us, o.us / s.us, b.us, o.us / b.us, s.insns, o.insns, s.tlbi, s.sync, o.tlbi, o.sync, s.pair,
             100 * ls, 100 * lo]
            for each, s, o, b, ls, lo in zip(cores, stock, ours, limit, *lost)]
    head = ["cores", "stock, us", "tlb-rs, us", "tlb-rs / stock", "without messages, us", "tlb-rs / without",
            "instructions, stock", "instructions, tlb-rs", "TLBI, stock", "DSB, stock", "TLBI, tlb-rs", "DSB, tlb-rs",
            "ns of a TLBI and its DSB", "others lose, %, stock", "%, tlb-rs"]
    result.table(f"{title}: simulated time", head, rows, COMMAND)
    result.plot(f"{title}: time of the caller", cores, "cores", {
        "stock": [w.us for w in stock], "tlb-rs": [w.us for w in ours], "without any message": [w.us for w in limit]}, "us")
    most = f"{title}, {cores[-1]} cores"
    if work in OVER_STOCK:
        result.gate(f"{most}: time over stock", ours[-1].us / stock[-1].us, OVER_STOCK[work], hard=False)
    result.gate(f"{most}: time over that without any message", ours[-1].us / limit[-1].us, OVER_LIMIT, hard=False)
    if FROM in cores[:-1]:
        ours, stock = (windows[-1].us / windows[cores.index(FROM)].us for windows in (ours, stock))
        result.gate(f"{title}: growth from {FROM} to {cores[-1]} cores", ours, GROWTH, hard=False)
        result.gate(f"{title}: {STOCK_GROWTH} over growth of stock", STOCK_GROWTH / stock, 1, hard=False)


def sensitivity(result, found, cores):
    """Does what is said of the split, with the most cores, depend on what a message costs?"""
    title = WORKS["split_anon"].title
    rows = []
    for answer, text in sorted(ANSWERS.items()):
        stock, ours = (found[cores, "split_anon", mode, f"--answer={answer}"] for mode in (STOCK, OURS))
        rows.append([text, stock.pair, stock.us, ours.us, ours.us / stock.us])
    result.table(f"{title}, {cores} cores: what a message costs",
                 ["each answer", "ns of a TLBI and its DSB", "stock, us", "tlb-rs, us", "tlb-rs / stock"], rows,
                 COMMAND)
    result.gate(f"{title}, {cores} cores: greatest ratio of all latencies", max(row[-1] for row in rows), 1, hard=False)


def model(result):
    place = os.environ.get("GEM5")
    if not place:
        raise Fail(f"{COMMAND}: where is gem5?")
    if "arm64" not in result.context.arches:
        return
    cores = sorted(int(word) for word in (os.environ.get("CORES") or CORES).split())
    found = measured(Runs(result.context, gem5.find(place)), cores)
    for work in WORKS:
        of_cores(result, found, cores, work)
    sensitivity(result, found, cores[-1])
    check_counts(result, found, cores)
    result.notes.append(
        "A model, and not silicon: out-of-order cores of gem5 at 2 GHz (`O3_ARM_v7a_3`), private caches of 64 KiB and 1 MiB, a "
        "mesh with two cycles for a router and a link. A core answers a TLBI at once, and a DSB when its own loads are done. "
        "So other cores lose nothing here, unlike on hardware. Caches and TLBs are cold when a region begins, which weighs more in a "
        "short one: that is why some losses are below zero.")
