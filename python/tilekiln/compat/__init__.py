# SPDX-License-Identifier: MIT
"""Compatibility modules: the names of flash_attn and aiter over kernels of Tilekiln."""
