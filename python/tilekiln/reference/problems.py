# SPDX-License-Identifier: MIT
"""Random problems for any signature, and the check of what a kernel made of them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._core.dtypes import FLOATS, NUMPY
from .attention import BLOCK_SCALE, Result, forward
from .judged import POISON, excess
from .tolerance import TOLERANCE

STORAGE = {  # by value of the dtype axis: of q, k and v, and of out
    **{word: (dtype, dtype) for word, dtype in FLOATS.items()},
    "fp8bf16": (NUMPY["fp8"], NUMPY["bf16"]),
    "fp8fnuzbf16": (NUMPY["fp8fnuz"], NUMPY["bf16"]),
    "bf8fnuzbf16": (NUMPY["bf8fnuz"], NUMPY["bf16"]),
    "fp8fp32": (NUMPY["fp8"], NUMPY["fp32"]),
}
PLAIN = {
    "mode": "batch",
    "mask": "none",
    "bias": "none",
    "lse": True,
    "dropout": False,
    "softcap": False,
    "skip_min_seqlen_q": False,
    "sink": False,
    "qscale": "none",
}
"""A signature of the forward without its dtype and head dims, in the order of its axes."""
PADDING = np.nan  # fills the rows of k and v that nobody may use


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Properties of a problem that its signature leaves open."""

    lengths_q: tuple[int, ...] = (5, 3)
    lengths_k: tuple[int, ...] = (9, 70)
    nhead_q: int = 2
    nhead_k: int = 1
    hdim_q: int = 32
    hdim_v: int = 32
    padding: str = "none"  # or "seqlen", "cu_seqlens": which arrays say that rows are padding
    layout: str = "bshd"
    strides: str = "dense"  # or a key of VIEWS
    window: tuple[int, int] = (-1, 0)
    causal: bool = False
    mask_origin: str = "bottom_right"
    sink_size: int = 0
    bias_heads: bool = True  # bias has one plane per head, else one for all
    bias_batch: bool = True
    alibi_2d: bool = False
    min_seqlen_q: int = 3
    softmax_scale: float | None = None
    dropout_p: float = 0.3
    store_randval: bool = True


def drawn_sizes(
    draw: random.Random,
    hdim: tuple[int, int],
    edges: Sequence[int],
    *,
    most: tuple[int, int] = (2, 2),
    far: int = 70,
    scale: float = 0.3,
) -> Sizes:
    """For devices. Lengths are of `edges`; most: sequences, query heads of a key head; far: the widest left window."""
    batch, nhead_k = draw.randint(1, most[0]), draw.randint(1, 2)
    window = draw.choice(((-1, 0), (-1, -1), (17, 5), (64, 0), (0, 0), (100, 30), (-1, 40), (far, -1)))
    return Sizes(
        lengths_q=tuple(draw.choice(edges) for _ in range(batch)),
        lengths_k=tuple(draw.choice(edges) for _ in range(batch)),
        nhead_q=nhead_k * draw.randint(1, most[1]),
        nhead_k=nhead_k,
        hdim_q=hdim[0] - 8 * draw.choice((0, 0, 1)),
        hdim_v=hdim[1] - 8 * draw.choice((0, 0, 1)),
        padding=draw.choice(("none", "seqlen", "cu_seqlens")),
        layout=draw.choice(("bshd", "bhsd")),
        strides=draw.choice(("dense", "dense", "exchanged", "sparse")),
        window=window,
        causal=draw.random() < 0.3,
        mask_origin=draw.choice(("bottom_right", "top_left")),
        sink_size=draw.choice((0, 1, 5, 64, 100)) if window[0] >= 0 else 0,
        bias_heads=draw.random() < 0.5,
        bias_batch=draw.random() < 0.5,
        alibi_2d=draw.random() < 0.5,
        min_seqlen_q=draw.choice((1, 15, 64)),
        softmax_scale=draw.choice((None, None, scale)),
        dropout_p=draw.choice((0.05, 0.2, 0.6)),
        store_randval=False,
    )


@dataclasses.dataclass
class Problem:
    """Arguments of one call. `inputs` go to the facade and to the reference alike."""

    dtype: str
    inputs: dict[str, Any]
    sizes: Sizes
    lse: bool
    randval: bool

    def reference(self) -> Result:
        """Expected results."""
        return forward(**self.inputs)

    def outputs(self) -> dict[str, np.ndarray]:
        """Poisoned arrays for out, and lse and randval when the signature has them."""
        q, v = self.inputs["q"], self.inputs["v"]
        bhsd = self.sizes.layout == "bhsd"
        rows, heads = (q.shape[-2], q.shape[-3]) if bhsd else (q.shape[-3], q.shape[-2])
        batch = q.shape[:-3]
        out = _view(np.empty((*q.shape[:-1], v.shape[-1]), STORAGE[self.dtype][1]), self.sizes.strides)
        made = {"out": poisoned(out)}
        if self.lse:
            made["lse"] = poisoned(np.empty((*batch, heads, rows), np.float32))
        if self.randval:
            keys = max(self.sizes.lengths_k, default=0) if q.ndim == 3 else self.inputs["k"].shape[2 if bhsd else 1]
            made["randval"] = poisoned(np.empty((*batch, heads, rows, keys), np.uint8))
        return made

    def check(self, made: dict[str, np.ndarray], expected: Result) -> None:
        """Values within tolerance where the call writes, poison where it must not."""
        worst = excess(TOLERANCE[self.dtype], expected, made, self.sizes.layout)
        assert worst <= 1, f"error {worst:.3g} times its bound"


def poisoned(array: np.ndarray) -> np.ndarray:
    """Fill with POISON bytes, in place."""
    array[...] = np.full(array.dtype.itemsize, POISON, np.uint8).view(array.dtype)[0]
    return array


def _view(array: np.ndarray, strides: str) -> np.ndarray:
    """The same values with other strides; the last dimension stays contiguous. Gaps hold NaN (or 0xff)."""
    if strides == "dense" or array.ndim < 3:
        return array
    if strides == "wide":  # rows lie in wider ones
        wide = np.full((*array.shape[:-1], array.shape[-1] + 13), -1, array.dtype)
        view = wide[..., 5 : 5 + array.shape[-1]]
    elif strides == "exchanged":  # the other order of heads and rows in memory
        view = np.swapaxes(np.empty(np.swapaxes(array, -3, -2).shape, array.dtype), -3, -2)
    elif strides == "reversed":  # negative strides
        view = np.empty(array.shape, array.dtype)[::-1, :, ...]
        view = view[..., ::-1, :]
    elif strides == "sparse":  # every second row
        view = np.full((array.shape[0], 2 * array.shape[1], *array.shape[2:]), -1, array.dtype)[:, ::2]
    else:
        raise ValueError(strides)
    view[...] = array
    return view


VIEWS = ("dense", "wide", "exchanged", "reversed", "sparse")


def make(signature: dict[str, Any], sizes: Sizes, seed: int = 0) -> Problem:
    """A random problem of this signature. Sizes that contradict it are adapted (equal lengths in batch mode)."""
    random = np.random.default_rng(seed)
    storage, out = STORAGE[signature["dtype"]]
    group = signature["mode"] == "group"
    batch = len(sizes.lengths_q)
    padded = sizes.padding != "none"
    inputs: dict[str, Any] = {}

    def normal(*shape: int, dtype: np.dtype = STORAGE["fp32"][0]) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32).astype(dtype)

    def side(lengths: tuple[int, ...], name: str) -> tuple[int, list[int], list[int]]:
        """Rows of the dimension, starts and physical lengths; adds the index arrays."""
        room = [length + (int(random.integers(0, 4)) if padded else 0) for length in lengths]
        logical = list(lengths) if padded or group else [max(lengths, default=0)] * batch
        if group:
            starts = np.cumsum([0, *room]).astype(np.int32)
            if padded:
                inputs[f"seqstart_{name}"] = starts
            else:
                inputs[f"cu_seqlens_{name}"] = starts
            rows, begin = int(starts[-1]) + (2 if padded else 0), starts[:-1].tolist()
        else:
            rows, begin = max(room if padded else logical, default=0), [0] * batch
        if padded and sizes.padding == "seqlen":
            inputs[f"seqlen_{name}"] = np.array(logical, np.int32)
        elif padded:
            inputs[f"cu_seqlens_{name}"] = np.cumsum([0, *logical]).astype(np.int32)
        return rows, begin, logical

    rows_q, _, logical_q = side(sizes.lengths_q, "q")
    rows_k, begin_k, logical_k = side(sizes.lengths_k, "k")
    first = () if group else (batch,)
    for name, rows, heads, hdim in (
        ("q", rows_q, sizes.nhead_q, sizes.hdim_q),
        ("k", rows_k, sizes.nhead_k, sizes.hdim_q),
        ("v", rows_k, sizes.nhead_k, sizes.hdim_v),
    ):
        array = normal(*first, rows, heads, hdim, dtype=storage)
        if name != "q":
            used = np.zeros(array.shape[: len(first) + 1], bool)
            for b in range(batch):
                at = slice(begin_k[b], begin_k[b] + logical_k[b])
                used[at if group else (b, at)] = True
            array[~used] = PADDING
        if sizes.layout == "bhsd":
            array = np.ascontiguousarray(np.swapaxes(array, -3, -2))
        inputs[name] = _view(array, sizes.strides)

    columns = max(logical_k, default=0) if group else rows_k
    if signature["mask"] == "window":
        inputs |= {"mask_origin": sizes.mask_origin, "causal": sizes.causal, "window": sizes.window}
        if sizes.window == (-1, -1) and not sizes.causal:
            inputs["causal"] = True
    left = inputs.get("window", (-1, -1))[0]
    if signature["sink"]:
        inputs["sink_size"] = sizes.sink_size
        if sizes.sink_size == 0 or left < 0:
            inputs["sink"] = normal(sizes.nhead_q)
    if signature["bias"] == "elementwise":
        planes = (sizes.nhead_q if sizes.bias_heads else 1, rows_q, columns)
        bias = normal(*planes if group else (batch if sizes.bias_batch else 1, *planes), dtype=out)
        hidden = np.random.default_rng((seed, 1))  # of its own: the other arrays of a seed stay as they are
        if hidden.random() < 0.4:  # as a boolean mask becomes a bias
            bias[hidden.random(bias.shape) < 0.2] = -np.inf
        inputs["bias"] = bias
    elif signature["bias"] == "alibi":
        shape = (batch, sizes.nhead_q) if sizes.alibi_2d else (sizes.nhead_q,)
        inputs["alibi_slopes"] = random.uniform(0.01, 0.5, shape).astype(np.float32)
    if signature["dropout"]:
        inputs |= {"dropout_p": sizes.dropout_p, "rng": (int(random.integers(2**63)), int(random.integers(2**63)) * 2)}
    if signature["softcap"]:
        inputs["softcap"] = (1.5, 30.0, 90.0)[sum(logical_k) % 3]
    if signature["skip_min_seqlen_q"]:
        inputs["min_seqlen_q"] = sizes.min_seqlen_q
    if signature["qscale"] == "pertensor":
        inputs |= {f"{name}_descale": random.uniform(0.5, 1.5, (1,)).astype(np.float32) for name in "qkv"}
    elif signature["qscale"] == "blockscale":
        for side_name, lengths, names in (("q", logical_q, "q"), ("k", logical_k, "kv")):
            blocks = [-(-length // BLOCK_SCALE) for length in lengths]
            total = sum(blocks) if group else -(-(rows_q if side_name == "q" else rows_k) // BLOCK_SCALE)
            for name in names:
                heads = sizes.nhead_q if name == "q" else sizes.nhead_k
                inputs[f"{name}_descale"] = random.uniform(0.5, 1.5, (*first, heads, total)).astype(np.float32)
            if group:
                inputs[f"block_scale_seqstart_{side_name}"] = np.cumsum([0, *blocks]).astype(np.int32)
    if sizes.softmax_scale is not None:
        inputs["softmax_scale"] = sizes.softmax_scale
    if sizes.layout != "bshd":
        inputs["layout"] = sizes.layout
    randval = signature["dropout"] and sizes.store_randval
    return Problem(signature["dtype"], inputs, sizes, signature["lse"], randval)
