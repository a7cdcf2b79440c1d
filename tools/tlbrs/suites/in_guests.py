# SPDX-License-Identifier: GPL-2.0
"""Suites that run tests in guests: runner, kunit, programs."""

import re
import subprocess
import sys

from tlbrs.guest import guest
from tlbrs.kernel import toolchain
from tlbrs.report import measure
from tlbrs.suites import compiled_out, harness, written
from tlbrs.suites.harness import CORTEX_A715, HMAT, KVER, TIERS, ZONES, asked, boot, chosen, kernel, side_by_side, tree


def runner(suite):
    """The guest runner with real guests: how they end, and what it says of that.

    Of arm64 only, because that takes 45 s already: what differs by architecture is the machine, which the other suites
    boot. The image is theirs, too.
    """
    if chosen(suite, "arm64") and kernel(suite, "arm64", harness.IMAGE):
        suite.unittest("guest runner, arm64 guests", "tests.test_guest.BootArm64", must=True,
                       GUEST_KERNEL_arm64=str(guest.kernel_path("arm64", harness.IMAGE, KVER)))


# Where pages are looked up without a reference. (Two in one: with and without FOLL_PIN.)
LOOK_UPS = {"mm/gup.o": ("try_grab_folio_fast",),
            "mm/filemap.o": ("filemap_get_entry", "filemap_get_read_batch", "next_uptodate_folio", "filemap_get_folios_contig",
                             "find_get_entries", "find_lock_entries")}


# What is not there without them.
MECHANISMS = {"migrc": ("CONFIG_MIGRC", "CONFIG_MIGRC_DEBUG", "CONFIG_MIGRC_FILE"),
              "hvo": ("CONFIG_HUGETLB_VMEMMAP_PAUSE", "CONFIG_HVO_DEBUG", "CONFIG_HVO_FAULT_INJECTION"),
              "tlb_batch": ("CONFIG_RUST_TLB_BATCH",)}


def kunit(suite):
    """The images run the suites at boot, on 4 CPUs; kunit.py reads the log."""
    for arch in chosen(suite):
        if not kernel(suite, arch, harness.IMAGE):
            continue
        for obj in compiled_out.NOINSTR if arch == "arm64" else ():
            found = compiled_out.disturbances(toolchain.llvm_tool("llvm-objdump"),
                                              guest.kernel_path(arch, harness.IMAGE, KVER).parent / obj)
            suite.check(f"{arch} {obj}: noinstr calls nothing that may be traced or probed", not found, ", ".join(found))
        # No image here is without them; what users build is.
        for obj in (*compiled_out.NOINSTR, "mm/hvo/hvo_param.o", "mm/hvo/hvo_stats.o", "mm/hvo/hvo_walk.o") if arch == "arm64" else ():
            found = compiled_out.errors_without(("CONFIG_HVO_DEBUG", "CONFIG_HVO_FAULT_INJECTION"),
                                                guest.kernel_path(arch, harness.IMAGE, KVER).parent / obj)
            suite.check(f"{arch} {obj}: compiles without CONFIG_HVO_DEBUG", not found, found[:2000])
        # The bindings of Rust have all of our headers, whichever mechanism there is.
        for mechanism, options in MECHANISMS.items():
            found = compiled_out.errors_without(options, guest.kernel_path(arch, harness.IMAGE, KVER).parent / "mm/rmap.o",
                                                tree() / "rust/bindings/bindings_helper.h")
            suite.check(f"{arch} bindings: compile without {mechanism}", not found, found[:2000])
        for obj, functions in LOOK_UPS.items() if arch == "arm64" else ():
            found = compiled_out.costs(toolchain.llvm_tool("llvm-objdump"),
                                       guest.kernel_path(arch, harness.IMAGE, KVER).parent / obj,
                                       "CONFIG_HUGETLB_VMEMMAP_PAUSE", "page_ref_waits")
            for function in functions:
                without, off, nops = found.get(function, (0, 0, 0))
                suite.check(f"{arch} {function}() takes one NOP for hvo that was never on", nops and off == without,
                            f"{without} instructions in stock, {off} and {nops} NOPs")
        result = boot(suite, "kunit", arch, harness.IMAGE, "true", cases=False, append="")
        # kunit.py gives the number of cases in its last line.
        p = subprocess.run([sys.executable, "tools/testing/kunit/kunit.py", "parse"], input=result.console, cwd=tree(), text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        m = re.search(r"Ran (\d+) tests: (.*)", p.stdout)
        counts = dict((k, int(n)) for k, n in re.findall(r"(\w+): (\d+)", m.group(2))) if m else {}
        bad = counts.get("failed", 0) + counts.get("crashed", 0) + counts.get("errors", 0)
        suite.passed += counts.get("passed", 0)
        for name in ("rust_tlb_batch", "tlb_batch_main", "migrc", "rust_doctests_kernel") + ("hvo",) * (arch == "arm64"):
            suite.check(f"{arch} KUnit suite {name} ran", f"# Subtest: {name}\n" in result.console.replace("\r", ""))
        ok = p.returncode == 0 and counts.get("passed", 0) > 0 and not bad
        suite.check(f"{arch} kunit.py parse", ok, m.group(0) if m else "no summary")
        if not ok:
            suite.say("\n".join(p.stdout.splitlines()[-40:]))


# A job of several programs is one boot, which takes as long as many of them. One that skips (status 4) is no failure.
SKIPS = """
set -e
run() { "$@" || [ $? -eq 4 ]; }
"""
PROGRAMS = """
echo {switch} > /proc/sys/vm/tlb_batch
tlb_batch_thp_split --dir /mnt --thps 8
tlb_batch_move_bench --pages 1024 --readers 2
tlb_batch_stale_litmus --rounds 50 --expect-none
"""
HAZARDS = """
echo 1 > /proc/sys/vm/tlb_batch
TLB_ROUNDS=20 tlb_batch_mark
tlb_batch_putback
echo 0 > /proc/sys/vm/tlb_batch
tlb_batch_putback
echo 1 > /proc/sys/vm/tlb_batch
cat /dev/rust-tlb-batch > /dev/null 2>&1 || true
dmesg | grep 'rust_tlb_batch: 512 pages'
cat /sys/kernel/debug/tlb_batch/stats
TLB_ROUNDS=3 run tlb_batch_exit
TLB_DIR=/mnt TLB_ROUNDS=20 run tlb_batch_refault -v lazyfree -v file -v guard -v guard_enomem -v poison
TLB_DIR=/mnt run tlb_batch_refault -v table
TLB_DIR=/mnt run tlb_batch_collapse
run tlb_batch_task
TLB_ROUNDS=30 run tlb_batch_dirty
TLB_ROUNDS=4 run tlb_batch_secondary
run tlb_batch_zeropage
"""
# Another LRU, whose reclaim tries again what could not be freed. In the images of x86_64.
LRU_GEN = """
echo y > /sys/kernel/mm/lru_gen/enabled
echo +memory > /sys/fs/cgroup/cgroup.subtree_control
cd /sys/fs/cgroup && mkdir lru_gen
sh -c 'echo $$ > lru_gen/cgroup.procs; exec tlb_batch_stress --seconds 10 --toggle' & stress=$!
while kill -0 $stress 2> /dev/null; do
	echo 1M > lru_gen/memory.reclaim || true	# or what there is
	sleep 0.05
done 2> /dev/null
wait $stress
awk '$1 == "pgsteal" { print; exit $2 < 256 }' lru_gen/memory.stat
"""
# On a disk: what is read back from zram leaves the swap cache at once.
REFAULT_SWAP = "TLB_ROUNDS=20 run tlb_batch_refault -v swap"

LITMUS_ROUNDS = {"arm64": 1000, "x86_64": 300}
FREE_GIGANTIC = """cd /sys/kernel/mm/hugepages/hugepages-1048576kB &&
[ $(cat nr_hugepages) = 2 ] && echo 0 > nr_hugepages && [ $(cat nr_hugepages) = 0 ]"""
MIGRC_ROUNDS = 4
# A worker that is 50 ms late says nothing where one thread emulates all CPUs. On x86_64 memory that was there at boot goes
# offline; on arm64 there are HugeTLB pages of 32 MiB.
MIGRC_BOUNDS = {"arm64": ("limit", "age", "exit", "off", "denied", "thp", "compaction", "poison",
                          "hugetlb"),
                "x86_64": ("limit", "exit", "off", "denied", "thp", "compaction", "poison", "offline")}

# What tlbstat says of known work, between two looks at the counters themselves; then without debugfs.
TLBSTAT_POOL = 64
TLBSTAT = """
set -e
counters() { awk 'BEGIN { printf "{\\"vmstat\\":1" } { printf ",\\"%s\\":%s", $1, $2 } END { print "}" }' /proc/vmstat; }
set_to() { [ ! -e "$1" ] || echo "$2" > "$1"; }
set_to /proc/sys/vm/migrc_enable 1
set_to /proc/sys/vm/hugetlb_optimize_vmemmap 1
set_to /sys/module/hvo/parameters/strategy pause
PATIENT
tlbstat --json --once > /tmp/before
cat /tmp/before
tlbstat record --trace -o /tmp/recording 0.5 -- tlb_batch_move_bench --pages 1024 --readers 2
tail -n 1 /tmp/recording
tlbstat report --svg /tmp/recording.svg /tmp/recording
echo POOL > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
counters
tlbstat --json --since /tmp/before
counters
umount /sys/kernel/debug
tlbstat 0.1 3 2>&1
""".replace("POOL", str(TLBSTAT_POOL)).replace("PATIENT", "\n".join(
    f"set_to /sys/module/hvo/parameters/{name} {value}" for name, value in measure.PATIENT.items()))


def watched(suite, arch, variant):
    """tlbstat in a guest: it sees the work, and agrees with the kernel."""
    name = f"tlbstat, {variant}"
    result = boot(suite, name, arch, variant, TLBSTAT)
    samples, vmstat = ([r for r in result.records if key in r] for key in ("tlbstat", "vmstat"))
    if not suite.check(f"{arch} {name}: samples and counters", (len(samples), len(vmstat)) == (3, 2)):
        return
    before, recorded, after = samples

    def check(what, ok, detail=""):
        suite.check(f"{arch} {name}: {what}", ok, detail)

    def grown(key):
        return after[key] - before[key]

    keys = [k for k in vmstat[0] if re.match("tlb_batch_|migrc_|cpu_pause|hvo_|nr_tlb_|pgmigrate_|thp_split_page$", k)]
    off = [k for k in keys if not min(v[k] for v in vmstat) <= after.get(k, -1) <= max(v[k] for v in vmstat)]
    check("agrees with /proc/vmstat", len(keys) > 2 and not off, f"{len(keys)} counters {' '.join(off)}")
    check("sees pages move", grown("pgmigrate_success") >= 4096 and after["rate.pages.moved"] > 0,
          f"{after['rate.pages.moved']} a second")
    check("--trace sees why", recorded.get("trace.syscall_or_cpuset", 0) >= 4096)
    missing = "that needs root, and debugfs mounted"
    if variant == "stock":
        check("has nothing of tlb-rs", after["tlb_batch_pages"] is None and missing not in result.console)
        check("estimates deferrals", recorded["estimate.deferrable"] >= 4096)
        check("estimates flushes, only on arm64", grown("estimate.flushes") >= 4096 if arch == "arm64" else
              after["estimate.flushes"] is None and grown("tlb_interrupts") > 0)
    else:
        check("sees flushes avoided", grown("tlb_batch_avoided") >= 1000 and after["rate.flushes.avoid"] > 0)
        check("sees flushes deferred", grown("migrc_deferred") >= 1024 and after["rate.deferred.defer"] > 0)
        check("sees why they were not", grown("migrc.denied.writable") == grown("migrc_denied") >= 1024)
        check("says what it misses without debugfs", result.console.count(missing) == (3 if arch == "arm64" else 2))
    if variant != "stock" and arch == "arm64":
        lengths = sum(n for key, n in after.items() if key.startswith("hvo.below_us."))
        check("sees pauses", 0 < grown("cpu_pause") and lengths == after["cpu_pause"], f"{lengths}")
    # 7 of 8 pages of struct pages; the kernel may have taken some for itself meanwhile.
    spare = TLBSTAT_POOL * 7 * 4096
    if variant == "stock" and arch == "arm64":
        check("estimates struct pages", after["estimate.vmemmap_bytes"] == spare)
    else:
        check("sees struct pages given back", 0 <= spare - grown("vmemmap_saved_bytes") <= 2 * 4096,
              f"{grown('vmemmap_saved_bytes')} bytes")


# The cause that tlbstat price has to find for each load. NUMA balancing is off, because its scans flush, too.
PRICED = {"mprotect": "mprotect", "split": "split", "move_pages": "migration: syscall", "msync": "writeback",
          "vfree": "kernel: vmalloc, modules", "fork": "fork"}
PRICE = "".join(["echo 0 > /proc/sys/kernel/numa_balancing\n", *(f"""
tlb_load {load} 120 /mnt & load=$!
sleep 0.3
tlbstat price record -p 250 -o /tmp/price {3 if load == "split" else 1.5}
kill $load
echo '{{"priced":"{load}"}}'
tlbstat price report --json /tmp/price
tlbstat price report /tmp/price
wait
""" for load in PRICED), """
tlbstat ab -n 2 -w 0.5 --json -- tlb_load move_pages 120
echo "{\\"switch\\":$(cat /proc/sys/vm/tlb_batch)}"
tlbstat price record -o /tmp/hotplug 3 & price=$!
while kill -0 $price 2>/dev/null; do
    echo 0 > /sys/devices/system/cpu/cpu1/online
    sleep 0.3
    echo 1 > /sys/devices/system/cpu/cpu1/online
    sleep 0.3
done
tlbstat price report --json /tmp/hotplug | sed 's/tlbstat_price/hotplug/'
echo 3 > /proc/sys/kernel/perf_event_paranoid
echo '{"paranoid":3}'
tlbstat price --json 0.3 | sed 's/tlbstat_price/as_root/'
echo 2 > /proc/sys/kernel/kptr_restrict
tlbstat price --json 0.3
"""])


# Samples of each load that may be of what else runs: a slow host has few in all.
STRAY = 2


def priced(suite, arch):
    """tlbstat price finds the cause of known loads, and tlbstat ab what vm.tlb_batch changes; times mean nothing in QEMU."""
    result = boot(suite, "tlbstat price", arch, harness.IMAGE, PRICE, append="kunit.enable=0", disk="256M")
    found, load = {}, None
    for r in result.records:
        load = r.get("priced", load)
        if "tlbstat_price" in r:
            found[load] = r
    for load, cause in PRICED.items():
        r = found.get(load, {"flush_samples": 0, "causes": [], "unmatched": 1})
        samples = {c["cause"]: c["samples"] for c in r["causes"]}
        right, every = samples.get(cause, 0), r["flush_samples"]
        suite.check(f"{arch} tlbstat price, {load}: 90 % of the samples are of {cause}",
                    every >= 5 and right >= 0.9 * every - STRAY, f"{right} of {every} {samples}")
        suite.check(f"{arch} tlbstat price, {load}: 5 % are unmatched at most", r["unmatched"] * every <= 0.05 * every + STRAY,
                    f"{r['unmatched']:.3f}")
    ab = next((r for r in result.records if "tlbstat_ab" in r), {})
    pages = ab.get("tlb_batch_pages", {"off": -1, "on": -1})
    suite.check(f"{arch} tlbstat ab sees that vm.tlb_batch batches", 0 <= 10 * pages["off"] < pages["on"], f"{pages}")
    suite.check(f"{arch} tlbstat ab sees the cause", "ms_per_s.migration: syscall" in ab)
    hotplug, root, hidden = (next((r for r in result.records if key in r), {}) for key in
                             ("hotplug", "as_root", "tlbstat_price_by_counters"))
    suite.check(f"{arch} tlbstat price says that a CPU was off for a while", "CPUs went on- or offline" in hotplug.get("heading", ""))
    suite.check(f"{arch} tlbstat price takes samples as root with perf_event_paranoid=3", root.get("samples", 0) > 0)
    suite.check(f"{arch} tlbstat price has counters with kptr_restrict=2, and says why",
                "kptr_restrict hides addresses" in hidden.get("why", ""))
    suite.check(f"{arch} tlbstat ab sets the switch as it was", {"switch": 1} in result.records)


def programs(suite):
    """The guest programs on those images: switch on and off, the oracle watching every access."""
    for arch in chosen(suite):
        if not kernel(suite, arch, harness.IMAGE):
            continue
        with side_by_side(arch) as start:
            def run(name, *jobs, how=boot, arch=arch, start=start, **options):
                start(how, suite, name, arch, harness.IMAGE, "\n".join([SKIPS, *jobs]), timeout=900, **options)

            # x86_64 is emulated by one thread, in which a reader that spins costs the others their time.
            run("migrc", REFAULT_SWAP, f"TLB_ROUNDS={MIGRC_ROUNDS} migrc_stale", "migrc_blocks",
                f"TLB_ROUNDS={MIGRC_ROUNDS} migrc_file", "migrc_readmostly", disk="verity:256M", swap="disk:256M",
                oracle=arch == "arm64")
            if arch == "arm64":
                run("migrc, latency", "TLB_ROUNDS=1 migrc_file -v idle", how=asked, disk="256M")
                # With a plugin QEMU 10.0 does not return allocation tags.
                run("memory tags", f"TLB_ROUNDS={MIGRC_ROUNDS} migrc_stale -v tags -t type",
                    "tlb_batch_zeropage", "tlb_batch_huge -t type", how=asked, mte=True)
                run("erratum 2645198", f"TLB_ROUNDS={MIGRC_ROUNDS} migrc_stale -t exec", how=asked, cpu=CORTEX_A715)
                # For how long who waits: without the oracle, which is slow.
                run("tlb_batch, waits", "TLB_ROUNDS=3 tlb_batch_wait", how=asked, swap="256M")
            # arm64 has no soft-dirty bits.
            run("tlb_batch", *(PROGRAMS.format(switch=switch) for switch in (0, 1)), HAZARDS,
                "tlb_batch_softdirty" if arch == "x86_64" else "", disk="256M", swap="256M", oracle=True)
            # In turn with the switch at 0, as without CONFIG_MIGRATION_RESTORE_RUNS and CONFIG_FOLIO_MKCLEAN_RUNS.
            run("runs", *(f"echo {switch} > /proc/sys/vm/tlb_batch\ntlb_batch_restore\ntlb_batch_mkclean"
                          for switch in (0, 1)), "TLB_WRITEBACK=1 tlb_batch_mkclean", "tlb_batch_huge",
                "tlb_batch_device", "tlb_batch_writeback_cost --pairs 1", disk="256M", swap="256M")
            # SUITE=counts has its other cases.
            run("demotion", "tlb_batch_demote -t isolated -t throttled -t full -t full_noswap", swap="256M", **TIERS)
            # SUITE=counts has its other cases.
            run("tiers", "migrc_tier_bench --case grid --mb 64 --pairs 1 --seconds 2 --warm 1 && "
                "migrc_tier_bench --case grid --mb 64 --pairs 1 --rounds 1 --warm 0",
                "migrc_tier -t again -t step -t cycle -t overshoot -t short -t direct -t throttled -t oom", **TIERS)
            if arch == "x86_64":
                run("tiers of HMAT", "migrc_tier -t proactive", how=asked, **HMAT)
                run("tiers of two zones", "TLB_DIR=/mnt migrc_tier -t zones -t boost", how=asked, disk="256M", **ZONES)
            run("stress", "tlb_batch_stress --seconds 10 --toggle", "migrc_stress --seconds 10 --toggle",
                LRU_GEN if arch == "x86_64" else "", swap="256M", oracle=True)
            run("litmus, migrc bounds", f"tlb_batch_stale_litmus --rounds {LITMUS_ROUNDS[arch]} --expect-none",
                *(f"run migrc_bounds -t {case}" for case in MIGRC_BOUNDS[arch]),
                "migrc_workload --case lookup --by damon --pairs 1", how=asked,
                absent=("off",) if arch == "x86_64" else ())   # no live patching under TCG
            run("migrc pressure", "migrc_bounds -t pressure", how=asked, mem="768M")
            run("migrc nested", "TLB_ROUNDS=1 migrc_bounds -t nested", how=asked, mem="256M")
            run("abuse", "tlb_rs_abuse", mem="4G", oracle=arch == "arm64")
            written.by_fio(suite, arch, harness.IMAGE, start)
            start(watched, suite, arch, harness.IMAGE)
            start(priced, suite, arch)
            if arch == "x86_64":
                # Stock leaves a reference on the struct pages that they share: each is in a bad state when it is freed.
                run("gigantic pages of the boot", FREE_GIGANTIC, mem="6G", nodes=1,
                    append="kunit.enable=0 hugetlb_free_vmemmap=on hugepagesz=1G hugepages=2")
            if arch == "arm64":
                # Other architectures change these entries without a pause, and this is not in their images.
                run("hvo", "hvo_pool", "hvo_retry", mem="6G")
                run("hvo, storm", "TLB_SECONDS=60 hvo_pool -t storm", mem="6G")
                # These set no access flags, or hide it.
                for cpu, append in (("cortex-a72", ""), ("max", " id_aa64mmfr1.hafdbs=0")):
                    run(f"hvo, no access flags, {cpu}", "grep -q '^access_flag 0$' /sys/kernel/debug/hvo/stats && "
                        "hvo_pool -t pool && hvo_pool -t defaults", mem="4G", cpu=cpu, append=f"kunit.enable=0{append}")
                start(hvo_panic, suite, "hvo, a panic in a window", "kunit.enable=0")
                start(hvo_panic, suite, "hvo, a panic in a window that another CPU takes over",
                      "kunit.enable=0 irqchip.gicv3_pseudo_nmi=1 panic_force_cpu=1", "Redirecting from CPU 0 to CPU 1")
                start(hvo_panic, suite, "hvo, a panic in stop_machine()",
                      "kunit.enable=0 irqchip.gicv3_pseudo_nmi=1 hvo.strategy=stop_machine", "multi_cpu_stop")
                start(hvo_panic, suite, "hvo, a task that dies in a window", "kunit.enable=0",
                      "Fatal exception while the other CPUs wait", "oops")
                start(hvo_panic, suite, "hvo, a task that dies in stop_machine()",
                      "kunit.enable=0 irqchip.gicv3_pseudo_nmi=1 hvo.strategy=stop_machine",
                      "Fatal exception while the other CPUs wait", "oops")
                start(hvo_boot, suite)
                run("hvo, gigantic pages of the boot", "hvo_boot && hvo_pool -t late_cpu", mem="6G",
                    append="kunit.enable=0 hugetlb_free_vmemmap=on hugepagesz=1G hugepages=0:1,1:1")
                # From CMA; and some are in two zones, which the kernel takes back.
                for how, mem in (("hugetlb_cma=2G hugetlb_cma_only=1 hugepagesz=1G hugepages=2", "6G"),
                                 ("movablecore=2500M hugepagesz=1G hugepages=6", "12G")):
                    run(f"hvo, gigantic pages of the boot, {how.split('=')[0]}", "hvo_boot", mem=mem,
                        append=f"kunit.enable=0 hugetlb_free_vmemmap=on {how}")
                run("hvo, one CPU", "hvo_pool -t pool", mem="4G", smp=1, nodes=1)
                run("hvo, GICv2", "hvo_pool -t pool", mem="4G", gic=2)
                run("hvo, pseudo-NMIs", "hvo_pool -t pool && hvo_pool -t readers", mem="4G",
                    append="kunit.enable=0 irqchip.gicv3_pseudo_nmi=1")


def hvo_panic(suite, name, append, says="hvo_optimize_folios", case="panic"):
    """Who panics while the other CPUs wait has to let them go on, so that they can be stopped; who dies has to panic."""
    result = boot(suite, name, "arm64", harness.IMAGE, f"hvo_pool -t {case}", want=guest.SPLAT, append=append,
                  mem="4G", timeout=900)
    suite.check(f"arm64 {name}: all CPUs were stopped",
                says in result.console and "stopping secondary CPUs" in result.console and
                "failed to stop" not in result.console)


# Pages of a pool that the command line asks for: (size in kB, pages, pages of struct pages that each gives back).
BOOT_POOLS = ((1048576, 2, 4095), (32768, 16, 127), (2048, 300, 7))
HVO_BOOT = "tlbstat --json --once\n" + "".join(
    f"echo 0 > /sys/kernel/mm/hugepages/hugepages-{kb}kB/nr_hugepages\n" for kb, *_ in BOOT_POOLS) + "tlbstat --json --once\nhvo_pool -t race"


def hvo_boot(suite):
    """Pools of the boot are optimised before there are init calls, maybe by several threads."""
    name = "hvo, pools of the boot"
    result = boot(suite, name, "arm64", harness.IMAGE, HVO_BOOT, mem="6G", append=" ".join(
        ("kunit.enable=0 hugetlb_free_vmemmap=on", *(f"hvo.{key}={value}" for key, value in measure.PATIENT.items()),
         *(f"hugepagesz={kb}K hugepages={n}" for kb, n, _ in BOOT_POOLS))))
    # page_ext, which this image has, counts against both.
    saved = [r["vmemmap_saved_bytes"] for r in result.records if "tlbstat" in r]
    want = 4096 * sum(n * spare for _, n, spare in BOOT_POOLS)
    suite.check(f"arm64 {name}: all struct pages are given back, and taken again",
                len(saved) == 2 and saved[0] - saved[1] == want, f"{saved}, not {want} apart")
