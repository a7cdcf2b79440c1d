#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Find the tools that a kernel build (or a guest) needs; say how to get what is missing.

usage: toolchain.py check             print what was found
       toolchain.py need GROUP...     groups: kernel, guest; install (root or INSTALL=1) or explain
"""

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import source
from common import CACHE, Fail, dotted, lock, logged, main, output, say, version

MIN_LLVM, MIN_RUSTC, MIN_BINDGEN = (19,), (1, 85, 0), (0, 71, 1)
TESTED_LLVM = 19
LLVM_TOOLS = ("clang", "ld.lld", "llvm-ar", "llvm-nm", "llvm-objcopy", "llvm-strip", "llvm-readelf")
LLVM_PACKAGES = [f"{p}-{TESTED_LLVM}" for p in ("clang", "lld", "llvm")]

# tool -> package
TOOLS = {"make": "make", "gcc": "gcc", "flex": "flex", "bison": "bison", "bc": "bc", "perl": "perl",
         "xz": "xz-utils", "quilt": "quilt", "rsync": "rsync", "git": "git"}
HEADERS = {"stdio.h": "libc6-dev", "libelf.h": "libelf-dev", "openssl/opensslv.h": "libssl-dev"}
GUEST_TOOLS = {"qemu-system-aarch64": "qemu-system-arm", "qemu-system-x86_64": "qemu-system-x86",
               "busybox": "busybox-static", "mkfs.ext4": "e2fsprogs", "cpio": "cpio"}
# A static C library for the architecture that this machine is not.
CROSS = {"x86_64": ("aarch64-linux-gnu", "gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"),
         "aarch64": ("x86_64-linux-gnu", "gcc-x86-64-linux-gnu", "libc6-dev-amd64-cross")}


def which(name):
    # mkfs.ext4 is in sbin, which a user's PATH often lacks.
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def find_llvm():
    """(value for LLVM=, version, directory of libclang or None), or None."""
    given = os.environ.get("LLVM")
    # A bare LLVM=1 means the unsuffixed tools, LLVM=dir/ and LLVM=-NN as in the kernel's own make.
    if given:
        names = [given]
    else:
        suffixes = {m.group(1) for d in os.get_exec_path() if os.path.isdir(d)
                    for f in os.listdir(d) if (m := re.fullmatch(r"clang-(\d+)", f))}
        newer = sorted((int(s) for s in suffixes if int(s) >= MIN_LLVM[0]),
                       key=lambda n: (n != TESTED_LLVM, n))
        names = [f"-{n}" for n in newer] + ["1"]
    for name in names:
        pre = name if name.endswith("/") else ""
        post = name if name.startswith("-") else ""
        if not all(which(f"{pre}{t}{post}") for t in LLVM_TOOLS):
            continue
        clang = which(f"{pre}clang{post}")
        v = version(output([clang, "--version"]))
        if v >= MIN_LLVM:
            return name, v, find_libclang(clang, v[0])
    return None


def find_libclang(clang, major):
    bindir = Path(os.path.realpath(clang)).parent
    for d in (os.environ.get("LIBCLANG_PATH"), bindir.parent / "lib", f"/usr/lib/llvm-{major}/lib", bindir.parent / "lib64"):
        if d and (any(Path(d).glob("libclang.so*")) or any(Path(d).glob("libclang-[0-9]*.so*"))):
            return str(d)
    return None


def find_bindgen():
    for b in (os.environ.get("BINDGEN"), which("bindgen"), CACHE / "tools/bin/bindgen"):
        if b and (v := version(output([b, "--version"]))) >= MIN_BINDGEN:
            return str(b), v
    return None


def has_header(name):
    p = subprocess.run(["gcc", "-E", "-x", "c", "-"], input=f"#include <{name}>\n", text=True,
                       capture_output=True, check=False)
    return p.returncode == 0


def is_static(path):
    with open(path, "rb") as f:
        return b"/ld-" not in f.read(4096)


def missing(groups):
    """Packages that would supply what is missing."""
    need = []
    if "kernel" in groups:
        need += [p for t, p in TOOLS.items() if not which(t)]
        need += [p for h, p in HEADERS.items() if not which("gcc") or not has_header(h)]
        llvm = find_llvm()
        if not llvm:
            need += LLVM_PACKAGES
        if not llvm or not llvm[2]:
            need.append(f"libclang-{llvm[1][0] if llvm else TESTED_LLVM}-dev")
        if not which(os.environ.get("RUSTC", "rustc")):
            need += rust_packages()
    if "guest" in groups:
        need += [p for t, p in GUEST_TOOLS.items() if not which(t)]
        if which("busybox") and not is_static(which("busybox")):
            need.append("busybox-static")
        triple, gcc, libc = CROSS.get(platform.machine(), ("", "", ""))
        if triple and not which(f"{triple}-gcc"):
            need.append(gcc)
        if triple and not any(Path(d, triple, "lib/libc.a").exists() for d in ("/usr", "/usr/lib")):
            need.append(libc)
        need += [p for t, p in {"gcc": "gcc", "make": "make"}.items() if not which(t)]
    return list(dict.fromkeys(need))


def candidate(package):
    m = re.search(r"Candidate: (\S+)", output(["apt-cache", "policy", package]))
    return version(m.group(1)) if m else ()


def rust_packages():
    """A rustc that is new enough, with its library source, as this machine's suites have it."""
    for rustc, src in (("rustc", "rust-src"), ("rustc-web", "rust-web-src")):
        if candidate(rustc) >= MIN_RUSTC:
            return [rustc, src]
    return []


def may_install():
    return os.environ.get("INSTALL", "1" if os.geteuid() == 0 else "0") not in ("", "0")


def need(groups):
    packages = missing(groups)
    if packages and not which("apt-get"):
        raise Fail("missing tools, and this is not a Debian or Ubuntu machine. Install what these "
                   f"Debian packages hold: {' '.join(packages)}")
    if packages and may_install():
        sudo = [] if os.geteuid() == 0 else ["sudo"]
        env = ["env", "DEBIAN_FRONTEND=noninteractive"]
        say(f"installing: {' '.join(packages)}")
        apt = [*sudo, *env, "apt-get", "-q", "-o", "Dpkg::Use-Pty=0"]
        logged([*apt, "update"], CACHE / "apt-update.log", "apt-get update")
        packages = missing(groups)	# rustc's package is known only now
        logged([*apt, "install", "-y", "--no-install-recommends", *packages],
               CACHE / "apt-install.log", "apt-get install")
        packages = missing(groups)
    if packages:
        raise Fail(f"missing: {' '.join(packages)}\n  sudo apt-get install -y --no-install-recommends "
                   f"{' '.join(packages)}\n  or let make do it: make setup INSTALL=1")
    if "kernel" in groups:
        need_rust()


def need_rust():
    rustc = which(os.environ.get("RUSTC", "rustc"))
    advice = (f"  install {dotted(MIN_RUSTC)} or newer: rustup toolchain install stable && rustup default "
              "stable\n  or name one that is not in PATH: RUSTC=/path/to/rustc make kernel")
    if pk := rust_packages():
        advice = f"  sudo apt-get install -y {' '.join(pk)}\n  or " + advice.strip()
    if not rustc:
        raise Fail("rustc not found\n" + advice)
    v = version(output([rustc, "--version"]))
    if v < MIN_RUSTC:
        raise Fail(f"{rustc} is too old: {dotted(v) or 'unknown version'}, but {dotted(MIN_RUSTC)} is the "
                   "oldest that the kernel accepts\n" + advice)
    if not find_bindgen():
        install_bindgen()
    return rustc, v


def install_bindgen():
    """bindgen into the cache, from Debian where recent enough is left to the user, else by cargo."""
    old = which("bindgen")
    what = (f"{old} is too old ({dotted(version(output([old, '--version'])))})" if old
            else "bindgen not found")
    from_apt = candidate("bindgen") >= MIN_BINDGEN
    cargo = which("cargo")
    if not cargo:
        raise Fail(f"{what}: {dotted(MIN_BINDGEN)} or newer is needed, and cargo is not here to build it\n"
                   "  sudo apt-get install -y " + ("bindgen" if from_apt else "cargo") +
                   "\n  or: cargo install --locked bindgen-cli; or name one: BINDGEN=/path/to/bindgen")
    say(f"{what}: building it with cargo, once (about 90 s)")
    with lock(CACHE / "lock", "download"):
        logged([cargo, "install", "--locked", "--root", CACHE / "tools", "bindgen-cli"],
               CACHE / "bindgen.log", "cargo install bindgen-cli", re.compile(r"\s+(Compiling \S+)"))
    if not find_bindgen():
        raise Fail(f"the bindgen that cargo built is older than {dotted(MIN_BINDGEN)}: update cargo")


def kernel_tools():
    """Everything that a kernel's make has to be told: (make variables, environment)."""
    need(["kernel"])
    rustc, v = need_rust()
    llvm, _, libclang = find_llvm()
    variables = [f"LLVM={llvm}", f"RUSTC={rustc}", f"BINDGEN={find_bindgen()[0]}"]
    # rustdoc and rustfmt must be those of the same toolchain; rustc may be a proxy of rustup.
    return variables, {"RUST_LIB_SRC": str(source.rust_lib(rustc, v)), "LIBCLANG_PATH": libclang}


def check():
    def line(name, text):
        print(f"{name:12}{text}")
    llvm = find_llvm()
    line("llvm", f"{dotted(llvm[1])}, LLVM={llvm[0]}" if llvm else f"MISSING (>= {MIN_LLVM[0]})")
    line("libclang", llvm[2] if llvm and llvm[2] else "MISSING")
    rustc = which(os.environ.get("RUSTC", "rustc"))
    v = version(output([rustc, "--version"])) if rustc else ()
    line("rustc", f"{dotted(v)}, {rustc}" if v >= MIN_RUSTC else
         f"{'TOO OLD: ' + dotted(v) if v else 'MISSING'} (>= {dotted(MIN_RUSTC)})")
    lib = source.have_rust_lib(rustc, v) if v else None
    line("rust-src", lib or "not here yet; the first build fetches it")
    b = find_bindgen()
    line("bindgen", f"{dotted(b[1])}, {b[0]}" if b else f"MISSING (>= {dotted(MIN_BINDGEN)}); cargo builds it")
    for kver in source.KVERS:
        line(f"linux-{kver}", source.cached(kver) or "not here yet; the first build fetches it")
    for group in ("kernel", "guest"):
        m = missing([group])
        line(group, "packages complete" if not m else "missing packages: " + " ".join(m))
    return 1 if missing(["kernel", "guest"]) or not b or v < MIN_RUSTC else 0


def cli():
    args = sys.argv[1:]
    if args == ["check"]:
        return check()
    if len(args) > 1 and args[0] == "need" and set(args[1:]) <= {"kernel", "guest"}:
        return need(args[1:])
    print(__doc__.strip(), file=sys.stderr)
    return 2


if __name__ == "__main__":
    main(cli)
