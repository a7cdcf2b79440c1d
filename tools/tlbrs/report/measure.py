# SPDX-License-Identifier: GPL-2.0
"""Boot a kernel, run the measured programs, and reduce what they printed to one figure per work.

Counts come from a boot under the TLB meter, or on x86_64 from the kernel, and repeat; times come from a boot without it, and only
the ratio of two neighbours in the same boot means anything under emulation.
"""

import dataclasses
import statistics
import sys

from tlbrs.guest import guest
from tlbrs.kernel import common
from tlbrs.kernel.common import ROOT

# name of the region: (what a reader calls it, key of the record that counts the units)
WORK = {
    "split_anon": ("split a PTE-mapped 2 MiB THP", "thps"),
    "split_mixed": ("the same, mixed attributes", "thps"),
    "split_shared4": ("the same, shared by 4 processes", "thps"),
    "split_order4": ("the same, to folios of 64 KiB", "thps"),
    "split_shmem": ("split a shmem THP", "thps"),
    "split_ext4": ("split an ext4 THP", "thps"),
    "move_ro": ("move 4096 read-only pages", None),
    "move_rw": ("move 4096 writable pages", None),
    "move_mthp": ("move 256 folios of 64 KiB", None),
    "move_thp8": ("move 8 PTE-mapped THPs", None),
    "move_thp1": ("move one PTE-mapped THP", None),
    "move_file": ("move 256 ext4 folios of 64 KiB", None),
}

COUNTS = {
    "arm64": {"tlbi": "TLBI", "dsb_ishst": "DSB ISHST", "dsb_ish": "DSB ISH"},
    "x86_64": {"nr_tlb_remote_flush": "remote flush", "tlb_irqs": "TLB IPIs",
               "nr_tlb_local_flush_all": "local all", "nr_tlb_local_flush_one": "local one"},
}

# Most that one unit of a work may cost on arm64 with 4 KiB pages, whatever stock needs: with range TLBI, or with a flush of
# the ASID in its place. The floor of a split is one of each; a move of 4096 pages is 8 lists of 512 for
# migrate_pages_batch(), and one TLBI for each list. A large folio is mapped again without any.
MOVED = {"tlbi": 9, "dsb_ishst": 9, "dsb_ish": 16}
LIMITS = {
    "split_anon": {"tlbi": 1.05, "dsb_ishst": 1.1, "dsb_ish": 1.5},
    "split_mixed": {"tlbi": 2},
    "split_shared4": {"tlbi": 4.4},
    "split_order4": {"tlbi": 2},
    "move_ro": {"tlbi": 16},
    "move_rw": {"tlbi": 16},
    "move_mthp": MOVED,
    "move_thp8": MOVED,
    "move_thp1": {"tlbi": 2, "dsb_ishst": 2, "dsb_ish": 4},
    "move_file": MOVED,
}
# The upper quartile of time over that of stock. Stock x86_64 waits once for a batch, too: there it is enough not to need
# more flushes.
TIME_LIMIT = {"arm64": {"split_anon": 0.33, "move_mthp": 0.5, "move_thp8": 0.5}, "x86_64": {"move_mthp": 1}}
# Where instructions are counted. x86_64 batches only what other CPUs have to be told of.
FEW_CPUS = {"arm64": 1, "x86_64": 2}
# Most kernel instructions for each page that moves, over those with vm.tlb_batch=0.
INSNS_LIMIT = {"move_mthp": 0.7, "move_thp8": 0.7, "move_unlike": 1.02}
# And most time of a move of large folios.
MOVE_TIME = {"arm64": 0.5, "x86_64": 1.0}
# Most TLBIs of arm64 for each page of THPs that migrate_pages() moves to and fro: one serves 512 pages.
LOAD_LIMIT = 0.003
# The same for 4096 pages that NUMA hint faults make accessible, block by block: none, and two of what else runs.
HINT_LIMIT = 2 / 4096
# Most flushes of msync() of 4096 dirty pages, one for each folio: TLBI on arm64, rounds of x86_64.
MSYNC_LIMIT = {"msync_64k": 258, "msync_64k_again": 258, "msync_2m": 9, "msync_2m_again": 9}
# The same with vm.tlb_batch_writeback=1: one for 31 folios, and two ranges of arm64 if they are far apart or large. And most waits
# of arm64 above those of the same pages if PTEs are clean, without those of other tasks (BACKGROUND).
WRITEBACK_LIMIT = {"writeback_small": 135, "writeback_sparse": {"arm64": 270, "x86_64": 135},
                   "writeback_64k": {"arm64": 20, "x86_64": 10}, "writeback_2m": 2}
WRITEBACK_WAITS = 135
# Most time that it takes over that with vm.tlb_batch=0; of others 1.02. On x86_64 no other CPU runs here, so that its flushes cost
# next to nothing.
MSYNC_TIME = {("arm64", "64k"): 0.6}
# Most flushes of a call that changes many THPs. If it changes the memory type, arm64 flushes at least once for each.
HUGE_LIMIT = 2
# And of a call that migrates pages to a device: one of all in this process, one of all in another.
DEVICE_LIMIT = {"device_exclusive": 2, "device_shared": 4}
HUGE = {"arm64": ("huge_free", "huge_protect", "huge_uffd"),
        "x86_64": ("huge_free", "huge_protect", "huge_uffd", "huge_softdirty")}


def most_waits(record):
    """Of kswapd, for what it demoted: one for 512 pages. The first rounds of each wake look at few pages."""
    return record["units"] / 512 + 8 * record["wakes"]


# Parameters of hvo: an emulated CPU may not run for many milliseconds, so that pauses would be given up.
PATIENT = {"ack_timeout_us": 200000, "pause_budget_us": 1000000, "duty_pct": 100}

# How far a count may be above that of stock and still be the same, as a share and in operations a region. Timers
# and kernel threads add some (TLBI hardly, DSB ISH a dozen in a region of a tenth of a second); how many CPUs
# an x86 shootdown interrupts depends on which of them happened to be idle.
SHARE = {"tlb_irqs": 0.1}
BACKGROUND = {"dsb_ish": 32, "dsb_ishst": 16}


def same(key, stock, units):
    """The most that counts as no more than `stock`; both are for one of `units` in a region."""
    return stock + max(SHARE.get(key, 0.005) * stock, BACKGROUND.get(key, 2) / units)


# One CPU is the mover's; the readers keep the address space in other CPUs' sets, as x86 needs.
FOLIOS = ("tlb_batch_folio_bench --variant mthp --variant thp8 --variant thp1 --variant file --readers {readers} --idle "
          "--dir /mnt")
JOB = ("tlb_batch_thp_split --pairs {pairs} --readers {readers} --dir /mnt && "
       "tlb_batch_move_bench --pairs {pairs} --readers {readers} && " + FOLIOS + " --pairs {pairs}")


def make(*words):
    """Ends with the status of make, which has said why."""
    status = common.status(["make", "-C", ROOT, "--no-print-directory", *words])
    if status:
        sys.exit(status)


def kernel(arch, variant, kver):
    """The image of a kernel, which is built if it is not up to date."""
    make("kernel", f"ARCH={arch}", f"VARIANT={variant}", f"KVER={kver}")
    return guest.kernel_path(arch, variant, kver)


def limit(arch, work, key, stock, figure):
    """The most that counts as success in one cell of the table."""
    most = same(key, stock, figure.units)
    return min(most, LIMITS.get(work, {}).get(key, most)) if arch == "arm64" else most


def of_flushes(meter):
    """What the meter counted, less the barriers that are no flush's.

    The kernel executes one DSB ISHST before it interrupts other CPUs, and one DSB ISH in each task switch. How many of
    these fall into a region depends on which CPUs happen to be idle.
    """
    return meter | {"dsb_ishst": meter["dsb_ishst"] - meter["sgi"], "dsb_ish": meter["dsb_ish"] - meter["task_switch"]}


@dataclasses.dataclass
class Figure:
    """The repetitions of one work with one setting of the switch: medians of the counts, and all times."""
    counts: dict
    ns: list
    runs: int
    units: int


# QEMU before 8.1 may run into the breakpoint of a static key that is switched under load: switch none but ours.
APPEND = {"arm64": "", "x86_64": "tsc=unstable numa_balancing=disable"}


def again(boot, say=print):
    """What boot() returns, once more if the emulator's bug got in the way: no hardware executes that breakpoint."""
    for _ in range(3):
        result = boot()
        if not any("Oops: int3" in splat for splat in result.splats):
            break
        say("QEMU ran a stale translation of patched code (int3), once more")
    return result


def run(arch, kernel, pairs, meter, cpu="max", log=None):
    """Returns {work: {switch: Figure}}; the switch is None on a kernel that has none."""
    result = guest.boot(kernel, arch, job=JOB.format(pairs=pairs, readers=0 if arch == "arm64" else 3),
                        cpu=cpu, disk="256M", meter=meter and arch == "arm64", append=f"kunit.enable=0 {APPEND[arch]}", timeout=900, log=log)
    if result.exit_status:
        raise SystemExit(f"{kernel}: {result.report()}")

    samples = {}
    for record in result.records:
        if record.get("region") in WORK:
            samples.setdefault(record["region"], {}).setdefault(record["tlb_batch"], []).append(record)

    figures = {}
    for work, switches in samples.items():
        unit = WORK[work][1]
        for switch, records in switches.items():
            counts = {}
            for key in COUNTS[arch]:
                values = [(of_flushes(r["meter"]) if arch == "arm64" else r).get(key) for r in records] if meter else []
                if values and None not in values:
                    counts[key] = statistics.median(values) / (records[0][unit] if unit else 1)
            figures.setdefault(work, {})[switch] = Figure(
                counts, [r["ns"] for r in records], records[0].get("runs") or 1, records[0][unit] if unit else 1)
    return figures


def found(figures, work, switch):
    """The one of a work with a setting of the switch; of what was not measured, one without counts and times."""
    return figures.get(work, {}).get(switch) or Figure({}, [], 1, 1)


def ratio(off, on):
    """Median and quartiles of the time of `on` over that of its neighbour `off`; None without two pairs."""
    pairs = sorted(b / a for a, b in zip(off.ns, on.ns))
    if len(pairs) < 2:
        return None
    low, middle, high = statistics.quantiles(pairs, n=4, method="inclusive")
    return low, middle, high
