# SPDX-License-Identifier: GPL-2.0
"""The suites of make test, and the matrix."""
