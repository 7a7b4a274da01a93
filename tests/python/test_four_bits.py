# SPDX-License-Identifier: MIT
"""Weights of MXFP4 and of uint4 with zero points, as checkpoints have them: every ISA against float64, bad input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln._core.dtypes import NUMPY
from tilekiln.reference.panels import GROUPS, quantised

from tests.python.test_cases import draw_and_judge
from tests.python.test_flatmm_quant import of_shapes
from tests.python.test_gemm import TARGETS, draw
from tests.python.test_gemm_lists import kernel

F32 = np.float32
# Tiles of 256 rows, blocks of 2 or 3, panels of 64, tiles of 128 words, short last groups, groups longer than a tile.
SHAPES = [(1, 64, 32, 32), (2, 1, 8, 32), (3, 70, 96, 32), (4, 130, 520, 128), (16, 200, 1056, 544),
          (259, 64, 264, 128), (30, 70, 96, 32), (0, 5, 32, 32), (3, 0, 32, 32), (3, 5, 0, 32)]  # fmt: skip


@pytest.fixture(scope="module")
def library(load: Callable[..., tk.Library]) -> tk.Library:
    return load("four_bits", targets="all")


@pytest.mark.parametrize("kind", ["mxfp4", "uint4", "mxfp8", "nvfp4"])
@pytest.mark.parametrize(("dtype", "quantise"), [("bf16", False), ("fp16", False), ("bf16", True), ("fp16", True)])
@pytest.mark.parametrize("target", TARGETS)
def test_against_float64(library: tk.Library, target: str, dtype: str, quantise: bool, kind: str) -> None:
    if quantise and kind in ("mxfp8", "nvfp4"):
        weight, _, _ = quantised(kind, np.random.default_rng(1), 64, 32, GROUPS[kind])
        rows, call = np.zeros((1, 32), NUMPY[dtype]), {"group": weight.group, "quantise_a": True}
        with pytest.raises(tk.NoKernelError, match="rows stay fp16 or bf16"):
            library.flatmm_quant(rows, weight.panels, weight.scale, **call)
        return
    of_shapes(library, target, dtype, kind, quantise, (dtype, "fp32"), SHAPES)


@pytest.mark.parametrize("target", TARGETS)
def test_every_code_and_factor(library: tk.Library, target: str) -> None:
    """One row of a at a time is 1: the product is the weight."""
    codes = (np.arange(64 * 64).reshape(64, 64) * 7 % 256).astype(np.uint8)
    blocks = codes[:, :32].reshape(64, 2, 16)
    scales = np.arange(128, dtype=np.uint8).reshape(64, 2) * 2
    scales[5, 1] = 255
    weight = tk.QuantisedWeight.from_mxfp4(blocks, scales)
    zeros = (np.arange(128) % 17).astype(np.uint8).reshape(64, 2)
    of_zeros = tk.QuantisedWeight.from_uint4(codes & 15, np.full((64, 2), 0.125, np.float16), zeros, group=32)
    for dtype in ("bf16", "fp16"):
        a = np.eye(64).astype(NUMPY[dtype])
        for one, more in ((weight, {}), (of_zeros, {"b_zero": of_zeros.zero})):
            given = {"out_dtype": "fp32", **more}
            number = kernel(library, "flatmm_quant", target, a, one.panels, one.scale, **given)
            made = library.flatmm_quant(a, one.panels, one.scale, instance=number, **given).reshape(64, 64).T
            right = one.dequantised()
            whole = np.abs(right) >= 2.0**-120  # subnormal numbers may be flushed
            if one is weight:  # a factor that is NaN is one of the whole sum
                assert np.isnan(made[5]).all()
                whole[5] = False
            assert np.array_equal(made[whole], right[whole])


def test_mxfp4_is_quantised_to_the_nearest_and_stays() -> None:
    from tilekiln.api.quantised_weight import E2M1

    random = np.random.default_rng(7)
    weight, _, _ = quantised("mxfp4", random, 70, 96, 32)
    again = tk.QuantisedWeight(weight.dequantised(), bits="mxfp4")
    assert np.array_equal(again.dequantised(), weight.dequantised())
    assert tk.QuantisedWeight(again.dequantised(), bits="mxfp4").panels.tobytes() == again.panels.tobytes()
    numbers = np.array(E2M1[:8], F32)
    ties = np.concatenate([numbers, (numbers[1:] + numbers[:-1]) / 2, [0.2, 0.26, 7.9]])
    row = np.zeros((1, 32), F32)
    row[0, : len(ties)] = -ties
    nearest = [*numbers, 0, 1, 1, 2, 2, 4, 4, 0, 0.5, 6]
    assert tk.QuantisedWeight(row, bits="mxfp4").dequantised()[0, : len(ties)].tolist() == [-one for one in nearest]
    assert not tk.QuantisedWeight(np.zeros((3, 32), F32), bits="mxfp4").dequantised().any()
    small = tk.QuantisedWeight(np.full((1, 32), 2.0**-130, F32), bits="mxfp4").dequantised()
    assert (np.abs(small - F32(2.0**-130)) <= 2.0**-129).all()


@pytest.mark.usefixtures("at_hand")
def test_linear_and_bits(library: tk.Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: [library])
    random = np.random.default_rng(4)
    x = draw(random, 6, 512, "bf16", False)
    for kind, most in (("mxfp4", 4.25), ("uint4", 4.2), ("nvfp4", 4.5), ("mxfp8", 8.25)):
        weight, _, _ = quantised(kind, random, 128, 512, GROUPS.get(kind, 128))
        held = [weight.panels, weight.scale, *([] if weight.zero is None else [weight.zero])]
        assert 8 * sum(one.nbytes for one in held) / (128 * 512) <= most
        for quantise in (False, True) if weight.kind in ("mxfp4", "uint4") else (False,):
            made = tk.linear(x, weight, quantise_x=quantise).astype(F32)
            right = x.astype(F32) @ weight.dequantised().T
            assert np.linalg.norm(made - right) < (0.02 if quantise else 0.005) * np.linalg.norm(right)


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("operator", ["flatmm_quant", "fused_moe"])
def test_drawn_problems(library: tk.Library, operator: str, dtype: str, part: int, pytestconfig: pytest.Config) -> None:
    draw_and_judge(library, operator, dtype, f"{pytestconfig.option.sample_seed} {part}", count=10)


ROWS, PANELS = np.zeros((2, 64), NUMPY["bf16"]), np.zeros((1, 8, 64, 4), np.uint8)
BYTES, HALVES, ZERO = np.zeros((1, 2, 64), np.uint8), np.ones((1, 2, 64), np.float16), np.zeros((1, 2, 64), np.uint8)
BAD: list[tuple[dict[str, Any], str]] = [
    ({"b_scale": HALVES}, "b_zero: was null, must be given with a b_scale of fp16"),
    ({"b_zero": ZERO}, "b_zero: was given, must be null but with a b_scale of fp16"),
    ({"b_scale": HALVES, "b_zero": ZERO[:, :1]}, "b_zero: groups was 1, must be 2"),
    ({"b_scale": HALVES, "b_zero": ZERO.astype(np.int8)}, "b_zero: dtype was int8, must be uint8"),
    ({"b": np.zeros((1, 16, 64, 4), np.int8)}, "b_scale: dtype was uint8, must be fp32 with b of int8"),
    ({"b_factor": 2.0}, "b_factor: was 2, must be 1 but with a b of uint8 and b_scale of fp8"),
    ({"group": 16}, "group: was 16, must be a multiple of 32"),
    (
        {"b": np.zeros((1, 32, 64, 2), NUMPY["fp8"]), "b_scale": HALVES},
        "b_scale: dtype was fp16, must be fp32 or uint8",
    ),
]


@pytest.mark.parametrize(("change", "text"), BAD, ids=[text[:40] for _, text in BAD])
def test_bad_input(library: tk.Library, change: dict[str, Any], text: str) -> None:
    call: dict[str, Any] = {"a": ROWS, "b": PANELS, "b_scale": BYTES, **change}
    with pytest.raises(tk.ArgumentError) as error:
        library.flatmm_quant(call.pop("a"), call.pop("b"), call.pop("b_scale"), **call)
    assert str(error.value).startswith(text), str(error.value)


BLOCKS, NUMBERS = np.zeros((3, 2, 16), np.uint8), np.zeros((3, 64), np.uint8)
FP16, ZEROS = np.ones((3, 2), np.float16), np.zeros((3, 2), np.uint8)
FP8 = np.ones((3, 4), NUMPY["fp8"])
BAD_WEIGHTS: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: tk.QuantisedWeight.from_nvfp4(NUMBERS[:, :32], FP8[:, :3]),
        r"scales: shape was \(3, 3\), must be \(3, k / 16\)",
    ),
    (lambda: tk.QuantisedWeight.from_nvfp4(NUMBERS[:, :32], FP8, np.inf), "factor: was inf, must be finite"),
    (lambda: tk.QuantisedWeight.from_mxfp8(NUMBERS, ZEROS), "values: dtype was uint8, must be float8_e4m3fn"),
    (lambda: tk.QuantisedWeight(np.zeros((3, 64), F32), bits="mxfp4", group=64), "group: was 64, must be 32 with bits"),
    (lambda: tk.QuantisedWeight.from_mxfp4(BLOCKS[0], ZEROS), "blocks: was uint8"),
    (lambda: tk.QuantisedWeight.from_mxfp4(BLOCKS, ZEROS.astype(F32)), "scales: was float32"),
    (lambda: tk.QuantisedWeight.from_mxfp4(BLOCKS[:, :1], ZEROS), r"blocks: shape was \(3, 1, 16\), must be"),
    (lambda: tk.QuantisedWeight.from_uint4(NUMBERS, FP16, ZEROS, group=48), "group: was 48, must be a multiple of 32"),
    (
        lambda: tk.QuantisedWeight.from_uint4(NUMBERS, FP16[:, :1], ZEROS, group=32),
        r"scale: shape was \(3, 1\), must be",
    ),
    (
        lambda: tk.QuantisedWeight.from_uint4(NUMBERS + np.uint8(16), FP16, ZEROS, group=32),
        "values: held 16, must be 0",
    ),
    (
        lambda: tk.QuantisedWeight.from_uint4(NUMBERS, FP16, ZEROS + np.uint8(17), group=32),
        "zero: held 17, must be 0 to 16",
    ),
]


@pytest.mark.parametrize(("call", "text"), BAD_WEIGHTS, ids=[text[:30] for _, text in BAD_WEIGHTS])
def test_bad_weights(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(tk.ArgumentError, match=text):
        call()
