# SPDX-License-Identifier: GPL-2.0
"""Tests of tools/tlb-rs: its table of commands, and what it says of others."""

import importlib
import subprocess
import sys
import unittest

from tlbrs import cli
from tlbrs.kernel.common import ROOT


class Commands(unittest.TestCase):
    def run_tool(self, *words):
        # From another directory: Python has to find the package all the same.
        p = subprocess.run([sys.executable, ROOT / "tools/tlb-rs", *words], cwd="/", text=True, capture_output=True,
                           check=False)
        self.assertNotIn("Traceback", p.stderr)
        return p.returncode, p.stdout, p.stderr

    def test_functions(self):
        """Each is there, and has a parser of options, or a comment that is its help."""
        for name, (place, _) in cli.COMMANDS.items():
            module, _, function = place.partition(":")
            found = importlib.import_module(f"tlbrs.{module}")
            self.assertTrue(callable(getattr(found, function, None)), name)
            self.assertNotEqual(hasattr(found, "argparse"), name in cli.BY_COMMENT, name)

    def test_help(self):
        for words, says in ((("--help",), "usage: tools/tlb-rs COMMAND"), (("rules", "--help"), "usage: tlb-rs rules --check"),
                            (("guest", "boot", "--help"), "usage: tlb-rs guest boot")):
            status, out, err = self.run_tool(*words)
            self.assertEqual((0, ""), (status, err))
            self.assertIn(says, out)

    def test_wrong(self):
        for words in ((), ("no-such-command",)):
            status, out, err = self.run_tool(*words)
            self.assertEqual((2, ""), (status, out))
            self.assertIn("  guest ", err)

    def test_error(self):
        """An error that the user can act on is one message."""
        self.assertEqual((1, "", "error: name a directory for the patches: make series OUT=dir\n"),
                         self.run_tool("kernel", "series"))
        self.assertEqual((1, "", "guest: --env x: NAME=value\n"),
                         self.run_tool("guest", "boot", "--job", "x", "--kernel", "/", "--env", "x"))
