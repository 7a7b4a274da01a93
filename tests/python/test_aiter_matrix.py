# SPDX-License-Identifier: MIT
"""tilekiln.compat.aiter over the axes of aiter's suite, every two values of which meet, judged as upstream judges."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.gpu_run import DEVICE

torch = pytest.importorskip("torch")
from tests.python import upstream  # noqa: E402

pytestmark = pytest.mark.torch

AXES = {
    "function": ["batch", "batch_padded", "varlen", "varlen_padded"],
    "dtype": ["fp16", "bf16"],
    "hdims": [*((hdim, hdim) for hdim in upstream.HEAD_DIMS), (192, 128), (128, 64)],
    "mask": ["none", "causal", "local", "local_sink"],
    "bias": ["none", "alibi", "alibi_batch", "bias"],
    "heads": list(upstream.HEADS),
    "dropout_p": [0.0, 0.17],
    "sink": [False, True],
    "softcap": [0.0, 5.0],
    "deterministic": [False, True],
    "seqlens": upstream.SEQLENS,
}


def allowed(case: dict[str, Any]) -> bool:
    """Soft caps are varlen's alone and go without bias."""
    return not (case["softcap"] and (case["bias"] != "none" or case["function"].startswith("batch")))


CASES = upstream.pairwise(AXES, allowed)


def name(case: dict[str, Any]) -> str:
    return "-".join("x".join(map(str, value)) if isinstance(value, tuple) else str(value) for value in case.values())


@pytest.fixture(autouse=True)
def libraries(load, finds):
    finds(load("aiter"))


def offsets(lengths: list[int]) -> Any:
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)


class Sequences:
    """The lengths of a case, where its sequences lie, and the arguments that say so."""

    def __init__(self, case: dict[str, Any], seed: int) -> None:
        self.varlen, padded = case["function"].startswith("varlen"), case["function"].endswith("padded")
        generator = torch.Generator(DEVICE).manual_seed(seed)
        batch = 1 if case["seqlens"][0] * case["seqlens"][1] > 200_000 else 2

        def some(longest: int) -> list[int]:
            return [longest, *torch.randint(longest // 2, longest + 1, (batch - 1,), generator=generator).tolist()]

        self.q, self.k = (some(longest) if self.varlen or padded else [longest] * batch for longest in case["seqlens"])
        if self.varlen:  # one without keys, one without queries
            self.q, self.k = [*self.q, 2, 0], [*self.k, 0, 5]
        gap = [3] * len(self.q) if padded else [0] * len(self.q)
        self.rows_q, self.rows_k = ([a + b for a, b in zip(side, gap, strict=True)] for side in (self.q, self.k))
        self.arguments: dict[str, Any] = {}
        if self.varlen:
            self.positional = [offsets(self.q), offsets(self.k), max(self.q), max(self.k)]
            if padded:
                self.arguments = {
                    "cu_seqlens_q_padded": offsets(self.rows_q),
                    "cu_seqlens_k_padded": offsets(self.rows_k),
                }
        else:
            self.positional = []
            self.rows_q, self.rows_k = ([max(side)] * batch for side in (self.q, self.k))
            if padded:
                self.arguments = {"cu_seqlens_q": offsets(self.q), "cu_seqlens_kv": offsets(self.k)}

    def shape(self, rows: list[int]) -> tuple[int, ...]:
        return (sum(rows),) if self.varlen else (len(rows), rows[0])

    def places(self) -> list[tuple[int, Any, Any]]:
        """(b, index of the queries of sequence b, index of its keys)."""
        if not self.varlen:
            return [(b, (b, slice(n)), (b, slice(m))) for b, (n, m) in enumerate(zip(self.q, self.k, strict=True))]
        begins_q, begins_k = offsets(self.rows_q).tolist(), offsets(self.rows_k).tolist()
        return [
            (b, slice(i, i + n), slice(j, j + m))
            for b, (i, j, n, m) in enumerate(zip(begins_q, begins_k, self.q, self.k, strict=False))
        ]


@pytest.mark.sampled(24)
@pytest.mark.parametrize("case", CASES, ids=name)
def test_matrix(case):
    import tilekiln.compat.aiter as face

    seed = CASES.index(case)
    generator = torch.Generator(DEVICE).manual_seed(seed)
    dtype, (hdim_q, hdim_v), p = upstream.DTYPES[case["dtype"]], case["hdims"], case["dropout_p"]
    nhead_q, nhead_k = upstream.HEADS[case["heads"]]
    sequences = Sequences(case, seed)
    longest_q, longest_k = max(sequences.q), max(sequences.k)
    shapes = {
        "q": (*sequences.shape(sequences.rows_q), nhead_q, hdim_q),
        "k": (*sequences.shape(sequences.rows_k), nhead_k, hdim_q),
        "v": (*sequences.shape(sequences.rows_k), nhead_k, hdim_v),
        "dout": (*sequences.shape(sequences.rows_q), nhead_q, hdim_v),
    }
    if case["bias"] == "bias":
        shapes["bias"] = (shapes["q"][0] if sequences.varlen else longest_q, longest_k)
    made = {
        key: upstream.normal(*shape, dtype=dtype, seed=10 * seed + n) for n, (key, shape) in enumerate(shapes.items())
    }
    dout = made.pop("dout")
    if case["sink"]:
        made["sink_ptr"] = torch.randn(nhead_q, generator=generator)
    slopes = None
    if case["bias"].startswith("alibi"):
        heads = (nhead_q,) if case["bias"] == "alibi" else (len(sequences.q), nhead_q)
        slopes = torch.rand(heads, generator=generator) * 0.3
    window = (-1, -1, 0)
    if "local" in case["mask"]:
        window = (*torch.randint(1, longest_k, (2,), generator=generator).tolist(), 2 * ("sink" in case["mask"]))
    causal = case["mask"] == "causal"

    # Ours.
    inputs = {key: x.detach().requires_grad_() for key, x in made.items()}
    torch.manual_seed(seed)
    soft = {"logits_soft_cap": case["softcap"]} if sequences.varlen else {}
    function = face.flash_attn_varlen_func if sequences.varlen else face.flash_attn_func
    tensors = [inputs[key] for key in ("q", "k", "v")]
    extra = {key: inputs[key] for key in ("bias", "sink_ptr") if key in inputs}
    out, lse, bits = function(
        *tensors, *sequences.positional, dropout_p=p, causal=causal, window_size=window, alibi_slopes=slopes,
        deterministic=case["deterministic"], return_lse=True, return_attn_probs=True, **soft, **extra,
        **sequences.arguments,
    )  # fmt: skip
    gradients = torch.autograd.grad(out, list(inputs.values()), dout)

    # PyTorch's, sequence by sequence.
    exact_lse = []

    def all_of_them(*arrays: Any) -> Any:
        named = dict(zip(made, arrays, strict=True))
        result = torch.zeros(shapes["dout"], dtype=named["q"].dtype)
        for b, of_q, of_k in sequences.places():
            size = len(named["q"][of_q]), len(named["k"][of_k])
            bias = None
            if "bias" in named:
                bias = (named["bias"][of_q] if sequences.varlen else named["bias"][: size[0]])[None, None, :, : size[1]]
            elif slopes is not None:
                bias = upstream.alibi(slopes[b] if slopes.ndim == 2 else slopes, *size)
            keep = None
            if p:
                here = bits[:, of_q] if sequences.varlen else bits[b][:, : size[0]]
                keep = upstream.kept(here[..., : size[1]], p)[None]
            one, its_lse = upstream.attention(
                named["q"][of_q][None], named["k"][of_k][None], named["v"][of_k][None],
                seen=upstream.visible(*size, causal, window[:2], window[2]), bias=bias, sink=named.get("sink_ptr"),
                softcap=case["softcap"], keep=keep, dropout_p=p,
            )  # fmt: skip
            result[of_q] = one[0]
            exact_lse.append((b, of_q, its_lse[0].detach()))
        return result

    exact, same = upstream.exact_and_same(all_of_them, list(made.values()), dout)
    upstream.judge_all(("out", *(f"d{key}" for key in made)), [out, *gradients], exact, same)
    for b, of_q, right in exact_lse[: len(sequences.q)]:
        mine = lse[:, of_q] if sequences.varlen else lse[b][:, : right.shape[1]]
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-4)


PREFILL = {
    "dtype": ["fp16", "bf16", "bf16 over fp8", "fp8", "bf16 over fp8 blocks", "bf16 over bf8"],
    "hdim": [64, 96, 128, 256],
    "page": [1, 16, 1024],
    "vectorized": [False, True],
    "lookup": ["sglang", "vllm"],
    "mask": ["none", "causal", "local", "local_sink"],
    "softcap": [0.0, 30.0],
    "alibi": [False, True],
    "heads": list(upstream.HEADS),
    "dropout_p": [0.0, 0.2],
    "sink": [False, True],
    "return_lse": [False, True],
}


def prefill_allowed(case: dict[str, Any]) -> bool:
    """Whether the families' rules allow a case."""
    if case["page"] == 1 and case["vectorized"]:
        return False
    if "blocks" in case["dtype"] and case["page"] != 1024:
        return False
    without = ("alibi", "dropout_p", "sink", "return_lse")
    if case["dtype"] == "fp8" and (any(case[name] for name in without) or "sink" in case["mask"]):
        return False
    return not (case["softcap"] and case["alibi"])


PREFILL_CASES = upstream.pairwise(PREFILL, prefill_allowed)
FP8 = torch.float8_e4m3fn


class Pages:
    """Keys or values of sequences, scattered over a pool of pages; fp8 ones with their scales."""

    def __init__(self, sequences: list[Any], tables: list[list[int]], pages: int, page: int, dtype: Any, blocks: bool):
        _, heads, hdim = sequences[0].shape
        pool = torch.zeros(pages, page, heads, hdim)
        for one, table in zip(sequences, tables, strict=True):
            for i, number in enumerate(table):
                part = one[i * page : (i + 1) * page]
                pool[number, : len(part)] = part.float()
        self.scale = torch.ones(1)
        if dtype in (FP8, torch.float8_e5m2):
            largest = pool.abs().amax((1, 3)) if blocks else pool.abs().max()[None]
            self.scale = (largest / torch.finfo(dtype).max).clamp(min=1e-6)
        wide = self.scale[:, None, :, None] if blocks else self.scale
        self.stored = (pool / wide).to(dtype)
        self.read = self.stored.float() * wide
        """Values of the pool, fp32."""
        self.tables, self.page = tables, page

    def sequence(self, b: int, length: int) -> Any:
        return self.read[self.tables[b]].flatten(0, 1)[:length]


def vectorized_k(pool: Any) -> Any:
    """(pages, heads, hdim / vec, page, vec)"""
    pages, page, heads, hdim = pool.shape
    vec = 16 // pool.element_size()
    return pool.view(pages, page, heads, hdim // vec, vec).permute(0, 2, 3, 1, 4).contiguous()


def vectorized_v(pool: Any) -> Any:
    """(pages, heads, page / vec, hdim, vec)"""
    pages, page, heads, hdim = pool.shape
    vec = 16 // pool.element_size()
    return pool.view(pages, page // vec, vec, heads, hdim).permute(0, 3, 1, 4, 2).contiguous()


@pytest.mark.sampled(30)
@pytest.mark.parametrize("case", PREFILL_CASES, ids=name)
def test_batch_prefill_matrix(case):
    import tilekiln.compat.aiter as face

    seed = PREFILL_CASES.index(case)
    generator = torch.Generator(DEVICE).manual_seed(seed)
    hdim, page, (nhead_q, nhead_k) = case["hdim"], case["page"], upstream.HEADS[case["heads"]]
    lengths_q, lengths_k = [37, 1, 0, 20], [130, 33, 16, 20]
    q_type = {"fp16": torch.float16, "fp8": FP8}.get(case["dtype"], torch.bfloat16)
    kv_type = FP8 if "fp8" in case["dtype"] else torch.float8_e5m2 if "bf8" in case["dtype"] else q_type
    out_type = torch.bfloat16 if q_type == FP8 else q_type
    blocks = "blocks" in case["dtype"]

    counts = [-(-length // page) for length in lengths_k]
    order = torch.randperm(sum(counts) + 2, generator=generator).tolist()
    tables = [[order.pop() for _ in range(count)] for count in counts]
    pages = sum(counts) + 2
    k, v = (
        Pages(
            [upstream.normal(n, nhead_k, hdim, dtype=torch.bfloat16, seed=9 * seed + 4 * side + b)
             for b, n in enumerate(lengths_k)],
            tables, pages, page, kv_type, blocks,
        )
        for side in range(2)
    )  # fmt: skip
    q = upstream.normal(sum(lengths_q), nhead_q, hdim, dtype=torch.bfloat16, seed=9 * seed + 8).to(q_type)
    scales = {}
    if blocks:
        scales["kv_block_descale"] = torch.stack([k.scale, v.scale], -1)
    elif kv_type.itemsize == 1:
        scales = {"k_descale": k.scale, "v_descale": v.scale}
    q_scale = 1.0
    if q_type == FP8:
        q_scale = 0.5
        scales["q_descale"] = torch.tensor([q_scale])

    stored = [k.stored, v.stored]
    if case["vectorized"]:
        stored = [vectorized_k(k.stored), vectorized_v(v.stored)]
    elif page == 1 and seed % 2:
        stored = [pool[:, 0] for pool in stored]
    where: dict[str, Any] = {"kv_indptr": None, "kv_page_indices": None}
    if case["lookup"] == "vllm":
        table = torch.zeros(len(counts), max(counts), dtype=torch.int32)
        for b, its in enumerate(tables):
            table[b, : len(its)] = torch.tensor(its)
        where |= {"block_table": table, "seqlen_k": torch.tensor(lengths_k, dtype=torch.int32)}
    else:
        padded = list(itertools.chain(*tables, [0] * 128))
        where = {"kv_indptr": offsets(counts), "kv_page_indices": torch.tensor(padded, dtype=torch.int32)}
        if page > 1 or seed % 2:
            last = [(length - 1) % page + 1 for length in lengths_k]
            where["kv_last_page_lens"] = torch.tensor(last, dtype=torch.int32)
    causal, local = case["mask"] == "causal", "local" in case["mask"]
    window = (9, 4) if local else (-1, -1)
    sink_size = 3 if "sink" in case["mask"] else 0
    sink = torch.randn(nhead_q, generator=generator) if case["sink"] else None
    slopes = torch.rand(nhead_q, generator=generator) * 0.3 if case["alibi"] else None
    p = case["dropout_p"]
    torch.manual_seed(seed)
    into = torch.empty(sum(lengths_q), nhead_q, hdim, dtype=out_type) if seed % 2 else None
    results = face.mha_batch_prefill_func(
        q, *stored, offsets(lengths_q), where.pop("kv_indptr"), where.pop("kv_page_indices"), max(lengths_q),
        max(lengths_k), p, None, case["softcap"], causal, window, slopes, return_lse=case["return_lse"],
        return_attn_probs=True, out=into, sink_ptr=sink, sink_size=sink_size, **where, **scales,
    )  # fmt: skip
    out, *lse, bits = results
    assert out.dtype == out_type
    assert into is None or out is into
    assert bits.shape == ((nhead_q, len(q), max(lengths_k)) if p else (0,))

    begins = offsets(lengths_q).tolist()
    rights = []
    for dtype in (torch.float32, out_type):
        parts, lses = [], []
        for b, (begin, length_k) in enumerate(zip(begins, lengths_k, strict=False)):
            rows = slice(begin, begin + lengths_q[b])
            size = lengths_q[b], length_k
            one, its_lse = upstream.attention(
                (q[rows].float() * q_scale)[None].to(dtype), k.sequence(b, length_k)[None].to(dtype),
                v.sequence(b, length_k)[None].to(dtype), seen=upstream.visible(*size, causal, window, sink_size),
                bias=None if slopes is None else upstream.alibi(slopes, *size), sink=sink, softcap=case["softcap"],
                keep=upstream.kept(bits[:, rows, :length_k], p)[None] if p else None, dropout_p=p,
            )  # fmt: skip
            parts.append(one[0])
            lses.append(its_lse[0])
        rights.append((torch.cat(parts), torch.cat(lses, 1)))
    upstream.judge("out", out, rights[0][0], rights[1][0], upstream.FORWARD)
    if case["return_lse"]:
        torch.testing.assert_close(lse[0], rights[0][1], rtol=1e-4, atol=1e-4)


FP8_CASES = upstream.pairwise(
    {
        "varlen": [False, True],
        "hdims": [(128, 128), (192, 128), (96, 96)],
        "mask": ["none", "causal", "local_sink"],
        "heads": list(upstream.HEADS),
        "softcap": [0.0, 5.0],
        "sink": [False, True],
        "seqlens": [(1, 239), (113, 203), (129, 97), (40, 3)],
    },
    lambda case: case["varlen"] or not case["softcap"],
)


@pytest.mark.parametrize("case", FP8_CASES, ids=name)
def test_fp8_matrix(case):
    import tilekiln.compat.aiter as face

    seed = FP8_CASES.index(case)
    (seqlen_q, seqlen_k), (hdim_q, hdim_v) = case["seqlens"], case["hdims"]
    nhead_q, nhead_k = upstream.HEADS[case["heads"]]
    shapes = [(2, seqlen_q, nhead_q, hdim_q), (2, seqlen_k, nhead_k, hdim_q), (2, seqlen_k, nhead_k, hdim_v)]
    stored, scales = [], []
    for n, shape in enumerate(shapes):
        values = upstream.normal(*shape, dtype=torch.float32, seed=3 * seed + n)
        scales.append((values.abs().max() / torch.finfo(FP8).max)[None])
        stored.append((values / scales[-1]).to(FP8))
    causal, window = case["mask"] == "causal", (2, 1, 1) if "local" in case["mask"] else (-1, -1, 0)
    sink = torch.randn(nhead_q, generator=torch.Generator(DEVICE).manual_seed(seed)) if case["sink"] else None
    if case["varlen"]:
        packed = [x.flatten(0, 1) for x in stored]
        cu = [offsets([x.shape[1]] * 2) for x in stored[:2]]
        out = face.flash_attn_varlen_fp8_pertensor_func(
            *packed, *scales, *cu, seqlen_q, seqlen_k, 0, case["softcap"], causal, window, sink_ptr=sink
        ).view(2, seqlen_q, nhead_q, hdim_v)
    else:
        out = face.flash_attn_fp8_pertensor_func(*stored, *scales, causal, window, sink_ptr=sink)
    assert out.dtype == torch.bfloat16
    exact, same = (
        upstream.attention(
            *((x.float() * scale).to(dtype) for x, scale in zip(stored, scales, strict=True)),
            seen=upstream.visible(seqlen_q, seqlen_k, causal, window[:2], window[2]), sink=sink,
            softcap=case["softcap"],
        )[0]
        for dtype in (torch.float32, torch.bfloat16)
    )  # fmt: skip
    upstream.judge("out", out, exact, same, upstream.FORWARD)
