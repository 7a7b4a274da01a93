# SPDX-License-Identifier: MIT
"""Random products with packed weights, flatmm and flatmm_quant, judged by reference/gemm.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._core.dtypes import NUMPY
from .drawn import Call, Random, Signature
from .gemm import Array, excess, flatmm_quant, gemm

Given = dict[str, Any]


def draw(operator: str, random: Random, signature: Signature) -> Call:
    return _draw_panels(random, signature) if operator == "flatmm" else _draw_words(random, signature)


def _draw_panels(random: Random, signature: Signature) -> Call:
    """Of a weight that is packed as it is: a product of gemm, whose rows of a begin at multiples of 8 elements."""
    from ..api.products import PackedWeight

    dtype, edges = str(signature["dtype"]), random.edges
    m, n, k = random.turn(edges.lines), random.one((1, 63, 64, 65, 130, 200)), random.turn(edges.steps)
    weight = random.normal(n, k, dtype=dtype).copy()
    packed = PackedWeight(weight)
    width = packed.panels.shape[0] * 64
    wide = random.normal(m, -(-k // 8) * 8 + random.turn((0, 0, 8)), dtype=dtype).copy()
    a = np.asfortranarray(wide[:, :k]) if signature["layout_a"] == "column" else wide[:, :k]
    given: dict[str, Any] = {"a": a, "b": packed.panels, "activation": signature["activation"]}
    given["alpha"] = random.one((1.0, -0.5))
    known: dict[str, Any] = {"alpha": given["alpha"]}
    more, same = _beside(random, signature, m, n, width, dtype)
    given, known = given | more, known | same

    def judge(results: dict[str, Array]) -> float:
        right = gemm(a, weight.T, activation=str(given["activation"]), dtype=dtype, **known)
        return excess(results["out"].reshape(m, width)[:, :n], right)

    return Call(given, {"out": random.blank(m, width, dtype=dtype).copy().reshape(m, width // 64, 64)}, judge=judge)


def _beside(random: Random, signature: Signature, m: int, n: int, width: int, dtype: str) -> tuple[Given, Given]:
    """bias, c and beta of panels, and as a product of n columns has them."""
    given, known = dict[str, Any](), dict[str, Any]()
    if signature["bias"]:
        given["bias"] = random.numbers.standard_normal((width // 64, 64), np.float32)
        known["bias"] = given["bias"].reshape(-1)[:n]
    if signature["c"]:
        c = random.normal(m, width, dtype=dtype)
        given |= {"c": np.ascontiguousarray(c).reshape(m, width // 64, 64), "beta": random.one((1.0, 0.25))}
        known |= {"c": c[:, :n], "beta": given["beta"]}
    return given, known


def _draw_words(random: Random, signature: Signature) -> Call:
    """Of a weight that is quantised and packed: rows begin at multiples of 8 elements, as kernels of GPUs ask for.

    Other formats than int4, int8 and fp8 have tests of their own: in place of theirs a call of int4 is drawn.
    """
    from ..api.quantised_weight import QuantisedWeight

    dtype, kind, to = (str(signature[name]) for name in ("dtype", "weights", "out_dtype"))
    kind = kind if kind in ("int8", "fp8") else "int4"
    m, n = random.turn(random.edges.lines), random.one((1, 63, 64, 65, 130, 200))
    k, group = 8 * random.one((1, 3, 4, 5, 8, 13, 32, 64, 129)), random.one((32, 32, 64, 128))
    groups = -(-k // group)
    drawn = random.numbers.standard_normal((n, k), np.float32).astype(NUMPY["fp8"])
    values = random.numbers.integers(-8, 8, (n, k)).astype(np.int8) if kind == "int4" else drawn
    if kind == "int8":
        values = random.numbers.integers(-128, 128, (n, k)).astype(np.int8)
    scale = (random.numbers.random((n, groups), np.float32) + np.float32(0.5)) / 8
    packed = QuantisedWeight.from_values(values, scale, bits=4 if kind == "int4" else 8, group=group)
    width = packed.panels.shape[0] * 64
    a = random.numbers.integers(-128, 128, (m, k)).astype(np.int8) if dtype == "int8" else None
    rows = random.numbers.standard_normal((m, k), np.float32).astype(NUMPY[dtype]) if a is None else a
    wide = np.zeros((m, -(-k // 16) * 16 + random.turn((0, 0, 16))), rows.dtype)
    wide[:, :k] = rows
    given: dict[str, Any] = {"a": wide[:, :k], "b": packed.panels, "b_scale": packed.scale}
    given |= {"group": group, "quantise_a": bool(signature["quantise_a"]), "activation": signature["activation"]}
    more, known = _beside(random, signature, m, n, width, to)
    given |= more
    factors = random.one((0, 1, groups))
    if dtype != "int8" and kind != "int4":  # of weights of bytes under rows as they are, a factor a row
        factors = min(factors, 1)
    if factors and not given["quantise_a"]:
        given["a_scale"] = known["a_scale"] = random.numbers.random((m, factors), np.float32) + np.float32(0.5)
    if to != dtype:
        given["out_dtype"] = to

    def judge(results: dict[str, Array]) -> float:
        right = flatmm_quant(
            given["a"],
            values,
            scale,
            group=group,
            quantise_a=given["quantise_a"],
            activation=str(given["activation"]),
            dtype=to,
            **known,
        )
        return excess(results["out"].reshape(m, width)[:, :n], right)

    return Call(given, {"out": random.blank(m, width, dtype=to).copy().reshape(m, width // 64, 64)}, judge=judge)
