#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Run test suites, print what failed, a summary of each suite and at the end `N passed, N failed`.

usage: test.py [SUITE...]     (make test SUITE="style kunit"; default: all but debug, pages, fs, hvo, abuse,
                                              stock, recipes, docs, commits, chroot, sabotage_all)

What passed is in build/test/SUITE.txt; V=1 prints it, too. ARCH= chooses one architecture.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools" / d) for d in ("check", "guest", "kernel", "recipes", "report", "test")]
import commits as exported  # noqa: E402
import common  # noqa: E402
import compiled_out  # noqa: E402
import fresh  # noqa: E402
import guest  # noqa: E402
import initramfs  # noqa: E402
import kernel as kernel_tool  # noqa: E402
import maintained  # noqa: E402
import matrix  # noqa: E402
import measure  # noqa: E402
import overlay  # noqa: E402
import recipes as page  # noqa: E402
import rules  # noqa: E402
import sabotage as sabotage_table  # noqa: E402
import source  # noqa: E402
import toolchain  # noqa: E402
from common import Fail  # noqa: E402

BEGIN = time.monotonic()
ARCHES = ("arm64", "x86_64")
KVER = common.kver()
# What is tested: the image with all checkers but lockdep and KASAN, which make builds and boots several times slower:
# SUITE=debug and make soak have them.
IMAGE = "checked"
LOGS = ROOT / "build" / "test"
VERBOSE = os.environ.get("V", "0") != "0"
# Suites of this run, the last of which is not done yet.
DONE = []
# Objects of the files that the series changes, and of those that its headers change most. Those in which nothing is of
# an architecture are compiled for one.
OBJECTS_BOTH = ("mm/rmap.o", "mm/migrate.o", "mm/memory.o", "mm/mprotect.o", "mm/huge_memory.o", "mm/vmscan.o", "mm/mremap.o",
                "kernel/fork.o")
OBJECTS = {
    "arm64": (*OBJECTS_BOTH, "mm/vmstat.o", "mm/page_alloc.o", "mm/gup.o", "mm/mmap.o", "mm/show_mem.o",
              "mm/memory_hotplug.o", "mm/memory-failure.o", "mm/pgtable-generic.o", "mm/userfaultfd.o", "mm/truncate.o",
              "mm/madvise.o",
              "kernel/exit.o", "fs/open.o", "fs/namei.o", "fs/ext4/inode.o",
              "arch/arm64/kernel/smp.o", "arch/arm64/kernel/traps.o", "arch/arm64/mm/contpte.o", "arch/arm64/mm/fault.o", "arch/arm64/mm/mmu.o",
              "arch/arm64/mm/copypage.o", "arch/arm64/mm/init.o", "drivers/irqchip/irq-gic-v3.o"),
    "x86_64": (*OBJECTS_BOTH, "mm/hugetlb.o", "mm/hugetlb_sysfs.o", "mm/hugetlb_vmemmap.o", "arch/x86/mm/tlb.o",
               "arch/x86/mm/fault.o"),
}
# Of a kernel for 32 bits: mm, and what else of the series tinyconfig has.
OBJECTS_32 = ("mm/", "kernel/fork.o", "kernel/exit.o", "fs/open.o", "fs/namei.o", "arch/x86/mm/fault.o", "arch/x86/mm/tlb.o")
# Of files that the series changes, but not compared.
NOT_AS_STOCK = {
    **{f"fs/{name}.o": "FS_FROZEN_PAGES is set whether somebody looks or not"
       for name in ("ext4/super", "erofs/super", "squashfs/super", "xfs/xfs_super")},
    "mm/page_table_check.o": "only in kernels for debugging",
    "mm/khugepaged.o": "a flush of stock was in the wrong place, see patches/fixes",
}


class Suite:
    """Results of one suite; a suite without a result has failed."""

    def __init__(self, name):
        self.name, self.passed, self.failed, self.skipped = name, 0, [], []
        self.names = set()  # of what passed
        self.left_out = False   # whether ARCH= has left something out
        self.start = time.monotonic()
        self.log = (LOGS / f"{name}.txt").open("w", encoding="utf-8")
        print(f"\n== {name}, after {(self.start - BEGIN) / 60:.0f} minutes", flush=True)

    def check(self, name, ok, detail=""):
        if ok:
            self.passed += 1
            self.names.add(name)
        else:
            self.failed.append(name)
        self.say(f"{'ok' if ok else 'not ok'} - {name}" + (f": {detail}" if detail else ""), show=not ok)
        return ok

    def say(self, text, show=True):
        """A line of the log; what went wrong is shown, too."""
        # In one piece, of several that boot at once.
        self.log.write(text + "\n")
        self.log.flush()
        if show or VERBOSE:
            print(text + "\n", end="", flush=True)

    def skip(self, name, why):
        self.skipped.append(name)
        self.say(f"skip - {name}: {why}")

    def command(self, name, *words, **kw):
        """A command that passes with status 0; its output is shown if it does not."""
        kw = {"cwd": ROOT, "stdin": subprocess.DEVNULL} | kw
        p = subprocess.run([str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           check=False, **kw)
        if not self.check(name, p.returncode == 0, "" if p.returncode == 0 else f"status {p.returncode}"):
            self.say("\n".join(p.stdout.splitlines()[-60:]))
        return p

    def unittest(self, name, *words, must=False, **env):
        """Unit tests of Python: they pass with those that are skipped, unless none must be, but these are named."""
        p = self.command(name, sys.executable, *words, "-v", env=os.environ | env)
        for what, why in re.findall(r"^(.*?) \.\.\. skipped (.*)$", p.stdout, re.M):
            if must:
                self.check(f"{name}: {what}", False, f"skipped: {why}")
            else:
                self.skip(f"{name}: {what}", why)
        return p

    def ktap(self, name, *words):
        """A program that prints (K)TAP: each of its cases counts."""
        p = subprocess.run([str(w) for w in words], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, check=False)
        cases = re.findall(r"^(not )?ok \d+ (.*)$", p.stdout, re.M)
        for bad, case in cases:
            if "# SKIP" in case:
                self.skip(f"{name}: {case}", "see there")
            else:
                self.check(f"{name}: {case}", not bad)
        if p.returncode or not cases:
            self.check(name, False, f"status {p.returncode}, {len(cases)} cases")
            self.say("\n".join(p.stdout.splitlines()[-40:]))

    def done(self):
        if not self.passed and not self.failed and not self.left_out:
            self.check(f"{self.name} ran", False, "no test was run")
        print(f"{self.name}: {self.passed} passed, {len(self.failed)} failed, {len(self.skipped)} skipped, "
              f"{time.monotonic() - self.start:.0f} s", flush=True)


def chosen(suite, *arches):
    """Of these architectures, or of all: those of this run. ARCH= chooses one; the others are skipped."""
    only = os.environ.get("ARCH")
    if only:
        common.one_of("ARCH", only, ARCHES)
    arches = arches or ARCHES
    for arch in arches:
        if only and arch != only:
            suite.left_out = True
            if arch not in suite.skipped:
                suite.skip(arch, f"ARCH={only}")
    return [arch for arch in arches if not only or arch == only]


def make(*words):
    return ("make", "--no-print-directory", *words)


def tree():
    """The patched kernel tree; made on first use."""
    p = subprocess.run([sys.executable, "tools/kernel/kernel.py", "tree", "--kver", KVER], cwd=ROOT, text=True,
                       stdout=subprocess.PIPE, check=True)
    return Path(p.stdout.strip().splitlines()[-1])


def kernel(suite, arch, variant):
    """Build a kernel; progress goes to the console, because it takes minutes."""
    start = time.monotonic()
    ok = common.status(make("kernel", f"ARCH={arch}", f"VARIANT={variant}", f"KVER={KVER}"), cwd=ROOT) == 0
    return suite.check(f"build {arch} {variant}", ok, f"{time.monotonic() - start:.0f} s")


def boot(suite, name, arch, variant, job, want=guest.OK, cases=True, append="kunit.enable=0", **options):
    """Boot and judge: every KTAP case of the job counts, and so does the end of the boot."""
    title = f"{arch} {name}"
    options |= {"job": job, "append": f"{append} {measure.APPEND[arch]}", "log": LOGS / f"{arch}-{name.replace(' ', '-')}.log"}
    result = measure.again(lambda: guest.boot(guest.kernel_path(arch, variant, KVER), arch, **options),
                           lambda what: suite.say(f"{title}: {what}"))
    for case in result.ktap if cases else ():
        line = re.match(r"(not )?ok \d+ *-? *(.*)", case)
        if line and "# SKIP" in line.group(2):
            suite.skip(f"{title}: {line.group(2)}", "see the console")
        elif line:
            suite.check(f"{title}: {line.group(2)}", not line.group(1))
        elif whole := re.match(r"1\.\.0 # SKIP *(.*)", case):
            suite.skip(f"{title}: a whole program", whole.group(1))
    ok = result.exit_status == want
    suite.check(f"{title}: console clean, ended as it should" if want == guest.OK else f"{title}: status {want}",
                ok, f"{result.seconds:.0f} s")
    if not ok:
        suite.say(result.report())
    return result


@contextlib.contextmanager
def side_by_side(arch):
    """Calls that are given to what this yields run in turn; several at once where QEMU needs one core for each."""
    single = guest.threads_of(guest.QEMU[arch][0], arch) == "single"
    pool, calls = ThreadPoolExecutor(os.cpu_count() if single else 1), []
    try:
        yield lambda *call, **options: calls.append(pool.submit(*call, **options))
        wait(calls)
    finally:
        # Interrupted: those that have not begun must not.
        pool.shutdown(cancel_futures=True)
    for call in calls:
        call.result()


def reported(suite, name, arch, job, says, *words, **options):
    """Boot an image that must complain, in these words."""
    result = boot(suite, name, arch, IMAGE, job, want=guest.SPLAT, timeout=900, **options)
    suite.check(f"{arch} {name}: {says}", any(all(word in splat for word in words) for splat in result.splats))


# ---- suites

def style(suite):
    src = tree()
    rust = [f for d in ("rust", "mm", "samples", "verify/src", "verify/tests", "verify/fuzz")
            for f in sorted((ROOT / d).rglob("*.rs")) if "target" not in f.parts]
    suite.command("rustfmt", "rustfmt", "--check", "--edition", "2021", "--config-path", src, *rust)
    clippy(suite)
    checkpatch = (src / "scripts/checkpatch.pl", "--strict", "--no-signoff", "--terse", "--quiet", f"--root={src}")

    # What "make series" makes of the patches and the new files, as it would be sent.
    sent = LOGS / "series"
    shutil.rmtree(sent, ignore_errors=True)
    suite.command("series", sys.executable, "tools/kernel/kernel.py", "series", "--out", sent, "--kver", KVER)
    trace = "PARENTHESIS_ALIGNMENT,OPEN_ENDED_LINE,COMPLEX_MACRO"
    # Lists of names are written as in include/trace/events/migrate.h.
    lists = "COMPLEX_MACRO,MACRO_ARG_REUSE,MACRO_ARG_UNUSED,TRAILING_SEMICOLON"

    def ignored(text, *others):
        return ",".join((*others, lists) if re.search(r"^\+?#define (?:EM\(|\w+\(EM\))", text, re.M) else others)

    def check_patch(patch):
        # A patch to some files says nothing about MAINTAINERS, which has a patch of its own.
        body = patch.read_text(encoding="utf-8")
        ignore = ignored(body, "FILE_PATH_CHANGES,EMBEDDED_FILENAME", *((trace,) if "+++ b/include/trace/" in body else ()))
        with patch.open(encoding="utf-8") as text:  # by name, it would be checked as a source file
            suite.command(f"checkpatch {patch.relative_to(patch.parents[1])}", *checkpatch, "--ignore", ignore, "-",
                          stdin=text, cwd=LOGS)

    def check_file(f):
        # The layout of TRACE_EVENT() is the tree's, not checkpatch's.
        # And linux/x.h is where asm/x.h may be included.
        ignore = ignored(f.read_text(encoding="utf-8"), trace if "trace" in f.parts else "INCLUDE_LINUX")
        suite.command(f"checkpatch {f.relative_to(ROOT)}", *checkpatch, "--ignore", ignore, "--file", f, cwd=LOGS)

    files = [f for d in ("include", "arch", "mm", "tools/testing", "tools/meter", "tools/tlbstat")
             for f in sorted((ROOT / d).rglob("*")) if f.suffix in (".c", ".h", ".S", ".rs")]
    files += sorted((ROOT / "rust").rglob("*.rs")) + sorted((ROOT / "samples").rglob("*.rs"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        patches = set(sent.glob("*/*.patch")) - set(sent.glob("*/0000-cover-letter.patch"))
        list(pool.map(check_patch, sorted(patches)))
        list(pool.map(check_file, files))
    # bindgen declares it as unsafe: rustc 1.85 refuses another one here, 1.95 does not.
    safe = [f"{f.relative_to(ROOT)}: {name}" for f in files if f.suffix == ".rs"
            for name in re.findall(r"#\[export\]\s+(?:pub )?extern .*?fn (\w+)", f.read_text(encoding="utf-8"))]
    suite.check("#[export] is for unsafe functions", not safe, ", ".join(safe))
    for name, wrong in rules.faults(src):
        suite.check(name, not wrong, "; ".join(wrong))
    for name, wrong in maintained.faults(src, overlay.overlay_files()):
        suite.check(f"MAINTAINERS: {name}", not wrong, wrong)
    for letter in sorted(sent.glob("*/0000-cover-letter.patch")):
        says = " ".join(letter.read_text(encoding="utf-8").split())
        suite.check(f"{letter.relative_to(sent)} says what to add to MAINTAINERS", "adds M: there, and another S:" in says)
    for kver in source.KVERS:
        applies(suite, kver)
    forgotten = uncompared(f for _, f in overlay.patch_files())
    suite.check("what is changed is compared with stock", not forgotten, ", ".join(sorted(forgotten)))
    missing = [str(f) for f in tracked() if "SPDX-License-Identifier: GPL-2.0" not in f.read_text(errors="replace")[:400]
               and f.suffix not in (".patch", ".txt") and not f.is_relative_to(ROOT / "LICENSES")]
    suite.check("SPDX line on every file", not missing, " ".join(missing))


def clippy(suite):
    """The debug images are built with it, warnings as errors."""
    packages = toolchain.rust_tools()
    if packages and "clippy-driver" not in packages and not shutil.which("clippy-driver"):
        suite.skip("clippy there", "no package of this distribution has it for its rustc; rustup has")
    else:
        suite.check("clippy there (the debug images are built with it, warnings as errors)", shutil.which("clippy-driver"))


def uncompared(patches):
    """The objects of C files that these patches change, but that nothing compares with those of stock."""
    changed = {f"{name}.o" for patch in patches
               for name in re.findall(r"^\+\+\+ b/(\S+)\.c$", patch.read_text(encoding="utf-8"), re.M)}
    return changed - set(NOT_AS_STOCK) - {obj for objects in OBJECTS.values() for obj in objects}


def applies(suite, kver):
    """On copies of the files that it changes."""
    base = source.cached(kver)
    if not base:
        suite.skip(f"series applies to {kver}", f"its source is not here: make source KVER={kver}")
        return
    try:
        overlay.scratch(base, overlay.tree_version(base), ROOT, {})
        suite.check(f"series applies to {kver}", True)
    except Fail as e:
        suite.check(f"series applies to {kver}", False, str(e))


def tracked():
    p = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / f for f in p.stdout.splitlines() if (ROOT / f).is_file()]


def tools(suite):
    suite.ktap("meter", sys.executable, "tools/meter/selftest.py")
    for name, file in (("bench arithmetic", "bench/test_bench"), ("selftests comparison", "selftests/test_selftests"),
                       ("soak's arithmetic", "soak/test_soak"), ("tlbstat on canned files", "tlbstat/test_tlbstat"),
                       ("verdicts of make test and matrix", "test/test_verdicts"), ("fresh systems", "test/test_fresh"),
                       ("recipes", "recipes/test_recipes"), ("lines of code", "check/test_size"),
                       ("tables of rules", "check/test_rules"), ("decisions in C", "check/test_policy"),
                       ("verdict of make run", "report/test_run"), ("guest runner", "guest/test_guest")):
        suite.unittest(name, f"tools/{file}.py")
    suite.ktap("build tool errors", sys.executable, "tools/kernel/test_kernel.py")
    suite.ktap("LAVA", sys.executable, "ci/lava/check.py")


def size(suite):
    """Lines of code of each mechanism. The limits are goals: what exceeds them is in the log. And no policy in C."""
    suite.command("C of migrc and hvo decides nothing", sys.executable, "tools/check/policy.py")
    p = suite.command("lines of code are counted", sys.executable, "tools/check/size.py")
    table, _, rest = p.stdout.partition("\n\n")
    suite.say(table)
    suite.say(rest, show=False)


def verify(suite):
    p = suite.command("build", "cargo", "test", "--no-run", "--release", cwd=ROOT / "verify")
    if p.returncode:
        return
    p = subprocess.run(["cargo", "test", "--release"], cwd=ROOT / "verify", text=True,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    for ran in re.split(r"^ *Running ", p.stdout, flags=re.M)[1:]:
        for case, verdict in re.findall(r"^test (\S+)(?: - should panic)? \.\.\. (\w+)", ran, re.M):
            suite.check(f"{Path(ran.split('.rs ')[0]).name}: {case}", verdict == "ok")
    # A test binary that aborts has no verdict for its remaining cases.
    if not suite.check("cargo test", p.returncode == 0, f"status {p.returncode}"):
        suite.say(p.stdout[-4000:])
    # Where herd7 is neither installed nor to be had, the litmus tests say so and are skipped. The rules that nothing
    # else shows have then not been tested, so that the sabotage suites of such a run fail, see remove().
    subprocess.run([sys.executable, "verify/litmus/fetch.py"], cwd=ROOT, check=False)
    suite.ktap("litmus", sys.executable, "verify/litmus/run.py")
    suite.ktap("fuzz", sys.executable, "verify/fuzz/run.py", "--seconds", 4)
    # A fuzzer that finds no error that is there would show nothing; it ends when it has found it.
    suite.ktap("fuzz", sys.executable, "verify/fuzz/run.py", "--broken")


def asked(suite, name, arch, variant, job, absent=(), **options):
    """A boot; a case that is skipped has failed, unless it is known to be absent."""
    result = boot(suite, name, arch, variant, job, **options)
    skipped = [case for case in re.findall(r"^(?:ok \d+|1\.\.0) # SKIP (?:\w+: )?(\S+)", "\n".join(result.ktap), re.M)
               if case not in absent]
    suite.check(f"{arch} {name}: nothing else was skipped", result.ktap and not skipped, " ".join(skipped))


def off(suite):
    """With every option of ours off, the compiler must produce what it produces from stock."""
    objdump = toolchain.llvm_tool("llvm-objdump")
    for arch in chosen(suite):
        objects = OBJECTS[arch]
        tops, built = [], True
        for variant in ("stock-objects", "off-objects"):
            ok = subprocess.run([sys.executable, "tools/kernel/kernel.py", "build", "--arch", arch, "--variant", variant,
                                 "--kver", KVER, "--objects", *objects], cwd=ROOT, check=False).returncode == 0
            built &= suite.check(f"{arch} build {variant}", ok)
            tops.append(ROOT / "build" / KVER / f"{arch}-{variant}")
        if not built:
            continue
        for obj, what in compiled_out.differences(objdump, *tops, objects):
            suite.check(f"{arch} {obj} as stock", what is None, what or "")
    if not chosen(suite, "x86_64"):
        return
    # A kernel for 32 bits, where nothing of ours can be chosen: what the series does to headers must not stop a build.
    out = ROOT / "build" / KVER / "i386-objects"
    make, env = kernel_tool.maker(tree(), out, "i386")
    try:
        common.logged([*make, "tinyconfig"], out / "config.log", f"configuring {out.name}", env=env)
        common.logged([*make, kernel_tool.JOBS, *OBJECTS_32], out / "build.log", f"building {KVER}/{out.name}",
                      kernel_tool.OBJECT, env=env)
        what = ""
    except Fail as e:
        what = str(e)
    suite.check("i386 builds mm and what else the series changes", not what, what)


def runner(suite):
    """The guest runner with real guests: how they end, and what it says of that.

    Of arm64 only, because that takes 45 s already: what differs by architecture is the machine, which the other suites
    boot. The image is theirs, too.
    """
    if chosen(suite, "arm64") and kernel(suite, "arm64", IMAGE):
        suite.unittest("guest runner, arm64 guests", "tools/guest/test_guest.py", "BootArm64", must=True,
                       GUEST_KERNEL_arm64=str(guest.kernel_path("arm64", IMAGE, KVER)))


# Where pages are looked up without a reference. (Two in one: with and without FOLL_PIN.)
LOOK_UPS = {"mm/gup.o": ("try_grab_folio_fast",),
            "mm/filemap.o": ("filemap_get_entry", "filemap_get_read_batch", "next_uptodate_folio", "filemap_get_folios_contig",
                             "find_get_entries", "find_lock_entries")}


def kunit(suite):
    """The images run the suites at boot, on 4 CPUs; kunit.py reads the log."""
    for arch in chosen(suite):
        if not kernel(suite, arch, IMAGE):
            continue
        for obj in compiled_out.NOINSTR if arch == "arm64" else ():
            found = compiled_out.disturbances(toolchain.llvm_tool("llvm-objdump"),
                                              guest.kernel_path(arch, IMAGE, KVER).parent / obj)
            suite.check(f"{arch} {obj}: noinstr calls nothing that may be traced or probed", not found, ", ".join(found))
        # No image here is without them; what users build is.
        for obj in (*compiled_out.NOINSTR, "mm/hvo/hvo_shim.o", "mm/hvo/hvo_walk.o") if arch == "arm64" else ():
            found = compiled_out.errors_without(("CONFIG_HVO_DEBUG", "CONFIG_HVO_FAULT_INJECTION"),
                                                guest.kernel_path(arch, IMAGE, KVER).parent / obj)
            suite.check(f"{arch} {obj}: compiles without CONFIG_HVO_DEBUG", not found, found[:2000])
        for obj, functions in LOOK_UPS.items() if arch == "arm64" else ():
            found = compiled_out.costs(toolchain.llvm_tool("llvm-objdump"), guest.kernel_path(arch, IMAGE, KVER).parent / obj,
                                       "CONFIG_HUGETLB_VMEMMAP_PAUSE", "page_ref_waits")
            for function in functions:
                without, off, nops = found.get(function, (0, 0, 0))
                suite.check(f"{arch} {function}() takes one NOP for hvo that was never on", nops and off == without,
                            f"{without} instructions in stock, {off} and {nops} NOPs")
        result = boot(suite, "kunit", arch, IMAGE, "true", cases=False, append="")
        log = LOGS / f"{arch}-kunit.log"
        # kunit.py gives the number of cases in its last line.
        p = subprocess.run([sys.executable, "tools/testing/kunit/kunit.py", "parse", log], cwd=tree(), text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        m = re.search(r"Ran (\d+) tests: (.*)", p.stdout)
        counts = dict((k, int(n)) for k, n in re.findall(r"(\w+): (\d+)", m.group(2))) if m else {}
        bad = counts.get("failed", 0) + counts.get("crashed", 0) + counts.get("errors", 0)
        suite.passed += counts.get("passed", 0)
        for name in ("rust_tlb_batch", "tlb_batch_main", "migrc", "rust_doctests_kernel") + ("hvo",) * (arch == "arm64"):
            suite.check(f"{arch} KUnit suite {name} ran", f"# Subtest: {name}\n" in result.console.replace("\r", ""))
        ok = p.returncode == 0 and counts.get("passed", 0) > 0 and not bad
        suite.check(f"{arch} kunit.py parse", ok, m.group(0) if m else "no summary")
        if not ok:
            suite.say("\n".join(p.stdout.splitlines()[-40:]))


# A job of several programs is one boot, which takes as long as many of them. One that skips (status 4) is no failure.
SKIPS = """
set -e
run() { "$@" || [ $? -eq 4 ]; }
"""
PROGRAMS = """
echo {switch} > /proc/sys/vm/tlb_batch
tlb_batch_thp_split --dir /mnt --thps 8
tlb_batch_move_bench --pages 1024 --readers 2
tlb_batch_stale_litmus --rounds 50 --expect-none
"""
HAZARDS = """
echo 1 > /proc/sys/vm/tlb_batch
tlb_batch_mark --rounds 20 --expect-none
tlb_batch_putback
echo 0 > /proc/sys/vm/tlb_batch
tlb_batch_putback
echo 1 > /proc/sys/vm/tlb_batch
cat /dev/rust-tlb-batch > /dev/null 2>&1 || true
dmesg | grep 'rust_tlb_batch: 512 pages'
cat /sys/kernel/debug/tlb_batch/stats
run tlb_batch_exit --rounds 6
run tlb_batch_refault --act lazyfree --rounds 20 --expect-none
run tlb_batch_refault --act file --dir /mnt --rounds 20 --expect-none
run tlb_batch_refault --act guard --dir /mnt --rounds 20 --expect-none
run tlb_batch_refault --act guard-enomem --dir /mnt --rounds 20 --expect-none
run tlb_batch_refault --act poison --rounds 20 --expect-none
run tlb_batch_refault --act table --dir /mnt --delay 200000 --rounds 8 --expect-none
run tlb_batch_collapse --dir /mnt
run tlb_batch_task
run tlb_batch_dirty --rounds 30 --expect-none
run tlb_batch_secondary --rounds 4 --expect-none
run tlb_batch_zeropage
"""
# Another LRU, whose reclaim tries again what could not be freed. In the images of x86_64.
LRU_GEN = """
echo y > /sys/kernel/mm/lru_gen/enabled
echo +memory > /sys/fs/cgroup/cgroup.subtree_control
cd /sys/fs/cgroup && mkdir lru_gen
sh -c 'echo $$ > lru_gen/cgroup.procs; exec tlb_batch_stress --seconds 10 --toggle' & stress=$!
while kill -0 $stress 2> /dev/null; do
	echo 1M > lru_gen/memory.reclaim || true	# or what there is
	sleep 0.05
done 2> /dev/null
wait $stress
awk '$1 == "pgsteal" { print; exit $2 < 256 }' lru_gen/memory.stat
"""
# On a disk: what is read back from zram leaves the swap cache at once.
REFAULT_SWAP = "tlb_batch_refault --act swap --rounds 20 "

LITMUS_ROUNDS = {"arm64": 1000, "x86_64": 300}
MIGRC_ROUNDS = 4
# A worker that is 50 ms late says nothing where one thread emulates all CPUs. On x86_64 memory that was there at boot goes
# offline; on arm64 there are HugeTLB pages of 32 MiB.
MIGRC_BOUNDS = {"arm64": ("limit", "age", "exit", "off", "denied", "thp", "compaction", "poison",
                          "hugetlb"),
                "x86_64": ("limit", "exit", "off", "denied", "thp", "compaction", "poison", "offline")}

# What tlbstat says of known work, between two looks at the counters themselves; then without debugfs.
TLBSTAT_POOL = 64
TLBSTAT = """
set -e
counters() { awk 'BEGIN { printf "{\\"vmstat\\":1" } { printf ",\\"%s\\":%s", $1, $2 } END { print "}" }' /proc/vmstat; }
set_to() { [ ! -e "$1" ] || echo "$2" > "$1"; }
set_to /proc/sys/vm/migrc_enable 1
set_to /proc/sys/vm/hugetlb_optimize_vmemmap 1
PATIENT
tlbstat --json --once > /tmp/before
cat /tmp/before
tlbstat record --trace -o /tmp/recording 0.5 -- tlb_batch_move_bench --pages 1024 --readers 2
tail -n 1 /tmp/recording
tlbstat report --svg /tmp/recording.svg /tmp/recording
echo POOL > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
counters
tlbstat --json --since /tmp/before
counters
umount /sys/kernel/debug
tlbstat 0.1 3 2>&1
""".replace("POOL", str(TLBSTAT_POOL)).replace("PATIENT", "\n".join(
    f"set_to /sys/module/hvo/parameters/{name} {value}" for name, value in measure.PATIENT.items()))


def watched(suite, arch, variant):
    """tlbstat in a guest: it sees the work, and agrees with the kernel."""
    name = f"tlbstat, {variant}"
    result = boot(suite, name, arch, variant, TLBSTAT)
    samples, vmstat = ([r for r in result.records if key in r] for key in ("tlbstat", "vmstat"))
    if not suite.check(f"{arch} {name}: samples and counters", (len(samples), len(vmstat)) == (3, 2)):
        return
    before, recorded, after = samples

    def check(what, ok, detail=""):
        suite.check(f"{arch} {name}: {what}", ok, detail)

    def grown(key):
        return after[key] - before[key]

    keys = [k for k in vmstat[0] if re.match("tlb_batch_|migrc_|cpu_pause|hvo_|nr_tlb_|pgmigrate_|thp_split_page$", k)]
    off = [k for k in keys if not min(v[k] for v in vmstat) <= after.get(k, -1) <= max(v[k] for v in vmstat)]
    check("agrees with /proc/vmstat", len(keys) > 2 and not off, f"{len(keys)} counters {' '.join(off)}")
    check("sees pages move", grown("pgmigrate_success") >= 4096 and after["rate.pages.moved"] > 0,
          f"{after['rate.pages.moved']} a second")
    check("--trace sees why", recorded.get("trace.syscall_or_cpuset", 0) >= 4096)
    missing = "that needs root, and debugfs mounted"
    if variant == "stock":
        check("has nothing of tlb-rs", after["tlb_batch_pages"] is None and missing not in result.console)
        check("estimates deferrals", recorded["estimate.deferrable"] >= 4096)
        check("estimates flushes, only on arm64", grown("estimate.flushes") >= 4096 if arch == "arm64" else
              after["estimate.flushes"] is None and grown("tlb_interrupts") > 0)
    else:
        check("sees flushes avoided", grown("tlb_batch_avoided") >= 1000 and after["rate.flushes.avoid"] > 0)
        check("sees flushes deferred", grown("migrc_deferred") >= 1024 and after["rate.deferred.defer"] > 0)
        check("sees why they were not", grown("migrc.denied.writable") == grown("migrc_denied") >= 1024)
        check("says what it misses without debugfs", result.console.count(missing) == (3 if arch == "arm64" else 2))
    if variant != "stock" and arch == "arm64":
        lengths = sum(n for key, n in after.items() if key.startswith("hvo.below_us."))
        check("sees pauses", 0 < grown("cpu_pause") and lengths == after["cpu_pause"], f"{lengths}")
    # 7 of 8 pages of struct pages; the kernel may have taken some for itself meanwhile.
    spare = TLBSTAT_POOL * 7 * 4096
    if variant == "stock" and arch == "arm64":
        check("estimates struct pages", after["estimate.vmemmap_bytes"] == spare)
    else:
        check("sees struct pages given back", 0 <= spare - grown("vmemmap_saved_bytes") <= 2 * 4096,
              f"{grown('vmemmap_saved_bytes')} bytes")


def programs(suite):
    """The guest programs on those images: switch on and off, the oracle watching every access."""
    for arch in chosen(suite):
        if not kernel(suite, arch, IMAGE):
            continue
        with side_by_side(arch) as start:
            def run(name, *jobs, how=boot, arch=arch, start=start, **options):
                start(how, suite, name, arch, IMAGE, "\n".join([SKIPS, *jobs]), timeout=900, **options)

            # x86_64 is emulated by one thread, in which a reader that spins costs the others their time.
            run("migrc", "run " + REFAULT_SWAP + "--expect-none", f"migrc_stale --rounds {MIGRC_ROUNDS}",
                f"migrc_file --rounds {MIGRC_ROUNDS}", "migrc_readmostly", disk="verity:256M", swap="disk:256M",
                oracle=arch == "arm64")
            if arch == "arm64":
                run("migrc, latency", "migrc_file --case idle --rounds 1", how=asked, disk="256M")
                # With a plugin QEMU 10.0 does not return allocation tags.
                run("memory tags", *(f"migrc_stale --case {case} --rounds {MIGRC_ROUNDS}" for case in ("tags", "type")),
                    "tlb_batch_zeropage", how=asked, mte=True)
                # For how long who waits: without the oracle, which is slow.
                run("tlb_batch, waits", "tlb_batch_wait --rounds 3", how=asked, swap="256M")
            # arm64 has no soft-dirty bits.
            run("tlb_batch", *(PROGRAMS.format(switch=switch) for switch in (0, 1)), HAZARDS,
                "tlb_batch_softdirty" if arch == "x86_64" else "", disk="256M", swap="256M", oracle=True)
            run("stress", "tlb_batch_stress --seconds 10 --toggle", "migrc_stress --seconds 10 --toggle",
                LRU_GEN if arch == "x86_64" else "", swap="256M", oracle=True)
            run("litmus, migrc bounds", f"tlb_batch_stale_litmus --rounds {LITMUS_ROUNDS[arch]} --expect-none",
                *(f"run migrc_bounds --case {case}" for case in MIGRC_BOUNDS[arch]),
                "migrc_workload --case lookup --by damon --pairs 1", how=asked,
                absent=("off",) if arch == "x86_64" else ())   # no live patching under TCG
            run("migrc pressure", "migrc_bounds --case pressure", how=asked, mem="768M")
            run("migrc nested", "migrc_bounds --case nested --rounds 1", how=asked, mem="256M")
            run("abuse", "tlb_rs_abuse", mem="4G", oracle=arch == "arm64")
            start(watched, suite, arch, IMAGE)
            if arch == "arm64":
                # Other architectures change these entries without a pause, and this is not in their images.
                run("hvo", "hvo_pool", "hvo_retry", mem="6G")
                start(hvo_panic, suite, "hvo, a panic in a window", "kunit.enable=0")
                start(hvo_panic, suite, "hvo, a panic in a window that another CPU takes over",
                      "kunit.enable=0 irqchip.gicv3_pseudo_nmi=1 panic_force_cpu=1", "Redirecting from CPU 0 to CPU 1")
                start(hvo_panic, suite, "hvo, a panic in stop_machine()",
                      "kunit.enable=0 irqchip.gicv3_pseudo_nmi=1 hvo.strategy=stop_machine", "multi_cpu_stop")
                start(hvo_panic, suite, "hvo, a task that dies in a window", "kunit.enable=0",
                      "Fatal exception while the other CPUs wait", "oops")
                start(hvo_panic, suite, "hvo, a task that dies in stop_machine()",
                      "kunit.enable=0 irqchip.gicv3_pseudo_nmi=1 hvo.strategy=stop_machine",
                      "Fatal exception while the other CPUs wait", "oops")
                start(hvo_boot, suite)
                run("hvo, one CPU", "hvo_pool --case pool", mem="4G", smp=1, nodes=1)
                run("hvo, GICv2", "hvo_pool --case pool", mem="4G", gic=2)
                run("hvo, pseudo-NMIs", "hvo_pool --case pool && hvo_pool --case readers", mem="4G",
                    append="kunit.enable=0 irqchip.gicv3_pseudo_nmi=1")


def hvo_panic(suite, name, append, says="hvo_restore_folio", case="panic"):
    """Who panics while the other CPUs wait has to let them go on, so that they can be stopped; who dies has to panic."""
    result = boot(suite, name, "arm64", IMAGE, f"hvo_pool --case {case}", want=guest.SPLAT, append=append, mem="4G",
                  timeout=900)
    suite.check(f"arm64 {name}: all CPUs were stopped",
                says in result.console and "stopping secondary CPUs" in result.console and
                "failed to stop" not in result.console)


# Pages of a pool that the command line asks for: (size in kB, pages, pages of struct pages that each gives back).
BOOT_POOLS = ((1048576, 2, 4095), (2048, 300, 7))
HVO_BOOT = "tlbstat --json --once\n" + "".join(
    f"echo 0 > /sys/kernel/mm/hugepages/hugepages-{kb}kB/nr_hugepages\n" for kb, *_ in BOOT_POOLS) + "tlbstat --json --once\nhvo_pool --case race"


def hvo_boot(suite):
    """Pools of the boot are optimised before there are init calls, maybe by several threads."""
    name = "hvo, pools of the boot"
    result = boot(suite, name, "arm64", IMAGE, HVO_BOOT, mem="6G", append=" ".join(
        ("kunit.enable=0 hugetlb_free_vmemmap=on", *(f"hvo.{key}={value}" for key, value in measure.PATIENT.items()),
         *(f"hugepagesz={kb}K hugepages={n}" for kb, n, _ in BOOT_POOLS))))
    # page_ext, which this image has, counts against both.
    saved = [r["vmemmap_saved_bytes"] for r in result.records if "tlbstat" in r]
    want = 4096 * sum(n * spare for _, n, spare in BOOT_POOLS)
    suite.check(f"arm64 {name}: all struct pages are given back, and taken again",
                len(saved) == 2 and saved[0] - saved[1] == want, f"{saved}, not {want} apart")


def removed(suite, matrix, arch, options, removals):
    """Boot without rules: each test must fail, which its command expects."""
    first = removals[0]
    # One of tlb_batch needs the disk of migrc.
    name = f"{removals[-1].mechanism} without " + (f"{first.rules}, {first.label}" if first.alone else
                                                   f"a rule, {first.command.split()[0]}" if len(removals) == 1 else
                                                   f"{len(removals)} rules")
    says, options = first.says, {"timeout": 1800} | options
    if first.uaf and IMAGE == "debug":
        says = ("use-after-free in", *says)     # KASAN
    elif first.uaf:
        # What is read is what SLUB left there.
        says, options["append"] = ("6b6b6b6b", *says), "kunit.enable=0 slab_debug=P,mm_struct"
    want = guest.ORACLE if first.oracle else guest.SPLAT if says else guest.OK
    result = boot(suite, name, arch, IMAGE, sabotage_table.job(removals), want=want, cases=False, **options)
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
        if not kernel(suite, arch, IMAGE):
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
    reported(suite, "owed at exit", arch, "tlb_batch_task --case exit", "the kernel warns", "tlb_batch_exit_slow")
    boot(suite, "abuse, with what it checks broken", arch, IMAGE, "tlb_rs_abuse --break --seconds 1 --processes 100",
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


def batched(suite, arch):
    """What work costs with vm.tlb_batch."""
    figures = measure.run(arch, guest.kernel_path(arch, IMAGE, KVER), 3, True, log=LOGS / f"{arch}-counts.log")
    for work in measure.WORK:
        was, now = (measure.found(figures, work, switch) for switch in (0, 1))
        for key, name in measure.COUNTS[arch].items():
            if key not in was.counts or key not in now.counts:
                suite.check(f"{arch} {work}: {name}", False, "was not measured")
                continue
            most = measure.limit(arch, work, key, was.counts[key], now)
            suite.check(f"{arch} {work}: {name}", now.counts[key] <= most,
                        f"{now.counts[key]:.2f}, with the switch off {was.counts[key]:.2f}, at most {most:.2f}")


def deferred(suite, arch):
    """What moves cost with vm.migrc_enable."""
    flush = "tlbi" if arch == "arm64" else "nr_tlb_remote_flush"
    result = boot(suite, "migrc counts", arch, IMAGE, "migrc_move_bench --case once --pairs 2 && "
                  "migrc_move_bench --case rounds --rounds 2 --pairs 1", mem="4G", meter=arch == "arm64")
    found = [r for r in result.records if r.get("region") in ("migrc_once", "migrc_rounds")]
    suite.check(f"{arch} migrc counts: regions were measured", len({(r["region"], r["migrc"]) for r in found}) == 4)
    for r in found:
        count = (r.get("meter") or r)[flush]
        at_most = 2 + r["ns"] // 10**9  # one more for each age cap that has passed
        suite.check(f"{arch} {r['region']}, vm.migrc_enable={r['migrc']}: {flush}",
                    count <= at_most if r["migrc"] else count > at_most, f"{count}, {at_most:.0f}")


def forked(suite, arch):
    """What a zap costs beside a fork: a page, and not the whole address space, with vm.migrc_enable off and on."""
    names = ("tlbi_asid", "tlbi_all") if arch == "arm64" else ("nr_tlb_local_flush_all",)
    result = boot(suite, "zaps beside a fork", arch, IMAGE, "migrc_fork && echo 1 > /proc/sys/vm/migrc_enable && migrc_fork",
                  meter=arch == "arm64")
    found = [r for r in result.records if r.get("region", "").startswith("zap_")]
    suite.check(f"{arch} zaps beside a fork: regions were measured", len({(r["region"], r["migrc"]) for r in found}) == 4)
    for r in found:
        # A fork flushes the parent, and the end of its child.
        count, most = sum((r.get("meter") or r)[name] for name in names), 4 * r["forks"] + r["beside"] // 10
        suite.check(f"{arch} {r['region']}, vm.migrc_enable={r['migrc']}: flushes of an address space", count <= most,
                    f"{count} of {r['beside']} zaps beside {r['forks']} forks, at most {most}")


def other_cpu(suite, cpu, ranges):
    """arm64 with other lengths of addresses, and without range TLBI."""
    result = boot(suite, f"-cpu {cpu}", "arm64", IMAGE, "tlb_batch_thp_split --thps 8 && "
                  "tlb_batch_move_bench --pages 1024", cpu=cpu, meter=True, disk="64M")
    regions = {r["region"]: r for r in result.records if "region" in r}
    if not suite.check(f"arm64 -cpu {cpu}: regions were measured", "split_anon" in regions and "move_rw" in regions):
        return
    suite.check(f"arm64 -cpu {cpu}: range TLBI {'used' if ranges else 'not executed'}",
                any(r["meter"]["tlbi_range"] for r in regions.values()) == ranges)
    # Of an ASID, where 512 pages are too many for one TLBI each.
    for work, most in (("split_anon", 1.1 * 8), ("split_shared4", 1.1 * 4 * 8), ("move_rw", 4)):
        suite.check(f"arm64 -cpu {cpu} {work}: TLBI", regions[work]["meter"]["tlbi"] <= most,
                    f"{regions[work]['meter']['tlbi']}, at most {most:.0f}")


def counts(suite):
    """Counts are gates: what the work may cost, in executed instructions; on x86_64, in flushes."""
    for arch in chosen(suite):
        if not kernel(suite, arch, IMAGE):
            continue
        with side_by_side(arch) as start:
            start(batched, suite, arch)
            start(deferred, suite, arch)
            start(forked, suite, arch)
            if arch == "arm64":
                for cpu, ranges in (("max,lpa2=off", True), ("neoverse-n1", False), ("cortex-a72", False)):
                    start(other_cpu, suite, cpu, ranges)


def debug(suite):
    """KUnit, the programs, and each of all rules removed, on the image with generic KASAN and lockdep."""
    global IMAGE
    was, IMAGE = IMAGE, "debug"
    try:
        for part in (kunit, programs, sabotage_all):
            part(suite)
    finally:
        IMAGE = was


def pages(suite):
    """arm64 with other pages than 4 KiB: the same programs, one PMD-sized folio."""
    for variant in ("16k", "64k") if chosen(suite, "arm64") else ():
        if kernel(suite, "arm64", variant):
            boot(suite, f"pages of {variant}", "arm64", variant,
                 "tlb_batch_thp_split --thps 1 && tlb_batch_move_bench --pages 512 && "
                 "tlb_batch_stale_litmus --rounds 100 --expect-none && tlb_batch_stress --seconds 10",
                 meter=True, mem="6G", timeout=600)
            boot(suite, f"hvo, pages of {variant}", "arm64", variant, "hvo_pool", mem="8G", timeout=900)
            # Of 64 KiB: from 16 GiB to 512 MiB, none of which is touched.
            boot(suite, f"hvo demote, pages of {variant}", "arm64", variant, "hvo_pool --case demote", mem="80G", nodes=1,
                 timeout=900)


def hvo(suite):
    """An arm64 kernel that gives back struct pages from boot by default, and has no broadcast of the GIC."""
    if not chosen(suite, "arm64") or not kernel(suite, "arm64", "hvo-on"):
        return
    # The first case finds what the boot has left, and so does not turn anything on.
    asked(suite, "hvo, on by default", "arm64", "hvo-on", "set -e\nhvo_pool --case race\nhvo_pool", ("switch",), mem="6G",
          timeout=900)
    asked(suite, "hvo, off by parameter", "arm64", "hvo-on", "set -e\n[ $(cat /proc/sys/vm/hugetlb_optimize_vmemmap) = 0 ]\n"
          "[ $(cat /sys/kernel/debug/hvo/waits) = 0 ]\nhvo_pool --case switch\nhvo_pool --case race", mem="6G",
          append="kunit.enable=0 hugetlb_free_vmemmap=off", timeout=900)


# Where what removes a page flushes it, as in punch here, no rule is needed.
XFS_BROKEN = [r.command for r in sabotage_table.REMOVALS
              if r.command.startswith("migrc_file") and set(ARCHES) <= set(r.arches) and
              not re.search("--case (punch|verity|journal) ", r.command)]


def fs(suite):
    """migrc on other filesystems than ext4: three that opted in, with and without the rules, and one that did not."""
    for arch in chosen(suite):
        if not kernel(suite, arch, "fs"):
            continue
        program = f"migrc_file --rounds {MIGRC_ROUNDS}"
        broken = program + " --expect-stale 1 --case {} --skip {}"
        image = [*(f"{program} --case {case}" for case in ("image", "copyup")), broken.format("image", "record")]
        with side_by_side(arch) as start:
            # What is of ext4, of btrfs, and of images.
            start(filesystem, suite, arch, "xfs", "xfs:512M", [program],
                  ("verity", "journal", "btrfs", "image", "copyup"),
                  oracle=arch == "arm64")
            start(filesystem, suite, arch, "xfs without rules", "xfs:512M", XFS_BROKEN)
            start(filesystem, suite, arch, "btrfs", "btrfs:512M",
                  [f"{program} --case btrfs", broken.format("btrfs", "file")])
            for name in guest.READ_ONLY:
                start(filesystem, suite, arch, name, name, image)


def abuse(suite):
    """Attempts to make it overflow, fill up, stall or leak: longer than in programs, and with 10,000 sharers of a page."""
    for arch in chosen(suite):
        if kernel(suite, arch, IMAGE):
            boot(suite, "abuse, long", arch, IMAGE, "tlb_rs_abuse --seconds 30 --processes 10000", mem="6G", timeout=3600)


def stock(suite):
    """What tlbstat shows of a kernel without tlb-rs."""
    for arch in chosen(suite):
        if kernel(suite, arch, "stock"):
            watched(suite, arch, "stock")


def recipes(suite):
    """The commands of the administrator's page on TLB maintenance, with the bpftrace and perf of the distribution."""
    text = page.PAGE.read_text(encoding="utf-8")
    for arch in chosen(suite):
        if not kernel(suite, arch, "trace"):
            continue
        with tempfile.TemporaryDirectory() as tmp:
            disk = guest.make_disk(Path(tmp) / "disk.img", "1G", initramfs.userland(arch, "bpftrace", *page.PACKAGES))
            btf = page.make_btf(tree(), Path(tmp) / page.BTF)
            result = boot(suite, "recipes", arch, "trace", page.job(arch, text), disk=disk, files={page.BTF: btf},
                          mem="4G", timeout=3600)
        said = page.outputs(result.console)
        for name, wrong in page.verdicts(arch, text, result.console, result.records):
            if not suite.check(f"{arch} recipe {name}", wrong is None, wrong or ""):
                suite.say("\n".join(said.get(name, "").splitlines()[-40:]))


def docs(suite):
    """Our pages and ABI files: no warning of the kernel's own tools."""
    src = tree()
    ours = {str(Path(f).relative_to("Documentation").with_suffix("")) for f in overlay.overlay_files()
            if f.startswith("Documentation/")}
    for _, patch in overlay.patch_files():
        found = re.findall(r"^\+\+\+ b/Documentation/(\S+)\.\w+$", patch.read_text(encoding="utf-8"), re.M)
        ours |= {f for f in found if not f.endswith("/index")}

    def silent(name, p):
        # An index is named by what it lacks.
        lines = [line for line in re.findall(".*(?:WARNING|ERROR).*", p.stdout) if any(f in line for f in ours)]
        # Only these directories were built.
        lines = [line for line in lines if not ((m := re.search(r"unknown document: '/([^']*)'", line)) and
                                                (src / f"Documentation/{m.group(1)}.rst").exists())]
        suite.check(f"{name}: no warning in our files", not lines, "\n".join(lines))

    silent("ABI", suite.command("ABI files", src / "tools/docs/get_abi.py", "--dir", src / "Documentation/ABI",
                                "validate"))
    if not shutil.which("sphinx-build"):
        suite.skip("htmldocs", f"no sphinx-build: {initramfs.apt_command('python3-sphinx python3-yaml')}")
        return
    env = {k: v for k, v in os.environ.items() if k not in kernel_tool.PRIVATE}
    silent("htmldocs", suite.command("htmldocs", *make("-C", src, f"O={LOGS / 'docs'}", "SPHINXDIRS=mm admin-guide",
                                                       "htmldocs"), env=env))


# Whatever hvo has by then: on arm64, first without the broadcast of the GIC.
COMMIT = "[ ! -e /sys/kernel/debug/hvo/verify ] || hvo_pool --case pool --rounds 1"


def commits(suite):
    """Each commit of the exported series builds without a warning, boots, and passes the KUnit suites that it has."""
    for arch in chosen(suite):
        def kunit_passes(name):
            result = boot(suite, f"commit {name.replace('/', '-')}", arch, exported.VARIANT, COMMIT, cases=False, append="")
            config = guest.kernel_path(arch, exported.VARIANT, KVER).parent / ".config"
            missing = matrix.absent(result.ktap, kernel_tool.options(config.read_text(encoding="utf-8")))
            return "; ".join(missing) or None if result.exit_status == guest.OK else result.report()

        for name, wrong, seconds in exported.tried(arch, KVER, kunit_passes):
            suite.check(f"{arch} {name}", not wrong, wrong or (f"{seconds} s" if seconds else "passed before"))


# release: (what it is called, suites of make test, or all of it; boot: a kernel is built and booted). Counts are gates only with
# the QEMU of Debian 12.
CHROOTS = {"bookworm": ("Debian 12", ()), "trixie": ("Debian 13", ("style", "tools", "verify", "boot"))}


def chroot(suite):
    """make test in a fresh clone on a minimal Debian: what it needs and does not install is not there."""
    if output := common.output(["git", "status", "--porcelain"], cwd=ROOT):
        suite.say(f"what is not committed is not tested:\n{output.rstrip()}", show=True)
    for release in os.environ.get("CHROOT", "").split() or CHROOTS:
        common.one_of("CHROOT", release, CHROOTS)
        name, inner = CHROOTS[release]
        inner = os.environ.get("INNER", "").split() or inner
        fresh.try_release(suite, name, fresh.System(release, ROOT / "build/chroot" / release, LOGS), inner, SUITES)


def filesystem(suite, arch, name, disk, commands, absent=(), **options):
    """A boot with this disk, of cases that were asked for."""
    asked(suite, name, arch, "fs", "\n".join(["set -e", *commands]), absent, disk=disk, timeout=900, **options)


SUITES = {f.__name__: f for f in (style, tools, verify, size, off, runner, counts, kunit, programs, sabotage)}
# For the time that they take.
ON_DEMAND = {f.__name__: f for f in (debug, pages, fs, hvo, abuse, stock, recipes, docs, commits, chroot, sabotage_all)}


def main():
    names = sys.argv[1:] or os.environ.get("SUITE", "").split() or list(SUITES)
    known = SUITES | ON_DEMAND
    unknown = [n for n in names if n not in known]
    if unknown:
        sys.exit(f"test.py: no suite {', '.join(unknown)}; there are {', '.join(known)}")
    subprocess.run(make("meter"), cwd=ROOT, check=True)
    LOGS.mkdir(parents=True, exist_ok=True)
    for name in names:
        suite = Suite(name)
        DONE.append(suite)
        try:
            known[name](suite)
        except KeyboardInterrupt:
            suite.check(f"{name} ended early", False, "interrupted")
            suite.done()
            break
        except (subprocess.CalledProcessError, SystemExit, guest.GuestError, Fail) as error:
            suite.check(f"{name} ended early", False, str(error))
        except Exception as error:  # pylint: disable=broad-exception-caught
            # The other suites still have something to say.
            suite.say(traceback.format_exc())
            suite.check(f"{name} ended early", False, repr(error))
        suite.done()

    print("\nsummary")
    for suite in DONE:
        print(f"  {suite.name:12}{suite.passed:5} passed{len(suite.failed):5} failed{len(suite.skipped):5} skipped")
        for name in suite.failed:
            print(f"    failed: {name}")
    passed, failed = sum(s.passed for s in DONE), sum(len(s.failed) for s in DONE)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    common.main(main)
