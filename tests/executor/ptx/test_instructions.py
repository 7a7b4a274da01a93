# SPDX-License-Identifier: MIT
"""Opcodes by groups against NumPy and formulas of the PTX ISA: 32 lanes of random and awkward values."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from tilekiln._core.dtypes import NUMPY

from tests.executor.ptx.small import HEAD, kernel, lanes
from tools.executor.ptx.module import FaultError, Module, reads, writes

NUMBERS = np.random.default_rng(15)
AWKWARD = [0, 1, 2, 31, 32, 33, 63, 64, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFF, 0x8000]


def words(kind: type) -> np.ndarray:
    bits = 8 * np.dtype(kind).itemsize
    made = NUMBERS.integers(0, 2**bits, 32, dtype=f"u{bits // 8}")
    made[: len(AWKWARD)] = np.array(AWKWARD, np.uint64).astype(made.dtype)
    return made.view(kind)


def floats() -> np.ndarray:
    made = NUMBERS.standard_normal(32).astype(np.float32) * 8
    made[:8] = [0, -0.0, np.inf, -np.inf, np.nan, 1e-41, 65519.9, 448.1]
    return made


U, S, UL, SL = np.uint32, np.int32, np.uint64, np.int64

TWO = {
    "add.s32": (S, lambda a, b: a + b),
    "sub.s64": (SL, lambda a, b: a - b),
    "min.s32": (S, np.minimum),
    "max.u32": (U, np.maximum),
    "max.s64": (SL, np.maximum),
    "mul.lo.s32": (S, lambda a, b: a * b),
    "mul.lo.s64": (SL, lambda a, b: a * b),
    "mul.hi.u32": (U, lambda a, b: (a.astype(UL) * b >> np.uint64(32)).astype(U)),
    "mul.hi.s32": (S, lambda a, b: (a.astype(SL) * b >> 32).astype(S)),
    "and.b32": (U, np.bitwise_and),
    "or.b64": (UL, np.bitwise_or),
    "xor.b32": (U, np.bitwise_xor),
}


@pytest.mark.quick(each="opcode")
@pytest.mark.parametrize("opcode", TWO)
def test_integers(opcode: str) -> None:
    kind, formula = TWO[opcode]
    a, b = words(kind), words(kind)[::-1].copy()
    letter = "d" if np.dtype(kind).itemsize == 8 else "r"
    with np.errstate(over="ignore"):
        assert np.array_equal(lanes(opcode, letter * 3, a, b, result=kind), formula(a, b))


def test_wide_products_and_divisions() -> None:
    a, b = words(S), words(S)[::-1].copy()
    assert np.array_equal(lanes("mul.wide.s32", "drr", a, b, result=SL), a.astype(SL) * b)
    assert np.array_equal(
        lanes("mul.wide.u32", "drr", a.view(U), b.view(U), result=UL), a.view(U).astype(UL) * b.view(U)
    )
    b[b == 0] = 7
    quotient = [math.trunc(int(x) / int(y)) if abs(int(y)) > 1 else int(x) * int(y) for x, y in zip(a, b, strict=True)]
    assert np.array_equal(lanes("div.s32", "rrr", a, b, result=S), np.array(quotient).astype(S))
    assert np.array_equal(lanes("rem.u32", "rrr", a.view(U), b.view(U), result=U), a.view(U) % b.view(U))


def test_shifts_clamp() -> None:
    a, by = words(U), np.array([*range(31), 40], U)
    inside = by < 32
    left = np.where(inside, a << np.minimum(by, 31), 0)
    assert np.array_equal(lanes("shl.b32", "rrr", a, by, result=U), left.astype(U))
    right = a.view(S) >> np.minimum(by, 31).astype(S)
    assert np.array_equal(lanes("shr.s32", "rrr", a, by, result=S), right)
    assert np.array_equal(
        lanes("shr.u32", "rrr", a, by, result=U), np.where(inside, a >> np.minimum(by, 31), 0).astype(U)
    )


def bit_string(word: int, bits: int) -> str:
    return f"{int(word):0{bits}b}"


@pytest.mark.parametrize("kind", [U, UL])
def test_bits_are_counted_and_turned(kind: type) -> None:
    a, bits, letter = words(kind), 8 * np.dtype(kind).itemsize, "r" if kind is U else "d"
    written = [bit_string(word, bits) for word in a]
    counts = {"popc": [one.count("1") for one in written], "clz": [len((one + "1").split("1")[0]) for one in written]}
    for opcode, expected in counts.items():
        made = lanes(f"{opcode}.b{bits}", f"r{letter}", a, result=U)
        assert made.tolist() == expected, opcode
    made = lanes(f"brev.b{bits}", letter * 2, a, result=kind)
    assert made.tolist() == [int(one[::-1], 2) for one in written]


def test_fields_are_extracted() -> None:
    a, at, count = words(U), np.arange(32, dtype=U) * 5 % 37, np.arange(32, dtype=U) * 7 % 35
    for kind in "us":
        expected = []
        for word, begin, length in zip(a.tolist(), at.tolist(), count.tolist(), strict=True):
            sign = kind == "s" and length and word >> min(begin + length - 1, 31) & 1
            held = [word >> begin + bit & 1 if begin + bit < 32 else sign for bit in range(min(length, 32))]
            expected.append(sum(int(bit) << i for i, bit in enumerate([*held, *[sign] * (32 - len(held))])))
        assert lanes(f"bfe.{kind}32", "rrrr", a, at, count, result=U).tolist() == expected


def test_lanes_are_matched() -> None:
    for kind, letter in ((U, "r"), (UL, "d")):
        a = (NUMBERS.integers(0, 4, 32).astype(kind) << kind(8 * np.dtype(kind).itemsize - 8)).astype(kind)
        expected = [sum(int(a[j] == a[k]) << j for j in range(32)) for k in range(32)]
        bits = 8 * np.dtype(kind).itemsize
        assert lanes(f"match.any.sync.b{bits}", f"r{letter}", a, result=U, tail=", -1").tolist() == expected
        for same in (False, True):
            a = np.full(32, 7, kind)
            a[5] = 7 if same else 8
            made = lanes(f"match.all.sync.b{bits}", f"r{letter}", a, result=U, tail=", -1")
            assert made.tolist() == [0xFFFFFFFF * same] * 32
    body = "setp.lt.u32 p1, r0, 16; @p1 bra low; bra out; low: match.all.sync.b32 r1|p2, 3, 0xffff; "
    body += "selp.u32 r2, r1, 0, p2; mul.wide.u32 d2, r0, 4; add.s64 d2, d2, d0; st.global.u32 [d2], r2; out:"
    made = np.zeros(16, U)
    Module(kernel(body, 1)).launch("k", (1,), (32,), [writes(made)])
    assert made.tolist() == [0xFFFF] * 16


def test_halves_are_compared() -> None:
    a, b = words(U), words(U)
    b[::3] = a[::3]
    halves = [x.view(np.float16).reshape(32, 2) for x in (a, b)]
    for name, by in (("lt", np.less), ("le", np.less_equal), ("eq", np.equal), ("ge", np.greater_equal)):
        expected = np.where(by(*halves), 0xFFFF, 0).astype(np.uint16).view(U)[:, 0]
        assert np.array_equal(lanes(f"set.{name}.u32.f16x2", "rrr", a, b, result=U), expected)


def test_bytes_are_permuted() -> None:
    a, b, pick = words(U), words(U)[::-1].copy(), words(U)
    both = np.concatenate([a.view(np.uint8).reshape(32, 4), b.view(np.uint8).reshape(32, 4)], 1)
    expected = np.zeros((32, 4), np.uint8)
    for k in range(4):
        n = pick >> (4 * k) & 15
        byte = both[np.arange(32), n & 7]
        expected[:, k] = np.where(n & 8, np.where(byte & 0x80, 255, 0), byte)
    assert np.array_equal(lanes("prmt.b32", "rrrr", a, b, pick, result=U), expected.view(U)[:, 0])
    assert np.array_equal(lanes("lop3.b32", "rrrr", a, b, pick, result=U, tail=", 0xea"), a & b | pick)
    field = (b & ~np.uint32(0xFF0)) | (a & 0xFF) << 4
    assert np.array_equal(lanes("bfi.b32", "rrr", a, b, result=U, tail=", 4, 8"), field)
    joined = lanes("bfi.b64", "ddd", a.astype(UL), b.astype(UL), result=UL, tail=", 32, 32")
    assert np.array_equal(joined, a.astype(UL) << np.uint64(32) | b)


FLOATS = {
    "add.f32": np.add,
    "sub.f32": np.subtract,
    "mul.f32": np.multiply,
    "max.f32": np.fmax,
    "min.f32": np.fmin,
    "max.NaN.f32": np.maximum,
    "min.NaN.f32": np.minimum,
    "div.rn.f32": np.divide,
    "copysign.f32": lambda a, b: np.copysign(b, a),
}


@pytest.mark.quick(each="opcode")
@pytest.mark.parametrize("opcode", FLOATS)
def test_floats(opcode: str) -> None:
    a, b = floats(), NUMBERS.permutation(floats())
    with np.errstate(all="ignore"):
        expected = FLOATS[opcode](a, b)
    made = lanes(opcode, "fff", a, b, result=np.float32)
    same = (made == expected) | (np.isnan(made) & np.isnan(expected))
    assert same.all(), (a[~same], b[~same], made[~same], expected[~same])


DOUBLES = {
    "add.f64": np.add,
    "sub.rn.f64": np.subtract,
    "mul.f64": np.multiply,
    "div.rn.f64": np.divide,
    "max.f64": np.fmax,
    "min.f64": np.fmin,
}


@pytest.mark.quick(each="opcode")
@pytest.mark.parametrize("opcode", DOUBLES)
def test_doubles(opcode: str) -> None:
    a, b = (NUMBERS.standard_normal(32) * 8 for _ in range(2))
    a[:6], b[2:8] = [0, -0.0, np.inf, -np.inf, np.nan, 1e300], [np.inf, 0, 1e300, -0.0, np.nan, 7]
    with np.errstate(all="ignore"):
        expected = DOUBLES[opcode](a, b)
    assert np.array_equal(lanes(opcode, "ddd", a, b, result=np.float64), expected, equal_nan=True)


def test_conversions_of_doubles() -> None:
    a = np.append(NUMBERS.standard_normal(30) * 8, [1e300, np.nan])
    assert np.array_equal(lanes("cvt.rmi.f64.f64", "dd", a, result=np.float64), np.floor(a), equal_nan=True)
    with np.errstate(over="ignore"):
        assert np.array_equal(lanes("cvt.rn.f32.f64", "fd", a, result=np.float32), a.astype(np.float32), equal_nan=True)
    assert np.array_equal(lanes("abs.f64", "dd", a, result=np.float64), np.abs(a), equal_nan=True)
    assert np.array_equal(lanes("neg.f64", "dd", a, result=np.float64), -a, equal_nan=True)
    whole = np.nan_to_num(np.trunc(np.clip(a, -(2**31), 2**31 - 1))).astype(S)
    assert np.array_equal(lanes("cvt.rzi.s32.f64", "rd", a, result=S), whole)
    for kind, letter, word in ((S, "r", "s32"), (U, "r", "u32"), (SL, "d", "s64"), (UL, "d", "u64")):
        b = words(kind)
        assert np.array_equal(lanes(f"cvt.rn.f64.{word}", f"d{letter}", b, result=np.float64), b.astype(np.float64))
    f = floats()
    assert np.array_equal(lanes("cvt.f64.f32", "df", f, result=np.float64), f.astype(np.float64), equal_nan=True)
    sums = lanes("fma.rn.f64", "dddd", a, a, a, result=np.float64)
    assert np.allclose(sums[:30], a[:30] * a[:30] + a[:30], rtol=1e-12)


def test_multiply_adds_round_once() -> None:
    a, b, c = (NUMBERS.standard_normal(32).astype(np.float32) for _ in range(3))
    exact = a.astype(np.longdouble) * b + c
    assert np.array_equal(lanes("fma.rn.f32", "ffff", a, b, c, result=np.float32), exact.astype(np.float32))
    a[0] = np.nan
    kept = np.where(np.isnan(a), 0, np.clip(exact, 0, 1)).astype(np.float32)
    assert np.array_equal(lanes("fma.rn.sat.f32", "ffff", a, b, c, result=np.float32), kept)


def test_multiply_adds_round_down() -> None:
    a, b, c = (NUMBERS.standard_normal(32).astype(np.float32) for _ in range(3))
    c[:8], a[8:12] = 12582913, 0
    made = lanes("fma.rm.f32", "ffff", a, b, c, result=np.float32)
    exact = a.astype(np.longdouble) * b + c
    assert (made <= exact).all()
    assert (np.nextafter(made, np.float32(np.inf)) > exact).all()
    awkward = floats()
    saturated = lanes("cvt.sat.f32.f32", "ff", awkward, result=np.float32)
    assert np.array_equal(saturated, np.clip(np.where(np.isnan(awkward), 0, awkward), 0, 1))


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_halves_are_multiplied_and_added(kind: str) -> None:
    """Numbers of few bits, whose sums are exact before they are rounded."""
    of = np.float16 if kind == "f16" else NUMPY["bf16"]
    a, b, c = (NUMBERS.integers(-200, 200, 64).astype(of) for _ in range(3))
    a[0] = np.nan
    made = lanes(f"fma.rn.{kind}x2", "rrrr", *(one.view(np.uint32) for one in (a, b, c)), result=np.uint32).view(of)
    exact = (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(of)
    assert np.array_equal(made, exact, equal_nan=True)


@pytest.mark.parametrize(
    ("opcode", "function", "most"),
    [
        ("ex2.approx.ftz.f32", np.exp2, 2**-23),
        ("tanh.approx.f32", np.tanh, 2**-11),
        ("rcp.rn.f32", np.reciprocal, 0),
        ("sqrt.rn.f32", np.sqrt, 0),
    ],
)
def test_functions(opcode: str, function: np.ufunc, most: float) -> None:
    x = np.abs(NUMBERS.standard_normal(32).astype(np.float32)) * 5 + 0.1
    x[:8] = np.linspace(1.495, 1.505, 8)  # where a polynomial for 2^f, |f| <= 1/2, is worst
    expected = function(x.astype(np.float64)) if most else function(x.astype(np.float64)).astype(np.float32)
    made = lanes(opcode, "ff", x, result=np.float32)
    assert np.all(np.abs(made - expected) <= most * np.abs(expected))


def test_conversions() -> None:
    a, b = floats(), NUMBERS.permutation(floats())
    with np.errstate(over="ignore", invalid="ignore"):
        for opcode, kind in (("cvt.rn.bf16x2.f32", NUMPY["bf16"]), ("cvt.rn.f16x2.f32", np.float16)):
            high, low = a.astype(kind), b.astype(kind)
            made = lanes(opcode, "rff", a, b, result=U).view(np.uint16).reshape(32, 2)
            for column, expected in ((1, high), (0, low)):
                number = ~np.isnan(expected.astype(np.float32))
                assert np.array_equal(made[number, column], expected.view(np.uint16)[number])
                assert np.all(made[~number, column] == 0x7FFF)
        made = lanes("cvt.rn.satfinite.e4m3x2.f32", "hff", a, b, result=np.uint16).view(np.uint8).reshape(32, 2)
        for column, x in ((1, a), (0, b)):
            expected = np.clip(x, -448, 448).astype(NUMPY["fp8"])
            number = ~np.isnan(x)
            assert np.array_equal(made[number, column], expected.view(np.uint8)[number])
    half = NUMBERS.standard_normal(32).astype(np.float16)
    assert np.array_equal(lanes("cvt.f32.f16", "fh", half.view(np.uint16), result=np.float32), half.astype(np.float32))
    i = words(S)
    assert np.array_equal(lanes("cvt.rn.f32.s32", "fr", i, result=np.float32), i.astype(np.float32))
    assert np.array_equal(lanes("cvt.s64.s32", "dr", i, result=SL), i.astype(SL))
    assert np.array_equal(lanes("cvt.u64.u32", "dr", i.view(U), result=UL), i.view(U).astype(UL))


def test_comparisons_know_nan() -> None:
    a, b = floats(), NUMBERS.permutation(floats())
    with np.errstate(invalid="ignore"):
        for word, expected in (
            ("lt", a < b),
            ("ltu", ~(a >= b)),
            ("ne", (a < b) | (a > b)),
            ("num", ~np.isnan(a) & ~np.isnan(b)),
        ):
            assert np.array_equal(lanes(f"setp.{word}.f32", "pff", a, b, result=U), expected.astype(U)), word


@pytest.mark.parametrize(
    ("mode", "by", "clamp"),
    [("bfly", 2, 31), ("bfly", 1, 31), ("idx", 5, 31), ("idx", 1, 0x1C1F), ("up", 3, 0), ("down", 4, 31)],
)
def test_shuffles(mode: str, by: int, clamp: int) -> None:
    a, lane = words(U), np.arange(32)
    segment = clamp >> 8 & 31
    least, most = lane & segment, (lane & segment) | (clamp & 31 & ~segment)
    j = {"bfly": lane ^ by, "idx": least | (by & ~segment), "up": lane - by, "down": lane + by}[mode]
    inside = j >= most if mode == "up" else j <= most
    made = lanes(f"shfl.sync.{mode}.b32", "rr", a, result=U, tail=f", {by}, {clamp}, -1")
    assert np.array_equal(made, a[np.where(inside, j, lane)])


def test_reductions_and_votes() -> None:
    a = words(S)
    with np.errstate(over="ignore"):
        assert np.all(lanes("redux.sync.add.s32", "rr", a, result=S, tail=", -1") == a.sum(dtype=S))


def test_matrices_of_mma() -> None:
    """m16n8k16: fragments as the manual draws them, by stmatrix-free NumPy."""
    a, b = (NUMBERS.standard_normal(shape).astype(NUMPY["bf16"]) for shape in ((16, 16), (16, 8)))
    c = NUMBERS.standard_normal((16, 8)).astype(np.float32)
    lane = np.arange(32)
    group, four = lane // 4, lane % 4
    words_a = np.stack(
        [
            a[(group + 8 * (w & 1))[:, None], (2 * four + 8 * (w >> 1))[:, None] + [0, 1]].copy().view(U)[:, 0]
            for w in range(4)
        ],
        1,
    )
    words_b = np.stack(
        [b[(2 * four + 8 * w)[:, None] + [0, 1], group[:, None]].copy().view(U)[:, 0] for w in range(2)], 1
    )
    sums = np.stack([c[group + 8 * (w >> 1), 2 * four + (w & 1)] for w in range(4)], 1)
    body = "shl.b32 r1, r0, 4; cvt.u64.u32 d10, r1; add.s64 d11, d10, d1; ld.global.v4.u32 {r2, r3, r4, r5}, [d11];\n"
    body += "add.s64 d11, d10, d3; ld.global.v4.f32 {f1, f2, f3, f4}, [d11]; shl.b32 r1, r0, 3; cvt.u64.u32 d12, r1;\n"
    body += "add.s64 d11, d12, d2; ld.global.v2.u32 {r6, r7}, [d11];\n"
    body += "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {f5, f6, f7, f8}, {r2, r3, r4, r5}, {r6, r7}, "
    body += "{f1, f2, f3, f4};\n"
    body += "add.s64 d11, d10, d0; st.global.v4.f32 [d11], {f5, f6, f7, f8};"
    made = np.zeros((32, 4), np.float32)
    Module(kernel(body, 4)).launch("k", (1,), (32,), [writes(made), reads(words_a), reads(words_b), reads(sums)])
    exact = a.astype(np.float64) @ b.astype(np.float64) + c
    expected = np.stack([exact[group + 8 * (w >> 1), 2 * four + (w & 1)] for w in range(4)], 1)
    np.testing.assert_allclose(made, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_from_shared_memory(transposed: bool) -> None:
    """Four 8 x 8 matrices; a lane holds two neighbours of row lane / 4, or of column lane / 4."""
    rows = NUMBERS.integers(0, 2**16, (32, 8), np.uint16)
    trans = ".trans" if transposed else ""
    body = "shl.b32 r1, r0, 4; cvt.u64.u32 d10, r1; add.s64 d11, d10, d1; ld.global.v4.u32 {r2, r3, r4, r5}, [d11];\n"
    body += "mov.u32 r6, tile; add.s32 r6, r6, r1; st.shared.v4.u32 [r6], {r2, r3, r4, r5}; bar.warp.sync -1;\n"
    body += f"ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{r7, r8, r9, r10}}, [r6];\n"
    body += "add.s64 d11, d10, d0; st.global.v4.u32 [d11], {r7, r8, r9, r10};"
    made = np.zeros((32, 4, 2), np.uint16)
    Module(kernel(body, 2, shared=512)).launch("k", (1,), (32,), [writes(made), reads(rows)])
    matrices = rows.reshape(4, 8, 8)
    if transposed:
        matrices = matrices.swapaxes(1, 2)
    assert np.array_equal(made, matrices.reshape(4, 32, 2).swapaxes(0, 1))


UNKNOWN = {
    "frobnicate.b32 r1, r2": "the opcode frobnicate is unknown",
    "add.rz.f32 f1, f2, f3": "the type .rz is unknown",
    "add.s32 r1, r2, r999": "the operand r999 is unknown",
    "mov.b32 r1, d2": "the register d2 has another width",
    "ld.local.u32 r1, [d0]": "the state space is unknown here",
    "fence.proxy.tensormap": "the proxy is unknown",
    "wgmma.mma_async.sync.aligned.m64n12k16.f32.bf16.bf16 r1, r2": "the shape .m64n12k16 is unknown",
    "mul.lo.s32 r1, r2": "it has 2 operands, must have 3",
    "bra nowhere": "the label is nowhere",
    "mapa.u64 d1, d2, 1": "it must be .shared::cluster.u32",
    "barrier.cluster.arrive.aligned": "its order must be written",
    "barrier.cluster.wait.acquire": "it must be .aligned",
    "mov.u32 r1, %cluster_nctarank": "the operand %cluster_nctarank is unknown",
    "st.shared::cluster.u64 [r1], d1": "the type is unknown here",
    "ld.shared::cluster.u32 r1, [r2]": "the state space is unknown",
    "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [r1], [d1, {r2}], "
    "[r4]": "it has 3 operands, must have 4",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [r1], [d1], 16, [r2], "
    "h1": "the modifier .multicast::cluster is unknown",
    "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r1]": "the mbarrier must lie in .shared::cta",
    "cvt.rn.f32.f16.sat f1, h1": "the conversion is unknown",
    "add.ftz.f64 d1, d2, d3": "an integer is not rounded",
    "max.NaN.f64 d1, d2, d3": "an integer is never NaN",
    "cvt.rn.f64.f32 d1, f1": "the conversion is unknown",
    "cvt.rzi.u32.f64 r1, d1": "the conversion is unknown",
    "add.f64 d1, d2, 0f3F800000": "the constant 0f3F800000 is no float",
    "red.global.add.f64 [d0], d1": "the type is unknown here",
    "abs.s16 h1, h2": "the type is unknown here",
    "abs.f16 h1, h2": "the type is unknown here",
    "neg.f16 h1, h2": "the type is unknown here",
    "setp.lt.f16 p1, h1, h2": "the type is unknown here",
    "setp.eq.b8 p1, h1, h2": "the type is unknown here",
    "shr.f16 h1, h2, 1": "the type is no integer's",
    "add.f16 h1, h2, h3": "the type is no integer's",
    "bfe.u64 d1, d2, r1, r2": "the modifier .u64 is unknown",
    "match.any.sync.b16 r1, h1, -1": "the modifier .b16 is unknown",
    "match.any.sync.b32 r1|p1, r2, -1": "it has 4 operands, must have 3",
    "brev.u32 r1, r2": "the modifier .u32 is unknown",
    "bfind.u32 r1, r2": "the opcode bfind is unknown",
    "ld.global.u32 r1, [d0+x]": "the offset x is unknown",
    "call (r1), f, (r2)": "the opcode call is unknown",
    "mov.u32 r1, %clock": "the operand %clock is unknown",
    "st.shared.u32 [array], 1": "the operand array is unknown",
}


@pytest.mark.parametrize("line", UNKNOWN)
def test_what_is_unknown_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(FaultError) as caught:
        Module(kernel(line + ";"))
    assert caught.value.kind == "DECODE"
    assert UNKNOWN[line] in str(caught.value)
    assert line in str(caught.value)


def test_shared_variables_of_a_module_are_each_kernels_own() -> None:
    """Outside of kernels: two that name one have it at their own place, before dynamic memory; a third has none."""
    text = kernel(
        "mov.u32 r1, own; mov.u32 r2, both; mov.u32 r3, more; st.shared.u32 [r2], r0; st.shared.u32 [r1+36], r0; "
        "sub.s32 r4, r1, r2; abs.s32 r4, r4; st.global.v2.u32 [d0], {r3, r4};",
        1,
    )
    first, second, third = (
        text.removeprefix(HEAD).replace(" k(", f" {name}(").replace("k_param", f"{name}_param") for name in "abc"
    )
    variables = (
        ".shared .align 8 .b8 own[40];\n.shared .align 4 .b8 both[400];\n.extern .shared .align 16 .b8 more[];\n"
    )
    module = Module(f"{HEAD}{variables}{first}{second}{third.replace('both', 'own')}")
    for name, dynamic, apart in (("a", 1024 + 448, (40, 400)), ("b", 1024 + 448, (40, 400)), ("c", 1024 + 48, (0,))):
        made = np.zeros(2, U)
        module.launch(name, (1,), (1,), [writes(made)], shared_bytes=64)
        assert made[0] == dynamic, name
        assert made[1] in apart


OUTSIDE = {
    ".global .align 4 .b8 table[16];": "global variables are unknown here",
    ".visible .func f() { ret; }": "the directive is unknown",
    ".shared .align 4 .b8 tile[];": "shared memory has no size",
    ".shared .align x .b8 tile[4];": "the number x is unknown",
    ".const .align 1 .b8 table[2] = {1, 2, 3};": "the list is longer than the variable",
    ".const .align 4 .u32 table[2] = {1, 2};": "constants are lists of bytes here",
    ".tex .u64 image;": "the directive is unknown",
}


@pytest.mark.parametrize("line", OUTSIDE)
def test_what_is_unknown_outside_of_kernels_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(FaultError, match=f"^DECODE: {OUTSIDE[line]}: .*{re.escape(line[-12:-1])}"):
        Module(kernel("").replace(".visible", f"{line}\n.visible"))


def test_shared_memory_behind_a_use_of_the_dynamic_is_refused() -> None:
    text = kernel("mov.u32 r1, more; .shared .b8 late[16];").replace(HEAD, f"{HEAD}.extern .shared .b8 more[];\n")
    with pytest.raises(FaultError, match=r"declared behind a use of the dynamic one: \.shared \.b8 late\[16\]"):
        Module(text)


def test_a_rank_of_clusters_is_refused_with_its_line() -> None:
    text = kernel("").replace(".maxntid", ".maxclusterrank 8\n.maxntid")
    with pytest.raises(FaultError, match=r"the directive of a kernel is unknown: \.maxclusterrank 8"):
        Module(text)
