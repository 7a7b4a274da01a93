# SPDX-License-Identifier: MIT
"""python steps.py LIBRARY products|words|steps: few rows that are normalised and gated, by weights of 16 bits or packed
words, and decode steps of one launch, against float64."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln._core.dtypes import NUMPY

from tests.executor.ptx.device import DeviceArray

BF16 = NUMPY["bf16"]
RANDOM = np.random.default_rng(7)
PRODUCTS = (1, 44, 72, "pytorch"), (8, 1100, 136, "transformers")
"""Rows, columns, numbers along k, rounding of the norm."""
STEPS: tuple[Any, ...] = (
    (1, 4, 1, 64, 640, [130]),
    (2, 4, 2, 64, 300, [0, 299]),
    (2, 16, 1, 64, 80, [79, 80]),
    (1, 2, 2, 64, 9000, [300]),
)
"""Sequences, heads of q and k, head dim, room, tokens in the cache: of 80 in a room of 80 the new one has none."""


def drawn(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(BF16)


def wide(x: Any) -> Any:
    return np.asarray(x).astype(np.float64)


def turned(weight: Any) -> DeviceArray:
    """A weight (n, k) as b (k, n)."""
    made = DeviceArray(weight)
    tensor = made.exported.managed.tensor
    columns, k = weight.shape
    tensor.shape[0], tensor.shape[1], tensor.strides[0], tensor.strides[1] = k, columns, 1, k
    return made


def near(what: str, got: Any, right: Any, bound: float) -> None:
    worst = float(np.abs(wide(got) - right).max() / max(np.abs(right).max(), 1e-30))
    assert worst <= bound, f"{what}: {worst:.2g} off, {bound} at most"


def products(library: tk.Library) -> None:
    for m, n, k, rounding in PRODUCTS:
        x, w, up, bias = drawn(m, k), drawn(n, k), drawn(n, k), wide(drawn(n)).astype(np.float32)
        gamma = (1 + wide(drawn(k)) / 4).astype(BF16)
        rows = wide(x) / np.sqrt((wide(x) ** 2).mean(1, keepdims=True) + 1e-5)
        rows = wide((wide(rows.astype(BF16) if rounding == "transformers" else rows) * wide(gamma)).astype(BF16))
        normed = {"a_norm": DeviceArray(gamma), "norm_epsilon": 1e-5, "norm_rounding": rounding}
        gate = rows @ wide(w).T
        right: dict[str, tuple[dict[str, Any], Any]] = {}
        right["norm"] = normed, gate
        right["norm, bias"] = {**normed, "bias": DeviceArray(bias), "b_is_constant": True}, gate + bias
        silu = gate / (1 + np.exp(-gate))
        right["gate"] = {**normed, "b_up": turned(up), "activation": "silu"}, silu * (rows @ wide(up).T)
        plain = wide(x) @ wide(w).T
        right["relu"] = {"b_up": turned(up), "activation": "relu"}, np.maximum(plain, 0) * (wide(x) @ wide(up).T)
        for name, (more, expected) in right.items():
            out = DeviceArray(np.zeros((m, n), BF16))
            library.gemm(DeviceArray(x), turned(w), out=out, **more)
            near(f"{name} {m} {n} {k}", out.host(), expected, 6e-3)


WORDS = (1, 128, 136, 32), (8, 192, 2056, 128), (3, 64, 200, 256), (11, 128, 72, 64)
"""Rows, columns, numbers along k, numbers of a group."""


def words(library: tk.Library) -> None:
    for (m, n, k, group), bits in ((one, bits) for one in WORDS for bits in (4, 8, "fp8")):
        x, gamma, c = drawn(m, k), (1 + wide(drawn(k)) / 4).astype(BF16), drawn(m, n)
        bias = wide(drawn(n)).astype(np.float32)
        packed, right = [], []
        for _ in range(2):
            if bits == "fp8":
                values = RANDOM.standard_normal((n, k)).astype(NUMPY["fp8"])
                scale = RANDOM.random((n, -(-k // group))).astype(np.float32)
                packed.append(tk.QuantisedWeight.from_values(values, scale, group=group))
            else:
                packed.append(tk.QuantisedWeight(drawn(n, k), bits=bits, group=group))
            right.append(wide(packed[-1].dequantised()))
        arrays = [(DeviceArray(one.panels), DeviceArray(one.scale)) for one in packed]
        rows = wide((wide(x) / np.sqrt((wide(x) ** 2).mean(1, keepdims=True) + 1e-5) * wide(gamma)).astype(BF16))
        normed = {"a_norm": DeviceArray(gamma), "norm_epsilon": 1e-5, "b_is_constant": True}
        gate = rows @ right[0].T
        up = {"b_up": arrays[1][0], "b_up_scale": arrays[1][1], "activation": "gelu"}
        cases: dict[str, tuple[dict[str, Any], Any]] = {"plain": ({}, wide(x) @ right[0].T)}
        added = {"bias": DeviceArray(bias.reshape(-1, 64)), "c": DeviceArray(c.reshape(m, -1, 64)), "beta": 0.5}
        cases["c, bias"] = added, wide(x) @ right[0].T + bias + wide(c) / 2
        if m <= 8:
            cases["norm"] = normed, gate
            half = np.vectorize(math.erf)(gate / math.sqrt(2)) / 2 + 0.5
            cases["gate"] = {**normed, **up}, gate * half * (rows @ right[1].T)
        for name, (more, expected) in cases.items():
            out = DeviceArray(np.zeros((m, n // 64, 64), BF16))
            library.flatmm_quant(DeviceArray(x), *arrays[0], out=out, group=group, **more)
            near(f"{name} {m} {n} {k} {bits}", out.host().reshape(m, n), expected, 6e-3)


def steps(library: tk.Library) -> None:
    for (batch, of_q, of_k, d, room, lengths), rotates in ((one, turn) for one in STEPS for turn in (True, False)):
        q, k_new, v_new = drawn(batch, 1, of_q, d), drawn(batch, 1, of_k, d), drawn(batch, 1, of_k, d)
        k, v = drawn(batch, room, of_k, d), drawn(batch, room, of_k, d)
        angle = RANDOM.random((room + 1, d // 2)) * 6
        cos, sin = np.cos(angle).astype(BF16), np.sin(angle).astype(BF16)
        arrays = [DeviceArray(one) for one in (q, k, v, k_new, v_new)]
        out = DeviceArray(np.zeros((batch, 1, of_q, d), BF16))
        more: dict[str, Any] = {"rotary_cos": DeviceArray(cos), "rotary_sin": DeviceArray(sin)} if rotates else {}
        given: dict[str, Any] = {"seqlen_k": DeviceArray(np.array(lengths, np.int32)), "max_seqlen_k": room}
        given |= {"attend": True, "out": out, "softmax_scale": 0.125, "rotary_interleaved": False}
        call: Any = library.fmha_fwd_appendkv
        call(*arrays, **given, **more)
        right = np.zeros(out.like.shape)
        for b, at in enumerate(lengths):
            if rotates:
                for one in (q, k_new):
                    x, y = np.split(wide(one[b]), 2, -1)
                    c, s = wide(cos[at]), wide(sin[at])
                    one[b] = np.concatenate([x * c - y * s, y * c + x * s], -1).astype(BF16)
            if at < room:
                k[b, at], v[b, at] = k_new[b, 0], v_new[b, 0]
            for h in range(of_q):
                keys, values = (wide(one[b, : min(at + 1, room), h * of_k // of_q]) for one in (k, v))
                score = keys @ wide(q[b, 0, h]) * 0.125
                weight = np.exp(score - score.max())
                right[b, 0, h] = weight @ values / weight.sum()
        what = f"{batch} {of_q} {of_k} {room} {lengths} {rotates}"
        near(what, out.host(), right, 8e-3)
        for name, array, expected in zip("qkv", arrays, (q, k, v), strict=False):
            near(f"{name} of {what}", array.host(), wide(expected), 4e-3)


if __name__ == "__main__":
    {"products": products, "words": words, "steps": steps}[sys.argv[2]](tk.load(sys.argv[1]))
