# SPDX-License-Identifier: MIT
"""flash_attn.losses."""
