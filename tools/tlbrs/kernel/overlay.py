# SPDX-License-Identifier: GPL-2.0
"""Put the repository's new files and its series of patches onto a kernel tree, and take them off again.

A tree that carries them has a directory .tlb-rs/:
    manifest   new files that were copied, with their checksum at that time
    patches/   the series as it was applied
    pc/        quilt's state: the originals of every patched file
    clean/     the patched files as the series left them, to tell later edits
    busy       present while patches are put on or taken off: an interruption is noticed by it
"""

import configparser
import filecmp
import fnmatch
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

from tlbrs.kernel import toolchain
from tlbrs.kernel.common import BUILD, ROOT, Fail, dotted, say, sha256
from tlbrs.kernel.source import KVERS

STATE = ".tlb-rs"
DIRS = ("Documentation", "arch", "drivers", "fs", "include", "kernel", "lib", "mm", "rust", "samples",
        "tools/testing")
NOT_OURS = ("*.o", "*.ko", "*.a", "*.cmd", "*.pyc", "*~", "*.swp", "*.orig", "*.rej", "__pycache__", "target")


def tree_version(tree):
    """(7, 3, 4) of a kernel tree."""
    try:
        text = (tree / "Makefile").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    v = {k: n for k, n in re.findall(r"^(VERSION|PATCHLEVEL|SUBLEVEL) = (\d+)$", text, re.M)}
    if len(v) != 3 or not all((tree / f).exists() for f in ("mm/Kconfig", "scripts/kconfig", "rust/kernel/lib.rs")):
        raise Fail(f"{tree} is not a Linux kernel source tree (no top-level Makefile with a version, or no "
                   "mm/Kconfig, scripts/kconfig, rust/kernel/lib.rs)\n  KDIR= names the top directory of one")
    return tuple(int(v[k]) for k in ("VERSION", "PATCHLEVEL", "SUBLEVEL"))


def is_patched(tree):
    """How the tree came to carry our files, or None."""
    if (tree / STATE / "manifest").exists() or (tree / STATE / "pc").exists():
        return "make apply"
    # Files: a directory may be left, with objects in it.
    if any((tree / f).is_file() for f in ("mm/tlb_batch/Kconfig", "include/linux/tlb_batch.h")):
        return "other means (git am or patch)"
    return None


def overlay_files(root=ROOT):
    """{kernel path: file of the repository}"""
    files = {}
    for d in DIRS:
        for base, dirs, names in os.walk(root / d):
            dirs[:] = sorted(x for x in dirs if not any(fnmatch.fnmatch(x, p) for p in NOT_OURS))
            for n in sorted(names):
                if not any(fnmatch.fnmatch(n, p) for p in NOT_OURS):
                    f = Path(base, n)
                    files[str(f.relative_to(root))] = f
    return files


def fixes(root=ROOT):
    """{patch: {file of the kernel: what it has as long as the patch is needed}}; blanks are all the same."""
    table = configparser.ConfigParser(delimiters="=", comment_prefixes="#", interpolation=None)
    table.optionxform = str
    table.read(root / "patches/fixes", encoding="utf-8")
    if gone := [patch for patch in table.sections() if not (root / "patches" / patch).is_file()]:
        raise Fail(f"{root / 'patches/fixes'} names {', '.join(gone)}, but there is no such file beside it")
    return {patch: {name: " ".join(text.split()) for name, text in table[patch].items()} for patch in table.sections()}


def needed(tree, originals=None, root=ROOT):
    """A function: whether a tree needs this patch of the series, or has by itself what it mends.

    originals: {file: where it is as it was before the series}
    """
    table = fixes(root)

    def has(name, text):
        file = (originals or {}).get(name, Path(tree) / name)
        return file.is_file() and text in " ".join(file.read_text(encoding="utf-8", errors="replace").split())
    return lambda patch: all(has(name, text) for name, text in table.get(patch, {}).items())


def folders(root=ROOT):
    """Those of patches/, one for each mechanism, in the order of application."""
    order = root / "patches/order"
    if not order.exists():
        return []
    names = [w for l in order.read_text(encoding="utf-8").splitlines() for w in l.split("#")[0].split()]
    if left := sorted(d.name for d in order.parent.iterdir() if d.is_dir() and d.name not in names):
        raise Fail(f"{order} does not say where in the order these folders are: {', '.join(left)}")
    return names


def patch_files(root=ROOT, want=lambda name: True):
    """[(folder/file, file)] of the series; in a folder the order is that of the names. want: see needed()"""
    files = []
    for folder in folders(root):
        for number, f in enumerate(sorted((root / "patches" / folder).glob("*.patch")), 1):
            if not f.name.startswith(f"{number:04}-"):
                raise Fail(f"{f} is number {number} of its folder: its name must begin with {number:04}-")
            files.append((f"{folder}/{f.name}", f))
    return [(n, f) for n, f in files if want(n)]


def stock_files(root=ROOT):
    """Names of the files of a kernel tree that the series changes, and of those that tell what the tree is."""
    names = {"Makefile", "mm/Kconfig", "rust/kernel/lib.rs"}
    for _, p in patch_files(root):
        text = p.read_text(encoding="utf-8", errors="replace")
        names |= set(re.findall(r"^(?:---|\+\+\+) [^/\s]+/(\S+)", text, re.M))
    return sorted(names)


class Tree:
    """A kernel tree that carries, or will carry, the overlay and the series."""

    def __init__(self, path, root=ROOT):
        self.path = Path(path)
        self.root = root
        self.ver = tree_version(self.path)
        self.state = self.path / STATE
        self.patches = self.state / "patches"
        self.say = say

    # ---- quilt

    def quilt(self, *args, check=True):
        env = {**os.environ, "QUILT_PATCHES": str(self.patches), "QUILT_PC": f"{STATE}/pc", "LC_ALL": "C",
               "QUILT_NO_DIFF_INDEX": "1", "QUILT_NO_DIFF_TIMESTAMPS": "1", "QUILT_DIFF_OPTS": "-p"}
        for v in ("QUILT_SERIES", "QUILT_PATCH_OPTS", "QUILT_REFRESH_ARGS", "QUILT_PUSH_ARGS"):
            env.pop(v, None)
        p = subprocess.run(["quilt", "--quiltrc", "-", *args], cwd=self.path, env=env, text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False)
        if check and p.returncode:
            raise Fail(self.explain(p.stdout))
        return p.stdout

    def explain(self, out):
        """quilt's output as one message that names the patch and the file."""
        if m := re.search(r"Patch (\S+) does not (?:apply|remove)", out):
            files = re.findall(r"FAILED -- (?:rejects in|saving rejects to) file (\S+)", out)
            # "can't find file" gives the name in the diff header that it quotes.
            files += re.findall(r"can't find file to patch.*?^\|\+\+\+ (?:b/)?(\S+)", out, re.S | re.M)
            names = ", ".join(f.removesuffix(".rej") for f in files) or "a file"
            if "does not remove" in m.group():
                return (f"patch {m.group(1)} cannot be taken off: {names} was edited in {self.path}\n" +
                        self.keep_edits(self.touched(m.group(1)), m.group(1)))
            return (f"patch {m.group(1)} does not apply to {names} in {self.path} (Linux {dotted(self.ver)})\n" +
                    "\n".join("  " + l for l in out.splitlines() if "FAILED" in l or "can't find" in l) +
                    f"\n  it is not as in the kernel that the series is for; fix patches/{m.group(1)}")
        if m := re.search(r"patch (\S+) needs to be refreshed", out):
            return (f"{self.path} has edits in files of patch {m.group(1)} that are not written back\n" +
                    self.keep_edits(self.touched(m.group(1)), m.group(1)))
        return "quilt: " + out.strip()

    def applied(self):
        # quilt fails where nothing is applied.
        db = self.state / "pc/applied-patches"
        return db.read_text(encoding="utf-8").split() if db.exists() else []

    def touched(self, patch):
        """Files that an applied patch touches."""
        d = self.state / "pc" / patch
        return sorted(str(f.relative_to(d)) for f in d.rglob("*") if f.is_file() and f.name != ".timestamp")

    def patched_files(self):
        return sorted({f for p in self.applied() for f in self.touched(p)})

    def originals(self):
        """{file: its first backup, which is what it was before the series}; an empty one if it did not exist."""
        pc, found = self.state / "pc", {}
        dirs = [pc / n for n in self.applied() if (pc / n).is_dir()]
        # What was being put on or taken off is not among them, and was the last.
        dirs += [d for d in pc.rglob("*.patch") if d.is_dir() and d not in dirs]
        for d in dirs:
            for b in (f for f in d.rglob("*") if f.is_file() and f.name != ".timestamp"):
                found.setdefault(str(b.relative_to(d)), b)
        return found

    def restore_originals(self):
        """After an interruption."""
        for name, backup in self.originals().items():
            # Not written in place: the tree may be a copy made of hard links.
            (self.path / name).unlink(missing_ok=True)
            if backup.stat().st_size:
                # With a new time: what was made of the patched one is older then, as after a pop of quilt.
                shutil.copy(backup, self.path / name)
        shutil.rmtree(self.state / "pc")

    def save_found(self):
        """Copies of what was written later than quilt's last step: edits, or a step that it could not finish."""
        last = max(f.stat().st_mtime_ns for f in (self.state / "pc").rglob("*"))
        later = [n for n in self.originals() if (self.path / n).exists() and (self.path / n).stat().st_mtime_ns > last]
        if later:
            saved = Path(tempfile.mkdtemp(prefix=f"{self.path.name}-found-", dir=self.path.parent))
            for n in later:
                (saved / n).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self.path / n, saved / n)
            say(f"  as they were found: {', '.join(later)} in {saved}")

    @contextmanager
    def changing(self):
        """Around quilt. What is interrupted in here, or fails, is for recover()."""
        busy = self.state / "busy"
        self.state.mkdir(exist_ok=True)
        busy.touch()
        yield
        busy.unlink()

    def recover(self):
        """To be called before anything is looked at: back to the originals, if a change was interrupted."""
        busy = self.state / "busy"
        if not busy.exists():
            return
        if (self.state / "pc").exists():
            say(f"an interrupted change of {self.path}: starting the series again")
            if not self.in_build():
                self.save_found()
            self.restore_originals()
        busy.unlink()

    def difference(self):
        """(names and contents of the series, names of what is applied, how many of them are the same)"""
        wanted = needed(self.path, self.originals(), self.root)
        want = [(n, f.read_bytes()) for n, f in patch_files(self.root, wanted)]
        have = self.applied()
        same = 0
        while (same < min(len(want), len(have)) and want[same][0] == have[same] and
               want[same][1] == (self.patches / have[same]).read_bytes()):
            same += 1
        return want, have, same

    def sync_patches(self):
        """Bring the tree to the repository's series; files that end up the same keep their time."""
        self.recover()
        if (editing := self.state / "editing").exists():
            raise Fail(f"patch {editing.read_text().strip()} is being edited: make refresh "
                       f"PATCH={editing.read_text().strip()}")
        want, have, same = self.difference()
        if same == len(want) == len(have):
            return
        # Ask first: popping half of the series and then stopping helps nobody, and save_clean() would take an edit for
        # what the series made.
        self.refuse_edits()
        before = {f: (sha256(self.path / f), (self.path / f).stat()) for f in self.patched_files()
                  if (self.path / f).exists()}
        failed = None
        with self.changing():
            if have[same:]:
                self.quilt("pop", have[same - 1] if same else "-a")
            shutil.rmtree(self.patches, ignore_errors=True)
            self.patches.mkdir()
            for n, data in want:
                (self.patches / n).parent.mkdir(parents=True, exist_ok=True)
                (self.patches / n).write_bytes(data)
            (self.patches / "series").write_text("".join(n + "\n" for n, _ in want), encoding="utf-8")
            if want[same:]:
                try:
                    self.quilt("push", "-a", "--fuzz=0")
                    self.say(f"applied {len(want) - same} of {len(want)} patches to {self.path}")
                except Fail as e:	# quilt leaves that patch off: the state is consistent
                    failed = e
            for f, (digest, st) in before.items():
                if (self.path / f).exists() and sha256(self.path / f) == digest:
                    os.utime(self.path / f, ns=(st.st_atime_ns, st.st_mtime_ns))
            self.save_clean()
        if failed:
            raise failed

    def save_clean(self):
        clean = self.state / "clean"
        shutil.rmtree(clean, ignore_errors=True)
        for f in self.patched_files():
            if (self.path / f).exists():
                (clean / f).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self.path / f, clean / f)

    def edited(self):
        """Patched files that were changed since the series was applied."""
        clean = self.state / "clean"
        return [f for f in self.patched_files()
                if (self.path / f).exists() != (clean / f).exists() or
                ((clean / f).exists() and not filecmp.cmp(clean / f, self.path / f, shallow=False))]

    def refuse_edits(self):
        if e := self.edited():
            # The last one: make refresh asks for it before any other.
            owner = next(p for p in reversed(self.applied()) if set(e) & set(self.touched(p)))
            raise Fail(f"{self.path}: {', '.join(e)} was edited and not written back to the series\n" +
                       self.keep_edits(e, owner))

    def reverted(self):
        """Patched files that somebody else, as git does, has taken back to what they were."""
        before = self.originals()
        return [f for f in self.edited() if f in before and
                (filecmp.cmp(before[f], self.path / f, shallow=False) if (self.path / f).exists()
                 else not before[f].stat().st_size)]

    def refuse_reverted(self):
        if r := self.reverted():
            raise Fail(f"{self.path}: {', '.join(r)} is as before the series again, by git or by hand\n"
                       f"  what the series made of it:\n    {self.each(r, self.DROP)}\n"
                       f"  then the same command again, or make unapply KDIR={shlex.quote(str(self.path))}")

    DROP = f"cp {STATE}/clean/$f $f"

    def each(self, files, command):
        """What to type for a command on each of these files, $f."""
        return f"(cd {shlex.quote(str(self.path))} && for f in {' '.join(map(shlex.quote, files))}; do {command}; done)"

    def in_build(self):
        """Whether make refresh looks at it: not at a tree of the user's own."""
        return self.path.name == "linux" and self.path.parent.parent == BUILD

    def keep_edits(self, files, patch):
        """What to do about edits of patched files."""
        there, saved = (shlex.quote(str(p)) for p in (self.path, f"{self.path}-edits.diff"))
        drop = self.each(files, self.DROP)
        if self.in_build():
            return f"  keep the edit: make refresh PATCH={patch}; or drop it:\n    {drop}"
        return (f"  save the edits:\n    {self.each(files, f'diff -uN {STATE}/clean/$f $f')} > {saved}\n"
                f"  drop them in the tree:\n    {drop}\n"
                f"  then the same command again, and to have them back:\n    patch -d {there} -p0 < {saved}")

    def keep_new(self, files):
        """The same about edits of new files."""
        there, saved = (shlex.quote(str(p)) for p in (self.path, f"{self.path}-edits"))
        names = " ".join(map(shlex.quote, files))
        drop = f"(cd {there} && rm {names})"
        if self.in_build():
            return f"  keep the edit: make refresh; or drop it:\n    {drop}"
        return ("  move the edits away, and then the same command again:\n"
                f"    (mkdir -p {saved} && cd {there} && cp --parents {names} {saved} && rm {names})\n"
                f"  they belong into {self.root}")

    # ---- new files

    def manifest(self):
        f = self.state / "manifest"
        lines = f.read_text(encoding="utf-8").splitlines() if f.exists() else []
        return {p: s for s, p in (l.split("  ", 1) for l in lines)}

    def write_manifest(self, m):
        self.state.mkdir(exist_ok=True)
        tmp = self.state / "manifest.new"
        tmp.write_text("".join(f"{s}  {p}\n" for p, s in sorted(m.items())), encoding="utf-8")
        tmp.rename(self.state / "manifest")

    def conflicts(self):
        m = self.manifest()
        return [f for f in overlay_files(self.root) if f not in m and (self.path / f).exists()]

    def refuse_conflicts(self):
        if c := self.conflicts():
            raise Fail(f"{', '.join(c)} of the repository would overwrite a file of the kernel tree {self.path}\n"
                       "  new files must not exist there: a change to an existing file belongs in patches/")

    def changed_overlay(self):
        """New files that were edited or removed in the tree."""
        return [f for f, s in self.manifest().items()
                if not (self.path / f).exists() or sha256(self.path / f) != s]

    def refuse_changed_overlay(self):
        files = overlay_files(self.root)
        changed = [f for f in self.changed_overlay() if (self.path / f).exists()]
        if edited := [f for f in changed if f in files and sha256(self.path / f) != sha256(files[f])]:
            raise Fail(f"{', '.join(edited)} was edited in the tree {self.path}, and differs from the repository's\n" +
                       self.keep_new(edited))
        if gone := [f for f in changed if f not in files]:
            raise Fail(f"{', '.join(gone)} was edited in the tree {self.path}, but the repository no longer has it\n"
                       f"  remove it: (cd {shlex.quote(str(self.path))} && rm {' '.join(map(shlex.quote, gone))})")

    def sync_overlay(self):
        """Copy what differs; a file with the same content keeps its time."""
        self.refuse_conflicts()
        self.refuse_changed_overlay()
        files, m = overlay_files(self.root), self.manifest()
        for f, src in files.items():
            dst, digest = self.path / f, sha256(src)
            if f not in m:	# noted before it is there, so that an interruption cannot orphan it
                m[f] = digest
                self.write_manifest(m)
            if not dst.exists() or sha256(dst) != digest:
                dst.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(src, dst)
            m[f] = digest
        for f in [f for f in m if f not in files]:
            self.remove(f)
            del m[f]
        self.write_manifest(m)

    def remove(self, f):
        p = self.path / f
        p.unlink(missing_ok=True)
        while (p := p.parent) != self.path and p.is_dir() and not any(p.iterdir()):
            p.rmdir()

    # ---- both

    def sync(self):
        # Ask all before anything changes.
        self.refuse_conflicts()
        self.refuse_changed_overlay()
        self.sync_patches()
        self.sync_overlay()

    def clear(self):
        """Back to the tree as it was."""
        self.recover()
        self.refuse_edits()
        if c := [f for f in self.changed_overlay() if (self.path / f).exists()]:
            raise Fail(f"{', '.join(c)} in {self.path} was edited since it was copied there\n" + self.keep_new(c))
        if self.applied():
            with self.changing():
                self.quilt("pop", "-a")
        for f in self.manifest():
            self.remove(f)
        shutil.rmtree(self.state, ignore_errors=True)

    def take_back(self):
        """Of a tree that was stock: whatever a change that did not come to its end has done."""
        if (self.state / "pc").exists():
            self.restore_originals()
        for f in self.manifest():
            self.remove(f)
        shutil.rmtree(self.state, ignore_errors=True)


def scratch(tree, ver, root, originals):
    """Try the series on copies of just the files that it touches: the tree itself is not changed.

    originals: of those that an older series has changed there.
    """
    with tempfile.TemporaryDirectory(prefix="tlb-rs-") as d:
        t = Path(d, "tree")
        for n in stock_files(root):
            file = originals.get(n, tree / n)
            if file.is_file() and (file.stat().st_size or n not in originals):
                (t / n).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, t / n)
        (t / "scripts/kconfig").mkdir(parents=True)
        try:
            trial = Tree(t, root)
            trial.say = lambda text: None
            trial.sync_patches()
        except Fail as e:
            text = str(e).replace(str(t), str(tree))
            if not supported(ver):
                # Whoever has another kernel needs another series, and not to be told about hunks.
                text = f"{tree} is Linux {dotted(ver)}: there is no series for {dotted(ver[:2])}, and that for " \
                       f"{KVERS[0]} does not apply\n  " + text.splitlines()[0]
            raise Fail(text + f"\n  {tree} was not changed") from None


def supported(ver):
    return dotted(ver[:2]) in KVERS


def hint(kdir):
    """The commands that turn the options on, with the tools that make kernel would use, if they are here."""
    options = ["RUST", "RUST_TLB_BATCH", "MIGRC", "MIGRC_FILE"]
    if (kdir / "arch/arm64").is_dir():
        options.append("HUGETLB_VMEMMAP_PAUSE")	# olddefconfig of another architecture drops it
    make = ["make", "LLVM=1"]
    # Without these the tree's make finds no Rust, and turns it off.
    if tools := toolchain.tools_here():
        make = ["env", *(f"{k}={v}" for k, v in sorted(tools[1].items())), "make", *tools[0]]
    return f"scripts/config {' '.join(f'-e {o}' for o in options)} && {shlex.join(make)} olddefconfig"


def apply(kdir, root=ROOT):
    """All of it or nothing, after a trial on copies."""
    kdir = Path(kdir).resolve()
    ver = tree_version(kdir)
    how = is_patched(kdir)
    if how and how != "make apply":
        raise Fail(f"{kdir} already carries tlb-rs, by {how}: nothing to do, and 'make unapply' cannot undo it")
    if not os.access(kdir, os.W_OK):
        raise Fail(f"{kdir} cannot be written to\n  copy it; or leave it as it is, and build a copy: "
                   f"make kernel KDIR={kdir}")
    tree = Tree(kdir, root)
    tree.refuse_conflicts()
    fresh = not how
    before = (tree.applied(), tree.manifest())
    if fresh and not supported(ver):
        say(f"note: Linux {dotted(ver)} is untested; {KVERS[0]} is supported")
    tree.recover()
    tree.refuse_reverted()
    want, have, same = tree.difference()
    if not same == len(want) == len(have):
        scratch(kdir, ver, root, tree.originals())
    try:
        tree.sync()
    except BaseException:
        if fresh:
            tree.take_back()
            say(f"{kdir} is as it was")
        raise
    if (tree.applied(), tree.manifest()) == before and not fresh:
        say(f"{kdir}: already applied")
        return 0
    # What "git add" and "git status" of a repository should not see.
    (tree.state / ".gitignore").write_text("*\n", encoding="ascii")
    say(f"{kdir}: {len(tree.manifest())} new files, {len(tree.applied())} patches, which change "
        f"{len(tree.patched_files())} files (Linux {dotted(ver)})\n"
        f"  listed in {STATE}/manifest and {STATE}/patches/series\n"
        "  options: make menuconfig there, General setup: Rust support; at the end of Memory Management options:\n"
        "  Batch TLB invalidation of unmapped pages in ranges, and the next ones; or there:\n"
        f"    {hint(kdir)}\n"
        "  what a build needs: make doctor; a package of it: the same make with bindeb-pkg\n"
        f"  undo: make unapply KDIR={shlex.quote(str(kdir))}")
    return 0


def unapply(kdir, root=ROOT):
    kdir = Path(kdir).resolve()
    tree_version(kdir)
    if is_patched(kdir) != "make apply":
        raise Fail(f"{kdir} was not changed by 'make apply': nothing to undo")
    tree = Tree(kdir, root)
    if not os.access(kdir, os.W_OK):
        raise Fail(f"{kdir} cannot be written to")
    tree.recover()
    patches, files = len(tree.applied()), len(tree.manifest())
    tree.clear()
    say(f"{kdir}: took off {patches} patches and {files} new files")
    return 0


# ---- writing edits back

def write_back(tree, patch):
    """The tree's copy of a patch into the repository."""
    file = tree.root / "patches" / patch
    data = (tree.patches / patch).read_bytes()
    if not file.exists() or file.read_bytes() != data:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(data)
        say(f"wrote {file}")
    else:
        say(f"{file}: no change")


def need_folder(patch, names, root):
    """PATCH= has to say in which folder."""
    if "/" not in patch:
        there = [n for n in names if re.sub(r".*/\d+-", "", n) == re.sub(r"^\d+-", "", patch)]
        there = there or [f"{f}/{patch}" for f in folders(root)]
        raise Fail(f"PATCH={patch} has no folder of patches/: name it {' or '.join(there)}")


def new_name(patch, names, root):
    """Of a patch that is not in the series: its name at the end of its folder, with or without the number."""
    folder, _, name = patch.rpartition("/")
    if folder not in folders(root):
        raise Fail(f"PATCH={patch}: no folder {folder} in patches/order, which has {', '.join(folders(root))}")
    m = re.fullmatch(r"(?:(\d+)-)?(.+?)(\.patch)?", name)
    new = f"{folder}/{1 + sum(n.startswith(folder + '/') for n in names):04}-{m[2]}.patch"
    if not m[3] or (m[1] and new != patch):
        raise Fail(f"no patch {patch} in the series; a new one is at the end of its folder: PATCH={new}")
    return new


def edits_outside(tree, base):
    """Files of the base that were edited in the tree and that no patch knows; and new files."""
    known = set(tree.patched_files()) | set(tree.manifest())
    edited, new = [], []
    for d, dirs, names in os.walk(tree.path):
        rel = os.path.relpath(d, tree.path)
        if rel == ".":
            dirs.remove(STATE)
        for n in names:
            f = os.path.normpath(os.path.join(rel, n))
            if f in known or os.path.islink(tree.path / f) or fnmatch.fnmatch(n, "*.orig"):
                continue
            if not (base / f).exists():
                new.append(f)
            elif (os.stat(tree.path / f).st_mtime_ns != os.stat(base / f).st_mtime_ns and
                  not filecmp.cmp(tree.path / f, base / f, shallow=False)):
                edited.append(f)
    return edited, new


def refresh_overlay(tree):
    for f in tree.changed_overlay():
        src = overlay_files(tree.root).get(f)
        if not src or not (tree.path / f).exists():
            continue
        if sha256(src) == sha256(tree.path / f):
            continue
        if sha256(src) != tree.manifest()[f]:
            raise Fail(f"{f} was edited both in the repository and in {tree.path}: merge them by hand "
                       f"in the repository, then rm {tree.path / f}")
        shutil.copy(tree.path / f, src)
        say(f"wrote {src}")


def refresh(tree, base, patch=None):
    """Edits in the built tree back into the repository."""
    refresh_overlay(tree)
    edited, new = edits_outside(tree, base)
    for f in new:
        say(f"note: {f} is new: put it at the same path in the repository")
    if not patch:
        if e := edited + tree.edited():
            raise Fail(f"edited: {', '.join(e)}; name the patch that it belongs to: make refresh PATCH=FOLDER/NAME")
        return 0
    names = [n for n, _ in patch_files(tree.root)]
    need_folder(patch, names, tree.root)
    editing = tree.state / "editing"
    at = editing.read_text().strip() if editing.exists() else None
    if patch not in tree.applied():
        if patch in names or (tree.patches / patch).exists():
            raise Fail(f"patch {patch} is not applied to {tree.path}: run make kernel first")
        patch = new_name(patch, names, tree.root)
        upto = folders(tree.root).index(patch.split("/")[0]) + 1
        below = [n for n in names if n.split("/")[0] in folders(tree.root)[:upto]]
        # A new one may come behind the patch that is being edited, if that is the last of its folder.
        at = None if below[-1:] == [at] else at
    if at not in (patch, None):
        raise Fail(f"patch {at} is being edited: refresh that one first")
    if patch not in tree.applied():
        if not edited + tree.edited():
            raise Fail(f"no patch {patch} in the series, and no edits in {tree.path} for a new one")
        for f in edited + tree.edited():
            if later := [p for p in tree.applied() if p in names and p not in below and f in tree.touched(p)]:
                raise Fail(f"{f} is also changed by {later[0]}, which comes behind {patch}: undo the edit, 'make edit "
                           f"PATCH={below[-1] if below else later[0]}' and edit again")
        say(f"new patch {patch}")
        tree.quilt("new", patch)
        (tree.state / "pc" / patch).mkdir(parents=True, exist_ok=True)
    applied = tree.applied()
    later = applied[applied.index(patch) + 1:]
    mine = tree.touched(patch)
    for f in edited + tree.edited():
        above = [p for p in later if f in tree.touched(p)]
        if above and f in mine + edited:
            raise Fail(f"{f} is also changed by {above[-1]}, later in the series: put the edit there (make refresh "
                       f"PATCH={above[-1]}), or undo it, 'make edit PATCH={patch}' and edit again")
        if above:
            raise Fail(f"{f} belongs to {above[-1]}: make refresh PATCH={above[-1]} first")
        if f not in mine:
            add(tree, patch, f, base / f if f in edited else tree.state / "clean" / f)
    tree.quilt("refresh", "-p", "ab", "--no-timestamps", "--no-index", "--sort", "--strip-trailing-whitespace", patch)
    write_back(tree, patch)
    editing.unlink(missing_ok=True)
    tree.save_clean()
    tree.sync_patches()
    return 0


def add(tree, patch, f, original):
    """Make f part of a patch although it has been edited already: quilt must see the original."""
    dst = tree.path / f
    keep = dst.with_name(dst.name + ".tlb-rs-edited")
    dst.rename(keep)
    try:
        shutil.copy2(original, dst)
        tree.quilt("add", "-P", patch, f)
    finally:
        keep.replace(dst)


def edit(tree, patch):
    """Take off what lies above a patch, so that it can be edited."""
    tree.sync_patches()
    tree.refuse_edits()
    need_folder(patch, tree.applied(), tree.root)
    if patch not in tree.applied():
        raise Fail(f"no patch {patch} in the series: {' '.join(tree.applied()) or 'it is empty'}")
    with tree.changing():
        if tree.applied()[-1] != patch:
            tree.quilt("pop", patch)
        tree.save_clean()
    (tree.state / "editing").write_text(patch + "\n", encoding="utf-8")
    say(f"{tree.path} is at {patch}: edit it there, then make refresh PATCH={patch}")
    return 0
