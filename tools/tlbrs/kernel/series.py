# SPDX-License-Identifier: GPL-2.0
"""The overlay and the series of patches as commits that git am takes, one series for each mechanism.

A patch says in its description which new files arrive with it:

    Adds: mm/migrc/ include/trace/events/migrc.h

Names may have stars, and what ends with a slash is all below it. patches/*/0000-cover is what the cover letters say.

A folder of mm/ comes whole, with its Kconfig and its Makefile. That of tlb_batch comes before its hooks, each of which
is complete by itself. Those of migrc and hvo come when all hooks that they need are there; no option switches these on
before. So each commit can be built and booted.
"""

import fnmatch
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import textwrap
from pathlib import Path

from tlbrs.kernel import overlay
from tlbrs.kernel.common import ROOT, Fail, dotted, output, say

# ---- what arrives when

def head_of(data):
    """The description in a patch file, in front of the diff."""
    return data[:re.search(r"^(---\n|Index: |diff |--- )", data, re.M).start()]


def plan(root=ROOT, want=lambda name: True):
    """[(mechanism, patch, its file, [new files])], in the order of the series.

    want: see overlay.needed()
    """
    files, brings, steps = overlay.overlay_files(root), {}, []
    for name, file in overlay.patch_files(root, want):
        head = head_of(file.read_text(encoding="utf-8", errors="surrogateescape"))
        new = []
        for glob in (w for line in re.findall(r"^Adds:(.*)", head, re.M) for w in line.split()):
            found = fnmatch.filter(files, glob + "*" * glob.endswith("/"))
            if not found:
                raise Fail(f"Adds: of {name} has {glob}, but there is no such new file")
            new += found
        for f in new:
            if f in brings:
                raise Fail(f"{f} is in two Adds:, of {brings[f]} and of {name}")
            brings[f] = name
        steps.append((name.split("/", maxsplit=1)[0], name, file, sorted(new)))
    if left := sorted(set(files) - set(brings)):
        raise Fail(f"no patch says \"Adds: {' '.join(left)}\" in its description")
    return steps


# ---- cover letters

def section(text, heading):
    """The body of a section of Markdown or reStructuredText."""
    m = re.search(rf"(?m)^(?:(#+) {re.escape(heading)}|{re.escape(heading)}\n([=-])\2+)\n", text)
    if not m:
        return None
    rest = text[m.end():]
    # The next one of the same level, or of a higher one.
    end = re.search(rf"(?m)^#{{1,{len(m.group(1))}}} ", rest) if m.group(1) else \
        re.search(r"(?m)^\S.*\n([=-])\1{3,}$", rest)
    return (rest[:end.start()] if end else rest).strip("\n")


def plain(text):
    """reStructuredText as a mail has it: no markup, paragraphs and lists as wide as a mail is, tables as they are."""
    text = re.sub(r"(?m)^\.\. \[#f(\d+)\] ", r"(\1) ", text)
    # In tables what follows stays in its column.
    text = re.sub(r"``(.*?)``( {2,})?", lambda m: m[1] + (m[2] or "") + "    " * bool(m[2]), text, flags=re.S)
    text = re.sub(r"\[#f(\d+)\]_( {2,})?", lambda m: f"({m[1]})" + (m[2] or "") + "   " * bool(m[2]), text)
    done = []
    for block in text.split("\n\n"):
        if not block.startswith(("=", " ")):
            # The paragraph, the items of the list, or the footnotes.
            parts = re.split(r"\n(?=- |\(\d\) )", block)
            block = "\n".join(textwrap.fill(" ".join(p.split()), 75, break_long_words=False, break_on_hyphens=False,
                                            subsequent_indent=re.match(r"(- |\(\d\) )?", p).end() * " ") for p in parts)
        done.append(block)
    return "\n\n".join(done)


def cover(mechanism, root=ROOT):
    """Subject and text of a cover letter, with the figures where the documents have them."""
    def put_in(m):
        kind, name, heading = m.groups()
        text = section((root / name).read_text(encoding="utf-8"), heading)
        if text and kind == "blocks":
            # The indented ones, with the empty lines between them; not where it ran and where its logs are.
            text = "\n\n".join(b.rstrip("\n") for b in re.findall(r"(?m)(?:^    .*\n?(?:\n(?=    ))*)+", text + "\n"))
            text = re.sub(r"\n\n    host: .*(\n    .*)*", "", text)
        elif text:
            text = plain(text)
        if not text:
            raise Fail(f"patches/{mechanism}/0000-cover: {name} has no section '{heading}', or nothing in it")
        return re.sub(r"(?m)^ +$", "", text)
    path = root / "patches" / mechanism / "0000-cover"
    if not path.exists():
        raise Fail(f"no cover letter for {mechanism}: write {path}")
    lines = [l for l in path.read_text(encoding="utf-8").splitlines() if not l.startswith("#")]
    return re.sub(r"(?m)^@(blocks|section) ([^:]+): (.*)$", put_in, "\n".join(lines)).strip() + "\n"


def companions(mechanism, covers):
    """What follows a cover letter if it is one of several: where it is among them. covers: {mechanism: letter}, in the
    order of the series."""
    if len(covers) < 2:
        return ""
    rows = "".join(f"  {'->' if m == mechanism else '  '} {letter.splitlines()[0]}\n" for m, letter in covers.items())
    return f"\nThis is one of {len(covers)} series, which apply in this order:\n\n{rows}"


# ---- commits

class Repo:
    """A repository in a directory, made if there is none."""

    def __init__(self, path, author, date):
        self.path = path
        path.mkdir(exist_ok=True)
        name, email = re.fullmatch(r"(.*) <(.*)>", author).groups()
        # Nothing of the caller's: no signing, no hooks, no sign-off by configuration.
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {
            "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C",
            "GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": email, "GIT_AUTHOR_DATE": date,
            "GIT_COMMITTER_NAME": name, "GIT_COMMITTER_EMAIL": email, "GIT_COMMITTER_DATE": date}
        self.git("init", "-q", "-b", "stock")

    def git(self, *args, **kw):
        p = subprocess.run(["git", *map(str, args)], cwd=self.path, env=self.env | kw.pop("env", {}), check=False,
                           capture_output=True, text=True, errors="surrogateescape", **kw)
        if p.returncode:
            raise Fail(f"git {args[0]}: " + "\n  ".join((p.stderr or p.stdout).replace("error: ", "").splitlines()))
        return p.stdout

    def commit(self, message, **kw):
        self.git("add", "-f", "-A", ".")
        self.git("commit", "-q", "--allow-empty", "--no-verify", "--cleanup=whitespace", "-F", "-", input=message, **kw)


def described(name, data):
    """(author, if it has one, for git's environment, message) of a patch file, whose diff follows its description."""
    head = head_of(data)
    subject = re.findall(r"^Subject: (?:\[[^]]*\] *)?(.*)", head, re.M) or \
        [re.sub(r"^\d+-|\.patch$", "", Path(name).name)]
    body = re.sub(r"^(From|Subject|Date|Adds):.*\n|^From [0-9a-f]{40} .*\n", "", head, flags=re.M).strip()
    author = re.search(r"^From: (?P<GIT_AUTHOR_NAME>.*) <(?P<GIT_AUTHOR_EMAIL>.*)>", head, re.M)
    return author.groupdict() if author else {}, f"{subject[0]}\n\n{body}\n"


def add_commits(repo, steps, ver, root):
    files, branch = overlay.overlay_files(root), None
    for mechanism, name, file, new in steps:
        if mechanism != branch:
            repo.git("checkout", "-q", "-b", mechanism)
            branch = mechanism
        try:
            # Nothing but the offset of a hunk may differ.
            repo.git("apply", "--index", file)
        except Fail as e:
            raise Fail(f"patch {name} does not apply (Linux {dotted(ver)}):\n  {e}") from None
        for f in new:
            (repo.path / f).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(files[f], repo.path / f)
        author, message = described(name, file.read_text(encoding="utf-8", errors="surrogateescape"))
        repo.commit(message, env=author)


def series(out, tree, root=ROOT):
    """OUT/<mechanism>/: numbered patches and a cover letter, each series on top of the one before."""
    tree, out = Path(tree).resolve(), Path(out).resolve()
    ver = overlay.tree_version(tree)
    if how := overlay.is_patched(tree):
        raise Fail(f"{tree} already carries tlb-rs, by {how}: the series is made from a stock tree")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Fail(f"{out} is not an empty directory")
    steps = plan(root, overlay.needed(tree, root=root))
    mechanisms = list(dict.fromkeys(s[0] for s in steps))
    author, date = (output(["git", "log", "-1", f"--format={f}"], cwd=root).strip() for f in ("%an <%ae>", "%aI"))
    with tempfile.TemporaryDirectory(prefix="tlb-rs-") as d:
        # Of just the files that the series changes.
        repo = Repo(Path(d, "tree"), author or "tlb-rs <tlb-rs@localhost>", date or "2000-01-01T00:00:00+00:00")
        for name in overlay.stock_files(root):
            if (tree / name).is_file():
                (repo.path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(tree / name, repo.path / name)
        repo.commit(f"Linux {dotted(ver)}\n")
        add_commits(repo, steps, ver, root)
        before = "stock"
        covers = {m: cover(m, root) for m in mechanisms}
        for m in mechanisms:
            repo.git("config", f"branch.{m}.description", covers[m] + companions(m, covers))
            repo.git("format-patch", "-q", "--zero-commit", "--no-signature", "--no-base", "--cover-letter",
                     "--cover-from-description=subject", "-o", Path(d, "out", m), f"{before}..{m}")
            before = m
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(Path(d, "out"), out, dirs_exist_ok=True)
    for m in mechanisms:
        say(f"{out / m}: {len(list((out / m).glob('*.patch'))) - 1} patches and a cover letter")
    # Without --empty=drop git am stops at a cover letter.
    say(f"for Linux {dotted(ver)}; on a git tree of it: git am --empty=drop " +
        " ".join(f"{shlex.quote(str(out / m))}/*.patch" for m in mechanisms))
    return 0
