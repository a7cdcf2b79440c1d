# SPDX-License-Identifier: GPL-2.0
"""Builds the guest programs and build/guest/<ARCH>/initramfs.cpio.

The archive holds a static busybox, our init and the programs, compiled from
tools/testing/selftests/mm and tools/tlbstat into build/guest/<ARCH>/bin. A job is a second archive behind it (job_archive()).
"""

import contextlib
import fcntl
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tlbrs.guest import programs
from tlbrs.kernel.common import CACHE, ROOT, Fail, output
from tlbrs.kernel.source import KVERS, cached, linux
from tlbrs.kernel.toolchain import CROSS

HERE = Path(__file__).resolve().parent
SELFTESTS = ROOT / "tools/testing/selftests/mm"
TLBSTAT = ROOT / "tools/tlbstat"
ARCHES = {
    # arch: (Debian's name, triple and packages of the cross compiler)
    "arm64": ("arm64", *CROSS["x86_64"]),
    "x86_64": ("amd64", *CROSS["aarch64"]),
}
MACHINES = {"aarch64": "arm64", "arm64": "arm64", "x86_64": "x86_64"}
CFLAGS = ["-static", "-s", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]


# Older and newer packages differ in the suffix.
KEYRING = "/usr/share/keyrings/debian-archive-keyring"


class GuestError(Fail):
    """An error that the user can act on; status is the exit code."""

    def __init__(self, message, status=1):
        super().__init__(message)
        self.status = status


def apt_command(packages):
    sudo = "" if os.geteuid() == 0 else "sudo "
    return f"{sudo}apt-get install -y {packages}"


def run(command, **kwargs):
    """Run quietly; on failure show the command and what it printed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False, **kwargs)
    if done.returncode:
        raise GuestError(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}")
    return done.stdout


def native(arch):
    """Whether this machine is of the architecture."""
    return MACHINES.get(platform.machine()) == arch


def compiler(arch):
    """(C compiler, its packages)"""
    _, triple, *packages = ARCHES[arch]
    return ("gcc", "gcc libc6-dev") if native(arch) else (f"{triple}-gcc", " ".join(packages))


def guest_dir(arch):
    return ROOT / "build/guest" / arch


# --- busybox -----------------------------------------------------------------

def debian_sources(tmp):
    """[(URI, suite)] of the Debian suites that this machine's apt is configured with."""
    form = "$(ORIGIN)|$(CREATED_BY)|$(COMPONENT)|$(REPO_URI)|$(RELEASE)"

    def read(options=()):
        rows = [line.split("|") for line in run(
            ["apt-get", *options, "indextargets", "--format", form]).splitlines()]
        return sorted({(row[3], row[4]) for row in rows
                       if row[:3] == ["Debian", "Packages", "main"]})

    rows = read()
    if not rows:
        # A fresh container has sources but no lists: read them, privately.
        (tmp / "own/partial").mkdir(parents=True)
        options = ["-o", f"Dir::State::Lists={tmp}/own"]
        run(["apt-get", "-q", *options, "update"])
        rows = read(options)
    if not rows:
        raise GuestError("apt is configured with no Debian suite: set BUSYBOX_<arch> to a "
                         "static busybox of the guest's architecture")
    return rows


def of_release(rows, release):
    """The mirror of these sources, with another release of Debian."""
    archive = next((uri for uri, suite in rows if not re.search("security|updates", suite)), None)
    if not archive:
        raise GuestError("apt is configured with no mirror of Debian")
    return [(archive, release)]


@contextlib.contextmanager
def private_apt(arch=None, release=None):
    """(temporary directory, words of an apt-get) with a private configuration: of packages of `arch`, or of sources.

    release: of another Debian than this machine's. Nothing is installed and the machine's own lists stay as they are.
    """
    deb_arch = ARCHES[arch][0] if arch else None
    kind = f"deb [arch={deb_arch}" if arch else "deb-src ["
    keyring = next((f"{KEYRING}.{suffix}" for suffix in ("gpg", "pgp") if os.path.exists(f"{KEYRING}.{suffix}")), None)
    if not keyring:
        raise GuestError(f"no Debian keyring: {apt_command('debian-archive-keyring')}")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as name:
        tmp = Path(name)
        for sub in ("lists/partial", "cache/archives/partial", "etc", "root"):
            (tmp / sub).mkdir(parents=True)
        (tmp / "status").touch()
        rows = debian_sources(tmp)
        (tmp / "etc/sources.list").write_text("".join(
            f"{kind} signed-by={keyring}] {uri} {suite} main\n"
            for uri, suite in (of_release(rows, release) if release else rows)))
        (tmp / "apt.conf").write_text(
            # The machine's hooks are meant for its own lists and packages.
            "#clear APT::Update;\n#clear DPkg::Post-Invoke;\n"
            + (f'#clear APT::Architectures;\nAPT::Architecture "{deb_arch}";\n'
               f'APT::Architectures {{ "{deb_arch}"; }};\n' if arch else "") +
            f'Dir::State "{tmp}";\nDir::State::Lists "{tmp}/lists";\n'
            f'Dir::State::status "{tmp}/status";\nDir::Cache "{tmp}/cache";\n'
            f'Dir::Etc::SourceList "{tmp}/etc/sources.list";\nDir::Etc::SourceParts "-";\n'
            'Acquire::Languages "none";\nAcquire::Retries "3";\n'
            # The sandbox user of a root's apt cannot enter root's cache.
            + ('APT::Sandbox::User "root";\n' if os.geteuid() == 0 else ""))
        # Options of /etc/apt are read after APT_CONFIG; -c is read last.
        apt = ["apt-get", "-q", "-c", str(tmp / "apt.conf")]
        run(apt + ["update"])
        yield tmp, apt


@contextlib.contextmanager
def unpacked(arch, *packages, closure=False, release=None):
    """A temporary directory with the contents of Debian packages of `arch`; closure: with all that they depend on."""
    print(f"fetching {' '.join(packages)} for {arch} (once)", file=sys.stderr)
    with private_apt(arch, release) as (tmp, apt):
        if closure:
            plan = run([*apt, "--simulate", "--no-install-recommends", "install", *packages])
            packages = re.findall(r"^Inst (\S+)", plan, re.M)
        run([*apt, "download", *packages], cwd=tmp)
        for package in packages:
            debs = list(tmp.glob(f"{package}_*.deb"))
            if len(debs) != 1:
                raise GuestError(f"apt-get download {package} brought {len(debs)} packages")
            run(["dpkg-deb", "-x", debs[0], tmp / "root"])
        yield tmp / "root"


def upstream(package):
    """The archive of the authors that a Debian source package is made from, checked by apt; fetched once."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with locked(CACHE):
        if here := sorted(CACHE.glob(f"{package}_*.orig.tar.*")):
            return here[-1]
        print(f"fetching the source of {package} (once)", file=sys.stderr)
        with private_apt() as (tmp, apt):
            run([*apt, "source", "--download-only", package], cwd=tmp)
            found = [path for path in tmp.glob(f"{package}_*.orig.tar.*") if path.suffix != ".asc"]
            if len(found) != 1:
                raise GuestError(f"apt-get source {package} brought {len(found)} archives")
            return found[0].rename(CACHE / found[0].name)


def merge_usr(root):
    """As the distribution's base-files has it: the loader's path must lead to the loader."""
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if (root / name).is_dir() and not (root / name).is_symlink():
            shutil.copytree(root / name, root / "usr" / name, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(root / name)
        if (root / "usr" / name).is_dir() and not (root / name).exists():
            (root / name).symlink_to(f"usr/{name}")


def userland(arch, name, *packages, release=None):
    """A tree with programs of the distribution and all that they depend on, for a guest's disk; fetched once.

    release: of another Debian than this machine's. The job links the directories of the disk into its root, see LINK_USERLAND.
    """
    place = CACHE / f"{name}-{arch}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with locked(CACHE):
        if place.exists():
            return place
        try:
            with unpacked(arch, *packages, closure=True, release=release) as root:
                merge_usr(root)
                for part in ("doc", "man", "locale"):
                    shutil.rmtree(root / "usr/share" / part, ignore_errors=True)
                root.rename(place)
        except GuestError as error:
            names = " ".join(packages)
            raise GuestError(f"cannot fetch {names}: {error}\n  does this machine's apt have it? apt-get update && "
                             f"apt-get install --simulate --no-install-recommends {names}") from error
    return place


def debian_kernel(arch, kver, release="trixie-backports"):
    """The directory of a kernel of Debian: vmlinuz, config and modules; fetched once. It is stock, and has what servers need."""
    place = CACHE / f"debian-kernel-{kver}-{arch}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with locked(CACHE):
        if not place.exists():
            pattern = rf"^linux-(base|binary|modules)-{re.escape(kver)}\.[0-9]+[^-]*-{ARCHES[arch][0]}$"
            with private_apt(arch, release) as (_, apt):
                found = run(["apt-cache", *apt[1:], "search", "--names-only", pattern]).splitlines()
            names = sorted(line.split()[0] for line in found)
            # Of the newest of these.
            newest = max((name.split("-", 2)[2] for name in names), default=None,
                         key=lambda version: [int(n) for n in re.findall(r"[0-9]+", version.partition("+")[0])])
            if not newest:
                raise GuestError(f"{release} of Debian has no kernel {kver} for {arch}")
            with unpacked(arch, *(name for name in names if name.endswith(f"-{newest}")), release=release) as root:
                root.rename(place)
        return next((place / "usr/lib/modules").iterdir())


# Not a chroot: perf enters the mount namespaces of processes, and comes back to the root of its own.
LINK_USERLAND = """
for name in lib lib64 usr; do
	[ ! -e "/mnt/$name" ] || ln -s "/mnt/$name" "/$name"
done
"""


def foreign_busybox(arch):
    """busybox-static of another architecture."""
    target = CACHE / f"busybox-{arch}"
    if target.exists():
        return target
    with unpacked(arch, "busybox-static") as root:
        binary = next((root / place for place in ("bin/busybox", "usr/bin/busybox")
                       if (root / place).is_file()), None)
        if binary is None:
            raise GuestError("no busybox in busybox-static")
        os.replace(binary, target)
    return target


def busybox(arch):
    given = os.environ.get(f"BUSYBOX_{arch}")
    if given:
        return Path(given)
    if not native(arch):
        return foreign_busybox(arch)
    found = shutil.which("busybox", path="/bin:/usr/bin")
    # The plain package is dynamically linked and would not run in the guest.
    if not found or b"ld-linux" in Path(found).read_bytes()[:4096]:
        raise GuestError(f"no static busybox: {apt_command('busybox-static')}")
    return Path(found)


# --- programs ----------------------------------------------------------------

def kernel_tree():
    """A stock kernel tree for its selftest headers; fetched if none is cached."""
    try:
        return linux(KVERS[0])
    except Fail as error:
        raise GuestError(str(error)) from error


def build_programs(arch, ksrc=None):
    """Cross-compile the guest programs that changed, or all, with another compiler or kernel tree than before."""
    gcc, package = compiler(arch)
    sources = {**programs.sources(SELFTESTS), TLBSTAT.name: sorted(TLBSTAT.glob("*.c")),
               **{path.stem: [path] for path in TLBSTAT.glob("load/*.c")}}
    out = guest_dir(arch) / "bin"
    out.mkdir(parents=True, exist_ok=True)
    # A program whose source is gone must not stay in the guest.
    for old in out.iterdir():
        if old.name not in sources:
            old.unlink()
    common = max(path.stat().st_mtime_ns for path in [*SELFTESTS.glob("*.h"), *TLBSTAT.glob("*.h"), Path(__file__), Path(programs.__file__)])
    stamp = out.parent / "programs.stamp"
    before = stamp.read_text().splitlines() if stamp.exists() else []
    # Who has named a tree does not name it again with each boot.
    named = next((d for d in before[1:] if os.path.isdir(d) and not Path(d).is_relative_to(CACHE.resolve())), None)
    here = ksrc or named or next(filter(None, map(cached, KVERS)), None)
    # Only what has to be compiled is a reason to fetch one.
    state = [output([gcc, "--version"]).partition("\n")[0], str(Path(here).resolve()) if here else "".join(before[1:])]
    # Of which files each consists: one that is gone leaves no trace, and one that came may be old.
    table = out.parent / "programs.json"
    known = json.loads(table.read_text(encoding="utf-8")) if table.exists() else {}
    parts = {name: [path.name for path in paths] for name, paths in sources.items()}
    stale = [name for name, paths in sources.items()
             if state != before or known.get(name) != parts[name] or not (out / name).exists()
             or (out / name).stat().st_mtime_ns < max(common, *(path.stat().st_mtime_ns for path in paths))]
    if not stale:
        return
    if not shutil.which(gcc):
        raise GuestError(f"no {gcc}: {apt_command(package)}")
    ksrc = Path(here or kernel_tree()).resolve()
    state[1] = str(ksrc)
    kselftest = ksrc / "tools/testing/selftests"
    if not (kselftest / "kselftest.h").exists():
        raise GuestError(f"{ksrc} is not a kernel tree: no tools/testing/selftests/kselftest.h")
    # The kernel's headers are not ours to warn about: -isystem.
    flags = CFLAGS + ["-I", SELFTESTS, "-isystem", kselftest / "mm", "-isystem", kselftest,
                      "-isystem", ksrc / "tools/include"]
    print(f"compiling {len(stale)} program{'s' * (len(stale) > 1)} for {arch}", file=sys.stderr)
    if state != before:
        # Of no compiler, until all are.
        stamp.write_text(f"\n{ksrc}")
    for name in stale:
        part = out.parent / f"{name}.part"
        if subprocess.run([gcc, *flags, "-o", part, *sources[name], "-lm"], check=False).returncode:
            raise GuestError(f"{name} does not compile for {arch}")
        os.replace(part, out / name)
    table.write_text(json.dumps(parts), encoding="utf-8")
    stamp.write_text("\n".join(state))


# --- archives ----------------------------------------------------------------

def newc(entries):
    """A cpio archive (format newc): the same entries give the same bytes.

    Not compressed: it is read faster than an emulated kernel with KASAN decompresses it.

    entries: (name, mode, data, (major, minor) of a device node), sorted.
    """
    blob = bytearray()
    for number, (name, mode, data, rdev) in enumerate([*entries, ("TRAILER!!!", 0, b"", (0, 0))]):
        raw = name.encode() + b"\0"
        fields = (number + 1, mode, 0, 0, 1, 0, len(data), 0, 0, *rdev, len(raw), 0)
        blob += b"070701" + b"".join(b"%08x" % field for field in fields) + raw
        blob += bytes(-len(blob) % 4) + data
        blob += bytes(-len(blob) % 4)
    return bytes(blob)


def directory(name):
    return name, 0o040755, b"", (0, 0)


def regular(name, data, mode=0o755):
    return name, 0o100000 | mode, data, (0, 0)


@contextlib.contextmanager
def locked(place):
    """Two boots may start at once."""
    with open(place / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def userspace(box, binaries):
    """The archive with busybox, our init, and these programs."""
    entries = [directory(name) for name in ("bin", "dev", "mnt", "proc", "sys", "tmp")]
    entries += [("dev/console", 0o020600, b"", (5, 1)),
                regular("bin/busybox", box.read_bytes()),
                regular("init", (HERE / "init").read_bytes())]
    return newc(entries + [regular("bin/" + path.name, path.read_bytes()) for path in binaries])


def small(arch, job):
    """An archive with only those programs that the text of a job names."""
    build(arch)
    words = set(re.findall(r"[\w-]+", job))
    return userspace(busybox(arch), sorted(path for path in (guest_dir(arch) / "bin").iterdir() if path.name in words))


def build(arch, ksrc=None):
    """Bring build/guest/<ARCH>/initramfs.cpio up to date; returns its path."""
    place = guest_dir(arch)
    place.mkdir(parents=True, exist_ok=True)
    with locked(place):
        build_programs(arch, ksrc)
        target, stamp = place / "initramfs.cpio", place / "initramfs.stamp"
        box = busybox(arch)
        binaries = sorted((place / "bin").iterdir())
        inputs = [Path(__file__), HERE / "init", box, *binaries]
        state = "\n".join(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}"
                          for path in inputs)
        if target.exists() and stamp.exists() and stamp.read_text() == state:
            return target
        # A boot reads the archive without the lock: replaced in one step.
        part = place / "initramfs.part"
        part.write_bytes(userspace(box, binaries))
        os.replace(part, target)
        stamp.write_text(state)
    return target


def job_archive(job, env=None, files=None):
    """The archive with /job (text; a shell script unless it has a #! line)."""
    if not job.startswith("#!"):
        job = "#!/bin/sh\n" + job
    quoted = "".join("export {}='{}'\n".format(key, str(value).replace("'", "'\\''"))
                     for key, value in sorted((env or {}).items()))
    entries = [regular("job", (job.rstrip("\n") + "\n").encode()),
               regular("job.env", quoted.encode(), 0o644)]
    parents = set()
    for name, source in sorted((files or {}).items()):
        name = name.lstrip("/")
        parents |= {str(parent) for parent in Path(name).parents} - {"."}
        source = Path(source)
        mode = 0o755 if os.access(source, os.X_OK) else 0o644
        entries.append(regular(name, source.read_bytes(), mode))
    return newc([directory(parent) for parent in sorted(parents)] + entries)
