"""Gradients of bf16, fp16 and fp32: of each dtype to its own bound."""

from dispatch_example import backward, over, qkv

for dtype in ("bf16", "fp16"):
    backward(dtype, over("flash"), *qkv(seqlen_q=33, seqlen_k=40, dtype=dtype), causal=True)
backward("fp32", over("fp32"), *qkv(seqlen_q=33, seqlen_k=40, dtype="fp32"), causal=True)
