# SPDX-License-Identifier: GPL-2.0
"""Tests of the verdict of make run, on made-up figures."""

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from tlbrs.report import measure, run

ARCHES = tuple(measure.COUNTS)


def figures(arch, *switches, ns=(100, 101, 102)):
    """What measure.run() returns; the same on all."""
    return {work: {switch: measure.Figure(dict.fromkeys(measure.COUNTS[arch], 1.0), list(ns), 1, 1)
                   for switch in switches} for work in measure.WORK}


class Verdict(unittest.TestCase):
    """Of the tables, and the exit status."""

    def test_good(self):
        for arch in ARCHES:
            lines, over = run.table(arch, figures(arch, None), figures(arch, 0, 1))
            self.assertEqual((len(lines), over), (2 + len(measure.WORK), []))

    def test_above(self):
        ours = figures("arm64", 0, 1)
        ours["move_ro"][1].counts["tlbi"] = 17
        self.assertEqual(run.table("arm64", figures("arm64", None), ours)[1],
                         ["move 4096 read-only pages: TLBI 17.00, at most 3.00"])
        stock = figures("arm64", None)
        stock["move_ro"][None].counts["tlbi"] = 4104
        self.assertEqual(run.table("arm64", stock, ours)[1], ["move 4096 read-only pages: TLBI 17.00, at most 16.00"])
        self.assertEqual(run.table("arm64", stock, ours, "neoverse-n1")[1],
                         ["neoverse-n1: move 4096 read-only pages: TLBI 17.00, at most 16.00"])

    def test_work_that_was_skipped(self):
        name = measure.WORK["split_ext4"][0]
        for arch in ARCHES:
            for gone in ("stock", "tlb-rs"):
                sides = {"stock": figures(arch, None), "tlb-rs": figures(arch, 0, 1)}
                del sides[gone]["split_ext4"]
                over = run.table(arch, *sides.values())[1]
                self.assertEqual(over, [f"{name}: {count} was not measured on {gone}"
                                        for count in measure.COUNTS[arch].values()])
        # Nothing at all, or one count of it.
        self.assertEqual(len(run.table("arm64", {}, {})[1]), len(measure.WORK) * len(measure.COUNTS["arm64"]))
        stock = figures("x86_64", None)
        for work in stock.values():
            del work[None].counts["tlb_irqs"]
        self.assertEqual(len(run.table("x86_64", stock, figures("x86_64", 0, 1))[1]), len(measure.WORK))

    def test_barriers_of_no_flush(self):
        meter = {"tlbi": 1, "dsb_ishst": 3, "dsb_ish": 5, "sgi": 2, "task_switch": 4}
        self.assertEqual(measure.of_flushes(meter), meter | {"dsb_ishst": 1, "dsb_ish": 1})

    def test_times(self):
        timed = measure.TIME_LIMIT["arm64"]
        ours = figures("arm64", 0, 1)
        for work in timed:
            ours[work][1].ns = [10, 10, 10]
        self.assertEqual(run.times("arm64", ours)[1], [])
        # As fast as stock: enough where stock batches, too.
        self.assertEqual(run.times("x86_64", figures("x86_64", 0, 1))[1], [])
        self.assertEqual(len(run.times("arm64", figures("arm64", 0, 1))[1]), len(timed))
        for gone in (0, 1):
            some = {work: {s: f for s, f in by.items() if s != gone or work != "move_rw"} for work, by in ours.items()}
            self.assertEqual(run.times("arm64", some)[1], ["move 4096 writable pages: its time was not measured"])
        del ours["split_anon"]
        self.assertEqual(len(run.times("arm64", ours)[1]), 1)

    def test_exit_status(self):
        """Of all of it, with boots that skip some work."""
        cpus, kernels = set(), set()

        def main(gone, arch="arm64", ns=10, fast="0"):
            def fake(_, kernel, __, meter, cpu, **___):
                cpus.add(cpu)
                kernels.add(kernel)
                found = figures(arch, *((None,) if kernel == "stock" else (0, 1)))
                for work in measure.TIME_LIMIT["arm64"]:
                    found[work].get(1, found[work].get(None)).ns = [ns] * 3
                return {work: by for work, by in found.items() if (work, kernel, meter) != gone}

            with tempfile.TemporaryDirectory() as out, mock.patch.multiple(
                    measure, make=mock.DEFAULT, kernel=lambda _, variant, __: variant, run=fake), \
                    mock.patch.object(run, "ROOT", Path(out)), mock.patch.object(sys, "argv", ["run.py"]), \
                    mock.patch.dict("os.environ", {"ARCH": arch, "FAST": fast}), \
                    contextlib.redirect_stdout(io.StringIO()) as said:
                return run.main(), said.getvalue().splitlines()

        status, lines = main(None)
        self.assertEqual((status, lines[-1], cpus), (0, "tlb-rs wins", {"max", "neoverse-n1"}))
        self.assertEqual(kernels, {"stock", "release"})
        cpus.clear()
        status, lines = main(None, "x86_64", 100)
        self.assertEqual(cpus, {"max"})
        self.assertEqual((status, lines[-1]), (0, "tlb-rs flushes no more than stock"))
        status, lines = main(("split_shmem", "release", True), "x86_64", 100)
        self.assertEqual((status, lines[-1]), (1, "tlb-rs flushes more than stock"))
        for kernel, meter in (("stock", True), ("release", True), ("release", False)):
            status, lines = main(("split_shmem", kernel, meter))
            self.assertEqual((status, lines[-1]), (1, "tlb-rs does not win"))
            self.assertIn("target missed: split a shmem THP: ", "\n".join(lines))
        kernels.clear()
        status, lines = main(None, fast="1")
        self.assertEqual((status, lines[-1], kernels), (0, "tlb-rs wins", {"release"}))
        self.assertTrue(any("It is not stock" in line for line in lines))
        self.assertEqual([line.split() for line in lines if "vm.tlb_batch=0  " in line], 2 * [["vm.tlb_batch=0", "tlb-rs"]])
        status, lines = main(None, "x86_64", 100, fast="1")
        self.assertEqual((status, lines[-1]), (0, "tlb-rs flushes no more than vm.tlb_batch=0"))
        status, lines = main(("split_shmem", "release", True), fast="1")
        self.assertEqual((status, lines[-1]), (1, "tlb-rs does not win"))
