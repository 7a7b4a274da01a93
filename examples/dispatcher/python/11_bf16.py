"""bfloat16, rounded to nearest even: arrays of ml_dtypes.bfloat16, head dims 32 to 256."""

from dispatch_example import forward, over, qkv

for hdim in (32, 64, 128, 256):
    forward(f"bf16, head dim {hdim}", over("flash"), *qkv(hdim=hdim, seqlen_q=33, seqlen_k=50))
