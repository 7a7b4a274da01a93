"""Masks: none, causal from either corner, sliding and generic windows. One kernel serves all but none."""

from dispatch_example import forward, over, qkv
from tilekiln.dispatcher import Call

of, names = over("flash"), set()
masks = {
    "none": {},
    "causal, top left": {"causal": True, "mask_origin": "top_left"},
    "causal, bottom right": {"causal": True},
    "sliding window of 16": {"window": (16, 0)},
    "generic window 5, 9": {"window": (5, 9), "mask_origin": "top_left"},
}
for label, mask in masks.items():
    q, k, v = qkv(seqlen_q=64, seqlen_k=128)
    forward(label, of, q, k, v, **mask)
    names.add(of.select(of.from_call(Call("fmha_fwd", q, k, v, **mask))).name)
print(f"{len(masks)} masks, {len(names)} kernels")
