"""Random problems of derivatives, losses, turned heads, reductions, patches and routing, against float64.

`put` makes a device's array of a NumPy array, `back` the other way round; each check says what is wrong, or "".
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln.dtypes import FLOATS
from tilekiln.reference import cross_entropy, gated, moe, moves, norm_backward, reduce, rotary, rows

DTYPES = FLOATS
COLUMNS = (1, 3, 8, 64, 67, 256, 257, 1000, 1032, 2056, 4099)
OPERATIONS = ("sum", "mean", "max", "min")


class Device:
    """Two directions, and how large problems may be: 1 under an executor, more on a GPU."""

    def __init__(self, put: Callable[[np.ndarray], Any], back: Callable[[Any, np.ndarray], np.ndarray], size: int = 1):
        self.put, self.back, self.size = put, back, size


def norm_gradients(
    layer: bool, device: Device, library: tk.Library, draw: random.Random, numbers: np.random.Generator, dtype: str
) -> str:
    m, n = draw.choice((0, 1, 3, 17, 40 * device.size)), draw.choice((*COLUMNS, *((8200, 20011) * (device.size > 1))))
    if n < 100 and draw.random() < 0.3:
        m = 700  # every team of a block has several rows
    kind = DTYPES[dtype]
    dy, x = (numbers.standard_normal((m, n), np.float32) for _ in range(2))
    dy, x = dy.astype(kind), (x + 3).astype(kind)
    gamma = numbers.standard_normal(n, np.float32).astype(kind)
    wide = x.astype(np.float64)
    mean = wide.mean(axis=1).astype(np.float32)
    middle = mean[:, None].astype(np.float64) if layer else 0
    inverse = (1 / np.sqrt(((wide - middle) ** 2).mean(axis=1) + 1e-5)).astype(np.float32)
    right = norm_backward.backward(dy, x, gamma, mean if layer else None, inverse)
    given = [dy, x, gamma, *([mean] if layer else []), inverse]
    results = {"dx": np.full_like(x, np.nan), "dgamma": np.full_like(gamma, np.nan)}
    if layer and draw.random() < 0.7:
        results["dbeta"] = np.full_like(gamma, np.nan)
    arrays = [device.put(one) for one in given]
    made = {name: device.put(one) for name, one in results.items()}
    if draw.random() < 0.3:
        made["dx"] = arrays[0]  # in place
    (library.layernorm2d_bwd if layer else library.rmsnorm2d_bwd)(*arrays, **made)
    worst = 0.0
    for (name, one), wanted, error in zip(results.items(), right[:3], right.errors, strict=False):
        worst = max(worst, rows.excess(device.back(made[name], one), wanted, error))
    return "" if worst <= 1 else f"{(m, n)} {sorted(results)}: {worst}"


def reductions(
    device: Device, library: tk.Library, draw: random.Random, numbers: np.random.Generator, dtype: str
) -> str:
    ndim = draw.randint(1, 4)
    most = {1: 40000, 2: 300, 3: 40, 4: 12}[ndim] * (3 if device.size > 1 else 1)
    shape = [draw.choice((1, 2, draw.randint(1, most), draw.randint(1, most // 8 + 1) * 8)) for _ in range(ndim)]
    x = numbers.standard_normal(shape, np.float32).astype(DTYPES[dtype])
    if draw.random() < 0.1:
        x.reshape(-1)[draw.randrange(x.size)] = draw.choice((np.nan, np.inf, -np.inf))
    if ndim > 1 and draw.random() < 0.3:
        x = np.ascontiguousarray(x.transpose(order := draw.sample(range(ndim), ndim))).transpose(np.argsort(order))
    axes = draw.sample(range(ndim), draw.randint(1, ndim))
    operation, keepdim = draw.choice(OPERATIONS), draw.random() < 0.3
    y = np.full(reduce.reduce(x, axes, operation, keepdim).shape, np.nan, x.dtype)
    made = device.put(y)
    library.reduce(device.put(x), axes=axes, operation=operation, keepdim=keepdim, y=made)
    worst = reduce.excess(device.back(made, y), x, axes, operation, keepdim)
    return "" if worst <= 1 else f"{x.shape} {x.strides} {axes} {operation}: {worst}"


def patches(device: Device, library: tk.Library, draw: random.Random, numbers: np.random.Generator, _: str) -> str:
    groups, size = draw.choice((1, 1, 2, 3)), draw.choice((1, 2, 4, 8))
    channels = groups * draw.choice((1, 3, 4, 8, 16, 40))
    shape = (draw.randint(1, 3), draw.randint(1, 9), draw.randint(1, 9), channels)
    x = numbers.integers(0, 256, (*shape[:-1], shape[-1] * size), np.uint8).view(f"u{size}")
    how: dict[str, Any] = {"groups": groups}
    for name, least, most in (("filter", 1, 3), ("stride", 1, 3), ("dilation", 1, 2), ("padding", 0, 3)):
        how[name] = (draw.randint(least, most), draw.randint(least, most))
    sides = [shape[1 + i] + 2 * how["padding"][i] - how["dilation"][i] * (how["filter"][i] - 1) for i in (0, 1)]
    if min(sides) < 1:
        how |= {"filter": (1, 1)}
    expected = moves.img2col(x, **how)
    made = device.put(np.zeros(expected.shape, x.dtype))
    library.img2col(device.put(x), **how, y=made)
    return "" if np.array_equal(device.back(made, expected), expected) else f"{shape} {size} bytes {how}"


def routing(device: Device, library: tk.Library, draw: random.Random, numbers: np.random.Generator, dtype: str) -> str:
    tokens, experts = draw.choice((0, 1, 5, 33 * device.size)), draw.choice((1, 3, 8, 33, 64, 128, 257, 511, 513, 700))
    topk, renormalise = draw.randint(1, min(experts, 9)), draw.random() < 0.5
    x = (3 * numbers.standard_normal((tokens, experts), np.float32)).astype(DTYPES[dtype])
    if tokens > 1 and draw.random() < 0.3:  # ties; a row of NaN
        x[0], x[1, draw.randrange(experts)] = np.round(x[0].astype(np.float32)), draw.choice((np.nan, np.inf, -np.inf))
    expected, order = moe.topk_softmax(x, topk, renormalise)
    weights, indices = np.full((tokens, topk), np.nan, np.float32), np.full((tokens, topk), -1, np.int32)
    to, where = device.put(weights), device.put(indices)
    library.topk_softmax(device.put(x), topk=topk, renormalise=renormalise, weights=to, indices=where)
    if not np.array_equal(device.back(where, indices), order):
        return f"{x.shape} {topk}: other experts"
    bound = (experts / 16 + 200 + (topk + 200) * renormalise) * 2.0**-24
    made = device.back(to, weights)
    sound = np.allclose(made, expected, rtol=bound, atol=2.0**-125, equal_nan=True)
    return "" if sound else f"{x.shape} {topk} renormalise {renormalise}: weights"


def sorting(device: Device, library: tk.Library, draw: random.Random, numbers: np.random.Generator, _: str) -> str:
    tokens, topk = draw.choice((0, 1, 7, 300, 600 * device.size)), draw.randint(1, 8)
    experts, unit = draw.choice((1, 5, 8, 64, 600)), draw.choice((1, 16, 32))
    ids = numbers.integers(-1 if draw.random() < 0.3 else 0, experts, (tokens, topk)).astype(np.int32)
    given = numbers.random((tokens, topk), np.float32)
    how: dict[str, Any] = {"skip_empty": draw.random() < 0.5}
    more: dict[str, np.ndarray] = {}
    if draw.random() < 0.3:
        more["expert_mask"] = numbers.integers(0, 2, experts).astype(np.int32)
    if draw.random() < 0.3:
        more["local_tokens"] = np.array([draw.choice((-1, 0, tokens // 2, tokens + 5))], np.int32)
    plain = {name: int(one[0]) if name == "local_tokens" else one for name, one in more.items()}
    right = moe.moe_sorting(ids, given, experts, unit, **how, **plain)
    room = tokens * topk + experts * unit - (1 if tokens else 0)
    results = {
        "sorted_token_ids": np.full(room, -1, np.int32),
        "sorted_weights": np.full(room, -1, np.float32),
        "sorted_expert_ids": np.full(-(-room // unit), -1, np.int32),
        "total_tokens_post_pad": np.zeros(2, np.int32),
    }
    if tokens:
        results["out"] = np.ones((tokens, draw.choice((1, 8, 67))), np.float16)
    made = {name: device.put(one) for name, one in results.items()}
    library.moe_sorting(
        device.put(ids), device.put(given), experts=experts, unit=unit, **how, **made,
        **{name: device.put(one) for name, one in more.items()},
    )  # fmt: skip
    got = {name: device.back(made[name], one) for name, one in results.items()}
    used = right.totals[0]
    sound = tuple(got["total_tokens_post_pad"]) == right.totals
    sound = sound and got["sorted_token_ids"][:used].tolist() == right.token_ids
    sound = sound and np.array_equal(got["sorted_weights"][:used], np.array(right.weights, np.float32))
    sound = sound and got["sorted_expert_ids"][: used // unit].tolist() == right.expert_ids
    sound = sound and (got["sorted_token_ids"][used:] == -1).all() and not got.get("out", np.zeros(1)).any()
    return "" if sound else f"{ids.shape} {experts} experts, unit {unit} {how} {sorted(more)}"


def placed(draw: random.Random, array: np.ndarray) -> np.ndarray:
    """The same, its rows packed, further apart, or further apart at an odd address."""
    room, start = draw.choice(((0, 0), (0, 0), (16, 8), (3, 1)))
    flat = np.zeros(int(np.prod(array.shape[:-1])) * (array.shape[-1] + room) + start, array.dtype)
    spread = flat[start:].reshape(*array.shape[:-1], array.shape[-1] + room)[..., : array.shape[-1]]
    spread[...] = array
    return spread


def gate_gradients(
    device: Device, library: tk.Library, draw: random.Random, numbers: np.random.Generator, dtype: str
) -> str:
    m, n = draw.choice((0, 1, 3, 17, 20 * device.size)), draw.choice((*COLUMNS, *((20011,) * (device.size > 1))))
    dy, gate, up = (
        placed(draw, (by * numbers.standard_normal((m, n), np.float32)).astype(DTYPES[dtype]))
        for by in (1, draw.choice((1, 20)), 1)
    )
    results = [placed(draw, np.full((m, n), np.nan, dy.dtype)) for _ in range(2)]
    d, g, u = (device.put(one) for one in (dy, gate, up))
    dgate, dup = (device.put(one) for one in results)
    if draw.random() < 0.3:
        dgate, dup = g, u
        results = [gate, up]
    library.silu_and_mul_bwd(d, g, u, dgate=dgate, dup=dup)
    worst = gated.gradient_excess(device.back(dgate, results[0]), device.back(dup, results[1]), dy, gate, up)
    return "" if worst <= 1 else f"{(m, n)} {dy.strides} {gate.strides}: {worst}"


def turned_heads(
    device: Device, library: tk.Library, draw: random.Random, numbers: np.random.Generator, dtype: str
) -> str:
    shape = (
        draw.choice((0, 1, 2)),
        draw.choice((1, 7, 30)),
        draw.choice((1, 3, 8)),
        draw.choice((1, 2, 16, 64, 67, 128)),
    )
    half, table = draw.choice((0, 0, 4, 8)) or max(1, shape[3] // 2), draw.choice((dtype, "fp32"))
    if 2 * half > shape[3]:
        half = max(1, shape[3] // 2)
    if 2 * half > shape[3]:  # a head of one element has no pair
        shape = (*shape[:3], 2)
    given: dict[str, Any] = {"interleaved": draw.random() < 0.5, "conjugate": draw.random() < 0.5}
    given["start"] = draw.choice((0, 0, 5))
    positions = None
    if draw.random() < 0.5:  # some of them are outside of the tables
        kind = draw.choice((np.int32, np.int64))
        positions = numbers.integers(-8, 60, shape[:2]).astype(kind)
    angles = numbers.standard_normal((40, half))
    cos, sin = (placed(draw, f(angles).astype(DTYPES[table])) for f in (np.cos, np.sin))
    x = placed(draw, numbers.standard_normal(shape, np.float32).astype(DTYPES[dtype]))
    y = placed(draw, np.full(shape, np.nan, x.dtype))
    right = rotary.rotary(x, cos, sin, positions, **given)
    more = {} if positions is None else {"positions": device.put(positions)}
    on_device = device.put(x)
    made = device.put(y)
    if draw.random() < 0.3:
        made, y = on_device, x
    library.rotary(on_device, device.put(cos), device.put(sin), **given, **more, y=made)
    worst = rows.excess(device.back(made, y), *right)
    return "" if worst <= 1 else f"{shape} {x.strides} half {half} of {table} {given} {sorted(more)}: {worst}"


def losses(
    backward: bool, device: Device, library: tk.Library, draw: random.Random, numbers: np.random.Generator, dtype: str
) -> str:
    m, n = (
        draw.choice((0, 1, 3, 17, 20 * device.size)),
        draw.choice((*COLUMNS, 20011, *((128256,) * (device.size > 1)))),
    )
    logits = placed(draw, (draw.choice((1, 4, 30)) * numbers.standard_normal((m, n), np.float32)).astype(DTYPES[dtype]))
    labels = numbers.integers(0, n, m).astype(draw.choice((np.int32, np.int64)))
    labels[2::3], labels[3::4] = -100, n + 5
    given: dict[str, Any] = draw.choice(
        (
            {},
            {"label_smoothing": 0.1},
            {"logit_scale": -0.7, "label_smoothing": 0.2, "lse_square_scale": 1e-2, "total_classes": n + 50000},
            {"first_class": 2, "logit_scale": 0.5},
        )
    )
    right = cross_entropy.cross_entropy(logits, labels, **given)
    if backward:
        dloss, lse = numbers.standard_normal(m, np.float32), right.lse.astype(np.float32)
        dlogits = placed(draw, np.full((m, n), np.nan, logits.dtype))
        x, made = device.put(logits), device.put(dlogits)
        if draw.random() < 0.3:
            made, dlogits = x, logits
        library.cross_entropy_bwd(
            device.put(dloss), x, device.put(labels), device.put(lse), **given, dlogits=made
        )  # fmt: skip
        worst = cross_entropy.gradient_excess(device.back(made, dlogits), dloss, logits, labels, lse, **given)
        return "" if worst <= 1 else f"{(m, n)} {logits.strides} {given}: {worst}"
    results = {name: np.full(m, np.nan, np.float32) for name in ("loss", "lse")}
    to = {name: device.put(one) for name, one in results.items()}
    more = {}
    if draw.random() < 0.2:
        known = right.lse.astype(np.float32)
        more["precomputed_lse"] = device.put(known)
        right = cross_entropy.cross_entropy(logits, labels, known, **given)
    library.cross_entropy(device.put(logits), device.put(labels), **given, **more, **to)
    worst = cross_entropy.excess([device.back(to[name], one) for name, one in results.items()], right)
    return "" if worst <= 1 else f"{(m, n)} {logits.strides} {given} {sorted(more)}: {worst}"


CHECKS: dict[str, Callable[..., str]] = {
    "silu_and_mul_bwd": gate_gradients,
    "rotary": turned_heads,
    "cross_entropy": lambda *of: losses(False, *of),
    "cross_entropy_bwd": lambda *of: losses(True, *of),
    "rmsnorm2d_bwd": lambda *of: norm_gradients(False, *of),
    "layernorm2d_bwd": lambda *of: norm_gradients(True, *of),
    "reduce": reductions,
    "img2col": patches,
    "topk_softmax": routing,
    "moe_sorting": sorting,
}
"""By family: a function of a device, a library, two generators and a dtype."""
