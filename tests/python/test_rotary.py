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


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("dtype", "tables"), TABLES)
def test_positions_on_several_axes(lib: tk.Library, dtype: str, tables: str, interleaved: bool) -> None:
    """Sections as Qwen2.5-VL has them, and in turn, as Qwen3-VL; more pairs than are gathered at once."""
    for rotary_dim, shape in ((48, (2, 5, 3, 50)), (600, (1, 3, 2, 600))):
        x, cos, sin = draw((*shape, rotary_dim), dtype, tables, 12)
        half, random = rotary_dim // 2, np.random.default_rng(1)
        positions = random.integers(0, 12, (3, *shape[:2])).astype(np.int64)
        for axes in (np.repeat([0, 1, 2], half // 3), np.arange(half) % 3):
            how = {"axes": axes.astype(np.int32), "interleaved": interleaved}
            for one in instances(lib, "rotary", dtype=dtype, tables=tables):
                y = lib.rotary(x, cos, sin, positions=positions, instance=one, **how)
                assert reference.excess(y, x, cos, sin, positions=positions, **how) <= 1
                assert reference.excess(y, x, cos, sin, positions=positions[::-1], **how) > 1
                again = x.copy()
                lib.rotary(again, cos, sin, positions=positions, y=again, instance=one, **how)
                assert again.tobytes() == y.tobytes()
    same = np.broadcast_to(positions[:1], positions.shape).copy()  # on one axis: as without
    one_axis = lib.rotary(x, cos, sin, positions=positions[0], interleaved=interleaved)
    assert lib.rotary(x, cos, sin, positions=same, **how).tobytes() == one_axis.tobytes()
    positions[1, 0, 1] = 12  # outside of the tables on one axis
    y = lib.rotary(x, cos, sin, positions=positions, **how)
    assert y[0, 1].tobytes() == x[0, 1].tobytes()
    assert reference.excess(y, x, cos, sin, positions=positions, **how) <= 1
    how["axes"][0] = 3
    assert lib.rotary(x, cos, sin, positions=positions, **how).tobytes() == x.tobytes()


@pytest.mark.transformers
def test_mrope_of_a_model(lib: tk.Library) -> None:
    """Angles that Qwen2.5-VL makes of positions in time, height and width, and what it makes of queries."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers import Qwen2_5_VLTextConfig
    from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as theirs

    sections, hdim, tokens = [8, 4, 4], 32, 7
    scaling = {"rope_type": "default", "mrope_section": sections, "rope_theta": 10000.0}
    config = Qwen2_5_VLTextConfig(hidden_size=2 * hdim, num_attention_heads=2, rope_parameters=scaling)
    positions = torch.randint(0, 40, (3, 2, tokens), generator=torch.Generator().manual_seed(0))
    q = torch.randn(2, tokens, 2, hdim, generator=torch.Generator().manual_seed(1))
    made = theirs.Qwen2_5_VLRotaryEmbedding(config)
    cos, sin = made(q, positions)
    heads = q.transpose(1, 2)
    if cos.dim() == 4:
        turned = theirs.apply_multimodal_rotary_pos_emb(heads, heads, cos, sin, sections)[0]
    else:
        turned = theirs.apply_rotary_pos_emb(heads, heads, cos, sin)[0]
    angle = torch.arange(40)[:, None] * made.inv_freq
    axes = np.repeat([0, 1, 2], sections).astype(np.int32)
    y = lib.rotary(q.numpy(), angle.cos().numpy(), angle.sin().numpy(), positions=positions.numpy(), axes=axes)
    torch.testing.assert_close(torch.from_numpy(y).transpose(1, 2), turned, rtol=1e-5, atol=1e-5)


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
    for given, text in (
        ({"axes": np.zeros(8, np.int32)}, "axes: was given without positions, must be null: they have an axis each"),
        ({"axes": np.zeros(8, np.int32), "positions": np.zeros((1, 4), np.int32)}, "positions: had 2 dimensions, must"),
        ({"axes": np.zeros(7, np.int32), "positions": np.zeros((3, 1, 4), np.int32)}, "axes: .* was 7, must be 8"),
        ({"positions": np.zeros((3, 1, 4), np.int32)}, "positions: had 3 dimensions, must have 2"),
    ):
        with pytest.raises(tk.ArgumentError, match=text):
            lib.rotary(x, cos, sin, **given)
    with pytest.raises(tk.ArgumentError, match="y: shares memory with x"):
        lib.rotary(x[:, 1:], cos, sin, y=x[:, :3])
