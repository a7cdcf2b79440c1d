# SPDX-License-Identifier: GPL-2.0
"""Find decisions in the C code of migrc and hvo: Rust decides, C looks and does. And #ifdef within functions.

usage: tlb-rs policy [TREE]     exit status 1 if there is one that policy.toml does not explain, or an entry without one

A comparison of an order (<, >=, ...), min(), max(), clamp() and "facts |=" are taken for decisions. What is built for
tests and debugging only is left out. An entry of policy.toml is a line of code, without the blanks around it, and why
it has to be in C:

    ["mm/hvo/hvo_pool.c"]
    "return index < hugetlb_max_hstate ? &hstates[index] : NULL;" = "the end of an array"
"""

import re
import sys
import tomllib
from collections import Counter
from pathlib import Path

from tlbrs.check.size import code_of_c, stripped
from tlbrs.kernel.common import ROOT

TABLE = Path(__file__).with_suffix(".toml")
FOLDERS = ("mm/migrc", "mm/hvo")
DECIDES = re.compile(r"[^<>=-][<>]=?[^<>=]|\b(?:min|max|clamp)(?:_t|3)?\(|\bfacts\s*\|=")
# A loop counts what is there.
LOOP = re.compile(r"\bfor \([^;]*;[^;]*;")


def decisions(text):
    """The lines of code that decide something."""
    code, debugging = code_of_c(text)
    for nr, (line, bare) in enumerate(zip(text.split("\n"), stripped(text).split("\n")), 1):
        bare = LOOP.sub("", re.sub(r"^\s*#.*", "", bare)).replace("->", ".")
        if nr in code and nr not in debugging and DECIDES.search(bare):
            yield line.strip()


def conditionals(text):
    """The lines within functions that begin or continue #if; a function has its braces in the first column."""
    inside = False
    for line in stripped(text).split("\n"):
        if line.startswith(("{", "}")):
            inside = line.rstrip() == "{"
        elif inside and re.match(r"\s*#\s*(?:if|elif|else)", line):
            yield line.strip()


def new_conditionals(tree, stock, names):
    """"FILE: LINE" of each that these files have in a patched tree and not in a stock one."""
    for name in sorted(names):
        old = stock / name
        known = Counter(conditionals(old.read_text(encoding="utf-8")) if old.exists() else ())
        for line in (Counter(conditionals((tree / name).read_text(encoding="utf-8"))) - known).elements():
            yield f"{name}: {line}"


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    bad = 0
    for folder in FOLDERS:
        for file in sorted((root / folder).glob("*.c")):
            name = f"{folder}/{file.name}"
            if re.search(r"_(debug|faults)$", file.stem):
                continue
            explained = dict(table.pop(name, {}))
            for line in decisions(file.read_text(encoding="utf-8")):
                if not explained.pop(line, None):
                    print(f"{name}: decides: {line}")
                    bad += 1
            for line in explained:
                print(f"{name}: policy.toml explains what is not there: {line}")
                bad += 1
    for name in table:
        print(f"policy.toml: {name} is not there")
        bad += 1
    return bad > 0
