# SPDX-License-Identifier: GPL-2.0
"""Contents of HugeTLB pages, for a guest that has the distribution's Python: it is no part of the package.

usage: hugepages.py fill FILE LENGTH COUNT STEP     a file of hugetlbfs: COUNT pages of LENGTH bytes, a word in each STEP-th
                                                    base page; prints where some of these are: [address, number] of each
       hugepages.py check FILE LENGTH COUNT STEP    the words are still there
       hugepages.py core CORE WHERE                 they are in an ELF core, at the addresses in the file WHERE
"""

import json
import mmap
import os
import struct
import sys

BASE = 4096
SEED = 0x746c622d7273
PT_LOAD = 1


def contents(number):
    return struct.pack("<QQ", SEED, number) * (BASE // 16)


def numbers(length, count, step):
    return range(0, length * count // BASE, step)


def mapped(path, size):
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(handle, size)
    return mmap.mmap(handle, size)


def address_of(memory):
    """Where a mapping is: pagemap is by virtual addresses."""
    import ctypes   # pylint: disable=import-outside-toplevel
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def frames(virtual, some):
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        for number in some:
            entry, = struct.unpack("<Q", os.pread(pagemap.fileno(), 8, (virtual // BASE + number) * 8))
            yield [(entry & (1 << 55) - 1) * BASE, number]


def fill(path, length, count, step):
    memory = mapped(path, length * count)
    for number in numbers(length, count, step):
        memory[number * BASE:(number + 1) * BASE] = contents(number)
    # Of each HugeTLB page its first word, one in the middle and the last.
    each = length // BASE
    some = [at // step * step for page in range(count)
            for at in (page * each + step - 1, page * each + each // 2, page * each + each - 1)]
    return {"filled": len(numbers(length, count, step)), "where": list(frames(address_of(memory), some))}


def check(path, length, count, step):
    memory = mapped(path, length * count)
    wrong = sum(memory[n * BASE:(n + 1) * BASE] != contents(n) for n in numbers(length, count, step))
    return {"looked": len(numbers(length, count, step)), "wrong": wrong}


def segments(core):
    """(physical address, offset in the file, length there) of what an ELF core has."""
    header = os.pread(core, 64, 0)
    if header[:5] != b"\x7fELF\x02":
        raise ValueError("not an ELF core of 64 bits")
    offset, = struct.unpack_from("<Q", header, 32)
    size, count = struct.unpack_from("<HH", header, 54)
    for at in range(offset, offset + size * count, size):
        kind, _, start, _, physical, length = struct.unpack_from("<IIQQQQ", os.pread(core, size, at))
        if kind == PT_LOAD:
            yield physical, start, length


def core(path, where):
    handle, found, wrong, absent = os.open(path, os.O_RDONLY), 0, 0, 0
    have = list(segments(handle))
    with open(where, encoding="ascii") as lines:
        wanted = [pair for line in lines for pair in json.loads(line)["where"]]
    for address, number in wanted:
        at = next((start + address - physical for physical, start, length in have
                   if physical <= address < physical + length), None)
        if at is None:
            absent += 1
        elif os.pread(handle, BASE, at) == contents(number):
            found += 1
        else:
            wrong += 1
    return {"core": os.path.basename(path), "found": found, "wrong": wrong, "absent": absent}


def main():
    what, path, *words = sys.argv[1:]
    result = core(path, *words) if what == "core" else {"fill": fill, "check": check}[what](path, *map(int, words))
    print(json.dumps(result, separators=(",", ":")))


if __name__ == "__main__":
    main()
