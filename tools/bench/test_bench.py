#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Tests of the arithmetic and of the targets, on made-up records."""

import struct
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), *(str(HERE.parent / name) for name in ("report", "guest", "kernel"))]
# pylint: disable=wrong-import-position
import flushcode  # noqa: E402
import machine  # noqa: E402
import output  # noqa: E402
import suites  # noqa: E402


def record(mode, tlbi, units=4, **more):
    return {"region": "r", "tlb_batch": mode, "units": units, "ns": 10 * tlbi, "meter": {"tlbi": tlbi}, **more}


def pair(region, off, on, ns=(1000, 1000), **more):
    """A half without migrc and one with it: flushes of batches and of drains, for 1000 pages."""
    return [{"region": region, "migrc": m, "moved": 1000, "ops": 10, "ops_ns": ns[m], "tlb_batch_flush": batch,
             "migrc_flush": drain, "worst_held": 7, "worst_drain_ns": 2000000, **(more if m else {})}
            for m, (batch, drain) in enumerate((off, on))]


class Arithmetic(unittest.TestCase):
    def test_samples_keep_modes_and_order_apart(self):
        found = machine.samples([record(0, 8), record(1, 1), {"other": 1}, record(0, 4)])
        self.assertEqual([r["meter"]["tlbi"] for r in found["r"][0]], [8, 4])
        self.assertEqual(list(found["r"]), [0, 1])

    def test_per_unit_is_the_median_of_quotients(self):
        records = [record(0, 8), record(0, 100, units=100), record(0, 12)]
        self.assertEqual(machine.per_unit(records, "tlbi"), 2)
        self.assertIsNone(machine.per_unit(records, "dsb_ish"))
        self.assertIsNone(machine.per_unit([], "tlbi"))

    def test_ratio_pairs_neighbours(self):
        values = machine.ratios([record(0, 8), record(0, 4)], [record(1, 4), record(1, 1)], lambda r: r["ns"])
        self.assertEqual(values, [0.5, 0.25])

    def test_bound(self):
        middle, most = machine.bound([0.5, 0.5, 0.5])
        self.assertAlmostEqual(middle, 0.5)
        self.assertAlmostEqual(most, 0.5)
        # t of 2 degrees of freedom, by hand: exp(0 + 2.920 * ln(2) / sqrt(3))
        middle, most = machine.bound([0.5, 1, 2])
        self.assertAlmostEqual(middle, 1)
        self.assertAlmostEqual(most, 3.2171, places=3)
        self.assertEqual(machine.bound([0.5])[1], float("inf"))


class Targets(unittest.TestCase):
    def test_gate(self):
        result = suites.Result(None)
        result.gate("met", 1.0, 1.0)
        result.gate("not met", 1.1, 1.0)
        result.gate("not measured", None, 1.0)
        result.gate("a time", 2, 1, hard=False)
        self.assertEqual([g["ok"] for g in result.gates], [True, False, False, False])
        words = [line.split()[0] for line in output.gate_lines([result.json()])]
        self.assertEqual(words, ["pass", "FAIL", "FAIL", "miss"])

    def test_one_count_above_stock_fails(self):
        for ours, ok in ((512, True), (600, False), (None, False)):
            result = suites.Result(None)
            result.not_above("tlbi", "tlbi", 512, ours, 32)
            gates = result.json()["gates"]
            self.assertEqual(all(g["ok"] for g in gates), ok, ours)

    def test_workload_gates(self):
        def judged(records):
            result = suites.Result(None)
            suites.workload_gates(result, "arm64", suites.switched(records, suites.WORKLOADS))
            return [g["ok"] for g in result.gates], [g["hard"] for g in result.gates]

        good = (pair("lookup", (40, 0), (0, 2)) + pair("file", (40, 0), (1, 1), ns=(1000, 990)) +
                pair("procs", (40, 0), (2, 6)) + pair("store", (100, 0), (100, 2), ns=(1000, 1020)))
        ok, hard = judged(good)
        self.assertEqual(ok, [True] * 7)
        self.assertEqual(hard, [True, False, True, False, True, True, False])
        # What a drain flushes counts as much as what a batch does; an operation must not take longer.
        bad = (pair("lookup", (40, 0), (0, 3), ns=(1000, 1001)) + pair("file", (40, 0), (3, 0), ns=(1000, 1001)) +
               pair("procs", (40, 0), (2, 7)) + pair("store", (100, 0), (100, 3), ns=(1000, 1030)))
        self.assertEqual(judged(bad)[0], [False] * 7)
        # One pair of three is not enough, in either direction.
        lookup = [r for flushed in ((0, 2), (0, 40), (0, 1)) for r in pair("lookup", (40, 0), flushed)]
        self.assertTrue(judged(lookup)[0][0])
        # What did not flush without migrc, or was not measured at all, compares with nothing.
        self.assertEqual(judged(pair("lookup", (0, 0), (0, 0)))[0][0], False)
        self.assertEqual(judged([])[0], [False] * 7)

    def test_workload_tables(self):
        result = suites.Result(None)
        records = pair("file", (40, 0), (1, 3), deferred=900, denied=100, denied_writable=96, denied_mixed=4,
                       drain_age=3, drain_age_pages=900, drain_mms=3, hook_range=1)
        suites.workload_tables(result, "arm64", "t", suites.switched(records, suites.WORKLOADS), "c")
        row, (off, on) = result.tables[0]["rows"][0], result.tables[1]["rows"]
        self.assertEqual(row[1:4], [40, 4, 0.1])
        self.assertEqual(row[-4:], [90, 10, 7, 2])
        self.assertEqual(off[-1], "")
        self.assertEqual(on[-1], "pages denied: writable 96, mixed 4; drains: age 3; flushes by hooks: range 1")

    def test_command_can_be_typed(self):
        text = machine.command("arm64", "bench", "a && b", {"cpu": "max", "meter": True, "smp": 1, "swap": "zram:1M"})
        self.assertEqual(text, "python3 tools/guest/guest.py boot --arch arm64 --variant bench --meter --smp 1 "
                               "--swap zram:1M --job 'a && b'")


class FlushCode(unittest.TestCase):
    def test_share_of_a_profile(self):
        # An ELF64 header, one program header, and tlbi vale1is, x14; dsb ishst; ret; dsb sy at 0x1000.
        words = struct.pack("<4I", 0xd50883ae, 0xd5033a9f, 0xd65f03c0, 0xd5033f9f)
        head = bytearray(64)
        struct.pack_into("<Q", head, 32, 64)
        struct.pack_into("<HH", head, 54, 56, 1)
        load = struct.pack("<IIQQQQQQ", 1, 5, 120, 0x1000, 0x1000, len(words), len(words), 4)
        with tempfile.NamedTemporaryFile() as image:
            image.write(bytes(head) + load + words)
            image.flush()
            text = flushcode.Text(image.name)
        self.assertEqual([text.maintains_tlb(0x1000 + i) for i in (0, 4, 8, 12, 16)], [True, True, False, True, False])
        # The samples lie behind the instruction that took the time.
        profile = {"samples": 40, "below": 10, "at": {"1004": 5, "1008": 1, "100c": 4}}
        self.assertEqual(flushcode.shares([profile], text), (40, 0.25, 0.6))


if __name__ == "__main__":
    unittest.main()
