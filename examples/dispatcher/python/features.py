# SPDX-License-Identifier: MIT
"""Features of attention: masks, biases, dropout, grouped heads, fp8, soft caps, sinks, head dims, layouts, caches."""

import ml_dtypes
import numpy as np
from dispatch_example import attention, forward, main, normal, over, qkv, table, verdict
from tilekiln import reference
from tilekiln.dispatcher import Call


def _12_masks() -> None:
    """Masks: none, causal from either corner, sliding and generic windows. One kernel serves all but none."""
    of, names = over("flash"), set()
    every = {
        "none": {},
        "causal, top left": {"causal": True, "mask_origin": "top_left"},
        "causal, bottom right": {"causal": True},
        "sliding window of 16": {"window": (16, 0)},
        "generic window 5, 9": {"window": (5, 9), "mask_origin": "top_left"},
    }
    for label, mask in every.items():
        q, k, v = qkv(seqlen_q=64, seqlen_k=128)
        forward(label, of, q, k, v, **mask)
        names.add(of.select(of.from_call(Call("fmha_fwd", q, k, v, **mask))).name)
    print(f"{len(every)} masks, {len(names)} kernels")


_13_bias = table(
    "Biases: none, an array that is added to the scores, alibi.",
    ["no bias", "elementwise", "elementwise, one for all heads", "alibi"],
    over_=["pytorch", "pytorch", "pytorch", "flash"], seqlen_q=48, seqlen_k=80, nhead_q=4, nhead_k=4,
    bias=[None, normal(1, 4, 48, 80), normal(1, 1, 48, 80), None],
    alibi_slopes=[None, None, None, np.float32([0.5, 0.25, 0.125, 0.0625])],
)  # fmt: skip


def _14_dropout() -> None:
    """Dropout: a seed gives its bits, on any machine; the share that is dropped is p; the LSE knows nothing of it."""
    of = over("flash")
    q, k, v = qkv(seqlen_q=128, seqlen_k=128)
    for p in (0.1, 0.5):
        randval = np.zeros((1, 2, 128, 128), np.uint8)
        out = forward(f"p = {p}", of, q, k, v, dropout_p=p, rng=(7, 0), only={"randval": randval})
        kept = (randval <= (1 - p) * 255).mean()
        verdict("the share that is kept", abs(kept - (1 - p)) < 0.01, f"within 0.01 of {1 - p}")
        again = of.run("fmha_fwd", q, k, v, dropout_p=p, rng=(7, 0))
        other = of.run("fmha_fwd", q, k, v, dropout_p=p, rng=(8, 0))
        verdict("the seed decides", np.array_equal(out, again) and not np.array_equal(out, other))
    (_, lse), (_, plain) = (of.run("fmha_fwd", q, k, v, return_lse=True, **drop) for drop in ({"dropout_p": 0.5}, {}))
    verdict("the LSE", np.allclose(lse, plain, rtol=0, atol=1e-3), "as without dropout")


_15_gqa = table(
    "Grouped queries: 1 to 16 query heads of a key head.",
    "{nhead_q} over {nhead_k}", nhead_q=[4, 8, 8, 8, 16], nhead_k=[4, 4, 2, 1, 1],
    seqlen_q=20, seqlen_k=40,
)  # fmt: skip


def _20_fp8() -> None:
    """fp8 inputs: bf16 or fp32 out, one scale a tensor or one a block."""
    one = {name: np.float32([scale]) for name, scale in (("q_descale", 0.5), ("k_descale", 0.25), ("v_descale", 2))}
    blocks = {name: np.full((1, 2, 2), scale[0], np.float32) for name, scale in one.items()}
    calls = {
        "fp8bf16 and a scale a tensor": ("bf16", one),
        "fp8fp32 and a scale a tensor": ("fp32", one),
        "fp8bf16 without scales": ("bf16", {}),
        "fp8bf16 and a scale a block of 128": ("bf16", blocks),
    }
    for label, (dtype, scales) in calls.items():
        q, k, v = (array.astype(ml_dtypes.float8_e4m3fn) for array in qkv(seqlen_q=150, seqlen_k=200, hdim=128))
        out = over("fp8").run("fmha_fwd", q, k, v, out_dtype=dtype, **scales)
        worst = reference.excess(f"fp8{dtype}", reference.forward(q, k, v, **scales), out)
        verdict(label, worst <= 1)


def _21_logits_soft_cap() -> None:
    """Scores that become softcap tanh(score / softcap), as in Gemma 2."""
    q, k, v = qkv()
    outs = [forward(f"soft cap {cap}", over("flash"), q, k, v, softcap=cap) for cap in (5.0, 50.0)]
    plain = over("flash").run("fmha_fwd", q, k, v)
    distances = [np.abs(out.astype(np.float32) - plain.astype(np.float32)).max() for out in outs]
    verdict("a higher cap is nearer to none", distances[0] > distances[1])


_22_sink_tokens = table(
    "Attention sinks: first keys that a window never hides, or a logit per head.",
    [*3 * ["window {window}, sink of {sink_size}"], "a logit a head"],
    over_="aiter", seqlen_q=64, seqlen_k=100, window=[(16, 0), (16, 0), (8, 8), None], sink_size=[0, 4, 1, None],
    sink=[None, None, None, np.float32([0.5, -1.0])],
)  # fmt: skip


def _26_hdim_variety() -> None:
    """Head dims: those that kernels are made for, those between, and different ones of q and v."""
    of = over("flash")
    for hdim, hdim_v in ((32, 32), (64, 64), (128, 128), (256, 256), (40, 40), (100, 100), (192, 128), (64, 128)):
        q, k, v = qkv(seqlen_q=20, seqlen_k=30, hdim=hdim, hdim_v=hdim_v)
        signature = of.select(of.from_call(Call("fmha_fwd", q, k, v))).key.signature
        forward(f"{hdim}x{hdim_v} by {signature['hdim_q']}x{signature['hdim_v']}", of, q, k, v)


def _19_padding() -> None:
    """Sequences of different lengths: rows padded in a batch, or packed one after another. The same numbers."""
    of, lengths = over("flash"), np.int32([5, 40, 17])
    starts = np.cumsum([0, *lengths]).astype(np.int32)
    packed = [normal(62, 2, 64, seed=seed) for seed in (1, 2, 3)]
    padded = [np.zeros((3, 40, 2, 64), packed[0].dtype) for _ in packed]
    places = [(b, start, length) for b, (start, length) in enumerate(zip(starts, lengths, strict=False))]
    for rows, array in zip(padded, packed, strict=True):
        for b, start, length in places:
            rows[b, :length] = array[start : start + length]
    batch = forward("padded rows of a batch", of, *padded, seqlen_q=lengths, seqlen_k=lengths)
    group = forward("packed: group mode", of, *packed, seqstart_q=starts, seqstart_k=starts, causal=False)
    same = all(np.array_equal(batch[b, :length], group[start : start + length]) for b, start, length in places)
    verdict("both", same, "the same bits")


def _24_vlayout_col() -> None:
    """Column-major V: no kernel has it, and none of another layout answers. Its transpose is what the kernels take."""
    of = over("flash")
    plan = of.plan(attention().v_rowmajor(False).build())
    verdict("v_rowmajor(False)", not plan.is_valid, "has no kernel")
    print(
        next(line.rpartition(": ")[2] for line in plan.reason.splitlines() if "v_layout" in line and "refused" in line)
    )
    q, k, v = qkv()
    columns = np.ascontiguousarray(v.transpose(0, 2, 3, 1))  # (batch, nhead, hdim, seqlen)
    out = of.run("fmha_fwd", q, k, np.ascontiguousarray(columns.transpose(0, 3, 1, 2)))
    verdict("transposed first", np.array_equal(out, of.run("fmha_fwd", q, k, v)), "the same bits")


def _25_permutation() -> None:
    """Heads before or after the sequence: bshd and bhsd, in and out."""
    of = over("flash")
    q, k, v = qkv(batch=2, seqlen_q=30, seqlen_k=40, nhead_q=4)
    bshd = forward("bshd", of, q, k, v)
    q, k, v = (np.ascontiguousarray(np.swapaxes(array, 1, 2)) for array in (q, k, v))
    bhsd = forward("bhsd", of, q, k, v, layout="bhsd")
    verdict("both", np.array_equal(np.swapaxes(bhsd, 1, 2), bshd), "the same bits")
    mixed = np.zeros_like(bshd)
    of.run("fmha_fwd", q, k, v, layout="bhsd", out=np.swapaxes(mixed, 1, 2))
    verdict("bhsd in, bshd out", np.array_equal(mixed, bshd), "the same bits")


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
    vectorized = reference.vectorized_pages(k, v)
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
