# SPDX-License-Identifier: GPL-2.0
"""Tests of tlbstat doctor on canned /proc and /sys."""

import json
import os
import re
import struct
import subprocess
import time

from tlbstat.canned import HERE, STOCK, TLB_RS, Case, write

N1, V2, A72, HIP09, NEW = "413fd0c1", "410fd4f0", "410fd083", "481fd020", "41ffffff"
NODES = {"sys/devices/system/node/has_memory": "0-1\n"}
SETTINGS = {"proc/sys/kernel/perf_event_paranoid": "2\n", "proc/sys/kernel/kptr_restrict": "1\n",
            "proc/self/status": "Name:\tx\nCapEff:\t000001ffffffffff\n",
            "sys/bus/event_source/devices/software/type": "1\n"}
THP = "sys/kernel/mm/transparent_hugepage/"
SERVER = STOCK | NODES | SETTINGS | {
    THP + "enabled": "always [madvise] never\n", THP + "defrag": "always defer defer+madvise [madvise] never\n",
    THP + "hugepages-64kB/enabled": "always inherit madvise [never]\n",
    THP + "hugepages-2048kB/enabled": "always [inherit] madvise never\n",
    "sys/devices/virtual/memory_tiering/memory_tier4/nodelist": "0-1\n",
    "sys/kernel/mm/numa/demotion_enabled": "false\n",
}
NONE = {"proc/sys/kernel/arch": "aarch64\n"}
X86 = {"proc/sys/kernel/arch": "x86_64\n"}
OTHER = {"proc/sys/kernel/arch": "riscv64\n"}


def midr(*cpus):
    files = {f"sys/devices/system/cpu/cpu{i}/regs/identification/midr_el1": f"0x00000000{m}\n" for i, m in enumerate(cpus)}
    return {"sys/devices/system/cpu/online": f"0-{len(cpus) - 1}\n"} | {name: text for name, text in files.items()
                                                                      if "None" not in text}


def kmsg(first, *lines):
    return {"dev/kmsg": "".join(f"6,{first + i},{1000 * i},-;{line}\n" for i, line in enumerate(lines))}


class Doctor(Case):
    seen = set()

    def ask(self, *files, **more):
        merged = {}
        for some in files:
            merged |= some
        self.run_it("doctor", root=write(self.root, {k: v for k, v in merged.items() if v is not None}), **more)
        got = json.loads(self.run_it("doctor", "--json").stdout)
        self.assertEqual(got.pop("tlbstat_doctor"), 1)
        self.seen.update((who, got[who]) for who in ("tlb_batch", "migrc", "hvo"))
        return got

    def expect(self, got, **expected):
        for key, start in expected.items():
            key = key.replace("_", " ") if key not in got else key
            self.assertTrue(got[key].startswith(start), (key, start, got[key]))

    def test_a_machine(self):
        got = self.ask(SERVER, midr(N1, N1, N1))
        self.expect(got, machine="Linux 7.3.4 aarch64", CPUs="3: 3 Neoverse-N1", range_TLBI="no",
                    erratum_4118414="yes; the kernel repeats each completed flush: unknown",
                    THP="madvise, defrag madvise; sizes: 2048kB", memory_nodes="2; NUMA balancing: unknown",
                    tiers="1: memory_tier4 has 0-1; demotion: off, of no effect", counters="yes",
                    price="by samples of cpu-clock, and by names", ab="nothing to switch")
        for part in ("100 of 2048kB", "2 of 1048576kB", "5 of 64kB"):
            self.assertIn(part, got["HugeTLB pools"])

    def test_text_has_the_same(self):
        got = self.ask(SERVER, midr(V2))
        p = self.run_it("doctor")
        text = re.sub(r"\n {18}", " ", p.stdout)
        for key, value in got.items():
            self.assertRegex(text, rf"(?m)^{re.escape(key)} +{re.escape(value)}$")
        self.assertLessEqual(max(map(len, p.stdout.splitlines())), 98)
        self.assertIn("by the tables of tlb-rs for Linux 7.3", p.stdout)

    def test_no_root_and_two_seconds(self):
        write(self.root, SERVER | midr(*[N1] * 80))
        for path in [self.root, *self.root.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        start = time.monotonic()
        p = subprocess.run([self.tmp / "tlbstat", "doctor", "--root", self.root], env=self.env, capture_output=True, text=True,
                           check=True, timeout=60, user=65534 if os.getuid() == 0 else None)
        self.assertLess(time.monotonic() - start, 2)
        self.assertEqual(p.stderr, "")
        self.assertIn("80: 80 Neoverse-N1", p.stdout)

    def test_what_cannot_be_known_is_unknown(self):
        got = self.ask(NONE)
        for key in ("CPUs", "THP", "tiers", "HugeTLB pools", "range TLBI", "memory nodes", "counters", "price"):
            self.assertIn("unknown", got[key], key)
            self.assertNotRegex(got[key], r"\b(no|none|never|0)\b(?!: | /proc)", key)
        self.expect(got, erratum_4118414="unknown; the kernel repeats each completed flush: unknown", migrc="unknown",
                    hvo="unknown", tlb_batch="yes")
        self.expect(self.ask(X86), INVLPGB="unknown")

    def test_cpus(self):
        for cpus, has_range, erratum in (
                ([N1], "no", "yes"), ([V2, V2], "yes", "yes"), ([A72], "no", "no"), ([HIP09], "unknown", "no"),
                # Range TLBI takes all, the erratum one.
                ([V2, A72], "no", "yes"), ([A72, HIP09], "no", "no"), ([V2, HIP09], "unknown", "yes"),
                # One that is not in the table, and one that cannot be read.
                ([V2, NEW], "unknown", "yes"), ([A72, NEW], "no", "unknown"), ([NEW], "unknown", "unknown"),
                ([A72, None], "no", "unknown"), ([V2, None], "unknown", "yes")):
            got = self.ask(SERVER, midr(*cpus))
            self.assertTrue(got["range TLBI"].startswith(has_range), (cpus, got))
            self.assertTrue(got["erratum 4118414"].startswith(erratum + ";"), (cpus, got))
        self.assertEqual(self.ask(SERVER, midr(V2, A72, NEW, A72))["CPUs"], "4: 2 Cortex-A72, 1 Neoverse-V2, 1 unknown")

    def test_every_part_of_the_errata_list(self):
        """The list of arch/arm64/kernel/cpu_errata.c, Linux 7.3."""
        parts = "d0b d0e d0d d41 d42 d4b d47 d44 d4c d48 d4e d82 d85 d0c d49 d40 d4f d84 d83 d8c d90".split()
        for implementer, part in [(0x41, p) for p in parts] + [(0x4e, "010"), (0x6d, "d49")]:
            got = self.ask(SERVER, midr(f"{implementer:02x}0f{part}0"))
            self.assertTrue(got["erratum 4118414"].startswith("yes"), part)
        text = (HERE / "cpus.c").read_text()
        self.assertEqual(len(re.findall(r"\{ 0x.*, YES \}", text)), len(parts) + 2)

    def test_repeated_flushes(self):
        says = "CPU features: detected: Broken broadcast TLBI completion"
        for log, answer in ((kmsg(0, "Booting Linux", says), "yes"), (kmsg(70, "x", says), "yes"),
                            (kmsg(0, "Booting Linux", "x"), "no"), (kmsg(70, "x"), "unknown"), ({}, "unknown")):
            got = self.ask(SERVER, midr(N1), log)
            self.assertTrue(got["erratum 4118414"].endswith("flush: " + answer), got)
            self.assertEqual("twice" in got["tlb_batch"], answer != "no")
        self.assertIn("twice", self.ask(SERVER, midr(A72), kmsg(0, says))["tlb_batch"])

    def test_invlpgb(self):
        def cpuid(most, ebx):
            file = self.root / "dev/cpu/0/cpuid"
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("wb") as f:
                for leaf, regs in ((0x80000000, (most, 0, 0, 0)), (0x80000008, (0, ebx, 0, 0))):
                    f.seek(leaf)
                    f.write(struct.pack("<4I", *regs))
            return json.loads(self.run_it("doctor", "--json").stdout)["INVLPGB"]

        write(self.root, SERVER | X86 | {"proc/cpuinfo": "processor\t: 0\nmodel name\t: A \"CPU\"\\\n"})
        self.assertEqual(cpuid(0x80000008, 1 << 3)[:3], "yes")
        self.assertEqual(cpuid(0x80000008, ~(1 << 3) & 0xffffffff), "no")
        self.assertEqual(cpuid(0x80000004, 1 << 3), "no")
        self.assertIn(": A _CPU__", self.run_it("doctor").stdout)

    def test_verdict_of_tlb_batch(self):
        on, off = ({"proc/sys/vm/tlb_batch": value} for value in ("1\n", "0\n"))
        never = {THP + "enabled": "always madvise [never]\n"}
        for files, starts in (((OTHER,), "no: tlb-rs is for"), ((X86,), "no: x86_64 already"), ((X86, on), "no: x86_64"),
                              ((off,), "yes, but it is off"), ((on,), "yes, it is on"), ((never, on), "yes, it is on"),
                              ((never,), "little"), ((never, {THP + "hugepages-64kB/enabled": "[always] never\n"}), "yes: splits"),
                              (({THP + "enabled": None},), "yes: splits"), ((midr(A72),), "yes: splits"),
                              ((midr(N1),), "yes: splits of huge pages, compaction, migration and reclaim flush page by page "
                               "in this kernel, and each completion costs twice")):
            self.expect(self.ask(SERVER, *files), tlb_batch=starts)

    def test_verdict_of_migrc(self):
        on, off = ({"proc/sys/vm/migrc_enable": value} for value in ("1\n", "0\n"))
        one = {"sys/devices/system/node/has_memory": "0\n"}
        tiers = {"sys/devices/virtual/memory_tiering/memory_tier22/nodelist": "1\n"}
        for files, says in (((OTHER,), "no: tlb-rs is for"), ((X86,), "only if move_pages()"), ((one,), "no: there is one"),
                            ((one, on), "no: there is one"), (({"sys/devices/system/node/has_memory": None},), "unknown"),
                            ((off,), "yes, but it is off"), ((on,), "yes, it is on"), ((tiers, on), "yes, it is on")):
            self.expect(self.ask(SERVER, *files), migrc=says)
        self.assertIn("only if kswapd or memory.reclaim demote", self.ask(SERVER, tiers)["migrc"])
        # NUMA balancing is another setting.
        for demotes, says in (("true", "on"), ("false", "off"), ("1", "on"), (None, "unknown")):
            for balances in ("0", "1", "2"):
                files = {"sys/kernel/mm/numa/demotion_enabled": demotes and demotes + "\n",
                         "proc/sys/kernel/numa_balancing": balances + "\n"}
                got = self.ask(SERVER, tiers, files)
                self.assertTrue(got["tiers"].endswith(f"; demotion: {says}"), got["tiers"])
                self.assertTrue(got["memory nodes"].endswith(f"NUMA balancing: {balances}"))
        # Of many CPUs, every other one is off.
        online = {"sys/devices/system/cpu/online": ",".join(str(n) for n in range(0, 192, 2)) + "\n"}
        self.expect(self.ask(SERVER, online), CPUs="96")
        writeback = {"proc/sys/vm/tlb_batch_writeback": "0\n"}
        self.assertIn("vm.tlb_batch_writeback can be switched", self.ask(SERVER, writeback)["ab"])
        self.assertIn("compaction and NUMA balancing", self.ask(SERVER)["migrc"])

    def test_verdict_of_hvo(self):
        on, off = ({"proc/sys/vm/hugetlb_optimize_vmemmap": value} for value in ("1\n", "0\n"))
        pool = "sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages"
        empty = {pool.format(2048): "0\n", pool.format(1048576): "0\n"}
        none = {name: None for name in SERVER if "/hugepages/" in name}
        for files, says in (((OTHER,), "no: tlb-rs is for"), ((X86,), "no: x86_64 has it"), ((X86, on), "no: x86_64 has it"),
                            ((none,), "unknown"), ((none, on), "unknown"), ((empty,), "no: the HugeTLB pools have no page"),
                            ((empty, on), "no: the HugeTLB pools have no page"), ((off,), "yes, but it is off"),
                            ((on,), "yes, it is on"), ((), "yes: this kernel keeps")):
            self.expect(self.ask(SERVER, *files), hvo=says)

    def test_every_verdict_was_seen(self):
        table = (HERE / "doctor.c").read_text().partition("verdicts[] = {")[2].partition("\n};")[0]
        rows = {(m[1], "".join(re.findall(r'"([^"]*)"', m[2])).replace("\\n", " "))
                for m in re.finditer(r'\{ "(\w+)", \w+,\s+((?:"[^"]*"\s*)+) \}', table)}
        self.assertEqual(len(rows), table.count("{"))
        self.seen = set()
        for check in (self.test_verdict_of_tlb_batch, self.test_verdict_of_migrc, self.test_verdict_of_hvo):
            check()
        self.assertEqual(self.seen, rows)

    def test_what_may_be_measured(self):
        no_caps = {"proc/self/status": "CapEff:\t0000000000000000\n"}
        perfmon = {"proc/self/status": "CapEff:\t0000004000000000\n"}
        for files, says in (
                ({}, "by samples of cpu-clock, and by names of functions: /proc/kcore"),
                ({"proc/kcore": "x"}, "by samples of cpu-clock, and by the instructions in /proc/kcore"),
                ({"sys/bus/event_source/devices/armv8_pmuv3_0/type": "8\n"}, "by samples of cycles"),
                (no_caps, "by counters and a calibrated cost only: samples need root or CAP_PERFMON (perf_event_paranoid is 2)"),
                (no_caps | {"proc/sys/kernel/perf_event_paranoid": "3\n"}, "by counters"),
                (no_caps | {"proc/sys/kernel/perf_event_paranoid": "-1\n", "proc/sys/kernel/kptr_restrict": "0\n"}, "by samples"),
                (perfmon, "by counters and a calibrated cost only: kptr_restrict hides addresses of the kernel (they need"),
                (perfmon | {"proc/sys/kernel/kptr_restrict": "0\n"}, "by counters"),
                (perfmon | {"proc/sys/kernel/kptr_restrict": "0\n", "proc/sys/kernel/perf_event_paranoid": "1\n"}, "by samples"),
                ({"proc/sys/kernel/kptr_restrict": "2\n"}, "by counters and a calibrated cost only: kptr_restrict hides"),
                (no_caps | {"proc/sys/kernel/perf_event_paranoid": None}, "unknown: perf_event_paranoid"),
                ({"proc/self/status": None, "proc/sys/kernel/perf_event_paranoid": None}, "unknown: neither"),
                ({"sys/bus/event_source/devices/software/type": None}, "by samples of unknown events")):
            self.expect(self.ask(SERVER, files), price=says)
        self.expect(self.ask(SERVER, TLB_RS, {"proc/sys/vm/migrc_enable": "0\n"}), reasons="yes, from debugfs",
                    ab="vm.tlb_batch vm.migrc_enable vm.hugetlb_optimize_vmemmap can be switched")

    def test_strange_files(self):
        """Neither a crash nor letters that a terminal obeys."""
        for text in ("", "\n", "\x1b[2J", "-1\n", "0-99999999\n", "9" * 100, "0-", "[", "]["):
            files = {name: text for name in SERVER | midr(N1) | NODES if not name.startswith("proc/sys/kernel/arch")}
            got = self.ask(files, NONE)
            self.assertNotIn("\x1b", "".join(got.values()))

    def test_usage(self):
        for words in (["doctor", "1"], ["doctor", "--once"], ["doctor", "--trace"], ["doctor", "-d"], ["doctor", "-o", "x"]):
            p = subprocess.run([self.tmp / "tlbstat", *words], capture_output=True, text=True, check=False, env=self.env)
            self.assertEqual((p.returncode, p.stdout), (2, ""), words)
        with open("/dev/full", "w") as full:
            p = subprocess.run([self.tmp / "tlbstat", "doctor"], stdout=full, stderr=subprocess.PIPE, env=self.env, check=False)
        self.assertEqual(p.returncode, 1)
