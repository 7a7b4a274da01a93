# SPDX-License-Identifier: MIT
"""Instructions that move data: LDS, global, flat, buffer and private memory, atomics, scalar loads.

A model gets the 16 bytes of each lane (its a, b, c and f words side by side), and gives the words of the results.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from tests.executor.amdgcn.assembled import ALL, GFX9, INPUTS, RDNA, Snippet, wait
from tests.executor.amdgcn.matrices import FORMATS

LDS_BYTES = 4096
SCRATCH_BYTES = 64
FAR = 0x20000  # bytes behind the results, where atomics work


@dataclasses.dataclass(frozen=True)
class Move:
    """text: may use v[4:7] and v[32:35] (the lane's 16 bytes, the second time complemented), v30 and v31 (addresses of
    the kind that `memory` says), results from v20 on. expected(bytes (lanes, 16)): uint32 (lanes, results)."""

    text: str
    expected: Callable[[np.ndarray], np.ndarray]
    memory: str  # lds, stride, global, out, flat, buffer, buffer_out, scratch, scalar
    on: tuple[str, ...] = ALL
    results: int = 4


def _as(kind: str, data: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(data).view(kind)


def _loaded(at: int, size: int, kind: str = "<u4") -> Callable[[np.ndarray], np.ndarray]:
    """`size` bytes from byte `at` of the lane on: extended to words, as `kind` says."""

    def expected(data: np.ndarray) -> np.ndarray:
        values = _as(kind, data[:, at : at + size])
        return values.astype(np.int64).astype(np.uint32)

    return expected


def _half(at: int, high: bool, kind: str = "<u2") -> Callable[[np.ndarray], np.ndarray]:
    """A number to one half of a register that held the lane's first word complemented."""

    def expected(data: np.ndarray) -> np.ndarray:
        old = ~_as("<u4", data)[:, :1]
        half = _as(kind, data[:, at : at + np.dtype(kind).itemsize]).astype(np.uint32)
        return old & 0xFFFF | half << 16 if high else old & 0xFFFF0000 | half

    return expected


def _stored(at: int, take: int, size: int) -> Callable[[np.ndarray], np.ndarray]:
    """Bytes take ... of the complement, stored at byte `at` over the lane's 16."""

    def expected(data: np.ndarray) -> np.ndarray:
        made = data.copy()
        made[:, at : at + size] = ~data[:, take : take + size]
        return _as("<u4", made)

    return expected


# name on gfx9, name on RDNA, bytes, how it extends
LOADS = [
    ("dword", "b32", 4, "<u4"),
    ("dwordx2", "b64", 8, "<u4"),
    ("dwordx3", "b96", 12, "<u4"),
    ("dwordx4", "b128", 16, "<u4"),
    ("ubyte", "u8", 1, "<u1"),
    ("sbyte", "i8", 1, "<i1"),
    ("ushort", "u16", 2, "<u2"),
    ("sshort", "i16", 2, "<i2"),
]
STORES = [
    ("dword", "b32", 4),
    ("dwordx2", "b64", 8),
    ("dwordx3", "b96", 12),
    ("dwordx4", "b128", 16),
    ("short", "b16", 2),
    ("byte", "b8", 1),
]
HIGH_HALVES = [("short_d16_hi", "d16_hi_b16", 2), ("byte_d16_hi", "d16_hi_b8", 1)]
HALVES = [("short_d16", "d16_b16", False), ("short_d16_hi", "d16_hi_b16", True)]


def _registers(first: int, size: int) -> str:
    count = max(1, size // 4)
    return f"v{first}" if count == 1 else f"v[{first}:{first + count - 1}]"


def _offset(size: int) -> int:
    return 0 if size == 16 else 4 if size == 12 else 16 - 2 * size if size >= 4 else 7 if size == 1 else 6


def _forms(prefix: str, memory: str, load_tail: str, store_tail: str, kinds: tuple[str, ...]) -> list[Move]:
    """Loads and stores of one kind of memory, in both spellings. The tails hold address and modifiers."""
    found = []
    for spelling, on in ((0, GFX9), (1, RDNA)):
        for *names, size, kind in LOADS:
            if kind not in kinds:
                continue
            at, count = _offset(size), max(1, size // 4)
            text = f"{prefix}_load_{names[spelling]} {_registers(20, size)}, {load_tail} offset:{at}"
            found.append(Move(text, _loaded(at, size, kind), memory, on, count))
        for *names, high in HALVES if "half" in kinds else ():
            text = f"v_not_b32 v20, v4\n{prefix}_load_{names[spelling]} v20, {load_tail} offset:10"
            found.append(Move(text, _half(10, high), memory, on, 1))
        if "half" in kinds and prefix != "buffer":
            text = f"v_not_b32 v20, v4\n{prefix}_load_{('ubyte_d16', 'd16_u8')[spelling]} v20, {load_tail} offset:7"
            found.append(Move(text, _half(7, False, "<u1"), memory, on, 1))
        for *names, size in STORES if "store" in kinds else ():
            at = _offset(size)
            text = f"{prefix}_store_{names[spelling]} {store_tail.format(_registers(32, size))} offset:{at}"
            found.append(Move(text, _stored(at, 0, size), memory + "_out", on))
        for *names, size in HIGH_HALVES if "half" in kinds else ():
            if size == 2 or prefix != "buffer":
                text = f"{prefix}_store_{names[spelling]} {store_tail.format('v32')} offset:4"
                found.append(Move(text, _stored(4, 2, size), memory + "_out", on))
    return found


WORDS, EXTENDED = ("<u4", "store"), ("<u4", "<u1", "<i1", "<u2", "<i2", "half", "store")
GLOBAL = [
    *_forms("global", "global", "v30, s[4:5]", "v30, {}, s[6:7]", EXTENDED),
    *_forms("flat", "flat", "v[30:31]", "v[30:31], {}", EXTENDED),
    *_forms("buffer", "buffer", "v30, s[8:11], 0 offen", "{}, v30, s[8:11], 0 offen", ("<u4", "<u1", "<u2", "half")),
]
# Buffers: stores through the same descriptor, of the output.
GLOBAL += [
    Move(
        f"buffer_store_{name} {_registers(32, size)}, v30, s[8:11], 0 offen offset:{_offset(size)}",
        _stored(_offset(size), 0, size),
        "buffer_out",
        on,
    )
    for spelling, on in ((0, GFX9), (1, RDNA))
    for *names, size in STORES
    for name in (names[spelling],)
] + [
    Move(f"buffer_store_{name} v32, v30, s[8:11], 0 offen offset:4", _stored(4, 2, 2), "buffer_out", on)
    for name, on in (("short_d16_hi", GFX9), ("d16_hi_b16", RDNA))
]


def _beyond(data: np.ndarray) -> np.ndarray:
    """A buffer of 600 bytes: words past that are 0."""
    words = _as("<u4", data).copy()
    lane, word = np.indices(words.shape)
    words[lane * 16 + word * 4 + 4 > 600] = 0
    return words


RANGES = [
    Move("s_movk_i32 s10, 600\nbuffer_load_dwordx4 v[20:23], v30, s[8:11], 0 offen", _beyond, "buffer", GFX9),
    Move("s_movk_i32 s10, 600\nbuffer_load_b128 v[20:23], v30, s[8:11], 0 offen", _beyond, "buffer", RDNA),
    Move(  # the scalar offset counts
        "s_mov_b32 s12, 4\nbuffer_load_dwordx2 v[20:21], v30, s[8:11], s12 offen offset:4",
        _loaded(8, 8),
        "buffer",
        GFX9,
        2,
    ),
    Move(
        "s_mov_b32 s12, 4\nbuffer_load_b64 v[20:21], v30, s[8:11], s12 offen offset:4", _loaded(8, 8), "buffer", RDNA, 2
    ),
]


def _scratch() -> list[Move]:
    found = []
    for spelling, on in ((0, ("gfx942", "gfx950")), (1, RDNA)):
        for *names, size in STORES[:4]:
            load, store = (f"scratch_{what}_{names[spelling]}" for what in ("load", "store"))
            registers, count = _registers(32, size), size // 4
            text = (
                f"{store} off, {registers}, off offset:8\n{{wait}}\n"
                f"s_mov_b32 s20, 4\n{load} {_registers(20, size)}, off, s20 offset:4"
            )
            found.append(Move(text, lambda data, n=count: ~_as("<u4", data)[:, :n], "scratch", on, count))
    return found


def _lds() -> list[Move]:
    found = []
    names = {"b32": 4, "b64": 8, "b96": 12, "b128": 16}
    for read, write, on in (("ds_read", "ds_write", GFX9), ("ds_load", "ds_store", RDNA)):
        for name, size in names.items():
            at = 16 if size == 16 else _offset(size)
            expected = _loaded(at % 16, size)
            found.append(Move(f"{read}_{name} {_registers(20, size)}, v30 offset:{at}", expected, "lds", on, size // 4))
            at = _offset(size)
            found.append(
                Move(f"{write}_{name} v30, {_registers(32, size)} offset:{at}", _stored(at, 0, size), "lds_out", on)
            )
        for name, size, kind in (("u8", 1, "<u1"), ("i8", 1, "<i1"), ("u16", 2, "<u2")):
            found.append(Move(f"{read}_{name} v20, v30 offset:6", _loaded(6, size, kind), "lds", on, 1))
        for name, kind in (("u8", "<u1"), ("u16", "<u2")):
            for word, high in (("d16", False), ("d16_hi", True)):
                text = f"v_not_b32 v20, v4\n{read}_{name}_{word} v20, v30 offset:10"
                found.append(Move(text, _half(10, high, kind), "lds", on, 1))
        for name, size, take in (("b8", 1, 0), ("b16", 2, 0), ("b16_d16_hi", 2, 2)):
            found.append(Move(f"{write}_{name} v30, v32 offset:6", _stored(6, take, size), "lds_out", on))
        two = ("2_{}", "2st64_{}") if on is GFX9 else ("_2addr_{}", "_2addr_stride64_{}")
        for k, (name, count) in enumerate((("b32", 1), ("b64", 2))):
            size = 4 * count
            first = _registers(20, size)
            a, b = (f"v{4 + 2 * k}", "v33") if count == 1 else ("v[4:5]", "v[34:35]")
            pair = f"v[20:{20 + 2 * count - 1}]"
            near = [1, 3] if count == 1 else [0, 1]
            found.append(
                Move(
                    f"{read}{two[0].format(name)} {pair}, v30 offset0:{near[0]} offset1:{near[1]}",
                    lambda data, near=near, n=count: np.hstack(
                        [_as("<u4", data)[:, n * at : n * at + n] for at in near]
                    ),
                    "lds",
                    on,
                    2 * count,
                )
            )
            found.append(
                Move(
                    f"{write}{two[0].format(name)} v30, {a}, {b} offset0:{near[0]} offset1:{near[1]}\n{{wait}}\n"
                    f"{read}{two[0].format(name)} {pair}, v30 offset0:{near[0]} offset1:{near[1]}",
                    lambda data, n=count: np.hstack(
                        [_as("<u4", data)[:, :n], ~_as("<u4", data)[:, 1:2] if n == 1 else ~_as("<u4", data)[:, 2:4]]
                    ),
                    "lds",
                    on,
                    2 * count,
                )
            )
            # v31: the lane times the size; the second access is 64 elements further
            single = f"{read}_{name}"
            found.append(
                Move(
                    f"v_mul_u32_u24 v31, {size}, v29\n"
                    f"{write}{two[1].format(name)} v31, {a}, {b} offset0:1 offset1:3\n{{wait}}\n"
                    f"{single} {first}, v31 offset:{size * 64}\n"
                    f"{single} {_registers(20 + count, size)}, v31 offset:{3 * size * 64}\n{{wait}}\n"
                    f"{read}{two[1].format(name)} v[{20 + 2 * count}:{20 + 4 * count - 1}], v31 offset0:1 offset1:3",
                    lambda data, n=count: np.hstack(
                        2
                        * [_as("<u4", data)[:, :n], ~_as("<u4", data)[:, 1:2] if n == 1 else ~_as("<u4", data)[:, 2:4]]
                    ),
                    "lds",
                    on,
                    4 * count,
                )
            )
    return found


def _floats(words: np.ndarray) -> np.ndarray:
    return words.view(np.float32)


def _moderate(words: np.ndarray) -> np.ndarray:
    """Bits made floats of [1, 2)."""
    return words & np.uint32(0x7FFFFF) | np.uint32(0x3F800000)


def _atomic_float(data: np.ndarray) -> np.ndarray:
    words = _as("<u4", data)
    return (_floats(_moderate(words[:, :1])) + _floats(_moderate(words[:, 1:2]))).view(np.uint32)


def _packed(kind: str, dtype: type) -> Callable[[np.ndarray], np.ndarray]:
    one = np.uint32({"f16": 0x3C003C00, "bf16": 0x3F803F80}[kind])
    keep = np.uint32({"f16": 0x03FF03FF, "bf16": 0x007F007F}[kind])

    def expected(data: np.ndarray) -> np.ndarray:
        halves = [
            np.ascontiguousarray(_as("<u4", data)[:, k : k + 1] & keep | one).view(dtype).astype(np.float32)
            for k in (0, 1)
        ]
        return np.ascontiguousarray((halves[0] + halves[1]).astype(dtype)).view(np.uint32)

    return expected


FLOATS = "v_and_b32 v4, 0x7fffff, v4\nv_or_b32 v4, 1.0, v4\nv_and_b32 v5, 0x7fffff, v5\nv_or_b32 v5, 1.0, v5\n"


def _global_atomic(name: str, prepare: str, expected: Callable[[np.ndarray], np.ndarray], on: tuple[str, ...]) -> Move:
    """v4 in memory, v5 added: what is there afterwards."""
    load, store = ("load_dword", "store_dword") if on[0] in GFX9 else ("load_b32", "store_b32")
    text = (
        f"{prepare}global_{store} v30, v4, s[6:7]\n{{wait}}\n{name} v30, v5, s[6:7]\n{{wait}}\n"
        f"global_{load} v20, v30, s[6:7]"
    )
    return Move(text, expected, "out", on, 1)


def _masked(keep: int, one: int) -> str:
    return "".join(f"v_and_b32 v{k}, {keep:#x}, v{k}\nv_or_b32 v{k}, {one:#x}, v{k}\n" for k in (4, 5))


def _sum(data: np.ndarray) -> np.ndarray:
    words = _as("<u4", data)
    return words[:, :1] + words[:, 1:2]


ATOMICS = [
    _global_atomic("global_atomic_add", "", _sum, GFX9),
    _global_atomic("global_atomic_add_u32", "", _sum, RDNA),
    _global_atomic("global_atomic_add_f32", FLOATS, _atomic_float, GFX9),
    _global_atomic("global_atomic_add_f32", FLOATS, _atomic_float, RDNA),
    *(
        _global_atomic("global_atomic_pk_add_f16", _masked(0x03FF03FF, 0x3C003C00), _packed("f16", np.float16), on)
        for on in (GFX9, ("gfx1201",))
    ),
    *(
        _global_atomic(
            "global_atomic_pk_add_bf16", _masked(0x007F007F, 0x3F803F80), _packed("bf16", FORMATS["bf16"]), on
        )
        for on in (("gfx942", "gfx950"), ("gfx1201",))
    ),
    Move("ds_add_u32 v30, v5\n{wait}\nds_read_b32 v20, v30", _sum, "lds", GFX9, 1),
    Move("ds_add_u32 v30, v5\n{wait}\nds_load_b32 v20, v30", _sum, "lds", RDNA, 1),
    Move(
        f"{FLOATS}ds_write_b32 v30, v4\nds_add_f32 v30, v5\n{{wait}}\nds_read_b32 v20, v30",
        _atomic_float,
        "lds",
        GFX9,
        1,
    ),
    Move(
        f"{FLOATS}ds_store_b32 v30, v4\nds_add_f32 v30, v5\n{{wait}}\nds_load_b32 v20, v30",
        _atomic_float,
        "lds",
        RDNA,
        1,
    ),
    Move(  # the old value comes back
        "global_store_dword v30, v4, s[6:7]\n{wait}\nglobal_atomic_add v20, v30, v5, s[6:7] SC0",
        lambda data: _as("<u4", data)[:, :1],
        "out",
        GFX9,
        1,
    ),
    Move(
        "global_store_b32 v30, v4, s[6:7]\n{wait}\nglobal_atomic_add_u32 v20, v30, v5, s[6:7] SC0",
        lambda data: _as("<u4", data)[:, :1],
        "out",
        RDNA,
        1,
    ),
]


def _scalar_loads() -> list[Move]:
    """Words from byte 8 of the case's block on, by lane 0's numbering: every lane gets the same."""
    found = []
    sizes = [
        ("dword", "b32", 1),
        ("dwordx2", "b64", 2),
        ("dwordx4", "b128", 4),
        ("dwordx8", "b256", 8),
        ("dwordx16", "b512", 16),
    ]
    for spelling, on in ((0, GFX9), (1, RDNA)):
        for *names, count in [*sizes, ("", "b96", 3)]:
            where = ("gfx1201",) if names[0] == "" else on
            if names[0] == "" and spelling == 0:
                continue
            to = "s20" if count == 1 else f"s[20:{20 + count - 1}]"
            moved = "\n".join(f"v_mov_b32 v{20 + k}, s{20 + k}" for k in range(count))
            found.append(
                Move(
                    f"s_load_{names[spelling]} {to}, s[4:5], 0x8\n{{wait}}\n{moved}",
                    lambda data, n=count: np.tile(_as("<u4", data).reshape(-1)[2 : 2 + n], (len(data), 1)),
                    "scalar",
                    where,
                    count,
                )
            )
    for name, mask in (("u16", 0xFFFF), ("u8", 0xFF)):
        found.append(
            Move(
                f"s_load_{name} s20, s[4:5], 0x8\n{{wait}}\nv_mov_b32 v20, s20",
                lambda data, mask=mask: np.full((len(data), 1), _as("<u4", data).reshape(-1)[2] & mask, np.uint32),
                "scalar",
                ("gfx1201",),
                1,
            )
        )
    return found


CASES = [*GLOBAL, *RANGES, *_scratch(), *_lds(), *ATOMICS, *_scalar_loads()]


def snippet(case: Move, architecture: str) -> Snippet:
    """Addresses, then the case; what memory holds afterwards is read back where the case wrote."""
    modern = architecture in RDNA
    four = "b128" if modern else "dwordx4"
    read, write = ("ds_load", "ds_store") if modern else ("ds_read", "ds_write")
    out = case.memory.endswith("out")
    kind, done = case.memory.removesuffix("_out"), wait(architecture)
    base = 6 if out and kind != "lds" else 4
    lines = ["v_lshrrev_b32 v29, 2, v0", "v_lshlrev_b32 v30, 4, v29"]  # the lane; 16 times that
    lines += [f"global_load_{four} v[4:7], v30, s[4:5]", done, *(f"v_not_b32 v{32 + k}, v{4 + k}" for k in range(4))]
    if out and kind not in ("lds", "out"):
        lines += [f"global_store_{four} v30, v[4:7], s[6:7]", done]
    if kind == "lds":
        lines += ["v_lshlrev_b32 v30, 5, v29", f"{write}_b128 v30, v[4:7]", f"{write}_b128 v30, v[4:7] offset:16", done]
    if kind == "flat":
        lines += [f"v_{'add_nc' if modern else 'add'}_u32 v30, s{base}, v30", f"v_mov_b32 v31, s{base + 1}"]
    if case.memory == "out":  # where no result comes to lie: plain stores over what was atomic are a race
        lines += [f"v_add_{'nc_' if modern else ''}u32 v30, {FAR:#x}, v0"]
    if kind == "buffer":
        word3 = "0x31004000" if modern else "0x00020000"
        lines += [
            f"s_mov_b32 s8, s{base}",
            f"s_mov_b32 s9, s{base + 1}",
            "s_movk_i32 s10, 0x400",
            f"s_mov_b32 s11, {word3}",
        ]
    text = case.text.replace("{wait}", done).replace("SC0", _returning(architecture))
    if architecture == "gfx1201":
        text = text.replace(" 0 offen", " null offen")
    lines += [text, done]
    if out and kind == "lds":
        lines += [f"{read}_b128 v[20:23], v30"]
    elif out and case.memory != "out":
        lines += ["v_lshlrev_b32 v30, 4, v29", f"global_load_{four} v[20:23], v30, s[6:7]"]
    lines += [done, "s_add_u32 s4, s4, 1024", "s_addc_u32 s5, s5, 0"]
    return Snippet("\n".join(lines), case.results)


def _returning(architecture: str) -> str:
    """The modifier by which an atomic returns the old value."""
    return {"gfx90a": "glc", "gfx1100": "glc", "gfx1201": "th:TH_ATOMIC_RETURN"}.get(architecture, "sc0")


def data(number: int) -> np.ndarray:
    """The 16 bytes of each of 64 lanes."""
    return np.random.default_rng(number).integers(0, 256, (64, 16), np.uint8)


def inputs(count: int) -> np.ndarray:
    """The memory of `count` cases: a block of 1,024 bytes each, and what a kernel's first loads want behind it."""
    blocks = [data(number).reshape(-1).view(np.uint32).reshape(-1, 64) for number in range(count)]
    return np.ascontiguousarray(np.concatenate([*blocks, np.zeros((INPUTS, 64), np.uint32)]))
