# SPDX-License-Identifier: GPL-2.0
"""Every rule that fault injection can remove, and the tests that see it: the matrix of `make sabotage`.

A rule is a name in debugfs skip_hook of tlb_batch, migrc or hvo. A removal is a command that removes it and passes if
something then breaks. Which rules there are is read from the guest: one without a removal and without a reason here is
a hole, and fails.
"""

import dataclasses
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/guest"))
# pylint: disable=wrong-import-position
import console  # noqa: E402

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
        found = re.search(r"--(?:case|act) (\S+)", self.command)
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


def tlb_batch(rules, command, arches=ARCHES, **more):
    more.setdefault("boot", TLB_BATCH_BOOT)
    return Removal("tlb_batch", rules, command, arches, **more)


def migrc(rules, command, arches=ARCHES, **more):
    more.setdefault("boot", MIGRC_BOOT)
    return Removal("migrc", rules, command, arches, **more)


def stale(case, rules, arches=ARCHES, program="migrc_stale", rounds=4, **more):
    return migrc(rules, f"{program} --rounds {rounds} --expect-stale 1 --case {case} --skip {rules}", arches, **more)


def file(case, rules, arches=ARCHES, rounds=4):
    return stale(case, rules, arches, "migrc_file", rounds)


def readmostly(case, rules):
    return migrc(rules, f"migrc_readmostly --expect-stale 1 --case {case} --skip {rules}")


def reported(case, rules, rounds, arches=ARCHES):
    """A debug kernel sees it, too."""
    return stale(case, rules, arches, rounds=rounds, says=("WARNING: mm/migrc/migrc_debug.c",), both=True, boot=())


def hvo(case, rule, says, append="panic_on_warn=1"):
    """The first report is the one: struct pages that are not what they should be may lead anywhere."""
    return Removal("hvo", rule, f"hvo_pool --case {case} --skip {rule}", ("arm64",), says=(says,),
                   boot=options(mem="4G", append=f"kunit.enable=0 {append}"))


ARM64, X86_64 = ("arm64",), ("x86_64",)
TABLE = "tlb_batch_refault --act table --dir /mnt --delay 200000 --rounds 8 --skip open --expect-stale 2"
REMOVALS = (
    tlb_batch("flush", "tlb_batch_stale_litmus --rounds 200 --skip flush --expect-stale 100", own=True),
    tlb_batch("flush", "tlb_batch_secondary --rounds 4 --skip flush --expect-violations 100"),
    tlb_batch("flush", "tlb_batch_dirty --rounds 30 --skip flush --expect-lost 1000", ARM64),
    tlb_batch("flush", "sh -c 'echo flush > /sys/kernel/debug/tlb_batch/skip_hook; "
              "tlb_batch_move_bench --pages 128 --readers 2 --touch'", oracle=True, boot=options(oracle=True)),
    tlb_batch("mark", "tlb_batch_mark --rounds 20 --skip mark --expect-stale 5"),
    tlb_batch("putback", "tlb_batch_putback --skip putback --expect-missing", ARM64),
    tlb_batch("sync", "tlb_batch_stale_litmus --rounds 200 --skip sync --expect-stale 100", X86_64, own=True),
    tlb_batch("gen", "tlb_batch_stale_litmus --rounds 200 --skip gen --expect-stale 100", X86_64, own=True),
    tlb_batch("hold", "tlb_batch_exit --rounds 6 --skip hold", uaf=True, says=("tlb_batch_flush_slow",), boot=()),
    tlb_batch("open", "tlb_batch_refault --act guard --dir /mnt --rounds 20 --skip open --expect-stale 5"),
    tlb_batch("open", "tlb_batch_refault --act guard-enomem --dir /mnt --rounds 20 --skip open --expect-stale 5"),
    tlb_batch("open", "tlb_batch_refault --act poison --rounds 20 --skip open --expect-stale 5"),
    # With range operations arm64 flushes all that the table led to: the whole of it is one range.
    # And the emulated TLB stayed so small in 2 of 9 runs that QEMU flushed all of it for one page.
    tlb_batch("open", f"sh -c 'for i in 1 2 3 4; do {TABLE} && exit; done; exit 1'", ARM64,
              boot=options(cpu="neoverse-n1", **dict(TLB_BATCH_BOOT))),
    tlb_batch("open", TABLE, X86_64),
    # x86_64 has this window without the batch, too.
    tlb_batch("open", "tlb_batch_refault --act lazyfree --rounds 20 --skip open --expect-stale 5", ARM64),
    tlb_batch("lock", "tlb_batch_refault --act file --dir /mnt --rounds 20 --skip lock --expect-stale 5"),
    tlb_batch("lock", "tlb_batch_refault --act swap --rounds 20 --skip lock --expect-stale 5", boot=MIGRC_BOOT),
    tlb_batch("wait", "tlb_batch_wait --rounds 3 --skip wait --expect-long", ARM64),
    # One thread emulates all CPUs: without the delay no writer ran before the flush at the end in 1 of 8 runs.
    tlb_batch("dirty", "tlb_batch_dirty --rounds 30 --delay 5000 --skip dirty --expect-lost 1000", X86_64, own=True),
    *(tlb_batch(case, f"tlb_batch_task --case {case} --skip") for case in ("enomem", "fork", "exit")),

    *(stale(case, "range") for case in ("mprotect", "uffd-wp", "uffd-move", "zap", "dontneed", "mremap")),
    *(stale(case, "reuse") for case in ("reuse-exclusive", "uffd-swapin")),
    stale("uffd-undo", "protnone"),
    # Either flushes.
    stale("uffd-rwp", "reuse,protnone"),
    # There a child exits, and its flush is of all ASIDs where QEMU emulates arm64.
    *(stale(case, "reuse", X86_64, own=True) for case in ("reuse", "common")),
    readmostly("table", "reuse"),
    stale("swapin", "swapin"),
    stale("force", "force"),
    stale("poke", "force"),
    stale("tags", "force", ARM64),
    # No emulated CPU minds two memory types.
    stale("type", "type", ARM64, says=("WARNING: mm/migrc/migrc_debug.c",), both=True, boot=options(mte=True)),
    reported("writable", "writable", 8),
    reported("pending", "pending,range", 24, ARM64),
    reported("fork", "fork", 12, ARM64),
    stale("file", "file"),
    stale("shared", "file"),
    file("open", "file"),
    file("tmpfs", "file"),
    file("race", "recheck", ARM64, rounds=50),
    *(file(case, "write") for case in ("write", "store", "loop", "upper", "lower", "unlinked")),
    # Either drains.
    *(file(case, "write,change") for case in ("truncate", "punch")),
    file("verity", "change"),
    file("journal", "change"),
    stale("notifier", "notifier"),
    readmostly("writer", "clean"),
    readmostly("rare", "pause"),
    readmostly("hint", "hint"),
    stale("mixed", "mixed"),
    stale("twice", "record"),
    stale("record", "record"),
    migrc("exit", "migrc_bounds --case exit --skip exit", uaf=True, says=("migrc",), boot=()),
    stale("drain", "flush"),
    migrc("off", "migrc_bounds --case off --skip off --expect-stale 1", ARM64),
    # On x86_64 vm.migrc_enable does not change while something moves, see tlb_rs_patching_is_safe().
    migrc("off", "tlb_rs_abuse --case toggle --skip off", ARM64, boot=LARGE_BOOT),
    migrc("pressure,kswapd", "migrc_bounds --case pressure --rounds 1 --skip pressure,kswapd --expect-stale 1", ARM64,
          boot=options(mem="768M")),
    # No memory that was there at boot goes offline on arm64.
    migrc("isolate", "migrc_bounds --case offline --skip isolate --expect-stale 1", X86_64, own=True),
    migrc("isolate", "migrc_bounds --case hugetlb --skip isolate --expect-stale 1", ARM64),
    migrc("poison", "migrc_bounds --case poison --skip poison --expect-stale 1"),
    file("idle", "worker", ARM64, rounds=1),
    migrc("disarm", "migrc_bounds --case age --skip disarm --expect-stale 1", ARM64),

    hvo("pool", "ack", "changes of entries that others may use"),
    hvo("pool", "break", "changes of entries that others may use"),
    hvo("pool", "tlbi", "stale translations of vmemmap"),
    hvo("race", "rcu", "write to read-only memory"),
    hvo("race", "key", "write to read-only memory"),
    hvo("switch", "tasks", "write to read-only memory"),
    hvo("hotplug", "transit", "changes of entries that others may use"),
    Removal("hvo", "duty", "hvo_pool --case duty --skip duty", ARM64, boot=LARGE_BOOT),
    hvo("panic", "abandon", "failed to stop secondary CPUs"),
    # stop_machine() has interrupts disabled, so that only pseudo-NMIs stop a CPU.
    hvo("panic", "abandon", "failed to stop secondary CPUs",
        append="irqchip.gicv3_pseudo_nmi=1 hvo.strategy=stop_machine"),
    # The task is switched away from with everything masked.
    hvo("oops", "die", "Unexpected DAIF value"),
)

ONE_THREAD = "one thread emulates all CPUs, so that none acts in the moment that the rule is about; arm64 shows it"
NOT_THERE = "not of this architecture"
# Rules that no test sees removed: why, and what shows them instead. A test is "herd7 GLOB" (verify/litmus), "verify FILE"
# (verify/tests) or "PROGRAM CASE".
REVIEWED = {
    ("arm64", "tlb_batch", "sync"): ("an emulated CPU flushes at the TLBI, not at the DSB; the DSB ISH are counted",
                                     "herd7 sync-issue-no-dsb-ish", "herd7 sync-switch-*"),
    ("arm64", "tlb_batch", "dirty"): ("the TLBI comes before the PTL is released, and the emulated CPU does not wait for "
                                      "the DSB", "herd7 sync-issue-*"),
    ("arm64", "tlb_batch", "gen"): (NOT_THERE,),
    ("x86_64", "tlb_batch", "putback"): (NOT_THERE,),
    ("x86_64", "migrc", "type"): (NOT_THERE,),
    ("x86_64", "tlb_batch", "wait"): ("one thread emulates all CPUs, so that who waits says nothing; arm64 shows it",),
    **{("x86_64", "migrc", rule): (ONE_THREAD,) for rule in ("pending", "fork", "recheck", "off", "pressure", "kswapd",
                                                            "disarm", "worker")},
}
# Rules that have no switch: memory order, which no emulator shows, and arithmetic, which is tested by itself.
PROVEN = {
    ("tlb_batch", "H2: the ASID is read after a DSB ISHST"): ("herd7 asid-*", "verify ordering"),
    ("tlb_batch", "H3: DMB ISHST before the mark"): ("herd7 order-*", "herd7 migrc-order-*", "verify ordering"),
    ("tlb_batch", "H4: the mark comes after the last clear"): ("herd7 mark-*", "verify ordering"),
    ("tlb_batch", "H8, H9: bounded, and no page is left out"): ("verify tlb_batch",),
    ("tlb_batch", "H10: DSB before and after the TLBI"): ("herd7 sync-issue-*", "herd7 sync-switch-*", "verify ordering"),
    ("migrc", "order of generation, list and flush"): ("verify migrc_registered", "verify migrc"),
    ("migrc", "a drain begins after the request that waits for it"): ("verify migrc_worker",),
    ("migrc", "a flush that stalls covers what it has seen"): ("verify migrc_gen", "tlb_rs_abuse generation"),
    ("migrc", "limits: max_pages, age, mappings"): ("migrc_bounds limit", "migrc_bounds age", "migrc_file mappings"),
    ("migrc", "one drain for all mixed folios of a batch"): ("migrc_stale halves",),
    ("migrc", "a source is seen by who isolates, or the reverse"): ("herd7 migrc-isolate-*",),
    ("migrc", "who restores another memory type sees the pending flush"): ("herd7 migrc-type-*",),
    ("hvo", "order and end of a pause"): ("verify pause",),
    ("hvo", "DSB after the break, ISB after the pause"): ("herd7 hvo-*",),
}


def results(test):
    """The suite that runs a test, and how the names of its results end."""
    kind, name = test.split()
    if kind == "herd7":
        return "verify", [f"litmus: {f.stem}" for f in sorted((ROOT / "verify/litmus").glob(f"{name}.litmus"))]
    if kind == "verify":
        file = ROOT / "verify/tests" / f"{name}.rs"
        cases = re.findall(r"#\[test\]\s*(?:#\[.*\]\s*)*fn (\w+)", file.read_text("utf-8") if file.exists() else "")
        return "verify", [f"{name}: {case}" for case in cases]
    file = ROOT / "tools/testing/selftests/mm" / f"{kind}.c"
    there = file.exists() and f'"{name}"' in file.read_text("utf-8")
    return "programs", [f" {re.sub('^(tlb_batch|tlb_rs|migrc|hvo)_', '', kind)}: {name}"] * there


def missing(tests, ran):
    """Of these tests, what is not there, or did not pass in a suite of this run.

    ran: {suite: (passed, failed, skipped)}
    """
    bad = []
    for test in tests:
        suite, ends = results(test)
        if not ends:
            bad.append(f"no {test}")
        for end in ends if suite in ran else ():
            passed, failed = (any(name.endswith(end) for name in names) for names in ran[suite][:2])
            if any(name.startswith(f"{end} # SKIP no herd7") for name in ran[suite][2]):
                bad.append("not run: herd7 is missing")
            elif failed or not passed:
                bad.append(f"{end.strip()} {'failed' if failed else 'was not run'}")
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
    cases = re.findall(r"^(?:not )?ok \d.*", text, re.M)
    # Of a whole program it is the plan that says so.
    skips = [line for line in cases if "# SKIP" in line] + re.findall(r"^1\.\.0 # SKIP.*", text, re.M)
    named = rf"# SKIP \w+:? {re.escape(removal.case or '')}(?![-\w])"
    own = [line for line in skips if removal.case and re.search(named, line)]
    if not own and (not skips or set(cases) - set(skips)):
        return ""
    line = (own or skips)[0]
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
        if why := REVIEWED.get((arch, mechanism, rule)):
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
        for (mechanism, rule), tests in PROVEN.items():
            text, wrong = self.shown(tests, tests)
            add(f"{mechanism} {rule}", f"{mechanism:10} {rule}: {text}", wrong)
        return lines, holes
