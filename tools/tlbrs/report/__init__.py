# SPDX-License-Identifier: GPL-2.0
"""What stock and tlb-rs cost."""
