# SPDX-License-Identifier: GPL-2.0
"""The suites: what is booted, which figures come of it, which targets they must meet."""

import re
import subprocess

from tlbrs.bench.of_folio import demotion, folios, msync
from tlbrs.bench.of_hvo import hvo
from tlbrs.bench.of_migrc import migrc, workloads
from tlbrs.bench.of_model import model
from tlbrs.bench.of_scaling import scaling
from tlbrs.bench.of_tiers import programs, tiers
from tlbrs.bench.of_tlb_batch import counts, pageout, sweep, thpscale, worst
from tlbrs.bench.outcome import Suite
from tlbrs.kernel import toolchain
from tlbrs.report.measure import ROOT


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


# Only if asked for: it needs GEM5=DIR.
ON_REQUEST = {"model"}
SUITES = {
    "counts": Suite("split and move on each CPU model", counts),
    "folios": Suite("large folios that are moved, and mapped again in runs", folios),
    "msync": Suite("files that are written to disk after stores through a mapping", msync),
    "demotion": Suite("pages that kswapd demotes", demotion, ("checked",)),
    "pageout": Suite("MADV_PAGEOUT of clean, dirty and large folios", pageout),
    "worst": Suite("work from which a batch gains little or nothing", worst),
    "thpscale": Suite("huge page faults in fragmented memory", thpscale),
    "scaling": Suite("counts against size of folios, processes and CPUs", scaling),
    "sweep": Suite("one ASID invalidation or many by address", sweep),
    "migrc": Suite("flushes that are deferred at migration", migrc, ("stock",)),
    "tiers": Suite("pages that are demoted with migrc", tiers, ("checked",)),
    "programs": Suite("programs that use more memory than the fast tier has", programs),
    "workloads": Suite("programs whose memory moves while they use it", workloads),
    "hvo": Suite("HugeTLB pools that give their struct pages back, arm64", hvo),
    "model": Suite("time on a modelled mesh of cores, arm64", model),
    "size": Suite("code size and struct task_struct", size, ("stock", "release")),
}
