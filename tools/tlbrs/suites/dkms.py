# SPDX-License-Identifier: GPL-2.0
"""Modules of others on the packages of make deb: built by DKMS in minimal Debians, loaded in a guest; then tlbstat ab there."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tlbrs.guest import guest, initramfs
from tlbrs.kernel import common, kernel as kernel_tool, toolchain
from tlbrs.kernel.common import ROOT, Fail
from tlbrs.suites import fresh
from tlbrs.suites.harness import KVER, LOGS, chosen, make

RELEASES = {"bookworm": "Debian 12", "trixie": "Debian 13"}
SOURCES = ROOT / "tools/tests/dkms"
# What each says when it is loaded with these parameters, and when it goes. The second one's dkms.conf wants the first, which
# has the later name.
MODULES = {"tlb_rs_plain": ("", "tlb_rs_plain: loaded", "tlb_rs_plain: gone"),
           "tlb_rs_many": ("numbers=3,4,5", "tlb_rs_many: the sum is 12", "tlb_rs_many: gone"),
           "tlb_rs_rust": ("", "tlb_rs_rust: the squares are [1, 4, 9, 16]", "tlb_rs_rust: gone, the squares added up to 30"),
           "tlb_rs_exports": ("", "tlb_rs_exports: each symbol was used", "tlb_rs_exports: gone")}
ARCH = initramfs.MACHINES.get(os.uname().machine, os.uname().machine)
# Another clang, as Debian 12 has it: whoever asks for it by this name gets no module.
OTHER_CLANG = "#!/bin/sh\ncase $1 in --version) echo 'clang version 14.0.6';; *) echo 'wrong clang' >&2; exit 1;; esac\n"
# Of the kernel that make deb has made: switched, then back.
COMPARED = """
echo 1 >/proc/sys/vm/tlb_batch
tlbstat ab -n 2 -w 0.5 -- tlb_load move_pages 120
echo "ab ended with $?, vm.tlb_batch is $(cat /proc/sys/vm/tlb_batch)"
"""


def exported(root=ROOT):
    """Symbols that the series exports, for modules of any licence or of ours: none of Rust."""
    call = r"EXPORT_(?:PER_CPU_)?(?:TRACEPOINT_)?SYMBOL\w*\((\w+)"
    new = [m for top in ("mm", "arch", "drivers", "lib", "kernel", "rust") for f in sorted((root / top).rglob("*.[chS]"))
           for m in re.findall(rf"^{call}", f.read_text(encoding="utf-8"), re.M)]
    patches = sorted((root / "patches").glob("*/*.patch"))
    return sorted({*new, *(m for f in patches for m in re.findall(rf"^\+{call}", f.read_text(encoding="utf-8"), re.M))})


def unused(symbols, source, provided, wanted):
    """Exported symbols that the module does not use: those of other configurations are at least named in its source."""
    return [s for s in symbols if s not in (wanted if s in provided else re.findall(r"\w+", source))]


def provided_by(symvers):
    return {line.split("\t")[1] for line in symvers.splitlines() if line.count("\t") > 1}


def wanted_by(module):
    text = common.output([toolchain.llvm_tool("llvm-nm"), "--undefined-only", "--format=just-symbols", module])
    return set(text.split())


def packages(suite):
    """(image, headers) of make deb for this machine's architecture, from a small configuration; None if it fails."""
    config = ("tinyconfig", *(f"config/{name}.fragment" for name in ("common", ARCH, "dkms")))
    out = ROOT / "build" / KVER / f"{ARCH}-deb"
    p = subprocess.run(make("deb", f"ARCH={ARCH}", f"CONFIG={' '.join(config)}", f"KVER={KVER}"), cwd=ROOT, text=True,
                       stdout=subprocess.PIPE, check=False)
    if not suite.check(f"{ARCH} make deb", p.returncode == 0, f"status {p.returncode}"):
        return None
    names = [ROOT / name for name in p.stdout.split() if name.endswith(".deb")]

    def last(kind):
        return next(f for f in reversed(names) if f.name.startswith(kind) and "-dbg_" not in f.name)
    image, head = last("linux-image-"), last("linux-headers-")
    says = common.output(["dpkg-deb", "--info", head])
    held = common.output(["dpkg-deb", "--contents", head])
    suite.check("headers: they depend on the compiler of the build",
                re.search(r"Depends:.*\bclang-\d+.*\blld-\d+.*\bllvm-\d+", says))
    for what in (r"/\.config$", r"/rust/libkernel\.rmeta$", r"/rust/libmacros\.so$"):
        suite.check(f"headers: {what.strip('/$')}".replace("\\", ""), re.search(what, held, re.M))
    suite.say(f"{image.name}, {head.name}, in {out}")
    return image, head


def give_rustc(system):
    """The toolchain of the build where rustup would put it, and the link that the package asks for; nothing if a package is
    the one of the build."""
    rustc = toolchain.find_rustc()
    if Path(rustc).is_relative_to("/usr/bin"):
        return
    place = Path(common.output([rustc, "--print", "sysroot"]).strip())
    inside = f"{fresh.HOME}/.rustup/toolchains/{place.name}"
    # No more than rustc itself: modules use no library of it.
    for part in ("bin/rustc", *(f"lib/{f.name}" for f in (place / "lib").glob("*.so*"))):
        system.copy(place / part, f"{inside}/{part}")
    link = system.place / "usr/local/bin/rustc"
    link.unlink(missing_ok=True)
    link.symlink_to(f"{inside}/bin/rustc")


def tried(suite, title, system, debs):
    """{module: file} that DKMS has built and installed in a minimal Debian, or fewer."""
    def step(what, script, ok=True, says=""):
        status, said = system.run(re.sub(r"\W+", "-", what), "sh", "-c", script, cwd="/")
        right = suite.check(f"{title}: {what}", (status == 0) == ok and says in said, f"status {status}")
        if not right:
            suite.say("\n".join(said.splitlines()[-60:]))
        return right

    for deb in debs:
        system.copy(deb, f"/tmp/{deb.name}")
    apt = "DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends"
    # A clang is a C compiler to dkms, too.
    if not step("dkms", f"apt-get -q update && {apt} dkms gcc && dkms --version"):
        return {}
    names = " ".join(f"/tmp/{deb.name}" for deb in debs)
    if not step("the packages and what they depend on", f"{apt} {names}",
                says="" if Path(toolchain.find_rustc()).is_relative_to("/usr/bin") else "Rust modules need"):
        return {}
    give_rustc(system)
    release = next((system.place / "lib/modules").iterdir()).name
    (system.place / "usr/local/bin/clang").write_text(OTHER_CLANG, encoding="ascii")
    (system.place / "usr/local/bin/clang").chmod(0o755)
    found = {}
    for module in MODULES:
        system.copy(SOURCES / module, f"/usr/src/{module}-1.0")
        step(f"dkms add {module}", f"dkms add -m {module} -v 1.0")
    step("dkms autoinstall", f"dkms autoinstall -k {release} 2>&1 | tee /tmp/autoinstall && ! grep -i ^error /tmp/autoinstall || "
         f"{{ cat /var/lib/dkms/*/1.0/build/make.log; exit 1; }}")
    order = re.findall(r"tlb_rs_(?:plain|many)(?=\.ko)", (system.place / "tmp/autoinstall").read_text(encoding="utf-8"))
    suite.check(f"{title}: in the order that BUILD_DEPENDS asks for", order and order == sorted(order, reverse=True),
                " ".join(order))
    for module in MODULES:
        files = list((system.place / "lib/modules" / release).rglob(f"{module}.ko"))
        if suite.check(f"{title}: {module}.ko is installed", len(files) == 1, " ".join(map(str, files))):
            # What follows builds some of them again, or tries to.
            found[module] = system.place.parent / f"{system.release}-{module}.ko"
            shutil.copy(files[0], found[module])
    # One by one, as somebody would who tries it.
    again = f"dkms remove -m tlb_rs_plain -v 1.0 --all && dkms add -m tlb_rs_plain -v 1.0 && dkms build -m tlb_rs_plain -v 1.0 " \
            f"-k {release} && dkms install -m tlb_rs_plain -v 1.0 -k {release}"
    step("dkms add, build and install", again)
    plain = f"cp -r /usr/src/tlb_rs_many-1.0 /tmp/plain && make -C /lib/modules/{release}/build M=/tmp/plain"
    step("make without dkms, without LLVM=", plain)
    refuses(step, release)
    return found


def refuses(step, release):
    """What is missing is named: the compiler, and rustc."""
    rebuild = f"dkms remove -m {{0}} -v 1.0 --all; dkms add -m {{0}} -v 1.0; dkms build -m {{0}} -v 1.0 -k {release} || " \
              "{{ cat /var/lib/dkms/{0}/1.0/build/make.log; exit 1; }}"
    if not Path(toolchain.find_rustc()).is_relative_to("/usr/bin"):
        step("another rustc, which is named", "printf '#!/bin/sh\\necho rustc 1.63.0\\n' >/tmp/rustc; chmod +x /tmp/rustc; "
             f"mv /tmp/rustc /usr/local/bin/rustc; {rebuild.format('tlb_rs_rust')}", ok=False, says="Rust modules need rustc ")
    clang = f"clang-{toolchain.find_llvm()[1][0]}"
    if step("gcc only", f"dpkg --remove --force-depends {clang}; gcc --version && ! command -v {clang}"):
        step("gcc only, and the compiler is named", rebuild.format("tlb_rs_plain"), ok=False,
             says=f"sudo apt-get install {clang}")


def loaded(suite, title, image, modules):
    """The kernel of the package boots, takes all modules and lets them go; tlbstat ab runs on it."""
    job = []
    for module, (parameters, says, gone) in MODULES.items():
        job += [f"insmod /ko/{module}.ko {parameters} && rmmod {module} && dmesg | grep -F '{says}' && "
                f"dmesg | grep -F '{gone}' && echo 'ok - {module}'"]
    with tempfile.TemporaryDirectory() as tmp:
        subprocess.run(["dpkg-deb", "-x", image, tmp], check=True)
        kernel = next(Path(tmp, "boot").glob("vmlinuz-*"))
        name = title.replace(" ", "-")
        result = guest.boot(kernel, ARCH, job="\n".join(job) + COMPARED, log=LOGS / f"{ARCH}-dkms-{name}.log", timeout=600,
                            files={f"ko/{module}.ko": file for module, file in modules.items()})
    lines = result.console.splitlines()
    for module in MODULES:
        suite.check(f"{title}: {module} is loaded, and says so", f"ok - {module}" in lines)
    suite.check(f"{title}: tlbstat ab compares, and sets vm.tlb_batch as it was",
                "ab ended with 0, vm.tlb_batch is 1" in lines and
                any(re.match(r"pages whose flushes were batched +0 +[1-9]", line) for line in lines))
    if not suite.check(f"{title}: console clean, ended as it should", result.exit_status == guest.OK, f"{result.seconds:.0f} s"):
        suite.say(result.report())


def dkms(suite):
    """make deb, then C and Rust modules by DKMS on Debian 12 and 13, loaded in the kernel of the package."""
    if not chosen(suite, ARCH):
        return
    if os.geteuid():
        raise Fail("that takes root: sudo make test SUITE=dkms")
    toolchain.need(["kernel", "deb", "guest", "chroot"])
    if not (debs := packages(suite)):
        return
    image, head = debs
    out = kernel_tool.BUILD / KVER / f"{ARCH}-deb/build"
    symbols, source = exported(), (SOURCES / "tlb_rs_exports/tlb_rs_exports.c").read_text(encoding="utf-8")
    provided = provided_by((out / "Module.symvers").read_text(encoding="utf-8"))
    place = ROOT / "build/dkms"
    place.mkdir(parents=True, exist_ok=True)
    for release in os.environ.get("CHROOT", "").split() or RELEASES:
        common.one_of("CHROOT", release, RELEASES)
        title, failed = RELEASES[release], len(suite.failed)
        system = fresh.System(release, place / release, LOGS)
        system.make()
        modules = tried(suite, title, system, (image, head))
        if "tlb_rs_exports" in modules:
            lacks = unused(symbols, source, provided, wanted_by(modules["tlb_rs_exports"]))
            suite.check(f"{title}: a module uses each of {len(symbols)} exported symbols", not lacks, " ".join(lacks))
        if len(modules) == len(MODULES):
            loaded(suite, title, image, modules)
        if len(suite.failed) == failed:
            system.remove()
        else:
            suite.say(f"{title}: it is left in {system.place}, logs in {LOGS}")
