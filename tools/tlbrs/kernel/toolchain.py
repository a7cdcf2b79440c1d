# SPDX-License-Identifier: GPL-2.0
"""Find the tools that a kernel build (or a guest) needs; say how to get what is missing.

usage: tlb-rs toolchain doctor            print what is here, what is missing, and the command that installs it
       tlb-rs toolchain need GROUP...     groups: kernel, guest, test, deb, chroot,
                                          fastpath, mmci; install (root or INSTALL=1) or explain
"""

import functools
import importlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tlbrs.kernel import source
from tlbrs.kernel.common import (BUILD, CACHE, GIB, Fail, dotted, given, lock, logged, output, say,
                                 version)

MIN_LLVM, MIN_RUSTC, MIN_BINDGEN = (19,), (1, 85, 0), (0, 71, 1)
# With this libclang an older bindgen loses the members of types that are declared before they are defined.
NEW_LIBCLANG, BINDGEN_FOR_IT = (22,), (0, 72, 1)
DECLARED_FIRST = "struct declared;\nstruct declared {\n\tint member;\n};\n"
TESTED_LLVM = 19
LLVM_TOOLS = ("clang", "ld.lld", "llvm-ar", "llvm-nm", "llvm-objcopy", "llvm-strip", "llvm-readelf")
LLVM_PACKAGES = [f"{p}-{TESTED_LLVM}" for p in ("clang", "lld", "llvm")]

# tool -> package
TOOLS = {"make": "make", "gcc": "gcc", "flex": "flex", "bison": "bison", "bc": "bc", "perl": "perl",
         "xz": "xz-utils", "quilt": "quilt", "rsync": "rsync", "git": "git"}
HEADERS = {"stdio.h": "libc6-dev", "libelf.h": "libelf-dev", "openssl/opensslv.h": "libssl-dev"}
GUEST_TOOLS = {"qemu-system-aarch64": "qemu-system-arm", "qemu-system-x86_64": "qemu-system-x86",
               "busybox": "busybox-static", "mkfs.ext4": "e2fsprogs"}
DEB_TOOLS = {"dpkg-deb": "dpkg", "dpkg-buildpackage": "dpkg-dev", "dh_prep": "debhelper", "depmod": "kmod",
             "python3": "python3"}
TEST_TOOLS = {"cpio": "cpio", "c++": "g++", "mkfs.xfs": "xfsprogs"}
CHROOT_TOOLS = {"debootstrap": "debootstrap", "git": "git"}
FASTPATH_TOOLS = {"depmod": "kmod", "tar": "tar"}
# What Python has to find: package. Of this Python, which need not be the distribution's.
FASTPATH_MODULES = {"yaml": "python3-yaml", "jsonschema": "python3-jsonschema"}
MMCI_TOOLS = {f"qemu-system-{platform.machine()}": "qemu-system-arm" if platform.machine() == "aarch64" else "qemu-system-x86",
              "mkfs.ext4": "e2fsprogs", "mkswap": "util-linux", "depmod": "kmod"}
GROUPS = ("kernel", "guest", "test", "deb", "chroot", "fastpath", "mmci")
SUDO = "" if os.geteuid() == 0 else "sudo "
# rustc, its library source, and what the tests want of the same rustc (rustup has its own). Some distributions do not call
# the newest one that they have rustc: Debian 12 has one for browsers, without clippy, Ubuntu has them by version.
RUST_PACKAGES = (
    ("rustc", "rust-src", {"cargo": "cargo", "rustfmt": "rustfmt", "clippy-driver": "rust-clippy"}),
    ("rustc-web", "rust-web-src", {"cargo": "cargo-web", "rustfmt": "rustfmt-web"}),
    *((f"rustc-1.{n}", f"rust-1.{n}-src", {}) for n in range(99, 84, -1)))
# Without it cargo cannot fetch anything.
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# Debian's names in other distributions, where they differ; None: not there. Fedora has no C library for other
# architectures: no guest programs of these.
ELSEWHERE = {
    "dnf install": {
        "xz-utils": "xz", "libc6-dev": "glibc-devel glibc-static", "libelf-dev": "elfutils-libelf-devel",
        "libssl-dev": "openssl-devel", "libclang-dev": "clang-devel", "rustc": "rust", "bindgen": "bindgen-cli",
        "qemu-system-arm": "qemu-system-aarch64", "busybox-static": "busybox", "libc6-dev-arm64-cross": None,
        "gcc-x86-64-linux-gnu": "gcc-x86_64-linux-gnu", "libc6-dev-amd64-cross": None, "g++": "gcc-c++",
        "rust-clippy": "clippy"},
    "pacman -S --needed": {
        "xz-utils": "xz", "libc6-dev": "glibc", "libelf-dev": "libelf", "libssl-dev": "openssl",
        "libclang-dev": "clang", "rustc": "rust", "bindgen": "rust-bindgen", "qemu-system-arm": "qemu-system-aarch64",
        "busybox-static": "busybox", "gcc-aarch64-linux-gnu": "aarch64-linux-gnu-gcc",
        "libc6-dev-arm64-cross": "aarch64-linux-gnu-glibc", "gcc-x86-64-linux-gnu": None,
        "libc6-dev-amd64-cross": None, "g++": "gcc",
        "cargo": "rust", "rustfmt": "rust", "rust-clippy": "rust"}}
# A static C library for the architecture that this machine is not.
CROSS = {"x86_64": ("aarch64-linux-gnu", "gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"),
         "aarch64": ("x86_64-linux-gnu", "gcc-x86-64-linux-gnu", "libc6-dev-amd64-cross")}


def which(name):
    # mkfs.ext4 is in sbin, which a user's PATH often lacks.
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def absolute(name):
    """The program, from wherever make runs it."""
    return os.path.abspath(found) if (found := which(name)) else None


def llvm_names(llvm, tools=LLVM_TOOLS):
    """What they are called, as in the kernel's own make: LLVM=dir/, LLVM=-NN; LLVM=1 means the unsuffixed ones."""
    return [f"{llvm if llvm.endswith('/') else ''}{t}{llvm if llvm.startswith('-') else ''}" for t in tools]


def in_path(pattern):
    """Files of such a name in the directories of PATH; not all of them have to be there, or ours to read."""
    found = set()
    for d in os.get_exec_path():
        try:
            found |= {Path(d, f) for f in os.listdir(d) if re.fullmatch(pattern, f)}
        except OSError:
            pass
    return found


def find_llvm():
    """(value for LLVM=, version, directory of libclang or None), or None."""
    if llvm := given("LLVM"):
        names = [llvm]
    else:
        suffixes = {f.name.removeprefix("clang-") for f in in_path(r"clang-\d+")}
        newer = sorted((int(s) for s in suffixes if int(s) >= MIN_LLVM[0]),
                       key=lambda n: (n != TESTED_LLVM, n))
        names = [f"-{n}" for n in newer] + ["1"]
    for name in names:
        if not all(which(t) for t in llvm_names(name)):
            continue
        clang = which(llvm_names(name)[0])
        v = version(output([clang, "--version"]))
        if v >= MIN_LLVM:
            return name, v, find_libclang(clang, v[0])
    return None


def llvm_tool(name):
    """What a tool of that LLVM is called."""
    if not (llvm := find_llvm()):
        raise Fail(f"no LLVM {dotted(MIN_LLVM)} or newer: make doctor")
    return llvm_names(llvm[0], [name])[0]


def find_libclang(clang, major):
    bindir = Path(os.path.realpath(clang)).parent
    for d in (os.environ.get("LIBCLANG_PATH"), bindir.parent / "lib", f"/usr/lib/llvm-{major}/lib", bindir.parent / "lib64"):
        if d and (any(Path(d).glob("libclang.so*")) or any(Path(d).glob("libclang-[0-9]*.so*"))):
            return str(d)
    return None


def find_rustc():
    """The rustc to use: RUSTC=, that of PATH, or if that is too old, one that Ubuntu has beside it."""
    if rustc := given("RUSTC"):
        return absolute(rustc)
    found = which("rustc")
    if not found or version(output([found, "--version"])) < MIN_RUSTC:
        beside = sorted(Path("/usr/lib").glob("rust-1.*/bin/rustc"), key=lambda f: version(str(f)))
        found = next((str(f) for f in reversed(beside) if version(output([f, "--version"])) >= MIN_RUSTC), found)
    return found


def find_bindgen():
    if bindgen := given("BINDGEN"):
        places = [absolute(bindgen)]
    else:
        versioned = sorted(in_path(r"bindgen-\d.*"), key=lambda f: version(f.name))
        places = [which("bindgen"), CACHE / "tools/bin/bindgen", *versioned]
    for b in places:
        if b and not unfit_bindgen(b):
            return str(b), version(output([b, "--version"]))
    return None


def unfit_bindgen(bindgen):
    """Why this one will not do, or ""."""
    v = version(output([bindgen, "--version"]))
    if v < MIN_BINDGEN:
        return f"{dotted(v) or 'unknown version'}, but {dotted(MIN_BINDGEN)} or newer is needed"
    if v < BINDGEN_FOR_IT and (libclang := lost_types(bindgen)):
        return (f"{dotted(v)}, but {dotted(BINDGEN_FOR_IT)} or newer is needed with libclang {dotted(libclang)}, of which an "
                "older one makes types of a wrong size")
    return ""


def least_bindgen():
    """What to look for where there is none to be asked."""
    llvm = find_llvm()
    return BINDGEN_FOR_IT if llvm and llvm[1] >= NEW_LIBCLANG else MIN_BINDGEN


@functools.cache
def lost_types(bindgen):
    """The version of libclang, if this bindgen loses members of types with it; a distribution may have mended its own."""
    llvm = find_llvm()
    env = os.environ | ({"LIBCLANG_PATH": llvm[2]} if llvm and llvm[2] else {}) | {"LC_ALL": "C"}
    with tempfile.TemporaryDirectory() as name:
        header = Path(name, "probe.h")

        def said(text):
            header.write_text(text, encoding="ascii")
            p = subprocess.run([bindgen, header], env=env, capture_output=True, text=True, check=False)
            return p.stdout + p.stderr
        # Which library it has loaded is known to nobody else.
        m = re.search(r"clang version (\d[\d.]*)", said('#pragma message("clang version " __clang_version__)\n'))
        v = version(m.group(1)) if m else llvm[1] if llvm else ()
        return v if v >= NEW_LIBCLANG and "pub member" not in said(DECLARED_FIRST) else ()


def wrong():
    """{variable: what is wrong with the tools that it names}: who names them wants no others, and no packages."""
    def look(variable, programs, least):
        absent = [p for p in programs if not which(p)]
        v = () if absent else version(output([which(programs[0]), "--version"]))
        if absent:
            found[variable] = "no such program" + (f": {', '.join(absent)}" if len(programs) > 1 else "")
        elif v < least:
            found[variable] = f"{dotted(v) or 'unknown version'}, but {dotted(least)} or newer is needed"
    found = {}
    if llvm := given("LLVM"):
        look("LLVM", llvm_names(llvm), MIN_LLVM)
    for variable, least in (("RUSTC", MIN_RUSTC), ("BINDGEN", MIN_BINDGEN)):
        if tool := given(variable):
            look(variable, [tool], least)
    if (tool := given("BINDGEN")) and "BINDGEN" not in found and (why := unfit_bindgen(absolute(tool))):
        found["BINDGEN"] = why
    if (lib := given("RUST_LIB_SRC")) and not Path(lib, "core/src/lib.rs").exists():
        found["RUST_LIB_SRC"] = "no core/src/lib.rs there"
    return {variable: f"{variable}={given(variable)}: {what}" for variable, what in found.items()}


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
        # What LLVM= or RUSTC= name is in no package: see wrong().
        if not llvm and not given("LLVM"):
            need += LLVM_PACKAGES
        if llvm and not llvm[2] or not llvm and not given("LLVM"):
            need.append(f"libclang-{llvm[1][0] if llvm else TESTED_LLVM}-dev")
        if not find_rustc() and not given("RUSTC"):
            need += rust_packages()
            if not find_bindgen() and not given("BINDGEN"):
                need += bindgen_packages()
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
    for group, tools in (("test", TEST_TOOLS), ("deb", DEB_TOOLS), ("chroot", CHROOT_TOOLS),
                         ("fastpath", FASTPATH_TOOLS), ("mmci", MMCI_TOOLS)):
        need += [p for t, p in tools.items() if group in groups and not which(t)]
    if "fastpath" in groups and sys.prefix == "/usr":
        importlib.invalidate_caches()   # what apt has just installed
        need += [p for m, p in FASTPATH_MODULES.items() if not importlib.util.find_spec(m)]
    if "test" in groups:
        need += [p for t, p in rust_tools().items() if not (find_cargo() if t == "cargo" else which(t)) and
                 candidate(p) >= MIN_RUSTC]
        need += certificates()
    return list(dict.fromkeys(need))


def certificates():
    """The package with which cargo trusts a registry, where there are none yet."""
    places = (os.environ.get("CARGO_HTTP_CAINFO"), os.environ.get("SSL_CERT_FILE"), CERTIFICATES)
    return ["ca-certificates"] if which("apt-get") and not any(p and Path(p).exists() for p in places) else []


def new_rust():
    """The row of RUST_PACKAGES that is new enough, as this machine's suites have it, or None."""
    return next((row for row in RUST_PACKAGES if candidate(row[0]) >= MIN_RUSTC), None)


def rust_tools():
    """{tool: package} of what the tests want of a rustc that is the distribution's, or will be; else empty."""
    rustc = find_rustc()
    if not rustc or version(output([rustc, "--version"])) < MIN_RUSTC:
        row = None if given("RUSTC") else new_rust()
    elif Path(rustc).is_relative_to("/usr/bin"):
        owner = output(["dpkg-query", "-S", rustc]).split(":")[0]
        row = next((r for r in RUST_PACKAGES if r[0] == owner), RUST_PACKAGES[0])
    else:
        row = None
    return row[2] if row else {}


def find_cargo():
    """One that is not as old as what Debian 12 has beside the rustc for browsers."""
    found = which("cargo")
    return found if found and not () < version(output([found, "--version"])) < MIN_RUSTC else None


@functools.cache    # apt-cache takes up to a second, and is asked for twenty packages
def candidate(package):
    m = re.search(r"Candidate: (\S+)", output(["apt-cache", "policy", package]))
    return version(m.group(1)) if m else ()


def rust_packages():
    """A rustc that is new enough, with its library source, as this machine's suites have it."""
    return list(row[:2]) if (row := new_rust()) else []


def bindgen_packages():
    """bindgen in a package, or cargo to build it."""
    return next(([b] for b in ("bindgen", "bindgen-0.71", "bindgen-0.72") if candidate(b) >= least_bindgen()),
                certificates() + ([] if find_cargo() else [rust_tools().get("cargo", "cargo")]))


def may_install():
    return os.environ.get("INSTALL", "1" if os.geteuid() == 0 else "0") not in ("", "0")


def need(groups):
    if "kernel" in groups and (bad := wrong()):
        raise Fail("\n".join(bad.values()) + f"\n  name what is there, or leave out {', '.join(bad)}")
    packages = missing(groups)
    if packages and not which("apt-get"):
        raise Fail("missing tools, and this is not a Debian or Ubuntu machine\n" + "\n".join(elsewhere(packages)))
    if packages and may_install():
        sudo = [] if os.geteuid() == 0 else ["sudo"]
        env = ["env", "DEBIAN_FRONTEND=noninteractive"]
        say(f"installing: {' '.join(packages)}")
        apt = [*sudo, *env, "apt-get", "-q", "-o", "Dpkg::Use-Pty=0", "-o", "DPkg::Lock::Timeout=300"]
        logged([*apt, "update"], CACHE / "apt-update.log", "apt-get update")
        candidate.cache_clear()	# rustc's package is known only now
        packages = missing(groups)
        logged([*apt, "install", "-y", "--no-install-recommends", *packages],
               CACHE / "apt-install.log", "apt-get install")
        packages = missing(groups)
    if packages:
        # Else whoever installs these is told of rustc only then.
        no_rust = "kernel" in groups and not find_rustc() and not rust_packages()
        raise Fail(f"missing: {' '.join(packages)}\n  sudo apt-get install -y --no-install-recommends "
                   f"{' '.join(packages)}\n  or let make do it: the same with INSTALL=1 (make doctor has more)" +
                   ("\nrustc not found, nor in a package\n" + rust_advice() if no_rust else ""))
    if "kernel" in groups:
        need_rust()


def rust_advice():
    advice = (f"  install {dotted(MIN_RUSTC)} or newer: rustup toolchain install stable && rustup default "
              "stable\n  or name one that is not in PATH: RUSTC=/path/to/rustc make kernel")
    if pk := rust_packages():
        advice = f"  sudo apt-get install -y {' '.join(pk)}\n  or " + advice.strip()
    return advice


def need_rust():
    rustc = find_rustc()
    if not rustc:
        raise Fail("rustc not found\n" + rust_advice())
    v = version(output([rustc, "--version"]))
    if v < MIN_RUSTC:
        raise Fail(f"{rustc} is too old: {dotted(v) or 'unknown version'}, but {dotted(MIN_RUSTC)} is the "
                   "oldest that the kernel accepts\n" + rust_advice())
    if not find_bindgen():
        install_bindgen()
    return rustc, v


def install_bindgen():
    """bindgen into the cache, from Debian where recent enough is left to the user, else by cargo."""
    old = which("bindgen")
    what = (f"{old} is too old: {unfit_bindgen(old)}" if old else
            f"bindgen not found: {dotted(least_bindgen())} or newer is needed")
    cargo = find_cargo()
    if not cargo or certificates():
        raise Fail(f"{what}\n  sudo apt-get install -y {' '.join(bindgen_packages())}"
                   "\n  or: cargo install --locked bindgen-cli; or name one: BINDGEN=/path/to/bindgen")
    say(f"{what}: building it with cargo, once (about 90 s)")
    with lock(CACHE / "lock", "download"):
        logged([cargo, "install", "--locked", "--root", CACHE / "tools", "bindgen-cli"],
               CACHE / "bindgen.log", "cargo install bindgen-cli", re.compile(r"\s+(Compiling \S+)"))
    lost_types.cache_clear()
    if not find_bindgen():
        raise Fail(f"the bindgen that cargo built is too old: {unfit_bindgen(CACHE / 'tools/bin/bindgen')}\n  update cargo")


def kernel_tools():
    """Everything that a kernel's make has to be told: (make variables, environment)."""
    need(["kernel"])
    rustc, v = need_rust()
    return told(find_llvm(), rustc, find_bindgen(), source.rust_lib(rustc, v))


def tools_here():
    """The same if all of it is here, without installing or fetching anything; or None."""
    llvm, rustc, bindgen = find_llvm(), find_rustc(), find_bindgen()
    v = version(output([rustc, "--version"])) if rustc else ()
    if v < MIN_RUSTC or not llvm or not llvm[2] or not bindgen or not (lib := source.have_rust_lib(rustc, v)):
        return None
    return told(llvm, rustc, bindgen, lib)


def told(llvm, rustc, bindgen, lib):
    variables = [f"LLVM={llvm[0]}", f"RUSTC={rustc}", f"BINDGEN={bindgen[0]}"]
    env = {"RUST_LIB_SRC": str(lib), "LIBCLANG_PATH": llvm[2]}
    # rustdoc and rustfmt must be those of the same toolchain; rustc may be a proxy of rustup.
    beside = Path(rustc).parent
    if which("rustc") != rustc and (beside / "rustdoc").exists():
        env["PATH"] = f"{beside}:{os.environ['PATH']}"
    return variables, env


def elsewhere(packages):
    """The command for those packages where there is no apt."""
    command, names = next(((c, n) for c, n in ELSEWHERE.items() if which(c.split()[0])), (None, {}))
    if not command:
        return [f"  install what these Debian packages hold: {' '.join(packages)}"]
    plain = {p: re.sub(r"-\d+(?=-dev$|$)", "", p) for p in packages}
    found = list(dict.fromkeys(f for p in packages if (f := names.get(plain[p], plain[p]))))
    absent = [p for p in packages if names.get(plain[p], "") is None]
    return [f"  {SUDO}{command} {' '.join(found)}"] + \
        ([f"  not packaged there, what Debian has as: {' '.join(absent)}"] if absent else [])


def machine():
    """(what this machine runs, its identifier)"""
    try:
        info = platform.freedesktop_os_release()
    except OSError:
        info = {}
    return info.get("PRETTY_NAME", "unknown system"), info.get("ID", "")


def doctor():
    """What is here, what is missing, and what to do about it."""
    bad = []

    def line(name, text, ok=True):
        print(f"{'ok' if ok else 'MISSING':9}{name:13}{text}")
        if not ok:
            bad.append(name)
    place = next(d for d in (BUILD, *BUILD.parents) if d.exists())
    free = shutil.disk_usage(place).free / GIB
    print(f"{machine()[0]}, {platform.machine()}, {len(os.sched_getaffinity(0))} CPUs, {free:.0f} GiB free")
    line("disk", f"{free:.0f} GiB; make run and make test need 10", free >= 10)
    bad_names = wrong()
    llvm = find_llvm()
    line("llvm", f"{dotted(llvm[1])}, LLVM={llvm[0]}" if llvm else bad_names.get("LLVM") or
         f"{' '.join(LLVM_TOOLS)}, {MIN_LLVM[0]} or newer", llvm)
    line("libclang", llvm and llvm[2] or "its shared library, of the same LLVM, for bindgen", llvm and llvm[2])
    rustc = find_rustc()
    v = version(output([rustc, "--version"])) if rustc else ()
    line("rustc", f"{dotted(v)}, {rustc}" if v >= MIN_RUSTC else bad_names.get("RUSTC") or
         f"{f'{rustc} is {dotted(v)}, too old' if v else 'not here'}: {dotted(MIN_RUSTC)} or newer", v >= MIN_RUSTC)
    b, cargo, old = find_bindgen(), find_cargo() and "BINDGEN" not in bad_names, which("bindgen")
    line("bindgen", f"{dotted(b[1])}, {b[0]}" if b else bad_names.get("BINDGEN") or
         (f"{old} is {unfit_bindgen(old)}" if old else f"{dotted(least_bindgen())} or newer") +
         ("; the first build makes it with cargo" if cargo else ""), b or cargo)
    lib = source.have_rust_lib(rustc, v) if v else None
    line("rust-src", lib or bad_names.get("RUST_LIB_SRC") or "not here yet; the first build fetches it",
         "RUST_LIB_SRC" not in bad_names)
    for kver in source.KVERS:
        line(f"linux-{kver}", source.cached(kver) or f"not here yet: make source KVER={kver}" +
             ("" if which("apt-get") else " needs apt; name a tree: make kernel KDIR=dir"))
    found = {group: missing([group]) for group in GROUPS}
    for group, what in zip(GROUPS, ("make kernel", "make run, boot", "make test", "make deb")):
        lacks = found[group] + ([f"{v}={given(v)}" for v in bad_names] if group == "kernel" else [])
        line(group, f"{what}: " + (" ".join(lacks) or "complete"), not lacks)
    # No compiler: whoever has one of its own elsewhere needs these two.
    lacks = [p for t, p in TOOLS.items() if t in ("quilt", "git") and not which(t)]
    line("patches", "make apply, series: " + (" ".join(lacks) or "complete"), not lacks)
    advise(found, v, bad_names, "" if "disk" not in bad else
           f"free some space on the filesystem of {place}, or move build/ to another and leave a symbolic link")
    # Without the tools of packages everything else works.
    return 1 if set(bad) - {"deb"} else 0


def advise(found, rustc, bad_names, disk):
    """The commands that install what is missing, and what to do about the disk."""
    packages = list(dict.fromkeys(found["kernel"] + found["guest"] + found["test"]))
    # Rust of the caller's own choice is not for a package manager to mend.
    no_rust = rustc < MIN_RUSTC and "RUSTC" not in bad_names
    no_bindgen = not find_bindgen() and "BINDGEN" not in bad_names
    commands = [disk] * bool(disk)
    commands += [f"{text}\n  name what is there, or leave out {variable}" for variable, text in bad_names.items()]
    if which("apt-get") and not output(["apt-cache", "madison", "make"]).strip():
        # Without its lists apt knows neither names nor versions.
        commands.append(f"apt has no package lists yet; first:\n  {SUDO}apt-get update && make doctor")
    elif which("apt-get"):
        if no_rust and (rustc or not rust_packages()):
            from_apt = rust_packages()
            packages += from_apt + (bindgen_packages() if from_apt and no_bindgen else [])
            if not from_apt:
                commands.append("a newer rustc, which no suite here has:\n  rustup toolchain install stable && "
                                "rustup default stable && rustup component add rust-src rustfmt clippy\n"
                                f"  (rustup: {SUDO}apt-get install -y rustup, or https://rustup.rs)")
        elif no_bindgen and (certificates() or not find_cargo()):
            packages += bindgen_packages()
        install = f"{SUDO}apt-get install -y --no-install-recommends "
        if packages:
            commands.append(f"to build, run and test (or: make setup INSTALL=1):\n  {SUDO}apt-get update\n  "
                            f"{install}{' '.join(dict.fromkeys(packages))}")
        if found["deb"]:
            commands.append("for make deb:\n  " + install + " ".join(found["deb"]))
    else:
        if no_rust:
            packages += ["rustc", "rust-src"]
        if no_bindgen:
            packages.append("bindgen")
        if packages:
            commands.append("to build, run and test:\n" + "\n".join(elsewhere(list(dict.fromkeys(packages)))))
        if found["deb"]:
            commands.append("make deb is for Debian and Ubuntu; a package of this distribution: the tree's own make "
                            "rpm-pkg or pacman-pkg, after make apply")
    print("\n" + "\n".join(commands) if commands else "\nnothing is missing")


def cli():
    args = sys.argv[1:]
    if args == ["doctor"]:
        return doctor()
    if len(args) > 1 and args[0] == "need" and set(args[1:]) <= set(GROUPS):
        return need(args[1:])
    print(__doc__.strip(), file=sys.stderr)
    return 2
