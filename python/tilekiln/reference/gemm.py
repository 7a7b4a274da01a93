# SPDX-License-Identifier: MIT
"""Matrix products in float64, with how far a kernel may be from them.

A kernel sums fp32 in one order, k terms, and rounds once to the dtype of out. With u = 2^-24 and magnitude =
|alpha row_i column_j| sum_k |a_ik b_kj| + |beta c_ij| + |bias_j|, per element of
out = activation(alpha row_i column_j a b + beta c + bias), where row and column are the scales:

    |out - reference| <= rounding |reference| + (sums + factors) magnitude + function (|x| + |reference|) + tiny

* rounding = u of the dtype of out (2^-24 fp32, 2^-11 fp16, 2^-8 bf16): the result is rounded once, to nearest even.
* sums = u min(k, 6 sqrt(k)): k rounding errors of at most u of a partial sum add up to k u at worst; of random signs,
  to a few sqrt(k) u (Higham and Mary 2019, "A new approach to probabilistic rounding error analysis"). Products of
  bf16, fp16, fp8 and bf8 are exact in fp32; those of fp32 are fused into their sum.
* factors = 6 u: alpha, both scales, beta, c and the bias round once each. The slope of every activation is at most
  1.13, in it.
* function, 0 without one: exp2 (8.3e-8), erf (1.5e-7) and the products around them: 2^-20 of the argument |x|, twice
  the size of the result at most where it matters; tails below 2^-100 may be flushed.
* lost, of fp32 in parts of bf16 (`LOST_OF_PARTS`) and of fp8 and bf8 on a GPU (`LOST_OF_BYTES`): its tensor cores keep
  some 14 bits of a sum of 128 products.
* tiny: half the smallest subnormal of fp16, 2^-25; k 2^-126 else, since a bf16 dot product flushes subnormal numbers.

int32 is exact modulo 2^32: the bound is 0. Scaled products of int8 are rounded to fp32 first, one of the factors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._core.dtypes import NUMPY
from .drawn import Call, Random, Signature

Array = NDArray[Any]
Float = NDArray[np.float64]

U = 2.0**-24
OUT_DTYPE = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "int8": "int32",
    "float8_e4m3fn": "fp16",
    "float8_e5m2": "fp16",
}
"""The dtype of out by that of a, unless it is said."""
SLOPE = 1.13
"""The largest slope of an activation but hardswish, that of gelu; silu's is 1.10."""
SLOPES = {"hardswish": 1.5}
ROUNDING = {"fp32": U, "fp16": 2.0**-11, "bf16": 2.0**-8}
LARGEST = {"fp32": 3.4028235677973366e38, "fp16": 65520.0, "bf16": 3.3961775292304957e38}
"""Least numbers that round to infinity, by dtype."""


BLOCK = 128
"""Numbers along k, and columns, that share a factor of a block."""
LOST_OF_PARTS = {"full": 0.0, "bf16x3": 3 * 2.0**-16, "bf16x6": 2.0**-23}
"""Share of a product of fp32 that parts of bf16 leave out, by precision: a part rounds to 2^-8 of itself."""
LOST_OF_BYTES = 2.0**-9
"""Share of their magnitude that sums of fp8 and bf8 may lose on a GPU: 1.5e-3 of 128 positive numbers, on Hopper."""


class Result(NamedTuple):
    """Of `gemm`: the product and, per element, how far a kernel may be from it. int32: 0."""

    out: Array
    bound: Float


def _erf(x: Float) -> Float:
    import math

    return np.vectorize(math.erf, otypes=[np.float64])(x) if x.size else x


def _sigmoid(x: Float) -> Float:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _tail(f: Callable[[Float], Float]) -> Callable[[Float], Float]:
    """f, and 0 at -infinity, where x times 0 would be NaN."""

    def g(x: Float) -> Float:
        return np.where(np.isneginf(x), 0.0, f(np.where(np.isneginf(x), 0.0, x)))

    return g


CLAMP = (0.0, 6.0)
"""Default range of the activation clamp."""
EXACT = ("none", "relu", "clamp")
"""Activations that do not round."""

ACTIVATIONS: dict[str, Callable[[Float], Float]] = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0.0),
    "gelu": _tail(lambda x: 0.5 * x * (1 + _erf(x / np.sqrt(2.0)))),
    "gelu_tanh": _tail(lambda x: x * _sigmoid(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "silu": _tail(lambda x: x * _sigmoid(x)),
    "sigmoid": _sigmoid,
    "hardswish": _tail(lambda x: x * np.clip(x / 6 + 0.5, 0.0, 1.0)),
    "clamp": lambda x: np.clip(x, *CLAMP),
}


def gemm(
    a: Array,
    b: Array,
    c: Array | None = None,
    bias: Array | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    activation: str = "none",
    clamp: tuple[float, float] = CLAMP,
    row_scale: Array | None = None,
    column_scale: Array | None = None,
    a_scale: Array | None = None,
    b_scale: Array | None = None,
    dtype: str | None = None,
    lost: float = 0.0,
    precision: str = "full",
) -> Result:
    """activation(alpha a b + beta c + bias): a (m, k), b (k, n), c (m, n), bias (n), in float64.

    clamp: the least and the most of the activation of that name. row_scale (m), column_scale (n): factors of the
    product. a_scale (m, k / 128), b_scale (n / 128, k / 128), both rounded up: of blocks of 128 numbers along k of a
    row of a, and of 128 x 128 of b, which are multiplied first. dtype: of out, which decides how it is rounded; None
    is that of a, fp16 for fp8 and bf8. "int32", None for int8, is the product of int8, modulo 2^32. With alpha = 0 a
    and b are not looked at, with beta = 0 c is not. lost: a
    share of the magnitude that the bound gains; precision: of `gemm`, which widens the bound. KeyError: unknown word.
    """
    name = dtype or OUT_DTYPE[str(a.dtype)]
    m, n, k = a.shape[0], b.shape[1], a.shape[1]
    if name == "int32":
        exact = a.astype(np.float64) @ b.astype(np.float64)  # below 2^53 for any k below 2^39
        return Result(exact.astype(np.int64).astype(np.int32), np.zeros((m, n)))
    x, magnitude = np.zeros((m, n)), np.zeros((m, n))
    with np.errstate(all="ignore"):
        if alpha != 0:
            wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
            parts = [(wide_a, wide_b, np.float64(1))]
            if a_scale is not None and b_scale is not None:
                of_columns = np.repeat(b_scale.astype(np.float64), BLOCK, axis=0)[:n].T
                factors = [np.multiply.outer(a_scale[:, i].astype(np.float64), one) for i, one in enumerate(of_columns)]
                ranges = (slice(i, i + BLOCK) for i in range(0, k, BLOCK))
                parts = [(wide_a[:, of], wide_b[of], one) for of, one in zip(ranges, factors, strict=True)]
            alpha = float(np.float32(alpha))
            rows = 1.0 if row_scale is None else row_scale.astype(np.float64)[:, None]
            columns = 1.0 if column_scale is None else column_scale.astype(np.float64)
            x += alpha * rows * columns * sum(factor * (a @ b) for a, b, factor in parts)
            magnitude += np.abs(alpha * rows * columns) * sum(
                np.abs(factor) * (np.abs(a) @ np.abs(b)) for a, b, factor in parts
            )
        if c is not None and beta != 0:
            beta = float(np.float32(beta))
            x += beta * c.astype(np.float64)
            magnitude += np.abs(beta * c.astype(np.float64))
        if bias is not None:
            x += bias.astype(np.float64)
            magnitude += np.abs(bias.astype(np.float64))
        low, high = (float(np.float32(end)) for end in clamp)
        out = np.clip(x, low, high) if activation == "clamp" else ACTIVATIONS[activation](x)
        sums = U * (min(k, 6 * np.sqrt(k)) + 6) + lost + LOST_OF_PARTS[precision]
        function = 0.0 if activation in EXACT else 2.0**-20
        tiny = 2.0**-25 if name == "fp16" else 2.0**-100 if function else (k + 1) * 2.0**-126
        bound = (
            ROUNDING[name] * np.abs(out)
            + SLOPES.get(activation, SLOPE) * sums * magnitude
            + function * (np.abs(x) + np.abs(out))
            + tiny
        )
        out = np.where(np.abs(out) >= LARGEST[name], np.copysign(np.inf, out), out)
    return Result(out, bound)


def _combined(one: Array, with_: Array | None, how: str) -> Array:
    if with_ is None:
        return one
    with np.errstate(all="ignore"):
        wide, other = one.astype(np.float32), with_.astype(np.float32)
        return (wide * other if how == "multiply" else wide + other).astype(one.dtype)


def gemm_multi_d(
    a: Array,
    b: Array,
    ds: list[Array],
    *,
    elementwise: str = "add",
    alpha: float = 1.0,
    activation: str = "none",
    a1: Array | None = None,
    b1: Array | None = None,
    a_elementwise: str = "add",
    b_elementwise: str = "add",
) -> Result:
    """activation(alpha a b op d0 op d1), op "add" or "multiply"; each d has shape (m, n), (1, n), (m, 1) or (1, 1).

    a1, b1: combined with a and b first, by a_elementwise and b_elementwise, and rounded to their dtype.
    """
    product = gemm(_combined(a, a1, a_elementwise), _combined(b, b1, b_elementwise), alpha=alpha, dtype="fp32")
    name = OUT_DTYPE[str(a.dtype)]
    x, error = product.out.astype(np.float64), product.bound
    with np.errstate(all="ignore"):
        for d in (d.astype(np.float64) for d in ds):
            x = x * d if elementwise == "multiply" else x + d
            error = error * np.abs(d) if elementwise == "multiply" else error
            error = error + U * np.abs(x) + U * np.abs(d)
        out = ACTIVATIONS[activation](x)
        function = 0.0 if activation in EXACT else 2.0**-20
        bound = (
            ROUNDING[name] * np.abs(out) + SLOPES.get(activation, SLOPE) * error + function * (np.abs(x) + np.abs(out))
        )
        bound += 2.0**-25 if name == "fp16" else 2.0**-100
        out = np.where(np.abs(out) >= LARGEST[name], np.copysign(np.inf, out), out)
    return Result(out, bound)


def flatmm_quant(
    a: Array,
    weight: Array,
    scale: Array,
    *,
    group: int,
    a_scale: Array | None = None,
    quantise_a: bool = False,
    bias: Array | None = None,
    c: Array | None = None,
    beta: float = 1.0,
    activation: str = "none",
    dtype: str,
) -> Result:
    """activation(sum over groups of a_scale[i, g] scale[j, g] (a weight^T of g) + beta c + bias), in float64.

    a (m, k); c (m, n); weight (n, k), numbers before their factors; scale (n, groups); a_scale (m, groups) or (m, 1).
    quantise_a: rows of a become int8 first, max |a| / 127 being their factor, all in fp32 as kernels do: a number
    that lies half a step from two others may become either, so the bound gains a step of every such one. dtype: of
    out.
    """
    k, groups = a.shape[1], scale.shape[1]
    of_a = np.ones((a.shape[0], groups)) if a_scale is None else np.broadcast_to(a_scale, (a.shape[0], groups))
    numbers, either = a.astype(np.float64), np.zeros(a.shape)
    with np.errstate(all="ignore"):
        if quantise_a:
            most = np.abs(a.astype(np.float32)).max(axis=1, initial=0)[:, None]
            step = np.where(most < 2.0**-100, np.float32(0), most / np.float32(127)).astype(np.float32)
            exact = np.where(step == 0, 0, numbers * 127 / most)
            numbers = np.where(np.isfinite(most), np.rint(exact), 0.0)
            either = (np.abs(np.abs(exact - np.floor(exact)) - 0.5) < 2.0**-14).astype(np.float64)
            of_a = np.broadcast_to(np.where(np.isfinite(most), step, np.nan), (a.shape[0], groups))
        wide = weight.astype(np.float64)
        x, magnitude, steps = (np.zeros((a.shape[0], weight.shape[0])) for _ in range(3))
        for g in range(groups):
            part = slice(g * group, min(k, (g + 1) * group))
            factor = of_a[:, g : g + 1].astype(np.float64) * scale[:, g].astype(np.float64)
            x += factor * (numbers[:, part] @ wide[:, part].T)
            magnitude += np.abs(factor) * (np.abs(numbers[:, part]) @ np.abs(wide[:, part]).T)
            steps += np.abs(factor) * (either[:, part] @ np.abs(wide[:, part]).T)
        if c is not None and beta != 0:
            beta = float(np.float32(beta))
            x += beta * c.astype(np.float64)
            magnitude += np.abs(beta * c.astype(np.float64))
        if bias is not None:
            x += bias.astype(np.float64)
            magnitude += np.abs(bias.astype(np.float64))
        out = ACTIVATIONS[activation](x)
        sums = U * (min(k, 6 * np.sqrt(k)) + 6)
        function = 0.0 if activation in EXACT else 2.0**-20
        bound = (
            ROUNDING[dtype] * np.abs(out)
            + SLOPES.get(activation, SLOPE) * (sums * magnitude + steps)
            + function * (np.abs(x) + np.abs(out))
        )
        bound += 2.0**-25 if dtype == "fp16" else 2.0**-100
        out = np.where(np.abs(out) >= LARGEST[dtype], np.copysign(np.inf, out), out)
    return Result(out, bound)


LARGEST_QUANTISED = {"int8": 127.0, "fp8": 448.0}


class Quantised(NamedTuple):
    """Of `gemm_quant`: x, and how far out times out_scale may be from it; what every out_scale must be, to `error`."""

    x: Float
    bound: Float
    scale: Float
    error: Float


def gemm_quant(
    a: Array,
    b: Array,
    bias: Array | None = None,
    *,
    alpha: float = 1.0,
    activation: str = "none",
    row_scale: Array | None = None,
    column_scale: Array | None = None,
    static_scale: float = 0.0,
    dtype: str = "int8",
    lost: float = 0.0,
) -> Quantised:
    """The product of `gemm` of these arguments, quantised to int8 or fp8 by rows, or by static_scale, in float64.

    A scale is max |x| / 127 of its row (fp8: / 448), with the error of that x; 0 below 2^-100, NaN where a row holds a
    NaN or an infinity. bound is half a step (int8), or half of the last place of fp8, more by the error of x. What
    static_scale is too small for is saturated. lost is gemm's.
    """
    one = np.ones(a.shape[0], np.float32) if row_scale is None else row_scale  # so that int8 has numbers
    x, error = gemm(
        a,
        b,
        bias=bias,
        alpha=alpha,
        activation=activation,
        row_scale=one,
        column_scale=column_scale,
        dtype="fp32",
        lost=lost,
    )
    largest = LARGEST_QUANTISED[dtype]
    with np.errstate(all="ignore"):
        most = np.abs(x).max(axis=1, initial=0)
        finite: NDArray[np.bool_] = np.asarray(np.isfinite(x).all(axis=1))
        scale = np.where(finite, np.where(most < 2.0**-100, 0.0, most / largest), np.nan)
        if static_scale > 0:
            scale = np.full(x.shape[0], float(np.float32(static_scale)))
        elif x.shape[1]:
            x = np.where(finite[:, None], x, np.nan)
        lowest = -128.0 if dtype == "int8" and static_scale > 0 else -largest
        x = np.clip(x, lowest * scale[:, None], largest * scale[:, None])
        step = np.broadcast_to(scale[:, None], x.shape)
        half = 0.5 * step if dtype == "int8" else np.maximum(2.0**-4 * np.abs(x), 2.0**-10 * step)
        bound = 1.0001 * half + error + 4 * U * np.abs(x)
    return Quantised(x, bound, scale, error.max(axis=1, initial=0) / largest + 4 * U * np.abs(scale))


def faults(result: Array, reference: Result) -> str:
    """A sentence on elements further from the reference than its bound; "" when there are none.

    NaN and infinity must stand where the reference has them, but next to the largest number, where either will do.
    """
    got = np.asarray(result).astype(np.float64)
    want = reference.out.astype(np.float64)
    with np.errstate(invalid="ignore"):
        good = np.abs(got - want) <= reference.bound
    good |= (got == want) | (np.isnan(got) & np.isnan(want))
    if good.all():
        return ""
    at = tuple(int(i) for i in np.argwhere(~good)[0])
    count = int((~good).sum())
    return f"{count} of {got.size} wrong; [{at}] was {got[at]!r}, must be {want[at]!r} within {reference.bound[at]:.3g}"


def excess(result: Array, reference: Result) -> float:
    """The largest error as a share of its bound; infinite where `faults` has something to say."""
    if faults(result, reference):
        return float("inf")
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.abs(result.astype(np.float64) - reference.out.astype(np.float64)) / reference.bound
    return float(np.nan_to_num(share, nan=0.0, posinf=0.0).max(initial=0.0))


def _matrix(random: Random, shape: tuple[int, ...], layout: str, dtype: str, blank: bool = False) -> Array:
    """Of a layout, its lines packed or with room between them."""
    turned = layout == "column"
    lying = (*shape[:-2], shape[-1], shape[-2]) if turned else shape
    if blank:
        made = random.blank(*lying, dtype=dtype)
    elif dtype == "int8":
        made = random.laid(random.numbers.integers(-128, 128, lying).astype(np.int8))
    else:
        made = random.normal(*lying, dtype=dtype)
    return np.swapaxes(made, -1, -2) if turned else made


def draw(operator: str, random: Random, signature: Signature) -> Call:
    """Of gemm and its kin: sizes at edges of tiles, lines packed or not, numbers of the epilogue."""
    if operator == "grouped_gemm":
        return _draw_groups(random, signature)
    if operator == "gemm_list":
        return _draw_list(random, signature)
    if operator == "gemm_quant":
        return _draw_quantised(random, signature)
    edges, dtype = random.edges, signature["dtype"]
    m, n, k = (random.turn(lengths) for lengths in (edges.lines, edges.lines, edges.steps))
    if edges.products and random.chance(edges.often):
        m, n, k = random.turn(edges.products)
    first = (random.whole(1, 3),) if operator == "batched_gemm" else ()
    to = signature.get("out_dtype", "int32" if dtype == "int8" else dtype)
    turned = signature["layout_out"]
    given: dict[str, Any] = {
        "a": _matrix(random, (*first, m, k), signature["layout_a"], dtype),
        "b": _matrix(random, (*first, k, n), signature["layout_b"], dtype),
        "activation": signature["activation"],
    }
    if first and random.chance(0.3):
        given["b"] = np.broadcast_to(given["b"][:1], given["b"].shape)  # one for all
    if signature.get("c"):
        given |= {"c": _matrix(random, (*first, m, n), turned, to), "beta": random.one((1.0, 0.25, -2.0))}
    if signature.get("bias"):
        given["bias"] = random.normal(n, dtype="fp32")
    if signature.get("scaled"):
        scales = {"row_scale": random.normal(m, dtype="fp32"), "column_scale": random.normal(n, dtype="fp32")}
        given |= {name: scales[name] for name in random.one((tuple(scales), *((name,) for name in scales)))}
    if signature.get("blocks"):
        blocks = -(-k // BLOCK)
        given |= {
            "a_scale": random.normal(m, blocks, dtype="fp32"),
            "b_scale": random.normal(-(-n // BLOCK), blocks, dtype="fp32"),
        }
    if operator == "gemm_multi_d":
        shapes = random.some([(m, n), (1, n), (m, 1), (1, 1)], int(signature["d_count"]))
        given |= {f"d{i}": _matrix(random, shape, turned, dtype) for i, shape in enumerate(shapes)}
        given["elementwise"] = signature["elementwise"]
    elif to != "int32":
        given["alpha"] = random.one((1.0, 1.0, -0.5, 3.0))
    if operator == "gemm" and to != OUT_DTYPE[NUMPY[dtype].name]:
        given["out_dtype"] = to
    if signature.get("precision", "full") != "full":
        given["precision"] = signature["precision"]
    return Call(given, {"out": _matrix(random, (*first, m, n), turned, to, blank=True)})


def _draw_quantised(random: Random, signature: Signature) -> Call:
    """A product of gemm, to bytes by rows or by a scale that some of it is beyond."""
    drawn = draw("gemm", random, {**signature, "out_dtype": "fp32", "layout_out": "row"})
    given = {name: value for name, value in drawn.given.items() if name != "out_dtype"}
    (m, n), to = drawn.made["out"].shape, str(signature["out_dtype"])
    if signature["quantise"] == "tensor":
        given["static_scale"] = random.one((0.02, 0.5, 4.0))
    given["out_dtype"] = to
    return Call(given, {"out": random.blank(m, n, dtype=to), "out_scale": random.blank(m, dtype="fp32")})


def _draw_list(random: Random, signature: Signature) -> Call:
    """Problems of any sizes, one after the other with room between them; some share a matrix, some are empty."""
    edges, dtype = random.edges, str(signature["dtype"])
    a_columns, b_columns = signature["layout_a"] == "column", signature["layout_b"] == "column"
    ends = dict.fromkeys(("a", "b", "out", "bias"), 0)
    rows: list[list[int]] = []
    for _ in range(random.whole(0, 4)):
        m, n, k = (min(random.one(lengths), 200) for lengths in (edges.lines, edges.lines, edges.steps))
        room = random.one((0, 0, 3, 8))
        lda, ldb, ld_out = (m if a_columns else k) + room, (k if b_columns else n) + room, n + room
        lengths = {"a": lda * (k if a_columns else m), "b": ldb * (n if b_columns else k), "out": ld_out * m, "bias": n}
        at = dict(ends)
        if rows and random.chance(0.2) and rows[-1][1:3] == [n, k]:
            at["b"], ldb = rows[-1][5], rows[-1][6]
        rows.append([m, n, k, at["a"], lda, at["b"], ldb, at["out"], ld_out, at["bias"]])
        # Some begin at multiples of 8 elements, as TMA asks for.
        step = random.one((1, 8))
        ends = {name: -(-(end + lengths[name]) // step) * step for name, end in ends.items()}
    given: dict[str, Any] = {
        **{name: _matrix(random, (1, ends[name]), "row", dtype)[0].copy() for name in ("a", "b")},
        "problems": np.array(rows, np.int64).reshape(len(rows), 10),
        "activation": signature["activation"],
        "layout_a": signature["layout_a"],
        "layout_b": signature["layout_b"],
        "alpha": random.one((1.0, -0.5)) if dtype != "int8" else 1.0,
    }
    if signature["bias"]:
        given["bias"] = random.normal(ends["bias"], dtype="fp32")
    return Call(given, {"out": random.blank(ends["out"], dtype={"int8": "int32", "fp8": "bf16"}.get(dtype, dtype))})


def ends_of_groups(given: Mapping[str, Any]) -> list[tuple[int, int]]:
    """The first row of each group of a grouped product, and the end of those that count, as far as there are rows."""
    starts = given["starts"].astype(np.int64)
    counts = np.maximum(given.get("counts", np.diff(starts)), 0).astype(np.int64)
    ends = np.minimum(np.minimum(starts[1:], len(given["a"])), starts[:-1] + counts)
    return list(zip(starts[:-1].tolist(), ends.tolist(), strict=True))


ROWS_OF_GROUPS = (0, 0, 1, 64, 127, 128, 129, 200)


def _draw_groups(random: Random, signature: Signature) -> Call:
    """Some groups without rows, and rows of no group, which stay as they are; starts that fall or end behind all rows
    where nobody checks them."""
    edges, dtype, count = random.edges, signature["dtype"], random.whole(1, 6)
    to = "bf16" if dtype in ("fp8", "int8") else dtype
    n, k = random.turn(edges.lines), random.turn(edges.steps)
    starts = np.cumsum([random.one((0, 0, 3)), *(random.one(ROWS_OF_GROUPS) for _ in range(count))])
    rows = int(starts[-1]) + random.one((0, 0, 5))
    ends = random.one(("right", "right", "right", "falls", "overruns")) if edges.unchecked else "right"
    if ends == "falls":
        starts[-1] = -7
    elif ends == "overruns":
        starts[-1] += random.one((1, 1000, 2**30))
    layout = "row" if signature["layout_b"] == "row" else "column"
    given: dict[str, Any] = {
        "a": _matrix(random, (rows, k), "row", dtype),
        "b": _matrix(random, (count, k, n), layout, dtype),
        "starts": starts.astype(np.int32),
        "activation": signature["activation"],
    }
    if random.chance(0.3):
        given["b"] = np.broadcast_to(given["b"][:1], given["b"].shape)  # one for all
    if signature["c"]:
        given |= {"c": _matrix(random, (rows, n), "row", to), "beta": random.one((1.0, 0.25, -2.0))}
    if signature["bias"]:
        given["bias"] = random.normal(count, n, dtype="fp32")
    if dtype == "fp8":
        blocks = -(-k // BLOCK)
        given["a_scale"] = random.normal(rows, blocks, dtype="fp32")
        given["b_scale"] = random.normal(count, -(-n // BLOCK), blocks, dtype="fp32")
    if dtype == "int8":
        scales = {"row_scale": random.normal(rows, dtype="fp32"), "column_scale": random.normal(count, n, dtype="fp32")}
        given |= {name: scales[name] for name in random.one((tuple(scales), *((name,) for name in scales)))}
    if random.chance(0.3):
        most = np.maximum(np.diff(given["starts"]), 0) + 1
        given["counts"] = random.laid((random.numbers.random(count) * most).astype(np.int32))
        if edges.unchecked and random.chance(0.5):
            given["counts"][random.whole(0, count - 1)] = random.one((-3, 2**31 - 1))
    free = np.ones(rows, bool)
    for first, last in ends_of_groups(given):
        free[first : max(first, last)] = False
    return Call(given, {"out": _matrix(random, (rows, n), "row", to, blank=True)}, untouched={"out": free})
