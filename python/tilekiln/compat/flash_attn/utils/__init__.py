# SPDX-License-Identifier: MIT
"""flash_attn.utils: distributed, generation, benchmark, pretrained, testing, torch."""
