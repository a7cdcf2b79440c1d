# SPDX-License-Identifier: GPL-2.0
"""Programs of others that exercise file systems, static and for the guest: fio.

Nothing of it is in this repository. It is built from the distribution's source package. What cannot be had raises
GuestError, which says why.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tlbrs.guest import initramfs
from tlbrs.guest.initramfs import GuestError, run
from tlbrs.kernel.common import BUILD
from tlbrs.kernel.kernel import PRIVATE

# The mmap engine needs none of what may happen to be on this machine.
FIO = ("--build-static", "--disable-native", "--disable-shm", *(f"--disable-{name}" for name in (
    "numa", "rdma", "rados", "rbd", "http", "gfapi", "pmem", "xnvme", "libnfs", "lex", "tcmalloc", "libzbc", "dfs")))


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
