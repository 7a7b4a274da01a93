# SPDX-License-Identifier: MIT
"""Score and mask functions in PyTorch: the custom operator, callables of FlexAttention, its block masks."""
