# SPDX-License-Identifier: MIT
"""python steps.py LIBRARY products|words|steps|whole: few rows that are normalised and gated, by weights of 16 bits or
packed words, decode steps of attention in one launch, and of all layers, against float64."""

from __future__ import annotations

import ctypes
import math
import sys
from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln._core.decoder_step import Call, function_of
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


WHOLE: tuple[Any, ...] = (
    (1, 128, 160, 4, 2, [70], 2, True),
    (3, 96, 1120, 5, 5, [5, 40, 71], 1, False),
    (1, 96, 96, 2, 1, [299], 1, True),  # split keys
)
"""Columns of x and between gate and down, heads of q and k, tokens in the cache, layers, whether norms round."""


def rounded(x: Any) -> Any:
    return wide(x.astype(BF16))


def whole(library: tk.Library) -> None:
    """All layers of a decode step in one launch, d64."""
    function = function_of(library.path)
    assert function is not None
    d, room = 64, 304
    for rows, hidden, inner, heads, kv, lengths, count, rounds in WHOLE:
        shapes = [
            ((heads + 2 * kv) * d, hidden),
            (hidden, heads * d),
            (inner, hidden),
            (inner, hidden),
            (hidden, inner),
        ]
        layers = [[(wide(drawn(*shape)) / shape[1] ** 0.5).astype(BF16) for shape in shapes] for _ in range(count)]
        for one in layers:
            one += [(1 + wide(drawn(hidden)) / 8).astype(BF16) for _ in range(2)]
            one += [drawn(rows, kv, room, d) for _ in range(2)]
        angle, x = RANDOM.random((room, d // 2)) * 6, drawn(rows, hidden)
        cos, sin = np.cos(angle).astype(BF16), np.sin(angle).astype(BF16)
        there = [[DeviceArray(array) for array in one] for one in layers]
        table = np.array([[array.pointer.value for array in one] for one in there], np.int64)
        given = {"layers": table, "x": x, "y": np.zeros_like(x), "cos": cos, "sin": sin}
        arrays = {name: DeviceArray(array) for name, array in given.items()}
        head, factors = (wide(drawn(40, hidden)) / hidden**0.5).astype(BF16), (1 + wide(drawn(hidden)) / 8).astype(BF16)
        arrays |= {"head": DeviceArray(head), "last_norm": DeviceArray(factors)}
        arrays |= {"logits": DeviceArray(np.zeros((rows, 40), BF16)), "tokens": DeviceArray(np.zeros(rows, np.int64))}
        arrays["lengths"] = DeviceArray(np.array(lengths, np.int32))
        call = Call(
            size=ctypes.sizeof(Call), dtype=0x410, count=count, rows=rows, hidden=hidden, inner=inner, heads=heads,
            kv_heads=kv, hdim=d, rounds=rounds, vocabulary=40, scale=0.125, epsilon=1e-5, cos_row=32, sin_row=32,
            cache_row=kv * room * d, cache_head=room * d, **{name: one.pointer.value for name, one in arrays.items()},
        )  # fmt: skip
        assert function(call) == (0, "")
        memory = DeviceArray(np.zeros(call.workspace_bytes, np.uint8))
        call.workspace = memory.pointer.value
        assert function(call) == (0, "")
        right = wide(x)
        for one, at in zip(layers, there, strict=True):
            *weights, k, v = map(wide, one)
            right = layer(right, weights[:5], weights[5:], k, v, lengths, wide(cos), wide(sin), rounds)
            for name, array, expected in zip("kv", at[7:], (k, v), strict=True):
                near(f"{name} of {rows} rows", array.host(), expected, 8e-3)
        near(f"layers of {rows} rows", arrays["y"].host(), right, 1e-2)
        logits = wide(arrays["logits"].host())
        near("logits", logits, normed(right, wide(factors), rounds) @ wide(head).T, 1e-2)
        assert arrays["tokens"].host().tolist() == logits.argmax(1).tolist()
        assert arrays["lengths"].host().tolist() == [one + 1 for one in lengths]
        for name, value, part in WRONG:
            was = getattr(call, name)
            setattr(call, name, value)
            status, words = function(call)
            assert status != 0, name
            assert part in words, f"{name}: {words}"
            setattr(call, name, was)


WRONG: tuple[tuple[str, Any, str], ...] = (
    ("size", 8, "call: had another size"), ("rows", 9, "rows: was 9, must be"), ("hidden", 40, "multiple of 32"),
    ("inner", 1 << 17, "inner: was 131072, must be"),
    ("heads", 0, "heads: was 0, must be"), ("hdim", 96, "no decode step of head dim"),
    ("x", 8, "aligned"), ("lengths", 0, "lengths: was null"), ("workspace_bytes", 64, "workspace: had 64 bytes"),
    ("cache_head", 4, "multiple of 8"), ("device", 9, "no Hopper"), ("vocabulary", 36, "vocabulary: was 36, must be"),
    ("logits", 0, "logits: was null"),
)  # fmt: skip


def normed(x: Any, factors: Any, rounds: bool) -> Any:
    x = x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5)
    return rounded((rounded(x) if rounds else x) * factors)


def layer(
    x: Any, weights: Any, norms: Any, k: Any, v: Any, lengths: list[int], cos: Any, sin: Any, rounds: bool
) -> Any:
    """x behind a layer of a decoder, rounded where operators round; k and v have the new tokens."""
    qkv, out, gate, up, down = weights
    d, (rows, of_k) = k.shape[-1], k.shape[:2]

    def turn(y: Any, at: int) -> Any:
        a, b = np.split(y, 2, -1)
        return rounded(np.concatenate([a * cos[at] - b * sin[at], b * cos[at] + a * sin[at]], -1))

    heads = rounded(normed(x, norms[0], rounds) @ qkv.T).reshape(rows, -1, d)
    of_q = heads.shape[1] - 2 * of_k
    attended = np.zeros((rows, of_q, d))
    for b, at in enumerate(lengths):
        q, k[b, :, at], v[b, :, at] = turn(heads[b, :of_q], at), turn(heads[b, of_q:-of_k], at), heads[b, -of_k:]
        for h in range(of_q):
            score = k[b, h * of_k // of_q, : at + 1] @ q[h] / d**0.5
            weight = np.exp(score - score.max())
            attended[b, h] = weight @ v[b, h * of_k // of_q, : at + 1] / weight.sum()
    x = rounded(rounded(attended).reshape(rows, -1) @ out.T + x)
    y = normed(x, norms[1], rounds)
    first = y @ gate.T
    return rounded(rounded(first / (1 + np.exp(-first)) * (y @ up.T)) @ down.T + x)


if __name__ == "__main__":
    {"products": products, "words": words, "steps": steps, "whole": whole}[sys.argv[2]](tk.load(sys.argv[1]))
