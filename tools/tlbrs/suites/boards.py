# SPDX-License-Identifier: GPL-2.0
"""What make fastpath makes, from a configuration that is small enough: the kernels, their modules, the plan."""

import re
import shutil
import subprocess

from tlbrs.boards import fastpath as command, plan
from tlbrs.guest import guest, initramfs
from tlbrs.kernel import common, kernel as kernel_tool, source
from tlbrs.kernel.common import ROOT
from tlbrs.suites.harness import KVER, LOGS, chosen, make

SMALL = "fastpath-test.fragment"
MODULE = "rust_minimal"
JOB = f"""echo "batch=$(cat /proc/sys/vm/tlb_batch 2>/dev/null || echo none)"
insmod /{MODULE}.ko && rmmod {MODULE} && echo "release=$(uname -r)"
"""
# What has no prompt, and follows from what hvo selects.
FOLLOWS = {f"CONFIG_{o}" for o in ("HUGETLB_PAGE_OPTIMIZE_VMEMMAP", "SPARSEMEM_VMEMMAP_PREINIT", "TASKS_RCU", "TASKS_RCU_GENERIC")}
# What the running kernel says of each profile.
BATCH = {"stock": "none", "tlb-rs-off": "0", "tlb-rs": "1"}


def small():
    """CONFIG=: tinyconfig, and what the guest needs."""
    out = LOGS / "fastpath-base"
    out.mkdir(parents=True, exist_ok=True)
    words, env = kernel_tool.maker(source.linux(KVER), out, command.ARCH)
    common.logged([*words, "tinyconfig"], out / "config.log", "configuring the smallest kernel", env=env)
    return f"{out / '.config'} {ROOT / 'config' / SMALL}"


def listed(archive):
    return subprocess.run(["tar", "-tJf", archive], check=True, capture_output=True, text=True).stdout.splitlines()


def unlike(place):
    """The options that both kernels have, but not with the same value."""
    stock, ours = (kernel_tool.options((place / name / "config").read_text(encoding="utf-8")) for name in command.KERNELS)
    return sorted(o for o in set(stock) | set(ours) if stock.get(o, "n") != ours.get(o, "n") and o != "CONFIG_LOCALVERSION")


def not_ours(tree, stock, names):
    """Of options those that the stock tree has, too, and that nothing of the series selects."""
    def known(top):
        said = common.output(["grep", "-rhoE", "--include=Kconfig*", r"^(menu)?config [A-Z0-9_]+", "."], cwd=top)
        return {f"CONFIG_{line.split()[1]}" for line in said.splitlines()}
    there, before = known(tree), known(stock)
    kconfigs = "".join(f.read_text(encoding="utf-8") for f in (ROOT / "mm").glob("*/Kconfig"))
    selected = {f"CONFIG_{o}" for o in re.findall(r"^\s+select (\w+)", kconfigs, re.M)}
    return [n for n in names if n not in (there - before) | selected | FOLLOWS]


def booted(suite, place, profile):
    """One profile of the plan: its image, its modules, its words on the command line."""
    name, image = profile["name"], profile["kernel"]
    with_module = LOGS / f"fastpath-{name}"
    shutil.rmtree(with_module, ignore_errors=True)
    with_module.mkdir()
    subprocess.run(["tar", "-C", with_module, "-xJf", profile["modules"]], check=True)
    found = sorted(with_module.rglob(f"{MODULE}.ko"))
    if not suite.check(f"{name}: the archive has the module", len(found) == 1, f"{len(found)} of them"):
        return
    result = guest.boot(image, command.ARCH, JOB, append=" ".join(profile.get("cmdline", ())), nodes=1,
                        files={f"{MODULE}.ko": found[0]}, log=LOGS / f"fastpath-{name}.log")
    if not suite.check(f"{name}: boots, loads the module", result.exit_status == guest.OK, f"{result.seconds:.0f} s"):
        suite.say(result.report())
    said = dict(re.findall(r"^(batch|release)=(\S+)", result.console, re.M))
    suite.check(f"{name}: vm.tlb_batch is {BATCH[name]}", said.get("batch") == BATCH[name], said.get("batch", "not said"))
    suite.check(f"{name}: the release is that of its modules", said.get("release") == found[0].relative_to(
        with_module / "lib/modules").parts[0], said.get("release", "not said"))


def fastpath(suite):
    """Two kernels and a plan, each profile of which boots as it says. Not Fastpath itself."""
    if not chosen(suite, command.ARCH):
        return
    if why := plan.lacking():
        suite.skip("make fastpath", why)
        suite.left_out = True
        return
    place = LOGS / "fastpath"
    shutil.rmtree(place, ignore_errors=True)
    words = make("fastpath", f"OUT={place}", f"ARCH={command.ARCH}", f"KVER={KVER}", f"CONFIG={small()}")
    if not suite.check("make fastpath", common.status(words, cwd=ROOT) == 0):
        return
    import yaml     # pylint: disable=import-outside-toplevel
    said = (place / "plan.yaml").read_text(encoding="utf-8")
    what = plan.wrong(said)
    suite.check("the plan is one", not what, what or "")
    lines = (place / "README").read_text(encoding="utf-8").splitlines()
    suite.check("README: five lines, one of which says what was not tried", len(lines) == 5 and
                any(line.startswith(plan.UNVERIFIED) for line in lines), f"{len(lines)} lines")
    linked = [line for name in command.KERNELS for line in listed(place / name / "modules.tar.xz") if line.endswith("/build")]
    suite.check("no module archive links to this machine", not linked, " ".join(linked))
    other = not_ours(kernel_tool.BUILD / KVER / "linux", source.linux(KVER), unlike(place))
    suite.check("the kernels differ in options of ours alone", not other, ", ".join(other))
    initramfs.build(command.ARCH)
    for profile in yaml.safe_load(said)["swprofiles"]:
        booted(suite, place, profile)
