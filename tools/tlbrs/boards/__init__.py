# SPDX-License-Identifier: GPL-2.0
"""What others measure and test kernels with: Arm's Fastpath, the CI of the mm tree."""
