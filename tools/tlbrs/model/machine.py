# SPDX-License-Identifier: GPL-2.0
"""The machine, as gem5 reads it: cores on a mesh that boot Linux, and one region of a program that is measured.

usage: gem5.fast machine.py --configs DIR --loader FILE --kernel VMLINUX --initrd FILE [--disk FILE] --cores N
                            (--regions N | --restore DIR [--answer CYCLES | --without-dvm])

--regions: cores without time and without caches run the job to its end, and leave a checkpoint at the start of each
of its regions, region.K in the output directory. --restore: cores with time and caches run from there to the end of
the region. --disk: an image that answers at once; what is written to it is kept elsewhere. --answer: how long each
message takes to leave the node that tells all cores of a TLBI or DSB; three of them follow each other. --without-dvm:
it is told to no other core.
"""

import argparse
import os
import sys
from pathlib import Path

import m5
from m5.ext.pyfdt import pyfdt
from m5.objects import (NULL, ArmDefaultRelease, ArmFsLinux, CowDiskImage, NonCachingSimpleCPU, Pl011, RawDiskImage, Root,
                        SrcClockDomain, VExpress_GEM5_V2, VirtIOBlock)

HERE = Path(__file__).resolve().parent
TICKS = 10**12      # in a second
# Ours. The rest is as gem5's CHI nodes have it.
CLOCK = "2GHz"
CACHES = {"l1i_size": "64kB", "l1i_assoc": 4, "l1d_size": "64kB", "l1d_assoc": 4, "l2_size": "1MB", "l2_assoc": 8,
          "l3_size": "1MB", "l3_assoc": 16, "cacheline_size": 64}
MEMORY = {"mem_type": "DDR4_2400_16x4", "mem_channels": 2, "num_dirs": 2, "enable_dram_powerdown": False}
# The loader leaves EL3 without what these need there.
WITHOUT = {"FEAT_FGT", "FEAT_HCX"}
END = b"tlb-rs: job exit"


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--configs", required=True, help="the directory configs of gem5's source")
    parser.add_argument("--loader", required=True, help="gem5's boot_v2.arm64")
    parser.add_argument("--kernel")
    parser.add_argument("--initrd")
    parser.add_argument("--disk")
    parser.add_argument("--append", default="")
    parser.add_argument("--cores", type=int, required=True)
    parser.add_argument("--mem", default="1GiB")
    parser.add_argument("--regions", type=int)
    parser.add_argument("--restore")
    parser.add_argument("--answer", type=int, default=1)
    parser.add_argument("--without-dvm", action="store_true")
    parser.add_argument("--seconds", type=float, default=120, help="simulated, at most")
    return parser.parse_args()


def ruby_options(args):
    """What gem5's scripts of caches and interconnect want to know."""
    from ruby import Ruby   # pylint: disable=import-outside-toplevel,import-error
    parser = argparse.ArgumentParser()
    Ruby.define_options(parser)
    words = ["--topology=CustomMesh", f"--chi-config={HERE / 'mesh.py'}"]
    # A boot has no time, and a checkpoint nothing that is under way.
    options = parser.parse_args(words + (["--enable-dvm"] if args.restore and not args.without_dvm else []))
    more = {"num_cpus": args.cores, "num_l2caches": args.cores, "num_l3caches": args.cores // 2, "mem_size": args.mem}
    for name, value in (CACHES | MEMORY | more).items():
        setattr(options, name, value)
    return options


def sbsa_uart(self, state):
    """The device tree's node of a PL011: as an SBSA UART it needs no driver of the board's clocks."""
    node = self.generateBasicPioDeviceNode(state, "uart", self.pio_addr, 0x1000, [self.interrupt])
    node.appendCompatible(["arm,sbsa-uart"])
    node.append(pyfdt.FdtPropertyWords("current-speed", [115200]))
    yield node


def release():
    """The features of the cores."""
    found = ArmDefaultRelease()
    found.extensions = [feature for feature in found.extensions if str(feature) not in WITHOUT]
    return found


def build(args):
    # pylint: disable=import-outside-toplevel,import-error
    import devices
    from common.cores.arm.O3_ARM_v7a import O3_ARM_v7a_3
    from ruby import Ruby
    cpu = O3_ARM_v7a_3 if args.restore else NonCachingSimpleCPU
    Pl011.generateDeviceTree = sbsa_uart
    platform = VExpress_GEM5_V2()
    platform.gic.its = NULL     # its DMA has no place in the interconnect, and no device here needs it
    if args.disk:
        platform.vio[0].vio = VirtIOBlock(image=CowDiskImage(child=RawDiskImage(image_file=args.disk, read_only=True)))
    system = devices.ArmRubySystem(
        args.mem, platform=platform, mem_mode=cpu.memory_mode(), exit_on_work_items=True,
        release=release(), workload=ArmFsLinux(object_file=args.kernel, initrd_filename=args.initrd))
    system.cpu_cluster = [devices.ArmCpuCluster(system, args.cores, CLOCK, "1.0V", cpu, None, None, None)]
    Ruby.create_system(ruby_options(args), True, system, system.iobus, system._dma_ports, system.realview.bootmem,
                       list(system.cpu_cluster[0].cpus))
    for node in system.ruby.mn:
        for controller in node.getAllControllers():
            controller.response_latency = args.answer
    system.ruby.clk_domain = SrcClockDomain(clock=CLOCK, voltage_domain=system.voltage_domain)
    system.connect()
    system.realview.setupBootLoader(system, None, args.loader)
    system.workload.dtb_filename = os.path.join(m5.options.outdir, "system.dtb")
    system.generateDtb(system.workload.dtb_filename)
    system.workload.command_line = f"console=ttyAMA0 earlycon=pl011,0x1c090000 printk.time=1 panic=-1 {args.append}"
    return system


def until(causes, args):
    event = m5.simulate(int(args.seconds * TICKS) - m5.curTick())
    if event.getCause() not in causes:
        sys.exit(f"gem5 stopped: {event.getCause()} at {m5.curTick()}")
    return event.getCause()


def boot(args):
    for region in range(args.regions):
        until({"workbegin"}, args)
        print(f"region {region} at {m5.curTick()}", flush=True)
        m5.checkpoint(os.path.join(m5.options.outdir, f"region.{region}"))
        until({"workend"}, args)
    # The machine has no way to switch itself off.
    terminal = Path(m5.options.outdir, "system.terminal")
    while END not in terminal.read_bytes():
        if m5.simulate(TICKS // 1000).getCause() != "simulate() limit reached" or m5.curTick() > args.seconds * TICKS:
            sys.exit("gem5 stopped: no end of the job")


def measure(args):
    m5.stats.reset()
    until({"workend"}, args)
    m5.stats.dump()


def main():
    args = parse()
    os.environ["TLBRS_CORES"] = str(args.cores)
    sys.path[:0] = [args.configs, os.path.join(args.configs, "example/arm")]
    root = Root(full_system=True)
    root.system = build(args)
    m5.instantiate(args.restore)
    if args.restore:
        measure(args)
    else:
        boot(args)


if __name__ == "__m5_main__":
    main()
