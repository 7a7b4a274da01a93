# SPDX-License-Identifier: MIT
"""Random sizes and values: edges first, values far from 1, from one seed."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from tilekiln.reference import kv_problems, problems

TILE = 64
EDGES = (0, 1, 2, 15, 16, 17, TILE - 1, TILE, TILE + 1, 127, 128, 129, 131)
PAGE_SIZES = (16, 32, 64, 128)
MANY_KEYS = 100_000  # of a few calls


class Draw:
    """Decisions of a seed, in order. Every method takes the next numbers of one generator."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def one(self, values: Any) -> Any:
        """One of them, all alike."""
        return values[int(self.random.integers(len(values)))]

    def often(self, usual: Any, *values: Any) -> Any:
        """The usual one in two of three cases, else one of the others."""
        return usual if self.random.random() < 2 / 3 else self.one(values)

    def length(self, most: int = 150) -> int:
        """An edge of a tile, or any length."""
        return self.one(EDGES) if self.random.random() < 0.5 else int(self.random.integers(0, most + 1))

    def window(self) -> int:
        return self.often(-1, 0, 1, TILE - 1, TILE, int(self.random.integers(0, 150)))

    def decades(self, low: float, high: float) -> float:
        """Log-uniform, as a float32."""
        return float(np.float32(10.0 ** self.random.uniform(low, high)))


def attention_sizes(draw: Draw, signature: dict[str, Any]) -> problems.Sizes:
    """Of a forward or backward call of this signature."""
    batch, nhead_k = int(draw.random.integers(1, 4)), int(draw.random.integers(1, 3))
    # One block and one head would be one number, which means a scale per tensor.
    least = 2 if signature.get("qscale") == "blockscale" else 1
    window = (draw.window(), draw.window())
    sink_size = draw.one((0, 1, 5, TILE, 100))
    return problems.Sizes(
        lengths_q=tuple(draw.length() for _ in range(batch)),
        lengths_k=tuple(draw.length() for _ in range(batch)),
        nhead_q=nhead_k * int(draw.random.integers(least, 4)),
        nhead_k=nhead_k,
        hdim_q=max(1, signature["hdim_q"] - draw.often(0, *range(24))),
        hdim_v=max(1, signature["hdim_v"] - draw.often(0, *range(24))),
        padding=draw.one(("none", "seqlen", "cu_seqlens")),
        layout=draw.one(("bshd", "bhsd")),
        strides=draw.often("dense", *problems.VIEWS),
        window=window,
        causal=bool(draw.random.integers(2)),
        mask_origin=draw.one(("bottom_right", "top_left")),
        sink_size=0 if window[0] < 0 else sink_size,
        bias_heads=bool(draw.random.integers(2)),
        bias_batch=bool(draw.random.integers(2)),
        alibi_2d=bool(draw.random.integers(2)),
        min_seqlen_q=draw.one((1, 15, TILE)),
        softmax_scale=draw.often(None, 0.125, -0.3, 0.5, 1e-3),
        dropout_p=draw.one((0.05, 0.2, 0.6, 0.99)),
        store_randval=bool(draw.random.integers(2)),
    )


def many_keys(draw: Draw, sizes: Any) -> Any:
    """In a few calls one sequence of a few queries sees very many keys."""
    if draw.random.random() >= 0.004:
        return sizes
    return dataclasses.replace(
        sizes, lengths_q=(int(draw.random.integers(1, 20)),), lengths_k=(MANY_KEYS,), nhead_q=1, nhead_k=1
    )


def cache_sizes(draw: Draw) -> kv_problems.Sizes:
    """Of a call over a KV cache."""
    nhead_k = int(draw.random.integers(1, 4))
    batch = int(draw.random.integers(1, 4))
    most = draw.often(4, 1, 70)
    window = (draw.window(), draw.window())
    lengths_k = tuple(draw.length(400) for _ in range(batch))
    return kv_problems.Sizes(
        lengths_q=tuple(int(draw.random.integers(1, most + 1)) for _ in range(batch)),
        lengths_k=lengths_k,
        nhead_q=nhead_k * draw.one((1, 2, 3, 4, 8)),
        nhead_k=nhead_k,
        less=draw.often(0, 1, 2, 5),
        page_size=draw.one(PAGE_SIZES),
        layout=draw.one(("bshd", "bhsd")),
        window=window if window[1] >= 0 else (window[0], 0),
        mask_origin=draw.one(("bottom_right", "top_left")),
        sink_size=draw.one((0, 2, TILE)),
        spare=draw.one((0, 3)),
        leftpad=draw.often(False, True),
        rows=draw.often(False, True),
        seqlen_new=draw.one((0, 1, 3, 20)),
        num_splits=draw.often(0, 1, 2, 3, 7, 128),
    )


def change_values(draw: Draw, inputs: dict[str, Any]) -> None:
    """Takes values away from 1, in place: scores from tiny to large, caps from 1e-3 to 1e20, sinks far off."""
    factor = draw.often(1.0, 1e-3, 0.1, 4.0)
    if factor != 1.0:
        q = inputs["q"]
        q[...] = (q.astype(np.float32) * np.float32(factor)).astype(q.dtype)
    wide = [name for name in ("q", "k", "v", "bias") if inputs.get(name) is not None and inputs[name].ndim > 1]
    if draw.random.random() < 0.15:  # one entry of a dimension, again and again
        array = inputs[draw.one(wide)]
        d = int(draw.random.integers(array.ndim - 1))
        if array.shape[d] and not np.isnan(array.astype(np.float32)).any():  # padding would become keys
            array[...] = np.take(array, [0], d)
    if "softcap" in inputs:
        inputs["softcap"] = draw.often(draw.decades(-3, 20), 1.5, 30.0, 50.0)
    if "sink" in inputs:
        inputs["sink"] = (inputs["sink"] * draw.often(1.0, 10.0) + draw.often(0.0, -30.0, -4.0, 5.0)).astype(np.float32)
    if "bias" in inputs:
        bias, size = inputs["bias"], draw.often(1.0, 1e-2, 20.0)
        inputs["bias"] = (bias.astype(np.float32) * np.float32(size)).astype(bias.dtype)
