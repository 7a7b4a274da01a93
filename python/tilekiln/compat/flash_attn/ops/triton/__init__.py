# SPDX-License-Identifier: MIT
"""flash_attn.ops.triton: upstream's names of rotary embedding, norms and cross entropy, without Triton."""
