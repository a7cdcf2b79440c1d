# SPDX-License-Identifier: GPL-2.0
"""Boots a kernel on a modelled machine, and measures regions of the programs on it in simulated time.

A boot runs on cores without time, and leaves a checkpoint at the start of each region. A measurement goes on from
there, on cores with time and caches, to the end of that region. Each needs one CPU of the host.
"""

import dataclasses
import re
import subprocess
from pathlib import Path

from tlbrs.guest import console, guest, initramfs
from tlbrs.kernel.common import Fail

HERE = Path(__file__).resolve().parent
# Where gem5's own rules leave what is used.
PROGRAMS = ("build/ARM/gem5.fast", "build/ARM/gem5.opt")
# Code that the build makes. Without the call no TLBI ever ends, see tools/README.md.
WAKEUP, CALL = "build/ARM/mem/ruby/protocol/MiscNode_Wakeup.cc", "updatePendingOps()"
LOADER = "system/arm/bootloader/arm64/boot_v2.arm64"
# Markers of a region (hint #100 and #101, see tlb_rs.h) and gem5's own instructions: work begins, work ends.
MARKERS = {0xd5032c9f: 0xff5a0110, 0xd5032cbf: 0xff5b0110}
NUMBER = r"(-?[\d.]+(?:e[-+]?\d+)?)"


@dataclasses.dataclass
class Gem5:
    program: Path
    configs: Path
    loader: Path


def find(place):
    """The gem5 of a directory."""
    place = Path(place).expanduser()
    program = next((place / name for name in PROGRAMS if (place / name).exists()), None)
    if not program:
        raise Fail(f"GEM5={place}: no {' and no '.join(PROGRAMS)}\n  a checkout of gem5 24.0 is needed, built for ARM with "
                   "the protocol CHI: see its documentation")
    if (place / WAKEUP).exists() and CALL not in (place / WAKEUP).read_text(encoding="utf-8"):
        raise Fail(f"GEM5={place}: {WAKEUP} does not call {CALL}\n  tools/README.md, \"A modelled machine\", says why")
    if not (place / LOADER).exists():
        raise Fail(f"GEM5={place}: no {LOADER}\n  gem5's boot loader is built apart: see its documentation")
    return Gem5(program, place / "configs", place / LOADER)


def marked(archive):
    """The same archive, with gem5's instructions for the markers."""
    for marker, work in MARKERS.items():
        old, new = (word.to_bytes(4, "little") for word in (marker, work))
        if old not in archive:
            raise Fail("no markers of a region in the initramfs")
        archive = archive.replace(old, new)
    return archive


def initrd(job):
    """An initramfs that runs this job, with no more programs than it needs: a boot is slow."""
    return marked(initramfs.small("arm64", job)) + initramfs.job_archive(job)


def run(gem5, out, *args, timeout):
    """gem5's own output, when it has ended well."""
    out.mkdir(parents=True, exist_ok=True)
    command = [gem5.program, f"--outdir={out}", "--redirect-stdout", "--redirect-stderr", HERE / "machine.py",
               f"--configs={gem5.configs}", f"--loader={gem5.loader}", *args]
    try:
        status = subprocess.run(command, timeout=timeout, check=False).returncode
    except subprocess.TimeoutExpired:
        status = f"none after {timeout} s"
    log = out / "simout.txt"
    said = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if status:
        errors = out / "simerr.txt"
        tail = (said + (errors.read_text(errors="replace") if errors.exists() else ""))[-2000:]
        raise Fail(f"gem5 ended with status {status}; see {out}\n{tail}")
    return said


def files(booted, disk):
    """The arguments that a boot and what goes on from it have in common."""
    return [f"--initrd={booted.with_suffix('.cpio')}", *([f"--disk={booted.with_suffix('.disk')}"] if disk else [])]


def boot(gem5, kernel, job, cores, out, regions, *, append="", disk=None, timeout=3600):
    """Runs a job, leaves a checkpoint at the start of each of its regions; returns the records that it printed.

    disk: the size of an empty one, /dev/vda.
    """
    out.with_suffix(".cpio").write_bytes(initrd(job))
    if disk:
        guest.make_disk(out.with_suffix(".disk"), disk)
    run(gem5, out, f"--kernel={kernel}", *files(out, disk), f"--cores={cores}", f"--append={append}", f"--regions={regions}",
        timeout=timeout)
    text = (out / "system.terminal").read_text(encoding="utf-8", errors="replace")
    records, problems = console.records(text)
    found = [record for record in records if "region" in record]
    if problems or len(found) != regions or "tlb-rs: job exit 0" not in text:
        raise Fail(f"{job}: {len(found)} of {regions} regions; see {out}/system.terminal {' '.join(problems)}")
    return found


def measure(gem5, kernel, cores, booted, region, out, *options, disk=None, timeout=3600):
    """Statistics of one region, of those that boot() left in `booted`."""
    run(gem5, out, f"--kernel={kernel}", *files(booted, disk), f"--cores={cores}",
        f"--restore={booted / f'region.{region}'}", *options, timeout=timeout)
    return stats((out / "stats.txt").read_text(encoding="utf-8"))


def stats(text):
    """{name: figure} of the first dump."""
    begin = text.index("Begin Simulation Statistics")
    end = text.find("End Simulation Statistics", begin)
    return {m[1]: float(m[2]) for m in re.finditer(rf"^(\S+) +{NUMBER}\s", text[begin:end], re.M)}
