# SPDX-License-Identifier: GPL-2.0
"""Unit tests: cd tools && python3 -m unittest tests.test_NAME"""
