"""Gradients through masks."""

from dispatch_example import backward, over, qkv

masks = {
    "none": {},
    "causal": {"causal": True},
    "causal, top left": {"causal": True, "mask_origin": "top_left"},
    "window 5, 3": {"window": (5, 3)},
}
for label, mask in masks.items():
    backward(label, over("flash"), *qkv(seqlen_q=30, seqlen_k=40), **mask)
