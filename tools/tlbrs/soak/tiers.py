# SPDX-License-Identifier: GPL-2.0
"""A long stress of two tiers of memory, under the stale-translation oracle.

usage: make soak TIERS=1 MINUTES=30 ARCH=arm64; make soak TIERS=1 WITHOUT=flush

Node 1 is the slower one. migrc_tier_stress demotes and promotes pages all the time, beside stress-ng, with the two LRU lists
in one round and the generations in the next. demotion_enabled and, where code can be patched, vm.migrc_enable go off and on,
and memory blocks of node 0 offline and online. Exit status 1 for a kernel report, an error of the oracle, an OOM kill,
contents that are wrong, pages that stay in the ledger, or too little of what it is about. The result is in
build/soak/ARCH-tiers.json.

WITHOUT= removes a rule of migrc, for one round: then the oracle, or the program, must see it. It was tried with flush;
migrc_stale shows the others, each in a case of its own.
"""

import collections
import json
import os

from tlbrs.guest import initramfs
from tlbrs.kernel import common
from tlbrs.soak import boots

# Small ones, which do not poison or swap memory, or need huge pages.
STRESSORS = ("clone", "fault", "fork", "malloc", "memfd", "mincore", "mmapaddr", "mprotect", "mremap", "munmap", "numa", "shm",
             "shm-sysv", "tlb-shootdown", "vfork", "vm", "vm-addr", "vm-rw", "vm-segv", "vm-splice")
# As of soak.py; a round changes the LRU.
PACE = {"arm64": {"at_once": 3, "round": 60, "grace": 180}, "x86_64": {"at_once": 1, "round": 90, "grace": 600}}
GUEST = {"smp": 4, "mem": "2G", "nodes": 1, "cpuless": 1, "oracle": True}
# What has to be counted in a minute; one thread emulates all CPUs of x86_64.
WANTED = {"arm64": {"migrc_deferred_demote": 500000 / 30, "pgpromote_success": 100000 / 30},
          "x86_64": {"migrc_deferred_demote": 1, "pgpromote_success": 1}}
# Seconds in which a removed rule must be noticed.
LIMIT = 60
JOB = r"""
mkdir -p /mnt/tmp
put 1 /proc/sys/vm/tlb_batch
echo 1 >/proc/sys/vm/migrc_enable || exit 125
/usr/bin/stress-ng --version || exit 125
started=$(date +%s)

# $1 seconds, $2 LRU, $3 "--toggle" or nothing, the rest: of stress-ng
round() {
	seconds=$1 lru=$2 toggle=$3
	shift 3
	[ $(($(date +%s) - started)) -lt $LENGTH ] || return 0
	say begin '"seconds":'$seconds
	# Another process takes a CPU, and with it what the TLB had: not those of the readers.
	begin_stress "$seconds" --taskset 0,3 "$@"
	renice -5 $$
	migrc_tier_stress --seconds $seconds --lru $lru $toggle & tier=$!
	renice 0 $$
	wait $tier
	say end '"what":"migrc_tier_stress","status":'$?
	end_stress
	bogo
}
"""
END = r"""
echo 0 >/proc/sys/vm/migrc_enable
watch
awk '$1 != "age" { printf "%s\"%s %s\":%s", n++ ? "," : "{\"soak\":\"stats\",", $1, $2, $3 } END { print "}" }' \
	/sys/kernel/debug/migrc/stats
exit 0
"""


def job(arch, seconds, seed, begin, without=None):
    """The guest's shell script for a boot, after that many rounds in other boots."""
    pace = PACE[arch]
    parts = boots.rounds(seconds, pace["round"])
    lines = [f"LENGTH={seconds} GRACE={pace['grace']}", initramfs.LINK_USERLAND, boots.HELPERS, boots.STRESS_NG, JOB]
    if without:
        lines.append(f"export TLB_SKIP={without}")
    drawn = boots.draw(seed, begin, len(parts), pace["at_once"], STRESSORS)
    for part, (length, names) in enumerate(zip(parts, drawn), begin):
        # Of four rounds, each LRU has one with the switch.
        lines.append(f"round {length} {('classic', 'mglru')[part % 2]} '{'--toggle' if part // 2 % 2 else ''}' "
                     f"{boots.workers(names)}")
    return "\n".join([*lines, END])


def summary(result):
    """A boot as a record."""
    records, failures = boots.by_name(result), boots.wrong_in_any(result)
    failures += boots.STRESS_FAIL.findall(result.console)
    wrong, starved = boots.cause("\n".join(result.ktap))
    failures += wrong + [f"skipped: {case}" for case in boots.SKIPPED.findall("\n".join(result.ktap))]
    notes = [f"no time: {case}" for case in starved]
    for what, status in ((end["what"], end["status"]) for end in records["end"]):
        if what == "stress-ng" and status in boots.ACCEPTED:
            notes.append(f"stress-ng: status {status}, a stressor had no resources or is not on this kernel")
        elif status and not (what != "stress-ng" and status == 1 and wrong + starved):
            failures.append(f"{what}: status {status}")
    failures += [f"stress-ng did not end {late['seconds']} s after its start and the grace" for late in records["late"]]
    did, begun = records["migrc_tier_stress"], len(records["begin"])
    if not did or len(did) != begun:
        failures.append(f"{len(did)} of {begun} rounds")
    vmstat = boots.counters(records)
    if vmstat.get("migrc_held", 0):
        failures.append(f"{vmstat['migrc_held']} pages in the ledger after vm.migrc_enable=0")
    rounds = collections.Counter()
    for record in did:
        rounds[record["lru"]] += 1
    return {"seconds": round(result.seconds), "stressed": sum(record["seconds"] for record in did), "rounds": len(did),
            "lru": dict(rounds), "vmstat": vmstat,
            "did": {key: sum(record[key] for record in did) for key in (did or [{}])[0] if key not in
                    ("test", "seconds", "lru")},
            "bogo_ops": {record["stressor"]: record["ops"] for record in records["bogo"]},
            "stats": {key: value for key, value in (records["stats"] or [{}])[-1].items() if key != "soak"},
            "oracle_accesses": (result.oracle_summary or {}).get("accesses", 0),
            "oracle_errors": len(result.oracle_errors), "reports": len(result.splats),
            "failures": list(dict.fromkeys(failures)), "notes": list(dict.fromkeys(notes))}


def too_little(arch, total):
    """What was counted less often than it has to be, in words."""
    found = []
    for name, rate in WANTED[arch].items():
        least = round(rate * total["stressed"] / 60)
        if total["did"].get(name, 0) < max(least, 1):
            found.append(f"{name} {total['did'].get(name, 0)}, which is less than {max(least, 1)}")
    return found


def explain(arch, total):
    """Lines for people."""
    did = total["did"]
    lines = [f"{arch}: {total['stressed']} s in {total['rounds']} rounds ("
             + ", ".join(f"{lru} {n}" for lru, n in sorted(total["lru"].items())) + f"), seed {total['seed']}",
             f"demoted: {did.get('migrc_deferred_demote', 0)} pages without a flush, of "
             f"{did.get('pgdemote_kswapd', 0)} by kswapd, {did.get('pgdemote_proactive', 0)} that were asked for, "
             f"{did.get('pgdemote_direct', 0)} by others",
             f"promoted: {did.get('pgpromote_success', 0)} pages",
             f"demotion off and on {did.get('flip', 0)} times; memory blocks: {did.get('offline', 0)} were offline, "
             f"{did.get('refused', 0)} could not",
             boots.denied(total["stats"]),
             f"oracle: {total['oracle_accesses']} accesses, {total['oracle_errors']} errors; {total['reports']} kernel reports"]
    lines += ["note: " + note for note in dict.fromkeys(total["notes"])]
    lines += ["FAIL: " + failure for failure in dict.fromkeys(total["failures"])]
    return lines


def boot(arch, kernel, seconds, seed, begin, log, without=None):
    pace = PACE[arch]
    return boots.boot(kernel, arch, log, "kunit.enable=0 tlb_slow_nodes=1", job=job(arch, seconds, seed, begin, without),
                      timeout=seconds + pace["round"] + pace["grace"] + 600, **GUEST)


def noticed(result):
    """How a round without a rule was noticed, or an empty string."""
    found = []
    if result.oracle_errors:
        found.append(f"the oracle has {len(result.oracle_errors)} errors")
    found += boots.cause("\n".join(result.ktap))[0]
    found += [splat.splitlines()[0] for splat in result.splats]
    return "; ".join(dict.fromkeys(found))


def run_without(options, kernel, out):
    """A round without a rule, which must be noticed."""
    hook = options.without
    how = noticed(boot(options.arch, kernel, LIMIT, options.seed or 1, 0, out / f"{options.arch}-tiers-without-{hook}.log", hook))
    print(f"{options.arch}: without {hook}, in {LIMIT} s: {how or 'nothing was noticed'}")
    print("soak passed" if how else f"soak FAILED: nothing was noticed without {hook}")
    return 0 if how else 1


def run(options, kernel, out):
    if options.without:
        return run_without(options, kernel, out)
    kept = boots.Kept(out / f"{options.arch}-tiers-state.json", options, kernel)
    done = kept.run("boot", boots.lengths(options.minutes), lambda number, seconds, records: summary(
        boot(options.arch, kernel, seconds, kept.seed, sum(record["rounds"] for record in records),
             out / f"{options.arch}-tiers-{number}.log")))
    total = {"arch": options.arch, "minutes": options.minutes, "seed": kept.seed, "boots": len(done), **boots.merge(done)}
    total["failures"] += too_little(options.arch, total)
    place = out / f"{options.arch}-tiers.json"
    common.store(place, total)
    kept.ended()
    print(json.dumps(total))
    print("\n".join(explain(options.arch, total)))
    print(f"soak {'FAILED' if total['failures'] else 'passed'}; {os.path.relpath(place)}, consoles beside it")
    return 1 if total["failures"] else 0
