# SPDX-License-Identifier: GPL-2.0
"""A file system on a loop device, whose file is in tmpfs, while memory is short.

Reclaim keeps up to 32 clean folios locked until their flush. A loop device needs memory to write, and its file may have to
be swapped out for that: who waits there for one of these folios must not be who has locked it. fio and stress-ng run on that
file system, and migrc moves their memory, under KASAN and lockdep.
"""

import os

from tlbrs.guest import exercisers
from tlbrs.suites.harness import boot, chosen, kernel
from tlbrs.suites.written import CASES, there

IMAGE = "debug"
# The pages of this file system are twice in memory: in the page cache, and in tmpfs or swap.
GUEST = {"mem": "1G", "swap": "disk:2G"}
# Seconds in which there has to be a request. Under KASAN and lockdep, in an emulator, a flush of the disk takes some.
PART = 30
GRACE = 1800

LOOP = CASES + r"""
cat > stores.fio << 'END'
[4k]
directory=/tmp/loop
ioengine=mmap
rw=randwrite
bs=4k
size=48m
io_size=16m
overwrite=1
fsync=256
verify=crc32c
verify_fatal=1
END
cat > loads.fio << 'END'
[loads]
filename=/tmp/loop/clean
ioengine=mmap
rw=randread
bs=4k
size=256m
time_based
runtime=${SECONDS_OF_LOADS}
numjobs=2
END
put() {
	[ ! -e $2 ] || echo $1 > $2
}
put 1 /proc/sys/vm/tlb_batch
put 1 /proc/sys/vm/migrc_enable
mkdir -p /tmp/back /tmp/loop
mount -t tmpfs -o size=1G back /tmp/back
truncate -s 768M /tmp/back/file
loop=$(losetup -f)
losetup $loop /tmp/back/file && mke2fs $loop > /dev/null && mount -t ext4 $loop /tmp/loop || exit 125
requests() {
	awk '{ print $1 + $5 }' /sys/block/${loop#/dev/}/stat
}
counter() {
	awk -v name="^($1)\$" '$1 ~ name { n += $2 } END { print n + 0 }' /proc/vmstat
}
rounds() {
	round=0
	while [ $(date +%s) -lt $end ]; do
		round=$((round + 1))
		fio --eta=never --randseed=$round --output=said stores.fio > errors 2>&1 || { cat errors said; return 1; }
	done
	echo "{\"loop_rounds\":$round}"
}
# There are requests in each part of the time, whatever waits for whom.
goes_on() {
	while [ $(date +%s) -lt $end ]; do
		last=$(requests)
		sleep $PART
		[ $(requests) -gt $last ] || { dmesg -n 8; echo w > /proc/sysrq-trigger; dmesg -n 5; return 1; }
	done
}
load() {
	end=$(($(date +%s) + $1))
	SECONDS_OF_LOADS=$1 fio --eta=never --output=loads loads.fio > /dev/null 2>&1 & loads=$!
	stress-ng --vm 2 --vm-bytes 192m --vm-keep --timeout $1 --oomable > /dev/null 2>&1 & stress=$!
	migrc_mover --seconds $1 > /dev/null 2>&1 & mover=$!
	rounds & stores=$!
}
ended() {
	wait $loads && wait $stores && wait $stress
}
dd if=/dev/zero of=/tmp/loop/clean bs=1M count=256 2> /dev/null || exit 125
names='pgsteal_kswapd|pgsteal_direct pswpout tlb_batch_pages tlb_batch_ranges'
count() {
	for name in $names; do
		counter $name
	done
}
before=$(count)
load $LENGTH
check "the loop device goes on" goes_on
check "fio finds what it wrote, and all end" ended
set -- $before $(count)
stolen=$(($5 - $1)) swapped=$(($6 - $2)) pages=$(($7 - $3)) ranges=$(($8 - $4))
echo "{\"loop_reclaimed\":$stolen,\"swapped\":$swapped,\"pages\":$pages,\"ranges\":$ranges}"
check "memory was reclaimed, and tmpfs swapped out" [ $stolen -gt 1000 -a $swapped -gt 100 ]
check "reclaim flushed several pages at once" [ $pages -gt $ranges ]

changed() {
	fio --eta=never --randseed=1 --output=said stores.fio > errors 2>&1 || return 1
	# fio wrote a third of the blocks.
	for block in $(seq 0 100 12200); do
		printf x | dd of=/tmp/loop/4k.0.0 bs=1 seek=$((block * 4096 + 100)) conv=notrunc 2> /dev/null
	done
	! fio --eta=never --randseed=1 --verify_only --output=said stores.fio > errors 2>&1
}
check "fio sees that its file was changed" changed

# Each flush takes longer than a part of the time, and the folios stay locked.
echo $((PART * 3000000)) > /sys/kernel/debug/tlb_batch/flush_delay_us || exit 125
end=$(($(date +%s) + 10 * PART))
SECONDS_OF_LOADS=$((10 * PART)) fio --eta=never --output=loads loads.fio > /dev/null 2>&1 & loads=$!
check "a file system that stops is noticed" eval '! goes_on > /dev/null 2>&1'
echo 0 > /sys/kernel/debug/tlb_batch/flush_delay_us
kill $loads
wait $loads
umount /tmp/loop
echo "1..$n"
exit $failed
"""


def programs(arch):
    return {"bin/fio": exercisers.fio(arch), **exercisers.stress_ng(arch)}


def loop(suite):
    """A file system on a loop device on tmpfs, while memory is short, for MINUTES."""
    minutes = int(os.environ.get("MINUTES") or 10)
    for arch in chosen(suite, "arm64"):
        files = there(suite, arch, "loop", programs)
        suite.left_out |= not files
        if files and kernel(suite, arch, IMAGE):
            boot(suite, "loop", arch, IMAGE, LOOP, files=files, env={"LENGTH": 60 * minutes, "PART": PART},
                 timeout=60 * minutes + GRACE, **GUEST)
