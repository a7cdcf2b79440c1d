# SPDX-License-Identifier: GPL-2.0
"""Tests of tlbstat ab with a load that plays the kernel: it counts by what the switch is."""

import json
import os
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

from tlbstat.canned import STOCK, TLB_RS, Case, write

# 1000 ranges a second with the switch off, 100 with it on, and pages that it does not change; of each 100 ms.
KERNEL = """
import os, sys, time
root, name = sys.argv[1:]
text = open(root + "/proc/vmstat").read()
ranges, pages, last = 6, 3072, time.monotonic()
while True:
    time.sleep(0.01)
    with open(root + "/proc/sys/vm/" + name) as f:
        on = f.read().strip()
    now = time.monotonic()
    ranges += (now - last) * (100 if on == "1" else 1000)
    pages += (now - last) * 5000
    last = now
    with open(root + "/new", "w") as f:
        f.write(text.replace("tlb_batch_ranges 6", f"tlb_batch_ranges {int(ranges)}")
                    .replace("tlb_batch_pages 3072", f"tlb_batch_pages {int(pages)}"))
    os.replace(root + "/new", root + "/proc/vmstat")
"""
SYSCTLS = {"tlb_batch": "tlb_batch", "migrc": "migrc_enable", "hvo": "hugetlb_optimize_vmemmap"}


class Ab(Case):
    def setUp(self):
        super().setUp()
        self.tlb_batch = self.root / "proc/sys/vm/tlb_batch"
        (self.root / "proc/sys/vm/migrc_enable").write_text("0\n")

    def kernel(self, name="tlb_batch"):
        return [sys.executable, "-c", KERNEL, self.root, SYSCTLS[name]]

    def ab(self, *words, command=(), **more):
        return self.run_it("ab", *words, *(["--", *command] if command else []), **more)

    def test_finds_what_the_switch_changes(self):
        before = set(self.tlb_batch.read_text())
        got = json.loads(self.ab("-n", "4", "-w", "0.4", "--json", command=self.kernel()).stdout)
        self.assertEqual((got["tlbstat_ab"], got["switch"], got["pairs"], got["seconds"]), (1, "vm.tlb_batch", 4, 0.4))
        issued, pages = got["tlb_batch_ranges"], got["tlb_batch_pages"]
        self.assertTrue(700 < issued["off"] < 1200 and 50 < issued["on"] < 300, issued)
        self.assertTrue(-1100 < issued["diff"][0] <= issued["diff"][1] <= issued["diff"][2] < -500, issued)
        self.assertTrue(3500 < pages["off"] < 6000 and 3500 < pages["on"] < 6000, pages)
        # What did not happen has no row, and what is no counter has none.
        for key in ("migrc_deferred", "migrc_held", "metric", "hvo.access_flag"):
            self.assertNotIn(key, got)
        self.assertEqual(set(self.tlb_batch.read_text()), before)

    def test_order_and_other_switches(self):
        for name, sysctl in SYSCTLS.items():
            file, seen = self.root / "proc/sys/vm" / sysctl, self.tmp / "seen"
            file.write_text("1\n")
            seen.write_text("")
            self.ab("-S", name, "-n", "4", "-w", "0.05", "-m", f"cat {file}; cat {file} >> {seen}")
            self.assertEqual(seen.read_text().split(), list("01100110"))
            self.assertEqual(file.read_text(), "1\n")

    def test_metric(self):
        metric = f"[ $(cat {self.tlb_batch}) = 1 ] && echo 40.5 || echo 50"
        p = self.ab("-n", "3", "-w", "0.05", "-m", metric)
        self.assertRegex(p.stdout, r"(?m)^the metric \(not per second\) +50 +40.5 +-9.5 +-9.5 +-9.5$")
        self.assertIn("set to 1 again", p.stdout)
        got = json.loads(self.ab("-n", "3", "-w", "0.05", "-m", metric, "-j").stdout)["metric"]
        self.assertEqual(got, {"off": 50, "on": 40.5, "diff": [-9.5, -9.5, -9.5]})
        # It knows how long a slice is, and may take longer.
        got = json.loads(self.ab("-n", "1", "-w", "0.25", "-m", "sleep 0.6; echo $TLBSTAT_SECONDS", "-j").stdout)
        self.assertEqual(got["metric"]["on"], 0.25)

    def test_quartiles(self):
        """Of five differences 0, -10, -20, -30 and -40."""
        count = self.tmp / "count"
        count.write_text("0")
        metric = (f"n=$(cat {count}); echo $((n + 1)) > {count}; [ $(cat {self.tlb_batch}) = 0 ] && echo 100 || "
                  "echo $((100 - 10 * (n / 2)))")
        got = json.loads(self.ab("-n", "5", "-w", "0.05", "-j", "-m", metric).stdout)["metric"]
        self.assertEqual(got, {"off": 100, "on": 80, "diff": [-30, -20, -10]})

    def test_metric_that_fails(self):
        for metric, says in (("echo much", "which is no number"), ("true", "which is no number"), ("echo 1 2", "no number"),
                             ("echo nan", "no number"), ("echo 3; exit 4", "status 4"), ("no-such-command", "status 127"),
                             ("kill -9 $$", "status 137")):
            p = self.ab("-n", "2", "-w", "0.05", "-m", metric, status=1)
            self.assertIn(says, p.stderr)
            self.assertEqual(self.tlb_batch.read_text(), "1\n")

    def test_kernel_without_a_switch(self):
        write(self.root, STOCK)
        for name, sysctl, option in (("tlb_batch", "tlb_batch", "RUST_TLB_BATCH"), ("migrc", "migrc_enable", "MIGRC"),
                                     ("hvo", "hugetlb_optimize_vmemmap", "HUGETLB_VMEMMAP_PAUSE")):
            p = self.ab("-S", name, status=1)
            self.assertIn(f"this kernel has no vm.{sysctl}: it is without tlb-rs, or without CONFIG_{option};", p.stderr)
            self.assertEqual(p.stdout, "")

    def test_strange_switches(self):
        for text in ("", "x\n", "on\n"):
            self.tlb_batch.write_text(text)
            self.assertIn("there is no number in it", self.ab(status=1).stderr)
            self.assertEqual(self.tlb_batch.read_text(), text)

    @unittest.skipIf(os.getuid(), "only root becomes somebody else")
    def test_without_root(self):
        for path in [self.root, *self.root.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        p = self.ab(status=1, user=65534)
        self.assertIn("to change it needs root: Permission denied", p.stderr)

    def started(self, *words):
        p = subprocess.Popen([self.tmp / "tlbstat", "ab", "--root", self.root, "-w", "0.3", *words], env=self.env,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(p.stdout.close)
        self.addCleanup(p.stderr.close)
        self.addCleanup(p.kill)
        return p

    def until(self, condition):
        end = time.monotonic() + 20
        while not condition():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)

    def test_every_exit_restores(self):
        """The switch was on, is off at that moment, and has to be on again: by a signal, and by SIGKILL."""
        for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGABRT):
            self.tlb_batch.write_text("1\n")
            p = self.started("-m", "sleep 60")
            self.until(lambda: self.tlb_batch.read_text() == "0\n")
            p.send_signal(sig)
            status = p.wait(timeout=20)
            self.until(lambda: self.tlb_batch.read_text() == "1\n")
            if sig in (signal.SIGKILL, signal.SIGABRT):
                self.assertLess(status, 0)
            else:
                self.assertEqual(status, 128 + sig)
                self.assertIn("interrupted before there was a pair", p.stderr.read())

    def test_signal_to_all_of_the_group(self):
        """As Ctrl-C sends it; who restores is not in it."""
        p = subprocess.Popen([self.tmp / "tlbstat", "ab", "--root", self.root, "-m", "sleep 60"], env=self.env,
                             stderr=subprocess.DEVNULL, start_new_session=True)
        self.addCleanup(p.kill)
        self.until(lambda: self.tlb_batch.read_text() == "0\n")
        os.killpg(p.pid, signal.SIGKILL)
        p.wait(timeout=20)
        self.until(lambda: self.tlb_batch.read_text() == "1\n")

    def test_interrupted_after_some_pairs(self):
        seen = self.tmp / "slices"
        seen.write_text("")
        p = self.started("-w", "0.05", "-m", f"echo >> {seen}; echo 1")
        self.until(lambda: len(seen.read_text()) > 4)
        p.send_signal(signal.SIGINT)
        out, said = p.communicate(timeout=20)
        self.assertEqual(p.returncode, 0)
        self.assertRegex(said, r"interrupted after \d+ of 15 pairs")
        self.assertRegex(out, r"vm.tlb_batch: \d+ pairs")

    def test_command(self):
        """It ends with the last pair, with all that it has started, or before: then the pairs count that are complete."""
        pids = self.tmp / "pids"
        load = f"sleep 1000 & echo $$ $! > {pids}; wait"
        self.ab("-n", "1", "-w", "0.1", command=["sh", "-c", load])
        for pid in pids.read_text().split():
            def ended(pid=pid):
                try:
                    return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
                except OSError:
                    return True
            self.until(ended)
        p = self.ab("-n", "100", "-w", "0.05", command=["sleep", "1"], quiet=False)
        self.assertRegex(p.stderr, r"the command ended after \d+ of 100 pairs")
        p = self.ab(command=["false"], status=1)
        self.assertIn("false: status 1", p.stderr)
        self.assertIn("the command ended before there was a pair", p.stderr)
        self.ab(command=["no-such-command"], status=1)
        self.assertEqual(self.tlb_batch.read_text(), "1\n")

    def test_one_at_a_time(self):
        p = self.started("-m", "sleep 60")
        self.until(lambda: self.tlb_batch.read_text() == "0\n")
        self.assertIn("another tlbstat ab changes vm.tlb_batch", self.ab("-n", "1", "-w", "0.05", status=1).stderr)
        self.ab("-S", "migrc", "-n", "1", "-w", "0.05")
        p.send_signal(signal.SIGTERM)
        p.wait()
        self.assertEqual(self.tlb_batch.read_text(), "1\n")

    def test_guardian_is_killed(self):
        p = self.started("-m", "sleep 60")
        self.until(lambda: self.tlb_batch.read_text() == "0\n")
        # Name and parent; other children are the shell of --metric.
        stats = [f.read_text() for f in Path("/proc").glob("[0-9]*/stat")]
        guardian = next(s.split()[0] for s in stats if f"(tlbstat) S {p.pid} " in s)
        os.kill(int(guardian), signal.SIGKILL)
        p.send_signal(signal.SIGTERM)
        p.wait()
        self.assertEqual(self.tlb_batch.read_text(), "1\n")

    def test_no_terminal_to_wait_for(self):
        """What sets the modes of a terminal from the background would stop for ever."""
        words = [str(self.tmp / "tlbstat"), "ab", "--root", str(self.root), "-n", "1", "-w", "0.05", "-m", "stty -echo; echo 1"]
        p = subprocess.run(["script", "-qec", " ".join(f"'{w}'" for w in words), "/dev/null"], capture_output=True, text=True,
                           check=False, env=self.env, timeout=30, stdin=subprocess.DEVNULL)
        self.assertEqual(p.returncode, 0, p.stdout)
        self.assertIn("the metric", p.stdout)

    def test_nothing_happens(self):
        """Counters that stand still have no row, and zero is no difference."""
        p = self.ab("-n", "1", "-w", "0.05")
        self.assertEqual(len(p.stdout.splitlines()), 4)
        self.assertIn("with 1 pairs, 1e+02 % of those without any", p.stdout)
        self.assertEqual(TLB_RS["proc/sys/vm/tlb_batch"], self.tlb_batch.read_text())

    def test_usage(self):
        for words in (["-S", "x"], ["-n", "0"], ["-n", "x"], ["-w", "0"], ["-w", "nan"], ["x"], ["-n", "1001"], ["--"], ["-m"],
                      ["--once"], ["-n", "1e7"]):
            p = self.ab(*words, status=2)
            self.assertEqual(p.stdout, "")
            self.assertIn("tlbstat: ", p.stderr)
        self.assertEqual(self.tlb_batch.read_text(), "1\n")
