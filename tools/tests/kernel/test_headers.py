# SPDX-License-Identifier: GPL-2.0
"""Tests of the linux-headers package of make deb, with packages that dpkg-deb makes."""

import hashlib
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from tests.kernel.fixtures import write
from tlbrs.kernel import headers
from tlbrs.kernel.common import Fail

RUSTC = "rustc 1.95.0 (59807616e 2026-04-14)"
# As the kernel's: what a make below it is given, and asks for.
MAKEFILE = """# SPDX-License-Identifier: GPL-2.0
VERSION = 7
NAME = Old Tree

ifneq ($(filter -%,$(LLVM)),)
LLVM_SUFFIX := $(LLVM)
endif
CC = $(if $(LLVM),clang$(LLVM_SUFFIX),gcc)
LD = $(if $(LLVM),ld.lld$(LLVM_SUFFIX),ld)
export CC LD
modules:
	@$(MAKE) --no-print-directory -f $(CURDIR)/below
clean:
	@echo cleaned
"""
TOP = "usr/src/linux-headers-7.3.4-x"
PACKAGE = {"DEBIAN/control": "Package: linux-headers-7.3.4-x\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.invalid>\n"
                             "Description: headers\n of a kernel\n",
           f"{TOP}/Makefile": MAKEFILE, f"{TOP}/below": "modules:\n\t@echo $(CC) $(LD)\n"}
BUILD = {".config": f'CONFIG_CLANG_VERSION=190107\nCONFIG_RUSTC_VERSION_TEXT="{RUSTC}"\n', "rust/libcore.rmeta": "core",
         "rust/libmacros.so": "macros", "rust/helpers/helpers_module.bc": "helpers", "rust/kernel.o": "no",
         "rust/kernel/generated_arch_warn_asm.rs": "warn", "rust/kernel/lib.rs": "no"}
OWNERS = {"clang-19": ("clang-19", "1:19.1.7-3"), "ld.lld-19": ("lld-19", "1:19.1.7-3")}


class Package(unittest.TestCase):
    def setUp(self):
        if not shutil.which("dpkg-deb"):
            self.skipTest("no dpkg-deb here")
        self.dir = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="tlb-rs-test-")))
        self.out, self.deb, self.root = self.dir / "build", self.dir / "linux-headers-7.3.4-x_1_all.deb", self.dir / "root"
        write(self.dir / "new", PACKAGE)
        write(self.out, BUILD)
        subprocess.run(["dpkg-deb", "-b", self.dir / "new", self.deb], check=True, stdout=subprocess.DEVNULL)

    def completed(self, rustc=None, native=True, owners=None, llvm="-19"):
        """Unpacked, as it is after that; rustc is (package, version), or in no package."""
        owners = (OWNERS if owners is None else owners) | {"rustc": rustc}
        with mock.patch.object(headers, "owner", lambda f: owners.get(Path(f).name, ("llvm-19", "1")) if owners[
                "rustc"] or Path(f).name != "rustc" else None), \
                mock.patch.object(headers.toolchain, "absolute", lambda name: name), \
                mock.patch.object(headers, "libraries", lambda files, out: ["libelf1 (>= 0.1)"] if out == self.out else []):
            headers.complete(self.deb, self.out, [f"LLVM={llvm}", "RUSTC=/x/rustc", "BINDGEN=b"], native)
        shutil.rmtree(self.root, ignore_errors=True)
        subprocess.run(["dpkg-deb", "-R", self.deb, self.root], check=True)
        return self.root / TOP

    def control(self):
        return (self.root / "DEBIAN/control").read_text(encoding="utf-8")

    def test_files(self):
        top = self.completed()
        held = {str(f.relative_to(top)) for f in top.rglob("*") if f.is_file()}
        self.assertEqual({"Makefile", "below", *BUILD} - {"rust/kernel.o", "rust/kernel/lib.rs"}, held)
        self.assertEqual(BUILD[".config"], (top / ".config").read_text(encoding="utf-8"))
        sums = dict(reversed(line.split("  ")) for line in (self.root / "DEBIAN/md5sums").read_text().splitlines())
        self.assertEqual({f"{TOP}/{name}" for name in held}, set(sums))
        self.assertEqual(hashlib.md5((top / "Makefile").read_bytes()).hexdigest(), sums[f"{TOP}/Makefile"])

    def test_dependencies(self):
        self.completed()
        self.assertIn("\nDepends: clang-19, lld-19, llvm-19, libelf1 (>= 0.1)\nRecommends: llvm\nDescription:", self.control())
        self.assertIn(f" .\n Rust modules need {RUSTC} as root's rustc: rustup toolchain install 1.95.0 && ", self.control())

    def test_packaged_rustc(self):
        """A security update of it will do, another release will not."""
        self.completed(rustc=("rustc-web", "1.95.0+dfsg1-1~deb12u2"))
        self.assertIn("llvm-19, rustc-web (>= 1.95.0), rustc-web (<< 1.95.1~), libelf1", self.control())
        self.assertIn(f"Rust modules need {RUSTC} of this kernel: sudo apt-get install rustc-web", self.control())

    def test_further_dependencies_stay(self):
        text = headers.control("Package: a\nDepends: b, c (= 1)\nDescription: d\n e\n", ["c (= 1)", "f"], "says")
        self.assertEqual("Package: a\nDepends: b, c (= 1), f\nDescription: d\n e\n .\n says\n", text)

    def test_other_architecture(self):
        """Proc macros run where they were built."""
        top = self.completed(native=False)
        self.assertFalse(list(top.rglob("*.rmeta")) + list(top.rglob("*.so")))
        self.assertTrue((top / ".config").exists())
        self.assertIn("\nDepends: clang-19, lld-19, llvm-19\n", self.control())
        self.assertIn("No Rust modules can be built with it", self.control())
        self.assertFalse((self.root / "DEBIAN/postinst").exists())

    def test_postinst(self):
        self.completed()
        fake = self.dir / "bin"

        def says(version, word="configure"):
            write(fake, {"rustc": f"#!/bin/sh\necho '{version}'\n"})
            (fake / "rustc").chmod(0o755)
            return subprocess.run([self.root / "DEBIAN/postinst", word], env={"PATH": f"{fake}:/usr/bin:/bin"}, check=True,
                                  text=True, capture_output=True).stdout
        self.assertEqual("", says(RUSTC))
        self.assertEqual("", says("rustc 1.63.0", "abort-upgrade"))
        self.assertIn('1.95.0 && sudo ln -sf "$(rustup which --toolchain 1.95.0 rustc)" /usr/local/bin/rustc\n',
                      says("rustc 1.63.0"))

    def made(self, top, *words, tools=("clang-19", "clang"), rustc=None):
        fake = self.dir / "tools"
        shutil.rmtree(fake, ignore_errors=True)
        fake.mkdir()
        write(fake, {**{tool: "#!/bin/sh\n" for tool in tools}, **({"rustc": f"#!/bin/sh\necho '{rustc}'\n"} if rustc else {})})
        for f in fake.iterdir():
            f.chmod(0o755)
        # No compiler of this machine.
        for name in ("make", "sh", "echo"):
            (fake / name).symlink_to(shutil.which(name))
        return subprocess.run(["make", "-C", top, "--no-print-directory", *words], env={"PATH": str(fake)}, text=True,
                              capture_output=True, check=False)

    def test_compiler(self):
        """Of the kernel, however it is asked for, in the makes below, too; unless somebody asks for another one."""
        top = self.completed()
        for words in ((), ("LLVM=1",), ("CC=clang", "LD=ld.lld"), ("LLVM=1", "CC=clang")):
            self.assertEqual("clang-19 ld.lld-19", self.made(top, "M=/x y", *words).stdout.strip(), words)
        self.assertEqual("clang-21 ld.lld-21", self.made(top, "LLVM=-21").stdout.strip())
        self.assertEqual("mycc ld", self.made(top, "CC=mycc").stdout.strip())

    def test_no_compiler(self):
        top = self.completed()
        p = self.made(top, "LLVM=1", tools=("clang", "gcc"))
        self.assertNotEqual(0, p.returncode)
        self.assertIn("built with clang-19, which is not here: sudo apt-get install clang-19 lld-19 llvm-19", p.stderr)
        self.assertEqual("cleaned\n", self.made(top, "clean", tools=()).stdout)

    def test_unpackaged_compiler(self):
        top = self.completed(owners={Path(name).name: None for name in headers.toolchain.llvm_names("/opt/x/")}, llvm="/opt/x/")
        self.assertEqual("clang ld.lld", self.made(top).stdout.strip())
        self.assertIn("LLVM 19 in PATH", self.made(top, tools=()).stderr)

    def test_other_rustc(self):
        top, module = self.completed(), self.dir / "module"
        write(module, {"a.c": ""})
        self.assertEqual(0, self.made(top, f"M={module}").returncode)
        write(module, {"a.rs": ""})
        self.assertEqual(0, self.made(top, f"M={module}", rustc=RUSTC).returncode)
        for rustc in (None, "rustc 1.96.0 (x)"):
            p = self.made(top, f"M={module}", rustc=rustc)
            self.assertNotEqual(0, p.returncode)
            self.assertIn(f'Rust modules need {RUSTC} as root\'s rustc: rustup toolchain install 1.95.0 && sudo ln -sf "$(rustup '
                          'which', p.stderr)
        self.assertEqual("cleaned\n", self.made(top, f"M={module}", "clean").stdout)

    def test_no_rust_there(self):
        top = self.completed(native=False)
        write(self.dir / "module", {"a.rs": ""})
        self.assertIn("No Rust modules can be built with it", self.made(top, f"M={self.dir}/module", rustc=RUSTC).stderr)

    def test_other_makefile(self):
        write(self.dir / "new", {f"{TOP}/Makefile": "all:\n"})
        subprocess.run(["dpkg-deb", "-b", self.dir / "new", self.deb], check=True, stdout=subprocess.DEVNULL)
        with self.assertRaisesRegex(Fail, "no line NAME ="):
            self.completed()
        self.assertEqual({"build", "new", self.deb.name}, set(os.listdir(self.dir)))

    def test_checksums(self):
        """.changes has those of .buildinfo, too."""
        row = " {0} 1 kernel optional {1}\n"
        write(self.dir, {"l_1.buildinfo": f"Checksums-Md5:\n {'0' * 32} 1 {self.deb.name}\n {'0' * 32} 1 other.deb\n",
                         "l_1.changes": f"Checksums-Sha256:\n {'0' * 64} 1 {self.deb.name}\n {'0' * 64} 1 l_1.buildinfo\n"
                                        "Files:\n" + row.format("0" * 32, self.deb.name)})
        self.completed()
        data, info = self.deb.read_bytes(), (self.dir / "l_1.buildinfo").read_bytes()
        md5 = hashlib.md5(data).hexdigest()
        self.assertEqual(f"Checksums-Md5:\n {md5} {len(data)} {self.deb.name}\n {'0' * 32} 1 other.deb\n", info.decode())
        changes = (self.dir / "l_1.changes").read_text(encoding="utf-8")
        self.assertIn(f" {hashlib.sha256(data).hexdigest()} {len(data)} {self.deb.name}\n", changes)
        self.assertIn(f" {hashlib.sha256(info).hexdigest()} {len(info)} l_1.buildinfo\n", changes)
        self.assertIn(f" {md5} {len(data)} kernel optional {self.deb.name}\n", changes)
