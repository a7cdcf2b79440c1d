# SPDX-License-Identifier: GPL-2.0
"""Build and boot every kernel of a list: other debug options, other configurations, the other base.

usage: tlb-rs matrix [--list] [NAME...]     (make matrix KERNELS='arm64-rt x86_64-up'; default: all)

Each boots KUnit, the programs that look for what may go wrong, and stress while allocations fail where the kernel can
do that. A program may skip only what is named here for its kernel. What passed is not run again until a file that it is
made of changes: an interrupted run goes on, and so does one on another day. The table is in build/matrix/matrix.md, the
consoles beside it. Exit status 1 if a kernel failed.
"""

import argparse
import dataclasses
import hashlib
import inspect
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from tlbrs.guest import console, guest, initramfs
from tlbrs.kernel import common, kernel as kernel_tool, overlay, source, toolchain
from tlbrs.kernel.common import ROOT
from tlbrs.report import measure
from tlbrs.suites import compiled_out

OUT = common.BUILD / "matrix"


@dataclasses.dataclass(frozen=True)
class Kernel:
    arch: str
    variant: str
    about: str
    kver: str = "7.3"
    appends: tuple = ("",)      # a boot each
    # Reports that are not of our code.
    allow: tuple = ()
    options: tuple = ()         # (option, value) of guest.boot()
    qemu: tuple = (0, 0)        # not with an older one
    # Programs of the job that may skip, because of what it does not have; judged when a record is read, not of it.
    skips: tuple = dataclasses.field(default=(), repr=False)

    @property
    def name(self):
        return f"{self.arch}-{self.variant}" + (f"-{self.kver}" if self.kver != "7.3" else "")


# As the kernel writes them: what begins in the first column is no statement.
FUNCTION = re.compile(r"^[a-z_][\w \t*]*(?:\n[\w \t*]*)?\b(\w+)\((?:[^(){}]|\([^(){}]*\))*\)[\w\s()&>-]*?\{", re.M)


def added(patch):
    """The functions that a patch defines, without those that it merely changes: these are of stock."""
    lines = re.findall(r"^[ +-](?![+-]{2} ).*", patch, re.M)
    new, old = ({*FUNCTION.findall("\n".join(line[1:] for line in lines if line[0] in side))} for side in (" +", " -"))
    return new - old


def ours():
    """The functions that are defined in our C files of the kernel, or by the series."""
    files = [f for name, f in overlay.overlay_files().items()
             if f.suffix in (".c", ".h") and not name.startswith("tools/")]
    return {name for f in files for name in FUNCTION.findall(f.read_text(encoding="utf-8"))}.union(
        *(added(f.read_text(encoding="utf-8")) for _, f in overlay.patch_files()))


# Of data races only those that our functions take part in: stock has its own. The name of a test is no function. Rust
# and tracepoints are known by a part of their names. And whoever counts an event races with who reads /proc/vmstat, as
# ever.
NOT_OURS = (r"(?ms)\A(?:=+\n)?BUG: KCSAN: (?!.*^ *(?:\S*(?:migrc|tlb_batch|tlb_oracle|hvo|arm64_pause|pause_cpus)\S*|"
            rf"(?:{'|'.join(sorted(ours()))})(?:\.\S+)?)\+0x)",
            r"\A(?:=+\n)?BUG: KCSAN: data-race in [^\n]*\bvmstat_start\b")
# A doctest of stock takes spinlocks with interrupts disabled, which is an error with PREEMPT_RT only.
DOCTEST = (r"BUG: sleeping function(?s:.*)rust_doctest_kernel_sync_lock_spinlock_rs_",)
POISON = ("page_poison=1", "init_on_free=1 page_poison=0")
# What needs two nodes, huge pages (rt has none, either) or pages of 4 KiB; and what is of arm64.
NODES = ("tlb_batch_move_bench", "tlb_batch_mark", "tlb_batch_stale_litmus", "tlb_batch_task", "migrc_stale",
         "migrc_blocks", "migrc_file", "migrc_readmostly", "migrc_bounds", "migrc_stress", "migrc_mover")
HUGE = ("tlb_batch_thp_split", "tlb_batch_task")
SMALL = ("tlb_batch_task",)
HVO = ("hvo_pool",)
OF_ARM64 = {"arm64": (), "x86_64": HVO}
# The emulated CPUs would do without.
KPTI = {"arm64": ("kpti=1",), "x86_64": ("pti=on",)}
KERNELS = (
    *(Kernel(arch, "debug", "KASAN, PROVE_LOCKING, PROVE_RCU, DEBUG_VM, PAGE_TABLE_CHECK, DEBUG_ATOMIC_SLEEP, "
             "FAIL_PAGE_ALLOC", skips=OF_ARM64[arch]) for arch in ("arm64", "x86_64")),
    *(Kernel(arch, "hardened", "DEBUG_VM_PGTABLE, page poisoning, then init_on_free; KFENCE, FAILSLAB", appends=POISON,
             skips=OF_ARM64[arch])
      for arch in ("arm64", "x86_64")),
    *(Kernel(arch, "distro", "what distributions build: kCFI, KPTI, KASLR, LRU_GEN, ZSWAP, guests of Xen, KVM, Hyper-V",
             appends=KPTI[arch], skips=OF_ARM64[arch]) for arch in ("arm64", "x86_64")),
    *(Kernel(arch, "kcsan", "KCSAN, of our C code", allow=NOT_OURS, skips=OF_ARM64[arch])
      for arch in ("arm64", "x86_64")),
    *(Kernel(arch, "rt", "PREEMPT_RT, and so !TRANSPARENT_HUGEPAGE", allow=DOCTEST, skips=(*HUGE, *OF_ARM64[arch]))
      for arch in ("arm64", "x86_64")),
    Kernel("arm64", "nonuma", "!NUMA", options=(("nodes", 1),), skips=NODES),
    Kernel("arm64", "nothp", "!TRANSPARENT_HUGEPAGE", skips=HUGE),
    # QEMU 7.2.22 does not boot it, stock neither: one tag for a whole page. 10.0.2 does.
    Kernel("arm64", "mte", "KASAN_HW_TAGS", options=(("mte", True),), qemu=(10, 0)),
    # tlb_batch_refault needs three CPUs.
    Kernel("x86_64", "up", "!SMP, !NUMA, where nothing of ours is offered", options=(("nodes", 1), ("smp", 1)),
           skips=(*NODES, *HVO, "tlb_batch_refault")),
    Kernel("arm64", "16k", "pages of 16 KiB", options=(("mem", "6G"),), skips=SMALL),
    # A huge page is 512 MiB there.
    Kernel("arm64", "64k", "pages of 64 KiB", options=(("disk", "2G"), ("mem", "8G")), skips=SMALL),
)
# KUnit suites of ours, and their options.
KUNIT = {"CONFIG_RUST_TLB_BATCH_KUNIT_TEST": ("rust_tlb_batch", "tlb_batch_main"),
         "CONFIG_MIGRC_KUNIT_TEST": ("migrc",), "CONFIG_HVO_KUNIT_TEST": ("hvo",)}
# Programs skip (status 4) what this kernel or machine does not have: see Kernel.skips.
JOB = r"""
status=0
# Of status $1, of what is called $2.
verdict() {
	case $1 in
	0) echo "matrix: passed: $2" ;;
	4) echo "matrix: skipped: $2" ;;
	*) status=1; echo "matrix: failed: $2" ;;
	esac
}
run() {
	echo "matrix: run: $*"
	"$@"
	verdict $? "$*"
}
# Process $1, the program $2 in the background.
ended() {
	wait $1
	set -- $? $2
	echo "matrix: run: $2"
	cat /tmp/$2
	verdict $1 $2
}
places() {
	for fault in failslab fail_page_alloc; do
		[ ! -e /sys/kernel/debug/$fault ] || echo /sys/kernel/debug/$fault
	done
}
# Process $1 has come to its second thread.
threads() {
	set -- /proc/$1/task/*
	[ $# -gt 1 ]
}
# Of 100 allocations of process $2, $1 fail from now on. Not of one that has yet to begin: it would not.
failing() {
	for place in $(places); do
		echo Y > $place/task-filter
		echo $1 > $place/probability
		echo 1000000 > $place/times
		echo 0 > $place/verbose
		[ ! -e $place/ignore-gfp-wait ] || echo N > $place/ignore-gfp-wait
		[ ! -e $place/ignore-gfp-highmem ] || echo N > $place/ignore-gfp-highmem
		[ ! -e $place/min-order ] || echo 0 > $place/min-order
	done
	echo 1 > /proc/$2/make-it-fail
}
# Of each kind some, and the program has done something.
failed() {
	for place in $(places); do
		echo "matrix: $(basename $place) $((1000000 - $(cat $place/times)))"
		[ $(cat $place/times) -lt 1000000 ] || return 1
	done
	sed 's/^/matrix: /' "$1"
	grep -q '"calls":[1-9]' "$1"
}
run tlb_batch_thp_split --dir /mnt --thps 2
run tlb_batch_move_bench --pages 512
TLB_ROUNDS=5 run tlb_batch_mark
run tlb_batch_stale_litmus --rounds 50 --expect-none
TLB_DIR=/mnt TLB_ROUNDS=5 run tlb_batch_refault -v file
run tlb_batch_task
TLB_ROUNDS=2 run migrc_stale
TLB_ROUNDS=2 run migrc_blocks
TLB_ROUNDS=2 run migrc_file
run migrc_readmostly
run migrc_bounds -t limit
run migrc_bounds -t poison
run hvo_pool -t pool
run hvo_pool -t use
tlb_batch_stress --seconds 20 --toggle > /tmp/tlb_batch_stress & batch=$!
migrc_stress --seconds 20 --toggle > /tmp/migrc_stress & migrc=$!
if [ -e /proc/self/make-it-fail ] && [ -d /sys/devices/system/node/node1 ]; then
	migrc_mover --name migrc_stress --seconds 15 > /tmp/mover 2>&1 & mover=$!
	until threads $mover || ! kill -0 $mover; do sleep 0.1; done
	failing 10 $mover
	wait $mover
	# Whom memory is refused may say so.
	run failed /tmp/mover
else
	verdict 4 migrc_mover
fi
ended $batch tlb_batch_stress
ended $migrc migrc_stress
[ ! -e /proc/sys/vm/migrc_enable ] || echo 0 > /proc/sys/vm/migrc_enable
grep -E '^(migrc_|tlb_batch_|cpu_pause)' /proc/vmstat
! grep -E '^migrc_held [1-9]' /proc/vmstat || status=1
exit $status
"""


def identity(kernel):
    """Changes with all that the kernel, or what it is tested with, is made of, but for its documentation."""
    modules = (compiled_out, measure, console, guest, initramfs, initramfs.programs)
    tools = [Path(tool.__file__) for tool in modules]
    tools += list(Path(kernel_tool.__file__).parent.glob("*.py"))
    files = [*overlay.overlay_files().items(), *overlay.patch_files(),
             *((f.name, f) for f in kernel_tool.fragments(kernel.arch, kernel.variant)),
             *((f.name, f) for f in (*tools, initramfs.HERE / "init", *sorted(initramfs.TLBSTAT.glob("*.[ch]"))))]
    base = source.cached(kernel.kver)
    parts = (repr(kernel), base.name if base else "", JOB, repr(KUNIT), repr(toolchain.kernel_tools()),
             repr(guest.qemu_version(guest.QEMU[kernel.arch][0])), common.output([toolchain.find_rustc(), "--version"]),
             *map(inspect.getsource, (build, boot, run, absent, skipped)))
    digest = hashlib.sha256("".join(parts).encode())
    for name, file in sorted((str(name), file) for name, file in files):
        if not name.startswith("Documentation/"):
            digest.update(f"{name} {common.sha256(file)}\n".encode())
    return digest.hexdigest()


def build(kernel):
    """Seconds, or None."""
    begin = time.monotonic()
    words = [sys.executable, ROOT / "tools/tlb-rs", "kernel", "build", "--arch", kernel.arch, "--variant", kernel.variant,
             "--kver", kernel.kver]
    done = common.status(words, cwd=ROOT, stdout=subprocess.DEVNULL) == 0
    return round(time.monotonic() - begin) if done else None


def absent(ktap, config):
    """The KUnit suites of ours that a configuration has, and that did not pass."""
    passed = {m[1] for line in ktap if (m := re.match(r"ok \d+ (\w+)\s*$", line))}
    return [f"KUnit suite {name} did not pass" for option, names in KUNIT.items() if config.get(option) == "y"
            for name in names if name not in passed]


def skipped(text):
    """Programs of a console that say by their status, or of all of their cases, that they were not run."""
    text = console.joined(text)
    found = re.findall(r"^matrix: skipped: (.*)$", text, re.M)
    for name, said in re.findall(r"^matrix: run: (.*)\n((?s:.*?))^matrix: passed: \1$", text, re.M):
        cases = re.findall(r"^(?:not )?ok \d.*", said, re.M)
        found += [name] * (bool(cases) and all("# SKIP" in case for case in cases))
    return found


def boot(kernel, append, number):
    """(seconds, passed cases, reasons to fail, programs that were skipped)"""
    options = {"disk": "256M", "swap": "disk:256M", "mem": "4G", "timeout": 1800} | dict(kernel.options)
    image = guest.kernel_path(kernel.arch, kernel.variant, kernel.kver)
    result = measure.again(lambda: guest.boot(image, kernel.arch, job=JOB,
                                              append=f"{append} {measure.APPEND[kernel.arch]}", allow=kernel.allow,
                                              log=OUT / f"{kernel.name}-{number}.log", **options),
                           lambda what: print(f"{kernel.name}: {what}", flush=True))
    cases = [line for line in result.ktap if re.match(r"ok \d", line) and "# SKIP" not in line]
    failed = [splat.strip().splitlines()[0] for splat in result.splats] + result.problems
    failed += [line for line in result.ktap if line.startswith("not ok")]
    failed += ["no such case"] * ("1..0" in result.ktap)
    failed += absent(result.ktap, kernel_tool.options((image.parent / ".config").read_text(encoding="utf-8")))
    failed += [f"status {result.job_exit}"] * bool(result.job_exit)
    if not failed and (result.exit_status or not cases):
        failed.append(f"status {result.exit_status}, {len(cases)} cases")
    return round(result.seconds), len(cases), failed, skipped(result.console)


def run(kernel):
    """A record: {identity, build, boots, skipped, failed}"""
    record = {"identity": identity(kernel), "build": build(kernel), "boots": [], "skipped": []}
    if record["build"] is None:
        record["failed"] = ["does not build"]
        return record
    objects = [guest.kernel_path(kernel.arch, kernel.variant, kernel.kver).parent / obj for obj in compiled_out.NOINSTR]
    quiet = [f"{obj.name}: noinstr calls {', '.join(found)}" for obj in objects if obj.exists() and
             (found := compiled_out.disturbances(toolchain.llvm_tool("llvm-objdump"), obj))]
    record["boots"] = [boot(kernel, append, number) for number, append in enumerate(kernel.appends)]
    record["failed"] = quiet + [why for _, _, failed, _ in record["boots"] for why in failed]
    record["skipped"] = list(dict.fromkeys(name for *_, names in record["boots"] for name in names))
    return record


def failures(kernel, record):
    """Why it failed, with what may not be skipped there."""
    return list(dict.fromkeys([*record["failed"], *(f"skipped: {name}" for name in record["skipped"]
                                                    if name.split()[0] not in kernel.skips)]))


def table(records):
    """Markdown."""
    lines = ["| kernel | options | build, s | boot and tests, s | cases | skipped | failed |",
             "|---|---|---:|---:|---:|---|---|"]
    for kernel in KERNELS:
        if not (record := records.get(kernel.name)):
            lines.append(f"| {kernel.name} | {kernel.about} | | | | | not run |")
            continue
        seconds, cases = (sum(b[n] for b in record["boots"]) for n in (0, 1))
        lines.append(f"| {kernel.name} | {kernel.about} | {record['build']} | {seconds} | {cases} | "
                     f"{', '.join(record['skipped']) or 'none'} | {'; '.join(failures(kernel, record)) or 'none'} |")
    return lines


def load(kernel):
    place = OUT / f"{kernel.name}.json"
    return json.loads(place.read_text(encoding="utf-8")) if place.exists() else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="*", default=os.environ.get("KERNELS", "").split())
    parser.add_argument("--list", action="store_true", help="only show what there is")
    options = parser.parse_args()
    names = [k.name for k in KERNELS]
    if unknown := set(options.name) - set(names):
        raise common.Fail(f"no kernel {', '.join(sorted(unknown))} in the matrix; there are {', '.join(names)}")
    OUT.mkdir(parents=True, exist_ok=True)
    chosen = [k for k in KERNELS if not options.name or k.name in options.name]
    for kernel in () if options.list else list(chosen):
        if kernel.qemu > (0, 0) and guest.qemu_version(guest.QEMU[kernel.arch][0]) < kernel.qemu:
            print(f"{kernel.name}: not run: needs QEMU {'.'.join(map(str, kernel.qemu))}", flush=True)
            chosen.remove(kernel)
            continue
        record = load(kernel)
        if record and record["identity"] == identity(kernel) and not failures(kernel, record):
            print(f"{kernel.name}: passed before, nothing has changed", flush=True)
            continue
        record = run(kernel)
        common.store(OUT / f"{kernel.name}.json", record)
        print(f"{kernel.name}: " + ("; ".join(failures(kernel, record)) or "passed"), flush=True)
    # What was passed by other files than these does not count.
    records = {k.name: r for k in KERNELS if (r := load(k)) and r["identity"] == identity(k)}
    lines = table(records)
    print("\n".join(lines))
    if options.list:
        return 0
    (OUT / "matrix.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    failed = [k.name for k in chosen if k.name not in records or failures(k, records[k.name])]
    print(f"{len(chosen) - len(failed)} of {len(chosen)} kernels passed")
    return 1 if failed or not chosen else 0
