# SPDX-License-Identifier: GPL-2.0
"""A modelled machine: gem5 with cores, caches and an interconnect that carries TLB maintenance."""
