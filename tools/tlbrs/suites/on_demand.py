# SPDX-License-Identifier: GPL-2.0
"""Suites that run only by name, for the time that they take."""

import os
import tempfile
from pathlib import Path

from tlbrs.guest import guest, initramfs
from tlbrs.kernel import common, kernel as kernel_tool
from tlbrs.recipes import recipes as page
from tlbrs.suites import commits as exported, harness, matrix, sabotage as sabotage_table, written
from tlbrs.suites.harness import ARCHES, KVER, asked, boot, chosen, kernel, side_by_side, tree
from tlbrs.suites.in_guests import MIGRC_ROUNDS, kunit, programs, watched
from tlbrs.suites.without_rules import sabotage_all


def debug(suite):
    """KUnit, the programs, and each of all rules removed, on the image with generic KASAN and lockdep."""
    was, harness.IMAGE = harness.IMAGE, "debug"
    try:
        for part in (kunit, programs, sabotage_all):
            part(suite)
    finally:
        harness.IMAGE = was


def pages(suite):
    """arm64 with other pages than 4 KiB: the same programs, one PMD-sized folio."""
    for variant, largest, room in (("16k", "1G", "8G"), ("64k", "16G", "48G")) if chosen(suite, "arm64") else ():
        if kernel(suite, "arm64", variant):
            boot(suite, f"pages of {variant}", "arm64", variant,
                 "tlb_batch_thp_split --thps 1 && tlb_batch_move_bench --pages 512 && "
                 "tlb_batch_stale_litmus --rounds 100 --expect-none && tlb_batch_stress --seconds 10",
                 meter=True, mem="6G", timeout=600)
            boot(suite, f"hvo, pages of {variant}", "arm64", variant, "hvo_pool", mem="8G", timeout=900)
            boot(suite, f"hvo, gigantic pages of the boot, pages of {variant}", "arm64", variant, "hvo_boot", mem=room, nodes=1,
                 append=f"kunit.enable=0 hugetlb_free_vmemmap=on hugepagesz={largest} hugepages=2")
            # Of 64 KiB: from 16 GiB to 512 MiB, none of which is touched.
            boot(suite, f"hvo demote, pages of {variant}", "arm64", variant, "hvo_pool -t demote", mem="80G", nodes=1,
                 timeout=900)


def hvo(suite):
    """An arm64 kernel that gives back struct pages from boot by default, and has no broadcast of the GIC."""
    if not chosen(suite, "arm64") or not kernel(suite, "arm64", "hvo-on"):
        return
    # The first case finds what the boot has left, and so does not turn anything on.
    asked(suite, "hvo, on by default", "arm64", "hvo-on", "set -e\nhvo_pool -t race\nhvo_pool", ("switch",), mem="6G",
          timeout=900)
    asked(suite, "hvo, off by parameter", "arm64", "hvo-on", "set -e\n[ $(cat /proc/sys/vm/hugetlb_optimize_vmemmap) = 0 ]\n"
          "[ $(cat /sys/kernel/debug/hvo/waits) = 0 ]\nhvo_pool -t switch\nhvo_pool -t race", mem="6G",
          append="kunit.enable=0 hugetlb_free_vmemmap=off", timeout=900)


# Where what removes a page flushes it, as in punch here, no rule is needed.
XFS_BROKEN = [r.command for r in sabotage_table.REMOVALS
              if r.mechanism == "migrc" and r.program == "file" and set(ARCHES) <= set(r.arches) and
              r.case not in ("punch", "verity", "journal")]


def fs(suite):
    """Other filesystems than ext4: for migrc three that opted in, with and without the rules, and one that did not; and
    what is written back there."""
    for arch in chosen(suite):
        if not kernel(suite, arch, "fs"):
            continue
        program = f"TLB_ROUNDS={MIGRC_ROUNDS} migrc_file"
        broken = "TLB_SKIP={1} TLB_EXPECT=1 " + program + " -v {0}"
        image = [f"{program} -v image -v copyup", broken.format("image", "record")]
        with side_by_side(arch) as start:
            if written.can_make(suite, arch, "migrc", "xfs"):
                # What is of ext4, of btrfs, and of images.
                start(filesystem, suite, arch, "xfs", "xfs:512M", [program],
                      ("verity", "journal", "btrfs", "image", "copyup"),
                      oracle=arch == "arm64")
                start(filesystem, suite, arch, "xfs without rules", "xfs:512M", XFS_BROKEN)
            for name in ("xfs", "btrfs"):
                if written.can_make(suite, arch, "written back", name):
                    start(boot, suite, f"{name}, written back", arch, "fs",
                          "tlb_batch_mkclean\nTLB_WRITEBACK=1 tlb_batch_mkclean", disk=f"{name}:512M")
            written.by_fio(suite, arch, "fs", start)
            if written.can_make(suite, arch, "migrc", "btrfs"):
                start(filesystem, suite, arch, "btrfs", "btrfs:512M",
                      [f"{program} -v btrfs", broken.format("btrfs", "file")])
            for name in guest.READ_ONLY:
                if written.can_make(suite, arch, "migrc", name):
                    start(filesystem, suite, arch, name, name, image)


def abuse(suite):
    """Attempts to make it overflow, fill up, stall or leak: longer than in programs, and with 10,000 sharers of a page."""
    for arch in chosen(suite):
        if kernel(suite, arch, harness.IMAGE):
            boot(suite, "abuse, long", arch, harness.IMAGE, "TLB_SECONDS=30 TLB_PROCESSES=10000 tlb_rs_abuse", mem="6G",
                 timeout=3600)


def stock(suite):
    """What tlbstat shows of a kernel without tlb-rs."""
    for arch in chosen(suite):
        if kernel(suite, arch, "stock"):
            watched(suite, arch, "stock")


def recipes(suite):
    """The commands of the administrator's page on TLB maintenance, with the bpftrace and perf of the distribution."""
    text = page.PAGE.read_text(encoding="utf-8")
    for arch in chosen(suite):
        if not kernel(suite, arch, "trace"):
            continue
        with tempfile.TemporaryDirectory() as tmp:
            disk = guest.make_disk(Path(tmp) / "disk.img", "1G", initramfs.userland(arch, "bpftrace", *page.PACKAGES))
            btf = page.make_btf(tree(), Path(tmp) / page.BTF)
            result = boot(suite, "recipes", arch, "trace", page.job(arch, text), disk=disk, files={page.BTF: btf},
                          mem="4G", timeout=3600)
        said = page.outputs(result.console)
        for name, wrong in page.verdicts(arch, text, result.console, result.records):
            if not suite.check(f"{arch} recipe {name}", wrong is None, wrong or ""):
                suite.say("\n".join(said.get(name, "").splitlines()[-40:]))


# Whatever hvo has by then: on arm64, first without the broadcast of the GIC.
COMMIT = "[ ! -e /sys/kernel/debug/hvo/verify ] || TLB_ROUNDS=1 hvo_pool -t pool"
# Without Rust: what the rest of the series changes.
COMMIT_NO_RUST = "tlb_batch_thp_split --thps 1 && tlb_batch_move_bench --pages 512"


def commits(suite):
    """Each commit of the exported series builds without a warning, boots, and passes the KUnit suites that it has; with
    RUST=n each builds without Rust, and boots."""
    common.one_of("RUST", answer := os.environ.get("RUST") or "y", ("y", "n"))
    rust = answer == "y"
    variant = exported.variant(rust)
    for arch in chosen(suite):
        def kunit_passes(name):
            result = boot(suite, f"commit {name.replace('/', '-')}" + ("" if rust else " without Rust"), arch, variant,
                          COMMIT if rust else COMMIT_NO_RUST, cases=False, append="")
            config = guest.kernel_path(arch, variant, KVER).parent / ".config"
            missing = matrix.absent(result.ktap, kernel_tool.options(config.read_text(encoding="utf-8")))
            return "; ".join(missing) or None if result.exit_status == guest.OK else result.report()

        for name, wrong, seconds in exported.tried(arch, KVER, kunit_passes, os.environ.get("FROM", ""), rust):
            suite.check(f"{arch} {name}" + ("" if rust else ", RUST=n"), not wrong,
                        wrong or (f"{seconds} s" if seconds else "passed before"))


def filesystem(suite, arch, name, disk, commands, absent=(), **options):
    """A boot with this disk, of cases that were asked for."""
    asked(suite, name, arch, "fs", "\n".join(["set -e", *commands]), absent, disk=disk, timeout=900, **options)
