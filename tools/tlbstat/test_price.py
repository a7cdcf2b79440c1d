# SPDX-License-Identifier: GPL-2.0
"""Tests of tlbstat price: recorded chains, what is printed of them, and what happens where there are no samples."""

import json
import math
import re
import struct
import subprocess
import tempfile
import time
import unittest
import xml.etree.ElementTree
from pathlib import Path

from tlbstat.canned import HERE, STOCK, Case, write

FIGURES = {"kernel": "7.3.4", "arch": "aarch64", "event": "cycles:k", "leaves": "instructions", "seconds": "10.0",
           "period_us": "100.0", "cpus": "80", "samples": "799112", "lost": "0", "throttled": "0", "chainless": "0",
           "hotplugged": "0", "thp_pages": "512", "tlb_batch": "-1", "migrc": "-1", "migrated": "23100", "split": "110",
           "interrupts": "0"}
X86 = {"arch": "x86_64", "event": "cpu-clock", "leaves": "frames", "cpus": "2"}
# Chains of kernels that are not here, as their sources have them: 6.1 and 6.12, and what loads do not reach.
CHAINS = {
    "split": ["ptep_clear_flush;try_to_migrate_one;rmap_walk_anon;try_to_migrate;unmap_folio;split_huge_page_to_list;"
              "deferred_split_scan", "try_to_unmap_flush;__folio_split;madvise_free_huge_pmd;do_madvise"],
    "migration: compaction": ["try_to_unmap_flush;migrate_pages_batch;migrate_pages;compact_zone;kcompactd;kthread",
                              "flush_tlb_mm_range;ptep_clear_flush;try_to_migrate_one;try_to_migrate;migrate_pages;"
                              "compact_zone;compact_zone_order;try_to_compact_pages;__alloc_pages"],
    "migration: demotion": ["try_to_unmap_flush;migrate_pages_batch;migrate_pages;shrink_folio_list;evict_folios;kswapd"],
    "migration: NUMA": ["try_to_unmap_flush;migrate_pages_batch;migrate_pages;migrate_misplaced_folio;do_numa_page;"
                        "handle_mm_fault", "ptep_clear_flush;try_to_migrate_one;try_to_migrate;migrate_pages;"
                        "migrate_misplaced_page;do_numa_page;handle_mm_fault"],
    "migration: syscall": ["try_to_unmap_flush;migrate_pages_batch;migrate_pages;__arm64_sys_move_pages",
                           "arch_tlbbatch_flush;try_to_unmap_flush;migrate_pages_batch;migrate_pages;kernel_mbind;"
                           "__x64_sys_mbind", "try_to_unmap_flush;migrate_pages_batch;migrate_pages;do_migrate_pages;"
                           "cpuset_migrate_mm_workfn;process_one_work"],
    "migration: DAMON": ["try_to_unmap_flush;migrate_pages_batch;migrate_pages;damon_migrate_pages;kdamond_fn"],
    "migration: device": ["ptep_clear_flush;migrate_vma_collect_pmd;walk_pgd_range;__walk_page_range;migrate_vma_setup",
                          "ptep_clear_flush;try_to_migrate_one;rmap_walk_anon;try_to_migrate;migrate_device_unmap;"
                          "migrate_vma_setup", "flush_tlb_mm_range;migrate_vma_collect_pmd;migrate_vma_setup;do_swap_page"],
    "migration: other": ["try_to_unmap_flush;migrate_pages_batch;migrate_pages;alloc_contig_range_noprof;cma_alloc",
                         "try_to_unmap_flush;migrate_pages_batch;migrate_pages;somebody_else"],
    "reclaim": ["try_to_unmap_flush;shrink_folio_list;evict_folios;kswapd", "ptep_clear_flush;folio_referenced_one;"
                "rmap_walk_anon;folio_referenced;shrink_active_list;shrink_lruvec", "flush_tlb_mm_range;"
                "arch_tlbbatch_flush;try_to_unmap_flush;shrink_page_list;shrink_inactive_list",
                "try_to_unmap_flush;shrink_folio_list;reclaim_folio_list;madvise_cold_or_pageout_pte_range;do_madvise"],
    "writeback": ["ptep_clear_flush;page_vma_mkclean_one;rmap_walk_file;folio_mkclean;folio_clear_dirty_for_io",
                  "ptep_clear_flush;page_mkclean_one;rmap_walk_file;folio_mkclean;clear_page_dirty_for_io"],
    "NUMA hint scan": ["change_protection;change_prot_numa;task_numa_work;task_work_run"],
    "mprotect": ["tlb_flush_mmu_tlbonly;tlb_finish_mmu;do_mprotect_pkey;__arm64_sys_mprotect"],
    "munmap, madvise": ["tlb_flush_mmu_tlbonly;tlb_flush_mmu;tlb_finish_mmu;unmap_region;do_mas_align_munmap;__vm_munmap",
                        "tlb_flush_mmu_tlbonly;tlb_finish_mmu;vms_clear_ptes;do_vmi_align_munmap",
                        "tlb_flush_mmu_tlbonly;tlb_finish_mmu;zap_page_range_single;do_madvise;__x64_sys_madvise",
                        "tlb_flush_mmu_tlbonly;tlb_finish_mmu;unmap_mapping_range;truncate_pagecache"],
    "exit": ["tlb_flush_mmu_tlbonly;tlb_finish_mmu;exit_mmap;mmput;do_exit"],
    "exec": ["tlb_flush_mmu_tlbonly;tlb_finish_mmu;setup_arg_pages;load_elf_binary;bprm_execve"],
    "COW, faults": ["ptep_clear_flush;do_wp_page;handle_mm_fault", "flush_tlb_mm_range;handle_mm_fault;do_user_addr_fault"],
    "fork": ["dup_mmap;copy_mm;copy_process;kernel_clone", "flush_tlb_mm_range;copy_page_range;dup_mmap"],
    "khugepaged, collapse": ["pmdp_collapse_flush;collapse_huge_page;hpage_collapse_scan_pmd;khugepaged",
                             "pmdp_collapse_flush;madvise_collapse;do_madvise"],
    "KSM": ["ptep_clear_flush;try_to_merge_one_page;ksm_scan_thread"],
    "uprobes": ["ptep_clear_flush;uprobe_write_opcode;install_breakpoint"],
    "userfaultfd": ["change_protection;mwriteprotect_range;userfaultfd_ioctl"],
    "clear_refs": ["flush_tlb_mm_range;clear_refs_write;vfs_write"],
    "mremap": ["flush_tlb_range;move_page_tables;move_vma;__x64_sys_mremap"],
    "hugetlb": ["flush_tlb_range;hugetlb_change_protection;change_protection;mprotect_fixup;__arm64_sys_mprotect",
                "flush_tlb_mm_range;__unmap_hugepage_range;unmap_vmas"],
    "kernel: vmemmap": ["flush_tlb_kernel_range;vmemmap_remap_range;__hugetlb_vmemmap_optimize_folio",
                        "arch_hvo_apply;hvo_optimize_folios"],
    "kernel: vmalloc, modules": ["__purge_vmap_area_lazy;drain_vmap_area_work;process_one_work",
                                 "flush_tlb_kernel_range;__purge_vmap_area_lazy;_vm_unmap_aliases;vm_unmap_aliases;"
                                 "change_page_attr_set_clr;set_memory_ro"],
    "other calls": ["flush_tlb_mm_range;try_to_unuse;__x64_sys_swapoff"],
    "gup, ptrace": ["flush_tlb_mm_range;__access_remote_vm;ptrace_access_vm"],
    "context switches": ["flush_tlb_mm;check_and_switch_context;__schedule"],
    "unmatched": ["flush_tlb_mm_range;a_new_function;another", "flush_tlb_mm_range",
                  # What was interrupted is no reason.
                  "flush_tlb_all;some_irq_work;sysvec_irq_work;asm_sysvec_irq_work;exit_mmap;do_exit"],
}


def recording(stacks=(), **figures):
    return "tlbstat-price 1\n" + "".join(f"{k} {v}\n" for k, v in (FIGURES | figures).items()) + "\n" + "".join(
        f"{line}\n" for line in stacks)


class Report(Case):
    def report(self, *stacks, words=(), status=0, **figures):
        (self.tmp / "p").write_text(recording(stacks, **figures))
        return subprocess.run([self.tmp / "tlbstat", "price", "report", *words, self.tmp / "p"], capture_output=True, text=True,
                              check=not status, env=self.env)

    def json(self, *stacks, **figures):
        got = json.loads(self.report(*stacks, words=["--json"], **figures).stdout)
        return got, {c["cause"]: c for c in got["causes"]}

    # --- the table

    def test_chains_of_other_kernels(self):
        for cause, chains in CHAINS.items():
            for chain in chains:
                self.assertEqual(list(self.json("0 1 w " + chain)[1]), [cause], chain)
        self.assertEqual(list(self.json("0 1 v flush_tlb_func;x;mprotect_fixup;__x64_sys_mprotect")[1]), ["interrupted by others"])

    def test_every_row_has_a_chain(self):
        table = (HERE / "causes.c").read_text().partition("causes[NCAUSES] = {")[2].partition("\n};")[0]
        rows = re.findall(r'(?m)^\t\{ "([^"]+)"', table)
        self.assertEqual(len(rows), 31)
        self.assertEqual(set(rows), set(CHAINS) | {"interrupted by others"})

    def test_recorded_chains(self):
        """Of loads with one cause, on 6.1, 6.12 and 7.3 in guests, and on 6.18: a line is the cause, and a stack."""
        files = sorted((HERE / "samples").glob("*.txt"))
        self.assertEqual(len(files), 7)
        for file in files:
            lines = [line.split("\t") for line in file.read_text().splitlines() if not line.startswith("#")]
            self.assertGreaterEqual(len(lines), 6)
            for cause, stack in lines:
                self.assertEqual(list(self.json("0 1 " + stack)[1]), [cause], (file.name, stack))

    # --- what is printed

    def test_figures(self):
        got, causes = self.json("0 100 w try_to_unmap_flush;__folio_split", "3 300 w tlb_finish_mmu;do_mprotect_pkey")
        # 300 samples of 100 us in 10 s are 3 ms per second, more or less 1.96 times the root of 300.
        self.assertAlmostEqual(causes["mprotect"]["ms_per_s"], 3)
        self.assertAlmostEqual(causes["mprotect"]["interval"], 1.96 * 300 ** 0.5 / 100, places=5)
        self.assertAlmostEqual(causes["split"]["could"], 1 - 1 / 512, places=5)
        self.assertEqual((got["flush_samples"], got["samples"], got["unmatched"], got["ms_per_s"]), (400, 799112, 0, 4))
        text = self.report("0 100 w try_to_unmap_flush;__folio_split", "3 300 w tlb_finish_mmu;do_mprotect_pkey").stdout
        self.assertRegex(text, r"(?m)^mprotect +3 +0.34 +0.004 % +- +-  nothing: one flush already$")
        self.assertRegex(text, r"(?m)^split +1 +0.20 +0.001 % +- +-  up to 1.00 \(tlb_batch\)$")
        self.assertRegex(text, r"(?m)^all flushes +4 +0.39 +0.005 % +- +-$")
        self.assertIn("meanwhile, per second: 2310 pages migrated, 11 huge pages split\n", text)
        self.assertIn("Linux 7.3.4 aarch64, 80 CPUs, cycles:k every 100.0 us: 10.0 s, 799112 samples, none lost", text)

    def test_flushes(self):
        """20,000 flushes in 10 s, of which 400 events were seen, and 300 samples of 100 us: 1.5 us each."""
        fork, exit = "0 300 w flush_tlb_mm_range;dup_mmap", "0 300 w flush_tlb_mm_range;exit_mmap"
        seen = ["0 400 e flush_tlb_mm_range;dup_mmap", "0 20000 c flush_tlb_mm_range;dup_mmap"]
        figures = X86 | {"counts": "tracepoint", "watched": "0.02", "spread": "0.0"}
        got, causes = self.json(fork, *seen, **figures)
        self.assertEqual((got["flush_samples"], causes["fork"]["samples"], list(causes)), (300, 300, ["fork"]))
        self.assertAlmostEqual(causes["fork"]["flushes_per_s"], 2000)
        self.assertAlmostEqual(causes["fork"]["us_each"], 1.5)
        self.assertEqual((got["flushes_per_s"], got["us_each"]), (2000, 1.5))
        text = self.report(fork, *seen, **figures).stdout
        self.assertRegex(text, r"(?m)^fork +3 .* % +2000 +1.5  nothing")
        self.assertRegex(text, r"(?m)^all flushes +3 .* % +2000 +1.5$")
        self.assertNotIn("windows", text)
        self.assertIn("+- 12 %", self.report(fork, *seen, **figures | {"spread": "0.12"}).stdout)
        # No figure for what is not traced, or was seen too seldom, or varied too much; and then none of all.
        hypervisor = "0 1 w hyperv_flush_tlb_multi;flush_tlb_mm_range;dup_mmap"
        few = ["0 10 e flush_tlb_mm_range;exit_mmap", "0 500 c flush_tlb_mm_range;exit_mmap"]
        for more, changed, cause in (([exit], {}, "exit"), ([exit, *few], {}, "exit"), ([hypervisor], {}, "fork"),
                                     ([hypervisor.replace("hyperv", "xen")], {}, "fork"), ([], {"spread": "0.6"}, "fork")):
            got, causes = self.json(fork, *seen, *more, **figures | changed)
            self.assertEqual((causes[cause]["flushes_per_s"], causes[cause]["us_each"], got["us_each"]), (None, None, None), more)
        # All were seen: ten are ten. But ten samples say little.
        got, causes = self.json("0 10 w x;exit_mmap", *few, **figures | {"watched": "1.0"})
        self.assertEqual((causes["exit"]["flushes_per_s"], causes["exit"]["us_each"]), (50, None))
        # Who is interrupted does so as often as /proc/interrupts says.
        got, causes = self.json("0 200 v flush_tlb_func;x", **figures | {"interrupts": "50000"})
        self.assertEqual((causes["interrupted by others"]["flushes_per_s"], causes["interrupted by others"]["us_each"]), (5000, 0.4))
        self.assertEqual(got["flushes_per_s"], None)
        for counts, says in (("invlpgb", "those by INVLPGB leave no trace"), ("untraced", "tlb:tlb_flush needs root")):
            self.assertIn(says, self.json(fork, **X86, counts=counts)[0]["heading"])
        self.assertIn("3 flushes of other CPUs", self.report(fork, **X86, remote=30).stdout)

    def test_who_can_save(self):
        """Each row on stock arm64, on tlb-rs with tlb_batch on and off, and on x86_64."""
        merged = {"split": 512, "reclaim": 32} | {c: 512 for c in CHAINS if c.startswith("migration:") and c != "migration: device"}
        migrc = ("migration: syscall", "migration: DAMON", "migration: demotion")
        for cause, chains in CHAINS.items():
            for figures, batch in (({}, "up to"), ({"tlb_batch": 0, "migrc": 0}, "up to"),
                                   ({"tlb_batch": 1, "migrc": 1}, "tlb_batch is on"), (X86, "nothing: x86_64 waits once")):
                row = self.json(f"0 1000 w {chains[0]}", **figures)[1][cause]
                if cause == "writeback":
                    batch = "mkclean is on" if batch == "tlb_batch is on" else "most of that of large folios (mkclean)"
                if cause == "migration: device":
                    batch = "migrate_device is in" if "tlb_batch" in figures else "most of it, unless pages go one by one"
                other = cause in ("writeback", "migration: device")
                self.assertTrue(row["saver"].startswith(batch if cause in merged or other else "nothing: "),
                                (cause, row))
                self.assertEqual("migrc, of memory" in row["saver"] or "migrc is on" in row["saver"], cause in migrc)
                self.assertEqual("migrc is on" in row["saver"], cause in migrc and "tlb_batch is" in batch)
                if cause in merged and batch == "up to":
                    self.assertAlmostEqual(row["could"], 10 * (1 - 1 / merged[cause]), places=3)
                else:
                    self.assertIsNone(row["could"])
        row = self.json(f"0 1 w {CHAINS['migration: demotion'][0]}", **X86)[1]["migration: demotion"]
        self.assertIn("migrc, of memory that is only read, by kswapd and memory.reclaim", row["saver"])
        row = self.json(f"0 1 w {CHAINS['split'][0]}", arch="riscv64")[1]["split"]
        self.assertEqual(row["saver"], "nothing: tlb-rs is for arm64 and x86_64")

    def test_first_line_has_what_limits(self):
        stack = "0 90 w tlb_finish_mmu;do_mprotect_pkey"
        for figures, says in (({"lost": 799112}, "799112 LOST: all figures are too low by 50.0 %"), ({}, "none lost"),
                              (X86, "there is no counter of cycles, and CPUs that are interrupted by flushes are not seen"),
                              ({"event": "cpu-clock"}, "there is no counter of cycles"),
                              ({"leaves": "functions"}, "without /proc/kcore all of a function that flushes counts"),
                              ({"hotplugged": 1}, "CPUs went on- or offline: figures are too low"),
                              ({"throttled": 7}, "the kernel throttled 7 times"), ({"chainless": 3}, "3 samples had no chain"),
                              *(({"kernel": k}, "this one may have others") for k in ("5.10.0", "6.0.1", "7.4.0-rc1", "8.1", "x"))):
            text = " ".join(self.report(stack, **figures).stdout.split())
            self.assertIn(says, text[:text.index("cause ms/s")], figures)
            self.assertIn(says, self.json(stack, **figures)[0]["heading"])
        for kernel in ("6.1.0-18-amd64", "6.12.9", "7.3.4"):
            self.assertNotIn("may have others", self.report(stack, kernel=kernel).stdout)

    def test_unmatched(self):
        """Above 5 % the first line says so; the three most frequent chains are shown."""
        new = [f"0 {n} w flush_tlb_mm_range;new_{n}" for n in (1, 5, 2, 3)]
        text = self.report("0 89 w tlb_finish_mmu;do_mprotect_pkey", *new).stdout
        self.assertIn("11.0 % UNMATCHED, see below", text.replace("\n", " "))
        self.assertEqual(re.findall(r"(?m)^ +(\d+) flush_tlb_mm_range;new_(\d)$", text), [("5", "5"), ("3", "3"), ("2", "2")])
        text = self.report("0 995 w tlb_finish_mmu;do_mprotect_pkey", "0 5 w flush_tlb_mm_range").stdout
        self.assertNotIn("UNMATCHED", text)
        self.assertIn("0.5 % unmatched", text.replace("\n", " "))

    def test_no_flush(self):
        got, causes = self.json()
        self.assertEqual((got["flush_samples"], causes), (0, {}))
        self.assertRegex(self.report().stdout, r"(?m)^all flushes +0 +0.04 +0.000 % +- +-$")
        self.assertIn("No sample was in a flush", self.report(words=["--html", "-"]).stdout)

    def test_html(self):
        stacks = [f"{s} {10 + s} w {chains[0]}" for s in range(10) for chains in CHAINS.values()]
        page = self.tmp / "page.html"
        text = self.report(*stacks, words=["--html", page]).stdout
        self.assertRegex(text, "(?m)^mprotect ")
        html = page.read_text()
        for cause in CHAINS:
            self.assertIn(f"<td>{cause}<td>", html)
        for svg in re.findall(r"(?s)<svg.*?</svg>", html):
            xml.etree.ElementTree.fromstring(svg)
        over_time = html[html.index("over 10.0 s"):]
        # A bar of eight colours for each second, which grow.
        bars = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="[\d.]+" height="([\d.]+)"', over_time)
        self.assertEqual(len(bars), 80)
        heights = [sum(float(h) for x, _, h in bars if x == at) for at in sorted({b[0] for b in bars}, key=float)]
        self.assertEqual(heights, sorted(heights))
        self.assertAlmostEqual(heights[-1], 200, delta=1)
        self.assertAlmostEqual(heights[0] / heights[-1], 10 / 19, delta=0.02)
        self.assertEqual(self.report(*stacks, words=["--html", "-"]).stdout.count("<html>"), 1)

    def test_html_of_a_part_of_a_second(self):
        """A constant rate is one, however long the last second is."""
        for seconds, bars in (("3.0002", 3), ("2.7", 3), ("1.0001", 1), ("0.4", 1)):
            stacks = [f"{s} {round(1000 * min(1, float(seconds) - s)) or 1} w a;exit_mmap" for s in range(4) if s < float(seconds)]
            html = self.report(*stacks, words=["--html", "-"], seconds=seconds).stdout
            over_time = html[html.index("ms per second, over"):]
            heights = [float(h) for h in re.findall(r'<rect x="[\d.]+" y="[\d.]+" width="[\d.]+" height="([\d.]+)"', over_time)]
            self.assertEqual(len(heights), bars)
            self.assertTrue(min(heights) > 197, (seconds, heights))
            scale = [float(v) for v in re.findall(r">([\d.]+)</text>", over_time)]
            self.assertTrue(95 <= max(scale) <= 102, (seconds, scale))

    def test_many_samples(self):
        got, causes = self.json(*["0 1000000000 w a;exit_mmap"] * 3)
        self.assertEqual((got["flush_samples"], causes["exit"]["samples"]), (3000000000, 3000000000))
        self.json("0 5 e a;exit_mmap", "0 7 w a;exit_mmap")

    def test_shared_counters(self):
        self.assertNotIn("others use counters", self.report().stdout)
        self.assertIn("others use counters of these CPUs, too: figures are too low",
                      self.report(shared=1).stdout.replace("\n", " "))

    def test_seconds_of_a_stack_are_added(self):
        got, causes = self.json("0 1 w a;exit_mmap", "1 2 w a;exit_mmap", "0 4 w b;exit_mmap")
        self.assertEqual(causes["exit"]["samples"], 7)

    def test_malformed_recordings(self):
        good = recording(["0 1 w a;exit_mmap"])
        for text, says in ((good.replace("price 1", "price 2"), "of another version"), ("", "there are no samples"),
                           ("x\n", "not of tlbstat price"), (good.replace("cpus 80", "cpus"), "no value"),
                           (good.replace("cpus 80", "cpus x"), "no number"), (good.replace("cpus 80", "cpus 0"), "no samples"),
                           (good.replace("cpus 80", "cats 80"), "not known"), (good.replace("us 100.0", "us nan"), "cannot be"),
                           (good.replace("seconds 10.0", "seconds 0"), "no samples"),
                           (good.replace("seconds 10.0", "seconds 1e99"), "cannot be"),
                           (recording(["0 1 a"]), "no stack"), (recording(["0 0 w a"]), "no stack"), (recording(["-1 1 w a"]), "no stack"),
                           (recording(["0 1 w"]), "no stack"), (recording(["0 9999999999999 w a"]), "no stack"),
                           (recording(["0 1 w a<b>"]), "strange letters"), (recording(["0 1 w \x1b[2J"]), "strange letters"),
                           (recording(["0 1 w " + 1000 * "abcde;"]), "too long")):
            (self.tmp / "p").write_text(text)
            p = subprocess.run([self.tmp / "tlbstat", "price", "report", self.tmp / "p"], capture_output=True, text=True,
                               check=False, env=self.env)
            self.assertEqual((p.returncode, p.stdout), (1, ""), text[-80:])
            self.assertIn(says, p.stderr)
        # Many frames, and names of others, do no harm.
        self.report("0 1 w " + ";".join(100 * ["a"]))
        text = self.report(kernel="\x1b[2J<b>").stdout
        self.assertNotRegex(text, "[<\x1b]")

    def test_usage(self):
        for words in (["0"], ["x"], ["1", "2"], ["--ring", "3"], ["--ring", "0"], ["-p", "1"], ["--html", "x"], ["-o", "x"], ["--"],
                      ["report", "-o", "x"], ["report", "--root", "/"], ["report", "a", "b"], ["record", "--json"], ["--ring", "1e6"]):
            p = subprocess.run([self.tmp / "tlbstat", "price", *words], capture_output=True, text=True, check=False, env=self.env,
                               timeout=60)
            self.assertEqual((p.returncode, p.stdout), (2, ""), words)
        p = subprocess.run([self.tmp / "tlbstat", "price", "report", "none"], capture_output=True, text=True, check=False,
                           env=self.env)
        self.assertEqual(p.returncode, 1)
        (self.tmp / "p").write_text(recording(["0 1 w a;exit_mmap"]))
        for words in ([], ["--json"], ["--html", "-"]):
            with open("/dev/full", "w") as full:
                p = subprocess.run([self.tmp / "tlbstat", "price", "report", *words, self.tmp / "p"], stdout=full, check=False,
                                   stderr=subprocess.PIPE, text=True, env=self.env)
            self.assertEqual((p.returncode, p.stderr.count("No space left")), (1, 1), words)


SYMBOLS = {"flush_tlb_mm_range": 0xffffffff81000000, "exit_mmap": 0xffffffff81000400, "flush_tlb_func": 0xffffffff81000800,
           "asm_sysvec_call_function": 0xffffffff81000c00, "ptep_clear_flush": 0xffffffff81001000,
           "do_wp_page": 0xffffffff81001400, "last": 0xffffffff81001800}
ASK = """
#include "price.h"
int main(int argc, char **argv)
{
	uint64_t chain[DEPTH];
	int i, n = 0;
	const char *why;

	root = argv[1];
	why = read_symbols();
	if (why) {
		puts(why);
		return 1;
	}
	if (argc > 4)
		printf("%s ", open_kcore() ? "instructions" : "functions");
	if (!choose_flush_functions(*argv[2] == 'a'))
		return 3;
	for (i = 3; i < argc; i++)
		chain[n++] = strtoull(argv[i], NULL, 16);
	i = flush_of(chain, n, *argv[2] == 'a');
	printf("%c %s\\n", i ? i : '-', n && symbol_of(chain[0]) ? symbol_of(chain[0])->name : "none");
	return 0;
}
"""


class Symbols(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.holder.cleanup)
        cls.tmp = Path(cls.holder.name)
        (cls.tmp / "ask.c").write_text(ASK)
        subprocess.run(["gcc", "-O1", "-I", HERE, "-o", cls.tmp / "ask", cls.tmp / "ask.c", HERE / "symbols.c", HERE / "sample.c", "-lm"],
                       check=True)

    def ask(self, arch, *chain, symbols=None, kcore=None, status=0):
        lines = [f"{a:016x} {'T' if i else 't'} {name}\n" for i, (name, a) in enumerate(SYMBOLS.items())]
        files = {"proc/kallsyms": "".join(lines) if symbols is None else symbols}
        if kcore is not None:
            files["proc/kcore"] = kcore
        root = write(self.tmp / "root", {k: v for k, v in files.items() if v is not False})
        p = subprocess.run([self.tmp / "ask", root, arch, *(f"{a:x}" for a in chain)], capture_output=True, text=True, check=False)
        self.assertEqual(p.returncode, status, p)
        return p.stdout.strip()

    def test_frames_of_x86(self):
        at = SYMBOLS
        for chain, kind in (([at["exit_mmap"]], "-"), ([at["flush_tlb_mm_range"]], "w"), ([at["flush_tlb_mm_range"] + 0x3ff], "w"),
                            ([at["flush_tlb_mm_range"] - 1], "-"), ([at["do_wp_page"]], "-"), ([at["flush_tlb_func"] + 8], "v"),
                            ([], "-")):
            self.assertEqual(self.ask("x", *chain).split()[-2 if chain else 0], kind)
        # A victim is in an interrupt; who flushes also runs that function; an interrupt is none of its work.
        both, victim, irq = at["flush_tlb_mm_range"] + 4, at["flush_tlb_func"] + 4, at["asm_sysvec_call_function"] + 4
        for chain, kind in (([victim, irq, both], "v"), ([victim, both], "w"), ([at["last"], irq, both], "-"),
                            ([at["last"], both, irq], "w")):
            self.assertIn(f" {kind} ", " " + self.ask("x", *chain))

    def test_leaves_of_arm64_by_name(self):
        leaf, other = SYMBOLS["ptep_clear_flush"] + 4, SYMBOLS["do_wp_page"]
        for chain, says in (([leaf, other], "functions w ptep_clear_flush"), ([other, leaf], "functions - do_wp_page")):
            self.assertEqual(self.ask("a", *chain), says)

    def test_leaves_of_arm64_by_instruction(self):
        base = SYMBOLS["ptep_clear_flush"]
        # nop, tlbi vale1is, dsb ish, nop, nop, dsb ishst, tlbi rvae1is, nop, nop
        code = [0xd503201f, 0xd50883a0, 0xd5033b9f, 0xd503201f, 0xd503201f, 0xd5033a9f, 0xd5088220, 0xd503201f, 0xd503201f]
        kinds = "-iww--ii-"
        header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 4, 183, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
        note = struct.pack("<IIQQQQQQ", 4, 0, 0, 0, 0, 0, 0, 0)
        load = struct.pack("<IIQQQQQQ", 1, 7, 256, base, 0, 4 * len(code), 4 * len(code), 0)
        kcore = (header + note + load).ljust(256, b"\0") + struct.pack(f"<{len(code)}I", *code)
        got = "".join(self.ask("a", base + 4 * i, base, kcore=kcore).split()[1] for i in range(len(code)))
        self.assertEqual(got, kinds)
        self.assertEqual(self.ask("a", base + 0x200, base, kcore=kcore), "instructions - ptep_clear_flush")
        for broken in (b"", b"\x7fELF", kcore[:100], b"x" * 500):
            self.assertEqual(self.ask("a", base, base, kcore=broken), "functions w ptep_clear_flush")

    def test_symbols_that_cannot_be_read(self):
        zeros = "".join(f"{0:016x} T {name}\n" for name in SYMBOLS)
        for symbols, says in ((zeros, "kptr_restrict hides addresses, or CAP_SYSLOG is missing"), (False, "cannot be read"),
                              ("", "has no functions"), ("nonsense\n", "has no functions")):
            self.assertIn(says, self.ask("x", symbols=symbols, status=1))
        self.ask("x", symbols="ffffffff81000000 T start_kernel\n", status=3)
        # Data is no function, and what compilers add to a name is left out.
        text = "ffffffff81000000 t flush_tlb_mm_range.llvm.123\nffffffff81000010 d data\nffffffff81000100 t x.cold\n"
        self.assertEqual(self.ask("x", 0xffffffff81000020, symbols=text), "w flush_tlb_mm_range")


ASK_SAMPLER = """
#include "sampler.c"
static struct prices p;
int main(int argc, char **argv)
{
	/* ip, number of addresses, addresses */
	uint64_t none[] = { 0xffffffff81000004, 0 }, user[] = { 0x400000, 0 }, cut[] = { 0xffffffff81000004, 9, 1 };
	uint64_t marks[] = { 0xffffffff81000004, 3, (uint64_t)-128, 0xffffffff81000004, 0xffffffff81000404 };
	static uint64_t deep[1002];
	int i;

	root = argv[argc - 1];
	deep[1] = 1000;
	for (i = 2; i < 1002; i++)
		deep[i] = 0xffffffff81000004;
	if (read_symbols() || !choose_flush_functions(false))
		return 1;
	add_sample(&p, none, 2, 0);
	add_sample(&p, user, 2, 0);
	add_sample(&p, cut, 3, 0);
	add_sample(&p, marks, 0, 0);
	add_sample(&p, marks, 5, 0);
	add_sample(&p, deep, 1002, 0);
	printf("%lld %lld\\n", p.samples, p.chainless);
	for (i = 0; i < p.nr_stacks; i++)
		printf("%d %.60s\\n", p.stacks[i].nr, p.stacks[i].text);
	return 0;
}
"""
ASK_COUNTS = """
#include "counts.c"
int online_cpus(int *list, int room) { return *list = 0, room > 0; }
static struct prices p;
int main(int argc, char **argv)
{
	uint64_t body[DEPTH];
	int i;

	root = argv[argc - 1];
	if (read_symbols() || !choose_flush_functions(false))
		return 1;
	for (i = 1; i < argc - 1; i++) {
		char *at = strtok(argv[i], ",");

		for (body[1] = 0; at; at = strtok(NULL, ","))
			body[2 + body[1]++] = strtoull(at, NULL, 16);
		body[0] = body[2];
		add_flush(&p, body, 2 + body[1], 0);
	}
	/* Each that was seen stands for ten. */
	owed = 10 * seen;
	weigh(&p);
	begin = seconds_of(CLOCK_MONOTONIC) - 2;
	settled = begin + 1;
	close_counts(&p);
	for (i = 0; i < p.nr_stacks; i++)
		printf("%d %s %s\\n", p.stacks[i].nr, p.stacks[i].text, causes[p.stacks[i].cause].name);
	printf("%.3f\\n", p.watched);
	return 0;
}
"""


class Records(unittest.TestCase):
    """What the kernel writes into rings."""

    def ask(self, text, symbols, *words, others=()):
        with tempfile.TemporaryDirectory() as tmp:
            tmp = Path(tmp)
            (tmp / "ask.c").write_text(text)
            sources = [HERE / f"{name}.c" for name in ("symbols", "sample", "ring", "recording", "causes", "view", *others)]
            (tmp / "stub.c").write_text("#include <stdlib.h>\nvoid failed_output(const char *name) { exit(name ? 1 : 2); }\n")
            subprocess.run(["gcc", "-O1", "-fsanitize=undefined", "-I", HERE, "-o", tmp / "ask", tmp / "ask.c", tmp / "stub.c",
                            *sources, "-lm"], check=True)
            write(tmp / "root", {"proc/kallsyms": "".join(f"{a:016x} t {name}\n" for name, a in symbols.items())})
            p = subprocess.run([tmp / "ask", *words, tmp / "root"], capture_output=True, text=True, check=True)
        return p.stdout.splitlines()

    def test_chains_that_are_empty_or_cut_off(self):
        """An empty one counts by its address, and is told; what is cut off is a sample, and no flush."""
        got = self.ask(ASK_SAMPLER, SYMBOLS, others=["cpus"])
        self.assertEqual(got, ["6 1", "1 w flush_tlb_mm_range", "1 w flush_tlb_mm_range;exit_mmap",
                               "1 " + ("w " + 48 * "flush_tlb_mm_range;")[:60]])

    def test_events(self):
        """A flush each: not again on the CPU that sent it to others, too."""
        at = SYMBOLS | {"native_flush_tlb_multi": 0xffffffff82000000, "smp_call_function_many_cond": 0xffffffff82000400,
                        "__traceiter_tlb_flush": 0xffffffff82000800}
        send, exit, local = at["native_flush_tlb_multi"] + 8, at["exit_mmap"] + 8, at["flush_tlb_func"] + 8
        flush, call, iterator = at["flush_tlb_mm_range"] + 8, at["smp_call_function_many_cond"] + 8, at["__traceiter_tlb_flush"] + 8
        irq = at["asm_sysvec_call_function"] + 8
        chains = [[send, flush, exit], [iterator, send, flush, exit], [local, call, send, flush, exit], [local, flush, exit],
                  [local, call, irq, exit], [exit], [local, irq]]
        # Behind the window is as much time again.
        self.assertEqual(self.ask(ASK_COUNTS, at, *(",".join(f"{a:x}" for a in chain) for chain in chains)), [
            "2 e native_flush_tlb_multi;flush_tlb_mm_range;exit_mmap exit", "1 e flush_tlb_func;flush_tlb_mm_range;exit_mmap exit",
            "40 c native_flush_tlb_multi;flush_tlb_mm_range;exit_mmap exit", "20 c flush_tlb_func;flush_tlb_mm_range;exit_mmap exit",
            "0.100"])


# A clock that only mprotect() moves: by as much as the test wants for a page that was touched, and by a microsecond else.
ASK_COST = """
#define seconds_of clock_of_the_test
#define mprotect mprotect_of_the_test
#include "calibrate.c"
static double t, touched;
double seconds_of(clockid_t id) { return t + 0 * id; }
int mprotect(void *p, size_t size, int how) { t += ((char *)p)[size] ? touched : 1e-6; return 0 * how; }
int main(int argc, char **argv)
{
	page_size = 4096;
	touched = atof(argv[argc - 2]);
	printf("%.3f\\n", cost());
	return 0;
}
"""


class NoSamples(Case):
    """Counters and a calibrated cost instead, and the first line says why."""

    def price(self, *words, files=None, **more):
        write(self.root, STOCK | (files or {}))
        p = self.run_it("price", "0.2", *words, **more)
        return p.stdout

    def kallsyms(self):
        return {"proc/kallsyms": "".join(f"{a:016x} T {name}\n" for name, a in SYMBOLS.items())}

    def test_why(self):
        for number, says in ((13, "samples need root or CAP_PERFMON"), (1, "samples need root or CAP_PERFMON"),
                             (38, "Function not implemented"), (2, "No such file or directory"), (22, "Invalid argument")):
            text = self.price(files=self.kallsyms(), env={"PERF_ERRNO": str(number)})
            self.assertRegex(text, rf"\ALinux 7.3.4 aarch64, NO SAMPLES: {says}")
            self.assertIn("pages migrated, a flush each", text)
        # The load runs all the same.
        for words, status in ((["true"], 0), (["false"], 1), (["no-such-command"], 1)):
            began = time.monotonic()
            self.run_it("price", "20", "--", "sh", "-c", f"touch ran; {words[0]}", status=status, quiet=not status)
            self.assertTrue((self.tmp / "ran").exists() and time.monotonic() - began < 10)
            (self.tmp / "ran").unlink()
        zeros = {"proc/kallsyms": "0000000000000000 T flush_tlb_mm_range\n"}
        self.assertIn("NO SAMPLES: kptr_restrict hides addresses", self.price(files=zeros))
        self.assertIn("NO SAMPLES: /proc/kallsyms cannot be read", self.price())
        other = {"proc/kallsyms": "ffffffff81000000 T start_kernel\n"}
        self.assertIn("NO SAMPLES: this kernel has none of the functions", self.price(files=other))
        p = subprocess.run([self.tmp / "tlbstat", "price", "record", "--root", self.root, "0.2"], capture_output=True,
                           text=True, check=False, env=self.env, timeout=60)
        self.assertEqual(p.returncode, 1)
        self.assertIn("no samples: this kernel has none of the functions", p.stderr)

    def test_cost_of_a_flush(self):
        """Of two calls each; none, if the page that is flushed takes no longer than the other one."""
        ask = Records.ask
        for touched, cost in (("3e-6", 4), ("1e-6", None), ("5e-7", None)):
            got = float(ask(self, ASK_COST, SYMBOLS, touched, others=["run"])[0])
            self.assertTrue(math.isnan(got) if cost is None else abs(got - cost) < 0.01, (touched, got))

    def test_json(self):
        got = json.loads(self.price("--json", files={"proc/sys/kernel/arch": "x86_64\n"}))
        self.assertEqual((got["tlbstat_price_by_counters"], got["arch"]), (1, "x86_64"))
        self.assertIn("per_s", got["CPUs interrupted by flushes"])

    def test_output_that_cannot_be_written(self):
        with open("/dev/full", "w") as full:
            p = subprocess.run([self.tmp / "tlbstat", "price", "--root", self.root, "0.1"], stdout=full, stderr=subprocess.PIPE,
                               text=True, env=self.env, check=False, timeout=60)
        self.assertEqual(p.returncode, 1)
