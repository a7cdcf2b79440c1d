#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Run the kernel tree's own mm selftests on stock and on tlb-rs, and compare them case by case.

usage: selftests.py [TEST...]     or the variable TESTS="cow migration"; default: those below

Every command of a test has a boot of its own, so that one which hangs takes no other with it. Exit status 1
if tlb-rs is worse in a case, and not by chance: see compare(). The cases are in build/selftests/ARCH/results.json,
the consoles beside it.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools" / name) for name in ("guest", "kernel", "report")]
# pylint: disable=wrong-import-position
import common  # noqa: E402
import console  # noqa: E402
import guest  # noqa: E402
import initramfs  # noqa: E402
import kernel as kernel_tool  # noqa: E402
import measure  # noqa: E402
import source  # noqa: E402

OUT = common.BUILD / "selftests"
MM = "tools/testing/selftests/mm"
LIBRARIES = ("libnuma-dev", "libcap-dev")
DEFAULT = ("split_huge_page_test", "folio_split_race_test", "rmap", "cow", "migration", "khugepaged",
           "uffd-unit-tests", "soft-dirty", "mremap_test")
# As run_vmtests.sh has them; where it takes XFS, /mnt is an ext4, which has large folios as well.
ARGUMENTS = {
    "split_huge_page_test": ("/mnt",),
    "khugepaged": ("", "-s 2", "all:shmem", "-s 4 all:shmem", "-c 4 mthp_khugepaged:anon", "all:file /mnt"),
    "gup_test": ("-u -n 1", "-u -n -1", "-a -n 1", "-a -n -1", "-ct -F 0x1 0 19 0x1000"),
    "ksm_tests": ("-H -s 100", "-P -s 100", "-M -p 10", "-U", "-Z -p 10 -z 0", "-Z -p 10 -z 1", "-N -m 1", "-N -m 0"),
    "transhuge-stress": ("-d 20",),
    "uffd-stress": ("anon 20 16", "hugetlb 128 32", "hugetlb-private 128 32", "shmem 20 16", "shmem-private 20 16"),
}
# Two nodes for migration; the swap for MADV_PAGEOUT. The tests reserve their hugetlb pages themselves.
GUEST = {"smp": 4, "mem": "4G", "nodes": 2, "disk": "512M", "swap": "zram:512M"}
REPEATS = 3

# Cases that no program prints. The status of the program is the only one of those that print no TAP.
STATUS = "(exit status)"
SPLAT = "(kernel report) "
COLUMNS = ("pass", "fail", "skip", "xfail")
# To kselftest an expected failure is a success; those of cow come and go on one kernel.
RANK = {"pass": 0, "xfail": 0, "skip": 1, "missing": 1, "fail": 2, "timeout": 2}
CASE = re.compile(r"^\s*(not )?ok \d+\b *(?:- )?(.*?)\s*$", re.M)
DIRECTIVE = re.compile(r"\s*# *(SKIP|XFAIL|XPASS|error)\b\s*", re.I)


# ---- what a console says

def program_output(text):
    """The console without the kernel's messages: the halves of a line that one of them tore are joined again."""
    text = re.sub(console.STAMP.pattern + r".*\n?", "", text.replace("\r", ""))
    return "".join(re.split(r"^tlb-rs: job (?:start|exit \d+)$", text, flags=re.M)[1:2])


def tap(text):
    """{name of the case: status}; the n-th of the same name has its number."""
    found, seen = {}, Counter()
    for bad, rest in CASE.findall(text):
        # "ok 1 name # SKIP why" of the harness, "ok 1 # SKIP name" of kselftest.h, "not ok 1 name #  why".
        before, directive, after = (DIRECTIVE.split(rest, 1) + ["", ""])[:3]
        name = re.sub(r"\s+#  .*", "", before).strip() or after.strip()
        status = "fail" if bad else {"SKIP": "skip", "XFAIL": "xfail"}.get(directive.upper(), "pass")
        seen[name] += 1
        found[name if seen[name] == 1 else f"{name} ({seen[name]})"] = status
    return found


def report_title(splat):
    """What names a kernel report, and is the same in another boot."""
    lines = [line for line in splat.splitlines() if not re.match(r"-+\[ cut here|=+$", line)]
    return SPLAT + re.sub(r"0x[0-9a-f]+|\b\d+\b", "N", (lines or [splat])[0])


def cases(result, limit):
    """{case: status} of a boot."""
    found = tap(program_output(result.console))
    # In the guest, timeout(1) kills: 137. A test that is killed for another reason has not used up its time.
    late = result.timed_out or result.job_exit == 137 and result.seconds - (result.boot_seconds or 0) > 0.9 * limit
    found[STATUS] = "timeout" if late else {0: "pass", 4: "skip"}.get(result.job_exit, "fail")
    return found | {report_title(splat): "fail" for splat in result.splats}


# ---- the comparison

def regressions(stock, ours):
    """{case: in how many more runs it was bad on tlb-rs}; bad is anything worse than the best on stock."""
    stock_late = any(run[STATUS] == "timeout" for run in stock)
    found = {}
    for name in sorted({name for run in stock + ours for name in run}):
        was = [RANK[run.get(name, "missing")] for run in stock]
        # How far a test comes before its time is over says nothing if that happens on both kernels.
        now = [RANK[run.get(name, "pass" if stock_late and run[STATUS] == "timeout" else "missing")] for run in ours]
        if (more := sum(rank > min(was) for rank in now) - sum(rank > min(was) for rank in was)) > 0:
            found[name] = more
    return found


def counted(stock, ours):
    """The regressions that count: with repeated runs, one more may be chance."""
    return [name for name, more in regressions(stock, ours).items() if more > 1 or len(ours) == 1]


def differences(stock, ours):
    """{case: its results} of the cases that have not the same in all runs."""
    found = {}
    for name in dict.fromkeys(name for run in stock + ours for name in run):
        was, now = ([run.get(name, "missing") for run in runs] for runs in (stock, ours))
        if len({*was, *now}) > 1:
            found[name] = f"{', '.join(was)} -> {', '.join(now)}"
    return found


def totals(run):
    """The columns of one kernel; a program without TAP is one case."""
    count = Counter(status for name, status in run.items() if name != STATUS and not name.startswith(SPLAT))
    count = count or Counter(["fail" if run[STATUS] == "timeout" else run[STATUS]])
    notes = {"report": any(name.startswith(SPLAT) for name in run), "timeout": run[STATUS] == "timeout",
             "status": run[STATUS] == "fail" and not count["fail"], "": True}
    return "".join(f"{count[s]:6}" for s in COLUMNS) + f" {next(note for note, so in notes.items() if so):7}"


# ---- the programs

def environment():
    """Without what this tool's own make passes on: the trees have makefiles with the same variables."""
    return {key: value for key, value in os.environ.items() if key not in (*kernel_tool.PRIVATE, "TESTS")}


def libraries(arch):
    """Static libraries that the C compiler's package has not, from the suite that the compiler is from."""
    place = common.CACHE / f"selftests-{arch}"
    with common.lock(common.CACHE / "lock", "download"):
        if not place.exists():
            with initramfs.unpacked(arch, *LIBRARIES) as root:
                root.rename(place)
    return place


def copy_tree(tree, place):
    """The selftests as a tree to build in: theirs write beside their sources. All else is a link."""
    if place.exists():
        return
    part = place.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    for directory in ("", "tools", "tools/testing", "tools/testing/selftests"):
        (part / directory).mkdir(parents=True)
        for entry in (tree / directory).iterdir():
            if not Path(MM).is_relative_to(entry.relative_to(tree)):
                (part / directory / entry.name).symlink_to(entry)
    shutil.copytree(tree / MM, part / MM)
    # What their check_config.sh would write where liburing is not installed, which is not a thing of mm.
    (part / MM / "local_config.h_gen").write_text("", encoding="ascii")
    (part / MM / "local_config.mk").write_text("IOURING_EXTRA_LIBS =\n", encoding="ascii")
    part.rename(place)


def build(arch, kver, tests):
    """{test: static program}, without those that the tree does not have for this architecture."""
    tree = source.linux(kver)[1]
    out = OUT / tree.name / arch
    env = environment()
    headers = out / "headers"
    compiler = initramfs.ARCHES[arch][1]
    if not shutil.which(compiler):
        raise common.Fail(f"no {compiler}: {initramfs.apt_command(initramfs.ARCHES[arch][2])}")
    (out / "bin").mkdir(parents=True, exist_ok=True)
    copy_tree(tree, out.parent / "src")
    if not headers.exists():
        common.logged(["make", "-C", tree, f"O={out / 'kbuild'}", f"ARCH={arch}", "headers_install",
                       f"INSTALL_HDR_PATH={out / 'headers.part'}"],
                      out / "headers.log", "exporting the kernel's headers", env=env)
        (out / "headers.part").rename(headers)
    place = libraries(arch)
    archives = next(place.glob("usr/lib/*/libnuma.a")).parent
    make = ["make", "-C", str(out.parent / "src" / MM), f"ARCH={arch}", f"CC={compiler}", f"OUTPUT={out / 'bin'}",
            f"KHDR_INCLUDES=-isystem {headers}/include -isystem {place}/usr/include",
            f"USERLDFLAGS=-static -L{archives}"]
    known = common.output([*make, "-s", "--eval=tlb_rs_list: ; @echo $(notdir $(TEST_GEN_FILES))", "tlb_rs_list"],
                          env=env).split()
    programs = {test: out / "bin" / test for test in tests if test in known}
    for test in set(tests) - set(programs):
        if not (tree / MM / f"{test}.c").exists():
            raise common.Fail(f"no mm selftest {test}; for {arch} there are {', '.join(sorted(known)) or 'none'}")
    if programs:
        common.logged([*make, f"-j{len(os.sched_getaffinity(0))}", *programs.values()], out / "build.log",
                      f"building mm selftests for {arch}", env=env)
    return programs


# ---- the guests

def boot(options, kernel, side, command, program, log):
    """{case: status} of one command on one kernel."""
    # A comparison with the switch off would find nothing.
    job = "echo 1 > /proc/sys/vm/tlb_batch || exit 125\n" if side == "tlb-rs" else ""
    job += (f"cd /mnt\ntimeout -s KILL {options.limit} /selftests/{command}\nstatus=$?\n"
            "grep ^tlb_batch /proc/vmstat\nexit $status")
    result = guest.boot(kernel, options.arch, job=job, files={f"selftests/{program.name}": program}, log=log,
                        append=measure.APPEND[options.arch], timeout=options.limit + 120, **GUEST)
    if result.boot_seconds is None or result.job_exit in (125, 126, 127):
        raise common.Fail(f"{side}: the test did not start\n{result.report()}\n  console: {log}")
    # A guest that reset, or QEMU's own end: what the console does not say.
    if result.problems:
        with log.open("a", encoding="utf-8") as file:
            file.write("\n".join(["", f"{side}: {result.shutdown}", *result.problems, ""]))
        print(f"    {side}: " + "; ".join(result.problems), flush=True)
    return cases(result, options.limit)


def compare(options, kernels, command, program):
    """Boot both kernels with a command; {side: cases of its runs}.

    Some tests are racy under emulation, some on stock as well. Where tlb-rs looks worse, both kernels run the command
    again, at most REPEATS times, until they are even; then a case counts that was bad in at least two more runs.
    """
    place = OUT / options.arch / re.sub(r"[^a-zA-Z0-9]+", "-", command)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    runs = {side: [] for side in kernels}
    for number in range(1 + REPEATS):
        seconds = []
        for side, kernel in kernels.items():
            begin = time.monotonic()
            runs[side].append(boot(options, kernel, side, command, program, place / f"{side}-{number}.log"))
            seconds.append(f"{time.monotonic() - begin:5.0f}")
        if number == 0:
            print(row(command, runs, seconds), flush=True)
        worse = regressions(*runs.values())
        if not worse or number == REPEATS:
            return runs
        print(f"    worse: {', '.join(list(worse)[:3])}: repetition {number + 1} of at most {REPEATS}", flush=True)
    return runs


def row(command, runs, seconds):
    return f"{command:38}" + " ".join(totals(side[0]) for side in runs.values()) + " ".join(seconds)


def explain(runs, most):
    """Lines about the cases that differ, those that count first."""
    failed, worse = counted(*runs.values()), regressions(*runs.values())
    found = differences(*runs.values())
    lines = [f"    {'FAIL' if name in failed else 'once' if name in worse else '    '} {name}: {found[name]}"
             for name in sorted(found, key=lambda name: (name not in failed, name not in worse))]
    return lines[:most] + [f"         and {len(lines) - most} more"] * (len(lines) > most)


def image(arch, variant, kver):
    path = guest.kernel_path(arch, variant, kver)
    if not path.exists() and subprocess.run(["make", "-C", ROOT, "--no-print-directory", "kernel", f"ARCH={arch}",
                                             f"VARIANT={variant}", f"KVER={kver}"], check=False).returncode:
        raise common.Fail(f"no {path.name} of {arch} {variant}")
    return path


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("test", nargs="*", default=os.environ.get("TESTS", "").split() or list(DEFAULT))
    parser.add_argument("--arch", default=os.environ.get("ARCH") or "arm64", choices=initramfs.ARCHES)
    parser.add_argument("--kver", default=os.environ.get("KVER") or "7.3")
    parser.add_argument("--stock", help="kernel image (default: build/KVER/ARCH-stock)")
    parser.add_argument("--ours", help="kernel image (default: build/KVER/ARCH-release)")
    parser.add_argument("--limit", type=int, default=900,
                        help="seconds for one command, as in the settings file of the tests")
    parser.add_argument("--lines", type=int, default=20, help="of differences to print for one command")
    return parser.parse_args()


def main():
    options = parse()
    programs = build(options.arch, options.kver, options.test)
    kernels = {"stock": options.stock or image(options.arch, "stock", options.kver),
               "tlb-rs": options.ours or image(options.arch, "release", options.kver)}
    print(f"{options.arch:38}{'stock':>24}{'tlb-rs':>33}{'seconds':>19}")
    print(f"{'':38}" + "".join(f"{name:>6}" for name in COLUMNS) + " " * 9 + "".join(f"{name:>6}" for name in COLUMNS))
    results, failed = {}, []
    place = OUT / options.arch / "results.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    for test in options.test:
        for command in [f"{test} {arguments}".strip() for arguments in ARGUMENTS.get(test, ("",))]:
            if test in programs:
                runs = compare(options, kernels, command, programs[test])
            else:
                runs = {side: [{STATUS: "skip"}] for side in kernels}
                print(row(command, runs, [f"  the tree does not build it for {options.arch}"]))
            results[command] = runs
            print("".join(line + "\n" for line in explain(runs, options.lines)), end="", flush=True)
            failed += [f"{command}: {name}" for name in counted(*runs.values())]
            place.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"\n{sum(len(runs['stock'][0]) for runs in results.values())} cases of {len(results)} commands on stock, "
          f"{len(failed)} worse on tlb-rs; {os.path.relpath(place)}")
    return 1 if failed else 0


def guarded():
    try:
        return main()
    except guest.GuestError as error:
        raise common.Fail(str(error)) from error


if __name__ == "__main__":
    common.main(guarded)
