# SPDX-License-Identifier: MIT
"""Errors of flash_attn's functions for bad input name their own arguments."""

from __future__ import annotations

import importlib
import itertools

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch


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
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: [flash])
    name, tensors, text = DIMENSIONS[case]
    with pytest.raises(RuntimeError) as error:
        getattr(face, name)(*tensors)
    assert str(error.value).startswith(text)


INF = float("inf")


@pytest.mark.parametrize("window", [None, 4, (None, None), (1,), "ab", (INF, 0), (0, -INF), (float("nan"), 0)])
def test_windows(face, window):
    with pytest.raises(RuntimeError) as error:
        face.flash_attn_func(Q, Q, Q, window_size=window)
    assert str(error.value).startswith(f"window_size: was {window!r}, must be (left, right)")


VARLEN = {"q": PACKED, "k": PACKED, "v": PACKED, "cu_seqlens_q": STARTS, "cu_seqlens_k": STARTS}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *itertools.product(("q", "k", "v"), ([0, 8, 16], None)),
        *itertools.product(("cu_seqlens_q", "cu_seqlens_k"), ([0, 8, 16], STARTS.cpu().numpy())),
    ],
)
@pytest.mark.parametrize("package", ["flash_attn", "aiter.ops.mha"])
def test_what_is_no_tensor_is_named(package, name, wrong, flash, monkeypatch):
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: [flash])
    call = importlib.import_module(f"tilekiln.{package}").flash_attn_varlen_func
    was = "None" if wrong is None else f"of type {type(wrong).__name__}"
    with pytest.raises(RuntimeError) as error:
        call(**{**VARLEN, name: wrong, "max_seqlen_q": 8, "max_seqlen_k": 8})
    assert str(error.value) == f"{name}: was {was}, must be a torch.Tensor"
    assert isinstance(error.value, ValueError)


def test_wrong_calls_keep_their_own_errors(face):
    with pytest.raises(TypeError, match="missing 2 required positional arguments: 'k' and 'v'"):
        face.flash_attn_func(None)
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        face.flash_attn_func(Q, Q, Q, nonsense=None)


@pytest.fixture
def of_max_seqlen_k(flash, monkeypatch):
    """out by max_seqlen_k, a window and causal, of 8 queries and 30 keys, of everything that compares the two."""
    from tilekiln.compat.aiter.ops import mha
    from tilekiln.compat.flash_attn import flash_attn_interface as face

    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: [flash])
    torch.manual_seed(1)
    q, k, pages = (torch.randn(*shape, 2, 32).bfloat16() for shape in ((8,), (30,), (4, 8)))
    starts = torch.tensor([0, 8], dtype=torch.int32), torch.tensor([0, 30], dtype=torch.int32)
    table = torch.arange(4, dtype=torch.int32)[None]

    def options(window, causal):
        return {"window_size": window, "causal": causal}

    def forward(most, window, causal, **more):
        return face._flash_attn_varlen_forward(q, k, k, *starts, 8, most, 0.0, None, causal, *window, **more)

    def prefill(most, window, causal):
        lengths = torch.tensor([30], dtype=torch.int32)
        where = {"block_table": table, "seqlen_k": lengths}
        return mha.mha_batch_prefill_func(
            q, pages, pages, starts[0], None, None, 8, most, **options(window, causal), **where
        )

    def listed(keys, values, indices, last):
        """Calls over pages as sglang lists them."""

        def run(most, window, causal):
            end = torch.tensor([0, len(indices)], dtype=torch.int32)
            where = {} if last is None else {"kv_last_page_lens": torch.tensor([last], dtype=torch.int32)}
            return mha.mha_batch_prefill_func(
                q, keys, values, starts[0], end, indices, 8, most, **options(window, causal), **where
            )

        return run

    rows = torch.arange(30, dtype=torch.int32)
    vectors = (
        pages.view(4, 8, 2, 4, 8).permute(0, 2, 3, 1, 4).contiguous(),
        pages.view(4, 1, 8, 2, 32).permute(0, 3, 1, 4, 2).contiguous(),
    )

    def backward(most, window, causal):
        out, lse, *_ = forward(30, window, causal)
        gradients = [torch.zeros_like(x) for x in (q, k, k)]
        sizes = *starts, 8, most, 0.0, None, causal, *window, 0.0, None, False
        face._flash_attn_varlen_backward(out, q, k, k, out, lse, *gradients, *sizes)
        return gradients[0]

    return {
        "varlen": lambda most, *mask: face.flash_attn_varlen_func(q, k, k, *starts, 8, most, **options(*mask)),
        "kvpacked": lambda most, *mask: face.flash_attn_varlen_kvpacked_func(
            q, torch.stack([k, k], 1), *starts, 8, most, **options(*mask)
        ),
        "pages": lambda most, *mask: face.flash_attn_varlen_func(
            q, pages, pages, *starts, 8, most, **options(*mask), block_table=table
        ),
        "private": lambda *given: forward(*given)[0],
        "used": lambda *given: forward(*given, seqused_k=torch.tensor([30], dtype=torch.int32))[0],
        "backward": backward,
        "aiter": lambda most, *mask: mha.flash_attn_varlen_func(q, k, k, *starts, 8, most, **options(*mask)),
        "prefill": prefill,
        "listed pages": listed(pages, pages, table[0], 6),
        "listed rows": listed(k, k, rows, None),
        "listed vectors": listed(*vectors, table[0], 6),
    }  # fmt: skip


@pytest.mark.host_only("lengths on a device are not read where max_seqlen is given")
@pytest.mark.parametrize(
    "call",
    [
        "varlen", "kvpacked", "pages", "private", "used", "backward", "aiter", "prefill", "listed pages", "listed rows",
        "listed vectors",
    ],
)  # fmt: skip
def test_a_max_seqlen_k_that_would_drop_the_window(of_max_seqlen_k, call):
    """An error where a side of the window would be unbounded for it; what it does not change goes through."""
    run = of_max_seqlen_k[call]
    with pytest.raises(ValueError, match="max_seqlen_k: was 10, must be at least 30, the keys of the longest sequence"):
        run(10, (12, 0), False)
    with pytest.raises(ValueError, match="window_size has a side of 14"):
        run(10, (3, 14), False)
    for window, causal in (((5, 14), True), ((5, 5), False), ((-1, -1), False), ((50, -1), False)):
        assert torch.equal(run(10, window, causal), run(30, window, causal))
