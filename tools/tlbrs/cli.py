# SPDX-License-Identifier: GPL-2.0
"""The commands of tools/tlb-rs. A command imports only what it needs."""

import importlib
import sys

from tlbrs.kernel import common

# command: (module:function, what it does)
COMMANDS = {
    "kernel": ("kernel.kernel:cli", "build a kernel, and what is done with the patched tree"),
    "toolchain": ("kernel.toolchain:cli", "what a build needs: doctor, need"),
    "guest": ("guest.guest:cli", "boot a kernel in QEMU, and run a job in it"),
    "run": ("report.run:main", "compare stock and tlb-rs"),
    "test": ("suites.test:main", "test suites"),
    "matrix": ("suites.matrix:main", "build, boot and test other kernels"),
    "bench": ("bench.bench:main", "measurements"),
    "selftests": ("selftests.selftests:main", "the kernel tree's own mm selftests, compared"),
    "soak": ("soak.soak:main", "long stress under the oracle"),
    "rules": ("check.rules:main", "tables of rules: --check, --write"),
    "policy": ("check.policy:main", "decisions in C"),
    "size": ("check.size:main", "lines of code"),
    "abi": ("check.abi:main", "names that users see"),
    "meter": ("check.meter:main", "self-test of the QEMU plugin"),
    "litmus": ("check.litmus:main", "litmus tests"),
    "herd7": ("check.herd7:main", "fetch herd7 into the cache, for the litmus tests"),
    "lava": ("check.lava:cli", "check jobs for boards"),
    "mmci": ("boards.mmci:cli", "the mm selftests as the CI of the mm tree runs them"),
    "fastpath": ("boards.fastpath:cli", "two kernels and a plan for Arm's Fastpath"),
}
# These have no parser of options: the comment at the top of the module is the help.
BY_COMMENT = ("toolchain", "test", "rules", "policy", "abi", "litmus", "herd7", "lava")


def usage():
    lines = "".join(f"  {name:10} {about}\n" for name, (_, about) in COMMANDS.items())
    return f"usage: tools/tlb-rs COMMAND [ARGUMENT...]     COMMAND --help says more\n\n{lines}"


def main():
    name, *words = sys.argv[1:] or ("",)
    if name in ("-h", "--help"):
        print(usage(), end="")
        sys.exit(0)
    if name not in COMMANDS:
        print(usage(), end="", file=sys.stderr)
        sys.exit(2)
    module, _, function = COMMANDS[name][0].partition(":")
    # argparse names the program after its first word.
    sys.argv = [f"tlb-rs {name}", *words]
    found = importlib.import_module(f"tlbrs.{module}")
    if name in BY_COMMENT and words in (["-h"], ["--help"]):
        print(found.__doc__.strip())
        sys.exit(0)
    common.main(getattr(found, function))
