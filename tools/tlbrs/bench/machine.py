# SPDX-License-Identifier: GPL-2.0
"""Boots for the suites, and the arithmetic on what the guest programs printed."""

import hashlib
import json
import math
import shlex
import statistics

from tlbrs.guest import guest
from tlbrs.kernel import common
from tlbrs.report import measure

# Of the guest, where a suite does not say otherwise.
DEFAULTS = {"cpu": "max", "smp": 4, "mem": "2G", "nodes": 2, "cpuless": 0, "disk": None, "swap": False,
            "meter": False, "kver": "7.3"}
# Modes of vm.tlb_batch in the order of the report; the first exists in the bench variant only.
MODES = {-1: "unbatched", 0: "stock", 1: "tlb-rs"}
# One-sided 95 % quantile of Student's t, by degrees of freedom.
T95 = [None, 6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761]


def each_mode(job, rounds):
    """A job that runs `job` in each mode in turn; one that the kernel does not have is left out."""
    return (f"for i in $(seq {rounds}); do for m in -1 0 1; do "
            f"echo $m 2>/dev/null >/proc/sys/vm/tlb_batch || continue; {job} || exit 1; done; done")


def command(arch, variant, job, options):
    """What a reader can type to get the same records."""
    words = ["tools/tlb-rs", "guest", "boot", "--arch", arch, "--variant", variant]
    for key, value in options.items():
        if value == DEFAULTS.get(key) or key == "log" or not value:
            continue
        for one in value if isinstance(value, (list, tuple)) else [value]:
            words += [f"--{key}"] if one is True else [f"--{key}", str(one)]
    return shlex.join([*words, "--job", job])


def boot(context, arch, job, variant=None, **options):
    """(records, command, console); a guest that fails ends the suite, which goes on from there next time."""
    variant = variant or context.variant
    context.boots += 1
    log = context.out / "logs" / f"{context.suite}-{context.boots}-{arch}.log"
    log.parent.mkdir(exist_ok=True)
    options = {"timeout": 1800} | options
    if measure.APPEND[arch]:
        options["append"] = f"{measure.APPEND[arch]} {options.get('append', '')}".strip()
    text = command(arch, variant, job, options | {"kver": context.kver})
    print(f"  {text}", flush=True)
    done, key = log.with_suffix(".json"), hashlib.sha256(f"{context.key} {text}".encode()).hexdigest()
    if done.exists() and (old := json.loads(done.read_text(encoding="utf-8")))["key"] == key:
        return old["records"], text, old["console"]
    result = guest.boot(guest.kernel_path(arch, variant, context.kver), arch, job=job, log=log,
                        **options)
    if result.exit_status:
        raise SystemExit(f"{text}\n{result.report()}")
    common.store(done, {"key": key, "records": result.records, "console": result.console})
    return result.records, text, result.console


def samples(records, key=lambda r: r["region"]):
    """{key: {mode: [records]}} of the metered regions, in their order."""
    found = {}
    for record in records:
        if "region" in record:
            found.setdefault(key(record), {}).setdefault(record["tlb_batch"], []).append(record)
    return found


def value(record, name):
    """A count of one region: the meter's, or a counter of the kernel."""
    meter = record.get("meter") or {}
    return meter[name] if name in meter else record.get(name)


def each_unit(records, name, unit="units"):
    """Of each repetition a count divided by the record's units; nothing if one of them has no such count."""
    values = [value(r, name) for r in records]
    return [] if None in values else [v / max(r.get(unit) or 1, 1) for v, r in zip(values, records)]


def per_unit(records, name, unit="units", whole=1):
    """Median over the repetitions, times `whole`."""
    values = each_unit(records, name, unit)
    return statistics.median(values) * whole if values else None


def quartiles(values):
    if len(values) < 2:
        return values[0], values[0], values[0]
    return tuple(statistics.quantiles(values, n=4, method="inclusive"))


def ratios(old, new, what):
    """Of each repetition to its neighbour in the other mode."""
    return [what(b) / what(a) for a, b in zip(old, new) if what(a)]


def bound(values):
    """(geometric mean, upper 95 % bound) of ratios that scatter like their logarithms' normal."""
    logs = [math.log(v) for v in values]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return math.exp(mean), math.inf
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean + T95[min(len(logs) - 1, len(T95) - 1)] * error)
