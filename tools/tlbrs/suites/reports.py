# SPDX-License-Identifier: GPL-2.0
"""What users of other kernels have reported in public, as far as hvo is near: kexec, crash dumps and hibernation with HugeTLB
pools, whose struct pages are given back. Of arm64: other architectures give them back without our code.

Debian's kexec-tools, makedumpfile and Python run in the guest. Debian's kernel of the same version is the crash kernel, and the
control of crash dumps: it aligns the start of the linear map to 1 GiB, and hvo to 16 GiB. What makedumpfile cannot do there, it
need not do here. 1.7.8 and older read no kernel with pages of 4 KiB and 52 bits of virtual addresses, the default of 7.3.
"""

import contextlib
import lzma
import os
import re
import tempfile
from pathlib import Path

from tlbrs.guest import guest, hugepages, initramfs
from tlbrs.suites import harness
from tlbrs.suites.harness import KVER, boot, chosen, kernel
from tlbrs.suites.written import there

ARCH = "arm64"
VARIANT = "reports"
PACKAGES = ("kexec-tools", "makedumpfile", "python3")
# The Debian of these programs; DEBIAN= chooses another one.
DEBIAN = "trixie"
# Without an ITS: without EFI nobody tells the next kernel where the last one has left its tables. Without a seed for KASLR:
# kexec refuses one that is still there, and only a kernel with CONFIG_RANDOMIZE_BASE clears it.
GUEST = {"gic": "3,its=off,dtb-randomness=off", "mem": "6G", "timeout": 1200}
OURS = "kunit.enable=0 hugetlb_free_vmemmap=on"
POOLS = "hugepagesz=1G hugepages=1 hugepagesz=2M hugepages=100"
NEXT = "console=ttyAMA0 earlycon panic=-1 printk.time=1"
MARK = "tlb-rs: a line for the dump"
# How kexec loads the kernel: by kexec_load(), the only one that Debian's kernel has, and by kexec_file_load().
CALLS = ("-c", "-s")
# (mount, bytes of a page, pages, a word in each so many base pages), as the arguments of fill and check.
FILES = (("2M", 2 << 20, 12, 31), ("1G", 1 << 30, 1, 1021))
# What Debian's kernel has as modules, in the order of their dependences.
MODULES = ("lib/crc/crc16", "fs/mbcache", "fs/jbd2/jbd2", "fs/ext4/ext4", "drivers/block/virtio_blk",
           "drivers/virtio/virtio_mmio")
INIT = "#!/bin/busybox sh\n" + "".join(f"/bin/busybox insmod /modules/{Path(name).name}.ko\n" for name in MODULES) + \
    "exec /bin/busybox sh /init.own\n"

# In each guest: programs of the disk, the pools and what is in them as records.
HELPERS = initramfs.LINK_USERLAND + r"""
set -e
export PATH=$PATH:/usr/sbin:/usr/bin
hugepages() {
	/usr/bin/python3 /bin/hugepages.py "$@"
}
# $1: a name. shared, violations: of debugfs/hvo/verify, where it is.
pools() {
	printf '{"pools":"%s","mem_kb":%s' $1 $(awk '$1 == "MemTotal:" { print $2 }' /proc/meminfo)
	for kb in 2048 1048576; do
		d=/sys/kernel/mm/hugepages/hugepages-${kb}kB
		printf ',"%s":"%s of %s"' $kb $(cat $d/free_hugepages) $(cat $d/nr_hugepages)
	done
	awk '/^nr_memmap_(boot_)?pages / { n += $2 } END { printf ",\"memmap\":%d", n }' /proc/vmstat
	[ ! -e /sys/kernel/debug/hvo/verify ] ||
		awk '$1 ~ /^(shared|violations)$/ { printf ",\"%s\":%s", $1, $2 }' /sys/kernel/debug/hvo/verify
	echo "}"
}
resize() {
	echo $1 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
}
each() {
	while read name length count step; do
		hugepages $1 /tmp/$name/file $length $count $step
	done << 'END'
FILES
END
}
fill() {
	resize 150
	for name in 2M 1G; do
		mkdir -p /tmp/$name
		mount -t hugetlbfs -o pagesize=$name none /tmp/$name
	done
	each fill > /tmp/where
	pools filled
}
""".replace("FILES", "\n".join(" ".join(map(str, f)) for f in FILES))

# With the pools of the last kernel, and with those of the next one.
KEXEC = r"""
fill
kexec HOW -l /next/Image --initrd=/next/initrd --command-line="LINE"
sync
kexec -e
"""
KEXECED = r"""
pools boot
fill
each check
"""

KDUMP = r"""
fill
rm -f /mnt/all /mnt/kernel /mnt/packed /mnt/dmesg
cp /tmp/where /mnt/where
echo "MARK" > /dev/kmsg
kexec HOW -p /next/Image --initrd=/next/initrd --command-line="LINE"
echo "{\"loaded\":$(cat /sys/kernel/kexec_crash_loaded)}"
sync
echo c > /proc/sysrq-trigger
"""
# In the crash kernel: the words at their physical addresses, in memory and in dumps with and without what users have.
SAVE = r"""
hugepages core /proc/vmcore /mnt/where
save() {
	name=$1
	shift
	status=0
	makedumpfile "$@" /proc/vmcore /mnt/$name > /tmp/out 2>&1 || status=$?
	tr '\r' '\n' < /tmp/out | grep -v -e % -e '^  [A-Z]' | sed "s/^/$name: /"
	touch /mnt/$name
	echo "{\"saved\":\"$name\",\"status\":$status,\"kb\":$(du -k /mnt/$name | cut -f 1)}"
}
makedumpfile -v | head -n 1
save all -E -d 17 --message-level 31
save kernel -E -d 31 --message-level 31
save packed -l -d 31
save dmesg --dump-dmesg
for name in all kernel; do
	hugepages core /mnt/$name /mnt/where || true
done
echo "{\"marks\":$(grep -c "MARK" /mnt/dmesg || true)}"
sync
"""

# What runs before echo has returned is in the boot that ends there, and what comes after it in the one that resumes.
HIBERNATE = r"""
[ "$(cat /sys/block/${RESUME#/dev/}/serial)" = swap ]
fill
echo shutdown > /sys/power/disk
sync
dmesg -n 7
echo disk > /sys/power/state
dmesg -n 5
pools resumed
each check
rm /tmp/2M/file /tmp/1G/file
resize 0
pools empty
resize 150
pools again
"""


def job(text, **words):
    text = HELPERS + text.replace("MARK", MARK)
    for name, value in words.items():
        text = text.replace(name, value)
    return text


@contextlib.contextmanager
def files_of(own, following=None, next_own=True):
    """{path in the guest: file} of a kernel: the program; of Debian's kernel (not own) its modules and who loads them; and in
    /next the kernel that the job starts, with the job of that one."""
    with tempfile.TemporaryDirectory(dir=harness.LOGS) as tmp:
        files = {"bin/hugepages.py": hugepages.__file__}
        if not own:
            tree = initramfs.debian_kernel(ARCH, KVER)
            for name in MODULES:
                ko = Path(tmp) / f"{Path(name).name}.ko"
                ko.write_bytes(lzma.decompress((tree / f"kernel/{name}.ko.xz").read_bytes()))
                files[f"modules/{ko.name}"] = ko
            start = Path(tmp) / "init"
            start.write_text(INIT, encoding="ascii")
            start.chmod(0o755)
            files |= {"init": start, "init.own": initramfs.HERE / "init"}
        if following:
            with files_of(next_own) as more:
                archive = initramfs.job_archive(following, files=more)
            initrd = Path(tmp) / "initrd"
            initrd.write_bytes(initramfs.build(ARCH).read_bytes() + archive)
            files |= {"next/Image": image(next_own), "next/initrd": initrd}
        yield files


def image(own):
    return guest.kernel_path(ARCH, VARIANT, KVER) if own else initramfs.debian_kernel(ARCH, KVER) / "vmlinuz"


def records(result, key):
    return [r for r in result.records if key in r]


def same(pools, *keys):
    """Whether these records of pools agree, all of them or in these keys; struct pages are all right in each."""
    keys = keys or [k for k in pools[0] if k != "pools"] if pools else ()
    return bool(pools) and all(p.get("violations") == 0 and p.get(k) == pools[0].get(k) for p in pools for k in keys)


def contents_are_right(suite, name, result):
    """Each file was looked at, and has the words that it had."""
    looked = records(result, "looked")
    suite.check(f"{ARCH} {name}: HugeTLB pages have their contents", len(looked) == len(FILES) and
                all(r["looked"] and not r["wrong"] for r in looked), f"{looked}")


def kexec(suite, disk):
    """The next kernel finds nothing of the pools of the last one, and has its own."""
    for how in CALLS:
        name = f"kexec {how}, pools that gave back struct pages"
        with files_of(True, job(KEXECED)) as files:
            result = boot(suite, name, ARCH, VARIANT, job(KEXEC, HOW=how, LINE=f"{NEXT} {OURS} {POOLS}"), disk=disk, files=files,
                          append=f"{OURS} {POOLS}", **GUEST)
        pools = records(result, "pools")
        suite.check(f"{ARCH} {name}: both kernels have their pools",
                    [p["pools"] for p in pools] == ["filled", "boot", "filled"] and pools[0].get("shared", 0) > 0 and
                    same([pools[0], pools[2]], "shared", "memmap", "2048", "1048576") and
                    pools[1].get("violations") == 0, f"{pools}")
        # Reservations differ by a page table or so.
        suite.check(f"{ARCH} {name}: no memory is missing", len(pools) == 3 and
                    abs(pools[0]["mem_kb"] - pools[2]["mem_kb"]) < 4096, f"{pools}")
        contents_are_right(suite, name, result)


def dumped(result):
    """{what: whether it is so} of a crash dump; what begins with makedumpfile is its business, too."""
    cores, saved = ({r[key]: r for r in records(result, key)} for key in ("core", "saved"))
    every = sum(3 * count for _, _, count, _ in FILES)
    words = {name: tuple(cores[name][k] for k in ("found", "wrong", "absent")) for name in cores}
    return {"the crash kernel was loaded": records(result, "loaded") == [{"loaded": 1}],
            "HugeTLB pages are where they were": words.get("vmcore") == (every, 0, 0),
            "makedumpfile was run": len(saved) == 4,
            "makedumpfile reads this kernel": len(saved) == 4 and not any(r["status"] for r in saved.values()),
            "makedumpfile keeps HugeTLB pages": words.get("all") == (every, 0, 0),
            "makedumpfile leaves out HugeTLB pages": words.get("kernel") == (0, 0, every),
            "makedumpfile --dump-dmesg finds the log": records(result, "marks") == [{"marks": 1}]}


def excused(found, control, said):
    """{what: why} of what makedumpfile cannot do with the control, either."""
    why = next(iter(re.findall(r"^packed: (.*not supported.*|.*Can't.*)", said, re.M)), "no reason")
    return {what: f"Debian's kernel neither: {why}" for what, ok in found.items()
            if not ok and what.startswith("makedumpfile") and what != "makedumpfile was run" and not control.get(what)}


def kdump(suite, disk):
    """A kernel panics, and makedumpfile reads its memory in a crash kernel: Debian's kernel, as the control, then ours."""
    control = {}
    for own, how in ((False, "-c"), *((True, how) for how in CALLS)):
        name = f"kdump {how}, " + ("pools that gave back struct pages" if own else "Debian's kernel")
        line = f"{NEXT} maxcpus=1 reset_devices"
        with files_of(own, job(SAVE), next_own=False) as files:
            result = boot(suite, name, ARCH, VARIANT, job(KDUMP, HOW=how, LINE=line), disk=disk, files=files,
                          image=image(own), append=f"{OURS if own else ''} {POOLS} crashkernel=1G",
                          allow=["sysrq triggered crash"], panics=1, **GUEST)
        found = dumped(result)
        control = control or found
        without = excused(found, control, result.console)
        for what, ok in found.items():
            if what in without:
                suite.skip(f"{ARCH} {name}: {what}", without[what])
            else:
                suite.check(f"{ARCH} {name}: {what}", ok)
        suite.say(f"{ARCH} {name}: {records(result, 'core')} {records(result, 'saved')}", show=False)


def hibernation(suite, disk):
    """Contents and pools are what they were; the control is the same image without hvo."""
    resume = "/dev/vda"
    for name, append in (("hibernation, pools that gave back struct pages", OURS),
                         ("hibernation, without hvo", "kunit.enable=0")):
        with tempfile.TemporaryDirectory(dir=harness.LOGS) as tmp, files_of(True) as files:
            swap = Path(tmp) / "swap.img"
            with open(swap, "wb") as room:
                room.truncate(guest.size("5G"))
            more = {"disk": disk, "swap": swap, "files": files, "env": {"RESUME": resume},
                    "append": f"{append} {POOLS} resume={resume}", **GUEST}
            first = boot(suite, name, ARCH, VARIANT, job(HIBERNATE), want=guest.FAILED, **more)
            suite.check(f"{ARCH} {name}: the machine was off before the job went on", first.shutdown == "guest-shutdown" and
                        first.job_exit is None and not first.splats, f"{first.shutdown}, {first.job_exit}")
            second = boot(suite, f"{name}, resumed", ARCH, VARIANT, job(HIBERNATE), **more)
        found = records(first, "pools") + records(second, "pools")
        suite.check(f"{ARCH} {name}: pools are what they were",
                    [p["pools"] for p in found] == ["filled", "resumed", "empty", "again"] and
                    same(found[:2]) and same([found[0], found[3]], "memmap", "shared") and
                    (found[0]["shared"] > 0) == (append == OURS), f"{found}")
        contents_are_right(suite, name, second)


def reports(suite):
    """kexec, crash dumps and hibernation with pools that gave back their struct pages."""
    if not chosen(suite, ARCH):
        return
    release = os.environ.get("DEBIAN") or DEBIAN
    tree = there(suite, ARCH, "reports", lambda arch: initramfs.userland(arch, f"reports-{release}", *PACKAGES, release=release))
    suite.left_out |= not tree
    if not tree or not kernel(suite, ARCH, VARIANT):
        return
    with tempfile.TemporaryDirectory(dir=harness.LOGS) as tmp:
        # All boots have it in turn.
        disk = guest.make_disk(Path(tmp) / "disk.img", "4G", tree)
        kexec(suite, disk)
        hibernation(suite, disk)
        if there(suite, ARCH, "crash dumps", lambda arch: initramfs.debian_kernel(arch, KVER)):
            kdump(suite, disk)
