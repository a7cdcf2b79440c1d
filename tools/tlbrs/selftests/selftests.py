# SPDX-License-Identifier: GPL-2.0
"""Run the kernel tree's own mm selftests on stock and on tlb-rs, and compare them case by case.

usage: tlb-rs selftests [--migrc] [--move] [--hvo] [--variant VARIANT] [TEST...]
or the variables TESTS="cow migration", MIGRC=1, MOVE=1, HVO=1, VARIANT=16k

With --migrc it is the checked image twice: as it boots, and with vm.migrc_enable=1, both under the stale-translation
oracle, which only that image tells of its frames. With --move the memory of the test is moved to and fro all the
time, on both sides: few of the tests move memory themselves. Some, like rmap, then fail now and then, because they
expect a page to stay where it is. With --hvo (arm64) it is the tests of
HugeTLB pages on stock and on the checked image, whose pools give their struct pages back. With --variant it is the
image of this variant twice, with vm.tlb_batch=0 and 1: other sizes of pages have no image of stock.

Every command of a test has a boot of its own, so that one which hangs takes no other with it. Exit status 1
if the second is worse in a case, and not by chance, see compare(); or if --move moved nothing, see unmoved(); or if
--hvo gave no struct page back. The cases are in build/selftests/ARCH[-migrc][-move][-hvo][-VARIANT]/results.json, the consoles
beside it.
"""

import argparse
import dataclasses
import json
import math
import operator
import os
import re
import shlex
import shutil
import time
from collections import Counter
from pathlib import Path

from tlbrs.guest import console, guest, initramfs
from tlbrs.kernel import common, kernel as kernel_tool, source
from tlbrs.kernel.common import ROOT
from tlbrs.report import measure

OUT = common.BUILD / "selftests"
MM = "tools/testing/selftests/mm"
LIBRARIES = ("libnuma-dev", "libcap-dev")
HUGETLB = ("hugetlb-mmap", "hugetlb-shm", "hugetlb-mremap", "hugetlb-madvise", "hugetlb_dio", "hugetlb_fault_after_madv",
           "hugetlb_madv_vs_map", "thuge-gen", "hugetlb-soft-offline", "hugetlb-read-hwpoison")
# All of run_vmtests.sh, but for what it needs modules, cgroups or bash for; the quick ones first.
ALL = ("map_fixed_noreplace", "map_populate", "droppable", "gup_test", "gup_longterm", "uffd-wp-mremap", "on-fault-limit",
       "mlock-random-test", "mlock2-tests", "mrelease_test", "mremap_dontunmap", "va_high_addr_switch", "guard-regions",
       "madv_populate", "process_madv", "merge", "memfd_secret", "mseal_test", "prctl_thp_disable", "protection_keys_64",
       "protection_keys", "pkey_sighandler_tests", "pagemap_ioctl", "pfnmap", "mkdirty", "mdwe_test", "memory-failure",
       *HUGETLB, "compaction_test", "ksm_tests", "ksm_functional_tests", "uffd-stress", "transhuge-stress",
       "split_huge_page_test", "folio_split_race_test", "rmap", "cow", "migration", "hmm-tests", "khugepaged",
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
# In the guest, before a test which reserves no HugeTLB pages itself.
RESERVE = {"hugetlb-read-hwpoison": "echo 8 > /proc/sys/vm/nr_hugepages"}
# Two nodes for migration; the swap for MADV_PAGEOUT. The other tests reserve their HugeTLB pages themselves.
GUEST = {"smp": 4, "mem": "4G", "nodes": 2, "disk": "512M", "swap": "zram:512M"}
REPEATS = 5
# Of a boot with migrc, and the width of the column.
FIGURES = {"migrc_deferred": 10, "migrc_denied": 10, "migrc_flush": 10, "oracle_accesses": 14, "oracle_declares": 12}

# Cases that no program prints. The status of the program is the only one of those that print no TAP.
STATUS = "(exit status)"
SPLAT = "(kernel report) "
ORACLE = "(oracle) "
HELD = "(migrc_held after vm.migrc_enable=0)"
# Of the kernel, not of the test: once is enough.
REPORTS = (SPLAT, ORACLE, HELD)
COLUMNS = ("pass", "fail", "skip", "xfail")
# To kselftest an expected failure is a success; those of cow come and go on one kernel.
RANK = {"pass": 0, "xfail": 0, "skip": 1, "missing": 1, "fail": 2, "timeout": 2}
CASE = re.compile(r"^\s*(not )?ok \d+\b *(?:- )?(.*?)\s*$", re.M)
DIRECTIVE = re.compile(r"\s*# *(SKIP|XFAIL|XPASS|error)\b\s*", re.I)
MEASURED = re.compile(r"\(\d+(\.\d+)?%\)")
VMSTAT = re.compile(r"^((?:migrc_|pgmigrate_|cpu_pause|hvo_)\w*) (\d+)$", re.M)
MOVER = re.compile(r'^\{"test":"migrc_mover",.*\}$', re.M)
# Of the mover, which pauses for 20 ms after each: a test that is over before may have come between two.
SWEEPS = 10


@dataclasses.dataclass
class Side:
    """One of the two that are compared."""
    kernel: Path
    setup: str = ""         # in the guest, before the test; must succeed
    migrc: bool = False     # with it
    oracle: bool = False    # under it
    append: str = ""
    figures: Counter = dataclasses.field(default_factory=Counter)   # of the last boot
    moves: dict = dataclasses.field(default_factory=dict)   # {command: what mover_record() says of its boots}


# ---- what a console says

def program_output(text):
    """What the job printed."""
    return "".join(re.split(r"^tlb-rs: job (?:start|exit \d+)$", console.joined(text), flags=re.M)[1:2])


def tap(text):
    """{name of the case: status}; the n-th of the same name has its number."""
    found, seen = {}, Counter()
    for bad, rest in CASE.findall(text):
        # "ok 1 name # SKIP why" of the harness, "ok 1 # SKIP name" of kselftest.h, "not ok 1 name #  why".
        before, directive, after = (DIRECTIVE.split(rest, 1) + ["", ""])[:3]
        name = re.sub(r"\s+#  .*", "", before).strip() or after.strip()
        if MEASURED.search(name):       # "transact_test Extra pages 75 (0.2%), extra thread faults 251."
            name = re.sub(r"\d+(\.\d+)?", "N", name)
        status = "fail" if bad else {"SKIP": "skip", "XFAIL": "xfail"}.get(directive.upper(), "pass")
        seen[name] += 1
        found[name if seen[name] == 1 else f"{name} ({seen[name]})"] = status
    return found


def report_title(splat):
    """What names a kernel report, and is the same in another boot."""
    lines = [line for line in splat.splitlines() if not re.match(r"-+\[ cut here|=+$", line)]
    return SPLAT + re.sub(r"0x[0-9a-f]+|\b\d+\b", "N", (lines or [splat])[0])


def oracle_cases(result):
    """What the oracle says of a boot that it watched."""
    found = {f"{ORACLE}{error['oracle']} {'store' if error.get('store') else 'load'}, {error.get('state')}": "fail"
             for error in result.oracle_errors}
    summary = result.oracle_summary
    if summary is None or summary["lost_declares"] or not summary["declares"]:
        found[ORACLE + "did not see all"] = "fail"
    return found


def mover_record(text):
    """What migrc_mover did in a boot, and the pages that moved; None if it does not say."""
    output = program_output(text)
    if not (found := MOVER.search(output)):
        return None
    return json.loads(found[0]) | {"pages": int(dict(VMSTAT.findall(output)).get("pgmigrate_success", 0))}


def cases(result, limit, migrc=False, oracle=False):
    """{case: status} of a boot."""
    output = program_output(result.console)
    found = tap(output)
    # In the guest, timeout(1) kills: 137. A test that is killed for another reason has not used up its time.
    late = result.timed_out or result.job_exit == 137 and result.seconds - (result.boot_seconds or 0) > 0.9 * limit
    found[STATUS] = "timeout" if late else {0: "pass", 4: "skip"}.get(result.job_exit, "fail")
    if oracle:
        found |= oracle_cases(result)
    if migrc:
        # A guest that hung is late already, and has nothing to say about it.
        if dict(VMSTAT.findall(output)).get("migrc_held", "0" if result.timed_out else "?") != "0":
            found[HELD] = "fail"
    return found | {report_title(splat): "fail" for splat in result.splats}


# ---- the comparison

def ranks(stock, ours, name):
    """How bad it was in the runs of each."""
    was = [RANK[run.get(name, "missing")] for run in stock]
    # How far a test comes before its time is over says nothing if that happens on both kernels.
    late = any(run[STATUS] == "timeout" for run in stock)
    return was, [RANK[run.get(name, "pass" if late and run[STATUS] == "timeout" else "missing")] for run in ours]


def bad_runs(stock, ours, name):
    """In how many runs of each it was bad, which is anything worse than the best on stock."""
    was, now = ranks(stock, ours, name)
    return tuple(sum(rank > min(was) for rank in runs) for runs in (was, now))


def bad_cases(stock, ours):
    """{case: its bad_runs()} of those that were bad at all."""
    names = sorted({name for run in stock + ours for name in run})
    return {name: bad for name in names if any(bad := bad_runs(stock, ours, name))}


def regressions(stock, ours):
    """The cases that were bad in more runs on tlb-rs."""
    return [name for name, bad in bad_cases(stock, ours).items() if operator.lt(*bad)]


def chance(was, now, runs):
    """The probability of so many more bad runs here, or still more, if both are equally likely to be bad.

    Fisher's exact test, one-sided: was and now of as many runs each.
    """
    bad = was + now
    return sum(math.comb(runs, k) * math.comb(runs, bad - k) for k in range(now, min(bad, runs) + 1)) / math.comb(2 * runs, bad)


def counted(stock, ours):
    """The regressions that count: less than 1 in 20 for any of them by chance, or a report that stock does not have.

    And, after all repetitions, what was worse in each run here than in any on stock: so few runs are never improbable
    enough for each of hundreds of cases, which is what a crash makes bad.
    """
    found, bad = [], bad_cases(stock, ours)
    both = {name: ranks(stock, ours, name) for name in bad}
    always = {name for name, (was, now) in both.items() if len(ours) > REPEATS and min(now) > max(was)}
    for name in regressions(stock, ours):
        report = name.startswith(REPORTS) and not any(name in run for run in stock)
        # Bonferroni's correction: of many racy cases some are worse.
        if report or len(ours) == 1 or name in always or \
                chance(*bad[name], len(ours)) < 0.05 / (len(bad) - len(always)):
            found.append(name)
    return found


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
    count = Counter(status for name, status in run.items() if name != STATUS and not name.startswith(REPORTS))
    count = count or Counter(["fail" if run[STATUS] == "timeout" else run[STATUS]])
    notes = {"report": any(name.startswith(SPLAT) for name in run),
             "oracle": any(name.startswith(ORACLE) for name in run), "held": HELD in run,
             "timeout": run[STATUS] == "timeout", "status": run[STATUS] == "fail" and not count["fail"], "": True}
    return "".join(f"{count[s]:6}" for s in COLUMNS) + f" {next(note for note, so in notes.items() if so):7}"


# ---- the programs

def environment():
    """Without what this tool's own make passes on: the trees have makefiles with the same variables."""
    private = (*kernel_tool.PRIVATE, "TESTS", "MIGRC", "MOVE", "HVO")
    return {key: value for key, value in os.environ.items() if key not in private}


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
    for header in ("local_config.h_gen", "local_config.h"):  # since 7.3, and before
        (part / MM / header).write_text("", encoding="ascii")
    (part / MM / "local_config.mk").write_text("IOURING_EXTRA_LIBS =\n", encoding="ascii")
    part.rename(place)


def build(arch, kver, tests):
    """{test: static program}, without those that the tree does not have for this architecture."""
    tree = source.linux(kver)
    out = OUT / tree.name / arch
    env = environment()
    headers = out / "headers"
    gcc, package = initramfs.compiler(arch)
    if not shutil.which(gcc):
        raise common.Fail(f"no {gcc}: {initramfs.apt_command(package)}")
    (out / "bin").mkdir(parents=True, exist_ok=True)
    copy_tree(tree, out.parent / "src")
    make = ["make", "-C", str(out.parent / "src" / MM), f"ARCH={arch}", f"CC={gcc}", f"OUTPUT={out / 'bin'}"]
    # Before anything is fetched for them.
    known = common.output([*make, "-s", "--eval=tlb_rs_list: ; @echo $(notdir $(TEST_GEN_FILES))", "tlb_rs_list"],
                          env=env).split()
    if not known:
        raise common.Fail(f"make cannot list the mm selftests of {out.parent / 'src'}: see what {shlex.join([*make, '-n'])} "
                          "says; if the kernel's source has moved, remove that directory")
    programs = {test: out / "bin" / test for test in tests if test in known}
    for test in set(tests) - set(programs):
        if not (tree / MM / f"{re.sub('_(32|64)$', '', test)}.c").exists():
            raise common.Fail(f"no mm selftest {test}; for {arch} there are {', '.join(sorted(known)) or 'none'}")
    if not headers.exists():
        common.logged(["make", "-C", tree, f"O={out / 'kbuild'}", f"ARCH={arch}", "headers_install",
                       f"INSTALL_HDR_PATH={out / 'headers.part'}"],
                      out / "headers.log", "exporting the kernel's headers", env=env)
        (out / "headers.part").rename(headers)
    place = libraries(arch)
    archives = next(place.glob("usr/lib/*/libnuma.a")).parent
    make += [f"KHDR_INCLUDES=-isystem {headers}/include -isystem {place}/usr/include",
             # Not in USERLDFLAGS, which the rule of protection_keys_64 does not take.
             "EXTRA_CFLAGS=-static", f"USERLDFLAGS=-L{archives}"]
    if programs:
        common.logged([*make, f"-j{len(os.sched_getaffinity(0))}", *programs.values()], out / "build.log",
                      f"building mm selftests for {arch}", env=env)
    return programs


# ---- the guests

def boot(options, side, name, command, program, log):
    """{case: status} of one command on one side."""
    limit = options.limit * (1 + side.oracle)
    # A comparison with the switch off would find nothing.
    setup = [line for line in (side.setup, RESERVE.get(program.name)) if line]
    job = "".join(f"{{ {line}; }} || exit 125\n" for line in setup)
    if options.move:
        # The name of a task has 15 bytes. Once it says how many cases it has, SIGTERM makes it print its record.
        job += ("command -v migrc_mover || exit 125\n"
                f"migrc_mover --name {program.name[:15]} --seconds {limit} --pause-ms 20 > /tmp/mover & mover=$!\n"
                "for i in $(seq 100); do grep -q '^1\\.\\.' /tmp/mover && break; sleep 0.1; done\n")
    job += f"cd /mnt\ntimeout -s KILL {limit} /selftests/{command}\nstatus=$?\n"
    job += "kill $mover 2> /dev/null\nwait $mover\ngrep '^{' /tmp/mover\n" if options.move else ""
    job += "echo 0 > /proc/sys/vm/migrc_enable\n" if side.migrc else ""
    job += "grep -E '^(tlb_batch_|migrc_|pgmigrate_|cpu_pause|hvo_)' /proc/vmstat\nexit $status"
    result = measure.again(lambda: guest.boot(
        side.kernel, options.arch, job=job, files={f"selftests/{program.name}": program}, log=log,
        append=f"{side.append} {measure.APPEND[options.arch]}".strip(), timeout=limit + 120, oracle=side.oracle, **GUEST))
    if result.boot_seconds is None or result.job_exit in (125, 126, 127):
        raise common.Fail(f"{name}: the test did not start\n{result.report()}\n  console: {log}")
    said = [*result.problems, *(f"oracle: {json.dumps(error)}" for error in result.oracle_errors)]
    # A guest that reset, or QEMU's own end, or the oracle: what the console does not say.
    if said:
        with log.open("a", encoding="utf-8") as file:
            file.write("\n".join(["", f"{name}: {result.shutdown}", *said, ""]))
        print(f"    {name}: " + "; ".join(said[:3]), flush=True)
    side.figures = Counter({key: int(value) for key, value in VMSTAT.findall(program_output(result.console))})
    side.figures.update({f"oracle_{key}": value for key, value in (result.oracle_summary or {}).items()})
    # A guest that did not come to its end has failed for that.
    if options.move and result.job_exit is not None:
        side.moves.setdefault(command, []).append(mover_record(result.console))
    return cases(result, limit, side.migrc, side.oracle)


def compare(options, sides, command, program):
    """Boot both sides with a command; {side: cases of its runs}.

    Some tests are racy under emulation, some on stock as well. Where ours looks worse, both sides run the command
    again, at most REPEATS times, until they are even, or what is worse counts.
    """
    place = outdir(options) / re.sub(r"[^a-zA-Z0-9]+", "-", command)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    runs = {name: [] for name in sides}
    for number in range(1 + REPEATS):
        seconds = []
        for name, side in sides.items():
            begin = time.monotonic()
            runs[name].append(boot(options, side, name, command, program, place / f"{name}-{number}.log"))
            seconds.append(f"{time.monotonic() - begin:5.0f}")
        if number == 0:
            print(row(command, runs, seconds + figures(sides)), flush=True)
        worse = regressions(*runs.values())
        if number == REPEATS or number and worse == counted(*runs.values()) or not worse:
            return runs
        print(f"    worse: {', '.join(worse[:3])}: repetition {number + 1} of at most {REPEATS}", flush=True)
    return runs


def unmoved(sides):
    """Where --move showed nothing, because nothing was moved: lines."""
    lines = []
    for name, side in sides.items():
        for command, records in side.moves.items():
            if None in records:
                lines.append(f"{command}: no record of migrc_mover on {name}, see its console")
            elif not any(r["calls"] for r in records) and any(r["sweeps"] >= SWEEPS for r in records):
                lines.append(f"{command}: migrc_mover met no process of it on {name}")
        for key, what in (("calls", "no process was met"), ("pages", "no page was moved")):
            if side.moves and not any(record and record[key] for records in side.moves.values() for record in records):
                lines.append(f"all commands: {what} on {name}")
    return lines


def figures(sides):
    """Whether migrc was at work: what it deferred and denied, and the accesses and frames that the oracle saw."""
    return [f"{side.figures[key]:>{width}}" for side in sides.values() if side.migrc for key, width in FIGURES.items()]


def row(command, runs, seconds):
    return f"{command:38}" + " ".join(totals(side[0]) for side in runs.values()) + " ".join(seconds)


def explain(runs, most):
    """Lines about the cases that differ, those that count first."""
    failed, worse = counted(*runs.values()), regressions(*runs.values())
    found = differences(*runs.values())
    lines = [f"    {'FAIL' if name in failed else 'once' if name in worse else '    '} {name}: {found[name]}"
             for name in sorted(found, key=lambda name: (name not in failed, name not in worse))]
    return lines[:most] + [f"         and {len(lines) - most} more"] * (len(lines) > most)


def choose(options):
    """The two sides."""
    def side(path, variant, **more):
        return Side(path or measure.kernel(options.arch, variant, options.kver), **more)

    ours = "echo 1 > /proc/sys/vm/tlb_batch"
    if options.hvo:
        patient = "".join(f" && echo {value} > /sys/module/hvo/parameters/{name}" for name, value in measure.PATIENT.items())
        return {"stock": side(options.stock, "stock-selftests"),
                "hvo": side(options.ours, "checked", append="kunit.enable=0",
                            setup=f"{ours} && echo 1 > /proc/sys/vm/hugetlb_optimize_vmemmap{patient}")}
    if options.variant:
        image = options.ours or measure.kernel(options.arch, options.variant, options.kver)
        return {name: Side(image, append="kunit.enable=0", setup=f"echo {on} > /proc/sys/vm/tlb_batch")
                for name, on in (("off", 0), ("tlb-rs", 1))}
    if not options.migrc:
        return {"stock": side(options.stock, "stock-selftests"),
                "tlb-rs": side(options.ours, "selftests", setup=ours)}
    # KUnit has its own suite.
    common.logged(["make", "-C", ROOT / "tools/meter"], outdir(options) / "meter.log", "building the oracle",
                  env=environment())
    on = "".join(f" && echo 1 > /proc/sys/vm/migrc_{name}" for name in ("readmostly", "enable"))
    # What is a race is lost more often when all is slower: split_huge_page_test, on stock as well.
    return {"off": side(options.stock, "checked", setup=ours, oracle=True, append="kunit.enable=0"),
            "migrc": side(options.ours, "checked", setup=ours + on, migrc=True, oracle=True,
                          append="kunit.enable=0")}


def outdir(options):
    return OUT / (options.arch + "-migrc" * options.migrc + "-move" * options.move + "-hvo" * options.hvo +
                  f"-{options.variant}" * bool(options.variant))


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("test", nargs="*", default=os.environ.get("TESTS", "").split())
    parser.add_argument("--arch", default=os.environ.get("ARCH") or "arm64")
    parser.add_argument("--kver", default=common.kver())
    parser.add_argument("--migrc", action="store_true", default=os.environ.get("MIGRC", "0") not in ("", "0"),
                        help="compare the checked image with itself, migrc off and on, under the oracle")
    parser.add_argument("--move", action="store_true", default=os.environ.get("MOVE", "0") not in ("", "0"),
                        help="move the tests' memory between two nodes meanwhile, on both sides")
    parser.add_argument("--hvo", action="store_true", default=os.environ.get("HVO", "0") not in ("", "0"),
                        help="compare stock with the checked image, struct pages of HugeTLB pages given back")
    parser.add_argument("--variant", default=os.environ.get("VARIANT"),
                        help="compare the image of a variant with itself, vm.tlb_batch=0 and 1: 16k, 64k")
    parser.add_argument("--stock", help="kernel image of the first (default: ARCH-stock-selftests, or -checked)")
    parser.add_argument("--ours", help="kernel image of the second (default: ARCH-selftests, or -checked)")
    parser.add_argument("--limit", type=int, default=os.environ.get("TIMEOUT") or 900,
                        help="seconds for one command, as in the settings file of the tests; twice as many under the "
                             "oracle")
    parser.add_argument("--lines", type=int, default=20, help="of differences to print for one command")
    options = parser.parse_args()
    common.one_of("ARCH", options.arch, initramfs.ARCHES)
    if options.hvo and options.migrc:
        raise common.Fail("MIGRC=1 compares one image with itself, HVO=1 compares it with stock: one of them at a time")
    if options.variant and (options.hvo or options.migrc):
        raise common.Fail("VARIANT is for comparisons without MIGRC=1 and HVO=1, which have images of their own")
    options.test = options.test or list(HUGETLB if options.hvo else ALL)
    return options


def main():
    options = parse()
    programs = build(options.arch, options.kver, options.test)
    place = outdir(options) / "results.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    sides = choose(options)
    was, now = sides
    print(f"{options.arch:38}{was:>24}{now:>33}{'seconds':>19}")
    print(f"{'':38}" + (" " * 9).join("".join(f"{name:>6}" for name in COLUMNS) for _ in sides)
          + (" " * 19 + " ".join(f"{re.sub('^[a-z]*_', '', key):>{width}}" for key, width in FIGURES.items())
             if options.migrc else ""))
    results, failed, late, total = {}, [], [], Counter()
    for test in options.test:
        for command in [f"{test} {arguments}".strip() for arguments in ARGUMENTS.get(test, ("",))]:
            if test in programs:
                runs = compare(options, sides, command, programs[test])
                total.update(sides[now].figures)
            else:
                runs = {side: [{STATUS: "skip"}] for side in sides}
                print(row(command, runs, [f"  the tree does not build it for {options.arch}"]))
            results[command] = runs
            print("".join(line + "\n" for line in explain(runs, options.lines)), end="", flush=True)
            failed += [f"{command}: {name}" for name in counted(*runs.values())]
            late += [command] * any(run[STATUS] == "timeout" for side in runs.values() for run in side)
            place.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"\n{sum(len(runs[was][0]) for runs in results.values())} cases of {len(results)} commands on {was}, "
          f"{len(failed)} worse on {now}; {os.path.relpath(place)}")
    if late:
        print(f"not finished in {options.limit * (1 + sides[now].oracle)} s: {', '.join(late)}")
    if options.migrc:
        print(", ".join(f"{key} {total[key]}" for key in (*FIGURES, "oracle_errors", "oracle_lost_declares")))
    if options.hvo:
        print(", ".join(f"{key} {total[key]}" for key in ("cpu_pause", "cpu_pause_cancelled", "hvo_pte_updates")))
    still = unmoved(sides) if options.move else []
    print("".join(f"not moved: {line}\n" for line in still), end="")
    if options.migrc and options.test == list(ALL) and not total["migrc_deferred"]:
        still.append("nothing was deferred")
        print(still[-1])
    if options.hvo and not total["hvo_pte_updates"]:
        still.append("no struct page was given back")
        print(still[-1])
    return 1 if failed or still else 0
