# SPDX-License-Identifier: MIT
"""Features of attention: masks, biases, dropout, grouped heads, fp8, soft caps, sinks, head dims."""

import ml_dtypes
import numpy as np
from dispatch_example import forward, main, normal, over, qkv, table, verdict
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


if __name__ == "__main__":
    main(globals())
