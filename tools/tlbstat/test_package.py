# SPDX-License-Identifier: GPL-2.0
"""Tests of the man page and the package of tlbstat."""

import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from tlbstat.canned import HERE, Case


class ManPage(Case):
    def test_has_all_options_and_commands(self):
        page, text = (HERE / "tlbstat.8").read_text().replace("\\-", "-"), self.run_it("--help").stdout
        options = set(re.findall(r"(?<![\w-])--?[a-z1][a-z-]*", text.partition("Columns.")[0]))
        self.assertGreater(len(options), 10)
        self.assertEqual([o for o in sorted(options) if o not in page], [])
        for command in re.findall(r"(?m)^ +tlbstat (\w+)", text):
            self.assertIn(f".B tlbstat {command}\n", page)

    def test_is_well_formed(self):
        if not shutil.which("groff"):
            self.skipTest("no groff here")
        p = subprocess.run(["groff", "-man", "-ww", "-z", "-Tutf8", HERE / "tlbstat.8"], capture_output=True, text=True,
                           check=True)
        self.assertEqual(p.stderr, "")


class Package(unittest.TestCase):
    def test_has_program_and_page(self):
        if not shutil.which("dpkg-deb"):
            self.skipTest("no dpkg-deb here")
        tmp = Path(self.enterContext(tempfile.TemporaryDirectory()))
        subprocess.run(["make", "-s", "-C", HERE, f"O={tmp}", "VERSION=1.5", "deb"], check=True, stdout=subprocess.PIPE)
        deb, = tmp.glob("tlbstat_1.5_*.deb")
        listed = subprocess.run(["dpkg-deb", "-c", deb], capture_output=True, text=True, check=True).stdout
        for mode, name in (("-rwxr-xr-x", "./usr/bin/tlbstat"), ("-rw-r--r--", "./usr/share/man/man8/tlbstat.8.gz")):
            self.assertRegex(listed, rf"(?m)^{mode} root/root .* {re.escape(name)}$")
        subprocess.run(["dpkg-deb", "-x", deb, tmp / "root"], check=True)
        p = subprocess.run([tmp / "root/usr/bin/tlbstat", "--help"], capture_output=True, text=True, check=True)
        self.assertIn("usage: tlbstat", p.stdout)
