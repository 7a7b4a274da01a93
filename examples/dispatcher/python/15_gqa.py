"""Grouped queries: 1 to 16 query heads of a key head."""

from dispatch_example import forward, over, qkv

for nhead_q, nhead_k in ((4, 4), (8, 4), (8, 2), (8, 1), (16, 1)):
    forward(
        f"{nhead_q} heads of q, {nhead_k} of k and v",
        over("flash"),
        *qkv(seqlen_q=20, seqlen_k=40, nhead_q=nhead_q, nhead_k=nhead_k),
    )
