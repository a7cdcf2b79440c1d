# SPDX-License-Identifier: GPL-2.0
"""Boots a kernel in QEMU (TCG), runs a job in it and returns the results.

    tlb-rs guest boot --arch arm64 --kernel Image --job 'tlb_batch_thp_split --thps 32' --meter
    tlb-rs guest boot --arch x86_64 --initrd any.cpio    a user's own initramfs
    tlb-rs guest shell --arch arm64                      busybox on the console
    tlb-rs guest programs --arch arm64                   compile the guest programs

Exit status: 0 powered off, job 0, no kernel report; 1 the job or the run
failed; 2 a kernel report (WARNING, BUG, panic, ...); 3 timeout; 4 no QEMU;
5 the stale-translation oracle fired.
"""

import argparse
import array
import dataclasses
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tlbrs.guest import console as con, initramfs
from tlbrs.guest.initramfs import ARCHES, ROOT, GuestError, apt_command

OK, FAILED, SPLAT, TIMEOUT, NO_QEMU, ORACLE = range(6)

QEMU = {"arm64": ("qemu-system-aarch64", "qemu-system-arm"),
        "x86_64": ("qemu-system-x86_64", "qemu-system-x86")}
MACHINE = {"arm64": "virt,gic-version={gic}", "x86_64": "q35"}
BLOCK = {"arm64": "virtio-blk-device", "x86_64": "virtio-blk-pci"}
# no_timer_check: on a loaded machine the emulated PIT fails the check.
CONSOLE = {"arm64": "console=ttyAMA0 earlycon",
           "x86_64": "console=ttyS0 earlyprintk=ttyS0 no_timer_check"}
# A panic or an oops ends QEMU (with -no-reboot); kernel lines have timestamps.
ARGUMENTS = "panic=-1 oops=panic printk.time=1"
METER = ROOT / "build/meter/tlb_meter.so"
METER_COMMAND = "make -C tools/meter"
POWEROFF_SECONDS = 30       # from "job exit" or a panic to QEMU's end
TAIL = 30
MIB = 1 << 20
# The filesystems of a disk: program, package, options.
MKFS = {"ext4": ("mke2fs", "e2fsprogs", ("-q", "-F", "-t", "ext4", "-E", "root_owner=0:0")),
        "xfs": ("mkfs.xfs", "xfsprogs", ("-q", "-f")),
        "btrfs": ("mkfs.btrfs", "btrfs-progs", ("-q", "-f")),
        "erofs": ("mkfs.erofs", "erofs-utils", ("image", "tree")),
        "squashfs": ("mksquashfs", "squashfs-tools", ("tree", "image", "-noappend", "-no-progress"))}
READ_ONLY = ("erofs", "squashfs")
# What these have: 64 pages of up to 64 KiB of words that count up, for migrc_file.
IMAGE_FILE, IMAGE_WORDS = "migrc_image", 64 * (64 << 10) // 8


@dataclasses.dataclass
class Result:
    """What a boot brought; exit_status as in the module's description."""
    exit_status: int = FAILED
    console: str = ""
    records: list = dataclasses.field(default_factory=list)
    ktap: list = dataclasses.field(default_factory=list)
    splats: list = dataclasses.field(default_factory=list)
    oracle_errors: list = dataclasses.field(default_factory=list)
    oracle_summary: dict = None
    problems: list = dataclasses.field(default_factory=list)    # any other reason to fail
    job_exit: int = None        # None: the job did not end
    timed_out: bool = False
    shutdown: str = None        # QEMU's reason: guest-shutdown, guest-reset, ...
    boot_seconds: float = None  # host time until the job started
    seconds: float = 0.0

    def report(self):
        """Why exit_status is not 0, for people; empty if it is."""
        if self.exit_status == OK:
            return ""
        parts = [f"kernel report:\n{splat}" for splat in self.splats]
        parts += ["oracle: " + json.dumps(error) for error in self.oracle_errors]
        parts += self.problems
        if self.job_exit:
            skipped = " (of kselftest: skipped)" if self.job_exit == 4 else ""
            parts += con.failed_cases(self.console)
            parts.append(f"the job ended with status {self.job_exit}{skipped}")
        # A report explains itself; anything else needs what was last seen.
        if not self.splats and (self.timed_out or self.job_exit is None):
            last = [line.rstrip() for line in self.console.strip().split("\n")][-TAIL:]
            parts.append(f"last {len(last)} console lines:\n" + "\n".join(last)
                         if any(last) else "the console is empty")
        return "\n".join(parts)


def size(text):
    """Bytes of '512M', '2G', ..."""
    match = re.fullmatch(r"(\d+)([KMGT]?)", str(text).upper())
    if not match:
        raise GuestError(f"not a size: {text}")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[match[2]]


def kernel_path(arch, variant="release", kver="7.3"):
    name = {"arm64": "Image", "x86_64": "bzImage"}[arch]
    return ROOT / "build" / kver / f"{arch}-{variant}" / name


def program(name):
    """The path of a program that may be root's, or None."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def make_disk(path, length="256M", contents=None, features=None, fs="ext4"):
    """A sparse image, of ext4 with the tree under `contents` and more `features` (mke2fs -O) if given.

    Of a read-only filesystem the tree is a file, unless another one is given; it is as long as that.
    """
    name, package, options = MKFS[fs]
    tool = program(name)
    if not tool:
        raise GuestError(f"no {name}: {apt_command(package)}")
    if fs in READ_ONLY:
        with tempfile.TemporaryDirectory() as tree:
            (Path(tree) / IMAGE_FILE).write_bytes(array.array("Q", range(IMAGE_WORDS)).tobytes())
            words = {"image": path, "tree": contents or tree}
            initramfs.run([tool, *(str(words.get(o, o)) for o in options)])
        return Path(path)
    with open(path, "wb") as image:
        image.truncate(size(length))
    if fs == "ext4":
        options = [*options, *(["-d", contents] if contents else []), *(["-O", features] if features else [])]
    initramfs.run([tool, *options, path])
    return Path(path)


# How far memory is from a CPU, and how fast: of a node with CPUs, and of one without. Else one tier has both.
HMAT = (("latency", ("10", "40")), ("bandwidth", ("20G", "5G")))


def hmat(nodes, cpuless):
    """QEMU arguments that tell the kernel of two tiers: nodes that have no CPUs are the slow one."""
    return [word for cpus in range(nodes) for memory in range(nodes + cpuless) for what, values in HMAT
            for word in ("-numa", f"hmat-lb,initiator={cpus},target={memory},hierarchy=memory,data-type=access-{what},"
                                  f"{what}={values[memory >= nodes]}")]


def numa(mem, smp, nodes, cpuless, tables=False):
    """QEMU arguments that split the memory over all nodes, CPUs over `nodes`; with tables, see hmat()."""
    total = nodes + cpuless
    if nodes < 1 or smp < nodes:
        raise GuestError(f"{smp} CPUs cannot be split over {nodes} nodes")
    # Nodes start at memory section boundaries; the last one has the rest.
    share = size(mem) // total // (128 * MIB) * 128
    if not share:
        raise GuestError(f"{mem} is too little for {total} nodes (128M each at least)")
    sizes = [share] * (total - 1) + [size(mem) // MIB - share * (total - 1)]
    arguments = ["-m", f"{sum(sizes)}M"]
    first = 0
    for node, amount in enumerate(sizes):
        spec = f"node,nodeid={node},memdev=mem{node}"
        if node < nodes:
            count = smp // nodes + (node < smp % nodes)
            spec += f",cpus={first}-{first + count - 1}"
            first += count
        if tables:
            spec += f",initiator={node if node < nodes else 0}"
        arguments += ["-object", f"memory-backend-ram,id=mem{node},size={amount}M,reserve=off",
                      "-numa", spec]
    return arguments + (hmat(nodes, cpuless) if tables else [])


def qemu_version(qemu):
    """(major, minor)"""
    return tuple(map(int, re.search(r"version (\d+)\.(\d+)", initramfs.run([qemu, "--version"])).groups()))


def threads_of(qemu, arch):
    """One host thread per vCPU, where that is safe.

    Before 8.1 a block can be translated from code that another thread is just
    patching, and stay. x86_64 guests then run into the int3 of a static key
    (1 boot in 10 on two busy cores); arm64 patches a word at once.
    """
    return "single" if arch == "x86_64" and qemu_version(qemu) < (8, 1) else "multi"


def machine(kernel, arch, cpu="max", smp=4, mem="2G", nodes=2, cpuless=0, append="", threads=None,
            mte=False, gic=3, tiers=False):
    """The command line up to the devices; raises if QEMU or a file is missing."""
    program, package = QEMU[arch]
    qemu = shutil.which(program)
    if not qemu:
        raise GuestError(f"no {program}: {apt_command(package)}", NO_QEMU)
    if not Path(kernel).is_file():
        variant = Path(kernel).parent.name.partition("-")[2]
        raise GuestError(f"no kernel {kernel}: make kernel ARCH={arch}" + f" VARIANT={variant}" * bool(variant))
    if arch == "arm64" and cpu == "max":
        cpu = "max,pauth-impdef=on"     # the architected algorithm is slow to emulate
    if arch == "x86_64" and cpu == "max":
        # identify_cpu() clears the capabilities for a moment; KASAN then takes an address of 5-level
        # paging for a wild one if an interrupt comes, in stock 7.3.4 too.
        cpu = "max,la57=off"
    smp, nodes = int(smp), int(nodes)
    if tiers and arch != "x86_64":
        raise GuestError(f"no table of tiers on {arch}: tlb_slow_nodes= on the command line, of an image that has it")
    memory = numa(mem, smp, nodes, int(cpuless), tiers)
    # CPUs of different nodes must not share a socket's cache.
    sockets = smp if smp % nodes else nodes
    return [qemu, "-machine", MACHINE[arch].format(gic=gic), "-cpu", cpu,
            *(("-machine", "mte=on") if mte and arch == "arm64" else ()),
            *(("-machine", "hmat=on") if tiers else ()),
            "-accel", f"tcg,thread={threads or threads_of(qemu, arch)}",
            *memory, "-smp", f"{smp},sockets={sockets}",
            "-kernel", str(kernel), "-no-reboot", "-nodefaults", "-display", "none",
            "-append", f"{CONSOLE[arch]} {ARGUMENTS} {append}".strip()]


def drive(arch, path, serial):
    return ["-drive", f"if=none,id={serial},format=raw,cache=unsafe,file={path}",
            "-device", f"{BLOCK[arch]},drive={serial},serial={serial}"]


def parse_disk(spec):
    """(filesystem, length, features of ext4) of 256M, verity:256M, xfs:512M or erofs."""
    if spec in READ_ONLY:
        return spec, None, None
    kind, _, length = spec.rpartition(":")
    if not re.fullmatch(r"\d+[KMGT]", length.upper()) or kind in READ_ONLY:
        raise GuestError(f"no disk image {spec}")
    return (kind, length, None) if kind in MKFS else ("ext4", length, kind or None)


def devices(arch, tmp, disk, swap):
    """(arguments, kernel arguments) for the disk and the swap."""
    arguments, append = [], []
    if disk:
        # A size makes a disk that lives as long as the boot.
        if not Path(disk).exists():
            fs, length, features = parse_disk(str(disk))
            disk = make_disk(tmp / "disk.img", length, features=features, fs=fs)
            append = [f"tlbrs.disk={fs}"]
        arguments += drive(arch, disk, "disk")
    if swap and Path(str(swap)).exists():
        arguments += drive(arch, swap, "swap")
        append.append("tlbrs.swap=disk")
    elif swap:
        kind, _, length = str("zram:512M" if swap is True else swap).rpartition(":")
        if kind not in ("", "zram", "disk"):
            raise GuestError(f"swap is SIZE, zram:SIZE or disk:SIZE, not {swap}")
        if kind == "disk":
            with open(tmp / "swap.img", "wb") as image:
                image.truncate(size(length))
            arguments += drive(arch, tmp / "swap.img", "swap")
            append.append("tlbrs.swap=disk")
        else:
            append.append(f"tlbrs.swap={size(length)}")
    return arguments, " ".join(append)


def plugin(tmp, meter, oracle, kernel):
    """Arguments for the TLB meter, which writes its results to tmp/meter."""
    if not meter and not oracle:
        return []
    if not METER.is_file():
        raise GuestError(f"no {METER.relative_to(ROOT)}: {METER_COMMAND}")
    # A variant's directory is named after it.
    shift = {"16k": 14, "64k": 16}.get(Path(kernel).parent.name.rpartition("-")[2], 12)
    return ["-plugin", f"{METER},out={tmp}/meter" + (f",oracle=on,page_shift={shift}" if oracle else "")]


class Machine:
    """A running QEMU: its console, its end, its reason to end."""

    def __init__(self, command, tmp):
        ours, theirs = socket.socketpair()
        # Negotiation does not need to wait for the greeting.
        ours.sendall(b'{"execute":"qmp_capabilities"}\n')
        self.qmp = ours
        command = command + ["-chardev", f"socket,id=qmp,fd={theirs.fileno()}",
                             "-mon", "chardev=qmp,mode=control"]
        # QEMU must not outlive us, however we end.
        setpriv = shutil.which("setpriv")
        prefix = [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
        self.errors = open(tmp / "stderr", "w+", errors="replace")
        self.process = subprocess.Popen(prefix + command, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=self.errors,
                                        pass_fds=[theirs.fileno()])
        theirs.close()

    def read(self, wait):
        """Console bytes; None: nothing within `wait` seconds; empty: the end."""
        pipe = self.process.stdout
        if not select.select([pipe], [], [], max(wait, 0))[0]:
            return None
        return os.read(pipe.fileno(), 1 << 16)

    def stop(self):
        """End QEMU; with SIGTERM its plugins still write their results."""
        for action in (self.process.terminate, self.process.kill):
            if self.process.poll() is None:
                action()
                try:
                    self.process.wait(10)
                except subprocess.TimeoutExpired:
                    pass

    def end(self):
        """(exit status, reason of the shutdown, stderr) once QEMU is gone."""
        status = self.process.wait()
        self.qmp.settimeout(5)
        text, reason = b"", None
        try:
            while chunk := self.qmp.recv(1 << 16):
                text += chunk
        except OSError:
            pass
        self.qmp.close()
        self.process.stdout.close()
        for line in text.splitlines():
            event = json.loads(line)
            if event.get("event") == "SHUTDOWN":
                reason = event["data"]["reason"]
        self.errors.seek(0)
        errors = self.errors.read().strip()
        self.errors.close()
        return status, reason, errors


def watch(qemu, timeout, result, log, stream, panics=0):
    """Follow the console until QEMU ends or its time is over; panics: so many start another kernel."""
    begin = time.monotonic()
    deadline, ending = begin + timeout, False
    text, tail = bytearray(), b""
    while True:
        now = time.monotonic()
        chunk = qemu.read(min(deadline - now, 1)) if now < deadline else None
        if chunk is None and time.monotonic() >= deadline:
            result.timed_out = True
            break
        if chunk == b"":
            break
        if not chunk:
            continue
        text += chunk
        for out in filter(None, (log, stream)):
            out.write(chunk)
            out.flush()
        tail = tail[-200:] + chunk
        if result.boot_seconds is None and b"\ntlb-rs: job start" in tail:
            result.boot_seconds = time.monotonic() - begin
        if not ending and (b"\ntlb-rs: job exit " in tail or
                           b"Kernel panic - not" in tail and text.count(b"Kernel panic - not") > panics):
            ending = True
            deadline = min(deadline, time.monotonic() + POWEROFF_SECONDS)
    qemu.stop()
    # What came between the last read and the end.
    while chunk := qemu.read(0):
        text += chunk
        for out in filter(None, (log, stream)):
            out.write(chunk)
            out.flush()
    result.seconds = time.monotonic() - begin
    result.console = text.decode("utf-8", "replace").replace("\r", "")


def judge(result, own_init, timeout, allow=(), qemu_failed=False):
    """Fill in what the console says and decide the exit status.

    own_init: our init ran, so that there must be a "job exit" line.
    qemu_failed: the reason to fail is in result.problems already.
    """
    result.ktap = con.ktap(result.console)
    result.splats = [splat for splat in con.splats(result.console)
                     if not any(re.search(pattern, splat) for pattern in allow)]
    result.problems += ["KUnit: " + line for line in con.kernel_not_ok(result.console)
                        if not any(re.search(pattern, line) for pattern in allow)]
    result.job_exit = con.job_exit(result.console)
    if result.timed_out:
        late = " (it did not power off)" if result.job_exit is not None else ""
        result.problems.append(f"the guest was stopped after {result.seconds:.0f} s, "
                               f"timeout {timeout} s{late}")
    elif not result.splats and not qemu_failed:
        if result.shutdown != "guest-shutdown":
            result.problems.append(f"the guest did not power off: {result.shutdown or 'no reason'}")
        elif own_init and result.job_exit is None:
            result.problems.append("the guest powered off without the line 'tlb-rs: job exit'")
    if result.splats:
        result.exit_status = SPLAT
    elif result.oracle_errors:
        result.exit_status = ORACLE
    elif result.timed_out:
        result.exit_status = TIMEOUT
    elif result.problems or result.job_exit:
        result.exit_status = FAILED
    else:
        result.exit_status = OK


def read_meter(path, result, oracle):
    """Join the regions and collect what the oracle saw."""
    text = path.read_text() if path.exists() else ""
    regions, result.oracle_errors, result.oracle_summary, bad = con.meter_output(text)
    result.problems += bad + con.join(result.records, regions)
    if oracle:
        if result.oracle_summary is None:
            result.problems.append("the oracle wrote no summary")
        elif result.oracle_summary["errors"] and not result.oracle_errors:
            result.oracle_errors = [{"oracle": "stale", **result.oracle_summary}]
        if result.oracle_summary and result.oracle_summary["lost_declares"]:
            result.problems.append(f"the oracle missed declarations: {result.oracle_summary}")
        # Each page that is allocated or freed is one.
        if result.oracle_summary and not result.oracle_summary["declares"]:
            result.problems.append("the kernel told the oracle of no page: it needs CONFIG_TLB_ORACLE, as VARIANT=checked has")


def boot(kernel, arch, job=None, initrd=None, cpu="max", smp=4, mem="2G", nodes=2, cpuless=0,
         disk=None, swap=False, append="", meter=False, oracle=False, timeout=300, log=None,
         env=None, files=None, stream=None, allow=(), threads=None, mte=False, gic=3, tiers=False, panics=0):
    """Boot, wait for the end, judge.

    job: shell text, or the path of a script; or initrd: an initramfs of one's own.
    mem: of all nodes together, split evenly over `nodes` with CPUs and `cpuless` without.
    disk: an ext4 image, or a size ("256M": made for this boot; "verity:256M": with that
    feature; "xfs:512M", "btrfs:512M": another filesystem; "erofs", "squashfs": with a file
    in it, see make_disk()), at /mnt.
    swap: "512M" or "zram:512M" in zram, "disk:512M" on a disk; True is 512M in zram; or the path of a disk.
    env, files: variables for the job; {path in the guest: file} added to the initramfs.
    threads: "multi" or "single", of QEMU's vCPUs (default: see threads_of()).
    mte: memory tags, of an arm64 CPU that has them. gic: version of its interrupt controller.
    tiers: x86_64: ACPI says that nodes without CPUs are slower (HMAT).
    log: file for the console. stream: binary file that the console is copied to, live.
    allow: regular expressions of kernel reports (and failed KUnit cases) to accept.
    panics: how many panics start a crash kernel, whose end is the end of the job.
    """
    if (job is None) == (initrd is None):
        raise GuestError("give a job or an initrd, and only one of them")
    result = Result()
    with tempfile.TemporaryDirectory(prefix="tlb-rs-") as name:
        tmp = Path(name)
        extra, words = devices(arch, tmp, disk, swap)
        command = machine(kernel, arch, cpu, smp, mem, nodes, cpuless, f"{words} {append}".strip(),
                          threads, mte, gic, tiers)
        command += extra + ["-serial", "stdio"]
        if initrd:
            if not Path(initrd).is_file():
                raise GuestError(f"no initramfs {initrd}")
        else:
            if os.path.isfile(job):
                job = Path(job).read_text()
            initrd = tmp / "initrd.cpio"
            initrd.write_bytes(initramfs.build(arch).read_bytes()
                               + initramfs.job_archive(job, env, files))
        command += ["-initrd", str(initrd)]
        command += plugin(tmp, meter, oracle, kernel)
        sink = open(log, "wb") if log else None
        qemu = Machine(command, tmp)
        try:
            watch(qemu, timeout, result, sink, stream, panics)
        finally:
            qemu.stop()
            if sink:
                sink.close()
        status, result.shutdown, errors = qemu.end()
        qemu_failed = status != 0 and not result.timed_out
        if qemu_failed:
            result.problems.append(f"QEMU ended with status {status}: {errors}")
        result.records, bad = con.records(result.console)
        result.problems += bad
        if meter or oracle:
            read_meter(tmp / "meter", result, oracle)
    judge(result, job is not None, timeout, allow, qemu_failed)
    return result


def shell(kernel, arch, disk=None, swap=False, append="", meter=False, oracle=False,
          timeout=None, **options):
    """An interactive busybox; QEMU has the terminal. Returns QEMU's status."""
    with tempfile.TemporaryDirectory(prefix="tlb-rs-") as name:
        tmp = Path(name)
        extra, words = devices(arch, tmp, disk, swap)
        command = machine(kernel, arch, append=f"tlbrs.shell=1 {words} {append}".strip(), **options)
        command += extra + plugin(tmp, meter, oracle, kernel)
        command += ["-serial", "mon:stdio", "-initrd", str(initramfs.build(arch))]
        with subprocess.Popen(command) as qemu:
            try:
                status = qemu.wait(timeout)
            except subprocess.TimeoutExpired:
                # Not killed: it has a terminal to restore, and the meter's counts to write.
                qemu.terminate()
                qemu.wait()
                print(f"\nguest: stopped after {timeout:.0f} s", file=sys.stderr)
                status = TIMEOUT
        if (tmp / "meter").exists():
            print((tmp / "meter").read_text(), end="")
        return status


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("boot", "run a job or an initramfs"), ("shell", "interactive busybox")):
        sub = commands.add_parser(name, help=text)
        sub.add_argument("--arch", choices=ARCHES, default="arm64")
        sub.add_argument("--kernel", help="default: build/KVER/ARCH-VARIANT")
        sub.add_argument("--variant", default="release")
        sub.add_argument("--kver", default="7.3")
        sub.add_argument("--cpu", default="max")
        sub.add_argument("--smp", type=int, default=4)
        sub.add_argument("--mem", default="2G")
        sub.add_argument("--nodes", type=int, default=2, help="NUMA nodes with CPUs")
        sub.add_argument("--cpuless", type=int, default=0, help="further nodes, memory only")
        sub.add_argument("--disk", help="ext4 image, SIZE, FEATURE:SIZE, xfs:SIZE, erofs, ...")
        sub.add_argument("--swap", help="SIZE or zram:SIZE, disk:SIZE")
        sub.add_argument("--append", default="", help="kernel arguments")
        sub.add_argument("--threads", choices=("multi", "single"), help="of QEMU's vCPUs")
        sub.add_argument("--gic", type=int, choices=(2, 3), default=3, help="version, arm64")
        sub.add_argument("--mte", action="store_true", help="memory tags, arm64")
        sub.add_argument("--tiers", action="store_true", help="nodes without CPUs are slower (HMAT), x86_64")
        sub.add_argument("--meter", action="store_true", help="count TLB maintenance")
        sub.add_argument("--oracle", action="store_true", help="look for stale translations")
        sub.add_argument("--timeout", type=float, default=300 if name == "boot" else None)
    sub = commands.add_parser("programs", help="compile the guest programs")
    sub.add_argument("--arch", choices=ARCHES, default="arm64")
    sub.add_argument("--ksrc", help="kernel tree (default: the last that was given, or the cached one)")
    sub = commands.choices["boot"]
    what = sub.add_mutually_exclusive_group(required=True)
    what.add_argument("--job", help="shell text or script file")
    what.add_argument("--initrd", help="boot this initramfs instead of ours")
    sub.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    sub.add_argument("--log", help="file for the console")
    sub.add_argument("--json", help="file for the records, one a line")
    sub.add_argument("--allow", action="append", default=[], metavar="REGEX",
                     help="kernel report to accept")
    sub.add_argument("--quiet", action="store_true", help="do not show the console")
    return parser.parse_args(argv)


def main(argv=None):
    args = vars(parse(argv))
    command = args.pop("command")
    try:
        if command == "programs":
            print(initramfs.build(**args))
            return OK
        variant, kver = args.pop("variant"), args.pop("kver")
        args["kernel"] = args["kernel"] or kernel_path(args["arch"], variant, kver)
        if command == "shell":
            return shell(**args)
        quiet, out = args.pop("quiet"), args.pop("json")
        if lacking := [pair for pair in args["env"] if "=" not in pair]:
            raise GuestError(f"--env {lacking[0]}: NAME=value")
        args["env"] = dict(pair.split("=", 1) for pair in args["env"])
        result = boot(**args, stream=None if quiet else sys.stdout.buffer)
    except GuestError as error:
        print(f"guest: {error}", file=sys.stderr)
        return error.status
    if out:
        Path(out).write_text("".join(json.dumps(record) + "\n" for record in result.records))
    if result.exit_status:
        print("\nguest: " + result.report(), file=sys.stderr)
    return result.exit_status


def cli():
    # Temporary files go, and QEMU with them, also when a caller gives up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return main()
    except KeyboardInterrupt:
        return 130
