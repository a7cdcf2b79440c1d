# SPDX-License-Identifier: GPL-2.0
"""Tests of the build tools: cd tools && python3 -m tests.kernel.test_kernel"""
