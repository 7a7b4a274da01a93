"""Batches of 1 to 16."""

from dispatch_example import forward, over, qkv

for batch in (1, 2, 3, 4, 8, 16):
    forward(f"batch {batch}", over("flash"), *qkv(batch=batch, seqlen_q=20, seqlen_k=20))
