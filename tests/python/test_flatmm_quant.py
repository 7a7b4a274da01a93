# SPDX-License-Identifier: MIT
"""flatmm_quant and QuantisedWeight: int4, int8 and fp8 weights with factors by groups, every ISA against float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln._core.dtypes import NUMPY
from tilekiln.reference import gemm as reference
from tilekiln.reference.panels import GROUPS, quantised

from tests.python import tiles
from tests.python.guard import guarded
from tests.python.test_gemm import TARGETS, draw
from tests.python.test_gemm_lists import check, kernel

F32 = np.float32
# dtype of a, kind of b, whether rows of a are quantised, dtypes of out
KINDS = [
    ("int8", "int4", False, ("bf16", "fp16", "fp32")),
    ("int8", "int8", False, ("bf16", "fp32")),
    ("fp8", "fp8", False, ("bf16", "fp32")),
    ("bf16", "int4", False, ("bf16", "fp32")),
    ("fp16", "int4", False, ("fp16", "fp32")),
    ("bf16", "int4", True, ("bf16", "fp32")),
    ("fp16", "int8", True, ("fp16",)),
    ("bf16", "int8", True, ("bf16",)),
]
# Blocks of 2 or 3 rows, tiles of 256, int4 unpacked from 24 rows, panels of 64, tiles of 128 words; short last groups,
# groups longer than a tile.
SHAPES = [(1, 64, 32, 32), (2, 1, 8, 32), (3, 70, 96, 32), (4, 130, 520, 128), (7, 65, 1096, 32), (16, 200, 1032, 544),
          (259, 64, 264, 128), (30, 70, 96, 32), (9, 130, 1032, 1056), (0, 5, 32, 32), (3, 0, 32, 32),
          (3, 5, 0, 32)]  # fmt: skip


@pytest.fixture(scope="module")
def library(load: Callable[..., tk.Library]) -> tk.Library:
    return load("gemm_linear", targets="all")


@pytest.mark.parametrize(("dtype", "kind", "quantise", "outs"), KINDS, ids=[f"{a}-{b}-{c}" for a, b, c, _ in KINDS])
@pytest.mark.parametrize("target", TARGETS)
def test_against_float64(
    library: tk.Library, target: str, dtype: str, kind: str, quantise: bool, outs: tuple[str, ...]
) -> None:
    of_shapes(library, target, dtype, kind, quantise, outs, SHAPES)


def of_shapes(
    library: tk.Library,
    target: str,
    dtype: str,
    kind: str,
    quantise: bool,
    outs: tuple[str, ...],
    shapes: list[tuple[int, int, int, int]],
) -> None:
    """Products of a drawn weight of any kind, beside the reference, with epilogues in turn; by three threads, too."""
    random = np.random.default_rng(1)
    choices = itertools.cycle(itertools.product(outs, (False, True), ("none", "gelu"), ("group", "row", None)))
    for m, n, k, group in shapes:
        to, with_bias, activation, factors = next(choices)
        if kind in GROUPS:
            k, group = k // 32 * 32, GROUPS[kind]
        weight, values, scale = quantised(kind, random, n, k, group)
        assert np.array_equal(weight.dequantised(), values * np.repeat(scale, group, axis=1)[:, :k])
        groups = -(-k // group)
        wide = draw(random, m, k + 5, dtype, False)
        a = guarded(wide[:, :k].copy(), "after") if m % 2 else wide[:, :k]
        call: dict[str, Any] = {"group": group, "activation": activation, "quantise_a": quantise}
        call |= {"b_factor": weight.factor}
        expected: dict[str, Any] = {}
        if weight.zero is not None:
            call["b_zero"] = guarded(weight.zero, "after")
        if with_bias:
            whole = np.zeros(weight.panels.shape[0] * 64, F32)
            whole[:n] = expected["bias"] = random.standard_normal(n).astype(F32)
            call["bias"] = whole.reshape(-1, 64)
        if factors and not quantise:
            call["a_scale"] = expected["a_scale"] = random.random((m, groups if factors == "group" else 1), F32) + 0.5
        if m % 2:
            c = draw(random, m, weight.panels.shape[0] * 64, to, False)
            call |= {"c": guarded(c.reshape(m, -1, 64), "after"), "beta": 0.5}
            expected |= {"c": c[:, :n], "beta": 0.5}
        panels, of_b = guarded(weight.panels, "after"), guarded(weight.scale, "before")
        out = np.full((m, weight.panels.shape[0], 64), 77, NUMPY[to])
        number = kernel(library, "flatmm_quant", target, a, panels, of_b, out=out, **call)
        library.flatmm_quant(a, panels, of_b, out=out, instance=number, **call)
        want = reference.flatmm_quant(
            a, values, scale, group=group, quantise_a=quantise, activation=activation, dtype=to, **expected
        )
        check(out.reshape(m, out.shape[1] * 64)[:, :n], want)
        again = library.flatmm_quant(a, panels, of_b, out_dtype=to, instance=number, num_threads=3, **call)
        assert again.tobytes() == out.tobytes()


@tiles.of_x86_64
@pytest.mark.parametrize("at", [at for at, kind in enumerate(KINDS) if kind[:3] != ("fp16", "int4", False)])
@pytest.mark.parametrize("target", tiles.ENGINES)
def test_by_tiles(load: Callable[..., tk.Library], target: str, at: int) -> None:
    test_against_float64(load("gemm_linear", targets=tiles.TARGETS), target, *KINDS[at])


def test_every_int4_is_unpacked(library: tk.Library) -> None:
    """One row of a at a time is 1: the product is the weight."""
    values = (np.arange(64 * 64).reshape(64, 64) % 16 - 8).astype(np.int8)
    weight = tk.QuantisedWeight.from_values(values, np.ones((64, 2), F32), bits=4)
    assert np.array_equal(weight.dequantised(), values)
    for dtype in ("int8", "bf16", "fp16"):
        a = np.eye(64).astype(NUMPY[dtype])
        for target in TARGETS:
            number = kernel(library, "flatmm_quant", target, a, weight.panels, weight.scale, out_dtype="fp32")
            made = library.flatmm_quant(a, weight.panels, weight.scale, out_dtype="fp32", instance=number)
            assert np.array_equal(made.reshape(64, 64), values.T), (dtype, target)


def test_every_fp8_is_widened(library: tk.Library) -> None:
    bits = np.arange(256, dtype=np.uint8).view(NUMPY["fp8"])
    values = np.tile(bits[:, None], (1, 8))
    weight = tk.QuantisedWeight.from_values(values, np.ones((256, 1), F32))
    a = np.eye(1, 8).astype(NUMPY["fp8"])
    finite = np.isfinite(values.astype(F32)).all(axis=1)
    for target in TARGETS:
        number = kernel(library, "flatmm_quant", target, a, weight.panels, weight.scale, out_dtype="fp32")
        made = library.flatmm_quant(a, weight.panels, weight.scale, out_dtype="fp32", instance=number).reshape(-1)
        assert np.array_equal(made[finite], values[finite, 0].astype(F32))
        assert np.isnan(made[~finite]).all()


@pytest.mark.parametrize("target", TARGETS)
def test_rows_of_zeros_and_of_no_numbers(library: tk.Library, target: str) -> None:
    random = np.random.default_rng(2)
    weight = tk.QuantisedWeight(random.standard_normal((70, 64)).astype(F32), bits=8)
    a = draw(random, 4, 64, "bf16", False)
    a[0], a[1, 3], a[2, 60] = 0, np.nan, -np.inf
    call: dict[str, Any] = {"quantise_a": True}
    number = kernel(library, "flatmm_quant", target, a, weight.panels, weight.scale, **call)
    made = library.flatmm_quant(a, weight.panels, weight.scale, instance=number, **call).reshape(4, -1).astype(F32)
    assert (made[0] == 0).all()
    assert np.isnan(made[1:3]).all()
    assert np.isfinite(made[3]).all()


def test_quantised_weights_are_near(library: tk.Library) -> None:
    """Half a step of each group, whatever the length of the last; zeros stay zeros."""
    random = np.random.default_rng(3)
    for (n, k), bits, group in itertools.product([(70, 72), (1, 8), (64, 128)], (4, 8), (32, 128)):
        weight = random.standard_normal((n, k)).astype(F32)
        weight[0] = 0
        packed = tk.QuantisedWeight(weight, bits=bits, group=group)
        step = np.repeat(packed.scale.transpose(0, 2, 1).reshape(-1, packed.scale.shape[1])[:n], group, axis=1)[:, :k]
        assert (np.abs(packed.dequantised() - weight) <= 0.5000001 * step).all()
        assert (packed.dequantised()[0] == 0).all()


@pytest.mark.usefixtures("at_hand")
def test_linear() -> None:
    random = np.random.default_rng(4)
    x, weight = draw(random, 6, 64, "bf16", False).reshape(2, 3, 64), random.standard_normal((70, 64)).astype(F32)
    bias = random.standard_normal(70).astype(F32)
    for bits, quantise in ((4, False), (4, True), (8, False)):
        packed = tk.QuantisedWeight(weight, bits=bits)
        made = tk.linear(x, packed, bias, quantise_x=quantise, activation="silu")
        values = np.rint(packed.dequantised().astype(np.float64) / _factors(packed))
        expected = reference.flatmm_quant(
            x.reshape(6, 64), values, _factors(packed)[:, ::32].astype(F32), group=32, bias=bias, activation="silu",
            quantise_a=quantise or bits == 8, dtype="bf16",
        )  # fmt: skip
        assert made.shape == (2, 3, 70)
        check(made.reshape(6, 70), expected)


def _factors(packed: tk.QuantisedWeight) -> np.ndarray:
    rows = packed.scale.transpose(0, 2, 1).reshape(-1, packed.scale.shape[1])[: packed.n]
    return np.repeat(rows, packed.group, axis=1)[:, : packed.k]


@pytest.mark.usefixtures("at_hand")
def test_torch() -> None:
    torch = pytest.importorskip("torch")
    x, weight = torch.randn(5, 64).bfloat16(), torch.randn(70, 64)
    packed = tk.QuantisedWeight(weight)
    made = tk.linear(x, packed)
    assert made.dtype == torch.bfloat16
    assert torch.allclose(made.float(), x.float() @ packed.dequantised().T, rtol=2**-6, atol=2**-5)
    blocks = tk.QuantisedWeight.from_values(weight.to(torch.float8_e4m3fn), torch.rand(3, 2), group=32)
    assert torch.equal(
        blocks.dequantised()[:32, :32], weight.to(torch.float8_e4m3fn).float()[:32, :32] * blocks.scale[0, 0, 0]
    )


ROWS, PANELS, SCALE = np.zeros((2, 64), NUMPY["bf16"]), np.zeros((1, 8, 64, 4), np.uint8), np.zeros((1, 2, 64), F32)
BAD = [
    ({"group": 48}, "group: was 48, must be a multiple of 32"),
    ({"a": ROWS[:, :63]}, "a: k was 63, must be a multiple of 8"),
    ({"b": PANELS[:, :7]}, "b: words was 7, must be 8, the k of a by elements of a word"),
    ({"b": PANELS[:, :, :32]}, "b_scale: lane count was 64, must be 32, the lane count of b"),
    ({"b": PANELS[:, :, :32], "b_scale": SCALE[..., :32]}, "b: lane count was 32, must be 64, always"),
    ({"b": PANELS[..., :2]}, "b: word elements was 2, must be 4, those of its dtype"),
    ({"b_scale": SCALE[:, :1]}, "b_scale: groups was 1, must be 2, the k of a by group, rounded up"),
    ({"a_norm": ROWS[0]}, "a_norm: was given for 2 x 64 by 64 columns, must be null but for up to 8 rows"),
    ({"b_up": PANELS}, "b_up_scale: was null, must be given"),
    ({"b_up": PANELS, "b_up_scale": SCALE}, "b_up: was given for 2 x 64"),
    ({"b_up": PANELS, "b_up_scale": SCALE, "bias": np.zeros((1, 64), F32)}, "bias: was given, must be null with b_up"),
    ({"quantise_a": True, "a_scale": np.ones((2, 1), F32)}, "a_scale: was given with quantise_a, must be null"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "text"), BAD, ids=[text.partition(",")[0] for _, text in BAD])
def test_bad_input(library: tk.Library, change: dict[str, Any], text: str) -> None:
    call: dict[str, Any] = {"a": ROWS, "b": PANELS, "b_scale": SCALE, **change}
    with pytest.raises(tk.ArgumentError) as error:
        library.flatmm_quant(call.pop("a"), call.pop("b"), call.pop("b_scale"), **call)
    assert str(error.value).startswith(text), str(error.value)


def test_no_kernel(library: tk.Library) -> None:
    with pytest.raises(tk.NoKernelError, match="on a CPU int8 weights are multiplied by int8"):
        library.flatmm_quant(ROWS, np.zeros((1, 16, 64, 4), np.int8), SCALE)


BAD_WEIGHTS: list[tuple[Callable[[], Any], str]] = [
    (lambda: tk.QuantisedWeight(np.zeros((3, 12), F32)), "weight: k was 12, must be a multiple of 8"),
    (lambda: tk.QuantisedWeight(np.zeros((3, 8), F32), bits=3), "bits: was 3, must be 4, 8 or 'mxfp4'"),
    (lambda: tk.QuantisedWeight(np.zeros((3, 8), F32), group=16), "group: was 16, must be a multiple of 32"),
    (lambda: tk.QuantisedWeight(np.full((3, 8), np.inf, F32)), "weight: held a NaN or an infinity"),
    (lambda: tk.QuantisedWeight(np.zeros((3, 8))), "weight: dtype was float64, must be float32, float16, bfloat16"),
    (
        lambda: tk.QuantisedWeight.from_values(np.full((3, 8), 9, np.int8), np.ones((3, 1), F32), bits=4),
        "values: held a number beyond -8 to 7",
    ),
    (
        lambda: tk.QuantisedWeight.from_values(np.ones((40, 8), np.int8), np.ones((3, 1), F32)),
        r"scale: shape was \(3, 1\), must be \(40, 1\) or \(2, 1\)",
    ),
    (
        lambda: tk.linear(np.zeros((2, 8), F32), tk.QuantisedWeight(np.zeros((3, 8), F32))),
        "x: dtype was float32, must be fp16 or bf16 with int4",
    ),
    (
        lambda: tk.linear(np.zeros((2, 8), F32), np.zeros((3, 8), F32), quantise_x=True),
        "quantise_x: was True, must be False",
    ),
]


@pytest.mark.parametrize(("call", "text"), BAD_WEIGHTS, ids=[text.partition(",")[0] for _, text in BAD_WEIGHTS])
def test_bad_weights(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(tk.ArgumentError, match=text):
        call()
