# SPDX-License-Identifier: MIT
"""Random problems over KV caches for any signature of the families, and the check of what a kernel made of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from .._core.dtypes import FLOATS, NUMPY
from .attention import Result
from .judged import excess
from .kv import appendkv, batch_prefill, splitkv, vectorized_pages
from .problems import poisoned
from .tolerance import TOLERANCE

FP8 = NUMPY["fp8"]
STORAGE = {  # by value of the dtype axis: of q and the cache, and of out
    **{word: (dtype, dtype) for word, dtype in FLOATS.items()},
    "fp8": (FP8, FP8),
    "fp8bf16": (FP8, NUMPY["bf16"]),
}
FAMILIES = ("fmha_fwd_splitkv", "fmha_fwd_pagedkv", "fmha_fwd_appendkv", "fmha_batch_prefill")
PAGE_SIZES = {1: (1,), 16: (16, 32), 1024: (64, 128)}  # classes of batch prefill, and small members of them


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Properties of a problem that its signature leaves open."""

    lengths_q: tuple[int, ...] = (2, 1)  # batch mode: the first is that of all
    lengths_k: tuple[int, ...] = (37, 5)
    nhead_q: int = 2
    nhead_k: int = 1
    less: int = 0  # head dims below those of the instance
    page_size: int = 16
    layout: str = "bshd"
    window: tuple[int, int] = (6, 0)
    mask_origin: str = "bottom_right"
    sink_size: int = 2
    spare: int = 3  # pages, or rows of the cache, that nobody uses
    leftpad: bool = False
    rows: bool = False  # cache_batch_idx
    seqlen_new: int = 3
    num_splits: int = 0


@dataclasses.dataclass
class Problem:
    """One call: `inputs` go to the facade and to the reference alike, apart from `only_facade`."""

    family: str
    dtype: str
    inputs: dict[str, Any]
    only_facade: dict[str, Any]
    lse: bool
    randval: bool = False

    def reference(self) -> Any:
        """Expected results; appending writes inputs' own arrays, so give it copies."""
        if self.family == "fmha_fwd_appendkv":
            return appendkv(**self.inputs)
        return (batch_prefill if self.family == "fmha_batch_prefill" else splitkv)(**self.inputs)

    def outputs(self, expected: Result) -> dict[str, np.ndarray]:
        """Poisoned arrays for out, and lse and randval when the signature has them."""
        q, v = self.inputs["q"], self.inputs["v"]
        hdim_v = v.shape[3] if v.ndim == 5 else v.shape[-1]
        made = {"out": poisoned(np.empty((*q.shape[:-1], hdim_v), STORAGE[self.dtype][1]))}
        if self.lse:
            made["lse"] = poisoned(np.empty(expected.lse.shape, np.float32))
        if self.randval:
            assert expected.randval is not None
            made["randval"] = poisoned(np.empty(expected.randval.shape, np.uint8))
        return made

    def check(self, made: dict[str, np.ndarray], expected: Result) -> None:
        """Values within tolerance where the call writes, poison where it must not."""
        worst = excess(TOLERANCE[self.dtype], expected, made, self.inputs.get("layout", "bshd"))
        assert worst <= 1, f"error {worst:.3g} times its bound"


def i32(values: Any) -> np.ndarray:
    """An index array."""
    return np.array(values, np.int32)


class Maker:
    """Draws the parts that problems share."""

    def __init__(self, signature: dict[str, Any], sizes: Sizes, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.signature, self.sizes = signature, sizes
        self.storage, self.out = STORAGE[signature["dtype"]]
        self.batch = len(sizes.lengths_q)

    def normal(self, *shape: int, dtype: Any = np.float32) -> np.ndarray:
        return self.random.standard_normal(shape).astype(np.float32).astype(dtype)

    def arranged(self, array: np.ndarray) -> np.ndarray:
        """In the layout of the call, dense."""
        return np.ascontiguousarray(np.swapaxes(array, -3, -2)) if self.sizes.layout == "bhsd" else array

    def head_dims(self, step: int = 1) -> tuple[int, int]:
        less = self.sizes.less * step
        return self.signature["hdim_q"] - less, self.signature["hdim_v"] - less

    def pages(self, lengths: list[int], page_size: int) -> tuple[int, list[np.ndarray]]:
        """Pages of a pool, and the shuffled ones of each sequence."""
        counts = [-(-length // page_size) for length in lengths]
        count = sum(counts) + self.sizes.spare
        return count, np.split(i32(self.random.permutation(count)[: sum(counts)]), np.cumsum(counts)[:-1])

    def table(self, pages: list[np.ndarray]) -> np.ndarray:
        """A block table whose unused entries point nowhere."""
        table = np.full((len(pages), max(map(len, pages), default=0) + 1), -7, np.int32)
        for row, one in zip(table, pages, strict=True):
            row[: len(one)] = one
        return table

    def scores(self, inputs: dict[str, Any], group: bool, rows: int, columns: int) -> None:
        """Mask, bias, soft cap, sink."""
        sizes, signature = self.sizes, self.signature
        if signature["mask"] == "window":
            inputs |= {"window": sizes.window, "mask_origin": sizes.mask_origin}
        if signature["sink"]:
            if sizes.sink_size and sizes.window[0] >= 0 and signature["mask"] == "window":
                inputs["sink_size"] = sizes.sink_size
            else:
                inputs["sink"] = self.normal(sizes.nhead_q)
        if signature["bias"] == "elementwise":
            first = () if group else (self.batch,)
            dtype = np.float32 if self.out == FP8 else self.out
            inputs["bias"] = self.normal(*first, sizes.nhead_q, rows, columns, dtype=dtype)
        elif signature["bias"] == "alibi":
            inputs["alibi_slopes"] = self.random.uniform(0.01, 0.5, sizes.nhead_q).astype(np.float32)
        if signature["softcap"]:
            inputs["softcap"] = 1.5

    def scales(self, inputs: dict[str, Any], names: str) -> None:
        inputs |= {f"{name}_descale": self.random.uniform(0.5, 1.5, (1,)).astype(np.float32) for name in names}


def linear(family: str, signature: dict[str, Any], sizes: Sizes, seed: int) -> Problem:
    """split-KV and paged KV."""
    make = Maker(signature, sizes, seed)
    paged = family == "fmha_fwd_pagedkv" or signature["paged"]
    group, lengths = signature["mode"] == "group", list(sizes.lengths_k)
    hdim_q, hdim_v = make.head_dims()
    inputs: dict[str, Any] = {"layout": sizes.layout}
    cu_q = np.cumsum([0, *sizes.lengths_q]).astype(np.int32)
    first = (int(cu_q[-1]),) if group else (make.batch, sizes.lengths_q[0])
    inputs["q"] = make.arranged(make.normal(*first, sizes.nhead_q, hdim_q, dtype=make.storage))
    pads = [int(make.random.integers(0, length + 1)) for length in lengths] if sizes.leftpad and not group else None
    if paged:
        count, pages = make.pages(lengths, sizes.page_size)
        shape: tuple[int, ...] = (count, sizes.page_size)
        inputs |= {"block_table": make.table(pages), "seqlen_k": i32(lengths)}
    elif group:
        shape = (sum(lengths),)
        inputs["cu_seqlens_k"] = i32(np.cumsum([0, *lengths]))
    else:
        shape = (make.batch + (sizes.spare if sizes.rows else 0), max(lengths) + 2)
        inputs["seqlen_k"] = i32(lengths)
    if group:
        inputs["cu_seqlens_q"] = cu_q
    elif sizes.rows and not paged:
        inputs["cache_batch_idx"] = i32(make.random.permutation(shape[0])[: make.batch])
    if pads is not None:
        inputs["cache_leftpad"] = i32(pads)
    inputs["k"] = make.arranged(make.normal(*shape, sizes.nhead_k, hdim_q, dtype=make.storage))
    inputs["v"] = make.arranged(make.normal(*shape, sizes.nhead_k, hdim_v, dtype=make.storage))
    columns = max(lengths)
    make.scores(inputs, group, first[-1], columns)
    if signature["qscale"] == "pertensor":
        make.scales(inputs, "qkv")
        inputs["out_scale"] = np.array([1.25], np.float32)
    splits = {"num_splits": sizes.num_splits} if family == "fmha_fwd_splitkv" else {}
    lse = family == "fmha_fwd_splitkv" and signature["dtype"] != "fp8"
    return Problem(family, signature["dtype"], inputs, splits, lse)


def prefill(signature: dict[str, Any], sizes: Sizes, seed: int) -> Problem:
    """Batch prefill."""
    make = Maker(signature, sizes, seed)
    kept = NUMPY.get(signature["kv_dtype"], make.storage)
    hdim_q, hdim_v = make.head_dims(16)
    lengths = list(sizes.lengths_k)
    page_size = int(make.random.choice(PAGE_SIZES[signature["page_size"]]))
    if signature["qscale"] == "kv_blockscale":
        page_size = 128  # the smallest
    count, pages = make.pages(lengths, page_size)
    cu_q = i32(np.cumsum([0, *sizes.lengths_q]))
    inputs: dict[str, Any] = {"q": make.normal(int(cu_q[-1]), sizes.nhead_q, hdim_q, dtype=make.storage)}
    k = make.normal(count, page_size, sizes.nhead_k, hdim_q, dtype=kept)
    v = make.normal(count, page_size, sizes.nhead_k, hdim_v, dtype=kept)
    if signature["layout"] == "vectorized":
        k, v = vectorized_pages(k, v)
    elif page_size == 1 and seed % 2:
        k, v = k[:, 0], v[:, 0]
    inputs |= {"k": k, "v": v, "cu_seqlens_q": cu_q}
    if signature["lookup"] == "sglang":
        inputs["kv_indptr"] = i32(np.cumsum([0, *map(len, pages)]))
        inputs["kv_page_indices"] = np.concatenate([*pages, i32([-5])])
        inputs["kv_last_page_lens"] = i32([(length - 1) % page_size + 1 for length in lengths])
    else:
        inputs |= {"block_table": make.table(pages), "seqlen_k": i32(lengths)}
    make.scores(inputs, True, int(cu_q[-1]), max(lengths))
    if signature["dropout"]:
        inputs |= {"dropout_p": 0.3, "rng": (int(make.random.integers(2**63)), 4)}
    if signature["qscale"] == "kv_blockscale":
        inputs["kv_block_descale"] = make.random.uniform(0.5, 1.5, (count, sizes.nhead_k, 2)).astype(np.float32)
    if signature["qscale"] != "none":
        names = "qkv" if signature["qscale"] == "pertensor" else "q"
        make.scales(inputs, names if signature["dtype"] == "fp8bf16" else names[1:])
    return Problem("fmha_batch_prefill", signature["dtype"], inputs, {}, signature["lse"], signature["dropout"])


def append(signature: dict[str, Any], sizes: Sizes, seed: int) -> Problem:
    """Append; the inputs hold the arrays that are written."""
    make = Maker(signature, sizes, seed)
    hdim_q, hdim_v = make.head_dims()
    lengths, new = list(sizes.lengths_k), sizes.seqlen_new
    inputs: dict[str, Any] = {"layout": sizes.layout, "seqlen_k": i32(lengths)}
    shape: tuple[int, ...] = (make.batch, max(lengths) + new + 1)
    if signature["paged"]:
        count, pages = make.pages([length + new for length in lengths], sizes.page_size)
        shape = (count, sizes.page_size)
        inputs["block_table"] = make.table(pages)
    for name, first, heads, hdim in (
        ("q", (make.batch, sizes.lengths_q[0]), sizes.nhead_q, hdim_q),
        ("k", shape, sizes.nhead_k, hdim_q),
        ("v", shape, sizes.nhead_k, hdim_v),
        ("knew", (make.batch, new), sizes.nhead_k, hdim_q),
        ("vnew", (make.batch, new), sizes.nhead_k, hdim_v),
    ):
        inputs[name] = make.arranged(make.normal(*first, heads, hdim, dtype=make.storage))
    if signature["rope"] != "none":
        angle = make.random.uniform(0, 7, (max(lengths) + max(new, sizes.lengths_q[0]), hdim_q // 2 - seed % 3))
        kind = make.storage if seed % 2 else np.float32
        inputs |= {"rotary_cos": np.cos(angle).astype(kind), "rotary_sin": np.sin(angle).astype(kind)}
        inputs["rotary_interleaved"] = signature["rope"] == "interleaved"
    if seed % 4 > 1:
        inputs["causal"] = True
    return Problem("fmha_fwd_appendkv", signature["dtype"], inputs, {}, False)


def make(family: str, signature: dict[str, Any], sizes: Sizes, seed: int) -> Problem:
    """A random problem of this signature."""
    if family == "fmha_batch_prefill":
        return prefill(signature, sizes, seed)
    if family == "fmha_fwd_appendkv":
        return append(signature, sizes, seed)
    return linear(family, signature, sizes, seed)


WRITTEN = ("q", "k", "v")


def attends(problem: Problem) -> bool:
    """Can the call also attend: split-KV has no fp8 head dims above 128."""
    return problem.dtype != "fp8" or max(problem.inputs["q"].shape[-1], problem.inputs["v"].shape[-1]) <= 128
