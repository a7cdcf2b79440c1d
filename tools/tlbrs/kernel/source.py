# SPDX-License-Identifier: GPL-2.0
"""The kernel source and the Rust library source, from Debian's archive through apt.

Nothing here names a host: the mirror is the one that this machine's apt is configured with. Suites
that the machine does not follow are read through a private apt configuration in the cache directory,
so the system's own lists stay as they are and no privilege is needed. apt checks the signature of the
suite with Debian's archive keyring and the checksum of the package.
"""

import os
import shutil
import subprocess
from pathlib import Path

from tlbrs.kernel.common import (CACHE, Fail, Progress, dotted, given, lock, need_space, one_of,
                                 output, say, sha256, version)

# patches/ is for the first.
KVERS = ("7.3",)
# Beyond what the machine follows: where Debian keeps kernels newer than a stable release's.
KNOWN_SUITES = ("trixie-backports", "sid")
KEYRINGS = ("/usr/share/keyrings/debian-archive-keyring.gpg", "/usr/share/keyrings/debian-archive-keyring.pgp")


class Apt:
    """apt with the machine's configuration, or with a private one (options)."""

    def __init__(self, options=()):
        self.options = list(options)

    def versions(self, package):
        """Debian's versions of it, newest first within a suite."""
        out = output(["apt-cache", *self.options, "madison", package])
        rows = [[c.strip() for c in line.split("|")] for line in out.splitlines()]
        return [r[1] for r in rows if len(r) == 3 and r[0] == package and r[2].endswith("Packages")]

    def download(self, package, ver, directory):
        """The verified .deb; an earlier, complete download is used again."""
        show = output(["apt-cache", *self.options, "show", f"{package}={ver}"])
        want = next((l.split()[1] for l in show.splitlines() if l.startswith("SHA256:")), None)
        if not want:
            raise Fail(f"apt knows no SHA256 of {package} {ver}: refusing to download it unchecked")
        directory.mkdir(parents=True, exist_ok=True)
        for deb in directory.glob(f"{package}_*.deb"):
            if sha256(deb) == want:
                return deb
            deb.unlink()
        say(f"downloading {package} {ver}")
        p = subprocess.run(["apt-get", *self.options, "-q", "-o", "APT::Sandbox::User=root", "download",
                            f"{package}={ver}"], cwd=directory, check=False, stdout=subprocess.DEVNULL)
        debs = [d for d in directory.glob(f"{package}_*.deb") if sha256(d) == want]
        if p.returncode or not debs:
            raise Fail(f"downloading {package} {ver} failed (apt's message is above)\n"
                       "  check the network, then run the same command again")
        return debs[0]


def mirrors():
    """Base URIs of the Debian archive, as this machine's apt has them."""
    fmt = "$(CREATED_BY)|$(ORIGIN)|$(RELEASE)|$(REPO_URI)"

    def read(options=()):
        rows = [l.split("|") for l in output(["apt-get", *options, "indextargets", "--format", fmt]).splitlines()]
        return list(dict.fromkeys(r[3] for r in rows if r[:2] == ["Packages", "Debian"]
                                  and "security" not in r[2] and "updates" not in r[2]))
    if uris := read():
        return uris
    # A fresh container has sources but no lists yet: fetch them into the cache.
    lists = CACHE / "apt/own-lists"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    private = ["-o", f"Dir::State::Lists={lists}", "-o", "APT::Sandbox::User=root"]
    p = subprocess.run(["apt-get", *private, "-q", "update"], capture_output=True, text=True, check=False)
    if p.returncode:
        # Not the end: a list of another archive may be what is missing.
        say("apt-get update failed:\n" + p.stderr.strip())
    return read(private)


def private_apt():
    """An Apt that reads KNOWN_SUITES; its lists are refreshed."""
    if not shutil.which("apt-cache"):
        return None
    uris = mirrors()
    keyring = next((k for k in KEYRINGS if os.path.exists(k)), None)
    if not uris or not keyring:
        return None
    d = CACHE / "apt"
    for sub in ("lists/partial", "cache/archives/partial"):
        (d / sub).mkdir(parents=True, exist_ok=True)
    (d / "sources.list").write_text("".join(f"deb [signed-by={keyring}] {uris[0]} {s} main\n"
                                            for s in KNOWN_SUITES), encoding="ascii")
    # Cleared: hooks of the machine that are meant for its own lists. Left out: indices of no use here.
    (d / "apt.conf").write_text(f'''#clear APT::Update;
#clear DPkg::Post-Invoke;
Dir::Etc::SourceList "{d}/sources.list";
Dir::Etc::SourceParts "-";
Dir::State::Lists "{d}/lists";
Dir::Cache "{d}/cache";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "3";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::IndexTargets::deb::DEP-11-icons-small::DefaultEnabled "false";
Acquire::IndexTargets::deb::DEP-11-icons::DefaultEnabled "false";
''', encoding="utf-8")
    apt = Apt(["-c", str(d / "apt.conf")])
    bar = Progress("reading the package lists of " + ", ".join(KNOWN_SUITES))
    p = subprocess.run(["apt-get", *apt.options, "-q", "update"], capture_output=True, text=True, check=False)
    bar.done("done" if p.returncode == 0 else "FAILED")
    if p.returncode:
        raise Fail("apt-get update failed:\n" + p.stderr.strip() + "\n  check the network, then run the same "
                   "command again; or build from a tree that you have: make kernel KDIR=/path/to/linux")
    return apt


def find(packages, prefix):
    """(apt, package, version) of the newest upstream version that starts with prefix, or None."""
    if not shutil.which("apt-cache"):
        return None
    best = error = None
    for suites in (Apt, private_apt):
        try:
            apt = suites()
        except Fail as e:   # of a mirror that does not have all of KNOWN_SUITES
            error = e
            continue
        for package in packages if apt else ():
            for ver in apt.versions(package):
                v = version(ver)
                # On a tie the suite that comes first: the one that this machine follows.
                if v[:len(prefix)] == prefix and (best is None or v > best[0]):
                    best = (v, apt, package, ver)
    if error and not best:
        raise error
    if error:
        say(f"{best[2]} {best[3]} is the newest of this machine's suites; of others nothing is known: {error}")
    return best[1:] if best else None


def extract(deb, members, strip, dest, tarball=None):
    """members of deb's contents (or of the tarball inside it) into dest, all or nothing."""
    tmp = dest.with_name(f".tmp-{dest.name}")
    shutil.rmtree(tmp, ignore_errors=True)
    tmp.mkdir(parents=True)
    # -C must come before the members: it counts only for what follows it.
    unpack = f"-C \"$2\" --strip-components={strip}"
    inner = (f"tar -xO --wildcards '{tarball}' | tar -xJ {unpack}" if tarball
             else f"tar -x {unpack} --no-wildcards-match-slash --wildcards {members}")
    bar = Progress(f"extracting {deb.name}")
    p = subprocess.run(["bash", "-c", f"set -o pipefail; dpkg-deb --fsys-tarfile \"$1\" | {inner}", "-",
                        str(deb), str(tmp)], check=False, cwd=tmp)
    if p.returncode:
        shutil.rmtree(tmp, ignore_errors=True)
        raise Fail(f"extracting {deb} failed (the message is above); if the disk is full, free some space in {dest.parent}")
    tmp.rename(dest)
    bar.done()
    deb.unlink()


def unpacked(packages, place):
    """What packages of KNOWN_SUITES hold, in a directory of the cache: fetched once, and nothing is installed."""
    with lock(CACHE / "lock", "download"):
        if place.exists():
            return
        apt = private_apt()
        if not apt or not apt.versions(packages[0]):
            raise Fail(f"no suite that this machine reaches has {packages[0]}")
        need_space(CACHE, 1, packages[0])
        tmp = place.with_name(f".tmp-{place.name}")
        shutil.rmtree(tmp, ignore_errors=True)
        tmp.mkdir(parents=True)
        for package in packages:
            if not (known := apt.versions(package)):
                raise Fail(f"no suite that this machine reaches has {package}")
            deb = apt.download(package, known[0], CACHE / "download")
            if subprocess.run(["dpkg-deb", "-x", deb, tmp], check=False).returncode:
                raise Fail(f"unpacking {deb} failed (the message is above)")
            deb.unlink()
        tmp.rename(place)


def cached(kver):
    trees = [d for d in CACHE.glob(f"linux-{kver}.*") if (d / "Makefile").exists()]
    return max(trees, key=lambda d: version(d.name), default=None)


def check(kver):
    if kver.endswith("-kdir"):
        raise Fail(f"KVER={kver}: no such kernel was built yet: make kernel KDIR=dir, with the ARCH= and VARIANT= that it is "
                   "to have")
    one_of("KVER", kver, KVERS)


def linux(kver):
    """The tree of the stock source."""
    check(kver)
    with lock(CACHE / "lock", "download"):
        if tree := cached(kver):
            return tree
        if found := find([f"linux-source-{kver}"], tuple(map(int, kver.split(".")))):
            apt, package, ver = found
            need_space(CACHE, 2, "the kernel source")
            deb = apt.download(package, ver, CACHE / "download")
            tree = CACHE / f"linux-{ver}"
            extract(deb, "", 1, tree, tarball=f"./usr/src/{package}.tar.xz")
            return tree
    raise Fail(f"no package linux-source-{kver} in this machine's suites nor in {', '.join(KNOWN_SUITES)}\n"
               "  (on Debian, 'apt-get install debian-archive-keyring' and a configured Debian mirror are needed)\n"
               f"  or build from a tree that you have: make kernel KDIR=/path/to/linux-{kver}")


def have_rust_lib(rustc, v):
    if lib := given("RUST_LIB_SRC"):
        places = [Path(lib).absolute()]
    else:
        sysroot = output([rustc, "--print", "sysroot"]).strip()
        places = [Path(sysroot, "lib/rustlib/src/rust/library"),
                  Path(f"/usr/src/rustc-{dotted(v)}/library"),    # Ubuntu's
                  CACHE / f"rust-src-{dotted(v)}/library"]
    return next((lib for lib in places if (lib / "core/src/lib.rs").exists()), None)


def rust_lib(rustc, v):
    """The library source of exactly this rustc."""
    with lock(CACHE / "lock", "download"):
        if lib := have_rust_lib(rustc, v):
            return lib
        found = find(["rust-src", "rust-web-src"], v)
        if not found:
            raise Fail(f"no library source for rustc {dotted(v)}: not in its sysroot, and no suite has rust-src of "
                       "that version\n  with rustup: rustup component add rust-src\n"
                       "  or name it: RUST_LIB_SRC=/path/to/library make kernel")
        apt, package, ver = found
        need_space(CACHE, 1, "the Rust library source")
        dest = CACHE / f"rust-src-{dotted(v)}"
        shutil.rmtree(dest, ignore_errors=True)
        extract(apt.download(package, ver, CACHE / "download"), "'./usr/src/*/library'", 5, dest / "library")
        if not (lib := have_rust_lib(rustc, v)):
            raise Fail(f"{package} {ver} does not hold library/core/src/lib.rs\n"
                       "  name a library source: RUST_LIB_SRC=/path/to/library make kernel")
        return lib
