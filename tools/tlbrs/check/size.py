# SPDX-License-Identifier: GPL-2.0
"""Count the lines of code of each mechanism, and list files and lines that are too long.

usage: tlb-rs size [--check] [--files]     --check: exit status 1 if a limit is exceeded; --files: each file, too

A line of code has something else than blanks and comments. Tests, debugging and fault injection are counted apart:
files that a Makefile builds only for such an option, what is compiled only for one, and the empty functions that
stand in for it otherwise. The lines Adds: of the patches say which files belong to a mechanism; irq-gic-v3 is one of
its own here.
"Added" are the lines that the series adds to existing C files and that no later patch replaces.
"""

import argparse
import re
import subprocess
from collections import Counter
from pathlib import Path

from tlbrs.kernel import series
from tlbrs.kernel.common import ROOT

TARGETS = {"tlb_batch": 490, "migrc": 820, "hvo": 900}
TOLERANCE = 1.1
LONGEST_FILE, WIDEST = 700, 100
KERNEL = ("arch", "drivers", "fs", "include", "kernel", "lib", "mm", "rust")
DEBUG = re.compile(r"DEBUG|FAULT_INJECTION|KUNIT|ORACLE|TLB_SECONDARY|SLOW_NODES|_BENCH$")
# Columns of the table.
KINDS = ("folder", "headers", "arch", "Rust", "added", "apart")
C_KINDS = KINDS[:3]

C_TOKEN = re.compile(r"""//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'""", re.S)
# A lifetime has no second quote.
RUST_TOKEN = re.compile(r"""//[^\n]*|/\*|b?r(?P<hash>#*)".*?"(?P=hash)|"(?:\\.|[^"\\])*"|'(?:\\[^'\n]+|\\'|[^'\\\n])'""", re.S)
# What a header has for a function that only debugging has.
STUB = re.compile(r"static (?:inline|__always_inline) [^;{}]*\{\s*(?:return \w+;)?\s*\}|"
                  r"#[ \t]*define[ \t]+\w+\([^)\n]*\)[ \t]+(?:do \{ \} while \(0\)|false|true|0|NULL)[ \t]*$", re.M)


# ---- what is code

def hidden(text, by=""):
    """As many lines as text, with by in place of each character; none: empty lines."""
    return re.sub(r"\S", by, text) if by else "\n" * text.count("\n")


def stripped(text, rust=False):
    """Without comments, and with other letters in strings: what looks like code in them is none. Lines stay."""
    out, at, token = [], 0, RUST_TOKEN if rust else C_TOKEN
    while m := token.search(text, at):
        out.append(text[at:m.start()])
        at = m.end()
        if m.group().startswith("/*") and rust:
            depth = 1
            while depth and (edge := re.compile(r"/\*|\*/").search(text, at)):
                depth, at = depth + (1 if edge.group() == "/*" else -1), edge.end()
            if depth:
                at = len(text)
        comment = m.group().startswith(("//", "/*"))
        out.append(" " + hidden(text[m.start():at]) if comment else hidden(m.group(), "s"))
    return "".join(out) + text[at:]


def for_debugging(condition):
    """Whether all options that a condition names are for tests, debugging or fault injection."""
    names = re.findall(r"\bCONFIG_(\w+)", condition)
    return bool(names) and all(DEBUG.search(name) for name in names)


def code_of_c(text):
    """(lines of code, lines that are for debugging) as sets of line numbers, from 1."""
    text = stripped(text)
    lines = text.split("\n")
    # [is it about debugging, are these lines for debugging, first line of a branch for others] of each open #if.
    ifs, apart, stubs = [], set(), []
    for number, line in enumerate(lines, 1):
        m = re.match(r"\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b(.*)", line)
        word = m.group(1) if m else ""
        if word.startswith("if"):
            about = for_debugging(m.group(2))
            without = about and (word == "ifndef" or bool(re.match(r"\s*!", m.group(2))))
            ifs.append([about, about and not without, number + 1 if without else 0])
        elif word in ("elif", "else") and ifs and ifs[-1][0]:
            if ifs[-1][2]:
                stubs.append((ifs[-1][2], number))
            ifs[-1][1:] = [not ifs[-1][1], number + 1 if ifs[-1][1] else 0]
        if any(of_debugging for _, of_debugging, _ in ifs) or (word and ifs and ifs[-1][0]):
            apart.add(number)
        if word == "endif" and ifs:
            _, _, begin = ifs.pop()
            if begin:
                stubs.append((begin, number))
    for begin, end in stubs:
        block = "\n".join(lines[begin - 1:end - 1])
        for m in STUB.finditer(block):
            first = begin + block.count("\n", 0, m.start())
            apart |= set(range(first, first + m.group().count("\n") + 1))
    code = {number for number, line in enumerate(lines, 1) if line.strip()}
    return code - apart, code & apart


def item_end(text, at):
    """Where the item of Rust ends that begins at, maybe with attributes."""
    while m := re.compile(r"\s*#\[").match(text, at):
        at = closing(text, m.end() - 1)
    braced = not re.compile(r"\s*(?:pub(?:\([^)]*\))?\s+)?(?:use|static|type|let|const\s+(?!fn\b|unsafe\b))\b").match(text, at)
    while m := re.compile(r"[\[({;]").search(text, at):
        if m.group() == ";":
            return m.end()
        at = closing(text, m.start())
        if m.group() == "{" and braced:
            return at
    return len(text)


def closing(text, at):
    """Behind the bracket that closes the one at this place."""
    depth = 0
    for m in re.compile(r"[\[({\])}]").finditer(text, at):
        depth += 1 if m.group() in "[({" else -1
        if not depth:
            return m.end()
    return len(text)


def code_of_rust(text):
    """As code_of_c(): what has cfg(test), or that of an option for debugging, or is a KUnit suite."""
    text = stripped(text, rust=True)
    apart, at = set(), 0
    while m := re.compile(r"#\[(?:cfg\(([^\]]*)\)|kunit_tests\b[^\]]*)\]").search(text, at):
        at = m.end()
        condition = m.group(1)
        if condition is None or condition.strip() == "test" or (for_debugging(condition) and "not(" not in condition):
            at = item_end(text, at)
            apart |= set(range(text.count("\n", 0, m.start()) + 1, text.count("\n", 0, at) + 2))
    code = {number for number, line in enumerate(text.split("\n"), 1) if line.strip()}
    return code - apart, code & apart


def code_lines(name, text):
    return (code_of_rust if name.endswith(".rs") else code_of_c)(text)


# ---- whose it is

def kind(name):
    """The column of a new file of the kernel; None: nothing that is counted here."""
    top = name.split("/")[0]
    if top not in KERNEL or not name.endswith((".c", ".h", ".S", ".rs")):
        return None
    return "Rust" if name.endswith(".rs") else "arch" if top == "arch" else "headers" if top == "include" else "folder"


def built_for_debugging(makefile):
    """Stems of the files that a Makefile builds only with such an option."""
    found = re.findall(r"^\S+-\$\(CONFIG_(\w+)\)\s*\+=\s*(.*)$", makefile, re.M)
    return {stem for option, objects in found if DEBUG.search(option) for stem in re.findall(r"(\w+)\.o", objects)}


def is_apart(name, stems):
    path = Path(name)
    return path.stem in stems or path.name == "tests.rs" or path.parent.name == "tests"


def added(patched, owned):
    """What a patch adds: {file: numbers of the lines of code that are new}.

    patched: see hunks()
    owned: {file: {line number: whose it is}}; lines move, and those that the patch removes are lost
    """
    new = {}
    for name, blocks in patched:
        before, after, fresh, shift, last = owned.get(name, {}), {}, set(), 0, 0
        for old, at, lines in blocks:
            after |= {number + shift: who for number, who in before.items() if last <= number < old}
            code = hunk_code(lines)
            for index, line in enumerate(lines):
                if line[0] == " " and old in before:
                    after[at] = before[old]
                if line[0] == "+" and index in code:
                    fresh.add(at)
                old, at = old + (line[0] != "+"), at + (line[0] != "-")
            last, shift = old, at - old
        after |= {number + shift: who for number, who in before.items() if number >= last}
        owned[name], new[name] = after, fresh
    return new


def hunk_code(lines):
    """Which lines of a hunk, by index, are code once it is applied; what it begins in may be a comment."""
    kept = [index for index, line in enumerate(lines) if line[:1] != "-"]
    text = "\n".join(lines[index][1:] for index in kept)
    if re.match(r"(?:(?!/\*).)*?\*/", text, re.S) or re.match(r"[ \t]*\* ", text):
        text = "/*" + text
    code, _ = code_of_c(text)
    return {kept[number - 1] for number in code}


def hunks(patch):
    """[(existing C file, [(first old line, first new line, [lines])])] of a patch."""
    files, blocks, lines = [], [], iter(patch.split("\n"))
    before = ""
    for line in lines:
        if before.startswith("--- ") and (m := re.match(r"\+\+\+ [^/\s]+/(\S+)", line)):
            blocks = []
            if m.group(1).endswith((".c", ".h", ".S")) and not before.startswith("--- /dev/null"):
                files.append((m.group(1), blocks))
        elif m := re.match(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", line):
            old, new = (int(m.group(group) or 1) for group in (2, 4))
            body = []
            while (old > 0 or new > 0) and (line := next(lines, None)) is not None:
                line = line or " "
                if line[0] != "\\":
                    body.append(line)
                    old, new = old - (line[0] != "+"), new - (line[0] != "-")
            blocks.append((int(m.group(1)), int(m.group(3)), body))
        before = line or ""
    return files


def measured(root=ROOT):
    """({mechanism: Counter of KINDS}, {mechanism: {file: lines of code}})"""
    stems = set().union(*(built_for_debugging(f.read_text(encoding="utf-8")) for f in root.glob("mm/*/Makefile")))
    table, files, owned = {}, {}, {}
    for mechanism, name, patch, new in series.plan(root):
        who = "irqchip" if "irqchip" in name else mechanism
        count, of_file = table.setdefault(who, Counter()), files.setdefault(who, {})
        for f in new:
            if which := kind(f):
                code, apart = code_lines(f, (root / f).read_text(encoding="utf-8"))
                if is_apart(f, stems):
                    code, apart = set(), code | apart
                count[which] += len(code)
                count["apart"] += len(apart)
                of_file[f] = len(code)
        # A patch whose name says so has nothing but hooks of debugging.
        column = "apart" if DEBUG.search(name.upper()) else "added"
        patched = [(f, blocks) for f, blocks in hunks(patch.read_text(encoding="utf-8")) if kind(f)]
        for f, fresh in added(patched, owned).items():
            owned[f] |= {number: (who, column) for number in fresh}
    for lines in owned.values():
        for who, column in lines.values():
            table[who][column] += 1
    return table, files


# ---- limits

def tracked(root):
    p = subprocess.run(["git", "ls-files", "*.c", "*.h", "*.S", "*.rs", "*.py"], cwd=root, capture_output=True, text=True,
                       check=True)
    return [name for name in p.stdout.splitlines() if (root / name).is_file()]


def too_long(texts):
    """[(file, lines)] of {file: text}"""
    return [(name, n) for name, text in texts.items()
            if (n := len(text.splitlines())) > LONGEST_FILE]


def too_wide(texts):
    """[(file, line number, columns)]; a tab goes to the next multiple of 8"""
    return [(name, number, n) for name, text in texts.items() if name.endswith((".c", ".h", ".S"))
            for number, line in enumerate(text.splitlines(), 1) if (n := len(line.expandtabs(8))) > WIDEST]


def over(table):
    """[(mechanism, C, most)] of those that have too much."""
    sums = {who: sum(table[who][k] for k in C_KINDS) for who in TARGETS if who in table}
    return [(who, n, round(TARGETS[who] * TOLERANCE)) for who, n in sums.items() if n > TARGETS[who] * TOLERANCE]


def report(table, long_files, wide):
    lines = ["lines of code    " + "".join(f"{word:>9}" for word in (*C_KINDS, "all C", "target", *KINDS[3:]))]
    for who, count in table.items():
        cells = [*(count[k] for k in C_KINDS), sum(count[k] for k in C_KINDS), TARGETS.get(who, "-"),
                 *(count[k] for k in KINDS[3:])]
        lines.append(f"{who:17}" + "".join(f"{cell:>9}" for cell in cells))
    lines += ["apart: tests, debugging, fault injection", ""]
    lines += [f"{who}: {n} lines of C, at most {most}" for who, n, most in over(table)]
    lines.append(f"{len(long_files)} files of more than {LONGEST_FILE} lines")
    lines += [f"  {n:5} {name}" for name, n in sorted(long_files, key=lambda pair: -pair[1])]
    lines.append(f"{len(wide)} lines of C of more than {WIDEST} columns")
    lines += [f"  {name}:{number}: {n}" for name, number, n in wide]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description="Count the lines of code of each mechanism.")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a limit is exceeded")
    parser.add_argument("--files", action="store_true", help="the files of each mechanism, too")
    options = parser.parse_args()
    table, files = measured()
    texts = {name: (ROOT / name).read_text(encoding="utf-8", errors="replace") for name in tracked(ROOT)}
    long_files, wide = too_long(texts), too_wide(texts)
    print(report(table, long_files, wide))
    for who, of_file in files.items() if options.files else ():
        print("\n".join([f"\n{who}", *(f"  {n:5} {name}" for name, n in of_file.items())]))
    return 1 if options.check and (over(table) or long_files or wide) else 0
