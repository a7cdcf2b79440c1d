# SPDX-License-Identifier: GPL-2.0
"""Two kernels, stock and tlb-rs, of one configuration, and a plan with which Arm's Fastpath compares them on a board.

usage: tlb-rs fastpath --out DIR [--config FILE...] [--kver K] [--kdir DIR] [--fastpath CHECKOUT]
       tlb-rs fastpath --check PLAN

The plan is checked against the keys that are published; it was not run with Fastpath itself yet.
"""

import argparse
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tlbrs.boards import plan
from tlbrs.kernel import kernel, source, toolchain
from tlbrs.kernel.common import BUILD, ROOT, Fail, dotted, lock, logged, need_space, say
from tlbrs.kernel.overlay import tree_version

# The only one of Fastpath's boards, and of an Image.gz.
ARCH = "arm64"
KERNELS = ("stock", "tlb-rs")
# Fastpath runs each benchmark in a container of Docker.
DOCKER = ("NAMESPACES", "CGROUPS", "MEMCG", "OVERLAY_FS", "VETH", "BRIDGE", "NF_NAT")
README = """\
Two kernels, Linux {ver} from {config}: stock, and tlb-rs with vm.tlb_batch on and off. plan.yaml is for Arm's Fastpath.
{unverified}. It was checked against the keys that Fastpath's documents and published plans show.
In plan.yaml, BOARD is the board's address; its paths are those of this machine, where Fastpath has to run.
Run it:     fastpath plan exec --output results/ {place}/plan.yaml
Compare:    fastpath result show results/ --swprofile stock --swprofile tlb-rs --relative
"""


def fragments(name):
    """As for packages: both kernels have Rust; only one has what is ours."""
    names = [f for f in kernel.deb_fragments(ARCH) if name == "tlb-rs" or f == "deb"]
    return [ROOT / "config" / f"{f}.fragment" for f in names + (["fastpath-stock"] if name == "stock" else [])]


def archive(make, env, out, place):
    """The modules of what was built in out, as one file for the root directory of the board."""
    with tempfile.TemporaryDirectory(prefix="tlb-rs-") as root:
        logged([*make, f"INSTALL_MOD_PATH={root}", "INSTALL_MOD_STRIP=1", "modules_install"], out / "modules.log",
               f"collecting modules of {out.name}", env=env)
        # A link to the directory of the build, which a board has not.
        for release in Path(root, "lib/modules").iterdir():
            (release / "build").unlink(missing_ok=True)
        subprocess.run(["tar", "-C", root, "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "-cJf", place, "lib"],
                       check=True, env=os.environ | {"XZ_OPT": "-T0"})


def build(name, src, a, start, more):
    """One kernel; returns (make, environment, its directory)."""
    out = BUILD / a.tree / f"{ARCH}-fastpath-{name}"
    out.mkdir(parents=True, exist_ok=True)
    make, env = kernel.maker(src, out, ARCH)
    kernel.configure(make, env, src, out, ARCH, fragments(name) + more, a.tree, start)
    config = kernel.options((out / ".config").read_text(encoding="utf-8"))
    if config.get("CONFIG_MODULES") != "y":
        raise Fail(f"CONFIG={a.config[0] if a.config else start} has no CONFIG_MODULES, and Fastpath takes a file of modules")
    lacks = [option for option in DOCKER if config.get(f"CONFIG_{option}", "n") == "n"]
    if lacks and name == KERNELS[0]:
        say(f"note: this configuration has no {', '.join(lacks)}, which Docker on the board needs, and with it Fastpath")
    if not (out / "vmlinux").exists():
        need_space(out, 15, "the kernel of a distribution")
    logged([*make, kernel.JOBS, "Image.gz", "modules"], out / "build.log", f"building {a.tree}/{out.name}", kernel.OBJECT,
           env=env)
    return make, env, out


def fastpath(a):
    start, more = kernel.deb_config(a)
    place = Path(a.out).resolve()
    if place.exists() and not place.is_dir():
        raise Fail(f"OUT={a.out} is no directory")
    plan.benchmarks(a.fastpath)     # before the hours of the builds
    toolchain.need(["kernel", "fastpath"])
    if command := plan.lacking():
        raise Fail(f"the plan is checked with PyYAML and jsonschema, which are not here\n  {command}")
    a.tree, base, ident = kernel.base_tree(a.kver, a.kdir)
    patched = kernel.patched_tree(a.tree, base, ident).path
    for name in KERNELS:
        make, env, out = build(name, base if name == "stock" else patched, a, start, more)
        to = place / name
        to.mkdir(parents=True, exist_ok=True)
        shutil.copy(out / "arch/arm64/boot/Image.gz", to)
        shutil.copy(out / ".config", to / "config")
        archive(make, env, out, to / "modules.tar.xz")
    said = plan.text(place, a.fastpath)
    if what := plan.wrong(said):
        raise Fail(f"the plan is wrong: {what}")
    (place / "plan.yaml").write_text(said, encoding="utf-8")
    (place / "README").write_text(README.format(ver=dotted(tree_version(base)), config=start, place=place,
                                                unverified=plan.UNVERIFIED), encoding="utf-8")
    print(place / "plan.yaml")
    say(f"{plan.UNVERIFIED}; {place}/README says how to")
    return 0


def cli():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("--arch", default=ARCH)
    p.add_argument("--kver", default=source.KVERS[0])
    # dash does not expand the ~ of make OUT=~/out.
    for name in ("kdir", "out", "fastpath", "check"):
        p.add_argument(f"--{name}", type=os.path.expanduser)
    p.add_argument("--config", nargs="+", type=os.path.expanduser)
    a = p.parse_args()
    a.command = "fastpath"
    if a.check:
        if command := plan.lacking():
            raise Fail(f"no PyYAML, or no jsonschema\n  {command}")
        if what := plan.wrong(Path(a.check).read_text(encoding="utf-8")):
            raise Fail(f"{a.check}: {what}")
        return 0
    source.check(a.kver)
    if a.arch != ARCH:
        raise Fail(f"ARCH={a.arch}: Fastpath's boards are arm64, and take an Image.gz, which {a.arch} has not")
    if not a.out:
        raise Fail("name a directory for kernels and plan: make fastpath OUT=dir")
    if a.kdir:
        kernel.stock_kdir(a.kdir)
    with lock(BUILD / "lock", "kernel build"):
        return fastpath(a)
