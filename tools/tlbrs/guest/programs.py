# SPDX-License-Identifier: GPL-2.0
"""Which sources the guest programs are made of.

A source with main() is a program. PROGRAM_*.c without one are its other sources. What remains belongs to the header
whose name it begins with, as tlb_rs_files.c to tlb_rs.h, and is linked into each program that includes that.
"""

import re

INCLUDE = re.compile(r'^#include "(\w+)\.h"', re.M)


def has_main(text):
    return bool(re.search(r"^int main\(", text, re.M))


def own(folder, program):
    """The sources of one program that no other one has, its main file first; none: there is no such program."""
    main = folder / f"{program}.c"
    if not main.exists() or not has_main(main.read_text("utf-8")):
        return []
    more = {path: has_main(path.read_text("utf-8")) for path in sorted(folder.glob(f"{program}_*.c"))}
    longer = tuple(f"{path.stem}_" for path, another in more.items() if another)
    return [main, *(path for path, another in more.items() if not another and not path.stem.startswith(longer))]


def included(folder, texts):
    """Names of the headers of this folder that are included, also by others of them."""
    found, new = set(), set(INCLUDE.findall("\n".join(texts)))
    while new:
        found |= new
        texts = [path.read_text("utf-8") for name in new if (path := folder / f"{name}.h").exists()]
        new = set(INCLUDE.findall("\n".join(texts))) - found
    return found


def sources(folder):
    """{program: [its sources, that with main() first]} of a folder."""
    texts = {path: path.read_text("utf-8") for path in sorted(folder.glob("*.c"))}
    programs = {path.stem: own(folder, path.stem) for path, text in texts.items() if has_main(text)}
    left = set(texts).difference(*programs.values())
    for mine in programs.values():
        headers = included(folder, [texts[path] for path in mine])
        mine += sorted(path for path in left if any(f"{path.stem}_".startswith(f"{name}_") for name in headers))
    return programs
