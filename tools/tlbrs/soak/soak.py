# SPDX-License-Identifier: GPL-2.0
"""A long mixed stress of the debug kernel, under the stale-translation oracle.

usage: tlb-rs soak     (make soak MINUTES=15 ARCH=arm64; with tiers of memory: make soak TIERS=1)

stress-ng of the distribution, our own stress programs and a mover of everybody's memory run in the guest at the same
time, with deferral, NUMA balancing, KSM and swap on. MINUTES are split into boots, and those into rounds, which differ
in their stressors. On arm64 the storm of hvo_pool runs after that, for as many minutes, in boots of its own: after each of
its steps it counts all pages of struct pages, so nothing else may take memory from HugeTLB pools or remove it. Exit
status 1 for a kernel report, an error of the oracle, an OOM kill, contents that are wrong, a program of ours that skips,
or pages that stay in the ledger. The result is in build/soak/ARCH.json, the consoles beside it. What was interrupted
goes on with the boots that are missing.
"""

import argparse
import collections
import json
import os
import re
from pathlib import Path

from tlbrs.guest import guest, initramfs
from tlbrs.kernel import common
from tlbrs.report import measure
from tlbrs.soak import boots, tiers
from tlbrs.soak.boots import (ACCEPTED, BOOT_MINUTES, HELPERS, SKIPPED, STRESS_ERROR, STRESS_FAIL, STRESS_NG, STRESSORS,
                              by_name, cause, counters, denied, draw, lengths, merge, poisoned, rounds, stress_ng, workers,
                              wrong_in_any)

OUT = common.BUILD / "soak"
# The storm in one piece: what it leaves behind adds up.
STORM_MINUTES = 30
STORM_ARCHES = ("arm64",)
# One thread emulates all CPUs of x86_64, and a worker must come to its first operation in a round.
# at_once: stressors of a round; round: its seconds; grace: how much longer stress-ng may need to end; slack: how much
# longer than stress-ng our programs run. The end of migrc_stress patches code, see tlb_rs_patching_is_safe().
PACE = {"arm64": {"at_once": 5, "round": 60, "grace": 180, "slack": 10},
        "x86_64": {"at_once": 3, "round": 90, "grace": 600, "slack": 30}}
GUEST = {"smp": 4, "mem": "3G", "nodes": 2, "swap": "zram:512M", "oracle": True}
# Without the oracle: the kernel looks for stale translations by itself, and gigantic pages need memory.
STORM_GUEST = {"smp": 4, "mem": "6G", "nodes": 2}
# How much longer a boot may take than the storm: its last step, and pools that become empty.
STORM_GRACE = 600

JOB = r"""
mkdir -p /mnt/tmp
put 1 /proc/sys/kernel/numa_balancing
echo 0 >/tmp/zero
mount -o bind /tmp/zero /proc/sys/kernel/numa_balancing
keep 1000 /sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs 1
put always /sys/kernel/mm/transparent_hugepage/enabled
put 1 /sys/kernel/mm/ksm/run
put 8 /proc/sys/vm/nr_hugepages
put 1 /proc/sys/vm/tlb_batch
echo 1 >/proc/sys/vm/migrc_readmostly || exit 125
echo 1 >/proc/sys/vm/migrc_enable || exit 125
/usr/bin/stress-ng --version || exit 125
started=$(date +%s)

# $1 seconds, $2 "--toggle" or nothing, the rest: of stress-ng
round() {
	seconds=$1 toggle=$2
	shift 2
	# Ends take their time: of a busy host's rounds the last ones are left out.
	[ $(($(date +%s) - started)) -lt $LENGTH ] || return 0
	say begin '"seconds":'$seconds
	begin_stress "$seconds" "$@"
	# What only computes must not take the time of what calls the kernel.
	renice 3 $$
	migrc_stress --seconds $((seconds + SLACK)) $toggle & migrc=$!
	tlb_batch_stress --seconds $((seconds + SLACK)) $toggle & batch=$!
	TLB_SECONDS=$((seconds + SLACK)) hvo_pool -t churn & hvo=$!
	renice -5 $$
	migrc_mover --seconds $((seconds + SLACK)) & mover=$!
	renice 0 $$
	(trap 'exit 0' TERM; while :; do sleep 7; put 1 /proc/sys/vm/compact_memory; done) & compact=$!
	end_stress
	wait $migrc
	say end '"what":"migrc_stress","status":'$?
	wait $batch
	say end '"what":"tlb_batch_stress","status":'$?
	wait $mover
	say end '"what":"migrc_mover","status":'$?
	wait $hvo
	say end '"what":"hvo_pool","status":'$?
	kill $compact
	wait $compact
	bogo
}
"""
END = r"""
echo 0 >/proc/sys/vm/migrc_enable
watch
awk '$1 != "age" { printf "%s\"%s %s\":%s", n++ ? "," : "{\"soak\":\"stats\",", $1, $2, $3 } END { print "}" }' \
	/sys/kernel/debug/migrc/stats
umount /proc/sys/kernel/numa_balancing
exit 0
"""
STORM_END = r"""
say end '"what":"storm","status":'$?
watch
exit 0
"""
# Programs of ours that have nothing to do there: kselftest's status 4. All others must not skip.
NOT_THERE = {"arm64": (), "x86_64": ("hvo_pool",)}
# Every other round is without; nor does the emulator survive it on x86_64, see tlb_rs_patching_is_safe().
MAY_SKIP = re.compile(r"stress toggle: (?:not asked for|no live patching under x86_64 TCG)$")
STORM = re.compile(r"# (\d+) steps of seed (\d+), the others stopped (\d+) times, (\d+) young entries")


# ---- what runs

def job(arch, seconds, seed, begin):
    """The guest's shell script for a boot, after that many rounds in other boots."""
    pace = PACE[arch]
    parts = rounds(seconds, pace["round"])
    lines = [f"LENGTH={seconds} GRACE={pace['grace']} SLACK={pace['slack']}", initramfs.LINK_USERLAND, HELPERS, STRESS_NG, JOB]
    for part, (length, names) in enumerate(zip(parts, draw(seed, begin, len(parts), pace["at_once"]))):
        # Toggled all the time, deferrals never become old: every other round is without.
        lines.append(f"round {length} '{'--toggle' if part % 2 else ''}' {workers(names)}")
    return "\n".join([*lines, END])


def storm_job(seconds, seed):
    """The guest's shell script for a boot of the storm."""
    return f"{HELPERS}TLB_SECONDS={seconds} TLB_SEED={seed} hvo_pool -t storm{STORM_END}"


# ---- what a boot says

def storm_summary(result):
    """A boot of the storm as a record."""
    records, failures = by_name(result), wrong_in_any(result)
    failures += cause("\n".join(result.ktap))[0]
    failures += [f"skipped: {case}" for case in SKIPPED.findall("\n".join(result.ktap))]
    ends = [end["status"] for end in records["end"] if end["what"] == "storm"]
    failures += [f"storm: status {status}" for status in ends if status and not (status in (1, 4) and failures)]
    said = [[int(n) for n in found] for found in STORM.findall(result.console)]
    if len(ends) != 1 or len(said) != 1 or not said[0][0]:
        failures.append(f"{len(said)} storms, {len(ends)} ends")
    seen = [sum(column) for column in zip(*said)] or 4 * [0]
    vmstat = counters(records)
    if not failures and not vmstat.get("hvo_pte_updates"):
        failures.append("no entry changed")
    return {"seconds": round(result.seconds), "steps": seen[0], "stopped": seen[2], "young": seen[3], "vmstat": vmstat,
            "reports": len(result.splats), "failures": list(dict.fromkeys(failures))}


def summary(arch, result):
    """A boot as a record."""
    records, failures = by_name(result), wrong_in_any(result)
    failed = STRESS_FAIL.findall(result.console)
    failures += failed
    wrong, starved = cause("\n".join(result.ktap))
    failures += wrong
    failures += [f"skipped: {case}" for case in SKIPPED.findall("\n".join(result.ktap)) if not MAY_SKIP.match(case)]
    notes = [f"no time: {case}" for case in starved] + STRESS_ERROR.findall(result.console)
    for what, status in ((end["what"], end["status"]) for end in records["end"]):
        # Of kselftest 1 is explained by the cases.
        if what == "stress-ng" and status in ACCEPTED:
            notes.append(f"stress-ng: status {status}, a stressor had no resources or is not on this kernel")
        elif what == "stress-ng" and status == 2 and not failed and poisoned(result.console):
            notes.append("stress-ng: madvise was killed by the poison that it injected")
        elif status == 4 and what != "stress-ng":
            failures += [f"{what}: skipped"] * (what not in NOT_THERE[arch])
        elif status and not (what != "stress-ng" and status == 1 and wrong + starved):
            failures.append(f"{what}: status {status}")
    failures += [f"stress-ng did not end {late['seconds']} s after its start and the grace" for late in records["late"]]
    done, begun = sum(end["what"] == "stress-ng" for end in records["end"]), len(records["begin"])
    if not done or done != begun:
        failures.append(f"{done} of {begun} rounds")
    vmstat = counters(records)
    if vmstat.get("migrc_held", 0):
        failures.append(f"{vmstat['migrc_held']} pages in the ledger after vm.migrc_enable=0")
    elif done == begun and not vmstat.get("migrc_deferred"):
        failures.append("nothing was deferred")
    bogo = collections.Counter()
    for record in records["bogo"]:
        bogo[record["stressor"]] += record["ops"]
    return {"seconds": round(result.seconds), "rounds": done, "bogo_ops": dict(sorted(bogo.items())),
            "vmstat": vmstat,
            "stats": {key: value for key, value in (records["stats"] or [{}])[-1].items() if key != "soak"},
            "worst_held": max((record["worst"] for record in records["migrc_mover"]), default=0),
            "moved_processes": sum(record["calls"] for record in records["migrc_mover"]),
            "oracle_accesses": (result.oracle_summary or {}).get("accesses", 0),
            "oracle_errors": len(result.oracle_errors), "reports": len(result.splats),
            "failures": list(dict.fromkeys(failures)), "notes": list(dict.fromkeys(notes))}


def explain(arch, total):
    """Lines for people."""
    vmstat, stats = total["vmstat"], total["stats"]
    absent = sorted({*STRESSORS} - {*total["bogo_ops"]})
    lines = [f"{arch}: {total['seconds']} s, {total['rounds']} rounds in {total['boots']} boots, seed {total['seed']}",
             "stress-ng, bogo operations: " + ", ".join(f"{name} {ops}" for name, ops in total["bogo_ops"].items()) +
             (f"; not run: {', '.join(absent)}" if absent else ""),
             "migrate_pages() of its processes: " + str(total["moved_processes"]),
             f"migrc: {vmstat.get('migrc_deferred', 0)} pages deferred, {vmstat.get('migrc_flush', 0)} flushes, "
             f"at most {total['worst_held']} held, {vmstat.get('migrc_held', 0)} at the end",
             denied(stats),
             f"hvo: {vmstat.get('cpu_pause', 0)} pauses, {vmstat.get('cpu_pause_cancelled', 0)} cancelled, "
             f"{vmstat.get('cpu_pause_fallback', 0)} stop_machine(), {vmstat.get('hvo_pte_updates', 0)} entries changed",
             f"oracle: {total['oracle_accesses']} accesses, {total['oracle_errors']} errors; "
             f"{total['reports']} kernel reports"]
    if storm := total.get("storm"):
        lines.append(f"storm: {storm['seconds']} s, {storm['steps']} steps from seed {total['seed']} on, the others stopped "
                     f"{storm['stopped']} times, {storm['young']} young entries, "
                     f"{storm['vmstat'].get('hvo_pte_updates', 0)} entries changed; {storm['reports']} kernel reports")
    lines += ["note: " + note for note in dict.fromkeys(total["notes"])]
    lines += ["FAIL: " + failure for failure in dict.fromkeys(total["failures"])]
    return lines


# ---- the boots

def boot(arch, kernel, seconds, seed, begin, log):
    """One boot as a record."""
    pace = PACE[arch]
    return summary(arch, boots.boot(kernel, arch, log, job=job(arch, seconds, seed, begin),
                                    timeout=seconds + pace["round"] + pace["grace"] + pace["slack"] + 600, **GUEST))


def storm(arch, kernel, seconds, seed, log):
    """One boot of the storm as a record."""
    result = measure.again(lambda: guest.boot(kernel, arch, job=storm_job(seconds, seed), log=log,
                                              append=f"kunit.enable=0 {measure.APPEND[arch]}",
                                              timeout=seconds + STORM_GRACE, **STORM_GUEST))
    if result.boot_seconds is None or result.job_exit in (125, 126, 127):
        raise common.Fail(f"the storm did not start\n{result.report()}\n  console: {log}")
    if result.exit_status:
        print(result.report(), flush=True)
    return storm_summary(result)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default=os.environ.get("ARCH") or "arm64")
    parser.add_argument("--minutes", type=int, default=os.environ.get("MINUTES") or BOOT_MINUTES)
    parser.add_argument("--kver", default=common.kver())
    parser.add_argument("--kernel", help="kernel image (default: build/KVER/ARCH-debug)")
    parser.add_argument("--seed", type=int, help="which stressors run together (default: the time)")
    parser.add_argument("--tiers", action="store_true", default=os.environ.get("TIERS", "0") not in ("", "0"),
                        help="memory of two tiers is demoted and promoted (default: TIERS=1 of the environment)")
    parser.add_argument("--without", default=os.environ.get("WITHOUT"), metavar="HOOK",
                        help="with tiers: a minute without this rule of migrc, which must be noticed")
    options = parser.parse_args()
    common.one_of("ARCH", options.arch, initramfs.ARCHES)
    if options.without and not options.tiers:
        raise common.Fail("WITHOUT= is for TIERS=1")
    return options


def main():
    options = parse()
    if options.minutes < 1:
        raise common.Fail("MINUTES is at least 1")
    if options.kernel and not Path(options.kernel).exists():
        raise common.Fail(f"no {options.kernel}")
    kernel = Path(options.kernel or measure.kernel(options.arch, "debug", options.kver))
    measure.make("meter")
    OUT.mkdir(parents=True, exist_ok=True)
    stress_ng(options.arch)
    if options.tiers:
        return tiers.run(options, kernel, OUT)
    kept = boots.Kept(OUT / f"{options.arch}-state.json", options, kernel)
    done = kept.run("boot", lengths(options.minutes), lambda number, seconds, records: boot(
        options.arch, kernel, seconds, kept.seed, sum(record["rounds"] for record in records),
        OUT / f"{options.arch}-{number}.log"))
    # The program takes 31 bits of the seed, and not 0.
    storms = kept.run("storm", lengths(options.minutes, STORM_MINUTES) if options.arch in STORM_ARCHES else [],
                      lambda number, seconds, _: storm(options.arch, kernel, seconds, (kept.seed + number) % (2**31 - 1) or 1,
                                                       OUT / f"{options.arch}-storm-{number}.log"))
    total = {"arch": options.arch, "minutes": options.minutes, "seed": kept.seed, "boots": len(done),
             **merge(done)}
    if storms:
        total["storm"] = merge(storms)
        total["failures"] += [f"storm: {failure}" for failure in total["storm"]["failures"]]
    common.store(OUT / f"{options.arch}.json", total)
    kept.ended()
    print(json.dumps(total))
    print("\n".join(explain(options.arch, total)))
    print(f"soak {'FAILED' if total['failures'] else 'passed'}; "
          f"{os.path.relpath(OUT / (options.arch + '.json'))}, consoles beside it")
    return 1 if total["failures"] else 0
