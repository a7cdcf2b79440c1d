# SPDX-License-Identifier: GPL-2.0
"""Tests of what needs no guest: what is taken from the page, and what is said of its output."""

import copy
import re
import subprocess
import unittest

from tlbrs.guest import console
from tlbrs.recipes import recipes

TEXT = recipes.PAGE.read_text(encoding="utf-8")
COMMANDS = recipes.recipes(TEXT)
EVENTS = ("tlb_batch", "migrc", "hvo")

# As 0.17, 0.23 and 0.27 print them.
OLD = """\
Attaching 1 probe...


@pages[0]: count 68, average 0, total 41
@pages[6]: count 187, average 5, total 935

@callers[tlb_batch_move_, 
    trace_issued+40
    migrate_pages_batch+903
]: 4
@callers[kswapd0, 
]: 1
@cancelled[1, -1]: 3

@age_us: 
[0]                    1 |                                                    |
[512, 1K)              0 |                                                    |
[16K, 32K)            22 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
[1M, ...)              2 |                                                    |

@stopped_us[2]: 
[8, 16)                5 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|

"""
NEW = """\
Attached 1 probe
@pages[6]: { .count = 187, .average = 5, .total = 935 }
@denied[8]: 2048
"""

VMSTAT = {"tlb_batch_pages": 2048, "tlb_batch_ranges": 8, "migrc_deferred": 2048, "migrc_denied": 2048,
          "migrc_drain_age": 1, "pgmigrate_success": 4096, "nr_tlb_remote_flush": 70, "cpu_pause": 4,
          "cpu_pause_fallback": 1, "cpu_pause_cancelled": 6}
STAT = """\
   <not supported>      dTLB-load-misses
   <not supported>      iTLB-load-misses
             1,016      migrate:mm_migrate_pages
                 4      tlb_batch:tlb_batch_flush
                 {}      migrc:migrc_drain
"""
BATCH = """\
vm.tlb_batch = {}

   <not supported>      cycles:k
             1,016      page-faults

       3.210987654 seconds time elapsed

tlb_batch_pages {}
tlb_batch_ranges {}
"""
# What each prints of that work.
GOOD = {
    "grep": '{ 7, "isolated" }\n{ 8, "writable" }',
    "pages": "@pages[6]: count 8, average 256, total 2048",
    "callers": "@callers[tlb_batch_move_, \n    trace_issued+40\n    migrate_pages_batch+903\n]: 8",
    "shootdowns": "@shootdowns[4]: 70\n@shootdowns[0]: 5",
    "migrated": "@migrated[3]: 4096",
    "denied": "@denied[8]: 2048",
    "drained": "@drained[0]: count 2, average 1024, total 2048",
    "age_us": "@age_us: \n[64K, 128K)            2 |@@@@|\n\n"
              "@drain_us: \n[1]            1 |@@@@|\n[2, 4)            1 |@@@@|\n",
    "stopped_us": "@stopped_us[1]: \n[8K, 16K)            5 |@@@@|\n",
    "cancelled": "@cancelled[1, 3]: 5\n@cancelled[1, 2]: 1\n@cancelled[1, -1]: 9",
    "tlb_batch": BATCH.format(0, 7, 7) + BATCH.format(1, 2055, 15),
    "migrc_enable": STAT.format(0) + STAT.format(2),
    "perf_record": "# Total Lost Samples: 0\n    70.66%  tlb_batch_move_  writable\n            migrate_pages\n"
                   "  tlb_batch_move_   3.1:    migrc:migrc_deny: pages=1 reason=writable\n"
                   "  tlb_batch_move_   3.2:    tlb_batch:tlb_batch_flush: mm=0x1 start=0 pages=2048 reason=flush",
}
# The same, not of that work: each has to be found.
BAD = {
    "grep": ['{ MIGRC_WRITABLE, "writable" }', '{ 8, "shared" }'],
    "pages": ["", "@pages[6]: count 8, average 256, total 2047", "@pages[6]: count 9, average 256, total 2048"],
    "callers": ["@callers[tlb_batch_move_, \n]: 8", "@callers[kswapd0, \n    migrate_pages_batch+903\n]: 8"],
    "shootdowns": ["@shootdowns[0]: 5", "@shootdowns[4]: 71"],
    "migrated": ["@migrated[3]: 4095"],
    "denied": ["@denied[7]: 2048", "@denied[8]: 2049"],
    "drained": ["@drained[0]: count 2, average 1023, total 2046"],
    "age_us": ["@drain_us: \n[1]            1 |@@@@|\n",
               "@age_us: \n[1]    1 |@|\n[2]    1 |@|\n\n@drain_us: \n[1]    1 |@|\n"],
    "stopped_us": ["@stopped_us[1]: \n[8K, 16K)            4 |@@@@|\n"],
    "cancelled": ["@cancelled[1, 3]: 5\n@cancelled[1, -1]: 1"],
    "tlb_batch": [BATCH.format(1, 2055, 15), *(GOOD["tlb_batch"].replace(*change) for change in (
        ("2055", "2054"), ("ranges 15", "ranges 7"), ("1,016", "<not supported>"), ("cycles:k", "cycles")))],
    "migrc_enable": [STAT.format(0), STAT.format(2) + STAT.format(2), GOOD["migrc_enable"].replace(" 4 ", " 5 "),
                     GOOD["migrc_enable"].replace("1,016", "<not supported>")],
    "perf_record": [GOOD["perf_record"].replace(*change) for change in (
        ("pages=2048", "pages=2047"), ("writable\n", "8\n"), ("migrate_pages", "[unknown]"))],
}


def text_of(arch, said):
    """A console and its records, of recipes that were run and printed this."""
    lines = ["[    0.100000] the kernel", "tlb-rs: job start"]
    for name in COMMANDS:
        if arch in recipes.CHECKS[name].arches:
            load = "0" if recipes.CHECKS[name].load else "null"
            before = "{" + ",".join(f'"{key}":7' for key in VMSTAT) + "}"
            after = "{" + ",".join(f'"{key}":{value + 7}' for key, value in VMSTAT.items()) + "}"
            lines += [f"recipe {name}", *(recipes.MARK + line for line in said[name].splitlines()), "ok 1 the load",
                      f'{{"recipe":"{name}","status":0,"load":{load},"vmstat0":{before},"vmstat1":{before},'
                      f'"vmstat2":{after},"vmstat3":{after}}}']
    text = "\n".join(lines) + "\ntlb-rs: job exit 0\n"
    records, bad = console.records(text)
    assert not bad, bad
    return text, records


def wrong(arch, said, change=None):
    """{recipe: what is wrong}"""
    text, records = text_of(arch, said)
    if change:
        change(records)
    return {name: why for name, why in recipes.verdicts(arch, TEXT, text, records) if why}


class Page(unittest.TestCase):
    """What is taken from the page."""

    def test_blocks(self):
        text = ("Title::\n=====\n\nRun this::\n\n    one\n      two\n\n    three\n\nNot this:\n\n    four\n\n"
                "What? ::\n    no empty line\n\n- item::\n\n    five\nthe end::\n\nnothing\n")
        self.assertEqual(recipes.blocks(text), ["one\n  two\n\nthree", "five"])

    def test_block_ends_the_page(self):
        self.assertEqual(recipes.blocks("a::\n\n  b\n  c"), ["b\nc"])

    def test_every_command_is_taken(self):
        lines = [line.strip() for line in TEXT.splitlines() if re.match(r" +(bpftrace|perf|grep|sysctl)\b", line)]
        self.assertGreaterEqual(len(lines), 14)
        taken = [line.strip() for command in COMMANDS.values() for line in command.splitlines()]
        self.assertEqual([line for line in lines if line not in taken], [])

    def test_every_command_is_checked(self):
        self.assertEqual(set(COMMANDS), set(recipes.CHECKS))

    def test_same_name_twice(self):
        with self.assertRaisesRegex(ValueError, "two recipes are called pages"):
            recipes.recipes("a::\n\n  bpftrace -e '@pages'\n\nb::\n\n  bpftrace -e '@pages'\n")

    def test_ends_with_the_load(self):
        for command in ("bpftrace script.bt", "perf record -a", "perf stat -- sleep"):
            with self.assertRaisesRegex(ValueError, "nothing ends this command"):
                recipes.under_load(command)
        self.assertEqual(recipes.under_load("perf stat -a -- sleep 60; perf report"),
                         "perf stat -a -- sh /tmp/load; perf report")

    def test_events_have_these_fields(self):
        """Else the page would be wrong only in the guest."""
        fields = {}
        for system in EVENTS:
            header = (recipes.ROOT / f"include/trace/events/{system}.h").read_text(encoding="utf-8")
            for event, body in re.findall(r"TRACE_EVENT\((\w+),(.*?)\n\);", header, re.S):
                found = re.findall(r"__field\(([^,]+), (\w+)\)", body)
                fields[f"{system}:{event}"] = {name for _, name in found}
                for kind, _ in found:
                    self.assertRegex(recipes.TYPES, rf"\n\t{re.escape(kind)} ?\w+;")
        ours = [event for event in re.findall(r"\b(\w+:\w+)\b(?= \{|,| )", "\n".join(COMMANDS.values()))
                if event.split(":")[0] in EVENTS]
        self.assertGreater(len(set(ours)), 4)
        for event in ours:
            self.assertIn(event, fields)
        for command in COMMANDS.values():
            for event in re.findall(r"tracepoint:(\w+:\w+)", command):
                if event in fields:
                    self.assertLessEqual(set(re.findall(r"args->(\w+)", command)), fields[event])

    def test_job(self):
        for arch in ("arm64", "x86_64"):
            job = recipes.job(arch, TEXT)
            subprocess.run(["sh", "-n"], input=job, text=True, check=True)
            for name, command in COMMANDS.items():
                self.assertEqual(f"\nrecipe {name} " in job, arch in recipes.CHECKS[name].arches)
            self.assertNotIn("sleep 60", job)


class Output(unittest.TestCase):
    """What is said of their output."""

    def test_maps(self):
        found = recipes.maps(OLD)
        self.assertEqual(found["pages"], {"0": {"count": 68, "average": 0, "total": 41},
                                          "6": {"count": 187, "average": 5, "total": 935}})
        self.assertEqual(found["age_us"], {"": 25})
        self.assertEqual(found["stopped_us"], {"2": 5})
        self.assertEqual(found["cancelled"], {"1, -1": 3})
        self.assertEqual(sorted(found["callers"].values()), [1, 4])
        self.assertEqual(recipes.maps(NEW), {"pages": {"6": {"count": 187, "average": 5, "total": 935}},
                                             "denied": {"8": 2048}})
        self.assertEqual(recipes.maps("Attaching 1 probe...\nERROR: no\n"), {})

    def test_good(self):
        for arch in ("arm64", "x86_64"):
            self.assertEqual(wrong(arch, GOOD), {})

    def test_bad(self):
        self.assertEqual(set(BAD), set(recipes.CHECKS))
        for name, outputs in BAD.items():
            for output in outputs:
                with self.subTest(name=name, output=output):
                    found = wrong(recipes.CHECKS[name].arches[0], GOOD | {name: output})
                    self.assertIn(name, found)

    def test_lost_events(self):
        said = GOOD["perf_record"].replace("pages=2048", "pages=1").replace("Samples: 0", "Samples: 3")
        self.assertEqual(wrong("arm64", GOOD | {"perf_record": said}), {})

    def test_not_run(self):
        self.assertEqual(wrong("x86_64", GOOD, lambda records: records.pop()), {"perf_record": "it was not run"})

    def test_status(self):
        for key, value in (("status", 255), ("load", 1), ("load", None)):
            def change(records, key=key, value=value):
                records[1][key] = value
            self.assertRegex(wrong("x86_64", GOOD, change)["pages"], f"{key} {value}")

    def test_outside_of_the_load(self):
        """What happens before and after the load may be in the counts, or not."""
        def change(records):
            for record in records:
                record["vmstat3"] = {key: value + 100 for key, value in record["vmstat3"].items()}
        said = copy.copy(GOOD)
        said["denied"] = "@denied[8]: 2148"
        self.assertEqual(wrong("arm64", said, change), {})
