# SPDX-License-Identifier: GPL-2.0
"""The commands of Documentation/admin-guide/mm/tlb_maintenance.rst, as that page has them, run while known work runs.

Each literal block of the page is a recipe, named by its first map, by the switch that it writes or by what it runs.
CHECKS says what it must print: counts are compared with /proc/vmstat, which is read within and around the time that a
recipe looks at.
"""

import dataclasses
import re
import tempfile
import textwrap
from pathlib import Path

from tlbrs.guest import initramfs
from tlbrs.kernel import toolchain
from tlbrs.kernel.common import ROOT

PAGE = ROOT / "Documentation/admin-guide/mm/tlb_maintenance.rst"
PACKAGES = ("bpftrace", "linux-perf")
MARK = "| "     # before each line that a recipe prints
PAGES = 1024


# ---- the page

def blocks(text):
    """The literal blocks of reStructuredText: what is indented below a paragraph that ends with '::'."""
    found, block, indent, before = [], [], 0, [""]
    for line in [*text.splitlines(), "end"]:
        deeper = len(line) - len(line.lstrip()) > indent
        if block and (deeper or not line.strip()):
            block.append(line)
            continue
        if block:
            found.append(textwrap.dedent("\n".join(block)).strip("\n"))
            block, before = [], [""]
        # The paragraph's last line, and an empty one at least.
        if deeper and before[0].rstrip().endswith("::") and len(before) > 1:
            block = [line]
        elif line.strip():
            indent, before = len(line) - len(line.lstrip()), [line]
        else:
            before.append(line)
    return found


def recipes(text):
    """{name: command}"""
    found = {}
    for command in blocks(text):
        patterns = (r"@(\w+)", r"\bsysctl -w vm\.(\w+)=", r"\b(perf \w+)", r"^(\w+)")
        name = next(m.group(1) for p in patterns if (m := re.search(p, command))).replace(" ", "_")
        if name in found:
            raise ValueError(f"two recipes are called {name}")
        found[name] = command
    return found


def under_load(command):
    """The same command, which ends when the load does."""
    # A script is no program to bpftrace.
    command, n = re.subn(r"\bbpftrace(?= -e )", "bpftrace -c '/bin/sh /tmp/load'", command)
    command, m = re.subn(r"-- sleep \d+", "-- sh /tmp/load", command)
    if n + m != len(re.findall(r"\bbpftrace\b|\bperf (?:stat|record)\b", command)):
        raise ValueError(f"nothing ends this command with its load: {command}")
    return command


# ---- the load

# The types of the events' fields: bpftrace has them from BTF, which takes pahole and debug information to build.
TYPES = """
#include <linux/migrate_mode.h>
typedef unsigned long long u64;
typedef _Bool bool;
struct fields {
	void *pointer;
	unsigned char byte;
	unsigned short half;
	int number;
	unsigned int word;
	unsigned long size;
	u64 nanoseconds;
	bool flag;
	enum migrate_mode mode;
	enum migrate_reason reason;
} fields;
"""


def make_btf(tree, path):
    """BTF of TYPES in a file, of a kernel tree; the same on both architectures."""
    with tempfile.TemporaryDirectory() as tmp:
        source = Path(tmp) / "types.c"
        source.write_text(TYPES, encoding="ascii")
        obj = source.with_suffix(".o")
        initramfs.run([toolchain.llvm_tool("clang"), "--target=bpf", "-g", "-O2", "-nostdinc", "-I", tree / "include",
                       "-c", source, "-o", obj])
        initramfs.run([toolchain.llvm_tool("llvm-objcopy"), f"--dump-section=.BTF={path}", obj])
    return path


POOL = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
HVO = "/sys/module/hvo/parameters"
# An emulated CPU may not run for many milliseconds.
PATIENT = f"""
echo 1 > /proc/sys/vm/hugetlb_optimize_vmemmap
echo pause > {HVO}/strategy
echo 200000 > {HVO}/ack_timeout_us
echo 1000000 > {HVO}/pause_budget_us
echo 100 > {HVO}/duty_pct
"""
LOADS = {
    # What is read-only is deferred, what is writable is denied; then the ledger is drained for its age.
    "move": f"tlb_batch_move_bench --pages {PAGES} --readers 2\n"
            "while ! grep -q '^migrc_held 0$' /proc/vmstat; do sleep 1; done\n",
    "pool": f"{PATIENT}echo 64 > {POOL}\necho 0 > {POOL}\n",
    # Few answer in a microsecond. But who waits may itself not run until they have.
    "late": f"{PATIENT}echo 1 > {HVO}/ack_timeout_us\necho 2 > {HVO}/retries\n"
            f"for i in $(seq 50); do\necho 64 > {POOL}\necho 0 > {POOL}\n"
            "if grep -q '^cpu_pause_cancelled [1-9]' /proc/vmstat; then break; fi\ndone\n",
}
LOAD = """set -e
trap 'echo $? > /tmp/load.status' EXIT
[ -e /tmp/vmstat1 ] || cat /proc/vmstat > /tmp/vmstat1
{
%s} > /tmp/load.log 2>&1
cat /proc/vmstat > /tmp/vmstat2
"""
BTF = "fields.btf"      # in the guest's root
RUN = r"""
# perf leaves its data here.
cd /tmp
export PATH=$PATH:/usr/bin:/usr/sbin
[ -e /sys/kernel/btf/vmlinux ] || export BPFTRACE_BTF=/BTF
bpftrace --version
perf --version
echo 1 > /proc/sys/vm/migrc_enable
vmstat() {
	awk -v at="$1" '/^(tlb_batch_|migrc_|cpu_pause|pgmigrate_success|nr_tlb_)/ {
		printf "%s\"%s\":%s", n++ ? "," : "\"vmstat" at "\":{", $1, $2 } END { printf "}" }' "/tmp/vmstat$1"
}
# $1 with the load $2
recipe() {
	rm -f /tmp/vmstat* /tmp/load.status /tmp/load.log
	[ -z "$2" ] || cp "/tmp/load-$2" /tmp/load
	cat /proc/vmstat > /tmp/vmstat0
	status=0
	timeout -s KILL 600 sh "/tmp/recipe-$1" > /tmp/out 2>&1 || status=$?
	cat /proc/vmstat > /tmp/vmstat3
	echo "recipe $1"
	sed 's/^/MARK/' /tmp/out
	[ ! -e /tmp/load.log ] || cat /tmp/load.log
	printf '{"recipe":"%s","status":%s,"load":%s' "$1" "$status" "$(cat /tmp/load.status 2>/dev/null || echo null)"
	for at in 0 1 2 3; do
		[ ! -e /tmp/vmstat$at ] || { printf ,; vmstat $at; }
	done
	echo "}"
}
""".replace("MARK", MARK).replace("/BTF", f"/{BTF}")


def job(arch, text):
    """The guest's script."""
    parts, calls = ["set -e"], []

    def file(name, content):
        parts.append(f"cat > {name} <<'END_OF_FILE'\n{content}\nEND_OF_FILE")

    for name, work in LOADS.items():
        file(f"/tmp/load-{name}", LOAD % work)
    for name, command in recipes(text).items():
        if arch in CHECKS[name].arches:
            file(f"/tmp/recipe-{name}", "set -e\n" + under_load(command))
            calls.append(f"recipe {name} '{CHECKS[name].load}'")
    return "\n".join([*parts, initramfs.LINK_USERLAND, RUN, *calls])


# ---- what they print

def maps(text):
    """{map: {key: value}} of bpftrace: a number, {name: number} of stats(), or the sum of a histogram's counts.

    The key is text, "" if there is none; stacks are part of it.
    """
    found = {}
    for m in re.finditer(r"^@(\w+)(?:\[([^]]*)\])?:(.*)\n((?:[\[(].*\|.*\|\n)*)", text + "\n", re.M):
        name, key, value, bars = m.group(1), m.group(2) or "", m.group(3).strip(), m.group(4)
        if bars:
            value = sum(int(n) for n in re.findall(r"[\])] +(\d+) \|", bars))
        elif re.fullmatch(r"-?\d+", value):
            value = int(value)
        else:   # of stats(): "count 3, ...", or "{ .count = 3, ... }" of newer ones
            value = {word: int(n) for word, n in re.findall(r"(\w+)(?: =)? (-?\d+)", value)}
        found.setdefault(name, {})[key] = value
    return found


class Wrong(Exception):
    """What a recipe printed does not agree with what was done."""


class Output:
    """What a recipe printed, and what the kernel counted meanwhile."""

    def __init__(self, record, text, reasons):
        self.record, self.text, self.reasons = record, text, reasons
        self.maps = maps(text)

    def map(self, name):
        if not self.maps.get(name):
            raise Wrong(f"nothing in @{name}")
        return self.maps[name]

    def total(self, name, field=None):
        return sum(v[field] if field else v for v in self.map(name).values())

    def grown(self, first, last, *keys):
        return sum(self.record[f"vmstat{last}"].get(k, 0) - self.record[f"vmstat{first}"].get(k, 0) for k in keys)

    def agree(self, count, *keys, least=1):
        """All of the load, and no more than all around it."""
        inner, outer = self.grown(1, 2, *keys), self.grown(0, 3, *keys)
        if not max(least, inner) <= count <= outer:
            raise Wrong(f"{count} of {' + '.join(keys)}, of which there were {inner} to {outer}, at least {least}")

    def says(self, pattern, what):
        found = re.findall(pattern, self.text, re.M)
        if not found:
            raise Wrong(f"no {what}")
        return found


def check_names(out):
    # Later recipes print these numbers.
    out.reasons |= {name: number for number, name in out.says(r'\{ *(\d+), "(\w+)" *\}', "names of reasons")}
    if "writable" not in out.reasons:
        raise Wrong(f"only {out.reasons}")


def check_pages(out):
    out.agree(out.total("pages", "count"), "tlb_batch_ranges")
    out.agree(out.total("pages", "total"), "tlb_batch_pages", least=PAGES)


def check_callers(out):
    out.agree(out.total("callers"), "tlb_batch_ranges")
    if not any("tlb_batch_move_" in key and "migrate_pages" in key for key in out.map("callers")):
        raise Wrong("no migration by tlb_batch_move_bench")


def check_shootdowns(out):
    # flush_tlb_all() is counted, but not traced.
    if not 0 < out.map("shootdowns").get("4", 0) <= out.grown(0, 3, "nr_tlb_remote_flush"):
        raise Wrong(f"{out.map('shootdowns')}, but {out.grown(0, 3, 'nr_tlb_remote_flush')} were sent")


def check_migrated(out):
    # To the other node and back, read-only and writable.
    out.agree(out.total("migrated"), "pgmigrate_success", least=4 * PAGES)


def check_denied(out):
    out.agree(out.total("denied"), "migrc_denied")
    if out.map("denied").get(out.reasons.get("writable"), 0) < PAGES:
        raise Wrong(f"writable pages were moved, denied were {out.map('denied')}; reasons are {out.reasons}")


def check_drained(out):
    out.agree(out.total("drained", "total"), "migrc_deferred", least=PAGES)


def check_age(out):
    if not out.grown(1, 2, "migrc_drain_age") <= out.total("age_us") == out.total("drain_us"):
        raise Wrong(f"{out.total('age_us')} ages and {out.total('drain_us')} times of "
                    f"{out.grown(1, 2, 'migrc_drain_age')} drains")


def check_stopped(out):
    out.agree(out.total("stopped_us"), "cpu_pause", "cpu_pause_fallback")


def check_cancelled(out):
    # Nobody is missing (-1) where a CPU was coming up or going down.
    out.agree(sum(n for key, n in out.map("cancelled").items() if not key.endswith("-1")), "cpu_pause_cancelled")


def check_batch(out):
    for what in (r"\bcycles:k\b", r"^ *[\d,]+ +page-faults\b", r"\bseconds time elapsed$"):
        if len(out.says(what, what)) != 2:
            raise Wrong(f"not two of {what}")
    for counter, least in (("tlb_batch_pages", PAGES), ("tlb_batch_ranges", 1)):
        found = [int(n) for n in out.says(rf"^{counter} (\d+)$", counter)]
        if len(found) != 2:
            raise Wrong(f"not two of {counter}")
        # Without the switch there are none.
        out.agree(found[1] - found[0], counter, least=least)


def check_stat(out):
    counts = {event: [int(n.replace(",", "")) for n in out.says(rf"^ *([\d,]+) +{event}\b", event)]
              for event in ("migrate:mm_migrate_pages", "tlb_batch:tlb_batch_flush", "migrc:migrc_drain")}
    if [len(found) for found in counts.values()] != [2, 2, 2] or len(out.says("dTLB-load-misses", "TLB misses")) != 2:
        raise Wrong(f"not two of each: {counts}")
    out.agree(sum(counts["tlb_batch:tlb_batch_flush"]), "tlb_batch_ranges")
    off, on = counts["migrc:migrc_drain"]
    if min(counts["migrate:mm_migrate_pages"]) == 0 or on <= off:
        raise Wrong(f"{counts}")


def check_record(out):
    pages = out.says(r"tlb_batch:tlb_batch_flush: mm=\S+ start=\S+ pages=(\d+) reason=\w+$", "flush")
    # A reader that is slow loses events, and says so.
    lost = re.search(r"lost [1-9]|Lost Samples: [1-9]", out.text)
    if not lost:
        out.agree(sum(map(int, pages)), "tlb_batch_pages", least=PAGES)
    out.says(r"migrc:migrc_deny: pages=1 reason=writable$", "denial")
    out.says(r"^ +[\d.]+% +tlb_batch_move_ +writable", "denials in the report")
    out.says("migrate_pages", "stacks")


@dataclasses.dataclass(frozen=True)
class Check:
    look: object
    load: str = "move"
    arches: tuple = ("arm64", "x86_64")


ARM64 = ("arm64",)      # others need no pause
CHECKS = {
    "grep": Check(check_names, ""),
    "pages": Check(check_pages),
    "callers": Check(check_callers),
    "shootdowns": Check(check_shootdowns, arches=("x86_64",)),
    "migrated": Check(check_migrated),
    "denied": Check(check_denied),
    "drained": Check(check_drained),
    "age_us": Check(check_age),
    "stopped_us": Check(check_stopped, "pool", ARM64),
    "cancelled": Check(check_cancelled, "late", ARM64),
    "tlb_batch": Check(check_batch),
    "migrc_enable": Check(check_stat),
    "perf_record": Check(check_record),
}


def outputs(console):
    """{recipe: what it printed}"""
    found, name = {}, None
    for line in console.splitlines():
        if m := re.fullmatch(r"recipe (\w+)", line):
            name = m.group(1)
            found[name] = []
        elif line.startswith(MARK) and name:
            found[name].append(line[len(MARK):])
    return {name: "\n".join(lines) for name, lines in found.items()}


def verdicts(arch, text, console, records):
    """[(recipe, None or what is wrong)] of a boot."""
    said, done = outputs(console), {r["recipe"]: r for r in records if "recipe" in r}
    reasons, found = {}, []
    for name in recipes(text):
        check, record = CHECKS[name], done.get(name)
        if arch not in check.arches:
            continue
        wrong = None
        if record is None:
            wrong = "it was not run"
        elif record["status"] or record["load"] != (0 if check.load else None):
            wrong = f"status {record['status']}, load {record['load']}"
        else:
            try:
                check.look(Output(record, said.get(name, ""), reasons))
            except Wrong as error:
                wrong = str(error)
            except KeyError as error:
                wrong = f"no {error} in what it printed, or in the counters around it"
        found.append((name, wrong))
    return found
