# SPDX-License-Identifier: GPL-2.0
"""Tests of make series, with a small series and with that of this repository."""

import contextlib
import fnmatch
import functools
import io
import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.kernel.fixtures import PATCH1, PATCH2, RMAP, Case, contents, write
from tlbrs.kernel import common, overlay, series, source

KVER = os.environ.get("KVER", source.KVERS[0])
MAKEFILE = "obj-$(CONFIG_OURS) += all.o\nall-y := lib.o\nall-$(CONFIG_OURS_DEBUG) += debug.o\n"
ADDS1 = "Adds: mm/tlb_batch/Kconfig\nAdds: mm/tlb_batch/*.rs mm/tlb_batch/Makefile\n"
ADDS2 = "Adds: mm/tlb_batch/debug.c\n"


class Series(Case):
    """make series."""

    def setUp(self):
        super().setUp()
        write(self.repo, {
            "patches/one/0001-a.patch": PATCH1.replace("\n", f"\n\nText.\n\n{ADDS1}", 1),
            "patches/two/0001-b.patch": ADDS2 + PATCH2.split("\n", 1)[1],    # without a description
            "mm/tlb_batch/debug.c": "int debug;\n", "mm/tlb_batch/Makefile": MAKEFILE,
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
        for commit, names in ((commits[1], ["Kconfig", "Makefile", "lib.rs"]), (commits[2], ["debug.c"])):
            self.assertEqual(["mm/rmap.c", *(f"mm/tlb_batch/{name}" for name in names)],
                             self.git("show", "--format=", "--name-only", commit).split())
        self.assertEqual(MAKEFILE, self.git("show", f"{commits[1]}:mm/tlb_batch/Makefile"))
        self.ok("apply", "--kdir", self.dir / "other")
        shutil.rmtree(self.dir / "other/.tlb-rs")
        shutil.rmtree(self.kdir / ".git")
        self.assertEqual(contents(self.dir / "other"), contents(self.kdir))
        letter = (self.out / "one/0000-cover-letter.patch").read_text()
        self.assertIn("Subject: [PATCH 0/1] one thing\n", letter)
        self.assertIn("Text.\n\n    a   1\n\n    b   2\n\n", letter)
        self.assertIn("\n\nThis is one of 2 series, which apply in this order:\n\n  -> one thing\n     another\n\n", letter)
        self.assertNotIn("words", letter)
        self.assertNotIn("it wins", letter)
        self.assertNotIn("not in the letter", letter)
        self.assertIn(f"\n- none {'of it ' * 11}of\n  {'it of ' * 2}it (1)\n- two\n\n========  =\nf()       1\nb (1)     2\n"
                      "========  =\n\n(1) a note\n", (self.out / "two/0000-cover-letter.patch").read_text())
        for f in self.out.rglob("*.patch"):
            self.assertNotIn("Signed-off-by", f.read_text())
        self.fails(("series", "--kdir", self.dir / "other", "--out", self.out), "other means")

    def test_sections_end(self):
        """Where a heading of the same level begins, or of a higher one."""
        text = "# a\n## b\none\n### c\ntwo\n# d\n    three\n## e\nfour\n"
        for heading, body in (("b", "one\n### c\ntwo"), ("a", "## b\none\n### c\ntwo"), ("e", "four"), ("x", None)):
            self.assertEqual(series.section(text, heading), body, heading)

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
        for old, new, *says in (("debug.c", "none.c", "Adds: of two/0001-b.patch has mm/tlb_batch/none.c"),
                                ("debug.c", "debug.c OURS", "Adds: of two/0001-b.patch has OURS"),
                                ("debug.c", "", "mm/tlb_batch/Kconfig is in two Adds:, of one/0001-a.patch and of two/")):
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

    def test_dangling(self):
        """What a commit lacks, and what may come after it."""
        declared = 'config A\n\tbool "a"\n\nconfig B\n\tbool "b"\n\tdepends on LATER && MMU\n\tselect D\n'
        files = {"mm/Kconfig": 'source "mm/x/Kconfig"\n', "mm/x/Kconfig": declared, "mm/x/a.c": "",
                 "mm/x/Makefile": "obj-$(CONFIG_A) += a.o\na-$(CONFIG_B) += b.o\na-$(CONFIG_LATER) += c.o\n"}
        options = {"A", "B", "LATER"}
        for more, lost, wrong in (({}, "", []), ({}, "mm/x/a.c", ["mm/x/Makefile: a.o"]),
                                  ({}, "mm/x/Kconfig", ["mm/Kconfig: mm/x/Kconfig"]),
                                  ({"mm/y/Kconfig": "config LATER\n\tbool\n\tselect B\n"}, "",
                                   ["mm/x/Makefile: b.o", "mm/x/Makefile: c.o"]),
                                  ({"mm/y/Kconfig": "config C\n\tbool\n\tselect B\n"}, "", ["mm/y/Kconfig: B"])):
            there = {name: text for name, text in (files | more).items() if name != lost}
            self.assertEqual(wrong, dangling(there, self.kdir, options, set()))

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
        snapshots = self.snapshots(trees[0], commits[1:])
        options = options_of_ours(snapshots[-1], stock)
        headers = {f for f in overlay.overlay_files() if f.endswith(".h")}
        bad = [f"at the end: no {option} can be chosen" for option in options - visible(snapshots[-1], options)]
        subjects = self.git("log", "--reverse", "--format=%s", cwd=trees[0]).splitlines()
        for subject, files in zip(subjects[1:], snapshots):
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


def is_kconfig(file):
    return Path(file).name.startswith("Kconfig")


def options_of_ours(files, stock):
    return {name for file, text in files.items() if is_kconfig(file)
            for name in re.findall(r"(?m)^(?:menu)?config (\w+)", lines_of_ours(text, stock / file))}


def visible(files, options):
    """Those of our options that can be chosen: declared, and so is all of ours that they depend on."""
    needs = {}
    for text in (text for file, text in files.items() if is_kconfig(file)):
        for name, entry in re.findall(r"(?m)^(?:menu)?config (\w+)\n((?:[ \t].*\n|\n)*)", text):
            conditions = " ".join(re.findall(r"(?m)^\t(?:depends on|def_bool) (.*)", entry))
            needs[name] = set(re.findall(r"\w+", conditions)) & options
    found = options & set(needs)
    while lost := {name for name in found if needs[name] - found}:
        found -= lost
    return found


def dangling(files, stock, options, headers):
    """What lines of ours name that is not among the files: options, objects, headers, modules, programs, documents.

    What an option builds that nobody can choose yet may come later.
    """
    declared = visible(files, options)
    bad = []

    def want(ok, file, what):
        if not ok:
            bad.append(f"{file}: {what}")

    def source_of(file, stem, suffixes):
        return any(str(Path(file).parent / (stem + s)) in files for s in suffixes)

    for file, text in sorted(files.items()):
        old = stock / file
        ours = lines_of_ours(text, old)
        if is_kconfig(file):
            for name in re.findall(r'(?m)^source "(\S+)"', ours):
                want(name in files, file, name)
            for option in re.findall(r"(?m)^\s+select (\w+)", ours):
                want(option not in options or option in declared, file, option)
        if Path(file).name == "Makefile":
            ours = "\n".join(l for l in ours.splitlines()
                             if not (set(re.findall(r"CONFIG_(\w+)", l)) & options) - declared)
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
            # <../../x> is found from include/uapi.
            places = ("include/", "include/uapi/", "arch/arm64/include/", "arch/x86/include/") if kind == "<" else \
                (f"{Path(file).parent}/",)
            mine = [os.path.normpath(p + header) for p in places if os.path.normpath(p + header) in headers]
            want(all(h in files for h in mine), file, header)
        for module in re.findall(r"(?m)^\s*(?:pub )?mod (\w+);", ours) if file.endswith(".rs") else ():
            # A module of a crate's top is beside it, one of a module in its directory.
            want(source_of(file, module, (".rs",)) or source_of(file, f"{Path(file).stem}/{module}", (".rs",)),
                 file, module)
        if file == "MAINTAINERS":
            for name in re.findall(r"(?m)^F:\t(\S+)$", ours):
                want(fnmatch.filter(files, name + "*" * name.endswith("/")), file, name)
        # The page of rules has those of all series.
        if file.startswith("Documentation/") and Path(file).name != "tlb_rules.rst":
            for option in re.findall(r"\bCONFIG_(\w+)", ours):
                want(option not in options or option in declared, file, option)
        for document in re.findall(r"(?m)^   (\w+)$", ours) if Path(file).name == "index.rst" else ():
            want(source_of(file, document, (".rst",)), file, document)
    return bad
