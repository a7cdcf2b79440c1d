# SPDX-License-Identifier: GPL-2.0
"""Tests of what make test, make matrix and the Makefile make of what they are told: made-up guests, no kernel."""

import contextlib
import io
import json
import re
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

from tlbrs.check import rules as tables
from tlbrs.guest import console, guest
from tlbrs.kernel.common import ROOT
from tlbrs.report import measure
from tlbrs.suites import (commits, costs, harness, in_guests, matrix, on_demand, on_host, sabotage,
                          test as suites, without_rules)


@contextlib.contextmanager
def everywhere(name, new):
    """What test.py and its suites know by this name is another."""
    with contextlib.ExitStack() as stack:
        for module in (suites, harness, on_host, in_guests, without_rules, costs, on_demand):
            if hasattr(module, name):
                stack.enter_context(mock.patch.object(module, name, new))
        yield new


def booted(text, status=0, **more):
    """The result of a guest that printed this."""
    text = f"[    0.100000] the kernel\ntlb-rs: job start\n{text}\ntlb-rs: job exit {status}\n"
    result = guest.Result(console=text, job_exit=status, exit_status=guest.OK, **more)
    result.records, result.problems = console.records(text)
    result.ktap = console.ktap(text)
    return result


class OfSuite(unittest.TestCase):
    """A suite of test.py that writes to a directory of its own."""

    def setUp(self):
        tmp = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for replaced in (everywhere("LOGS", tmp), everywhere("DONE", []), contextlib.redirect_stdout(io.StringIO())):
            self.enterContext(replaced)
        self.suite = self.make("s")

    def make(self, name):
        suite = suites.Suite(name)
        self.addCleanup(suite.log.close)
        return suite


def removal(text):
    """The first with this in its command."""
    return next(r for r in sabotage.REMOVALS if text in r.command)


def output(*removals):
    """(a removal, what its command prints, its status), as the guest has them."""
    return "".join(f'TAP version 13\n{text}# Totals: pass:1 fail:0\n'
                   f'{{"removal":{sabotage.REMOVALS.index(r)},"status":{status}}}\n' for r, text, status in removals)


class Removed(OfSuite):
    """A rule that was removed, and a test that was to see it."""
    TASK, STALE, SECONDARY = (removal(text) for text in ("tlb_batch_task -t enomem", "TLB_ROUNDS=4 TLB_EXPECT=1 migrc_stale",
                                                         "tlb_batch_secondary"))
    WHY = "skipped: hooks cannot be removed"
    SKIPPED = "1..1\n#            OK  tlb_batch_task.enomem\nok 1 tlb_batch_task.enomem # SKIP hooks cannot be removed\n"

    def removed(self, *removals, **more):
        """{removal: whether it was seen}, and the reasons for those that were not."""
        rules = sabotage.Matrix({})
        with mock.patch.object(guest, "boot", return_value=booted(output(*removals), **more)):
            without_rules.removed(self.suite, rules, "arm64", {}, [r for r, *_ in removals])
        return {r: rules.seen["arm64", r] for r, *_ in removals}, rules

    def test_seen(self):
        seen, rules = self.removed((self.TASK, "1..1\nok 1 tlb_batch_task.enomem\n", 0),
                                   (self.STALE, "1..1\nok 1 migrc_stale.mprotect.stale\n", 0))
        self.assertEqual((set(seen.values()), rules.why, self.suite.failed), ({True}, {}, []))

    def test_skipped_is_not_seen(self):
        self.assertFalse("# SKIP" in output((self.STALE, "", 0)))
        for text, status, why in (
                (self.SKIPPED, 0, self.WHY),
                (self.SKIPPED.replace("em # S", "e[    9.000000] [ T9] x\nm # S"), 0, self.WHY),
                ("1..0 # SKIP needs 4 KiB pages\n", 4, "skipped: needs 4 KiB pages")):
            seen, rules = self.removed((self.STALE, "1..1\nok 1 migrc_stale.mprotect.stale\n", 0),
                                       (self.TASK, text, status))
            self.assertEqual(seen, {self.STALE: True, self.TASK: False})
            self.assertEqual(rules.why, {("arm64", self.TASK): why})
            rules.read_rules("arm64", [{"mechanism": "tlb_batch", "rule": "enomem"}])
            lines, holes = rules.lines()
            self.assertIn(f"tlb_batch  enomem    arm64   MISSED by task enomem ({why})", lines)
            self.assertEqual(holes[f"MISSED by task enomem ({why})"], ["arm64 tlb_batch enomem"])

    def test_skipped_beside_it(self):
        """One of several cases, or another than the one that was asked for."""
        seen, _ = self.removed((self.SECONDARY, "1..2\nok 1 tlb_batch_secondary.move.flushed\nok 2 tlb_batch_secondary.pageout.flushed # SKIP needs swap\n", 0),
                               (self.TASK, "1..2\nok 1 tlb_batch_task.enomem_late # SKIP x\nok 2 tlb_batch_task.enomem\n", 0))
        self.assertEqual(set(seen.values()), {True})
        # The harness; and a program without such a case.
        of_hvo = removal("env TLB_SKIP=held hvo_retry -t needed")
        for said, good in (("1..1\nok 1 hvo_retry.needed\n", True), ("1..1\nok 1 hvo_retry.needed # SKIP 2 CPUs\n", False),
                           ("1..2\nok 1 hvo_retry.needed.4k # SKIP x\nok 2 hvo_retry.used\n", False), ("1..0\n", False)):
            self.assertEqual(set(self.removed((of_hvo, said, 0))[0].values()), {good}, said)
        # All of several; the one that was asked for.
        seen, _ = self.removed((self.SECONDARY, "ok 1 tlb_batch_secondary.move.flushed # SKIP x\nok 2 tlb_batch_secondary.pageout.flushed # SKIP y\n", 0),
                               (self.TASK, "1..2\nok 1 tlb_batch_task.fork\nok 2 tlb_batch_task.enomem # SKIP x\n", 0))
        self.assertEqual(set(seen.values()), {False})

    def test_failed_or_not_run(self):
        self.assertEqual(self.removed((self.TASK, "not ok 1 tlb_batch_task.enomem\n", 1))[0], {self.TASK: False})
        with mock.patch.object(guest, "boot", return_value=booted("")):
            rules = sabotage.Matrix({})
            without_rules.removed(self.suite, rules, "arm64", {}, [self.TASK])
        self.assertEqual((rules.seen, rules.why), ({("arm64", self.TASK): False}, {}))

    def test_report_of_the_kernel(self):
        """The console ends with the report: there is no record of the command."""
        ours = removal("env TLB_SKIP=ack hvo_pool -t pool")
        with mock.patch.object(guest, "boot", return_value=booted("1..1\n", splats=["WARNING: " + ours.says[0]])):
            rules = sabotage.Matrix({})
            without_rules.removed(self.suite, rules, "arm64", {}, [ours])
        self.assertTrue(rules.seen["arm64", ours])
        # Two that have to report it and pass.
        both = next(r for r in sabotage.REMOVALS if r.both)
        for text, seen in (("ok 1 migrc_stale_writer.writable.lost\n", True), ("ok 1 migrc_stale_writer.writable.lost # SKIP x\n", False)):
            self.assertEqual(self.removed((both, text, 0), splats=[both.says[0]])[0], {both: seen})


class Proven(OfSuite):
    """Rules that only other tests show."""
    TEST = "tlb_batch  sync:"

    def verify(self, herd7):
        """The suite that has passed all, or has had no herd7."""
        verify = self.make("verify")
        proofs = [sabotage.results(proof) for rule in sabotage.RULES for proof in rule.proofs]
        for end in (end for suite, ends in proofs if suite == "verify" for end in ends):
            if end.startswith("litmus: ") and not herd7:
                verify.skip(f"{end} # SKIP no herd7 (apt install herdtools7, or tools/tlb-rs herd7)", "see there")
            else:
                verify.check(end, True)
        return verify

    def matrix(self, herd7):
        verify = self.verify(herd7)
        return sabotage.Matrix({"verify": (verify.names, verify.failed, verify.skipped)})

    def test_all_is_there(self):
        lines, holes = self.matrix(True).lines()
        self.assertEqual(holes, {})
        self.assertNotIn("herd7 is missing", "\n".join(lines))

    def test_programs(self):
        """How a program names its results: as its fixture; or without the mechanism, if it has none."""
        for test, *good in (("hvo_pool: lock", "arm64 hvo: hvo_pool.lock", "arm64 hvo: hvo_pool_off.lock"),
                            ("migrc_bounds: age (arm64)", "arm64 x: migrc_bounds.age.4k", "x: migrc_bounds.age", "x: bounds: age")):
            suite, names = sabotage.results(test)
            self.assertEqual((suite, names), ("programs", [test.partition(" (")[0]]))
            for name in good:
                self.assertTrue(sabotage.is_of(names[0], name), name)
            for name in ("x: hvo_pool.locks", "x: my_hvo_pool.lock", "x: migrc_bounds.ages", "x: migrc_stale.age", "x: pool: block"):
                self.assertFalse(sabotage.is_of(names[0], name), name)
        for test in ("migrc_stale: gone", "migrc_gone: x", "migrc_gone", "gone.rs", "pause.rs: gone", "gone-*.litmus"):
            self.assertEqual(sabotage.results(test)[1], [], test)

    def test_no_herd7(self):
        lines, holes = self.matrix(False).lines()
        ours, = (line for line in lines if line.startswith(self.TEST))
        self.assertTrue(ours.endswith("; not run: herd7 is missing"), ours)
        self.assertEqual(list(holes), ["not run: herd7 is missing"])
        self.assertEqual(set(holes["not run: herd7 is missing"]),
                         {rule.title for rule in sabotage.RULES if "litmus" in " ".join(rule.proofs)})

    def test_the_run_fails_for_that(self):
        suites.DONE[:] = [self.verify(False), self.suite]
        with everywhere("kernel", lambda *_: True), mock.patch.object(sabotage, "boots", return_value=[]):
            without_rules.remove(self.suite, arm64=False)
        self.assertEqual(self.suite.failed, ["every rule is seen removed, or named with a reason"])
        self.assertRegex(Path(self.suite.log.name).read_text(encoding="utf-8"),
                         r"(?m)^not ok - every rule.*herd7 is missing: .*tlb_batch/sync")


class Removals(unittest.TestCase):
    """What make sabotage runs, of made-up tables."""

    def removals(self, *entries):
        return sabotage.removals_of([tables.rule_of("migrc", name, entry) for name, entry in entries])

    def test_commands(self):
        ours = self.removals(("reuse", {"remove": "reuse", "tests": [
            "migrc_stale: zap", "migrc_file: race (arm64)", "migrc_bounds: offline (x86_64)",
            "migrc_file: image (SUITE=fs)"]}))
        self.assertEqual([(r.command, r.arches, r.own) for r in ours], [
            ("env TLB_SKIP=reuse TLB_ROUNDS=4 TLB_EXPECT=1 migrc_stale -v zap", ("arm64", "x86_64"), False),
            ("env TLB_SKIP=reuse TLB_ROUNDS=50 TLB_EXPECT=1 migrc_file -v race", ("arm64",), False),
            ("env TLB_SKIP=reuse TLB_EXPECT=1 migrc_bounds -t offline", ("x86_64",), True)])
        self.assertEqual({r.boot for r in ours}, {sabotage.MIGRC_BOOT})

    def test_several_rules(self):
        """One removal, of the first, stands for both."""
        ours = self.removals(("reuse", {"remove": "reuse", "tests": ["migrc_stale: zap, with range"]}),
                             ("range", {"remove": "range",
                                        "tests": ["migrc_stale: zap, with reuse", "migrc_stale: zap"]}),
                             ("order", {"tests": ["migrc_stale: zap"], "why_not_removed": "x"}))
        self.assertEqual([r.rules for r in ours], ["reuse,range", "range"])

    def test_several_names(self):
        ours = self.removals(("owner", {"remove": ["fork", "exit"],
                                        "tests": ["tlb_batch_task: exit", "tlb_batch_task: fork"]}))
        self.assertEqual([(r.rules, r.case) for r in ours], [("exit", "exit"), ("fork", "fork")])

    def test_several_ways(self):
        found = [r for r in sabotage.REMOVALS if r.rules == "abandon"]
        self.assertEqual((len(found), len({r.boot for r in found})), (2, 2))

    def test_unknown_program(self):
        with self.assertRaises(tables.Wrong):
            self.removals(("reuse", {"remove": "reuse", "tests": ["migrc_fork"]}))

    def test_chosen_cases(self):
        """What -t asks for is a test, and what -v asks for is a variant: of another name, none would run."""
        words = {"v": "FIXTURE_VARIANT_ADD", "t": "TEST_F(?:_TIMEOUT)?"}
        asked = [(program, kind, name) for r in sabotage.REMOVALS
                 for program, chosen in re.findall(r"\b((?:tlb_batch|migrc|hvo|tlb_rs)_\w+)((?: -[tv] \w+)+)", r.command)
                 for kind, name in re.findall(r"-([tv]) (\w+)", chosen)]
        self.assertGreater(len(asked), 100)
        for program, kind, name in asked:
            text = "".join(f.read_text(encoding="utf-8") for f in tables.sources_of(ROOT / tables.PROGRAMS, program))
            self.assertRegex(text, rf"(?m)^{words[kind]}\({program}\w*, {name}\b")

    def test_reasons(self):
        self.assertEqual(sabotage.reviewed("x86_64", "migrc", "type")[0], "not of this architecture")
        self.assertIsNone(sabotage.reviewed("arm64", "migrc", "type"))
        self.assertIsNone(sabotage.reviewed("x86_64", "migrc", "gone"))


class Counts(OfSuite):
    """What make test measures."""

    def batched(self, change):
        found = {work: {switch: measure.Figure(dict.fromkeys(measure.COUNTS["arm64"], 1.0), [], 1, 1)
                        for switch in (0, 1)} for work in measure.WORK}
        change(found)
        with mock.patch.object(measure, "run", return_value=found):
            costs.batched(self.suite, "arm64")
        return self.suite.passed, self.suite.failed

    def test_all(self):
        self.assertEqual(self.batched(lambda found: None), (3 * len(measure.WORK), []))

    def test_missing(self):
        for change in (lambda found: found.pop("move_rw"), lambda found: found["move_rw"].pop(0),
                       lambda found: found["move_rw"].pop(1), lambda found: found["move_rw"][1].counts.clear()):
            self.suite = self.make("s")
            self.assertEqual(self.batched(change), (3 * (len(measure.WORK) - 1),
                             [f"arm64 move_rw: {name}" for name in measure.COUNTS["arm64"].values()]))

    def verdicts(self, function, records):
        self.suite = self.make("s")
        with mock.patch.object(costs, "boot", return_value=mock.Mock(records=records)):
            function(self.suite, "arm64")
        return self.suite.failed

    def test_large_folios(self):
        def records(more, tlbi, hint=2, was=256):
            return [{"region": name, "tlb_batch": on, "units": 10, "meter": {"insns_kernel": n}}
                    for name, most in measure.INSNS_LIMIT.items() for on, n in ((0, 1000), (1, 1000 * most + more))] + [
                    {"region": "migrate_load", "tlb_batch": 1, "units": 1000, "meter": {"tlbi": tlbi}},
                    *({"region": "hint", "tlb_batch": on, "units": 4096, "meter": {"tlbi": n}} for on, n in ((0, was), (1, hint)))]

        self.assertEqual(self.verdicts(costs.restored, records(0, 3)), [])
        self.assertEqual(self.verdicts(costs.restored, records(1, 4)),
                         [*(f"arm64 {name}: kernel instructions" for name in measure.INSNS_LIMIT), "arm64 migrate_load: TLBI"])
        for hint, was in ((3, 256), (2, 2)):
            self.assertEqual(self.verdicts(costs.restored, records(0, 3, hint, was)), ["arm64 hint faults: TLBI"])
        self.assertEqual(len(self.verdicts(costs.restored, [])), len(measure.INSNS_LIMIT) + 2)

    def test_msync(self):
        records = [{"region": name, "meter": {"tlbi": most}} for name, most in measure.MSYNC_LIMIT.items()]
        self.assertEqual(self.verdicts(costs.written, records), [])
        records[0]["meter"]["tlbi"] += 1
        self.assertEqual(self.verdicts(costs.written, records), ["arm64 msync_64k: TLBI"])
        self.assertEqual(len(self.verdicts(costs.written, [])), len(measure.MSYNC_LIMIT))

    def test_huge(self):
        records = [{"region": name, "thps": 64, "meter": {"tlbi": 2}} for name in measure.HUGE["arm64"]]
        records.append({"region": "huge_type", "thps": 64, "meter": {"tlbi": 64}})
        self.assertEqual(self.verdicts(costs.huge, records), [])
        records[0]["meter"]["tlbi"], records[-1]["meter"]["tlbi"] = 3, 63
        self.assertEqual(self.verdicts(costs.huge, records), ["arm64 huge_free: TLBI", "arm64 huge_type: TLBI"])
        self.assertEqual(len(self.verdicts(costs.huge, [])), len(measure.HUGE["arm64"]) + 1)

    def test_to_device(self):
        records = [{"region": name, "there": 512, "meter": {"tlbi": most}} for name, most in measure.DEVICE_LIMIT.items()]
        self.assertEqual(self.verdicts(costs.to_device, records), [])
        records[0]["meter"]["tlbi"] += 1
        records[1]["there"] = 511
        self.assertEqual(self.verdicts(costs.to_device, records),
                         ["arm64 device_exclusive: TLBI", "arm64 device_shared: TLBI"])
        self.assertEqual(len(self.verdicts(costs.to_device, [])), len(measure.DEVICE_LIMIT))

    def test_demotion(self):
        records = [{"region": f"demote_{lru}", "tlb_batch": on, "units": 5120, "wakes": 2, "waits": 26, "scale": 1000,
                    "meter": {"dsb_ish": 99}} for lru in ("classic", "mglru") for on in (0, 1)]
        self.assertEqual(self.verdicts(costs.demoted, records), [])
        records[-1]["waits"] = 27
        self.assertEqual(self.verdicts(costs.demoted, records), ["arm64 demote_mglru: waits"])
        self.assertEqual(self.verdicts(costs.demoted, records[:2]), ["arm64 demotion: regions were measured"])


class Tools(OfSuite):
    """Unit tests and the Makefile."""
    TEST = """
import os, unittest
class A(unittest.TestCase):
    def test_a(self): pass
    @unittest.skipUnless(os.environ.get("WITH"), "no WITH")
    def test_b(self): pass
"""

    def test_skips_are_seen(self):
        file = Path(self.suite.log.name).with_name("test_it.py")
        file.write_text(self.TEST, encoding="ascii")
        place = str(file.parent)
        self.suite.unittest("it", "test_it", PYTHONPATH=place)
        self.suite.unittest("it", "test_it", PYTHONPATH=place, WITH="1", must=True)
        self.assertEqual((self.suite.passed, len(self.suite.skipped), self.suite.failed), (2, 1, []))
        self.suite.unittest("it", "test_it", PYTHONPATH=place, must=True)
        self.assertEqual((self.suite.passed, len(self.suite.failed)), (3, 1))

    def test_whole_program_skips(self):
        text = "TAP version 13\n1..0 # SKIP needs fault injection\nTAP version 13\n1..1\nok 1 a\n"
        with mock.patch.object(guest, "boot", return_value=booted(text)):
            harness.boot(self.suite, "x", "arm64", "checked", "x")
        self.assertEqual(self.suite.skipped, ["arm64 x: a whole program"])

    def test_no_such_case(self):
        with mock.patch.object(guest, "boot", return_value=booted("TAP version 13\n1..0\n# PASSED: 0 / 0 tests passed.\n")):
            harness.boot(self.suite, "x", "arm64", "checked", "x")
        self.assertEqual(self.suite.failed, ["arm64 x: a program has the case that it is asked for"])

    def test_names_of_skipped_cases(self):
        lines = ["ok 1 # SKIP hvo: switch", "ok 2 hvo_pool.race # SKIP needs 2 CPUs", "ok 3 bounds.4k.off # SKIP x",
                 "ok 4 hvo_pool.pool", "not ok 5 hvo_pool.use", "1..0 # SKIP needs root", "1..5"]
        for absent, names in (((), ["switch", "race", "4k.off", "needs"]), (("race", "hvo_pool"), ["switch", "4k.off", "needs"]),
                              (("switch", "off"), ["race", "needs"]), (("4k",), ["switch", "race", "needs"])):
            self.assertEqual(harness.skipped_cases(lines, absent), names)

    def test_no_suite_takes_the_others_with_it(self):
        """An error of a tool is one of its suite."""
        def broken(_):
            raise FileNotFoundError("rustfmt")

        def works(suite):
            suite.check("this ran", True)

        with mock.patch.object(suites, "SUITES", {"broken": broken, "works": works}), \
                mock.patch.object(suites.sys, "argv", ["test.py"]), mock.patch.dict("os.environ", {"SUITE": ""}), \
                mock.patch.object(suites.subprocess, "run"):
            self.assertEqual(suites.main(), 1)
        self.assertEqual([(s.passed, s.failed) for s in suites.DONE], [(0, ["broken ended early"]), (1, [])])
        for suite in suites.DONE:
            suite.log.close()

    def test_uncompared(self):
        with tempfile.TemporaryDirectory() as tmp:
            patch = Path(tmp) / "0001.patch"
            patch.write_text("--- a/mm/rmap.c\n+++ b/mm/rmap.c\n--- a/mm/new.c\n+++ b/mm/new.c\n+++ b/mm/x.h\n")
            self.assertEqual(on_host.uncompared([patch]), {"mm/new.o"})

    def test_debug_puts_the_image_back(self):
        with everywhere("kunit", mock.Mock(side_effect=suites.Fail("x"))), self.assertRaises(suites.Fail):
            suites.debug(self.suite)
        self.assertEqual(harness.IMAGE, "checked")

    def test_makefile_builds_the_variant(self):
        for arch, image in (("arm64", "Image"), ("x86_64", "bzImage")):
            for variant in ("release", "stock-selftests"):
                said = subprocess.run(["make", "-n", "-B", f"build/7.3/{arch}-{variant}/{image}"], cwd=ROOT, text=True,
                                      check=True, stdout=subprocess.PIPE).stdout
                self.assertRegex(re.sub(r"\s+|\\\n", " ", said), rf"--arch {arch} +(\\ )?--variant {variant} --kver ")


class Matrix(unittest.TestCase):
    """What make matrix makes of a boot."""
    JOB = ("matrix: run: tlb_batch_mark\n{}\nmatrix: {}: tlb_batch_mark\n"
           "matrix: run: hvo_pool -t pool\n1..0 # SKIP needs it\nmatrix: skipped: hvo_pool -t pool\n")
    OF_OURS = ("__release_unmapped_folios", "clear_pte_run", "stop_fn", "zone_isolates",
               "release_batch", "unmapped_va_is_open", "put_back_pte_run", "folio_may_stay_locked", "transit_begins",
               "transit_ends", "arm64_resume_cpus", "hvo_hold_next", "stop_fn.llvm.123", "migrc_defer_slow",
               "_RNvMs_NtNtCs1_6kernel2mm9tlb_batchNtB_8TlbBatch5flush", "trace_event_raw_event_hvo_pause")
    # What the series changes, too.
    OF_STOCK = ("do_swap_page", "flush_tlb_mm", "free_vmemmap_page_list", "smp_send_stop", "restop_fn", "stop_fns")

    def test_skipped(self):
        for said, verdict, ours in (("ok 1 mark: x", "passed", False), ("1..0 # SKIP needs CPUs", "skipped", True),
                                    ("ok 1 # SKIP mark: a\nok 2 # SKIP mark: b", "passed", True),
                                    ("ok 1 # SKIP mark: a\nok 2 mark: b", "passed", False), ("", "passed", False),
                                    ("ok 1 # SK[    9.000000] [  T9] x\nIP mark", "passed", True)):
            self.assertEqual(set(matrix.skipped(self.JOB.format(said, verdict))),
                             {"hvo_pool -t pool", *(["tlb_batch_mark"] if ours else [])}, said)

    def test_the_job_says_so(self):
        """The shell functions of the job, with programs that end as they are told."""
        functions = matrix.JOB.partition("places() {")[0]
        script = (functions + "run sh -c 'exit 4'\nrun true\nrun false\n(exit 4) & p=$!\nended $p %s\n"
                  "(exit 3) & p=$!\nended $p %s\necho status $status\n")
        with tempfile.NamedTemporaryFile(dir="/tmp", prefix="tlb-rs-job-") as file:
            name = Path(file.name).name
            said = subprocess.run(["sh"], input=script.replace("%s", name), text=True, check=True,
                                  stdout=subprocess.PIPE).stdout
        self.assertEqual(matrix.skipped(said), ["sh -c exit 4", name])
        self.assertEqual(re.findall("^matrix: failed: (.*)", said, re.M), ["false", name])
        self.assertIn("status 1\n", said)

    def test_what_may_be_skipped(self):
        kernel, = (k for k in matrix.KERNELS if k.name == "arm64-nothp")
        record = {"failed": [], "skipped": ["tlb_batch_task", "tlb_batch_thp_split --dir /mnt --thps 2"]}
        self.assertEqual(matrix.failures(kernel, record), [])
        record["skipped"].append("migrc_stale")
        self.assertEqual(matrix.failures(kernel, record), ["skipped: migrc_stale"])
        # What is there to be skipped is in the job.
        for kernel in matrix.KERNELS:
            for name in kernel.skips:
                self.assertIn(name, matrix.JOB)
            self.assertNotIn("skips", repr(kernel))

    def test_races_of_ours(self):
        """By the functions that the overlay or the series has, not by how they are called."""
        def report(name):
            ruler = "=" * 66
            lines = (ruler, "BUG: KCSAN: data-race in x / folio_unlock", "",
                     "write to 0xffff000001 of 8 bytes by task 77 (migrc_stress) on cpu 1:", " folio_lock+0x1c/0x40",
                     f" {name}+0x10/0x80", ruler)
            return "".join(f"[    9.000000][    C1] {line}\n" for line in lines)

        kernels = [k for k in matrix.KERNELS if k.variant == "kcsan"]
        self.assertEqual(len(kernels), 2)
        for name in (*self.OF_OURS, *self.OF_STOCK):
            for kernel in kernels:
                result = guest.Result(console=report(name) + "tlb-rs: job exit 0\n", shutdown="guest-shutdown")
                guest.judge(result, True, 60, kernel.allow)
                self.assertEqual(result.exit_status, guest.SPLAT if name in self.OF_OURS else guest.OK, name)
        # There are more than 200 of the overlay, and a dozen of the series.
        self.assertGreater(len(matrix.ours()), 200)
        added = [matrix.added(f.read_text(encoding="utf-8")) for _, f in matrix.overlay.patch_files()]
        self.assertGreater(len(set().union(*added)), 9)

    def test_added(self):
        self.assertEqual(matrix.added("--- a/x.c\n+++ b/x.c\n@@ -1 +1 @@ int top(void)\n"
                                      "-int changed(int a)\n+int changed(int a,\n+\t    void (*fn)(int))\n {\n"
                                      "+\tif (called(a)) {\n+\t}\n }\n+static struct x *\n+added(void)\n+{\n+}\n"
                                      "-void gone(void)\n-{\n-}\n+int declared(void);\n+#define macro(x) { }\n"),
                         {"added"})

    def test_kunit(self):
        config = {"CONFIG_RUST_TLB_BATCH_KUNIT_TEST": "y", "CONFIG_MIGRC_KUNIT_TEST": "y"}
        good = ["ok 1 rust_tlb_batch", "ok 2 tlb_batch_main", "ok 3 migrc"]
        self.assertEqual(matrix.absent(good, config), [])
        self.assertEqual(matrix.absent(good[:2] + ["not ok 3 migrc"], config), ["KUnit suite migrc did not pass"])
        self.assertEqual(matrix.absent(good[:2] + ["ok 3 migrc # SKIP"], config), ["KUnit suite migrc did not pass"])
        self.assertEqual(len(matrix.absent([], config)), 3)
        self.assertEqual(matrix.absent([], {"CONFIG_MIGRC_KUNIT_TEST": "n"}), [])

    def test_boot_and_table(self):
        kernel, = (k for k in matrix.KERNELS if k.name == "x86_64-rt")
        text = self.JOB.format("ok 1 mark: x", "passed") + "ok 1 rust_tlb_batch\n"
        with tempfile.TemporaryDirectory() as tmp:
            image = Path(tmp, "Image")
            image.with_name(".config").write_text("CONFIG_RUST_TLB_BATCH_KUNIT_TEST=y\n", encoding="ascii")
            with mock.patch.object(guest, "kernel_path", return_value=image), \
                    mock.patch.object(guest, "boot", return_value=booted(text)):
                seconds, cases, failed, skipped = matrix.boot(kernel, "", 0)
        self.assertEqual((seconds, cases, failed, skipped),
                         (0, 2, ["KUnit suite tlb_batch_main did not pass"], ["hvo_pool -t pool"]))
        record = json.loads(json.dumps({"build": 9, "boots": [(1, 2, [], ["a"])], "failed": [],
                                        "skipped": ["hvo_pool -t pool", "migrc_stale"]}))
        row, = (line for line in matrix.table({kernel.name: record}) if "x86_64-rt" in line)
        self.assertTrue(row.endswith("| 9 | 1 | 2 | hvo_pool -t pool, migrc_stale | skipped: migrc_stale |"), row)
        self.assertEqual({line.count("|") for line in matrix.table({kernel.name: record})}, {8})

    def test_identity(self):
        """What the guest is made of, and what decides what is built."""
        kernel, real, seen = matrix.KERNELS[0], matrix.common.sha256, []
        with mock.patch.object(matrix.common, "sha256", side_effect=lambda f: seen.append(f.resolve()) or real(f)):
            one = matrix.identity(kernel)
        for name in ("tools/tlbrs/guest/init", "tools/tlbrs/guest/guest.py", "tools/tlbrs/kernel/kernel.py",
                     "tools/tlbrs/kernel/toolchain.py", "tools/tlbrs/kernel/overlay.py", "tools/tlbstat/tlbstat.c",
                     "tools/testing/selftests/mm/migrc_stale.c"):
            self.assertIn(ROOT / name, seen)
        self.assertEqual(matrix.identity(matrix.dataclasses.replace(kernel, skips=("x",))), one)
        self.assertNotEqual(matrix.identity(matrix.dataclasses.replace(kernel, about="x")), one)
        with mock.patch.object(matrix.source, "cached", return_value=Path("linux-7.3.99")):
            self.assertNotEqual(matrix.identity(kernel), one)
        with mock.patch.object(matrix.toolchain, "kernel_tools", return_value=(["LLVM=-99"], {})):
            self.assertNotEqual(matrix.identity(kernel), one)


class Interrupted(OfSuite):
    def test_no_further_boot(self):
        """What waits for its turn does not begin; what runs comes to its end."""
        begun = []

        def call():
            begun.append(1)
            time.sleep(0.2)

        with mock.patch.object(guest, "threads_of", return_value="multi"), \
                mock.patch.object(harness, "wait", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            with harness.side_by_side("arm64") as start:
                for _ in range(5):
                    start(call)
        self.assertEqual(len(begun), 1)

    def test_summary(self):
        """The suites that did run are in it, and the others do not begin."""
        def interrupted(_):
            raise KeyboardInterrupt
        known = {"first": lambda suite: suite.check("x", True), "second": interrupted,
                 "third": lambda suite: self.fail("it began")}
        said = io.StringIO()
        self.addCleanup(lambda: [suite.log.close() for suite in suites.DONE])
        with mock.patch.object(suites, "SUITES", known), mock.patch.object(sys, "argv", ["test.py", *known]), \
                mock.patch.object(suites.subprocess, "run"), contextlib.redirect_stdout(said):
            self.assertEqual(suites.main(), 1)
        self.assertIn("failed: second ended early", said.getvalue())
        self.assertIn("\n1 passed, 1 failed\n", said.getvalue())


class OneArchitecture(OfSuite):
    """make test ARCH=arm64"""

    def run_with(self, arch, function, suite):
        """The architectures of which this suite builds kernels; none can be built."""
        with mock.patch.dict("os.environ", {"ARCH": arch}), \
                everywhere("kernel", mock.Mock(return_value=False)) as kernel, \
                everywhere("boot", mock.Mock()):
            function(suite)
        return [call.args[1] for call in kernel.mock_calls]

    def test_loops(self):
        for function in (suites.kunit, suites.programs, suites.counts, suites.fs, suites.abuse, suites.stock, suites.recipes):
            for only, want, skipped in (("", ["arm64", "x86_64"], []), ("arm64", ["arm64"], ["x86_64"]),
                                        ("x86_64", ["x86_64"], ["arm64"])):
                suite = self.make("s")
                self.assertEqual((self.run_with(only, function, suite), suite.skipped), (want, skipped), function.__name__)

    def test_of_one(self):
        """A suite of the other architecture has nothing to do, and has not failed."""
        for function in (suites.runner, suites.pages, suites.hvo):
            suite = self.make("s")
            self.assertEqual(self.run_with("x86_64", function, suite), [])
            suite.done()
            self.assertEqual((suite.failed, suite.skipped), ([], ["arm64"]), function.__name__)
            self.assertIn("arm64", self.run_with("arm64", function, self.make("s")))

    def test_nothing_ran(self):
        """Without ARCH=, that is a failure."""
        with mock.patch.dict("os.environ", {"ARCH": ""}):
            self.assertEqual(harness.chosen(self.suite), ["arm64", "x86_64"])
        self.suite.done()
        self.assertEqual(self.suite.failed, ["s ran"])

    def test_unknown(self):
        with mock.patch.dict("os.environ", {"ARCH": "riscv"}), self.assertRaisesRegex(suites.Fail, "ARCH=riscv: one of arm64"):
            harness.chosen(self.suite)

    def test_proofs(self):
        """A proof that is a test of the other architecture is not missed; those that ran are looked at."""
        programs, verify = self.make("programs"), self.make("verify")
        suites.DONE[:] = [verify, programs]
        for only, want in (("x86_64", {"verify"}), ("", {"verify", "programs"})):
            with mock.patch.dict("os.environ", {"ARCH": only}), mock.patch.object(sabotage, "Matrix") as matrix, \
                    everywhere("kernel", lambda *_: False):
                matrix.return_value.lines.return_value = ([], {})
                programs.left_out = False
                harness.chosen(programs)
                without_rules.remove(self.suite, arm64=False, x86_64=False)
            self.assertEqual(set(matrix.call_args.args[0]), want)


class Size(OfSuite):
    def test_shown(self):
        """The table is shown, what is too long is in the log."""
        with everywhere("VERBOSE", False), contextlib.redirect_stdout(io.StringIO()) as said:
            suites.size(self.suite)
        self.assertEqual((self.suite.passed, self.suite.failed), (3, []))
        self.assertRegex(said.getvalue(), r"\ntlb_batch +\d")
        self.assertNotIn("columns", said.getvalue())
        self.assertIn("columns", Path(self.suite.log.name).read_text(encoding="utf-8"))


class Clippy(OfSuite):
    def test_absent(self):
        """A distribution may have none for its rustc; whoever has rustup, or could have installed it, has forgotten it."""
        for packages, here, counts in (({"cargo": "cargo-web"}, None, (0, 0, 1)), ({}, None, (0, 1, 0)),
                                       ({"clippy-driver": "rust-clippy"}, None, (0, 1, 0)),
                                       ({"cargo": "cargo-web"}, "/x/clippy-driver", (1, 0, 0)), ({}, "/x", (1, 0, 0))):
            suite = self.make("clippy")
            with mock.patch.object(on_host.toolchain, "rust_tools", lambda p=packages: p), \
                    mock.patch.object(on_host.shutil, "which", lambda name, found=here: found):
                on_host.clippy(suite)
            self.assertEqual(counts, (suite.passed, len(suite.failed), len(suite.skipped)), (packages, here))


class Commits(unittest.TestCase):
    def test_lost_options(self):
        """What the commit has and the configuration lost; not what arrives later."""
        tree = self.enterContext(tempfile.TemporaryDirectory())
        Path(tree, "Kconfig.ours").write_text("config RUST\n\nmenuconfig KUNIT\nconfig RUSTY\n"
                                              "config MIGRC_DEBUG\n\tbool\n\tdepends on MIGRC && RUST\n", encoding="ascii")
        for words in (["init", "-q"], ["add", "."]):
            subprocess.run(["git", *words], cwd=tree, check=True)
        asked = [f"CONFIG_{name}=y (is n)" for name in ("RUST", "KUNIT", "MIGRC", "RUS", "MIGRC_DEBUG")]
        self.assertEqual(commits.lost(tree, asked), asked[:2])

    def test_what_is_tried(self):
        """What fails is tried again, what passed is not, and FROM= leaves out what is before."""
        place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        config = place / "config"
        config.write_text("CONFIG_A=y\n", encoding="ascii")
        built = []

        def applied(_kver, passed, _rust):
            for name in ("one/0001-a.patch", "one/0002-b.patch", "two/0001-c.patch"):
                passed(name, name)
                yield place, name, name

        def tried(first="", bad="", rust=True):
            built.clear()
            return [(name, wrong) for name, wrong, _ in
                    commits.tried("arm64", "7.3", lambda name: "it hangs" if name == bad else None, first, rust)]

        for name, new in {"OUT": place, "applied": applied, "configuration": lambda *_: config,
                          "build": lambda *_: built.append(1)}.items():
            self.enterContext(mock.patch.object(commits, name, new))
        self.enterContext(mock.patch.object(commits.common, "BUILD", place))
        self.assertEqual([("two/0001-c.patch", "it hangs")], tried("two/", "two/0001-c.patch"))
        self.assertEqual([("one/0002-b.patch", None), ("two/0001-c.patch", None)], tried("one/0002"))
        self.assertEqual(2, len(built))
        self.assertEqual(3, len(tried()))
        self.assertEqual(1, len(built))
        config.write_text("CONFIG_A=n\n", encoding="ascii")
        self.assertEqual((3, 3), (len(tried()), len(built)))
        with self.assertRaisesRegex(commits.common.Fail, "no commit of the series is called three/"):
            tried("three/")
        # Without Rust it is another kernel: what has passed with it has not without.
        self.assertEqual((3, 3), (len(tried(rust=False)), len(built)))
        self.assertEqual((3, 0), (len(tried()), len(built)))
        self.assertEqual({"arm64-7.3.json", "arm64-7.3-norust.json"}, {f.name for f in place.glob("*.json")})

    def test_what_is_read(self):
        """Of a tree: documents and selftests never, Rust with Rust only."""
        tree = self.enterContext(tempfile.TemporaryDirectory())
        repo = commits.series.Repo(Path(tree), "a <a@localhost>", "2000-01-01T00:00:00+00:00")

        def hashes(name):
            Path(tree, name).parent.mkdir(parents=True, exist_ok=True)
            with open(Path(tree, name), "a", encoding="ascii") as file:
                file.write("more\n")
            repo.commit("one\n")
            return [commits.built_from(repo, "HEAD^{tree}", rust) for rust in (True, False)]

        before = hashes("mm/a.c")
        for name, changed in (("Documentation/mm/a.rst", (False, False)), ("tools/testing/selftests/mm/a.c", (False, False)),
                              ("rust/kernel/lib.rs", (True, False)), ("mm/hvo/a.rs", (True, False)),
                              ("rust/helpers/a.c", (True, False)), ("mm/Kconfig", (True, True))):
            after = hashes(name)
            self.assertEqual(changed, tuple(a != b for a, b in zip(before, after)), name)
            before = after
