"""Errors of flash_attn's functions for bad input name their own arguments."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch


@pytest.fixture
def face(binding):
    import tilekiln.flash_attn

    return tilekiln.flash_attn


Q, STARTS = torch.zeros(2, 8, 4, 32), torch.tensor([0, 8, 16], dtype=torch.int32)
PACKED = Q.flatten(0, 1)
BATCH, HEADS = "batch, seqlen_k, nheads_k, headdim", "total_k, nheads_k, headdim"
DIMENSIONS = {
    "q of varlen": ("flash_attn_func", (PACKED, Q, Q), "q: had 3 dimensions, must have 4: (batch, seqlen_q, nheads,"),
    "all of varlen": ("flash_attn_func", (PACKED,) * 3, "q: had 3 dimensions, must have 4: (batch, seqlen_q, nheads, "),
    "k of one": ("flash_attn_func", (Q, Q[0, 0, 0], Q), f"k: had 1 dimensions, must have 4: ({BATCH})"),
    "v of none": ("flash_attn_func", (Q, Q, Q[0, 0, 0, 0]), f"v: had 0 dimensions, must have 4: ({BATCH})"),
    "qkv": ("flash_attn_qkvpacked_func", (Q,), "qkv: had 4 dimensions, must have 5: (batch, seqlen, 3, nheads, "),
    "kv": ("flash_attn_kvpacked_func", (Q, Q), "kv: had 4 dimensions, must have 5: (batch, seqlen_k, 2, nheads_k, "),
    "q of a batch": (
        "flash_attn_varlen_func", (Q, PACKED, PACKED, STARTS, STARTS, 8, 8),
        "q: had 4 dimensions, must have 3: (total_q, nheads, headdim)",
    ),
    "k of a batch": (
        "flash_attn_varlen_func", (PACKED, Q, PACKED, STARTS, STARTS, 8, 8),
        f"k: had 4 dimensions, must have 3: ({HEADS})",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DIMENSIONS)
def test_dimensions(face, flash, monkeypatch, case):
    monkeypatch.setattr("tilekiln.operators._at_hand", lambda: [flash])
    name, tensors, text = DIMENSIONS[case]
    with pytest.raises(RuntimeError) as error:
        getattr(face, name)(*tensors)
    assert str(error.value).startswith(text)


@pytest.mark.parametrize("window", [None, 4, (None, None), (1,), "ab"])
def test_windows(face, window):
    with pytest.raises(RuntimeError) as error:
        face.flash_attn_func(Q, Q, Q, window_size=window)
    assert str(error.value).startswith(f"window_size: was {window!r}, must be (left, right)")
