# SPDX-License-Identifier: GPL-2.0
"""Tests of make deb, and of the commands of the README for boards."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from unittest import mock

from tests.kernel.fixtures import FAKE_BINDGEN, NEW_RUSTC, STOCK, Case, write
from tlbrs.kernel import common, series

# What make deb uses of a kernel tree: configuring without the library source or libclang turns Rust off.
CONFIGURED = {
    "Makefile": STOCK["Makefile"] + "defconfig:\n\techo CONFIG_MM=y > $(O)/.config\nolddefconfig menuconfig:\n"
                '\t[ "$$RUST_LIB_SRC" -a "$$LIBCLANG_PATH" ] || sed -i /RUST/d $(O)/.config\n',
    "scripts/kconfig/merge_config.sh": '#!/bin/sh\nshift 3\nconfig=$1\nshift\ncat "$@" >> "$config"\n'}
FRAGMENTS = {"config/deb.fragment": "CONFIG_RUST=y\n", "config/release.fragment": "CONFIG_MIGRC=y\n",
             "config/hvo.fragment": "CONFIG_HUGETLB_VMEMMAP_PAUSE=y\n"}
# Each run makes another package, as bindeb-pkg does.
BINDEB = """bindeb-pkg:
	rm -rf $(O)/new && mkdir -p $(O)/new/DEBIAN $(O)/new/usr/src/linux-headers-7.3
	cp $(CURDIR)/Makefile $(O)/new/usr/src/linux-headers-7.3/ && echo NAME = x >>$(O)/new/usr/src/linux-headers-7.3/Makefile
	printf 'Package: linux-headers-7.3\\nVersion: 1\\nArchitecture: all\\nMaintainer: a\\nDescription: a\\n' >$(O)/new/DEBIAN/control
	n=$$(ls $(O)/.. | grep -c headers); dpkg-deb -b $(O)/new $(O)/../linux-headers-7.3_$$((n + 1))_all.deb
"""


class Deb(Case):
    """make deb, up to the build."""

    def configured(self, arch, base):
        """(.config, output) of make deb-config."""
        write(self.kdir, CONFIGURED)
        (self.kdir / "scripts/kconfig/merge_config.sh").chmod(0o755)
        write(self.repo, FRAGMENTS)
        self.library()
        self.path(rustc=NEW_RUSTC, bindgen=FAKE_BINDGEN,
                  **{tool: "" for tool in ("dpkg-deb", "dpkg-buildpackage", "dh_prep", "depmod")})
        out = self.ok("deb", "--kdir", self.kdir, "--arch", arch, "--config", base, "--only-configure")
        return self.repo / f"build/7.3-kdir/{arch}-deb/build/.config", out

    def test_printed_commands(self):
        """Both have the environment without which the options go."""
        config, out = self.configured("arm64", "defconfig")
        commands = re.findall(r"(?m)(?:^|: )(env .*(?:menuconfig|bindeb-pkg).*)", out)
        self.assertEqual(2, len(commands), out)
        del self.env["RUST_LIB_SRC"]
        for command in commands:
            menuconfig = command.split(" -j")[0].removesuffix(" menuconfig") + " menuconfig"
            subprocess.run(["sh", "-c", menuconfig], env=self.env, check=True, capture_output=True)
            self.assertIn("CONFIG_RUST=y", config.read_text())

    def test_options_were_lost(self):
        """By a make in the build directory without our variables."""
        config, _ = self.configured("arm64", "defconfig")
        with open(config, "a", encoding="utf-8") as file:
            file.write("CONFIG_OWN=y\n")
        self.configured("arm64", "defconfig")
        self.assertIn("CONFIG_OWN=y", config.read_text())
        subprocess.run(["make", "-C", self.kdir, f"O={config.parent}", "olddefconfig"], check=True, capture_output=True,
                       env={k: v for k, v in self.env.items() if k != "RUST_LIB_SRC"})
        self.assertNotIn("RUST", config.read_text())
        _, out = self.configured("arm64", "defconfig")
        self.assertIn("was changed: CONFIG_RUST=y (is n)", out)
        self.assertIn("CONFIG_RUST=y", config.read_text())
        self.assertIn("CONFIG_OWN=y", config.with_name(".config.lost").read_text())

    def test_all_three_options(self):
        write(self.dir, {"config-rt": "CONFIG_PREEMPT_RT=y\n"})
        self.env["HOME"] = str(self.dir)
        for arch, base, pause in (("arm64", "defconfig", True), ("x86_64", "defconfig", False),
                                  ("arm64", "~/config-rt", True)):
            config, _ = self.configured(arch, base)
            self.assertIn("CONFIG_MIGRC=y", config.read_text())
            self.assertEqual("HUGETLB_VMEMMAP_PAUSE" in config.read_text(), pause, (arch, base))

    def test_configuration(self):
        other = "arm64" if os.uname().machine == "x86_64" else "x86_64"
        deb = ("deb", "--kdir", self.kdir, "--arch")
        self.fails((*deb, other), f"configuration of an {other} machine", "CONFIG=")
        self.fails((*deb, other, "--config", "/nonexistent"), "CONFIG=/nonexistent: no such file")
        self.fails((*deb, "riscv"), "ARCH=riscv")
        if not Path("/boot", f"config-{os.uname().release}").exists():
            self.fails((*deb, "arm64" if other == "x86_64" else "x86_64"), "/boot/config-", "CONFIG=",
                       "/proc/config.gz")

    def test_forbidden(self):
        """What forbids Rust is named, and nothing that is merely a consequence."""
        write(self.kdir, {"init/Kconfig": "config RUST\n\tbool\n\tdepends on !MODVERSIONS || GENDWARFKSYMS\n"})
        drops = {"Makefile": CONFIGURED["Makefile"].replace("olddefconfig", "other") +
                             "olddefconfig:\n\tsed -i -e /RUST/d -e /MIGRC/d $(O)/.config\n"}
        write(self.dir, {"config": "CONFIG_MODVERSIONS=y\n"})
        with mock.patch.dict(CONFIGURED, drops), self.assertRaises(AssertionError) as failed:
            self.configured("x86_64", self.dir / "config")
        said = str(failed.exception)
        self.assertIn("did not take for build: CONFIG_RUST=y (is n), CONFIG_MIGRC=y (is n)\n  CONFIG_RUST is off because of "
                      "CONFIG_MODVERSIONS=y and CONFIG_GENDWARFKSYMS=n: it needs !MODVERSIONS || GENDWARFKSYMS\n", said)
        self.assertNotIn("CONFIG_MIGRC is off", said)

    def test_headers_are_completed(self):
        """The newest package, and no older one."""
        if not shutil.which("dpkg-deb"):
            self.skipTest("no dpkg-deb here")
        makes = CONFIGURED["Makefile"] + BINDEB
        with mock.patch.dict(CONFIGURED, {"Makefile": makes}):
            config, _ = self.configured("arm64", "defconfig")
        # The first build would ask for 15 GiB, which the place of these tests may not have.
        write(config.parent, {"vmlinux": ""})
        self.path(rustc=NEW_RUSTC, bindgen=FAKE_BINDGEN, **{t: "" for t in ("dpkg-buildpackage", "dh_prep", "depmod")})
        for n in (1, 2):
            out = self.ok("deb", "--kdir", self.kdir, "--arch", "arm64", "--config", "defconfig")
            self.assertIn(f"linux-headers-7.3_{n}_all.deb", out)
        for n in (1, 2):
            held = subprocess.run(["dpkg-deb", "-c", self.repo / f"build/7.3-kdir/arm64-deb/linux-headers-7.3_{n}_all.deb"],
                                  check=True, text=True, capture_output=True).stdout
            self.assertIn("/usr/src/linux-headers-7.3/.config\n", held)

    def test_no_debhelper(self):
        self.path(("dh_prep", "dpkg-buildpackage"))
        self.fails(("deb", "--kdir", self.kdir, "--arch", "arm64", "--config", "defconfig"),
                   "sudo apt-get install -y --no-install-recommends dpkg-dev debhelper")


BOARD_MAKE = """case "$*" in
deb\\ *)
	mkdir -p build/7.3/arm64-deb && cd build/7.3/arm64-deb
	n=$(ls linux-image-* 2>/dev/null | wc -l) && rm -rf new
	mkdir -p new/DEBIAN new/lib/modules/$n new/usr/lib/linux-image-7.3/arm build/arch/arm64/boot
	printf 'Package: linux-image-7.3\\nVersion: %s\\nArchitecture: arm64\\nMaintainer: a\\nDescription: a\\n' $n >new/DEBIAN/control
	echo >build/arch/arm64/boot/Image
	dpkg-deb -b new linux-image-7.3_${n}_arm64.deb >/dev/null;;
*)
	out=$(echo "$*" | sed 's/.* O=\\([^ ]*\\) .*/\\1/')/kselftest/kselftest_install/kselftest-packages
	mkdir -p $out && echo >$out/kselftest.tar.xz;;
esac
"""
# A program that wants the files that it is given.
TAKES = 'for f; do case $f in build/*|board/*|*.yaml) [ -f "$f" ] || { echo "no $f" >&2; exit 1; };; esac; done\n'


class Boards(Case):
    """The commands of the README for boards, copied as a whole, twice."""

    def test_commands(self):
        if not shutil.which("dpkg-deb"):
            self.skipTest("no dpkg-deb here")
        text = series.section((common.ROOT / "ci/lava/README.md").read_text(encoding="utf-8"), "On boards")
        commands = "".join(re.findall(r"(?m)^    (.*\n)", text + "\n"))
        for tool in ("make deb", "kselftest-gen_tar", "dpkg-deb", "lavacli", "tuxrun"):
            self.assertIn(tool, commands)
        self.assertNotIn("/build ", re.search(r" O=(\S+ )", commands).group(1))    # of the package
        # Of this machine, which may not have it.
        self.assertNotRegex(commands, r"(?<![\w$])/(usr|bin|sbin|lib)\b")
        write(self.repo, {"ci/lava/arm64-board.yaml": "${URL}\n"})
        before = set(os.listdir(self.repo))
        self.path(make=BOARD_MAKE, envsubst="cat\n", python3=TAKES, lavacli=TAKES, tuxrun=TAKES)
        p = subprocess.run(["sh", "-e", "-c", commands * 2], env=self.env, cwd=self.repo, text=True, capture_output=True,
                           check=False)
        self.assertEqual((0, ""), (p.returncode, p.stderr))
        modules = subprocess.run(["tar", "-tf", self.repo / "build/board/modules.tar.xz"], check=True, text=True,
                                 capture_output=True).stdout.split()
        self.assertEqual(["lib/", "lib/modules/", "lib/modules/1/"], modules)
        self.assertEqual({"build"}, set(os.listdir(self.repo)) - before)


    def test_lava_steps(self):
        """By lava-test-case, which evaluates the words after --shell once more."""
        job = (common.ROOT / "ci/lava/arm64-board.yaml").read_text(encoding="utf-8")
        steps = re.findall(r"^ +- (lava-test-case (?:hvo|no-splat) .*)$", job, re.M)
        for ksft, log, verdict in (("ok 1 mm:ksft_hvo.sh", "booted", "pass"), ("not ok 1 x", "WARNING: CPU: 1", "fail"),
                                   ("ok 1 x # SKIP", "BUG: y", "fail"), ("", "Oops", "fail")):
            self.path(**{"lava-test-case": 'name=$1; shift 2; if eval "$*"; then v=pass; else v=fail; fi; echo "$name: $v"\n',
                         "dmesg": f"echo '{log}'\n"})
            write(self.repo, {"run_kselftest.sh": f'#!/bin/sh\n[ "$*" = "-t mm:ksft_hvo.sh" ] && echo "{ksft}"\n'})
            (self.repo / "run_kselftest.sh").chmod(0o755)
            said = subprocess.run(["sh", "-c", "\n".join(steps)], env=self.env, cwd=self.repo, text=True,
                                  capture_output=True, check=False).stdout.splitlines()
            self.assertEqual([f"{name}: {verdict}" for name in ("hvo", "no-splat")], [s for s in said if ": " in s and
                             s.split(":")[0] in ("hvo", "no-splat")])
