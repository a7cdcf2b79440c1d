# SPDX-License-Identifier: GPL-2.0
"""Tests of tlbstat on canned files."""

import json
import os
import pty
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest
import xml.etree.ElementTree
from pathlib import Path

from tlbstat.canned import BOOT, HERE, LATER, PAGE, STOCK, TLB_RS, Case, write

MIGRATED = ("            bash-99      [001] .....    10.000001: mm_migrate_pages: nr_succeeded={} nr_failed=0 "
            "nr_thp_succeeded=0 nr_thp_failed=0 nr_thp_split=0 nr_split=0 mode=MIGRATE_SYNC reason={}")


# HugeTLB pages of each size (KiB), and what one could give back.
POOLS = {2048: 100, 1 << 20: 2, 64: 5}
GIVE = {kb: max(0, kb * 1024 // PAGE * 64 - PAGE) for kb in POOLS}


class Tlbstat(Case):
    def sample(self, *words, **more):
        return json.loads(self.run_it("--json", *(words or ("--once",)), **more).stdout.splitlines()[-1])

    def recording(self, *samples):
        path = self.tmp / "recording"
        path.write_text("".join(s if isinstance(s, str) else json.dumps(s) + "\n" for s in samples))
        return path

    # --- how it is built

    def test_another_compiler(self):
        """Each builds it again, the same one does not."""
        made = self.tmp / "made"
        for name in ("here", "there"):
            cc = self.tmp / f"{name}-cc"
            cc.write_text(f'#!/bin/sh\ncase $1 in -dumpmachine) echo {name};; *)\n'
                          'while [ "$1" != -o ]; do shift; done\n' f'echo {name} >"$2"; echo {name} >>{made};; esac\n')
            cc.chmod(0o755)
        for name in ("here", "there", "there", "here"):
            subprocess.run(["make", "-s", "-C", HERE, f"O={self.tmp}/o", f"CC={self.tmp}/{name}-cc"], check=True)
            self.assertEqual((self.tmp / "o/tlbstat").read_text(), name + "\n")
        self.assertEqual(made.read_text().split(), ["here", "there", "here"])

    # --- what is read

    def test_every_source_has_its_keys(self):
        s = self.sample()
        for key, value in {
                "tlbstat": 1, "uptime": 100, "boot_id": BOOT, "kernel": "7.3.4", "arch": "aarch64",
                "tlb_batch_pages": 3072, "tlb_batch_avoided": 3066, "migrc_held": 77, "hvo_pte_updates": 4096,
                "hvo_flush": 2, "hvo_young": 5,
                "tlb_batch_restored": 512, "tlb_batch.restored_runs": 32, "tlb_batch.ranges.rmap_end": 2,
                "tlb_batch.pages.flush": 3000, "migrc.denied.writable": 2000,
                "migrc.drain.age": 3, "migrc.drain_pages.off": 1024, "migrc.hook.range": 2, "migrc.age.128": 1024,
                "migrc.readmostly.protected": 11, "hvo.pauses.split": 4, "hvo.pauses.restore": 2,
                "hvo.entries.optimize": 4088, "hvo.cancelled": 9, "hvo.max_ns": 30500, "hvo.below_us.32": 3,
                "sysctl.tlb_batch": 1,
                "hugetlb.2048kB": 100, "stats.migrc": 1, "vmemmap_saved_bytes": 1048 * PAGE,
                "compact_stall": 40, "thp_fault_fallback": 30, "psi_some_ms": 1500, "psi_full_ms": 2,
                # What remains, of all that the pools could give.
                "estimate.vmemmap_bytes": sum(n * GIVE[kb] for kb, n in POOLS.items()) - 1048 * PAGE,
                # What this kernel lacks, and what it needs no estimate of.
                "migrc_readmostly_miss": None, "nr_tlb_remote_flush": None, "estimate.flushes": None}.items():
            self.assertIn(key, s)
            self.assertEqual(s[key], value, key)
        self.assertNotIn("nr_free_pages", s)
        # Runs that become valid are no flushes.
        self.assertNotIn("tlb_batch.ranges.restore", s)

    def test_stock_arm64_is_estimated(self):
        s = self.sample(root=write(self.root, STOCK))
        self.assertEqual(s["estimate.flushes"], 7000 - 511 * 3 + 512 * 2)
        self.assertIsNone(s["estimate.deferrable"])     # which migrations those were is not known without --trace
        if PAGE == 4096:
            self.assertEqual(GIVE, {2048: 7 * PAGE, 1 << 20: 4095 * PAGE, 64: 0})
        self.assertEqual(s["estimate.vmemmap_bytes"], sum(n * GIVE[kb] for kb, n in POOLS.items()))
        self.assertEqual(s["vmemmap_saved_bytes"], 0)
        self.assertIsNone(s["tlb_batch_pages"])
        heads = self.run_it("0.01", "1", root=self.root).stdout.splitlines()
        self.assertIn("estimate", heads[0])
        self.assertNotIn("flushes", heads[0])

    def test_what_could_be_given_back_yet(self):
        """As hvo counts it; else all, less what was given back while the switch is on, never less than nothing."""
        pool, on = "sys/kernel/mm/hugepages/hugepages-{}kB/unoptimized_hugepages".format, "proc/sys/vm/hugetlb_optimize_vmemmap"
        every = sum(n * GIVE[kb] for kb, n in POOLS.items())
        counted = {pool(2048): "93\n", pool(1 << 20): "1\n"}
        for files, could in ((counted | {on: "1\n"}, 93 * GIVE[2048] + GIVE[1 << 20]),
                             (counted | {on: "0\n"}, 93 * GIVE[2048] + GIVE[1 << 20]),
                             ({pool(2048): "93\n", on: "0\n"}, every), ({pool(2048): "93\n", on: "1\n"}, every - 1048 * PAGE),
                             (counted | {pool(2048): "101\n", on: "0\n"}, every),
                             ({on: "0\n"}, every), ({on: "1\n"}, every - 1048 * PAGE),
                             # More struct pages than the memory blocks need.
                             ({on: "1\n", "proc/vmstat": TLB_RS["proc/vmstat"].replace("boot_pages 1000", "boot_pages 4000")},
                              every)):
            self.assertEqual(self.sample(root=write(self.root, TLB_RS | files))["estimate.vmemmap_bytes"], could, files)

    def test_stalls(self):
        """Of compaction, of huge pages and for memory; without PSI there is no such number."""
        later = LATER | {"proc/pressure/memory": "some avg10=0 total=1620000\nfull total=9000\n"}
        later["proc/vmstat"] = LATER["proc/vmstat"].replace("compact_stall 40", "compact_stall 240")
        later["proc/vmstat"] = later["proc/vmstat"].replace("thp_fault_fallback 30", "thp_fault_fallback 60")
        path = self.recording(self.sample())
        rates = self.sample("--since", path, root=write(self.root, later))
        self.assertEqual([rates[f"rate.stalls.{name}"] for name in ("comp", "nothp", "psi_ms")], [20, 3, 12])
        for text in ("", "some\n", "some avg10=1 total=\n", "some avg10=1 total=-1\n", "some total=x\n"):
            s = self.sample(root=write(self.root, TLB_RS | {"proc/pressure/memory": text}))
            self.assertEqual((s["psi_some_ms"], s["psi_full_ms"]), (None, None), text)
        (self.root / "proc/pressure/memory").unlink()
        self.assertIsNone(self.sample()["psi_some_ms"])

    def test_no_more_is_saved_than_pools_can_give(self):
        """Half of the memory blocks is a hole, as in those of 2 GiB on x86_64."""
        hole = {"proc/vmstat": STOCK["proc/vmstat"].replace("boot_pages 2048", "boot_pages 1024")}
        pool = "sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages".format
        give = {kb: max(0, kb * 1024 // PAGE * 64 - PAGE) for kb in (64, 2048, 32768, 1 << 20)}
        for pools in ({}, {64: 9}, {2048: 3}, {64: 9, 2048: 3, 32768: 2}, {2048: 3, 1 << 20: 2}):
            files = {name: text for name, text in (STOCK | hole).items() if "hugepages-" not in name}
            files |= {pool(kb): f"{n}\n" for kb, n in pools.items()}
            s = self.sample(root=write(self.root, files))
            most = sum(n * give[kb] for kb, n in pools.items())
            self.assertEqual(s["vmemmap_saved_bytes"], min(1024 * PAGE, most), pools)
        # What extends struct page makes it too small, but not the difference.
        more = {"proc/vmstat": STOCK["proc/vmstat"].replace("boot_pages 2048", "boot_pages 2050")}
        self.assertEqual(self.sample(root=write(self.root, files | more))["vmemmap_saved_bytes"], -2 * PAGE)

    def test_stock_x86_counts_interrupts(self):
        files = {"proc/sys/kernel/arch": "x86_64\n",
                 "proc/interrupts": STOCK["proc/interrupts"] + " TLB:         12         21   TLB shootdowns\n"}
        s = self.sample(root=write(self.root, STOCK | files))
        self.assertEqual(s["tlb_interrupts"], 33)
        self.assertIsNone(s["estimate.flushes"])

    def test_interrupts_never_go_back(self):
        """A CPU that comes brings what it had before, one that goes takes it along, and 32 bits are not many."""
        file = self.root / "proc/interrupts"

        def row(**cpus):
            (self.root / "new").write_text("".join(f"{name:>11}" for name in cpus).rjust(20) + "\n TLB: " + " ".join(
                str(v) for v in cpus.values()) + "   TLB shootdowns\n")
            (self.root / "new").replace(file)

        row(CPU0=100, CPU1=4294967000)
        p = subprocess.Popen([self.tmp / "tlbstat", "--root", self.root, "--json", "0.5", "4"], stdout=subprocess.PIPE, text=True,
                             env=self.env)
        self.addCleanup(p.stdout.close)
        sums = [json.loads(p.stdout.readline())["tlb_interrupts"]]
        for cpus in ({"CPU0": 110, "CPU1": 4}, {"CPU0": 120, "CPU2": 3000000000}, {"CPU0": 130, "CPU1": 5, "CPU2": 3000000001},
                     {"CPU1": 6}):
            row(**cpus)
            sums.append(json.loads(p.stdout.readline())["tlb_interrupts"])
        p.wait()
        self.assertEqual([b - a for a, b in zip(sums, sums[1:])], [310, 10, 12, 1])

    def test_without_debugfs(self):
        for name in ("tlb_batch", "migrc", "hvo"):
            shutil.rmtree(self.root / "sys/kernel/debug" / name)
        p = self.run_it("0.01", "3", quiet=False)
        # Once for each file, not for each row.
        self.assertEqual(len(re.findall("needs root, and debugfs mounted", p.stderr)), 3, p.stderr)
        s = self.sample(quiet=False)
        self.assertNotIn("stats.migrc", s)
        self.assertEqual(s["migrc_denied"], 2048)

    @unittest.skipIf(os.geteuid(), "needs another user")
    def test_without_privileges(self):
        (self.root / "sys/kernel/debug").chmod(0o700)
        p = self.run_it("--once", quiet=False, user=65534)
        self.assertIn("debug/migrc/stats: without denials and drains by reason, and ages; that needs root", p.stderr)
        self.assertIn("Permission denied", p.stderr)
        self.assertRegex(p.stdout, r"pages that had to be flushed +2048")

    def test_trace_that_cannot_be(self):
        p = self.run_it("--trace", "0.01", "1", quiet=False)
        self.assertIn("without --trace; that needs root, and tracefs mounted", p.stderr)

    def instance(self):
        """For --trace, with a pipe that holds 64 KiB."""
        prepared = write(self.root / "sys/kernel/tracing/instances/prepared",
                         {"events/migrate/mm_migrate_pages/enable": "0"})
        os.mkfifo(prepared / "trace_pipe")
        return {"TRACE_INSTANCE": str(prepared)}

    def traced(self, script, **more):
        """What is recorded in an interval that does not end by itself, while a script writes into that pipe."""
        script = (f'exec >"$(echo {self.root}/sys/kernel/tracing/instances/tlbstat.*/trace_pipe)"; {script}; '
                  f"echo 110 1 >{self.root}/proc/uptime")
        p = self.run_it("record", "--trace", "-o", self.tmp / "r", "600", "--", "sh", "-c", script, env=self.instance(),
                        **more)
        return p, [json.loads(line) for line in (self.tmp / "r").read_text().splitlines()]

    def write_lines(self, n, line):
        return f"i=0; while [ $i -lt {n} ]; do echo '{line}'; i=$((i+1)); done"

    def test_trace(self):
        """All of what is more than the pipe holds, though the interval ends long after that."""
        script = self.write_lines(2000, MIGRATED.format(3, "compaction"))
        script += f"; echo '{MIGRATED.format(5, 'damon')}'; echo '{MIGRATED.format(7, 'new')}'"
        lines = self.traced(script)[1]
        self.assertEqual(len(lines), 2)
        self.assertEqual((lines[0]["trace.compaction"], lines[0]["trace_lost"]), (0, 0))
        self.assertEqual({key: lines[1][f"trace.{key}"] for key in ("compaction", "damon", "other")},
                         {"compaction": 6000, "damon": 5, "other": 7})
        self.assertEqual(lines[1]["trace_lost"], 0)
        enable = next(self.root.glob("sys/kernel/tracing/instances/tlbstat.*/events/migrate/mm_migrate_pages/enable"))
        self.assertEqual(enable.read_text(), "0")
        self.assertIsNone(self.sample()["trace_lost"])

    def test_what_was_left_by_a_kill(self):
        """An instance of a process that is no more is removed, that of one that lives is not."""
        gone = subprocess.Popen(["true"])
        gone.wait()
        instances = self.root / "sys/kernel/tracing/instances"
        stay = {f"tlbstat.{gone.pid}x", f"tlbstat.{os.getpid()}", "tlbstat.mine", "other.1"}
        for name in (f"tlbstat.{gone.pid}", *stay):
            (instances / name).mkdir(parents=True)
        self.run_it("--trace", "0.01", "1", quiet=False)
        left = {p.name for p in instances.iterdir()}
        self.assertLessEqual(stay, left)
        self.assertNotIn(f"tlbstat.{gone.pid}", left)

    def test_trace_that_lost_events(self):
        # The name of a task is no line of the kernel's.
        event = MIGRATED.format(5, "damon")
        odd = event.replace("     bash-", "CPU:1 [LOST 9-")
        p, lines = self.traced(f"echo 'CPU:0 [LOST 40 EVENTS]'; echo '{event}'; echo 'CPU:3 [LOST EVENTS]'; "
                               f"echo '{odd}'", quiet=False)
        self.assertEqual((lines[1]["trace.damon"], lines[1]["trace_lost"]), (10, 41))
        self.assertEqual(p.stderr.count("\n"), 1, p.stderr)
        self.assertIn("trace events were lost", p.stderr)
        text = self.run_it("report", self.tmp / "r").stdout
        self.assertRegex(text, r"trace events lost: pages by reason are too few +41 ")
        self.assertRegex(text, r"by reason \(--trace\)\n  damon +10 100%")

    def test_trace_does_not_change_when_samples_are_taken(self):
        (self.root / "proc/uptime").unlink()
        p = self.run_it("--json", "--trace", "0.25", "3", env=self.instance())
        lines = [json.loads(line) for line in p.stdout.splitlines()]
        self.assertEqual(len(lines), 4)
        self.assertGreater(lines[3]["uptime"] - lines[0]["uptime"], 0.5)

    # --- differences

    def test_since(self):
        path = self.tmp / "before"
        path.write_text(self.run_it("--once", "--json").stdout)
        write(self.root, LATER)
        s = self.sample("--since", path)
        self.assertEqual(s["interval"], 10)
        self.assertEqual(s["rate.flushes.pages"], 512)
        self.assertEqual(s["rate.flushes.avoid"], 511)
        self.assertEqual(s["rate.flushes.waits"], 0)
        self.assertEqual(s["rate.deferred.held"], 77)
        # Of the pages drained since then.
        self.assertEqual(s["rate.deferred.age_ms"], 64)
        # Backwards, without a boot.
        self.assertIsNone(s["rate.deferred.flush"])
        text = self.run_it("--since", path).stdout
        self.assertIn("10.0 s since then", text)
        self.assertRegex(text, r"pages whose flushes were batched +5120 +512\n")
        self.assertRegex(text, r"address spaces flushed for deferred pages +- *\n")
        self.assertRegex(text, r"(?s)pages denied, by reason\n  reason +90 +90% #+\n  writable +10 +10%")

    def test_another_boot(self):
        path = self.recording(self.sample() | {"boot_id": "another"})
        p = self.run_it("--since", path, quiet=False)
        self.assertIn("booted after that", p.stderr)
        self.assertRegex(p.stdout, r"pages whose flushes were batched +3072 +30.7\n")
        # The same without a boot_id.
        p = self.run_it("--since", self.recording(self.sample() | {"uptime": 101}), quiet=False)
        self.assertIn("booted after that", p.stderr)

    def test_table(self):
        # Read last: when there is a reader, all else has been read.
        last = self.root / "sys/kernel/mm/transparent_hugepage/hpage_pmd_size"
        last.unlink()
        os.mkfifo(last)
        p = subprocess.Popen([self.tmp / "tlbstat", "--root", self.root, "0.1", "1"], stdout=subprocess.PIPE, text=True,
                             env=self.env)
        self.addCleanup(p.kill)
        with last.open("w"):
            last.unlink()
            for name, text in LATER.items():
                (self.root / name).write_text(text)
        groups, heads, row = p.communicate(timeout=60)[0].splitlines()
        self.assertEqual(len(groups), len(heads))
        self.assertEqual(len(row), len(heads))
        self.assertEqual(dict(zip(heads.split(), row.split())),
                         {"moved": "0", "splits": "0", "pages": "512", "issued": "1", "avoid": "511", "waits": "0",
                          "defer": "0", "demote": "20", "deny": "10", "why": "reason", "flush": "-", "held": "77", "age_ms": "64",
                          "pause": "0", "cancel": "0", "stopm": "0", "max_us": "-", "comp": "0", "nothp": "0", "psi_ms": "0",
                          "could": f"{(sum(n * GIVE[kb] for kb, n in POOLS.items()) - 1048 * PAGE) / 2**20:.1f}",
                          "saved": f"{1048 * PAGE / 2**20:.1f}"})

    def test_large_numbers_keep_the_columns(self):
        path = self.recording(self.sample())
        write(self.root, LATER | {"proc/vmstat": "pgmigrate_success 900000000000000\n"})
        self.assertRegex(self.run_it("--since", path).stdout, r"pages migrated +899999999993000 +90.0T\n")

    # --- record and report

    def record(self, *words, **more):
        later = write(self.tmp / "later", LATER)
        return self.run_it("record", "-o", self.tmp / "r", "60", *words, "--", "sh", "-c",
                           f"cp -r {later}/. {self.root}; exit 7", status=7, **more)

    def test_record_and_report(self):
        self.record()
        lines = [json.loads(line) for line in (self.tmp / "r").read_text().splitlines()]
        self.assertEqual([line["uptime"] for line in lines], [100, 110])
        svg = self.tmp / "r.svg"
        text = self.run_it("report", "--svg", svg, self.tmp / "r").stdout
        self.assertRegex(text, r"ranges flushed for them +10 +1\n")
        self.assertRegex(text, r"flushes  avoid +511 +511 +511  #")
        for env, utf in (({"LC_ALL": "C.UTF-8"}, True), ({"LC_ALL": "C", "LANG": "C.UTF-8"}, False),
                         ({"LC_ALL": "", "LC_CTYPE": "", "LANG": "C.UTF-8"}, True)):
            self.assertEqual("█" in self.run_it("report", self.tmp / "r", env=env).stdout, utf, env)
        tree = xml.etree.ElementTree.parse(svg)
        drawn = ["".join(e.itertext()) for e in tree.iter("{http://www.w3.org/2000/svg}text")]
        self.assertIn("flushes pages: pages whose flushes were batched, per second", drawn)
        self.assertIn(" pages denied, by reason", drawn)
        self.assertIn("10 s", drawn)

    def test_the_recording_before_is_kept(self):
        self.record()
        before = (self.tmp / "r").read_bytes()
        self.run_it("record", "-o", self.tmp / "r", "--", "no-such-command", status=127)
        self.assertEqual(before, (self.tmp / "r.old").read_bytes())
        self.assertEqual(1, (self.tmp / "r").read_bytes().count(b"\n"))
        # Not of a link: /dev/stdout is one.
        (self.tmp / "to-r").symlink_to("r")
        self.run_it("record", "-o", self.tmp / "to-r", "0.01", "1")
        self.assertTrue((self.tmp / "to-r").is_symlink())

    def test_plots_do_not_overwrite_the_recording(self):
        self.record()
        before = (self.tmp / "r").read_bytes()
        (self.tmp / "link").unlink(missing_ok=True)
        (self.tmp / "link").symlink_to("r")
        for svg in ("r", "link"):
            self.assertIn("is the recording", self.run_it("report", "--svg", svg, "r", status=2).stderr)
        self.assertEqual(before, (self.tmp / "r").read_bytes())
        xml.etree.ElementTree.fromstring(self.run_it("report", "--svg", "-", "r").stdout)

    def test_report_over_a_boot(self):
        first, second = self.sample(), self.sample(root=write(self.root, LATER))
        other = {"boot_id": "another"}
        p = self.run_it("report", self.recording(first, second, first | other, second | other), quiet=False)
        self.assertIn("recording:3: booted before that", p.stderr)
        # 5120 twice, and the 3072 from the boot to the first sample after it.
        self.assertRegex(p.stdout, r"120.0 s recorded")
        self.assertRegex(p.stdout, r"pages whose flushes were batched +13312 ")

    def test_interrupted_recording_is_whole(self):
        (self.tmp / "r").unlink(missing_ok=True)
        p = subprocess.Popen([self.tmp / "tlbstat", "record", "--root", self.root, "-o", self.tmp / "r", "60"],
                             env=self.env)
        self.addCleanup(p.kill)
        while not (self.tmp / "r").exists() or not (self.tmp / "r").read_text():
            time.sleep(0.05)
        (self.root / "proc/uptime").write_text("104 1\n")
        p.send_signal(signal.SIGTERM)
        self.assertEqual(p.wait(timeout=20), 0)
        self.assertEqual(len((self.tmp / "r").read_text().splitlines()), 2)

    def test_signals_that_are_ignored(self):
        """Of a command whose parent ignores them: its end is seen, and nohup is obeyed."""
        def ignore():
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self.record("5", preexec_fn=ignore)
        p = subprocess.Popen([self.tmp / "tlbstat", "--json", "--root", self.root, "60"], stdout=subprocess.PIPE,
                             env=self.env, preexec_fn=ignore)
        self.addCleanup(p.kill)
        self.addCleanup(p.stdout.close)
        p.stdout.readline()
        p.send_signal(signal.SIGHUP)
        with self.assertRaises(subprocess.TimeoutExpired):
            p.wait(timeout=1)
        p.send_signal(signal.SIGTERM)
        self.assertEqual(p.wait(timeout=20), 0)

    def uptimes(self):
        return [json.loads(line)["uptime"] for line in (self.tmp / "r").read_text().splitlines()]

    def wait_for(self, condition, otherwise):
        end = time.monotonic() + 20
        while not condition():
            self.assertLess(time.monotonic(), end, otherwise)
            time.sleep(0.02)

    def lines_of(self, path, n):
        self.wait_for(lambda: path.exists() and path.read_text().count("\n") >= n, f"{path} has no {n} lines")

    def test_recording_that_was_stopped(self):
        """It does not make up for what it missed."""
        (self.root / "proc/uptime").unlink()
        (self.tmp / "r").unlink(missing_ok=True)
        p = subprocess.Popen([self.tmp / "tlbstat", "record", "--root", self.root, "-o", self.tmp / "r", "0.2"],
                             env=self.env)
        self.addCleanup(p.kill)
        self.lines_of(self.tmp / "r", 2)
        p.send_signal(signal.SIGSTOP)
        time.sleep(2)
        p.send_signal(signal.SIGCONT)
        time.sleep(0.5)
        p.terminate()
        self.assertEqual(p.wait(timeout=20), 0)
        times = self.uptimes()
        self.assertGreater(len(times), 3)
        # The last one, at the signal, may be sooner.
        self.assertGreater(min(b - a for a, b in zip(times, times[1:-1])), 0.05, times)
        self.run_it("report", self.tmp / "r")

    def test_last_sample_within_a_millisecond(self):
        for uptime, times in (("100.0004", [100]), ("100.0006", [100, 100.001])):
            (self.root / "proc/uptime").write_text("100 1\n")
            self.run_it("record", "-o", self.tmp / "r", "60", "--", "sh", "-c",
                        f"echo {uptime} 1 >{self.root}/proc/uptime")
            self.assertEqual(self.uptimes(), times)

    def test_samples_of_the_same_time_are_left_out(self):
        first, last = self.sample(), self.sample(root=write(self.root, LATER))
        between = first | {"tlb_batch_pages": 4000}
        p = self.run_it("report", self.recording(first, between, between, last, last), quiet=False)
        self.assertIn("recording: samples no later than the one before, left out: 3\n", p.stderr)
        self.assertIn("10.0 s recorded", p.stdout)
        self.assertRegex(p.stdout, r"pages whose flushes were batched +5120 +512\n")
        self.assertRegex(p.stdout, r"flushes  pages +512 +512 +512 ")

    def on_terminal(self, own_group):
        """What a command gets of signals to tlbstat, which leads the session: their numbers and si_code."""
        said = self.tmp / "said"
        said.unlink(missing_ok=True)
        listen = f"""if True:
            import os, signal
            if {own_group}:
                os.setpgid(0, 0)
            all = {{signal.SIGINT, signal.SIGHUP, signal.SIGTERM}}
            signal.pthread_sigmask(signal.SIG_BLOCK, all)
            out = open({str(said)!r}, "w", buffering=1)
            print("ready", file=out)
            while got := signal.sigtimedwait(all, 20):
                print(got.si_signo, got.si_code, file=out)
                if got.si_signo == signal.SIGTERM:
                    break
            """
        words = [self.tmp / "tlbstat", "record", "--root", self.root, "-o", self.tmp / "r", "60", "--", sys.executable,
                 "-c", listen]
        pid, terminal = pty.fork()
        if not pid:
            os.execve(words[0], words, self.env)
        try:
            for n, act in enumerate([*3 * [lambda: os.write(terminal, b"\3")], lambda: os.kill(pid, signal.SIGINT),
                                     lambda: os.close(terminal), lambda: os.kill(pid, signal.SIGTERM)], 1):
                self.lines_of(said, n)
                # A second one would come now.
                time.sleep(0.2)
                # Two signals of the same number are one as long as the first is pending.
                self.wait_for(lambda: re.search(r"^ShdPnd:\t0+$", Path(f"/proc/{pid}/status").read_text(), re.M),
                              "a signal stays pending")
                act()
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            raise
        finally:
            status = os.waitpid(pid, 0)[1]
        self.assertEqual(status, 0)
        return [tuple(map(int, line.split())) for line in said.read_text().splitlines()[1:]]

    def test_signals_of_a_terminal_come_once(self):
        user, kernel = 0, 128
        sent = [(signal.SIGINT, user), (signal.SIGHUP, user), (signal.SIGTERM, user)]
        self.assertEqual(self.on_terminal(False), 3 * [(signal.SIGINT, kernel)] + sent)
        # As timeout does: it is not in the foreground.
        self.assertEqual(self.on_terminal(True), 3 * [(signal.SIGINT, user)] + sent)

    def test_torn_last_line(self):
        self.record()
        text = (self.tmp / "r").read_text()
        p = self.run_it("report", self.recording(text, text.splitlines()[0][:200]), quiet=False)
        self.assertIn("recording:3: the last line is torn, and left out", p.stderr)

    # --- what is wrong

    def test_malformed_recordings(self):
        good = json.dumps(self.sample())
        long = '"' + "k" * 60 + '":1'
        for text, says in {
                "": "there is no sample in it", "\n\n": "there is no sample in it", "[1]\n": "no JSON object",
                "{}\n": "no \"key\"", '{"a":{}}\n': "a value is no number", '{"a":[1]}\n': "a value is no number",
                '{"a":1}\n': 'no "tlbstat":1', '{"tlbstat":2}\n': 'no "tlbstat":1', '{"tlbstat":1\n': "does not end",
                '{"tlbstat":1,"a":1e300}\n': "too large", '{"tlbstat":1,"a":nan}\n': "a value is no number",
                '{"tlbstat":1,"a b":1}\n': "strange letters", '{"tlbstat":1,"\x1b[2J":1}\n': "strange letters",
                '{"tlbstat":1,' + long + "}\n": "too long", '{"tlbstat":1}x\n': "does not end",
                '{"tlbstat":1,' + ",".join(f'"k{i}":1' for i in range(300)) + "}\n": "one too many",
                good[:-1] + " " * 70000 + "}\n": "too long", '{"tlbstat":1,"a":1\0}\n': "zero byte",
                '{"tlbstat":1,"boot_id":"' + "x" * 100 + '"}\n': "a value is no"}.items():
            for words in (("report",), ("--since",)):
                p = self.run_it(*words, self.recording(text), status=1)
                self.assertIn(says, p.stderr, text[:80])
        p = self.run_it("report", self.recording(good + "\n" + good + "\n"), status=1)
        self.assertIn("left out: 1", p.stderr)
        self.assertIn("there are no two samples of one boot", p.stderr)
        self.run_it("report", self.recording(good + "\n"), status=1)
        self.run_it("report", self.tmp / "none", status=1)
        self.run_it("report", self.tmp, status=1)

    def test_text_of_others_is_harmless(self):
        samples = [self.sample(), self.sample(root=write(self.root, LATER))]
        path = self.recording(*(json.dumps(s).replace('"7.3.4"', '"\x1b]0;<script>&"').replace('"aarch64"', '"<b>"') + "\n"
                                for s in samples))
        text = self.run_it("report", "--svg", self.tmp / "r.svg", path).stdout
        self.assertNotRegex(text, "[<\x1b]")
        xml.etree.ElementTree.parse(self.tmp / "r.svg")

    def test_any_bytes(self):
        """Neither files of a kernel nor recordings with random changes end in a signal or a sanitizer's report."""
        dice = random.Random(1)
        good = "".join(json.dumps(s) + "\n" for s in (self.sample(), self.sample(root=write(self.root, LATER)))).encode()
        digits = [b"18446744073709551616", b"-9223372036854775808", b"9223372036854775807", b"\0", b"\xff", b"\n", b'"',
                  b":", b",", b"e999", b"." * 70]

        def spoil(data):
            data = bytearray(data)
            for _ in range(dice.randrange(1, 6)):
                at = dice.randrange(len(data) + 1)
                data[at:at + dice.randrange(4)] = dice.choice(digits)
            return bytes(data)

        for turn in range(60):
            path = self.tmp / "spoilt"
            path.write_bytes(spoil(good))
            files = {name: spoil(text.encode()) for name, text in TLB_RS.items()}
            write(self.root, files)
            for words in (("report", "--svg", self.tmp / "x.svg", path), ("--since", path, "-r", self.root),
                          ("--once", "--json", "-r", self.root), ("0.01", "1", "-r", self.root)):
                p = subprocess.run([self.tmp / "tlbstat", *words], capture_output=True, check=False, timeout=60,
                                   env=self.env)
                self.assertIn(p.returncode, (0, 1), (turn, words, p.stderr))
                self.assertNotIn(b"Sanitizer", p.stderr)
                self.assertNotIn(b"runtime error", p.stderr)
                if "--json" in words and p.returncode == 0:
                    json.loads(p.stdout)

    def test_share_of_the_largest_counter(self):
        files = {"sys/kernel/debug/migrc/stats": f"drain age 3 {(1 << 63) - 1}\n"}
        self.assertRegex(self.run_it("--once", root=write(self.root, TLB_RS | files)).stdout, r" age +9\d{18} 100% #{30}\n")

    def test_usage(self):
        for words in (["x"], ["0"], ["nan"], ["-1", "2"], ["1", "0"], ["1", "2", "3"], ["1x"], ["--once", "--detail"],
                      ["--svg", "x"], ["-o", "x"], ["report", "--json"], ["report", "a", "b"], ["record", "--once"],
                      ["record", "--"], ["--wrong"], ["--since"], ["--once", "--trace"], ["-d", "-j", "0.01", "1"],
                      ["report", "--root", "/"], ["1", "2000000"]):
            p = subprocess.run([self.tmp / "tlbstat", *words], capture_output=True, text=True, check=False,
                               env=self.env, timeout=60)
            self.assertEqual((p.returncode, p.stdout), (2, ""), words)
            self.assertIn("tlbstat: ", p.stderr)
        self.assertIn("2000000 is no number of samples (1 to 1000000)", p.stderr)
        self.run_it("--once", root=self.tmp / "none", status=1)

    def test_output_that_cannot_be_written(self):
        self.record()
        for words in (["0.01", "1"], ["--json", "0.01", "1"], ["--detail", "0.01", "1"], ["--once"],
                      ["--once", "--json"], ["--since", "r"], ["--help"], ["report", "r"],
                      ["record", "-o", "-", "0.01", "1"]):
            with open("/dev/full", "w") as full:
                p = subprocess.run([self.tmp / "tlbstat", *words], stdout=full, stderr=subprocess.PIPE, text=True,
                                   env=self.env, cwd=self.tmp, check=False, timeout=60)
            self.assertEqual(p.returncode, 1, words)
            self.assertEqual(p.stderr.count("No space left on device"), 1, p.stderr)

    def test_reader_that_has_enough(self):
        p = subprocess.run(["sh", "-c", f"{self.tmp}/tlbstat --root {self.root} 0.01 | head -n 2"], env=self.env,
                           capture_output=True, text=True, check=False, timeout=60)
        self.assertEqual((p.stdout.count("\n"), p.stderr), (2, ""))

    def test_help_explains_every_column(self):
        text = self.run_it("--help").stdout
        for heads in (self.run_it("0.01", "1").stdout, self.run_it("0.01", "1", root=write(self.root, STOCK)).stdout):
            for name in heads.splitlines()[1].split():
                self.assertRegex(text, rf"\n  \w+ +{name} +\w")
        self.assertLessEqual(max(map(len, text.splitlines())), 100)

