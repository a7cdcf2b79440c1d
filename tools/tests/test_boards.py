# SPDX-License-Identifier: GPL-2.0
"""Tests of make fastpath: its plan, and what it refuses."""

import argparse
import contextlib
import io
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from tlbrs.boards import fastpath, mmci, plan
from tlbrs.kernel.common import ROOT, Fail
from tlbrs.suites import boards

LIBRARY = ("mmtests/thpscale.yaml", "mmtests/kernbench.yaml", "mmtests/stressng-mmap.yaml", "mmtests/stressng-cpu.yaml",
           "micromm/vmalloc.yaml", "will-it-scale/page_fault.yaml", "speedometer/v2.1.yaml", "stress-ng/migrate.yaml")
# What Fastpath would refuse, or what nobody has seen: (what is wrong, what is there, what is there instead, what is said).
SPOILT = (("no YAML", "\nsut:", "\nsut: [", "no YAML"),
          ("no board", "\nsut:", "\nboard:", "required"),
          ("no address", "      host:", "      address:", "host"),
          ("another way to connect", "method: SSH", "method: LAVA", "LAVA"),
          ("a key of a profile that nobody has seen", "  cmdline:", "  sysctl:", "sysctl"),
          ("words that are no list", "  cmdline:\n  - sysctl", "  cmdline: sysctl", "cmdline"),
          ("another image", "stock/Image.gz", "stock/Image", "does not match"),
          ("a relative path", "kernel: /", "kernel: ./", "does not match"),
          ("two profiles of one name", "name: tlb-rs-off", "name: tlb-rs", "one name"),
          ("a benchmark without a suite", "include: micromm/fork.yaml", "include: fork.yaml", "does not match"),
          ("a benchmark twice", "include: micromm/fork", "include: micromm/munmap", "non-unique"),
          ("no repeats", "repeats: 3", "repeats: 0", "minimum"),
          ("a number that is text", "warmups: 1", "warmups: one", "integer"),
          ("an unknown time", "timeout: 2h", "timeout: 2 hours", "timeout"),
          ("a key beside the others", "defaults:", "version: 1\ndefaults:", "version"))


class Case(unittest.TestCase):
    def setUp(self):
        self.place = Path(self.enterContext(tempfile.TemporaryDirectory())).resolve()

    def files(self, *names):
        for name in names:
            (self.place / name).parent.mkdir(parents=True, exist_ok=True)
            (self.place / name).write_text("x", encoding="ascii")

    def kernels(self):
        self.files(*(f"{kernel}/{file}" for kernel in fastpath.KERNELS for file in ("Image.gz", "modules.tar.xz")))


@unittest.skipIf(plan.lacking(), plan.lacking())
class Plan(Case):
    def test_ours(self):
        import yaml     # pylint: disable=import-outside-toplevel
        self.kernels()
        text = plan.text(self.place)
        self.assertIsNone(plan.wrong(text))
        self.assertIn(plan.UNVERIFIED, text)
        profiles = {p["name"]: p for p in yaml.safe_load(text)["swprofiles"]}
        self.assertEqual(["stock", "tlb-rs-off", "tlb-rs"], list(profiles))
        self.assertEqual(profiles["tlb-rs"]["kernel"], profiles["tlb-rs-off"]["kernel"])
        self.assertNotEqual(profiles["tlb-rs"]["kernel"], profiles["stock"]["kernel"])
        self.assertEqual([None, ["sysctl.vm.tlb_batch=0"], None], [p.get("cmdline") for p in profiles.values()])
        # The suite boots each of them.
        self.assertEqual(set(boards.BATCH), set(profiles))

    def test_spoilt(self):
        self.kernels()
        text = plan.text(self.place)
        for what, there, instead, says in SPOILT:
            with self.subTest(what):
                self.assertIn(there, text)
                said = plan.wrong(text.replace(there, instead, 1))
                self.assertIn(says, said or "nothing wrong")

    def test_missing_file(self):
        self.kernels()
        (self.place / "stock/modules.tar.xz").unlink()
        self.assertEqual(f"swprofiles: no file {self.place}/stock/modules.tar.xz", plan.wrong(plan.text(self.place)))

    def test_empty(self):
        for text in ("", "a", "[]", "{}"):
            self.assertIsNotNone(plan.wrong(text), text)

    def test_check(self):
        self.kernels()
        for name, text, status in (("good", plan.text(self.place), 0), ("bad", "swprofiles: []\n", 1)):
            (self.place / name).write_text(text, encoding="utf-8")
            p = subprocess.run([sys.executable, ROOT / "tools/tlb-rs", "fastpath", "--check", self.place / name], text=True,
                               capture_output=True, check=False)
            self.assertEqual((status, ""), (p.returncode, p.stdout), p.stderr)
            self.assertEqual(status, p.stderr.count("error: "), p.stderr)


class Benchmarks(Case):
    def test_checkout(self):
        self.files(*(f"{plan.LIBRARY}/{name}" for name in LIBRARY))
        self.assertEqual(["micromm/vmalloc.yaml", "mmtests/stressng-mmap.yaml", "mmtests/thpscale.yaml", "stress-ng/migrate.yaml",
                          "will-it-scale/page_fault.yaml"], plan.benchmarks(self.place))

    def test_no_checkout(self):
        self.assertEqual(list(plan.PUBLISHED), plan.benchmarks(None))
        with self.assertRaisesRegex(Fail, "no benchmarks in"):
            plan.benchmarks(self.place)
        self.files(f"{plan.LIBRARY}/speedometer/v2.1.yaml")
        with self.assertRaisesRegex(Fail, "none of its 1 benchmarks"):
            plan.benchmarks(self.place)


class Refused(Case):
    def run_tool(self, *words):
        p = subprocess.run([sys.executable, ROOT / "tools/tlb-rs", "fastpath", *words], text=True, capture_output=True,
                           check=False)
        self.assertNotIn("Traceback", p.stderr)
        return p.returncode, p.stderr

    def test_words(self):
        for words, says in ((("--arch", "x86_64", "--out", "x"), "ARCH=x86_64: Fastpath's boards are arm64"),
                            ((), "name a directory"), (("--out", "x", "--kver", "1.0"), "1.0"),
                            (("--out", "x", "--kdir", self.place), str(self.place))):
            status, said = self.run_tool(*words)
            self.assertEqual(1, status)
            self.assertIn(says, said)

    def asked(self, **more):
        return argparse.Namespace(**{"command": "fastpath", "arch": "arm64", "kver": "7.3", "kdir": None, "fastpath": None,
                                     "config": ["defconfig"], "out": str(self.place / "out")} | more)

    def test_before_a_build(self):
        """What is wrong is said before anything is built."""
        self.files("file")
        with mock.patch.object(fastpath.kernel, "base_tree", side_effect=AssertionError("too late")), \
                mock.patch.object(fastpath.toolchain, "need", lambda groups: None):
            for more, says in (({"out": str(self.place / "file")}, "no directory"),
                               ({"fastpath": str(self.place)}, "no benchmarks"),
                               ({"config": [str(self.place / "none")]}, "no such file")):
                with self.assertRaisesRegex(Fail, says):
                    fastpath.fastpath(self.asked(**more))
            with mock.patch.object(plan, "lacking", lambda: "pip install it"), self.assertRaisesRegex(Fail, "pip install it"):
                fastpath.fastpath(self.asked())

    def test_no_modules(self):
        """And without them after the configuration."""
        def configure(_make, _env, _src, out, *_rest):
            (out / ".config").write_text("CONFIG_OVERLAY_FS=y\n", encoding="ascii")
        a = self.asked(tree="7.3")
        with mock.patch.object(fastpath, "BUILD", self.place), \
                mock.patch.object(fastpath.kernel, "maker", lambda *_: (["make"], {})), \
                mock.patch.object(fastpath.kernel, "configure", configure), \
                mock.patch.object(fastpath, "logged", side_effect=AssertionError("built")), \
                contextlib.redirect_stderr(io.StringIO()), self.assertRaisesRegex(Fail, "defconfig has no CONFIG_MODULES"):
            fastpath.build("stock", self.place, a, "defconfig", [])

    def test_fragments(self):
        """Only one of the kernels has what is ours."""
        names = {name: [f.stem for f in fastpath.fragments(name)] for name in fastpath.KERNELS}
        self.assertEqual({"stock": ["deb", "fastpath-stock"], "tlb-rs": ["deb", "release", "hvo"]}, names)
        for name in fastpath.KERNELS:
            self.assertTrue(all(f.is_file() for f in fastpath.fragments(name)))


# modules_install of a kernel: with a link to where it was built.
INSTALL = """import os, sys
root = next(word.split("=")[1] for word in sys.argv if word.startswith("INSTALL_MOD_PATH="))
place = root + "/lib/modules/7.3.4-x"
os.makedirs(place + "/kernel")
open(place + "/kernel/a.ko", "w").close()
os.symlink("/nowhere", place + "/build")
"""


class Made(Case):
    """What is in OUT=."""

    def test_archive(self):
        out = self.place / "7.3/arm64-fastpath-stock"
        out.mkdir(parents=True)
        with contextlib.redirect_stderr(io.StringIO()):
            fastpath.archive([sys.executable, "-c", INSTALL], None, out, self.place / "modules.tar.xz")
        self.assertEqual(["lib/", "lib/modules/", "lib/modules/7.3.4-x/", "lib/modules/7.3.4-x/kernel/",
                          "lib/modules/7.3.4-x/kernel/a.ko"], boards.listed(self.place / "modules.tar.xz"))

    @unittest.skipIf(plan.lacking(), plan.lacking())
    def test_files(self):
        """Of two builds that are made up: stock is from the tree without the series."""
        trees = {}

        def build(name, src, *_):
            trees[name] = src
            out = self.place / f"build-{name}"
            (out / "arch/arm64/boot").mkdir(parents=True, exist_ok=True)
            (out / "arch/arm64/boot/Image.gz").write_text(name, encoding="ascii")
            (out / ".config").write_text(f"# {name}\n", encoding="ascii")
            return ["make"], {}, out
        place = self.place / "out"
        a = argparse.Namespace(command="fastpath", arch="arm64", kver="7.3", kdir=None, fastpath=None, config=["defconfig"],
                               out=str(place))
        patched = argparse.Namespace(path="patched")
        for module, name, new in ((fastpath.toolchain, "need", lambda groups: None), (fastpath, "build", build),
                                  (fastpath.kernel, "base_tree", lambda *_: ("7.3", "stock tree", "1")),
                                  (fastpath.kernel, "patched_tree", lambda *_: patched),
                                  (fastpath, "tree_version", lambda _: (7, 3, 4)),
                                  (fastpath, "archive", lambda make, env, out, to: to.write_text("x", encoding="ascii"))):
            self.enterContext(mock.patch.object(module, name, new))
        with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()):
            # Twice: what is there is replaced.
            self.assertEqual((0, 0), (fastpath.fastpath(a), fastpath.fastpath(a)))
        self.assertEqual(f"{place}/plan.yaml\n" * 2, said.getvalue())
        self.assertEqual({"stock": "stock tree", "tlb-rs": "patched"}, trees)
        files = {str(f.relative_to(place)) for f in place.rglob("*") if f.is_file()}
        self.assertEqual({"README", "plan.yaml"} | {f"{kernel}/{name}" for kernel in fastpath.KERNELS
                                                    for name in ("Image.gz", "modules.tar.xz", "config")}, files)
        self.assertEqual("stock", (place / "stock/Image.gz").read_text(encoding="ascii"))
        readme = (place / "README").read_text(encoding="utf-8")
        self.assertEqual(5, readme.count("\n"))
        self.assertIn(plan.UNVERIFIED, readme)
        self.assertIn(f"{place}/plan.yaml", readme)
        self.assertIsNone(plan.wrong((place / "plan.yaml").read_text(encoding="utf-8")))


class Configs(Case):
    """The two kernels differ in nothing but what is ours."""

    def test_difference(self):
        for name, text in (("stock", "CONFIG_LOCALVERSION=\"-stock\"\nCONFIG_SMP=y\n# CONFIG_A is not set\n"),
                           ("tlb-rs", "CONFIG_LOCALVERSION=\"-tlb-rs\"\nCONFIG_NEW=y\nCONFIG_NEED_TASKS_RCU=y\n")):
            self.files(f"{name}/config")
            (self.place / name / "config").write_text(text, encoding="ascii")
        self.files("tree/mm/Kconfig", "base/mm/Kconfig")
        both = "config SMP\nconfig NEED_TASKS_RCU\n"
        for tree, text in (("tree", f"{both}config NEW\n"), ("base", both)):
            (self.place / tree / "mm/Kconfig").write_text(text, encoding="ascii")
        names = boards.unlike(self.place)
        self.assertEqual(["CONFIG_NEED_TASKS_RCU", "CONFIG_NEW", "CONFIG_SMP"], names)
        self.assertEqual(["CONFIG_SMP"], boards.not_ours(self.place / "tree", self.place / "base", names))


class Lacking(unittest.TestCase):
    def test_command(self):
        """apt's packages are for the Python of the distribution."""
        for prefix, says in (("/usr", "apt-get install -y python3-jsonschema"), ("/opt/python", "-m pip install jsonschema")):
            with mock.patch.object(plan.sys, "prefix", prefix), \
                    mock.patch.object(plan.importlib.util, "find_spec", lambda name: name == "yaml"):
                self.assertIn(says, plan.lacking())
        with mock.patch.object(plan.importlib.util, "find_spec", lambda name: True):
            self.assertEqual("", plan.lacking())


class Mmci(Case):
    """make mmci, without virtme-ng."""

    def tree(self):
        makefile = "TEST_PROGS := a.sh\nTEST_PROGS += ksft_cow.sh\nTEST_PROGS += ksft_thp.sh\nTEST_GEN_FILES += cow\n"
        (self.place / mmci.MM).mkdir(parents=True)
        (self.place / mmci.MM / "Makefile").write_text(makefile, encoding="ascii")
        return self.place

    def test_tests(self):
        tree = self.tree()
        listed = self.place / "ci" / mmci.LIST
        listed.parent.mkdir(parents=True)
        listed.write_text('declare -A TESTS\nTESTS["ksft_thp.sh"]="THP"\nFLAKY=("ksft_cow.sh")\n', encoding="ascii")
        self.assertEqual(["ksft_cow.sh", "ksft_thp.sh"], mmci.tests(tree, None, []))
        self.assertEqual(["ksft_thp.sh"], mmci.tests(tree, self.place / "ci", []))
        self.assertEqual(["ksft_cow.sh", "ksft_thp.sh"], mmci.tests(tree, self.place / "ci", ["cow", "ksft_thp.sh"]))
        with self.assertRaisesRegex(Fail, "no ksft_none.sh in .*; there are cow thp"):
            mmci.tests(tree, None, ["none"])
        listed.write_text("TESTS=()\n", encoding="ascii")
        with self.assertRaisesRegex(Fail, "no tests in .*run-mm-selftests.sh"):
            mmci.tests(tree, self.place / "ci", [])

    def test_fragments(self):
        ours = mmci.fragments(self.place, None)
        self.assertTrue(ours[0].is_file())
        self.assertNotIn("RUST", ours[0].read_text(encoding="utf-8").replace("No Rust", ""))
        with self.assertRaisesRegex(Fail, "MMCI=.*: no .github/kconfigs"):
            mmci.fragments(self.place, self.place)

    def test_memory(self):
        self.assertEqual(1 << 30, mmci.memory("1G"))
        with self.assertRaisesRegex(Fail, r"MEM=9000T, but .*: make mmci MEM=\d+G"):
            mmci.memory("9000T")

    def test_verdicts(self):
        boot = "[    0.000000] Linux version\n"
        ended = "out\n\ntlb-rs: job exit {}\n".format
        for code, text, said, ok, why in (
                (0, boot, ended(0), True, ""), (255, boot, ended(0), True, ""), (255, boot, ended(4), True, "SKIP"),
                (0, boot, ended(1), False, "status 1"),
                (0, boot, "out\n", False, "the script did not end, and vng ended with status 0"),
                (124, boot, ended(0), False, "timeout"), (0, "", ended(0), False, "the kernel said nothing"),
                (0, f"{boot}[    1.000000] WARNING: mm/rmap.c:1 at x\n", ended(0), False,
                 "kernel report: WARNING: mm/rmap.c:1 at x")):
            self.assertEqual((ok, why), mmci.verdict(code, text, said))

    def test_run(self):
        """By a vng that writes to the console that it is told of, and ends as the test would."""
        vng = '#!/bin/sh\nlog=$(echo "$*" | sed -n "s/.*id=conlog,path=\\([^ ]*\\) .*/\\1/p")\necho "[    0.000000] up" >$log\n'
        job = mmci.JOB.partition("./{test}\n")
        self.assertTrue(job[2])
        for end, seconds, ok, why in ((f"(exit 0)\n{job[2]}", 9, True, ""), (f"(exit 4)\n{job[2]}", 9, True, "SKIP"),
                                      (f"(exit 3)\n{job[2]}", 9, False, "status 3"), ("sleep 60", 1, False, "timeout"),
                                      ("exit 7", 9, False, "the script did not end, and vng ended with status 7"),
                                      ('echo "[    2.000000] BUG: bad page" >>$log', 9, False, "kernel report: BUG: bad page")):
            (self.place / "vng").write_text(f"{vng}{end}\n", encoding="ascii")
            (self.place / "vng").chmod(0o755)
            with mock.patch.dict(mmci.os.environ, PATH=f"{self.place}:{mmci.os.environ['PATH']}"):
                self.assertEqual((ok, why), mmci.run(self.place, self.place, "ksft_cow.sh", 4 << 30, seconds)[:2], end)

    def test_command(self):
        """What begins with a dash is an argument of an option; KVM=0 is obeyed."""
        with mock.patch.dict(mmci.os.environ, KVM="0"):
            words = mmci.command(Path("/out"), Path("/log"), "ksft_cow.sh", 4 << 30, 9)
        self.assertIn("--disable-kvm", words)
        for option in ("--qemu-opts=-drive file=/out/swap.img", "--append=console=hvc0", "--exec=mkswap"):
            self.assertEqual(1, sum(str(word).startswith(option) for word in words), option)
        self.assertIn("4096M", words)
        self.assertEqual(2, words.count("2048M"))
        with mock.patch.dict(mmci.os.environ, KVM="1"), mock.patch.object(mmci.os, "access", lambda *_: True):
            self.assertNotIn("--disable-kvm", mmci.command(Path("/out"), Path("/log"), "ksft_cow.sh", 4 << 30, 9))

    def test_no_rust(self):
        """A configuration with Rust is not that CI's, unless its fragments ask for it."""
        def configured(words, *_args, **_kw):
            self.assertIn(words[0], ("virtme-configkernel", "vng"))
            (self.place / "out/.config").write_text("CONFIG_RUST=y\n", encoding="ascii")
            (self.place / "out/build.log").write_text("", encoding="ascii")
        (self.place / "asks").write_text("CONFIG_RUST=y\n", encoding="ascii")
        (self.place / "other").write_text("CONFIG_RUSTY=y\n", encoding="ascii")
        with mock.patch.multiple(mmci, logged=configured, need_space=lambda *_: None):
            with self.assertRaisesRegex(Fail, "no fragment of that CI asks"):
                mmci.build(self.place, self.place / "out", [self.place / "other"], [])
            mmci.build(self.place, self.place / "out", [self.place / "other", self.place / "asks"], [])

    def test_warning(self):
        def built(words, log, *_args, **_kw):
            text = {"virtme-configkernel": "", "vng": "warning: override: A\n" + self.says}[words[0]]
            log.write_text(text, encoding="ascii")
            (self.place / "out/.config").write_text("CONFIG_A=y\n", encoding="ascii")
        with mock.patch.multiple(mmci, logged=built, need_space=lambda *_: None):
            self.says = ""
            mmci.build(self.place, self.place / "out", [], [])
            self.says = "mm/rmap.c:1:2: warning: unused variable\n"
            with self.assertRaisesRegex(Fail, "unused variable"):
                mmci.build(self.place, self.place / "out", [], [])
