# SPDX-License-Identifier: GPL-2.0
"""Tests of fio, fsx and stress-ng: how they are had, what is skipped, and what a run of them has to say."""

import contextlib
import io
import json
import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from tlbrs.guest import console, exercisers, guest, initramfs
from tlbrs.kernel import toolchain
from tlbrs.suites import harness, on_demand, written


class Made(unittest.TestCase):
    def setUp(self):
        self.tmp = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(contextlib.redirect_stdout(io.StringIO()))
        self.enterContext(contextlib.redirect_stderr(io.StringIO()))
        for module in (harness, written):
            self.enterContext(mock.patch.object(module, "LOGS", self.tmp))
        self.enterContext(mock.patch.dict("os.environ", {"ARCH": "arm64", "MINUTES": "1", "SEED": "7"}))

    def suite(self):
        suite = harness.Suite("s")
        self.addCleanup(suite.log.close)
        return suite


def cannot(arch):
    raise initramfs.GuestError(f"no network for {arch}")


RUSTC = """case $* in
"--version") echo rustc 1.85.0;;
"--print sysroot") echo {};;
esac
"""
# What it is called with, and a program.
CARGO = """[ "$1" != --version ] || {{ echo cargo 1.85.0; exit; }}
echo "$*" >> {0}/called
echo "$RUSTC $CARGO_ENCODED_RUSTFLAGS $CC" | tr '\037' ' ' > {0}/flags
while [ "$1" != --root ]; do shift; done
mkdir $2/bin
echo program > $2/bin/fsx
"""


class Had(Made):
    def setUp(self):
        super().setUp()
        self.enterContext(mock.patch.object(exercisers, "BUILD", self.tmp))
        self.program("rustc", RUSTC.format(self.tmp))
        self.enterContext(mock.patch.dict("os.environ", {"PATH": f"{self.tmp}/bin:{os.environ['PATH']}", "CC": "theirs",
                                                         "RUSTC": ""}))

    def program(self, name, text):
        path = self.tmp / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}", encoding="ascii")
        path.chmod(0o755)

    def library(self, place):
        (place / "lib/rustlib/aarch64-unknown-linux-gnu/lib").mkdir(parents=True)
        (place / "lib/rustlib/aarch64-unknown-linux-gnu/lib/libstd-1.rlib").touch()

    def test_fsx_is_built_once(self):
        self.library(self.tmp)
        self.program("cargo", CARGO.format(self.tmp))
        for _ in range(2):
            self.assertEqual(exercisers.fsx("arm64").read_text(encoding="ascii"), "program\n")
        called = (self.tmp / "called").read_text(encoding="ascii").splitlines()
        self.assertEqual(len(called), 1)
        self.assertRegex(called[0], r"install fsx --version \S+ --locked --target aarch64-unknown-linux-gnu ")
        # A compiler that make has been given for the kernel is not for this.
        self.assertRegex((self.tmp / "flags").read_text(encoding="ascii"),
                         r"/bin/rustc -C target-feature=\+crt-static -C linker=(aarch64-linux-gnu-)?gcc -C strip=symbols \n")

    def test_what_rustup_lacks(self):
        with self.assertRaisesRegex(initramfs.GuestError, "rustup target add aarch64-unknown-linux-gnu"):
            exercisers.fsx("arm64")

    def test_what_debian_has_for_the_other_architecture(self):
        asked = []

        @contextlib.contextmanager
        def unpacked(arch, package):
            asked.append((arch, package))
            self.library(self.tmp / "root/usr")
            yield self.tmp / "root"

        self.program("dpkg-query", "echo rustc-web: $2\n")
        with mock.patch.object(initramfs, "unpacked", unpacked):
            for _ in range(2):
                words = exercisers.standard_library("arm64", str(self.tmp / "bin/rustc"))
        self.assertEqual(asked, [("arm64", "libstd-rust-web-dev")])
        self.assertEqual(words[0], "-L")
        self.assertTrue((words[1] / "libstd-1.rlib").exists())

    def test_cargo_is_missing_or_has_no_network(self):
        self.library(self.tmp)
        with mock.patch.object(toolchain, "find_cargo", lambda: None):
            with self.assertRaisesRegex(initramfs.GuestError, "make setup"):
                exercisers.fsx("arm64")
        self.program("cargo", "[ $1 != --version ] || { echo cargo 1.85.0; exit; }\necho no network; exit 101\n")
        with self.assertRaisesRegex(initramfs.GuestError, "no network"):
            exercisers.fsx("arm64")

    def test_stress_ng_has_its_libraries(self):
        libraries = self.tmp / "usr/lib/some"
        libraries.mkdir(parents=True)
        (self.tmp / "lib").symlink_to("usr/lib")
        for path in (libraries / "libz.so.1", libraries / "libc.so.6", self.tmp / "usr/lib/ld.so.1"):
            path.touch()
        said = {"stress-ng": ("libz.so.1", "libc.so.6"), "libz.so.1": ("libc.so.6",), "libc.so.6": ("ld.so.1",)}

        def readelf(words):
            if "--dynamic" in words:
                return "".join(f" 0x1 (NEEDED)  Shared library: [{name}]\n" for name in said.get(words[-1].name, ()))
            return "      [Requesting program interpreter: /lib/ld.so.1]\n"

        with mock.patch.object(initramfs, "userland", lambda *_: self.tmp), mock.patch.object(exercisers, "tool", readelf):
            files = exercisers.stress_ng("arm64")
            self.assertEqual(sorted(files), ["bin/stress-ng", "lib/ld.so.1", "lib/libc.so.6", "lib/libz.so.1"])
            (libraries / "libz.so.1").unlink()
            with self.assertRaisesRegex(initramfs.GuestError, "libz.so.1"):
                exercisers.stress_ng("arm64")

    def test_what_is_missing_or_hangs_is_an_error(self):
        for words, seconds in (([str(self.tmp / "no-program")], None), (["sleep", "60"], 0.1)):
            with self.assertRaises(initramfs.GuestError):
                exercisers.tool(words, timeout=seconds)


class Suites(Made):
    def test_without_network_nothing_fails(self):
        suite = self.suite()
        with mock.patch.object(exercisers, "of_fsx", cannot), mock.patch.object(exercisers, "fio", cannot):
            written.fsx(suite)
            written.by_fio(suite, "arm64", "checked", self.fail)
        suite.done()
        self.assertEqual((suite.passed, suite.failed), (0, []))
        self.assertEqual(suite.skipped, ["x86_64", "arm64 fsx", "arm64 fio"])
        self.assertIn("no network for arm64", (self.tmp / "s.txt").read_text(encoding="utf-8"))

    def test_what_this_machine_cannot_make_is_skipped(self):
        suite = self.suite()
        with mock.patch.multiple(on_demand, kernel=lambda *_: True, filesystem=self.fail, boot=self.fail), \
                mock.patch.object(written, "by_fio", lambda *_: None), mock.patch.object(guest, "program", lambda name: None):
            on_demand.fs(suite)
        suite.done()
        self.assertEqual((suite.passed, suite.failed), (0, []))
        self.assertEqual(sorted(suite.skipped), sorted([
            "x86_64", *(f"arm64 migrc, {name}" for name in ("xfs", "btrfs", *guest.READ_ONLY)),
            *(f"arm64 written back, {name}" for name in ("xfs", "btrfs"))]))

    def test_fio_runs_on_what_the_image_has(self):
        (self.tmp / ".config").write_text("CONFIG_EXT4_FS=y\nCONFIG_XFS_FS=y\n# CONFIG_BTRFS_FS is not set\n",
                                           encoding="ascii")
        started = []
        with mock.patch.object(exercisers, "fio", lambda arch: "fio"), \
                mock.patch.object(guest, "kernel_path", lambda *_: self.tmp / "Image"):
            written.by_fio(self.suite(), "arm64", "checked", lambda *call, **more: started.append(more["disk"]))
        self.assertEqual(started, ["ext4:512M", "xfs:512M"])

    def outcome(self, first, second, fsck=0):
        """What is wrong if two boots print this, and the file system is so."""
        def boot(_suite, name, *_, **more):
            text = "tlb-rs: job start\n" + (second if "another" in name else first) + "tlb-rs: job exit 0\n"
            self.assertEqual(more["append"], "kunit.enable=0 tlbrs.disk=xfs")
            return guest.Result(records=console.records(text)[0])

        suite = self.suite()
        with mock.patch.multiple(written, boot=boot, FSCK={"xfs": ("sh", "-c", f"exit {fsck}")}), \
                mock.patch.object(guest, "make_disk", lambda path, *_, **__: path):
            written.exercised(suite, "arm64", "fs", "xfs", {}, 1, 7)
        return suite.failed

    def test_what_another_boot_finds(self):
        def line(sum_, files=9):
            return json.dumps({"files": files, "sum": sum_}) + "\n"

        self.assertEqual(self.outcome(line("a"), line("a")), [])
        self.assertEqual(self.outcome(line("a"), line("a"), fsck=1), ["arm64 fsx, xfs: sh"])
        differ = ["arm64 fsx, xfs: another boot finds the same"]
        for first, second in ((line("a"), line("b")), (line("a"), ""), ("", ""), (line("a", 2), line("a", 2))):
            self.assertEqual(self.outcome(first, second), differ)
