# SPDX-License-Identifier: MIT
"""Attention over caches of keys and values: split-KV, appends, prefill over pages."""

import numpy as np
from dispatch_example import attention, main, normal, over, verdict
from tilekiln import reference


def _16_splitkv() -> None:
    """Split-KV: the keys in parts, then a stage that combines them; over a dense cache and over pages."""
    of = over("flash")
    plan = of.plan(attention(seqlen_q=1, seqlen_k=4096).api_family("fwd_splitkv").num_splits(4).build())
    print("stages:", *(stage.family for stage in plan.stages))
    q, k, v = normal(2, 1, 4, 64, seed=1), normal(2, 300, 2, 64, seed=2), normal(2, 300, 2, 64, seed=3)
    exact = reference.splitkv(q, k, v)
    for splits in (1, 2, 4, 7):
        out = of.run("fmha_fwd_splitkv", q, k, v, num_splits=splits)
        verdict(f"{splits} splits", reference.excess("bf16", exact, out) <= 1)
    pages, pages_of = [x.reshape(30, 20, 2, 64) for x in (k, v)], np.arange(30, dtype=np.int32).reshape(2, 15)
    paged = {"block_table": pages_of, "seqlen_k": np.int32([300, 299])}
    out = of.run("fmha_fwd_splitkv", q, *pages, num_splits=3, **paged)
    verdict("pages of 20 tokens", reference.excess("bf16", reference.splitkv(q, *pages, **paged), out) <= 1)


def _17_appendkv() -> None:
    """New keys and values into a cache: rotated by either RoPE, dense, paged, and into rows by cache_batch_idx."""
    angles = np.arange(64)[:, None] * 10000.0 ** (-np.arange(32) / 32)
    rope = {"rotary_cos": np.cos(angles).astype(normal(1).dtype), "rotary_sin": np.sin(angles).astype(normal(1).dtype)}
    calls = {
        "dense": ((2, 48), {}),
        "interleaved RoPE": ((2, 48), {**rope, "rotary_interleaved": True}),
        "half-rotated RoPE": ((2, 48), {**rope, "rotary_interleaved": False}),
        "pages of 16, interleaved RoPE": ((6, 16), {**rope, "block_table": np.int32([[2, 0, 5], [1, 4, 3]])}),
        "rows 3 and 1 of a cache of 4": ((4, 48), {"cache_batch_idx": np.int32([3, 1])}),
    }
    for label, (shape, more) in calls.items():
        shapes = {"q": (2, 3, 4, 64), "k": (*shape, 2, 64), "v": (*shape, 2, 64)}
        ours = {name: normal(*of, seed=seed) for seed, (name, of) in enumerate(shapes.items(), 1)}
        exact = {name: array.copy() for name, array in ours.items()}
        new = {"knew": normal(2, 3, 2, 64, seed=4), "vnew": normal(2, 3, 2, 64, seed=5)}
        rest = {"seqlen_k": np.int32([20, 7]), "causal": True, **more}
        out = over("flash").run("fmha_fwd_appendkv", *ours.values(), *new.values(), **rest)
        expected = reference.appendkv(**exact, **new, **rest)
        close = all(
            np.allclose(ours[name].astype(np.float32), exact[name].astype(np.float32), rtol=2**-7, atol=2**-7)
            for name in ours
        )
        verdict(label, close and reference.excess("bf16", expected, out) <= 1)


def _23_batch_prefill() -> None:
    """Prefill over pages: SGLang's list of pages (1D) and vLLM's table (2D), linear and vectorized pages."""
    page, q, starts = 16, normal(30, 4, 64, seed=1), np.int32([0, 10, 30])
    k, v = linear = [normal(8, page, 2, 64, seed=seed) for seed in (2, 3)]
    vectorized = [np.ascontiguousarray(k.reshape(8, page, 2, 8, 8).transpose(0, 2, 3, 1, 4)),
                  np.ascontiguousarray(v.reshape(8, page // 8, 8, 2, 64).transpose(0, 3, 1, 4, 2))]  # fmt: skip
    sglang = {
        "kv_indptr": np.int32([0, 3, 7]),
        "kv_page_indices": np.int32([6, 2, 4, 0, 7, 1, 3]),
        "kv_last_page_lens": np.int32([8, 2]),
    }
    vllm = {"block_table": np.int32([[6, 2, 4, 0], [0, 7, 1, 3]]), "seqlen_k": np.int32([40, 50])}
    outs = []
    calls = {"SGLang, linear": (linear, sglang), "vLLM, linear": (linear, vllm),
             "SGLang, vectorized": (vectorized, sglang), "vLLM, vectorized": (vectorized, vllm)}  # fmt: skip
    for label, (pool, pages) in calls.items():
        out = over("flash").run("fmha_batch_prefill", q, *pool, cu_seqlens_q=starts, causal=True, **pages)
        expected = reference.batch_prefill(q, *pool, cu_seqlens_q=starts, causal=True, **pages)
        verdict(label, reference.excess("bf16", expected, out) <= 1)
        outs.append(out)
    same = np.array_equal(outs[0], outs[1]) and np.array_equal(outs[2], outs[3])
    verdict("lists and tables", same, "the same bits")


if __name__ == "__main__":
    main(globals())
