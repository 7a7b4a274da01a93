"""Heads of 1 to 32."""

from dispatch_example import forward, over, qkv

for nhead in (1, 2, 3, 8, 16, 32):
    forward(f"{nhead} heads", over("flash"), *qkv(seqlen_q=20, seqlen_k=20, nhead_q=nhead, nhead_k=nhead))
