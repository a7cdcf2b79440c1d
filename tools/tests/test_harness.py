# SPDX-License-Identifier: GPL-2.0
"""Tests of steps of a suite that run beside each other."""

import contextlib
import io
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

from tlbrs.kernel.common import Fail
from tlbrs.suites import harness, on_host


class AtOnce(unittest.TestCase):
    def setUp(self):
        self.tmp = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(mock.patch.object(harness, "LOGS", self.tmp))
        self.enterContext(contextlib.redirect_stdout(io.StringIO()))
        self.suite = harness.Suite("s")
        self.addCleanup(self.suite.log.close)

    def test_order_and_failures(self):
        """The first one ends last; one that fails and one that raises have failed, with what they said before."""
        second = threading.Event()

        def slow(step):
            second.wait(60)
            step.command("a", sys.executable, "-c", "print('why'); exit(3)")

        def raises(step):
            step.check("b", True)
            second.set()
            raise Fail("c")

        # One CPU would wait for the other step.
        with mock.patch.object(harness.os, "cpu_count", return_value=2), self.assertRaisesRegex(Fail, "c"):
            self.suite.at_once([(slow,), (raises,)])
        said = (self.tmp / "s.txt").read_text(encoding="utf-8")
        self.assertEqual(said, "not ok - a: status 3\nwhy\nok - b\n")
        self.assertEqual((self.suite.passed, self.suite.failed, self.suite.names), (1, ["a"], {"b"}))

    def test_models_that_fail_or_abort(self):
        said = "  Executable unittests src/lib.rs (t/verify-1)\n  Executable tests/owed.rs (t/owed-2)\n"
        self.assertEqual(on_host.built(said), {"lib": "t/verify-1", "owed": "t/owed-2"})
        program = self.tmp / "owed-2"
        program.write_text("#!/bin/sh\necho 'test x - should panic ... ok\ntest y ... FAILED'\nkill -ABRT $$\n", encoding="utf-8")
        program.chmod(0o755)
        self.assertEqual(on_host.cargo_test(self.suite, "owed", program), -6)
        self.assertEqual((self.suite.names, self.suite.failed), ({"owed: x"}, ["owed: y"]))

    def test_interrupted(self):
        """What waits for its turn does not begin."""
        begun = []
        with mock.patch.object(harness.os, "cpu_count", return_value=1), \
                mock.patch.object(harness, "wait", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            self.suite.at_once([(lambda step: begun.append(time.sleep(0.2)),)] * 5)
        self.assertEqual(len(begun), 1)
