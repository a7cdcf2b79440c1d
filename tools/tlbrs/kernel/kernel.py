# SPDX-License-Identifier: GPL-2.0
"""Build a kernel, and the commands around the patched tree.

usage: tlb-rs kernel build --arch A --variant V [--kver K] [--kdir DIR]
       tlb-rs kernel build --arch A --variant stock-objects|off-objects --objects OBJECT...
       tlb-rs kernel deb --arch A [--config FILE...] [--only-configure] [--kver K] [--kdir DIR]
       tlb-rs kernel source|tree|edit|refresh [--kver K] [--kdir DIR] [--patch NAME]
       tlb-rs kernel apply|unapply --kdir DIR
       tlb-rs kernel series --out DIR [--kver K] [--kdir DIR]
"""

import argparse
import functools
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from tlbrs.kernel import headers, overlay, series, source, toolchain, unmet
from tlbrs.kernel.common import (BUILD, ROOT, Fail, Progress, dotted, lock, logged, need_space,
                                 one_of, say, sha256, store)

IMAGES = {"arm64": "arch/arm64/boot/Image", "x86_64": "arch/x86/boot/bzImage"}
# Further fragments on top of the checked image; arm64 has pages of more than 4 KiB, x86_64 can do without SMP.
PAGE_SIZES = ("16k", "64k")
ON_CHECKED = ("debug", "distro", "fs", "hardened", "hvo-on", "kcsan", "rt", "nonuma", "nothp", "mte",
              "reports", "up", *PAGE_SIZES)
# On top of the release image.
ON_RELEASE = ("bench", "trace", "selftests")
# Without the patches.
STOCK = ("stock", "stock-selftests")
VARIANTS = (*STOCK, "release", "checked", *ON_RELEASE, *ON_CHECKED)
# Single objects of the stock and of the patched tree, every option of ours off: must be the same code.
# Without Rust, which takes most of the time that a single object needs.
OBJECT_VARIANTS = ("stock-objects", "off-objects")
OBJECT_OPTIONS = "".join(f"# CONFIG_{o} is not set\n" for o in ("RUST", "SAMPLES_RUST", "MIGRATION_RESTORE_RUNS",
                                                                       "FOLIO_MKCLEAN_RUNS", "FOLIO_BATCH_MKCLEAN"))
# Options of a fragment that may stay off: (version, architecture, option), "*" for any. Say why.
MAY_BE_OFF = {
    *(("*", "x86_64", f"CONFIG_ARM64_{o}") for o in ("HW_AFDBM", "MTE", "TAGGED_ADDR_ABI")),    # of arm64
    *(("*", "x86_64", f"CONFIG_{o}") for o in ("SHADOW_CALL_STACK", "UNMAP_KERNEL_AT_EL0")),        # the same
    *(("*", "arm64", f"CONFIG_{o}") for o in                                                    # of x86_64
      ("UNWINDER_ORC", "MEM_SOFT_DIRTY", "HYPERVISOR_GUEST", "IA32_EMULATION", "KVM_GUEST",
       "MITIGATION_PAGE_TABLE_ISOLATION", "XEN_PV")),
    # Not there unless modules are signed, or the distribution has certificates.
    *(("*", "*", f"CONFIG_SYSTEM_{o}_KEYS") for o in ("TRUSTED", "REVOCATION")),
}
# What the caller's make or shell may hold and a kernel build must not see.
PRIVATE = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "ARCH", "VARIANT", "KVER", "KDIR", "PATCH", "OUT",
           "CROSS_COMPILE", "KBUILD_OUTPUT", "O", "V", "C", "M", "W", "LLVM", "CC", "LD", "RUSTC", "BINDGEN",
           "CONFIG", "INITRD", "CPU", "SMP", "MEM", "DISK", "APPEND", "METER", "ORACLE", "TIMEOUT", "INSTALL",
           "SRCARCH", "RUST", "FROM", "FASTPATH", "MMCI", "TESTS")


# ---- trees

# Top-level entries that are no source. Not left to the top .gitignore: Debian's ignores everything.
TOP_PRODUCTS = (".git", ".config*", ".tmp_*", ".*.cmd", ".*.d", ".version", ".cache", ".pc", ".tlb-rs", "*.o", "*.a",
                "*.cmd", "*.orig", "*.rej", "*.patch", "vmlinux*", "vmlinuz*", "System.map", "Module.symvers",
                "modules.*", "modules-only.symvers", "compile_commands.json", "rust-project.json", "tags", "TAGS",
                "cscope*", "GPATH", "GRTAGS", "GTAGS", "debian", "tar-install", "*.tar*", "*.deb")

HIDDEN_SOURCES = (".gitignore", ".kunitconfig", ".clang-format", ".renames.txt")


def copy_kdir(kdir, dest, change):
    """Sources of kdir into dest, without build products; calls change() before the first that differs.

    git applies the tree's own .gitignore files, whether or not the tree is a repository.
    """
    gitdir = dest.parent / "ignore.git"
    if not gitdir.exists():
        subprocess.run(["git", "init", "-q", "--bare", gitdir], check=True)
    p = subprocess.run(["git", f"--git-dir={gitdir}", f"--work-tree={kdir}", "ls-files", "-z", "-o",
                        "--exclude=!/*", *(f"--exclude=!{h}" for h in HIDDEN_SOURCES),
                        *(f"--exclude=/{t}" for t in TOP_PRODUCTS), "--exclude-per-directory=.gitignore"],
                       cwd=kdir, capture_output=True, check=True)
    names = set(os.fsdecode(p.stdout).split("\0")) - {""}
    bar, change = Progress(f"copying {kdir}"), functools.cache(change)
    # A copy has the time at which it was made: a file that became another, older one must be compiled again.
    table = dest.parent / "base.json"
    copied = json.loads(table.read_text(encoding="utf-8")) if table.exists() else {}
    done = {}
    try:
        for n, f in enumerate(sorted(names)):
            src, dst = kdir / f, dest / f
            st = os.lstat(src)
            facts = [st.st_size, st.st_mtime_ns, st.st_mode]
            if copied.get(f) != facts or not os.path.lexists(dst):
                change()
                dst.parent.mkdir(parents=True, exist_ok=True)
                dst.unlink(missing_ok=True)
                shutil.copy(src, dst, follow_symlinks=False)
                bar.update(f"{n} of {len(names)} files")
            done[f] = facts
    finally:
        store(table, done)
    for d, _, files in os.walk(dest):
        for f in files:
            if os.path.relpath(os.path.join(d, f), dest) not in names:
                change()
                os.unlink(os.path.join(d, f))
    bar.done()


def stock_kdir(kdir):
    """KDIR= of a build: (directory, version), if it is what it must be."""
    kdir = Path(kdir).resolve()
    ver = overlay.tree_version(kdir)
    if how := overlay.is_patched(kdir):
        undo = f"make unapply KDIR={kdir}" if how == "make apply" else "revert them there"
        raise Fail(f"{kdir} already carries the tlb-rs patches, by {how}; KDIR= must be a stock tree\n"
                   f"  {undo}, or build it with its own make")
    return kdir, ver


def base_tree(kver, kdir):
    """(name of the directory in build/, stock tree, its identity)"""
    if kdir:
        kdir, ver = stock_kdir(kdir)
    else:
        tree = source.linux(kver)
        return kver, tree, tree.name
    if dotted(ver[:2]) not in source.KVERS:
        say(f"note: Linux {dotted(ver)} is untested; {' and '.join(source.KVERS)} are supported")
    top = BUILD / f"{dotted(ver[:2])}-kdir"
    need_space(top, 2, "a copy of KDIR")
    count = top / "base.id"
    # Another one before the first file changes: a copy that is interrupted is no longer what it was, either.
    ident = count.read_text(encoding="utf-8") if count.exists() else "0"
    copy_kdir(kdir, top / "base", lambda: count.write_text(str(int(ident) + 1), encoding="utf-8"))
    return top.name, top / "base", count.read_text(encoding="utf-8") if count.exists() else ident


def patched_tree(name, base, ident):
    """build/<name>/linux: the base with the overlay and the series."""
    path, stamp = BUILD / name / "linux", BUILD / name / "linux.base"
    # No stamp: nothing there, or a copy that was interrupted.
    if stamp.exists() and stamp.read_text(encoding="utf-8") != ident:
        tree = overlay.Tree(path)
        tree.clear()	# refuses where edits would be lost
        stamp.unlink(missing_ok=True)
    if not stamp.exists():
        need_space(BUILD, 2, "the patched tree")
        bar = Progress("copying the source")
        path.mkdir(parents=True, exist_ok=True)
        # rsync: a copy that was interrupted goes on, and a new base touches only what differs.
        subprocess.run(["rsync", "-a", "--delete", f"{base}/", f"{path}/"], check=True)
        bar.done()
        stamp.write_text(ident, encoding="utf-8")
    tree = overlay.Tree(path)
    tree.sync()
    return tree


# ---- configuration

def fragments(arch, variant):
    names = ["common", arch] + (["release"] if variant in VARIANTS and variant not in STOCK else [])
    if arch == "arm64" and variant in ("checked", *ON_RELEASE, *ON_CHECKED):
        names += ["hvo"] + (["hvo-debug"] if variant not in ON_RELEASE else [])
    names += ["checked"] if variant in ON_CHECKED else []
    # Those on which SUITE=programs runs.
    names += [f"checked-{arch}"] if variant in ("checked", "debug") else []
    names += [variant.removeprefix("stock-")] if variant in ("checked", *STOCK, *ON_RELEASE, *ON_CHECKED) else []
    files = [ROOT / "config" / f"{n}.fragment" for n in names]
    return [f for f in files if f.exists() or f.stem in ("common", arch)]


def options(text):
    """{option: value} of a fragment or .config; "n" for "is not set"."""
    found = {}
    for line in text.splitlines():
        if m := re.match(r"(CONFIG_\w+)=(.*?)\s*$|# (CONFIG_\w+) is not set", line):
            found[m.group(1) or m.group(3)] = m.group(2) or "n"
    return found


def not_taken(config, frags, arch, kver):
    """The options of the fragments that a .config has otherwise."""
    want = {}
    for f in frags:
        want |= options(f.read_text(encoding="utf-8"))
    got = options(config.read_text(encoding="utf-8"))
    return [f"{o}={v} (is {got.get(o, 'n')})" for o, v in want.items() if got.get(o, "n") != v and
            not {(k, a, o) for k in (kver, "*") for a in (arch, "*")} & MAY_BE_OFF]


def why_not(make, env, src, config, bad, frags):
    """What forbids these options, as far as the tree says it. Where Rust is off, so is all that needs it."""
    names = [b.partition("=")[0] for b in bad]
    names = ["CONFIG_RUST"] if "CONFIG_RUST" in names else names
    got = options(config.read_text(encoding="utf-8"))
    rows = [row for name in names for row in unmet.reasons(src, name, got)]
    if any("RUST_IS_AVAILABLE" in row for row in rows) or names == ["CONFIG_RUST"] and not rows:
        p = subprocess.run([*make, "rustavailable"], env=env, capture_output=True, text=True, check=False)
        rows.append(p.stderr.strip())
    else:
        rows += [f"change that in one of {', '.join(f.name for f in frags)}, or in a further fragment"] if rows else []
    return "\n".join(f"  {row}" for row in rows) or (
        f"  a dependency is missing from {', '.join(f.name for f in frags)}, or the option does not exist in this kernel")


def configure(make, env, src, out, arch, frags, kver, base="tinyconfig"):
    """.config from a target of make, or a file, and the fragments; unchanged content keeps its time."""
    kconfigs = [f for k, f in overlay.overlay_files().items() if Path(k).name.startswith("Kconfig")]
    kconfigs += [f for f in (src / overlay.STATE / "patches").rglob("*.patch") if "Kconfig" in f.read_text(errors="replace")]
    stamp = out / ".config.inputs"
    key = "\n".join([*make, str(src), *sorted(f"{f.name} {sha256(f)}" for f in frags + kconfigs),
                     str(base) + (sha256(base) if isinstance(base, Path) else "")])
    config = out / ".config"
    if config.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == key:
        # A make there without our variables has no Rust, and writes a configuration that has none.
        if not (lost := not_taken(config, frags, arch, kver)):
            return
        shutil.copy2(config, out / ".config.lost")
        mine = "CONFIG='file own.fragment'" if frags[0].stem == "deb" else "change the fragment in config/"
        say(f"{config} was changed: {', '.join(lost)}\n  configuring it anew; what it was is in .config.lost beside it; to "
            f"have these otherwise: {mine}")
    stamp.unlink(missing_ok=True)
    old = (config.read_bytes(), config.stat()) if config.exists() else None
    log = out / "config.log"
    first = f'cp "{base}" "{config}"' if isinstance(base, Path) else f'"$@" {base}'
    script = (f'set -eu\n{first}\n'
              f'"{src}/scripts/kconfig/merge_config.sh" -m -O "{out}" "{config}" ' +
              " ".join(f'"{f}"' for f in frags) + '\n"$@" olddefconfig\n')
    logged(["bash", "-c", script, "-", *make], log, f"configuring {out.name}", env=env)
    if bad := not_taken(config, frags, arch, kver):
        raise Fail(f"options that did not take for {out.name}: {', '.join(bad)}\n" +
                   why_not(make, env, src, config, bad, frags))
    if old and old[0] == config.read_bytes():
        os.utime(config, ns=(old[1].st_atime_ns, old[1].st_mtime_ns))
    stamp.write_text(key, encoding="utf-8")


# ---- commands

def maker(src, out, arch):
    """The command make for a kernel, and its environment."""
    variables, extra = toolchain.kernel_tools()
    env = {k: v for k, v in os.environ.items() if k not in PRIVATE}
    env |= extra | {"KBUILD_BUILD_USER": "tlb-rs", "KBUILD_BUILD_HOST": "localhost", "LC_ALL": "C"}
    return ["make", "-C", str(src), f"O={out}", f"ARCH={arch}", *variables], env


def link_image(out, arch):
    """Where it is looked for; a file there, of someone's copy, is changed by no build."""
    link = out / Path(IMAGES[arch]).name
    if not link.is_symlink():
        link.unlink(missing_ok=True)
        link.symlink_to(IMAGES[arch])
    return link


JOBS = f"-j{len(os.sched_getaffinity(0))}"
OBJECT = re.compile(r"  (?:CC|AS|RUSTC|RUSTDOC|LD|AR|HOSTCC|BINDGEN|EXPORTS|GEN|HOSTRUSTC|OBJCOPY|VDSO\w*) "
                    r"(?:\[M\])? *(\S+)")


def build(a):
    one_of("ARCH", a.arch, IMAGES)
    one_of("VARIANT", a.variant, OBJECT_VARIANTS if a.objects else VARIANTS)
    if a.variant in PAGE_SIZES and a.arch != "arm64":
        raise Fail(f"VARIANT={a.variant}: {a.arch} has pages of 4 KiB only")
    if a.variant == "hvo-on" and a.arch != "arm64":
        raise Fail(f"VARIANT={a.variant}: {a.arch} changes live entries without a pause")
    if a.variant == "reports" and a.arch != "arm64":
        raise Fail("VARIANT=reports: what is tested there is of arm64")
    if a.variant == "up" and a.arch != "x86_64":
        raise Fail(f"VARIANT={a.variant}: {a.arch} has no kernel without SMP")
    toolchain.kernel_tools()	# before anything is copied
    name, base, ident = base_tree(a.kver, a.kdir)
    src = base if a.variant in (*STOCK, "stock-objects") else patched_tree(name, base, ident).path
    out = BUILD / name / f"{a.arch}-{a.variant}"
    if not (out / "vmlinux").exists():
        need_space(BUILD, 4, "a kernel build")
    out.mkdir(parents=True, exist_ok=True)
    make, env = maker(src, out, a.arch)
    if a.variant in ("checked", "debug") and shutil.which("clippy-driver"):
        make.append("CLIPPY=1")	# a lint stops the build, as CONFIG_WERROR makes it an error
    frags = fragments(a.arch, a.variant)
    if a.objects:
        frags.append(out / "objects.fragment")
        frags[-1].write_text(OBJECT_OPTIONS, encoding="ascii")
    configure(make, env, src, out, a.arch, frags, name)
    config = options((out / ".config").read_text(encoding="utf-8"))
    targets = [Path(IMAGES[a.arch]).name] + (["modules"] if config.get("CONFIG_MODULES") == "y" else [])
    if a.objects:
        targets = a.objects
    logged([*make, JOBS, *targets], out / "build.log", f"building {name}/{out.name}",
           OBJECT, env=env)
    if a.objects:
        return 0
    print(os.path.relpath(link_image(out, a.arch)))
    return 0


HOST_ARCH = {"aarch64": "arm64"}


def deb_config(a):
    """What the configuration of a package begins with, and further fragments: CONFIG=, or the running kernel's."""
    if a.config:
        if a.config[0].endswith(("defconfig", "tinyconfig")):
            base = a.config[0]
        else:
            base = Path(a.config[0]).resolve()
        files = [Path(f).resolve() for f in a.config[1:]]
        for f in [*files, *([base] if isinstance(base, Path) else [])]:
            if not f.is_file():
                raise Fail(f"CONFIG={f}: no such file")
        return base, files
    name = Path("/boot") / f"config-{os.uname().release}"
    if HOST_ARCH.get(os.uname().machine, os.uname().machine) != a.arch:
        raise Fail(f"name the configuration of an {a.arch} machine: copy its /boot/config-* and make {a.command} "
                   f"ARCH={a.arch} CONFIG=file, or CONFIG=defconfig for that of the kernel tree")
    if not name.is_file():
        raise Fail(f"no {name} here: name a configuration, make {a.command} CONFIG=file (/boot/config-* of a machine, or "
                   "zcat /proc/config.gz > file), or CONFIG=defconfig for that of the kernel tree")
    return name, []


def deb_fragments(arch):
    """All three options where they can be."""
    return ["deb", "release"] + (["hvo"] if arch == "arm64" else [])


def deb(a):
    """linux-image and linux-headers packages, by the tree's own bindeb-pkg."""
    one_of("ARCH", a.arch, IMAGES)
    start, more = deb_config(a)
    toolchain.need(["kernel", "deb"])
    name, base, ident = base_tree(a.kver, a.kdir)
    src = patched_tree(name, base, ident).path
    # dpkg-buildpackage leaves the packages beside the directory in which it builds.
    out = BUILD / name / f"{a.arch}-deb" / "build"
    out.mkdir(parents=True, exist_ok=True)
    make, env = maker(src, out, a.arch)
    frags = [ROOT / "config" / f"{f}.fragment" for f in deb_fragments(a.arch)]
    configure(make, env, src, out, a.arch, frags + more, name, start)
    # What the packages need was looked for above; dpkg would look for packages of the other architecture, too.
    command = [*make, JOBS, "bindeb-pkg", "DPKG_FLAGS=--no-check-builddeps"]
    if a.only_configure:
        # Both with it: a make that does not find the library source or libclang turns Rust off.
        prefix = ["env", *(f"{k}={v}" for k, v in sorted(toolchain.kernel_tools()[1].items()))]
        say(f"{out / '.config'}: from {start}; change it with: {shlex.join([*prefix, *make, 'menuconfig'])}")
        print(shlex.join([*prefix, *command]))
        return 0
    if not (out / "vmlinux").exists():
        need_space(out, 15, "the kernel of a distribution")
    logged(command, out.parent / "build.log", f"building packages in {name}/{out.parent.name}", OBJECT, env=env)
    debs = sorted(out.parent.glob("*.deb"), key=lambda f: f.stat().st_mtime)
    newest = [f for f in debs if f.stat().st_mtime >= (out / ".config").stat().st_mtime]
    # Each run makes one more.
    head = next((f for f in reversed(newest) if f.name.startswith("linux-headers-")), None)
    if head:
        headers.complete(head, out, toolchain.kernel_tools()[0], a.arch == HOST_ARCH.get(os.uname().machine, os.uname().machine))
    for f in newest:
        print(os.path.relpath(f))
    image = next((f for f in reversed(newest) if f.name.startswith("linux-image-") and "-dbg_" not in f.name), None)
    if image:
        say(f"on the machine: sudo apt-get install ./{image.name}\n"
            f"  take it off: sudo apt-get remove {image.name.split('_')[0]}" +
            (f"\n  to build modules on it: sudo apt-get install ./{head.name}" if head else ""))
    return 0


def need_patched(a):
    name, base, ident = base_tree(a.kver, a.kdir)
    path = BUILD / name / "linux"
    if not (BUILD / name / "linux.base").exists():
        return patched_tree(name, base, ident), base
    return overlay.Tree(path), base


def need_kdir(a):
    if not a.kdir:
        raise Fail(f"name your kernel tree: make {a.command} KDIR=/path/to/linux")
    return a.kdir


def cli():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("command", choices=("build", "deb", "source", "tree", "edit", "refresh", "apply", "unapply",
                                       "series"))
    p.add_argument("--arch", default="arm64")
    p.add_argument("--variant", default="release")
    p.add_argument("--kver", default=source.KVERS[0])
    # dash does not expand the ~ of make OUT=~/out.
    p.add_argument("--kdir", type=os.path.expanduser)
    p.add_argument("--patch")
    p.add_argument("--out", type=os.path.expanduser)
    p.add_argument("--config", nargs="+", type=os.path.expanduser)
    p.add_argument("--only-configure", action="store_true")
    p.add_argument("--objects", nargs="+")
    a = p.parse_args()
    source.check(a.kver)
    if a.command == "edit" and not a.patch:
        raise Fail("name the patch: make edit PATCH=FOLDER/NAME")
    if a.command in ("apply", "unapply", "edit", "refresh", "tree") and not shutil.which("quilt"):
        raise Fail("quilt not found\n  sudo apt-get install -y quilt")
    if a.command in ("apply", "unapply"):
        return getattr(overlay, a.command)(need_kdir(a))
    if a.command == "series":
        if not a.out:
            raise Fail("name a directory for the patches: make series OUT=dir")
        return series.series(a.out, a.kdir or source.linux(a.kver))
    if a.kdir:
        stock_kdir(a.kdir)	# before waiting for anything
    with lock(BUILD / "lock", "kernel build"):
        if a.command in ("build", "deb"):
            return build(a) if a.command == "build" else deb(a)
        if a.command == "source":
            print(base_tree(a.kver, a.kdir)[1])
            return 0
        if a.command == "tree":
            name, base, ident = base_tree(a.kver, a.kdir)
            print(patched_tree(name, base, ident).path)
            return 0
        tree, base = need_patched(a)
        if a.command == "refresh":
            return overlay.refresh(tree, base, a.patch)
        return overlay.edit(tree, a.patch)
