# SPDX-License-Identifier: GPL-2.0
"""Tests of what needs no guest: the plan, and what is read from a console."""

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from tlbrs.guest import console, guest
from tlbrs.soak import soak

BEGIN = '{"soak":"begin","seconds":60}\n'
GOOD = BEGIN + """\
not ok 4 stress split: 0 done, 3 refused, 0 wrong
{"test":"migrc_mover","seconds":70,"sweeps":9,"calls":50,"left":1,"gone":0,"worst":%d}
{"soak":"end","what":"stress-ng","status":%d,"seconds":61}
{"soak":"end","what":"migrc_stress","status":0}
{"soak":"end","what":"tlb_batch_stress","status":%d}
{"soak":"end","what":"migrc_mover","status":0}
{"soak":"bogo","stressor":"vm","ops":%d}
"""
# One line of hvo_pool, as the harness prints it.
STORM = """\
TAP version 13
1..1
# 41 steps of seed 7, the others stopped 3 times, 90 young entries
ok 1 hvo_pool_on_demand.storm
{"soak":"end","what":"storm","status":0}
{"soak":"vmstat","cpu_pause":1,"hvo_pte_updates":4095}
"""
END = '{"soak":"vmstat","migrc_deferred":9,"migrc_held":%d}\n{"soak":"stats","denied writable":5,"drain age":2}\n'


def result_of(text, exit_status=0, **more):
    found = "tlb-rs: job start\n" + text + f"\ntlb-rs: job exit {exit_status}\n"
    result = guest.Result(console="[    0.100000] the kernel\n" + found, job_exit=exit_status, seconds=70.4,
                          oracle_summary={"accesses": 1000, "errors": 0}, **more)
    result.records, result.problems = console.records(result.console)
    result.ktap, result.splats = console.ktap(result.console), console.splats(result.console)
    return result


def boot(text, exit_status=0, arch="arm64", **more):
    return soak.summary(arch, result_of(text, exit_status, **more))


def storm(text, exit_status=0, **more):
    return soak.storm_summary(result_of(text, exit_status, **more))


class Plan(unittest.TestCase):
    def test_boots(self):
        self.assertEqual(soak.lengths(1), [1])
        self.assertEqual(soak.lengths(15), [15])
        self.assertEqual(soak.lengths(16), [8, 8])
        self.assertEqual(soak.lengths(100), [15, 15, 14, 14, 14, 14, 14])

    def test_rounds(self):
        self.assertEqual(soak.rounds(60, 90), [60])
        self.assertEqual(soak.rounds(901, 90), [91] + 9 * [90])

    def test_draw(self):
        drawn = soak.draw(1, 0, 20, 7)
        self.assertEqual(drawn, soak.draw(1, 0, 20, 7))
        self.assertNotEqual(drawn, soak.draw(2, 0, 20, 7))
        self.assertEqual(drawn[6:], soak.draw(1, 6, 14, 7))
        for hand in drawn:
            self.assertEqual(len(set(hand)), 7)
        seen = [name for hand in drawn[:-(-len(soak.STRESSORS) // 7)] for name in hand]
        self.assertEqual(set(seen), set(soak.STRESSORS))

    def test_job(self):
        text = soak.job("arm64", 120, 1, 3)
        self.assertIn("LENGTH=120 ", text)
        self.assertRegex(text, r"\nround 60 '' --\S+ 1 ")
        self.assertRegex(text, r"\nround 60 '--toggle' --\S+ \d ")


    def test_storm(self):
        text = soak.storm_job(1800, 7)
        self.assertIn("\nTLB_SECONDS=1800 TLB_SEED=7 hvo_pool -t storm\nsay end ", text)
        # Nothing else may change pools, or memory that has struct pages.
        for other in ("stress-ng", "migrc_", "nr_hugepages", "/mnt"):
            self.assertNotIn(other, text.replace("/^(migrc_", "/^("))
        self.assertEqual(subprocess.run(["sh", "-n"], input=text, text=True).returncode, 0)


class Storm(unittest.TestCase):
    """What one says."""

    def test_good(self):
        self.assertEqual(storm(STORM), {"seconds": 70, "steps": 41, "stopped": 3, "young": 90, "reports": 0, "failures": [],
                                        "vmstat": {"cpu_pause": 1, "hvo_pte_updates": 4095}})

    def test_failures(self):
        end = '"storm","status":'
        for text, says in ((STORM.replace("ok 1 ", "not ok 1 ").replace(end + "0", end + "1"), "hvo_pool_on_demand.storm"),
                           (STORM.replace("storm\n", "storm # SKIP why\n", 1), "skipped: hvo_pool_on_demand.storm # SKIP why"),
                           (STORM.replace(end + "0", end + "139"), "storm: status 139"),
                           (STORM.replace(end + "0", end + "1"), "storm: status 1"),
                           (STORM.replace("41 steps", "0 steps"), "1 storms, 1 ends"),
                           (STORM.replace("# 41", "# now 41"), "0 storms, 1 ends"),
                           (STORM.replace('"end"', '"never"'), "1 storms, 0 ends"),
                           (STORM.replace("4095", "0"), "no entry changed"),
                           ("[    9.000000] sh invoked oom-killer: gfp_mask=0x0\n" + STORM,
                            "sh invoked oom-killer: gfp_mask=0x0"),
                           ("[    9.000000] BUG: Bad page state in process sh\n" + STORM, "BUG: Bad page state in process sh")):
            with self.subTest(says):
                self.assertEqual(storm(text)["failures"], [says])
        self.assertEqual(storm(STORM, 3)["failures"], ["the job ended with status 3"])
        # It hangs.
        self.assertIn("0 storms, 0 ends", storm("TAP version 13\n", None)["failures"])
        # It does not start: all cases are skipped, and the status says so, too.
        skipped = storm('1..0 # SKIP no\nok 1 # SKIP why\n{"soak":"end","what":"storm","status":4}\n')["failures"]
        self.assertEqual(skipped, ["skipped: why", "0 storms, 1 ends"])
        self.assertIn("storm: status 4", storm('{"soak":"end","what":"storm","status":4}\n')["failures"])


class Reading(unittest.TestCase):
    def test_good(self):
        record = boot(GOOD % (7, 0, 1, 5) + GOOD % (3, 4, 0, 6) + END % 0)
        self.assertEqual(record["failures"], [])
        self.assertEqual(record["notes"][0], "no time: stress split: 0 done, 3 refused, 0 wrong")
        self.assertIn("status 4", record["notes"][1])
        self.assertEqual((record["bogo_ops"], record["worst_held"]), ({"vm": 11}, 7))
        self.assertEqual((record["rounds"], record["oracle_accesses"]), (2, 1000))

    def test_failures(self):
        wrong = "not ok 2 stress fork: 9 done, 0 refused, 1 wrong\n"
        for text, says in ((GOOD % (0, 2, 0, 1) + END % 0, "stress-ng: status 2"),
                           (wrong + GOOD % (0, 0, 1, 1) + END % 0, "stress fork: 9 done, 0 refused, 1 wrong"),
                           (GOOD.replace("not ok", "ok") % (0, 0, 1, 1) + END % 0, "tlb_batch_stress: status 1"),
                           (GOOD % (0, 0, 137, 1) + END % 0, "tlb_batch_stress: status 137"),
                           (GOOD % (0, 0, 0, 1) + END % 3, "3 pages in the ledger after vm.migrc_enable=0"),
                           (END % 0, "0 of 0 rounds"),
                           (GOOD % (0, 0, 0, 1) + BEGIN + END % 0, "1 of 2 rounds"),
                           ("[    9.000000] vm invoked oom-killer: gfp_mask=0x0\n" + GOOD % (0, 0, 0, 1) + END % 0,
                            "vm invoked oom-killer: gfp_mask=0x0"),
                           ("stress-ng: fail:  [9] vm: wrong\n" + GOOD % (0, 0, 0, 1) + END % 0,
                            "stress-ng: fail:  [9] vm: wrong"),
                           ("[    9.000000] BUG: Bad page state in process vm\n" + GOOD % (0, 0, 0, 1) + END % 0,
                            "BUG: Bad page state in process vm")):
            with self.subTest(says):
                self.assertEqual(boot(text)["failures"], [says])
        self.assertIn("stress-ng did not end 99 s after its start and the grace",
                      boot('{"soak":"late","seconds":99}\n', 124)["failures"])
        self.assertIn('oracle: {"va": 1}', boot(GOOD % (0, 0, 0, 1) + END % 0, oracle_errors=[{"va": 1}])["failures"])

    def test_skipped(self):
        end = '{"soak":"end","what":"%s","status":4}\n'
        good = GOOD % (0, 0, 0, 1) + END % 0
        for text, arch, failures in ((end % "hvo_pool", "x86_64", []),
                                     (end % "hvo_pool", "arm64", ["hvo_pool: skipped"]),
                                     (end % "migrc_stress", "x86_64", ["migrc_stress: skipped"]),
                                     ("ok 8 # SKIP stress toggle: not asked for\n", "arm64", []),
                                     ("ok 5 # SKIP stress pageout: no swap\n", "arm64",
                                      ["skipped: stress pageout: no swap"]),
                                     ("ok 1 hvo_pool.churn # SKIP why\n", "arm64",
                                      ["skipped: hvo_pool.churn # SKIP why"])):
            with self.subTest(text, arch=arch):
                self.assertEqual(boot(text + good, arch=arch)["failures"], failures)

    def test_poison(self):
        text = ("[    9.000000] Memory failure: 0x4: Sending SIGBUS to stress-ng-madvi:238 due to hardware memory\n"
                "stress-ng: debug: [9] process [238] (madvise) terminated on signal: 7 (Bus error)\n")
        died = "stress-ng: debug: [9] process [239] (stress-ng-vm) terminated on signal: {}\n"
        for more, failures in (("", []), (died.format(9), []), (died.format(11), ["stress-ng: status 2"])):
            self.assertEqual(boot(text + more + GOOD % (0, 2, 0, 1) + END % 0)["failures"], failures)
        failed = "stress-ng: fail:  [9] vm: wrong"
        self.assertIn(failed, boot(text + failed + "\n" + GOOD % (0, 2, 0, 1) + END % 0)["failures"])

    def test_merge(self):
        one, two = boot(GOOD % (7, 0, 0, 5) + END % 0), boot(GOOD % (3, 0, 0, 6) + END % 2)
        total = soak.merge([one, two])
        self.assertEqual((total["seconds"], total["worst_held"], total["bogo_ops"]), (140, 7, {"vm": 11}))
        self.assertEqual((total["vmstat"]["migrc_deferred"], total["stats"]["denied writable"]), (18, 10))
        text = "\n".join(soak.explain("arm64", {"boots": 2, "seed": 1, **total}))
        self.assertIn("FAIL: 2 pages in the ledger", text)
        self.assertIn("denied: writable 10", text)


class Asking(unittest.TestCase):
    def test_arch(self):
        with mock.patch.dict("os.environ", {"ARCH": "riscv"}), mock.patch.object(sys, "argv", ["soak.py"]), \
                self.assertRaisesRegex(soak.common.Fail, "ARCH=riscv: one of arm64, x86_64"):
            soak.parse()


class Running(unittest.TestCase):
    """main() with guest.boot() replaced."""

    def run_main(self, *boots, arch="arm64", storms=None):
        with mock.patch.object(soak, "boot", side_effect=boots) as called, \
             mock.patch.object(soak, "storm", side_effect=storms, return_value=storm(STORM)) as self.storms, \
             mock.patch.object(soak, "stress_ng"), mock.patch.object(soak, "OUT", self.out), \
             mock.patch.object(soak.measure, "make"), \
             contextlib.redirect_stdout(io.StringIO()) as said, \
             mock.patch.object(sys, "argv", ["soak.py", "--minutes", "30", "--seed", "5", "--arch", arch,
                                               "--kernel", str(self.kernel)]):
            return soak.main(), called.call_count, said.getvalue()

    def test_goes_on(self):
        good = boot(GOOD % (7, 0, 0, 5) + END % 0)
        with tempfile.TemporaryDirectory() as name:
            self.out = Path(name)
            self.kernel = self.out / "Image"
            self.kernel.touch()
            with self.assertRaises(KeyboardInterrupt):
                self.run_main(good, KeyboardInterrupt)
            self.assertEqual(self.run_main(good)[:2], (0, 1))
            self.assertEqual(self.run_main(good, good)[:2], (0, 2))
            # Another kernel: what was done with the old one does not count.
            with self.assertRaises(KeyboardInterrupt):
                self.run_main(good, KeyboardInterrupt)
            self.kernel.write_text("new")
            status, count, text = self.run_main(boot(GOOD % (0, 2, 0, 1) + END % 0), good)
            self.assertEqual((status, count), (1, 2))
            self.assertIn("soak FAILED", text)

    def test_storms(self):
        good = boot(GOOD % (7, 0, 0, 5) + END % 0)
        with tempfile.TemporaryDirectory() as name:
            self.out = Path(name)
            self.kernel = self.out / "Image"
            self.kernel.touch()
            status, _, text = self.run_main(good, good)
            # As long as the stress, in one piece; the seed says what it did.
            self.assertEqual([call.args[2:4] for call in self.storms.call_args_list], [(1800, 5)])
            self.assertEqual(status, 0)
            self.assertIn("storm: 70 s, 41 steps from seed 5 on, the others stopped 3 times, 90 young entries, 4095", text)
            self.assertEqual(json.loads((self.out / "arm64.json").read_text())["storm"]["steps"], 41)
            bad = storm(STORM.replace("ok 1 ", "not ok 1 "))
            status, _, text = self.run_main(good, good, storms=[bad])
            self.assertEqual(status, 1)
            self.assertIn("FAIL: storm: hvo_pool_on_demand.storm", text)
            # What was interrupted goes on with it.
            with self.assertRaises(KeyboardInterrupt):
                self.run_main(good, good, storms=[KeyboardInterrupt])
            self.assertEqual(self.run_main()[:2], (0, 0))
            self.assertEqual(self.storms.call_count, 1)
            # hvo is not on other architectures.
            self.assertEqual(self.run_main(good, good, arch="x86_64")[0], 0)
            self.assertEqual(self.storms.call_count, 0)
