# SPDX-License-Identifier: GPL-2.0
"""Programs of others that exercise file systems, for the guest: fio, fsx and stress-ng.

Nothing of them is in this repository. fio is built from the distribution's source package, fsx by cargo from its
registry; stress-ng is the distribution's. What cannot be had raises GuestError, which says why.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tlbrs.guest import initramfs
from tlbrs.guest.initramfs import GuestError, run
from tlbrs.kernel import toolchain
from tlbrs.kernel.common import BUILD, output
from tlbrs.kernel.kernel import PRIVATE

# The mmap engine needs none of what may happen to be on this machine.
FIO = ("--build-static", "--disable-native", "--disable-shm", *(f"--disable-{name}" for name in (
    "numa", "rdma", "rados", "rbd", "http", "gfapi", "pmem", "xnvme", "libnfs", "lex", "tcmalloc", "libzbc", "dfs")))

# A rewrite in Rust, whose license (APSL-2.0) does not allow to copy it here.
FSX = "0.3.2"
TARGETS = {"arm64": "aarch64-unknown-linux-gnu", "x86_64": "x86_64-unknown-linux-gnu"}


def place_of(arch):
    place = BUILD / "exercisers" / arch
    place.mkdir(parents=True, exist_ok=True)
    return place


def tool(command, **kwargs):
    """Runs a program of the machine; one that is missing, or never ends, is an error like one that fails."""
    try:
        return run(command, **kwargs)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GuestError(f"{' '.join(map(str, command[:2]))}: {error}") from error


def fio(arch):
    """The program fio."""
    place = place_of(arch)
    with initramfs.locked(place):
        if (place / "fio").exists():
            return place / "fio"
        archive = initramfs.upstream("fio")
        print(f"compiling fio for {arch} (once)", file=sys.stderr)
        # Variables of a make that runs this are not of that build.
        env = {name: value for name, value in os.environ.items() if name not in PRIVATE}
        with tempfile.TemporaryDirectory(dir=place) as tree:
            tool(["tar", "-xf", archive, "-C", tree, "--strip-components=1"])
            tool(["./configure", f"--cc={initramfs.compiler(arch)[0]}", *FIO], cwd=tree, env=env)
            tool(["make", f"-j{os.cpu_count()}", "OPTFLAGS=-O1", "fio"], cwd=tree, env=env)
            return (Path(tree) / "fio").rename(place / "fio")


def standard_library(arch, rustc):
    """Words with which this rustc finds its library of the architecture; Debian's is fetched, of rustup one asks for it."""
    target = TARGETS[arch]
    place, built = Path("lib/rustlib") / target / "lib", "libstd-*.rlib"
    if any(Path(output([rustc, "--print", "sysroot"]).strip(), place).glob(built)):
        return []
    package = output(["dpkg-query", "-S", rustc]).split(":")[0]
    if not package.startswith("rustc"):
        raise GuestError(f"{rustc} has no library of {target}: rustup target add {target}")
    kept = place_of(arch) / output([rustc, "--version"]).split()[1]
    if not any(kept.glob(built)):
        with initramfs.unpacked(arch, f"libstd-{package.replace('rustc', 'rust')}-dev") as root:
            shutil.copytree(root / "usr" / place, kept, dirs_exist_ok=True)
    return ["-L", kept]


def fsx(arch):
    """The program fsx."""
    place = place_of(arch)
    with initramfs.locked(place):
        if (found := place / f"fsx-{FSX}").exists():
            return found
        rustc, cargo = toolchain.find_rustc(), toolchain.find_cargo()
        if not rustc or not cargo:
            raise GuestError("no rustc and cargo that are new enough: make setup INSTALL=1")
        words = ["-C", "target-feature=+crt-static", "-C", f"linker={initramfs.compiler(arch)[0]}", "-C", "strip=symbols",
                 *standard_library(arch, rustc)]
        print(f"compiling fsx for {arch} (once)", file=sys.stderr)
        env = {name: value for name, value in os.environ.items() if name not in PRIVATE}
        with tempfile.TemporaryDirectory(dir=place) as tmp:
            tool([cargo, "install", "fsx", "--version", FSX, "--locked", "--target", TARGETS[arch], "--root", tmp,
                  "--target-dir", f"{tmp}/target"],
                 env=env | {"RUSTC": rustc, "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(map(str, words))})
            return (Path(tmp) / "bin/fsx").rename(found)


def stress_ng(arch):
    """{place in the guest: file} of stress-ng, with the libraries that it needs and their loader."""
    tree = initramfs.userland(arch, "stress-ng", "stress-ng")
    program = tree / "usr/bin/stress-ng"
    loader = re.search(r"program interpreter: /(.*)\]", tool(["readelf", "--wide", "--program-headers", program]))[1]
    files, left = {"bin/stress-ng": program, loader: tree / loader}, [program]
    while left:
        for name in re.findall(r"\(NEEDED\).*\[(.*)\]", tool(["readelf", "--wide", "--dynamic", left.pop()])):
            if name not in {Path(known).name for known in files}:
                found = next((path for path in sorted((tree / "usr/lib").rglob(name)) if path.exists()), None)
                if not found:
                    raise GuestError(f"stress-ng of {arch} needs {name}, and no package brought it")
                files[f"lib/{name}"] = found
                left.append(found)
    return files


def of_fsx(arch):
    """{place in the guest: file} of fsx and stress-ng."""
    return {"bin/fsx": fsx(arch), **stress_ng(arch)}
