# SPDX-License-Identifier: MIT
"""compat.flash_attn over the upstream suite's axes, every two values of which meet, judged as upstream judges."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.gpu_run import DEVICE

torch = pytest.importorskip("torch")
from tests.python import upstream  # noqa: E402

pytestmark = pytest.mark.torch

AXES = {
    "function": ["func", "kvpacked_func", "qkvpacked_func", "varlen_func", "varlen_kvpacked_func",
                 "varlen_qkvpacked_func"],
    "dtype": ["fp16", "bf16"],
    "hdim": upstream.HEAD_DIMS,
    "mask": ["none", "causal", "local", "causal_local"],
    "alibi": ["none", "heads", "batch_heads"],
    "heads": list(upstream.HEADS),
    "dropout_p": [0.0, 0.17],
    "softcap": [0.0, 5.0],
    "deterministic": [False, True],
    "seqlens": upstream.SEQLENS,
}  # fmt: skip


def allowed(case: dict[str, Any]) -> bool:
    """One packed tensor has as many keys as queries."""
    return "qkvpacked" not in case["function"] or case["heads"] == "mha"


CASES = upstream.pairwise(AXES, allowed)


def name(case: dict[str, Any]) -> str:
    return "-".join(f"{value[0]}x{value[1]}" if isinstance(value, tuple) else str(value) for value in case.values())


@pytest.fixture(autouse=True)
def libraries(flash, finds):
    finds(flash)


def lengths_of(case: dict[str, Any], seed: int) -> tuple[list[int], list[int]]:
    """Of each sequence; in varlen cases random ones up to the longest, and one without keys or queries."""
    seqlen_q, seqlen_k = case["seqlens"]
    if "qkvpacked" in case["function"]:
        seqlen_q = seqlen_k
    batch = 1 if seqlen_q * seqlen_k > 200_000 else 2
    if "varlen" not in case["function"]:
        return [seqlen_q] * batch, [seqlen_k] * batch
    generator = torch.Generator(DEVICE).manual_seed(seed)

    def some(longest: int) -> list[int]:
        return [longest, *torch.randint(longest // 2, longest + 1, (batch - 1,), generator=generator).tolist()]

    of_q, of_k = some(seqlen_q), some(seqlen_k)
    if "qkvpacked" in case["function"]:
        return [*of_q, 0], [*of_q, 0]
    return [*of_q, 0, 2], [*of_k, 5, 0]


def offsets(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)


@pytest.mark.sampled(22)
@pytest.mark.parametrize("case", CASES, ids=name)
def test_matrix(case):
    import tilekiln.compat.flash_attn as face

    seed = CASES.index(case)
    dtype, hdim = upstream.DTYPES[case["dtype"]], case["hdim"]
    nhead_q, nhead_k = upstream.HEADS[case["heads"]]
    lengths_q, lengths_k = lengths_of(case, seed)
    batch, varlen = len(lengths_q), "varlen" in case["function"]
    generator = torch.Generator(DEVICE).manual_seed(seed)

    def normal(lengths: list[int], heads: int, number: int) -> torch.Tensor:
        shape = (sum(lengths),) if varlen else (batch, lengths[0])
        return upstream.normal(*shape, heads, hdim, dtype=dtype, seed=10 * seed + number)

    q, k, v = normal(lengths_q, nhead_q, 0), normal(lengths_k, nhead_k, 1), normal(lengths_k, nhead_k, 2)
    dout = normal(lengths_q, nhead_q, 3)
    causal = "causal" in case["mask"]
    window = torch.randint(1, max(lengths_k), (2,), generator=generator) if "local" in case["mask"] else (-1, -1)
    slopes = None
    if case["alibi"] != "none":
        shape = (nhead_q,) if case["alibi"] == "heads" else (batch, nhead_q)
        slopes = torch.rand(shape, generator=generator) * 0.3

    # Ours.
    packed = [q, k, v]
    if "qkvpacked" in case["function"]:
        packed = [torch.stack([q, k, v], -3)]
    elif "kvpacked" in case["function"]:
        packed = [q, torch.stack([k, v], -3)]
    packed = [x.requires_grad_() for x in packed]
    where = [offsets(lengths_q), offsets(lengths_k), max(lengths_q), max(lengths_k)] if varlen else []
    if varlen and len(packed) == 1:
        where = [where[0], where[2]]
    torch.manual_seed(seed)
    out, lse, randval = getattr(face, f"flash_attn_{case['function']}")(
        *packed, *where, case["dropout_p"], causal=causal, window_size=window, softcap=case["softcap"],
        alibi_slopes=slopes, deterministic=case["deterministic"], return_attn_probs=True,
    )  # fmt: skip
    gradients = torch.autograd.grad(out, packed, dout)
    ours = [part for x in gradients for part in (x.unbind(-3) if x.dim() > q.dim() else [x])]

    # PyTorch's, sequence by sequence.
    exact_lse = []

    def one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, b: int, bits: torch.Tensor | None) -> torch.Tensor:
        size = q.shape[1], k.shape[1]
        mine = None if slopes is None else slopes[b] if slopes.ndim == 2 else slopes
        made, its_lse = upstream.attention(
            q, k, v, seen=upstream.visible(*size, causal, tuple(int(x) for x in window)), softcap=case["softcap"],
            bias=None if mine is None else upstream.alibi(mine, *size), dropout_p=case["dropout_p"],
            keep=None if bits is None else upstream.kept(bits, case["dropout_p"])[None],
        )  # fmt: skip
        exact_lse.append(its_lse[0].detach())
        return made[0]

    def all_of_them(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        bits = randval if case["dropout_p"] else None
        if not varlen:
            return torch.stack(
                [one(q[b, None], k[b, None], v[b, None], b, None if bits is None else bits[b]) for b in range(batch)]
            )
        parts = zip(q.split(lengths_q), k.split(lengths_k), v.split(lengths_k), strict=True)
        rows = [None] * batch if bits is None else bits.split(lengths_q, 1)
        return torch.cat(
            [
                one(x[None], y[None], z[None], b, None if bits is None else rows[b][..., : len(y)])
                for b, (x, y, z) in enumerate(parts)
            ]
        )

    exact, same = upstream.exact_and_same(all_of_them, (q.detach(), k.detach(), v.detach()), dout)
    upstream.judge_all(("out", "dq", "dk", "dv"), [out, *ours], exact, same, constant=1e-5)
    exact_lse = torch.cat(exact_lse[:batch], 1) if varlen else torch.stack(exact_lse[:batch])
    torch.testing.assert_close(lse, exact_lse, rtol=1e-4, atol=1e-4)
