# SPDX-License-Identifier: MIT
"""Random products with packed weights, flatmm and flatmm_quant, judged by reference/gemm.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._core.dtypes import NUMPY
from .drawn import Call, Random, Signature
from .gemm import Array, excess, flatmm_quant, gemm

Given = dict[str, Any]
GROUPS = {"mxfp4": 32, "mxfp8": 32, "nvfp4": 16}
"""Numbers along k that share a factor, of formats that say it."""


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
    """Of a weight that is quantised and packed: rows begin at multiples of 8 elements, as kernels of GPUs ask for."""
    dtype, kind, to = (str(signature[name]) for name in ("dtype", "weights", "out_dtype"))
    m, n = random.turn(random.edges.lines), random.one((1, 63, 64, 65, 130, 200))
    k, group = 8 * random.one((1, 3, 4, 5, 8, 13, 32, 64, 129)), random.one((32, 32, 64, 128))
    if kind in GROUPS:
        k, group = -(-k // 32) * 32, GROUPS[kind]
    groups = -(-k // group)
    packed, values, scale = quantised(kind, random.numbers, n, k, group)
    width = packed.panels.shape[0] * 64
    a = random.numbers.integers(-128, 128, (m, k)).astype(np.int8) if dtype == "int8" else None
    rows = random.numbers.standard_normal((m, k), np.float32).astype(NUMPY[dtype]) if a is None else a
    wide = np.zeros((m, -(-k // 16) * 16 + random.turn((0, 0, 16))), rows.dtype)
    wide[:, :k] = rows
    given: dict[str, Any] = {"a": wide[:, :k], "b": packed.panels, "b_scale": packed.scale}
    given |= {"group": group, "quantise_a": bool(signature["quantise_a"]), "activation": signature["activation"]}
    if packed.zero is not None:
        given["b_zero"] = packed.zero
    if kind == "nvfp4":
        given["b_factor"] = packed.factor
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


def quantised(kind: str, numbers: np.random.Generator, n: int, k: int, group: int) -> tuple[Any, Array, Array]:
    """A QuantisedWeight (n, k), its numbers, and their fp32 factors (n, groups); of nvfp4 with the global one in them.

    k is a multiple of 8, of kinds of GROUPS one of 32, whose group is that there.
    """
    from ..api.quantised_weight import E2M1, QuantisedWeight, e8m0

    groups, codes = -(-k // group), np.array(E2M1, np.float32)
    if kind in ("int4", "int8", "fp8"):
        drawn = numbers.standard_normal((n, k), np.float32).astype(NUMPY["fp8"])
        most = {"int4": 8, "int8": 128, "fp8": 0}[kind]
        values = numbers.integers(-most, most, (n, k)).astype(np.int8) if most else drawn
        scale = (numbers.random((n, groups), np.float32) + np.float32(0.5)) / 8
        return QuantisedWeight.from_values(values, scale, bits=4 if most == 8 else 8, group=group), values, scale
    if kind == "uint4":
        bits = numbers.integers(0, 16, (n, k), np.uint8)
        zero = numbers.integers(0, 17, (n, groups), np.uint8)
        halves = ((numbers.random((n, groups)) + 0.5) / 8).astype(np.float16)
        values = bits - np.repeat(zero, group, axis=1)[:, :k].astype(np.float32)
        return QuantisedWeight.from_uint4(bits, halves, zero, group=group), values, halves.astype(np.float32)
    if kind == "mxfp8":
        values = numbers.standard_normal((n, k)).astype(NUMPY["fp8"])
        exponents = numbers.integers(118, 130, (n, groups), np.uint8)
        return QuantisedWeight.from_mxfp8(values, exponents), values.astype(np.float32), e8m0(exponents)
    pairs = numbers.integers(0, 256, (n, groups, group // 2), np.uint8)
    values = codes[np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(n, k)]
    if kind == "mxfp4":
        exponents = numbers.integers(118, 130, (n, groups), np.uint8)
        return QuantisedWeight.from_mxfp4(pairs, exponents), values, e8m0(exponents)
    factors = (numbers.random((n, groups)) + 0.25).astype(NUMPY["fp8"])
    packed = QuantisedWeight.from_nvfp4(pairs.reshape(n, k // 2), factors, 0.375)
    return packed, values, factors.astype(np.float32) * np.float32(0.375)
