# SPDX-License-Identifier: GPL-2.0
"""What the boots of all soaks have: stress-ng and its stressors, and what a console says."""

import collections
import json
import random
import re
import signal
import time

from tlbrs.guest import console, guest, initramfs
from tlbrs.kernel import common
from tlbrs.report import measure

BOOT_MINUTES = 15

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

# The bind mounts keep our programs from turning off what should be on: see tlb_rs_quiet().
HELPERS = r"""
say() { echo "{\"soak\":\"$1\",$2}"; }
put() { [ ! -e "$2" ] || echo "$1" >"$2" || echo "soak: $2 refused $1"; }
keep() {
	put "$1" "$2"
	[ ! -e "$2" ] || { cat "$2" >"/tmp/keep$3"; mount -o bind "/tmp/keep$3" "$2"; }
}
watch() {
	awk '/^(migrc_|tlb_batch_|cpu_pause|hvo_|pgmigrate_|numa_pages_migrated|numa_hint_faults |pswp|thp_split_page |ksm_)/ ||
	     /^(oom_kill|pgdemote_|pgpromote_success )/ {
		printf "%s\"%s\":%s", n++ ? "," : "{\"soak\":\"vmstat\",", $1, $2 } END { print "}" }' /proc/vmstat
}
"""
STRESS_NG = r"""
# $1 seconds, the rest: of stress-ng
begin_stress() {
	seconds=$1
	shift
	rm -f /tmp/yaml
	/usr/bin/stress-ng --timeout "$seconds" --verify --verbose --metrics --yaml /tmp/yaml --temp-path /mnt/tmp \
		--oomable "$@" & stress=$!
	begin=$(date +%s)
	# It takes a while to start, and its time counts from then on.
	until grep -qs '^stress-ng-' /proc/[0-9]*/comm || ! kill -0 $stress; do
		sleep 1
	done
}
end_stress() {
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
}
bogo() {
	awk '$2 == "stressor:" { n = $3 }
	     $1 == "bogo-ops:" { printf "{\"soak\":\"bogo\",\"stressor\":\"%s\",\"ops\":%s}\n", n, $2 }' /tmp/yaml
}
"""
# Of stress-ng: no resources, not on this kernel.
ACCEPTED = (3, 4)
OOM = re.compile(r"(?:\S+ invoked oom-killer|Out of memory: |oom-kill:).*")
STRESS_FAIL = re.compile(r"^stress-ng: fail:.*", re.M)
STRESS_ERROR = re.compile(r"^stress-ng: (?:error|warn):.*", re.M)
# The stressor madvise poisons pages of its own; in one of its threads the signal is not handled.
POISONED = re.compile(r"Memory failure: .*Sending SIGBUS to stress-ng-madvi:")
DIED = re.compile(r"^stress-ng: .*\((?:stress-ng-)?([\w-]+)\) terminated on signal: (\d+)", re.M)
CASE = re.compile(r"^\s*not ok \d+ *-? *(.*)$", re.M)
SKIPPED = re.compile(r"^\s*ok \d+ (?:# SKIP )?((?<=# SKIP ).*|.*# SKIP .*)$", re.M)
# A thread that had no time, or to which the kernel refused everything: nothing was found wrong.
STARVED = re.compile(r"stress .*: 0 done, \d+ refused, 0 wrong$|stress ledger: 0 pages deferred, 0 held at the end$")


# ---- what runs

def stress_ng(arch):
    return initramfs.userland(arch, "stress-ng", "stress-ng")


def lengths(minutes, most=BOOT_MINUTES):
    """Minutes of each boot: as few as possible, of the same length."""
    boots = -(-minutes // most)
    return [minutes // boots + (number < minutes % boots) for number in range(boots)]


class Kept:
    """What of a soak is done: the same soak goes on from there; another one, or another kernel, begins anew."""

    def __init__(self, place, options, kernel):
        stat = kernel.stat()
        asked = {"minutes": options.minutes, "kernel": [str(kernel), stat.st_size, stat.st_mtime_ns],
                 "programs": common.sha256(initramfs.build(options.arch))}
        kept = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
        if kept.get("asked") != asked or options.seed not in (None, kept["seed"]):
            kept = {"asked": asked, "seed": int(time.time()) if options.seed is None else options.seed}
        self.place, self.arch, self.kept, self.seed = place, options.arch, kept, kept["seed"]

    def run(self, what, minutes, one):
        """The records of all boots of this kind; one(number, seconds, records so far) makes one."""
        done = self.kept.setdefault(what, [])
        for number in range(len(done), len(minutes)):
            print(f"{self.arch}: {what} {number + 1} of {len(minutes)}, {minutes[number]} minutes", flush=True)
            common.store(self.place, self.kept)
            done.append(one(number, minutes[number] * 60, done))
            common.store(self.place, self.kept)
        return done

    def ended(self):
        self.place.unlink(missing_ok=True)


def rounds(seconds, length):
    """Seconds of each round of a boot."""
    count = max(1, round(seconds / length))
    return [seconds // count + (number < seconds % count) for number in range(count)]


def draw(seed, begin, count, at_once, among=tuple(STRESSORS)):
    """The stressors of the rounds from begin on: every one comes before any comes again, of all boots."""
    generator, deck, drawn = random.Random(seed), [], []
    for _ in range(begin + count):
        hand = []
        while len(hand) < min(at_once, len(among)):
            if not deck:
                deck = sorted(among)
                generator.shuffle(deck)
            # Left from the last shuffle, it may be in the hand already.
            hand.append(deck.pop(next(i for i, name in enumerate(deck) if name not in hand)))
        drawn.append(sorted(hand))
    return drawn[begin:]


def workers(names):
    """What stress-ng is told of these."""
    return " ".join(f"--{name} {WORKERS.get(name, 1)} {STRESSORS[name]}".strip() for name in names)


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


def merge(all_boots):
    """All boots as one record: sums, but the largest of what was held."""
    total = {}
    for one in all_boots:
        for key, value in one.items():
            if isinstance(value, dict):
                old = total.get(key, {})
                total[key] = {name: old.get(name, 0) + value.get(name, 0) for name in sorted({*old, *value})}
            elif key == "worst_held":
                total[key] = max(total.get(key, 0), value)
            else:
                total[key] = total.get(key, type(value)()) + value
    return total


def denied(stats):
    """A line about what migrc did not defer, the most frequent reason first."""
    pages = {key.split()[1]: value for key, value in stats.items() if key.startswith("denied ") and value}
    return "denied: " + (", ".join(f"{name} {n}" for name, n in sorted(pages.items(), key=lambda d: -d[1])) or "none")


# ---- the boots

def boot(kernel, arch, log, append="kunit.enable=0", **options):
    """A boot with stress-ng on a disk of its own: one that was stopped may have left anything in it."""
    def attempt():
        disk = guest.make_disk(log.with_suffix(".img"), "1G", stress_ng(arch))
        try:
            return guest.boot(kernel, arch, disk=disk, log=log, append=f"{append} {measure.APPEND[arch]}", **options)
        finally:
            disk.unlink(missing_ok=True)

    result = measure.again(attempt)
    if result.boot_seconds is None or result.job_exit in (125, 126, 127):
        raise common.Fail(f"the stress did not start\n{result.report()}\n  console: {log}")
    if result.exit_status:
        print(result.report(), flush=True)
    return result
