# SPDX-License-Identifier: GPL-2.0
"""The suite counts: what work may cost."""

from tlbrs.bench.machine import per_unit, samples
from tlbrs.guest import guest
from tlbrs.report import measure
from tlbrs.suites import harness
from tlbrs.suites.harness import KVER, LOGS, TIERS, boot, chosen, kernel, side_by_side

# It has erratum 4118414: one more TLBI and DSB complete each flush.
REPEATED = "neoverse-n1"

DEMOTE = """for on in 0 1; do
	echo $on > /proc/sys/vm/tlb_batch
	tlb_batch_demote -t classic -t mglru || exit 1
done"""

TIERED = """for on in 0 1; do
	TLB_MIGRC=$on migrc_tier -t proactive -t classic -t mglru || exit 1
done"""


def batched(suite, arch):
    """What work costs with vm.tlb_batch."""
    figures = measure.run(arch, guest.kernel_path(arch, harness.IMAGE, KVER), 3, True, log=LOGS / f"{arch}-counts.log")
    for work in measure.WORK:
        was, now = (measure.found(figures, work, switch) for switch in (0, 1))
        for key, name in measure.COUNTS[arch].items():
            if key not in was.counts or key not in now.counts:
                suite.check(f"{arch} {work}: {name}", False, "was not measured")
                continue
            most = measure.limit(arch, work, key, was.counts[key], now)
            suite.check(f"{arch} {work}: {name}", now.counts[key] <= most,
                        f"{now.counts[key]:.2f}, with the switch off {was.counts[key]:.2f}, at most {most:.2f}")


def deferred(suite, arch):
    """What moves cost with vm.migrc_enable."""
    flush = "tlbi" if arch == "arm64" else "nr_tlb_remote_flush"
    result = boot(suite, "migrc counts", arch, harness.IMAGE, "migrc_move_bench --case once --pairs 2 && "
                  "migrc_move_bench --case rounds --rounds 2 --pairs 1", mem="4G", meter=arch == "arm64")
    found = [r for r in result.records if r.get("region") in ("migrc_once", "migrc_rounds")]
    suite.check(f"{arch} migrc counts: regions were measured", len({(r["region"], r["migrc"]) for r in found}) == 4)
    for r in found:
        count = (r.get("meter") or r)[flush]
        at_most = 2 + r["ns"] // 10**9  # one more for each age cap that has passed
        suite.check(f"{arch} {r['region']}, vm.migrc_enable={r['migrc']}: {flush}",
                    count <= at_most if r["migrc"] else count > at_most, f"{count}, {at_most:.0f}")


def forked(suite, arch):
    """What a zap costs beside a fork: a page, and not the whole address space, with vm.migrc_enable off and on."""
    names = ("tlbi_asid", "tlbi_all") if arch == "arm64" else ("nr_tlb_local_flush_all",)
    result = boot(suite, "zaps beside a fork", arch, harness.IMAGE,
                  "migrc_fork && echo 1 > /proc/sys/vm/migrc_enable && migrc_fork", meter=arch == "arm64")
    found = [r for r in result.records if r.get("region", "").startswith("zap_")]
    suite.check(f"{arch} zaps beside a fork: regions were measured", len({(r["region"], r["migrc"]) for r in found}) == 4)
    for r in found:
        # A fork flushes the parent, and the end of its child.
        count, most = sum((r.get("meter") or r)[name] for name in names), 4 * r["forks"] + r["beside"] // 10
        suite.check(f"{arch} {r['region']}, vm.migrc_enable={r['migrc']}: flushes of an address space", count <= most,
                    f"{count} of {r['beside']} zaps beside {r['forks']} forks, at most {most}")


def restored(suite, arch):
    """What it takes to move large folios: on one CPU, because others add instructions of their own."""
    cpus = measure.FEW_CPUS[arch]
    job = f"tlb_batch_folio_bench --readers {cpus - 1} --idle --variant mthp --variant thp8 --variant unlike --pairs 3"
    if arch == "arm64":
        job += " && tlb_batch_folio_bench --variant load && tlb_batch_folio_bench --variant hint --pairs 1"
    result = boot(suite, "large folios", arch, harness.IMAGE, job, meter=True, smp=cpus, nodes=1, cpuless=1)
    found = samples(result.records)
    for work, most in measure.INSNS_LIMIT.items():
        was, now = (per_unit(found.get(work, {}).get(switch, []), "insns_kernel") for switch in (0, 1))
        if suite.check(f"{arch} {work}: instructions were counted", was and now):
            suite.check(f"{arch} {work}: kernel instructions", now <= most * was,
                        f"{now:.0f} a page, with the switch off {was:.0f}, at most {most} of that")
    if arch == "arm64":
        count = per_unit(found.get("migrate_load", {}).get(1, []), "tlbi")
        suite.check(f"{arch} migrate_load: TLBI", count is not None and count <= measure.LOAD_LIMIT,
                    f"{count} a page, at most {measure.LOAD_LIMIT}")
        was, now = (per_unit(found.get("hint", {}).get(switch, []), "tlbi") for switch in (0, 1))
        if suite.check(f"{arch} hint faults: regions were measured", was is not None and now is not None):
            suite.check(f"{arch} hint faults: TLBI", now <= measure.HINT_LIMIT < was,
                        f"{now:.4f} a page, with the switch off {was:.4f}, at most {measure.HINT_LIMIT}")


def written(suite, arch):
    """What it takes to write large folios to disk that were written to through a mapping.

    Readers stay in user mode, because x86_64 does not interrupt CPUs that are idle.
    """
    result = boot(suite, "msync", arch, harness.IMAGE, "echo never > /sys/kernel/mm/transparent_hugepage/enabled && "
                  "tlb_batch_msync_bench --variant 64k --variant 2m --readers 2", meter=arch == "arm64", disk="64M")
    found = {r["region"]: r for r in result.records if "region" in r}
    name = "TLBI" if arch == "arm64" else "remote flush"
    for region, most in measure.MSYNC_LIMIT.items():
        count = found.get(region, {})
        count = count.get("meter", {}).get("tlbi") if arch == "arm64" else count.get("nr_tlb_remote_flush")
        suite.check(f"{arch} {region}: {name}", count is not None and count <= most, f"{count}, at most {most}")


def written_together(suite, arch):
    """The same if several folios are cleaned at once, and what it takes above a msync() that has no PTE to clean."""
    job = ("echo never > /sys/kernel/mm/transparent_hugepage/enabled && "
           "tlb_batch_msync_bench --writeback --readers 2 --variant small --variant sparse --variant 64k --variant 2m")
    result = boot(suite, "msync of several folios", arch, harness.IMAGE, job, meter=arch == "arm64", disk="128M")
    found = {r["region"]: r for r in result.records if "region" in r}

    def count(region, key):
        r = found.get(region, {})
        if arch == "arm64":
            return measure.of_flushes(r["meter"])[key] if "meter" in r else None
        return r.get("nr_tlb_remote_flush")

    for work, most in measure.WRITEBACK_LIMIT.items():
        most = most if isinstance(most, int) else most[arch]
        for region in (work, f"{work}_again"):
            flushes = count(region, "tlbi")
            suite.check(f"{arch} {region}: {'TLBI' if arch == 'arm64' else 'remote flush'}",
                        flushes is not None and flushes <= most, f"{flushes}, at most {most}")
            if arch != "arm64":
                continue
            # With thousands of extents, the file system has tasks that wait for other CPUs, too.
            for key in ("dsb_ishst",) if work == "writeback_sparse" else ("dsb_ishst", "dsb_ish"):
                waits, plain = count(region, key), count(f"{work}_plain", key)
                if suite.check(f"{arch} {region}: {key} was counted", waits is not None and plain is not None):
                    more = measure.WRITEBACK_WAITS + measure.BACKGROUND[key]
                    suite.check(f"{arch} {region}: {key}", waits - plain <= more,
                                f"{waits}, without PTEs to clean {plain}, at most {more} more")


def huge(suite, arch):
    """What it takes to change many THPs with one call."""
    result = boot(suite, "THPs", arch, harness.IMAGE, "tlb_batch_huge_bench --thps 512 --readers 2", mem="4G",
                  meter=arch == "arm64", **({"mte": True} if arch == "arm64" else {}))
    found = {r["region"]: (r.get("meter", {}).get("tlbi") if arch == "arm64" else r.get("nr_tlb_remote_flush"), r["thps"])
             for r in result.records if "region" in r}
    name = "TLBI" if arch == "arm64" else "remote flush"
    for region in measure.HUGE[arch]:
        count, thps = found.get(region, (None, 0))
        suite.check(f"{arch} {region}: {name}", count is not None and count <= measure.HUGE_LIMIT,
                    f"{count} for {thps} THPs, at most {measure.HUGE_LIMIT}")
    if arch == "arm64":
        count, thps = found.get("huge_type", (None, 0))
        suite.check(f"{arch} huge_type: {name}", count is not None and count >= thps, f"{count}, at least {thps}")


def to_device(suite, arch):
    """What it takes to migrate pages to a device that has memory of its own."""
    result = boot(suite, "migration to a device", arch, harness.IMAGE, "tlb_batch_device_bench --readers 2",
                  meter=arch == "arm64")
    name = "TLBI" if arch == "arm64" else "remote flush"
    for region, most in measure.DEVICE_LIMIT.items():
        r = next((r for r in result.records if r.get("region") == region), {"there": 0})
        count = r.get("meter", {}).get("tlbi") if arch == "arm64" else r.get("nr_tlb_remote_flush")
        suite.check(f"{arch} {region}: {name}", count is not None and count <= most and r["there"] == 512,
                    f"{count} for {r['there']} pages, at most {most}")


def demoted(suite, arch):
    """How often kswapd waits, in all of its wakes."""
    result = boot(suite, "demotion", arch, harness.IMAGE, DEMOTE, meter=arch == "arm64", **TIERS)
    found = {(r["region"], r["tlb_batch"]): r for r in result.records if "wakes" in r}
    if not suite.check(f"{arch} demotion: regions were measured", len(found) == 4):
        return
    for (region, switch), r in found.items():
        most = measure.most_waits(r)
        said = f"{r['units']} pages in {r['wakes']} wakes, vm.tlb_batch={switch}"
        if switch:
            suite.check(f"{arch} {region}: waits", r["waits"] <= most, f"{r['waits']}, at most {most:.0f}; {said}")
        else:
            suite.say(f"{arch} {region}: {said}", show=False)


def tiered(suite, arch):
    """What is demoted at random addresses: a flush for each step of the watermarks, and one more."""
    flush = "tlbi" if arch == "arm64" else "nr_tlb_remote_flush"
    result = boot(suite, "tiers, counts", arch, harness.IMAGE, TIERED, meter=arch == "arm64", **TIERS)
    found = {(r["region"], r["migrc"]): r for r in result.records if r.get("region", "").startswith("tier_")}
    if not suite.check(f"{arch} tiers: regions were measured", len(found) == 6):
        return
    for (region, switch), r in found.items():
        count = (r.get("meter") or r)[flush]
        said = f"{count} for {r['units']} pages, {r['deferred']} of them deferred, in {r['wakes']} wakes of kswapd"
        if switch:
            # Of what cannot be deferred, a page costs up to two TLBI: kswapd meets files in memory, too. What it has
            # demoted is counted in batches of each CPU.
            others = max(0, r["units"] - r["deferred"]) + (32 if r["wakes"] else 0)
            most = 2 + r["wakes"] + r["units"] / r["step"] + 2 * others
            suite.check(f"{arch} {region}: {flush}", count <= most, f"{said}; at most {most:.0f}")
        else:
            suite.say(f"{arch} {region}, vm.migrc_enable=0: {said}", show=False)


def other_cpu(suite, cpu, ranges):
    """arm64 with other lengths of addresses, and without range TLBI."""
    result = boot(suite, f"-cpu {cpu}", "arm64", harness.IMAGE, "tlb_batch_thp_split --thps 8 && "
                  "tlb_batch_move_bench --pages 1024 && tlb_batch_folio_bench --variant mthp", cpu=cpu, meter=True, disk="64M")
    regions = {r["region"]: r for r in result.records if "region" in r}
    if not suite.check(f"arm64 -cpu {cpu}: regions were measured", {"split_anon", "move_rw", "move_mthp"} <= regions.keys()):
        return
    suite.check(f"arm64 -cpu {cpu}: range TLBI {'used' if ranges else 'not executed'}",
                any(r["meter"]["tlbi_range"] for r in regions.values()) == ranges)
    # Of an ASID, where 512 pages are too many for one TLBI each; and what completes each batch once more.
    for work, most, batches in (("split_anon", 1.1 * 8, 8), ("split_shared4", 1.1 * 4 * 8, 8), ("move_rw", 4, 2), ("move_mthp", 9, 9)):
        most += batches * (cpu == REPEATED)
        suite.check(f"arm64 -cpu {cpu} {work}: TLBI", regions[work]["meter"]["tlbi"] <= most,
                    f"{regions[work]['meter']['tlbi']}, at most {most:.0f}")


def repeated(suite):
    """Each window of hvo is invalidated at once, and that is completed twice where the CPU needs it."""
    result = boot(suite, "hvo windows", "arm64", harness.IMAGE, "hvo_bench --pages 2 --strategy auto --strategy pause",
                  cpu=REPEATED, meter=True, mem="8G", nodes=1)
    rows = [r for r in result.records if r.get("region", "").startswith("hvo_")]
    suite.check("arm64 hvo windows: regions were measured", len(rows) == 10)
    for r in rows:
        windows, meter = r["flushes"] + r["pauses"], r["meter"]
        suite.check(f"arm64 {r['region']}, hvo.strategy={r['strategy']}: TLBI",
                    windows and (meter["tlbi_all"], meter["tlbi_va"], meter["tlbi"]) == (windows, windows, 2 * windows),
                    f"{meter['tlbi_all']} of all addresses and {meter['tlbi_va']} that repeat the sync, {windows} windows")


def counts(suite):
    """Counts are gates: what the work may cost, in executed instructions; on x86_64, in flushes."""
    for arch in chosen(suite):
        if not kernel(suite, arch, harness.IMAGE):
            continue
        with side_by_side(arch) as start:
            start(batched, suite, arch)
            start(deferred, suite, arch)
            start(forked, suite, arch)
            start(restored, suite, arch)
            start(written, suite, arch)
            start(written_together, suite, arch)
            start(huge, suite, arch)
            start(to_device, suite, arch)
            start(demoted, suite, arch)
            start(tiered, suite, arch)
            if arch == "arm64":
                for cpu, ranges in (("max,lpa2=off", True), (REPEATED, False), ("cortex-a72", False)):
                    start(other_cpu, suite, cpu, ranges)
                start(repeated, suite)
