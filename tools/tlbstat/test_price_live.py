# SPDX-License-Identifier: GPL-2.0
"""Tests of tlbstat price on the kernel that runs."""

import json
import os
import signal
import subprocess
import time
import unittest
from pathlib import Path

from tlbstat.canned import HERE, Case, write

# Children that end with it.
MANY = """
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>
int main(void)
{
	int i, pid;

	for (i = 0; i < 10000; i++) {
		pid = fork();
		if (pid < 0)
			break;
		if (!pid) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			while (1)
				pause();
		}
	}
	printf("%d\\n", i);
	fflush(stdout);
	while (1)
		pause();
}
"""


class Live(Case):
    """On this machine, where it allows samples."""

    def setUp(self):
        p = subprocess.run([self.tmp / "tlbstat", "price", "record", "-o", "-", "0.2"], capture_output=True, text=True, check=False,
                           env=self.env)
        if p.returncode:
            self.skipTest(p.stderr.strip())
        subprocess.run(["gcc", "-O2", "-pthread", "-o", self.tmp / "tlb_load", HERE / "load/tlb_load.c"], check=True)

    def live(self, *words):
        p = subprocess.run([self.tmp / "tlbstat", "price", *words], capture_output=True, text=True, check=True, env=self.env,
                           timeout=60, cwd=self.tmp)
        return p.stdout

    def test_known_load(self):
        out = self.live("record", "-p", "250", "-o", "live", "--", "./tlb_load", "mprotect", "2")
        self.assertEqual(json.loads(out)["load"], "mprotect")
        got = json.loads(self.live("report", "--json", "live"))
        causes = {c["cause"]: c["samples"] for c in got["causes"]}
        if got["flush_samples"] < 50:
            self.skipTest("others use this machine: the load had too little time")
        self.assertEqual(max(causes, key=causes.get), "mprotect")
        self.assertLess(got["unmatched"], 0.05)

    def test_flushes_are_counted(self):
        out = self.live("record", "-o", "live", "--", "./tlb_load", "rate", "4")
        load = json.loads(out.splitlines()[-1])
        got = json.loads(self.live("report", "--json", "live"))
        if got["flushes_per_s"] is None:
            self.skipTest(got["heading"])
        # More are lost where others take the CPUs.
        self.assertTrue(0.4 < got["flushes_per_s"] / (load["rounds"] / load["seconds"]) < 2.5, (load, got))

    def test_flushes_without_a_tracepoint(self):
        """Samples are there, and no figure of flushes."""
        self.root = write(self.tmp / "root", {
            "proc/kallsyms": Path("/proc/kallsyms").read_text(), "proc/vmstat": "", "proc/cpuinfo": "flags : fpu\n",
            "sys/kernel/tracing/events/tlb/tlb_flush/id": "999999\n"})
        for cpuinfo, counts in (("flags\t: fpu\n", "unopened"), ("flags\t: fpu invlpgb\n", "invlpgb")):
            (self.root / "proc/cpuinfo").write_text(cpuinfo)
            self.live("record", "-o", "live", "--root", self.root, "0.5")
            self.assertIn(f"\ncounts {counts if os.uname().machine == 'x86_64' else 'none'}\n", (self.tmp / "live").read_text())
            self.assertIsNone(json.loads(self.live("report", "--json", "live"))["flushes_per_s"])

    def test_small_ring(self):
        """What is lost is said."""
        out = self.live("--json", "--ring", "1", "-p", "100", "--", "./tlb_load", "mprotect", "1")
        got = json.loads(out.splitlines()[-1])
        self.assertGreater(got["lost"], 0)
        self.assertIn("LOST: all figures are too low by", got["heading"])

    def test_samples_keep_step_with_nothing(self):
        """Of what begins each 1, 4 or 10 ms, all parts are sampled, whatever period was asked for."""
        self.env = self.env | {"NO_PMU": "1"}
        for words in ([], ["-p", "250"], ["-p", "1000"], ["-p", "2000"], ["-p", "10000"]):
            period = json.loads(self.live("--json", *words, "0.2"))["period_us"]
            for grid in (1000, 4000, 10000):
                phases = sorted(k * period % grid for k in range(2000))
                gap = max(b - a for a, b in zip(phases, [*phases[1:], phases[0] + grid]))
                self.assertLess(gap, grid / 50, (words, period, grid))

    def test_no_pmu(self):
        """The timer of the software is taken instead, and that is said."""
        self.env = self.env | {"NO_PMU": "1"}
        got = json.loads(self.live("--json", "0.3"))
        self.assertEqual((got["event"], got["period_us"]), ("cpu-clock", 1913.48))
        self.assertIn("there is no counter of cycles", got["heading"])

    @unittest.skipIf(os.getuid(), "only root becomes somebody else")
    def test_without_root(self):
        p = subprocess.run([self.tmp / "tlbstat", "price", "0.2"], capture_output=True, text=True, check=True, env=self.env,
                           timeout=60, user=65534)
        self.assertRegex(p.stdout, r"\ALinux .*, NO SAMPLES: (kptr_restrict hides|samples need root)")

    def test_ten_thousand_processes(self):
        """Their number does not matter: events are of CPUs."""
        (self.tmp / "many.c").write_text(MANY)
        subprocess.run(["gcc", "-O1", "-static", "-o", self.tmp / "many", self.tmp / "many.c"], check=True)
        p = subprocess.Popen([self.tmp / "many"], stdout=subprocess.PIPE, text=True)
        self.addCleanup(p.stdout.close)
        self.addCleanup(p.wait)
        self.addCleanup(p.kill)
        if p.stdout.readline() != "10000\n":
            self.skipTest("this machine does not allow so many")
        got = json.loads(self.live("--json", "--", "./tlb_load", "mprotect", "2").splitlines()[-1])
        self.assertEqual(got["lost"], 0)
        self.assertIn("mprotect", [c["cause"] for c in got["causes"]])

    def test_signal_ends_it(self):
        p = subprocess.Popen([self.tmp / "tlbstat", "price", "60"], stdout=subprocess.PIPE, text=True, env=self.env)
        self.addCleanup(p.kill)
        time.sleep(1)
        p.send_signal(signal.SIGINT)
        out, _ = p.communicate(timeout=20)
        self.assertEqual(p.returncode, 0)
        self.assertIn("all flushes", out)

    def test_command(self):
        self.assertIn("all flushes", self.live("0.3", "--", "sleep", "60"))
        p = subprocess.run([self.tmp / "tlbstat", "price", "--", "no-such-command"], capture_output=True, text=True, check=False,
                           env=self.env, timeout=60)
        self.assertEqual(p.returncode, 1)
        self.assertIn("no-such-command: status 127", p.stderr)
        # Where it cannot be written to is known before the load has run.
        p = subprocess.run([self.tmp / "tlbstat", "price", "record", "-o", "/nowhere/x", "60"], capture_output=True, text=True,
                           check=False, env=self.env, timeout=30)
        self.assertEqual(p.returncode, 1)
        for command in ("price", "ab", "doctor"):
            p = subprocess.run([self.tmp / "tlbstat", command, "--help"], capture_output=True, text=True, check=True, env=self.env)
            self.assertIn("usage: tlbstat", p.stdout)
