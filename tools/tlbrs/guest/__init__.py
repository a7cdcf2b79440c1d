# SPDX-License-Identifier: GPL-2.0
"""Guests in QEMU, and the programs in them."""
