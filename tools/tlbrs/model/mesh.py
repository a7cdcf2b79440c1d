# SPDX-License-Identifier: GPL-2.0
"""The mesh of machine.py, as gem5's CHI configuration reads it: --chi-config.

At each router a core with its private caches, at each second one a slice of the last cache: gem5 as it is built by
default has room for 64 caches. The node that tells all cores of a TLBI or DSB is at the first router. TLBRS_CORES is
the number of cores.
"""

import os

from ruby import CHI_config

CORES = int(os.environ["TLBRS_CORES"])
CYCLES = 2      # of a router, and of a link between two
ROWS = max(n for n in range(1, CORES + 1) if CORES % n == 0 and n * n <= CORES)
ALL = list(range(CORES))


def at(kind, routers):
    """A kind of node, whose nodes are at these routers."""
    place = type("NoC_Params", (kind.NoC_Params,), {"router_list": routers})
    return type(kind.__name__, (kind,), {"NoC_Params": place})


class NoC_Params(CHI_config.NoC_Params):
    num_rows = ROWS
    num_cols = CORES // ROWS
    router_link_latency = CYCLES
    node_link_latency = 1
    router_latency = CYCLES


CHI_RNF = at(CHI_config.CHI_RNF, ALL)
CHI_HNF = at(CHI_config.CHI_HNF, ALL[::2])
CHI_MN = at(CHI_config.CHI_MN, ALL[:1])
CHI_SNF_MainMem = at(CHI_config.CHI_SNF_MainMem, [ALL[0], ALL[-1]])
CHI_SNF_BootMem = at(CHI_config.CHI_SNF_BootMem, ALL[:1])
CHI_RNI_DMA = at(CHI_config.CHI_RNI_DMA, ALL[-1:])
CHI_RNI_IO = at(CHI_config.CHI_RNI_IO, ALL[-1:])
