# SPDX-License-Identifier: GPL-2.0
"""Suites without a guest: style, tools, verify, size, off, docs."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tlbrs.check import policy, rules
from tlbrs.guest import initramfs
from tlbrs.kernel import common, kernel as kernel_tool, overlay, source, toolchain
from tlbrs.kernel.common import Fail
from tlbrs.suites import compiled_out, maintained
from tlbrs.suites.harness import KVER, LOGS, ROOT, Suite, chosen, make, tree

# Objects of the files that the series changes, and of those that its headers change most. Those in which nothing is of
# an architecture are compiled for one.
OBJECTS_BOTH = ("mm/rmap.o", "mm/migrate.o", "mm/memory.o", "mm/mprotect.o", "mm/huge_memory.o", "mm/vmscan.o", "mm/mremap.o",
                "kernel/fork.o")
OBJECTS = {
    "arm64": (*OBJECTS_BOTH, "mm/vmstat.o", "mm/page_alloc.o", "mm/gup.o", "mm/mmap.o", "mm/show_mem.o",
              "mm/memory_hotplug.o", "mm/memory-failure.o", "mm/pgtable-generic.o", "mm/userfaultfd.o", "mm/truncate.o",
              "mm/madvise.o",
              "mm/page-writeback.o", "kernel/exit.o", "fs/open.o", "fs/namei.o", "fs/btrfs/extent_io.o", "fs/ext4/inode.o",
              "arch/arm64/kernel/smp.o", "arch/arm64/kernel/traps.o", "arch/arm64/mm/contpte.o", "arch/arm64/mm/fault.o",
              "arch/arm64/mm/copypage.o", "arch/arm64/mm/init.o", "drivers/irqchip/irq-gic-v3.o"),
    "x86_64": (*OBJECTS_BOTH, "mm/hugetlb.o", "mm/hugetlb_sysfs.o", "mm/hugetlb_vmemmap.o", "arch/x86/mm/tlb.o",
               "arch/x86/mm/fault.o", "fs/proc/task_mmu.o"),
}
# Of a kernel for 32 bits: mm, and what else of the series tinyconfig has.
OBJECTS_32 = ("mm/", "kernel/fork.o", "kernel/exit.o", "fs/open.o", "fs/namei.o", "arch/x86/mm/fault.o", "arch/x86/mm/tlb.o")
# Of one without an MMU.
OBJECTS_NOMMU = ("mm/", "kernel/fork.o", "kernel/exit.o", "fs/open.o", "fs/namei.o")
# Of files that the series changes, but not compared.
NOT_AS_STOCK = {
    **{f"fs/{name}.o": "FS_FROZEN_PAGES is set whether somebody looks or not"
       for name in ("ext4/super", "erofs/super", "squashfs/super", "xfs/xfs_super")},
    "mm/page_table_check.o": "only in kernels for debugging",
    "arch/arm64/kernel/cpufeature.o": "it has one capability more, which is not there without hvo",
    "arch/arm64/mm/mmu.o": "pmdp_invalidate_ad() is there, see patches/huge, and others are inlined another way",
    "mm/migrate_device.o": "one flush stands for many, see patches/migrate_device; only in kernels with such devices",
    "mm/khugepaged.o": "a flush of stock was in the wrong place, see patches/fixes",
}
# Series of their own, which have nothing to add to MAINTAINERS.
NO_NEW_FILES = ("restore", "mkclean", "huge", "migrate_device")
# The functions in which compared ones differ.
DIFFERENT = {
    # It has the number of a CPU capability; there is one more before it.
    "arch/arm64/mm/fault.o": ".text do_tag_check_fault",
    # Its messages have their line numbers, and nothing else differs.
    "fs/ext4/inode.o": ".text __ext4_get_inode_loc, .text __ext4_iget, .text __ext4_mark_inode_dirty, "
                       ".text ext4_block_zero_eof, .text ext4_block_zero_range, 18 more",
    # See patches/huge.
    "mm/huge_memory.o": ".text madvise_free_huge_pmd",
    "fs/proc/task_mmu.o": ".text clear_refs_pte_range",
    "mm/pgtable-generic.o": ".text pmdp_invalidate_ad, .text pte_unmap",
    # Shared struct pages of stock have a reference, see patches/fixes.
    "mm/hugetlb.o": ".init.text hugetlb_bootmem_struct_page_init",
}


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
    suite.command("series", sys.executable, "tools/tlb-rs", "kernel", "series", "--out", sent, "--kver", KVER)
    trace = "PARENTHESIS_ALIGNMENT,OPEN_ENDED_LINE,COMPLEX_MACRO"
    # Lists of names are written as in include/trace/events/migrate.h.
    lists = "COMPLEX_MACRO,MACRO_ARG_REUSE,MACRO_ARG_UNUSED,TRAILING_SEMICOLON"

    def ignored(text, *others):
        return ",".join((*others, lists) if re.search(r"^\+?#define (?:EM\(|\w+\(EM\))", text, re.M) else others)

    # What has passed is not checked again, as long as its text is the same, and what it was checked with.
    kept = LOGS / "checkpatch.passed"
    same = (src / "scripts/checkpatch.pl").read_bytes() + " ".join((KVER, *map(str, checkpatch))).encode()
    before, passed = set(kept.read_text(encoding="ascii").split()) if kept.exists() else set(), set()

    def check(step, name, path, ignore, *how):
        key = hashlib.sha256(b"\0".join((same, name.encode(), ignore.encode(), path.read_bytes()))).hexdigest()
        if key in before:
            passed.add(key)
            step.check(f"checkpatch {name}", True, "passed before")
            return
        with path.open(encoding="utf-8") as text:
            if not step.command(f"checkpatch {name}", *checkpatch, "--ignore", ignore, *how, stdin=text, cwd=LOGS).returncode:
                passed.add(key)

    def check_patch(step, patch):
        # A patch to some files says nothing about MAINTAINERS, which has a patch of its own.
        body = patch.read_text(encoding="utf-8")
        ignore = ignored(body, "FILE_PATH_CHANGES,EMBEDDED_FILENAME", *((trace,) if "+++ b/include/trace/" in body else ()))
        # By name, it would be checked as a source file.
        check(step, str(patch.relative_to(patch.parents[1])), patch, ignore, "-")

    def check_file(step, f):
        # The layout of TRACE_EVENT() is the tree's, not checkpatch's.
        # And linux/x.h is where asm/x.h may be included.
        ignore = ignored(f.read_text(encoding="utf-8"), trace if "trace" in f.parts else "INCLUDE_LINUX")
        check(step, str(f.relative_to(ROOT)), f, ignore, "--file", f)

    files = [f for d in ("include", "arch", "mm", "tools/testing", "tools/meter", "tools/tlbstat")
             for f in sorted((ROOT / d).rglob("*")) if f.suffix in (".c", ".h", ".S", ".rs")]
    files += sorted((ROOT / "rust").rglob("*.rs")) + sorted((ROOT / "samples").rglob("*.rs"))
    patches = set(sent.glob("*/*.patch")) - set(sent.glob("*/0000-cover-letter.patch"))
    suite.at_once([*((applies, kver) for kver in source.KVERS), *((check_patch, patch) for patch in sorted(patches)),
                   *((check_file, f) for f in files)])
    kept.write_text("\n".join(sorted(passed)), encoding="ascii")
    # bindgen declares it as unsafe: rustc 1.85 refuses another one here, 1.95 does not.
    safe = [f"{f.relative_to(ROOT)}: {name}" for f in files if f.suffix == ".rs"
            for name in re.findall(r"#\[export\]\s+(?:pub )?extern .*?fn (\w+)", f.read_text(encoding="utf-8"))]
    suite.check("#[export] is for unsafe functions", not safe, ", ".join(safe))
    changed = {f for f in (*overlay.overlay_files(), *overlay.stock_files())
               if f.startswith(("arch/", "drivers/", "fs/", "include/", "kernel/", "mm/")) and f.endswith((".c", ".h"))}
    within = list(policy.new_conditionals(src, source.linux(KVER), changed))
    suite.check("no #ifdef within functions", not within, "; ".join(within))
    for name, wrong in rules.faults(src):
        suite.check(name, not wrong, "; ".join(wrong))
    for name, wrong in maintained.faults(src, overlay.overlay_files()):
        suite.check(f"MAINTAINERS: {name}", not wrong, wrong)
    for letter in sorted(f for f in sent.glob("*/0000-cover-letter.patch") if f.parent.name not in NO_NEW_FILES):
        says = " ".join(letter.read_text(encoding="utf-8").split())
        suite.check(f"{letter.relative_to(sent)} says what to add to MAINTAINERS", "adds M: there, and changes S:" in says)
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


# Unit tests, those that take longest first.
UNITS = (("build tool errors", "tests.kernel.test_kernel"), ("bench arithmetic", "tests.test_bench"),
         ("tlbstat on canned files", "tlbstat.test_tlbstat"), ("tlbstat price", "tlbstat.test_price"),
         ("boards and the CI of mm", "tests.test_boards"), ("verdicts of make test and matrix", "tests.test_verdicts"),
         ("modelled machine", "tests.test_model"), ("selftests comparison", "tests.test_selftests"),
         ("soak's arithmetic", "tests.test_soak"), ("soak of tiers", "tests.test_soak_tiers"),
         ("tlbstat doctor", "tlbstat.test_doctor"), ("package of tlbstat", "tlbstat.test_package"),
         ("fresh systems", "tests.test_fresh"), ("modules by DKMS", "tests.test_dkms"), ("recipes", "tests.test_recipes"),
         ("lines of code", "tests.test_size"), ("public reports", "tests.test_reports"), ("tables of rules", "tests.test_rules"),
         ("decisions in C", "tests.test_policy"), ("verdict of make run", "tests.test_run"), ("guest runner", "tests.test_guest"),
         ("programs of others", "tests.test_written"), ("commands of tlb-rs", "tests.test_cli"),
         ("steps that run at once", "tests.test_harness"))
# They measure this machine: nothing else may run.
ALONE = (("tlbstat ab", "tlbstat.test_ab"), ("tlbstat price on this machine", "tlbstat.test_price_live"))


def tools(suite):
    suite.ktap("meter", sys.executable, "tools/tlb-rs", "meter")

    def unit(step, name, test):
        # That one runs its cases side by side, and prints KTAP.
        if test == "tests.kernel.test_kernel":
            step.ktap(name, sys.executable, "-m", test, cwd=ROOT / "tools")
        else:
            step.unittest(name, test)

    suite.at_once((unit, *words) for words in UNITS)
    for name, test in ALONE:
        suite.unittest(name, test)
    suite.ktap("LAVA", sys.executable, "tools/tlb-rs", "lava")


def size(suite):
    """Lines of code of each mechanism. The limits are goals: what exceeds them is in the log. And no policy in C."""
    suite.command("C of migrc and hvo decides nothing", sys.executable, "tools/tlb-rs", "policy")
    p = suite.command("lines of code are counted", sys.executable, "tools/tlb-rs", "size")
    table, _, rest = p.stdout.partition("\n\n")
    suite.check("no file of more than 700 lines", bool(re.search(r"(?m)^0 files of more than 700 lines$", rest)))
    suite.say(table)
    suite.say(rest, show=False)


# Models that take longest.
FIRST = ("mkclean_batch", "migrc")


def verify(suite):
    p = suite.command("build", "cargo", "test", "--no-run", "--release", cwd=ROOT / "verify")
    if p.returncode:
        return
    # Where herd7 is neither installed nor to be had, the litmus tests say so and are skipped. The rules that nothing
    # else shows have then not been tested, so that the sabotage suites of such a run fail, see remove().
    subprocess.run([sys.executable, "tools/tlb-rs", "herd7"], cwd=ROOT, check=False)
    programs = sorted(built(p.stdout).items(), key=lambda program: program[0] not in FIRST)
    statuses = {}

    def proofs(step, name, program):
        statuses[name] = cargo_test(step, name, program)

    # Each of them has more threads than one for its cases, so that the last one leaves no CPU idle.
    suite.at_once([*((proofs, *program) for program in programs),
                   (Suite.ktap, "litmus", sys.executable, "tools/tlb-rs", "litmus")])
    suite.check("cargo test", programs and not any(statuses.values()), ", ".join(
        (f"{len(programs)} programs", *(f"{name}: status {status}" for name, status in statuses.items() if status))))
    # By themselves: they run for so many seconds, and both build into one directory.
    suite.ktap("fuzz", sys.executable, "verify/fuzz/run.py", "--seconds", 4)
    # A fuzzer that finds no error that is there would show nothing; it ends when it has found it.
    suite.ktap("fuzz", sys.executable, "verify/fuzz/run.py", "--broken")


def built(said):
    """{name: program} of what "cargo test --no-run" has built; cargo itself would run one after the other."""
    return {Path(name).stem: program for name, program in
            re.findall(r"^ *Executable (?:unittests )?(\S+\.rs) \((\S+)\)$", said, re.M)}


def cargo_test(step, name, program):
    """Each case counts; the status of the program, which has no verdict for the remaining cases if it aborts."""
    p = subprocess.run([ROOT / "verify" / program], cwd=ROOT / "verify", text=True, stdin=subprocess.DEVNULL,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    for case, verdict in re.findall(r"^test (\S+)(?: - should panic)? \.\.\. (\w+)", p.stdout, re.M):
        step.check(f"{name}: {case}", verdict == "ok")
    if p.returncode:
        step.say(p.stdout[-4000:])
    return p.returncode


def off(suite):
    """With every option of ours off, the compiler must produce what it produces from stock."""
    objdump = toolchain.llvm_tool("llvm-objdump")
    for arch in chosen(suite):
        objects = OBJECTS[arch]
        tops, built = [], True
        for variant in ("stock-objects", "off-objects"):
            ok = subprocess.run([sys.executable, "tools/tlb-rs", "kernel", "build", "--arch", arch, "--variant", variant,
                                 "--kver", KVER, "--objects", *objects], cwd=ROOT, check=False).returncode == 0
            built &= suite.check(f"{arch} build {variant}", ok)
            tops.append(ROOT / "build" / KVER / f"{arch}-{variant}")
        if not built:
            continue
        for obj, what in compiled_out.differences(objdump, *tops, objects):
            suite.check(f"{arch} {obj} as stock", what == DIFFERENT.get(obj), what or "no difference")
    if not chosen(suite, "x86_64"):
        return
    # Kernels in which nothing of ours can be chosen: what the series does to headers must not stop a build.
    for arch, config, objects in (("i386", "tinyconfig", OBJECTS_32), ("riscv", "nommu_virt_defconfig", OBJECTS_NOMMU)):
        out = ROOT / "build" / KVER / f"{arch}-objects"
        make, env = kernel_tool.maker(tree(), out, arch)
        try:
            common.logged([*make, config], out / "config.log", f"configuring {out.name}", env=env)
            common.logged([*make, kernel_tool.JOBS, *objects], out / "build.log", f"building {KVER}/{out.name}",
                          kernel_tool.OBJECT, env=env)
            what = ""
        except Fail as e:
            what = str(e)
        suite.check(f"{arch}, {config}: builds mm and what else the series changes", not what, what)


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
