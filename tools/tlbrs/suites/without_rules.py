# SPDX-License-Identifier: GPL-2.0
"""Suites that boot without rules: sabotage, sabotage_all."""

from tlbrs.guest import guest
from tlbrs.suites import harness, sabotage as sabotage_table
from tlbrs.suites.harness import DONE, boot, chosen, kernel, reported, side_by_side


def removed(suite, matrix, arch, options, removals):
    """Boot without rules: each test must fail, which its command expects."""
    first = removals[0]
    # One of tlb_batch needs the disk of migrc.
    name = f"{removals[-1].mechanism} without " + (f"{first.rules}, {first.label}" if first.alone else
                                                   f"a rule, {first.command.split()[0]}" if len(removals) == 1 else
                                                   f"{len(removals)} rules")
    says, options = first.says, {"timeout": 1800} | options
    if first.uaf and harness.IMAGE == "debug":
        says = ("use-after-free in", *says)     # KASAN
    elif first.uaf:
        # What is read is what SLUB left there.
        says, options["append"] = ("6b6b6b6b", *says), "kunit.enable=0 slab_debug=P,mm_struct"
    want = guest.ORACLE if first.oracle else guest.SPLAT if says else guest.OK
    result = boot(suite, name, arch, harness.IMAGE, sabotage_table.job(removals), want=want, cases=False, **options)
    outcomes = sabotage_table.outcomes(result.console)
    for removal in removals:
        status, why = outcomes.get(sabotage_table.REMOVALS.index(removal), (None, ""))
        seen = status == 0
        if removal.oracle:
            # No reader that looks for it: the oracle alone must see the access.
            seen = any(e.get("va") and e.get("state") == "FREE" for e in result.oracle_errors)
        elif says:
            seen = (seen or not removal.both) and any(all(word in splat for word in says) for splat in result.splats)
        # Nor does a program fail that has skipped its case.
        if why:
            matrix.why[arch, removal] = why
        matrix.seen[arch, removal] = suite.check(f"{arch} {removal.mechanism} without {removal.rules}: "
                                                 f"{removal.label} sees it", seen and not why, why)
    matrix.read_rules(arch, result.records)
    if not all(matrix.seen[arch, removal] for removal in removals):
        suite.say("\n".join(result.ktap))


def remove(suite, **every):
    """Remove the rules of architectures one after the other, all or some; print the matrix."""
    # What is proved by a test of one architecture was not run where ARCH= has left that out.
    matrix = sabotage_table.Matrix({s.name: (s.names, s.failed, s.skipped) for s in DONE if not s.left_out})
    for arch in chosen(suite, *every):
        complete = every[arch]
        if not kernel(suite, arch, harness.IMAGE):
            continue
        with side_by_side(arch) as start:
            for options, removals in sabotage_table.boots(arch, complete):
                start(removed, suite, matrix, arch, options, removals)
        if complete:
            matrix.every.add(arch)
    lines, holes = matrix.lines()
    suite.say("\n".join(lines), show=holes or matrix.every)
    suite.check("every rule is seen removed, or named with a reason", matrix.rules and not holes,
                "; ".join(f"{wrong}: {', '.join(names)}" for wrong, names in holes.items()))


def not_a_rule(suite, arch):
    """What no rule prevents has to be found, too."""
    reported(suite, "owed at exit", arch, "tlb_batch_task -t exit", "the kernel warns", "tlb_batch_exit_slow")
    boot(suite, "abuse, with what it checks broken", arch, harness.IMAGE, "TLB_BREAK=1 TLB_SECONDS=1 TLB_PROCESSES=100 tlb_rs_abuse",
         mem="4G", timeout=900)


def sabotage(suite):
    """Each test program fails when a rule that it is about is removed: here failing is passing.

    One rule for each; sabotage_all has the rest. No rule may be without a removal, or a reason, in either."""
    remove(suite, arm64=False, x86_64=False)
    for arch in chosen(suite, "arm64"):
        not_a_rule(suite, arch)


def sabotage_all(suite):
    """All rules on both."""
    remove(suite, arm64=True, x86_64=True)
    for arch in chosen(suite):
        not_a_rule(suite, arch)
