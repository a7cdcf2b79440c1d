# SPDX-License-Identifier: GPL-2.0
"""Tests of the patched tree in build/: how it follows its sources, and make edit and refresh."""

import os
import shutil
import time

from tests.kernel.fixtures import PATCH1, PATCH2, RMAP, Case, contents, write


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

    def test_kdir_became_older(self):
        """What was compiled from the newer file must be compiled again: make goes by the times."""
        old = self.kdir / "mm/rmap.c"
        write(self.kdir, {"mm/rmap.c": RMAP + "int newer;\n"})
        self.sync()
        compiled = (self.tree / "mm/rmap.c").stat().st_mtime_ns
        write(self.kdir, {"mm/rmap.c": RMAP})
        os.utime(old, (1, 1))
        self.sync()
        for copy in ("linux", "base"):
            file = self.repo / "build/7.3-kdir" / copy / "mm/rmap.c"
            self.assertNotIn("newer", file.read_text())
            self.assertGreater(file.stat().st_mtime_ns, compiled)

    def test_nothing_to_do(self):
        self.assertEqual(set(), self.touched(lambda: None))

    def test_overlay_edit(self):
        self.assertEqual({"mm/tlb_batch/lib.rs"},
                         self.touched(lambda: write(self.repo, {"mm/tlb_batch/lib.rs": "// newer\n"})))

    def test_overlay_file_removed(self):
        self.assertEqual({"mm/tlb_batch/Kconfig", "mm/tlb_batch/lib.rs"},
                         self.touched(lambda: shutil.rmtree(self.repo / "mm/tlb_batch")))
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
        self.assertEqual({"mm/vmscan.c"}, self.touched(change) - {"mm/rmap.c", "mm/tlb_batch/Kconfig", "mm/tlb_batch/lib.rs"})
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
