# SPDX-License-Identifier: MIT
"""Attention on torch tensors, side by side with torch's own.

Needs torch: tools/dev --with torch python examples/torch_tensors.py
"""

import tilekiln as tk
import torch

torch.manual_seed(0)
q, k, v = (torch.randn(1, 16, 512, 64, dtype=torch.bfloat16) for _ in range(3))  # (batch, nhead, seqlen, hdim)

out = tk.attention(q, k, v, causal=True, layout="bhsd")
theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
assert out.dtype == torch.bfloat16
assert (out - theirs).abs().max() < 0.03
print("largest difference to torch", float((out - theirs).abs().max()))
