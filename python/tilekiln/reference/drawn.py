# SPDX-License-Identifier: MIT
"""Random problems of operators: a call drawn by a seed for the signature of a kernel, at the edges of a device.

Each operator's reference has `draw(operator, random, signature) -> Call`; `tilekiln.bench.answers.answer` judges what
was made of one. Tests, the fuzzer and the tools of GPUs run these, each on its own kind of arrays (tests/cases.py).
"""

from __future__ import annotations

import random as random_
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._core.dtypes import NUMPY

Array = NDArray[Any]
Signature = Mapping[str, Any]


class Call(NamedTuple):
    """Arguments of a call.

    given: arrays and numbers that it reads, by name. made: its results as they lie before it, of bytes 0xFF. over: of
    results that lie where an argument does, the name of that argument. judge: the error of results as a share of a
    bound, where that of tilekiln.bench.answers is not the device's. said: what it was drawn from. untouched: by
    name of a result, which of its rows the call must leave as they are.
    """

    given: dict[str, Any]
    made: dict[str, Array]
    over: dict[str, str] = {}  # noqa: RUF012  # nobody changes it
    judge: Callable[[dict[str, Array]], float] | None = None
    said: str = ""
    untouched: dict[str, Array] = {}  # noqa: RUF012

    def __str__(self) -> str:
        if self.said:
            return self.said

        def said(value: Any) -> str:
            if not isinstance(value, np.ndarray):
                return repr(value)
            steps = [stride // value.itemsize for stride in value.strides]
            return f"{value.dtype.name}{list(value.shape)} strides {steps}"

        words = [f"{name}={said(value)}" for name, value in {**self.given, **self.made}.items()]
        return ", ".join([*words, *(f"{name} over {other}" for name, other in self.over.items())])


class Edges(NamedTuple):
    """Lengths at which kernels of a device change what they do, and how large problems may be there."""

    columns: Sequence[int]
    long: Sequence[int] = ()  # columns of three problems in ten
    rows: Sequence[int] = (0, 1, 2, 5, 33)
    few: Sequence[int] = (0, 1, 2, 5)  # rows of more than 4,096 columns
    times: int = 1  # of the lengths that a drawer chooses itself
    lines: Sequence[int] = (0, 1, 2, 7, 8, 31, 64, 65, 127, 128, 129, 150)  # m and n of a product
    steps: Sequence[int] = (0, 1, 8, 15, 31, 32, 33, 64, 100)  # k
    products: Sequence[tuple[int, int, int]] = ()  # m, n, k of some
    often: float = 0.4  # share of those
    unchecked: bool = False  # starts of groups, which the kernel reads


EDGES = {
    "cpu": Edges(
        columns=(1, 7, 8, 33, 64, 67, 257, 515, 2056, 4099),
        long=(8192, 8201, 20011),
        rows=(0, 1, 2, 3, 5, 7, 33),
        products=(
            *((1, 1, 1), (1, 64, 3), (2, 1, 7), (3, 7, 2), (4, 8, 5), (5, 9, 4), (6, 16, 1), (7, 17, 6), (12, 64, 9)),
            *((13, 65, 8), (16, 63, 127), (17, 31, 128), (31, 13, 129), (119, 5, 33), (120, 6, 17), (241, 3, 65)),
            *((1, 255, 255), (2, 256, 256), (3, 257, 257), (11, 300, 513), (6, 40, 1031), (485, 70, 19)),
            *((1, 100, 50), (100, 1, 50), (3, 2, 4500)),
        ),
    ),
    "executor": Edges(
        columns=(1, 3, 8, 64, 67, 256, 257, 1000, 1032, 2056, 4099),
        long=(20011, 33032, 33032),  # rows that registers do not hold
        rows=(0, 1, 3, 7, 17),
        few=(0, 1, 3, 7),
        lines=(1, 2, 7, 8, 63, 64, 65, 128, 129, 257),
        steps=(0, 1, 8, 15, 16, 63, 64, 65, 200),
        products=(  # whose steps a cluster shares; long ones, five tiles for three processors: by way of memory
            *((m, n, k) for m in (1, 16, 64, 70, 128) for n in (64, 100, 200, 257) for k in (1000, 1032, 2064)),
            *((16, 600, 6152), (128, 600, 6152), (16, 600, 8208), (128, 600, 8208)),
        ),
        unchecked=True,
    ),
    "hip": Edges(columns=(1, 3, 8, 64, 67, 256, 257, 1032, 4099)),
    "gpu": Edges(
        columns=(1, 3, 8, 64, 67, 256, 257, 1000, 1024, 1032, 2056, 4096, 4099, 8192, 8200, 20011, 40000, 65536),
        rows=(0, 1, 3, 7, 17, 130, 1025),
        few=(0, 1, 2, 5, 33),
        times=25,
        lines=(0, 1, 2, 7, 8, 31, 63, 64, 65, 100, 128, 129, 200, 255, 256, 257, 300, 520),
        steps=(0, 1, 8, 15, 16, 17, 63, 64, 65, 128, 200, 256, 257, 600),
        products=tuple(  # whose steps several blocks share
            (m, n, k)
            for m in (1, 2, 16, 63, 64, 65, 128, 130)
            for n in (7, 64, 129, 256, 520)
            for k in (1024, 2000, 4104)
        ),
        unchecked=True,
    ),
}
"""By device; executor: that of PTX."""
OUTS = [(m, n) for m in (100, 128) for n in (576, 700, 768)] + [(m, 256) for m in (200, 256)]
WIDE = EDGES["executor"]._replace(products=tuple((m, n, k) for m, n in OUTS for k in (16, 65, 300)), often=1.0)
"""As many columns as the executor's three processors have in tiles of 192 or of 256; or what two have that share b.

Every size in turn, to rows of out: that each form of the kernels has its sizes is then no matter of luck. A product
whose out is turned is computed as its transpose, whose sizes are of another form.
"""
ROOM = ((0, 0), (0, 0), (16, 8), (3, 1))
"""Elements between rows, and before the first: packed, further apart, and further apart at an odd address."""


class Random:
    """Decisions of a seed in order, and arrays of them."""

    def __init__(self, seed: object, edges: Edges) -> None:
        self.draw = random_.Random(str(seed))
        self.numbers = np.random.default_rng(self.draw.randrange(2**63))
        self.edges, self.times = edges, edges.times
        self.left: dict[Sequence[Any], list[Any]] = {}

    def one(self, values: Sequence[Any]) -> Any:
        return self.draw.choice(values)

    def turn(self, values: Sequence[Any]) -> Any:
        """One of them; each has its turn before any has another, so that no edge is left to luck."""
        left = self.left.setdefault(values, [])
        if not left:
            left += self.some(values, len(values))
        return left.pop()

    def whole(self, least: int, most: int) -> int:
        return self.draw.randint(least, most)

    def chance(self, share: float) -> bool:
        return self.draw.random() < share

    def some(self, values: Sequence[Any], count: int) -> list[Any]:
        """So many of them, in any order."""
        return self.draw.sample(values, count)

    def matrix(self) -> tuple[int, int]:
        """Rows and columns."""
        edges = self.edges
        columns = self.turn(edges.long if edges.long and self.chance(0.3) else edges.columns)
        return self.turn(edges.few if columns > 4096 else edges.rows), columns

    def shape(self, ndim: int, most: int) -> list[int]:
        """Lengths of 1, of 2, any and a multiple of 8."""
        return [self.one((1, 2, self.whole(1, most), self.whole(1, most // 8 + 1) * 8)) for _ in range(ndim)]

    def laid(self, array: Array) -> Array:
        """The same values; rows packed or with room between them."""
        room, start = self.turn(ROOM)
        flat = np.zeros(int(np.prod(array.shape[:-1])) * (array.shape[-1] + room) + start, array.dtype)
        flat.view(np.uint8)[...] = 0xFF
        spread = flat[start:].reshape(*array.shape[:-1], array.shape[-1] + room)[..., : array.shape[-1]]
        spread[...] = array
        return spread

    def normal(self, *shape: int, dtype: str, scale: float = 1.0) -> Array:
        """Normal numbers of a deviation; of more dimensions than one, laid."""
        made = (self.numbers.standard_normal(shape, np.float32) * np.float32(scale)).astype(NUMPY[dtype])
        return self.laid(made) if len(shape) > 1 else made

    def bits(self, *shape: int, size: int) -> Array:
        """Any bytes, as unsigned words of `size`."""
        return self.numbers.integers(0, 256, (*shape[:-1], shape[-1] * size), np.uint8).view(f"u{size}")

    def blank(self, *shape: int, dtype: str | np.dtype[Any]) -> Array:
        """A result before the call: NaN where its dtype has one, -1 of integers."""
        kind = NUMPY[dtype] if isinstance(dtype, str) else dtype
        made = np.full((*shape, kind.itemsize), 0xFF, np.uint8).view(kind)[..., 0]
        return self.laid(made) if len(shape) > 1 else made


MODULES = {
    **dict.fromkeys(("rmsnorm2d_rdquant", "layernorm2d_rdquant", "smoothquant", "moe_smoothquant"), "quantised"),
    **dict.fromkeys(("silu_and_mul", "silu_and_mul_bwd", "gelu_and_mul", "gelu_and_mul_bwd"), "gated"),
    **dict.fromkeys(("rmsnorm2d_bwd", "layernorm2d_bwd"), "norm_backward"),
    **dict.fromkeys(("permute", "copy", "transpose", "batched_transpose", "img2col"), "moves"),
    **dict.fromkeys(("topk_softmax", "moe_sorting", "fused_moe"), "moe"),
    **dict.fromkeys(("batched_gemm", "gemm_multi_d", "grouped_gemm", "gemm_list"), "gemm"),
    "gemm_quant": "gemm",
    **dict.fromkeys(("flatmm", "flatmm_quant"), "panels"),
    "cross_entropy_bwd": "cross_entropy",
    **dict.fromkeys(("conv_fwd", "conv_bwd_data", "conv_bwd_weight"), "conv"),
    "pooling_bwd": "pooling",
    "causal_conv1d_bwd": "causal_conv1d",
    "gated_delta_rule_bwd": "gated_delta_rule",
    "topk_gating": "gating",
    "fmha_mla_decode": "mla",
}
"""The module of an operator's reference, where it has a drawer and another name, as `reference` of operator.yaml."""


def drawer(operator: str) -> Callable[[str, Random, Signature], Call] | None:
    """`draw` of the operator's reference; None where there is none."""
    try:
        module = import_module(f"tilekiln.reference.{MODULES.get(operator, operator)}")
    except ModuleNotFoundError:
        return None
    return getattr(module, "draw", None)


def draw(operator: str, random: Random, signature: Signature) -> Call:
    """A call that a kernel of this signature (values by axis) serves. LookupError: nobody draws for the operator."""
    own = drawer(operator)
    if own is None:
        raise LookupError(f"tilekiln.reference has no draw of {operator}")
    return own(operator, random, signature)
