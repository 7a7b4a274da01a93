# SPDX-License-Identifier: MIT
"""Layouts of arrays: padded or packed sequences, column-major v, heads before or after the sequence."""

import numpy as np
from dispatch_example import attention, forward, main, normal, over, qkv, verdict


def _19_padding() -> None:
    """Sequences of different lengths: rows padded in a batch, or packed one after another. The same numbers."""
    of, lengths = over("flash"), np.int32([5, 40, 17])
    starts = np.cumsum([0, *lengths]).astype(np.int32)
    packed = [normal(62, 2, 64, seed=seed) for seed in (1, 2, 3)]
    padded = [np.zeros((3, 40, 2, 64), packed[0].dtype) for _ in packed]
    places = [(b, start, length) for b, (start, length) in enumerate(zip(starts, lengths, strict=False))]
    for rows, array in zip(padded, packed, strict=True):
        for b, start, length in places:
            rows[b, :length] = array[start : start + length]
    batch = forward("padded rows of a batch", of, *padded, seqlen_q=lengths, seqlen_k=lengths)
    group = forward("packed: group mode", of, *packed, seqstart_q=starts, seqstart_k=starts, causal=False)
    same = all(np.array_equal(batch[b, :length], group[start : start + length]) for b, start, length in places)
    verdict("both", same, "the same bits")


def _24_vlayout_col() -> None:
    """Column-major V: no kernel has it, and none of another layout answers. Its transpose is what the kernels take."""
    of = over("flash")
    plan = of.plan(attention().v_rowmajor(False).build())
    verdict("v_rowmajor(False)", not plan.is_valid, "has no kernel")
    print(
        next(line.rpartition(": ")[2] for line in plan.reason.splitlines() if "v_layout" in line and "refused" in line)
    )
    q, k, v = qkv()
    columns = np.ascontiguousarray(v.transpose(0, 2, 3, 1))  # (batch, nhead, hdim, seqlen)
    out = of.run("fmha_fwd", q, k, np.ascontiguousarray(columns.transpose(0, 3, 1, 2)))
    verdict("transposed first", np.array_equal(out, of.run("fmha_fwd", q, k, v)), "the same bits")


def _25_permutation() -> None:
    """Heads before or after the sequence: bshd and bhsd, in and out."""
    of = over("flash")
    q, k, v = qkv(batch=2, seqlen_q=30, seqlen_k=40, nhead_q=4)
    bshd = forward("bshd", of, q, k, v)
    q, k, v = (np.ascontiguousarray(np.swapaxes(array, 1, 2)) for array in (q, k, v))
    bhsd = forward("bhsd", of, q, k, v, layout="bhsd")
    verdict("both", np.array_equal(np.swapaxes(bhsd, 1, 2), bshd), "the same bits")
    mixed = np.zeros_like(bshd)
    of.run("fmha_fwd", q, k, v, layout="bhsd", out=np.swapaxes(mixed, 1, 2))
    verdict("bhsd in, bshd out", np.array_equal(mixed, bshd), "the same bits")


if __name__ == "__main__":
    main(globals())
