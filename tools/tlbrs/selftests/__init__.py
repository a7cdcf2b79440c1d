# SPDX-License-Identifier: GPL-2.0
"""The kernel tree's own mm selftests."""
