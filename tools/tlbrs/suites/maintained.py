# SPDX-License-Identifier: GPL-2.0
"""MAINTAINERS of the patched tree: who is told of a change to one of our files, as the kernel's own script says it."""

import fnmatch
import os
import re
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor

from tlbrs.kernel.common import ROOT

# What every section of ours has: until somebody takes it, nobody maintains it.
STATUS = "Orphan"


def sections(tree, root=ROOT):
    """{title: its lines}, of those that the series adds."""
    added = {title for patch in (root / "patches").glob("*/*MAINTAINERS*.patch")
             for title in re.findall(r"^\+([A-Z][A-Z].*)$", patch.read_text(encoding="utf-8"), re.M)}
    parts = ((tree / "MAINTAINERS").read_text(encoding="utf-8")).split("\n\n")
    parts = (part.strip("\n").partition("\n") for part in parts)
    return {title: lines for title, _, lines in parts if title in added}


def entries(lines, letter):
    return re.findall(rf"^{letter}:\s+(.*)$", lines, re.M)


def covers(pattern, name):
    """As F: means it: a star does not go into directories, what ends with a slash is all below it."""
    if pattern.endswith("/"):
        return name.startswith(pattern)
    return pattern.count("/") == name.count("/") and fnmatch.fnmatchcase(name, pattern)


def faults(tree, files, root=ROOT):
    """(what is looked at, what is wrong or ""), of the sections and of each of these files."""
    ours = sections(tree, root)

    def told(name, *options):
        wanted = {value.split()[0] for lines in ours.values() for value in entries(lines, "L")
                  if any(covers(pattern, name) for pattern in entries(lines, "F"))}
        p = subprocess.run([tree / "scripts/get_maintainer.pl", "--no-git", "--no-git-fallback", "--no-rolestats", *options,
                            "-f", name], cwd=tree, capture_output=True, text=True, check=False)
        if p.returncode or not wanted:
            return name, p.stderr.strip() or "in no section of ours"
        return name, ", ".join(f"{who} is not told" for who in sorted(wanted - set(p.stdout.split())))

    with tempfile.NamedTemporaryFile("w") as short, ThreadPoolExecutor(os.cpu_count()) as pool:
        # Each file by our sections alone: all of MAINTAINERS takes the script ten times as long to read.
        short.write("Maintainers List\n----------------\n\n" +
                    "\n\n".join(f"{title}\n{lines}" for title, lines in ours.items()) + "\n")
        short.flush()
        yield from pool.map(lambda name: told(name, f"--mpath={short.name}"), files)
    for title, lines in ours.items():
        wrong = [] if entries(lines, "S") == [STATUS] else [f"S: {entries(lines, 'S')}"]
        wrong += [] if entries(lines, "L") else ["no list"]
        # And one of each by all of it.
        one = next((name for name in files if any(covers(pattern, name) for pattern in entries(lines, "F"))), None)
        wrong += [told(one)[1]] if one else ["no file"]
        yield title, "; ".join(filter(None, wrong))
