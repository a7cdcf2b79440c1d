# SPDX-License-Identifier: GPL-2.0
"""Which samples of a profile (tlb_batch_profile) lie in TLB maintenance, by the instructions in vmlinux."""

import struct
from pathlib import Path

# arm64: (mask, value) of TLBI (with and without nXS) and of DSB
MAINTENANCE = ((0xfff8f000, 0xd5088000), (0xfff8f000, 0xd5089000), (0xfffff0ff, 0xd503309f))


class Text:
    """The instructions of an ELF64 image by their virtual address."""

    def __init__(self, path):
        self.image = Path(path).read_bytes()
        offset, = struct.unpack_from("<Q", self.image, 32)
        size, number = struct.unpack_from("<HH", self.image, 54)
        headers = [struct.unpack_from("<IIQQQQ", self.image, offset + i * size) for i in range(number)]
        self.loads = [(va, va + length, at) for kind, _, at, va, _, length in headers if kind == 1]

    def word(self, address):
        for begin, end, at in self.loads:
            if begin <= address < end:
                return struct.unpack_from("<I", self.image, at + address - begin)[0]
        return None

    def maintains_tlb(self, address):
        word = self.word(address)
        return word is not None and any(word & mask == value for mask, value in MAINTENANCE)


def shares(records, text):
    """(samples, share below the function, share of those in flush code) of the profiles in `records`."""
    samples = sum(r["samples"] for r in records)
    below = sum(r["below"] for r in records)
    # The interrupt that samples is taken before the next instruction: the one before it took the time.
    flush = sum(n for r in records for ip, n in r["at"].items() if text.maintains_tlb(int(ip, 16) - 4))
    return samples, below / samples if samples else None, flush / below if below else None
