# SPDX-License-Identifier: GPL-2.0
"""Tests of the soak of tiers that need no guest: its plan, and what is read from a console."""

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from tests.test_soak import BEGIN, END, result_of
from tlbrs.guest import initramfs
from tlbrs.soak import boots, soak, tiers

GOOD = BEGIN + """\
{"test":"migrc_tier_stress","seconds":60,"lru":"%s","flip":7,"offline":1,"refused":2,"pgdemote_kswapd":5,\
"migrc_deferred_demote":%d,"pgpromote_success":%d}
{"soak":"end","what":"migrc_tier_stress","status":%d}
{"soak":"end","what":"stress-ng","status":0,"seconds":61}
{"soak":"bogo","stressor":"vm","ops":3}
"""
ENOUGH = GOOD % ("classic", 17000, 3400, 0)


def boot(text, exit_status=0, **more):
    return tiers.summary(result_of(text, exit_status, **more))


class Plan(unittest.TestCase):
    def test_stressors(self):
        self.assertEqual(set(tiers.STRESSORS) - set(soak.STRESSORS), set())

    def test_job(self):
        text = tiers.job("arm64", 240, 1, 0)
        rounds = [line.split()[1:4] for line in text.splitlines() if line.startswith("round ")]
        self.assertEqual(rounds, [["60", "classic", "''"], ["60", "mglru", "''"],
                                  ["60", "classic", "'--toggle'"], ["60", "mglru", "'--toggle'"]])
        # The next boot goes on where this one ends.
        again = [line.split()[2] for line in tiers.job("arm64", 120, 1, 3).splitlines() if line.startswith("round ")]
        self.assertEqual(again, ["mglru", "classic"])
        self.assertNotIn("TLB_SKIP", text)
        self.assertIn("\nexport TLB_SKIP=flush\n", tiers.job("arm64", 60, 1, 0, "flush"))
        self.assertEqual(subprocess.run(["sh", "-n"], input=text, text=True).returncode, 0)

    def test_asked(self):
        with mock.patch.object(sys, "argv", ["soak.py", "--without", "flush"]), \
                self.assertRaisesRegex(soak.common.Fail, "WITHOUT= is for TIERS=1"):
            soak.parse()
        for environment, asked in (({"TIERS": "1", "WITHOUT": "flush"}, (True, "flush")), ({"TIERS": "0"}, (False, None)),
                                   ({}, (False, None))):
            with mock.patch.dict("os.environ", environment), mock.patch.object(sys, "argv", ["soak.py"]):
                options = soak.parse()
                self.assertEqual((options.tiers, options.without), asked)


class Reading(unittest.TestCase):
    def test_good(self):
        record = boots.merge([boot(ENOUGH + END % 0), boot(GOOD % ("mglru", 17000, 3400, 0) + END % 0)])
        self.assertEqual(record["failures"], [])
        self.assertEqual((record["stressed"], record["rounds"], record["lru"]), (120, 2, {"classic": 1, "mglru": 1}))
        self.assertEqual(tiers.too_little("arm64", record), [])
        text = "\n".join(tiers.explain("arm64", {"seed": 1, **record}))
        self.assertIn("demoted: 34000 pages without a flush, of 10 by kswapd", text)
        self.assertIn("promoted: 6800 pages", text)
        self.assertIn("demotion off and on 14 times; memory blocks: 2 were offline, 4 could not", text)

    def test_too_little(self):
        record = boots.merge([boot(GOOD % ("classic", 16000, 3000, 0) + END % 0)])
        self.assertEqual(tiers.too_little("arm64", record), ["migrc_deferred_demote 16000, which is less than 16667",
                                                             "pgpromote_success 3000, which is less than 3333"])
        self.assertEqual(tiers.too_little("x86_64", record), [])
        record = boots.merge([boot(GOOD % ("classic", 0, 0, 0) + END % 0)])
        self.assertEqual(len(tiers.too_little("x86_64", record)), 2)

    def test_failures(self):
        wrong = "not ok 4 stress follow: 9 done, 0 refused, 1 wrong\n"
        for text, says in ((wrong + GOOD % ("mglru", 1, 1, 1) + END % 0, "stress follow: 9 done, 0 refused, 1 wrong"),
                           (GOOD % ("mglru", 1, 1, 1) + END % 0, "migrc_tier_stress: status 1"),
                           (GOOD % ("mglru", 1, 1, 4) + END % 0, "migrc_tier_stress: status 4"),
                           (ENOUGH + END % 3, "3 pages in the ledger after vm.migrc_enable=0"),
                           (ENOUGH + BEGIN + END % 0, "1 of 2 rounds"), (END % 0, "0 of 0 rounds"),
                           ("ok 11 # SKIP stress hotplug: no memory blocks\n" + ENOUGH + END % 0,
                            "skipped: stress hotplug: no memory blocks"),
                           ("[    9.000000] vm invoked oom-killer: gfp_mask=0x0\n" + ENOUGH + END % 0,
                            "vm invoked oom-killer: gfp_mask=0x0"),
                           ("stress-ng: fail:  [9] vm: wrong\n" + ENOUGH + END % 0, "stress-ng: fail:  [9] vm: wrong"),
                           ("[    9.000000] BUG: Bad page state in process vm\n" + ENOUGH + END % 0,
                            "BUG: Bad page state in process vm")):
            with self.subTest(says):
                self.assertEqual(boot(text)["failures"], [says])
        self.assertIn('oracle: {"va": 1}', boot(ENOUGH + END % 0, oracle_errors=[{"va": 1}])["failures"])

    def test_noticed(self):
        self.assertEqual(tiers.noticed(result_of(ENOUGH + END % 0)), "")
        self.assertEqual(tiers.noticed(result_of(ENOUGH + END % 0, oracle_errors=[{"va": 1}])), "the oracle has 1 errors")
        wrong = "not ok 4 stress follow: 9 done, 0 refused, 1 wrong\n"
        self.assertEqual(tiers.noticed(result_of(wrong + ENOUGH + END % 0)), "stress follow: 9 done, 0 refused, 1 wrong")
        starved = "not ok 4 stress follow: 0 done, 0 refused, 0 wrong\n"
        self.assertEqual(tiers.noticed(result_of(starved + ENOUGH + END % 0)), "")


class Running(unittest.TestCase):
    """run() with boots that have been."""

    def setUp(self):
        self.out = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.out / "Image").touch()
        self.enterContext(mock.patch.object(initramfs, "build", lambda arch: self.out / "Image"))

    def run_with(self, *results, **more):
        options = argparse.Namespace(**{"arch": "arm64", "minutes": 2, "seed": 1, "without": None, **more})
        with mock.patch.object(tiers, "boot", side_effect=results) as called, \
                contextlib.redirect_stdout(io.StringIO()) as said:
            status = tiers.run(options, self.out / "Image", self.out)
            place = self.out / "arm64-tiers.json"
            return status, said.getvalue(), json.loads(place.read_text()) if place.exists() else None, called.call_args_list

    def test_goes_on(self):
        """After an interruption with the boots that are missing; anew with another kernel."""
        good = result_of(ENOUGH + END % 0)
        for another, left in ((False, 1), (True, 2)):
            with self.assertRaises(KeyboardInterrupt):
                self.run_with(good, KeyboardInterrupt, minutes=30)
            if another:
                (self.out / "Image").write_text("another", encoding="ascii")
            _, _, record, calls = self.run_with(*[good] * left, minutes=30, seed=None)
            self.assertEqual((len(calls), record["boots"]), (left, 2))
            self.assertEqual(calls[-1].args[4], record["rounds"] // 2)
        self.assertEqual([], list(self.out.glob("*state*")))

    def test_passed(self):
        status, text, record, calls = self.run_with(result_of(ENOUGH + END % 0))
        self.assertEqual((status, record["did"]["migrc_deferred_demote"], record["boots"]), (0, 17000, 1))
        self.assertIn("soak passed; ", text)
        self.assertEqual(calls[0].args[2:5], (120, 1, 0))

    def test_failed(self):
        status, text, record, _ = self.run_with(result_of(GOOD % ("classic", 5, 3400, 0) + END % 0))
        self.assertEqual((status, record["failures"]), (1, ["migrc_deferred_demote 5, which is less than 16667"]))
        self.assertIn("soak FAILED", text)

    def test_without(self):
        seen, unseen = (result_of(ENOUGH + END % 0, oracle_errors=errors) for errors in ([{"va": 1}], []))
        status, text, _, calls = self.run_with(seen, without="flush")
        self.assertEqual((status, calls[0].args[6]), (0, "flush"))
        self.assertIn("without flush, in 60 s: the oracle has 1 errors", text)
        status, text, _, _ = self.run_with(unseen, without="flush")
        self.assertEqual(status, 1)
        self.assertIn("FAILED: nothing was noticed without flush", text)


if __name__ == "__main__":
    unittest.main()
