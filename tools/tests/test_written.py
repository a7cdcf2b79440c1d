# SPDX-License-Identifier: GPL-2.0
"""Tests of fio: what is skipped, and where it runs."""

import contextlib
import io
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from tlbrs.guest import exercisers, guest, initramfs
from tlbrs.suites import harness, written


class Made(unittest.TestCase):
    def setUp(self):
        self.tmp = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(contextlib.redirect_stdout(io.StringIO()))
        self.enterContext(contextlib.redirect_stderr(io.StringIO()))
        self.enterContext(mock.patch.object(harness, "LOGS", self.tmp))
        self.enterContext(mock.patch.dict("os.environ", {"ARCH": "arm64"}))

    def suite(self):
        suite = harness.Suite("s")
        self.addCleanup(suite.log.close)
        return suite


def cannot(arch):
    raise initramfs.GuestError(f"no network for {arch}")


class Suites(Made):
    def test_without_network_nothing_fails(self):
        suite = self.suite()
        with mock.patch.object(exercisers, "fio", cannot):
            written.by_fio(suite, "arm64", "checked", self.fail)
        self.assertEqual((suite.passed, suite.failed), (0, []))
        self.assertEqual(suite.skipped, ["arm64 fio"])
        self.assertIn("no network for arm64", (self.tmp / "s.txt").read_text(encoding="utf-8"))

    def test_fio_runs_on_what_the_image_has(self):
        (self.tmp / ".config").write_text("CONFIG_EXT4_FS=y\nCONFIG_XFS_FS=y\n# CONFIG_BTRFS_FS is not set\n",
                                           encoding="ascii")
        started = []
        with mock.patch.object(exercisers, "fio", lambda arch: "fio"), \
                mock.patch.object(guest, "kernel_path", lambda *_: self.tmp / "Image"):
            written.by_fio(self.suite(), "arm64", "checked", lambda *call, **more: started.append(more["disk"]))
        self.assertEqual(started, ["ext4:512M", "xfs:512M"])
