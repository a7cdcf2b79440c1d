# SPDX-License-Identifier: GPL-2.0
"""A plan for Fastpath, Arm's runner of benchmarks: what is in it, and whether it is one.

The keys are those of its documents and of published plans; plan.schema.json has them, and refuses others. A version of
Fastpath may know more.
"""

import importlib.util
import json
import re
import sys
from pathlib import Path

from tlbrs.kernel import toolchain
from tlbrs.kernel.common import Fail

SCHEMA = Path(__file__).with_name("plan.schema.json")
LIBRARY = "fastpath/benchmarks"
# What can gain, and what must not lose: memory of one process that is unmapped at once takes one flush on stock, too.
WANTED = re.compile(r"(^|/)(thp|micromm|will-it-scale)|stress-?ng.*(mmap|migrate)")
# Where there is no checkout to look into. kernbench.yaml is in a published plan; of the others the suites and names
# are in published tables of results.
PUBLISHED = ("mmtests/kernbench.yaml", "micromm/munmap.yaml", "micromm/fork.yaml")
PROFILES = (("stock", "stock", ()), ("tlb-rs-off", "tlb-rs", ("sysctl.vm.tlb_batch=0",)), ("tlb-rs", "tlb-rs", ()))
UNVERIFIED = "unverified: not run with Fastpath itself yet"
# As PyPI calls them, for a Python that is not the distribution's.
PYPI = {"yaml": "PyYAML", "jsonschema": "jsonschema"}


def lacking():
    """The command that installs what this Python has not, or ""."""
    absent = [m for m in PYPI if not importlib.util.find_spec(m)]
    if not absent:
        return ""
    if sys.prefix == "/usr":
        return f"{toolchain.SUDO}apt-get install -y " + " ".join(toolchain.FASTPATH_MODULES[m] for m in absent)
    return f"{sys.executable} -m pip install " + " ".join(PYPI[m] for m in absent)


def benchmarks(checkout):
    """Those of a checkout that have to do with us, or those that are known without one."""
    if not checkout:
        return list(PUBLISHED)
    library = Path(checkout) / LIBRARY
    names = sorted(str(f.relative_to(library)) for f in library.rglob("*.yaml"))
    if not names:
        raise Fail(f"FASTPATH={checkout}: no benchmarks in {library}: name the directory of a checkout of Fastpath")
    if not (found := [name for name in names if WANTED.search(name)]):
        raise Fail(f"FASTPATH={checkout}: none of its {len(names)} benchmarks is of memory that moves, for example {names[0]}")
    return found


def made(place, names):
    """The plan for two kernels in a directory, and these benchmarks."""
    profiles = [{"name": name, "kernel": f"{place}/{kernel}/Image.gz", "modules": f"{place}/{kernel}/modules.tar.xz"} |
                ({"cmdline": list(words)} if words else {}) for name, kernel, words in PROFILES]
    return {"sut": {"name": "my-board", "connection": {"method": "SSH", "params": {"host": "BOARD", "user": "fpuser"}}},
            "swprofiles": profiles, "benchmarks": [{"include": name} for name in names],
            "defaults": {"benchmark": {"warmups": 1, "repeats": 3, "sessions": 3, "timeout": "2h"}}}


def comment(checkout):
    """What stands above the plan."""
    lines = [f"Plan for Arm's Fastpath, {UNVERIFIED}.", "sut: the address of the board, and a user with sudo and without a "
             "password.", "tlb-rs-off has the same image as tlb-rs."]
    if checkout:
        lines.append(f"benchmarks: of {Path(checkout).resolve()}.")
    else:
        lines += ["benchmarks: mmtests/kernbench.yaml is in a published plan. micromm/munmap and micromm/fork are in published",
                  "results, so their files are a guess. Both must not get slower. Whoever has a checkout gets more:",
                  "make fastpath FASTPATH=dir"]
    return "".join(f"# {line}\n" for line in lines)


def text(place, checkout=None):
    """The same as YAML."""
    import yaml     # pylint: disable=import-outside-toplevel
    return comment(checkout) + yaml.safe_dump(made(place, benchmarks(checkout)), sort_keys=False, width=1000)


def wrong(said):
    """What is wrong with the text of a plan, or None."""
    # pylint: disable=import-outside-toplevel
    import jsonschema
    import yaml
    try:
        plan = yaml.safe_load(said)
        jsonschema.validate(plan, json.loads(SCHEMA.read_text(encoding="utf-8")))
    except yaml.YAMLError as e:
        return f"no YAML: {' '.join(str(e).split())}"
    except jsonschema.ValidationError as e:
        return f"{'.'.join(map(str, e.absolute_path)) or 'the plan'}: {e.message}"
    names = [profile["name"] for profile in plan["swprofiles"]]
    if len(set(names)) < len(names):
        return f"swprofiles: two have one name: {', '.join(names)}"
    files = [profile[key] for profile in plan["swprofiles"] for key in ("kernel", "modules")]
    return next((f"swprofiles: no file {f}" for f in files if not Path(f).is_file()), None)
