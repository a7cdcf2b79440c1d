# SPDX-License-Identifier: GPL-2.0
"""What programs of others write through mappings of files: fio, fsx and stress-ng on ext4, xfs and btrfs.

What memory had has to be on the disk, whatever was cleaned and made read-only meanwhile. So the file system is mounted
anew, which reads the disk, and its contents are compared with those before.
"""

import os
import tempfile
import time
from pathlib import Path

from tlbrs.guest import exercisers, guest, initramfs
from tlbrs.kernel.kernel import options
from tlbrs.suites.harness import KVER, LOGS, boot, chosen, kernel, side_by_side

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


# Of a file: how long it becomes, bytes of the longest operation, whether a store is left to writeback.
FSX_FILES = ((4 << 20, 512 << 10, "true"), (1 << 20, 64 << 10, "false"), (128 << 10, 8 << 10, "true"))
# Each has a worker. What they leave is removed with them, so that the disk does not become full.
STRESSORS = ("--copy-file 1 --copy-file-bytes 128m --fallocate 1 --fallocate-bytes 4m --fpunch 1 --hdd 1 --hdd-bytes 4m "
             "--iomix 1 --iomix-bytes 4m --link 1 --mmap 1 --mmap-bytes 4m --mmap-file --msync 1 --msync-bytes 4m "
             "--rename 1 --seek 1 --seek-size 4m --seek-punch --sync-file 1 --sync-file-bytes 4m")
# Beside each other: three fsx, which compare what they read with what they wrote, and rounds of stress-ng, in every other
# one of which several folios are cleaned at once. Meanwhile memory is compacted, which moves pages that are dirty, and
# caches are dropped, so that what is on the disk is read.
FSX = CASES + r"""
# $2 bytes, operations of up to $3; whether stores are left to writeback; weight of what removes pages
configure() {
	cat > fsx$1.toml << EOF
flen = $2
nomsyncafterwrite = $4
[opsize]
min = 1
max = $3
[weights]
mapwrite = 30
mapread = 10
write = 10
read = 5
truncate = $5
punch_hole = $5
posix_fallocate = 3
copy_file_range = 5
posix_fadvise = 5
invalidate = 3
fsync = 3
fdatasync = 3
close_open = 2
EOF
}
# $2 operations with seed $3, on file $4
run_fsx() {
	fsx -N $2 -S $3 -f fsx$1.toml -P /tmp /mnt/$4 > fsx$1.out 2>&1 && grep -q 'A-OK' fsx$1.out
}
# Short runs, each from an empty file: fsx leaves what it has mapped to read until it ends.
fsx_runs() {
	runs=0
	while [ $runs = 0 ] || [ $(date +%s) -lt $end ]; do
		runs=$((runs + 1))
		run_fsx $1 $OPERATIONS $((SEED + 100000 * $1 + runs)) fsx$1.$((runs % 4)) || return 1
	done
	echo "{\"fsx_operations\":$((runs * OPERATIONS))}" > fsx$1.json
}
fsx_ended() {
	wait $2 && cat fsx$1.json || { tail -n 50 fsx$1.out; return 1; }
}
rounds() {
	round=0 bogo=0
	mkdir -p /mnt/stress
	while left=$((end - $(date +%s))) && [ $left -gt 0 ]; do
		round=$((round + 1))
		echo $((1 - round % 2)) > /proc/sys/vm/tlb_batch_writeback || exit 125
		stress-ng --seed $((SEED + round)) --timeout $((left < ROUND ? left : ROUND)) --verify --metrics --yaml yaml \
			--temp-path /mnt/stress $STRESSORS > stress.out 2>&1 || { tail -n 50 stress.out; return 1; }
		bogo=$(awk -v n=$bogo '$1 == "bogo-ops:" { n += $2 } END { print n }' yaml)
	done
	rm -rf /mnt/stress
	echo "{\"stress_rounds\":$round,\"stress_operations\":$bogo}"
}
cleaned() {
	awk '$1 == "tlb_batch_mkclean" { print "{\"cleaned\":" $2 "}"; n = $2 } END { exit !n }' /proc/vmstat
}
sums() {
	(cd /mnt && find . -type f | sort | tr '\n' '\0' | xargs -0 md5sum) > $1
}
compared() {
	sums before
	"$@"
	mount_anew
	sums after
	cmp before after
}
corrupt() {
	printf x | dd of=/mnt/corrupted bs=1 seek=$1 conv=notrunc 2> /dev/null
}
# The file does not become shorter. The next operation may write there, so that it is changed again and again.
seen() {
	run_fsx 0 3000 $SEED corrupted & pid=$!
	while kill -0 $pid 2> /dev/null; do
		[ $(stat -c %s /mnt/corrupted 2> /dev/null || echo 0) -le 5001 ] || { corrupt 1000; corrupt 5001; }
	done
	! wait $pid && grep -q 'miscompare' fsx0.out || { tail -n 50 fsx0.out; return 1; }
}
configure 0 65536 65536 true 0
check "fsx sees that a byte is changed" seen
sums before
check "fsx ends" run_fsx 0 100 $SEED corrupted
check "a byte that is changed is seen on the disk" eval '! compared corrupt 1000 > /dev/null'
rm /mnt/corrupted
end=$(($(date +%s) + LENGTH))
@FSX@
(trap 'exit 0' TERM; while :; do sleep 7; echo 1 > /proc/sys/vm/compact_memory; echo 1 > /proc/sys/vm/drop_caches; done) &
compact=$!
check "stress-ng ends" rounds
for number in $(seq @COUNT@); do
	check "fsx $number reads what it wrote" eval "fsx_ended $number \$pid$number"
done
kill $compact
check "several folios were cleaned at once" cleaned
check "the disk has what memory had" compared :
echo "{\"files\":$(wc -l < after),\"sum\":\"$(md5sum < after | cut -d ' ' -f 1)\"}"
echo "1..$n"
exit $failed
""".replace("@COUNT@", str(len(FSX_FILES))).replace("@FSX@", "\n".join(
    f"configure {n} {length} {longest} {left} 8\nfsx_runs {n} & pid{n}=$!"
    for n, (length, longest, left) in enumerate(FSX_FILES, 1)))
# In another boot.
AGAIN = r"""
(cd /mnt && find . -type f | sort | tr '\n' '\0' | xargs -0 md5sum) > after
echo "{\"files\":$(wc -l < after),\"sum\":\"$(md5sum < after | cut -d ' ' -f 1)\"}"
"""
# On this machine, of what the guest has left.
FSCK = {"ext4": ("e2fsck", "-fn"), "xfs": ("xfs_repair", "-n"),
        "btrfs": ("btrfs", "check", "--readonly", "--check-data-csum")}
DISK = "8G"
# How many operations a run of fsx has, seconds of a round of stress-ng.
RUN = {"OPERATIONS": 1000, "ROUND": 30, "STRESSORS": STRESSORS}
# A loaded emulator takes long for the last round and the checksums.
GRACE = 1800


def there(suite, arch, what, get):
    """What get() brings, or None: what cannot be had is skipped."""
    try:
        return get(arch)
    except (initramfs.GuestError, OSError) as error:
        suite.skip(f"{arch} {what}", str(error))
        return None


def can_make(suite, arch, what, fs):
    """Whether this machine can make a file system; if not it is skipped."""
    program, package, _ = guest.MKFS[fs]
    if guest.program(program):
        return True
    suite.skip(f"{arch} {what}, {fs}", f"no {program}: {initramfs.apt_command(package)}")
    return False


def chosen_file_systems(suite, arch, what, has=lambda fs: True):
    """Those that this machine can make, of those that has() says."""
    return [fs for fs in FILE_SYSTEMS if has(fs) and can_make(suite, arch, what, fs)]


def by_fio(suite, arch, variant, start):
    """fio writes through mappings on each file system that the image has, and verifies what is on the disk."""
    fio = there(suite, arch, "fio", exercisers.fio)
    if not fio:
        return
    config = options((guest.kernel_path(arch, variant, KVER).parent / ".config").read_text(encoding="utf-8"))
    for fs in chosen_file_systems(suite, arch, "fio", lambda fs: config.get(f"CONFIG_{fs.upper()}_FS") == "y"):
        start(boot, suite, f"fio, {fs}", arch, variant, FIO, disk=f"{fs}:512M", files={"bin/fio": fio}, timeout=900)


def exercised(suite, arch, variant, fs, programs, minutes, seed):
    """fsx and stress-ng on a file system, which is checked and read again after that."""
    name = f"fsx, {fs}"
    with tempfile.TemporaryDirectory(dir=LOGS) as tmp:
        disk = guest.make_disk(Path(tmp) / "disk.img", DISK, fs=fs)
        more = {"disk": disk, "append": f"kunit.enable=0 tlbrs.disk={fs}"}
        first = boot(suite, name, arch, variant, FSX, files=programs, env=RUN | {"LENGTH": 60 * minutes, "SEED": seed},
                     timeout=60 * minutes + GRACE, **more)
        program, *words = FSCK[fs]
        suite.command(f"{arch} {name}: {program}", guest.program(program), *words, disk)
        second = boot(suite, f"{name}, another boot", arch, variant, AGAIN, timeout=GRACE, **more)
    sums = [[r for r in result.records if "sum" in r] for result in (first, second)]
    suite.check(f"{arch} {name}: another boot finds the same", len(sums[0]) == 1 and sums[0] == sums[1] and
                sums[0][0]["files"] >= len(FSX_FILES), f"{sums}")
    counts = {key: sum(r.get(key, 0) for r in first.records)
              for key in ("fsx_operations", "stress_rounds", "stress_operations", "cleaned")}
    suite.say(f"{arch} {name}: {minutes} minutes, seed {seed}, {counts}", show=True)


def fsx(suite):
    """fsx and stress-ng, for MINUTES on each file system."""
    minutes, seed = int(os.environ.get("MINUTES") or 10), int(os.environ.get("SEED") or time.time()) % 10**6
    for arch in chosen(suite):
        programs = there(suite, arch, "fsx", exercisers.of_fsx)
        suite.left_out |= not programs
        if programs and kernel(suite, arch, "fs"):
            with side_by_side(arch) as start:
                for fs in chosen_file_systems(suite, arch, "fsx"):
                    start(exercised, suite, arch, "fs", fs, programs, minutes, seed)
