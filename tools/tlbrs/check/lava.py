# SPDX-License-Identifier: GPL-2.0
"""Check jobs against LAVA's own schema.

usage: tlb-rs lava [JOB.yaml...]     (none: the job of ci/lava, as its README fills it in, and spoilt; prints KTAP)

The schema comes with Debian's lava-common, which is fetched into the cache with what it needs; nothing is installed.
"""

import re
import string
import sys
from pathlib import Path

from tlbrs.kernel import source
from tlbrs.kernel.common import CACHE, ROOT, Fail, say

PLACE = CACHE / "lava"
PACKAGES = ("lava-common", "python3-voluptuous", "python3-yaml")
JOB = ROOT / "ci/lava/arm64-board.yaml"
# What a lab would refuse: (what is wrong with it, what is there, what is there instead).
SPOILT = (("no name", "job_name:", "name:"), ("an unknown way to boot", "method: u-boot", "method: magic"),
          ("an unknown place for the kernel", "to: tftp", "to: nowhere"), ("a test without steps", "steps:", "stairs:"),
          ("no YAML", "actions:", "actions: ["))


def schema():
    """A function that says what is wrong with the text of a job, or None."""
    source.unpacked(PACKAGES, PLACE)
    sys.path.insert(0, str(PLACE / "usr/lib/python3/dist-packages"))
    # pylint: disable=import-error,import-outside-toplevel
    import voluptuous
    import yaml
    from lava_common.schemas import validate

    def wrong(text):
        try:
            validate(yaml.safe_load(text), strict=True)
        except voluptuous.Invalid as e:
            return f"{'.'.join(map(str, e.path))}: {e.msg}"
        except yaml.YAMLError as e:
            return f"no YAML: {e}"
        return None
    return wrong


def filled():
    """The job with the values that its README exports."""
    text = (ROOT / "ci/lava/README.md").read_text(encoding="utf-8")
    line = re.search(r"^ +export (DEVICE_TYPE=.*)$", text, re.M).group(1)
    # As envsubst: what is no variable stays.
    job = string.Template(JOB.read_text(encoding="utf-8")).safe_substitute(dict(word.split("=", 1) for word in line.split()))
    if left := re.search(r"\$\{\w+\}", job):
        raise Fail(f"ci/lava/README.md exports no {left.group()}")
    return job


def own_job():
    job = filled()
    cases = [("the job", job, True)]
    for what, right, spoilt in SPOILT:
        if job.count(right) != 1:
            raise Fail(f"{JOB} has no single '{right}' to spoil")
        cases.append((f"refused: {what}", job.replace(right, spoilt), False))
    print(f"KTAP version 1\n1..{len(cases)}")
    try:
        wrong, why = schema(), ""
    except Fail as e:
        why = str(e).partition("\n")[0]
    failed = 0
    for number, (name, text, fits) in enumerate(cases, 1):
        if why:
            print(f"ok {number} {name} # SKIP {why}")
            continue
        said = wrong(text)
        failed += (said is None) != fits
        print(f"{'ok' if (said is None) == fits else 'not ok'} {number} {name}" + "".join(f"\n# {s}" for s in (said or "").splitlines()))
    return 1 if failed else 0


def cli():
    if not sys.argv[1:]:
        return own_job()
    wrong = schema()
    bad = {name: said for name in sys.argv[1:] if (said := wrong(Path(name).read_text(encoding="utf-8")))}
    for name, said in bad.items():
        say(f"{name}: {said}")
    return 1 if bad else 0
