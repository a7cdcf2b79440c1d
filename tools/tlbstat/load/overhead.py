#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""overhead.py TLBSTAT TLB_LOAD PAIRS COMMAND...: what tlbstat COMMAND costs a load with 100,000 flushes a second

The load counts its rounds in a second of CPU time, in which interrupts are, too, so that it does not matter who else
uses the machine. It runs without, with, with, without the command, each for two seconds. The CPU time of tlbstat
itself is printed, too, as a part of the machine.
"""

import json
import os
import resource
import statistics
import subprocess
import sys

SLICES = 4


def rate(lines, skip=1):
    """Rounds in a second of CPU time. What was under way when it began is left out."""
    got = [json.loads(lines.readline()) for _ in range(skip + SLICES)][skip - 1:]
    return (got[-1]["rounds"] - got[0]["rounds"]) / (got[-1]["cpu_s"] - got[0]["cpu_s"]), SLICES / 2


def main():
    tlbstat, load, pairs, *command = sys.argv[1:]
    # Before others that want this CPU.
    p = subprocess.Popen([load, "rate", "100000"], stdout=subprocess.PIPE, text=True,
                         preexec_fn=lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
    differences, own, rates = [], [], []

    def without():
        return rate(p.stdout, 2)[0]

    def with_it():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        q = subprocess.Popen([tlbstat, *command], stdout=subprocess.DEVNULL)
        # Symbols are read first.
        got, _ = rate(p.stdout, 3)
        q.terminate()
        q.wait()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        own.append((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / (SLICES + 3) * 2 / os.cpu_count())
        return got

    try:
        for i in range(int(pairs)):
            a, b = (without(), with_it()) if i % 2 == 0 else reversed((with_it(), without()))
            rates.append(a)
            differences.append(100 * (1 - b / a))
    finally:
        p.kill()
    low, middle, high = statistics.quantiles(differences, n=4, method="inclusive")
    print(f"{statistics.median(rates):.0f} flushes in a second of CPU time; with it {middle:.2f} % fewer ({low:.2f} to {high:.2f}),"
          f" {pairs} pairs; its own CPU time is {100 * statistics.median(own):.2f} % of the machine")


if __name__ == "__main__":
    main()
