"""Gradients of head dims 32 to 256, and of one of v that is another than that of q and k."""

from dispatch_example import backward, over, qkv

for hdim, hdim_v in ((32, 32), (64, 64), (96, 96), (128, 128), (256, 256), (192, 128)):
    backward(f"head dims {hdim} and {hdim_v}", over("flash"), *qkv(seqlen_q=20, seqlen_k=24, hdim=hdim, hdim_v=hdim_v))
