# SPDX-License-Identifier: GPL-2.0
"""Reading a guest's console: kernel reports, KTAP lines and JSON records.

Boots of guest.py have printk.time=1, so a timestamp tells a kernel line
from a line of a program, also when a message starts in the middle of a
program's line. Lines before the first timestamp are the early console's. A
console without any timestamp is judged by the text of its lines alone.
"""

import json
import re

STAMP = re.compile(r"\[ *\d+\.\d{6}\](?:\[ *[TC]\d+\])? ")

# Start of a kernel report. Each must be anchored: the command line, help texts
# and mitigations ("Spectre V2 : WARNING: ...") contain the same words.
START = re.compile(r"""
    -+\[\ cut\ here\ \]-+
  | (?:watchdog:\ )?(?:WARNING|BUG):\ \S
  | kernel\ BUG\ at\ \S
  | Kernel\ panic\ -\ not\ syncing
  | Internal\ error:\ \S
  | Oops(?::|\ -)
  | Unable\ to\ handle\ kernel\ \S
  | UBSAN:\ \S
  | general\ protection\ fault
  | SError\ Interrupt\ on\ CPU
  | Bad\ mode\ in\ \S
  | watchdog:.*hard\ LOCKUP
  | rcu:.*detected.*\ stall
  | INFO:\ (?:rcu\S*.*\ stall | task\ \S+\ blocked\b | possible\ | suspicious\ |
            trying\ to\ register\ )
  | page_table_check:\ .*(?:fail|corrupt|mismatch|bad\b)
  | kmemleak:\ \d+\ new\ suspected
""", re.X)
# An oops continues the message that names its cause, and ends with "end trace".
OOPS = re.compile(r"kernel BUG at|Internal error|Oops")
# Reports with an end mark; of a panic with panic=-1 it is the end of the console, unless a crash kernel follows.
MARKED = ("------------[ cut", "Kernel panic", "BUG: K")
JOB_EXIT = re.compile(r"^tlb-rs: job exit (\d+)\s*$")

RULER = re.compile(r"^=+$")
TRACE = re.compile(r"^Call [Tt]race:")
# The end of a panic is that of its kernel, or where the next one begins.
END = re.compile(r"^---\[ end |^Starting crashdump kernel")
# Column-0 lines that belong to a register dump between two parts of a trace.
REGISTERS = re.compile(r"^(?:Code|[RECDFG][0-9A-Z]{1,2}|ORIG_RAX|PKRU|RIP|Modules linked in"
                       r"|pstate|pc|lr|sp|x\d+|Hardware name|CPU|Tainted|Workqueue)\s*:")
MAX_LINES = 200

KTAP = re.compile(r"^\s*(?:(?:not )?ok \d+\b|K?TAP version \d+|1\.\.\d+|# )")
NOT_OK = re.compile(r"^\s*not ok \d+(?!.*#\s*(?:SKIP|TODO))", re.I)
CASE = re.compile(r"^\s*(?:not )?ok \d+\b", re.I)


def lines(text):
    """Yield (kernel, body): kernel is True, False, or None where unknown."""
    stamped = False
    for line in text.replace("\r", "").split("\n"):
        match = STAMP.search(line)
        if not match:
            yield (False if stamped else None), line
            continue
        stamped = True
        if match.start():
            yield False, line[:match.start()]
        # A line can only carry one more message, its rest up to the newline.
        yield True, line[match.end():]


def joined(text):
    """Without the kernel's messages: the halves of a line that one of them tore are one line again."""
    return re.sub(STAMP.pattern + r".*\n?", "", text.replace("\r", ""))


def splats(text):
    """The reports in a console, each with all its lines."""
    found, current, previous = [], [], ""
    # marked: the report ends with a mark of its own, not where its trace does.
    marked = traced = False

    def close():
        if current:
            found.append("\n".join(current))
            current.clear()

    for kernel, body in lines(text):
        if not kernel and JOB_EXIT.match(body):
            close()
            continue
        if kernel is False:
            continue
        start = START.match(body)
        follows = OOPS.match(body)
        if current and not marked and not END.match(body):
            text_line = not (body[:1] in (" ", "\t", "<") or REGISTERS.match(body)
                             or TRACE.match(body))
            # What comes after the trace is another message. Not every report
            # has a trace, so a second start also ends the first.
            if (traced and text_line) or (start and not follows):
                close()
        if current:
            current.append(body)
        elif start:
            current += [previous, body] if RULER.match(previous) else [body]
            marked = traced = False
        if current:
            marked = marked or bool(follows) or body.startswith(MARKED)
            traced = traced or bool(TRACE.match(body))
            kasan = RULER.match(body) and RULER.match(current[0])
            if END.match(body) or (marked and kasan) or len(current) >= MAX_LINES:
                close()
        previous = body
    close()
    return found


def ktap(text):
    return [body for _, body in lines(text) if KTAP.match(body)]


def failed_cases(text, most=10):
    """Each failed case of the job, after what it said of itself."""
    found, said = [], []
    for kernel, body in lines(text):
        if kernel:
            continue
        if NOT_OK.match(body):
            found += [*said[-most:], body]
        if CASE.match(body):
            said = []
        elif body.startswith("#"):
            said.append(body)
    return found


def kernel_not_ok(text):
    """Failed cases of KUnit: nothing else would fail the boot for them."""
    return [body.strip() for kernel, body in lines(text) if kernel and NOT_OK.match(body)]


def records(text):
    """(JSON objects, what is wrong with those that cannot be read)."""
    good, bad = [], []
    for kernel, body in lines(text):
        if kernel or not body.startswith('{"'):
            continue
        try:
            good.append(json.loads(body))
        except ValueError:
            bad.append("unreadable JSON line (torn by a kernel message?): " + body[:160])
    return good, bad


def job_exit(text):
    """The job's exit status, or None if the console does not say."""
    status = None
    for kernel, body in lines(text):
        match = None if kernel else JOB_EXIT.match(body)
        if match:
            status = int(match.group(1))
    return status


def meter_output(text):
    """Split the plugin's file: (regions, oracle errors, summary, problems)."""
    regions, errors, summary, problems = [], [], None, []
    for line in text.splitlines():
        try:
            item = json.loads(line)
        except ValueError:
            problems.append("unreadable meter line: " + line[:160])
            continue
        if "region" in item:
            regions.append(item)
        elif "oracle" in item:
            errors.append(item)
        elif "oracle_summary" in item:
            summary = item["oracle_summary"]
        else:
            problems.append("unknown meter line: " + line[:160])
    return regions, errors, summary, problems


def join(found, regions):
    """Give the n-th record of a region the n-th region of the meter."""
    named = [record for record in found if "region" in record]
    regions = sorted(regions, key=lambda region: region["region"])
    if [region["region"] for region in regions] != list(range(len(regions))):
        return ["the meter's regions are not numbered 0..n: "
                + str([region["region"] for region in regions])]
    if len(named) != len(regions):
        return [f"the console names {len(named)} regions, the meter saw {len(regions)}"]
    for record, region in zip(named, regions):
        record["meter"] = region
    return []
