# SPDX-License-Identifier: MIT
"""rotary against float64: shapes, strides, positions, memory, threads, every ISA."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference import rotary as reference

from tests.python.guard import guarded
from tests.python.rows import DTYPES, instances

# batch, seqlen, nheads, headdim, rotary_dim: pairs of no vector, of a part, of several and a part.
SHAPES = [
    (0, 3, 2, 8, 8),
    (2, 0, 2, 8, 4),
    (1, 1, 1, 1 + 1, 2),
    (2, 3, 1, 7, 6),
    (1, 5, 3, 128, 128),
    (2, 2, 2, 150, 140),
]
TABLES = [("fp32", "fp32"), ("fp16", "fp32"), ("fp16", "fp16"), ("bf16", "fp32"), ("bf16", "bf16")]


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("norm_default", targets="all")


def draw(shape: tuple[int, ...], dtype: str, tables: str, positions: int = 9) -> tuple[np.ndarray, ...]:
    """x, cos, sin."""
    *heads, rotary_dim = shape
    random = np.random.default_rng(sum(shape))
    angle = random.uniform(0, 6, (positions, rotary_dim // 2))
    x = random.standard_normal(heads).astype(DTYPES[dtype])
    return x, np.cos(angle).astype(DTYPES[tables]), np.sin(angle).astype(DTYPES[tables])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("dtype", "tables"), TABLES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_isa_at_every_shape(
    lib: tk.Library, dtype: str, tables: str, shape: tuple[int, ...], interleaved: bool
) -> None:
    given = draw(shape, dtype, tables)
    for options in ({"start": 3}, {"conjugate": True}):
        for one in instances(lib, "rotary", dtype=dtype, tables=tables):
            y = lib.rotary(*given, interleaved=interleaved, instance=one, **options)
            assert reference.excess(y, *given, interleaved=interleaved, **options) <= 1
            again = given[0].copy()
            assert lib.rotary(again, *given[1:], y=again, interleaved=interleaved, instance=one, **options) is again
            assert again.tobytes() == y.tobytes()


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_positions_and_tokens_that_the_tables_lack(lib: tk.Library, kind: type) -> None:
    x, cos, sin = draw((2, 4, 3, 40, 32), "fp32", "fp32")
    positions = np.array([[8, 0, 3, 3], [9, -1, np.iinfo(kind).max, np.iinfo(kind).min]], kind)
    for one in instances(lib, "rotary", dtype="fp32", tables="fp32"):
        for start in (0, 2):
            y = lib.rotary(x, cos, sin, positions=positions, start=start, instance=one)
            with np.errstate(over="ignore"):
                wide = np.clip(positions.astype(np.float64), -99, 99).astype(np.int64)
            assert reference.excess(y, x, cos, sin, wide, start) <= 1
            assert y[1, 2:].tobytes() == x[1, 2:].tobytes()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("where", ["before", "after"])
def test_nothing_outside_the_arrays_is_touched(lib: tk.Library, dtype: str, where: str, interleaved: bool) -> None:
    for shape in ((1, 3, 2, 33, 30), (2, 1, 1, 64, 64), (1, 1, 3, 9, 2)):
        given = [guarded(one, where) for one in draw(shape, dtype, dtype, shape[1])]
        y = guarded(np.zeros_like(given[0]), where)
        for one in instances(lib, "rotary", dtype=dtype, tables=dtype):
            lib.rotary(*given, y=y, interleaved=interleaved, instance=one)
            assert reference.excess(y, *given, interleaved=interleaved) <= 1


def test_parts_of_packed_queries_and_keys(lib: tk.Library) -> None:
    """qkv (batch, seqlen, 3, nheads, headdim), and tables that are every other row of longer ones."""
    qkv, cos, sin = draw((2, 5, 3 * 2, 40, 40), "bf16", "bf16", 18)
    qkv = qkv.reshape(2, 5, 3, 2, 40)
    kept, tables = qkv.copy(), (cos[::2], sin[::2])
    for part in (0, 1):
        x = qkv[:, :, part]
        lib.rotary(x, *tables, y=x, start=1)
        assert reference.excess(x, kept[:, :, part], *tables, start=1) <= 1
    assert qkv[:, :, 2].tobytes() == kept[:, :, 2].tobytes()
    back = qkv[:, :, 0].transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3)  # heads before tokens
    assert lib.rotary(back, *tables).tobytes() == lib.rotary(back.copy(), *tables).tobytes()


def test_threads_and_streams_give_the_same_bits(lib: tk.Library) -> None:
    given = draw((2, 301, 4, 64, 64), "bf16", "bf16", 301)
    one = lib.rotary(*given, num_threads=1).tobytes()
    assert lib.rotary(*given, num_threads=3).tobytes() == one
    with tk.Stream() as stream:
        later = lib.rotary(*given, stream=stream)
    assert later.tobytes() == one


def test_bad_input(lib: tk.Library) -> None:
    x, cos, sin = draw((1, 4, 2, 16, 16), "bf16", "bf16", 6)
    with pytest.raises(tk.ArgumentError, match=r"cos: had 6 positions, must have 7, start \+ seqlen"):
        lib.rotary(x, cos, sin, start=3)
    with pytest.raises(
        tk.ArgumentError, match="cos: was for a rotary_dim of 16, must be at most 15, the head dim of x"
    ):
        lib.rotary(x[..., :15], cos, sin)
    with pytest.raises(tk.ArgumentError, match="y: shares memory with x"):
        lib.rotary(x[:, 1:], cos, sin, y=x[:, :3])
