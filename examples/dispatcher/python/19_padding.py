"""Sequences of different lengths: rows padded in a batch, or packed one after another. The same numbers."""

import numpy as np
from dispatch_example import forward, normal, over, verdict

of, lengths = over("flash"), np.int32([5, 40, 17])
starts = np.cumsum([0, *lengths]).astype(np.int32)
packed = [normal(62, 2, 64, seed=seed) for seed in (1, 2, 3)]
padded = [np.zeros((3, 40, 2, 64), packed[0].dtype) for _ in packed]
for rows, array in zip(padded, packed, strict=True):
    for b, (start, length) in enumerate(zip(starts, lengths, strict=False)):
        rows[b, :length] = array[start : start + length]
batch = forward("padded rows of a batch", of, *padded, seqlen_q=lengths, seqlen_k=lengths)
group = forward("packed: group mode", of, *packed, seqstart_q=starts, seqstart_k=starts, causal=False)
same = all(
    np.array_equal(batch[b, :length], group[start : start + length])
    for b, (start, length) in enumerate(zip(starts, lengths, strict=False))
)
verdict("both", same, "the same bits")
