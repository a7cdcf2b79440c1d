# SPDX-License-Identifier: GPL-2.0
"""What is compiled into objects: compared with those of another build, and what code that may call nothing calls."""

import re
import subprocess
import tempfile


# A constant that the compiler numbered (.L.str.12, __UNIQUE_ID_x_345).
NUMBERED = re.compile(r"((?:\.L|__UNIQUE_ID)[\w.]*?)\d+")


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
            # Nor where a function lies: one that grew must not make those behind it differ.
            line = NUMBERED.sub(r"\1", line.strip())
            found[name].append(re.sub(r"0x[0-9a-f]+ (?=<)|(?<=\.text\+)0x[0-9a-f]+", "", line))
    return found


def data(objdump, obj):
    """{section: its contents and relocations}, of variables and constants; not of tables with lines or addresses of code."""
    text = subprocess.run([objdump, "--full-contents", "--reloc", str(obj)], capture_output=True, text=True, check=True).stdout
    found, lines = {}, []
    for line in text.splitlines():
        if m := re.match(r"(?:Contents of section |RELOCATION RECORDS FOR \[)([^]:]+)", line):
            lines = found.setdefault(m.group(1), [])
        elif line.strip():
            lines.append(re.sub(r"(?<=\.text\+)0x[0-9a-f]+", "", NUMBERED.sub(r"\1", line)))
    return {name: lines for name, lines in found.items() if re.match(r"\.(init\.)?(data|rodata)\b", name)}


def differences(objdump, stock, ours, objects):
    """[(object, what differs or None)] for the objects, relative to both directories."""
    result = []
    for obj in objects:
        names, found = [], False
        for contents in (functions, data):
            a, b = (contents(objdump, top / obj) for top in (stock, ours))
            names += sorted(n for n in a.keys() | b.keys() if a.get(n) != b.get(n))
            found |= contents is functions and bool(a)
        if not found:
            names = ["no code was found"]
        more = [f"{len(names) - 5} more"] if len(names) > 5 else []
        result.append((obj, ", ".join(names[:5] + more) or None))
    return result


# Run while no other CPU may be disturbed.
NOINSTR = ("arch/arm64/kernel/pause.o", "arch/arm64/mm/hvo_apply.o")
# A function that calls another one by a pointer, and a noinstr function of another object.
INDIRECT, QUIET = {"stop_fn"}, {"arm64_cpus_are_stopped"}


def calls(objdump, obj):
    """{(section, function): what it calls: names of other objects' functions, (section, function), None for a pointer}"""
    def run(*options):
        return subprocess.run([objdump, "--reloc", *options, str(obj)], capture_output=True, text=True, check=True).stdout
    starts, found, section, name = {}, {}, None, None
    for line in run("--disassemble", "--no-show-raw-insn").splitlines():
        if m := re.match(r"Disassembly of section (\S+):", line):
            section = m.group(1)
        elif m := re.match(r"([0-9a-f]+) <(\S+)>:$", line):
            name = section, m.group(2)
            starts[section, int(m.group(1), 16)] = name
            found[name] = set()
        elif m := re.search(r"R_AARCH64_(?:CALL|JUMP)26\s+(\S+?)(?:\+0x([0-9a-f]+))?$", line):
            found[name].add((m.group(1), int(m.group(2) or "0", 16)))
        elif re.search(r"\tblra?[ab]?z?\t", line):
            found[name].add(None)
        # Where both are in one section there is no relocation.
        elif m := re.search(r"\tbl\t0x[0-9a-f]+ <(\w+)>", line):
            found[name].add((section, m.group(1)))
    blacklist = re.search(r"FOR \[_kprobe_blacklist\]:\n((?:.+\n)*)", run())
    blacklist = re.findall(r"R_AARCH64_ABS64\s+(\S+?)(?:\+0x([0-9a-f]+))?\n", blacklist[1] if blacklist else "")

    def resolve(place):
        return place and (starts.get(place) or (place if place in found else place[0]))
    return ({name: {resolve(p) for p in places} for name, places in found.items()},
            {resolve((target, int(offset or "0", 16))) for target, offset in blacklist})


def disturbances(objdump, obj):
    """What noinstr functions of an object call, and what that calls, although it instruments or may be probed.

    clang inlines no function of other attributes into a noinstr one unless it must, so that it is in .text. The
    kernel needs CONFIG_KPROBES, to say what must not be probed.
    """
    found, blacklist = calls(objdump, obj)
    left = [name for name in found if name[0] == ".noinstr.text"]
    if not left:
        return ["no noinstr function was found"]
    seen, bad = set(left), set()
    while left:
        name = left.pop()
        for called in found[name] - seen:
            seen.add(called)
            if called is None:
                bad |= set() if name[1] in INDIRECT else {f"a pointer in {name[1]}"}
            elif called[0] != ".noinstr.text" and called not in blacklist and called not in QUIET:
                bad.add(called if isinstance(called, str) else called[1])
            elif called in found:
                left.append(called)
    return sorted(bad)


def compiled_without(options, obj, how, source=None):
    """Compile an object's source without these options, which its kernel has; all else as it was built.

    how: what becomes of it. Nothing is written beside the object, nor are its dependencies. source: another one.
    """
    saved = (obj.parent / f".{obj.name}.cmd").read_text(encoding="utf-8")
    top = next(p for p in obj.parents if (p / ".config").exists())
    command = re.sub(r"-Wp,-MMD,\S+| -o \S+\.o(?= )", "", re.search(r"^savedcmd_\S+ := ([^;\n]*)", saved, re.M)[1])
    if source:
        command = command.rsplit(maxsplit=1)[0] + f" -x c {source}"
    with tempfile.NamedTemporaryFile("w", suffix=".h") as header:
        header.write("".join(f"#undef {o}\n" for o in options))
        header.flush()
        return subprocess.run(["sh", "-c", f"{command} {how} -include {header.name}"], cwd=top, text=True, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def errors_without(options, obj, source=None):
    """What the compiler says of an object's source, or another one, without these options."""
    p = compiled_without(options, obj, "-fsyntax-only", source)
    return p.stdout if p.returncode else ""


# What is there only once the key is on ends with one of these, and may fall through behind it.
BRANCH = re.compile(r"(?:b(?:\.\w+)?|[ct]bn?z|ret)$")


def straight(objdump, obj, key):
    """{function: instructions that are there while a static key is off, NOPs of its branches, which do not count}, of arm64.

    Only of functions in .text.
    """
    def run(*options):
        return subprocess.run([objdump, *options, str(obj)], capture_output=True, text=True, check=True).stdout
    code, name = {}, None
    for line in run("--disassemble", "--section=.text", "--no-show-raw-insn").splitlines():
        if m := re.match(r"[0-9a-f]+ <(\S+)>:$", line):
            name = m[1]
        elif m := re.match(r" *([0-9a-f]+):\s+(\S+)", line):
            code[int(m[1], 16)] = name, m[2]
    # An entry: where the branch is, where it leads to, and its key.
    table = re.search(r"FOR \[__jump_table\]:\n.*\n((?:[0-9a-f]{16} .+\n)*)", run("--reloc"))
    places = re.findall(r"^[0-9a-f]+ R_AARCH64_PREL\d+ +(\S+?)(?:\+0x([0-9a-f]+))?$", table[1] if table else "", re.M)
    cold, nops = set(), {}
    for (section, branch), (_, target), (found, _) in zip(*[iter(places)] * 3):
        if found != key or section != ".text":
            continue
        branch, at = int(branch, 16), int(target, 16)
        if code[branch][1] != "nop":
            raise ValueError(f"{code[branch]} at {branch:x} is no NOP")
        nops[code[branch][0]] = nops.get(code[branch][0], 0) + 1
        cold.add(branch)
        while at not in cold:
            cold.add(at)
            if BRANCH.match(code[at][1]):
                break
            at += 4
    count = {}
    for at, (function, _) in code.items():
        count[function] = count.get(function, 0) + (at not in cold)
    return {function: (n, nops.get(function, 0)) for function, n in count.items()}


def costs(objdump, obj, option, key):
    """{function: (instructions without an option, with it while its static key is off, NOPs of that)}, where there are any."""
    with tempfile.NamedTemporaryFile(suffix=".o") as without:
        p = compiled_without((option,), obj, f"-o {without.name}")
        if p.returncode:
            raise ValueError(p.stdout)
        stock = straight(objdump, without.name, key)
    return {function: (stock.get(function, (0, 0))[0], n, nops) for function, (n, nops) in straight(objdump, obj, key).items()
            if nops}
