# SPDX-License-Identifier: GPL-2.0
"""Compare the code of objects of two build directories, function by function."""

import re
import subprocess


def functions(objdump, obj):
    """{section and function: its instructions}, free of what a moved line changes."""
    text = subprocess.run([objdump, "--disassemble", "--reloc", "--no-show-raw-insn", "--no-leading-addr", str(obj)],
                          capture_output=True, text=True, check=True).stdout
    found, section, name = {}, "", None
    for line in text.splitlines():
        if m := re.match(r"Disassembly of section (\S+):", line):
            section = m.group(1)
        elif m := re.match(r"<(\S+)>:$", line.strip()):
            name = f"{section} {m.group(1)}"
            found[name] = []
        elif name and line.strip():
            # A constant that the compiler numbered (.L.str.12, __UNIQUE_ID_x_345), and where a function lies:
            # one that grew must not make those behind it differ.
            line = re.sub(r"((?:\.L|__UNIQUE_ID)[\w.]*?)\d+", r"\1", line.strip())
            found[name].append(re.sub(r"0x[0-9a-f]+ (?=<)|(?<=\.text\+)0x[0-9a-f]+", "", line))
    return found


def differences(objdump, stock, ours, objects):
    """[(object, what differs or None)] for the objects, relative to both directories."""
    result = []
    for obj in objects:
        a, b = (functions(objdump, top / obj) for top in (stock, ours))
        names = sorted(n for n in a.keys() | b.keys() if a.get(n) != b.get(n))
        if not a:
            names = ["no code was found"]
        result.append((obj, ", ".join(names[:5]) or None))
    return result
