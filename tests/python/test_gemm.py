# SPDX-License-Identifier: MIT
"""gemm against float64: every ISA, dtype, layout and edge, with its rules for special values, memory and threads."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tilekiln as tk
from tilekiln._core.dtypes import NUMPY, WORDS
from tilekiln.reference import gemm as reference

from tests.gpu_run import ISAS
from tests.python.guard import guarded

DTYPES = {word: NUMPY[word] for word in ("fp32", "fp16", "bf16", "int8")}
FP8 = {word: NUMPY[word] for word in ("fp8", "bf8")}
OUT = {**{name: name for name in DTYPES}, "int8": "int32", "fp8": "fp16", "bf8": "fp16"}
TARGETS = ISAS
ACTIVATIONS = tuple(reference.ACTIVATIONS)
# Register blocks are 4 or 6 rows and 8, 16 or 64 columns, tiles 120 x 256 x 1024 words; primes and neighbours of each.
SHAPES = [
    (1, 1, 1), (1, 64, 3), (2, 1, 7), (3, 7, 2), (4, 8, 5), (5, 9, 4), (6, 16, 1), (7, 17, 6), (12, 64, 9), (13, 65, 8),
    (16, 63, 127), (17, 31, 128), (31, 13, 129), (119, 5, 33), (120, 6, 17), (241, 3, 65), (1, 255, 255), (2, 256, 256),
    (3, 257, 257), (11, 300, 513), (6, 40, 1031), (485, 70, 19), (1, 100, 50), (100, 1, 50), (3, 2, 4500),
]  # fmt: skip
EMPTY = [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0), (1, 1, 0), (70, 300, 0)]


@pytest.fixture(scope="module")
def library(load: Callable[..., tk.Library]) -> tk.Library:
    return load("gemm_default", targets="all")


@pytest.fixture(scope="module")
def fp8(load: Callable[..., tk.Library]) -> tk.Library:
    return load("gemm_fp8", targets="all")


@pytest.fixture(scope="module")
def linear(load: Callable[..., tk.Library]) -> tk.Library:
    return load("gemm_linear", targets="all")


def draw(random: np.random.Generator, rows: int, columns: int, dtype: str, column_major: bool) -> np.ndarray:
    if dtype == "int8":
        made = random.integers(-128, 128, (rows, columns)).astype(np.int8)
    else:
        made = random.standard_normal((rows, columns)).astype(np.float32).astype(NUMPY[dtype])
    return np.asfortranarray(made) if column_major else np.ascontiguousarray(made)


def out_like(m: int, n: int, dtype: str, column_major: bool) -> np.ndarray:
    return np.full((m, n), 77, NUMPY[OUT.get(dtype, dtype)], order="F" if column_major else "C")


_kernels: dict[str, dict[tuple[str, tuple[Any, ...]], int]] = {}
_signatures: dict[str, dict[int, tuple[Any, ...]]] = {}


def kernel(library: tk.Library, target: str, *arrays: np.ndarray, **arguments: Any) -> int:
    """The instance of a target that answers a call."""
    found = library.gemm_find(*arrays, **arguments)
    kernels, signatures = _kernels.setdefault(library.path, {}), _signatures.setdefault(library.path, {})
    if not kernels:
        for one in library.instances("family=gemm"):
            kernels.setdefault(
                (one.algorithm["target"], tuple(one.signature.values())), one.number
            )  # by tiles: the first
            signatures[one.number] = tuple(one.signature.values())
    number = kernels[target, signatures[found]]
    if not library.instance_usable(number):
        pytest.skip(f"this machine has no {target}")
    return number


def check(library: tk.Library, target: str, a: np.ndarray, b: np.ndarray, out: np.ndarray, **arguments: Any) -> None:
    number = kernel(library, target, a, b, out=out, **arguments)
    extra = {name: arguments.get(name) for name in ("c", "bias", "row_scale", "column_scale", "a_scale", "b_scale")}
    numbers = {name: arguments[name] for name in ("alpha", "beta", "activation", "precision") if name in arguments}
    to = WORDS[out.dtype.name]
    expected = reference.gemm(a, b, **extra, **numbers, dtype=to)  # before out, which may be c
    made = library.gemm(a, b, out=out, instance=number, **arguments)
    assert made is out
    fault = reference.faults(out, expected)
    assert not fault, f"{target} {a.shape} {b.shape} {a.dtype} {numbers}: {fault}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_every_shape_and_layout(library: tk.Library, target: str, dtype: str) -> None:
    random = np.random.default_rng(1)
    layouts = itertools.cycle(itertools.product((False, True), repeat=3))
    for m, n, k in [shape for shape in [*SHAPES, *EMPTY] for _ in range(3)]:
        of_a, of_b, of_out = next(layouts)
        a, b = draw(random, m, k, dtype, of_a), draw(random, k, n, dtype, of_b)
        check(library, target, a, b, out_like(m, n, dtype, of_out))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_few_rows_of_linear_layers(library: tk.Library, target: str, dtype: str) -> None:
    """b column-major: 1 to 17 rows, every remainder of columns that are done together, lengths around a register."""
    random = np.random.default_rng(12)
    columns, lengths = itertools.cycle([1, 3, 4, 7, 8, 15, 63, 64, 65, 261]), itertools.cycle([1, 15, 16, 33, 64, 129])
    for m in [*range(1, 18), 40]:
        a, b = draw(random, m, k := next(lengths), dtype, False), draw(random, k, next(columns), dtype, True)
        check(library, target, guarded(a, "after"), guarded(b.T, "after").T, out_like(m, b.shape[1], dtype, m % 5 == 0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_long_sums_of_many_rows(library: tk.Library, target: str, dtype: str) -> None:
    """More words along k than are packed at once, and more rows than wait for the next of them."""
    random = np.random.default_rng(9)
    m, n, k = 971, 67, {"fp32": 2060, "fp16": 2060, "bf16": 4110, "int8": 8203}[dtype]
    check(
        library, target, draw(random, m, k, dtype, False), draw(random, k, n, dtype, True), out_like(m, n, dtype, False)
    )


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "int8"])
@pytest.mark.parametrize("target", TARGETS)
def test_epilogues(library: tk.Library, target: str, dtype: str) -> None:
    random = np.random.default_rng(2)
    shapes = itertools.cycle([(7, 65, 20), (13, 17, 300), (1, 70, 9), (50, 1, 8), (3, 5, 0)])
    for activation, with_c, with_bias, of_out in itertools.product(ACTIVATIONS, *[(False, True)] * 3):
        m, n, k = next(shapes)
        extra: dict[str, Any] = {"activation": activation, "alpha": float(random.choice([1, -0.5, 3]))}
        if with_c:
            extra |= {"c": draw(random, m, n, dtype, not of_out), "beta": float(random.choice([1, 0.25, -2]))}
        if with_bias:
            extra["bias"] = random.standard_normal(n).astype(np.float32)
        a, b = draw(random, m, k, dtype, with_c), draw(random, k, n, dtype, with_bias)
        check(library, target, a, b, out_like(m, n, dtype, of_out), **extra)


@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_and_what_lies_between_rows(library: tk.Library, dtype: str) -> None:
    random = np.random.default_rng(3)
    m, n, k = 19, 70, 37
    wide_a, wide_b = draw(random, 2 * m, k + 5, dtype, False), draw(random, k + 3, 2 * n, dtype, True)
    for a in (wide_a[::2, 2 : 2 + k], wide_a[::-1][:m, :k], np.broadcast_to(wide_a[:1, :k], (m, k))):
        for b in (wide_b[:k, ::2], wide_b[:k, ::-1][:, :n]):
            for column_major in (False, True):
                whole = out_like(2 * m, 2 * n, dtype, column_major)
                out = whole[:m, ::2] if column_major else whole[::2, :n]
                for target in TARGETS:
                    check(library, target, a, b, out)
                untouched = np.ones(whole.shape, bool)
                untouched[(slice(m), slice(None, None, 2)) if column_major else (slice(None, None, 2), slice(n))] = 0
                assert (whole[untouched] == 77).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_guard_pages(library: tk.Library, target: str, dtype: str) -> None:
    random = np.random.default_rng(4)
    layouts = itertools.product(
        ("before", "after"), [(1, 1, 1), (7, 65, 33), (13, 63, 129), (5, 130, 3)], (0, 1), (0, 1)
    )
    for where, (m, n, k), of_a, of_b in layouts:
        a = (
            guarded(draw(random, k, m, dtype, False), where).T
            if of_a
            else guarded(draw(random, m, k, dtype, False), where)
        )
        b = (
            guarded(draw(random, n, k, dtype, False), where).T
            if of_b
            else guarded(draw(random, k, n, dtype, False), where)
        )
        extra = {}
        if dtype != "int8":
            extra = {"c": guarded(draw(random, m, n, dtype, False), where)}
            extra["bias"] = guarded(random.standard_normal(n).astype(np.float32), where)
        check(library, target, a, b, guarded(out_like(m, n, dtype, False), where), **extra)


@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("target", TARGETS)
def test_fp8(fp8: tk.Library, target: str, dtype: str) -> None:
    """Every bit pattern, every layout, every dtype of out, with and without scales."""
    random = np.random.default_rng(10)
    bits = np.arange(256, dtype=np.uint8).view(NUMPY[dtype])
    one = np.ones((1, 1), NUMPY[dtype])
    for a, b in ((bits[:, None], one), (one, bits[None, :])):
        check(fp8, target, a, b, out_like(a.shape[0], b.shape[1], "fp32", False))
    layouts = itertools.cycle(itertools.product(OUT_OF_FP8, *[(False, True)] * 4))
    for m, n, k in [*SHAPES, *EMPTY]:
        to, of_a, of_b, of_out, scaled = next(layouts)
        a, b = draw(random, m, k, dtype, of_a), draw(random, k, n, dtype, of_b)
        extra: dict[str, Any] = {"activation": "silu", "bias": random.standard_normal(n).astype(np.float32)}
        if scaled:
            extra |= {"row_scale": random.random(m, np.float32), "column_scale": random.random(n, np.float32)}
        check(fp8, target, a, b, out_like(m, n, to, of_out), **extra)
    a = guarded(draw(random, 7, 65, dtype, False), "after")
    b = guarded(draw(random, 65, 33, dtype, False), "after")
    scale = guarded(random.random(33, np.float32), "after")
    check(fp8, target, a, b, guarded(out_like(7, 33, "bf16", False), "after"), column_scale=scale)


OUT_OF_FP8 = ("fp32", "fp16", "bf16")


@pytest.mark.parametrize("target", TARGETS)
def test_scaled_int8(linear: tk.Library, target: str) -> None:
    random = np.random.default_rng(11)
    for (m, n, k), to in zip([(7, 70, 33), (1, 64, 700), (50, 3, 8), (3, 5, 0)], itertools.cycle(OUT_OF_FP8)):
        a, b = draw(random, m, k, "int8", False), draw(random, k, n, "int8", True)
        rows, columns = random.random(m, np.float32) / 99, random.random(n, np.float32) / 99
        bias = random.standard_normal(n).astype(np.float32)
        for extra in ({"row_scale": rows}, {"column_scale": columns}, {"row_scale": rows, "column_scale": columns}):
            check(linear, target, a, b, out_like(m, n, to, False), bias=bias, activation="gelu", alpha=0.5, **extra)


def blocks_of(random: np.random.Generator, m: int, n: int, k: int) -> dict[str, np.ndarray]:
    """Factors of blocks, those of a from column to column, as quantising kernels write them."""
    along = -(-k // 128)
    made = random.random((along, m), np.float32) + 0.5, random.random((-(-n // 128), along), np.float32) + 0.5
    return {"a_scale": made[0].T, "b_scale": made[1]}


@pytest.mark.parametrize("target", TARGETS)
def test_factors_of_blocks(fp8: tk.Library, target: str) -> None:
    """Blocks that end early along every length, layouts of a and b, epilogues, guard pages behind the factors."""
    random = np.random.default_rng(16)
    layouts = itertools.cycle(itertools.product((False, True), repeat=2))
    shapes = [(7, 70, 33), (1, 129, 128), (50, 3, 300), (241, 130, 129), (130, 257, 260), (3, 5, 0), (0, 3, 200)]
    for (m, n, k), to, activation in zip(shapes, itertools.cycle(OUT_OF_FP8), itertools.cycle(("none", "gelu"))):
        of_a, of_b = next(layouts)
        a, b = draw(random, m, k, "fp8", of_a), draw(random, k, n, "fp8", of_b)
        more = {name: guarded(array, "after") for name, array in blocks_of(random, m, n, k).items()}
        check(fp8, target, a, b, out_like(m, n, to, False), activation=activation, alpha=0.5, **more)
        more["bias"] = random.standard_normal(n).astype(np.float32)
        check(fp8, target, a, b, out_like(m, n, to, False), **more)


def test_blocks_have_the_same_bits_for_any_threads(fp8: tk.Library) -> None:
    random = np.random.default_rng(17)
    a, b = draw(random, 700, 600, "fp8", False), draw(random, 600, 300, "fp8", True)
    more = blocks_of(random, 700, 300, 600)
    one = fp8.gemm(a, b, num_threads=1, **more).tobytes()
    assert all(fp8.gemm(a, b, num_threads=threads, **more).tobytes() == one for threads in (2, 5))


def test_a_factor_of_no_number_goes_where_its_block_goes(fp8: tk.Library) -> None:
    """It meets the sum of a block, not each of its numbers, of which some are 0."""
    a, b = np.ones((3, 300), NUMPY["fp8"]), np.ones((300, 130), NUMPY["fp8"])
    a[:, ::2] = 0
    a_scale, b_scale = np.ones((3, 3), np.float32), np.ones((2, 3), np.float32)
    a_scale[0, 1], a_scale[1, 2], b_scale[1, 0] = np.inf, np.nan, -np.inf
    made = fp8.gemm(a, b, a_scale=a_scale, b_scale=b_scale, out_dtype="fp32")
    assert np.isposinf(made[0, :128]).all()
    assert np.isnan(made[0, 128:]).all()  # +inf of a's block and -inf of b's
    assert np.isnan(made[1]).all()
    assert (made[2, :128] == 150).all()
    assert np.isneginf(made[2, 128:]).all()
    right = reference.gemm(a, b, a_scale=a_scale, b_scale=b_scale, dtype="fp32")
    assert not reference.faults(made, right)


def test_what_blocks_refuse(fp8: tk.Library, linear: tk.Library) -> None:
    a, b = np.zeros((3, 200), NUMPY["fp8"]), np.zeros((200, 130), NUMPY["fp8"])
    right = {"a_scale": np.ones((3, 2), np.float32), "b_scale": np.ones((2, 2), np.float32)}
    fp8.gemm(a, b, **right)
    for changes, sentence in (
        ({"b_scale": None}, "b_scale: was null, must be given: a_scale and b_scale go together"),
        ({"a_scale": np.ones((3, 1), np.float32)}, r"a_scale: shape was \(3, 1\), must be \(3, 2\)"),
        ({"b_scale": np.ones((1, 2), np.float32)}, r"b_scale: shape was \(1, 2\), must be \(2, 2\)"),
        ({"b_scale": np.ones((2, 2))}, "b_scale: dtype was fp64, must be fp32"),
    ):
        with pytest.raises(tk.ArgumentError, match=sentence):
            fp8.gemm(a, b, **(right | changes))
    for changes, sentence in (
        ({"row_scale": np.ones(3, np.float32)}, "takes none of rows and columns"),
        ({"out": np.zeros((130, 3), np.float16).T}, "out is row-major where there are factors of blocks"),
    ):
        with pytest.raises(tk.NoKernelError, match=sentence):
            fp8.gemm(a, b, **right, **changes)
    with pytest.raises(tk.NoKernelError, match="factors of blocks are those of fp8"):
        fp8.gemm(a.astype(NUMPY["bf8"]), b.astype(NUMPY["bf8"]), **right)


def test_a_layer_of_one_column(linear: tk.Library) -> None:
    """A weight (1, k), or (n, 1), is of either layout: libraries of linear layers have it."""
    random = np.random.default_rng(14)
    for m, n, k in ((5, 1, 33), (5, 70, 1), (1, 1, 1)):
        x, weight = draw(random, m, k, "bf16", False), draw(random, n, k, "bf16", False)
        fault = reference.faults(linear.gemm(x, weight.T), reference.gemm(x, weight.T))
        assert not fault, fault


def test_what_few_rows_on_a_gpu_have_is_refused(linear: tk.Library) -> None:
    x, w = np.ones((2, 64), np.float16), np.ones((8, 64), np.float16)
    for more in ({"a_norm": x[0]}, {"b_up": w.T}):
        with pytest.raises(
            tk.ArgumentError, match=f"^{next(iter(more))}: was given for 2 x 64 by 8 columns, must be null"
        ):
            linear.gemm(x, w.T, **more)


def test_dtypes_of_out(fp8: tk.Library, linear: tk.Library) -> None:
    a = np.zeros((2, 3), NUMPY["fp8"])
    assert fp8.gemm(a, a.T).dtype == np.float16
    for to in OUT_OF_FP8:
        assert fp8.gemm(a, a.T, out_dtype=to).dtype == NUMPY[to]
    one = np.ones(2, np.float32)
    whole = np.zeros((2, 3), np.int8)
    assert linear.gemm(whole, whole.T, row_scale=one, out_dtype="bf16").dtype == NUMPY["bf16"]
    with pytest.raises(tk.ArgumentError, match="out_dtype: was 'int32', must be fp16, bf16 or fp32 when a is fp8"):
        fp8.gemm(a, a.T, out_dtype="int32")
    with pytest.raises(
        tk.ArgumentError, match="out_dtype: was 'fp16', must be absent when a is fp32: out has its dtype"
    ):
        fp8.gemm(a.astype(np.float32), a.T.astype(np.float32), out_dtype="fp16")
    with pytest.raises(
        tk.NoKernelError, match="products of int8 are int32 unless row_scale or column_scale makes them"
    ):
        linear.gemm(whole, whole.T, out_dtype="bf16")
    with pytest.raises(tk.ArgumentError, match="row_scale: m was 3, must be 2, the m of a"):
        linear.gemm(whole, whole.T, row_scale=np.ones(3, np.float32), out_dtype="bf16")


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_and_streams_give_the_same_bits(library: tk.Library, dtype: str) -> None:
    random = np.random.default_rng(5)
    a, b = draw(random, 1111, 301, dtype, False), draw(random, 301, 530, dtype, True)
    one = library.gemm(a, b, num_threads=1).tobytes()
    for threads in (2, 3, 16):
        assert library.gemm(a, b, num_threads=threads).tobytes() == one
    stream = tk.Stream()
    later = library.gemm(a, b, stream=stream)
    stream.synchronize()
    assert later.tobytes() == one


@pytest.mark.parametrize("target", TARGETS)
def test_clamp(library: tk.Library, target: str) -> None:
    random = np.random.default_rng(13)
    a, b = draw(random, 7, 33, "fp32", False), draw(random, 33, 70, "fp32", False)
    bias = random.standard_normal(70).astype(F32)
    for low, high in ((-1.5, 2.0), (0.25, 0.25), (-9.0, -0.1)):
        call: dict[str, Any] = {"activation": "clamp", "clamp_min": low, "clamp_max": high, "bias": bias}
        made = library.gemm(a, b, instance=kernel(library, target, a, b, **call), **call)
        fault = reference.faults(made, reference.gemm(a, b, bias=bias, activation="clamp", clamp=(low, high)))
        assert not fault, fault
        assert low <= made.min() <= made.max() <= high


def test_out_may_be_c(library: tk.Library) -> None:
    random = np.random.default_rng(6)
    a, b, c = (draw(random, *shape, "fp32", False) for shape in ((33, 20), (20, 70), (33, 70)))
    apart = library.gemm(a, b, c=c, beta=0.5, activation="silu")
    for order in ("C", "F"):
        both = np.array(c, order=order)
        library.gemm(a, b, c=both, out=both, beta=0.5, activation="silu")
        assert not reference.faults(both, reference.gemm(a, b, c, beta=0.5, activation="silu"))
    assert np.array_equal(apart, library.gemm(a, b, c=np.asfortranarray(c), beta=0.5, activation="silu"))


@pytest.mark.parametrize("target", TARGETS)
def test_special_values(library: tk.Library, target: str) -> None:
    """NaN and infinity stay in their rows and columns; a dtype too small overflows to infinity."""
    random = np.random.default_rng(7)
    for dtype, (m, n, k) in itertools.product([d for d in DTYPES if d != "int8"], [(7, 70, 33), (13, 65, 4)]):
        for value in (np.nan, np.inf, -np.inf):
            for activation in ACTIVATIONS:
                a, b = draw(random, m, k, dtype, False), draw(random, k, n, dtype, False)
                a[1, 2], b[3, 5] = value, value
                check(library, target, a, b, out_like(m, n, dtype, False), activation=activation)
        a, b = draw(random, m, k, dtype, False), draw(random, k, n, dtype, False)
        a[2] = b[:, 3] = np.finfo(DTYPES[dtype]).max if dtype != "bf16" else ml_dtypes.finfo(DTYPES[dtype]).max
        made = library.gemm(a, b, instance=kernel(library, target, a, b))
        assert np.isposinf(made[2, 3].astype(np.float32))


def test_zero_alpha_and_beta_read_nothing(library: tk.Library) -> None:
    nan = np.full((5, 5), np.nan, np.float32)
    one = np.eye(5, dtype=np.float32)
    assert (library.gemm(nan, nan, alpha=0.0) == 0).all()
    assert np.array_equal(library.gemm(one, one, c=nan, beta=0.0), one)
    assert np.array_equal(library.gemm(nan, nan, c=one, alpha=0.0, beta=2.0), 2 * one)


@pytest.mark.parametrize("target", TARGETS)
def test_int8_wraps(library: tk.Library, target: str) -> None:
    """Sums beyond int32 wrap; -128 * -128 and rows of one sign are exact."""
    for k, x, y in ((1 << 18, -128, -128), (3001, -128, 127), (3002, 127, 127)):
        a, b = np.full((7, k), x, np.int8), np.full((k, 3), y, np.int8)
        check(library, target, a, b, out_like(7, 3, "int8", False))
        check(library, target, np.asfortranarray(a), np.asfortranarray(b), out_like(7, 3, "int8", True))


def test_torch(library: tk.Library) -> None:
    torch = pytest.importorskip("torch")
    x, weight = torch.randn(9, 33).bfloat16(), torch.randn(70, 33).bfloat16()
    made = library.gemm(x, weight.T, bias=torch.zeros(70), activation="gelu")
    assert made.dtype == torch.bfloat16
    expected = torch.nn.functional.gelu(x.double() @ weight.double().T)
    assert torch.allclose(made.double(), expected, rtol=2**-7, atol=2**-12)
    whole = torch.randint(-128, 128, (5, 9), dtype=torch.int8)
    assert torch.equal(library.gemm(whole, whole.T), whole.int() @ whole.int().T)


F32 = np.float32
BAD = [
    ({"a": np.zeros((2, 3, 4), F32)}, "a: had 3 dimensions, must have 2: (m, k)"),
    ({"a": np.zeros((2, 3), np.float64)}, "a: dtype was fp64, must be fp32, fp16, bf16, int8, fp8 or bf8"),
    ({"b": np.zeros((3, 4), np.float16)}, "b: dtype was fp16, must be fp32, the dtype of a"),
    ({"b": np.zeros((5, 4), F32)}, "b: k was 5, must be 3, the k of a"),
    ({"b": np.zeros(3, F32)}, "b: had 1 dimensions, must have 2: (k, n)"),
    ({"a": np.zeros((4, 6), F32)[::2, ::2]}, "a: strides were (12, 2), one of them must be 1"),
    ({"out": np.zeros((2, 5), F32)}, "out: n was 5, must be 4, the n of b"),
    ({"out": np.zeros((3, 4), F32)}, "out: m was 3, must be 2, the m of a"),
    ({"out": np.zeros((2, 4), np.float16)}, "out: dtype was fp16, must be fp32, the dtype of a"),
    ({"row_scale": np.zeros(3, F32)}, "row_scale: m was 3, must be 2, the m of a"),
    ({"column_scale": np.zeros(3, F32)}, "column_scale: n was 3, must be 4, the n of b"),
    ({"c": np.zeros((2, 3), F32)}, "c: n was 3, must be 4, the n of b"),
    ({"bias": np.zeros(2, F32)}, "bias: n was 2, must be 4, the n of b"),
    ({"bias": np.zeros(4, np.float16)}, "bias: dtype was fp16, must be fp32"),
    ({"alpha": float("nan")}, "alpha: was nan, must be finite"),
    ({"beta": float("inf")}, "beta: was inf, must be finite"),
    (
        {"activation": "tanh"},
        "activation: was 'tanh', must be 'none', 'relu', 'gelu', 'gelu_tanh', 'silu', 'sigmoid', "
        "'hardswish' or 'clamp'",
    ),
    ({"activation": "clamp", "clamp_min": 7.0}, "clamp_min: was 7, must be at most 6, which is clamp_max"),
    ({"clamp_max": float("inf")}, "clamp_max: was inf, must be finite"),
    ({"out": np.broadcast_to(np.zeros((1, 4), F32), (2, 4))}, "out: "),
]


@pytest.mark.parametrize(("change", "text"), BAD, ids=[text.partition(",")[0] for _, text in BAD])
def test_bad_input(library: tk.Library, change: dict[str, Any], text: str) -> None:
    call: dict[str, Any] = {"a": np.zeros((2, 3), F32), "b": np.zeros((3, 4), F32), **change}
    with pytest.raises(tk.ArgumentError) as error:
        library.gemm(call.pop("a"), call.pop("b"), **call)
    assert str(error.value).startswith(text), str(error.value)


def test_bad_memory(library: tk.Library) -> None:
    a = np.zeros((4, 4), F32)
    with pytest.raises(tk.ArgumentError, match="out: shares memory with a, must have its own"):
        library.gemm(a, np.zeros((4, 4), F32), out=a)
    with pytest.raises(
        tk.ArgumentError, match="out: shares memory with c, must have its own or be c, with its strides"
    ):
        library.gemm(a, a, c=(c := np.zeros((4, 4), F32)), out=c.T)


def test_int8_takes_no_epilogue(library: tk.Library) -> None:
    a = np.zeros((4, 4), np.int8)
    with pytest.raises(tk.NoKernelError, match="int8 takes no activation"):
        library.gemm(a, a, activation="relu")
    with pytest.raises(tk.NoKernelError, match="int8 takes neither c nor bias"):
        library.gemm(a, a, bias=np.zeros(4, F32))
    with pytest.raises(tk.ArgumentError, match="alpha: was 2, must be 1 when a is int8 and no scale is given"):
        library.gemm(a, a, alpha=2.0)
    with pytest.raises(tk.ArgumentError, match="out: dtype was fp8, must be int32, fp32, fp16 or bf16 when a is int8"):
        library.gemm(a, a, out=np.zeros((4, 4), NUMPY["fp8"]))


def test_the_bound_sees_one_step_too_many() -> None:
    """The bound fails a result that is two steps of its dtype away, a lost term, and an infinity that is none."""
    random = np.random.default_rng(8)
    for dtype in ("fp32", "fp16", "bf16"):
        a, b = draw(random, 5, 20, dtype, False), draw(random, 20, 9, dtype, False)
        expected = reference.gemm(a, b)
        right = expected.out.astype(DTYPES[dtype])
        assert not reference.faults(right, expected)
        size = np.abs(right[2, 3].astype(np.float64))
        wrong = right.copy()
        wrong[2, 3] += np.asarray(size * 2.0**-6 if dtype != "fp32" else size * 2.0**-12, DTYPES[dtype])
        assert reference.faults(wrong, expected)
        lost = (a[:, :-1].astype(np.float64) @ b[:-1].astype(np.float64)).astype(DTYPES[dtype])
        assert reference.faults(lost, expected)
        wrong = right.copy()
        wrong[0, 0] = np.inf
        assert reference.faults(wrong, expected)


@pytest.mark.parametrize("dtype", ["fp16", "fp8"])
def test_rows_widened_beforehand(library: tk.Library, fp8: tk.Library, dtype: str) -> None:
    """Rows that several units would widen are widened first, 32 MiB at once: the same bits as by units alone."""
    of, random = fp8 if dtype == "fp8" else library, np.random.default_rng(17)
    for m, n, k in ((16, 257, 1), (37, 300, 77), (1100, 260, 9001)):
        wide = draw(random, m, k + 5, dtype, False)
        a, b = wide[:, 3 : 3 + k], draw(random, k, n, dtype, False)
        bias = random.standard_normal(n).astype(np.float32)
        parts = [of.gemm(a, b[:, i : i + 256], bias=bias[i : i + 256], num_threads=1) for i in range(0, n, 256)]
        for threads in (1, 2):
            out = of.gemm(a, b, bias=bias, num_threads=threads)
            assert np.array_equal(out.view(np.uint8), np.hstack(parts).view(np.uint8)), (m, n, k, threads)
