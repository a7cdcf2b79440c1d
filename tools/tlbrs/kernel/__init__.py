# SPDX-License-Identifier: GPL-2.0
"""Kernel source, patches, toolchain and builds."""
