# SPDX-License-Identifier: GPL-2.0
"""Tests of the comparison, on made-up consoles."""

import contextlib
import io
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

from tlbrs.guest import guest
from tlbrs.selftests import selftests
from tlbrs.selftests.selftests import (SPLAT, STATUS, counted, differences, explain, regressions,
                                       tap, totals)


def result(text, status=0, **more):
    ended = "" if status is None else f"\ntlb-rs: job exit {status}\n"
    return guest.Result(console=f"[    0.100000] ok 9 the kernel\ntlb-rs: job start\n{text}{ended}", job_exit=status,
                        **{"boot_seconds": 2.0, "seconds": 10.0, **more})


def run(text, status=0, **more):
    return selftests.cases(result(text, status, **more), 100)


GOOD = run("TAP version 13\n1..3\nok 1 a\nok 2 b # SKIP no swap\nok 3 c\n")


class Asking(unittest.TestCase):
    """Variables of make that are wrong."""

    def test_arch(self):
        with mock.patch.dict("os.environ", {"ARCH": "riscv"}), mock.patch.object(sys, "argv", ["selftests.py"]), \
                self.assertRaisesRegex(selftests.common.Fail, "ARCH=riscv: one of arm64, x86_64"):
            selftests.parse()

    def test_unknown_test(self):
        """Said before anything is fetched or built for the others."""
        kver = selftests.source.KVERS[0]
        if not selftests.source.cached(kver):
            self.skipTest(f"no source of {kver} here: make source")
        gcc = selftests.initramfs.compiler("arm64")[0]
        if not shutil.which(gcc):
            self.skipTest(f"no {gcc} here")
        with tempfile.TemporaryDirectory() as name, mock.patch.object(selftests, "OUT", Path(name)), \
                mock.patch.object(selftests, "libraries", side_effect=AssertionError), \
                mock.patch.object(selftests.common, "logged", side_effect=AssertionError), \
                self.assertRaisesRegex(selftests.common.Fail, "no mm selftest foo; for arm64 there are .*cow"):
            selftests.build("arm64", kver, ["cow", "foo"])

    def test_make_lists_nothing(self):
        """A tree whose makefiles fail has not skipped all tests."""
        if not shutil.which(selftests.initramfs.compiler("arm64")[0]):
            self.skipTest("no compiler here")
        with tempfile.TemporaryDirectory() as name, mock.patch.object(selftests, "OUT", Path(name)), \
                mock.patch.object(selftests.source, "linux", return_value=Path(name) / "linux"), \
                mock.patch.object(selftests, "copy_tree"), mock.patch.object(selftests.common, "output", return_value=""), \
                self.assertRaisesRegex(selftests.common.Fail, "make cannot list the mm selftests"):
            selftests.build("arm64", "7.3", ["cow"])


class Reading(unittest.TestCase):
    def test_forms_of_a_line(self):
        self.assertEqual(tap("ok 1 plain\n"
                             "not ok 2 - dashed\n"
                             "ok 3 # SKIP before\n"
                             "ok 4 behind # SKIP for a reason\n"
                             "ok 5 # XFAIL known\n"
                             "ok 6 # XPASS unexpected\n"
                             "not ok 7 diagnosed #  status 1\n"
                             "not ok 8 # error odd\n"
                             "    ok 9 nested\n"
                             "# ok 10 a comment\n"
                             "ok, no case\n"
                             "ok 11\n"),
                         {"plain": "pass", "dashed": "fail", "before": "skip", "behind": "skip", "known": "xfail",
                          "unexpected": "pass", "diagnosed": "fail", "odd": "fail", "nested": "pass", "": "pass"})

    def test_equal_names_are_told_apart(self):
        self.assertEqual(tap("ok 1 a\nnot ok 2 a\nok 3 a\n"), {"a": "pass", "a (2)": "fail", "a (3)": "pass"})

    def test_what_a_case_measured_is_not_its_name(self):
        self.assertEqual(tap("ok 1 pages 75 (0.2%), faults 251.\nok 2 100 MiB\n"),
                         {"pages N (N%), faults N.": "pass", "100 MiB": "pass"})

    def test_a_message_tears_a_line(self):
        found = run("ok 1 Split hu[    9.123456][  T77] cow (77): drop_caches: 3\r\nge pages\nok 2 b\n")
        self.assertEqual(found, {"Split huge pages": "pass", "b": "pass", STATUS: "pass"})

    def test_only_the_job_counts(self):
        self.assertEqual(run(""), {STATUS: "pass"})

    def test_status(self):
        for status, what in ((0, "pass"), (4, "skip"), (1, "fail"), (139, "fail"), (137, "fail"), (None, "fail")):
            self.assertEqual(run("text", status)[STATUS], what, status)
        self.assertEqual(run("text", 137, seconds=102.0)[STATUS], "timeout")
        self.assertEqual(run("text", None, timed_out=True)[STATUS], "timeout")

    def test_reports_of_two_boots_have_one_name(self):
        first, second = (run("", splats=["------------[ cut here ]------------\n"
                                         f"WARNING: mm/rmap.c:{n} at f+0x{n}, CPU#{n}: cow/{n}\nModules linked in:"])
                         for n in (17, 2345))
        self.assertEqual(first, second)
        self.assertEqual(list(first)[1], SPLAT + "WARNING: mm/rmap.c:N at f+N, CPU#N: cow/N")

    def test_with_migrc(self):
        summary = {"lost_declares": 0, "errors": 0, "declares": 9}
        stale = {"oracle": "stale", "store": False, "state": "FREE"}
        end = "ok 1 a\nmigrc_deferred 7\nmigrc_held {}\n"
        for held, more, bad in ((0, {}, None), (3, {}, selftests.HELD),
                                (0, {"oracle_errors": [stale]}, selftests.ORACLE + "stale load, FREE"),
                                (0, {"oracle_summary": None}, selftests.ORACLE + "did not see all"),
                                (0, {"oracle_summary": summary | {"lost_declares": 1}},
                                 selftests.ORACLE + "did not see all"),
                                (0, {"oracle_summary": summary | {"declares": 0}},
                                 selftests.ORACLE + "did not see all")):
            found = selftests.cases(result(end.format(held), **{"oracle_summary": summary, **more}), 100, True, True)
            self.assertEqual(found, {"a": "pass", STATUS: "pass"} | ({bad: "fail"} if bad else {}))
        # The job did not come to its end, though there was time.
        self.assertIn(selftests.HELD, selftests.cases(result("ok 1 a\n", oracle_summary=summary), 100, True, True))


class Comparing(unittest.TestCase):
    def worse(self, ours, stock=GOOD):
        return list(regressions([stock], [ours]))

    def test_same_in_another_order(self):
        ours = run("ok 1 c\nok 2 a\nok 3 # SKIP b\n")
        self.assertEqual((self.worse(ours), differences([GOOD], [ours])), ([], {}))

    def test_pass_that_fails(self):
        self.assertEqual(self.worse(run("ok 1 a\nok 2 # SKIP b\nnot ok 3 c\n", 1)), [STATUS, "c"])

    def test_pass_that_is_missing(self):
        self.assertEqual(self.worse(run("ok 1 a\nok 2 # SKIP b\n")), ["c"])

    def test_pass_that_skips(self):
        self.assertEqual(self.worse(run("ok 1 a\nok 2 # SKIP b\nok 3 # SKIP c\n")), ["c"])
        self.assertEqual(self.worse(run("", 4), run("", 0)), [STATUS])

    def test_pass_that_fails_as_expected(self):
        ours = run("ok 1 # XFAIL a\nok 2 # SKIP b\nok 3 c\n")
        self.assertEqual((self.worse(ours), differences([GOOD], [ours])), ([], {"a": "pass -> xfail"}))
        self.assertEqual(self.worse(GOOD | {"a": "fail"}, ours), ["a"])

    def test_skip_that_passes_or_fails(self):
        ours = run("ok 1 a\nok 2 b\nok 3 c\n")
        self.assertEqual((self.worse(ours), differences([GOOD], [ours])), ([], {"b": "skip -> pass"}))
        self.assertEqual(self.worse(run("ok 1 a\nnot ok 2 b\nok 3 c\n")), ["b"])

    def test_failure_of_stock(self):
        stock = run("not ok 1 a\nok 2 b\n", 1)
        self.assertEqual(self.worse(stock, stock), [])
        self.assertEqual(self.worse(run("ok 1 b\n", 1), stock), [])
        self.assertEqual(self.worse(run("ok 1 a\nok 2 b\n"), stock), [])

    def test_new_failure(self):
        self.assertEqual(self.worse(GOOD | {"d": "fail"}), ["d"])
        self.assertEqual(self.worse(GOOD | {"d": "pass"}), [])

    def test_plain_program(self):
        self.assertEqual(self.worse(run("words", 139), run("words")), [STATUS])

    def test_report_of_the_kernel(self):
        bad = run("ok 1 a\nok 2 # SKIP b\nok 3 c\n", splats=["WARNING: here"])
        self.assertEqual(self.worse(bad), [SPLAT + "WARNING: here"])
        self.assertEqual(self.worse(GOOD, bad), [])
        self.assertEqual(self.worse(bad, bad), [])

    def test_timeout(self):
        late = run("ok 1 a\n", 137, seconds=110.0)
        self.assertEqual(self.worse(late), [STATUS, "c"])
        # On both: what was not reached is not compared, what was reached is.
        later = run("ok 1 a\nok 2 b\n", 137, seconds=110.0)
        self.assertEqual(self.worse(late, later), [])
        self.assertEqual(self.worse(later | {"b": "fail"}, late), ["b"])
        # On stock only.
        self.assertEqual(self.worse(GOOD, late), [])

    def test_once_in_several_runs_does_not_count(self):
        bad = GOOD | {"c": "fail"}
        self.assertEqual(counted([GOOD], [bad]), ["c"])
        self.assertEqual(counted([GOOD] * 4, [bad, GOOD, GOOD, GOOD]), [])
        self.assertEqual(counted([GOOD] * 4, [bad, GOOD, GOOD, bad]), [])
        self.assertEqual(counted([GOOD] * 4, [bad] * 4), ["c"])
        self.assertEqual(counted([GOOD] * 10, [bad] * 3 + [GOOD] * 7), [])
        self.assertEqual(counted([GOOD] * 10, [bad] * 4 + [GOOD] * 6), ["c"])
        self.assertEqual(counted([GOOD, bad], [bad, bad]), [])

    def test_a_report_is_no_chance(self):
        for name in (SPLAT + "WARNING: here", selftests.ORACLE + "stale load, FREE", selftests.HELD):
            bad = GOOD | {name: "fail"}
            self.assertEqual(counted([GOOD] * 4, [GOOD, bad, GOOD, GOOD]), [name])
            # The other has it, too: one more may be chance.
            self.assertEqual(counted([GOOD, GOOD, bad, GOOD], [GOOD, bad, bad, GOOD]), [])

    def test_chance(self):
        # Fisher's own example, the lady tasting tea: all four cups right, three of four.
        for was, now, expected in (0, 4, 1 / 70), (1, 3, 17 / 70), (2, 2, 53 / 70):
            self.assertAlmostEqual(selftests.chance(was, now, 4), expected)

    def test_racy_on_stock_but_more_often_here_counts(self):
        bad = GOOD | {"c": "fail"}
        self.assertEqual(counted([GOOD] * 9 + [bad], [bad] * 6 + [GOOD] * 4), ["c"])
        self.assertEqual(counted([bad, GOOD, GOOD, bad], [bad, bad, bad, GOOD]), [])
        self.assertEqual(counted([bad] * 4, [bad] * 4), [])

    def test_lines(self):
        runs = {"stock": [GOOD] * 4, "tlb-rs": [GOOD | {"a": "fail", "b": "pass", "c": now} for now in
                                                ("fail", "pass", "pass", "pass")]}
        lines = [" ".join(line.split()) for line in explain(runs, 2)]
        self.assertEqual(lines, ["FAIL a: pass, pass, pass, pass -> fail, fail, fail, fail",
                                 "once c: pass, pass, pass, pass -> fail, pass, pass, pass", "and 1 more"])

    def test_totals(self):
        self.assertEqual(totals(GOOD).split(), ["2", "0", "1", "0"])
        self.assertEqual(totals(run("", 4)).split(), ["0", "0", "1", "0"])
        self.assertEqual(totals(run("ok 1 a\n", 139)).split(), ["1", "0", "0", "0", "status"])
        self.assertEqual(totals(run("", None, timed_out=True)).split(), ["0", "1", "0", "0", "timeout"])
        self.assertEqual(totals(GOOD | {SPLAT + "x": "fail"}).split(), ["2", "0", "1", "0", "report"])


class ManyCases(unittest.TestCase):
    """Of which some are bad by chance."""

    def test_many_racy_cases(self):
        racy = GOOD | {"c": "fail"}
        self.assertEqual(counted([GOOD] * 10, [racy] * 4 + [GOOD] * 6), ["c"])
        racy |= {"a": "fail"}
        self.assertEqual(counted([GOOD] * 10, [racy] * 4 + [GOOD] * 6), [])
        self.assertEqual(counted([GOOD] * 10, [racy] * 6 + [GOOD] * 4), ["a", "c"])

    def test_many_cases_that_always_fail(self):
        """A crash: 1 in 924 is the smallest probability of 6 runs each."""
        names = [f"case {n}" for n in range(100)]
        good, bad = {STATUS: "pass"} | dict.fromkeys(names, "pass"), {STATUS: "fail"} | dict.fromkeys(names, "fail")
        self.assertEqual(set(counted([good] * 6, [bad] * 6)), {STATUS, *names})
        # The test printed nothing.
        self.assertEqual(set(counted([good] * 6, [{STATUS: "fail"}] * 6)), {STATUS, *names})
        # Not before all repetitions.
        self.assertEqual(counted([good] * 5, [bad] * 5), [])
        # What is bad now and then may be chance. What always fails neither makes it count nor hides it.
        for times, counts in ((2, False), (5, True)):
            racy = [bad] * times + [bad | {"case 7": "pass"}] * (6 - times)
            self.assertEqual("case 7" in counted([good] * 6, racy), counts)
        # Neither was ever as bad on stock as it always is here.
        for was in ("pass", "skip"):
            self.assertIn("case 7", counted([good] * 5 + [good | {"case 7": was}], [bad] * 6))
        self.assertNotIn("case 7", counted([good] * 2 + [good | {"case 7": "fail"}] * 4, [bad] * 6))

    def test_many_racy_cases_of_a_hundred(self):
        names = [f"case {n}" for n in range(100)]
        good = {STATUS: "pass"} | dict.fromkeys(names, "pass")
        ours = [good | {name: "fail" for k, name in enumerate(names) if (k + n) % 2} for n in range(6)]
        self.assertEqual(counted([good] * 6, ours), [])


class Moving(unittest.TestCase):
    """MOVE=1 moved something."""
    RECORD = '{"test":"migrc_mover","seconds":9,"sweeps":%d,"calls":%d,"slowest_ms":1,"left":0,"gone":0,"worst":-1}\n'

    def unmoved(self, *boots):
        """What is said of these consoles of the boots of one command on stock; of the other side all is well."""
        sides = {"stock": selftests.Side(""), "tlb-rs": selftests.Side("")}
        sides["tlb-rs"].moves = {"cow": [{"sweeps": 99, "calls": 9, "pages": 9}]}
        options = types.SimpleNamespace(arch="arm64", limit=1, move=True)
        for text, status in boots:
            with mock.patch.object(guest, "boot", lambda *_, now=result(text, status), **__: now):
                selftests.boot(options, sides["stock"], "stock", "cow", Path("cow"), None)
        return selftests.unmoved(sides)

    def test_moved(self):
        good = self.RECORD % (99, 9) + "pgmigrate_success 7\n"
        self.assertEqual(self.unmoved((good, 0)), [])
        self.assertEqual(self.unmoved((good.replace(',"calls"', '[    9.123456] cow: x\n,"calls"'), 0)), [])
        # One that is over at once, or a guest that hangs.
        self.assertEqual(self.unmoved((good, 0), (self.RECORD % (2, 0), 0), ("", None)), [])

    def test_nothing_moved(self):
        all_ = "all commands: no process was met on stock", "all commands: no page was moved on stock"
        self.assertEqual(self.unmoved(("ok 1 a\n", 0)),
                         ["cow: no record of migrc_mover on stock, see its console", *all_])
        self.assertEqual(self.unmoved((self.RECORD % (99, 0), 0)),
                         ["cow: migrc_mover met no process of it on stock", *all_])
        self.assertEqual(self.unmoved((self.RECORD % (99, 9) + "pgmigrate_success 0\n", 0)), [all_[1]])
        self.assertEqual(self.unmoved((self.RECORD % (2, 0), 0)), [*all_])

    def test_job(self):
        jobs = []
        with mock.patch.object(guest, "boot", lambda *_, job, **__: jobs.append(job) or result("")):
            for move in (False, True):
                options = types.SimpleNamespace(arch="arm64", limit=1, move=move)
                selftests.boot(options, selftests.Side(""), "stock", "cow -x", Path("cow"), None)
        self.assertNotIn("mover", jobs[0])
        self.assertRegex(jobs[1], r"(?s)migrc_mover --name cow .*status=\$\?\nkill \$mover .*\nwait \$mover\n.*"
                                  r"exit \$status$")
        for job in jobs:
            subprocess.run(["sh", "-n"], input=job, text=True, check=True)


class Sides(unittest.TestCase):
    def test_both_are_as_slow(self):
        """Else a race that the emulator's speed decides counts as worse."""
        for migrc in (False, True):
            options = types.SimpleNamespace(arch="arm64", stock="a", ours="b", hvo=False, migrc=migrc, move=False, variant=None)
            with mock.patch.object(selftests.common, "logged"):
                was, now = selftests.choose(options).values()
            self.assertEqual((was.oracle, now.oracle), (migrc, migrc))
            self.assertEqual((was.migrc, now.migrc), (False, migrc))

    def test_of_one_image(self):
        options = types.SimpleNamespace(arch="arm64", kver="7.3", hvo=False, migrc=False, move=True, variant="16k",
                                        ours=None)
        with mock.patch.object(selftests.measure, "kernel", lambda *which: which):
            was, now = selftests.choose(options).values()
            self.assertEqual((was.kernel, now.kernel), (("arm64", "16k", "7.3"),) * 2)
            options.ours = "Image"
            self.assertEqual({side.kernel for side in selftests.choose(options).values()}, {"Image"})
        self.assertEqual((was.setup[:6], now.setup[:6]), ("echo 0", "echo 1"))


class NothingGivenBack(unittest.TestCase):
    def status(self, said):
        with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()) as out, \
                mock.patch.object(selftests, "OUT", Path(name)), \
                mock.patch.object(selftests, "build", lambda *_: {"cow": Path("cow")}), \
                mock.patch.object(selftests.measure, "kernel", lambda *_: Path("image")), \
                mock.patch.object(sys, "argv", ["selftests.py", "--hvo", "cow"]), \
                mock.patch.object(guest, "boot", lambda *_, **__: result(f"ok 1 a\n{said}\n")):
            return selftests.main(), "no struct page was given back" in out.getvalue()

    def test_the_run_fails(self):
        self.assertEqual(self.status("cpu_pause 0\nhvo_pte_updates 0"), (1, True))
        self.assertEqual(self.status("cpu_pause 2\nhvo_pte_updates 7"), (0, False))


class Repeating(unittest.TestCase):
    def boots(self, ours, stock=("ok 1 a\n",) * 6):
        """Number of runs and what counts, with these consoles of the boots on tlb-rs."""
        consoles = {"stock": iter(stock), "tlb-rs": iter(ours)}
        with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()), \
                mock.patch.object(selftests, "OUT", Path(name)), \
                mock.patch.object(guest, "boot", lambda kernel, *_, **__: result(next(consoles[kernel]))):
            options = types.SimpleNamespace(arch="arm64", limit=100, migrc=False, move=False, hvo=False, variant=None)
            sides = {name: selftests.Side(name) for name in consoles}
            runs = selftests.compare(options, sides, "cow -x", Path("cow"))
        return len(runs["tlb-rs"]), counted(*runs.values())

    def test_good_once_is_enough(self):
        self.assertEqual(self.boots(["ok 1 a\n"]), (1, []))

    def test_regression(self):
        self.assertEqual(self.boots(["not ok 1 a\n"] * 4), (4, ["a"]))

    def test_chance(self):
        self.assertEqual(self.boots(["", *["ok 1 a\n"] * 5]), (6, []))

    def test_even(self):
        self.assertEqual(self.boots(["", "ok 1 a\n"], ["ok 1 a\n", ""]), (2, []))

    def test_the_test_did_not_start(self):
        with self.assertRaises(selftests.common.Fail), mock.patch.object(
                guest, "boot", lambda *_, **__: result("", 125)):
            options = types.SimpleNamespace(arch="arm64", limit=1, move=False, hvo=False, variant=None)
            selftests.boot(options, selftests.Side(""), "tlb-rs", "cow", Path("cow"), None)
