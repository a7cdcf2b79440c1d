# SPDX-License-Identifier: GPL-2.0
"""Tests of the build tools: errors as a new user meets them."""

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from unittest import mock

from tests.kernel.fixtures import (FAKE_BINDGEN, FAKE_RUSTC, FIXES, NEW_RUSTC, NO_APT,
                                   PATCH1, RMAP, STOCK, TOOLS, Case, contents, write)
from tlbrs.kernel import common, toolchain


class Errors(Case):
    build = ("build", "--arch", "arm64", "--variant", "stock")

    def test_no_toolchain(self):
        self.path(("clang", "ld.lld", "llvm-", "lld"))
        self.fails(self.build, "missing: ", "sudo apt-get install -y --no-install-recommends", "clang-19 lld-19 llvm-19",
                   "libclang-19-dev", "INSTALL=1")

    def test_llvm_tool(self):
        """One without a suffix may be older; and all of that version must be there."""
        code = "from tlbrs.kernel import common, toolchain; common.main(lambda: print(toolchain.llvm_tool('llvm-mc')))"
        tools = ("clang", "ld.lld", "llvm-ar", "llvm-nm", "llvm-objcopy", "llvm-strip", "llvm-readelf")
        old = {tool: "echo clang version 14.0.6\n" for tool in tools} | {"clang-21": "echo clang version 21.1.0\n"}
        for more, said in (({}, "error: no LLVM 19 or newer: make doctor"),
                           ({f"{tool}-20": "echo clang version 20.1.0\n" for tool in tools}, "llvm-mc-20")):
            self.path(("clang", "ld.lld", "llvm-"), **old, **more)
            p = subprocess.run([sys.executable, "-c", code], env=self.env, cwd=self.repo / "tools", text=True,
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
        code = ("import pathlib, signal, sys; from tlbrs.kernel import common\n"
                "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
                f"common.main(lambda: common.logged(['sh', '-c', 'echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 120'], "
                f"pathlib.Path({str(self.dir / 'log')!r}), 'building'))")
        outer = code[:code.index("common.main")] + f"common.main(lambda: common.status([sys.executable, '-c', {code!r}]))"
        for sig, code in itertools.product((signal.SIGTERM, signal.SIGINT), (code, outer)):
            pid.unlink(missing_ok=True)
            with subprocess.Popen([sys.executable, "-c", code], cwd=TOOLS, stderr=subprocess.PIPE, text=True) as p:
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
            self.assertEqual("tlb-rs kernel build" in p.stdout, not status)
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
        write(self.dir / "other", STOCK | {"mm/tlb_batch/Kconfig": ""})
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
