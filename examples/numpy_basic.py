# SPDX-License-Identifier: MIT
"""Attention on NumPy arrays: causal, with the log-sum-exp, into an array of one's own."""

import numpy as np
import tilekiln as tk

lib = tk.load("flash")
random = np.random.default_rng(0)
q = random.standard_normal((2, 500, 8, 64), np.float32)  # (batch, seqlen, nhead, hdim)
k = random.standard_normal((2, 700, 2, 64), np.float32)  # four query heads share one key head
v = random.standard_normal((2, 700, 2, 64), np.float32)

out, lse = lib.fmha_fwd(q, k, v, causal=True, return_lse=True)
expected, expected_lse = tk.reference.fmha_fwd(q, k, v, causal=True, return_lse=True)
assert np.abs(out - expected).max() < 1e-5
assert np.abs(lse - expected_lse).max() < 1e-5

mine = np.empty_like(out)
lib.fmha_fwd(q, k, v, causal=True, out=mine)
assert np.array_equal(mine, out)

# Views are used where they lie: here q, k and v are slices of one projection, heads before sequence.
qkv = random.standard_normal((1, 3, 8, 300, 64), np.float32)
out = lib.fmha_fwd(*qkv.swapaxes(0, 1), layout="bhsd")
print("out", out.shape, out.dtype)
