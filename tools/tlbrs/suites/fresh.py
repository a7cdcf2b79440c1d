# SPDX-License-Identifier: GPL-2.0
"""A minimal Debian in build/chroot/, as somebody may have just installed it: nothing is there that was not asked for.

debootstrap makes it. How this machine reaches its registries comes with it: mirrors, proxies, certificates, and what cargo
and pip are told of them. Each command runs in namespaces of its own, so that its mounts and its processes end with it,
however it ends.
"""

import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from tlbrs.guest import initramfs
from tlbrs.kernel import source, toolchain
from tlbrs.kernel.common import ROOT, Fail, Progress, need_space, output

# What the README says to begin with.
BOOTSTRAP = ("make", "git", "python3")
HOME = "/root"
CLONE = f"{HOME}/tlb-rs"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Not a chroot alone: a mount namespace cannot be made in one, as tests do. The first process reaps what it inherits.
ENTER = """
root=$1 dir=$2; shift 2
set -e
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/dev/shm"
mount --rbind /sys "$root/sys"
mkdir -p "$root/.outside"
cd "$root"
pivot_root . .outside
umount -l /.outside
rmdir /.outside
cd "$dir"
set +e
"$@"
exit $?
"""
# How a registry is reached. Directories of certificates are made by the package, from those that were added here.
FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/apt/auth.conf", "/etc/apt/auth.conf.d", "/etc/pip.conf",
         "/usr/local/share/ca-certificates")
HOME_FILES = (".config/pip", ".pip", ".netrc")
VARIABLES = re.compile(r"(?i)(https?|ftp|all|no)_proxy$|(CARGO_(HTTP|NET|REGISTR(Y|IES)|SOURCE)|PIP)_|.*(CERT|CA_BUNDLE|CAINFO)")
APT = re.compile(r"Acquire::(https?|Check-|Retries|Force|Max-)", re.I)
CARGO_TABLES = re.compile(r"\[\[?\s*(source|registry|registries|http|net)\b")


def sources(release, rows):
    """sources.list, of the mirrors that this machine has: (URI, suite)."""
    archive = next((uri for uri, suite in rows if not re.search("security|updates", suite)), None)
    if not archive:
        raise Fail("apt is configured with no mirror of Debian")
    lines = [f"deb {archive} {release} main", f"deb {archive} {release}-updates main"]
    if security := next((uri for uri, suite in rows if "security" in suite), None):
        lines.append(f"deb {security} {release}-security main")
    return archive, "\n".join(lines) + "\n"


def apt_options(dump):
    """(apt.conf, files that it names) of what "apt-config dump" says about reaching a mirror."""
    lines = [line for line in dump.splitlines() if APT.match(line)]
    return "\n".join([*lines, ""]), [f for line in lines for f in re.findall(r'"(/[^"]+)"', line)]


def cargo_options(text):
    """Of cargo's configuration the tables about registries: others may name programs of this machine."""
    tables = re.split(r"(?m)^(?=\s*\[)", text)
    return "".join(t for t in tables if CARGO_TABLES.match(t.lstrip()))


def environment(outside):
    """Variables that say how a registry is reached, and nothing else of this machine."""
    return {k: v for k, v in outside.items() if VARIABLES.match(k)} | {"HOME": HOME, "PATH": PATH, "TERM": "dumb"}


class System:
    """One such Debian."""

    def __init__(self, release, place, logs):
        self.release, self.place, self.logs = release, Path(place), logs
        self.env = environment(os.environ)

    def remove(self):
        # Nothing is mounted there but in namespaces that have ended.
        subprocess.run(["rm", "-rf", "--one-file-system", self.place], check=True)

    def make(self):
        """debootstrap; raises Fail."""
        if os.geteuid():
            raise Fail("that takes root: sudo make test SUITE=chroot")
        toolchain.need(["chroot"])
        self.remove()
        need_space(self.place.parent, 14, "a Debian with its builds")
        with tempfile.TemporaryDirectory() as tmp:
            archive, lists = sources(self.release, initramfs.debian_sources(Path(tmp)))
        keyring = next((k for k in source.KEYRINGS if os.path.exists(k)), None)
        if not keyring:
            raise Fail(f"no keyring of Debian: {initramfs.apt_command('debian-archive-keyring')}")
        proxy = output(["apt-config", "dump", "--format", "%v", "Acquire::http::Proxy"]).strip()
        env = os.environ | ({"http_proxy": proxy} if proxy and "http_proxy" not in os.environ else {})
        log = self.logs / f"{self.release}-debootstrap.log"
        status, _ = followed(["debootstrap", "--variant=minbase", "--force-check-gpg", f"--keyring={keyring}", self.release,
                              self.place, archive], log, f"debootstrap {self.release}", env=env)
        if status:
            raise Fail(f"debootstrap failed: {log}")
        (self.place / "etc/apt/sources.list").write_text(lists, encoding="utf-8")
        self.carry()

    def copy(self, path, to=None):
        path, to = Path(path), self.place / str(to or path).lstrip("/")
        if path.is_dir():
            shutil.copytree(path, to, dirs_exist_ok=True)
        elif path.is_file():
            to.parent.mkdir(parents=True, exist_ok=True)
            to.unlink(missing_ok=True)
            shutil.copy(path, to)

    def carry(self):
        conf, named = apt_options(output(["apt-config", "dump"]))
        (self.place / "etc/apt/apt.conf.d/99outside").write_text(conf, encoding="utf-8")
        for path in (*FILES, *named, *self.env.values()):
            # What certificates a package brings is for that package to bring.
            if path.startswith("/") and not path.startswith("/etc/ssl/") and (path in FILES or os.path.isfile(path)):
                self.copy(path)
        for name in HOME_FILES:
            self.copy(Path.home() / name, f"{HOME}/{name}")
        cargo = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")
        for name in ("config.toml", "config"):
            if (cargo / name).is_file() and (tables := cargo_options((cargo / name).read_text(encoding="utf-8"))):
                (self.place / f"{HOME}/.cargo".lstrip("/")).mkdir(parents=True, exist_ok=True)
                (self.place / f"{HOME}/.cargo/config.toml".lstrip("/")).write_text(tables, encoding="utf-8")
                break

    def clone(self):
        """What is committed, and nothing else."""
        subprocess.run(["git", "-c", "safe.directory=*", "clone", "--quiet", "--no-local", ROOT,
                        self.place / CLONE.lstrip("/")], check=True)

    def run(self, name, *words, cwd=CLONE):
        """(status, what it printed) of a command inside."""
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child",
                   "sh", "-c", ENTER, "-", self.place, cwd, *words]
        return followed(command, self.logs / f"{self.release}-{name}.log", f"{self.release}: {name}", env=self.env)


def followed(command, log, what, env):
    """(status, output) of a command, which is killed if this is interrupted, with all that it has started."""
    bar, lines = Progress(what), []
    with log.open("w", encoding="utf-8") as out, \
            subprocess.Popen([str(w) for w in command], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, errors="replace") as p:
        try:
            for line in p.stdout:
                out.write(line)
                out.flush()
                lines.append(line)
                if line.strip():
                    bar.update(line.strip())
        except BaseException:
            p.kill()    # unshare keeps other signals to itself
            for _ in p.stdout:
                pass    # until the last one that had it has ended
            raise
    bar.done("done" if p.returncode == 0 else f"status {p.returncode}")
    return p.returncode, "".join(lines)


def verdicts(said, wanted):
    """[(suite, whether it passed, its counts)] of what "make test" has printed; then of the whole."""
    found = {m[0]: m[1:] for m in re.findall(r"^(\w+): (\d+) passed, (\d+) failed, (\d+) skipped, (\d+) s$", said, re.M)}
    rows = [(name, counts[0] != "0" and counts[1] == "0",
             "{} passed, {} failed, {} skipped, {} s".format(*counts)) for name, counts in found.items()]
    rows += [(name, False, "did not end") for name in wanted if name not in found]
    last = (said.rstrip().splitlines() or [""])
    total = next((m.group() for line in reversed(last) if (m := re.fullmatch(r"\d+ passed, \d+ failed", line))), "no result")
    return [*rows, ("all", bool(found) and total.endswith(", 0 failed") and not total.startswith("0 "), total)]


def try_release(suite, name, system, inner, every):
    """Set up, doctor, make test of these suites or of every one, and "boot"; each is a case."""
    suites = [s for s in inner if s != "boot"]
    begin, failed = time.monotonic(), len(suite.failed)

    def step(what, *words, cwd=CLONE, log=None, says=""):
        start = time.monotonic()
        status, said = system.run(log or what.replace(" ", "-"), *words, cwd=cwd)
        ok = suite.check(f"{name}: {what}", status == 0 and says in said, f"{time.monotonic() - start:.0f} s")
        if not ok:
            suite.say("\n".join(said.splitlines()[-40:]))
        return ok

    system.make()
    apt = "apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends"
    if not step(" ".join(BOOTSTRAP), "sh", "-c", f"{apt} {' '.join(BOOTSTRAP)}", cwd="/", log="bootstrap"):
        return
    system.clone()
    if not step("make setup INSTALL=1", "make", "setup", "INSTALL=1", log="setup"):
        return
    step("make doctor", "make", "doctor", log="doctor")
    if suites or not inner:
        start = time.monotonic()
        status, said = system.run("test", "make", "test", *([f"SUITE={' '.join(suites)}"] if inner else []))
        for what, ok, counts in verdicts(said, suites or every):
            suite.check(f"{name}: make test, {what}", ok, counts)
        suite.check(f"{name}: make test ends with status 0", status == 0, f"{(time.monotonic() - start) / 60:.0f} minutes")
    for log in sorted((system.place / CLONE.lstrip("/") / "build/test").glob("*.txt")):
        for line in log.read_text(encoding="utf-8").splitlines():
            if line.startswith(("not ok - ", "skip - ")):
                suite.say(f"{name}: {log.stem}: {line}", show=line.startswith("not"))
    if "boot" in inner:
        step("a kernel is built and boots", "make", "boot", "ARCH=arm64", "VARIANT=release", "JOB=uname -sm", log="boot",
             says="Linux aarch64")
    _, changed = system.run("status", "git", "status", "--porcelain", "--untracked-files=all")
    suite.check(f"{name}: nothing in the clone has changed", not changed, changed)
    minutes = f"{(time.monotonic() - begin) / 60:.0f} minutes"
    if len(suite.failed) == failed:
        system.remove()
        suite.say(f"{name}: {minutes}", show=True)
    else:
        suite.say(f"{name}: {minutes}; it is left in {system.place}, logs in {system.logs}")
