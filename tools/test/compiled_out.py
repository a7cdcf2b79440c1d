# SPDX-License-Identifier: GPL-2.0
"""What is compiled into objects: compared with those of another build, and what code that may call nothing calls."""

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


# Called by functions of .noinstr.text: assembly that is not instrumented, or noinstr itself.
QUIET = {"copy_page", "arm64_cpus_are_stopped"}
INSTRUMENTS = re.compile(r"__asan|__kasan|__tsan|__kcsan|__sanitizer|__ubsan|_mcount|__fentry|ftrace")


def disturbances(objdump, nm, obj):
    """What noinstr functions of an object call that they must not, and what instruments its other functions.

    An inline function of another attribute is not inlined into a noinstr one, so it is in .text.
    """
    quiet = [lines for name, lines in functions(objdump, obj).items() if name.startswith(".noinstr.text ")]
    if not quiet:
        return ["no noinstr function was found"]
    calls = {m for lines in quiet for line in lines
             for m in re.findall(r"R_AARCH64_(?:CALL|JUMP)26\s+(\w+)", line)}
    undefined = subprocess.run([nm, "--undefined-only", "--just-symbol-name", str(obj)], capture_output=True, text=True,
                               check=True).stdout.split()
    return sorted(calls - QUIET) + [name for name in undefined if INSTRUMENTS.match(name)]
