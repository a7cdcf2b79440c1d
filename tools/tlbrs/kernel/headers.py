# SPDX-License-Identifier: GPL-2.0
"""The linux-headers package of make deb, completed: modules of others, in C and in Rust, build on it by DKMS.

bindeb-pkg leaves out the configuration, in which dkms 3.0 looks for the compiler, and all that rustc has made. It names no
compiler, and dkms asks for "clang", which is another one on Debian 12. So the package is opened once more: the kernel tree
needs no patch for it.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from tlbrs.kernel import toolchain
from tlbrs.kernel.common import Fail, dotted, output, version

# What a Rust module is compiled with; some of it is included by macros of the kernel crate.
RUST_FILES = ("rust/*.rmeta", "rust/*.so", "rust/helpers/*.bc", "rust/kernel/generated_*.rs")
# dkms 3.0 says CC=clang LD=ld.lld, later ones LLVM=1, a module's own make nothing. All of them mean the kernel's compiler;
# what else somebody names is meant so. Variables of make's command line reach the makes below it, unless taken out.
PREAMBLE = """
# Added by make deb of tlb-rs: the compiler of this kernel, whatever "clang" is here.
ifeq ($(filter-out 1,$(LLVM))$(if $(filter command,$(origin CC)),$(filter-out clang,$(CC))),)
override LLVM := {llvm}
override CC := clang{suffix}
override LD := ld.lld{suffix}
MAKEOVERRIDES := $(filter-out LLVM=% CC=clang LD=ld.lld,$(MAKEOVERRIDES))
ifeq ($(filter %clean,$(MAKECMDGOALS))$(shell command -v $(CC) 2>/dev/null),)
$(error This kernel was built with $(CC), which is not here: {install})
endif
endif
"""
RUST_PREAMBLE = """ifneq ($(wildcard $(M)/*.rs $(KBUILD_EXTMOD)/*.rs),)
ifneq "$(shell $(or $(RUSTC),rustc) --version 2>/dev/null)" "{text}"
$(if $(filter %clean,$(MAKECMDGOALS)),,$(error {needs}))
endif
endif
"""
NO_RUST_PREAMBLE = """ifneq ($(wildcard $(M)/*.rs $(KBUILD_EXTMOD)/*.rs),)
$(if $(filter %clean,$(MAKECMDGOALS)),,$(error {needs}))
endif
"""
POSTINST = """#!/bin/sh
set -e
if [ "$1" = configure ] && [ "$(rustc --version 2>/dev/null)" != {text} ]; then
	echo {needs}
fi
exit 0
"""


def owner(program):
    """(package, version) that a program belongs to, or None."""
    real = os.path.realpath(program)
    # Merged directories: the package may know it by its older name.
    for path in (real, real.removeprefix("/usr")):
        if package := output(["dpkg-query", "-S", path]).partition(":")[0]:
            return package, output(["dpkg-query", "-W", "-f", "${Version}", package])
    return None


def compilers(llvm):
    """Packages of the LLVM tools, as far as they are packaged."""
    found = (owner(toolchain.absolute(name)) for name in toolchain.llvm_names(llvm))
    return list(dict.fromkeys(f[0] for f in found if f))


def same_rustc(package, full):
    """Dependencies on one release of rustc: .rmeta files can be read by no other."""
    release = version(full.rpartition(":")[2])
    after = dotted((*release[:-1], release[-1] + 1))
    return [f"{package} (>= {dotted(release)})", f"{package} (<< {after}~)"]


def rust_needs(text, package):
    """What to do about another rustc, in one line."""
    release = dotted(version(text))
    if package:
        return f"Rust modules need {text} of this kernel: sudo apt-get install {package}"
    return (f"Rust modules need {text} as root's rustc: rustup toolchain install {release} && "
            f'sudo ln -sf "$(rustup which --toolchain {release} rustc)" /usr/local/bin/rustc')


def libraries(files, out):
    """Packages of the shared libraries that these programs are linked with."""
    if not files:
        return []
    p = subprocess.run(["dpkg-shlibdeps", "-O", "--ignore-missing-info", *files], cwd=out, capture_output=True, text=True,
                       check=False)
    if p.returncode:
        raise Fail(f"dpkg-shlibdeps: {p.stderr.strip()}")
    return [d.strip() for d in p.stdout.partition("shlibs:Depends=")[2].split(",") if d.strip()]


def programs(top):
    """What is executed on the machine that has the package."""
    for f in sorted(top.rglob("*")):
        if f.is_file() and not f.is_symlink() and (f.suffix == ".so" or os.access(f, os.X_OK)):
            with f.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield f


def control(text, depends, says):
    """DEBIAN/control with these dependencies and this end of its description."""
    if m := re.search(r"(?m)^Depends: (.*)$", text):
        depends, text = [*m[1].split(", "), *depends], text.replace(m[0] + "\n", "")
    line = f"Depends: {', '.join(dict.fromkeys(depends))}\n" if depends else ""
    # dkms 3.2 strips modules with llvm-strip, which may be of another version.
    line += "Recommends: llvm\n" if any(d.startswith("llvm-") for d in depends) else ""
    return re.sub(r"(?m)^(?=Description:)", line, text, count=1).rstrip("\n") + f"\n .\n {says}\n"


def add_sums(root):
    """DEBIAN/md5sums of what is there now."""
    rows = [f"{hashlib.md5(f.read_bytes()).hexdigest()}  {f.relative_to(root)}\n" for f in sorted(root.rglob("*"))
            if f.is_file() and not f.is_symlink() and "DEBIAN" not in f.relative_to(root).parts]
    (root / "DEBIAN/md5sums").write_text("".join(rows), encoding="utf-8")


def recount(deb):
    """Checksums of the package in the .changes and .buildinfo beside it."""
    for name, files in ((deb, "*.buildinfo"), (deb, "*.changes"), (None, "*.changes")):
        for listed in deb.parent.glob(files):
            file = name or listed.with_suffix(".buildinfo")
            if not file.exists():
                continue
            data, text = file.read_bytes(), listed.read_text(encoding="utf-8")
            sums = {len(h): h for h in (hashlib.new(kind, data).hexdigest() for kind in ("md5", "sha1", "sha256"))}
            listed.write_text(re.sub(rf"(?m)^ ([0-9a-f]+) \d+((?: \S+)* {re.escape(file.name)})$",
                                     lambda m, s=sums, n=len(data): f" {s[len(m[1])]} {n}{m[2]}", text), encoding="utf-8")


def edit(root, out, llvm, rustc, native):
    """The tree of a package, completed in place."""
    top = next((root / "usr/src").glob("linux-headers-*"), None)
    if not top:
        raise Fail(f"no headers in {root}/usr/src")
    text = (out / ".config").read_text(encoding="utf-8")
    shutil.copy(out / ".config", top / ".config")
    made_by = re.search(r'(?m)^CONFIG_RUSTC_VERSION_TEXT="(.*)"', text)
    rust = made_by and native
    suffix = llvm if llvm.startswith("-") else ""
    depends = compilers(llvm)
    major = re.search(r"(?m)^CONFIG_CLANG_VERSION=(\d+)\d{4}$", text)
    install = f"sudo apt-get install {' '.join(depends)}" if depends else f"LLVM {major[1] if major else ''} in PATH, please"
    preamble = PREAMBLE.format(llvm=suffix or 1, suffix=suffix, install=install)
    if rust:
        package = owner(rustc)
        says = rust_needs(made_by[1], package and package[0])
        depends += same_rustc(*package) if package else []
        preamble += RUST_PREAMBLE.format(text=made_by[1], needs=says.replace("$", "$$"))
        (root / "DEBIAN/postinst").write_text(POSTINST.format(
            text=shlex.quote(made_by[1]), needs=shlex.quote(f"{top.name}: {says}")), encoding="utf-8")
        (root / "DEBIAN/postinst").chmod(0o755)
        for pattern in RUST_FILES:
            for f in out.glob(pattern):
                to = top / f.relative_to(out)
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(f, to)
    else:
        says = "No Rust modules can be built with it: it was made on another architecture." if made_by else \
            "No Rust modules can be built with it: the kernel has no Rust."
        preamble += NO_RUST_PREAMBLE.format(needs=says)
    makefile = (top / "Makefile").read_text(encoding="utf-8")
    # Scripts look for the version in the first lines.
    edited = re.sub(r"(?m)^NAME = .*\n", lambda m: m[0] + preamble, makefile, count=1)
    if edited == makefile:
        raise Fail(f"no line NAME = in the Makefile of {top.name}")
    (top / "Makefile").write_text(edited, encoding="utf-8")
    if native:
        depends += libraries(list(programs(top)), out)
    place = root / "DEBIAN/control"
    place.write_text(control(place.read_text(encoding="utf-8"), depends, says), encoding="utf-8")
    add_sums(root)


def complete(deb, out, variables, native):
    """A linux-headers package of bindeb-pkg, of the build directory out, replaced by one on which modules build."""
    given = dict(v.split("=", 1) for v in variables)
    with tempfile.TemporaryDirectory(dir=deb.parent) as tmp:
        root, new = Path(tmp, "root"), Path(tmp, deb.name)
        subprocess.run(["dpkg-deb", "-R", deb, root], check=True)
        edit(root, out, given["LLVM"], given["RUSTC"], native)
        # Rust's metadata is 150 MB: the default level takes four times as long.
        subprocess.run(["dpkg-deb", "--root-owner-group", "-Zxz", "-z1", "--build", root, new], check=True,
                       stdout=subprocess.DEVNULL)
        new.replace(deb)
    recount(deb)
