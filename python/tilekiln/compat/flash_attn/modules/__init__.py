# SPDX-License-Identifier: MIT
"""flash_attn.modules: attention with its projections."""
