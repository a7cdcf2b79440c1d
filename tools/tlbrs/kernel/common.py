# SPDX-License-Identifier: GPL-2.0
"""What the build tools share: places, errors, locks, long commands with progress."""

import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
# Elsewhere only for the tests of these tools; guests and reports look into ROOT/build.
BUILD = Path(os.environ.get("TLB_RS_BUILD") or ROOT / "build").resolve()
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tlb-rs"
GIB = 1 << 30


class Fail(Exception):
    """An error that the user can act on; its text says how."""


def say(text):
    print(text, file=sys.stderr, flush=True)


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def version(text):
    """(7, 3, 4) of the first dotted number in text."""
    m = re.search(r"\d+(?:\.\d+)+", text or "")
    return tuple(map(int, m.group().split("."))) if m else ()


def dotted(v):
    return ".".join(map(str, v))


def one_of(variable, value, values):
    """A variable of make: argparse looks at no default of choices=, and complains of options that nobody gave."""
    if value not in values:
        raise Fail(f"{variable}={value}: one of {', '.join(values)}")


def given(variable):
    """What the caller names in a variable, or ""; dash does not expand the ~ of make RUSTC=~/rustc."""
    return os.path.expanduser(os.environ.get(variable) or "")


def kver():
    """KVER=; the Makefile has the same default."""
    return os.environ.get("KVER") or "7.3"


def output(cmd, **kw):
    """Standard output of cmd, or "" where it cannot run or fails."""
    try:
        p = subprocess.run([str(c) for c in cmd], capture_output=True, text=True, check=False, **kw)
    except OSError:
        return ""
    return p.stdout if p.returncode == 0 else ""


def need_space(path, gib, what):
    """Fail early: a build that stops for lack of space costs far more time."""
    path.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(path).free
    if free < gib * GIB:
        raise Fail(f"not enough disk space for {what}: {gib} GiB needed, {free / GIB:.1f} GiB free "
                   f"on the filesystem of {path}\n  free some space there ('make distclean' removes the "
                   "builds), or move the directory and leave a symbolic link")


@contextmanager
def lock(path, what):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="ascii") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another {what} to finish ({path})")
            fcntl.flock(f, fcntl.LOCK_EX)
        yield


class Progress:
    """One line that updates on a terminal, a line every 30 s elsewhere."""

    def __init__(self, what):
        self.what = what
        self.tty = sys.stderr.isatty()
        self.start = time.monotonic()
        self.next = self.start + (0.5 if self.tty else 30)

    def elapsed(self):
        s = int(time.monotonic() - self.start)
        return f"{s // 60}:{s % 60:02d}"

    def update(self, text):
        now = time.monotonic()
        if now < self.next:
            return
        self.next = now + (0.5 if self.tty else 30)
        line = f"{self.what}: {self.elapsed()} {text}"
        if self.tty:
            cols = shutil.get_terminal_size().columns
            print("\r\033[K" + line[:cols - 1], end="", file=sys.stderr, flush=True)
        else:
            say(line)

    def done(self, text="done"):
        say(("\r\033[K" if self.tty else "") + f"{self.what}: {text} in {self.elapsed()}")


# Not "error:" inside a file name such as "CC lib/error.o".
ERROR_LINE = re.compile(r"(\berror(\[E\d+\])?: |^error\b|undefined (reference|symbol)|\*\*\* |"
                        r"No space left on device|: not found$|Killed)")


def first_error(log, lines=15):
    with open(log, encoding="utf-8", errors="replace") as f:
        text = f.read().splitlines()[1:]	# not the command
    for i, line in enumerate(text):
        if ERROR_LINE.search(line):
            return "\n".join(text[i:i + lines])
    return "\n".join(text[-lines:])


def end(child):
    """Ends a child and waits for that, whatever signal comes: what it has locked must not be free before."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    child.terminate()
    child.wait()


def started(cmd, **kw):
    """A child. What is interrupted while it starts one would lose it: the signal waits until that is done."""
    came, before = [], {}
    if threading.current_thread() is threading.main_thread():
        # Not what is ignored: children inherit that.
        before = {n: signal.signal(n, lambda *_: came.append(_)) for n in (signal.SIGINT, signal.SIGTERM)
                  if signal.getsignal(n) not in (signal.SIG_IGN, None)}
    try:
        p = subprocess.Popen([str(c) for c in cmd], **kw)   # pylint: disable=consider-using-with
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        end(p)
        raise KeyboardInterrupt
    return p


def status(cmd, **kw):
    """Exit status of a command; one that is interrupted has ended when this raises."""
    with started(cmd, **kw) as p:
        try:
            return p.wait()
        except BaseException:
            end(p)
            raise


def store(path, value):
    """Writes JSON; who is interrupted leaves the file as it was."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def logged(cmd, log, what, count=None, **kw):
    """Run cmd with its output in log; count: pattern of the lines that show progress."""
    bar = Progress(what)
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w", encoding="utf-8", errors="replace") as out:
        out.write("$ " + " ".join(map(str, cmd)) + "\n")
        out.flush()
        n = 0
        with started(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
                     errors="replace", **kw) as p:
            try:
                for line in p.stdout:
                    out.write(line)
                    if count and (m := count.match(line)):
                        n += 1
                        bar.update(f"{n} objects, {m.group(m.lastindex or 0).strip()}")
            except BaseException:
                end(p)	# make ends its children
                raise
    if p.returncode:
        bar.done("FAILED")
        text = first_error(log)
        if "No space left on device" in text:
            raise Fail(f"{what}: the disk is full\n{text}\n  free some space; the next run goes on from "
                       f"there (log: {log})")
        raise Fail(f"{what} failed; the first error:\n{text}\n  whole log: {log}")
    bar.done(f"{n} objects" if count else "done")


def main(function, *errors):
    """Run function; a Fail, or one of these errors, becomes one message and exit status 1."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(function())
    except (Fail, OSError, *errors) as e:
        say(f"error: {e}")
        sys.exit(1)
    except KeyboardInterrupt:
        say("\ninterrupted; the same command goes on from here")
        sys.exit(130)
