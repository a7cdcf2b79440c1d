# SPDX-License-Identifier: GPL-2.0
"""Put Debian's herd7 into the cache, where tlb-rs litmus finds it, and print its path.

Nothing is installed: the packages are downloaded as the kernel source is, and unpacked with the C
library that they were built for, because the machine's may be older.
"""

import shutil

from tlbrs.kernel import source
from tlbrs.kernel.common import CACHE

HERD7 = CACHE / "herd7/herd7"
PACKAGES = ("herdtools7", "libc6", "libgmp10")
WRAPPER = """#!/bin/sh
root=$(dirname "$0")/root
lib=$(echo "$root"/usr/lib/*-linux-gnu*)
exec "$lib"/ld-linux-*.so.* --library-path "$lib" "$root/usr/bin/herd7" \\
\t-set-libdir "$root/usr/share/herdtools7/herd" "$@"
"""


def fetch():
    root = HERD7.parent / "root"
    if not HERD7.exists():
        shutil.rmtree(root, ignore_errors=True)
    source.unpacked(PACKAGES, root)
    if not HERD7.exists():
        tmp = HERD7.with_suffix(".tmp")
        tmp.write_text(WRAPPER, encoding="ascii")
        tmp.chmod(0o755)
        tmp.rename(HERD7)


def main():
    fetch()
    print(HERD7)
