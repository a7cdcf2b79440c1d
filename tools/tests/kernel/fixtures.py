# SPDX-License-Identifier: GPL-2.0
"""What the tests of the build tools have in common.

The tools run as they would from make, in a copy of the repository with a small kernel tree, a PATH
without the tool in question, and an apt that answers what the case needs.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from tlbrs.kernel.common import ROOT

TOOLS = ROOT / "tools"
# What the build commands import.
USED = ("tlb-rs", "tlbrs/__init__.py", "tlbrs/cli.py", "tlbrs/kernel")

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
        for name in USED:
            source, copy = TOOLS / name, self.repo / "tools" / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copy)(source, copy)
        write(self.repo, {"mm/tlb_batch/Kconfig": "config OURS\n\tbool\n", "mm/tlb_batch/lib.rs": "// new\n",
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
        p = subprocess.run([*prefix, sys.executable, self.repo / "tools/tlb-rs", "kernel", *args], env=self.env,
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
