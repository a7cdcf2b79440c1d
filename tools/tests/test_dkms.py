# SPDX-License-Identifier: GPL-2.0
"""Tests of what make test SUITE=dkms asks of its modules."""

import re
import tempfile
import unittest
from pathlib import Path

from tlbrs.suites import dkms


class Symbols(unittest.TestCase):
    def test_found(self):
        with tempfile.TemporaryDirectory() as name:
            root = Path(name)
            (root / "mm").mkdir()
            (root / "patches/one").mkdir(parents=True)
            (root / "mm/a.c").write_text("EXPORT_SYMBOL(plain);\n/* EXPORT_SYMBOL(no) */\nEXPORT_PER_CPU_SYMBOL_GPL(each);\n")
            (root / "patches/one/0001-a.patch").write_text("+EXPORT_SYMBOL_GPL(ours);\n-EXPORT_SYMBOL(theirs);\n"
                                                          " EXPORT_SYMBOL(there);\n+EXPORT_TRACEPOINT_SYMBOL_GPL(traced);\n")
            self.assertEqual(["each", "ours", "plain", "traced"], dkms.exported(root))

    def test_unused(self):
        """Of this kernel: what the module wants counts. Of another configuration: its source names it."""
        symbols = ["here", "there"]
        self.assertEqual([], dkms.unused(symbols, "/* there */", {"here"}, {"here"}))
        self.assertEqual(["here"], dkms.unused(symbols, "/* here there */", {"here"}, {"_printk"}))
        self.assertEqual(["there"], dkms.unused(symbols, "here(); nowhere", {"here"}, {"here"}))

    def test_all_are_named(self):
        source = (dkms.SOURCES / "tlb_rs_exports/tlb_rs_exports.c").read_text(encoding="utf-8")
        symbols = dkms.exported()
        self.assertIn("migrc_write_access", symbols)
        self.assertEqual([], dkms.unused(symbols, source, set(), set()))

    def test_symvers(self):
        self.assertEqual({"a", "b"}, dkms.provided_by("0x0\ta\tvmlinux\tEXPORT_SYMBOL\t\n0x0\tb\tvmlinux\tEXPORT_SYMBOL_GPL\t\n"))


class Modules(unittest.TestCase):
    def test_configurations(self):
        """Each is what its dkms.conf says."""
        self.assertEqual(sorted(dkms.MODULES), sorted(f.name for f in dkms.SOURCES.iterdir()))
        for module in dkms.MODULES:
            conf = (dkms.SOURCES / module / "dkms.conf").read_text(encoding="utf-8")
            self.assertEqual({module}, set(re.findall(r'(?m)^(?:PACKAGE_NAME|BUILT_MODULE_NAME\[0\])="(.*)"', conf)))
            self.assertIn(f"obj-m := {module}.o\n", (dkms.SOURCES / module / "Kbuild").read_text(encoding="utf-8"))


if __name__ == "__main__":
    unittest.main()
