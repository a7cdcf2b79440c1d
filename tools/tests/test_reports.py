# SPDX-License-Identifier: GPL-2.0
"""Tests of SUITE=reports that need no guest: what is in HugeTLB pages, how a dump is read, and what is said of it."""

import contextlib
import io
import json
import os
import struct
import tempfile
import unittest
import unittest.mock
from pathlib import Path

from tlbrs.guest import console, guest, hugepages
from tlbrs.suites import reports

LENGTH, COUNT, STEP = 1 << 16, 2, 3


def elf(path, segments):
    """An ELF core of [(physical address, contents)]."""
    table, data, at = b"", b"", 64 + 56 * (len(segments) + 1)
    table += struct.pack("<IIQQQQQQ", 4, 0, 0, 0, 0, 0, 0, 0)     # a note
    for address, contents in segments:
        table += struct.pack("<IIQQQQQQ", 1, 0, at + len(data), 0, address, len(contents), len(contents) + 4096, 0)
        data += contents
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head += struct.pack("<HHIQQQIHHHHHH", 4, 183, 1, 0, 64, 0, 0, 64, 56, len(segments) + 1, 0, 0, 0)
    path.write_bytes(head + table + data)


class Contents(unittest.TestCase):
    def setUp(self):
        tmp = tempfile.TemporaryDirectory()     # pylint: disable=consider-using-with
        self.addCleanup(tmp.cleanup)
        self.tmp = Path(tmp.name)

    def test_a_word_that_changed_is_seen(self):
        file = self.tmp / "file"
        filled = hugepages.fill(file, LENGTH, COUNT, STEP)
        self.assertEqual(filled["filled"], 11)
        # The first, one in the middle and the last of each page, all of which have a word.
        self.assertEqual([number for _, number in filled["where"]], [0, 6, 15, 18, 24, 30])
        self.assertEqual(hugepages.check(file, LENGTH, COUNT, STEP), {"looked": 11, "wrong": 0})
        with open(file, "r+b") as f:
            f.seek(6 * hugepages.BASE + 100)
            f.write(b"x")
        self.assertEqual(hugepages.check(file, LENGTH, COUNT, STEP), {"looked": 11, "wrong": 1})

    def test_words_of_a_core_are_found_missed_or_wrong(self):
        right, other = hugepages.contents(5), hugepages.contents(6)
        elf(self.tmp / "core", [(0x40000000, right + other), (0x80000000, right)])
        where = self.tmp / "where"
        where.write_text(json.dumps({"where": [[0x40000000, 5], [0x40001000, 5], [0x80000000, 5], [0x80001000, 5], [0x1000, 5]]}))
        self.assertEqual(hugepages.core(self.tmp / "core", where), {"core": "core", "found": 2, "wrong": 1, "absent": 2})
        (self.tmp / "core").write_bytes(b"KDUMP   ".ljust(64, b"\0"))
        with self.assertRaises(ValueError):
            hugepages.core(self.tmp / "core", where)

    def test_command_line(self):
        with contextlib.redirect_stdout(io.StringIO()) as out, unittest.mock.patch("sys.argv", [
                "", "fill", str(self.tmp / "file"), str(LENGTH), str(COUNT), str(STEP)]):
            hugepages.main()
        self.assertEqual(json.loads(out.getvalue())["filled"], 11)
        # Of the suite: what the shell gives to the program.
        self.assertTrue(all(count * length // hugepages.BASE // step for _, length, count, step in reports.FILES))


EVERY = sum(3 * count for _, _, count, _ in reports.FILES)
DUMP = [{"loaded": 1}, {"core": "vmcore", "found": EVERY, "wrong": 0, "absent": 0},
        *({"saved": name, "status": 0, "kb": 1} for name in ("all", "kernel", "packed", "dmesg")),
        {"core": "all", "found": EVERY, "wrong": 0, "absent": 0}, {"core": "kernel", "found": 0, "wrong": 0, "absent": EVERY},
        {"marks": 1}]


class Verdicts(unittest.TestCase):
    @staticmethod
    def wrong(records):
        return [what for what, ok in reports.dumped(guest.Result(records=records)).items() if not ok]

    def test_dump(self):
        self.assertEqual(self.wrong(DUMP), [])
        self.assertEqual(len(self.wrong([])), 7)
        for number, change, said in ((0, {"loaded": 0}, "the crash kernel was loaded"),
                                     (1, {"found": EVERY - 1, "wrong": 1}, "HugeTLB pages are where"),
                                     (3, {"status": 1}, "makedumpfile reads"), (6, {"absent": 1}, "makedumpfile keeps"),
                                     (7, {"found": 1, "absent": EVERY - 1}, "makedumpfile leaves out"),
                                     (8, {"marks": 0}, "makedumpfile --dump-dmesg")):
            changed = [r | change if at == number else r for at, r in enumerate(DUMP)]
            self.assertEqual([w.startswith(said) for w in self.wrong(changed)], [True], said)

    def test_what_the_control_cannot_do_is_no_failure(self):
        good = reports.dumped(guest.Result(records=DUMP))
        failed = good | {"makedumpfile reads this kernel": False, "HugeTLB pages are where they were": False}
        said = "packed: calculate_plat_config: PAGE SIZE 0x1000 and VA Bits 52 not supported\n"
        self.assertEqual(reports.excused(failed, good, said), {})
        self.assertEqual(reports.excused(failed, failed, said), {
            "makedumpfile reads this kernel": "Debian's kernel neither: calculate_plat_config: PAGE SIZE 0x1000 and VA Bits "
                                              "52 not supported"})
        nothing = reports.dumped(guest.Result())
        self.assertNotIn("makedumpfile was run", reports.excused(nothing, nothing, ""))

    def test_pools(self):
        pool = {"pools": "filled", "mem_kb": 5, "2048": "90 of 150", "shared": 7, "violations": 0}
        self.assertTrue(reports.same([pool, pool | {"pools": "resumed"}]))
        for change in ({"2048": "89 of 150"}, {"violations": 1}, {"shared": 0}):
            self.assertFalse(reports.same([pool, pool | change]), change)
        self.assertFalse(reports.same([]))
        self.assertTrue(reports.same([pool, pool | {"mem_kb": 6}], "2048", "shared"))


PANIC = """\
[   20.000000] Kernel panic - not syncing: sysrq triggered crash
[   20.000001] CPU: 0 UID: 0 PID: 149 Comm: job
[   20.000002] Call trace:
[   20.000003]  panic+0x68/0x70
[   20.000004] SMP: stopping secondary CPUs
[   20.000005] Starting crashdump kernel...
[   20.000006] Bye!
[    0.000000] Booting Linux on physical CPU 0x0000000000
"""


class Console(unittest.TestCase):
    def judged(self, text, panics):
        """A console that ends, with so many crash kernels."""
        read, write = os.pipe()
        os.write(write, text.encode())
        os.close(write)

        class Qemu:
            """As guest.Machine."""
            def read(self, _):
                return os.read(read, 1 << 16)

            def stop(self):
                pass

        result = guest.Result(shutdown="guest-shutdown")
        guest.watch(Qemu(), 60, result, None, None, panics)
        os.close(read)
        guest.judge(result, True, 60, ["sysrq triggered crash"] if panics else [])
        return result

    def test_a_report_of_the_crash_kernel_is_not_part_of_the_panic(self):
        self.assertEqual(len(console.splats(PANIC)), 1)
        self.assertEqual(self.judged(PANIC + "tlb-rs: job exit 0\n", 1).exit_status, guest.OK)
        self.assertEqual(self.judged(PANIC + "tlb-rs: job exit 3\n", 1).exit_status, guest.FAILED)
        self.assertEqual(self.judged(PANIC + "tlb-rs: job exit 0\n", 0).exit_status, guest.SPLAT)
        late = PANIC + "[    1.000000] WARNING: CPU: 0 at mm/x.c:1 f+0x1/0x2\ntlb-rs: job exit 0\n"
        self.assertEqual(self.judged(late, 1).exit_status, guest.SPLAT)


if __name__ == "__main__":
    unittest.main()
