# SPDX-License-Identifier: GPL-2.0
"""List the names that users see: sysctls, parameters, counters, files, tracepoints, and the words in them.

usage: tlb-rs abi [TREE]     TREE: a checkout of this repository, or of an older state of it

Two lists that are the same, sorted lines, say that a change left the interface as it was:

    git worktree add before COMMIT; diff <(tools/tlb-rs abi before) <(tools/tlb-rs abi)
"""

import re
import sys
from pathlib import Path

from tlbrs.check.size import C_TOKEN
from tlbrs.kernel.common import ROOT

KERNEL = ("arch", "drivers", "include", "mm", "samples")
# (what, where it is looked for, the name)
PATTERNS = (
    ("sysctl vm", r"\.c$", r"\.procname\s*=\s*\"(\w+)\""),
    ("parameter {module}", r"\.c$", r"\bmodule_param(?:_cb|_named)?\((\w+)"),
    ("debugfs {module}", r"\.c$", r"\bdebugfs_create_(?!dir)\w+\(\s*\"([^\"]+)\""),
    ("debugfs", r"\.c$", r"\bdebugfs_create_dir\(\s*\"([^\"]+)\""),
    ("tracepoint", r"trace/events/\w+\.h$", r"\bTRACE_EVENT\((\w+)"),
    ("tracepoint format", r"trace/events/\w+\.h$", r"\bTP_printk\(((?:\s*\"[^\"]*\")+)"),
    # Names in stats, skip_hook and tracepoints: of arrays, of lists, and of lines.
    ("word {module}", r"\.[ch]$", r"\[\w+_\w+\]\s*=\s*\"([^\"]+)\""),
    ("word {module}", r"\.[ch]$", r"\bEM\(\w+,\s*\"([^\"]+)\"\)"),
    ("word {module}", r"\.[ch]$", r"\{ \w+, \"([^\"]+)\" \}"),
    ("line {module}", r"\.c$", r"\bseq_(?:printf|puts)\(\w+,\s*\"([^\"]+)\""),
)
STRINGS = re.compile(r"\"\s*\"")
VMSTAT = re.compile(r"^\+.*?\"(\w+)\"", re.M)
OPTION = r"(?m)^{}(?:menu)?config (\w+)"


def uncommented(text):
    return C_TOKEN.sub(lambda m: "" if m.group().startswith("/") else m.group(), text)


def names(root):
    found = set()
    for file in (f for d in KERNEL for f in (root / d).rglob("*") if f.suffix in (".c", ".h")):
        path = file.relative_to(root).as_posix()
        module = next((m for m in ("tlb_batch", "migrc", "hvo", "pause", "gic") if m in path.replace("tlb_check", "tlb_batch")),
                      "common")
        text = uncommented(file.read_text(encoding="utf-8"))
        for what, where, pattern in PATTERNS:
            if re.search(where, path):
                for name in re.findall(pattern, text):
                    found.add(what.format(module=module) + " " + STRINGS.sub("", name).strip())
    for patch in (root / "patches").rglob("*.patch"):
        for part in re.split(r"(?m)^--- ", patch.read_text(encoding="utf-8", errors="replace"))[1:]:
            changed = part.split("\n", 1)[0]
            if "mm/vmstat.c" in changed:
                found |= {f"vmstat {name}" for name in VMSTAT.findall(part)}
            if "/Kconfig" in changed:
                found |= {f"option {name}" for name in re.findall(OPTION.format(r"\+"), part)}
    for kconfig in (*root.glob("Kconfig*"), *(root / "mm").rglob("Kconfig*")):
        found |= {f"option {name}" for name in re.findall(OPTION.format(""), kconfig.read_text(encoding="utf-8"))}
    return sorted(found)


def main():
    print("\n".join(names(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)))
