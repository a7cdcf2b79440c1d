# SPDX-License-Identifier: GPL-2.0
# Thin targets over tools/tlb-rs; "make help" lists them.

ARCH ?= arm64
VARIANT ?= release
KVER ?= 7.3

PYTHON = python3
TLB_RS = $(PYTHON) tools/tlb-rs
KERNEL = $(TLB_RS) kernel
NEED = $(TLB_RS) toolchain need
GUEST = $(TLB_RS) guest
where = $(if $(KDIR),--kdir '$(call quoted,$(KDIR))') --kver $(KVER)
# dash does not expand the ~ of make INITRD=~/my.gz; kernel.py does it for itself.
home = $(patsubst ~/%,$(HOME)/%,$(1))
# Inside of single quotes of the shell.
quoted = $(subst ','\'',$(1))
IMAGE = build/$(KVER)/$(ARCH)-$(VARIANT)/$(if $(filter x86_64,$(ARCH)),bzImage,Image)
guest_options = --arch $(ARCH) --kernel $(IMAGE) $(if $(CPU),--cpu '$(CPU)') $(if $(SMP),--smp $(SMP)) \
	$(if $(MEM),--mem $(MEM)) $(if $(DISK),--disk '$(call home,$(DISK))') \
	$(if $(APPEND),--append '$(call quoted,$(APPEND))') \
	$(if $(filter-out 0,$(METER)),--meter) $(if $(filter-out 0,$(ORACLE)),--oracle) \
	$(if $(TIMEOUT),--timeout $(TIMEOUT))

# What is built from KDIR= has a directory of its own.
ifneq ($(and $(KDIR),$(filter boot shell run test check bench selftests soak sabotage matrix,$(MAKECMDGOALS))),)
$(error these take no KDIR=: make kernel KDIR=dir prints where its image is, and make boot KVER=7.3-kdir boots that)
endif

help:
	@sed -n 's/^#: \{0,1\}//p' Makefile

#: tlb-rs: less TLB maintenance in Linux, in Rust
#:
#:   make run                 build stock and tlb-rs, boot both, print the comparison; FAST=1: tlb-rs only, with
#:                            vm.tlb_batch=0 and 1
#:   make test                all suites but those below; ends with "N passed, N failed"; V=1 shows what passed, too;
#:                            SUITE='style tools': only these; ARCH=: only this architecture. By name only, for the
#:                            time that they take:
#:                            SUITE=sabotage_all: every rule removed, of which make test has some: see make sabotage
#:                            SUITE=debug: KUnit, the guest programs and sabotage_all under generic KASAN and lockdep
#:                            SUITE=pages: arm64 kernels with pages of 16 and 64 KiB
#:                            SUITE=hvo: HugeTLB pages without struct pages from boot by default, and without the
#:                            GIC's broadcast
#:                            SUITE=fs: migrc on xfs, btrfs, erofs and squashfs; fio and mkclean on xfs and btrfs
#:                            SUITE=fsx: fsx and stress-ng on ext4, xfs and btrfs, for MINUTES=10 on each; SEED=
#:                            SUITE=stock: tlbstat on kernels without tlb-rs
#:                            SUITE=docs: make htmldocs, if Sphinx is there
#:                            SUITE=commits: each commit of make series, built and booted; FROM=migrc/0003: from there on;
#:                            RUST=n: each without Rust
#:                            SUITE=fastpath: make fastpath from a small configuration; each profile of its plan boots
#:                            SUITE=recipes: bpftrace and perf, as the administrator's guide has them
#:                            SUITE=reports: kexec, crash dumps and hibernation with HugeTLB pages that gave back struct
#:                            pages, arm64; DEBIAN=sid: makedumpfile of this Debian
#:                            SUITE=loop: a loop device on tmpfs while memory is short, arm64, for MINUTES=10
#:                            SUITE=chroot: all of it in a minimal Debian 12, some in 13, with nothing installed by hand;
#:                            as root. CHROOT=bookworm|trixie INNER='style boot': only there, only these
#:                            SUITE=dkms: packages of make deb, C and Rust modules built on them by DKMS in a minimal Debian
#:                            12 and 13, and loaded; as root. CHROOT=bookworm|trixie
#:                            SUITE=abuse: attempts to make it overflow, fill up, stall or leak, at length
#:   make check               of these what needs neither a kernel build nor a guest: SUITE='style tools verify size'
#:   make rules               Documentation/mm/tlb_rules.rst, from verify/rules/
#:   make sabotage            every rule removed, one after the other, on both architectures: prints which test
#:                            saw it; before that the intact kernel
#:   make matrix              other kernels: what distributions build, KASAN and lockdep, KCSAN, KFENCE, PREEMPT_RT, memory
#:                            tags, no NUMA, no THP, no SMP, larger pages; goes on where it was interrupted.
#:                            KERNELS='arm64-rt x86_64-up': only these
#:   make kernel              build one kernel: build/KVER/ARCH-VARIANT/
#:   make boot INITRD=file    boot an initramfs of yours; or JOB='shell commands'
#:   make shell               a shell in the guest
#:   make bench               measurements, into build/bench/: bench.html (one page), bench.md, bench.json;
#:                            SUITE='counts pageout': only these; SUITE=model GEM5=dir: time, in gem5
#:   make selftests           the kernel tree's own mm selftests on both, compared; TESTS='cow migration'
#:                            MIGRC=1: instead, the checked image under the oracle, migrc on and off;
#:                            MOVE=1: while their memory is moved; HVO=1: those of HugeTLB pages on
#:                            arm64, struct pages given back, and stock; VARIANT=16k: instead, this image with
#:                            vm.tlb_batch=0 and 1
#:   make soak MINUTES=15     stress-ng and our stress programs together, under KASAN, lockdep and the oracle of stale
#:                            translations; on arm64, then as long a storm of HugeTLB pools; ARCH=
#:                            TIERS=1: instead, two tiers of memory, with demotion and promotion; WITHOUT=flush: a
#:                            minute of that without this rule of migrc, which must be noticed
#:   make coverage            which lines of the pure logic the tests on the host run
#:   make meter programs      the QEMU plugin, the guest programs
#:   make doctor              what is here, what is missing and the command for it; make setup INSTALL=1:
#:                            install it
#:   make source              fetch the kernel source into ~/.cache/tlb-rs
#:
#: On a kernel tree of your own:
#:   make kernel KDIR=dir     build from a copy of it (the tree is not changed)
#:   make apply KDIR=dir      put the new files and the series onto it
#:   make unapply KDIR=dir    take them off again
#:   make series OUT=dir      the same as series for git am, one for each mechanism, with cover letters
#:   make deb                 linux-image and other packages for this Debian or Ubuntu machine, from the running
#:                            kernel's configuration; or ARCH= CONFIG=file. make deb-config: stop before the build
#:   make fastpath OUT=dir CONFIG=file
#:                            for an arm64 board: stock and tlb-rs kernels, and a plan with which Arm's Fastpath compares
#:                            them; FASTPATH=dir: with benchmarks of this checkout. Not tried with Fastpath itself yet
#:   make mmci                build without Rust, and run the mm selftests by virtme-ng, as the CI of the mm tree does;
#:                            MMCI=dir: with the fragment and tests of its checkout; TESTS='thp migration' MEM=4G KVM=0
#:
#: While developing: overlay files are edited here, "make kernel" picks them up. The patched tree is
#: build/KVER/linux; edits made there are brought back by
#:   make refresh             new files of the overlay
#:   make refresh PATCH=folder/name
#:                            the same, and edits of existing files into patches/folder/name (a new name is
#:                            appended to its folder, with the next number)
#:   make edit PATCH=folder/name
#:                            first, where later patches change the same file
#:   make clean distclean     remove build/ but for the kernels; all of build/
#:
#: Variables: ARCH=arm64|x86_64  KVER=7.3
#:   VARIANT=release|stock|checked|bench|trace, fs, of make selftests: selftests|stock-selftests,
#:            or of make matrix: debug|hardened|distro|kcsan|rt|nonuma|nothp|mte|up|16k|64k; hvo-on, reports
#:   INSTALL=1 (install packages with sudo; 0: never, not even as root)
#:   boot, shell: CPU=max SMP=4 MEM=2G DISK=file|size APPEND='kernel arguments' METER=1 ORACLE=1
#:   TIMEOUT=seconds (selftests: of one command; mmci: of one test); kernel: LLVM=-NN RUSTC= BINDGEN= RUST_LIB_SRC=

kernel:
	@$(KERNEL) build --arch $(ARCH) --variant $(VARIANT) $(where)

# Boots what was built; builds only what is not there.
build/%/Image build/%/bzImage:
	@$(KERNEL) build --arch $(firstword $(subst -, ,$(notdir $*))) \
		--variant $(patsubst arm64-%,%,$(patsubst x86_64-%,%,$(notdir $*))) --kver $(KVER)

plugin = $(if $(filter-out 0,$(METER) $(ORACLE)),meter)

# Before a kernel is built for it.
$(IMAGE): | initrd

initrd:
	@$(if $(INITRD),test -f '$(call home,$(INITRD))' || { echo 'error: INITRD=$(INITRD): no such file' >&2; exit 1; })

boot: $(IMAGE) $(plugin)
	@$(GUEST) boot $(guest_options) $(if $(INITRD),--initrd '$(call home,$(INITRD))',--job '$(call quoted,$(or $(JOB),uname -a))')

shell: $(IMAGE) $(plugin)
	@$(GUEST) shell $(guest_options)

run test bench selftests soak: setup
	@$(TLB_RS) $@

check: setup
	@SUITE="style tools verify size" $(TLB_RS) test

rules:
	@$(TLB_RS) rules --write

sabotage: setup
	@SUITE="verify programs sabotage_all" $(TLB_RS) test

matrix: setup
	@$(TLB_RS) matrix

coverage:
	@$(PYTHON) verify/coverage.py

guest-tools:
	@$(NEED) guest

meter: guest-tools
	@$(MAKE) -C tools/meter

programs: guest-tools
	@$(GUEST) programs --arch $(ARCH)

doctor:
	@$(TLB_RS) toolchain doctor

setup:
	@$(NEED) kernel guest test

source edit refresh:
	@$(KERNEL) $@ $(where) $(if $(PATCH),--patch '$(call quoted,$(PATCH))')

apply unapply:
	@$(KERNEL) $@ $(if $(KDIR),--kdir '$(call quoted,$(KDIR))')

series:
	@$(KERNEL) series $(where) $(if $(OUT),--out '$(call quoted,$(OUT))')

# Not ARCH's default: this machine's own is the one that has a configuration.
deb deb-config:
	@$(KERNEL) deb --arch $(if $(filter file,$(origin ARCH)),$(patsubst aarch64,arm64,$(shell uname -m)),$(ARCH)) \
		$(where) $(if $(CONFIG),--config $(CONFIG)) $(if $(filter deb-config,$@),--only-configure)

fastpath:
	@$(TLB_RS) fastpath --arch $(ARCH) $(where) $(if $(OUT),--out '$(call quoted,$(OUT))') $(if $(CONFIG),--config $(CONFIG)) \
		$(if $(FASTPATH),--fastpath '$(call quoted,$(FASTPATH))')

mmci:
	@$(TLB_RS) mmci $(where) $(if $(MMCI),--mmci '$(call quoted,$(MMCI))') $(if $(MEM),--mem $(MEM)) \
		$(if $(TIMEOUT),--timeout $(TIMEOUT)) $(if $(CONFIG),--config $(CONFIG) --) $(TESTS)

clean:
	rm -rf $(addprefix build/,meter tlbstat guest bench report selftests soak matrix test commits chroot dkms exercisers)

distclean:
	[ ! -d build ] || find build/ -mindepth 1 -delete

.PHONY: help kernel boot initrd shell run test check bench selftests soak rules sabotage matrix coverage guest-tools meter \
	programs doctor setup source edit refresh apply unapply series deb deb-config fastpath mmci clean distclean
