# SPDX-License-Identifier: GPL-2.0
"""Tests of make apply and unapply, on a kernel tree of the user's own."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

from tests.kernel.fixtures import (FAKE_BINDGEN, FIXES, INTERRUPT, MENDED, NEW_RUSTC, PATCH1,
                                   PATCH2, RMAP, STOCK, Case, contents, write)


class Own(Case):
    """make apply and unapply."""

    def test_round_trip(self):
        before = contents(self.kdir)
        self.ok("apply", "--kdir", self.kdir)
        text = (self.kdir / "mm/rmap.c").read_text()
        self.assertIn("first", text)
        self.assertIn("second", text)
        self.assertTrue((self.kdir / "mm/tlb_batch/Kconfig").exists())
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
        ours = ("mm/tlb_batch/Kconfig", "mm/tlb_batch/lib.rs")
        before = contents(self.kdir)
        self.ok("apply", "--kdir", self.kdir)
        write(self.kdir, {f: "mine" for f in ours})
        write(self.repo, {"mm/tlb_batch/Kconfig": "newer", "mm/tlb_batch/lib.rs": "newer"})
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
        self.assertEqual([" M mm/rmap.c", "?? mm/tlb_batch/Kconfig", "?? mm/tlb_batch/lib.rs"], status().splitlines())
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
