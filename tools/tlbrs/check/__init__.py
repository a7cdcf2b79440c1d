# SPDX-License-Identifier: GPL-2.0
"""Checks of the source, of the plugin and of the proofs."""
