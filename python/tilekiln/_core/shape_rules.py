# SPDX-License-Identifier: MIT
"""Shapes of results that are no lengths of arrays: what the functions of the same names in the rooms' host.cpp say.

Each takes the arguments of PyTorch's operator by name, right or wrong: the library refuses what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Given = Mapping[str, Any]


def permuted(given: Given) -> list[Any]:
    x = given["x"]
    return [x.shape[axis] for axis in given["axes"] or range(x.ndim - 1, -1, -1)]


def copied(given: Given) -> list[Any]:
    return list(given["x"].shape)


def turned(given: Given) -> list[Any]:
    batch, *rest = given["x"].shape
    if len(rest) == 3 and given["layout"] == "nchw":
        return [batch, rest[1], rest[2], rest[0]]
    return [batch, rest[-1], *rest[:-1]]


def reduced(given: Given) -> list[Any]:
    x = given["x"]
    gone = {axis % x.ndim for axis in given["axes"]} if given["axes"] else set(range(x.ndim))
    lengths = [1 if axis in gone else x.shape[axis] for axis in range(x.ndim)]
    return lengths if given["keepdim"] else [n for axis, n in enumerate(lengths) if axis not in gone]


def together(given: Given) -> list[Any]:
    shapes = [list(given[name].shape) for name in ("x", "x1", "x2", "x3") if given.get(name) is not None]
    shapes = [[1] * (max(map(len, shapes)) - len(shape)) + shape for shape in shapes]
    return [next((length for length in lengths if length != 1), 1) for lengths in zip(*shapes, strict=True)]


def pooled(given: Given) -> list[Any]:
    shape = list(given["x"].shape)
    first, sides = (2 if given["layout"] == "nchw" else 1), len(shape) - 2

    def numbers(name: str, default: Any) -> list[int]:
        said = list(given[name]) or default
        return said * sides if len(said) == 1 else said

    window = numbers("window", [1])
    stride, dilation, padding = numbers("stride", window), numbers("dilation", [1]), numbers("padding", [0])
    for at in range(sides):
        length = shape[first + at]
        free = length + 2 * padding[at] - dilation[at] * (window[at] - 1) - 1
        count = -(-free // stride[at]) if given["ceil_mode"] else free // stride[at]
        last = given["ceil_mode"] and count * stride[at] >= length + padding[at]
        shape[first + at] = count + (0 if last else 1)
    return shape


def contracted(given: Given) -> list[Any]:
    a, b = given["a"].shape, given["b"].shape
    return [*a[: len(a) - given["k_dims"]], *b[given["batch_dims"] : len(b) - given["k_dims"]]]


def columns(given: Given) -> list[Any]:
    batch, height, width, channels = given["x"].shape
    sides = [
        (length + 2 * given[f"padding_{side}"] - given[f"dilation_{side}"] * (given[f"filter_{side}"] - 1) - 1)
        // given[f"stride_{side}"]
        + 1
        for side, length in (("height", height), ("width", width))
    ]
    patch = given["filter_height"] * given["filter_width"]
    return [given["groups"], batch * sides[0] * sides[1], patch * (channels // given["groups"])]


def chosen(given: Given) -> list[Any]:
    return [given["x"].shape[0], given["topk"]]


def of_groups(given: Given) -> list[Any]:
    return [given["x"].shape[0], given["groups"]]


def routed(given: Given) -> list[Any]:
    return [given["x"].shape[0], given["topk"] + given["shared"]]


def padded(given: Given) -> list[Any]:
    tokens, topk = given["topk_ids"].shape
    return [tokens * topk + given["experts"] * given["unit"] - (1 if tokens > 0 else 0)]


def padded_units(given: Given) -> list[Any]:
    return [(padded(given)[0] + given["unit"] - 1) // given["unit"]]


def totals(given: Given) -> list[Any]:
    return [2]


def listed(given: Given) -> list[Any]:
    return [given["out_length"]]


def latent(given: Given) -> list[Any]:
    *rest, hdim_q = given["q"].shape
    return [*rest, given["hdim_v"] or min(512, hdim_q)]


def _sequences(given: Given, batch: Any) -> Any:
    starts = given.get("cu_seqlens")
    return batch if starts is None else starts.shape[0] - 1


def state(given: Given) -> list[Any]:
    batch, _, channels = given["x"].shape
    return [_sequences(given, batch), channels, given["weight"].shape[1] - 1]


def matrix_state(given: Given) -> list[Any]:
    batch, _, _, hdim_k = given["q"].shape
    nhead, hdim_v = given["v"].shape[2:]
    return [_sequences(given, batch), nhead, hdim_k, hdim_v]


def _each(given: Given, name: str, spatial: int, default: int) -> list[Any]:
    """Numbers of a window, one for each spatial dimension; of padding maybe two."""
    numbers = list(given[name] or [default])
    return numbers * spatial if len(numbers) == 1 else numbers


def _window(given: Given, spatial: int) -> list[tuple[Any, Any, Any]]:
    """By spatial dimension: stride, dilation and all of its padding."""
    padding = _each(given, "padding", spatial, 0)
    around = [padding[i] + padding[i + len(padding) - spatial] for i in range(spatial)]
    stride, dilation = (_each(given, name, spatial, 1) for name in ("stride", "dilation"))
    return list(zip(stride, dilation, around, strict=True))


def images(given: Given) -> list[Any]:
    x, weight = given["x"], given["weight"]
    sides = zip(x.shape[2:], weight.shape[2:], _window(given, x.ndim - 2), strict=True)
    lengths = [(length + pad - tap * (size - 1) - 1) // step + 1 for length, size, (step, tap, pad) in sides]
    return [x.shape[0], weight.shape[0], *lengths]


def pixels(given: Given) -> list[Any]:
    dy, weight = given["dy"], given["weight"]
    sides = zip(dy.shape[2:], weight.shape[2:], _window(given, dy.ndim - 2), strict=True)
    least = [(length - 1) * step + tap * (size - 1) + 1 - pad for length, size, (step, tap, pad) in sides]
    return [dy.shape[0], weight.shape[1] * given["groups"], *(given["lengths"] or least)]


def filters(given: Given) -> list[Any]:
    x, dy = given["x"], given["dy"]
    sides = zip(x.shape[2:], dy.shape[2:], _window(given, x.ndim - 2), strict=True)
    greatest = [(length + pad - (out - 1) * step - 1) // tap + 1 for length, out, (step, tap, pad) in sides]
    return [dy.shape[1], x.shape[1] // given["groups"], *(given["filter"] or greatest)]
