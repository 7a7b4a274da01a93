"""Lengths from 32 to 2048, by the powers of two and the numbers beside them."""

from dispatch_example import forward, over, qkv

for seqlen in (32, 33, 64, 127, 128, 256, 512, 1024, 2048):
    forward(f"seqlen {seqlen}", over("flash"), *qkv(seqlen_q=seqlen, seqlen_k=seqlen, nhead_q=1, nhead_k=1, hdim=32))
