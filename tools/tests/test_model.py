# SPDX-License-Identifier: GPL-2.0
import subprocess
import tempfile
import textwrap
import unittest
from pathlib import Path
from unittest import mock

from tlbrs.bench import of_model, outcome
from tlbrs.guest import initramfs
from tlbrs.kernel.common import Fail
from tlbrs.model import gem5

STATS = """
---------- Begin Simulation Statistics ----------
simTicks                                    123456000                       # Number of ticks simulated (Tick)
system.cpu_cluster.cpus0.numCycles             246912                       # Number of cpu cycles simulated (Cycle)
system.cpu_cluster.cpus0.cpi                 1.250000                       # CPI (core level) ((Cycle/Count))
system.ruby.network.ext_links00.ext_node.x |       1    100.00%    100.00% |       0      0.00%    100.00% # x
system.cpu_cluster.cpus0.ratio                    nan                       # no figure
---------- End Simulation Statistics   ----------

---------- Begin Simulation Statistics ----------
simTicks                                            1                       # of a second dump
---------- End Simulation Statistics   ----------
"""


class Find(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = Path(place.name)

    def make(self, name):
        (self.place / name).parent.mkdir(parents=True, exist_ok=True)
        (self.place / name).touch()

    def test_says_what_is_missing(self):
        with self.assertRaisesRegex(Fail, r"no build/ARM/gem5\.fast"):
            gem5.find(self.place)
        self.make(gem5.PROGRAMS[1])
        with self.assertRaisesRegex(Fail, "boot_v2.arm64"):
            gem5.find(self.place)

    def test_a_gem5_in_which_tlbis_hang(self):
        for name in (gem5.LOADER, gem5.PROGRAMS[0], gem5.WAKEUP):
            self.make(name)
        with self.assertRaisesRegex(Fail, "does not call"):
            gem5.find(self.place)
        (self.place / gem5.WAKEUP).write_text("        updatePendingOps();\n")
        self.assertEqual(gem5.find(self.place).program, self.place / gem5.PROGRAMS[0])

    def test_finds_the_fastest(self):
        for name in (gem5.LOADER, gem5.PROGRAMS[1]):
            self.make(name)
        self.assertEqual(gem5.find(self.place).program, self.place / gem5.PROGRAMS[1])
        self.make(gem5.PROGRAMS[0])
        self.assertEqual(gem5.find(self.place).program, self.place / gem5.PROGRAMS[0])


class Markers(unittest.TestCase):
    def test_of_a_program_that_the_compiler_made(self):
        """The instructions that are replaced are those of tlb_rs.h."""
        source = '#include "tlb_rs.h"\nvoid f(void)\n{\n\ttlb_rs_region_start();\n\ttlb_rs_region_stop();\n}\n'
        with tempfile.TemporaryDirectory() as place:
            place = Path(place)
            (place / "kselftest.h").touch()
            (place / "f.c").write_text(source)
            header = (initramfs.SELFTESTS / "tlb_rs.h").read_text()
            begin = header.index("static inline void tlb_rs_region_start")
            (place / "tlb_rs.h").write_text(header[begin:header.index("static inline __u64")])
            subprocess.run([initramfs.compiler("arm64")[0], "-c", "-O2", "-o", place / "f.o", place / "f.c"], check=True)
            code = (place / "f.o").read_bytes()
        new = gem5.marked(code)
        self.assertEqual(len(new), len(code))
        changed = [i for i in range(0, len(code), 4) if code[i:i + 4] != new[i:i + 4]]
        self.assertEqual([int.from_bytes(new[i:i + 4], "little") for i in changed], [0xff5a0110, 0xff5b0110])

    def test_an_archive_without_any_is_an_error(self):
        with self.assertRaises(Fail):
            gem5.marked(b"\0" * 64)


class Archive(unittest.TestCase):
    def test_no_more_programs_than_the_job_names(self):
        with tempfile.TemporaryDirectory() as place:
            place = Path(place)
            (place / "bin").mkdir()
            for name in ("bin/bench", "bin/bench_two", "bin/other", "busybox"):
                (place / name).touch()
            with mock.patch.multiple(initramfs, build=mock.DEFAULT, guest_dir=lambda _: place, busybox=lambda _: place / "busybox"):
                blob = initramfs.small("arm64", "mount /dev/vda /mnt && bench_two --other-option 1")
        self.assertIn(b"bin/bench_two\0", blob)
        self.assertIn(b"bin/busybox\0", blob)
        self.assertNotIn(b"bin/bench\0", blob)
        self.assertNotIn(b"bin/other\0", blob)


class Stats(unittest.TestCase):
    def test_first_dump(self):
        self.assertEqual(gem5.stats(STATS), {
            "simTicks": 123456000, "system.cpu_cluster.cpus0.numCycles": 246912, "system.cpu_cluster.cpus0.cpi": 1.25})


# Of a split on two cores.
SPLIT = """
---------- Begin Simulation Statistics ----------
simTicks                                   1082665500                       # Number of ticks simulated (Tick)
simFreq                                  1000000000000                       # The number of ticks per simulated second
system.cpu_cluster.cpus0.commitStats0.numInsts      1066203                       # Number of instructions committed
system.cpu_cluster.cpus0.l1d.outTransLatHist.DvmSync_Initiate::samples          543                       # latency
system.cpu_cluster.cpus0.l1d.outTransLatHist.DvmSync_Initiate::mean   492.305709                       # latency
system.cpu_cluster.cpus0.l1d.outTransLatHist.DvmTlbi_Initiate::samples          543                       # latency
system.cpu_cluster.cpus0.l1d.outTransLatHist.DvmTlbi_Initiate::mean          496                       # latency
system.cpu_cluster.cpus1.commitStats0.numInsts      1531315                       # Number of instructions committed
system.cpu_cluster.cpus1.l1d.outTransLatHist.DvmTlbi_Initiate::samples            0                       # latency
system.cpu_cluster.cpus1.l1d.outTransLatHist.DvmTlbi_Initiate::mean          nan                       # latency
system.ruby.clk_domain.clock                      500                       # Clock period in ticks (Tick)
---------- End Simulation Statistics   ----------
"""


class Figures(unittest.TestCase):
    def test_window(self):
        found = of_model.window(gem5.stats(SPLIT))
        self.assertEqual((found.us, found.insns, found.tlbi, found.sync), (1082.6655, 1066203, 543, 543))
        self.assertAlmostEqual(found.others, 1531315 / 1082.6655)
        self.assertAlmostEqual(found.pair, (496 + 492.305709) / 2)

    def test_without_messages(self):
        text = "\n".join(line for line in SPLIT.splitlines() if "Dvm" not in line)
        found = of_model.window(gem5.stats(text))
        self.assertEqual((found.tlbi, found.sync, found.pair), (0, 0, 0))

    CORES = [2, 4, 16]

    def gates(self, more):
        """Of counts that are `more` than those of the meter with the most cores."""
        found = {(cores, work, mode, *options): of_model.Window(9, 9, 9, 512 + more * (cores == 16), 512, 9)
                 for cores, work, mode, options in of_model.wanted(self.CORES)}
        records = [{"region": name, "tlb_batch": 1, work.switch: mode, "meter": {"tlbi": 512}}
                   for name, work in of_model.WORKS.items() for mode in (-1, 0, 1)]
        result = outcome.Result(outcome.Context(["arm64"], "bench", "7.3", None))
        with mock.patch.object(of_model, "boot", lambda *args, **options: (records, "command", "")):
            of_model.check_counts(result, found, self.CORES)
        self.assertEqual(len(result.gates), 2 * len(of_model.WORKS))
        return {gate["ok"] for gate in result.gates}

    def test_counts_must_be_those_of_the_meter(self):
        self.assertEqual(self.gates(0), {True})
        self.assertEqual(self.gates(3), {False})

    def test_what_is_unchanged_is_not_run_again(self):
        with tempfile.TemporaryDirectory() as place:
            place = Path(place)
            ran = []
            for programs, text in ((b"a", "kernel"), (b"a", "kernel"), (b"b", "kernel"), (b"b", "another kernel")):
                (place / "vmlinux").write_text(text)
                with mock.patch.object(of_model.guest, "kernel_path", lambda *_: place / "Image"):
                    runs = of_model.Runs(outcome.Context(["arm64"], "bench", "7.3", place), None)
                self.assertEqual(runs.kept("boot-2", lambda n=len(ran): ran.append(n) or [n], programs), [len(ran) - 1])
            self.assertEqual(ran, [0, 1, 2])

    def test_without_gem5(self):
        with mock.patch.dict("os.environ"), self.assertRaisesRegex(Fail, "GEM5=DIR"):
            of_model.os.environ.pop("GEM5", None)
            of_model.model(None)


class Run(unittest.TestCase):
    def run_with(self, script, timeout=10):
        with tempfile.TemporaryDirectory() as place:
            program = Path(place) / "gem5"
            program.write_text("#!/bin/sh\n" + textwrap.dedent(script))
            program.chmod(0o755)
            return gem5.run(gem5.Gem5(program, Path("configs"), Path("loader")), Path(place) / "out", timeout=timeout)

    PLACE = "out=${1#--outdir=}\n"

    def test_output(self):
        self.assertEqual(self.run_with(self.PLACE + "echo well >$out/simout.txt"), "well\n")

    def test_failure_shows_both(self):
        with self.assertRaisesRegex(Fail, r"status 3(?s:.*)one(?s:.*)two"):
            self.run_with(self.PLACE + "echo one >$out/simout.txt; echo two >$out/simerr.txt; exit 3")

    def test_timeout(self):
        with self.assertRaisesRegex(Fail, "none after 0.2 s"):
            self.run_with("exec sleep 20", timeout=0.2)


class Boot(unittest.TestCase):
    TERMINAL = 'tlb-rs: job start\n{"region":"split_anon","tlb_batch":0,"ns":1}\n{"region":"split_anon","tlb_batch":1,"ns":1}\n'

    def boot(self, terminal, regions=2, **options):
        def run(_, out, *args, **more):
            out.mkdir(parents=True, exist_ok=True)
            (out / "system.terminal").write_text(terminal)
            self.args = args

        with tempfile.TemporaryDirectory() as place, mock.patch.object(gem5, "run", run), \
                mock.patch.object(gem5, "initrd", str.encode):
            found = gem5.boot(None, "vmlinux", "job", 4, Path(place) / "out", regions, **options)
            self.files = {path.name for path in Path(place).iterdir()}
            return found

    def test_records(self):
        self.assertEqual([r["tlb_batch"] for r in self.boot(self.TERMINAL + "tlb-rs: job exit 0\n")], [0, 1])
        self.assertIn("--cores=4", self.args)
        self.assertEqual(self.files, {"out", "out.cpio"})

    def test_disk(self):
        self.boot(self.TERMINAL + "tlb-rs: job exit 0\n", disk="64M")
        self.assertEqual(self.files, {"out", "out.cpio", "out.disk"})
        self.assertIn("--disk=", " ".join(self.args))

    def test_a_job_that_failed_or_has_other_regions(self):
        for terminal, regions in ((self.TERMINAL, 2), (self.TERMINAL + "tlb-rs: job exit 1\n", 2),
                                  (self.TERMINAL + "tlb-rs: job exit 0\n", 4)):
            with self.assertRaises(Fail):
                self.boot(terminal, regions)


if __name__ == "__main__":
    unittest.main()
