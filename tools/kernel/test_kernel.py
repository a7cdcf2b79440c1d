#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Tests of the build tools (KTAP): errors as a new user meets them, and the handling of trees.

The tools run as they would from make, in a copy of the repository with a small kernel tree, a PATH
without the tool in question, and an apt that answers what the case needs.
"""

import compileall
import contextlib
import functools
import hashlib
import io
import itertools
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
# pylint: disable=wrong-import-position
import common
import overlay
import series
import source
import toolchain

KVER = os.environ.get("KVER", source.KVERS[0])

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
# What the second one mends, and what the kernel may have in its place.
FIXES = "[two/0001-b.patch]\nmm/rmap.c = int line29;\n    int line30;\n"
MENDED = RMAP.replace("int line30;", "int theirs;\nint line30;")
# In a script that the tool has called. Twice: what comes just before Python waits for the script is seen when that ends.
INTERRUPT = "kill -INT $PPID; sleep 5; kill -INT $PPID; sleep 60"


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
        shutil.copytree(HERE, self.repo / "tools/kernel")
        write(self.repo, {"Kconfig.rust": "config OURS\n\tbool\n", "mm/tlb_batch/lib.rs": "// new\n",
                          "patches/order": "# both\none two\n", "patches/one/0001-a.patch": PATCH1,
                          "patches/two/0001-b.patch": PATCH2})
        write(self.kdir, STOCK)
        self.env = {**os.environ, "XDG_CACHE_HOME": str(self.cache), "INSTALL": "0", "LC_ALL": "C"}
        for v in ("LLVM", "RUSTC", "BINDGEN", "RUST_LIB_SRC", "TLB_RS_BUILD"):
            self.env.pop(v, None)

    def path(self, without=(), **fakes):
        """PATH = shell scripts, and everything of the machine but the tools named.

        One script is an apt-cache that knows nothing new: the machine's takes a second for each answer.
        """
        if not "apt-cache".startswith(tuple(without)):
            fakes = {"apt-cache": OLD_APT} | fakes
        top = self.dir / "bin"
        shutil.rmtree(top, ignore_errors=True)
        write(top, {name: "#!/bin/sh\n" + script for name, script in fakes.items()})
        for name in fakes:
            (top / name).chmod(0o755)
        places = [str(top)]
        # /bin and /usr/bin are mostly the same.
        for place in dict.fromkeys(map(os.path.realpath, (*os.get_exec_path(), "/usr/sbin", "/sbin"))):
            tools = os.listdir(place) if os.path.isdir(place) else []
            kept = [name for name in tools if not name.startswith(tuple(without))]
            if kept != tools:
                links = self.dir / f"bin{len(places)}"
                shutil.rmtree(links, ignore_errors=True)
                links.mkdir()
                for name in kept:
                    (links / name).symlink_to(f"{place}/{name}")
                place = str(links)
            places.append(place)
        self.env["PATH"] = ":".join(places)

    def library(self):
        lib = self.dir / "library"
        write(lib, {"core/src/lib.rs": ""})
        self.env["RUST_LIB_SRC"] = str(lib)

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


OLD_APT = 'echo "  Candidate: 1.0"\n'
FAKE_RUSTC = 'case $1 in --version) echo "rustc %s (fake)";; --print) echo /nonexistent;; esac\n'
NEW_RUSTC, FAKE_BINDGEN = FAKE_RUSTC % "1.99.9", "echo bindgen 0.73.0\n"

NO_APT = {"apt-cache": "exit 0\n",
          "apt-get": 'case "$*" in *indextargets*) echo "Packages|Debian|stable|http://mirror.invalid/debian/";; esac\n'}


class Errors(Case):
    build = ("build", "--arch", "arm64", "--variant", "stock")

    def test_no_toolchain(self):
        self.path(("clang", "ld.lld", "llvm-", "lld"))
        self.fails(self.build, "missing: ", "sudo apt-get install -y --no-install-recommends", "clang-19 lld-19 llvm-19",
                   "libclang-19-dev", "INSTALL=1")

    def test_llvm_tool(self):
        """One without a suffix may be older; and all of that version must be there."""
        code = "import common, toolchain; common.main(lambda: print(toolchain.llvm_tool('llvm-mc')))"
        tools = ("clang", "ld.lld", "llvm-ar", "llvm-nm", "llvm-objcopy", "llvm-strip", "llvm-readelf")
        old = {tool: "echo clang version 14.0.6\n" for tool in tools} | {"clang-21": "echo clang version 21.1.0\n"}
        for more, said in (({}, "error: no LLVM 19 or newer: make doctor"),
                           ({f"{tool}-20": "echo clang version 20.1.0\n" for tool in tools}, "llvm-mc-20")):
            self.path(("clang", "ld.lld", "llvm-"), **old, **more)
            p = subprocess.run([sys.executable, "-c", code], env=self.env, cwd=self.repo / "tools/kernel", text=True,
                               capture_output=True, check=False)
            self.assertEqual((p.stdout + p.stderr).strip(), said)

    def test_no_small_tool(self):
        self.path(("bison", "quilt"))
        out = self.fails(self.build, "bison", "quilt")
        self.assertNotIn("clang-19", out)

    def test_not_debian(self):
        self.path(("bison", "apt-get"))
        self.fails(self.build, "not a Debian or Ubuntu machine", "bison")

    def test_no_rustc(self):
        self.path(("rustc", "bindgen"))
        self.fails(self.build, "rustc not found", "rustup toolchain install stable")
        self.path(("rustc", "bindgen"), **{"apt-cache": 'echo "  Candidate: 1.85.0"\n'})
        self.fails(self.build, "missing: rustc rust-src bindgen")

    def test_rustc_too_old(self):
        self.path(rustc=FAKE_RUSTC % "1.63.0")
        self.fails(self.build, "too old: 1.63.0", "1.85.0", "rustup toolchain install stable", "RUSTC=")

    def test_no_bindgen(self):
        self.path(("bindgen", "cargo"), rustc=NEW_RUSTC)
        self.fails(self.build, "bindgen not found", "0.71.1", "sudo apt-get install", "cargo install")

    def test_bindgen_too_old(self):
        self.path(("cargo",), rustc=NEW_RUSTC, bindgen="echo bindgen 0.60.1\n")
        self.fails(self.build, "is too old: 0.60.1, but 0.71.1 or newer is needed")

    def libclang(self, clang, bindgen, said="", cargo=None):
        """An LLVM of that version alone; a bindgen that says of its libclang and of types what it is told to."""
        self.path(("clang", "ld.lld", "llvm-", "lld", "bindgen", "cargo"), rustc=NEW_RUSTC,
                  **{tool: f"echo clang version {clang}\n" for tool in toolchain.LLVM_TOOLS},
                  bindgen=f'case $1 in --version) echo bindgen {bindgen};; *) {said or "true"};; esac\n',
                  **({"cargo": cargo} if cargo else {}))
        write(self.dir, {"lib/libclang.so.1": ""})
        self.env["LIBCLANG_PATH"] = str(self.dir / "lib")

    def test_bindgen_loses_types(self):
        """libclang 22: refused before anything is fetched or compiled, unless the distribution has mended that bindgen."""
        self.library()
        message = "echo 'probe.h:1:9: warning: clang version %s' >&2"
        kept = 'grep -q "struct declared" "$1" && echo "    pub member: ::std::os::raw::c_int,"; true'
        unfit = "{}, but 0.72.1 or newer is needed with libclang {}"
        build = ("build", "--arch", "arm64", "--variant", "stock", "--kdir", self.kdir)
        for clang, bindgen, said, libclang in (
                ("22.1.0", "0.71.1", "", "22.1.0"), ("23.0.1", "0.72.0", "", "23.0.1"),
                ("19.1.7", "0.72.0", message % "22.1.8", "22.1.8"),     # another one than that LLVM's
                ("22.1.0", "0.72.0", message % "22.1.0; echo 'pub foo: [u8; 0]'", "22.1.0")):
            with self.subTest(clang=clang, bindgen=bindgen):
                self.libclang(clang, bindgen, said)
                out = self.fails(build, "bindgen is too old: " + unfit.format(bindgen, libclang), "apt-get install",
                                 "cargo install --locked bindgen-cli", "BINDGEN=")
                self.assertNotIn("copying", out)
                self.env["BINDGEN"] = str(self.dir / "bin/bindgen")
                self.fails(build, "bindgen: " + unfit.format(bindgen, libclang), "leave out BINDGEN")
                del self.env["BINDGEN"]
        for clang, bindgen, said in (("22.1.0", "0.72.1", ""), ("21.1.8", "0.71.1", ""), ("22.1.0", "0.71.1", kept),
                                     ("22.1.0", "0.72.0", message % "21.1.8")):
            with self.subTest(clang=clang, bindgen=bindgen):
                self.libclang(clang, bindgen, said)
                _, out = self.run_tool(*build)
                self.assertNotIn("bindgen", out)
                self.assertIn("copying", out)
                shutil.rmtree(self.repo / "build")

    def test_bindgen_is_built(self):
        """By cargo; what that has built is looked at, too."""
        self.library()
        build = ("build", "--arch", "arm64", "--variant", "stock", "--kdir", self.kdir)
        cargo = ('case $1 in --version) echo cargo 1.99.9;; install) mkdir -p "$4/bin"; '
                 "printf '#!/bin/sh\\necho bindgen %s\\n' > \"$4/bin/bindgen\"; chmod +x \"$4/bin/bindgen\";; esac\n")
        self.libclang("22.1.0", "0.71.1", cargo=cargo % "0.72.0")
        self.env["SSL_CERT_FILE"] = "/dev/null"
        self.fails(build, "the bindgen that cargo built is too old: 0.72.0, but 0.72.1 or newer is needed with libclang 22.1.0")
        self.libclang("22.1.0", "0.71.1", cargo=cargo % "0.72.1")
        self.assertIn("copying", self.run_tool(*build)[1])

    def test_cargo_needs_certificates(self):
        """A fresh machine has none, and cargo's own message does not say so."""
        none = {"CARGO_HTTP_CAINFO": "/nonexistent", "SSL_CERT_FILE": "/nonexistent"}
        with mock.patch.object(toolchain, "CERTIFICATES", self.dir / "none"), mock.patch.dict(os.environ, none), \
                mock.patch.object(toolchain, "which", lambda name: f"/usr/bin/{name}"):
            self.assertIn("ca-certificates", toolchain.missing(["test"]))
            with mock.patch.object(toolchain, "candidate", lambda package: ()):
                self.assertIn("ca-certificates", toolchain.bindgen_packages())
        with mock.patch.object(toolchain, "CERTIFICATES", self.dir):
            self.assertEqual([], toolchain.certificates())

    def test_old_cargo(self):
        """Debian 12's is too old to fetch or build anything of today; its rustc for browsers has one of its own."""
        self.path(("cargo",), cargo="echo cargo 0.66.0\n")
        rows = {"rustc-web": (1, 96, 0), "cargo-web": (1, 96, 0), "rustfmt-web": (1, 96, 0), "cargo": (0, 66, 0)}
        with mock.patch.dict(os.environ, {"PATH": self.env["PATH"]}), \
                mock.patch.object(toolchain, "find_rustc", lambda: None), \
                mock.patch.object(toolchain, "candidate", lambda package: rows.get(package, ())):
            self.assertIsNone(toolchain.find_cargo())
            self.assertIn("cargo-web", toolchain.missing(["test"]))
            self.assertEqual(["cargo-web"], [p for p in toolchain.bindgen_packages() if p != "ca-certificates"])
            self.assertEqual({"cargo": "cargo-web", "rustfmt": "rustfmt-web"}, toolchain.rust_tools())

    def test_bindgen_build_fails(self):
        self.path(("bindgen",), rustc=NEW_RUSTC, cargo="echo 'error: no network'; exit 101\n")
        status, out = self.run_tool(*self.build)
        self.assertEqual(status, 1)
        self.assertIn("no network", out)
        self.assertIn("bindgen.log", out)

    def test_no_library_source(self):
        self.path(rustc=NEW_RUSTC, bindgen=FAKE_BINDGEN, **NO_APT)
        self.fails(self.build, "no library source for rustc 1.99.9", "rustup component add rust-src", "RUST_LIB_SRC=")

    def test_named_tools(self):
        """Who names a tool that is not there gets no other one, and no packages."""
        old = self.dir / "old"
        write(self.dir, {"old": "#!/bin/sh\necho old 0.60.1\n"})
        old.chmod(0o755)
        self.path(("bison", "dh_prep"), **{"apt-get": f"echo $* >> {self.dir}/installed\n"})
        self.env |= {"INSTALL": "1", "HOME": str(self.dir)}
        for variable, value, what in (
                ("RUSTC", "/nonexistent", "RUSTC=/nonexistent: no such program"),
                ("RUSTC", "~/old", f"RUSTC={old}: 0.60.1, but 1.85.0 or newer"),
                ("LLVM", "-99", "LLVM=-99: no such program: clang-99, ld.lld-99"),
                ("LLVM", "/nonexistent/", "LLVM=/nonexistent/: no such program: /nonexistent/clang"),
                ("BINDGEN", "/nonexistent", "BINDGEN=/nonexistent: no such program"),
                ("BINDGEN", str(old), f"BINDGEN={old}: 0.60.1, but 0.71.1 or newer"),
                ("RUST_LIB_SRC", "/nonexistent", "RUST_LIB_SRC=/nonexistent: no core/src/lib.rs")):
            with self.subTest(variable=variable, value=value):
                self.env[variable] = value
                self.fails(self.build, what, f"leave out {variable}")
                self.fails(("deb", "--config", "defconfig"), what)
                del self.env[variable]
                self.assertFalse((self.dir / "installed").exists())

    def test_package_in_no_suite(self):
        self.library()
        self.path(rustc=NEW_RUSTC, bindgen=FAKE_BINDGEN, **NO_APT)
        self.fails(self.build, "no package linux-source-7.3", "KDIR=")

    def test_no_network(self):
        self.library()
        apt = NO_APT | {"apt-get": NO_APT["apt-get"] + 'case "$*" in *update*) echo "E: no route" >&2; exit 100;; esac\n'}
        self.path(rustc=NEW_RUSTC, bindgen=FAKE_BINDGEN, **apt)
        self.fails(self.build, "apt-get update failed", "no route", "KDIR=")

    def test_mirror_without_other_suites(self):
        """What this machine's own suites have will do."""
        self.library()
        apt = {"apt-cache": 'case "$*" in -c*) ;; *madison*7.3) echo "linux-source-7.3 | 7.3.4-1 | x main Packages";;\n'
                            'esac\n',
               "apt-get": NO_APT["apt-get"] + 'case "$*" in *update*) echo "E: no Release file" >&2; exit 100;; esac\n'}
        self.path(rustc=NEW_RUSTC, bindgen=FAKE_BINDGEN, **apt)
        self.fails(self.build, "linux-source-7.3 7.3.4-1 is the newest of this machine's suites", "no Release file",
                   "apt knows no SHA256")

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
        """Stopping the tool stops what it runs, and what that runs, before it ends itself."""
        pid = self.dir / "pid"
        # Whoever started the tests in the background may have told all of them to ignore SIGINT.
        code = (f"import sys; sys.path.insert(0, {str(HERE)!r}); import common, pathlib, signal\n"
                "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
                f"common.main(lambda: common.logged(['sh', '-c', 'echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 120'], "
                f"pathlib.Path({str(self.dir / 'log')!r}), 'building'))")
        outer = code[:code.index("common.main")] + f"common.main(lambda: common.status([sys.executable, '-c', {code!r}]))"
        for sig, code in itertools.product((signal.SIGTERM, signal.SIGINT), (code, outer)):
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
        for args in (("source",), ("deb", "--config", "defconfig"), ("tree", "--kdir", self.kdir)):
            for kver in ("6.1", "7.2"):
                text = self.fails((*args, "--kver", kver), f"KVER={kver}: one of 7.3")
                self.assertEqual(len(text.splitlines()), 1)

    def test_before_anything_is_copied_or_built(self):
        self.fails(("edit", "--kdir", self.kdir), "make edit PATCH=FOLDER/NAME")
        self.assertFalse((self.repo / "build").exists())
        shutil.copy(common.ROOT / "Makefile", self.repo)
        self.env["HOME"] = str(self.dir)
        for initrd, status in (("/nonexistent", 2), ("~/none.gz", 2), ("~/my.gz", 0)):
            write(self.dir, {"my.gz": ""})
            p = subprocess.run(["make", "boot", f"INITRD={initrd}", "PYTHON=echo"], env=self.env, cwd=self.repo, text=True,
                               capture_output=True, check=False)
            self.assertEqual(status, p.returncode, p.stderr)
            self.assertEqual("kernel.py build" in p.stdout, not status)
            if status:
                self.assertIn(f"INITRD={initrd}: no such file", p.stderr)
            else:
                self.assertIn(f"--initrd {self.dir}/my.gz", p.stdout)

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
        self.fails(("apply", "--kdir", self.kdir), "patch two/0001-b.patch does not apply to mm/rmap.c", "was not changed")
        self.assertEqual(before, contents(self.kdir))
        self.fails(("tree", "--kdir", self.kdir), "patch two/0001-b.patch does not apply to mm/rmap.c", "patches/two/0001-b.patch")

    def test_names_of_patches(self):
        apply = ("apply", "--kdir", self.kdir)
        write(self.repo, {"patches/two/0003-gap.patch": PATCH1})
        self.fails(apply, "two/0003-gap.patch is number 2 of its folder", "begin with 0002-")
        (self.repo / "patches/two/0003-gap.patch").rename(self.repo / "patches/two/0001-again.patch")
        self.fails(apply, "two/0001-b.patch is number 2 of its folder")
        (self.repo / "patches/two/0001-again.patch").unlink()
        write(self.repo, {"patches/three/0001-other.patch": PATCH1})
        self.fails(apply, "patches/order does not say", "three")
        shutil.rmtree(self.repo / "patches/three")
        write(self.repo, {"patches/fixes": FIXES.replace("two/0001-b.patch", "two/0002-gone.patch")})
        self.fails(apply, "patches/fixes names two/0002-gone.patch")

    def test_older_names(self):
        """A tree that has the series from before it had folders."""
        before = contents(self.kdir)
        for command in ("apply", "unapply"):
            self.ok("apply", "--kdir", self.kdir)
            state = self.kdir / ".tlb-rs"
            for place in ("patches", "pc"):
                for number, name in enumerate(("one/0001-a.patch", "two/0001-b.patch"), 1):
                    (state / place / name).rename(state / place / f"{number}.patch")
            for name in ("patches/series", "pc/applied-patches"):
                (state / name).write_text("1.patch\n2.patch\n", encoding="ascii")
            self.ok(command, "--kdir", self.kdir)
            if command == "apply":
                self.assertIn("two/0001-b.patch", (state / "pc/applied-patches").read_text())
                self.ok("unapply", "--kdir", self.kdir)
            self.assertEqual(before, contents(self.kdir))

    def test_file_to_patch_is_missing(self):
        (self.kdir / "mm/rmap.c").unlink()
        self.fails(("apply", "--kdir", self.kdir), "patch one/0001-a.patch does not apply to mm/rmap.c", "was not changed")

    def test_fuzz_is_refused(self):
        write(self.kdir, {"mm/rmap.c": RMAP.replace("int line28;\n", "int other;\n")})
        self.fails(("apply", "--kdir", self.kdir), "patch two/0001-b.patch does not apply to mm/rmap.c")

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
        (self.repo / "patches/two/0001-b.patch").unlink()
        write(self.repo, {"mm/more.c": ""})
        self.ok("apply", "--kdir", self.kdir)
        self.assertNotIn("second", (self.kdir / "mm/rmap.c").read_text())
        shutil.rmtree(self.repo / "mm")
        (self.repo / "patches/order").unlink()
        self.ok("unapply", "--kdir", self.kdir)
        self.assertEqual(before, contents(self.kdir))
        self.fails(("unapply", "--kdir", self.kdir), "nothing to undo")

    def test_fix_that_the_tree_has(self):
        """By another commit: what makes the patch needed is gone, and the patch would not apply."""
        write(self.repo, {"patches/fixes": FIXES})
        for text, there in ((RMAP, True), (MENDED, False)):
            write(self.kdir, {"mm/rmap.c": text})
            for what in ("2 patches" if there else "1 patches", "already applied"):
                self.assertIn(what, self.ok("apply", "--kdir", self.kdir))
                after = (self.kdir / "mm/rmap.c").read_text()
                self.assertEqual((True, there), ("int first;" in after, "int second;" in after))
            self.ok("unapply", "--kdir", self.kdir)
            self.assertEqual(text, (self.kdir / "mm/rmap.c").read_text())
        (self.repo / "patches/fixes").unlink()
        self.fails(("apply", "--kdir", self.kdir), "patch two/0001-b.patch does not apply", "mm/rmap.c")

    def test_unapply_keeps_edits(self):
        self.ok("apply", "--kdir", self.kdir)
        for f in ("mm/rmap.c", "mm/tlb_batch/lib.rs"):
            original = (self.kdir / f).read_text()
            write(self.kdir, {f: original + "// edit\n"})
            self.fails(("unapply", "--kdir", self.kdir), f, "edit")
            write(self.kdir, {f: original})
        self.ok("unapply", "--kdir", self.kdir)

    def shell(self, text):
        """What a message of ours says to type."""
        p = subprocess.run(["sh", "-c", text], env=self.env, cwd="/", text=True, capture_output=True, check=False)
        self.assertEqual("", p.stderr)

    def test_advice_about_edits(self):
        """Commands that a refusal prints work on a tree of the user's own, for all files that were edited."""
        third = PATCH1.replace("rmap", "vmscan").replace("first", "third")
        write(self.repo, {"patches/two/0002-c.patch": third})
        self.ok("apply", "--kdir", self.kdir)
        for f in ("mm/rmap.c", "mm/vmscan.c"):
            with open(self.kdir / f, "a", encoding="utf-8") as file:
                file.write("int mine;\n")
        out = self.fails(("unapply", "--kdir", self.kdir), "mm/rmap.c, mm/vmscan.c was edited")
        self.assertNotIn("make refresh", out)
        save, drop, back = re.findall(r"(?m)^    (.*)", out)
        for command in (save, drop):
            self.shell(command)
        self.ok("unapply", "--kdir", self.kdir)
        self.shell(back)
        for f in ("mm/rmap.c", "mm/vmscan.c"):
            self.assertEqual(RMAP + "int mine;\n", (self.kdir / f).read_text())

    def test_reverted_by_git(self):
        """What somebody has taken back is not "already applied", and the command that is printed brings it back."""
        stock = (self.kdir / "mm/rmap.c").read_text()
        before = contents(self.kdir)
        self.ok("apply", "--kdir", self.kdir)
        applied = contents(self.kdir)
        write(self.kdir, {"mm/rmap.c": stock})
        out = self.fails(("apply", "--kdir", self.kdir), "mm/rmap.c is as before the series again")
        self.assertEqual(stock, (self.kdir / "mm/rmap.c").read_text())
        self.shell(re.search(r"(?m)^    (.*)", out).group(1))
        self.assertEqual(applied, contents(self.kdir))
        self.assertIn("already applied", self.ok("apply", "--kdir", self.kdir))
        self.ok("unapply", "--kdir", self.kdir)
        self.assertEqual(before, contents(self.kdir))

    def test_advice_about_edits_of_new_files(self):
        ours = ("mm/Kconfig.rust", "mm/tlb_batch/lib.rs")
        before = contents(self.kdir)
        self.ok("apply", "--kdir", self.kdir)
        write(self.kdir, {f: "mine" for f in ours})
        write(self.repo, {"Kconfig.rust": "newer", "mm/tlb_batch/lib.rs": "newer"})
        for command in ("apply", "unapply"):
            out = self.fails((command, "--kdir", self.kdir), ", ".join(ours))
            self.assertNotIn("make refresh", out)
        self.shell(re.search(r"(?m)^    (.*)", out).group(1))
        self.ok("unapply", "--kdir", self.kdir)
        self.assertEqual(before, contents(self.kdir))
        for f in ours:
            self.assertEqual("mine", Path(f"{self.kdir}-edits", f).read_text())

    def test_longer_series_on_edits(self):
        """An edit is not taken for what the series made: the next unapply could not take it off."""
        self.ok("apply", "--kdir", self.kdir)
        write(self.kdir, {"mm/rmap.c": (self.kdir / "mm/rmap.c").read_text().replace("second", "mine")})
        write(self.repo, {"patches/two/0002-c.patch": PATCH1.replace("rmap", "vmscan")})
        self.fails(("apply", "--kdir", self.kdir), "mm/rmap.c was edited", "save the edits")

    def test_all_or_nothing_of_a_newer_series(self):
        """On a tree that has an older one: as it was, if the new one does not apply, or a new file was edited."""
        self.ok("apply", "--kdir", self.kdir)
        before = contents(self.kdir)
        write(self.repo, {"patches/two/0001-b.patch": PATCH2.replace("line29", "line99")})
        self.fails(("apply", "--kdir", self.kdir), "two/0001-b.patch does not apply", "was not changed")
        self.assertEqual(before, contents(self.kdir))
        write(self.kdir, {"mm/tlb_batch/lib.rs": "mine\n"})
        write(self.repo, {"patches/two/0001-b.patch": PATCH2.replace("second", "other"), "mm/tlb_batch/lib.rs": "theirs\n"})
        before = contents(self.kdir)
        self.fails(("apply", "--kdir", self.kdir), "lib.rs was edited in the tree")
        self.assertEqual(before, contents(self.kdir))
        write(self.repo, {"mm/tlb_batch/lib.rs": "mine\n"})
        self.ok("apply", "--kdir", self.kdir)
        self.assertIn("other", (self.kdir / "mm/rmap.c").read_text())

    def test_left_directory(self):
        """Of objects of what was taken off."""
        write(self.kdir, {"mm/tlb_batch/lib.o": "object"})
        self.ok("apply", "--kdir", self.kdir)
        self.ok("unapply", "--kdir", self.kdir)

    def test_hint(self):
        """The commands that turn the options on name the tools that make kernel would use."""
        self.library()
        self.path(rustc=NEW_RUSTC, bindgen=FAKE_BINDGEN)
        out = self.ok("apply", "--kdir", self.kdir)
        self.assertRegex(out, rf"-e MIGRC_FILE && env .*RUST_LIB_SRC={self.dir}/library make LLVM=\S+ "
                              rf"RUSTC={self.dir}/bin/rustc BINDGEN={self.dir}/bin/bindgen olddefconfig\n")
        self.ok("unapply", "--kdir", self.kdir)
        self.path(("rustc",))
        write(self.kdir, {"arch/arm64/Kconfig": ""})
        self.assertIn(" -e HUGETLB_VMEMMAP_PAUSE && make LLVM=1 olddefconfig\n", self.ok("apply", "--kdir", self.kdir))

    def test_home(self):
        """~ in a variable that the shell did not expand."""
        self.env["HOME"] = str(self.dir)
        self.ok("apply", "--kdir", "~/linux")
        self.ok("unapply", "--kdir", "~/linux")

    def test_no_series(self):
        shutil.rmtree(self.repo / "patches")
        before = contents(self.kdir)
        self.ok("apply", "--kdir", self.kdir)
        self.ok("unapply", "--kdir", self.kdir)
        self.assertEqual(before, contents(self.kdir))

    def test_failure_on_the_way(self):
        """The disk fills up after the first patch: the tree is as it was."""
        before = contents(self.kdir)
        self.path(("quilt",), quilt=f'[ "$PWD" = {self.kdir} ] || exec {shutil.which("quilt")} "$@"\n'
                  f'{shutil.which("quilt")} --quiltrc - push && echo "patch: No space left on device"; exit 1\n')
        out = self.fails(("apply", "--kdir", self.kdir), "No space left on device", "is as it was")
        self.assertNotIn("starting the series again", out)
        self.assertEqual(before, contents(self.kdir))

    def test_read_only(self):
        prefix = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
        mount = [*prefix, "sh", "-c", 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"', self.kdir]
        if subprocess.run([*mount, "true"], capture_output=True, check=False).returncode:
            self.skipTest("cannot mount here")
        self.fails(("apply", "--kdir", self.kdir), "cannot be written to", "make kernel KDIR=", prefix=mount)

    def test_no_quilt(self):
        self.path(("quilt",))
        for command in ("apply", "unapply"):
            self.fails((command, "--kdir", self.kdir), "quilt not found", "apt-get install -y quilt")

    def test_other_version(self):
        write(self.kdir, {"Makefile": STOCK["Makefile"].replace("PATCHLEVEL = 3", "PATCHLEVEL = 2")})
        self.assertIn("Linux 7.2.4 is untested", self.ok("apply", "--kdir", self.kdir))
        self.ok("unapply", "--kdir", self.kdir)
        write(self.kdir, {"mm/rmap.c": RMAP.replace("line29", "other")})
        before = contents(self.kdir)
        self.fails(("apply", "--kdir", self.kdir), "no series for 7.2", "that for 7.3 does not apply",
                   "was not changed")
        self.assertEqual(before, contents(self.kdir))

    def test_git(self):
        """What make apply keeps for itself is not in the way of a repository; edits of its own stay."""
        git = ["git", "-C", self.kdir, "-c", "user.name=A", "-c", "user.email=a@b.invalid"]
        for args in (["init", "-q"], ["add", "-f", "."], ["commit", "-qm", "stock"]):
            subprocess.run([*git, *args], check=True)

        def status():
            return subprocess.run([*git, "status", "--short", "-uall"], check=True, text=True,
                                  capture_output=True).stdout
        write(self.kdir, {"mm/rmap.c": RMAP + "int mine;\n"})
        self.ok("apply", "--kdir", self.kdir)
        self.assertEqual([" M mm/rmap.c", "?? mm/Kconfig.rust", "?? mm/tlb_batch/lib.rs"], status().splitlines())
        self.ok("unapply", "--kdir", self.kdir)
        self.assertEqual(" M mm/rmap.c\n", status())
        self.assertEqual(RMAP + "int mine;\n", (self.kdir / "mm/rmap.c").read_text())

    def test_hard_links(self):
        """A copy made of hard links: the other one is not changed, not even by a recovery."""
        shutil.copytree(self.kdir, self.dir / "linked", copy_function=os.link)
        before = contents(self.dir / "linked")
        self.ok("apply", "--kdir", self.kdir)
        (self.kdir / ".tlb-rs/busy").touch()
        self.ok("apply", "--kdir", self.kdir)
        self.ok("unapply", "--kdir", self.kdir)
        self.assertEqual(before, contents(self.dir / "linked"))
        self.assertEqual(before, contents(self.kdir))

    def stopped(self, step, half, *args):
        """Stop the tool when quilt has done half of a step in the tree: one patch of two, or a part of one (half is a
        command)."""
        quilt = shutil.which("quilt", path=os.environ["PATH"])
        self.path(quilt=f'case "$PWD $*" in {self.kdir}\\ *{step}*) {quilt} --quiltrc - {step}; {half}{INTERRUPT};; esac\n'
                        f'exec {quilt} "$@"\n')
        # Whoever started the tests in the background may have told all of them to ignore SIGINT.
        status, out = self.run_tool(*args, prefix=("env", "--default-signal=INT"))
        self.assertEqual(130, status, out)
        self.assertIn("the same command goes on from here", out)
        self.env["PATH"] = os.environ["PATH"]

    def test_interrupted(self):
        """Stopped between two patches: both the next apply and unapply recover."""
        before = contents(self.kdir)
        self.stopped("push", "", "apply", "--kdir", self.kdir)
        self.assertEqual(before, contents(self.kdir))
        for command in ("apply", "unapply"):
            self.ok("apply", "--kdir", self.kdir)
            self.stopped("pop", "", "unapply", "--kdir", self.kdir)
            self.assertNotIn("second", (self.kdir / "mm/rmap.c").read_text())
            self.assertIn("first", (self.kdir / "mm/rmap.c").read_text())
            self.ok(command, "--kdir", self.kdir)
            self.assertEqual("first" in (self.kdir / "mm/rmap.c").read_text(), command == "apply")
            if command == "apply":
                self.assertIn("second", (self.kdir / "mm/rmap.c").read_text())
                self.ok("unapply", "--kdir", self.kdir)
            self.assertEqual(before, contents(self.kdir))

    def test_interrupted_in_a_patch(self):
        """Applied again with another second patch, of which half is in the file and nothing in quilt's list."""
        before = contents(self.kdir)
        for command in ("apply", "unapply"):
            self.ok("apply", "--kdir", self.kdir)
            write(self.repo, {"patches/two/0001-b.patch": PATCH2.replace("second", "other")})
            self.stopped("push", "sed -i /b.patch/d .tlb-rs/pc/applied-patches; sed -i s/other/half/ mm/rmap.c; ",
                         "apply", "--kdir", self.kdir)
            self.assertIn("half", (self.kdir / "mm/rmap.c").read_text())
            self.ok(command, "--kdir", self.kdir)
            self.assertEqual("other" in (self.kdir / "mm/rmap.c").read_text(), command == "apply")
            self.assertNotIn("half", (self.kdir / "mm/rmap.c").read_text())
            if command == "apply":
                self.ok("unapply", "--kdir", self.kdir)
            self.assertEqual(before, contents(self.kdir))
            write(self.repo, {"patches/two/0001-b.patch": PATCH2})

    def test_edit_after_an_interruption(self):
        """It is kept beside the tree, which becomes what it was before all patches."""
        before = contents(self.kdir)
        self.ok("apply", "--kdir", self.kdir)
        self.stopped("pop", "", "unapply", "--kdir", self.kdir)
        time.sleep(0.01)
        write(self.kdir, {"mm/rmap.c": "mine\n"})
        out = self.ok("unapply", "--kdir", self.kdir)
        saved = re.search(r"as they were found: mm/rmap\.c in (\S+)", out).group(1)
        self.assertEqual("mine\n", Path(saved, "mm/rmap.c").read_text())
        self.assertEqual(before, contents(self.kdir))


class Doctor(Case):
    """make doctor, on machines that lack one thing or another."""

    def doctor(self, status, *expected):
        p = subprocess.run([sys.executable, self.repo / "tools/kernel/toolchain.py", "doctor"], env=self.env,
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


# What make deb uses of a kernel tree: configuring without the library source or libclang turns Rust off.
CONFIGURED = {
    "Makefile": STOCK["Makefile"] + "defconfig:\n\techo CONFIG_MM=y > $(O)/.config\nolddefconfig menuconfig:\n"
                '\t[ "$$RUST_LIB_SRC" -a "$$LIBCLANG_PATH" ] || sed -i /RUST/d $(O)/.config\n',
    "scripts/kconfig/merge_config.sh": '#!/bin/sh\nshift 3\nconfig=$1\nshift\ncat "$@" >> "$config"\n'}
FRAGMENTS = {"config/deb.fragment": "CONFIG_RUST=y\n", "config/release.fragment": "CONFIG_MIGRC=y\n",
             "config/hvo.fragment": "CONFIG_HUGETLB_VMEMMAP_PAUSE=y\n"}


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


class Deb(Case):
    """make deb, up to the build."""

    def configured(self, arch, base):
        """(.config, output) of make deb-config."""
        write(self.kdir, CONFIGURED)
        (self.kdir / "scripts/kconfig/merge_config.sh").chmod(0o755)
        write(self.repo, FRAGMENTS)
        self.library()
        self.path(rustc=NEW_RUSTC, bindgen=FAKE_BINDGEN,
                  **{tool: "" for tool in ("dpkg-deb", "dpkg-buildpackage", "dh_prep", "depmod")})
        out = self.ok("deb", "--kdir", self.kdir, "--arch", arch, "--config", base, "--only-configure")
        return self.repo / f"build/7.3-kdir/{arch}-deb/build/.config", out

    def test_printed_commands(self):
        """Both have the environment without which the options go."""
        config, out = self.configured("arm64", "defconfig")
        commands = re.findall(r"(?m)(?:^|: )(env .*(?:menuconfig|bindeb-pkg).*)", out)
        self.assertEqual(2, len(commands), out)
        del self.env["RUST_LIB_SRC"]
        for command in commands:
            menuconfig = command.split(" -j")[0].removesuffix(" menuconfig") + " menuconfig"
            subprocess.run(["sh", "-c", menuconfig], env=self.env, check=True, capture_output=True)
            self.assertIn("CONFIG_RUST=y", config.read_text())

    def test_options_were_lost(self):
        """By a make in the build directory without our variables."""
        config, _ = self.configured("arm64", "defconfig")
        with open(config, "a", encoding="utf-8") as file:
            file.write("CONFIG_OWN=y\n")
        self.configured("arm64", "defconfig")
        self.assertIn("CONFIG_OWN=y", config.read_text())
        subprocess.run(["make", "-C", self.kdir, f"O={config.parent}", "olddefconfig"], check=True, capture_output=True,
                       env={k: v for k, v in self.env.items() if k != "RUST_LIB_SRC"})
        self.assertNotIn("RUST", config.read_text())
        _, out = self.configured("arm64", "defconfig")
        self.assertIn("was changed: CONFIG_RUST=y (is n)", out)
        self.assertIn("CONFIG_RUST=y", config.read_text())
        self.assertIn("CONFIG_OWN=y", config.with_name(".config.lost").read_text())

    def test_all_three_options(self):
        write(self.dir, {"config-rt": "CONFIG_PREEMPT_RT=y\n"})
        self.env["HOME"] = str(self.dir)
        for arch, base, pause in (("arm64", "defconfig", True), ("x86_64", "defconfig", False),
                                  ("arm64", "~/config-rt", False)):
            config, _ = self.configured(arch, base)
            self.assertIn("CONFIG_MIGRC=y", config.read_text())
            self.assertEqual("HUGETLB_VMEMMAP_PAUSE" in config.read_text(), pause, (arch, base))

    def test_configuration(self):
        other = "arm64" if os.uname().machine == "x86_64" else "x86_64"
        deb = ("deb", "--kdir", self.kdir, "--arch")
        self.fails((*deb, other), f"configuration of an {other} machine", "CONFIG=")
        self.fails((*deb, other, "--config", "/nonexistent"), "CONFIG=/nonexistent: no such file")
        self.fails((*deb, "riscv"), "ARCH=riscv")
        if not Path("/boot", f"config-{os.uname().release}").exists():
            self.fails((*deb, "arm64" if other == "x86_64" else "x86_64"), "/boot/config-", "CONFIG=",
                       "/proc/config.gz")

    def test_no_debhelper(self):
        self.path(("dh_prep", "dpkg-buildpackage"))
        self.fails(("deb", "--kdir", self.kdir, "--arch", "arm64", "--config", "defconfig"),
                   "sudo apt-get install -y --no-install-recommends dpkg-dev debhelper")


BOARD_MAKE = """case "$*" in
deb\\ *)
	mkdir -p build/7.3/arm64-deb && cd build/7.3/arm64-deb
	n=$(ls linux-image-* 2>/dev/null | wc -l) && rm -rf new
	mkdir -p new/DEBIAN new/lib/modules/$n new/usr/lib/linux-image-7.3/arm build/arch/arm64/boot
	printf 'Package: linux-image-7.3\\nVersion: %s\\nArchitecture: arm64\\nMaintainer: a\\nDescription: a\\n' $n >new/DEBIAN/control
	echo >build/arch/arm64/boot/Image
	dpkg-deb -b new linux-image-7.3_${n}_arm64.deb >/dev/null;;
*)
	out=$(echo "$*" | sed 's/.* O=\\([^ ]*\\) .*/\\1/')/kselftest/kselftest_install/kselftest-packages
	mkdir -p $out && echo >$out/kselftest.tar.xz;;
esac
"""
# A program that wants the files that it is given.
TAKES = 'for f; do case $f in build/*|board/*|*.yaml) [ -f "$f" ] || { echo "no $f" >&2; exit 1; };; esac; done\n'


class Boards(Case):
    """The commands of the README for boards, copied as a whole, twice."""

    def test_commands(self):
        if not shutil.which("dpkg-deb"):
            self.skipTest("no dpkg-deb here")
        text = series.section((common.ROOT / "README.md").read_text(encoding="utf-8"), "On boards")
        commands = "".join(re.findall(r"(?m)^    (.*\n)", text + "\n"))
        for tool in ("make deb", "kselftest-gen_tar", "dpkg-deb", "lavacli", "tuxrun"):
            self.assertIn(tool, commands)
        self.assertNotIn("/build ", re.search(r" O=(\S+ )", commands).group(1))    # of the package
        # Of this machine, which may not have it.
        self.assertNotRegex(commands, r"(?<![\w$])/(usr|bin|sbin|lib)\b")
        write(self.repo, {"ci/lava/arm64-board.yaml": "${URL}\n"})
        before = set(os.listdir(self.repo))
        self.path(make=BOARD_MAKE, envsubst="cat\n", python3=TAKES, lavacli=TAKES, tuxrun=TAKES)
        p = subprocess.run(["sh", "-e", "-c", commands * 2], env=self.env, cwd=self.repo, text=True, capture_output=True,
                           check=False)
        self.assertEqual((0, ""), (p.returncode, p.stderr))
        modules = subprocess.run(["tar", "-tf", self.repo / "build/board/modules.tar.xz"], check=True, text=True,
                                 capture_output=True).stdout.split()
        self.assertEqual(["lib/", "lib/modules/", "lib/modules/1/"], modules)
        self.assertEqual({"build"}, set(os.listdir(self.repo)) - before)


    def test_lava_steps(self):
        """By lava-test-case, which evaluates the words after --shell once more."""
        job = (common.ROOT / "ci/lava/arm64-board.yaml").read_text(encoding="utf-8")
        steps = re.findall(r"^ +- (lava-test-case (?:hvo|no-splat) .*)$", job, re.M)
        for ksft, log, verdict in (("ok 1 mm:ksft_hvo.sh", "booted", "pass"), ("not ok 1 x", "WARNING: CPU: 1", "fail"),
                                   ("ok 1 x # SKIP", "BUG: y", "fail"), ("", "Oops", "fail")):
            self.path(**{"lava-test-case": 'name=$1; shift 2; if eval "$*"; then v=pass; else v=fail; fi; echo "$name: $v"\n',
                         "dmesg": f"echo '{log}'\n"})
            write(self.repo, {"run_kselftest.sh": f'#!/bin/sh\n[ "$*" = "-t mm:ksft_hvo.sh" ] && echo "{ksft}"\n'})
            (self.repo / "run_kselftest.sh").chmod(0o755)
            said = subprocess.run(["sh", "-c", "\n".join(steps)], env=self.env, cwd=self.repo, text=True,
                                  capture_output=True, check=False).stdout.splitlines()
            self.assertEqual([f"{name}: {verdict}" for name in ("hvo", "no-splat")], [s for s in said if ": " in s and
                             s.split(":")[0] in ("hvo", "no-splat")])


KCONFIG = """# SPDX-License-Identifier: GPL-2.0

config OURS
	bool "ours"
	help
	  A help text may have a line that begins with
	  config OTHER

# What this one is for.
config OURS_DEBUG
	bool
"""
ADDS1 = "Adds: mm/Kconfig.rust mm/tlb_batch/Makefile\nAdds: mm/tlb_batch/*.rs OURS\n"
ADDS2 = "Adds: mm/tlb_batch/debug.c OURS_DEBUG\n"


class Series(Case):
    """make series."""

    def setUp(self):
        super().setUp()
        write(self.repo, {
            "patches/one/0001-a.patch": PATCH1.replace("\n", f"\n\nText.\n\n{ADDS1}", 1),
            "patches/two/0001-b.patch": ADDS2 + PATCH2.split("\n", 1)[1],    # without a description
            "Kconfig.rust": KCONFIG, "mm/tlb_batch/debug.c": "int debug;\n",
            "mm/tlb_batch/Makefile": "obj-$(CONFIG_OURS) += all.o\nall-y := lib.o\n"
                                     "all-$(CONFIG_OURS_DEBUG) += debug.o\n",
            "patches/one/0000-cover": "# not in the letter\none thing\n\nText.\n\n@blocks README.md: Figures\n",
            "patches/two/0000-cover": "another\n\n@section README.md: Limits\n",
            "README.md": "# Ours\n## Figures\nwords\n\n    a   1\n\n    b   2\n\n    host: mine\n    it wins\n\nmore words\n"
                         f"## Limits\n- ``none`` {'of it ' * 14}[#f1]_\n- two\n\n========  =\n``f()``   1\n"
                         "b [#f1]_  2\n========  =\n\n.. [#f1] a\n   note\n"})
        self.out = self.dir / "out"

    def git(self, *args, cwd=None, **kw):
        p = subprocess.run(["git", "-c", "user.name=A B", "-c", "user.email=a@b.invalid", *map(str, args)],
                           cwd=cwd or self.kdir, text=True, capture_output=True, check=False, **kw)
        self.assertEqual(0, p.returncode, p.stdout + p.stderr)
        return p.stdout

    def am(self, tree, out):
        """The tree as a repository, with the series; returns the commits, the stock tree first."""
        self.git("init", "-q", cwd=tree)
        self.git("add", "-f", ".", cwd=tree)
        self.git("commit", "-qm", "stock", cwd=tree)
        series = [d for d in ("one", "two", *overlay.folders()) if (out / d).is_dir()]
        self.git("am", "-q", "--empty=drop", *(f for d in series for f in sorted((out / d).iterdir())), cwd=tree)
        return self.git("log", "--reverse", "--format=%H", cwd=tree).split()

    def snapshots(self, tree, commits):
        """{name: text} of each commit, read at once: they share most files."""
        lists = [[l.split("\t") for l in self.git("ls-tree", "-r", c, cwd=tree).splitlines()] for c in commits]
        blobs = {entry.split()[2] for names in lists for entry, _ in names}
        data = subprocess.run(["git", "cat-file", "--batch"], input="\n".join(blobs).encode(), cwd=tree,
                              stdout=subprocess.PIPE, check=True).stdout
        text = {}
        while data:
            head, rest = data.split(b"\n", 1)
            blob, _, size = head.decode().split()
            text[blob], data = rest[:int(size)].decode(errors="replace"), rest[int(size) + 1:]
        return [{name: text[entry.split()[2]] for entry, name in names} for names in lists]

    def test_series(self):
        """git am of all series gives the tree that apply gives, and each commit has what it names."""
        shutil.copytree(self.kdir, self.dir / "other")
        self.ok("series", "--kdir", self.kdir, "--out", self.out)
        commits = self.am(self.kdir, self.out)
        self.assertEqual("stock\nmm: first\nb\n", self.git("log", "--reverse", "--format=%s"))
        self.assertEqual("mm: first\n\nText.\n\n", self.git("log", "-1", "--format=%B", commits[1]))
        first = self.git("show", f"{commits[1]}:mm/Kconfig.rust")
        self.assertEqual(KCONFIG[:KCONFIG.index("\n# What")], first)
        self.assertEqual("obj-$(CONFIG_OURS) += all.o\nall-y := lib.o\n",
                         self.git("show", f"{commits[1]}:mm/tlb_batch/Makefile"))
        self.ok("apply", "--kdir", self.dir / "other")
        shutil.rmtree(self.dir / "other/.tlb-rs")
        shutil.rmtree(self.kdir / ".git")
        self.assertEqual(contents(self.dir / "other"), contents(self.kdir))
        letter = (self.out / "one/0000-cover-letter.patch").read_text()
        self.assertIn("Subject: [PATCH 0/1] one thing\n", letter)
        self.assertIn("Text.\n\n    a   1\n\n    b   2\n\n", letter)
        self.assertNotIn("words", letter)
        self.assertNotIn("it wins", letter)
        self.assertNotIn("not in the letter", letter)
        self.assertIn(f"\n- none {'of it ' * 11}of\n  {'it of ' * 2}it (1)\n- two\n\n========  =\nf()       1\nb (1)     2\n"
                      "========  =\n\n(1) a note\n", (self.out / "two/0000-cover-letter.patch").read_text())
        for f in self.out.rglob("*.patch"):
            self.assertNotIn("Signed-off-by", f.read_text())
        self.fails(("series", "--kdir", self.dir / "other", "--out", self.out), "other means")

    def test_fix_that_the_tree_has(self):
        third = PATCH2.replace("second", "third").replace("line28", "line33").replace("line29", "line34")
        write(self.repo, {"patches/two/0002-c.patch": third.replace("line30", "line35").replace("line31", "line36")
                          .replace("-29,4 +30,5", "-34,4 +36,5"),
                          "patches/fixes": "[two/0002-c.patch]\nmm/rmap.c = int line34; int line35;\n"})
        for text, patches in ((RMAP, 2), (RMAP.replace("int line35;", "int theirs;\nint line35;"), 1)):
            write(self.kdir, {"mm/rmap.c": text})
            shutil.rmtree(self.out, ignore_errors=True)
            self.ok("series", "--kdir", self.kdir, "--out", self.out)
            self.assertEqual(patches + 1, len(list((self.out / "two").iterdir())))

    def test_caller_configuration(self):
        """What the caller has configured for git is not in the patches."""
        write(self.dir, {"gitconfig": "[format]\nsignOff = true\nsubjectPrefix = RFC\n[commit]\ngpgSign = true\n"
                                      "[core]\nautocrlf = true\n[diff]\nnoprefix = true\n"})
        self.ok("series", "--kdir", self.kdir, "--out", self.out)
        self.env["GIT_CONFIG_GLOBAL"] = str(self.dir / "gitconfig")
        self.ok("series", "--kdir", self.kdir, "--out", self.dir / "again")
        self.assertEqual(contents(self.out), contents(self.dir / "again"))

    def test_errors(self):
        args = ("series", "--kdir", self.kdir, "--out", self.out)
        write(self.repo, {"mm/tlb_batch/new.h": ""})
        self.fails(args, 'no patch says "Adds: mm/tlb_batch/new.h"')
        (self.repo / "mm/tlb_batch/new.h").unlink()
        second = (self.repo / "patches/two/0001-b.patch").read_text()
        for old, new, *says in ((" OURS_DEBUG", "", "no Adds: brings all of mm/Kconfig.rust"),
                                ("debug.c", "none.c", "Adds: of two/0001-b.patch has mm/tlb_batch/none.c"),
                                ("debug.c", "", "mm/tlb_batch/Makefile is in two Adds:, of one/0001-a.patch and of two/"),
                                ("OURS_DEBUG", "OURS", "OURS is in Adds: of two/0001-b.patch, and of a patch before")):
            write(self.repo, {"patches/two/0001-b.patch": second.replace(old, new)})
            self.fails(args, *says)
        write(self.repo, {"patches/two/0001-b.patch": second, "README.md": "# Ours\n"})
        self.fails(args, "patches/one/0000-cover", "README.md", "no section 'Figures'")
        write(self.kdir, {"mm/rmap.c": RMAP.replace("line29", "other")})
        self.fails(args, "patch two/0001-b.patch does not apply", "mm/rmap.c")
        self.assertFalse(self.out.exists())
        write(self.out, {"file": ""})
        self.fails(args, "is not an empty directory")
        self.fails(args[:3], "OUT=")
        self.env["HOME"] = str(self.dir)
        self.fails((*args[:4], "~/out"), f"{self.out} is not an empty directory")

    def test_ours(self):
        """The series of this repository: whatever a commit names has come with it, or before it."""
        stock = source.cached(KVER)
        if not stock:
            self.skipTest(f"no source of {KVER} here: make source")
        trees = [self.dir / d for d in ("git", "apply")]
        for name in overlay.stock_files():
            for tree in trees:
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(stock / name, tree / name)
        for tree in trees:
            (tree / "scripts/kconfig").mkdir(parents=True)
        with contextlib.redirect_stderr(io.StringIO()):
            series.series(self.out, stock)
            overlay.Tree(trees[1]).sync()
        commits = self.am(trees[0], self.out)
        self.assertEqual(len(overlay.patch_files(want=overlay.needed(stock))) + 1, len(commits))
        options = set(re.findall(r"(?m)^config (\w+)", (common.ROOT / "Kconfig.rust").read_text()))
        headers = {f for f in overlay.overlay_files() if f.endswith(".h")}
        bad = []
        subjects = self.git("log", "--reverse", "--format=%s", cwd=trees[0]).splitlines()
        for subject, files in zip(subjects[1:], self.snapshots(trees[0], commits[1:])):
            bad += [f"{subject}: {what}" for what in dangling(files, stock, options, headers)]
        self.assertEqual([], bad)
        shutil.rmtree(trees[0] / ".git")
        shutil.rmtree(trees[1] / ".tlb-rs")
        self.assertEqual(contents(trees[1]), contents(trees[0]))


@functools.cache
def lines_of_ours(text, old):
    """The lines of a file that the stock one lacks."""
    known = set(old.read_text(encoding="utf-8", errors="replace").splitlines()) if old.exists() else set()
    return "\n".join(l for l in text.splitlines() if l not in known)


def dangling(files, stock, options, headers):
    """What lines of ours name that is not among the files: options, objects, headers, modules, programs, documents."""
    declared = set(re.findall(r"(?m)^config (\w+)", files.get("mm/Kconfig.rust", "")))
    bad = []

    def want(ok, file, what):
        if not ok:
            bad.append(f"{file}: {what}")

    def source_of(file, stem, suffixes):
        return any(str(Path(file).parent / (stem + s)) in files for s in suffixes)

    for file, text in sorted(files.items()):
        old = stock / file
        ours = lines_of_ours(text, old)
        if file == "mm/Kconfig":
            want("Kconfig.rust" not in ours or "mm/Kconfig.rust" in files, file, "source")
        for word in re.findall(r"\b[A-Z][A-Z0-9_]+\b", ours) if file == "mm/Kconfig.rust" else ():
            want(word not in options or word in declared, file, word)
        if Path(file).name == "Makefile":
            for option in re.findall(r"CONFIG_(\w+)", ours):
                want(option not in options or option in declared, file, option)
            # KASAN_SANITIZE_x.o is of x.o.
            for stem in re.findall(r"(?:(?<!\S)[A-Z]+_(?:SANITIZE|INSTRUMENT)_)?(\S+)\.o\b", ours):
                want(source_of(file, stem, (".c", ".rs")) or f"{stem}-y " in text or
                     (old.parent / f"{stem}.c").exists(), file, f"{stem}.o")
            for d in re.findall(r"(?m)^obj-y \+= (\S+/)$", ours):
                want(source_of(file, d, ("Makefile",)), file, d)
            for program in re.findall(r"TEST_GEN_FILES \+= (\S+)", ours):
                want(source_of(file, program, (".c",)), file, program)
            for script in re.findall(r"TEST_PROGS \+= (\S+)", ours):
                want(source_of(file, script, ("",)), file, script)
        for kind, header in re.findall(r'(?m)^#include ([<"])(\S+)[>"]', ours):
            places = ("include/", "arch/arm64/include/", "arch/x86/include/") if kind == "<" else \
                (f"{Path(file).parent}/",)
            mine = [os.path.normpath(p + header) for p in places if os.path.normpath(p + header) in headers]
            want(all(h in files for h in mine), file, header)
        for module in re.findall(r"(?m)^\s*(?:pub )?mod (\w+);", ours) if file.endswith(".rs") else ():
            # A module of a crate's top is beside it, one of a module in its directory.
            want(source_of(file, module, (".rs",)) or source_of(file, f"{Path(file).stem}/{module}", (".rs",)),
                 file, module)
        for document in re.findall(r"(?m)^   (\w+)$", ours) if Path(file).name == "index.rst" else ():
            want(source_of(file, document, (".rst",)), file, document)
    return bad


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

    def test_interrupted_copy_of_kdir(self):
        """The next one copies no more, but the tree does not have yet what the last one copied."""
        self.sync()
        write(self.kdir, {"mm/rmap.c": RMAP + "int newer;\n"})
        # It stops at the first file that cannot be read: the last one.
        write(self.kdir, {"zzz": ""})
        self.path(git='git=$(PATH=${PATH#*:} command -v git); $git "$@"; case "$*" in *ls-files*) printf "zzzz\\0"; esac\n')
        self.assertNotEqual(0, self.run_tool("tree", "--kdir", self.kdir)[0])
        self.assertIn("newer", (self.repo / "build/7.3-kdir/base/mm/rmap.c").read_text())
        self.env["PATH"] = os.environ["PATH"]
        self.sync()
        self.assertIn("newer", (self.tree / "mm/rmap.c").read_text())

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
        self.assertEqual(set(), self.touched(lambda: write(self.repo, {"patches/one/0001-a.patch": "More words.\n" + PATCH1})))

    def test_patch_changed(self):
        self.assertEqual({"mm/rmap.c"}, self.touched(
            lambda: write(self.repo, {"patches/two/0001-b.patch": PATCH2.replace("second", "other")})))
        self.assertIn("other", (self.tree / "mm/rmap.c").read_text())

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
        one = self.patch("one/0001-a.patch")
        self.ok("refresh", "--kdir", self.kdir, "--patch", "two/0001-b.patch")
        two = self.patch("two/0001-b.patch")
        self.assertTrue(two.startswith("Subject: [PATCH] mm: second"))
        self.assertIn("+int second_edited;", two)
        self.assertIn("+int vmscan_edited;", two)
        self.assertEqual(one, self.patch("one/0001-a.patch"))
        self.assertNotIn("tlb-rs-edited", two)
        # What was written back must give the same tree.
        edited = (self.tree / "mm/rmap.c").read_text()
        shutil.rmtree(self.repo / "build")
        self.sync()
        self.assertEqual(edited, (self.tree / "mm/rmap.c").read_text())

    def test_refresh_lower_patch(self):
        self.sync()
        self.edit("mm/rmap.c", "first;", "first_edited;")
        self.fails(("refresh", "--kdir", self.kdir, "--patch", "one/0001-a.patch"), "also changed by two/0001-b.patch",
                   "make edit PATCH=one/0001-a.patch")
        self.edit("mm/rmap.c", "first_edited;", "first;")
        self.ok("edit", "--kdir", self.kdir, "--patch", "one/0001-a.patch")
        self.fails(("tree", "--kdir", self.kdir), "one/0001-a.patch is being edited", "make refresh PATCH=one/0001-a.patch")
        self.edit("mm/rmap.c", "first;", "first_edited;")
        self.ok("refresh", "--kdir", self.kdir, "--patch", "one/0001-a.patch")
        self.assertIn("+int first_edited;", self.patch("one/0001-a.patch"))
        self.assertIn("second", (self.tree / "mm/rmap.c").read_text())
        self.sync()

    def test_refresh_new_patch(self):
        self.sync()
        self.edit("mm/vmscan.c", "line5;", "third;")
        self.fails(("refresh", "--kdir", self.kdir), "mm/vmscan.c", "PATCH=")
        for name, *says in (("c.patch", "PATCH=c.patch has no folder", "one/c.patch or two/c.patch"),
                            ("three/c.patch", "no folder three in patches/order"),
                            ("two/0003-c.patch", "at the end of its folder: PATCH=two/0002-c.patch"),
                            ("two/c", "at the end of its folder: PATCH=two/0002-c.patch")):
            self.fails(("refresh", "--kdir", self.kdir, "--patch", name), *says)
        self.ok("refresh", "--kdir", self.kdir, "--patch", "two/c.patch")
        self.assertIn("+int third;", self.patch("two/0002-c.patch"))
        self.assertIn("--- a/mm/vmscan.c\n+++ b/mm/vmscan.c\n", self.patch("two/0002-c.patch"))
        self.sync()
        self.fails(("refresh", "--kdir", self.kdir, "--patch", "two/d.patch"), "no edits")
        self.assertEqual(["one/0001-a.patch", "two/0001-b.patch", "two/0002-c.patch"], self.series())
        self.fails(("edit", "--kdir", self.kdir, "--patch", "b.patch"), "no folder", "name it two/0001-b.patch")

    def series(self):
        """As the tree has it."""
        return (self.tree / ".tlb-rs/patches/series").read_text().split()

    def test_refresh_new_patch_in_between(self):
        """At the end of a folder that is not the last."""
        self.sync()
        self.edit("mm/vmscan.c", "line5;", "between;")
        self.ok("refresh", "--kdir", self.kdir, "--patch", "one/0002-between.patch")
        self.assertEqual(["one/0001-a.patch", "one/0002-between.patch", "two/0001-b.patch"], self.series())
        self.assertIn("+int between;", self.patch("one/0002-between.patch"))
        # Of a file that a later folder changes.
        self.edit("mm/rmap.c", "line9;", "above;")
        refresh = ("refresh", "--kdir", self.kdir, "--patch", "one/above.patch")
        self.fails(refresh, "mm/rmap.c is also changed by two/0001-b.patch",
                   "'make edit PATCH=one/0002-between.patch'")
        self.edit("mm/rmap.c", "above;", "line9;")
        self.ok("edit", "--kdir", self.kdir, "--patch", "one/0001-a.patch")
        self.edit("mm/rmap.c", "line9;", "above;")
        self.fails(refresh, "one/0001-a.patch is being edited")
        self.edit("mm/rmap.c", "above;", "line9;")
        self.ok("refresh", "--kdir", self.kdir, "--patch", "one/0001-a.patch")
        self.ok("edit", "--kdir", self.kdir, "--patch", "one/0002-between.patch")
        self.edit("mm/rmap.c", "line9;", "above;")
        self.ok(*refresh)
        self.assertEqual(["one/0001-a.patch", "one/0002-between.patch", "one/0003-above.patch", "two/0001-b.patch"],
                         self.series())
        self.assertIn("+int above;", self.patch("one/0003-above.patch"))
        self.assertNotIn("second", self.patch("one/0003-above.patch"))
        after = (self.tree / "mm/rmap.c").read_text()
        self.assertIn("second", after)
        shutil.rmtree(self.repo / "build")
        self.sync()
        self.assertEqual(after, (self.tree / "mm/rmap.c").read_text())

    def test_unwritten_edit_stops_a_pop(self):
        self.sync()
        self.edit("mm/rmap.c", "second;", "second_edited;")
        self.sync()	# no change of the series: the edit is built as it is
        write(self.repo, {"patches/one/0001-a.patch": PATCH1.replace("first", "other")})
        self.fails(("tree", "--kdir", self.kdir), "mm/rmap.c was edited", "make refresh PATCH=two/0001-b.patch")


def names(suite):
    for test in suite:
        yield from names(test) if isinstance(test, unittest.TestSuite) else (test.id().split(".", 1)[1],)


def run_case(name):
    """(tracebacks, reasons to skip) of one."""
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromName(name, sys.modules["__main__"]).run(result)
    return [text for _, text in result.failures + result.errors], [why for _, why in result.skipped]


def in_memory():
    """Whether /dev/shm has as much room as "make doctor" asks for, and runs programs."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return False
    return (found.f_bavail * found.f_frsize > 11 * common.GIB and not found.f_flag & os.ST_NOEXEC and
            os.access("/dev/shm", os.W_OK))


def main():
    # Thousands of small files come and go.
    if in_memory():
        os.environ.setdefault("TMPDIR", "/dev/shm")
    load, this = unittest.defaultTestLoader, sys.modules["__main__"]
    cases = list(names(load.loadTestsFromNames(sys.argv[1:], this) if sys.argv[1:] else load.loadTestsFromModule(this)))
    # Once here, and not again in each copy of the repository.
    compileall.compile_dir(HERE, quiet=1)
    print(f"KTAP version 1\n1..{len(cases)}", flush=True)
    failed = 0
    # Not threads: a child that one has forked, and that is not yet another program, would hold open the script that
    # another thread has written and now runs (ETXTBSY).
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("fork")) as pool:
        for number, (name, (bad, skipped)) in enumerate(zip(cases, pool.map(run_case, cases)), 1):
            failed += bool(bad)
            print("".join(f"# {line}\n" for text in bad for line in text.splitlines()) +
                  f"{'not ok' if bad else 'ok'} {number} {name}" + "".join(f" # SKIP {why}" for why in skipped), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
