# SPDX-License-Identifier: GPL-2.0
"""Self-test of the TLB meter: bare-metal images whose counts are known.

Prints KTAP; exits 0 only if every test passes. `make check` builds what this
needs and runs it.
"""

import argparse
import functools
import json
import pathlib
import re
import subprocess
import tempfile
import unittest

from tlbrs.guest import guest
from tlbrs.kernel import toolchain
from tlbrs.kernel.common import ROOT

OUT = ROOT / "build/meter"
WORK = None     # a temporary directory, set by main()

ARCHES = {
    "arm64": {
        "clang": ["--target=aarch64-none-elf", "-march=armv8.5-a"],
        "link": ["--image-base=0x40200000", "-Ttext=0x40202000"],
        "qemu": ["qemu-system-aarch64", "-M", "virt,gic-version=3",
                 "-cpu", "max,pauth-impdef=on"],
        "exit": 0,
        "va": 0x80000000, "frame_a": 0x44000000, "linear": 0xffff000000000000,
        "mc": ["-triple=aarch64", "-mattr=+v8.5a,+xs,+tlb-rmi,+el3,+el2vmsa"],
    },
    "x86_64": {
        "clang": ["--target=i386-none-elf"],
        "link": ["-m", "elf_i386", "--image-base=0x100000", "-Ttext=0x101000"],
        "qemu": ["qemu-system-x86_64", "-M", "q35", "-cpu", "max",
                 "-device", "isa-debug-exit,iobase=0xf4,iosize=4"],
        "exit": 33,     # isa-debug-exit: 2 * 0x10 + 1; a triple fault gives 0
        "va": 0x40000000, "frame_a": 0x2000000, "linear": 0xffff800000000000,
        "mc": ["-triple=x86_64"],
    },
}

# The n-th region that a TEST_COUNTS image starts. Counters not named are 0.
COUNTS = {
    "arm64": [
        {"tlbi": 18, "tlbi_va": 7, "tlbi_range": 3, "tlbi_asid": 3, "tlbi_all": 5,
         "insns_user": 18},
        {"dsb_ishst": 101, "dsb_ish": 100, "dsb_other": 4, "sgi": 3, "task_switch": 2,
         "insns_user": 516},
        {"insns_user": 2003},
        {"insns_user": 2, "insns_kernel": 42},
        {"tlbi": 3, "tlbi_va": 3, "insns_user": 5},
        {"tlbi": 2, "tlbi_va": 2, "insns_user": 2},
    ],
    "x86_64": [
        {"invlpg": 5, "mov_cr3": 3, "insns_user": 16},
        {"icr_write": 4, "insns_user": 9},
        {"insns_user": 2003},
        {"insns_user": 2, "insns_kernel": 42},
        {"invlpg": 3, "insns_user": 5},
        {"invlpg": 2, "insns_user": 2},
    ],
}
SMP = {
    "arm64": {"tlbi": 600, "tlbi_va": 400, "tlbi_asid": 200, "dsb_ishst": 200,
              "dsb_ish": 200, "sgi": 200},
    "x86_64": {"invlpg": 400, "mov_cr3": 200, "icr_write": 200},
}
COUNTERS = {
    "arm64": ["tlbi", "tlbi_va", "tlbi_range", "tlbi_asid", "tlbi_all",
              "dsb_ishst", "dsb_ish", "dsb_other", "sgi", "task_switch"],
    "x86_64": ["invlpg", "invpcid", "mov_cr3", "icr_write"],
}

# TEST_* image: declares, and per error: offset into the page under test (from
# its start), offset into frame A, store?, state.
ORACLE = {
    "STALE": (1, [(0x128, 0x128, False, "FREE")]),
    "FLUSHED": (1, []),
    "OWNED": (1, [(0x10, 0x10, True, "OWNED"), (0x10, 0x10, True, "OWNED")]),
    "LIVE": (2, [(0x40, 0x3040, False, "FREE")]),
    # None: an atomic update. With one vCPU QEMU makes it a load and a store, a new one always.
    "FORMS": (1, [(0x20, 0x20, False, "FREE"), (0, 0, None, "FREE"),
                  (0x30, 0x30, False, "FREE"), (0x1000, 0, False, "FREE")]),
    "SPLIT": (1, [(0, 0, False, "FREE")]),
}

DECODE = {
    "arm64": {
        "tlbi_va": """tlbi vae1, x1; tlbi vae1is, x2; tlbi vae1os, x3; tlbi vaae1is, x30;
            tlbi vale1is, x1; tlbi vaale1is, x1; tlbi vaale1, x1; tlbi vale1os, x1;
            tlbi vae2is, x1; tlbi vale2, x1; tlbi vae3is, x1; tlbi ipas2e1is, x1;
            tlbi ipas2le1, x1; tlbi ipas2e1os, x1; tlbi vae1isnxs, x1; tlbi vaale1osnxs, x1""",
        "tlbi_range": """tlbi rvae1, x1; tlbi rvae1is, x1; tlbi rvaae1is, x1; tlbi rvale1is, x1;
            tlbi rvaale1is, x1; tlbi rvale1os, x1; tlbi rvae2is, x1; tlbi ripas2e1is, x1;
            tlbi ripas2le1os, x1; tlbi ripas2e1, x1; tlbi rvae1isnxs, x1""",
        "tlbi_asid": "tlbi aside1, x1; tlbi aside1is, x1; tlbi aside1os, x1; tlbi aside1isnxs, x1",
        "tlbi_all": """tlbi vmalle1; tlbi vmalle1is; tlbi vmalle1os; tlbi alle1is; tlbi alle2;
            tlbi alle3is; tlbi vmalls12e1is; tlbi vmalle1isnxs""",
        "dsb_ishst": "dsb ishst",
        "dsb_ish": "dsb ish",
        "dsb_other": """dsb sy; dsb st; dsb ld; dsb ishld; dsb nsh; dsb nshst; dsb osh;
            dsb oshst; dsb ishnxs; dsb synxs""",
        "sgi": "msr icc_sgi1r_el1, x0; msr icc_sgi0r_el1, x1; msr icc_asgi1r_el1, x30",
        "task_switch": "msr sp_el0, x1",
        "start": "hint #100", "stop": "hint #101",
        "owned": "hint #102", "free": "hint #103", "live": "hint #104",
        "other": """nop; hint #99; hint #105; isb; dmb ish; dmb ishst; ssbb; pssbb; sb; clrex;
            at s1e1r, x0; dc zva, x0; dc civac, x0; ic iallu; ic ivau, x0;
            msr icc_dir_el1, x0; msr icc_pmr_el1, x0; mrs x0, icc_iar1_el1;
            msr icc_eoir1_el1, x0; msr sp_el0, x28; msr sp_el0, x23; mrs x1, sp_el0; msr ttbr0_el1, x0; mrs x1, ttbr1_el1; ldr x0, [x1]; ret""",
    },
    "x86_64": {
        "invlpg": """invlpg (%rax); invlpg (%r12); invlpg 0x10(%rsp,%r9,8); invlpg %gs:(%rdi);
            invlpg 0x1000; invlpg (%eax)""",
        "invpcid": """invpcid (%rax), %rbx; invpcid (%rsp), %r10; invpcid 8(%r13,%r14), %r8;
            invpcid %fs:(%rdi), %rsi""",
        "mov_cr3": "mov %rax, %cr3; mov %r15, %cr3; mov %rdi, %cr3",
        "start": "nopl 0x746c6201(%rax)", "stop": "nopl 0x746c6202(%rax)",
        "owned": "nopl 0x746c6203(%rax)", "free": "nopl 0x746c6204(%rax)",
        "live": "nopl 0x746c6205(%rax)",
        "store32": """movl %eax, 0x300(%rbx); movl %esi, -0xa03000(%rdi); movl $1, (%r8);
            xchgl %edi, (%rax); movl %r9d, 0xffffffffff5fd300""",
        "other": """nop; nopl (%rax); nopl 0x746c6200(%rax); nopl 0x746c6206(%rax);
            nopl 0x746c6201(%rcx); nopl 0x746c6301(%rax); nopw 0x746c6201(%rax);
            mov %cr3, %rax; mov %rax, %cr0; mov %rax, %cr4; mov %rax, %cr8; mov %rax, %db3;
            swapgs; sgdt (%rax); lidt (%rax); lmsw %ax; rdtscp; xgetbv;
            movl (%rbx), %eax; movq %rax, 0x300(%rbx); movw %ax, 0x300(%rbx);
            movb %al, (%rbx); movl %eax, %ebx; xchgl %eax, %ebx; movq $1, (%rax);
            pshufb (%rax), %xmm1; invept (%rax), %rbx; invvpid (%rax), %rbx;
            crc32l (%rax), %ebx; wrmsr; ret; push %rax; clflush (%rax)""",
    },
}


tool = functools.cache(toolchain.llvm_tool)


def run(argv, **kw):
    return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False, **kw)


def build(arch, test):
    """Assembles and links an image; returns its path."""
    conf = ARCHES[arch]
    image = WORK / f"{arch}-{test}.elf"
    if not image.exists():
        obj = image.with_suffix(".o")
        subprocess.run([tool("clang"), *conf["clang"], "-DTEST_" + test, "-c",
                        ROOT / "tools/meter/tests" / f"{arch}.S", "-o", obj], check=True)
        subprocess.run([tool("ld.lld"), *conf["link"], "-z", "max-page-size=4096",
                        "-e", "_start", "-o", image, obj], check=True)
    return image


def symbols(image):
    listing = subprocess.run([tool("llvm-nm"), image], capture_output=True, text=True,
                             check=True).stdout
    return {f[2]: int(f[0], 16) for f in map(str.split, listing.splitlines())}


@functools.cache
def is_new(arch):
    """What differs between QEMU 7.2 and 10.0 is taken to have come with 8.1, as the other option below."""
    return guest.qemu_version(ARCHES[arch]["qemu"][0]) >= (8, 1)


def one_insn_per_tb(arch):
    return ["-accel", "tcg,one-insn-per-tb=on"] if is_new(arch) else ["-singlestep"]


def boot(arch, image, *qemu_args, plugin=""):
    """Runs an image under the meter; returns QEMU's result and the meter's lines."""
    conf = ARCHES[arch]
    out = WORK / "meter.jsonl"
    out.unlink(missing_ok=True)
    res = run([*conf["qemu"], "-m", "128M", "-display", "none", "-monitor", "none",
               "-serial", "none", "-no-reboot", "-kernel", str(image),
               "-plugin", f"{OUT / 'tlb_meter.so'},out={out}{plugin}", *qemu_args])
    lines = [json.loads(x) for x in out.read_text().splitlines()] if out.exists() else []
    return res, lines


class Meter(unittest.TestCase):
    maxDiff = None

    def boot_ok(self, arch, test, *qemu_args, plugin=""):
        image = build(arch, test)
        res, lines = boot(arch, image, *qemu_args, plugin=plugin)
        self.assertEqual((res.returncode, res.stderr), (ARCHES[arch]["exit"], ""))
        return image, lines

    def decode(self, arch):
        insns = [(c, i.strip()) for c, text in DECODE[arch].items() for i in text.split(";")]
        res = run([tool("llvm-mc"), *ARCHES[arch]["mc"], "--show-encoding"],
                  input="\n".join(i for _, i in insns) + "\n")
        self.assertEqual((res.returncode, res.stderr), (0, ""))
        codes = re.findall(r"encoding: \[(.*)\]", res.stdout)
        self.assertEqual(len(codes), len(insns))
        hexes = "\n".join(c.replace(",", " ") for c in codes) + "\n"
        res = run([OUT / "decode_test", arch], input=hexes)
        self.assertEqual(res.returncode, 0)
        got = [(c, i) for c, (_, i) in zip(res.stdout.split(), insns, strict=True)]
        self.assertEqual(got, insns)

    def counts(self, arch, *qemu_args, plugin=""):
        zero = {c: 0 for c in COUNTERS[arch] + ["insns_kernel", "insns_user"]}
        want = []
        for i, region in enumerate(COUNTS[arch]):
            line = {"region": i, **zero, **region}
            line["insns"] = [line["insns_kernel"] + line["insns_user"]]
            want.append(line)
        # Of two nested regions the inner one ends first.
        want[4:] = reversed(want[4:])
        want += [{"meter_error": "stop marker without a region"},
                 {"meter_error": "region 6 was not stopped"}]
        _, lines = self.boot_ok(arch, "COUNTS", *qemu_args, plugin=plugin)
        if plugin:
            self.assertEqual(lines.pop().keys(), {"oracle_summary"})
        for line, exact in zip(lines, want):
            # A block is left at a store to a device, and goes on as another one.
            if is_new(arch) and exact.get("icr_write") and "tcg,one-insn-per-tb=on" not in qemu_args:
                self.assertGreaterEqual(line["insns_user"], exact["insns_user"])
                line |= {key: exact[key] for key in ("insns_user", "insns")}
        self.assertEqual(lines, want)

    def smp(self, arch):
        _, lines = self.boot_ok(arch, "SMP", "-smp", "2", "-accel", "tcg,thread=multi")
        self.assertEqual(len(lines), 1)
        line = lines[0]
        self.assertEqual({c: line[c] for c in COUNTERS[arch]},
                         {**{c: 0 for c in COUNTERS[arch]}, **SMP[arch]})
        self.assertEqual(len(line["insns"]), 2)
        # At least its 200 rounds of 4 instructions or more.
        self.assertGreater(min(line["insns"]), 800)
        self.assertEqual(sum(line["insns"]), line["insns_user"] + line["insns_kernel"])

    def oracle(self, arch, test, *qemu_args, plugin="", errors=None):
        conf = ARCHES[arch]
        declares, usual = ORACLE[test]
        errors = usual if errors is None else errors
        image, lines = self.boot_ok(arch, test, *qemu_args, plugin=",oracle=on" + plugin)
        syms = symbols(image)
        want = [{"oracle": "stale", "vcpu": 0, "pc": hex(syms[f"bad{n}"]),
                 "va": hex(conf["va"] + va), "pa": hex(conf["frame_a"] + pa),
                 "linear": hex(conf["linear"] + conf["frame_a"] + pa),
                 "store": "2" in qemu_args and not is_new(arch) if store is None else store,
                 "state": state}
                for n, (va, pa, store, state) in enumerate(errors, 1)]
        summary = lines.pop()["oracle_summary"]
        self.assertEqual(lines, want)
        self.assertEqual((summary["declares"], summary["distinct"], summary["lost_declares"]),
                         (declares, len(errors), 0))
        self.assertGreaterEqual(summary["errors"], len(errors))
        # Building the page tables takes 10 user-half accesses.
        self.assertGreater(summary["accesses"], 9)

    def nodes(self, arch, order):
        args = ["-m", "256M"]
        for node in order:
            args += ["-object", f"memory-backend-ram,id=m{node},size=128M"]
        for node in range(2):
            args += ["-numa", f"node,nodeid={node},memdev=m{node}"]
        _, lines = self.boot_ok(arch, "NODES", *args, plugin=",oracle=on")
        summary = lines.pop()["oracle_summary"]
        self.assertEqual((summary["declares"], summary["lost_declares"]), (3, 0))
        want = [{"meter_error": "memory blocks overlap: create them in node order"}]
        # The new one gives the guest's physical addresses, which do not depend on it.
        self.assertEqual(lines, [] if order == sorted(order) or is_new(arch) else want)

    def arguments(self, arch):
        image = build(arch, "COUNTS")
        for bad in (",oracle=maybe", ",page_shift=13", ",colour=red"):
            res, _ = boot(arch, image, plugin=bad)
            self.assertEqual(res.returncode, 1)
            self.assertIn("tlb_meter: bad argument", res.stderr)


def cases():
    for arch in ARCHES:
        yield f"{arch} decoder", lambda t, a=arch: t.decode(a)
        yield f"{arch} counts", lambda t, a=arch: t.counts(a)
        yield f"{arch} counts, again", lambda t, a=arch: t.counts(a)
        yield f"{arch} counts, one instruction per block", \
            lambda t, a=arch: t.counts(a, *one_insn_per_tb(a))
        yield f"{arch} counts, oracle on", lambda t, a=arch: t.counts(a, plugin=",oracle=on")
        yield f"{arch} counts of 2 vCPUs", lambda t, a=arch: t.smp(a)
        yield f"{arch} counts of 2 vCPUs, again", lambda t, a=arch: t.smp(a)
        for test in ORACLE:
            yield f"{arch} oracle {test.lower()}", lambda t, a=arch, n=test: t.oracle(a, n)
            yield f"{arch} oracle {test.lower()}, one instruction per block", \
                lambda t, a=arch, n=test: t.oracle(a, n, *one_insn_per_tb(a))
            yield f"{arch} oracle {test.lower()}, 2 vCPUs", \
                lambda t, a=arch, n=test: t.oracle(a, n, "-smp", "2")
        # 4 frames of 16 KiB freed, 2 live again: they cover all that is accessed.
        yield f"{arch} oracle live, 16 KiB frames", \
            lambda t, a=arch: t.oracle(a, "LIVE", plugin=",page_shift=14", errors=[])
        yield f"{arch} oracle, memory nodes", lambda t, a=arch: t.nodes(a, [0, 1])
        yield f"{arch} oracle, memory nodes out of order", lambda t, a=arch: t.nodes(a, [1, 0])
        yield f"{arch} bad arguments", lambda t, a=arch: t.arguments(a)


def main():
    global OUT, WORK
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=OUT, help="where the plugin is")
    OUT = parser.parse_args().out.resolve()

    tests = list(cases())
    failed = 0
    print("KTAP version 1")
    print(f"1..{len(tests)}")
    with tempfile.TemporaryDirectory(prefix="tlb-meter-") as tmp:
        WORK = pathlib.Path(tmp)
        for n, (name, func) in enumerate(tests, 1):
            test = Meter()
            try:
                func(test)
                print(f"ok {n} {name}", flush=True)
            except (AssertionError, OSError, ValueError, KeyError, IndexError,
                    subprocess.SubprocessError) as err:
                failed += 1
                for line in f"{type(err).__name__}: {err}".splitlines():
                    print(f"# {line}")
                print(f"not ok {n} {name}", flush=True)
    print(f"# {len(tests) - failed} passed, {failed} failed")
    return 1 if failed else 0
