# SPDX-License-Identifier: MIT
"""flash_attn.layers: patch_embed, rotary."""
