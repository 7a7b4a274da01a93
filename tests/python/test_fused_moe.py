# SPDX-License-Identifier: MIT
"""fused_moe, experts and PackedExperts against float64: every ISA, layout and kind of weights, edges, bad input."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln._core.dtypes import NUMPY
from tilekiln.reference import moe as reference

from tests.python import tiles
from tests.python.guard import guarded
from tests.python.test_gemm import TARGETS, draw
from tests.python.test_gemm_lists import check, kernel

F32 = np.float32
# tokens, experts, topk, hidden, inter
SHAPES = [(1, 3, 2, 72, 40), (5, 4, 4, 64, 136), (20, 3, 1, 8, 64), (9, 1, 1, 136, 8), (50, 2, 2, 72, 72),
          (0, 3, 2, 8, 8), (3, 0, 2, 8, 8), (2, 2, 1, 0, 8), (2, 2, 1, 8, 0)]  # fmt: skip
ODD = [(5, 3, 2, 71, 33), (3, 2, 2, 1, 1), (20, 2, 2, 129, 65)]
BLOCKS = [(1, 3, 2, 256, 128), (20, 3, 1, 128, 384), (50, 2, 2, 384, 256), (0, 3, 2, 128, 128), (3, 0, 2, 128, 128),
          (2, 2, 1, 0, 128), (2, 2, 1, 128, 0)]  # fmt: skip
KINDS = ["row", "column", "packed", "int8", "int4", "smooth8", "smooth4", "rows4", "fp8"]


@pytest.fixture(scope="module")
def library(load: Callable[..., tk.Library]) -> tk.Library:
    return load("moe_default", targets="all")


class Problem:
    """Random experts, as arrays of a call and as what the reference takes."""

    def __init__(self, seed: int, dtype: str, kind: str, gated: bool, shape: tuple[int, ...]) -> None:
        tokens, experts, topk, hidden, inter = shape
        random = np.random.default_rng(seed)
        self.x = draw(random, tokens, hidden, dtype, False)
        self.ids = random.integers(-1, max(1, experts) + 1, (tokens, topk)).astype(
            np.int32
        )  # some twice, some nobody's
        if seed % 3 == 0:
            self.ids[:] = max(0, experts - 1)
        self.weights = random.standard_normal((tokens, topk)).astype(F32)
        rows = inter * (2 if gated else 1)
        gate_up = draw(random, experts * rows, hidden, dtype, False).reshape(experts, rows, hidden)
        down = draw(random, experts * hidden, inter, dtype, False).reshape(experts, hidden, inter)
        self.call: dict[str, Any] = {}
        quantised = kind[-1] in "48" and kind not in ("rows4", "fp8")
        self.expected: dict[str, Any] = {"quantised": quantised, "dtype": dtype}
        if kind == "fp8":
            for name, matrix in (("gate_up", gate_up), ("down", down)):
                setattr(self, name, matrix.astype(NUMPY["fp8"]))
                factors = (experts, -(-matrix.shape[1] // 128), -(-matrix.shape[2] // 128))
                self.call[f"{name}_scale"] = np.exp2(random.integers(-9, 3, factors)).astype(F32)
            self.expected |= self.call
            self.matrices = self.gate_up, self.down
            return
        if kind in ("row", "column"):
            turn = kind == "column"
            self.gate_up = gate_up.transpose(0, 2, 1).copy().transpose(0, 2, 1) if turn else gate_up
            self.down = down.transpose(0, 2, 1).copy().transpose(0, 2, 1) if turn else down
            self.matrices = gate_up, down
            return
        smooth: dict[str, Any] = {}
        if kind.startswith("smooth"):
            smooth["smooth_scale"] = random.random((experts, hidden)).astype(F32) + F32(0.5)
            smooth["down_smooth_scale"] = random.random((experts, inter)).astype(F32) + F32(0.5)
        bits = None if kind == "packed" else int(kind[-1])
        self.packed = packed = tk.PackedExperts(gate_up, down, bits=bits, **smooth)
        self.gate_up, self.down = packed.gate_up, packed.down
        self.matrices = gate_up, down
        if bits:
            self.call |= {"gate_up_scale": packed.gate_up_scale, "down_scale": packed.down_scale, **smooth}
            self.call["group"] = packed.group
            if kind == "rows4":
                self.call["quantise_x"] = False
            self.expected |= smooth
            parts = 1 + gated
            self.matrices = (
                reference.dequantised(packed.gate_up, packed.gate_up_scale, packed.group, hidden, inter, parts),
                reference.dequantised(packed.down, packed.down_scale, packed.group, inter, hidden),
            )

    def reference(self, **arguments: Any) -> Any:
        return reference.fused_moe(self.x, self.ids, self.weights, *self.matrices, **self.expected, **arguments)


def biases_and_tokens(
    p: Problem, kind: str, gated: bool, shape: tuple[int, ...], seed: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of a call, and of the reference."""
    tokens, experts, _, hidden, inter = shape
    random = np.random.default_rng(seed)
    first = random.standard_normal((experts, inter * (2 if gated else 1))).astype(F32)
    second = random.standard_normal((experts, hidden)).astype(F32)
    local = int(random.integers(-1, tokens + 2))
    more = {"gate_up_bias": first, "down_bias": second}
    call: dict[str, Any] = dict(more)
    if kind not in ("row", "column", "fp8"):
        packed = tk.PackedExperts(
            np.zeros((experts, first.shape[1], hidden), F32), np.zeros((experts, hidden, inter), F32), **more
        )
        call = {"gate_up_bias": packed.gate_up_bias, "down_bias": packed.down_bias}
        if kind[-1] in "48":  # whole panels of what is multiplied, of which there may be more
            call = {name: array for name, array in call.items() if array.shape[:2] == getattr(p, name[:-5]).shape[:2]}
            more = {name: array for name, array in more.items() if name in call}
    return {**call, "local_tokens": np.array([local], np.int32)}, {**more, "local_tokens": local}


def test_no_experts_have_panels_of_biases() -> None:
    """As those of a rank that has none."""
    no = {"gate_up": (0, 16, 8), "down": (0, 8, 8), "gate_up_bias": (0, 16), "down_bias": (0, 8)}
    packed = tk.PackedExperts(**{name: np.zeros(shape, F32) for name, shape in no.items()})
    assert packed.gate_up_bias.shape == (0, 2, 64)
    assert packed.down_bias.shape == (0, 1, 64)


PLAIN = ("silu", "gelu", "gelu_tanh", "relu")
CLAMPED = [(True, "clamped_swiglu", False), (True, "clamped_swiglu", True)]
CHOICES = [(g, a, m) for a, g, m in itertools.product(PLAIN, (True, False), (False, True))]
CASES = [(d, k) for d, k in itertools.product(("fp32", "fp16", "bf16"), KINDS) if d != "fp32" or k[-1] not in "48"]


@pytest.mark.parametrize(("dtype", "kind"), CASES, ids=[f"{d}-{k}" for d, k in CASES])
@pytest.mark.parametrize("target", TARGETS)
def test_against_float64(library: tk.Library, target: str, dtype: str, kind: str) -> None:
    first = 5 * CASES.index((dtype, kind)) % len(CHOICES)
    choices = itertools.cycle([*CLAMPED, *CHOICES[first:], *CHOICES[:first]])
    shapes = BLOCKS if kind == "fp8" else SHAPES if kind[-1] in "48" else SHAPES + ODD
    for seed, shape in enumerate(shapes):
        gated, activation, masked = next(choices)
        p = Problem(seed, dtype, kind, gated, shape)
        call, expected = {"activation": activation, **p.call}, {"activation": activation}
        if activation == "clamped_swiglu":
            numbers = {"limit": 0.75, "alpha": 1.5 if seed else -2.0}
            call, expected = call | numbers, expected | numbers
        if masked:
            every = np.zeros(2 * shape[1] + 1, np.int32)
            every[1::2] = 1
            call["expert_mask"] = expected["expert_mask"] = every
            p.ids = 2 * p.ids + 1
        if seed % 2:
            more, of_reference = biases_and_tokens(p, kind, gated, shape, seed)
            call |= more
            expected |= of_reference
        out = np.full((shape[0], shape[3] + 3), 77, NUMPY[dtype])
        arrays = [guarded(a, "after") if a.size else a for a in (p.x, p.ids, p.weights)]
        arrays += [guarded(a, "after") if a.size and a.flags.c_contiguous else a for a in (p.gate_up, p.down)]
        number = kernel(library, "fused_moe", target, *arrays, out=out[:, :-3], **call)
        library.fused_moe(*arrays, out=out[:, :-3], instance=number, **call)
        check(out[:, :-3], p.reference(**expected))
        assert (out[:, -3:] == 77).all()
        again = library.fused_moe(*arrays, instance=number, num_threads=3, **call)
        assert again.tobytes() == out[:, :-3].tobytes(), shape


@tiles.of_x86_64
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", tiles.ENGINES)
def test_by_tiles(load: Callable[..., tk.Library], target: str, kind: str) -> None:
    test_against_float64(load("moe_default", targets=tiles.TARGETS), target, "bf16", kind)


def test_all_tokens_to_one_expert_and_threads(library: tk.Library) -> None:
    """More rows than a tile, whatever the threads; the others have none."""
    p = Problem(3, "bf16", "packed", True, (1100, 4, 1, 64, 64))
    one = library.fused_moe(p.x, p.ids, p.weights, p.gate_up, p.down)
    with tk.Stream() as stream:
        later = library.fused_moe(p.x, p.ids, p.weights, p.gate_up, p.down, stream=stream)
    for made in (later, library.fused_moe(p.x, p.ids, p.weights, p.gate_up, p.down, num_threads=2)):
        assert made.tobytes() == one.tobytes()
    few = Problem(3, "bf16", "packed", True, (1100, 4, 1, 64, 64))
    few.x, few.ids, few.weights = p.x[1075:], p.ids[1075:], p.weights[1075:]
    check(one[1075:], few.reference())


def test_strides(library: tk.Library) -> None:
    p = Problem(4, "bf16", "row", True, (6, 3, 2, 40, 24))
    want = library.fused_moe(p.x, p.ids, p.weights, p.gate_up, p.down)
    wide = [np.repeat(a, 2, axis=0)[::2] for a in (p.x, p.ids, p.weights, p.gate_up, p.down)]
    assert wide[0].strides != p.x.strides
    assert library.fused_moe(*wide).tobytes() == want.tobytes()
    packed = tk.PackedExperts(p.gate_up, p.down)
    check(library.fused_moe(p.x[::-1], p.ids[::-1], p.weights[::-1], packed.gate_up, packed.down)[::-1], p.reference())


def test_special_values(library: tk.Library) -> None:
    """A NaN or an infinity of a token stays in that token; a weight of 0 times infinity is NaN."""
    for kind in ("row", "packed", "int8", "fp8"):
        p = Problem(4, "bf16", kind, True, (6, 2, 2, 128, 128))
        p.ids = np.array([[0, 1]] * 6, np.int32)
        clean = library.fused_moe(p.x, p.ids, p.weights, p.gate_up, p.down, **p.call)
        p.x[2, 5], p.x[3, 7], p.weights[4, 0] = np.nan, np.inf, np.inf
        made = library.fused_moe(p.x, p.ids, p.weights, p.gate_up, p.down, **p.call)
        assert not np.isfinite(made[2:5].astype(F32)).any()
        assert np.isnan(made[2].astype(F32)).all()
        assert made[[0, 1, 5]].tobytes() == clean[[0, 1, 5]].tobytes()


@pytest.mark.usefixtures("at_hand")
def test_experts_of_torch() -> None:
    """As the experts of a model of Transformers compute: bf16, ids of int64, weights of bf16, three dimensions."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    x, gate_up, down = torch.randn(2, 5, 64), torch.randn(4, 48, 64) / 8, torch.randn(4, 64, 24) / 5
    weights, ids = torch.softmax(torch.randn(10, 4), -1).topk(2)
    expected = torch.zeros(10, 64)
    for token, slot in itertools.product(range(10), range(2)):
        e = ids[token, slot]
        gate, up = (gate_up[e] @ x.reshape(10, 64)[token]).chunk(2)
        expected[token] += weights[token, slot] * (down[e] @ (torch.nn.functional.silu(gate) * up))
    biases = torch.randn(4, 48), torch.randn(4, 64)
    with_biases = expected.clone()
    for token, slot in itertools.product(range(10), range(2)):
        e = ids[token, slot]
        for sign, its in ((-1, (0, 0)), (1, (biases[0][e], biases[1][e]))):
            gate, up = (gate_up[e] @ x.reshape(10, 64)[token] + its[0]).chunk(2)
            with_biases[token] += (
                sign * weights[token, slot] * (down[e] @ (torch.nn.functional.silu(gate) * up) + its[1])
            )
    packed = tk.PackedExperts(gate_up, down, gate_up_bias=biases[0], down_bias=biases[1])
    made = tk.experts(x, ids, weights, packed, local_tokens=torch.tensor([7], dtype=torch.int32)).reshape(10, 64)
    torch.testing.assert_close(made[:7], with_biases[:7], atol=1e-4, rtol=1e-4)
    assert not made[7:].any()
    for bits, near in ((None, 2e-2), (8, 4e-2), (4, 4e-1)):
        packed = tk.PackedExperts(gate_up.bfloat16(), down.bfloat16(), bits=bits)
        made = tk.experts(x.bfloat16(), ids, weights.bfloat16(), packed)
        assert made.dtype == torch.bfloat16
        assert made.shape == x.shape
        far = (made.reshape(10, 64).float() - expected).norm() / expected.norm()
        assert far < near, (bits, far)


@pytest.mark.usefixtures("at_hand")
def test_experts_refuse() -> None:
    x, ids, weights = np.zeros((2, 8), F32), np.zeros((2, 1), np.int32), np.zeros((2, 1), F32)
    packed = tk.PackedExperts(np.zeros((1, 16, 8), F32), np.zeros((1, 8, 8), F32))
    assert repr(packed) == "<tilekiln.PackedExperts 1 of hidden=8 inter=8 float32>"
    assert tk.experts(x, ids, weights, packed).shape == (2, 8)
    with pytest.raises(tk.ArgumentError, match=r"weights: was a ndarray, must be tilekiln\.PackedExperts"):
        tk.experts(x, ids, weights, x)  # type: ignore[arg-type]
    with pytest.raises(tk.ArgumentError, match="weights: dtype was float32, must be float16"):
        tk.experts(x.astype(np.float16), ids, weights, packed)


GATE_UP, DOWN = np.zeros((2, 16, 8), F32), np.zeros((2, 8, 8), F32)
BAD_WEIGHTS: list[tuple[Callable[[], Any], str]] = [
    (lambda: tk.PackedExperts(GATE_UP[0], DOWN), "gate_up: had 2 dimensions, must have 3"),
    (lambda: tk.PackedExperts(GATE_UP, DOWN[:1]), r"down: shape was \(1, 8, 8\), must be \(2, 8, inter\)"),
    (lambda: tk.PackedExperts(GATE_UP[:, :9], DOWN), "gate_up: rows was 9, must be 16, twice the inter of down, or 8"),
    (lambda: tk.PackedExperts(GATE_UP, DOWN, bits=3), "bits: was 3, must be 4, 8 or 'mxfp4'"),
    (lambda: tk.PackedExperts(GATE_UP, DOWN, smooth_scale=DOWN[0]), "smooth_scale: was given without bits"),
    (lambda: tk.PackedExperts(GATE_UP, DOWN, down_bias=DOWN[0]), r"down_bias: shape was \(8, 8\), must be \(2, 8\)"),
    (lambda: tk.PackedExperts(GATE_UP, DOWN, bits=8, smooth_scale=DOWN[0]), "down_smooth_scale: must be given with"),
]


@pytest.mark.parametrize(("call", "text"), BAD_WEIGHTS, ids=[text.partition(",")[0] for _, text in BAD_WEIGHTS])
def test_bad_weights(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(tk.ArgumentError, match=text):
        call()


HALF = np.float16
GOOD: dict[str, Any] = {
    "x": np.zeros((3, 64), HALF), "topk_ids": np.zeros((3, 2), np.int32), "topk_weights": np.zeros((3, 2), F32),
    "gate_up": np.zeros((2, 2, 64, 64, 1), HALF), "down": np.zeros((2, 1, 64, 64, 1), HALF),
}  # fmt: skip
PLAIN = {"gate_up": np.zeros((2, 128, 64), HALF), "down": np.zeros((2, 64, 64), HALF)}
INT8 = {
    "gate_up": np.zeros((2, 2, 16, 64, 4), np.int8), "down": np.zeros((2, 1, 16, 64, 4), np.int8),
    "gate_up_scale": np.zeros((2, 2, 2, 64), F32), "down_scale": np.zeros((2, 1, 2, 64), F32),
}  # fmt: skip
FP8 = {
    "x": np.zeros((3, 128), HALF),
    "gate_up": np.zeros((2, 256, 128), NUMPY["fp8"]), "down": np.zeros((2, 128, 128), NUMPY["fp8"]),
    "gate_up_scale": np.zeros((2, 2, 1), F32), "down_scale": np.zeros((2, 1, 1), F32),
}  # fmt: skip
SMOOTH = {"smooth_scale": np.ones((2, 64), F32), "down_smooth_scale": np.ones((2, 64), F32)}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"gate_up_bias": np.zeros((2, 128), F32)}, "gate_up_bias: shape was (2, 128), must be (2, 2, 64)"),
    ({**PLAIN, "down_bias": np.zeros((2, 63), F32)}, "down_bias: shape was (2, 63), must be (2, 64)"),
    ({**PLAIN, "down_bias": np.zeros((2, 128), F32)[:, ::2]}, "down_bias: the stride of its last dimension was 2"),
    ({"local_tokens": np.zeros(2, np.int32)}, "local_tokens: dimension 0 was 2 long, must have one element"),
    ({"topk_ids": np.zeros((2, 2), np.int32)}, "topk_ids: token count was 2, must be 3, the token count of x"),
    ({"topk_weights": np.zeros((3, 1), F32)}, "topk_weights: topk was 1, must be 2, the topk of topk_ids"),
    ({"gate_up": GOOD["gate_up"].astype(F32)}, "gate_up: dtype was fp32, must be"),
    ({"down": np.zeros((1, 1, 64, 64, 1), HALF)}, "down: expert count was 1, must be 2, the expert count of gate_up"),
    ({"gate_up": np.zeros((2, 2, 63, 64, 1), HALF)}, "gate_up: words was 63, must be 64, hidden by elements of a word"),
    ({"gate_up": np.zeros((2, 3, 64, 64, 1), HALF)},
     "gate_up: panels was 3, must be 2, twice those of the inter of down, or 1"),
    ({"down": np.zeros((2, 2, 64, 64, 1), HALF)}, "down: panels was 2, must be 1, hidden by 64, rounded up"),
    ({"gate_up": np.zeros((2, 4, 64, 64, 1), HALF)[:, ::2]}, "gate_up: stride of dimension 1 was"),
    ({"gate_up_scale": np.zeros((2, 2, 2, 64), F32)},
     "down_scale: was null, must be given: gate_up_scale and down_scale go together"),
    ({**INT8, "gate_up_scale": None, "down_scale": None}, "gate_up_scale: was null, must be given, as down_scale"),
    ({"gate_up_scale": np.zeros((2, 2, 2, 64), F32), "down_scale": np.zeros((2, 1, 2, 64), F32)},
     "gate_up_scale: was given, must be null, as down_scale, but with weights of int8, int4, mxfp4 and fp8"),
    ({**FP8, "gate_up_scale": None, "down_scale": None}, "gate_up_scale: was null, must be given, as down_scale"),
    ({**FP8, "gate_up_scale": np.zeros((2, 1, 1), F32)}, "gate_up_scale: shape was (2, 1, 1), must be (2, 2, 1)"),
    ({**FP8, "down_scale": np.zeros((2, 1, 2), F32)}, "down_scale: shape was (2, 1, 2), must be (2, 1, 1)"),
    ({**FP8, "gate_up_scale": np.zeros((2, 2, 1), np.uint8), "down_scale": np.zeros((2, 1, 1), np.uint8)},
     "gate_up_scale: dtype was uint8, must be fp32 with weights of fp8"),
    ({**FP8, "quantise_x": False}, "quantise_x: was no, must be yes with weights of fp8"),
    ({**FP8, "gate_up": np.zeros((2, 192, 128), NUMPY["fp8"]), "down": np.zeros((2, 128, 96), NUMPY["fp8"])},
     "down: inter was 96, must be a multiple of 128 with weights of fp8"),
    ({**FP8, "gate_up": np.zeros((2, 2, 32, 64, 4), NUMPY["fp8"]), "down": np.zeros((2, 2, 32, 64, 4), NUMPY["fp8"])},
     "gate_up: had 5 dimensions, must have 3: weights of fp8 are matrices"),
    ({**PLAIN, "gate_up": np.zeros((2, 100, 64), HALF)},
     "gate_up: rows was 100, must be 128, twice the inter of down, or 64"),
    ({**PLAIN, "down": np.zeros((2, 64, 64), HALF).transpose(0, 2, 1)},
     "down: was column-major, must be as gate_up"),
    ({"gate_up": np.zeros((2, 128, 64), np.int8), "down": np.zeros((2, 64, 64), np.int8)},
     "gate_up: had 3 dimensions, must have 5: weights of int8 and int4 are packed"),
    ({**INT8, "quantise_x": False}, "quantise_x: was no, must be yes with weights of int8"),
    ({**INT8, "group": 48}, "group: was 48, must be a multiple of 32"),
    ({**INT8, "group": 64}, "gate_up_scale: shape was (2, 2, 2, 64), must be (2, 2, 1, 64)"),
    ({**INT8, "smooth_scale": np.ones((2, 64), F32)}, "down_smooth_scale: was null, must be given: smooth_scale and"),
    ({**INT8, **SMOOTH, "down_smooth_scale": np.ones((2, 63), F32)},
     "down_smooth_scale: shape was (2, 63), must be (2, 64)"),
    ({"expert_mask": np.ones((2, 2), np.int32)}, "expert_mask: shape was (2, 2), must be (2)"),
    ({"out": GOOD["x"]}, "out: shares memory with x"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "text"), BAD, ids=[text[:50] for _, text in BAD])
def test_bad_input(library: tk.Library, change: dict[str, Any], text: str) -> None:
    with pytest.raises(tk.ArgumentError) as error:
        library.fused_moe(**{**GOOD, **change})
    assert str(error.value).startswith(text), str(error.value)


def test_no_kernel(library: tk.Library) -> None:
    with pytest.raises(tk.NoKernelError, match="only rows that become int8 are smoothed"):
        library.fused_moe(**GOOD, **SMOOTH)


def test_weights_of_a_gpu_stay_matrices(library: object) -> None:
    """Without a copy, biases too; such matrices give what panels give, here on the CPU."""
    torch = pytest.importorskip("torch")

    class OnGpu(torch.Tensor):
        is_cuda = True

    random = torch.Generator().manual_seed(5)
    gate_up, down, biases = (torch.randn(3, n, m, generator=random) for n, m in ((32, 24), (24, 16), (32, 1)))
    gate_up_bias = biases[..., 0]
    kept = tk.PackedExperts(gate_up.as_subclass(OnGpu), down.as_subclass(OnGpu), gate_up_bias=gate_up_bias)
    assert kept.gate_up.data_ptr() == gate_up.data_ptr()
    assert kept.down.data_ptr() == down.data_ptr()
    x, ids = torch.randn(5, 24, generator=random), torch.tensor([[0, 2]] * 5)
    factors = torch.rand(5, 2, generator=random)
    kept.gate_up, kept.down = gate_up, down
    made = tk.experts(x, ids, factors, kept)
    assert torch.allclose(
        made, tk.experts(x, ids, factors, tk.PackedExperts(gate_up, down, gate_up_bias=gate_up_bias)), atol=1e-4
    )
