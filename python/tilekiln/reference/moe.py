# SPDX-License-Identifier: MIT
"""A mixture of experts: topk_softmax, moe_sorting and fused_moe, in float64 and plain loops."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._core.dtypes import NUMPY
from .drawn import Call, Random, Signature
from .gemm import ACTIVATIONS, BLOCK, LARGEST, ROUNDING, SLOPE, Float, Result, U, excess, gemm
from .softmax import softmax


def topk_softmax(
    x: NDArray[np.generic], topk: int, renormalise: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """(weights, indices), each (tokens, topk), of logits (tokens, experts)."""
    everything = softmax(x)
    keys = np.maximum(x.astype(np.float64), -3.4028234663852886e38)
    order = np.argsort(-keys, axis=1, kind="stable")[:, :topk]
    bad = np.isnan(everything).any(axis=1)
    order[bad] = np.arange(topk)
    weights = np.take_along_axis(everything, order, 1)
    return weights / weights.sum(axis=1, keepdims=True) if renormalise else weights, order.astype(np.int32)


class Sorted(NamedTuple):
    """Results of moe_sorting that the other references use."""

    token_ids: list[int]
    weights: list[float]
    expert_ids: list[int]
    totals: tuple[int, int]


def moe_sorting(
    topk_ids: NDArray[np.int32],
    topk_weights: NDArray[np.float32],
    experts: int,
    unit: int,
    skip_empty: bool = True,
    expert_mask: NDArray[np.int32] | None = None,
    local_tokens: int | None = None,
) -> Sorted:
    tokens = len(topk_ids) if local_tokens is None else max(0, min(local_tokens, len(topk_ids)))
    topk = topk_ids.shape[1]
    ids: list[int] = []
    weights: list[float] = []
    units: list[int] = []
    here = [e for e in range(experts) if expert_mask is None or expert_mask[e] != 0]
    for local, expert in enumerate(here):
        mine = [(t, k) for t in range(tokens) for k in range(topk) if topk_ids[t, k] == expert]
        padding = -len(mine) % unit or (unit if not mine and not skip_empty else 0)
        ids += [t | k << 24 for t, k in mine] + [tokens | topk << 24] * padding
        weights += [float(topk_weights[t, k]) for t, k in mine] + [0.0] * padding
        units += [local] * ((len(mine) + padding) // unit)
    return Sorted(ids, weights, units, (len(ids), tokens))


def _int8_rows(rows: Float, error: Float) -> tuple[Float, Float]:
    """Rows as int8 times their factor, and how far a kernel's may be whose rows are off by `error`.

    A number that comes within its error of the middle between two others may become either, a whole step; the factor,
    max |row| / 127, is off as the largest number of the row.
    """
    most = np.abs(rows).max(axis=1, initial=0, keepdims=True)
    step = np.where(most < 2.0**-100, 0.0, most / 127)
    over = np.where(step == 0, 1.0, step)
    exact = rows / over
    relative = error.max(axis=1, initial=0, keepdims=True) / np.where(most == 0, 1.0, most) + 2.0**-22
    near = np.abs(np.abs(exact - np.floor(exact)) - 0.5) <= error / over + np.abs(exact) * relative
    numbers = np.where(np.isfinite(most), np.rint(exact), np.nan)
    return numbers * step, near * step + np.abs(numbers) * step * relative


def _fp8_rows(rows: Float, error: Float) -> tuple[Float, Float]:
    """The same of e4m3, BLOCK numbers of a row by a factor of their own, max / 448."""
    shape = rows.shape
    rows, error = (one.reshape(shape[0], shape[1] // BLOCK, BLOCK) for one in (rows, error))
    most = np.abs(rows).max(axis=2, initial=0, keepdims=True)
    factor = np.where(most < 2.0**-100, 0.0, most / 448)
    over = np.where(factor == 0, 1.0, factor)
    exact = rows / over
    step = np.exp2(np.maximum(np.floor(np.log2(np.maximum(np.abs(exact), 2.0**-20))), -6) - 3)
    relative = error.max(axis=2, initial=0, keepdims=True) / np.where(most == 0, 1.0, most) + 2.0**-22
    places = np.abs(exact) / step
    near = np.abs(places - np.floor(places) - 0.5) <= (error / over + np.abs(exact) * relative) / step
    numbers = np.where(np.isfinite(most), np.rint(exact / step) * step, np.nan) * (factor != 0)
    bound = (near * step + np.abs(numbers) * relative) * factor
    return (numbers * factor).reshape(shape), bound.reshape(shape)


def blocks(matrices: NDArray[Any], scale: NDArray[np.float32]) -> Float:
    """Matrices (experts, rows, columns) of e4m3 times the factors of their blocks."""
    factors = scale.astype(np.float64).repeat(BLOCK, axis=1).repeat(BLOCK, axis=2)
    return matrices.astype(np.float64) * factors[:, : matrices.shape[1], : matrices.shape[2]]


def _clamped_swiglu(gate: Float, error: Float, up: Result, limit: float, alpha: float) -> tuple[Float, Float, Result]:
    """g sigmoid(alpha g), how far a kernel's may be, and what it is multiplied by, u + 1: of gpt-oss."""
    kept = np.minimum(gate, limit)
    h = ACTIVATIONS["silu"](alpha * kept) / alpha
    plus = np.clip(up.out, -limit, limit) + 1
    return h, SLOPE * error + 2.0**-20 * (np.abs(kept) + np.abs(h)), Result(plus, up.bound + U * np.abs(plus))


def fused_moe(
    x: NDArray[Any],
    topk_ids: NDArray[np.int32],
    topk_weights: NDArray[np.float32],
    gate_up: NDArray[Any],
    down: NDArray[Any],
    *,
    activation: str = "silu",
    limit: float = 7.0,
    alpha: float = 1.702,
    quantised: bool = False,
    smooth_scale: NDArray[np.float32] | None = None,
    down_smooth_scale: NDArray[np.float32] | None = None,
    expert_mask: NDArray[np.int32] | None = None,
    gate_up_bias: NDArray[np.float32] | None = None,
    down_bias: NDArray[np.float32] | None = None,
    local_tokens: int | None = None,
    gate_up_scale: NDArray[np.float32] | None = None,
    down_scale: NDArray[np.float32] | None = None,
    dtype: str,
    lost: float = 0.0,
) -> Result:
    """The weighted sums of experts (tokens, hidden) in float64, with how far a kernel may be from each.

    gate_up (experts, 2 inter or inter, hidden), down (experts, hidden, inter): numbers times their factors where they
    are quantised; rows then become int8 before each product. limit and alpha are those of the activation
    clamped_swiglu. gate_up_bias (experts, 2 inter or inter), down_bias (experts, hidden). gate_up_scale and down_scale
    are those of blocks, of e4m3, by which rows become e4m3, and lost as gemm's. dtype: of x and out. What the
    bound of `gemm` says of both products is carried through the multiplication of gate and up, which round to dtype
    where nothing is quantised.
    """
    tokens, hidden = x.shape
    inter = down.shape[2]
    if local_tokens is not None:
        topk_ids = np.where(np.arange(tokens)[:, None] < local_tokens, topk_ids, -1)
    first_bias = np.zeros(gate_up.shape[:2]) if gate_up_bias is None else gate_up_bias
    second_bias = np.zeros(down.shape[:2]) if down_bias is None else down_bias
    out, error, magnitude = (np.zeros((tokens, hidden)) for _ in range(3))
    narrow = _int8_rows if quantised else None
    if gate_up_scale is not None and down_scale is not None:
        gate_up, down, narrow = blocks(gate_up, gate_up_scale), blocks(down, down_scale), _fp8_rows
    between = "fp32" if narrow else dtype
    local = np.arange(len(gate_up))
    if expert_mask is not None:
        local = np.where(expert_mask != 0, np.cumsum(expert_mask != 0) - 1, -1)
    with np.errstate(all="ignore"):
        for name, e in enumerate(local):
            if not 0 <= e < len(gate_up):
                continue
            mine, slots = np.nonzero(topk_ids == name)
            weights = topk_weights[mine, slots, None].astype(np.float64)
            rows, off = x[mine].astype(np.float64), np.zeros((len(mine), hidden))
            if narrow:
                rows = rows if smooth_scale is None else rows * smooth_scale[e]
                rows, off = narrow(rows, np.abs(rows) * U)
            wide = gate_up[e].astype(np.float64)
            carried = off @ np.abs(wide).T
            alone = "none" if activation == "clamped_swiglu" else activation
            gate = gemm(rows, wide[:inter].T, bias=first_bias[e, :inter], activation=alone, dtype=between, lost=lost)
            h, h_error = gate.out, gate.bound + SLOPE * carried[:, :inter]
            if len(wide) != inter:
                up = gemm(rows, wide[inter:].T, bias=first_bias[e, inter:], dtype="fp32", lost=lost)
                up_error = up.bound + carried[:, inter:]
                if activation == "clamped_swiglu":
                    h, h_error, up = _clamped_swiglu(h, h_error, up, limit, alpha)
                h, h_error = h * up.out, np.abs(h) * up_error + np.abs(up.out) * h_error + h_error * up_error
                h_error += ROUNDING[between] * (np.abs(h) + h_error) + (2.0**-25 if between == "fp16" else 2.0**-126)
                h = np.where(np.abs(h) >= LARGEST[between], np.copysign(np.inf, h), h)
            if narrow:
                smooth = np.float64(1) if down_smooth_scale is None else down_smooth_scale[e].astype(np.float64)
                h, h_error = narrow(h * smooth, np.abs(h * smooth) * U + h_error * smooth)
            second = down[e].astype(np.float64).T
            product = gemm(h, second, bias=second_bias[e], dtype="fp32", lost=lost)
            np.add.at(out, mine, weights * product.out)
            np.add.at(error, mine, np.abs(weights) * (product.bound + h_error @ np.abs(second)))
            np.add.at(magnitude, mine, np.abs(weights * product.out))
        error += U * (topk_ids.shape[1] + 1) * magnitude
        bound = error + ROUNDING[dtype] * (np.abs(out) + error) + (2.0**-25 if dtype == "fp16" else 2.0**-126)
        out = np.where(np.abs(out) >= LARGEST[dtype], np.copysign(np.inf, out), out)
    return Result(out, bound)


def draw(operator: str, random: Random, signature: Signature) -> Call:
    """Routing with ties and rows of NaN; its sorting, or the experts, with experts and tokens that are elsewhere."""
    if operator == "moe_sorting":
        return _draw_sorting(random, signature)
    if operator == "fused_moe":
        return _draw_experts(random, signature)
    tokens, experts = random.one((0, 1, 5, 33 * random.times)), random.one((1, 3, 8, 33, 64, 128, 257, 511, 513, 700))
    topk = random.whole(1, min(experts, 9))
    x = random.normal(tokens, experts, dtype=signature["dtype"], scale=3)
    if tokens > 1 and random.chance(0.3):
        x[0] = np.round(x[0].astype(np.float32)).astype(x.dtype)
        x[1, random.whole(0, experts - 1)] = random.one((np.nan, np.inf, -np.inf))
    made = {"weights": random.blank(tokens, topk, dtype="fp32"), "indices": random.blank(tokens, topk, dtype="int32")}
    return Call({"x": x, "topk": topk, "renormalise": random.chance(0.5)}, made)


def _draw_sorting(random: Random, signature: Signature) -> Call:
    tokens, topk = random.one((0, 1, 7, 300, 600 * random.times)), random.whole(1, 8)
    experts, unit = random.one((1, 5, 8, 64, 600)), random.one((1, 16, 32))
    least = -1 if random.chance(0.3) else 0
    given: dict[str, Any] = {
        "topk_ids": random.numbers.integers(least, experts, (tokens, topk)).astype(np.int32),
        "topk_weights": random.numbers.random((tokens, topk), np.float32),
        "experts": experts,
        "unit": unit,
        "skip_empty": random.chance(0.5),
    }
    if signature["masked"]:
        given["expert_mask"] = random.numbers.integers(0, 2, experts).astype(np.int32)
    if random.chance(0.3):
        given["local_tokens"] = np.array([random.one((-1, 0, tokens // 2, tokens + 5))], np.int32)
    room = tokens * topk + experts * unit - (1 if tokens else 0)
    made = {
        "sorted_token_ids": random.blank(room, dtype="int32"),
        "sorted_weights": random.blank(room, dtype="fp32"),
        "sorted_expert_ids": random.blank(-(-room // unit), dtype="int32"),
        "total_tokens_post_pad": random.blank(2, dtype="int32"),
    }
    if tokens:
        made["out"] = random.blank(tokens, random.one((1, 8, 67)), dtype="fp16")
    return Call(given, made)


def dequantised(
    panels: NDArray[Any], scale: NDArray[Any], group: int, columns: int, rows: int, parts: int = 1
) -> Float:
    """Panels of int8, int4 and, with factors of uint8, mxfp4 times their factors: (experts, parts rows, columns), each
    part in panels of its own."""
    from ..api.quantised_weight import E2M1, e8m0

    numbers = panels ^ np.int8(-128) if panels.dtype == np.int8 else panels
    if panels.dtype == np.uint8:
        numbers = np.concatenate([panels & 15, panels >> 4], axis=4).astype(np.int8)
        numbers = numbers - np.int8(8) if scale.dtype != np.uint8 else np.array(E2M1, np.float32)[numbers]
    scale = e8m0(scale) if scale.dtype == np.uint8 else scale
    experts, height = panels.shape[0], panels.shape[1] * 64
    wide = numbers.transpose(0, 1, 3, 2, 4).reshape(experts, height, columns).astype(np.float64)
    factors = scale.transpose(0, 1, 3, 2).reshape(experts, height, scale.shape[2])
    whole: Float = wide * np.repeat(factors, group, axis=2)[:, :, :columns]
    return whole.reshape(experts, parts, height // parts, columns)[:, :, :rows].reshape(experts, parts * rows, columns)


def _draw_experts(random: Random, signature: Signature) -> Call:
    """Experts without a token, tokens that name one twice or none; lengths are multiples of 8.

    Kernels of GPUs ask for these, and quantised weights.
    """
    dtype, kind, gated = str(signature["dtype"]), str(signature["weights"]), bool(signature["gated"])
    tokens, every, topk = random.one((0, 1, 2, 7, 140, 9 * random.times)), random.whole(1, 9), random.whole(1, 4)
    sizes = (128, 256, 384) if kind == "fp8" else (8, 16, 64, 72, 128, 136, 192, 264)
    hidden, inter = random.one(sizes), random.one(sizes)
    given: dict[str, Any] = {
        "x": _in_eights(random, random.numbers.standard_normal((tokens, hidden), np.float32).astype(NUMPY[dtype])),
        "topk_ids": random.laid(random.numbers.integers(-1, every + 1, (tokens, topk)).astype(np.int32)),
        "topk_weights": random.normal(tokens, topk, dtype="fp32"),
        "activation": signature["activation"],
    }
    if random.chance(0.2):
        given["topk_ids"][...] = every - 1
    experts = every
    if signature["masked"]:
        given["expert_mask"] = random.numbers.integers(0, 2, every).astype(np.int32)
        experts = int(given["expert_mask"].sum())
    if random.chance(0.3):
        given["local_tokens"] = np.array([random.one((-1, 0, tokens // 2, tokens + 5))], np.int32)
    if signature["activation"] == "clamped_swiglu":
        given |= {"limit": random.one((0.75, 7.0)), "alpha": random.one((1.5, -2.0))}
    rows = inter * (2 if gated else 1)
    shapes = {"gate_up": (experts, rows, hidden), "down": (experts, hidden, inter)}
    matrices: dict[str, Any] = {
        name: (random.numbers.standard_normal(shape, np.float32) / np.sqrt(shape[2])).astype(NUMPY[dtype])
        for name, shape in shapes.items()
    }
    of_columns = {"smooth_scale": hidden, "down_smooth_scale": inter} if signature["smooth"] else {}
    smooth: dict[str, Any] = {
        name: random.numbers.random((experts, length), np.float32) + np.float32(0.5)
        for name, length in of_columns.items()
    }
    biases: dict[str, Any] = {
        f"{name}_bias": random.numbers.standard_normal(shape[:2], np.float32)
        for name, shape in shapes.items()
        if kind in ("same", "fp8") and random.chance(0.3)
    }
    made = {"out": random.blank(tokens, hidden, dtype=dtype)}
    if signature["layout"] != "packed":
        for name, matrix in matrices.items():
            if kind == "fp8":
                matrix, given[f"{name}_scale"] = _in_blocks(random, matrix)
            turned = signature["layout"] == "column"
            given[name] = _in_eights(random, matrix.transpose(0, 2, 1) if turned else matrix)
            given[name] = given[name].transpose(0, 2, 1) if turned else given[name]
        return Call({**given, **biases}, made)
    from ..api.packed_experts import PackedExperts

    bits: Any = {"same": None, "int8": 8, "int4": 4, "mxfp4": "mxfp4"}[kind]
    group = random.one((None, 64, 96, 128)) if bits in (4, 8) else None
    packed = PackedExperts(matrices["gate_up"], matrices["down"], bits=bits, group=group, **smooth, **biases)
    names = ("gate_up", "down", "gate_up_scale", "down_scale", "gate_up_bias", "down_bias")
    call = {**given, **smooth, **{name: getattr(packed, name) for name in names if getattr(packed, name) is not None}}
    rows_as_they_are = kind in ("int4", "mxfp4") and not smooth and random.chance(0.5)
    if bits:
        call |= {"group": packed.group, "quantise_x": not rows_as_they_are}
        matrices = {
            "gate_up": dequantised(packed.gate_up, packed.gate_up_scale, packed.group, hidden, inter, rows // inter),
            "down": dequantised(packed.down, packed.down_scale, packed.group, inter, hidden),
        }
    local = int(given.pop("local_tokens")[0]) if "local_tokens" in given else None
    narrowed = bits is not None and not rows_as_they_are

    def judge(results: dict[str, NDArray[Any]]) -> float:
        expected = fused_moe(
            **given, **matrices, **smooth, **biases, local_tokens=local, dtype=dtype, quantised=narrowed
        )
        return excess(results["out"], expected)

    return Call(call, made, judge=judge)


def _in_blocks(random: Random, matrices: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """The same as e4m3 and factors of blocks, of any size."""
    experts, rows, columns = matrices.shape
    shape = (experts, -(-rows // BLOCK), -(-columns // BLOCK))
    scale = np.exp2(random.numbers.integers(-8, 3, shape)).astype(np.float32)
    return matrices.astype(NUMPY["fp8"]), scale


def _in_eights(random: Random, array: NDArray[Any]) -> NDArray[Any]:
    """The same values; rows packed or further apart, by multiples of 8 elements, of bytes 16."""
    room = random.turn((0, 0, 8, 24)) * (2 if array.itemsize == 1 else 1)
    spread = np.zeros((*array.shape[:-1], -(-array.shape[-1] // 8) * 8 + room), array.dtype)[..., : array.shape[-1]]
    spread[...] = array
    return spread
