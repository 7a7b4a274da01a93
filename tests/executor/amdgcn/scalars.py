# SPDX-License-Identifier: MIT
"""Results of scalar instructions in Python integers, from AMD's ISA manuals and not from the executor."""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.executor.amdgcn.assembled import ALL, GFX9, RDNA, Snippet

GFX12 = ("gfx1201",)
SAMPLES = 10  # pairs of operands that each instruction gets


@dataclasses.dataclass(frozen=True)
class Scalar:
    """{d} {a} {b}: registers or pairs of them. expected(a, b, scc, old d): the result, or that and the new scc."""

    text: str
    expected: Callable[..., Any]
    on: tuple[str, ...] = ALL
    bits: int = 32  # of d and a
    bits_b: int = 0  # of b, where it differs
    kind: str = "u"  # of the operands: u bits, f floats, m floats of moderate size


def signed(value: int, bits: int = 32) -> int:
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


def real(word: int) -> float:
    return struct.unpack("<f", struct.pack("<I", word))[0]


def word(value: float) -> int:
    with np.errstate(all="ignore"):
        return int(np.float32(value).view(np.uint32))


def _field(a: int, b: int, bits: int, is_signed: bool) -> tuple[int, int]:
    at, count = b & (bits - 1), b >> 16 & 127
    source = signed(a, bits) if is_signed else a
    found = (source >> at) & ((1 << count) - 1)
    if is_signed and 0 < count < bits:
        found = signed(found, count)
    return found & ((1 << bits) - 1), int(found != 0)


def _overflow(value: int) -> int:
    return int(not -(2**31) <= value < 2**31)


def _set(names: str, text: str, expected: Callable[..., Any], on: tuple[str, ...] = ALL, **more: Any) -> list[Scalar]:
    return [Scalar(f"{name} {text}", expected, on, **more) for name in names.split()]


def _old_and_new(old: str, new: str, expected: Callable[..., Any], **more: Any) -> list[Scalar]:
    """gfx9 and RDNA 3 know the first spelling, gfx1201 the second; the assembler takes the first there too."""
    return [
        *_set(old, "{d}, {a}, {b}", expected, (*GFX9, "gfx1100"), **more),
        *_set(new, "{d}, {a}, {b}", expected, GFX12, **more),
    ]


def _nonzero(function: Callable[[int, int], int], bits: int = 32) -> Callable[..., tuple[int, int]]:
    def expected(a: int, b: int, scc: int, old: int) -> tuple[int, int]:
        made = function(a, b) & ((1 << bits) - 1)
        return made, int(made != 0)

    return expected


def _clamped(low: int, high: int) -> Callable[..., int]:
    return lambda a, b, c, o: max(low, min(high, math.trunc(real(a)) if math.isfinite(real(a)) else 0))


BOTH = "{d}, {a}, {b}"
ARITHMETIC = [
    *_old_and_new("s_add_u32", "s_add_co_u32", lambda a, b, c, o: (a + b, a + b >> 32)),
    *_old_and_new("s_sub_u32", "s_sub_co_u32", lambda a, b, c, o: (a - b, int(b > a))),
    *_old_and_new("s_addc_u32", "s_add_co_ci_u32", lambda a, b, c, o: (a + b + c, a + b + c >> 32)),
    *_old_and_new("s_subb_u32", "s_sub_co_ci_u32", lambda a, b, c, o: (a - b - c, int(b + c > a))),
    *_old_and_new("s_add_i32", "s_add_co_i32", lambda a, b, c, o: (a + b, _overflow(signed(a) + signed(b)))),
    *_old_and_new("s_sub_i32", "s_sub_co_i32", lambda a, b, c, o: (a - b, _overflow(signed(a) - signed(b)))),
    *_set("s_mul_i32", BOTH, lambda a, b, c, o: a * b),
    *_set("s_mul_hi_u32", BOTH, lambda a, b, c, o: a * b >> 32),
    *_set("s_mul_hi_i32", BOTH, lambda a, b, c, o: signed(a) * signed(b) >> 32),
    *_set("s_min_i32", BOTH, lambda a, b, c, o: (a if signed(a) < signed(b) else b, int(signed(a) < signed(b)))),
    *_set("s_max_i32", BOTH, lambda a, b, c, o: (a if signed(a) > signed(b) else b, int(signed(a) > signed(b)))),
    *_set("s_min_u32", BOTH, lambda a, b, c, o: (min(a, b), int(a < b))),
    *_set("s_max_u32", BOTH, lambda a, b, c, o: (max(a, b), int(a > b))),
    *_set("s_absdiff_i32", BOTH, _nonzero(lambda a, b: abs(signed(a) - signed(b)))),
    *(
        Scalar(f"s_lshl{n}_add_u32 {BOTH}", lambda a, b, c, o, n=n: ((a << n) + b, int((a << n) + b >= 2**32)))
        for n in (1, 2, 3, 4)
    ),
    *_set("s_movk_i32", "{d}, 0x8765", lambda a, b, c, o: 0xFFFF8765),
    *_set(
        "s_addk_i32", "{d}, 0x8765", lambda a, b, c, o: (o - 0x789B, _overflow(signed(o) - 0x789B)), (*GFX9, "gfx1100")
    ),
    *_set("s_addk_co_i32", "{d}, 0x8765", lambda a, b, c, o: (o - 0x789B, _overflow(signed(o) - 0x789B)), GFX12),
    *_set("s_mulk_i32", "{d}, 0x8765", lambda a, b, c, o: o * -0x789B),
    *_set("s_add_nc_u64", BOTH, lambda a, b, c, o: a + b, GFX12, bits=64),
    *_set("s_sub_nc_u64", BOTH, lambda a, b, c, o: a - b, GFX12, bits=64),
    *_set("s_mul_u64", BOTH, lambda a, b, c, o: a * b, GFX12, bits=64),
]
BITS = [
    *_set("s_mov_b32", "{d}, {a}", lambda a, b, c, o: a),
    *_set("s_mov_b64", "{d}, {a}", lambda a, b, c, o: a, bits=64),
    *_set("s_cselect_b32", BOTH, lambda a, b, c, o: a if c else b),
    *_set("s_cselect_b64", BOTH, lambda a, b, c, o: a if c else b, bits=64),
    *_set("s_cmov_b32", "{d}, {a}", lambda a, b, c, o: a if c else o),
    *_set("s_lshl_b32", BOTH, _nonzero(lambda a, b: a << (b & 31))),
    *_set("s_lshr_b32", BOTH, _nonzero(lambda a, b: a >> (b & 31))),
    *_set("s_ashr_i32", BOTH, _nonzero(lambda a, b: signed(a) >> (b & 31))),
    *_set("s_lshl_b64", BOTH, _nonzero(lambda a, b: a << (b & 63), 64), bits=64, bits_b=32),
    *_set("s_lshr_b64", BOTH, _nonzero(lambda a, b: a >> (b & 63), 64), bits=64, bits_b=32),
    *_set("s_ashr_i64", BOTH, _nonzero(lambda a, b: signed(a, 64) >> (b & 63), 64), bits=64, bits_b=32),
    *_set("s_bfe_u32", "{d}, {a}, 0x90005", lambda a, b, c, o: _field(a, 0x90005, 32, False)),
    *_set("s_bfe_i32", "{d}, {a}, 0x90005", lambda a, b, c, o: _field(a, 0x90005, 32, True)),
    *_set("s_bfe_u64", "{d}, {a}, 0x210011", lambda a, b, c, o: _field(a, 0x210011, 64, False), bits=64),
    *_set("s_bfe_i64", "{d}, {a}, 0x210011", lambda a, b, c, o: _field(a, 0x210011, 64, True), bits=64),
    *_set("s_bfe_i64", "{d}, {a}, 0x200000", lambda a, b, c, o: _field(a, 0x200000, 64, True), bits=64),
    *_set("s_bfm_b32", BOTH, lambda a, b, c, o: ((1 << (a & 31)) - 1) << (b & 31)),
    *_set("s_pack_ll_b32_b16", BOTH, lambda a, b, c, o: a & 0xFFFF | b << 16),
    *_set("s_pack_lh_b32_b16", BOTH, lambda a, b, c, o: a & 0xFFFF | b & 0xFFFF0000),
    *_set("s_pack_hh_b32_b16", BOTH, lambda a, b, c, o: a >> 16 | b & 0xFFFF0000),
    *_set("s_not_b32", "{d}, {a}", _nonzero(lambda a, b: ~a)),
    *_set("s_not_b64", "{d}, {a}", _nonzero(lambda a, b: ~a, 64), bits=64),
    *_set("s_abs_i32", "{d}, {a}", _nonzero(lambda a, b: abs(signed(a)))),
    *_set("s_bcnt1_i32_b32", "{d}, {a}", _nonzero(lambda a, b: a.bit_count())),
    *_set("s_sext_i32_i16", "{d}, {a}", lambda a, b, c, o: signed(a & 0xFFFF, 16)),
    *_set("s_sext_i32_i8", "{d}, {a}", lambda a, b, c, o: signed(a & 0xFF, 8)),
    *_set("s_brev_b32", "{d}, {a}", lambda a, b, c, o: int(f"{a:032b}"[::-1], 2)),
    *_set("s_ff1_i32_b32", "{d}, {a}", lambda a, b, c, o: (a & -a).bit_length() - 1, GFX9),
    *_set("s_ctz_i32_b32", "{d}, {a}", lambda a, b, c, o: (a & -a).bit_length() - 1, RDNA),
    *_set("s_flbit_i32_b32", "{d}, {a}", lambda a, b, c, o: 32 - a.bit_length() if a else -1, GFX9),
    *_set("s_clz_i32_u32", "{d}, {a}", lambda a, b, c, o: 32 - a.bit_length() if a else -1, RDNA),
    *_set("s_bitset1_b32", "{d}, {a}", lambda a, b, c, o: o | 1 << (a & 31)),
    *_set("s_bitset0_b32", "{d}, {a}", lambda a, b, c, o: o & ~(1 << (a & 31))),
    *(
        Scalar(f"{name}_b{bits} {BOTH}", _nonzero(function, bits), on, bits=bits)
        for bits in (32, 64)
        for name, function, on in (
            ("s_and", lambda a, b: a & b, ALL),
            ("s_or", lambda a, b: a | b, ALL),
            ("s_xor", lambda a, b: a ^ b, ALL),
            ("s_nand", lambda a, b: ~(a & b), ALL),
            ("s_nor", lambda a, b: ~(a | b), ALL),
            ("s_xnor", lambda a, b: ~(a ^ b), ALL),
            ("s_andn2", lambda a, b: a & ~b, GFX9),
            ("s_orn2", lambda a, b: a | ~b, GFX9),
            ("s_and_not1", lambda a, b: a & ~b, RDNA),
            ("s_or_not1", lambda a, b: a | ~b, RDNA),
        )
    ),
]
FLOATS = [
    *_set("s_add_f32", BOTH, lambda a, b, c, o: word(np.float32(real(a)) + np.float32(real(b))), GFX12, kind="f"),
    *_set("s_sub_f32", BOTH, lambda a, b, c, o: word(np.float32(real(a)) - np.float32(real(b))), GFX12, kind="f"),
    *_set("s_mul_f32", BOTH, lambda a, b, c, o: word(np.float32(real(a)) * np.float32(real(b))), GFX12, kind="m"),
    *_set("s_max_num_f32", BOTH, lambda a, b, c, o: word(max(real(a), real(b))), GFX12, kind="f"),
    *_set("s_min_num_f32", BOTH, lambda a, b, c, o: word(min(real(a), real(b))), GFX12, kind="f"),
    *_set("s_ceil_f32", "{d}, {a}", lambda a, b, c, o: word(np.ceil(np.float32(real(a)))), GFX12, kind="m"),
    *_set("s_floor_f32", "{d}, {a}", lambda a, b, c, o: word(np.floor(np.float32(real(a)))), GFX12, kind="m"),
    *_set("s_trunc_f32", "{d}, {a}", lambda a, b, c, o: word(np.trunc(np.float32(real(a)))), GFX12, kind="m"),
    *_set("s_cvt_f32_i32", "{d}, {a}", lambda a, b, c, o: word(signed(a)), GFX12),
    *_set("s_cvt_f32_u32", "{d}, {a}", lambda a, b, c, o: word(a), GFX12),
    *_set("s_cvt_u32_f32", "{d}, {a}", _clamped(0, 2**32 - 1), GFX12, kind="f"),
    *_set("s_cvt_i32_f32", "{d}, {a}", _clamped(-(2**31), 2**31 - 1), GFX12, kind="f"),
    *_set("s_fmac_f32", BOTH, lambda a, b, c, o: word(real(a) * real(b) + real(o)), GFX12, kind="m"),
    *_set(
        "s_fmamk_f32", "{d}, {a}, 0x40200000, {b}", lambda a, b, c, o: word(real(a) * 2.5 + real(b)), GFX12, kind="m"
    ),
    *_set(
        "s_fmaak_f32", "{d}, {a}, {b}, 0x40200000", lambda a, b, c, o: word(real(a) * real(b) + 2.5), GFX12, kind="m"
    ),
    *_set("v_s_rcp_f32", "{d}, {a}", lambda a, b, c, o: word(1 / real(a)), GFX12, kind="p"),
    *_set("v_s_exp_f32", "{d}, {a}", lambda a, b, c, o: word(2 ** real(a)), GFX12, kind="p"),
    *_set("v_s_log_f32", "{d}, {a}", lambda a, b, c, o: word(math.log2(real(a))), GFX12, kind="p"),
    *_set("v_s_rsq_f32", "{d}, {a}", lambda a, b, c, o: word(1 / math.sqrt(real(a))), GFX12, kind="p"),
    *_set("v_s_sqrt_f32", "{d}, {a}", lambda a, b, c, o: word(math.sqrt(real(a))), GFX12, kind="p"),
]
RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "lg": lambda a, b: a != b,
}
COMPARES = [
    *(
        Scalar(
            f"s_cmp_{name}_{kind} {{a}}, {{b}}", lambda a, b, c, o, t=test, v=view: (o, int(t(v(a), v(b)))), on, kind=of
        )
        for name, test in RELATIONS.items()
        for kind, view, on, of in (
            ("i32", signed, ALL, "u"),
            ("u32", int, ALL, "u"),
            ("f32", real, GFX12, "f"),
        )
    ),
    Scalar("s_cmp_neq_f32 {a}, {b}", lambda a, b, c, o: (o, int(real(a) != real(b))), GFX12, kind="f"),
    *(
        Scalar(f"s_cmp_{name}_u64 {{a}}, {{b}}", lambda a, b, c, o, t=test: (o, int(t(a, b))), bits=64)
        for name, test in RELATIONS.items()
        if name in ("eq", "lg")
    ),
    *(
        Scalar(
            f"s_cmpk_{name}_i32 {{a}}, 0x8765",
            lambda a, b, c, o, t=test: (o, int(t(signed(a), -0x789B))),
            (*GFX9, "gfx1100"),
        )
        for name, test in RELATIONS.items()
    ),
    *(
        Scalar(
            f"s_cmpk_{name}_u32 {{a}}, 0x8765", lambda a, b, c, o, t=test: (o, int(t(a, 0x8765))), (*GFX9, "gfx1100")
        )
        for name, test in RELATIONS.items()
    ),
    Scalar("s_bitcmp1_b32 {a}, {b}", lambda a, b, c, o: (o, a >> (b & 31) & 1)),
    Scalar("s_bitcmp0_b32 {a}, {b}", lambda a, b, c, o: (o, 1 - (a >> (b & 31) & 1))),
]
CASES = [*ARITHMETIC, *BITS, *FLOATS, *COMPARES]


def operands(case: Scalar, number: int) -> list[tuple[int, int, int, int]]:
    """(a, b, scc, old d) of each sample."""
    random = np.random.default_rng(number)
    found = []
    special = (0, 1, 0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, 0x8765, 0xFFFF8765)
    for sample in range(SAMPLES):
        if case.kind == "u":
            a, b, old = (int(x) for x in random.integers(0, 2**32, 3))
            if sample < 7:
                a = special[sample]
                b = int(random.choice(special))
        else:
            size = {"f": 10.0 ** random.integers(-3, 12), "m": 3.0, "p": 1.0}[case.kind]
            a, b, old = (word(x) for x in random.standard_normal(3) * size)
            if case.kind == "p":
                a = word(abs(real(a)) + 1e-3)
            if sample == 0:
                b = a
        high_a, high_b = (int(x) for x in random.integers(0, 2**32, 2)) if case.bits == 64 else (0, 0)
        if sample == 1:
            high_b, b = high_a, a
        wide_b = case.bits == 64 and case.bits_b != 32
        found.append((a | high_a << 32, b | (high_b << 32 if wide_b else 0), sample % 2, old))
    return found


def snippet(case: Scalar, number: int) -> Snippet:
    """Low words of results in v20, high words in v21, scc in v22: one lane for each sample."""
    pair = case.bits == 64
    names = {
        "d": "s[12:13]" if pair else "s12",
        "a": "s[8:9]" if pair else "s8",
        "b": "s[10:11]" if pair and case.bits_b != 32 else "s10",
    }
    lines = ["v_mov_b32 v20, 0", "v_mov_b32 v21, 0", "v_mov_b32 v22, 0"]
    for lane, (a, b, scc, old) in enumerate(operands(case, number)):
        values = {"s8": a & 0xFFFFFFFF, "s9": a >> 32, "s10": b & 0xFFFFFFFF, "s11": b >> 32, "s12": old, "s13": 0}
        lines += [f"s_mov_b32 {name}, {value:#x}" for name, value in values.items()]
        lines += [f"s_cmp_eq_u32 s13, {1 - scc}", case.text.format(**names), "s_cselect_b32 s14, 1, 0"]
        lines += [f"v_writelane_b32 v{20 + k}, s{12 + k}, {lane}" for k in range(3)]
    return Snippet("\n".join(lines), 3)


def expected(case: Scalar, number: int) -> np.ndarray:
    """uint32 (3, SAMPLES): as `snippet` has it."""
    made = np.zeros((3, SAMPLES), np.uint32)
    for lane, (a, b, scc, old) in enumerate(operands(case, number)):
        result = case.expected(a, b, scc, old)
        value, flag = result if isinstance(result, tuple) else (result, scc)
        value &= (1 << case.bits) - 1
        made[:, lane] = value & 0xFFFFFFFF, value >> 32, flag
    return made


def chosen(architecture: str) -> Sequence[Scalar]:
    return [case for case in CASES if architecture in case.on]
