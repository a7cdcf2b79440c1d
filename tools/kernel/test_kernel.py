#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Tests of the build tools (KTAP): errors as a new user meets them, and the handling of trees.

The tools run as they would from make, in a copy of the repository with a small kernel tree, a PATH
without the tool in question, and an apt that answers what the case needs.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import common	# pylint: disable=wrong-import-position

RMAP = "".join(f"int line{i};\n" for i in range(40))
STOCK = {"Makefile": "VERSION = 7\nPATCHLEVEL = 3\nSUBLEVEL = 4\n", "mm/Kconfig": 'config MM\n\tbool\n',
         "mm/rmap.c": RMAP, "mm/vmscan.c": RMAP, "scripts/kconfig/conf.c": "", "rust/kernel/lib.rs": "//\n",
         ".gitignore": "*.o\n"}
PATCH1 = """Subject: [PATCH] mm: first
--- a/mm/rmap.c
+++ b/mm/rmap.c
@@ -3,4 +3,5 @@
 int line2;
 int line3;
+int first;
 int line4;
 int line5;
"""
PATCH2 = """Subject: [PATCH] mm: second
--- a/mm/rmap.c
+++ b/mm/rmap.c
@@ -29,4 +30,5 @@
 int line28;
 int line29;
+int second;
 int line30;
 int line31;
"""


def write(root, files):
    for name, text in files.items():
        f = Path(root, name)
        f.parent.mkdir(parents=True, exist_ok=True)
        f.write_text(text, encoding="utf-8")


def contents(tree):
    return {str(f.relative_to(tree)): hashlib.sha256(f.read_bytes()).hexdigest()
            for f in tree.rglob("*") if f.is_file()}


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="tlb-rs-test-"))).resolve()
        self.repo, self.kdir, self.cache = self.dir / "repo", self.dir / "linux", self.dir / "cache"
        shutil.copytree(HERE, self.repo / "tools/kernel", ignore=shutil.ignore_patterns("__pycache__"))
        write(self.repo, {"Kconfig.rust": "config OURS\n\tbool\n", "mm/tlb_batch/lib.rs": "// new\n",
                          "patches/series": "1.patch\n2.patch\n", "patches/1.patch": PATCH1,
                          "patches/2.patch": PATCH2})
        write(self.kdir, STOCK)
        self.env = {**os.environ, "XDG_CACHE_HOME": str(self.cache), "INSTALL": "0", "LC_ALL": "C"}
        for v in ("LLVM", "RUSTC", "BINDGEN", "RUST_LIB_SRC", "TLB_RS_BUILD"):
            self.env.pop(v, None)

    def path(self, without=(), **fakes):
        """PATH = everything of the machine but the tools named, plus shell scripts."""
        d = self.dir / "bin"
        shutil.rmtree(d, ignore_errors=True)
        d.mkdir()
        for p in (*os.get_exec_path(), "/usr/sbin", "/sbin"):
            for f in Path(p).glob("*") if Path(p).is_dir() else ():
                if not f.name.startswith(tuple(without)) and f.name not in fakes and not (d / f.name).is_symlink():
                    (d / f.name).symlink_to(f)
        for name, script in fakes.items():
            (d / name).unlink(missing_ok=True)
            (d / name).write_text("#!/bin/sh\n" + script, encoding="utf-8")
            (d / name).chmod(0o755)
        self.env["PATH"] = str(d)

    def run_tool(self, *args, prefix=()):
        p = subprocess.run([*prefix, sys.executable, self.repo / "tools/kernel/kernel.py", *args], env=self.env,
                           cwd=self.repo, text=True, capture_output=True, timeout=120, check=False)
        return p.returncode, p.stdout + p.stderr

    def ok(self, *args):
        status, out = self.run_tool(*args)
        self.assertEqual(status, 0, out)
        return out

    def fails(self, args, *expected, prefix=()):
        """The command fails with one message that says all of expected, and no traceback."""
        status, out = self.run_tool(*args, prefix=prefix)
        self.assertEqual(status, 1, out)
        self.assertNotIn("Traceback", out)
        self.assertEqual(out.count("error: "), 1, out)
        for text in expected:
            self.assertIn(text, out)
        return out


FAKE_RUSTC = 'case $1 in --version) echo "rustc %s (fake)";; --print) echo /nonexistent;; esac\n'
NEW_RUSTC, FAKE_BINDGEN = FAKE_RUSTC % "1.99.9", "echo bindgen 0.72.0\n"
NO_APT = {"apt-cache": "exit 0\n",
          "apt-get": 'case "$*" in *indextargets*) echo "Packages|Debian|stable|http://mirror.invalid/debian/";; esac\n'}


class Errors(Case):
    build = ("build", "--arch", "arm64", "--variant", "stock")

    def test_no_toolchain(self):
        self.path(("clang", "ld.lld", "llvm-", "lld"))
        self.fails(self.build, "missing: ", "sudo apt-get install -y --no-install-recommends", "clang-19 lld-19 llvm-19",
                   "libclang-19-dev", "INSTALL=1")

    def test_no_small_tool(self):
        self.path(("bison", "quilt"))
        out = self.fails(self.build, "bison", "quilt")
        self.assertNotIn("clang-19", out)

    def test_not_debian(self):
        self.path(("bison", "apt-get"))
        self.fails(self.build, "not a Debian or Ubuntu machine", "bison")

    def test_no_rustc(self):
        self.path(("rustc",))
        self.fails(self.build, "rustc")

    def test_rustc_too_old(self):
        self.path(rustc=FAKE_RUSTC % "1.63.0")
        self.fails(self.build, "too old: 1.63.0", "1.85.0", "rustup toolchain install stable", "RUSTC=")

    def test_no_bindgen(self):
        self.path(("bindgen", "cargo"), rustc=NEW_RUSTC)
        self.fails(self.build, "bindgen not found", "0.71.1", "sudo apt-get install", "cargo install")

    def test_bindgen_too_old(self):
        self.path(("cargo",), rustc=NEW_RUSTC, bindgen="echo bindgen 0.60.1\n")
        self.fails(self.build, "too old (0.60.1)", "0.71.1")

    def test_bindgen_build_fails(self):
        self.path(("bindgen",), rustc=NEW_RUSTC, cargo="echo 'error: no network'; exit 101\n")
        status, out = self.run_tool(*self.build)
        self.assertEqual(status, 1)
        self.assertIn("no network", out)
        self.assertIn("bindgen.log", out)

    def test_no_library_source(self):
        self.path(rustc=NEW_RUSTC, bindgen=FAKE_BINDGEN, **NO_APT)
        self.fails(self.build, "no library source for rustc 1.99.9", "rustup component add rust-src", "RUST_LIB_SRC=")

    def library(self):
        lib = self.dir / "library"
        write(lib, {"core/src/lib.rs": ""})
        self.env["RUST_LIB_SRC"] = str(lib)

    def test_package_in_no_suite(self):
        self.library()
        self.path(rustc=NEW_RUSTC, bindgen=FAKE_BINDGEN, **NO_APT)
        self.fails(self.build, "no package linux-source-7.3 or linux-source-7.2", "KDIR=")
        self.fails((*self.build, "--kver", "7.2"), "no package linux-source-7.2", "KDIR=")

    def test_no_network(self):
        self.library()
        apt = NO_APT | {"apt-get": NO_APT["apt-get"] + 'case "$*" in *update*) echo "E: no route" >&2; exit 100;; esac\n'}
        self.path(rustc=NEW_RUSTC, bindgen=FAKE_BINDGEN, **apt)
        self.fails(self.build, "apt-get update failed", "no route", "KDIR=")

    def test_wrong_checksum(self):
        self.library()
        apt = {"apt-cache": 'case "$*" in *madison*7.3) echo "linux-source-7.3 | 7.3.4-1 | x main Packages";;\n'
                            f'*show*) echo "SHA256: {"0" * 64}";; esac\n',
               "apt-get": NO_APT["apt-get"] + 'case "$*" in *download*) echo bad > linux-source-7.3_7.3.4-1_all.deb;; esac\n'}
        self.path(rustc=NEW_RUSTC, bindgen=FAKE_BINDGEN, **apt)
        self.fails(self.build, "downloading linux-source-7.3 7.3.4-1 failed")
        self.assertEqual([], list((self.cache / "tlb-rs").glob("linux-*")))

    def test_disk_full(self):
        """A build directory on a filesystem of 64 MiB."""
        small = self.dir / "small"
        small.mkdir()
        prefix = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
        mount = [*prefix, "sh", "-c", 'mount -t tmpfs -o size=64m tlb-rs "$0" && exec "$@"', small]
        if subprocess.run([*mount, "true"], capture_output=True, check=False).returncode:
            self.skipTest("cannot mount a tmpfs here")
        self.library()
        self.path(rustc=NEW_RUSTC, bindgen=FAKE_BINDGEN)
        self.env["TLB_RS_BUILD"] = str(small / "build")
        self.fails((*self.build, "--kdir", self.kdir), "not enough disk space", "2 GiB needed", "0.1 GiB free",
                   prefix=mount)

    def test_disk_full_during_build(self):
        log = self.dir / "log"
        with self.assertRaises(common.Fail) as e:
            common.logged(["sh", "-c", "echo fatal error: cannot write: No space left on device; exit 2"], log, "building")
        self.assertIn("the disk is full", str(e.exception))
        self.assertIn(str(log), str(e.exception))

    def test_interrupted_build(self):
        """Stopping the tool stops what it runs."""
        pid = self.dir / "pid"
        # Whoever started the tests in the background may have told all of them to ignore SIGINT.
        code = (f"import sys; sys.path.insert(0, {str(HERE)!r}); import common, pathlib, signal\n"
                "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
                f"common.main(lambda: common.logged(['sh', '-c', 'echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 120'], "
                f"pathlib.Path({str(self.dir / 'log')!r}), 'building'))")
        for sig in (signal.SIGTERM, signal.SIGINT):
            pid.unlink(missing_ok=True)
            with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as p:
                while not pid.exists():
                    self.assertIsNone(p.poll())
                    time.sleep(0.05)
                p.send_signal(sig)
                # Long, because other work may have the CPUs; shorter than the command.
                self.assertIn("the same command goes on from here", p.communicate(timeout=60)[1])
            self.assertEqual(130, p.returncode)
            with self.assertRaises(ProcessLookupError):
                os.kill(int(pid.read_text(encoding="ascii")), 0)

    def test_first_error(self):
        log = self.dir / "log"
        lines = ["  CC      lib/error.o", "  CC      mm/rmap.o", "mm/rmap.c:3:1: error: unknown type name 'x'", "more",
                 "make[2]: *** [mm/rmap.o] Error 1"]
        with self.assertRaises(common.Fail) as e:
            common.logged(["sh", "-c", 'printf "%s\\n" "$@"; exit 2', "-", *lines], log, "building")
        self.assertIn("first error:\nmm/rmap.c:3:1", str(e.exception))

    def test_bad_variables(self):
        self.fails(("build", "--arch", "riscv"), "ARCH=riscv", "arm64, x86_64")
        self.fails(("build", "--variant", "fast"), "VARIANT=fast", "stock")

    def test_kdir_is_no_kernel(self):
        (self.kdir / "mm/Kconfig").unlink()
        for args in (("tree", "--kdir", self.kdir), ("apply", "--kdir", self.kdir), ("tree", "--kdir", "/nonexistent")):
            self.fails(args, "is not a Linux kernel source tree")

    def test_kdir_already_patched(self):
        self.ok("apply", "--kdir", self.kdir)
        self.fails(("tree", "--kdir", self.kdir), "already carries the tlb-rs patches", "make unapply KDIR=")
        write(self.dir / "other", STOCK | {"mm/Kconfig.rust": ""})
        self.fails(("tree", "--kdir", self.dir / "other"), "already carries the tlb-rs patches", "git am")
        self.fails(("apply", "--kdir", self.dir / "other"), "already carries tlb-rs")

    def test_hunk_does_not_apply(self):
        write(self.kdir, {"mm/rmap.c": RMAP.replace("line29", "other")})
        before = contents(self.kdir)
        self.fails(("apply", "--kdir", self.kdir), "patch 2.patch does not apply to mm/rmap.c", "was not changed")
        self.assertEqual(before, contents(self.kdir))
        self.fails(("tree", "--kdir", self.kdir), "patch 2.patch does not apply to mm/rmap.c", "patches/7.3/2.patch")

    def test_file_to_patch_is_missing(self):
        (self.kdir / "mm/rmap.c").unlink()
        self.fails(("apply", "--kdir", self.kdir), "patch 1.patch does not apply to mm/rmap.c", "was not changed")

    def test_fuzz_is_refused(self):
        write(self.kdir, {"mm/rmap.c": RMAP.replace("int line28;\n", "int other;\n")})
        self.fails(("apply", "--kdir", self.kdir), "patch 2.patch does not apply to mm/rmap.c")

    def test_overlay_would_overwrite(self):
        write(self.repo, {"mm/vmscan.c": "ours"})
        before = contents(self.kdir)
        self.fails(("apply", "--kdir", self.kdir), "mm/vmscan.c", "would overwrite", "patches/")
        self.assertEqual(before, contents(self.kdir))


class Own(Case):
    """make apply and unapply."""

    def test_round_trip(self):
        before = contents(self.kdir)
        self.ok("apply", "--kdir", self.kdir)
        text = (self.kdir / "mm/rmap.c").read_text()
        self.assertIn("first", text)
        self.assertIn("second", text)
        self.assertTrue((self.kdir / "mm/Kconfig.rust").exists())
        after = contents(self.kdir)
        self.assertIn("already applied", self.ok("apply", "--kdir", self.kdir))
        self.assertEqual(after, contents(self.kdir))
        write(self.repo, {"patches/series": "1.patch\n", "patches/2.patch": "gone", "mm/more.c": ""})
        self.ok("apply", "--kdir", self.kdir)
        self.assertNotIn("second", (self.kdir / "mm/rmap.c").read_text())
        shutil.rmtree(self.repo / "mm")
        (self.repo / "patches/series").unlink()
        self.ok("unapply", "--kdir", self.kdir)
        self.assertEqual(before, contents(self.kdir))
        self.fails(("unapply", "--kdir", self.kdir), "nothing to undo")

    def test_unapply_keeps_edits(self):
        self.ok("apply", "--kdir", self.kdir)
        for f in ("mm/rmap.c", "mm/tlb_batch/lib.rs"):
            original = (self.kdir / f).read_text()
            write(self.kdir, {f: original + "// edit\n"})
            self.fails(("unapply", "--kdir", self.kdir), f, "edit")
            write(self.kdir, {f: original})
        self.ok("unapply", "--kdir", self.kdir)

    def test_no_series(self):
        shutil.rmtree(self.repo / "patches")
        before = contents(self.kdir)
        self.ok("apply", "--kdir", self.kdir)
        self.ok("unapply", "--kdir", self.kdir)
        self.assertEqual(before, contents(self.kdir))

    def test_series(self):
        """git am of the series gives the tree that apply gives."""
        write(self.repo, {"patches/2.patch": PATCH2.split("\n", 1)[1]})	# without a description
        git = ["git", "-C", self.kdir, "-c", "user.name=A B", "-c", "user.email=a@b.invalid"]
        for args in (["init", "-q"], ["add", "-f", "."], ["commit", "-qm", "stock"]):
            subprocess.run([*git, *args], check=True)
        shutil.copytree(self.kdir, self.dir / "other", ignore=shutil.ignore_patterns(".git"))
        self.ok("series", "--out", self.dir / "out")
        p = subprocess.run([*git, "am", "-q", *sorted((self.dir / "out").iterdir())], text=True, capture_output=True,
                           check=False, env=self.env | {"GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@b.invalid"})
        self.assertEqual(0, p.returncode, p.stdout + p.stderr)
        self.ok("apply", "--kdir", self.dir / "other")
        shutil.rmtree(self.dir / "other/.tlb-rs")
        subjects = subprocess.run([*git, "log", "--format=%s"], check=True, text=True, capture_output=True).stdout
        shutil.rmtree(self.kdir / ".git")
        self.assertEqual(contents(self.dir / "other"), contents(self.kdir))
        self.assertEqual(["2", "mm: first", "mm: add the tlb-rs files", "stock"], subjects.splitlines())
        self.fails(("series", "--out", self.dir / "out"), "is not empty")

    def test_interrupted(self):
        """Stopped between two patches: both the next apply and unapply recover."""
        before = contents(self.kdir)
        for command in ("apply", "unapply"):
            self.ok("apply", "--kdir", self.kdir)
            q = {**self.env, "QUILT_PATCHES": str(self.kdir / ".tlb-rs/patches"), "QUILT_PC": ".tlb-rs/pc"}
            subprocess.run(["quilt", "--quiltrc", "-", "pop"], cwd=self.kdir, env=q, check=True, capture_output=True)
            (self.kdir / ".tlb-rs/busy").touch()
            self.ok(command, "--kdir", self.kdir)
            self.assertEqual("first" in (self.kdir / "mm/rmap.c").read_text(), command == "apply")
            if command == "apply":
                self.assertIn("second", (self.kdir / "mm/rmap.c").read_text())
                self.ok("unapply", "--kdir", self.kdir)
            self.assertEqual(before, contents(self.kdir))


class Built(Case):
    """The patched tree in build/."""

    def setUp(self):
        super().setUp()
        self.tree = self.repo / "build/7.3-kdir/linux"

    def sync(self):
        return self.ok("tree", "--kdir", self.kdir)

    def times(self):
        return {str(f.relative_to(self.tree)): f.stat().st_mtime_ns for f in self.tree.rglob("*")
                if f.is_file() and ".tlb-rs" not in f.parts}

    def touched(self, change):
        """Files whose time a sync changes after change()."""
        self.sync()
        before = self.times()
        time.sleep(0.02)
        change()
        self.sync()
        after = self.times()
        return {f for f in before | after if before.get(f) != after.get(f)}

    def test_kdir_is_not_changed(self):
        write(self.kdir, {"mm/rmap.o": "object", ".config": "", "vmlinux": "", ".git/config": "",
                          ".gitignore": "*.o\n/*\n!/debian/\n"})	# as Debian's
        before = contents(self.kdir)
        self.sync()
        for product in (".config", "vmlinux", ".git"):
            self.assertFalse((self.tree / product).exists())
        self.assertEqual(before, contents(self.kdir))
        self.assertFalse((self.tree / "mm/rmap.o").exists())
        self.assertIn("second", (self.tree / "mm/rmap.c").read_text())
        self.assertEqual(RMAP, (self.repo / "build/7.3-kdir/base/mm/rmap.c").read_text())

    def test_interrupted_copy(self):
        self.sync()
        (self.repo / "build/7.3-kdir/linux.base").unlink()
        shutil.rmtree(self.tree)
        write(self.tree, {"mm/rmap.c": RMAP})
        self.sync()
        self.assertIn("second", (self.tree / "mm/rmap.c").read_text())

    def test_nothing_to_do(self):
        self.assertEqual(set(), self.touched(lambda: None))

    def test_overlay_edit(self):
        self.assertEqual({"mm/tlb_batch/lib.rs"},
                         self.touched(lambda: write(self.repo, {"mm/tlb_batch/lib.rs": "// newer\n"})))

    def test_overlay_file_removed(self):
        self.assertEqual({"mm/tlb_batch/lib.rs"}, self.touched((self.repo / "mm/tlb_batch/lib.rs").unlink))
        self.assertFalse((self.tree / "mm/tlb_batch").exists())

    def test_header_of_a_patch_changed(self):
        """The code is the same: nothing is rebuilt."""
        self.assertEqual(set(), self.touched(lambda: write(self.repo, {"patches/1.patch": "More words.\n" + PATCH1})))

    def test_patch_changed(self):
        self.assertEqual({"mm/rmap.c"}, self.touched(
            lambda: write(self.repo, {"patches/2.patch": PATCH2.replace("second", "other")})))
        self.assertIn("other", (self.tree / "mm/rmap.c").read_text())

    def test_version_override(self):
        write(self.repo, {"patches/7.3/2.patch": PATCH2.replace("second", "only73")})
        self.sync()
        self.assertIn("only73", (self.tree / "mm/rmap.c").read_text())

    def test_new_base(self):
        def change():
            write(self.kdir, {"mm/vmscan.c": "newer\n"})
        self.assertEqual({"mm/vmscan.c"}, self.touched(change) - {"mm/rmap.c", "mm/Kconfig.rust", "mm/tlb_batch/lib.rs"})
        self.assertEqual("newer\n", (self.tree / "mm/vmscan.c").read_text())
        self.assertIn("second", (self.tree / "mm/rmap.c").read_text())

    def test_tree_edits_are_not_lost(self):
        self.sync()
        write(self.tree, {"mm/tlb_batch/lib.rs": "// in the tree\n"})
        write(self.repo, {"mm/tlb_batch/lib.rs": "// in the repository\n"})
        self.fails(("tree", "--kdir", self.kdir), "mm/tlb_batch/lib.rs was edited in the tree", "make refresh")

    def edit(self, name, old, new):
        f = self.tree / name
        self.assertIn(old, f.read_text())
        f.write_text(f.read_text().replace(old, new))

    def patch(self, name):
        return (self.repo / "patches" / name).read_text()

    def test_refresh_overlay(self):
        self.sync()
        write(self.tree, {"mm/tlb_batch/lib.rs": "// in the tree\n"})
        self.ok("refresh", "--kdir", self.kdir)
        self.assertEqual("// in the tree\n", (self.repo / "mm/tlb_batch/lib.rs").read_text())
        self.sync()

    def test_refresh_patch(self):
        self.sync()
        self.edit("mm/rmap.c", "second;", "second_edited;")
        self.edit("mm/vmscan.c", "line5;", "vmscan_edited;")
        one = self.patch("1.patch")
        self.ok("refresh", "--kdir", self.kdir, "--patch", "2.patch")
        two = self.patch("2.patch")
        self.assertTrue(two.startswith("Subject: [PATCH] mm: second"))
        self.assertIn("+int second_edited;", two)
        self.assertIn("+int vmscan_edited;", two)
        self.assertEqual(one, self.patch("1.patch"))
        self.assertNotIn("tlb-rs-edited", two)
        # What was written back must give the same tree.
        edited = (self.tree / "mm/rmap.c").read_text()
        shutil.rmtree(self.repo / "build")
        self.sync()
        self.assertEqual(edited, (self.tree / "mm/rmap.c").read_text())

    def test_refresh_lower_patch(self):
        self.sync()
        self.edit("mm/rmap.c", "first;", "first_edited;")
        self.fails(("refresh", "--kdir", self.kdir, "--patch", "1.patch"), "also changed by 2.patch", "make edit PATCH=1.patch")
        self.edit("mm/rmap.c", "first_edited;", "first;")
        self.ok("edit", "--kdir", self.kdir, "--patch", "1.patch")
        self.fails(("tree", "--kdir", self.kdir), "1.patch is being edited", "make refresh PATCH=1.patch")
        self.edit("mm/rmap.c", "first;", "first_edited;")
        self.ok("refresh", "--kdir", self.kdir, "--patch", "1.patch")
        self.assertIn("+int first_edited;", self.patch("1.patch"))
        self.assertIn("second", (self.tree / "mm/rmap.c").read_text())
        self.sync()

    def test_refresh_new_patch(self):
        self.sync()
        self.edit("mm/vmscan.c", "line5;", "third;")
        self.fails(("refresh", "--kdir", self.kdir), "mm/vmscan.c", "PATCH=")
        self.ok("refresh", "--kdir", self.kdir, "--patch", "3.patch")
        self.assertIn("+int third;", self.patch("3.patch"))
        self.assertEqual(["1.patch", "2.patch", "3.patch"], self.patch("series").split())
        self.assertIn("--- a/mm/vmscan.c\n+++ b/mm/vmscan.c\n", self.patch("3.patch"))
        self.sync()

    def test_unwritten_edit_stops_a_pop(self):
        self.sync()
        self.edit("mm/rmap.c", "second;", "second_edited;")
        self.sync()	# no change of the series: the edit is built as it is
        write(self.repo, {"patches/1.patch": PATCH1.replace("first", "other")})
        self.fails(("tree", "--kdir", self.kdir), "mm/rmap.c was edited", "make refresh PATCH=2.patch")


class Ktap(unittest.TestResult):
    """KTAP lines; the traceback of a failure as comments."""

    def line(self, test, status, note=""):
        print(f"{status} {self.testsRun} {test.id().split('.', 1)[1]}{note}", flush=True)

    def addSuccess(self, test):
        self.line(test, "ok")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.line(test, "ok", f" # SKIP {reason}")

    def addFailure(self, test, err):
        super().addFailure(test, err)
        text = self._exc_info_to_string(err, test)
        print("\n".join("# " + l for l in text.splitlines()))
        self.line(test, "not ok")

    addError = addFailure


if __name__ == "__main__":
    load, this = unittest.defaultTestLoader, sys.modules["__main__"]
    suite = load.loadTestsFromNames(sys.argv[1:], this) if sys.argv[1:] else load.loadTestsFromModule(this)
    print(f"KTAP version 1\n1..{suite.countTestCases()}")
    result = Ktap()
    suite.run(result)
    sys.exit(0 if result.wasSuccessful() else 1)
