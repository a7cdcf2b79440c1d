# SPDX-License-Identifier: GPL-2.0
"""Every rule that fault injection can remove, and the tests that see it: the matrix of `make sabotage`.

Which name in debugfs skip_hook removes a rule, and which tests see that, is in verify/rules, see check/rules.py.
Here is how they are run. A removal is a command that removes a rule and passes if something then breaks. Which names
there are is read from the guest: one without a removal and without a reason in the table is a hole, and fails.
"""

import dataclasses
import re

from tlbrs.check import rules as tables
from tlbrs.guest import console
from tlbrs.suites.harness import CORTEX_A715, TIERS, ZONES

ARCHES = ("arm64", "x86_64")


@dataclasses.dataclass(frozen=True)
class Removal:
    """Rules (more than one: they stand in for each other), and a command that removes them."""
    mechanism: str
    rules: str
    command: str
    arches: tuple = ARCHES
    own: bool = False       # what it shows on x86_64 is of x86_64: not left to SUITE=sabotage_all
    says: tuple = ()        # the kernel has to report it, in these words
    both: bool = False      # and the command has to pass
    oracle: bool = False    # the oracle has to see it, and nothing else looks
    uaf: bool = False       # says is where something is used after it was freed
    boot: tuple = ()        # (option, value) of guest.boot(); a boot serves all that need nothing else

    @property
    def program(self):
        return re.search(r"\b(?:tlb_batch|migrc|hvo|tlb_rs)_(\w+)", self.command)[1]

    @property
    def case(self):
        """The one that it asks for, or None."""
        found = re.search(r" (?:--case|--act|-t|-v) (\S+)", self.command)
        return found and found[1]

    @property
    def label(self):
        """What is run, in a few letters."""
        strategy = re.search(r"hvo\.strategy=(\S+)", dict(self.boot).get("append", ""))
        words = [self.program, *filter(None, (self.case, strategy and strategy[1]))]
        return " ".join(words) + " under the oracle" * self.oracle

    @property
    def alone(self):
        """A boot that fails is all that there is to see."""
        return bool(self.says) or self.oracle


def options(**boot):
    return tuple(sorted(boot.items()))


TLB_BATCH_BOOT = options(disk="256M", swap="256M")
# On a disk: what is read back from zram leaves the swap cache at once.
MIGRC_BOOT = options(disk="verity:256M", swap="disk:256M", mte=True)
LARGE_BOOT = options(mem="4G")
BOOTS = {"tlb_batch": TLB_BATCH_BOOT, "migrc": MIGRC_BOOT}


def way(command, **more):
    """How a test is run without a rule: its command, with the names instead of SKIP, and fields of Removal."""
    return command, more


def reported(rounds, choose="-v", **more):
    """A debug kernel sees it, too."""
    return way(f"env TLB_SKIP=SKIP TLB_ROUNDS={rounds} TLB_EXPECT=1 migrc_stale {choose} CASE",
               says=("WARNING: mm/migrc/migrc_debug.c",), both=True, **{"boot": (), **more})


def hvo(says, append="panic_on_warn=1"):
    """The first report is the one: struct pages that are not what they should be may lead anywhere."""
    return way("env TLB_SKIP=SKIP hvo_pool -t CASE", says=(says,),
               boot=options(mem="4G", append=f"kunit.enable=0 {append}"))


TABLE = "env TLB_DIR=/mnt TLB_SKIP=SKIP TLB_EXPECT=2 tlb_batch_refault -v CASE"
REFAULT = "env TLB_DIR=/mnt TLB_ROUNDS=20 TLB_SKIP=SKIP TLB_EXPECT=5 tlb_batch_refault -v CASE"
# By "program: case [names]", as in the tables: what is left out is for all others. In some ways.
WAYS = {
    "tlb_batch_stale_litmus": [way("tlb_batch_stale_litmus --rounds 200 --skip SKIP --expect-stale 100", own=True)],
    "tlb_batch_secondary": [way("env TLB_ROUNDS=4 TLB_SKIP=SKIP TLB_EXPECT=100 tlb_batch_secondary")],
    "tlb_batch_dirty": [way("env TLB_ROUNDS=30 TLB_SKIP=SKIP TLB_EXPECT=1000 tlb_batch_dirty")],
    # One thread emulates all CPUs: without the delay no writer ran before the flush at the end in 1 of 8 runs.
    "tlb_batch_dirty [dirty]": [way("env TLB_ROUNDS=30 TLB_DELAY=5000 TLB_SKIP=SKIP TLB_EXPECT=1000 tlb_batch_dirty",
                                    own=True)],
    "tlb_batch_move_bench": [way("sh -c 'echo SKIP > /sys/kernel/debug/tlb_batch/skip_hook; "
                                 "tlb_batch_move_bench --pages 128 --readers 2 --touch'",
                                 oracle=True, boot=options(oracle=True))],
    "tlb_batch_mark": [way("env TLB_ROUNDS=20 TLB_SKIP=SKIP TLB_EXPECT=5 tlb_batch_mark")],
    "tlb_batch_putback": [way("env TLB_SKIP=SKIP TLB_EXPECT=1 tlb_batch_putback")],
    "tlb_batch_restore": [way("env TLB_SKIP=SKIP tlb_batch_restore -t CASE")],
    # A page that is there again was not counted.
    "tlb_batch_restore: zapped": [way("env TLB_SKIP=SKIP tlb_batch_restore -t CASE", says=("Bad rss-counter state",),
                                      both=True, boot=())],
    "tlb_batch_restore: exclusive": [way("env TLB_SKIP=SKIP tlb_batch_restore -t CASE", says=("mm/rmap.c",), both=True,
                                         boot=())],
    "tlb_batch_mkclean": [way("env TLB_SKIP=SKIP tlb_batch_mkclean -t CASE")],
    # A page that is mapped again was not counted.
    "tlb_batch_mkclean: holes": [way("env TLB_SKIP=SKIP tlb_batch_mkclean -t CASE", says=("Bad page map",), both=True)],
    "tlb_batch_huge": [way("env TLB_SKIP=SKIP tlb_batch_huge -t CASE")],
    "tlb_batch_device": [way("env TLB_SKIP=SKIP tlb_batch_device -t CASE")],
    "tlb_batch_exit": [way("env TLB_ROUNDS=3 TLB_SKIP=SKIP tlb_batch_exit", uaf=True, says=("tlb_batch_flush_slow",), boot=())],
    "tlb_batch_wait": [way("env TLB_ROUNDS=3 TLB_SKIP=SKIP TLB_EXPECT=1 tlb_batch_wait")],
    "tlb_batch_task": [way("env TLB_SKIP=SKIP tlb_batch_task -t CASE")],
    "tlb_batch_refault": [way(REFAULT)],
    # x86_64 has the window of lazyfree without the batch, too.
    **{f"tlb_batch_refault: {case}": [way(REFAULT, **more)]
       for case, more in (("poison", {}), ("lazyfree", {}), ("swap", {"boot": MIGRC_BOOT}))},
    # With range operations arm64 flushes all that the table led to: the whole of it is one range.
    # And the emulated TLB stayed so small in 2 of 9 runs that QEMU flushed all of it for one page.
    "tlb_batch_refault: table (arm64)": [way(f"sh -c 'for i in 1 2 3 4; do {TABLE} && exit; done; exit 1'",
                                             boot=options(cpu="neoverse-n1", **dict(TLB_BATCH_BOOT)))],
    "tlb_batch_refault: table (x86_64)": [way(TABLE)],

    "migrc_stale": [way("env TLB_SKIP=SKIP TLB_ROUNDS=4 TLB_EXPECT=1 migrc_stale -v CASE")],
    **{f"migrc_stale: {case}": [way("env TLB_SKIP=SKIP TLB_ROUNDS=4 TLB_EXPECT=1 migrc_stale -t CASE")]
       for case in ("mixed", "notifier", "block")},
    # There a child exits, and its flush is of all ASIDs where QEMU emulates arm64.
    **{f"migrc_stale: {case}": [way("env TLB_SKIP=SKIP TLB_ROUNDS=4 TLB_EXPECT=1 migrc_stale -v CASE", own=True)]
       for case in ("reuse", "common")},
    # No emulated CPU minds two memory types.
    "migrc_stale: type": [reported(4, "-t", boot=options(mte=True))],
    "migrc_stale: exec": [reported(4, "-t", boot=options(cpu=CORTEX_A715))],
    "migrc_stale: writable": [reported(8)],
    "migrc_stale: pending": [reported(24)],
    "migrc_stale: fork": [reported(12)],
    "migrc_blocks": [way("env TLB_SKIP=SKIP migrc_blocks -t CASE", boot=())],
    "migrc_blocks: stale": [way("env TLB_SKIP=SKIP TLB_EXPECT=1 migrc_blocks -t CASE")],
    # A debug kernel sees it, too.
    "migrc_blocks: cut": [way("env TLB_SKIP=SKIP migrc_blocks -t CASE", boot=(), both=True,
                              says=("changes its size before its flush",))],
    "migrc_blocks: unlike": [way("env TLB_SKIP=SKIP migrc_blocks -t CASE", boot=(), both=True,
                                 says=("changes its size before its flush",))],
    "migrc_blocks: folded": [way("env TLB_SKIP=SKIP migrc_blocks -t CASE", boot=(), both=True,
                                 says=("changes its size before its flush",))],
    "migrc_blocks: pinned": [way("env TLB_SKIP=SKIP migrc_blocks -t CASE", boot=(), both=True,
                                 says=("changes its size before its flush",))],
    "migrc_file": [way("env TLB_SKIP=SKIP TLB_ROUNDS=4 TLB_EXPECT=1 migrc_file -v CASE")],
    "migrc_file: race": [way("env TLB_SKIP=SKIP TLB_ROUNDS=50 TLB_EXPECT=1 migrc_file -v CASE")],
    "migrc_file: idle": [way("env TLB_SKIP=SKIP TLB_ROUNDS=1 TLB_EXPECT=1 migrc_file -v CASE")],
    "migrc_readmostly": [way("env TLB_SKIP=SKIP TLB_EXPECT=1 migrc_readmostly -t CASE")],
    "migrc_bounds": [way("env TLB_SKIP=SKIP TLB_EXPECT=1 migrc_bounds -t CASE")],
    "migrc_bounds: exit": [way("env TLB_SKIP=SKIP migrc_bounds -t CASE", uaf=True, says=("migrc",), boot=())],
    "migrc_bounds: pressure": [way("env TLB_SKIP=SKIP TLB_ROUNDS=1 TLB_EXPECT=1 migrc_bounds -t CASE",
                                   boot=options(mem="768M"))],
    # No memory that was there at boot goes offline on arm64.
    "migrc_bounds: offline": [way("env TLB_SKIP=SKIP TLB_EXPECT=1 migrc_bounds -t CASE", own=True)],
    "migrc_tier": [way("sh -c 'env TLB_SKIP=SKIP migrc_tier -t CASE ; [ $? = 1 ]'", boot=options(**TIERS))],
    **{f"migrc_tier: {case}": [way("sh -c 'env TLB_DIR=/mnt TLB_SKIP=SKIP migrc_tier -t CASE ; [ $? = 1 ]'",
                                   boot=options(disk="256M", **ZONES))] for case in ("zones", "boost")},
    # On x86_64 vm.migrc_enable does not change while something moves, see tlb_rs_patching_is_safe().
    "tlb_rs_abuse": [way("env TLB_SKIP=SKIP tlb_rs_abuse -v CASE", boot=LARGE_BOOT)],

    "hvo_pool: pool": [hvo("changes of entries that other CPUs may use")],
    "hvo_pool: pool [tlbi]": [hvo("stale translations of vmemmap")],
    "hvo_pool: readers": [hvo("stale translations of vmemmap")],
    "hvo_pool: young": [way("env TLB_SKIP=SKIP hvo_pool -t CASE", boot=LARGE_BOOT)],
    **{f"hvo_pool: {case}": [way("sh -c 'env TLB_SKIP=SKIP hvo_pool -t CASE; [ $? = 1 ]'", boot=LARGE_BOOT)]
       for case in ("marks", "writes", "heads")},
    "hvo_boot": [way("sh -c 'hvo_boot; [ $? = 1 ]'",
                     boot=options(mem="6G", append="kunit.enable=0 hvo_skip=wrprotect hugetlb_free_vmemmap=on "
                                                   "hugepagesz=1G hugepages=2"))],
    "hvo_pool: race": [hvo("write to read-only memory")],
    "hvo_pool: switch": [hvo("write to read-only memory")],
    "hvo_pool: hotplug": [hvo("changes of entries that other CPUs may use")],
    **{f"hvo_retry: {case}": [way("env TLB_SKIP=SKIP hvo_retry -t CASE", boot=LARGE_BOOT)]
       for case in ("needed", "surplus", "failed")},
    "hvo_pool: duty": [way("env TLB_SKIP=SKIP hvo_pool -t CASE", boot=LARGE_BOOT)],
    # stop_machine() has interrupts disabled, so that only pseudo-NMIs stop a CPU.
    "hvo_pool: panic": [hvo("failed to stop secondary CPUs"),
                        hvo("failed to stop secondary CPUs",
                            append="irqchip.gicv3_pseudo_nmi=1 hvo.strategy=stop_machine")],
    # The task is switched away from with everything masked.
    "hvo_pool: oops": [hvo("Unexpected DAIF value")],
}


def ways(test, skip):
    """Those of a test of the tables; skip: the names that it has removed."""
    case = f"{test.program}: {test.case}" if test.case else test.program
    for key in (f"{case} [{skip}]", f"{case} ({test.where})", case, test.program):
        if key in WAYS:
            return WAYS[key]
    raise tables.Wrong(f"sabotage.py does not know how to run {test.text} without {skip}")


def removals_of(rules):
    """Of all tests that see a rule removed; what several rules have is there once."""
    found = {}
    for rule in rules:
        for test in rule.tests if rule.remove else ():
            skip = rule.removed_by(test)
            arches = tables.ARCHES[rule.mechanism] if test.arches is None else test.arches
            # Of a suite that has to be asked for: none.
            for number, (command, more) in enumerate(ways(test, ",".join(skip)) if arches else ()):
                words = re.sub(r"\bSKIP\b", ",".join(skip), re.sub(r"\bCASE\b", test.case or "", command))
                more = {"boot": BOOTS.get(rule.skips, ()), **more}
                found.setdefault((rule.skips, test.program, test.case, arches, frozenset(skip), number),
                                 Removal(rule.skips, ",".join(skip), words, arches, **more))
    return tuple(found.values())


RULES = tables.load()
REMOVALS = removals_of(RULES)


def reviewed(arch, mechanism, name):
    """(why no test sees this name removed, what shows the rule instead), or None."""
    for rule in RULES:
        if rule.skips == mechanism and name in rule.remove and arch in rule.why:
            return rule.why[arch], *rule.proofs
    return None


def shown_by(rule):
    """What has to pass: proofs and, where the rule is not removed, tests."""
    return (*rule.proofs, *(test.text for test in rule.tests if not rule.remove))


def results(test):
    """(the suite that runs a proof or a test, the names of its results, see is_of()).

    None: the names of the results do not tell. KUnit cases are counted by kunit.py.
    """
    kind, cases = tables.cases_of_proof(test)
    if kind == "litmus":
        return "verify", [f"litmus: {case}" for case in cases]
    if kind == "verify":
        return "verify", cases
    if kind == "kunit":
        return None, cases
    program, _, case = re.sub(r" \(.*", "", test).partition(": ")
    there = [test] * tables.has_case(program, case or None)
    if not case:
        return None, there
    return "programs", [f"{program}: {case}"] * len(there)


def is_of(name, result):
    """Whether a suite calls a result so: "stale: case", or "fixture.variant.case" of a fixture with the program's name."""
    program, _, case = name.partition(": ")
    short = re.sub("^(tlb_batch|tlb_rs|migrc|hvo)_", "", program)
    return result.endswith(name) or \
        bool(re.search(rf" (?:{short}: {case}|{program}\w*\.(?:\w+\.)?{case}(?:\.\w+)?)$", result))


def missing(tests, ran):
    """Of these tests, what is not there, or did not pass in a suite of this run.

    ran: {suite: (passed, failed, skipped)}
    """
    bad = []
    for test in tests:
        suite, names = results(test)
        if not names:
            bad.append(f"no {test}")
        for name in names if suite in ran else ():
            passed, failed = (any(is_of(name, result) for result in found) for found in ran[suite][:2])
            if any(result.startswith(f"{name} # SKIP no herd7") for result in ran[suite][2]):
                bad.append("not run: herd7 is missing")
            elif failed or not passed:
                bad.append(f"{name} {'failed' if failed else 'was not run'}")
    return list(dict.fromkeys(bad))


# In the guest: after what was removed, whether its command passed; and which rules there are.
JOB = r"""
removed() {
	"$@"
	echo "{\"removal\":$number,\"status\":$?}"
}
rules() {
	for mechanism in tlb_batch migrc hvo; do
		[ ! -e /sys/kernel/debug/$mechanism/skip_hook ] || tr -d '[]' < /sys/kernel/debug/$mechanism/skip_hook |
			sed "s/.*/{\"mechanism\":\"$mechanism\",\"rule\":\"&\"}/"
	done
}
"""


def some(arch):
    """The first removal of each mechanism and program, and what is this architecture's own; arm64 stands for both."""
    mine = [r for r in REMOVALS if arch in r.arches]
    first = {(r.mechanism, r.program): r for r in reversed(mine)} if arch == "arm64" else {}
    return [r for r in mine if r.own or r in first.values()]


def boots(arch, every):
    """[(kernel arguments and the like, removals)]"""
    groups = {}
    for number, removal in enumerate([r for r in REMOVALS if arch in r.arches] if every else some(arch)):
        groups.setdefault((removal.boot, number if removal.alone else None), []).append(removal)
    return [(dict(boot), removals) for (boot, _), removals in groups.items()]


def job(removals):
    """The commands of one boot."""
    return JOB + "".join(f"number={REMOVALS.index(r)}\nremoved {r.command}\n" for r in removals) + "rules\n"


def skipped(removal, text):
    """Why its command showed nothing, if that is because it skipped its case: its status is 0, too. Or "".

    One that is skipped beside the case that it asks for, or beside one that was run, is none of this.
    """
    if not removal.says and (m := re.search(r"^Bail out! *(.*)", text, re.M)):
        return f"bailed out: {m[1]}"
    cases = re.findall(r"^(?:not )?ok \d.*", text, re.M)
    # Of a whole program it is the plan that says so, and of one that has no such case.
    skips = [line for line in cases if "# SKIP" in line] + re.findall(r"^1\.\.0(?: # SKIP.*|\s*$)", text, re.M)
    case = re.escape(removal.case or "")
    named = rf"^ok \d+ (?:\w+\.)+{case}(?:\.\w+)? # SKIP|# SKIP \w+:? {case}(?![-\w])"
    own = [line for line in skips if removal.case and re.search(named, line)]
    if not own and (not skips or set(cases) - set(skips)):
        return ""
    line = (own or skips)[0]
    if re.match(r"ok \d+ \w+\.", line):
        return "skipped: " + line.partition("# SKIP ")[2]
    before = re.split(r"^(?:not )?ok \d.*\n", text.partition(line)[0], flags=re.M)[-1]
    return "skipped: " + "; ".join([*re.findall(r"^# (.*)", before, re.M)[-1:], line.partition("# SKIP ")[2]])


def outcomes(text):
    """{number of a removal: (status of its command, why it was skipped or "")}, of a console."""
    output = "".join(re.split(r"^tlb-rs: job start$", console.joined(text), flags=re.M)[1:])
    parts = re.split(r'^\{"removal":(\d+),"status":(\d+)\}$', output, flags=re.M)
    return {int(number): (int(status), skipped(REMOVALS[int(number)], said))
            for said, number, status in zip(parts[::3], parts[1::3], parts[2::3])}


class Matrix:
    """What was seen, by architecture."""

    def __init__(self, ran):
        self.ran = ran      # see missing()
        self.rules = {}     # architecture: {(mechanism, rule)}, in the kernel's order
        self.seen = {}      # (architecture, removal): whether it was
        self.why = {}       # (architecture, removal): what kept its command from showing anything
        self.every = set()  # architectures of which all was run

    def read_rules(self, arch, records):
        found = ((r["mechanism"], r["rule"]) for r in records if "rule" in r)
        self.rules.setdefault(arch, {}).update(dict.fromkeys(rule for rule in found if rule[1] != "none"))

    def cell(self, arch, mechanism, rule):
        """(how a rule is covered, what is wrong with that)"""
        if (mechanism, rule) not in self.rules[arch]:
            return "-", ""
        removals = [r for r in REMOVALS if r.mechanism == mechanism and rule in r.rules.split(",") and arch in r.arches]
        missed = [" ".join([r.label, *([f"({why})"] if (why := self.why.get((arch, r))) else [])])
                  for r in removals if self.seen.get((arch, r)) is False]
        seen = [r.label + "".join(f" (and {other})" for other in r.rules.split(",") if other != rule)
                for r in removals if self.seen.get((arch, r))]
        if missed:
            text = "MISSED by " + ", ".join(missed)
            return text, text
        if seen:
            return ", ".join(seen), ""
        if why := reviewed(arch, mechanism, rule):
            return self.shown(why, why[1:])
        return ("not run", "not run" * (arch in self.every)) if removals else ("HOLE", "no removal")

    def shown(self, text, tests):
        bad = missing(tests, self.ran)
        return "; ".join([*text, *bad]), "; ".join(bad)

    def lines(self):
        """The matrix, and {what is wrong: the cells of which it is}."""
        lines, holes = [], {}

        def add(name, line, wrong):
            lines.append(line)
            if wrong:
                holes.setdefault(wrong, []).append(name)

        for mechanism, rule in dict.fromkeys(rule for rules in self.rules.values() for rule in rules):
            for arch in self.rules:
                text, wrong = self.cell(arch, mechanism, rule)
                if text != "-":
                    add(f"{arch} {mechanism} {rule}", f"{mechanism:10} {rule:9} {arch:7} {text}", wrong)
        for rule in RULES:
            if tests := shown_by(rule):
                text, wrong = self.shown(tests, tests)
                add(rule.title, f"{rule.mechanism:10} {rule.name}: {text}", wrong)
        return lines, holes
