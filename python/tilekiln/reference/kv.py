# SPDX-License-Identifier: MIT
"""Attention over a KV cache in float64: gather the keys of every sequence, undo the quantisation, then `forward`.

A cache is contiguous, or a pool of pages: token j of a sequence lies in page table[j // page_size] at row
j % page_size. Splitting the keys changes rounding only, so num_splits is no
argument of `splitkv`; `split_ranges`, `head_splits` and `combine` say what the two stages hold in between.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core.dtypes import NUMPY
from .attention import Float, Result, forward, head

FP8_MAX = 448.0  # of e4m3; what is larger saturates
MAX_SPLITS = 128

Extent = tuple[int, int]  # the first key of a sequence in its cache, and one past the last


def split_ranges(seqlen_k: int, num_splits: int) -> list[Extent]:
    """The keys of each split: [i per, (i + 1) per) with per = max(1, ceil(seqlen_k / num_splits)). Some are empty."""
    per = max(1, -(-seqlen_k // num_splits))
    return [(min(seqlen_k, i * per), min(seqlen_k, (i + 1) * per)) for i in range(num_splits)]


def best_splits(blocks: int, workers: int) -> int:
    """num_splits = 0: the fewest splits that keep workers at least 0.85 as busy as any number of splits does.

    blocks: pieces of work without splits. workers: how many run at once.
    """
    if blocks < 1 or blocks >= 0.8 * workers:
        return 1
    waves = [blocks * splits / workers for splits in range(1, min(MAX_SPLITS, workers) + 1)]
    busy = [wave / np.ceil(wave) for wave in waves]
    return 1 + next(i for i, share in enumerate(busy) if share >= 0.85 * max(busy))


def head_splits(
    q: Float,
    k: Float,
    v: Float,
    *,
    num_splits: int,
    visible: NDArray[np.bool_],
    bias: Float | None = None,
    sink: float | None = None,
    **rest: Any,
) -> tuple[Float, Float]:
    """The first stage for one head: o_acc (num_splits, m, dv) and lse_acc (num_splits, m). Arguments as in `head`.

    A split that is empty, or that no row sees, has lse -inf and o 0. The sink logit takes part in split 0 only.
    """
    parts = []
    for i, (begin, end) in enumerate(split_ranges(len(k), num_splits)):
        keys = slice(begin, end)
        its_bias = None if bias is None else bias[:, keys]
        its_sink = sink if i == 0 else None
        part = head(q, k[keys], v[keys], visible=visible[:, keys], bias=its_bias, sink=its_sink, **rest)
        parts.append(part[:2])
    return np.stack([out for out, _ in parts]), np.stack([lse for _, lse in parts])


def combine(o_acc: Float, lse_acc: Float) -> tuple[Float, Float]:
    """The second stage: out = sum_s exp(lse_s - L) o_s and L = ln sum_s exp(lse_s); 0 and -inf without any key."""
    most = np.max(lse_acc, axis=0)
    safe = np.where(most == -np.inf, 0.0, most)
    total = np.sum(np.exp(lse_acc - safe), axis=0)
    with np.errstate(divide="ignore"):
        lse = np.where(total == 0, -np.inf, safe + np.log(total))
    weight = np.where(lse == -np.inf, 0.0, np.exp(lse_acc - np.where(lse == -np.inf, 0.0, lse)))
    return np.sum(weight[..., None] * o_acc, axis=0), lse


def rotate(x: Any, positions: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    """Rotary embedding of x (rows, nhead, hdim), row i for positions[i]; the dtype of x. cos, sin: (.., rotary_dim/2).

    Pairs are (2i, 2i + 1), or (i, i + rotary_dim / 2); (x0, x1) becomes (x0 cos - x1 sin, x1 cos + x0 sin). This is
    the one place that is not float64: caches must agree to the byte, so every product and sum is rounded to fp32 and
    the result once to the dtype of x. (Su et al., "RoFormer", 2021.)
    """
    x = np.array(x)
    cos, sin = (np.asarray(table)[np.asarray(positions, int)][:, None, :].astype(np.float32) for table in (cos, sin))
    pairs = cos.shape[-1]
    first = slice(0, 2 * pairs, 2) if interleaved else slice(0, pairs)
    second = slice(1, 2 * pairs, 2) if interleaved else slice(pairs, 2 * pairs)
    x0, x1 = x[..., first].astype(np.float32), x[..., second].astype(np.float32)
    x[..., first] = (x0 * cos - x1 * sin).astype(x.dtype)
    x[..., second] = (x1 * cos + x0 * sin).astype(x.dtype)
    return x


def normalise(x: Any, gamma: Any, epsilon: float, rounding: str) -> Any:
    """RMS norm of each head of x (rows, nhead, hdim), rounded to its dtype as rmsnorm2d's rounding says."""
    wide = np.asarray(x, np.float64)
    scaled = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + np.float64(np.float32(epsilon)))
    if rounding == "transformers":
        scaled = scaled.astype(x.dtype).astype(np.float64)
    return (scaled * np.asarray(gamma, np.float64)).astype(x.dtype)


def linear_pages(k: Any, v: Any) -> tuple[Any, Any]:
    """k and v of any pool layout as (pages, page_size, nhead, hdim). 3 dimensions are pages of one key.

    Vectorized (5 dimensions): k (pages, nhead, hdim/vec, page_size, vec), v (pages, nhead, page_size/vec, hdim, vec).
    """
    if k.ndim == 3:
        return k[:, None], v[:, None]
    if k.ndim == 4:
        return k, v
    pages, nhead, chunks, page_size, vec = k.shape
    k = k.transpose(0, 3, 1, 2, 4).reshape(pages, page_size, nhead, chunks * vec)
    v = v.transpose(0, 2, 4, 1, 3).reshape(pages, page_size, nhead, v.shape[3])
    return k, v


def vectorized_pages(k: Any, v: Any) -> tuple[Any, Any]:
    """The inverse of `linear_pages` for 5 dimensions, vec = 16 bytes of elements; new arrays."""
    vec = 16 // k.dtype.itemsize
    pages, page_size, nhead, hdim = k.shape
    k = k.reshape(pages, page_size, nhead, hdim // vec, vec).transpose(0, 2, 3, 1, 4)
    v = v.reshape(pages, page_size // vec, vec, nhead, v.shape[3]).transpose(0, 3, 1, 4, 2)
    return np.ascontiguousarray(k), np.ascontiguousarray(v)


def gather(pool: Any, pages: Any, extent: Extent) -> Any:
    """Tokens [first, end) of a sequence, (end - first, nhead, hdim), from a pool (pages, page_size, nhead, hdim)."""
    first, end = extent
    page_size = pool.shape[1]
    token = np.arange(first, end)
    return pool[np.asarray(pages)[token // page_size], token % page_size]


def _ints(values: Any) -> list[int]:
    return [int(value) for value in np.asarray(values)]


def _extents(
    batch: int, room: int, seqlen_k: Any, cu_seqlens_k: Any, seqstart_k: Any, is_gappy: bool, leftpad: Any
) -> list[Extent]:
    if seqlen_k is not None:
        ends = _ints(seqlen_k)
    elif cu_seqlens_k is not None or seqstart_k is not None:
        ends = np.diff(_ints(cu_seqlens_k if cu_seqlens_k is not None else seqstart_k)).tolist()
    else:
        ends = [room] * batch
    firsts = [0] * batch
    if is_gappy:
        firsts = _ints(seqstart_k)
        ends = [first + end for first, end in zip(firsts, ends, strict=True)]
    if leftpad is not None:
        firsts = _ints(leftpad)
    return list(zip(firsts, ends, strict=True))


def _exchanged(array: Any, layout: str) -> Any:
    return np.swapaxes(np.asarray(array), -3, -2) if layout == "bhsd" else np.asarray(array)


def over(q: Any, keys: list[Any], values: list[Any], layout: str, **rest: Any) -> Result:
    """`forward` over the gathered keys of each sequence, (tokens, nhead, hdim) each."""
    lengths = np.array([len(one) for one in keys], np.int64)
    if np.ndim(q) == 3:
        k, v = (np.concatenate([np.asarray(one, np.float64) for one in side]) for side in (keys, values))
        rest["cu_seqlens_k"] = np.cumsum([0, *lengths])
    else:
        k, v = (np.zeros((len(side), max(lengths), *side[0].shape[1:])) for side in (keys, values))
        for to, side in ((k, keys), (v, values)):
            for b, one in enumerate(side):
                to[b, : len(one)] = one
        rest["seqlen_k"] = lengths
    return forward(q, _exchanged(k, layout), _exchanged(v, layout), layout=layout, **rest)


def splitkv(
    q: Any,
    k: Any,
    v: Any,
    *,
    block_table: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    seqstart_k: Any = None,
    seqlen_k: Any = None,
    cu_seqlens_k: Any = None,
    is_gappy: bool = False,
    out_scale: Any = None,
    layout: str = "bshd",
    **rest: Any,
) -> Result:
    """Reference of `Library.fmha_fwd_splitkv` and, for a paged cache, of its form in one launch; same arguments.

    With an fp8 q, out is multiplied by out_scale and saturated.
    """
    group = np.ndim(q) == 3
    if group and block_table is None:
        lengths = {"seqstart_k": seqstart_k, "seqlen_k": seqlen_k, "cu_seqlens_k": cu_seqlens_k}
        result = forward(q, k, v, layout=layout, **lengths, **rest)
    else:
        pools = [_exchanged(array, layout) for array in (k, v)]
        if group:
            starts = rest.get("cu_seqlens_q") if rest.get("seqstart_q") is None else rest["seqstart_q"]
            batch = len(np.asarray(starts)) - 1
        else:
            batch = len(q)
        rows = range(batch) if cache_batch_idx is None else _ints(cache_batch_idx)
        if block_table is None:
            room = pools[0].shape[1]
        else:
            block_table = np.asarray(block_table)
            room = block_table.shape[1] * pools[0].shape[1]
        extents = _extents(batch, room, seqlen_k, cu_seqlens_k, seqstart_k, is_gappy, cache_leftpad)
        keys, values = (
            [
                pool[row, slice(*extent)] if block_table is None else gather(pool, block_table[row], extent)
                for row, extent in zip(rows, extents, strict=True)
            ]
            for pool in pools
        )
        result = over(q, keys, values, layout, **rest)
    if np.asarray(q).dtype == NUMPY["fp8"]:
        scale = 1.0 if out_scale is None else float(np.asarray(out_scale).reshape(()))
        out = np.clip(result.out * scale, -FP8_MAX, FP8_MAX)
        result = replace(
            result, out=out, magnitude=result.magnitude * abs(scale), flushed=result.flushed * max(1.0, abs(scale))
        )
    return result


def appendkv(
    q: Any,
    k: Any,
    v: Any,
    knew: Any,
    vnew: Any,
    *,
    seqlen_k: Any,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    rotary_interleaved: bool = True,
    block_table: Any = None,
    cache_batch_idx: Any = None,
    attend: bool | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    layout: str = "bshd",
    q_gamma: Any = None,
    k_gamma: Any = None,
    norm_epsilon: float = 1e-6,
    norm_rounding: str = "pytorch",
    **rest: Any,
) -> Result | None:
    """Reference of `Library.fmha_fwd_appendkv`: writes k, v, q (NumPy arrays), then `splitkv` unless attend is False.

    New key j of a sequence lands at seqlen_k + j. It is rotated for that position, query i for seqlen_k + i when there
    is a mask, else for seqlen_k. q may be None: then nothing is attended to.
    """
    lengths = _ints(seqlen_k)
    new = [_exchanged(array, layout) for array in (knew, vnew)]
    caches = [_exchanged(array, layout) for array in (k, v)]
    count = new[0].shape[1]
    masked = causal or window[0] >= 0 or window[1] >= 0
    for b, length in enumerate(lengths):
        position = length + np.arange(count)
        row = b if cache_batch_idx is None else int(np.asarray(cache_batch_idx)[b])
        at: tuple[Any, ...] = (row, position)
        if block_table is not None:
            page_size = caches[0].shape[1]
            at = (np.asarray(block_table)[row, position // page_size], position % page_size)
        its_keys = new[0][b]
        if k_gamma is not None:
            its_keys = normalise(its_keys, k_gamma, norm_epsilon, norm_rounding)
        if rotary_cos is not None:
            its_keys = rotate(its_keys, position, rotary_cos, rotary_sin, rotary_interleaved)
            if q is not None:
                rows = _exchanged(q, layout)[b]
                if q_gamma is not None:
                    rows[...] = normalise(rows, q_gamma, norm_epsilon, norm_rounding)
                its_positions = length + (np.arange(len(rows)) if masked else np.zeros(len(rows), int))
                rows[...] = rotate(rows, its_positions, rotary_cos, rotary_sin, rotary_interleaved)
        caches[0][at], caches[1][at] = its_keys, new[1][b]
    if q is None or attend is False:
        return None
    grown = np.array(lengths) + count
    return splitkv(
        q, k, v, seqlen_k=grown, block_table=block_table, cache_batch_idx=cache_batch_idx, causal=causal,
        window=window, layout=layout, **rest,
    )  # fmt: skip


def batch_prefill(
    q: Any,
    k: Any,
    v: Any,
    *,
    cu_seqlens_q: Any,
    kv_indptr: Any = None,
    kv_page_indices: Any = None,
    kv_last_page_lens: Any = None,
    block_table: Any = None,
    seqlen_k: Any = None,
    kv_block_descale: Any = None,
    bias: Any = None,
    **rest: Any,
) -> Result:
    """Reference of `Library.fmha_batch_prefill`; same arguments. Only pages in use are read."""
    page_size = {3: 1, 4: k.shape[1], 5: k.shape[-2]}[k.ndim]
    keys, values = [], []
    for b in range(len(np.asarray(cu_seqlens_q)) - 1):
        if block_table is None:
            pages = np.asarray(kv_page_indices)[slice(*_ints(np.asarray(kv_indptr)[b : b + 2]))]
            last = 1 if kv_last_page_lens is None else int(np.asarray(kv_last_page_lens)[b])
            length = (len(pages) - 1) * page_size + last if len(pages) else 0
        else:
            length = int(np.asarray(seqlen_k)[b])
            pages = np.asarray(block_table)[b, : -(-length // page_size)]
        sides = linear_pages(k[pages], v[pages])
        if kv_block_descale is not None:  # (pages, nhead_k, 2)
            scales = np.asarray(kv_block_descale, np.float64)[pages]
            sides = tuple(side.astype(np.float64) * scales[:, None, :, i, None] for i, side in enumerate(sides))
        local = np.arange(len(pages))
        keys.append(gather(sides[0], local, (0, length)))
        values.append(gather(sides[1], local, (0, length)))
    if bias is not None and np.ndim(bias) == 2:
        bias = np.asarray(bias)[None]
    return over(q, keys, values, "bshd", cu_seqlens_q=cu_seqlens_q, bias=bias, **rest)


def quantise(cache: Any, page_scale: bool = False) -> tuple[Any, Any]:
    """An fp8 (e4m3) cache and its descale, absmax / 448: one element, or (pages, nhead) with page_scale.

    cache: any shape; with page_scale (pages, page_size, nhead, hdim).
    """
    cache = np.asarray(cache, np.float32)
    most = np.max(np.abs(cache), axis=(1, 3) if page_scale else None, initial=0.0)
    descale = np.where(most > 0, most / FP8_MAX, 1.0).astype(np.float32)
    spread = descale[:, None, :, None] if page_scale else descale
    codes = np.clip(cache / spread, -FP8_MAX, FP8_MAX).astype(NUMPY["fp8"])
    return codes, descale if page_scale else descale.reshape(1)
