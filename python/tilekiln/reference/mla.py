# SPDX-License-Identifier: MIT
"""Absorbed multi-head latent attention in float64: every head attends to the rows of one latent cache.

A row is the key of all heads, and its first hdim_v elements their value. So it is attention with one key head, of keys
and values that are gathered from the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core.dtypes import NUMPY, WORDS
from .attention import Result, forward
from .drawn import Call, Random, Signature
from .kv import gather, over
from .tolerance import excess

LATENT, ROPE, GROUP = 512, 64, 128
"""Of a row of fp8: e4m3 elements, bf16 elements, and the e4m3 that share a factor."""
ROW = LATENT + ROPE
FP8_ROW = LATENT + 4 * LATENT // GROUP + 2 * ROPE
"""Bytes of a row of fp8."""


def unpacked(rows: NDArray[Any]) -> NDArray[Any]:
    """Rows (.., 656) of fp8 as bf16 (.., 576): each e4m3 times its factor, rounded to bf16; then the rotary part."""
    raw = np.ascontiguousarray(rows).view(np.uint8)
    latent = raw[..., :LATENT].view(NUMPY["fp8"]).astype(np.float32)
    factors = np.ascontiguousarray(raw[..., LATENT : FP8_ROW - 2 * ROPE]).view(np.float32)
    rope = np.ascontiguousarray(raw[..., FP8_ROW - 2 * ROPE :]).view(NUMPY["bf16"])
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = (latent * np.repeat(factors, GROUP, -1)).astype(NUMPY["bf16"])
    return np.concatenate([scaled, rope], -1)


def packed(rows: Any) -> NDArray[Any]:
    """The nearest rows (.., 656) of fp8 of rows (.., 576): a factor is the largest size of its 128 over 448."""
    rows = np.asarray(rows, np.float32)
    groups = rows[..., :LATENT].reshape(*rows.shape[:-1], LATENT // GROUP, GROUP)
    factors = np.maximum(np.abs(groups).max(-1) / np.float32(448), np.float32(2.0**-100)).astype(np.float32)
    latent = (groups / factors[..., None]).astype(NUMPY["fp8"]).reshape(*rows.shape[:-1], LATENT)
    rope = np.ascontiguousarray(rows[..., LATENT:]).astype(NUMPY["bf16"])
    parts = [np.ascontiguousarray(part).view(np.uint8) for part in (latent, factors, rope)]
    return np.concatenate(parts, -1).view(NUMPY["fp8"])


def decode(
    q: Any,
    cache: Any,
    *,
    seqlen_k: Any = None,
    block_table: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    hdim_v: int = 0,
) -> Result:
    """Everything one call computes; the arguments are those of `Library.fmha_mla_decode`, as NumPy arrays."""
    cache = np.asarray(cache)
    if cache.dtype == NUMPY["fp8"]:
        cache = unpacked(cache)
    batch, hdim_q = len(q), q.shape[-1]
    hdim_v = hdim_v or min(LATENT, hdim_q)
    if batch == 0:
        return forward(q, np.zeros((0, 0, 1, hdim_q)), np.zeros((0, 0, 1, hdim_v)))
    room = cache.shape[1] if block_table is None else np.asarray(block_table).shape[1] * cache.shape[1]
    ends = [room] * batch if seqlen_k is None else [int(end) for end in np.asarray(seqlen_k)]
    rows = [
        cache[i, :end] if block_table is None else gather(cache, np.asarray(block_table)[i], (0, end))
        for i, end in enumerate(ends)
    ]
    keys = [one[:, None].astype(np.float64) for one in rows]
    values = [one[..., :hdim_v] for one in keys]
    return over(q, keys, values, "bshd", softmax_scale=softmax_scale, causal=causal)


def answer(given: Mapping[str, Any], made: Mapping[str, Any]) -> float:
    """The largest error over its bound; at most 1 is right."""
    names = ("seqlen_k", "block_table", "softmax_scale", "causal", "hdim_v")
    right = decode(given["q"], given["cache"], **{name: given[name] for name in names if name in given})
    return excess(WORDS[given["q"].dtype.name], right, made["out"], made.get("lse"))


def draw(operator: str, random: Random, signature: Signature) -> Call:
    """Few queries of some heads over a cache, paged or not; rows of any width (GPUs: of eights), of fp8 of theirs."""
    fp8 = signature["dtype"] == "bf16_fp8"
    dtype = "bf16" if fp8 else str(signature["dtype"])
    hdim_q = ROW if fp8 else random.one((8, 24, 64, 576) if random.edges.unchecked else (1, 7, 24, 67, 576))
    hdim_v = LATENT if fp8 else random.whole(1, min(hdim_q, LATENT))
    batch, queries, nhead = random.one((0, 1, 2, 3)), random.one((0, 1, 2, 5)), random.one((1, 3, 16, 40, 128))
    paged, room = random.chance(0.5), random.one((1, 3, 64, 65, 200, 700))
    page = random.one((1, 3, 16, 64))
    blocks = -(-room // page)
    pages = batch * blocks + 1
    shape = (pages, page, hdim_q) if paged else (batch, room, hdim_q)
    cache = random.normal(*shape, dtype=dtype)
    cache = np.ascontiguousarray(cache) if random.edges.unchecked else cache
    given: dict[str, Any] = {
        "q": random.normal(batch, queries, nhead, hdim_q, dtype=dtype),
        "cache": packed(cache) if fp8 else cache,
        "softmax_scale": float(hdim_q) ** -0.5 * random.one((1.0, -1.0, 2.0)),
        "causal": random.chance(0.5),
        "hdim_v": hdim_v,
    }
    if paged:
        order = random.numbers.permutation(pages)[: batch * blocks]
        given["block_table"] = order.reshape(batch, blocks).astype(np.int32)
    if paged or random.chance(0.7):
        given["seqlen_k"] = random.numbers.integers(0, room + 1, batch).astype(np.int32)
    made = {"out": random.blank(batch, queries, nhead, hdim_v, dtype=dtype)}
    if random.chance(0.5):
        made["lse"] = random.blank(batch, nhead, queries, dtype="fp32")
    return Call(given, made)
