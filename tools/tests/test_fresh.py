# SPDX-License-Identifier: GPL-2.0
"""Tests of what make test SUITE=chroot takes along and makes of what it is told; one enters a system of one program."""

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

from tlbrs.kernel.common import ROOT, Fail
from tlbrs.suites import fresh

SAID = """
== style, after 0 minutes
style: 197 passed, 0 failed, 2 skipped, 150 s
style: 1 passed, 0 failed in a program's own words
== tools, after 3 minutes
not ok - x
tools: 90 passed, 1 failed, 0 skipped, 60 s

summary
  style          197 passed    0 failed    2 skipped
287 passed, 1 failed
make: *** [Makefile:117: test] Error 1
"""


class Carried(unittest.TestCase):
    ROWS = [("http://mirror/debian", "bookworm"), ("http://mirror/debian", "bookworm-updates"),
            ("http://mirror/security", "bookworm-security")]

    def test_sources(self):
        self.assertEqual(("http://mirror/debian", "deb http://mirror/debian trixie main\ndeb http://mirror/debian "
                          "trixie-updates main\ndeb http://mirror/security trixie-security main\n"),
                         fresh.sources("trixie", self.ROWS))
        self.assertNotIn("security", fresh.sources("bookworm", self.ROWS[:2])[1])
        with self.assertRaises(Fail):
            fresh.sources("bookworm", self.ROWS[1:])

    def test_apt_options(self):
        """Not the hooks of this machine, which may call what is not there."""
        conf, files = fresh.apt_options(
            'APT::Update::Post-Invoke:: "rm -f /var/x";\nAcquire::http::Proxy "http://proxy:3128";\n'
            'Acquire::https::CaInfo "/etc/own.pem";\nAcquire::IndexTargets::deb::Packages::KeepCompressed "1";\n')
        self.assertEqual('Acquire::http::Proxy "http://proxy:3128";\nAcquire::https::CaInfo "/etc/own.pem";\n', conf)
        self.assertEqual(["/etc/own.pem"], files)

    def test_cargo_options(self):
        """Registries; no programs of this machine."""
        text = ('[build]\nrustc-wrapper = "sccache"\n\n[source.crates-io]\nreplace-with = "mirror"\n[target.x]\nlinker = "mold"\n'
                '[registries]\nmine = { index = "sparse+http://x/" }\n[profile.release]\nlto = true\n[http]\ncheck-revoke = false\n')
        self.assertEqual('[source.crates-io]\nreplace-with = "mirror"\n[registries]\nmine = { index = "sparse+http://x/" }\n'
                         '[http]\ncheck-revoke = false\n', fresh.cargo_options(text))

    def test_environment(self):
        outside = {"http_proxy": "p", "NO_PROXY": "q", "SSL_CERT_FILE": "c", "CARGO_HTTP_CAINFO": "d", "PIP_INDEX_URL": "e",
                   "CARGO_HOME": "/home/me/.cargo", "RUSTUP_HOME": "x", "PATH": "/home/me/bin", "INNER": "style",
                   "MAKEFLAGS": "x", "LANG": "de", "TMPDIR": "/x", "PYTHONPATH": "y", "HERD7": "/z"}
        self.assertEqual({"http_proxy", "NO_PROXY", "SSL_CERT_FILE", "CARGO_HTTP_CAINFO", "PIP_INDEX_URL", "HOME", "PATH", "TERM"},
                         set(env := fresh.environment(outside)))
        self.assertEqual((fresh.HOME, fresh.PATH), (env["HOME"], env["PATH"]))


class Verdicts(unittest.TestCase):
    def test_each_suite(self):
        rows = fresh.verdicts(SAID, ("style", "tools", "verify"))
        self.assertEqual([("style", True, "197 passed, 0 failed, 2 skipped, 150 s"),
                          ("tools", False, "90 passed, 1 failed, 0 skipped, 60 s"), ("verify", False, "did not end"),
                          ("all", False, "287 passed, 1 failed")], rows)

    def test_all(self):
        for said, ok in ((SAID.replace("1 failed", "0 failed"), True), ("0 passed, 0 failed\n", False), ("", False),
                         ("287 passed, 0 failed\n", False), ("make: *** [Makefile:138: setup] Error 1\n", False)):
            self.assertEqual(ok, fresh.verdicts(said, ())[-1][1], said)


class Inside(unittest.TestCase):
    """A system of busybox alone."""

    def setUp(self):
        self.tmp = Path(self.enterContext(tempfile.TemporaryDirectory())).resolve()
        enter = ["unshare", "--mount", "--pid", "--fork", "mount", "-t", "tmpfs", "tmpfs", self.tmp]
        if subprocess.run(enter, capture_output=True, check=False).returncode:
            self.skipTest("cannot mount here")
        self.system = fresh.System("none", self.tmp / "root", self.tmp)
        for name in ("proc", "dev", "sys", "bin"):
            (self.system.place / name).mkdir(parents=True)
        shutil.copy(shutil.which("busybox", path="/bin:/usr/bin"), self.system.place / "bin/busybox")
        for name in ("umount", "rmdir"):    # which entering it takes
            (self.system.place / "bin" / name).symlink_to("busybox")
        self.enterContext(contextlib.redirect_stderr(io.StringIO()))

    def mounts(self):
        return [line for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines() if str(self.tmp) in line]

    def test_nothing_of_outside(self):
        """Only what is in it; no variable, no process, and a mount namespace can be made in it."""
        with mock.patch.dict(os.environ, {"OUTSIDE": "1"}):
            status, said = self.system.run(
                "x", "/bin/busybox", "sh", "-c", 'cd /bin; for t in ls env mount; do ./busybox $t; done; '
                './busybox unshare -m ./busybox true; echo "unshare $?"; echo "processes" /proc/[0-9]*; exit 7', cwd="/")
        self.assertEqual(7, status, said)
        self.assertIn("unshare 0\n", said)
        self.assertNotIn("OUTSIDE", said)
        self.assertNotIn(str(self.tmp), said)
        self.assertRegex(said, r"processes /proc/1 /proc/\d+\n")
        self.assertEqual([], self.mounts())

    def test_interrupted(self):
        """Its processes and mounts end with it; what is removed then is its own."""
        code = ("import signal; from tlbrs.kernel import common; from tlbrs.suites import fresh\n"
                "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
                f"s = fresh.System('none', {str(self.system.place)!r}, fresh.Path({str(self.tmp)!r}))\n"
                "common.main(lambda: s.run('x', '/bin/busybox', 'sh', '-c', "
                "'/bin/busybox touch /begun; /bin/busybox sleep 1234567', cwd='/')[0])")
        for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            (self.system.place / "begun").unlink(missing_ok=True)
            with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT / "tools", stderr=subprocess.DEVNULL) as p:
                end = time.monotonic() + 60
                while not (self.system.place / "begun").exists():
                    self.assertIsNone(p.poll())
                    self.assertLess(time.monotonic(), end)
                    time.sleep(0.05)
                p.send_signal(sig)
                p.wait(60)
            while self.sleepers():
                self.assertLess(time.monotonic(), end, "it still runs")
                time.sleep(0.05)
            self.assertEqual([], self.mounts())
        self.system.remove()
        self.assertFalse(self.system.place.exists())
        self.assertTrue(Path("/dev/null").exists() and Path("/sys/kernel").exists())

    @staticmethod
    def sleepers():
        found = []
        for f in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                found += [f] * (b"sleep\0001234567\0" in f.read_bytes())
        return found
