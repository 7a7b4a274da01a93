# SPDX-License-Identifier: MIT
"""rotary of positions on several axes (M-RoPE): sections, pairs in turn, a model of Transformers, every ISA."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference import rotary as reference

from tests.python.rows import instances
from tests.python.test_rotary import TABLES, draw


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("norm_default", targets="all")


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


def test_bad_input(lib: tk.Library) -> None:
    x, cos, sin = draw((1, 4, 2, 16, 16), "bf16", "bf16", 6)
    for given, text in (
        ({"axes": np.zeros(8, np.int32)}, "axes: was given without positions, must be null: they have an axis each"),
        ({"axes": np.zeros(8, np.int32), "positions": np.zeros((1, 4), np.int32)}, "positions: had 2 dimensions, must"),
        ({"axes": np.zeros(7, np.int32), "positions": np.zeros((3, 1, 4), np.int32)}, "axes: .*7.* must be .*8"),
        ({"positions": np.zeros((3, 1, 4), np.int32)}, "positions: had 3 dimensions, must have 2"),
    ):
        with pytest.raises(tk.ArgumentError, match=text):
            lib.rotary(x, cos, sin, **given)
