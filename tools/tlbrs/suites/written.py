# SPDX-License-Identifier: GPL-2.0
"""What a program of others writes through mappings of files: fio on ext4, xfs and btrfs.

What memory had has to be on the disk, whatever was cleaned and made read-only meanwhile. So the file system is mounted
anew, which reads the disk, and its contents are compared with those before.
"""

from tlbrs.guest import exercisers, guest, initramfs
from tlbrs.kernel.kernel import options
from tlbrs.suites.harness import KVER, boot

FILE_SYSTEMS = ("ext4", "xfs", "btrfs")

# In the guest: cases in TAP, and the file system mounted anew.
CASES = r"""
cd /tmp
n=0 failed=0
check() {
	n=$((n + 1)) what=$1
	shift
	if "$@"; then
		echo "ok $n $what"
	else
		echo "not ok $n $what"
		failed=1
	fi
}
mount_anew() {
	from=$(awk '$2 == "/mnt" { print "-t", $3, $1 }' /proc/mounts)
	umount /mnt && mount $from /mnt || exit 125
}
"""

# fio: at random, to files of folios of each length. And 4 of 16 pages of each folio again and again, beside who writes
# the file to disk: an emulated TLB keeps these entries for long, and no fault makes the folio dirty if they are stale.
FIO = CASES + r"""
cat > random.fio << 'EOF'
[global]
ioengine=mmap
thread
overwrite=1
invalidate=0
rw=randwrite
norandommap
bs=4k
size=4m
io_size=8m
fsync=64
verify=crc32c
verify_fatal=1
do_verify=${VERIFY}
[4k]
filename=/mnt/4k
[64k]
filename=/mnt/64k
[2m]
filename=/mnt/2m
EOF
cat > stores.fio << 'EOF'
[global]
filename=/mnt/stores
thread
overwrite=1
invalidate=0
exitall
[stores]
ioengine=mmap
rw=write:48k
bs=16k
size=256k
io_size=32m
cpus_allowed=1
verify=crc32c
verify_fatal=1
do_verify=${VERIFY}
[fsync]
ioengine=psync
offset=240k
rw=write
bs=4k
size=4k
time_based
runtime=600
fsync=1
cpus_allowed=2
EOF
# A write makes a folio of its length.
file() {
	dd if=/dev/zero of=/mnt/$1 bs=$2 count=$3 2> /dev/null
}
write() {
	VERIFY=0 fio --eta=never --output=said $1.fio || { cat said; false; }
}
verify() {
	# All sections, or the first: seeds are by their number.
	VERIFY=1 fio --eta=never --verify_only $2 --output=said $1.fio > errors 2>&1 && return
	grep -h verify said errors
	false
}
sums() {
	(cd /mnt && md5sum 4k 64k 2m stores)
}
on_disk() {
	sums > before
	mount_anew
	sums > after
	cmp before after
}
corrupt() {
	printf x | dd of=/mnt/$1 bs=1 seek=$2 conv=notrunc 2> /dev/null
}
corrupted() {
	corrupt stores 70000
	# Some of its blocks were never written.
	for block in $(seq 0 15); do
		corrupt 64k $((block * 65536 + 1000))
	done
	! verify random && ! verify stores --section=stores
}
lost() {
	echo stores > /sys/kernel/debug/tlb_batch/skip_hook || exit 125
	for try in $(seq 10); do
		file stores 64k 4
		sync
		write stores && on_disk || break
	done
	echo none > /sys/kernel/debug/tlb_batch/skip_hook
	! cmp -s before after
}
file 4k 4k 1024
file 64k 64k 64
file 2m 2M 2
file stores 64k 4
sync
check "fio writes at random" write random
check "fio writes beside fsync()" write stores
check "the disk has what memory had" on_disk
check "fio finds its blocks" verify random
check "fio finds its blocks that were written beside fsync()" verify stores --section=stores
echo 1 > /proc/sys/vm/tlb_batch_writeback
check "fio writes at random, several folios are cleaned at once" write random
check "fio writes beside fsync(), several folios are cleaned at once" write stores
check "the disk has what memory had then" on_disk
check "fio finds its blocks then" verify random
echo 0 > /proc/sys/vm/tlb_batch_writeback
check "fio sees that a block is corrupted" corrupted
check "without the rule stores of mkclean the disk has something else" lost
echo "1..$n"
exit $failed
"""


def there(suite, arch, what, get):
    """What get() brings, or None: what cannot be had is skipped."""
    try:
        return get(arch)
    except (initramfs.GuestError, OSError) as error:
        suite.skip(f"{arch} {what}", str(error))
        return None


def chosen_file_systems(suite, arch, what, has=lambda fs: True):
    """Those that this machine can make, of those that has() says; the others are skipped."""
    for fs in filter(has, FILE_SYSTEMS):
        program, package, _ = guest.MKFS[fs]
        if guest.program(program):
            yield fs
        else:
            suite.skip(f"{arch} {what}, {fs}", f"no {program}: {initramfs.apt_command(package)}")


def by_fio(suite, arch, variant, start):
    """fio writes through mappings on each file system that the image has, and verifies what is on the disk."""
    fio = there(suite, arch, "fio", exercisers.fio)
    config = options((guest.kernel_path(arch, variant, KVER).parent / ".config").read_text(encoding="utf-8"))
    if not fio:
        return
    for fs in chosen_file_systems(suite, arch, "fio", lambda fs: config.get(f"CONFIG_{fs.upper()}_FS") == "y"):
        start(boot, suite, f"fio, {fs}", arch, variant, FIO, disk=f"{fs}:512M", files={"bin/fio": fio}, timeout=900)
