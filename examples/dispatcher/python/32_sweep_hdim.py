"""Head dims from 8 to 256, in steps of 8, each by the kernel that wastes the least."""

from dispatch_example import forward, over, qkv

for hdim in range(8, 257, 24):
    forward(f"head dim {hdim}", over("flash"), *qkv(seqlen_q=16, seqlen_k=20, nhead_q=1, nhead_k=1, hdim=hdim))
