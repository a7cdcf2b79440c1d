# SPDX-License-Identifier: GPL-2.0
"""What tests of tlbstat share: canned files, and the program under AddressSanitizer where the compiler has it."""

import os
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = os.sysconf("SC_PAGESIZE")
BOOT = "3b40599b-2a73-49aa-a8ee-0c4b35442be9"

STOCK = {
    "proc/vmstat": "nr_free_pages 488721\nnr_memmap_pages 0\nnr_memmap_boot_pages 2048\npgmigrate_success 7000\n"
                   "numa_pages_migrated 900\nthp_migration_success 3\nthp_split_page 2\n"
                   "compact_stall 40\nthp_fault_fallback 30\n",
    "proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500999\n"
                            "full avg10=0.00 avg60=0.00 avg300=0.00 total=2100\n",
    "proc/interrupts": "            CPU0       CPU1\n  11:       1119       1027  GICv3  27 Level     arch_timer\n"
                       "IPI0:         10         18  Rescheduling interrupts\n Err:          0\n",
    "proc/uptime": "100.00 180.00\n",
    "proc/sys/kernel/arch": "aarch64\n",
    "proc/sys/kernel/osrelease": "7.3.4\n",
    "proc/sys/kernel/random/boot_id": BOOT + "\n",
    "sys/kernel/mm/transparent_hugepage/hpage_pmd_size": f"{512 * PAGE}\n",
    "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "100\n",
    "sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages": "2\n",
    "sys/kernel/mm/hugepages/hugepages-64kB/nr_hugepages": "5\n",
}
# The memory blocks need as many pages of struct pages as are there.
STOCK |= {f"sys/devices/system/memory/memory{i}/online": "1\n" for i in range(4)}
STOCK["sys/devices/system/memory/block_size_bytes"] = f"{2048 // 4 * PAGE // 64 * PAGE:x}\n"

TLB_RS = STOCK | {
    "proc/vmstat": STOCK["proc/vmstat"].replace("boot_pages 2048", "boot_pages 1000") +
                   "migrc_held 77\ntlb_batch_pages 3072\ntlb_batch_ranges 6\ntlb_batch_flush 5\ntlb_batch_overflow 0\n"
                   "tlb_batch_restored 512\nmigrc_deferred 3000\nmigrc_deferred_demote 1000\nmigrc_denied 2048\n"
                   "migrc_flush 4\nmigrc_drain_age 3\n"
                   "cpu_pause 10\ncpu_pause_cancelled 9\ncpu_pause_fallback 1\nhvo_pte_updates 4096\nhvo_flush 2\nhvo_young 5\n",
    "proc/sys/vm/tlb_batch": "1\n",
    "proc/sys/vm/hugetlb_optimize_vmemmap": "1\n",
    "sys/kernel/debug/tlb_batch/stats": "reason ranges pages\nrmap_end 2 72\nflush 4 3000\nrestore 32 512\n",
    "sys/kernel/debug/migrc/stats": "denied reason 48\ndenied writable 2000\ndrain age 3 2048\ndrain off 1 1024\n"
                                    "hook range 2\nage 64 0\nage 128 1024\nage 256 1024\nage 512 0\n"
                                    "readmostly protected 11\n",
    "sys/kernel/debug/hvo/stats": "split 4 8\noptimize 6 4088\nrestore 2 16\ncancelled 9\nmax_ns 30500\nbelow_us 16 7\n"
                                  "below_us 32 3\nbelow_us 64 0\n",
}
# Ten seconds later.
LATER = TLB_RS | {
    "proc/uptime": "110.00 190.00\n",
    "proc/vmstat": TLB_RS["proc/vmstat"].replace("tlb_batch_pages 3072", "tlb_batch_pages 8192")
                                        .replace("tlb_batch_ranges 6", "tlb_batch_ranges 16")
                                        .replace("migrc_deferred_demote 1000", "migrc_deferred_demote 1200")
                                        .replace("migrc_denied 2048", "migrc_denied 2148")
                                        .replace("migrc_flush 4", "migrc_flush 3"),
    "sys/kernel/debug/migrc/stats": TLB_RS["sys/kernel/debug/migrc/stats"].replace("reason 48", "reason 138")
                                    .replace("writable 2000", "writable 2010").replace("age 64 0", "age 64 1"),
}


# tracefs fills an instance when it is made: here with what the test has prepared.
MKDIR = """
#include <stdio.h>
#include <stdlib.h>

#include <errno.h>
#include <stdarg.h>
#include <sys/syscall.h>

int __real_mkdir(const char *name, unsigned int mode);
long __real_syscall(long number, ...);

int __wrap_mkdir(const char *name, unsigned int mode)
{
	const char *filled = getenv("TRACE_INSTANCE");

	return filled ? rename(filled, name) : __real_mkdir(name, mode);
}

/* perf_event_open() of a kernel, or for a user, that does not allow it. */
long __wrap_syscall(long number, ...)
{
	const char *failed = getenv("PERF_ERRNO");
	long a[6];
	va_list ap;

	va_start(ap, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(ap, long);
	va_end(ap);
	/* A machine that counts no cycles. */
	if (getenv("NO_PMU") && number == SYS_perf_event_open && !*(int *)a[0]) {
		errno = ENOENT;
		return -1;
	}
	if (failed && number == SYS_perf_event_open) {
		errno = atoi(failed);
		return -1;
	}
	return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
"""


def write(root, files):
    shutil.rmtree(root, ignore_errors=True)
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Ignored where make test is a background job, or under nohup, and then by tlbstat, too.
        for sig in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            if signal.getsignal(sig) == signal.SIG_IGN:
                signal.signal(sig, signal.SIG_DFL)
        cls.holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.holder.cleanup)
        cls.tmp = Path(cls.holder.name)
        cls.tmp.chmod(0o755)
        (cls.tmp / "mkdir.c").write_text(MKDIR)
        make = ["make", "-s", "-C", HERE, f"O={cls.tmp}"]
        wrap = f"-Wl,--wrap=mkdir,--wrap=syscall {cls.tmp}/mkdir.c"
        sanitize = "-fsanitize=address,undefined -fno-sanitize-recover=all"
        if subprocess.run([*make, f"LDFLAGS={sanitize} {wrap}"], check=False, capture_output=True).returncode:
            subprocess.run([*make, f"LDFLAGS=-static {wrap}"], check=True)
        cls.env = {"PATH": os.environ["PATH"], "ASAN_OPTIONS": "detect_leaks=0"}

    def setUp(self):
        self.root = write(self.tmp / "root", TLB_RS)

    def run_it(self, *words, status=0, root=None, quiet=True, **more):
        words = [str(word) for word in words]
        if words[0] != "report":
            words[words[0] in ("record", "doctor", "ab", "price"):0] = ["--root", str(root or self.root)]
        p = subprocess.run([self.tmp / "tlbstat", *words], text=True, capture_output=True, check=False, timeout=60,
                           env=self.env | more.pop("env", {}), cwd=self.tmp, **more)
        self.assertEqual(p.returncode, status, (words, p.stdout[-500:], p.stderr))
        if status == 0 and quiet:
            self.assertEqual(p.stderr, "")
        return p
