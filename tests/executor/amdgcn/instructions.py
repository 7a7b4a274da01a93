# SPDX-License-Identifier: MIT
"""Results of instructions in NumPy, written from AMD's ISA manuals and not from the executor.

A case is the text of an instruction with {d} for its result and {a}, {b}, {c} for its sources, and a function of the
sources. Spellings of one operation on different architectures are cases of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.executor.amdgcn.assembled import ALL, GFX9, RDNA
from tests.executor.amdgcn.matrices import FNUZ, FORMATS, OCP

U32, I32, F32, U64, I64, F64 = np.uint32, np.int32, np.float32, np.uint64, np.int64, np.float64
CDNA3 = ("gfx942", "gfx950")
FP8 = ("gfx942", "gfx950", "gfx1201")


@dataclasses.dataclass(frozen=True)
class Case:
    """One instruction: its text, where it exists, which inputs it gets, what it makes."""

    text: str
    expected: Callable[..., Any]
    on: tuple[str, ...] = ALL
    sources: str = "u"  # of the inputs: u bits, f floats, s shift counts, h pairs of halves, m small floats, e fp8
    results: int = 1
    exact: bool = True

    @property
    def mnemonic(self) -> str:
        return self.text.split()[0]


def f(x: Any) -> Any:
    return np.asarray(x).view(F32)


def bits(x: Any) -> Any:
    return np.asarray(x, F32).view(U32)


def i(x: Any) -> Any:
    return np.asarray(x).view(I32)


def low(x: Any) -> Any:
    return (x & 0xFFFF).astype(U32)


def half(x: Any, high: bool = False) -> Any:
    return ((x >> 16 if high else x) & 0xFFFF).astype(np.uint16).view(np.float16)


def halves(x: Any, y: Any) -> Any:
    return x.astype(np.float16).view(np.uint16).astype(U32) | y.astype(np.float16).view(np.uint16).astype(U32) << 16


def wide(low_word: Any, high_word: Any) -> Any:
    return low_word.astype(U64) | high_word.astype(U64) << U64(32)


def words(x: Any) -> Any:
    return np.stack([(x & U64(0xFFFFFFFF)).astype(U32), (x >> U64(32)).astype(U32)])


def each(function: Callable[..., int]) -> Callable[..., Any]:
    """A function of Python integers, lane by lane."""
    return lambda *arrays: np.array([function(*map(int, lane)) & 0xFFFFFFFF for lane in zip(*arrays, strict=True)], U32)


def _signed(value: int, size: int) -> int:
    return value - (1 << size) if value >> (size - 1) & 1 else value


def _field(value: int, at: int, count: int, signed: bool) -> int:
    at, count = at & 31, count & 31
    found = value >> at & ((1 << count) - 1)
    return _signed(found, count) if signed and count else found


def _perm(a: int, b: int, c: int) -> int:
    both, made = a << 32 | b, 0
    for k in range(4):
        choice = c >> 8 * k & 255
        if choice < 8:
            byte = both >> 8 * choice & 255
        elif choice < 12:
            byte = 255 if both >> (16 * (choice - 8) + 15) & 1 else 0
        else:
            byte = 0 if choice == 12 else 255
        made |= byte << 8 * k
    return made


def _bitop(a: int, b: int, c: int) -> int:
    """The truth table 0x2c."""
    return sum((0x2C >> ((a >> k & 1) << 2 | (b >> k & 1) << 1 | (c >> k & 1)) & 1) << k for k in range(32))


def _one(
    names: str, expected: Callable[..., Any], sources: str = "u", on: tuple[str, ...] = ALL, **more: Any
) -> list[Case]:
    return [Case(f"{name} {{d}}, {{a}}", expected, on, sources, **more) for name in names.split()]


def _two(
    names: str, expected: Callable[..., Any], sources: str = "uu", on: tuple[str, ...] = ALL, **more: Any
) -> list[Case]:
    return [Case(f"{name} {{d}}, {{a}}, {{b}}", expected, on, sources, **more) for name in names.split()]


def _three(
    names: str, expected: Callable[..., Any], sources: str = "uuu", on: tuple[str, ...] = ALL, **more: Any
) -> list[Case]:
    return [Case(f"{name} {{d}}, {{a}}, {{b}}, {{c}}", expected, on, sources, **more) for name in names.split()]


ONE_SOURCE = [
    *_one("v_mov_b32", lambda a: a),
    *_one("v_not_b32", lambda a: ~a),
    *_one("v_bfrev_b32", each(lambda a: int(f"{a:032b}"[::-1], 2))),
    *_one("v_ffbh_u32", each(lambda a: 32 - a.bit_length() if a else -1), "s", GFX9),
    *_one("v_clz_i32_u32", each(lambda a: 32 - a.bit_length() if a else -1), "s", RDNA),
    *_one("v_ffbl_b32", each(lambda a: (a & -a).bit_length() - 1 if a else -1), "s", GFX9),
    *_one("v_ctz_i32_b32", each(lambda a: (a & -a).bit_length() - 1 if a else -1), "s", RDNA),
    *_one("v_exp_f32", lambda a: bits(np.exp2(f(a).astype(F64))), "m", exact=False),
    *_one("v_log_f32", lambda a: bits(np.log2(np.abs(f(a)).astype(F64))), "p", exact=False),
    *_one("v_rcp_f32", lambda a: bits(1 / f(a).astype(F64)), "p", exact=False),
    *_one("v_rsq_f32", lambda a: bits(1 / np.sqrt(f(a).astype(F64))), "p", exact=False),
    *_one("v_sqrt_f32", lambda a: bits(np.sqrt(f(a).astype(F64))), "p", exact=False),
    *_one("v_floor_f32", lambda a: bits(np.floor(f(a))), "f"),
    *_one("v_ceil_f32", lambda a: bits(np.ceil(f(a))), "f"),
    *_one("v_rndne_f32", lambda a: bits(np.rint(f(a))), "f"),
    *_one("v_trunc_f32", lambda a: bits(np.trunc(f(a))), "f"),
    *_one("v_fract_f32", lambda a: bits(np.minimum(f(a) - np.floor(f(a)), F32(0.99999994))), "f"),
    *_one("v_cvt_f32_i32", lambda a: bits(i(a).astype(F32))),
    *_one("v_cvt_f32_u32", lambda a: bits(a.astype(F32))),
    *_one(
        "v_cvt_i32_f32", lambda a: np.clip(np.trunc(f(a).astype(F64)), -(2**31), 2**31 - 1).astype(I64).astype(U32), "f"
    ),
    *_one("v_cvt_u32_f32", lambda a: np.clip(np.trunc(f(a).astype(F64)), 0, 2**32 - 1).astype(U64).astype(U32), "f"),
    *_one("v_cvt_f16_f32", lambda a: f(a).astype(np.float16).view(np.uint16).astype(U32), "f", GFX9),
    *_one("v_cvt_f32_f16", lambda a: bits(half(a).astype(F32)), "h", GFX9),
    *(
        case
        for byte in range(4)
        for case in _one(f"v_cvt_f32_ubyte{byte}", lambda a, byte=byte: bits((a >> U32(8 * byte) & 255).astype(F32)))
    ),
]

TWO_SOURCES = [
    *_two("v_add_f32", lambda a, b: bits(f(a) + f(b)), "ff"),
    *_two("v_sub_f32", lambda a, b: bits(f(a) - f(b)), "ff"),
    *_two("v_subrev_f32", lambda a, b: bits(f(b) - f(a)), "ff"),
    *_two("v_mul_f32", lambda a, b: bits(f(a) * f(b)), "ff"),
    *_two("v_max_f32", lambda a, b: bits(np.fmax(f(a), f(b))), "ff", (*GFX9, "gfx1100")),
    *_two("v_min_f32", lambda a, b: bits(np.fmin(f(a), f(b))), "ff", (*GFX9, "gfx1100")),
    *_two("v_max_num_f32", lambda a, b: bits(np.fmax(f(a), f(b))), "ff", ("gfx1201",)),
    *_two("v_min_num_f32", lambda a, b: bits(np.fmin(f(a), f(b))), "ff", ("gfx1201",)),
    *_two("v_ldexp_f32", lambda a, b: bits(np.ldexp(f(a), i(b))), "fs"),
    *_two("v_add_u32", lambda a, b: a + b, on=GFX9),
    *_two("v_add_nc_u32 v_add_nc_i32", lambda a, b: a + b, on=RDNA),
    *_two("v_sub_u32", lambda a, b: a - b, on=GFX9),
    *_two("v_sub_nc_u32", lambda a, b: a - b, on=RDNA),
    *_two("v_subrev_u32", lambda a, b: b - a, on=GFX9),
    *_two("v_subrev_nc_u32", lambda a, b: b - a, on=RDNA),
    *_two("v_and_b32", lambda a, b: a & b),
    *_two("v_or_b32", lambda a, b: a | b),
    *_two("v_xor_b32", lambda a, b: a ^ b),
    *_two("v_xnor_b32", lambda a, b: ~(a ^ b)),
    *_two("v_lshlrev_b32", each(lambda a, b: b << (a & 31)), "su"),
    *_two("v_lshrrev_b32", each(lambda a, b: b >> (a & 31)), "su"),
    *_two("v_ashrrev_i32", each(lambda a, b: _signed(b, 32) >> (a & 31)), "su"),
    *_two("v_max_i32", lambda a, b: np.maximum(i(a), i(b)).view(U32)),
    *_two("v_min_i32", lambda a, b: np.minimum(i(a), i(b)).view(U32)),
    *_two("v_max_u32", np.maximum),
    *_two("v_min_u32", np.minimum),
    *_two("v_mul_u32_u24", each(lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF))),
    *_two("v_mul_i32_i24", each(lambda a, b: _signed(a & 0xFFFFFF, 24) * _signed(b & 0xFFFFFF, 24))),
    *_two("v_mul_hi_u32_u24", each(lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 32)),
    *_two("v_mul_lo_u32", each(lambda a, b: a * b)),
    *_two("v_mul_hi_u32", each(lambda a, b: a * b >> 32)),
    *_two("v_mul_hi_i32", each(lambda a, b: _signed(a, 32) * _signed(b, 32) >> 32)),
    *_two("v_bcnt_u32_b32", each(lambda a, b: a.bit_count() + b)),
    *_two("v_bfm_b32", each(lambda a, b: ((1 << (a & 31)) - 1) << (b & 31)), "ss"),
    *_two(
        "v_cvt_pk_bf16_f32",
        lambda a, b: (
            f(a).astype(FORMATS["bf16"]).view(np.uint16).astype(U32)
            | f(b).astype(FORMATS["bf16"]).view(np.uint16).astype(U32) << 16
        ),
        "ff",
        ("gfx950",),
    ),
    *_two("v_add_f16", lambda a, b: low((half(a) + half(b)).view(np.uint16)), "hh", GFX9),
    *_two("v_mul_f16", lambda a, b: low((half(a) * half(b)).view(np.uint16)), "hh", GFX9),
    *_two("v_lshlrev_b16", each(lambda a, b: b << (a & 15) & 0xFFFF), "su", GFX9),
    *_two("v_lshrrev_b16", each(lambda a, b: (b & 0xFFFF) >> (a & 15)), "su", GFX9),
    *_two("v_ashrrev_i16", each(lambda a, b: _signed(b & 0xFFFF, 16) >> (a & 15) & 0xFFFF), "su", GFX9),
    *_two("v_mul_lo_u16", each(lambda a, b: a * b & 0xFFFF), on=GFX9),
    *_two("v_add_u16", each(lambda a, b: a + b & 0xFFFF), on=GFX9),
    *_two("v_sub_u16", each(lambda a, b: a - b & 0xFFFF), on=GFX9),
    *_two("v_max_u16", lambda a, b: np.maximum(low(a), low(b)), on=GFX9),
    *_two("v_min_u16", lambda a, b: np.minimum(low(a), low(b)), on=GFX9),
    *_two("v_pk_add_f16", lambda a, b: halves(half(a) + half(b), half(a, True) + half(b, True)), "hh"),
    *_two("v_pk_mul_f16", lambda a, b: halves(half(a) * half(b), half(a, True) * half(b, True)), "hh"),
    *_two(
        "v_pk_max_f16",
        lambda a, b: halves(np.fmax(half(a), half(b)), np.fmax(half(a, True), half(b, True))),
        "hh",
        (*GFX9, "gfx1100"),
    ),
    *_two(
        "v_pk_min_num_f16",
        lambda a, b: halves(np.fmin(half(a), half(b)), np.fmin(half(a, True), half(b, True))),
        "hh",
        ("gfx1201",),
    ),
    *_two(
        "v_pk_lshlrev_b16",
        each(lambda a, b: (b << (a & 15) & 0xFFFF) | ((b >> 16) << (a >> 16 & 15) & 0xFFFF) << 16),
        "su",
    ),
    *_two("v_pk_add_u16", each(lambda a, b: (a + b & 0xFFFF) | ((a >> 16) + (b >> 16) & 0xFFFF) << 16)),
]

THREE_SOURCES = [
    *_three("v_fma_f32", lambda a, b, c: bits((f(a).astype(F64) * f(b) + f(c)).astype(F32)), "mmm", exact=False),
    *_three("v_add3_u32", lambda a, b, c: a + b + c),
    *_three("v_or3_b32", lambda a, b, c: a | b | c),
    *_three("v_xor3_b32", lambda a, b, c: a ^ b ^ c, on=RDNA),
    *_three("v_lshl_or_b32", each(lambda a, b, c: (a << (b & 31)) | c), "usu"),
    *_three("v_and_or_b32", lambda a, b, c: (a & b) | c),
    *_three("v_lshl_add_u32", each(lambda a, b, c: (a << (b & 31)) + c), "usu"),
    *_three("v_add_lshl_u32", each(lambda a, b, c: (a + b & 0xFFFFFFFF) << (c & 31)), "uus"),
    *_three("v_xad_u32", lambda a, b, c: (a ^ b) + c),
    *_three("v_bfe_u32", each(lambda a, b, c: _field(a, b, c, False)), "uss"),
    *_three("v_bfe_i32", each(lambda a, b, c: _field(a, b & 15, c & 15, True)), "unn"),
    *_three("v_bfi_b32", lambda a, b, c: (a & b) | (~a & c)),
    *_three("v_alignbit_b32", each(lambda a, b, c: (a << 32 | b) >> (c & 31)), "uus"),
    *_three("v_alignbyte_b32", each(lambda a, b, c: (a << 32 | b) >> 8 * (c & 3)), "uus"),
    *_three("v_perm_b32", each(_perm), "uuk"),
    *_three("v_max3_f32", lambda a, b, c: bits(np.fmax(np.fmax(f(a), f(b)), f(c))), "fff", (*GFX9, "gfx1100")),
    *_three("v_min3_f32", lambda a, b, c: bits(np.fmin(np.fmin(f(a), f(b)), f(c))), "fff", (*GFX9, "gfx1100")),
    *_three("v_max3_num_f32", lambda a, b, c: bits(np.fmax(np.fmax(f(a), f(b)), f(c))), "fff", ("gfx1201",)),
    *_three("v_maxmin_f32", lambda a, b, c: bits(np.fmin(np.fmax(f(a), f(b)), f(c))), "fff", ("gfx1100",)),
    *_three("v_minmax_num_f32", lambda a, b, c: bits(np.fmax(np.fmin(f(a), f(b)), f(c))), "fff", ("gfx1201",)),
    *_three("v_med3_f32", lambda a, b, c: bits(np.sort(np.stack([f(a), f(b), f(c)]), 0)[1]), "mmm", (*GFX9, "gfx1100")),
    *_three("v_max3_i32", lambda a, b, c: np.maximum(np.maximum(i(a), i(b)), i(c)).view(U32)),
    *_three("v_min3_i32", lambda a, b, c: np.minimum(np.minimum(i(a), i(b)), i(c)).view(U32)),
    *_three("v_med3_i32", lambda a, b, c: np.sort(np.stack([i(a), i(b), i(c)]), 0)[1].view(U32)),
    *_three("v_mad_u32_u24", each(lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c)),
    *_three("v_mad_i32_i24", each(lambda a, b, c: _signed(a & 0xFFFFFF, 24) * _signed(b & 0xFFFFFF, 24) + c)),
    Case("v_bitop3_b32 {d}, {a}, {b}, {c} bitop3:0x96", lambda a, b, c: a ^ b ^ c, ("gfx950",), "uuu"),
    Case("v_bitop3_b32 {d}, {a}, {b}, {c} bitop3:0x2c", each(_bitop), ("gfx950",), "uuu"),
    Case("v_bitop3_b16 {d}, {a}, {b}, {c} bitop3:0x96", lambda a, b, c: low(a ^ b ^ c), ("gfx950",), "uuu"),
    Case(
        "v_pk_fma_f16 {d}, {a}, {b}, {c}",
        lambda a, b, c: halves(
            half(a).astype(F64) * half(b) + half(c), half(a, True).astype(F64) * half(b, True) + half(c, True)
        ),
        ALL,
        "hhh",
    ),
]

MODIFIERS = [
    Case("v_add_f32 {d}, -{a}, |{b}|", lambda a, b: bits(-f(a) + np.abs(f(b))), ALL, "ff"),
    Case("v_mul_f32 {d}, {a}, {b} clamp", lambda a, b: bits(np.clip(f(a) * f(b), 0, 1)), ALL, "mm"),
    Case("v_mul_f32 {d}, {a}, {b} mul:2", lambda a, b: bits(f(a) * f(b) * 2), ALL, "mm"),
    Case("v_add_f32 {d}, {a}, {b} div:2", lambda a, b: bits((f(a) + f(b)) / 2), ALL, "mm"),
    Case("v_add_f32 {d}, 0.5, {b}", lambda a, b: bits(F32(0.5) + f(b)), ALL, "ff"),
    Case("v_add_u32 {d}, -7, {b}", lambda a, b: b - U32(7), GFX9, "uu"),
    Case("v_and_b32 {d}, 0xff00ff, {b}", lambda a, b: b & U32(0xFF00FF), ALL, "uu"),
    Case("v_bfrev_b32 {d}, 0.5", lambda a: np.full_like(a, int(f"{0x3F000000:032b}"[::-1], 2)), ALL, "u"),
    Case(
        "v_pk_add_f16 {d}, {a}, {b} op_sel:[1,0] op_sel_hi:[0,1]",
        lambda a, b: halves(half(a, True) + half(b), half(a) + half(b, True)),
        ALL,
        "hh",
    ),
    Case(
        "v_pk_mul_f16 {d}, {a}, {b} neg_lo:[1,0] neg_hi:[0,1]",
        lambda a, b: halves(-half(a) * half(b), half(a, True) * -half(b, True)),
        ALL,
        "hh",
    ),
    Case(
        "v_fma_mix_f32 {d}, {a}, {b}, {c} op_sel:[0,1,0] op_sel_hi:[1,1,0]",
        lambda a, b, c: bits((half(a).astype(F64) * half(b, True) + f(c)).astype(F32)),
        ALL,
        "hhm",
        exact=False,
    ),
    Case(
        "v_mov_b32 {d}, 0\nv_fma_mixlo_f16 {d}, {a}, {b}, {c}\nv_fma_mixhi_f16 {d}, {b}, {b}, {c}",
        lambda a, b, c: halves(f(a).astype(F64) * f(b) + f(c), f(b).astype(F64) * f(b) + f(c)),
        ALL,
        "mmm",
    ),
    Case(
        "v_dot2_f32_f16 {d}, {a}, {b}, {c}",
        lambda a, b, c: bits(half(a).astype(F32) * half(b) + half(a, True).astype(F32) * half(b, True) + f(c)),
        ALL,
        "hhm",
        exact=False,
    ),
    Case("v_pack_b32_f16 {d}, {a}, {b} op_sel:[0,1,0]", lambda a, b: low(a) | (b >> 16) << 16, GFX9, "hh"),
    Case(
        "v_add_u32_sdwa {d}, {a}, {b} dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_1 src1_sel:WORD_1",
        lambda a, b: (a >> 8 & 255) + (b >> 16),
        ("gfx90a", "gfx942"),
        "uu",
    ),
    Case(
        "v_mov_b32 {d}, {b}\nv_mov_b32_sdwa {d}, {a} dst_sel:BYTE_2 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_3",
        lambda a, b: (b & 0xFF00FFFF) | (a >> 24) << 16,
        ("gfx90a", "gfx942"),
        "uu",
    ),
    Case(
        "v_mov_b32_sdwa {d}, sext({a}) dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_1",
        each(lambda a: _signed(a >> 8 & 255, 8)),
        ("gfx90a", "gfx942"),
        "u",
    ),
]

PAIRS = [  # {aa}, {bb}: pairs of registers, whose low words are the first two sources and high words the next two
    Case(
        "v_lshlrev_b64 {dd}, {a}, {bb}",
        lambda a, b, c, d: words(wide(b, d) << (a.astype(U64) & U64(63))),
        (*GFX9, "gfx1100"),
        "suuu",
        2,
    ),
    Case(
        "v_lshrrev_b64 {dd}, {a}, {bb}",
        lambda a, b, c, d: words(wide(b, d) >> (a.astype(U64) & U64(63))),
        ALL,
        "suuu",
        2,
    ),
    Case(
        "v_ashrrev_i64 {dd}, {a}, {bb}",
        lambda a, b, c, d: words((wide(b, d).view(I64) >> (a.astype(I64) & I64(63))).view(U64)),
        ALL,
        "suuu",
        2,
    ),
    Case(
        "v_lshl_add_u64 {dd}, {aa}, 3, {bb}",
        lambda a, b, c, d: words((wide(a, c) << U64(3)) + wide(b, d)),
        CDNA3,
        "uuuu",
        2,
    ),
    Case("v_mov_b64 {dd}, {aa}", lambda a, b, c, d: np.stack([a, c]), CDNA3, "uuuu", 2),
    Case("v_pk_mov_b32 {dd}, {aa}, {bb} op_sel:[1,0]", lambda a, b, c, d: np.stack([c, b]), GFX9, "uuuu", 2),
    Case(
        "v_pk_add_f32 {dd}, {aa}, {bb}",
        lambda a, b, c, d: np.stack([bits(f(a) + f(b)), bits(f(c) + f(d))]),
        GFX9,
        "ffff",
        2,
    ),
    Case(
        "v_pk_mul_f32 {dd}, {aa}, {bb} op_sel_hi:[0,1]",
        lambda a, b, c, d: np.stack([bits(f(a) * f(b)), bits(f(a) * f(d))]),
        GFX9,
        "ffff",
        2,
    ),
    Case(
        "v_pk_fma_f32 {dd}, {aa}, {bb}, {bb} neg_lo:[1,0,0]",
        lambda a, b, c, d: np.stack([bits(-f(a).astype(F64) * f(b) + f(b)), bits(f(c).astype(F64) * f(d) + f(d))]),
        GFX9,
        "mmmm",
        2,
        exact=False,
    ),
    Case(
        "v_mad_u64_u32 {dd}, vcc, {a}, {b}, {bb}",
        lambda a, b, c, d: words(a.astype(U64) * b.astype(U64) + wide(b, d)),
        GFX9,
        "uuuu",
        2,
    ),
    Case(
        "v_mad_u64_u32 {dd}, null, {a}, {b}, {bb}",
        lambda a, b, c, d: words(a.astype(U64) * b.astype(U64) + wide(b, d)),
        ("gfx1100",),
        "uuuu",
        2,
    ),
    Case(
        "v_add_co_u32 {d}, vcc, {a}, {b}\nv_addc_co_u32 {e}, vcc, {c}, {f}, vcc",
        lambda a, b, c, d: words(wide(a, c) + wide(b, d)),
        GFX9,
        "uuuu",
        2,
    ),
    Case(
        "v_add_co_u32 {d}, vcc_lo, {a}, {b}\nv_add_co_ci_u32 {e}, vcc_lo, {c}, {f}, vcc_lo",
        lambda a, b, c, d: words(wide(a, c) + wide(b, d)),
        RDNA,
        "uuuu",
        2,
    ),
    Case(
        "v_sub_co_u32 {d}, vcc, {a}, {b}\nv_subb_co_u32 {e}, vcc, {c}, {f}, vcc",
        lambda a, b, c, d: words(wide(a, c) - wide(b, d)),
        GFX9,
        "uuuu",
        2,
    ),
    Case(
        "v_sub_co_u32 {d}, vcc_lo, {a}, {b}\nv_sub_co_ci_u32 {e}, vcc_lo, {c}, {f}, vcc_lo",
        lambda a, b, c, d: words(wide(a, c) - wide(b, d)),
        RDNA,
        "uuuu",
        2,
    ),
    Case(
        "v_subrev_co_u32 {d}, vcc, {a}, {b}\nv_subbrev_co_u32 {e}, vcc, {c}, {f}, vcc",
        lambda a, b, c, d: words(wide(b, d) - wide(a, c)),
        GFX9,
        "uuuu",
        2,
    ),
    Case(
        "v_subrev_co_u32 {d}, vcc_lo, {a}, {b}\nv_subrev_co_ci_u32 {e}, vcc_lo, {c}, {f}, vcc_lo",
        lambda a, b, c, d: words(wide(b, d) - wide(a, c)),
        RDNA,
        "uuuu",
        2,
    ),
]

OTHERS = [
    *_two("v_max_f16", lambda a, b: low(np.fmax(half(a), half(b)).view(np.uint16)), "hh", GFX9),
    *_two("v_min_f16", lambda a, b: low(np.fmin(half(a), half(b)).view(np.uint16)), "hh", GFX9),
    *_two("v_sub_f16", lambda a, b: low((half(a) - half(b)).view(np.uint16)), "hh", GFX9),
    *_two(
        "v_pk_min_f16",
        lambda a, b: halves(np.fmin(half(a), half(b)), np.fmin(half(a, True), half(b, True))),
        "hh",
        GFX9,
    ),
    *_two(
        "v_pk_max_num_f16",
        lambda a, b: halves(np.fmax(half(a), half(b)), np.fmax(half(a, True), half(b, True))),
        "hh",
        ("gfx1201",),
    ),
    *_two(
        "v_pk_lshrrev_b16", each(lambda a, b: ((b & 0xFFFF) >> (a & 15)) | ((b >> 16) >> (a >> 16 & 15)) << 16), "su"
    ),
    *_one("v_rcp_iflag_f32", lambda a: bits(1 / f(a).astype(F64)), "p", exact=False),
    *_three("v_med3_num_f32", lambda a, b, c: bits(np.sort(np.stack([f(a), f(b), f(c)]), 0)[1]), "mmm", ("gfx1201",)),
    *_three("v_min3_num_f32", lambda a, b, c: bits(np.fmin(np.fmin(f(a), f(b)), f(c))), "fff", ("gfx1201",)),
    *_three("v_minmax_f32", lambda a, b, c: bits(np.fmax(np.fmin(f(a), f(b)), f(c))), "fff", ("gfx1100",)),
    *_three("v_maxmin_num_f32", lambda a, b, c: bits(np.fmin(np.fmax(f(a), f(b)), f(c))), "fff", ("gfx1201",)),
    Case(
        "v_mov_b32 {d}, {c}\nv_mac_f32 {d}, {a}, {b}",
        lambda a, b, c: bits(f(a) * f(b) + f(c)),
        ("gfx90a",),
        "mmm",
    ),
    Case(
        "v_mov_b32 {d}, {c}\nv_fmac_f32 {d}, {a}, {b}",
        lambda a, b, c: bits((f(a).astype(F64) * f(b) + f(c)).astype(F32)),
        ALL,
        "mmm",
        exact=False,
    ),
    Case("v_mad_f32 {d}, {a}, {b}, {c}", lambda a, b, c: bits(f(a) * f(b) + f(c)), ("gfx90a",), "mmm"),
    Case("v_madmk_f32 {d}, {a}, 0x40200000, {b}", lambda a, b: bits(f(a) * F32(2.5) + f(b)), ("gfx90a",), "mm"),
    Case("v_madak_f32 {d}, {a}, {b}, 0x40200000", lambda a, b: bits(f(a) * f(b) + F32(2.5)), ("gfx90a",), "mm"),
    Case(
        "v_fmamk_f32 {d}, {a}, 0x40200000, {b}",
        lambda a, b: bits((f(a).astype(F64) * 2.5 + f(b)).astype(F32)),
        ("gfx942", "gfx950", *RDNA),
        "mm",
        exact=False,
    ),
    Case(
        "v_fmaak_f32 {d}, {a}, {b}, 0x40200000",
        lambda a, b: bits((f(a).astype(F64) * f(b) + 2.5).astype(F32)),
        ("gfx942", "gfx950", *RDNA),
        "mm",
        exact=False,
    ),
]

FP8_CONVERSIONS = [  # what is expected depends on the architecture
    Case("v_mov_b32 {d}, 0\nv_cvt_pk_fp8_f32 {d}, {a}, {b}", lambda a, b: a, FP8, "88"),
    Case("v_mov_b32 {d}, 0\nv_cvt_pk_bf8_f32 {d}, {a}, {b}", lambda a, b: a, FP8, "88"),
]


def _from_fp8(text: str, first: int, on: tuple[str, ...] = FP8) -> Case:
    """Bytes of a from `first` on as floats, as many as the instruction makes."""
    two = "_pk_" in text

    def expected(a: Any, *formats: Any) -> Any:
        (kind,) = formats
        floats = np.stack([(a >> 8 * (first + k) & 0xFF).astype(np.uint8).view(kind) for k in range(1 + two)])
        return bits(floats.astype(F32))

    return Case(text, expected, on, "e", results=1 + two)


FROM_FP8 = [
    case
    for kind in ("fp8", "bf8")
    for case in (
        _from_fp8(f"v_cvt_f32_{kind} {{d}}, {{a}}", 0),
        _from_fp8(f"v_cvt_pk_f32_{kind} {{dd}}, {{a}}", 0),
        _from_fp8(f"v_cvt_f32_{kind}_sdwa {{d}}, {{a}} src0_sel:BYTE_3", 3, CDNA3),
        _from_fp8(f"v_cvt_pk_f32_{kind}_sdwa {{dd}}, {{a}} src0_sel:WORD_1", 2, CDNA3),
        _from_fp8(f"v_cvt_f32_{kind} {{d}}, {{a}} byte_sel:1", 1, ("gfx1201",)),
        _from_fp8(f"v_cvt_pk_f32_{kind} {{dd}}, {{a}} op_sel:[1,0]", 2, ("gfx1201",)),
    )
]

CASES = [*ONE_SOURCE, *TWO_SOURCES, *THREE_SOURCES, *MODIFIERS, *PAIRS, *OTHERS]


def fp8_format(case: Case, architecture: str) -> Any:
    """gfx942 has the FNUZ formats, the others OCP's."""
    return (FNUZ if architecture == "gfx942" else OCP)["bf8" if "bf8" in case.text else "fp8"]


def fp8_expected(case: Case, architecture: str, a: Any, b: Any) -> Any:
    """ml_dtypes saturates none of the formats."""
    dtype = fp8_format(case, architecture)
    return f(a).astype(dtype).view(np.uint8).astype(U32) | f(b).astype(dtype).view(np.uint8).astype(U32) << 8
