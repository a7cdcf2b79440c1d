# SPDX-License-Identifier: GPL-2.0
"""The design pages against the code: hooks and tests that their tables of rules name must exist."""

import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tools/testing/selftests/mm"
PAGES = ("tlb_batch", "migrc", "hvo")
LITERAL = re.compile(r"``([^`]+)``")
CODE = ("arch", "include", "mm", "rust", "drivers")
# Where a name proves nothing; a quotation mark in quotes begins no string.
PROSE = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])'", re.S)


def text_of(node):
    """In one line, with literals marked as in the source."""
    words = "".join(node.itertext()) if node.tag != "literal" else f"``{node.text}``"
    if node.tag != "literal" and len(node):
        words = (node.text or "") + "".join(text_of(child) + (child.tail or "") for child in node)
    return " ".join(words.split()) if node.tag == "entry" else words


def rows(page):
    """Cells of each row of "Rules"; of a row that is continued, all of it."""
    xml = subprocess.run(["rst2xml", "--quiet", ROOT / f"Documentation/mm/{page}.rst"], capture_output=True, check=True)
    rules = next(s for s in ElementTree.fromstring(xml.stdout).iter("section") if s.findtext("title") == "Rules")
    found = []
    for row in rules.find("table").iterfind("tgroup/tbody/row"):
        cells = [text_of(entry) for entry in row.iterfind("entry")]
        if cells[0]:
            found.append(cells)
        else:
            found[-1] = [f"{old} {new}".strip() for old, new in zip(found[-1], cells)]
    return found


def source(tree):
    """All that can have a hook or a KUnit case: our files, and those of the patched tree that the series changes.

    Without comments and strings.
    """
    files = [f for top in CODE for f in sorted((ROOT / top).rglob("*")) if f.suffix in (".c", ".h", ".rs")]
    changed = (re.findall(r"^\+\+\+ b/(\S+\.[ch])$", f.read_text("utf-8"), re.M)
               for f in (ROOT / "patches").glob("*/*.patch"))
    files += [tree / name for name in sorted({name for names in changed for name in names})]
    return "\n".join(PROSE.sub(" ", f.read_text(encoding="utf-8")) for f in files)


def has_hook(name, code):
    """do_wp_page is defined or called; of a type, Ranges::add is defined."""
    scope, _, name = name.rpartition("::")
    return bool(re.search(rf"\bfn {name}\b" if scope else rf"\b{name}\s*\(", code))


def kunit_cases(code):
    modules = re.findall(r"^#\[kunit_tests\(\w+\)\]\nmod \w+ \{\n(.*?)^\}", code, re.M | re.S)
    return {name for body in modules for name in re.findall(r"#\[test\]\s+fn (\w+)\(\)", body)}


def has_case(program, case):
    """An entry of the program's table."""
    file = PROGRAMS / f"{program}.c"
    return file.exists() and bool(re.search(rf'\{{ (?:\.name = )?"{case}",', file.read_text(encoding="utf-8")))


def cases_of(page, tests):
    """(program, case) of "program: case, case (a), if that; case; program: case": a part without one has the last."""
    program = None
    for part in tests.split("; "):
        *named, cases = part.split(": ")
        if named:
            program = named[0] if named[0].startswith("tlb_rs") else f"{page}_{named[0]}"
        for case in re.split(r", (?:if|with) ", cases)[0].split(", "):
            yield program, re.sub(r" \([ax]\)$", "", case)


def has_test(page, name, code):
    """A literal of the column of tests."""
    if name.endswith((".rs", ".litmus")):
        return any((ROOT / "verify").glob(f"litmus/{name}" if name.endswith("litmus") else f"tests/{Path(name).name}"))
    return (PROGRAMS / f"{name}.c").exists() or has_case(f"{page}_pool", name) or name in kunit_cases(code)


def faults(page, removals, tree):
    """(a check, what is wrong) for each row, and for the rules that the table leaves out; removals: sabotage.REMOVALS."""
    code = source(tree)
    rules = {rule for r in removals if r.mechanism == page for rule in r.rules.split(",")}
    documented = set()
    for number, (*hazard, hook, tests) in enumerate(rows(page), 1):
        # migrc's table has the name in front.
        names = [hazard[0]] if len(hazard) > 1 else LITERAL.findall(" ".join(re.findall(r"\[(.*?)\]", tests)))
        named = LITERAL.findall(re.sub(r"\[.*?\]", "", tests))
        other = tests.startswith("see ") and tests.removeprefix("see ")
        cases = [] if other or len(hazard) == 1 else list(cases_of(page, tests))
        wrong = [f"no {name}()" for name in re.findall(r"([\w:]+)\(\)", hook) if not has_hook(name, code)]
        wrong += [f"no rule {name}" for name in names if name not in rules]
        wrong += [f"no {name}" for name in named if not has_test(page, name, code)]
        wrong += [f"no {program} --case {case}" for program, case in cases if not has_case(program, case)]
        if not (named or cases or other in documented):
            wrong.append("no test")
        documented.update(names)
        yield f"{page}.rst, rule {number}: {hook}", wrong
    yield f"{page}.rst has every rule that can be removed", sorted(rules - documented)
