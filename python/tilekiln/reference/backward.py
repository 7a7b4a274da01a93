# SPDX-License-Identifier: MIT
"""Attention backward in float64, one head of one sequence at a time: what every kernel must compute.

With S = softmax_scale q k^T, capped or biased, masked, and D = rowsum(dout o out):

    P = exp(S - lse)    dv = drop(P)^T dout    dP = drop(dout v^T)    dS = P o (dP - D)    dbias = dS
    dq = softmax_scale dS' k    dk = softmax_scale dS'^T q    d_sink = -sum_i exp(sink - lse_i) D_i

where drop zeroes what the forward dropped and scales what it kept, and dS' is dS times the slope 1 - tanh^2 of the soft
cap. Source: Dao et al., "FlashAttention-2" (2023), section 3.1.2; the sink is one more column of P without a value.
"""

from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from . import masks, philox, sequences
from .attention import Float, _as_heads, _bias, forward, sum_error

SLOPE_ERROR = 2.0**-20
"""Of 1 - tanh^2 in fp32: 2 |tanh| times the error of tanh, which is at most 8 units of 2^-24."""

LEAST_LSE = -float(np.finfo(np.float32).max) * float(np.log(2))
"""Rows with an LSE below it have P = 0: those that see no key, and those whose every score is the lowest fp32 number,
as a mask of finfo.min makes it. exp(S - LSE) of the latter would be 1 for each key, since LSE cannot hold its ln n."""


@dataclass(frozen=True)
class Gradient:
    """One gradient, and the three sizes that its rounding errors are relative to (see tolerance). All of one shape."""

    value: Float
    magnitude: Float  # the same sum over absolute terms
    score: Float  # those terms times the size of their score
    spread: Float  # those terms with sum |dout v| + sum |dout out| for dP - D, which may cancel
    touched: NDArray[np.bool_]  # False where the call writes nothing: padding


@dataclass(frozen=True)
class Gradients:
    """Results of one call, in the layout of the call."""

    dq: Gradient
    dk: Gradient
    dv: Gradient
    dbias: Gradient | None  # of the full shape (batch, nhead_q, seqlen_q, seqlen_k), group: (nhead_q, total_q, columns)
    d_sink: Gradient | None  # (nhead_q)
    delta: Float  # D; shape of lse, NaN in untouched rows


@np.errstate(invalid="ignore")  # NaN and infinities give what IEEE arithmetic says
def head_backward(
    dout: Float,
    q: Float,
    k: Float,
    v: Float,
    out: Float,
    lse: Float,
    *,
    softmax_scale: float,
    visible: NDArray[np.bool_],
    bias: Float | None = None,
    softcap: float = 0.0,
    sink: float | None = None,
    keep: NDArray[np.bool_] | None = None,
    keep_scale: float = 1.0,
) -> dict[str, Float]:
    """One head of one sequence: dq (m, d), dk (n, d), dv (n, dv), dbias (m, n), d_sink () and delta (m).

    Each but delta has a first dimension of 4: value, magnitude, score, spread (see `Gradient`).
    """
    score = softmax_scale * (q @ k.T)
    size = sum_error(q.shape[1]) * abs(softmax_scale) * (np.abs(q) @ np.abs(k).T)
    slope: Any = 1.0
    most_slope: Any = 1.0  # with its own error, which an error of dP - D meets where slope is nearly 0 too
    bend: Any = 0.0  # the size of the slope's error
    if softcap > 0:
        tanh = np.tanh(score / softcap)
        bend = 2 * np.abs(tanh) * (1 - tanh**2) / softcap * size
        score, slope = softcap * tanh, 1 - tanh**2
        most_slope = slope + SLOPE_ERROR
        size = size + np.abs(score)
    size = size + np.abs(np.where(np.isfinite(lse), lse, 0.0))[:, None]
    if bias is not None:
        score, size = score + bias, size + np.where(bias == -np.inf, 0.0, np.abs(bias))  # P of -inf is 0, exactly
    seen = ~(lse < LEAST_LSE)  # a NaN is
    sees = visible & seen[:, None]
    p = np.exp(np.where(sees, score - np.where(seen, lse, 0.0)[:, None], -np.inf))

    size, bend = np.where(sees, size, 0.0), np.where(sees, bend, 0.0)
    kept = 1.0 if keep is None else keep * keep_scale
    dp, dp_size = kept * (dout @ v.T), kept * (np.abs(dout) @ np.abs(v).T)
    delta, delta_size = np.sum(dout * out, axis=1), np.sum(np.abs(dout * out), axis=1)
    ds = np.where(sees, p * (dp - delta[:, None]), 0.0)
    spread = sum_error(v.shape[1]) * p * (dp_size + delta_size[:, None])

    # The slope multiplies ds, but an error of tanh is one of the slope whatever the slope is: so magnitude is without.
    dbias = np.stack([ds * slope, np.abs(ds), np.abs(ds) * (size + bend), spread * most_slope])
    dropped = p * kept
    weight = np.stack([dropped, dropped, dropped * size, dropped])
    q_sizes, k_sizes, dout_sizes = (np.stack([x, *[np.abs(x)] * 3]) for x in (q, k, dout))
    scales = np.array([softmax_scale, *[abs(softmax_scale)] * 3])[:, None, None]
    result = {
        "dq": scales * (dbias @ k_sizes),
        "dk": scales * (np.swapaxes(dbias, 1, 2) @ q_sizes),
        "dv": np.swapaxes(weight, 1, 2) @ dout_sizes,
        "dbias": dbias,
        "delta": delta,
    }
    if sink is not None:
        at_sink = np.zeros(len(q))
        np.exp(sink - lse, out=at_sink, where=lse != -np.inf)
        finite = np.where(np.isfinite(lse), np.abs(lse), 0.0) + (abs(sink) if np.isfinite(sink) else 0.0)
        terms = [-at_sink * delta, at_sink * np.abs(delta), at_sink * np.abs(delta) * finite, at_sink * delta_size]
        result["d_sink"] = np.sum(np.stack(terms), axis=1)
    return result


def _gradient(parts: list[NDArray[Any]], group: bool, layout: str) -> Gradient:
    """layout: that of the call, "" of an array without one."""
    parts = [part[0] for part in parts] if group else parts
    return Gradient(*([_as_heads(part, layout, as_float=False) for part in parts] if layout else parts))


def backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any = None,
    lse: Any = None,
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
    layout: str = "bshd",
    **mask: Unpack[masks.Mask],
) -> Gradients:
    """Everything one backward call computes, in float64. The arguments are those of `Library.fmha_bwd`.

    out, lse: as the forward wrote them, so that what rounded them takes no part in the comparison. None: computed by
    `forward`. A bias that is broadcast over batch or heads has a dbias of the full shape: sum it over those.
    """
    named = {**locals(), **mask}
    rest: dict[str, Any] = {name: named[name] for name in named.keys() - {"dout", "q", "k", "v", "out", "lse", "mask"}}
    if out is None or lse is None:
        exact = forward(q, k, v, **rest)
        out, lse = exact.out if out is None else out, exact.lse if lse is None else lse
    dout, q, k, v, out = (_as_heads(array, layout) for array in (dout, q, k, v, out))  # (batch | 1, nhead, rows, hdim)
    lse = np.asarray(lse, np.float64)
    group = np.ndim(q) == 3
    if group:
        dout, q, k, v, out, lse = dout[None], q[None], k[None], v[None], out[None], lse[None]
    nhead_q, rows_q, hdim_q = q.shape[1:]
    nhead_k, rows_k = v.shape[1:3]
    softmax_scale = hdim_q**-0.5 if softmax_scale is None else softmax_scale

    side_q, side_k = sequences.sides(
        q, k, group, seqstart_q, seqstart_k, seqlen_q, seqlen_k, cu_seqlens_q, cu_seqlens_k
    )
    columns = max(side_k.lengths, default=0) if group else rows_k
    shapes = {"dq": q.shape, "dk": k.shape, "dv": v.shape}
    if bias is not None:
        shapes["dbias"] = (len(q), nhead_q, rows_q, columns)
    sums = {name: np.zeros((4, *shape)) for name, shape in shapes.items()}
    touched = {name: np.zeros(shape, bool) for name, shape in shapes.items()}
    d_sink = None if sink is None else np.zeros((4, nhead_q))
    delta = np.full(lse.shape, np.nan)

    for b, place, rows, keys, m, n in sequences.walk(side_q, side_k, group):
        visible = masks.visible(m, n, **mask)
        for h in range(nhead_q):
            h_k = h // (nhead_q // nhead_k)
            byte = philox.random_bytes(rng[0], rng[1], b * nhead_q + h, m, n) if dropout_p > 0 else None
            result = head_backward(
                *(one[place, h, rows] for one in (dout, q)),
                *(one[place, h_k, keys] for one in (k, v)),
                *(one[place, h, rows] for one in (out, lse)),
                softmax_scale=softmax_scale,
                visible=visible,
                bias=_bias(bias, alibi_slopes, b, h, m, n, rows, group, mask.get("mask_origin")),
                softcap=softcap,
                sink=None if sink is None else float(np.asarray(sink)[h]),
                keep=None if byte is None else byte <= philox.keep_threshold(dropout_p),
                keep_scale=1.0 / (1.0 - float(np.float32(dropout_p))),
            )
            where = {"dq": (h, rows), "dk": (h_k, keys), "dv": (h_k, keys), "dbias": (h, rows, slice(n))}
            for name, total in sums.items():
                total[:, place, *where[name]] += result[name]  # query heads of a group share dk and dv
                touched[name][place, *where[name]] = True
            if d_sink is not None:
                d_sink[:, h] += result["d_sink"]
            delta[place, h, rows] = result["delta"]

    found = {name: _gradient([*sums[name], touched[name]], group, "" if name == "dbias" else layout) for name in sums}
    return Gradients(
        found["dq"],
        found["dk"],
        found["dv"],
        found.get("dbias"),
        None if d_sink is None else Gradient(d_sink[0], d_sink[1], d_sink[2], d_sink[3], np.full(nhead_q, True)),
        delta[0] if group else delta,
    )


def fmha_bwd(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any = None,
    lse: Any = None,
    *,
    dq: Any = None,
    dk: Any = None,
    dv: Any = None,
    dbias: Any = None,
    d_sink: Any = None,
    delta: Any = None,
    **rest: Any,
) -> Any:
    """Attention backward; arguments and results as `Library.fmha_bwd`, computed by `backward` in float64.

    dq, dk, dv, dbias, d_sink, delta: NumPy arrays to write to (rounded to their dtype), else float64 zeros; dbias and
    d_sink may be True. What the call must not touch is left as it is. Returns (dq, dk, dv), then dbias and d_sink
    when they are given.
    """
    result = backward(dout, q, k, v, out, lse, **rest)
    if delta is not None:
        known = ~np.isnan(result.delta)
        delta[known] = result.delta[known].astype(delta.dtype)
    given = {"dq": dq, "dk": dk, "dv": dv, "dbias": dbias, "d_sink": d_sink}
    made = []
    for name, array in given.items():
        if array is None and name in ("dbias", "d_sink"):
            continue
        gradient = getattr(result, name)
        if gradient is None:
            raise ValueError(f"{name} needs {'bias' if name == 'dbias' else 'sink'}")
        if array is None or array is True:
            array = np.zeros(gradient.value.shape)
        array[gradient.touched] = gradient.value[gradient.touched].astype(array.dtype)
        made.append(array)
    return tuple(made)
