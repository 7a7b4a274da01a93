# SPDX-License-Identifier: MIT
"""Products by tiles through the host's code: factors of blocks, codes, contractions, and fp32 in parts of bf16."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference.batched_contraction import excess

from tests.python import test_batched_contraction as contraction
from tests.python import test_four_bits as codes
from tests.python import test_gemm as gemm
from tests.python import test_gemm_lists as lists
from tests.python import tiles
from tests.python.test_cases import draw_and_judge

pytestmark = tiles.of_x86_64


@pytest.mark.parametrize("target", tiles.ENGINES)
def test_factors_of_blocks(load: Callable[..., tk.Library], target: str) -> None:
    gemm.test_factors_of_blocks(load("gemm_fp8", targets=tiles.TARGETS), target)
    lists.test_grouped_fp8_with_factors_of_blocks(lambda name, **_: load(name, targets=tiles.TARGETS), target)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", tiles.ENGINES)
@pytest.mark.parametrize("kind", ["mxfp4", "uint4", "mxfp8", "nvfp4", "mxfp4 by int8", "uint4 by int8"])
def test_codes(load: Callable[..., tk.Library], target: str, kind: str) -> None:
    word, _, by = kind.partition(" by ")
    codes.test_against_float64(load("four_bits", targets=tiles.TARGETS), target, "bf16", bool(by), word)


def test_experts_of_codes(load: Callable[..., tk.Library]) -> None:
    draw_and_judge(load("four_bits", targets=tiles.TARGETS), "fused_moe", "bf16", "tiles", count=8)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_contractions(load: Callable[..., tk.Library], dtype: str) -> None:
    library, found = load("gemm_default", targets=tiles.TARGETS), set()
    for name in contraction.SIZES:
        a, b, how = contraction.draw(name, dtype)
        for one in library.instances(f"family=batched_contraction dtype={dtype}"):
            if library.instance_usable(one.number):
                found.add(one.algorithm["target"])
                out = library.batched_contraction(a, b, **how, alpha=-0.5, instance=one.number)
                assert excess(out, a, b, **how, alpha=-0.5) <= 1, (name, one)
    assert "cpu-amxemulated" in found


@pytest.mark.parametrize(("dtype", "out"), [("bf16", "bf16"), ("int8", "int32")])
def test_b_that_threads_pack_together(load: Callable[..., tk.Library], dtype: str, out: str) -> None:
    """One thread has one unit here, which packs for itself; more have several along m: the same bits."""
    library, random = load("gemm_default", targets=tiles.TARGETS), np.random.default_rng(7)
    for of_b, (m, n, k) in itertools.product((False, True), ((300, 200, 131), (257, 65, 64))):
        a, b = gemm.draw(random, m, k, dtype, False), gemm.draw(random, k, n, dtype, of_b)
        layout = "column" if of_b else "row"
        kind = f"family=gemm dtype={dtype} out_dtype={out} layout_b={layout} target=cpu-amxemulated"
        found = [one.number for one in library.instances(kind) if library.instance_usable(one.number)]
        ours = [library.gemm(a, b, instance=found[0], num_threads=count) for count in (1, 4)]
        np.testing.assert_array_equal(*ours)


@pytest.mark.parametrize("target", tiles.ENGINES)
def test_int8_of_one_group(load: Callable[..., tk.Library], target: str) -> None:
    """Factors of columns and of rows alone, powers of two: integers, rounded once to fp32, however threads cut them."""
    library, random = load("gemm_linear", targets=tiles.TARGETS), np.random.default_rng(7)
    for m, n, k in (13, 64, 200), (16, 70, 40), (70, 130, 1000), (161, 300, 4104):
        a, b = (random.integers(-128, 128, (rows, k)).astype(np.int8) for rows in (m, n))
        factors = [2.0 ** random.integers(-9, 3, (rows, 1)).astype(np.float32) for rows in (m, n)]
        weight = tk.QuantisedWeight.from_values(b, factors[1], group=-(-k // 32) * 32)
        how: Any = {"a_scale": factors[0], "group": weight.group, "out_dtype": "fp32"}
        number = lists.kernel(library, "flatmm_quant", target, a, weight.panels, weight.scale, **how)
        wanted = (a.astype(np.int64) @ b.T.astype(np.int64)).astype(np.float32) * factors[0] * factors[1].T
        for count in 1, 4:
            made = library.flatmm_quant(a, weight.panels, weight.scale, instance=number, num_threads=count, **how)
            np.testing.assert_array_equal(made.reshape(m, -1)[:, :n], wanted)


@pytest.mark.parametrize("precision", ["bf16x3", "bf16x6"])
@pytest.mark.parametrize("target", tiles.ENGINES)
def test_fp32_in_parts(load: Callable[..., tk.Library], target: str, precision: str) -> None:
    """Every layout, edges, epilogues, and numbers that have no parts."""
    library, random = load("gemm_default", targets=tiles.TARGETS), np.random.default_rng(7)
    layouts, activations = itertools.product((False, True), repeat=3), itertools.cycle(gemm.ACTIVATIONS)
    sizes = [
        (1, 1, 1),
        (3, 70, 2),
        (17, 65, 33),
        (33, 5, 700),
        (70, 130, 31),
        (31, 300, 0),
        (130, 66, 90),
        (48, 64, 64),
    ]
    for (m, n, k), (of_a, of_b, of_out) in zip(sizes, layouts, strict=True):
        a, b = gemm.draw(random, m, k, "fp32", of_a), gemm.draw(random, k, n, "fp32", of_b)
        out = gemm.out_like(m, n, "fp32", of_out)
        more = {"c": gemm.draw(random, m, n, "fp32", False), "bias": gemm.draw(random, 1, n, "fp32", False)[0]}
        how = {"activation": next(activations), "alpha": 0.5, "beta": 0.75}
        gemm.check(library, target, a, b, out, precision=precision, **more, **how)
    a, b = gemm.draw(random, 40, 64, "fp32", False), gemm.draw(random, 64, 70, "fp32", True)
    a[3, 7], a[9, 1], b[11, 5], b[12, 6] = np.inf, 3.4e38, np.nan, -np.inf
    gemm.check(library, target, a, b, gemm.out_like(40, 70, "fp32", False), precision=precision)


def test_words_of_precision(load: Callable[..., tk.Library]) -> None:
    library, a = load("gemm_default", targets=tiles.TARGETS), np.ones((4, 4), np.float32)
    with pytest.raises(tk.ArgumentError, match=r"^precision: was .*bf16x2.*, must be .*full.*bf16x3.*bf16x6"):
        library.gemm(a, a, precision=cast("Any", "bf16x2"))
    with pytest.raises(tk.NoKernelError, match="parts of bf16 are those of fp32"):
        library.gemm(a.astype(np.float16), a.astype(np.float16), precision="bf16x3")
    with pytest.raises(tk.ArgumentError, match=r"^precision: was 'bf16x3', must be 'full' for batches of matrices$"):
        tk.matmul(a[None], a[None], precision="bf16x3")
    with pytest.raises(
        tk.ArgumentError, match=r"^precision: was 'bf16x6', must be 'full' for weights that are packed$"
    ):
        tk.linear(a, tk.PackedWeight(a), precision="bf16x6")
    with pytest.raises(tk.NoKernelError, match="only tiles multiply fp32 in parts of bf16: cpu-amx"):
        load("gemm_default", targets="native").gemm(a, a, precision="bf16x3")
