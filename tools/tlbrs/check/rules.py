# SPDX-License-Identifier: GPL-2.0
"""The tables of rules, verify/rules/*.toml, and whether the code, the tests and the proofs are what they say.

usage: tlb-rs rules --check [TREE] | --write

--check: exit status 1 if a hook has no comment, a comment no rule, a rule no test and no proof, a name in skip_hook no
rule or the reverse, if a test or a proof does not exist, or if the page is not what --write makes of the tables.
--write: Documentation/mm/tlb_rules.rst. TREE is a patched kernel tree; build/7.3/linux if none is named.

    [reuse]                                             the name, in comments behind that of the file
    hazard = "A write fault makes the page writable."
    hooks = ["do_wp_page"]                              each has a comment "rule: migrc/reuse: why"; also Ranges::add
    tests = ["migrc_stale: reuse (x86_64), with type"]  program: case, on this architecture, and what is removed with it;
                                                        "with kswapd and round": both of them
    remove = "reuse"                                    in skip_hook; of several, that which the case is called
    why_not_removed.arm64 = "..."                       where no test sees it removed; without remove, for all of them
    proofs = ["migrc.rs: a_write_fault_flushes_first"]  a file of verify/tests, all of it or one test; *.litmus, of
                                                        verify/litmus; "KUnit: case"; or "program: case"

sabotage.py removes each name, and has each of the tests see it.
"""

import dataclasses
import functools
import re
import sys
import textwrap
import tomllib
from pathlib import Path

from tlbrs.guest.programs import own as sources_of
from tlbrs.kernel.common import ROOT, Fail

MECHANISMS = ("tlb_batch", "restore", "mkclean", "huge", "migrate_device", "migrc", "hvo")
# Where each can be chosen.
ARCHES = {**dict.fromkeys(MECHANISMS, ("arm64", "x86_64")), "hvo": ("arm64",)}
# Whose skip_hook has the names of another one.
SKIPS = dict.fromkeys(("restore", "mkclean", "huge", "migrate_device"), "tlb_batch")
PAGE = "Documentation/mm/tlb_rules.rst"
PROGRAMS = "tools/testing/selftests/mm"
CODE = ("arch", "include", "mm", "rust", "drivers")
KEYS = {"hazard": str, "hooks": list, "tests": list, "remove": (str, list), "why_not_removed": (str, dict),
        "proofs": list}
TEST = re.compile(r"(\w+)(?:: ([\w-]+))?(?: \((arm64|x86_64|SUITE=\w+)\))?(?:, with (\w+(?: and \w+)*))?")
COMMENT = re.compile(r"^.*?(?:/\*+|//[/!]?|^\s*\*)\s*rule: ([^\s:]+):?(?=\s|$)(.*)$")
# Where a name proves nothing; a quotation mark in quotes begins no string.
PROSE = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])'", re.S)


@dataclasses.dataclass(frozen=True)
class Test:
    """An entry of tests."""
    text: str
    program: str
    case: str | None
    where: str | None       # an architecture, or SUITE=
    also: tuple             # what is removed with it

    @property
    def arches(self):
        """Where sabotage.py runs it; None: on all."""
        return None if self.where is None else (self.where,) if not self.where.startswith("SUITE=") else ()


@dataclasses.dataclass(frozen=True)
class Rule:
    """An entry of a table."""
    mechanism: str
    name: str
    hazard: str
    hooks: tuple = ()
    tests: tuple = ()
    remove: tuple = ()
    why: dict = dataclasses.field(default_factory=dict, hash=False)     # by architecture
    proofs: tuple = ()

    @property
    def title(self):
        return f"{self.mechanism}/{self.name}"

    @property
    def skips(self):
        """The mechanism in whose skip_hook the names are."""
        return SKIPS.get(self.mechanism, self.mechanism)

    def removed_by(self, test):
        """The names that a test has removed."""
        own = [name for name in self.remove if len(self.remove) == 1 or name == test.case]
        return (*own, *test.also)


class Wrong(Fail):
    """A table that cannot be read."""


def parsed(text, title):
    if not (m := TEST.fullmatch(text)):
        raise Wrong(f"{title}: tests has '{text}', which is not 'program: case (architecture), with name'")
    *what, also = m.groups()
    return Test(text, *what, tuple(also.split(" and ")) if also else ())


def rule_of(mechanism, name, entry):
    title = f"{mechanism}/{name}"
    for key, value in entry.items():
        if key not in KEYS or not isinstance(value, KEYS[key]) or not value:
            raise Wrong(f"{title}: {key} is no key, or empty, or of another type")
    remove, why = entry.get("remove", []), entry.get("why_not_removed", {})
    return Rule(mechanism, name, " ".join(entry.get("hazard", "").split()), tuple(entry.get("hooks", ())),
                tuple(parsed(text, title) for text in entry.get("tests", ())),
                (remove,) if isinstance(remove, str) else tuple(remove),
                dict.fromkeys(ARCHES[mechanism], why) if isinstance(why, str) else why, tuple(entry.get("proofs", ())))


def load(root=ROOT):
    """[Rule], in the order of the tables."""
    found = []
    for mechanism in MECHANISMS:
        with (root / f"verify/rules/{mechanism}.toml").open("rb") as file:
            found += [rule_of(mechanism, name, entry) for name, entry in tomllib.load(file).items()]
    return found


# ---- hooks

def functions_of_c(lines):
    """[(name, first line of its head, last line)], counted from 0."""
    found = []
    for at, line in enumerate(lines):
        if line.rstrip() != "{":
            continue
        head = at
        while head and lines[head - 1].strip() and not re.search(r"^[#}]|[;]\s*$|\*/\s*$", lines[head - 1]):
            head -= 1
        if m := re.search(r"\b(\w+)\s*\(", " ".join(lines[head:at])):
            end = next((n for n in range(at, len(lines)) if lines[n].startswith("}")), len(lines) - 1)
            found.append((m[1], head, end))
    return found


def functions_of_rust(lines):
    """The same; that of a type with its name in front."""
    found, scope = [], ""
    for at, line in enumerate(lines):
        if m := re.match(r"(?:unsafe )?(?:impl|trait)\b(.*)\{$", line):
            words = m[1]
            while words != (words := re.sub(r"<[^<>]*>", "", words)):
                pass
            scope = words.split(" where ")[0].split()[-1] + "::"
        elif line.rstrip() == "}":
            scope = ""
        if m := re.match(r"(\s*)(?:pub(?:\([^)]*\))? )?(?:const )?(?:unsafe )?(?:extern \"C\" )?fn (\w+)", line):
            end = next((n for n in range(at, len(lines)) if re.match(rf"{m[1]}\}}", lines[n])), at)
            found.append((scope * bool(m[1]) + m[2], at, end))
    return found


def comments(name, text):
    """[(what is named, whether it says why, the function that it is in or above, or None)] of a file."""
    lines = text.split("\n")
    if not any("rule: " in line for line in lines):
        return []
    functions, found = (functions_of_rust if name.endswith(".rs") else functions_of_c)(lines), []
    for at, line in enumerate(lines):
        if not (m := COMMENT.match(line)):
            continue
        end = at
        if name.endswith(".rs"):
            while end + 1 < len(lines) and re.match(r"\s*(?://|#\[)", lines[end + 1]):
                end += 1
        else:
            while "*/" not in lines[end] and end + 1 < len(lines):
                end += 1
        around = [f for f, head, last in functions if head <= at <= last]
        above = [f for f, head, _ in functions if head == end + 1]
        found.append((m[1], bool(m[2].strip(" */")), (above or around or [None])[-1]))
    return found


def sources(tree, root=ROOT):
    """{name: text} of all that can have a hook: our files, and those of the patched tree that the series changes."""
    files = {str(f.relative_to(root)): f for top in CODE for f in sorted((root / top).rglob("*"))
             if f.suffix in (".c", ".h", ".rs")}
    for patch in sorted((root / "patches").glob("*/*.patch")):
        for name in re.findall(r"^\+\+\+ b/(\S+\.[ch])$", patch.read_text("utf-8"), re.M):
            files.setdefault(name, tree / name)
    return {name: f.read_text("utf-8") for name, f in files.items()}


def wrong_hooks(rules, texts):
    """{title of a rule, or of none: what is wrong}"""
    named = {(rule.title, hook) for rule in rules for hook in rule.hooks}
    wrong = {rule.title: ["no hook"] * (not rule.hooks) for rule in rules}
    seen = set()
    for name, text in texts.items():
        for title, says_why, function in comments(name, text):
            if title not in wrong:
                wrong.setdefault("comments", []).append(f"{name} names {title}, which is no rule")
                continue
            if not says_why:
                wrong[title].append(f"{name} does not say why")
            if (title, function) not in named:
                wrong[title].append(f"{name} has it in {function or 'no function'}, which is none of its hooks")
            seen.add((title, function))
    for title, hook in sorted(named - seen):
        wrong[title].append(f"no comment in {hook}()")
    return wrong


# ---- names, tests, proofs

def skip_names(texts):
    """{mechanism: names in skip_hook}: of a list X_HOOKS(EM), or of an array."""
    found = {mechanism: set() for mechanism in MECHANISMS}
    for mechanism in MECHANISMS:
        upper = mechanism.upper()
        for text in texts.values():
            found[mechanism] |= set(re.findall(rf"\[{upper}_HOOK_\w+\]\s*=\s*\"(\w+)\"", text))
            for entries in re.findall(rf"(?m)^#define {upper}_HOOKS\(EM\)((?:.*\\\n)*.*)", text):
                found[mechanism] |= set(re.findall(r"\bEM\(\w+, \"(\w+)\"\)", entries))
    return found


@functools.cache
def kunit_cases(root=ROOT):
    text = "\n".join(f.read_text("utf-8") for top in ("rust", "mm") for f in sorted((root / top).rglob("*.rs")))
    modules = re.findall(r"^#\[kunit_tests\(\w+\)\]\nmod \w+ \{\n(.*?)^\}", PROSE.sub(" ", text), re.M | re.S)
    return {name for body in modules for name in re.findall(r"#\[test\]\s+fn (\w+)\(\)", body)}


def has_case(program, case, root=ROOT):
    """A test or a variant of the program's fixtures, or an entry of its table; without a case, the program."""
    entry = re.compile(rf'\{{ (?:\.name = )?"{case}",|^(?:TEST_F(?:_TIMEOUT)?|FIXTURE_VARIANT_ADD)'
                       rf'\({program}\w*, {case}\b', re.M)
    files = sources_of(root / PROGRAMS, program)
    return bool(files) if case is None else any(entry.search(file.read_text("utf-8")) for file in files)


def cases_of_proof(proof, root=ROOT):
    """(kind, names of what it consists of): litmus, verify, kunit or programs; none if it does not exist."""
    if proof.endswith(".litmus"):
        return "litmus", [f.stem for f in sorted((root / "verify/litmus").glob(proof))]
    name, _, case = proof.partition(": ")
    if name.endswith(".rs"):
        file = root / "verify/tests" / name
        tests = re.findall(r"#\[test\]\s*(?:#\[.*\]\s*)*fn (\w+)", file.read_text("utf-8") if file.exists() else "")
        return "verify", [f"{file.stem}: {test}" for test in tests if case in ("", test)]
    if name == "KUnit":
        return "kunit", [case] * (case in kunit_cases(root))
    return "programs", [f"{name}: {case}"] * (bool(case) and has_case(name, case, root))


def wrong_entry(rule, skipped, root=ROOT):
    """What is wrong with a rule by itself. skipped: names in skip_hook of its mechanism."""
    wrong = ["no hazard"] * (not rule.hazard) + ["no test and no proof"] * (not rule.tests and not rule.proofs)
    wrong += [f"no test {test.text}" for test in rule.tests if not has_case(test.program, test.case, root)]
    wrong += [f"no proof {proof}" for proof in rule.proofs if not cases_of_proof(proof, root)[1]]
    wrong += [f"no {name} in skip_hook" for name in rule.remove if name not in skipped]
    wrong += [f"no {name} in skip_hook" for test in rule.tests for name in test.also if name not in skipped]
    wrong += [f"{test.text} removes nothing" for test in rule.tests if rule.remove and not rule.removed_by(test)]
    if not rule.remove and set(rule.why) != set(ARCHES[rule.mechanism]):
        wrong.append("neither remove nor why_not_removed")
    for name in rule.remove:
        seen = {arch for test in rule.tests if name in rule.removed_by(test)
                for arch in (ARCHES[rule.mechanism] if test.arches is None else test.arches)}
        wrong += [f"nothing sees {name} removed on {arch}, and no reason" for arch in ARCHES[rule.mechanism]
                  if arch not in seen and arch not in rule.why]
    return wrong


def faults(tree, root=ROOT):
    """(a check, what is wrong) for each table and for the page."""
    try:
        rules = load(root)
    except (Wrong, OSError, tomllib.TOMLDecodeError) as error:
        yield "tables of rules can be read", [str(error)]
        return
    texts = sources(Path(tree), root)
    skipped, hooks = skip_names(texts), wrong_hooks(rules, texts)
    for mechanism in MECHANISMS:
        wrong = [f"{rule.name}: {what}" for rule in rules if rule.mechanism == mechanism
                 for what in (*hooks[rule.title], *wrong_entry(rule, skipped[rule.skips], root))]
        named = {name for rule in rules if rule.skips == mechanism for name in rule.remove}
        wrong += [f"no rule removes {name}" for name in sorted(skipped[mechanism] - named)]
        yield f"rules of {mechanism}: hooks, tests and proofs", wrong
    yield "comments name rules", hooks.get("comments", [])
    page = root / PAGE
    yield f"{PAGE} is as make rules writes it", [] if page.exists() and page.read_text("utf-8") == written(rules) else \
        ["run make rules"]


# ---- the page

HEAD = """\
.. SPDX-License-Identifier: GPL-2.0

======================
TLB maintenance: rules
======================

.. Written by "make rules" of tlb-rs from verify/rules/*.toml: edit these.

Each rule has a name, hooks that obey it, and a test or a proof. Each function in the column of
hooks has a comment ``rule: mechanism/name: why``, so grep leads from one to the other. The
mechanisms are described in Documentation/mm/tlb_batch.rst, Documentation/mm/migrc.rst and
Documentation/mm/hvo.rst. There are four more groups of rules. Those of restore are about large
folios that are mapped again after their migration, or become accessible again after a NUMA hint
fault. Those of mkclean are about dirty folios that are written to disk. Those of huge are about
THPs whose PMDs change. Those of migrate_device are about pages that go to a device with memory of
its own. Documentation/mm/tlb_maintenance_testing.rst says how the tests work and what they do not
show.

A test is a program in ``tools/testing/selftests/mm``, with its cases. To remove a rule, write its
name to ``skip_hook`` in the debugfs directory of its mechanism. The rules of restore, mkclean, huge
and migrate_device are in the directory of tlb_batch. While a rule is removed, each of its tests
fails. If other names have to be removed instead, they are in brackets behind the test. If a rule
cannot be removed, or not on one architecture, the reason follows.
``*.rs`` and ``*.litmus`` are in ``verify/`` of tlb-rs.
"""
WIDTH = 100


def cell(first, text):
    return textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent="       ", break_long_words=False,
                         break_on_hyphens=False) if text else first.rstrip()


def names(words):
    return ", ".join(f"``{word}``" for word in words)


def shown_tests(rule):
    """Tests, those of a program together, and why there are no others."""
    programs = {}
    for test in rule.tests:
        removed = rule.removed_by(test) if rule.remove else ()
        case = f"{test.case or ''} ({test.where})" if test.where else test.case
        programs.setdefault((test.program, removed if removed != (rule.name,) else ()), []).append(case)
    parts = [f"``{program}``" + (": " if cases[0] and cases[0][0] != " " else "") + ", ".join(filter(None, cases)) +
             (f" [{names(removed)}]" if removed else "") for (program, removed), cases in programs.items()]
    if rule.remove:
        whys = [f"{arch}: {why}" for arch, why in rule.why.items()]
    else:
        whys = [f"Not removed: {why}" for why in dict.fromkeys(rule.why.values())]
    return ["; ".join(parts)] * bool(parts) + whys


def shown_proofs(rule):
    files = {}
    for proof in rule.proofs:
        file, _, case = proof.partition(": ")
        files.setdefault(file, []).append(case)
    return ["; ".join((file if file == "KUnit" else f"``{file}``") + (": " if cases[0] else "") + ", ".join(cases)
                      for file, cases in files.items())] * bool(files)


def written(rules):
    """The page."""
    out = [HEAD]
    for mechanism in MECHANISMS:
        out += [f"{mechanism}\n{'=' * len(mechanism)}\n",
                ".. list-table::\n   :header-rows: 1\n   :widths: 12 38 22 28\n",
                "   * - Rule\n     - What breaks without it, and what holds\n     - Hooks\n     - Tests and proofs"]
        for rule in (rule for rule in rules if rule.mechanism == mechanism):
            shown = ". ".join([*shown_tests(rule), *(f"Proofs: {text}" for text in shown_proofs(rule))])
            out.append("\n".join([cell("   * - ", f"``{rule.name}``"), cell("     - ", rule.hazard),
                                  cell("     - ", ", ".join(f"``{hook}()``" for hook in rule.hooks)),
                                  cell("     - ", shown)]))
        out[-1] += "\n"
    return "\n".join(out)


def main():
    if sys.argv[1:] == ["--write"]:
        (ROOT / PAGE).write_text(written(load()), encoding="utf-8")
        return 0
    if sys.argv[1:2] != ["--check"] or len(sys.argv) > 3:
        sys.exit(__doc__)
    tree = Path(sys.argv[2] if len(sys.argv) == 3 else ROOT / "build/7.3/linux")
    if not (tree / "mm").is_dir():
        sys.exit(f"tlb-rs rules: no kernel tree {tree}: make source, or name one")
    found = list(faults(tree))
    for name, wrong in found:
        print(f"{'not ok' if wrong else 'ok'} - {name}" + "".join(f"\n  {what}" for what in wrong))
    return 1 if any(wrong for _, wrong in found) else 0
