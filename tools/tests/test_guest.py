# SPDX-License-Identifier: GPL-2.0
"""Tests of the guest runner: python3 -m unittest tests.test_guest

Console parsing is tested with recorded text. With a kernel in
GUEST_KERNEL_arm64 real guests boot, too: make test gives one (SUITE=runner),
which takes 45 s.
"""

import contextlib
import io
import json
import os
import re
import shutil
import tempfile
import unittest
import unittest.mock
from pathlib import Path

from tlbrs.guest import console as con, guest, initramfs, programs as made_of

SAMPLES = Path(__file__).resolve().parent / "samples"


def sample(name):
    return (SAMPLES / name).read_text().split("\n", 1)[1]


def reports():
    """(what the first line must contain, console text) of each sample report."""
    parts = re.split(r"^## (.*)\n", sample("reports.txt"), flags=re.M)
    return list(zip(parts[1::2], parts[2::2]))


class Splats(unittest.TestCase):
    def test_stock_boots_are_clean(self):
        for path in SAMPLES.glob("boot-*.txt"):
            with self.subTest(path.name):
                text = path.read_text()
                self.assertGreater(text.count("\n"), 100)
                self.assertEqual(con.splats(text), [])
                self.assertEqual(con.job_exit(text), 0)

    def test_each_report_is_found_once_and_whole(self):
        self.assertGreater(len(reports()), 12)
        for title, text in reports():
            for variant in ("stamped", "bare"):
                with self.subTest(title, variant=variant):
                    if variant == "stamped":
                        text = sample("boot-arm64.txt") + text
                    elif "{" in text or "ok 1" in text:
                        continue    # only stamps tell such lines apart
                    else:
                        text = con.STAMP.sub("", text)
                    found = con.splats(text)
                    self.assertEqual(len(found), 1, found)
                    self.assertIn(title, "\n".join(found[0].split("\n")[:2]))
                    for word in ("zram0", "EXT4-fs", "Disabling lock", "ok 1"):
                        self.assertNotIn(word, found[0])
                    # The last line of the trace is part of it.
                    trace = re.findall(r"^(?:\[.*?\](?:\[.*?\])? )?( \S+\+0x\S+)", text, re.M)
                    if trace:
                        self.assertIn(trace[-1], found[0])

    def test_panic(self):
        found = con.splats(sample("panic-arm64.txt"))
        self.assertEqual(len(found), 1)
        self.assertIn("Attempted to kill init", found[0])
        self.assertIn("el0t_64_sync+0x154", found[0])

    def test_two_reports(self):
        text = "".join(text for title, text in reports() if title in ("WARNING", "rcu: INFO"))
        self.assertEqual(len(con.splats(text)), 4)

    def test_ordinary_lines(self):
        stamp = "[    1.000000] "
        for line in ("Spectre V2 : WARNING: Unprivileged eBPF is enabled with eIBRS on",
                     "Kernel command line: page_table_check=on panic=-1 oops=panic",
                     "rcu: RCU calculated value of scheduler-enlistment delay is 25 jiffies.",
                     "Warning: unable to open an initial console.",
                     "DEBUG: page_table_check: enabled", "INFO: lockdep is turned off.",
                     "Lock dependency validator: Copyright (c) 2006 Red Hat, Inc., Ingo Molnar",
                     "kasan: KernelAddressSanitizer initialized (generic)",
                     "ok 3 kernel BUG: none", "debug: Oops handler installed"):
            with self.subTest(line):
                self.assertEqual(con.splats(stamp + line + "\n"), [])
        # What a program prints is not the kernel's, once stamps are known.
        self.assertEqual(con.splats(stamp + "x\nWARNING: of a program\n"), [])
        self.assertEqual(len(con.splats("WARNING: early console\n" + stamp + "x\n")), 1)


class Lines(unittest.TestCase):
    def test_records(self):
        text = '{"a":1}\r\n[    1.0] {"b":1}\n[    1.000000] {"c":1}\n {"d":1}\n{"e":[2]}\n'
        self.assertEqual(con.records(text), ([{"a": 1}, {"e": [2]}], []))

    def test_torn_record_is_a_problem(self):
        good, bad = con.records('[    1.000000] x\n{"a":[    2.000000] eth0: up\n1}\n')
        self.assertEqual(good, [])
        self.assertEqual(len(bad), 1)

    def test_joined(self):
        text = "ok 1 Split hu[    9.123456][  T77] cow (77): drop_caches: 3\r\nge pages\n[    9.2] x\nok 2 b\n"
        self.assertEqual(con.joined(text), "ok 1 Split huge pages\n[    9.2] x\nok 2 b\n")

    def test_ktap(self):
        text = ("TAP version 13\n1..2\nok 1 a\nnot ok 2 b # SKIP c\n# note\nother\n"
                "[    1.000000]     not ok 3 kunit\n[    1.000000] ok 1 # SKIP x\n")
        self.assertEqual(len(con.ktap(text)), 7)
        self.assertEqual(con.kernel_not_ok(text), ["not ok 3 kunit"])

    def test_failed_cases(self):
        text = "# a\nok 1 a\n# b\n[    1.000000] # kernel\nsh: x\n# c\nnot ok 2 b\n# d\nok 3 c\nnot ok 4 d\n"
        self.assertEqual(con.failed_cases(text), ["# b", "# c", "not ok 2 b", "not ok 4 d"])
        self.assertEqual(con.failed_cases(text, most=1), ["# c", "not ok 2 b", "not ok 4 d"])

    def test_job_exit(self):
        self.assertIsNone(con.job_exit("[    1.000000] x\n# tlb-rs: job exit 0\n"))
        self.assertEqual(con.job_exit("tlb-rs: job exit 7\r\n"), 7)


class Meter(unittest.TestCase):
    def test_join(self):
        found = [{"region": "a"}, {"x": 1}, {"region": "b"}]
        regions = [{"region": 1, "tlbi": 5}, {"region": 0, "tlbi": 9}]
        self.assertEqual(con.join(found, regions), [])
        self.assertEqual([record.get("meter", {}).get("tlbi") for record in found], [9, None, 5])

    def test_mismatch(self):
        for found, regions in (([{"region": "a"}], []), ([], [{"region": 0}]),
                               ([{"region": "a"}, {"region": "b"}], [{"region": 0}]),
                               ([{"region": "a"}], [{"region": 1}])):
            self.assertEqual(len(con.join(found, regions)), 1, (found, regions))
            self.assertNotIn("meter", json.dumps(found))

    def test_output(self):
        text = ('{"region":0,"tlbi":1}\n{"oracle":"stale","vcpu":1}\nnonsense\n'
                '{"oracle_summary":{"accesses":1,"declares":2,"errors":1}}\n')
        regions, errors, summary, problems = con.meter_output(text)
        self.assertEqual((len(regions), len(errors), len(problems)), (1, 1, 1))
        self.assertEqual(summary["declares"], 2)

    def test_oracle_that_saw_nothing(self):
        summary = {"accesses": 9, "declares": 3, "errors": 0, "lost_declares": 0}
        for more, says in (({}, None), ({"declares": 0}, "told the oracle of no page"), ({"lost_declares": 1}, "missed"),
                           ({"errors": 1}, None)):
            with tempfile.TemporaryDirectory() as name:
                path = Path(name) / "meter"
                path.write_text(json.dumps({"oracle_summary": summary | more}) + "\n")
                result = guest.Result(console="")
                guest.read_meter(path, result, oracle=True)
            self.assertRegex(" ".join(result.problems), says or "^$")
            self.assertEqual(bool(result.oracle_errors), "errors" in more)


class Judge(unittest.TestCase):
    def judge(self, console, own_init=True, shutdown="guest-shutdown", allow=(), **more):
        result = guest.Result(console=console, shutdown=shutdown, **more)
        guest.judge(result, own_init, 60, allow)
        self.assertEqual(bool(result.report()), result.exit_status != guest.OK)
        return result

    def test_status(self):
        good, warning = sample("boot-arm64.txt"), reports()[0][1]
        panic = sample("panic-arm64.txt")
        bad_job = good.replace("job exit 0", "job exit 3")
        for status, result in (
                (guest.OK, self.judge(good)),
                (guest.OK, self.judge("hello\n", own_init=False)),
                (guest.FAILED, self.judge("hello\n")),
                (guest.FAILED, self.judge(bad_job)),
                (guest.FAILED, self.judge(good, problems=["QEMU failed"])),
                (guest.FAILED, self.judge("hello\n", own_init=False, shutdown="guest-reset")),
                (guest.FAILED, self.judge("[    1.000000] not ok 1 x\n" + good)),
                (guest.SPLAT, self.judge(warning + good)),
                (guest.SPLAT, self.judge(panic, shutdown="guest-reset")),
                (guest.SPLAT, self.judge(warning, timed_out=True, shutdown=None)),
                (guest.TIMEOUT, self.judge(good, timed_out=True, shutdown=None)),
                (guest.ORACLE, self.judge(good, oracle_errors=[{"oracle": "stale"}])),
                (guest.OK, self.judge(warning + good, allow=["try_to_migrate_one"])),
                (guest.SPLAT, self.judge(warning + good, allow=["something_else"]))):
            self.assertEqual(result.exit_status, status, result.report())

    def test_hang_shows_thirty_lines(self):
        text = "".join(f"line {number}\n" for number in range(100))
        report = self.judge(text, timed_out=True).report()
        self.assertIn("line 70\n", report)
        self.assertTrue(report.endswith("line 99"))
        self.assertNotIn("line 69\n", report)


class Machine(unittest.TestCase):
    def test_numa(self):
        words = " ".join(guest.numa("3G", 5, 2, 1))
        self.assertIn("-m 3072M", words)
        self.assertEqual(re.findall(r"nodeid=(\d),memdev=mem\d,cpus=(\S+)", words),
                         [("0", "0-2"), ("1", "3-4")])
        self.assertEqual(words.count("size=1024M,reserve=off"), 3)
        self.assertIn("-m 1000M", " ".join(guest.numa("1000M", 4, 2, 0)))
        for bad in (("2G", 1, 2, 0), ("2G", 1, 0, 0), ("100M", 2, 2, 0), ("2 pigs", 2, 2, 0)):
            with self.assertRaises(guest.GuestError):
                guest.numa(*bad)

    def test_tiers(self):
        words = " ".join(guest.numa("1G", 4, 1, 1, True))
        self.assertEqual(re.findall(r"nodeid=(\d)\S*,initiator=(\d)", words), [("0", "0"), ("1", "0")])
        self.assertEqual(re.findall(r"initiator=(\d),target=(\d),hierarchy=memory,data-type=access-(\w+),\3=(\w+)", words),
                         [("0", "0", "latency", "10"), ("0", "0", "bandwidth", "20G"),
                          ("0", "1", "latency", "40"), ("0", "1", "bandwidth", "5G")])
        self.assertNotIn("hmat", " ".join(guest.numa("1G", 4, 1, 1)))
        with self.assertRaises(guest.GuestError):
            guest.machine(__file__, "arm64", nodes=1, cpuless=1, tiers=True)

    def test_qemu_missing(self):
        for arch, package in (("arm64", "qemu-system-arm"), ("x86_64", "qemu-system-x86")):
            path, err = os.environ["PATH"], io.StringIO()
            try:
                os.environ["PATH"] = "/nonexistent"
                with contextlib.redirect_stderr(err):
                    status = guest.main(["boot", "--arch", arch, "--kernel", __file__,
                                         "--initrd", __file__])
            finally:
                os.environ["PATH"] = path
            self.assertEqual(status, 4)
            self.assertRegex(err.getvalue(), rf"apt-get install -y {package}\n")

    def test_disk(self):
        for spec, parsed in (("256M", ("ext4", "256M", None)), ("verity:64m", ("ext4", "64m", "verity")),
                             ("xfs:1G", ("xfs", "1G", None)), ("erofs", ("erofs", None, None))):
            self.assertEqual(guest.parse_disk(spec), parsed)
        for spec in ("xfs", "erofs:64M", "no-such-file"):
            with self.assertRaisesRegex(guest.GuestError, "no disk image"):
                guest.parse_disk(spec)
        with unittest.mock.patch("shutil.which", return_value=None):
            for fs, (_, package, _) in guest.MKFS.items():
                with self.assertRaisesRegex(guest.GuestError, f"apt-get install -y {package}$"):
                    guest.make_disk("/nonexistent", fs=fs)

    def test_compiler(self):
        """Where the machine is of the architecture, the plain one; else the one that toolchain.py asks for."""
        cross = {"arm64": "aarch64-linux-gnu-gcc", "x86_64": "x86_64-linux-gnu-gcc"}
        for machine, own in (("x86_64", "x86_64"), ("aarch64", "arm64"), ("riscv64", None)):
            with unittest.mock.patch("platform.machine", return_value=machine):
                for arch, name in cross.items():
                    gcc, packages = initramfs.compiler(arch)
                    self.assertEqual(gcc, "gcc" if arch == own else name)
                    self.assertEqual("cross" in packages, arch != own)

    def test_programs(self):
        """Compiled again for what their source does not tell: another compiler or kernel tree."""
        tmp = Path(self.enterContext(tempfile.TemporaryDirectory())).resolve()
        gcc, made = tmp / initramfs.compiler("arm64")[0], tmp / "made"
        trees = [tmp / name for name in ("one", "two", "cache/newer", "cache/linux")]
        for tree in trees:
            (tree / "tools/testing/selftests").mkdir(parents=True)
            (tree / "tools/testing/selftests/kselftest.h").touch()
        (tmp / "tlbstat").mkdir()
        for name in ("migrc_x_cases.c", "migrc.h", "tlbstat/a.c", "tlbstat/tlbstat.h"):
            (tmp / name).touch()
        (tmp / "migrc_x.c").write_text("int main(void)\n")

        def compiler(version, fails="none"):
            gcc.write_text(f'#!/bin/sh\n[ "$1" != --version ] || {{ echo gcc {version}; echo more; exit; }}\n'
                           f'while [ "$1" != -o ]; do shift; done\ncase $3 in *{fails}*) exit 1 ;; esac\n'
                           f'echo "${{3##*/}}" >> {made}\ntouch "$2"\n')
            gcc.chmod(0o755)

        def programs(ksrc=None):
            made.write_text("")
            with contextlib.redirect_stderr(io.StringIO()):
                initramfs.build_programs("arm64", ksrc)
            return made.read_text().split()

        for name, value in (("SELFTESTS", tmp), ("TLBSTAT", tmp / "tlbstat"), ("CACHE", tmp / "cache"),
                            ("guest_dir", lambda arch: tmp / "guest"), ("kernel_tree", self.fail),
                            ("cached", lambda kver: trees[-1] if trees else None)):
            self.enterContext(unittest.mock.patch.object(initramfs, name, value))
        self.enterContext(unittest.mock.patch.dict(os.environ, PATH=f"{tmp}:{os.environ['PATH']}"))
        every, none = ["migrc_x.c", "a.c"], []
        compiler(1)
        self.assertEqual([programs(tree) for tree in (None, None, trees[0], trees[0], trees[1])],
                         [every, none, every, none, every])
        # A boot names none.
        self.assertEqual(programs(), none)
        os.utime(tmp / "migrc_x_cases.c", (2 ** 33, 2 ** 33))
        self.assertEqual(programs(), every[:1])
        os.utime(tmp / "migrc_x_cases.c")
        os.utime(tmp / "guest/bin/migrc_x")
        (tmp / "guest/bin/tlbstat").unlink()
        self.assertEqual(programs(), every[1:])
        compiler(2)
        self.assertEqual([programs(), programs()], [every, none])
        # One program of the new compiler is there: none of the old one's has stayed.
        compiler(1, fails="a.c")
        with self.assertRaisesRegex(guest.GuestError, "tlbstat does not compile"):
            programs()
        compiler(2)
        self.assertEqual(programs(), every)
        shutil.rmtree(trees[1])
        self.assertEqual([programs(), programs()], [every, none])
        trees.pop()
        self.assertEqual([programs(), programs()], [every, none])
        # A cache that was emptied is no reason to fetch anything.
        trees.clear()
        self.assertEqual(programs(), none)

    def test_sources_of_programs(self):
        tmp = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name, text in (("a.h", ""), ("b.h", '#include "a.h"\n'), ("a_files.c", '#include "a.h"\n'), ("b.c", ""),
                           ("a_x.c", '#include "a.h"\nint main(void)\n'), ("b_x.c", "int main(int argc)\n"),
                           ("b_x_one.c", '#include "b.h"\n'), ("b_x_y_z.c", ""),
                           ("b_x_y.c", '#include <a.h>\nint main(void)\n')):
            (tmp / name).write_text(text)
        self.assertEqual({name: [path.name for path in paths] for name, paths in made_of.sources(tmp).items()},
                         {"a_x": ["a_x.c", "a_files.c"], "b_x": ["b_x.c", "b_x_one.c", "a_files.c", "b.c"],
                          "b_x_y": ["b_x_y.c", "b_x_y_z.c"]})
        self.assertEqual((made_of.own(tmp, "b"), made_of.own(tmp, "c")), ([], []))

    @unittest.skipUnless(shutil.which("make"), "no make")
    def test_makefile(self):
        """The rules that the patches add to the kernel's Makefile link what a guest's programs are made of."""
        added, mm = [], initramfs.SELFTESTS
        for mechanism in ("tlb_batch", "migrc", "hvo"):
            for patch in sorted(initramfs.ROOT.glob(f"patches/{mechanism}/*-selftests-mm-*.patch")):
                makefile = patch.read_text().partition("/mm/Makefile\n+++ ")[2].partition("\n--- ")[0]
                added += re.findall(r"^\+(?!TEST_PROGS)(.*)$", makefile, re.M)
        lists = "\n".join(line for line in added if line.startswith("TEST_GEN_FILES"))
        rules = "\n".join(line for line in added if not line.startswith("TEST_GEN_FILES"))
        text = (f"OUTPUT = out\n{lists}\nTEST_GEN_FILES := $(patsubst %,$(OUTPUT)/%,$(TEST_GEN_FILES))\n"
                f"all: $(TEST_GEN_FILES)\n{rules}\n$(OUTPUT)/%: %.c ; @echo $(notdir $@) $^\n")
        linked = initramfs.run(["make", "-rs", "--no-print-directory", "-f", "-", "-C", mm], input=text)
        self.assertEqual({words[0]: set(words[1:]) for line in linked.splitlines() if (words := line.split())},
                         {name: {path.name for path in paths} for name, paths in made_of.sources(mm).items()})

    @unittest.skipUnless(shutil.which("cpio"), "no cpio")
    def test_archive(self):
        entries = [initramfs.directory("bin"), initramfs.regular("bin/x", b"12345")]
        blob = initramfs.newc(entries)
        self.assertEqual(len(blob) % 4, 0)
        self.assertEqual(blob, initramfs.newc(entries))
        listed = initramfs.run(["cpio", "-itv"], input=blob.decode("latin-1"))
        self.assertRegex(listed, r"(?m)^-rwxr-xr-x\s+1 \S+\s+\S+\s+5 .* bin/x$")


class BootArm64(unittest.TestCase):
    """Real guests."""
    arch = "arm64"
    # Of an image that has KUnit: its cases are none of the job's.
    append = "kunit.enable=0"

    @classmethod
    def setUpClass(cls):
        cls.kernel = os.environ.get(f"GUEST_KERNEL_{cls.arch}")
        if not cls.kernel:
            raise unittest.SkipTest(f"no GUEST_KERNEL_{cls.arch}")
        cls.tmp = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.tmp.cleanup)

    def boot(self, **options):
        return guest.boot(self.kernel, self.arch, **{"timeout": 120, "append": self.append, **options})

    def initrd(self, script):
        box = initramfs.busybox(self.arch).read_bytes()
        path = Path(self.tmp.name) / "own.cpio"
        path.write_bytes(initramfs.newc([
            initramfs.directory("bin"), initramfs.directory("dev"),
            ("dev/console", 0o020600, b"", (5, 1)), initramfs.regular("bin/busybox", box),
            initramfs.regular("init", ("#!/bin/busybox sh\n" + script).encode())]))
        return path

    def cli(self, *words):
        err = io.StringIO()
        with contextlib.redirect_stderr(err):
            status = guest.main(["boot", "--arch", self.arch, "--kernel", self.kernel, "--append",
                                 self.append, "--quiet", *map(str, words)])
        return status, err.getvalue()

    def test_job(self):
        log = Path(self.tmp.name) / "log"
        result = self.boot(job='echo "ok 1 $A"; echo "{\\"n\\":$(nproc)}"; cat /a/b',
                           env={"A": "it's \"x\" $HOME"}, files={"/a/b": initramfs.__file__}, log=log)
        self.assertEqual(result.exit_status, 0, result.report())
        self.assertIn("ok 1 it's \"x\" $HOME", result.ktap)
        self.assertEqual(result.records, [{"n": 4}])
        self.assertIn("class GuestError", result.console)
        self.assertEqual(log.read_text().replace("\r", ""), result.console)
        self.assertGreater(result.seconds, result.boot_seconds)

    def test_output_is_complete(self):
        result = self.boot(job="""
            awk 'BEGIN { for (i = 1; i <= 5000; i++) print i "-abcdefghijklmnopqrstuvwxyz"
                         printf "end" }' """)
        self.assertEqual(result.exit_status, 0, result.report())
        lines = re.findall(r"^(\d+)-abcdefghijklmnopqrstuvwxyz$", result.console, re.M)
        self.assertEqual(lines, [str(number) for number in range(1, 5001)])

    def test_job_fails(self):
        status, text = self.cli("--job", "exit 3")
        self.assertEqual(status, 1)
        self.assertIn("status 3", text)

    def test_nodes(self):
        result = self.boot(mem="3G", cpuless=1, job="""
            cd /sys/devices/system/node
            for n in node*; do
                echo "{\\"cpus\\":\\"$(cat $n/cpulist)\\",\\"kb\\":$(
                    sed -n 's/.*MemTotal: *\\([0-9]*\\).*/\\1/p' $n/meminfo)}"
            done""")
        self.assertEqual([record["cpus"] for record in result.records], ["0-1", "2-3", ""])
        for record in result.records:
            self.assertAlmostEqual(record["kb"] / 2 ** 20, 1, delta=0.1)

    def test_disk_and_swap(self):
        tree = Path(self.tmp.name) / "tree"
        tree.mkdir()
        (tree / "hello").write_text("from the host\n")
        image = guest.make_disk(Path(self.tmp.name) / "disk", "64M", tree)
        result = self.boot(disk=image, swap="disk:300M", nodes=1, smp=1,
                           job="cat /mnt/hello /proc/swaps; echo back >/mnt/reply")
        self.assertEqual(result.exit_status, 0, result.report())
        self.assertIn("from the host", result.console)
        self.assertRegex(result.console, r"/dev/vd\w\s+partition\s+307196")
        result = self.boot(disk=image, swap="200M", job="cat /mnt/reply /proc/swaps")
        self.assertIn("\nback\n", result.console)
        self.assertRegex(result.console, r"/dev/zram0\s+partition\s+204796")

    def test_hang(self):
        initrd = self.initrd("i=0; while [ $i -lt 40 ]; do echo wait $i; let i+=1; done\n"
                             "while :; do /bin/busybox sleep 99; done\n")
        status, text = self.cli("--initrd", initrd, "--timeout", 15)
        self.assertEqual(status, 3)
        # A late message of the kernel may be among the last 30 lines.
        self.assertIn("last 30 console lines:\n", text)
        self.assertIn("wait 20\n", text)
        self.assertIn("wait 39\n", text)
        self.assertNotIn("wait 9\n", text)

    def test_panic(self):
        initrd = self.initrd("echo bye\nexit 1\n")
        status, text = self.cli("--initrd", initrd, "--timeout", 60)
        self.assertEqual(status, 2)
        self.assertIn("Kernel panic - not syncing: Attempted to kill init!", text)
        self.assertRegex(text, r"Call [Tt]race:")

    def test_own_initrd(self):
        off = self.initrd("echo hello\n/bin/busybox poweroff -f\n")
        self.assertEqual(self.cli("--initrd", off), (0, ""))
        reset = self.initrd("/bin/busybox reboot -f\n")
        self.assertEqual(self.cli("--initrd", reset)[0], 1)

    def test_qemu_refuses(self):
        result = self.boot(job="true", cpu="no-such-cpu")
        self.assertEqual(result.exit_status, 1)
        self.assertIn("no-such-cpu", result.report())

    def test_region_mismatch(self):
        if not guest.METER.exists():
            self.skipTest("no " + guest.METER.name)
        result = self.boot(meter=True, job='echo "{\\"region\\":\\"none\\"}"')
        self.assertEqual(result.exit_status, 1)
        self.assertIn("names 1 regions, the meter saw 0", result.report())

    def test_cpu_models(self):
        for cpu, ranges in (("max", True), ("neoverse-n1", False), ("cortex-a72", False)):
            with self.subTest(cpu):
                result = self.boot(job="dmesg", cpu=cpu)
                self.assertEqual(result.exit_status, 0, result.report())
                self.assertEqual("TLB range maintenance" in result.console, ranges)
