# SPDX-License-Identifier: MIT
"""Backwards: stages, masks, grouped heads, dropout, biases, dtypes, head dims, determinism."""

import numpy as np
from dispatch_example import attention, backward, main, normal, over, qkv, table, verdict
from tilekiln import reference


def _18_backward() -> None:
    """The backward: three stages, checked against float64 and against finite differences."""
    of = over("fp32", "flash")
    plan = of.plan(attention().api_family("bwd").lse().build())
    print("stages:", *(stage.family.removeprefix("fmha_bwd_") for stage in plan.stages))
    q, k, v = qkv(seqlen_q=24, seqlen_k=30, dtype="fp32")
    dq, _, dv = backward("fp32", of, q, k, v)
    backward("bf16", of, *qkv(seqlen_q=24, seqlen_k=30))
    dout, step = normal(1, 24, 2, 64, dtype="fp32", seed=9).astype(np.float64), 1e-3
    for name, array, gradient in (("dq", q, dq), ("dv", v, dv)):
        at = (0, 3, 1, 5)
        up, down = array.copy(), array.copy()
        up[at] += step
        down[at] -= step
        sides = [(changed, k, v) if name == "dq" else (q, k, changed) for changed in (up, down)]
        high, low = ((reference.fmha_fwd(*side) * dout).sum() for side in sides)
        slope = (high - low) / (float(up[at]) - float(down[at]))
        verdict(f"{name} by finite differences", abs(slope - gradient[at]) < 1e-4)


def _27_backward_dropout() -> None:
    """The backward of dropout: the forward's bits again, by their seed; the random bytes on request."""
    of, drop = over("aiter"), {"dropout_p": 0.3, "rng": (11, 4)}
    q, k, v = qkv(seqlen_q=40, seqlen_k=50)
    for deterministic in (False, True):
        randval = np.zeros((1, 2, 40, 50), np.uint8)
        only = {"deterministic": deterministic, "randval": randval}
        first = backward(f"deterministic={deterministic}", of, q, k, v, only=only, **drop)
        forward_bytes = np.zeros_like(randval)
        of.run("fmha_fwd", q, k, v, randval=forward_bytes, **drop)
        verdict("random bytes", np.array_equal(randval, forward_bytes), "those of the forward")
    again = backward("again", of, q, k, v, only={"deterministic": True}, **drop)
    verdict("deterministic", all(np.array_equal(a, b) for a, b in zip(first, again, strict=True)), "the same bits")


def _28_backward_dbias() -> None:
    """The gradient of a bias: that of the scores; of a bias that sequences share, the sum over them."""
    of, bias = over("pytorch"), normal(1, 2, 20, 24, seed=4)
    q, k, v = qkv(batch=3, seqlen_q=20, seqlen_k=24)
    out, lse = of.run("fmha_fwd", q, k, v, bias=bias, return_lse=True)
    dout = normal(*out.shape, seed=5)
    *gradients, dbias = of.run("fmha_bwd", dout, q, k, v, out, lse, bias=bias, dbias=True)
    exact = reference.backward(dout, q, k, v, out, lse, bias=bias)
    named = dict(zip(("dq", "dk", "dv"), gradients, strict=True))
    verdict("dq, dk, dv", reference.gradient_excess("bf16", exact, **named) <= 1)
    verdict("dbias", reference.gradient_excess("bf16", exact, dbias=dbias) <= 1, "of each sequence")
    total, summed = exact.dbias.value.sum(axis=0), dbias.astype(np.float64).sum(axis=0)
    verdict("the gradient of the shared bias", np.allclose(summed, total, rtol=2**-6, atol=0.02), "a sum of 3")


_33_bwd_masks = table(
    "Gradients through masks.",
    ["none", "causal", "causal, top left", "window 5, 3"], backward, seqlen_q=30, seqlen_k=40,
    causal=[None, True, True, None], mask_origin=[None, None, "top_left", None], window=[None, None, None, (5, 3)],
)  # fmt: skip
_34_bwd_gqa = table(
    "Gradients of grouped queries: dk and dv are sums over the query heads of a group.",
    "{nhead_q} over {nhead_k}", backward, nhead_q=[4, 8, 8], nhead_k=[4, 2, 1],
    seqlen_q=20, seqlen_k=24,
)  # fmt: skip
_35_bwd_bf16 = table(
    "Gradients of bf16, fp16 and fp32: of each dtype to its own bound.",
    "{dtype}", backward, ["flash", "flash", "fp32"], dtype=["bf16", "fp16", "fp32"],
    seqlen_q=33, seqlen_k=40, causal=True,
)  # fmt: skip


def _37_bwd_deterministic() -> None:
    """Deterministic gradients: each worker adds to a buffer of its own, the buffers in one order, whoever ran when."""
    of = over("flash")
    q, k, v = qkv(seqlen_q=300, seqlen_k=520, nhead_q=4, nhead_k=2)
    runs = {
        threads: backward(f"{threads} threads", of, q, k, v, only={"deterministic": True, "num_threads": threads})
        for threads in (1, 2, 3)
    }
    same = all(np.array_equal(a, b) for other in runs.values() for a, b in zip(runs[1], other, strict=True))
    verdict("deterministic", same, "the same bits")
    backward("unordered, 3 threads", of, q, k, v, only={"num_threads": 3})


_38_bwd_sweep_hdim = table(
    "Gradients of head dims 32 to 256, and of one of v that is another than that of q and k.",
    "{hdim} and {hdim_v}", backward, hdim=[32, 64, 96, 128, 256, 192], hdim_v=[32, 64, 96, 128, 256, 128],
    seqlen_q=20, seqlen_k=24,
)  # fmt: skip

if __name__ == "__main__":
    main(globals())
