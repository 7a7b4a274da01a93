"""Gradients of grouped queries: dk and dv are sums over the query heads of a group."""

from dispatch_example import backward, over, qkv

for nhead_q, nhead_k in ((4, 4), (8, 2), (8, 1)):
    backward(
        f"{nhead_q} heads of q, {nhead_k} of k and v",
        over("flash"),
        *qkv(seqlen_q=20, seqlen_k=24, nhead_q=nhead_q, nhead_k=nhead_k),
    )
