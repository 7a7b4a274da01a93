# SPDX-License-Identifier: MIT
"""Attention forward in float64, one head of one sequence at a time: what every kernel must compute.

Readable before fast. It shares no code with the kernels or the binding. What NaN, infinities and empty rows give:
docs/reference/special-values.md; the arguments and their meaning: `Library.fmha_fwd`.
"""

import math
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from . import masks, philox, sequences

Float = NDArray[np.float64]

BLOCK_SCALE = 128  # rows, or keys, that share one descale


@dataclass(frozen=True)
class Result:
    """Results of one call. Rows that the call leaves untouched hold NaN (randval: -1)."""

    out: Float  # layout and shape of the facade's out
    lse: Float  # (batch, nhead_q, seqlen_q) or (nhead_q, total_q), natural logarithm
    magnitude: Float  # shape of out: sum_j |p_ij v_jd|; rounding errors are relative to it
    score_size: Float  # shape of lse: the largest size of a score that a row sees (see tolerance)
    touched: NDArray[np.bool_]  # shape of lse: False for padding rows and skipped sequences
    layout: str
    flushed: Float  # shape of out: gain (1 + sum_j |v_jd|), what flushing terms to 0 may cost (see tolerance)
    randval: NDArray[np.int16] | None  # bytes; (batch, nhead_q, seqlen_q, seqlen_k) or (nhead_q, total_q, max_seqlen_k)


def sum_error(terms: int) -> float:
    """Largest error of an fp32 sum of `terms` products, in units of 2^-22 of its terms' size (see tolerance)."""
    return max(1.0, 0.5 + math.sqrt(terms) / 8)


@np.errstate(invalid="ignore")  # NaN and infinities give what IEEE arithmetic says
def head(
    q: Float,
    k: Float,
    v: Float,
    *,
    softmax_scale: float,
    visible: NDArray[np.bool_],
    bias: Float | None = None,
    softcap: float = 0.0,
    sink: float | None = None,
    keep: NDArray[np.bool_] | None = None,
    keep_scale: float = 1.0,
) -> tuple[Float, Float, Float, Float]:
    """One head of one sequence: q (m, d), k (n, d), v (n, dv) to out (m, dv), lse (m), magnitude, score_size (m).

    A row that sees no key gives out = 0 and lse = -inf (lse = sink when there is a sink logit). What k, v and bias hold
    for a key that a row does not see takes no part in the row, NaN and infinities included.
    """
    if sink == -np.inf:  # no sink
        sink = None
    score = softmax_scale * (q @ k.T)
    size = sum_error(q.shape[1]) * abs(softmax_scale) * (np.abs(q) @ np.abs(k).T)
    if softcap > 0:
        score = softcap * np.tanh(score / softcap)
        size = size + np.abs(score)
    if bias is not None:
        score, size = score + bias, size + np.abs(bias)
    score = np.where(visible, score, -np.inf)

    maximum = np.max(score, axis=1, initial=-np.inf if sink is None else sink)
    weight = np.where(score == -np.inf, 0.0, np.exp(score - maximum[:, None]))
    total = np.sum(weight, axis=1)
    if sink is not None:
        total = total + np.exp(sink - maximum)
    with np.errstate(divide="ignore"):
        lse = np.where(total == 0, -np.inf, maximum + np.log(total))
    probability = weight / np.where(total == 0, 1.0, total)[:, None]
    if keep is not None:
        probability = probability * (keep * keep_scale)
    return (
        _weighted(probability, v, visible),
        lse,
        _weighted(probability, np.abs(v), visible),
        np.max(np.where(score > -np.inf, size, 0.0), axis=1, initial=0.0 if sink is None else _finite(abs(sink))),
    )


def _finite(x: float) -> float:
    return x if np.isfinite(x) else 0.0


def _weighted(probability: Float, v: Float, visible: NDArray[np.bool_]) -> Float:
    """probability @ v, without 0 * NaN and 0 * inf of keys that a row does not see."""
    finite = np.isfinite(v).all(axis=1)
    result: Float = probability[:, finite] @ v[finite]
    for j in np.flatnonzero(~finite):
        result = result + np.where(visible[:, j, None], probability[:, j, None] * v[j], 0.0)
    return result


def forward(
    q: Any,
    k: Any,
    v: Any,
    *,
    softmax_scale: float | None = None,
    sink: Any = None,
    bias: Any = None,
    alibi_slopes: Any = None,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    rng: tuple[int, int] = (0, 0),
    seqstart_q: Any = None,
    seqstart_k: Any = None,
    seqlen_q: Any = None,
    seqlen_k: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    min_seqlen_q: int = 0,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    block_scale_seqstart_q: Any = None,
    block_scale_seqstart_k: Any = None,
    layout: str = "bshd",
    **mask: Unpack[masks.Mask],
) -> Result:
    """Everything one call computes, in float64. The arguments are those of `Library.fmha_fwd`, as NumPy arrays."""
    if bias is not None and alibi_slopes is not None:
        raise ValueError("bias and alibi_slopes: give one")
    if layout not in ("bshd", "bhsd"):
        raise ValueError(f"layout: {layout!r} is neither 'bshd' nor 'bhsd'")
    q, k, v = (_as_heads(array, layout) for array in (q, k, v))  # (batch | 1, nhead, rows, hdim)
    group = np.ndim(q) == 3
    if group:
        q, k, v = q[None], k[None], v[None]
    _, nhead_q, rows_q, hdim_q = q.shape
    nhead_k, rows_k, hdim_v = v.shape[1:]
    softmax_scale = hdim_q**-0.5 if softmax_scale is None else softmax_scale

    side_q, side_k = sequences.sides(
        q, k, group, seqstart_q, seqstart_k, seqlen_q, seqlen_k, cu_seqlens_q, cu_seqlens_k
    )
    columns = max(side_k.lengths, default=0) if group else rows_k

    out = np.full((len(q), nhead_q, rows_q, hdim_v), np.nan)
    magnitude, flushed = np.full_like(out, np.nan), np.full_like(out, np.nan)
    lse = np.full((len(q), nhead_q, rows_q), np.nan)
    score_size = np.full_like(lse, np.nan)
    touched = np.zeros(lse.shape, bool)
    randval = np.full((len(q), nhead_q, rows_q, columns), -1, np.int16) if dropout_p > 0 else None
    keep_scale = 1.0 / (1.0 - float(np.float32(dropout_p)))
    largest = float(np.max(np.abs(np.asarray(1.0 if v_descale is None else v_descale, np.float64)), initial=0.0))

    for b, place, rows, keys, m, n in sequences.walk(side_q, side_k, group):
        if min_seqlen_q > 0 and m <= min_seqlen_q:
            continue
        visible = masks.visible(m, n, **mask)
        for h in range(nhead_q):
            h_k = h // (nhead_q // nhead_k)
            q_head = q[place, h, rows] * _descale(q_descale, b, h, m, group, block_scale_seqstart_q)
            k_head = k[place, h_k, keys] * _descale(k_descale, b, h_k, n, group, block_scale_seqstart_k)
            v_head = v[place, h_k, keys] * _descale(v_descale, b, h_k, n, group, block_scale_seqstart_k)
            keep = None
            if randval is not None:
                byte = philox.random_bytes(rng[0], rng[1], b * nhead_q + h, m, n)
                randval[place, h, rows, :n] = byte
                keep = byte <= philox.keep_threshold(dropout_p)
            result = head(
                q_head,
                k_head,
                v_head,
                softmax_scale=softmax_scale,
                visible=visible,
                bias=_bias(bias, alibi_slopes, b, h, m, n, rows, group, mask.get("mask_origin")),
                softcap=softcap,
                sink=None if sink is None else float(np.asarray(sink)[h]),
                keep=keep,
                keep_scale=keep_scale,
            )
            one = place, h, rows
            out[one], lse[one], magnitude[one], score_size[one] = result
            seen_values = _weighted(visible.astype(np.float64), np.abs(v_head), visible)
            flushed[one] = keep_scale * (max(1.0, largest) + seen_values)
            touched[one] = True
    at = 0 if group else slice(None)
    out, magnitude, flushed = (_as_heads(array[at], layout) for array in (out, magnitude, flushed))
    randval = None if randval is None else randval[at]
    return Result(out, lse[at], magnitude, score_size[at], touched[at], layout, flushed, randval)


def fmha_fwd(
    q: Any,
    k: Any,
    v: Any,
    *,
    out: Any = None,
    lse: Any = None,
    randval: Any = None,
    return_lse: bool = False,
    **rest: Any,
) -> Any:
    """Attention forward; arguments and results as `Library.fmha_fwd`, computed by `forward` in float64.

    out, lse, randval: NumPy arrays to write to (rounded to their dtype), else float64 zeros. Rows that the call must
    not touch are left as they are. Returns out, or (out, lse) with return_lse.
    """
    result = forward(q, k, v, **rest)
    layout = rest.get("layout", "bshd")
    out = np.zeros(result.out.shape) if out is None else out
    lse = np.zeros(result.lse.shape) if lse is None else lse
    by_head = _as_heads(out, layout, as_float=False)
    by_head[result.touched] = _as_heads(result.out, layout)[result.touched].astype(out.dtype)
    lse[result.touched] = result.lse[result.touched].astype(lse.dtype)
    if randval is not None:
        if result.randval is None:
            raise ValueError("randval needs dropout_p > 0")
        drawn = result.randval >= 0
        randval[..., : drawn.shape[-1]][drawn] = result.randval[drawn]
    return (out, lse) if return_lse else out


def _as_heads(array: Any, layout: str, as_float: bool = True) -> Any:
    """Exchange (..., seqlen, nhead, hdim) and (..., nhead, seqlen, hdim) unless layout has the heads first already."""
    array = np.asarray(array)
    if as_float:
        array = array.astype(np.float64)
    return array if layout == "bhsd" else np.swapaxes(array, -3, -2)


def _descale(descale: Any, b: int, h: int, length: int, group: bool, seqstart: Any) -> Any:
    """Factor of the rows of one sequence and head: a number, or a column with one number per row."""
    if descale is None:
        return 1.0
    descale = np.asarray(descale, np.float64)
    if descale.size == 1 and descale.ndim < (2 if group else 3):
        return float(descale.reshape(()))
    block = np.arange(length) // BLOCK_SCALE
    if group:
        return descale[h, int(np.asarray(seqstart)[b]) + block][:, None]
    return descale[b, h, block][:, None]


def _bias(
    bias: Any, alibi_slopes: Any, b: int, h: int, m: int, n: int, rows: slice, group: bool, mask_origin: str | None
) -> Float | None:
    """Bias or ALiBi term of one head's scaled scores, (m, n); None without either."""
    if bias is not None:
        bias = np.asarray(bias)
        h = h if bias.shape[-3] > 1 else 0
        one = bias[h, rows] if group else bias[b if len(bias) > 1 else 0, h, rows]
        return np.asarray(one[:, :n], np.float64)
    if alibi_slopes is not None:
        slopes = np.asarray(alibi_slopes, np.float64)
        slope = slopes[h] if slopes.ndim == 1 else slopes[b, h]
        i, j = np.arange(m)[:, None], np.arange(n)[None, :]
        return np.asarray(-slope * np.abs(i + masks.shift(m, n, mask_origin or "bottom_right") - j))
    return None
