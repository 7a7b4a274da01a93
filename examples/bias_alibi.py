# SPDX-License-Identifier: MIT
"""Terms added to the scores: an elementwise bias, and alibi slopes."""

import numpy as np
import tilekiln as tk

random = np.random.default_rng(0)
q, k, v = (random.standard_normal((2, 100, 4, 64), np.float32).astype(np.float16) for _ in range(3))

# A bias for each query and key; one plane for all heads and batches, or one for each.
for planes in ((1, 1), (1, 4), (2, 4)):
    bias = random.standard_normal((*planes, 100, 100), np.float32).astype(np.float16)
    out = tk.load("pytorch").fmha_fwd(q, k, v, bias=bias)
    expected = tk.reference.fmha_fwd(q, k, v, bias=bias)
    assert np.abs(out - expected).max() < 2e-3

# Alibi: -slope |distance|, the geometric slopes of 4 heads.
alibi_slopes = 2.0 ** -np.arange(2, 9, 2, dtype=np.float32)
out = tk.load("flash").fmha_fwd(q, k, v, alibi_slopes=alibi_slopes, causal=True)
distance = np.abs(np.arange(100)[:, None] - np.arange(100)[None, :])
bias = -alibi_slopes[None, :, None, None] * distance
assert np.abs(out - tk.reference.fmha_fwd(q, k, v, bias=bias, causal=True)).max() < 2e-3
print("slopes", alibi_slopes)
