# SPDX-License-Identifier: GPL-2.0
"""The series that make series exports, applied to a kernel tree by git am, one commit after the other, and built.

What passed is not built again until the tree of that commit (its pages of documentation and its selftests apart), or
the configuration, changes: build/commits/ has a record for each architecture. FROM=migrc/0003 leaves out the commits
before that one, which have passed on another machine. With ccache, what is compiled as before is not compiled: after a
commit in the middle was mended, most of those behind it are built in a minute.

RUST=n builds another kernel of each, without Rust, as most who try the series do: of it the mechanisms in C are left. It has
records of its own.
"""

import hashlib
import json
import re
import shutil
import time
from pathlib import Path

from tlbrs.kernel import common, kernel as kernel_tool, series, source, toolchain

OUT = common.BUILD / "commits"
# Options of the series that others of it depend on.
BROUGHT = re.compile(r"\b(RUST_TLB_BATCH|MIGRC|HUGETLB_VMEMMAP_PAUSE)\b")
# In a line of git ls-tree: what no build of a kernel reads.
NOT_BUILT = re.compile(r"\t(Documentation/.*\.rst|tools/testing/selftests/.*)$")
# And without Rust.
RUST = re.compile(r"\t(rust/.*|.*\.rs)$")
WITHOUT_RUST = ("common", "{arch}", "selftests", "norust")


def variant(rust=True):
    """As the build directories call it."""
    return "commits" if rust else "commits-norust"


def place(arch, kver, rust=True):
    """Where the configuration is; the record is beside it."""
    return OUT / (f"{arch}-{kver}" + ("" if rust else "-norust"))


def fragments(arch, rust=True):
    """Of the checked image, or of one with what the tree's own selftests ask for: memory of devices is migrated then."""
    if rust:
        return kernel_tool.fragments(arch, "checked")
    return [common.ROOT / "config" / f"{name.format(arch=arch)}.fragment" for name in WITHOUT_RUST]


def repository(kver):
    """build/KVER/commits: the whole stock tree, as one commit, the tag "stock"."""
    stock = source.linux(kver)
    place = common.BUILD / kver / "commits"
    stamp = place.with_suffix(".base")
    new = not stamp.exists() or stamp.read_text(encoding="utf-8") != stock.name
    if new:
        common.need_space(place, 3, "a kernel tree in git")
        bar = common.Progress("copying the source into git")
        stamp.unlink(missing_ok=True)
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(stock, place, symlinks=True)
    repo = series.Repo(place, "tlb-rs <tlb-rs@localhost>", "2000-01-01T00:00:00+00:00")
    if new:
        repo.git("config", "gc.auto", "0")
        repo.commit("stock\n")
        repo.git("tag", "stock")
        stamp.write_text(stock.name, encoding="utf-8")
        bar.done()
    return repo


def built_from(repo, content, rust=True):
    """A hash of the files of this tree that a build may read."""
    files = repo.git("ls-tree", "-r", content).splitlines(keepends=True)
    read = (f for f in files if not NOT_BUILT.search(f) and (rust or not RUST.search(f)))
    return hashlib.sha256("".join(read).encode()).hexdigest()


def applied(kver, passed, rust=True):
    """For each commit (its tree in build/, its name, the hash that built_from() gives), while it is the last one there.

    passed(name, hash): whether it need not be there. Then the files are left alone, for make to find them as they were.
    """
    repo, stock = repository(kver), source.linux(kver)
    # Of a run that was interrupted.
    shutil.rmtree(repo.path / ".git/rebase-apply", ignore_errors=True)
    out = OUT / f"series-{kver}"
    shutil.rmtree(out, ignore_errors=True)
    series.series(out, stock)
    index = {"GIT_INDEX_FILE": str(OUT / f"index-{kver}")}
    last = "stock"
    repo.git("read-tree", last, env=index)
    for mechanism in dict.fromkeys(step[0] for step in series.plan()):
        for patch in sorted((out / mechanism).glob("*.patch")):
            if patch.name.startswith("0000-"):
                continue
            name = f"{mechanism}/{patch.name}"
            repo.git("apply", "--cached", patch, env=index)
            content = repo.git("write-tree", env=index).strip()
            files = built_from(repo, content, rust)
            if passed(name, files):
                last = repo.git("commit-tree", "-p", last, "-m", name, content).strip()
            else:
                repo.git("checkout", "-q", "--force", "--detach", last)
                repo.git("am", "-q", patch)
                if repo.git("rev-parse", "HEAD^{tree}").strip() != content:
                    raise common.Fail(f"{name}: git am and git apply differ")
                last = "HEAD"
            yield repo.path, name, files


def configuration(arch, kver, rust=True):
    """The .config of that image, of the whole series; without that image, which takes as long as many commits."""
    name, base, ident = kernel_tool.base_tree(kver, None)
    src = kernel_tool.patched_tree(name, base, ident).path
    out = place(arch, kver, rust)
    out.mkdir(parents=True, exist_ok=True)
    make, env = kernel_tool.maker(src, out, arch)
    kernel_tool.configure(make, env, src, out, arch, fragments(arch, rust), name)
    return out / ".config"


def lost(tree, asked):
    """Of options ("CONFIG_X=y (is n)") those that the tree, a repository, has, and what they depend on.

    A commit may bring an option of which a later one brings what it depends on."""
    there, needs, last = set(), {}, ""
    for line in common.output(["git", "grep", "-hE", r"^[[:space:]]*((menu)?config|depends on) ", "--", "*Kconfig*"],
                              cwd=tree).splitlines():
        word, rest = re.match(r"\s*(\w+) (.*)", line).groups()
        if word == "depends":
            needs.setdefault(last, set()).update(re.findall(BROUGHT, rest))
        else:
            last = rest.strip()
            there.add(last)
    return [option for option in asked
            if (name := re.match(r"CONFIG_(\w+)", option)[1]) in there and needs.get(name, set()) <= there]


def build(tree, arch, kver, config, rust=True):
    """With the options of this configuration that the tree has. Raises Fail."""
    out = common.BUILD / kver / f"{arch}-{variant(rust)}"
    out.mkdir(exist_ok=True)
    make, env = kernel_tool.maker(tree, out, arch)
    make.append("LOCALVERSION=")    # it would name the commit, and so be compiled anew for each
    if shutil.which("ccache"):
        make.append(f"CC=ccache {toolchain.llvm_tool('clang')}")
        env |= {"CCACHE_DIR": str(OUT / "ccache"), "CCACHE_MAXSIZE": "5G"}
    shutil.copy(config, out / ".config")
    with common.lock(common.BUILD / "lock", "kernel build"):
        common.logged([*make, "olddefconfig"], out / "config.log", f"configuring {out.name}", env=env)
        asked = kernel_tool.not_taken(out / ".config", fragments(arch, rust), arch, kver)
        if left := lost(tree, asked):
            raise common.Fail(f"options that did not take: {', '.join(left)}")
        common.logged([*make, kernel_tool.JOBS, Path(kernel_tool.IMAGES[arch]).name], out / "build.log",
                      f"building {kver}/{out.name}", kernel_tool.OBJECT, env=env)
    kernel_tool.link_image(out, arch)


def tried(arch, kver, boot, first="", rust=True):
    """For each commit from the one on whose name begins with `first` (name, what is wrong or None, seconds to build, or 0
    if it was done before).

    boot(name): says what is wrong with what was built, or None.
    """
    with common.lock(common.BUILD / "lock", "kernel build"):
        config = configuration(arch, kver, rust)
    # Not with_suffix(): the version has a dot.
    record = Path(f"{place(arch, kver, rust)}.json")
    passed = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}

    def key(files):
        return hashlib.sha256(files.encode() + config.read_bytes()).hexdigest()

    begun = False

    def need_not(name, files):
        nonlocal begun
        begun = begun or name.startswith(first)
        return not begun or key(files) in passed

    with common.lock(OUT / "lock", "test of the commits"):
        for tree, name, files in applied(kver, need_not, rust):
            if not begun:
                continue
            if key(files) in passed:
                yield name, None, 0
                continue
            begin = time.monotonic()
            try:
                build(tree, arch, kver, config, rust)
            except common.Fail as e:
                yield name, str(e), 0
                continue
            seconds = round(time.monotonic() - begin)
            wrong = boot(name)
            if not wrong:
                passed[key(files)] = name
                common.store(record, passed)
            yield name, wrong, seconds
    if not begun:
        raise common.Fail(f"no commit of the series is called {first}...")
