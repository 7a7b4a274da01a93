# SPDX-License-Identifier: MIT
"""Tilekiln's attention of vLLM against the float64 reference, beside the real vLLM's classes; products.

Batches of decodes and prompts over pages in random order: masks, head dims, soft caps, ALiBi, sinks, encoders, fp8.
"""

from __future__ import annotations

import itertools
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
import tilekiln.compat.vllm
import torch
import vllm.platforms
from tilekiln.compat.vllm import cuda as of_cuda
from tilekiln.compat.vllm.attention import FORMATS, Attention, Backend
from tilekiln.compat.vllm.batch import batch_of
from tilekiln.compat.vllm.linear import Product
from tilekiln.reference import attention
from vllm.model_executor.layers.attention.cross_attention import create_cross_attention_backend
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.attention.selector import AttentionSelectorConfig

LAYER = SimpleNamespace(_k_scale=torch.tensor(0.02), _v_scale=torch.tensor(0.03))
OfCuda = type("OfCuda", (of_cuda.Attention,), {"device": "cpu"})
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def step(
    queries: list[int], keys: list[int], dtype: torch.dtype, hdim: int = 64, heads: tuple[int, int] = (4, 2),
    by_token: bool = False, causal: Any = True, fp8: str | None = None, size: int = 32, cuda: bool = False,
    **options: Any,
) -> None:  # fmt: skip
    """One layer's call, its results and what it wrote."""
    random = torch.Generator().manual_seed(sum(queries) + hdim)
    nhead_q, nhead_k = heads
    pages = [-(-length // size) for length in keys]
    order = torch.randperm(sum(pages) + 1, generator=random)
    table = torch.zeros(len(keys), max(pages), dtype=torch.int32)
    for row, (count, first) in enumerate(zip(pages, itertools.accumulate([0, *pages]), strict=False)):
        table[row, :count] = order[first : first + count]
    starts = torch.tensor([0, *itertools.accumulate(queries)], dtype=torch.int32)
    shape = (sum(pages) + 1, size, nhead_k, 2 * hdim) if by_token else (sum(pages) + 1, nhead_k, size, 2 * hdim)
    cache = torch.randn(shape, generator=random).to(dtype)
    if fp8:
        cache = (cache.float() / 0.02).to(FORMATS[fp8]).view(torch.uint8)
    cache = cache.transpose(1, 2) if by_token else cache
    qkv = torch.randn(int(starts[-1]), (nhead_q + 2 * nhead_k) * hdim, generator=random).to(dtype)
    parts = qkv.split([nhead_q * hdim, nhead_k * hdim, nhead_k * hdim], -1)
    q, k, v = (part.view(-1, count, hdim) for part, count in zip(parts, (nhead_q, nhead_k, nhead_k), strict=True))
    slots = torch.tensor(
        [
            int(table[row, place // size]) * size + place % size
            for row, length in enumerate(keys)
            for place in range(length - queries[row], length)
        ]
    )
    kind = OfCuda if cuda else Attention
    impl = kind(nhead_q, hdim, hdim**-0.5, nhead_k, kv_cache_dtype=fp8 or "auto", **options)
    impl.process_weights_after_loading(dtype)
    lengths = torch.tensor(keys, dtype=torch.int32)
    if cuda:
        common = SimpleNamespace(
            query_start_loc=starts, query_start_loc_cpu=starts, seq_lens=lengths, num_actual_tokens=slots.shape[0],
            max_query_len=max(queries), max_seq_len=max(keys) + 9, block_table_tensor=table, slot_mapping=slots,
            causal=causal,
        )  # fmt: skip
        batch = of_cuda.Builder.__new__(of_cuda.Builder).build(0, common)
    else:
        batch = batch_of(starts, lengths, table, causal, slots)
    out = torch.full((int(starts[-1]), nhead_q, hdim), torch.nan, dtype=dtype)
    impl.forward(LAYER, q, k, v, cache, batch, out)

    rows = cache.transpose(1, 2).reshape(-1, nhead_k, 2 * hdim)
    if fp8:
        rows = rows.view(FORMATS[fp8]).float() * torch.cat([torch.full((hdim,), 0.02), torch.full((hdim,), 0.03)])
    else:
        assert torch.equal(rows[slots], torch.cat([k, v], -1)), "written keys and values"
    window = options.get("sliding_window")
    for row, length in enumerate(keys):
        places = torch.arange(length)
        there = rows[table[row].long()[places // size] * size + places % size].double().numpy()
        flag = bool(causal[row]) if isinstance(causal, torch.Tensor) else causal
        sides = (-1, 0 if flag else -1) if window is None else (window - 1, 0 if flag else window - 1)
        here = slice(int(starts[row]), int(starts[row + 1]))
        expected = attention.forward(
            q[here][None].double().numpy(), there[None, ..., :hdim], there[None, ..., hdim:], window=sides,
            mask_origin="bottom_right", softmax_scale=hdim**-0.5, softcap=options.get("logits_soft_cap") or 0.0,
            alibi_slopes=None if (slopes := options.get("alibi_slopes")) is None else np.array(slopes),
            sink=None if (sinks := options.get("sinks")) is None else sinks.double().numpy(),
        )  # fmt: skip
        error = np.abs(out[here].double().numpy() - expected.out[0]).max(initial=0)
        assert error <= TOLERANCE[dtype], (queries, keys, dtype, options, row, error)


MIXED = [1, 1, 1, 7, 40, 2], [1, 64, 33, 7, 100, 90]
for dtype in TOLERANCE:
    step(*MIXED, dtype)
    step(*MIXED, dtype, by_token=True)
    step([1] * 5, [1, 2, 31, 32, 33], dtype)
    step(*MIXED, dtype, sliding_window=16)
    step(*MIXED, dtype, sinks=torch.linspace(-1, 1, 4))
    step(*MIXED, dtype, logits_soft_cap=20.0)
    step(*MIXED, dtype, alibi_slopes=[0.5, 0.25, 0.125, 0.0625])
    step(*MIXED, dtype, causal=torch.tensor([True, True, True, True, False, True]))
    step(*MIXED, dtype, causal=False)
    step([5, 19], [5, 19], dtype, heads=(4, 4))
    step([3, 3, 6, 6, 1, 4, 0, 2], [30, 3, 70, 6, 9, 33, 1, 2], dtype)
    step([2, 2, 4], [50, 9, 64], dtype, sliding_window=5, logits_soft_cap=20.0)
for hdim in (32, 80, 96, 128, 160, 256, 512):
    step(*MIXED, torch.bfloat16, hdim=hdim)
for fp8 in FORMATS:
    step(*MIXED, torch.bfloat16, fp8=fp8)
    step([1] * 3, [9, 40, 64], torch.bfloat16, fp8=fp8, sliding_window=8)

for dtype in (torch.float16, torch.bfloat16):  # the calls of CUDA's backend, answered by the CPU
    for queries, keys in (MIXED, ([1] * 3, [9, 40, 64]), ([5, 30], [5, 64])):
        step(queries, keys, dtype, cuda=True)
        step(queries, keys, dtype, cuda=True, sliding_window=8, by_token=True)
        step(queries, keys, dtype, cuda=True, alibi_slopes=[0.5, 0.25, 0.1, 0.01])
step(*MIXED, torch.bfloat16, cuda=True, fp8="fp8")
sys.modules["vllm._C_stable_libtorch"] = ModuleType("vllm._C_stable_libtorch")  # of vLLM's CUDA build
from vllm.platforms.cuda import NonNvmlCudaPlatform  # noqa: E402

vllm.platforms._current_platform = NonNvmlCudaPlatform()
tilekiln.compat.vllm.register()
NonNvmlCudaPlatform.get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(9, 0))
plain = {
    "head_size": 128, "dtype": torch.bfloat16, "kv_cache_dtype": "auto", "block_size": 16, "use_mla": False,
    "has_sink": False, "use_sparse": False,
}  # fmt: skip
for changes, why in (
    ({}, ""), ({"has_sink": True, "has_sliding_window": True}, ""), ({"kv_cache_dtype": "fp8"}, ""),
    ({"dtype": torch.float32}, "dtype not supported"), ({"head_size": 60}, "head_size not supported"),
    ({"kv_cache_dtype": "fp8_e5m2"}, "kv_cache_dtype not supported"), ({"use_non_causal": True}, "non-causal"),
    ({"kv_cache_dtype": "fp8", "has_sink": True}, "a cache of fp8 goes with bfloat16, without sinks"),
    ({"attn_type": AttentionType.ENCODER}, "attention type .* not supported"),
):  # fmt: skip
    asked = AttentionBackendEnum.CUSTOM, AttentionSelectorConfig(**{**plain, **changes}), 8
    if why:
        with pytest.raises(ValueError, match=why):
            NonNvmlCudaPlatform.get_attn_backend_cls(*asked)
    else:
        assert NonNvmlCudaPlatform.get_attn_backend_cls(*asked) == "tilekiln.compat.vllm.cuda.Backend"

q, k, v = (torch.randn(30, 4, 64) for _ in range(3))
starts = torch.tensor([0, 11, 30], dtype=torch.int32)
impl = Attention(4, 64, 0.125, 4, attn_type=AttentionType.ENCODER_ONLY)
impl.process_weights_after_loading(torch.float32)
out = torch.empty_like(q)
lengths = starts.diff()
impl.forward(LAYER, q, k, v, torch.empty(0), batch_of(starts, lengths, starts[:, None], False, torch.arange(30)), out)
for first, last in itertools.pairwise(starts.tolist()):
    one = [x[None, first:last].transpose(1, 2) for x in (q, k, v)]
    there = torch.nn.functional.scaled_dot_product_attention(*one, scale=0.125).transpose(1, 2)[0]
    assert torch.allclose(out[first:last], there, atol=2e-5)

ONE = SimpleNamespace(decode_context_parallel_size=1)
crossing = create_cross_attention_backend(Backend)
builder = crossing.get_builder_cls()(
    SimpleNamespace(block_size=16), [], SimpleNamespace(parallel_config=ONE), torch.device("cpu")
)
for dtype, near in TOLERANCE.items():
    counts, keys = [1, 1, 5, 3], [33, 20, 40, 7]  # two that decode, and two that bring their encoder's keys
    starts = torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32)
    table = torch.randperm(12).int().view(4, 3)
    cache, held = torch.randn(12, 2, 16, 128).to(dtype), torch.randn(47, 2, 2, 64).to(dtype)
    common = SimpleNamespace(
        query_start_loc=starts, query_start_loc_cpu=starts, block_table_tensor=table, num_actual_tokens=10,
        seq_lens_cpu_upper_bound=torch.tensor([9, 4, 5, 3]), slot_mapping=torch.zeros(10, dtype=torch.int64),
        encoder_seq_lens=torch.tensor(keys, dtype=torch.int32), encoder_seq_lens_cpu=np.array(keys), causal=True,
    )  # fmt: skip
    batch = builder.build(0, common)
    impl = crossing.get_impl_cls()(4, 64, 0.125, 2, attn_type=AttentionType.ENCODER_DECODER)
    impl.process_weights_after_loading(dtype)
    q = torch.randn(10, 4, 64).to(dtype)
    out = torch.empty_like(q)
    impl.forward(LAYER, q, held[:, 0], held[:, 1], cache, batch, out)
    for i, (first, last) in enumerate(itertools.pairwise(starts.tolist())):
        its = cache[table[i].long()].transpose(1, 2).flatten(0, 1)[: keys[i]]
        if i > 1:
            assert torch.equal(its, torch.cat([*held[:40].unbind(1)] if i == 2 else [*held[40:].unbind(1)], -1))
        one = [q[first:last].double(), *(half.repeat_interleave(2, 1).double() for half in its.split(64, -1))]
        there = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(0, 1) for x in one), scale=0.125)
        assert torch.allclose(out[first:last].double(), there.transpose(0, 1), atol=near), (dtype, i)

for rows in (0, 1, 9):
    x, weight, bias = (torch.randn(shape, dtype=torch.bfloat16) for shape in ((rows, 48), (70, 48), (70,)))
    product = Product(weight)
    for added in (bias, None, bias):
        there = torch.nn.functional.linear(x.float(), weight.float(), None if added is None else added.float())
        assert torch.allclose(product(x[:, None], weight, added)[:, 0].float(), there, rtol=1e-2, atol=1e-2)

for wrong, sentence in (
    ({"attn_type": "decodes"}, "attn_type: was 'decodes', must be decoder, encoder, encoder_only, encoder_decoder"),
    ({"kv_cache_dtype": "int8"}, "kv_cache_dtype: was 'int8', must be"),
):
    with pytest.raises(tk.ArgumentError, match=sentence):
        Attention(4, 64, 0.125, 4, **wrong)
print("agrees")
