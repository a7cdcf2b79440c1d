# SPDX-License-Identifier: GPL-2.0
"""Tests of make doctor."""

import contextlib
import io
import subprocess
import sys
import unittest
from unittest import mock

from tests.kernel.fixtures import FAKE_RUSTC, NEW_RUSTC, OLD_APT, Case, write
from tlbrs.kernel import common, toolchain


class Doctor(Case):
    """make doctor, on machines that lack one thing or another."""

    def doctor(self, status, *expected):
        p = subprocess.run([sys.executable, self.repo / "tools/tlb-rs", "toolchain", "doctor"], env=self.env,
                           cwd=self.repo, text=True, capture_output=True, timeout=120, check=False)
        self.assertEqual(status, p.returncode, p.stdout + p.stderr)
        self.assertEqual("", p.stderr)
        for text in expected:
            self.assertIn(text, p.stdout)
        return p.stdout

    def apt(self, **versions):
        """An apt-cache that has these."""
        cases = "".join(f'*" {p.replace("_", "-")}") echo "  Candidate: {v}";;\n' for p, v in versions.items())
        return f'case " $*" in {cases}*) {OLD_APT.strip()};; esac\n'

    def test_debian_without_rust(self):
        rust = {name: "1.85.0+dfsg3-1" for name in ("rustc", "cargo", "rustfmt", "rust_clippy")}
        self.path(("rustc", "cargo", "rustfmt", "clippy-driver", "bindgen"),
                  **{"apt-cache": self.apt(bindgen="0.71.1-4", **rust)})
        # All at once: who has installed them must not be told of more.
        out = self.doctor(1, "MISSING  rustc", "apt-get install -y --no-install-recommends",
                          " rustc rust-src bindgen", " cargo rustfmt rust-clippy")
        self.assertNotIn("rustup", out)

    def test_old_rust(self):
        """Debian 12: a rustc that is too old, and a newer one that has another name."""
        self.path(("cargo", "bindgen"), rustc=FAKE_RUSTC % "1.63.0",
                  **{"apt-cache": self.apt(rustc="1.63.0+dfsg1-2", rustc_web="1.85.0+dfsg3-1~deb12u3",
                                           bindgen="0.60.1-2", **{"bindgen_0.71": "(none)", "bindgen_0.72": "(none)"})})
        self.doctor(1, "1.63.0, too old", " rustc-web rust-web-src cargo-web")

    def test_no_rust_in_any_suite(self):
        self.path(("rustc",), **{"apt-cache": self.apt(rustc="1.63.0")})
        self.doctor(1, "rustup toolchain install stable", "component add rust-src")

    def test_ubuntu_has_it_by_version(self):
        self.path(("rustc", "cargo", "bindgen"), **{"apt-cache": self.apt(
            rustc="1.75.0", bindgen="0.66.1", **{"rustc_1.85": "1.85.1", "bindgen_0.71": "0.71.1"})})
        self.doctor(1, " rustc-1.85 rust-1.85-src bindgen-0.71")

    def test_named_tools(self):
        """What a variable names and is not there is the fault, and no package mends it."""
        self.path(("bindgen", "cargo", "bison"))
        for variable, value, what in (("RUSTC", "/nonexistent", "no such program"), ("LLVM", "-99", "clang-99"),
                                      ("BINDGEN", "/nonexistent", "no such program"),
                                      ("RUST_LIB_SRC", "/nonexistent", "no core/src/lib.rs there")):
            self.env[variable] = value
            out = self.doctor(1, f"{variable}={value}: ", what, f"leave out {variable}", " bison")
            self.assertRegex(out, rf"MISSING +\S+ +{variable}={value}: ")
            self.assertRegex(out, rf"MISSING +kernel +make kernel: bison .*{variable}={value}\b")
        self.assertNotRegex(out, r"apt-get install .*(rustc|clang|bindgen|cargo)|rustup")

    def test_apply_needs_no_compiler(self):
        self.path(("rustc", "clang", "cargo"))
        out = self.doctor(1, "MISSING  kernel       make kernel: ")
        self.assertRegex(out, r"ok +patches +make apply, series: complete")
        self.path(("quilt",))
        self.assertRegex(self.doctor(1), r"MISSING +patches +make apply, series: quilt")

    def test_no_lists(self):
        self.path(("bison",), **{"apt-cache": "exit 0\n"})
        self.doctor(1, "apt-get update && make doctor")

    def test_versioned_bindgen(self):
        self.path(("bindgen", "cargo"), **{"rustc": NEW_RUSTC, "bindgen-0.71": "echo bindgen 0.71.1\n"})
        self.assertRegex(self.doctor(0), r"ok +bindgen +0\.71\.1, \S+/bindgen-0\.71")

    def test_bindgen_loses_types(self):
        """With libclang 22, that of Debian 13: what is wrong, and what mends it."""
        write(self.dir, {"lib/libclang.so.1": ""})
        self.env["LIBCLANG_PATH"] = str(self.dir / "lib")
        unfit = r"bindgen is 0\.71\.1, but 0\.72\.1 or newer is needed with libclang 22\.1\.0"
        tools = {tool: "echo clang version 22.1.0\n" for tool in toolchain.LLVM_TOOLS}
        tools |= {"rustc": NEW_RUSTC, "bindgen": "echo bindgen 0.71.1\n", "apt-cache": self.apt(
            bindgen="0.71.1-4", **{"bindgen_0.71": "(none)", "bindgen_0.72": "(none)"})}
        self.path(("clang", "ld.lld", "llvm-", "cargo"), **tools)
        self.assertRegex(self.doctor(1, "apt-get install"), r"MISSING +bindgen +\S+" + unfit)
        self.assertNotRegex(self.doctor(1), r"apt-get install .* bindgen")
        self.path(("clang", "ld.lld", "llvm-"), **tools, cargo="echo cargo 1.99.9\n")
        self.assertRegex(self.doctor(0), rf"ok +bindgen +\S+{unfit}.*; the first build makes it with cargo")
        self.env["BINDGEN"] = str(self.dir / "bin/bindgen")
        self.assertRegex(self.doctor(1), rf"MISSING +bindgen +BINDGEN=\S+: {unfit[11:]}")

    def test_fedora_and_arch(self):
        for manager, rust, header in (("dnf", "rust rust-src bindgen-cli", "elfutils-libelf-devel"),
                                      ("pacman", "rust rust-src rust-bindgen", "libelf")):
            self.path(("apt-get", "apt-cache", "rustc", "cargo", "bindgen", "bison", "gcc", "clang", "dpkg"),
                      **{manager: "exit 0\n"})
            out = self.doctor(1, f"{manager} ", " bison ", rust, header, " clang lld llvm ")
            self.assertNotRegex(out.split("to build, run and test")[1], r"-dev\b|clang-19")


class Machine(unittest.TestCase):
    def test_directory_that_cannot_be_read(self):
        with mock.patch.object(toolchain.os, "listdir", side_effect=PermissionError):
            self.assertEqual(set(), toolchain.in_path(".*"))

    def test_full_disk(self):
        said = io.StringIO()
        with mock.patch.object(toolchain.shutil, "disk_usage", return_value=mock.Mock(free=5 * common.GIB)), \
                contextlib.redirect_stdout(said):
            self.assertEqual(1, toolchain.doctor())
        self.assertRegex(said.getvalue(), "MISSING  disk +5 GiB")
        self.assertIn("\nfree some space on the filesystem of ", said.getvalue())
        self.assertNotIn("nothing is missing", said.getvalue())
