# SPDX-License-Identifier: GPL-2.0
"""Tests of what is said of an option that another one forbids."""

import tempfile
import unittest
from pathlib import Path

from tests.kernel.fixtures import write
from tlbrs.kernel import unmet

KCONFIG = """config RUST
	bool "Rust"
	depends on HAVE_RUST # of the architecture
	depends on !BTF || (PAHOLE_HAS_EXCLUDE && !LTO)
	depends on !TAGS || RUSTC_VERSION >= 109600
	depends on A = "x" if B
	help
	  It needs a lot:
	  depends on NOTHING

config OTHER
	depends on NEVER
config LTO
	bool
config PAHOLE_HAS_EXCLUDE
	def_bool PAHOLE_VERSION >= 124
choice
	config LTO_FULL
		bool "Full"
		select LTO_CLANG
	config LTO_NONE
		bool "None"
endchoice
config LTO_CLANG
	bool
	select LTO
"""


class Unmet(unittest.TestCase):
    def reasons(self, option="CONFIG_RUST", **values):
        with tempfile.TemporaryDirectory() as name:
            write(name, {"arch/Kconfig": KCONFIG})
            config = {"HAVE_RUST": "y", "RUSTC_VERSION": "109500", "PAHOLE_VERSION": "124", "PAHOLE_HAS_EXCLUDE": "y"} | values
            return unmet.reasons(Path(name), option, {f"CONFIG_{k}": v for k, v in config.items()})

    def test_met(self):
        self.assertEqual([], self.reasons())
        self.assertEqual([], self.reasons(BTF="y"))
        self.assertEqual([], self.reasons(LTO="y", LTO_CLANG="y", LTO_FULL="y"))
        self.assertEqual([], self.reasons(B="y", A='"x"'))
        self.assertEqual([], self.reasons("CONFIG_UNKNOWN"))

    def test_named(self):
        self.assertEqual(["CONFIG_RUST is off because of CONFIG_HAVE_RUST=n: it needs HAVE_RUST"], self.reasons(HAVE_RUST="n"))
        self.assertEqual(["CONFIG_RUST is off because of CONFIG_TAGS=y and CONFIG_RUSTC_VERSION=109500: it needs "
                          "!TAGS || RUSTC_VERSION >= 109600"], self.reasons(TAGS="y"))
        self.assertIn("because of CONFIG_B=y and CONFIG_A=n", self.reasons(B="y")[0])

    def test_who_selects(self):
        """LTO is nobody's choice, and what is met is not named."""
        row = "CONFIG_RUST is off because of CONFIG_BTF=y and CONFIG_LTO_FULL=y: it needs !BTF || (PAHOLE_HAS_EXCLUDE && !LTO)"
        self.assertEqual([row], self.reasons(BTF="y", LTO="y", LTO_CLANG="y", LTO_FULL="y"))

    def test_version_of_a_tool(self):
        rows = self.reasons(BTF="y", PAHOLE_HAS_EXCLUDE="n", PAHOLE_VERSION="123")
        self.assertIn("CONFIG_BTF=y and CONFIG_PAHOLE_HAS_EXCLUDE=n", rows[0])
        self.assertEqual("CONFIG_PAHOLE_HAS_EXCLUDE is off because of CONFIG_PAHOLE_VERSION=123: it needs PAHOLE_VERSION >= 124",
                         rows[1])

    def test_expressions(self):
        config = {"CONFIG_Y": "y", "CONFIG_M": "m", "CONFIG_N": "n", "CONFIG_S": '"word"', "CONFIG_X": "0x10"}
        for text, is_met in (("Y && M", True), ("!M", True), ("!Y || N", False), ("!(Y && N)", True), ("M = m", True),
                             ("M=y", False), ("Y != n", True), ('S = "word"', True), ("X > 15", True), ("X <= 15", False),
                             ("Y && (N || M)", True), ("N || Y && N", False), ("64BIT", False), ("y", True)):
            self.assertEqual(is_met, bool(unmet.truth(unmet.parsed(text), config)), text)
