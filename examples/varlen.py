# SPDX-License-Identifier: MIT
"""Sequences of different lengths in one call: packed without padding, packed with gaps, and padded batch rows."""

import itertools

import numpy as np
import tilekiln as tk

lib = tk.load("flash")
random = np.random.default_rng(0)
lengths = [5, 0, 130, 64]

# Packed: (total, nhead, hdim), and where each sequence begins.
cu_seqlens = np.cumsum([0, *lengths]).astype(np.int32)
q, k, v = (random.standard_normal((cu_seqlens[-1], 4, 64), np.float32) for _ in range(3))
packed = lib.fmha_fwd(q, k, v, cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens, causal=True)

# Sequences are computed as if each were alone.
for begin, end in itertools.pairwise(cu_seqlens):
    alone = lib.fmha_fwd(q[None, begin:end], k[None, begin:end], v[None, begin:end], causal=True)
    assert np.array_equal(packed[begin:end], alone[0])

# Packed with gaps: seqstart says where a sequence lies, seqlen how much of that is real. The gaps are not touched.
seqstart = np.array([0, 8, 8, 140, 204], np.int32)
gaps = [np.zeros((204, 4, 64), np.float32) for _ in range(3)]
for array, source in zip(gaps, (q, k, v), strict=True):
    for start, begin, length in zip(seqstart, cu_seqlens, lengths, strict=False):
        array[start : start + length] = source[begin : begin + length]
seqlen = np.array(lengths, np.int32)
out = lib.fmha_fwd(*gaps, seqstart_q=seqstart, seqstart_k=seqstart, seqlen_q=seqlen, seqlen_k=seqlen, causal=True)
assert np.array_equal(out[140 : 140 + 64], packed[135:199])
assert not out[5:8].any()

# Padded: one row of a batch per sequence.
rows = [np.zeros((4, 130, 4, 64), np.float32) for _ in range(3)]
for array, source in zip(rows, (q, k, v), strict=True):
    for b, (begin, length) in enumerate(zip(cu_seqlens, lengths, strict=False)):
        array[b, :length] = source[begin : begin + length]
out = lib.fmha_fwd(*rows, seqlen_q=seqlen, seqlen_k=seqlen, causal=True)
assert np.array_equal(out[2], packed[5:135])
print("out", packed.shape, out.shape)
