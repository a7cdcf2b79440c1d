# SPDX-License-Identifier: GPL-2.0
"""The series as the CI of the mm tree runs it: built and booted by virtme-ng, without Rust, for the tree's own mm selftests.

usage: tlb-rs mmci [--mmci CHECKOUT] [--config FILE...] [--mem 16G] [--timeout S] [--kver K] [--kdir DIR] [TEST...]

Each script ksft_TEST.sh runs in a boot of its own, on this machine's architecture. CHECKOUT is one of github.com/linux-mm/mm-ci:
then the fragment and the list of tests are that CI's. Without it, the fragment is config/mmci.fragment, and the tests are all
that the Makefile of the tree lists. --config replaces the tree's defconfig, which takes long to build. As there, a test that is
skipped has passed, and a report of the kernel fails it. Without KVM a boot takes minutes; KVM=0 does not use what is there.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path

from tlbrs.guest import console, guest
from tlbrs.kernel import kernel, source, toolchain
from tlbrs.kernel.common import BUILD, ROOT, Fail, lock, logged, need_space, say, status

MM = "tools/testing/selftests/mm"
# Of a checkout.
FRAGMENT, LIST = ".github/kconfigs/mm-selftests.config", ".github/scripts/run-mm-selftests.sh"
SKIPPED, LATE = 4, (124, 137)
# With KVM as there.
SECONDS, EMULATED = 300, 1800
APPEND = "console=hvc0 loglevel=8 panic=-1 oops=panic printk.time=1"
# Two disks: swap, and the tests on a filesystem of their own, where files may be locked and written directly.
JOB = """mkswap -q /dev/vda && swapon /dev/vda
echo 4 > /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages
echo 0 > /proc/sys/kernel/randomize_va_space
mount /dev/vdb /mnt && mount -t tmpfs tmpfs /tmp && cd /mnt/mm || exit 1
./{test}
code=$?
echo "
tlb-rs: job exit $code"
exit $code"""


def need_vng():
    """virtme-ng has a package in new releases of Debian only."""
    toolchain.need(["kernel", "mmci"])
    if not shutil.which("vng"):
        how = "sudo apt-get install -y virtme-ng" if toolchain.candidate("virtme-ng") else "pipx install virtme-ng"
        raise Fail(f"no vng here, which is virtme-ng\n  {how}")


def tests(tree, checkout, names):
    """The scripts that are asked for, or those of that CI, or all of the tree."""
    here = re.findall(r"^TEST_PROGS \+= (ksft_\w+\.sh)$", (tree / MM / "Makefile").read_text(encoding="utf-8"), re.M)
    if names:
        asked = [name if name.startswith("ksft_") else f"ksft_{name}.sh" for name in names]
    elif checkout:
        asked = sorted(re.findall(r'^TESTS\["(ksft_\w+\.sh)"\]', (checkout / LIST).read_text(encoding="utf-8"), re.M))
    else:
        asked = here
    if absent := [name for name in asked if name not in here]:
        raise Fail(f"no {', '.join(absent)} in {MM}; there are {' '.join(n[5:-3] for n in here)}")
    if not asked:
        raise Fail(f"no tests in {checkout / LIST if checkout else MM}")
    return asked


def fragments(tree, checkout):
    """What is added to the configuration: theirs or ours, then the tree's own, as there."""
    if checkout and not (checkout / FRAGMENT).is_file():
        raise Fail(f"MMCI={checkout}: no {FRAGMENT}: name a checkout of github.com/linux-mm/mm-ci")
    return [checkout / FRAGMENT if checkout else ROOT / "config/mmci.fragment", tree / MM / "config"]


def environment():
    """Of this shell, without what a kernel build must not see: gcc is the compiler, as there."""
    return {k: v for k, v in os.environ.items() if k not in kernel.PRIVATE} | {"LC_ALL": "C"}


def build(tree, out, frags, base):
    """The kernel and its modules; raises Fail."""
    env, place = environment(), f"O={out}"
    out.mkdir(parents=True, exist_ok=True)
    (out / ".config").unlink(missing_ok=True)
    custom = [word for f in (*base[1:], *frags) for word in ("--custom", f)]
    if base:
        shutil.copy(base[0], out / ".config")
    else:
        need_space(out, 10, "a kernel with what its defconfig has")
    logged(["virtme-configkernel", "--update" if base else "--defconfig", *custom, place], out / "config.log",
           f"configuring {out.name}", cwd=tree, env=env)
    has_rust = re.compile(r"^CONFIG_RUST=y$", re.M)
    if has_rust.search((out / ".config").read_text(encoding="utf-8")) and \
            not any(has_rust.search(f.read_text(encoding="utf-8")) for f in frags):
        raise Fail(f"{out}/.config has CONFIG_RUST, for which no fragment of that CI asks: leave it out of CONFIG=")
    logged(["vng", "--verbose", "--build", place], out / "build.log", f"building {out.name}", kernel.OBJECT, cwd=tree, env=env)
    found = re.findall(r"(?m)^.*\bwarning: .*$", (out / "build.log").read_text(encoding="utf-8", errors="replace"))
    if ours := [line for line in found if "override:" not in line]:
        raise Fail(f"the build warns:\n{ours[0]}\n  whole log: {out}/build.log")


def selftests(tree, out):
    """An image with them, as they are installed."""
    place = out / "kselftest-image"
    shutil.rmtree(place, ignore_errors=True)
    logged(["make", "-C", tree, f"O={out}", "TARGETS=mm", f"INSTALL_PATH={place}", kernel.JOBS, "kselftest-install"],
           out / "selftests.log", "building the mm selftests", env=environment())
    if not any((place / "mm").glob("ksft_*.sh")):
        raise Fail(f"no selftests were installed: {out}/selftests.log")
    return guest.make_disk(out / "selftests.img", "2G", str(place))


def memory(text):
    """Bytes; raises Fail if it is more than this machine has, for a guest that would be killed tells nothing."""
    wanted, there = guest.size(text), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if wanted > there:
        raise Fail(f"MEM={text}, but this machine has {there >> 30} GiB: make mmci MEM={max(there >> 31, 2)}G")
    return wanted


def has_kvm():
    """KVM=0: not although /dev/kvm is there, as in a virtual machine whose host does not let guests use it."""
    return os.environ.get("KVM", "1") != "0" and os.access("/dev/kvm", os.R_OK | os.W_OK)


def command(out, log, test, mem, seconds):
    """What runs one test: as there, but for the drives."""
    half = f"{mem >> 21}M"
    drives = " ".join(f"-drive file={out}/{name},if=virtio,format=raw" for name in ("swap.img", "selftests.img"))
    serial = (f"-device virtio-serial-pci,id=vcon -chardev file,id=conlog,path={log} "
              "-device virtconsole,chardev=conlog,bus=vcon.0")
    return ["timeout", "-k", "5", seconds, "vng", "--cpus", 4, "--memory", f"{mem >> 20}M", "--numa", half, "--numa", half,
            *([] if has_kvm() else ["--disable-kvm"]),
            f"--qemu-opts={drives} -no-reboot {serial}", f"--append={APPEND}", f"--exec={JOB.format(test=test)}", f"O={out}"]


def verdict(code, text, said=""):
    """(whether it passed, why not or what else there is to say) of vng's status, the kernel's messages and the output.

    vng gives 255 instead of the script's status where its own port for that is not there.
    """
    if splats := console.splats(text):
        return False, f"kernel report: {splats[0].splitlines()[0]}"
    if code in LATE:
        return False, "timeout"
    if not text:
        return False, "the kernel said nothing"
    if (ended := console.job_exit(said)) is None:
        return False, f"the script did not end, and vng ended with status {code}"
    return ended in (0, SKIPPED), {0: "", SKIPPED: "SKIP"}.get(ended, f"status {ended}")


def run(tree, out, test, mem, seconds):
    """One boot; its output and the kernel's are in two logs."""
    log, kernel_log = out / f"{test}.log", out / f"{test}-kernel.log"
    kernel_log.write_text("", encoding="ascii")
    with open(out / "swap.img", "wb") as swap:
        swap.truncate(2 << 30)
    begin = time.monotonic()
    with open(log, "wb") as said:
        code = status(command(out, kernel_log, test, mem, seconds), cwd=tree, stdin=subprocess.DEVNULL, stdout=said,
                      stderr=subprocess.STDOUT, env=environment())
    ok, why = verdict(code, *(f.read_text(encoding="utf-8", errors="replace") for f in (kernel_log, log)))
    return ok, why, time.monotonic() - begin


def mmci(a):
    checkout = Path(a.mmci).resolve() if a.mmci else None
    base = [Path(f).resolve() for f in a.config or []]
    if absent := [f for f in base if not f.is_file()]:
        raise Fail(f"CONFIG={absent[0]}: no such file")
    mem = memory(a.mem)
    need_vng()
    with lock(BUILD / "lock", "kernel build"):
        name, stock, ident = kernel.base_tree(a.kver, a.kdir)
        tree = kernel.patched_tree(name, stock, ident).path
        frags, chosen = fragments(tree, checkout), tests(tree, checkout, a.test)
        out = BUILD / name / f"{kernel.HOST_ARCH.get(os.uname().machine, os.uname().machine)}-mmci"
        build(tree, out, frags, base)
        selftests(tree, out)
    seconds = a.timeout or (SECONDS if has_kvm() else EMULATED)
    say(f"{len(chosen)} tests, up to {seconds} s each; logs: {out}/ksft_*.log")
    print(f"TAP version 13\n1..{len(chosen)}", flush=True)
    bad = []
    for number, test in enumerate(chosen, 1):
        ok, why, took = run(tree, out, test, mem, seconds)
        bad += [] if ok else [test]
        print(f"{'ok' if ok else 'not ok'} {number} {test} # {why + ', ' if why else ''}{took:.0f} s", flush=True)
    say(f"{len(chosen) - len(bad)} passed, {len(bad)} failed" + (f": {shlex.join(bad)}" if bad else ""))
    return 1 if bad else 0


def cli():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("test", nargs="*")
    for name in ("kdir", "mmci"):
        p.add_argument(f"--{name}", type=os.path.expanduser)
    p.add_argument("--config", nargs="+", type=os.path.expanduser)
    p.add_argument("--kver", default=source.KVERS[0])
    p.add_argument("--mem", default="16G")
    p.add_argument("--timeout", type=int)
    a = p.parse_args()
    source.check(a.kver)
    if a.kdir:
        kernel.stock_kdir(a.kdir)
    return mmci(a)
