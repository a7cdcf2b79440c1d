# SPDX-License-Identifier: GPL-2.0
"""A long mixed stress of the debug kernel, under the stale-translation oracle.

usage: tlb-rs soak     (make soak MINUTES=15 ARCH=arm64)

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
import random
import re
import signal
import time
from pathlib import Path

from tlbrs.guest import console, guest, initramfs
from tlbrs.kernel import common
from tlbrs.report import measure

OUT = common.BUILD / "soak"
BOOT_MINUTES = 15
# The storm in one piece: what it leaves behind adds up.
STORM_MINUTES = 30
STORM_ARCHES = ("arm64",)
# Not those that are about a lack of memory (bigheap, brk): here an OOM kill is a failure. Nor mmapfork: once for half of
# the free memory takes an emulator, under its checkers, longer than a round. Nor mlockmany, which stress-ng itself
# refuses, membarrier, which this kernel does not have, or physpage, which fails on stock, too, when its pages are moved.
STRESSORS = {
    "clone": "--clone-max 16",
    "exit-group": "",
    "fault": "",
    "fork": "",
    "kill": "",
    "madvise": "",
    "malloc": "--malloc-bytes 256k --malloc-max 64 --malloc-touch",
    "mcontend": "",
    "memfd": "--memfd-bytes 8m --memfd-fds 8",
    "memhotplug": "",
    "mincore": "",
    "mlock": "",
    "mmap": "--mmap-bytes 16m --mmap-mprotect --mmap-file",
    "mmapaddr": "",
    "mmapfixed": "",
    "mmaphuge": "--mmaphuge-mmaps 8",
    "mmapmany": "",
    "mprotect": "",
    "mremap": "--mremap-bytes 8m",
    "msync": "--msync-bytes 4m",
    "munmap": "",
    "numa": "",
    "pagemove": "--pagemove-bytes 2m",
    "pageswap": "",
    "remap": "",
    "rmap": "",
    "shm": "--shm-bytes 4m --shm-objs 4",
    "shm-sysv": "--shm-sysv-bytes 2m --shm-sysv-segs 4",
    "stackmmap": "",
    "tlb-shootdown": "",
    "userfaultfd": "--userfaultfd-bytes 4m",
    "vfork": "",
    "vm": "--vm-bytes 16m --vm-keep",
    "vm-addr": "",
    "vm-rw": "--vm-rw-bytes 4m",
    "vm-segv": "",
    "vm-splice": "--vm-splice-bytes 256k",
    "zombie": "--zombie-max 16",
}
# The first worker poisons pages and may die of it, see poisoned(); the second does not.
WORKERS = {"madvise": 2}
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

# The bind mounts keep our programs from turning off what should be on: see tlb_rs_quiet().
HELPERS = r"""
say() { echo "{\"soak\":\"$1\",$2}"; }
put() { [ ! -e "$2" ] || echo "$1" >"$2" || echo "soak: $2 refused $1"; }
keep() {
	put "$1" "$2"
	[ ! -e "$2" ] || { cat "$2" >"/tmp/keep$3"; mount -o bind "/tmp/keep$3" "$2"; }
}
watch() {
	awk '/^(migrc_|tlb_batch_|cpu_pause|hvo_|pgmigrate_|numa_pages_migrated|numa_hint_faults |pswp|thp_split_page |ksm_|oom_kill)/ {
		printf "%s\"%s\":%s", n++ ? "," : "{\"soak\":\"vmstat\",", $1, $2 } END { print "}" }' /proc/vmstat
}
"""
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
	rm -f /tmp/yaml
	/usr/bin/stress-ng --timeout "$seconds" --verify --verbose --metrics --yaml /tmp/yaml --temp-path /mnt/tmp \
		--oomable "$@" & stress=$!
	begin=$(date +%s)
	# It takes a while to start, and its time counts from then on.
	until grep -qs '^stress-ng-' /proc/[0-9]*/comm || ! kill -0 $stress; do
		sleep 1
	done
	# What only computes must not take the time of what calls the kernel.
	renice 3 $$
	migrc_stress --seconds $((seconds + SLACK)) $toggle & migrc=$!
	tlb_batch_stress --seconds $((seconds + SLACK)) $toggle & batch=$!
	TLB_SECONDS=$((seconds + SLACK)) hvo_pool -t churn & hvo=$!
	renice -5 $$
	migrc_mover --seconds $((seconds + SLACK)) & mover=$!
	renice 0 $$
	(trap 'exit 0' TERM; while :; do sleep 7; put 1 /proc/sys/vm/compact_memory; done) & compact=$!
	while kill -0 $stress 2>/dev/null; do
		[ $(($(date +%s) - begin)) -lt $((seconds + GRACE)) ] || break
		sleep 1
	done
	if kill -0 $stress 2>/dev/null; then
		say late '"seconds":'$seconds
		dmesg -n 8
		echo w >/proc/sysrq-trigger
		exit 124
	fi
	wait $stress
	say end '"what":"stress-ng","status":'$?',"seconds":'$(($(date +%s) - begin))
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
	awk '$2 == "stressor:" { n = $3 }
	     $1 == "bogo-ops:" { printf "{\"soak\":\"bogo\",\"stressor\":\"%s\",\"ops\":%s}\n", n, $2 }' /tmp/yaml
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
# Of stress-ng: no resources, not on this kernel.
ACCEPTED = (3, 4)
# Programs of ours that have nothing to do there: kselftest's status 4. All others must not skip.
NOT_THERE = {"arm64": (), "x86_64": ("hvo_pool",)}
OOM = re.compile(r"(?:\S+ invoked oom-killer|Out of memory: |oom-kill:).*")
STRESS_FAIL = re.compile(r"^stress-ng: fail:.*", re.M)
STRESS_ERROR = re.compile(r"^stress-ng: (?:error|warn):.*", re.M)
# The stressor madvise poisons pages of its own; in one of its threads the signal is not handled.
POISONED = re.compile(r"Memory failure: .*Sending SIGBUS to stress-ng-madvi:")
DIED = re.compile(r"^stress-ng: .*\((?:stress-ng-)?([\w-]+)\) terminated on signal: (\d+)", re.M)
CASE = re.compile(r"^\s*not ok \d+ *-? *(.*)$", re.M)
SKIPPED = re.compile(r"^\s*ok \d+ (?:# SKIP )?((?<=# SKIP ).*|.*# SKIP .*)$", re.M)
# Every other round is without; nor does the emulator survive it on x86_64, see tlb_rs_patching_is_safe().
MAY_SKIP = re.compile(r"stress toggle: (?:not asked for|no live patching under x86_64 TCG)$")
# A thread that had no time, or to which the kernel refused everything: nothing was found wrong.
STORM = re.compile(r"# (\d+) steps of seed (\d+), the others stopped (\d+) times, (\d+) young entries")
STARVED = re.compile(r"stress .*: 0 done, \d+ refused, 0 wrong$|stress ledger: 0 pages deferred, 0 held at the end$")


# ---- what runs

def lengths(minutes, most=BOOT_MINUTES):
    """Minutes of each boot: as few as possible, of the same length."""
    boots = -(-minutes // most)
    return [minutes // boots + (number < minutes % boots) for number in range(boots)]


def rounds(seconds, length):
    """Seconds of each round of a boot."""
    count = max(1, round(seconds / length))
    return [seconds // count + (number < seconds % count) for number in range(count)]


def draw(seed, begin, count, at_once):
    """The stressors of the rounds from begin on: every one comes before any comes again, of all boots."""
    generator, deck, drawn = random.Random(seed), [], []
    for _ in range(begin + count):
        hand = []
        while len(hand) < min(at_once, len(STRESSORS)):
            if not deck:
                deck = sorted(STRESSORS)
                generator.shuffle(deck)
            # Left from the last shuffle, it may be in the hand already.
            hand.append(deck.pop(next(i for i, name in enumerate(deck) if name not in hand)))
        drawn.append(sorted(hand))
    return drawn[begin:]


def job(arch, seconds, seed, begin):
    """The guest's shell script for a boot, after that many rounds in other boots."""
    pace = PACE[arch]
    parts = rounds(seconds, pace["round"])
    lines = [f"LENGTH={seconds} GRACE={pace['grace']} SLACK={pace['slack']}", initramfs.LINK_USERLAND, HELPERS, JOB]
    for part, (length, names) in enumerate(zip(parts, draw(seed, begin, len(parts), pace["at_once"]))):
        workers = " ".join(f"--{name} {WORKERS.get(name, 1)} {STRESSORS[name]}".strip() for name in names)
        # Toggled all the time, deferrals never become old: every other round is without.
        lines.append(f"round {length} '{'--toggle' if part % 2 else ''}' {workers}")
    return "\n".join([*lines, END])


def storm_job(seconds, seed):
    """The guest's shell script for a boot of the storm."""
    return f"{HELPERS}TLB_SECONDS={seconds} TLB_SEED={seed} hvo_pool -t storm{STORM_END}"


# ---- what a boot says

def cause(output):
    """Failed cases of our programs: (those that are wrong, those that only had no time)."""
    failed = [case.strip() for case in CASE.findall(output)]
    return ([case for case in failed if not STARVED.match(case)], [case for case in failed if STARVED.match(case)])


def poisoned(text):
    """True if a stressor died of its own poison, and none of anything else that counts as a failure."""
    died = {death for death in DIED.findall(text) if death[1] != str(int(signal.SIGKILL))}
    return bool(POISONED.search(text)) and died == {("madvise", str(int(signal.SIGBUS)))}


def by_name(result):
    records = collections.defaultdict(list)
    for record in result.records:
        records[record.get("soak") or record.get("test")].append(record)
    return records


def counters(records):
    return {key: value for key, value in (records["vmstat"] or [{}])[-1].items() if key != "soak"}


def wrong_in_any(result):
    """What no boot may have, whatever runs in it."""
    failures = [splat.splitlines()[0] if len(splat.splitlines()) == 1 else
                next((line for line in splat.splitlines() if not re.match(r"-+\[ cut here|=+$", line)), "report")
                for splat in result.splats]
    failures += ["oracle: " + json.dumps(error) for error in result.oracle_errors]
    failures += result.problems
    failures += [body for kernel, body in console.lines(result.console) if kernel and OOM.match(body)]
    if result.job_exit not in (0, 124):
        failures.append(f"the job ended with status {result.job_exit}")
    return failures


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


def merge(boots):
    """All boots as one record: sums, but the largest of what was held."""
    total = {}
    for boot in boots:
        for key, value in boot.items():
            if isinstance(value, dict):
                old = total.get(key, {})
                total[key] = {name: old.get(name, 0) + value.get(name, 0) for name in sorted({*old, *value})}
            elif key == "worst_held":
                total[key] = max(total.get(key, 0), value)
            else:
                total[key] = total.get(key, type(value)()) + value
    return total


def explain(arch, total):
    """Lines for people."""
    vmstat, stats = total["vmstat"], total["stats"]
    denied = {key.split()[1]: value for key, value in stats.items() if key.startswith("denied ") and value}
    absent = sorted({*STRESSORS} - {*total["bogo_ops"]})
    lines = [f"{arch}: {total['seconds']} s, {total['rounds']} rounds in {total['boots']} boots, seed {total['seed']}",
             "stress-ng, bogo operations: " + ", ".join(f"{name} {ops}" for name, ops in total["bogo_ops"].items()) +
             (f"; not run: {', '.join(absent)}" if absent else ""),
             "migrate_pages() of its processes: " + str(total["moved_processes"]),
             f"migrc: {vmstat.get('migrc_deferred', 0)} pages deferred, {vmstat.get('migrc_flush', 0)} flushes, "
             f"at most {total['worst_held']} held, {vmstat.get('migrc_held', 0)} at the end",
             "denied: " + (", ".join(f"{name} {pages}" for name, pages in sorted(denied.items(), key=lambda d: -d[1]))
                           or "none"),
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

def stress_ng(arch):
    return initramfs.userland(arch, "stress-ng", "stress-ng")


def boot(arch, kernel, seconds, seed, begin, log):
    """One boot as a record."""
    pace = PACE[arch]
    def attempt():
        # A file system of its own: a boot that was stopped may have left anything in it.
        disk = guest.make_disk(OUT / f"{arch}.img", "1G", stress_ng(arch))
        try:
            return guest.boot(kernel, arch, job=job(arch, seconds, seed, begin), disk=disk, log=log,
                              append=f"kunit.enable=0 {measure.APPEND[arch]}",
                              timeout=seconds + pace["round"] + pace["grace"] + pace["slack"] + 600, **GUEST)
        finally:
            disk.unlink(missing_ok=True)

    result = measure.again(attempt)
    if result.boot_seconds is None or result.job_exit in (125, 126, 127):
        raise common.Fail(f"the stress did not start\n{result.report()}\n  console: {log}")
    if result.exit_status:
        print(result.report(), flush=True)
    return summary(arch, result)


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
    options = parser.parse_args()
    common.one_of("ARCH", options.arch, initramfs.ARCHES)
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
    stat = kernel.stat()
    asked = {"minutes": options.minutes, "kernel": [str(kernel), stat.st_size, stat.st_mtime_ns]}
    place = OUT / f"{options.arch}-state.json"
    state = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
    if state.get("asked") != asked or options.seed not in (None, state["seed"]):
        state = {"asked": asked, "seed": int(time.time()) if options.seed is None else options.seed, "done": []}
    state.setdefault("storms", [])
    plan = lengths(options.minutes)
    for number in range(len(state["done"]), len(plan)):
        print(f"{options.arch}: boot {number + 1} of {len(plan)}, {plan[number]} minutes", flush=True)
        common.store(place, state)
        begin = sum(done["rounds"] for done in state["done"])
        state["done"].append(boot(options.arch, kernel, plan[number] * 60, state["seed"], begin,
                                  OUT / f"{options.arch}-{number}.log"))
        common.store(place, state)
    storms = lengths(options.minutes, STORM_MINUTES) if options.arch in STORM_ARCHES else []
    for number in range(len(state["storms"]), len(storms)):
        print(f"{options.arch}: storm {number + 1} of {len(storms)}, {storms[number]} minutes", flush=True)
        # The program takes 31 bits of it, and not 0.
        state["storms"].append(storm(options.arch, kernel, storms[number] * 60, (state["seed"] + number) % (2**31 - 1) or 1,
                                     OUT / f"{options.arch}-storm-{number}.log"))
        common.store(place, state)
    total = {"arch": options.arch, "minutes": options.minutes, "seed": state["seed"], "boots": len(plan),
             **merge(state["done"])}
    if storms:
        total["storm"] = merge(state["storms"])
        total["failures"] += [f"storm: {failure}" for failure in total["storm"]["failures"]]
    common.store(OUT / f"{options.arch}.json", total)
    place.unlink(missing_ok=True)
    print(json.dumps(total))
    print("\n".join(explain(options.arch, total)))
    print(f"soak {'FAILED' if total['failures'] else 'passed'}; "
          f"{os.path.relpath(OUT / (options.arch + '.json'))}, consoles beside it")
    return 1 if total["failures"] else 0
