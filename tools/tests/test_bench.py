# SPDX-License-Identifier: GPL-2.0
"""Tests of the arithmetic, of the targets and of the report, on made-up records."""

import contextlib
import html.parser
import importlib.util
import io
import json
import re
import struct
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from tlbrs.bench import (bench, content, flushcode, machine, of_folio, of_hvo, of_migrc, of_model, of_scaling, of_tiers,
                         of_tlb_batch, outcome, output, page, plots, suites)
from tlbrs.guest import guest


def record(mode, tlbi, units=4, **more):
    return {"region": "r", "tlb_batch": mode, "units": units, "ns": 10 * tlbi, "meter": {"tlbi": tlbi}, **more}


def pair(region, off, on, ns=(1000, 1000), **more):
    """A half without migrc and one with it: flushes of batches and of drains, for 1000 pages."""
    return [{"region": region, "migrc": m, "moved": 1000, "ops": 10, "ops_ns": ns[m], "tlb_batch_flush": batch,
             "migrc_flush": drain, "worst_held": 7, "worst_drain_ns": 2000000, **(more if m else {})}
            for m, (batch, drain) in enumerate((off, on))]


# Flushes of one unit, unbatched, stock and ours, on arm64: of the first three as the README has them. The rest is made
# up, with all verdicts in it.
SPLITS = {"split_anon": (543, 543, 1), "split_mixed": (512, 512, 1), "split_shared4": (2175, 2175, 4),
          "split_order4": (543, 543, 1), "split_shmem": (18, 18, 2), "split_ext4": (18, 18, 2)}
MOVES = {"move_ro": (4096, 4096, 8), "move_rw": (4096, 4096, 8)}
FOLIOS = {"mthp": (4096, 4096, 8), "thp8": (4096, 4096, 8), "thp1": (512, 512, 1), "file": (4608, 4608, 8),
          "unlike": (4096, 4096, 4096), "load": (2, 2, 1)}
PAGES = {"pageout_file": (1, 1, 0.031), "pageout_anon_clean": (1, 1, 0.031), "pageout_anon_dirty": (1, 1, 1),
         "pageout_mthp": (1, 1, 0), "pageout_thp": (1, 1, 1.06)}
WORST = {name: (1, 1, 1 - 0.1 * (i % 5) + 0.05 * (i % 2)) for i, name in enumerate(of_tlb_batch.WORST)}


def flushed(region, mode, i, figures, units, unit="units", **more):
    """Repetition `i` of a region of tlb_batch."""
    stock, ours = figures[0 if mode == -1 else 1], figures[2]
    count = units * (ours if mode == 1 else stock)
    counts = {"tlbi": count, "tlbi_asid": 0, "dsb_ishst": count, "dsb_ish": count, "dsb_other": 0,
              "insns_kernel": 5000 * units + 10 * count}
    return {"region": region, "tlb_batch": mode, unit: units, "meter": counts, "nr_tlb_remote_flush": count,
            "ns": (1000 * units + 300 * count) * (1 + 0.05 * ((i * 7 + 3 * mode * i if mode else i) % 5)), **more}


def boots(_, arch, job, variant="bench", **options):
    """Instead of a guest: the records that the programs of `job` would print."""
    def option(name, other):
        return (re.search(rf"--{name} (\S+)", job) or [0, other])[1]

    runs, found = int(option("pairs", 3)), []
    for mode in (None,) if variant == "stock" else (-1, 0, 1):
        for i in range(runs):
            for n in re.findall(r"--processes (\d+)", job):
                found.append(flushed(f"split_shared{n}", mode, i, [int(n) * f for f in SPLITS["split_anon"]], 8, procs=int(n)))
            if "thp_split" in job and "--processes" not in job:
                found += [flushed(name, mode, i, f, 8, "thps") for name, f in SPLITS.items()]
            if "move_bench" in job and "migrc" not in job:
                n = int(option("pages", 4096))
                found += [flushed(name, mode, i, f, 1, pages=n) for name, f in MOVES.items()]
            for variant, kib in re.findall(r"--variant (\w+)(?: --size (\d+))?", job) if "folio_bench" in job else ():
                name = ("migrate_" if variant == "load" else "move_") + variant
                found += [flushed(name, mode, i, FOLIOS[variant], 1, whole=1, folio_kib=int(kib or 64))] if variant in FOLIOS else []
            if "tlb_batch_msync_bench" in job:
                names = of_folio.WRITTEN[" --writeback" if "--writeback" in job else ""]
                found += [flushed(name, mode, i, (1, 1, 0.06 if "64k" in name or "2m" in name else 1), 4096)
                          for name in (*names, "msync_small_plain")]
            if "tlb_batch_demote" in job:
                found += [flushed(name, mode, i, (4096, 128, 9), 1, wakes=1, waits=9) | {"units": 4096}
                          for name in of_folio.DEMOTIONS]
            for program, figures in (("pageout", PAGES), ("worst", WORST)):
                if f"tlb_batch_{program}" in job:
                    found += [flushed(name, mode, i, f, 4096) for name, f in figures.items()]
        if "thpscale" in job:
            found += [flushed("thpscale", mode, i, (40, 2 + n / 8, 1 + n / 16), 64, threads=n, round=i, complete=1,
                              huge=60, splits=50, both_ns=(9 - mode) * 1e6) for n in of_tlb_batch.THREADS for i in range(2)]
    if "tlb_batch_sweep" in job:
        found += [{"region": "sweep", "tlb_batch": 1, "pages": n, "units": 1, "set_pages": 512, "refill_ns": 5000,
                   "change_ns": 1000 + 100 * n, "meter": {"tlbi": min(n, 512), "tlbi_asid": int(n > 511)}}
                  for n in (0, 1, 64, 511, 512, 2048)]
    for i in range(runs):
        for on in (0, 1):
            found += [flushed(f"migrc_{case}", 1, i, (0, 0, 2 if on else 8), 1, migrc=on, deferred=on, migrc_flush=on)
                      for case in re.findall(r"migrc_move_bench --case (\w+)", job)]
        for case in re.findall(r"migrc_workload --case (\w+)", job):
            found += pair(case, (31, 0), (31, 1) if case == "store" else (0, 1), ns=(1000 + 90 * i, 900), deferred=9,
                          denied=1)
        if "migrc_tier -t" in job:
            found += [flushed(name, 1, i, (4096, 0, 2) if not on else (1, 0, 1), 4096, migrc=on, deferred=4096 * on,
                              wakes=1, drains=on, step=2048) | {"units": 4096}
                      for on in (0, 1) for name in of_tiers.DEMOTED]
        for case in re.findall(r"migrc_tier_bench --case (\w+)", job):
            found += [{"region": case, "migrc": on, "pair": i, "ops": 1000 + 10 * on, "ns": 10**9 + i, "pgmigrate_success": 4096,
                       "tlb_batch_flush": 4 if on else 400, "tlb_batch_ranges": 0, "migrc_flush": on,
                       "migrc_deferred": 4000 * on, "denied_writable": 96 * on, "denied_kind": 40 * on,
                       "pgdemote_kswapd": 2048, "pgpromote_success": 2048,
                       "thp_migration_success": 0, "fault_p99_ns": 9000, "numa_foreign": 5, "allocstall_movable": 1,
                       "atomic_refused": 0, "nr_tlb_remote_flush": 7, "meter": {"tlbi": 9 if on else 900}} for on in (0, 1)]
    if "hvo_bench" in job and "--beside" in job:
        return [{"region": "hvo_beside", "strategy": s, "seconds": 20, "rounds": rounds, "pages": 512, "least": 510, "pauses": 0}
                for s, rounds in (("off", 400), ("auto", 160), ("unsafe", 180))], job, ""
    if "hvo_bench" in job:
        pages = int(option("pages", 16))
        found += [{"region": region, "strategy": s, "pages": pages * (512 if region.endswith("_small") else 1),
                   "ns": pages * (1000 if s == "unsafe" else 1300 + i), "in_pauses_ns": 100 * pages, "cancelled": 0,
                   "pauses": pages * {"perfolio": 8, "auto": 0}.get(s, 1), "stop_machine": 0, "entries": 9,
                   "flushes": pages // 4, "young": 3,
                   "saved": pages * of_hvo.SAVED.get(region, 0), "worst_stall_ns": 1e6, "p99_stall_ns": 1e5,
                   "meter": {"sgi": pages}}
                  for i in range(runs) for s in re.findall(r"--strategy (\w+)", job) for region in of_hvo.HVO_ROWS]
    return found, machine.command(arch, variant, job, options), ""


def windows(_, cores):
    """Instead of gem5: as many TLBIs as boots() has, and time that grows with the cores."""
    counts = {"split_anon": [8 * n for n in SPLITS["split_anon"][1:]], "move_ro": MOVES["move_ro"][1:],
              "move_mthp": FOLIOS["mthp"][1:], "msync_64k": (4096, 4096 * 0.06), "migrc_rounds": (8, 2)}
    return {(each, work, mode, *options): of_model.Window(
        1000 + 100 * each * (mode == of_model.STOCK), 900, 900, *2 * [counts[work][mode]], 350)
        for each, work, mode, options in of_model.wanted(cores)}


def measured():
    """Results of all suites, as they are read back from their files."""
    with tempfile.TemporaryDirectory() as out, mock.patch.multiple(
            suites, text_size=lambda path: (len(str(path)), 2, 1), symbol_size=lambda path, name: 9000 + len(str(path))), \
            mock.patch.multiple(of_tlb_batch, boot=boots, flush_share=lambda result: None), \
            mock.patch.object(of_migrc, "boot", boots), mock.patch.object(of_hvo, "boot", boots), \
            mock.patch.object(of_folio, "boot", boots), mock.patch.object(of_tiers, "boot", boots), \
            mock.patch.object(of_scaling, "boot", boots), \
            mock.patch.multiple(of_model, boot=boots, measured=windows, Runs=mock.Mock(), gem5=mock.Mock()), \
            mock.patch.dict("os.environ", GEM5="gem5"):
        context = outcome.Context(["arm64", "x86_64"], "bench", "7.3", Path(out))
        results = []
        for name, suite in suites.SUITES.items():
            result = outcome.Result(context)
            suite.run(result)
            results.append({"suite": name, "about": suite.about, "seconds": 1, **result.json()})
    return json.loads(json.dumps(results))


RESULTS = measured()
TITLES = [plot["title"] for result in RESULTS for table in result["tables"] for plot in table["plots"]]


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
        result = outcome.Result(None)
        result.gate("met", 1.0, 1.0)
        result.gate("not met", 1.1, 1.0)
        result.gate("not measured", None, 1.0)
        result.gate("a time", 2, 1, hard=False)
        self.assertEqual([g["ok"] for g in result.gates], [True, False, False, False])
        words = [line.split()[0] for line in output.gate_lines([result.json()])]
        self.assertEqual(words, ["pass", "FAIL", "FAIL", "miss"])

    def test_one_count_above_stock_fails(self):
        for ours, ok in ((512, True), (600, False), (None, False)):
            result = outcome.Result(None)
            result.not_above("tlbi", "tlbi", 512, ours, 32)
            gates = result.json()["gates"]
            self.assertEqual(all(g["ok"] for g in gates), ok, ours)

    def test_work_that_is_missing_is_a_missed_target(self):
        def missed(gone):
            """Of the worst cases, with those regions of the programs not there."""
            def some(*args, **options):
                records, *rest = boots(*args, **options)
                return [r for r in records if (r["region"], r["tlb_batch"]) not in gone], *rest

            result = outcome.Result(outcome.Context(["arm64"], "bench", "7.3", Path()))
            with mock.patch.object(of_tlb_batch, "boot", some):
                of_tlb_batch.worst(result)
            return [g["text"] for g in result.gates if not g["ok"] and g["hard"] and "was measured" in g["text"]]

        self.assertEqual(missed(()), [])
        text = of_tlb_batch.WORST["worst_huge"]
        for gone in ({("worst_huge", 1)}, {("worst_huge", 0)}, {("worst_huge", m) for m in (-1, 0, 1)}):
            self.assertEqual(missed(gone), [f"arm64, {n} vCPU{'s' * (n > 1)}: {text}: was measured" for n in (4, 1)])
        for arch in ("arm64", "x86_64"):
            result = outcome.Result(None)
            of_tlb_batch.counts_gates(result, arch, "max", {})
            self.assertEqual([g["ok"] for g in result.gates], [False] * len(of_tlb_batch.WORK_NAMES))

    def test_time_of_msync(self):
        def missed(slower):
            """Of the gates of times, with these regions slower by that in the mode of ours."""
            def some(*args, **options):
                records, *rest = boots(*args, **options)
                return [r | {"ns": r["ns"] * (slower.get(r["region"], 1) if r["tlb_batch"] == 1 else 1)} for r in records], *rest

            result = outcome.Result(outcome.Context(["arm64"], "bench", "7.3", Path()))
            with mock.patch.object(of_folio, "boot", some):
                of_folio.msync(result)
            return [g["text"] for g in result.gates if not g["ok"] and "time over stock" in g["text"]]

        # With 0.06 of the flushes it takes 0.78 of the time here, which is too much for folios of 64 KiB.
        self.assertEqual(len(missed({})), 4)
        names = {name: text for of_option in of_folio.WRITTEN.values() for name, text in of_option.items()}
        fast = {name: 0.7 for name in names if "64k" in name}
        self.assertEqual(missed(fast), [])
        for region, work in names.items():
            text = f"arm64: {work}, time over stock, median"
            self.assertEqual(missed({**fast, region: 2}), [text])

    def test_workload_gates(self):
        def judged(records):
            result = outcome.Result(None)
            of_migrc.workload_gates(result, "arm64", of_migrc.switched(records, of_migrc.WORKLOADS))
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
        result = outcome.Result(None)
        records = pair("file", (40, 0), (1, 3), deferred=900, denied=100, denied_writable=96, denied_mixed=4,
                       drain_age=3, drain_age_pages=900, drain_mms=3, hook_range=1)
        of_migrc.workload_tables(result, "arm64", "t", of_migrc.switched(records, of_migrc.WORKLOADS), "c")
        row, (off, on) = result.tables[0]["rows"][0], result.tables[1]["rows"]
        self.assertEqual(row[1:4], [40, 4, 0.1])
        self.assertEqual(row[-4:], [90, 10, 7, 2])
        self.assertEqual(off[-1], "")
        self.assertEqual(on[-1], "pages denied: writable 96, mixed 4; drains: age 3; flushes by hooks: range 1")

    def test_command_can_be_typed(self):
        text = machine.command("arm64", "bench", "a && b", {"cpu": "max", "meter": True, "smp": 1, "swap": "zram:1M"})
        self.assertEqual(text, "tools/tlb-rs guest boot --arch arm64 --variant bench --meter --smp 1 "
                               "--swap zram:1M --job 'a && b'")
        self.assertIn(" --kver 7.2 ", machine.command("arm64", "bench", "a", {"kver": "7.2"}))
        self.assertNotIn("--kver", machine.command("arm64", "bench", "a", {"kver": "7.3"}))

    def test_other_versions(self):
        """Figures of two versions do not stand side by side."""
        tmp = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name, kver in (("counts", "7.3"), ("pageout", "7.2")):
            (tmp / f"{name}.json").write_text(json.dumps({"suite": name, "rows": [], "kver": kver}), encoding="ascii")
        with mock.patch.object(bench, "OUT", tmp):
            self.assertEqual(["pageout"], [old["suite"] for old in bench.earlier(("counts", "pageout", "hvo"), "7.2")])

    def test_earlier_figures_of_another_kernel(self):
        tmp = Path(self.enterContext(tempfile.TemporaryDirectory()))
        image, program = tmp / "Image", tmp / "program.c"

        def stale():
            return [old["stale"] for old in bench.earlier(("counts",), "7.3")]

        with mock.patch.multiple(bench, OUT=tmp, inputs=lambda *_: [program, image]), \
                mock.patch.object(guest, "qemu_version", lambda name: "7.2"):
            for file in (image, program):
                file.write_text("one", encoding="ascii")
            context = outcome.Context(["arm64"], "bench", "7.3", tmp)
            with mock.patch.dict(suites.SUITES, counts=suites.Suite("about", lambda result: None)), \
                    contextlib.redirect_stdout(io.StringIO()):
                bench.measured("counts", context, False)
            self.assertEqual(stale(), [False])
            for file in (image, program):
                file.write_text("two", encoding="ascii")
                self.assertEqual(stale(), [True])
                file.write_text("one", encoding="ascii")
            with mock.patch.object(guest, "qemu_version", lambda name: "8.0"):
                self.assertEqual(stale(), [True])
            image.unlink()
            self.assertEqual(stale(), [True])


class Page(html.parser.HTMLParser):
    """What is in a page; it is an error if it is not well formed, or asks for anything that is elsewhere."""
    VOID = {"meta", "br"}
    FOREIGN = {"script", "link", "img", "image", "iframe", "object", "embed", "base", "form", "video", "audio"}

    def __init__(self, text):
        super().__init__()
        self.open, self.tables, self.ids, self.links, self.text = [], [], [], [], {}
        self.cells, self.labels, self.attributes = {}, [], {}
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        assert tag not in self.FOREIGN, tag
        assert len(dict(attrs)) == len(attrs), attrs
        for name, value in attrs:
            assert name not in ("src", "srcset", "data", "action", "xlink:href") and not name.startswith("on"), name
            self.local(value)
        attrs = dict(attrs)
        self.ids += [attrs["id"]] if "id" in attrs else []
        if tag in ("a", "use"):
            assert attrs["href"].startswith("#"), attrs
            self.links.append(attrs["href"][1:])
        if tag == "svg":
            self.labels.append(attrs["aria-label"])
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("th", "td"):
            self.tables[-1][-1].append("")
            self.attributes[len(self.tables), len(self.tables[-1]), len(self.tables[-1][-1])] = attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> in {self.open}"

    def handle_data(self, data):
        if {"th", "td"} & set(self.open):
            self.tables[-1][-1][-1] += data
        if self.open:
            self.text.setdefault(self.open[-1], []).append(data)
        if self.open[-1:] == ["style"]:
            self.local(data)

    @staticmethod
    def local(value):
        assert "@import" not in value and not re.search(r"url\((?!#)", value), value


def simple(*rows, cells=(("a", 1),), commands=("true",), gates=(), notes=()):
    """The result of a suite with one table."""
    result = outcome.Result(None)
    result.table("t", ["work", "count"], [list(row) for row in cells], *commands)
    for gate in gates:
        result.gate(*gate)
    for row in rows:
        result.compare(*row)
    result.notes += notes
    return {"suite": "s", "about": "about", "seconds": 1, **result.json()}


class Overview(unittest.TestCase):
    def test_compare(self):
        result = outcome.Result(None)
        result.compare("hvo", "arm64", "w", "pauses", {-1: [100, 100], 0: [10, 20, 40], 1: [5, 20, 60]}, "one", "two")
        result.compare("hvo", "arm64", "w", outcome.TIME, {0: [3000], 1: [1000]}, "one")
        result.compare("hvo", "arm64", "w", "none of stock", {0: [0, 0], 1: [3, 3]}, "one")
        result.compare("hvo", "arm64", "w", "not measured", {}, "one")
        first, of_time, zero, nothing = result.rows
        self.assertEqual([first[k] for k in ("unbatched", "stock", "tlb-rs", "runs")], [100, 20, 20, 3])
        # Of neighbours: 0.5, 1 and 1.5; of the two that there are: 0.05 and 0.2.
        self.assertEqual(first["over stock"], (0.75, 1, 1.25))
        self.assertAlmostEqual(first["over unbatched"][1], 0.125)
        self.assertEqual(first["commands"], ("one", "two"))
        self.assertEqual((of_time["unbatched"], of_time["stock"], of_time["tlb-rs"]), (None, 3, 1))
        self.assertEqual((zero["over stock"], zero["tlb-rs"]), (None, 3))
        self.assertEqual((nothing["over stock"], nothing["tlb-rs"], nothing["runs"]), (None, None, 0))

    def test_verdict(self):
        def judged(stock, ours, over, unbatched=None):
            return content.verdict({"stock": stock, "unbatched": unbatched, "tlb-rs": ours, "over stock": over,
                                    "over unbatched": (2, 2, 2) if unbatched else None})

        for over, word in (((0.2, 0.3, 0.9), "better"), ((1.1, 1.3, 1.6), "worse"), ((0.9, 1.2, 1.6), "unclear"),
                           ((0.7, 0.8, 1.1), "unclear"), ((0.9, 1.004, 1.2), "same"), ((1.006, 1.006, 1.006), "worse")):
            self.assertEqual(judged(10, 10, over), word, over)
        self.assertEqual(judged(0, 3, None), "worse")
        self.assertEqual(judged(0, 0, None), "same")
        self.assertEqual(judged(10, None, None), "no figure")
        self.assertEqual(judged(None, 10, None), "no figure")
        self.assertEqual(judged(None, 10, None, unbatched=5), "worse")
        self.assertEqual(judged(5, 5, (0.5, 0.5, 0.5), unbatched=5), "better")

    def test_ratios_are_written_with_three_digits(self):
        for over, text in (((0.001, 0.00184, 0.1), "0.00184 (0.00100 to 0.100)"), ((1, 1, 1), "1.00"),
                           ((90, 100, 120), "100 (90.0 to 120)"), ((0, 0, 0), "0"), (None, None)):
            self.assertEqual(content.spread(over), text)

    def test_every_suite_has_its_place(self):
        rows = {r["suite"]: r["rows"] for r in RESULTS}
        found = {suite: {row["mechanism"] for row in mine} for suite, mine in rows.items() if mine}
        batch = ("counts", "folios", "msync", "demotion", "pageout", "worst", "thpscale")
        self.assertEqual(found, {**{s: {"tlb_batch"} for s in batch},
                                 "migrc": {"migrc", "cost"}, "tiers": {"migrc"}, "programs": {"migrc"}, "workloads": {"migrc"}, "hvo": {"hvo"},
                                 "size": {"cost"}})
        for row in sum(rows.values(), []):
            self.assertTrue(row["commands"] and row["runs"], row)
            self.assertNotEqual(content.verdict(row), "no figure", row)
        # What was put in comes out, in each mode and on each machine.
        for arch in ("arm64", "arm64 neoverse-n1", "x86_64"):
            row, = (r for r in rows["counts"] if (r["work"], r["arch"], r["unit"]) ==
                    ("split a PTE-mapped 2 MiB THP", arch, outcome.FLUSHES))
            self.assertEqual((row["unbatched"], row["stock"], row["tlb-rs"]), (543, 543, 1))
            self.assertIn(f"--arch {arch.split()[0]}", row["commands"][0])
        kept, = (r for r in rows["hvo"] if r["unit"] == "pages of struct pages")
        self.assertEqual((kept["stock"], kept["tlb-rs"]), (4096, 1))

    def test_summary_names_what_is_worse(self):
        rows = [("migrc", "arm64", name, "flushes", {0: [10, 10], 1: ours}, "true")
                for name, ours in (("good", [1, 1]), ("bad", [12, 13]), ("either", [5, 15]), ("equal", [10, 10]))]
        head, (row,) = content.summary(content.by_mechanism([simple(*rows)]))
        self.assertEqual(dict(zip(head, row)), {"mechanism": "migrc", "machine": "arm64", "of": "flushes", "better": 1,
                                                "same": 2, "unclear": 0, "worse": 1, "least ratio": "0.100",
                                                "greatest ratio": "1.25", "what is worse": "bad"})


class Report(unittest.TestCase):
    def cells(self, rows):
        return [[content.cell(value) for value in row] for row in rows]

    def test_page_has_everything(self):
        found = Page(page.html_page(RESULTS, {}))
        for result in RESULTS:
            for table in result["tables"]:
                self.assertIn(self.cells([table["head"], *table["rows"]]), found.tables, table["title"])
                self.assertIn(table["title"], found.text["h3"])
                self.assertLessEqual(set(table["commands"]), set(found.text["pre"]))
        head, rows = content.gates(RESULTS)
        self.assertEqual(len(rows), sum(len(result["gates"]) for result in RESULTS))
        self.assertIn(self.cells([head, *rows]), found.tables)
        groups = content.by_mechanism(RESULTS)
        self.assertEqual(list(groups), list(content.MECHANISMS))
        for mechanism, mine in groups.items():
            head, rows, commands = content.overview(mine)
            self.assertEqual(len(rows), len(mine))
            rows = [[" ".join(f"[{n}]" for n in v) if isinstance(v, list) else v for v in row] for row in rows]
            self.assertIn(self.cells([head, *rows]), found.tables, mechanism)
            self.assertLessEqual(set(commands), set(found.text["code"]))
        self.assertEqual(len(found.ids), len(set(found.ids)))
        self.assertLessEqual(set(found.links), set(found.ids))

    def test_page_says_what_it_is(self):
        text = page.html_page(RESULTS, {})
        found = Page(text)
        self.assertIn('<html lang="en">', text)
        self.assertTrue(found.text["title"] and found.text["h1"])
        self.assertIn("prefers-color-scheme: dark", text)

    def test_old_figures_are_marked(self):
        old, new = ({**simple(), "suite": name, "measured": "2026-01-02", "stale": name == "old"} for name in ("old", "new"))
        for text, strong in ((page.html_page([old, new], {}), "<strong>Old figures</strong>"),
                             (output.markdown([old, new], {}), "**Old figures**")):
            self.assertEqual(text.count(strong), 2)
            self.assertIn("another QEMU: old.", text)
            self.assertIn("make bench SUITE=old", text)
            self.assertEqual(text.count("1 s, 2026-01-02"), 2)
        Page(page.html_page([old, new], {}))
        self.assertNotIn("Old figures", page.html_page([new], {}) + output.markdown([new], {}))

    def test_figures_are_not_markup(self):
        evil = 'a<b> & "c" </td>'
        result = simple(("hvo", evil, evil, evil, {0: [1], 1: [2]}, evil), cells=[(evil, evil)], commands=[evil],
                        gates=[(evil, 1, 1)], notes=[f"`{evil}` {evil}"])
        result["about"] = result["tables"][0]["title"] = result["tables"][0]["head"][0] = evil
        found = Page(page.html_page([result], {}))
        self.assertIn([[evil, "count"], [evil, evil]], found.tables)
        self.assertIn(evil, found.text["h3"])
        self.assertIn(evil, found.text["code"])
        self.assertLessEqual({f"{evil}; 1 s.", f" {evil}"}, set(found.text["p"]))
        self.assertNotIn("b", found.text)

    def test_each_plot_is_in_its_place(self):
        names = [name for result in RESULTS for number in range(len(result["tables"]))
                 for name in plots.names(result, number)]
        names = ["overview", *(f"overview-{mechanism}" for mechanism in content.MECHANISMS), *names]
        text = page.html_page(RESULTS, {name: f"<svg><text>{name}</text></svg>" for name in names})
        found = Page(text)
        self.assertEqual(found.text["text"], names)
        self.assertEqual(found.labels[1 + len(content.MECHANISMS):], TITLES)
        self.assertEqual(found.text["figcaption"], found.labels)
        self.assertNotIn(plots.INSTALL, text)
        markdown = output.markdown(RESULTS, dict.fromkeys(names, ""))
        self.assertEqual(re.findall(r"!\[\S+\]\((\S+)\.png\)", markdown), names)

    def test_worse_is_shown_as_worse(self):
        rows = [("migrc", "arm64", name, "flushes", {0: [10, 10], 1: ours}, "true")
                for name, ours in (("good", [1, 1]), ("bad", [12, 13]))]
        text = page.html_page([simple(*rows)], {})
        found = Page(text)
        summary, overview = found.tables[:2]
        self.assertEqual([row[overview[0].index("verdict")] for row in overview[1:]], ["▼ better", "▲ worse"])
        place = overview[0].index("verdict") + 1
        self.assertEqual([found.attributes[2, row, place]["class"] for row in (2, 3)], ["better", "worse"])
        self.assertEqual(found.attributes[1, 2, summary[0].index("worse") + 1]["class"], "number worse")
        lines = output.markdown([simple(*rows)], {}).splitlines()
        self.assertTrue(any("| bad |" in line and "| **▲ worse** |" in line for line in lines))
        self.assertFalse(any("| good |" in line and "worse" in line for line in lines))

    def test_markdown_has_everything(self):
        lines = output.markdown(RESULTS, {}).splitlines()
        for result in RESULTS:
            for table in result["tables"]:
                for row in self.cells(table["rows"]):
                    self.assertIn("| " + " | ".join(row) + " |", lines)
                self.assertLessEqual({f"    {command}" for command in table["commands"]}, set(lines))
        for mine in content.by_mechanism(RESULTS).values():
            for number, command in enumerate(content.overview(mine)[2], 1):
                self.assertIn(f"{number}. `{command}`", lines)

    def test_without_matplotlib(self):
        with tempfile.TemporaryDirectory() as out, mock.patch.dict(sys.modules, matplotlib=None), \
                mock.patch("builtins.print") as said:
            output.write(Path(out), RESULTS)
            self.assertIn(plots.INSTALL, said.call_args[0][0])
            text = (Path(out) / "bench.html").read_text(encoding="utf-8")
            self.assertEqual(sorted(p.name for p in Path(out).iterdir()), ["bench.html", "bench.json", "bench.md"])
            self.assertEqual(json.loads((Path(out) / "bench.json").read_text()), RESULTS)
        self.assertIn(plots.INSTALL, Page(text).text["code"])
        self.assertNotIn("<svg", text)

    def test_svg_becomes_a_part_of_the_page(self):
        svg = plots.inline(f"""<?xml version="1.0"?><!DOCTYPE svg PUBLIC "x" "http://x/svg11.dtd">
            <svg xmlns:xlink="http://x/xlink" width="72pt" height="10pt" xmlns="http://x/svg" viewBox="0 0 72 10">
            <metadata><a href="http://x/"/></metadata><defs><style type="text/css">*{{fill: red}}</style></defs>
            <g id="axes_1"><path id="m1" style="stroke: {plots.INK}; fill: {plots.SERIES[1]}"/>
            <use xlink:href="#m1" clip-path="url(#p1)"/></g><clipPath id="p1"/></svg>""", "n")
        found = Page(svg.replace("<svg", '<svg aria-label="l"', 1))
        self.assertEqual((found.ids, found.links), (["n-m1", "n-p1"], ["n-m1"]))
        self.assertIn("stroke: currentColor; fill: var(--series1)", svg)
        self.assertIn("width: 72pt; max-width: 100%; min-width: 54pt", svg)
        for word in ("http", "red", "metadata"):
            self.assertNotIn(word, svg)

    @unittest.skipUnless(importlib.util.find_spec("matplotlib"), plots.INSTALL)
    def test_plots(self):
        more = simple(("hvo", "arm64", "no stock", "zero", {0: [0], 1: [3]}, "c"),
                      ("hvo", "arm64", "none", "none", {}, "c"))
        with tempfile.TemporaryDirectory() as out:
            output.write(Path(out), [*RESULTS, more])
            found = Page((Path(out) / "bench.html").read_text(encoding="utf-8"))
            drawn = {p.stem for p in Path(out).glob("*.png")}
        self.assertEqual(found.labels[1 + len(content.MECHANISMS):], TITLES)
        self.assertEqual(len(drawn), len(found.labels))
        self.assertEqual(len(found.ids), len(set(found.ids)))
        self.assertLessEqual(set(found.links), set(found.ids))
        self.assertIn("hvo: pauses", found.text["text"])
        for row in (row for result in RESULTS for row in result["rows"]):
            self.assertIn(row["work"], found.text["text"])

    def test_the_checks_of_a_page_see_something(self):
        Page('<p>a<br>b <a href="#x">c</a></p>')
        for wrong in ("<p><b></p></b>", "<p>", "</p>", '<a href="http://x">y</a>', '<p style="color: url(//x)">y</p>',
                      "<script>1</script>", '<style>@import "x"</style>', "<p onclick='x'>y</p>",
                      '<b id="a" id="b">x</b>'):
            with self.assertRaises(AssertionError, msg=wrong):
                Page(wrong)


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
