# SPDX-License-Identifier: MIT
"""flash_attn.ops, of which there are rms_norm, layer_norm and triton."""
